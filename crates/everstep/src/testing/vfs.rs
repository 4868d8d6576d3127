//! A layer under SQLite that knows what a power cut would leave, and that can fail.
//!
//! SQLite asks the operating system for everything through a VFS. [`FaultVfs`] is one that hands
//! all calls on to the default one and keeps, for each database, WAL and journal file, what has
//! been made durable by a sync and what has only been written since. From that it makes the files
//! that would be found after a power cut, without one.
//!
//! Always true:
//! - A file is durable up to its last sync, and so is its name if it was created.
//! - The names in a directory are durable when SQLite has it synced: with a deletion, if it asks
//!   for that, and with the first sync of each WAL or journal that it opens, as its VFS for Unix
//!   does.
//! - The real files are never synced: what a sync promises is kept here, so no test waits for a
//!   disk.
//! - Temporary files and the shared memory of the WAL are passed through and never survive.

mod disk;
mod functions;

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::atomic::{AtomicU64, Ordering},
};

use disk::Planned;
use functions::Shared;

/// A VFS that knows what a power cut would leave, and that fails when told to.
///
/// Open databases with its [`name`](FaultVfs::name):
/// `Connection::open_with_flags_and_vfs(path, flags, vfs.name())`, or a URI with `?vfs=`. Clones
/// are the same VFS. It stays registered, and what it remembers stays in memory, until the process
/// ends.
#[derive(Clone, Debug)]
pub struct FaultVfs {
    name: String,
    shared: &'static Shared,
}

/// What survives a power cut of what was written and not synced.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum PowerCut {
    /// Nothing.
    DropUnsynced,
    /// Some sectors of some writes, whatever their order was, chosen by this seed.
    Torn(u64),
}

/// How an operation fails.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The disk reports an error: `SQLITE_IOERR_WRITE` or `SQLITE_IOERR_FSYNC`.
    Io,
    /// The disk is full: `SQLITE_FULL`.
    Full,
}

/// The files of a database.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FileKind {
    /// The database itself.
    Database,
    /// The write-ahead log, `-wal`.
    Wal,
    /// The rollback journal, `-journal`.
    Journal,
}

/// What was done to the files of one kind.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FileCounts {
    /// Writes that were made.
    pub writes: u64,
    /// Bytes in them.
    pub bytes_written: u64,
    /// Syncs that were made, of any kind.
    pub syncs: u64,
    /// Those with `SQLITE_SYNC_FULL`: on macOS, down to the platter.
    pub full_syncs: u64,
    /// Those with `SQLITE_SYNC_DATAONLY`.
    pub data_only_syncs: u64,
}

impl FaultVfs {
    /// Registers a new VFS over the default one, under a name that no other has.
    ///
    /// # Panics
    ///
    /// If SQLite has no default VFS or does not take another one.
    pub fn register() -> FaultVfs {
        static REGISTERED: AtomicU64 = AtomicU64::new(0);
        let name = format!("everstep-fault-{}", REGISTERED.fetch_add(1, Ordering::Relaxed));
        let shared = functions::register(&name);
        FaultVfs { name, shared }
    }

    /// The name under which SQLite knows it.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Writes to `to`, and beside it, the files of `database` that would be found after a power cut
    /// at this instant, or at the one that [`cut_power_after`](FaultVfs::cut_power_after) chose.
    ///
    /// The database itself goes on undisturbed.
    ///
    /// # Errors
    ///
    /// If the files cannot be written.
    pub fn power_cut(&self, database: &Path, to: &Path, how: PowerCut) -> io::Result<()> {
        let database = full_path(database);
        remove_if_there(&with_suffix(to, "-shm"))?;
        let state = self.shared.lock();
        for (i, suffix) in ["", "-wal", "-journal"].into_iter().enumerate() {
            let file = state.files.get(&with_suffix(&database, suffix));
            let found = file.and_then(|file| file.after(how, i as u64));
            let target = with_suffix(to, suffix);
            match found {
                Some(content) => fs::write(target, content)?,
                None => remove_if_there(&target)?,
            }
        }
        Ok(())
    }

    /// From now on, after `operations` more writes, syncs, truncations and deletions, nothing
    /// survives that happens later, as if the power were cut there. The program notices nothing.
    pub fn cut_power_after(&self, operations: u64) {
        self.shared.lock().cut_in = Some(operations);
    }

    /// Whether the instant of [`cut_power_after`](FaultVfs::cut_power_after) has passed: whether an
    /// operation was made that does not count any more.
    pub fn is_cut(&self) -> bool {
        self.shared.lock().cut
    }

    /// Ends the effect of [`cut_power_after`](FaultVfs::cut_power_after), for another test with the
    /// same VFS. What happened since the cut stays unknown: open another database.
    pub fn restore_power(&self) {
        let mut state = self.shared.lock();
        (state.cut, state.cut_in) = (false, None);
    }

    /// Makes the `nth` write from now, from 1, fail. Nothing of it is written.
    pub fn fail_write(&self, nth: u64, fault: Fault) {
        self.shared.lock().write_fault = Some(Planned { left: nth, fault, goes_on: false });
    }

    /// Makes every write from the `nth` on fail, until [`heal`](FaultVfs::heal).
    pub fn fail_writes_from(&self, nth: u64, fault: Fault) {
        self.shared.lock().write_fault = Some(Planned { left: nth, fault, goes_on: true });
    }

    /// Makes the `nth` sync from now, from 1, fail. What was written stays unsynced; a later sync
    /// may make it durable after all.
    pub fn fail_sync(&self, nth: u64, fault: Fault) {
        self.shared.lock().sync_fault = Some(Planned { left: nth, fault, goes_on: false });
    }

    /// Makes every sync from the `nth` on fail, until [`heal`](FaultVfs::heal).
    pub fn fail_syncs_from(&self, nth: u64, fault: Fault) {
        self.shared.lock().sync_fault = Some(Planned { left: nth, fault, goes_on: true });
    }

    /// Lets the disk have room for so many bytes in all files of this VFS together: a write that
    /// would make a file longer than that fails with `SQLITE_FULL`.
    pub fn limit_disk(&self, bytes: u64) {
        self.shared.lock().room = Some(bytes);
    }

    /// Takes back all planned failures, and the limit of the disk.
    pub fn heal(&self) {
        let mut state = self.shared.lock();
        (state.write_fault, state.sync_fault, state.room) = (None, None, None);
    }

    /// What was done to the files of this kind since the VFS was registered.
    pub fn counts(&self, kind: FileKind) -> FileCounts {
        *self.shared.lock().counts(kind)
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// The path as SQLite gives it to a VFS: absolute, with links in it resolved.
fn full_path(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

fn remove_if_there(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use rusqlite::{Connection, OpenFlags, ffi};

    use super::*;

    /// A directory that is removed at the end of its test.
    struct Scratch(PathBuf);

    impl Scratch {
        fn new(test: &str) -> Scratch {
            let name = format!("everstep-vfs-{test}-{}", std::process::id());
            let path = std::env::temp_dir().join(name);
            fs::create_dir_all(&path).expect("a directory for the test");
            Scratch(path)
        }

        fn file(&self, name: &str) -> PathBuf {
            self.0.join(name)
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    fn open(vfs: &FaultVfs, path: &Path, journal: &str, synchronous: &str) -> Connection {
        let db = Connection::open_with_flags_and_vfs(path, OpenFlags::default(), vfs.name())
            .expect("the database opens");
        let mode: String = db
            .query_row(&format!("PRAGMA journal_mode = {journal}"), [], |row| row.get(0))
            .expect("the journal mode is set");
        assert_eq!(mode, journal);
        db.execute_batch(&format!(
            "PRAGMA synchronous = {synchronous}; PRAGMA wal_autocheckpoint = 0;
             CREATE TABLE IF NOT EXISTS t (n INTEGER PRIMARY KEY, data BLOB);"
        ))
        .expect("the table is there");
        db
    }

    fn insert(db: &Connection, n: i64) -> rusqlite::Result<usize> {
        db.execute("INSERT INTO t VALUES (?1, randomblob(900))", [n])
    }

    /// The rows that are found in the file, which must be sound and hold 0, 1, 2, .. without gaps.
    fn rows_in(path: &Path) -> i64 {
        let db = Connection::open(path).expect("the copy opens");
        // It may be rolled back or recovered on the way; no need to wait for the disk.
        db.execute_batch("PRAGMA synchronous = OFF").expect("a setting");
        let sound: String = db
            .query_row("PRAGMA integrity_check", [], |row| row.get(0))
            .expect("it can be checked");
        assert_eq!(sound, "ok");
        let tables: i64 = db
            .query_row("SELECT count(*) FROM sqlite_schema", [], |row| row.get(0))
            .expect("the schema can be read");
        if tables == 0 {
            return 0;
        }
        let (rows, last): (i64, Option<i64>) = db
            .query_row("SELECT count(*), max(n) FROM t", [], |row| Ok((row.get(0)?, row.get(1)?)))
            .expect("the table can be read");
        assert_eq!(last.map_or(0, |last| last + 1), rows, "a row is missing in the middle");
        rows
    }

    #[test]
    fn a_full_commit_survives_the_cut_and_a_commit_without_sync_does_not() {
        let scratch = Scratch::new("full");
        for (journal, synchronous, expected) in
            [("wal", "FULL", 3), ("wal", "OFF", 0), ("wal", "NORMAL", 0), ("delete", "EXTRA", 3)]
        {
            let vfs = FaultVfs::register();
            let path = scratch.file(&format!("{journal}-{synchronous}.db"));
            let db = open(&vfs, &path, journal, synchronous);
            (0..3).for_each(|n| assert_eq!(insert(&db, n), Ok(1)));
            let copy = scratch.file("copy.db");
            vfs.power_cut(&path, &copy, PowerCut::DropUnsynced).expect("the copy is written");
            assert_eq!(rows_in(&copy), expected, "{journal} {synchronous}");
        }
    }

    #[test]
    fn a_commit_in_a_wal_is_one_sync() {
        let scratch = Scratch::new("count");
        let vfs = FaultVfs::register();
        let db = open(&vfs, &scratch.file("a.db"), "wal", "FULL");
        insert(&db, 0).expect("the first commit");
        let (wal, main) = (vfs.counts(FileKind::Wal), vfs.counts(FileKind::Database));
        for n in 1..=20 {
            insert(&db, n).expect("a commit");
            assert_eq!(vfs.counts(FileKind::Wal).syncs, wal.syncs + n as u64);
        }
        assert!(vfs.counts(FileKind::Wal).bytes_written > wal.bytes_written + 20 * 900);
        assert_eq!(vfs.counts(FileKind::Database), main);
        db.execute_batch("PRAGMA wal_checkpoint(TRUNCATE)").expect("a checkpoint");
        assert_eq!(vfs.counts(FileKind::Database).syncs, main.syncs + 1);
    }

    /// Runs commits and checkpoints with the power cut after `operations`; how many commits were
    /// acknowledged before the cut, or `None` if all were.
    fn run_into_cut(vfs: &FaultVfs, path: &Path, journal: &str, operations: u64) -> Option<i64> {
        let db = open(vfs, path, journal, "EXTRA");
        vfs.cut_power_after(operations);
        for n in 0..12 {
            insert(&db, n).expect("a commit");
            if vfs.is_cut() {
                return Some(n);
            }
            if n % 5 == 4 && journal == "wal" {
                db.execute_batch("PRAGMA wal_checkpoint(RESTART)").expect("a checkpoint");
                if vfs.is_cut() {
                    return Some(n + 1);
                }
            }
        }
        None
    }

    #[test]
    fn torn_writes_neither_corrupt_nor_undo_what_was_acknowledged() {
        let scratch = Scratch::new("torn");
        for journal in ["wal", "delete", "truncate", "persist"] {
            let mut cuts = 0;
            for operations in 0.. {
                let vfs = FaultVfs::register();
                let path = scratch.file(&format!("{journal}-{operations}.db"));
                let Some(acknowledged) = run_into_cut(&vfs, &path, journal, operations) else {
                    break;
                };
                cuts += 1;
                let copy = scratch.file("copy.db");
                let seeds = (0..3).map(|i| PowerCut::Torn(operations * 3 + i));
                for how in seeds.chain([PowerCut::DropUnsynced]) {
                    vfs.power_cut(&path, &copy, how).expect("the copy is written");
                    let rows = rows_in(&copy);
                    assert!(
                        rows == acknowledged || rows == acknowledged + 1,
                        "{journal}, cut after {operations}, {how:?}: {rows} of {acknowledged}"
                    );
                }
            }
            assert!(cuts > 30, "{journal}: only {cuts} cuts");
        }
    }

    #[test]
    fn without_syncs_torn_writes_do_corrupt() {
        // This shows that the test above could fail.
        let scratch = Scratch::new("corrupt");
        let vfs = FaultVfs::register();
        let path = scratch.file("a.db");
        let db = open(&vfs, &path, "delete", "OFF");
        (0..40).for_each(|n| assert_eq!(insert(&db, n), Ok(1)));
        let copy = scratch.file("copy.db");
        let damaged = (0..20).any(|seed| {
            vfs.power_cut(&path, &copy, PowerCut::Torn(seed)).expect("the copy is written");
            std::panic::catch_unwind(|| rows_in(&copy)).is_err()
        });
        assert!(damaged);
    }

    #[test]
    fn planned_failures_reach_the_caller_and_pass() {
        let scratch = Scratch::new("faults");
        let vfs = FaultVfs::register();
        let path = scratch.file("a.db");
        let db = open(&vfs, &path, "wal", "FULL");
        insert(&db, 0).expect("a commit");
        let code = |result: rusqlite::Result<usize>| {
            let error = result.expect_err("it was told to fail");
            error.sqlite_error().expect("an error of SQLite").extended_code
        };
        vfs.fail_write(2, Fault::Io);
        assert_eq!(code(insert(&db, 1)), ffi::SQLITE_IOERR_WRITE);
        vfs.fail_sync(1, Fault::Io);
        assert_eq!(code(insert(&db, 1)), ffi::SQLITE_IOERR_FSYNC);
        vfs.fail_writes_from(1, Fault::Full);
        assert_eq!(code(insert(&db, 1)), ffi::SQLITE_FULL);
        assert_eq!(code(insert(&db, 1)), ffi::SQLITE_FULL);
        vfs.heal();
        insert(&db, 1).expect("the disk has room again");
        let copy = scratch.file("copy.db");
        vfs.power_cut(&path, &copy, PowerCut::DropUnsynced).expect("the copy is written");
        assert_eq!(rows_in(&copy), 2);
    }

    #[test]
    fn what_was_there_before_is_durable() {
        let scratch = Scratch::new("before");
        let path = scratch.file("a.db");
        let db = open(&FaultVfs::register(), &path, "wal", "FULL");
        insert(&db, 0).expect("a commit, left in the WAL");
        let vfs = FaultVfs::register();
        let later = open(&vfs, &path, "wal", "OFF");
        insert(&later, 1).expect("a commit without sync");
        let copy = scratch.file("copy.db");
        vfs.power_cut(&path, &copy, PowerCut::DropUnsynced).expect("the copy is written");
        assert_eq!(rows_in(&copy), 1);
    }

    #[test]
    fn a_second_connection_sees_the_first_and_shares_its_syncs() {
        let scratch = Scratch::new("two");
        let vfs = FaultVfs::register();
        let path = scratch.file("a.db");
        let (one, two) = (open(&vfs, &path, "wal", "OFF"), open(&vfs, &path, "wal", "FULL"));
        insert(&one, 0).expect("a commit without sync");
        insert(&two, 1).expect("a commit with sync");
        let copy = scratch.file("copy.db");
        vfs.power_cut(&path, &copy, PowerCut::DropUnsynced).expect("the copy is written");
        assert_eq!(rows_in(&copy), 2);
    }
}
