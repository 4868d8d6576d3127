//! Which runs are due: asked all the time, so that the shards are picked here and not by SQLite.

use std::ops::ControlFlow;

use super::session::Session;
use crate::{
    run_id::{RunId, RunNo, ShardId},
    store::{
        Due, DueRun, FUTURE, ShardSet, rules,
        sql::{
            Query, Sql, columns,
            value::{BadValue, Row, params},
        },
    },
    time::Timestamp,
};

/// Walks the index in order and picks the rows of these shards.
pub(super) fn due(
    session: &Session<'_>,
    now: Timestamp,
    shards: &ShardSet,
    after: Option<(Timestamp, RunNo)>,
    limit: usize,
) -> rusqlite::Result<Due> {
    if shards.is_empty() {
        return Ok(Due::default());
    }
    let (mut ours, mut next_at) = (Vec::new(), None);
    let (at, no) = after.unwrap_or((Timestamp::from_millis(i64::MIN), RunNo(i64::MIN)));
    let due = "SELECT no, shard FROM everstep_runs INDEXED BY everstep_runs_due \
               WHERE available_at IS NOT NULL AND available_at >= ?1 AND available_at <= ?2 \
               AND (available_at > ?1 OR no > ?3) ORDER BY available_at, no";
    let next = "SELECT available_at, shard FROM everstep_runs INDEXED BY everstep_runs_due \
                WHERE available_at IS NOT NULL AND available_at > ?1 ORDER BY available_at";
    session.ask(vec![
        Query::new(next, params![now], |row| {
            if !is_one_of(shards, row)? {
                return Ok(ControlFlow::Continue(()));
            }
            next_at = row.get(0)?;
            Ok(ControlFlow::Break(()))
        }),
        Query::new(due, params![at, now, no], |row| {
            if ours.len() == limit {
                return Ok(ControlFlow::Break(()));
            }
            if is_one_of(shards, row)? {
                ours.push(row.get::<RunNo>(0)?);
            }
            Ok(ControlFlow::Continue(()))
        }),
    ])?;
    let sql = format!("SELECT {} FROM everstep_runs WHERE no = ?1", columns::DUE_RUN);
    let mut runs = Vec::with_capacity(ours.len());
    for run in ours {
        runs.extend(session.row(sql.clone(), params![run], columns::due_run)?);
    }
    let rest = limit - runs.len();
    if rest > 0 {
        runs.extend(of_the_future(session, now, shards, (at, no), rest)?);
    }
    Ok(Due { runs, next_at })
}

/// Whether the shard in the second column is one of these; a damaged one is nobody's.
fn is_one_of(shards: &ShardSet, row: &dyn Row) -> Result<bool, BadValue> {
    let shard = u32::try_from(row.get::<i64>(1)?);
    Ok(shard.is_ok_and(|shard| shards.contains(ShardId(shard))))
}

/// Runs that are due at once, and whose ids were made by a clock that is ahead. So this costs a look
/// behind the last number as long as there are none.
fn of_the_future(
    session: &Session<'_>,
    now: Timestamp,
    shards: &ShardSet,
    (at, no): (Timestamp, RunNo),
    limit: usize,
) -> rusqlite::Result<Vec<DueRun>> {
    let sql = format!(
        "SELECT {} FROM everstep_runs NOT INDEXED WHERE no >= ?1 AND available_at > ?2 \
         AND available_at <= {} AND (available_at, no) > (?3, ?4) ORDER BY available_at, no",
        columns::DUE_RUN,
        rules::MADE_AT
    );
    let first = RunId::first_no(now + FUTURE);
    let params = params![first, now, at, no];
    let mut found = session.rows(sql, params, columns::due_run)?;
    found.retain(|run| shards.contains(run.shard));
    found.truncate(limit);
    Ok(found)
}
