//! What this process owns: its shards, and the pools that it has heard of.
//!
//! The shard of a run follows from its id and from the pool that it is in now, which only its row
//! says. Whoever has the id alone can tell whether the run *may* be here, and whether it *surely*
//! is: its shard is one of as many as there are pools.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard,
        atomic::{AtomicUsize, Ordering},
    },
};

use crate::{
    pool::{DEFAULT_POOL, PoolNo, PoolRow},
    run_id::{RunId, ShardId},
    store::ShardSet,
};

/// Read on every start and message, written rarely, and never held for long.
pub(crate) struct Owned {
    state: RwLock<State>,
    /// How many runs were placed: they go to the shards that are here in turn.
    placed: AtomicUsize,
}

struct State {
    shards: ShardSet,
    /// The indexes of those shards, by pool.
    indexes: BTreeMap<PoolNo, Vec<u8>>,
    /// How often the shards were set: while this is the same, no run has moved away and come back.
    era: u64,
    /// Pools are never renamed or removed, so what is known stays true.
    pools: BTreeMap<Arc<str>, PoolNo>,
    /// Those of them that nobody serves and no run is in.
    vacant: BTreeSet<PoolNo>,
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
        let state = State {
            shards: ShardSet::EMPTY,
            indexes: BTreeMap::new(),
            era: 0,
            pools: BTreeMap::from([(Arc::from(DEFAULT_POOL), PoolNo::DEFAULT)]),
            vacant: BTreeSet::new(),
        };
        Owned { state: RwLock::new(state), placed: AtomicUsize::new(0) }
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

    /// The id of a new run of this pool, in a shard that is here, if there is one. A shard that is
    /// being given back is not here any more.
    pub(crate) fn place(&self, id: RunId, pool: &str) -> RunId {
        let state = self.read();
        let Some(pool) = state.pools.get(pool) else {
            return id;
        };
        if state.shards.contains(id.shard_in(*pool)) {
            return id;
        }
        let Some(indexes) = state.indexes.get(pool) else {
            return id;
        };
        let turn = self.placed.fetch_add(1, Ordering::Relaxed) % indexes.len();
        id.with_shard_index(indexes[turn])
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
        let mut indexes: BTreeMap<PoolNo, Vec<u8>> = BTreeMap::new();
        for shard in shards.iter() {
            indexes.entry(shard.pool()).or_default().push(shard.index());
        }
        let mut state = self.write();
        state.shards = shards.clone();
        state.indexes = indexes;
        state.era += 1;
    }

    /// A number that is another after each change of what is here: what was read before it may be
    /// out of date, though the shard of it is here, or here again.
    pub(crate) fn era(&self) -> u64 {
        self.read().era
    }

    /// Whether a shard is here and was in this era, by one look; none if the era is another by now.
    pub(crate) fn has_in(&self, era: u64, shard: ShardId) -> Option<bool> {
        let state = self.read();
        (state.era == era).then(|| state.shards.contains(shard))
    }

    /// Takes note of the pools that there are, and which of them are vacant.
    pub(crate) fn set_pools(&self, pools: &[PoolRow], vacant: &BTreeSet<PoolNo>) {
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
        self.state.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, State> {
        self.state.write().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run_id::RunIds, time::Timestamp};

    #[test]
    fn new_runs_are_placed_evenly_in_the_shards_that_are_here() {
        let owned = Owned::default();
        let (ids, now) = (RunIds::new(1), Timestamp::from_millis(1_800_000_000_000));
        let drawn = ids.next(now);
        assert_eq!(owned.place(drawn, DEFAULT_POOL), drawn, "none is here");
        let gpu = PoolRow { no: PoolNo(1), name: Arc::from("gpu") };
        owned.set_pools(&[gpu], &BTreeSet::new());
        let here: Vec<u8> = (0..=u8::MAX).filter(|index| index % 3 == 1).collect();
        let shards = here.iter().map(|index| ShardId::new(PoolNo::DEFAULT, *index));
        owned.set_shards(&shards.collect());
        let mut counts: BTreeMap<u8, usize> = BTreeMap::new();
        const RUNS: usize = 85_000;
        for _ in 0..RUNS {
            let drawn = ids.next(now);
            let placed = owned.place(drawn, DEFAULT_POOL);
            assert!(owned.home(placed, DEFAULT_POOL).is_some());
            assert_eq!(placed.no(), drawn.no());
            *counts.entry(placed.shard_index()).or_default() += 1;
        }
        assert_eq!(counts.len(), here.len());
        let share = RUNS / here.len();
        let is_even = |count: &usize| (share * 9 / 10..share * 11 / 10).contains(count);
        assert!(counts.values().all(is_even), "{counts:?}");
        // No shard of its pool is here, or nobody has heard of its pool.
        for pool in ["gpu", "cpu"] {
            let drawn = ids.next(now);
            assert_eq!(owned.place(drawn, pool), drawn);
        }
    }

    #[test]
    fn what_is_here_is_said_only_of_the_era_that_was_asked_for() {
        let (owned, shard) = (Owned::default(), ShardId::new(PoolNo::DEFAULT, 7));
        let before = owned.era();
        assert_eq!(owned.has_in(before, shard), Some(false));
        owned.set_shards(&[shard].into_iter().collect());
        assert_eq!(owned.has_in(before, shard), None);
        assert_eq!(owned.has_in(owned.era(), shard), Some(true));
    }
}
