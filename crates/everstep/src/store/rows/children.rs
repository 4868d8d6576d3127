//! The rows of children, and of the operations that wait for the end of a run.

use super::{InboxTables, Of, Waiter};
use crate::{commit::Close, run_id::RunNo, store::Finished};

/// A run that was started by another, and has not ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ChildRow {
    /// The child.
    pub run: RunNo,
    /// The operation of the parent that started the child.
    pub parent: Waiter,
    /// Whether the child is cancelled when the parent is over.
    pub close: Close,
    /// Whether that operation waits for the end of the child.
    pub awaited: bool,
}

/// The rows of children, and of the operations that wait for the end of a run. The row of a child is
/// changed under the lock of the child.
pub trait ChildTables: InboxTables {
    /// How the run has ended; `None` if it has not, or does not exist. The run is locked.
    fn ended(&mut self, run: RunNo) -> Result<Option<Finished>, Self::Error>;

    /// Notes that an operation waits for the end of a run, which is locked.
    fn add_watcher(&mut self, run: RunNo, waiter: &Waiter) -> Result<(), Self::Error>;

    /// Removes the waits for the end of a run, and gives the operations, in order. Their runs are
    /// locked.
    fn take_watchers(&mut self, run: RunNo) -> Result<Vec<Waiter>, Self::Error>;

    /// Removes the waits of an operation, or of all operations of a run, for the end of other runs.
    fn remove_watches(&mut self, of: Of<'_>) -> Result<(), Self::Error>;

    /// Writes the row of a child, or makes it. The child is locked, and has not ended.
    fn put_child(&mut self, child: &ChildRow) -> Result<(), Self::Error>;

    /// The children that a run has started in any generation, by number.
    fn children(&mut self, parent: RunNo) -> Result<Vec<ChildRow>, Self::Error>;

    /// Removes the row of a child.
    fn remove_child(&mut self, run: RunNo) -> Result<(), Self::Error>;
}
