//! Which shards a runner should have: weighted rendezvous hashing, computed by each, no leader.
//!
//! Every candidate draws numbers for a shard, as many as its weight, and the highest number has it.
//! So a runner that comes takes shards only for itself, one that goes leaves only its own, and the
//! shares are as the weights. Whole numbers only: two machines must not differ in a last bit.

use std::collections::BTreeSet;

use uuid::Uuid;

use crate::{
    pool::{Overflow, PoolNo, PoolRow},
    random,
    run_id::ShardId,
    store::{RunnerRow, ShardSet},
};

/// The greatest weight; a greater one counts as this.
pub(crate) const WEIGHT_MAX: u32 = 64;

/// The shards of all these pools that this runner should have among those that are alive. Nobody has
/// those of a pool that is `vacant`.
pub(crate) fn assigned(
    me: Uuid,
    alive: &[&RunnerRow],
    pools: &[PoolRow],
    vacant: &BTreeSet<PoolNo>,
) -> ShardSet {
    let mut shards = ShardSet::EMPTY;
    for pool in pools.iter().filter(|pool| !vacant.contains(&pool.no)) {
        let candidates = candidates(alive, &pool.name);
        if !candidates.iter().any(|runner| runner.id == me) {
            continue;
        }
        let all = (0..=u8::MAX).map(|index| ShardId::new(pool.no, index));
        for shard in all.filter(|shard| winner(*shard, &candidates) == Some(me)) {
            shards.insert(shard);
        }
    }
    shards
}

/// Whether a runner may own shards of a pool: it serves the pool; or it serves the home of an
/// overflow pool and has the code that the pool is for.
pub(crate) fn may_own(runner: &RunnerRow, pool: &str) -> bool {
    let serves_pool = |name: &str| runner.pools.iter().any(|pool| pool == name);
    match Overflow::parse(pool) {
        Some(overflow) => {
            serves_pool(overflow.home) && runner.serves(overflow.workflow, overflow.version)
        }
        None => serves_pool(pool),
    }
}

/// Those who own the shards of a pool among them. Runs of an overflow pool whose code nobody has can
/// still be cancelled, and their time can be over: that is for the runners of their home.
fn candidates<'a>(alive: &[&'a RunnerRow], pool: &str) -> Vec<&'a RunnerRow> {
    let able = alive.iter().copied().filter(|row| may_own(row, pool));
    let able: Vec<&RunnerRow> = able.collect();
    match Overflow::parse(pool) {
        Some(overflow) if able.is_empty() => {
            let of_home = |row: &&RunnerRow| may_own(row, overflow.home);
            alive.iter().copied().filter(of_home).collect()
        }
        _ => able,
    }
}

fn winner(shard: ShardId, candidates: &[&RunnerRow]) -> Option<Uuid> {
    let drawn = candidates.iter().map(|runner| (draw(shard, runner), runner.id));
    drawn.max().map(|(_, runner)| runner)
}

/// The highest of the numbers that a runner draws for a shard.
fn draw(shard: ShardId, runner: &RunnerRow) -> u64 {
    let first = random::hash(u64::from(shard.0), runner.id.as_bytes());
    let draws = runner.weight.clamp(1, WEIGHT_MAX);
    let others = (1..u64::from(draws)).map(|n| random::mix(first.wrapping_add(n)));
    others.fold(first, u64::max)
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;
    use crate::{
        store::{MemoryStore, NewRunner, Serves, Store},
        time::Timestamp,
    };

    /// In these tests the pool with this number has no runs.
    const VACANT: PoolNo = PoolNo(77);

    fn runner(no: u128, pools: &[&str], weight: u32, versions: &[u32]) -> RunnerRow {
        let store = MemoryStore::new();
        let serves = |version: &u32| Serves {
            workflow: "order".to_owned(),
            version: *version,
            accepts: *version..=*version,
            pool: "default".to_owned(),
        };
        let id =
            Uuid::from_u128(0x9e37_79b9_7f4a_7c15_f39c_c060_5ced_c834_u128.wrapping_mul(no + 1));
        let now = Timestamp::from_millis(0);
        let new = NewRunner {
            pools: pools.iter().map(|pool| (*pool).to_owned()).collect(),
            weight,
            workflows: versions.iter().map(serves).collect(),
            ..NewRunner::new(id, "", now, Duration::from_secs(1))
        };
        store.register_runner(&new).unwrap();
        store.runners().unwrap().remove(0)
    }

    fn pools(names: &[&str]) -> Vec<PoolRow> {
        let pools =
            (0..).zip(names).map(|(no, name)| PoolRow { no: PoolNo(no), name: Arc::from(*name) });
        pools.collect()
    }

    fn shares(alive: &[RunnerRow], pools: &[PoolRow]) -> Vec<ShardSet> {
        let refs: Vec<&RunnerRow> = alive.iter().collect();
        let vacant = BTreeSet::from([VACANT]);
        let share = |runner: &RunnerRow| assigned(runner.id, &refs, pools, &vacant);
        alive.iter().map(share).collect()
    }

    #[test]
    fn every_shard_has_exactly_one_owner() {
        let alive = [
            runner(1, &["default"], 1, &[]),
            runner(2, &["default", "gpu"], 1, &[]),
            runner(3, &["gpu"], 5, &[]),
        ];
        let shares = shares(&alive, &pools(&["default", "gpu"]));
        let mut all = ShardSet::EMPTY;
        for shard in shares.iter().flat_map(ShardSet::iter) {
            assert!(!all.contains(shard), "{shard:?} has two owners");
            all.insert(shard);
        }
        assert_eq!(all, ShardSet::of_pools([PoolNo(0), PoolNo(1)]));
        assert_eq!(shares[0].pools().collect::<Vec<_>>(), [PoolNo(0)]);
        assert_eq!(shares[2].pools().collect::<Vec<_>>(), [PoolNo(1)]);
    }

    #[test]
    fn shares_are_as_the_weights() {
        let alive = [runner(1, &["default"], 1, &[]), runner(2, &["default"], 3, &[])];
        let many: Vec<String> = (0..40).map(|no| format!("default@order/{no}")).collect();
        let names: Vec<&str> = many.iter().map(String::as_str).collect();
        // As many pools of equal candidates as make chance small.
        let serving: Vec<u32> = (0..40).collect();
        let serve_all =
            alive.map(|row| runner(row.id.as_u128(), &["default"], row.weight, &serving));
        let [one, three] = &shares(&serve_all, &pools(&names))[..] else {
            panic!("two runners");
        };
        let share = three.len() as f64 / (one.len() + three.len()) as f64;
        assert!((0.73..0.77).contains(&share), "{share}");
    }

    #[test]
    fn a_new_runner_takes_about_its_share_and_moves_nothing_else() {
        let mut alive: Vec<_> = (0..3).map(|no| runner(no, &["default"], 2, &[])).collect();
        let pools = pools(&["default"]);
        let before = shares(&alive, &pools);
        alive.push(runner(9, &["default"], 2, &[]));
        let after = shares(&alive, &pools);
        for (before, after) in before.iter().zip(&after) {
            assert!(after.iter().all(|shard| before.contains(shard)));
        }
        assert!((40..90).contains(&after[3].len()), "{}", after[3].len());
    }

    #[test]
    fn an_overflow_pool_belongs_to_those_with_the_code_in_its_home() {
        let alive = [
            runner(1, &["default"], 1, &[1]),
            runner(2, &["default"], 1, &[2]),
            runner(3, &["gpu"], 1, &[1]),
        ];
        let shares = shares(&alive, &pools(&["default@order/1"]));
        assert_eq!(shares[0], ShardSet::of_pools([PoolNo(0)]));
        assert!(shares[1].is_empty() && shares[2].is_empty());
    }

    /// Runs in a pool of which nobody had the code were nobody's: they could not be cancelled.
    #[test]
    fn an_overflow_pool_without_code_belongs_to_its_home() {
        let alive = [
            runner(1, &["default"], 1, &[1]),
            runner(2, &["default"], 1, &[]),
            runner(3, &["gpu"], 1, &[2]),
        ];
        let of_none = pools(&["default@order/2"]);
        let shares_of_none = shares(&alive, &of_none);
        assert_eq!(shares_of_none[0].len() + shares_of_none[1].len(), 256);
        assert!(shares_of_none[1].len() > 60 && shares_of_none[2].is_empty());
        // Unless there is nothing in it.
        let no = VACANT;
        let vacant = of_none.into_iter().map(|row| PoolRow { no, ..row });
        let shares = shares(&alive, &vacant.collect::<Vec<_>>());
        assert!(shares.iter().all(ShardSet::is_empty));
    }
}
