//! Runs the bodies of `ctx.pg_transaction`, in the transaction of the commit that records them.
//!
//! The driver hands out transactions that borrow their connection, and bodies are futures of any
//! kind. So such a transaction lives on a thread of its own: the rules send their statements there
//! ([`Remote`]), and a body runs there between two of them, in a savepoint. One that fails leaves
//! nothing, and its commit stands.
//!
//! A commit with a body is a batch of its own, made before the rest of its batch: a body that waits
//! for rows of the user's holds nobody's run but its own. If the rest then fails, the batch comes
//! again as it is; what was made is remembered in the [`Transaction`], and not made again.
//!
//! Always true: what a body has written becomes durable with its entry, or neither does.

use std::{
    collections::HashSet,
    panic::AssertUnwindSafe,
    sync::{Arc, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use futures_util::FutureExt;
use tokio::sync::mpsc::{UnboundedReceiver, UnboundedSender, unbounded_channel};
use tokio_postgres::IsolationLevel;

use super::{
    PostgresStore,
    conn::{self, Conn, Route, search_path},
    error::{ENDED, Trouble},
    session::{Answer, Op, Port},
};
use crate::{
    commit::PostgresBody,
    error::{Error, Failure, FailureKind},
    panics,
    run_id::RunNo,
    store::{rules, *},
};

/// What is asked of whoever holds a transaction.
pub(super) enum Request {
    Run(Vec<Op>, Reply<Vec<Answer>>),
    Call(Transaction, Reply<()>),
}

pub(super) type Reply<T> = mpsc::SyncSender<Result<T, Trouble>>;

impl Request {
    pub(super) fn refuse(self, trouble: Trouble) {
        // Whoever has asked may be gone.
        match self {
            Request::Run(_, reply) => _ = reply.send(Err(trouble)),
            Request::Call(_, reply) => _ = reply.send(Err(trouble)),
        }
    }
}

/// A transaction that somebody else holds.
pub(super) struct Remote {
    requests: UnboundedSender<Request>,
}

impl Remote {
    pub(super) fn new() -> (Remote, UnboundedReceiver<Request>) {
        let (requests, asked) = unbounded_channel();
        (Remote { requests }, asked)
    }

    fn ask<T>(&self, request: impl FnOnce(Reply<T>) -> Request) -> Result<T, Trouble> {
        let gone = || Trouble::Lost("the transaction was dropped".to_owned());
        let (reply, answer) = mpsc::sync_channel(1);
        self.requests.send(request(reply)).map_err(|_| gone())?;
        answer.recv().map_err(|_| gone())?
    }
}

impl Port for Remote {
    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, Trouble> {
        self.ask(|reply| Request::Run(ops, reply))
    }

    fn call(&self, transaction: &Transaction) -> Result<(), Trouble> {
        self.ask(|reply| Request::Call(transaction.clone(), reply))
    }
}

/// A connection for one transaction.
pub(super) enum Held {
    /// For statements of ours alone.
    Ours(Box<Conn>),
    /// For bodies too.
    Shared(Remote, JoinHandle<Option<Conn>>),
}

impl Held {
    /// Begins a transaction; what it has to begin with is in the operations.
    pub(super) fn begin(conn: Conn, has_bodies: bool) -> Result<(Held, Vec<Op>), Trouble> {
        let mut ops = conn.begin(conn::BEGIN);
        if !has_bodies {
            return Ok((Held::Ours(Box::new(conn)), ops));
        }
        // The driver begins it, or it would not give us savepoints.
        ops.remove(0);
        let (remote, asked) = Remote::new();
        let runtime = conn::runtime()?;
        let thread = std::thread::Builder::new()
            .name("everstep-transaction".to_owned())
            .spawn(move || runtime.block_on(serve(conn, asked)))
            .map_err(|error| Trouble::Lost(format!("no thread for a transaction: {error}")))?;
        Ok((Held::Shared(remote, thread), ops))
    }

    /// The connection, if it can be used again.
    pub(super) fn end(self) -> Option<Conn> {
        match self {
            Held::Ours(conn) => Some(*conn),
            Held::Shared(remote, thread) => {
                drop(remote);
                // A panic there has lost the connection, and nothing else.
                thread.join().ok().flatten()
            }
        }
    }
}

impl Port for Held {
    fn run(&self, ops: Vec<Op>) -> Result<Vec<Answer>, Trouble> {
        match self {
            Held::Ours(conn) => conn.run(ops),
            Held::Shared(remote, _) => remote.run(ops),
        }
    }

    fn call(&self, transaction: &Transaction) -> Result<(), Trouble> {
        match self {
            Held::Ours(conn) => conn.call(transaction),
            Held::Shared(remote, _) => remote.call(transaction),
        }
    }
}

/// Holds a transaction until it is ended; gives the connection back if it is as it was.
async fn serve(mut conn: Conn, mut asked: UnboundedReceiver<Request>) -> Option<Conn> {
    let line = Arc::get_mut(&mut conn.line)?;
    let begin = line.client.build_transaction().isolation_level(IsolationLevel::ReadCommitted);
    let mut tx = match within(&conn.route, begin.start()).await {
        Ok(tx) => tx,
        Err(trouble) => {
            asked.recv().await?.refuse(trouble);
            return None;
        }
    };
    let mut spent = Duration::ZERO;
    let has_ended = loop {
        match asked.recv().await {
            // Rolled back by the driver.
            None => break false,
            Some(Request::Run(ops, reply)) => {
                let last = ops.last().map(|op| &*op.sql);
                let is_end = matches!(last, Some("COMMIT" | "ROLLBACK"));
                let (pooled, patience) = (conn.route.pooled, conn.limits.answer);
                let answers =
                    conn::run(tx.client(), &conn.statements, pooled, patience, &ops).await;
                let has_ended = is_end && answers.is_ok();
                // Whoever has asked may be gone.
                let _ = reply.send(answers);
                if has_ended {
                    break true;
                }
            }
            Some(Request::Call(transaction, reply)) => {
                let called = call(&mut tx, &conn.route, &transaction, &mut spent).await;
                let _ = reply.send(called);
            }
        }
    };
    if !has_ended {
        return None;
    }
    // It was ended in SQL; the driver would roll back what is not there.
    std::mem::forget(tx);
    reset(&conn).await.ok()?;
    Some(conn)
}

async fn within<T>(
    route: &Route,
    future: impl Future<Output = Result<T, tokio_postgres::Error>>,
) -> Result<T, Trouble> {
    match tokio::time::timeout(route.patience, future).await {
        Ok(done) => Ok(done?),
        Err(_) => Err(Trouble::Lost("no answer within the time limit".to_owned())),
    }
}

/// Takes away what a body may have left in the session.
async fn reset(conn: &Conn) -> Result<(), Trouble> {
    if conn.route.pooled {
        // The session is the pooler's to reset.
        return Ok(());
    }
    let reset = [
        "RESET ROLE",
        "RESET ALL",
        "UNLISTEN *",
        "SELECT pg_advisory_unlock_all()",
        "DISCARD TEMP",
    ];
    let mut ops: Vec<Op> = reset.map(|sql| Op::new(sql, &[])).into();
    ops.extend(conn.route.session(conn.limits));
    let (client, patience) = (&conn.line.client, conn.limits.answer);
    conn::run(client, &conn.statements, false, patience, &ops).await?;
    Ok(())
}

const SAVEPOINT: &str = "everstep_transaction";

/// What is violated at the end of the transaction is to fail the body and not the commit. What this
/// changes about constraints, and what their triggers do, is rolled back: they are checked again.
const CHECK: &str = "SAVEPOINT everstep_check; SET CONSTRAINTS ALL IMMEDIATE; \
                     ROLLBACK TO everstep_check; RELEASE everstep_check";

/// Runs a body, if there is time left for it in this batch; whether it has completed is then in the
/// transaction.
async fn call(
    tx: &mut tokio_postgres::Transaction<'_>,
    route: &Route,
    transaction: &Transaction,
    spent: &mut Duration,
) -> Result<(), Trouble> {
    let Some(body) = transaction.postgres_body() else {
        transaction.refuse(super::SQLITE_BODY);
        return Ok(());
    };
    transaction.postpone();
    if *spent > transaction.limits().batch {
        return Ok(());
    }
    let began = Instant::now();
    let answer = attempt(tx, route, transaction, body).await;
    *spent += began.elapsed();
    transaction.answer(answer?);
    Ok(())
}

/// Calls a body in a savepoint, which stands only if the body has succeeded.
///
/// # Errors
///
/// If the transaction cannot go on: this was no attempt.
async fn attempt(
    tx: &mut tokio_postgres::Transaction<'_>,
    route: &Route,
    transaction: &Transaction,
    body: &PostgresBody,
) -> Result<Result<Vec<u8>, Error>, Trouble> {
    let limit = transaction.limits().body;
    let savepoint = within(route, tx.savepoint(SAVEPOINT)).await?;
    // A statement that is under way when the time is over ends by itself.
    // And its statements are planned as in any other session.
    let set = format!(
        "SET LOCAL search_path TO DEFAULT; SET LOCAL enable_seqscan TO DEFAULT; \
         SET LOCAL enable_hashjoin TO DEFAULT; SET LOCAL enable_mergejoin TO DEFAULT; \
         SET LOCAL jit TO DEFAULT; SET LOCAL statement_timeout TO {}",
        limit.as_millis().max(1)
    );
    within(route, savepoint.batch_execute(&set)).await?;
    let began = Instant::now();
    let called = AssertUnwindSafe(async { body(&savepoint).await }).catch_unwind();
    let mut answer = match tokio::time::timeout(limit, called).await {
        Ok(Ok(answer)) => answer,
        Ok(Err(panic)) => {
            let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
            Err(Error::attempt_failed(failure))
        }
        Err(_) => Err(transaction.timed_out()),
    };
    if began.elapsed() >= limit {
        answer = Err(transaction.timed_out());
    }
    if answer.is_ok()
        && let Err(violated) = savepoint.batch_execute(CHECK).await
    {
        answer = Err(Error::from(violated));
    }
    let payload = match answer {
        Ok(payload) => payload,
        Err(error) => {
            within(route, savepoint.rollback()).await.map_err(ended)?;
            return match error.sql_state() {
                Some(code) if is_the_stores(code) => {
                    Err(Trouble::Told { code: code.to_owned(), text: error.failure().full() })
                }
                _ => Ok(Err(error)),
            };
        }
    };
    within(route, savepoint.commit()).await.map_err(ended)?;
    // Whatever it has set, what comes next is ours, and durable.
    let path = search_path(&route.schema);
    let mut set = format!(
        "SET LOCAL role TO DEFAULT; SET LOCAL search_path TO {path}; \
         SET LOCAL statement_timeout TO 0; SET LOCAL enable_seqscan TO off; \
         SET LOCAL enable_hashjoin TO off; SET LOCAL enable_mergejoin TO off; \
         SET LOCAL jit TO off"
    );
    if route.synced {
        set += "; ";
        set += conn::WAIT_FOR_THE_DISK;
    }
    within(route, tx.batch_execute(&set)).await?;
    Ok(Ok(payload))
}

/// Whether a body that failed by this has not been tried at all: a deadlock, a full disk, a server
/// that stops.
fn is_the_stores(code: &str) -> bool {
    let classes = ["08", "57P", "58", "XX"];
    matches!(code, "40001" | "40P01" | "53100" | "53200")
        || classes.iter().any(|class| code.starts_with(class))
}

/// The savepoint of a body is gone: the body has ended the transaction, and with it what must happen
/// together.
fn ended(trouble: Trouble) -> Trouble {
    match trouble.code() {
        Some("25P01" | "3B001") => Trouble::Told {
            code: ENDED.to_owned(),
            text: "the body of a `pg_transaction` has ended the transaction that it was in; take \
                   the `COMMIT` or `ROLLBACK` out of it"
                .to_owned(),
        },
        _ => trouble,
    }
}

/// Whether a write has a body for PostgreSQL.
pub(super) fn has_body(write: &Write) -> bool {
    let commit = write.as_commit();
    commit.is_some_and(|commit| bodies(commit).next().is_some())
}

fn bodies(commit: &Commit) -> impl Iterator<Item = &Transaction> {
    rules::transactions(commit).filter(|transaction| transaction.postgres_body().is_some())
}

impl PostgresStore {
    /// Makes the commits with bodies one by one, then the rest of the batch.
    pub(super) fn commit_with_bodies(&self, batch: &Batch) -> Result<Applied, StoreError> {
        let mut outcomes: Vec<Option<Outcome>> = vec![None; batch.writes.len()];
        let mut notices = Vec::new();
        for (write, outcome) in alone(batch).zip(&mut outcomes) {
            if let Some(commit) = write {
                let mut applied = self.commit_alone(batch, commit)?;
                *outcome = applied.outcomes.pop();
                notices.append(&mut applied.notices);
            }
        }
        let writes = batch.writes.iter().zip(&outcomes);
        let rest: Vec<Write> = writes
            .filter(|(_, outcome)| outcome.is_none())
            .map(|(write, _)| write.clone())
            .collect();
        let mut of_rest = Vec::new().into_iter();
        if !rest.is_empty() {
            let applied = self.commit_together(&Batch { writes: rest, ..*batch })?;
            notices.extend(applied.notices);
            of_rest = applied.outcomes.into_iter();
        }
        for commit in alone(batch).flatten() {
            bodies(commit).for_each(Transaction::forget_made);
        }
        let outcomes = outcomes.into_iter();
        Ok(Applied {
            outcomes: outcomes.filter_map(|outcome| outcome.or_else(|| of_rest.next())).collect(),
            notices,
        })
    }

    fn commit_alone(&self, batch: &Batch, commit: &Commit) -> Result<Applied, StoreError> {
        if let Some(made) = bodies(commit).find_map(Transaction::made) {
            return Ok(made);
        }
        let applied = self.commit_together(&Batch {
            writes: vec![Write::Commit(Box::new(commit.clone()))],
            ..*batch
        })?;
        if let (Some(Outcome::Committed(_)), Some(body)) =
            (applied.outcomes.first(), bodies(commit).next())
        {
            body.remember_made(&applied);
        }
        Ok(applied)
    }
}

/// For each write, the commit that is made by itself. A commit is not if its run has items in the
/// same batch: they come before the result of the body that has given them out.
fn alone(batch: &Batch) -> impl Iterator<Item = Option<&Commit>> {
    let emissions = batch.writes.iter().filter_map(Write::as_emission);
    let emitting: HashSet<RunNo> = emissions.map(|emission| emission.run).collect();
    batch.writes.iter().map(move |write| {
        let commit = write.as_commit().filter(|_| has_body(write));
        commit.filter(|commit| !emitting.contains(&commit.run))
    })
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicU32, Ordering};

    use super::*;
    use crate::{
        commit::{TransactionBody, TransactionLimits},
        history::{Entry, EntryKind, EntryStatus, EntryValue, encode_payload_prefix},
        run_id::{RunId, RunIds},
    };

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// A store with a runner that holds everything.
    struct Shop {
        store: PostgresStore,
        fence: Fence,
        ids: RunIds,
    }

    impl Shop {
        fn new() -> Shop {
            let store = crate::store::postgres::tests::fresh();
            store.migrate().expect("migrate");
            let id = uuid::Uuid::from_u128(1);
            let runner = NewRunner::new(id, "host/1", NOW, Duration::from_secs(10));
            let fence = store.register_runner(&runner).expect("register");
            let taken = store.take_shards(fence, NOW, &ShardSet::of_default_pool(), &[]);
            taken.expect("take_shards");
            let ids = RunIds::new(1);
            Shop { store, fence, ids }
        }

        fn write(&self, writes: Vec<Write>) -> Result<Vec<Outcome>, StoreError> {
            let (fence, now) = (Some(self.fence), NOW);
            let batch = Batch { fence, now, writes };
            self.store.commit(&batch).map(|applied| applied.outcomes)
        }

        fn new_run(&self, key: Option<&str>) -> (RunId, Write) {
            let id = self.ids.next(NOW);
            let new = NewRun {
                id,
                workflow: "shop".into(),
                version: 1,
                key: key.map(str::to_owned),
                pool: "default".into(),
                available_at: None,
                deadline_at: None,
                tags: Vec::new(),
                trace: None,
                input: Vec::new(),
                parent: None,
                claim: true,
            };
            (id, Write::Start(Box::new(new)))
        }

        fn start(&self) -> RunId {
            let (id, start) = self.new_run(None);
            self.write(vec![start]).expect("a run is started");
            id
        }

        fn keys(&self, run: RunId) -> Vec<Vec<u8>> {
            let history = self.store.history(run.no(), None, 100).expect("history");
            history.into_iter().map(|put| put.key).collect()
        }
    }

    /// A key that fits into no page of an index, however it is packed.
    fn too_long() -> String {
        let mut random = 1u64;
        let digits = (0..2_000).map(|_| {
            random ^= random << 13;
            random ^= random >> 7;
            random ^= random << 17;
            format!("{random:x}")
        });
        digits.collect()
    }

    /// A transaction that counts how often it was run, and a commit with it.
    fn commit(run: RunId, key: &str) -> (Write, Transaction, Arc<AtomicU32>) {
        let entry = Entry {
            kind: EntryKind::Transaction,
            status: EntryStatus::Completed,
            number: None,
            born: 0,
            compensable: false,
            attempts: 1,
            deaths: 0,
            created_at: NOW,
            started_at: None,
            completed_at: Some(NOW),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(Vec::new()),
        };
        let calls: Arc<AtomicU32> = Arc::default();
        let counted = Arc::clone(&calls);
        let body: PostgresBody = Arc::new(move |tx| {
            counted.fetch_add(1, Ordering::SeqCst);
            Box::pin(async move {
                tx.batch_execute("SELECT 1").await?;
                Ok(vec![0xF6])
            })
        });
        let limit = Duration::from_secs(60);
        let limits = TransactionLimits { body: limit, batch: limit };
        let prefix = encode_payload_prefix(&entry);
        let body = TransactionBody::Postgres(body);
        let key = key.as_bytes().to_vec();
        let transaction = Transaction::new(key, prefix, "pay".to_owned(), body, limits);
        // It has no number of its own, so nothing but the store can tell that it was made.
        let commit = Commit {
            run: run.no(),
            generation: 1,
            inbox_seq: None,
            results_only: false,
            last_number: 0,
            numbers: 0,
            deletes: Vec::new(),
            puts: Vec::new(),
            consumed: Vec::new(),
            state: Vec::new(),
            effects: vec![Effect::Transaction(transaction.clone())],
            patch: Patch::Keep,
        };
        (Write::Commit(Box::new(commit)), transaction, calls)
    }

    /// Commits with bodies are durable before the rest of their batch. The engine knows nothing of
    /// that: it sends the whole batch again, or each half of it.
    #[test]
    fn what_was_made_is_not_made_again_when_the_rest_of_its_batch_fails() {
        let shop = Shop::new();
        let (first, second) = (shop.start(), shop.start());
        let (pay, paid, calls) = commit(first, "pay");
        let (also, _, others) = commit(second, "pay");
        let (_, bad) = shop.new_run(Some(&too_long()));
        let (_, good) = shop.new_run(None);
        let batch = vec![good.clone(), pay.clone(), bad.clone(), also];
        for _ in 0..2 {
            let error = shop.write(batch.clone()).expect_err("one write is bad");
            assert!(matches!(error, StoreError::Rejected { .. }), "{error:?}");
        }
        let halves = shop.write(vec![good, pay]).expect("the good half");
        assert!(matches!(halves[0], Outcome::Started(_)), "{halves:?}");
        assert_eq!(halves[1], Outcome::Committed(Vec::new()));
        assert!(matches!(paid.take_answer(), Some(Ok(_))));
        for (run, calls) in [(first, calls), (second, others)] {
            assert_eq!(calls.load(Ordering::SeqCst), 1);
            assert_eq!(shop.keys(run), [b"pay".to_vec()]);
        }
    }

    #[test]
    fn a_transaction_that_comes_again_with_another_commit_is_run() {
        let shop = Shop::new();
        let run = shop.start();
        let (write, transaction, calls) = commit(run, "pay");
        shop.write(vec![write.clone()]).expect("the first commit");
        shop.write(vec![write]).expect("the second commit");
        assert_eq!(calls.load(Ordering::SeqCst), 2);
        assert!(matches!(transaction.take_answer(), Some(Ok(_))));
    }

    #[test]
    fn items_of_a_run_become_durable_with_its_transaction() {
        let shop = Shop::new();
        let run = shop.start();
        let (pay, _, calls) = commit(run, "pay");
        let emission = Emission {
            run: run.no(),
            generation: 1,
            items: vec![Emit {
                stream: "log".to_owned(),
                by: None,
                body: vec![0xF6],
                items_max: 10,
            }],
        };
        let (_, bad) = shop.new_run(Some(&too_long()));
        let emit = Write::Emit(Box::new(emission));
        shop.write(vec![emit.clone(), pay.clone(), bad]).expect_err("one write is bad");
        assert!(shop.keys(run).is_empty(), "its items are not there either");
        shop.write(vec![emit, pay]).expect("the good half");
        assert_eq!(shop.keys(run), [b"pay".to_vec()]);
        let streams = shop.store.streams(run.no()).expect("streams");
        assert_eq!(streams.len(), 1);
        assert_eq!(calls.load(Ordering::SeqCst), 2, "the first was rolled back");
    }
}
