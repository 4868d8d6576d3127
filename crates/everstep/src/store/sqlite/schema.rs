//! The format of the file: what it is, and how a file comes to have it.
//!
//! The format is the header's `user_version`, under our own `application_id`. A file whose format
//! is 0 has nothing in it yet.

use std::{path::Path, time::SystemTime};

use rusqlite::{Connection, OpenFlags, OptionalExtension};

use super::{file::File, moved};
use crate::{
    store::{Cause, StoreError},
    time::Timestamp,
};

/// The four bytes `Evrs` in the header of every file of ours.
const APPLICATION_ID: i32 = 0x4576_7273;

/// What leads from each format to the next: the first one makes format 1 of an empty file. Entries
/// are never changed once released, only added.
pub(crate) const MIGRATIONS: &[&str] = &[
    include_str!("format_1.sql"),
    include_str!("format_waits.sql"),
    include_str!("format_children.sql"),
    include_str!("format_streams.sql"),
    include_str!("format_schedules.sql"),
    include_str!("format_control.sql"),
    include_str!("format_queues.sql"),
    include_str!("format_events.sql"),
    include_str!("format_deferreds.sql"),
    include_str!("format_limits.sql"),
    include_str!("format_pools.sql"),
    include_str!("format_operators.sql"),
];

/// The format that this program reads and writes.
pub(crate) const FORMAT: u32 = MIGRATIONS.len() as u32;

/// Reads the format of an existing file without changing a byte of it.
///
/// # Errors
///
/// [`StoreError::Foreign`] if it is not a file of ours, [`StoreError::TooNew`] if it is of a later
/// version.
pub(crate) fn inspect(file: &File) -> Result<u32, StoreError> {
    // A connection that can write would, on closing, move another program's log into its file.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = file.connect(flags)?;
    format_of(&conn, file)
}

pub(crate) fn format_of(conn: &Connection, file: &File) -> Result<u32, StoreError> {
    let read = || -> rusqlite::Result<_> {
        let application_id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
        let format: i64 = conn.query_row("PRAGMA user_version", [], |row| row.get(0))?;
        let table: Option<String> = conn
            .query_row("SELECT name FROM sqlite_schema LIMIT 1", [], |row| {
                row.get(0)
            })
            .optional()?;
        Ok((application_id, format, table))
    };
    let (application_id, format, table) = read().map_err(|error| file.error(error))?;
    let store = file.name();
    match (application_id, table) {
        (APPLICATION_ID, _) => {
            let found = u32::try_from(format).unwrap_or(u32::MAX);
            let known = FORMAT;
            if found > known {
                Err(StoreError::TooNew {
                    store,
                    found,
                    known,
                })
            } else {
                moved::require_in_charge(conn, file)?;
                Ok(found)
            }
        }
        (0, None) => Ok(0),
        (0, Some(table)) => Err(StoreError::Foreign {
            store,
            what: format!("it has a table `{table}`"),
        }),
        (other, _) => {
            let what = format!("its application id is {other:#010x}");
            Err(StoreError::Foreign { store, what })
        }
    }
}

/// Refuses a file that has to be migrated first.
pub(crate) fn require_current(format: u32, file: &File) -> Result<(), StoreError> {
    let what: Cause = match format {
        FORMAT => return Ok(()),
        0 => "it is empty; start an engine on it, or migrate it, first".into(),
        old => format!("it has format {old} and must be migrated to {FORMAT} first").into(),
    };
    Err(StoreError::CannotOpen {
        store: file.name(),
        source: what,
    })
}

/// Brings the file to the format that `migrations` lead to.
pub(crate) fn migrate(
    conn: &mut Connection,
    file: &File,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let known = migrations.len() as u32;
    let found = format_of(conn, file)?;
    if found == known {
        return Ok(());
    }
    if found == 0 {
        // Kept in the file for good, so this is the only time.
        file.retry_busy(|| conn.pragma_update(None, "journal_mode", "WAL"))?;
    }
    file.retry_busy(|| conn.execute_batch("BEGIN EXCLUSIVE"))?;
    let migrated = migrate_in_transaction(conn, file, migrations);
    match migrated {
        Ok(()) => conn.execute_batch("COMMIT").map_err(|error| {
            drop(conn.execute_batch("ROLLBACK"));
            file.error(error)
        }),
        Err(error) => {
            // What matters is why; and a connection that cannot roll back is closed with its file.
            drop(conn.execute_batch("ROLLBACK"));
            Err(error)
        }
    }
}

fn migrate_in_transaction(
    conn: &Connection,
    file: &File,
    migrations: &[&str],
) -> Result<(), StoreError> {
    let known = migrations.len() as u32;
    // Another process may have done it while this one waited for the lock.
    let found = format_of(conn, file)?;
    let is_upgrade = found > 0 && found < known;
    if is_upgrade && let Some(runner) = live_runner(conn).map_err(|error| file.error(error))? {
        return Err(StoreError::InUse {
            store: file.name(),
            found,
            known,
            runner,
        });
    }
    let run = || -> rusqlite::Result<()> {
        for migration in migrations.iter().skip(found as usize) {
            conn.execute_batch(migration)?;
        }
        conn.pragma_update(None, "application_id", APPLICATION_ID)?;
        conn.pragma_update(None, "user_version", known)
    };
    run().map_err(|error| file.error(error))
}

/// A runner whose lease is not over. Every runner of an older format is of another version.
fn live_runner(conn: &Connection) -> rusqlite::Result<Option<String>> {
    // The machine's own time: there is no engine yet whose clock could be asked.
    let now = Timestamp::from(SystemTime::now()).as_millis();
    let sql = "SELECT name FROM runners WHERE lease_until > ?1 LIMIT 1";
    conn.query_row(sql, [now], |row| row.get(0)).optional()
}

/// Whether the file is there and has something in it.
pub(crate) fn exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}

#[cfg(test)]
mod tests {
    use rusqlite::params;

    use super::*;
    use crate::store::sqlite::{SqliteOptions, testing::Directory};

    fn migrate_to(file: &File, migrations: &[&str]) -> Result<(), StoreError> {
        let mut conn = file.connect(OpenFlags::default())?;
        migrate(&mut conn, file, migrations)
    }

    fn format(file: &File) -> i64 {
        let conn = file.connect(OpenFlags::default()).expect("connect");
        conn.query_row("PRAGMA user_version", [], |row| row.get(0))
            .expect("user_version")
    }

    #[test]
    fn a_live_runner_of_an_older_version_stops_a_migration() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        migrate_to(&file, MIGRATIONS).expect("this format");
        let conn = file.connect(OpenFlags::default()).expect("connect");
        let lease_until = Timestamp::from(SystemTime::now()).as_millis() + 60_000;
        let sql = "INSERT INTO runners (id, epoch, name, lease_until, workflows) \
                   VALUES (x'01', 1, 'old-host/7', ?1, '[]')";
        conn.execute(sql, params![lease_until]).expect("a runner");
        let later = [MIGRATIONS, &["CREATE TABLE later (a)"]].concat();
        let error = migrate_to(&file, &later).expect_err("in use");
        assert!(error.to_string().contains("old-host/7"), "{error}");
        assert_eq!(format(&file), i64::from(FORMAT));
        conn.execute("UPDATE runners SET lease_until = 0", [])
            .expect("its lease is over");
        migrate_to(&file, &later).expect("nobody uses it");
        assert_eq!(format(&file), i64::from(FORMAT) + 1);
    }

    #[test]
    fn a_migration_that_fails_leaves_the_file_as_it_was() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        migrate_to(&file, MIGRATIONS).expect("this format");
        let broken = [
            MIGRATIONS,
            &["CREATE TABLE later (a); CREATE TABLE runs (b)"],
        ]
        .concat();
        migrate_to(&file, &broken).expect_err("there is a table `runs` already");
        assert_eq!(format(&file), i64::from(FORMAT));
        migrate_to(&file, MIGRATIONS).expect("as before");
    }

    #[test]
    fn two_that_migrate_at_the_same_moment_make_one_file() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| migrate_to(&file, MIGRATIONS).expect("migrate"));
            }
        });
        assert_eq!(format(&file), i64::from(FORMAT));
    }
}
