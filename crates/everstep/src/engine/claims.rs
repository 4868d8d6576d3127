//! Runs that are in this process's memory from the first moment, though no client has started them:
//! children, and the runs of schedules.
//!
//! Whether there is room is decided when their batch is put together, and settled when it is made or
//! not. So a place is held for no longer than a batch takes, and nobody else has to give it back.

use std::sync::Arc;

use super::{mailbox::Event, shared::Shared};
use crate::{
    commit::{Batch, Effect, NewRun, RunStatus, ScheduleWrite, Write},
    store::{DueRun, Reaction, StoreError},
};

/// Claims what this process can run, as far as there is room.
pub(super) fn take(shared: &Shared, writes: &mut [Write]) {
    // At the end everything is left to the next owner.
    if shared.threads.is_empty() || shared.closing() {
        return;
    }
    for new in writes.iter_mut().flat_map(started_by) {
        // It has a place already if the batch was tried before.
        new.claim = new.claim || shared.claims(new);
    }
}

/// How many of these runs have a place.
pub(super) fn count(writes: &mut [Write]) -> usize {
    let started = writes.iter_mut().flat_map(started_by);
    started.filter(|new| new.claim).count()
}

/// A write that was refused may be made again later: its runs have no place any more.
pub(super) fn forget(write: &mut Write) {
    for new in started_by(write) {
        new.claim = false;
    }
}

/// A batch was not made, or nobody knows.
pub(super) fn lost(shared: &Shared, mut batch: Batch, error: &Arc<StoreError>) {
    let by_clients = batch.writes.iter_mut().filter_map(|write| match write {
        Write::Start(new) => Some(&mut **new),
        _ => None,
    });
    let mut claimed: Vec<NewRun> =
        by_clients.filter(|new| new.claim).map(|new| new.clone()).collect();
    let by_others = batch.writes.iter_mut().flat_map(started_by);
    claimed.extend(by_others.filter(|new| new.claim).map(|new| new.clone()));
    for new in claimed {
        shared.release();
        let shard = shared.owned.home(new.id, &new.pool);
        if let (Reaction::Reload, Some(shard)) = (error.reaction(), shard) {
            // If it is there, it is in nobody's memory, and nobody would look for it.
            let due = DueRun {
                id: new.id,
                shard,
                available_at: None,
                status: RunStatus::Running,
                workflow: new.workflow,
                version: new.version,
                pool: new.pool,
            };
            shared.mailbox_of(due.id).push(Event::Recovered(vec![due]));
        }
    }
}

/// The runs that a write starts on behalf of others than clients.
fn started_by(write: &mut Write) -> impl Iterator<Item = &mut NewRun> {
    let (effects, fired) = match write {
        Write::Commit(commit) => (&mut commit.effects[..], None),
        Write::Schedule(write) => match &mut **write {
            ScheduleWrite::Fire(fire) => (&mut [][..], fire.run.as_deref_mut()),
            _ => (&mut [][..], None),
        },
        _ => (&mut [][..], None),
    };
    let children = effects.iter_mut().filter_map(|effect| match effect {
        Effect::StartChild(start) => Some(&mut start.new),
        _ => None,
    });
    children.chain(fired)
}
