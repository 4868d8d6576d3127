//! Errors: what workflow code returns, and how a failure is kept.
//!
//! [`Error`] is what bodies, rollbacks and workflows return; any [`std::error::Error`] becomes one
//! with `?`. [`Failure`] is the same thing as it is stored and handed to clients.

use std::{any::Any, fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{codec::payload, history::Location};

/// The result of a body, a rollback or a workflow.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a body or a workflow did not give its value, and what is to be done about it.
///
/// It does not implement [`std::error::Error`], so that everything that does can be turned into it
/// with `?`. By default the step is tried again, as its policy says.
pub struct Error {
    failure: Box<Failure>,
    retry: RetryAdvice,
    /// The entries that it came from: what a retry of the run makes fresh.
    origins: Vec<Box<[u8]>>,
}

/// What an error says about trying again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum RetryAdvice {
    /// As the policy says.
    Policy,
    /// Not before this long.
    After(Duration),
    /// Not at all.
    Never,
}

/// A failure as it is stored: text, kind and details, never code.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct Failure {
    /// What kind of failure it is.
    pub kind: FailureKind,
    /// What happened.
    pub message: String,
    /// What it was caused by, outermost first.
    pub causes: Vec<String>,
    /// The operation that failed, if one did.
    pub location: Option<Location>,
    /// How many attempts were made, if it was a step.
    pub attempts: u32,
    /// The payload that [`Error::with_details`] attached: the name of its type, and its bytes.
    pub(crate) details: Option<(String, Vec<u8>)>,
}

/// What kind of failure it is. One for each thing a caller would do differently. The codes are
/// stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[non_exhaustive]
#[repr(u8)]
pub enum FailureKind {
    /// An error of the workflow's own, or of one attempt.
    Error = 0,
    /// [`Error::fatal`]: not tried again.
    Fatal = 1,
    /// [`Error::rollback`]: stop and compensate.
    Rollback = 2,
    /// Every attempt failed.
    Exhausted = 3,
    /// The time of a step ran out.
    TimedOut = 4,
    /// The workflow's code panicked.
    Panic = 5,
    /// One or more branches of a join or map failed.
    Join = 6,
    /// Every arm of a race failed.
    Race = 7,
    /// The deadline of the run has passed.
    Deadline = 8,
    /// A limit was exceeded.
    Limit = 9,
    /// A message could not be delivered.
    Undeliverable = 10,
}
