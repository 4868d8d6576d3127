//! Columns and the types they stand for, for all that reads rows.

use std::time::Duration;

use rusqlite::{Connection, Row, params};
use uuid::Uuid;

use super::{batch::check_number, error::bad_value};
use crate::{
    run_id::{RunId, RunNo, ShardId},
    store::{
        CancelRequest, DueRun, Fallback, Finished, InboxKind, InboxRow, RunRow, RunStatus, ShardSet,
    },
    time::Timestamp,
};

/// The columns that [`run_row`] reads.
pub(crate) const RUN_ROW: &str = "no, id, workflow, version, key, pool, shard, status, ending, \
    generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
    recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, error, \
    parent, resume_at, trace";

/// The columns that [`due_run`] reads.
pub(crate) const DUE_RUN: &str = "id, shard, available_at, status, workflow, version, pool";

/// The columns that [`inbox_row`] reads.
pub(crate) const INBOX_ROW: &str = "seq, name, body, request, sent_at, kind, wait, on_end";

/// The columns that [`finished`] reads.
pub(crate) const FINISHED: &str = "id, workflow, status, output, error";

pub(crate) fn run_row(row: &Row<'_>) -> rusqlite::Result<RunRow> {
    let id = run_id(row, 1)?;
    check_number(id, row.get(0)?)?;
    Ok(RunRow {
        id,
        workflow: row.get::<_, String>(2)?.into(),
        version: row.get(3)?,
        key: row.get(4)?,
        pool: row.get::<_, String>(5)?.into(),
        shard: ShardId(row.get(6)?),
        status: status(row, 7)?,
        ending: optional_status(row, 8)?,
        generation: row.get(9)?,
        available_at: optional_time(row, 10)?,
        deadline_at: optional_time(row, 11)?,
        created_at: time(row, 12)?,
        updated_at: time(row, 13)?,
        finished_at: optional_time(row, 14)?,
        attempts: row.get(15)?,
        recoveries: row.get(16)?,
        inbox_seq: row.get::<_, i64>(17)? as u64,
        cancel_requested: cancel(row, 18)?,
        last_number: row.get::<_, Option<i64>>(19)?.unwrap_or(0) as u64,
        waiting: row.get(20)?,
        tags: tags(row, 21)?,
        trace: row.get(27)?,
        parent: optional_run_id(row, 25)?,
        input: row.get(22)?,
        output: row.get(23)?,
        error: row.get(24)?,
        resume_at: optional_time(row, 26)?,
    })
}

pub(crate) fn due_run(row: &Row<'_>) -> rusqlite::Result<DueRun> {
    Ok(DueRun {
        id: run_id(row, 0)?,
        shard: ShardId(row.get(1)?),
        available_at: optional_time(row, 2)?,
        status: status(row, 3)?,
        workflow: row.get::<_, String>(4)?.into(),
        version: row.get(5)?,
        pool: row.get::<_, String>(6)?.into(),
    })
}

pub(crate) fn finished(row: &Row<'_>) -> rusqlite::Result<Finished> {
    Ok(Finished {
        status: status(row, 2)?,
        output: row.get(3)?,
        error: row.get(4)?,
    })
}

pub(crate) fn inbox_after(
    conn: &Connection,
    run: RunNo,
    after: u64,
) -> rusqlite::Result<Vec<InboxRow>> {
    let sql =
        format!("SELECT {INBOX_ROW} FROM everstep_inbox WHERE run = ?1 AND seq > ?2 ORDER BY seq");
    let mut statement = conn.prepare_cached(&sql)?;
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    let rows = statement.query_map(params![run.0, after], inbox_row)?;
    rows.collect()
}

pub(crate) fn inbox_row(row: &Row<'_>) -> rusqlite::Result<InboxRow> {
    let kind: u8 = row.get(5)?;
    Ok(InboxRow {
        seq: row.get::<_, i64>(0)? as u64,
        kind: InboxKind::from_code(kind).ok_or_else(|| bad_value("kind", kind))?,
        name: row.get(1)?,
        body: row.get(2)?,
        wait: row.get(6)?,
        request: row.get::<_, Option<[u8; 16]>>(3)?.map(Uuid::from_bytes),
        sent_at: time(row, 4)?,
        on_end: match row.get_ref(7)?.as_str_or_null()? {
            Some(json) => Some(Box::new(fallback(json)?)),
            None => None,
        },
    })
}

fn fallback(json: &str) -> rusqlite::Result<Fallback> {
    let (event, retain_ms, max_pending) =
        serde_json::from_str(json).map_err(|error| bad_value("on_end", error))?;
    Ok(Fallback {
        event,
        retain: Duration::from_millis(retain_ms),
        max_pending,
    })
}

pub(crate) fn fallback_json(fallback: &Fallback) -> String {
    let retain_ms = u64::try_from(fallback.retain.as_millis()).unwrap_or(u64::MAX);
    to_json(&(&fallback.event, retain_ms, fallback.max_pending))
}

pub(crate) fn shards_of(conn: &Connection, runner: Uuid) -> rusqlite::Result<ShardSet> {
    let mut statement =
        conn.prepare_cached("SELECT shard FROM everstep_shards WHERE runner = ?1")?;
    let shards = statement.query_map([runner.as_bytes()], |row| row.get(0).map(ShardId))?;
    shards.collect()
}

pub(crate) fn run_id(row: &Row<'_>, column: usize) -> rusqlite::Result<RunId> {
    let uuid = Uuid::from_bytes(row.get(column)?);
    RunId::from_uuid(uuid).ok_or_else(|| bad_value("id", uuid))
}

pub(crate) fn optional_run_id(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<RunId>> {
    let Some(bytes) = row.get::<_, Option<[u8; 16]>>(column)? else {
        return Ok(None);
    };
    let uuid = Uuid::from_bytes(bytes);
    let id = RunId::from_uuid(uuid).ok_or_else(|| bad_value("parent", uuid))?;
    Ok(Some(id))
}

pub(crate) fn tags(row: &Row<'_>, column: usize) -> rusqlite::Result<Vec<(String, String)>> {
    match row.get_ref(column)?.as_str_or_null()? {
        Some(json) => from_json(json),
        None => Ok(Vec::new()),
    }
}

pub(crate) fn status(row: &Row<'_>, column: usize) -> rusqlite::Result<RunStatus> {
    status_of(row.get(column)?)
}

pub(crate) fn optional_status(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<RunStatus>> {
    row.get::<_, Option<u8>>(column)?.map(status_of).transpose()
}

fn status_of(code: u8) -> rusqlite::Result<RunStatus> {
    RunStatus::from_code(code).ok_or_else(|| bad_value("status", code))
}

pub(crate) fn time(row: &Row<'_>, column: usize) -> rusqlite::Result<Timestamp> {
    row.get(column).map(Timestamp::from_millis)
}

pub(crate) fn optional_time(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<Timestamp>> {
    Ok(row
        .get::<_, Option<i64>>(column)?
        .map(Timestamp::from_millis))
}

pub(crate) fn cancel(row: &Row<'_>, column: usize) -> rusqlite::Result<Option<CancelRequest>> {
    Ok(row
        .get::<_, Option<bool>>(column)?
        .map(|rollback| CancelRequest { rollback }))
}

/// A number of rows as SQL takes it.
pub(crate) fn limit(rows: impl TryInto<i64>) -> i64 {
    rows.try_into().unwrap_or(i64::MAX)
}

/// Pairs and lists of text or numbers, as the file has them.
pub(crate) fn to_json<T: serde::Serialize>(value: &T) -> String {
    // Texts, numbers and lists of them have no state that could not be written.
    serde_json::to_string(value).unwrap_or_default()
}

pub(crate) fn from_json<T: serde::de::DeserializeOwned>(json: &str) -> rusqlite::Result<T> {
    serde_json::from_str(json).map_err(|error| bad_value("a list", error))
}
