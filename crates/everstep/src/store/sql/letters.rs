//! The rows of inboxes, requests and dead letters.
//!
//! What becomes of a letter is decided under its lock, so that two who replay the same one do not
//! both deliver it. Their numbers rise in the order in which a batch makes them.

use uuid::Uuid;

use super::{
    InSql, Sql, SqlTables, Subject,
    bulk::Bulk,
    columns::{self, from_json, to_json},
    value::{AsParam, BadValue, Datum, FromDatum, Param, Row, params, read},
};
use crate::{
    commit::{DeadLetter, Delivery, InboxRow, LetterFilter, Target},
    run_id::{RunId, RunNo},
    store::rows::{InboxPart, InboxTables, RunTables},
};

static PUT_INBOX: Bulk = Bulk::insert(
    "everstep_inbox",
    2,
    "run bigint, seq bigint, name text, body bytea, request bytea, sent_at bigint, kind bigint, \
     wait bytea, on_end text",
);

/// Over arrays, numbers rise in the order in which runs have ended, so it is not sorted by run; and it
/// is not a join with the arrays, which the planner may begin with the inbox of all runs.
static BURY_INBOX: Bulk = Bulk::written(
    "everstep_inbox",
    0,
    "INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
     SELECT run, name, body, ?2, ?3, ?4 FROM everstep_inbox \
     WHERE run = ?1 AND kind = 0 AND on_end IS NULL ORDER BY seq",
    "WITH unread AS (DELETE FROM everstep_inbox \
     WHERE run = ANY (?1::bigint[]) AND kind = 0 AND on_end IS NULL \
     RETURNING run, name, body, seq, array_position(?1::bigint[], run) AS place) \
     INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
     SELECT run, name, body, (?2::text[])[place], (?3::bigint[])[place], (?4::text[])[place] \
     FROM unread ORDER BY place, seq",
);

/// Nobody answers them any more.
static END_REQUESTS: Bulk = Bulk::written(
    "everstep_requests",
    1,
    "UPDATE everstep_requests SET state = 2 WHERE run = ?1 AND state = 0",
    "UPDATE everstep_requests SET state = 2 FROM (SELECT unnest(?1::bigint[]) AS run) AS ended \
     WHERE everstep_requests.run = ended.run AND state = 0",
);

/// Over arrays, each message is found by its key. Not a join of the inbox with the arrays: the planner
/// may begin it with the inbox of all runs. Nobody else changes the inbox of a run whose row is locked,
/// so that its messages stay where they were found.
static CONSUME: Bulk = Bulk::written(
    "everstep_inbox",
    2,
    "DELETE FROM everstep_inbox WHERE run = ?1 AND seq = ?2",
    "DELETE FROM everstep_inbox WHERE run = ANY (?1::bigint[]) AND ctid = ANY (ARRAY(\
     SELECT place FROM unnest(?1::bigint[], ?2::bigint[]) AS gone (r, s), \
     LATERAL (SELECT ctid AS place FROM everstep_inbox WHERE run = r AND seq = s OFFSET 0) AS found))",
);

/// What [`letter`] reads.
const LETTERS: &str = "SELECT letters.no, letters.run, everstep_runs.id, everstep_runs.status, \
     target, letters.name, body, reason, at FROM everstep_dead_letters AS letters \
     LEFT JOIN everstep_runs ON everstep_runs.no = letters.run";

fn letter(row: &dyn Row) -> Result<DeadLetter, BadValue> {
    Ok(read!(row => DeadLetter { no, run, run_id, status, target, name, body, reason, at }))
}

impl FromDatum for Target {
    fn from_datum(datum: Datum<'_>) -> Result<Target, String> {
        let json = String::from_datum(datum)?;
        let parts: Vec<String> = from_json(&json).map_err(|bad| bad.found)?;
        match <[String; 2]>::try_from(parts) {
            Ok([workflow, key]) => Ok(Target::Key { workflow, key }),
            Err(parts) => match &parts[..] {
                [id] => id.parse().map(Target::Id).map_err(|_| json),
                _ => Err(json),
            },
        }
    }
}

fn target_json(target: &Target) -> String {
    match target {
        Target::Id(id) => to_json(&[id.to_string()]),
        Target::Key { workflow, key } => to_json(&[workflow, key]),
    }
}

impl<T: SqlTables> InboxTables for InSql<T> {
    fn insert_inbox(&mut self, run: RunNo, row: &InboxRow) -> Result<(), T::Error> {
        let (kind, on_end) = (row.kind.code(), row.on_end.as_deref().map(columns::fallback_json));
        let params = params![
            run,
            row.seq,
            row.name,
            row.body,
            row.request,
            row.sent_at,
            kind,
            row.wait,
            on_end,
        ];
        self.sql().put(&PUT_INBOX, params)?;
        self.ahead().arrived(run, row);
        Ok(())
    }

    fn inbox_after(&mut self, run: RunNo, seen: u64) -> Result<Vec<InboxRow>, T::Error> {
        columns::inbox_after(self.sql(), run, seen)
    }

    fn count_inbox(&mut self, run: RunNo, max: u64) -> Result<u64, T::Error> {
        let sql =
            "SELECT count(*) FROM (SELECT 1 FROM everstep_inbox WHERE run = ?1 LIMIT ?2) AS unread";
        self.sql().count(sql, params![run, max])
    }

    fn consume(&mut self, run: RunNo, seqs: &[u64]) -> Result<(), T::Error> {
        for seq in seqs {
            self.sql().put(&CONSUME, params![run, *seq])?;
            self.ahead().consumed(run, *seq);
        }
        Ok(())
    }

    fn take_inbox(&mut self, run: RunNo, part: InboxPart<'_>) -> Result<Vec<InboxRow>, T::Error> {
        if let Some(taken) = self.ahead().take_inbox(run, |row| part.includes(row)) {
            let seqs: Vec<u64> = taken.iter().map(|row| row.seq).collect();
            self.consume(run, &seqs)?;
            return Ok(taken);
        }
        let (condition, params): (_, &[Param<'_>]) = match &part {
            InboxPart::Answers(wait) => ("wait = ?2", params![run, **wait]),
            InboxPart::AllAnswers => ("kind <> 0", params![run]),
            InboxPart::Fallbacks => ("on_end IS NOT NULL", params![run]),
        };
        let sql = format!(
            "DELETE FROM everstep_inbox WHERE run = ?1 AND {condition} RETURNING {}",
            columns::INBOX_ROW
        );
        let mut taken = self.sql().rows(sql, params, columns::inbox_row)?;
        // What a statement gives back comes in no promised order.
        taken.sort_by_key(|row| row.seq);
        Ok(taken)
    }

    fn has_dedupe(&mut self, run: RunNo, key: &str) -> Result<bool, T::Error> {
        let sql = "SELECT 1 FROM everstep_dedupes WHERE run = ?1 AND key = ?2";
        self.sql().exists(sql, params![run, key])
    }

    fn open_request(&mut self, request: Uuid, run: RunNo) -> Result<(), T::Error> {
        let sql = "INSERT INTO everstep_requests (id, run, state) VALUES (?1, ?2, 0) \
                   ON CONFLICT (id) DO UPDATE SET run = excluded.run, state = 0, body = NULL";
        self.sql().execute(sql, params![request, run])
    }

    fn reply_if_open(&mut self, request: Uuid, body: &[u8]) -> Result<(), T::Error> {
        let sql = "UPDATE everstep_requests SET state = 1, body = ?2 WHERE id = ?1 AND state = 0";
        self.sql().execute(sql, params![request, body])
    }

    fn end_inbox(&mut self, id: RunId, reason: &str) -> Result<(), T::Error> {
        let (run, target) = (id.no(), target_json(&Target::Id(id)));
        self.sql().put(&BURY_INBOX, params![run, reason, self.now(), target])?;
        // PostgreSQL does both by one statement.
        match T::Sql::pick(
            "DELETE FROM everstep_inbox WHERE run = ?1 AND kind = 0 AND on_end IS NULL",
            "",
        ) {
            "" => {}
            sql => self.sql().execute(sql, params![run])?,
        }
        self.sql().put(&END_REQUESTS, params![run])
    }

    fn note_dedupe(&mut self, run: RunNo, key: &str) -> Result<(), T::Error> {
        let sql = "INSERT INTO everstep_dedupes (run, key) VALUES (?1, ?2) ON CONFLICT DO NOTHING";
        self.sql().execute(sql, params![run, key])
    }

    fn bury(
        &mut self,
        run: Option<RunNo>,
        delivery: &Delivery,
        reason: &str,
    ) -> Result<(), T::Error> {
        let sql = "INSERT INTO everstep_dead_letters (run, name, body, reason, at, target) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6)";
        let target = target_json(&delivery.target);
        let Delivery { name, body, .. } = delivery;
        // Statements of their own, so that the order of their numbers is that of the writes.
        self.sql().execute(sql, params![run, name, body, reason, self.now(), target])
    }

    fn letter(&mut self, no: u64) -> Result<Option<DeadLetter>, T::Error> {
        self.lock(Subject::Letter(no))?;
        let sql = format!("{LETTERS} WHERE letters.no = ?1");
        self.sql().row(sql, params![no], letter)
    }

    fn remove_letter(&mut self, no: u64) -> Result<bool, T::Error> {
        self.lock(Subject::Letter(no))?;
        let sql = "DELETE FROM everstep_dead_letters WHERE no = ?1";
        Ok(self.sql().execute_now(sql, params![no])? > 0)
    }
}

pub(crate) fn list<S: Sql>(
    sql: &S,
    filter: &LetterFilter,
    after: u64,
    limit: usize,
) -> Result<Vec<DeadLetter>, S::Error> {
    let mut params = params![after, limit].to_vec();
    // What a deleted run has left is not shown any more.
    let mut text = format!(
        "{LETTERS} WHERE letters.no > ?1 AND NOT EXISTS \
         (SELECT 1 FROM everstep_graves WHERE everstep_graves.run = letters.run)"
    );
    if let Some(run) = &filter.run {
        params.push(run.param());
        text.push_str(&format!(" AND letters.run = ?{}", params.len()));
    }
    if let Some(name) = &filter.name {
        params.push(name.param());
        text.push_str(&format!(" AND letters.name = ?{}", params.len()));
    }
    text.push_str(" ORDER BY letters.no LIMIT ?2");
    sql.rows(text, &params, letter)
}
