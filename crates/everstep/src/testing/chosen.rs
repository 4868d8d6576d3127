//! Which store a test is made on: in memory, or what [`STORE`] says.
//!
//! `cargo xtask test` makes the tests of every feature three times, once on each store. A test of ours
//! takes its store from here unless it is about one store alone.

use std::sync::Arc;
#[cfg(feature = "sqlite")]
use std::{
    path::PathBuf,
    sync::{Mutex, PoisonError, Weak},
};

use super::ran_on;
use crate::store::{MemoryStore, Store};

/// The variable that names a store: `memory`, `sqlite` or `postgres`.
const STORE: &str = "EVERSTEP_TEST_STORE";

/// The variable that names the database to use.
#[cfg(feature = "postgres")]
const DATABASE_URL: &str = "EVERSTEP_TEST_DATABASE_URL";

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Chosen {
    Memory,
    #[cfg(feature = "sqlite")]
    Sqlite,
    /// In the database of this URL.
    #[cfg(feature = "postgres")]
    Postgres(String),
}

impl Chosen {
    /// # Panics
    ///
    /// If the store is not known, or not built in, or no database is named for it: a test that cannot
    /// be made on its store fails.
    pub(super) fn from_env() -> Chosen {
        match std::env::var(STORE).as_deref() {
            Err(_) | Ok("" | "memory") => Chosen::Memory,
            #[cfg(feature = "sqlite")]
            Ok("sqlite") => Chosen::Sqlite,
            #[cfg(feature = "postgres")]
            Ok("postgres") => match std::env::var(DATABASE_URL) {
                Ok(url) if !url.is_empty() => Chosen::Postgres(url),
                _ => {
                    panic!("{STORE} is `postgres`, and {DATABASE_URL} does not say which database")
                }
            },
            Ok(other) => {
                panic!("{STORE} is `{other}`: no store of this name, or its feature is off")
            }
        }
    }
}

/// An empty store for a test of ours: in memory, unless the variable [`STORE`] names another.
///
/// # Panics
///
/// If that store cannot be had.
#[doc(hidden)]
pub fn store() -> Arc<dyn Store> {
    match Chosen::from_env() {
        Chosen::Memory => {
            ran_on("memory");
            Arc::new(MemoryStore::new())
        }
        #[cfg(feature = "sqlite")]
        Chosen::Sqlite => {
            ran_on("SQLite");
            on_file()
        }
        #[cfg(feature = "postgres")]
        Chosen::Postgres(url) => {
            ran_on("PostgreSQL");
            match crate::store::PostgresStore::lent_with_own_secret(&url) {
                Ok(store) => Arc::new(store),
                Err(error) => panic!("no schema for a test: {error:?}"),
            }
        }
    }
}

/// The files of stores, until these are gone. The last ones are left to whoever empties the directory
/// for temporary files.
#[cfg(feature = "sqlite")]
static FILES: Mutex<Vec<(Weak<dyn Store>, PathBuf)>> = Mutex::new(Vec::new());

#[cfg(feature = "sqlite")]
fn on_file() -> Arc<dyn Store> {
    use crate::store::SqliteStore;

    let name = format!("everstep-test-{:016x}", crate::seam::random());
    let directory = std::env::temp_dir().join(name);
    std::fs::create_dir_all(&directory).expect("a directory for temporary files");
    let store = SqliteStore::create_unsynced(&directory.join("app.db"));
    let store: Arc<dyn Store> = Arc::new(store.expect("the file of a test can be made"));
    // As in memory, a client may come before the first engine.
    store.migrate().expect("the file of a test can be migrated");
    let mut files = FILES.lock().unwrap_or_else(PoisonError::into_inner);
    files.retain(|(store, directory)| {
        let is_used = store.strong_count() > 0;
        if !is_used {
            _ = std::fs::remove_dir_all(directory);
        }
        is_used
    });
    files.push((Arc::downgrade(&store), directory));
    store
}
