//! Clocks that show a wrong time for a moment, or for good: work is neither held up nor done early.

#![allow(clippy::unwrap_used)]

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, SystemTime},
};

use everstep::{
    Client, Clock, Ctx, Deferred, Error, Event, Queue, Result, Retry, RunStatus, Sabotage,
    Timestamp, Workflow, hours, seconds,
    testing::{ShiftedClock, VirtualClock},
};

use crate::stores;

const NAP: Workflow<(), ()> = Workflow::new("nap");
const QUICK: Workflow<(), ()> = Workflow::new("quick");
const WAITS: Workflow<String, u32> = Workflow::new("waits");

const PAID: Event<u32> = Event::new("paid");
const REVIEW: Deferred<u32, u32> = Deferred::new("review");
const DOUBLE: Queue<u32, u32> = Queue::new("double");

const HOUR_MS: i64 = 3_600_000;

async fn in_time<T>(wanted: impl Future<Output = T>) -> T {
    let limit = Duration::from_secs(60);
    tokio::time::timeout(limit, wanted).await.expect("in time")
}

/// The clock of a client was an hour ahead for two seconds, and no run that it started from then on was
/// begun before that hour was over: its `available_at` was an hour ahead.
#[tokio::test(flavor = "multi_thread")]
async fn a_start_by_a_client_whose_clock_is_ahead_begins_at_once() {
    stores::on_each_store(async |place| {
        let engine = place.engine().register_fn(QUICK, |_, ()| async { Ok(()) });
        let engine = engine.start().await.unwrap();
        let clock = Arc::new(ShiftedClock::new());
        for ahead in [0, HOUR_MS, 0, -HOUR_MS] {
            // As seen by a client that has always been wrong, and by one that has had a glimpse of it.
            clock.shift(ahead);
            let client = Client::on_clock(place.open_store(), clock.clone()).unwrap();
            in_time(client.start(QUICK, ()).await.unwrap().result()).await.unwrap();
            clock.shift(0);
            in_time(client.start(QUICK, ()).await.unwrap().result()).await.unwrap();
        }
        engine.shutdown().await;
    })
    .await;
}

/// Waits for what `kind` says.
async fn wait_for(ctx: Ctx, kind: String, is_mended: Arc<AtomicBool>) -> Result<u32> {
    match kind.as_str() {
        "event" => ctx.event(PAID).await,
        "deferred" => match ctx.deferred(REVIEW).await? {
            Ok(n) | Err(n) => Ok(n),
        },
        "item" => ctx.enqueue(DOUBLE, &4).await,
        "retry" => {
            let fails = async || match is_mended.load(Ordering::SeqCst) {
                true => Ok(8),
                false => Err(Error::msg("not yet")),
            };
            ctx.step("fails", fails).retry(Retry::never()).await
        }
        _ => ctx.listen("go").await,
    }
}

/// What a client whose clock was an hour ahead did to a run that was in nobody's memory moved the run
/// only an hour later: a message, a cancel, a resume, a retry, and every answer that it waits for.
#[tokio::test(flavor = "multi_thread")]
async fn a_cold_run_is_moved_at_once_by_a_client_whose_clock_is_ahead() {
    stores::on_each_store(async |place| {
        let is_mended = Arc::new(AtomicBool::new(false));
        let engine = async || {
            let is_mended = is_mended.clone();
            let code = move |ctx, kind| wait_for(ctx, kind, is_mended.clone());
            let engine = place.engine().register_fn(WAITS, code);
            engine.start().await.unwrap()
        };
        let first = engine().await;
        let mut runs = Vec::new();
        for kind in ["message", "cancel", "resume", "event", "deferred", "item", "retry"] {
            let run = first.client().start(WAITS, kind.to_owned()).await.unwrap();
            let rests = async || {
                let status = run.status().await.unwrap();
                matches!(status, RunStatus::Sleeping | RunStatus::Failed)
            };
            let at_rest = async {
                while !rests().await {
                    tokio::task::yield_now().await;
                }
            };
            in_time(at_rest).await;
            runs.push((kind, run.id()));
        }
        first.shutdown().await;
        is_mended.store(true, Ordering::SeqCst);
        let clock = Arc::new(ShiftedClock::new());
        clock.shift(HOUR_MS);
        let ahead = Client::on_clock(place.open_store(), clock).unwrap();
        let worker = ahead.work(DOUBLE, 1, async |_, n: u32| Ok(2 * n)).unwrap();
        for (kind, id) in &runs {
            let run = ahead.run::<u32>(*id);
            match *kind {
                "message" => _ = run.send("go", &8u32).await.unwrap(),
                "cancel" => _ = run.cancel().await.unwrap(),
                "resume" => {
                    run.pause().await.unwrap();
                    run.send("go", &8u32).await.unwrap();
                    run.resume().await.unwrap();
                }
                "event" => _ = ahead.publish(PAID, &8).await.unwrap(),
                "deferred" => _ = run.deferred(REVIEW).resolve(&8).await.unwrap(),
                "retry" => run.retry().await.unwrap(),
                _ => {
                    let settled = async {
                        let stats = async || ahead.queue_stats("double").await.unwrap();
                        while stats().await.ready + stats().await.claimed > 0 {
                            tokio::task::yield_now().await;
                        }
                    };
                    in_time(settled).await;
                }
            }
        }
        worker.stop().await;
        let second = engine().await;
        for (kind, id) in runs {
            println!("{kind}");
            let result = in_time(second.client().run::<u32>(id).result()).await;
            assert_eq!(result.ok(), (kind != "cancel").then_some(8), "{kind}");
        }
        second.shutdown().await;
    })
    .await;
}

/// A delayed start that a client with a wrong clock pauses and resumes begins at its time.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_start_keeps_its_time_through_a_pause_by_a_clock_that_is_ahead() {
    stores::on_each_store(async |place| {
        let engine = place.engine().register_fn(QUICK, |_, ()| async { Ok(()) });
        let engine = engine.start().await.unwrap();
        let delayed = engine.client().start(QUICK, ()).after(hours(1));
        let delayed = delayed.await.unwrap();
        let at = delayed.info().await.unwrap().available_at;
        let clock = Arc::new(ShiftedClock::new());
        clock.shift(2 * HOUR_MS);
        let client = Client::on_clock(place.open_store(), clock).unwrap();
        let run = client.run::<()>(delayed.id());
        run.pause().await.unwrap();
        run.resume().await.unwrap();
        let info = run.info().await.unwrap();
        assert_eq!((info.status, info.available_at), (RunStatus::Pending, at));
        engine.shutdown().await;
    })
    .await;
}

/// A delayed start keeps its time, whatever the clock of its client says about the present.
#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_start_by_a_clock_that_is_ahead_does_not_begin_at_once() {
    stores::on_each_store(async |place| {
        let engine = place.engine().register_fn(QUICK, |_, ()| async { Ok(()) });
        let engine = engine.start().await.unwrap();
        let clock = Arc::new(ShiftedClock::new());
        clock.shift(HOUR_MS);
        let client = Client::on_clock(place.open_store(), clock).unwrap();
        let delayed = client.start(QUICK, ()).after(hours(1)).await.unwrap();
        // What was started later has ended, so the engine has looked.
        in_time(client.start(QUICK, ()).await.unwrap().result()).await.unwrap();
        assert_eq!(delayed.status().await.unwrap(), RunStatus::Pending);
        engine.shutdown().await;
    })
    .await;
}

/// Sleeps for three seconds after a glimpse of an hour ahead; how long that took by the clock.
async fn sleep_after_a_glimpse(place: &stores::Place, sabotage: Option<Sabotage>) -> Duration {
    let clock = VirtualClock::new();
    let engine = place
        .engine()
        .register_fn(NAP, |ctx, ()| async move {
            ctx.sleep("nap", seconds(3)).await?;
            Ok(())
        })
        .register_fn(QUICK, |_, ()| async { Ok(()) })
        .settings(|settings| settings.sabotage = sabotage)
        .clock(clock.clone());
    let engine = engine.start().await.unwrap();
    let held = clock.hold();
    let right = clock.now();
    clock.set(right + hours(1));
    // The engine has seen it.
    let glimpsed = engine.client().start(QUICK, ()).await.unwrap();
    in_time(glimpsed.result()).await.unwrap();
    clock.set(right);
    let run = engine.client().start(NAP, ()).await.unwrap();
    drop(held);
    in_time(run.result()).await.unwrap();
    let took = clock.now().since(right);
    engine.shutdown().await;
    took
}

/// One glimpse of a clock that was an hour ahead made every sleep of an engine take twice as long, for
/// an hour.
#[tokio::test(flavor = "multi_thread")]
async fn a_sleep_after_a_glimpse_of_a_wrong_clock_takes_its_time() {
    stores::on_each_store(async |place| {
        let took = sleep_after_a_glimpse(place, None).await;
        assert!((seconds(3)..seconds(10)).contains(&took), "{took:?}");
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_engine_that_believes_every_clock_is_held_up_by_a_glimpse() {
    let place = stores::Place::Memory(Arc::default());
    let took = sleep_after_a_glimpse(&place, Some(Sabotage::BelieveClock)).await;
    assert!(took > hours(1), "{took:?}");
}

/// The clock of PostgreSQL counts for everything that is stored, also for a client without an engine.
#[cfg(feature = "postgres")]
#[tokio::test(flavor = "multi_thread")]
async fn times_on_postgres_are_the_servers_for_a_client_whose_clock_is_wrong() {
    use everstep::store::{PostgresStore, Store};
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let open = || Arc::new(PostgresStore::open(&url).unwrap());
    open().migrate().unwrap();
    for ahead in [HOUR_MS, -HOUR_MS] {
        let clock = Arc::new(ShiftedClock::new());
        clock.shift(ahead);
        let client = Client::on_clock(open(), clock.clone()).unwrap();
        let run = client.start(QUICK, ()).after(hours(2)).await.unwrap();
        let row = open().run(&everstep::store::Target::Id(run.id())).unwrap().unwrap();
        let now = Timestamp::from(SystemTime::now()).as_millis();
        let off = |at: Timestamp| (at.as_millis() - now).unsigned_abs();
        assert!(off(row.created_at) < 60_000, "{row:?}");
        assert!(off(row.available_at.unwrap() - hours(2)) < 60_000, "{row:?}");
    }
    everstep::testing::ran_on("PostgreSQL");
}
