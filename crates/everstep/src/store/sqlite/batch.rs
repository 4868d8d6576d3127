//! A batch in SQL: [`rules`] decides, this writes.
//!
//! On the path of a step this is the end: a commit that only adds entries becomes one `INSERT` for
//! each of them and touches no other table.

use std::{cell::Cell, time::Duration};

use rusqlite::{CachedStatement, Connection, OptionalExtension, Row, params};
use uuid::Uuid;

use super::{
    columns,
    control::{Keyed, keyed},
    error::bad_value,
    transact,
    writer::Memory,
};
use crate::{
    hash::FastSet,
    store::rules::{
        deferreds, effects, events, letters,
        pools::Pools,
        tables::{Tables, Waiter},
    },
};
use crate::{
    pool::DEFAULT_POOL,
    run_id::{RunId, RunNo, ShardId},
    store::{
        rules::{self, Head, Verdict},
        *,
    },
    time::Timestamp,
};

mod import;

/// Applies a batch within the transaction of `conn`, in the two passes that [`rules`] describes.
/// Also says how many rows were written.
pub(crate) fn apply(
    conn: &Connection,
    memory: &mut Memory,
    batch: &Batch,
) -> rusqlite::Result<(Applied, u64)> {
    let mut applier = Applier::new(conn, memory, batch)?;
    let mut outcomes = Vec::with_capacity(batch.writes.len());
    for write in &batch.writes {
        outcomes.push(match write {
            Write::Commit(commit) => applier.commit(commit)?,
            Write::Emit(emission) => applier.emission(emission)?,
            // Its turn comes after all commits.
            _ => Outcome::Refused(Refusal::Gone),
        });
    }
    for (write, outcome) in batch.writes.iter().zip(&mut outcomes) {
        *outcome = match write {
            Write::Start(new) => applier.start(new)?,
            Write::Deliver(delivery) => Outcome::Delivered(applier.deliver(delivery)?),
            Write::Control(target, control) => {
                Outcome::Controlled(applier.control(target, *control)?)
            }
            Write::Reopen(reopen) => applier.reopen(reopen)?,
            Write::Queue(write) => Outcome::Queue(rules::queues::write(&mut applier, write)?),
            Write::Publish(publication) => {
                Outcome::Published(events::publish(&mut applier, publication)?)
            }
            Write::TendEvents { limit } => Outcome::Tended(events::tend(&mut applier, *limit)?),
            Write::Letter(write) => Outcome::Letter(letters::apply(&mut applier, write)?),
            Write::Resolve(resolution) => {
                Outcome::Settled(deferreds::settle(&mut applier, resolution)?)
            }
            Write::Sweep(limit) => Outcome::Swept(applier.sweep(*limit)?),
            Write::Emit(_) => continue,
            Write::Schedule(write) => applier.write_about_schedule(write)?,
            Write::Import(run) => applier.import(run)?,
            Write::Delete(delete) => Outcome::Deleted(applier.delete(delete)?),
            Write::Tag(tagging) => applier.tag(tagging)?,
            Write::Fork(fork) => applier.fork(fork)?,
            Write::HandOver(what) => rules::pools::hand_over(&mut applier, what)?,
            Write::Rehome(what) => rules::pools::rehome(&mut applier, what)?,
            Write::Mend(mend) => Outcome::Mended(applier.mend(mend)?),
            Write::Commit(commit) => match outcome {
                Outcome::Committed(_) if applier.has_effects(commit) => {
                    Outcome::Committed(applier.effects(commit)?)
                }
                _ => continue,
            },
        };
    }
    let notices = std::mem::take(&mut applier.notices);
    Ok((Applied { outcomes, notices }, applier.rows.get()))
}

pub(super) struct Applier<'a> {
    pub(super) conn: &'a Connection,
    pub(super) memory: &'a mut Memory,
    pub(super) now: i64,
    notices: Vec<Notice>,
    /// Runs with links whose code is over by a commit of this batch.
    closing: FastSet<RunNo>,
    /// The runner, if its fence holds.
    runner: Option<Uuid>,
    rows: Cell<u64>,
    /// How long the bodies of users' transactions have taken.
    spent: Duration,
    // The statements of the path that every run takes, so that they are not looked up each time.
    insert_run: CachedStatement<'a>,
    put: CachedStatement<'a>,
    finish: CachedStatement<'a>,
}

impl<'a> Applier<'a> {
    fn new(
        conn: &'a Connection,
        memory: &'a mut Memory,
        batch: &Batch,
    ) -> rusqlite::Result<Applier<'a>> {
        let runner = match batch.fence {
            Some(fence) if fence_holds(conn, fence)? => Some(fence.runner),
            _ => None,
        };
        Ok(Applier {
            conn,
            memory,
            now: batch.now.as_millis(),
            notices: Vec::new(),
            closing: FastSet::default(),
            runner,
            rows: Cell::new(0),
            spent: Duration::ZERO,
            insert_run: conn.prepare_cached(
                "INSERT INTO runs (no, id, workflow, version, key, pool, shard, status, generation, \
                 available_at, deadline_at, created_at, updated_at, attempts, recoveries, \
                 inbox_seq, last_number, tags, input, parent, trace) \
                 VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, 1, ?9, ?10, ?11, ?11, 1, 0, 0, 0, ?12, \
                 ?13, ?14, ?15) ON CONFLICT DO NOTHING",
            )?,
            put: conn.prepare_cached(
                "INSERT INTO history (run, generation, key, value) VALUES (?1, ?2, ?3, ?4) \
                 ON CONFLICT DO UPDATE SET value = excluded.value",
            )?,
            finish: conn.prepare_cached(
                "UPDATE runs SET status = ?2, ending = NULL, \
                 updated_at = ?3, finished_at = ?3, last_number = ?4, waiting = NULL, \
                 output = ?5, error = ?6 WHERE no = ?1",
            )?,
        })
    }

    pub(super) fn fence_holds(&self) -> bool {
        self.runner.is_some()
    }

    pub(super) fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn count_rows(&self, rows: usize) {
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

    /// The row as it is in this transaction.
    pub(super) fn head(&self, run: RunNo) -> rusqlite::Result<Option<Head>> {
        if let Some(head) = self.memory.head(run) {
            return Ok(Some(head));
        }
        let sql = "SELECT id, status, ending, generation, available_at, attempts, inbox_seq, \
                   cancel_requested, last_number, links, resume_at, shard FROM runs WHERE no = ?1";
        self.conn
            .prepare_cached(sql)?
            .query_row([run.0], read_head)
            .optional()
    }

    pub(super) fn find(&self, target: &Target) -> rusqlite::Result<Option<Head>> {
        match target {
            // The number says less than the id: it may be another run's.
            Target::Id(id) => Ok(self.head(id.no())?.filter(|head| head.id == *id)),
            Target::Key { workflow, key } => match find_key(self.conn, workflow, key)? {
                Some(run) => self.head(run),
                None => Ok(None),
            },
        }
    }

    fn commit(&mut self, commit: &Commit) -> rusqlite::Result<Outcome> {
        if self.runner.is_none() {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        let head = self.head(commit.run)?;
        // A runner that lost its shards and registered again has a fence that holds, and may still
        // have commits from before.
        if let Some(head) = &head
            && !self.owns_shard(head.shard)?
        {
            return Ok(Outcome::Refused(Refusal::Fenced));
        }
        let head = match (rules::check(head.as_ref(), commit), head) {
            (Verdict::Accept, Some(head)) => head,
            (Verdict::InboxMoved { seen }, _) => {
                let unseen = columns::inbox_after(self.conn, commit.run, seen)?;
                return Ok(Outcome::Refused(Refusal::InboxMoved(unseen)));
            }
            (Verdict::Refuse(refusal), _) => return Ok(Outcome::Refused(refusal)),
            (Verdict::Accept, None) => return Ok(Outcome::Refused(Refusal::Gone)),
        };
        if head.links != 0 && effects::has_sequel(commit) {
            self.closing.insert(commit.run);
        }
        self.write_entries(commit.run, head.generation, &commit.deletes, &commit.puts)?;
        self.write_extras(commit)?;
        self.write_patch(head, commit)?;
        Ok(Outcome::Committed(Vec::new()))
    }

    pub(super) fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> rusqlite::Result<()> {
        for KeyRange { start, end } in deletes {
            let sql = "DELETE FROM history \
                       WHERE run = ?1 AND generation = ?2 AND key >= ?3 AND key < ?4";
            self.execute(sql, params![run.0, generation, start, end])?;
        }
        for Put { key, value } in puts {
            self.put.execute(params![run.0, generation, key, value])?;
        }
        self.count_rows(puts.len());
        Ok(())
    }

    /// What most commits have none of.
    fn write_extras(&self, commit: &Commit) -> rusqlite::Result<()> {
        for seq in &commit.consumed {
            let sql = "DELETE FROM inbox WHERE run = ?1 AND seq = ?2";
            self.execute(sql, params![commit.run.0, *seq as i64])?;
        }
        self.write_state(commit.run, &commit.state)?;
        for (name, value) in rules::tags(commit) {
            self.set_tag(commit.run, name, value)?;
        }
        for effect in &commit.effects {
            match effect {
                Effect::Reply { request, body } => {
                    // Only an open request can be answered, so the first answer wins.
                    let sql =
                        "UPDATE requests SET state = 1, body = ?2 WHERE id = ?1 AND state = 0";
                    self.execute(sql, params![request.as_bytes(), body])?;
                }
                Effect::Emit(emit) => self.emit(commit.run, commit.generation, emit)?,
                // Their turn comes after all commits.
                _ => {}
            }
        }
        Ok(())
    }

    pub(super) fn write_state(
        &self,
        run: RunNo,
        state: &[(String, Vec<u8>)],
    ) -> rusqlite::Result<()> {
        for (key, value) in state {
            let sql = "INSERT INTO state (run, key, value) VALUES (?1, ?2, ?3) \
                       ON CONFLICT DO UPDATE SET value = excluded.value";
            self.execute(sql, params![run.0, key, value])?;
        }
        Ok(())
    }

    fn write_patch(&mut self, before: Head, commit: &Commit) -> rusqlite::Result<()> {
        let mut head = before;
        rules::apply(&mut head, commit);
        if rules::writes_row(&before, commit) {
            match &commit.patch {
                Patch::Finish { output, error, .. } => {
                    if before.available_at.is_some() {
                        // Apart, so that a run that was never due stays clear of that index.
                        let sql = "UPDATE runs SET available_at = NULL WHERE no = ?1";
                        self.execute(sql, [commit.run.0])?;
                    }
                    self.finish(&head, commit, output, error)?;
                }
                Patch::RollBack { error, .. } => {
                    self.write_head(&head, None)?;
                    let sql = "UPDATE runs SET error = ?2 WHERE no = ?1";
                    self.execute(sql, params![commit.run.0, error])?;
                }
                Patch::Run { .. } => self.write_running(&head)?,
                Patch::Park { waiting, .. } => {
                    self.write_head(&head, Some(waiting))?;
                    // Seldom anything else, so this seldom writes.
                    let sql = "UPDATE runs SET recoveries = 0 WHERE no = ?1 AND recoveries <> 0";
                    self.execute(sql, [commit.run.0])?;
                }
                Patch::Pause { reason } => self.write_head(&head, Some(reason))?,
                Patch::Continue {
                    workflow,
                    version,
                    pool,
                    input,
                } => {
                    self.write_head(&head, None)?;
                    let sql = "UPDATE runs SET generation = ?2, workflow = ?3, version = ?4, \
                               pool = ?5, input = ?6, recoveries = 0 WHERE no = ?1";
                    let run = commit.run.0;
                    let (workflow, pool) = (&**workflow, &**pool);
                    let params = params![run, head.generation, workflow, version, pool, input];
                    self.execute(sql, params)?;
                    let sql = "INSERT OR IGNORE INTO old_generations (run, generation) \
                               VALUES (?1, ?2)";
                    self.execute(sql, params![run, before.generation])?;
                }
                Patch::Keep => self.write_last_number(&head)?,
            }
        }
        self.memory.remember(commit.run, head);
        Ok(())
    }

    fn finish(
        &mut self,
        head: &Head,
        commit: &Commit,
        output: &Option<Vec<u8>>,
        error: &Option<Vec<u8>>,
    ) -> rusqlite::Result<()> {
        let run = commit.run.0;
        let (status, last_number) = (head.status.code(), last_number(head));
        self.finish
            .execute(params![run, status, self.now, last_number, output, error])?;
        self.count_rows(1);
        if head.inbox_seq == 0 {
            // It was never sent anything, so there is nothing unread and nobody waits.
            return Ok(());
        }
        self.bury_inbox(head.id)?;
        self.execute(
            "UPDATE requests SET state = 2 WHERE run = ?1 AND state = 0",
            [run],
        )?;
        Ok(())
    }

    /// Writes everything of the row that decisions are made from, and why it waits.
    pub(super) fn write_head(&self, head: &Head, waiting: Option<&str>) -> rusqlite::Result<()> {
        let sql = "UPDATE runs SET status = ?2, ending = ?3, available_at = ?4, attempts = ?5, \
                   inbox_seq = ?6, cancel_requested = ?7, last_number = ?8, updated_at = ?9, \
                   waiting = ?10, resume_at = ?11 WHERE no = ?1";
        let params = params![
            head.id.no().0,
            head.status.code(),
            head.ending.map(RunStatus::code),
            head.available_at.map(Timestamp::as_millis),
            head.attempts,
            head.inbox_seq as i64,
            head.cancel.map(|cancel| cancel.rollback),
            last_number(head),
            self.now,
            waiting,
            head.resume_at.map(Timestamp::as_millis),
        ];
        self.execute(sql, params).map(drop)
    }

    /// The row of a run that moves: written at every wake-up, so by one small statement.
    fn write_running(&self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE runs SET status = ?2, available_at = ?3, last_number = ?4, \
                   updated_at = ?5, recoveries = 0, waiting = NULL WHERE no = ?1";
        let available_at = head.available_at.map(Timestamp::as_millis);
        let (run, status) = (head.id.no().0, head.status.code());
        let params = params![run, status, available_at, last_number(head), self.now];
        self.execute(sql, params).map(drop)
    }

    fn write_last_number(&self, head: &Head) -> rusqlite::Result<()> {
        let sql = "UPDATE runs SET last_number = ?2, updated_at = ?3 WHERE no = ?1";
        self.execute(sql, params![head.id.no().0, last_number(head), self.now])
            .map(drop)
    }

    pub(super) fn start(&mut self, new: &NewRun) -> rusqlite::Result<Outcome> {
        let keyed = match &new.key {
            Some(key) => keyed(self.conn, &new.workflow, key)?,
            None => None,
        };
        match keyed {
            Some(Keyed::Run(run)) => return self.attach(run, new, true),
            Some(Keyed::Deleted(tombstone)) if !tombstone.is_over(self.now()) => {
                return Ok(Outcome::Refused(tombstone.refusal()));
            }
            _ => {}
        }
        if self.is_grave(new.id.no())? {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        if &*new.pool != DEFAULT_POOL && self.head(new.id.no())?.is_some() {
            // Before its pool is made: a start that attaches makes nothing.
            return self.attach(new.id.no(), new, false);
        }
        let pool = self.pool_no(&new.pool)?;
        let shard = new.id.shard_in(pool);
        let claimed = new.claim && new.available_at.is_none() && self.owns_shard(shard)?;
        let available_at = (!claimed).then(|| new.available_at.unwrap_or(self.now()));
        let (run, head) = (new.id.no(), Head::new(new.id, pool, available_at));
        let tags = (!new.tags.is_empty()).then(|| columns::to_json(&new.tags));
        let is_new = self.insert_run.execute(params![
            run.0,
            new.id.as_uuid().as_bytes(),
            &*new.workflow,
            new.version,
            new.key,
            &*new.pool,
            head.shard.0,
            head.status.code(),
            available_at.map(Timestamp::as_millis),
            new.deadline_at.map(Timestamp::as_millis),
            self.now,
            tags,
            new.input,
            new.parent.map(|parent| *parent.as_uuid().as_bytes()),
            new.trace,
        ])?;
        if is_new == 0 {
            return self.attach(run, new, false);
        }
        self.count_rows(1);
        self.write_names(run, new)?;
        self.memory.remember(run, head);
        let id = new.id;
        let (attached, input_differs) = (false, false);
        Ok(Outcome::Started(Started {
            id,
            attached,
            input_differs,
            claimed,
            available_at,
        }))
    }

    /// What a new run can be found by.
    fn write_names(&self, run: RunNo, new: &NewRun) -> rusqlite::Result<()> {
        if let Some(key) = &new.key {
            // In the place of a key that is kept no longer.
            let sql = "INSERT OR REPLACE INTO keys (workflow, key, run) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![&*new.workflow, key, run.0])?;
        }
        for (name, value) in &new.tags {
            let sql = "INSERT OR IGNORE INTO tags (name, value, run) VALUES (?1, ?2, ?3)";
            self.execute(sql, params![name, value, run.0])?;
        }
        Ok(())
    }

    fn attach(&self, run: RunNo, new: &NewRun, by_key: bool) -> rusqlite::Result<Outcome> {
        // What a run was first started with is gone once it has continued as a new one.
        let sql = "SELECT id, input = ?2 OR generation > 1 FROM runs WHERE no = ?1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let (id, is_same_input) = statement.query_row(params![run.0, new.input], |row| {
            Ok((columns::run_id(row, 0)?, row.get::<_, bool>(1)?))
        })?;
        // Another id can have the same number. It cannot be stored beside the first, and the
        // client makes a new id.
        if !by_key && id != new.id {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        let (attached, claimed, available_at) = (true, false, None);
        let input_differs = !is_same_input;
        Ok(Outcome::Started(Started {
            id,
            attached,
            input_differs,
            claimed,
            available_at,
        }))
    }

    pub(super) fn owns_shard(&mut self, shard: ShardId) -> rusqlite::Result<bool> {
        let Some(runner) = self.runner else {
            return Ok(false);
        };
        if let Some((holder, held)) = &self.memory.shards
            && *holder == runner
        {
            return Ok(held.contains(shard));
        }
        let held = columns::shards_of(self.conn, runner)?;
        let owns = held.contains(shard);
        self.memory.shards = Some((runner, held));
        Ok(owns)
    }

    pub(super) fn deliver(&mut self, delivery: &Delivery) -> rusqlite::Result<Delivered> {
        let Some(mut head) = self.find(&delivery.target)? else {
            return Ok(Delivered {
                receipt: Receipt::Unknown,
                run: None,
                seq: None,
            });
        };
        let (run, id) = (head.id.no(), Some(head.id));
        if let Some(receipt) = self.refuse_message(&head, delivery)? {
            let receipt = match receipt {
                Receipt::Finished => letters::after_the_end(self, &head, delivery)?,
                receipt => receipt,
            };
            return Ok(Delivered {
                receipt,
                run: id,
                seq: None,
            });
        }
        let seq = rules::deliver(&mut head, self.now());
        let row = rules::message(delivery, seq, self.now());
        self.put_inbox(&head, &row)?;
        if row.on_end.is_some() {
            rules::tables::link(self, run, rules::tables::links::EVENTS)?;
        }
        let request = delivery.request.as_ref().map(Uuid::as_bytes);
        if let Some(key) = &delivery.dedupe {
            let sql = "INSERT INTO dedupes (run, key) VALUES (?1, ?2)";
            self.execute(sql, params![run.0, key])?;
        }
        if request.is_some() {
            let sql = "INSERT OR REPLACE INTO requests (id, run, state) VALUES (?1, ?2, 0)";
            self.execute(sql, params![request, run.0])?;
        }
        Ok(Delivered {
            receipt: Receipt::Delivered,
            run: id,
            seq: Some(seq),
        })
    }

    fn refuse_message(
        &self,
        head: &Head,
        delivery: &Delivery,
    ) -> rusqlite::Result<Option<Receipt>> {
        let run = head.id.no().0;
        if let Some(key) = &delivery.dedupe {
            let sql = "SELECT 1 FROM dedupes WHERE run = ?1 AND key = ?2";
            if self.conn.prepare_cached(sql)?.exists(params![run, key])? {
                return Ok(Some(Receipt::Duplicate));
            }
        }
        // There cannot be more unread messages than there were messages.
        let unread = if head.inbox_seq < delivery.inbox_max {
            0
        } else {
            let sql = "SELECT count(*) FROM (SELECT 1 FROM inbox WHERE run = ?1 LIMIT ?2)";
            let limit = columns::limit(delivery.inbox_max);
            let mut statement = self.conn.prepare_cached(sql)?;
            statement.query_row(params![run, limit], |row| row.get::<_, i64>(0))? as u64
        };
        Ok(rules::refuse_message(head, unread, delivery))
    }

    pub(super) fn control(
        &mut self,
        target: &Target,
        control: Control,
    ) -> rusqlite::Result<Controlled> {
        let Some(mut head) = self.find(target)? else {
            return Ok(Controlled::Unknown);
        };
        let controlled = rules::control(&mut head, control, self.now());
        if let Controlled::Done { .. } = controlled {
            match control {
                Control::Pause => self.write_head(&head, Some(rules::PAUSED_BY_REQUEST))?,
                Control::Resume => {
                    self.write_head(&head, None)?;
                    let sql = "UPDATE runs SET recoveries = 0 WHERE no = ?1 AND recoveries <> 0";
                    self.execute(sql, [head.id.no().0])?;
                }
                Control::Cancel { rollback } => {
                    let sql = "UPDATE runs SET cancel_requested = ?2, available_at = ?3, \
                               updated_at = ?4 WHERE no = ?1";
                    let available_at = head.available_at.map(Timestamp::as_millis);
                    self.execute(
                        sql,
                        params![head.id.no().0, rollback, available_at, self.now],
                    )?;
                }
            }
            self.memory.remember(head.id.no(), head);
        }
        Ok(controlled)
    }

    fn reopen(&mut self, reopen: &Reopen) -> rusqlite::Result<Outcome> {
        let Some(mut head) = self.head(reopen.run)? else {
            return Ok(Outcome::Refused(Refusal::Gone));
        };
        if !rules::reopen(&mut head, reopen) {
            return Ok(Outcome::Refused(Refusal::Gone));
        }
        self.write_entries(reopen.run, head.generation, &reopen.deletes, &reopen.puts)?;
        self.write_head(&head, None)?;
        let sql = "UPDATE runs SET output = NULL, error = NULL, finished_at = NULL, \
                   recoveries = 0 WHERE no = ?1";
        self.execute(sql, [reopen.run.0])?;
        Ok(Outcome::Committed(Vec::new()))
    }

    /// Makes the workflow's own writes, and writes down in its history that they are made.
    fn transact(&mut self, commit: &Commit) -> rusqlite::Result<()> {
        for transaction in rules::transactions(commit) {
            transact::run(self.conn, transaction, &mut self.spent)?;
            if let Some(Put { key, value }) = transaction.written() {
                self.put
                    .execute(params![commit.run.0, commit.generation, key, value])?;
                self.count_rows(1);
            }
        }
        Ok(())
    }

    fn has_effects(&self, commit: &Commit) -> bool {
        !commit.effects.is_empty()
            || commit.results_only
            || (!self.closing.is_empty() && self.closing.contains(&commit.run))
    }

    /// What a commit does to others, in order; last what is left to do if its code is over.
    fn effects(&mut self, commit: &Commit) -> rusqlite::Result<Vec<EffectDone>> {
        self.transact(commit)?;
        let mut done = Vec::new();
        for effect in &commit.effects {
            done.extend(effects::apply(self, commit, effect)?);
        }
        if effects::has_sequel(commit)
            && let Some(head) = self.head(commit.run)?
        {
            done.extend(effects::follow_up(self, &head, commit)?);
        }
        Ok(done)
    }

    /// Removes entries of generations that are over; whether there are more.
    fn sweep(&self, limit: u32) -> rusqlite::Result<bool> {
        let sql = "SELECT run, generation FROM old_generations LIMIT 1";
        let mut statement = self.conn.prepare_cached(sql)?;
        let next = statement.query_row([], |row| Ok((row.get(0)?, row.get(1)?)));
        let Some((run, generation)) = next.optional()? else {
            return Ok(false);
        };
        let (run, generation): (i64, u32) = (run, generation);
        let sql = "DELETE FROM history WHERE run = ?1 AND generation = ?2 AND key IN (SELECT key \
                   FROM history WHERE run = ?1 AND generation = ?2 ORDER BY key LIMIT ?3)";
        let removed = self.execute(sql, params![run, generation, limit])?;
        if removed < limit as usize {
            let sql = "DELETE FROM old_generations WHERE run = ?1 AND generation = ?2";
            self.execute(sql, params![run, generation])?;
        }
        Ok(true)
    }
}

impl Tables for Applier<'_> {
    type Error = rusqlite::Error;

    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now)
    }

    fn head(&mut self, run: RunNo) -> rusqlite::Result<Option<Head>> {
        Applier::head(self, run)
    }

    fn find(&mut self, target: &Target) -> rusqlite::Result<Option<Head>> {
        Applier::find(self, target)
    }

    fn put_inbox(&mut self, head: &Head, row: &InboxRow) -> rusqlite::Result<()> {
        let run = head.id.no();
        let request = row.request.as_ref().map(Uuid::as_bytes);
        let sql = "INSERT INTO inbox (run, seq, name, body, request, sent_at, kind, wait, on_end) \
                   VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)";
        let on_end = row.on_end.as_deref().map(columns::fallback_json);
        let sent_at = row.sent_at.as_millis();
        let InboxRow {
            name, body, wait, ..
        } = row;
        let (seq, kind) = (row.seq as i64, row.kind.code());
        self.execute(
            sql,
            params![run.0, seq, name, body, request, sent_at, kind, wait, on_end],
        )?;
        let sql =
            "UPDATE runs SET inbox_seq = ?2, available_at = ?3, updated_at = ?4 WHERE no = ?1";
        let available_at = head.available_at.map(Timestamp::as_millis);
        self.execute(sql, params![run.0, seq, available_at, self.now])?;
        self.memory.remember(run, *head);
        Ok(())
    }

    fn send(&mut self, delivery: &Delivery) -> rusqlite::Result<Delivered> {
        letters::send(self, delivery)
    }

    fn put_entry(&mut self, of: &Waiter, value: Vec<u8>) -> rusqlite::Result<()> {
        self.put
            .execute(params![of.run.0, of.generation, of.key, value])?;
        self.count_rows(1);
        Ok(())
    }

    fn take_all_answers(&mut self, run: RunNo) -> rusqlite::Result<Vec<InboxRow>> {
        let sql = format!(
            "DELETE FROM inbox WHERE run = ?1 AND kind <> 0 RETURNING {}",
            columns::INBOX_ROW
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map([run.0], columns::inbox_row)?;
        rows.collect()
    }

    fn take_answers(&mut self, run: RunNo, wait: &[u8]) -> rusqlite::Result<Vec<InboxRow>> {
        let sql = format!(
            "DELETE FROM inbox WHERE run = ?1 AND wait = ?2 RETURNING {}",
            columns::INBOX_ROW
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map(params![run.0, wait], columns::inbox_row)?;
        rows.collect()
    }

    fn write_links(&mut self, head: &Head) -> rusqlite::Result<()> {
        let run = head.id.no();
        self.execute(
            "UPDATE runs SET links = ?2 WHERE no = ?1",
            params![run.0, head.links],
        )?;
        self.memory.remember(run, *head);
        Ok(())
    }

    fn control(&mut self, target: &Target, control: Control) -> rusqlite::Result<Controlled> {
        Applier::control(self, target, control)
    }

    fn notice(&mut self, notice: Notice) {
        self.notices.push(notice);
    }
}

/// Whether the runner's row has this epoch.
pub(crate) fn fence_holds(conn: &Connection, fence: Fence) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM runners WHERE id = ?1 AND epoch = ?2";
    conn.prepare_cached(sql)?
        .exists(params![fence.runner.as_bytes(), fence.epoch as i64])
}

pub(crate) fn find_key(
    conn: &Connection,
    workflow: &str,
    key: &str,
) -> rusqlite::Result<Option<RunNo>> {
    let sql = "SELECT run FROM keys WHERE workflow = ?1 AND key = ?2 AND kept_until IS NULL";
    let mut statement = conn.prepare_cached(sql)?;
    statement
        .query_row([workflow, key], |row| row.get(0).map(RunNo))
        .optional()
}

/// The number as it is stored: null where a row that is not `Running` would have to have an exact
/// one and only its owner knows it.
pub(super) fn last_number(head: &Head) -> Option<i64> {
    let is_known = head.last_number_exact || head.status == RunStatus::Running;
    is_known.then_some(head.last_number as i64)
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
