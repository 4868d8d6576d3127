//! What is read of runs, each call in one snapshot.

use uuid::Uuid;

use super::{
    Query, Sql, columns,
    streams::NAMES,
    value::{BadValue, Row, Value, params, read},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        Answer, Census, DueRun, Finished, LoadedRun, PausedRun, Put, RunRow, RunStatus, ShardSet,
        Target,
    },
    time::Timestamp,
};

pub(crate) fn run<S: Sql>(sql: &S, target: &Target) -> Result<Option<RunRow>, S::Error> {
    match target {
        Target::Id(id) => Ok(run_by_no(sql, id.no())?.filter(|row| row.id == *id)),
        Target::Key { workflow, key } => match find_key(sql, workflow, key)? {
            Some(no) => run_by_no(sql, no),
            None => Ok(None),
        },
    }
}

fn run_by_no<S: Sql>(sql: &S, no: RunNo) -> Result<Option<RunRow>, S::Error> {
    let text = format!("SELECT {} FROM everstep_runs WHERE no = ?1", columns::RUN_ROW);
    sql.row(text, params![no], columns::run_row)
}

/// The run of a key.
pub(crate) fn find_key<S: Sql>(
    sql: &S,
    workflow: &str,
    key: &str,
) -> Result<Option<RunNo>, S::Error> {
    let text =
        "SELECT run FROM everstep_keys WHERE workflow = ?1 AND key = ?2 AND kept_until IS NULL";
    sql.row(text, params![workflow, key], |row| row.get(0))
}

pub(crate) fn load<S: Sql>(sql: &S, no: RunNo) -> Result<Option<LoadedRun>, S::Error> {
    let run = format!("SELECT {} FROM everstep_runs WHERE no = ?1", columns::RUN_ROW);
    let history = "SELECT key, value FROM everstep_history WHERE run = ?1 \
                   AND generation = (SELECT generation FROM everstep_runs WHERE no = ?1) \
                   ORDER BY key";
    let inbox =
        format!("SELECT {} FROM everstep_inbox WHERE run = ?1 ORDER BY seq", columns::INBOX_ROW);
    let mut row = None;
    let (mut entries, mut messages, mut streams) = (Vec::new(), Vec::new(), Vec::new());
    sql.ask(vec![
        Query::first(run, params![no], &mut row, columns::run_row),
        Query::all(history, params![no], &mut entries, put),
        Query::all(inbox, params![no], &mut messages, columns::inbox_row),
        Query::all(NAMES, params![no], &mut streams, |row| row.get(0)),
    ])?;
    Ok(row.map(|row| LoadedRun { row, history: entries, inbox: messages, streams }))
}

fn put(row: &dyn Row) -> Result<Put, BadValue> {
    Ok(read!(row => Put { key, value }))
}

pub(crate) fn history<S: Sql>(
    sql: &S,
    run: RunNo,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<Put>, S::Error> {
    // Two statements, so that each can begin at its key.
    let first = match after {
        Some(_) => "key > ?2",
        None => "?2 IS NULL",
    };
    let text = format!(
        "SELECT key, value FROM everstep_history WHERE run = ?1 \
         AND generation = (SELECT generation FROM everstep_runs WHERE no = ?1) \
         AND {first} ORDER BY key LIMIT ?3"
    );
    sql.rows(text, params![run, after, limit], put)
}

/// Shards as a list for [`Sql::is_any`].
pub(crate) fn listed(shards: &ShardSet) -> Value {
    Value::ints(shards.iter().map(|shard| i64::from(shard.0)))
}

pub(crate) fn live<S: Sql>(
    sql: &S,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<DueRun>, S::Error> {
    let text = format!(
        "SELECT {} FROM everstep_runs{} WHERE status IN (1, 3) AND no > ?1 AND shard {} \
         ORDER BY no LIMIT ?3",
        columns::DUE_RUN,
        S::indexed_by("everstep_runs_live"),
        S::is_any("?2"),
    );
    let after = after.unwrap_or(RunNo(i64::MIN));
    sql.rows(text, params![after, listed(shards), limit], columns::due_run)
}

pub(crate) fn paused<S: Sql>(
    sql: &S,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<PausedRun>, S::Error> {
    let text = format!(
        "SELECT id, workflow, version, waiting FROM everstep_runs{} WHERE status = 4{} \
         AND available_at IS NULL AND no > ?1 AND shard {} ORDER BY no LIMIT ?3",
        S::indexed_by("everstep_runs_idle"),
        S::pick(" AND status IN (2, 4)", ""),
        S::is_any("?2"),
    );
    let after = after.unwrap_or(RunNo(i64::MIN));
    sql.rows(text, params![after, listed(shards), limit], |row| {
        Ok(read!(row => PausedRun { id, workflow, version, reason }))
    })
}

pub(crate) fn census<S: Sql>(
    sql: &S,
    now: Timestamp,
    shards: &ShardSet,
) -> Result<Census, S::Error> {
    // Both are answered by their indexes alone.
    let text = format!(
        "SELECT status, available_at > ?1, count(*) FROM everstep_runs{} \
         WHERE available_at IS NOT NULL AND shard {} GROUP BY 1, 2 \
         UNION ALL SELECT status, NULL, count(*) FROM everstep_runs{} \
         WHERE status IN (2, 4) AND available_at IS NULL AND shard {} GROUP BY 1",
        S::indexed_by("everstep_runs_due"),
        S::is_any("?2"),
        S::indexed_by("everstep_runs_idle"),
        S::is_any("?2"),
    );
    let counts = sql.rows(text, params![now, listed(shards)], |row| {
        Ok((row.get(0)?, row.get::<Option<bool>>(1)?, row.get::<u64>(2)?))
    })?;
    let mut census = Census::default();
    for (status, is_later, count) in counts {
        match (status, is_later) {
            (RunStatus::Pending | RunStatus::Sleeping, Some(true)) => census.timers += count,
            (RunStatus::Pending | RunStatus::Sleeping, Some(false)) => census.due += count,
            (RunStatus::Sleeping, None) => census.waiting += count,
            (RunStatus::Paused, _) => census.paused += count,
            _ => {}
        }
    }
    Ok(census)
}

pub(crate) fn state<S: Sql>(sql: &S, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, S::Error> {
    // What a deleted run has left is not shown.
    let text = "SELECT key, value FROM everstep_state WHERE run = ?1 \
                AND EXISTS (SELECT 1 FROM everstep_runs WHERE no = ?1) ORDER BY key";
    sql.rows(text, params![run], |row| Ok((row.get(0)?, row.get(1)?)))
}

pub(crate) fn finished<S: Sql>(
    sql: &S,
    runs: &[RunNo],
) -> Result<Vec<(RunNo, Option<Finished>)>, S::Error> {
    // Every asked number comes with its row, if there is one; those that live are left out.
    let text = format!(
        "SELECT {}, asked.number FROM {} \
         LEFT JOIN everstep_runs ON everstep_runs.no = asked.number \
         WHERE status IS NULL OR status >= 5 ORDER BY asked.place",
        columns::FINISHED,
        S::pick(
            "(SELECT key AS place, value AS number FROM json_each(?1)) AS asked",
            "unnest(?1::bigint[]) WITH ORDINALITY AS asked (number, place)",
        ),
    );
    let numbers = Value::ints(runs.iter().map(|run| run.0));
    sql.rows(text, params![numbers], |row| {
        let status: Option<RunStatus> = row.get(0)?;
        let finished = status.map(|_| columns::finished(row)).transpose()?;
        Ok((row.get(3)?, finished))
    })
}

pub(crate) fn answers<S: Sql>(sql: &S, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, S::Error> {
    let text = format!(
        "SELECT asked.id, state, body FROM {} \
         LEFT JOIN everstep_requests ON everstep_requests.id = asked.id AND NOT EXISTS \
         (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = everstep_requests.run) \
         WHERE state IS NULL OR state > 0 ORDER BY asked.place",
        S::pick(
            "(SELECT key AS place, unhex(value) AS id FROM json_each(?1)) AS asked",
            "unnest(?1::bytea[]) WITH ORDINALITY AS asked (id, place)",
        ),
    );
    sql.rows(text, params![Value::uuids(requests.iter().copied())], |row| {
        let answer = match row.get::<Option<i64>>(1)? {
            None => Answer::Unknown,
            Some(1) => Answer::Reply(row.get(2)?),
            Some(_) => Answer::RunEnded,
        };
        Ok((row.get(0)?, answer))
    })
}

pub(crate) fn has_old_generations<S: Sql>(sql: &S) -> Result<bool, S::Error> {
    sql.exists("SELECT 1 FROM everstep_old_generations LIMIT 1", &[])
}

/// The children of a run that have not ended.
pub(crate) fn live_children<S: Sql>(sql: &S, parent: RunNo) -> Result<Vec<RunId>, S::Error> {
    let text = "SELECT everstep_runs.id FROM everstep_children \
                JOIN everstep_runs ON everstep_runs.no = everstep_children.run \
                WHERE everstep_children.parent = ?1 ORDER BY everstep_children.run";
    sql.rows(text, params![parent], |row| row.get(0))
}
