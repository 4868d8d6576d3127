//! Shards that a runner has and should not have any more.
//!
//! A shard can be somebody else's once none of its runs is in memory here, and a body may take as
//! long as it likes. While a shard is being given back nobody serves its runs, so it must not wait
//! for long: a shard with a long body stays where it is, with all its runs, until the body has ended
//! or `shutdown_limit` has passed; then the body is dropped, as on a shutdown.
//!
//! Always true: a shard is owned, or it is leaving, or it is not ours in the store.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    lease::Beats,
    mailbox::{Event, Release},
    shared::Shared,
    vacant::Vacant,
};
use crate::{
    commit::Fence,
    run_id::ShardId,
    seam::{self, Channel},
    store::{ShardSet, StoreError},
};

/// What is given back, and what is to be.
pub(crate) struct Leaving {
    /// Not taken in any more, and some run of it may be in memory.
    busy: BTreeMap<ShardId, Given>,
    /// Out of memory, and still ours in the store.
    freed: ShardSet,
    /// Since when each shard should be somebody else's.
    excess_since: BTreeMap<ShardId, Instant>,
    /// Owned, and what is stored of them may not be in memory: their runs are to be taken up.
    pub(super) unread: ShardSet,
    /// Pools whose shards nobody needs.
    pub(super) vacant: Vacant,
    /// How long the leases of others last.
    pub(super) beats: Beats,
    /// Each time that something is given back has its own, so that an answer of an earlier time is
    /// not taken for one of this.
    number: u64,
    /// What has left memory, by these numbers.
    news: Channel<(u64, ShardSet)>,
}

/// How a shard was given back.
struct Given {
    number: u64,
    at: Instant,
    forced: bool,
}

impl Default for Leaving {
    fn default() -> Leaving {
        Leaving {
            busy: BTreeMap::new(),
            freed: ShardSet::EMPTY,
            excess_since: BTreeMap::new(),
            unread: ShardSet::EMPTY,
            vacant: Vacant::default(),
            beats: Beats::default(),
            number: 0,
            news: Channel::default(),
        }
    }
}

impl Leaving {
    pub(super) fn has(&self, shard: ShardId) -> bool {
        self.busy.contains_key(&shard) || self.freed.contains(shard)
    }

    /// Gives back what is owned and not wanted, as far as no long body is in the way.
    pub(super) fn give_back(
        &mut self,
        shared: &Shared,
        fence: Fence,
        owned: &ShardSet,
        wanted: &ShardSet,
    ) -> Result<(), StoreError> {
        let excess: ShardSet = minus(owned, |shard| wanted.contains(shard));
        self.note_excess(&excess);
        if excess.is_empty() {
            return Ok(());
        }
        let held = long_bodies(shared, &excess);
        let free = minus(&excess, |shard| held.contains(shard));
        self.begin(shared, fence, &free, false);
        let is_due = |shard: ShardId| {
            let since = self.excess_since.get(&shard);
            since.is_some_and(|since| seam::elapsed(*since) >= shared.settings.shutdown_limit)
        };
        let overdue = minus(&held, |shard| !is_due(shard));
        if !overdue.is_empty() {
            let shards = overdue.len();
            tracing::warn!(shards, "bodies hold up shards of others; they are dropped");
            self.begin(shared, fence, &overdue, true);
        }
        self.release(shared, fence, shared.settings.heartbeat() / 2)
    }

    fn note_excess(&mut self, excess: &ShardSet) {
        let busy = &self.busy;
        self.excess_since
            .retain(|shard, _| excess.contains(*shard) || busy.contains_key(shard));
        for shard in excess.iter() {
            self.excess_since.entry(shard).or_insert_with(seam::now);
        }
    }

    /// From now on nothing new of these shards is taken in.
    fn begin(&mut self, shared: &Shared, fence: Fence, shards: &ShardSet, forced: bool) {
        let kept = minus(&shared.owned(), |shard| shards.contains(shard));
        if shards.is_empty() || !shared.set_owned_if(fence, &kept) {
            return;
        }
        self.number += 1;
        let (number, at) = (self.number, seam::now());
        tell_threads(shared, shards, |shards| {
            Event::Release(Release {
                shards,
                number,
                epoch: fence.epoch,
                forced,
                told: self.news.clone(),
            })
        });
        for shard in shards.iter() {
            let given = Given { number, at, forced };
            self.busy.insert(shard, given);
        }
    }

    /// Keeps shards that are wanted again, and those that a body holds up after all: its end may be
    /// far away.
    pub(super) fn take_back(&mut self, shared: &Shared, fence: Fence, wanted: &ShardSet) {
        let patience = shared.settings.heartbeat() * 2;
        let is_stuck = |given: &Given| !given.forced && seam::elapsed(given.at) >= patience;
        let busy = self.busy.iter();
        let busy = busy.filter(|(shard, given)| wanted.contains(**shard) || is_stuck(given));
        let mut back: ShardSet = busy.map(|(shard, _)| *shard).collect();
        let freed = self.freed.iter().filter(|shard| wanted.contains(*shard));
        freed.for_each(|shard| back.insert(shard));
        if back.is_empty() {
            return;
        }
        for shard in back.iter() {
            self.busy.remove(&shard);
            self.freed.remove(shard);
            self.unread.insert(shard);
        }
        // What has left memory before the threads hear of it is read again after they have.
        tell_threads(shared, &back, Event::Keep);
        let owned = shared.owned();
        // If the lease is lost, so is everything here.
        shared.set_owned_if(fence, &owned.iter().chain(back.iter()).collect());
    }

    /// Releases what has left memory; waits at most this long for the rest.
    pub(super) fn release(
        &mut self,
        shared: &Shared,
        fence: Fence,
        limit: Duration,
    ) -> Result<(), StoreError> {
        let until = seam::now() + limit;
        while !self.busy.is_empty() {
            let Some((number, freed)) = self.news.receive(until, "shards that are freed") else {
                break;
            };
            for shard in freed.iter() {
                if self.busy.get(&shard).is_some_and(|it| it.number == number) {
                    self.busy.remove(&shard);
                    self.freed.insert(shard);
                }
            }
        }
        if !self.freed.is_empty() {
            shared.store.release_shards(fence, &self.freed)?;
            self.freed = ShardSet::EMPTY;
            shared.store.wake_others(shared.me, &[]);
        }
        Ok(())
    }
}

fn minus(shards: &ShardSet, without: impl Fn(ShardId) -> bool) -> ShardSet {
    shards.iter().filter(|shard| !without(*shard)).collect()
}

/// Tells every engine thread that has some of these shards about its own.
fn tell_threads(shared: &Shared, shards: &ShardSet, mut event: impl FnMut(ShardSet) -> Event) {
    for (index, thread) in shared.threads.iter().enumerate() {
        let its = minus(shards, |shard| shared.thread_of(shard.index()) != index);
        if !its.is_empty() {
            thread.push(event(its));
        }
    }
}

/// Those of these shards that have a long body. All of a thread that does not answer: something
/// blocks it.
fn long_bodies(shared: &Shared, shards: &ShardSet) -> ShardSet {
    let limit = shared.settings.heartbeat();
    let answers = Channel::default();
    let mut long = shards.clone();
    let mut asked = 0;
    tell_threads(shared, shards, |its| {
        asked += 1;
        Event::LongBodies(its, limit, answers.clone())
    });
    let until = seam::now() + limit / 4;
    for _ in 0..asked {
        let Some((asked, its)) = answers.receive(until, "long bodies") else {
            break;
        };
        let free = minus(&asked, |shard| its.contains(shard));
        free.iter().for_each(|shard| long.remove(shard));
    }
    long
}
