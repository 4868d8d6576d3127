//! `ctx.transaction`: writes to the user's own tables and the entry are committed together.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use everstep::{
    EntryKind, EntryStatus, FailureKind, RunError, RunStatus, Tx, WorkflowOptions,
    prelude::*,
    rusqlite::{self, Connection},
    testing::{CrashReport, CrashTest, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");

/// A test of this code with the input 7, on a SQLite file.
macro_rules! crash {
    (|$ctx:ident, $input:ident| $code:block) => {
        CrashTest::new(RUN, 7)
            .of(&["transaction"])
            .engine(move |builder| {
                builder.register_fn_with(
                    RUN,
                    WorkflowOptions::new(),
                    |$ctx: Ctx, $input: u32| async move {
                        _ = $input;
                        $code
                    },
                )
            })
            .on_file()
    };
}

/// Adds a row to the user's table, which is made on the way.
fn add(tx: &Tx<'_>, what: &str) -> Result<i64> {
    tx.execute_batch("CREATE TABLE IF NOT EXISTS shop_log (what TEXT NOT NULL)")?;
    tx.execute("INSERT INTO shop_log VALUES (?1)", [what])?;
    Ok(tx.last_insert_rowid())
}

/// What is in the user's table.
fn log(tx: &Tx<'_>) -> Result<Vec<String>> {
    let mut statement = tx.prepare("SELECT what FROM shop_log ORDER BY rowid")?;
    let rows = statement.query_map([], |row| row.get(0))?;
    Ok(rows.collect::<rusqlite::Result<_>>()?)
}

fn output(report: &CrashReport) -> Json {
    report.expected.output.clone().expect("it completes")
}

/// One line for each, so that a run of the tests shows how much was tried.
fn tried(what: &str, report: &CrashReport) {
    println!("crash points: {what}, SQLite: {}", report.points);
    assert!(report.points > 0, "{what}: no crash point was tried");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_happens_exactly_once_wherever_the_store_dies() {
    let report = crash!(|ctx, n| {
        let first = ctx.transaction("first", |tx| add(tx, "first")).await?;
        let between = ctx.step("between", async || Ok(n)).await?;
        let last = ctx.transaction("last", |tx| add(tx, "last")).await?;
        let log = ctx.transaction("log", log).await?;
        Ok(json!([first, between, last, log]))
    })
    .crashes(2)
    .await;
    tried("transaction", &report);
    assert_eq!(output(&report), json!([1, 7, 2, ["first", "last"]]));
    assert!(report.points > 200, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failing_transaction_leaves_nothing_and_is_tried_again_wherever_the_store_dies() {
    let report = crash!(|ctx, _n| {
        ctx.transaction("tries", |tx| {
            tx.execute_batch("CREATE TABLE IF NOT EXISTS tries (n INTEGER)")?;
            Ok(())
        })
        .await?;
        // What fails leaves no row, so the count of failures is not in the table: time is.
        let mut failed = Vec::new();
        for name in ["fatal", "panic", "exhausted"] {
            let outcome = ctx
                .transaction(name, move |tx| {
                    tx.execute("INSERT INTO tries VALUES (1)", [])?;
                    match name {
                        "fatal" => Err::<(), _>(Error::fatal("never")),
                        "panic" => panic!("a bug"),
                        _ => Err(Error::msg("not yet")),
                    }
                })
                .retry(Retry::fixed(3, minutes(1)))
                .outcome()
                .await?;
            let failure = outcome.failure().cloned().expect("it fails");
            failed.push(json!([name, format!("{:?}", failure.kind), failure.attempts]));
        }
        let left: u32 = ctx
            .transaction("left", |tx| {
                Ok(tx.query_row("SELECT count(*) FROM tries", [], |row| row.get(0))?)
            })
            .await?;
        Ok(json!([failed, left]))
    })
    .await;
    tried("transaction that fails", &report);
    let failed =
        json!([["fatal", "Fatal", 1], ["panic", "Exhausted", 3], ["exhausted", "Exhausted", 3]]);
    assert_eq!(output(&report), json!([failed, 0]));
}

#[tokio::test(flavor = "multi_thread")]
async fn transactions_in_a_join_and_a_race_happen_once_wherever_the_store_dies() {
    let report = crash!(|ctx, _n| {
        let (a, b) = ctx
            .join(
                "both",
                (
                    ctx.transaction("a", |tx| add(tx, "a")),
                    branch("b", async |ctx: Ctx| ctx.transaction("b", |tx| add(tx, "b")).await),
                ),
            )
            .await?;
        let won = ctx
            .race(
                "first",
                (ctx.transaction("quick", |tx| add(tx, "quick")), ctx.sleep("slow", hours(1))),
            )
            .await?;
        let mut log = ctx.transaction("log", log).await?;
        log.sort();
        let won = matches!(won, First2::A(_));
        Ok(json!([a.min(b), a.max(b), won, log]))
    })
    .await;
    tried("transaction in a join and a race", &report);
    assert_eq!(output(&report), json!([1, 2, true, ["a", "b", "quick"]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_is_rolled_back_once_wherever_the_store_dies() {
    let report = crash!(|ctx, _n| {
        // The rollback is a step; to be sure that it sees the row, it gets what was recorded.
        let row = ctx
            .transaction("book", |tx| add(tx, "booked"))
            .rollback(async |undo, row| {
                undo.get::<everstep::testing::Ledger>().ran(format!("rollback of {row}"));
                Ok(())
            })
            .await?;
        ctx.step("fail", async move || Err::<Json, _>(Error::fatal(format!("after {row}")))).await
    })
    .check(|ending, ledger| match ending.status {
        RunStatus::Failed if ledger.count("rollback of 1") > 0 => Ok(()),
        _ => Err(format!("{ending:?}")),
    })
    .await;
    tried("transaction with a rollback", &report);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_survives_a_power_cut_at_every_operation_on_the_files() {
    #[workflow]
    async fn count(ctx: Ctx, _: ()) -> Result<Vec<String>> {
        ctx.transaction("a", |tx| add(tx, "a")).await?;
        ctx.sleep("nap", hours(1)).await?;
        ctx.transaction("b", |tx| add(tx, "b")).await?;
        ctx.transaction("log", log).await
    }
    let report =
        everstep::testing::crash_everywhere(count, ()).of(&["transaction"]).power_cuts().await;
    println!("crash points: transaction, power cuts: {}", report.points);
    assert_eq!(output(&report), json!(["a", "b"]));
    assert!(report.points > 20, "{report}");
}

/// An engine on a new file, with this workflow.
struct Shop {
    engine: Engine,
    path: std::path::PathBuf,
    _dir: tempfile::TempDir,
}

/// A body has the time that it needs on a loaded machine. A transaction gets a quarter of the lease at most.
fn patient(settings: &mut everstep::Settings) {
    settings.lease = Duration::from_secs(120);
    settings.transaction_time_max = Duration::from_secs(20);
}

impl Shop {
    async fn open<F, R>(code: F) -> Shop
    where
        F: Fn(Ctx, u32) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Json>> + 'static,
    {
        Shop::with(code, patient).await
    }

    async fn with<F, R>(code: F, set: impl FnOnce(&mut everstep::Settings)) -> Shop
    where
        F: Fn(Ctx, u32) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Json>> + 'static,
    {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let engine = Engine::open(&path)
            .clock(VirtualClock::new())
            .settings(set)
            .register_fn(RUN, code)
            .start()
            .await
            .unwrap();
        let shop = Shop { engine, path, _dir: dir };
        let tables = "CREATE TABLE shop_log (what TEXT NOT NULL);
             CREATE TABLE shop_items (id INTEGER PRIMARY KEY, name TEXT UNIQUE ON CONFLICT ROLLBACK);
             CREATE TABLE shop_parts (item INTEGER NOT NULL REFERENCES shop_items
                 DEFERRABLE INITIALLY DEFERRED);";
        shop.conn().execute_batch(tables).unwrap();
        shop
    }

    /// A connection of the user's own.
    fn conn(&self) -> Connection {
        Connection::open(&self.path).unwrap()
    }

    fn rows(&self, table: &str) -> u32 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.conn().query_row(&sql, [], |row| row.get(0)).unwrap()
    }

    async fn run(&self) -> RunHandle<Json> {
        self.engine.client().start(RUN, 7).await.unwrap()
    }

    /// Runs it to a failure, and gives that.
    async fn failure(&self) -> everstep::Failure {
        match self.run().await.result().await {
            Err(RunError::Failed { failure, .. }) => *failure,
            other => panic!("it should fail: {other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_fails_twice_is_recorded_with_both_errors() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let shop = Shop::open(move |ctx, _| {
        let calls = counted.clone();
        async move {
            let n = ctx
                .transaction("add", move |tx| {
                    let n = calls.fetch_add(1, Ordering::SeqCst) + 1;
                    add(tx, "row")?;
                    if n < 3 {
                        return Err(Error::msg(format!("attempt {n}")));
                    }
                    Ok(n)
                })
                .retry(Retry::fixed(5, minutes(1)))
                .await?;
            Ok(json!(n))
        }
    })
    .await;
    let run = shop.run().await;
    assert_eq!(run.result().await.unwrap(), json!(3));
    assert_eq!(shop.rows("shop_log"), 1);
    let history = run.history().await.unwrap();
    let entry = &history[0];
    assert_eq!(
        (entry.kind, entry.status, entry.attempts),
        (EntryKind::Transaction, EntryStatus::Completed, 3)
    );
    let errors: Vec<_> = entry.errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(errors, ["attempt 1", "attempt 2"]);
    shop.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tables_of_everstep_cannot_be_written_and_the_error_names_the_table() {
    for (sql, word) in [
        ("UPDATE everstep_runs SET status = 5", "`everstep_runs`"),
        ("DELETE FROM everstep_history", "`everstep_history`"),
        ("INSERT INTO everstep_inbox (run, seq) VALUES (1, 1)", "`everstep_inbox`"),
        ("DROP TABLE everstep_keys", "`everstep_keys`"),
        ("ALTER TABLE everstep_runs ADD COLUMN mine", "`everstep_runs`"),
        ("CREATE INDEX mine ON everstep_runs (id)", "`everstep_runs`"),
        (
            "CREATE TRIGGER mine AFTER INSERT ON shop_log BEGIN DELETE FROM everstep_runs; END; \
             INSERT INTO shop_log VALUES ('x')",
            "`everstep_runs`",
        ),
        ("COMMIT", "transaction"),
        ("ROLLBACK", "transaction"),
        ("BEGIN", "transaction"),
        ("RELEASE everstep_transaction", "savepoint"),
        ("ROLLBACK TO everstep_transaction", "savepoint"),
        ("PRAGMA user_version = 99", "`user_version`"),
        ("ATTACH ':memory:' AS other", "attach"),
        ("CREATE TEMP TABLE everstep_runs (a)", "temporary"),
    ] {
        let shop = Shop::open(move |ctx, _| async move {
            ctx.transaction("bad", move |tx| {
                add(tx, "before")?;
                Ok(tx.execute_batch(sql)?)
            })
            .await?;
            Ok(json!(null))
        })
        .await;
        let failure = shop.failure().await;
        assert_eq!((failure.kind, failure.attempts), (FailureKind::Fatal, 1), "{sql}");
        let text = failure.full();
        assert!(text.contains(word) && text.contains("bad"), "{sql}: {text}");
        assert_eq!(shop.rows("shop_log"), 0, "{sql}");
        shop.engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_allowed_works() {
    let shop = Shop::open(|ctx, _| async move {
        let found = ctx
            .transaction("all", |tx| {
                tx.execute_batch(
                    "CREATE TABLE shop_new (a); CREATE INDEX shop_by_a ON shop_new (a);
                     SAVEPOINT mine; INSERT INTO shop_new VALUES (1); ROLLBACK TO mine;
                     INSERT INTO shop_new VALUES (2); RELEASE mine; SAVEPOINT left_open;",
                )?;
                let sum: u32 = tx.query_row("SELECT sum(a) FROM shop_new", [], |row| row.get(0))?;
                let runs: u32 =
                    tx.query_row("SELECT count(*) FROM everstep_runs", [], |row| row.get(0))?;
                let columns: u32 = tx.query_row(
                    "SELECT count(*) FROM pragma_table_info('shop_new')",
                    [],
                    |row| row.get(0),
                )?;
                Ok((sum, runs, columns))
            })
            .await?;
        Ok(json!(found))
    })
    .await;
    assert_eq!(shop.run().await.result().await.unwrap(), json!([2, 1, 1]));
    assert_eq!(shop.rows("shop_new"), 1);
    shop.engine.shutdown().await;
}

const ENDLESS: &str = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n)";

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_its_time_is_a_failed_attempt_whether_it_reads_or_writes_or_does_neither() {
    for what in ["reads", "writes", "neither"] {
        let shop = Shop::with(
            move |ctx, _| async move {
                ctx.transaction("long", move |tx| {
                    add(tx, "before")?;
                    match what {
                        "reads" => {
                            tx.query_row(&format!("{ENDLESS} SELECT count(*) FROM n"), [], |_| {
                                Ok(())
                            })?
                        }
                        // SQLite rolls back the whole batch when it stops a statement that writes.
                        "writes" => tx.execute_batch(&format!(
                            "{ENDLESS} INSERT INTO shop_log SELECT i FROM n"
                        ))?,
                        _ => {
                            let begun = std::time::Instant::now();
                            while begun.elapsed() < Duration::from_millis(20) {
                                std::hint::spin_loop();
                            }
                        }
                    }
                    Ok(())
                })
                .retry(Retry::fixed(2, minutes(1)))
                .await?;
                Ok(json!(null))
            },
            |s| s.transaction_time_max = Duration::from_millis(20),
        )
        .await;
        let failure = shop.failure().await;
        assert_eq!(failure.kind, FailureKind::Exhausted, "{what}");
        assert_eq!(failure.attempts, 2, "{what}");
        assert!(failure.full().contains("transaction_time_max"), "{failure:?}");
        assert_eq!(shop.rows("shop_log"), 0, "{what}");
        shop.engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_conflict_that_rolls_everything_back_is_a_failed_attempt() {
    let shop = Shop::open(|ctx, _| async move {
        ctx.transaction("one", |tx| {
            Ok(tx.execute("INSERT INTO shop_items (name) VALUES ('a')", [])?)
        })
        .await?;
        let twice = ctx
            .transaction("two", |tx| {
                add(tx, "before")?;
                Ok(tx.execute("INSERT INTO shop_items (name) VALUES ('a')", [])?)
            })
            .retry(Retry::fixed(2, minutes(1)))
            .outcome()
            .await?;
        let why = twice.failure().expect("it fails").full();
        Ok(json!(why))
    })
    .await;
    let why = shop.run().await.result().await.unwrap();
    assert!(why.as_str().unwrap().contains("UNIQUE"), "{why}");
    assert_eq!((shop.rows("shop_log"), shop.rows("shop_items")), (0, 1));
    shop.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_foreign_key_that_is_checked_at_the_end_fails_the_transaction_and_not_the_batch() {
    let shop = Shop::open(|ctx, _| async move {
        let bad = ctx
            .transaction("part", |tx| Ok(tx.execute("INSERT INTO shop_parts VALUES (99)", [])?))
            .retry(Retry::never())
            .outcome()
            .await?;
        let why = bad.failure().expect("it fails").full();
        Ok(json!(why))
    })
    .await;
    let why = shop.run().await.result().await.unwrap();
    assert!(why.as_str().unwrap().contains("foreign key"), "{why}");
    assert_eq!(shop.rows("shop_parts"), 0);
    shop.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_disk_that_is_full_is_no_attempt() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let calls = Arc::new(AtomicU32::new(0));
    let store = Arc::new(everstep::store::SqliteStore::create(&path).unwrap());
    let engine = Engine::on(store.clone())
        .settings(|s| s.store_retry = Duration::from_millis(1))
        .provide(calls.clone())
        .register_fn(RUN, |ctx: Ctx, _| async move {
            let calls = ctx.get::<Arc<AtomicU32>>().clone();
            ctx.transaction("big", move |tx| {
                calls.fetch_add(1, Ordering::SeqCst);
                tx.execute_batch("CREATE TABLE IF NOT EXISTS shop_big (b BLOB)")?;
                Ok(tx.execute("INSERT INTO shop_big VALUES (zeroblob(2000000))", [])?)
            })
            .retry(Retry::never())
            .await?;
            Ok(json!("made"))
        })
        .start()
        .await
        .unwrap();
    store.set_max_page_count(100).unwrap();
    let run = engine.client().start(RUN, 7).await.unwrap();
    // The batch is sent again and again, and nothing is recorded.
    scenario::until("the disk to be found full", async || {
        (calls.load(Ordering::SeqCst) > 3).then_some(())
    })
    .await;
    assert!(run.history().await.unwrap().is_empty());
    store.set_max_page_count(1_000_000).unwrap();
    assert_eq!(run.result().await.unwrap(), json!("made"));
    assert_eq!(run.history().await.unwrap()[0].attempts, 1);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_without_sql_says_so() {
    let engine = everstep::testing::engine()
        .register_fn(RUN, |ctx: Ctx, _| async move {
            ctx.transaction("add", |tx| add(tx, "row")).await?;
            Ok(json!(null))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, 7).await.unwrap();
    let error = run.result().await.unwrap_err();
    let failure = error.failure().unwrap();
    assert_eq!(failure.kind, FailureKind::Fatal);
    assert!(failure.full().contains("memory store"), "{error}");
    engine.shutdown().await;
}
