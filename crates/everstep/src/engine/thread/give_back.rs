//! Shards that are given back: their runs leave memory, and whoever owns them next goes on from
//! what is stored.

use std::time::Duration;

use super::{Task, Worker, away::Leaving};
use crate::{
    engine::mailbox::{HeldUp, Release},
    run_id::ShardId,
    sabotage::Sabotage,
    seam,
    store::ShardSet,
};

impl Worker {
    /// Those of these shards that have a body which has been in flight for longer than this, or a
    /// commit that was in flight the last time already.
    pub(super) fn held_up(&mut self, shards: &ShardSet, limit: Duration) -> HeldUp {
        let mut held_up = HeldUp::default();
        let tasks = self.tasks.iter_mut().flatten();
        for task in tasks.filter(|task| shards.contains(task.shard)) {
            let since = task.busy_since;
            if since.is_some_and(|since| seam::elapsed(since) > limit) {
                held_up.bodies.insert(task.shard);
            }
            let in_flight = task.run.in_flight();
            if std::mem::replace(&mut task.was_in_flight, in_flight) && in_flight {
                held_up.commits.insert(task.shard);
            }
        }
        held_up
    }

    /// Gives up shards, each once none of its runs is in memory.
    pub(super) fn release(&mut self, release: Release) {
        for slot in self.slots_of(&release.shards) {
            if !self.evict(slot) {
                if let Some(Some(task)) = self.tasks.get_mut(slot as usize) {
                    task.run.drain(false);
                }
                self.queue(slot);
            }
        }
        self.releasing.push(release);
    }

    /// These shards are not given up after all: what is still in memory of them goes on. What has
    /// left it is read again by whoever says so.
    pub(super) fn keep(&mut self, shards: &ShardSet) {
        for release in &mut self.releasing {
            shards.iter().for_each(|shard| release.shards.remove(shard));
        }
        self.releasing.retain(|release| !release.shards.is_empty());
        if self.draining.is_some() || self.drained {
            return;
        }
        for slot in self.slots_of(shards) {
            if let Some(Some(task)) = self.tasks.get_mut(slot as usize)
                // What belongs to another pool leaves all the same.
                && task.leaving != Some(Leaving::ForHome)
            {
                task.run.go_on();
            }
            self.queue(slot);
        }
    }

    /// Names the shards of which nothing is in memory any more.
    pub(super) fn answer_releases(&mut self) {
        if self.releasing.is_empty() {
            return;
        }
        let mut busy: ShardSet = self.tasks.iter().flatten().map(|t| t.shard).collect();
        if self.shared.settings.breaks(Sabotage::ReleaseBusy) {
            busy = ShardSet::EMPTY;
        }
        self.releasing.retain_mut(|release| {
            let is_busy = |shard: &ShardId| busy.contains(*shard);
            let (kept, freed): (Vec<_>, Vec<_>) = release.shards.iter().partition(is_busy);
            release.shards = kept.into_iter().collect();
            if !freed.is_empty() {
                let freed = freed.into_iter().collect();
                release.told.send((release.number, freed));
            }
            !release.shards.is_empty()
        });
    }

    /// Drops runs that were told to drain and have nothing in flight.
    pub(super) fn drop_idle(&mut self) {
        let all = self.draining.is_some();
        let may_leave = |task: &Task| {
            let releases = self.releasing.iter();
            let mut its = releases.filter(|release| release.shards.contains(task.shard));
            let first = its.next();
            let forced = first.is_some_and(|it| it.forced) || its.any(|it| it.forced);
            let is_meant = all || first.is_some();
            // What a body has given is in a commit, and that is waited for.
            // One that is parked may wait for a place to move in.
            let is_idle = task.hot.is_some() || (!task.queued && task.bodies == 0);
            is_meant && !task.run.in_flight() && (forced || is_idle)
        };
        let slots = self.by_no.values().copied();
        let leaving = slots.filter(|slot| {
            let task = self.tasks[*slot as usize].as_ref();
            task.is_some_and(may_leave)
        });
        for slot in leaving.collect::<Vec<u32>>() {
            self.remove(slot);
        }
    }
}
