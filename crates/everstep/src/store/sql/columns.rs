//! The rows that several features read, and the columns that they are read from.

use std::time::Duration;

use super::{
    Sql,
    value::{BadValue, Datum, FromDatum, Row, params, read},
};
use crate::{
    run_id::RunNo,
    store::{DueRun, Fallback, Finished, InboxRow, RunRow, ShardSet, rows::Waiter},
};

/// The columns that [`run_row`] reads.
pub(crate) const RUN_ROW: &str = "no, id, workflow, version, key, pool, shard, status, ending, \
    generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
    recoveries, inbox_seq, cancel_requested, coalesce(last_number, 0), waiting, tags, input, output, \
    error, parent, resume_at, trace";

/// The columns that [`due_run`] reads.
pub(crate) const DUE_RUN: &str = "id, shard, available_at, status, workflow, version, pool";

/// The columns that [`inbox_row`] reads.
pub(crate) const INBOX_ROW: &str = "seq, name, body, request, sent_at, kind, wait, on_end";

/// The columns that [`finished`] reads.
pub(crate) const FINISHED: &str = "status, output, error";

pub(crate) fn run_row(row: &dyn Row) -> Result<RunRow, BadValue> {
    let (no, id): (RunNo, crate::run_id::RunId) = (row.get(0)?, row.get(1)?);
    // Checked on reading as on writing: a number that is not its id's would lose a run.
    if id.no() != no {
        return Err(BadValue::new("no", no.0));
    }
    Ok(read!(row, 1 => RunRow {
        id, workflow, version, key, pool, shard, status, ending, generation, available_at,
        deadline_at, created_at, updated_at, finished_at, attempts, recoveries, inbox_seq,
        cancel_requested, last_number, waiting, tags, input, output, error, parent, resume_at, trace,
    }))
}

pub(crate) fn due_run(row: &dyn Row) -> Result<DueRun, BadValue> {
    Ok(read!(row => DueRun { id, shard, available_at, status, workflow, version, pool }))
}

pub(crate) fn finished(row: &dyn Row) -> Result<Finished, BadValue> {
    Ok(read!(row => Finished { status, output, error }))
}

pub(crate) fn inbox_after<S: Sql>(
    sql: &S,
    run: RunNo,
    after: u64,
) -> Result<Vec<InboxRow>, S::Error> {
    let text =
        format!("SELECT {INBOX_ROW} FROM everstep_inbox WHERE run = ?1 AND seq > ?2 ORDER BY seq");
    sql.rows(text, params![run, after], inbox_row)
}

pub(crate) fn inbox_row(row: &dyn Row) -> Result<InboxRow, BadValue> {
    Ok(read!(row => InboxRow { seq, name, body, request, sent_at, kind, wait, on_end }))
}

impl FromDatum for Box<Fallback> {
    fn from_datum(datum: Datum<'_>) -> Result<Box<Fallback>, String> {
        let (event, retain_ms, max_pending) =
            from_json(&String::from_datum(datum)?).map_err(|bad| bad.found)?;
        Ok(Box::new(Fallback { event, retain: Duration::from_millis(retain_ms), max_pending }))
    }
}

pub(crate) fn fallback_json(fallback: &Fallback) -> String {
    let retain_ms = u64::try_from(fallback.retain.as_millis()).unwrap_or(u64::MAX);
    to_json(&(&fallback.event, retain_ms, fallback.max_pending))
}

/// An operation that waits: its run, generation and key, from this column on.
pub(crate) fn waiter(row: &dyn Row, column: usize) -> Result<Waiter, BadValue> {
    Ok(read!(row, column => Waiter { run, generation, key }))
}

pub(crate) fn shards_of<S: Sql>(sql: &S, runner: uuid::Uuid) -> Result<ShardSet, S::Error> {
    let text = "SELECT shard FROM everstep_shards WHERE runner = ?1";
    let shards = sql.rows(text, params![runner], |row| row.get(0))?;
    Ok(shards.into_iter().collect())
}

/// A list as it is stored: nothing, if it is empty.
pub(crate) fn list_json<T: serde::Serialize>(list: &[T]) -> Option<String> {
    (!list.is_empty()).then(|| to_json(&list))
}

/// Pairs and lists of text or numbers, as the tables have them.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> String {
    // Texts, numbers and lists of them have no state that could not be written.
    serde_json::to_string(value).unwrap_or_default()
}

pub(crate) fn from_json<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, BadValue> {
    serde_json::from_str(json).map_err(|error| BadValue::new("a list", error))
}
