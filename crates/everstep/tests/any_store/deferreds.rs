//! Deferreds: settled before, during and after the wait, from any process, once.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{path::Path, sync::Arc};

use everstep::{
    ClientError, Deferred, First2, Resolved, RunStatus, Token,
    prelude::*,
    store::{MemoryStore, SqliteStore, Store},
    testing::{self, CrashTest, CrashingStore, Ledger, VirtualClock},
};
use scenario::{block_on, second_process, until, until_status};
use serde::{Deserialize, Serialize};
use serde_json::{Value as Json, json};

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Review {
    stars: u32,
}

#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
struct Rejection {
    reason: String,
    line: u32,
}

const GATE: Deferred<Review, Rejection> = Deferred::new("review");
const RUN: Workflow<(), Json> = Workflow::new("run");

fn stars(stars: u32) -> Review {
    Review { stars }
}

fn rejection() -> Rejection {
    Rejection { reason: "dull".to_owned(), line: 3 }
}

/// What a verdict is in the result of a run.
fn shown(verdict: Result<Review, Rejection>) -> Json {
    match verdict {
        Ok(review) => json!(review.stars),
        Err(rejection) => json!(rejection),
    }
}

async fn start<R>(
    store: Arc<dyn Store>,
    clock: &Arc<VirtualClock>,
    code: impl Fn(Ctx, ()) -> R + Send + Sync + 'static,
) -> Engine
where
    R: Future<Output = Result<Json>> + 'static,
{
    Engine::on(store)
        .clock(clock.clone())
        .provide(Ledger::new())
        .register_fn(RUN, code)
        .start()
        .await
        .unwrap()
}

/// Shows its token, and gives what comes.
async fn waits(ctx: Ctx, (): ()) -> Result<Json> {
    let gate = ctx.deferred(GATE);
    ctx.set_state("token", &gate.token())?;
    Ok(shown(gate.await?))
}

/// As [`waits`], after a message.
async fn waits_later(ctx: Ctx, (): ()) -> Result<Json> {
    let gate = ctx.deferred(GATE);
    ctx.set_state("token", &gate.token())?;
    ctx.listen::<()>("go").await?;
    Ok(shown(gate.await?))
}

async fn token_of(run: &RunHandle<Json>) -> Token {
    until("the token", async || run.state("token").await.unwrap()).await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_before_or_during_the_wait_is_given_to_it() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let code = move |ctx: Ctx, ()| async move {
            match before {
                true => waits_later(ctx, ()).await,
                false => waits(ctx, ()).await,
            }
        };
        let engine = start(testing::store(), &clock, code).await;
        let client = engine.client();
        let run = client.start(RUN, ()).await.unwrap();
        let token = token_of(&run).await;
        until_status(&run, RunStatus::Sleeping).await;
        let resolved = client.deferred(GATE, &token).resolve(&stars(5)).await;
        assert_eq!(resolved.unwrap(), Resolved::First);
        if before {
            assert_eq!(run.info().await.unwrap().status, RunStatus::Sleeping);
            run.send("go", &()).await.unwrap();
        }
        assert_eq!(run.result().await.unwrap(), json!(5));
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_after_a_wait_that_ran_out_is_found_by_the_next_one() {
    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, |ctx, ()| async move {
        let gate = ctx.deferred(GATE);
        ctx.set_state("token", &gate.token())?;
        let first = gate.timeout(hours(1)).await?;
        let until = ctx.now() + hours(1);
        let second = gate.until(until).await?;
        ctx.listen::<()>("go").await?;
        let third = gate.timeout(hours(1)).await?.map(shown);
        let again = gate.await?;
        Ok(json!([first, second, third, shown(again)]))
    })
    .await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    let token = token_of(&run).await;
    until("both waits to run out", async || {
        let waiting = run.info().await.unwrap().waiting.unwrap_or_default();
        (waiting == "message for `go`").then_some(())
    })
    .await;
    engine.client().deferred(GATE, &token).resolve(&stars(4)).await.unwrap();
    run.send("go", &()).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([null, null, 4, 4]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_is_a_value_with_its_own_type() {
    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, waits).await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    let token = token_of(&run).await;
    let gate = engine.client().deferred(GATE, &token);
    assert_eq!(gate.reject(&rejection()).await.unwrap(), Resolved::First);
    assert_eq!(run.result().await.unwrap(), json!(rejection()));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn of_two_resolvers_at_once_one_is_the_first() {
    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, waits_later).await;
    let client = engine.client();
    for _ in 0..50 {
        let run = client.start(RUN, ()).await.unwrap();
        let gate = client.deferred(GATE, token_of(&run).await);
        let (yes, no) = tokio::join!(
            gate.resolve(&stars(5)).into_future(),
            gate.reject(&rejection()).into_future()
        );
        let wins = match (yes.unwrap(), no.unwrap()) {
            (Resolved::First, Resolved::Already { .. }) => json!(5),
            (Resolved::Already { .. }, Resolved::First) => json!(rejection()),
            both => panic!("{both:?}"),
        };
        run.send("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), wins);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_before_the_deadline_wins_and_one_after_it_waits() {
    for before in [true, false] {
        let clock = VirtualClock::new();
        let engine = start(testing::store(), &clock, |ctx, ()| async move {
            let gate = ctx.deferred(GATE);
            let first = gate.timeout(hours(1)).await?.map(shown);
            let second = gate.timeout(hours(1)).await?.map(shown);
            Ok(json!([first, second]))
        })
        .await;
        let held = clock.hold();
        let run = engine.client().start(RUN, ()).await.unwrap();
        drop(clock.quiet().await);
        let settle = run.deferred(GATE).resolve(&stars(1));
        if before {
            settle.await.unwrap();
            // The time of the wait has come when the value is looked at.
            clock.advance(hours(1));
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([1, 1]));
        } else {
            let held = held.sleep(hours(1)).await;
            drop(clock.quiet().await);
            settle.await.unwrap();
            drop(held);
            assert_eq!(run.result().await.unwrap(), json!([null, 1]));
        }
        engine.shutdown().await;
    }
}

/// Does something to the run with the key `k` just before the n-th write, as another process does.
async fn with_meddling<F: Future<Output = ()>>(
    write: u64,
    meddle: impl FnOnce(RunHandle<Json>) -> F + Send + 'static,
    code: impl Fn(Ctx) -> std::pin::Pin<Box<dyn Future<Output = Result<Json>>>>
    + Send
    + Sync
    + Copy
    + 'static,
    settle_after: bool,
) -> (RunStatus, Option<Json>) {
    let clock = VirtualClock::new();
    let memory = MemoryStore::new();
    let inner = memory.clone();
    let store = CrashingStore::counting(memory).meddle_before(write, move |_| {
        let client = Client::on(Arc::new(inner)).unwrap();
        block_on(async {
            let run = client.get(("run", "k")).await.unwrap().unwrap();
            meddle(run).await;
        });
    });
    let engine = Engine::on(Arc::new(store))
        .clock(clock.clone())
        .settings(|settings| settings.threads = 1)
        .register_fn(RUN, move |ctx: Ctx, ()| code(ctx))
        .start()
        .await
        .unwrap();
    let run = engine.client().start(RUN, ()).key("k").await.unwrap();
    if settle_after {
        drop(clock.quiet().await);
        run.deferred(GATE).resolve(&stars(1)).await.unwrap();
    }
    let output = run.result().await.ok();
    let status = run.status().await.unwrap();
    engine.shutdown().await;
    (status, output)
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_comes_while_a_run_parks_or_times_out_is_not_missed() {
    // Entering, taking shards and the start are three writes; the fourth registers the first wait
    // and parks the run, the fifth is its timeout, the sixth registers the second wait.
    let expected = [(4, json!([1, 1])), (5, json!([1, 1])), (6, json!([null, 1]))];
    for (write, expected) in expected {
        let resolve = async |run: RunHandle<Json>| {
            run.deferred(GATE).resolve(&stars(1)).await.unwrap();
        };
        let code = |ctx: Ctx| -> std::pin::Pin<Box<dyn Future<Output = Result<Json>>>> {
            Box::pin(async move {
                let gate = ctx.deferred(GATE);
                let first = gate.timeout(hours(1)).await?.map(shown);
                let second = gate.timeout(hours(1)).await?.map(shown);
                Ok(json!([first, second]))
            })
        };
        let (_, output) = with_meddling(write, resolve, code, false).await;
        assert_eq!(output, Some(expected), "before write {write}");
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_and_a_value_are_carried_out_in_their_order() {
    let code = |ctx: Ctx| -> std::pin::Pin<Box<dyn Future<Output = Result<Json>>>> {
        Box::pin(async move { Ok(shown(ctx.deferred(GATE).await?)) })
    };
    // The fourth write registers the wait, the fifth brings the value, the sixth is the end.
    let cancel = async |run: RunHandle<Json>| assert!(run.cancel().await.unwrap());
    let (status, _) = with_meddling(6, cancel, code, true).await;
    assert_eq!(status, RunStatus::Cancelled, "a cancel before the end wins");
    let late = async |run: RunHandle<Json>| {
        let second = run.deferred(GATE).resolve(&stars(2)).await.unwrap();
        assert!(matches!(second, Resolved::Already { .. }), "{second:?}");
    };
    let (status, output) = with_meddling(6, late, code, true).await;
    assert_eq!((status, output), (RunStatus::Completed, Some(json!(1))));

    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, waits).await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    let token = token_of(&run).await;
    assert!(run.cancel().await.unwrap());
    until_status(&run, RunStatus::Cancelled).await;
    let late = engine.client().deferred(GATE, &token).resolve(&stars(1));
    let error = late.await.unwrap_err();
    assert!(
        matches!(&error, ClientError::Finished { status, .. } if status == "cancelled"),
        "{error}"
    );
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn what_is_no_token_of_a_live_run_here_is_named() {
    let clock = VirtualClock::new();
    let here = start(testing::store(), &clock, waits).await;
    let there = start(testing::store(), &clock, waits).await;
    let run = here.client().start(RUN, ()).await.unwrap();
    let token = token_of(&run).await;
    let elsewhere = there.client().start(RUN, ()).await.unwrap();
    let foreign = token_of(&elsewhere).await;
    let client = here.client();
    let settle = async |token: &str| {
        let settled = client.deferred(GATE, token).resolve(&stars(1)).await;
        settled.unwrap_err()
    };
    let error = settle(foreign.as_str()).await;
    assert!(matches!(error, ClientError::ForeignToken), "{error}");
    for text in ["", "hello", &token.as_str()[1..], &format!("{}=", token.as_str())] {
        let error = settle(text).await;
        assert!(matches!(error, ClientError::MalformedToken), "{error}");
    }
    for at in 0..token.as_str().len() {
        let mut text = token.as_str().to_owned().into_bytes();
        text[at] = if text[at] == b'A' { b'B' } else { b'A' };
        let error = settle(std::str::from_utf8(&text).unwrap()).await;
        let refused = matches!(error, ClientError::ForeignToken | ClientError::MalformedToken);
        assert!(refused, "{error}");
        assert!(!error.to_string().contains(token.as_str()), "a token is not told");
    }
    assert_eq!(run.status().await.unwrap(), RunStatus::Sleeping);
    // As the person pasted it, with a line break after it.
    let pasted = format!("{}\n", token.as_str());
    let resolved = client.resolve_json(&pasted, &json!({"stars": 3})).await;
    assert_eq!(resolved.unwrap(), Resolved::First);
    assert_eq!(run.result().await.unwrap(), json!(3));
    let error = settle(token.as_str()).await;
    assert!(matches!(error, ClientError::Finished { .. }), "{error}");
    let unknown: RunHandle<Json> =
        client.run("019b7000-0000-7000-8000-000000000001".parse().unwrap());
    let error = unknown.deferred(GATE).resolve(&stars(1)).await.unwrap_err();
    assert!(matches!(error, ClientError::UnknownRun { .. }), "{error}");
    here.shutdown().await;
    there.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_token_of_an_earlier_generation_is_refused_and_its_value_forgotten() {
    const AGAIN: Workflow<u32, Json> = Workflow::new("again");
    let code = |ctx: Ctx, generation: u32| async move {
        let gate = ctx.deferred(GATE);
        ctx.set_state(&format!("token {generation}"), &gate.token())?;
        if generation == 1 {
            ctx.listen::<()>("go").await?;
            return ctx.continue_as(2).await;
        }
        let looked = gate.peek().await?.map(shown);
        Ok(json!([looked, shown(gate.await?)]))
    };
    let clock = VirtualClock::new();
    let builder = Engine::on(testing::store()).clock(clock.clone()).register_fn(AGAIN, code);
    let engine = builder.start().await.unwrap();
    let client = engine.client();
    let run = client.start(AGAIN, 1).await.unwrap();
    let token = async |generation: u32| -> Token {
        let name = format!("token {generation}");
        until(&name, async || run.state(&name).await.unwrap()).await
    };
    let first = token(1).await;
    // Nobody asks for this one before the next generation.
    let settled = client.deferred(GATE, &first).resolve(&stars(1)).await;
    assert_eq!(settled.unwrap(), Resolved::First);
    run.send("go", &()).await.unwrap();
    let second = token(2).await;
    assert_ne!(first, second);
    let error = client.deferred(GATE, &first).resolve(&stars(1)).await;
    let error = error.unwrap_err();
    let old = matches!(error, ClientError::OldToken { generation: 1, current: 2, .. });
    assert!(old, "{error}");
    let settled = client.deferred(GATE, &second).resolve(&stars(2)).await;
    assert_eq!(settled.unwrap(), Resolved::First);
    let output = run.result().await.unwrap();
    assert!(output == json!([null, 2]) || output == json!([2, 2]), "{output}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tokens_are_of_one_run_and_one_place_and_stay_the_same() {
    const TOKENS: Workflow<(), Vec<Token>> = Workflow::new("tokens");
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = async || {
        let code = |ctx: Ctx, ()| async move {
            let (a, b) = (ctx.deferred(GATE), ctx.deferred(GATE));
            let c = ctx.scope("part").deferred(GATE);
            let tokens = vec![a.token(), b.token(), c.token(), c.token()];
            ctx.listen::<()>("go").await?;
            Ok(tokens)
        };
        let builder = Engine::open(&path).register_fn(TOKENS, code);
        builder.start().await.unwrap()
    };
    let first = engine().await;
    let client = first.client();
    let one = client.start(TOKENS, ()).key("one").await.unwrap();
    let other = client.start(TOKENS, ()).key("other").await.unwrap();
    other.send("go", &()).await.unwrap();
    let mut all = other.result().await.unwrap();
    until_status(&one, RunStatus::Sleeping).await;
    first.shutdown().await;
    let second = engine().await;
    let one = second.client().start(TOKENS, ()).key("one").await.unwrap();
    one.send("go", &()).await.unwrap();
    let tokens = one.result().await.unwrap();
    assert_eq!(tokens[2], tokens[3], "a place has one token");
    all.pop();
    all.extend_from_slice(&tokens[..3]);
    let texts: std::collections::HashSet<&str> = all.iter().map(Token::as_str).collect();
    assert_eq!(texts.len(), 6, "every place of every run has its own");
    second.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn authority_over_a_run_settles_by_location() {
    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, |ctx, ()| async move {
        let first = ctx.deferred(GATE).await?;
        let second = ctx.deferred(GATE).await?;
        let inner = ctx.scope("a/b").deferred(GATE).await?;
        Ok(json!([shown(first), shown(second), shown(inner)]))
    })
    .await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    // The slash in the name of the scope is escaped.
    let inner = run.deferred_at(GATE, "a%2Fb/review").resolve(&stars(3));
    assert_eq!(inner.await.unwrap(), Resolved::First);
    run.deferred(GATE).resolve(&stars(1)).await.unwrap();
    let second = json!({"reason": "dull", "line": 3});
    run.reject_json("review#2", &second).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([1, rejection(), 3]));
    let error = run.resolve_json("//", &json!(1)).await.unwrap_err();
    assert!(matches!(error, ClientError::Name { .. }), "{error}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_loser_of_a_race_takes_nothing() {
    let clock = VirtualClock::new();
    let memory = testing::store();
    let engine = start(memory.clone(), &clock, |ctx, ()| async move {
        let gate = ctx.deferred(GATE);
        ctx.set_state("token", &gate.token())?;
        let slept = match ctx.race("first", (gate, ctx.sleep("nap", hours(1)))).await? {
            First2::A(_) => false,
            First2::B(_) => true,
        };
        let go: u32 = ctx.listen("go").await?;
        Ok(json!([slept, go]))
    })
    .await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    let token = token_of(&run).await;
    until("the sleep to win", async || {
        let waiting = run.info().await.unwrap().waiting.unwrap_or_default();
        (waiting == "message for `go`").then_some(())
    })
    .await;
    let gate = engine.client().deferred(GATE, &token);
    assert_eq!(gate.resolve(&stars(1)).await.unwrap(), Resolved::First);
    assert!(memory.inbox(run.id().no(), 0).unwrap().is_empty());
    run.send("go", &7).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([true, 7]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_nobody_had_asked_for_is_there_after_a_retry() {
    let clock = VirtualClock::new();
    let broken = Arc::new(std::sync::atomic::AtomicBool::new(true));
    let code = {
        let broken = broken.clone();
        move |ctx: Ctx, ()| {
            let broken = broken.clone();
            async move {
                let gate = ctx.deferred(GATE);
                ctx.listen::<()>("go").await?;
                ctx.step("fragile", async || {
                    match broken.load(std::sync::atomic::Ordering::SeqCst) {
                        true => Err(Error::fatal("broken")),
                        false => Ok(()),
                    }
                })
                .await?;
                Ok(shown(gate.await?))
            }
        }
    };
    let engine = start(testing::store(), &clock, code).await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    run.deferred(GATE).resolve(&stars(2)).await.unwrap();
    run.send("go", &()).await.unwrap();
    run.result().await.unwrap_err();
    let error = run.deferred(GATE).resolve(&stars(3)).await.unwrap_err();
    assert!(matches!(error, ClientError::Finished { .. }), "{error}");
    broken.store(false, std::sync::atomic::Ordering::SeqCst);
    run.retry().await.unwrap();
    let done = until_status(&run, RunStatus::Completed).await;
    assert_eq!(done.output, Some(json!(2)));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_does_not_decode_pauses_the_run() {
    let clock = VirtualClock::new();
    let engine = start(testing::store(), &clock, waits).await;
    let run = engine.client().start(RUN, ()).await.unwrap();
    run.resolve_json("review", &json!("five stars")).await.unwrap();
    let reason = scenario::until_paused(&run).await;
    assert!(reason.contains("the value of a deferred"), "{reason}");
    engine.shutdown().await;
}

async fn open(path: &Path) -> Engine {
    let builder = Engine::open(path).register_fn(RUN, waits);
    builder.start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_value_that_comes_while_no_engine_runs_is_heard_at_the_next_start() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = open(&path).await;
    let run = engine.client().start(RUN, ()).key("k").await.unwrap();
    let token = token_of(&run).await;
    until_status(&run, RunStatus::Sleeping).await;
    engine.shutdown().await;
    let client = Client::open(&path).await.unwrap();
    let gate = client.deferred(GATE, &token);
    assert_eq!(gate.resolve(&stars(5)).await.unwrap(), Resolved::First);
    let second = gate.resolve(&stars(1)).await.unwrap();
    assert!(matches!(second, Resolved::Already { .. }), "{second:?}");
    let engine = open(&path).await;
    let run = engine.client().start(RUN, ()).key("k").await.unwrap();
    assert!(run.attached());
    assert_eq!(run.result().await.unwrap(), json!(5));
    engine.shutdown().await;
}

/// Set to the file and the token in the process that answers.
const ANSWERS: &str = "EVERSTEP_TEST_ANSWERS";

#[test]
fn another_process_resolves_with_nothing_but_the_token() {
    let name = "another_process_resolves_with_nothing_but_the_token";
    if let Ok(given) = std::env::var(ANSWERS) {
        let (path, token) = given.split_once(' ').unwrap();
        scenario::runtime().block_on(async {
            let client = Client::open(path).await.unwrap();
            let settled = client.deferred(GATE, token).resolve(&stars(5)).await;
            assert_eq!(settled.unwrap(), Resolved::First);
        });
        return;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    scenario::runtime().block_on(async {
        let engine = open(&path).await;
        let run = engine.client().start(RUN, ()).await.unwrap();
        let token = token_of(&run).await;
        let given = format!("{} {}", path.display(), token.as_str());
        let mut other = second_process(module_path!(), name, ANSWERS, &given);
        assert_eq!(run.result().await.unwrap(), json!(5));
        assert!(other.wait().unwrap().success());
        engine.shutdown().await;
    });
}

fn crash<R: Future<Output = Result<Json>> + 'static>(
    code: impl Fn(Ctx, ()) -> R + Send + Sync + Clone + 'static,
) -> CrashTest {
    CrashTest::new(RUN, ())
        .of(&["deferred", "peek"])
        .engine(move |builder| builder.register_fn(RUN, code.clone()))
}

/// A step that notes that it runs.
async fn noted(ctx: &Ctx, name: &str) -> Result<()> {
    ctx.step_with(name, async |step: Step| {
        step.get::<Ledger>().ran(step.location());
        Ok(())
    })
    .await
}

/// Every way to wait for a deferred.
async fn all_ways(ctx: Ctx, (): ()) -> Result<Json> {
    let gate = ctx.deferred(GATE);
    ctx.set_state("token", &gate.token())?;
    let before = gate.peek().await?.map(shown);
    noted(&ctx, "ask").await?;
    let early = gate.timeout(minutes(1)).await?.map(shown);
    let raced = ctx.race("either", (gate, ctx.sleep("nap", hours(5)))).await?;
    let raced = match raced {
        First2::A(verdict) => shown(verdict),
        First2::B(_) => json!("slept"),
    };
    noted(&ctx, "between").await?;
    let other = ctx.scope("other").deferred(GATE);
    let lost = ctx.race("lost", (other.timeout(hours(9)), ctx.sleep("short", hours(1)))).await?;
    let lost = matches!(lost, First2::B(_));
    let rejected = other.timeout(hours(100)).await?.map(shown);
    let after = other.peek().await?.map(shown);
    noted(&ctx, "end").await?;
    Ok(json!([before, early, raced, lost, rejected, after]))
}

fn all_ways_settled(test: CrashTest) -> CrashTest {
    test.at(hours(1)).resolve("review", &stars(5)).at(hours(3)).reject("other/review", &rejection())
}

#[tokio::test(flavor = "multi_thread")]
async fn deferreds_survive_a_crash_at_every_write() {
    let report = all_ways_settled(crash(all_ways)).await;
    let expected = json!([null, null, 5, true, rejection(), rejection()]);
    assert_eq!(report.expected.output, Some(expected));
    assert!(report.has_more_than(30), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn deferreds_survive_two_crashes() {
    let report = crash(|ctx, ()| async move {
        let gate = ctx.deferred(GATE);
        noted(&ctx, "ask").await?;
        let looked = gate.peek().await?.map(shown);
        Ok(json!([looked, shown(gate.await?)]))
    })
    .resolve("review", &stars(5))
    .crashes(2)
    .await;
    assert_eq!(report.expected.output, Some(json!([null, 5])));
    assert!(report.has_more_than(150), "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wait_that_runs_out_during_the_downtime_still_hears_what_came_before() {
    for downtime in [minutes(10), days(3)] {
        let test = crash(|ctx, ()| async move {
            let gate = ctx.deferred(GATE);
            let first = gate.timeout(hours(2)).await?.map(shown);
            noted(&ctx, "between").await?;
            let second = gate.timeout(hours(2)).await?.map(shown);
            Ok(json!([first, second]))
        })
        .at(hours(1))
        .resolve("review", &stars(1))
        .downtime(downtime);
        let report = if downtime < hours(1) {
            test.await
        } else {
            // The value may come too late for the first wait, or for both, but never for one alone
            // that began after it had come.
            let check = |output: &Json| {
                let ways = [json!([1, 1]), json!([null, 1]), json!([null, null])];
                ways.contains(output)
            };
            test.check(move |ending, _| match &ending.output {
                Some(output) if check(output) => Ok(()),
                other => Err(format!("{other:?}")),
            })
            .await
        };
        assert_eq!(report.expected.output, Some(json!([1, 1])));
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn deferreds_of_cancelled_and_rolled_back_runs_survive_crashes() {
    let report = crash(|ctx, ()| async move {
        let gate = ctx.deferred(GATE);
        ctx.step_with("work", async |step: Step| {
            step.get::<Ledger>().ran(step.location());
            Ok(1)
        })
        .rollback(async |undo, _| {
            undo.get::<Ledger>().ran("rollback");
            Ok(())
        })
        .await?;
        Ok(shown(gate.await?))
    })
    .cancel_with_rollback()
    .await;
    assert_eq!(report.expected.status, RunStatus::Cancelled);
    assert!(report.has_more_than(10), "{report}");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn deferreds_survive_a_power_cut_at_every_write_to_the_file() {
    let report = crash(|ctx, ()| async move {
        let gate = ctx.deferred(GATE);
        noted(&ctx, "ask").await?;
        let looked = gate.peek().await?.map(shown);
        let raced = ctx.race("either", (gate, ctx.sleep("nap", hours(5)))).await?;
        let raced = match raced {
            First2::A(verdict) => shown(verdict),
            First2::B(_) => json!("slept"),
        };
        Ok(json!([looked, raced]))
    })
    .resolve("review", &stars(5))
    .power_cuts()
    .await;
    assert_eq!(report.expected.output, Some(json!([null, 5])));
    assert!(report.points > 10, "{report}");
}

#[test]
fn the_secret_of_a_file_is_its_own_and_stays() {
    let directory = tempfile::tempdir().unwrap();
    let made = |name: &str| {
        let store = SqliteStore::create(directory.path().join(name)).unwrap();
        store.migrate().unwrap();
        store.secret().unwrap()
    };
    let first = made("a.db");
    assert_eq!(made("a.db"), first);
    assert_ne!(made("b.db"), first);
}
