//! A batch in SQL: [`crate::store::apply`] decides, this writes rows.

use std::{sync::LazyLock, time::Duration};

use rusqlite::{CachedStatement, Connection, params};
use uuid::Uuid;

use super::{
    session::Session,
    transact,
    writer::{Memory, Swept},
};
use crate::{
    run_id::{RunNo, ShardId},
    store::{
        rows::{self, Head},
        sql::{
            InSql, Sql, SqlTables,
            ahead::Ahead,
            columns,
            runners::fence_holds,
            runs::{HEAD, head},
            value::params as sql_params,
        },
        *,
    },
    time::Timestamp,
};

/// Reads the row of a run. Made once: every delivery to a parked run reads one.
static READ_HEAD: LazyLock<String> =
    LazyLock::new(|| format!("SELECT {HEAD} FROM everstep_runs WHERE no = ?1"));

/// Applies a batch within the transaction of `conn`. Also says how many rows were written.
pub(crate) fn apply(
    conn: &Connection,
    memory: &mut Memory,
    batch: &Batch,
) -> rusqlite::Result<(Applied, u64)> {
    let mut tables = InSql(Applier::new(conn, memory, batch.now)?);
    let applied = rows::apply(&mut tables, batch)?;
    Ok((applied, tables.session.rows_changed()))
}

pub(super) struct Applier<'a> {
    pub(super) conn: &'a Connection,
    pub(super) session: Session<'a>,
    /// Rows that were written or read by this batch.
    pub(super) ahead: Ahead,
    pub(super) memory: &'a mut Memory,
    pub(super) now: Timestamp,
    notices: Vec<Notice>,
    /// The runner, if its fence holds.
    pub(super) runner: Option<Uuid>,
    /// How long the bodies of users' transactions have taken.
    pub(super) spent: Duration,
    // The statements of the path that every run takes, so that they are not looked up each time.
    insert_run: CachedStatement<'a>,
    put: CachedStatement<'a>,
    finish: CachedStatement<'a>,
}

impl<'a> Applier<'a> {
    fn new(
        conn: &'a Connection,
        memory: &'a mut Memory,
        now: Timestamp,
    ) -> rusqlite::Result<Applier<'a>> {
        Ok(Applier {
            conn,
            session: Session::new(conn),
            ahead: Ahead::default(),
            memory,
            now,
            notices: Vec::new(),
            runner: None,
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
}

impl<'a> SqlTables for Applier<'a> {
    type Error = rusqlite::Error;
    type Sql = Session<'a>;

    fn sql(&self) -> &Session<'a> {
        &self.session
    }

    fn ahead(&mut self) -> &mut Ahead {
        &mut self.ahead
    }

    fn instant(&self) -> Timestamp {
        self.now
    }

    fn noticed(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    fn row_of(&mut self, run: RunNo) -> rusqlite::Result<Option<Head>> {
        if let Some(head) = self.memory.head(run) {
            return Ok(Some(head));
        }
        self.session.row(READ_HEAD.as_str(), sql_params![run], head)
    }

    fn keep(&mut self, head: &Head) {
        self.memory.remember(head.id.no(), *head);
    }

    fn buried(&mut self, run: RunNo) {
        self.memory.swept = Some(Swept::No);
        self.memory.forget(run);
    }

    fn known_grave(&mut self, _: RunNo) -> rusqlite::Result<Option<bool>> {
        let swept = match self.memory.swept {
            Some(swept) => swept,
            None => {
                let sql = "SELECT 1 FROM everstep_graves LIMIT 1";
                let any = self.session.exists(sql, &[])?;
                let swept = if any { Swept::No } else { Swept::Clean };
                *self.memory.swept.insert(swept)
            }
        };
        Ok((swept == Swept::Clean).then_some(false))
    }

    fn require_fence(&mut self, fence: Fence) -> rusqlite::Result<bool> {
        // Nobody else writes while this transaction lasts.
        let is_held = fence_holds(&self.session, fence)?;
        self.runner = is_held.then_some(fence.runner);
        Ok(is_held)
    }

    fn has_shard(&mut self, shard: ShardId) -> rusqlite::Result<bool> {
        let Some(runner) = self.runner else {
            return Ok(false);
        };
        if let Some((holder, held)) = &self.memory.shards
            && *holder == runner
        {
            return Ok(held.contains(shard));
        }
        let held = columns::shards_of(&self.session, runner)?;
        let owns = held.contains(shard);
        self.memory.shards = Some((runner, held));
        Ok(owns)
    }

    fn insert_run(&mut self, new: &NewRun, head: &Head) -> rusqlite::Result<bool> {
        let inserted = self.insert_run.execute(params![
            new.id.no().0,
            new.id.as_uuid().as_bytes(),
            &*new.workflow,
            new.version,
            new.key,
            &*new.pool,
            head.shard.0,
            head.status.code(),
            head.available_at.map(Timestamp::as_millis),
            new.deadline_at.map(Timestamp::as_millis),
            self.now.as_millis(),
            columns::list_json(&new.tags),
            new.input,
            new.parent.map(|parent| *parent.as_uuid().as_bytes()),
            new.trace,
        ])?;
        self.session.count_rows(inserted);
        Ok(inserted > 0)
    }

    fn end_run(
        &mut self,
        head: &Head,
        was_due: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> rusqlite::Result<()> {
        let run = head.id.no();
        if was_due {
            // Apart, so that a run that was never due stays clear of that index.
            let sql = "UPDATE everstep_runs SET available_at = NULL WHERE no = ?1";
            self.session.execute(sql, sql_params![run])?;
        }
        let (status, last_number) = (head.status.code(), head.stored_number());
        let now = self.now.as_millis();
        let params = params![run.0, status, now, last_number, output, error];
        let ended = self.finish.execute(params)?;
        self.session.count_rows(ended);
        Ok(())
    }

    fn put_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> rusqlite::Result<()> {
        for KeyRange { start, end } in deletes {
            let sql = "DELETE FROM everstep_history \
                       WHERE run = ?1 AND generation = ?2 AND key >= ?3 AND key < ?4";
            self.session.execute(sql, sql_params![run, generation, start, end])?;
        }
        for Put { key, value } in puts {
            self.put.execute(params![run.0, generation, key, value])?;
        }
        self.session.count_rows(puts.len());
        Ok(())
    }

    fn run_body(&mut self, transaction: &Transaction) -> rusqlite::Result<()> {
        transact::run(self.conn, transaction, &mut self.spent)?;
        // It may have started runs and sent messages.
        self.ahead = Ahead::default();
        Ok(())
    }

    fn forget(&mut self, run: Option<RunNo>) {
        (self.memory.shards, self.memory.swept) = (None, None);
        self.ahead = Ahead::default();
        if let Some(run) = run {
            self.memory.forget(run);
        }
    }
}
