//! Connections: how they are made, kept and lost, and what became of a batch whose answer was lost.
//!
//! The calls of a store block; connections live on a small runtime of their own, one for the
//! process, so that a call may come from any thread.

use std::{
    borrow::Cow,
    collections::HashMap,
    future::Future,
    pin::Pin,
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    task::{Context, Poll},
    time::{Duration, Instant},
};

use futures_util::TryStreamExt;
use tokio::runtime::Runtime;
use tokio_postgres::{Client, Statement, types::Type};
use uuid::Uuid;

use super::{
    dial::{Line, Servers},
    error::{LANE_CLOSED, Trouble},
    lock,
    session::{Answer, Op, Port},
    value::{BadValue, PgRow, Row, Value, params},
};
use crate::time::suspended;

/// Runs on the connections' own runtime, and waits.
pub(super) fn block<T: Send + 'static>(
    future: impl Future<Output = T> + Send + 'static,
) -> Result<T, Trouble> {
    let (send, receive) = mpsc::sync_channel(1);
    runtime()?.spawn(async move {
        // Whoever waits is still there: it waits below.
        let _ = send.send(future.await);
    });
    receive.recv().map_err(|_| Trouble::Lost("the runtime of the connections has ended".to_owned()))
}

pub(super) fn runtime() -> Result<&'static Runtime, Trouble> {
    static RUNTIME: OnceLock<Result<Runtime, String>> = OnceLock::new();
    let made = RUNTIME.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("everstep-postgres")
            .enable_all()
            .build()
            .map_err(|error| format!("no runtime for connections: {error}"))
    });
    made.as_ref().map_err(|text| Trouble::Lost(text.clone()))
}

/// How connections are made.
#[derive(Clone, Debug)]
pub(super) struct Route {
    pub(super) servers: Servers,
    /// The schema that everything is in.
    pub(super) schema: String,
    /// Whether a pooler hands each transaction to another session.
    pub(super) pooled: bool,
    /// How long an answer may take before the connection is given up.
    pub(super) patience: Duration,
    /// Whether what is committed survives a crash of the server. Always, but for tests in which it
    /// does not crash.
    pub(super) synced: bool,
}

/// How long things may take on a connection.
///
/// Those that follow from the lease keep a takeover within two leases: an owner that hangs, or whose
/// network does, holds its locks for no longer than half a lease after its last word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Limits {
    /// How long an answer may take before the connection is given up.
    pub(super) answer: Duration,
    /// The same for a connection that was kept and may have died meanwhile.
    pub(super) answer_if_kept: Duration,
    /// How long the server keeps a transaction open whose client says nothing, with its locks.
    pub(super) idle: Duration,
    /// How long one server may take to let us in, at most.
    pub(super) connect: Duration,
}

impl Limits {
    /// Those of a store whose runner has this lease; of a client without an engine there is none.
    pub(super) fn new(patience: Duration, lease: Option<Duration>) -> Limits {
        let lease = lease.unwrap_or(USUAL_LEASE);
        Limits {
            answer: patience,
            answer_if_kept: patience,
            // Far longer than the body of a transaction may take, which is a quarter of the lease.
            idle: (lease / 2).max(Duration::from_millis(500)),
            connect: (lease / 2).max(Duration::from_secs(1)),
        }
    }

    /// Those for calls that keep the lease. A heartbeat that begins after half of the lease, on a kept
    /// connection that is dead, has at least the last quarter of the lease for a new connection.
    pub(super) fn for_lease(self, lease: Option<Duration>) -> Limits {
        let Some(lease) = lease else { return self };
        // A busy server may take a moment to let a new connection in, however short the lease is.
        let answer = (lease / 3).max(Duration::from_secs(1)).min(self.answer);
        let answer_if_kept = (lease / 4).max(KEPT_ANSWER_MIN).min(answer);
        Limits { answer, answer_if_kept, ..self }
    }
}

/// How long a kept connection has for its answer at least: a quarter of a lease of one second.
const KEPT_ANSWER_MIN: Duration = Duration::from_millis(250);

/// How long a plan is kept: as long as the statistics of a table that grows may be wrong, which the
/// server looks at once a minute by default.
pub(super) const PLANS_KEPT: Duration = Duration::from_secs(30);

pub(super) const DISCARD_PLANS: &str = "DISCARD PLANS";

/// The lease that others are taken to have, by those who have none.
const USUAL_LEASE: Duration = Duration::from_secs(10);

impl Route {
    /// What a session is set to.
    pub(super) fn session(&self, limits: Limits) -> Vec<Op> {
        if self.pooled {
            return Vec::new();
        }
        vec![
            set("search_path", &search_path(&self.schema)),
            // A host that vanishes in the middle of a transaction must not hold its locks for long.
            set_idle(limits.idle),
            // Nor one that waits for a lock of somebody else's when its client has hung up.
            set_check(limits.idle),
            // Nor one to which an answer cannot be sent. Not every server knows this setting.
            Op::new(
                "DO $$ BEGIN PERFORM set_config('tcp_user_timeout', '10s', false); \
                 EXCEPTION WHEN OTHERS THEN NULL; END $$",
                &[],
            ),
            // We have a patience of our own. The server's would let a commit pass that a standby has
            // not confirmed.
            set("statement_timeout", "0"),
            // A statement is planned once, when its tables may be empty, and the plan is kept while they
            // grow. Everything that is asked often has an index: a plan that reads a whole table would
            // be right only at the beginning.
            set("enable_seqscan", "off"),
            set("enable_hashjoin", "off"),
            set("enable_mergejoin", "off"),
            // It would take the price of what is turned off for a reason to compile.
            set("jit", "off"),
            if self.synced {
                Op::new(
                    "SELECT set_config('synchronous_commit', 'on', false) \
                     WHERE current_setting('synchronous_commit') IN ('off', 'local')",
                    &[],
                )
            } else {
                set("synchronous_commit", "off")
            },
        ]
    }
}

/// A connection to the database.
pub(super) struct Conn {
    pub(super) line: Arc<Line>,
    pub(super) statements: Arc<Statements>,
    pub(super) route: Arc<Route>,
    /// What it writes under.
    pub(super) lane: Lane,
    /// Which database, and which of its lives.
    pub(super) identity: Identity,
    /// The clock of the database when the connection was made.
    pub(super) time: Option<DatabaseTime>,
    pub(super) limits: Limits,
    /// When the server was last told to plan its statements anew.
    pub(super) planned: Instant,
    session: ServerSession,
}

/// The session at the server: its process, and since when, as numbers are used again.
#[derive(Clone, Copy, Debug, Default)]
struct ServerSession {
    pid: i64,
    begun: i64,
}

/// Those that were prepared, by their text.
pub(super) type Statements = Mutex<HashMap<String, Statement>>;

/// How many are kept. Our own are far fewer, but filters make new ones without end.
const STATEMENTS_MAX: usize = 400;

/// Which database this is: a copy that has taken over has another timeline.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Identity {
    pub(super) system: String,
    pub(super) timeline: String,
}

/// Read committed whatever the role or the database has for a default: the locks of a batch rely on
/// it.
pub(super) const BEGIN: &str = "BEGIN ISOLATION LEVEL READ COMMITTED";

/// Lets the commit of the transaction wait for the disk, where that was turned off.
pub(super) const WAIT_FOR_THE_DISK: &str = "SELECT set_config('synchronous_commit', 'on', true) \
     WHERE current_setting('synchronous_commit') IN ('off', 'local')";

/// The clock of the database, in milliseconds.
pub(super) const CLOCK: &str = "floor(extract(epoch FROM clock_timestamp()) * 1000)::bigint";

/// How long an answer may take for the time in it to be believed.
const QUICK: Duration = Duration::from_millis(500);

/// How long a measurement is good for. A quartz is off by some milliseconds in this time.
const FRESH: Duration = Duration::from_secs(30);

/// When the database was asked for its time, by the monotonic clock.
pub(super) struct Asked(Instant);

impl Asked {
    pub(super) fn now() -> Asked {
        Asked(Instant::now())
    }

    #[cfg(test)]
    pub(super) fn ago(long: Duration) -> Asked {
        let before = Instant::now().checked_sub(long);
        Asked(before.expect("the machine has been up for longer"))
    }

    /// The time of a database that has given this answer: it has read its clock between the question and
    /// now.
    pub(super) fn answered(self, database_ms: i64) -> DatabaseTime {
        DatabaseTime {
            ms: database_ms,
            at: self.0 + self.0.elapsed() / 2,
            calendar_ms: super::now_ms(),
            suspended: suspended(),
            latest: i64::MIN,
        }
    }

    /// As [`answered`](Self::answered), if the answer has come at once: it is wrong by up to half the
    /// time that it took.
    pub(super) fn answered_if_quick(self, database_ms: i64) -> Option<DatabaseTime> {
        (self.0.elapsed() <= QUICK).then(|| self.answered(database_ms))
    }
}

/// The clock of the database as it was last read. It goes on by the monotonic clock of this machine, so
/// that it does not matter what this machine's calendar is set to.
#[derive(Clone, Copy, Debug)]
pub(super) struct DatabaseTime {
    ms: i64,
    at: Instant,
    /// What this machine's calendar showed when the answer came.
    calendar_ms: i64,
    /// How long this machine had been suspended by then.
    suspended: Duration,
    /// The latest time that was given out.
    latest: i64,
}

/// How far the time may go back from one answer to the next without being let go back: answers are wrong
/// by the time that they were under way.
const JITTER_MS: i64 = 1_000;

impl DatabaseTime {
    /// This answer, which has come after another one.
    pub(super) fn after(self, before: Option<DatabaseTime>) -> DatabaseTime {
        let latest = before.map_or(i64::MIN, |before| before.latest);
        DatabaseTime { latest, ..self }
    }

    pub(super) fn now(&mut self) -> i64 {
        let mut passed = self.at.elapsed();
        if self.calendar_differs(super::now_ms()) {
            // The monotonic clock stands still during a suspend.
            passed += suspended().saturating_sub(self.suspended);
        }
        let now = self.ms + millis(passed);
        if self.latest.saturating_sub(now) > JITTER_MS {
            // The clock of the database was set back.
            self.latest = now;
        }
        self.latest = self.latest.max(now);
        self.latest
    }

    /// Whether the database should be asked again.
    pub(super) fn is_old(&self) -> bool {
        self.at.elapsed() >= FRESH || self.calendar_differs(super::now_ms())
    }

    /// Whether this machine's calendar was set since, or the machine was suspended.
    fn calendar_differs(&self, calendar_ms: i64) -> bool {
        let expected = self.calendar_ms + millis(self.at.elapsed());
        (calendar_ms - expected).unsigned_abs() > 2 * QUICK.as_millis() as u64
    }
}

fn millis(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

/// The timeline of a server that cannot be written to.
const STANDBY: &str = "standby";

/// The columns of an [`Identity`].
pub(super) const IDENTITY: &str = "(SELECT system_identifier::text FROM pg_control_system()), \
     CASE WHEN pg_is_in_recovery() THEN 'standby' \
     ELSE substr(pg_walfile_name(pg_current_wal_lsn()), 1, 8) END";

/// Since when a session is, as a number that no other session of the same process number has.
const SESSION_BEGUN: &str = "(extract(epoch FROM backend_start) * 1000000)::bigint";

impl Identity {
    /// Reads two columns, the first of them being this one.
    pub(super) fn read(row: &dyn Row, first: usize) -> Result<Identity, BadValue> {
        Ok(Identity { system: row.get(first)?, timeline: row.get(first + 1)? })
    }
}

/// The row in `lanes` of a connection.
#[derive(Debug)]
pub(super) struct Lane {
    pub(super) id: Uuid,
    /// How many batches were begun; 0 until the row is there.
    last: AtomicU64,
}

/// A batch whose answer was lost.
#[derive(Clone, Copy, Debug)]
pub(super) struct Unsettled {
    pub(super) lane: Uuid,
    pub(super) batch: u64,
    session: ServerSession,
}

impl Conn {
    pub(super) fn open(route: &Arc<Route>, limits: Limits) -> Result<Conn, Trouble> {
        let of_task = Arc::clone(route);
        // Each server has its own time limit.
        let line =
            block(async move { of_task.servers.connect(None, Some(limits.connect)).await })??;
        let mut conn = Conn {
            line: Arc::new(line),
            statements: Arc::default(),
            route: Arc::clone(route),
            lane: Lane { id: crate::seam::random_uuid(), last: AtomicU64::new(0) },
            identity: Identity { system: String::new(), timeline: String::new() },
            time: None,
            limits,
            planned: Instant::now(),
            session: ServerSession::default(),
        };
        conn.prepare_session()?;
        Ok(conn)
    }

    fn prepare_session(&mut self) -> Result<(), Trouble> {
        let mut ops = self.route.session(self.limits);
        ops.push(Op::new(
            format!(
                "SELECT pg_backend_pid()::bigint, {SESSION_BEGUN}, {IDENTITY}, {CLOCK} \
                 FROM pg_stat_activity WHERE pid = pg_backend_pid()"
            ),
            &[],
        ));
        let asked = Asked::now();
        let answers = self.run(ops)?;
        let Some(row) = answers.last().and_then(|answer| answer.rows.first()) else {
            return Err(Trouble::Lost("the server has not said who it is".to_owned()));
        };
        self.session =
            ServerSession { pid: row.get(0)?, begun: row.get::<Option<i64>>(1)?.unwrap_or(0) };
        self.identity = Identity::read(row, 2)?;
        self.time = Some(asked.answered(row.get(4)?));
        if self.identity.timeline == STANDBY {
            let text = "this server is a standby and takes no writes".to_owned();
            return Err(Trouble::Lost(text));
        }
        Ok(())
    }

    /// Sets the limits of a connection that was kept, for what it is used for next.
    pub(super) fn set_limits(&mut self, limits: Limits) -> Result<(), Trouble> {
        let answer = limits.answer_if_kept;
        let before = std::mem::replace(&mut self.limits, Limits { answer, ..limits });
        // Behind a pooler each transaction sets its own.
        if before.idle != limits.idle && !self.route.pooled {
            self.run(vec![set_idle(limits.idle), set_check(limits.idle)])?;
        }
        Ok(())
    }

    /// Has the server plan its statements anew, if that is long ago: a plan that was made while a table
    /// was empty may read all of it, and is kept until the statistics of the table change.
    pub(super) fn refresh_plans(&mut self) -> Result<(), Trouble> {
        // Behind a pooler no plan is kept.
        if self.route.pooled || self.planned.elapsed() < PLANS_KEPT {
            return Ok(());
        }
        self.planned = Instant::now();
        self.run(vec![Op::new(DISCARD_PLANS, &[])]).map(drop)
    }

    /// What a transaction begins with.
    pub(super) fn begin(&self, sql: &'static str) -> Vec<Op> {
        let mut ops = vec![Op::new(sql, &[])];
        if self.route.pooled {
            // A session is another one with each transaction, so that nothing of it can be set for
            // longer.
            let path = "SELECT set_config('search_path', $1, true), \
                        set_config('statement_timeout', '0', true), \
                        set_config('idle_in_transaction_session_timeout', $2, true), \
                        CASE WHEN current_setting('synchronous_commit') IN ('off', 'local') \
                        THEN set_config('synchronous_commit', 'on', true) END";
            let path_is = search_path(&self.route.schema);
            ops.push(Op::new(path, params![path_is, setting(self.limits.idle)]));
        }
        ops
    }

    /// The mark of the next batch on this connection, and what it is known by afterwards.
    pub(super) fn next_batch(&self, now_ms: i64) -> Result<(Op, Unsettled), Trouble> {
        let batch = self.lane.last.load(Ordering::Relaxed) + 1;
        if batch == 1 {
            let mut ops = self.begin(BEGIN);
            ops.push(Op::new(
                "INSERT INTO everstep_lanes (id, epoch, last, seen_at) VALUES ($1, 1, 0, $2)",
                params![self.lane.id, now_ms],
            ));
            ops.push(Op::new("COMMIT", &[]));
            self.run(ops)?;
        }
        self.lane.last.store(batch, Ordering::Relaxed);
        let mark = Op::new(
            "WITH mark AS (UPDATE everstep_lanes SET last = $2, seen_at = $3 \
             WHERE id = $1 AND epoch = 1 RETURNING 1) \
             SELECT everstep_require(count(*) = 1, $4), \
             pg_current_xact_id()::xid::text::bigint FROM mark",
            params![self.lane.id, batch as i64, now_ms, LANE_CLOSED],
        );
        let lost = Unsettled { lane: self.lane.id, batch, session: self.session };
        Ok((mark, lost))
    }

    /// Executes statements that are not ours to take apart.
    pub(super) fn batch(&self, sql: String) -> Result<(), Trouble> {
        let line = Arc::clone(&self.line);
        block(async move { line.client.batch_execute(&sql).await })??;
        Ok(())
    }

    /// Whether the server has closed it, as far as is known here.
    pub(super) fn is_closed(&self) -> bool {
        self.line.is_closed()
    }
}

/// Finds out whether a batch has landed; from then on it cannot land any more. `None` if nobody
/// knows it any longer.
pub(super) fn settle(conn: &Conn, lost: Unsettled) -> Result<Option<bool>, Trouble> {
    // The old session may hang in its transaction, with its host gone; this may not be allowed, or
    // it may be gone already, and then the lock below is there at once.
    let terminate = Op::new(
        format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE pid::bigint = $1 AND {SESSION_BEGUN} = $2"
        ),
        params![lost.session.pid, lost.session.begun],
    );
    // Behind a pooler it may serve somebody else by now.
    if !conn.route.pooled {
        // Only a help: the answer is in the lane.
        let _ = conn.run(vec![terminate]);
    }
    let mut ops = conn.begin(BEGIN);
    let at = ops.len();
    // Waits for the batch if it is under way, and refuses it if it comes later.
    ops.push(Op::new(
        "UPDATE everstep_lanes SET epoch = epoch + 1 WHERE id = $1 RETURNING last",
        params![lost.lane],
    ));
    ops.push(Op::new("COMMIT", &[]));
    let answers = conn.run(ops)?;
    let row = answers.get(at).and_then(|answer| answer.rows.first());
    let Some(row) = row else { return Ok(None) };
    let last: i64 = row.get(0)?;
    Ok(Some(last as u64 >= lost.batch))
}

fn set_idle(limit: Duration) -> Op {
    set("idle_in_transaction_session_timeout", &setting(limit))
}

/// How often the server looks whether its client is still there while it works for it. Not every system
/// can notice that.
fn set_check(interval: Duration) -> Op {
    let interval = setting(interval.min(CHECK_MAX));
    let sql = format!(
        "DO $$ BEGIN PERFORM set_config('client_connection_check_interval', '{interval}', false); \
         EXCEPTION WHEN OTHERS THEN NULL; END $$"
    );
    Op::new(sql, &[])
}

const CHECK_MAX: Duration = Duration::from_secs(5);

/// A length of time as a setting.
pub(super) fn setting(time: Duration) -> String {
    format!("{}ms", time.as_millis())
}

fn set(name: &str, value: &str) -> Op {
    Op::new("SELECT set_config($1, $2, false)", params![name, value])
}

/// Where names are looked for: in our schema. Were the temporary tables of the session not named here,
/// they would come first, and one that a user has called like one of ours would take its place.
pub(super) fn search_path(schema: &str) -> String {
    format!("{}, pg_temp", quoted(schema))
}

/// A name as SQL takes it.
pub(super) fn quoted(name: &str) -> String {
    format!("\"{}\"", name.replace('"', "\"\""))
}

impl Port for Conn {
    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, Trouble> {
        let line = Arc::clone(&self.line);
        let statements = Arc::clone(&self.statements);
        let (pooled, patience) = (self.route.pooled, self.limits.answer);
        block(async move {
            let answers = run(&line.client, &statements, pooled, patience, &ops).await;
            if let Err(Trouble::Lost(_)) = answers {
                line.cut();
            }
            answers
        })?
    }
}

/// Runs these, if the answers come in time.
pub(super) async fn run(
    client: &Client,
    statements: &Statements,
    pooled: bool,
    patience: Duration,
    ops: &[Op],
) -> Result<Vec<Answer>, Trouble> {
    let running = async {
        if pooled {
            run_unnamed(client, ops).await
        } else {
            run_prepared(client, statements, ops).await
        }
    };
    let begun = Instant::now();
    match tokio::time::timeout(patience, running).await {
        Ok(answers) => answers,
        Err(_) => {
            let waited = begun.elapsed().as_secs_f32();
            Err(Trouble::Lost(format!("no answer after {waited:.1} s")))
        }
    }
}

async fn run_prepared(
    client: &Client,
    statements: &Statements,
    ops: &[Op],
) -> Result<Vec<Answer>, Trouble> {
    let named = || ops.iter().filter(|op| !is_about_transaction(&op.sql));
    let missing: Vec<&Op> = {
        let mut known = lock(statements);
        // Those that are used will be there again soon.
        if known.len() > STATEMENTS_MAX {
            known.clear();
        }
        let mut missing: Vec<&Op> = Vec::new();
        for op in named() {
            if !known.contains_key(&*op.sql) && !missing.iter().any(|other| other.sql == op.sql) {
                missing.push(op);
            }
        }
        missing
    };
    for op in &missing {
        let types: Vec<Type> = op.params.iter().map(Value::sql_type).collect();
        let statement = client.prepare_typed(&numbered(&op.sql), &types).await?;
        lock(statements).insert(op.sql.to_string(), statement);
    }
    let prepared: Vec<Option<Statement>> = {
        let known = lock(statements);
        let all = ops.iter().map(|op| match known.get(&*op.sql) {
            Some(statement) => Some(Some(statement.clone())),
            None => is_about_transaction(&op.sql).then_some(None),
        });
        all.collect::<Option<_>>()
            .ok_or_else(|| Trouble::Lost("a prepared statement is gone".to_owned()))?
    };
    let running = ops.iter().zip(&prepared).map(|(op, statement)| async move {
        let rows = match statement {
            Some(statement) => client.query_raw(statement, &op.params).await?,
            None => {
                let typed = op.params.iter().map(|value| (value, value.sql_type()));
                client.query_typed_raw(&op.sql, typed).await?
            }
        };
        answer(rows).await
    });
    in_order(running).await
}

/// Whether a statement begins or ends a transaction. Such have no name: behind a pooler that nobody has
/// told us of, a name might not be there, and what is sent behind it would be made without a
/// transaction, each statement by itself.
fn is_about_transaction(sql: &str) -> bool {
    matches!(sql, "COMMIT" | "ROLLBACK") || sql.starts_with("BEGIN")
}

/// A statement as the server takes it: the parameters `?1` and `?2` of the shared statements
/// ([`crate::store::sql`]) become `$1` and `$2`. Names in quotes, as that of a schema, stay.
pub(super) fn numbered(sql: &str) -> Cow<'_, str> {
    if !sql.contains('?') {
        return Cow::Borrowed(sql);
    }
    let parts = sql.split('"').zip([false, true].into_iter().cycle());
    let parts = parts.map(|(part, is_name)| match is_name {
        true => Cow::Borrowed(part),
        false => Cow::Owned(part.replace('?', "$")),
    });
    Cow::Owned(parts.collect::<Vec<_>>().join("\""))
}

/// Without names, which a pooler would not find again on the next session.
pub(super) async fn run_unnamed(client: &Client, ops: &[Op]) -> Result<Vec<Answer>, Trouble> {
    let running = ops.iter().map(|op| async move {
        let typed = op.params.iter().map(|value| (value, value.sql_type()));
        let rows = client.query_typed_raw(&numbered(&op.sql), typed).await?;
        answer(rows).await
    });
    in_order(running).await
}

pub(super) async fn answer(rows: tokio_postgres::RowStream) -> Result<Answer, Trouble> {
    let mut stream = std::pin::pin!(rows);
    let mut rows = Vec::new();
    while let Some(row) = stream.try_next().await? {
        rows.push(PgRow(row));
    }
    let affected = stream.rows_affected().unwrap_or(0);
    Ok(Answer { rows, affected })
}

/// Sends all at once: each is polled once, in order, before the first is waited for. All answers are
/// awaited, so that the connection is in step; the first error counts. Behind one that could not even
/// be sent nothing is sent: a commit would make the rest durable without it.
pub(super) async fn in_order<F>(running: impl Iterator<Item = F>) -> Result<Vec<Answer>, Trouble>
where
    F: Future<Output = Result<Answer, Trouble>>,
{
    enum Slot<F> {
        Waiting(Pin<Box<F>>),
        Done(Option<Result<Answer, Trouble>>),
    }
    let mut slots: Vec<Slot<F>> = running.map(|it| Slot::Waiting(Box::pin(it))).collect();
    let mut next = 0;
    let mut is_first = true;
    std::future::poll_fn(|context: &mut Context<'_>| {
        if is_first {
            is_first = false;
            let mut sent = 0;
            for slot in &mut slots {
                sent += 1;
                poll_slot(slot, context);
                if matches!(slot, Slot::Done(Some(Err(_)))) {
                    break;
                }
            }
            slots.truncate(sent);
        }
        while next < slots.len() {
            let slot = &mut slots[next];
            if !poll_slot(slot, context) {
                return Poll::Pending;
            }
            next += 1;
        }
        Poll::Ready(())
    })
    .await;
    fn poll_slot<F>(slot: &mut Slot<F>, context: &mut Context<'_>) -> bool
    where
        F: Future<Output = Result<Answer, Trouble>>,
    {
        if let Slot::Waiting(future) = slot {
            match future.as_mut().poll(context) {
                Poll::Ready(answer) => *slot = Slot::Done(Some(answer)),
                Poll::Pending => return false,
            }
        }
        true
    }
    let mut answers = Vec::with_capacity(slots.len());
    let mut trouble = None;
    for slot in slots {
        if let Slot::Done(Some(done)) = slot {
            match done {
                Ok(answer) => answers.push(answer),
                // A lost connection says more than what came before it.
                Err(lost @ Trouble::Lost(_)) => trouble = Some(lost),
                Err(other) => {
                    trouble.get_or_insert(other);
                }
            }
        }
    }
    match trouble {
        None => Ok(answers),
        Some(trouble) => Err(trouble),
    }
}
