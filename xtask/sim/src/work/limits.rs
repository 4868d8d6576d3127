//! The limits that steps and runs are under.

use std::time::Duration;

use everstep::{Limit, StepCall, WorkflowOptions, testing::simulation::Rng};
use serde::{Deserialize, Serialize};

use super::{
    Order,
    bodies::Done,
    program::{Op, Program},
};

/// The limits of steps.
pub(crate) const OF_STEPS: [Limit; 4] = [
    Limit::new("one").concurrency(1),
    Limit::new("two").concurrency(2),
    Limit::new("rated").rate(3, Duration::from_secs(1)),
    Limit::new("spaced").concurrency(2).rate(2, Duration::from_secs(1)).burst(1),
];

/// The limits of whole runs.
pub(crate) const OF_RUNS: [Limit; 3] = [
    Limit::new("gate").concurrency(1),
    Limit::new("gates").concurrency(2),
    Limit::new("rated gate").concurrency(3).rate(2, Duration::from_secs(1)),
];

/// The limit of which programs take turns alone, so that all of them are known.
pub(crate) const TURNS: Limit = Limit::new("turns").rate(2, Duration::from_secs(1)).burst(2);

/// How many keys a limit has that is used with one.
const KEYS: u64 = 2;

/// A limit, by its number, and the key under which it is used.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Limited {
    limit: usize,
    key: Option<u64>,
}

impl Limited {
    fn draw(rng: &mut Rng, limits: usize) -> Limited {
        let limit = rng.below(limits as u64) as usize;
        let key = (rng.below(2) == 0).then(|| rng.below(KEYS));
        Limited { limit, key }
    }

    /// The limit of a step.
    pub(crate) fn of_step(self) -> Limit {
        OF_STEPS[self.limit]
    }

    /// The limit of a run.
    pub(crate) fn of_run(self) -> Limit {
        OF_RUNS[self.limit]
    }

    /// The key, as it is stored.
    pub(crate) fn key(self) -> String {
        self.key.map_or_else(String::new, |key| key.to_string())
    }

    /// The key for the run of an order, as it is stored.
    pub(crate) fn key_of(self, order: &Order) -> String {
        match self.key {
            None => String::new(),
            Some(_) => (order.program as u64 % KEYS).to_string(),
        }
    }

    /// Puts a step under it.
    pub(crate) fn on_step(self, call: StepCall<'_, Done>) -> StepCall<'_, Done> {
        match self.key {
            None => call.limit(self.of_step()),
            Some(key) => call.limit_key(self.of_step(), key),
        }
    }

    /// Puts all runs under it. With a key, each program has one of its own.
    pub(crate) fn on_runs(self, options: WorkflowOptions) -> WorkflowOptions {
        match self.key {
            None => options.limit(self.of_run()),
            Some(_) => options.limit_key(self.of_run(), move |order: &Order| self.key_of(order)),
        }
    }
}

/// In some lives, programs wait for turns under a rate.
pub(crate) fn draw_turns(rng: &mut Rng, programs: &mut [Program]) {
    if rng.below(4) > 0 {
        return;
    }
    for program in programs {
        for _ in 0..rng.below(5) {
            let op = Op::Turn { id: program.next_id(), key: rng.below(KEYS) };
            program.insert(rng, op);
        }
    }
}

/// Puts some steps under limits in half of all lives, and all runs in some.
pub(crate) fn draw(rng: &mut Rng, programs: &mut [Program]) -> Option<Limited> {
    if rng.below(2) == 0 {
        for program in programs {
            for step in program.steps_mut() {
                if rng.below(2) == 0 {
                    step.limit = Some(Limited::draw(rng, OF_STEPS.len()));
                }
            }
        }
    }
    (rng.below(5) == 0).then(|| Limited::draw(rng, OF_RUNS.len()))
}

/// Puts all steps under limits, and has them take their time: many stand in line for the same few places.
pub(crate) fn crowd(rng: &mut Rng, programs: &mut [Program], lease: Duration) {
    for step in programs.iter_mut().flat_map(Program::steps_mut) {
        let limit = rng.below(2) as usize;
        step.limit = Some(Limited { limit, key: None });
        step.lasts += rng.up_to(lease / 4);
    }
}
