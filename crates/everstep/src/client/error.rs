//! Why something could not be done from outside.

use std::sync::Arc;

use crate::{
    codec::DecodeError,
    commit::{ItemId, RunStatus},
    error::Failure,
    run_id::RunId,
    settings::SettingsError,
    store::StoreError,
    time::Timestamp,
};

/// Why something could not be done to a run.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ClientError {
    /// The store could not.
    #[error("the store cannot be used")]
    Store(#[source] Arc<StoreError>),
    /// There is no such run.
    #[error("there is no run {run}; it may have been deleted, or belongs to another store")]
    UnknownRun {
        /// What was asked for.
        run: String,
    },
    /// No run was found whose id begins or ends with these digits.
    #[error(
        "there is no run whose id begins or ends with `{digits}`{}",
        match .searched {
            Some(searched) => format!(
                " among the newest {searched} runs; give the whole id, or the first 20 digits, of an \
                 older one"
            ),
            None => "; it may have been deleted, or belongs to another store".to_owned(),
        }
    )]
    UnknownShortId {
        /// The digits.
        digits: String,
        /// How many runs were searched, if there are more.
        searched: Option<usize>,
    },
    /// Several runs have an id that begins or ends with these digits.
    #[error(
        "`{digits}` is ambiguous; give more digits of one of these runs: {}",
        .runs.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ")
    )]
    AmbiguousId {
        /// The digits.
        digits: String,
        /// The runs, newest first, at most ten.
        runs: Vec<RunId>,
    },
    /// The run has ended.
    #[error("run {run} has ended ({status}) and takes nothing more")]
    Finished {
        /// The run.
        run: String,
        /// How, if that is known.
        status: String,
    },
    /// The inbox of the run is full.
    #[error(
        "run {run} has {limit} unread messages, and that is the limit; let it read some first, \
             or raise `inbox_messages_max`"
    )]
    InboxFull {
        /// The run.
        run: String,
        /// The limit.
        limit: u64,
    },
    /// A payload is too large.
    #[error(
        "{what} has {actual} bytes, and the limit for a payload is {limit}; store it elsewhere \
             and pass on where it is, or raise `payload_bytes_max`"
    )]
    TooLarge {
        /// What it is.
        what: String,
        /// Its size.
        actual: usize,
        /// The limit.
        limit: usize,
    },
    /// A name cannot be used.
    #[error("{what} cannot be used: {problem}")]
    Name {
        /// What it is the name of.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A value could not be encoded.
    #[error("{what} cannot be encoded: {problem}")]
    Encode {
        /// What it is.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A stored value could not be decoded.
    #[error("{what} cannot be decoded: {problem}; use the types that it was written with")]
    Decode {
        /// What it is.
        what: String,
        /// What is wrong.
        problem: String,
    },
    /// A stored value was written with a codec that is not here, or that cannot decode it.
    #[error(
        "{what} cannot be decoded: {problem}; give the client the codec and the keys that it was \
             written with"
    )]
    Sealed {
        /// What it is.
        what: String,
        /// What is missing.
        problem: String,
    },
    /// The run ended before it replied.
    #[error("run {run} ended without a reply")]
    NoReply {
        /// The run.
        run: String,
    },
    /// The run is not in a state for this.
    #[error("run {run} is {status} and cannot be {act}: {hint}")]
    WrongStatus {
        /// The run.
        run: String,
        /// Its status.
        status: RunStatus,
        /// What was asked for.
        act: &'static str,
        /// What to do.
        hint: &'static str,
    },
    /// There is no such item in any queue.
    #[error(
        "there is no queue item {item}; it may have ended (a result is kept only for as long as its \
             queue says), or belongs to another store"
    )]
    UnknownItem {
        /// What was asked for.
        item: ItemId,
    },
    /// A number or a time of a worker with which it cannot work.
    #[error("a worker cannot be set up")]
    Settings(#[from] SettingsError),
    /// A worker needs a tokio runtime for its handlers.
    #[error("there is no tokio runtime here for a worker's handlers; call `work` inside of one")]
    NoRuntime,
    /// A text is not a token.
    #[error("this is not a token: it must be given as the run has handed it out, letter by letter")]
    MalformedToken,
    /// A token was not made by this store.
    #[error(
        "this token was not made by this store, or was changed since; use it with the database of \
             the run that handed it out"
    )]
    ForeignToken,
    /// A token is of an earlier generation of its run.
    #[error(
        "this token is of generation {generation} of run {run}, which has gone on as generation \
             {current}; ask that one for a new token"
    )]
    OldToken {
        /// The run.
        run: String,
        /// The generation that handed the token out.
        generation: u32,
        /// The generation that the run is in.
        current: u32,
    },
    /// There is a token of this name.
    #[error("there is a token `{name}` already; revoke it first, or give another name")]
    TokenTaken {
        /// The name.
        name: String,
    },
    /// There is no such schedule.
    #[error("there is no schedule `{schedule}`; it may have been deleted")]
    UnknownSchedule {
        /// Its name.
        schedule: String,
    },
    /// A schedule cannot be as it is asked for.
    #[error("schedule `{schedule}`: {problem}")]
    Schedule {
        /// Its name.
        schedule: String,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// A run cannot be imported beside one that is there.
    #[error("run {run} cannot be imported: {what} is taken in this store; nothing was changed")]
    Taken {
        /// The run.
        run: String,
        /// What of it.
        what: String,
    },
    /// The run that was started with this key has ended and was deleted, and the key is kept for
    /// a while, so that a start that comes late does not do everything once more.
    #[error(
        "the key `{key}` of workflow `{workflow}` was used by run {run}, which has ended and was \
             deleted on {deleted_at}; use another key, or wait until {kept_until}"
    )]
    KeyUsed {
        /// The workflow.
        workflow: String,
        /// The key.
        key: String,
        /// The run that had it.
        run: RunId,
        /// When that was deleted.
        deleted_at: Timestamp,
        /// From when on the key can be used again.
        kept_until: Timestamp,
    },
    /// A run cannot be forked like this.
    #[error("run {run} cannot be forked: {problem}")]
    Fork {
        /// The run.
        run: RunId,
        /// What is wrong, and what to do.
        problem: String,
    },
    /// The run has too many tags.
    #[error("run {run} has {limit} tags, and that is the limit; remove some first")]
    TagsFull {
        /// The run.
        run: RunId,
        /// The limit.
        limit: usize,
    },
    /// The engine or the client is shutting down.
    #[error("the client is closed: its engine has shut down")]
    Closed,
}

/// Why a run has no result.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RunError {
    /// It failed.
    #[error("run {run} failed: {}", .failure.full())]
    Failed {
        /// The run.
        run: RunId,
        /// Why.
        failure: Box<Failure>,
    },
    /// It was cancelled.
    #[error("run {run} was cancelled")]
    Cancelled {
        /// The run.
        run: RunId,
    },
    /// It could not be asked.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl RunError {
    /// The failure, if the run failed.
    pub fn failure(&self) -> Option<&Failure> {
        match self {
            RunError::Failed { failure, .. } => Some(failure),
            _ => None,
        }
    }
}

impl ClientError {
    pub(super) fn unknown_run(run: RunId) -> ClientError {
        let run = run.to_string();
        ClientError::UnknownRun { run }
    }
}

impl From<Arc<StoreError>> for ClientError {
    fn from(error: Arc<StoreError>) -> ClientError {
        match &*error {
            StoreError::Closed { .. } => ClientError::Closed,
            _ => ClientError::Store(error),
        }
    }
}

impl From<StoreError> for ClientError {
    fn from(error: StoreError) -> ClientError {
        ClientError::from(Arc::new(error))
    }
}

pub(super) fn unreadable(what: String, error: &DecodeError) -> ClientError {
    let problem = error.to_string();
    match error {
        DecodeError::NoCodec { .. } | DecodeError::Codec { .. } => {
            ClientError::Sealed { what, problem }
        }
        _ => ClientError::Decode { what, problem },
    }
}
