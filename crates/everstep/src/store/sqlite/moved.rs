//! The mark of a file whose runs were moved elsewhere: see [`crate::store::StoreError::Moved`].
//!
//! It is a row of a table that only a move makes, so it needs no format of its own. Triggers on all
//! tables of ours refuse whoever had the file open before, and say where it went in these words.

use rusqlite::{Connection, OptionalExtension};
use uuid::Uuid;

use super::file::File;
use crate::store::StoreError;

/// What the triggers say, before the name of the place.
pub(crate) const MOVED: &str = "everstep: moved to ";

/// Refuses a file whose runs are elsewhere.
pub(crate) fn require_in_charge(conn: &Connection, file: &File) -> Result<(), StoreError> {
    match moved(conn).map_err(|error| file.error(error))? {
        None => Ok(()),
        Some((_, to)) => Err(StoreError::Moved { store: file.name(), to }),
    }
}

/// Which attempt has moved the file, and where to.
pub(crate) fn moved(conn: &Connection) -> rusqlite::Result<Option<(Uuid, String)>> {
    if !has_marks(conn)? {
        return Ok(None);
    }
    let sql = "SELECT id, target FROM everstep_move WHERE moved_at IS NOT NULL";
    conn.query_row(sql, [], |row| Ok((Uuid::from_bytes(row.get(0)?), row.get(1)?))).optional()
}

/// Whether anybody has tried to move the file.
pub(crate) fn has_marks(conn: &Connection) -> rusqlite::Result<bool> {
    let sql = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'everstep_move'";
    conn.prepare_cached(sql)?.exists([])
}
