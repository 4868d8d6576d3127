//! The embedded store: one SQLite file.
//!
//! On the path of a step this is where it becomes durable: the committer's batch is one
//! transaction of one connection, with one sync. [`batch`] holds the SQL that every step needs, [`writer`]
//! the connection and what it remembers, [`schema`] the format of the file. Statements that PostgreSQL has
//! too are in [`crate::store::sql`].
//!
//! Always true:
//! - The file is in WAL mode with `synchronous = FULL`: what was committed survives a power cut.
//! - Opening changes nothing. Only [`migrate`](Store::migrate) creates tables or changes them.
//! - Any number of processes may have the file open. They take turns by SQLite's own lock, and
//!   wake each other through sockets beside it.

use std::{
    path::Path,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::Duration,
};

use uuid::Uuid;

use self::{file::File, session::Session, writer::Writer};
use super::{
    sql::{self, store::shared_methods, sweep},
    *,
};

pub(crate) mod backup;
mod batch;
mod doctor;
mod due;
mod error;
mod file;
mod holder;
mod moved;
#[cfg(feature = "postgres")]
pub(crate) mod moving;
pub(crate) mod place;
mod queues;
mod runners;
mod schema;
mod session;
mod stats;
#[cfg(test)]
pub(super) mod testing;
#[cfg(test)]
mod tests;
mod transact;
#[cfg(unix)]
mod wake;
mod within;
mod writer;

/// How a file is opened.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct SqliteOptions {
    /// Whether a file that is not there is created, as an engine wants it; a client that has the
    /// wrong path should be told. Not set by default.
    pub create: bool,
    /// How long to wait for another process's write lock: 5 seconds by default.
    pub busy_timeout: Duration,
    /// The largest size of the file, in pages of 8 KiB; without a bound by default.
    pub max_page_count: Option<u32>,
    /// The name of the SQLite VFS to use instead of the default one.
    pub vfs: Option<String>,
}

impl Default for SqliteOptions {
    fn default() -> SqliteOptions {
        let busy_timeout = Duration::from_secs(5);
        SqliteOptions { create: false, busy_timeout, max_page_count: None, vfs: None }
    }
}

/// A store in one SQLite file.
pub struct SqliteStore {
    file: File,
    /// Held for one transaction, including its sync: the next batch gathers meanwhile.
    writer: Mutex<Writer>,
    /// Whether the file was seen to have the format of this program.
    is_current: AtomicBool,
    counters: Counters,
    #[cfg(unix)]
    wakes: wake::Wakes,
}

#[derive(Default)]
struct Counters {
    batches: AtomicU64,
    writes: AtomicU64,
    rows: AtomicU64,
    reads: AtomicU64,
}

impl SqliteStore {
    /// Opens the file at `path`, which must exist. It can be used at once if it has the format of
    /// this program, and after [`migrate`](Store::migrate) if it has an older one.
    ///
    /// # Errors
    ///
    /// [`StoreError::CannotOpen`] if there is no such file, [`StoreError::Foreign`] if it holds
    /// something else, [`StoreError::TooNew`] if a later version has written it,
    /// [`StoreError::Displaced`] if it has a second hard link.
    pub fn open(path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_with(path, SqliteOptions::default())
    }

    /// Opens the file at `path`, or makes it.
    ///
    /// # Errors
    ///
    /// As [`open`](SqliteStore::open), but a missing file is none.
    pub fn create(path: impl AsRef<Path>) -> Result<SqliteStore, StoreError> {
        let create = true;
        SqliteStore::open_with(path, SqliteOptions { create, ..SqliteOptions::default() })
    }

    /// Opens the file at `path` with these options.
    ///
    /// # Errors
    ///
    /// As [`open`](SqliteStore::open); with [`SqliteOptions::create`] a missing file is no error.
    pub fn open_with(
        path: impl AsRef<Path>,
        options: SqliteOptions,
    ) -> Result<SqliteStore, StoreError> {
        SqliteStore::open_file(File::new(path.as_ref(), options))
    }

    /// As [`create`](SqliteStore::create), for tests that make many files and cut no power.
    #[cfg(feature = "testing")]
    pub(crate) fn create_unsynced(path: &Path) -> Result<SqliteStore, StoreError> {
        let options = SqliteOptions { create: true, ..SqliteOptions::default() };
        SqliteStore::open_file(File::new(path, options).unsynced())
    }

    fn open_file(file: File) -> Result<SqliteStore, StoreError> {
        let orphaned = place::refuse_orphaned_log(file.path());
        orphaned.map_err(|displaced| file.displaced(displaced))?;
        let cannot_open = |why: &str| {
            let (store, source) = (file.name(), why.into());
            StoreError::CannotOpen { store, source }
        };
        if file.path().is_dir() {
            return Err(cannot_open("it is a directory"));
        }
        let format = if schema::exists(file.path()) {
            schema::inspect(&file).map_err(|error| explain(&file, error))?
        } else if file.options().create || file.path().exists() {
            0
        } else {
            return Err(cannot_open("there is no such file"));
        };
        let writer = file.connect_writer()?;
        file.settle()?;
        Ok(SqliteStore {
            writer: Mutex::new(Writer::new(writer)),
            file,
            is_current: AtomicBool::new(format == schema::FORMATS.latest()),
            counters: Counters::default(),
            #[cfg(unix)]
            wakes: wake::Wakes::new(),
        })
    }

    /// Sets the largest size of the file, in pages of 8 KiB.
    ///
    /// # Errors
    ///
    /// If the file cannot be read.
    pub fn set_max_page_count(&self, pages: u32) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let conn = writer.conn(&self.file)?;
        file::set_max_page_count(conn, pages).map_err(|error| self.file.error(error))
    }

    fn writer(&self) -> MutexGuard<'_, Writer> {
        // A panic in a transaction has left the writer without a memory, which is safe.
        self.writer.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn require_current(&self) -> Result<(), StoreError> {
        if self.is_current.load(Ordering::Relaxed) {
            return Ok(());
        }
        // Another process may have migrated it since it was opened.
        let format =
            if schema::exists(self.file.path()) { schema::inspect(&self.file)? } else { 0 };
        schema::FORMATS.require_latest(format, &self.file.name())?;
        self.is_current.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn read<T>(
        &self,
        query: impl FnOnce(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        self.counters.reads.fetch_add(1, Ordering::Relaxed);
        self.file.read(|conn| query(&Session::new(conn)))
    }

    /// Changes something that the writer remembers nothing of.
    fn write<T>(
        &self,
        change: impl FnOnce(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        self.writer().transaction(&self.file, |conn, _| change(&Session::new(conn)))
    }

    /// Changes something about runners or shards.
    fn change_runners<T>(
        &self,
        change: impl FnOnce(&Session<'_>) -> rusqlite::Result<T>,
    ) -> Result<T, StoreError> {
        self.require_current()?;
        #[cfg(unix)]
        self.wakes.forget_peers();
        self.writer().transaction(&self.file, |conn, memory| {
            memory.shards = None;
            change(&Session::new(conn))
        })
    }
}

/// SQLite says "cannot open" of a file that is there when it may not write the files beside it.
fn explain(file: &File, error: StoreError) -> StoreError {
    match error {
        StoreError::CannotOpen { store, source } if file.path().is_file() => {
            StoreError::ReadOnly { store, source }
        }
        other => other,
    }
}

impl fmt::Debug for SqliteStore {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SqliteStore").field("path", &self.file.path()).finish_non_exhaustive()
    }
}

impl Store for SqliteStore {
    shared_methods!();

    fn describe(&self) -> String {
        self.file.name()
    }

    fn is_local(&self) -> bool {
        true
    }

    fn migrate(&self) -> Result<(), StoreError> {
        let mut writer = self.writer();
        let conn = writer.conn(&self.file)?;
        schema::migrate(conn, &self.file, schema::FORMATS)?;
        self.is_current.store(true, Ordering::Relaxed);
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.require_current()?;
        let mut writer = self.writer();
        let (applied, rows) = loop {
            let settled = transact::settled(batch);
            let applied =
                writer.transaction(&self.file, |conn, memory| batch::apply(conn, memory, batch));
            // The body of a user's transaction has taken the batch down: it is made without it.
            if applied.is_err() && transact::settled(batch) > settled {
                continue;
            }
            break applied?;
        };
        drop(writer);
        self.counters.batches.fetch_add(1, Ordering::Relaxed);
        self.counters.writes.fetch_add(batch.writes.len() as u64, Ordering::Relaxed);
        self.counters.rows.fetch_add(rows, Ordering::Relaxed);
        Ok(applied)
    }

    fn commit_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        batch: &Batch,
    ) -> Result<Applied, StoreError> {
        self.require_current()?;
        within::commit(&self.file, tx, batch)
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> {
        // Seldom anything, and to look does not hold up the writer.
        if !self.read(|session| sweep::is_left(session, now, now))? {
            return Ok(false);
        }
        self.writer().transaction(&self.file, |conn, memory| {
            let sql = &Session::new(conn);
            let is_more = rules::sweep::sweep(&mut sweep::Left { sql, now }, limit)?;
            if !is_more {
                memory.swept = Some(writer::Swept::Clean);
            }
            Ok(is_more)
        })
    }

    fn copy_to(&self, to: &Path, progress: &mut dyn FnMut(u64, u64)) -> Result<bool, StoreError> {
        self.require_current()?;
        backup::copy(&self.file, to, progress)?;
        Ok(true)
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        #[cfg(unix)]
        let address = self.wakes.address_of(runner.id);
        #[cfg(not(unix))]
        let address = None::<String>;
        self.change_runners(|session| runners::register(session, runner, address.as_deref()))
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        self.require_current()?;
        let beaten = self.writer().heartbeat(&self.file, |conn, _| {
            runners::heartbeat(&Session::new(conn), fence, now, lease)
        });
        let (holds, checkpoint) = beaten?;
        if let Some(checkpoint) = checkpoint {
            // Most of the work is done while batches go on, so that they wait for the rest only.
            self.file.checkpoint_beside();
            self.writer().checkpoint(&self.file, checkpoint);
        }
        Ok(holds)
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.read(|session| sql::pools::list(session))
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        self.read(|session| sql::runners::list(session))
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Result<Option<ShardSet>, StoreError> {
        self.change_runners(|session| runners::take_shards(session, fence, now, wanted, gone))
    }

    #[cfg(unix)]
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let Ok(addresses) = self.read(runners::addresses) else {
            return false;
        };
        let address = addresses.iter().find(|(id, _)| *id == runner);
        address.is_some_and(|(_, address)| wake::is_deserted(self.file.path(), address))
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        self.change_runners(|session| sql::runners::release_shards(session, fence, shards))
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        self.change_runners(|session| sql::runners::deregister(session, fence))
    }

    #[cfg(unix)]
    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        self.wakes.send(me, runs, || self.read(runners::addresses).ok());
    }

    #[cfg(unix)]
    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        let found = wake::sockets_of(self.file.path());
        // Bound under the write lock, under which others remove what is deserted.
        let listener = self.change_runners(|session| {
            let listener = wake::Listener::bind(self.file.path(), me, wake);
            if let Some(address) = listener.as_ref().ok().and_then(wake::Listener::address) {
                runners::set_address(session, me, &address)?;
            }
            wake::remove_deserted(&found);
            Ok(listener)
        })?;
        let listener = listener.map_err(|source| StoreError::CannotOpen {
            store: self.file.name(),
            source: Box::new(source),
        })?;
        if let Some(address) = listener.address() {
            // A runner that registers later, or again, takes it along.
            self.wakes.set_address(me, address);
        }
        Ok(WakeGuard::new(listener))
    }

    /// Without sockets of this kind there are no hints, and runs are found by the slow poll.
    #[cfg(not(unix))]
    fn wake_others(&self, _me: Option<Uuid>, _runs: &[RunNo]) {}

    #[cfg(not(unix))]
    fn on_wake(&self, _me: Uuid, _wake: WakeFn) -> Result<WakeGuard, StoreError> {
        Ok(WakeGuard::new(()))
    }
}
