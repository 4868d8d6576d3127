//! Runs and entries as clients see them.

use serde_json::Value as Json;

use super::ClientError;
use crate::{
    codec::{
        self,
        answer::{self, Answered},
        payload,
    },
    commit::{Put, Receipt, RunStatus},
    error::Failure,
    history::{AttemptError, EntryKind, EntryStatus, EntryValue, keys},
    run_id::RunId,
    store::RunRow,
    time::Timestamp,
};

/// A run, as it is stored.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunInfo {
    /// Its id.
    pub id: RunId,
    /// The workflow's name.
    pub workflow: String,
    /// The version it was started with.
    pub version: u32,
    /// Its key, if it was started with one.
    pub key: Option<String>,
    /// What it is doing.
    pub status: RunStatus,
    /// What it waits for, or why it is paused, in words.
    pub waiting: Option<String>,
    /// When it is due, if it waits for a time.
    pub available_at: Option<Timestamp>,
    /// When it fails if it has not ended by then.
    pub deadline_at: Option<Timestamp>,
    /// When it was started.
    pub created_at: Timestamp,
    /// When its row last changed.
    pub updated_at: Timestamp,
    /// When it ended.
    pub finished_at: Option<Timestamp>,
    /// How often it has been tried as a whole.
    pub attempts: u32,
    /// How often its owner was lost since it last made progress.
    pub recoveries: u32,
    /// Whether a cancel was requested.
    pub cancel_requested: bool,
    /// Which of its lives this is, from 1.
    pub generation: u32,
    /// The run that started it, if one did.
    pub parent: Option<RunId>,
    /// What it can be found by.
    pub tags: Vec<(String, String)>,
    /// The input as JSON.
    pub input: Json,
    /// The output as JSON.
    pub output: Option<Json>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

impl From<RunRow> for RunInfo {
    fn from(row: RunRow) -> RunInfo {
        let failure = row.error.as_deref().map(|bytes| {
            codec::decode_failure(bytes).unwrap_or_else(|e| Failure::unreadable(&e.to_string()))
        });
        RunInfo {
            id: row.id,
            workflow: row.workflow.to_string(),
            version: row.version,
            key: row.key,
            status: row.status,
            waiting: row.waiting,
            available_at: row.available_at,
            deadline_at: row.deadline_at,
            created_at: row.created_at,
            updated_at: row.updated_at,
            finished_at: row.finished_at,
            attempts: row.attempts,
            recoveries: row.recoveries,
            cancel_requested: row.cancel_requested.is_some(),
            generation: row.generation,
            parent: row.parent,
            tags: row.tags,
            input: readable(&row.input),
            output: row.output.as_deref().map(readable),
            failure,
        }
    }
}

/// A payload as JSON; a damaged one as a text that says so.
fn readable(bytes: &[u8]) -> Json {
    payload::to_json(bytes).unwrap_or_else(|error| Json::String(format!("({error})")))
}

/// Some runs, and where the rest begins.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct RunPage {
    /// The runs, newest first.
    pub runs: Vec<RunInfo>,
    /// What to give to [`List::after`](super::List::after) for the next page; absent on the last.
    pub next: Option<RunId>,
}

impl RunPage {
    pub(super) fn new(mut rows: Vec<RunRow>, limit: usize) -> RunPage {
        let more = rows.len() > limit;
        rows.truncate(limit);
        let next = rows.last().filter(|_| more).map(|row| row.id);
        RunPage {
            runs: rows.into_iter().map(RunInfo::from).collect(),
            next,
        }
    }
}

/// One entry of a history.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HistoryEntry {
    /// Where: `outer/~0/inner`; `rollback of charge` for a compensation.
    pub location: String,
    /// What kind of operation it is.
    pub kind: EntryKind,
    /// How far it is.
    pub status: EntryStatus,
    /// Its place in the order of completions.
    pub number: Option<u64>,
    /// How many attempts were made.
    pub attempts: u32,
    /// When it was made.
    pub created_at: Timestamp,
    /// When its last body began.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub completed_at: Option<Timestamp>,
    /// When it goes on by itself.
    pub wake_at: Option<Timestamp>,
    /// The errors of its last failed attempts.
    pub errors: Vec<AttemptError>,
    /// What it gave, as JSON.
    pub value: Option<Json>,
    /// Why it failed for good.
    pub failure: Option<Failure>,
}

/// What an operation was answered, for people.
fn answered(kind: EntryKind, bytes: &[u8]) -> (Option<Json>, Option<Failure>) {
    // The end of a run comes with its id.
    let bytes = match kind {
        EntryKind::Child | EntryKind::Finished => bytes.get(16..).unwrap_or_default(),
        _ => bytes,
    };
    match answer::decode(bytes) {
        Ok(Answered::Value(payload)) if payload.is_empty() => (None, None),
        Ok(Answered::Value(payload) | Answered::Rejected(payload)) => {
            (Some(readable(&payload)), None)
        }
        Ok(Answered::Failure(failure)) => (None, Some(*failure)),
        Ok(Answered::Cancelled) => (Some(Json::String("cancelled".to_owned())), None),
        Ok(Answered::Unknown) => (Some(Json::String("unknown".to_owned())), None),
        Err(error) => (Some(Json::String(error.to_string())), None),
    }
}

pub(super) fn entries(run: RunId, puts: Vec<Put>) -> Result<Vec<HistoryEntry>, ClientError> {
    let mut list = Vec::with_capacity(puts.len());
    for put in puts {
        if keys::is_of_run(&put.key) {
            continue;
        }
        let location = keys::describe(&put.key);
        let entry = codec::decode_entry(&put.value).map_err(|error| ClientError::Decode {
            what: format!("the entry of `{location}` of run {run}"),
            problem: error.to_string(),
        })?;
        let (value, failure) = match entry.value {
            EntryValue::None => (None, None),
            EntryValue::Payload(bytes) => (Some(readable(&bytes)), None),
            EntryValue::Failure(failure) => (None, Some(*failure)),
            EntryValue::Messages(messages) => {
                let bodies = messages.iter().map(|message| readable(&message.body));
                (Some(Json::Array(bodies.collect())), None)
            }
            EntryValue::Version(version) => (Some(version.into()), None),
            EntryValue::Receipt(code) => {
                let receipt = Receipt::from_code(code);
                (Some(Json::String(format!("{receipt:?}"))), None)
            }
            EntryValue::Answer(bytes) => answered(entry.kind, &bytes),
            EntryValue::Started(id, _) => (Some(Json::String(id.to_string())), None),
        };
        list.push(HistoryEntry {
            location,
            kind: entry.kind,
            status: entry.status,
            number: entry.number,
            attempts: entry.attempts,
            created_at: entry.created_at,
            started_at: entry.started_at,
            completed_at: entry.completed_at,
            wake_at: entry.wake_at,
            errors: entry.errors,
            value,
            failure,
        });
    }
    Ok(list)
}
