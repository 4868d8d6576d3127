//! The rows of runs in memory.

use super::{
    rows::{Labels, Recoveries, RunChange, RunTables},
    *,
};

impl Data {
    fn insert(&mut self, run: Run) {
        let (no, at) = (run.head.id.no(), run.head.available_at);
        at.map(|at| self.due.insert((at, no)));
        if let Some(key) = &run.row.key {
            let key = (Arc::clone(&run.row.workflow), key.clone());
            self.tombstones.remove(&key);
            self.keys.insert(key, no);
        }
        self.runs.insert(no, Arc::new(run));
        self.rows_written += 1;
    }
}

impl RunTables for Data {
    type Error = Infallible;

    fn now(&self) -> Timestamp {
        self.now
    }

    fn notices(&mut self) -> &mut Vec<Notice> {
        &mut self.notices
    }

    fn head(&mut self, run: RunNo) -> Result<Option<Head>, Infallible> {
        Ok(self.runs.get(&run).map(|run| run.head))
    }

    fn keyed(&mut self, workflow: &str, key: &str) -> Result<Option<Keyed>, Infallible> {
        let key = (Arc::from(workflow), key.to_owned());
        let deleted = || self.tombstones.get(&key).copied().map(Keyed::Deleted);
        let run = self.keys.get(&key).copied().map(Keyed::Run);
        Ok(run.or_else(deleted))
    }

    fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), Infallible> {
        self.rows_written += puts.len() as u64;
        self.change(run, |run| {
            // Only the last generation is kept.
            if run.head.generation == generation {
                run.write_entries(deletes, puts);
            }
        });
        Ok(())
    }

    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Infallible> {
        Ok(self.pools.no(name))
    }

    fn owns(&mut self, shard: ShardId) -> Result<bool, Infallible> {
        let holder = self.shards.get(&shard);
        Ok(holder.is_some() && holder == self.claimer.as_ref())
    }

    fn write_home_if_new(&mut self, run: RunNo, pool: &str) -> Result<bool, Infallible> {
        let now = self.now;
        let changed = self.change(run, |run| {
            let is_new = *run.row.pool != *pool;
            if is_new {
                (run.row.pool, run.row.updated_at) = (Arc::from(pool), now);
            }
            is_new
        });
        Ok(changed == Some(true))
    }

    fn hold_fence(&mut self, fence: Fence) -> Result<bool, Infallible> {
        let is_held = self.fence_holds(fence);
        self.claimer = is_held.then_some(fence.runner);
        Ok(is_held)
    }

    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: Option<&str>,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), Infallible> {
        let mut keys = self.keys.iter();
        let found = keys.find(|((under, other), of)| {
            **of == run && other == key && workflow.is_none_or(|workflow| **under == *workflow)
        });
        if let Some((name, _)) = found {
            let name = name.clone();
            self.keys.remove(&name);
            tombstone.map(|tombstone| self.tombstones.insert(name, *tombstone));
        }
        Ok(())
    }

    fn is_grave(&mut self, run: RunNo) -> Result<bool, Infallible> {
        Ok(self.graves.contains(&run))
    }

    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> Result<bool, Infallible> {
        let is_free = !self.runs.contains_key(&new.id.no());
        if is_free {
            let new = new.clone();
            let row = RunRow {
                id: new.id,
                workflow: new.workflow,
                version: new.version,
                key: new.key,
                pool: new.pool,
                shard: head.shard,
                status: head.status,
                ending: None,
                generation: head.generation,
                available_at: head.available_at,
                deadline_at: new.deadline_at,
                created_at: self.now,
                updated_at: self.now,
                finished_at: None,
                attempts: head.attempts,
                recoveries: 0,
                inbox_seq: 0,
                cancel_requested: None,
                last_number: 0,
                waiting: None,
                tags: new.tags,
                trace: new.trace,
                parent: new.parent,
                input: new.input,
                output: None,
                error: None,
                resume_at: None,
            };
            self.insert(Run::new(*head, row));
        }
        Ok(is_free)
    }

    fn import_run(&mut self, row: &RunRow, head: &Head) -> Result<(), Infallible> {
        let row = RunRow { updated_at: self.now, recoveries: 0, trace: None, ..row.clone() };
        self.insert(Run::new(*head, row));
        Ok(())
    }

    fn started_with(
        &mut self,
        run: RunNo,
        input: &[u8],
    ) -> Result<Option<(RunId, bool)>, Infallible> {
        let is_same = |run: &Run| run.row.input == input || run.head.generation > 1;
        let run = self.runs.get(&run);
        Ok(run.map(|run| (run.head.id, is_same(run))))
    }

    fn labels(&mut self, run: RunNo) -> Result<Option<Labels>, Infallible> {
        Ok(self.runs.get(&run).map(|run| Labels {
            workflow: run.row.workflow.to_string(),
            key: run.row.key.clone(),
            finished_at: run.row.finished_at,
            tags: run.row.tags.clone(),
        }))
    }

    /// Removes at once what other stores sweep.
    fn delete_run(&mut self, run: RunNo, _: &[(String, String)]) -> Result<(), Infallible> {
        let removed = self.runs.remove(&run);
        if let Some(at) = removed.and_then(|run| run.head.available_at) {
            self.due.remove(&(at, run));
        }
        self.requests.retain(|_, request| request.run != run);
        self.forget_deferreds(run);
        self.dead_letters.retain(|_, letter| letter.run != Some(run));
        self.events.forget(run);
        self.graves.insert(run);
        self.rows_written += 1;
        Ok(())
    }

    fn write_tags(
        &mut self,
        run: RunNo,
        _: &[(String, String)],
        after: &[(String, String)],
    ) -> Result<(), Infallible> {
        self.change(run, |run| run.row.tags = after.to_vec());
        Ok(())
    }

    fn write_run(&mut self, head: &Head, change: RunChange<'_>) -> Result<(), Infallible> {
        let now = self.now;
        let owned = |bytes: Option<&[u8]>| bytes.map(<[u8]>::to_vec);
        self.change(head.id.no(), |run| {
            run.head = *head;
            let row = &mut run.row;
            if !matches!(change, RunChange::Nothing | RunChange::Learned | RunChange::Links) {
                row.updated_at = now;
            }
            match change {
                RunChange::Nothing
                | RunChange::Number
                | RunChange::Learned
                | RunChange::Inbox
                | RunChange::Links
                | RunChange::Cancel
                | RunChange::Shard
                | RunChange::Touch => {}
                RunChange::Moving => (row.waiting, row.recoveries) = (None, 0),
                RunChange::Status { waiting, recoveries } => {
                    row.waiting = waiting.map(str::to_owned);
                    if recoveries == Recoveries::Cleared {
                        row.recoveries = 0;
                    }
                }
                RunChange::RollBack { error } => (row.waiting, row.error) = (None, owned(error)),
                RunChange::Continue(next) => {
                    run.history.clear();
                    (row.waiting, row.recoveries) = (None, 0);
                    (row.workflow, row.version) = (Arc::clone(next.workflow), next.version);
                    (row.pool, row.input) = (Arc::clone(next.pool), next.input.clone());
                }
                RunChange::Finish { output, error, .. } => {
                    (row.waiting, row.finished_at) = (None, Some(now));
                    (row.output, row.error) = (owned(output), owned(error));
                }
                RunChange::Reopen => {
                    (row.waiting, row.recoveries) = (None, 0);
                    (row.output, row.error, row.finished_at) = (None, None, None);
                }
            }
        });
        Ok(())
    }

    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> Result<(), Infallible> {
        self.rows_written += state.len() as u64;
        self.change(run, |run| run.state.extend(state.iter().cloned()));
        Ok(())
    }

    fn call(&mut self, transaction: &Transaction) -> Result<(), Infallible> {
        transaction.refuse("the memory store has none; use a SQLite file or PostgreSQL");
        Ok(())
    }

    /// Only the last generation is kept.
    fn sweep_generations(&mut self, _: u32) -> Result<bool, Infallible> {
        Ok(false)
    }
}
