//! What is around runs: limits, dead letters, events.

use std::time::Duration;

use everstep::{DeadLetterInfo, Deliver, EventRow, LimitInfo, PublishedEvent, Target};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use serde_json::Value as Json;

use super::{Time, as_millis, run::Status};
use crate::redact::Redaction;

/// The limits that are in use.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LimitList {
    /// By name and key.
    pub(crate) limits: Vec<LimitShape>,
}

/// A limit.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LimitShape {
    /// Its name.
    pub(crate) name: String,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// How many places it has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) concurrency: Option<u32>,
    /// How many turns in which time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) rate: Option<Rate>,
    /// How many places are taken.
    pub(crate) in_use: u64,
    /// How many wait for one.
    pub(crate) waiting: u64,
    /// When the next turn is.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next_free: Option<Time>,
}

/// So many in such a time.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Rate {
    /// So many.
    pub(crate) count: u32,
    /// In such a time.
    pub(crate) per_ms: u64,
}

impl From<LimitInfo> for LimitShape {
    fn from(info: LimitInfo) -> LimitShape {
        let rate = |(count, per): (u32, Duration)| Rate { count, per_ms: as_millis(per) };
        LimitShape {
            name: info.name,
            key: info.key,
            concurrency: info.concurrency,
            rate: info.rate.map(rate),
            in_use: info.in_use,
            waiting: info.waiting,
            next_free: info.next_free.map(Time),
        }
    }
}

/// Messages that nobody could be given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct LetterList {
    /// In the order in which they came.
    pub(crate) letters: Vec<Letter>,
    /// The `cursor` of the next page; absent on the last.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) next: Option<String>,
}

/// A message that nobody could be given.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Letter {
    /// Its number.
    pub(crate) no: u64,
    /// The run that it was for.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// How that run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) status: Option<Status>,
    /// Whom it was addressed to.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) target: Option<String>,
    /// Its name.
    pub(crate) name: String,
    /// What it says.
    pub(crate) body: Json,
    /// Why nobody has it.
    pub(crate) reason: String,
    /// When it came.
    pub(crate) at: Time,
}

impl Letter {
    pub(crate) fn new(info: DeadLetterInfo, redaction: &Redaction) -> Letter {
        Letter {
            no: info.no,
            run: info.run.map(|run| run.to_string()),
            status: info.status.map(Status::from),
            target: info.target.map(|target| match target {
                Target::Id(run) => run.to_string(),
                Target::Key { workflow, key } => format!("{workflow}/{key}"),
            }),
            name: info.name,
            body: redaction.json(info.body),
            reason: redaction.text(info.reason),
            at: info.at.into(),
        }
    }
}

/// Which dead letters.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct LetterQuery {
    /// Those for this run.
    pub(crate) run: Option<String>,
    /// Those with this name.
    pub(crate) name: Option<String>,
    /// How many on a page, 50 if it is not said.
    #[schemars(range(min = 1, max = 500))]
    pub(crate) limit: Option<usize>,
    /// Where to go on: `next` of the page before.
    pub(crate) cursor: Option<String>,
}

/// Whom a dead letter is given to; to whom it was addressed if nothing is said.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields, default)]
pub(crate) struct ReplayShape {
    /// To this run.
    pub(crate) to: Option<String>,
    /// Or to all who wait for this event.
    pub(crate) event: Option<String>,
}

/// An event to be published.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PublishShape {
    /// What it says; nothing is `null`.
    #[serde(default)]
    pub(crate) body: Json,
    /// Who waits for this key, or for any, gets it.
    pub(crate) key: Option<String>,
    /// A second event with the same one is not published.
    pub(crate) dedupe: Option<String>,
    /// How long it is kept for those who wait later.
    pub(crate) retain_ms: Option<u64>,
    /// Who gets it, `all` if it is not said.
    pub(crate) deliver: Option<DeliverShape>,
}

/// Who gets an event.
#[derive(Clone, Copy, Debug, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub(crate) enum DeliverShape {
    /// Everybody who waits for it, now or while it is kept.
    All,
    /// The one who has waited longest, or the first to come.
    One,
}

impl From<DeliverShape> for Deliver {
    fn from(deliver: DeliverShape) -> Deliver {
        match deliver {
            DeliverShape::All => Deliver::Broadcast,
            DeliverShape::One => Deliver::One,
        }
    }
}

/// What became of an event.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct PublishedShape {
    /// Whether an equal one was published before, and nothing was done.
    pub(crate) duplicate: bool,
    /// How many were told by now.
    pub(crate) told: u64,
    /// Whether there are more, who are told right after.
    pub(crate) spreading: bool,
    /// Whether it is kept for those who wait later.
    pub(crate) kept: bool,
}

impl From<PublishedEvent> for PublishedShape {
    fn from(published: PublishedEvent) -> PublishedShape {
        match published {
            PublishedEvent::Published { told, spreading, kept, .. } => {
                PublishedShape { duplicate: false, told, spreading, kept }
            }
            _ => PublishedShape { duplicate: true, told: 0, spreading: false, kept: false },
        }
    }
}

/// An event by its name.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct EventShape {
    /// Its name.
    pub(crate) name: String,
    /// How many were published.
    pub(crate) published: u64,
    /// How many are kept.
    pub(crate) kept: u64,
    /// How many were dropped.
    pub(crate) dropped: u64,
    /// How many wait for one.
    pub(crate) waiting: u64,
}

impl From<EventRow> for EventShape {
    fn from(row: EventRow) -> EventShape {
        EventShape {
            name: row.name,
            published: row.published,
            kept: row.kept,
            dropped: row.dropped,
            waiting: row.waiting,
        }
    }
}

/// What became of a dead letter that was sent again.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ReplayedShape {
    /// The run that has it, if one has.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) run: Option<String>,
    /// How many were told, if it was published.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) told: Option<u64>,
}
