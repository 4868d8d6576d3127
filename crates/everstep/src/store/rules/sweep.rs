//! The sweep: what deleted runs have left in the tables is removed, a limited number of rows at a time.

use crate::run_id::RunNo;

/// The tables that hold something of a run under its number, with the columns that name one row.
/// What a run leaves in them is swept; `runs`, `keys` and `tags` are cleared by the delete itself.
pub(crate) const LEFT_BY_RUNS: &[(&str, &str)] = &[
    ("everstep_deferreds", "run, generation, tag"),
    ("everstep_deferred_waits", "run, generation, tag, key"),
    ("everstep_history", "run, generation, key"),
    ("everstep_inbox", "run, seq"),
    ("everstep_dedupes", "run, key"),
    ("everstep_requests", "id"),
    ("everstep_state", "run, key"),
    ("everstep_dead_letters", "no"),
    ("everstep_streams", "run, stream, pos"),
    ("everstep_event_cursors", "run, name, matching"),
    ("everstep_limit_places", "run, generation, operation"),
];

/// The rows that deletes leave, within one transaction.
pub(crate) trait SweptTables {
    type Error;

    /// Deletes tombstones that are over, at most so many; how many.
    fn delete_tombstones(&mut self, limit: usize) -> Result<usize, Self::Error>;

    /// A deleted run of which something is still stored, that nobody else sweeps.
    fn next_grave(&mut self) -> Result<Option<RunNo>, Self::Error>;

    /// Executes a delete whose parameters are a run and a number of rows; how many it has deleted.
    fn delete_left(&mut self, sql: String, run: RunNo, limit: usize) -> Result<usize, Self::Error>;

    fn delete_grave(&mut self, run: RunNo) -> Result<(), Self::Error>;
}

/// Deletes about `limit` rows of what deletes have left. Whether there is more.
pub(crate) fn sweep<T: SweptTables>(tables: &mut T, limit: usize) -> Result<bool, T::Error> {
    let mut left = limit.max(1);
    left -= tables.delete_tombstones(left)?.min(left);
    while left > 0 {
        let Some(run) = tables.next_grave()? else {
            return Ok(false);
        };
        left -= sweep_run(tables, run, left)?.min(left);
    }
    Ok(true)
}

/// How many rows it has deleted, the grave itself included.
fn sweep_run<T: SweptTables>(tables: &mut T, run: RunNo, limit: usize) -> Result<usize, T::Error> {
    let mut deleted = 0;
    for (table, row) in LEFT_BY_RUNS {
        let sql = format!(
            "DELETE FROM {table} WHERE ({row}) IN \
             (SELECT {row} FROM {table} WHERE run = ?1 LIMIT ?2)"
        );
        deleted += tables.delete_left(sql, run, limit - deleted)?;
        if deleted >= limit {
            return Ok(deleted);
        }
    }
    tables.delete_grave(run)?;
    Ok(deleted + 1)
}
