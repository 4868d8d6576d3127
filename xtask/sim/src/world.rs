//! The world of a life: the store, the sky over it, and the processes.

pub(crate) mod clients;
pub(crate) mod engines;
pub(crate) mod sky;
pub(crate) mod store;
