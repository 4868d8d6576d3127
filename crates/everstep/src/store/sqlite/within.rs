//! Writes within a transaction of the user's own, on a connection of the user's own.
//!
//! What is written is what a batch would write, by the same code; but nothing is remembered, since
//! nobody here learns whether the user commits. The writer does, by `PRAGMA data_version`, and
//! forgets what it knows of rows.

use std::path::Path;

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
    let format = tx.query_row("PRAGMA user_version", [], |row| row.get(0));
    schema::require_current(format.map_err(error)?, file)?;
    tx.execute_batch("SAVEPOINT everstep_within")
        .map_err(error)?;
    let applied = batch::apply(tx, &mut Memory::default(), batch);
    if applied.is_err() && !tx.is_autocommit() {
        tx.execute_batch("ROLLBACK TO everstep_within")
            .map_err(error)?;
    }
    if !tx.is_autocommit() {
        tx.execute_batch("RELEASE everstep_within").map_err(error)?;
    }
    applied.map(|(applied, _)| applied).map_err(error)
}

/// Refuses a connection to another file.
fn require_same(file: &File, tx: &rusqlite::Transaction<'_>) -> Result<(), StoreError> {
    let found = tx.path().unwrap_or_default();
    let same = |a: &Path, b: &Path| match (a.canonicalize(), b.canonicalize()) {
        (Ok(a), Ok(b)) => a == b,
        _ => a == b,
    };
    if same(Path::new(found), file.path()) {
        return Ok(());
    }
    Err(StoreError::AnotherFile {
        store: file.name(),
        found: match found {
            "" => "a database in memory".to_owned(),
            path => format!("`{path}`"),
        },
    })
}
