//! What a cluster must survive: code that only some runners have, pools that nobody serves, and
//! runners that come and go.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    Client, EngineBuilder, Overlap, PoolNo, RunHandle, RunId, RunStatus, StartError, Target,
    Timestamp, Triggered, WorkflowOptions,
    prelude::*,
    store::{MemoryStore, NewRunner, RunRow, Serves, Store},
};
use scenario::{until, until_status};
use uuid::Uuid;

const LOOP: Workflow<u32, u32> = Workflow::new("loop");
const ORDER: Workflow<u32, u32> = Workflow::new("order");
const RENDER: Workflow<u32, String> = Workflow::new("render");

fn memory() -> Arc<dyn Store> {
    Arc::new(MemoryStore::new())
}

fn quick(store: &Arc<dyn Store>) -> EngineBuilder {
    Engine::on(store.clone()).settings(|settings| {
        settings.heartbeat = Some(Duration::from_millis(20));
        settings.lease = Duration::from_secs(5);
        settings.safety_poll = Duration::from_millis(200);
        settings.threads = 2;
    })
}

fn row(store: &Arc<dyn Store>, run: RunId) -> RunRow {
    store.run(&Target::Id(run)).unwrap().unwrap()
}

/// An engine with this version of `order`, which waits for a message.
fn order(store: &Arc<dyn Store>, version: u32) -> EngineBuilder {
    quick(store).register_fn(ORDER.version(version), |ctx, n| async move {
        let add: u32 = ctx.listen("add").await?;
        Ok(n + add)
    })
}

/// A runner that says that it has version 1 of `order`, and never does anything.
fn idler(store: &Arc<dyn Store>) -> everstep::store::Fence {
    let now = Timestamp::from(std::time::SystemTime::now());
    let id = Uuid::from_u128(77);
    let mut idler = NewRunner::new(id, "idler", now, Duration::from_secs(600));
    idler.workflows = vec![Serves {
        workflow: "order".to_owned(),
        version: 1,
        accepts: 1..=1,
        pool: "default".to_owned(),
    }];
    store.register_runner(&idler).unwrap()
}

/// Runs of a version that only a runner said to have which is gone now: they were handed over to it,
/// and nobody has their code.
async fn deserted(
    store: &Arc<dyn Store>,
    client: &Client,
    deadline: Duration,
) -> Vec<RunHandle<u32>> {
    let idler = idler(store);
    // Who does not listen is taken for dead.
    let listening = store.on_wake(idler.runner, Arc::new(|_| {})).unwrap();
    let begun_all = std::time::Instant::now();
    let mut deserted = Vec::new();
    while deserted.len() < 6 {
        assert!(begun_all.elapsed() < scenario::LIMIT, "none is handed over");
        let run = client.start(ORDER, 1).deadline_after(deadline);
        let run = run.await.unwrap();
        let begun = std::time::Instant::now();
        let is_moved = || row(store, run.id()).shard.pool() != PoolNo::DEFAULT;
        while begun.elapsed() < Duration::from_millis(100) && !is_moved() {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        if is_moved() {
            deserted.push(run);
        } else {
            // Some are in shards that are for the idler, and stay at home: they would be handed over
            // when the next runner comes.
            run.cancel().await.unwrap();
        }
    }
    store.deregister_runner(idler).unwrap();
    drop(listening);
    deserted
}

/// Nobody might own an overflow pool whose code nobody had: its runs could not be cancelled, and
/// their deadlines did not pass.
#[tokio::test(flavor = "multi_thread")]
async fn runs_in_a_pool_without_code_can_be_cancelled_and_their_deadlines_pass() {
    let store = memory();
    let engine = order(&store, 2).start().await.unwrap();
    let client = engine.client();
    let runs = deserted(&store, &client, Duration::from_secs(3)).await;
    let (cancelled, left) = runs.split_at(3);
    for run in cancelled {
        run.cancel().await.unwrap();
    }
    for run in cancelled {
        until_status(run, RunStatus::Cancelled).await;
    }
    for run in left {
        let info = until_status(run, RunStatus::Failed).await;
        let error = run.result().await.unwrap_err().to_string();
        assert!(error.contains("deadline"), "{error} {info:?}");
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_in_a_pool_without_code_go_on_when_it_comes_back() {
    let store = memory();
    let engine = order(&store, 2).start().await.unwrap();
    let client = engine.client();
    let runs = deserted(&store, &client, Duration::from_secs(600)).await;
    until("somebody to look after the pool", async || {
        let cluster = client.cluster().await.unwrap();
        let pool = cluster.pools.iter().find(|it| it.name.contains('@'));
        (pool.unwrap().owned == 256).then_some(())
    })
    .await;
    let back = order(&store, 1).start().await.unwrap();
    for run in &runs {
        run.send("add", &1_u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 2);
    }
    // Then the pool is empty, and without the code it is nobody's.
    back.shutdown().await;
    until("nobody to look after the pool", async || {
        let cluster = client.cluster().await.unwrap();
        let pool = cluster.pools.iter().find(|it| it.name.contains('@'));
        (pool.unwrap().owned == 0).then_some(())
    })
    .await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_continues_as_a_newer_version_outlives_the_older_code() {
    let store = memory();
    let next = |builder: EngineBuilder| {
        builder.register_fn(LOOP.version(2), |ctx, n| async move {
            let add: u32 = ctx.listen("add").await?;
            Ok(n + add)
        })
    };
    let new = next(quick(&store)).start().await.unwrap();
    let both = next(quick(&store)).register_fn(LOOP, |ctx, n| async move {
        let () = ctx.listen("go").await?;
        ctx.continue_as(n + 1).await
    });
    let both = both.start().await.unwrap();
    let client = new.client();
    let mut moved = Vec::new();
    while moved.len() < 6 {
        let run = client.start(LOOP, 0).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        if row(&store, run.id()).shard.pool() != PoolNo::DEFAULT {
            moved.push(run);
        }
    }
    for run in &moved {
        run.send("go", &()).await.unwrap();
        until("its second version", async || {
            let row = row(&store, run.id());
            (row.version == 2 && row.status == RunStatus::Sleeping).then_some(())
        })
        .await;
    }
    both.shutdown().await;
    for run in &moved {
        run.send("add", &1_u32).await.unwrap();
        let result = tokio::time::timeout(Duration::from_secs(20), run.result()).await;
        assert_eq!(result.expect("it is stranded").unwrap(), 2);
    }
    new.shutdown().await;
}

/// An engine with `render`, whose runs are of pool `gpu`.
fn gpu(store: &Arc<dyn Store>) -> EngineBuilder {
    let options = WorkflowOptions::new().pool("gpu").label("kind", "picture");
    let engine = quick(store).register_fn_with(RENDER, options, |ctx, n| async move {
        ctx.step("render", async || Ok(())).await?;
        Ok(format!("picture {n}"))
    });
    engine.pools(["gpu"])
}

/// A tick was fired by whoever came first, and its run was of the default pool if that had no code
/// for it: nobody there could ever run it.
#[tokio::test(flavor = "multi_thread")]
async fn ticks_are_for_the_pool_of_their_workflow_whoever_is_alive() {
    let store = memory();
    let gpu = gpu(&store).start().await.unwrap();
    let mut web = Vec::new();
    for _ in 0..3 {
        web.push(order(&store, 1).start().await.unwrap());
    }
    let client = gpu.client();
    for n in 0..6 {
        let schedule = client.schedule(format!("s{n}"), RENDER, n);
        let schedule = schedule.every(Duration::from_millis(20));
        schedule.overlap(Overlap::Allow).await.unwrap();
    }
    until("ticks", async || {
        let runs = client.list().workflow("render").limit(1_000).await.unwrap();
        (runs.runs.len() > 60).then_some(())
    })
    .await;
    let page = client.list().workflow("render").limit(60).await.unwrap();
    for run in page.runs {
        let row = row(&store, run.id);
        assert_eq!(&*row.pool, "gpu");
        let kind = ("kind".to_owned(), "picture".to_owned());
        assert!(run.tags.contains(&kind), "{:?}", run.tags);
        until_status(&client.run::<String>(run.id), RunStatus::Completed).await;
    }
    // From outside, and by somebody who has only heard of the workflow.
    for client in [web[0].client(), Client::on(store.clone()).unwrap()] {
        let triggered = client.schedule_named("s0").trigger().await.unwrap();
        let Triggered::Started(run) = triggered else {
            panic!("{triggered:?}");
        };
        assert_eq!(&*row(&store, run.id()).pool, "gpu");
    }
    // Without anybody who has the code they go to where the last one was.
    gpu.shutdown().await;
    let before = Timestamp::from(std::time::SystemTime::now());
    let client = web[0].client();
    let later = until("a tick without code", async || {
        let runs = client.list().workflow("render").limit(1).await.unwrap();
        let last = runs.runs.into_iter().next()?;
        (last.created_at > before).then_some(last.id)
    })
    .await;
    assert_eq!(&*row(&store, later).pool, "gpu");
    for engine in web {
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn children_and_next_generations_are_of_the_pool_of_their_workflow() {
    const PARENT: Workflow<u32, String> = Workflow::new("parent");
    const TURN: Workflow<u32, String> = Workflow::new("turn");
    let store = memory();
    let web = quick(&store)
        .register_fn(PARENT, |ctx, n| async move {
            let child = ctx.child(RENDER, n);
            match n {
                0 => child.pool("nowhere").detach().await.map(|it| it.to_string()),
                _ => child.await,
            }
        })
        .register_fn(TURN, |ctx, n| async move { ctx.continue_with(RENDER, n).await });
    let web = web.start().await.unwrap();
    let gpu = gpu(&store).start().await.unwrap();
    let client = web.client();
    until("the other to be known", async || {
        let cluster = client.cluster().await.unwrap();
        let shares = cluster.pools.iter().map(|pool| pool.owned);
        (shares.collect::<Vec<_>>() == [256, 256]).then_some(())
    })
    .await;
    for _ in 0..3 {
        // They look at each other twice in a beat at most.
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    for workflow in [PARENT, TURN] {
        let run = client.start(workflow, 1).await.unwrap();
        let result = tokio::time::timeout(Duration::from_secs(20), run.result()).await;
        assert_eq!(result.expect("nobody runs it").unwrap(), "picture 1");
    }
    let run = client.start(PARENT, 0).await.unwrap();
    let child: RunId = run.result().await.unwrap().parse().unwrap();
    assert_eq!(&*row(&store, child).pool, "nowhere");
    web.shutdown().await;
    gpu.shutdown().await;
}

/// Others looked only at one of their next beats: up to twice a heartbeat later.
#[tokio::test(flavor = "multi_thread")]
async fn others_are_told_when_a_runner_comes_and_when_it_has_gone() {
    let store = memory();
    let id = Uuid::from_u128(77);
    let (told, left) = (Arc::new(AtomicUsize::new(0)), Arc::new(AtomicBool::default()));
    let (counted, is_left, seen) = (told.clone(), left.clone(), store.clone());
    let heard = move |runs: &[everstep::RunNo]| {
        if runs.is_empty() {
            counted.fetch_add(1, Ordering::SeqCst);
            let rows = seen.runners().unwrap();
            is_left.store(rows.is_empty(), Ordering::SeqCst);
        }
    };
    let _listening = store.on_wake(id, Arc::new(heard)).unwrap();
    let mut engine = quick(&store).settings(|it| it.heartbeat = Some(Duration::from_secs(1_000)));
    engine = engine.settings(|it| it.lease = Duration::from_secs(3_000));
    let engine = engine.start().await.unwrap();
    assert_eq!(told.load(Ordering::SeqCst), 1, "it has come");
    engine.shutdown().await;
    assert_eq!(told.load(Ordering::SeqCst), 2, "it has gone");
    assert!(left.load(Ordering::SeqCst), "its row is away by then");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_shutdown_ends_although_a_body_blocks_its_thread() {
    let store = memory();
    let (begun, go_on) = (Arc::new(AtomicBool::default()), Arc::new(AtomicBool::default()));
    let (began, may) = (begun.clone(), go_on.clone());
    let engine = quick(&store).register_fn(ORDER, move |ctx, n| {
        let (began, may) = (began.clone(), may.clone());
        async move {
            ctx.step("block", async || {
                began.store(true, Ordering::SeqCst);
                while !may.load(Ordering::SeqCst) {
                    std::thread::sleep(Duration::from_millis(5));
                }
                Ok(())
            })
            .await?;
            Ok(n)
        }
    });
    let engine = engine.settings(|it| it.shutdown_limit = Duration::from_millis(50));
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(ORDER, 1).await.unwrap();
    until("the body", async || begun.load(Ordering::SeqCst).then_some(())).await;
    let ended = tokio::time::timeout(Duration::from_secs(30), engine.shutdown()).await;
    assert!(ended.is_ok(), "it waits for the body");
    assert_eq!(row(&store, run.id()).status, RunStatus::Running);
    assert_eq!(store.runners().unwrap().len(), 1, "its lease ends by itself");
    go_on.store(true, Ordering::SeqCst);
}

#[tokio::test]
async fn a_weight_that_is_none_is_refused() {
    for weight in [0, 65] {
        let error = quick(&memory()).weight(weight).start().await.err().unwrap();
        assert!(matches!(error, StartError::Weight { .. }), "{error}");
        let text = error.to_string();
        assert!(text.contains("from 1 to 64") && text.contains(&weight.to_string()));
    }
}
