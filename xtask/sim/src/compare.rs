//! Shows that the simulated store does not lie: what a life has done to it is done to a SQLite file and to
//! a PostgreSQL schema, too, and all answers and tables are compared.
//!
//! It is done after the life, outside of the simulation: real stores have threads and sockets.

use std::{error::Error, sync::OnceLock};

use everstep::{
    store::{MemoryStore, Store},
    testing::internal,
};
use everstep_conformance::{Change, compare_changes};

use crate::oracle::{Promise, Violation};

/// After how many changes everything that can be read is compared.
const READ_EVERY: usize = 50;

/// How often a comparison is made that had to wait too long for a connection to PostgreSQL: on a loaded
/// machine that happens, and says nothing about answers. Every other error counts.
const TRIES: usize = 5;

/// What differs between the stores after these changes.
pub(crate) fn compare(changes: &[Change]) -> Option<Violation> {
    let mut differs = String::new();
    for _ in 0..TRIES {
        differs = match on_all(changes) {
            Ok(compared) => compared.err()?,
            Err(error) => format!("there are no stores to compare: {error:?}"),
        };
        if !differs.contains("no connection within") {
            break;
        }
    }
    Some(Violation { promise: Promise::StoresAgree, what: differs })
}

/// The database that stores are compared in: one for this process and all that it starts.
pub(crate) fn database_url() -> Result<&'static str, Box<dyn Error>> {
    static URL: OnceLock<String> = OnceLock::new();
    if let Some(url) = URL.get() {
        return Ok(url);
    }
    let url = everstep_pg::database_url()?;
    Ok(URL.get_or_init(|| url))
}

fn on_all(changes: &[Change]) -> Result<Result<(), String>, Box<dyn Error>> {
    let directory = tempfile::tempdir()?;
    let file = internal::unsynced_sqlite(&directory.path().join("life.db"))?;
    let database = internal::lent_postgres(database_url()?)?;
    let memory = MemoryStore::new();
    let stores: [(&str, &dyn Store); 3] =
        [("memory", &memory), ("SQLite", &file), ("PostgreSQL", &database)];
    Ok(compare_changes(&stores, changes, READ_EVERY))
}
