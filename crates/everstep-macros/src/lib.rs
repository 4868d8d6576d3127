//! The `#[workflow]` attribute of everstep.
