//! What is PostgreSQL's own; the contract of stores is in the crate `everstep-conformance`.

use std::sync::Arc;

use super::*;
use crate::testing;

mod away;
mod encrypted;
mod formats;
mod left;
mod plans;
mod shards;
mod upkeep;

/// An empty schema, whose leases go by the caller's clock.
pub(crate) fn fresh() -> PostgresStore {
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    PostgresStore::lent(&url).expect("a schema for a test")
}
