//! The file: where it is, and how connections to it are made.

use std::{
    path::{Path, PathBuf},
    sync::{Mutex, MutexGuard, OnceLock, PoisonError},
    thread,
    time::{Duration, Instant},
};

use rusqlite::{Connection, OpenFlags, config::DbConfig};

use super::{
    SqliteOptions,
    error::{is_busy, store_error},
    holder::holder,
    moved,
    place::{self, Displaced, Place},
};
use crate::store::StoreError;

/// More readers than this at one moment open connections that are closed after use.
const READERS_MAX: usize = 4;

/// A path with the options under which it is opened.
pub(crate) struct File {
    /// Absolute and without symbolic links, so that neither a change of the working directory nor
    /// a second name splits the data in two.
    path: PathBuf,
    /// How messages call it, if not by its path.
    called: Option<String>,
    /// The file that was first opened at the path.
    place: OnceLock<Place>,
    options: SqliteOptions,
    /// Whether the disk is not waited for.
    unsynced: bool,
    /// Connections that no reader is using. A reader takes one for one call, so that no snapshot
    /// stays open and holds up a checkpoint.
    readers: Mutex<Vec<Reader>>,
}

/// A connection for reading, and the version of the schema that was looked at.
struct Reader {
    conn: Connection,
    schema: i64,
}

impl File {
    pub(crate) fn new(path: &Path, options: SqliteOptions) -> File {
        File {
            path: place::resolve(path),
            called: None,
            place: OnceLock::new(),
            options,
            unsynced: false,
            readers: Mutex::new(Vec::new()),
        }
    }

    /// What is written survives the death of the process, and no power cut.
    #[cfg(feature = "testing")]
    pub(crate) fn unsynced(mut self) -> File {
        self.unsynced = true;
        self
    }

    /// Messages call the file so: a copy that is about to be renamed has the name of its original.
    pub(crate) fn called(mut self, name: &str) -> File {
        self.called = Some(name.to_owned());
        self
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    pub(crate) fn options(&self) -> &SqliteOptions {
        &self.options
    }

    /// Whether the disk is waited for before a commit is confirmed.
    pub(crate) fn is_synced(&self) -> bool {
        !self.unsynced
    }

    /// How many pages the write-ahead log may have before it is moved into the file.
    pub(crate) fn log_pages(&self) -> u64 {
        let bytes = std::fs::metadata(&self.path).map_or(0, |file| file.len());
        (bytes / PAGE_BYTES).clamp(*LOG_PAGES.start(), *LOG_PAGES.end())
    }

    /// How long the write-ahead log is.
    pub(crate) fn log_bytes(&self) -> u64 {
        std::fs::metadata(place::beside(&self.path, "-wal")).map_or(0, |log| log.len())
    }

    /// The error of a write lock that another process holds.
    fn busy(&self, error: rusqlite::Error) -> StoreError {
        let source = match holder(&self.path) {
            Some(holder) => format!("{error}: the lock is held by {holder}").into(),
            None => error.into(),
        };
        let store = self.name();
        StoreError::Busy { store, source }
    }

    /// How messages call it.
    pub(crate) fn name(&self) -> String {
        match &self.called {
            Some(name) => name.clone(),
            None => format!("SQLite file `{}`", self.path.display()),
        }
    }

    pub(crate) fn error(&self, error: rusqlite::Error) -> StoreError {
        store_error(&self.name(), error)
    }

    /// Notes which file is at the path: from now on no other is used.
    pub(crate) fn settle(&self) -> Result<(), StoreError> {
        let place = Place::of(&self.path).map_err(|displaced| self.displaced(displaced))?;
        self.place.get_or_init(|| place);
        Ok(())
    }

    /// Refuses to go on when the file that was opened is no longer at its path, or has a second
    /// name.
    pub(crate) fn require_in_place(&self) -> Result<(), StoreError> {
        let place = self.place.get();
        let found = place.map_or(Ok(()), |place| place.require(&self.path));
        found.map_err(|displaced| self.displaced(displaced))
    }

    pub(crate) fn displaced(&self, Displaced(what): Displaced) -> StoreError {
        let store = self.name();
        StoreError::Displaced { store, what }
    }

    pub(crate) fn connect(&self, flags: OpenFlags) -> Result<Connection, StoreError> {
        // Before SQLite sees the file: a second name would get a second log.
        Place::of(&self.path).map_err(|displaced| self.displaced(displaced))?;
        let conn = self.connect_raw(flags).map_err(|error| self.error(error))?;
        self.require_in_place()?;
        Ok(conn)
    }

    fn connect_raw(&self, flags: OpenFlags) -> rusqlite::Result<Connection> {
        let flags = flags.difference(OpenFlags::SQLITE_OPEN_URI);
        let conn = match &self.options.vfs {
            Some(vfs) => Connection::open_with_flags_and_vfs(&self.path, flags, vfs.as_str())?,
            None => Connection::open_with_flags(&self.path, flags)?,
        };
        conn.busy_timeout(self.options.busy_timeout)?;
        // More than there are, or a mix of features would parse them again and again.
        conn.set_prepared_statement_cache_capacity(256);
        // Without this, SQLite compiles a statement anew whenever a value is bound that its plan
        // might depend on: for all but lookups of single rows, that is every time.
        conn.set_db_config(DbConfig::SQLITE_DBCONFIG_ENABLE_QPSG, true)?;
        // The size of a page counts only for a file that has none yet.
        conn.execute_batch(
            "PRAGMA page_size = 8192; PRAGMA synchronous = FULL; PRAGMA temp_store = MEMORY;",
        )?;
        if self.unsynced {
            conn.execute_batch("PRAGMA synchronous = OFF;")?;
            return Ok(conn);
        }
        if cfg!(target_os = "macos") {
            // Without this, macOS says that data is on the disk when it is in the disk's cache.
            conn.execute_batch("PRAGMA fullfsync = ON; PRAGMA checkpoint_fullfsync = ON;")?;
        }
        Ok(conn)
    }

    /// The connection that writes.
    pub(crate) fn connect_writer(&self) -> Result<Connection, StoreError> {
        let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        if self.options.create {
            flags |= OpenFlags::SQLITE_OPEN_CREATE;
        }
        let mut conn = self.connect(flags)?;
        super::transact::install(&mut conn).map_err(|error| self.error(error))?;
        let tune = || -> rusqlite::Result<()> {
            limit_log(&conn, self.log_pages())?;
            conn.execute_batch("PRAGMA cache_size = -65536;")?;
            if let Some(pages) = self.options.max_page_count {
                set_max_page_count(&conn, pages)?;
            }
            Ok(())
        };
        tune().map_err(|error| self.error(error))?;
        // It waits for the lock in `retry_busy` instead.
        conn.busy_timeout(Duration::ZERO).map_err(|error| self.error(error))?;
        Ok(conn)
    }

    /// Runs `query` in one snapshot.
    pub(crate) fn read<T>(
        &self,
        query: impl FnOnce(&Connection) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.require_in_place()?;
        let pooled = lock(&self.readers).pop();
        let mut reader = match pooled {
            Some(reader) => reader,
            None => self.connect_reader()?,
        };
        let Reader { conn, schema } = &mut reader;
        let error = |error| self.error(error);
        conn.execute_batch("BEGIN").map_err(error)?;
        // A move to another store is a change of the schema: what is here is then only a copy.
        let version = schema_version(conn).map_err(error)?;
        if *schema != version {
            moved::require_in_charge(conn, self)?;
            *schema = version;
        }
        let snapshot = || -> rusqlite::Result<T> {
            let found = query(conn)?;
            conn.execute_batch("COMMIT")?;
            Ok(found)
        };
        match snapshot() {
            Ok(found) => {
                let mut readers = lock(&self.readers);
                if readers.len() < READERS_MAX {
                    readers.push(reader);
                }
                Ok(found)
            }
            // The connection is closed, and its snapshot with it.
            Err(error) => Err(self.error(error)),
        }
    }

    /// Moves the log into the file, as far as readers let it, without the writer's connection. What
    /// fails is done by a later checkpoint.
    pub(crate) fn checkpoint_beside(&self) {
        let pooled = lock(&self.readers).pop();
        let Ok(reader) = pooled.map_or_else(|| self.connect_reader(), Ok) else {
            return;
        };
        let sql = "PRAGMA wal_checkpoint(PASSIVE)";
        match reader.conn.query_row(sql, [], |_| Ok(())) {
            Ok(()) => lock(&self.readers).push(reader),
            Err(error) => tracing::debug!(%error, "the log cannot be moved into the file now"),
        }
    }

    fn connect_reader(&self) -> Result<Reader, StoreError> {
        let flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
        let conn = self.connect(flags)?;
        conn.execute_batch("PRAGMA query_only = ON").map_err(|error| self.error(error))?;
        // None that it could have: it is looked at before the first read.
        let schema = -1;
        Ok(Reader { conn, schema })
    }

    /// Tries again while somebody else holds the lock, for as long as the options say.
    ///
    /// SQLite's own waiting looks up to 100 ms apart, and then a writer that is at it all the time
    /// is rarely met between two of its batches.
    pub(crate) fn retry_busy<T>(
        &self,
        attempt: impl Fn() -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        let began = Instant::now();
        loop {
            match attempt() {
                Err(error) if is_busy(&error) => {
                    if began.elapsed() >= self.options.busy_timeout {
                        return Err(self.busy(error));
                    }
                    thread::sleep(Duration::from_micros(500));
                }
                other => return other.map_err(|error| self.error(error)),
            }
        }
    }
}

fn lock(readers: &Mutex<Vec<Reader>>) -> MutexGuard<'_, Vec<Reader>> {
    readers.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The size of a page.
pub(crate) const PAGE_BYTES: u64 = 8_192;

/// How many pages the write-ahead log has at least, and at most, when it is moved into the file: 8
/// and 64 MiB. Between them it may be as long as the file. A long log saves writes of pages that
/// change often, and takes much room beside a small file.
const LOG_PAGES: std::ops::RangeInclusive<u64> = 1_000..=8_000;

/// Sets the length at which SQLite moves the log into the file, and the one to which it cuts a log
/// that has grown beyond that, as it does during a backup.
pub(crate) fn limit_log(conn: &Connection, pages: u64) -> rusqlite::Result<()> {
    let bytes = 2 * pages * PAGE_BYTES;
    conn.execute_batch(&format!(
        "PRAGMA wal_autocheckpoint = {pages}; PRAGMA journal_size_limit = {bytes}"
    ))
}

/// The number that changes with every change of the tables.
fn schema_version(conn: &Connection) -> rusqlite::Result<i64> {
    let mut statement = conn.prepare_cached("PRAGMA schema_version")?;
    statement.query_row([], |row| row.get(0))
}

/// Sets the bound on the size of the file, in pages of 8 KiB.
pub(crate) fn set_max_page_count(conn: &Connection, pages: u32) -> rusqlite::Result<()> {
    let sql = format!("PRAGMA max_page_count = {pages}");
    conn.query_row(&sql, [], |_| Ok(()))
}
