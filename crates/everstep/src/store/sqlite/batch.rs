//! A batch in SQL: [`crate::store::apply`] decides, this writes rows.

use std::{cell::Cell, time::Duration};

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{columns, error::bad_value, runs::keyed, writer::Memory};
use crate::{
    run_id::{RunId, RunNo, ShardId},
    store::{
        rules::{
            Head,
            tables::{Keyed, Tables},
        },
        *,
    },
    time::Timestamp,
};

/// Applies a batch within the transaction of `conn`. Also says how many rows were written.
pub(crate) fn apply(
    conn: &Connection,
    memory: &mut Memory,
    batch: &Batch,
) -> rusqlite::Result<(Applied, u64)> {
    let mut applier = Applier::new(conn, memory, batch.now)?;
    let outcomes = apply::apply(&mut applier, batch)?;
    let Applier { notices, rows, .. } = applier;
    Ok((Applied { outcomes, notices }, rows.get()))
}

pub(super) struct Applier<'a> {
    pub(super) conn: &'a Connection,
    pub(super) memory: &'a mut Memory,
    pub(super) now: i64,
    notices: Vec<Notice>,
    /// The runner, if its fence holds.
    pub(super) runner: Option<Uuid>,
    rows: Cell<u64>,
    /// How long the bodies of users' transactions have taken.
    pub(super) spent: Duration,
    // The statements of the path that every run takes, so that they are not looked up each time.
    pub(super) insert_run: CachedStatement<'a>,
    put: CachedStatement<'a>,
    pub(super) finish: CachedStatement<'a>,
}

impl<'a> Applier<'a> {
    fn new(
        conn: &'a Connection,
        memory: &'a mut Memory,
        now: Timestamp,
    ) -> rusqlite::Result<Applier<'a>> {
        Ok(Applier {
            conn,
            memory,
            now: now.as_millis(),
            notices: Vec::new(),
            runner: None,
            rows: Cell::new(0),
            spent: Duration::ZERO,
            insert_run: conn.prepare_cached(
                "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, generation, \
                 available_at, deadline_at, created_at, updated_at, attempts, recoveries, \
                 inbox_seq, last_number, tags, input, parent, trace) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?10, ?11, ?11, 1, 0, 0, 0, ?12, \
                 ?13, ?14, ?15) ON CONFLICT DO NOTHING",
            )?,
            put: conn.prepare_cached(
                "INSERT INTO everstep_history (run, generation, key, value) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT DO UPDATE SET value = excluded.value",
            )?,
            finish: conn.prepare_cached(
                "UPDATE everstep_runs SET status = ?2, ending = NULL, \
                 updated_at = ?3, finished_at = ?3, last_number = ?4, waiting = NULL, \
                 output = ?5, error = ?6 WHERE no = ?1",
            )?,
        })
    }

    pub(super) fn count_rows(&self, rows: usize) {
        self.rows.set(self.rows.get() + rows as u64);
    }

    /// Executes a statement that is not on everybody's path.
    pub(super) fn execute(
        &self,
        sql: &str,
        params: impl rusqlite::Params,
    ) -> rusqlite::Result<usize> {
        let rows = self.conn.prepare_cached(sql)?.execute(params)?;
        self.count_rows(rows);
        Ok(rows)
    }
}

impl Tables for Applier<'_> {
    type Error = rusqlite::Error;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn head(&mut self, run: RunNo) -> rusqlite::Result<Option<Head>> {
        if let Some(head) = self.memory.head(run) {
            return Ok(Some(head));
        }
        let sql = "SELECT id, status, ending, generation, available_at, attempts, inbox_seq, \
                   cancel_requested, last_number, links, resume_at, shard FROM everstep_runs WHERE no = ?1";
        self.conn
            .prepare_cached(sql)?
            .query_row([run.0], read_head)
            .optional()
    }

    fn keyed(&mut self, workflow: &str, key: &str) -> rusqlite::Result<Option<Keyed>> {
        keyed(self.conn, workflow, key)
    }

    fn insert_inbox(&mut self, run: RunNo, row: &InboxRow) -> rusqlite::Result<()> {
        let sql = "INSERT INTO everstep_inbox (run, seq, name, body, request, sent_at, kind, wait, on_end) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let params = params![
            run.0,
            row.seq as i64,
            row.name,
            row.body,
            row.request.as_ref().map(Uuid::as_bytes),
            row.sent_at.as_millis(),
            row.kind.code(),
            row.wait,
            row.on_end.as_deref().map(columns::fallback_json),
        ];
        self.execute(sql, params).map(drop)
    }

    fn write_inbox_seq(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET inbox_seq = ?2, available_at = ?3, updated_at = ?4 WHERE no = ?1";
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, seq) = (head.id.no(), head.inbox_seq as i64);
        self.execute(sql, params![run.0, seq, available_at, self.now])?;
        self.memory.remember(run, *head);
        Ok(())
    }

    fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> rusqlite::Result<()> {
        for KeyRange { start, end } in deletes {
            let sql = "DELETE FROM everstep_history \
                       WHERE run = ?1 AND generation = ?2 AND key >= ?3 AND key < ?4";
            self.execute(sql, params![run.0, generation, start, end])?;
        }
        for Put { key, value } in puts {
            self.put.execute(params![run.0, generation, key, value])?;
        }
        self.count_rows(puts.len());
        Ok(())
    }

    fn take_all_answers(&mut self, run: RunNo) -> rusqlite::Result<Vec<InboxRow>> {
        let sql = format!(
            "DELETE FROM everstep_inbox WHERE run = ?1 AND kind <> 0 RETURNING {}",
            columns::INBOX_ROW
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map([run.0], columns::inbox_row)?;
        rows.collect()
    }

    fn take_answers(&mut self, run: RunNo, wait: &[u8]) -> rusqlite::Result<Vec<InboxRow>> {
        let sql = format!(
            "DELETE FROM everstep_inbox WHERE run = ?1 AND wait = ?2 RETURNING {}",
            columns::INBOX_ROW
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map(params![run.0, wait], columns::inbox_row)?;
        rows.collect()
    }

    fn write_links(&mut self, head: &Head) -> rusqlite::Result<()> {
        let run = head.id.no();
        self.execute(
            "UPDATE everstep_runs SET links = ?2 WHERE no = ?1",
            params![run.0, head.links],
        )?;
        self.memory.remember(run, *head);
        Ok(())
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

/// Whether the runner's row has this epoch.
pub(crate) fn fence_holds(conn: &Connection, fence: Fence) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM everstep_runners WHERE id = ?1 AND epoch = ?2";
    conn.prepare_cached(sql)?
        .exists(params![fence.runner.as_bytes(), fence.epoch as i64])
}

pub(crate) fn find_key(
    conn: &Connection,
    workflow: &str,
    key: &str,
) -> rusqlite::Result<Option<RunNo>> {
    let sql =
        "SELECT run FROM everstep_keys WHERE workflow = ?1 AND key = ?2 AND kept_until IS NULL";
    let mut statement = conn.prepare_cached(sql)?;
    statement
        .query_row([workflow, key], |row| row.get(0).map(RunNo))
        .optional()
}

fn read_head(row: &Row<'_>) -> rusqlite::Result<Head> {
    let status = columns::status(row, 1)?;
    let last_number = row.get::<_, Option<i64>>(8)?;
    Ok(Head {
        id: columns::run_id(row, 0)?,
        status,
        ending: columns::optional_status(row, 2)?,
        generation: row.get(3)?,
        available_at: columns::optional_time(row, 4)?,
        attempts: row.get(5)?,
        inbox_seq: row.get::<_, i64>(6)? as u64,
        cancel: columns::cancel(row, 7)?,
        last_number: last_number.unwrap_or(0) as u64,
        // Commits that only add entries do not write the row.
        last_number_exact: last_number.is_some() && status != RunStatus::Running,
        links: row.get(9)?,
        resume_at: columns::optional_time(row, 10)?,
        shard: ShardId(row.get(11)?),
    })
}

/// Checked on reading as on writing: a number that is not its id's would lose a run.
pub(crate) fn check_number(id: RunId, no: i64) -> rusqlite::Result<()> {
    if id.no().0 == no {
        Ok(())
    } else {
        Err(bad_value("no", no))
    }
}
