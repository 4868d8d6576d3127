//! What this process owns: its shards, and the pools that it has heard of.
//!
//! The shard of a run follows from its id and from the pool that it is in now, which only its row
//! says. Whoever has the id alone can tell whether the run *may* be here, and whether it *surely*
//! is: its shard is one of as many as there are pools.

use std::{
    collections::{HashMap, HashSet},
    sync::{Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::{
    pool::{PoolNo, PoolRow},
    run_id::{RunId, ShardId},
    store::ShardSet,
    workflow::DEFAULT_POOL,
};

/// Read on every start and message, written rarely, and never held for long.
pub(crate) struct Owned(RwLock<State>);

struct State {
    shards: ShardSet,
    /// How often the shards were set: while this is the same, no run has moved away and come back.
    era: u64,
    /// Pools are never renamed or removed, so what is known stays true.
    pools: HashMap<Arc<str>, PoolNo>,
    /// Those of them that nobody serves and no run is in.
    vacant: HashSet<PoolNo>,
}

impl State {
    /// The pools that a run can be in.
    fn used(&self) -> impl Iterator<Item = PoolNo> + '_ {
        let pools = self.pools.values().copied();
        pools.filter(|pool| !self.vacant.contains(pool))
    }
}

impl Default for Owned {
    fn default() -> Owned {
        Owned(RwLock::new(State {
            shards: ShardSet::EMPTY,
            era: 0,
            pools: HashMap::from([(Arc::from(DEFAULT_POOL), PoolNo::DEFAULT)]),
            vacant: HashSet::new(),
        }))
    }
}

impl Owned {
    pub(crate) fn has(&self, shard: ShardId) -> bool {
        self.read().shards.contains(shard)
    }

    /// Whether one of the shards that this run can be in is here.
    pub(crate) fn may_have(&self, run: RunId) -> bool {
        let state = self.read();
        let mut pools = state.shards.pools();
        pools.any(|pool| state.shards.contains(run.shard_in(pool)))
    }

    /// Whether every shard that this run can be in is here.
    pub(crate) fn surely_has(&self, run: RunId) -> bool {
        let state = self.read();
        let mut pools = state.used();
        pools.all(|pool| state.shards.contains(run.shard_in(pool)))
    }

    /// The shard of a run of this pool, if the pool is known and the shard is here.
    pub(crate) fn home(&self, run: RunId, pool: &str) -> Option<ShardId> {
        let state = self.read();
        let shard = run.shard_in(*state.pools.get(pool)?);
        state.shards.contains(shard).then_some(shard)
    }

    /// The name of a pool, if it is known.
    pub(crate) fn pool_name(&self, no: PoolNo) -> Option<Arc<str>> {
        let state = self.read();
        let found = state.pools.iter().find(|(_, known)| **known == no);
        found.map(|(name, _)| Arc::clone(name))
    }

    pub(crate) fn knows(&self, pool: &str) -> bool {
        self.read().pools.contains_key(pool)
    }

    pub(crate) fn shards(&self) -> ShardSet {
        self.read().shards.clone()
    }

    pub(crate) fn set_shards(&self, shards: &ShardSet) {
        let mut state = self.write();
        state.shards = shards.clone();
        state.era += 1;
    }

    /// A number that is another after each change of what is here: what was read before it may be
    /// out of date, though the shard of it is here, or here again.
    pub(crate) fn era(&self) -> u64 {
        self.read().era
    }

    /// Takes note of the pools that there are, and which of them are vacant.
    pub(crate) fn set_pools(&self, pools: &[PoolRow], vacant: &HashSet<PoolNo>) {
        let pools = pools.iter().map(|row| (Arc::clone(&row.name), row.no));
        let mut state = self.write();
        state.pools.extend(pools);
        state.vacant.clone_from(vacant);
    }

    /// Whether there is a pool of which some shard is not here.
    pub(crate) fn is_partial(&self) -> bool {
        let state = self.read();
        let all = ShardSet::of_pools(state.used());
        state.shards != all
    }

    fn read(&self) -> RwLockReadGuard<'_, State> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}
