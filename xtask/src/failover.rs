//! `cargo xtask failover`: a primary killed under load, and a standby that takes over.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the drill with optimisations and runs it with the same arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut failover =
        cargo(&root(), &["run", "--quiet", "--release", "--package", "everstep-failover"]);
    failover.arg("--").args(arguments);
    cargo::succeed(failover)
}
