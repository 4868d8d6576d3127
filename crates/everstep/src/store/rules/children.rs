//! Runs that are started by runs, and waits for the end of a run.
//!
//! Always true:
//! - Whoever waits for the end of a run is told in the transaction that ends it, or, if it has ended
//!   before, in the one that registers the wait.
//! - A child that its parent started and still awaits is cancelled when the parent gives it up or
//!   is over, unless it was told to be left alone.

use super::{
    effects::waiter,
    runs,
    tables::{self, links, put_entry},
};
use crate::{
    commit::{
        Close, Commit, EffectDone, InboxKind, Outcome, Refusal, RunStatus, StartChild, Started,
        Target, answer,
    },
    run_id::{RunId, RunNo},
    store::{
        Finished,
        rows::{ChildRow, ChildTables, Of, Waiter},
    },
};

/// Starts a child, and writes into the history of its parent which one it is.
pub(crate) fn start_child<T: ChildTables>(
    tables: &mut T,
    commit: &Commit,
    start: &StartChild,
) -> Result<Option<EffectDone>, T::Error> {
    let parent = waiter(commit, &start.key);
    let mut new = start.new.clone();
    let started = loop {
        match runs::start(tables, &new)? {
            // A fresh id that is there already is another run's.
            Outcome::Started(started) if !(started.attached && started.id == new.id) => {
                break started;
            }
            // The run of its key has ended and was deleted: there is nothing to start or to wait for.
            Outcome::Refused(Refusal::KeyUsed { run, .. }) => {
                break Started {
                    id: run,
                    attached: true,
                    input_differs: false,
                    claimed: false,
                    available_at: None,
                };
            }
            // Another run has the same number: the next one is free before long.
            _ => new.id = new.id.following(),
        }
    };
    let flags = u8::from(started.attached) | u8::from(started.input_differs) << 1;
    let mut value = start.entry.clone();
    value.extend_from_slice(started.id.as_uuid().as_bytes());
    value.push(flags);
    put_entry(tables, &parent, value)?;
    if started.attached {
        if start.awaited {
            watch(tables, started.id, &parent)?;
        }
    } else {
        adopt(tables, started.id, &parent, start)?;
        tables::notice_start(tables, &started, new);
    }
    Ok((!start.awaited).then_some(EffectDone::Started(started)))
}

/// Writes down whose child a run is that was just made. It cannot have ended, so that is not asked.
fn adopt<T: ChildTables>(
    tables: &mut T,
    child: RunId,
    parent: &Waiter,
    start: &StartChild,
) -> Result<(), T::Error> {
    let (run, awaited) = (child.no(), start.awaited);
    tables.put_child(&ChildRow { run, parent: parent.clone(), close: start.close, awaited })?;
    let (of_child, of_parent) = match awaited {
        true => (links::CHILD | links::WATCHED, links::CHILDREN | links::WATCHES),
        false => (links::CHILD, links::CHILDREN),
    };
    tables::link(tables, run, of_child)?;
    if tables::link(tables, parent.run, of_parent)? && awaited {
        tables.add_watcher(run, parent)?;
    }
    Ok(())
}

/// Registers a wait for the end of a run, or answers it at once.
pub(crate) fn watch_target<T: ChildTables>(
    tables: &mut T,
    waiter: &Waiter,
    target: &Target,
    entry: &[u8],
) -> Result<(), T::Error> {
    match tables::find(tables, target)? {
        Some(head) => {
            let value = [entry, head.id.as_uuid().as_bytes(), &[0]].concat();
            put_entry(tables, waiter, value)?;
            watch(tables, head.id, waiter)
        }
        None => {
            // It is waited for no more than for a moment, but a run that has answers has links.
            tables::link(tables, waiter.run, links::WATCHES)?;
            unknown(tables, RunId::nobody(), waiter)
        }
    }
}

fn unknown<T: ChildTables>(tables: &mut T, run: RunId, waiter: &Waiter) -> Result<(), T::Error> {
    let body = [&run.as_uuid().as_bytes()[..], &answer::unknown()].concat();
    tables::answer(tables, waiter, InboxKind::RunEnded, "", body).map(drop)
}

fn watch<T: ChildTables>(tables: &mut T, run: RunId, waiter: &Waiter) -> Result<(), T::Error> {
    if !tables::link(tables, waiter.run, links::WATCHES)? {
        return Ok(());
    }
    if let Some(finished) = tables.ended(run.no())? {
        return tell(tables, run, waiter, &finished);
    }
    if !tables::link(tables, run.no(), links::WATCHED)? {
        // It was deleted.
        return unknown(tables, run, waiter);
    }
    tables.add_watcher(run.no(), waiter)
}

fn tell<T: ChildTables>(
    tables: &mut T,
    run: RunId,
    waiter: &Waiter,
    finished: &Finished,
) -> Result<(), T::Error> {
    let answer = match (finished.status, &finished.error) {
        (RunStatus::Completed, _) => answer::value(finished.output.as_deref().unwrap_or_default()),
        (RunStatus::Failed, Some(error)) => answer::failure(error),
        _ => answer::cancelled(),
    };
    let body = [&run.as_uuid().as_bytes()[..], &answer].concat();
    tables::answer(tables, waiter, InboxKind::RunEnded, "", body).map(drop)
}

/// An operation does not wait for the end of a run any more. A child of it is cancelled, if it is
/// not to be left alone.
pub(crate) fn abandon<T: ChildTables>(tables: &mut T, waiter: &Waiter) -> Result<(), T::Error> {
    tables.remove_watches(Of::Operation(waiter))?;
    let children = tables.children(waiter.run)?;
    let given_up = children.into_iter().filter(|child| child.parent == *waiter);
    for child in given_up {
        let rollback = true;
        cancel(tables, child, rollback)?;
    }
    Ok(())
}

fn cancel<T: ChildTables>(tables: &mut T, child: ChildRow, rollback: bool) -> Result<(), T::Error> {
    if child.close == Close::Cancel {
        return tables::cancel(tables, child.run, rollback);
    }
    // It may have ended since its row was read: a run that has ended has no row of a child.
    match tables.head(child.run)? {
        Some(head) if !head.status.is_terminal() => {
            tables.put_child(&ChildRow { awaited: false, ..child })
        }
        _ => Ok(()),
    }
}

/// The code of a parent is over: children that it awaits are cancelled, at its end all that are not
/// to be left alone.
pub(crate) fn parent_over<T: ChildTables>(
    tables: &mut T,
    parent: RunNo,
    over: super::effects::Over,
) -> Result<(), T::Error> {
    for child in tables.children(parent)? {
        if child.awaited || over.ended.is_some() {
            cancel(tables, child, over.compensates)?;
        }
    }
    tables.remove_watches(Of::Run(parent))
}

/// A run has ended: whoever waits for that is told.
pub(crate) fn run_ended<T: ChildTables>(tables: &mut T, run: RunId) -> Result<(), T::Error> {
    tables.remove_child(run.no())?;
    let Some(finished) = tables.ended(run.no())? else {
        return Ok(());
    };
    for waiter in tables.take_watchers(run.no())? {
        tell(tables, run, &waiter, &finished)?;
    }
    Ok(())
}
