//! `cargo xtask fuzz-api`: requests that nobody would make, made of the document of the HTTP API.

use crate::{
    Failure,
    cargo::{self, cargo, target_directory},
    root,
};

/// Builds the seeded server and whatever fuzzes it, and runs them with the same arguments. What they
/// need is installed below the directory that cargo builds in.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let root = root();
    let run = ["run", "--quiet", "--package", "everstep-fuzz-api"];
    let mut fuzz = cargo(&root, &run);
    fuzz.arg("--").arg("--directory").arg(target_directory(&root));
    fuzz.args(arguments);
    cargo::succeed(fuzz)
}
