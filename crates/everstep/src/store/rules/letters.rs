//! Dead letters, and what becomes of a message to a run that has ended.

use super::{
    deliver as next_seq, events, is_dead_letter, message, refuse_message,
    tables::{find, link, links},
    undeliverable,
};
use crate::{
    commit::{
        Delivered, Delivery, LetterDone, LetterWrite, Notice, OnEnd, Receipt, ReplayTo, Target,
    },
    store::rows::{EventTables, Head, RunChange},
};

/// Delivers a message to a run.
pub(crate) fn deliver<T: EventTables>(
    tables: &mut T,
    delivery: &Delivery,
) -> Result<Delivered, T::Error> {
    let Some(mut head) = find(tables, &delivery.target)? else {
        return Ok(Delivered { receipt: Receipt::Unknown, run: None, seq: None });
    };
    let (id, run, now) = (head.id, head.id.no(), tables.now());
    if let Some(receipt) = refuse(tables, &head, delivery)? {
        let receipt = match receipt {
            Receipt::Finished => after_the_end(tables, &head, delivery)?,
            receipt => receipt,
        };
        return Ok(Delivered { receipt, run: Some(id), seq: None });
    }
    let seq = next_seq(&mut head, now);
    let row = message(delivery, seq, now);
    tables.insert_inbox(run, &row)?;
    tables.write_run(&head, RunChange::Inbox)?;
    if row.on_end.is_some() {
        link(tables, run, links::EVENTS)?;
    }
    if let Some(key) = &delivery.dedupe {
        tables.note_dedupe(run, key)?;
    }
    if let Some(request) = delivery.request {
        tables.open_request(request, run)?;
    }
    Ok(Delivered { receipt: Receipt::Delivered, run: Some(id), seq: Some(seq) })
}

/// Why a message is not put into the inbox; nothing if it is.
fn refuse<T: EventTables>(
    tables: &mut T,
    head: &Head,
    delivery: &Delivery,
) -> Result<Option<Receipt>, T::Error> {
    let run = head.id.no();
    if let Some(key) = &delivery.dedupe
        && tables.has_dedupe(run, key)?
    {
        return Ok(Some(Receipt::Duplicate));
    }
    // There cannot be more unread messages than there were messages.
    let unread = match head.inbox_seq < delivery.inbox_max {
        true => 0,
        false => tables.count_inbox(run, delivery.inbox_max)?,
    };
    Ok(refuse_message(head, unread, delivery))
}

/// What becomes of a message to a run that has ended, as its sender wished.
fn after_the_end<T: EventTables>(
    tables: &mut T,
    head: &Head,
    delivery: &Delivery,
) -> Result<Receipt, T::Error> {
    let run = head.id.no();
    let receipt = match &delivery.on_end {
        OnEnd::Error => return Ok(Receipt::Finished),
        OnEnd::DeadLetter => {
            tables.bury(Some(run), delivery, undeliverable(Receipt::Finished))?;
            Receipt::DeadLettered
        }
        OnEnd::Publish(fallback) => {
            events::publish(tables, &fallback.publication(delivery.body.clone()))?;
            Receipt::Published
        }
    };
    // A second one is a duplicate, as if the run were there.
    if let Some(key) = &delivery.dedupe {
        tables.note_dedupe(run, key)?;
    }
    Ok(receipt)
}

/// Delivers what a workflow sends; what cannot be delivered is a dead letter.
pub(crate) fn send<T: EventTables>(
    tables: &mut T,
    delivery: &Delivery,
) -> Result<Delivered, T::Error> {
    let delivered = deliver(tables, delivery)?;
    if is_dead_letter(delivered.receipt) {
        let run = delivered.run.map(|id| id.no());
        tables.bury(run, delivery, undeliverable(delivered.receipt))?;
    }
    Ok(delivered)
}

/// Does what a client wishes with dead letters.
pub(crate) fn apply<T: EventTables>(
    tables: &mut T,
    write: &LetterWrite,
) -> Result<LetterDone, T::Error> {
    match write {
        LetterWrite::Drop(nos) => {
            let mut dropped = 0;
            for no in nos {
                dropped += u64::from(tables.remove_letter(*no)?);
            }
            Ok(LetterDone::Dropped(dropped))
        }
        LetterWrite::Replay { no, to, inbox_max } => replay(tables, *no, to, *inbox_max),
    }
}

fn replay<T: EventTables>(
    tables: &mut T,
    no: u64,
    to: &ReplayTo,
    inbox_max: u64,
) -> Result<LetterDone, T::Error> {
    let Some(letter) = tables.letter(no)? else {
        return Ok(LetterDone::Unknown);
    };
    let target = match to {
        ReplayTo::Event(fallback) => {
            tables.remove_letter(no)?;
            let published = events::publish(tables, &fallback.publication(letter.body))?;
            return Ok(LetterDone::Published(published));
        }
        ReplayTo::Run(target) => Some(target.clone()),
        ReplayTo::Same => letter.run_id.map(Target::Id).or(letter.target),
    };
    let Some(target) = target else {
        return Ok(LetterDone::Delivered(Delivered {
            receipt: Receipt::Unknown,
            run: None,
            seq: None,
        }));
    };
    let delivery = Delivery {
        target,
        name: letter.name,
        body: letter.body,
        dedupe: None,
        request: None,
        inbox_max,
        on_end: OnEnd::Error,
    };
    let delivered = deliver(tables, &delivery)?;
    if let (Receipt::Delivered, Some(run), Some(seq)) =
        (delivered.receipt, delivered.run, delivered.seq)
    {
        tables.remove_letter(no)?;
        let row = Box::new(message(&delivery, seq, tables.now()));
        tables.notices().push(Notice::Inbox { run, row });
    }
    Ok(LetterDone::Delivered(delivered))
}
