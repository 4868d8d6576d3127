//! Seed 004: one crash test for each row of its flush table, and for each of its bug patterns.
//!
//! Each runs to the operation in question, dies at every write on the way, and looks at what the
//! row promises to be there after a restart.

use everstep::{
    prelude::*,
    testing::{CrashTest, Ledger},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<(), Json> = Workflow::new("run");

macro_rules! crash {
    (|$ctx:ident| $code:block) => {
        CrashTest::new(RUN, ())
            .engine(|builder| builder.register_fn(RUN, |$ctx: Ctx, (): ()| async move { $code }))
    };
}

async fn noted(ctx: &Ctx, name: &str) -> Result<u32> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(1)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn non_ephemeral_step_is_flushed_after_completion() {
    crash!(|ctx| {
        noted(&ctx, "first").await?;
        noted(&ctx, "second").await?;
        Ok(json!(null))
    })
    .crashes(2)
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn loop_iteration_is_resumable() {
    crash!(|ctx| {
        let n = ctx
            .repeat("loop", 0u32, async |ctx, n| {
                noted(&ctx, "work").await?;
                Ok(match n {
                    4 => ControlFlow::Break(n),
                    _ => ControlFlow::Continue(n + 1),
                })
            })
            .commit_every(1)
            .await?;
        Ok(json!(n))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_past_its_deadline_is_not_slept_again() {
    let report = crash!(|ctx| {
        let began = ctx.now();
        ctx.sleep("nap", hours(1)).await?;
        noted(&ctx, "after").await?;
        Ok(json!(ctx.now().since(began) <= hours(4)))
    })
    .downtime(hours(3))
    .await;
    assert_eq!(report.expected.output, Some(json!(true)));
}

#[tokio::test(flavor = "multi_thread")]
async fn short_sleep_is_not_slept_again() {
    // Bug pattern 3: a sleep that ends in memory must not be forgotten.
    crash!(|ctx| {
        let began = ctx.now();
        ctx.sleep("nap", std::time::Duration::from_millis(1)).await?;
        noted(&ctx, "after").await?;
        Ok(json!(ctx.now().since(began).as_millis()))
    })
    .crashes(2)
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn listened_messages_are_not_consumed_again() {
    let report = crash!(|ctx| {
        let mut all = Vec::new();
        for _ in 0..3 {
            all.push(ctx.listen::<u32>("word").await?);
        }
        noted(&ctx, "after").await?;
        Ok(json!(all))
    })
    .send("word", &1)
    .send("word", &2)
    .send("word", &3)
    .await;
    assert_eq!(report.expected.output, Some(json!([1, 2, 3])));
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline_of_a_listen_persists() {
    // The wait is not begun anew by a restart: it ends an hour after it was first made.
    let report = crash!(|ctx| {
        let began = ctx.now();
        let none: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
        Ok(json!([none, ctx.now().since(began).as_secs()]))
    })
    .crashes(2)
    .await;
    assert_eq!(report.expected.output, Some(json!([null, 3600])));
}

#[tokio::test(flavor = "multi_thread")]
async fn entries_of_joins_and_races_exist_before_their_branches_end() {
    // Bug pattern 2: a parent must not be lost when a branch fails fast.
    crash!(|ctx| {
        let joined = ctx
            .join(
                "join",
                (
                    branch("bad", async |ctx| {
                        ctx.step("fail", async || Err::<u32, _>(Error::fatal("fast"))).await
                    }),
                    branch("good", async |ctx| {
                        ctx.sleep("nap", hours(1)).await?;
                        noted(&ctx, "work").await
                    }),
                ),
            )
            .await;
        let raced = ctx
            .race(
                "race",
                [
                    branch("bad", async |ctx: Ctx| {
                        ctx.step("fail", async || Err::<u32, _>(Error::fatal("fast"))).await
                    }),
                    branch("good", async |ctx: Ctx| {
                        ctx.sleep("nap", hours(1)).await?;
                        noted(&ctx, "work").await
                    }),
                ],
            )
            .await?;
        Ok(json!([joined.is_err(), raced.name]))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn ends_of_joins_and_races_persist() {
    crash!(|ctx| {
        let (a, b) = ctx
            .join(
                "join",
                (
                    branch("a", async |ctx| noted(&ctx, "work").await),
                    branch("b", async |ctx| noted(&ctx, "work").await),
                ),
            )
            .await?;
        let won = ctx
            .race(
                "race",
                (branch("a", async |ctx| noted(&ctx, "work").await), ctx.sleep("limit", hours(1))),
            )
            .await?;
        noted(&ctx, "after").await?;
        Ok(json!([a, b, matches!(won, First2::A(1))]))
    })
    .crashes(2)
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn consumed_messages_are_not_delivered_again() {
    crash!(|ctx| {
        let first: Vec<u32> = ctx.listen("word").batch(2).await?;
        noted(&ctx, "between").await?;
        let rest: Vec<u32> = ctx.listen("word").batch(9).timeout(hours(1)).await?;
        Ok(json!([first.len() + rest.len()]))
    })
    .send("word", &1)
    .send("word", &2)
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn nothing_is_lost_when_a_run_yields() {
    // Bug pattern 1: what was made before a wait must be there after it.
    let report = crash!(|ctx| {
        ctx.set_state("made", &true)?;
        let cheap = ctx.step("cheap", async || Ok(3u32)).ephemeral().await?;
        let version = ctx.version("change", 2);
        ctx.sleep("nap", hours(1)).await?;
        noted(&ctx, "after").await?;
        Ok(json!([cheap, version]))
    })
    .crashes(2)
    .await;
    assert_eq!(report.expected.output, Some(json!([3, 2])));
    assert_eq!(report.expected.state["made"], json!(true));
}
