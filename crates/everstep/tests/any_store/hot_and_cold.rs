//! Parked runs in memory and out of it, bounds on what is in memory, and clocks that jump.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use everstep::{
    EngineBuilder, RunStatus, Timestamp,
    prelude::*,
    testing::{self, VirtualClock},
};
use scenario::{until, until_status};

const WORK: Workflow<u32, u32> = Workflow::new("work");

/// Counts its bodies, and waits for a time and for a message in between.
fn counting(builder: EngineBuilder, bodies: &Arc<AtomicUsize>) -> EngineBuilder {
    let bodies = bodies.clone();
    builder.register_fn(WORK, move |ctx, n| {
        let bodies = bodies.clone();
        async move {
            let count = async || Ok(bodies.fetch_add(1, Ordering::SeqCst));
            ctx.step("before", count).await?;
            ctx.sleep("nap", hours(1)).await?;
            let add: u32 = ctx.listen("add").await?;
            ctx.step("after", count).await?;
            Ok(n + add)
        }
    })
}

async fn runs_all_to_their_end(hot_bytes: usize) {
    let bodies = Arc::new(AtomicUsize::new(0));
    let engine = counting(Engine::on(testing::store()), &bodies)
        .clock(VirtualClock::new())
        .settings(|settings| settings.hot_bytes = hot_bytes);
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..50 {
        runs.push(client.start(WORK, n).await.unwrap());
    }
    for run in &runs {
        let waits = "message for `add`";
        until("all to listen", async || {
            let waiting = run.info().await.unwrap().waiting;
            (waiting.as_deref() == Some(waits)).then_some(())
        })
        .await;
    }
    // A row says that its run is parked a moment before the engine hears of it.
    let census = until("all to be parked", async || {
        let census = engine.census().await;
        (census.moving == 0).then_some(census)
    })
    .await;
    match hot_bytes {
        0 => assert_eq!((census.hot, census.hot_bytes), (0, 0)),
        _ => assert_eq!(census.hot, 50),
    }
    for run in &runs {
        run.send("add", &100).await.unwrap();
    }
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), n as u32 + 100);
    }
    assert_eq!(bodies.load(Ordering::SeqCst), 100, "no body ran again");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_no_room_for_parked_runs_all_are_cold_and_still_end() {
    runs_all_to_their_end(0).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_room_all_parked_runs_stay_hot() {
    runs_all_to_their_end(64 << 20).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_budget_of_bytes_holds_and_the_coldest_leave_first() {
    const LISTEN: Workflow<(), ()> = Workflow::new("listen");
    let engine = Engine::on(testing::store())
        .register_fn(LISTEN, |ctx, ()| async move { ctx.listen("go").await })
        .settings(|settings| (settings.threads, settings.hot_bytes) = (1, 64 << 10));
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for _ in 0..200 {
        let run = client.start(LISTEN, ()).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        runs.push(run);
    }
    let census = until("all to be parked", async || {
        let census = engine.census().await;
        (census.moving == 0).then_some(census)
    })
    .await;
    assert!(census.hot > 0 && census.hot < 200, "{census:?}");
    assert!(census.hot_bytes <= 64 << 10, "{census:?}");
    assert!(!engine.evict(runs[0].id()).await, "the first has left");
    assert!(engine.evict(runs[199].id()).await, "the last is there");
    for run in &runs {
        run.send("go", &()).await.unwrap();
        run.result().await.unwrap();
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_evicted_run_comes_back_by_replay() {
    let bodies = Arc::new(AtomicUsize::new(0));
    let engine = counting(Engine::on(testing::store()), &bodies).clock(VirtualClock::new());
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 1).await.unwrap();
    until("it to listen", async || {
        let waiting = run.info().await.unwrap().waiting;
        (waiting.as_deref() == Some("message for `add`")).then_some(())
    })
    .await;
    until("it to be parked", async || engine.evict(run.id()).await.then_some(())).await;
    assert!(!engine.evict(run.id()).await, "it is not there any more");
    run.send("add", &2).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 3);
    assert_eq!(bodies.load(Ordering::SeqCst), 2);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn waking_a_hot_run_reads_nothing_from_the_store() {
    const ROUNDS: Workflow<(), u32> = Workflow::new("rounds");
    let told = Arc::new(AtomicUsize::new(0));
    let count = told.clone();
    let clock = VirtualClock::new();
    let engine = Engine::on(testing::store())
        .clock(clock.clone())
        .register_fn(ROUNDS, move |ctx, ()| {
            let count = count.clone();
            async move {
                for _ in 0..20 {
                    ctx.listen::<()>("go").await?;
                    let tell = async || Ok(count.fetch_add(1, Ordering::SeqCst));
                    ctx.step("tell", tell).await?;
                }
                Ok(20)
            }
        })
        // Nothing else reads meanwhile.
        .settings(|settings| {
            settings.safety_poll = hours(1);
            settings.heartbeat = Some(hours(1));
            settings.lease = hours(3);
        });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(ROUNDS, ()).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    // What every engine looks at when it begins has been read.
    drop(clock.quiet().await);
    let reads = engine.store().counters().reads;
    for n in 1..=20 {
        run.send("go", &()).await.unwrap();
        until("the body", async || (told.load(Ordering::SeqCst) == n).then_some(())).await;
    }
    assert_eq!(run.result().await.unwrap(), 20);
    assert_eq!(engine.store().counters().reads, reads);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn with_room_for_two_runs_a_hundred_end_and_the_oldest_go_first() {
    let (order, most) = (Arc::new(Mutex::new(Vec::new())), Arc::new(AtomicUsize::new(0)));
    let now = Arc::new(AtomicUsize::new(0));
    let (begun, peak) = (order.clone(), most.clone());
    let engine = Engine::on(testing::store())
        .register_fn(WORK, move |ctx, n| {
            let (begun, peak, now) = (begun.clone(), peak.clone(), now.clone());
            async move {
                let work = ctx.step("work", async || {
                    begun.lock().unwrap().push(n);
                    peak.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    tokio::task::yield_now().await;
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(n)
                });
                work.await
            }
        })
        .settings(|settings| (settings.threads, settings.max_live_runs) = (1, 2));
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..100 {
        runs.push(client.start(WORK, n).await.unwrap());
    }
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), n as u32);
    }
    assert!(most.load(Ordering::SeqCst) <= 2, "{most:?} bodies at once");
    let order = order.lock().unwrap().clone();
    assert_eq!(order.len(), 100);
    // A run that is started while there happens to be room goes ahead of at most those two.
    let late = order.windows(2).filter(|pair| pair[0] > pair[1]).count();
    assert!(late <= 50, "{order:?}");
    engine.shutdown().await;
}

/// Parked runs that woke together, and the threads of an engine each for itself, passed the bound.
#[tokio::test(flavor = "multi_thread")]
async fn never_more_runs_move_than_the_bound_allows() {
    const NEWS: Event<u32> = Event::new("news");
    for (threads, bound) in [(1, 1), (1, 3), (4, 1), (4, 2)] {
        let inside = Arc::new((AtomicUsize::new(0), AtomicUsize::new(0)));
        let seen = inside.clone();
        let engine = Engine::on(testing::store()).register_fn(WORK, move |ctx, n| {
            let seen = seen.clone();
            async move {
                let body = async || {
                    let (now, most) = &*seen;
                    most.fetch_max(now.fetch_add(1, Ordering::SeqCst) + 1, Ordering::SeqCst);
                    for _ in 0..10 {
                        tokio::task::yield_now().await;
                    }
                    now.fetch_sub(1, Ordering::SeqCst);
                    Ok(())
                };
                ctx.step("before", body).await?;
                // One event, so that all of them wake in the same batch.
                let _: u32 = ctx.event(NEWS).await?;
                ctx.step("after", body).await?;
                Ok(n)
            }
        });
        let engine = engine.settings(move |settings| {
            (settings.threads, settings.max_live_runs) = (threads, bound);
        });
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        let mut runs = Vec::new();
        for n in 0..30 {
            runs.push(client.start(WORK, n).await.unwrap());
        }
        for run in &runs {
            until_status(run, RunStatus::Sleeping).await;
        }
        client.publish(NEWS, &1).await.unwrap();
        for (n, run) in runs.iter().enumerate() {
            assert_eq!(run.result().await.unwrap(), n as u32);
        }
        let most = inside.1.load(Ordering::SeqCst);
        assert!(most <= bound, "{most} of {bound} with {threads} threads");
        // A result is told a moment before the run leaves memory.
        until("all to have left", async || (engine.census().await.moving == 0).then_some(())).await;
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_backlog_at_start_up_is_taken_up_oldest_first() {
    let store = testing::store();
    let client = Client::on(store.clone()).unwrap();
    for n in 0..100 {
        client.start(WORK, n).await.unwrap();
    }
    let order = Arc::new(Mutex::new(Vec::new()));
    let begun = order.clone();
    let engine = Engine::on(store)
        .register_fn(WORK, move |ctx, n| {
            let begun = begun.clone();
            async move {
                let work = async || {
                    let _: () = begun.lock().unwrap().push(n);
                    Ok(())
                };
                ctx.step("work", work).await?;
                Ok(n)
            }
        })
        .settings(|settings| (settings.threads, settings.max_live_runs) = (1, 1));
    let engine = engine.start().await.unwrap();
    assert_eq!(engine.recovery().due, 100);
    until("all to end", async || {
        let done = client.count().status(RunStatus::Completed).await.unwrap();
        (done == 100).then_some(())
    })
    .await;
    assert_eq!(*order.lock().unwrap(), (0..100).collect::<Vec<_>>());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_unknown_workflow_stays_pending_and_says_so_until_an_engine_has_it() {
    let store = testing::store();
    let engine = Engine::on(store.clone()).start().await.unwrap();
    let run = engine.client().start(WORK, 5).await.unwrap();
    let reason = until("a reason", async || run.info().await.unwrap().waiting).await;
    assert_eq!(reason, "a runner with workflow `work` version 1");
    assert_eq!(run.status().await.unwrap(), RunStatus::Pending);
    engine.shutdown().await;
    let other = WORK.version(2);
    let engine = Engine::on(store.clone());
    let engine = engine.register_fn(other, |_, n| async move { Ok(n + 1) });
    let engine = engine.start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    until("another reason", async || {
        let waiting = run.info().await.unwrap().waiting.unwrap();
        let newest = "a runner with workflow `work` version 1; started runners serve 2";
        (waiting == newest).then_some(())
    })
    .await;
    engine.shutdown().await;
    let engine = Engine::on(store).register_fn(WORK, |_, n| async move { Ok(n) });
    let engine = engine.start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 5);
    engine.shutdown().await;
}

/// A run that was moving when its process ended, and whose code the next one does not have.
#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_of_an_unknown_workflow_is_kept_for_an_engine_that_has_it() {
    let store = testing::store();
    let clock = VirtualClock::new();
    let _held = clock.hold();
    let on_store = || Engine::on(store.clone()).clock(clock.clone());
    let work = |ctx: Ctx, n: u32| async move {
        ctx.step("first", async || Ok(())).await?;
        ctx.step("stuck", async || {
            let _: () = std::future::pending::<()>().await;
            Ok(())
        })
        .await?;
        Ok(n)
    };
    let engine = on_store().register_fn(WORK, work);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 5).await.unwrap();
    until("the first step", async || run.history().await.unwrap().first().map(|_| ())).await;
    drop(engine);
    clock.advance(scenario::LEASE_IS_OVER);
    let engine = on_store().start().await.unwrap();
    assert_eq!(engine.recovery().unknown_workflow, 1);
    let run = engine.client().run::<u32>(run.id());
    // It was in memory, and its row stays as that has left it.
    let why = format!("{:?}", run.why().await.unwrap());
    let reason = "workflow `work` version 1";
    assert!(why.contains(reason), "{why}");
    assert_eq!(run.info().await.unwrap().status, RunStatus::Running);
    engine.shutdown().await;
    let engine = on_store().register_fn(WORK, |ctx, n| async move {
        let again = async || -> Result<()> { Err(Error::fatal("a completed step ran again")) };
        ctx.step("first", again).await?;
        ctx.step("stuck", async || Ok(())).await?;
        Ok(n)
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 5);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_clock_that_jumps_loses_nothing() {
    let store = testing::store();
    let clock = VirtualClock::new();
    let bodies = Arc::new(AtomicUsize::new(0));
    let build = || counting(Engine::on(store.clone()), &bodies).clock(clock.clone());
    let engine = build().start().await.unwrap();
    let began = engine.client().start(WORK, 0).await.unwrap().info().await.unwrap().created_at;
    let jumps = [
        began + hours(24 * 365 * 500),
        Timestamp::from_millis(0),
        Timestamp::from_millis(i64::MIN),
        Timestamp::from_millis(i64::MAX),
        began,
    ];
    let mut runs = Vec::new();
    for (n, jump) in jumps.into_iter().enumerate() {
        runs.push(engine.client().start(WORK, n as u32).await.unwrap());
        clock.set(jump);
        runs.push(engine.client().start(WORK, n as u32).await.unwrap());
        runs[2 * n].send("add", &10).await.unwrap();
        runs[2 * n + 1].send("add", &10).await.unwrap();
    }
    engine.shutdown().await;
    // The next process sees a clock that has gone back; what is due is a matter of what is stored.
    clock.set(began);
    let engine = build().start().await.unwrap();
    clock.set(Timestamp::from_millis(i64::MAX));
    for (n, run) in runs.iter().enumerate() {
        let run = engine.client().run::<u32>(run.id());
        let ended = scenario::until_at_rest(&run).await;
        assert_eq!(ended.status, RunStatus::Completed, "run {n}: {ended:?}");
        assert_eq!(run.result().await.unwrap(), n as u32 / 2 + 10);
    }
    engine.shutdown().await;
}

/// A clock that was wrong and is put right must not hold up what is asked for after that.
#[tokio::test(flavor = "multi_thread")]
async fn time_goes_on_after_the_clock_was_set_back() {
    const NAP: Workflow<(), ()> = Workflow::new("nap");
    /// The machine's clock, wrong by what was set.
    struct Wrong(std::sync::atomic::AtomicI64);
    impl everstep::Clock for Wrong {
        fn now(&self) -> Timestamp {
            let wrong = self.0.load(Ordering::SeqCst);
            let right = everstep::Clock::now(&everstep::SystemClock);
            Timestamp::from_millis(right.as_millis() + wrong)
        }
    }
    let clock = Arc::new(Wrong(std::sync::atomic::AtomicI64::new(0)));
    let engine = Engine::on(testing::store())
        .register_fn(NAP, |ctx, ()| async move {
            ctx.sleep("nap", std::time::Duration::from_millis(20)).await?;
            Ok(())
        })
        .clock(clock.clone());
    let engine = engine.start().await.unwrap();
    for wrong in [0, 3_600_000, 0, -3_600_000] {
        clock.0.store(wrong, Ordering::SeqCst);
        let run = engine.client().start(NAP, ()).await.unwrap();
        run.result().await.unwrap();
    }
    engine.shutdown().await;
}
