//! The stores, for tests of what must be the same on all of them.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

use std::sync::Arc;

#[cfg(feature = "sqlite")]
use everstep::store::SqliteStore;
#[cfg(feature = "postgres")]
use everstep::store::{PostgresOptions, PostgresStore};
use everstep::{
    Engine, EngineBuilder,
    store::{MemoryStore, Store},
    testing,
};

/// A store of a test's own, empty at first. Engines are opened on it at once or one after another.
pub(crate) enum Place {
    Memory(Arc<MemoryStore>),
    #[cfg(feature = "sqlite")]
    File(tempfile::TempDir),
    /// The URL of a schema.
    #[cfg(feature = "postgres")]
    Database(String),
}

impl Place {
    /// One on each store that this was built with.
    pub(crate) fn all() -> Vec<Place> {
        vec![
            Place::Memory(Arc::new(MemoryStore::new())),
            #[cfg(feature = "sqlite")]
            Place::File(tempfile::tempdir().unwrap()),
            #[cfg(feature = "postgres")]
            Place::Database(everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"))),
        ]
    }

    /// An engine on it, which finds what those before have left.
    pub(crate) fn engine(&self) -> EngineBuilder {
        match self {
            Place::Memory(store) => Engine::on(store.clone()),
            #[cfg(feature = "sqlite")]
            Place::File(directory) => Engine::open(directory.path().join("app.db")),
            #[cfg(feature = "postgres")]
            Place::Database(url) => {
                let mut options = PostgresOptions::default();
                // Tests move a clock of their own.
                options.database_time = false;
                Engine::on(Arc::new(PostgresStore::open_with(url, options).unwrap()))
            }
        }
    }

    /// The store as another process opens it, after an engine has made it.
    pub(crate) fn open_store(&self) -> Arc<dyn Store> {
        match self {
            Place::Memory(store) => store.clone(),
            #[cfg(feature = "sqlite")]
            Place::File(directory) => {
                Arc::new(SqliteStore::open(directory.path().join("app.db")).unwrap())
            }
            #[cfg(feature = "postgres")]
            Place::Database(url) => {
                let mut options = PostgresOptions::default();
                options.database_time = false;
                Arc::new(PostgresStore::open_with(url, options).unwrap())
            }
        }
    }

    /// As the count of tests calls it.
    pub(crate) fn store(&self) -> &'static str {
        match self {
            Place::Memory(_) => "memory",
            #[cfg(feature = "sqlite")]
            Place::File(_) => "SQLite",
            #[cfg(feature = "postgres")]
            Place::Database(_) => "PostgreSQL",
        }
    }
}

/// Makes a test on every store, one after another, and notes that it was. It is called on the test's
/// own thread.
pub(crate) async fn on_each_store(test: impl AsyncFn(&Place)) {
    for place in Place::all() {
        // Shown only if the test fails.
        println!("on {}:", place.store());
        test(&place).await;
        testing::ran_on(place.store());
    }
}
