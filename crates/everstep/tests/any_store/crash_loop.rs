//! A run whose body kills its process is found and paused; the runs beside it are not.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicUsize, Ordering},
};

use everstep::{
    Engine, EngineBuilder, RunStatus,
    prelude::*,
    store::Store,
    testing::{self, VirtualClock},
};
use scenario::{LEASE_IS_OVER, until, until_at_rest, until_paused};

const KILLER: Workflow<(), u32> = Workflow::new("killer");
const INNOCENT: Workflow<u32, u32> = Workflow::new("innocent");

/// What the bodies of one engine do, and what a test sees of them.
#[derive(Default)]
struct World {
    /// Set by the body that kills its process.
    killed: AtomicBool,
    kills: AtomicUsize,
    /// Whether the code is mended.
    mended: AtomicBool,
}

fn engine(store: &Arc<dyn Store>, clock: &Arc<VirtualClock>, world: &Arc<World>) -> EngineBuilder {
    let world = world.clone();
    Engine::on(store.clone())
        .clock(clock.clone())
        .register_fn(KILLER, move |ctx, ()| {
            let world = world.clone();
            async move {
                let first = ctx.step("first", async || Ok(1)).await?;
                let kills = ctx.step("kills", async || {
                    if world.mended.load(Ordering::SeqCst) {
                        return Ok(1);
                    }
                    world.kills.fetch_add(1, Ordering::SeqCst);
                    world.killed.store(true, Ordering::SeqCst);
                    std::future::pending().await
                });
                Ok(first + kills.await?)
            }
        })
        .register_fn(INNOCENT, move |ctx, n| {
            async move {
                let short = ctx.step("short", async || {
                    // Long enough to be in flight when the other body kills the process.
                    tokio::time::sleep(std::time::Duration::from_millis(20)).await;
                    Ok(n)
                });
                short.await
            }
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_kills_its_owner_is_paused_and_the_innocent_are_not() {
    let (store, world) = (testing::store(), Arc::new(World::default()));
    let clock = VirtualClock::new();
    let _held = clock.hold();
    let first = engine(&store, &clock, &world).start().await.unwrap();
    let client = first.client();
    let mut innocent = Vec::new();
    for n in 0..20 {
        innocent.push(client.start(INNOCENT, n).await.unwrap().id());
    }
    let killer = client.start(KILLER, ()).await.unwrap().id();
    until("the body that kills", async || world.killed.load(Ordering::SeqCst).then_some(())).await;
    drop(first);
    clock.advance(LEASE_IS_OVER);
    // The first lives are not counted yet: until it is a suspect nothing is recorded.
    let mut lives = 1;
    let last = loop {
        world.killed.store(false, Ordering::SeqCst);
        let last = engine(&store, &clock, &world).start().await.unwrap();
        let run = last.client().run::<u32>(killer);
        let paused = until("a kill or a pause", async || {
            let paused = run.status().await.unwrap() == RunStatus::Paused;
            (paused || world.killed.load(Ordering::SeqCst)).then_some(paused)
        })
        .await;
        if paused {
            break last;
        }
        drop(last);
        clock.advance(LEASE_IS_OVER);
        lives += 1;
        assert!(lives < 30, "it is never paused");
    };
    let run = last.client().run::<u32>(killer);
    let expected = "`kills` was running each of the 10 times that the process died; mend it, then \
                    resume the run";
    assert_eq!(until_paused(&run).await, expected);
    // Three lives before it was a suspect, and ten recorded ones.
    assert_eq!(world.kills.load(Ordering::SeqCst), 13);
    for (n, id) in innocent.into_iter().enumerate() {
        let run = last.client().run::<u32>(id);
        let ended = until_at_rest(&run).await;
        assert_eq!(ended.status, RunStatus::Completed, "{ended:?}");
        assert_eq!(run.result().await.unwrap(), n as u32);
    }
    last.shutdown().await;

    world.mended.store(true, Ordering::SeqCst);
    let fixed = engine(&store, &clock, &world).start().await.unwrap();
    let run = fixed.client().run::<u32>(killer);
    run.resume().await.unwrap();
    let ended = until_at_rest(&run).await;
    assert_eq!(ended.status, RunStatus::Completed, "{ended:?}");
    assert_eq!(run.result().await.unwrap(), 2);
    fixed.shutdown().await;
}

/// A deploy a minute is no crash loop: what counts is that a run gets nowhere.
#[tokio::test(flavor = "multi_thread")]
async fn progress_resets_the_count_of_recoveries() {
    const STEPS: Workflow<(), u32> = Workflow::new("steps");
    let store = testing::store();
    let clock = VirtualClock::new();
    let _held = clock.hold();
    let begun = Arc::new(AtomicUsize::new(0));
    let allowed = Arc::new(AtomicUsize::new(0));
    let build = || {
        let (begun, allowed) = (begun.clone(), allowed.clone());
        let engine = Engine::on(store.clone()).clock(clock.clone());
        engine.register_fn(STEPS, move |ctx, ()| {
            let (begun, allowed) = (begun.clone(), allowed.clone());
            async move {
                for n in 0..30 {
                    let step = ctx.step("step", async || {
                        begun.store(n, Ordering::SeqCst);
                        while allowed.load(Ordering::SeqCst) < n {
                            tokio::task::yield_now().await;
                        }
                        Ok(())
                    });
                    step.await?;
                }
                Ok(30)
            }
        })
    };
    let engine = build().start().await.unwrap();
    let id = engine.client().start(STEPS, ()).await.unwrap().id();
    drop(engine);
    clock.advance(LEASE_IS_OVER);
    for n in 1..30 {
        // One step further in each life.
        let engine = build().start().await.unwrap();
        let recoveries = engine.client().run::<u32>(id).info().await.unwrap().recoveries;
        assert!(recoveries <= 2, "{recoveries} recoveries before step {n}");
        allowed.store(n - 1, Ordering::SeqCst);
        until("the next body", async || (begun.load(Ordering::SeqCst) >= n).then_some(())).await;
        drop(engine);
        clock.advance(LEASE_IS_OVER);
    }
    allowed.store(99, Ordering::SeqCst);
    let engine = build().start().await.unwrap();
    let run = engine.client().run::<u32>(id);
    assert_eq!(until_at_rest(&run).await.status, RunStatus::Completed);
    engine.shutdown().await;
}
