//! Limits: never too many, in order, and nobody forgotten.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicUsize, Ordering},
    },
    time::Duration,
};

use everstep::{
    Clock, EngineBuilder, Limit, LimitInfo, RunStatus, WorkflowOptions,
    prelude::*,
    testing::{self, CrashTest, Ledger, VirtualClock},
};
use scenario::{until, until_status};
use serde_json::{Value as Json, json};
use tokio::sync::watch;

const WORK: Workflow<u32, u32> = Workflow::new("work");
const MIX: Workflow<u32, Json> = Workflow::new("mix");
const ONE: Limit = Limit::new("one").concurrency(1);

/// What bodies tell about themselves, and what they wait for.
#[derive(Clone)]
struct Bodies {
    /// How many are in a body, and how many there were at most.
    inside: Arc<(AtomicUsize, AtomicUsize)>,
    began: Arc<Mutex<Vec<u32>>>,
    /// The body of `n` ends when this is `n` or more.
    gate: Arc<watch::Sender<u32>>,
}

/// A body that was given up has left too.
struct Inside<'a>(&'a Bodies);

impl Drop for Inside<'_> {
    fn drop(&mut self) {
        self.0.inside.0.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Bodies {
    fn new() -> Bodies {
        Bodies {
            inside: Arc::default(),
            began: Arc::default(),
            gate: Arc::new(watch::Sender::new(0)),
        }
    }

    fn enter(&self, n: u32) -> Inside<'_> {
        let inside = 1 + self.inside.0.fetch_add(1, Ordering::SeqCst);
        self.inside.1.fetch_max(inside, Ordering::SeqCst);
        self.began.lock().unwrap().push(n);
        Inside(self)
    }

    async fn body(&self, n: u32) -> Result<u32> {
        let _inside = self.enter(n);
        let mut gate = self.gate.subscribe();
        gate.wait_for(|open| *open >= n).await?;
        Ok(n)
    }

    fn open(&self, n: u32) {
        self.gate.send_replace(n);
    }

    fn max(&self) -> usize {
        self.inside.1.load(Ordering::SeqCst)
    }

    fn began(&self) -> Vec<u32> {
        self.began.lock().unwrap().clone()
    }

    async fn until_began(&self, wanted: &[u32]) {
        until(&format!("bodies {wanted:?}"), async || (self.began() == wanted).then_some(())).await;
    }
}

fn builder() -> EngineBuilder {
    Engine::on(testing::store()).clock(VirtualClock::new())
}

/// An engine with one workflow: a step under this limit.
async fn engine(builder: EngineBuilder, limit: Limit) -> (Engine, Bodies) {
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let engine = builder.register_fn(WORK, move |ctx, n| {
        let bodies = inner.clone();
        async move { ctx.step("work", async || bodies.body(n).await).limit(limit).await }
    });
    (engine.start().await.unwrap(), bodies)
}

async fn only_limit(client: &Client) -> LimitInfo {
    let mut limits = client.limits().await.unwrap();
    assert_eq!(limits.len(), 1, "{limits:?}");
    limits.remove(0)
}

/// Starts runs one after another, each once the one before has a place or stands in line.
async fn queue_up(client: &Client, numbers: impl IntoIterator<Item = u32>) -> Vec<RunHandle<u32>> {
    let mut runs: Vec<RunHandle<u32>> = Vec::new();
    for n in numbers {
        runs.push(client.start(WORK, n).await.unwrap());
        until("the run to stand in line", async || {
            let limits = client.limits().await.unwrap();
            let there: u64 = limits.iter().map(|limit| limit.in_use + limit.waiting).sum();
            (there == runs.len() as u64).then_some(())
        })
        .await;
    }
    runs
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_waits_for_its_place_and_the_run_says_so() {
    let (engine, bodies) = engine(builder(), ONE).await;
    let client = engine.client();
    let runs = queue_up(&client, [1, 2]).await;
    bodies.until_began(&[1]).await;
    let waits = until_status(&runs[1], RunStatus::Sleeping).await;
    assert_eq!(waits.waiting.unwrap(), "limit `one` for `work`");
    let limit = only_limit(&client).await;
    assert_eq!((limit.name.as_str(), limit.key), ("one", None));
    assert_eq!((limit.concurrency, limit.rate), (Some(1), None));
    assert_eq!((limit.in_use, limit.waiting, limit.next_free), (1, 1, None));
    bodies.open(2);
    for run in runs {
        run.result().await.unwrap();
    }
    assert_eq!((bodies.began(), bodies.max()), (vec![1, 2], 1));
    assert_eq!(client.limits().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn places_are_given_in_the_order_of_asking() {
    let (engine, bodies) = engine(builder(), ONE).await;
    let runs = queue_up(&engine.client(), 1..=20).await;
    bodies.open(20);
    for run in runs {
        run.result().await.unwrap();
    }
    assert_eq!(bodies.began(), (1..=20).collect::<Vec<_>>());
    assert_eq!(bodies.max(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_thousand_wait_for_one_key_and_each_gets_its_place() {
    let (engine, bodies) = engine(builder(), Limit::new("ten").concurrency(10)).await;
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 1..=1_000 {
        runs.push(client.start(WORK, n).await.unwrap());
    }
    until("all to stand in line", async || {
        let limit = client.limits().await.unwrap().pop()?;
        (limit.in_use == 10 && limit.waiting == 990).then_some(())
    })
    .await;
    bodies.open(1_000);
    for run in runs {
        run.result().await.unwrap();
    }
    assert_eq!((bodies.began().len(), bodies.max()), (1_000, 10));
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn two_engines_on_one_file_never_exceed_the_limit() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let bodies = Bodies::new();
    let make = || {
        let bodies = bodies.clone();
        let code = move |ctx: Ctx, n| {
            let bodies = bodies.clone();
            async move {
                let body = async || {
                    let _inside = bodies.enter(n);
                    for _ in 0..20 {
                        tokio::task::yield_now().await;
                    }
                    Ok(n)
                };
                let limit = Limit::new("three").concurrency(3);
                ctx.step("first", body).limit(limit).await?;
                ctx.step("second", body).limit(limit).await
            }
        };
        Engine::open(&path).register_fn(WORK, code).settings(|settings| {
            settings.heartbeat = Some(Duration::from_millis(50));
            settings.lease = Duration::from_secs(60);
        })
    };
    let engines = [make().start().await.unwrap(), make().start().await.unwrap()];
    let mut runs = Vec::new();
    for n in 0..60 {
        let client = engines[n as usize % 2].client();
        runs.push(client.start(WORK, n).await.unwrap());
    }
    for run in runs {
        run.result().await.unwrap();
    }
    assert_eq!(bodies.began().len(), 120);
    assert!(bodies.max() <= 3, "{} were in a body at once", bodies.max());
    assert_eq!(engines[0].client().limits().await.unwrap(), []);
    for engine in engines {
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn each_key_is_limited_on_its_own() {
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let engine = builder().register_fn(WORK, move |ctx, n| {
        let bodies = inner.clone();
        async move {
            let body = ctx.step("work", async || bodies.body(n).await);
            body.limit_key(ONE, n % 2).await
        }
    });
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let runs = queue_up(&client, 1..=4).await;
    bodies.until_began(&[1, 2]).await;
    let waits = until_status(&runs[3], RunStatus::Sleeping).await;
    assert_eq!(waits.waiting.unwrap(), "limit `one` (`0`) for `work`");
    bodies.open(4);
    for run in runs {
        run.result().await.unwrap();
    }
    assert_eq!(bodies.max(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn an_attempt_holds_its_place_only_while_its_body_runs() {
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let engine = builder().register_fn(WORK, move |ctx, n| {
        let bodies = inner.clone();
        async move {
            let body = async |step: Step| {
                bodies.body(n).await?;
                if n == 1 && step.attempt() == 1 {
                    return Err(Error::msg("not yet"));
                }
                Ok(n)
            };
            let retry = Retry::fixed(3, hours(1));
            ctx.step_with("work", body).retry(retry).limit(ONE).await
        }
    });
    let engine = engine.start().await.unwrap();
    let runs = queue_up(&engine.client(), [1, 2]).await;
    bodies.until_began(&[1]).await;
    bodies.open(2);
    for run in runs {
        run.result().await.unwrap();
    }
    // The second comes in while the first waits for its next attempt.
    assert_eq!((bodies.began(), bodies.max()), (vec![1, 2, 1], 1));
}

#[tokio::test(flavor = "multi_thread")]
async fn the_time_of_a_body_counts_from_its_start() {
    let clock = VirtualClock::new();
    let engine = Engine::on(testing::store()).clock(clock.clone());
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let rate = Limit::new("rate").rate(1, hours(1));
    let engine = engine.register_fn(WORK, move |ctx, n| {
        let bodies = inner.clone();
        async move {
            let body = ctx.step("work", async || {
                bodies.enter(n);
                Ok(n)
            });
            body.limit(rate).timeout(seconds(1)).await
        }
    });
    let engine = engine.start().await.unwrap();
    let begun = clock.now();
    let mut runs = Vec::new();
    for n in 1..=3 {
        runs.push(engine.client().start(WORK, n).await.unwrap());
    }
    for run in runs {
        run.result().await.unwrap();
    }
    assert!(clock.now() >= begun + hours(2), "one an hour");
    assert_eq!(bodies.began().len(), 3);
}

#[tokio::test(flavor = "multi_thread")]
async fn whoever_is_cancelled_gives_back_its_place_or_leaves_the_line() {
    for cancelled in [0, 1] {
        let (engine, bodies) = engine(builder(), ONE).await;
        let runs = queue_up(&engine.client(), [1, 2, 3]).await;
        bodies.until_began(&[1]).await;
        assert!(runs[cancelled].cancel().await.unwrap());
        assert!(runs[cancelled].result().await.is_err());
        bodies.open(3);
        for (no, run) in runs.iter().enumerate() {
            assert_eq!(run.result().await.is_ok(), no != cancelled);
        }
        let wanted = [vec![1, 2, 3], vec![1, 3]];
        assert_eq!((bodies.began(), bodies.max()), (wanted[cancelled].clone(), 1));
        assert_eq!(engine.client().limits().await.unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn the_loser_of_a_race_gives_back_its_place_or_leaves_the_line() {
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let engine = builder().register_fn(WORK, move |ctx, n| {
        let bodies = inner.clone();
        async move {
            let work = ctx.step("work", async || bodies.body(n).await).limit(ONE);
            if n == 3 {
                return work.await;
            }
            // The first holds its place when it gives up, the second stands in line.
            let other = ctx.listen::<u32>("instead");
            let won = ctx.race("either", (work, other)).await?;
            Ok(match won {
                First2::A(n) | First2::B(n) => n,
            })
        }
    });
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let runs = queue_up(&client, [1, 2, 3]).await;
    bodies.until_began(&[1]).await;
    for run in [&runs[1], &runs[0]] {
        run.send("instead", &9).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 9);
    }
    bodies.until_began(&[1, 3]).await;
    bodies.open(3);
    assert_eq!(runs[2].result().await.unwrap(), 3);
    assert_eq!((bodies.max(), client.limits().await.unwrap()), (1, vec![]));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_run_holds_nothing_and_stands_in_line_again() {
    let (engine, bodies) = engine(builder(), ONE).await;
    let client = engine.client();
    let runs = queue_up(&client, [1, 2, 3]).await;
    bodies.until_began(&[1]).await;
    // The one that waits is passed over; the one in its body gives its place back when that ends.
    runs[1].pause().await.unwrap();
    runs[0].pause().await.unwrap();
    bodies.open(1);
    bodies.until_began(&[1, 3]).await;
    assert_eq!(runs[0].status().await.unwrap(), RunStatus::Paused);
    bodies.open(3);
    assert_eq!(runs[2].result().await.unwrap(), 3);
    for (run, n) in runs.iter().zip([1, 2]) {
        run.resume().await.unwrap();
        assert_eq!(run.result().await.unwrap(), n);
    }
    // What the body of the first gave was recorded while it was paused.
    assert_eq!(bodies.began(), [1, 3, 2]);
    assert_eq!(client.limits().await.unwrap(), []);
}

/// An engine whose runs are limited as a whole, two keys with one place each.
async fn whole_runs(settings: impl FnOnce(EngineBuilder) -> EngineBuilder) -> Engine {
    let options = WorkflowOptions::new().limit_key(ONE, |n: &u32| n % 2);
    let engine = builder().register_fn_with(WORK, options, |ctx: Ctx, n| async move {
        ctx.step("work", async || Ok(())).await?;
        ctx.listen::<()>("go").await?;
        Ok(n)
    });
    settings(engine).start().await.unwrap()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_waits_for_the_limit_of_its_workflow_before_it_begins() {
    let engine = whole_runs(|builder| builder).await;
    let client = engine.client();
    let runs = queue_up(&client, [1, 2, 3]).await;
    for run in &runs {
        until_status(run, RunStatus::Sleeping).await;
    }
    let waiting = async |run: &RunHandle<u32>| run.info().await.unwrap().waiting.unwrap();
    assert_eq!(waiting(&runs[0]).await, "message for `go`");
    assert_eq!(waiting(&runs[1]).await, "message for `go`");
    assert_eq!(waiting(&runs[2]).await, "limit `one` (`1`) for its start");
    assert_eq!(runs[2].history().await.unwrap(), [], "nothing of it has run");
    for run in &runs {
        run.send("go", &()).await.unwrap();
        run.result().await.unwrap();
    }
    assert_eq!(client.limits().await.unwrap(), []);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_is_paused_or_cancelled_lets_the_next_one_begin() {
    // Also when it is in nobody's memory.
    for memory in [1 << 30, 0] {
        let engine =
            whole_runs(|builder| builder.settings(move |settings| settings.hot_bytes = memory))
                .await;
        let client = engine.client();
        let runs = queue_up(&client, [1, 3, 5]).await;
        until_status(&runs[0], RunStatus::Sleeping).await;
        runs[0].pause().await.unwrap();
        let begun = async |run: &RunHandle<u32>| {
            until("the run to begin", async || {
                let waiting = run.info().await.unwrap().waiting;
                (waiting.as_deref() == Some("message for `go`")).then_some(())
            })
            .await;
        };
        begun(&runs[1]).await;
        runs[0].resume().await.unwrap();
        assert!(runs[1].cancel().await.unwrap());
        begun(&runs[2]).await;
        for run in [&runs[2], &runs[0]] {
            run.send("go", &()).await.unwrap();
            run.result().await.unwrap();
        }
        assert_eq!(client.limits().await.unwrap(), []);
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_can_be_added_changed_and_taken_away_under_running_work() {
    let store = testing::store();
    let clock = VirtualClock::new();
    let limits = [None, Some(ONE), Some(Limit::new("two").concurrency(2)), None];
    let mut run = None;
    for (life, limit) in limits.into_iter().enumerate() {
        let builder = Engine::on(store.clone()).clock(clock.clone());
        let engine = builder.register_fn(MIX, move |ctx, n| async move {
            let mut done = Vec::new();
            for _ in 0..4 {
                let step = ctx.step("work", async || Ok(n));
                done.push(match limit {
                    Some(limit) => step.limit(limit).await?,
                    None => step.await?,
                });
                ctx.listen::<()>("go").await?;
            }
            Ok(json!(done))
        });
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        let run = run.get_or_insert(client.start(MIX, 7).key("one").await.unwrap().id());
        let run = client.run::<Json>(*run);
        until("the run to come to its next wait", async || {
            let done = run.history().await.unwrap();
            let steps = done.iter().filter(|entry| entry.location.starts_with("work"));
            (steps.count() == life + 1).then_some(())
        })
        .await;
        run.send("go", &()).await.unwrap();
        if life == 3 {
            assert_eq!(run.result().await.unwrap(), json!([7, 7, 7, 7]));
        }
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_limit_whose_key_cannot_be_used_fails_the_step() {
    let engine = builder().register_fn(MIX, |ctx, _| async move {
        let long = "x".repeat(300);
        let step = ctx.step("work", async || Ok(1)).limit_key(ONE, &long).await;
        let turn = ctx.rate_limit(ONE).key(&long).await;
        Ok(json!([step.is_err(), turn.is_err()]))
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(MIX, 1).await.unwrap();
    assert_eq!(run.result().await.unwrap(), json!([true, true]));
}

/// Three steps at once under a limit for two, with attempts that fail, a rate, and turns.
async fn mix(ctx: Ctx, n: u32) -> Result<Json> {
    let limit = Limit::new("mix").concurrency(2).rate(1, seconds(10)).burst(2);
    let ledger = ctx.get::<Ledger>().clone();
    let one = async |ctx: Ctx, name: &str| {
        let retry = Retry::fixed(3, seconds(5));
        let step = ctx.step_with(name, async |step: Step| {
            if name == "b" && step.attempt() == 1 {
                return Err(Error::msg("not yet"));
            }
            ledger.ran(step.location());
            Ok(n)
        });
        step.retry(retry).limit_key(limit, "k").await
    };
    let all = ctx.join(
        "all",
        (
            branch("x", async |ctx| one(ctx, "a").await),
            branch("y", async |ctx| one(ctx, "b").await),
            branch("z", async |ctx| one(ctx, "c").await),
        ),
    );
    let (a, b, c) = all.await?;
    let turns = Limit::new("turns").rate(1, minutes(1));
    for _ in 0..3 {
        ctx.rate_limit(turns).await?;
    }
    let lost = ctx.step("lost", async || Ok(1)).limit(turns);
    let won = ctx.race("race", (lost, ctx.sleep("soon", seconds(1)))).await?;
    let lost = matches!(won, First2::B(_));
    let last = ctx.step("last", async || Ok(2)).limit_key(limit, "k").await?;
    Ok(json!([a, b, c, lost, last]))
}

fn crash_mix() -> CrashTest {
    let options = WorkflowOptions::new()
        .limit_key(Limit::new("runs").concurrency(1), |n: &u32| *n)
        .retry(Retry::fixed(2, seconds(1)));
    CrashTest::new(MIX, 7)
        .of(&["limit"])
        .engine(move |builder| builder.register_fn_with(MIX, options.clone(), mix))
}

#[tokio::test(flavor = "multi_thread")]
async fn limits_survive_a_crash_at_every_point() {
    let report = crash_mix().await;
    assert_eq!(report.expected.output, Some(json!([7, 7, 7, true, 2])));
    assert!(report.has_more_than(20), "{report}");
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn limits_survive_a_power_cut_at_every_point() {
    let code = |ctx: Ctx, n: u32| async move {
        let step = ctx.step("work", async || Ok(n)).limit(ONE).await?;
        Ok(json!(step))
    };
    let options = WorkflowOptions::new().limit(Limit::new("runs").concurrency(1));
    let report = CrashTest::new(MIX, 7)
        .of(&["limit"])
        .engine(move |builder| builder.register_fn_with(MIX, options.clone(), code))
        .power_cuts()
        .await;
    assert_eq!(report.expected.output, Some(json!(7)));
    assert!(report.points > 20, "{report}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_failed_attempt_of_a_limited_run_survives_a_crash_at_every_point() {
    let options = WorkflowOptions::new().limit(ONE).retry(Retry::fixed(2, seconds(1)));
    let code = |ctx: Ctx, n| async move {
        let attempt = ctx.run_attempt();
        ctx.step("before", async || Ok(())).limit(Limit::new("s").concurrency(1)).await?;
        let step = ctx.step("work", async || match attempt {
            1 => Err(Error::msg("not yet")),
            _ => Ok(n),
        });
        Ok(json!(step.retry(Retry::never()).await?))
    };
    let test = CrashTest::new(MIX, 5)
        .of(&["limit"])
        .engine(move |builder| builder.register_fn_with(MIX, options.clone(), code));
    let report = test.await;
    assert_eq!(report.expected.output, Some(json!(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn a_paused_and_resumed_run_survives_a_crash_at_every_point() {
    let options = WorkflowOptions::new().limit(ONE);
    let code = |ctx: Ctx, n: u32| async move {
        ctx.step("before", async || Ok(())).limit(Limit::new("s").concurrency(1)).await?;
        ctx.sleep("long", hours(1)).await?;
        let last = ctx.step("last", async || Ok(n)).limit(Limit::new("s").concurrency(1));
        Ok(json!(last.await?))
    };
    let test = CrashTest::new(MIX, 5)
        .of(&["limit"])
        .engine(move |builder| builder.register_fn_with(MIX, options.clone(), code))
        .at(minutes(1))
        .pause()
        .resume();
    let report = test.await;
    assert_eq!(report.expected.output, Some(json!(5)));
}

#[tokio::test(flavor = "multi_thread")]
async fn why_names_the_limit_and_who_has_a_place() {
    let (engine, bodies) = engine(builder(), ONE).await;
    let runs = queue_up(&engine.client(), [1, 2]).await;
    bodies.until_began(&[1]).await;
    until_status(&runs[1], RunStatus::Sleeping).await;
    let why = runs[1].why().await.unwrap();
    let holder = runs[0].id();
    let wanted = format!("waits for limit `one` at `work`, where run {holder} has a place");
    assert!(why.chain[0].sentence.ends_with(&wanted), "{}", why.sentence);
    assert_eq!((why.chain[1].run, why.cycle.len()), (holder, 0));
    bodies.open(2);
    runs[1].result().await.unwrap();

    let engine = whole_runs(|builder| builder).await;
    let runs = queue_up(&engine.client(), [1, 3]).await;
    until_status(&runs[1], RunStatus::Sleeping).await;
    let why = runs[1].why().await.unwrap();
    let wanted = "waits for limit `one` (`1`) before it begins, where run";
    assert!(why.sentence.contains(wanted), "{}", why.sentence);
}

#[cfg(feature = "sqlite")]
#[tokio::test(flavor = "multi_thread")]
async fn a_transaction_under_a_limit_gives_its_place_back() {
    let dir = tempfile::tempdir().unwrap();
    let engine = Engine::open(dir.path().join("app.db")).register_fn(WORK, |ctx, n| async move {
        ctx.transaction("one", move |_| Ok(n)).limit(ONE).await?;
        ctx.transaction("two", move |_| Ok(n)).limit(ONE).await
    });
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 1..=5 {
        runs.push((n, client.start(WORK, n).await.unwrap()));
    }
    for (n, run) in runs {
        assert_eq!(run.result().await.unwrap(), n);
    }
    assert_eq!(client.limits().await.unwrap(), []);
    engine.shutdown().await;
}

const ITEMS: Queue<u32, u32> = Queue::new("items").limit(ONE);

#[tokio::test(flavor = "multi_thread")]
async fn steps_and_the_items_of_two_workers_share_a_limit() {
    let limit = Limit::new("two").concurrency(2);
    let queue: Queue<u32, u32> = Queue::new("items").limit(limit);
    let bodies = Bodies::new();
    let inner = bodies.clone();
    let body = move |n| {
        let bodies = inner.clone();
        async move {
            let _inside = bodies.enter(n);
            for _ in 0..20 {
                tokio::task::yield_now().await;
            }
            Ok(n)
        }
    };
    let step = body.clone();
    let engine = builder().register_fn(WORK, move |ctx, n| {
        let step = step.clone();
        async move { ctx.step("work", async || step(n).await).limit(limit).await }
    });
    let engine = engine.start().await.unwrap();
    for _ in 0..2 {
        let body = body.clone();
        engine.work(queue, 4, move |_job, n| body(n)).unwrap();
    }
    let client = engine.client();
    let (mut runs, mut items) = (Vec::new(), Vec::new());
    for n in 0..20 {
        items.push(client.enqueue(queue, &n).await.unwrap());
        runs.push(client.start(WORK, n).await.unwrap());
    }
    for (run, item) in runs.iter().zip(&items) {
        assert_eq!(run.result().await.unwrap(), item.result().await.unwrap());
    }
    assert_eq!(bodies.began().len(), 40);
    assert!(bodies.max() <= 2, "{} were in a body at once", bodies.max());
    assert_eq!(client.limits().await.unwrap(), []);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_worker_asks_again_when_a_step_has_given_its_place_back() {
    let (engine, bodies) = engine(builder(), ONE).await;
    let handler = bodies.clone();
    let handler = move |_job, n| {
        let bodies = handler.clone();
        async move { bodies.body(n).await }
    };
    engine.work(ITEMS, 4, handler).unwrap();
    let client = engine.client();
    let run = client.start(WORK, 1).await.unwrap();
    bodies.until_began(&[1]).await;
    let item = client.enqueue(ITEMS, &2).await.unwrap();
    let next = client.start(WORK, 3).await.unwrap();
    until("the next run to stand in line", async || {
        (only_limit(&client).await.waiting == 1).then_some(())
    })
    .await;
    bodies.open(1);
    assert_eq!(run.result().await.unwrap(), 1);
    bodies.until_began(&[1, 3]).await;
    // The run stood in line; the item does not.
    assert_eq!(client.queue_stats("items").await.unwrap().ready, 1);
    bodies.open(3);
    assert_eq!(next.result().await.unwrap(), 3);
    assert_eq!(item.result().await.unwrap(), 2);
    assert_eq!((bodies.began(), bodies.max()), (vec![1, 3, 2], 1));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn items_under_a_rate_begin_an_interval_apart() {
    let rate = Limit::new("slow").rate(1, seconds(10));
    let queue: Queue<u32, i64> = Queue::new("items").limit(rate);
    let clock = VirtualClock::new();
    let held = clock.hold();
    let engine = Engine::on(testing::store()).clock(clock.clone());
    let engine = engine.start().await.unwrap();
    let handler = move |_job, _n| {
        let now = clock.now().as_millis();
        async move { Ok(now) }
    };
    engine.work(queue, 4, handler).unwrap();
    let client = engine.client();
    let mut items = Vec::new();
    for n in 0..4 {
        items.push(client.enqueue(queue, &n).await.unwrap());
    }
    drop(held);
    let mut times = Vec::new();
    for item in items {
        times.push(item.result().await.unwrap());
    }
    for pair in times.windows(2) {
        assert_eq!(pair[1] - pair[0], 10_000, "{times:?}");
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_step_gets_the_place_of_an_item_whose_worker_is_lost() {
    use everstep::store::{Batch, ClaimItems, ClaimLimit, LimitRule, QueueWrite, Write};

    let clock = VirtualClock::new();
    let store = testing::store();
    let open = || Engine::on(store.clone()).clock(clock.clone());
    let (first, _) = engine(open(), ONE).await;
    let item = first.client().enqueue(ITEMS, &1).await.unwrap().id();
    first.shutdown().await;
    // A worker of another process takes the item, and dies.
    let claim = QueueWrite::Claim(ClaimItems {
        queue: ITEMS.name().to_owned(),
        claim: uuid::Uuid::from_u128(1),
        max: 1,
        attempts_max: 5,
        visibility: seconds(30),
        limit: Some(ClaimLimit {
            limit: ONE.name().to_owned(),
            limit_key: String::new(),
            rule: LimitRule { concurrency: Some(1), rate: None },
        }),
    });
    let lost_at = clock.now() + seconds(30);
    let batch =
        Batch { fence: None, now: clock.now(), writes: vec![Write::Queue(Box::new(claim))] };
    store.commit(&batch).unwrap();

    // Nobody works on the queue.
    let (engine, bodies) = engine(open(), ONE).await;
    bodies.open(7);
    let client = engine.client();
    let run = client.start(WORK, 7).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 7);
    assert!(clock.now() >= lost_at, "not before its time was over");
    let row = store.queue_item(item).unwrap().unwrap();
    assert_eq!((row.attempts, row.at), (1, lost_at));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn an_imported_run_stands_in_line_in_its_new_store() {
    // One run has a place and waits for its turn, one waits for a place; as a step, and as a whole.
    let slow = Limit::new("slow").rate(1, hours(1)).concurrency(1);
    for whole in [false, true] {
        let options = match whole {
            true => WorkflowOptions::new().limit(slow),
            false => WorkflowOptions::new(),
        };
        let code = move |ctx: Ctx, n: u32| async move {
            let step = ctx.step("work", async || Ok(n));
            match whole {
                true => step.await,
                false => step.limit(slow).await,
            }
        };
        let clock = VirtualClock::new();
        let old = Engine::on(testing::store()).clock(clock.clone()).register_fn_with(
            WORK,
            options.clone(),
            code,
        );
        let old = old.start().await.unwrap();
        let first = old.client().start(WORK, 1).await.unwrap();
        first.result().await.unwrap();
        let _held = clock.hold();
        let runs = queue_up(&old.client(), [2, 3]).await;
        let mut files = Vec::new();
        for run in &runs {
            until_status(run, RunStatus::Sleeping).await;
            files.push(run.export().await.unwrap());
        }
        let new = builder().register_fn_with(WORK, options, code);
        let new = new.start().await.unwrap();
        for (file, n) in files.iter().zip([2, 3]) {
            let run = new.client().import(file).await.unwrap();
            assert_eq!(run.result_json().await.unwrap(), json!(n));
        }
        let limits = new.client().limits().await.unwrap();
        assert!(limits.iter().all(|limit| limit.in_use + limit.waiting == 0));
    }
}
