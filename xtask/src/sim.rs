//! `cargo xtask sim`: several engines in one process, under a scheduler, clocks, a store and faults that
//! a seed decides.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the simulation with optimisations and runs it with the same arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut sim = cargo(&root(), &["run", "--quiet", "--release", "--package", "everstep-sim"]);
    sim.arg("--").args(arguments);
    cargo::succeed(sim)
}
