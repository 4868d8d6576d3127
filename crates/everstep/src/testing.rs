//! For tests: an engine on virtual time, crashes at every point, a suite for stores.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use crate::{
    engine::Activity,
    time::{Clock, Timestamp},
};

pub mod store_conformance;
#[cfg(feature = "sqlite")]
pub mod vfs;

/// A clock that stands still while anything goes on, and jumps to the next timer when nothing
/// does.
///
/// While bodies wait for something real (a socket, another thread) it waits for them for a little
/// while before it jumps.
#[derive(Debug)]
pub struct VirtualClock {
    now: AtomicI64,
    held: AtomicUsize,
    changed: Mutex<()>,
}

/// Keeps a [`VirtualClock`] from jumping while it lives.
#[derive(Debug)]
pub struct Hold(Arc<VirtualClock>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

/// Where virtual time begins: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600_000;

/// How long bodies that wait for something real are waited for.
const GRACE: Duration = Duration::from_millis(50);

impl VirtualClock {
    /// A clock at the beginning of 2026.
    pub fn new() -> Arc<VirtualClock> {
        VirtualClock::at(Timestamp::from_millis(BEGINNING))
    }

    /// A clock that begins at this instant.
    pub fn at(now: Timestamp) -> Arc<VirtualClock> {
        Arc::new(VirtualClock {
            now: AtomicI64::new(now.as_millis()),
            held: AtomicUsize::new(0),
            changed: Mutex::new(()),
        })
    }

    /// Moves the clock; backwards too, as a system clock may.
    pub fn set(&self, now: Timestamp) {
        self.now.store(now.as_millis(), Ordering::Release);
    }

    /// Moves the clock on.
    pub fn advance(&self, by: Duration) {
        self.set(self.now() + by);
    }

    /// Keeps the clock from jumping by itself while the guard lives.
    pub fn hold(self: &Arc<Self>) -> Hold {
        self.held.fetch_add(1, Ordering::AcqRel);
        Hold(self.clone())
    }

    /// Called by the timer thread: waits until nothing goes on, then jumps to `next`.
    pub(crate) fn advance_when_quiet(&self, activity: &Activity, next: Option<Timestamp>) {
        let _one = self.changed.lock().unwrap_or_else(PoisonError::into_inner);
        activity.wait_quiet(Duration::from_millis(20));
        let (begun, held) = (activity.begun(), self.held.load(Ordering::Acquire) > 0);
        let grace = match (activity.bodies() > 0, held || next.is_none()) {
            (_, true) => Duration::from_millis(1),
            (true, false) => GRACE,
            (false, false) => Duration::from_micros(200),
        };
        // Somebody who was just told something gets a moment to act on it.
        std::thread::sleep(grace);
        let Some(next) = next else { return };
        if !held && activity.is_quiet() && activity.begun() == begun && self.now() < next {
            self.set(next);
        }
    }
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::Acquire))
    }

    fn as_virtual(&self) -> Option<&VirtualClock> {
        Some(self)
    }
}
