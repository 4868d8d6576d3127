//! What some lives have much of: circumstances that seldom come together by chance.
//!
//! A promise about a rare moment is tested by lives in which that moment is common. Everything here is
//! drawn from random numbers of its own, so that lives without a focus do not depend on it.

use std::time::Duration;

use everstep::testing::simulation::Rng;
use serde::{Deserialize, Serialize};

use super::{Act, Deed, EnginePlan, Plan};
use crate::{
    work::{limits, streams},
    world::operators::Operation,
};

/// What a life has much of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Focus {
    /// Shards move often, and reads of the store take so long that a shard may leave and come back
    /// before the answer.
    Moves,
    /// Runs that stand in line under limits are paused and resumed at once.
    Pauses,
    /// Bodies emit items while the store loses commits.
    LostItems,
}

impl Focus {
    /// The focus of a life: most have none.
    pub(super) fn draw(rng: &mut Rng) -> Option<Focus> {
        match rng.below(14) {
            0 | 1 => Some(Focus::Moves),
            2 => Some(Focus::Pauses),
            3 => Some(Focus::LostItems),
            _ => None,
        }
    }

    /// Gives a life much of this.
    pub(super) fn add_to(self, plan: &mut Plan, rng: &mut Rng) {
        match self {
            Focus::Moves => add_moves(plan, rng),
            Focus::Pauses => add_pauses(plan, rng),
            Focus::LostItems => lose_items(plan, rng),
        }
    }
}

/// One engine stays, and the others come and go. A read that is stalled for long finds its shard here
/// again, and the run further on.
fn add_moves(plan: &mut Plan, rng: &mut Rng) {
    let lease = plan.lease;
    plan.engines.truncate(3);
    while plan.engines.len() < 2 {
        let engine = EnginePlan::draw(rng, lease, plan.kind);
        plan.engines.push(engine);
    }
    for engine in &mut plan.engines {
        // Whatever waits is read again.
        engine.keeps_hot = false;
        engine.is_steady = true;
        engine.begins = rng.up_to(lease);
        engine.stays = Some(lease / 4 + rng.up_to(lease * 3 / 2));
    }
    plan.engines[0].stays = None;
    plan.sky.calm_after = plan.sky.calm_after.max(lease * 15);
    plan.sky.slow_reads = 100_000 + rng.below(400_000);
    plan.sky.stall_max = lease * 2 + rng.up_to(lease * 3);
}

/// All steps are under limits of which runs need the same few places.
fn add_pauses(plan: &mut Plan, rng: &mut Rng) {
    let mut programs = plan.programs.to_vec();
    limits::crowd(rng, &mut programs, plan.lease);
    plan.programs = programs.into();
    let programs = plan.programs.len() as u64;
    for script in &mut plan.scripts {
        let pauses = 10 + rng.below(20);
        let starts = script.iter().filter(|act| matches!(act.deed, Deed::Start(_))).count();
        for _ in 0..pauses {
            let lasts = match rng.below(2) {
                0 => Duration::ZERO,
                _ => rng.up_to(plan.lease / 8),
            };
            let program = rng.below(programs) as usize;
            let deed = Deed::Operate(Operation::Pause { program, lasts: Some(lasts) });
            let waits = script.iter().position(|act| act.deed.only_waits());
            let end = waits.unwrap_or(script.len());
            let at = starts.min(end) + rng.below((end - starts.min(end)) as u64 + 1) as usize;
            let after = rng.up_to(plan.sky.calm_after * 2 / pauses as u32);
            script.insert(at, Act { after, deed });
        }
    }
}

fn lose_items(plan: &mut Plan, rng: &mut Rng) {
    let mut programs = plan.programs.to_vec();
    streams::emit_much(rng, &mut programs);
    plan.programs = programs.into();
    plan.shows = true;
    plan.sky.lost_commits += 30 + rng.below(100) as u32;
}
