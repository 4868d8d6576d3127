//! Schedules in SQL.

use std::time::Duration;

use rusqlite::{Connection, OptionalExtension, Params, Row, params};

use super::{batch::Applier, columns, error::bad_value};
use crate::{
    schedule::Overlap,
    store::{rules::schedules::ScheduleTables, *},
    time::Timestamp,
};

/// The columns that [`row`] reads.
const ROW: &str = "name, revision, workflow, version, input, tags, spec, anchor, overlap, \
    catch_up, paused, next_at, queue, last_tick, last_run, started, skipped, missed, created_at, \
    updated_at";

pub(crate) fn read_one(conn: &Connection, name: &str) -> rusqlite::Result<Option<ScheduleRow>> {
    let sql = format!("SELECT {ROW} FROM everstep_schedules WHERE name = ?1");
    let mut statement = conn.prepare_cached(&sql)?;
    statement.query_row([name], row).optional()
}

pub(crate) fn read_all(
    conn: &Connection,
    after: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<ScheduleRow>> {
    // No name is empty.
    let params = params![after.unwrap_or_default(), columns::limit(limit)];
    read(
        conn,
        "everstep_schedules WHERE name > ?1 ORDER BY name LIMIT ?2",
        params,
    )
}

pub(crate) fn read_queued(
    conn: &Connection,
    after: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<ScheduleRow>> {
    let params = params![after.unwrap_or_default(), columns::limit(limit)];
    let from = "everstep_schedules INDEXED BY everstep_queued_schedules WHERE paused = 0 AND queue IS NOT NULL \
                AND name > ?1 ORDER BY name LIMIT ?2";
    read(conn, from, params)
}

pub(crate) fn read_due(
    conn: &Connection,
    now: Timestamp,
    after: Option<(Timestamp, &str)>,
    limit: usize,
) -> rusqlite::Result<DueSchedules> {
    let (at, name) = after.map_or((i64::MIN, ""), |(at, name)| (at.as_millis(), name));
    let from = "everstep_schedules INDEXED BY everstep_due_schedules WHERE paused = 0 AND next_at IS NOT NULL \
                AND next_at <= ?1 AND (next_at, name) > (?2, ?3) ORDER BY next_at, name LIMIT ?4";
    let params = params![now.as_millis(), at, name, columns::limit(limit)];
    let rows = read(conn, from, params)?;
    let sql = "SELECT min(next_at) FROM everstep_schedules INDEXED BY everstep_due_schedules \
               WHERE paused = 0 AND next_at IS NOT NULL AND next_at > ?1";
    let mut statement = conn.prepare_cached(sql)?;
    let next_at = statement.query_row([now.as_millis()], |row| columns::optional_time(row, 0))?;
    Ok(DueSchedules { rows, next_at })
}

fn read(conn: &Connection, from: &str, params: impl Params) -> rusqlite::Result<Vec<ScheduleRow>> {
    let mut statement = conn.prepare_cached(&format!("SELECT {ROW} FROM {from}"))?;
    let rows = statement.query_map(params, row)?;
    rows.collect()
}

fn row(row: &Row<'_>) -> rusqlite::Result<ScheduleRow> {
    let count = |column| row.get::<_, i64>(column).map(|n| n as u64);
    let overlap: u8 = row.get(8)?;
    let last_run = match row.get_ref(14)? {
        rusqlite::types::ValueRef::Null => None,
        _ => Some(columns::run_id(row, 14)?),
    };
    Ok(ScheduleRow {
        name: row.get(0)?,
        revision: count(1)?,
        workflow: row.get::<_, String>(2)?.into(),
        version: row.get(3)?,
        input: row.get(4)?,
        tags: match row.get_ref(5)?.as_str_or_null()? {
            Some(json) => columns::from_json(json)?,
            None => Vec::new(),
        },
        spec: row.get(6)?,
        anchor: columns::time(row, 7)?,
        overlap: Overlap::from_code(overlap).ok_or_else(|| bad_value("overlap", overlap))?,
        catch_up: Duration::from_millis(count(9)?),
        paused: row.get(10)?,
        next_at: columns::optional_time(row, 11)?,
        queue: match row.get_ref(12)?.as_str_or_null()? {
            Some(json) => ticks(json)?,
            None => Vec::new(),
        },
        last_tick: columns::optional_time(row, 13)?,
        last_run,
        started: count(15)?,
        skipped: count(16)?,
        missed: count(17)?,
        created_at: columns::time(row, 18)?,
        updated_at: columns::time(row, 19)?,
    })
}

fn ticks(json: &str) -> rusqlite::Result<Vec<QueuedTick>> {
    let ticks: Vec<(i64, bool)> =
        serde_json::from_str(json).map_err(|error| bad_value("queue", error))?;
    let ticks = ticks.into_iter().map(|(ms, is_trigger)| QueuedTick {
        at: Timestamp::from_millis(ms),
        is_trigger,
    });
    Ok(ticks.collect())
}

/// As it is stored: whole milliseconds, within the numbers of SQL.
fn catch_up(row: &ScheduleRow) -> i64 {
    i64::try_from(row.catch_up.as_millis()).unwrap_or(i64::MAX)
}

impl ScheduleTables for Applier<'_> {
    fn schedule(&mut self, name: &str) -> rusqlite::Result<Option<ScheduleRow>> {
        read_one(self.conn, name)
    }

    fn write_schedule(&mut self, row: &ScheduleRow) -> rusqlite::Result<()> {
        let sql = format!(
            "INSERT OR REPLACE INTO everstep_schedules ({ROW}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, \
             ?10, ?11, ?12, ?13, ?14, ?15, ?16, ?17, ?18, ?19, ?20)"
        );
        let tags = (!row.tags.is_empty()).then(|| columns::to_json(&row.tags));
        let ticks = row
            .queue
            .iter()
            .map(|tick| (tick.at.as_millis(), tick.is_trigger));
        let queue = (!row.queue.is_empty()).then(|| columns::to_json(&ticks.collect::<Vec<_>>()));
        let params = params![
            row.name,
            row.revision as i64,
            &*row.workflow,
            row.version,
            row.input,
            tags,
            row.spec,
            row.anchor.as_millis(),
            row.overlap.code(),
            catch_up(row),
            row.paused,
            row.next_at.map(Timestamp::as_millis),
            queue,
            row.last_tick.map(Timestamp::as_millis),
            row.last_run.map(|run| *run.as_uuid().as_bytes()),
            row.started as i64,
            row.skipped as i64,
            row.missed as i64,
            row.created_at.as_millis(),
            row.updated_at.as_millis(),
        ];
        self.execute(&sql, params).map(drop)
    }

    fn delete_schedule(&mut self, name: &str) -> rusqlite::Result<()> {
        self.execute("DELETE FROM everstep_schedules WHERE name = ?1", [name])
            .map(drop)
    }
}
