//! What the doctor asks of a schema, and what mends it: see [`crate::store::doctor`] for the rules.

use uuid::Uuid;

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    session::Session,
    value::{Row, Value, params},
};
use crate::{
    commit::{Cell, Mend},
    run_id::{RunId, RunNo},
    store::{
        InboxKind, RunStatus,
        doctor::{Ask, CellKind, Facts, FoundRow, PlaceFact, RULES, Rule, RunFacts, sql},
        rules::mends,
    },
};

/// The number of the queue item that has a place.
const ITEM: &str = "convert_from(t.operation, 'UTF8')::bigint";

pub(super) fn examine(session: &Session<'_>, ask: &Ask) -> Result<Facts, Trouble> {
    match ask {
        Ask::Place => place(session).map(Facts::Place),
        Ask::Rows { rule, after, limit } => rows(session, &RULES[*rule], after.as_deref(), *limit),
        Ask::Row { rule, row } => {
            let sql = sql::is_broken(&RULES[*rule], ITEM);
            let broken = session.row(sql, values(row), |_| Ok(()))?;
            Ok(Facts::Broken(broken.is_some()))
        }
        Ask::Saved { rule, row } => {
            let rule = &RULES[*rule];
            let line = format!(
                "jsonb_build_object('table', '{}', 'row', to_jsonb(t))::text",
                rule.table
            );
            let sql = sql::whole(rule, &line);
            session
                .rows(sql, values(row), |row| row.get(0))
                .map(Facts::Saved)
        }
        Ask::Entry { run, key } => {
            let sql = "SELECT jsonb_build_object('table', 'history', 'row', to_jsonb(t))::text \
                       FROM history AS t WHERE run = $1 AND key = $2";
            session
                .rows(sql, params![run.0, key.clone()], |row| row.get(0))
                .map(Facts::Saved)
        }
        Ask::Runs { live, after, limit } => {
            let (condition, order, first) = match live {
                true => ("no > $1 AND status < 5", "ASC", i64::MIN),
                false => ("no < $1 AND status > 4", "DESC", i64::MAX),
            };
            let sql = format!("SELECT no FROM runs WHERE {condition} ORDER BY no {order} LIMIT $2");
            let after = after.map_or(first, |run| run.0);
            let found = session.rows(sql, params![after, columns::limit(*limit)], |row| {
                row.get::<i64>(0).map(RunNo)
            });
            found.map(Facts::Runs)
        }
        Ask::Run(run) => run_facts(session, *run).map(|facts| Facts::Run(facts.map(Box::new))),
    }
}

fn values(row: &[Cell]) -> Vec<Value> {
    let values = row.iter().map(|cell| match cell {
        Cell::Int(number) => Value::Int(Some(*number)),
        Cell::Text(text) => Value::Text(Some(text.clone())),
        Cell::Bytes(bytes) => Value::Bytes(Some(bytes.clone())),
    });
    values.collect()
}

/// Whether the database is kept safely.
fn place(session: &Session<'_>) -> Result<Vec<PlaceFact>, Trouble> {
    let mut facts = Vec::new();
    let mut say = |replication, is_error, what: &str| {
        facts.push(PlaceFact {
            replication,
            is_error,
            what: what.to_owned(),
        });
    };
    let sql = "SELECT 1 FROM secrets WHERE name = 'tokens' AND length(value) = 32";
    if session.row(sql, Vec::new(), |_| Ok(()))?.is_none() {
        let what = "the secret that tokens of deferreds are made with is lost; restore the table \
                    `secrets` from a backup, or no token that was handed out can be used";
        say(false, true, what);
    }
    let sql = "SELECT current_setting('synchronous_standby_names') <> '', \
               current_setting('fsync') = 'on', pg_is_in_recovery(), \
               (SELECT count(*) FROM pg_stat_replication WHERE state = 'streaming'), \
               (SELECT count(*) FROM pg_stat_replication \
               WHERE state = 'streaming' AND sync_state IN ('sync', 'quorum')), \
               (SELECT count(*) FROM pg_stat_replication WHERE state IS NULL)";
    let seen = session.row(sql, Vec::new(), |row| {
        Ok((
            row.get::<bool>(0)?,
            row.get::<bool>(1)?,
            row.get::<bool>(2)?,
            [row.get::<i64>(3)?, row.get(4)?, row.get(5)?],
        ))
    })?;
    let Some((names_standbys, syncs, in_recovery, counts)) = seen else {
        return Ok(facts);
    };
    if let Some((is_error, what)) = replication(names_standbys, counts) {
        say(true, is_error, what);
    }
    if in_recovery {
        let what = "this server is a standby: nothing can be written to it; connect to the primary";
        say(true, true, what);
    }
    if !syncs {
        let what = "`fsync` is off: a crash of the server damages everything; turn it on";
        say(false, true, what);
    }
    Ok(facts)
}

/// What is wrong with the copies of a database, and whether it is an error, given how many standbys
/// there are, how many of them are synchronous, and how many this role may know nothing of.
fn replication(names_standbys: bool, standbys: [i64; 3]) -> Option<(bool, &'static str)> {
    let [standbys, synchronous, hidden] = standbys;
    match (names_standbys, standbys, synchronous) {
        _ if hidden > 0 => Some((
            false,
            "the database is replicated, and this role cannot see how; grant it `pg_monitor`",
        )),
        (true, _, 0) => Some((
            true,
            "`synchronous_standby_names` is set, and no synchronous standby is connected: every \
             commit waits for one; bring a standby back, or take it out of the setting",
        )),
        (false, 1.., 0) => Some((
            false,
            "the database is replicated, and no standby is synchronous: a failover may lose what \
             was committed last, and steps are then run again; name one in \
             `synchronous_standby_names`",
        )),
        _ => None,
    }
}

fn rows(
    session: &Session<'_>,
    rule: &Rule,
    after: Option<&[Cell]>,
    limit: usize,
) -> Result<Facts, Trouble> {
    let has_after = after.is_some();
    let after = after.unwrap_or_default();
    let width = rule.key.len();
    let sql = sql::page(rule, has_after, limit, ITEM);
    let found = session.rows(sql, values(after), |row| {
        let id: Option<Vec<u8>> = row.get(width + 1)?;
        Ok(FoundRow {
            row: key(row, rule)?,
            run: row.get(width)?,
            id: id.and_then(|bytes| run_id(&bytes)),
        })
    })?;
    let sql = sql::page_end(rule, has_after, limit);
    let next = session.row(sql, values(after), |row| key(row, rule))?;
    let looked = match next {
        Some(_) => limit as u64,
        None => {
            let sql = sql::page_rows(rule, has_after, limit);
            let count = session.row(sql, values(after), |row| columns::number(row, 0))?;
            count.unwrap_or(0)
        }
    };
    Ok(Facts::Rows {
        found,
        looked,
        next,
    })
}

fn key(row: &Row, rule: &Rule) -> Result<Vec<Cell>, Trouble> {
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

fn run_facts(session: &Session<'_>, run: RunNo) -> Result<Option<RunFacts>, Trouble> {
    let sql = "SELECT id, shard, status, ending, generation, available_at, updated_at, inbox_seq, \
               last_number, waiting, input, output, error FROM runs WHERE no = $1";
    let facts = session.row(sql, params![run.0], |row| {
        let id: Vec<u8> = row.get(0)?;
        let status: i64 = row.get(2)?;
        Ok(RunFacts {
            no: run,
            id: run_id(&id).filter(|id| id.no() == run),
            shard: row.get(1)?,
            status: u8::try_from(status).ok().and_then(RunStatus::from_code),
            is_ending: row.get::<Option<i64>>(3)?.is_some(),
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
    let sql = "SELECT 1::bigint, wait FROM event_waiters WHERE run = $1 AND generation = $2 \
               UNION ALL SELECT 2, key FROM deferred_waits WHERE run = $1 AND generation = $2 \
               UNION ALL SELECT 3, key FROM watchers WHERE waiter = $1 AND generation = $2 \
               UNION ALL SELECT 4, key FROM queue_waits WHERE run = $1 AND generation = $2 \
               UNION ALL SELECT 5, operation FROM limit_places WHERE run = $1 AND generation = $2 \
               UNION ALL SELECT kind, wait FROM inbox WHERE run = $1 AND wait IS NOT NULL";
    let registered = session.rows(sql, params![run.0, facts.generation], |row| {
        Ok((row.get::<i64>(0)?, row.get::<Vec<u8>>(1)?))
    })?;
    for (kind, key) in registered {
        let kind = u8::try_from(kind).ok().and_then(InboxKind::from_code);
        facts.registered.extend(kind.map(|kind| (kind, key)));
    }
    Ok(Some(facts))
}

impl Applier<'_> {
    /// Mends something, if it is still so; how many rows were changed. What it is about was locked at
    /// the beginning of the batch, or is locked by the rules, so nothing is counted while it changes.
    pub(super) fn mend(&mut self, mend: &Mend) -> Result<u64, Trouble> {
        let changed = match mend {
            Mend::Row { rule, row } => return self.mend_row(&RULES[*rule], row),
            Mend::RemoveEntry { run, key, value } => {
                let params = params![run.0, key.clone(), value.clone()];
                self.session.execute_now(sql::REMOVE_ENTRY, params)?
            }
            Mend::ForgetNumber { run, last_number } => {
                let params = params![run.0, *last_number];
                self.session.execute_now(sql::FORGET_NUMBER, params)?
            }
            Mend::Shard { run, from, to } => {
                let params = params![run.0, *from, *to];
                self.session.execute_now(sql::SHARD, params)?
            }
        };
        Ok(changed as u64)
    }

    fn mend_row(&mut self, rule: &Rule, row: &[Cell]) -> Result<u64, Trouble> {
        if let Some(sql) = sql::mend(rule, self.now, ITEM) {
            let changed = self.session.execute_now(sql, values(row))?;
            return Ok(changed as u64);
        }
        mends::lock(self, rule.remedy, row)?;
        let broken = sql::is_broken(rule, ITEM);
        if !self.session.exists(broken, values(row))? {
            return Ok(0);
        }
        mends::mend(self, rule.remedy, row).map(u64::from)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_synchronous_standby_is_asked_for_where_there_are_standbys() {
        assert_eq!(replication(false, [0, 0, 0]), None);
        assert_eq!(replication(true, [2, 1, 0]), None);
        assert_eq!(replication(false, [1, 1, 0]), None);
        assert!(matches!(replication(true, [0, 0, 0]), Some((true, _))));
        assert!(matches!(replication(true, [1, 0, 0]), Some((true, _))));
        assert!(matches!(replication(false, [2, 0, 0]), Some((false, _))));
        assert!(matches!(replication(true, [0, 0, 1]), Some((false, _))));
    }
}
