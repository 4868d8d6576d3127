//! Control over runs from outside: delete and retention, bulk, tags, fork, history, why.

#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use everstep::{
    Client, ClientError, Filter, Retention, RunError, RunStatus, WorkflowOptions,
    prelude::*,
    store::{MemoryStore, Store},
    testing::{self, CrashPoint, CrashingStore, Ledger, VirtualClock},
};
use scenario::{LIMIT, until_status};
use tokio::time::timeout;

const QUICK: Workflow<u32, u32> = Workflow::new("quick");
const WAIT: Workflow<u32, u32> = Workflow::new("wait");
const FAIL: Workflow<(), ()> = Workflow::new("fail");
const NAP: Workflow<Duration, ()> = Workflow::new("nap");

fn with_workflows(builder: everstep::EngineBuilder) -> everstep::EngineBuilder {
    builder
        .register_fn(QUICK, |ctx, n| async move { ctx.step("double", async || Ok(2 * n)).await })
        .register_fn(WAIT, |ctx, n| async move {
            let add: u32 = ctx.listen("add").await?;
            Ok(n + add)
        })
        .register_fn(FAIL, |_, ()| async move { Err(Error::fatal("as always")) })
        .register_fn(NAP, |ctx, d| async move {
            ctx.sleep("nap", d).await?;
            Ok(())
        })
}

/// One on each kind of store.
fn builders() -> Vec<everstep::EngineBuilder> {
    vec![
        Engine::on(testing::store()),
        #[cfg(feature = "sqlite")]
        Engine::open(tempfile::tempdir().unwrap().keep().join("app.db")),
    ]
}

/// An engine on each kind of store, on virtual time.
async fn engines(settings: impl Fn(&mut everstep::Settings)) -> Vec<(Engine, Arc<VirtualClock>)> {
    let mut engines = Vec::new();
    for builder in builders() {
        let clock = VirtualClock::new();
        let builder = with_workflows(builder).clock(clock.clone());
        engines.push((builder.settings(&settings).start().await.unwrap(), clock));
    }
    engines
}

#[tokio::test(flavor = "multi_thread")]
async fn a_deleted_run_is_gone_and_its_key_is_kept_for_its_window() {
    for (engine, clock) in engines(|settings| settings.key_tombstone = hours(24)).await {
        let client = engine.client();
        let run = client.start(QUICK, 4).key("k").await.unwrap();
        run.result().await.unwrap();
        let held = clock.hold();
        run.delete().await.unwrap();
        assert!(client.get(run.id()).await.unwrap().is_none());
        assert!(matches!(
            run.result().await,
            Err(RunError::Client(ClientError::UnknownRun { .. }))
        ));
        assert!(matches!(run.delete().await, Err(ClientError::UnknownRun { .. })));
        let error = client.start(QUICK, 4).key("k").await.unwrap_err();
        let expected = format!(
            "the key `k` of workflow `quick` was used by run {}, which has ended and was deleted \
             on",
            run.id()
        );
        assert!(error.to_string().starts_with(&expected), "{error}");
        drop(held);
        client.start(NAP, hours(25)).await.unwrap().result().await.unwrap();
        let again = client.start(QUICK, 5).key("k").await.unwrap();
        assert!(!again.attached());
        assert_eq!(again.result().await.unwrap(), 10);
        again.delete().forget_key().await.unwrap();
        assert!(!client.start(QUICK, 6).key("k").await.unwrap().attached());
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_cannot_be_deleted() {
    for (engine, _) in engines(|_| {}).await {
        let run = engine.client().start(WAIT, 4).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        let error = run.delete().await.unwrap_err();
        assert_eq!(
            error.to_string(),
            format!(
                "run {} is sleeping and cannot be deleted: it has not ended; cancel it first, or \
                 wait for its end",
                run.id()
            )
        );
        run.send("add", &1_u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 5);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn who_waits_for_a_run_that_is_deleted_is_told() {
    let store: Arc<dyn Store> = testing::store();
    let engine = with_workflows(Engine::on(store.clone()));
    let engine = engine.start().await.unwrap();
    // It is not told of ends, but asks for them: it may come too late.
    let other = Client::on(store).unwrap();
    for n in 0..20 {
        let run = engine.client().start(WAIT, n).await.unwrap();
        let waiting = other.run::<u32>(run.id());
        let waiting = tokio::spawn(async move { waiting.result().await });
        tokio::task::yield_now().await;
        run.send("add", &1_u32).await.unwrap();
        run.result().await.unwrap();
        run.delete().await.unwrap();
        match timeout(LIMIT, waiting).await.expect("it is told").unwrap() {
            Ok(result) => assert_eq!(result, n + 1),
            Err(RunError::Client(ClientError::UnknownRun { .. })) => {}
            Err(other) => panic!("{other}"),
        }
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_deletes_by_workflow_and_status() {
    const KEPT: Workflow<u32, u32> = Workflow::new("kept");
    for builder in builders() {
        let clock = VirtualClock::new();
        let engine = with_workflows(builder)
            .register_fn_with(
                KEPT,
                WorkflowOptions::new().retain(Retention::new().completed(days(10))),
                |_, n| async move { Ok(n) },
            )
            .settings(|settings| {
                settings.retention = Retention::new().completed(days(2)).cancelled(days(1));
            })
            .clock(clock.clone())
            .start()
            .await
            .unwrap();
        let client = engine.client();
        let held = clock.hold();
        let quick = client.start(QUICK, 1).key("q").await.unwrap();
        quick.result().await.unwrap();
        let kept = client.start(KEPT, 1).await.unwrap();
        kept.result().await.unwrap();
        let failed = client.start(FAIL, ()).await.unwrap();
        failed.result().await.unwrap_err();
        let cancelled = client.start(WAIT, 1).await.unwrap();
        cancelled.cancel().await.unwrap();
        cancelled.result().await.unwrap_err();
        let live = client.start(WAIT, 1).await.unwrap();
        drop(held);
        let all = [quick.id(), kept.id(), failed.id(), cancelled.id(), live.id()];
        let there = async || {
            let mut there = Vec::new();
            for id in all {
                there.push(client.get(id).await.unwrap().is_some());
            }
            there
        };
        let held = clock.sleep(hours(23)).await;
        assert_eq!(there().await, [true, true, true, true, true]);
        // A round comes within a minute or a tenth of the time, whichever is less.
        let held = held.sleep(hours(2)).await;
        assert_eq!(there().await, [true, true, true, false, true]);
        let held = held.sleep(days(1)).await;
        assert_eq!(there().await, [false, true, true, false, true]);
        let error = client.start(QUICK, 1).key("q").await.unwrap_err();
        assert!(matches!(error, ClientError::KeyUsed { .. }), "{error}");
        let held = held.sleep(days(9)).await;
        assert_eq!(there().await, [false, false, true, false, true]);
        drop(held);
        engine.shutdown().await;
    }
}

/// Charts counted what was still there: before the horizon of retention they showed an outage, since
/// completed runs were deleted and failed ones kept.
#[tokio::test(flavor = "multi_thread")]
async fn charts_say_where_retention_has_deleted_runs() {
    for builder in builders() {
        let clock = VirtualClock::new();
        let engine = with_workflows(builder)
            .settings(|settings| settings.retention = Retention::new().completed(hours(10)))
            .clock(clock.clone())
            .start()
            .await
            .unwrap();
        let client = engine.client();
        let held = clock.hold();
        let begin = everstep::Clock::now(&*clock);
        let run = async || {
            let failed = client.start(FAIL, ()).await.unwrap();
            failed.result().await.unwrap_err();
            let quick = client.start(QUICK, 1).await.unwrap();
            quick.result().await.unwrap();
            quick.id()
        };
        let old = run().await;
        assert_eq!(client.retention_horizon().await.unwrap(), None);
        let complete = async || {
            let stats = client.stats(begin, begin + hours(12), hours(1)).await;
            let stats = stats.unwrap();
            let numbers = stats.iter().map(|it| (it.is_complete, it.started));
            numbers.collect::<Vec<_>>()
        };
        assert_eq!(complete().await[0], (true, 2));
        let held = held.sleep(hours(9)).await;
        let new = run().await;
        let held = held.sleep(hours(2)).await;
        assert!(client.get(old).await.unwrap().is_none());
        assert!(client.get(new).await.unwrap().is_some());
        let horizon = client.retention_horizon().await.unwrap().unwrap();
        assert!(horizon > begin && horizon <= begin + minutes(2), "{horizon}");
        let stats = complete().await;
        assert_eq!(stats[0], (false, 1), "the failed run is still there");
        assert!(stats[1..].iter().all(|(complete, _)| *complete), "{stats:?}");
        assert_eq!(stats[9], (true, 2));
        // A run that was deleted by hand does not make the rest of the chart unknown.
        client.run::<u32>(new).delete().await.unwrap();
        assert_eq!(client.retention_horizon().await.unwrap(), Some(horizon));
        drop(held);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn retention_of_many_runs_goes_in_slices() {
    let clock = VirtualClock::new();
    let engine = with_workflows(Engine::on(testing::store()))
        .settings(|settings| settings.retention = Retention::new().all(hours(1)))
        .clock(clock.clone())
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let held = clock.hold();
    let mut runs = Vec::new();
    for n in 0..700 {
        runs.push(client.start(QUICK, n).await.unwrap());
    }
    for run in &runs {
        run.result().await.unwrap();
    }
    assert_eq!(client.count().await.unwrap(), 700);
    let _held = held.sleep(hours(2)).await;
    assert_eq!(client.count().await.unwrap(), 0);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn many_runs_are_controlled_in_bulk() {
    const RUNS: u64 = 2_500;
    for (engine, clock) in engines(|_| {}).await {
        let client = engine.client();
        let _held = clock.hold();
        let starts = (0..RUNS as u32).map(|n| {
            let client = client.clone();
            tokio::spawn(async move {
                let tag = if n % 5 == 0 { "a" } else { "b" };
                client.start(WAIT, n).tag("half", tag).await.unwrap();
            })
        });
        for start in starts.collect::<Vec<_>>() {
            start.await.unwrap();
        }
        let other = client.start(QUICK, 1).await.unwrap();
        other.result().await.unwrap();
        let all = || client.bulk(Filter::new().workflow("wait"));
        assert_eq!(all().count().await.unwrap(), RUNS);
        let _quiet = clock.quiet().await;

        let progress = Arc::new(AtomicU64::new(0));
        let calls = progress.clone();
        let report = all()
            .on_progress(move |_| _ = calls.fetch_add(1, Ordering::SeqCst))
            .pause()
            .await
            .unwrap();
        assert_eq!((report.met, report.done), (RUNS, RUNS));
        assert!(progress.load(Ordering::SeqCst) > 5);
        assert_eq!(all().pause().await.unwrap().already, RUNS);
        let some = client.bulk(Filter::new().tag("half", "a"));
        assert_eq!(some.resume().await.unwrap().done, RUNS / 5);
        assert_eq!(all().delete().await.unwrap().refused, RUNS);

        // In two parts.
        let first = all().limit(1_000).cancel().await.unwrap();
        assert_eq!((first.met, first.done), (1_000, 1_000));
        let next = first.next.unwrap();
        let second = all().after(next).cancel().await.unwrap();
        assert_eq!((second.done, second.next), (RUNS - 1_000, None));
        let live = [RunStatus::Paused, RunStatus::Sleeping, RunStatus::Running];
        let live = live.into_iter().chain([RunStatus::Pending]);
        let live = live.fold(Filter::new().workflow("wait"), Filter::status);
        scenario::until("all to end", async || {
            (client.bulk(live.clone()).count().await.unwrap() == 0).then_some(())
        })
        .await;
        assert_eq!(all().cancel().await.unwrap().finished, RUNS);

        let report = all().retry().await.unwrap();
        assert_eq!((report.refused, report.reasons.len()), (RUNS, 100));
        let hint = "is cancelled and cannot be retried: only a failed run can be retried";
        assert!(report.reasons[0].1.ends_with(hint));
        assert_eq!(all().delete().await.unwrap().done, RUNS);
        assert_eq!(all().count().await.unwrap(), 0);
        assert_eq!(client.count().await.unwrap(), 1, "the other one is left");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn failed_runs_are_retried_in_bulk() {
    const FLAKY: Workflow<bool, u32> = Workflow::new("flaky");
    let broken = Arc::new(AtomicU64::new(1));
    let is_broken = broken.clone();
    let engine = testing::engine()
        .register_fn(FLAKY, move |ctx, own: bool| {
            let broken = is_broken.clone();
            async move {
                if own {
                    return Err(Error::fatal("made here"));
                }
                let call = ctx.step("call", async || match broken.load(Ordering::SeqCst) {
                    0 => Ok(7),
                    _ => Err(Error::fatal("down")),
                });
                call.await
            }
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..10 {
        runs.push(client.start(FLAKY, n == 3).await.unwrap());
    }
    for run in &runs {
        run.result().await.unwrap_err();
    }
    broken.store(0, Ordering::SeqCst);
    let failed = Filter::new().status(RunStatus::Failed);
    let report = client.bulk(failed).retry().await.unwrap();
    assert_eq!((report.done, report.refused), (9, 1));
    let (refused, reason) = &report.reasons[0];
    assert_eq!(*refused, runs[3].id());
    assert!(reason.contains("`fork` it from a step"), "{reason}");
    for n in [0, 9] {
        assert_eq!(client.run::<u32>(runs[n].id()).result().await.unwrap(), 7);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tags_are_set_from_both_sides() {
    const TAGGED: Workflow<(), ()> = Workflow::new("tagged");
    let engine = testing::engine()
        .register_fn(TAGGED, |ctx, ()| async move {
            ctx.set_tag("phase", "begun")?;
            ctx.step("work", async || Ok(())).await?;
            ctx.set_tag("phase", "waiting")?;
            ctx.remove_tag("draft");
            ctx.listen::<()>("go").await?;
            ctx.set_tag("phase", "done")
        })
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let run = client.start(TAGGED, ()).tag("draft", "yes").await.unwrap();
    let info = until_status(&run, RunStatus::Sleeping).await;
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    assert_eq!(info.tags, [tag("phase", "waiting")]);
    assert!(run.tag("owner", "ada").await.unwrap());
    assert!(!run.tag("owner", "ada").await.unwrap());
    let found = client.list().tag("owner", "ada").tag("phase", "waiting");
    assert_eq!(found.await.unwrap().runs[0].id, run.id());
    assert!(run.untag("owner").await.unwrap());
    run.send("go", &()).await.unwrap();
    run.result().await.unwrap();
    assert_eq!(run.info().await.unwrap().tags, [tag("phase", "done")]);
    assert!(run.tag("archived", "yes").await.unwrap(), "an ended run too");
    let error = run.tag("", "x").await.unwrap_err();
    assert!(error.to_string().contains("a tag's name cannot be used"));
    engine.shutdown().await;
}

/// What happened is in its output: results, time and randomness.
#[workflow]
async fn journey(ctx: Ctx, start: u32) -> Result<String> {
    let mark = |name: &str| ctx.get::<Ledger>().ran(name);
    let id = ctx.uuid();
    let a = ctx
        .step("a", async || {
            mark("a");
            Ok(start + 1)
        })
        .await?;
    let early = ctx.random() % 1_000;
    ctx.sleep("rest", hours(1)).await?;
    let (b, c) = ctx
        .join(
            "both",
            (
                branch("left", async |ctx| {
                    ctx.step("b", async || {
                        mark("b");
                        Ok(a * 10)
                    })
                    .await
                }),
                branch("right", async |ctx| {
                    ctx.step("c", async || {
                        mark("c");
                        Ok(a * 100)
                    })
                    .await
                }),
            ),
        )
        .await?;
    let way = if b > 100 { "high" } else { "low" };
    let d = ctx
        .step(way, async || {
            mark(way);
            Ok(b + c)
        })
        .await?;
    let waited = ctx.now().since(BEGINNING).as_secs() >= 3_600;
    Ok(format!("{id} {early} {a} {b} {c} {way} {d} {waited}"))
}

/// The beginning of virtual time.
const BEGINNING: Timestamp = Timestamp::from_millis(1_767_225_600_000);

async fn journeys(store: Arc<dyn Store>, ledger: &Ledger) -> Engine {
    Engine::on(store)
        .register(journey)
        .provide(ledger.clone())
        .clock(VirtualClock::new())
        .start()
        .await
        .unwrap()
}

/// The output without the number that is drawn after `a`.
fn without_draw(output: &str) -> String {
    let mut words: Vec<&str> = output.split(' ').collect();
    words.remove(1);
    words.join(" ")
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_without_edits_ends_as_the_original() {
    let ledger = Ledger::new();
    let engine = journeys(testing::store(), &ledger).await;
    let run = engine.client().start(journey, 1).tag("x", "y").await.unwrap();
    let original = run.result().await.unwrap();
    for from in ["a", "rest", "both/left/b", "both/right/c", "both", "low"] {
        let fork = run.fork().from(from).start().await.unwrap();
        assert_ne!(fork.id(), run.id());
        let forks = fork.result().await.unwrap();
        if from == "a" {
            // What is drawn after the place of the fork is its own.
            assert_ne!(forks, original);
            assert_eq!(without_draw(&forks), without_draw(&original));
            continue;
        }
        assert_eq!(forks, original, "from `{from}`");
        let info = fork.info().await.unwrap();
        let forked_from = ("everstep.forked_from".to_owned(), run.id().to_string());
        assert!(info.tags.contains(&forked_from));
        assert!(info.tags.contains(&("x".to_owned(), "y".to_owned())));
        // And a fork of the fork.
        let second = fork.fork().from("low").start().await.unwrap();
        assert_eq!(second.result().await.unwrap(), original, "from `{from}`");
    }
    // Once by the original, and by the forks that began before it: `a` by one of six.
    assert_eq!(ledger.count("a"), 2);
    assert_eq!(ledger.count("low"), 1 + 6 + 5);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_with_another_result_takes_the_other_way() {
    let ledger = Ledger::new();
    let engine = journeys(testing::store(), &ledger).await;
    let run = engine.client().start(journey, 1).await.unwrap();
    let original = run.result().await.unwrap();
    assert!(original.contains(" 2 20 200 low 220 "), "{original}");
    // A result of the step that it begins with, which is not run again.
    let fork = run.fork().from("both/left/b");
    let fork = fork.result("both/left/b", &500_u32).unwrap();
    let other = fork.start().await.unwrap().result().await.unwrap();
    assert!(other.contains(" 2 500 200 high 700 "), "{other}");
    assert_eq!(other[..36], original[..36], "the id was made before");
    assert_eq!(ledger.count("b"), 1);
    // Without a place, it begins where the first result is another.
    let fork = run.fork().result("both/left/b", &500_u32).unwrap();
    assert_eq!(fork.start().await.unwrap().result().await.unwrap(), other);
    // A result of a step that is taken over: what follows it in the history stands.
    let fork = run.fork().from("low").result("a", &9_u32).unwrap();
    let kept = fork.start().await.unwrap().result().await.unwrap();
    assert!(kept.contains(" 9 20 200 low 220 "), "{kept}");
    // Another input, from the beginning, and with a history that does not fit it.
    let fork = run.fork().input(&20_u32).unwrap();
    let fresh = fork.start().await.unwrap().result().await.unwrap();
    assert!(fresh.contains(" 21 210 2100 high "), "{fresh}");
    assert_ne!(fresh[..36], original[..36]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_fork_that_does_not_fit_its_history_is_paused() {
    const EITHER: Workflow<bool, u32> = Workflow::new("either");
    let engine = testing::engine()
        .register_fn(EITHER, |ctx, left| async move {
            let name = if left { "left" } else { "right" };
            ctx.step(name, async || Ok(1)).await?;
            ctx.step("end", async || Ok(2)).await
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(EITHER, true).await.unwrap();
    run.result().await.unwrap();
    let fork = run.fork().from("end").input(&false).unwrap();
    let fork = fork.start().await.unwrap();
    let reason = scenario::until_paused(&fork).await;
    assert!(reason.contains("left"), "{reason}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_cannot_be_forked_is_said() {
    let ledger = Ledger::new();
    let engine = journeys(testing::store(), &ledger).await;
    let run = engine.client().start(journey, 1).await.unwrap();
    run.result().await.unwrap();
    let error = run.fork().from("nowhere").start().await.unwrap_err();
    let expected =
        format!("run {} cannot be forked: its history has nothing at `nowhere`", run.id());
    assert!(error.to_string().starts_with(&expected), "{error}");
    let later = run.fork().from("a").result("low", &1_u32).unwrap();
    let error = later.start().await.unwrap_err().to_string();
    assert!(error.contains("`low` was begun after the step"), "{error}");
    let structure = run.fork().from("low").result("both", &1_u32).unwrap();
    let error = structure.start().await.unwrap_err().to_string();
    assert!(error.contains("has no result that could be"), "{error}");
    let error = run.fork().from("~x").start().await.unwrap_err();
    assert!(error.to_string().contains("is not a location"), "{error}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_run_can_be_forked() {
    for (engine, _) in engines(|_| {}).await {
        let client = engine.client();
        let run = client.start(WAIT, 3).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        let fork = run.fork().from("add").start().await.unwrap();
        fork.send("add", &10_u32).await.unwrap();
        assert_eq!(fork.result().await.unwrap(), 13);
        run.send("add", &1_u32).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 4);
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rolled_back_step_is_run_again_by_a_fork() {
    const BOOK: Workflow<(), u32> = Workflow::new("book");
    let fails = Arc::new(AtomicU64::new(1));
    let (is_failing, ledger) = (fails.clone(), Ledger::new());
    let engine = testing::engine()
        .provide(ledger.clone())
        .register_fn(BOOK, move |ctx, ()| {
            let fails = is_failing.clone();
            async move {
                ctx.step("before", async || Ok(())).await?;
                let hold = ctx.step("hold", async || {
                    ctx.get::<Ledger>().ran("hold");
                    Ok(5)
                });
                let hold = hold
                    .rollback(async |rb, _| {
                        rb.get::<Ledger>().ran("undo");
                        Ok(())
                    })
                    .await?;
                ctx.step("pack", async || Ok(1)).await?;
                if fails.load(Ordering::SeqCst) == 1 {
                    return Err(Error::fatal("made by the code"));
                }
                ctx.step("after", async || Ok(hold)).await
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(BOOK, ()).await.unwrap();
    run.result().await.unwrap_err();
    assert_eq!((ledger.count("hold"), ledger.count("undo")), (1, 1));
    let error = run.retry().await.unwrap_err();
    assert!(error.to_string().contains("then `fork` it"), "{error}");
    fails.store(0, Ordering::SeqCst);
    // It would be recorded before the code, which holds again first, has come to it.
    let later = run.fork().from("pack").result("pack", &2).unwrap();
    let error = later.start().await.unwrap_err().to_string();
    assert!(error.contains("`pack` was begun after a step that"), "{error}");
    let fork = run.fork().from("pack").start().await.unwrap();
    assert_eq!(fork.result().await.unwrap(), 5);
    assert_eq!((ledger.count("hold"), ledger.count("undo")), (2, 1));
    engine.shutdown().await;
}

/// The rollback of a loser was the last completion of the run, and was taken for a rollback at its end. So a
/// fork from a later place ran the loser's step again, and the race with it.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_keeps_a_race_that_ended_with_the_rollback_of_its_loser() {
    const RACES: Workflow<(), u32> = Workflow::new("races-then-waits");
    let ledger = Ledger::new();
    let code = |ctx: Ctx, ()| async move {
        let loser = async |ctx: Ctx| {
            let book = ctx.step("book", async || {
                ctx.get::<Ledger>().ran("book");
                Ok(())
            });
            book.rollback(async |rb, ()| {
                rb.get::<Ledger>().ran("undo");
                Ok(())
            })
            .await?;
            ctx.sleep("late", hours(1)).await?;
            Ok(())
        };
        let winner = async |ctx: Ctx| {
            ctx.sleep("soon", minutes(1)).await?;
            Ok(())
        };
        ctx.race("race", [branch("loser", loser), branch("winner", winner)]).await?;
        ctx.listen::<u32>("end").await
    };
    let engine = testing::engine().provide(ledger.clone()).register_fn(RACES, code);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RACES, ()).await.unwrap();
    scenario::until("the run listens", async || {
        let waiting = run.info().await.unwrap().waiting;
        (waiting.as_deref() == Some("message for `end`")).then_some(())
    })
    .await;
    let fork = run.fork().from("end").start().await.unwrap();
    fork.send("end", &7_u32).await.unwrap();
    assert_eq!(fork.result().await.unwrap(), 7);
    assert_eq!((ledger.count("book"), ledger.count("undo")), (1, 1));
    engine.shutdown().await;
}

/// A fork dies before and after every write, and is started again on what has survived.
#[tokio::test(flavor = "multi_thread")]
async fn a_fork_ends_the_same_wherever_it_dies() {
    let base = MemoryStore::new();
    let ledger = Ledger::new();
    let engine = journeys(Arc::new(base.clone()), &ledger).await;
    let run = engine.client().start(journey, 1).await.unwrap();
    let (id, original) = (run.id(), run.result().await.unwrap());
    engine.shutdown().await;
    let mut points = 0;
    for n in 1.. {
        let mut reached = false;
        for point in [CrashPoint::Before(n), CrashPoint::After(n)] {
            let store = Arc::new(CrashingStore::new(base.fork(), point));
            let ledger = Ledger::new();
            let forked = |engine: Engine| async move {
                let run = engine.client().run::<String>(id);
                let fork = run.fork().from("both/left/b").key("fork");
                let fork = fork.result("both/left/b", &500_u32).unwrap();
                let result = match fork.start().await {
                    Ok(fork) => fork.result().await.ok(),
                    Err(_) => None,
                };
                engine.shutdown().await;
                result
            };
            let engine = Engine::on(store.clone())
                .register(journey)
                .provide(ledger.clone())
                .clock(VirtualClock::new());
            if let Ok(engine) = engine.start().await {
                timeout(LIMIT, forked(engine)).await.expect("it ends or dies");
            }
            if !store.is_dead() {
                continue;
            }
            reached = true;
            points += 1;
            let engine = journeys(Arc::new(store.inner().clone()), &ledger).await;
            let result = timeout(LIMIT, forked(engine)).await.expect("it ends");
            let result = result.expect("it completes");
            assert_eq!(result[..36], original[..36], "{point:?}");
            assert!(result.contains(" 2 500 200 high 700 "), "{result}");
            assert_eq!((ledger.count("a"), ledger.count("b")), (0, 0));
        }
        if !reached {
            break;
        }
    }
    println!("fork, memory: {points} crash points");
    assert!(points >= 10, "{points}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_history_is_paged_for_people() {
    let ledger = Ledger::new();
    let engine = journeys(testing::store(), &ledger).await;
    let run = engine.client().start(journey, 1).await.unwrap();
    run.result().await.unwrap();
    let all = run.history().await.unwrap();
    let mut paged = Vec::new();
    let mut cursor: Option<String> = None;
    loop {
        let mut read = run.history().limit(2);
        if let Some(cursor) = cursor.take() {
            read = read.after(cursor);
        }
        let page = read.page().await.unwrap();
        assert!(page.entries.len() <= 2);
        paged.extend(page.entries);
        match page.next {
            Some(next) => cursor = Some(next),
            None => break,
        }
    }
    assert_eq!(paged, all);
    let locations: Vec<&str> = all.iter().map(|entry| entry.location.as_str()).collect();
    assert!(locations.contains(&"both/left/b"), "{locations:?}");
    let b = all.iter().find(|entry| entry.location == "both/left/b");
    let b = b.unwrap();
    assert_eq!(b.value, Some(20.into()));
    assert!(b.size > 10 && b.number.is_some() && b.completed_at.is_some());
    let error = run.history().after("zz").page().await.unwrap_err();
    assert!(error.to_string().contains("the cursor `zz`"), "{error}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_says_what_a_run_waits_for() {
    const SEVERAL: Workflow<(), ()> = Workflow::new("several");
    const BROKEN: Workflow<(), ()> = Workflow::new("broken");
    let clock = VirtualClock::new();
    let engine = with_workflows(Engine::on(testing::store()))
        .register_fn(SEVERAL, |ctx, ()| async move {
            let wait = ctx.listen::<()>("approval").timeout(hours(5));
            let sleep = ctx.sleep("cool-off", hours(9));
            let (a, b) = tokio::join!(wait, sleep);
            a?;
            b?;
            Ok(())
        })
        .register_fn(BROKEN, |ctx, ()| async move {
            let call = ctx.step("call", async || Err::<(), _>(Error::msg("down")));
            call.retry(Retry::exponential(9)).await
        })
        .clock(clock.clone())
        .start()
        .await
        .unwrap();
    let client = engine.client();
    let _held = clock.hold();
    let several = client.start(SEVERAL, ()).key("s").await.unwrap();
    let broken = client.start(BROKEN, ()).await.unwrap();
    let later = client.start(QUICK, 1).after(hours(3)).await.unwrap();
    let unknown = client.start_json("nobody-has-it", &1.into()).version(3);
    let unknown = unknown.await.unwrap();
    let paused = client.start(WAIT, 1).await.unwrap();
    paused.pause().await.unwrap();
    let done = client.start(QUICK, 1).await.unwrap();
    done.result().await.unwrap();
    let _quiet = clock.quiet().await;
    let say = async |id| client.run::<()>(id).why().await.unwrap().sentence;
    let now = everstep::Clock::now(&*clock);
    assert_eq!(
        say(several.id()).await,
        format!(
            "run {} (`s` of `several`) waits for a message at `approval` until {}, and sleeps at \
             `cool-off` until {}",
            several.id(),
            now + hours(5),
            now + hours(9)
        )
    );
    let sentence = say(broken.id()).await;
    let start = format!("run {} of `broken` waits for attempt 2 of `call` at ", broken.id());
    assert!(sentence.starts_with(&start), "{sentence}");
    assert!(sentence.ends_with("because the last one failed: down"), "{sentence}");
    assert_eq!(
        say(later.id()).await,
        format!("run {} of `quick` does not begin before {}", later.id(), now + hours(3))
    );
    let sentence = say(unknown.id()).await;
    let end = "waits for a runner: no live runner knows workflow `nobody-has-it` version 3; \
               deploy code that has it, or `accepts` it";
    assert!(sentence.ends_with(end), "{sentence}");
    let sentence = say(paused.id()).await;
    assert!(sentence.ends_with("is paused: paused by request"), "{sentence}");
    let sentence = say(done.id()).await;
    assert!(sentence.contains("has ended (completed) at"), "{sentence}");
    done.delete().await.unwrap();
    assert!(client.run::<()>(done.id()).why().await.is_err());
    engine.shutdown().await;
}

/// It said "has ended (failed)", and an operator had to read the history.
#[tokio::test(flavor = "multi_thread")]
async fn why_of_an_ended_run_says_what_failed_and_where_and_what_was_rolled_back() {
    const TRIP: Workflow<bool, ()> = Workflow::new("trip");
    for builder in builders() {
        let engine = with_workflows(builder)
            .register_fn(TRIP, |ctx, fails| async move {
                for name in ["flight", "hotel"] {
                    ctx.step(name, async || Ok(())).rollback(async |_, ()| Ok(())).await?;
                }
                if !fails {
                    return ctx.listen::<()>("never").await;
                }
                let pay = ctx.step("pay", async || Err::<(), _>(Error::msg("the bank is away")));
                let retry = Retry::fixed(3, Duration::from_millis(1));
                pay.retry(retry).await
            })
            .start()
            .await
            .unwrap();
        let client = engine.client();
        let say = async |id| client.run::<()>(id).why().await.unwrap();
        let failed = client.start(TRIP, true).key("t").await.unwrap();
        failed.result().await.unwrap_err();
        let why = say(failed.id()).await;
        let at = failed.info().await.unwrap().finished_at.unwrap();
        let start = format!("run {} (`t` of `trip`) failed at {at}: ", failed.id());
        assert!(why.sentence.starts_with(&start), "{}", why.sentence);
        assert!(why.sentence.contains("pay` failed after 3 attempts: "), "{}", why.sentence);
        assert!(why.sentence.contains("the bank is away"), "{}", why.sentence);
        assert!(why.chain[0].waits_for.is_empty());

        let own = client.start(FAIL, ()).await.unwrap();
        own.result().await.unwrap_err();
        let sentence = say(own.id()).await.sentence;
        let end = ": the code of the workflow gave an error: as always";
        assert!(sentence.ends_with(end), "{sentence}");

        let cancelled = client.start(TRIP, false).await.unwrap();
        until_status(&cancelled, RunStatus::Sleeping).await;
        let audit = client.audit();
        let new = everstep::AuditNew::new("cli:ada", "cancel_run").target(cancelled.id());
        let no = audit.begin(new).await.unwrap();
        cancelled.cancel().with_rollback().strict().await.unwrap();
        audit.end(no, "done").await.unwrap();
        cancelled.result().await.unwrap_err();
        let sentence = say(cancelled.id()).await.sentence;
        assert!(sentence.contains(" was cancelled at "), "{sentence}");
        assert!(sentence.contains(", as `cli:ada` requested at "), "{sentence}");
        let end = "; rolled back: `flight`, `hotel`";
        assert!(sentence.ends_with(end), "{sentence}");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_or_a_pause_that_does_nothing_says_so() {
    let engine = with_workflows(Engine::on(testing::store())).start().await.unwrap();
    let client = engine.client();
    let ended = client.start(QUICK, 1).await.unwrap();
    ended.result().await.unwrap();
    assert!(!ended.cancel().await.unwrap());
    let error = ended.cancel().strict().await.unwrap_err();
    let expected = format!(
        "run {} is completed and cannot be cancelled: it has ended; nothing was done",
        ended.id()
    );
    assert_eq!(error.to_string(), expected);
    let paused = client.start(WAIT, 1).await.unwrap();
    assert!(paused.pause().await.unwrap());
    assert!(!paused.pause().await.unwrap());
    paused.cancel().strict().await.unwrap();
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_the_body_that_runs() {
    const SLOW: Workflow<(), ()> = Workflow::new("slow");
    let gate = Arc::new(tokio::sync::Notify::new());
    let at_gate = gate.clone();
    let engine = Engine::on(testing::store())
        .register_fn(SLOW, move |ctx, ()| {
            let gate = at_gate.clone();
            async move {
                ctx.step("long", async || {
                    gate.notified().await;
                    Ok(())
                })
                .await
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(SLOW, ()).await.unwrap();
    let sentence = scenario::until("the body to be shown", async || {
        let why = run.why().await.unwrap();
        why.sentence.contains("runs the body").then_some(why.sentence)
    });
    let sentence = sentence.await;
    assert!(sentence.contains("runs the body of `long` since"), "{sentence}");
    gate.notify_one();
    run.result().await.unwrap();
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_delayed_start_keeps_its_time_through_a_pause() {
    for (engine, clock) in engines(|_| {}).await {
        let began = everstep::Clock::now(&*clock);
        let held = clock.hold();
        let run = engine.client().start(QUICK, 1).after(hours(3)).await.unwrap();
        run.pause().await.unwrap();
        let held = held.sleep(hours(1)).await;
        run.resume().await.unwrap();
        assert_eq!(run.info().await.unwrap().available_at, Some(began + hours(3)));
        drop(held);
        assert_eq!(run.result().await.unwrap(), 2);
        let ended = run.info().await.unwrap().finished_at.unwrap();
        assert!(ended >= began + hours(3), "it was not hurried");
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn pause_and_cancel_say_what_they_cannot_do() {
    const HELD: Workflow<(), ()> = Workflow::new("held");
    let gate = Arc::new(tokio::sync::Notify::new());
    let began = Arc::new(tokio::sync::Notify::new());
    let (at_gate, at_begin) = (gate.clone(), began.clone());
    let engine = Engine::on(testing::store())
        .register_fn(HELD, move |ctx, ()| {
            let (gate, began) = (at_gate.clone(), at_begin.clone());
            async move {
                let hold = ctx.step("hold", async || Ok(()));
                hold.rollback(async move |_, ()| {
                    began.notify_one();
                    gate.notified().await;
                    Ok(())
                })
                .await?;
                ctx.listen::<()>("end").await
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(HELD, ()).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    assert!(run.cancel().with_rollback().await.unwrap());
    began.notified().await;
    let error = run.pause().await.unwrap_err();
    assert_eq!(
        error.to_string(),
        format!(
            "run {} is rolling_back and cannot be paused: it is being cancelled; wait for its end",
            run.id()
        )
    );
    assert!(!run.cancel().await.unwrap(), "its end is decided");
    gate.notify_one();
    run.result().await.unwrap_err();
    assert_eq!(run.status().await.unwrap(), RunStatus::Cancelled);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_of_a_paused_rollback_says_that_it_must_be_resumed() {
    const STUCK: Workflow<(), ()> = Workflow::new("stuck");
    let began = Arc::new(tokio::sync::Notify::new());
    let (gate, at_begin) = (Arc::new(tokio::sync::Notify::new()), began.clone());
    let at_gate = gate.clone();
    let engine = Engine::on(testing::store())
        .register_fn(STUCK, move |ctx, ()| {
            let (gate, began) = (at_gate.clone(), at_begin.clone());
            async move {
                let hold = ctx.step("hold", async || Ok(()));
                hold.rollback(async move |_, ()| {
                    began.notify_one();
                    gate.notified().await;
                    Ok(())
                })
                .await?;
                Err(Error::rollback("no"))
            }
        })
        .start()
        .await
        .unwrap();
    let run = engine.client().start(STUCK, ()).await.unwrap();
    began.notified().await;
    // Not being cancelled, so it can be paused.
    run.pause().await.unwrap();
    let error = run.cancel().await.unwrap_err().to_string();
    assert!(error.contains("is paused and cannot be cancelled"), "{error}");
    assert!(error.contains("then resume it"), "{error}");
    gate.notify_one();
    run.resume().await.unwrap();
    let open = async {
        loop {
            gate.notify_one();
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::select! { () = open => {}, result = run.result() => assert!(result.is_err()) }
    assert_eq!(run.status().await.unwrap(), RunStatus::Failed);
    engine.shutdown().await;
}
