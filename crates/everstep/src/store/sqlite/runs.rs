//! The rows of runs, their keys and entries, in SQL.

use rusqlite::{Connection, OptionalExtension, params};

use super::{
    batch::{Applier, fence_holds},
    columns, transact,
    writer::Swept,
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        rules::{
            self, Head, Tombstone,
            runs::{Leaving, NextGeneration, Recoveries, RunTables},
            tables::Keyed,
        },
        *,
    },
    time::Timestamp,
};

/// The `run` of a key whose run was deleted. No run has this number.
const NO_RUN: i64 = -1;

pub(super) fn keyed(
    conn: &Connection,
    workflow: &str,
    key: &str,
) -> rusqlite::Result<Option<Keyed>> {
    let sql = "SELECT run, deleted_id, deleted_at, kept_until FROM everstep_keys \
               WHERE workflow = ?1 AND key = ?2";
    let mut statement = conn.prepare_cached(sql)?;
    let found = statement.query_row([workflow, key], |row| {
        let Some(kept_until) = columns::optional_time(row, 3)? else {
            return row.get(0).map(|no| Keyed::Run(RunNo(no)));
        };
        Ok(Keyed::Deleted(Tombstone {
            run: columns::run_id(row, 1)?,
            deleted_at: columns::time(row, 2)?,
            kept_until,
        }))
    });
    found.optional()
}

/// Tags as they are in the row of a run.
fn tags_json(tags: &[(String, String)]) -> Option<String> {
    (!tags.is_empty()).then(|| columns::to_json(&tags))
}

impl Applier<'_> {
    fn put_tag(&self, run: RunNo, (name, value): &(String, String)) -> rusqlite::Result<()> {
        let sql = "INSERT OR IGNORE INTO everstep_tags (name, value, run) VALUES (?1, ?2, ?3)";
        self.execute(sql, params![name, value, run.0]).map(drop)
    }

    fn delete_tag(&self, run: RunNo, (name, value): &(String, String)) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_tags WHERE name = ?1 AND value = ?2 AND run = ?3";
        self.execute(sql, params![name, value, run.0]).map(drop)
    }
}

impl RunTables for Applier<'_> {
    fn hold_fence(&mut self, fence: Fence) -> rusqlite::Result<bool> {
        // Nobody else writes while this transaction lasts.
        let is_held = fence_holds(self.conn, fence)?;
        self.runner = is_held.then_some(fence.runner);
        Ok(is_held)
    }

    fn put_key(&mut self, workflow: &str, key: &str, run: RunNo) -> rusqlite::Result<()> {
        let sql = "INSERT OR REPLACE INTO everstep_keys (workflow, key, run) VALUES (?1, ?2, ?3)";
        self.execute(sql, params![workflow, key, run.0]).map(drop)
    }

    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: &str,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> rusqlite::Result<()> {
        let Some(tombstone) = tombstone else {
            let sql = "DELETE FROM everstep_keys WHERE workflow = ?1 AND key = ?2 AND run = ?3";
            return self.execute(sql, params![workflow, key, run.0]).map(drop);
        };
        let sql = "UPDATE everstep_keys SET run = ?4, deleted_id = ?5, deleted_at = ?6, kept_until = ?7 \
                   WHERE workflow = ?1 AND key = ?2 AND run = ?3";
        let id = tombstone.run.as_uuid();
        let params = params![
            workflow,
            key,
            run.0,
            NO_RUN,
            id.as_bytes(),
            tombstone.deleted_at.as_millis(),
            tombstone.kept_until.as_millis(),
        ];
        self.execute(sql, params).map(drop)
    }

    fn workflow_of_key(&mut self, key: &str, run: RunNo) -> rusqlite::Result<Option<String>> {
        let mut statement = self.conn.prepare_cached(rules::WORKFLOW_OF_KEY)?;
        let found = statement.query_row(params![key, run.0], |row| row.get(0));
        found.optional()
    }

    fn is_grave(&mut self, run: RunNo) -> rusqlite::Result<bool> {
        let swept = match self.memory.swept {
            Some(swept) => swept,
            None => {
                let sql = "SELECT 1 FROM everstep_graves LIMIT 1";
                let any = self.conn.prepare_cached(sql)?.exists([])?;
                let swept = if any { Swept::No } else { Swept::Clean };
                *self.memory.swept.insert(swept)
            }
        };
        if swept == Swept::Clean {
            return Ok(false);
        }
        let sql = "SELECT 1 FROM everstep_graves WHERE run = ?1";
        self.conn.prepare_cached(sql)?.exists([run.0])
    }

    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> rusqlite::Result<bool> {
        let run = new.id.no();
        let inserted = self.insert_run.execute(params![
            run.0,
            new.id.as_uuid().as_bytes(),
            &*new.workflow,
            new.version,
            new.key,
            &*new.pool,
            head.shard.0,
            head.status.code(),
            head.available_at.map(Timestamp::as_millis),
            new.deadline_at.map(Timestamp::as_millis),
            self.now,
            tags_json(&new.tags),
            new.input,
            new.parent.map(|parent| *parent.as_uuid().as_bytes()),
            new.trace,
        ])?;
        if inserted == 0 {
            return Ok(false);
        }
        self.count_rows(1);
        for tag in &new.tags {
            self.put_tag(run, tag)?;
        }
        self.remember(head);
        Ok(true)
    }

    fn import_run(&mut self, row: &RunRow, head: &Head) -> rusqlite::Result<()> {
        let sql = "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, ending, \
                   generation, available_at, deadline_at, created_at, updated_at, finished_at, \
                   attempts, recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, \
                   input, output, error, parent, resume_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, \
                   ?8, ?9, ?10, ?11, ?12, ?13, ?14, ?15, ?16, 0, ?17, ?18, ?19, ?20, ?21, ?22, \
                   ?23, ?24, ?25, ?26)";
        let (run, id) = (row.id.no(), row.id.as_uuid());
        let params = params![
            run.0,
            id.as_bytes(),
            &*row.workflow,
            row.version,
            row.key,
            &*row.pool,
            head.shard.0,
            head.status.code(),
            head.ending.map(RunStatus::code),
            head.generation,
            head.available_at.map(Timestamp::as_millis),
            row.deadline_at.map(Timestamp::as_millis),
            row.created_at.as_millis(),
            self.now,
            row.finished_at.map(Timestamp::as_millis),
            head.attempts,
            head.inbox_seq as i64,
            head.cancel.map(|cancel| cancel.rollback),
            head.stored_number(),
            row.waiting,
            tags_json(&row.tags),
            row.input,
            row.output,
            row.error,
            row.parent.map(|parent| *parent.as_uuid().as_bytes()),
            head.resume_at.map(Timestamp::as_millis),
        ];
        self.execute(sql, params)?;
        self.remember(head);
        row.tags.iter().try_for_each(|tag| self.put_tag(run, tag))
    }

    fn started_with(
        &mut self,
        run: RunNo,
        input: &[u8],
    ) -> rusqlite::Result<Option<(RunId, bool)>> {
        let sql = "SELECT id, input = ?2 OR generation > 1 FROM everstep_runs WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let found = statement.query_row(params![run.0, input], |row| {
            Ok((columns::run_id(row, 0)?, row.get(1)?))
        });
        found.optional()
    }

    fn leaving(&mut self, run: RunNo) -> rusqlite::Result<Option<Leaving>> {
        let sql = "SELECT workflow, key, finished_at, tags FROM everstep_runs WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let found = statement.query_row([run.0], |row| {
            Ok(Leaving {
                workflow: row.get(0)?,
                key: row.get(1)?,
                finished_at: columns::optional_time(row, 2)?,
                tags: columns::tags(row, 3)?,
            })
        });
        found.optional()
    }

    fn delete_run(&mut self, run: RunNo, tags: &[(String, String)]) -> rusqlite::Result<()> {
        tags.iter().try_for_each(|tag| self.delete_tag(run, tag))?;
        self.execute("DELETE FROM everstep_runs WHERE no = ?1", [run.0])?;
        self.execute(
            "INSERT OR IGNORE INTO everstep_graves (run) VALUES (?1)",
            [run.0],
        )?;
        self.memory.swept = Some(Swept::No);
        self.memory.forget(run);
        Ok(())
    }

    fn tags(&mut self, run: RunNo) -> rusqlite::Result<Vec<(String, String)>> {
        let sql = "SELECT tags FROM everstep_runs WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row([run.0], |row| columns::tags(row, 0))
    }

    fn write_tags(
        &mut self,
        run: RunNo,
        before: &[(String, String)],
        after: &[(String, String)],
    ) -> rusqlite::Result<()> {
        for gone in before.iter().filter(|tag| !after.contains(tag)) {
            self.delete_tag(run, gone)?;
        }
        for new in after.iter().filter(|tag| !before.contains(tag)) {
            self.put_tag(run, new)?;
        }
        let sql = "UPDATE everstep_runs SET tags = ?2 WHERE no = ?1";
        self.execute(sql, params![run.0, tags_json(after)])
            .map(drop)
    }

    fn touch(&mut self, run: RunNo) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET updated_at = ?2 WHERE no = ?1";
        self.execute(sql, params![run.0, self.now]).map(drop)
    }

    fn write_head(
        &mut self,
        head: &Head,
        waiting: Option<&str>,
        recoveries: Recoveries,
    ) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET status = ?2, ending = ?3, available_at = ?4, attempts = ?5, \
                   inbox_seq = ?6, cancel_requested = ?7, last_number = ?8, updated_at = ?9, \
                   waiting = ?10, resume_at = ?11, recoveries = iif(?12, 0, recoveries) \
                   WHERE no = ?1";
        let params = params![
            head.id.no().0,
            head.status.code(),
            head.ending.map(RunStatus::code),
            head.available_at.map(Timestamp::as_millis),
            head.attempts,
            head.inbox_seq as i64,
            head.cancel.map(|cancel| cancel.rollback),
            head.stored_number(),
            self.now,
            waiting,
            head.resume_at.map(Timestamp::as_millis),
            recoveries == Recoveries::Cleared,
        ];
        self.execute(sql, params)?;
        self.remember(head);
        Ok(())
    }

    fn write_running(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET status = ?2, available_at = ?3, last_number = ?4, \
                   updated_at = ?5, recoveries = 0, waiting = NULL WHERE no = ?1";
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, status) = (head.id.no().0, head.status.code());
        let params = params![run, status, available_at, head.stored_number(), self.now];
        self.execute(sql, params)?;
        self.remember(head);
        Ok(())
    }

    fn write_number(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET last_number = ?2, updated_at = ?3 WHERE no = ?1";
        let params = params![head.id.no().0, head.stored_number(), self.now];
        self.execute(sql, params)?;
        self.remember(head);
        Ok(())
    }

    fn remember(&mut self, head: &Head) {
        self.memory.remember(head.id.no(), *head);
    }

    fn write_cancel(&mut self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET cancel_requested = ?2, available_at = ?3, updated_at = ?4 \
                   WHERE no = ?1";
        let rollback = head.cancel.map(|cancel| cancel.rollback);
        let available_at = head.available_at.map(Timestamp::as_millis);
        let params = params![head.id.no().0, rollback, available_at, self.now];
        self.execute(sql, params)?;
        self.remember(head);
        Ok(())
    }

    fn write_error(&mut self, run: RunNo, error: Option<&[u8]>) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET error = ?2 WHERE no = ?1";
        self.execute(sql, params![run.0, error]).map(drop)
    }

    fn write_generation(&mut self, head: &Head, next: NextGeneration<'_>) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET generation = ?2, workflow = ?3, version = ?4, pool = ?5, \
                   input = ?6 WHERE no = ?1";
        let (run, generation) = (head.id.no().0, head.generation);
        let NextGeneration {
            workflow,
            version,
            pool,
            input,
        } = next;
        let params = params![run, generation, &**workflow, version, &**pool, input];
        self.execute(sql, params)?;
        self.remember(head);
        let sql =
            "INSERT OR IGNORE INTO everstep_old_generations (run, generation) VALUES (?1, ?2)";
        self.execute(sql, params![run, generation - 1]).map(drop)
    }

    fn finish_run(
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
            self.execute(sql, [run.0])?;
        }
        let (status, last_number) = (head.status.code(), head.stored_number());
        self.finish
            .execute(params![run.0, status, self.now, last_number, output, error])?;
        self.count_rows(1);
        self.remember(head);
        Ok(())
    }

    fn clear_ending(&mut self, run: RunNo) -> rusqlite::Result<()> {
        let sql = "UPDATE everstep_runs SET output = NULL, error = NULL, finished_at = NULL WHERE no = ?1";
        self.execute(sql, [run.0]).map(drop)
    }

    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> rusqlite::Result<()> {
        for (key, value) in state {
            let sql = "INSERT INTO everstep_state (run, key, value) VALUES (?1, ?2, ?3) \
                       ON CONFLICT DO UPDATE SET value = excluded.value";
            self.execute(sql, params![run.0, key, value])?;
        }
        Ok(())
    }

    fn call(&mut self, transaction: &Transaction) -> rusqlite::Result<()> {
        transact::run(self.conn, transaction, &mut self.spent)
    }

    fn old_generation(&mut self) -> rusqlite::Result<Option<(RunNo, u32)>> {
        let sql = "SELECT run, generation FROM everstep_old_generations LIMIT 1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let next = statement.query_row([], |row| Ok((RunNo(row.get(0)?), row.get(1)?)));
        next.optional()
    }

    fn delete_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        limit: u32,
    ) -> rusqlite::Result<usize> {
        let sql = "DELETE FROM everstep_history WHERE run = ?1 AND generation = ?2 AND key IN (SELECT key \
                   FROM everstep_history WHERE run = ?1 AND generation = ?2 ORDER BY key LIMIT ?3)";
        self.execute(sql, params![run.0, generation, limit])
    }

    fn forget_generation(&mut self, run: RunNo, generation: u32) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_old_generations WHERE run = ?1 AND generation = ?2";
        self.execute(sql, params![run.0, generation]).map(drop)
    }
}
