//! What is said about the items of queues: by who puts them in, by workers, by operators.

use std::{fmt, str::FromStr, time::Duration};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::LimitRule;
use crate::time::Timestamp;

/// The number of an item, unique in its store and never used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct ItemId(pub u64);

impl fmt::Display for ItemId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl FromStr for ItemId {
    type Err = std::num::ParseIntError;

    fn from_str(text: &str) -> Result<ItemId, Self::Err> {
        text.parse().map(ItemId)
    }
}

/// A write to a queue. Answered by the [`QueueDone`] of the same name.
#[derive(Clone, Debug)]
pub enum QueueWrite {
    /// Puts an item in. Answered by [`QueueDone::Enqueued`].
    Enqueue(NewItem),
    /// Takes items for a worker. Answered by [`QueueDone::Claimed`].
    Claim(ClaimItems),
    /// Says until when claims last. Answered by [`QueueDone::Extended`].
    Extend(Vec<Extend>),
    /// Ends a claim. Answered by [`QueueDone::Settled`].
    Settle(Settle),
    /// Takes the places under limits from items whose claims have run out: whoever waits for one need
    /// not wait for a worker of that queue. Answered by [`QueueDone::Revoked`].
    Revoke,
    /// Does something to an item from outside. Answered by [`QueueDone::Controlled`].
    Control(ItemId, ItemControl),
}

/// What became of a write to a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum QueueDone {
    /// The item that was put in, or found under its dedupe key.
    Enqueued(Enqueued),
    /// The items that the worker has now.
    Claimed(Claimed),
    /// For each claim, in order, whether it still holds.
    Extended(Vec<bool>),
    /// Whether the claim held. If it did not, nothing was done.
    Settled(bool),
    /// It is done.
    Revoked,
    /// What became of the wish.
    Controlled(ItemControlled),
}

/// An item to be put into a queue.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NewItem {
    /// The queue.
    pub queue: String,
    /// The input, as a payload.
    pub payload: Vec<u8>,
    /// The higher, the earlier.
    pub priority: i32,
    /// When it may be worked on; at once if absent.
    pub available_at: Option<Timestamp>,
    /// While an item of this queue has an equal key and is not a dead letter, no other is put in.
    pub dedupe: Option<String>,
    /// How long its result is kept after its end; it is removed at its end if zero.
    pub keep: Duration,
    /// The trace that it belongs to, as [`NewRun::trace`](super::NewRun::trace) has it.
    pub trace: Option<String>,
}

/// The item that was put in, or found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Enqueued {
    /// The item.
    pub item: ItemId,
    /// Whether it was there already.
    pub attached: bool,
}

/// What a worker asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimItems {
    /// The queue.
    pub queue: String,
    /// The name of this claim. Nobody else can know it.
    pub claim: Uuid,
    /// How many items at most.
    pub max: usize,
    /// How often an item is tried in all: one whose last worker is lost has failed.
    pub attempts_max: u32,
    /// How long the items belong to the worker without a sign of life.
    pub visibility: Duration,
    /// The limit that the items are under: each has a place for as long as it is claimed.
    pub limit: Option<ClaimLimit>,
}

/// The limit of a queue, as the code of the worker has it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimLimit {
    /// The name of the limit.
    pub limit: String,
    /// Which of its keys; each is limited on its own.
    pub limit_key: String,
    /// What it allows, as the code says now: it counts from here on.
    pub rule: LimitRule,
}

/// What a worker has got.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Claimed {
    /// The items: highest priority first, then the one that could be worked on first.
    pub items: Vec<ClaimedItem>,
    /// Whether there may be more at once.
    pub more: bool,
    /// When to ask again without being told: a delay or somebody's claim ends, or the limit may
    /// have room.
    pub next_at: Option<Timestamp>,
}

/// An item in the hands of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ClaimedItem {
    /// The item.
    pub item: ItemId,
    /// Which attempt this is, from 1.
    pub attempt: u32,
    /// The input, as a payload.
    pub payload: Vec<u8>,
    /// The trace that it belongs to.
    pub trace: Option<String>,
    /// When it was put in.
    pub created_at: Timestamp,
    /// Until when it belongs to the worker.
    pub until: Timestamp,
}

/// A claim that is to last until another time, which is earlier if the clock of its worker was set back.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extend {
    /// The item.
    pub item: ItemId,
    /// The claim under which the worker has it.
    pub claim: Uuid,
    /// Until when.
    pub until: Timestamp,
}

/// The end of a claim.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Settle {
    /// The item.
    pub item: ItemId,
    /// The claim under which the worker has it; refused if another has it now.
    pub claim: Uuid,
    /// How it ended.
    pub settlement: Settlement,
}

/// How an attempt at an item ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Settlement {
    /// With this payload.
    Done(Vec<u8>),
    /// With an error, after which it is tried again.
    Retry {
        /// When.
        at: Timestamp,
        /// The encoded failure.
        error: Vec<u8>,
    },
    /// With this encoded failure, for good.
    Failed(Vec<u8>),
    /// Not at all: it is given back, and the attempt does not count.
    Release,
}

/// What can be done to an item from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemControl {
    /// Takes it out, if nobody works on it. Who waits for it is told.
    Cancel,
    /// Puts a dead letter back into its queue, with all its attempts before it.
    Replay,
    /// Removes a dead letter.
    Drop,
}

/// What became of a wish about an item.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ItemControlled {
    /// Done.
    Done,
    /// It is in a state in which that cannot be done.
    Refused(ItemState),
    /// There is no such item.
    Unknown,
}

listed! {
    /// What an item is doing. The codes are stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
    #[non_exhaustive]
    pub enum ItemState {
        /// A worker may take it.
        Ready = 0 as "ready",
        /// Its time has not come: it was put in for later, or waits after a failed attempt.
        Delayed = 1 as "delayed",
        /// A worker has it.
        Claimed = 2 as "claimed",
        /// It has ended; its result is kept for a while.
        Done = 3 as "done",
        /// It failed for good and no workflow was told: a dead letter.
        Dead = 4 as "dead",
    }
}

/// An item as it is stored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ItemRow {
    /// Its number.
    pub id: ItemId,
    /// The queue.
    pub queue: String,
    /// What it is doing.
    pub state: ItemState,
    /// Since when it can be worked on, when it can be, until when its worker has it, until when its
    /// result is kept, or when it became a dead letter: as its state says.
    pub at: Timestamp,
    /// The higher, the earlier.
    pub priority: i32,
    /// How many attempts were begun.
    pub attempts: u32,
    /// The key under which no other item is put in.
    pub dedupe: Option<String>,
    /// When it was put in.
    pub created_at: Timestamp,
    /// The input, as a payload.
    pub payload: Vec<u8>,
    /// The encoded failure of its last failed attempt.
    pub error: Option<Vec<u8>>,
    /// How it ended, once it is done: as whoever waited for it was told.
    pub answer: Option<Vec<u8>>,
}

/// An item that has ended, with its answer; without one if it does not exist any more.
pub type EndedItem = (ItemId, Option<Vec<u8>>);

/// How a queue stands.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueStats {
    /// Items that a worker may take.
    pub ready: u64,
    /// Items whose time has not come.
    pub delayed: u64,
    /// Items that a worker has.
    pub claimed: u64,
    /// Items that have ended and whose result is kept.
    pub done: u64,
    /// Dead letters.
    pub dead: u64,
    /// Since when the item that waits longest could have been worked on.
    pub oldest_ready: Option<Timestamp>,
}

/// Whether a worker has something to do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct QueueOutlook {
    /// Whether a claim would get an item now.
    pub ready: bool,
    /// When it would next, without anything from outside.
    pub next_at: Option<Timestamp>,
}
