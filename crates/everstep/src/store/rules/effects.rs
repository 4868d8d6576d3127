//! What a commit does to others, and what is left to do when the code of a run is over.

use super::{
    Head,
    children::{self, ChildTables},
    limits::{self, LimitTables},
    tables::{Waiter, links},
};
use crate::commit::{Commit, Effect, EffectDone, InboxKind, Patch, RunStatus};

/// The tables of everything that effects reach.
pub(crate) trait AllTables: ChildTables + LimitTables {}

impl<T: ChildTables + LimitTables> AllTables for T {}

/// The code of a run is over, for good or for now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Over {
    /// Whether what others did for it is compensated.
    pub(crate) compensates: bool,
    /// How the run has ended, if it has: not before its rollbacks, and not when it is tried again or
    /// continues as a new generation.
    pub(crate) ended: Option<RunStatus>,
}

/// Whether nothing that the code of the run waits for is waited for after this commit.
pub(crate) fn is_over(patch: &Patch) -> bool {
    match patch {
        Patch::Finish { .. } | Patch::RollBack { .. } | Patch::Continue { .. } => true,
        Patch::Park { status, .. } => *status == RunStatus::Pending,
        Patch::Keep | Patch::Run { .. } | Patch::Pause { .. } => false,
    }
}

/// Whether the run leaves its owner's memory with this commit, until somebody resumes it: its bodies
/// have ended, or were dropped.
pub(crate) fn is_put_away(commit: &Commit) -> bool {
    commit.results_only || matches!(commit.patch, Patch::Pause { .. })
}

/// Whether a commit of a run with links has to be followed up, besides its effects.
pub(crate) fn has_sequel(commit: &Commit) -> bool {
    is_over(&commit.patch) || is_put_away(commit)
}

fn over(patch: &Patch, head: &Head) -> Over {
    let ended = match patch {
        Patch::Finish { status, .. } => Some(*status),
        _ => None,
    };
    let compensates = match ended {
        Some(RunStatus::Completed) => false,
        Some(RunStatus::Cancelled) => head.cancel.is_some_and(|cancel| cancel.rollback),
        _ => true,
    };
    Over { compensates, ended }
}

/// Carries out an effect; gives what its run is told about it, if anything.
pub(crate) fn apply<T: AllTables>(
    tables: &mut T,
    commit: &Commit,
    effect: &Effect,
) -> Result<Option<EffectDone>, T::Error> {
    match effect {
        Effect::Send {
            delivery,
            key,
            receipt,
        } => {
            let sent = tables.send(delivery)?;
            let value = [&receipt[..], &[sent.receipt.code()]].concat();
            tables.put_entry(&waiter(commit, key), value)?;
            Ok(Some(EffectDone::Sent(sent)))
        }
        Effect::StartChild(start) => children::start_child(tables, commit, start),
        Effect::Watch { target, key } => {
            children::watch_target(tables, commit, target, key).map(|()| None)
        }
        Effect::Acquire(acquire) => limits::acquire(tables, commit, acquire).map(|()| None),
        Effect::Release { key } => limits::release(tables, &waiter(commit, key)).map(|()| None),
        Effect::Abandon { kind, key } => {
            abandon(tables, &waiter(commit, key), *kind).map(|()| None)
        }
        // A row of its own, written with the entries.
        Effect::Reply { .. } => Ok(None),
    }
}

/// The operation of this commit's run that has this key.
pub(crate) fn waiter(commit: &Commit, key: &[u8]) -> Waiter {
    Waiter {
        run: commit.run,
        generation: commit.generation,
        key: key.to_vec(),
    }
}

/// An operation waits no more: what it registered is removed, and what it was handed and has not
/// taken goes back.
fn abandon<T: AllTables>(tables: &mut T, waiter: &Waiter, kind: InboxKind) -> Result<(), T::Error> {
    let _untaken = tables.take_answers(waiter.run, &waiter.key)?;
    match kind {
        InboxKind::RunEnded => children::abandon(tables, waiter),
        InboxKind::LimitGrant => limits::release(tables, waiter),
        InboxKind::Message | InboxKind::Event | InboxKind::Deferred | InboxKind::QueueResult => {
            Ok(())
        }
    }
}

/// Does what is left to do after a commit of a run with links: when its code is over, or when it is
/// put away. `head` is the row after the commit.
pub(crate) fn follow_up<T: AllTables>(
    tables: &mut T,
    head: &Head,
    commit: &Commit,
) -> Result<(), T::Error> {
    if is_over(&commit.patch) {
        close(tables, head, &commit.patch)?;
    }
    if has_sequel(commit) && head.links & links::LIMITS != 0 {
        limits::leave(tables, head.id.no())?;
    }
    Ok(())
}

/// Does what is left to do when the code of a run with links is over. `head` is the row after the
/// commit.
fn close<T: AllTables>(tables: &mut T, head: &Head, patch: &Patch) -> Result<(), T::Error> {
    let over = over(patch, head);
    let run = head.id.no();
    let _untaken = tables.take_all_answers(run)?;
    if head.links & (links::CHILDREN | links::WATCHES) != 0 {
        children::parent_over(tables, run, over)?;
    }
    if over.ended.is_some() && head.links & (links::WATCHED | links::CHILD) != 0 {
        children::run_ended(tables, head.id)?;
    }
    Ok(())
}
