//! The rows of work queues, and of the operations that wait for items.

use std::time::Duration;

use uuid::Uuid;

use super::{LimitTables, Of, Waiter};
use crate::{
    commit::{ItemId, ItemState, NewItem},
    time::Timestamp,
};

/// The columns of an item that decisions are made from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemHead {
    /// The number of the item.
    pub id: ItemId,
    /// The queue. It never changes.
    pub queue: String,
    /// The state.
    pub state: ItemState,
    /// The time of the state: until when the item is delayed, claimed or kept, or since when it is
    /// ready or dead.
    pub at: Timestamp,
    /// The claim that the item is under.
    pub claim: Option<Uuid>,
    /// How often the item was claimed.
    pub attempts: u32,
    /// How long the answer is kept, in whole milliseconds. It never changes.
    pub keep: Duration,
    /// The time at which the item was put in. It never changes.
    pub created_at: Timestamp,
}

/// The columns that a change of an item writes besides its head.
#[derive(Clone, Copy, Debug, Default)]
pub struct ItemNews<'a> {
    /// The last error. Without one, the stored error stays.
    pub error: Option<&'a [u8]>,
    /// The answer. Without one, the stored answer is removed.
    pub answer: Option<&'a [u8]>,
}

/// An item that can be claimed, with what its worker gets.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ReadyItem {
    /// The head.
    pub head: ItemHead,
    /// The encoded payload.
    pub payload: Vec<u8>,
    /// The trace context of the caller that put the item in.
    pub trace: Option<String>,
}

/// An operation that waits for an item.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemWait {
    /// The operation. It waits for one item at most.
    pub waiter: Waiter,
    /// The item.
    pub item: ItemId,
    /// Whether the item is cancelled with the wait, as long as no worker has claimed it.
    pub cancels: bool,
}

/// The waits for items that are meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WaitsOf<'a> {
    /// The waits of one operation, or of all operations of a run.
    Of(Of<'a>),
    /// The waits for one item.
    Item(ItemId),
}

impl WaitsOf<'_> {
    /// Whether this wait is meant.
    pub fn includes(self, wait: &ItemWait) -> bool {
        match self {
            WaitsOf::Of(of) => of.includes(&wait.waiter),
            WaitsOf::Item(item) => wait.item == item,
        }
    }
}

/// The rows of work queues, and of the operations that wait for items.
///
/// Everything about an item is decided under the lock of its queue. A store with several writers takes
/// the lock when a method names the queue or an item of it.
pub trait QueueTables: LimitTables {
    /// Inserts an item in this state with this time, and gives its number: the one after the greatest.
    /// It takes the dedupe key that it names, which is free.
    fn insert_item(
        &mut self,
        new: &NewItem,
        state: ItemState,
        at: Timestamp,
    ) -> Result<ItemId, Self::Error>;

    /// The head of an item.
    fn item(&mut self, item: ItemId) -> Result<Option<ItemHead>, Self::Error>;

    /// The answer of an item.
    fn item_answer(&mut self, item: ItemId) -> Result<Option<Vec<u8>>, Self::Error>;

    /// The item of a queue that has this dedupe key.
    fn item_by_dedupe(&mut self, queue: &str, key: &str) -> Result<Option<ItemId>, Self::Error>;

    /// Writes state, time, claim and attempts of an item, its answer, and its error if there is one.
    fn write_item(&mut self, head: &ItemHead, news: ItemNews<'_>) -> Result<(), Self::Error>;

    /// Takes the dedupe key from an item, so that another item may have it.
    fn free_dedupe(&mut self, item: ItemId) -> Result<(), Self::Error>;

    /// Removes an item, with its dedupe key.
    fn delete_item(&mut self, item: ItemId) -> Result<(), Self::Error>;

    /// Ready items of a queue in the order in which they are claimed: the highest priority first, then
    /// by time and number.
    fn ready_items(&mut self, queue: &str, limit: usize) -> Result<Vec<ReadyItem>, Self::Error>;

    /// Items of a queue in this state (delayed, claimed or done) whose time is not after `until`, by
    /// time and number, at most `limit`.
    fn timed_items(
        &mut self,
        queue: &str,
        state: ItemState,
        until: Timestamp,
        limit: usize,
    ) -> Result<Vec<ItemHead>, Self::Error>;

    /// The earliest time of an item of a queue in this state (delayed or claimed).
    fn first_time(
        &mut self,
        queue: &str,
        state: ItemState,
    ) -> Result<Option<Timestamp>, Self::Error>;

    /// Notes that an operation waits for an item, in place of the item that it waited for before.
    fn put_wait(&mut self, wait: &ItemWait) -> Result<(), Self::Error>;

    /// Removes waits, and gives them in the order of their operations. Their runs are locked.
    fn take_waits(&mut self, of: WaitsOf<'_>) -> Result<Vec<ItemWait>, Self::Error>;

    /// Whether any operation waits for an item.
    fn is_waited_for(&mut self, item: ItemId) -> Result<bool, Self::Error>;
}
