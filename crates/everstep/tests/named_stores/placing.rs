//! Where a run is: out of memory and into another pool, as an operator says.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

#[cfg(feature = "postgres")]
use everstep::store::PostgresStore;
use everstep::{
    Client, ClientError, EngineBuilder, Evicted, Moved, RunStatus,
    prelude::*,
    store::{MemoryStore, SqliteStore, Store},
};
use scenario::{until, until_info, until_status};
use tokio::sync::Semaphore;

const ORDER: Workflow<u32, u32> = Workflow::new("order");

/// Which engine has run what, in order.
type Log = Arc<Mutex<Vec<String>>>;

/// Where runs are kept. Each engine and each client opens it for itself, as processes do.
struct Place {
    open: Box<dyn Fn() -> Arc<dyn Store>>,
    _dir: tempfile::TempDir,
}

impl Place {
    fn memory() -> Place {
        let store = MemoryStore::new();
        Place {
            open: Box::new(move || Arc::new(store.clone())),
            _dir: tempfile::tempdir().unwrap(),
        }
    }

    fn all() -> Vec<Place> {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("app.db");
        let file = Place {
            open: Box::new(move || Arc::new(SqliteStore::create(&path).unwrap())),
            _dir: dir,
        };
        vec![
            Place::memory(),
            file,
            #[cfg(feature = "postgres")]
            {
                let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
                Place {
                    open: Box::new(move || Arc::new(PostgresStore::open(&url).unwrap())),
                    _dir: tempfile::tempdir().unwrap(),
                }
            },
        ]
    }

    fn store(&self) -> Arc<dyn Store> {
        (self.open)()
    }
}

/// An engine of this pool. Its body takes what `gate` gives.
fn order(place: &Place, pool: &'static str, gate: &Arc<Semaphore>, log: &Log) -> EngineBuilder {
    let (log, gate) = (log.clone(), gate.clone());
    let engine = Engine::on(place.store()).pools([pool]).settings(|settings| {
        settings.heartbeat = Some(Duration::from_millis(20));
        settings.lease = Duration::from_millis(2_000);
        settings.safety_poll = Duration::from_millis(200);
        settings.threads = 2;
    });
    engine.register_fn(ORDER, move |ctx, n| {
        let (log, gate) = (log.clone(), gate.clone());
        async move {
            let (log, gate) = (&log, &gate);
            let note = async |what: &str| {
                log.lock().unwrap().push(format!("{pool} {what}"));
                gate.acquire().await.unwrap().forget();
                Ok(())
            };
            ctx.step("begin", async || note("begins").await).await?;
            let add: u32 = ctx.listen("add").await?;
            ctx.step("end", async || note("ends").await).await?;
            Ok(n + add)
        }
    })
}

async fn until_listening(run: &RunHandle<u32>) {
    until_info(run, "it to listen", |info| info.waiting.as_deref() == Some("message for `add`"))
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_parked_run_is_put_out_of_memory_and_comes_back_by_replay() {
    for place in Place::all() {
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
        let engine = order(&place, "default", &gate, &log).start().await.unwrap();
        let run = engine.client().start(ORDER, 1).await.unwrap();
        until_listening(&run).await;
        // A row says that its run is parked a moment before the engine hears of it.
        until("it to leave", async || match run.evict().await.unwrap() {
            Evicted::Done => Some(()),
            Evicted::Soon => None,
            Evicted::Cold => Some(()),
            other => panic!("{other:?}"),
        })
        .await;
        assert_eq!(engine.census().await.hot, 0);
        assert_eq!(run.evict().await.unwrap(), Evicted::Cold);
        run.send("add", &10).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 11);
        assert_eq!(*log.lock().unwrap(), ["default begins", "default ends"]);
        assert_eq!(run.evict().await.unwrap(), Evicted::Cold);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_moves_leaves_memory_when_it_waits() {
    let place = Place::memory();
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let engine = order(&place, "default", &gate, &log).start().await.unwrap();
    let run = engine.client().start(ORDER, 1).await.unwrap();
    until("its body", async || (log.lock().unwrap().len() == 1).then_some(())).await;
    assert_eq!(run.evict().await.unwrap(), Evicted::Soon);
    gate.add_permits(2);
    until_listening(&run).await;
    until("it to leave", async || {
        let census = engine.census().await;
        (census.moving == 0 && census.hot == 0).then_some(())
    })
    .await;
    run.send("add", &10).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 11);
    assert_eq!(log.lock().unwrap().len(), 2, "no body ran again");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_elsewhere_puts_a_run_out_of_its_owners_memory() {
    for place in Place::all() {
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
        let engine = order(&place, "default", &gate, &log).start().await.unwrap();
        let run = engine.client().start(ORDER, 1).await.unwrap();
        until_listening(&run).await;
        until("it to be parked", async || (engine.census().await.hot == 1).then_some(())).await;
        let client = Client::on(place.store()).unwrap();
        let from_outside = client.run::<u32>(run.id());
        until("it to leave", async || {
            assert_eq!(from_outside.evict().await.unwrap(), Evicted::Told);
            (engine.census().await.hot == 0).then_some(())
        })
        .await;
        run.send("add", &10).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 11);
        engine.shutdown().await;
    }
}

async fn moves_between_two(place: &Place, from_outside: bool, in_a_body: bool) {
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(0)));
    let first = order(place, "default", &gate, &log).start().await.unwrap();
    let second = order(place, "gpu", &gate, &log).start().await.unwrap();
    let run = first.client().start(ORDER, 1).await.unwrap();
    let begun = async || (log.lock().unwrap().len() == 1).then_some(());
    until("its body", begun).await;
    if !in_a_body {
        gate.add_permits(1);
        until_listening(&run).await;
    }
    let client = match from_outside {
        true => Client::on(place.store()).unwrap(),
        false => first.client(),
    };
    let moved = client.run::<u32>(run.id()).move_to("gpu").await.unwrap();
    // Its owner may have been quicker than the one who asks whether it has gone.
    let is_done = moved == Moved::Done && !in_a_body;
    assert!(moved == Moved::Soon || is_done, "{moved:?}");
    assert_eq!(run.info().await.unwrap().pool, "gpu");
    if in_a_body {
        gate.add_permits(1);
        until_listening(&run).await;
    }
    let (id, store) = (run.id(), place.store());
    until("it to be in the other pool", async || {
        client.run::<u32>(id).move_to("gpu").await.unwrap();
        let row = store.run(&everstep::Target::Id(id)).unwrap().unwrap();
        (row.shard.pool().0 != 0).then_some(())
    })
    .await;
    gate.add_permits(1);
    run.send("add", &10).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 11);
    assert_eq!(*log.lock().unwrap(), ["default begins", "gpu ends"]);
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_waits_moves_to_the_runners_of_another_pool() {
    for place in Place::all() {
        moves_between_two(&place, false, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_client_elsewhere_moves_a_run_that_waits() {
    for place in Place::all() {
        moves_between_two(&place, true, false).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_in_a_body_moves_when_the_body_has_ended() {
    for place in Place::all() {
        moves_between_two(&place, false, true).await;
        moves_between_two(&place, true, true).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_whose_pool_nobody_serves_moves_at_once() {
    for place in Place::all() {
        let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
        let engine = order(&place, "default", &gate, &log).start().await.unwrap();
        let client = engine.client();
        let run = client.start(ORDER, 1).pool("nobody").await.unwrap();
        assert_eq!(run.move_to("default").await.unwrap(), Moved::Done);
        run.send("add", &10).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 11);
        assert_eq!(*log.lock().unwrap(), ["default begins", "default ends"]);
        // Whoever held its shard for that is gone.
        let cluster = client.cluster().await.unwrap();
        assert_eq!(cluster.runners.len(), 1, "{cluster:?}");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_run_moves_when_it_is_resumed() {
    let place = Place::memory();
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
    let first = order(&place, "default", &gate, &log).start().await.unwrap();
    let second = order(&place, "gpu", &gate, &log).start().await.unwrap();
    let run = first.client().start(ORDER, 1).await.unwrap();
    until_listening(&run).await;
    run.pause().await.unwrap();
    until_status(&run, RunStatus::Paused).await;
    assert_eq!(run.move_to("gpu").await.unwrap(), Moved::Soon);
    run.send("add", &10).await.unwrap();
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), 11);
    assert_eq!(*log.lock().unwrap(), ["default begins", "gpu ends"]);
    first.shutdown().await;
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_moved_says_why() {
    let place = Place::memory();
    let (log, gate) = (Log::default(), Arc::new(Semaphore::new(9)));
    let engine = order(&place, "default", &gate, &log).start().await.unwrap();
    let client = engine.client();
    let run = client.start(ORDER, 1).await.unwrap();
    until_listening(&run).await;
    assert_eq!(run.move_to("default").await.unwrap(), Moved::Already);
    for bad in ["", "default@order/1"] {
        let error = run.move_to(bad).await.unwrap_err();
        assert!(matches!(error, ClientError::Name { .. }), "{error:?}");
    }
    run.send("add", &10).await.unwrap();
    run.result().await.unwrap();
    let error = run.move_to("gpu").await.unwrap_err();
    assert!(matches!(error, ClientError::Finished { .. }), "{error:?}");
    let unknown = "019a8a3c-0000-7000-8000-000000000000".parse().unwrap();
    let error = client.run::<()>(unknown).move_to("gpu").await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownRun { .. }), "{error:?}");
    engine.shutdown().await;
}
