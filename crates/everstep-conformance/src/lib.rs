//! The contract of [`everstep::store`] as a suite of checks that every store must pass.
//!
//! Each check stands for a sentence of the documentation of [`everstep::store`] or of the types in
//! it, and gets a fresh store. A store of your own passes when [`run_all`] returns, and when
//! [`compare`] finds that it answers as the store in memory does:
//!
//! ```
//! use std::sync::Arc;
//!
//! use everstep::store::MemoryStore;
//!
//! everstep_conformance::run_all(|| Arc::new(MemoryStore::new()));
//! everstep_conformance::compare(&MemoryStore::new(), &MemoryStore::new(), 1);
//! ```
//!
//! A store whose data outlives it passes [`run_reopened`], too, which closes it and opens it again, and one
//! whose database can be made to fail passes [`run_failing`].
//!
//! A store of your own is least work over [`everstep::store::rows`]: it implements reads and writes of rows, and
//! the library applies batches over them. The test `own_store` of this crate is an example.
//!
//! Where several processes share a store, [`OwnerAndClient`] puts two of them behind one.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, mpsc},
    thread,
    time::Duration,
};

use everstep::{
    ItemId, RunId, RunNo, ShardId, Timestamp,
    store::*,
    testing::internal::{self, RunIds},
};
use uuid::Uuid;

type Check<T = World> = fn(&T);

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as fn(&_))),*] };
}

// The fixtures of the checks, and the comparison of stores.
mod comparison;
mod owner_and_client;
mod random;
mod readings;
mod side_by_side;
mod world;

// The checks, a file for each noun.
mod children;
mod clocks;
mod commits;
mod control;
mod deferreds;
mod deletes;
mod due;
mod durable;
mod events;
mod history;
mod import;
mod inbox;
mod leases;
mod limits;
mod listing;
mod numbers;
mod operators;
mod overview;
mod pools;
mod queues;
mod races;
mod rehome;
mod reopening;
mod requests;
mod schedules;
mod starts;
mod streams;
mod tally;
mod traces;
mod transactions;
mod wakes;

#[cfg(test)]
mod differential;
#[cfg(test)]
mod drawn;
#[cfg(test)]
mod ours;

pub use durable::{FaultyPlace, Place, run_failing, run_reopened};
pub use owner_and_client::OwnerAndClient;
pub use side_by_side::{Change, compare_changes};

use comparison::*;
use random::*;
use readings::*;
use side_by_side::Names;
use world::*;

/// The checks of all files.
const CHECKS: &[&[(&str, Check)]] = &[
    commits::CHECKS,
    starts::CHECKS,
    history::CHECKS,
    numbers::CHECKS,
    leases::CHECKS,
    pools::CHECKS,
    rehome::CHECKS,
    inbox::CHECKS,
    requests::CHECKS,
    control::CHECKS,
    reopening::CHECKS,
    deletes::CHECKS,
    due::CHECKS,
    clocks::CHECKS,
    listing::CHECKS,
    overview::CHECKS,
    tally::CHECKS,
    children::CHECKS,
    events::CHECKS,
    deferreds::CHECKS,
    limits::CHECKS,
    queues::CHECKS,
    queues::limited::CHECKS,
    schedules::CHECKS,
    streams::CHECKS,
    transactions::CHECKS,
    import::CHECKS,
    operators::CHECKS,
    traces::CHECKS,
    wakes::CHECKS,
    races::CHECKS,
];

/// Runs every check on a fresh, empty store from `make`, several at a time.
///
/// # Panics
///
/// With the names of the checks that fail, and what was wrong.
pub fn run_all(make: impl Fn() -> Arc<dyn Store> + Sync) {
    run_checks(CHECKS.iter().copied().flatten(), |check| {
        let store = make();
        store.migrate().expect("migrate");
        check(&World::new(store));
    });
}

/// How many checks are made at the same time.
const CHECKS_AT_ONCE: usize = 6;

/// Makes all of these checks, and panics with those that have failed.
fn run_checks<'a, C: Copy + 'a>(
    checks: impl IntoIterator<Item = &'a (&'static str, C), IntoIter: Send>,
    make: impl Fn(C) + Sync,
) {
    let checks = Mutex::new(checks.into_iter());
    let failures = Mutex::new(Vec::new());
    let locked = "no check panics while it holds this";
    thread::scope(|scope| {
        // They wait for their store most of the time.
        for _ in 0..CHECKS_AT_ONCE {
            scope.spawn(|| {
                while let Some((name, check)) = {
                    let mut checks = checks.lock().expect(locked);
                    checks.next()
                } {
                    if let Err(panic) = catch_unwind(AssertUnwindSafe(|| make(*check))) {
                        let text = panic.downcast_ref::<String>().map(String::as_str);
                        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
                        let text = text.unwrap_or("it panicked");
                        let failure = format!("store conformance, `{name}`: {text}");
                        failures.lock().expect(locked).push(failure);
                    }
                }
            });
        }
    });
    let failures = failures.into_inner().expect(locked);
    assert!(failures.is_empty(), "{}", failures.join("\n"));
}

/// Gives both stores the same random batches, and compares every answer and, after each batch,
/// everything that can be read.
///
/// # Panics
///
/// With the seed and the number of the batch at which the two differ.
pub fn compare(model: &dyn Store, store: &dyn Store, seed: u64) {
    let mut comparison = Comparison::begin(model, store, seed);
    for _ in 0..BATCHES {
        comparison.step(store);
    }
}
