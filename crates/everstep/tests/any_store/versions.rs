//! Versions under running work: which code a run gets, what becomes of it when the code does not
//! fit, and how it goes on after a fixed deploy.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    future::Future,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
};

use everstep::{
    EngineBuilder, EntryKind, OnFailure, RunHandle, RunInfo, RunStatus, WorkflowOptions,
    prelude::*,
    store::Store,
    testing::{self, VirtualClock},
};
use scenario::{until, until_info, until_paused};

const ORDER: Workflow<u32, u32> = Workflow::new("order");

/// Each kind of store, empty, with what must be kept while it is used.
fn stores() -> Vec<(Arc<dyn Store>, Option<tempfile::TempDir>)> {
    let folder = tempfile::tempdir().unwrap();
    let file = everstep::store::SqliteStore::create(folder.path().join("runs.db")).unwrap();
    vec![(testing::store(), None), (Arc::new(file), Some(folder))]
}

fn on(store: &Arc<dyn Store>) -> EngineBuilder {
    Engine::on(store.clone()).clock(VirtualClock::new())
}

/// How often bodies were run, by all code of a test.
#[derive(Clone, Default)]
struct Calls(Arc<[AtomicU32; 4]>);

impl Calls {
    fn note(&self, body: usize) {
        self.0[body].fetch_add(1, Ordering::SeqCst);
    }

    fn all(&self) -> [u32; 4] {
        [0, 1, 2, 3].map(|body: usize| self.0[body].load(Ordering::SeqCst))
    }
}

/// `reserve` with a rollback, `charge`, then a message, then `ship`.
async fn order(ctx: Ctx, n: u32, calls: Calls) -> Result<u32> {
    let undo = calls.clone();
    ctx.step("reserve", async || {
        calls.note(0);
        Ok(n)
    })
    .rollback(async move |_, _| {
        undo.note(3);
        Ok(())
    })
    .await?;
    let charged = ctx
        .step("charge", async || {
            calls.note(1);
            Ok(n * 2)
        })
        .await?;
    let more: u32 = ctx.listen("go").await?;
    if more == 0 {
        return Err(Error::rollback("refused"));
    }
    ctx.step("ship", async || {
        calls.note(2);
        Ok(())
    })
    .await?;
    Ok(charged + more)
}

fn with<R>(
    store: &Arc<dyn Store>,
    calls: &Calls,
    code: impl Fn(Ctx, u32, Calls) -> R + Send + Sync + 'static,
) -> EngineBuilder
where
    R: Future<Output = Result<u32>> + 'static,
{
    let calls = calls.clone();
    on(store).register_fn(ORDER, move |ctx, n| code(ctx, n, calls.clone()))
}

async fn until_listening<O>(run: &RunHandle<O>) {
    until("the run to listen", async || {
        let info = run.info().await.unwrap();
        (info.status == RunStatus::Sleeping).then_some(())
    })
    .await;
}

async fn two_versions(store: Arc<dyn Store>) {
    const ONE: Workflow<(), u32> = Workflow::new("pinned");
    const TWO: Workflow<(), u32> = Workflow::new("pinned").version(2);
    let engine = || {
        on(&store)
            .register_fn(ONE, |ctx, ()| async move {
                ctx.step("old name", async || Ok(())).await?;
                ctx.listen::<()>("go").await?;
                Ok(1)
            })
            .register_fn(TWO, |ctx, ()| async move {
                ctx.step("new name", async || Ok(())).await?;
                ctx.listen::<()>("go").await?;
                Ok(2)
            })
    };
    let first = engine().start().await.unwrap();
    let old = first.client().start(ONE, ()).await.unwrap();
    let new = first.client().start(TWO, ()).await.unwrap();
    until_listening(&old).await;
    until_listening(&new).await;
    first.shutdown().await;
    let second = engine().start().await.unwrap();
    for (id, result) in [(old.id(), 1), (new.id(), 2)] {
        let run = second.client().run::<u32>(id);
        run.send("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), result);
        assert_eq!(run.info().await.unwrap().version, result);
    }
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_stays_on_the_version_it_was_started_with() {
    for (store, _folder) in stores() {
        two_versions(store).await;
    }
}

async fn without_its_version(store: Arc<dyn Store>) {
    let calls = Calls::default();
    let old = with(&store, &calls, order).start().await.unwrap();
    let run = old.client().start(ORDER, 4).await.unwrap();
    until_listening(&run).await;
    old.shutdown().await;

    let newer = ORDER.version(2);
    let new = on(&store).register_fn(newer, |_, n| async move { Ok(n) });
    let new = new.start().await.unwrap();
    let run = new.client().run::<u32>(run.id());
    run.send("go", &1_u32).await.unwrap();
    let waiting = "a runner with workflow `order` version 1; started runners serve 2";
    let is_told = |info: &RunInfo| info.waiting.as_deref() == Some(waiting);
    until_info(&run, "the reason", is_told).await;
    assert_eq!(run.status().await.unwrap(), RunStatus::Sleeping);
    new.shutdown().await;

    let both = with(&store, &calls, order).register_fn(newer, |_, n| async move { Ok(n) });
    let both = both.start().await.unwrap();
    let run = both.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 9);
    assert_eq!(calls.all(), [1, 1, 1, 0]);
    both.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_without_code_of_its_version_waits_for_a_process_that_has_it() {
    for (store, _folder) in stores() {
        without_its_version(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_accepts_older_versions_serves_their_runs() {
    let store: Arc<dyn Store> = testing::store();
    let calls = Calls::default();
    let old = with(&store, &calls, order).start().await.unwrap();
    let run = old.client().start(ORDER, 4).await.unwrap();
    until_listening(&run).await;
    old.shutdown().await;
    let (accepts, of) = (WorkflowOptions::new().accepts(1..=2), calls.clone());
    let new = on(&store).register_fn_with(ORDER.version(2), accepts, move |ctx: Ctx, n| {
        let calls = of.clone();
        async move {
            let version = ctx.workflow_version();
            Ok(order(ctx, n, calls).await? + version * 100)
        }
    });
    let new = new.start().await.unwrap();
    let run = new.client().run::<u32>(run.id());
    run.send("go", &1_u32).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 109, "it is still version 1");
    new.shutdown().await;
}

/// Parks the order, deploys `wrong` and sends it what it waits for: it is paused for `reason` and
/// its history stands. The wrong code again leaves everything as it is. Then the right code goes
/// on by itself, and no body has run twice.
async fn pauses_and_goes_on<R>(
    store: Arc<dyn Store>,
    wrong: impl Fn(Ctx, u32, Calls) -> R + Clone + Send + Sync + 'static,
    reason: &[&str],
) where
    R: Future<Output = Result<u32>> + 'static,
{
    let calls = Calls::default();
    let engine = with(&store, &calls, order).start().await.unwrap();
    let run = engine.client().start(ORDER, 4).await.unwrap();
    until_listening(&run).await;
    let before = run.history().await.unwrap();
    engine.shutdown().await;

    let engine = with(&store, &calls, wrong.clone()).start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    run.send("go", &3_u32).await.unwrap();
    let paused = until_paused(&run).await;
    for part in reason {
        assert!(paused.contains(part), "`{part}` is not in: {paused}");
    }
    assert_eq!(run.history().await.unwrap(), before, "nothing is written");
    engine.shutdown().await;

    // The same wrong code finds it, tries it, and writes nothing.
    let row = store.load(run.id().no()).unwrap().unwrap();
    let tried = Arc::new(AtomicU32::new(0));
    let trying = tried.clone();
    let wrong = move |ctx, n, calls| {
        trying.fetch_add(1, Ordering::SeqCst);
        wrong(ctx, n, calls)
    };
    let engine = with(&store, &calls, wrong).start().await.unwrap();
    until("a trial", async || (tried.load(Ordering::SeqCst) == 1).then_some(())).await;
    engine.shutdown().await;
    assert_eq!(store.load(run.id().no()).unwrap().unwrap(), row);
    let done = calls.all();

    let engine = with(&store, &calls, order).start().await.unwrap();
    assert_eq!(engine.recovery().paused, 1);
    let run = engine.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 11);
    let [reserved, charged, shipped, undone] = calls.all();
    assert_eq!([reserved, charged, undone], [done[0], done[1], 0], "no body ran again");
    assert_eq!(shipped, 1);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_renamed_step_pauses_the_run_until_it_is_named_as_before() {
    for (store, _folder) in stores() {
        let wrong = async |ctx: Ctx, n: u32, calls: Calls| {
            ctx.step("hold", async || Ok(n)).await?;
            order(ctx, n, calls).await
        };
        let wrong = move |ctx, n, calls| wrong(ctx, n, calls);
        pauses_and_goes_on(store, wrong, &["`reserve`", "`hold`"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn another_kind_of_operation_pauses_the_run() {
    for (store, _folder) in stores() {
        let wrong = |ctx: Ctx, _, _| async move {
            ctx.sleep("reserve", seconds(1)).await?;
            Ok(0)
        };
        pauses_and_goes_on(store, wrong, &["`reserve`", "Step", "Sleep"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_that_is_gone_pauses_the_run() {
    for (store, _folder) in stores() {
        let wrong = |ctx: Ctx, n, calls: Calls| async move {
            ctx.step("reserve", async || {
                calls.note(0);
                Ok(n)
            })
            .await?;
            let more: u32 = ctx.listen("go").await?;
            Ok(n + more)
        };
        pauses_and_goes_on(store, wrong, &["`go`", "after completion 2"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn code_that_ends_too_early_pauses_the_run() {
    for (store, _folder) in stores() {
        let wrong = |_, n, _| async move { Ok(n) };
        pauses_and_goes_on(store, wrong, &["it ended before completion 1", "`reserve`"]).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_result_of_another_type_pauses_the_run() {
    for (store, _folder) in stores() {
        let wrong = |ctx: Ctx, _, _| async move {
            let name: String = ctx.step("reserve", async || Ok(String::new())).await?;
            Ok(name.len() as u32)
        };
        pauses_and_goes_on(store, wrong, &["the result of `reserve` cannot be decoded"]).await;
    }
}

async fn missing_rollback(store: Arc<dyn Store>) {
    let calls = Calls::default();
    let engine = with(&store, &calls, order).start().await.unwrap();
    let run = engine.client().start(ORDER, 4).await.unwrap();
    until_listening(&run).await;
    engine.shutdown().await;
    let without = |ctx: Ctx, n, calls: Calls| async move {
        ctx.step("reserve", async || {
            calls.note(0);
            Ok(n)
        })
        .await?;
        ctx.step("charge", async || {
            calls.note(1);
            Ok(n * 2)
        })
        .await?;
        ctx.listen::<u32>("go").await?;
        Err(Error::rollback("refused"))
    };
    let engine = with(&store, &calls, without).start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    run.send("go", &0_u32).await.unwrap();
    let reason = until_paused(&run).await;
    let expected = "`reserve` has to be rolled back, and the code has no rollback for it";
    assert!(reason.starts_with(expected), "{reason}");
    engine.shutdown().await;
    let engine = with(&store, &calls, order).start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    assert!(run.result().await.is_err());
    assert_eq!(run.status().await.unwrap(), RunStatus::Failed);
    assert_eq!(calls.all(), [1, 1, 0, 1], "rolled back once");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rollback_that_was_missing_is_made_after_the_deploy_that_has_it() {
    for (store, _folder) in stores() {
        missing_rollback(store).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deploy_resumes_only_what_it_can_mend() {
    const PICKY: Workflow<(), ()> = Workflow::new("picky");
    for (store, _folder) in stores() {
        let options = WorkflowOptions::new().on_failure(OnFailure::Pause);
        let engine = || {
            let picky = async |ctx: Ctx, ()| {
                let bad =
                    async || Err::<(), _>(Error::fatal("no `ctx`; await only operations of `ctx`"));
                ctx.step("fail", bad).await
            };
            let builder = with(&store, &Calls::default(), order);
            builder.register_fn_with(PICKY, options.clone(), picky)
        };
        let first = engine().start().await.unwrap();
        let asked = first.client().start(ORDER, 4).await.unwrap();
        until_listening(&asked).await;
        asked.pause().await.unwrap();
        let failed = first.client().start(PICKY, ()).await.unwrap();
        until_paused(&failed).await;
        first.shutdown().await;
        let second = engine().start().await.unwrap();
        assert_eq!(second.recovery().paused, 2);
        // Whatever was to be tried has been, once another run has come and gone.
        let other = second.client().start(ORDER, 1).await.unwrap();
        other.send("go", &1_u32).await.unwrap();
        other.result().await.unwrap();
        for id in [asked.id(), failed.id()] {
            let run = second.client().run::<u32>(id);
            assert_eq!(run.status().await.unwrap(), RunStatus::Paused);
        }
        second.shutdown().await;
    }
}

/// The order with `charge` replaced by `pay`, gated, and `ship` removed: runs that had gone past
/// either go on, and new ones go the new way.
async fn gated(ctx: Ctx, n: u32, calls: Calls) -> Result<u32> {
    let undo = calls.clone();
    ctx.step("reserve", async || {
        calls.note(0);
        Ok(n)
    })
    .rollback(async move |_, _| {
        undo.note(3);
        Ok(())
    })
    .await?;
    let charged = if ctx.version("pay", 2) >= 2 {
        ctx.step("pay", async || Ok(n * 1_000)).await?
    } else {
        ctx.step("charge", async || {
            calls.note(1);
            Ok(n * 2)
        })
        .await?
    };
    let more: u32 = ctx.listen("go").await?;
    ctx.removed("ship", EntryKind::Step).await?;
    ctx.listen::<()>("really").await?;
    Ok(charged + more)
}

#[tokio::test(flavor = "multi_thread")]
async fn old_and_new_step_names_are_live_at_once_behind_a_gate() {
    for (store, _folder) in stores() {
        let calls = Calls::default();
        let engine = with(&store, &calls, order).start().await.unwrap();
        let old = engine.client().start(ORDER, 4).await.unwrap();
        until_listening(&old).await;
        engine.shutdown().await;
        let engine = with(&store, &calls, gated).start().await.unwrap();
        let client = engine.client();
        let new = client.start(ORDER, 4).await.unwrap();
        for (id, result) in [(old.id(), 9), (new.id(), 4_001)] {
            let run = client.run::<u32>(id);
            run.send("go", &1_u32).await.unwrap();
            run.send("really", &()).await.unwrap();
            assert_eq!(run.result().await.unwrap(), result);
        }
        assert_eq!(calls.all(), [2, 1, 0, 0]);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolling_deploy_mends_a_run_once_the_wrong_process_is_gone() {
    for (store, _folder) in stores() {
        let calls = Calls::default();
        let soon = |builder: EngineBuilder| {
            builder.settings(|settings| {
                settings.heartbeat = Some(std::time::Duration::from_millis(20))
            })
        };
        let engine = with(&store, &calls, order).start().await.unwrap();
        let run = engine.client().start(ORDER, 4).await.unwrap();
        until_listening(&run).await;
        engine.shutdown().await;
        let wrong = soon(with(&store, &calls, |_, n, _| async move { Ok(n) }));
        let wrong = wrong.start().await.unwrap();
        let client = wrong.client();
        client.send(run.id(), "go", &3_u32).await.unwrap();
        until_paused(&client.run::<u32>(run.id())).await;
        // Beside it comes one that fits. Whichever has the run's shard now, in the end this one has.
        let right = soon(with(&store, &calls, order)).start().await.unwrap();
        let run = right.client().run::<u32>(run.id());
        wrong.shutdown().await;
        assert_eq!(run.result().await.unwrap(), 11);
        assert_eq!(calls.all(), [1, 1, 1, 0]);
        right.shutdown().await;
    }
}
