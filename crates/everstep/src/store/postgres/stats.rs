//! What became of runs over time. The index that says when runs have ended has not their numbers, so of
//! many runs only some are looked up.

use super::{
    Sql,
    error::Trouble,
    session::Session,
    value::{Value, borrowed, params},
};
use crate::{
    run_id::RunId,
    store::{
        STATS_SAMPLE, StatsRange, StatsRow,
        rules::overview::{Durations, duration_ms},
        sql::overview::workflows,
    },
};

/// The runs of some workflows that have ended in some time: `$1` are the workflows, the time is from
/// `$2` to `$3`, and its parts are as long as `$4`.
const IN_RANGE: &str = "FROM unnest($1::text[]) AS asked (workflow) CROSS JOIN LATERAL \
    (SELECT status, finished_at AS at, (finished_at - $2) / $4 AS bucket FROM everstep_runs \
    WHERE workflow = asked.workflow AND finished_at IS NOT NULL \
    AND finished_at >= $2 AND finished_at < $3";

pub(super) fn stats(session: &Session<'_>, range: &StatsRange) -> Result<Vec<StatsRow>, Trouble> {
    let parts = (0..range.len()).map(|index| {
        let (from, to) = range.bucket(index);
        (RunId::first_no(from).0, RunId::first_no(to).0)
    });
    let (first, next): (Vec<i64>, Vec<i64>) = parts.unzip();
    let sql = "SELECT (SELECT count(*) FROM everstep_runs WHERE no >= part.first AND no < part.next) \
               FROM unnest($1::bigint[], $2::bigint[]) WITH ORDINALITY \
               AS part (first, next, place) ORDER BY place";
    let started = session.rows(sql, params![first, next], |row| row.get(0))?;
    let started = started.into_iter().map(|started| StatsRow { started, ..StatsRow::default() });
    let mut rows: Vec<StatsRow> = started.collect();
    let workflows = workflows(session)?;
    let times = [range.from().as_millis(), range.to().as_millis()];
    let mut params = vec![Value::texts(workflows)];
    params.extend(times.map(|at| Value::Int(Some(at))));
    params.push(Value::Int(Some(range.bucket_ms())));
    let sql = format!(
        "SELECT status, bucket, count(*) {IN_RANGE} AND status IN (5, 6, 7)) AS ended \
         GROUP BY 1, 2"
    );
    let ended = session.rows(sql, &borrowed(&params), |row| {
        Ok((row.get(0)?, row.get::<usize>(1)?, row.get(2)?))
    })?;
    for (status, bucket, number) in ended {
        if let Some(row) = rows.get_mut(bucket) {
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
        Some(i64::try_from(times).unwrap_or(i64::MAX))
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
    let found = session.rows(sql, &borrowed(&params), |row| {
        let (bucket, at) = (row.get::<usize>(0)?, row.get(1)?);
        Ok((bucket, duration_ms(row.get(2)?, at)))
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
