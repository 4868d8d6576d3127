//! What deletes have left and the sweep that removes it, and the runs that retention deletes.

use super::{columns, error::Trouble, session::Session, value::params};
use crate::{run_id::RunId, store::*, time::Timestamp};

/// The tables that hold something of a run under its number, with the columns that name one row.
/// What a run leaves in them is swept; `runs`, `keys` and `tags` are cleared by the delete itself.
pub(super) const LEFT_BY_RUNS: &[(&str, &str)] = &[
    ("deferreds", "run, generation, tag"),
    ("deferred_waits", "run, generation, tag, key"),
    ("history", "run, generation, key"),
    ("inbox", "run, seq"),
    ("dedupes", "run, key"),
    ("requests", "id"),
    ("state", "run, key"),
    ("dead_letters", "no"),
    ("streams", "run, stream, pos"),
    ("event_cursors", "run, name, matching"),
    ("limit_places", "run, generation, operation"),
];

/// Whether deletes have left anything.
pub(super) fn is_left(
    session: &Session<'_>,
    now: Timestamp,
    lanes_before: i64,
) -> Result<bool, Trouble> {
    let sql = "SELECT EXISTS (SELECT 1 FROM graves) OR EXISTS (SELECT 1 FROM keys \
               WHERE kept_until IS NOT NULL AND kept_until <= $1) \
               OR EXISTS (SELECT 1 FROM lanes WHERE seen_at < $2)";
    let params = params![now.as_millis(), lanes_before];
    let left = session.row(sql, params, |row| row.get(0))?;
    Ok(left.unwrap_or(false))
}

/// Removes about `limit` rows of what deletes have left. Whether there is more.
pub(super) fn sweep(session: &Session<'_>, now: Timestamp, limit: usize) -> Result<bool, Trouble> {
    let mut left = limit.max(1);
    let sql = "DELETE FROM keys WHERE (workflow, key) IN (SELECT workflow, key FROM keys \
               WHERE kept_until IS NOT NULL AND kept_until <= $1 \
               ORDER BY workflow, key LIMIT $2 FOR UPDATE SKIP LOCKED)";
    let params = params![now.as_millis(), columns::limit(left)];
    left -= session.execute_now(sql, params)?.min(left);
    while left > 0 {
        // Several processes may sweep: each takes a grave of its own.
        let sql = "SELECT run FROM graves ORDER BY run LIMIT 1 FOR UPDATE SKIP LOCKED";
        let next = session.row(sql, Vec::new(), |row| row.get::<i64>(0))?;
        let Some(run) = next else {
            return Ok(false);
        };
        left -= sweep_run(session, run, left)?.min(left);
    }
    Ok(true)
}

/// How many rows it has removed, the grave itself included.
fn sweep_run(session: &Session<'_>, run: i64, limit: usize) -> Result<usize, Trouble> {
    let mut removed = 0;
    for (table, row) in LEFT_BY_RUNS {
        let sql = format!(
            "DELETE FROM {table} WHERE ({row}) IN \
             (SELECT {row} FROM {table} WHERE run = $1 LIMIT $2)"
        );
        let rest = columns::limit(limit - removed);
        removed += session.execute_now(sql, params![run, rest])?;
        if removed >= limit {
            return Ok(removed);
        }
    }
    session.execute("DELETE FROM graves WHERE run = $1", params![run]);
    Ok(removed + 1)
}

pub(super) fn finished_before(
    session: &Session<'_>,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> Result<Vec<(RunId, Timestamp)>, Trouble> {
    let sql = "SELECT id, finished_at FROM runs \
               WHERE workflow = $1 AND status = $2 AND finished_at IS NOT NULL \
               AND finished_at < $3 ORDER BY finished_at, no LIMIT $4";
    let params = params![
        workflow,
        status.code(),
        before.as_millis(),
        columns::limit(limit)
    ];
    session.rows(sql, params, |row| {
        Ok((columns::run_id(row, 0)?, columns::time(row, 1)?))
    })
}
