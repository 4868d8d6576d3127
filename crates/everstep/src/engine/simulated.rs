//! Two engines on one store in a simulation ([`crate::seam`]): one activity at a time, chosen by a
//! seed.

use std::{sync::Arc, time::Duration};

use tokio::sync::oneshot;

use super::{Engine, Sabotage};
use crate::{
    ctx::Ctx,
    seam::{
        self, Leaf,
        sim::{self, Config, Fault, Report, SimProcess},
    },
    store::MemoryStore,
    testing::CrashingStore,
    workflow::Workflow,
};

type TestStore = CrashingStore<MemoryStore>;

const LEASE: Duration = Duration::from_secs(3);

const CHARGE: Workflow<(), String> = Workflow::new("charge");

/// The point inside of the workflow's code.
const IN_THE_CODE: &str = "workflow code";

/// What one life of two engines was like.
#[derive(Debug, PartialEq, Eq)]
struct Life {
    report: Report,
    /// The process of each body that has started, in order.
    bodies: Vec<&'static str>,
    result: Option<String>,
    takeovers: u64,
}

/// Starts an engine in its process. Its workflow notes in which process its body starts.
fn start(
    process: &SimProcess,
    name: &'static str,
    store: &Arc<TestStore>,
    sabotage: Option<Sabotage>,
    bodies: &Arc<Leaf<Vec<&'static str>>>,
) -> Engine {
    let bodies = bodies.clone();
    let builder = Engine::on(store.clone())
        .settings(|settings| {
            settings.threads = 1;
            settings.lease = LEASE;
            settings.sabotage = sabotage;
        })
        .register_fn(CHARGE, move |ctx: Ctx, (): ()| {
            let bodies = bodies.clone();
            async move {
                seam::point(IN_THE_CODE);
                ctx.step("charge", async || {
                    sim::note("the body starts");
                    bodies.lock().push(name);
                    Ok(name.to_owned())
                })
                .await
            }
        });
    let (sender, started) = oneshot::channel();
    process.spawn("start", move || {
        _ = sender.send(seam::block_on(builder.start(), "engine"));
    });
    let engine = seam::block_on(started, "engine").expect("its thread has not died");
    engine.expect("it has started")
}

/// The owner of a run is stopped inside the poll of the workflow's code for longer than its lease; each
/// of its threads goes on at a time of its own. Another engine has taken over by then.
fn take_over(seed: u64, sabotage: Option<Sabotage>) -> Life {
    let mut has_stalled = false;
    let config = Config {
        faults: Box::new(move |at, _| {
            let is_first = at.label == IN_THE_CODE && !has_stalled;
            has_stalled |= is_first;
            is_first.then_some(Fault::StallProcess {
                lasts: LEASE * 4,
                spread: LEASE * 2,
            })
        }),
        time_max: LEASE * 100,
    };
    let bodies: Arc<Leaf<Vec<&'static str>>> = Arc::default();
    let found = Arc::new(Leaf::new((None, 0)));
    let (noted, at_the_end) = (bodies.clone(), found.clone());
    let report = sim::simulate(seed, config, move || {
        let store = Arc::new(CrashingStore::counting(MemoryStore::new()));
        let (old, new) = (sim::new_process("old"), sim::new_process("new"));
        let old = start(&old, "old", &store, sabotage, &noted);
        let new = start(&new, "new", &store, sabotage, &noted);
        // Until each has its share of the shards: what is started by the old one is its own.
        seam::sleep(LEASE * 3, "balance");
        let run = seam::block_on(old.client().start(CHARGE, ()), "start");
        let run = run.expect("it is started").id();
        let result = new.client().run::<String>(run);
        let result = seam::block_on(result.result(), "result");
        // Until the old owner has gone on, and has everything in memory that it should.
        seam::sleep(LEASE * 10, "the old owner goes on");
        let takeovers = new.counters().takeovers;
        *at_the_end.lock() = (Some(result.expect("it has completed")), takeovers);
    });
    let (result, takeovers) = std::mem::take(&mut *found.lock());
    let bodies = bodies.lock().clone();
    Life {
        report,
        bodies,
        result,
        takeovers,
    }
}

/// A process was stopped while it polled the code of a run. Its lease was over when it went on, it had
/// registered again before that poll came to its body, and a lease lasted: the body of a step ran that
/// its successor had completed.
#[test]
fn an_owner_that_was_stopped_inside_a_poll_starts_no_body_under_its_next_lease() {
    for seed in 0..300 {
        let life = take_over(seed, None);
        assert_eq!(life.report.failure, None, "seed {seed}");
        assert_eq!(life.report.stalls, 1, "seed {seed}");
        assert!(life.takeovers > 0, "seed {seed}: nobody took over");
        assert_eq!(life.bodies, ["new"], "seed {seed}");
        assert_eq!(life.result.as_deref(), Some("new"), "seed {seed}");
    }
}

/// The simulation finds the body of the former owner when its epoch is not compared.
#[test]
fn a_body_under_a_foreign_epoch_is_found_by_a_seed() {
    let starts_twice = |seed: &u64| take_over(*seed, Some(Sabotage::ForeignEpoch)).bodies.len() > 1;
    let found = (0..100).find(starts_twice).expect("a seed finds it");
    let life = take_over(found, Some(Sabotage::ForeignEpoch));
    assert_eq!(life.bodies, ["new", "old"]);
}

#[test]
fn one_seed_gives_one_trace_of_two_engines() {
    for seed in 0..20 {
        let (life, again) = (take_over(seed, None), take_over(seed, None));
        assert!(life.report.steps > 100 && life.report.failure.is_none());
        for (line, same) in life.report.trace.lines().zip(again.report.trace.lines()) {
            assert_eq!(line, same, "seed {seed}");
        }
        assert_eq!(life, again, "seed {seed}");
    }
}
