//! Whole engines on the store that `testing::store` gives: in memory, unless `EVERSTEP_TEST_STORE` names
//! another. `cargo xtask test` runs all of them on every store.

#[path = "../scenario/mod.rs"]
mod scenario;

mod children;
mod codec;
mod controls;
mod crash_loop;
mod deferreds;
mod events;
mod given_up_waits;
mod hot_and_cold;
mod limits;
mod outside;
mod queues;
mod races;
mod schedules;
mod semantics;
mod streams;
mod threads;
mod transfer;
mod versions;
