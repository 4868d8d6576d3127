//! What the doctor asks of tables: see [`crate::store::doctor`] for the rules.

use serde_json::{Map, Value as Json};
use uuid::Uuid;

use super::{
    Sql,
    value::{AsParam, BadValue, Datum, Param, Row, params},
};
use crate::{
    commit::Cell,
    run_id::{RunId, RunNo},
    store::{
        InboxKind, RunStatus,
        doctor::{Ask, CellKind, Facts, FoundRow, PlaceFact, RULES, Rule, RunFacts, sql as texts},
    },
};

/// The number of the queue item that has a place.
pub(crate) fn item<S: Sql>() -> &'static str {
    S::pick(
        "CAST(CAST(t.operation AS TEXT) AS INTEGER)",
        "convert_from(t.operation, 'UTF8')::bigint",
    )
}

/// `place` says what the database says about itself.
pub(crate) fn examine<S: Sql>(
    sql: &S,
    ask: &Ask,
    place: impl FnOnce(&S) -> Result<Vec<PlaceFact>, S::Error>,
) -> Result<Facts, S::Error> {
    match ask {
        Ask::Place => {
            let mut facts = place(sql)?;
            facts.extend(lost_secret(sql)?);
            Ok(Facts::Place(facts))
        }
        Ask::Rows { rule, after, limit } => rows(sql, &RULES[*rule], after.as_deref(), *limit),
        Ask::Row { rule, row } => {
            let text = texts::is_broken(&RULES[*rule], item::<S>());
            sql.exists(text, &values(row)).map(Facts::Broken)
        }
        Ask::Saved { rule, row } => {
            let rule = &RULES[*rule];
            let text = texts::whole(rule, "t.*");
            let read = |row: &dyn Row| saved(rule.table, row);
            sql.rows(text, &values(row), read).map(Facts::Saved)
        }
        Ask::Entry { run, key } => {
            let text = "SELECT * FROM everstep_history WHERE run = ?1 AND key = ?2";
            let read = |row: &dyn Row| saved("everstep_history", row);
            sql.rows(text, params![*run, key], read).map(Facts::Saved)
        }
        Ask::Runs { live, after, limit } => {
            let (condition, order, first) = match live {
                true => ("no > ?1 AND status < 5", "ASC", i64::MIN),
                false => ("no < ?1 AND status > 4", "DESC", i64::MAX),
            };
            let text = format!(
                "SELECT no FROM everstep_runs WHERE {condition} ORDER BY no {order} LIMIT ?2"
            );
            let after = after.unwrap_or(RunNo(first));
            let params = params![after, *limit];
            sql.rows(text, params, |row| row.get(0)).map(Facts::Runs)
        }
        Ask::Run(run) => run_facts(sql, *run).map(|facts| Facts::Run(facts.map(Box::new))),
    }
}

pub(super) fn values(row: &[Cell]) -> Vec<Param<'_>> {
    row.iter().map(AsParam::param).collect()
}

fn lost_secret<S: Sql>(sql: &S) -> Result<Option<PlaceFact>, S::Error> {
    let text = "SELECT 1 FROM everstep_secrets WHERE name = 'tokens' AND length(value) = 32";
    let what = "the secret that tokens of deferreds are made with is lost; restore the table \
                `secrets` from a backup, or no token that was handed out can be used";
    Ok((!sql.exists(text, &[])?).then(|| PlaceFact {
        replication: false,
        is_error: true,
        what: what.to_owned(),
    }))
}

fn rows<S: Sql>(
    sql: &S,
    rule: &Rule,
    after: Option<&[Cell]>,
    limit: usize,
) -> Result<Facts, S::Error> {
    let has_after = after.is_some();
    let after = values(after.unwrap_or_default());
    let width = rule.key.len();
    let text = texts::page(rule, has_after, limit, item::<S>());
    let found = sql.rows(text, &after, |row| {
        let id: Option<Vec<u8>> = row.get(width + 1)?;
        Ok(FoundRow {
            row: key(row, rule)?,
            run: row.get(width)?,
            id: id.and_then(|bytes| run_id(&bytes)),
        })
    })?;
    let text = texts::page_end(rule, has_after, limit);
    let next = sql.row(text, &after, |row| key(row, rule))?;
    let looked = match next {
        Some(_) => limit as u64,
        None => sql.count(texts::page_rows(rule, has_after, limit), &after)?,
    };
    Ok(Facts::Rows { found, looked, next })
}

fn key(row: &dyn Row, rule: &Rule) -> Result<Vec<Cell>, BadValue> {
    let cells = rule.key.iter().enumerate().map(|(place, (_, kind))| {
        Ok(match kind {
            CellKind::Int => Cell::Int(row.get(place)?),
            CellKind::Text => Cell::Text(row.get(place)?),
            CellKind::Bytes => Cell::Bytes(row.get(place)?),
        })
    });
    cells.collect()
}

fn run_id(bytes: &[u8]) -> Option<RunId> {
    Uuid::from_slice(bytes).ok().and_then(RunId::from_uuid)
}

/// A row as a line of JSON; bytes as PostgreSQL writes them.
fn saved(table: &str, row: &dyn Row) -> Result<String, BadValue> {
    let mut columns = Map::new();
    for place in 0..row.width() {
        let value = match row.datum(place)? {
            Datum::Null => Json::Null,
            Datum::Int(number) => number.into(),
            Datum::Text(text) => text.into(),
            Datum::Bytes(bytes) => hex(bytes).into(),
        };
        columns.insert(row.name(place), value);
    }
    Ok(serde_json::json!({ "table": table, "row": columns }).to_string())
}

fn hex(bytes: &[u8]) -> String {
    let digits = bytes.iter().map(|byte| format!("{byte:02x}"));
    format!("\\x{}", digits.collect::<String>())
}

fn run_facts<S: Sql>(sql: &S, run: RunNo) -> Result<Option<RunFacts>, S::Error> {
    let text = "SELECT id, shard, status, ending IS NOT NULL, generation, available_at, \
                updated_at, inbox_seq, last_number, waiting, input, output, error \
                FROM everstep_runs WHERE no = ?1";
    let facts = sql.row(text, params![run], |row| {
        let id: Vec<u8> = row.get(0)?;
        let status: i64 = row.get(2)?;
        Ok(RunFacts {
            no: run,
            id: run_id(&id).filter(|id| id.no() == run),
            shard: row.get(1)?,
            status: u8::try_from(status).ok().and_then(RunStatus::from_code),
            is_ending: row.get(3)?,
            generation: row.get(4)?,
            available_at: row.get(5)?,
            updated_at: row.get(6)?,
            inbox_seq: row.get(7)?,
            last_number: row.get(8)?,
            waiting: row.get(9)?,
            input: row.get(10)?,
            output: row.get(11)?,
            error: row.get(12)?,
            registered: Vec::new(),
        })
    })?;
    let Some(mut facts) = facts else {
        return Ok(None);
    };
    if facts.status.is_none_or(RunStatus::is_terminal) {
        return Ok(Some(facts));
    }
    let text = "SELECT kind, wait FROM everstep_inbox WHERE run = ?1 AND wait IS NOT NULL \
         UNION ALL SELECT 1, wait FROM everstep_event_waiters WHERE run = ?1 AND generation = ?2 \
         UNION ALL SELECT 2, key FROM everstep_deferred_waits WHERE run = ?1 AND generation = ?2 \
         UNION ALL SELECT 3, key FROM everstep_watchers WHERE waiter = ?1 AND generation = ?2 \
         UNION ALL SELECT 4, key FROM everstep_queue_waits WHERE run = ?1 AND generation = ?2 \
         UNION ALL SELECT 5, operation FROM everstep_limit_places \
         WHERE run = ?1 AND generation = ?2";
    let registered = sql.rows(text, params![run, facts.generation], |row| {
        Ok((row.get::<i64>(0)?, row.get::<Vec<u8>>(1)?))
    })?;
    for (kind, key) in registered {
        let kind = u8::try_from(kind).ok().and_then(InboxKind::from_code);
        facts.registered.extend(kind.map(|kind| (kind, key)));
    }
    Ok(Some(facts))
}
