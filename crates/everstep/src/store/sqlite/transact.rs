//! Runs the bodies of `ctx.transaction` on the writer's connection, inside of a batch.
//!
//! Each runs in a savepoint: one that fails leaves nothing, and the rest of its batch stands. While
//! it runs, SQLite's authorizer keeps it away from our own tables and from the transaction itself,
//! and the progress handler stops it when its time is over.
//!
//! Always true: what a body has written becomes durable with its entry, or neither does. Some
//! failures make SQLite roll back the whole transaction and not just the savepoint (a write that is
//! interrupted, `ON CONFLICT ROLLBACK`): then the batch is made again without that body.

use std::{
    cell::RefCell,
    panic::{AssertUnwindSafe, catch_unwind},
    time::{Duration, Instant},
};

use rusqlite::{
    Connection, ffi,
    hooks::{AuthAction, AuthContext, Authorization},
};

use super::schema::PREFIX;
use crate::{
    commit::{Batch, SqliteBody, Transaction, Tx},
    error::{Error, Failure, FailureKind},
    panics,
    store::rules,
};

const SAVEPOINT: &str = "everstep_transaction";

/// How many steps of SQLite's machine go by between two looks at the clock.
const STEPS: i32 = 1_000;

/// Lets bodies be watched on this connection.
pub(crate) fn install(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.authorizer(Some(authorize))?;
    conn.progress_handler(STEPS, Some(is_over))
}

thread_local! {
    /// The body that runs on this thread. SQLite asks on the thread that it was called from.
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

struct Watched {
    deadline: Instant,
    stopped: bool,
    /// What it was kept from, in words.
    denied: Option<String>,
}

/// Ends the watch, also when the body panics.
struct Watch;

impl Watch {
    fn begin(limit: Duration) -> Watch {
        let watched = Watched { deadline: Instant::now() + limit, stopped: false, denied: None };
        WATCHED.set(Some(watched));
        Watch
    }

    fn end(self) -> Option<Watched> {
        WATCHED.take()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.set(None);
    }
}

/// Called by SQLite now and then: whether to stop what it is doing.
fn is_over() -> bool {
    WATCHED.with_borrow_mut(|watched| match watched {
        Some(watched) => {
            watched.stopped |= Instant::now() >= watched.deadline;
            watched.stopped
        }
        None => false,
    })
}

/// Called by SQLite while it compiles a statement.
fn authorize(context: AuthContext<'_>) -> Authorization {
    WATCHED.with_borrow_mut(|watched| {
        let Some(watched) = watched else {
            return Authorization::Allow;
        };
        match forbidden(&context.action) {
            Some(what) => {
                watched.denied.get_or_insert(what);
                Authorization::Deny
            }
            None => Authorization::Allow,
        }
    })
}

/// Pragmas that only tell something.
const PRAGMAS: &[&str] = &[
    "data_version",
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Why a body may not do this; none if it may.
fn forbidden(action: &AuthAction<'_>) -> Option<String> {
    let table = match action {
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. } => table_name,
        AuthAction::Transaction { .. } => {
            return Some("begin or end a transaction: the engine does that".to_owned());
        }
        AuthAction::Savepoint { savepoint_name, .. } if *savepoint_name == SAVEPOINT => {
            return Some(format!("use the savepoint `{SAVEPOINT}`, which is everstep's"));
        }
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
            return Some("attach or detach a database".to_owned());
        }
        AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. } => {
            return Some(
                "make temporary tables: the connection is the engine's and stays open".to_owned(),
            );
        }
        AuthAction::Pragma { pragma_name, .. }
            if !PRAGMAS.contains(&pragma_name.to_ascii_lowercase().as_str()) =>
        {
            return Some(format!("use the pragma `{pragma_name}`"));
        }
        _ => return None,
    };
    is_ours(table).then(|| format!("write to the table `{table}`, which is everstep's"))
}

/// Whether a table has the prefix of ours.
pub(crate) fn is_ours(table: &str) -> bool {
    let prefix = table.as_bytes().get(..PREFIX.len());
    prefix.is_some_and(|prefix| prefix.eq_ignore_ascii_case(PREFIX.as_bytes()))
}

/// How many bodies of this batch are given up for good.
pub(crate) fn settled(batch: &Batch) -> usize {
    batch
        .commits()
        .flat_map(rules::transactions)
        .filter(|transaction| transaction.is_settled())
        .count()
}

/// Runs a body, if there is time left for it in this batch; whether it has completed is then in
/// the transaction.
///
/// # Errors
///
/// If the batch cannot go on: the store itself is at fault, or SQLite has rolled it back.
pub(crate) fn run(
    conn: &Connection,
    transaction: &Transaction,
    spent: &mut Duration,
) -> rusqlite::Result<()> {
    let Some(body) = transaction.sqlite_body() else {
        transaction.refuse("its body is for PostgreSQL, and the store is a SQLite file");
        return Ok(());
    };
    if transaction.is_settled() {
        return Ok(());
    }
    transaction.postpone();
    if *spent > transaction.limits().batch {
        return Ok(());
    }
    execute(conn, "SAVEPOINT everstep_transaction")?;
    let began = Instant::now();
    let answer = call(conn, transaction, body);
    *spent += began.elapsed();
    if let Some(error) = store_failure(conn, answer.is_err()) {
        return Err(error);
    }
    if conn.is_autocommit() {
        let rolled_back = "the database has rolled the whole transaction back";
        transaction.settle(answer.err().unwrap_or_else(|| Error::msg(rolled_back)));
        let code = ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK);
        return Err(rusqlite::Error::SqliteFailure(code, None));
    }
    if answer.is_err() {
        execute(conn, "ROLLBACK TO everstep_transaction")?;
    }
    execute(conn, "RELEASE everstep_transaction")?;
    transaction.answer(answer);
    Ok(())
}

fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

/// Calls the body under watch, and says why it has failed.
fn call(conn: &Connection, transaction: &Transaction, body: &SqliteBody) -> Result<Vec<u8>, Error> {
    let limit = transaction.limits().body;
    let watch = Watch::begin(limit);
    let called = catch_unwind(AssertUnwindSafe(|| body(&Tx::new(conn))));
    let watched = watch.end();
    let answer = called.unwrap_or_else(|panic| {
        let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
        Err(Error::attempt_failed(failure))
    });
    let Some(Watched { deadline, stopped, denied }) = watched else {
        return answer;
    };
    if let (Err(_), Some(what)) = (&answer, denied) {
        let text = format!("the transaction `{}` may not {what}", transaction.name());
        return Err(Error::fatal(text));
    }
    if stopped || Instant::now() >= deadline {
        return Err(transaction.timed_out());
    }
    if answer.is_ok() && has_broken_references(conn) {
        let text = "a deferred foreign key is violated at the end of the transaction";
        return Err(Error::msg(text));
    }
    answer
}

/// What a body has failed by, if that is the store's own trouble: it is then no attempt at all.
fn store_failure(conn: &Connection, failed: bool) -> Option<rusqlite::Error> {
    if !failed {
        return None;
    }
    #[expect(unsafe_code, reason = "rusqlite does not show the last code of a connection")]
    // SAFETY: the handle is that of an open connection, used on this thread alone.
    let code = unsafe { ffi::sqlite3_extended_errcode(conn.handle()) };
    let is_ours = matches!(code & 0xFF, ffi::SQLITE_FULL | ffi::SQLITE_IOERR | ffi::SQLITE_NOMEM);
    is_ours.then(|| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
}

/// Whether a foreign key that is checked at the end is violated: it would refuse the whole batch.
fn has_broken_references(conn: &Connection) -> bool {
    let (mut current, mut highest) = (0, 0);
    #[expect(unsafe_code, reason = "rusqlite does not show the status of a connection")]
    // SAFETY: the handle is that of an open connection, used on this thread alone, and both
    // numbers outlive the call.
    let code = unsafe {
        let op = ffi::SQLITE_DBSTATUS_DEFERRED_FKS;
        ffi::sqlite3_db_status(conn.handle(), op, &mut current, &mut highest, 0)
    };
    code == ffi::SQLITE_OK && current != 0
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::{
        commit::{SqliteBody, TransactionBody, TransactionLimits, Write},
        history::{Entry, EntryKind, EntryStatus, EntryValue, decode_entry, encode_payload_prefix},
        run_id::{RunId, RunIds},
        store::{
            Commit, Effect, Fence, NewRun, NewRunner, Outcome, Patch, Put, RunStatus, ShardSet,
            SqliteStore, Store, sqlite::testing::Directory,
        },
        time::Timestamp,
    };

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// A file with a table of the user's and a runner that holds everything.
    struct Shop {
        store: SqliteStore,
        fence: Fence,
        ids: RunIds,
        directory: Directory,
    }

    impl Shop {
        fn new() -> Shop {
            let directory = Directory::new();
            let store = SqliteStore::create(directory.path("app.db")).expect("create");
            store.migrate().expect("migrate");
            let runner =
                NewRunner::new(uuid::Uuid::from_u128(1), "host/1", NOW, Duration::from_secs(10));
            let fence = store.register_runner(&runner).expect("register");
            let taken = store.take_shards(fence, NOW, &ShardSet::of_default_pool(), &[]);
            taken.expect("take_shards");
            let shop = Shop { store, fence, ids: RunIds::new(1), directory };
            let sql = "CREATE TABLE shop (n INTEGER UNIQUE ON CONFLICT ROLLBACK)";
            shop.conn().execute_batch(sql).expect("the user's table");
            shop
        }

        fn conn(&self) -> Connection {
            Connection::open(self.directory.path("app.db")).expect("a connection of the user's")
        }

        fn rows(&self) -> Vec<i64> {
            let conn = self.conn();
            let mut statement = conn.prepare("SELECT n FROM shop ORDER BY n").expect("prepare");
            let rows = statement.query_map([], |row| row.get(0)).expect("query");
            rows.collect::<rusqlite::Result<_>>().expect("rows")
        }

        fn write(&self, writes: Vec<Write>) -> Vec<Outcome> {
            let (fence, now) = (Some(self.fence), NOW);
            let batch = Batch { fence, now, writes };
            self.store.commit(&batch).expect("commit").outcomes
        }

        fn start(&self) -> RunId {
            let id = self.ids.next(NOW);
            let new = NewRun {
                id,
                workflow: "shop".into(),
                version: 1,
                key: None,
                pool: "default".into(),
                available_at: None,
                deadline_at: None,
                tags: Vec::new(),
                trace: None,
                input: Vec::new(),
                parent: None,
                claim: true,
            };
            self.write(vec![Write::Start(Box::new(new))]);
            id
        }

        fn keys(&self, run: RunId) -> Vec<Vec<u8>> {
            let history = self.store.history(run.no(), None, 100).expect("history");
            history.into_iter().map(|put| put.key).collect()
        }
    }

    fn transaction(batch: Duration, body: SqliteBody) -> Transaction {
        let body = TransactionBody::Sqlite(body);
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
        let prefix = encode_payload_prefix(&entry);
        let (key, name) = (b"transaction".to_vec(), "pay".to_owned());
        let limits = TransactionLimits { body: Duration::from_millis(1_000), batch };
        Transaction::new(key, prefix, name, body, limits)
    }

    const LONG: Duration = Duration::from_secs(60);

    /// Inserts this number, then does something else.
    fn inserting(
        n: i64,
        then: impl Fn(&Tx<'_>) -> Result<(), Error> + Send + Sync + 'static,
    ) -> Transaction {
        transaction(
            LONG,
            Arc::new(move |tx| {
                tx.execute("INSERT INTO shop VALUES (?1)", [n])?;
                then(tx)?;
                Ok(vec![0xF6])
            }),
        )
    }

    fn commit(run: RunId, transaction: Option<&Transaction>) -> Write {
        let effects = transaction.cloned().map(Effect::Transaction);
        Write::Commit(Box::new(Commit {
            run: run.no(),
            generation: 1,
            inbox_seq: None,
            results_only: false,
            last_number: 0,
            numbers: 0,
            deletes: Vec::new(),
            puts: vec![Put { key: b"step".to_vec(), value: vec![7] }],
            consumed: Vec::new(),
            state: Vec::new(),
            effects: effects.into_iter().collect(),
            patch: Patch::Keep,
        }))
    }

    const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 100 UNION ALL SELECT i + 1 FROM n) \
                           INSERT INTO shop SELECT i FROM n";

    #[test]
    fn a_body_that_fails_takes_no_other_commit_of_its_batch_along() {
        type Then = fn(&Tx<'_>) -> Result<(), Error>;
        let failing: [(&str, Then); 5] = [
            ("says so", |_| Err(Error::msg("no"))),
            ("panics", |_| panic!("a bug")),
            ("writes for ever", |tx| Ok(tx.execute_batch(ENDLESS)?)),
            ("conflicts, and rolls all back", |tx| {
                Ok(tx.execute_batch("INSERT INTO shop VALUES (1)")?)
            }),
            ("hides that", |tx| {
                _ = tx.execute_batch("INSERT INTO shop VALUES (1)");
                Ok(())
            }),
        ];
        for (what, then) in failing {
            let shop = Shop::new();
            let runs: Vec<RunId> = (0..3).map(|_| shop.start()).collect();
            let good = [inserting(1, |_| Ok(())), inserting(3, |_| Ok(()))];
            let bad = inserting(2, then);
            let outcomes = shop.write(vec![
                commit(runs[0], Some(&good[0])),
                commit(runs[1], Some(&bad)),
                commit(runs[2], Some(&good[1])),
            ]);
            let committed = |outcome: &Outcome| matches!(outcome, Outcome::Committed(_));
            assert!(outcomes.iter().all(committed), "{what}: {outcomes:?}");
            assert_eq!(shop.rows(), [1, 3], "{what}");
            let all = [b"step".to_vec(), b"transaction".to_vec()];
            assert_eq!(shop.keys(runs[0]), all, "{what}");
            assert_eq!(shop.keys(runs[1]), all[..1], "{what}");
            assert_eq!(shop.keys(runs[2]), all, "{what}");
            assert!(matches!(bad.take_answer(), Some(Err(_))), "{what}");
            assert!(matches!(good[1].take_answer(), Some(Ok(_))), "{what}");
        }
    }

    #[test]
    fn a_commit_that_is_refused_runs_no_body() {
        let shop = Shop::new();
        let run = shop.start();
        let pay = inserting(1, |_| Ok(()));
        let mut late = commit(run, Some(&pay));
        if let Write::Commit(commit) = &mut late {
            commit.generation = 2;
        }
        let outcomes = shop.write(vec![late]);
        assert!(matches!(outcomes[0], Outcome::Refused(_)), "{outcomes:?}");
        assert!(pay.take_answer().is_none());
        assert!(shop.rows().is_empty());
    }

    #[test]
    fn when_the_time_of_a_batch_is_spent_the_rest_wait_for_the_next() {
        let shop = Shop::new();
        let runs: Vec<RunId> = (0..2).map(|_| shop.start()).collect();
        let slow = transaction(
            LONG,
            Arc::new(|tx| {
                let endless = ENDLESS.replace("INSERT INTO shop SELECT i", "SELECT count(*)");
                Ok(tx.query_row(&endless, [], |_| Ok(vec![0xF6]))?)
            }),
        );
        let next = transaction(
            Duration::from_millis(1),
            Arc::new(|tx| {
                tx.execute("INSERT INTO shop VALUES (2)", [])?;
                Ok(vec![0xF6])
            }),
        );
        shop.write(vec![commit(runs[0], Some(&slow)), commit(runs[1], Some(&next))]);
        assert!(matches!(slow.take_answer(), Some(Err(_))));
        assert!(next.take_answer().is_none(), "its turn has not come");
        assert!(shop.rows().is_empty());
        shop.write(vec![commit(runs[1], Some(&next))]);
        assert!(matches!(next.take_answer(), Some(Ok(_))));
        assert_eq!(shop.rows(), [2]);
    }

    #[test]
    fn every_table_of_ours_is_protected_and_no_other() {
        let conn = Connection::open_in_memory().expect("a database");
        for statements in super::super::schema::FORMATS.0 {
            conn.execute_batch(statements).expect("tables");
        }
        let sql = "SELECT name FROM sqlite_schema \
                   WHERE name NOT GLOB 'everstep_*' AND name NOT GLOB 'sqlite_*'";
        let has_others = conn.prepare(sql).and_then(|mut it| it.exists([]));
        assert!(!has_others.expect("names"), "all have the prefix");
        assert!(is_ours("everstep_runs") && is_ours("EVERSTEP_Runs"));
        assert!(!is_ours("runs") && !is_ours("sqlite_master") && !is_ours("every"));
    }

    #[test]
    fn the_entry_that_is_stored_has_the_result_of_the_body() {
        let shop = Shop::new();
        let run = shop.start();
        let pay = inserting(1, |_| Ok(()));
        shop.write(vec![commit(run, Some(&pay))]);
        let row = shop.store.run(&crate::store::Target::Id(run)).expect("run");
        assert_eq!(row.expect("it is there").status, RunStatus::Running);
        let stored = shop.store.history(run.no(), Some(b"step"), 1);
        let stored = decode_entry(&stored.expect("history")[0].value).expect("an entry");
        assert_eq!(stored.kind, EntryKind::Transaction);
        assert_eq!(stored.value, EntryValue::Payload(vec![0xF6]));
    }
}
