//! A change of the code while runs are under way: a part that a gate lets in, and a step that is gone.
//!
//! All processes with the code before the change have ended when the first one with the code after it
//! begins: a gate does not let the old code go on with a run that has passed it.

use std::time::Duration;

use everstep::testing::simulation::Rng;

use super::program::{How, Op, Program, StepOp};

/// In some lives the code changes: when.
pub(crate) fn draw(
    rng: &mut Rng,
    programs: &mut [Program],
    calm_after: Duration,
) -> Option<Duration> {
    if rng.below(4) > 0 {
        return None;
    }
    for program in programs {
        for _ in 0..1 + rng.below(2) {
            let id = program.next_id();
            let mut step = StepOp::plain(id + 1);
            step.lasts = Duration::from_millis(rng.below(3) * 300);
            let op = match rng.below(3) {
                0 => Op::Removed(StepOp { id, ..step }),
                _ => Op::Parts { id, how: How::Gate, parts: vec![vec![Op::Step(step)]] },
            };
            program.insert(rng, op);
        }
    }
    Some(rng.up_to(calm_after))
}
