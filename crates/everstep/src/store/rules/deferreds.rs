//! Deferreds: values that come from outside for one place of a run, before, during or after its
//! wait.
//!
//! Always true:
//! - The first value of a deferred is kept until the run can no longer ask for it, and never
//!   changes; who comes second is told.
//! - Whoever waits is answered in the transaction that brings the value, or, if it is there already,
//!   in the one that registers the wait.

use super::{
    effects::Over,
    tables::{self, links},
};
use crate::{
    commit::{DeferredWait, InboxKind, Resolution, RunStatus, Settled, answer},
    store::rows::{DeferredId, DeferredTables, Head, InboxTables, Of, SettledRow, Waiter},
};

/// Brings a value, if it is the first.
pub(crate) fn settle<T: DeferredTables>(
    tables: &mut T,
    resolution: &Resolution,
) -> Result<Settled, T::Error> {
    let target = crate::commit::Target::Id(resolution.run);
    let Some(head) = tables::find(tables, &target)? else {
        return Ok(Settled::Unknown);
    };
    let generation = resolution.generation.unwrap_or(head.generation);
    if let Some(refusal) = refuse(&head, generation) {
        return Ok(refusal);
    }
    let place = DeferredId { run: head.id.no(), generation, tag: resolution.tag };
    if let Some(SettledRow { at, .. }) = tables.settled(&place)? {
        return Ok(Settled::Already { at });
    }
    let row = SettledRow { body: resolution.body.clone(), at: tables.now() };
    tables.put_settled(&place, &row)?;
    tables::link(tables, place.run, links::DEFERREDS)?;
    for key in tables.take_deferred_waits(&place)? {
        let DeferredId { run, generation, .. } = place;
        hand_over(tables, &Waiter { run, generation, key }, row.body.clone())?;
    }
    Ok(Settled::First)
}

/// Why nothing can be settled in this run any more.
fn refuse(head: &Head, generation: u32) -> Option<Settled> {
    // The code of a run that is rolled back does not go on either.
    let is_over = head.status.is_terminal() || head.ending.is_some();
    if is_over {
        let status = head.status;
        return Some(Settled::Finished { status });
    }
    let current = head.generation;
    (generation != current).then_some(Settled::OldGeneration { current })
}

/// Registers a wait, or answers it if the value is there. A look is answered in any case.
pub(crate) fn register<T: DeferredTables>(
    tables: &mut T,
    waiter: &Waiter,
    wait: &DeferredWait,
) -> Result<(), T::Error> {
    let place = DeferredId { run: waiter.run, generation: waiter.generation, tag: wait.tag };
    if !tables::link(tables, waiter.run, links::DEFERREDS)? {
        return Ok(());
    }
    match tables.settled(&place)? {
        Some(row) => hand_over(tables, waiter, row.body),
        None if wait.looks => hand_over(tables, waiter, answer::unknown()),
        None => tables.add_deferred_wait(&place, &waiter.key),
    }
}

fn hand_over<T: InboxTables>(tables: &mut T, to: &Waiter, body: Vec<u8>) -> Result<(), T::Error> {
    tables::answer(tables, to, InboxKind::Deferred, "", body).map(drop)
}

/// The code of a run is over: nobody waits any more, and what lay in its inbox for those who did is
/// gone. A run that failed may be tried again, and then asks for the same values; one that went on
/// as another generation does not. `head` is the row after that.
pub(crate) fn close<T: DeferredTables>(
    tables: &mut T,
    head: &Head,
    over: Over,
) -> Result<(), T::Error> {
    if head.links & links::DEFERREDS == 0 {
        return Ok(());
    }
    tables.remove_deferred_waits(Of::Run(head.id.no()))?;
    let first_kept = match over.ended {
        None | Some(RunStatus::Failed) => head.generation,
        Some(_) => head.generation + 1,
    };
    tables.remove_settled_before(head.id.no(), first_kept)
}
