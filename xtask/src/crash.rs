//! `cargo xtask crash`: a real process, killed over and over, and its promises checked.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the crash test with optimisations and runs it with the same arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut crash = cargo(&root(), &["run", "--quiet", "--release", "--package", "everstep-crash"]);
    crash.arg("--").args(arguments);
    cargo::succeed(crash)
}
