//! Queue items and the waits for them, with the store dying before and after each write.

use std::time::Duration;

use everstep::{
    EngineBuilder,
    prelude::*,
    testing::{CrashReport, CrashTest, Ledger},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");
const DOUBLE: Queue<u32, u32> = Queue::new("double").attempts(9).visibility(seconds(30));
const FLAKY: Queue<u32, u32> = Queue::new("flaky")
    .attempts(9)
    .backoff(Retry::fixed(9, Duration::from_secs(5)))
    .visibility(seconds(30));
const BROKEN: Queue<u32, u32> = Queue::new("broken");

fn workers(builder: EngineBuilder) -> EngineBuilder {
    builder
        .work(DOUBLE, 2, async |_, n: u32| Ok(2 * n))
        .work(FLAKY, 1, async |job: Job, n: u32| match job.attempt() {
            1 => Err(Error::msg("not yet")),
            _ => Ok(n + 100),
        })
        .work(BROKEN, 1, async |_, n: u32| -> Result<u32> {
            Err(Error::fatal("never").with_details(&n))
        })
}

async fn noted(ctx: &Ctx, name: &str, value: u32) -> Result<u32> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(value)
    })
    .await
}

macro_rules! crash {
    (|$ctx:ident| $code:block) => {
        CrashTest::new(RUN, 7).of(&["enqueue"]).engine(|builder| {
            workers(builder).register_fn(RUN, |$ctx: Ctx, _: u32| async move { $code })
        })
    };
}

fn output(report: &CrashReport) -> Json {
    report.expected.output.clone().expect("it completes")
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_and_wait() {
    let report = crash!(|ctx| {
        let a = ctx.enqueue(DOUBLE, &1).await?;
        let b = noted(&ctx, "between", a).await?;
        let c = ctx.enqueue(DOUBLE, &b).await?;
        noted(&ctx, "end", c).await?;
        Ok(json!([a, b, c]))
    })
    .await;
    println!("enqueue on memory: {} crash points", report.points);
    assert_eq!(output(&report), json!([2, 2, 4]));
    assert!(report.has_more_than(20), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_and_wait_with_two_crashes() {
    let report = crash!(|ctx| { Ok(json!(ctx.enqueue(DOUBLE, &1).await?)) }).crashes(2).await;
    assert_eq!(output(&report), json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn attempts_errors_timeouts_and_races() {
    let report = crash!(|ctx| {
        let flaky = ctx.enqueue(FLAKY, &1).await?;
        let broken = ctx.enqueue(BROKEN, &5).await;
        let details = broken.err().and_then(|error| error.details::<u32>());
        let late = ctx.enqueue(DOUBLE, &1).delay(hours(2)).timeout(hours(1)).await?;
        let slept = ctx
            .race("race", (ctx.enqueue(DOUBLE, &2).delay(hours(2)), ctx.sleep("nap", hours(1))))
            .await?;
        let slept = matches!(slept, First2::B(_));
        let id = ctx.enqueue(DOUBLE, &3).dedupe("three").detach().await?;
        let same = ctx.enqueue(DOUBLE, &4).dedupe("three").detach().await?;
        let three = ctx.enqueue(DOUBLE, &5).dedupe("three").await?;
        let (x, y) = ctx.join("both", (ctx.enqueue(DOUBLE, &6), ctx.enqueue(FLAKY, &7))).await?;
        Ok(json!([flaky, details, late, slept, id == same, three, x, y]))
    })
    .await;
    assert_eq!(output(&report), json!([101, 5, null, true, true, 6, 12, 107]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_cancelled_while_it_waits() {
    CrashTest::new(RUN, 7)
        .of(&["enqueue"])
        .engine(|builder| {
            builder.register_fn(RUN, |ctx: Ctx, _| async move {
                Ok(json!(ctx.enqueue(DOUBLE, &1).await?))
            })
        })
        .cancel()
        .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_tried_again_puts_its_item_in_again() {
    let report = CrashTest::new(RUN, 7)
        .of(&["enqueue"])
        .engine(|builder| {
            workers(builder).register_fn(RUN, |ctx: Ctx, _| async move {
                let a = ctx.enqueue(DOUBLE, &1).await?;
                let b = match ctx.run_attempt() {
                    1 => ctx.enqueue(BROKEN, &1).await?,
                    _ => a,
                };
                Ok(json!([a, b]))
            })
        })
        .ended()
        .retry()
        .check(|ending, _| match &ending.failure {
            // The code goes another way than the first time.
            None if ending.output.is_some() || ending.waiting.is_some() => Ok(()),
            _ => Err(format!("{ending:?}")),
        })
        .await;
    assert!(report.has_more_than(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn enqueue_under_power_cuts() {
    let report = crash!(|ctx| {
        let a = ctx.enqueue(DOUBLE, &1).await?;
        let id = ctx.enqueue(DOUBLE, &2).detach().await?;
        Ok(json!([a, id.0 > 0]))
    })
    .power_cuts()
    .await;
    println!("enqueue on SQLite: {} crash points", report.points);
    assert_eq!(output(&report), json!([2, true]));
}
