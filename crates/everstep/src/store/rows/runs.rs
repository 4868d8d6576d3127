//! The rows of runs, with their keys, tags, entries and values.

use std::sync::Arc;

use crate::{
    commit::{
        Batch, CancelRequest, Delete, Fence, KeyRange, Mend, NewRun, Notice, Put, Refusal, RunRow,
        RunStatus, Transaction,
    },
    pool::PoolNo,
    run_id::{RunId, RunNo, ShardId},
    time::Timestamp,
};

/// The columns of a run's row that decisions are made from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Head {
    /// The id of the run. Its number is the key of the row.
    pub id: RunId,
    /// The shard that the run is in.
    pub shard: ShardId,
    /// The status of the run.
    pub status: RunStatus,
    /// The status in which a run that is rolled back will end.
    pub ending: Option<RunStatus>,
    /// The number of the current generation, from 1 on.
    pub generation: u32,
    /// The time at which the run is due, if it is to be taken up.
    pub available_at: Option<Timestamp>,
    /// The number of the attempt at the run.
    pub attempts: u32,
    /// The sequence number of the last row that came into the inbox.
    pub inbox_seq: u64,
    /// The cancel that was requested.
    pub cancel: Option<CancelRequest>,
    /// The highest number of a stored entry, or a lower bound of it.
    pub last_number: u64,
    /// Whether `last_number` is the highest number itself (`true`) or only a lower bound of it (`false`).
    /// A store saves this mark with the row, as [`write_run`](RunTables::write_run) gave it. One case is
    /// the store's own: a store that does not save the number of [`RunChange::Nothing`] must read a
    /// [`Running`](RunStatus::Running) row back with `false`. The rules give `false` for a run that was
    /// reopened, until its owner commits again.
    pub last_number_exact: bool,
    /// The earliest time at which a paused run may go on: a delayed start, or the next attempt of a
    /// run, keeps its time through a pause.
    pub resume_at: Option<Timestamp>,
    /// Marks of what the run has in other tables. A store keeps the bits and does not read them.
    pub links: u32,
}

impl Head {
    /// A run that no owner has taken up, due at `available_at`; or, without it, in its owner's
    /// memory from the first moment.
    pub(crate) fn new(id: RunId, pool: PoolNo, available_at: Option<Timestamp>) -> Head {
        Head {
            id,
            shard: id.shard_in(pool),
            status: if available_at.is_some() { RunStatus::Pending } else { RunStatus::Running },
            ending: None,
            generation: 1,
            available_at,
            attempts: 1,
            inbox_seq: 0,
            cancel: None,
            last_number: 0,
            last_number_exact: true,
            resume_at: None,
            links: 0,
        }
    }

    /// The last number as the SQL stores keep it: null where a row that is not `Running` would have to
    /// have an exact one and only its owner knows it.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn stored_number(&self) -> Option<i64> {
        let is_known = self.last_number_exact || self.status == RunStatus::Running;
        is_known.then_some(self.last_number as i64)
    }
}

/// A change of a run's row. Every variant comes with the whole [`Head`] as it is from now
/// on, and names the columns of it that differ from the stored ones: a store may write those alone,
/// or all of them.
///
/// Every variant but [`Nothing`](Self::Nothing), [`Learned`](Self::Learned) and [`Links`](Self::Links)
/// also sets `updated_at` to the time of the batch.
#[derive(Clone, Copy, Debug)]
pub enum RunChange<'a> {
    /// No column has to be written: nothing differs, or `last_number` alone does in a row that is
    /// [`Running`](RunStatus::Running). [`head`](RunTables::head) must give the new head until the end of
    /// the batch. A store need not write the number; if it later reads a running row with an older one, it
    /// clears [`last_number_exact`](Head::last_number_exact). Every step makes such a change.
    Nothing,
    /// `last_number`.
    Number,
    /// `last_number`, which the row did not say exactly. The run has not changed, so `updated_at` is kept:
    /// it must not depend on which store knew the number before.
    Learned,
    /// `inbox_seq` and `available_at`: something came into the inbox.
    Inbox,
    /// `links`.
    Links,
    /// `status`, `available_at` and `last_number`: the run moves again. Clears `waiting` and
    /// `recoveries`. Every wake-up makes such a change.
    Moving,
    /// `cancel` and `available_at`: a cancel was requested.
    Cancel,
    /// `shard`, `status`, `available_at` and `last_number`: the run is to be taken up in this shard.
    Shard,
    /// None: something else about the run has changed, and only `updated_at` is set.
    Touch,
    /// Any column but `generation`, `shard` and `links`. `waiting` is written, too.
    Status {
        /// The reason why the run waits.
        waiting: Option<&'a str>,
        /// Whether `recoveries` is kept or cleared.
        recoveries: Recoveries,
    },
    /// The columns of [`Status`](Self::Status). Clears `waiting`, and writes `error`.
    RollBack {
        /// The error because of which the run is rolled back.
        error: Option<&'a [u8]>,
    },
    /// The columns of [`Status`](Self::Status) and `generation`: the run goes on as another generation.
    /// Clears `waiting` and `recoveries`. The entries of the generation before it are not read any
    /// more: a store may remove them now, or later in
    /// [`sweep_generations`](RunTables::sweep_generations).
    Continue(NextGeneration<'a>),
    /// `status`, `ending`, `available_at` and `last_number`: the run ends. Clears `waiting`, sets
    /// `finished_at` to the time of the batch, and writes `output` and `error`.
    Finish {
        /// Whether the row had an `available_at`.
        was_due: bool,
        /// The output.
        output: Option<&'a [u8]>,
        /// The error.
        error: Option<&'a [u8]>,
    },
    /// The columns of [`Status`](Self::Status): the run goes on after its end. Clears `waiting`,
    /// `recoveries`, `output`, `error` and `finished_at`.
    Reopen,
}

/// Whether a write of a run's row says that the run has made progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Recoveries {
    /// The count of recoveries stays.
    Kept,
    /// The count of recoveries becomes 0.
    Cleared,
}

/// The code and the input of the next generation of a run.
#[derive(Clone, Copy, Debug)]
pub struct NextGeneration<'a> {
    /// The workflow.
    pub workflow: &'a Arc<str>,
    /// The version of the workflow.
    pub version: u32,
    /// The home pool.
    pub pool: &'a Arc<str>,
    /// The encoded input.
    pub input: &'a Vec<u8>,
}

/// The columns of a run by which it is looked for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Labels {
    /// The workflow of the current generation.
    pub workflow: String,
    /// The key.
    pub key: Option<String>,
    /// The time at which the run has ended.
    pub finished_at: Option<Timestamp>,
    /// The tags, in the order in which they were given.
    pub tags: Vec<(String, String)>,
}

/// The entry of a key: the run that has it, or a tombstone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Keyed {
    /// A run.
    Run(RunNo),
    /// The run was deleted.
    Deleted(Tombstone),
}

/// The tombstone of a key whose run was deleted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tombstone {
    /// The run.
    pub run: RunId,
    /// The time of the delete.
    pub deleted_at: Timestamp,
    /// The time from which on the key is free again.
    pub kept_until: Timestamp,
}

impl Tombstone {
    /// The tombstone that a delete leaves under the key; `None` if the key becomes free.
    pub(crate) fn of(run: RunId, delete: &Delete, now: Timestamp) -> Option<Tombstone> {
        let kept_until = delete.key_kept_until.filter(|until| *until > now)?;
        Some(Tombstone { run, deleted_at: now, kept_until })
    }

    /// Whether the key is free again, so that a sweep may remove the tombstone.
    pub fn is_over(&self, now: Timestamp) -> bool {
        self.kept_until <= now
    }

    /// The answer to a start with the key.
    pub(crate) fn refusal(&self) -> Refusal {
        Refusal::KeyUsed { run: self.run, deleted_at: self.deleted_at, kept_until: self.kept_until }
    }
}

/// The rows of runs, with their keys, tags, entries and values.
pub trait RunTables {
    /// The error of the store. [`apply`](super::apply) gives it to the store that called it.
    type Error;

    /// The time of the batch: [`Batch::now`].
    fn now(&self) -> Timestamp;

    /// The notices of the batch so far. [`apply`](super::apply) adds to them, and takes them at the
    /// end.
    fn notices(&mut self) -> &mut Vec<Notice>;

    /// Checks the fence of the batch: reads the row of the runner `fence.runner`, and returns whether its
    /// epoch is `fence.epoch`. `false` also if the runner has no row.
    ///
    /// This is the first call for a batch that has a fence. It is not called for a batch without one,
    /// which a client writes. If it returns `true`, the store must keep the row of the runner unchanged
    /// until the batch is durable (by a lock, if it has several writers), and [`owns`](Self::owns)
    /// answers for this runner. If it returns `false`, the commits and emissions of the batch are refused,
    /// and its other writes are made.
    fn hold_fence(&mut self, fence: Fence) -> Result<bool, Self::Error>;

    /// Shows the whole batch before anything is read: a store with several writers can lock what the
    /// batch names, and a store where a read is expensive can read ahead. Does nothing by default.
    fn prepare(&mut self, _batch: &Batch) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Whether the runner that writes the batch has this shard. `false` without a fence that holds.
    fn owns(&mut self, shard: ShardId) -> Result<bool, Self::Error>;

    /// A hint: a commit of this run was accepted, so the runner that writes the batch is the only one
    /// who writes entries of the run. Does nothing by default.
    fn own(&mut self, _run: RunNo) {}

    /// The row of a run as it is now, locked.
    fn head(&mut self, run: RunNo) -> Result<Option<Head>, Self::Error>;

    /// Looks up the key of a run of this workflow. Returns the run that has the key, or the tombstone of
    /// the run that had it; `None` if the key was never used or is free again.
    ///
    /// It is called for a start with a key, and for every write that names a run by its key. A row that is
    /// found is locked. A store with several writers must also keep two batches from both taking a key
    /// that is free: by a lock on the key, or by a unique constraint, after whose violation it applies the
    /// batch again. A tombstone [whose time is over](Tombstone::is_over) may be returned or left out: it
    /// means the same as `None`.
    fn keyed(&mut self, workflow: &str, key: &str) -> Result<Option<Keyed>, Self::Error>;

    /// Whether this is the number of a deleted run of which something is still stored.
    fn is_grave(&mut self, run: RunNo) -> Result<bool, Self::Error>;

    /// Inserts a new run: its row, its tags and its key. `false` if there is a run with this number,
    /// and then nothing is written. The key is free, or has a tombstone, which is replaced.
    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> Result<bool, Self::Error>;

    /// Inserts a run from another store: its row, its tags and its key. The number is free, and the
    /// key is free or has a tombstone, which is replaced. Columns that are in `head` have the values of
    /// `head`; `updated_at` is the time of the batch, `recoveries` is 0, and there is no trace.
    fn import_run(&mut self, row: &RunRow, head: &Head) -> Result<(), Self::Error>;

    /// The id of a run, and whether its input is this one. A run that has continued counts as one
    /// with this input: the input of its first generation is not kept.
    fn started_with(
        &mut self,
        run: RunNo,
        input: &[u8],
    ) -> Result<Option<(RunId, bool)>, Self::Error>;

    /// Writes the row of a run. [`head`](Self::head) gives `head` from then on.
    fn write_run(&mut self, head: &Head, change: RunChange<'_>) -> Result<(), Self::Error>;

    /// The columns of a run by which it is looked for.
    fn labels(&mut self, run: RunNo) -> Result<Option<Labels>, Self::Error>;

    /// Replaces the tags of a run. `before` are those that are stored.
    fn write_tags(
        &mut self,
        run: RunNo,
        before: &[(String, String)],
        after: &[(String, String)],
    ) -> Result<(), Self::Error>;

    /// Writes the home pool of a run, and `updated_at`; `false` if it has this home already.
    fn write_home_if_new(&mut self, run: RunNo, pool: &str) -> Result<bool, Self::Error>;

    /// Removes the key of a run, or puts a tombstone in its place. `workflow` is the workflow that the
    /// key is stored under; `None` if that is not known, since the run has continued. A key that is
    /// another run's stays.
    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: Option<&str>,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), Self::Error>;

    /// Deletes the row and the tags of a run, which are given, and makes its number a grave. The rest
    /// (entries, inbox, requests, dedupe keys, values, streams, deferreds, cursors, places, dead
    /// letters) may be deleted now, or later in [`Store::sweep`](crate::store::Store::sweep). Until all
    /// is gone, the number stays a grave.
    fn delete_run(&mut self, run: RunNo, tags: &[(String, String)]) -> Result<(), Self::Error>;

    /// Deletes ranges of entries, then writes entries, in place of those with the same key.
    fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), Self::Error>;

    /// Writes values that a run sets for clients, in place of those with the same key.
    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> Result<(), Self::Error>;

    /// Runs the body of a user's transaction (`ctx.transaction`, `ctx.pg_transaction`). The outcome is
    /// kept in `transaction`. These bodies are for the SQL stores of this crate: another store calls
    /// [`Transaction::refuse`], which fails the step with a reason.
    fn call(&mut self, transaction: &Transaction) -> Result<(), Self::Error>;

    /// The number of the pool with this name. A pool that is not there is made, with the number after
    /// the greatest; the pool `default` has number 0.
    fn pool_no(&mut self, name: &str) -> Result<PoolNo, Self::Error>;

    /// Deletes up to `limit` entries of one generation that is over. `false` if there was no such
    /// generation.
    fn sweep_generations(&mut self, limit: u32) -> Result<bool, Self::Error>;

    /// Makes a repair of the doctor, if the row is still broken; how many rows were changed. Only a
    /// store that finds something in [`Store::examine`](crate::store::Store::examine) is asked.
    fn mend(&mut self, _mend: &Mend) -> Result<u64, Self::Error> {
        Ok(0)
    }
}
