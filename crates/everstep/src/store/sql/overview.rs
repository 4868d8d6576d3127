//! What people look at from above.
//!
//! Every query here is answered by an index alone (in PostgreSQL as far as the visibility map of the
//! table is up to date), or reads no more than it says.

use super::{
    Sql, columns,
    filter::Condition,
    queues::in_state,
    value::{BadValue, Value, borrowed, params, read},
};
use crate::{
    commit::{InboxRow, ItemState, QueueStats, RunStatus},
    run_id::RunNo,
    store::{Filter, QueueRow, StatusCounts, WorkflowCount},
    time::Timestamp,
};

pub(crate) fn unread<S: Sql>(
    sql: &S,
    run: RunNo,
    after: u64,
    limit: usize,
) -> Result<Vec<InboxRow>, S::Error> {
    let text = format!(
        "SELECT {} FROM everstep_inbox WHERE run = ?1 AND seq > ?2 ORDER BY seq LIMIT ?3",
        columns::INBOX_ROW
    );
    sql.rows(text, params![run, after, limit], columns::inbox_row)
}

pub(crate) fn queues<S: Sql>(
    sql: &S,
    after: Option<&str>,
    limit: usize,
    most: u64,
) -> Result<Vec<QueueRow>, S::Error> {
    // One look into each of the indexes that begin with the queue, for each queue.
    let next = |after: &str| {
        let first = |(index, state): (&str, &str)| {
            format!(
                "SELECT (SELECT queue FROM everstep_queue_items{} WHERE {state} \
                 AND queue > {after} ORDER BY queue LIMIT 1) AS queue",
                S::indexed_by(index)
            )
        };
        let firsts = [
            ("everstep_queue_ready", "state = 0"),
            ("everstep_queue_timed", "state IN (1, 2, 3)"),
            ("everstep_queue_dead", "state = 4"),
        ]
        .map(first);
        let firsts = firsts.join(" UNION ALL ");
        format!("(SELECT min(queue) FROM ({firsts}) AS firsts)")
    };
    let text = format!(
        "WITH RECURSIVE names (queue, place) AS (SELECT {}, 1 UNION ALL \
         SELECT {}, place + 1 FROM names WHERE queue IS NOT NULL AND place < ?2) \
         SELECT queue FROM names WHERE queue IS NOT NULL AND place <= ?2 ORDER BY place",
        next("?1"),
        next("names.queue"),
    );
    // Names are never empty.
    let after = after.unwrap_or_default();
    let params = params![after, limit];
    let names: Vec<String> = sql.rows(text, params, |row| row.get(0))?;
    let rows = names.into_iter().map(|name| {
        let stats = stats_up_to(sql, &name, most)?;
        Ok(QueueRow { name, stats })
    });
    rows.collect()
}

/// How many items of each state are in a queue, counted up to so many.
pub(crate) fn stats_up_to<S: Sql>(sql: &S, queue: &str, most: u64) -> Result<QueueStats, S::Error> {
    let count = |state: ItemState| {
        format!(
            "(SELECT count(*) FROM (SELECT 1 FROM everstep_queue_items \
             WHERE queue = ?1 AND {} LIMIT ?2) AS counted)",
            in_state::<S>(state)
        )
    };
    let counts = [
        ItemState::Ready,
        ItemState::Delayed,
        ItemState::Claimed,
        ItemState::Done,
        ItemState::Dead,
    ]
    .map(count);
    // The oldest of each priority is the first of it in the index.
    let ready = format!(
        "FROM everstep_queue_items{} WHERE queue = ?1 AND state = 0 AND rank",
        S::indexed_by("everstep_queue_ready")
    );
    let text = format!(
        "WITH RECURSIVE ranks (rank) AS (SELECT (SELECT min(rank) {ready} IS NOT NULL) UNION ALL \
         SELECT (SELECT min(rank) {ready} > ranks.rank) FROM ranks WHERE ranks.rank IS NOT NULL) \
         SELECT {}, (SELECT min((SELECT at {ready} = ranks.rank ORDER BY at LIMIT 1)) FROM ranks)",
        counts.join(", "),
    );
    let stats = sql.row(text, params![queue, most], |row| {
        Ok(read!(row => QueueStats { ready, delayed, claimed, done, dead, oldest_ready }))
    })?;
    stats.ok_or_else(|| BadValue::new("count", "no row").into())
}

pub(crate) fn count<S: Sql>(sql: &S, filter: &Filter) -> Result<u64, S::Error> {
    if filter.is_indexed() {
        return Ok(count_by_status(sql, filter)?.total());
    }
    let condition = Condition::narrowed(sql, filter)?;
    let text = format!("SELECT count(*) FROM everstep_runs WHERE {}", condition.text());
    sql.count(text, &borrowed(&condition.params))
}

/// How many match of each status. Without an index it looks at every run that the rest of the filter
/// leaves.
pub(crate) fn count_by_status<S: Sql>(sql: &S, filter: &Filter) -> Result<StatusCounts, S::Error> {
    let (text, params) = if filter.is_indexed() {
        by_index(sql, filter)?
    } else {
        let condition = Condition::narrowed(sql, filter)?;
        let terms = condition.text();
        let text = format!("SELECT status, count(*) FROM everstep_runs WHERE {terms} GROUP BY 1");
        (text, condition.params)
    };
    let found = sql.rows(text, &borrowed(&params), |row| Ok((row.get(0)?, row.get(1)?)))?;
    let mut counts = StatusCounts::default();
    let wanted = found.into_iter().filter(|(status, _)| filter.wants(*status));
    wanted.for_each(|(status, number)| counts.add(status, number));
    Ok(counts)
}

/// A query for statuses and how many runs have them, answered by indexes.
fn by_index<S: Sql>(sql: &S, filter: &Filter) -> Result<(String, Vec<Value>), S::Error> {
    let mut workflows = workflows_of(sql, filter)?;
    if !ENDED.into_iter().any(|status| filter.wants(status)) {
        workflows.clear();
    }
    let from = filter.finished_from.map_or(i64::MIN, Timestamp::as_millis);
    let before = filter.finished_before.map_or(i64::MAX, Timestamp::as_millis);
    let mut condition = Condition::default();
    let workflows = condition.param(Value::texts(workflows));
    let (from, before) = (condition.param(from), condition.param(before));
    let range = format!("AND finished_at >= {from} AND finished_at < {before}");
    let ended = ended_of_workflows::<S>(&workflows, &range);
    let mut parts = vec![format!("SELECT status, runs FROM ({ended}) AS ended")];
    if filter.finished_from.is_none() && filter.finished_before.is_none() {
        let of_workflow = filter.workflow.as_ref().map_or_else(String::new, |it| {
            // Only then is the row itself looked at.
            format!(" AND workflow = {}", condition.param(it))
        });
        parts.extend(LIVE.map(|(index, _, part)| {
            let index = S::indexed_by(index);
            format!(
                "SELECT status, count(*) FROM everstep_runs{index} \
                 WHERE {part}{of_workflow} GROUP BY 1"
            )
        }));
    }
    Ok((parts.join(" UNION ALL "), condition.params))
}

/// A query for each of these workflows and each end: how many runs have ended so.
fn ended_of_workflows<S: Sql>(workflows: &str, range: &str) -> String {
    format!(
        "SELECT asked.workflow{} AS workflow, ended.code AS status, (SELECT count(*) \
         FROM everstep_runs{} WHERE everstep_runs.workflow = asked.workflow \
         AND status = ended.code AND finished_at IS NOT NULL {range}) AS runs FROM {} \
         CROSS JOIN (SELECT 5 AS code UNION ALL SELECT 6 UNION ALL SELECT 7) AS ended",
        S::pick("", " COLLATE \"C\""),
        S::indexed_by("everstep_runs_finished"),
        listed::<S>(workflows),
    )
}

/// How many runs of each workflow have each status. Those that have ended are counted in their index
/// alone; the others are found by theirs, so that no other row is read.
pub(crate) fn tally<S: Sql>(sql: &S) -> Result<Vec<WorkflowCount>, S::Error> {
    let workflows = Value::texts(workflows(sql)?);
    let live = LIVE.map(|(index, _, part)| {
        let index = S::indexed_by(index);
        format!(
            "SELECT workflow, status, count(*) FROM everstep_runs{index} WHERE {part} GROUP BY 1, 2"
        )
    });
    let text = format!(
        "SELECT workflow, status, CAST(sum(runs) AS bigint) FROM ({} UNION ALL {}) AS counted \
         GROUP BY 1, 2 HAVING sum(runs) > 0",
        ended_of_workflows::<S>("?1", ""),
        live.join(" UNION ALL ")
    );
    sql.rows(text, params![workflows], |row| {
        Ok(read!(row => WorkflowCount { workflow, status, runs }))
    })
}

/// Every run that has not ended is in exactly one of these: an index, the statuses of what is in it,
/// and how it is asked for.
pub(crate) const LIVE: [(&str, &[u8], &str); 3] = [
    ("everstep_runs_live", &[1, 3], "status IN (1, 3)"),
    ("everstep_runs_due", &[0, 2, 4], "available_at IS NOT NULL AND status IN (0, 2, 4)"),
    ("everstep_runs_idle", &[2, 4], "status IN (2, 4) AND available_at IS NULL"),
];

pub(crate) const ENDED: [RunStatus; 3] =
    [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled];

/// A list of texts as the table `asked` with the column `workflow`.
fn listed<S: Sql>(list: &str) -> String {
    S::pick(
        "(SELECT value AS workflow FROM json_each(@)) AS asked",
        "unnest(@::text[]) AS asked (workflow)",
    )
    .replace('@', list)
}

/// A query for the rows of a table that have one of these workflows and meet these terms. Each
/// workflow is looked up in the index.
pub(crate) fn of_workflows<S: Sql>(
    list: &str,
    select: &str,
    table: &str,
    index: &str,
    terms: &str,
) -> String {
    let asked = listed::<S>(list);
    let index = match index {
        "" => String::new(),
        index => S::indexed_by(index),
    };
    let (sqlite, postgres) = (
        format!(
            "SELECT {select} FROM {asked} CROSS JOIN {table}{index} \
             ON {table}.workflow = asked.workflow WHERE {terms}"
        ),
        format!(
            "SELECT found.* FROM {asked} CROSS JOIN LATERAL (SELECT {select} FROM {table} \
             WHERE workflow = asked.workflow AND {terms} OFFSET 0) AS found"
        ),
    );
    S::pick(&sqlite, &postgres).to_owned()
}

/// The workflow that is asked for, or all of which a run has ended.
pub(crate) fn workflows_of<S: Sql>(sql: &S, filter: &Filter) -> Result<Vec<String>, S::Error> {
    match &filter.workflow {
        Some(workflow) => Ok(vec![workflow.clone()]),
        None => workflows(sql),
    }
}

/// The workflows of which a run has ended: one look into the index for each.
pub(crate) fn workflows<S: Sql>(sql: &S) -> Result<Vec<String>, S::Error> {
    let table = format!("everstep_runs{}", S::indexed_by("everstep_runs_finished"));
    names(sql, &table, "finished_at IS NOT NULL")
}

/// The workflows in a table: one look into an index of it for each.
pub(crate) fn names<S: Sql>(
    sql: &S,
    table: &str,
    condition: &str,
) -> Result<Vec<String>, S::Error> {
    let first = format!("SELECT workflow FROM {table} WHERE {condition}");
    let text = format!(
        "WITH RECURSIVE names (workflow) AS (SELECT ({first} ORDER BY workflow LIMIT 1) \
         UNION ALL SELECT ({first} AND workflow > names.workflow ORDER BY workflow LIMIT 1) \
         FROM names WHERE names.workflow IS NOT NULL) \
         SELECT workflow FROM names WHERE workflow IS NOT NULL"
    );
    sql.rows(text, &[], |row| row.get(0))
}

/// The row of `secrets` that has the retention horizon, in milliseconds as 8 bytes, the highest first: so
/// the greater instant is the greater value. It is no secret, but this is the table of what is kept once
/// for the whole store.
const HORIZON: &str = "retention_horizon";

pub(crate) fn horizon<S: Sql>(sql: &S) -> Result<Option<Timestamp>, S::Error> {
    let text = "SELECT value FROM everstep_secrets WHERE name = ?1";
    let found = sql.row(text, params![HORIZON], |row| row.get(0))?;
    Ok(found.map(|bytes| Timestamp::from_millis(i64::from_be_bytes(bytes))))
}

pub(crate) fn raise_horizon<S: Sql>(sql: &S, to: Timestamp) -> Result<(), S::Error> {
    let text = "INSERT INTO everstep_secrets (name, value) VALUES (?1, ?2) ON CONFLICT (name) \
                DO UPDATE SET value = excluded.value WHERE everstep_secrets.value < excluded.value";
    let bytes = to.as_millis().max(0).to_be_bytes();
    sql.execute(text, params![HORIZON, bytes])
}
