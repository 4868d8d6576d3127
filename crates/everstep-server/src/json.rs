//! What the API says, as JSON values: for programs that say the same without HTTP.

use everstep::{
    Cluster, DeadLetterInfo, EventRow, HistoryEntry, ItemInfo, LimitInfo, QueueStats, RunInfo,
    ScheduleInfo, Why,
};
use serde::Serialize;
use serde_json::Value as Json;

use crate::{
    redact::Redaction,
    shapes::{
        around::{EventShape, Letter, LimitShape},
        cluster::ClusterShape,
        history::Entry,
        queues::{QueueItem, QueueShape},
        run::RunDetail,
        schedules::ScheduleShape,
        why::WhyShape,
    },
};

fn value(shape: impl Serialize) -> Json {
    // Shapes are made of texts, numbers and JSON, which can all be written.
    serde_json::to_value(shape).unwrap_or_default()
}

/// A run with its input and output.
pub fn run(info: RunInfo) -> Json {
    value(RunDetail::new(info, &Redaction::default()))
}

/// A run as it is in a list.
pub fn run_summary(info: RunInfo) -> Json {
    value(RunDetail::new(info, &Redaction::default()).summary)
}

/// An operation of a run.
pub fn entry(entry: HistoryEntry) -> Json {
    value(Entry::new(entry, &Redaction::default()))
}

/// Why a run does not go on.
pub fn why(why: Why) -> Json {
    value(WhyShape::new(why, &Redaction::default()))
}

/// A schedule.
pub fn schedule(info: ScheduleInfo) -> Json {
    value(ScheduleShape::new(info, &Redaction::default()))
}

/// A queue.
pub fn queue(name: &str, stats: QueueStats) -> Json {
    value(QueueShape::new(name.to_owned(), stats))
}

/// An item of a queue.
pub fn item(info: ItemInfo) -> Json {
    value(QueueItem::new(info, &Redaction::default()))
}

/// A limit.
pub fn limit(info: LimitInfo) -> Json {
    value(LimitShape::from(info))
}

/// A dead letter.
pub fn letter(info: DeadLetterInfo) -> Json {
    value(Letter::new(info, &Redaction::default()))
}

/// An event by its name.
pub fn event(row: EventRow) -> Json {
    value(EventShape::from(row))
}

/// The cluster.
pub fn cluster(cluster: Cluster) -> Json {
    value(ClusterShape::from(cluster))
}
