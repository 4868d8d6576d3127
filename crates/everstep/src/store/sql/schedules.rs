//! The rows of schedules. One is locked when its row is read.

use super::{
    InSql, Query, Sql, SqlTables, Subject,
    bulk::Bulk,
    columns,
    value::{BadValue, Datum, FromDatum, Row, params, read},
};
use crate::{
    store::{DueSchedules, QueuedTick, ScheduleRow, rows::ScheduleTables},
    time::Timestamp,
};

/// The columns that [`row`] reads.
pub(crate) const ROW: &str = "name, revision, workflow, version, input, tags, spec, anchor, \
    overlap, catch_up, paused, next_at, queue, last_tick, last_run, started, skipped, missed, \
    created_at, updated_at";

/// The columns are those of [`ROW`].
static PUT_SCHEDULE: Bulk = Bulk::put(
    "everstep_schedules",
    1,
    "name text, revision bigint, workflow text, version bigint, input bytea, tags text, spec text, \
     anchor bigint, overlap bigint, catch_up bigint, paused bigint, next_at bigint, queue text, \
     last_tick bigint, last_run bytea, started bigint, skipped bigint, missed bigint, \
     created_at bigint, updated_at bigint",
);

pub(crate) fn read_one<S: Sql>(sql: &S, name: &str) -> Result<Option<ScheduleRow>, S::Error> {
    let text = format!("SELECT {ROW} FROM everstep_schedules WHERE name = ?1");
    sql.row(text, params![name], row)
}

pub(crate) fn read_all<S: Sql>(
    sql: &S,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ScheduleRow>, S::Error> {
    let text =
        format!("SELECT {ROW} FROM everstep_schedules WHERE name > ?1 ORDER BY name LIMIT ?2");
    // No name is empty.
    sql.rows(text, params![after.unwrap_or_default(), limit], row)
}

pub(crate) fn read_queued<S: Sql>(
    sql: &S,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ScheduleRow>, S::Error> {
    let text = format!(
        "SELECT {ROW} FROM everstep_schedules{} WHERE paused = 0 AND queue IS NOT NULL \
         AND name > ?1 ORDER BY name LIMIT ?2",
        S::indexed_by("everstep_queued_schedules")
    );
    sql.rows(text, params![after.unwrap_or_default(), limit], row)
}

pub(crate) fn read_due<S: Sql>(
    sql: &S,
    now: Timestamp,
    after: Option<(Timestamp, &str)>,
    limit: usize,
) -> Result<DueSchedules, S::Error> {
    let (at, name) = after.map_or((i64::MIN, ""), |(at, name)| (at.as_millis(), name));
    let index = S::indexed_by("everstep_due_schedules");
    let due = format!(
        "SELECT {ROW} FROM everstep_schedules{index} WHERE paused = 0 AND next_at IS NOT NULL \
         AND next_at <= ?1 AND (next_at, name) > (?2, ?3) ORDER BY next_at, name LIMIT ?4"
    );
    let next = format!(
        "SELECT min(next_at) FROM everstep_schedules{index} \
         WHERE paused = 0 AND next_at IS NOT NULL AND next_at > ?1"
    );
    let (mut rows, mut next_at) = (Vec::new(), None);
    sql.ask(vec![
        Query::all(due, params![now, at, name, limit], &mut rows, row),
        Query::first(next, params![now], &mut next_at, |row| row.get(0)),
    ])?;
    let next_at = next_at.flatten();
    Ok(DueSchedules { rows, next_at })
}

pub(crate) fn row(row: &dyn Row) -> Result<ScheduleRow, BadValue> {
    Ok(read!(row => ScheduleRow {
        name, revision, workflow, version, input, tags, spec, anchor, overlap, catch_up, paused,
        next_at, queue, last_tick, last_run, started, skipped, missed, created_at, updated_at,
    }))
}

impl FromDatum for Vec<QueuedTick> {
    fn from_datum(datum: Datum<'_>) -> Result<Vec<QueuedTick>, String> {
        let Some(json) = Option::<String>::from_datum(datum)? else {
            return Ok(Vec::new());
        };
        let ticks: Vec<(i64, bool)> = columns::from_json(&json).map_err(|bad| bad.found)?;
        let ticks = ticks
            .into_iter()
            .map(|(ms, is_trigger)| QueuedTick { at: Timestamp::from_millis(ms), is_trigger });
        Ok(ticks.collect())
    }
}

impl<T: SqlTables> ScheduleTables for InSql<T> {
    fn schedule(&mut self, name: &str) -> Result<Option<ScheduleRow>, T::Error> {
        self.lock(Subject::Schedule(name))?;
        match self.ahead().schedules.get(name) {
            Some(known) => Ok(known.clone()),
            None => read_one(self.sql(), name),
        }
    }

    fn write_schedule(&mut self, row: &ScheduleRow) -> Result<(), T::Error> {
        let ticks = row.queue.iter().map(|tick| (tick.at.as_millis(), tick.is_trigger));
        let queue = columns::list_json(&ticks.collect::<Vec<_>>());
        let (tags, catch_up) = (columns::list_json(&row.tags), row.catch_up.as_millis());
        let overlap = row.overlap.code();
        let values = params![
            row.name,
            row.revision,
            row.workflow,
            row.version,
            row.input,
            tags,
            row.spec,
            row.anchor,
            overlap,
            catch_up,
            row.paused,
            row.next_at,
            queue,
            row.last_tick,
            row.last_run,
            row.started,
            row.skipped,
            row.missed,
            row.created_at,
            row.updated_at,
        ];
        self.sql().put(&PUT_SCHEDULE, values)?;
        let known = Some(row.clone());
        self.ahead().schedules.insert(row.name.clone(), known);
        Ok(())
    }

    fn delete_schedule(&mut self, name: &str) -> Result<(), T::Error> {
        let sql = "DELETE FROM everstep_schedules WHERE name = ?1";
        self.sql().execute(sql, params![name])?;
        self.ahead().schedules.insert(name.to_owned(), None);
        Ok(())
    }
}
