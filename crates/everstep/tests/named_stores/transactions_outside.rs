//! Starts and messages as part of the user's own transaction, and transactions from outside: a
//! cancel, many runs at once, a process that is killed.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use everstep::{
    ClientError, EngineBuilder, RunStatus, Sent,
    prelude::*,
    rusqlite::{Connection, TransactionBehavior::Immediate},
    store::StoreError,
    testing::{CrashPoint, CrashingStore, VirtualClock},
};
use scenario::{until, until_status};

const SHIP: Workflow<u32, u32> = Workflow::new("ship");
const PAY: Workflow<u32, u32> = Workflow::new("pay");

fn pay(tx: &everstep::Tx<'_>, n: u32) -> Result<u32> {
    tx.execute("INSERT INTO shop_paid (n) VALUES (?1)", [n])?;
    Ok(n)
}

fn builder(path: &Path) -> EngineBuilder {
    Engine::open(path)
        .register_fn(SHIP, |ctx, order| async move {
            let parcel: u32 = ctx.listen("packed").await?;
            Ok(order + parcel)
        })
        .register_fn(PAY, |ctx, n| async move {
            for _ in 0..5 {
                ctx.transaction("pay", move |tx| pay(tx, n)).await?;
            }
            Ok(n)
        })
}

/// A file with a table of the user's.
struct Shop {
    path: PathBuf,
    _dir: tempfile::TempDir,
}

impl Shop {
    fn new() -> Shop {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        Shop { path, _dir: dir }
    }

    fn conn(&self) -> Connection {
        let conn = Connection::open(&self.path).unwrap();
        conn.busy_timeout(Duration::from_secs(30)).unwrap();
        conn.execute_batch("CREATE TABLE IF NOT EXISTS shop_paid (n INTEGER)").unwrap();
        conn
    }

    fn paid(&self) -> u32 {
        let sql = "SELECT count(*) FROM shop_paid";
        self.conn().query_row(sql, [], |row| row.get(0)).unwrap()
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_started_in_a_transaction_is_there_when_that_is_committed() {
    let shop = Shop::new();
    let engine = builder(&shop.path)
        .settings(|s| s.safety_poll = Duration::from_secs(600))
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let mut conn = shop.conn();
    let tx = conn.transaction_with_behavior(Immediate).unwrap();
    tx.execute("INSERT INTO shop_paid VALUES (1)", []).unwrap();
    let run = client.start_in(&tx, SHIP, 40).unwrap();
    assert!(!run.attached());
    assert_eq!(client.send_in(&tx, run.id(), "packed", &2).unwrap(), Sent::Delivered);
    let unseen = client.get(run.id()).await.unwrap();
    assert!(unseen.is_none(), "nobody sees it before the commit");
    tx.commit().unwrap();
    run.wake();
    assert_eq!(run.result().await.unwrap(), 42);
    assert_eq!(shop.paid(), 1);
    engine.shutdown().await;
}

/// With `NORMAL` the commit of the user's transaction is not synced: a run whose start was confirmed
/// was lost with the power.
#[tokio::test(flavor = "multi_thread")]
async fn a_connection_whose_commits_are_not_synced_starts_and_sends_nothing() {
    let shop = Shop::new();
    let engine = builder(&shop.path).start().await.unwrap();
    let client = engine.client();
    let waiting = client.start(SHIP, 1).await.unwrap();
    until_status(&waiting, RunStatus::Sleeping).await;
    let mut conn = shop.conn();
    for (level, is_durable) in [("OFF", false), ("NORMAL", false), ("FULL", true), ("EXTRA", true)]
    {
        let sql = format!("PRAGMA synchronous = {level}");
        conn.execute_batch(&sql).unwrap();
        let tx = conn.transaction_with_behavior(Immediate).unwrap();
        tx.execute("INSERT INTO shop_paid VALUES (1)", []).unwrap();
        let started = client.start(SHIP, 1).key(level).within(&tx);
        if is_durable {
            assert!(!started.unwrap().attached());
        } else {
            let sent = client.send_in(&tx, waiting.id(), "packed", &1);
            for refused in [started.map(drop), sent.map(drop)] {
                let ClientError::Store(error) = refused.unwrap_err() else {
                    panic!("the store refuses it");
                };
                assert!(matches!(*error, StoreError::NotDurable { .. }), "{error}");
                assert!(error.to_string().contains(&sql), "{error}");
            }
        }
        // The transaction of the user goes on.
        tx.commit().unwrap();
    }
    assert_eq!(shop.paid(), 4);
    assert_eq!(client.count().await.unwrap(), 3);
    assert_eq!(waiting.status().await.unwrap(), RunStatus::Sleeping);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_that_is_rolled_back_leaves_nothing() {
    let shop = Shop::new();
    let engine = builder(&shop.path).start().await.unwrap();
    let client = engine.client();
    let waiting = client.start(SHIP, 1).key("waiting").await.unwrap();
    until_status(&waiting, RunStatus::Sleeping).await;
    let mut conn = shop.conn();
    let tx = conn.transaction_with_behavior(Immediate).unwrap();
    let gone = client.start(SHIP, 1).key("order-1").within(&tx).unwrap();
    client.send_in(&tx, waiting.id(), "packed", &1).unwrap();
    tx.rollback().unwrap();
    gone.wake();
    assert!(client.get(gone.id()).await.unwrap().is_none());
    assert_eq!(waiting.info().await.unwrap().status, RunStatus::Sleeping);
    // The key is free, and the number of the message is given again.
    let run = client.start(SHIP, 5).key("order-1").await.unwrap();
    assert!(!run.attached());
    for run in [&run, &waiting] {
        run.send("packed", &10).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), 15);
    assert_eq!(waiting.result().await.unwrap(), 11);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn keys_dedupes_and_receipts_are_as_honest_as_elsewhere() {
    let shop = Shop::new();
    let engine = builder(&shop.path).start().await.unwrap();
    let client = engine.client();
    let first = client.start(SHIP, 1).key("order-1").await.unwrap();
    let ended = client.start(PAY, 1);
    shop.conn();
    let ended = ended.await.unwrap();
    ended.result().await.unwrap();
    let mut conn = shop.conn();
    let tx = conn.transaction_with_behavior(Immediate).unwrap();
    let again = client.start(SHIP, 2).key("order-1").within(&tx).unwrap();
    assert!(again.attached() && again.input_differs());
    assert_eq!(again.id(), first.id());
    let new = client.start(SHIP, 2).key("order-2").within(&tx).unwrap();
    let twice = client.start(SHIP, 2).key("order-2").within(&tx).unwrap();
    assert_eq!((new.id(), twice.attached()), (twice.id(), true));
    let send = || client.send(first.id(), "packed", &1).dedupe("once");
    assert_eq!(send().within(&tx).unwrap(), Sent::Delivered);
    assert_eq!(send().within(&tx).unwrap(), Sent::Duplicate);
    let error = client.send_in(&tx, ended.id(), "packed", &1).unwrap_err();
    assert!(matches!(error, ClientError::Finished { .. }), "{error}");
    let error = client.send_in(&tx, ("ship", "nobody"), "packed", &1).unwrap_err();
    assert!(matches!(error, ClientError::UnknownRun { .. }), "{error}");
    tx.commit().unwrap();
    first.wake();
    assert_eq!(send().await.unwrap(), Sent::Duplicate);
    assert_eq!(first.result().await.unwrap(), 2);
    new.send("packed", &1).await.unwrap();
    assert_eq!(new.result().await.unwrap(), 3);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_on_another_file_is_refused() {
    let shop = Shop::new();
    let engine = builder(&shop.path).start().await.unwrap();
    let client = engine.client();
    let other = tempfile::tempdir().unwrap();
    let other = other.path().join("other.db");
    for mut conn in [Connection::open(&other).unwrap(), Connection::open_in_memory().unwrap()] {
        let tx = conn.transaction().unwrap();
        let error = client.start_in(&tx, SHIP, 1).unwrap_err();
        let cause = std::error::Error::source(&error).unwrap().to_string();
        assert!(cause.contains("app.db"), "{cause}");
        tx.commit().unwrap();
    }
    engine.shutdown().await;
    let engine = everstep::testing::engine().start().await.unwrap();
    let mut conn = shop.conn();
    let tx = conn.transaction().unwrap();
    let error = engine.client().start_in(&tx, SHIP, 1).unwrap_err();
    assert!(matches!(error, ClientError::Store(_)), "{error}");
    engine.shutdown().await;
}

/// Nobody tells the engine of a commit that is not its own, and it must not take a minute.
#[tokio::test(flavor = "multi_thread")]
async fn without_a_word_the_engine_finds_a_start_and_a_message_at_its_next_look() {
    let shop = Shop::new();
    let poll = Duration::from_millis(200);
    let engine = builder(&shop.path).settings(|s| s.safety_poll = poll).start().await.unwrap();
    let client = engine.client();
    let mut conn = shop.conn();
    for n in 0..5 {
        let begun = Instant::now();
        let tx = conn.transaction_with_behavior(Immediate).unwrap();
        let run = client.start_in(&tx, SHIP, n).unwrap();
        tx.commit().unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        let found = begun.elapsed();
        // It is in memory now, and the writer remembers its row: the message must get through.
        let tx = conn.transaction_with_behavior(Immediate).unwrap();
        client.send_in(&tx, run.id(), "packed", &1).unwrap();
        tx.commit().unwrap();
        assert_eq!(run.result().await.unwrap(), n + 1);
        println!("found after {found:?}, done after {:?}", begun.elapsed());
        assert!(begun.elapsed() < 50 * poll, "it took {:?}", begun.elapsed());
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_before_the_commit_stops_the_transaction_and_one_after_it_does_not() {
    // The writes: two of the engine, the start, then the commit with the transaction.
    for (write, expected) in [(4, 0), (5, 1)] {
        let shop = Shop::new();
        let store = everstep::store::SqliteStore::create(&shop.path).unwrap();
        let store = CrashingStore::new(store, CrashPoint::Before(u64::MAX));
        let store = store.meddle_before(write, move |store| {
            use everstep::store::{Batch, Control, Filter, Store, Write};
            let rows = store.list(&Filter::default(), None, 1).unwrap();
            let target = everstep::Target::Id(rows[0].id);
            let cancel = Write::Control(target, Control::Cancel { rollback: false });
            let batch = Batch { fence: None, now: rows[0].created_at, writes: vec![cancel] };
            store.commit(&batch).unwrap();
        });
        let engine = Engine::on(std::sync::Arc::new(store))
            .clock(VirtualClock::new())
            .settings(|s| s.threads = 1)
            .register_fn(PAY, |ctx, n| async move {
                ctx.transaction("pay", move |tx| {
                    tx.execute_batch("CREATE TABLE shop_paid (n)")?;
                    pay(tx, n)
                })
                .await?;
                ctx.step("after", async || Ok(n)).await
            })
            .start()
            .await
            .unwrap();
        let run = engine.client().start(PAY, 1).await.unwrap();
        let ended = run.result().await;
        assert!(matches!(ended, Err(everstep::RunError::Cancelled { .. })), "{ended:?}");
        let conn = Connection::open(&shop.path).unwrap();
        let sql = "SELECT count(*) FROM sqlite_schema WHERE name = 'shop_paid'";
        let made: u32 = conn.query_row(sql, [], |row| row.get(0)).unwrap();
        assert_eq!(made, expected, "a cancel before write {write}");
        assert_eq!(run.history().await.unwrap().len(), expected as usize);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_at_once_pay_once_each_although_some_bodies_take_the_batch_down() {
    let shop = Shop::new();
    const MANY: Workflow<u32, u32> = Workflow::new("many");
    let engine = Engine::open(&shop.path)
        .register_fn(MANY, |ctx, n| async move {
            ctx.transaction("pay", move |tx| pay(tx, n)).await?;
            let failed = ctx
                .transaction("conflict", move |tx| {
                    pay(tx, n)?;
                    // Rolls back the whole batch, of all runs in it.
                    if n % 7 == 0 {
                        tx.execute("INSERT OR ROLLBACK INTO shop_once VALUES (1)", [])?;
                    }
                    Ok(())
                })
                .retry(Retry::never())
                .outcome()
                .await?;
            Ok(u32::from(failed.failure().is_some()))
        })
        .start()
        .await
        .unwrap();
    let sql = "CREATE TABLE shop_once (n UNIQUE); INSERT INTO shop_once VALUES (1)";
    shop.conn().execute_batch(sql).unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..200 {
        runs.push(client.start(MANY, n).await.unwrap());
    }
    let mut failed = 0;
    for run in runs {
        failed += run.result().await.unwrap();
    }
    assert_eq!(failed, 29, "every seventh of 200");
    assert_eq!(shop.paid(), 400 - failed);
    engine.shutdown().await;
}

const CHILD: &str = "EVERSTEP_TEST_KILLED_PROCESS";

/// The second process is killed while it pays; the first goes on with its runs.
#[cfg(unix)]
#[test]
fn a_process_that_is_killed_while_it_pays_has_paid_once() {
    let name = "a_process_that_is_killed_while_it_pays_has_paid_once";
    if let Some(path) = std::env::var_os(CHILD) {
        return scenario::runtime().block_on(async move {
            let engine = builder(Path::new(&path)).start().await.unwrap();
            for n in 0..1_000 {
                let key = format!("order-{n}");
                engine.client().start(PAY, n).key(key).await.unwrap();
            }
            std::future::pending::<()>().await;
        });
    }
    let shop = Shop::new();
    scenario::runtime().block_on(async {
        // Makes the file.
        builder(&shop.path).start().await.unwrap().shutdown().await;
        shop.conn();
        for kill in 1..=3u32 {
            let mut child =
                scenario::second_process(module_path!(), name, CHILD, shop.path.to_str().unwrap());
            let enough = shop.paid() + 40 * kill;
            until("some payments", async || (shop.paid() >= enough).then_some(())).await;
            child.kill().unwrap();
            child.wait().unwrap();
        }
        let engine = builder(&shop.path).start().await.unwrap();
        let client = engine.client();
        let started = client.count().await.unwrap();
        until("all runs to end", async || {
            let done = client.count().status(RunStatus::Completed).await.unwrap();
            (done == started).then_some(())
        })
        .await;
        assert!(started > 0);
        assert_eq!(u64::from(shop.paid()), 5 * started);
        println!("3 kills, {started} runs, each has paid five times");
        engine.shutdown().await;
    });
}
