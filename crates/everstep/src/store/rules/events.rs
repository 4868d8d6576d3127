//! Events: who gets which, and what becomes of those that nobody has taken.
//!
//! Everything about one event name is decided under its row ([`EventTables::event_name`] is the
//! first call of each function here), so publishing and waiting cannot miss each other; a store
//! with several writers locks that row.
//!
//! The life of a waiter:
//! 1. It *waits*, from the commit that recorded its operation.
//! 2. It is *given* an event: a row in the inbox of its run. It is given one at most.
//! 3. It has *taken* it ([`took`]), and is gone; or it is *released* ([`release`]: it lost a race,
//!    its time ran out, its run ended), and what it was given and has not taken goes back.
//!
//! Always true:
//! - An event of delivery `one` is with nobody or with one waiter. It is removed when that has taken
//!   it, and is offered to the next oldest waiter when that is released.
//! - A run sees a broadcast once for each key that it waits for, in the order of publishing: its
//!   cursor is moved when it takes one, and a wait is handed the first event after the cursor.
//! - Of the broadcasts of a name, one at a time is told around, oldest first. Whoever begins to wait
//!   meanwhile finds them in the table and is not told again, since it was given one.

use super::{
    effects::{self, Over},
    tables::{answer, link, links},
};
use crate::{
    commit::{
        Commit, Deliver, InboxKind, InboxRow, Publication, Published, RunStatus, SeenSince,
        Subscription, Tended, answer,
    },
    store::rows::{EventName, EventTables, EventWaiter, Head, InboxPart, Of, StoredEvent, Waiter},
};

/// How many waiters are told of a broadcast in one transaction.
pub(crate) const PAGE: usize = 1_000;

/// How many events are dropped at most to make room for one: more only after the limit was lowered.
const DROPS_MAX: u64 = 100;

/// How many waiters are looked at together for the oldest one that may have an event.
pub(crate) const LOOK: usize = 100;

/// Publishes an event: those who wait for it are told, or the first page of them.
pub(crate) fn publish<T: EventTables>(
    tables: &mut T,
    publication: &Publication,
) -> Result<Published, T::Error> {
    let name = &*publication.name;
    let mut row = tables.event_name(name)?.unwrap_or_default();
    let now = tables.now();
    let expires_at = now + publication.retain;
    if let Some(key) = &publication.dedupe
        && !tables.note_event_dedupe_if_free(name, key, expires_at)?
    {
        return Ok(Published::default());
    }
    row.last_seq += 1;
    let mut event = StoredEvent {
        seq: row.last_seq,
        key: publication.key.clone(),
        body: publication.body.clone(),
        published_at: now,
        expires_at,
        deliver: publication.deliver,
        given_to: None,
        told: None,
    };
    let mut published = Published { seq: Some(event.seq), ..Published::default() };
    match event.deliver {
        // It waits for its turn, or somebody would be told of it before those that came first.
        Deliver::Broadcast if tables.spreading(Some(name))?.is_some() => event.told = Some(0),
        Deliver::Broadcast => (published.told, event.told) = spread(tables, name, &event, PAGE)?,
        Deliver::One => {
            event.given_to = give_oldest(tables, name, &event)?;
            published.told = u64::from(event.given_to.is_some());
        }
    }
    tables.insert_event(name, &event)?;
    published.spreading = event.told.is_some();
    if event.given_to.is_none() {
        row.kept += 1;
        published.kept = true;
        published.dropped = make_room(tables, name, &mut row, publication.max_pending)?;
    }
    tables.write_event_name(name, &row)?;
    Ok(published)
}

/// Drops the oldest events until there are no more than `max`; how many.
fn make_room<T: EventTables>(
    tables: &mut T,
    name: &str,
    row: &mut EventName,
    max: u64,
) -> Result<u64, T::Error> {
    let mut dropped = 0;
    let now = tables.now();
    for _ in 0..DROPS_MAX {
        if row.kept <= max {
            break;
        }
        let Some(oldest) = tables.oldest_kept(name)? else {
            break;
        };
        tables.delete_event(name, oldest.seq)?;
        row.kept = row.kept.saturating_sub(1);
        // One whose time was over is not missed.
        dropped += u64::from(oldest.expires_at > now);
    }
    row.dropped += dropped;
    Ok(dropped)
}

/// Tells the next waiters of a broadcast: how many, and the last one if there may be more.
fn spread<T: EventTables>(
    tables: &mut T,
    name: &str,
    event: &StoredEvent,
    limit: usize,
) -> Result<(u64, Option<u64>), T::Error> {
    let page = waiters_for(tables, name, event, event.told.unwrap_or(0), limit)?;
    let mut told = 0;
    for waiter in &page {
        if waiter.after < event.seq && give(tables, waiter, event)? {
            told += 1;
        }
    }
    let is_full = page.len() == limit;
    let last = page.last().filter(|_| is_full).map(|waiter| waiter.no);
    Ok((told, last))
}

/// Those who wait for an event like this, in order of registration.
fn waiters_for<T: EventTables>(
    tables: &mut T,
    name: &str,
    event: &StoredEvent,
    after: u64,
    limit: usize,
) -> Result<Vec<EventWaiter>, T::Error> {
    let mut found = tables.waiters(name, None, after, limit)?;
    if let Some(key) = &event.key {
        found.extend(tables.waiters(name, Some(key), after, limit)?);
        found.sort_by_key(|waiter| waiter.no);
        found.truncate(limit);
    }
    Ok(found)
}

/// Gives an event to the oldest waiter that may have it; which.
fn give_oldest<T: EventTables>(
    tables: &mut T,
    name: &str,
    event: &StoredEvent,
) -> Result<Option<u64>, T::Error> {
    let mut after = 0;
    loop {
        let page = waiters_for(tables, name, event, after, LOOK)?;
        for waiter in &page {
            if waiter.floor < event.seq && give(tables, waiter, event)? {
                return Ok(Some(waiter.no));
            }
        }
        match page.last() {
            Some(last) if page.len() == LOOK => after = last.no,
            _ => return Ok(None),
        }
    }
}

/// Hands a waiter its event. One whose run is over is removed instead.
fn give<T: EventTables>(
    tables: &mut T,
    waiter: &EventWaiter,
    event: &StoredEvent,
) -> Result<bool, T::Error> {
    let body = answer::value(&event.body);
    let is_given = answer(tables, &waiter.waiter, InboxKind::Event, &waiter.name, body)?;
    if is_given {
        tables.write_given(waiter, event.seq)?;
    } else {
        tables.delete_waiter(waiter)?;
    }
    Ok(is_given)
}

/// An operation begins to wait. If there is an event for it, it is given that at once.
pub(crate) fn subscribe<T: EventTables>(
    tables: &mut T,
    commit: &Commit,
    subscription: &Subscription,
) -> Result<(), T::Error> {
    let name = &*subscription.name;
    let mut row = tables.event_name(name)?.unwrap_or_default();
    if !link(tables, commit.run, links::EVENTS)? {
        return Ok(());
    }
    row.last_waiter += 1;
    let matching = subscription.matching.as_deref();
    let cursor = tables.cursor(commit.run, name, matching)?;
    let floor = match subscription.since {
        SeenSince::Any => 0,
        SeenSince::At(at) => tables.last_event_before(name, at)?,
        SeenSince::Wait => row.last_seq,
    };
    let waiter = EventWaiter {
        name: name.to_owned(),
        no: row.last_waiter,
        matching: subscription.matching.clone(),
        waiter: effects::waiter(commit, &subscription.key),
        after: cursor.max(floor),
        floor,
        given: None,
    };
    tables.insert_waiter(&waiter)?;
    let one = tables.first_event(name, matching, Deliver::One, waiter.floor)?;
    let broadcast = tables.first_event(name, matching, Deliver::Broadcast, waiter.after)?;
    let first = one.into_iter().chain(broadcast).min_by_key(|it| it.seq);
    if let Some(mut event) = first
        && give(tables, &waiter, &event)?
        && event.deliver == Deliver::One
    {
        event.given_to = Some(waiter.no);
        tables.write_event(name, &event)?;
        row.kept = row.kept.saturating_sub(1);
    }
    tables.write_event_name(name, &row)
}

/// An operation has taken what it was given.
pub(crate) fn took<T: EventTables>(tables: &mut T, waiter: &Waiter) -> Result<(), T::Error> {
    let Some(found) = remove_waiter(tables, waiter)? else {
        return Ok(());
    };
    settle(tables, &found)
}

/// Removes the waiter of an operation, and gives it.
fn remove_waiter<T: EventTables>(
    tables: &mut T,
    waiter: &Waiter,
) -> Result<Option<EventWaiter>, T::Error> {
    let found = tables.waiters_of(Of::Operation(waiter))?.pop();
    if let Some(found) = &found {
        tables.delete_waiter(found)?;
    }
    Ok(found)
}

/// What a waiter was given has been taken.
fn settle<T: EventTables>(tables: &mut T, waiter: &EventWaiter) -> Result<(), T::Error> {
    let Some(seq) = waiter.given else {
        return Ok(());
    };
    let (name, run, matching) = (&waiter.name, waiter.waiter.run, waiter.matching.as_deref());
    match tables.stored_event(name, seq)? {
        Some(event) if event.deliver == Deliver::One => tables.delete_event(name, seq),
        // A broadcast, which may be gone by now.
        _ if tables.cursor(run, name, matching)? < seq => {
            tables.write_cursor(run, name, matching, seq)
        }
        _ => Ok(()),
    }
}

/// An operation waits no more. `untaken` is whether what it was given was still in the inbox.
pub(crate) fn release<T: EventTables>(
    tables: &mut T,
    waiter: &Waiter,
    untaken: bool,
) -> Result<(), T::Error> {
    let Some(found) = remove_waiter(tables, waiter)? else {
        return Ok(());
    };
    if untaken { give_back(tables, &found) } else { settle(tables, &found) }
}

/// What a waiter was given and has not taken goes to the next, or back to its place.
fn give_back<T: EventTables>(tables: &mut T, waiter: &EventWaiter) -> Result<(), T::Error> {
    let Some(seq) = waiter.given else {
        return Ok(());
    };
    let name = &*waiter.name;
    tables.event_name(name)?;
    match tables.stored_event(name, seq)? {
        Some(event) if event.deliver == Deliver::One => offer(tables, name, event),
        // The cursor of the run has not moved: its next wait is handed it again.
        _ => Ok(()),
    }
}

/// An event that was with a waiter goes to the next one, or back to its place.
fn offer<T: EventTables>(
    tables: &mut T,
    name: &str,
    mut event: StoredEvent,
) -> Result<(), T::Error> {
    event.given_to = match event.deliver {
        Deliver::One => give_oldest(tables, name, &event)?,
        Deliver::Broadcast => None,
    };
    tables.write_event(name, &event)?;
    if event.given_to.is_none() {
        let mut row = tables.event_name(name)?.unwrap_or_default();
        row.kept += 1;
        row.last_seq = row.last_seq.max(event.seq);
        tables.write_event_name(name, &row)?;
    }
    Ok(())
}

/// An event is with a waiter that is not there: it is offered to the others. `false` if there is no
/// such event.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn take_back<T: EventTables>(
    tables: &mut T,
    name: &str,
    seq: u64,
) -> Result<bool, T::Error> {
    tables.event_name(name)?;
    match tables.stored_event(name, seq)? {
        Some(event) if event.given_to.is_some() => offer(tables, name, event).map(|()| true),
        _ => Ok(false),
    }
}

/// The code of a run is over: it waits for nothing, and what it leaves unread may become events.
/// `untaken` is what lay in the inbox for its operations.
pub(crate) fn close<T: EventTables>(
    tables: &mut T,
    head: &Head,
    over: Over,
    untaken: &[InboxRow],
) -> Result<(), T::Error> {
    let run = head.id.no();
    let waiters = tables.waiters_of(Of::Run(run))?;
    // All of them first, or one would be handed what another of the same run gives back.
    for waiter in &waiters {
        tables.delete_waiter(waiter)?;
    }
    for waiter in &waiters {
        let key = &waiter.waiter.key;
        if untaken.iter().any(|row| row.wait.as_ref() == Some(key)) {
            give_back(tables, waiter)?;
        } else {
            settle(tables, waiter)?;
        }
    }
    let Some(ended) = over.ended else {
        return Ok(());
    };
    for row in tables.take_inbox(run, InboxPart::Fallbacks)? {
        if let Some(fallback) = row.on_end {
            publish(tables, &fallback.publication(row.body))?;
        }
    }
    // A failed run may be tried again, and then goes on where it was.
    if ended == RunStatus::Failed { Ok(()) } else { tables.delete_cursors(run) }
}

/// Tells the next page of waiters of the first broadcast that has any left; or, if none has,
/// removes what is kept no longer.
pub(crate) fn tend<T: EventTables>(tables: &mut T, limit: usize) -> Result<Tended, T::Error> {
    if let Some((name, seq)) = tables.spreading(None)? {
        tables.event_name(&name)?;
        let Some(mut event) = tables.stored_event(&name, seq)? else {
            return Ok(Tended::default());
        };
        let (done, told) = spread(tables, &name, &event, limit)?;
        event.told = told;
        tables.write_event(&name, &event)?;
        return Ok(Tended { done, more: true });
    }
    let expired = tables.expired_events(limit)?;
    for (name, seq) in &expired {
        let mut row = tables.event_name(name)?.unwrap_or_default();
        tables.delete_event(name, *seq)?;
        row.kept = row.kept.saturating_sub(1);
        tables.write_event_name(name, &row)?;
    }
    let keys = tables.delete_event_dedupes(limit)?;
    Ok(Tended {
        done: (expired.len() + keys) as u64,
        more: expired.len() == limit || keys == limit,
    })
}
