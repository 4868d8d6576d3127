//! Why a run does not go on.

use everstep::{Because, WaitsFor, Why};
use schemars::JsonSchema;
use serde::Serialize;

use super::{Time, history::kind, run::Status};
use crate::redact::Redaction;

/// Why a run does not go on.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct WhyShape {
    /// In one sentence.
    pub(crate) sentence: String,
    /// What waits for what: the run itself first.
    pub(crate) chain: Vec<Link>,
    /// The runs that wait for each other in a circle, if they do.
    pub(crate) cycle: Vec<String>,
}

/// One run of the chain.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct Link {
    /// The run.
    pub(crate) run: String,
    /// Its workflow.
    pub(crate) workflow: String,
    /// Its key.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub(crate) key: Option<String>,
    /// What it waits for, in one sentence.
    pub(crate) sentence: String,
    /// What it waits for, one by one.
    pub(crate) waits_for: Vec<WaitsForShape>,
}

/// Something that a run waits for.
#[derive(Debug, Serialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub(crate) enum WaitsForShape {
    /// A body that is running.
    Body {
        location: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        since: Option<Time>,
    },
    /// A time.
    Time {
        #[serde(skip_serializing_if = "Option::is_none")]
        location: Option<String>,
        at: Time,
    },
    /// The next attempt of a step.
    NextAttempt { location: String, attempt: u32, at: Time, error: String },
    /// A message.
    Message {
        location: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// An event, the value of a deferred, a queue item.
    Answer {
        what: String,
        location: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        until: Option<Time>,
    },
    /// A place under a limit.
    Limit {
        name: String,
        #[serde(skip_serializing_if = "Option::is_none")]
        key: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        location: Option<String>,
        #[serde(skip_serializing_if = "Option::is_none")]
        turn: Option<Time>,
        #[serde(skip_serializing_if = "Option::is_none")]
        holder: Option<String>,
    },
    /// Another run.
    Run { run: String, location: String },
    /// Somebody who resumes it.
    Resume { reason: String },
    /// A runner that takes it up.
    Runner { problem: String },
    /// The compensations of what it has done.
    Rollback { ending: Status },
    /// Something that this server does not know yet.
    Other { text: String },
}

impl WhyShape {
    pub(crate) fn new(why: Why, redaction: &Redaction) -> WhyShape {
        let chain = why.chain.into_iter();
        WhyShape {
            sentence: redaction.text(why.sentence),
            chain: chain.map(|it| Link::new(it, redaction)).collect(),
            cycle: why.cycle.iter().map(ToString::to_string).collect(),
        }
    }
}

impl Link {
    fn new(because: Because, redaction: &Redaction) -> Link {
        let waits_for = because.waits_for.into_iter();
        Link {
            run: because.run.to_string(),
            workflow: because.workflow,
            key: because.key,
            sentence: redaction.text(because.sentence),
            waits_for: waits_for.map(|it| waits(it, redaction)).collect(),
        }
    }
}

fn waits(waits_for: WaitsFor, redaction: &Redaction) -> WaitsForShape {
    match waits_for {
        WaitsFor::Body { location, since } => {
            WaitsForShape::Body { location, since: since.map(Time) }
        }
        WaitsFor::Time { location, at } => WaitsForShape::Time { location, at: at.into() },
        WaitsFor::NextAttempt { location, attempt, at, error } => WaitsForShape::NextAttempt {
            location,
            attempt,
            at: at.into(),
            error: redaction.text(error),
        },
        WaitsFor::Message { location, until } => {
            WaitsForShape::Message { location, until: until.map(Time) }
        }
        WaitsFor::Answer { kind: what, location, until } => {
            WaitsForShape::Answer { what: kind(what), location, until: until.map(Time) }
        }
        WaitsFor::Limit { name, key, location, turn, holder } => WaitsForShape::Limit {
            name,
            key,
            location,
            turn: turn.map(Time),
            holder: holder.map(|run| run.to_string()),
        },
        WaitsFor::Run { run, location } => WaitsForShape::Run { run: run.to_string(), location },
        WaitsFor::Resume { reason } => WaitsForShape::Resume { reason: redaction.text(reason) },
        WaitsFor::Runner { problem } => WaitsForShape::Runner { problem },
        WaitsFor::Rollback { ending } => WaitsForShape::Rollback { ending: ending.into() },
        other => WaitsForShape::Other { text: format!("{other:?}") },
    }
}
