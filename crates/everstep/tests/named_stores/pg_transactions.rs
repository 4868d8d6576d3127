//! `ctx.pg_transaction`: writes to the user's own tables in PostgreSQL and the entry are committed
//! together.
#![cfg(feature = "postgres")]
#![allow(clippy::unwrap_used)]

use crate::pg_shop;
use crate::scenario;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use everstep::{
    EntryKind, EntryStatus, FailureKind, RunError,
    prelude::*,
    testing::{CrashPoint, CrashingStore, VirtualClock},
    tokio_postgres::Transaction,
};
use pg_shop::{Shop, add};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");

/// An engine in the schema of a shop, with this workflow.
struct Open {
    engine: Engine,
    shop: Shop,
}

/// A body has the time that it needs on a loaded machine. A transaction gets a quarter of the lease at most.
fn patient(settings: &mut everstep::Settings) {
    settings.lease = Duration::from_secs(120);
    settings.transaction_time_max = Duration::from_secs(20);
}

impl Open {
    async fn with<F, R>(code: F, set: impl FnOnce(&mut everstep::Settings)) -> Open
    where
        F: Fn(Ctx, Shop) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Json>> + 'static,
    {
        let shop = Shop::new().await;
        let given = shop.clone();
        let engine = Engine::on(Arc::new(shop.store()))
            .clock(VirtualClock::new())
            .settings(set)
            .register_fn(RUN, move |ctx: Ctx, _| code(ctx, given.clone()))
            .start()
            .await
            .unwrap();
        Open { engine, shop }
    }

    async fn new<F, R>(code: F) -> Open
    where
        F: Fn(Ctx, Shop) -> R + Send + Sync + 'static,
        R: Future<Output = Result<Json>> + 'static,
    {
        Open::with(code, patient).await
    }

    async fn run(&self) -> everstep::RunHandle<Json> {
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

/// The store dies before and after every write in turn, and a second engine goes on.
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_happens_exactly_once_wherever_the_store_dies() {
    async fn code(ctx: Ctx, shop: Shop) -> Result<Json> {
        let first = {
            let shop = shop.clone();
            ctx.pg_transaction("first", async move |tx| add(tx, &shop, "first").await).await?
        };
        let (a, b) = {
            let (one, two) = (shop.clone(), shop.clone());
            ctx.join(
                "both",
                (
                    ctx.pg_transaction("a", async move |tx| add(tx, &one, "a").await),
                    ctx.pg_transaction("b", async move |tx| add(tx, &two, "b").await),
                ),
            )
            .await?
        };
        ctx.sleep("nap", hours(1)).await?;
        let failed = {
            let shop = shop.clone();
            ctx.pg_transaction("fails", async move |tx| {
                add(tx, &shop, "never").await?;
                Err::<(), _>(Error::msg("not yet"))
            })
            .retry(Retry::fixed(2, minutes(1)))
            .outcome()
            .await?
        };
        let last = {
            let shop = shop.clone();
            ctx.pg_transaction("last", async move |tx| add(tx, &shop, "last").await).await?
        };
        let attempts = failed.failure().expect("it fails").attempts;
        Ok(json!([first, a.min(b), a.max(b), attempts, last]))
    }

    let mut points = 0;
    for write in 1.. {
        let mut has_died = false;
        for point in [CrashPoint::Before(write), CrashPoint::After(write)] {
            let shop = Shop::new().await;
            let life = async |store: Arc<CrashingStore<_>>, clock: Arc<VirtualClock>| {
                let given = shop.clone();
                let engine = Engine::on(store.clone())
                    .clock(clock)
                    .settings(|s| {
                        patient(s);
                        s.threads = 1;
                        s.shutdown_limit = Duration::from_secs(2);
                    })
                    .register_fn(RUN, move |ctx: Ctx, _| code(ctx, given.clone()))
                    .start()
                    .await
                    .ok()?;
                let start = engine.client().start(RUN, 7).key("once").await;
                let output = match start {
                    Ok(run) => run.result().await.ok(),
                    Err(_) => None,
                };
                engine.shutdown().await;
                output
            };
            let clock = VirtualClock::new();
            let store = Arc::new(CrashingStore::new(shop.store(), point));
            let mut output = life(store.clone(), clock.clone()).await;
            if store.is_dead() {
                (has_died, points) = (true, points + 1);
                use everstep::Clock;
                let later = VirtualClock::at(clock.now() + hours(1));
                let store = Arc::new(CrashingStore::counting(shop.store()));
                output = life(store, later).await;
            }
            assert_eq!(output, Some(json!([1, 2, 3, 2, 4])), "{point:?}");
            let mut log = shop.log().await;
            log[1..3].sort();
            assert_eq!(log, ["first", "a", "b", "last"], "{point:?}");
        }
        if !has_died {
            break;
        }
    }
    println!("crash points: transaction, PostgreSQL: {points}");
    assert!(points > 15, "{points}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_fails_twice_is_recorded_with_both_errors() {
    let calls = Arc::new(AtomicU32::new(0));
    let counted = calls.clone();
    let open = Open::new(move |ctx, shop| {
        let calls = counted.clone();
        async move {
            let n = ctx
                .pg_transaction("add", async move |tx| {
                    let n = calls.fetch_add(1, Ordering::SeqCst) + 1;
                    add(tx, &shop, "row").await?;
                    match n {
                        1 => Err(Error::msg("attempt 1")),
                        2 => panic!("attempt 2"),
                        _ => Ok(n),
                    }
                })
                .retry(Retry::fixed(5, minutes(1)))
                .await?;
            Ok(json!(n))
        }
    })
    .await;
    let run = open.run().await;
    assert_eq!(run.result().await.unwrap(), json!(3));
    assert_eq!(open.shop.log().await, ["row"]);
    let history = run.history().await.unwrap();
    let entry = &history[0];
    assert_eq!(
        (entry.kind, entry.status, entry.attempts),
        (EntryKind::Transaction, EntryStatus::Completed, 3)
    );
    let errors: Vec<_> = entry.errors.iter().map(|e| e.message.as_str()).collect();
    assert_eq!(errors[0], "attempt 1");
    assert!(errors[1].contains("attempt 2"), "{errors:?}");
    open.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_over_its_time_is_a_failed_attempt_whether_it_asks_or_waits_or_does_neither() {
    for what in ["asks", "waits", "neither"] {
        let open = Open::with(
            move |ctx, shop| async move {
                ctx.pg_transaction("long", async move |tx| {
                    add(tx, &shop, "before").await?;
                    match what {
                        "asks" => _ = tx.query_one("SELECT pg_sleep(30)", &[]).await?,
                        "waits" => std::future::pending().await,
                        _ => std::thread::sleep(Duration::from_millis(60)),
                    }
                    Ok(())
                })
                .retry(Retry::fixed(2, minutes(1)))
                .await?;
                Ok(json!(null))
            },
            |s| s.transaction_time_max = Duration::from_millis(50),
        )
        .await;
        let failure = open.failure().await;
        assert_eq!(failure.kind, FailureKind::Exhausted, "{what}");
        assert_eq!(failure.attempts, 2, "{what}");
        assert!(failure.full().contains("transaction_time_max"), "{failure:?}");
        assert_eq!(open.shop.log().await, [""; 0], "{what}");
        open.engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_violated_at_the_end_or_was_not_looked_at_fails_the_body_and_not_the_commit() {
    let open = Open::new(|ctx, shop| async move {
        let mut why = Vec::new();
        for what in ["reference", "ignored"] {
            let shop = shop.clone();
            let bad = ctx
                .pg_transaction(what, async move |tx| {
                    add(tx, &shop, "before").await?;
                    match what {
                        "reference" => {
                            let sql = format!("INSERT INTO {} VALUES (99)", shop.table("parts"));
                            tx.batch_execute(&sql).await?;
                        }
                        _ => _ = tx.batch_execute("SELECT 1 / 0").await,
                    }
                    Ok(())
                })
                .retry(Retry::never())
                .outcome()
                .await?;
            why.push(bad.failure().expect("it fails").full());
        }
        Ok(json!(why))
    })
    .await;
    let why = open.run().await.result().await.unwrap();
    let why = |n: usize| why[n].as_str().unwrap().to_owned();
    assert!(why(0).contains("foreign key"), "{}", why(0));
    assert!(why(1).contains("is aborted"), "{}", why(1));
    assert_eq!(open.shop.log().await, [""; 0]);
    open.engine.shutdown().await;
}

/// The connection is everstep's, and is used again: what a body sets is gone when it is over.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_leaves_nothing_in_the_session() {
    let open = Open::new(|ctx, shop| async move {
        let mut sum = 0;
        for _ in 0..4 {
            let shop = shop.clone();
            sum += ctx
                .pg_transaction("messy", async move |tx| {
                    let n = add(tx, &shop, "row").await?;
                    tx.batch_execute(
                        "CREATE TEMP TABLE everstep_runs (n int); SET search_path TO nowhere; \
                         SET ROLE pg_monitor; SET statement_timeout TO 1; \
                         SELECT pg_advisory_lock(42)",
                    )
                    .await?;
                    Ok(n)
                })
                .await?;
        }
        Ok(json!(sum))
    })
    .await;
    assert_eq!(open.run().await.result().await.unwrap(), json!(10));
    assert_eq!(open.shop.log().await.len(), 4);
    open.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_ends_the_transaction_pauses_its_run() {
    for sql in ["COMMIT", "ROLLBACK", "COMMIT; BEGIN"] {
        let open = Open::new(move |ctx, _| async move {
            ctx.pg_transaction("bad", async move |tx| Ok(tx.batch_execute(sql).await?)).await?;
            Ok(json!(null))
        })
        .await;
        let reason = scenario::until_paused(&open.run().await).await;
        assert!(reason.contains("ended the transaction"), "{sql}: {reason}");
        open.engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_victim_of_a_deadlock_has_not_been_tried() {
    async fn lock(tx: &Transaction<'_>, shop: &Shop, n: i32) -> Result<()> {
        let sql = format!("UPDATE {} SET n = n WHERE n = $1", shop.table("rows"));
        tx.execute(&sql, &[&n]).await?;
        Ok(())
    }
    /// How often the body was called, and the session that it waits for.
    static CALLS: AtomicU32 = AtomicU32::new(0);
    static USER: AtomicU32 = AtomicU32::new(0);
    let open = Open::with(
        move |ctx, shop| async move {
            ctx.pg_transaction("both", async move |tx| {
                tx.batch_execute("SET LOCAL deadlock_timeout TO '10ms'").await?;
                lock(tx, &shop, 1).await?;
                if CALLS.fetch_add(1, Ordering::SeqCst) == 0 {
                    let sql = "SELECT 1 FROM pg_stat_activity WHERE pid::bigint = $1 \
                               AND wait_event_type = 'Lock'";
                    let user = || i64::from(USER.load(Ordering::SeqCst));
                    while tx.query_opt(sql, &[&user()]).await?.is_none() {
                        // What it shows is kept for a while.
                        tx.query("SELECT pg_stat_clear_snapshot()", &[]).await?;
                    }
                }
                lock(tx, &shop, 2).await
            })
            .retry(Retry::never())
            .await?;
            Ok(json!("made"))
        },
        patient,
    )
    .await;
    let mut user = open.shop.connect().await;
    let tx = user.transaction().await.unwrap();
    // So long that it is the other one that is ended.
    let sql = "SET LOCAL deadlock_timeout TO '15s'";
    tx.batch_execute(sql).await.unwrap();
    lock(&tx, &open.shop, 2).await.unwrap();
    let pid: i32 = tx.query_one("SELECT pg_backend_pid()", &[]).await.unwrap().get(0);
    USER.store(pid.try_into().unwrap(), Ordering::SeqCst);
    let run = open.run().await;
    scenario::until("the body to lock the first row", async || {
        (CALLS.load(Ordering::SeqCst) > 0).then_some(())
    })
    .await;
    lock(&tx, &open.shop, 1).await.unwrap();
    tx.commit().await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!("made"));
    assert_eq!(CALLS.load(Ordering::SeqCst), 2);
    assert_eq!(run.history().await.unwrap()[0].attempts, 1);
    open.engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_store_of_another_kind_says_so() {
    let engine = everstep::testing::engine()
        .register_fn(RUN, |ctx: Ctx, _| async move {
            ctx.pg_transaction("add", async |_| Ok(())).await?;
            Ok(json!(null))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, 7).await.unwrap();
    let error = run.result().await.unwrap_err();
    assert_eq!(error.failure().unwrap().kind, FailureKind::Fatal);
    engine.shutdown().await;
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_body_for_the_other_database_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path().join("app.db"))
        .register_fn(RUN, |ctx: Ctx, _| async move {
            ctx.pg_transaction("add", async |_| Ok(())).await?;
            Ok(json!(null))
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, 7).await.unwrap();
    let error = run.result().await.unwrap_err();
    let text = error.failure().unwrap().full();
    assert!(text.contains("its body is for PostgreSQL"), "{text}");
    engine.shutdown().await;
    let open = Open::new(|ctx, _| async move {
        ctx.transaction("add", |_| Ok(())).await?;
        Ok(json!(null))
    })
    .await;
    let failure = open.failure().await;
    assert_eq!(failure.kind, FailureKind::Fatal);
    let text = failure.full();
    assert!(text.contains("its body is for a SQLite file"), "{text}");
    open.engine.shutdown().await;
}

/// Temporary tables are looked for first, unless it is said otherwise: our own rows went into them.
#[tokio::test(flavor = "multi_thread")]
async fn a_temporary_table_with_a_name_of_ours_is_in_nobodys_way() {
    let open = Open::new(async |ctx: Ctx, _shop: Shop| {
        ctx.pg_transaction("temporary", async |tx: &Transaction<'_>| {
            tx.batch_execute(
                "CREATE TEMP TABLE everstep_history (x text) ON COMMIT DROP; \
                 CREATE TEMP TABLE everstep_runs (x text) ON COMMIT DROP",
            )
            .await?;
            Ok(1)
        })
        .await?;
        Ok(json!("done"))
    })
    .await;
    let run = open.run().await;
    assert_eq!(run.result().await.unwrap(), json!("done"));
    open.engine.shutdown().await;
}

/// What the body has sent is in the inbox that the commit itself sends to.
#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_send_to_a_run_that_its_own_run_sends_to_at_the_same_time() {
    const OTHER: Workflow<(), Vec<u32>> = Workflow::new("other");
    let shop = Shop::new().await;
    let slot: Arc<std::sync::OnceLock<(everstep::Client, everstep::RunId)>> = Arc::default();
    let given = slot.clone();
    let engine = Engine::on(Arc::new(shop.store()))
        .register_fn(OTHER, async |ctx: Ctx, ()| {
            let one: u32 = ctx.listen("number").await?;
            let two: u32 = ctx.listen("number").await?;
            Ok(vec![one.min(two), one.max(two)])
        })
        .register_fn(RUN, move |ctx: Ctx, _| {
            let slot = given.clone();
            async move {
                let (client, other) = slot.get().expect("it is set").clone();
                let sending = client.clone();
                let body = ctx.pg_transaction("body", async move |tx: &Transaction<'_>| {
                    sending.send_in(tx, other, "number", &1_u32).await?;
                    Ok(())
                });
                ctx.join("both", (body, ctx.send(other, "number", &2_u32))).await?;
                Ok(json!("sent"))
            }
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let other = client.start(OTHER, ()).await.unwrap();
    scenario::until_status(&other, everstep::RunStatus::Sleeping).await;
    assert!(slot.set((client.clone(), other.id())).is_ok());
    let run = client.start(RUN, 7).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!("sent"));
    assert_eq!(other.result().await.unwrap(), [1, 2]);
    engine.shutdown().await;
}
