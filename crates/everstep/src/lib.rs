//! Durable execution for Rust.
//!
//! Write a long-running process as an ordinary `async fn`; it survives crashes, deploys and
//! week-long waits. There is no server: the engine is a library on an embedded SQLite file.
//!
//! ```
//! use everstep::prelude::*;
//!
//! #[workflow]
//! async fn greet(ctx: Ctx, name: String) -> Result<String> {
//!     let greeting = ctx.step("greet", async || Ok(format!("Hello, {name}!"))).await?;
//!     ctx.sleep("think", seconds(60)).await?;
//!     Ok(greeting)
//! }
//!
//! # #[tokio::main]
//! # async fn main() -> Result<(), Box<dyn std::error::Error>> {
//! # let clock = everstep::testing::VirtualClock::new();
//! let engine = Engine::in_memory().register(greet).clock(clock).start().await?;
//! let run = engine.client().start(greet, "Ada".to_owned()).key("greeting-1").await?;
//! assert_eq!(run.result().await?, "Hello, Ada!");
//! engine.shutdown().await;
//! # Ok(()) }
//! ```

// Code goes through the seam for time, randomness, waits and threads, except where a module says so.
#![cfg_attr(not(test), deny(clippy::disallowed_methods, clippy::disallowed_types))]

#[macro_use]
mod listed;

mod client;
mod codec;
mod commit;
mod ctx;
mod deferred;
mod engine;
mod event;
mod history;
mod queue;
mod registry;
mod run;
mod schedule;
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "a simulation sees the calls of a store, not what is under them"
)]
pub mod store;
mod workflow;

#[cfg(all(feature = "sqlite", feature = "postgres"))]
mod moving;

mod cancellation;
mod error;
mod hash;
mod limit;
mod location;
mod name;
mod panics;
mod pool;
mod random;
mod retention;
mod retry;
mod run_id;
#[cfg_attr(
    not(feature = "sabotage"),
    expect(unreachable_pub, reason = "it is exported with the feature alone")
)]
mod sabotage;
#[allow(clippy::disallowed_methods, clippy::disallowed_types, reason = "it is the one way to them")]
mod seam;
mod services;
mod settings;
pub mod telemetry;
#[cfg(feature = "testing")]
#[allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    reason = "tests wait for real threads"
)]
pub mod testing;
mod time;
mod token;

pub use cancellation::Cancellation;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub use client::InTransaction;
pub use client::{
    Audit, AuditEntry, AuditNew, AuditPage, Backfilled, Because, Bulk, BulkError, BulkReport,
    Cancel, Checked, Children, Client, ClientError, Cluster, Count, DeadLetterInfo, DeadLetterPage,
    DeadLetters, DeleteRun, Doctor, DoctorReport, EmittedFrom, EnqueueItem, Evicted, Finding,
    ForkRun, HistoryEntry, HistoryPage, ItemError, ItemHandle, ItemInfo, LimitInfo, List, Moved,
    ParseShortIdError, PoolInfo, PublishEvent, PublishedEvent, QueueInfo, ReadHistory, RepairError,
    Repaired, ReplayLetter, Replayed, ReplayedAll, Resolved, Resolver, RunError, RunHandle,
    RunInfo, RunPage, RunnerInfo, Schedule, ScheduleHandle, ScheduleInfo, SchedulePage, Schedules,
    SendMessage, Sent, Settle, Severity, ShortId, Start, StateWatch, StatsBucket, StreamInfo,
    StreamItem, StreamPage, StreamReader, Tally, TokenInfo, TokenSecret, Tokens, Triggered,
    UnreadMessage, WaitsFor, Why, Worker,
};
#[cfg(feature = "sqlite")]
pub use client::{BackedUp, Backup, BackupError, BackupProgress, Restore, restore};
pub use codec::Value;
pub use codec::hook::{Codec, CodecError, PayloadContext};
pub use codec::numbers::{NumberError, check_json_numbers};
pub use commit::ItemId;
#[cfg(feature = "sqlite")]
pub use commit::Tx;
pub use ctx::{
    Ctx,
    child::{Child, ChildError, ChildOutcome, Detached, RunEnding, RunFinished},
    composite::{Arm, Branch, Composite, branch},
    continue_as::ContinueAs,
    deferred::Gate,
    enqueue::{Enqueue, EnqueueDetached},
    event::EventWait,
    join::{BranchFailure, Join, JoinError},
    limit::RateLimit,
    listen::{Listen, ListenBatch, Message},
    map::Map,
    operation::Until,
    publish::Publish,
    race::{First2, First3, First4, First5, First6, First7, First8, Race, Won},
    removed::Removed,
    repeat::Repeat,
    rollback::Rollback,
    send::{Send, ToTarget},
    sleep::Sleep,
    step::{Outcome, Step, StepCall, StepOutcome},
};
pub use deferred::Deferred;
#[cfg(feature = "testing")]
#[doc(hidden)]
pub use engine::EngineTools;
pub use engine::{
    Engine, EngineBuilder, EngineCensus, Job, Misfit, Preflight, RecoveryReport, StartError,
    shutdown_signal,
};
pub use error::{Error, Failure, FailureKind, Result};
pub use event::{Event, IfFinished, Since};
#[cfg(feature = "macros")]
pub use everstep_macros::workflow;
pub use history::{AttemptError, EntryKind, EntryStatus};
pub use limit::Limit;
pub use location::{Location, ParseLocationError, Segment};
#[cfg(all(feature = "sqlite", feature = "postgres"))]
pub use moving::{Migrate, MigrateError, MigrateProgress, Migrated, migrate};
pub use name::NameError;
pub use pool::{PoolNo, PoolRow};
pub use queue::Queue;
pub use registry::{RegisterError, WorkflowFn};
pub use retention::Retention;
pub use retry::Retry;
pub use run_id::{ParseRunIdError, RunId, RunNo, SHARDS, ShardId};
/// The version of rusqlite that everstep uses: use it from here, so that the types of
/// [`Tx`] and of [`Client::start_in`] are yours too.
#[cfg(feature = "sqlite")]
pub use rusqlite;
#[cfg(feature = "sabotage")]
#[doc(hidden)]
pub use sabotage::Sabotage;
pub use schedule::{Overlap, ScheduleSpec};
pub use settings::{Settings, SettingsError};
pub use store::{
    Check, Close, Deliver, EventRow, Filter, InboxKind, ItemState, ParseRoleError, QueueStats,
    Role, RunStatus, StatusCounts, Target, WorkflowCount,
};
pub use telemetry::EngineCounters;
pub use time::{Clock, ParseTimestampError, SystemClock, Timestamp, days, hours, minutes, seconds};
pub use token::Token;
/// The version of tokio-postgres that everstep uses: use it from here, so that the types of
/// [`Ctx::pg_transaction`] and of [`Client::start_in`] are yours too.
#[cfg(feature = "postgres")]
pub use tokio_postgres;
pub use workflow::{OnFailure, Workflow, WorkflowOptions, WorkflowRef};

/// What most programs need: `use everstep::prelude::*;`
pub mod prelude {
    pub use std::ops::ControlFlow;

    #[cfg(feature = "macros")]
    pub use crate::workflow;
    pub use crate::{
        Client, Ctx, Engine, Error, Event, First2, First3, Job, Outcome, Queue, Result, Retry,
        RunHandle, Step, Timestamp, Workflow, branch, days, hours, minutes, seconds,
    };
}

/// `tokio::select!`, polled in the order in which its branches are written, so that a replay takes
/// the same branch.
#[macro_export]
macro_rules! select {
    (biased; $($branches:tt)*) => { $crate::__private::tokio::select! { biased; $($branches)* } };
    ($($branches:tt)*) => { $crate::__private::tokio::select! { biased; $($branches)* } };
}

/// What the macros use. Not part of the interface.
#[doc(hidden)]
pub mod __private {
    pub use tokio;

    /// The type inside of a `Result`, through any alias.
    #[diagnostic::on_unimplemented(
        message = "a workflow returns `everstep::Result<..>`, not `{Self}`",
        label = "this is not a `Result`"
    )]
    pub trait ResultOk {
        /// That type.
        type Ok;
    }

    impl<T, E> ResultOk for std::result::Result<T, E> {
        type Ok = T;
    }

    /// The key that a function makes of an input; it may borrow from it.
    pub fn key_of<'a, I, K: std::fmt::Display>(
        input: &'a I,
        key: impl FnOnce(&'a I) -> K,
    ) -> String {
        key(input).to_string()
    }
}

/// The program in the README is compiled with the tests of the docs.
#[cfg(doctest)]
#[doc = include_str!("../../../README.md")]
struct Readme;
