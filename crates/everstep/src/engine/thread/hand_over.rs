//! Runs that cannot go on here: they are handed over to runners that can, or say what they wait
//! for.
//!
//! Always true: a run is handed over only while it is not in memory here; its last commit from here
//! was queued before, and a lane keeps its order.

use std::sync::Arc;

use super::{Pending, Reply, Settled, Worker};
use crate::{
    commit::{Commit, HandOver, Patch, RunStatus, Target, Write},
    engine::peers::{self, Place},
    pool::Overflow,
    run_id::RunNo,
    store::{DueRun, RunRow},
};

impl Worker {
    /// Whether a run that is to be taken into memory belongs here; if not, it is sent on its way,
    /// or says what it waits for.
    pub(super) fn belongs_here(&mut self, run: &DueRun) -> bool {
        let code = self.shared.registry.find(&run.workflow, run.version);
        let inside = self.shared.owned.pool_name(run.shard.pool());
        let inside = inside.unwrap_or_else(|| Arc::clone(&run.pool));
        // Who is alive matters only to a run that has no code here.
        let alive = self.shared.peers.alive();
        match peers::place_of(run, &inside, code.is_some(), &alive) {
            Place::Here => return true,
            Place::In(pool) => self.hand_over(run, pool),
            Place::Nowhere => self.note_missing(run, &inside),
        }
        false
    }

    fn hand_over(&mut self, run: &DueRun, pool: Arc<str>) {
        tracing::info!(
            run = %run.id,
            workflow = &*run.workflow,
            version = run.version,
            pool = &*pool,
            "a run is handed over to runners that can run it"
        );
        let no = run.id.no();
        // Until it is known to be handed over, nobody else would look for it.
        self.unserved.insert(no, (run.clone(), String::new()));
        let write = Write::HandOver(Box::new(HandOver { run: no, pool }));
        let thread = self.index;
        let reply = Reply::Owner { thread, run: no };
        let epoch = self.shared.epoch();
        self.out.push(Pending::under(epoch, write, reply));
    }

    /// What became of the write about a run that is not in memory here.
    pub(super) fn settled(&mut self, run: RunNo, how: Settled) {
        match how {
            // If it was refused, another has it, or it has ended.
            Settled::Answered => {
                let unserved = self.unserved.get(&run);
                if unserved.is_some_and(|(_, waiting)| waiting.is_empty()) {
                    self.unserved.remove(&run);
                }
            }
            // The store may not count it as due: it is read, and what is missing is done again.
            Settled::Unknown => {
                self.held.push_back(run);
                self.admit_held();
            }
            // The reason was told. It is tried again when other runners come, and by the next owner:
            // at once it would fail again.
            Settled::Rejected => {}
        }
    }

    /// Nobody could run it: it stays as it is, and its row says why.
    fn note_missing(&mut self, run: &DueRun, inside: &str) {
        let mut waiting = peers::missing(run, &self.shared.peers.alive());
        if Overflow::parse(inside).is_some() {
            waiting.push_str(&format!(" (it is in the overflow pool `{inside}`)"));
        }
        let before = self
            .unserved
            .insert(run.id.no(), (run.clone(), waiting.clone()));
        if before.is_some_and(|(_, before)| before == waiting) {
            return;
        }
        tracing::warn!(run = %run.id, waiting, "no code for a due run is registered");
        let at = run.available_at.unwrap_or_else(|| self.env.now.get());
        let epoch = self.shared.epoch();
        if let Ok(Some(row)) = self.shared.store.run(&Target::Id(run.id))
            && self.may_be_noted(&row)
        {
            let patch = Patch::Park {
                status: row.status,
                available_at: Some(at),
                waiting,
                attempts: row.attempts,
            };
            let mut commit = Commit::of_row(&row, patch);
            commit.inbox_seq = Some(row.inbox_seq);
            let write = Write::Commit(Box::new(commit));
            self.out.push(Pending::under(epoch, write, Reply::Nobody));
        }
    }

    /// Whether what a run waits for can be written into its row. Of a run that was in its owner's
    /// memory the row does not know the last number, and a rollback is not to be begun anew. To be
    /// parked as pending takes back all waits: that is how a run is tried anew as a whole. So only one
    /// that has not begun is; one that was handed over out of a memory is pending, too, and has waits.
    fn may_be_noted(&self, row: &RunRow) -> bool {
        match row.status {
            RunStatus::Sleeping => true,
            RunStatus::Pending => {
                let begun = self.shared.store.history(row.id.no(), None, 1);
                begun.is_ok_and(|entries| entries.is_empty())
            }
            _ => false,
        }
    }

    /// Other runners are alive than before: some may have the code that runs wait for.
    pub(super) fn peers_changed(&mut self) {
        let waiting: Vec<DueRun> = self.unserved.values().map(|(run, _)| run.clone()).collect();
        for run in waiting {
            let no = run.id.no();
            if !self.shared.owns(run.shard) || self.by_no.contains_key(&no) {
                self.unserved.remove(&no);
            } else if !self.loading.contains_key(&no) {
                self.belongs_here(&run);
            }
        }
    }
}

/// A run as the due poll would show it.
pub(super) fn due_run(row: &RunRow) -> DueRun {
    DueRun {
        id: row.id,
        shard: row.shard,
        available_at: row.available_at,
        status: row.status,
        workflow: row.workflow.clone(),
        version: row.version,
        pool: row.pool.clone(),
    }
}
