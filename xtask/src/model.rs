//! `cargo xtask model`: lease, fence, takeover and hand-off, searched to their end.

use crate::{
    Failure,
    cargo::{self, cargo},
    root,
};

/// Builds the model with optimisations and searches it with the same arguments.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let mut model = cargo(&root(), &["run", "--quiet", "--release", "--package", "everstep-model"]);
    model.arg("--").args(arguments);
    cargo::succeed(model)
}
