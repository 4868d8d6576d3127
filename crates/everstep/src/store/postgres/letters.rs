//! Dead letters in SQL: [`crate::store::rules::letters`] decides, this reads and writes rows.
//!
//! What becomes of a letter is decided under its lock, so that two who replay the same one do not
//! both deliver it. Their numbers rise in the order in which a batch makes them.

use uuid::Uuid;

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    locks::Lock,
    session::{Bulk, Session},
    value::{Row, params},
};
use crate::{
    commit::{DeadLetter, Delivery, InboxRow, LetterFilter, Target},
    run_id::{RunId, RunNo},
    store::rules::{self, letters::LetterTables},
};

/// Not sorted by run: numbers rise in the order in which runs have ended. Not a join with the arrays:
/// the planner may begin it with the inbox of all runs.
static BURY_INBOX: Bulk = Bulk {
    table: "everstep_inbox",
    sql: "WITH unread AS (DELETE FROM everstep_inbox \
          WHERE run = ANY ($1::bigint[]) AND kind = 0 AND on_end IS NULL \
          RETURNING run, name, body, seq, array_position($1::bigint[], run) AS place) \
          INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
          SELECT run, name, body, ($2::text[])[place], ($3::bigint[])[place], ($4::text[])[place] \
          FROM unread ORDER BY place, seq",
    unique: 0,
};

/// Nobody answers them any more.
static END_REQUESTS: Bulk = Bulk {
    table: "everstep_requests",
    sql: "UPDATE everstep_requests SET state = 2 FROM (SELECT unnest($1::bigint[]) AS run) AS ended \
          WHERE everstep_requests.run = ended.run AND state = 0",
    unique: 1,
};

/// Each message is found by its key. Not a join of the inbox with the arrays: the planner may begin it
/// with the inbox of all runs. Nobody else changes the inbox of a run whose row is locked, so that its
/// messages stay where they were found.
static CONSUME: Bulk = Bulk {
    table: "everstep_inbox",
    sql: "DELETE FROM everstep_inbox WHERE run = ANY ($1::bigint[]) AND ctid = ANY (ARRAY(\
          SELECT place FROM unnest($1::bigint[], $2::bigint[]) AS gone (r, s), \
          LATERAL (SELECT ctid AS place FROM everstep_inbox WHERE run = r AND seq = s OFFSET 0) AS found))",
    unique: 2,
};

/// What [`letter`] reads.
const LETTERS: &str = "SELECT everstep_dead_letters.no, everstep_dead_letters.run, everstep_runs.id, everstep_runs.status, target, \
     everstep_dead_letters.name, body, reason, at \
     FROM everstep_dead_letters LEFT JOIN everstep_runs ON everstep_runs.no = everstep_dead_letters.run";

fn letter(row: &Row) -> Result<DeadLetter, Trouble> {
    Ok(DeadLetter {
        no: columns::number(row, 0)?,
        run: row.get::<Option<i64>>(1)?.map(RunNo),
        run_id: columns::optional_run_id(row, 2)?,
        status: columns::optional_status(row, 3)?,
        target: match row.get::<Option<String>>(4)? {
            Some(json) => Some(target_of(&json)?),
            None => None,
        },
        name: row.get(5)?,
        body: row.get(6)?,
        reason: row.get(7)?,
        at: columns::time(row, 8)?,
    })
}

fn target_of(json: &str) -> Result<Target, Trouble> {
    let parts: Vec<String> =
        serde_json::from_str(json).map_err(|error| Trouble::value("target", error))?;
    match &parts[..] {
        [id] => id
            .parse::<RunId>()
            .map(Target::Id)
            .map_err(|error| Trouble::value("target", error)),
        [workflow, key] => Ok(Target::Key {
            workflow: workflow.clone(),
            key: key.clone(),
        }),
        _ => Err(Trouble::value("target", json)),
    }
}

fn target_json(target: &Target) -> String {
    match target {
        Target::Id(id) => columns::to_json(&[id.to_string()]),
        Target::Key { workflow, key } => columns::to_json(&[workflow, key]),
    }
}

impl LetterTables for Applier<'_> {
    fn inbox_after(&mut self, run: RunNo, seen: u64) -> Result<Vec<InboxRow>, Trouble> {
        columns::inbox_after(self.session, run, seen)
    }

    fn count_inbox(&mut self, run: RunNo, max: u64) -> Result<u64, Trouble> {
        let sql =
            "SELECT count(*) FROM (SELECT 1 FROM everstep_inbox WHERE run = $1 LIMIT $2) AS unread";
        let params = params![run.0, columns::limit(max)];
        let count = self
            .session
            .row(sql, params, |row| columns::number(row, 0))?;
        Ok(count.unwrap_or(0))
    }

    fn consume(&mut self, run: RunNo, seqs: &[u64]) -> Result<(), Trouble> {
        for seq in seqs {
            self.session.put(&CONSUME, params![run.0, *seq as i64]);
            self.ahead.consumed(run, *seq);
        }
        Ok(())
    }

    fn has_dedupe(&mut self, run: RunNo, key: &str) -> Result<bool, Trouble> {
        let sql = "SELECT 1 FROM everstep_dedupes WHERE run = $1 AND key = $2";
        self.session.exists(sql, params![run.0, key])
    }

    fn open_request(&mut self, request: Uuid, run: RunNo) -> Result<(), Trouble> {
        let sql = "INSERT INTO everstep_requests (id, run, state) VALUES ($1, $2, 0) \
                   ON CONFLICT (id) DO UPDATE SET run = excluded.run, state = 0, body = NULL";
        self.execute(sql, params![request, run.0]);
        Ok(())
    }

    fn reply_if_open(&mut self, request: Uuid, body: &[u8]) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_requests SET state = 1, body = $2 WHERE id = $1 AND state = 0";
        self.execute(sql, params![request, body]);
        Ok(())
    }

    fn end_requests(&mut self, run: RunNo) -> Result<(), Trouble> {
        self.session.put(&END_REQUESTS, params![run.0]);
        Ok(())
    }

    fn bury_inbox(&mut self, id: RunId) -> Result<(), Trouble> {
        let target = target_json(&Target::Id(id));
        let row = params![id.no().0, rules::LEFT_UNREAD, self.now, target];
        self.session.put(&BURY_INBOX, row);
        Ok(())
    }

    fn note_dedupe(&mut self, run: RunNo, key: &str) -> Result<(), Trouble> {
        let sql = "INSERT INTO everstep_dedupes (run, key) VALUES ($1, $2) ON CONFLICT DO NOTHING";
        self.execute(sql, params![run.0, key]);
        Ok(())
    }

    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), Trouble> {
        let sql = "INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
                   VALUES ($1, $2, $3, $4, $5, $6)";
        let target = target_json(&delivery.target);
        let Delivery { name, body, .. } = delivery;
        let run = run.map(|run| run.0);
        // Statements of their own, so that the order of their numbers is that of the writes.
        self.execute(sql, params![run, *name, *body, reason, self.now, target]);
        Ok(())
    }

    fn letter(&mut self, no: u64) -> Result<Option<DeadLetter>, Trouble> {
        self.lock(Lock::letter(no))?;
        let sql = format!("{LETTERS} WHERE everstep_dead_letters.no = $1");
        self.session.row(sql, params![columns::limit(no)], letter)
    }

    fn remove_letter(&mut self, no: u64) -> Result<bool, Trouble> {
        self.lock(Lock::letter(no))?;
        let sql = "DELETE FROM everstep_dead_letters WHERE no = $1";
        let removed = self.session.execute_now(sql, params![columns::limit(no)])?;
        Ok(removed > 0)
    }
}

pub(super) fn list(
    session: &Session<'_>,
    filter: &LetterFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<DeadLetter>, Trouble> {
    let mut params = params![columns::limit(after), columns::limit(limit)];
    // What a deleted run has left is not shown any more.
    let mut sql = format!(
        "{LETTERS} WHERE everstep_dead_letters.no > $1 AND NOT EXISTS \
         (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = everstep_dead_letters.run)"
    );
    if let Some(run) = filter.run {
        params.extend(params![run.0]);
        sql.push_str(&format!(
            " AND everstep_dead_letters.run = ${}",
            params.len()
        ));
    }
    if let Some(name) = &filter.name {
        params.extend(params![*name]);
        sql.push_str(&format!(
            " AND everstep_dead_letters.name = ${}",
            params.len()
        ));
    }
    sql.push_str(" ORDER BY everstep_dead_letters.no LIMIT $2");
    session.rows(sql, params, letter)
}
