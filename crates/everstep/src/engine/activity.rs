//! Whether anything is going on: events, commits and reads that are under way.
//!
//! A virtual clock moves only while nothing is. A real one does not ask.

use std::{
    sync::atomic::{AtomicI64, AtomicU64, Ordering},
    time::Duration,
};

use crate::{
    seam::{self, Signal},
    time::Underway,
};

/// Counts what is under way in an engine.
#[derive(Default)]
pub(crate) struct Activity {
    busy: AtomicI64,
    bodies: AtomicI64,
    /// Rises with everything that begins, so that two looks can tell whether something was.
    begun: AtomicU64,
    quiet: Signal,
}

impl Activity {
    pub(crate) fn begin(&self, n: usize) {
        // In this order: whoever finds it quiet after this rise of `begun` finds what began ended.
        self.busy.fetch_add(n as i64, Ordering::AcqRel);
        self.begun.fetch_add(1, Ordering::AcqRel);
    }

    pub(crate) fn end(&self, n: usize) {
        if n == 0 {
            return;
        }
        if self.busy.fetch_sub(n as i64, Ordering::AcqRel) == n as i64 {
            self.quiet.notify();
        }
    }

    /// Notes that more (or fewer) bodies are in flight.
    pub(crate) fn bodies_changed(&self, by: i64) {
        if by != 0 {
            self.bodies.fetch_add(by, Ordering::AcqRel);
        }
    }
}

impl Underway for Activity {
    fn is_quiet(&self) -> bool {
        self.busy.load(Ordering::Acquire) == 0
    }

    fn bodies(&self) -> i64 {
        self.bodies.load(Ordering::Acquire)
    }

    fn begun(&self) -> u64 {
        self.begun.load(Ordering::Acquire)
    }

    fn wait_quiet(&self, limit: Duration) {
        let seen = self.quiet.seen();
        if !self.is_quiet() {
            self.quiet.wait(seen, seam::after(limit), "quiet");
        }
    }
}
