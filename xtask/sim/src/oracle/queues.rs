//! The work queue: a handler runs only for who has the item, and no item is lost.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

use everstep::{
    ItemId, ItemState, Job,
    store::{ItemRow, Store},
};

use super::{
    Promise,
    ending::Judgement,
    ledger::{Ledger, Place, note},
};
use crate::work::queues::Task;

/// How often a handler was begun for an item, and what it gave.
#[derive(Clone, Debug, Default)]
pub(crate) struct Handled {
    pub(crate) begun: u32,
    pub(crate) values: Vec<u64>,
    /// The items that it was begun for.
    pub(crate) items: BTreeSet<ItemId>,
    /// The items whose handler is under way, with its attempt.
    under_way: Vec<(ItemId, u32)>,
}

/// An item that a client was told to be in the queue.
#[derive(Clone, Debug)]
pub(crate) struct ItemTold {
    pub(crate) place: Place,
    pub(crate) item: ItemId,
    /// What its worker was said to have given.
    pub(crate) value: Option<u64>,
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
        let handled = book.items.entry(handling.place.clone()).or_default();
        handled.begun += 1;
        handled.items.insert(item);
        // One that its worker has given back is begun again with the same number.
        let is_twice = handled.under_way.contains(&(item, attempt));
        handled.under_way.push((item, attempt));
        drop(book);
        if is_twice {
            let (place, process) = (&handling.place, &handling.process);
            let what = format!("attempt {attempt} of {place} starts twice, in {process}");
            handling.ledger.violate(Promise::ItemsAreDoneOnce, what);
        }
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

impl Drop for Handling {
    fn drop(&mut self) {
        let mut book = self.ledger.book();
        let of = (self.item, self.attempt);
        if let Some(handled) = book.items.get_mut(&self.place)
            && let Some(at) = handled.under_way.iter().position(|it| *it == of)
        {
            handled.under_way.swap_remove(at);
        }
    }
}

impl Judgement<'_> {
    /// The items of clients were worked on, equal dedupe keys are one item, and the results are what a
    /// handler has given.
    pub(super) fn check_items_of_clients(&self) {
        let told = self.ledger.book().items_told.clone();
        for ItemTold { place, item, value } in told {
            let handled = self.ledger.book().items.get(&place).cloned().unwrap_or_default();
            let dead = self.dead_items().iter().filter(|dead| **dead == place).count();
            let violate = |what: String| self.violate(Promise::ItemsAreDoneOnce, what);
            if handled.begun == 0 && dead == 0 {
                violate(format!("no worker has begun with item {item} of {place}"));
            }
            // One that is a dead letter does not count for the dedupe key any more.
            if handled.items.len() > 1 + dead {
                violate(format!("{} items have the key of {place}", handled.items.len()));
            }
            if let Some(value) = value
                && !handled.values.contains(&value)
            {
                violate(format!("item {item} of {place} was said to have given {value}"));
            }
        }
    }
}
