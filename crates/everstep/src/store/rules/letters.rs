//! Dead letters, and what becomes of a message to a run that has ended.

use super::{Head, events, events::EventTables, is_dead_letter, message, undeliverable};
use crate::{
    commit::{
        DeadLetter, Delivered, Delivery, LetterDone, LetterWrite, Notice, OnEnd, Receipt, ReplayTo,
        Target,
    },
    run_id::RunNo,
};

/// The rows of messages and dead letters, within one batch.
pub(crate) trait LetterTables: EventTables {
    /// Delivers a message to a run.
    fn deliver(&mut self, delivery: &Delivery) -> Result<Delivered, Self::Error>;

    /// Notes that a message with this dedupe key has come to a run.
    fn note_dedupe(&mut self, run: RunNo, key: &str) -> Result<(), Self::Error>;

    /// Makes a message a dead letter. `run` is the one that it was for, if there is one.
    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), Self::Error>;

    /// A dead letter by its number.
    fn letter(&mut self, no: u64) -> Result<Option<DeadLetter>, Self::Error>;

    /// Removes a dead letter; `false` if there is none.
    fn remove_letter(&mut self, no: u64) -> Result<bool, Self::Error>;
}

/// What becomes of a message to a run that has ended, as its sender wished.
pub(crate) fn after_the_end<T: LetterTables>(
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
pub(crate) fn send<T: LetterTables>(
    tables: &mut T,
    delivery: &Delivery,
) -> Result<Delivered, T::Error> {
    let delivered = tables.deliver(delivery)?;
    if is_dead_letter(delivered.receipt) {
        let run = delivered.run.map(|id| id.no());
        tables.bury(run, delivery, undeliverable(delivered.receipt))?;
    }
    Ok(delivered)
}

/// Does what a client wishes with dead letters.
pub(crate) fn apply<T: LetterTables>(
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

fn replay<T: LetterTables>(
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
    let delivered = tables.deliver(&delivery)?;
    if let (Receipt::Delivered, Some(run), Some(seq)) =
        (delivered.receipt, delivered.run, delivered.seq)
    {
        tables.remove_letter(no)?;
        let row = Box::new(message(&delivery, seq, tables.now()));
        tables.notice(Notice::Inbox { run, row });
    }
    Ok(LetterDone::Delivered(delivered))
}
