//! Dead letters in SQL: [`crate::store::rules::letters`] decides, this reads and writes rows.

use rusqlite::{Connection, OptionalExtension, Row, ToSql, params};
use uuid::Uuid;

use super::{batch::Applier, columns, error::bad_value};
use crate::{
    commit::{DeadLetter, Delivery, InboxRow, LetterFilter, Target},
    run_id::{RunId, RunNo},
    store::rules::{self, letters::LetterTables},
};

/// What [`letter`] reads.
const LETTERS: &str = "SELECT everstep_dead_letters.no, everstep_dead_letters.run, everstep_runs.id, everstep_runs.status, target, \
     everstep_dead_letters.name, body, reason, at \
     FROM everstep_dead_letters LEFT JOIN everstep_runs ON everstep_runs.no = everstep_dead_letters.run";

fn letter(row: &Row<'_>) -> rusqlite::Result<DeadLetter> {
    let is_known = row.get::<_, Option<[u8; 16]>>(2)?.is_some();
    Ok(DeadLetter {
        no: row.get::<_, i64>(0)? as u64,
        run: row.get::<_, Option<i64>>(1)?.map(RunNo),
        run_id: is_known.then(|| columns::run_id(row, 2)).transpose()?,
        status: columns::optional_status(row, 3)?,
        target: match row.get::<_, Option<String>>(4)? {
            Some(json) => Some(target_of(&json)?),
            None => None,
        },
        name: row.get(5)?,
        body: row.get(6)?,
        reason: row.get(7)?,
        at: columns::time(row, 8)?,
    })
}

fn target_of(json: &str) -> rusqlite::Result<Target> {
    let parts: Vec<String> =
        serde_json::from_str(json).map_err(|error| bad_value("target", error))?;
    match &parts[..] {
        [id] => id
            .parse::<RunId>()
            .map(Target::Id)
            .map_err(|error| bad_value("target", error)),
        [workflow, key] => Ok(Target::Key {
            workflow: workflow.clone(),
            key: key.clone(),
        }),
        _ => Err(bad_value("target", json)),
    }
}

fn target_json(target: &Target) -> String {
    match target {
        Target::Id(id) => columns::to_json(&[id.to_string()]),
        Target::Key { workflow, key } => columns::to_json(&[workflow, key]),
    }
}

impl LetterTables for Applier<'_> {
    fn inbox_after(&mut self, run: RunNo, seen: u64) -> rusqlite::Result<Vec<InboxRow>> {
        columns::inbox_after(self.conn, run, seen)
    }

    fn count_inbox(&mut self, run: RunNo, max: u64) -> rusqlite::Result<u64> {
        let sql = "SELECT count(*) FROM (SELECT 1 FROM everstep_inbox WHERE run = ?1 LIMIT ?2)";
        let mut statement = self.conn.prepare_cached(sql)?;
        let params = params![run.0, columns::limit(max)];
        statement.query_row(params, |row| row.get::<_, i64>(0).map(|count| count as u64))
    }

    fn consume(&mut self, run: RunNo, seqs: &[u64]) -> rusqlite::Result<()> {
        for seq in seqs {
            let sql = "DELETE FROM everstep_inbox WHERE run = ?1 AND seq = ?2";
            self.execute(sql, params![run.0, *seq as i64])?;
        }
        Ok(())
    }

    fn has_dedupe(&mut self, run: RunNo, key: &str) -> rusqlite::Result<bool> {
        let sql = "SELECT 1 FROM everstep_dedupes WHERE run = ?1 AND key = ?2";
        self.conn.prepare_cached(sql)?.exists(params![run.0, key])
    }

    fn open_request(&mut self, request: Uuid, run: RunNo) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO everstep_requests (id, run, state) VALUES (?1, ?2, 0)";
        self.execute(sql, params![request.as_bytes(), run.0])
            .map(drop)
    }

    fn reply_if_open(&mut self, request: Uuid, body: &[u8]) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_requests SET state = 1, body = ?2 WHERE id = ?1 AND state = 0";
        self.execute(sql, params![request.as_bytes(), body])
            .map(drop)
    }

    fn end_requests(&mut self, run: RunNo) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_requests SET state = 2 WHERE run = ?1 AND state = 0";
        self.execute(sql, [run.0]).map(drop)
    }

    fn bury_inbox(&mut self, id: RunId) -> rusqlite::Result<()> {
        let run = id.no().0;
        let sql = "INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
                   SELECT run, name, body, ?2, ?3, ?4 FROM everstep_inbox \
                   WHERE run = ?1 AND kind = 0 AND on_end IS NULL ORDER BY seq";
        let target = target_json(&Target::Id(id));
        self.execute(sql, params![run, rules::LEFT_UNREAD, self.now, target])?;
        let sql = "DELETE FROM everstep_inbox WHERE run = ?1 AND kind = 0 AND on_end IS NULL";
        self.execute(sql, [run]).map(drop)
    }

    fn note_dedupe(&mut self, run: RunNo, key: &str) -> rusqlite::Result<()> {
        let sql = "INSERT OR IGNORE INTO everstep_dedupes (run, key) VALUES (?1, ?2)";
        self.execute(sql, params![run.0, key]).map(drop)
    }

    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> rusqlite::Result<()> {
        let sql = "INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let target = target_json(&delivery.target);
        let Delivery { name, body, .. } = delivery;
        let run = run.map(|run| run.0);
        self.execute(sql, params![run, name, body, reason, self.now, target])
            .map(drop)
    }

    fn letter(&mut self, no: u64) -> rusqlite::Result<Option<DeadLetter>> {
        let sql = format!("{LETTERS} WHERE everstep_dead_letters.no = ?1");
        let mut statement = self.conn.prepare_cached(&sql)?;
        statement.query_row([no as i64], letter).optional()
    }

    fn remove_letter(&mut self, no: u64) -> rusqlite::Result<bool> {
        let removed = self.execute(
            "DELETE FROM everstep_dead_letters WHERE no = ?1",
            [no as i64],
        )?;
        Ok(removed > 0)
    }
}

pub(crate) fn list(
    conn: &Connection,
    filter: &LetterFilter,
    after: u64,
    limit: usize,
) -> rusqlite::Result<Vec<DeadLetter>> {
    let after = i64::try_from(after).unwrap_or(i64::MAX);
    // What a deleted run has left is not shown any more.
    let mut sql = format!(
        "{LETTERS} WHERE everstep_dead_letters.no > ? AND (everstep_dead_letters.run IS NULL \
         OR everstep_dead_letters.run NOT IN (SELECT run FROM everstep_graves))"
    );
    let mut params: Vec<Box<dyn ToSql>> = vec![Box::new(after)];
    if let Some(run) = filter.run {
        sql.push_str(" AND everstep_dead_letters.run = ?");
        params.push(Box::new(run.0));
    }
    if let Some(name) = &filter.name {
        sql.push_str(" AND everstep_dead_letters.name = ?");
        params.push(Box::new(name.clone()));
    }
    sql.push_str(" ORDER BY everstep_dead_letters.no LIMIT ?");
    params.push(Box::new(columns::limit(limit)));
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(rusqlite::params_from_iter(params), letter)?;
    rows.collect()
}
