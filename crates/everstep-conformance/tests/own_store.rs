//! A store of somebody's own, over the row layer of `everstep::store::rows`.
//!
//! The source of `MemoryStore` is compiled here once more, outside of the crate `everstep`. So it is a
//! store like one that a user writes: it sees nothing but what `everstep` makes public, and it must
//! pass the whole suite.

use std::sync::Arc;

use everstep::{ItemId, RunId, RunNo, ShardId, Timestamp};

/// Stands in for the module of `everstep` that the store lies in.
#[path = "../../everstep/src/store"]
mod store {
    pub(crate) use everstep::store::*;

    #[expect(dead_code, unreachable_pub, reason = "`everstep` itself calls and exports the rest")]
    pub(crate) mod memory;
}

use self::store::memory::MemoryStore as OwnStore;

#[test]
fn a_store_over_the_public_row_layer_passes() {
    everstep_conformance::run_all(|| Arc::new(OwnStore::new()));
}

#[test]
fn a_store_over_the_public_row_layer_answers_as_the_one_in_memory() {
    for seed in 1..=10 {
        everstep_conformance::compare(&everstep::store::MemoryStore::new(), &OwnStore::new(), seed);
    }
}
