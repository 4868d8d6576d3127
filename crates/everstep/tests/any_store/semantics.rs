//! What each primitive means, on virtual time and without crashes.
#![allow(clippy::unwrap_used)]

use std::{
    future::IntoFuture,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use everstep::{
    ClientError, EntryStatus, FailureKind, OnFailure, RunError, RunStatus, Sent, WorkflowOptions,
    prelude::*,
    store::MemoryStore,
    testing::{self, Ledger, VirtualClock},
};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");

/// Starts an engine with this code under [`RUN`], and gives it with its clock.
macro_rules! start {
    (|$ctx:ident, $input:ident| $code:block) => {
        start!(WorkflowOptions::new(), |$ctx, $input| $code)
    };
    ($options:expr, |$ctx:ident, $input:ident| $code:block) => {{
        let clock = VirtualClock::new();
        let engine = testing::engine()
            .clock(clock.clone())
            .provide(Ledger::new())
            .register_fn_with(RUN, $options, |$ctx: Ctx, $input: u32| async move {
                _ = $input;
                $code
            })
            .start()
            .await
            .unwrap();
        (engine, clock)
    }};
}

#[tokio::test(flavor = "multi_thread")]
async fn only_iterations_10_to_19_are_left_of_seed_000() {
    let (engine, _clock) = start!(|ctx, _n| {
        let processed = ctx
            .repeat("process-items", 0u32, async |ctx, n| {
                let item = ctx.step("fetch", async || Ok(n)).await?;
                ctx.step("process", async || Ok(item)).await?;
                Ok(match n {
                    19 => ControlFlow::Break(n + 1),
                    _ => ControlFlow::Continue(n + 1),
                })
            })
            .commit_every(10)
            .history_every(10)
            .history_keep(10)
            .await?;
        Ok(json!(processed))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(20));
    let history = run.history().await.unwrap();
    let mut left: Vec<_> = history
        .iter()
        .map(|entry| entry.location.clone())
        .filter(|at| at.ends_with("/fetch") || at.ends_with("/process"))
        .collect();
    left.sort();
    let mut expected: Vec<_> = (10..20)
        .flat_map(|n| ["fetch", "process"].map(|name| format!("process-items/~{n}/{name}")))
        .collect();
    expected.sort();
    assert_eq!(left, expected);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failure_that_was_handled_is_the_same_after_a_replay() {
    let (engine, clock) = start!(|ctx, _n| {
        let before = ctx
            .step_with("broken", async |step: Step| {
                Err::<(), _>(Error::msg(format!("attempt {}", step.attempt())))
            })
            .retry(Retry::fixed(2, minutes(1)))
            .outcome()
            .await?;
        let Outcome::Failed { status, failure } = before else {
            return Err(Error::fatal("it cannot complete"));
        };
        let text = format!("{status:?} {failure:?}");
        ctx.set_state("first", &text)?;
        let _: u32 = ctx.listen("go").await?;
        Ok(json!(text))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    let held = clock.sleep(hours(1)).await;
    assert!(engine.evict(run.id()).await);
    run.send("go", &1).await.unwrap();
    drop(held);
    let text = run.result().await.unwrap();
    assert_eq!(run.state::<Json>("first").await.unwrap(), Some(text.clone()));
    assert!(text.as_str().unwrap().contains("Exhausted"), "{text}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn no_value_is_a_value() {
    let (engine, clock) = start!(|ctx, _n| {
        let ledger = ctx.get::<Ledger>();
        ctx.step("void", async || {
            ledger.ran("void");
            Ok(())
        })
        .await?;
        let none: Option<u32> = ctx.step("none", async || Ok(None)).await?;
        let won = ctx
            .race(
                "race",
                [
                    branch("unit", async |ctx: Ctx| ctx.step("void", async || Ok(())).await),
                    branch("never", async |ctx: Ctx| {
                        ctx.sleep("nap", days(9)).await?;
                        Ok(())
                    }),
                ],
            )
            .await?;
        let _: u32 = ctx.listen("go").await?;
        Ok(json!([none, won.name]))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    let held = clock.quiet().await;
    assert!(engine.evict(run.id()).await);
    run.send("go", &1).await.unwrap();
    drop(held);
    assert_eq!(run.result().await.unwrap(), json!([null, "unit"]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retry_after_sets_the_delay_and_fatal_ends_it() {
    let (engine, clock) = start!(|ctx, n| {
        let at = ctx
            .step_with("step", async |step: Step| match step.attempt() {
                1 => Err(Error::retry_after("later", hours(3))),
                2 if n == 1 => Err(Error::fatal("stop")),
                attempt => Ok(attempt),
            })
            .await?;
        Ok(json!(at))
    });
    let began = everstep::Clock::now(&*clock);
    let client = engine.client();
    let run = client.start(RUN, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(2));
    let info = run.info().await.unwrap();
    assert_eq!(info.finished_at, Some(began + hours(3)));
    let run = client.start(RUN, 1).await.unwrap();
    let failed = run.result().await.unwrap_err();
    assert_eq!(failed.failure().unwrap().kind, FailureKind::Fatal);
    let history = run.history().await.unwrap();
    assert_eq!(history[0].attempts, 2);
    assert_eq!(history[0].status, EntryStatus::Failed);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_timeout_is_tried_again_only_if_told() {
    let (engine, _clock) = start!(|ctx, n| {
        let slow = ctx
            .step_with("slow", async |step: Step| {
                if step.attempt() < 3 {
                    step.cancellation().cancelled().await;
                    std::future::pending::<()>().await;
                }
                Ok(step.attempt())
            })
            .timeout(minutes(1));
        let slow = if n == 1 { slow.retry_on_timeout() } else { slow };
        Ok(json!(slow.await?))
    });
    let client = engine.client();
    let failed = client.start(RUN, 0).await.unwrap().result().await;
    let kind = failed.unwrap_err().failure().unwrap().kind;
    assert_eq!(kind, FailureKind::TimedOut);
    let run = client.start(RUN, 1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!(3));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_request_is_answered_or_told_that_the_run_ended() {
    let (engine, _clock) = start!(|ctx, _n| {
        let ask = ctx.receive::<u32>("ask").await?;
        ask.reply(&(ask.body * 2))?;
        ask.reply(&"the first answer counts")?;
        let _ = ctx.receive::<u32>("ask").await?;
        Ok(json!(null))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert_eq!(run.request::<_, u32>("ask", &21).await.unwrap(), 42);
    let unanswered = run.request::<_, u32>("ask", &1).await;
    assert!(matches!(unanswered, Err(ClientError::NoReply { .. })), "{unanswered:?}");
    let late = run.request::<_, u32>("ask", &1).await;
    assert!(matches!(late, Err(ClientError::Finished { .. })), "{late:?}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_message_with_an_equal_dedupe_key_is_not_delivered() {
    let (engine, clock) = start!(|ctx, _n| {
        let first: u32 = ctx.listen("word").await?;
        let second: Option<u32> = ctx.listen("word").timeout(hours(1)).await?;
        Ok(json!([first, second]))
    });
    let held = clock.hold();
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert_eq!(run.send("word", &1).dedupe("k").await.unwrap(), Sent::Delivered);
    let _quiet = clock.quiet().await;
    // Also after the first was read.
    assert_eq!(run.send("word", &2).dedupe("k").await.unwrap(), Sent::Duplicate);
    drop((held, _quiet));
    assert_eq!(run.result().await.unwrap(), json!([1, null]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_pauses_on_failure_goes_on_when_resumed() {
    static BROKEN: AtomicU32 = AtomicU32::new(1);
    let options = WorkflowOptions::new().on_failure(OnFailure::Pause);
    let (engine, clock) = start!(options, |ctx, _n| {
        ctx.step("before", async || {
            ctx.get::<Ledger>().ran("before");
            Ok(())
        })
        .await?;
        ctx.step("broken", async || match BROKEN.load(Ordering::SeqCst) {
            0 => Ok(()),
            _ => Err(Error::fatal("broken")),
        })
        .await?;
        Ok(json!("mended"))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    drop(clock.stuck().await);
    let info = run.info().await.unwrap();
    assert_eq!(info.status, RunStatus::Paused);
    assert!(info.waiting.unwrap().contains("broken"));
    BROKEN.store(0, Ordering::SeqCst);
    run.resume().await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!("mended"));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_key_attaches_and_says_whether_the_input_differs() {
    let (engine, clock) = start!(|ctx, n| {
        ctx.sleep("nap", hours(1)).await?;
        Ok(json!(n))
    });
    let _held = clock.hold();
    let client = engine.client();
    let (one, two) = tokio::join!(
        client.start(RUN, 1).key("k").into_future(),
        client.start(RUN, 1).key("k").into_future()
    );
    let (one, two) = (one.unwrap(), two.unwrap());
    assert_eq!(one.id(), two.id());
    assert!(one.attached() != two.attached(), "one of them made it");
    let third = client.start(RUN, 2).key("k").await.unwrap();
    assert!(third.attached() && third.input_differs());
    assert!(!two.input_differs());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_start_begins_at_its_time() {
    let (engine, clock) = start!(|ctx, _n| { Ok(json!(ctx.run_attempt())) });
    let began = everstep::Clock::now(&*clock);
    let run = engine.client().start(RUN, 0).after(days(2)).await.unwrap();
    assert_eq!(run.poll().await.unwrap(), None);
    run.result().await.unwrap();
    let info = run.info().await.unwrap();
    assert_eq!(info.finished_at, Some(began + days(2)));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn runs_are_listed_by_tag_and_status_in_pages() {
    let (engine, _clock) = start!(|ctx, n| {
        if n.is_multiple_of(2) {
            return Err(Error::fatal("even"));
        }
        Ok(json!(ctx.run_attempt()))
    });
    let client = engine.client();
    for n in 0..7 {
        let tag = if n < 5 { "low" } else { "high" };
        let run = client.start(RUN, n).tag("size", tag).await.unwrap();
        _ = run.result().await;
    }
    assert_eq!(client.count().tag("size", "low").await.unwrap(), 5);
    let failed = client.count().status(RunStatus::Failed).await.unwrap();
    assert_eq!(failed, 4);
    let mut seen = Vec::new();
    let mut after = None;
    loop {
        let mut list = client.list().tag("size", "low").limit(2);
        if let Some(cursor) = after {
            list = list.after(cursor);
        }
        let page = list.await.unwrap();
        seen.extend(page.runs.iter().map(|run| run.input.clone()));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    assert_eq!(seen, [4, 3, 2, 1, 0].map(Json::from));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_untyped_twin_speaks_json() {
    let (engine, _clock) = start!(|ctx, n| {
        let word: String = ctx.listen("word").await?;
        Ok(json!({"n": n, "word": word}))
    });
    let client = engine.client();
    let run = client.start_json("run", &json!(5)).key("k").await.unwrap();
    let same = client.get(("run", "k")).await.unwrap().unwrap();
    assert_eq!(same.id(), run.id());
    same.send("word", &json!("hi")).await.unwrap();
    assert_eq!(run.result_json().await.unwrap(), json!({"n": 5, "word": "hi"}));
    assert!(client.get(("run", "other")).await.unwrap().is_none());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn several_versions_live_side_by_side() {
    const V1: Workflow<u32, String> = Workflow::new("w");
    const V3: Workflow<u32, String> = Workflow::new("w").version(3);
    let code = |name: &'static str| {
        move |ctx: Ctx, _: u32| async move { Ok(format!("{name} as {}", ctx.workflow_version())) }
    };
    let engine = testing::engine()
        .register_fn(V1, code("one"))
        .register_fn_with(V3, WorkflowOptions::new().accepts(2..=3), code("three"))
        .start()
        .await
        .unwrap();
    let client = engine.client();
    for (version, expected) in [(1, "one as 1"), (2, "three as 2"), (3, "three as 3")] {
        let run = client.start(V1, 0).version(version).await.unwrap();
        assert_eq!(run.result().await.unwrap(), expected);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_recovery_report_counts_what_was_found() {
    let store = MemoryStore::new();
    let code = |ctx: Ctx, n: u32| async move {
        match n {
            0 => _ = ctx.sleep("nap", hours(1)).await?,
            1 => _ = ctx.listen::<u32>("word").await?,
            2 => _ = ctx.sleep("nap", days(1)).await?,
            _ => {
                ctx.step("forever", async || {
                    std::future::pending::<()>().await;
                    Ok(())
                })
                .await?;
            }
        }
        Ok(json!(null))
    };
    let clock = VirtualClock::new();
    let begin = |store: MemoryStore, clock: Arc<VirtualClock>| {
        everstep::Engine::on(Arc::new(store))
            .clock(clock)
            .settings(|settings| settings.shutdown_limit = Duration::from_millis(50))
            .register_fn(RUN, code)
    };
    let engine = begin(store.clone(), clock.clone()).start().await.unwrap();
    let held = clock.hold();
    for n in [0, 1, 1, 2, 2, 2, 3] {
        engine.client().start(RUN, n).await.unwrap();
    }
    let paused = engine.client().start(RUN, 1).await.unwrap();
    drop(clock.quiet().await);
    paused.pause().await.unwrap();
    drop(clock.quiet().await);
    // As after a kill: nothing is handed back in good order.
    let fork = store.fork();
    let later = VirtualClock::at(everstep::Clock::now(&*clock) + hours(2));
    let _held_too = later.hold();
    let next = begin(fork, later.clone()).start().await.unwrap();
    let report = next.recovery();
    assert_eq!(
        (report.resumed, report.due, report.timers, report.waiting, report.paused),
        (1, 1, 3, 2, 1),
        "{report}"
    );
    drop(held);
    engine.shutdown().await;
    next.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn unread_messages_become_dead_letters() {
    let (engine, _clock) = start!(|ctx, _n| {
        let _: u32 = ctx.listen("end").await?;
        Ok(json!(null))
    });
    let client = engine.client();
    let run = client.start(RUN, 0).await.unwrap();
    run.send("other", &1).await.unwrap();
    run.send("end", &2).await.unwrap();
    run.result().await.unwrap();
    let dead = client.dead_letters().run(run.id()).await.unwrap().letters;
    assert_eq!(dead.len(), 1);
    assert_eq!(dead[0].name, "other");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancelled_run_says_so() {
    let (engine, clock) = start!(|ctx, _n| {
        ctx.sleep("nap", days(1)).await?;
        Ok(json!(null))
    });
    let held = clock.hold();
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert!(run.cancel().await.unwrap());
    drop(held);
    assert!(matches!(run.result().await, Err(RunError::Cancelled { .. })));
    assert!(!run.cancel().await.unwrap(), "it has ended");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_branches_of_one_name_have_places_of_their_own() {
    let (engine, _clock) = start!(|ctx, _n| {
        let one =
            |n: u32| branch("same", async move |ctx: Ctx| ctx.step("work", async || Ok(n)).await);
        Ok(json!(ctx.join("both", vec![one(1), one(2)]).await?))
    });
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([1, 2]));
    let history = run.history().await.unwrap();
    let places: Vec<_> = history.iter().map(|entry| entry.location.as_str()).collect();
    assert_eq!(places, ["both", "both/same/work", "both/same#2/work"]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_heartbeat_gives_a_body_its_time_again() {
    let (clock, go) = (VirtualClock::new(), Arc::new(tokio::sync::Notify::new()));
    let engine = testing::engine()
        .clock(clock.clone())
        .provide(go.clone())
        .register_fn(RUN, |ctx: Ctx, _| async move {
            let step = ctx.step_with("long", async |step: Step| {
                for _ in 0..3 {
                    step.get::<Arc<tokio::sync::Notify>>().notified().await;
                    step.heartbeat();
                }
                Ok(7)
            });
            Ok(json!(step.timeout(Duration::from_secs(10)).await?))
        })
        .start()
        .await
        .unwrap();
    let hold = clock.hold();
    let run = engine.client().start(RUN, 0).await.unwrap();
    for _ in 0..3 {
        let _still = clock.quiet().await;
        // Without the heartbeats the ten seconds would be over at the second turn.
        clock.advance(Duration::from_secs(6));
        go.notify_one();
    }
    drop(hold);
    assert_eq!(run.result().await.unwrap(), json!(7));
    engine.shutdown().await;
}

/// The function of a spawned step was called in the workflow's own poll: a panic before its first await
/// failed the run, and no attempt was made again.
#[tokio::test(flavor = "multi_thread")]
async fn a_spawned_body_that_panics_before_its_first_await_is_tried_again() {
    let begun = Arc::new(AtomicU32::new(0));
    let (clock, counted) = (VirtualClock::new(), begun.clone());
    let engine = testing::engine()
        .clock(clock.clone())
        .register_fn(RUN, move |ctx: Ctx, _: u32| {
            let begun = counted.clone();
            async move {
                let body = move |_: Step| {
                    assert!(begun.fetch_add(1, Ordering::SeqCst) > 0, "the first attempt panics");
                    async { Ok(json!("done")) }
                };
                ctx.spawn("spawned", body).await
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!("done"));
    assert_eq!(begun.load(Ordering::SeqCst), 2);
    engine.shutdown().await;
}
