//! What became of runs over time. The index that says when runs have ended has their numbers, too.

use std::ops::ControlFlow;

use super::session::Session;
use crate::{
    run_id::RunId,
    store::{
        RunStatus, StatsRange, StatsRow,
        rules::overview::{Durations, duration_ms},
        sql::{
            Query, Sql,
            overview::{ENDED, workflows},
            value::params,
        },
    },
};

pub(super) fn stats(session: &Session<'_>, range: &StatsRange) -> rusqlite::Result<Vec<StatsRow>> {
    let mut rows = vec![StatsRow::default(); range.len()];
    let sql = "SELECT count(*) FROM everstep_runs WHERE no >= ?1 AND no < ?2";
    for (index, row) in rows.iter_mut().enumerate() {
        let (from, to) = range.bucket(index);
        row.started = session.count(sql, params![RunId::first_no(from), RunId::first_no(to)])?;
    }
    let mut durations = vec![Durations::default(); range.len()];
    // The number of a run is in every index, and says when it was started.
    let sql = "SELECT finished_at, no FROM everstep_runs INDEXED BY everstep_runs_finished \
               WHERE workflow = ?1 AND status = ?2 AND finished_at IS NOT NULL \
               AND finished_at >= ?3 AND finished_at < ?4 ORDER BY finished_at, no";
    for workflow in workflows(session)? {
        for status in ENDED {
            let (from, to) = (range.from(), range.to());
            let params = params![workflow, status, from, to];
            session.ask(vec![Query::new(sql, params, |row| {
                let at = row.get(0)?;
                if let Some(index) = range.index_of(at) {
                    rows[index].count(status, 1);
                    if status == RunStatus::Completed {
                        durations[index].add(duration_ms(row.get(1)?, at));
                    }
                }
                Ok(ControlFlow::Continue(()))
            })])?;
        }
    }
    for (row, durations) in rows.iter_mut().zip(durations) {
        durations.tell(row);
    }
    Ok(rows)
}
