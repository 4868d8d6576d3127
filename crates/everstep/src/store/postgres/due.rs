//! Which runs are due: one round trip.

use super::{
    columns,
    error::Trouble,
    session::{Op, Session},
    value::params,
};
use crate::{
    run_id::{RunId, RunNo},
    store::{sql::reads::listed, *},
    time::Timestamp,
};

/// Walks the index in order and picks the rows of these shards.
pub(super) fn due(
    session: &Session<'_>,
    now: Timestamp,
    shards: &ShardSet,
    after: Option<(Timestamp, RunNo)>,
    limit: usize,
) -> Result<Due, Trouble> {
    if shards.is_empty() {
        return Ok(Due::default());
    }
    let pools: Vec<i64> = shards.pools().map(|pool| pool.0.into()).collect();
    let shards = listed(shards);
    let (after_at, after_no) =
        after.map_or((i64::MIN, i64::MIN), |(at, RunNo(no))| (at.as_millis(), no));
    let next = "SELECT min(next.at) FROM unnest($3::bigint[]) AS pool (no) CROSS JOIN LATERAL \
                (SELECT available_at AS at FROM everstep_runs WHERE (shard >> 8) = pool.no \
                AND available_at IS NOT NULL AND available_at > $1 AND shard = ANY ($2) \
                ORDER BY available_at LIMIT 1) AS next";
    let due = format!(
        "SELECT {} FROM unnest($6::bigint[]) AS asked (number) CROSS JOIN LATERAL \
         (SELECT * FROM everstep_runs WHERE (shard >> 8) = asked.number AND available_at IS NOT NULL \
         AND available_at <= $1 AND (available_at, no) > ($3, $4) AND shard = ANY ($2) \
         ORDER BY available_at, no LIMIT $5) AS runs ORDER BY available_at, no LIMIT $5",
        columns::DUE_RUN
    );
    // Runs that are due at once, and whose ids were made by a clock that is ahead. So this costs a look
    // behind the last number as long as there are none.
    let future = format!(
        "SELECT {} FROM everstep_runs WHERE no >= $6 AND available_at > $1 \
         AND available_at <= {} AND (available_at, no) > ($3, $4) AND shard = ANY ($2) \
         ORDER BY available_at, no LIMIT $5",
        columns::DUE_RUN,
        rules::MADE_AT
    );
    let first = RunId::first_no(now + FUTURE).0;

    let answers = session.queries(vec![
        Op::new(next, params![now, shards.clone(), pools.clone()]),
        Op::new(due, params![now, shards.clone(), after_at, after_no, limit, pools]),
        Op::new(future, params![now, shards, after_at, after_no, limit, first]),
    ])?;
    let [next, due, future] = &answers[..] else {
        return Err(Trouble::Lost("an answer is missing".to_owned()));
    };
    let runs = due.iter().chain(future).take(limit);
    Ok(Due {
        runs: runs.map(|row| columns::due_run(row)).collect::<Result<_, _>>()?,
        next_at: match next.first() {
            Some(row) => row.get(0)?,
            None => None,
        },
    })
}
