//! What is counted over many lives, and shown as one object of JSON.

use std::{collections::BTreeMap, sync::atomic::Ordering};

use everstep::testing::simulation::Report;
use serde::{Deserialize, Serialize};

use crate::oracle::{Promise, Violation, ending::Left};

/// What has happened in some lives.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub(crate) struct Summary {
    pub(crate) seeds: u64,
    /// Threads of engines and clients.
    pub(crate) activities: u64,
    pub(crate) runs: u64,
    /// How often the body of a step has started.
    pub(crate) steps: u64,
    pub(crate) crashes: u64,
    pub(crate) stalls: u64,
    pub(crate) takeovers: u64,
    pub(crate) store_errors: u64,
    pub(crate) unknown_outcomes: u64,
    pub(crate) clock_jumps: u64,
    pub(crate) notifications_dropped: u64,
    pub(crate) simulated_hours: f64,
    pub(crate) seconds: f64,
    /// How many lives have broken each promise.
    pub(crate) violations: BTreeMap<Promise, u64>,
}

impl Summary {
    pub(crate) fn new() -> Summary {
        Summary {
            violations: Promise::ALL.iter().map(|promise| (*promise, 0)).collect(),
            ..Summary::default()
        }
    }

    /// Of one life.
    pub(crate) fn of(report: &Report, left: &Left, violations: &[Violation]) -> Summary {
        let counts = &left.server.counts;
        let ending = left.ending.as_ref();
        let mut summary = Summary {
            seeds: 1,
            activities: report.activities as u64,
            runs: ending.map_or(0, |ending| ending.runs.len() as u64),
            steps: left.ledger.book().bodies,
            crashes: report.kills,
            stalls: report.stalls,
            takeovers: left.engines.takeovers(),
            store_errors: counts.errors.load(Ordering::Relaxed),
            unknown_outcomes: counts.unknown_outcomes.load(Ordering::Relaxed),
            clock_jumps: report.clock_jumps,
            notifications_dropped: counts.wakes_dropped.load(Ordering::Relaxed),
            simulated_hours: report.time.as_secs_f64() / 3_600.0,
            ..Summary::new()
        };
        for violation in violations {
            summary.violations.insert(violation.promise, 1);
        }
        summary
    }

    pub(crate) fn add(&mut self, other: &Summary) {
        self.seeds += other.seeds;
        self.activities += other.activities;
        self.runs += other.runs;
        self.steps += other.steps;
        self.crashes += other.crashes;
        self.stalls += other.stalls;
        self.takeovers += other.takeovers;
        self.store_errors += other.store_errors;
        self.unknown_outcomes += other.unknown_outcomes;
        self.clock_jumps += other.clock_jumps;
        self.notifications_dropped += other.notifications_dropped;
        self.simulated_hours += other.simulated_hours;
        for (promise, lives) in &other.violations {
            *self.violations.entry(*promise).or_default() += lives;
        }
    }

    pub(crate) fn as_json(&self) -> String {
        serde_json::to_string(self).expect("numbers and texts are always JSON")
    }

    pub(crate) fn is_clean(&self) -> bool {
        self.violations.values().all(|lives| *lives == 0)
    }
}
