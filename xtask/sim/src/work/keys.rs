//! Keys that several parents give their children, and clients their runs: each is of one run.

use everstep::testing::simulation::Rng;
use serde::{Deserialize, Serialize};

use super::{Order, program::Program};

/// How many keys there are.
const KEYS: u64 = 2;

/// The key of children.
pub(crate) fn child_key(number: u32) -> String {
    format!("child-{number}")
}

/// A child that clients start, too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Keyed {
    pub(crate) key: u32,
    program: usize,
    child: u32,
}

impl Keyed {
    /// What its run is started with, by a client that has this number.
    pub(crate) fn order(self, client: u64) -> Order {
        Order { program: self.program, child: self.child, origin: client, carry: 0 }
    }
}

/// Gives some children keys, and says which ones. The run of a key waits for no other, so no two wait for
/// each other.
pub(crate) fn draw(rng: &mut Rng, programs: &mut [Program]) -> Vec<Keyed> {
    let mut keyed = Vec::new();
    if rng.below(2) == 0 {
        return keyed;
    }
    for (program, it) in programs.iter_mut().enumerate() {
        for child in it.children_mut() {
            if rng.below(3) > 0 && !child.program.waits_for_others() {
                let key = rng.below(KEYS) as u32;
                child.key = Some(key);
                keyed.push(Keyed { key, program, child: child.id });
            }
        }
    }
    keyed
}
