//! Moving everything from a SQLite file to PostgreSQL, with the work that is under way.
//!
//! A store is in charge of its runs if an engine may work on it. There is one such store before,
//! after, and whenever this stops half-way:
//!
//! | what is done | the file | the database |
//! | --- | --- | --- |
//! | the attempt is noted in the file | in charge | empty |
//! | the file is locked; all rows are copied in one transaction | in charge, locked | empty |
//! | that transaction commits, with a mark | in charge, locked | a copy, refused |
//! | the file is marked as moved, and refuses to be written | moved | whole, refused |
//! | the mark in the database says that it is in charge | moved | in charge |
//!
//! Up to the third line, to begin again is to empty the copy and make it anew: the file may have
//! changed meanwhile. After the fourth line only the last is left to do. The attempt's id tells a copy
//! of this file from everything else that might be in a database, which is never touched.
//!
//! Rows are copied as they are, under the same names. A run that was in somebody's memory is found
//! by the next owner of its shard, as after a crash. Runners and their shards stay behind: nobody
//! holds the file any more.

use std::{
    fmt,
    future::{Future, IntoFuture},
    path::{Path, PathBuf},
    pin::Pin,
};

use tokio::sync::oneshot;
use uuid::Uuid;

use crate::{
    store::{
        StoreError,
        postgres::moving::{Destination, Found},
        sqlite::moving::Source,
        url_of,
    },
    time::Timestamp,
};

/// Moves everything from the SQLite file at `from` to the PostgreSQL database `to`
/// (`postgres://user:password@host/database?schema=name`): runs that are live, asleep or done, queues,
/// schedules, events, limits, the secret that tokens are made with, the audit log and the tokens of the
/// HTTP API. Await it.
///
/// Stop the engines on the file first. While it is moved, writes of clients in other processes wait
/// or are answered with [`StoreError::Busy`]; afterwards the file says where it went. Then start
/// engines and clients on `to`: they go on where the old ones stopped, and nothing that was recorded
/// happens again.
///
/// The schema must be empty, or not be there. Tables of your own in the file are not touched.
///
/// Whenever this stops half-way (a crash, a lost connection), call it again with the same two
/// places: it begins anew, or does what is left to do. Until it has ended well either the file is as
/// it was, or the database has everything and waits for that call.
///
/// ```no_run
/// # async fn example() -> Result<(), Box<dyn std::error::Error>> {
/// let moved = everstep::migrate("app.db", "postgres://app@db.example/app")
///     .progress(|at| println!("{} of {} rows", at.rows, at.total))
///     .await?;
/// println!("{} rows are in {}", moved.rows, moved.to);
/// # Ok(()) }
/// ```
pub fn migrate(from: impl AsRef<Path>, to: impl AsRef<Path>) -> Migrate {
    Migrate {
        from: from.as_ref().to_owned(),
        to: to.as_ref().to_owned(),
        progress: Box::new(|_| {}),
        #[cfg(feature = "testing")]
        stop_after: None,
    }
}

/// A move that is to be made. Await it.
#[must_use = "nothing is moved unless it is awaited"]
pub struct Migrate {
    from: PathBuf,
    to: PathBuf,
    progress: Box<dyn FnMut(MigrateProgress) + Send>,
    /// The stage at which a test lets the move die.
    #[cfg(feature = "testing")]
    stop_after: Option<&'static str>,
}

/// How far a move has come.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct MigrateProgress {
    /// The table that is copied.
    pub table: String,
    /// How many rows are copied, of all tables.
    pub rows: u64,
    /// How many there are.
    pub total: u64,
}

/// A move that was made.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Migrated {
    /// Where everything was, for messages.
    pub from: String,
    /// Where it is, for messages; without a password.
    pub to: String,
    /// How many rows were copied; 0 if an earlier call had done that already.
    pub rows: u64,
}

/// Why nothing was moved, or not all of it was done.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MigrateError {
    /// Only from SQLite to PostgreSQL.
    #[error("a move is made from a SQLite file to a PostgreSQL database, and {what}")]
    Unsupported {
        /// Which of the two is something else.
        what: String,
    },
    /// A runner works on the file.
    #[error(
        "{store} is held by the runner `{runner}` until {until}; stop that process, then migrate \
             again"
    )]
    InUse {
        /// Which store.
        store: String,
        /// Who holds it.
        runner: String,
        /// Until when, if it does not prolong its lease.
        until: Timestamp,
    },
    /// The schema holds something.
    #[error(
        "{store} holds {what}; nothing was changed: name a schema that is empty or not there, with \
             `?schema=..`"
    )]
    NotEmpty {
        /// Which store.
        store: String,
        /// What it holds.
        what: &'static str,
    },
    /// A table is not what it should be.
    #[error("the table `{table}` cannot be moved to {store}: {what}; nothing was changed")]
    Differs {
        /// Which store.
        store: String,
        /// Which table.
        table: String,
        /// What is different.
        what: String,
    },
    /// Everything is copied, but the last word could not be said.
    #[error(
        "everything is in {to} and {from} is closed, but {to} could not be put in charge; migrate \
             again to finish"
    )]
    Unfinished {
        /// Where everything was.
        from: String,
        /// Where it is.
        to: String,
        /// Why not.
        #[source]
        source: StoreError,
    },
    /// One of the two cannot be read or written; the file is as it was.
    #[error(transparent)]
    Store(#[from] StoreError),
    /// A thread could not be started, or has panicked.
    #[error("the thread that moves has ended early; migrate again")]
    Interrupted,
}

impl Migrate {
    /// Calls `report` whenever some rows were copied, from a thread of its own.
    pub fn progress(mut self, report: impl FnMut(MigrateProgress) + Send + 'static) -> Migrate {
        self.progress = Box::new(report);
        self
    }

    /// Lets the move die right after a stage: `noted`, `begun`, `first page`, `copied`, `committed` or
    /// `closed`.
    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn stop_after(mut self, stage: &'static str) -> Migrate {
        self.stop_after = Some(stage);
        self
    }

    fn run(mut self) -> Result<Migrated, MigrateError> {
        let url = self.places()?;
        let source = Source::open(&self.from)?;
        let destination = Destination::open(&url)?;
        if let Some((attempt, to)) = source.moved()? {
            return finish(&source, &destination, attempt, to);
        }
        refuse_what_is_there(&source, &destination, &destination.look()?)?;
        refuse_runners(&source)?;
        let attempt = crate::seam::random_uuid();
        source.note(attempt, destination.name())?;
        self.reach("noted")?;
        source.lock()?;
        // From here on nobody comes to the file; somebody may have, just before.
        refuse_runners(&source)?;
        if source.moved()?.is_some() {
            return Err(MigrateError::Interrupted);
        }
        let rows = self.copy(&source, &destination)?;
        self.reach("copied")?;
        destination.commit(attempt, &source.name())?;
        self.reach("committed")?;
        source.close(attempt, destination.name())?;
        take_charge(&source, &destination, attempt, || self.reach("closed"))?;
        Ok(Migrated { from: source.name(), to: destination.name().to_owned(), rows })
    }

    /// The URL to move to, if both places are what they should be.
    fn places(&self) -> Result<String, MigrateError> {
        let unsupported = |what: &str| {
            let what = what.to_owned();
            Err(MigrateError::Unsupported { what })
        };
        if !matches!(url_of(&self.from), Ok(None)) {
            return unsupported("the first place is the URL of a database");
        }
        match url_of(&self.to) {
            Ok(Some(url)) => Ok(url.to_owned()),
            _ => unsupported("the second place is no URL like `postgres://user@host/database`"),
        }
    }

    /// Copies all rows into a transaction that is left open.
    fn copy(&mut self, source: &Source, destination: &Destination) -> Result<u64, MigrateError> {
        let tables = source.tables()?;
        let total = tables.iter().map(|table| table.rows).sum();
        let is_meant = |found: &Found| refuse_what_is_there(source, destination, found).is_ok();
        if !destination.begin(is_meant)? {
            refuse_what_is_there(source, destination, &destination.look()?)?;
            return Err(MigrateError::Interrupted);
        }
        self.reach("begun")?;
        let mut rows = 0;
        for table in &tables {
            let differs = |what: String| MigrateError::Differs {
                store: destination.name().to_owned(),
                table: table.name.clone(),
                what,
            };
            if let Some(odd) = destination.differs(table)? {
                return Err(differs(format!("only one of both has {odd}")));
            }
            let before = rows;
            source.read::<MigrateError>(table, |page| {
                rows += destination.put(table, page)?;
                (self.progress)(MigrateProgress { table: table.name.clone(), rows, total });
                self.reach("first page")
            })?;
            if rows - before != table.rows {
                let copied = rows - before;
                return Err(differs(format!("{copied} of {} rows came", table.rows)));
            }
        }
        destination.set_numbers(&source.numbers()?)?;
        destination.analyze(&tables)?;
        Ok(rows)
    }

    /// Fails if a test lets the move die after this stage.
    fn reach(&self, _stage: &str) -> Result<(), MigrateError> {
        #[cfg(feature = "testing")]
        if self.stop_after == Some(_stage) {
            let store = format!("a move that stops after `{_stage}`");
            return Err(StoreError::Closed { store }.into());
        }
        Ok(())
    }
}

/// What an earlier call has left to do.
fn finish(
    source: &Source,
    destination: &Destination,
    attempt: Uuid,
    to: String,
) -> Result<Migrated, MigrateError> {
    match destination.look()? {
        Found::Moved { id, .. } if id == attempt => {}
        _ => {
            let store = source.name();
            return Err(StoreError::Moved { store, to }.into());
        }
    }
    take_charge(source, destination, attempt, || Ok(()))?;
    Ok(Migrated { from: source.name(), to: destination.name().to_owned(), rows: 0 })
}

fn take_charge(
    source: &Source,
    destination: &Destination,
    attempt: Uuid,
    before: impl FnOnce() -> Result<(), MigrateError>,
) -> Result<(), MigrateError> {
    before()?;
    let taken = destination.take_charge(attempt);
    taken.map_err(|error| MigrateError::Unfinished {
        from: source.name(),
        to: destination.name().to_owned(),
        source: error,
    })
}

fn refuse_runners(source: &Source) -> Result<(), MigrateError> {
    match source.holder()? {
        None => Ok(()),
        Some(holder) => Err(MigrateError::InUse {
            store: source.name(),
            runner: holder.name,
            until: holder.until,
        }),
    }
}

/// Refuses a schema that has anything in it but a copy of this file that was given up.
fn refuse_what_is_there(
    source: &Source,
    destination: &Destination,
    found: &Found,
) -> Result<(), MigrateError> {
    let what = match found {
        Found::Nothing => return Ok(()),
        Found::Moved { id, is_done: false } if source.has_tried(*id)? => return Ok(()),
        Found::Moved { .. } => "what was moved there from another store",
        Found::Tables => "tables of an everstep store already",
    };
    Err(MigrateError::NotEmpty { store: destination.name().to_owned(), what })
}

impl IntoFuture for Migrate {
    type Output = Result<Migrated, MigrateError>;
    type IntoFuture = Pin<Box<dyn Future<Output = Self::Output> + Send>>;

    fn into_future(self) -> Self::IntoFuture {
        Box::pin(async move {
            let (sender, moved) = oneshot::channel();
            let work = move || _ = sender.send(self.run());
            let spawned = crate::seam::Process::current().spawn("everstep-migrate", work);
            spawned.map_err(|_| MigrateError::Interrupted)?;
            moved.await.map_err(|_| MigrateError::Interrupted)?
        })
    }
}

impl fmt::Debug for Migrate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Not where to: that may hold a password.
        f.debug_struct("Migrate").field("from", &self.from).finish_non_exhaustive()
    }
}
