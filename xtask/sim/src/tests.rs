//! A few lives, and what must be true of all.

use everstep::testing::simulation::Trace;

use crate::{
    fleet,
    life::{self, Options},
    plan::Plan,
};

const TRACED: Options = Options { trace: Trace::Steps, sabotage: None };

/// Compares line by line first, to name the place where two lives part.
#[test]
fn two_lives_of_one_seed_are_the_same_byte_for_byte() {
    fleet::pin_to_core(0);
    for seed in 0..12 {
        let lives = [(); 2].map(|()| life::live(Plan::draw(seed), TRACED));
        let [one, other] = &lives;
        let lines = one.report.trace.lines().zip(other.report.trace.lines());
        for (number, (line, same)) in lines.enumerate() {
            assert_eq!(line, same, "seed {seed}, line {number}");
        }
        assert_eq!(one.report, other.report, "seed {seed}");
        assert_eq!(one.violations, other.violations, "seed {seed}");
    }
}

#[test]
fn no_promise_is_broken_in_some_lives() {
    fleet::pin_to_core(1);
    let mut all = crate::summary::Summary::new();
    for seed in 100..160 {
        let verdict = life::live(Plan::draw(seed), Options::default());
        assert_eq!(verdict.violations, [], "seed {seed}");
        all.add(&verdict.summary);
    }
    // Something has happened in them.
    assert!(all.crashes > 0 && all.stalls > 0 && all.takeovers > 0 && all.store_errors > 0);
}

/// The trace is only written down: a life without it is the same.
#[test]
fn a_life_does_not_depend_on_being_traced() {
    fleet::pin_to_core(0);
    for seed in [3, 4] {
        let traced = life::live(Plan::draw(seed), TRACED).report;
        let quiet = life::live(Plan::draw(seed), Options::default()).report;
        assert_eq!(traced.digest, quiet.digest, "seed {seed}");
        assert!(!traced.trace.is_empty() && quiet.trace.is_empty());
    }
}
