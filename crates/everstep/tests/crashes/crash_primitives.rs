//! Every primitive, with the store dying before and after each of its writes: in memory, and on a
//! file. Each test says what it is a test of; `cargo xtask test` counts the points of each.

use std::{collections::BTreeMap, time::Duration};

use everstep::{
    EntryKind, FailureKind, RunStatus, WorkflowOptions,
    prelude::*,
    testing::{CrashReport, CrashTest, Ledger},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");

/// A test of these primitives: of this code, with the input 7.
macro_rules! crash {
    ($primitives:expr, |$ctx:ident, $input:ident| $code:block) => {
        crash!($primitives, WorkflowOptions::new(), |$ctx, $input| $code)
    };
    ($primitives:expr, $options:expr, |$ctx:ident, $input:ident| $code:block) => {
        CrashTest::new(RUN, 7).of(&$primitives).engine(move |builder| {
            builder.register_fn_with(RUN, $options, |$ctx: Ctx, $input: u32| async move {
                _ = $input;
                $code
            })
        })
    };
}

/// A step that notes where it runs.
async fn noted(ctx: &Ctx, name: &str, value: u32) -> Result<u32> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(value)
    })
    .await
}

/// A step that notes where it runs, with a rollback that does too.
async fn undoable(ctx: &Ctx, name: &str) -> Result<String> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(step.location().to_owned())
    })
    .rollback(async |undo, location| {
        undo.get::<Ledger>().ran(format!("rollback of {location}"));
        Ok(())
    })
    .await
}

fn output(report: &CrashReport) -> Json {
    report.expected.output.clone().expect("it completes")
}

#[tokio::test(flavor = "multi_thread")]
async fn step() {
    let report = crash!(["step"], |ctx, n| {
        let a = noted(&ctx, "a", n).await?;
        let b = noted(&ctx, "b", a + 1).await?;
        Ok(json!(noted(&ctx, "c", b + 1).await?))
    })
    .crashes(2)
    .await;
    assert_eq!(output(&report), json!(9));
    // Two writes of the engine's start, the run's start, and four commits, each twice.
    assert!(report.has_more_than(14 * 4), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_and_spawned_steps() {
    let report = crash!(["blocking", "spawn"], |ctx, n| {
        let ledger = ctx.get::<Ledger>().clone();
        let a = ctx
            .blocking("a", move |step: Step| {
                ledger.ran(step.location());
                Ok(n)
            })
            .await?;
        let b = ctx
            .spawn("b", move |step: Step| async move {
                step.get::<Ledger>().ran(step.location());
                tokio::task::yield_now().await;
                Ok(a + 1)
            })
            .await?;
        Ok(json!([a, b]))
    })
    .await;
    assert_eq!(output(&report), json!([7, 8]));
}

#[tokio::test(flavor = "multi_thread")]
async fn sleep_and_sleep_until() {
    for downtime in [Duration::ZERO, minutes(10), days(3)] {
        let report = crash!(["sleep"], |ctx, n| {
            let a = ctx.sleep("a", hours(1)).await?;
            noted(&ctx, "between", n).await?;
            let b = ctx.sleep_until("b", a + hours(1)).await?;
            ctx.sleep_until("past", a).await?;
            Ok(json!(b.since(a) >= hours(1)))
        })
        .downtime(downtime)
        .await;
        assert_eq!(output(&report), json!(true));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn listen_in_all_variants() {
    let report = crash!(["listen"], |ctx, n| {
        let plain: u32 = ctx.listen("plain").await?;
        noted(&ctx, "after-plain", n).await?;
        let named: u32 = ctx.listen("either").names(["x", "y"]).await?;
        let timely: Option<u32> = ctx.listen("timely").timeout(hours(1)).await?;
        let late: Option<u32> = ctx.listen("late").timeout(hours(1)).await?;
        let until = ctx.now() + hours(5);
        let never: Option<u32> = ctx.listen("never").until(until).await?;
        let batch: Vec<u32> = ctx.listen("batch").batch(2).await?;
        let rest: Vec<u32> = ctx.listen("batch").batch(5).timeout(hours(9)).await?;
        let none: Vec<u32> = ctx.listen("batch").batch(5).timeout(hours(1)).await?;
        noted(&ctx, "end", n).await?;
        Ok(json!([plain, named, timely, late, never, batch, rest, none]))
    })
    .send("plain", &1)
    .send("batch", &10)
    .send("batch", &11)
    .send("batch", &12)
    .send("y", &2)
    .send("timely", &3)
    .await;
    assert_eq!(output(&report), json!([1, 2, 3, null, null, [10, 11], [12], []]));
}

#[tokio::test(flavor = "multi_thread")]
async fn receive_and_reply() {
    let report = crash!(["receive and reply"], |ctx, _n| {
        let first = ctx.receive::<u32>("ask").await?;
        first.reply(&(first.body + 1))?;
        let second = ctx.receive::<u32>("ask").timeout(hours(1)).await?;
        let any = ctx.receive::<u32>("any").names(Vec::<String>::new()).await?;
        Ok(json!([
            first.wants_reply(),
            first.body,
            second.map(|message| message.body),
            any.name,
            any.body
        ]))
    })
    .send("ask", &1)
    .send("ask", &2)
    .send("whatever", &3)
    .await;
    assert_eq!(output(&report), json!([false, 1, 2, "whatever", 3]));
}

#[tokio::test(flavor = "multi_thread")]
async fn messages_that_nobody_reads_become_dead_letters_once() {
    crash!(["listen"], |ctx, _n| {
        let a: u32 = ctx.listen("a").await?;
        Ok(json!(a))
    })
    .send("b", &1)
    .send("b", &2)
    .send("a", &3)
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn join_of_a_tuple_a_vec_and_a_map() {
    let report = crash!(["join"], |ctx, _n| {
        let (a, b, c) = ctx
            .join(
                "tuple",
                (
                    branch("a", async |ctx| noted(&ctx, "work", 1).await),
                    branch("b", async |ctx| {
                        ctx.sleep("nap", minutes(1)).await?;
                        noted(&ctx, "work", 2).await
                    }),
                    ctx.step("bare", async || Ok(3u32)),
                ),
            )
            .await?;
        let list: Vec<_> = (0..3u32)
            .map(|i| {
                branch(format!("b{i}"), async move |ctx: Ctx| {
                    noted(&ctx, "one", i).await?;
                    noted(&ctx, "two", i).await
                })
            })
            .collect();
        let list = ctx.join("vec", list).await?;
        let named: BTreeMap<String, _> = ["x", "y"]
            .into_iter()
            .map(|name| {
                let arm = branch(name, async move |ctx: Ctx| noted(&ctx, "work", 5).await);
                (name.to_owned(), arm)
            })
            .collect();
        let named = ctx.join("map", named).await?;
        Ok(json!([a, b, c, list, named]))
    })
    .await;
    assert_eq!(output(&report), json!([1, 2, 3, [0, 1, 2], {"x": 5, "y": 5}]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_join_collects_all_failures() {
    let report = crash!(["join"], |ctx, n| {
        let joined = ctx
            .join(
                "both",
                (
                    branch("good", async |ctx| {
                        ctx.sleep("nap", hours(1)).await?;
                        noted(&ctx, "work", 1).await
                    }),
                    branch("bad", async |ctx| {
                        ctx.step("fail", async || Err::<u32, _>(Error::fatal("no"))).await
                    }),
                    branch("worse", async |ctx| {
                        ctx.step("fail", async || Err::<u32, _>(Error::msg("never")))
                            .retry(Retry::fixed(2, minutes(1)))
                            .await
                    }),
                ),
            )
            .await;
        let error = joined.expect_err("two branches fail");
        let details: everstep::JoinError = error.details().expect("it has details");
        let names: Vec<_> = details.failures.into_iter().map(|f| f.branch).collect();
        noted(&ctx, "after", n).await?;
        Ok(json!(names))
    })
    .await;
    assert_eq!(output(&report), json!(["bad", "worse"]));
}

#[tokio::test(flavor = "multi_thread")]
async fn map_with_concurrency_and_keys() {
    let report = crash!(["map"], |ctx, _n| {
        let plain = ctx
            .map("plain", 0..5u32, async |ctx, i| noted(&ctx, "work", i).await)
            .concurrency(2)
            .await?;
        let keyed = ctx
            .map("keyed", ["x", "y"], async |ctx, _| {
                ctx.sleep("nap", minutes(1)).await?;
                noted(&ctx, "work", 1).await
            })
            .key(|item| (*item).to_owned())
            .await?;
        Ok(json!([plain, keyed]))
    })
    .await;
    assert_eq!(output(&report), json!([[0, 1, 2, 3, 4], [1, 1]]));
}

#[tokio::test(flavor = "multi_thread")]
async fn race_of_a_tuple_an_array_and_bare_operations() {
    let report = crash!(["race"], |ctx, n| {
        let first = ctx
            .race(
                "tuple",
                (
                    branch("slow", async |ctx| {
                        undoable(&ctx, "kept-by-loser").await?;
                        ctx.sleep("nap", hours(2)).await?;
                        Ok(1u32)
                    }),
                    branch("fast", async |ctx| {
                        ctx.sleep("nap", hours(1)).await?;
                        Ok("fast".to_owned())
                    }),
                ),
            )
            .await?;
        let first = match first {
            First2::A(n) => n.to_string(),
            First2::B(word) => word,
        };
        let arms = [3u64, 1, 2].map(|n| {
            branch(format!("arm{n}"), async move |ctx: Ctx| {
                ctx.sleep("nap", hours(n)).await?;
                Ok(n)
            })
        });
        let won = ctx.race("array", arms).await?;
        let bare =
            ctx.race("bare", (ctx.listen::<u32>("word"), ctx.sleep("limit", hours(1)))).await?;
        let timed_out = matches!(bare, First2::B(_));
        noted(&ctx, "after", n).await?;
        let word: u32 = ctx.listen("word").await?;
        Ok(json!([first, won.index, won.name, won.value, timed_out, word]))
    })
    .at(hours(5))
    .send("word", &9)
    .await;
    assert_eq!(output(&report), json!(["fast", 1, "arm1", 1, true, 9]));
}

#[tokio::test(flavor = "multi_thread")]
async fn race_whose_arms_all_fail() {
    let report = crash!(["race"], |ctx, _n| {
        let arms = ["x", "y"].map(|name| {
            branch(name, async |ctx: Ctx| {
                ctx.step("fail", async || Err::<u32, _>(Error::fatal("no"))).await
            })
        });
        let failed = ctx.race("all", arms).await.expect_err("all fail");
        Ok(json!(failed.kind() == FailureKind::Race))
    })
    .await;
    assert_eq!(output(&report), json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_with_its_options() {
    for (commit, history, keep) in [(1, 1, 1), (3, 2, 2), (20, 20, 20), (2, 5, 1)] {
        let report = CrashTest::new(RUN, 7)
            .of(&["repeat"])
            .engine(move |builder| {
                builder.register_fn(RUN, move |ctx: Ctx, _: u32| async move {
                    let sum = ctx
                        .repeat("loop", (0u32, 0u32), async |ctx, (i, sum)| {
                            let got = noted(&ctx, "work", i).await?;
                            if i % 3 == 2 {
                                ctx.sleep("nap", minutes(1)).await?;
                            }
                            Ok(match i {
                                7 => ControlFlow::Break(sum + got),
                                _ => ControlFlow::Continue((i + 1, sum + got)),
                            })
                        })
                        .commit_every(commit)
                        .history_every(history)
                        .history_keep(keep)
                        .await?;
                    Ok(json!(sum))
                })
            })
            .await;
        assert_eq!(output(&report), json!(28));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn repeat_without_any_step() {
    let report = crash!(["repeat"], |ctx, _n| {
        let n = ctx
            .repeat("loop", 0u32, async |_ctx, i| {
                Ok(match i {
                    50 => ControlFlow::Break(i),
                    _ => ControlFlow::Continue(i + 1),
                })
            })
            .commit_every(10)
            .history_every(10)
            .history_keep(5)
            .await?;
        Ok(json!(n))
    })
    .await;
    assert_eq!(output(&report), json!(50));
}

#[tokio::test(flavor = "multi_thread")]
async fn attempt_and_outcome() {
    let report = crash!(["attempt"], |ctx, n| {
        let tried = ctx
            .attempt("try", async |ctx| {
                noted(&ctx, "fine", 1).await?;
                ctx.step("broken", async || Err::<u32, _>(Error::msg("out of stock")))
                    .retry(Retry::fixed(2, minutes(1)))
                    .await
            })
            .await?;
        let failure = tried.expect_err("it fails");
        noted(&ctx, "between", n).await?;
        let outcome =
            ctx.step("refused", async || Err::<(), _>(Error::fatal("refused"))).outcome().await?;
        let fine = ctx.step("good", async || Ok(())).outcome().await?;
        Ok(json!([
            failure.full(),
            failure.attempts,
            outcome.failure().map(|f| f.full()),
            fine == Outcome::Completed(())
        ]))
    })
    .await;
    let found = output(&report);
    assert_eq!(found[1], json!(2));
    assert_eq!(found[3], json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn version_and_removed() {
    let report = crash!(["version"], |ctx, n| {
        let first = ctx.version("change", 3);
        noted(&ctx, "a", n).await?;
        ctx.removed("gone", EntryKind::Step).await?;
        let second = ctx.version("change", 4);
        ctx.sleep("nap", hours(1)).await?;
        Ok(json!([first, second]))
    })
    .await;
    assert_eq!(output(&report), json!([3, 4]));
}

#[tokio::test(flavor = "multi_thread")]
async fn now_random_and_uuid() {
    crash!(["now and random"], |ctx, n| {
        let before = (ctx.now().as_millis(), ctx.random(), ctx.uuid().to_string());
        noted(&ctx, "a", n).await?;
        ctx.sleep("nap", hours(1)).await?;
        let inner = ctx.scope("inner");
        let after = (ctx.now().as_millis(), inner.random(), ctx.uuid().to_string());
        noted(&ctx, "b", n).await?;
        Ok(json!([before, after]))
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn set_state() {
    let report = crash!(["state"], |ctx, n| {
        ctx.set_state("phase", &"begun")?;
        noted(&ctx, "a", n).await?;
        ctx.set_state("phase", &"asleep")?;
        ctx.set_state("extra", &1)?;
        ctx.sleep("nap", hours(1)).await?;
        ctx.set_state("phase", &"done")?;
        Ok(json!(null))
    })
    .await;
    assert_eq!(Json::from(report.expected.state), json!({"phase": "done", "extra": 1}));
}

#[tokio::test(flavor = "multi_thread")]
async fn send_by_id_and_by_key() {
    let report = crash!(["send"], |ctx, n| {
        let myself = ctx.run_id();
        ctx.send(myself, "word", &n).await?;
        noted(&ctx, "between", 1).await?;
        ctx.send(("run", "crash-test"), "word", &8u32).dedupe("eight").await?;
        ctx.send(("run", "crash-test"), "word", &8u32).dedupe("eight").await?;
        let unknown = ctx.send(("run", "nobody"), "word", &1u32).await;
        let mut got = Vec::new();
        for _ in 0..2 {
            got.push(ctx.listen::<u32>("word").await?);
        }
        let none: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
        Ok(json!([got, none, unknown.is_err()]))
    })
    .await;
    assert_eq!(output(&report), json!([[7, 8], null, true]));
}

#[tokio::test(flavor = "multi_thread")]
async fn ephemeral_steps() {
    let report = crash!(["step"], |ctx, _n| {
        let a = ctx.step("a", async || Ok(1u32)).ephemeral().await?;
        let b = ctx.step("b", async || Ok(a + 1)).ephemeral().await?;
        let c = noted(&ctx, "firm", b + 1).await?;
        let d = ctx.step("d", async || Ok(c + 1)).ephemeral().await?;
        ctx.sleep("nap", hours(1)).await?;
        Ok(json!(d))
    })
    .await;
    assert_eq!(output(&report), json!(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn retries_are_neither_reset_nor_consumed() {
    let report = crash!(["retry"], |ctx, _n| {
        let attempts = ctx
            .step_with("flaky", async |step: Step| {
                step.get::<Ledger>().ran(format!("flaky {}", step.attempt()));
                match step.attempt() {
                    4 => Ok(step.attempt()),
                    n => Err(Error::msg(format!("attempt {n}"))),
                }
            })
            .retry(Retry::fixed(4, minutes(1)))
            .await?;
        Ok(json!(attempts))
    })
    .crashes(2)
    .await;
    assert_eq!(output(&report), json!(4));
}

#[tokio::test(flavor = "multi_thread")]
async fn exhausted_retries_fail_the_run_in_the_same_words() {
    let report = crash!(["retry"], |ctx, n| {
        noted(&ctx, "a", n).await?;
        ctx.step_with("flaky", async |step: Step| {
            step.get::<Ledger>().ran(step.location());
            Err::<(), _>(Error::retry_after(format!("no {}", step.attempt()), hours(1)))
        })
        .retry(Retry::fixed(3, minutes(1)))
        .await?;
        Ok(json!(null))
    })
    .await;
    assert_eq!(report.expected.status, RunStatus::Failed);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_final() {
    let report = crash!(["step"], |ctx, n| {
        let outcome = ctx
            .step("slow", async || {
                std::future::pending::<()>().await;
                Ok(())
            })
            .timeout(minutes(1))
            .outcome()
            .await?;
        noted(&ctx, "after", n).await?;
        Ok(json!(outcome.failure().map(|f| f.kind == FailureKind::TimedOut)))
    })
    .await;
    assert_eq!(output(&report), json!(true));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollback_in_every_scope() {
    let report = crash!(["rollback"], |ctx, _n| {
        undoable(&ctx, "root").await?;
        ctx.join(
            "join",
            (
                branch("a", async |ctx| undoable(&ctx, "work").await),
                branch("b", async |ctx| undoable(&ctx, "work").await),
            ),
        )
        .await?;
        ctx.map("map", 0..2, async |ctx, _| undoable(&ctx, "work").await).await?;
        ctx.repeat("loop", 0u32, async |ctx, i| {
            undoable(&ctx, "work").await?;
            Ok(match i {
                2 => ControlFlow::Break(()),
                _ => ControlFlow::Continue(i + 1),
            })
        })
        .commit_every(1)
        .history_every(1)
        .history_keep(1)
        .await?;
        _ = ctx
            .attempt("attempt", async |ctx| {
                undoable(&ctx, "work").await?;
                ctx.step("broken", async || Err::<(), _>(Error::fatal("handled"))).await
            })
            .await?;
        ctx.race("race", [branch("only", async |ctx: Ctx| undoable(&ctx, "work").await)]).await?;
        undoable(&ctx.scope("scope"), "work").await?;
        Err::<Json, _>(Error::msg("it all has to be undone"))
    })
    .check(|ending, ledger| {
        if ending.status != RunStatus::Failed {
            return Err(format!("{ending:?}"));
        }
        let names = ledger.names();
        let undone: Vec<_> =
            names.iter().filter_map(|name| name.strip_prefix("rollback of ")).collect();
        for done in names.iter().filter(|name| !name.starts_with("rollback")) {
            if !undone.contains(&done.as_str()) {
                return Err(format!("`{done}` was not undone"));
            }
        }
        Ok(())
    })
    .await;
    assert!(report.has_more_than(40));
}

#[tokio::test(flavor = "multi_thread")]
async fn rollbacks_are_retried_and_run_in_reverse() {
    let report = crash!(["rollback"], |ctx, _n| {
        for name in ["a", "b", "c"] {
            ctx.step("work", async || Ok(name.to_owned()))
                .rollback(async |undo, name| {
                    undo.get::<Ledger>().ran(format!("undo {name}"));
                    match undo.attempt() {
                        1 => Err(Error::msg("not yet")),
                        _ => Ok(()),
                    }
                })
                .rollback_retry(Retry::fixed(3, minutes(1)))
                .await?;
        }
        Err::<Json, _>(Error::rollback("stop"))
    })
    .check(|ending, ledger| {
        let mut names = ledger.names();
        names.dedup();
        match (ending.status, &names[..]) {
            (RunStatus::Failed, [c, b, a]) if c == "undo c" && b == "undo b" && a == "undo a" => {
                Ok(())
            }
            _ => Err(format!("{ending:?} {names:?}")),
        }
    })
    .await;
    assert!(report.has_more_than(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel() {
    let report = crash!(["cancel"], |ctx, n| {
        undoable(&ctx, "a").await?;
        ctx.sleep("nap", hours(1)).await?;
        noted(&ctx, "never", n).await?;
        Ok(json!(null))
    })
    .at(minutes(5))
    .cancel()
    .check(|ending, ledger| {
        match (ending.status, ledger.count("rollback of a"), ledger.count("never")) {
            (RunStatus::Cancelled, 0, 0) => Ok(()),
            _ => Err(format!("{ending:?} {:?}", ledger.names())),
        }
    })
    .await;
    assert!(report.has_more_than(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn cancel_with_rollback() {
    crash!(["cancel", "rollback"], |ctx, n| {
        undoable(&ctx, "a").await?;
        undoable(&ctx, "b").await?;
        ctx.sleep("nap", hours(1)).await?;
        noted(&ctx, "never", n).await?;
        Ok(json!(null))
    })
    .at(minutes(5))
    .cancel_with_rollback()
    .crashes(2)
    .check(|ending, ledger| {
        let undone = ["a", "b"].map(|name| ledger.count(&format!("rollback of {name}")) > 0);
        match (ending.status, undone, ledger.count("never")) {
            (RunStatus::Cancelled, [true, true], 0) => Ok(()),
            _ => Err(format!("{ending:?} {:?}", ledger.names())),
        }
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_resume() {
    let report = crash!(["pause and resume"], |ctx, n| {
        noted(&ctx, "a", n).await?;
        ctx.sleep("nap", hours(1)).await?;
        noted(&ctx, "b", n).await?;
        Ok(json!("done"))
    })
    .pause()
    .at(hours(2))
    .resume()
    .await;
    assert_eq!(output(&report), json!("done"));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_of_a_run_by_its_policy() {
    let options = || WorkflowOptions::new().retry(Retry::fixed(3, hours(1)));
    let report = crash!(["retry"], options(), |ctx, n| {
        noted(&ctx, "before", n).await?;
        let attempt = ctx.run_attempt();
        ctx.step("flaky", async || match attempt {
            3 => Ok(()),
            n => Err(Error::msg(format!("run attempt {n}"))),
        })
        .retry(Retry::never())
        .await?;
        Ok(json!(attempt))
    })
    .await;
    assert_eq!(output(&report), json!(3));
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_of_a_run_by_hand() {
    let report = crash!(["retry"], |ctx, n| {
        undoable(&ctx, "before").await?;
        let attempt = ctx.run_attempt();
        ctx.step("flaky", async || match attempt {
            1 => Err(Error::fatal("not the first time")),
            _ => Ok(()),
        })
        .await?;
        noted(&ctx, "after", n).await?;
        Ok(json!(attempt))
    })
    .ended()
    .retry()
    .check(|ending, _| match (ending.status, &ending.output) {
        (RunStatus::Completed, Some(output)) if *output == json!(2) => Ok(()),
        _ => Err(format!("{ending:?}")),
    })
    .await;
    assert!(report.has_more_than(10));
}

#[tokio::test(flavor = "multi_thread")]
async fn deadline() {
    let options = || WorkflowOptions::new().deadline(hours(1));
    let report = crash!(["deadline"], options(), |ctx, n| {
        undoable(&ctx, "a").await?;
        ctx.sleep("nap", days(1)).await?;
        noted(&ctx, "never", n).await?;
        Ok(json!(null))
    })
    .check(|ending, ledger| {
        let kind = ending.failure.as_ref().map(|failure| failure.kind);
        let undone = ledger.count("rollback of a") > 0;
        match (ending.status, kind, undone, ledger.count("never")) {
            (RunStatus::Failed, Some(FailureKind::Deadline), true, 0) => Ok(()),
            _ => Err(format!("{ending:?} {:?}", ledger.names())),
        }
    })
    .await;
    assert!(report.has_more_than(8));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_the_workflow_fails_the_run() {
    let report = crash!(["step"], |ctx, n| {
        noted(&ctx, "a", n).await?;
        assert!(n > 100, "n is only {n}");
        Ok(json!(null))
    })
    .await;
    let failure = report.expected.failure.expect("it fails");
    assert_eq!(failure.kind, FailureKind::Panic);
    assert!(failure.message.contains("n is only 7"), "{failure:?}");
    assert!(failure.message.contains("crash_primitives.rs"), "{failure:?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_panic_in_a_body_is_a_failed_attempt() {
    let report = crash!(["step"], |ctx, _n| {
        let attempt = ctx
            .step_with("shaky", async |step: Step| {
                assert!(step.attempt() > 1, "the first attempt panics");
                Ok(step.attempt())
            })
            .await?;
        Ok(json!(attempt))
    })
    .await;
    assert_eq!(output(&report), json!(2));
}

#[tokio::test(flavor = "multi_thread")]
async fn plain_join_select_and_scopes() {
    let report = crash!(["join"], |ctx, n| {
        let (a, b) = (ctx.scope("a"), ctx.scope("b"));
        let (x, y) = futures::try_join!(noted(&a, "work", 1), noted(&b, "work", 2))?;
        let mut nap = std::pin::pin!(ctx.sleep("nap", hours(1)));
        let won = everstep::select! {
            _ = &mut nap => "nap",
            word = ctx.listen::<u32>("word") => if word? == 5 { "word" } else { "odd" },
        };
        noted(&ctx, "after", n).await?;
        if won == "word" {
            nap.await?;
        }
        Ok(json!([x, y, won]))
    })
    .send("word", &5)
    .await;
    assert_eq!(output(&report), json!([1, 2, "word"]));
}
