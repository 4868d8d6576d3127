//! The contract of a store, on PostgreSQL.

use std::sync::Arc;

use super::*;
use crate::{store::MemoryStore, testing, testing::store_conformance};

mod away;
mod encrypted;
mod formats;
mod left;
mod plans;
mod pooled;
mod shards;
mod upkeep;

/// An empty schema, whose leases go by the caller's clock.
pub(crate) fn fresh() -> PostgresStore {
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    PostgresStore::lent(&url).expect("a schema for a test")
}

#[test]
fn the_contract_is_kept() {
    store_conformance::run_all(|| Arc::new(fresh()));
    testing::ran_on("PostgreSQL");
}

#[test]
fn answers_are_those_of_the_store_in_memory() {
    // One long one; many short ones are in the differential test.
    store_conformance::compare(&MemoryStore::new(), &fresh(), 1);
    testing::ran_on("PostgreSQL");
}
