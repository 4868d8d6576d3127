//! What people look at from above, in SQL.
//!
//! Every query here is answered by an index alone, as far as the visibility map of the table is up to
//! date, or reads no more than it says.

use super::{
    columns,
    error::Trouble,
    queues::in_state,
    reads,
    session::Session,
    value::{Value, params},
};
use crate::{
    commit::{InboxRow, ItemState, QueueStats, RunStatus},
    run_id::{RunId, RunNo},
    store::{
        Filter, QueueRow, STATS_SAMPLE, StatsRange, StatsRow, StatusCounts,
        rules::overview::{Durations, duration_ms},
    },
    time::Timestamp,
};

pub(super) fn unread(
    session: &Session<'_>,
    run: RunNo,
    after: u64,
    limit: usize,
) -> Result<Vec<InboxRow>, Trouble> {
    let sql = format!(
        "SELECT {} FROM everstep_inbox WHERE run = $1 AND seq > $2 ORDER BY seq LIMIT $3",
        columns::INBOX_ROW
    );
    let params = params![run.0, columns::limit(after), columns::limit(limit)];
    session.rows(sql, params, columns::inbox_row)
}

/// The children of a run that have not ended.
pub(super) fn live_children(session: &Session<'_>, parent: RunNo) -> Result<Vec<RunId>, Trouble> {
    let sql = "SELECT everstep_runs.id FROM everstep_children JOIN everstep_runs ON everstep_runs.no = everstep_children.run \
               WHERE everstep_children.parent = $1 ORDER BY everstep_children.run";
    session.rows(sql, params![parent.0], |row| columns::run_id(row, 0))
}

pub(super) fn queues(
    session: &Session<'_>,
    after: Option<&str>,
    limit: usize,
    most: u64,
) -> Result<Vec<QueueRow>, Trouble> {
    // One look into each of the indexes that begin with the queue, for each queue.
    let next = |after: &str| {
        let first = |state: &str| {
            format!(
                "(SELECT queue FROM everstep_queue_items WHERE {state} AND queue > {after} \
                 ORDER BY queue LIMIT 1)"
            )
        };
        let [ready, timed, dead] = ["state = 0", "state IN (1, 2, 3)", "state = 4"].map(first);
        format!("least({ready}, {timed}, {dead})")
    };
    let sql = format!(
        "WITH RECURSIVE names (queue, place) AS (SELECT {}, 1::bigint UNION ALL \
         SELECT {}, place + 1 FROM names WHERE queue IS NOT NULL AND place < $2) \
         SELECT queue FROM names WHERE queue IS NOT NULL AND place <= $2 ORDER BY place",
        next("$1"),
        next("names.queue"),
    );
    // Names are never empty.
    let params = params![after.unwrap_or_default(), columns::limit(limit)];
    let names: Vec<String> = session.rows(sql, params, |row| row.get(0))?;
    let rows = names.into_iter().map(|name| {
        let stats = stats_up_to(session, &name, most)?;
        Ok(QueueRow { name, stats })
    });
    rows.collect()
}

fn stats_up_to(session: &Session<'_>, queue: &str, most: u64) -> Result<QueueStats, Trouble> {
    let count = |state: ItemState| {
        let state = in_state(state);
        format!(
            "(SELECT count(*) FROM (SELECT 1 FROM everstep_queue_items \
             WHERE queue = $1 AND {state} LIMIT $2) AS counted)"
        )
    };
    // The oldest of each priority is the first of it in the index.
    let first = "SELECT rank, at FROM everstep_queue_items WHERE queue = $1 AND state = 0";
    let sql = format!(
        "WITH RECURSIVE ranks (rank, at) AS (({first} ORDER BY rank, at LIMIT 1) UNION ALL \
         (SELECT next.rank, next.at FROM ranks CROSS JOIN LATERAL \
         ({first} AND rank > ranks.rank ORDER BY rank, at LIMIT 1) AS next)) \
         SELECT {}, {}, {}, {}, {}, (SELECT min(at) FROM ranks)",
        count(ItemState::Ready),
        count(ItemState::Delayed),
        count(ItemState::Claimed),
        count(ItemState::Done),
        count(ItemState::Dead),
    );
    let stats = session.row(sql, params![queue, columns::limit(most)], |row| {
        Ok(QueueStats {
            ready: columns::number(row, 0)?,
            delayed: columns::number(row, 1)?,
            claimed: columns::number(row, 2)?,
            done: columns::number(row, 3)?,
            dead: columns::number(row, 4)?,
            oldest_ready: columns::optional_time(row, 5)?,
        })
    })?;
    stats.ok_or_else(|| Trouble::value("count", "no row"))
}

pub(super) fn count(session: &Session<'_>, filter: &Filter) -> Result<u64, Trouble> {
    if filter.is_indexed() {
        return Ok(count_by_status(session, filter)?.total());
    }
    reads::count(session, filter)
}

pub(super) fn count_by_status(
    session: &Session<'_>,
    filter: &Filter,
) -> Result<StatusCounts, Trouble> {
    let mut counts = StatusCounts::default();
    let found = if filter.is_indexed() {
        count_by_index(session, filter)?
    } else {
        reads::count_by_status(session, filter)?
    };
    let wanted = found
        .into_iter()
        .filter(|(status, _)| filter.wants(*status));
    wanted.for_each(|(status, number)| counts.add(status, number));
    Ok(counts)
}

fn count_by_index(
    session: &Session<'_>,
    filter: &Filter,
) -> Result<Vec<(RunStatus, u64)>, Trouble> {
    let mut workflows = match &filter.workflow {
        Some(workflow) => vec![Some(workflow.clone())],
        None => workflows(session)?,
    };
    if !ENDED.into_iter().any(|status| filter.wants(status)) {
        workflows.clear();
    }
    let ended = "SELECT ended.code, (SELECT count(*) FROM everstep_runs WHERE workflow = asked.workflow \
                 AND status = ended.code AND finished_at IS NOT NULL \
                 AND finished_at >= $2 AND finished_at < $3) \
                 FROM unnest($1::text[]) AS asked (workflow) \
                 CROSS JOIN (VALUES (5::bigint), (6), (7)) AS ended (code)";
    let from = filter.finished_from.map_or(i64::MIN, Timestamp::as_millis);
    let before = filter
        .finished_before
        .map_or(i64::MAX, Timestamp::as_millis);
    let mut params = vec![Value::Texts(workflows)];
    params.extend([from, before].map(|at| Value::Int(Some(at))));
    let mut parts = vec![ended.to_owned()];
    if filter.finished_from.is_none() && filter.finished_before.is_none() {
        let of_workflow = match &filter.workflow {
            Some(workflow) => {
                params.push(Value::Text(Some(workflow.clone())));
                " AND workflow = $4"
            }
            None => "",
        };
        parts.extend(LIVE.map(|(_, condition)| {
            format!("SELECT status, count(*) FROM everstep_runs WHERE {condition}{of_workflow} GROUP BY 1")
        }));
    }
    session.rows(parts.join(" UNION ALL "), params, |row| {
        Ok((columns::status(row, 0)?, columns::number(row, 1)?))
    })
}

/// Every run that has not ended is in exactly one of these: the statuses of what is in an index, and
/// how it is asked for.
pub(super) const LIVE: [(&[u8], &str); 3] = [
    (&[1, 3], "status IN (1, 3)"),
    (
        &[0, 2, 4],
        "available_at IS NOT NULL AND status IN (0, 2, 4)",
    ),
    (&[2, 4], "status IN (2, 4) AND available_at IS NULL"),
];

pub(super) const ENDED: [RunStatus; 3] = [
    RunStatus::Completed,
    RunStatus::Failed,
    RunStatus::Cancelled,
];

/// The workflows of which a run has ended: one look into the index for each.
pub(super) fn workflows(session: &Session<'_>) -> Result<Vec<Option<String>>, Trouble> {
    names(session, "everstep_runs", "finished_at IS NOT NULL")
}

/// The workflows in a table: one look into an index of it for each.
pub(super) fn names(
    session: &Session<'_>,
    table: &str,
    condition: &str,
) -> Result<Vec<Option<String>>, Trouble> {
    let sql = format!(
        "WITH RECURSIVE names (workflow) AS ((SELECT workflow FROM {table} \
         WHERE {condition} ORDER BY workflow LIMIT 1) UNION ALL \
         SELECT (SELECT workflow FROM {table} WHERE {condition} \
         AND workflow > names.workflow ORDER BY workflow LIMIT 1) \
         FROM names WHERE names.workflow IS NOT NULL) \
         SELECT workflow FROM names WHERE workflow IS NOT NULL"
    );
    session.rows(sql, Vec::new(), |row| row.get::<String>(0).map(Some))
}

/// The runs of some workflows that have ended in some time: `$1` are the workflows, the time is from
/// `$2` to `$3`, and its parts are as long as `$4`.
const IN_RANGE: &str = "FROM unnest($1::text[]) AS asked (workflow) CROSS JOIN LATERAL \
    (SELECT status, finished_at AS at, (finished_at - $2) / $4 AS bucket FROM everstep_runs \
    WHERE workflow = asked.workflow AND finished_at IS NOT NULL \
    AND finished_at >= $2 AND finished_at < $3";

/// The row of `secrets` that has the retention horizon, in milliseconds as 8 bytes, the highest first: so
/// the greater instant is the greater value. It is no secret, but this is the table of what is kept once
/// for the whole store.
const HORIZON: &str = "retention_horizon";

pub(super) fn horizon(session: &Session<'_>) -> Result<Option<Timestamp>, Trouble> {
    let sql = "SELECT value FROM everstep_secrets WHERE name = $1";
    let found = session.row(sql, params![HORIZON], |row| row.get::<Vec<u8>>(0))?;
    let bytes = found.and_then(|bytes| bytes.try_into().ok());
    Ok(bytes.map(|bytes| Timestamp::from_millis(i64::from_be_bytes(bytes))))
}

pub(super) fn raise_horizon(session: &Session<'_>, to: Timestamp) -> Result<(), Trouble> {
    let sql = "INSERT INTO everstep_secrets (name, value) VALUES ($1, $2) ON CONFLICT (name) \
               DO UPDATE SET value = excluded.value WHERE everstep_secrets.value < excluded.value";
    let bytes = to.as_millis().max(0).to_be_bytes().to_vec();
    session.execute_now(sql, params![HORIZON, bytes])?;
    Ok(())
}

pub(super) fn stats(session: &Session<'_>, range: &StatsRange) -> Result<Vec<StatsRow>, Trouble> {
    let parts = (0..range.len()).map(|index| {
        let (from, to) = range.bucket(index);
        (RunId::first_no(from).0, RunId::first_no(to).0)
    });
    let (first, next): (Vec<i64>, Vec<i64>) = parts.unzip();
    let sql = "SELECT (SELECT count(*) FROM everstep_runs WHERE no >= part.first AND no < part.next) \
               FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY \
               AS part (first, next, place) ORDER BY place";
    let started = session.rows(sql, params![first, next], |row| columns::number(row, 0))?;
    let started = started.into_iter().map(|started| StatsRow {
        started,
        ..StatsRow::default()
    });
    let mut rows: Vec<StatsRow> = started.collect();
    let workflows = workflows(session)?;
    let times = [range.from().as_millis(), range.to().as_millis()];
    let mut params = vec![Value::Texts(workflows)];
    params.extend(times.map(|at| Value::Int(Some(at))));
    params.push(Value::Int(Some(range.bucket_ms())));
    let sql = format!(
        "SELECT status, bucket, count(*) {IN_RANGE} AND status IN (5, 6, 7)) AS ended \
         GROUP BY 1, 2"
    );
    let ended = session.rows(sql, params.clone(), |row| {
        let bucket = columns::number(row, 1)?;
        Ok((columns::status(row, 0)?, bucket, columns::number(row, 2)?))
    })?;
    for (status, bucket, number) in ended {
        if let Some(row) = rows.get_mut(bucket as usize) {
            row.count(status, number);
        }
    }
    if rows.iter().any(|row| row.completed > 0) {
        tell_durations(session, &mut rows, params)?;
    }
    Ok(rows)
}

/// Of a part with many runs, every so manieth in the order of the index is looked up. Runs that have
/// ended in the same millisecond are the same to the index: as many of them as were met are.
fn tell_durations(
    session: &Session<'_>,
    rows: &mut [StatsRow],
    mut params: Vec<Value>,
) -> Result<(), Trouble> {
    let most = 2 * STATS_SAMPLE as u64;
    let strides = rows.iter().map(|row| {
        let times = row.completed.div_ceil(most).max(1).next_power_of_two();
        Some(columns::limit(times))
    });
    params.push(Value::Ints(strides.collect()));
    let sql = format!(
        "SELECT met.bucket, met.at, found.no FROM \
         (SELECT workflow, at, bucket, count(*) AS runs FROM \
         (SELECT asked.workflow AS workflow, at, bucket, row_number() OVER () AS place \
         {IN_RANGE} AND status = 5) AS ended) AS walked \
         WHERE place % ($5::bigint[])[bucket + 1] = 0 GROUP BY 1, 2, 3) AS met \
         CROSS JOIN LATERAL (SELECT no FROM everstep_runs WHERE workflow = met.workflow AND status = 5 \
         AND finished_at IS NOT NULL AND finished_at = met.at LIMIT met.runs) AS found"
    );
    let found = session.rows(sql, params, |row| {
        let bucket = columns::number(row, 0)? as usize;
        let at = columns::time(row, 1)?;
        Ok((bucket, duration_ms(RunNo(row.get(2)?), at)))
    })?;
    let mut durations = vec![Durations::default(); rows.len()];
    for (bucket, ms) in found {
        if let Some(durations) = durations.get_mut(bucket) {
            durations.add(ms);
        }
    }
    for (row, durations) in rows.iter_mut().zip(durations) {
        durations.tell(row);
    }
    Ok(())
}
