//! What is read, each call in one snapshot.

use uuid::Uuid;

use super::{
    columns,
    error::Trouble,
    listing, overview, runs,
    session::{Op, Session},
    value::{Row, Value, params},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{rules, *},
    time::Timestamp,
};

pub(super) fn run(session: &Session<'_>, target: &Target) -> Result<Option<RunRow>, Trouble> {
    match target {
        Target::Id(id) => Ok(run_by_no(session, id.no())?.filter(|row| row.id == *id)),
        Target::Key { workflow, key } => match runs::find_key(session, workflow, key)? {
            Some(no) => run_by_no(session, no),
            None => Ok(None),
        },
    }
}

fn run_by_no(session: &Session<'_>, no: RunNo) -> Result<Option<RunRow>, Trouble> {
    let sql = format!(
        "SELECT {} FROM everstep_runs WHERE no = $1",
        columns::RUN_ROW
    );
    session.row(sql, params![no.0], columns::run_row)
}

pub(super) fn load(session: &Session<'_>, no: RunNo) -> Result<Option<LoadedRun>, Trouble> {
    let run = format!(
        "SELECT {} FROM everstep_runs WHERE no = $1",
        columns::RUN_ROW
    );
    let history = "SELECT key, value FROM everstep_history WHERE run = $1 \
                   AND generation = (SELECT generation FROM everstep_runs WHERE no = $1) ORDER BY key";
    let inbox = format!(
        "SELECT {} FROM everstep_inbox WHERE run = $1 ORDER BY seq",
        columns::INBOX_ROW
    );
    let names = super::streams::NAMES;
    let answers = session.queries(vec![
        Op::new(run, params![no.0]),
        Op::new(history, params![no.0]),
        Op::new(inbox, params![no.0]),
        Op::new(names, params![no.0]),
    ])?;
    let [run, history, inbox, streams] = &answers[..] else {
        return Err(Trouble::Lost("an answer is missing".to_owned()));
    };
    let Some(row) = run.first() else {
        return Ok(None);
    };
    Ok(Some(LoadedRun {
        row: columns::run_row(row)?,
        history: history.iter().map(put).collect::<Result<_, _>>()?,
        inbox: inbox
            .iter()
            .map(columns::inbox_row)
            .collect::<Result<_, _>>()?,
        streams: streams
            .iter()
            .map(|row| row.get(0))
            .collect::<Result<_, _>>()?,
    }))
}

fn put(row: &Row) -> Result<Put, Trouble> {
    Ok(Put {
        key: row.get(0)?,
        value: row.get(1)?,
    })
}

pub(super) fn history(
    session: &Session<'_>,
    run: RunNo,
    after: Option<&[u8]>,
    limit: usize,
) -> Result<Vec<Put>, Trouble> {
    let sql = "SELECT key, value FROM everstep_history WHERE run = $1 \
               AND generation = (SELECT generation FROM everstep_runs WHERE no = $1) \
               AND ($2 IS NULL OR key > $2) ORDER BY key LIMIT $3";
    session.rows(sql, params![run.0, after, columns::limit(limit)], put)
}

fn shard_numbers(shards: &ShardSet) -> Vec<i64> {
    shards.iter().map(|shard| i64::from(shard.0)).collect()
}

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
    let shards = shard_numbers(shards);
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
    let (now, most) = (now.as_millis(), columns::limit(limit));
    let answers = session.queries(vec![
        Op::new(next, params![now, shards.clone(), pools.clone()]),
        Op::new(
            due,
            params![now, shards.clone(), after_at, after_no, most, pools],
        ),
        Op::new(
            future,
            params![now, shards, after_at, after_no, most, first],
        ),
    ])?;
    let [next, due, future] = &answers[..] else {
        return Err(Trouble::Lost("an answer is missing".to_owned()));
    };
    let runs = due.iter().chain(future).take(limit);
    Ok(Due {
        runs: runs.map(columns::due_run).collect::<Result<_, _>>()?,
        next_at: match next.first() {
            Some(row) => columns::optional_time(row, 0)?,
            None => None,
        },
    })
}

pub(super) fn live(
    session: &Session<'_>,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<DueRun>, Trouble> {
    let sql = format!(
        "SELECT {} FROM everstep_runs WHERE status IN (1, 3) AND no > $1 AND shard = ANY ($2) \
         ORDER BY no LIMIT $3",
        columns::DUE_RUN
    );
    let after = after.map_or(i64::MIN, |no| no.0);
    let params = params![after, shard_numbers(shards), columns::limit(limit)];
    session.rows(sql, params, columns::due_run)
}

pub(super) fn paused(
    session: &Session<'_>,
    shards: &ShardSet,
    after: Option<RunNo>,
    limit: usize,
) -> Result<Vec<PausedRun>, Trouble> {
    let sql = "SELECT id, workflow, version, waiting FROM everstep_runs \
               WHERE status = 4 AND available_at IS NULL AND no > $1 AND shard = ANY ($2) \
               ORDER BY no LIMIT $3";
    let after = after.map_or(i64::MIN, |no| no.0);
    let params = params![after, shard_numbers(shards), columns::limit(limit)];
    session.rows(sql, params, |row| {
        Ok(PausedRun {
            id: columns::run_id(row, 0)?,
            workflow: row.get::<String>(1)?.into(),
            version: row.get(2)?,
            reason: row.get(3)?,
        })
    })
}

pub(super) fn census(
    session: &Session<'_>,
    now: Timestamp,
    shards: &ShardSet,
) -> Result<Census, Trouble> {
    let mut census = Census::default();
    let sql = "SELECT status, available_at > $1, count(*) FROM everstep_runs \
               WHERE available_at IS NOT NULL AND shard = ANY ($2) GROUP BY 1, 2 \
               UNION ALL \
               SELECT status, NULL, count(*) FROM everstep_runs \
               WHERE status IN (2, 4) AND available_at IS NULL AND shard = ANY ($2) GROUP BY 1";
    let params = params![now.as_millis(), shard_numbers(shards)];
    let counts = session.rows(sql, params, |row| {
        let status = columns::status(row, 0)?;
        Ok((
            status,
            row.get::<Option<bool>>(1)?,
            columns::number(row, 2)?,
        ))
    })?;
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

pub(super) fn count(session: &Session<'_>, filter: &Filter) -> Result<u64, Trouble> {
    let condition = narrowed(session, filter)?;
    let terms = condition.terms.join(" AND ");
    let sql = format!("SELECT count(*) FROM everstep_runs WHERE {terms}");
    let count = session.row(sql, condition.params, |row| columns::number(row, 0))?;
    Ok(count.unwrap_or(0))
}

/// How many match of each status. Looks at every run that the rest of the filter leaves.
pub(super) fn count_by_status(
    session: &Session<'_>,
    filter: &Filter,
) -> Result<Vec<(RunStatus, u64)>, Trouble> {
    let condition = narrowed(session, filter)?;
    let terms = condition.terms.join(" AND ");
    let sql = format!("SELECT status, count(*) FROM everstep_runs WHERE {terms} GROUP BY 1");
    session.rows(sql, condition.params, |row| {
        Ok((columns::status(row, 0)?, columns::number(row, 1)?))
    })
}

/// How many runs of each workflow have each status. Those that have ended are counted in their index
/// alone; the others are found by theirs, so that no other row is read.
pub(super) fn tally(session: &Session<'_>) -> Result<Vec<WorkflowCount>, Trouble> {
    let workflows = Value::Texts(overview::workflows(session)?);
    let ended = "SELECT asked.workflow COLLATE \"C\" AS workflow, ended.code AS status, \
                 (SELECT count(*) FROM everstep_runs \
                 WHERE workflow = asked.workflow AND status = ended.code \
                 AND finished_at IS NOT NULL) AS runs \
                 FROM unnest($1::text[]) AS asked (workflow) \
                 CROSS JOIN (VALUES (5::bigint), (6), (7)) AS ended (code)";
    let live = overview::LIVE.map(|(_, condition)| {
        format!(
            "SELECT workflow, status, count(*) FROM everstep_runs WHERE {condition} GROUP BY 1, 2"
        )
    });
    let sql = format!(
        "SELECT workflow, status, sum(runs)::bigint FROM ({ended} UNION ALL {}) AS counted \
         GROUP BY 1, 2 HAVING sum(runs) > 0",
        live.join(" UNION ALL ")
    );
    session.rows(sql, vec![workflows], |row| {
        Ok(WorkflowCount {
            workflow: row.get::<String>(0)?.into(),
            status: columns::status(row, 1)?,
            runs: columns::number(row, 2)?,
        })
    })
}

/// A filter as SQL. Everything that a user has written is a parameter.
#[derive(Default)]
pub(super) struct Condition {
    pub(super) terms: Vec<String>,
    pub(super) params: Vec<Value>,
}

impl Condition {
    pub(super) fn param(&mut self, value: Value) -> String {
        self.params.push(value);
        format!("${}", self.params.len())
    }

    pub(super) fn text(&mut self, value: &str) -> String {
        self.param(Value::Text(Some(value.to_owned())))
    }

    fn time(&mut self, term: &str, at: Option<Timestamp>) {
        if let Some(at) = at {
            let at = self.param(Value::Int(Some(at.as_millis())));
            self.terms.push(format!("{term} {at}"));
        }
    }
}

/// The filter for all runs that match: tables that lead to them come first, and as arrays, because the
/// planner would look there for each run of all.
fn narrowed(session: &Session<'_>, filter: &Filter) -> Result<Condition, Trouble> {
    let mut rest = filter.clone();
    let mut condition = Condition::default();
    if rest.key_prefix.take().is_some() {
        let (sql, of_keys) = listing::by_key(session, filter)?;
        condition = of_keys;
        condition.terms.push(format!("no = ANY (ARRAY({sql}))"));
    }
    for (name, value) in rest.tags.drain(..) {
        let (name, value) = (condition.text(&name), condition.text(&value));
        condition.terms.push(format!(
            "no = ANY (ARRAY(SELECT run FROM everstep_tags WHERE name = {name} AND value = {value}))"
        ));
    }
    restrict(&mut condition, &rest);
    Ok(condition)
}

/// The filter about the row of a run.
pub(super) fn condition(filter: &Filter) -> Condition {
    let mut condition = Condition::default();
    restrict(&mut condition, filter);
    condition
}

fn restrict(condition: &mut Condition, filter: &Filter) {
    condition.terms.push("TRUE".to_owned());
    if !filter.ids.is_empty() {
        let numbers = filter.ids.iter().map(|id| Some(id.no().0)).collect();
        let numbers = condition.param(Value::Ints(numbers));
        let ids = filter
            .ids
            .iter()
            .map(|id| Some(id.as_uuid().as_bytes().to_vec()));
        let ids = condition.param(Value::Blobs(ids.collect()));
        condition.terms.push(format!("no = ANY ({numbers})"));
        condition.terms.push(format!("id = ANY ({ids})"));
    }
    if !filter.statuses.is_empty() {
        let codes = filter
            .statuses
            .iter()
            .map(|status| status.code().to_string());
        let codes = codes.collect::<Vec<_>>().join(", ");
        condition.terms.push(format!("status IN ({codes})"));
    }
    if let Some(workflow) = &filter.workflow {
        let workflow = condition.text(workflow);
        condition.terms.push(format!("workflow = {workflow}"));
    }
    for (name, value) in &filter.tags {
        let (name, value) = (condition.text(name), condition.text(value));
        condition.terms.push(format!(
            "EXISTS (SELECT 1 FROM everstep_tags WHERE name = {name} AND value = {value} AND run = everstep_runs.no \
             OFFSET 0)"
        ));
    }
    condition.time("created_at >=", filter.created_from);
    condition.time("created_at <", filter.created_before);
    if let Some(version) = filter.version {
        let version = condition.param(Value::Int(Some(version.into())));
        condition.terms.push(format!("version = {version}"));
    }
    if let Some(prefix) = &filter.key_prefix {
        let from = condition.text(prefix);
        condition.terms.push(format!("key >= {from}"));
        if let Some(end) = rules::prefix_end(prefix) {
            let end = condition.text(&end);
            condition.terms.push(format!("key < {end}"));
        }
    }
    condition.time("finished_at >=", filter.finished_from);
    condition.time("finished_at <", filter.finished_before);
}

pub(super) fn state(session: &Session<'_>, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, Trouble> {
    // What a deleted run has left is not shown.
    let sql = "SELECT key, value FROM everstep_state WHERE run = $1 \
               AND EXISTS (SELECT 1 FROM everstep_runs WHERE no = $1) ORDER BY key";
    session.rows(sql, params![run.0], |row| Ok((row.get(0)?, row.get(1)?)))
}

pub(super) fn finished(
    session: &Session<'_>,
    runs: &[RunNo],
) -> Result<Vec<(RunNo, Option<Finished>)>, Trouble> {
    // Every asked number comes with its row, if there is one; those that live are left out.
    let sql = format!(
        "SELECT {}, asked.number FROM unnest($1::bigint[]) WITH ORDINALITY AS asked (number, place) \
         LEFT JOIN everstep_runs ON everstep_runs.no = asked.number \
         WHERE status IS NULL OR status >= 5 ORDER BY asked.place",
        columns::FINISHED
    );
    let numbers: Vec<i64> = runs.iter().map(|run| run.0).collect();
    session.rows(sql, params![numbers], |row| {
        let is_missing = row.get::<Option<i64>>(0)?.is_none();
        let finished = if is_missing {
            None
        } else {
            Some(columns::finished(row)?)
        };
        Ok((RunNo(row.get(3)?), finished))
    })
}

pub(super) fn answers(
    session: &Session<'_>,
    requests: &[Uuid],
) -> Result<Vec<(Uuid, Answer)>, Trouble> {
    let ids = requests.iter().map(|id| Some(id.as_bytes().to_vec()));
    let sql = "SELECT asked.id, state, body FROM unnest($1::bytea[]) WITH ORDINALITY \
               AS asked (id, place) LEFT JOIN everstep_requests ON everstep_requests.id = asked.id \
               AND NOT EXISTS (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = everstep_requests.run) \
               WHERE state IS NULL OR state > 0 ORDER BY asked.place";
    let params = vec![Value::Blobs(ids.collect())];
    session.rows(sql, params, |row| {
        let answer = match row.get::<Option<i64>>(1)? {
            None => Answer::Unknown,
            Some(1) => Answer::Reply(row.get(2)?),
            Some(_) => Answer::RunEnded,
        };
        Ok((Uuid::from_bytes(row.get(0)?), answer))
    })
}

pub(super) fn has_old_generations(session: &Session<'_>) -> Result<bool, Trouble> {
    session.exists("SELECT 1 FROM everstep_old_generations LIMIT 1", Vec::new())
}
