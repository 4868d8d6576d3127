//! The history: what a run has done, by location.

pub(crate) mod entry;
pub(crate) mod keys;
pub(crate) mod location;

pub use entry::*;
pub use location::{Location, ParseLocationError, Segment};
