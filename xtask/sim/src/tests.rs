//! A few lives, and what must be true of all.

use std::ops::Range;

use everstep::testing::simulation::Trace;

use crate::{
    breaks, compare, fleet,
    life::{self, Options},
    plan::Plan,
    summary::Summary,
};

const TRACED: Options = Options { trace: Trace::Steps, sabotage: None, keeps_changes: false };

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

/// Lives these seeds on a core of its own.
fn live(core: usize, seeds: Range<u64>) {
    fleet::pin_to_core(core);
    let mut all = Summary::new();
    for seed in seeds {
        let verdict = life::live(Plan::draw(seed), Options::default());
        assert_eq!(verdict.violations, [], "seed {seed}");
        all.add(&verdict.summary);
    }
    // Something has happened in them.
    assert!(all.crashes > 0 && all.stalls > 0 && all.takeovers > 0 && all.store_errors > 0);
}

// 300 lives, half of them on each of two cores.

#[test]
fn no_promise_is_broken_in_some_lives() {
    live(0, 0..150);
}

#[test]
fn no_promise_is_broken_in_some_other_lives() {
    live(1, 150..300);
}

/// Three that are found soon; `cargo xtask sim --break all` looks for all.
#[test]
fn promises_that_are_broken_on_purpose_are_found() {
    fleet::pin_to_core(1);
    for name in ["double-consume", "no-fence", "always-direct"] {
        let broken = breaks::by_name(name).expect("it is a break");
        let options = Options { sabotage: Some(broken.sabotage), ..Options::default() };
        let mut lives = (0..60).map(|seed| life::live(Plan::draw(seed), options));
        assert!(lives.any(|verdict| !verdict.violations.is_empty()), "{name}");
    }
}

#[test]
fn every_store_answers_as_the_simulated_one() {
    fleet::pin_to_core(0);
    for store in ["memory", "SQLite", "PostgreSQL"] {
        everstep::testing::ran_on(store);
    }
    let options = Options { keeps_changes: true, ..Options::default() };
    for seed in 0..6 {
        let verdict = life::live(Plan::draw(seed), options);
        assert!(!verdict.changes.is_empty());
        assert_eq!(compare::compare(&verdict.changes), None, "seed {seed}");
    }
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
