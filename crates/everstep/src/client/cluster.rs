//! Who runs what: the runners of a store, for people.

use std::time::Duration;

use uuid::Uuid;

use super::{Client, ClientError};
use crate::{
    run_id::SHARDS,
    store::{PoolNo, PoolRow, RunnerRow, Serves},
    time::Timestamp,
};

/// The runners of a store and the pools that they serve, at one moment.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct Cluster {
    /// The runners, by name. One that is gone is here until somebody has taken its shards, and for
    /// some time after.
    pub runners: Vec<RunnerInfo>,
    /// The pools that were ever used.
    pub pools: Vec<PoolInfo>,
}

/// A runner: an engine of some process.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct RunnerInfo {
    /// Its id.
    pub id: Uuid,
    /// The host and the process.
    pub name: String,
    /// Whether its lease lasts.
    pub alive: bool,
    /// Until when its lease lasts.
    pub lease_until: Timestamp,
    /// How long ago it renewed its lease, if that is as long as the one that this client knows of:
    /// its engine's, or the usual one.
    pub lease_age: Option<Duration>,
    /// The pools that it serves.
    pub pools: Vec<String>,
    /// How many shards it should have against others.
    pub weight: u32,
    /// The workflows that it has the code for.
    pub workflows: Vec<Serves>,
    /// How many shards it owns.
    pub shards: usize,
}

/// A pool.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct PoolInfo {
    /// Its name; `home@workflow/version` if it is an overflow pool.
    pub name: String,
    /// How many of its 256 shards a live runner owns.
    pub owned: usize,
    /// Which live runner owns each of them, as its index in [`Cluster::runners`].
    pub shards: Vec<Option<usize>>,
}

impl Client {
    /// The runners of this store, what they serve and how many shards each owns.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn cluster(&self) -> Result<Cluster, ClientError> {
        let (now, lease) = (self.shared.now(), self.shared.settings.lease);
        self.read(move |store| {
            let (runners, pools) = (store.runners()?, store.pools()?);
            Ok(cluster(runners, pools, now, lease))
        })
        .await
    }
}

fn cluster(
    mut runners: Vec<RunnerRow>,
    pools: Vec<PoolRow>,
    now: Timestamp,
    lease: Duration,
) -> Cluster {
    runners.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    let pools = pools.iter().map(|row| {
        let shards = shard_map(&runners, row.no, now);
        PoolInfo { name: row.name.to_string(), owned: shards.iter().flatten().count(), shards }
    });
    let pools = pools.collect();
    let runners = runners.into_iter().map(|row| RunnerInfo {
        id: row.id,
        name: row.name,
        alive: row.lease_until > now,
        lease_until: row.lease_until,
        lease_age: lease.checked_sub(row.lease_until.since(now)).map(
            // A lease that has run out is older than it could get.
            |age| age + now.since(row.lease_until),
        ),
        pools: row.pools,
        weight: row.weight,
        workflows: row.workflows,
        shards: row.shards.len(),
    });
    Cluster { runners: runners.collect(), pools }
}

/// Who owns each shard of a pool.
fn shard_map(runners: &[RunnerRow], pool: PoolNo, now: Timestamp) -> Vec<Option<usize>> {
    let mut map = vec![None; usize::from(SHARDS)];
    for (index, row) in runners.iter().enumerate() {
        if row.lease_until <= now {
            continue;
        }
        for shard in row.shards.iter().filter(|shard| shard.pool() == pool) {
            map[usize::from(shard.index())] = Some(index);
        }
    }
    map
}
