//! What is true of SQLite files in particular; the contract itself is in the conformance suite.

use super::{testing::Directory, *};
use crate::testing::store_conformance;

fn create(path: &Path) -> SqliteStore {
    let options = SqliteOptions {
        create: true,
        ..SqliteOptions::default()
    };
    let store = SqliteStore::open_with(path, options).expect("open");
    store.migrate().expect("migrate");
    store
}

#[test]
fn sqlite_store_keeps_the_contract() {
    let directory = Directory::new();
    let files = AtomicU64::new(0);
    store_conformance::run_all(|| {
        let no = files.fetch_add(1, Ordering::Relaxed);
        Arc::new(create(&directory.path(&format!("{no}.db"))))
    });
}
