//! Whole engines on stores that the tests name themselves: one of them, each of them, or none; and
//! several processes on one store.
//!
//! A test that changes its whole process (a subscriber for all threads, a handler of signals) has a
//! program of its own beside this one.

#[cfg(unix)]
#[path = "../../../../examples/workspace_lock/flow.rs"]
mod flow;
#[cfg(unix)]
#[path = "../../../../examples/workspace_lock/lock.rs"]
mod lock;
#[path = "../../../../examples/agent_review/flow.rs"]
mod review;

#[path = "../pg_shop/mod.rs"]
mod pg_shop;
#[path = "../scenario/mod.rs"]
mod scenario;
#[path = "../stores/mod.rs"]
mod stores;

mod agent_review;
mod backup;
mod bad_input;
mod bodies_told;
mod client_only;
mod cluster;
mod cluster_faults;
mod database_away;
mod doctor;
mod foreign_await;
mod moving;
mod operate;
mod operators;
mod pg_transactions;
mod pg_transactions_outside;
mod placing;
mod preflight;
mod queue_processes;
mod races_of_runs;
mod settings;
mod shards_move;
mod smoke;
mod transactions;
mod transactions_outside;
mod two_processes;
mod unstarted;
mod worked_examples;
mod workspace_lock;
mod wrong_clocks;
