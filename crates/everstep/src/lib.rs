//! Durable execution for Rust.

mod codec;
mod commit;
mod error;
mod history;
mod random;
mod run_id;
pub mod store;
pub mod testing;
mod time;

pub use error::{Error, Failure, FailureKind, Result};
pub use run_id::{ParseRunIdError, RunId, RunNo, SHARDS, ShardId};
pub use time::{Clock, SystemClock, Timestamp, days, hours, minutes, seconds};
