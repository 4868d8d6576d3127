//! What SQLite and PostgreSQL have in common: the statements of each feature, written once.
//!
//! The two have the same tables. [`Sql`] is a transaction of one of them, and [`SqlTables`] a batch in
//! it; each file below has the statements of one feature over these, under the rules that decide
//! ([`crate::store::rules`]). Where the dialects differ, both texts stand side by side ([`Sql::pick`]).
//! Connections, transactions, and what every step does are in `sqlite` and `postgres`.

use std::{
    borrow::Cow,
    ops::{ControlFlow, Deref, DerefMut},
};

use self::{
    ahead::Ahead,
    bulk::Bulk,
    value::{BadValue, Param, Row},
};
use crate::{
    run_id::{RunNo, ShardId},
    store::{
        Batch, Fence, KeyRange, NewRun, Notice, Put, Transaction,
        rows::{EventWaiter, Head, Place, Waiter},
    },
    time::Timestamp,
};

pub(crate) mod ahead;
pub(crate) mod bulk;
pub(crate) mod children;
pub(crate) mod columns;
pub(crate) mod deferreds;
pub(crate) mod doctor;
pub(crate) mod events;
pub(crate) mod filter;
pub(crate) mod letters;
pub(crate) mod limits;
pub(crate) mod listing;
pub(crate) mod mends;
pub(crate) mod operators;
pub(crate) mod overview;
pub(crate) mod pools;
pub(crate) mod queues;
pub(crate) mod reads;
pub(crate) mod runners;
pub(crate) mod runs;
pub(crate) mod schedules;
pub(crate) mod store;
pub(crate) mod streams;
pub(crate) mod sweep;
pub(crate) mod value;

/// The text of a statement.
pub(crate) trait Text: Into<Cow<'static, str>> {}

impl<T: Into<Cow<'static, str>>> Text for T {}

/// A transaction: statements in order, rows back. What is read shows what was written.
///
/// Parameters are `?1`, `?2` and so on: SQLite binds these by number, without asking for names. The
/// PostgreSQL store writes them as `$1` and `$2` when it prepares a statement.
pub(crate) trait Sql {
    type Error: From<BadValue>;

    /// Whether others can write at the same time, so that what is read has to be locked.
    const HAS_OTHERS: bool;

    /// Of a text for SQLite and one for PostgreSQL, the one for this.
    fn pick<'t>(sqlite: &'t str, postgres: &'t str) -> &'t str;

    /// Executes a statement, now or together with the next that is waited for.
    fn execute(&self, sql: impl Text, params: &[Param<'_>]) -> Result<(), Self::Error>;

    /// Executes a statement now; how many rows it has changed.
    fn execute_now(&self, sql: impl Text, params: &[Param<'_>]) -> Result<usize, Self::Error>;

    /// Writes a row, now or together with others of the same statement.
    fn put(&self, bulk: &'static Bulk, row: &[Param<'_>]) -> Result<(), Self::Error>;

    /// Keeps rows that were put apart from those that come: no statement is about both.
    fn barrier(&self) {}

    /// The answers to several queries, in one round trip.
    fn ask(&self, queries: Vec<Query<'_>>) -> Result<(), Self::Error>;

    /// The rows of a query, read by `read`.
    fn rows<T>(
        &self,
        sql: impl Text,
        params: &[Param<'_>],
        read: impl FnMut(&dyn Row) -> Result<T, BadValue>,
    ) -> Result<Vec<T>, Self::Error> {
        let mut found = Vec::new();
        self.ask(vec![Query::all(sql, params, &mut found, read)])?;
        Ok(found)
    }

    /// The first row of a query, if there is one.
    fn row<T>(
        &self,
        sql: impl Text,
        params: &[Param<'_>],
        read: impl FnOnce(&dyn Row) -> Result<T, BadValue>,
    ) -> Result<Option<T>, Self::Error> {
        let mut found = None;
        self.ask(vec![Query::first(sql, params, &mut found, read)])?;
        Ok(found)
    }

    /// Whether a query has a row.
    fn exists(&self, sql: impl Text, params: &[Param<'_>]) -> Result<bool, Self::Error> {
        self.row(sql, params, |_| Ok(())).map(|row| row.is_some())
    }

    /// The number that a query gives; 0 if it gives none.
    fn count(&self, sql: impl Text, params: &[Param<'_>]) -> Result<u64, Self::Error> {
        let count = self.row(sql, params, |row| row.get(0))?;
        Ok(count.unwrap_or(0))
    }

    /// Behind a query: rows that somebody else has are left out, the others are locked.
    fn skip_locked() -> &'static str {
        Self::pick("", " FOR UPDATE SKIP LOCKED")
    }

    /// Behind a table: SQLite must use this index.
    fn indexed_by(index: &str) -> String {
        match Self::pick(index, "") {
            "" => String::new(),
            index => format!(" INDEXED BY {index}"),
        }
    }

    /// Behind a column: it is one of the list in this parameter, of numbers or texts.
    fn is_any(list: &str) -> String {
        Self::pick("IN (SELECT value FROM json_each(@))", "= ANY (@)").replace('@', list)
    }

    /// Behind a column: it is one of what this query finds.
    fn is_in(query: &str) -> String {
        // PostgreSQL's planner would look there for each run of all, if it were not an array.
        Self::pick("IN (@)", "= ANY (ARRAY(@))").replace('@', query)
    }

    /// Behind a query inside of another: PostgreSQL must not plan both as one.
    fn apart() -> &'static str {
        Self::pick("", " OFFSET 0")
    }

    /// As [`is_any`](Sql::is_any), of bytes.
    fn is_any_bytes(list: &str) -> String {
        Self::pick("IN (SELECT unhex(value) FROM json_each(@))", "= ANY (@)").replace('@', list)
    }
}

/// A query, and what takes in its rows until it has enough.
pub(crate) struct Query<'q> {
    pub(crate) sql: Cow<'static, str>,
    pub(crate) params: &'q [Param<'q>],
    pub(crate) take: Take<'q>,
}

type Take<'q> = Box<dyn FnMut(&dyn Row) -> Result<ControlFlow<()>, BadValue> + 'q>;

impl<'q> Query<'q> {
    pub(crate) fn new(
        sql: impl Text,
        params: &'q [Param<'q>],
        take: impl FnMut(&dyn Row) -> Result<ControlFlow<()>, BadValue> + 'q,
    ) -> Query<'q> {
        Query { sql: sql.into(), params, take: Box::new(take) }
    }

    /// Puts all rows into a list.
    pub(crate) fn all<T>(
        sql: impl Text,
        params: &'q [Param<'q>],
        list: &'q mut Vec<T>,
        mut read: impl FnMut(&dyn Row) -> Result<T, BadValue> + 'q,
    ) -> Query<'q> {
        Query::new(sql, params, move |row| {
            list.push(read(row)?);
            Ok(ControlFlow::Continue(()))
        })
    }

    /// Keeps the first row, if there is one.
    pub(crate) fn first<T>(
        sql: impl Text,
        params: &'q [Param<'q>],
        found: &'q mut Option<T>,
        read: impl FnOnce(&dyn Row) -> Result<T, BadValue> + 'q,
    ) -> Query<'q> {
        let mut read = Some(read);
        Query::new(sql, params, move |row| {
            if let Some(read) = read.take() {
                *found = Some(read(row)?);
            }
            Ok(ControlFlow::Break(()))
        })
    }
}

/// The rows of a SQL store, within one batch: every trait of [`rows`](crate::store::rows) is
/// implemented for this. A type of its own, since those traits are public and [`SqlTables`] is not.
pub(crate) struct InSql<T>(pub(crate) T);

impl<T> Deref for InSql<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for InSql<T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A batch in a transaction of a SQL store. Every trait of rows that the rules ask for is implemented
/// over this in [`InSql`], except for queues.
///
/// First come the rows of runs as far as they are each store's own: what every step reads and writes.
/// Then, for a store in which others can write at the same time, what is locked before the rules decide;
/// these methods do nothing elsewhere.
pub(crate) trait SqlTables {
    type Error;
    type Sql: Sql<Error = Self::Error>;

    fn sql(&self) -> &Self::Sql;

    /// The rows that the batch knows without asking.
    fn ahead(&mut self) -> &mut Ahead;

    /// The time of the batch.
    fn instant(&self) -> Timestamp;

    /// The notices of the batch.
    fn noticed(&mut self) -> &mut Vec<Notice>;

    /// The row of a run as it is now, locked.
    fn row_of(&mut self, run: RunNo) -> Result<Option<Head>, Self::Error>;

    /// The row of a run is as in `head` from now on.
    fn keep(&mut self, head: &Head);

    /// The row of a run is gone, and its number a grave.
    fn buried(&mut self, run: RunNo);

    /// Whether this is the number of a deleted run of which something is left, if that is known.
    fn known_grave(&mut self, run: RunNo) -> Result<Option<bool>, Self::Error>;

    /// Implements [`hold_fence`](super::rows::RunTables::hold_fence).
    fn require_fence(&mut self, fence: Fence) -> Result<bool, Self::Error>;

    /// Implements [`owns`](super::rows::RunTables::owns).
    fn has_shard(&mut self, shard: ShardId) -> Result<bool, Self::Error>;

    /// Inserts the row of a run, unless there is one with its number.
    fn insert_run(&mut self, new: &NewRun, head: &Head) -> Result<bool, Self::Error>;

    /// Writes the row of a run that ends.
    fn end_run(
        &mut self,
        head: &Head,
        was_due: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> Result<(), Self::Error>;

    /// Implements [`write_entries`](super::rows::RunTables::write_entries).
    fn put_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), Self::Error>;

    /// Runs the body of a user's transaction. Nothing that was read before is known afterwards.
    fn run_body(&mut self, transaction: &Transaction) -> Result<(), Self::Error>;

    /// A row is changed by the doctor: nothing that is remembered of rows is believed any more.
    fn forget(&mut self, _: Option<RunNo>) {}

    /// Implements [`prepare`](super::rows::RunTables::prepare).
    fn lock_and_read(&mut self, _: &Batch) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Implements [`own`](super::rows::RunTables::own).
    fn writes_for(&mut self, _: RunNo) {}

    /// Makes sure that nobody else decides about this.
    fn lock(&mut self, _: Subject<'_>) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Locks the rows of runs that will be asked for, as far as nobody else has them.
    fn lock_runs(&mut self, _: &[RunNo]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Those of these who still wait for the end of a run once their own runs are locked.
    fn lock_watchers(
        &mut self,
        _: RunNo,
        watchers: Vec<Waiter>,
    ) -> Result<Vec<Waiter>, Self::Error> {
        Ok(watchers)
    }

    /// Those of these events that are still expired once their names are locked, as far as they can be.
    fn lock_expired(
        &mut self,
        events: Vec<(String, u64)>,
    ) -> Result<Vec<(String, u64)>, Self::Error> {
        Ok(events)
    }

    /// Reads and locks the runs that wait, all at once.
    fn lock_waiting(&mut self, _: &[EventWaiter]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Locks the queues of items that have these places.
    fn lock_holders(&mut self, _: &[Place]) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether this is known to have no place under a limit.
    fn is_placeless(&self, _: &Waiter) -> bool {
        false
    }

    /// This gets a place under a limit.
    fn gets_place(&mut self, _: &Waiter) {}
}

/// What is decided about under a lock.
#[derive(Clone, Copy, Debug)]
#[cfg_attr(
    not(feature = "postgres"),
    expect(dead_code, reason = "SQLite has one writer and locks nothing else")
)]
pub(crate) enum Subject<'n> {
    /// All about the events of one name.
    Event(&'n str),
    /// A key of a limit.
    Limit(&'n str, &'n str),
    Schedule(&'n str),
    /// What becomes of a dead letter.
    Letter(u64),
}
