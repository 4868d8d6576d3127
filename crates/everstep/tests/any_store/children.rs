//! Children, the end of any run, and runs that continue as new ones.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use everstep::{
    Close, FailureKind, RunStatus,
    prelude::*,
    testing::{self, CrashReport, CrashTest, Ledger, VirtualClock},
};
use serde_json::{Value as Json, json};

const PARENT: Workflow<u32, Json> = Workflow::new("parent");
const CHILD: Workflow<u32, u32> = Workflow::new("child");

/// A child that notes its steps, fails for inputs from 100 on, and waits for `go` from 1 000 on.
async fn child(ctx: Ctx, n: u32) -> Result<u32> {
    let ledger = ctx.get::<Ledger>().clone();
    ctx.step("work", async || {
        ledger.ran(format!("child {n}"));
        Ok(())
    })
    .rollback({
        let ledger = ledger.clone();
        async move |_, ()| {
            ledger.ran(format!("undo child {n}"));
            Ok(())
        }
    })
    .await?;
    if n >= 1_000 {
        ctx.listen::<()>("go").await?;
    }
    if (100..1_000).contains(&n) {
        return Err(Error::fatal("too large").with_details(&n));
    }
    Ok(n + 1)
}

async fn engine<R>(code: impl Fn(Ctx, u32) -> R + Send + Sync + 'static) -> (Engine, Ledger)
where
    R: Future<Output = Result<Json>> + 'static,
{
    let ledger = Ledger::new();
    let engine = Engine::on(testing::store())
        .clock(VirtualClock::new())
        .provide(ledger.clone())
        .register_fn(PARENT, code)
        .register_fn(CHILD, child)
        .start()
        .await
        .unwrap();
    (engine, ledger)
}

fn crash<R>(
    primitives: &'static [&'static str],
    code: impl Fn(Ctx, u32) -> R + Send + Sync + Clone + 'static,
) -> CrashTest
where
    R: Future<Output = Result<Json>> + 'static,
{
    CrashTest::new(PARENT, 7)
        .of(primitives)
        .engine(move |builder| builder.register_fn(PARENT, code.clone()).register_fn(CHILD, child))
}

fn output(report: &CrashReport) -> Json {
    report.expected.output.clone().expect("it completes")
}

#[tokio::test(flavor = "multi_thread")]
async fn an_awaited_child_gives_its_output() {
    let report = crash(&["child"], |ctx, n| async move {
        let a = ctx.child(CHILD, n).await?;
        let b = ctx.child(CHILD, a).await?;
        Ok(json!([a, b]))
    })
    .await;
    assert_eq!(output(&report), json!([8, 9]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_child_is_an_error_with_its_own_details_or_a_value() {
    let report = crash(&["child"], |ctx, _| async move {
        let error = ctx.child(CHILD, 100).await.unwrap_err();
        let outcome = ctx.child(CHILD, 200).outcome().await?.unwrap_err();
        Ok(json!([
            error.kind() == FailureKind::Child,
            error.details::<u32>(),
            error.to_string().contains("too large"),
            outcome.status == RunStatus::Failed,
            outcome.details::<u32>(),
        ]))
    })
    .await;
    assert_eq!(output(&report), json!([true, 100, true, true, 200]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_detached_child_gives_its_id_and_outlives_its_parent() {
    let (engine, _) = engine(|ctx, _| async move {
        let id = ctx.child(CHILD, 1_000).detach().await?;
        Ok(json!(id.to_string()))
    })
    .await;
    let client = engine.client();
    let run = client.start(PARENT, 1).await.unwrap();
    let id = run.result().await.unwrap();
    let child = client.run::<u32>(id.as_str().unwrap().parse().unwrap());
    assert!(!child.info().await.unwrap().status.is_terminal());
    assert_eq!(child.info().await.unwrap().parent, Some(run.id()));
    child.send("go", &()).await.unwrap();
    assert_eq!(child.result().await.unwrap(), 1_001);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_is_cancelled_with_its_parent_unless_it_is_left_alone() {
    for (close, status) in
        [(Close::Cancel, RunStatus::Cancelled), (Close::Leave, RunStatus::Sleeping)]
    {
        let (engine, ledger) = engine(move |ctx, _| async move {
            let child = ctx.child(CHILD, 1_000).key("one").close(close).await?;
            Ok(json!(child))
        })
        .await;
        let client = engine.client();
        let run = client.start(PARENT, 1).await.unwrap();
        let child = waiting_child(&client, "one").await;
        assert!(run.cancel().with_rollback().await.unwrap());
        assert!(run.result().await.is_err());
        scenario::until_status(&child, status).await;
        let undone = ledger.count("undo child 1000");
        assert_eq!(undone, usize::from(close == Close::Cancel));
    }
}

/// The child with this key, once it waits for `go`.
async fn waiting_child(client: &Client, key: &str) -> RunHandle<Json> {
    scenario::until("the child to wait", async || {
        let child = client.get(("child", key)).await.unwrap()?;
        let info = child.info().await.unwrap();
        (info.status == RunStatus::Sleeping).then_some(child)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_that_loses_a_race_is_cancelled_and_compensated() {
    let report = crash(&["child", "race"], |ctx, _| async move {
        let first =
            ctx.race("first", (ctx.child(CHILD, 1_000), ctx.sleep("late", hours(1)))).await?;
        Ok(json!(matches!(first, First2::B(_))))
    })
    .await;
    assert_eq!(output(&report), json!(true));
    let (engine, ledger) = engine(|ctx, _| async move {
        let child = ctx.child(CHILD, 1_000).key("one");
        ctx.race("first", (child, ctx.sleep("late", hours(1)))).await?;
        Ok(json!(null))
    })
    .await;
    let client = engine.client();
    client.start(PARENT, 1).await.unwrap().result().await.unwrap();
    let child = client.get(("child", "one")).await.unwrap().unwrap();
    scenario::until_status(&child, RunStatus::Cancelled).await;
    assert_eq!(ledger.count("undo child 1000"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_inherits_the_earlier_deadline() {
    let (engine, _) = engine(|ctx, _| async move {
        let own = ctx.child(CHILD, 1_000).deadline_after(hours(1)).await;
        let error = own.unwrap_err().to_string();
        _ = ctx.child(CHILD, 1_001).deadline_after(days(9)).await;
        Ok(json!(error))
    })
    .await;
    let client = engine.client();
    let start = client.start(PARENT, 1).deadline_after(days(1));
    let run = start.await.unwrap();
    let error = run.result().await.unwrap_err();
    assert!(error.to_string().contains("deadline"), "{error}");
    let children = client.list().workflow("child").await.unwrap().runs;
    assert_eq!(children.len(), 2);
    for info in children {
        let child = client.run::<u32>(info.id);
        let info = scenario::until_at_rest(&child).await;
        assert!(matches!(info.status, RunStatus::Failed | RunStatus::Cancelled), "{info:?}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn of_a_thousand_children_the_500th_fails_and_the_parent_is_told_once() {
    let (engine, ledger) = engine(|ctx, _| async move {
        let result = ctx
            .map("all", 0..1_000u32, async |ctx, n| {
                let input = if n == 500 { 100 } else { 10_000 + n };
                let child = ctx.child(CHILD, if n == 500 { input } else { n % 100 });
                child.await
            })
            .await;
        let error = result.unwrap_err();
        Ok(json!([error.details::<everstep::JoinError>().is_some()]))
    })
    .await;
    let run = engine.client().start(PARENT, 1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([true]));
    assert_eq!(ledger.count("child 100"), 1);
    let history = run.history().await.unwrap();
    let failed = history.iter().filter(|entry| entry.location == "all/500/child");
    assert_eq!(failed.count(), 1);
    let children = engine.client().count().workflow("child").await.unwrap();
    assert_eq!(children, 1_000);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_child_with_a_key_attaches_to_a_run_that_is_there_or_has_ended() {
    let (engine, ledger) = engine(|ctx, _| async move {
        let a = ctx.child(CHILD, 5).key("five").await?;
        let b = ctx.child(CHILD, 5).key("five").await?;
        Ok(json!([a, b]))
    })
    .await;
    let run = engine.client().start(PARENT, 1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([6, 6]));
    assert_eq!(ledger.count("child 5"), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_end_of_any_run_can_be_waited_for() {
    let report = crash(&["finished", "detached child"], |ctx, _| async move {
        let id = ctx.child(CHILD, 1).detach().await?;
        let ending = ctx.finished(id).await?;
        let again = ctx.finished(id).timeout(hours(1)).await?;
        let slow = ctx.child(CHILD, 1_000).detach().await?;
        let never = ctx.finished(slow).timeout(hours(1)).await?;
        let unknown = ctx.finished(("child", "nobody")).await;
        let failed = ctx.child(CHILD, 100).detach().await?;
        let failed = ctx.finished(failed).await?;
        Ok(json!([
            ending.output::<u32>()?,
            again.is_some(),
            never.is_none(),
            unknown.is_err(),
            failed.failure.map(|failure| failure.message.clone()),
        ]))
    })
    .await;
    assert_eq!(output(&report), json!([2, true, true, true, "too large"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_as_a_new_one_with_the_same_id_and_its_messages() {
    async fn tally(ctx: Ctx, sum: u32) -> Result<Json> {
        let mut sum = sum;
        for _ in 0..2 {
            match ctx.listen::<Option<u32>>("add").await? {
                Some(n) => {
                    let ledger = ctx.get::<Ledger>().clone();
                    let (generation, before) = (ctx.generation(), sum);
                    sum = ctx
                        .step("add", async || {
                            ledger.ran(format!("add {before} in {generation}"));
                            Ok(before + n)
                        })
                        .await?;
                }
                None => return Ok(json!([sum, ctx.generation()])),
            }
        }
        ctx.set_state("sum", &sum)?;
        ctx.continue_as(sum).await
    }
    let report = CrashTest::new(PARENT, 0)
        .of(&["continue_as"])
        .engine(|builder| builder.register_fn(PARENT, tally))
        .send("add", &Some(1))
        .send("add", &Some(2))
        .send("add", &Some(3))
        .send("add", &Some(4))
        .send("add", &Some(5))
        .send("add", &None::<u32>)
        .await;
    assert_eq!(output(&report), json!([15, 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_continues_as_another_workflow() {
    const OTHER: Workflow<String, Json> = Workflow::new("other");
    let report = CrashTest::new(PARENT, 3)
        .of(&["continue_as"])
        .engine(|builder| {
            builder
                .register_fn(PARENT, |ctx: Ctx, n: u32| async move {
                    ctx.step("one", async || Ok(())).await?;
                    ctx.continue_with(OTHER, format!("from {n}")).await
                })
                .register_fn(OTHER, |ctx: Ctx, text: String| async move {
                    ctx.step("one", async || Ok(json!([text.clone()]))).await
                })
        })
        .await;
    assert_eq!(output(&report), json!(["from 3"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn open_rollbacks_stop_a_run_from_continuing_unless_they_are_forgotten() {
    let (engine, ledger) = engine(|ctx, n| async move {
        if ctx.generation() == 2 {
            return Ok(json!(n));
        }
        let ledger = ctx.get::<Ledger>().clone();
        ctx.step("book", async || Ok(()))
            .rollback(async move |_, ()| {
                ledger.ran("undo");
                Ok(())
            })
            .await?;
        let next = ctx.continue_as(n + 1);
        if n == 1 { next.await } else { next.forget_rollbacks().await }
    })
    .await;
    let client = engine.client();
    let refused = client.start(PARENT, 1).await.unwrap().result().await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("forget_rollbacks"), "{error}");
    assert_eq!(ledger.count("undo"), 1);
    let run = client.start(PARENT, 2).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(3));
    assert_eq!(ledger.count("undo"), 1);
    assert_eq!(run.info().await.unwrap().generation, 2);
}
