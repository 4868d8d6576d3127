//! The row layer: what a store of your own implements, so that it need not apply batches itself.
//!
//! [`Store::commit`](super::Store::commit) has to make a [`Batch`](super::Batch) durable: commits,
//! starts, messages, events, queues, limits and so on, with all the rules about who may do what and
//! who is told. These rules exist once. [`apply`] carries them out over nine traits of small reads
//! and writes of rows, one trait for each feature; a store implements the traits over its
//! transaction, and decides nothing. The stores of this crate work the same way.
//!
//! # Writing a store
//!
//! 1. Begin a transaction, and make a value of your own for the batch. It holds the transaction,
//!    [`Batch::now`](super::Batch::now), and an empty list of notices.
//! 2. Implement [`RunTables`], [`InboxTables`], [`EventTables`], [`ChildTables`], [`DeferredTables`],
//!    [`LimitTables`], [`QueueTables`], [`ScheduleTables`] and [`StreamTables`] for it. The sum of
//!    them is [`Tables`].
//! 3. In [`Store::commit`](super::Store::commit), call [`apply`], and commit the transaction. If
//!    either fails, roll the transaction back and give the error.
//! 4. Implement the reads of [`Store`](super::Store) over the same rows.
//! 5. Run the crate `everstep-conformance` on it: `run_all`, and `run_reopened` if its data outlives the
//!    process. [`MemoryStore`](super::MemoryStore) is a store that uses nothing but what is public: a
//!    test of that crate compiles its source from outside.
//!
//! # What holds for every method
//!
//! - **Atomic.** All calls of one [`apply`] belong to one transaction. Either all rows that were
//!   written become durable, or none does. When a method returns an error, [`apply`] stops at once and
//!   returns it, and the store must roll back.
//! - **Isolated.** Between the first call and the commit, no other transaction changes a row that was read or
//!   written. A store with one writer at a time has nothing to do for that. A store with several
//!   writers locks: the row of a run when [`head`](RunTables::head) reads it, and what the docs of a
//!   method name as locked. [`RunTables::prepare`] shows the whole batch beforehand, so that locks can
//!   be taken in one order.
//! - **In order.** A read shows what earlier calls of the same [`apply`] wrote. A store may delay and
//!   combine writes as long as that holds.
//! - **Rows that are missing.** A change or a removal of a row that does not exist changes nothing, and
//!   is no error. Methods that make a row say so.
//! - **Lists** come in ascending order of what the method names, keys compared as bytes.
//! - A method whose name ends in `_if_..` is a conditional write, so that a store can make it one
//!   statement.
//!
//! # Order of the calls
//!
//! [`apply`] calls [`hold_fence`](RunTables::hold_fence) if the batch has a fence, then
//! [`prepare`](RunTables::prepare), then everything else in two passes: first the commits of the batch
//! and what bodies emit, then all other writes and the effects of the commits, in the order of the
//! batch.
//!
//! # Stability
//!
//! Until version 1.0, a minor version may add required methods to these traits, fields to these
//! structs and variants to these enums: whatever a new feature has to store. None of them is
//! `non_exhaustive`, on purpose: a store that does not know of a new row must not compile rather than
//! lose it. The changelog names every such change.

mod children;
mod deferreds;
mod events;
mod inbox;
mod limits;
mod queues;
mod runs;
mod schedules;
mod streams;

pub use self::{
    children::{ChildRow, ChildTables},
    deferreds::{DeferredId, DeferredTables, SettledRow},
    events::{EventName, EventTables, EventWaiter, StoredEvent},
    inbox::{InboxPart, InboxTables},
    limits::{HOLDERS, LimitTables, Place},
    queues::{ItemHead, ItemNews, ItemWait, QueueTables, ReadyItem, WaitsOf},
    runs::{Head, Keyed, Labels, NextGeneration, Recoveries, RunChange, RunTables, Tombstone},
    schedules::ScheduleTables,
    streams::{PAGE_BYTES_MAX, StreamTables, fits_page},
};
pub use super::{
    apply::apply,
    rules::overview::{Durations, duration_ms},
};
use crate::{commit::ItemId, run_id::RunNo};

/// All rows that a batch can reach: the sum of the traits of this module.
pub trait Tables:
    ChildTables + DeferredTables + EventTables + QueueTables + ScheduleTables + StreamTables
{
}

impl<T> Tables for T where
    T: ChildTables + DeferredTables + EventTables + QueueTables + ScheduleTables + StreamTables
{
}

/// An operation of a run that waits for something, or holds it. The order is by run, then
/// generation, then key.
///
/// Under a limit, an item of a queue can hold a place, too. Its run is then [`HOLDERS`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Waiter {
    /// The number of the run.
    pub run: RunNo,
    /// The generation of the run that the operation belongs to.
    pub generation: u32,
    /// The key of the operation in the history of the run.
    pub key: Vec<u8>,
}

impl Waiter {
    /// The least of all waiters of a run.
    pub fn first_of(run: RunNo) -> Waiter {
        Waiter { run, generation: 0, key: Vec::new() }
    }

    /// The item of a queue that holds a place as this, if its run is [`HOLDERS`].
    pub fn item(&self) -> Option<ItemId> {
        if self.run != HOLDERS {
            return None;
        }
        std::str::from_utf8(&self.key).ok()?.parse().ok()
    }
}

/// Whose rows are meant: those of one operation, or those of all operations of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Of<'a> {
    /// One operation.
    Operation(&'a Waiter),
    /// All operations of the run, of all its generations.
    Run(RunNo),
}

impl Of<'_> {
    /// The run.
    pub fn run(self) -> RunNo {
        match self {
            Of::Operation(waiter) => waiter.run,
            Of::Run(run) => run,
        }
    }

    /// Whether this operation is meant.
    pub fn includes(self, waiter: &Waiter) -> bool {
        match self {
            Of::Operation(meant) => meant == waiter,
            Of::Run(run) => waiter.run == run,
        }
    }
}
