//! The writer: the one connection of a store that writes, and what it remembers between batches.
//!
//! Always true:
//! - Every write is made in a transaction that took the write lock first.
//! - Nothing is written into a file that is no longer at its path ([`place`](mod@super::place)). That
//!   its log and its index are in place is checked at each heartbeat, and every [`LOOK_EVERY`].
//! - What is remembered of rows is what is in the file: it is forgotten when another process has
//!   written (`PRAGMA data_version`), and when a transaction did not succeed.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
    thread,
    time::{Duration, Instant},
};

use rusqlite::Connection;
use uuid::Uuid;

use super::{
    file::{File, PAGE_BYTES, limit_log},
    place, schema,
};
use crate::{
    run_id::RunNo,
    store::{RunStatus, ShardSet, StoreError, rows::Head},
};

/// How many rows are remembered at most. More runs than this in memory cost a read per commit.
const HEADS_MAX: usize = 200_000;

/// How long the writer goes on without a pause while others are at the file, and the pause.
const TURN: Duration = Duration::from_millis(50);
const MOMENT: Duration = Duration::from_millis(1);

/// How long after another's write it is still expected to write again.
const COMPANY_KEPT: Duration = Duration::from_secs(10);

/// A log of this length is moved into the file when nothing but heartbeats is written.
const IDLE_LOG_BYTES: u64 = 64 << 10;

/// How many times as long as it should be a log is that readers hold on to.
const LOG_GROWN: u64 = 4;

/// How long a checkpoint waits for those readers. It waits with the write lock held, so that the
/// next reader does not hold it up, too.
const READERS_WAITED_FOR: Duration = Duration::from_millis(20);

/// How long after a look at the log and the index a write does not look again: to look costs 5 us,
/// and a small commit costs 90.
const LOOK_EVERY: Duration = Duration::from_millis(100);

/// A checkpoint that is to be made.
#[derive(Clone, Copy)]
pub(crate) struct Checkpoint {
    /// How long readers are waited for.
    patience: Duration,
}

/// The connection that writes. It is opened again after a commit whose outcome is unknown.
#[derive(Default)]
pub(crate) struct Writer {
    conn: Option<Connection>,
    /// The log and the index that the connection uses; known from its first transaction on.
    shared: Option<place::Shared>,
    /// When they were last looked at and found; `None` makes the next write look.
    looked_at: Option<Instant>,
    memory: Memory,
    /// Whether anything but heartbeats was written since the last heartbeat, and since the last
    /// checkpoint that [`Writer::heartbeat`] made.
    wrote: bool,
    log_is_behind: bool,
    /// Since when it writes without a pause, and when it last did.
    busy_since: Option<Instant>,
    last_wrote_at: Option<Instant>,
}

/// Whether something of deleted runs is still in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Swept {
    Clean,
    No,
}

/// What the writer knows about the file without reading it.
#[derive(Default)]
pub(crate) struct Memory {
    /// The rows that are `Running`: a commit that only adds entries then reads nothing.
    heads: HashMap<i64, Head, BuildHasherDefault<NumberHasher>>,
    /// The shards of the runner that committed last.
    pub(crate) shards: Option<(Uuid, ShardSet)>,
    /// Whether there are numbers of deleted runs that a start has to keep clear of.
    pub(crate) swept: Option<Swept>,
    data_version: Option<i64>,
    /// When somebody else was last seen to have written.
    company_at: Option<Instant>,
}

impl Memory {
    pub(crate) fn head(&self, run: RunNo) -> Option<Head> {
        self.heads.get(&run.0).copied()
    }

    /// Takes note of a row as it is now.
    pub(crate) fn remember(&mut self, run: RunNo, head: Head) {
        if head.status != RunStatus::Running {
            self.heads.remove(&run.0);
        } else if self.heads.len() < HEADS_MAX || self.heads.contains_key(&run.0) {
            self.heads.insert(run.0, head);
        }
    }

    /// Forgets a row that is gone.
    pub(crate) fn forget(&mut self, run: RunNo) {
        self.heads.remove(&run.0);
    }

    /// Forgets what another process may have changed. Called with the write lock held, so that
    /// nothing can change afterwards.
    fn revalidate(&mut self, conn: &Connection, file: &File) -> Result<(), StoreError> {
        let read = |sql| -> Result<i64, StoreError> {
            let mut statement = conn.prepare_cached(sql).map_err(|error| file.error(error))?;
            statement.query_row([], |row| row.get(0)).map_err(|error| file.error(error))
        };
        let data_version = read("PRAGMA data_version")?;
        if self.data_version == Some(data_version) {
            return Ok(());
        }
        let format = schema::version(conn).map_err(|error| file.error(error))?;
        let known = schema::FORMATS.latest();
        if format > known {
            return Err(StoreError::TooNew { store: file.name(), found: format, known });
        }
        schema::FORMATS.require_latest(format, &file.name())?;
        if self.data_version.is_some() {
            self.company_at = Some(Instant::now());
        }
        self.heads.clear();
        self.shards = None;
        self.swept = None;
        self.data_version = Some(data_version);
        Ok(())
    }
}

impl Writer {
    pub(crate) fn new(conn: Connection) -> Writer {
        Writer { conn: Some(conn), ..Writer::default() }
    }

    pub(crate) fn conn(&mut self, file: &File) -> Result<&mut Connection, StoreError> {
        match &mut self.conn {
            Some(conn) => Ok(conn),
            none => {
                (self.shared, self.looked_at) = (None, None);
                Ok(none.insert(file.connect_writer()?))
            }
        }
    }

    /// Whether others are at the file, too: a runner's heartbeat alone is more frequent than this.
    fn has_company(&self) -> bool {
        self.memory.company_at.is_some_and(|at| at.elapsed() < COMPANY_KEPT)
    }

    /// Lets others have the lock for a moment, if there are any and this one has had it for long.
    fn make_room(&mut self) {
        let is_fresh = self.last_wrote_at.is_none_or(|at| at.elapsed() > MOMENT);
        if is_fresh {
            self.busy_since = None;
        }
        let busy_since = *self.busy_since.get_or_insert_with(Instant::now);
        if busy_since.elapsed() > TURN && self.has_company() {
            thread::sleep(MOMENT);
            self.busy_since = None;
        }
    }

    /// Runs `change` in a transaction and makes it durable.
    ///
    /// # Errors
    ///
    /// [`StoreError::UnknownOutcome`] if the commit failed and could not be rolled back either.
    /// After every other error nothing has changed.
    pub(crate) fn transaction<T>(
        &mut self,
        file: &File,
        change: impl FnOnce(&Connection, &mut Memory) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.conn(file)?;
        self.make_room();
        // Taken out, so that nothing is remembered if this fails or panics half-way.
        let mut memory = std::mem::take(&mut self.memory);
        let company_at = memory.company_at;
        let result = self.run(file, &mut memory, change);
        self.last_wrote_at = Some(Instant::now());
        match &result {
            Ok(_) => {
                self.memory = memory;
                self.wrote = true;
            }
            Err(error) => {
                self.memory.company_at = company_at;
                if let StoreError::Full { .. } = error {
                    // The log may be what has filled the disk, and what is in it may fit into the
                    // file: the next try then has room.
                    let patience = Duration::ZERO;
                    self.checkpoint(file, Checkpoint { patience });
                }
                if let StoreError::UnknownOutcome { .. } = error {
                    self.conn = None;
                }
            }
        }
        result
    }

    /// Runs `beat` in a transaction, and says whether the log should be moved into the file now.
    ///
    /// SQLite makes checkpoints by itself when the log has its full length. An idle runner would
    /// never get there, and a log that readers hold on to would grow without end.
    pub(crate) fn heartbeat<T>(
        &mut self,
        file: &File,
        beat: impl FnOnce(&Connection, &mut Memory) -> rusqlite::Result<T>,
    ) -> Result<(T, Option<Checkpoint>), StoreError> {
        let wrote = std::mem::take(&mut self.wrote);
        self.looked_at = None;
        let beaten = self.transaction(file, beat)?;
        self.wrote = false;
        self.log_is_behind |= wrote;
        let (log_bytes, log_pages) = (file.log_bytes(), file.log_pages());
        if let Some(conn) = &self.conn {
            // The file may have grown. A limit that cannot be set stays as it was.
            drop(limit_log(conn, log_pages));
        }
        let patience = if log_bytes > LOG_GROWN * log_pages * PAGE_BYTES {
            Some(READERS_WAITED_FOR)
        } else {
            let is_due = !wrote && (self.log_is_behind || self.log_is_idle(log_bytes));
            is_due.then_some(Duration::ZERO)
        };
        Ok((beaten, patience.map(|patience| Checkpoint { patience })))
    }

    /// Whether the log has grown by heartbeats alone. With others at the file that cannot be told.
    fn log_is_idle(&self, log_bytes: u64) -> bool {
        log_bytes > IDLE_LOG_BYTES && !self.has_company()
    }

    /// Moves the log into the file; empties it, unless others may be about to write. What fails is
    /// done by a later checkpoint: nothing depends on this one.
    pub(crate) fn checkpoint(&mut self, file: &File, Checkpoint { patience }: Checkpoint) {
        let is_crowded = self.has_company() && patience.is_zero();
        let Ok(conn) = self.conn(file) else { return };
        let sql = match is_crowded {
            true => "PRAGMA wal_checkpoint(PASSIVE)",
            false => "PRAGMA wal_checkpoint(TRUNCATE)",
        };
        let moved = conn.busy_timeout(patience).and_then(|()| {
            let moved = conn.query_row(sql, [], |row| row.get::<_, i64>(0));
            conn.busy_timeout(Duration::ZERO)?;
            moved
        });
        match moved {
            Ok(busy) => self.log_is_behind &= busy != 0,
            Err(error) => tracing::debug!(%error, "the log cannot be moved into the file now"),
        }
    }

    fn run<T>(
        &mut self,
        file: &File,
        memory: &mut Memory,
        change: impl FnOnce(&Connection, &mut Memory) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.conn(file)?;
        let Writer { conn, shared, looked_at, .. } = self;
        let Some(conn) = conn.as_ref() else {
            unreachable!("it was just opened");
        };
        file.retry_busy(|| execute(conn, "BEGIN IMMEDIATE"))?;
        let found =
            require_in_place(file, shared, looked_at).and_then(|()| memory.revalidate(conn, file));
        let changed = found.and_then(|()| {
            let changed = change(conn, memory).map_err(|error| file.error(error))?;
            execute(conn, "COMMIT").map_err(|error| file.error(error))?;
            Ok(changed)
        });
        changed.map_err(|error| match roll_back(conn) {
            // In WAL mode a commit that was rolled back was not made: nobody has seen it, and the
            // next batch is written over it.
            Ok(()) => error,
            Err(source) => {
                StoreError::UnknownOutcome { store: file.name(), source: Box::new(source) }
            }
        })
    }
}

/// Refuses to write into files that nobody finds any more. Called in a transaction, so that the
/// files beside the database are there.
fn require_in_place(
    file: &File,
    shared: &mut Option<place::Shared>,
    looked_at: &mut Option<Instant>,
) -> Result<(), StoreError> {
    file.require_in_place()?;
    if looked_at.is_some_and(|at| at.elapsed() < LOOK_EVERY) {
        return Ok(());
    }
    *looked_at = None;
    let shared = shared.get_or_insert_with(|| place::Shared::of(file.path()));
    let found = shared.require(file.path());
    found.map_err(|displaced| file.displaced(displaced))?;
    *looked_at = Some(Instant::now());
    Ok(())
}

/// Not out of the cache of statements: the body of a user's transaction must not find it there.
fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.execute_batch(sql)
}

/// Ends the transaction, if SQLite has not done so by itself.
fn roll_back(conn: &Connection) -> rusqlite::Result<()> {
    if conn.is_autocommit() { Ok(()) } else { conn.execute_batch("ROLLBACK") }
}

/// The numbers of runs are spread by one multiplication; nobody chooses them to do harm.
#[derive(Default)]
pub(crate) struct NumberHasher(u64);

impl Hasher for NumberHasher {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        self.0 = crate::random::hash(self.0, bytes);
    }

    fn write_i64(&mut self, number: i64) {
        let spread = (number as u64).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        self.0 = spread ^ (spread >> 32);
    }
}
