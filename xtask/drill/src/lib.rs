//! What the drill of deploys and its runners share; it is run as `cargo xtask deploy-drill`.
//!
//! Version 1 and version 2 of a workflow are two programs, each of which has the code of one version
//! only (`bin/runner_1.rs`, `bin/runner_2.rs`). Three of them run on one PostgreSQL; the drill
//! (`main.rs`) replaces one after another while a client starts runs. Each body says in a ledger
//! ([`ledger`]) which program it runs in and which version its run has.

pub mod ledger;
pub mod order;
pub mod runner;

/// Why something could not be done.
pub type Problem = Box<dyn std::error::Error + Send + Sync>;
