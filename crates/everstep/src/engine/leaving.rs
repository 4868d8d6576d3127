//! Shards that a runner has and should not have any more.
//!
//! A shard can be somebody else's once none of its runs is in memory here, and a body may take as
//! long as it likes. While a shard is being given back nobody serves its runs, so it must not wait
//! for long: a shard with a long body stays where it is, with all its runs, until the body has ended
//! or `shutdown_limit` has passed; then the body is dropped, as on a shutdown. A shard with a commit
//! that the store takes long to answer stays until the answer has come.
//!
//! 1. *owned*: its runs are served here. It is *unread* too until all of them were looked for once.
//! 2. *busy*: it leaves, and some run of it may be in memory. Taken back, as unread, if that lasts.
//! 3. *freed*: none is. It is released in the store; an error may mean that it was.
//!
//! Always true: a shard is in one of these states, or it is not ours in the store, as far as its
//! answers say. An answer can be lost, so both sides are compared at every look
//! ([`Leaving::compare`]).

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::{
    lease::Beats,
    mailbox::{Event, HeldUp, Release},
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
    /// Owned, and what is stored of them may not be in memory: their runs are to be taken up. None of
    /// them is given back before that: nobody would serve what has left memory the last time.
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
        let HeldUp { bodies, commits } = held_up(shared, &excess);
        let stays = |shard| commits.contains(shard) || self.unread.contains(shard);
        let free = minus(&excess, |shard| bodies.contains(shard) || stays(shard));
        let is_due = |shard: ShardId| {
            let since = self.excess_since.get(&shard);
            since.is_some_and(|since| seam::elapsed(*since) >= shared.settings.shutdown_limit)
        };
        let overdue = minus(&bodies, |shard| stays(shard) || !is_due(shard));
        self.begin(shared, fence, &free, false);
        if !overdue.is_empty() {
            let shards = overdue.len();
            tracing::warn!(shards, "bodies hold up shards of others; they are dropped");
            self.begin(shared, fence, &overdue, true);
        }
        self.release(shared, fence, shared.settings.heartbeat() / 2)
    }

    fn note_excess(&mut self, excess: &ShardSet) {
        let busy = &self.busy;
        self.excess_since.retain(|shard, _| excess.contains(*shard) || busy.contains_key(shard));
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

    /// Compares what this process takes for its own with what the store says; whether it has its
    /// lease. Before any shard is taken back.
    ///
    /// The answer to taking or releasing shards may have been lost. A shard that the store gives this
    /// runner is served from now on, since nobody else does. One that was to be released is. But if
    /// the store gives a shard of ours to others or to nobody, there may be runs of it in memory and
    /// commits on their way; with the next lease nothing of either is written.
    pub(super) fn compare(&mut self, shared: &Shared, fence: Fence, stored: &ShardSet) -> bool {
        self.freed = minus(&self.freed, |shard| !stored.contains(shard));
        let owned = shared.owned();
        let mut served = owned.iter().chain(self.busy.keys().copied());
        if !served.all(|shard| stored.contains(shard)) {
            tracing::error!("shards of this runner are not its own in the store");
            shared.lose_if(fence);
            return false;
        }
        let unknown = minus(stored, |shard| owned.contains(shard) || self.has(shard));
        if unknown.is_empty() {
            return true;
        }
        let shards = unknown.len();
        tracing::warn!(shards, "the store has given shards to this runner unheard");
        unknown.iter().for_each(|shard| self.unread.insert(shard));
        shared.set_owned_if(fence, &owned.iter().chain(unknown.iter()).collect())
    }

    /// Keeps shards that are wanted again, and those that a body or a commit holds up after all: its
    /// end may be far away.
    pub(super) fn take_back(&mut self, shared: &Shared, fence: Fence, wanted: &ShardSet) {
        let patience = shared.settings.heartbeat() * 2;
        let busy = self.busy.iter();
        let stuck = busy.filter(|(_, given)| seam::elapsed(given.at) >= patience);
        let (forced, stuck): (Vec<_>, Vec<_>) = stuck.partition(|(_, given)| given.forced);
        // What a thread has that a body blocks is not served here in any case.
        let forced = forced.into_iter().map(|(shard, _)| *shard).collect();
        let forced = held_up(shared, &forced).commits;
        let again = self.busy.keys().filter(|shard| wanted.contains(**shard));
        let stuck = stuck.into_iter().map(|(shard, _)| shard);
        let busy = again.chain(stuck).copied().chain(forced.iter());
        let mut back: ShardSet = busy.collect();
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

/// Those of these shards that have a long body or a slow commit. All of a thread that does not answer
/// count as having a body: something blocks it.
fn held_up(shared: &Shared, shards: &ShardSet) -> HeldUp {
    let limit = shared.settings.heartbeat();
    let answers = Channel::default();
    let mut held_up = HeldUp { bodies: shards.clone(), commits: ShardSet::EMPTY };
    let mut asked = 0;
    tell_threads(shared, shards, |its| {
        asked += 1;
        Event::HeldUp(its, limit, answers.clone())
    });
    let until = seam::now() + limit / 4;
    for _ in 0..asked {
        let Some((asked, its)) = answers.receive(until, "shards that are held up") else {
            break;
        };
        let free = minus(&asked, |shard| its.bodies.contains(shard));
        free.iter().for_each(|shard| held_up.bodies.remove(shard));
        let commits = its.commits.iter();
        commits.for_each(|shard| held_up.commits.insert(shard));
    }
    held_up
}
