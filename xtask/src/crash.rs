//! `cargo xtask crash`: a real process, killed over and over, and its promises checked.

use crate::Failure;

/// There is no engine to kill yet.
pub(crate) fn run(_arguments: &[String]) -> Result<(), Failure> {
    Err(Failure::Found(
        "`crash` is not there yet: it needs the engine".into(),
    ))
}
