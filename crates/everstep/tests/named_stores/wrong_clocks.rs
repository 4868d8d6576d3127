//! Clocks that show a wrong time for a moment, or for good: work is neither held up nor done early.

#![allow(clippy::unwrap_used)]

use std::{
    sync::Arc,
    time::{Duration, SystemTime},
};

use everstep::{
    Client, Clock, RunStatus, Sabotage, Timestamp, Workflow, hours, seconds,
    testing::{ShiftedClock, VirtualClock},
};

use crate::stores;

const NAP: Workflow<(), ()> = Workflow::new("nap");
const QUICK: Workflow<(), ()> = Workflow::new("quick");

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
            in_time(client.start(QUICK, ()).await.unwrap().result())
                .await
                .unwrap();
            clock.shift(0);
            in_time(client.start(QUICK, ()).await.unwrap().result())
                .await
                .unwrap();
        }
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
        in_time(client.start(QUICK, ()).await.unwrap().result())
            .await
            .unwrap();
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
        let row = open()
            .run(&everstep::store::Target::Id(run.id()))
            .unwrap()
            .unwrap();
        let now = Timestamp::from(SystemTime::now()).as_millis();
        let off = |at: Timestamp| (at.as_millis() - now).unsigned_abs();
        assert!(off(row.created_at) < 60_000, "{row:?}");
        assert!(
            off(row.available_at.unwrap() - hours(2)) < 60_000,
            "{row:?}"
        );
    }
    everstep::testing::ran_on("PostgreSQL");
}
