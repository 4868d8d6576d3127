//! What several rules do to the same rows: find a run, answer an operation, mark what a run has
//! elsewhere, cancel a run on behalf of another.

use super::{deliver, runs};
use crate::{
    commit::{Control, Controlled, InboxKind, InboxRow, NewRun, Notice, Put, Started, Target},
    run_id::RunNo,
    store::rows::{Head, InboxTables, Keyed, RunChange, RunTables, Waiter},
};

/// What a run has elsewhere that must be told or removed when its code is over: bits of
/// [`Head::links`]. A run without any ends without a further look.
pub(crate) mod links {
    /// Somebody waits for its end.
    pub(crate) const WATCHED: u32 = 1;
    /// It has started children.
    pub(crate) const CHILDREN: u32 = 1 << 1;
    /// It was started by another run.
    pub(crate) const CHILD: u32 = 1 << 7;
    /// It waits, or has waited, for the end of other runs.
    pub(crate) const WATCHES: u32 = 1 << 2;
    /// One of its deferreds has a value, or is waited for.
    pub(crate) const DEFERREDS: u32 = 1 << 4;
    /// It waits, or has waited, for events, or has been sent messages that may become some.
    pub(crate) const EVENTS: u32 = 1 << 3;
    /// It waits, or has waited, for an item of a queue.
    pub(crate) const QUEUES: u32 = 1 << 6;
    /// It has, or has had, places under limits.
    pub(crate) const LIMITS: u32 = 1 << 5;
}

/// The row of the run that is meant.
pub(crate) fn find<T: RunTables>(
    tables: &mut T,
    target: &Target,
) -> Result<Option<Head>, T::Error> {
    match target {
        // The number says less than the id: it may be another run's.
        Target::Id(id) => Ok(tables.head(id.no())?.filter(|head| head.id == *id)),
        Target::Key { workflow, key } => match tables.keyed(workflow, key)? {
            Some(Keyed::Run(run)) => tables.head(run),
            Some(Keyed::Deleted(_)) | None => Ok(None),
        },
    }
}

/// Writes the entry of an operation.
pub(crate) fn put_entry<T: RunTables>(
    tables: &mut T,
    of: &Waiter,
    value: Vec<u8>,
) -> Result<(), T::Error> {
    let key = of.key.clone();
    tables.write_entries(of.run, of.generation, &[], &[Put { key, value }])
}

/// Hands an operation what it waits for. `false` if its run has ended or is of another generation.
pub(crate) fn answer<T: InboxTables>(
    tables: &mut T,
    to: &Waiter,
    kind: InboxKind,
    name: &str,
    body: Vec<u8>,
) -> Result<bool, T::Error> {
    let Some(mut head) = tables.head(to.run)? else {
        return Ok(false);
    };
    if head.status.is_terminal() || head.generation != to.generation {
        return Ok(false);
    }
    let now = tables.now();
    let row = InboxRow {
        seq: deliver(&mut head, now),
        kind,
        name: name.to_owned(),
        body,
        wait: Some(to.key.clone()),
        request: None,
        sent_at: now,
        on_end: None,
    };
    tables.insert_inbox(to.run, &row)?;
    tables.write_run(&head, RunChange::Inbox)?;
    tables.notices().push(Notice::Inbox { run: head.id, row: Box::new(row) });
    Ok(true)
}

/// Marks what a run has elsewhere. `false` if there is no such run, or it has ended.
pub(crate) fn link<T: RunTables>(tables: &mut T, run: RunNo, bits: u32) -> Result<bool, T::Error> {
    let Some(mut head) = tables.head(run)? else {
        return Ok(false);
    };
    if head.status.is_terminal() {
        return Ok(false);
    }
    if head.links & bits != bits {
        head.links |= bits;
        tables.write_run(&head, RunChange::Links)?;
    }
    Ok(true)
}

/// Notes that a run was made on behalf of somebody else: it is claimed, or due.
pub(crate) fn notice_start<T: RunTables>(tables: &mut T, started: &Started, new: NewRun) {
    if started.claimed {
        tables.notices().push(Notice::Claimed(Box::new(new)));
    } else if let Some(at) = started.available_at {
        let run = started.id;
        tables.notices().push(Notice::Due { run, at });
    }
}

/// Cancels a run on behalf of another, if it is still live.
pub(crate) fn cancel<T: RunTables>(
    tables: &mut T,
    run: RunNo,
    rollback: bool,
) -> Result<(), T::Error> {
    let Some(head) = tables.head(run)? else {
        return Ok(());
    };
    let control = Control::Cancel { rollback };
    if let Controlled::Done { run } = runs::control(tables, &Target::Id(head.id), control)? {
        tables.notices().push(Notice::Control { run, control });
    }
    Ok(())
}
