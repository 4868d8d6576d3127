//! `cargo xtask browser`: the dashboard in a real browser.

use std::process::Command;

use crate::{
    Failure,
    cargo::{self, cargo, target_directory},
    root,
};

/// Makes the tests whose names contain one of the arguments, or all of them.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    cargo::succeed(tests(arguments))
}

/// The program that makes them. What it fetches and the pictures that it takes go below the directory
/// that cargo builds in.
pub(crate) fn tests(arguments: &[String]) -> Command {
    let root = root();
    let mut tests = cargo(&root, &["run", "--quiet", "--package", "everstep-browser"]);
    tests
        .arg("--")
        .arg("--directory")
        .arg(target_directory(&root));
    tests.args(arguments);
    tests
}
