//! Two engines on one store in a simulation ([`crate::seam`]): one activity at a time, chosen by a
//! seed.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
    time::Duration,
};

use tokio::sync::oneshot;

use super::{Engine, EngineBuilder};
use crate::{
    client::Client,
    commit::Target,
    ctx::Ctx,
    error::Result,
    run_id::RunId,
    sabotage::Sabotage,
    seam::{
        self, Leaf, Process, Thread,
        sim::{self, Config, Fault, Report, SimProcess},
    },
    store::{MemoryStore, Store as _, StoreError},
    testing::CrashingStore,
    time::Timestamp,
    workflow::Workflow,
};

type TestStore = CrashingStore<MemoryStore>;

const LEASE: Duration = Duration::from_secs(3);

fn new_store() -> Arc<TestStore> {
    Arc::new(CrashingStore::counting(MemoryStore::new()))
}

fn engine_on(store: &Arc<TestStore>) -> EngineBuilder {
    Engine::on(store.clone()).settings(|settings| {
        settings.threads = 2;
        settings.lease = LEASE;
    })
}

/// Starts an engine in its process; none if that is killed before it has started, or the store fails.
fn start(process: &SimProcess, builder: EngineBuilder) -> Option<Engine> {
    let (sender, started) = oneshot::channel();
    process.spawn("start", move || {
        _ = sender.send(seam::block_on(builder.start(), "engine"));
    });
    seam::block_on(started, "engine").ok()?.ok()
}

const CHARGE: Workflow<(), String> = Workflow::new("charge");

/// The point inside of the workflow's code.
const IN_THE_CODE: &str = "workflow code";

/// What a takeover was like.
#[derive(Debug, Default, PartialEq, Eq)]
struct Takeover {
    /// The process of each body that has started, in order.
    bodies: Vec<&'static str>,
    result: Option<String>,
    takeovers: u64,
}

/// The owner of a run is stopped inside the poll of the workflow's code for longer than its lease; each
/// of its threads goes on at a time of its own. Another engine has taken over by then.
fn take_over(seed: u64, sabotage: Option<Sabotage>) -> (Report, Takeover) {
    let mut has_stalled = false;
    let config = Config {
        faults: Box::new(move |at, _| {
            let is_first = at.label == IN_THE_CODE && !has_stalled;
            has_stalled |= is_first;
            is_first.then_some(Fault::StallProcess { lasts: LEASE * 4, spread: LEASE * 2 })
        }),
        time_max: LEASE * 100,
        ..Config::default()
    };
    let found: Arc<Leaf<Takeover>> = Arc::default();
    let noted = found.clone();
    let report = sim::simulate(seed, config, move || {
        let store = new_store();
        let start = |name: &'static str| {
            let noted = noted.clone();
            let code = move |ctx: Ctx, (): ()| {
                let noted = noted.clone();
                async move {
                    seam::point(IN_THE_CODE);
                    ctx.step("charge", async || {
                        sim::note("the body starts");
                        noted.lock().bodies.push(name);
                        Ok(name.to_owned())
                    })
                    .await
                }
            };
            let builder = engine_on(&store).settings(|settings| settings.sabotage = sabotage);
            let builder = builder.register_fn(CHARGE, code);
            start(&sim::new_process(name), builder).expect("nobody is killed")
        };
        let (old, new) = (start("old"), start("new"));
        // Until each has its share of the shards: a run that is started by the old one is its own.
        seam::sleep(LEASE * 3, "balance");
        let run = seam::block_on(old.client().start(CHARGE, ()), "start");
        let run = run.expect("it is started").id();
        let result = new.client().run::<String>(run);
        let result = seam::block_on(result.result(), "result");
        // Until the old owner has gone on, and has read again what has come back to it.
        seam::sleep(LEASE * 10, "the old owner goes on");
        let mut noted = noted.lock();
        noted.result = Some(result.expect("it has completed"));
        noted.takeovers = new.counters().takeovers;
    });
    let found = std::mem::take(&mut *found.lock());
    (report, found)
}

/// A process was stopped while it polled the code of a run. Its lease was over when it went on, it had
/// registered again before that poll came to its body, and a lease lasted: the body of a step ran that
/// its successor had completed.
#[test]
fn an_owner_that_was_stopped_inside_a_poll_starts_no_body_under_its_next_lease() {
    for seed in 0..300 {
        let (report, found) = take_over(seed, None);
        assert_eq!((report.failure, report.stalls), (None, 1), "seed {seed}");
        assert!(found.takeovers > 0, "seed {seed}: nobody took over");
        assert_eq!(found.bodies, ["new"], "seed {seed}");
        assert_eq!(found.result.as_deref(), Some("new"), "seed {seed}");
    }
}

/// The simulation finds the body of the former owner when its epoch is not compared.
#[test]
fn a_body_under_a_foreign_epoch_is_found_by_a_seed() {
    let bodies = |seed| take_over(seed, Some(Sabotage::ForeignEpoch)).1.bodies;
    let found = (0..100).find(|seed| bodies(*seed).len() > 1);
    let found = found.expect("one of these seeds finds it");
    assert_eq!(bodies(found), ["new", "old"]);
}

#[test]
fn one_seed_gives_one_trace_of_two_engines() {
    for seed in 0..20 {
        assert_same(seed, &take_over(seed, None), &take_over(seed, None));
        assert_same(seed, &storm(seed, STORM), &storm(seed, STORM));
    }
}

/// Compares line by line first, to name the place where two lives part.
fn assert_same<T: std::fmt::Debug + PartialEq>(seed: u64, one: &(Report, T), other: &(Report, T)) {
    let lines = one.0.trace.lines().zip(other.0.trace.lines());
    for (number, (line, same)) in lines.enumerate() {
        assert_eq!(line, same, "seed {seed}, line {number}");
    }
    assert_eq!(one, other, "seed {seed}");
}

const ORDER: Workflow<(), u64> = Workflow::new("order");

/// A client without an engine was opened on a file while the clock was an hour ahead, and was idle when the
/// clock was set right. It noticed that only with its next write, and believed it 5 s later: a run that it
/// was to start in ten seconds was due in an hour.
#[test]
fn a_client_that_is_idle_while_the_clock_is_set_back_starts_its_next_run_in_time() {
    let found: Arc<Leaf<Option<Duration>>> = Arc::default();
    let noted = found.clone();
    let config = Config { time_max: LEASE * 100, ..Config::default() };
    let report = sim::simulate(7, config, move || {
        let store = new_store();
        store.migrate().expect("migrate");
        let process = sim::new_process("client");
        let ahead = |calendar_ahead_ms| sim::Clocks { calendar_ahead_ms, ..sim::Clocks::default() };
        process.set_clocks(ahead(3_600_000));
        let (sender, is_idle) = oneshot::channel();
        let (go_on, goes_on) = oneshot::channel();
        let (ended, has_ended) = oneshot::channel();
        let noted = noted.clone();
        process.spawn("work", move || {
            let client = Client::on(store.clone()).expect("a client");
            _ = sender.send(());
            seam::block_on(goes_on, "the clock is set").expect("it is told");
            let start = client.start(CHARGE, ()).after(Duration::from_secs(10));
            let run = seam::block_on(start, "start").expect("it is started").id();
            let row = store.run(&Target::Id(run)).expect("run").expect("it is there");
            let now = Timestamp::from(sim::right_time());
            *noted.lock() = row.available_at.map(|at| at.since(now));
            drop(client);
            _ = ended.send(());
        });
        seam::block_on(is_idle, "the client").expect("it is open");
        process.set_clocks(ahead(0));
        seam::sleep(Duration::from_secs(30), "the client is idle");
        _ = go_on.send(());
        seam::block_on(has_ended, "the client").expect("it has ended");
    });
    assert_eq!(report.failure, None);
    let left = found.lock().take().expect("the run is due at some time");
    assert!(left <= Duration::from_secs(10), "it is due in {left:?}");
}

/// How bad a storm is.
#[derive(Clone, Copy)]
struct Weather {
    engines: &'static [&'static str],
    runs: usize,
    /// Whether the store is slow, fails, and loses answers.
    is_store_bad: bool,
}

const STORM: Weather = Weather { engines: &["a", "b"], runs: 3, is_store_bad: false };

const BAD_STORE: Weather = Weather { engines: &["a", "b", "c"], runs: 16, is_store_bad: true };

/// What bodies and clients have seen in a storm.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen {
    /// The results that bodies of a step have got from the step before, by run and step.
    before: BTreeMap<(RunId, &'static str), BTreeSet<u64>>,
    results: BTreeMap<RunId, u64>,
}

/// One step of each kind, each with the result of the one before.
async fn order(ctx: Ctx, seen: Arc<Leaf<Seen>>) -> Result<u64> {
    let run = ctx.run_id();
    let note = move |step: &'static str, before: u64| {
        sim::note(&format!("{step} of {run} starts with {before}"));
        let mut seen = seen.lock();
        seen.before.entry((run, step)).or_default().insert(before);
    };
    let noted = note.clone();
    let first = ctx.step("first", async || {
        noted("first", 0);
        Ok(seam::random())
    });
    let first = first.await?;
    ctx.sleep("pause", LEASE / 2).await?;
    let noted = note.clone();
    let second = ctx.blocking("second", move |_| {
        noted("second", first);
        seam::sleep(LEASE / 3, "a body that blocks");
        Ok(seam::random())
    });
    let second = second.await?;
    let third = ctx.spawn("third", move |_| {
        let noted = note.clone();
        async move {
            noted("third", second);
            seam::point("a body that is spawned");
            Ok(seam::random())
        }
    });
    third.await
}

/// What goes wrong with the next calls of a store. An answer that is lost is not lost for long: to
/// look for what became of a call is the store's own business.
fn make_trouble(store: &TestStore, choice: u64) {
    use super::fixture::{away, unknown};
    match choice {
        0 => store.fail_next("commit", away),
        1 => store.fail_next("commit", unknown),
        2 => store.lose_next("commit", unknown),
        3 => store.shorten_next_answer(0),
        4 => store.fail_next("release_shards", away),
        5 => store.lose_next("release_shards", unknown),
        6 => store.fail_next("take_shards", away),
        7 => store.lose_next("take_shards", unknown),
        8 => store.fail_next("live", away),
        9 => store.fail_next("load", away),
        10 => store.fail_next("due", away),
        11 => store.fail_next("run", away),
        12 => store.fail_next("heartbeat", away),
        _ => {}
    }
}

/// Engines that stall and die at any point, and are started again, with a few runs. The faults stop
/// after a while.
fn storm(seed: u64, weather: Weather) -> (Report, Seen) {
    let Weather { engines, runs, is_store_bad } = weather;
    let calm_after = LEASE * 20;
    let config = Config {
        faults: Box::new(move |at, rng| {
            let is_store = matches!(at.label, "write of the store" | "answer of the store");
            match rng.below(2_000) {
                _ if at.time > calm_after => None,
                0 => Some(Fault::Kill),
                1..3 => Some(Fault::StallActivity(rng.up_to(LEASE * 3))),
                3..5 => {
                    Some(Fault::StallProcess { lasts: rng.up_to(LEASE * 3), spread: LEASE * 2 })
                }
                5..40 if is_store && is_store_bad => {
                    Some(Fault::StallActivity(rng.up_to(LEASE * 6)))
                }
                40..100 if is_store && is_store_bad => Some(Fault::StallActivity(rng.up_to(LEASE))),
                _ => None,
            }
        }),
        time_max: LEASE * 200,
        clock_points: 100,
        ..Config::default()
    };
    let seen: Arc<Leaf<Seen>> = Arc::default();
    let noted = seen.clone();
    let report = sim::simulate(seed, config, move || {
        let store = new_store();
        let begin = |name: &'static str| {
            let noted = noted.clone();
            let code = move |ctx: Ctx, (): ()| order(ctx, noted.clone());
            let process = sim::new_process(name);
            let engine = start(&process, engine_on(&store).register_fn(ORDER, code));
            (name, process, engine)
        };
        let mut engines: Vec<_> = engines.iter().map(|name| begin(name)).collect();
        let client = Client::on(store.clone()).expect("a client");
        let clients = (0..runs).map(|no| {
            let (client, noted) = (client.clone(), noted.clone());
            let work = move || {
                let start = || client.start(ORDER, ()).key(format!("order-{no}"));
                let run = until_ok(|| seam::block_on(start().into_future(), "start"));
                let result = until_ok(|| seam::block_on(run.result(), "result"));
                noted.lock().results.insert(run.id(), result);
            };
            let thread = Process::current().spawn("client", work);
            thread.expect("a simulation always has threads")
        });
        let clients: Vec<Thread> = clients.collect();
        let begun = seam::now();
        while !clients.iter().all(Thread::is_finished) {
            seam::sleep(LEASE / 4, "watch");
            if is_store_bad && seam::elapsed(begun) < calm_after {
                make_trouble(&store, seam::random() % 20);
            }
            // One that could not start, too.
            let gone = engines
                .iter_mut()
                .filter(|(_, process, engine)| process.is_dead() || engine.is_none());
            for engine in gone {
                *engine = begin(engine.0);
            }
        }
        seam::sleep(calm_after, "calm");
        for (_, process, engine) in engines {
            if let Some(engine) = engine.filter(|_| !process.is_dead()) {
                seam::block_on(engine.shutdown(), "shutdown");
            }
        }
    });
    let seen = std::mem::take(&mut *seen.lock());
    (report, seen)
}

/// Asks until there is an answer.
fn until_ok<T, E>(mut ask: impl FnMut() -> std::result::Result<T, E>) -> T {
    loop {
        match ask() {
            Ok(answer) => return answer,
            Err(_) => seam::sleep(LEASE / 10, "ask again"),
        }
    }
}

/// No later effect happens before a result is recorded: whoever runs a body, and however often, finds
/// the same result of the step before it. Gives how many stalls, kills and bodies beyond the first of
/// each step there were.
fn assert_weathered(seeds: std::ops::Range<u64>, weather: Weather) -> (u64, u64, usize) {
    let (mut stalls, mut kills, mut again) = (0, 0, 0);
    let runs = weather.runs;
    for seed in seeds {
        let (report, seen) = storm(seed, weather);
        assert_eq!(report.failure, None, "seed {seed}");
        assert_eq!(seen.results.len(), runs, "seed {seed}");
        assert_eq!(seen.before.len(), runs * 3, "seed {seed}");
        for (step, before) in &seen.before {
            assert_eq!(before.len(), 1, "seed {seed}: {step:?} has got {before:?}");
        }
        (stalls, kills) = (stalls + report.stalls, kills + report.kills);
        again += report.trace.matches(" starts with ").count() - runs * 3;
    }
    (stalls, kills, again)
}

#[test]
fn runs_go_on_through_stalls_and_kills_with_one_result_for_each_step() {
    let (stalls, kills, again) = assert_weathered(0..150, STORM);
    assert!(stalls > 100 && kills > 20 && again > 10, "{stalls} {kills} {again}");
}

/// Answers of the store that were lost or late left runs in nobody's memory while their shard was
/// owned. One of these seeds had a run that never went on.
#[test]
fn runs_go_on_through_lost_and_late_answers_of_the_store() {
    let (stalls, kills, again) = assert_weathered(0..60, BAD_STORE);
    assert!(stalls > 1_000 && kills > 10 && again > 10, "{stalls} {kills} {again}");
}

const NAP: Workflow<(), String> = Workflow::new("nap");

/// An engine that had stopped by itself went on with its heartbeats. Nobody else took its runs, since
/// its lease never ended.
#[test]
fn runs_of_an_engine_that_stops_go_on_elsewhere() {
    let stops: [fn(&Engine, &TestStore); 3] = [
        |old, _| {
            let store = "the test's store".to_owned();
            old.shared.stop(StoreError::Closed { store });
        },
        // A thread of it has died.
        |old, store| {
            store.fail_next("due", || panic!("the store has a mistake"));
            old.shared.due.poke(false);
        },
        |old, store| {
            store.fail_next("heartbeat", || panic!("the store has a mistake"));
            old.shared.lease_stop.doubt();
        },
    ];
    for stop in stops {
        let config = Config { time_max: LEASE * 100, ..Config::default() };
        let report = sim::simulate(1, config, move || {
            let store = new_store();
            let start = |name: &'static str| {
                let code = move |ctx: Ctx, (): ()| async move {
                    ctx.sleep("nap", LEASE * 3).await?;
                    ctx.step("name", async || Ok(name.to_owned())).await
                };
                let builder = engine_on(&store).register_fn(NAP, code);
                start(&sim::new_process(name), builder).expect("nobody is killed")
            };
            let (old, new) = (start("old"), start("new"));
            seam::sleep(LEASE * 3, "balance");
            let run = seam::block_on(old.client().start(NAP, ()), "start");
            let run = run.expect("it is started").id();
            stop(&old, &store);
            let result = new.client().run::<String>(run);
            let result = seam::block_on(result.result(), "result");
            assert_eq!(result.expect("it has completed"), "new");
            assert!(old.stopped().is_some());
        });
        assert_eq!(report.failure, None);
    }
}

const WAIT: Workflow<(), bool> = Workflow::new("wait");

/// Found by the simulation of `xtask/sim`: an engine without room for parked runs read a run whose wait had run
/// out, parked it before the timer of that wait could fire, dropped it, and read it again, without end.
#[test]
fn a_wait_that_has_run_out_ends_without_room_for_parked_runs() {
    let report = sim::simulate(1, Config::default(), || {
        let code = |ctx: Ctx, (): ()| async move {
            let heard: Option<u64> = ctx.listen("never").timeout(LEASE).await?;
            Ok(heard.is_none())
        };
        let builder = engine_on(&new_store()).settings(|settings| settings.hot_bytes = 0);
        let builder = builder.register_fn(WAIT, code);
        let engine = start(&sim::new_process("engine"), builder).expect("nobody is killed");
        let run = seam::block_on(engine.client().start(WAIT, ()), "start");
        let run = run.expect("it is started");
        assert!(seam::block_on(run.result(), "result").expect("it has completed"));
    });
    assert_eq!(report.failure, None);
    assert!(report.time < LEASE * 2, "{:?}", report.time);
}

const GIVE_UP: Workflow<(), bool> = Workflow::new("give-up");

/// Found by `cargo xtask sim`: a blocking body waited for its thread while its shard was given back, and
/// its run went on in another process. The lease of the first one lasted, so the body began there when
/// there was a thread for it. A body that was given up before it has begun never begins.
#[test]
fn a_blocking_body_that_was_given_up_while_it_waited_for_a_thread_does_not_begin() {
    let config = Config {
        faults: Box::new(|at, _| {
            let waits = at.label == "blocking work";
            waits.then_some(Fault::StallActivity(LEASE * 2))
        }),
        ..Config::default()
    };
    let report = sim::simulate(1, config, || {
        let code = |ctx: Ctx, (): ()| async move {
            let body = |_| {
                sim::note("the body begins");
                Ok(())
            };
            let nap = ctx.sleep("nap", LEASE);
            crate::select! {
                done = ctx.blocking("late", body) => done.map(|()| true),
                over = nap => over.map(|_| false),
            }
        };
        let builder = engine_on(&new_store()).register_fn(GIVE_UP, code);
        let engine = start(&sim::new_process("engine"), builder).expect("nobody is killed");
        let run = seam::block_on(engine.client().start(GIVE_UP, ()), "start");
        let run = run.expect("it is started");
        assert!(!seam::block_on(run.result(), "result").expect("it has completed"));
        seam::sleep(LEASE * 3, "the thread is there");
    });
    assert_eq!((report.failure, report.stalls), (None, 1));
    assert!(!report.trace.contains("the body begins"));
}
