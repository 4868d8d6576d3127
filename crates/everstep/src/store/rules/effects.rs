//! What a commit does to others, and what is left to do when the code of a run is over.

use super::{
    children, deferreds, events, letters, limits, queues,
    tables::{links, put_entry},
};
use crate::{
    commit::{AfterEnqueue, Commit, Effect, EffectDone, InboxKind, Patch, Receipt, RunStatus},
    store::rows::{Head, InboxPart, Of, Tables, Waiter},
};

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

/// Whether the row is one that no process takes up before it is resumed.
fn is_put_away(head: &Head) -> bool {
    let to_be_cancelled = head.cancel.is_some() && head.ending.is_none();
    head.status == RunStatus::Paused && !to_be_cancelled
}

/// Whether a commit may have to be followed up, besides its effects: the code of the run is over,
/// or its bodies have ended because it was paused.
pub(crate) fn has_sequel(commit: &Commit) -> bool {
    is_over(&commit.patch) || commit.results_only || matches!(commit.patch, Patch::Pause { .. })
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
pub(crate) fn apply<T: Tables>(
    tables: &mut T,
    commit: &Commit,
    effect: &Effect,
) -> Result<Option<EffectDone>, T::Error> {
    match effect {
        Effect::Send { delivery, key, receipt } => {
            let sent = letters::send(tables, delivery)?;
            let value = [&receipt[..], &[sent.receipt.code()]].concat();
            put_entry(tables, &waiter(commit, key), value)?;
            Ok(Some(EffectDone::Sent(sent)))
        }
        Effect::Publish { publication, key, receipt } => {
            let published = events::publish(tables, publication)?;
            let code = match published.seq {
                Some(_) => Receipt::Published,
                None => Receipt::Duplicate,
            };
            let value = [&receipt[..], &[code.code()]].concat();
            put_entry(tables, &waiter(commit, key), value)?;
            Ok(Some(EffectDone::Published(published)))
        }
        Effect::Subscribe(subscription) => {
            events::subscribe(tables, commit, subscription).map(|()| None)
        }
        Effect::Took { key } => events::took(tables, &waiter(commit, key)).map(|()| None),
        Effect::StartChild(start) => children::start_child(tables, commit, start),
        Effect::Watch { target, key, entry } => {
            children::watch_target(tables, &waiter(commit, key), target, entry).map(|()| None)
        }
        Effect::AwaitDeferred(wait) => {
            deferreds::register(tables, &waiter(commit, &wait.key), wait).map(|()| None)
        }
        Effect::Acquire(acquire) => limits::acquire(tables, commit, acquire).map(|()| None),
        Effect::Release { key } => limits::release(tables, &waiter(commit, key)).map(|()| None),
        Effect::Abandon { kind, key } => {
            abandon(tables, &waiter(commit, key), *kind).map(|()| None)
        }
        Effect::Enqueue { item, key, then } => match then {
            AfterEnqueue::Wait { leave } => {
                queues::enqueue_and_wait(tables, item, waiter(commit, key), *leave).map(|()| None)
            }
            AfterEnqueue::Record(prefix) => {
                let owner = waiter(commit, key);
                let enqueued = queues::enqueue_and_record(tables, item, &owner, prefix)?;
                Ok(Some(EffectDone::Enqueued(enqueued)))
            }
        },
        // A row of its own, written with the entries.
        Effect::Reply { .. } | Effect::Emit(_) | Effect::Tag { .. } | Effect::Transaction(_) => {
            Ok(None)
        }
    }
}

/// The operation of this commit's run that has this key.
pub(crate) fn waiter(commit: &Commit, key: &[u8]) -> Waiter {
    Waiter { run: commit.run, generation: commit.generation, key: key.to_vec() }
}

/// An operation waits no more: what it registered is removed, and what it was handed and has not
/// taken goes back.
fn abandon<T: Tables>(tables: &mut T, waiter: &Waiter, kind: InboxKind) -> Result<(), T::Error> {
    let untaken = tables.take_inbox(waiter.run, InboxPart::Answers(&waiter.key))?;
    match kind {
        InboxKind::Event => events::release(tables, waiter, !untaken.is_empty()),
        InboxKind::RunEnded => children::abandon(tables, waiter),
        InboxKind::Message => Ok(()),
        InboxKind::LimitGrant => limits::release(tables, waiter),
        InboxKind::Deferred => tables.remove_deferred_waits(Of::Operation(waiter)),
        InboxKind::QueueResult => queues::abandon(tables, Of::Operation(waiter)),
    }
}

/// Does what is left to do after a commit that [has a sequel](has_sequel), and gives what its run is
/// told about it. `head` is the row after the commit.
///
/// A results-only commit is made by an owner that takes the run for paused. The run may have been
/// resumed since: then it keeps its places, and the owner reads it again.
pub(crate) fn follow_up<T: Tables>(
    tables: &mut T,
    head: &Head,
    commit: &Commit,
) -> Result<Option<EffectDone>, T::Error> {
    let is_over = is_over(&commit.patch);
    if is_over && head.links != 0 {
        close(tables, head, &commit.patch)?;
    }
    let holds_nothing = is_over || head.status == RunStatus::Paused;
    if holds_nothing && head.links & links::LIMITS != 0 {
        limits::leave(tables, head.id.no())?;
    }
    Ok((commit.results_only && is_put_away(head)).then_some(EffectDone::PutAway))
}

/// Does what is left to do when the code of a run with links is over. `head` is the row after the
/// commit.
fn close<T: Tables>(tables: &mut T, head: &Head, patch: &Patch) -> Result<(), T::Error> {
    let over = over(patch, head);
    let run = head.id.no();
    let untaken = tables.take_inbox(run, InboxPart::AllAnswers)?;
    if head.links & links::EVENTS != 0 {
        events::close(tables, head, over, &untaken)?;
    }
    if head.links & (links::CHILDREN | links::WATCHES) != 0 {
        children::parent_over(tables, run, over)?;
    }
    if head.links & links::QUEUES != 0 {
        queues::abandon(tables, Of::Run(run))?;
    }
    if over.ended.is_some() && head.links & (links::WATCHED | links::CHILD) != 0 {
        children::run_ended(tables, head.id)?;
    }
    deferreds::close(tables, head, over)
}
