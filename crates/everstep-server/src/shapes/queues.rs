//! Queues and their items.

use everstep::{ItemInfo, ItemState, QueueStats};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Time, run::FailureShape};
use crate::redact::Redaction;

/// A queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueShape {
    /// Its name.
    pub(crate) name: String,
    /// Items that can be claimed.
    pub(crate) ready: u64,
    /// Items whose time has not come.
    pub(crate) delayed: u64,
    /// Items that a worker has.
    pub(crate) claimed: u64,
    /// Items that are done and kept.
    pub(crate) done: u64,
    /// Items that were given up.
    pub(crate) dead: u64,
    /// Since when the oldest ready item is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_ready: Option<Time>,
}

impl QueueShape {
    pub(crate) fn new(name: String, stats: QueueStats) -> QueueShape {
        QueueShape {
            name,
            ready: stats.ready,
            delayed: stats.delayed,
            claimed: stats.claimed,
            done: stats.done,
            dead: stats.dead,
            oldest_ready: stats.oldest_ready.map(Time),
        }
    }
}

/// What an item of a queue is doing.
#[derive(Clone, Copy, Debug, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ItemStateShape {
    Ready,
    Delayed,
    Claimed,
    Done,
    Dead,
}

impl From<ItemState> for ItemStateShape {
    fn from(state: ItemState) -> ItemStateShape {
        match state {
            ItemState::Ready => ItemStateShape::Ready,
            ItemState::Delayed => ItemStateShape::Delayed,
            ItemState::Claimed => ItemStateShape::Claimed,
            ItemState::Done => ItemStateShape::Done,
            // There are no others in this version.
            _ => ItemStateShape::Dead,
        }
    }
}

impl From<ItemStateShape> for ItemState {
    fn from(state: ItemStateShape) -> ItemState {
        match state {
            ItemStateShape::Ready => ItemState::Ready,
            ItemStateShape::Delayed => ItemState::Delayed,
            ItemStateShape::Claimed => ItemState::Claimed,
            ItemStateShape::Done => ItemState::Done,
            ItemStateShape::Dead => ItemState::Dead,
        }
    }
}

/// An item of a queue.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueItem {
    /// Its id.
    pub(crate) id: String,
    /// The queue.
    pub(crate) queue: String,
    /// What it is doing.
    pub(crate) state: ItemStateShape,
    /// Since when, or until when if it is delayed.
    pub(crate) at: Time,
    /// The higher, the sooner.
    pub(crate) priority: i32,
    /// How often it was tried.
    pub(crate) attempts: u32,
    /// What no other item of the queue has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) dedupe: Option<String>,
    /// When it was put there.
    pub(crate) created_at: Time,
    /// What it is about.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) input: Option<Json>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) error: Option<FailureShape>,
}

impl QueueItem {
    pub(crate) fn new(info: ItemInfo, redaction: &Redaction) -> QueueItem {
        QueueItem {
            id: info.id.to_string(),
            queue: info.queue,
            state: info.state.into(),
            at: info.at.into(),
            priority: info.priority,
            attempts: info.attempts,
            dedupe: info.dedupe,
            created_at: info.created_at.into(),
            input: info.input.map(|input| redaction.json(input)),
            error: info.error.map(|it| FailureShape::new(it, redaction)),
        }
    }
}

/// A page of items.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueItems {
    /// In their order.
    pub(crate) items: Vec<QueueItem>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// Which items.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ItemQuery {
    /// Those in this state.
    pub(crate) state: Option<ItemStateShape>,
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// An item to be put into a queue.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PutItem {
    /// What it is about; nothing is `null`.
    #[serde(default)]
    pub(crate) input: Json,
    /// The higher, the sooner.
    pub(crate) priority: Option<i32>,
    /// After how long it can be claimed.
    pub(crate) delay_ms: Option<u64>,
    /// What no other item of the queue has.
    pub(crate) dedupe: Option<String>,
}

/// An item that was put, or found.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemPut {
    /// Its id.
    pub(crate) id: String,
    /// Whether it was there already.
    pub(crate) attached: bool,
}

/// Whether something has changed.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Changed {
    /// Whether it was otherwise before.
    pub(crate) changed: bool,
}
