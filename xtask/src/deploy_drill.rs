//! `cargo xtask deploy-drill`: runners of one version are replaced by runners of the next.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the programs of both versions and the drill, and runs it with the same arguments. What
/// it shows does not depend on optimisations, so they are not waited for.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let package = ["--quiet", "--package", "everstep-drill"];
    let build = [&["build"], &package[..], &["--bins"]].concat();
    cargo::succeed(cargo(&root(), &build))?;
    let run = [&["run"], &package[..], &["--bin", "deploy-drill"]].concat();
    let mut drill = cargo(&root(), &run);
    drill.arg("--").args(arguments);
    cargo::succeed(drill)
}
