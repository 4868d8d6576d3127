//! Copies of the file: one snapshot of a live file, and what makes a copy usable elsewhere.
//!
//! Pages are copied by SQLite's backup interface inside of one read transaction. Writers go on
//! meanwhile; only the write-ahead log cannot start over until the copy is made. `VACUUM INTO` would
//! give a smaller file, but has no progress to report, and renumbers rows of the user's own tables.

use std::{fs, path::Path};

use rusqlite::{Connection, ErrorCode, OpenFlags, backup};

use super::{SqliteOptions, file::File, schema};
use crate::store::StoreError;

/// How many pages are copied between two reports of progress.
const STEP_PAGES: i32 = 512;

/// Copies what is committed now to a new file; `progress` is told how many pages are copied, and how
/// many there are.
pub(crate) fn copy(
    file: &File,
    to: &Path,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), StoreError> {
    let target = File::new(to, SqliteOptions::default());
    create_like(file.path(), to)
        .map_err(|error| StoreError::Io { store: target.name(), source: Box::new(error) })?;
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let mut conn = target.connect(flags)?;
    file.read(|source| Ok(copy_pages(source, &mut conn, progress)))?.map_err(|error| {
        match error.sqlite_error_code() {
            Some(ErrorCode::DiskFull | ErrorCode::ReadOnly | ErrorCode::CannotOpen) => {
                target.error(error)
            }
            _ => file.error(error),
        }
    })
}

/// Makes a new, empty file for a copy of `from`. Nobody can read it who cannot read the original, at no
/// moment; its owner can write it.
pub(crate) fn create_like(from: &Path, to: &Path) -> std::io::Result<fs::File> {
    let mut options = fs::OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    let mode = {
        use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
        const OWNER: u32 = 0o600;
        options.mode(OWNER);
        fs::metadata(from)?.permissions().mode() & 0o777 | OWNER
    };
    let file = options.open(to)?;
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        // Here, since the mode of a file that is made is masked by the process.
        file.set_permissions(fs::Permissions::from_mode(mode))?;
    }
    #[cfg(not(unix))]
    let _ = from;
    Ok(file)
}

fn copy_pages(
    source: &Connection,
    target: &mut Connection,
    progress: &mut dyn FnMut(u64, u64),
) -> rusqlite::Result<()> {
    let copying = backup::Backup::new(source, target)?;
    loop {
        let step = copying.step(STEP_PAGES)?;
        let at = copying.progress();
        let (left, total) = (at.remaining.max(0), at.pagecount.max(0));
        progress(u64::from((total - left).unsigned_abs()), u64::from(total.unsigned_abs()));
        match step {
            backup::StepResult::Done => return Ok(()),
            backup::StepResult::More => {}
            // Nobody else knows the new file, and a reader needs no lock of the other.
            _ => std::thread::sleep(std::time::Duration::from_millis(1)),
        }
    }
}

/// Checks a copy that nobody uses, and removes the runners from it with the shards that they held:
/// none of them will ever work on the copy, and a runner whose lease lasts would be waited for.
/// Whether the copy has the format of this program.
///
/// # Errors
///
/// [`StoreError::Corrupt`] if SQLite finds a fault in the copy; [`StoreError::Foreign`],
/// [`StoreError::TooNew`] and [`StoreError::Moved`] if it cannot be used.
pub(crate) fn check(path: &Path, name: &str) -> Result<bool, StoreError> {
    let file = File::new(path, SqliteOptions::default()).called(name);
    let error = |error| file.error(error);
    let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = file.connect(flags)?;
    let format = schema::format_of(&conn, &file, schema::FORMATS)?;
    if format == 0 {
        // As is left by a copy that was broken off. An engine would begin anew with it.
        return Err(StoreError::Foreign { store: name.to_owned(), what: "it is empty".to_owned() });
    }
    let faults = faults(&conn).map_err(error)?;
    if !faults.is_empty() {
        return Err(StoreError::Corrupt {
            store: name.to_owned(),
            source: faults.join("; ").into(),
        });
    }
    let sql = "BEGIN IMMEDIATE; DELETE FROM everstep_shards; DELETE FROM everstep_runners; COMMIT";
    conn.execute_batch(sql).map_err(error)?;
    // The log goes with the last connection, and everything is in the file.
    conn.close().map_err(|(_, closing)| error(closing))?;
    Ok(format == schema::FORMATS.latest())
}

/// What SQLite finds wrong with the file.
fn faults(conn: &Connection) -> rusqlite::Result<Vec<String>> {
    let mut statement = conn.prepare("PRAGMA integrity_check(20)")?;
    let said = statement.query_map([], |row| row.get::<_, String>(0))?;
    let faults = said.filter(|line| line.as_deref() != Ok("ok"));
    faults.collect()
}
