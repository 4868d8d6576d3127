//! The rules of work queues: who gets an item, when it is tried again, and who is told of its end.
//!
//! ```text
//!            ┌── delay ends ── delayed ◀── retry ──┐
//!            ▼                                     │
//! enqueue ▶ ready ──── claim ────▶ claimed ── settle ──▶ done (kept for a while), or removed
//!            ▲                        │            └───▶ dead (failed, and no workflow was told)
//!            └── visibility ends ─────┘                    │
//!            └──────────────────── replay ─────────────────┘
//! ```
//!
//! Always true:
//! - An item is under one claim at a time; whoever settles or prolongs another claim is refused.
//! - An operation that waits for an item is told once: its wait is removed in the transaction that
//!   puts the answer into its inbox.
//! - Under a limit, an item has a place exactly while it is claimed: it takes it in the transaction of
//!   the claim, and gives it back in the one that ends the claim in whatever way.
//! - Time moves items only when somebody claims, so nothing has to be swept while nobody works.

use std::time::Duration;

use uuid::Uuid;

use super::{
    limits,
    tables::{self, links, put_entry},
};
use crate::{
    commit::{ItemId, answer, *},
    error::{Failure, FailureKind, encode_failure},
    store::rows::{HOLDERS, ItemHead, ItemNews, ItemWait, Of, QueueTables, Waiter, WaitsOf},
};

/// How many items of each kind are moved by time with one claim: more wait for the next, which is
/// asked for at once.
const SWEEP: usize = 500;

/// Carries out a write to a queue.
pub(crate) fn write<T: QueueTables>(
    tables: &mut T,
    write: &QueueWrite,
) -> Result<QueueDone, T::Error> {
    Ok(match write {
        QueueWrite::Enqueue(new) => QueueDone::Enqueued(enqueue(tables, new)?),
        QueueWrite::Claim(wanted) => QueueDone::Claimed(claim(tables, wanted)?),
        QueueWrite::Extend(claims) => {
            let held = claims.iter().map(|claim| extend(tables, claim));
            QueueDone::Extended(held.collect::<Result<_, _>>()?)
        }
        QueueWrite::Settle(settled) => QueueDone::Settled(settle(tables, settled)?),
        QueueWrite::Revoke => {
            revoke(tables)?;
            QueueDone::Revoked
        }
        QueueWrite::Control(item, control) => {
            QueueDone::Controlled(self::control(tables, *item, *control)?)
        }
    })
}

fn enqueue<T: QueueTables>(tables: &mut T, new: &NewItem) -> Result<Enqueued, T::Error> {
    let now = tables.now();
    if let Some(key) = &new.dedupe
        && let Some(item) = tables.item_by_dedupe(&new.queue, key)?
    {
        let found = tables.item(item)?;
        let is_over = |head: &ItemHead| head.state == ItemState::Done && head.at <= now;
        if !found.as_ref().is_some_and(is_over) {
            let attached = true;
            return Ok(Enqueued { item, attached });
        }
        // It was kept long enough; only nobody has swept it.
        tables.delete_item(item)?;
    }
    let (state, at) = match new.available_at {
        Some(at) if at > now => (ItemState::Delayed, at),
        _ => (ItemState::Ready, now),
    };
    let item = tables.insert_item(new, state, at)?;
    let queue = new.queue.clone();
    tables.notices().push(Notice::Queue { queue });
    let attached = false;
    Ok(Enqueued { item, attached })
}

/// An operation puts an item in and waits for it. Nothing happens if its run has ended.
pub(crate) fn enqueue_and_wait<T: QueueTables>(
    tables: &mut T,
    new: &NewItem,
    waiter: Waiter,
    leave: bool,
) -> Result<(), T::Error> {
    if !tables::link(tables, waiter.run, links::QUEUES)? {
        return Ok(());
    }
    let Enqueued { item, attached } = enqueue(tables, new)?;
    if attached
        && let Some(head) = tables.item(item)?
        && head.state == ItemState::Done
    {
        let body = tables.item_answer(item)?.unwrap_or_else(answer::unknown);
        let kind = InboxKind::QueueResult;
        tables::answer(tables, &waiter, kind, &new.queue, body)?;
        return Ok(());
    }
    let cancels = !attached && !leave;
    tables.put_wait(&ItemWait { waiter, item, cancels })
}

/// An operation puts an item in and goes on; its entry is written with the number of the item.
pub(crate) fn enqueue_and_record<T: QueueTables>(
    tables: &mut T,
    new: &NewItem,
    owner: &Waiter,
    prefix: &[u8],
) -> Result<Enqueued, T::Error> {
    let enqueued = enqueue(tables, new)?;
    let value = [prefix, &enqueued.item.0.to_le_bytes()].concat();
    put_entry(tables, owner, value)?;
    Ok(enqueued)
}

fn claim<T: QueueTables>(tables: &mut T, wanted: &ClaimItems) -> Result<Claimed, T::Error> {
    let swept_all = sweep(tables, &wanted.queue, wanted.attempts_max)?;
    let now = tables.now();
    let mut items = Vec::new();
    let mut room_at = None;
    for ready in tables.ready_items(&wanted.queue, wanted.max)? {
        let mut head = ready.head;
        if let Some(limit) = &wanted.limit
            && let limits::Claimed::Later(at) = limits::claim(tables, limit, &holder(head.id))?
        {
            room_at = Some(at.unwrap_or(now + ROOM_POLL));
            break;
        }
        head.state = ItemState::Claimed;
        head.at = now + wanted.visibility;
        head.claim = Some(wanted.claim);
        head.attempts += 1;
        tables.write_item(&head, ItemNews::default())?;
        items.push(ClaimedItem {
            item: head.id,
            attempt: head.attempts,
            payload: ready.payload,
            trace: ready.trace,
            created_at: head.created_at,
            until: head.at,
        });
    }
    let delayed = tables.first_time(&wanted.queue, ItemState::Delayed)?;
    let claimed = tables.first_time(&wanted.queue, ItemState::Claimed)?;
    Ok(Claimed {
        more: items.len() == wanted.max || !swept_all,
        items,
        next_at: [delayed, claimed, room_at].into_iter().flatten().min(),
    })
}

/// How soon a worker asks again when others have all places under the limit of its queue. Items that
/// give theirs back are heard of at once; a step or a run that does knows nothing of queues.
const ROOM_POLL: Duration = Duration::from_secs(1);

/// Who has the place of an item. The key is its number in decimal digits, which SQL can read.
fn holder(item: ItemId) -> Waiter {
    Waiter { run: HOLDERS, generation: 0, key: item.to_string().into_bytes() }
}

/// Takes the places of items whose claims have run out. Those items are still to be counted as lost
/// by the next worker, which knows how many attempts there are; but their claims hold no more.
fn revoke<T: QueueTables>(tables: &mut T) -> Result<(), T::Error> {
    let now = tables.now();
    for place in tables.places(Of::Run(HOLDERS))? {
        let head = match place.of.item() {
            Some(item) => tables.item(item)?,
            None => None,
        };
        let Some(mut head) = head else {
            debug_assert!(false, "an item gives its place back before it goes");
            limits::release(tables, &place.of)?;
            continue;
        };
        if head.at <= now {
            head.claim = None;
            tables.write_item(&head, ItemNews::default())?;
            give_back(tables, &head)?;
        }
    }
    Ok(())
}

/// An item is claimed no more: it gives back its place, if it was under a limit.
fn give_back<T: QueueTables>(tables: &mut T, head: &ItemHead) -> Result<(), T::Error> {
    let holder = holder(head.id);
    if limits::place_of(tables, &holder)?.is_none() {
        return Ok(());
    }
    limits::release(tables, &holder)?;
    // Another item may have room now.
    let queue = head.queue.clone();
    tables.notices().push(Notice::Queue { queue });
    Ok(())
}

/// Moves what time has moved; whether that was all.
fn sweep<T: QueueTables>(tables: &mut T, queue: &str, attempts_max: u32) -> Result<bool, T::Error> {
    let now = tables.now();
    let due = tables.timed_items(queue, ItemState::Delayed, now, SWEEP)?;
    let lost = tables.timed_items(queue, ItemState::Claimed, now, SWEEP)?;
    let over = tables.timed_items(queue, ItemState::Done, now, SWEEP)?;
    let all = due.len() < SWEEP && lost.len() < SWEEP;
    for mut head in due {
        head.state = ItemState::Ready;
        tables.write_item(&head, ItemNews::default())?;
    }
    for head in lost {
        lose(tables, head, attempts_max)?;
    }
    for head in over {
        tables.delete_item(head.id)?;
    }
    Ok(all)
}

/// A worker has not given a sign of life for too long.
fn lose<T: QueueTables>(
    tables: &mut T,
    mut head: ItemHead,
    attempts_max: u32,
) -> Result<(), T::Error> {
    give_back(tables, &head)?;
    let text = format!(
        "the worker that had item {} of queue `{}` in attempt {} was lost: it gave no sign of life \
         for as long as the queue's visibility",
        head.id, head.queue, head.attempts
    );
    let mut failure = Failure::new(FailureKind::Error, text);
    failure.attempts = head.attempts;
    if head.attempts >= attempts_max {
        failure.kind = FailureKind::Exhausted;
        return fail(tables, head, &encode_failure(&failure));
    }
    (head.state, head.claim, head.at) = (ItemState::Ready, None, tables.now());
    let error = encode_failure(&failure);
    let error = Some(error.as_slice());
    let answer = None;
    tables.write_item(&head, ItemNews { error, answer })
}

/// The item, if it is under this claim.
fn held<T: QueueTables>(
    tables: &mut T,
    item: ItemId,
    claim: Uuid,
) -> Result<Option<ItemHead>, T::Error> {
    let head = tables.item(item)?;
    Ok(head.filter(|head| head.state == ItemState::Claimed && head.claim == Some(claim)))
}

fn extend<T: QueueTables>(tables: &mut T, wanted: &Extend) -> Result<bool, T::Error> {
    let Some(mut head) = held(tables, wanted.item, wanted.claim)? else {
        return Ok(false);
    };
    if wanted.until != head.at {
        // It may go back, as the clock of its worker does that was ahead when the item was claimed.
        head.at = wanted.until;
        tables.write_item(&head, ItemNews::default())?;
    }
    Ok(true)
}

fn settle<T: QueueTables>(tables: &mut T, settled: &Settle) -> Result<bool, T::Error> {
    let Some(mut head) = held(tables, settled.item, settled.claim)? else {
        return Ok(false);
    };
    give_back(tables, &head)?;
    let now = tables.now();
    match &settled.settlement {
        Settlement::Done(payload) => {
            let body = answer::value(payload);
            tell(tables, &head, &body)?;
            keep(tables, head, &body)?;
        }
        Settlement::Failed(error) => fail(tables, head, error)?,
        Settlement::Retry { at, error } => {
            (head.claim, head.at) = (None, *at.max(&now));
            head.state = if *at > now { ItemState::Delayed } else { ItemState::Ready };
            let error = Some(error.as_slice());
            let answer = None;
            tables.write_item(&head, ItemNews { error, answer })?;
            let queue = head.queue;
            tables.notices().push(Notice::Queue { queue });
        }
        Settlement::Release => {
            (head.state, head.claim, head.at) = (ItemState::Ready, None, now);
            head.attempts = head.attempts.saturating_sub(1);
            tables.write_item(&head, ItemNews::default())?;
            let queue = head.queue;
            tables.notices().push(Notice::Queue { queue });
        }
    }
    Ok(true)
}

/// Tells those who wait for the item how it ended; whether there was anybody.
fn tell<T: QueueTables>(tables: &mut T, head: &ItemHead, body: &[u8]) -> Result<bool, T::Error> {
    let mut told = false;
    for wait in tables.take_waits(WaitsOf::Item(head.id))? {
        let kind = InboxKind::QueueResult;
        told |= tables::answer(tables, &wait.waiter, kind, &head.queue, body.to_vec())?;
    }
    Ok(told)
}

/// Keeps the answer for as long as the item says.
fn keep<T: QueueTables>(tables: &mut T, mut head: ItemHead, body: &[u8]) -> Result<(), T::Error> {
    if head.keep.is_zero() {
        return tables.delete_item(head.id);
    }
    (head.state, head.claim) = (ItemState::Done, None);
    head.at = tables.now() + head.keep;
    let answer = Some(body);
    let error = None;
    tables.write_item(&head, ItemNews { error, answer })?;
    tables.notices().push(Notice::ItemEnded { item: head.id, answer: body.to_vec() });
    Ok(())
}

/// The item has failed for good: a workflow is told, or it becomes a dead letter.
fn fail<T: QueueTables>(tables: &mut T, mut head: ItemHead, error: &[u8]) -> Result<(), T::Error> {
    tables.free_dedupe(head.id)?;
    let body = answer::failure(error);
    if tell(tables, &head, &body)? {
        return keep(tables, head, &body);
    }
    (head.state, head.claim, head.at) = (ItemState::Dead, None, tables.now());
    let news = ItemNews { error: Some(error), answer: Some(&body) };
    tables.write_item(&head, news)?;
    tables.notices().push(Notice::ItemEnded { item: head.id, answer: body });
    Ok(())
}

fn control<T: QueueTables>(
    tables: &mut T,
    item: ItemId,
    control: ItemControl,
) -> Result<ItemControlled, T::Error> {
    let Some(mut head) = tables.item(item)? else {
        return Ok(ItemControlled::Unknown);
    };
    match (control, head.state) {
        (ItemControl::Cancel, ItemState::Ready | ItemState::Delayed) => {
            tell(tables, &head, &answer::cancelled())?;
            cancel(tables, head)?;
        }
        (ItemControl::Replay, ItemState::Dead) => {
            (head.state, head.at, head.attempts) = (ItemState::Ready, tables.now(), 0);
            tables.write_item(&head, ItemNews::default())?;
            let queue = head.queue;
            tables.notices().push(Notice::Queue { queue });
        }
        (ItemControl::Drop, ItemState::Dead) => tables.delete_item(item)?,
        (_, state) => return Ok(ItemControlled::Refused(state)),
    }
    Ok(ItemControlled::Done)
}

/// Takes an unclaimed item out.
fn cancel<T: QueueTables>(tables: &mut T, head: ItemHead) -> Result<(), T::Error> {
    tables.free_dedupe(head.id)?;
    keep(tables, head, &answer::cancelled())
}

/// An operation, or a run whose code is over, does not wait for items any more: an item goes too, if
/// nobody has claimed it and nobody else waits for it.
pub(crate) fn abandon<T: QueueTables>(tables: &mut T, of: Of<'_>) -> Result<(), T::Error> {
    for wait in tables.take_waits(WaitsOf::Of(of))? {
        if !wait.cancels || tables.is_waited_for(wait.item)? {
            continue;
        }
        match tables.item(wait.item)? {
            Some(head) if matches!(head.state, ItemState::Ready | ItemState::Delayed) => {
                cancel(tables, head)?;
            }
            _ => {}
        }
    }
    Ok(())
}
