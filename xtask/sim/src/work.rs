//! The work of a life: programs that a seed draws, and one workflow that performs any of them.
//!
//! A program is data ([`program`]), so that it can be printed, and made smaller when it has found
//! something. A new operation is a variant of [`program::Op`], an arm in [`draw`] and one in [`perform`],
//! each with what the oracle needs to know of it.

pub(crate) mod bodies;
pub(crate) mod draw;
pub(crate) mod events;
pub(crate) mod gates;
pub(crate) mod keys;
pub(crate) mod limits;
pub(crate) mod messages;
pub(crate) mod perform;
pub(crate) mod program;
pub(crate) mod queues;
pub(crate) mod schedules;
pub(crate) mod streams;

use everstep::Workflow;
use program::Program;
use serde::{Deserialize, Serialize};

/// What a run is started with: which program it performs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Order {
    pub(crate) program: usize,
    /// The operation of that program whose child performs its part of it; 0 if it is all of it.
    pub(crate) child: u32,
    /// A number that depends on the place at which a child was started.
    pub(crate) origin: u64,
    /// What the generations before have come to.
    pub(crate) carry: u64,
}

impl Order {
    /// To perform all of a program.
    pub(crate) fn new(program: usize) -> Order {
        Order { program, child: 0, origin: 0, carry: 0 }
    }

    /// What is performed.
    pub(crate) fn find(self, programs: &[Program]) -> Option<&Program> {
        let program = programs.get(self.program)?;
        match self.child {
            0 => Some(program),
            child => program.child(child),
        }
    }
}

/// The workflow that performs programs. Its second version accepts runs of the first.
pub(crate) const PERFORM: Workflow<Order, u64> = Workflow::new("perform");

/// The tag of a run that says which program it performs; a fork has it, too.
pub(crate) const PROGRAM_TAG: &str = "program";

/// The key of the run that a client starts with this program.
pub(crate) fn key(program: usize) -> String {
    format!("order-{program}")
}
