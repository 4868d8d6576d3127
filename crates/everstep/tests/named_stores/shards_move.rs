//! What must not happen to runs while their shards move from one engine to another.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    Client, EngineBuilder, RunHandle, RunStatus,
    prelude::*,
    store::{MemoryStore, SqliteStore, Store},
    testing::CrashingStore,
};
use scenario::{until, until_status};
use tokio::sync::watch;

const LONG: Workflow<u32, u32> = Workflow::new("long");
const WAIT: Workflow<u32, u32> = Workflow::new("wait");
/// Far longer than a heartbeat takes on a busy machine.
const LEASE: Duration = Duration::from_secs(5);

/// A body of this engine takes until the gate is opened.
fn engine(path: &Path, bodies: &Arc<AtomicUsize>, gate: &watch::Sender<bool>) -> EngineBuilder {
    on(Engine::open(path), bodies, gate)
}

fn on(
    engine: EngineBuilder,
    bodies: &Arc<AtomicUsize>,
    gate: &watch::Sender<bool>,
) -> EngineBuilder {
    let (bodies, gate) = (bodies.clone(), gate.subscribe());
    engine
        .register_fn(LONG, move |ctx, n| {
            let (bodies, gate) = (bodies.clone(), gate.clone());
            async move {
                let body = ctx.step("long", async || {
                    bodies.fetch_add(1, Ordering::SeqCst);
                    gate.clone().wait_for(|open| *open).await?;
                    Ok(())
                });
                body.await?;
                Ok(n)
            }
        })
        .register_fn(WAIT, |ctx, n| async move {
            let add: u32 = ctx.listen("add").await?;
            Ok(n + add)
        })
        .settings(|settings| {
            settings.heartbeat = Some(Duration::from_millis(50));
            settings.lease = LEASE;
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_long_body_holds_up_neither_the_heartbeat_nor_other_shards() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let bodies = Arc::new(AtomicUsize::new(0));
    let gate = watch::Sender::new(false);
    let first = engine(&path, &bodies, &gate).start().await.unwrap();
    let client = first.client();
    let mut long = Vec::new();
    for n in 0..8 {
        long.push(client.start(LONG, n).await.unwrap());
    }
    until("all bodies", async || (bodies.load(Ordering::SeqCst) == 8).then_some(())).await;
    let lease_of_then = first.store().runners().unwrap()[0].lease_until;
    let mut waiting = Vec::new();
    for n in 0..40 {
        let run = client.start(WAIT, n).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        // Those that share a shard with a body do not move before it ends: see below.
        if !long.iter().any(|long| long.id().shard_index() == run.id().shard_index()) {
            waiting.push((n, run));
        }
    }
    let second = engine(&path, &bodies, &gate).start().await.unwrap();
    until("shards to move", async || {
        let rows = first.store().runners().unwrap();
        let shared = rows.iter().filter(|row| row.shards.len() > 20).count();
        (shared == 2).then_some(())
    })
    .await;
    for (n, run) in &waiting {
        run.send("add", &1_u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), n + 1);
    }
    let open = long[0].status().await.unwrap();
    assert_eq!(open, RunStatus::Running, "the messages waited for a body");
    // Bodies that take longer than the lease.
    until("the end of a lease", async || {
        let now = everstep::Clock::now(&everstep::SystemClock);
        (now > lease_of_then).then_some(())
    })
    .await;
    gate.send_replace(true);
    for (n, run) in long.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), n as u32);
    }
    assert_eq!(bodies.load(Ordering::SeqCst), 8, "each body ran once");
    first.shutdown().await;
    second.shutdown().await;
}

/// Starts runs that wait, until this many share a shard with one of those that have long bodies.
async fn sharing(client: &Client, long: &[RunHandle<u32>], n: usize) -> Vec<RunHandle<u32>> {
    let mut sharing = Vec::new();
    while sharing.len() < n {
        let run = client.start(WAIT, 1).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        let index = run.id().shard_index();
        if long.iter().any(|long| long.id().shard_index() == index) {
            sharing.push(run);
        }
    }
    sharing
}

/// Runs that shared a shard with a long body got no message and no timer from the moment on when the
/// shard should have been somebody else's until the body ended, which may have been hours.
#[tokio::test(flavor = "multi_thread")]
async fn a_shard_with_a_long_body_is_served_where_it_is_until_the_body_ends() {
    // With the short heartbeat the bodies are long when the other engine comes; with the long one
    // nobody can know yet, and the shards are taken back.
    for heartbeat in [30, 1_000].map(Duration::from_millis) {
        let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
        let bodies = Arc::new(AtomicUsize::new(0));
        let gate = watch::Sender::new(false);
        let engine = || {
            on(Engine::on(store.clone()), &bodies, &gate)
                .settings(|settings| settings.heartbeat = Some(heartbeat))
        };
        let first = engine().start().await.unwrap();
        let client = first.client();
        let mut long = Vec::new();
        for n in 0..40 {
            long.push(client.start(LONG, n).await.unwrap());
        }
        let waiting = sharing(&client, &long, 16).await;
        until("all bodies", async || (bodies.load(Ordering::SeqCst) == 40).then_some(())).await;
        let second = engine().start().await.unwrap();
        until("shards to move", async || {
            let rows = store.runners().unwrap();
            let shared = rows.iter().filter(|row| row.shards.len() > 20).count();
            (shared == 2).then_some(())
        })
        .await;
        for run in &waiting {
            run.send("add", &1_u32).await.unwrap();
            let result = tokio::time::timeout(Duration::from_secs(20), run.result()).await;
            assert_eq!(result.expect("it waits for a body").unwrap(), 2);
        }
        // One that goes before it could have anything leaves nothing behind.
        second.shutdown().await;
        let later = sharing(&client, &long, 4).await;
        for run in &later {
            run.send("add", &1_u32).await.unwrap();
            assert_eq!(run.result().await.unwrap(), 2);
        }
        gate.send_replace(true);
        for (n, run) in long.iter().enumerate() {
            assert_eq!(run.result().await.unwrap(), n as u32);
        }
        assert_eq!(bodies.load(Ordering::SeqCst), 40, "each body ran once");
        first.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_holds_up_a_shard_for_too_long_is_dropped_and_runs_where_the_shard_goes() {
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let bodies = [0, 1].map(|_| Arc::new(AtomicUsize::new(0)));
    let gate = watch::Sender::new(false);
    let engine = |index: usize| {
        on(Engine::on(store.clone()), &bodies[index], &gate).settings(|settings| {
            settings.heartbeat = Some(Duration::from_millis(30));
            settings.shutdown_limit = Duration::from_millis(200);
        })
    };
    let begun = |index: usize| bodies[index].load(Ordering::SeqCst);
    let first = engine(0).start().await.unwrap();
    let client = first.client();
    let mut long = Vec::new();
    for n in 0..40 {
        long.push(client.start(LONG, n).await.unwrap());
    }
    until("all bodies", async || (begun(0) == 40).then_some(())).await;
    let second = engine(1).start().await.unwrap();
    until("all shards to move", async || {
        let rows = store.runners().unwrap();
        let moved = rows.iter().all(|row| row.shards.len() > 20);
        (moved && begun(1) > 0).then_some(())
    })
    .await;
    gate.send_replace(true);
    for (n, run) in long.iter().enumerate() {
        assert_eq!(run.result().await.unwrap(), n as u32);
    }
    assert!(begun(1) < 40, "the others have ended where they were");
    first.shutdown().await;
    second.shutdown().await;
}

/// A runner was taken for dead, and stayed in the list for a day, when another one looked between the
/// end of its socket and its signing off.
#[tokio::test(flavor = "multi_thread")]
async fn a_runner_that_signs_off_is_alive_until_it_has() {
    let dir = tempfile::tempdir().unwrap();
    let store = SqliteStore::create(dir.path().join("app.db")).unwrap();
    let found_dead = Arc::new(AtomicUsize::new(0));
    let found = found_dead.clone();
    let store = CrashingStore::counting(store).meddle_until(move |store: &SqliteStore| {
        let rows = store.runners().unwrap();
        let dead = rows.iter().filter(|row| store.runner_is_dead(row.id));
        found.fetch_add(dead.count(), Ordering::SeqCst);
        false
    });
    let store = Arc::new(store);
    let engine = Engine::on(store.clone()).start().await.unwrap();
    let started = store.writes();
    engine.shutdown().await;
    assert!(store.writes() > started, "signing off is a write");
    assert!(store.runners().unwrap().is_empty());
    assert_eq!(found_dead.load(Ordering::SeqCst), 0);
}
