//! The history of a run, its state, its messages and its streams.

use everstep::{AttemptError, EntryKind, EntryStatus, HistoryEntry, StreamInfo, StreamItem};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value as Json};

use super::{Time, run::FailureShape};
use crate::redact::Redaction;

/// One operation of a run.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Entry {
    /// Where: `outer/~0/inner`.
    pub(crate) location: String,
    /// What kind of operation it is.
    pub(crate) kind: String,
    /// How far it is.
    pub(crate) status: String,
    /// Its place in the order of completions.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) number: Option<u64>,
    /// How many attempts were made.
    pub(crate) attempts: u32,
    /// When it was made.
    pub(crate) created_at: Time,
    /// When its last body began.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started_at: Option<Time>,
    /// When it ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completed_at: Option<Time>,
    /// When it goes on by itself.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) wake_at: Option<Time>,
    /// The errors of its last failed attempts.
    pub(crate) errors: Vec<Attempt>,
    /// What it gave.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) value: Option<Json>,
    /// Why it failed for good.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failure: Option<FailureShape>,
    /// The run that it has started or waits for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) child: Option<String>,
    /// How many bytes it takes in the store.
    pub(crate) size: usize,
}

/// A failed attempt.
#[derive(Clone, Debug, PartialEq, Serialize, JsonSchema)]
pub(crate) struct Attempt {
    /// Which, from 1.
    pub(crate) attempt: u32,
    /// When it failed.
    pub(crate) at: Time,
    /// Why.
    pub(crate) message: String,
}

impl Attempt {
    fn new(error: AttemptError, redaction: &Redaction) -> Attempt {
        Attempt {
            attempt: error.attempt,
            at: error.at.into(),
            message: redaction.text(error.message),
        }
    }
}

impl Entry {
    pub(crate) fn new(entry: HistoryEntry, redaction: &Redaction) -> Entry {
        let failure = entry.failure;
        let errors = entry.errors.into_iter();
        Entry {
            location: entry.location,
            kind: kind(entry.kind),
            status: status(entry.status),
            number: entry.number,
            attempts: entry.attempts,
            created_at: entry.created_at.into(),
            started_at: entry.started_at.map(Time),
            completed_at: entry.completed_at.map(Time),
            wake_at: entry.wake_at.map(Time),
            errors: errors.map(|it| Attempt::new(it, redaction)).collect(),
            value: entry.value.map(|value| redaction.json(value)),
            failure: failure.map(|it| FailureShape::new(it, redaction)),
            child: entry.child.map(|run| run.to_string()),
            size: entry.size,
        }
    }
}

pub(crate) fn kind(kind: EntryKind) -> String {
    format!("{kind:?}").to_lowercase()
}

fn status(status: EntryStatus) -> String {
    match status {
        EntryStatus::TimedOut => "timed_out".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

/// A part of the history, in the order of the code.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct History {
    /// The operations.
    pub(crate) entries: Vec<Entry>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A page of something.
#[derive(Clone, Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct PageQuery {
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// What a run shows of itself.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct State {
    /// By key.
    pub(crate) state: Map<String, Json>,
}

/// The streams of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StreamList {
    /// By name.
    pub(crate) streams: Vec<StreamShape>,
}

/// A stream of a run.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StreamShape {
    /// Its name.
    pub(crate) name: String,
    /// The position of the first item that is kept.
    pub(crate) first: u64,
    /// The position of the next item.
    pub(crate) end: u64,
}

impl From<StreamInfo> for StreamShape {
    fn from(info: StreamInfo) -> StreamShape {
        StreamShape { name: info.name, first: info.first, end: info.end }
    }
}

/// An item of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Item {
    /// Its place.
    pub(crate) position: u64,
    /// When it was given.
    pub(crate) at: Time,
    /// By which life of the run.
    pub(crate) generation: u32,
    /// By which step, if one did.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) by: Option<ItemBy>,
    /// The item.
    pub(crate) value: Json,
}

/// The step that gave an item.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ItemBy {
    /// The step.
    pub(crate) location: String,
    /// Which attempt of it.
    pub(crate) attempt: u32,
}

impl Item {
    pub(crate) fn new(item: StreamItem<Json>, redaction: &Redaction) -> Item {
        Item {
            position: item.position,
            at: item.at.into(),
            generation: item.generation,
            by: item.by.map(|by| ItemBy { location: by.location, attempt: by.attempt }),
            value: redaction.json(item.value),
        }
    }
}

/// A part of a stream.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Items {
    /// The items.
    pub(crate) items: Vec<Item>,
    /// The position to go on from.
    pub(crate) next: u64,
}

/// Which part of a stream.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StreamQuery {
    /// The position of the first item, 0 if it is not said.
    pub(crate) from: u64,
    /// How many at most, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
}

/// From where a stream is followed.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct FollowQuery {
    /// The position of the first item, 0 if it is not said.
    pub(crate) from: u64,
}

/// A message for a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct MessageShape {
    /// What the run listens to.
    pub(crate) name: String,
    /// What is said; nothing is `null`.
    #[serde(default)]
    pub(crate) body: Json,
    /// A second message with the same one is not delivered.
    pub(crate) dedupe: Option<String>,
    /// What becomes of it if the run has ended.
    #[serde(default)]
    pub(crate) if_finished: IfFinishedShape,
}

/// What becomes of a message whose run has ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum IfFinishedShape {
    /// The sender is told so.
    #[default]
    Error,
    /// It is dropped.
    Drop,
    /// It becomes a dead letter.
    DeadLetter,
}

/// What became of a message.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct SentShape {
    /// `delivered`, `duplicate`, `dead_lettered` or `dropped`.
    pub(crate) sent: &'static str,
}

/// A question to a run.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RequestShape {
    /// What the run listens to.
    pub(crate) name: String,
    /// What is asked; nothing is `null`.
    #[serde(default)]
    pub(crate) body: Json,
    /// How long to wait, 10 s if it is not said.
    #[schemars(range(max = 30_000))]
    pub(crate) timeout_ms: Option<u64>,
}

/// What it answered.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Answer {
    /// The answer; absent if there was none in time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) answer: Option<Json>,
}

/// How a deferred is settled: with a value, or with an error.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
#[schemars(extend("oneOf" = [{"required": ["value"]}, {"required": ["error"]}]))]
pub(crate) struct SettleShape {
    /// The operation that waits.
    pub(crate) location: String,
    /// What it gets.
    #[serde(default, deserialize_with = "some")]
    pub(crate) value: Option<Json>,
    /// Or why it gets nothing.
    #[serde(default, deserialize_with = "some")]
    pub(crate) error: Option<Json>,
}

/// `null` is a value, too.
fn some<'de, D: serde::Deserializer<'de>>(from: D) -> Result<Option<Json>, D::Error> {
    Json::deserialize(from).map(Some)
}

/// What a token is resolved with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct ResolveShape {
    /// What it gets; nothing is `null`.
    #[serde(default)]
    pub(crate) value: Json,
}

/// What a token is rejected with.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RejectShape {
    /// Why it gets nothing.
    #[serde(default)]
    pub(crate) error: Json,
}

/// What became of a value for a deferred.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Settled {
    /// Whether it is the first one and counts, or came after another.
    pub(crate) resolved: ResolvedShape,
    /// When it was settled before.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) settled_at: Option<Time>,
}

/// When a deferred was settled.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ResolvedShape {
    /// By this.
    Now,
    /// By another before it, which counts.
    Before,
}
