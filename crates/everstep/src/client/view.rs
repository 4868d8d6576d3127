//! Runs and entries as clients see them.

use serde_json::Value as Json;

use super::{ClientError, children, page};
use crate::{
    codec::{hook::Codecs, payload},
    commit::{
        InboxKind, Put, Receipt, RunStatus,
        answer::{self, Answered},
    },
    error::{Failure, decode_failure},
    history::{AttemptError, EntryKind, EntryStatus, EntryValue, decode_entry},
    location::keys,
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
    /// The tick that started it, if a schedule did.
    pub scheduled_at: Option<Timestamp>,
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
    /// Its home pool: the one whose runners run it.
    pub pool: String,
    /// What it can be found by.
    pub tags: Vec<(String, String)>,
    /// The input as JSON.
    pub input: Json,
    /// The output as JSON.
    pub output: Option<Json>,
    /// Why it failed.
    pub failure: Option<Failure>,
}

impl RunInfo {
    pub(super) fn new(row: RunRow, codecs: &Codecs) -> RunInfo {
        let reader = PayloadReader { codecs, run: row.id };
        let failure = row.error.as_deref().map(|bytes| reader.failure(bytes));
        RunInfo {
            scheduled_at: crate::schedule::tick_of(row.key.as_deref(), &row.tags),
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
            pool: row.pool.to_string(),
            tags: row.tags,
            input: reader.json(&row.input),
            output: row.output.as_deref().map(|bytes| reader.json(bytes)),
            failure,
        }
    }
}

/// Reads the payloads of one run for people.
pub(super) struct PayloadReader<'a> {
    pub(super) codecs: &'a Codecs,
    pub(super) run: RunId,
}

impl PayloadReader<'_> {
    /// A payload as JSON; one that cannot be read as a text that says so.
    fn json(&self, bytes: &[u8]) -> Json {
        let opened = self.codecs.open(bytes, Some(self.run));
        opened
            .and_then(|bytes| payload::to_json(&bytes))
            .unwrap_or_else(|error| Json::String(format!("({error})")))
    }

    /// A failure that stands alone.
    pub(super) fn failure(&self, bytes: &[u8]) -> Failure {
        match decode_failure(bytes) {
            Ok(failure) => self.opened(failure),
            Err(error) => Failure::unreadable(&error.to_string()),
        }
    }

    /// A failure whose details can be read, or that says why they cannot.
    fn opened(&self, mut failure: Failure) -> Failure {
        if let Err(error) = failure.open_details(self.codecs) {
            failure.details = None;
            failure.causes.push(format!("its details cannot be read: {error}"));
        }
        failure
    }
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
    pub(super) fn new(rows: Vec<RunRow>, limit: usize, codecs: &Codecs) -> RunPage {
        let (rows, next) = page(rows, limit, |row| row.id);
        let runs = rows.into_iter().map(|row| RunInfo::new(row, codecs));
        RunPage { runs: runs.collect(), next }
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
    /// How many bytes it takes in the store, without its key.
    pub size: usize,
    /// The run that it has started, or attached to, if it is a child.
    pub child: Option<RunId>,
}

/// The body of something that was not read, for people.
pub(super) fn unread_body(
    kind: InboxKind,
    body: &[u8],
    reader: &PayloadReader<'_>,
) -> Option<Json> {
    let kind = match kind {
        InboxKind::Message => return Some(reader.json(body)),
        InboxKind::RunEnded => EntryKind::Finished,
        _ => EntryKind::Deferred,
    };
    let (value, failure) = answered(kind, body, reader);
    value.or_else(|| failure.map(|failure| Json::String(failure.full())))
}

/// What an operation was answered, for people.
fn answered(
    kind: EntryKind,
    bytes: &[u8],
    reader: &PayloadReader<'_>,
) -> (Option<Json>, Option<Failure>) {
    // The end of a run comes with its id.
    let bytes = match kind {
        EntryKind::Child | EntryKind::Finished => bytes.get(16..).unwrap_or_default(),
        _ => bytes,
    };
    match answer::decode(bytes) {
        Ok(Answered::Value(payload)) if payload.is_empty() => (None, None),
        Ok(Answered::Value(payload) | Answered::Rejected(payload)) => {
            (Some(reader.json(&payload)), None)
        }
        Ok(Answered::Failure(failure)) => (None, Some(reader.opened(*failure))),
        Ok(Answered::Cancelled) => (Some(Json::String("cancelled".to_owned())), None),
        Ok(Answered::Unknown) => (Some(Json::String("unknown".to_owned())), None),
        Err(error) => (Some(Json::String(error.to_string())), None),
    }
}

pub(super) fn entries(
    reader: &PayloadReader<'_>,
    puts: Vec<Put>,
) -> Result<Vec<HistoryEntry>, ClientError> {
    let run = reader.run;
    let mut list = Vec::with_capacity(puts.len());
    for put in puts {
        if keys::is_of_run(&put.key) {
            continue;
        }
        let location = keys::describe(&put.key);
        let entry = decode_entry(&put.value).map_err(|error| ClientError::Decode {
            what: format!("the entry of `{location}` of run {run}"),
            problem: error.to_string(),
        })?;
        let child = children::child_of(&entry);
        let (value, failure) = match entry.value {
            EntryValue::None => (None, None),
            EntryValue::Payload(bytes) => (Some(reader.json(&bytes)), None),
            EntryValue::Failure(failure) => (None, Some(reader.opened(*failure))),
            EntryValue::Messages(messages) => {
                let bodies = messages.iter().map(|message| reader.json(&message.body));
                (Some(Json::Array(bodies.collect())), None)
            }
            EntryValue::Version(version) => (Some(version.into()), None),
            EntryValue::Receipt(code) => {
                let receipt = Receipt::from_code(code);
                (Some(Json::String(format!("{receipt:?}"))), None)
            }
            EntryValue::Answer(bytes) => answered(entry.kind, &bytes, reader),
            EntryValue::Started(id, _) => (Some(Json::String(id.to_string())), None),
            EntryValue::Item(item) => (Some(item.0.into()), None),
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
            size: put.value.len(),
            child,
        });
    }
    Ok(list)
}
