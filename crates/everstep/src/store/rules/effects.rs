//! What a commit does to others, and what is left to do when the code of a run is over.

#![allow(dead_code, reason = "the waits that use it follow")]

use super::{
    Head, events,
    letters::{self, LetterTables},
    tables::{Waiter, links},
};
use crate::commit::{Commit, Effect, EffectDone, InboxKind, Patch, Receipt, RunStatus};

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
pub(crate) fn apply<T: LetterTables>(
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
        // A row of its own; the stores do these.
        Effect::Reply { .. } => {}
        Effect::Send {
            delivery,
            key,
            receipt,
        } => return letters::send(tables, commit, delivery, key, receipt).map(Some),
        Effect::Publish {
            publication,
            key,
            receipt,
        } => {
            let published = events::publish(tables, publication)?;
            let code = match published.seq {
                Some(_) => Receipt::Published,
                None => Receipt::Duplicate,
            };
            let value = [receipt, &[code.code()][..]].concat();
            tables.write_entry(commit, key, &value)?;
            return Ok(Some(EffectDone::Published(published)));
        }
        Effect::Subscribe(subscription) => events::subscribe(tables, commit, subscription)?,
        Effect::Took { key } => events::took(tables, &waiter(key))?,
        Effect::Abandon { kind, key } => abandon(tables, &waiter(key), *kind)?,
    }
    Ok(None)
}

/// An operation waits no more: what it registered is removed, and what it was handed and has not
/// taken goes back.
fn abandon<T: LetterTables>(
    tables: &mut T,
    waiter: &Waiter,
    kind: InboxKind,
) -> Result<(), T::Error> {
    let untaken = tables.take_answers(waiter.run, &waiter.key)?;
    match kind {
        InboxKind::Event => events::release(tables, waiter, !untaken.is_empty()),
        InboxKind::Message
        | InboxKind::Deferred
        | InboxKind::RunEnded
        | InboxKind::QueueResult
        | InboxKind::LimitGrant => Ok(()),
    }
}

/// Does what is left to do when the code of a run with links is over.
pub(crate) fn close<T: LetterTables>(
    tables: &mut T,
    head: &Head,
    over: Over,
) -> Result<(), T::Error> {
    if head.links & links::EVENTS != 0 {
        events::close(tables, head, over)?;
    }
    Ok(())
}
