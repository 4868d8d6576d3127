//! The work queue: a handler runs only for who has the item, and no item is lost.

use std::{collections::BTreeMap, sync::Arc};

use everstep::{
    ItemId, ItemState, Job,
    store::{ItemRow, Store},
};

use super::{
    Promise,
    ledger::{Ledger, Place, note},
};
use crate::work::queues::Task;

/// How often a handler was begun for an item, and what it gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handled {
    pub(crate) begun: u32,
    pub(crate) values: Vec<u64>,
}

/// What handlers have done, by the operation that has put the item in.
pub(crate) type Items = BTreeMap<Place, Handled>;

/// A handler between its start and its end.
pub(crate) struct Handling {
    ledger: Arc<Ledger>,
    process: String,
    place: Place,
    item: ItemId,
    attempt: u32,
}

impl Handling {
    pub(crate) fn begin(ledger: Arc<Ledger>, process: String, job: &Job, task: &Task) -> Handling {
        let place = task.place();
        note(|| format!("{place}: the handler starts, attempt {}", job.attempt()));
        let (item, attempt) = (job.item(), job.attempt());
        let handling = Handling { ledger, process, place, item, attempt };
        handling.check("starts");
        let mut book = handling.ledger.book();
        book.items.entry(handling.place.clone()).or_default().begun += 1;
        drop(book);
        handling
    }

    /// The handler goes on after a wait, which it must not if another has the item.
    pub(crate) fn goes_on(&self) {
        self.check("goes on");
    }

    pub(crate) fn end(&self, value: u64) {
        note(|| format!("{}: the handler ends with {value}", self.place));
        let mut book = self.ledger.book();
        book.items.entry(self.place.clone()).or_default().values.push(value);
        book.given.entry(self.place.clone()).or_default().push(value);
    }

    /// The item is this worker's, in this attempt.
    fn check(&self, does: &str) {
        if !self.ledger.clocks_agree {
            // By a clock that is ahead, its claim has run out.
            return;
        }
        let row = self.ledger.data().and_then(|data| data.queue_item(self.item).ok().flatten());
        let is_its =
            |row: &ItemRow| row.state == ItemState::Claimed && row.attempts == self.attempt;
        if !row.as_ref().is_some_and(is_its) {
            let state = row.map(|row| (row.state, row.attempts));
            let (place, attempt, process) = (&self.place, self.attempt, &self.process);
            let what = format!(
                "the handler of {place} {does} in {process}, attempt {attempt}, and its item is {state:?}"
            );
            self.ledger.violate(Promise::ItemsAreDoneOnce, what);
        }
    }
}
