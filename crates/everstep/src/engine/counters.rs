//! What an engine has lived through, for tools and drills.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use crate::telemetry::EngineCounters;

#[derive(Default)]
pub(crate) struct Counters {
    takeovers: AtomicU64,
    self_fenced: AtomicU64,
    stale_commits_refused: AtomicU64,
    handed_over: AtomicU64,
    /// Whether the end of the present lease was counted.
    lease_end_noted: AtomicBool,
}

impl Counters {
    pub(crate) fn read(&self) -> EngineCounters {
        let read = |counter: &AtomicU64| counter.load(Ordering::Relaxed);
        EngineCounters {
            takeovers: read(&self.takeovers),
            self_fenced: read(&self.self_fenced),
            stale_commits_refused: read(&self.stale_commits_refused),
            handed_over: read(&self.handed_over),
        }
    }

    pub(crate) fn takeover(&self) {
        self.takeovers.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn stale_commit_refused(&self) {
        self.stale_commits_refused.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn handed_over(&self) {
        self.handed_over.fetch_add(1, Ordering::Relaxed);
    }

    /// A lease has begun, or was prolonged.
    pub(crate) fn lease_lasts(&self) {
        self.lease_end_noted.store(false, Ordering::Relaxed);
    }

    /// The lease was found to be over. Counted once for each lease.
    pub(crate) fn lease_is_over(&self) {
        if !self.lease_end_noted.swap(true, Ordering::Relaxed) {
            self.self_fenced.fetch_add(1, Ordering::Relaxed);
        }
    }
}
