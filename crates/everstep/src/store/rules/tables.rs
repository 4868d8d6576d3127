//! What the rules ask of a store: rows, one at a time.
//!
//! Everything that several tables take part in (a wait and its answer, a run that ends) is decided
//! once, over this trait; a store only reads and writes rows. All calls of a batch see each other's
//! changes.

use super::{
    Head, Tombstone, deliver,
    runs::{self, RunTables},
};
use crate::{
    commit::{
        Control, Controlled, InboxKind, InboxRow, KeyRange, NewRun, Notice, Put, Started, Target,
    },
    run_id::RunNo,
    time::Timestamp,
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

/// An operation that waits.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Waiter {
    pub(crate) run: RunNo,
    pub(crate) generation: u32,
    /// The key of the operation.
    pub(crate) key: Vec<u8>,
}

impl Waiter {
    /// What comes before all others, in order.
    pub(crate) const FIRST: Waiter =
        Waiter { run: RunNo(i64::MIN), generation: 0, key: Vec::new() };
}

/// What is stored under the key of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Keyed {
    Run(RunNo),
    Deleted(Tombstone),
}

/// The rows of a store, within one batch.
pub(crate) trait Tables {
    type Error;

    /// The time of the batch.
    fn now(&self) -> Timestamp;

    /// The row of a run, as it is now.
    fn head(&mut self, run: RunNo) -> Result<Option<Head>, Self::Error>;

    /// What is stored under a key.
    fn keyed(&mut self, workflow: &str, key: &str) -> Result<Option<Keyed>, Self::Error>;

    /// The row of the run that is meant.
    fn find(&mut self, target: &Target) -> Result<Option<Head>, Self::Error> {
        match target {
            // The number says less than the id: it may be another run's.
            Target::Id(id) => Ok(self.head(id.no())?.filter(|head| head.id == *id)),
            Target::Key { workflow, key } => match self.keyed(workflow, key)? {
                Some(Keyed::Run(run)) => self.head(run),
                Some(Keyed::Deleted(_)) | None => Ok(None),
            },
        }
    }

    /// Inserts a row into the inbox of a run.
    fn insert_inbox(&mut self, run: RunNo, row: &InboxRow) -> Result<(), Self::Error>;

    /// Writes the `inbox_seq` and the `available_at` of a run as they are in `head`.
    fn write_inbox_seq(&mut self, head: &Head) -> Result<(), Self::Error>;

    /// Deletes ranges of entries, then writes entries.
    fn write_entries(
        &mut self,
        run: RunNo,
        generation: u32,
        deletes: &[KeyRange],
        puts: &[Put],
    ) -> Result<(), Self::Error>;

    /// Writes the entry of an operation.
    fn put_entry(&mut self, of: &Waiter, value: Vec<u8>) -> Result<(), Self::Error> {
        let key = of.key.clone();
        self.write_entries(of.run, of.generation, &[], &[Put { key, value }])
    }

    /// Removes what lies in the inbox for one operation, and gives it.
    fn take_answers(&mut self, run: RunNo, wait: &[u8]) -> Result<Vec<InboxRow>, Self::Error>;

    /// Removes what lies in the inbox for operations, and gives it.
    fn take_all_answers(&mut self, run: RunNo) -> Result<Vec<InboxRow>, Self::Error>;

    /// Writes the links of a run as they are in `head`.
    fn write_links(&mut self, head: &Head) -> Result<(), Self::Error>;

    /// Notes what has happened to somebody else.
    fn notice(&mut self, notice: Notice);
}

/// Hands an operation what it waits for. `false` if its run has ended or is of another generation.
pub(crate) fn answer<T: Tables>(
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
    tables.write_inbox_seq(&head)?;
    tables.notice(Notice::Inbox { run: head.id, row: Box::new(row) });
    Ok(true)
}

/// Marks what a run has elsewhere. `false` if there is no such run, or it has ended.
pub(crate) fn link<T: Tables>(tables: &mut T, run: RunNo, bits: u32) -> Result<bool, T::Error> {
    let Some(mut head) = tables.head(run)? else {
        return Ok(false);
    };
    if head.status.is_terminal() {
        return Ok(false);
    }
    if head.links & bits != bits {
        head.links |= bits;
        tables.write_links(&head)?;
    }
    Ok(true)
}

/// Notes that a run was made on behalf of somebody else: it is claimed, or due.
pub(crate) fn notice_start<T: Tables>(tables: &mut T, started: &Started, new: NewRun) {
    if started.claimed {
        tables.notice(Notice::Claimed(Box::new(new)));
    } else if let Some(at) = started.available_at {
        let run = started.id;
        tables.notice(Notice::Due { run, at });
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
        tables.notice(Notice::Control { run, control });
    }
    Ok(())
}
