//! The rows of schedules.

use super::InboxTables;
use crate::store::ScheduleRow;

/// The rows of schedules.
pub trait ScheduleTables: InboxTables {
    /// The row of a schedule, locked, also if there is no row.
    fn schedule(&mut self, name: &str) -> Result<Option<ScheduleRow>, Self::Error>;

    /// Writes the row of a schedule, or makes it.
    fn write_schedule(&mut self, row: &ScheduleRow) -> Result<(), Self::Error>;

    /// Removes a schedule.
    fn delete_schedule(&mut self, name: &str) -> Result<(), Self::Error>;
}
