//! Columns and the types they stand for, for all that reads rows.

use std::time::Duration;

use uuid::Uuid;

use super::{
    error::Trouble,
    session::Session,
    value::{Row, params},
};
use crate::{
    run_id::{RunId, RunNo, ShardId},
    store::{
        CancelRequest, DueRun, Fallback, Finished, InboxKind, InboxRow, RunRow, RunStatus, ShardSet,
    },
    time::Timestamp,
};

/// The columns that [`run_row`] reads.
pub(super) const RUN_ROW: &str = "no, id, workflow, version, key, pool, shard, status, ending, \
    generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
    recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, error, \
    parent, resume_at, trace";

/// The columns that [`due_run`] reads.
pub(super) const DUE_RUN: &str = "id, shard, available_at, status, workflow, version, pool";

/// The columns that [`inbox_row`] reads.
pub(super) const INBOX_ROW: &str = "seq, name, body, request, sent_at, kind, wait, on_end";

/// The columns that [`finished`] reads.
pub(super) const FINISHED: &str = "status, output, error";

pub(super) fn run_row(row: &Row) -> Result<RunRow, Trouble> {
    let id = run_id(row, 1)?;
    check_number(id, row.get(0)?)?;
    Ok(RunRow {
        id,
        workflow: row.get::<String>(2)?.into(),
        version: row.get(3)?,
        key: row.get(4)?,
        pool: row.get::<String>(5)?.into(),
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
        inbox_seq: number(row, 17)?,
        cancel_requested: cancel(row, 18)?,
        last_number: row.get::<Option<i64>>(19)?.unwrap_or(0) as u64,
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

pub(super) fn due_run(row: &Row) -> Result<DueRun, Trouble> {
    Ok(DueRun {
        id: run_id(row, 0)?,
        shard: ShardId(row.get(1)?),
        available_at: optional_time(row, 2)?,
        status: status(row, 3)?,
        workflow: row.get::<String>(4)?.into(),
        version: row.get(5)?,
        pool: row.get::<String>(6)?.into(),
    })
}

pub(super) fn finished(row: &Row) -> Result<Finished, Trouble> {
    Ok(Finished {
        status: status(row, 0)?,
        output: row.get(1)?,
        error: row.get(2)?,
    })
}

pub(super) fn inbox_after(
    session: &Session<'_>,
    run: RunNo,
    after: u64,
) -> Result<Vec<InboxRow>, Trouble> {
    let sql =
        format!("SELECT {INBOX_ROW} FROM everstep_inbox WHERE run = $1 AND seq > $2 ORDER BY seq");
    session.rows(sql, params![run.0, limit(after)], inbox_row)
}

pub(super) fn inbox_row(row: &Row) -> Result<InboxRow, Trouble> {
    let kind: u8 = row.get(5)?;
    Ok(InboxRow {
        seq: number(row, 0)?,
        kind: InboxKind::from_code(kind).ok_or_else(|| Trouble::value("kind", kind))?,
        name: row.get(1)?,
        body: row.get(2)?,
        wait: row.get(6)?,
        request: row.get::<Option<[u8; 16]>>(3)?.map(Uuid::from_bytes),
        sent_at: time(row, 4)?,
        on_end: match row.get::<Option<String>>(7)? {
            Some(json) => Some(Box::new(fallback(&json)?)),
            None => None,
        },
    })
}

fn fallback(json: &str) -> Result<Fallback, Trouble> {
    let (event, retain_ms, max_pending) = from_json(json)?;
    Ok(Fallback {
        event,
        retain: Duration::from_millis(retain_ms),
        max_pending,
    })
}

pub(super) fn fallback_json(fallback: &Fallback) -> String {
    let retain_ms = u64::try_from(fallback.retain.as_millis()).unwrap_or(u64::MAX);
    to_json(&(&fallback.event, retain_ms, fallback.max_pending))
}

pub(super) fn shards_of(session: &Session<'_>, runner: Uuid) -> Result<ShardSet, Trouble> {
    let sql = "SELECT shard FROM everstep_shards WHERE runner = $1";
    let shards = session.rows(sql, params![runner], |row| row.get(0).map(ShardId))?;
    Ok(shards.into_iter().collect())
}

pub(super) fn run_id(row: &Row, column: usize) -> Result<RunId, Trouble> {
    let uuid = Uuid::from_bytes(row.get(column)?);
    RunId::from_uuid(uuid).ok_or_else(|| Trouble::value("id", uuid))
}

pub(super) fn optional_run_id(row: &Row, column: usize) -> Result<Option<RunId>, Trouble> {
    let Some(bytes) = row.get::<Option<[u8; 16]>>(column)? else {
        return Ok(None);
    };
    let uuid = Uuid::from_bytes(bytes);
    let id = RunId::from_uuid(uuid).ok_or_else(|| Trouble::value("id", uuid))?;
    Ok(Some(id))
}

pub(super) fn tags(row: &Row, column: usize) -> Result<Vec<(String, String)>, Trouble> {
    match row.get::<Option<String>>(column)? {
        Some(json) => from_json(&json),
        None => Ok(Vec::new()),
    }
}

pub(super) fn status(row: &Row, column: usize) -> Result<RunStatus, Trouble> {
    status_of(row.get(column)?)
}

pub(super) fn optional_status(row: &Row, column: usize) -> Result<Option<RunStatus>, Trouble> {
    row.get::<Option<u8>>(column)?.map(status_of).transpose()
}

fn status_of(code: u8) -> Result<RunStatus, Trouble> {
    RunStatus::from_code(code).ok_or_else(|| Trouble::value("status", code))
}

pub(super) fn time(row: &Row, column: usize) -> Result<Timestamp, Trouble> {
    row.get(column).map(Timestamp::from_millis)
}

pub(super) fn optional_time(row: &Row, column: usize) -> Result<Option<Timestamp>, Trouble> {
    let ms = row.get::<Option<i64>>(column)?;
    Ok(ms.map(Timestamp::from_millis))
}

/// A number that is never negative.
pub(super) fn number(row: &Row, column: usize) -> Result<u64, Trouble> {
    row.get::<i64>(column).map(|number| number as u64)
}

pub(super) fn optional_number(row: &Row, column: usize) -> Result<Option<u64>, Trouble> {
    let number = row.get::<Option<i64>>(column)?;
    Ok(number.map(|number| number as u64))
}

pub(super) fn cancel(row: &Row, column: usize) -> Result<Option<CancelRequest>, Trouble> {
    let rollback = row.get::<Option<bool>>(column)?;
    Ok(rollback.map(|rollback| CancelRequest { rollback }))
}

/// A number as SQL takes it.
pub(super) fn limit(number: impl TryInto<i64>) -> i64 {
    number.try_into().unwrap_or(i64::MAX)
}

/// Checked on reading as on writing: a number that is not its id's would lose a run.
fn check_number(id: RunId, no: i64) -> Result<(), Trouble> {
    if id.no().0 == no {
        Ok(())
    } else {
        Err(Trouble::value("no", no))
    }
}

/// Pairs and lists of text or numbers, as the tables have them.
pub(super) fn to_json<T: serde::Serialize>(value: &T) -> String {
    // Texts, numbers and lists of them have no state that could not be written.
    serde_json::to_string(value).unwrap_or_default()
}

pub(super) fn from_json<T: serde::de::DeserializeOwned>(json: &str) -> Result<T, Trouble> {
    serde_json::from_str(json).map_err(|error| Trouble::value("a list", error))
}
