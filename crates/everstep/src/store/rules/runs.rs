//! Runs: how they are started, imported, controlled, reopened and swept.

use super::{
    control as decide_control, due_at, fork_head, import as imported_head, reopen as decide_reopen,
    tables::find,
};
use crate::{
    pool::DEFAULT_POOL,
    run_id::RunNo,
    store::{
        Control, Controlled, Fork, Imported, ImportedRun, InboxRow, NewRun, Outcome, Refusal,
        Reopen, Started, Target,
        rows::{Head, InboxTables, Keyed, Recoveries, RunChange, RunTables},
    },
};

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
    let (waiting, recoveries) = (None, Recoveries::Kept);
    tables.write_run(&head, RunChange::Status { waiting, recoveries })?;
    tables.write_entries(new.id.no(), head.generation, &[], &fork.history)?;
    tables.write_state(new.id.no(), &fork.state)?;
    Ok(outcome)
}

/// Takes in a run from another store.
pub(crate) fn import<T: InboxTables>(
    tables: &mut T,
    imported: &ImportedRun,
) -> Result<Outcome, T::Error> {
    let row = &imported.row;
    let run = row.id.no();
    // What a deleted run of this number has left will be swept, and nothing else must be.
    if tables.head(run)?.is_some() || tables.is_grave(run)? {
        return Ok(Outcome::Imported(Imported::IdTaken));
    }
    if let Some(key) = &row.key
        && let Some(Keyed::Run(run)) = tables.keyed(&row.workflow, key)?
    {
        return Ok(Outcome::Imported(Imported::KeyTaken { run }));
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
    let Some(mut head) = find(tables, target)? else {
        return Ok(Controlled::Unknown);
    };
    let controlled = decide_control(&mut head, control, tables.now());
    if let Controlled::Done { .. } = controlled {
        let change = match control {
            Control::Pause => {
                let waiting = Some(super::PAUSED_BY_REQUEST);
                RunChange::Status { waiting, recoveries: Recoveries::Kept }
            }
            Control::Resume => RunChange::Status { waiting: None, recoveries: Recoveries::Cleared },
            Control::Cancel { .. } => RunChange::Cancel,
        };
        tables.write_run(&head, change)?;
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
    tables.write_run(&head, RunChange::Reopen)?;
    Ok(Outcome::Committed(Vec::new()))
}
