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
    /// All runs that retention has deleted had ended before this instant. Parts that begin before it
    /// have no numbers, since runs are missing in them. Absent if retention has deleted nothing.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) horizon: Option<Time>,
}

/// Why a part of the time has no numbers.
#[derive(Clone, Copy, Debug, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum Missing {
    /// Retention has deleted runs that would be counted in it.
    Retention,
}

/// What has happened in a part of the time. Without numbers, `missing` says why.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct BucketShape {
    /// When it begins.
    pub(crate) at: Time,
    /// Why there are no numbers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) missing: Option<Missing>,
    /// How many runs were started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) started: Option<u64>,
    /// How many have completed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) completed: Option<u64>,
    /// How many have failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) failed: Option<u64>,
    /// How many were cancelled.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) cancelled: Option<u64>,
    /// Half of those that have completed took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p50_ms: Option<u64>,
    /// 95 of 100 of those that have completed took no longer.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) p95_ms: Option<u64>,
}

impl From<StatsBucket> for BucketShape {
    fn from(bucket: StatsBucket) -> BucketShape {
        let is_complete = bucket.is_complete;
        let number = |number| is_complete.then_some(number);
        BucketShape {
            at: bucket.at.into(),
            missing: (!is_complete).then_some(Missing::Retention),
            started: number(bucket.started),
            completed: number(bucket.completed),
            failed: number(bucket.failed),
            cancelled: number(bucket.cancelled),
            p50_ms: bucket.p50.filter(|_| is_complete).map(as_millis),
            p95_ms: bucket.p95.filter(|_| is_complete).map(as_millis),
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
