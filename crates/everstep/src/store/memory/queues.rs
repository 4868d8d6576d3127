//! The items of queues in memory, in the orders in which they are looked for.

use super::{
    rows::{HOLDERS, ItemHead, ItemNews, ItemWait, Of, QueueTables, ReadyItem, Waiter, WaitsOf},
    *,
};
use crate::ItemId;

#[derive(Clone, Default)]
pub(super) struct Queues {
    last: u64,
    items: BTreeMap<ItemId, Arc<Item>>,
    /// Ready items, in the order in which they are claimed: the negated priority comes first.
    ready: BTreeSet<(Arc<str>, i64, Timestamp, ItemId)>,
    /// All others, by state and time.
    timed: BTreeSet<(Arc<str>, ItemState, Timestamp, ItemId)>,
    dedupes: HashMap<(Arc<str>, String), ItemId>,
    pub(super) waits: BTreeMap<Waiter, ItemWait>,
}

#[derive(Clone)]
struct Item {
    head: ItemHead,
    queue: Arc<str>,
    priority: i32,
    dedupe: Option<String>,
    payload: Vec<u8>,
    trace: Option<String>,
    error: Option<Vec<u8>>,
    answer: Option<Vec<u8>>,
}

impl Item {
    fn rank(&self) -> i64 {
        -i64::from(self.priority)
    }

    fn row(&self) -> ItemRow {
        ItemRow {
            id: self.head.id,
            queue: self.head.queue.clone(),
            state: self.head.state,
            at: self.head.at,
            priority: self.priority,
            attempts: self.head.attempts,
            dedupe: self.dedupe.clone(),
            created_at: self.head.created_at,
            payload: self.payload.clone(),
            error: self.error.clone(),
            answer: self.answer.clone(),
        }
    }
}

const FIRST: Timestamp = Timestamp::from_millis(i64::MIN);
const LAST: ItemId = ItemId(u64::MAX);

impl Queues {
    fn enter(&mut self, item: &Item) {
        let (queue, head) = (item.queue.clone(), &item.head);
        if head.state == ItemState::Ready {
            self.ready.insert((queue, item.rank(), head.at, head.id));
        } else {
            self.timed.insert((queue, head.state, head.at, head.id));
        }
    }

    fn leave(&mut self, item: &Item) {
        let (queue, head) = (item.queue.clone(), &item.head);
        if head.state == ItemState::Ready {
            self.ready.remove(&(queue, item.rank(), head.at, head.id));
        } else {
            self.timed.remove(&(queue, head.state, head.at, head.id));
        }
    }

    fn ready(&self, queue: &str) -> impl Iterator<Item = &Item> {
        let queue: Arc<str> = Arc::from(queue);
        let first = (queue.clone(), i64::MIN, FIRST, ItemId(0));
        let of_queue = move |entry: &&(Arc<str>, i64, Timestamp, ItemId)| entry.0 == queue;
        let entries = self.ready.range(first..).take_while(of_queue);
        entries.map(|(_, _, _, id)| &*self.items[id])
    }

    fn timed(
        &self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
    ) -> impl Iterator<Item = &Item> {
        let queue: Arc<str> = Arc::from(queue);
        let entries = self
            .timed
            .range((queue.clone(), state, FIRST, ItemId(0))..=(queue, state, until, LAST));
        entries.map(|(_, _, _, id)| &*self.items[id])
    }

    fn first_time(&self, queue: &str, state: ItemState) -> Option<Timestamp> {
        let end = Timestamp::from_millis(i64::MAX);
        self.timed(queue, state, end).map(|item| item.head.at).next()
    }

    pub(super) fn row(&self, item: ItemId) -> Option<ItemRow> {
        self.items.get(&item).map(|item| item.row())
    }

    pub(super) fn list(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Vec<ItemRow> {
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let items = self.items.range((first, Bound::Unbounded));
        let wanted = items.map(|(_, item)| item).filter(|item| {
            *item.queue == *queue && state.is_none_or(|state| item.head.state == state)
        });
        wanted.take(limit).map(|item| item.row()).collect()
    }

    /// The queues of all items, each as often as it has some.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.items.values().map(|item| &*item.queue)
    }

    pub(super) fn stats(&self, queue: &str) -> QueueStats {
        let count = |state| {
            let items = self.items.values();
            items.filter(|item| *item.queue == *queue && item.head.state == state).count() as u64
        };
        QueueStats {
            ready: count(ItemState::Ready),
            delayed: count(ItemState::Delayed),
            claimed: count(ItemState::Claimed),
            done: count(ItemState::Done),
            dead: count(ItemState::Dead),
            oldest_ready: self.ready(queue).map(|item| item.head.at).min(),
        }
    }

    pub(super) fn outlook(&self, queue: &str, now: Timestamp) -> QueueOutlook {
        let times =
            [ItemState::Delayed, ItemState::Claimed].map(|state| self.first_time(queue, state));
        let next_at = times.into_iter().flatten().min();
        let ready = self.ready(queue).next().is_some() || next_at.is_some_and(|at| at <= now);
        QueueOutlook { ready, next_at }
    }

    pub(super) fn ended(&self, items: &[ItemId]) -> Vec<(ItemId, Option<Vec<u8>>)> {
        let ended = items.iter().filter_map(|id| match self.items.get(id) {
            None => Some((*id, None)),
            Some(item) => item.answer.clone().map(|answer| (*id, Some(answer))),
        });
        ended.collect()
    }
}

impl Data {
    pub(super) fn first_place_lost(&self) -> Option<Timestamp> {
        let items = self.limits.of_run(HOLDERS).filter_map(|place| {
            let item = place.of.item()?;
            self.queues.items.get(&item)
        });
        items.map(|item| item.head.at).min()
    }

    fn change_item(&mut self, id: ItemId, change: impl FnOnce(&mut Item)) {
        let Some(item) = self.queues.items.get(&id) else {
            return;
        };
        let mut item = Item::clone(item);
        self.queues.leave(&item);
        change(&mut item);
        self.queues.enter(&item);
        self.queues.items.insert(id, Arc::new(item));
        self.rows_written += 1;
    }
}

impl QueueTables for Data {
    fn insert_item(
        &mut self,
        new: &NewItem,
        state: ItemState,
        at: Timestamp,
    ) -> Result<ItemId, Infallible> {
        self.queues.last += 1;
        let (id, queue) = (ItemId(self.queues.last), Arc::<str>::from(&*new.queue));
        let head = ItemHead {
            id,
            queue: new.queue.clone(),
            state,
            at,
            claim: None,
            attempts: 0,
            keep: Duration::from_millis(new.keep.as_millis() as u64),
            created_at: self.now,
        };
        let item = Item {
            head,
            queue: queue.clone(),
            priority: new.priority,
            dedupe: new.dedupe.clone(),
            payload: new.payload.clone(),
            trace: new.trace.clone(),
            error: None,
            answer: None,
        };
        if let Some(key) = &new.dedupe {
            self.queues.dedupes.insert((queue, key.clone()), id);
        }
        self.queues.enter(&item);
        self.queues.items.insert(id, Arc::new(item));
        self.rows_written += 1;
        Ok(id)
    }

    fn item(&mut self, item: ItemId) -> Result<Option<ItemHead>, Infallible> {
        Ok(self.queues.items.get(&item).map(|item| item.head.clone()))
    }

    fn item_answer(&mut self, item: ItemId) -> Result<Option<Vec<u8>>, Infallible> {
        let item = self.queues.items.get(&item);
        Ok(item.and_then(|item| item.answer.clone()))
    }

    fn item_by_dedupe(&mut self, queue: &str, key: &str) -> Result<Option<ItemId>, Infallible> {
        let key = (Arc::from(queue), key.to_owned());
        Ok(self.queues.dedupes.get(&key).copied())
    }

    fn write_item(&mut self, head: &ItemHead, news: ItemNews<'_>) -> Result<(), Infallible> {
        self.change_item(head.id, |item| {
            item.head = head.clone();
            item.answer = news.answer.map(<[u8]>::to_vec);
            if let Some(error) = news.error {
                item.error = Some(error.to_vec());
            }
        });
        Ok(())
    }

    fn free_dedupe(&mut self, id: ItemId) -> Result<(), Infallible> {
        let mut freed = None;
        self.change_item(id, |item| {
            freed = item.dedupe.take().map(|key| (item.queue.clone(), key));
        });
        if let Some(key) = freed {
            self.queues.dedupes.remove(&key);
        }
        Ok(())
    }

    fn delete_item(&mut self, item: ItemId) -> Result<(), Infallible> {
        if let Some(item) = self.queues.items.remove(&item) {
            self.queues.leave(&item);
            if let Some(key) = &item.dedupe {
                self.queues.dedupes.remove(&(item.queue.clone(), key.clone()));
            }
            self.rows_written += 1;
        }
        Ok(())
    }

    fn ready_items(&mut self, queue: &str, limit: usize) -> Result<Vec<ReadyItem>, Infallible> {
        let items = self.queues.ready(queue).take(limit);
        let ready = items.map(|item| ReadyItem {
            head: item.head.clone(),
            payload: item.payload.clone(),
            trace: item.trace.clone(),
        });
        Ok(ready.collect())
    }

    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ItemHead>, Infallible> {
        let items = self.queues.timed(queue, state, until).take(limit);
        Ok(items.map(|item| item.head.clone()).collect())
    }

    fn first_time(
        &mut self,
        queue: &str,
        state: ItemState,
    ) -> Result<Option<Timestamp>, Infallible> {
        Ok(self.queues.first_time(queue, state))
    }

    fn put_wait(&mut self, wait: &ItemWait) -> Result<(), Infallible> {
        self.queues.waits.insert(wait.waiter.clone(), wait.clone());
        self.rows_written += 1;
        Ok(())
    }

    fn take_waits(&mut self, of: WaitsOf<'_>) -> Result<Vec<ItemWait>, Infallible> {
        let waits = &mut self.queues.waits;
        let waiters: Vec<Waiter> = match of {
            WaitsOf::Of(Of::Operation(waiter)) => vec![waiter.clone()],
            WaitsOf::Of(Of::Run(run)) => {
                let from_run = waits.range(Waiter::first_of(run)..).map(|(waiter, _)| waiter);
                from_run.take_while(|waiter| waiter.run == run).cloned().collect()
            }
            WaitsOf::Item(item) => {
                let for_item = waits.iter().filter(|(_, wait)| wait.item == item);
                for_item.map(|(waiter, _)| waiter.clone()).collect()
            }
        };
        Ok(waiters.iter().filter_map(|waiter| waits.remove(waiter)).collect())
    }

    fn is_waited_for(&mut self, item: ItemId) -> Result<bool, Infallible> {
        Ok(self.queues.waits.values().any(|wait| wait.item == item))
    }
}
