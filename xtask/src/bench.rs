//! `cargo xtask bench`: what the engine costs, beside a bare loop that writes the same rows.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the benchmark program with optimisations and runs it with the same arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut bench = cargo(&root(), &["run", "--quiet", "--release", "--package", "everstep-bench"]);
    bench.arg("--").args(arguments);
    cargo::succeed(bench)
}
