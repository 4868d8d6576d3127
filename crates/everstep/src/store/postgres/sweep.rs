//! What deletes have left and the sweep that removes it, and the runs that retention deletes.

use super::{columns, error::Trouble, session::Session, value::params};
use crate::{
    run_id::{RunId, RunNo},
    store::{rules::sweep::SweptTables, *},
    time::Timestamp,
};

/// Whether deletes have left anything.
pub(super) fn is_left(
    session: &Session<'_>,
    now: Timestamp,
    lanes_before: i64,
) -> Result<bool, Trouble> {
    let sql = "SELECT EXISTS (SELECT 1 FROM everstep_graves) OR EXISTS (SELECT 1 FROM everstep_keys \
               WHERE kept_until IS NOT NULL AND kept_until <= $1) \
               OR EXISTS (SELECT 1 FROM everstep_lanes WHERE seen_at < $2)";
    let params = params![now.as_millis(), lanes_before];
    let left = session.row(sql, params, |row| row.get(0))?;
    Ok(left.unwrap_or(false))
}

/// What deletes have left. Several processes may sweep it: each takes graves of its own.
pub(super) struct Left<'a> {
    pub(super) session: &'a Session<'a>,
    pub(super) now: Timestamp,
}

impl SweptTables for Left<'_> {
    type Error = Trouble;

    fn delete_tombstones(&mut self, limit: usize) -> Result<usize, Trouble> {
        let sql = "DELETE FROM everstep_keys WHERE (workflow, key) IN (SELECT workflow, key FROM everstep_keys \
                   WHERE kept_until IS NOT NULL AND kept_until <= $1 \
                   ORDER BY workflow, key LIMIT $2 FOR UPDATE SKIP LOCKED)";
        let params = params![self.now.as_millis(), columns::limit(limit)];
        self.session.execute_now(sql, params)
    }

    fn next_grave(&mut self) -> Result<Option<RunNo>, Trouble> {
        let sql = "SELECT run FROM everstep_graves ORDER BY run LIMIT 1 FOR UPDATE SKIP LOCKED";
        self.session
            .row(sql, Vec::new(), |row| row.get(0).map(RunNo))
    }

    fn delete_left(&mut self, sql: String, run: RunNo, limit: usize) -> Result<usize, Trouble> {
        let params = params![run.0, columns::limit(limit)];
        self.session.execute_now(sql, params)
    }

    fn delete_grave(&mut self, run: RunNo) -> Result<(), Trouble> {
        let sql = "DELETE FROM everstep_graves WHERE run = $1";
        self.session.execute(sql, params![run.0]);
        Ok(())
    }
}

pub(super) fn finished_before(
    session: &Session<'_>,
    workflow: &str,
    status: RunStatus,
    before: Timestamp,
    limit: usize,
) -> Result<Vec<(RunId, Timestamp)>, Trouble> {
    let sql = "SELECT id, finished_at FROM everstep_runs \
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
