//! Schedules in SQL.

use std::time::Duration;

use super::{
    ahead::Ahead,
    batch::Applier,
    columns,
    error::Trouble,
    locks::Lock,
    session::{Bulk, Op, Session},
    value::{Row, Value, params},
};
use crate::{
    schedule::Overlap,
    store::{rules::schedules::ScheduleTables, *},
    time::Timestamp,
};

/// The columns that [`row`] reads.
const ROW: &str = "name, revision, workflow, version, input, tags, spec, anchor, overlap, \
    catch_up, paused, next_at, queue, last_tick, last_run, started, skipped, missed, created_at, \
    updated_at";

/// The columns are those of [`ROW`].
static PUT_SCHEDULE: Bulk = Bulk {
    table: "everstep_schedules",
    sql: "INSERT INTO everstep_schedules (name, revision, workflow, version, input, tags, spec, anchor, \
          overlap, catch_up, paused, next_at, queue, last_tick, last_run, started, skipped, missed, \
          created_at, updated_at) SELECT * FROM unnest($1::text[], $2::bigint[], $3::text[], \
          $4::bigint[], $5::bytea[], $6::text[], $7::text[], $8::bigint[], $9::bigint[], \
          $10::bigint[], $11::bigint[], $12::bigint[], $13::text[], $14::bigint[], $15::bytea[], \
          $16::bigint[], $17::bigint[], $18::bigint[], $19::bigint[], $20::bigint[]) \
          ON CONFLICT (name) DO UPDATE SET \
          revision = excluded.revision, workflow = excluded.workflow, version = excluded.version, \
          input = excluded.input, tags = excluded.tags, spec = excluded.spec, \
          anchor = excluded.anchor, overlap = excluded.overlap, catch_up = excluded.catch_up, \
          paused = excluded.paused, next_at = excluded.next_at, queue = excluded.queue, \
          last_tick = excluded.last_tick, last_run = excluded.last_run, \
          started = excluded.started, skipped = excluded.skipped, missed = excluded.missed, \
          created_at = excluded.created_at, updated_at = excluded.updated_at",
    unique: 1,
};

pub(super) fn read_one(session: &Session<'_>, name: &str) -> Result<Option<ScheduleRow>, Trouble> {
    let sql = format!("SELECT {ROW} FROM everstep_schedules WHERE name = $1");
    session.row(sql, params![name], row)
}

pub(super) fn read_all(
    session: &Session<'_>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ScheduleRow>, Trouble> {
    // No name is empty.
    let params = params![after.unwrap_or_default(), columns::limit(limit)];
    read(session, "name > $1 ORDER BY name LIMIT $2", params)
}

pub(super) fn read_queued(
    session: &Session<'_>,
    after: Option<&str>,
    limit: usize,
) -> Result<Vec<ScheduleRow>, Trouble> {
    let params = params![after.unwrap_or_default(), columns::limit(limit)];
    let which = "paused = 0 AND queue IS NOT NULL AND name > $1 ORDER BY name LIMIT $2";
    read(session, which, params)
}

pub(super) fn read_due(
    session: &Session<'_>,
    now: Timestamp,
    after: Option<(Timestamp, &str)>,
    limit: usize,
) -> Result<DueSchedules, Trouble> {
    let (at, name) = after.map_or((i64::MIN, ""), |(at, name)| (at.as_millis(), name));
    let due = format!(
        "SELECT {ROW} FROM everstep_schedules WHERE paused = 0 AND next_at IS NOT NULL AND next_at <= $1 \
         AND (next_at, name) > ($2, $3) ORDER BY next_at, name LIMIT $4"
    );
    let params = params![now.as_millis(), at, name, columns::limit(limit)];
    let next = "SELECT min(next_at) FROM everstep_schedules \
                WHERE paused = 0 AND next_at IS NOT NULL AND next_at > $1";
    let next = Op::new(next, params![now.as_millis()]);
    let answers = session.queries(vec![Op::new(due, params), next])?;
    let rows = answers.first().into_iter().flatten().map(row);
    let next_at = answers.get(1).and_then(|rows| rows.first());
    Ok(DueSchedules {
        rows: rows.collect::<Result<_, _>>()?,
        next_at: match next_at {
            Some(row) => columns::optional_time(row, 0)?,
            None => None,
        },
    })
}

fn read(
    session: &Session<'_>,
    which: &str,
    params: Vec<Value>,
) -> Result<Vec<ScheduleRow>, Trouble> {
    session.rows(
        format!("SELECT {ROW} FROM everstep_schedules WHERE {which}"),
        params,
        row,
    )
}

fn row(row: &Row) -> Result<ScheduleRow, Trouble> {
    let overlap: u8 = row.get(8)?;
    Ok(ScheduleRow {
        name: row.get(0)?,
        revision: columns::number(row, 1)?,
        workflow: row.get::<String>(2)?.into(),
        version: row.get(3)?,
        input: row.get(4)?,
        tags: columns::tags(row, 5)?,
        spec: row.get(6)?,
        anchor: columns::time(row, 7)?,
        overlap: Overlap::from_code(overlap).ok_or_else(|| Trouble::value("overlap", overlap))?,
        catch_up: Duration::from_millis(columns::number(row, 9)?),
        paused: row.get(10)?,
        next_at: columns::optional_time(row, 11)?,
        queue: match row.get::<Option<String>>(12)? {
            Some(json) => ticks(&json)?,
            None => Vec::new(),
        },
        last_tick: columns::optional_time(row, 13)?,
        last_run: columns::optional_run_id(row, 14)?,
        started: columns::number(row, 15)?,
        skipped: columns::number(row, 16)?,
        missed: columns::number(row, 17)?,
        created_at: columns::time(row, 18)?,
        updated_at: columns::time(row, 19)?,
    })
}

fn ticks(json: &str) -> Result<Vec<QueuedTick>, Trouble> {
    let ticks: Vec<(i64, bool)> =
        serde_json::from_str(json).map_err(|error| Trouble::value("queue", error))?;
    let ticks = ticks.into_iter().map(|(ms, is_trigger)| QueuedTick {
        at: Timestamp::from_millis(ms),
        is_trigger,
    });
    Ok(ticks.collect())
}

/// As it is stored: whole milliseconds, within the numbers of SQL.
fn catch_up(row: &ScheduleRow) -> i64 {
    columns::limit(row.catch_up.as_millis())
}

/// Reads all of these, to be asked behind their locks.
pub(super) fn op_ahead(names: impl Iterator<Item = String>) -> Op {
    let names = Value::Texts(names.map(Some).collect());
    let sql = format!("SELECT {ROW} FROM everstep_schedules WHERE name = ANY ($1)");
    Op::new(sql, vec![names])
}

impl Ahead {
    /// Keeps the rows of schedules that were asked for.
    pub(super) fn add_schedules(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for found in rows {
            let found = row(found)?;
            self.schedules.insert(found.name.clone(), Some(found));
        }
        Ok(())
    }
}

impl ScheduleTables for Applier<'_> {
    fn schedule(&mut self, name: &str) -> Result<Option<ScheduleRow>, Trouble> {
        self.lock(Lock::schedule(name))?;
        match self.ahead.schedules.get(name) {
            Some(known) => Ok(known.clone()),
            None => read_one(self.session, name),
        }
    }

    fn write_schedule(&mut self, row: &ScheduleRow) -> Result<(), Trouble> {
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
        self.session.put(&PUT_SCHEDULE, params);
        let known = Some(row.clone());
        self.ahead.schedules.insert(row.name.clone(), known);
        Ok(())
    }

    fn delete_schedule(&mut self, name: &str) -> Result<(), Trouble> {
        self.execute(
            "DELETE FROM everstep_schedules WHERE name = $1",
            params![name],
        );
        self.ahead.schedules.insert(name.to_owned(), None);
        Ok(())
    }
}
