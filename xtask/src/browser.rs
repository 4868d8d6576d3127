//! `cargo xtask browser`: the dashboard in a real browser.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Makes the tests whose names contain one of the arguments, or all of them. `cargo xtask test` makes
/// them beside the other tests.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let package = ["--package", "everstep-browser", "--test", "browser"];
    let mut tests = cargo(&root(), &[&["test"][..], &package].concat());
    tests.arg("--").args(arguments);
    cargo::succeed(tests)
}
