//! Preflight: every live run replayed against new code, beside the process that has them, with
//! nothing changed.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    collections::BTreeSet,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use everstep::{
    Count, EngineBuilder, RunId, RunStatus,
    prelude::*,
    store::{Filter, MemoryStore, SqliteStore, Store},
    testing::VirtualClock,
};
use scenario::{until, until_paused};
use tokio::sync::Notify;

/// How a run of the test comes to stand.
#[derive(Clone, Copy, Debug, PartialEq, Eq, serde::Serialize, serde::Deserialize)]
enum Way {
    /// Waits for a message after one step.
    Listen,
    /// Waits for a time after one step.
    Sleep,
    /// In a body after one step.
    Body,
    /// In a body of its rollback.
    RollBack,
    /// In the second iteration of a loop.
    Loop,
    /// In both branches of a join.
    Join,
}

const WAYS: [Way; 6] = [Way::Listen, Way::Sleep, Way::Body, Way::RollBack, Way::Loop, Way::Join];

/// Which way, and whether the changed code has forgotten about this run.
type Input = (Way, bool);

const MIXED: Workflow<Input, u32> = Workflow::new("mixed");
const GONE: Workflow<(), ()> = Workflow::new("gone");

#[derive(Clone, Default)]
struct Bodies {
    run: Arc<AtomicU32>,
    /// How many have come to the gate.
    held: Arc<AtomicU32>,
    gate: Arc<Notify>,
}

impl Bodies {
    async fn wait(&self) {
        self.run.fetch_add(1, Ordering::SeqCst);
        self.held.fetch_add(1, Ordering::SeqCst);
        self.gate.notified().await;
    }
}

/// With `changed`, the runs that say so meet another name where they had `first`.
async fn mixed(ctx: Ctx, (way, changes): Input, changed: bool, bodies: Bodies) -> Result<u32> {
    let body = bodies.clone();
    let count = async move || {
        body.run.fetch_add(1, Ordering::SeqCst);
        Ok(1)
    };
    let name = if changed && changes { "other" } else { "first" };
    let undoing = bodies.clone();
    ctx.step(name, count.clone())
        .rollback(async move |_, _| {
            undoing.wait().await;
            Ok(())
        })
        .await?;
    match way {
        Way::Listen => ctx.listen("go").await,
        Way::Sleep => ctx.sleep("nap", days(30)).await.map(|_| 0),
        Way::Body => {
            let body = bodies.clone();
            ctx.step("held", async move || {
                body.wait().await;
                Ok(2)
            })
            .await
        }
        Way::RollBack => Err(Error::rollback("undo")),
        Way::Loop => {
            ctx.repeat("loop", 0_u32, async |ctx, n| {
                let more: u32 = match n {
                    0 => ctx.step("again", count.clone()).await?,
                    _ => ctx.listen("next").await?,
                };
                Ok(ControlFlow::<u32, u32>::Continue(n + more))
            })
            .await
        }
        Way::Join => {
            let (a, b) = tokio::join!(ctx.step("left", count), ctx.listen::<u32>("right"));
            Ok(a? + b?)
        }
    }
}

fn code(store: &Arc<dyn Store>, changed: bool, bodies: &Bodies) -> EngineBuilder {
    let bodies = bodies.clone();
    Engine::on(store.clone())
        .register_fn(MIXED, move |ctx, input| mixed(ctx, input, changed, bodies.clone()))
}

/// Everything that is stored, as far as a reader can see it.
fn everything(store: &dyn Store) -> String {
    let mut all = String::new();
    let mut after = None;
    loop {
        let page = store.list(&Filter::default(), after, 50).unwrap();
        after = page.last().map(|row| row.id.no());
        for row in &page {
            let no = row.id.no();
            let loaded = store.load(no).unwrap();
            all += &format!("{loaded:?} {:?}\n", store.state(no).unwrap());
        }
        if page.len() < 50 {
            break;
        }
    }
    let runners = store.runners().unwrap();
    let names: Vec<_> = runners.iter().map(|r| (r.id, r.epoch, &r.shards)).collect();
    all + &format!("{names:?} {:?}", store.dead_letters(&Default::default(), 0, 10).unwrap())
}

async fn count_is(count: impl Fn() -> Count, n: u64) {
    until(&format!("{n} runs"), async || (count().await.unwrap() == n).then_some(())).await;
}

async fn finds_exactly_the_divergent(store: Arc<dyn Store>, other: Arc<dyn Store>) {
    let bodies = Bodies::default();
    // Time stands still, so that nothing is due and no body is recorded for taking long.
    let clock = VirtualClock::new();
    let _held = clock.hold();
    let old = code(&store, false, &bodies).clock(clock.clone());
    let old = old.settings(|settings| settings.shutdown_limit = std::time::Duration::ZERO);
    let old = old.register_fn(GONE, |ctx, ()| async move { ctx.listen("never").await });
    let old = old.start().await.unwrap();
    let client = old.client();
    let mut divergent = BTreeSet::<RunId>::new();
    for n in 0..300 {
        let (way, changes) = (WAYS[n % 6], n % 7 == 3);
        let run = client.start(MIXED, (way, changes)).await.unwrap();
        if changes {
            divergent.insert(run.id());
        }
        if n % 60 == 0 {
            run.pause().await.unwrap();
        }
    }
    for _ in 0..3 {
        client.start(GONE, ()).await.unwrap();
    }
    let delayed = client.start(MIXED, (Way::Listen, true)).after(days(1));
    delayed.await.unwrap();
    let rolling = || client.count().status(RunStatus::RollingBack);
    count_is(rolling, 50).await;
    let resting = || {
        client
            .count()
            .status(RunStatus::Sleeping)
            .status(RunStatus::Paused)
            .status(RunStatus::Running)
            .status(RunStatus::Pending)
    };
    count_is(resting, 254).await;
    // Until nothing moves any more.
    until("everything to be at rest", async || {
        // A body that has begun has everything before it on the disk, and so has a parked run.
        let begun = bodies.held.load(Ordering::SeqCst) == 100;
        (begun && old.census().await.moving == 100).then_some(())
    })
    .await;
    drop(clock.quiet().await);
    let done = bodies.run.load(Ordering::SeqCst);
    let before = everything(&*store);
    let batches = store.counters().batches;

    let found = code(&other, true, &bodies).preflight().await.unwrap();
    assert_eq!((found.checked, found.unknown_count), (304, 3));
    let named: BTreeSet<RunId> = found.divergent.iter().map(|m| m.run).collect();
    assert_eq!(named, divergent);
    assert_eq!(found.divergent_count, divergent.len() as u64);
    assert_eq!(found.ok, 304 - 3 - found.divergent_count);
    assert!(!found.is_clean());
    for misfit in &found.divergent {
        assert!(misfit.reason.contains("`first`"), "{}", misfit.reason);
        assert_eq!((&*misfit.workflow, misfit.version), ("mixed", 1));
    }
    let unknown = &found.unknown_workflow[0];
    assert_eq!(unknown.reason, "the workflow is not registered here");

    let clean = code(&other, false, &bodies);
    let clean = clean.register_fn(GONE, |ctx, ()| async move { ctx.listen("never").await });
    let clean = clean.preflight().await.unwrap();
    assert!(clean.is_clean(), "{clean}");

    assert_eq!(bodies.run.load(Ordering::SeqCst), done, "no body ran");
    assert_eq!(store.counters().batches, batches, "nothing was committed");
    assert_eq!(everything(&*store), before, "nothing was changed");
    old.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_finds_exactly_the_divergent_runs_in_memory() {
    let store = MemoryStore::new();
    finds_exactly_the_divergent(Arc::new(store.clone()), Arc::new(store)).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_finds_exactly_the_divergent_runs_in_a_file() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let store = Arc::new(SqliteStore::create(&path).unwrap());
    store.migrate().unwrap();
    let other = Arc::new(SqliteStore::open(&path).unwrap());
    finds_exactly_the_divergent(store, other).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_makes_no_file_and_names_what_is_wrong() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("runs.db");
    let error = Engine::open(&path).preflight().await.unwrap_err();
    assert!(error.to_string().contains("store"), "{error}");
    assert!(!path.exists());
    let twice = Engine::in_memory()
        .register_fn(GONE, |_, ()| async { Ok(()) })
        .register_fn(GONE, |_, ()| async { Ok(()) });
    let error = twice.preflight().await.unwrap_err();
    assert!(error.to_string().contains("registered twice"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn preflight_finds_a_panic_and_a_foreign_await() {
    const WORK: Workflow<(), ()> = Workflow::new("work");
    let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
    let engine = Engine::on(store.clone()).register_fn(WORK, |ctx, ()| async move {
        ctx.step("one", async || Ok(())).await?;
        ctx.listen("never").await
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, ()).await.unwrap();
    until("it to listen", async || {
        (run.status().await.unwrap() == RunStatus::Sleeping).then_some(())
    })
    .await;
    let needy = Engine::on(store.clone()).register_fn(WORK, |ctx: Ctx, ()| async move {
        ctx.step("one", async || Ok(())).await?;
        let never = ctx.listen::<()>("never");
        let limit = *ctx.get::<u64>();
        never.await?;
        ctx.sleep("nap", seconds(limit)).await.map(drop)
    });
    let found = needy.preflight().await.unwrap();
    let reason = &found.divergent[0].reason;
    assert!(reason.contains("the engine has no `u64`"), "{reason}");
    assert!(needy.provide(7_u64).preflight().await.unwrap().is_clean());
    let foreign = Engine::on(store.clone()).register_fn(WORK, |ctx: Ctx, ()| async move {
        ctx.step("one", async || Ok(())).await?;
        _ = ctx.removed("never", everstep::EntryKind::Listen);
        std::future::pending().await
    });
    let found = foreign.preflight().await.unwrap();
    let reason = &found.divergent[0].reason;
    assert!(reason.contains("nothing durable to wait for"), "{reason}");
    // With that code for real, it is what becomes of the run.
    engine.shutdown().await;
    let engine = foreign.start().await.unwrap();
    let run = engine.client().run::<()>(run.id());
    run.send("never", &()).await.unwrap();
    assert_eq!(until_paused(&run).await, *reason);
    engine.shutdown().await;
}
