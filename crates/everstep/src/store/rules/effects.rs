//! What a commit does to others, and what is left to do when the code of a run is over.

#![allow(dead_code, reason = "the waits that use it follow")]

use super::{
    Head,
    deferreds::{self, DeferredTables},
    tables::Waiter,
};
use crate::commit::{Commit, Effect, InboxKind, Patch, RunStatus};

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

/// Carries out an effect that has no answer.
pub(crate) fn apply<T: DeferredTables>(
    tables: &mut T,
    commit: &Commit,
    effect: &Effect,
) -> Result<(), T::Error> {
    match effect {
        // Each has an answer, or is a row of its own; the stores do these.
        Effect::Send { .. } | Effect::Reply { .. } => Ok(()),
        Effect::AwaitDeferred(wait) => {
            deferreds::register(tables, &waiter(commit, &wait.key), wait)
        }
        Effect::Abandon { kind, key } => abandon(tables, &waiter(commit, key), *kind),
    }
}

/// The operation of this commit's run that has this key.
fn waiter(commit: &Commit, key: &[u8]) -> Waiter {
    Waiter {
        run: commit.run,
        generation: commit.generation,
        key: key.to_vec(),
    }
}

/// An operation waits no more: what it registered is removed, and what it was handed and has not
/// taken goes back.
fn abandon<T: DeferredTables>(
    tables: &mut T,
    waiter: &Waiter,
    kind: InboxKind,
) -> Result<(), T::Error> {
    let _untaken = tables.take_answers(waiter.run, &waiter.key)?;
    match kind {
        InboxKind::Deferred => tables.remove_deferred_wait(waiter),
        InboxKind::Message
        | InboxKind::Event
        | InboxKind::RunEnded
        | InboxKind::QueueResult
        | InboxKind::LimitGrant => Ok(()),
    }
}

/// Does what is left to do when the code of a run with links is over.
pub(crate) fn close<T: DeferredTables>(
    tables: &mut T,
    head: &Head,
    over: Over,
) -> Result<(), T::Error> {
    deferreds::close(tables, head, over)
}
