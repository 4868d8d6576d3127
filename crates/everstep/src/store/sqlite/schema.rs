//! The format of the file: what it is, and how a file comes to have it.
//!
//! Tables, indexes and views of ours begin with `everstep_`, and the format is in a table of ours
//! ([`Formats`]), so that an application can have its own tables in the same file and keep
//! `user_version` and `application_id` for its own migrations.

use std::{path::Path, time::SystemTime};

use rusqlite::{Connection, OpenFlags, OptionalExtension, params};

use super::{file::File, moved};
use crate::{
    store::{
        StoreError,
        format::{Formats, Found},
    },
    time::Timestamp,
};

/// What the names of our tables, indexes and views begin with.
pub(crate) const PREFIX: &str = "everstep_";

/// The formats of the SQLite store.
pub(crate) const FORMATS: Formats<'static> = Formats(&[include_str!("format_1.sql")]);

/// The `application_id` of files from before format 1, which had no table for their format.
const BEFORE_FORMAT_1: i32 = 0x4576_7273;

/// Reads the format of an existing file without changing a byte of it.
///
/// # Errors
///
/// Those of [`Formats::check`], and [`StoreError::Moved`] if its runs were moved elsewhere.
pub(crate) fn inspect(file: &File) -> Result<u32, StoreError> {
    // A connection that can write would, on closing, move another program's log into its file.
    let flags = OpenFlags::SQLITE_OPEN_READ_ONLY | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let conn = file.connect(flags)?;
    format_of(&conn, file, FORMATS)
}

/// The version of the tables in the file, 0 if there are none of ours.
pub(crate) fn format_of(
    conn: &Connection,
    file: &File,
    formats: Formats<'_>,
) -> Result<u32, StoreError> {
    let found = read(conn).map_err(|error| file.error(error))?;
    let version = formats.check(found, &file.name())?;
    if version > 0 {
        moved::require_in_charge(conn, file)?;
    }
    Ok(version)
}

fn read(conn: &Connection) -> rusqlite::Result<Option<Found>> {
    let table = "SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'everstep_format'";
    if conn.prepare(table)?.exists([])? {
        let sql = "SELECT version, fingerprint FROM everstep_format";
        return conn
            .query_row(sql, [], |row| {
                let (version, fingerprint) = (row.get(0)?, row.get(1)?);
                Ok(Found { version, fingerprint })
            })
            .optional();
    }
    let application_id: i32 = conn.query_row("PRAGMA application_id", [], |row| row.get(0))?;
    let is_older = application_id == BEFORE_FORMAT_1;
    Ok(is_older.then(|| Found { version: 1, fingerprint: "none".to_owned() }))
}

/// The version of a file that had the format of this program when it was opened.
pub(crate) fn version(conn: &Connection) -> rusqlite::Result<u32> {
    let sql = "SELECT version FROM everstep_format";
    conn.prepare_cached(sql)?.query_row([], |row| row.get(0))
}

/// Brings the file to the latest of these formats.
pub(crate) fn migrate(
    conn: &mut Connection,
    file: &File,
    formats: Formats<'_>,
) -> Result<(), StoreError> {
    let found = format_of(conn, file, formats)?;
    if found == formats.latest() {
        return Ok(());
    }
    if found == 0 {
        // Kept in the file for good, so this is the only time.
        file.retry_busy(|| conn.pragma_update(None, "journal_mode", "WAL"))?;
    }
    file.retry_busy(|| conn.execute_batch("BEGIN EXCLUSIVE"))?;
    let migrated = migrate_in_transaction(conn, file, formats);
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
    formats: Formats<'_>,
) -> Result<(), StoreError> {
    let known = formats.latest();
    // Another process may have done it while this one waited for the lock.
    let found = format_of(conn, file, formats)?;
    let is_upgrade = found > 0 && found < known;
    if is_upgrade && let Some(runner) = live_runner(conn).map_err(|error| file.error(error))? {
        return Err(StoreError::InUse { store: file.name(), found, known, runner });
    }
    let run = || -> rusqlite::Result<()> {
        for statements in formats.0.iter().skip(found as usize) {
            conn.execute_batch(statements)?;
        }
        conn.execute_batch(
            "CREATE TABLE IF NOT EXISTS everstep_format ( \
             version INTEGER NOT NULL, fingerprint TEXT NOT NULL); \
             DELETE FROM everstep_format",
        )?;
        let sql = "INSERT INTO everstep_format (version, fingerprint) VALUES (?1, ?2)";
        conn.execute(sql, params![known, formats.fingerprint(known)])?;
        Ok(())
    };
    run().map_err(|error| file.error(error))
}

/// A runner whose lease is not over. Every runner of an older format is of another version.
fn live_runner(conn: &Connection) -> rusqlite::Result<Option<String>> {
    // The machine's own time: there is no engine yet whose clock could be asked.
    let now = Timestamp::from(SystemTime::now()).as_millis();
    let sql = "SELECT name FROM everstep_runners WHERE lease_until > ?1 LIMIT 1";
    conn.query_row(sql, [now], |row| row.get(0)).optional()
}

/// Whether the file is there and has something in it.
pub(crate) fn exists(path: &Path) -> bool {
    std::fs::metadata(path).is_ok_and(|metadata| metadata.len() > 0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::sqlite::{SqliteOptions, testing::Directory};

    fn migrate_to(file: &File, formats: Formats<'_>) -> Result<(), StoreError> {
        let mut conn = file.connect(OpenFlags::default())?;
        migrate(&mut conn, file, formats)
    }

    fn format(file: &File, formats: Formats<'_>) -> u32 {
        let conn = file.connect(OpenFlags::default()).expect("connect");
        format_of(&conn, file, formats).expect("a format that is known")
    }

    /// Format 1 as it was frozen for this test, and a format 2 that no release has.
    const FROZEN: Formats<'static> =
        Formats(&[include_str!("../../../tests/fixtures/frozen_format_1.sql")]);
    const MADE_UP: Formats<'static> = Formats(&[
        FROZEN.0[0],
        "ALTER TABLE everstep_runs ADD COLUMN colour TEXT; \
         UPDATE everstep_runs SET colour = 'blue' WHERE key IS NOT NULL; \
         CREATE TABLE everstep_colours (name TEXT PRIMARY KEY) WITHOUT ROWID; \
         INSERT INTO everstep_colours SELECT DISTINCT colour FROM everstep_runs \
             WHERE colour IS NOT NULL;",
    ]);

    /// From the first release on, every later version opens the files of every released one. The
    /// machinery for that is tried on a file that never changes.
    #[test]
    fn a_frozen_file_of_format_1_is_migrated_to_a_made_up_format_2() {
        let directory = Directory::new();
        let path = directory.path("app.db");
        let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/frozen_1.sqlite");
        std::fs::copy(fixture, &path).expect("the fixture");
        let file = File::new(&path, SqliteOptions::default());
        assert_eq!(format(&file, FROZEN), 1);
        migrate_to(&file, MADE_UP).expect("format 2");
        assert_eq!(format(&file, MADE_UP), 2);
        let conn = file.connect(OpenFlags::default()).expect("connect");
        let read = |sql: &str| -> String { conn.query_row(sql, [], |row| row.get(0)).expect(sql) };
        assert_eq!(read("SELECT group_concat(name) FROM everstep_colours"), "blue");
        let runs = "SELECT group_concat(coalesce(key, '-') || ' ' || coalesce(colour, '-')) \
                    FROM (SELECT key, colour FROM everstep_runs ORDER BY no)";
        assert_eq!(read(runs), "order-1 blue,- -,- -");
        // A program that knows only format 1 refuses it from now on.
        let error = migrate_to(&file, FROZEN).expect_err("too new");
        assert!(matches!(error, StoreError::TooNew { .. }), "{error}");
    }

    /// Writes the file of the test above. Its schema is frozen with it: a change of format 1 before the
    /// first release changes neither.
    #[test]
    fn frozen_file_is_written_on_request() {
        if std::env::var_os("EVERSTEP_WRITE_FIXTURE").is_none() {
            return;
        }
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/frozen_1.sqlite");
        drop(std::fs::remove_file(&path));
        let file = File::new(&path, SqliteOptions::default());
        migrate_to(&file, FROZEN).expect("format 1");
        let conn = file.connect(OpenFlags::default()).expect("connect");
        for (no, key) in [(1, Some("order-1")), (2, None), (3, None)] {
            let sql = "INSERT INTO everstep_runs (no, id, workflow, version, key, pool, shard, \
                       status, generation, created_at, updated_at, attempts, recoveries, \
                       inbox_seq, input) VALUES (?1, zeroblob(16), 'checkout', 1, ?2, 'default', \
                       0, 5, 1, 0, 0, 1, 0, 0, x'00')";
            conn.execute(sql, params![no, key]).expect("a run");
        }
        let small = "PRAGMA journal_mode = DELETE; PRAGMA page_size = 1024; VACUUM; \
                     PRAGMA journal_mode = WAL";
        conn.execute_batch(small).expect("a small file");
    }

    #[test]
    fn a_live_runner_of_an_older_version_stops_a_migration() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        migrate_to(&file, FORMATS).expect("this format");
        let conn = file.connect(OpenFlags::default()).expect("connect");
        let lease_until = Timestamp::from(SystemTime::now()).as_millis() + 60_000;
        let sql = "INSERT INTO everstep_runners (id, epoch, name, lease_until, lease, workflows, pools, weight) \
                   VALUES (x'01', 1, 'old-host/7', ?1, 60000, '[]', '[]', 1)";
        conn.execute(sql, params![lease_until]).expect("a runner");
        let later = [FORMATS.0, &["CREATE TABLE later (a)"]].concat();
        let later = Formats(&later);
        let error = migrate_to(&file, later).expect_err("in use");
        assert!(error.to_string().contains("old-host/7"), "{error}");
        assert_eq!(format(&file, FORMATS), FORMATS.latest());
        conn.execute("UPDATE everstep_runners SET lease_until = 0", []).expect("its lease is over");
        migrate_to(&file, later).expect("nobody uses it");
        assert_eq!(format(&file, later), later.latest());
    }

    #[test]
    fn a_migration_that_fails_leaves_the_file_as_it_was() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        migrate_to(&file, FORMATS).expect("this format");
        let broken =
            [FORMATS.0, &["CREATE TABLE later (a); CREATE TABLE everstep_runs (b)"]].concat();
        migrate_to(&file, Formats(&broken)).expect_err("there is a table of that name already");
        assert_eq!(format(&file, FORMATS), FORMATS.latest());
        migrate_to(&file, FORMATS).expect("as before");
    }

    #[test]
    fn two_that_migrate_at_the_same_moment_make_one_file() {
        let directory = Directory::new();
        let file = File::new(&directory.path("app.db"), SqliteOptions::default());
        std::thread::scope(|scope| {
            for _ in 0..4 {
                scope.spawn(|| migrate_to(&file, FORMATS).expect("migrate"));
            }
        });
        assert_eq!(format(&file, FORMATS), FORMATS.latest());
    }
}
