//! Writes within a transaction of the user's own, on a connection of the user's own.
//!
//! What is written is what a batch would write, by the same code; but nothing is remembered, since
//! nobody here learns whether the user commits. The writer does, by `PRAGMA data_version`, and
//! forgets what it knows of rows.

use std::path::Path;

use rusqlite::ffi;

use super::{batch, file::File, schema, writer::Memory};
use crate::store::{Applied, Batch, StoreError};

/// Makes the writes of a batch in `tx`. After an error, none of them is made, and the user's
/// transaction is otherwise as it was.
pub(crate) fn commit(
    file: &File,
    tx: &rusqlite::Transaction<'_>,
    batch: &Batch,
) -> Result<Applied, StoreError> {
    let error = |error| file.error(error);
    require_same(file, tx)?;
    require_durable(file, tx)?;
    let format = schema::version(tx).map_err(error)?;
    schema::FORMATS.require_latest(format, &file.name())?;
    tx.execute_batch("SAVEPOINT everstep_within").map_err(error)?;
    let applied = batch::apply(tx, &mut Memory::default(), batch);
    if applied.is_err() && !tx.is_autocommit() {
        tx.execute_batch("ROLLBACK TO everstep_within").map_err(error)?;
    }
    if !tx.is_autocommit() {
        tx.execute_batch("RELEASE everstep_within").map_err(error)?;
    }
    applied.map(|(applied, _)| applied).map_err(error)
}

/// Refuses a connection whose commits the disk may lose: the caller is told that the run is started
/// when they commit.
fn require_durable(file: &File, tx: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    let read = || -> rusqlite::Result<(i64, String)> {
        let level = tx.query_row("PRAGMA main.synchronous", [], |row| row.get(0))?;
        let mode = tx.query_row("PRAGMA main.journal_mode", [], |row| row.get(0))?;
        Ok((level, mode))
    };
    let (level, mode) = read().map_err(|error| file.error(error))?;
    let pragma = match level {
        _ if mode != "wal" => format!("journal_mode = {mode}"),
        0 if file.is_synced() => "synchronous = OFF".to_owned(),
        1 if file.is_synced() => "synchronous = NORMAL".to_owned(),
        _ => return Ok(()),
    };
    Err(StoreError::NotDurable { store: file.name(), pragma })
}

/// Whether the file that a connection has open is no longer at its path.
fn has_moved(conn: &rusqlite::Connection) -> bool {
    let mut has_moved: std::ffi::c_int = 0;
    #[expect(
        unsafe_code,
        reason = "rusqlite does not show what became of the file of a connection"
    )]
    // SAFETY: the handle is that of an open connection, used on this thread alone; this control
    // writes one number, which outlives the call.
    let code = unsafe {
        let to = std::ptr::from_mut(&mut has_moved).cast();
        let op = ffi::SQLITE_FCNTL_HAS_MOVED;
        ffi::sqlite3_file_control(conn.handle(), c"main".as_ptr(), op, to)
    };
    code == ffi::SQLITE_OK && has_moved != 0
}

/// Refuses a connection to another file.
fn require_same(file: &File, tx: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    let found = tx.path().unwrap_or_default();
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    if same(Path::new(found), file.path()) {
        file.require_in_place()?;
        return match has_moved(tx) {
            false => Ok(()),
            true => Err(StoreError::AnotherFile {
                store: file.name(),
                found: format!("a file that is no longer at `{found}`"),
            }),
        };
    }
    Err(StoreError::AnotherFile {
        store: file.name(),
        found: match found {
            "" => "a database in memory".to_owned(),
            path => format!("`{path}`"),
        },
    })
}
