//! What is read from the file, each call in one snapshot.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use uuid::Uuid;

use super::{batch::find_key, columns, listing};
use crate::{
    run_id::{RunId, RunNo, ShardId},
    store::{rules, *},
    time::Timestamp,
};

pub(crate) fn run(conn: &Connection, target: &Target) -> rusqlite::Result<Option<RunRow>> {
    match target {
        Target::Id(id) => Ok(run_by_no(conn, id.no())?.filter(|row| row.id == *id)),
        Target::Key { workflow, key } => match find_key(conn, workflow, key)? {
            Some(no) => run_by_no(conn, no),
            None => Ok(None),
        },
    }
}

fn run_by_no(conn: &Connection, no: RunNo) -> rusqlite::Result<Option<RunRow>> {
    let sql = format!(
        "SELECT {} FROM everstep_runs WHERE no = ?1",
        columns::RUN_ROW
    );
    conn.prepare_cached(&sql)?
        .query_row([no.0], columns::run_row)
        .optional()
}

pub(crate) fn load(conn: &Connection, no: RunNo) -> rusqlite::Result<Option<LoadedRun>> {
    let Some(row) = run_by_no(conn, no)? else {
        return Ok(None);
    };
    let sql =
        "SELECT key, value FROM everstep_history WHERE run = ?1 AND generation = ?2 ORDER BY key";
    let mut statement = conn.prepare_cached(sql)?;
    let history = statement.query_map(params![no.0, row.generation], put)?;
    let history = history.collect::<rusqlite::Result<_>>()?;
    let inbox = columns::inbox_after(conn, no, 0)?;
    let streams = super::streams::names(conn, no)?;
    Ok(Some(LoadedRun {
        row,
        history,
        inbox,
        streams,
    }))
}

fn put(row: &Row<'_>) -> rusqlite::Result<Put> {
    Ok(Put {
        key: row.get(0)?,
        value: row.get(1)?,
    })
}

pub(crate) fn history(
    conn: &Connection,
    run: RunNo,
    after: Option<&[u8]>,
    limit: usize,
) -> rusqlite::Result<Vec<Put>> {
    let sql = "SELECT key, value FROM everstep_history WHERE run = ?1 \
               AND generation = (SELECT generation FROM everstep_runs WHERE no = ?1) \
               AND (?2 IS NULL OR key > ?2) ORDER BY key LIMIT ?3";
    // Two statements, so that each can begin at its key.
    let sql = if after.is_some() {
        sql.replace("(?2 IS NULL OR key > ?2)", "key > ?2")
    } else {
        sql.replace("AND (?2 IS NULL OR key > ?2)", "AND ?2 IS NULL")
    };
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![run.0, after, columns::limit(limit)], put)?;
    rows.collect()
}

/// Walks the index in order and picks the rows of these shards.
pub(crate) fn due(
    conn: &Connection,
    now: Timestamp,
    shards: &ShardSet,
    after: Option<(Timestamp, RunNo)>,
    limit: usize,
) -> rusqlite::Result<Due> {
    let next_at = next_at(conn, now, shards)?;
    if limit == 0 || shards.is_empty() {
        return Ok(Due {
            runs: Vec::new(),
            next_at,
        });
    }
    let (after_at, after_no) =
        after.map_or((i64::MIN, i64::MIN), |(at, RunNo(no))| (at.as_millis(), no));
    let sql = "SELECT no, shard FROM everstep_runs INDEXED BY everstep_runs_due \
               WHERE available_at IS NOT NULL AND available_at >= ?1 AND available_at <= ?2 \
               AND (available_at > ?1 OR no > ?3) ORDER BY available_at, no";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query(params![after_at, now.as_millis(), after_no])?;
    let sql = format!(
        "SELECT {} FROM everstep_runs WHERE no = ?1",
        columns::DUE_RUN
    );
    let mut by_no = conn.prepare_cached(&sql)?;
    let mut runs = Vec::new();
    while let Some(row) = rows.next()? {
        if shards.contains(shard(row.get(1)?)) {
            runs.push(by_no.query_row([row.get::<_, i64>(0)?], columns::due_run)?);
            if runs.len() == limit {
                return Ok(Due { runs, next_at });
            }
        }
    }
    let after = (after_at, after_no);
    runs.extend(of_the_future(conn, now, shards, after, limit - runs.len())?);
    Ok(Due { runs, next_at })
}

/// Runs that are due at once, and whose ids were made by a clock that is ahead. So this costs a look
/// behind the last number as long as there are none.
fn of_the_future(
    conn: &Connection,
    now: Timestamp,
    shards: &ShardSet,
    after: (i64, i64),
    limit: usize,
) -> rusqlite::Result<Vec<DueRun>> {
    let sql = format!(
        "SELECT {} FROM everstep_runs NOT INDEXED WHERE no >= ?1 AND available_at > ?2 \
         AND available_at <= {} AND (available_at, no) > (?3, ?4) ORDER BY available_at, no",
        columns::DUE_RUN,
        rules::MADE_AT
    );
    let first = RunId::first_no(now + FUTURE).0;
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(
        params![first, now.as_millis(), after.0, after.1],
        columns::due_run,
    )?;
    let ours = rows.filter(|run| run.as_ref().map_or(true, |run| shards.contains(run.shard)));
    ours.take(limit).collect()
}

fn next_at(
    conn: &Connection,
    now: Timestamp,
    shards: &ShardSet,
) -> rusqlite::Result<Option<Timestamp>> {
    if shards.is_empty() {
        return Ok(None);
    }
    let sql = "SELECT available_at, shard FROM everstep_runs INDEXED BY everstep_runs_due \
               WHERE available_at IS NOT NULL AND available_at > ?1 ORDER BY available_at";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([now.as_millis()])?;
    while let Some(row) = rows.next()? {
        if shards.contains(shard(row.get(1)?)) {
            return columns::time(row, 0).map(Some);
        }
    }
    Ok(None)
}

/// A shard from the file; a damaged one is nobody's.
fn shard(number: i64) -> ShardId {
    ShardId(u32::try_from(number).unwrap_or(u32::MAX))
}

pub(crate) fn live(
    conn: &Connection,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> rusqlite::Result<Vec<DueRun>> {
    let sql = format!(
        "SELECT {} FROM everstep_runs INDEXED BY everstep_runs_live WHERE status IN (1, 3) AND no > ?1 ORDER BY no",
        columns::DUE_RUN
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let mut rows = statement.query([after.map_or(i64::MIN, |no| no.0)])?;
    let mut runs = Vec::new();
    while runs.len() < limit {
        let Some(row) = rows.next()? else { break };
        let run = columns::due_run(row)?;
        if shards.contains(run.shard) {
            runs.push(run);
        }
    }
    Ok(runs)
}

pub(crate) fn paused(
    conn: &Connection,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> rusqlite::Result<Vec<PausedRun>> {
    let sql = "SELECT id, shard, workflow, version, waiting FROM everstep_runs INDEXED BY everstep_runs_idle \
               WHERE status = 4 AND status IN (2, 4) AND available_at IS NULL AND no > ?1 \
               ORDER BY no";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([after.map_or(i64::MIN, |no| no.0)])?;
    let mut runs = Vec::new();
    while runs.len() < limit {
        let Some(row) = rows.next()? else { break };
        if shards.contains(shard(row.get(1)?)) {
            runs.push(PausedRun {
                id: columns::run_id(row, 0)?,
                workflow: row.get::<_, String>(2)?.into(),
                version: row.get(3)?,
                reason: row.get(4)?,
            });
        }
    }
    Ok(runs)
}

pub(crate) fn census(
    conn: &Connection,
    now: Timestamp,
    shards: &ShardSet,
) -> rusqlite::Result<Census> {
    let mut census = Census::default();
    // Both are answered by their indexes alone.
    let sql = "SELECT shard, status, available_at > ?1, count(*) FROM everstep_runs INDEXED BY everstep_runs_due \
               WHERE available_at IS NOT NULL GROUP BY 1, 2, 3 \
               UNION ALL \
               SELECT shard, status, NULL, count(*) FROM everstep_runs INDEXED BY everstep_runs_idle \
               WHERE status IN (2, 4) AND available_at IS NULL GROUP BY 1, 2";
    let mut statement = conn.prepare_cached(sql)?;
    let mut rows = statement.query([now.as_millis()])?;
    while let Some(row) = rows.next()? {
        if !shards.contains(shard(row.get(0)?)) {
            continue;
        }
        let count = row.get::<_, i64>(3)? as u64;
        match (columns::status(row, 1)?, row.get::<_, Option<bool>>(2)?) {
            (RunStatus::Pending | RunStatus::Sleeping, Some(true)) => census.timers += count,
            (RunStatus::Pending | RunStatus::Sleeping, Some(false)) => census.due += count,
            (RunStatus::Sleeping, None) => census.waiting += count,
            (RunStatus::Paused, _) => census.paused += count,
            _ => {}
        }
    }
    Ok(census)
}

pub(crate) fn count(conn: &Connection, filter: &Filter) -> rusqlite::Result<u64> {
    let (condition, params) = narrowed(conn, filter)?;
    let sql = format!("SELECT count(*) FROM everstep_runs WHERE {condition}");
    let params = rusqlite::params_from_iter(params);
    conn.query_row(&sql, params, |row| row.get::<_, i64>(0))
        .map(|count| count as u64)
}

/// How many match of each status. Looks at every run that the rest of the filter leaves.
pub(crate) fn count_by_status(
    conn: &Connection,
    filter: &Filter,
    mut count: impl FnMut(RunStatus, u64),
) -> rusqlite::Result<()> {
    let (condition, params) = narrowed(conn, filter)?;
    let sql = format!("SELECT status, count(*) FROM everstep_runs WHERE {condition} GROUP BY 1");
    let mut statement = conn.prepare(&sql)?;
    let mut rows = statement.query(rusqlite::params_from_iter(params))?;
    while let Some(row) = rows.next()? {
        count(columns::status(row, 0)?, row.get::<_, i64>(1)? as u64);
    }
    Ok(())
}

/// How many runs of each workflow have each status. Finished ones are counted in their index alone;
/// those that have not ended are found by theirs, so that no other row is read.
pub(crate) fn tally(conn: &Connection) -> rusqlite::Result<Vec<WorkflowCount>> {
    let sql = "
        SELECT workflow, status, count(*) FROM everstep_runs
        WHERE finished_at IS NOT NULL GROUP BY workflow, status
        UNION ALL
        SELECT workflow, status, count(*) FROM everstep_runs
        WHERE finished_at IS NULL AND no IN (
            SELECT no FROM everstep_runs WHERE available_at IS NOT NULL
            UNION SELECT no FROM everstep_runs WHERE status IN (1, 3)
            UNION SELECT no FROM everstep_runs WHERE status IN (2, 4) AND available_at IS NULL
        ) GROUP BY workflow, status";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        Ok(WorkflowCount {
            workflow: row.get::<_, String>(0)?.into(),
            status: columns::status(row, 1)?,
            runs: row.get::<_, i64>(2)? as u64,
        })
    })?;
    rows.collect()
}

/// What goes into a statement.
pub(super) type Params = Vec<Box<dyn ToSql>>;

/// The filter as SQL for all runs that match: tables that lead to them come first.
fn narrowed(conn: &Connection, filter: &Filter) -> rusqlite::Result<(String, Params)> {
    let (mut rest, mut terms, mut params) = (filter.clone(), Vec::new(), Params::new());
    for (name, value) in rest.tags.drain(..) {
        terms.push("no IN (SELECT run FROM everstep_tags WHERE name = ? AND value = ?)".to_owned());
        params.push(Box::new(name));
        params.push(Box::new(value));
    }
    if rest.key_prefix.take().is_some() {
        let (sql, of_keys) = listing::by_key(conn, filter)?;
        terms.push(format!("no IN ({sql})"));
        params.extend(of_keys);
    }
    let (condition, of_rest) = condition(&rest);
    terms.push(condition);
    params.extend(of_rest);
    Ok((terms.join(" AND "), params))
}

/// The filter as SQL about the row of a run. Everything that a user has written is a parameter.
pub(super) fn condition(filter: &Filter) -> (String, Params) {
    let mut terms = vec!["TRUE".to_owned()];
    let mut params = Params::new();
    if !filter.ids.is_empty() {
        let numbers: Vec<i64> = filter.ids.iter().map(|id| id.no().0).collect();
        let ids = filter.ids.iter().map(|id| id.as_uuid().simple());
        let ids: Vec<String> = ids.map(|id| id.to_string()).collect();
        terms.push("no IN (SELECT value FROM json_each(?))".to_owned());
        terms.push("lower(hex(id)) IN (SELECT value FROM json_each(?))".to_owned());
        params.push(Box::new(columns::to_json(&numbers)));
        params.push(Box::new(columns::to_json(&ids)));
    }
    if !filter.statuses.is_empty() {
        let codes = filter
            .statuses
            .iter()
            .map(|status| status.code().to_string());
        terms.push(format!(
            "status IN ({})",
            codes.collect::<Vec<_>>().join(", ")
        ));
    }
    if let Some(workflow) = &filter.workflow {
        terms.push("workflow = ?".to_owned());
        params.push(Box::new(workflow.clone()));
    }
    for (name, value) in &filter.tags {
        terms.push(
            "EXISTS (SELECT 1 FROM everstep_tags WHERE name = ? AND value = ? AND run = everstep_runs.no)".to_owned(),
        );
        params.push(Box::new(name.clone()));
        params.push(Box::new(value.clone()));
    }
    if let Some(from) = filter.created_from {
        terms.push("created_at >= ?".to_owned());
        params.push(Box::new(from.as_millis()));
    }
    if let Some(before) = filter.created_before {
        terms.push("created_at < ?".to_owned());
        params.push(Box::new(before.as_millis()));
    }
    if let Some(version) = filter.version {
        terms.push("version = ?".to_owned());
        params.push(Box::new(version));
    }
    if let Some(prefix) = &filter.key_prefix {
        terms.push("key >= ?".to_owned());
        params.push(Box::new(prefix.clone()));
        if let Some(end) = rules::prefix_end(prefix) {
            terms.push("key < ?".to_owned());
            params.push(Box::new(end));
        }
    }
    if let Some(from) = filter.finished_from {
        terms.push("finished_at >= ?".to_owned());
        params.push(Box::new(from.as_millis()));
    }
    if let Some(before) = filter.finished_before {
        terms.push("finished_at < ?".to_owned());
        params.push(Box::new(before.as_millis()));
    }
    (terms.join(" AND "), params)
}

pub(crate) fn state(conn: &Connection, run: RunNo) -> rusqlite::Result<Vec<(String, Vec<u8>)>> {
    // What a deleted run has left is not shown.
    let sql = "SELECT key, value FROM everstep_state WHERE run = ?1 \
               AND EXISTS (SELECT 1 FROM everstep_runs WHERE no = ?1) ORDER BY key";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([run.0], |row| Ok((row.get(0)?, row.get(1)?)))?;
    rows.collect()
}

pub(crate) fn finished(
    conn: &Connection,
    runs: &[RunNo],
) -> rusqlite::Result<Vec<(RunNo, Option<Finished>)>> {
    let asked = columns::to_json(&runs.iter().map(|no| no.0).collect::<Vec<_>>());
    // Every asked number comes with its row, if there is one; those that live are left out.
    let sql = format!(
        "WITH asked (no) AS (SELECT value FROM json_each(?1)) \
         SELECT {}, asked.no FROM asked LEFT JOIN everstep_runs ON everstep_runs.no = asked.no \
         WHERE status IS NULL OR status >= 5",
        columns::FINISHED
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map([asked], |row| {
        let is_missing = row.get::<_, Option<[u8; 16]>>(0)?.is_none();
        let finished = if is_missing {
            None
        } else {
            Some(columns::finished(row)?)
        };
        Ok((RunNo(row.get(5)?), finished))
    })?;
    rows.collect()
}

pub(crate) fn answers(
    conn: &Connection,
    requests: &[Uuid],
) -> rusqlite::Result<Vec<(Uuid, Answer)>> {
    let hex = requests
        .iter()
        .map(|id| id.as_simple().to_string())
        .collect::<Vec<_>>();
    let sql = "WITH asked (id) AS (SELECT unhex(value) FROM json_each(?1)) \
               SELECT asked.id, state, body FROM asked LEFT JOIN everstep_requests \
               ON everstep_requests.id = asked.id AND everstep_requests.run NOT IN (SELECT run FROM everstep_graves) \
               WHERE state IS NULL OR state > 0";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([columns::to_json(&hex)], |row| {
        let answer = match row.get::<_, Option<i64>>(1)? {
            None => Answer::Unknown,
            Some(1) => Answer::Reply(row.get(2)?),
            Some(_) => Answer::RunEnded,
        };
        Ok((Uuid::from_bytes(row.get(0)?), answer))
    })?;
    rows.collect()
}

pub(crate) fn has_old_generations(conn: &Connection) -> rusqlite::Result<bool> {
    conn.prepare_cached("SELECT 1 FROM everstep_old_generations LIMIT 1")?
        .exists([])
}

pub(crate) fn runners(conn: &Connection) -> rusqlite::Result<Vec<RunnerRow>> {
    let sql = "SELECT id, epoch, name, lease_until, workflows, pools, weight FROM everstep_runners ORDER BY id";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| {
        let id = Uuid::from_bytes(row.get(0)?);
        let said = rules::pools::Said {
            workflows: columns::from_json(&row.get::<_, String>(4)?)?,
            pools: columns::from_json(&row.get::<_, String>(5)?)?,
        };
        let (workflows, pools) = said.read();
        Ok(RunnerRow {
            id,
            epoch: row.get::<_, i64>(1)? as u64,
            name: row.get(2)?,
            lease_until: columns::time(row, 3)?,
            shards: columns::shards_of(conn, id)?,
            workflows,
            pools,
            weight: row.get(6)?,
        })
    })?;
    rows.collect()
}

/// The other runners that have an address, with it.
pub(crate) fn addresses(conn: &Connection) -> rusqlite::Result<Vec<(Uuid, String)>> {
    let sql = "SELECT id, address FROM everstep_runners WHERE address IS NOT NULL";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([], |row| Ok((Uuid::from_bytes(row.get(0)?), row.get(1)?)))?;
    rows.collect()
}
