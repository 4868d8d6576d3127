//! What people look at from above, in SQL.
//!
//! Every query here is answered by an index alone, or reads no more than it says.

use rusqlite::{Connection, OptionalExtension, params};

use super::{columns, queues::in_state, reads};
use crate::{
    commit::{InboxRow, ItemState, QueueStats, RunStatus},
    run_id::{RunId, RunNo},
    store::{
        Filter, QueueRow, StatsRange, StatsRow, StatusCounts,
        rules::overview::{Durations, duration_ms},
    },
    time::Timestamp,
};

pub(crate) fn unread(
    conn: &Connection,
    run: RunNo,
    after: u64,
    limit: usize,
) -> rusqlite::Result<Vec<InboxRow>> {
    let sql = format!(
        "SELECT {} FROM everstep_inbox WHERE run = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        columns::INBOX_ROW
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let params = params![run.0, columns::limit(after), columns::limit(limit)];
    statement.query_map(params, columns::inbox_row)?.collect()
}

pub(crate) fn queues(
    conn: &Connection,
    after: Option<&str>,
    limit: usize,
    most: u64,
) -> rusqlite::Result<Vec<QueueRow>> {
    let mut rows = Vec::new();
    let mut after = after.map(str::to_owned);
    while rows.len() < limit {
        let Some(name) = next_queue(conn, after.as_deref())? else {
            break;
        };
        let stats = stats_up_to(conn, &name, most)?;
        after = Some(name.clone());
        rows.push(QueueRow { name, stats });
    }
    Ok(rows)
}

/// The first queue after this one: one look into each of the indexes that begin with the queue.
fn next_queue(conn: &Connection, after: Option<&str>) -> rusqlite::Result<Option<String>> {
    let parts = [
        ("everstep_queue_ready", "state = 0"),
        ("everstep_queue_timed", "state IN (1, 2, 3)"),
        ("everstep_queue_dead", "state = 4"),
    ];
    let mut first: Option<String> = None;
    for (index, state) in parts {
        // Names are never empty.
        let sql = format!(
            "SELECT queue FROM everstep_queue_items INDEXED BY {index} WHERE {state} AND queue > ?1 \
             ORDER BY queue LIMIT 1"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let found = statement.query_row([after.unwrap_or_default()], |row| row.get(0));
        let found: Option<String> = found.optional()?;
        first = match (first, found) {
            (Some(first), Some(found)) => Some(first.min(found)),
            (first, found) => first.or(found),
        };
    }
    Ok(first)
}

fn stats_up_to(conn: &Connection, queue: &str, most: u64) -> rusqlite::Result<QueueStats> {
    let count = |state: ItemState| -> rusqlite::Result<u64> {
        let sql = format!(
            "SELECT count(*) FROM (SELECT 1 FROM everstep_queue_items WHERE queue = ?1 AND {} LIMIT ?2)",
            in_state(state)
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let params = params![queue, columns::limit(most)];
        Ok(statement.query_row(params, |row| row.get::<_, i64>(0))? as u64)
    };
    Ok(QueueStats {
        ready: count(ItemState::Ready)?,
        delayed: count(ItemState::Delayed)?,
        claimed: count(ItemState::Claimed)?,
        done: count(ItemState::Done)?,
        dead: count(ItemState::Dead)?,
        oldest_ready: oldest_ready(conn, queue)?,
    })
}

/// The oldest of each priority is the first of it in the index.
fn oldest_ready(conn: &Connection, queue: &str) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT rank, at FROM everstep_queue_items INDEXED BY everstep_queue_ready \
               WHERE queue = ?1 AND state = 0 AND rank > ?2 ORDER BY rank, at LIMIT 1";
    let mut statement = conn.prepare_cached(sql)?;
    let mut oldest = None;
    let mut rank = i64::MIN;
    while let Some((next, at)) = statement
        .query_row(params![queue, rank], |row| {
            Ok((row.get(0)?, columns::time(row, 1)?))
        })
        .optional()?
    {
        rank = next;
        oldest = Some(oldest.map_or(at, |oldest: Timestamp| oldest.min(at)));
    }
    Ok(oldest)
}

pub(crate) fn count(conn: &Connection, filter: &Filter) -> rusqlite::Result<u64> {
    if filter.is_indexed() {
        return Ok(count_by_status(conn, filter)?.total());
    }
    reads::count(conn, filter)
}

pub(crate) fn count_by_status(
    conn: &Connection,
    filter: &Filter,
) -> rusqlite::Result<StatusCounts> {
    let mut counts = StatusCounts::default();
    if !filter.is_indexed() {
        reads::count_by_status(conn, filter, |status, number| counts.add(status, number))?;
        return Ok(counts);
    }
    let sql = "SELECT count(*) FROM everstep_runs INDEXED BY everstep_runs_finished \
               WHERE workflow = ?1 AND status = ?2 AND finished_at IS NOT NULL \
               AND finished_at >= ?3 AND finished_at < ?4";
    let mut ended = conn.prepare_cached(sql)?;
    let from = filter.finished_from.map_or(i64::MIN, Timestamp::as_millis);
    let before = filter
        .finished_before
        .map_or(i64::MAX, Timestamp::as_millis);
    let workflows = match &filter.workflow {
        Some(workflow) => vec![workflow.clone()],
        None => workflows(conn)?,
    };
    for workflow in workflows {
        for status in ENDED.into_iter().filter(|status| filter.wants(*status)) {
            let params = params![workflow, status.code(), from, before];
            let number = ended.query_row(params, |row| row.get::<_, i64>(0))?;
            counts.add(status, number as u64);
        }
    }
    if filter.finished_from.is_some() || filter.finished_before.is_some() {
        return Ok(counts);
    }
    let (of_workflow, params) = match &filter.workflow {
        // Only then is the row itself looked at.
        Some(workflow) => (" AND workflow = ?1", vec![workflow]),
        None => ("", Vec::new()),
    };
    for (index, _, condition) in LIVE {
        let sql = format!(
            "SELECT status, count(*) FROM everstep_runs INDEXED BY {index} \
             WHERE {condition}{of_workflow} GROUP BY 1"
        );
        let mut statement = conn.prepare_cached(&sql)?;
        let mut rows = statement.query(rusqlite::params_from_iter(&params))?;
        while let Some(row) = rows.next()? {
            let status = columns::status(row, 0)?;
            if filter.wants(status) {
                counts.add(status, row.get::<_, i64>(1)? as u64);
            }
        }
    }
    Ok(counts)
}

/// Every run that has not ended is in exactly one of these: an index, the statuses of what is in it,
/// and how it is asked for.
pub(super) const LIVE: [(&str, &[u8], &str); 3] = [
    ("everstep_runs_live", &[1, 3], "status IN (1, 3)"),
    (
        "everstep_runs_due",
        &[0, 2, 4],
        "available_at IS NOT NULL AND status IN (0, 2, 4)",
    ),
    (
        "everstep_runs_idle",
        &[2, 4],
        "status IN (2, 4) AND available_at IS NULL",
    ),
];

pub(super) const ENDED: [RunStatus; 3] = [
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
];

/// The workflows of which a run has ended: one look into the index for each.
pub(super) fn workflows(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let sql = "SELECT workflow FROM everstep_runs INDEXED BY everstep_runs_finished \
               WHERE finished_at IS NOT NULL AND workflow > ?1 ORDER BY workflow LIMIT 1";
    names(conn, sql)
}

/// All names, by a query for the first one after another.
pub(super) fn names(conn: &Connection, sql: &str) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare_cached(sql)?;
    let mut names: Vec<String> = Vec::new();
    loop {
        let after = names.last().map_or("", String::as_str);
        match statement.query_row([after], |row| row.get(0)).optional()? {
            Some(name) => names.push(name),
            None => return Ok(names),
        }
    }
}

/// The row of `secrets` that has the retention horizon, in milliseconds as 8 bytes, the highest first: so
/// the greater instant is the greater blob. It is no secret, but this is the table of what is kept once
/// for the whole store.
const HORIZON: &str = "retention_horizon";

pub(crate) fn horizon(conn: &Connection) -> rusqlite::Result<Option<Timestamp>> {
    let sql = "SELECT value FROM everstep_secrets WHERE name = ?1";
    let found: Option<Vec<u8>> = conn
        .prepare_cached(sql)?
        .query_row([HORIZON], |row| row.get(0))
        .optional()?;
    let bytes = found.and_then(|bytes| bytes.try_into().ok());
    Ok(bytes.map(|bytes| Timestamp::from_millis(i64::from_be_bytes(bytes))))
}

pub(crate) fn raise_horizon(conn: &Connection, to: Timestamp) -> rusqlite::Result<()> {
    let sql = "INSERT INTO everstep_secrets (name, value) VALUES (?1, ?2) ON CONFLICT (name) \
               DO UPDATE SET value = excluded.value WHERE everstep_secrets.value < excluded.value";
    let bytes = to.as_millis().max(0).to_be_bytes();
    conn.prepare_cached(sql)?.execute(params![HORIZON, bytes])?;
    Ok(())
}

pub(crate) fn stats(conn: &Connection, range: &StatsRange) -> rusqlite::Result<Vec<StatsRow>> {
    let mut rows = vec![StatsRow::default(); range.len()];
    let sql = "SELECT count(*) FROM everstep_runs WHERE no >= ?1 AND no < ?2";
    let mut started = conn.prepare_cached(sql)?;
    for (index, row) in rows.iter_mut().enumerate() {
        let (from, to) = range.bucket(index);
        let params = params![RunId::first_no(from).0, RunId::first_no(to).0];
        row.started = started.query_row(params, |row| row.get::<_, i64>(0))? as u64;
    }
    let mut durations = vec![Durations::default(); range.len()];
    // The number of a run is in every index, and says when it was started.
    let sql = "SELECT finished_at, no FROM everstep_runs INDEXED BY everstep_runs_finished \
               WHERE workflow = ?1 AND status = ?2 AND finished_at IS NOT NULL \
               AND finished_at >= ?3 AND finished_at < ?4 ORDER BY finished_at, no";
    let mut ended = conn.prepare_cached(sql)?;
    for workflow in workflows(conn)? {
        for status in ENDED {
            let (from, to) = (range.from().as_millis(), range.to().as_millis());
            let mut found = ended.query(params![workflow, status.code(), from, to])?;
            while let Some(row) = found.next()? {
                let at = columns::time(row, 0)?;
                let Some(index) = range.index_of(at) else {
                    continue;
                };
                rows[index].count(status, 1);
                if status == RunStatus::Completed {
                    durations[index].add(duration_ms(RunNo(row.get(1)?), at));
                }
            }
        }
    }
    for (row, durations) in rows.iter_mut().zip(durations) {
        durations.tell(row);
    }
    Ok(rows)
}
