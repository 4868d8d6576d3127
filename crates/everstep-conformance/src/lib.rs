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
//! Such a store is least work over [`everstep::store::rows`]: it implements reads and writes of rows, and
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

type Check = fn(&World);

macro_rules! checks {
    ($($name:ident),* $(,)?) => { &[$((stringify!($name), $name as Check)),*] };
}

// What the checks are made with, and what stores are compared by.
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

pub use owner_and_client::OwnerAndClient;
pub use side_by_side::{Change, compare_changes};

use random::*;
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
    let checks = Mutex::new(CHECKS.iter().copied().flatten());
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
                    if let Err(text) = run_one(&make, *check) {
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

/// How many checks are made at the same time.
const CHECKS_AT_ONCE: usize = 6;

fn run_one(make: &impl Fn() -> Arc<dyn Store>, check: Check) -> Result<(), String> {
    let checked = catch_unwind(AssertUnwindSafe(|| {
        let store = make();
        store.migrate().map_err(|error| error.to_string())?;
        check(&World::new(store));
        Ok(())
    }));
    checked.unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(text.unwrap_or("it panicked").to_owned())
    })
}

/// How many batches two stores are compared with.
const BATCHES: i64 = 150;

/// Gives both stores the same random batches, and compares every answer and, after each batch,
/// everything that can be read.
///
/// # Panics
///
/// With the seed and the number of the batch at which the two differ.
pub fn compare(model: &dyn Store, store: &dyn Store, seed: u64) {
    let mut random = Random::new(seed);
    let fences = [model, store].map(|store| {
        store.migrate().expect("migrate");
        let runner = NewRunner {
            pools: vec!["default".to_owned(), "gpu".to_owned()],
            ..NewRunner::new(Uuid::from_name("first"), "first", START, LEASE)
        };
        let fence = store.register_runner(&runner).expect("register_runner");
        let shards = ShardSet::of_pools([PoolNo(0), PoolNo(1)]);
        store.take_shards(fence, START, &shards, &[]).expect("take_shards");
        fence
    });
    assert_eq!(fences[0], fences[1], "seed {seed}");
    for no in 0..BATCHES {
        let batch = random.batch(model, fences[0], at(no));
        let wanted = model.commit(&batch).expect("commit");
        let got = store.commit(&batch).expect("commit");
        assert_eq!(got, wanted, "seed {seed}, batch {no}: {batch:#?}");
        random.open_numbers.after(model, &batch, &wanted.outcomes);
        if random.one_in(10) {
            for store in [model, store] {
                while store.sweep(at(no), 5).expect("sweep") {}
            }
        }
        let (wanted, got) = (random.read(model, at(no)), random.read(store, at(no)));
        assert!(
            got == wanted,
            "seed {seed}, batch {no}: {got:#?}\nis not {wanted:#?}\nafter {batch:#?}"
        );
    }
}
