//! The rows of limits, and of the places under them.

use super::{InboxTables, Of, Waiter};
use crate::{run_id::RunNo, store::LimitRow};

/// The run number of places that items of queues hold.
///
/// A [`Place`] belongs to a [`Waiter`], which has a run, a generation and a key. An item of a queue has no
/// run. For its place, the run is this number, the generation is 0, and the key is the number of the item
/// in decimal digits; [`Waiter::item`] reads it back. A store saves such a place as any other: no run has
/// a negative number.
pub const HOLDERS: RunNo = RunNo(-2);

/// A place under a limit: given, or waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The name of the limit.
    pub limit: String,
    /// The key of the limit.
    pub limit_key: String,
    /// The operation, or the item of a queue, that has the place or waits for it. It has one place
    /// at most.
    pub of: Waiter,
    /// The number of the place in the line of the limit's key.
    pub arrival: u64,
    /// Whether the place is given.
    pub given: bool,
}

/// The rows of limits, and of the places under them.
///
/// The rules read the row of a limit before they change it or a place under it. A store with several
/// writers locks the limit's name and key then.
pub trait LimitTables: InboxTables {
    /// The row of a limit by name and key, locked, also if there is no row.
    fn limit(&mut self, name: &str, key: &str) -> Result<Option<LimitRow>, Self::Error>;

    /// Writes the row of a limit, or makes it.
    fn put_limit(&mut self, row: &LimitRow) -> Result<(), Self::Error>;

    /// Removes the row of a limit.
    fn remove_limit(&mut self, row: &LimitRow) -> Result<(), Self::Error>;

    /// Removes up to `max` rows of limits with this name that are idle: `held` is 0, `waiting` is 0, and
    /// `turn_us` is not after `now_us`. Takes the rows with the least `turn_us` first, and those with the
    /// same `turn_us` by key.
    ///
    /// It is called when a key gets its first row, so that rows of keys that are no longer in use do not
    /// pile up. The rows are not locked beforehand: a store with several writers skips a row that another
    /// transaction has locked.
    fn remove_idle(&mut self, name: &str, now_us: i64, max: u32) -> Result<(), Self::Error>;

    /// The place of one operation, or all places of a run, by generation and key. For
    /// [`HOLDERS`] these are the places of the items of queues, and the queues are locked.
    fn places(&mut self, of: Of<'_>) -> Result<Vec<Place>, Self::Error>;

    /// The place with the least arrival that is waited for under a limit.
    fn first_in_line(&mut self, name: &str, key: &str) -> Result<Option<Place>, Self::Error>;

    /// Writes a place, or makes it.
    fn put_place(&mut self, place: &Place) -> Result<(), Self::Error>;

    /// Removes the place of an operation.
    fn remove_place(&mut self, of: &Waiter) -> Result<(), Self::Error>;
}
