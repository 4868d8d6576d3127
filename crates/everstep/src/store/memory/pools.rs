//! Pools and what moves between them.

use std::{convert::Infallible, sync::Arc};

use super::Data;
use crate::{
    pool::{DEFAULT_POOL, PoolNo, PoolRow},
    run_id::{RunNo, ShardId},
    store::rules::{Head, pools::Pools},
};

/// The names of pools, by number.
#[derive(Clone)]
pub(super) struct PoolNames(Vec<Arc<str>>);

impl Default for PoolNames {
    fn default() -> PoolNames {
        PoolNames(vec![Arc::from(DEFAULT_POOL)])
    }
}

impl PoolNames {
    /// The number of the pool with this name, which is made if there is none.
    pub(super) fn no(&mut self, name: &str) -> PoolNo {
        let found = self.0.iter().position(|known| **known == *name);
        let no = found.unwrap_or_else(|| {
            self.0.push(Arc::from(name));
            self.0.len() - 1
        });
        PoolNo(no as u32)
    }

    pub(super) fn rows(&self) -> Vec<PoolRow> {
        let rows = self
            .0
            .iter()
            .enumerate()
            .map(|(no, name)| PoolRow { no: PoolNo(no as u32), name: Arc::clone(name) });
        rows.collect()
    }
}

impl Pools for Data {
    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Infallible> {
        Ok(self.pools.no(name))
    }

    fn owns(&mut self, shard: ShardId) -> Result<bool, Infallible> {
        let holder = self.shards.get(&shard);
        Ok(holder.is_some() && holder == self.claimer.as_ref())
    }

    fn write_home(&mut self, run: RunNo, pool: &str) -> Result<bool, Infallible> {
        let now = self.now;
        let changed = self.change(run, |run| {
            let is_new = *run.row.pool != *pool;
            if is_new {
                (run.row.pool, run.row.updated_at) = (Arc::from(pool), now);
            }
            is_new
        });
        Ok(changed == Some(true))
    }

    fn write_shard(&mut self, head: &Head) -> Result<(), Infallible> {
        let now = self.now;
        self.change(head.id.no(), |run| {
            run.head = *head;
            run.row.updated_at = now;
        });
        Ok(())
    }
}
