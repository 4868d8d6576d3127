//! Runs that cannot go on here: they are handed over to runners that can, or say what they wait
//! for.
//!
//! Always true: a run is handed over only while it is not in memory here; its last commit from here
//! was queued before, and a lane keeps its order.

use std::sync::Arc;

use super::{Event, Pending, Reply, Settled, Worker};
use crate::{
    commit::{Commit, HandOver, Patch, RunStatus, Target, Write},
    engine::peers::{self, Place},
    error::{Failure, FailureKind, encode_failure},
    pool::Overflow,
    run::{commit_unloaded, highest_number},
    run_id::{RunNo, ShardId},
    store::{DueRun, LoadedRun, RunRow, StoreError},
    time::Timestamp,
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
        let epoch = self.shared.epoch();
        let unserved = Unserved {
            run: run.clone(),
            waiting: String::new(),
            notes: self.unserved.get(&no).map_or(0, |it| it.notes),
            deadline_at: None,
            epoch,
        };
        self.unserved.insert(no, unserved);
        let write = Write::HandOver(Box::new(HandOver { run: no, pool }));
        let thread = self.index;
        let reply = Reply::Owner { thread, run: no };
        self.out.push(Pending::under(epoch, write, reply));
    }

    /// What became of the write about a run that is not in memory here.
    pub(super) fn settled(&mut self, run: RunNo, how: Settled) {
        let known = self.unserved.get_mut(&run);
        // Answers come in the order of the writes, and notes are before a hand-over.
        let is_note = known.is_some_and(|known| {
            let is_note = known.notes > 0;
            known.notes = known.notes.saturating_sub(1);
            is_note
        });
        match how {
            Settled::Answered if is_note => {}
            // If it was refused, another has it, or it has ended.
            Settled::Answered => {
                let unserved = self.unserved.get(&run);
                if unserved.is_some_and(|it| it.waiting.is_empty()) {
                    self.unserved.remove(&run);
                }
            }
            Settled::Overtaken => self.look_again(run),
            Settled::Unknown => {
                self.look_again(run);
                // It may have been a resume that was not made: then its row still says that it is paused.
                self.reconsider(vec![run]);
            }
            // The reason was told. It is tried again when other runners come, and by the next owner:
            // at once it would fail again.
            Settled::Rejected => {}
        }
    }

    /// What was to be done about a run that is not in memory may not be done: it is read, and what is
    /// missing is done again. The store may not count it as due.
    pub(super) fn look_again(&mut self, run: RunNo) {
        if self.shared.stopped().is_some() {
            // Nothing is written any more: it would come back here for ever.
            return;
        }
        if let Some(known) = self.unserved.get_mut(&run) {
            // It is not in its row.
            known.waiting.clear();
        }
        self.held.push_back(run);
        self.admit_held();
    }

    /// Nobody could run it: it stays as it is, and its row says why.
    fn note_missing(&mut self, run: &DueRun, inside: &str) {
        let mut waiting = peers::missing(run, &self.shared.peers.alive());
        if Overflow::parse(inside).is_some() {
            waiting.push_str(&format!(" (it is in the overflow pool `{inside}`)"));
        }
        let no = run.id.no();
        if let Some(known) = self.unserved.get_mut(&no)
            && known.waiting == waiting
        {
            let over = known.deadline_at.is_some_and(|at| at <= self.env.now.get());
            if over {
                // Only once: to be ended takes that nothing of it has begun, which is looked at then.
                known.deadline_at = None;
                self.load(no);
            }
            return;
        }
        let is_full = self.unserved.len() >= UNSERVED_MAX && !self.unserved.contains_key(&no);
        if is_full && matches!(run.status, RunStatus::Pending | RunStatus::Sleeping) {
            // The store counts it as due, so it is found again.
            return;
        }
        tracing::warn!(run = %run.id, waiting, "no code for a due run is registered");
        let unserved = Unserved {
            run: run.clone(),
            waiting,
            notes: self.unserved.get(&no).map_or(0, |it| it.notes),
            deadline_at: None,
            epoch: self.shared.epoch(),
        };
        self.unserved.insert(no, unserved);
        let (id, mailbox) = (run.id, self.mailbox.clone());
        let pause = self.shared.settings.store_retry * 2;
        self.ask(move |store| {
            let read = || match store.run(&Target::Id(id))? {
                Some(mut row) => {
                    let is_new = store.history(no, None, 1)?.is_empty();
                    if row.last_number == 0 && !is_new {
                        // The row may not know it: the run was imported, or its row was repaired.
                        let loaded = store.load(no)?;
                        row.last_number = loaded.map_or(0, |it| highest_number(&it.history));
                    }
                    Ok(Some((row, is_new)))
                }
                None => Ok::<_, StoreError>(None),
            };
            match read() {
                Ok(Some((row, is_new))) => mailbox.push(Event::Unserved(Box::new(row), is_new)),
                Ok(None) => {}
                Err(error) => {
                    tracing::warn!(run = %id, %error, "a run cannot be read; trying again");
                    crate::seam::sleep(pause, "read again");
                    mailbox.push(Event::Unread(no));
                }
            }
        });
    }

    /// A run that nobody could run was read: what it waits for is written into its row, if it can be.
    ///
    /// Of a run that was in its owner's memory the row does not know the last number, and a rollback
    /// is not to be begun anew. To be parked as pending takes back all waits: that is how a run is
    /// tried anew as a whole. So only one that has not begun is; one that was handed over out of a
    /// memory is pending, too, and has waits.
    pub(super) fn unserved_read(&mut self, row: &RunRow, is_new: bool) {
        let no = row.id.no();
        let is_here = self.by_no.contains_key(&no) || self.loading.contains_key(&no);
        if is_here || !self.shared.owns(row.shard) {
            return;
        }
        let Some(known) = self.unserved.get_mut(&no) else {
            return;
        };
        let may_be_noted = match row.status {
            // It is being handed over, or looked at again.
            _ if known.waiting.is_empty() => false,
            RunStatus::Sleeping => true,
            RunStatus::Pending => is_new,
            _ => false,
        };
        if !may_be_noted {
            return;
        }
        let now = self.env.now.get();
        known.deadline_at = row.deadline_at.filter(|_| is_new);
        if let Some(at) = known.deadline_at {
            self.shared.due.note(at);
        }
        let patch = Patch::Park {
            status: row.status,
            available_at: Some(known.run.available_at.unwrap_or(now)),
            waiting: known.waiting.clone(),
            attempts: row.attempts,
        };
        let mut commit = Commit::of_row(row, patch);
        commit.inbox_seq = Some(row.inbox_seq);
        let write = Write::Commit(Box::new(commit));
        known.notes += 1;
        let (thread, run) = (self.index, no);
        let reply = Reply::Owner { thread, run };
        self.out.push(Pending::under(known.epoch, write, reply));
    }

    /// Ends a run whose deadline has passed before anything of it has begun: that takes no code.
    /// Whether it was one.
    pub(super) fn is_over_without_code(&mut self, loaded: &LoadedRun, epoch: u64) -> bool {
        let row = &loaded.row;
        let passed = row.deadline_at.filter(|at| *at <= self.env.now.get());
        let is_new = row.status == RunStatus::Pending && loaded.history.is_empty();
        let Some(deadline) = passed.filter(|_| is_new) else {
            return false;
        };
        let failure = Failure::new(
            FailureKind::Deadline,
            format!(
                "the deadline of the run, {deadline}, has passed while no runner with workflow \
                 `{}` version {} was there",
                row.workflow, row.version
            ),
        );
        let (output, error) = (None, Some(encode_failure(&failure)));
        let status = RunStatus::Failed;
        let patch = Patch::Finish { status, output, error };
        let (thread, run) = (self.index, row.id.no());
        self.unserved.remove(&run);
        let write = Write::Commit(Box::new(commit_unloaded(loaded, patch)));
        let reply = Reply::Owner { thread, run };
        self.out.push(Pending::under(epoch, write, reply));
        true
    }

    /// Other runners are alive than before: some may have the code that runs wait for.
    pub(super) fn peers_changed(&mut self) {
        if self.unserved.len() >= UNSERVED_MAX {
            self.shared.due.poke(false);
        }
        let waiting: Vec<DueRun> = self.unserved.values().map(|it| it.run.clone()).collect();
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

/// How many due runs that nobody could run are remembered, so that each says what it waits for.
const UNSERVED_MAX: usize = 10_000;

/// A due run that nobody could run when it was last looked at.
pub(super) struct Unserved {
    run: DueRun,
    /// The reason that was written; none while it is being handed over.
    waiting: String,
    /// How many writes of the reason are on their way.
    notes: u32,
    /// When it ends by itself, if that takes no code.
    deadline_at: Option<Timestamp>,
    /// The lease under which it was looked at.
    pub(super) epoch: u64,
}

impl Unserved {
    pub(super) fn shard(&self) -> ShardId {
        self.run.shard
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
