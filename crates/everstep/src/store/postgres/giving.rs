//! Batches and the release of shards, which must not overlap: a batch goes by the shards that its runner
//! had when it began.
//!
//! Whoever releases comes before the batches that have not begun, or it would never have its turn under
//! load. It waits only for so long: it keeps the lease, and a batch may take far longer than a lease.

use std::{
    sync::{Condvar, Mutex, PoisonError},
    time::Duration,
};

#[derive(Default)]
pub(super) struct Giving {
    state: Mutex<State>,
    changed: Condvar,
}

#[derive(Default)]
struct State {
    /// How many batches are under way.
    batches: usize,
    /// Somebody releases shards, or waits for the batches under way to do so.
    releasing: bool,
}

/// A batch that is under way.
pub(super) struct UnderWay<'a>(&'a Giving);

/// A release that is under way, or waits for its turn.
pub(super) struct Release<'a>(&'a Giving);

impl Giving {
    /// Waits for a release that is under way.
    pub(super) fn begin_batch(&self) -> UnderWay<'_> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let waited = self.changed.wait_while(state, |state| state.releasing);
        waited.unwrap_or_else(PoisonError::into_inner).batches += 1;
        UnderWay(self)
    }

    /// Waits for the batches under way; `None` if they take longer than this. There is one at a time.
    pub(super) fn begin_release(&self, limit: Duration) -> Option<Release<'_>> {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        if state.releasing {
            return None;
        }
        state.releasing = true;
        let release = Release(self);
        let is_busy = |state: &mut State| state.batches > 0;
        let waited = self.changed.wait_timeout_while(state, limit, is_busy);
        let (state, waited) = waited.unwrap_or_else(PoisonError::into_inner);
        drop(state);
        (!waited.timed_out()).then_some(release)
    }

    fn change(&self, change: impl FnOnce(&mut State)) {
        change(&mut self.state.lock().unwrap_or_else(PoisonError::into_inner));
        self.changed.notify_all();
    }
}

impl Drop for UnderWay<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.batches -= 1);
    }
}

impl Drop for Release<'_> {
    fn drop(&mut self) {
        self.0.change(|state| state.releasing = false);
    }
}
