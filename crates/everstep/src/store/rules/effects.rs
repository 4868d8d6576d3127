//! What a commit does to others, and what is left to do when the code of a run is over.

#![allow(dead_code, reason = "the waits that use it follow")]

use super::{
    Head,
    queues::{self, QueueTables},
    tables::{Waiter, links},
};
use crate::commit::{AfterEnqueue, Commit, Effect, EffectDone, InboxKind, Patch, RunStatus};

/// The code of a run is over, for good or for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// Whether what it did is compensated next.
    pub(crate) rolls_back: bool,
    /// How the run has ended, if it has: not before its rollbacks, and not when it is tried again.
    pub(crate) ended: Option<RunStatus>,
}

/// Whether nothing that the code of the run waits for is waited for after this commit.
pub(crate) fn over(patch: &Patch) -> Option<Over> {
    let (rolls_back, ended) = match patch {
        Patch::Finish { status, .. } => (false, Some(*status)),
        Patch::RollBack { .. } => (true, None),
        Patch::Park {
            status: RunStatus::Pending,
            ..
        } => (false, None),
        Patch::Keep | Patch::Run { .. } | Patch::Park { .. } | Patch::Pause { .. } => return None,
    };
    Some(Over { rolls_back, ended })
}

/// Carries out an effect; what became of it, if it has an answer.
pub(crate) fn apply<T: QueueTables>(
    tables: &mut T,
    commit: &Commit,
    effect: &Effect,
) -> Result<Option<EffectDone>, T::Error> {
    let waiter = |key: &[u8]| Waiter {
        run: commit.run,
        generation: commit.generation,
        key: key.to_vec(),
    };
    match effect {
        // The stores do these.
        Effect::Send { .. } | Effect::Reply { .. } => {}
        Effect::Abandon { kind, key } => abandon(tables, &waiter(key), *kind)?,
        Effect::Enqueue { item, key, then } => match then {
            AfterEnqueue::Wait { leave } => {
                queues::enqueue_and_wait(tables, item, waiter(key), *leave)?;
            }
            AfterEnqueue::Record(prefix) => {
                let enqueued = queues::enqueue_and_record(tables, item, &waiter(key), prefix)?;
                return Ok(Some(EffectDone::Enqueued(enqueued)));
            }
        },
    }
    Ok(None)
}

/// An operation waits no more: what it registered is removed, and what it was handed and has not
/// taken goes back.
fn abandon<T: QueueTables>(
    tables: &mut T,
    waiter: &Waiter,
    kind: InboxKind,
) -> Result<(), T::Error> {
    let _untaken = tables.take_answers(waiter.run, &waiter.key)?;
    match kind {
        InboxKind::Message
        | InboxKind::Event
        | InboxKind::Deferred
        | InboxKind::RunEnded
        | InboxKind::LimitGrant => Ok(()),
        InboxKind::QueueResult => queues::abandon(tables, waiter),
    }
}

/// Does what is left to do when the code of a run with links is over.
pub(crate) fn close<T: QueueTables>(
    tables: &mut T,
    head: &Head,
    over: Over,
) -> Result<(), T::Error> {
    let _ = over;
    if head.links & links::QUEUES != 0 {
        queues::close(tables, head.id.no())?;
    }
    Ok(())
}
