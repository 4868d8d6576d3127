//! `cargo xtask bench`: what the engine costs, beside a bare loop that writes the same rows.

use crate::Failure;

/// There is no engine to measure yet.
pub(crate) fn run(_arguments: &[String]) -> Result<(), Failure> {
    Err(Failure::Found(
        "`bench` is not there yet: it needs the engine".into(),
    ))
}
