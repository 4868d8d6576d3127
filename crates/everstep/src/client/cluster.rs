//! Who runs what: the runners of a store, for people.

use uuid::Uuid;

use super::{Client, ClientError};
use crate::{
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
}

impl Client {
    /// The runners of this store, what they serve and how many shards each owns.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn cluster(&self) -> Result<Cluster, ClientError> {
        let now = self.shared.now();
        self.read(move |store| {
            let (runners, pools) = (store.runners()?, store.pools()?);
            Ok(cluster(runners, pools, now))
        })
        .await
    }
}

fn cluster(runners: Vec<RunnerRow>, pools: Vec<PoolRow>, now: Timestamp) -> Cluster {
    let live = || runners.iter().filter(|row| row.lease_until > now);
    let owned = |pool: PoolNo| {
        let shards = live().flat_map(|row| row.shards.iter());
        shards.filter(|shard| shard.pool() == pool).count()
    };
    let pools = pools.iter().map(|row| PoolInfo {
        name: row.name.to_string(),
        owned: owned(row.no),
    });
    let pools = pools.collect();
    let mut runners: Vec<RunnerInfo> = runners
        .into_iter()
        .map(|row| RunnerInfo {
            id: row.id,
            name: row.name,
            alive: row.lease_until > now,
            lease_until: row.lease_until,
            pools: row.pools,
            weight: row.weight,
            workflows: row.workflows,
            shards: row.shards.len(),
        })
        .collect();
    runners.sort_by(|a, b| (&a.name, a.id).cmp(&(&b.name, b.id)));
    Cluster { runners, pools }
}
