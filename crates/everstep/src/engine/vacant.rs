//! Overflow pools that nobody has to look after: nobody has the code that they are for, and no run
//! is in them.
//!
//! Pools are never removed, and every deploy may leave some behind.

use std::{
    collections::{BTreeMap, BTreeSet},
    time::Instant,
};

use super::{assign::may_own, shared::Shared};
use crate::{
    pool::{Overflow, PoolNo, PoolRow},
    seam,
    store::{RunnerRow, ShardSet, StoreError},
};

/// How many heartbeats long what was found is believed. A run comes into such a pool only from a
/// runner that does not know yet that nobody serves it.
const BELIEVED_BEATS: u32 = 10;

/// The vacant pools, with when each was found to be.
#[derive(Default)]
pub(super) struct Vacant(BTreeMap<PoolNo, Instant>);

impl Vacant {
    /// Looks which pools are vacant.
    pub(super) fn look(
        &mut self,
        shared: &Shared,
        alive: &[&RunnerRow],
        pools: &[PoolRow],
    ) -> Result<BTreeSet<PoolNo>, StoreError> {
        let believed = shared.settings.heartbeat() * BELIEVED_BEATS;
        let unserved = pools.iter().filter(|pool| {
            let is_overflow = Overflow::parse(&pool.name).is_some();
            is_overflow && !alive.iter().any(|row| may_own(row, &pool.name))
        });
        let mut vacant = BTreeMap::new();
        for pool in unserved {
            let found = self.0.get(&pool.no).copied();
            let found = found.filter(|found| seam::elapsed(*found) < believed);
            if found.is_some() || is_empty(shared, pool.no)? {
                vacant.insert(pool.no, found.unwrap_or_else(seam::now));
            }
        }
        self.0 = vacant;
        Ok(self.0.keys().copied().collect())
    }
}

/// Whether no run of the pool has yet to end.
fn is_empty(shared: &Shared, pool: PoolNo) -> Result<bool, StoreError> {
    let shards = ShardSet::of_pools([pool]);
    let census = shared.store.census(shared.now(), &shards)?;
    let at_rest = census.timers + census.due + census.waiting + census.paused;
    Ok(at_rest == 0 && shared.store.live(&shards, None, 1)?.is_empty())
}
