//! Where a run is: in whose memory, and in which pool.

use std::time::Duration;

use uuid::Uuid;

use super::{ClientError, RunHandle};
use crate::{
    commit::{Batch, Controlled, HandOver, Outcome, Rehome, Target, Write},
    engine::Leaves,
    name::check_pool,
    pool::Overflow,
    run_id::RunId,
    store::{NewRunner, RunRow, ShardSet, Store, StoreError},
    time::Timestamp,
};

/// What became of a run that was to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Evicted {
    /// It was parked in the memory of this process, and is not any more.
    Done,
    /// It moves in the memory of this process, and leaves when it next waits.
    Soon,
    /// The process that owns it was told. If it is parked there it leaves at once, if it moves when it
    /// next waits. The word may be lost; nothing depends on it.
    Told,
    /// It is in nobody's memory: it has ended, or nobody owns it.
    Cold,
}

/// What became of a run that was moved to another pool.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Moved {
    /// It is there.
    Done,
    /// Its owner was told. It moves once nothing of it is in flight; if it is paused, when it is
    /// resumed. The word may be lost: it then moves when it is next read, or when this is called
    /// again.
    Soon,
    /// It was there already.
    Already,
}

/// For how long a shard is held that nobody owns, at most.
const HELD: Duration = Duration::from_secs(10);

impl<O> RunHandle<O> {
    /// Takes the run out of the memory of whoever owns it. It comes back by replay when it is due, or
    /// when something happens to it. Nothing of it is stopped and nothing is lost.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn evict(&self) -> Result<Evicted, ClientError> {
        let row = self.row().await?;
        if row.status.is_terminal() {
            return Ok(Evicted::Cold);
        }
        let shared = &self.client.shared;
        match shared.make_cold(self.id).await {
            Some(Leaves::Now) => return Ok(Evicted::Done),
            Some(Leaves::Soon) => return Ok(Evicted::Soon),
            Some(Leaves::NotHere) | None => {}
        }
        let (now, me) = (shared.now(), shared.me);
        let owner = self.client.read(move |store| owner(store, &row, now)).await?;
        if owner.is_none_or(|owner| Some(owner) == me) {
            return Ok(Evicted::Cold);
        }
        shared.wake_others(&[self.id.no().cold_hint()]);
        Ok(Evicted::Told)
    }

    /// Moves the run to another pool, whose runners go on with it. It stays there until it continues
    /// as a new run, which belongs to the pool of its workflow.
    ///
    /// A run that somebody owns is handed over by its owner once nothing of it is in flight: no body is
    /// stopped, none is run again because of it, and no two processes ever have it. A run whose pool
    /// nobody serves moves at once. A pool need not be served: the run then waits for a runner.
    ///
    /// # Errors
    ///
    /// If there is no such run, it has ended, or the pool has a name that cannot be used.
    pub async fn move_to(&self, pool: &str) -> Result<Moved, ClientError> {
        check_pool(pool).map_err(|error| ClientError::Name {
            what: "the pool".to_owned(),
            problem: error.to_string(),
        })?;
        let rehome = Rehome { target: Target::Id(self.id), pool: pool.into() };
        let unknown = || ClientError::unknown_run(self.id);
        let is_new = match self.client.ask(Write::Rehome(Box::new(rehome))).await? {
            Controlled::Done { .. } => true,
            Controlled::Already { .. } => false,
            Controlled::Finished { run, status } => {
                return Err(ClientError::Finished {
                    run: run.to_string(),
                    status: status.to_string(),
                });
            }
            Controlled::Unknown => return Err(unknown()),
            Controlled::Refused { .. } => return Err(ClientError::Closed),
        };
        let (id, pool, now) = (self.id, pool.to_owned(), self.client.shared.now());
        let moved = self.client.read(move |store| move_if_unowned(store, id, &pool, now)).await?;
        match moved {
            Some(Place::Inside) if !is_new => Ok(Moved::Already),
            Some(Place::Inside) => Ok(Moved::Done),
            Some(Place::Handed) => {
                // Whoever serves the pool finds it there.
                self.client.shared.due.poke(false);
                self.client.shared.store.wake_others(None, &[id.no()]);
                Ok(Moved::Done)
            }
            Some(Place::Owned) => {
                // The word that the write has sent may have been lost. The owner may be this process.
                self.client.shared.store.wake_others(None, &[id.no()]);
                Ok(Moved::Soon)
            }
            None => Err(unknown()),
        }
    }
}

/// Where a run is that has got another home.
enum Place {
    /// There.
    Inside,
    /// There, from now on.
    Handed,
    /// With an owner, who hands it over.
    Owned,
}

/// The runner that owns a run, if its lease lasts.
fn owner(store: &dyn Store, row: &RunRow, now: Timestamp) -> Result<Option<Uuid>, StoreError> {
    let runners = store.runners()?;
    let mut alive = runners.iter().filter(|runner| runner.lease_until > now);
    let owner = alive.find(|runner| runner.shards.contains(row.shard));
    Ok(owner.map(|runner| runner.id))
}

/// Whether a run whose home is `pool` stays where it is: there, or in the overflow of it for the code
/// that the run needs.
fn belongs_in(row: &RunRow, inside: &str, pool: &str) -> bool {
    match Overflow::parse(inside) {
        Some(overflow) => {
            let code = (overflow.workflow, overflow.version);
            overflow.home == pool && code == (&*row.workflow, row.version)
        }
        None => inside == pool,
    }
}

/// Moves a run to its new home if nobody owns it: by being its owner for as long as that takes. `None`
/// if there is no such run.
fn move_if_unowned(
    store: &dyn Store,
    run: RunId,
    pool: &str,
    now: Timestamp,
) -> Result<Option<Place>, StoreError> {
    let Some(row) = store.run(&Target::Id(run))? else {
        return Ok(None);
    };
    let pools = store.pools()?;
    let inside = pools.iter().find(|row_of| row_of.no == row.shard.pool());
    if inside.is_some_and(|inside| belongs_in(&row, &inside.name, pool)) {
        return Ok(Some(Place::Inside));
    }
    if owner(store, &row, now)?.is_some() {
        return Ok(Some(Place::Owned));
    }
    let id = crate::seam::random_uuid();
    let mover = NewRunner {
        pools: Vec::new(),
        ..NewRunner::new(id, format!("the move of run {run}"), now, HELD)
    };
    let fence = store.register_runner(&mover)?;
    let shard = ShardSet::from_iter([row.shard]);
    // Whether it is free is decided by the store, in the transaction that takes it.
    let held = store.take_shards(fence, now, &shard, &[]);
    let handed = held.and_then(|held| {
        if held.is_none_or(|held| !held.contains(row.shard)) {
            return Ok(Place::Owned);
        }
        let what = HandOver { run: run.no(), pool: pool.into() };
        let applied = store.commit(&Batch {
            fence: Some(fence),
            now,
            writes: vec![Write::HandOver(Box::new(what))],
        })?;
        Ok(match applied.outcomes.first() {
            Some(Outcome::Committed(_)) => Place::Handed,
            _ => Place::Owned,
        })
    });
    // If this fails, its lease runs out before long.
    let left = store.deregister_runner(fence);
    let handed = handed?;
    left?;
    Ok(Some(handed))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        commit::NewRun,
        run_id::RunIds,
        store::{MemoryStore, PoolNo},
    };

    const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

    /// A run that an older version has overflown from its home was told to move there, again and
    /// again: its owner keeps it, since it belongs where it is.
    #[test]
    fn a_run_in_the_overflow_of_its_home_is_at_home() {
        let store = MemoryStore::new();
        let id = RunIds::new(1).next(NOW);
        let new = NewRun {
            id,
            workflow: "checkout".into(),
            version: 1,
            key: None,
            pool: "default".into(),
            available_at: None,
            deadline_at: None,
            tags: Vec::new(),
            input: Vec::new(),
            parent: None,
            trace: None,
            claim: false,
        };
        let overflow = "default@checkout/1";
        let runner = NewRunner {
            pools: vec!["default".to_owned(), overflow.to_owned()],
            ..NewRunner::new(Uuid::from_u128(1), "host/1", NOW, HELD)
        };
        let fence = store.register_runner(&runner).expect("register_runner");
        let shards = ShardSet::of_pools([PoolNo(0), PoolNo(1)]);
        let held = store.take_shards(fence, NOW, &shards, &[]);
        assert!(held.expect("take_shards").is_some());
        let hand_over = HandOver { run: id.no(), pool: overflow.into() };
        for write in [Write::Start(Box::new(new)), Write::HandOver(Box::new(hand_over))] {
            let batch = Batch { fence: Some(fence), now: NOW, writes: vec![write] };
            let applied = store.commit(&batch).expect("commit");
            assert!(!matches!(applied.outcomes[0], Outcome::Refused(_)));
        }
        let place = |pool| move_if_unowned(&store, id, pool, NOW).expect("a store in memory");
        assert!(matches!(place("default"), Some(Place::Inside)));
        assert!(matches!(place("gpu"), Some(Place::Owned)));
    }
}
