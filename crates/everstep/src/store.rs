//! The store: the one trait through which anything becomes durable.
//!
//! All calls block; the engine makes them from threads that may block. A store is shared by the
//! threads of a process, and several processes may have stores on the same data.
//!
//! What every store promises, and the crate `everstep-conformance` checks:
//! - When [`Store::commit`] returns `Ok`, everything that was not refused is durable: it survives
//!   the loss of power. When it returns an error other than [`StoreError::UnknownOutcome`],
//!   nothing of the batch has happened.
//! - A refused write changes nothing and says so; the rest of its batch stands.
//! - Keys are compared as bytes; lists come in ascending order; a range affects exactly its keys.
//! - Delivery and parking cannot miss each other: either the delivery finds the parked row and
//!   makes it due, or the parking is refused with what was delivered.
//! - A batch under a fence that no longer holds commits nothing for any run.

use std::{collections::BTreeMap, fmt, sync::Arc, time::Duration};

use uuid::Uuid;

pub use crate::{
    commit::*,
    pool::{PoolNo, PoolRow, Serves},
    token::Secret,
};
use crate::{
    run_id::{RunId, RunNo, SHARDS, ShardId},
    time::Timestamp,
};

mod apply;
pub(crate) mod doctor;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod format;
pub(crate) mod memory;
#[cfg(all(feature = "sqlite", feature = "postgres"))]
pub(crate) mod moving;
mod operators;
mod overview;
#[cfg(feature = "postgres")]
pub(crate) mod postgres;
pub mod rows;
pub(crate) mod rules;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) mod sql;
#[cfg(feature = "sqlite")]
pub(crate) mod sqlite;

pub use doctor::{Ask, CellKind, Check, Facts, FoundRow, PlaceFact, RunFacts};
pub use memory::MemoryStore;
pub use operators::{ApiTokenRow, AuditRow, NewAudit, ParseRoleError, Role};
pub use overview::*;
#[cfg(feature = "postgres")]
pub use postgres::{PostgresOptions, PostgresStore};
#[cfg(feature = "sqlite")]
pub use sqlite::{SqliteOptions, SqliteStore};

/// The store that a text names: the URL of a PostgreSQL database, or the path of a SQLite file, which
/// is made if it is not there and `create` says so.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn open(place: &std::path::Path, create: bool) -> Result<Arc<dyn Store>, StoreError> {
    match url_of(place)? {
        #[cfg(feature = "postgres")]
        Some(url) => {
            let store = PostgresStore::open(url)?;
            if !create {
                store.require_current()?;
            }
            Ok(Arc::new(store))
        }
        #[cfg(not(feature = "postgres"))]
        Some(_) => Err(StoreError::CannotOpen {
            store: "the PostgreSQL database".to_owned(),
            source: "this program was built without the feature `postgres` of everstep".into(),
        }),
        #[cfg(feature = "sqlite")]
        None if create => Ok(Arc::new(SqliteStore::create(place)?)),
        #[cfg(feature = "sqlite")]
        None => Ok(Arc::new(SqliteStore::open(place)?)),
        #[cfg(not(feature = "sqlite"))]
        None => {
            let _ = create;
            Err(StoreError::CannotOpen {
                store: format!("SQLite file `{}`", place.display()),
                source: "this program was built without the feature `sqlite` of everstep".into(),
            })
        }
    }
}

/// The URL of a PostgreSQL database, if the text is one; `None` if it is the path of a file.
///
/// # Errors
///
/// [`StoreError::CannotOpen`] if it is meant for a database and is not written as a URL: a file of that
/// name, which may hold a password, is not what was wanted. The error does not repeat the text.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn url_of(place: &std::path::Path) -> Result<Option<&str>, StoreError> {
    let Some(text) = place.to_str() else {
        return Ok(None);
    };
    let refused = |problem: String| StoreError::CannotOpen {
        store: "the PostgreSQL database of the connection string".to_owned(),
        source: problem.into(),
    };
    if let Some((scheme, _)) = text.split_once("://") {
        let is_scheme = |it: char| it.is_ascii_alphanumeric() || matches!(it, '+' | '-' | '.');
        if is_postgres(scheme) {
            return Ok(Some(text));
        }
        if !scheme.is_empty() && scheme.chars().all(is_scheme) {
            return Err(refused(format!(
                "`{scheme}://` is no URL that everstep knows; give `postgres://user@host/database`, \
                 or the path of a SQLite file"
            )));
        }
    }
    if text.split_once(':').is_some_and(|(scheme, _)| is_postgres(scheme)) {
        return Err(refused(
            "it is not written as a URL; write `postgres://user@host/database`".to_owned(),
        ));
    }
    let is_path = text.starts_with('.') || place.is_absolute();
    let mut before_values = text.split('=').rev().skip(1);
    let keywords = [
        "host",
        "hostaddr",
        "port",
        "dbname",
        "user",
        "password",
        "passfile",
        "service",
        "sslmode",
        "options",
        "connect_timeout",
        "application_name",
        "target_session_attrs",
    ];
    let is_keyword = |before: &str| {
        let word = before.split_whitespace().last().unwrap_or_default();
        keywords.contains(&&*word.to_ascii_lowercase())
    };
    if !is_path && before_values.any(is_keyword) {
        return Err(refused(
            "it is written in keywords and values; write it as a URL, \
             `postgres://user@host/database`, or give the path of a SQLite file as `./..`"
                .to_owned(),
        ));
    }
    let has_password = text.split_once('@').is_some_and(|(before, _)| before.contains(':'));
    if has_password && !is_path {
        return Err(refused(
            "it has a user and a password, and is not written as a URL; write \
             `postgres://user@host/database`, or give the path of a SQLite file as `./..`"
                .to_owned(),
        ));
    }
    Ok(None)
}

/// Whether this is the scheme of a PostgreSQL URL, in upper or lower case.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
fn is_postgres(scheme: &str) -> bool {
    ["postgres", "postgresql"].iter().any(|known| scheme.eq_ignore_ascii_case(known))
}

/// How far the number of a run may be ahead of the clock that asks for due runs, before the run is taken
/// for one that was started by a wrong clock: see [`Store::due`].
pub const FUTURE: Duration = Duration::from_secs(1);

/// What [`Store::commit_in_pg`] gives.
#[cfg(feature = "postgres")]
pub type BoxFuture<'a, T> = std::pin::Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Where runs are kept.
pub trait Store: Send + Sync + 'static {
    /// What this is and where, for messages: ``SQLite file `app.db` ``.
    fn describe(&self) -> String;

    /// Brings the data to the version of this program. Refuses data of a newer version, and
    /// refuses to change data that a live runner of an older version is using. Idempotent.
    fn migrate(&self) -> Result<(), StoreError>;

    /// What tokens are made with: 32 random bytes, drawn when the data was first made and the same
    /// from then on, in every process.
    fn secret(&self) -> Result<Secret, StoreError>;

    /// Whether a call waits for nothing but this machine. Only then may an engine thread commit by
    /// itself: a call that waits for a network may not return for a long time, and the thread polls
    /// no body meanwhile. `false` by default.
    fn is_local(&self) -> bool {
        false
    }

    /// Makes a batch durable in one transaction.
    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError>;

    /// Makes the writes of a batch within a transaction of the caller's own, on a connection of its
    /// own to the same data. They are durable when the caller commits, and gone when it rolls back.
    #[cfg(feature = "sqlite")]
    fn commit_in(
        &self,
        _tx: &rusqlite::Transaction<'_>,
        _batch: &Batch,
    ) -> Result<Applied, StoreError> {
        Err(StoreError::AnotherFile { store: self.describe(), found: "a SQLite file".to_owned() })
    }

    /// As [`commit_in`](Store::commit_in), in a transaction of PostgreSQL.
    #[cfg(feature = "postgres")]
    fn commit_in_pg<'a>(
        &'a self,
        _tx: &'a tokio_postgres::Transaction<'_>,
        _batch: Batch,
    ) -> BoxFuture<'a, Result<Applied, StoreError>> {
        let error = StoreError::AnotherFile {
            store: self.describe(),
            found: "a PostgreSQL database".to_owned(),
        };
        Box::pin(std::future::ready(Err(error)))
    }

    /// The row of one run.
    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError>;

    /// Everything an owner needs to take a run into memory, in one snapshot.
    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError>;

    /// The unread messages after `after`, in order.
    fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError>;

    /// The first of them, at most `limit`.
    fn unread(&self, run: RunNo, after: u64, limit: usize) -> Result<Vec<InboxRow>, StoreError> {
        let mut rows = self.inbox(run, after)?;
        rows.truncate(limit);
        Ok(rows)
    }

    /// Runs with `available_at <= now` in these shards, ordered by (`available_at`, number), after
    /// the given place, at most `limit`; and when the next one after `now` is due.
    ///
    /// A run whose `available_at` is not after the instant at which its id was made is due at once,
    /// whatever a clock says. So behind the others come those whose ids were made by a clock that is
    /// ahead: their numbers are from [`FUTURE`] after `now` on.
    fn due(
        &self,
        now: Timestamp,
        shards: &ShardSet,
        after: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Due, StoreError>;

    /// Runs of these shards that are `Running` or `RollingBack`, by number, after the given one.
    /// At a takeover these are the ones that were in somebody's memory.
    fn live(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<DueRun>, StoreError>;

    /// Runs of these shards that are `Paused` and not due, by number, after the given one. At a
    /// takeover those that other code may mend are among them. (One is due whose cancel was
    /// requested: to end it takes no code.)
    fn paused(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<PausedRun>, StoreError>;

    /// How many runs of these shards wait for something from outside or for a time, by kind; for
    /// the report on start-up.
    fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError>;

    /// Runs that match, newest first, after the given one, at most `limit`.
    fn list(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunRow>, StoreError>;

    /// How many runs match.
    fn count(&self, filter: &Filter) -> Result<u64, StoreError>;

    /// How many runs match, by status; those of a status that the filter leaves out are not counted.
    fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError>;

    /// What has happened in each part of this time.
    fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError>;

    /// The retention horizon: every run that retention has deleted had ended before this instant. `None`
    /// if retention has deleted nothing, or if the store does not keep the horizon.
    fn horizon(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(None)
    }

    /// Moves the retention horizon forward to this instant, durably. It never moves back.
    fn raise_horizon(&self, _to: Timestamp) -> Result<(), StoreError> {
        Ok(())
    }

    /// How many runs of each workflow have each status, where there is one, in any order. May take
    /// its time with many runs: whoever asks often keeps the answer for a while.
    fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError>;

    /// Entries of a run's current generation in key order, after the given key, at most `limit`.
    fn history(
        &self,
        run: RunNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Put>, StoreError>;

    /// The values that a run has set for clients, by key.
    fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError>;

    /// Items of a stream of a run from a position on, in order, at most `limit` and not more than a
    /// few megabytes, but at least one if there is any; `None` if there is no such run.
    fn stream(
        &self,
        run: RunNo,
        stream: &str,
        from: u64,
        limit: usize,
    ) -> Result<Option<StreamPage>, StoreError>;

    /// The runs that this one has started and that have not ended, oldest first, whichever of its
    /// generations it was.
    fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError>;

    /// The streams of a run, by name.
    fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError>;

    /// Which of these streams have an item at or after the given position: their places in the
    /// list, in order. One query for all.
    fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError>;

    /// Those of the given runs that have ended (or do not exist), with how. One query for all.
    fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError>;

    /// Those of the given requests that were answered (or do not exist), with the answer. One
    /// query for all.
    fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError>;

    /// Messages that no run will read, left over when a run ended, or refused: by number, after
    /// the given one, at most `limit`.
    fn dead_letters(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError>;

    /// What is known about the events of one name; `None` if nobody has published or waited for
    /// one.
    fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError>;

    /// Whether [`Write::TendEvents`] would find something to do at `now`.
    fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError>;

    /// An item of a queue.
    fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError>;

    /// Items of a queue, in this state or any, by number, after the given one, at most `limit`.
    fn queue_items(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemRow>, StoreError>;

    /// How a queue stands.
    fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError>;

    /// The queues that have items by name, after the given one, at most `limit`. No more than `most`
    /// items of a state are counted, so that it is cheap however long the queues are.
    fn queues(
        &self,
        after: Option<&str>,
        limit: usize,
        most: u64,
    ) -> Result<Vec<QueueRow>, StoreError>;

    /// Whether a claim would get an item, and when next. Cheap, however long the queue is.
    fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError>;

    /// When the first claim runs out of an item that has a place under a limit.
    fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError>;

    /// Those of the given items that have ended (or do not exist), with their answers. One call for
    /// all.
    fn queue_ended(&self, items: &[ItemId]) -> Result<Vec<EndedItem>, StoreError>;

    /// Whether there are entries of generations that are over, for [`Write::Sweep`] to remove.
    fn has_old_generations(&self) -> Result<bool, StoreError> {
        Ok(false)
    }

    /// One schedule.
    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError>;

    /// Schedules by name, after the given one, at most `limit`.
    fn schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError>;

    /// Schedules that are not paused with `next_at <= now`, ordered by (`next_at`, name), after the
    /// given place, at most `limit`; and when the next one after `now` is due.
    fn due_schedules(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<DueSchedules, StoreError>;

    /// Schedules that are not paused and have ticks that wait for the end of a run, by name, after
    /// the given one, at most `limit`.
    fn queued_schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleRow>, StoreError>;

    /// The places under limits that the operations of a run have or wait for, by operation.
    fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError>;

    /// The limits that are in use, or were not long ago, by name and key: all, or those of one name.
    fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError>;

    /// The pools that were ever used, by number: the one with number 0, `default`, always; others
    /// from the first write on that starts a run in them or hands one over to them, or from the
    /// first runner on that serves them.
    fn pools(&self) -> Result<Vec<PoolRow>, StoreError>;

    /// Enters a runner, with a fresh epoch, holding no shards.
    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError>;

    /// Prolongs the lease to `now + lease`. `false` if the epoch is no longer the runner's: it
    /// must stop at once.
    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError>;

    /// The runners that are entered, with the shards they hold. A runner compares its own row with
    /// what it takes for its own: a change that was answered before the call is in it.
    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError>;

    /// Takes for this runner those of the wanted shards that nobody holds, or whose holder's lease
    /// is over at `now`, or whose holder is in `gone` and has not prolonged its lease since it was
    /// read. All shards of such a holder become free, its lease ends at `now` if it would end later, and
    /// its epoch is raised, so that none of its batches can commit from then on. Counts a recovery on every
    /// run of those shards that is `Running` or `RollingBack`, and on none of a shard that was given
    /// back. Answers with all shards that the runner holds after it, or `None` if the fence no
    /// longer holds.
    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Result<Option<ShardSet>, StoreError>;

    /// Whether this runner is known to be gone although its lease is not over: a process that died
    /// on this machine. `false` if that cannot be told.
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let _ = runner;
        false
    }

    /// Gives shards back. They belong to nobody until somebody takes them. After an error they may or
    /// may not, but never later than the next answer of this store.
    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError>;

    /// Removes the runner and frees all that it holds.
    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError>;

    /// Tells other processes' runners that something has happened to these runs. A hint that may
    /// be lost. Also reaches other engines of this process that have the same store open.
    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]);

    /// Calls `then` once the hints of all earlier calls of [`wake_others`](Store::wake_others) were
    /// sent or given up: a process that ends after that takes no hint along. At once by default, for
    /// stores whose `wake_others` sends before it returns. A store that sends later calls `then`
    /// within about a second, whatever the network does.
    fn after_wakes(&self, then: Box<dyn FnOnce() + Send>) {
        then();
    }

    /// From now on calls `wake` with the runs that others have named in
    /// [`wake_others`](Store::wake_others), until the returned guard is dropped. The address at
    /// which this runner is reached goes into its row. `wake` gets an empty list for "something
    /// happened, look for yourself".
    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError>;

    /// The ids of runs that match, newest first, after the given one, at most `limit`.
    fn find(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        let rows = self.list(filter, after, limit)?;
        Ok(rows.into_iter().map(|row| row.id).collect())
    }

    /// Runs of this workflow that have ended so before `before`, with when, the first one first.
    fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<(RunId, Timestamp)>, StoreError>;

    /// Removes what deleted runs have left, and keys that are kept no longer, in a transaction of
    /// its own: about `limit` rows. Whether there is more.
    ///
    /// Nothing that can be read depends on it, but for one thing: until then the number of a
    /// deleted run is not free, and a start under it is refused with [`Refusal::Gone`].
    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError>;

    /// Adds an entry to the audit log; its number, once it is durable.
    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError>;

    /// Notes what became of what an entry is about. `false` if there is no such entry, or it has an
    /// outcome already, which stays.
    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError>;

    /// Entries of the audit log, newest first, before the given number, at most `limit`.
    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError>;

    /// Removes entries that were begun before `before`, the oldest first, at most `limit`; when the
    /// oldest that is left was begun.
    fn delete_audits(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<Option<Timestamp>, StoreError>;

    /// Adds a token of the HTTP API. `false` if there is one of this name: it stays as it is.
    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError>;

    /// Removes the token of this name; `false` if there is none.
    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError>;

    /// Notes that the token of this name was used, unless it was used later, too.
    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError>;

    /// The tokens of the HTTP API, by name.
    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError>;

    /// Raw facts for [`Client::doctor`](crate::Client::doctor), in one snapshot. What is wrong in them is
    /// mended by a [`Write::Mend`]. A store that has no tables to be looked at has none.
    fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
        let _ = ask;
        Ok(Facts::Nothing)
    }

    /// Copies one snapshot of everything to a new file; `progress` is told how many pages are copied,
    /// and how many there are. `false` if the store is not a file: for
    /// [`Client::backup`](crate::Client::backup).
    fn copy_to(
        &self,
        to: &std::path::Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, StoreError> {
        let _ = (to, progress);
        Ok(false)
    }

    /// How many batches it can make at the same time and gain by it: one, if a batch has to wait
    /// for the one before. The engine never puts writes about the same run into two of them.
    fn lanes_max(&self) -> usize {
        1
    }

    /// The time by the store's own clock, without asking it; `None` if it has no clock of its own.
    ///
    /// What is stored goes by the store's clock, so that machines whose clocks differ agree on what is
    /// due. The answer goes by the machine's monotonic clock since the store was last asked, so it does
    /// not depend on what the machine's calendar shows.
    fn time(&self) -> Option<Timestamp> {
        None
    }

    /// Whether the store's clock was last asked so long ago that [`time`](Store::time) may be off.
    fn time_is_old(&self) -> bool {
        false
    }

    /// Asks the store for its time. A runner needs not: each heartbeat asks.
    fn ask_time(&self) -> Result<(), StoreError> {
        Ok(())
    }

    /// What is counted, for benchmarks and tests.
    fn counters(&self) -> StoreCounters {
        StoreCounters::default()
    }
}

/// Called with the runs that something has happened to.
pub type WakeFn = Arc<dyn Fn(&[RunNo]) + Send + Sync>;

/// Stops the calls of [`Store::on_wake`] when dropped.
pub struct WakeGuard(#[expect(dead_code, reason = "held for its drop")] Box<dyn Send + Sync>);

impl WakeGuard {
    /// A guard that drops `held` when it is dropped.
    pub fn new(held: impl Send + Sync + 'static) -> WakeGuard {
        WakeGuard(Box::new(held))
    }
}

impl fmt::Debug for WakeGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("WakeGuard")
    }
}

/// How many runs of one workflow have one status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WorkflowCount {
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The status.
    pub status: RunStatus,
    /// How many runs.
    pub runs: u64,
}

/// How often a store was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct StoreCounters {
    /// Batches made durable.
    pub batches: u64,
    /// Writes in them.
    pub writes: u64,
    /// Rows written.
    pub rows: u64,
    /// Calls that read.
    pub reads: u64,
}

/// A set of shards, of any number of pools.
#[derive(Clone, PartialEq, Eq, Default)]
pub struct ShardSet {
    /// A bit for each shard of a pool. A pool of which there is none has no row.
    by_pool: BTreeMap<PoolNo, [u64; WORDS]>,
}

const WORDS: usize = SHARDS as usize / 64;

impl ShardSet {
    /// No shard.
    pub const EMPTY: ShardSet = ShardSet { by_pool: BTreeMap::new() };

    /// Every shard of these pools.
    pub fn of_pools(pools: impl IntoIterator<Item = PoolNo>) -> ShardSet {
        let every = |pool| (pool, [u64::MAX; WORDS]);
        ShardSet { by_pool: pools.into_iter().map(every).collect() }
    }

    /// Every shard of the default pool.
    pub fn of_default_pool() -> ShardSet {
        ShardSet::of_pools([PoolNo::DEFAULT])
    }

    /// Whether it has this shard.
    pub fn contains(&self, shard: ShardId) -> bool {
        let (word, bit) = place(shard);
        let words = self.by_pool.get(&shard.pool());
        words.is_some_and(|words| words[word] & bit != 0)
    }

    /// Puts the shard in.
    pub fn insert(&mut self, shard: ShardId) {
        let (word, bit) = place(shard);
        self.by_pool.entry(shard.pool()).or_default()[word] |= bit;
    }

    /// Takes the shard out.
    pub fn remove(&mut self, shard: ShardId) {
        let (word, bit) = place(shard);
        let Some(words) = self.by_pool.get_mut(&shard.pool()) else {
            return;
        };
        words[word] &= !bit;
        if words.iter().all(|word| *word == 0) {
            self.by_pool.remove(&shard.pool());
        }
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        let words = self.by_pool.values().flatten();
        words.map(|word| word.count_ones() as usize).sum()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.by_pool.is_empty()
    }

    /// The shards, in order.
    pub fn iter(&self) -> impl Iterator<Item = ShardId> + '_ {
        let all = self.by_pool.keys().flat_map(|pool| {
            let indexes = 0..=u8::MAX;
            indexes.map(|index| ShardId::new(*pool, index))
        });
        all.filter(|shard| self.contains(*shard))
    }

    /// The pools that it has shards of, in order.
    pub fn pools(&self) -> impl Iterator<Item = PoolNo> + '_ {
        self.by_pool.keys().copied()
    }
}

/// Where the bit of a shard is: the word, and the bit in it.
fn place(shard: ShardId) -> (usize, u64) {
    let index = shard.index();
    (usize::from(index) / 64, 1 << (index % 64))
}

impl FromIterator<ShardId> for ShardSet {
    fn from_iter<I: IntoIterator<Item = ShardId>>(shards: I) -> ShardSet {
        let mut set = ShardSet::EMPTY;
        shards.into_iter().for_each(|shard| set.insert(shard));
        set
    }
}

impl fmt::Debug for ShardSet {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(self.iter().map(|shard| shard.0)).finish()
    }
}

/// A part of a stream, read in one snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamPage {
    /// What the run was doing at that moment.
    pub status: RunStatus,
    /// The position of the oldest item that is kept; `next` if there is none.
    pub first: u64,
    /// The position that the next item will get.
    pub next: u64,
    /// The items, in order.
    pub items: Vec<StreamRow>,
}

/// An item of a stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamRow {
    /// Its position.
    pub pos: u64,
    /// When it became durable.
    pub at: Timestamp,
    /// The generation of the run that gave it.
    pub generation: u32,
    /// The body that gave it; absent if the workflow's own code did.
    pub by: Option<EmittedBy>,
    /// The item, as a payload.
    pub body: Vec<u8>,
}

/// What a stream holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct StreamExtent {
    /// Its name.
    pub stream: String,
    /// The position of the oldest item that is kept.
    pub first: u64,
    /// The position that the next item will get.
    pub next: u64,
}

/// Runs that are due.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Due {
    /// The runs, in order.
    pub runs: Vec<DueRun>,
    /// When the next run of these shards is due that is not due yet.
    pub next_at: Option<Timestamp>,
}

/// A run that its owner should take up.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct DueRun {
    /// The run.
    pub id: RunId,
    /// Its shard.
    pub shard: ShardId,
    /// Since when it is due.
    pub available_at: Option<Timestamp>,
    /// What it was doing.
    pub status: RunStatus,
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The workflow's version.
    pub version: u32,
    /// Its home pool.
    pub pool: Arc<str>,
}

/// A run that is paused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PausedRun {
    /// The run.
    pub id: RunId,
    /// The workflow's name.
    pub workflow: Arc<str>,
    /// The workflow's version.
    pub version: u32,
    /// Why, in words.
    pub reason: Option<String>,
}

/// How many runs are in which state.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Census {
    /// `Sleeping` or `Pending` with a time that has not come.
    pub timers: u64,
    /// `Sleeping` or `Pending` and due.
    pub due: u64,
    /// `Sleeping` with nothing but a message to wait for.
    pub waiting: u64,
    /// `Paused`.
    pub paused: u64,
}

/// How a run ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finished {
    /// `Completed`, `Failed` or `Cancelled`.
    pub status: RunStatus,
    /// The output, as a payload.
    pub output: Option<Vec<u8>>,
    /// The encoded failure.
    pub error: Option<Vec<u8>>,
}

/// What became of a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// The run replied with this payload.
    Reply(Vec<u8>),
    /// The run ended without a reply.
    RunEnded,
    /// There is no such request.
    Unknown,
}

/// A place under a limit, or the wait for one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitPlace {
    /// The name of the limit.
    pub name: String,
    /// The key of the limit.
    pub key: String,
    /// The key of the operation; `[0x15, 11]` if it is the run as a whole.
    pub operation: Vec<u8>,
    /// Whether it has the place, or waits for it.
    pub given: bool,
    /// The run that has had a place under this limit and key for the longest.
    pub holder: Option<RunId>,
}

/// One key of a limit. There is a row as long as somebody has a place, waits for one, or has to be
/// waited for by the rate.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LimitRow {
    /// The name of the limit.
    pub name: String,
    /// The key.
    pub key: String,
    /// What it allows, as the code said when it was last asked for.
    pub rule: LimitRule,
    /// How many have a place.
    pub held: u64,
    /// How many wait for one.
    pub waiting: u64,
    /// How many have ever asked for a place, so that those who wait stand in order.
    pub arrivals: u64,
    /// The rate's clock, in microseconds since 1970: as far as turns have been given away. See
    /// `store/rules/limits.rs`.
    pub turn_us: i64,
    /// The latest time at which the row was written, in microseconds since 1970: `turn_us` is by the
    /// clock that showed it.
    pub seen_us: i64,
}

/// Which runs are meant. Everything that is set must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Filter {
    /// One of these statuses; any if empty.
    pub statuses: Vec<RunStatus>,
    /// Of this workflow.
    pub workflow: Option<String>,
    /// With all of these tags.
    pub tags: Vec<(String, String)>,
    /// Started at or after this instant.
    pub created_from: Option<Timestamp>,
    /// Started before this instant.
    pub created_before: Option<Timestamp>,
    /// Of this version of its workflow.
    pub version: Option<u32>,
    /// Started with a key that begins with this.
    pub key_prefix: Option<String>,
    /// Ended at or after this instant.
    pub finished_from: Option<Timestamp>,
    /// Ended before this instant.
    pub finished_before: Option<Timestamp>,
    /// One of these runs; any if empty.
    pub ids: Vec<RunId>,
}

/// A runner to be entered.
#[derive(Clone, Debug)]
pub struct NewRunner {
    /// Its id.
    pub id: Uuid,
    /// A name for people: the host and the process.
    pub name: String,
    /// Now.
    pub now: Timestamp,
    /// How long it holds what it takes without a heartbeat.
    pub lease: Duration,
    /// The workflows that it has the code for.
    pub workflows: Vec<Serves>,
    /// The pools whose runs it may own.
    pub pools: Vec<String>,
    /// How much it takes on, against others: one with 2 gets twice as many shards as one with 1.
    pub weight: u32,
}

impl NewRunner {
    /// A runner of the default pool with a weight of 1 that knows no workflow.
    pub fn new(id: Uuid, name: impl Into<String>, now: Timestamp, lease: Duration) -> NewRunner {
        NewRunner {
            id,
            name: name.into(),
            now,
            lease,
            workflows: Vec::new(),
            pools: vec![crate::pool::DEFAULT_POOL.to_owned()],
            weight: 1,
        }
    }
}

/// A runner as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RunnerRow {
    /// Its id.
    pub id: Uuid,
    /// Its incarnation.
    pub epoch: u64,
    /// A name for people.
    pub name: String,
    /// Until when it holds its shards, in the time of the store. A store without a clock has what the
    /// clock of the runner showed.
    pub lease_until: Timestamp,
    /// How long its lease lasts from when it is prolonged.
    pub lease: Duration,
    /// The shards it holds.
    pub shards: ShardSet,
    /// The workflows that it has the code for.
    pub workflows: Vec<Serves>,
    /// The pools whose runs it may own.
    pub pools: Vec<String>,
    /// How much it takes on, against others.
    pub weight: u32,
}

/// A runner that is known to be gone, whatever the time is, and what its row said.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Gone {
    /// The runner.
    pub runner: Uuid,
    /// The end of its lease when it was read. One that has prolonged its lease since is not gone.
    pub lease_until: Timestamp,
}

impl RunnerRow {
    /// The runner, as one that is gone.
    pub fn as_gone(&self) -> Gone {
        Gone { runner: self.id, lease_until: self.lease_until }
    }

    /// Whether it has the code for runs of this workflow and version.
    pub fn serves(&self, workflow: &str, version: u32) -> bool {
        let mut served = self.workflows.iter();
        served.any(|serves| serves.accepts(workflow, version))
    }
}

/// What a store says when it cannot.
///
/// What the engine does about each is in one table: see [`StoreError::reaction`].
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// Another process holds the write lock for longer than we wait.
    #[error(
        "{store} is busy: {}; trying again",
        words(
            store,
            "another process holds its write lock",
            "others hold locks on what is to be written"
        )
    )]
    Busy {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// The disk is full, or a limit on the file's size is reached.
    #[error(
        "{store} cannot grow: the disk or a limit is full; make room, nothing is lost and work \
             goes on by itself"
    )]
    Full {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// Reading or writing failed; nothing was committed.
    #[error("{store} cannot be read or written; trying again")]
    Io {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// A commit whose outcome is not known.
    #[error("{store} did not say whether a commit was made; runs in it are read again")]
    UnknownOutcome {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// The data is damaged.
    #[error("{store} is damaged; restore it from a backup")]
    Corrupt {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// It cannot be written by this user.
    #[error(
        "{store} is read-only; {}",
        words(
            store,
            "give this user the right to write the file and its directory",
            "grant this role the rights on the schema and its tables"
        )
    )]
    ReadOnly {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// It cannot be opened at all.
    #[error(
        "{store} cannot be opened; {}",
        words(
            store,
            "check that its directory exists and may be written",
            "check the URL, and that its role, database and schema exist"
        )
    )]
    CannotOpen {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// It holds something else.
    #[error(
        "{store} is not an everstep database ({what}); nothing was changed, {}",
        words(
            store,
            "give another path",
            "give another schema with `?schema=`, or restore this one if its tables were dropped"
        )
    )]
    Foreign {
        /// Which store.
        store: String,
        /// What was found.
        what: String,
    },
    /// It was written by a later version.
    #[error(
        "{store} has format {found}, and this program knows formats up to {known}; use a newer \
             everstep"
    )]
    TooNew {
        /// Which store.
        store: String,
        /// Its version.
        found: u32,
        /// The latest version that this program knows.
        known: u32,
    },
    /// Its tables were made by another version of everstep before the first release.
    #[error(
        "{store} was made by another unreleased version of everstep: its schema has the fingerprint \
             {found}, and this program's has {known}; nothing was changed, use the version that made \
             it, or {}",
        words(store, "give a new path", "give a new schema with `?schema=`")
    )]
    OtherSchema {
        /// Which store.
        store: String,
        /// The fingerprint of its schema.
        found: String,
        /// The fingerprint of the schema that this program makes.
        known: String,
    },
    /// It needs a migration while an older program is using it.
    #[error(
        "{store} has format {found} and must be migrated to {known}, but the runner `{runner}` \
             is still using it; stop that process first"
    )]
    InUse {
        /// Which store.
        store: String,
        /// Its version.
        found: u32,
        /// The version it should have.
        known: u32,
        /// Who uses it.
        runner: String,
    },
    /// Its runs were moved elsewhere by `everstep::migrate`.
    #[error("{store} was moved to {to}; open that instead, this is only what it was before")]
    Moved {
        /// Which store.
        store: String,
        /// Where its runs are now.
        to: String,
    },
    /// It was filled by an `everstep::migrate` that has not come to its end.
    #[error(
        "{store} was filled from {from}, and that has not come to its end; call \
             `everstep::migrate` again with the same two places"
    )]
    HalfMoved {
        /// Which store.
        store: String,
        /// Where it was filled from.
        from: String,
    },
    /// The SQLite file is no longer where it was opened, has a second hard link, or has lost a file
    /// that belongs to it.
    #[error("{store} {what}")]
    Displaced {
        /// Which store.
        store: String,
        /// What happened to it, and what to do.
        what: String,
    },
    /// A transaction of the caller's own is on something else.
    #[error("the transaction is on {found}, and the runs are in {store}; open one there instead")]
    AnotherFile {
        /// Which store.
        store: String,
        /// What the transaction is on.
        found: String,
    },
    /// A transaction of the caller's own is on a connection whose commits the disk may lose.
    #[error(
        "the connection of the transaction has `PRAGMA {pragma}`, so its commit in {store} could be \
         lost with the power; nothing was written: set `PRAGMA journal_mode = WAL` and \
         `PRAGMA synchronous = FULL` on it before the transaction begins"
    )]
    NotDurable {
        /// Which store.
        store: String,
        /// The setting.
        pragma: String,
    },
    /// One write of the batch cannot be made, whatever is around it.
    #[error("{store} cannot take a write")]
    Rejected {
        /// Which store.
        store: String,
        /// What the store itself says.
        #[source]
        source: Cause,
    },
    /// It was closed, or died in a test.
    #[error("{store} is closed")]
    Closed {
        /// Which store.
        store: String,
    },
}

/// What lies beneath a [`StoreError`].
pub type Cause = Box<dyn std::error::Error + Send + Sync>;

/// What the engine does about a store error.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Reaction {
    /// Sends the same batch again after a pause; nothing is failed, nothing is lost.
    Retry,
    /// Sends each half of the batch alone, to find the write that cannot be made. A run whose
    /// commit cannot be made is paused.
    Bisect,
    /// Forgets the runs of the batch and reads them again from the store.
    Reload,
    /// Stops the engine with this error.
    Stop,
}

/// What to do, in the words of the store that the error came from.
fn words<'a>(store: &str, file: &'a str, database: &'a str) -> &'a str {
    let is_database = ["PostgreSQL database", "the PostgreSQL database"]
        .iter()
        .any(|name| store.starts_with(name));
    if is_database { database } else { file }
}

impl StoreError {
    /// What the engine does about it. The one place where this is decided.
    pub fn reaction(&self) -> Reaction {
        match self {
            // The lock will be free again.
            StoreError::Busy { .. } => Reaction::Retry,
            // Somebody will make room; until then no commit is acknowledged, so no body starts.
            StoreError::Full { .. } => Reaction::Retry,
            // A disk that fails for a moment (a network volume) comes back; SQLite has rolled back.
            StoreError::Io { .. } => Reaction::Retry,
            // It may have landed: sending it again could do it twice.
            StoreError::UnknownOutcome { .. } => Reaction::Reload,
            // Writing on would make it worse.
            StoreError::Corrupt { .. } => Reaction::Stop,
            // Rights do not come back by themselves, and the user must see this at once.
            StoreError::ReadOnly { .. } => Reaction::Stop,
            StoreError::CannotOpen { .. } => Reaction::Stop,
            StoreError::Foreign { .. } => Reaction::Stop,
            // Another program has migrated it under us.
            StoreError::TooNew { .. } | StoreError::OtherSchema { .. } => Reaction::Stop,
            StoreError::InUse { .. } => Reaction::Stop,
            // What is written here would be lost.
            StoreError::Moved { .. } => Reaction::Stop,
            StoreError::HalfMoved { .. } => Reaction::Stop,
            // Nobody would find what is written now.
            StoreError::Displaced { .. } => Reaction::Stop,
            // No batch of the engine's is made in the transaction of a caller.
            StoreError::AnotherFile { .. } | StoreError::NotDurable { .. } => Reaction::Stop,
            // One write is at fault; the others must not suffer.
            StoreError::Rejected { .. } => Reaction::Bisect,
            StoreError::Closed { .. } => Reaction::Stop,
        }
    }
}
