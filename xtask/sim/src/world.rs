//! The processes of a life.

pub(crate) mod clients;
pub(crate) mod engines;
