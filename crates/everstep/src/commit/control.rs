//! Writes by which somebody outside changes what is stored of a run: a delete, a tag, a fork.

use super::{NewRun, Put, RunStatus, Target};
use crate::{run_id::RunId, time::Timestamp};

/// A finished run that is to be forgotten.
///
/// From the batch on it cannot be read any more, by nothing. What it leaves (its history, its
/// state, its dead letters, ..) is removed afterwards by [`Store::sweep`](crate::store::Store::sweep),
/// in slices, so that no batch grows with the length of a history.
#[derive(Clone, Debug)]
pub struct Delete {
    /// The run.
    pub target: Target,
    /// If set, only a run that ended before this instant is deleted: somebody may have retried it
    /// since the caller looked.
    pub finished_before: Option<Timestamp>,
    /// Until when a start with the key of the run is refused with
    /// [`Refusal::KeyUsed`](super::Refusal::KeyUsed); the key is free at once if absent.
    pub key_kept_until: Option<Timestamp>,
}

/// What became of a [`Delete`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Deleted {
    /// It is gone.
    Done {
        /// The run.
        run: RunId,
    },
    /// It has not ended: nothing was done.
    Live {
        /// The run.
        run: RunId,
        /// What it is doing.
        status: RunStatus,
    },
    /// It ended later than [`Delete::finished_before`]: nothing was done.
    TooRecent {
        /// The run.
        run: RunId,
    },
    /// There is no such run.
    Unknown,
}

/// A tag that is set or removed.
#[derive(Clone, Debug)]
pub struct Tagging {
    /// The run.
    pub target: Target,
    /// The name of the tag.
    pub name: String,
    /// What all tags of this name are replaced by; they are removed if absent.
    pub value: Option<String>,
}

/// A new run that begins with a history.
#[derive(Clone, Debug)]
pub struct Fork {
    /// The run. It is never claimed.
    pub new: NewRun,
    /// Its entries.
    pub history: Vec<Put>,
    /// The highest number in them.
    pub last_number: u64,
    /// Values for clients to read.
    pub state: Vec<(String, Vec<u8>)>,
}

/// Why a run cannot be controlled like this now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum ControlRefusal {
    /// A pause came after a cancel, which it could not hold up.
    BeingCancelled,
    /// A cancel came to a run whose rollback is paused: its end is decided, and what holds it up
    /// is not mended by another request for the same.
    RollbackPaused {
        /// How it ends once the rollback is done.
        ending: RunStatus,
    },
}
