//! Runs that are told to leave memory: by an operator, or because their home is another pool.
//!
//! Always true: a run leaves only while nothing of it is in flight. No body is stopped for it, and
//! what a body has given is written before.

use super::Worker;
use crate::{
    engine::{
        mailbox::Leaves,
        peers::{self, Place},
    },
    run_id::RunNo,
    store::DueRun,
};

/// Why a run is to leave memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Leaving {
    /// Somebody wants the memory. It may move on, and leaves when it waits.
    ToBeCold,
    /// It belongs to another pool. It starts no body any more.
    ForHome,
}

impl Worker {
    /// Drops a run that is parked; one that moves is dropped when it parks.
    pub(super) fn make_cold(&mut self, run: RunNo) -> Leaves {
        let Some(slot) = self.by_no.get(&run).copied() else {
            return Leaves::NotHere;
        };
        if self.evict(slot) {
            return Leaves::Now;
        }
        if let Some(Some(task)) = self.tasks.get_mut(slot as usize)
            && task.leaving.is_none()
        {
            task.leaving = Some(Leaving::ToBeCold);
        }
        Leaves::Soon
    }

    /// A run has got another home: it is looked at, wherever it is.
    pub(super) fn rehomed(&mut self, run: RunNo) {
        if self.by_no.contains_key(&run) || self.loading.contains_key(&run) {
            self.look(run);
        } else {
            self.load(run);
        }
    }

    /// Whether a run is in a pool that is not its home, nor belongs to it.
    pub(super) fn has_moved_away(&self, run: &DueRun) -> bool {
        let inside = self.shared.owned.pool_name(run.shard.pool());
        let is_served = true;
        // Without a name it is a pool that was not there when this process last looked.
        inside.is_some_and(|inside| {
            matches!(peers::place_of(run, &inside, is_served, &[]), Place::In(_))
        })
    }

    /// A run that is in memory belongs to another pool: it leaves as soon as it can, and is handed
    /// over when it is read again.
    pub(super) fn leave_for_home(&mut self, slot: u32) {
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let run = task.id.no();
        task.leaving = Some(Leaving::ForHome);
        if self.evict(slot) {
            return self.load(run);
        }
        if let Some(Some(task)) = self.tasks.get_mut(slot as usize) {
            task.run.drain(false);
        }
        self.queue(slot);
    }

    /// Drops a run that was told to leave, if nothing of it is in flight.
    pub(super) fn leave_if_idle(&mut self, slot: u32) {
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let (run, parked) = (task.id.no(), task.run.is_parked());
        let is_idle = !task.run.in_flight() && !task.queued && task.bodies == 0;
        match task.leaving {
            Some(Leaving::ToBeCold) if parked => self.remove_parked(slot),
            Some(Leaving::ForHome) if parked || is_idle => {
                self.remove(slot);
                self.load(run);
            }
            _ => {}
        }
    }
}
