//! The rows of deferreds, and of the operations that wait for them.

use super::{InboxTables, Of};
use crate::{run_id::RunNo, time::Timestamp, token::Tag};

/// Which deferred of which generation of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DeferredId {
    /// The run.
    pub run: RunNo,
    /// The generation.
    pub generation: u32,
    /// The tag of the deferred within the generation.
    pub tag: Tag,
}

/// The value of a deferred.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SettledRow {
    /// The answer for the operations that wait.
    pub body: Vec<u8>,
    /// The time at which the value came.
    pub at: Timestamp,
}

/// The rows of deferreds, and of the operations that wait for them. They are read and written under
/// the lock of their run.
pub trait DeferredTables: InboxTables {
    /// The value of a deferred.
    fn settled(&mut self, of: &DeferredId) -> Result<Option<SettledRow>, Self::Error>;

    /// Inserts the value of a deferred that has none.
    fn put_settled(&mut self, of: &DeferredId, row: &SettledRow) -> Result<(), Self::Error>;

    /// Removes the values of the generations of a run before this one.
    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> Result<(), Self::Error>;

    /// Notes that the operation with this key waits for a deferred of its generation.
    fn add_deferred_wait(&mut self, of: &DeferredId, key: &[u8]) -> Result<(), Self::Error>;

    /// Removes the waits for a deferred, and gives the keys of the operations, in order.
    fn take_deferred_waits(&mut self, of: &DeferredId) -> Result<Vec<Vec<u8>>, Self::Error>;

    /// Removes the waits of an operation, or of all operations of a run.
    fn remove_deferred_waits(&mut self, of: Of<'_>) -> Result<(), Self::Error>;
}
