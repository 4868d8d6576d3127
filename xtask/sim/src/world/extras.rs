//! What clients do in some lives alone: requests, starts with the keys of children, queue items and
//! schedules.

use everstep::{
    ClientError, ItemError, ItemHandle, RunHandle,
    testing::simulation::{self},
};

use super::clients::Outside;
use crate::{
    oracle::{
        Promise,
        ledger::{Sending, note},
        queues::ItemTold,
    },
    work::{
        Order, PERFORM, PROGRAM_TAG,
        bodies::Done,
        key,
        keys::{Keyed, child_key},
        queues::ClientItem,
        schedules,
    },
};

impl Outside {
    /// Sends a request, and waits for the reply on a thread of its own.
    pub(super) fn request(&self, to: usize, channel: u32, message: &str) {
        let mut book = self.ledger.book();
        let index = book.sendings.len();
        book.sendings.push(Sending {
            to: key(to),
            program: Some(to),
            message: message.to_owned(),
            is_delivered: None,
        });
        drop(book);
        let (outside, message) = (self.clone(), message.to_owned());
        let wait = self.ledger.client_waits(&message);
        simulation::spawn("request", move || {
            let (to, name) = (key(to), format!("channel-{channel}"));
            let request = outside.client.request(("perform", to.as_str()), &name, &message);
            let reply: Result<String, ClientError> = simulation::block_on(request);
            note(|| format!("`{message}` is replied to: {reply:?}"));
            outside.ledger.client_goes_on(wait);
            let mut book = outside.ledger.book();
            match reply {
                Ok(reply) => {
                    book.sendings[index].is_delivered = Some(true);
                    book.replies.push((message, reply));
                }
                Err(ClientError::NoReply { .. }) => {
                    book.sendings[index].is_delivered = Some(true);
                }
                Err(ClientError::UnknownRun { .. } | ClientError::Finished { .. }) => {
                    book.sendings[index].is_delivered = Some(false);
                }
                Err(error) => {
                    drop(book);
                    outside.expect_store_error("a request", &error);
                }
            }
        });
    }

    /// Starts the run of a key that children have, too, or finds it.
    pub(super) fn start_keyed(&self, keyed: Keyed, origin: u64) {
        let order = keyed.order(origin);
        let version = order.find(&self.plan.programs).map_or(1, |program| program.version);
        let start = self.client.start(PERFORM.version(version), order).key(child_key(keyed.key));
        let started: Result<RunHandle<u64>, ClientError> = simulation::block_on(start);
        match started {
            Ok(run) => {
                self.ledger.key_is_of(keyed.key, run.id());
                self.ledger.is_started(run.id(), run.attached());
            }
            Err(ClientError::KeyUsed { run, .. }) if self.ledger.may_be_deleted(run) => {}
            Err(error) => self.expect_store_error("a start", &error),
        }
    }

    /// Puts an item into the queue, and waits for its result on a thread of its own.
    pub(super) fn enqueue(&self, item: &ClientItem) {
        let Some(queue) = self.plan.queue else {
            return;
        };
        for _ in 0..if item.dedupe { 5 } else { 1 } {
            match simulation::block_on(item.put(queue, &self.client)) {
                Ok(handle) => {
                    note(|| format!("item {} is that of {}", handle.id(), item.place()));
                    return self.await_item(item, handle);
                }
                Err(error) => self.expect_store_error("an item", &error),
            }
        }
    }

    fn await_item(&self, item: &ClientItem, handle: ItemHandle<Done>) {
        let told = ItemTold { place: item.place(), item: handle.id(), value: None };
        let mut book = self.ledger.book();
        let index = book.items_told.len();
        book.items_told.push(told);
        drop(book);
        let outside = self.clone();
        let wait = self.ledger.client_waits(&item.name);
        simulation::spawn("item", move || {
            loop {
                let result = simulation::block_on(handle.result());
                note(|| format!("the result of item {}: {result:?}", handle.id()));
                match result {
                    Ok(done) => {
                        let mut book = outside.ledger.book();
                        book.items_told[index].value = Some(done.value);
                    }
                    Err(ItemError::Client(error @ ClientError::Store(_))) => {
                        outside.expect_store_error("the result of an item", &error);
                        simulation::sleep(outside.plan.lease);
                        continue;
                    }
                    // It has failed for good.
                    Err(ItemError::Failed { .. }) => {}
                    Err(error) => {
                        let what = format!("the result of item {} is {error:?}", handle.id());
                        outside.ledger.violate(Promise::ItemsAreDoneOnce, what);
                    }
                }
                return outside.ledger.client_goes_on(wait);
            }
        });
    }

    /// Makes a schedule, if it is not there.
    pub(super) fn schedule(&self, number: usize) {
        let plan = self.plan.schedules[number];
        let version = self.plan.programs[plan.program].version;
        let order = Order::new(plan.program);
        for _ in 0..3 {
            let schedule =
                self.client.schedule(schedules::name(number), PERFORM.version(version), order);
            let schedule = schedule.every(plan.every).overlap(plan.overlap());
            let schedule = schedule.catch_up(plan.catch_up);
            match simulation::block_on(schedule.tag(PROGRAM_TAG, plan.program.to_string())) {
                Ok(handle) => {
                    let (is_new, is_replaced) = (handle.created(), handle.replaced());
                    note(|| format!("schedule {number} is made: {is_new}"));
                    return self.ledger.schedule_is_there(number, is_replaced);
                }
                Err(error) => self.expect_store_error("a schedule", &error),
            }
        }
    }
}
