//! What must not happen to runs while their shards move from one engine to another.

#![cfg(unix)]
#![allow(clippy::unwrap_used)]

mod scenario;

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    EngineBuilder, RunStatus,
    prelude::*,
    store::{SqliteStore, Store},
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
    let (bodies, gate) = (bodies.clone(), gate.subscribe());
    Engine::open(path)
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
            settings.heartbeat = Duration::from_millis(50);
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
    until("all bodies", async || {
        (bodies.load(Ordering::SeqCst) == 8).then_some(())
    })
    .await;
    let lease_of_then = first.store().runners().unwrap()[0].lease_until;
    let mut waiting = Vec::new();
    for n in 0..40 {
        let run = client.start(WAIT, n).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        // A shard moves only when its own bodies have ended.
        if !long
            .iter()
            .any(|long| long.id().shard_index() == run.id().shard_index())
        {
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
