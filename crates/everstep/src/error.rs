//! Errors: what workflow code returns, and how a failure is kept.
//!
//! [`Error`] is what bodies, rollbacks and workflows return; any [`std::error::Error`] becomes one
//! with `?`. [`Failure`] is the same thing as it is stored and handed to clients.

use std::{any::Any, fmt, time::Duration};

use serde::{Serialize, de::DeserializeOwned};

use crate::{
    codec::{
        DecodeError,
        hook::{Codecs, is_sealed},
        payload,
    },
    location::Location,
};

pub(crate) mod record;

pub(crate) use record::{decode_failure, encode_failure};

/// The result of a body, a rollback or a workflow.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Why a body or a workflow did not give its value, and what is to be done about it.
///
/// It does not implement [`std::error::Error`], so that everything that does can be turned into it
/// with `?`. By default the step is tried again, as its policy says.
pub struct Error {
    failure: Box<Failure>,
    retry: RetryAdvice,
    /// The keys of the entries that it came from: what a retry of the run makes fresh.
    origins: Vec<Box<[u8]>>,
    /// What PostgreSQL calls it, if it came from there.
    #[cfg(feature = "postgres")]
    sql_state: Option<Box<str>>,
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

listed! {
    /// What kind of failure it is. One for each thing a caller would do differently. The codes are
    /// stored.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
    #[non_exhaustive]
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
        /// A child run failed or was cancelled.
        Child = 11,
    }
}

impl Error {
    /// An error with this message, tried again as the policy says.
    pub fn msg(message: impl fmt::Display + 'static) -> Error {
        Error::from_any(message)
    }

    /// An error after which the step is not tried again.
    pub fn fatal(cause: impl fmt::Display + 'static) -> Error {
        let mut error = Error::from_any(cause);
        error.failure.kind = FailureKind::Fatal;
        error.retry = RetryAdvice::Never;
        error
    }

    /// An error that ends the run and compensates what it has done: it is not tried again, and
    /// neither [`Ctx::attempt`](crate::Ctx::attempt) nor `.outcome()` holds it back.
    pub fn rollback(cause: impl fmt::Display + 'static) -> Error {
        let mut error = Error::from_any(cause);
        error.failure.kind = FailureKind::Rollback;
        error.retry = RetryAdvice::Never;
        error
    }

    /// An error after which the step is tried again no sooner than after `delay`, whatever the
    /// delay of its policy. It counts as an attempt like any other.
    pub fn retry_after(cause: impl fmt::Display + 'static, delay: Duration) -> Error {
        let mut error = Error::from_any(cause);
        error.retry = RetryAdvice::After(delay);
        error
    }

    /// Attaches a value that callers read back with [`details`](Error::details). A value that
    /// cannot be encoded is left out, and the message says so.
    pub fn with_details<T: Serialize>(mut self, details: &T) -> Error {
        match payload::to_vec(details) {
            Ok(bytes) => {
                self.failure.details = Some((std::any::type_name::<T>().to_owned(), bytes));
            }
            Err(error) => self.failure.causes.push(format!("details left out: {error}")),
        }
        self
    }

    /// The value that was attached, if there is one and it is of this type.
    pub fn details<T: DeserializeOwned>(&self) -> Option<T> {
        self.failure.details()
    }

    /// What kind of failure it is.
    pub fn kind(&self) -> FailureKind {
        self.failure.kind
    }

    /// The failure, as it would be stored.
    pub fn failure(&self) -> &Failure {
        &self.failure
    }

    pub(crate) fn advice(&self) -> RetryAdvice {
        self.retry
    }

    pub(crate) fn origins(&self) -> &[Box<[u8]>] {
        &self.origins
    }

    pub(crate) fn into_failure(self) -> Failure {
        *self.failure
    }

    /// The error that workflow code gets for a failure that was recorded at these keys.
    pub(crate) fn recorded(failure: Failure, origins: Vec<Box<[u8]>>) -> Error {
        Error {
            failure: Box::new(failure),
            retry: RetryAdvice::Never,
            origins,
            #[cfg(feature = "postgres")]
            sql_state: None,
        }
    }

    /// What PostgreSQL calls it, if it came from there as it is.
    #[cfg(feature = "postgres")]
    pub(crate) fn sql_state(&self) -> Option<&str> {
        self.sql_state.as_deref()
    }

    /// One attempt failed in a way that may be tried again.
    pub(crate) fn attempt_failed(failure: Failure) -> Error {
        Error {
            failure: Box::new(failure),
            retry: RetryAdvice::Policy,
            origins: Vec::new(),
            #[cfg(feature = "postgres")]
            sql_state: None,
        }
    }

    fn from_any<E: fmt::Display + 'static>(cause: E) -> Error {
        // An `Error` that is wrapped keeps its details, its causes and where it came from.
        let mut slot = Some(cause);
        if let Some(inner) = (&mut slot as &mut dyn Any).downcast_mut::<Option<Error>>()
            && let Some(error) = inner.take()
        {
            return error;
        }
        let message = slot.map(|cause| cause.to_string()).unwrap_or_default();
        Error {
            failure: Box::new(Failure::new(FailureKind::Error, message)),
            retry: RetryAdvice::Policy,
            origins: Vec::new(),
            #[cfg(feature = "postgres")]
            sql_state: None,
        }
    }
}

impl<E: std::error::Error + 'static> From<E> for Error {
    fn from(error: E) -> Error {
        let mut failure = Failure::new(FailureKind::Error, error.to_string());
        #[cfg(feature = "postgres")]
        let sql_state = sql_state(&error);
        let mut cause = error.source();
        while let Some(inner) = cause {
            failure.causes.push(inner.to_string());
            cause = inner.source();
        }
        Error {
            failure: Box::new(failure),
            retry: RetryAdvice::Policy,
            origins: Vec::new(),
            #[cfg(feature = "postgres")]
            sql_state,
        }
    }
}

/// The state of the first error of PostgreSQL among the causes.
#[cfg(feature = "postgres")]
fn sql_state(error: &(dyn std::error::Error + 'static)) -> Option<Box<str>> {
    let mut next = Some(error);
    while let Some(error) = next {
        if let Some(told) = error.downcast_ref::<tokio_postgres::Error>() {
            return told.code().map(|state| state.code().into());
        }
        next = error.source();
    }
    None
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.failure.fmt(f)
    }
}

impl fmt::Debug for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Error").field("failure", &self.failure).field("retry", &self.retry).finish()
    }
}

impl Failure {
    pub(crate) fn new(kind: FailureKind, message: impl Into<String>) -> Failure {
        let message = message.into();
        Failure { kind, message, causes: Vec::new(), location: None, attempts: 0, details: None }
    }

    /// What stands for a failure that cannot be read any more.
    pub(crate) fn unreadable(why: &str) -> Failure {
        Failure::new(FailureKind::Error, format!("the stored error cannot be read: {why}"))
    }

    /// The value that was attached to the error, if there is one and it is of this type.
    pub fn details<T: DeserializeOwned>(&self) -> Option<T> {
        let (type_name, bytes) = self.details.as_ref()?;
        if type_name != std::any::type_name::<T>() {
            return None;
        }
        payload::from_slice(bytes).ok()
    }

    /// The value that was attached to the error, whatever its type, as JSON.
    pub fn details_json(&self) -> Option<serde_json::Value> {
        let (_, bytes) = self.details.as_ref()?;
        payload::to_json(bytes).ok()
    }

    /// Seals what was attached to the error. What cannot be sealed is left out, and the failure says
    /// so: it must not be lost with it.
    pub(crate) fn seal_details(&mut self, codecs: &Codecs) {
        let Some((name, details)) = self.details.take() else {
            return;
        };
        match codecs.seal(details, None) {
            Ok(sealed) => self.details = Some((name, sealed)),
            Err(error) => self.causes.push(format!("details left out: {error}")),
        }
    }

    /// Opens what was attached to a failure that was stored.
    pub(crate) fn open_details(&mut self, codecs: &Codecs) -> Result<(), DecodeError> {
        if let Some((_, details)) = &mut self.details
            && is_sealed(details)
        {
            *details = codecs.open(details, None)?.into_owned();
        }
        Ok(())
    }

    /// The message with its causes, on one line.
    pub fn full(&self) -> String {
        let mut text = self.message.clone();
        for cause in &self.causes {
            text.push_str(": ");
            text.push_str(cause);
        }
        text
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.location {
            Some(location) => write!(f, "`{location}`: {}", self.message),
            None => f.write_str(&self.message),
        }
    }
}

/// The causes are texts, so there is no `source()`: [`Failure::full`] has them all.
impl std::error::Error for Failure {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn wrapping_an_error_keeps_its_details() {
        let inner = Error::msg("no stock").with_details(&7u32);
        let outer = Error::fatal(inner);
        assert_eq!(outer.kind(), FailureKind::Fatal);
        assert_eq!(outer.details::<u32>(), Some(7));
        assert_eq!(outer.details::<u64>(), None);
        assert_eq!(outer.to_string(), "no stock");
    }

    #[test]
    fn causes_are_kept_in_order() {
        #[derive(Debug, thiserror::Error)]
        #[error("outer")]
        struct Outer(#[source] std::num::ParseIntError);
        let error = Error::from(Outer("x".parse::<i32>().expect_err("not a number")));
        assert_eq!(error.failure().full(), "outer: invalid digit found in string");
    }
}
