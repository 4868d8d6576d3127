//! What is seen from above, and what a run has not read.

use everstep::{InboxKind, QueueInfo, StatsBucket, UnreadMessage};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Time, as_millis};
use crate::redact::Redaction;

/// The queues that have items.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueList {
    /// By name.
    pub(crate) queues: Vec<QueueTally>,
}

/// A queue in a list: how many items it has, as far as they were counted.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct QueueTally {
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
    /// Whether one of these numbers is where counting stopped, and there are more.
    pub(crate) or_more: bool,
    /// Since when the oldest ready item is ready.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) oldest_ready: Option<Time>,
}

impl From<QueueInfo> for QueueTally {
    fn from(info: QueueInfo) -> QueueTally {
        let all = [info.ready, info.delayed, info.claimed, info.done, info.dead];
        QueueTally {
            name: info.name,
            ready: info.ready.number,
            delayed: info.delayed.number,
            claimed: info.claimed.number,
            done: info.done.number,
            dead: info.dead.number,
            or_more: all.iter().any(|tally| tally.or_more),
            oldest_ready: info.oldest_ready.map(Time),
        }
    }
}

/// Which time, and in parts of which length.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct StatsQuery {
    /// From when on, an hour before the end if it is not said.
    pub(crate) from: Option<Time>,
    /// Until when, now if it is not said.
    pub(crate) to: Option<Time>,
    /// The length of a part; a sixtieth of all if it is not said. There are 200 parts at most.
    #[schemars(range(min = 1))]
    pub(crate) bucket_ms: Option<u64>,
}

/// What has happened over time.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct StatsShape {
    /// In the order of time.
    pub(crate) buckets: Vec<BucketShape>,
}

/// What has happened in a part of the time.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BucketShape {
    /// When it begins.
    pub(crate) at: Time,
    /// How many runs were started.
    pub(crate) started: u64,
    /// How many have completed.
    pub(crate) completed: u64,
    /// How many have failed.
    pub(crate) failed: u64,
    /// How many were cancelled.
    pub(crate) cancelled: u64,
    /// Half of those that have completed took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ms: Option<u64>,
    /// 95 of 100 of those that have completed took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p95_ms: Option<u64>,
}

impl From<StatsBucket> for BucketShape {
    fn from(bucket: StatsBucket) -> BucketShape {
        BucketShape {
            at: bucket.at.into(),
            started: bucket.started,
            completed: bucket.completed,
            failed: bucket.failed,
            cancelled: bucket.cancelled,
            p50_ms: bucket.p50.map(as_millis),
            p95_ms: bucket.p95.map(as_millis),
        }
    }
}

/// What a run has not read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct MessageList {
    /// In the order in which it came.
    pub(crate) messages: Vec<Unread>,
}

/// Something that a run has not read.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Unread {
    /// Its place in the order.
    pub(crate) seq: u64,
    /// The name that it was sent by; empty if it has none.
    pub(crate) name: String,
    /// A message, or what an operation waits for.
    pub(crate) kind: UnreadKind,
    /// What it says.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) body: Option<Json>,
    /// The operation that it is for, if it is for one.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) location: Option<String>,
    /// Whether somebody waits for a reply.
    pub(crate) is_request: bool,
    /// When it came.
    pub(crate) sent_at: Time,
}

/// What something is that a run has not read.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum UnreadKind {
    Message,
    Event,
    Deferred,
    RunEnded,
    QueueResult,
    LimitGrant,
}

impl From<InboxKind> for UnreadKind {
    fn from(kind: InboxKind) -> UnreadKind {
        match kind {
            InboxKind::Message => UnreadKind::Message,
            InboxKind::Event => UnreadKind::Event,
            InboxKind::Deferred => UnreadKind::Deferred,
            InboxKind::RunEnded => UnreadKind::RunEnded,
            InboxKind::QueueResult => UnreadKind::QueueResult,
            // There are no others in this version.
            _ => UnreadKind::LimitGrant,
        }
    }
}

impl Unread {
    pub(crate) fn new(message: UnreadMessage, redaction: &Redaction) -> Unread {
        Unread {
            seq: message.seq,
            name: message.name,
            kind: message.kind.into(),
            body: message.body.map(|body| redaction.json(body)),
            location: message.location,
            is_request: message.is_request,
            sent_at: message.sent_at.into(),
        }
    }
}
