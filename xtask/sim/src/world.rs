//! The processes of a life.

pub(crate) mod clients;
pub(crate) mod engines;
pub(crate) mod extras;
pub(crate) mod followers;
pub(crate) mod operators;
