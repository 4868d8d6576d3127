//! The lease: how a runner says that it is alive, and which shards it owns.
//!
//! Each runner computes for itself which shards it should have, by rendezvous hashing over the
//! runners that are alive. It takes what is free, and gives back what it should not have
//! ([`super::leaving`]).

use std::{
    sync::{Arc, Condvar, Mutex, PoisonError},
    time::{Duration, Instant},
};

use uuid::Uuid;

use super::{
    assign::assigned,
    leaving::Leaving,
    mailbox::Event,
    poller::{self, Poller},
    shared::Shared,
};
use crate::{
    commit::Fence,
    run::is_mended_by_deploy,
    store::{RunnerRow, ShardSet, StoreError},
    time::Timestamp,
};

/// Stops the heartbeat, or hurries it.
#[derive(Default)]
pub(crate) struct Stop {
    state: Mutex<Told>,
    changed: Condvar,
}

#[derive(Clone, Copy, Default)]
struct Told {
    stopped: bool,
    /// Shards may be free, or of a pool that was not there before.
    poked: bool,
}

impl Stop {
    fn lock(&self) -> std::sync::MutexGuard<'_, Told> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn stop(&self) {
        self.lock().stopped = true;
        self.changed.notify_all();
    }

    /// Asks for a look at who has which shards.
    pub(crate) fn poke(&self) {
        self.lock().poked = true;
        self.changed.notify_all();
    }

    /// Waits for this long; whether it was stopped.
    pub(crate) fn wait(&self, limit: Duration) -> bool {
        self.wait_while(limit, |told| !told.stopped).stopped
    }

    /// Waits until `beat`, or, if it is poked, until `hurried`.
    fn wait_for_beat(&self, beat: Instant, hurried: Instant) -> Told {
        let left = |until: Instant| until.saturating_duration_since(Instant::now());
        let told = self.wait_while(left(beat), |told| !told.stopped && !told.poked);
        if told.poked && !told.stopped {
            self.wait_while(left(hurried.min(beat)), |told| !told.stopped);
        }
        let mut told = self.lock();
        let now = *told;
        told.poked = false;
        now
    }

    fn wait_while(&self, limit: Duration, goes_on: impl Fn(&Told) -> bool) -> Told {
        let waited = self
            .changed
            .wait_timeout_while(self.lock(), limit, |told| goes_on(told));
        *waited.unwrap_or_else(PoisonError::into_inner).0
    }
}

/// Says that the runner is alive, again and again, and keeps its shards as they should be.
pub(crate) fn run(shared: &Arc<Shared>, stop: &Stop) {
    let heartbeat = shared.settings.heartbeat;
    let mut beats = 0u64;
    let mut leaving = Leaving::default();
    let mut next = Instant::now() + heartbeat;
    let mut balanced = Instant::now();
    loop {
        // However often it is poked, it looks no more often than twice in a beat.
        let told = stop.wait_for_beat(next, balanced + heartbeat / 2);
        if told.stopped {
            return;
        }
        if Instant::now() >= next {
            next = Instant::now() + heartbeat;
            beats += 1;
            if !beat(shared, &mut leaving) {
                continue;
            }
        }
        // Others are looked for at every second beat: an idle engine asks little.
        if (beats.is_multiple_of(2) && balanced + heartbeat <= Instant::now()) || told.poked {
            balanced = Instant::now();
            look_around(shared, &mut leaving);
        }
    }
}

/// Prolongs the lease. Whether there is one.
fn beat(shared: &Arc<Shared>, leaving: &mut Leaving) -> bool {
    let Some(fence) = shared.fence() else {
        *leaving = Leaving::default();
        if shared.stopped().is_none() {
            register_again(shared);
        }
        return false;
    };
    let begun = Instant::now();
    match shared
        .store
        .heartbeat(fence, shared.now(), shared.settings.lease)
    {
        Ok(true) => shared.set_lease(fence, begun + shared.settings.lease),
        Ok(false) => {
            shared.lose();
            return false;
        }
        Err(error) => {
            shared.complain(&error, "the heartbeat failed");
            return false;
        }
    }
    if let Err(error) = leaving.release(shared, fence, Duration::ZERO) {
        shared.complain(&error, "shards cannot be given back");
    }
    true
}

/// Looks who else is alive, and takes and gives back shards accordingly.
fn look_around(shared: &Arc<Shared>, leaving: &mut Leaving) {
    let Some(fence) = shared.fence().filter(|_| !shared.leaving()) else {
        return;
    };
    let taken = balance(shared, fence, leaving).and_then(|taken| {
        taken.iter().for_each(|shard| leaving.unread.insert(shard));
        if !leaving.unread.is_empty() {
            take_up(shared, &leaving.unread)?;
            leaving.unread = ShardSet::EMPTY;
        }
        Ok(())
    });
    if let Err(error) = taken {
        shared.complain(&error, "shards cannot be balanced");
    }
    if shared.owned.is_partial() {
        // They may have moved away from under somebody who waits.
        Poller::ensure(shared);
    }
}

/// A runner that has lost its shards starts over, with nothing in memory.
fn register_again(shared: &Shared) {
    let Some(me) = shared.me else { return };
    let runner = shared.as_runner(me);
    let begun = Instant::now();
    // Whoever has found the loss may have done so beside a balance, which knew nothing of it.
    shared.set_owned(&ShardSet::EMPTY);
    match shared.store.register_runner(&runner) {
        Ok(fence) => {
            shared.set_lease(fence, begun + shared.settings.lease);
            shared.store.wake_others(Some(me), &[]);
        }
        // There is nothing to come back for.
        Err(error @ StoreError::Moved { .. }) => shared.stop(error),
        Err(error) => shared.complain(&error, "the runner cannot register again"),
    }
}

/// The runners, as one of them sees them.
struct Seen<'a> {
    alive: Vec<&'a RunnerRow>,
    /// They hold shards, and their lease is over or their process is.
    gone: Vec<&'a RunnerRow>,
    /// Those whose process has ended: they cannot come back.
    ///
    /// One whose lease was over when it was read may have prolonged it since, as a process does that
    /// was stopped and goes on. Whether it still is over is for the transaction to say that takes its
    /// shards: if they were taken from under a lease that lasts, both would start bodies.
    dead: Vec<Uuid>,
}

impl<'a> Seen<'a> {
    fn of(
        runners: &'a [RunnerRow],
        me: Uuid,
        now: Timestamp,
        has_ended: impl Fn(Uuid) -> bool,
    ) -> Seen<'a> {
        let mut seen = Seen {
            alive: Vec::new(),
            gone: Vec::new(),
            dead: Vec::new(),
        };
        for runner in runners {
            let is_dead = runner.id != me && has_ended(runner.id);
            if runner.id == me || (runner.lease_until > now && !is_dead) {
                seen.alive.push(runner);
            } else if !runner.shards.is_empty() {
                seen.gone.push(runner);
                seen.dead.extend(is_dead.then_some(runner.id));
            }
        }
        seen
    }
}

/// Takes and gives back shards until the runner has those it should have; gives the new ones,
/// whose runs are to be taken up.
pub(crate) fn balance(
    shared: &Shared,
    fence: Fence,
    leaving: &mut Leaving,
) -> Result<ShardSet, StoreError> {
    let now = shared.now();
    let runners = shared.store.runners()?;
    let Seen { alive, gone, dead } = Seen::of(&runners, fence.runner, now, |runner| {
        shared.store.runner_is_dead(runner)
    });
    let pools = shared.store.pools()?;
    let vacant = leaving.vacant.look(shared, &alive, &pools)?;
    shared.owned.set_pools(&pools, &vacant);
    let wanted = assigned(fence.runner, &alive, &pools, &vacant);
    let peers = alive.iter().map(|runner| (*runner).clone()).collect();
    if shared.peers.set(peers) {
        for thread in &shared.threads {
            thread.push(Event::Peers);
        }
    }
    leaving.take_back(shared, &wanted);
    let owned = shared.owned();
    leaving.give_back(shared, fence, &owned, &wanted)?;
    let missing = wanted.iter().any(|shard| !shared.owns(shard));
    if missing || !gone.is_empty() {
        match shared.store.take_shards(fence, now, &wanted, &dead)? {
            Some(held) => {
                let kept: ShardSet = held.iter().filter(|shard| !leaving.has(*shard)).collect();
                let new: ShardSet = kept
                    .iter()
                    .filter(|shard| !owned.contains(*shard))
                    .collect();
                shared.set_owned(&kept);
                let had_some = |gone: &&&RunnerRow| new.iter().any(|it| gone.shards.contains(it));
                for runner in gone.iter().filter(had_some) {
                    tracing::info!(
                        runner = runner.name,
                        "shards of a runner that is gone are taken"
                    );
                    shared.counters.takeover();
                }
                return Ok(new);
            }
            None => shared.lose(),
        }
    }
    Ok(ShardSet::EMPTY)
}

/// How many runs of a new shard are read at a time.
const PAGE: usize = 1_000;

/// Takes up the runs of shards that were somebody else's, or nobody's.
pub(crate) fn take_up(shared: &Shared, shards: &ShardSet) -> Result<u64, StoreError> {
    poller::ask_about(shared, shards);
    let (mut after, mut found) = (None, 0);
    loop {
        let page = shared.store.live(shards, after, PAGE)?;
        after = page.last().map(|run| run.id.no());
        let full = page.len() == PAGE;
        found += page.len() as u64;
        let mut by_thread: Vec<Vec<_>> = shared.threads.iter().map(|_| Vec::new()).collect();
        for run in page {
            by_thread[shared.thread_of(run.id.shard_index())].push(run);
        }
        for (thread, runs) in by_thread.into_iter().enumerate() {
            if !runs.is_empty() {
                shared.threads[thread].push(Event::Recovered(runs));
            }
        }
        if !full {
            shared.due.poke(false);
            reconsider(shared, shards)?;
            return Ok(found);
        }
    }
}

/// Has the paused runs of new shards tried that the code of this process may mend.
fn reconsider(shared: &Shared, shards: &ShardSet) -> Result<(), StoreError> {
    let mut after = None;
    loop {
        let page = shared.store.paused(shards, after, PAGE)?;
        after = page.last().map(|run| run.id.no());
        let full = page.len() == PAGE;
        let mut by_thread: Vec<Vec<_>> = shared.threads.iter().map(|_| Vec::new()).collect();
        for run in page {
            let mendable = run.reason.as_deref().is_some_and(is_mended_by_deploy);
            if mendable && shared.registry.find(&run.workflow, run.version).is_some() {
                by_thread[shared.thread_of(run.id.shard_index())].push(run.id.no());
            }
        }
        for (thread, runs) in by_thread.into_iter().enumerate() {
            if !runs.is_empty() {
                shared.threads[thread].push(Event::Reconsider(runs));
            }
        }
        if !full {
            return Ok(());
        }
    }
}

/// A thread that names the body which holds up an engine thread, while it does.
pub(crate) fn watch(shared: &Arc<Shared>, stop: &Stop) {
    let mut seen: Vec<(u64, Instant, bool)> = shared
        .threads
        .iter()
        .map(|_| (0, Instant::now(), false))
        .collect();
    let step = (shared.settings.blocked_after / 4).max(Duration::from_millis(10));
    while !stop.wait(step) {
        for (thread, seen) in shared.threads.iter().zip(&mut seen) {
            let turn = thread.turn.load(std::sync::atomic::Ordering::Acquire);
            if turn != seen.0 {
                *seen = (turn, Instant::now(), false);
                continue;
            }
            let working = turn % 2 == 1;
            if !working || seen.2 || seen.1.elapsed() < shared.settings.blocked_after {
                continue;
            }
            seen.2 = true;
            let polling = thread
                .polling
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone();
            if let Some(polling) = polling {
                let step = polling.step.map(|key| crate::history::keys::describe(&key));
                tracing::warn!(
                    run = %polling.run,
                    workflow = &*polling.workflow,
                    step = step.as_deref().unwrap_or("(the workflow's own code)"),
                    blocked_for = ?seen.1.elapsed(),
                    "a body blocks its engine thread; use `ctx.blocking` for work that blocks"
                );
                shared.hub.note_blocked(polling.run, step);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::{MemoryStore, NewRunner, Store};

    const LEASE: Duration = Duration::from_secs(1);

    fn at(ms: i64) -> Timestamp {
        Timestamp::from_millis(ms)
    }

    /// Two processes started the same body. One had been stopped for longer than its lease and went
    /// on; it prolonged its lease, and then its shards were taken by one that had read before that
    /// its lease was over.
    #[test]
    fn a_lease_that_was_prolonged_after_it_was_read_is_not_taken_over() {
        let store = MemoryStore::new();
        let register = |no: u128, now: Timestamp| {
            let new = NewRunner::new(Uuid::from_u128(no), "host/1", now, LEASE);
            store.register_runner(&new).expect("register")
        };
        let all = ShardSet::of_default_pool();
        let stopped = register(1, at(0));
        let take = |fence, now, dead: &[Uuid]| {
            let held = store.take_shards(fence, now, &all, dead);
            held.expect("take_shards").expect("its fence holds")
        };
        assert_eq!(take(stopped, at(0), &[]), all);
        let other = register(2, at(2_000));
        let runners = store.runners().expect("runners");
        let seen = Seen::of(&runners, other.runner, at(2_000), |_| false);
        let ids = |rows: &[&RunnerRow]| rows.iter().map(|row| row.id).collect::<Vec<_>>();
        assert_eq!(ids(&seen.alive), [other.runner]);
        assert_eq!(ids(&seen.gone), [stopped.runner]);
        let goes_on = store.heartbeat(stopped, at(2_001), LEASE);
        assert!(goes_on.expect("heartbeat"));
        assert!(take(other, at(2_002), &seen.dead).is_empty());
        // When nobody prolongs it, they are taken; at once if its process is known to have ended.
        let runners = store.runners().expect("runners");
        let seen = Seen::of(&runners, other.runner, at(2_003), |id| id == stopped.runner);
        assert_eq!(seen.dead, [stopped.runner]);
        assert_eq!(take(other, at(2_003), &seen.dead), all);
    }
}
