//! The contract of a store, on PostgreSQL.

use std::sync::Arc;

use super::*;
use crate::{store::MemoryStore, testing, testing::store_conformance};

mod away;
mod encrypted;
mod shards;

/// An empty schema, whose leases go by the caller's clock.
pub(super) fn fresh() -> PostgresStore {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let options = PostgresOptions {
        database_time: false,
        ..PostgresOptions::default()
    };
    PostgresStore::open_with(&url, options).expect("open")
}

#[test]
fn the_contract_is_kept() {
    store_conformance::run_all(|| Arc::new(fresh()));
    testing::ran_on("PostgreSQL");
}

#[test]
fn answers_are_those_of_the_store_in_memory() {
    for seed in 0..8 {
        store_conformance::compare(&MemoryStore::new(), &fresh(), seed);
    }
    testing::ran_on("PostgreSQL");
}
