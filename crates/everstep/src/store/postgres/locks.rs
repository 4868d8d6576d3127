//! What a batch locks, and in which order.
//!
//! One order for everybody: events by name, runs by number, limits, keys, queues, schedules, dead
//! letters. A batch waits for locks only at its beginning, in this order, for everything that its
//! writes name, and for the runs that wait for an event if it has locked nothing that comes after
//! them. What it finds out later that it needs, it only tries; if somebody else has it, the batch is
//! rolled back and begins again with that lock in its place. Nobody waits out of order, so no two
//! batches can wait for each other.

use std::collections::BTreeSet;

use crate::{
    commit::{
        Batch, Cell, Effect, ItemId, LetterWrite, Mend, NewItem, NewRun, QueueWrite, ScheduleWrite,
        Target, Write,
    },
    run_id::RunNo,
    store::{doctor::RULES, sql::Subject},
};

/// Something that is decided about under a lock. Their order is the order of locking.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) enum Lock {
    /// All about the events of one name.
    Event(u16),
    Run(RunNo),
    /// All about a key of a limit.
    Limit(u16),
    /// All about a queue.
    Queue(u16),
    /// All about a schedule.
    Schedule(u16),
    /// What becomes of a dead letter.
    Letter(u16),
}

/// How many locks there are of each kind but runs. Names share them, so that a batch of thousands of
/// names does not fill the server's table of locks.
const SHARES: u64 = 256;

/// The same in every process of every version: FNV-1a.
fn share(parts: &[&str]) -> u16 {
    let bytes = parts.iter().flat_map(|part| part.bytes().chain([0xff]));
    (fnv(bytes) % SHARES) as u16
}

/// A number for a text, the same in every process of every version.
pub(super) fn fnv(bytes: impl Iterator<Item = u8>) -> u64 {
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

impl Lock {
    pub(super) fn of(subject: Subject<'_>) -> Lock {
        match subject {
            Subject::Event(name) => Lock::event(name),
            Subject::Limit(name, key) => Lock::limit(name, key),
            Subject::Schedule(name) => Lock::schedule(name),
            Subject::Letter(no) => Lock::letter(no),
        }
    }

    pub(super) fn event(name: &str) -> Lock {
        Lock::Event(share(&[name]))
    }

    pub(super) fn limit(name: &str, key: &str) -> Lock {
        Lock::Limit(share(&[name, key]))
    }

    pub(super) fn queue(name: &str) -> Lock {
        Lock::Queue(share(&[name]))
    }

    pub(super) fn schedule(name: &str) -> Lock {
        Lock::Schedule(share(&[name]))
    }

    pub(super) fn letter(no: u64) -> Lock {
        Lock::Letter((no % SHARES) as u16)
    }

    /// The number of its advisory lock in the schema with this number; a run has none.
    pub(super) fn advisory(self, schema: u32) -> Option<i64> {
        let (class, share) = match self {
            Lock::Run(_) => return None,
            Lock::Event(share) => (1, share),
            Lock::Limit(share) => (2, share),
            Lock::Queue(share) => (3, share),
            Lock::Schedule(share) => (4, share),
            Lock::Letter(share) => (5, share),
        };
        Some((i64::from(schema) << 32) | (class << 16) | i64::from(share))
    }
}

/// Everything that a batch names.
#[derive(Clone, Debug, Default)]
pub(super) struct Named {
    pub(super) locks: BTreeSet<Lock>,
    /// Workflows and keys.
    pub(super) keys: BTreeSet<(String, String)>,
    /// Runs that are to be made.
    pub(super) new_runs: BTreeSet<RunNo>,
    /// Items that are put into queues.
    pub(super) items: usize,
    /// Their queues and dedupe keys.
    pub(super) dedupes: BTreeSet<(String, String)>,
    /// Items of queues that something is done to.
    pub(super) queue_items: BTreeSet<ItemId>,
    /// Schedules that something is done to.
    pub(super) schedules: BTreeSet<String>,
    /// Streams that are appended to.
    pub(super) streams: BTreeSet<(RunNo, String)>,
    /// Whether a write can reach a run that it does not name, other than by the end of a run with
    /// links.
    pub(super) reaches_out: bool,
    /// Whether the doctor mends something.
    pub(super) is_repair: bool,
}

impl Named {
    /// The runs among the locks.
    pub(super) fn runs(&self) -> impl Iterator<Item = RunNo> + '_ {
        self.locks.iter().filter_map(|lock| match lock {
            Lock::Run(run) => Some(*run),
            _ => None,
        })
    }

    pub(super) fn of(batch: &Batch) -> Named {
        let mut named = Named::default();
        for write in &batch.writes {
            named.add(write);
        }
        named
    }

    fn add(&mut self, write: &Write) {
        self.reaches_out |= match write {
            Write::Start(_) => false,
            Write::Commit(commit) => !commit.effects.is_empty(),
            _ => true,
        };
        match write {
            Write::Start(new) => self.add_new(new),
            Write::Fork(fork) => self.add_new(&fork.new),
            Write::Deliver(delivery) => self.add_target(&delivery.target),
            Write::Control(target, _) => self.add_target(target),
            Write::Delete(delete) => self.add_target(&delete.target),
            Write::Tag(tagging) => self.add_target(&tagging.target),
            Write::Reopen(reopen) => self.add_run(reopen.run),
            Write::HandOver(what) => self.add_run(what.run),
            Write::Rehome(what) => self.add_target(&what.target),
            Write::Emit(emission) => {
                self.add_run(emission.run);
                for emit in &emission.items {
                    self.streams.insert((emission.run, emit.stream.clone()));
                }
            }
            Write::Resolve(resolution) => self.add_run(resolution.run.no()),
            Write::Publish(publication) => {
                self.locks.insert(Lock::event(&publication.name));
            }
            Write::Queue(write) => self.add_queue(write),
            Write::Schedule(write) => self.add_schedule(write),
            Write::Import(imported) => {
                self.add_run(imported.row.id.no());
                self.new_runs.insert(imported.row.id.no());
                if let Some(key) = &imported.row.key {
                    let workflow = imported.row.workflow.to_string();
                    self.keys.insert((workflow, key.clone()));
                }
            }
            Write::Commit(commit) => {
                self.add_run(commit.run);
                for effect in &commit.effects {
                    self.add_effect(commit.run, effect);
                }
            }
            Write::Letter(write) => self.add_letters(write),
            Write::Mend(mend) => self.add_mend(mend),
            // These look for themselves.
            Write::TendEvents { .. } | Write::Sweep(_) => {}
        }
    }

    fn add_effect(&mut self, run: RunNo, effect: &Effect) {
        match effect {
            Effect::Send { delivery, .. } => self.add_target(&delivery.target),
            Effect::Watch { target, .. } => self.add_target(target),
            Effect::Publish { publication, .. } => {
                self.locks.insert(Lock::event(&publication.name));
            }
            Effect::Subscribe(subscription) => {
                self.locks.insert(Lock::event(&subscription.name));
            }
            Effect::StartChild(start) => self.add_new(&start.new),
            Effect::Acquire(acquire) => {
                self.locks.insert(Lock::limit(&acquire.limit, &acquire.limit_key));
            }
            Effect::Enqueue { item, .. } => self.add_item(item),
            Effect::Emit(emit) => {
                self.streams.insert((run, emit.stream.clone()));
            }
            _ => {}
        }
    }

    fn add_run(&mut self, run: RunNo) {
        self.locks.insert(Lock::Run(run));
    }

    fn add_target(&mut self, target: &Target) {
        match target {
            Target::Id(id) => self.add_run(id.no()),
            Target::Key { workflow, key } => {
                self.keys.insert((workflow.clone(), key.clone()));
            }
        }
    }

    fn add_new(&mut self, new: &NewRun) {
        self.add_run(new.id.no());
        self.new_runs.insert(new.id.no());
        if let Some(key) = &new.key {
            self.keys.insert((new.workflow.to_string(), key.clone()));
        }
    }

    fn add_queue(&mut self, write: &QueueWrite) {
        match write {
            QueueWrite::Enqueue(new) => self.add_item(new),
            QueueWrite::Claim(claim) => {
                self.locks.insert(Lock::queue(&claim.queue));
                if let Some(limit) = &claim.limit {
                    self.locks.insert(Lock::limit(&limit.limit, &limit.limit_key));
                }
            }
            // The queue stands in the item.
            QueueWrite::Extend(claims) => {
                self.queue_items.extend(claims.iter().map(|claim| claim.item));
            }
            QueueWrite::Settle(settled) => {
                self.queue_items.insert(settled.item);
            }
            QueueWrite::Control(item, _) => {
                self.queue_items.insert(*item);
            }
            QueueWrite::Revoke => {}
        }
    }

    fn add_item(&mut self, new: &NewItem) {
        self.items += 1;
        self.locks.insert(Lock::queue(&new.queue));
        if let Some(key) = &new.dedupe {
            self.dedupes.insert((new.queue.clone(), key.clone()));
        }
    }

    /// What it finds out later (the limit of a place) is only tried, as always.
    fn add_mend(&mut self, mend: &Mend) {
        self.is_repair = true;
        let (rule, row) = match mend {
            Mend::Row { rule, row } => (&RULES[*rule], row),
            Mend::RemoveEntry { run, .. }
            | Mend::ForgetNumber { run, .. }
            | Mend::Shard { run, .. } => return self.add_run(*run),
        };
        match (rule.table, &**row) {
            (
                "everstep_events" | "everstep_event_names" | "everstep_event_waiters",
                [Cell::Text(name), ..],
            ) => {
                self.locks.insert(Lock::event(name));
            }
            ("everstep_limits", [Cell::Text(name), Cell::Text(key)]) => {
                self.locks.insert(Lock::limit(name, key));
            }
            (_, [Cell::Int(no @ 0..), ..]) if rule.run == rule.key[0].0 => {
                self.add_run(RunNo(*no));
            }
            _ => {}
        }
    }

    fn add_letters(&mut self, write: &LetterWrite) {
        match write {
            LetterWrite::Replay { no, .. } => {
                self.locks.insert(Lock::letter(*no));
            }
            LetterWrite::Drop(nos) => self.locks.extend(nos.iter().map(|no| Lock::letter(*no))),
        }
    }

    fn add_schedule(&mut self, write: &ScheduleWrite) {
        let name = match write {
            ScheduleWrite::Put(new) => &new.name,
            ScheduleWrite::Pause { name }
            | ScheduleWrite::Resume { name, .. }
            | ScheduleWrite::Delete { name } => name,
            ScheduleWrite::Fire(fire) => {
                if let Some(new) = &fire.run {
                    self.add_new(new);
                }
                &fire.name
            }
        };
        self.locks.insert(Lock::schedule(name));
        self.schedules.insert(name.clone());
    }
}
