//! Waits that were given up, and are wanted again: by a run that is tried again, resumed, forked,
//! or moved to another store.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use everstep::{
    OnFailure, RunStatus, WorkflowOptions,
    prelude::*,
    testing::{self, Ledger, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");
const CHILD: Workflow<u32, u32> = Workflow::new("child");

/// A child that waits for `go`.
async fn child(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.get::<Ledger>().ran("child");
    ctx.listen::<u32>("go").await?;
    Ok(n + 1)
}

async fn engine<R>(
    options: WorkflowOptions,
    code: impl Fn(Ctx, u32) -> R + Send + Sync + 'static,
) -> (Engine, Ledger)
where
    R: Future<Output = Result<Json>> + 'static,
{
    let ledger = Ledger::new();
    let engine = Engine::on(testing::store())
        .clock(VirtualClock::new())
        .provide(ledger.clone())
        .register_fn_with(RUN, options, code)
        .register_fn(CHILD, child)
        .start()
        .await
        .unwrap();
    (engine, ledger)
}

/// The children that have not ended.
async fn live_children(client: &Client) -> Vec<RunHandle<u32>> {
    let children = client.list().workflow("child").await.unwrap().runs;
    let live = children.into_iter().filter(|info| !info.status.is_terminal());
    live.map(|info| client.run(info.id)).collect()
}

/// Waits for the one child that has not ended, and lets it end.
async fn let_the_child_go(client: &Client) {
    let child = scenario::until("one child to wait", async || {
        let mut live = live_children(client).await;
        let child = (live.len() == 1).then(|| live.remove(0))?;
        let info = child.info().await.unwrap();
        (info.status == RunStatus::Sleeping && !info.cancel_requested).then_some(child)
    })
    .await;
    child.send("go", &1).await.unwrap();
}

/// A run that waits for a child for an hour, fails, and once that is mended waits for it again.
async fn waits_twice(ctx: Ctx, by_step: bool) -> Result<Json> {
    let mut child = std::pin::pin!(ctx.child(CHILD, 1));
    let mut ended = std::pin::pin!(ctx.finished(("run", "slow")));
    everstep::select! {
        _ = &mut child => {},
        _ = &mut ended => {},
        nap = ctx.sleep("nap", hours(1)) => drop(nap?),
    }
    let mended = ctx.get::<Ledger>().count("mended") > 0;
    if by_step {
        let check = ctx.step("check", async || match mended {
            true => Ok(()),
            false => Err(Error::fatal("broken")),
        });
        check.await?;
    } else if !mended {
        return Err(Error::fatal("broken"));
    }
    let child = child.await?;
    let ended = ended.await?;
    Ok(json!([child, ended.output::<Json>()?]))
}

/// Starts the run and the one that it waits for, and gives both.
async fn start(client: &Client) -> [RunHandle<Json>; 2] {
    let slow = client.start(RUN, 0).key("slow").await.unwrap();
    let run = client.start(RUN, 1).await.unwrap();
    [run, slow]
}

async fn goes_on(client: &Client, [run, slow]: [RunHandle<Json>; 2]) {
    let_the_child_go(client).await;
    slow.send("go", &1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([2, "slow"]));
    assert!(live_children(client).await.is_empty());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_was_paused_by_its_failure_waits_again_when_it_is_resumed() {
    for by_step in [true, false] {
        let options = WorkflowOptions::new().on_failure(OnFailure::Pause);
        let (engine, ledger) = engine(options, move |ctx, n| async move {
            match n {
                0 => ctx.listen::<u32>("go").await.map(|_| json!("slow")),
                _ => waits_twice(ctx, by_step).await,
            }
        })
        .await;
        let client = engine.client();
        let runs = start(&client).await;
        scenario::until_paused(&runs[0]).await;
        ledger.ran("mended");
        runs[0].resume().await.unwrap();
        goes_on(&client, runs).await;
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_run_waits_again_when_it_is_tried_again_or_forked() {
    for fork in [false, true] {
        let (engine, ledger) = engine(WorkflowOptions::new(), move |ctx, n| async move {
            match n {
                0 => ctx.listen::<u32>("go").await.map(|_| json!("slow")),
                _ => waits_twice(ctx, true).await,
            }
        })
        .await;
        let client = engine.client();
        let [mut run, slow] = start(&client).await;
        assert!(run.result().await.is_err());
        ledger.ran("mended");
        if fork {
            run = run.fork().from("check").start().await.unwrap();
        } else {
            run.retry().await.unwrap();
        }
        goes_on(&client, [run, slow]).await;
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_race_has_given_up_is_no_reason_why_a_run_waits() {
    let (engine, ledger) = engine(WorkflowOptions::new(), |ctx, _| async move {
        // The messages are there before anything is waited for.
        ctx.listen::<u32>("begin").await?;
        let arms = (
            ctx.child(CHILD, 1),
            ctx.finished(("run", "self")),
            ctx.sleep("late", days(1)),
            ctx.listen::<u32>("word"),
        );
        ctx.race("first", arms).await?;
        everstep::select! {
            child = ctx.child(CHILD, 2) => drop(child?),
            word = ctx.listen::<u32>("word") => drop(word?),
        }
        ctx.listen::<u32>("end").await.map(|end| json!(end))
    })
    .await;
    let client = engine.client();
    let run = client.start(RUN, 0).key("self").await.unwrap();
    for name in ["word", "word", "begin"] {
        run.send(name, &1).await.unwrap();
    }
    let why = scenario::until("it to wait for its end", async || {
        let waiting = run.info().await.unwrap().waiting?;
        waiting.starts_with("message for `end`").then_some(())?;
        Some(run.why().await.unwrap())
    })
    .await;
    assert_eq!(why.chain[0].waits_for.len(), 1, "{}", why.sentence);
    assert!(why.sentence.contains("`end`"), "{}", why.sentence);
    run.send("end", &3).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(3));
    assert_eq!(ledger.count("child"), 0, "no child was wanted");
}
