//! What operators have asked of runs, and what they were told.
//!
//! A request that was begun and has not ended may be made at any time: its client waits for the answer,
//! or was killed while it did. One that has ended with an error may have been made as well.

use std::collections::{BTreeMap, BTreeSet};

use everstep::RunId;
use serde::{Deserialize, Serialize};

/// What an operator can ask of a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
pub(crate) enum Request {
    Pause,
    Resume,
    Cancel,
    Retry,
    Delete,
}

/// How many requests of one kind were begun, and how many of them have ended.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Count {
    pub(crate) begun: u32,
    pub(crate) ended: u32,
}

/// All requests of a life.
#[derive(Default)]
pub(crate) struct Requests {
    /// By the run, or without one if all runs were meant.
    counts: BTreeMap<(Option<RunId>, Request), Count>,
    /// The runs of which a client was told that they are being cancelled.
    pub(crate) cancelled: BTreeSet<RunId>,
    /// The runs of which a client was told that they are deleted.
    pub(crate) deleted: BTreeSet<RunId>,
    /// The programs whose run an operator has asked to delete.
    pub(crate) programs_deleted: BTreeSet<usize>,
    /// The runs that were exported, deleted and imported again: the file, and how many deletes had been
    /// asked for by then. None if the client was not told.
    pub(crate) imported: BTreeMap<RunId, Option<(Vec<u8>, u32)>>,
    /// How often a client was told that a run is tried again.
    pub(crate) retried: BTreeMap<RunId, u32>,
    /// The value that a client has given to its tag of a run last; `None` if it was not told.
    pub(crate) tags: BTreeMap<(RunId, String), Option<String>>,
}

impl Requests {
    /// A request is about to be made: of one run, or of all.
    pub(crate) fn begin(&mut self, run: Option<RunId>, request: Request) {
        self.counts.entry((run, request)).or_default().begun += 1;
    }

    pub(crate) fn end(&mut self, run: Option<RunId>, request: Request) {
        self.counts.entry((run, request)).or_default().ended += 1;
    }

    /// The requests of this kind that may have reached a run.
    pub(crate) fn count(&self, run: RunId, request: Request) -> Count {
        let of = |run| self.counts.get(&(run, request)).copied().unwrap_or_default();
        let (own, all) = (of(Some(run)), of(None));
        Count { begun: own.begun + all.begun, ended: own.ended + all.ended }
    }

    pub(crate) fn was_asked(&self, run: RunId, request: Request) -> bool {
        self.count(run, request).begun > 0
    }

    /// Whether it was asked of any run.
    pub(crate) fn was_ever_asked(&self, request: Request) -> bool {
        self.counts.iter().any(|((_, of), count)| *of == request && count.begun > 0)
    }

    /// Whether a run of this program may have been deleted.
    pub(crate) fn may_be_deleted(&self, program: usize) -> bool {
        let of_all = self.counts.get(&(None, Request::Delete));
        self.programs_deleted.contains(&program) || of_all.is_some_and(|count| count.begun > 0)
    }

    /// All that can end a pause: how often it was asked for, if none of it is under way.
    pub(crate) fn ends_of_pause(&self, run: RunId) -> Option<u32> {
        let ends = [Request::Resume, Request::Cancel].map(|request| self.count(run, request));
        let are_known = ends.iter().all(|count| count.begun == count.ended);
        are_known.then(|| ends.iter().map(|count| count.begun).sum())
    }
}
