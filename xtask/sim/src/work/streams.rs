//! What programs give out while they go on: items of streams, and values for clients to read.

use std::{fmt, time::Duration};

use everstep::{prelude::*, testing::simulation::Rng};
use serde::{Deserialize, Serialize};

use super::program::{Op, Program};
use crate::oracle::{ledger::Stay, streams::Shown};

/// The stream that bodies give their items to.
pub(crate) const OF_BODIES: &str = "bodies";

/// The value that programs set.
pub(crate) const STATE: &str = "state";

/// How many streams the code of a program has.
pub(crate) const STREAMS: u64 = 2;

/// The name of a stream of a program's own code.
pub(crate) fn stream(number: u32) -> String {
    format!("stream-{number}")
}

/// An operation that gives something out.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ShowOp {
    pub(crate) id: u32,
    /// The stream; without one it sets the value.
    stream: Option<u32>,
}

impl ShowOp {
    /// What it gives out is its own, and the same in a replay.
    pub(crate) fn perform(&self, ctx: &Ctx, stay: &Stay, at: &str) -> Result<()> {
        let text = format!("{}.{at}show-{}", ctx.generation(), self.id);
        match self.stream {
            Some(number) => {
                ctx.emit(&stream(number), &text)?;
                stay.show(Shown::Item(number, text));
            }
            None => {
                ctx.set_state(STATE, &text)?;
                stay.show(Shown::State(text));
            }
        }
        Ok(())
    }
}

/// In some lives, programs and bodies give something out. Whether it is one of them.
pub(crate) fn draw(rng: &mut Rng, programs: &mut [Program]) -> bool {
    if rng.below(3) > 0 {
        return false;
    }
    for program in programs {
        for _ in 0..rng.below(6) {
            let id = program.next_id();
            let stream = (rng.below(3) > 0).then(|| rng.below(STREAMS) as u32);
            program.insert(rng, Op::Show(ShowOp { id, stream }));
        }
        for step in program.steps_mut() {
            // What an ephemeral step gives may be lost, so it has no value of its own.
            if !step.ephemeral && rng.below(3) == 0 {
                step.emits = 1 + rng.below(3) as u32;
            }
        }
    }
    true
}

/// Has bodies emit much, and go on for a while after that.
pub(crate) fn emit_much(rng: &mut Rng, programs: &mut [Program]) {
    let steps = programs.iter_mut().flat_map(Program::steps_mut);
    for step in steps.filter(|step| !step.ephemeral) {
        step.emits = 1 + rng.below(5) as u32;
        step.lasts += Duration::from_millis(rng.below(50));
    }
}

/// What a client follows.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Followed {
    Stream(u32),
    Bodies,
    State,
}

impl Followed {
    pub(crate) fn draw(rng: &mut Rng) -> Followed {
        match rng.below(4) {
            0 => Followed::Bodies,
            1 => Followed::State,
            _ => Followed::Stream(rng.below(STREAMS) as u32),
        }
    }

    /// The name of the stream, or of the value.
    pub(crate) fn name(self) -> String {
        match self {
            Followed::Stream(number) => stream(number),
            Followed::Bodies => OF_BODIES.to_owned(),
            Followed::State => STATE.to_owned(),
        }
    }
}

impl fmt::Display for ShowOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.stream {
            Some(number) => write!(f, "show-{} to {}", self.id, stream(number)),
            None => write!(f, "show-{} as the state", self.id),
        }
    }
}
