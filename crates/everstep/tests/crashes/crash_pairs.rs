//! Every pair of nested primitives, with the store dying before and after each write.

use everstep::{
    RunStatus,
    prelude::*,
    testing::{CrashTest, Ledger},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<(Outer, Inner), Json> = Workflow::new("pair");

#[derive(Clone, Copy, Debug, serde::Serialize, serde::Deserialize)]
enum Outer {
    Join,
    Map,
    Race,
    Repeat,
    Attempt,
    Scope,
}

#[derive(Clone, Copy, Debug, PartialEq, serde::Serialize, serde::Deserialize)]
enum Inner {
    Step,
    Sleep,
    Listen,
    Join,
    Map,
    Race,
    Repeat,
    Attempt,
    Send,
    Rollback,
}

const OUTER: [Outer; 6] =
    [Outer::Join, Outer::Map, Outer::Race, Outer::Repeat, Outer::Attempt, Outer::Scope];

const INNER: [Inner; 10] = [
    Inner::Step,
    Inner::Sleep,
    Inner::Listen,
    Inner::Join,
    Inner::Map,
    Inner::Race,
    Inner::Repeat,
    Inner::Attempt,
    Inner::Send,
    Inner::Rollback,
];

async fn noted(ctx: &Ctx, name: &str) -> Result<u32> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(1)
    })
    .await
}

/// The inner primitive, with a step after it that would run twice if its end were lost.
async fn inner(ctx: Ctx, kind: Inner) -> Result<u32> {
    let value = match kind {
        Inner::Step => noted(&ctx, "inner").await?,
        Inner::Sleep => {
            ctx.sleep("inner", minutes(5)).await?;
            2
        }
        Inner::Listen => {
            let heard: Option<u32> = ctx.listen("word").timeout(minutes(5)).await?;
            heard.unwrap_or(100)
        }
        Inner::Join => {
            let (a, b) = ctx
                .join(
                    "inner",
                    (
                        branch("a", async |ctx| noted(&ctx, "x").await),
                        branch("b", async |ctx| {
                            ctx.sleep("nap", minutes(1)).await?;
                            noted(&ctx, "x").await
                        }),
                    ),
                )
                .await?;
            a + b
        }
        Inner::Map => {
            let all = ctx
                .map("inner", 0..3u32, async |ctx, _| noted(&ctx, "x").await)
                .concurrency(2)
                .await?;
            all.into_iter().sum()
        }
        Inner::Race => {
            let won = ctx
                .race(
                    "inner",
                    (
                        branch("slow", async |ctx| {
                            noted(&ctx, "x").await?;
                            ctx.sleep("nap", hours(1)).await?;
                            Ok(1u32)
                        }),
                        ctx.sleep("limit", minutes(1)),
                    ),
                )
                .await?;
            match won {
                First2::A(_) => 1,
                First2::B(_) => 2,
            }
        }
        Inner::Repeat => {
            ctx.repeat("inner", 0u32, async |ctx, n| {
                noted(&ctx, "x").await?;
                Ok(match n {
                    3 => ControlFlow::Break(n),
                    _ => ControlFlow::Continue(n + 1),
                })
            })
            .commit_every(2)
            .history_every(2)
            .history_keep(1)
            .await?
        }
        Inner::Attempt => {
            let tried = ctx
                .attempt("inner", async |ctx| {
                    noted(&ctx, "x").await?;
                    ctx.step("broken", async || Err::<u32, _>(Error::fatal("no"))).await
                })
                .await?;
            tried.map_or(7, |_| 8)
        }
        Inner::Send => {
            ctx.send(ctx.run_id(), "to-myself", &1u32).await?;
            3
        }
        Inner::Rollback => {
            ctx.step_with("inner", async |step: Step| {
                step.get::<Ledger>().ran(step.location());
                Ok(step.location().to_owned())
            })
            .rollback(async |undo, location| {
                undo.get::<Ledger>().ran(format!("rollback of {location}"));
                Ok(())
            })
            .await?;
            4
        }
    };
    Ok(value + noted(&ctx, "after-inner").await?)
}

async fn pair(ctx: Ctx, (outer, kind): (Outer, Inner)) -> Result<Json> {
    let value = match outer {
        Outer::Join => {
            let (a, b) = ctx
                .join(
                    "outer",
                    (
                        branch("a", async |ctx| inner(ctx, kind).await),
                        branch("b", async |ctx| noted(&ctx, "other").await),
                    ),
                )
                .await?;
            a + b
        }
        Outer::Map => ctx
            .map("outer", 0..2, async |ctx, _| inner(ctx, kind).await)
            .concurrency(1)
            .await?
            .into_iter()
            .sum(),
        Outer::Race => {
            let won = ctx
                .race(
                    "outer",
                    (
                        branch("a", async |ctx| inner(ctx, kind).await),
                        branch("b", async |ctx| {
                            ctx.sleep("nap", hours(12)).await?;
                            Ok(1000u32)
                        }),
                    ),
                )
                .await?;
            match won {
                First2::A(value) | First2::B(value) => value,
            }
        }
        Outer::Repeat => {
            ctx.repeat("outer", (0u32, 0u32), async |ctx, (n, sum)| {
                let sum = sum + inner(ctx, kind).await?;
                Ok(match n {
                    2 => ControlFlow::Break(sum),
                    _ => ControlFlow::Continue((n + 1, sum)),
                })
            })
            .commit_every(2)
            .history_every(1)
            .history_keep(1)
            .await?
        }
        Outer::Attempt => ctx
            .attempt("outer", async |ctx| inner(ctx, kind).await)
            .await?
            .expect("it does not fail"),
        Outer::Scope => inner(ctx.scope("outer"), kind).await?,
    };
    noted(&ctx, "after-outer").await?;
    if kind == Inner::Rollback {
        return Err(Error::msg("all of it is to be undone"));
    }
    Ok(json!(value))
}

async fn check_all(outer: Outer) {
    for kind in INNER {
        let mut test =
            CrashTest::new(RUN, (outer, kind)).engine(|builder| builder.register_fn(RUN, pair));
        if kind == Inner::Listen {
            test = test.send("word", &20u32);
        }
        let report = test.report().await;
        let about = format!("{kind:?} in {outer:?}: {report}");
        assert!(report.differences.is_empty(), "{about}");
        assert!(report.points >= 10, "{about}");
        let status = match kind {
            Inner::Rollback => RunStatus::Failed,
            _ => RunStatus::Completed,
        };
        assert_eq!(report.expected.status, status, "{about}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_join() {
    check_all(OUTER[0]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_map() {
    check_all(OUTER[1]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_race() {
    check_all(OUTER[2]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_repeat() {
    check_all(OUTER[3]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_an_attempt() {
    check_all(OUTER[4]).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn everything_in_a_scope() {
    check_all(OUTER[5]).await;
}
