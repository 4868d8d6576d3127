//! The rows of runs, their pools, keys, inboxes, tags and values. What every step writes is each
//! store's own.

use super::{
    InSql, Sql, SqlTables,
    bulk::Bulk,
    columns, mends, pools,
    value::{BadValue, Row, params, read},
};
use crate::{
    pool::{DEFAULT_POOL, PoolNo},
    run_id::{RunId, RunNo, ShardId},
    store::{
        rows::{Head, Keyed, Labels, NextGeneration, Recoveries, RunChange, RunTables, Tombstone},
        *,
    },
    time::Timestamp,
};

/// The columns that [`head`] reads.
pub(crate) const HEAD: &str = "no, id, status, ending, generation, available_at, attempts, \
                               inbox_seq, cancel_requested, last_number, links, resume_at, shard";

pub(crate) fn head(row: &dyn Row) -> Result<Head, BadValue> {
    let status = row.get(2)?;
    let last_number = row.get::<Option<u64>>(9)?;
    Ok(Head {
        id: row.get(1)?,
        status,
        ending: row.get(3)?,
        generation: row.get(4)?,
        available_at: row.get(5)?,
        attempts: row.get(6)?,
        inbox_seq: row.get(7)?,
        cancel: row.get(8)?,
        last_number: last_number.unwrap_or(0),
        // Commits that only add entries do not write the row.
        last_number_exact: last_number.is_some() && status != RunStatus::Running,
        links: row.get(10)?,
        resume_at: row.get(11)?,
        shard: row.get(12)?,
    })
}

/// What stands under a key: its run, or the tombstone of one, from this column on.
pub(crate) fn keyed(row: &dyn Row, first: usize) -> Result<Keyed, BadValue> {
    let Some(kept_until) = row.get(first + 3)? else {
        return row.get(first).map(Keyed::Run);
    };
    Ok(Keyed::Deleted(Tombstone {
        run: row.get(first + 1)?,
        deleted_at: row.get(first + 2)?,
        kept_until,
    }))
}

static WRITE_INBOX_SEQ: Bulk = Bulk::update(
    "everstep_runs",
    1,
    "no bigint, inbox_seq bigint, available_at bigint, updated_at bigint",
);

static WRITE_LINKS: Bulk = Bulk::update("everstep_runs", 1, "no bigint, links bigint");

static WRITE_HEAD: Bulk = Bulk::written(
    "everstep_runs",
    1,
    "UPDATE everstep_runs SET status = ?2, ending = ?3, available_at = ?4, attempts = ?5, \
     inbox_seq = ?6, cancel_requested = ?7, last_number = ?8, updated_at = ?9, waiting = ?10, \
     resume_at = ?11, recoveries = CASE WHEN ?12 = 1 THEN 0 ELSE recoveries END WHERE no = ?1",
    "UPDATE everstep_runs SET status = new.status, ending = new.ending, \
     available_at = new.available_at, attempts = new.attempts, inbox_seq = new.inbox_seq, \
     cancel_requested = new.cancel_requested, last_number = new.last_number, \
     updated_at = new.now, waiting = new.waiting, resume_at = new.resume_at, \
     recoveries = CASE WHEN new.fresh = 1 THEN 0 ELSE recoveries END \
     FROM unnest(?1::bigint[], ?2::bigint[], ?3::bigint[], ?4::bigint[], ?5::bigint[], \
     ?6::bigint[], ?7::bigint[], ?8::bigint[], ?9::bigint[], ?10::text[], ?11::bigint[], \
     ?12::bigint[]) AS new (no, status, ending, available_at, attempts, inbox_seq, \
     cancel_requested, last_number, now, waiting, resume_at, fresh) \
     WHERE everstep_runs.no = new.no",
);

static WRITE_RUNNING: Bulk = Bulk::written(
    "everstep_runs",
    1,
    "UPDATE everstep_runs SET status = ?2, available_at = ?3, last_number = ?4, updated_at = ?5, \
     recoveries = 0, waiting = NULL WHERE no = ?1",
    "UPDATE everstep_runs SET status = new.status, available_at = new.available_at, \
     last_number = new.last_number, updated_at = new.now, recoveries = 0, waiting = NULL \
     FROM unnest(?1::bigint[], ?2::bigint[], ?3::bigint[], ?4::bigint[], ?5::bigint[]) \
     AS new (no, status, available_at, last_number, now) WHERE everstep_runs.no = new.no",
);

static WRITE_NUMBER: Bulk =
    Bulk::update("everstep_runs", 1, "no bigint, last_number bigint, updated_at bigint");

static WRITE_LEARNED: Bulk = Bulk::update("everstep_runs", 1, "no bigint, last_number bigint");

static PUT_STATE: Bulk = Bulk::put("everstep_state", 2, "run bigint, key text, value bytea");

static PUT_TAG: Bulk = Bulk::insert_new("everstep_tags", 3, "run bigint, name text, value text");

static DELETE_TAG: Bulk = Bulk::delete("everstep_tags", 3, "run bigint, name text, value text");

static IMPORT_RUN: Bulk = Bulk::insert(
    "everstep_runs",
    1,
    "no bigint, id bytea, workflow text, version bigint, key text, pool text, shard bigint, \
     status bigint, ending bigint, generation bigint, available_at bigint, deadline_at bigint, \
     created_at bigint, updated_at bigint, finished_at bigint, attempts bigint, \
     recoveries bigint, inbox_seq bigint, cancel_requested bigint, last_number bigint, \
     waiting text, tags text, input bytea, output bytea, error bytea, parent bytea, \
     resume_at bigint",
);

/// A second one that enters it at the same moment is refused by the table, and finds it when it
/// begins again.
static PUT_KEY: Bulk = Bulk::written(
    "everstep_keys",
    3,
    "INSERT INTO everstep_keys (run, workflow, key) VALUES (?1, ?2, ?3) \
     ON CONFLICT (workflow, key) DO UPDATE SET run = excluded.run, deleted_id = NULL, \
     deleted_at = NULL, kept_until = NULL",
    "INSERT INTO everstep_keys (run, workflow, key) \
     SELECT run, workflow, key FROM unnest(?1::bigint[], ?2::text[], ?3::text[]) \
     AS new (run, workflow, key) ORDER BY workflow, key",
);

/// The `run` of a key whose run was deleted. No run has this number.
const NO_RUN: i64 = -1;

/// The workflow under which a run has its key, for runs that have continued and may be of another
/// workflow now: one look for each workflow that has keys. Parameters are the key and the number of the run.
const WORKFLOW_OF_KEY: &str = "WITH RECURSIVE names (workflow) AS \
    (SELECT min(workflow) FROM everstep_keys UNION ALL SELECT (SELECT min(workflow) FROM everstep_keys \
    WHERE everstep_keys.workflow > names.workflow) FROM names WHERE names.workflow IS NOT NULL) \
    SELECT everstep_keys.workflow FROM names JOIN everstep_keys ON everstep_keys.workflow = names.workflow \
    WHERE everstep_keys.key = ?1 AND everstep_keys.run = ?2";

/// Enters the tags of a run.
pub(crate) fn put_tags<T: SqlTables>(
    tables: &InSql<T>,
    run: RunNo,
    tags: &[(String, String)],
) -> Result<(), T::Error> {
    tags.iter().try_for_each(|(name, value)| tables.sql().put(&PUT_TAG, params![run, name, value]))
}

fn delete_tag<T: SqlTables>(
    tables: &InSql<T>,
    run: RunNo,
    (name, value): &(String, String),
) -> Result<(), T::Error> {
    tables.sql().put(&DELETE_TAG, params![run, name, value])
}

/// Enters the key of a run, in place of the tombstone under it if there is one.
fn put_key<T: SqlTables>(
    tables: &mut InSql<T>,
    workflow: &str,
    key: &str,
    run: RunNo,
) -> Result<(), T::Error> {
    let name = (workflow.to_owned(), key.to_owned());
    let before = tables.ahead().keys.insert(name, Some(Keyed::Run(run)));
    if let Some(Some(Keyed::Deleted(_))) = before {
        let sql = "UPDATE everstep_keys SET run = ?3, deleted_id = NULL, deleted_at = NULL, \
                   kept_until = NULL WHERE workflow = ?1 AND key = ?2";
        return tables.sql().execute(sql, params![workflow, key, run]);
    }
    tables.sql().put(&PUT_KEY, params![run, workflow, key])
}

/// Writes all columns of the row that decisions are made from, except for the shard, the links and
/// the generation, and why the run waits.
fn write_head<T: SqlTables>(
    tables: &InSql<T>,
    head: &Head,
    waiting: Option<&str>,
    recoveries: Recoveries,
) -> Result<(), T::Error> {
    let (run, number, now) = (head.id.no(), head.stored_number(), tables.instant());
    let is_fresh = recoveries == Recoveries::Cleared;
    let row = params![
        run,
        head.status,
        head.ending,
        head.available_at,
        head.attempts,
        head.inbox_seq,
        head.cancel,
        number,
        now,
        waiting,
        head.resume_at,
        is_fresh,
    ];
    tables.sql().put(&WRITE_HEAD, row)
}

fn write_generation<T: SqlTables>(
    tables: &InSql<T>,
    head: &Head,
    next: NextGeneration<'_>,
) -> Result<(), T::Error> {
    let sql = "UPDATE everstep_runs SET generation = ?2, workflow = ?3, version = ?4, \
               pool = ?5, input = ?6 WHERE no = ?1";
    let (run, generation) = (head.id.no(), head.generation);
    let NextGeneration { workflow, version, pool, input } = next;
    let params = params![run, generation, workflow, version, pool, input];
    tables.sql().execute(sql, params)?;
    let sql = "INSERT INTO everstep_old_generations (run, generation) VALUES (?1, ?2) \
               ON CONFLICT DO NOTHING";
    tables.sql().execute(sql, params![run, generation - 1])
}

/// Writes the row of a run that ends.
fn finish<T: SqlTables>(
    tables: &mut InSql<T>,
    head: &Head,
    was_due: bool,
    output: Option<&[u8]>,
    error: Option<&[u8]>,
) -> Result<(), T::Error> {
    tables.end_run(head, was_due, output, error)?;
    if head.links != 0 {
        // Whoever waits for its end is told in this batch.
        let ending = Finished {
            status: head.status,
            output: output.map(<[u8]>::to_vec),
            error: error.map(<[u8]>::to_vec),
        };
        tables.ahead().endings.insert(head.id.no(), ending);
    }
    Ok(())
}

impl<T: SqlTables> RunTables for InSql<T> {
    type Error = T::Error;

    fn now(&self) -> Timestamp {
        self.instant()
    }

    fn notices(&mut self) -> &mut Vec<Notice> {
        self.noticed()
    }

    fn head(&mut self, run: RunNo) -> Result<Option<Head>, T::Error> {
        self.row_of(run)
    }

    fn keyed(&mut self, workflow: &str, key: &str) -> Result<Option<Keyed>, T::Error> {
        let name = (workflow.to_owned(), key.to_owned());
        if let Some(known) = self.ahead().keys.get(&name) {
            return Ok(*known);
        }
        let sql = format!(
            "SELECT run, deleted_id, deleted_at, kept_until FROM everstep_keys \
             WHERE workflow = ?1 AND key = ?2{}",
            T::Sql::pick("", " FOR UPDATE")
        );
        let found = self.sql().row(sql, params![workflow, key], |row| keyed(row, 0))?;
        self.ahead().keys.insert(name, found);
        Ok(found)
    }

    fn hold_fence(&mut self, fence: Fence) -> Result<bool, T::Error> {
        self.require_fence(fence)
    }

    fn prepare(&mut self, batch: &Batch) -> Result<(), T::Error> {
        self.lock_and_read(batch)
    }

    fn owns(&mut self, shard: ShardId) -> Result<bool, T::Error> {
        self.has_shard(shard)
    }

    fn own(&mut self, run: RunNo) {
        self.writes_for(run);
    }

    fn is_grave(&mut self, run: RunNo) -> Result<bool, T::Error> {
        match self.known_grave(run)? {
            Some(is_grave) => Ok(is_grave),
            None => {
                let sql = "SELECT 1 FROM everstep_graves WHERE run = ?1";
                self.sql().exists(sql, params![run])
            }
        }
    }

    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> Result<bool, T::Error> {
        if !self.insert_run(new, head)? {
            return Ok(false);
        }
        let run = new.id.no();
        put_tags(self, run, &new.tags)?;
        self.keep(head);
        if let Some(key) = &new.key {
            put_key(self, &new.workflow, key, run)?;
        }
        Ok(true)
    }

    fn import_run(&mut self, row: &RunRow, head: &Head) -> Result<(), T::Error> {
        let run = row.id.no();
        let (now, number) = (self.instant(), head.stored_number());
        let (recoveries, tags) = (0i64, columns::list_json(&row.tags));
        let values = params![
            run,
            row.id,
            row.workflow,
            row.version,
            row.key,
            row.pool,
            head.shard,
            head.status,
            head.ending,
            head.generation,
            head.available_at,
            row.deadline_at,
            row.created_at,
            now,
            row.finished_at,
            head.attempts,
            recoveries,
            head.inbox_seq,
            head.cancel,
            number,
            row.waiting,
            tags,
            row.input,
            row.output,
            row.error,
            row.parent,
            head.resume_at,
        ];
        self.sql().put(&IMPORT_RUN, values)?;
        self.keep(head);
        put_tags(self, run, &row.tags)?;
        match &row.key {
            Some(key) => put_key(self, &row.workflow, key, run),
            None => Ok(()),
        }
    }

    fn started_with(
        &mut self,
        run: RunNo,
        input: &[u8],
    ) -> Result<Option<(RunId, bool)>, T::Error> {
        let sql = "SELECT id, input = ?2 OR generation > 1 FROM everstep_runs WHERE no = ?1";
        self.sql().row(sql, params![run, input], |row| Ok((row.get(0)?, row.get(1)?)))
    }

    fn write_run(&mut self, head: &Head, change: RunChange<'_>) -> Result<(), T::Error> {
        let (run, now, sql) = (head.id.no(), self.instant(), self.sql());
        match change {
            RunChange::Nothing => {}
            RunChange::Number => {
                sql.put(&WRITE_NUMBER, params![run, head.stored_number(), now])?;
            }
            RunChange::Learned => {
                sql.put(&WRITE_LEARNED, params![run, head.stored_number()])?;
            }
            RunChange::Inbox => {
                let row = params![run, head.inbox_seq, head.available_at, now];
                sql.put(&WRITE_INBOX_SEQ, row)?;
            }
            RunChange::Links => sql.put(&WRITE_LINKS, params![run, head.links])?,
            RunChange::Moving => {
                let number = head.stored_number();
                let row = params![run, head.status, head.available_at, number, now];
                sql.put(&WRITE_RUNNING, row)?;
            }
            RunChange::Cancel => {
                let text = "UPDATE everstep_runs SET cancel_requested = ?2, available_at = ?3, \
                            updated_at = ?4 WHERE no = ?1";
                sql.execute(text, params![run, head.cancel, head.available_at, now])?;
            }
            RunChange::Shard => {
                let text = "UPDATE everstep_runs SET shard = ?2, status = ?3, available_at = ?4, \
                            last_number = ?5, updated_at = ?6 WHERE no = ?1";
                let (at, number) = (head.available_at, head.stored_number());
                sql.execute(text, params![run, head.shard, head.status, at, number, now])?;
            }
            RunChange::Touch => {
                let text = "UPDATE everstep_runs SET updated_at = ?2 WHERE no = ?1";
                sql.execute(text, params![run, now])?;
            }
            RunChange::Status { waiting, recoveries } => {
                write_head(self, head, waiting, recoveries)?;
            }
            RunChange::RollBack { error } => {
                write_head(self, head, None, Recoveries::Kept)?;
                let text = "UPDATE everstep_runs SET error = ?2 WHERE no = ?1";
                sql.execute(text, params![run, error])?;
            }
            RunChange::Continue(next) => {
                write_head(self, head, None, Recoveries::Cleared)?;
                write_generation(self, head, next)?;
            }
            RunChange::Finish { was_due, output, error } => {
                finish(self, head, was_due, output, error)?;
            }
            RunChange::Reopen => {
                write_head(self, head, None, Recoveries::Cleared)?;
                let text = "UPDATE everstep_runs SET output = NULL, error = NULL, \
                            finished_at = NULL WHERE no = ?1";
                sql.execute(text, params![run])?;
            }
        }
        self.keep(head);
        Ok(())
    }

    fn labels(&mut self, run: RunNo) -> Result<Option<Labels>, T::Error> {
        let sql = "SELECT workflow, key, finished_at, tags FROM everstep_runs WHERE no = ?1";
        self.sql().row(sql, params![run], |row| {
            Ok(read!(row => Labels { workflow, key, finished_at, tags }))
        })
    }

    fn write_tags(
        &mut self,
        run: RunNo,
        before: &[(String, String)],
        after: &[(String, String)],
    ) -> Result<(), T::Error> {
        for gone in before.iter().filter(|tag| !after.contains(tag)) {
            delete_tag(self, run, gone)?;
        }
        for new in after.iter().filter(|tag| !before.contains(tag)) {
            put_tags(self, run, std::slice::from_ref(new))?;
        }
        let sql = "UPDATE everstep_runs SET tags = ?2 WHERE no = ?1";
        self.sql().execute(sql, params![run, columns::list_json(after)])
    }

    fn write_home_if_new(&mut self, run: RunNo, pool: &str) -> Result<bool, T::Error> {
        let sql =
            "UPDATE everstep_runs SET pool = ?2, updated_at = ?3 WHERE no = ?1 AND pool <> ?2";
        Ok(self.sql().execute_now(sql, params![run, pool, self.instant()])? > 0)
    }

    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: Option<&str>,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), T::Error> {
        let workflow = match workflow {
            Some(workflow) => workflow.to_owned(),
            None => match self.sql().row(WORKFLOW_OF_KEY, params![key, run], |row| row.get(0))? {
                Some(workflow) => workflow,
                None => return Ok(()),
            },
        };
        if let Some(tombstone) = tombstone {
            let sql = "UPDATE everstep_keys SET run = ?4, deleted_id = ?5, deleted_at = ?6, \
                       kept_until = ?7 WHERE workflow = ?1 AND key = ?2 AND run = ?3";
            let params = params![
                workflow,
                key,
                run,
                NO_RUN,
                tombstone.run,
                tombstone.deleted_at,
                tombstone.kept_until,
            ];
            self.sql().execute(sql, params)?;
        } else {
            let sql = "DELETE FROM everstep_keys WHERE workflow = ?1 AND key = ?2 AND run = ?3";
            self.sql().execute(sql, params![workflow, key, run])?;
        }
        // It is read again if it is asked for.
        let name = (workflow, key.to_owned());
        self.ahead().keys.remove(&name);
        Ok(())
    }

    fn delete_run(&mut self, run: RunNo, tags: &[(String, String)]) -> Result<(), T::Error> {
        tags.iter().try_for_each(|tag| delete_tag(self, run, tag))?;
        let sql = "DELETE FROM everstep_runs WHERE no = ?1";
        self.sql().execute(sql, params![run])?;
        let sql = "INSERT INTO everstep_graves (run) VALUES (?1) ON CONFLICT DO NOTHING";
        self.sql().execute(sql, params![run])?;
        self.buried(run);
        Ok(())
    }

    fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), T::Error> {
        self.put_entries(run, generation, deletes, puts)
    }

    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> Result<(), T::Error> {
        for (key, value) in state {
            self.sql().put(&PUT_STATE, params![run, key, value])?;
        }
        Ok(())
    }

    fn call(&mut self, transaction: &Transaction) -> Result<(), T::Error> {
        self.run_body(transaction)
    }

    fn pool_no(&mut self, name: &str) -> Result<PoolNo, T::Error> {
        // Almost every run is in it, and it has the same number in every store.
        if name == DEFAULT_POOL {
            return Ok(PoolNo::DEFAULT);
        }
        if let Some(no) = self.ahead().pools.get(name) {
            return Ok(*no);
        }
        let no = pools::pool_no(self.sql(), name)?;
        self.ahead().pools.insert(name.to_owned(), no);
        Ok(no)
    }

    fn sweep_generations(&mut self, limit: u32) -> Result<bool, T::Error> {
        let sql = format!(
            "SELECT run, generation FROM everstep_old_generations \
             ORDER BY run, generation LIMIT 1{}",
            T::Sql::skip_locked()
        );
        let read = |row: &dyn Row| Ok((row.get::<RunNo>(0)?, row.get::<u32>(1)?));
        let Some((run, generation)) = self.sql().row(sql, &[], read)? else {
            return Ok(false);
        };
        let sql = "DELETE FROM everstep_history WHERE run = ?1 AND generation = ?2 AND key IN \
                   (SELECT key FROM everstep_history WHERE run = ?1 AND generation = ?2 \
                   ORDER BY key LIMIT ?3)";
        let deleted = self.sql().execute_now(sql, params![run, generation, limit])?;
        if deleted < limit as usize {
            let sql = "DELETE FROM everstep_old_generations WHERE run = ?1 AND generation = ?2";
            self.sql().execute(sql, params![run, generation])?;
        }
        Ok(true)
    }

    fn mend(&mut self, mend: &Mend) -> Result<u64, T::Error> {
        mends::apply(self, mend)
    }
}
