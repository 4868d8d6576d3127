//! The rows of runs, their keys and entries, in SQL.

use super::{
    batch::Applier,
    columns,
    error::{FENCED, Trouble},
    known::Keys,
    locks::Named,
    session::{Bulk, Op, Session},
    value::{Row, Value, params},
};
use crate::{
    run_id::{RunId, RunNo},
    store::{
        rules::{
            self, Head, Tombstone,
            runs::{Leaving, NextGeneration, Recoveries, RunTables},
            tables::{Keyed, Tables},
        },
        *,
    },
    time::Timestamp,
};

static INSERT_RUN: Bulk = Bulk {
    table: "everstep_runs",
    sql: "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, generation, \
          available_at, deadline_at, created_at, updated_at, attempts, recoveries, inbox_seq, \
          last_number, tags, input, parent, trace) \
          SELECT no, id, workflow, version, key, pool, shard, status, 1, available_at, \
          deadline_at, now, now, 1, 0, 0, 0, tags, input, parent, trace FROM (SELECT \
          unnest($1::bigint[]) AS no, unnest($2::bytea[]) AS id, unnest($3::text[]) AS workflow, \
          unnest($4::bigint[]) AS version, unnest($5::text[]) AS key, unnest($6::text[]) AS pool, \
          unnest($7::bigint[]) AS shard, unnest($8::bigint[]) AS status, \
          unnest($9::bigint[]) AS available_at, unnest($10::bigint[]) AS deadline_at, \
          unnest($11::bigint[]) AS now, unnest($12::text[]) AS tags, \
          unnest($13::bytea[]) AS input, unnest($14::bytea[]) AS parent, \
          unnest($15::text[]) AS trace) AS new",
    unique: 1,
};

static FINISH: Bulk = Bulk {
    table: "everstep_runs",
    sql: "UPDATE everstep_runs SET status = new.status, ending = NULL, available_at = NULL, \
          updated_at = new.now, finished_at = new.now, last_number = new.last_number, \
          waiting = NULL, output = new.output, error = new.error \
          FROM (SELECT unnest($1::bigint[]) AS no, unnest($2::bigint[]) AS status, \
          unnest($3::bigint[]) AS now, unnest($4::bigint[]) AS last_number, \
          unnest($5::bytea[]) AS output, unnest($6::bytea[]) AS error) AS new \
          WHERE everstep_runs.no = new.no",
    unique: 1,
};

static WRITE_HEAD: Bulk = Bulk {
    table: "everstep_runs",
    sql: "UPDATE everstep_runs SET status = new.status, ending = new.ending, \
          available_at = new.available_at, attempts = new.attempts, inbox_seq = new.inbox_seq, \
          cancel_requested = new.cancel_requested, last_number = new.last_number, \
          updated_at = new.now, waiting = new.waiting, resume_at = new.resume_at, \
          recoveries = CASE WHEN new.fresh = 1 THEN 0 ELSE recoveries END \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[], \
          $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[], $10::text[], $11::bigint[], \
          $12::bigint[]) AS new (no, status, ending, available_at, attempts, inbox_seq, \
          cancel_requested, last_number, now, waiting, resume_at, fresh) WHERE everstep_runs.no = new.no",
    unique: 1,
};

static WRITE_RUNNING: Bulk = Bulk {
    table: "everstep_runs",
    sql: "UPDATE everstep_runs SET status = new.status, available_at = new.available_at, \
          last_number = new.last_number, updated_at = new.now, recoveries = 0, waiting = NULL \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[], $4::bigint[], $5::bigint[]) \
          AS new (no, status, available_at, last_number, now) WHERE everstep_runs.no = new.no",
    unique: 1,
};

static WRITE_NUMBER: Bulk = Bulk {
    table: "everstep_runs",
    sql: "UPDATE everstep_runs SET last_number = new.last_number, updated_at = new.now \
          FROM unnest($1::bigint[], $2::bigint[], $3::bigint[]) AS new (no, last_number, now) \
          WHERE everstep_runs.no = new.no",
    unique: 1,
};

static PUT_STATE: Bulk = Bulk {
    table: "everstep_state",
    sql: "INSERT INTO everstep_state (run, key, value) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::bytea[]) \
          ON CONFLICT (run, key) DO UPDATE SET value = excluded.value",
    unique: 2,
};

static PUT_TAG: Bulk = Bulk {
    table: "everstep_tags",
    sql: "INSERT INTO everstep_tags (run, name, value) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[]) ON CONFLICT DO NOTHING",
    unique: 3,
};

static DELETE_TAG: Bulk = Bulk {
    table: "everstep_tags",
    sql: "DELETE FROM everstep_tags USING unnest($1::bigint[], $2::text[], $3::text[]) \
          AS gone (r, n, v) WHERE run = r AND name = n AND value = v",
    unique: 3,
};

static IMPORT_RUN: Bulk = Bulk {
    table: "everstep_runs",
    sql: "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, status, ending, \
          generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
          recoveries, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, \
          error, parent, resume_at) SELECT no, id, workflow, version, key, pool, shard, status, ending, \
          generation, available_at, deadline_at, created_at, updated_at, finished_at, attempts, \
          0, inbox_seq, cancel_requested, last_number, waiting, tags, input, output, error, \
          parent, resume_at FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::text[], \
          $6::text[], $7::bigint[], $8::bigint[], $9::bigint[], $10::bigint[], $11::bigint[], \
          $12::bigint[], $13::bigint[], $14::bigint[], $15::bigint[], $16::bigint[], \
          $17::bigint[], $18::bigint[], $19::bigint[], $20::text[], $21::text[], $22::bytea[], \
          $23::bytea[], $24::bytea[], $25::bytea[], $26::bigint[]) AS new (no, id, workflow, version, key, \
          pool, shard, status, ending, generation, available_at, deadline_at, created_at, \
          updated_at, finished_at, attempts, inbox_seq, cancel_requested, last_number, waiting, \
          tags, input, output, error, parent, resume_at) ORDER BY no",
    unique: 1,
};

static PUT_KEY: Bulk = Bulk {
    table: "everstep_keys",
    sql: "INSERT INTO everstep_keys (run, workflow, key) \
          SELECT run, workflow, key FROM unnest($1::bigint[], $2::text[], $3::text[]) \
          AS new (run, workflow, key) ORDER BY workflow, key",
    unique: 3,
};

/// The `run` of a key whose run was deleted. No run has this number.
const NO_RUN: i64 = -1;

/// What stands under the keys of a batch.
pub(super) fn keys_of_batch(named: &Named) -> Op {
    let names = named.keys.iter().cloned();
    let (workflows, keys) = names
        .map(|(workflow, key)| (Some(workflow), Some(key)))
        .unzip();
    let sql = "SELECT everstep_keys.workflow, everstep_keys.key, run, deleted_id, deleted_at, kept_until FROM everstep_keys \
               JOIN unnest($1::text[], $2::text[]) AS asked (w, k) ON everstep_keys.workflow = w \
               AND everstep_keys.key = k ORDER BY everstep_keys.workflow, everstep_keys.key FOR UPDATE OF everstep_keys";
    Op::new(sql, vec![Value::Texts(workflows), Value::Texts(keys)])
}

pub(super) fn read_keyed(row: &Row, first: usize) -> Result<Keyed, Trouble> {
    let Some(kept_until) = columns::optional_time(row, first + 3)? else {
        return row.get(first).map(|no| Keyed::Run(RunNo(no)));
    };
    Ok(Keyed::Deleted(Tombstone {
        run: columns::run_id(row, first + 1)?,
        deleted_at: columns::time(row, first + 2)?,
        kept_until,
    }))
}

/// The run of a key, for a reader.
pub(super) fn find_key(
    session: &Session<'_>,
    workflow: &str,
    key: &str,
) -> Result<Option<RunNo>, Trouble> {
    let sql =
        "SELECT run FROM everstep_keys WHERE workflow = $1 AND key = $2 AND kept_until IS NULL";
    session.row(sql, params![workflow, key], |row| row.get(0).map(RunNo))
}

/// Tags as they are in the row of a run.
fn tags_json(tags: &[(String, String)]) -> Option<String> {
    (!tags.is_empty()).then(|| columns::to_json(&tags))
}

impl Applier<'_> {
    /// Queues a row of a statement that writes the row of a run as it is in `head`.
    fn put_row(&mut self, head: &Head, bulk: &'static Bulk, row: Vec<Value>) {
        self.session.put(bulk, row);
        self.remember(head);
    }

    fn put_tag(&self, run: RunNo, (name, value): &(String, String)) {
        self.session.put(&PUT_TAG, params![run.0, *name, *value]);
    }

    fn delete_tag(&self, run: RunNo, (name, value): &(String, String)) {
        self.session.put(&DELETE_TAG, params![run.0, *name, *value]);
    }
}

impl RunTables for Applier<'_> {
    fn hold_fence(&mut self, fence: Fence) -> Result<bool, Trouble> {
        if !self.terms.fenced {
            return Ok(false);
        }
        // Written so that no row is an error: what is sent behind it must not be made.
        self.execute(
            "SELECT everstep_require(count(*) = 1, $3) FROM (SELECT 1 FROM everstep_runners \
             WHERE id = $1 AND epoch = $2 FOR KEY SHARE) AS held",
            params![fence.runner, fence.epoch as i64, FENCED],
        );
        self.fence = Some(fence);
        Ok(true)
    }

    fn prepare(&mut self, batch: &Batch) -> Result<(), Trouble> {
        self.lock_and_read(batch)?;
        self.look_ahead(batch)
    }

    fn own(&mut self, run: RunNo) {
        if !self.entries.contains_key(&run) {
            let keys = self.terms.take_keys(self.fence, run);
            self.entries.insert(run, keys);
        }
    }

    /// A second one that enters it at the same moment is refused by the table, and finds it when it
    /// begins again.
    fn put_key(&mut self, workflow: &str, key: &str, run: RunNo) -> Result<(), Trouble> {
        let name = (workflow.to_owned(), key.to_owned());
        let before = self.ahead.keys.insert(name, Some(Keyed::Run(run)));
        if let Some(Some(Keyed::Deleted(_))) = before {
            let sql = "UPDATE everstep_keys SET run = $3, deleted_id = NULL, deleted_at = NULL, \
                       kept_until = NULL WHERE workflow = $1 AND key = $2";
            self.execute(sql, params![workflow, key, run.0]);
        } else {
            self.session.put(&PUT_KEY, params![run.0, workflow, key]);
        }
        Ok(())
    }

    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: &str,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), Trouble> {
        if let Some(tombstone) = tombstone {
            let sql = "UPDATE everstep_keys SET run = $4, deleted_id = $5, deleted_at = $6, \
                       kept_until = $7 WHERE workflow = $1 AND key = $2 AND run = $3";
            let params = params![
                workflow,
                key,
                run.0,
                NO_RUN,
                tombstone.run.as_uuid(),
                tombstone.deleted_at.as_millis(),
                tombstone.kept_until.as_millis(),
            ];
            self.execute(sql, params);
        } else {
            let sql = "DELETE FROM everstep_keys WHERE workflow = $1 AND key = $2 AND run = $3";
            self.execute(sql, params![workflow, key, run.0]);
        }
        // It is read again if it is asked for.
        self.ahead
            .keys
            .remove(&(workflow.to_owned(), key.to_owned()));
        Ok(())
    }

    fn workflow_of_key(&mut self, key: &str, run: RunNo) -> Result<Option<String>, Trouble> {
        let params = params![key, run.0];
        self.session
            .row(rules::WORKFLOW_OF_KEY, params, |row| row.get(0))
    }

    fn is_grave(&mut self, run: RunNo) -> Result<bool, Trouble> {
        if self.graves.contains(&run) {
            return Ok(true);
        }
        if self.terms.named.new_runs.contains(&run) {
            // It was asked at the beginning.
            return Ok(false);
        }
        let sql = "SELECT 1 FROM everstep_graves WHERE run = $1";
        self.session.exists(sql, params![run.0])
    }

    /// The number is free, or its row is locked.
    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> Result<bool, Trouble> {
        let run = new.id.no();
        if self.head(run)?.is_some() {
            return Ok(false);
        }
        let row = params![
            run.0,
            new.id.as_uuid(),
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
        ];
        self.put_row(head, &INSERT_RUN, row);
        if head.status == RunStatus::Running {
            // It is in the memory of this runner from the first moment.
            self.entries.insert(run, Keys::none());
        }
        new.tags.iter().for_each(|tag| self.put_tag(run, tag));
        Ok(true)
    }

    fn import_run(&mut self, row: &RunRow, head: &Head) -> Result<(), Trouble> {
        let run = row.id.no();
        let values = params![
            run.0,
            row.id.as_uuid(),
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
        self.put_row(head, &IMPORT_RUN, values);
        row.tags.iter().for_each(|tag| self.put_tag(run, tag));
        Ok(())
    }

    fn started_with(&mut self, run: RunNo, input: &[u8]) -> Result<Option<(RunId, bool)>, Trouble> {
        let sql = "SELECT id, input = $2 OR generation > 1 FROM everstep_runs WHERE no = $1";
        self.session.row(sql, params![run.0, input], |row| {
            Ok((columns::run_id(row, 0)?, row.get(1)?))
        })
    }

    fn leaving(&mut self, run: RunNo) -> Result<Option<Leaving>, Trouble> {
        let sql = "SELECT workflow, key, finished_at, tags FROM everstep_runs WHERE no = $1";
        self.session.row(sql, params![run.0], |row| {
            Ok(Leaving {
                workflow: row.get(0)?,
                key: row.get(1)?,
                finished_at: columns::optional_time(row, 2)?,
                tags: columns::tags(row, 3)?,
            })
        })
    }

    fn delete_run(&mut self, run: RunNo, tags: &[(String, String)]) -> Result<(), Trouble> {
        tags.iter().for_each(|tag| self.delete_tag(run, tag));
        self.execute("DELETE FROM everstep_runs WHERE no = $1", params![run.0]);
        let sql = "INSERT INTO everstep_graves (run) VALUES ($1) ON CONFLICT DO NOTHING";
        self.execute(sql, params![run.0]);
        self.graves.insert(run);
        self.heads.insert(run, None);
        Ok(())
    }

    fn tags(&mut self, run: RunNo) -> Result<Vec<(String, String)>, Trouble> {
        let sql = "SELECT tags FROM everstep_runs WHERE no = $1";
        let tags = self
            .session
            .row(sql, params![run.0], |row| columns::tags(row, 0))?;
        Ok(tags.unwrap_or_default())
    }

    fn write_tags(
        &mut self,
        run: RunNo,
        before: &[(String, String)],
        after: &[(String, String)],
    ) -> Result<(), Trouble> {
        for gone in before.iter().filter(|tag| !after.contains(tag)) {
            self.delete_tag(run, gone);
        }
        for new in after.iter().filter(|tag| !before.contains(tag)) {
            self.put_tag(run, new);
        }
        let sql = "UPDATE everstep_runs SET tags = $2 WHERE no = $1";
        self.execute(sql, params![run.0, tags_json(after)]);
        Ok(())
    }

    fn touch(&mut self, run: RunNo) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_runs SET updated_at = $2 WHERE no = $1";
        self.execute(sql, params![run.0, self.now]);
        Ok(())
    }

    fn write_head(
        &mut self,
        head: &Head,
        waiting: Option<&str>,
        recoveries: Recoveries,
    ) -> Result<(), Trouble> {
        let row = params![
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
        self.put_row(head, &WRITE_HEAD, row);
        Ok(())
    }

    fn write_running(&mut self, head: &Head) -> Result<(), Trouble> {
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, status) = (head.id.no().0, head.status.code());
        let row = params![run, status, available_at, head.stored_number(), self.now];
        self.put_row(head, &WRITE_RUNNING, row);
        Ok(())
    }

    fn write_number(&mut self, head: &Head) -> Result<(), Trouble> {
        let row = params![head.id.no().0, head.stored_number(), self.now];
        self.put_row(head, &WRITE_NUMBER, row);
        Ok(())
    }

    fn remember(&mut self, head: &Head) {
        self.heads.insert(head.id.no(), Some(*head));
    }

    fn write_cancel(&mut self, head: &Head) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_runs SET cancel_requested = $2, available_at = $3, updated_at = $4 \
                   WHERE no = $1";
        let rollback = head.cancel.map(|cancel| cancel.rollback);
        let available_at = head.available_at.map(Timestamp::as_millis);
        let run = head.id.no().0;
        self.execute(sql, params![run, rollback, available_at, self.now]);
        self.remember(head);
        Ok(())
    }

    fn write_error(&mut self, run: RunNo, error: Option<&[u8]>) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_runs SET error = $2 WHERE no = $1";
        self.execute(sql, params![run.0, error]);
        Ok(())
    }

    fn write_generation(&mut self, head: &Head, next: NextGeneration<'_>) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_runs SET generation = $2, workflow = $3, version = $4, pool = $5, \
                   input = $6 WHERE no = $1";
        let (run, generation) = (head.id.no().0, head.generation);
        let NextGeneration {
            workflow,
            version,
            pool,
            input,
        } = next;
        let params = params![run, generation, &**workflow, version, &**pool, *input];
        self.execute(sql, params);
        let sql = "INSERT INTO everstep_old_generations (run, generation) VALUES ($1, $2) \
                   ON CONFLICT DO NOTHING";
        self.execute(sql, params![run, generation - 1]);
        self.remember(head);
        Ok(())
    }

    fn finish_run(
        &mut self,
        head: &Head,
        _: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> Result<(), Trouble> {
        let run = head.id.no();
        let (status, last_number) = (head.status.code(), head.stored_number());
        let row = params![run.0, status, self.now, last_number, output, error];
        self.put_row(head, &FINISH, row);
        if head.links != 0 {
            // Whoever waits for its end is told in this batch.
            let ending = Finished {
                status: head.status,
                output: output.map(<[u8]>::to_vec),
                error: error.map(<[u8]>::to_vec),
            };
            self.families.endings.insert(run, ending);
        }
        Ok(())
    }

    fn clear_ending(&mut self, run: RunNo) -> Result<(), Trouble> {
        let sql = "UPDATE everstep_runs SET output = NULL, error = NULL, finished_at = NULL WHERE no = $1";
        self.execute(sql, params![run.0]);
        Ok(())
    }

    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> Result<(), Trouble> {
        for (key, value) in state {
            self.session.put(&PUT_STATE, params![run.0, *key, *value]);
        }
        Ok(())
    }

    fn call(&mut self, transaction: &Transaction) -> Result<(), Trouble> {
        self.session.call(transaction)?;
        self.look_again()
    }

    fn old_generation(&mut self) -> Result<Option<(RunNo, u32)>, Trouble> {
        let sql = "SELECT run, generation FROM everstep_old_generations \
                   ORDER BY run, generation LIMIT 1 FOR UPDATE SKIP LOCKED";
        self.session
            .row(sql, Vec::new(), |row| Ok((RunNo(row.get(0)?), row.get(1)?)))
    }

    fn delete_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        limit: u32,
    ) -> Result<usize, Trouble> {
        let sql = "DELETE FROM everstep_history WHERE run = $1 AND generation = $2 AND key IN (SELECT key \
                   FROM everstep_history WHERE run = $1 AND generation = $2 ORDER BY key LIMIT $3)";
        let params = params![run.0, generation, limit];
        self.session.execute_now(sql, params)
    }

    fn forget_generation(&mut self, run: RunNo, generation: u32) -> Result<(), Trouble> {
        let sql = "DELETE FROM everstep_old_generations WHERE run = $1 AND generation = $2";
        self.execute(sql, params![run.0, generation]);
        Ok(())
    }
}
