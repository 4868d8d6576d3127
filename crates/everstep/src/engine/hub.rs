//! Who waits for the end of a run, or for the answer to a request, in this process.
//!
//! Waiters are fed after the commit that holds what they wait for. In a client without an engine
//! nobody feeds them but a poll of the store.

use std::{collections::BTreeMap, sync::Arc};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::streams::Followers;
use crate::{
    commit::ItemId,
    hash::FastMap,
    run_id::{RunId, RunNo},
    seam::{Leaf, LeafGuard},
    store::{Answer, Finished, StoreError},
};

/// Who waits for the end of which run.
type Ends = FastMap<RunNo, Awaited>;
type EndSender = oneshot::Sender<Result<Finished, Arc<StoreError>>>;
type Requests = BTreeMap<Uuid, Asked>;
type AnswerSender = oneshot::Sender<Result<Answer, Arc<StoreError>>>;

/// The answer of an item; none if it is gone.
type ItemSender = oneshot::Sender<Result<Option<Vec<u8>>, Arc<StoreError>>>;

/// A run whose end is waited for.
struct Awaited {
    run: RunId,
    /// Whether it is in the store. Before that the store does not know it, which does not mean that
    /// it is gone.
    stored: bool,
    waiters: Vec<EndSender>,
}

/// Who waits for the answer to a request.
struct Asked {
    run: RunId,
    /// Whether it is in the store. Before that the store does not know it, which is no answer.
    delivered: bool,
    waiter: AnswerSender,
}

/// The waiters of one process.
#[derive(Default)]
pub(crate) struct Hub {
    // Sharded by run, so that thousands of waiters do not meet on one lock.
    ends: [Leaf<Ends>; 16],
    answers: Leaf<Requests>,
    items: Leaf<FastMap<ItemId, Vec<ItemSender>>>,
    /// Who follows streams and values.
    pub(crate) followers: Followers,
}

impl Hub {
    fn ends(&self, run: RunNo) -> LeafGuard<'_, Ends> {
        let part = crate::random::mix(run.0 as u64) as usize % self.ends.len();
        self.ends[part].lock()
    }

    fn answers(&self) -> LeafGuard<'_, Requests> {
        self.answers.lock()
    }

    /// Registers a waiter. Look into the store after this, not before: the run may have ended.
    pub(crate) fn await_end(
        &self,
        run: RunId,
    ) -> oneshot::Receiver<Result<Finished, Arc<StoreError>>> {
        self.register(run, true)
    }

    /// Registers a waiter for a run that is about to be started. The store is not asked for it
    /// before it is [`started`](Hub::started).
    pub(crate) fn await_end_of_new(
        &self,
        run: RunId,
    ) -> oneshot::Receiver<Result<Finished, Arc<StoreError>>> {
        self.register(run, false)
    }

    fn register(
        &self,
        run: RunId,
        stored: bool,
    ) -> oneshot::Receiver<Result<Finished, Arc<StoreError>>> {
        let (sender, receiver) = oneshot::channel();
        let no = run.no();
        let mut ends = self.ends(no);
        let awaited =
            ends.entry(no).or_insert_with(|| Awaited { run, stored, waiters: Vec::new() });
        awaited.waiters.push(sender);
        receiver
    }

    /// The run is in the store: from now on the store may be asked for its end.
    pub(crate) fn started(&self, run: RunId) {
        if let Some(awaited) = self.ends(run.no()).get_mut(&run.no()) {
            awaited.stored = true;
        }
    }

    pub(crate) fn await_answer(
        &self,
        run: RunId,
        request: Uuid,
    ) -> oneshot::Receiver<Result<Answer, Arc<StoreError>>> {
        let (sender, receiver) = oneshot::channel();
        let asked = Asked { run, delivered: false, waiter: sender };
        self.answers().insert(request, asked);
        receiver
    }

    /// Registers a waiter. Look into the store after this, not before: the item may have ended.
    pub(crate) fn await_item(
        &self,
        item: ItemId,
    ) -> oneshot::Receiver<Result<Option<Vec<u8>>, Arc<StoreError>>> {
        let (sender, receiver) = oneshot::channel();
        self.items().entry(item).or_default().push(sender);
        receiver
    }

    fn items(&self) -> LeafGuard<'_, FastMap<ItemId, Vec<ItemSender>>> {
        self.items.lock()
    }

    /// The item has ended, durably; or it is gone.
    pub(crate) fn item_ended(&self, item: ItemId, answer: Option<Vec<u8>>) {
        let waiters = self.items().remove(&item);
        for waiter in waiters.into_iter().flatten() {
            _ = waiter.send(Ok(answer.clone()));
        }
    }

    /// The items that somebody still waits for.
    pub(crate) fn waiting_items(&self) -> Vec<ItemId> {
        let mut items = self.items();
        items.retain(|_, waiters| {
            waiters.retain(|waiter| !waiter.is_closed());
            !waiters.is_empty()
        });
        items.keys().copied().collect()
    }

    /// The request is in the store: from now on the store may be asked for its answer.
    pub(crate) fn request_delivered(&self, request: Uuid) {
        if let Some(asked) = self.answers().get_mut(&request) {
            asked.delivered = true;
        }
    }

    /// Forgets waiters for this run that have gone: nobody may ever end it for them.
    pub(crate) fn forget_gone(&self, run: RunId) {
        let mut ends = self.ends(run.no());
        if let Some(awaited) = ends.get_mut(&run.no()) {
            awaited.waiters.retain(|waiter| !waiter.is_closed());
            if awaited.waiters.is_empty() {
                ends.remove(&run.no());
            }
        }
    }

    /// Forgets a request that was never made.
    pub(crate) fn forget_request(&self, request: Uuid) {
        self.answers().remove(&request);
    }

    /// The run has ended, durably.
    pub(crate) fn ended(&self, run: RunNo, finished: impl FnOnce() -> Finished) {
        self.ended_elsewhere(run, finished);
        let mut answers = self.answers();
        if answers.is_empty() {
            return;
        }
        let unanswered: Vec<Uuid> =
            answers.iter().filter(|(_, asked)| asked.run.no() == run).map(|(id, _)| *id).collect();
        for request in unanswered {
            if let Some(asked) = answers.remove(&request) {
                _ = asked.waiter.send(Ok(Answer::RunEnded));
            }
        }
    }

    /// The store was asked, and the run has ended. Requests to the run are not answered by that: one
    /// that is just being delivered may have its reply in the store, and was not asked for yet.
    pub(crate) fn ended_elsewhere(&self, run: RunNo, finished: impl FnOnce() -> Finished) {
        self.followers.notify(run);
        let waiters = self.ends(run).remove(&run);
        if let Some(awaited) = waiters {
            let finished = finished();
            for waiter in awaited.waiters {
                _ = waiter.send(Ok(finished.clone()));
            }
        }
    }

    /// The run was deleted: whoever still waits for it has to look for itself.
    pub(crate) fn gone(&self, run: RunNo) {
        let waiters = self.ends(run).remove(&run);
        drop(waiters);
    }

    /// The request was answered, durably.
    pub(crate) fn answered(&self, request: Uuid, answer: Answer) {
        let asked = self.answers().remove(&request);
        if let Some(asked) = asked {
            _ = asked.waiter.send(Ok(answer));
        }
    }

    /// The runs and requests that somebody still waits for; waiters that gave up are forgotten.
    pub(crate) fn waiting(&self) -> (Vec<RunId>, Vec<(Uuid, RunId)>) {
        let mut runs = Vec::new();
        for part in &self.ends {
            let mut part = part.lock();
            part.retain(|_, awaited| {
                awaited.waiters.retain(|waiter| !waiter.is_closed());
                !awaited.waiters.is_empty()
            });
            let stored = part.values().filter(|awaited| awaited.stored);
            runs.extend(stored.map(|awaited| awaited.run));
        }
        let mut answers = self.answers();
        answers.retain(|_, asked| !asked.waiter.is_closed());
        let delivered = answers.iter().filter(|(_, asked)| asked.delivered);
        let requests = delivered.map(|(request, asked)| (*request, asked.run));
        (runs, requests.collect())
    }

    /// Whether anybody waits for anything.
    pub(crate) fn is_waited_on(&self) -> bool {
        let (runs, requests) = self.waiting();
        !runs.is_empty()
            || !requests.is_empty()
            || !self.followers.waiting().is_empty()
            || !self.waiting_items().is_empty()
    }

    /// Nobody will be fed any more.
    pub(crate) fn stop(&self, error: &Arc<StoreError>) {
        self.followers.notify_all();
        for part in &self.ends {
            let waiters = std::mem::take(&mut *part.lock());
            for waiter in waiters.into_values().flat_map(|awaited| awaited.waiters) {
                _ = waiter.send(Err(error.clone()));
            }
        }
        let items = std::mem::take(&mut *self.items());
        for waiter in items.into_values().flatten() {
            _ = waiter.send(Err(error.clone()));
        }
        for asked in std::mem::take(&mut *self.answers()).into_values() {
            _ = asked.waiter.send(Err(error.clone()));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{run_id::RunIds, time::Timestamp};

    /// A request was delivered, answered and its run had ended before its sender was told that it was
    /// delivered. The poll of the store found the end, had not asked for the answer, and the sender was
    /// told that there is no reply.
    #[test]
    fn an_end_that_the_store_was_asked_for_answers_no_request_that_is_being_delivered() {
        let hub = Hub::default();
        let run = RunIds::new(1).next(Timestamp::from_millis(1_800_000_000_000));
        let request = Uuid::from_u128(1);
        let mut answer = hub.await_answer(run, request);
        hub.ended_elsewhere(run.no(), || unreachable!("nobody waits for the end"));
        assert!(answer.try_recv().is_err());
        hub.answered(request, Answer::Reply(vec![7]));
        let reply = answer.try_recv().expect("it is answered");
        assert_eq!(reply.expect("a reply"), Answer::Reply(vec![7]));
    }
}
