//! Runs: how they are started, imported, controlled, reopened and swept.

use super::{
    Head, Tombstone, control as decide_control, due_at, fork_head, import as imported_head,
    pools::Pools, reopen as decide_reopen, tables::Keyed,
};
use crate::{
    pool::DEFAULT_POOL,
    run_id::{RunId, RunNo},
    store::{
        Batch, Control, Controlled, Fence, Fork, Imported, ImportedRun, InboxRow, NewRun, Outcome,
        Refusal, Reopen, RunRow, Started, Target, Transaction,
    },
    time::Timestamp,
};

/// Whether a write of a run's row says that the run has made progress.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Recoveries {
    Kept,
    Cleared,
}

/// The code and the input of the next generation of a run.
#[derive(Clone, Copy, Debug)]
pub(crate) struct NextGeneration<'a> {
    pub(crate) workflow: &'a std::sync::Arc<str>,
    pub(crate) version: u32,
    pub(crate) pool: &'a std::sync::Arc<str>,
    pub(crate) input: &'a Vec<u8>,
}

/// The columns of a run that a delete has to know.
pub(crate) struct Leaving {
    pub(crate) workflow: String,
    pub(crate) key: Option<String>,
    pub(crate) finished_at: Option<Timestamp>,
    pub(crate) tags: Vec<(String, String)>,
}

/// The rows of runs, their keys, entries and values, within one batch.
///
/// A primitive that is given a head remembers it: [`head`](super::tables::Tables::head) gives it from
/// then on.
pub(crate) trait RunTables: Pools {
    /// Makes sure that the runner's row has this epoch until the batch is durable; `false` if it has
    /// another. From then on the batch is written by this runner.
    fn hold_fence(&mut self, fence: Fence) -> Result<bool, Self::Error>;

    /// Locks what the batch names, in a store with several writers, and reads it ahead, in a store
    /// where a read is expensive.
    fn prepare(&mut self, _batch: &Batch) -> Result<(), Self::Error> {
        Ok(())
    }

    /// Takes note that the batch has an accepted commit of this run, so that its writer is the only
    /// one who writes entries of the run.
    fn own(&mut self, _run: RunNo) {}

    /// Enters a key, in place of the tombstone under it if there is one.
    fn put_key(&mut self, workflow: &str, key: &str, run: RunNo) -> Result<(), Self::Error>;

    /// Removes a key if it is this run's, or leaves the tombstone under it.
    fn bury_key_if_of(
        &mut self,
        run: RunNo,
        workflow: &str,
        key: &str,
        tombstone: Option<&Tombstone>,
    ) -> Result<(), Self::Error>;

    /// The workflow under which a run has its key.
    fn workflow_of_key(&mut self, key: &str, run: RunNo) -> Result<Option<String>, Self::Error>;

    /// Whether this number is that of a deleted run of which something is still stored.
    fn is_grave(&mut self, run: RunNo) -> Result<bool, Self::Error>;

    /// Inserts the row and the tags of a new run; `false` if there is a run with this number.
    fn insert_run_if_free(&mut self, new: &NewRun, head: &Head) -> Result<bool, Self::Error>;

    /// Inserts the row and the tags of a run from another store.
    fn import_run(&mut self, row: &RunRow, head: &Head) -> Result<(), Self::Error>;

    /// The id of a run, and whether it was started with this input, or may have been: the input of
    /// the first generation is not kept.
    fn started_with(
        &mut self,
        run: RunNo,
        input: &[u8],
    ) -> Result<Option<(RunId, bool)>, Self::Error>;

    fn leaving(&mut self, run: RunNo) -> Result<Option<Leaving>, Self::Error>;

    /// Deletes the row and the tags of a run, and makes its number a grave.
    fn delete_run(&mut self, run: RunNo, tags: &[(String, String)]) -> Result<(), Self::Error>;

    fn tags(&mut self, run: RunNo) -> Result<Vec<(String, String)>, Self::Error>;

    fn write_tags(
        &mut self,
        run: RunNo,
        before: &[(String, String)],
        after: &[(String, String)],
    ) -> Result<(), Self::Error>;

    /// Sets the time of the last change of a run.
    fn touch(&mut self, run: RunNo) -> Result<(), Self::Error>;

    /// Writes everything of the row that decisions are made from, and why the run waits.
    fn write_head(
        &mut self,
        head: &Head,
        waiting: Option<&str>,
        recoveries: Recoveries,
    ) -> Result<(), Self::Error>;

    /// Writes the row of a run that moves: status, time and number. Clears why it waits and its
    /// recoveries. Written at every wake-up, so apart from [`write_head`](Self::write_head).
    fn write_running(&mut self, head: &Head) -> Result<(), Self::Error>;

    /// Writes the last number alone.
    fn write_number(&mut self, head: &Head) -> Result<(), Self::Error>;

    /// Remembers the row of a commit that does not write it.
    fn remember(&mut self, head: &Head);

    /// Writes that a cancel was requested, and the time at which the run is due.
    fn write_cancel(&mut self, head: &Head) -> Result<(), Self::Error>;

    fn write_error(&mut self, run: RunNo, error: Option<&[u8]>) -> Result<(), Self::Error>;

    /// Writes the code and the input of the generation that is in `head`. The one before it is old.
    fn write_generation(
        &mut self,
        head: &Head,
        next: NextGeneration<'_>,
    ) -> Result<(), Self::Error>;

    /// Writes the row of a run that ends. `was_due` says whether it had a time.
    fn finish_run(
        &mut self,
        head: &Head,
        was_due: bool,
        output: Option<&[u8]>,
        error: Option<&[u8]>,
    ) -> Result<(), Self::Error>;

    /// Takes output, error and time of the end from the row of a run that is reopened.
    fn clear_ending(&mut self, run: RunNo) -> Result<(), Self::Error>;

    fn write_state(&mut self, run: RunNo, state: &[(String, Vec<u8>)]) -> Result<(), Self::Error>;

    /// Runs the body of a workflow's transaction; what became of it is in `transaction`.
    fn call(&mut self, transaction: &Transaction) -> Result<(), Self::Error>;

    /// One generation that is over and still has entries.
    fn old_generation(&mut self) -> Result<Option<(RunNo, u32)>, Self::Error>;

    /// Deletes entries of a generation, at most so many; how many.
    fn delete_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        limit: u32,
    ) -> Result<usize, Self::Error>;

    /// An old generation has no entries any more.
    fn forget_generation(&mut self, run: RunNo, generation: u32) -> Result<(), Self::Error>;
}

/// Starts a run, or attaches to the one that is there under its key or its id.
pub(crate) fn start<T: RunTables>(tables: &mut T, new: &NewRun) -> Result<Outcome, T::Error> {
    let (run, now) = (new.id.no(), tables.now());
    let keyed = match &new.key {
        Some(key) => tables.keyed(&new.workflow, key)?,
        None => None,
    };
    match keyed {
        Some(Keyed::Run(run)) => return attach(tables, run, new, true),
        Some(Keyed::Deleted(tombstone)) if !tombstone.is_over(now) => {
            return Ok(Outcome::Refused(tombstone.refusal()));
        }
        _ => {}
    }
    if tables.is_grave(run)? {
        return Ok(Outcome::Refused(Refusal::Gone));
    }
    if &*new.pool != DEFAULT_POOL && tables.head(run)?.is_some() {
        // Before its pool is made: a start that attaches makes nothing.
        return attach(tables, run, new, false);
    }
    let pool = tables.pool_no(&new.pool)?;
    let shard = new.id.shard_in(pool);
    let claimed = new.claim && new.available_at.is_none() && tables.owns(shard)?;
    let begin = new.available_at.unwrap_or(now);
    let available_at = (!claimed).then(|| due_at(new.id, begin, now));
    let head = Head::new(new.id, pool, available_at);
    if !tables.insert_run_if_free(new, &head)? {
        return attach(tables, run, new, false);
    }
    if let Some(key) = &new.key {
        tables.put_key(&new.workflow, key, run)?;
    }
    Ok(Outcome::Started(Started {
        id: new.id,
        attached: false,
        input_differs: false,
        claimed,
        available_at,
    }))
}

fn attach<T: RunTables>(
    tables: &mut T,
    run: RunNo,
    new: &NewRun,
    by_key: bool,
) -> Result<Outcome, T::Error> {
    match tables.started_with(run, &new.input)? {
        // Another id can have the same number. It cannot be stored beside the first, and the client
        // makes a new id.
        Some((id, is_same_input)) if by_key || id == new.id => Ok(Outcome::Started(Started {
            id,
            attached: true,
            input_differs: !is_same_input,
            claimed: false,
            available_at: None,
        })),
        _ => Ok(Outcome::Refused(Refusal::Gone)),
    }
}

/// Starts a run with the history of another.
pub(crate) fn fork<T: RunTables>(tables: &mut T, fork: &Fork) -> Result<Outcome, T::Error> {
    // Never claimed: it has a history to be loaded.
    let new = NewRun { claim: false, ..fork.new.clone() };
    let outcome = start(tables, &new)?;
    let Outcome::Started(Started { attached: false, available_at: Some(at), .. }) = outcome else {
        return Ok(outcome);
    };
    let head = fork_head(fork, tables.pool_no(&new.pool)?, at);
    tables.write_head(&head, None, Recoveries::Kept)?;
    tables.write_entries(new.id.no(), head.generation, &[], &fork.history)?;
    tables.write_state(new.id.no(), &fork.state)?;
    Ok(outcome)
}

/// Takes in a run from another store.
pub(crate) fn import<T: RunTables>(
    tables: &mut T,
    imported: &ImportedRun,
) -> Result<Outcome, T::Error> {
    let row = &imported.row;
    let run = row.id.no();
    // What a deleted run of this number has left will be swept, and nothing else must be.
    if tables.head(run)?.is_some() || tables.is_grave(run)? {
        return Ok(Outcome::Imported(Imported::IdTaken));
    }
    if let Some(key) = &row.key {
        if let Some(Keyed::Run(run)) = tables.keyed(&row.workflow, key)? {
            return Ok(Outcome::Imported(Imported::KeyTaken { run }));
        }
        tables.put_key(&row.workflow, key, run)?;
    }
    let pool = tables.pool_no(&row.pool)?;
    let head = imported_head(row, pool, tables.now());
    tables.import_run(row, &head)?;
    tables.write_entries(run, head.generation, &[], &imported.history)?;
    for message in &imported.inbox {
        // An imported run has no links, so that nobody would publish it at the end.
        let on_end = None;
        let message = message.clone();
        tables.insert_inbox(run, &InboxRow { on_end, ..message })?;
    }
    tables.write_state(run, &imported.state)?;
    let available_at = head.available_at;
    Ok(Outcome::Imported(Imported::Done { available_at }))
}

/// Cancels, pauses or resumes a run.
pub(crate) fn control<T: RunTables>(
    tables: &mut T,
    target: &Target,
    control: Control,
) -> Result<Controlled, T::Error> {
    let Some(mut head) = tables.find(target)? else {
        return Ok(Controlled::Unknown);
    };
    let controlled = decide_control(&mut head, control, tables.now());
    if let Controlled::Done { .. } = controlled {
        match control {
            Control::Pause => {
                let why = Some(super::PAUSED_BY_REQUEST);
                tables.write_head(&head, why, Recoveries::Kept)?;
            }
            Control::Resume => tables.write_head(&head, None, Recoveries::Cleared)?,
            Control::Cancel { .. } => tables.write_cancel(&head)?,
        }
    }
    Ok(controlled)
}

/// Makes a finished run live again.
pub(crate) fn reopen<T: RunTables>(tables: &mut T, reopen: &Reopen) -> Result<Outcome, T::Error> {
    let head = tables.head(reopen.run)?;
    let Some(mut head) = head else {
        return Ok(Outcome::Refused(Refusal::Gone));
    };
    if !decide_reopen(&mut head, reopen, tables.now()) {
        return Ok(Outcome::Refused(Refusal::Gone));
    }
    tables.write_entries(reopen.run, head.generation, &reopen.deletes, &reopen.puts)?;
    tables.write_head(&head, None, Recoveries::Cleared)?;
    tables.clear_ending(reopen.run)?;
    Ok(Outcome::Committed(Vec::new()))
}

/// Deletes entries of generations that are over; whether there are more.
pub(crate) fn sweep<T: RunTables>(tables: &mut T, limit: u32) -> Result<bool, T::Error> {
    let Some((run, generation)) = tables.old_generation()? else {
        return Ok(false);
    };
    let deleted = tables.delete_entries(run, generation, limit)?;
    if deleted < limit as usize {
        tables.forget_generation(run, generation)?;
    }
    Ok(true)
}
