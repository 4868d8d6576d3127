//! The rows of runs in memory.

use super::*;
use crate::{
    commit::Cell,
    store::rules::{
        Tombstone,
        mends::MendTables,
        runs::{Leaving, NextGeneration, Recoveries, RunTables},
    },
};

impl Data {
    fn insert(&mut self, run: Run) {
        let (no, at) = (run.head.id.no(), run.head.available_at);
        at.map(|at| self.due.insert((at, no)));
        self.runs.insert(no, Arc::new(run));
        self.rows_written += 1;
    }
}

impl RunTables for Data {
    fn hold_fence(&mut self, fence: Fence) -> Result<bool, Infallible> {
        let is_held = self.fence_holds(fence);
        self.claimer = is_held.then_some(fence.runner);
        Ok(is_held)
    }

    fn put_key(&mut self, workflow: &str, key: &str, run: RunNo) -> Result<(), Infallible> {
        let key = (Arc::from(workflow), key.to_owned());
        self.tombstones.remove(&key);
        self.keys.insert(key, run);
        Ok(())
    }

    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: &str,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), Infallible> {
        let key = (Arc::from(workflow), key.to_owned());
        if self.keys.get(&key) == Some(&run) {
            self.keys.remove(&key);
            tombstone.map(|tombstone| self.tombstones.insert(key, *tombstone));
        }
        Ok(())
    }

    fn workflow_of_key(&mut self, key: &str, run: RunNo) -> Result<Option<String>, Infallible> {
        let mut keys = self.keys.iter();
        let found = keys.find(|((_, other), of)| other == key && **of == run);
        Ok(found.map(|((workflow, _), _)| workflow.to_string()))
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

    fn leaving(&mut self, run: RunNo) -> Result<Option<Leaving>, Infallible> {
        Ok(self.runs.get(&run).map(|run| Leaving {
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

    fn tags(&mut self, run: RunNo) -> Result<Vec<(String, String)>, Infallible> {
        let run = self.runs.get(&run);
        Ok(run.map_or_else(Vec::new, |run| run.row.tags.clone()))
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

    fn touch(&mut self, run: RunNo) -> Result<(), Infallible> {
        let now = self.now;
        self.change(run, |run| run.row.updated_at = now);
        Ok(())
    }

    fn write_head(
        &mut self,
        head: &Head,
        waiting: Option<&str>,
        recoveries: Recoveries,
    ) -> Result<(), Infallible> {
        self.write(head, |run| {
            run.row.waiting = waiting.map(str::to_owned);
            if recoveries == Recoveries::Cleared {
                run.row.recoveries = 0;
            }
        })
    }

    fn write_running(&mut self, head: &Head) -> Result<(), Infallible> {
        self.write_head(head, None, Recoveries::Cleared)
    }

    fn write_number(&mut self, head: &Head) -> Result<(), Infallible> {
        self.write(head, |_| {})
    }

    fn remember(&mut self, head: &Head) {
        self.change(head.id.no(), |run| run.head = *head);
    }

    fn write_cancel(&mut self, head: &Head) -> Result<(), Infallible> {
        self.write(head, |_| {})
    }

    fn write_error(&mut self, run: RunNo, error: Option<&[u8]>) -> Result<(), Infallible> {
        self.change(run, |run| run.row.error = error.map(<[u8]>::to_vec));
        Ok(())
    }

    fn write_generation(
        &mut self,
        head: &Head,
        next: NextGeneration<'_>,
    ) -> Result<(), Infallible> {
        self.write(head, |run| {
            run.history.clear();
            (run.row.workflow, run.row.version) = (Arc::clone(next.workflow), next.version);
            (run.row.pool, run.row.input) = (Arc::clone(next.pool), next.input.clone());
        })
    }

    fn finish_run(
        &mut self,
        head: &Head,
        _: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> Result<(), Infallible> {
        let now = self.now;
        self.write(head, |run| {
            (run.row.waiting, run.row.finished_at) = (None, Some(now));
            run.row.output = output.map(<[u8]>::to_vec);
            run.row.error = error.map(<[u8]>::to_vec);
        })
    }

    fn clear_ending(&mut self, run: RunNo) -> Result<(), Infallible> {
        self.change(run, |run| {
            (run.row.output, run.row.error, run.row.finished_at) = (None, None, None);
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
    fn old_generation(&mut self) -> Result<Option<(RunNo, u32)>, Infallible> {
        Ok(None)
    }

    fn delete_entries(&mut self, _: RunNo, _: u32, _: u32) -> Result<usize, Infallible> {
        Ok(0)
    }

    fn forget_generation(&mut self, _: RunNo, _: u32) -> Result<(), Infallible> {
        Ok(())
    }
}

/// It has no tables that could come to differ.
impl MendTables for Data {
    fn item() -> &'static str {
        ""
    }

    fn mend_by(
        &mut self,
        _: Option<RunNo>,
        _: std::borrow::Cow<'static, str>,
        _: &[Cell],
    ) -> Result<u64, Infallible> {
        Ok(0)
    }

    fn is_so(&mut self, _: String, _: &[Cell]) -> Result<bool, Infallible> {
        Ok(false)
    }
}
