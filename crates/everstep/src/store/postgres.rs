//! PostgreSQL: the same tables for any number of processes on any number of machines.
//!
//! On the path of a step this is where it becomes durable: the committer's batch is one transaction.
//! [`batch`] holds the SQL of a batch, [`session`] how it reaches the server in few round trips,
//! [`locks`] why no two batches wait for each other, [`conn`] the connections and what became of a
//! batch whose answer was lost, [`runners`] leases and the fence.
//!
//! Always true:
//! - A commit that was answered is as durable as the server's settings make it: `synchronous_commit`
//!   is never off.
//! - Opening changes nothing. Only [`migrate`](Store::migrate) creates tables or changes them.
//! - A batch whose outcome is not known is never sent again before it is known not to land.

use std::{
    collections::HashMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use uuid::Uuid;

use self::{
    batch::Terms,
    conn::{Conn, DatabaseTime, Identity, Limits, Route, Unsettled},
    error::{CHANGED, FENCED, Trouble},
    giving::Giving,
    known::{Known, Revision},
    locks::Named,
    runners::Clock,
    session::{Op, Port, Session},
    transact::Held,
    value::params,
};
use super::{
    sql::{self, Sql, columns, store::shared_methods, sweep},
    *,
};

mod ahead;
mod batch;
mod children;
mod conn;
mod dial;
mod doctor;
mod drop;
mod due;
mod error;
mod events;
mod giving;
mod known;
#[cfg(feature = "testing")]
mod lent;
mod locks;
#[cfg(feature = "sqlite")]
pub(crate) mod moving;
mod queues;
#[cfg(test)]
mod races;
mod runners;
mod runs;
mod schema;
mod session;
mod stats;
#[cfg(test)]
mod tests;
mod tls;
mod transact;
mod url;
mod value;
mod wake;
mod within;

/// How a database is reached.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct PostgresOptions {
    /// The schema that everything is in: a namespace of its own. `everstep` by default; made by
    /// [`migrate`](Store::migrate) if it is not there.
    pub schema: String,
    /// Whether a pooler such as pgbouncer hands each transaction to another session: no statement is
    /// then kept between transactions. Not set by default. [`listen_url`](Self::listen_url) must
    /// then reach the server itself.
    pub pooled: bool,
    /// Where to listen for wake-ups, if it is not where everything else goes: behind a pooler there
    /// is no session that could listen. Without it, other processes' work is found by the slow poll.
    pub listen_url: Option<String>,
    /// How long an answer may take before its connection is given up: 20 seconds by default.
    pub patience: Duration,
    /// How many connections are kept for reuse: 8 by default.
    pub kept_connections: usize,
    /// How many transactions large batches may be made in at the same time: 4 by default.
    pub lanes_max: usize,
    /// Whether leases go by the clock of the database, so that all machines mean the same. Set by
    /// default; tests with a clock of their own turn it off.
    pub database_time: bool,
}

impl Default for PostgresOptions {
    fn default() -> PostgresOptions {
        PostgresOptions {
            schema: "everstep".to_owned(),
            pooled: false,
            listen_url: None,
            patience: Duration::from_secs(20),
            kept_connections: 8,
            lanes_max: 4,
            database_time: true,
        }
    }
}

/// A schema of a PostgreSQL database. Clones of an `Arc` of it share its connections.
pub struct PostgresStore {
    name: String,
    route: Arc<Route>,
    options: PostgresOptions,
    idle: Arc<Mutex<Vec<Conn>>>,
    is_current: AtomicBool,
    /// Batches whose outcome could not be found out yet. Until it is, nothing else is done.
    unsettled: Mutex<Vec<Unsettled>>,
    /// The shards of the runner of this store, as it last took or gave them.
    held: Mutex<Option<(Fence, ShardSet)>>,
    /// Keeps batches, which go by `held`, and the release of shards apart.
    giving: Giving,
    /// The database as it was last seen. After a failover it is another.
    identity: Mutex<Option<Identity>>,
    /// How many databases that were.
    life: AtomicU64,
    /// The shortest lease of a runner of this store, in milliseconds; 0 while there is none.
    lease_ms: AtomicU64,
    /// In which of them each runner of this store has registered.
    homes: Mutex<HashMap<Uuid, (Fence, u64)>>,
    /// Since when it cannot be reached, if so.
    away: Mutex<Option<Instant>>,
    /// The clock of the database as it was last read; `None` where the caller's clock counts.
    time: Mutex<Option<DatabaseTime>>,
    known: Mutex<Known>,
    spare_items: Mutex<Vec<u64>>,
    counters: Counters,
    wakes: Arc<wake::Wakes>,
    schema_number: u32,
    /// For tests: the schema goes back to where it came from when nobody uses it any more.
    #[cfg(feature = "testing")]
    lent: Option<Arc<lent::Lent>>,
    /// The server, and the name of the database as the server calls it.
    system: String,
    database: String,
}

#[derive(Default)]
struct Counters {
    batches: AtomicU64,
    writes: AtomicU64,
    rows: AtomicU64,
    reads: AtomicU64,
    settled: AtomicU64,
    refused: AtomicU64,
    /// Round trips of batches.
    trips: AtomicU64,
}

/// How often a batch is begun again before it is given back.
const GOES: u32 = 50;

/// How many connections are lost, one after another, before a batch is given back.
const LINES: u32 = 3;

/// Why a body that is not for PostgreSQL is not run.
const SQLITE_BODY: &str = "its body is for a SQLite file, and the store is PostgreSQL";

/// How long to look for the outcome of a batch before it is given back as unknown.
const SETTLING: Duration = Duration::from_secs(60);

/// How long a transaction is tried.
#[derive(Clone, Copy)]
struct Tries {
    limits: Limits,
    /// How many connections are lost, one after another, before it is given back.
    lines: u32,
    /// How long to look for its outcome before that is given back as unknown.
    settling: Duration,
}

/// What became of one go of a transaction.
enum Attempt<T> {
    /// It is durable.
    Done(T),
    /// It has had no effect and will have none.
    Undone(Trouble),
}

/// How long to wait after so many goes, so that those who collided do not do so again.
fn pause_after(goes: u32) -> Duration {
    let most = 1_000u64 << goes.min(6);
    Duration::from_micros(crate::seam::random() % most)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl PostgresStore {
    /// Connects to the database of this URL: `postgres://user:password@host:5432/database`. Several
    /// hosts are tried in turn: `postgres://a:5432,b:5432/app?target_session_attrs=read-write`.
    /// `?schema=name` names the schema, `?pooled=true` says that a pooler is in between, and
    /// `?listen_url=..` (with its special characters as `%3A` and so on) says where to listen then.
    ///
    /// `?sslmode=disable`, `prefer` (the default), `require`, `verify-ca` or `verify-full`, and
    /// `?sslrootcert=/path/to/roots.pem`, are as in PostgreSQL's own tools: `require` encrypts and
    /// looks at no certificate unless there is a root to compare it with; with a root and no mode it
    /// is `verify-full`. Where more than `prefer` is said, nothing is sent in plain text.
    ///
    /// # Errors
    ///
    /// [`StoreError::CannotOpen`] if the URL is wrong or the server refuses us, [`StoreError::Io`] if
    /// it cannot be reached, [`StoreError::Foreign`] if the schema holds something else,
    /// [`StoreError::TooNew`] if a later version has written it.
    pub fn open(url: &str) -> Result<PostgresStore, StoreError> {
        PostgresStore::open_with(url, PostgresOptions::default())
    }

    /// As [`open`](Self::open), with these options; what the URL says comes first.
    ///
    /// # Errors
    ///
    /// As [`open`](Self::open).
    pub fn open_with(url: &str, options: PostgresOptions) -> Result<PostgresStore, StoreError> {
        PostgresStore::open_synced(url, options, true)
    }

    fn open_synced(
        url: &str,
        options: PostgresOptions,
        synced: bool,
    ) -> Result<PostgresStore, StoreError> {
        let url::Parsed { servers, options, name } = url::parse(url, options)?;
        let route = Arc::new(Route {
            servers,
            schema: options.schema.clone(),
            pooled: options.pooled,
            patience: options.patience,
            synced,
        });
        let listening = match &options.listen_url {
            Some(url) => Arc::new(Route {
                servers: url::parse(url, options.clone())?.servers,
                pooled: false,
                ..(*route).clone()
            }),
            None => Arc::clone(&route),
        };
        url::check_schema(&options.schema, &name)?;
        let schema_number = locks::fnv(options.schema.bytes()) as u32 & 0x7fff_ffff;
        let mut store = PostgresStore {
            name,
            wakes: Arc::new(wake::Wakes::new(&listening)),
            route,
            options,
            idle: Arc::default(),
            is_current: AtomicBool::new(false),
            unsettled: Mutex::default(),
            held: Mutex::default(),
            giving: Giving::default(),
            identity: Mutex::default(),
            life: AtomicU64::new(0),
            lease_ms: AtomicU64::new(0),
            homes: Mutex::default(),
            away: Mutex::default(),
            time: Mutex::default(),
            known: Mutex::default(),
            spare_items: Mutex::default(),
            counters: Counters::default(),
            schema_number,
            #[cfg(feature = "testing")]
            lent: None,
            system: String::new(),
            database: String::new(),
        };
        let conn = Conn::open(&store.route, store.limits());
        let conn = conn.map_err(|trouble| store.error(trouble))?;
        store.note_time(conn.time);
        store.compare_identity(&conn.identity);
        store.system = conn.identity.system.clone();
        store.database = within::database(&conn).map_err(|trouble| store.error(trouble))?;
        let format = schema::inspect(&conn, &store.route.schema, &store.name, schema::FORMATS)?;
        let is_current = format == schema::FORMATS.latest();
        store.is_current.store(is_current, Ordering::Relaxed);
        store.give_back(conn);
        Ok(store)
    }

    /// How many batches had an outcome that had to be looked up, since this store was opened.
    pub fn unknown_outcomes_settled(&self) -> u64 {
        self.counters.settled.load(Ordering::Relaxed)
    }

    /// How many batches came with a fence that no longer held, since this store was opened.
    pub fn stale_batches_refused(&self) -> u64 {
        self.counters.refused.load(Ordering::Relaxed)
    }

    fn error(&self, trouble: Trouble) -> StoreError {
        trouble.into_store_error(&self.name)
    }

    /// The shortest lease of a runner of this store.
    fn lease(&self) -> Option<Duration> {
        let lease = self.lease_ms.load(Ordering::Relaxed);
        (lease > 0).then(|| Duration::from_millis(lease))
    }

    fn note_lease(&self, lease: Duration) {
        let new = u64::try_from(lease.as_millis()).unwrap_or(u64::MAX).max(1);
        let shorter = |old: u64| (old == 0 || new < old).then_some(new);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        // It has a shorter one already.
        let _ = self.lease_ms.fetch_update(set, fetch, shorter);
    }

    fn limits(&self) -> Limits {
        Limits::new(self.options.patience, self.lease())
    }

    /// The limits of calls that keep the lease.
    fn limits_for_lease(&self) -> Limits {
        self.limits().for_lease(self.lease())
    }

    fn tries(&self) -> Tries {
        Tries { limits: self.limits(), lines: LINES, settling: SETTLING }
    }

    /// The tries of calls of the thread that keeps the lease: whatever they wait for, its next
    /// heartbeat must not wait for as long.
    fn tries_for_lease(&self) -> Tries {
        let Some(lease) = self.lease() else {
            return self.tries();
        };
        Tries {
            limits: self.limits_for_lease(),
            // One that was kept and is dead.
            lines: 1,
            settling: lease / 4,
        }
    }

    fn connect(&self, limits: Limits) -> Result<Conn, StoreError> {
        match Conn::open(&self.route, limits) {
            Ok(conn) => {
                self.note_back();
                self.note_time(conn.time);
                self.compare_identity(&conn.identity);
                Ok(conn)
            }
            Err(trouble) => {
                self.note_away(&trouble);
                Err(match self.error(trouble) {
                    // It was open before. Whoever changes a password or fails over has not finished
                    // yet: it is waited for like a database that is away.
                    StoreError::CannotOpen { store, source } => StoreError::Io { store, source },
                    other => other,
                })
            }
        }
    }

    fn note_time(&self, time: Option<DatabaseTime>) {
        if let (Some(time), true) = (time, self.options.database_time) {
            let mut known = lock(&self.time);
            *known = Some(time.after(*known));
        }
    }

    /// Says so once, however often it is tried.
    fn note_away(&self, trouble: &Trouble) {
        let mut away = lock(&self.away);
        if away.is_none() {
            *away = Some(Instant::now());
            tracing::warn!(
                error = %trouble,
                "{} cannot be reached; what is to be written waits, and nothing is failed",
                self.name
            );
        }
    }

    fn note_back(&self) {
        if let Some(since) = lock(&self.away).take() {
            tracing::info!(after = ?since.elapsed(), "{} is back", self.name);
        }
    }

    /// After a failover what is in memory may be ahead of the database: whoever registered before it
    /// has to begin anew.
    fn compare_identity(&self, now: &Identity) {
        let mut known = lock(&self.identity);
        if known.as_ref() == Some(now) {
            return;
        }
        if let Some(before) = known.replace(now.clone()) {
            tracing::warn!(
                before = %before.timeline,
                now = %now.timeline,
                is_a_copy = before.system == now.system,
                "{} has failed over; runs in memory are dropped and read again",
                self.name
            );
            self.life.fetch_add(1, Ordering::AcqRel);
            *lock(&self.held) = None;
            *lock(&self.known) = Known::default();
            self.drop_idle();
        }
    }

    /// Whether this runner registered in the database as it is now.
    fn is_at_home(&self, fence: Fence) -> bool {
        match lock(&self.homes).get(&fence.runner) {
            Some((known, life)) => *known == fence && *life == self.life.load(Ordering::Acquire),
            // A fence that was not made by this store is the database's to judge.
            None => true,
        }
    }

    /// Drops what depends on a server that may be gone.
    fn drop_idle(&self) {
        lock(&self.idle).clear();
        // They were drawn from a sequence, which a crash sets back to what was written of it.
        lock(&self.spare_items).clear();
    }

    /// A connection that works, as far as is known.
    fn take(&self) -> Result<Conn, StoreError> {
        self.take_for(self.limits())
    }

    /// As [`take`](Self::take), with these limits.
    fn take_for(&self, limits: Limits) -> Result<Conn, StoreError> {
        loop {
            let Some(mut conn) = lock(&self.idle).pop() else {
                return self.connect(limits);
            };
            if conn.is_closed() {
                continue;
            }
            match conn.set_limits(limits).and_then(|()| conn.refresh_plans()) {
                Ok(()) => return Ok(conn),
                // Whatever has ended this one may have ended the others, too.
                Err(_) => self.drop_idle(),
            }
        }
    }

    fn give_back(&self, conn: Conn) {
        // One that was in use while the database failed over leads to the old one.
        let is_of_now = lock(&self.identity).as_ref() == Some(&conn.identity);
        let mut idle = lock(&self.idle);
        if is_of_now && idle.len() < self.options.kept_connections && !conn.is_closed() {
            idle.push(conn);
        }
    }

    /// Refuses a schema that no engine has made yet, or one that has to be migrated first.
    pub(super) fn require_current(&self) -> Result<(), StoreError> {
        if self.is_current.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Another process may have migrated it since it was opened.
        let conn = self.take()?;
        let format = schema::inspect(&conn, &self.route.schema, &self.name, schema::FORMATS);
        self.give_back(conn);
        schema::FORMATS.require_latest(format?, &self.name)?;
        self.is_current.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Reads in one snapshot.
    fn read<T>(&self, query: impl Fn(&Session<'_>) -> Result<T, Trouble>) -> Result<T, StoreError> {
        self.read_within(self.limits(), query)
    }

    fn read_within<T>(
        &self,
        limits: Limits,
        query: impl Fn(&Session<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        self.settle_all()?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.on_connection(limits, |conn| {
            let session = Session::new(conn);
            for op in conn.begin("BEGIN ISOLATION LEVEL REPEATABLE READ READ ONLY") {
                session.push(op);
            }
            let read = query(&session);
            let ended = session.finish("COMMIT");
            read.and_then(|value| ended.map(|()| value))
        })
    }

    /// Makes `attempt` on a connection, and once more on a new one if the first was dead. `attempt`
    /// must be something that may be done twice.
    fn on_connection<T>(
        &self,
        limits: Limits,
        attempt: impl Fn(&Conn) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        let mut is_again = false;
        loop {
            let conn = self.take_for(limits)?;
            match attempt(&conn) {
                Ok(value) => {
                    self.give_back(conn);
                    return Ok(value);
                }
                // A connection that was kept may have died in the meantime; a new one has not.
                Err(trouble) if trouble.ends_connection() && !is_again => {
                    is_again = true;
                    self.drop_idle();
                }
                Err(trouble) => return Err(self.error(trouble)),
            }
        }
    }

    /// Writes in a transaction of its own, again if others are in the way.
    fn write<T>(
        &self,
        change: impl Fn(&Session<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        self.transact(|session, _| change(session))
    }

    /// As [`write`](Self::write), for the thread that keeps the lease.
    ///
    /// It does not wait for long for a row that others have locked: it may hold its own runner's row
    /// by then, which every batch of that runner needs. The server ends the wait, so nothing of it is
    /// left behind there.
    fn write_for_lease<T>(
        &self,
        change: impl Fn(&Session<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        let tries = self.tries_for_lease();
        // It says so before the connection is given up.
        let wait = conn::setting(tries.limits.answer_if_kept / 2);
        let made = self.transact_numbered(tries, false, |session, _| {
            let sql = "SELECT set_config('lock_timeout', $1, true)";
            session.execute(sql, params![wait.clone()]);
            change(session)
        });
        made.map(|(value, _)| value)
    }

    /// Writes in one round trip, which `change` ends with `COMMIT`, for what keeps the lease.
    ///
    /// The transaction never waits for this process, so that it holds no lock while the network or the
    /// process hangs. It has no mark in a lane: nobody looks whether a lost one has landed, so that it
    /// must not matter whether it does, and when.
    fn write_at_once<T>(
        &self,
        change: impl Fn(&Session<'_>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        self.on_connection(self.limits_for_lease(), |conn| {
            let session = Session::new(conn);
            for op in conn.begin(conn::BEGIN) {
                session.push(op);
            }
            change(&session)
        })
    }

    /// As [`transact_numbered`](Self::transact_numbered), without bodies, for whoever does not need
    /// the number.
    fn transact<T>(
        &self,
        change: impl FnMut(&Session<'_>, Option<&Trouble>) -> Result<T, Trouble>,
    ) -> Result<T, StoreError> {
        let made = self.transact_numbered(self.tries(), false, change);
        made.map(|(value, _)| value)
    }

    /// A transaction with a mark in its lane, so that a lost answer can be looked up. `change` may
    /// be called several times; what it gives the last time counts, and comes back with the number
    /// of the transaction, if the server has said it.
    ///
    /// 1. A connection that was kept and is dead is replaced by a new one, once.
    /// 2. What others are in the way of is made again, [`GOES`] times at most.
    /// 3. What was lost on its way is looked for, and made again if it has not landed.
    /// 4. A database that is away is the caller's to wait for.
    fn transact_numbered<T>(
        &self,
        tries: Tries,
        has_bodies: bool,
        mut change: impl FnMut(&Session<'_>, Option<&Trouble>) -> Result<T, Trouble>,
    ) -> Result<(T, Option<Revision>), StoreError> {
        self.settle_all()?;
        let (mut goes, mut lines) = (0, 0);
        let mut before: Option<Trouble> = None;
        loop {
            let conn = self.take_for(tries.limits)?;
            goes += 1;
            let attempt = self.attempt(conn, tries, has_bodies, &mut change, before.take());
            let trouble = match attempt? {
                Attempt::Done(value) => return Ok(value),
                Attempt::Undone(trouble) => trouble,
            };
            if trouble.ends_connection() {
                // Whatever has ended this one may have ended the others, too.
                self.drop_idle();
                lines += 1;
                if lines > tries.lines {
                    return Err(self.error(trouble));
                }
                continue;
            }
            let is_ours = matches!(trouble.code(), Some(FENCED | CHANGED));
            if !(is_ours || trouble.is_passing()) || goes >= GOES {
                return Err(self.error(trouble));
            }
            if matches!(trouble.code(), Some("40P01" | "40001")) {
                tracing::debug!(error = %trouble, goes, "a batch is made again");
                std::thread::sleep(pause_after(goes));
            }
            before = Some(trouble);
        }
    }

    /// One go of [`transact_numbered`](Self::transact_numbered). Its connection is kept if it can be used again.
    fn attempt<T>(
        &self,
        conn: Conn,
        tries: Tries,
        has_bodies: bool,
        change: &mut impl FnMut(&Session<'_>, Option<&Trouble>) -> Result<T, Trouble>,
        before: Option<Trouble>,
    ) -> Result<Attempt<(T, Option<Revision>)>, StoreError> {
        let now_ms = self.time().map_or_else(now_ms, Timestamp::as_millis);
        let next = conn.next_batch(now_ms);
        let next = next.and_then(|next| Ok((next, Held::begin(conn, has_bodies)?)));
        let ((mark, lost), (held, begin)) = match next {
            Ok(next) => next,
            // Nothing was sent yet that could have landed.
            Err(trouble) => return Ok(Attempt::Undone(trouble)),
        };
        let session = Session::new(&held);
        for op in begin {
            session.push(op);
        }
        session.mark(mark);
        let value = match change(&session, before.as_ref()) {
            Ok(value) => value,
            // Nothing was committed: the server rolls back what it had begun.
            Err(trouble) => {
                drop(session);
                return Ok(self.undo(held, trouble));
            }
        };
        let ended = session.finish("COMMIT");
        if ended.is_ok() {
            self.count(&session);
        }
        let transaction = session.transaction();
        drop(session);
        match ended {
            Ok(()) => {
                held.end().into_iter().for_each(|it| self.give_back(it));
                Ok(Attempt::Done((value, transaction)))
            }
            Err(trouble) if trouble.spares_connection() => Ok(self.undo(held, trouble)),
            Err(trouble) => {
                drop(held);
                Ok(if self.settle(lost, &trouble, tries)? {
                    Attempt::Done((value, transaction))
                } else {
                    // It has not landed and never will: it is made again.
                    Attempt::Undone(trouble)
                })
            }
        }
    }

    /// Rolls back, and keeps the connection if it can be used again.
    fn undo<T>(&self, held: Held, trouble: Trouble) -> Attempt<T> {
        if !trouble.ends_connection() && session_rollback(&held).is_ok() {
            held.end().into_iter().for_each(|it| self.give_back(it));
        }
        Attempt::Undone(trouble)
    }

    fn count(&self, session: &Session<'_>) {
        let (rows, trips) = (session.rows_changed(), session.trips());
        self.counters.rows.fetch_add(rows, Ordering::Relaxed);
        self.counters.trips.fetch_add(trips, Ordering::Relaxed);
    }

    /// Whether a batch whose answer was lost has landed. Waits for the database to come back.
    fn settle(&self, lost: Unsettled, trouble: &Trouble, tries: Tries) -> Result<bool, StoreError> {
        tracing::warn!(
            error = %trouble,
            "{} was lost during a commit; finding out whether it was made",
            self.name
        );
        let begun = Instant::now();
        let mut pause = Duration::from_millis(20);
        loop {
            match self.look_up(lost, tries.limits) {
                Ok(landed) => {
                    self.counters.settled.fetch_add(1, Ordering::Relaxed);
                    tracing::info!(landed, "the outcome of the commit is known");
                    return Ok(landed);
                }
                Err(error) if begun.elapsed() < tries.settling && !is_fatal(&error) => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(Duration::from_secs(1));
                }
                Err(error) => {
                    lock(&self.unsettled).push(lost);
                    return Err(StoreError::UnknownOutcome {
                        store: self.name.clone(),
                        source: Box::new(error),
                    });
                }
            }
        }
    }

    fn look_up(&self, lost: Unsettled, limits: Limits) -> Result<bool, StoreError> {
        self.drop_idle();
        let conn = self.connect(limits)?;
        let landed = conn::settle(&conn, lost).map_err(|trouble| self.error(trouble))?;
        self.give_back(conn);
        landed.ok_or_else(|| StoreError::UnknownOutcome {
            store: self.name.clone(),
            source: "its lane is gone".into(),
        })
    }

    /// Before anything else is done: what was given back as unknown must not land behind our back.
    fn settle_all(&self) -> Result<(), StoreError> {
        loop {
            let next = lock(&self.unsettled).first().copied();
            let Some(lost) = next else { return Ok(()) };
            match self.look_up(lost, self.limits()) {
                Ok(_) | Err(StoreError::UnknownOutcome { .. }) => {
                    let mut unsettled = lock(&self.unsettled);
                    unsettled.retain(|it| (it.lane, it.batch) != (lost.lane, lost.batch));
                }
                Err(error) => return Err(error),
            }
        }
    }

    /// Makes a batch in one transaction.
    fn commit_together(&self, batch: &Batch) -> Result<Applied, StoreError> {
        let has_bodies = batch.writes.iter().any(transact::has_body);
        let mut named = Named::of(batch);
        let mut fenced = true;
        let _under_way = self.giving.begin_batch();
        let (mut goes, mut rows) = (0, None);
        let items_in_hand = Mutex::default();
        let made = self.transact_numbered(self.tries(), has_bodies, |session, before| {
            goes += 1;
            // With the connection it may have been found that this is another database than the one
            // that the runner has registered in; its row may be there all the same, as a copy.
            fenced &= batch.fence.is_none_or(|fence| self.is_at_home(fence));
            let shards = self.known_shards(batch.fence);
            // A server that gives a reason of ours has not crashed since it gave the numbers out. They
            // are used now, so that none is left out.
            let is_ours = before.is_some_and(|trouble| match trouble {
                Trouble::Contended(_) => true,
                trouble => matches!(trouble.code(), Some(FENCED | CHANGED)),
            });
            let mut in_hand: MutexGuard<'_, Vec<u64>> = lock(&items_in_hand);
            match is_ours {
                true => lock(&self.spare_items).append(&mut in_hand),
                false => in_hand.clear(),
            }
            drop(in_hand);
            // Not before there is a connection: what is known is forgotten after a failover. A
            // body sees only what is locked, so nothing is left to be compared later.
            rows = match goes {
                1 if fenced && !has_bodies => lock(&self.known).rows_for(batch, &named),
                _ => None,
            };
            match before {
                Some(Trouble::Contended(lock)) => {
                    named.locks.insert(*lock);
                }
                Some(trouble) if trouble.code() == Some(FENCED) => {
                    self.counters.refused.fetch_add(1, Ordering::Relaxed);
                    fenced = false;
                }
                Some(trouble) if trouble.code() == Some(CHANGED) => lock(&self.known).was_wrong(),
                _ => {}
            }
            let terms = Terms {
                named: &named,
                fenced,
                shards,
                schema: self.schema_number,
                known: &self.known,
                is_first_go: goes == 1 && !has_bodies,
                rows: rows.as_deref(),
                spare_items: &self.spare_items,
                items_in_hand: &items_in_hand,
            };
            batch::apply(session, batch, &terms)
        });
        let ((applied, learned), transaction) = match made {
            Ok(made) => made,
            // It may have been made all the same, and then what is known is old: above all the last
            // number, which is in no row that the server could compare.
            Err(error) => {
                lock(&self.known).forget_runs(named.runs());
                return Err(error);
            }
        };
        let mut known = lock(&self.known);
        if rows.is_some() {
            known.was_right();
        }
        known.learn(batch.fence, learned, transaction);
        drop(known);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        let writes = batch.writes.len() as u64;
        self.counters.writes.fetch_add(writes, Ordering::Relaxed);
        Ok(applied)
    }

    fn clock(&self, now: Timestamp) -> Clock {
        if self.options.database_time { Clock::Database } else { Clock::Caller(now) }
    }

    /// The shards of a runner, if this store knows them.
    fn known_shards(&self, fence: Option<Fence>) -> Option<ShardSet> {
        let held = lock(&self.held);
        held.as_ref().filter(|(known, _)| Some(*known) == fence).map(|(_, shards)| shards.clone())
    }
}

fn session_rollback(conn: &dyn Port) -> Result<(), Trouble> {
    conn.run(vec![Op::new("ROLLBACK", &[])]).map(drop)
}

fn is_fatal(error: &StoreError) -> bool {
    matches!(error.reaction(), Reaction::Stop | Reaction::Bisect)
        || matches!(error, StoreError::UnknownOutcome { .. })
}

fn now_ms() -> i64 {
    Timestamp::from(SystemTime::now()).as_millis()
}

impl fmt::Debug for PostgresStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PostgresStore").field("name", &self.name).finish_non_exhaustive()
    }
}

impl Store for PostgresStore {
    shared_methods!();

    fn describe(&self) -> String {
        self.name.clone()
    }

    fn migrate(&self) -> Result<(), StoreError> {
        let conn = self.take()?;
        schema::migrate(&conn, &self.route.schema, &self.name, schema::FORMATS)?;
        self.give_back(conn);
        self.is_current.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.require_current()?;
        if batch.writes.iter().any(transact::has_body) {
            return self.commit_with_bodies(batch);
        }
        self.commit_together(batch)
    }

    fn commit_in_pg<'a>(
        &'a self,
        tx: &'a tokio_postgres::Transaction<'_>,
        batch: Batch,
    ) -> BoxFuture<'a, Result<Applied, StoreError>> {
        Box::pin(self.commit_within(tx, batch))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> {
        let lanes_before = Timestamp::from(SystemTime::now()) - DEAD_LANE_KEPT;
        if !self.read(|session| sweep::is_left(session, now, lanes_before))? {
            return Ok(false);
        }
        self.write(|session| {
            // Lanes of connections that were lost long ago.
            let sql = "DELETE FROM everstep_lanes WHERE id IN (SELECT id FROM everstep_lanes WHERE seen_at < $1 \
                       ORDER BY id LIMIT 100 FOR UPDATE SKIP LOCKED)";
            session.execute(sql, params![lanes_before]);
            let sql = session;
            rules::sweep::sweep(&mut sweep::Left { sql, now }, limit)
        })
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.read_within(self.limits_for_lease(), |session| sql::pools::list(session))
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        self.require_current()?;
        let clock = self.clock(runner.now);
        self.note_lease(runner.lease);
        // A failover in between makes it register once more, which does no harm.
        let life = self.life.load(Ordering::Acquire);
        let fence = self.write(|session| runners::register(session, runner, clock))?;
        lock(&self.homes).insert(fence.runner, (fence, life));
        *lock(&self.held) = None;
        Ok(fence)
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        self.note_lease(lease);
        let clock = self.clock(now);
        let (is_alive, seen) = self.write_at_once(|session| {
            // Behind a pooler no connection of ours is lost when the database fails over.
            let sql = format!("SELECT {}, {}", conn::CLOCK, conn::IDENTITY);
            let asked = conn::Asked::now();
            let beat = runners::heartbeat(fence, clock, lease);
            let answers = session.queries(vec![beat, Op::new(sql, &[]), Op::new("COMMIT", &[])])?;
            let first = |answer: usize| answers.get(answer).and_then(|rows| rows.first());
            let seen = match first(1) {
                Some(row) => Some((row.get::<i64>(0)?, Identity::read(row, 1)?)),
                None => None,
            };
            let seen = seen.map(|(at, identity)| (asked.answered_if_quick(at), identity));
            Ok((first(0).is_some(), seen))
        })?;
        if let Some((time, identity)) = seen {
            self.compare_identity(&identity);
            // Where it had to wait for something, nobody knows at which end of the wait it was asked.
            self.note_time(time);
        }
        Ok(is_alive && self.is_at_home(fence))
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        let rows =
            self.read_within(self.limits_for_lease(), |session| sql::runners::list(session))?;
        let has_others = rows.iter().any(|row| !self.wakes.is_here(row.id));
        self.wakes.set_has_others(has_others);
        Ok(rows)
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Result<Option<ShardSet>, StoreError> {
        if !self.is_at_home(fence) {
            return Ok(None);
        }
        let clock = self.clock(now);
        let oust =
            |session: &Session<'_>| runners::oust_expired(session, fence, clock, wanted, gone);
        let ousted = self.write_for_lease(oust)?;
        let take =
            |session: &Session<'_>| runners::take_shards(session, fence, clock, wanted, &ousted);
        let held = self.write_for_lease(take)?;
        *lock(&self.held) = held.clone().map(|held| (fence, held));
        Ok(held)
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        // A batch that is under way may start a run in one of these shards and claim it for this
        // process. Were the shard another's by then, that one would have looked for runs to take up
        // already, and nobody would have this one.
        let limit = self.limits_for_lease().answer_if_kept;
        let Some(_given_back) = self.giving.begin_release(limit) else {
            return Err(StoreError::Busy {
                store: self.name.clone(),
                source: "a batch is under way".into(),
            });
        };
        *lock(&self.held) = None;
        lock(&self.known).forget(shards);
        self.write_for_lease(|session| sql::runners::release_shards(session, fence, shards))
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        *lock(&self.held) = None;
        self.write(|session| sql::runners::deregister(session, fence))?;
        lock(&self.homes).remove(&fence.runner);
        Ok(())
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        self.wakes.send(me, runs);
    }

    fn after_wakes(&self, then: Box<dyn FnOnce() + Send>) {
        self.wakes.after(then);
    }

    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        let listening = self.wakes.listen(me, wake);
        let listening = listening.map_err(|trouble| self.error(trouble))?;
        Ok(WakeGuard::new(listening))
    }

    fn lanes_max(&self) -> usize {
        self.options.lanes_max
    }

    fn time(&self) -> Option<Timestamp> {
        let mut time = lock(&self.time);
        Some(Timestamp::from_millis(time.as_mut()?.now()))
    }

    fn time_is_old(&self) -> bool {
        lock(&self.time).is_some_and(|time| time.is_old())
    }

    fn ask_time(&self) -> Result<(), StoreError> {
        let time = self.read(|session| {
            let asked = conn::Asked::now();
            let sql = format!("SELECT {}", conn::CLOCK);
            let now = session.row(sql, &[], |row| row.get::<i64>(0))?;
            Ok(now.map(|now| asked.answered(now)))
        })?;
        self.note_time(time);
        Ok(())
    }
}

/// How long the lane of a lost connection is kept.
const DEAD_LANE_KEPT: Duration = Duration::from_secs(24 * 3_600);
