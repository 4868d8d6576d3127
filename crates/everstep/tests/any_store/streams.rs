//! Streams and values that clients follow: live, from any position, over crashes, restarts and
//! processes.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use everstep::{
    ClientError, EngineBuilder, RunStatus, StreamItem, StreamReader,
    prelude::*,
    store::{MemoryStore, Store},
    testing::{self, CrashPoint, CrashTest, CrashingStore, Ledger, VirtualClock},
};
use scenario::{until, until_status};
use serde_json::{Value as Json, json};

const RUN: Workflow<u32, Json> = Workflow::new("run");

async fn all<T>(mut reader: StreamReader<T>) -> Vec<StreamItem<T>> {
    let mut items = Vec::new();
    while let Some(item) = reader.next().await.unwrap() {
        items.push(item);
    }
    items
}

fn values<T: Clone>(items: &[StreamItem<T>]) -> Vec<T> {
    items.iter().map(|item| item.value.clone()).collect()
}

/// A gate that a body waits at: it is opened from outside, once.
#[derive(Clone)]
struct Gate(tokio::sync::watch::Sender<bool>);

impl Gate {
    fn closed() -> Gate {
        Gate(tokio::sync::watch::Sender::new(false))
    }

    fn open(&self) {
        self.0.send_replace(true);
    }

    async fn pass(&self) {
        self.0.subscribe().wait_for(|open| *open).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn what_the_code_emits_is_in_its_stream_once_and_in_order_at_every_crash_point() {
    let test = CrashTest::new(RUN, 3).of(&["emit"]).engine(|builder| {
        builder.register_fn(RUN, |ctx: Ctx, n: u32| async move {
            // Before anything is recorded, between steps, beside waits, in branches and in loops.
            ctx.emit("log", "begin")?;
            for i in 0..n {
                let done = ctx.step("work", async || Ok(i * 10)).await?;
                ctx.emit("log", &format!("work {done}"))?;
                ctx.emit("numbers", &done)?;
            }
            ctx.sleep("nap", hours(1)).await?;
            ctx.emit("log", "awake")?;
            let word: String = ctx.listen("word").await?;
            ctx.emit("log", &word)?;
            let (a, b) = (
                branch("a", async |ctx| {
                    ctx.emit("branches", "a begins")?;
                    ctx.step("step", async || Ok(())).await?;
                    ctx.emit("branches", "a ends")
                }),
                branch("b", async |ctx| {
                    ctx.emit("branches", "b begins")?;
                    ctx.sleep("nap", seconds(1)).await?;
                    ctx.emit("branches", "b ends")
                }),
            );
            ctx.join("both", (a, b)).await?;
            let looped = ctx.repeat("loop", 0, async |ctx, i: u32| {
                ctx.emit("log", &format!("iteration {i}"))?;
                ctx.step("in", async || Ok(())).await?;
                ctx.emit("log", &format!("iteration {i} ends"))?;
                Ok(match i {
                    3 => ControlFlow::Break(i),
                    _ => ControlFlow::Continue(i + 1),
                })
            });
            looped.await?;
            ctx.emit("log", "end")?;
            Ok(json!(n))
        })
    });
    let report = test.send("word", &"word").crashes(2).await;
    let log = &report.expected.streams["log"];
    let wanted = [
        "begin",
        "work 0",
        "work 10",
        "work 20",
        "awake",
        "word",
        "iteration 0",
        "iteration 0 ends",
        "iteration 1",
        "iteration 1 ends",
        "iteration 2",
        "iteration 2 ends",
        "iteration 3",
        "iteration 3 ends",
        "end",
    ];
    assert_eq!(json!(log), json!(wanted));
    assert_eq!(report.expected.streams["numbers"], [0, 10, 20]);
    assert_eq!(report.expected.streams["branches"].len(), 4);
    assert!(report.has_more_than(300), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_a_failing_run_has_emitted_is_kept_and_a_rollback_adds_nothing() {
    let test = CrashTest::new(RUN, 1).of(&["emit"]).engine(|builder| {
        builder.register_fn(RUN, |ctx: Ctx, _: u32| async move {
            ctx.emit("log", "begin")?;
            let step = ctx.step("hold", async || Ok(1));
            step.rollback(async |_, _: u32| Ok(())).await?;
            ctx.emit("log", "held")?;
            ctx.sleep("nap", seconds(1)).await?;
            ctx.emit("log", "failing")?;
            Err(Error::fatal("no"))
        })
    });
    let report = test.crashes(2).await;
    assert_eq!(report.expected.status, RunStatus::Failed);
    assert_eq!(report.expected.streams["log"], ["begin", "held", "failing"]);
}

/// Emits three items from a body, in an attempt that fails, and in one that does not.
fn two_attempts(builder: EngineBuilder) -> EngineBuilder {
    builder.register_fn(RUN, |ctx: Ctx, _: u32| async move {
        let think = ctx.step_with("think", async |step: Step| {
            for n in 1..=3 {
                step.emit("tokens", &format!("{}.{n}", step.attempt())).await?;
            }
            match step.attempt() {
                1 => Err(Error::from(std::io::Error::other("once more"))),
                attempt => Ok(attempt),
            }
        });
        let attempt = think.retry(Retry::exponential(3)).await?;
        ctx.emit("tokens", "end")?;
        Ok(json!(attempt))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_emits_survives_every_crash() {
    let test = CrashTest::new(RUN, 0).of(&["step emit"]);
    let report = test.engine(two_attempts).await;
    assert_eq!(report.expected.output, Some(json!(2)));
    assert_eq!(report.expected.streams["tokens"], ["end"]);
}

#[tokio::test(flavor = "multi_thread")]
async fn the_items_of_a_body_have_its_attempt_and_readers_see_when_one_was_abandoned() {
    let engine = two_attempts(Engine::on(testing::store())).clock(VirtualClock::new());
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    let items = all(run.stream::<String>("tokens")).await;
    let wanted = ["1.1", "1.2", "1.3", "2.1", "2.2", "2.3", "end"];
    assert_eq!(values(&items), wanted);
    let restarted: Vec<u64> =
        items.iter().filter(|item| item.restarted).map(|item| item.position).collect();
    assert_eq!(restarted, [3]);
    let attempts: Vec<_> =
        items.iter().map(|item| item.by.as_ref().map(|by| (&*by.location, by.attempt))).collect();
    let (first, second) = (Some(("think", 1)), Some(("think", 2)));
    assert_eq!(attempts, [first, first, first, second, second, second, None]);
    engine.shutdown().await;
}

/// The story: a body that runs again after its process died has the same attempt as before, since a
/// crash neither resets nor consumes attempts. So the items of both could not be told apart by it.
/// As [`two_attempts`], with a body that goes on once its item is stored, so that each item is a
/// write of its own. `next` is where the stream ends; none if nothing is stored any more.
fn two_attempts_item_by_item(
    builder: EngineBuilder,
    next: impl Fn(everstep::RunNo) -> Option<u64> + Clone + Send + Sync + 'static,
) -> EngineBuilder {
    builder.register_fn(RUN, move |ctx: Ctx, _: u32| {
        let next = next.clone();
        async move {
            let run = ctx.run_id().no();
            let think = ctx.step_with("think", async |step: Step| {
                for n in 1..=3 {
                    let before = next(run);
                    step.emit("tokens", &format!("{}.{n}", step.attempt())).await?;
                    while before.is_some() && next(run) == before {
                        tokio::task::yield_now().await;
                    }
                }
                match step.attempt() {
                    1 => Err(Error::from(std::io::Error::other("once more"))),
                    attempt => Ok(attempt),
                }
            });
            let attempt = think.retry(Retry::exponential(3)).await?;
            ctx.emit("tokens", "end")?;
            Ok(json!(attempt))
        }
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn the_items_of_a_crashed_body_stay_and_the_next_one_has_another_life() {
    let end_of =
        |store: &dyn Store, run| store.stream(run, "tokens", 0, 1).unwrap().map(|page| page.next);
    let (mut points, mut crashed_bodies) = (0, 0);
    for n in 1.. {
        let mut died = false;
        for point in [CrashPoint::Before(n), CrashPoint::After(n)] {
            let store = Arc::new(CrashingStore::new(MemoryStore::new(), point));
            let seen = store.clone();
            let next = move |run| end_of(seen.inner(), run).filter(|_| !seen.is_dead());
            let engine = two_attempts_item_by_item(Engine::on(store.clone()), next);
            let engine = engine.clock(VirtualClock::new());
            if let Ok(engine) = engine.start().await {
                let run = engine.client().start(RUN, 0).key("k").await;
                if let Ok(run) = run {
                    _ = run.result().await;
                }
                engine.shutdown().await;
            }
            died |= store.is_dead();
            let survivor = Arc::new(store.inner().fork());
            let seen = survivor.clone();
            let next = move |run| end_of(&*seen, run);
            let engine = two_attempts_item_by_item(Engine::on(survivor), next);
            let engine = engine.clock(VirtualClock::new());
            let engine = engine.start().await.unwrap();
            let run = engine.client().start(RUN, 0).key("k").await.unwrap();
            let items = all(run.stream::<String>("tokens")).await;
            assert_eq!(run.result().await.unwrap(), json!(2), "{point}");
            check_tokens(&items, &format!("{point}"));
            let lives = items.iter().filter_map(|item| item.by.as_ref());
            let lives: std::collections::BTreeSet<u64> = lives.map(|by| by.life).collect();
            crashed_bodies += usize::from(lives.len() > 1);
            points += usize::from(store.is_dead());
            engine.shutdown().await;
        }
        if !died {
            break;
        }
    }
    assert!(points > 10 && crashed_bodies > 3, "{points} {crashed_bodies}");
}

/// Each go of the body is whole or a beginning; the last go of each attempt that ended is whole; the
/// reader marks where each but the first begins.
fn check_tokens(items: &[StreamItem<String>], at: &str) {
    let mut gos: Vec<((u32, u64), Vec<&str>)> = Vec::new();
    for item in items {
        let Some(by) = &item.by else { continue };
        let body = (by.attempt, by.life);
        if gos.last().is_none_or(|(last, _)| *last != body) {
            assert_eq!(item.restarted, !gos.is_empty(), "{at}: {items:?}");
            gos.push((body, Vec::new()));
        } else {
            assert!(!item.restarted, "{at}: {items:?}");
        }
        gos.last_mut().unwrap().1.push(&item.value);
    }
    for ((attempt, _), tokens) in &gos {
        let whole: Vec<String> = (1..=3).map(|n| format!("{attempt}.{n}")).collect();
        assert_eq!(tokens[..], whole[..tokens.len()], "{at}: {items:?}");
    }
    for attempt in [1, 2] {
        let last = gos.iter().rfind(|(body, _)| body.0 == attempt);
        let len = last.map(|(_, tokens)| tokens.len());
        assert_eq!(len, Some(3), "{at}: {items:?}");
    }
    let lives: Vec<u64> = gos.iter().map(|(body, _)| body.1).collect();
    assert!(lives.is_sorted(), "{at}: later lives are greater: {lives:?}");
    assert_eq!(items.last().unwrap().value, "end", "{at}");
    let ends = items.iter().filter(|item| item.by.is_none()).count();
    assert_eq!(ends, 1, "{at}");
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_a_body_is_read_while_the_body_runs() {
    let gate = Gate::closed();
    let passed = gate.clone();
    let engine = Engine::on(testing::store()).register_fn(RUN, move |ctx: Ctx, _: u32| {
        let gate = passed.clone();
        async move {
            ctx.step_with("slow", async |step: Step| {
                step.emit("tokens", "first").await?;
                gate.pass().await;
                step.emit("tokens", "second").await
            })
            .await?;
            Ok(json!(null))
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    let mut reader = run.stream::<String>("tokens");
    assert_eq!(reader.next().await.unwrap().unwrap().value, "first");
    // The body cannot have ended: it waits for this.
    gate.open();
    assert_eq!(reader.next().await.unwrap().unwrap().value, "second");
    assert!(reader.next().await.unwrap().is_none());
    assert_eq!(reader.position(), 2);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn blocking_and_spawned_bodies_emit_too() {
    let engine = Engine::on(testing::store()).register_fn(RUN, |ctx: Ctx, _: u32| async move {
        ctx.blocking("blocking", |step| step.emit_blocking("tokens", "blocking")).await?;
        ctx.spawn("spawned", |step| async move { step.emit("tokens", "spawned").await }).await?;
        Ok(json!(null))
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    let items = all(run.stream::<String>("tokens")).await;
    assert_eq!(values(&items), ["blocking", "spawned"]);
    assert_eq!(items[0].by.as_ref().unwrap().location, "blocking");
    engine.shutdown().await;
}

/// A body that emits so many items.
fn many(builder: EngineBuilder) -> EngineBuilder {
    builder.register_fn(RUN, |ctx: Ctx, n: u32| async move {
        ctx.step_with("many", async |step: Step| {
            for i in 0..n {
                step.emit("numbers", &i).await?;
            }
            Ok(())
        })
        .await?;
        Ok(json!(n))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn ten_thousand_items_are_read_page_by_page_and_followed() {
    let directory = tempfile::tempdir().unwrap();
    let engine = many(Engine::open(directory.path().join("app.db")))
        // Room for a few items only: the body waits for the disk again and again.
        .settings(|settings| settings.emit_bytes_max = 10_000);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 10_000).await.unwrap();
    let followed = all(run.stream::<u32>("numbers")).await;
    assert_eq!(values(&followed), (0..10_000).collect::<Vec<_>>());
    let (mut from, mut seen, mut pages) = (0, Vec::new(), 0);
    loop {
        let page = run.stream_page::<u32>("numbers", from, 300).await.unwrap();
        assert_eq!((page.first, page.end), (0, 10_000));
        assert!(page.items.len() <= 300);
        seen.extend(values(&page.items));
        (from, pages) = (page.next, pages + 1);
        if page.next == page.end {
            break;
        }
    }
    assert_eq!((seen.len(), pages), (10_000, 34));
    assert_eq!(seen, values(&followed));
    // A page has 1 000 items at most, whatever is asked for.
    let page = run.stream_page_json("numbers", 5, usize::MAX).await.unwrap();
    assert_eq!((page.items.len(), &page.items[0].value), (1_000, &json!(5)));
    let streams = run.streams().await.unwrap();
    assert_eq!((&*streams[0].name, streams[0].end), ("numbers", 10_000));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_full_stream_drops_the_oldest_items_and_tells_its_readers() {
    let engine =
        many(Engine::on(testing::store())).settings(|settings| settings.stream_items_max = 10);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 100).await.unwrap();
    run.result().await.unwrap();
    let items = all(run.stream::<u32>("numbers")).await;
    assert_eq!(values(&items), (90..100).collect::<Vec<_>>());
    assert_eq!(items[0].missed, 90);
    assert!(items[1..].iter().all(|item| item.missed == 0));
    let items = all(run.stream::<u32>("numbers").from(50)).await;
    assert_eq!((items[0].position, items[0].missed), (90, 40));
    let items = all(run.stream::<u32>("numbers").from(95)).await;
    assert_eq!((items[0].position, items[0].missed), (95, 0));
    let page = run.stream_page::<u32>("numbers", 0, 3).await.unwrap();
    assert_eq!((page.first, page.next, page.items.len()), (90, 93, 3));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_has_a_bounded_number_of_streams() {
    let engine = Engine::on(testing::store())
        .register_fn(RUN, |ctx: Ctx, n: u32| async move {
            for i in 0..n {
                ctx.emit(&format!("stream {i}"), &i)?;
            }
            let body = ctx.step_with("body", async |step: Step| step.emit("last", &0).await);
            body.retry(Retry::never()).await?;
            Ok(json!(n))
        })
        .settings(|settings| settings.streams_max = 3);
    let engine = engine.start().await.unwrap();
    for (n, ends) in [(2, None), (3, Some("`last`")), (4, Some("`stream 3`"))] {
        let run = engine.client().start(RUN, n).await.unwrap();
        match (run.result().await, ends) {
            (Ok(_), None) => {}
            (Err(error), Some(stream)) => {
                let text = error.to_string();
                assert!(text.contains(stream), "{text}");
                assert!(text.contains("has 3 streams, and the limit is 3"), "{text}");
                assert!(text.contains("`streams_max`"), "{text}");
            }
            (result, _) => panic!("{n}: {result:?}"),
        }
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_item_that_is_too_large_is_refused() {
    let engine = Engine::on(testing::store())
        .register_fn(RUN, |ctx: Ctx, n: u32| async move {
            ctx.emit("large", &"x".repeat(n as usize))?;
            Ok(json!(n))
        })
        .settings(|settings| settings.payload_bytes_max = 1_000);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 2_000).await.unwrap();
    let error = run.result().await.unwrap_err().to_string();
    assert!(error.contains("the limit for a payload is 1000"), "{error}");
    assert!(run.streams().await.unwrap().is_empty());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_of_no_run_is_told_and_one_of_no_stream_ends_with_the_run() {
    let engine = many(Engine::on(testing::store())).start().await.unwrap();
    let client = engine.client();
    let unknown = "019b7000-0000-7000-8000-000000000001".parse().unwrap();
    let unknown = client.run::<Json>(unknown);
    let is_unknown = |error| matches!(error, ClientError::UnknownRun { .. });
    let error = unknown.stream::<u32>("numbers").next().await.unwrap_err();
    assert!(error.to_string().contains("there is no run 019b7000"));
    assert!(is_unknown(error));
    let error = unknown.stream_page_json("numbers", 0, 1).await;
    assert!(is_unknown(error.unwrap_err()));
    assert!(is_unknown(unknown.streams().await.unwrap_err()));
    assert!(is_unknown(unknown.state::<u32>("state").await.unwrap_err()));
    assert!(is_unknown(unknown.state_json().await.unwrap_err()));
    let mut state = unknown.watch_state::<u32>("state");
    assert!(is_unknown(state.next().await.unwrap_err()));
    let run = client.start(RUN, 1).await.unwrap();
    assert!(all(run.stream::<u32>("other")).await.is_empty());
    assert!(all(run.stream::<u32>("numbers").from(1)).await.is_empty());
    // An item of another type is told, and passed over.
    let mut reader = run.stream::<String>("numbers");
    let error = reader.next().await.unwrap_err().to_string();
    assert!(error.contains("item 0 of the stream `numbers`"), "{error}");
    assert!(reader.next().await.unwrap().is_none());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_reader_that_was_dropped_while_it_waits_loses_nothing() {
    let gate = Gate::closed();
    let passed = gate.clone();
    let engine = Engine::on(testing::store()).register_fn(RUN, move |ctx: Ctx, _: u32| {
        let gate = passed.clone();
        async move {
            ctx.step("wait", async || {
                gate.pass().await;
                Ok(())
            })
            .await?;
            ctx.emit("s", &1)?;
            Ok(json!(null))
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    let mut reader = run.stream::<u32>("s");
    for _ in 0..3 {
        let waited = tokio::time::timeout(Duration::from_millis(1), reader.next()).await;
        assert!(waited.is_err(), "there is nothing yet");
    }
    gate.open();
    assert_eq!(reader.next().await.unwrap().unwrap().value, 1);
    assert!(reader.next().await.unwrap().is_none());
    engine.shutdown().await;
}

/// Emits one item for each message.
fn echo(builder: EngineBuilder) -> EngineBuilder {
    builder.register_fn(RUN, |ctx: Ctx, n: u32| async move {
        for _ in 0..n {
            let word: String = ctx.listen("word").await?;
            ctx.emit("echo", &word)?;
            ctx.set_state("last", &word)?;
        }
        Ok(json!(null))
    })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_follower_without_an_engine_outlives_the_restart_of_the_engine() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = echo(Engine::open(&path)).start().await.unwrap();
    let run = engine.client().start(RUN, 2).await.unwrap();
    let client = Client::open(&path).await.unwrap();
    let mut reader = client.run::<Json>(run.id()).stream::<String>("echo");
    let mut state = client.run::<Json>(run.id()).watch_state::<String>("last");
    let mut beside = run.stream::<String>("echo");
    client.send(run.id(), "word", &"one").await.unwrap();
    assert_eq!(reader.next().await.unwrap().unwrap().value, "one");
    assert_eq!(state.next().await.unwrap().as_deref(), Some("one"));
    assert_eq!(beside.next().await.unwrap().unwrap().value, "one");
    // Both wait while the engine goes; the one beside it is told, the other one goes on.
    let (reading, watching) = (
        tokio::spawn(async move { (reader.next().await, reader) }),
        tokio::spawn(async move { (state.next().await, state) }),
    );
    let position = beside.position();
    let closed = tokio::spawn(async move { beside.next().await });
    engine.shutdown().await;
    assert!(matches!(closed.await.unwrap(), Err(ClientError::Closed)));
    let engine = echo(Engine::open(&path)).start().await.unwrap();
    client.send(run.id(), "word", &"two").await.unwrap();
    let (item, mut reader) = reading.await.unwrap();
    assert_eq!(item.unwrap().unwrap().value, "two");
    assert!(reader.next().await.unwrap().is_none());
    let (value, mut state) = watching.await.unwrap();
    assert_eq!(value.unwrap().as_deref(), Some("two"));
    assert!(state.next().await.unwrap().is_none());
    let again = engine.client().run::<Json>(run.id());
    let rest = all(again.stream::<String>("echo").from(position)).await;
    assert_eq!(values(&rest), ["two"]);
    engine.shutdown().await;
}

/// A run that is tried again emits again what comes after the step that failed, and only that.
#[tokio::test(flavor = "multi_thread")]
async fn a_retried_run_emits_again_only_what_comes_after_the_failure() {
    let fails = Arc::new(AtomicU32::new(1));
    let left = fails.clone();
    let engine = Engine::on(testing::store()).register_fn(RUN, move |ctx: Ctx, _: u32| {
        let left = left.clone();
        async move {
            ctx.emit("log", "begin")?;
            ctx.step("good", async || Ok(())).await?;
            ctx.emit("log", "good")?;
            let bad = ctx.step("bad", async || {
                match left.swap(0, Ordering::SeqCst) {
                    0 => Ok("mended"),
                    _ => Err(Error::fatal("broken")),
                }
                .map(str::to_owned)
            });
            let bad = bad.await.inspect_err(|_| ctx.emit("log", "failed").unwrap())?;
            ctx.emit("log", &bad)?;
            Ok(json!(null))
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    run.result().await.unwrap_err();
    run.retry().await.unwrap();
    run.result().await.unwrap();
    let items = all(run.stream::<String>("log")).await;
    assert_eq!(values(&items), ["begin", "good", "failed", "mended"]);
    engine.shutdown().await;
}

/// The story: a run that is paused from outside records the results of its bodies and nothing else,
/// so what its code had emitted since its last commit is dropped. Its history is not empty then, and
/// a replay that takes everything before its end for stored would lose the items for good.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_emitted_before_a_pause_is_not_lost() {
    let (begun, gate) = (Gate::closed(), Gate::closed());
    let gates = (begun.clone(), gate.clone());
    let engine = Engine::on(testing::store()).clock(VirtualClock::new());
    let engine = engine.register_fn(RUN, move |ctx: Ctx, _: u32| {
        let (begun, gate) = gates.clone();
        async move {
            ctx.emit("log", "begin")?;
            ctx.step("wait", async || {
                begun.open();
                gate.pass().await;
                Ok(())
            })
            .await?;
            ctx.emit("log", "end")?;
            Ok(json!(null))
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    begun.pass().await;
    run.pause().await.unwrap();
    gate.open();
    until("the result of the body to be recorded", async || {
        (!run.history().await.unwrap().is_empty()).then_some(())
    })
    .await;
    assert!(run.streams().await.unwrap().is_empty());
    run.resume().await.unwrap();
    run.result().await.unwrap();
    let items = all(run.stream::<String>("log")).await;
    assert_eq!(values(&items), ["begin", "end"]);
    engine.shutdown().await;
}

/// The same with a value and a tag that the code sets before its first body: the replay did not set them
/// again, and no commit had held them.
#[tokio::test(flavor = "multi_thread")]
async fn what_was_set_before_a_pause_in_the_first_body_is_not_lost() {
    let (begun, gate) = (Gate::closed(), Gate::closed());
    let gates = (begun.clone(), gate.clone());
    let engine = Engine::on(testing::store()).clock(VirtualClock::new());
    let engine = engine.register_fn(RUN, move |ctx: Ctx, _: u32| {
        let (begun, gate) = gates.clone();
        async move {
            ctx.set_state("phase", "begun")?;
            ctx.set_tag("phase", "begun")?;
            ctx.step("wait", async || {
                begun.open();
                gate.pass().await;
                Ok(())
            })
            .await?;
            Ok(json!(null))
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    begun.pass().await;
    run.pause().await.unwrap();
    gate.open();
    until("the result of the body to be recorded", async || {
        (!run.history().await.unwrap().is_empty()).then_some(())
    })
    .await;
    run.resume().await.unwrap();
    run.result().await.unwrap();
    assert_eq!(run.state::<String>("phase").await.unwrap().as_deref(), Some("begun"));
    let info = run.info().await.unwrap();
    assert_eq!(info.tags, [("phase".to_owned(), "begun".to_owned())]);
    engine.shutdown().await;
}

/// A replay that set it again would overwrite what a client has made of it since.
#[tokio::test(flavor = "multi_thread")]
async fn a_tag_that_a_client_has_changed_stays_when_the_run_is_read_again() {
    let engine = Engine::on(testing::store()).clock(VirtualClock::new());
    let engine = engine.register_fn(RUN, |ctx: Ctx, _: u32| async move {
        ctx.set_tag("phase", "new")?;
        let word: String = ctx.listen("go").await?;
        Ok(json!(word))
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(RUN, 0).await.unwrap();
    until("the run to be parked and to leave memory", async || {
        engine.evict(run.id()).await.then_some(())
    })
    .await;
    assert!(run.tag("phase", "reviewed").await.unwrap());
    run.send("go", &"on").await.unwrap();
    run.result().await.unwrap();
    let info = run.info().await.unwrap();
    assert_eq!(info.tags, [("phase".to_owned(), "reviewed".to_owned())]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn emitted_items_survive_a_power_cut_at_any_point() {
    let test = CrashTest::new(RUN, 2).of(&["emit", "step emit"]).engine(|builder| {
        builder.register_fn(RUN, |ctx: Ctx, n: u32| async move {
            for i in 0..n {
                ctx.step_with("work", async |step: Step| {
                    step.get::<Ledger>().ran(step.location());
                    step.emit("log", &format!("in {i}")).await
                })
                .await?;
                ctx.emit("log", &format!("after {i}"))?;
            }
            Ok(json!(null))
        })
    });
    let report = test.power_cuts().await;
    assert_eq!(report.expected.streams["log"], ["after 0", "after 1"]);
    assert!(report.points > 10, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn all_items_of_a_body_are_durable_before_its_result_or_with_it() {
    // At whatever write the store dies: a history with the result has the items too.
    let mut with_result = 0;
    for n in 1.. {
        let store = Arc::new(CrashingStore::new(MemoryStore::new(), CrashPoint::After(n)));
        let engine = many(Engine::on(store.clone())).start().await;
        if let Ok(engine) = engine {
            if let Ok(run) = engine.client().start(RUN, 50).await {
                _ = run.result().await;
            }
            engine.shutdown().await;
        }
        let runs = store.inner().list(&Default::default(), None, 10).unwrap();
        if let Some(row) = runs.first()
            && !store.inner().history(row.id.no(), None, 10).unwrap().is_empty()
            && row.status == RunStatus::Completed
        {
            with_result += 1;
            let streams = store.inner().streams(row.id.no()).unwrap();
            assert_eq!(streams[0].next, 50, "after write {n}");
        }
        if !store.is_dead() {
            break;
        }
    }
    assert!(with_result > 0);
}

#[cfg(unix)]
const CHILD: &str = "EVERSTEP_TEST_STREAMING_PROCESS";

/// A process that does not outlive the test, whatever becomes of it.
#[cfg(unix)]
struct Killed(std::process::Child);

#[cfg(unix)]
impl Killed {
    fn kill(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

#[cfg(unix)]
impl Drop for Killed {
    fn drop(&mut self) {
        self.kill();
    }
}

/// The second process has the engine: it emits, and is killed in the middle of a body.
#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_followed_from_another_process_also_when_that_one_is_killed() {
    let test = "a_stream_is_followed_from_another_process_also_when_that_one_is_killed";
    let stuck = std::env::var(CHILD);
    let engine = |path: &std::path::Path, stuck: bool| {
        Engine::open(path).register_fn(RUN, move |ctx: Ctx, _: u32| async move {
            ctx.step_with("think", async |step: Step| {
                step.emit("tokens", &format!("one {stuck}")).await?;
                step.emit("tokens", &format!("two {stuck}")).await?;
                if stuck {
                    std::future::pending::<()>().await;
                }
                Ok(())
            })
            .await?;
            ctx.emit("tokens", "end")?;
            Ok(json!(null))
        })
    };
    if let Ok(path) = stuck {
        let _engine = engine(path.as_ref(), true).start().await.unwrap();
        return std::future::pending().await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let mut second =
        Killed(scenario::second_process(module_path!(), test, CHILD, path.to_str().unwrap()));
    let client = until("the second process to have its engine", async || {
        let client = Client::open(&path).await.ok()?;
        client.count().await.ok().map(|_| client)
    })
    .await;
    let run = client.start(RUN, 0).await.unwrap();
    let mut reader = run.stream::<String>("tokens");
    let first = reader.next().await.unwrap().unwrap();
    assert_eq!(first.value, "one true");
    assert_eq!(reader.next().await.unwrap().unwrap().value, "two true");
    until_status(&run, RunStatus::Running).await;
    second.kill();
    let engine = engine(&path, false).start().await.unwrap();
    let again = reader.next().await.unwrap().unwrap();
    assert_eq!((&*again.value, again.restarted), ("one false", true));
    let (before, after) = (first.by.unwrap(), again.by.unwrap());
    assert_eq!((&before.location, before.attempt), (&after.location, after.attempt));
    assert_ne!(before.life, after.life, "{before:?} {after:?}");
    let rest = all(reader).await;
    assert_eq!(values(&rest), ["two false", "end"]);
    engine.shutdown().await;
}
