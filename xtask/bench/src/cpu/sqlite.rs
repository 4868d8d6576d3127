//! The counts of SQLite in this process: statements, bytes of the log and syncs.
//!
//! SQLite keeps none of these. Its statements are traced, and its VFS for this system is wrapped: the
//! wrapper hands every call on, and counts writes to the log and syncs of the log and of the database.

#![expect(unsafe_code, reason = "SQLite is counted through C functions that it calls")]

use std::{
    ffi::{c_char, c_int, c_uint, c_void},
    ptr,
    sync::{
        OnceLock,
        atomic::{AtomicU64, Ordering},
    },
};

use rusqlite::ffi::{self, sqlite3, sqlite3_file, sqlite3_int64, sqlite3_io_methods, sqlite3_vfs};

use crate::Problem;

/// What was counted since [`start`].
#[derive(Clone, Copy, Default)]
pub(super) struct Counts {
    statements: u64,
    wal_bytes: u64,
    syncs: u64,
}

static STATEMENTS: AtomicU64 = AtomicU64::new(0);
static WAL_BYTES: AtomicU64 = AtomicU64::new(0);
static SYNCS: AtomicU64 = AtomicU64::new(0);

/// The VFS of this system, and the functions of its files. A log is not locked, so its functions are not
/// those of a database.
struct Wrapped {
    vfs: *mut sqlite3_vfs,
    log: OnceLock<Functions>,
    database: OnceLock<Functions>,
}

/// The functions of files of one kind, as the first one that was opened has them.
struct Functions {
    real: &'static sqlite3_io_methods,
    counting: sqlite3_io_methods,
}

impl Functions {
    fn write(&self, file: *mut sqlite3_file, data: *const c_void, len: c_int, at: i64) -> c_int {
        let Some(real_write) = self.real.xWrite else { return ffi::SQLITE_IOERR };
        // SAFETY: SQLite called with these arguments, and they are handed on as they came.
        unsafe { real_write(file, data, len, at) }
    }

    fn sync(&self, file: *mut sqlite3_file, flags: c_int) -> c_int {
        let Some(real_sync) = self.real.xSync else { return ffi::SQLITE_IOERR };
        SYNCS.fetch_add(1, Ordering::Relaxed);
        // SAFETY: SQLite called with these arguments, and they are handed on as they came.
        unsafe { real_sync(file, flags) }
    }
}

// SAFETY: a VFS that is registered does not change and lives until the process ends.
unsafe impl Send for Wrapped {}
// SAFETY: as above.
unsafe impl Sync for Wrapped {}

static WRAPPED: OnceLock<Wrapped> = OnceLock::new();

impl Counts {
    pub(super) fn read() -> Counts {
        Counts {
            statements: STATEMENTS.load(Ordering::Relaxed),
            wal_bytes: WAL_BYTES.load(Ordering::Relaxed),
            syncs: SYNCS.load(Ordering::Relaxed),
        }
    }

    pub(super) fn figures_since(&self, before: &Counts, runs: u64, add: &mut dyn FnMut(&str, f64)) {
        add("statements", (self.statements - before.statements) as f64 / runs as f64);
        add("wal_bytes", (self.wal_bytes - before.wal_bytes) as f64 / runs as f64);
        add("syncs", (self.syncs - before.syncs) as f64 / runs as f64);
    }
}

/// Counts what every connection does that is opened from now on.
pub(super) fn start() -> Result<(), Problem> {
    if WRAPPED.get().is_some() {
        return Ok(());
    }
    // SAFETY: without a name SQLite gives its default VFS, which lives until the process ends.
    let vfs = unsafe {
        ffi::sqlite3_initialize();
        ffi::sqlite3_vfs_find(ptr::null())
    };
    if vfs.is_null() {
        return Err("SQLite has no default VFS".into());
    }
    if WRAPPED.set(Wrapped { vfs, log: OnceLock::new(), database: OnceLock::new() }).is_err() {
        return Ok(());
    }
    // SAFETY: `vfs` was just checked. The copy is complete, lives for ever, and differs in its name and
    // in how it opens files; `count_statements` has the type that an extension's entry point has.
    unsafe {
        let counting = sqlite3_vfs {
            zName: c"everstep-counting".as_ptr(),
            pNext: ptr::null_mut(),
            xOpen: Some(open),
            ..*vfs
        };
        let counting = Box::leak(Box::new(counting));
        let code = ffi::sqlite3_vfs_register(counting, 1);
        let traced = ffi::sqlite3_auto_extension(Some(count_statements));
        match (code, traced) {
            (ffi::SQLITE_OK, ffi::SQLITE_OK) => Ok(()),
            _ => Err("SQLite does not let itself be counted".into()),
        }
    }
}

/// SQLite calls this for each new connection.
unsafe extern "C" fn count_statements(
    db: *mut sqlite3,
    _: *mut *mut c_char,
    _: *const ffi::sqlite3_api_routines,
) -> c_int {
    // SAFETY: SQLite gives a connection that is open; the function that it gets lives for ever.
    unsafe {
        ffi::sqlite3_trace_v2(db, ffi::SQLITE_TRACE_STMT, Some(on_statement), ptr::null_mut())
    }
}

unsafe extern "C" fn on_statement(
    _: c_uint,
    _: *mut c_void,
    _: *mut c_void,
    _: *mut c_void,
) -> c_int {
    STATEMENTS.fetch_add(1, Ordering::Relaxed);
    0
}

/// Opens a file as the VFS of this system does, into the same memory, and exchanges its functions.
unsafe extern "C" fn open(
    _: *mut sqlite3_vfs,
    name: *const c_char,
    file: *mut sqlite3_file,
    flags: c_int,
    out_flags: *mut c_int,
) -> c_int {
    let Some(wrapped) = WRAPPED.get() else {
        return ffi::SQLITE_CANTOPEN;
    };
    // SAFETY: the arguments are handed on as they came, to the VFS that this one is a copy of, so that
    // the memory of the file is large enough. The functions of an open file live until the process ends.
    unsafe {
        let Some(real_open) = (*wrapped.vfs).xOpen else {
            return ffi::SQLITE_CANTOPEN;
        };
        let code = real_open(wrapped.vfs, name, file, flags, out_flags);
        if code != ffi::SQLITE_OK || (*file).pMethods.is_null() {
            return code;
        }
        let real: &'static sqlite3_io_methods = &*(*file).pMethods;
        let functions = if flags & ffi::SQLITE_OPEN_WAL != 0 {
            wrapped.log.get_or_init(|| Functions {
                real,
                counting: sqlite3_io_methods {
                    xWrite: Some(write_log),
                    xSync: Some(sync_log),
                    ..*real
                },
            })
        } else if flags & ffi::SQLITE_OPEN_MAIN_DB != 0 {
            wrapped.database.get_or_init(|| Functions {
                real,
                counting: sqlite3_io_methods { xSync: Some(sync_database), ..*real },
            })
        } else {
            return code;
        };
        // Whoever reads a count must not take a file for one that wrote nothing.
        assert!(ptr::eq(functions.real, real), "two files of one kind have different functions");
        (*file).pMethods = &raw const functions.counting;
        code
    }
}

fn log() -> Option<&'static Functions> {
    WRAPPED.get()?.log.get()
}

unsafe extern "C" fn write_log(
    file: *mut sqlite3_file,
    data: *const c_void,
    len: c_int,
    at: sqlite3_int64,
) -> c_int {
    WAL_BYTES.fetch_add(u64::try_from(len).unwrap_or(0), Ordering::Relaxed);
    log().map_or(ffi::SQLITE_IOERR, |log| log.write(file, data, len, at))
}

unsafe extern "C" fn sync_log(file: *mut sqlite3_file, flags: c_int) -> c_int {
    log().map_or(ffi::SQLITE_IOERR, |log| log.sync(file, flags))
}

unsafe extern "C" fn sync_database(file: *mut sqlite3_file, flags: c_int) -> c_int {
    let database = WRAPPED.get().and_then(|wrapped| wrapped.database.get());
    database.map_or(ffi::SQLITE_IOERR, |database| database.sync(file, flags))
}
