//! Locks: one that is never held across a point, one that may be, and state that threads wait on.

#[cfg(any(test, feature = "testing"))]
use std::cell::Cell;
use std::{
    collections::VecDeque,
    ops::{ControlFlow, Deref, DerefMut},
    sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError},
    time::Instant,
};

use super::Signal;

#[cfg(any(test, feature = "testing"))]
thread_local! {
    /// How many leaves this thread holds.
    static LEAVES: Cell<u32> = const { Cell::new(0) };
}

/// How many leaves this thread holds: a simulation asserts that there are none where it may let another
/// activity go on, since that would wait for the lock outside of the seam.
#[cfg(any(test, feature = "testing"))]
pub(super) fn leaves_held() -> u32 {
    LEAVES.get()
}

/// A mutex that is never held across a point, a wait or a call of the store. A panic of its holder
/// leaves it usable.
#[derive(Default)]
pub(crate) struct Leaf<T>(Mutex<T>);

impl<T> Leaf<T> {
    pub(crate) const fn new(value: T) -> Leaf<T> {
        Leaf(Mutex::new(value))
    }

    pub(crate) fn lock(&self) -> LeafGuard<'_, T> {
        let guard = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        #[cfg(any(test, feature = "testing"))]
        LEAVES.set(LEAVES.get() + 1);
        LeafGuard(guard)
    }
}

/// A [`Leaf`] that is held.
pub(crate) struct LeafGuard<'a, T>(MutexGuard<'a, T>);

#[cfg(any(test, feature = "testing"))]
impl<T> Drop for LeafGuard<'_, T> {
    fn drop(&mut self) {
        LEAVES.set(LEAVES.get() - 1);
    }
}

impl<T> Deref for LeafGuard<'_, T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}

impl<T> DerefMut for LeafGuard<'_, T> {
    fn deref_mut(&mut self) -> &mut T {
        &mut self.0
    }
}

/// A mutex that may be held across points: to wait for it is a wait of the seam.
#[derive(Default)]
pub(crate) struct Lock {
    held: Mutex<()>,
    free: Signal,
}

impl Lock {
    pub(crate) fn lock(&self, label: &'static str) -> LockGuard<'_> {
        super::point(label);
        while super::is_simulated() {
            let seen = self.free.seen();
            if let Some(guard) = self.try_lock() {
                return guard;
            }
            self.free.wait(seen, None, label);
        }
        self.guard(self.held.lock().unwrap_or_else(PoisonError::into_inner))
    }

    pub(crate) fn try_lock(&self) -> Option<LockGuard<'_>> {
        match self.held.try_lock() {
            Ok(held) => Some(self.guard(held)),
            Err(TryLockError::Poisoned(held)) => Some(self.guard(held.into_inner())),
            Err(TryLockError::WouldBlock) => None,
        }
    }

    fn guard<'a>(&'a self, held: MutexGuard<'a, ()>) -> LockGuard<'a> {
        LockGuard { held: Some(held), free: &self.free }
    }
}

/// A [`Lock`] that is held.
pub(crate) struct LockGuard<'a> {
    held: Option<MutexGuard<'a, ()>>,
    free: &'a Signal,
}

impl Drop for LockGuard<'_> {
    fn drop(&mut self) {
        self.held = None;
        self.free.notify();
    }
}

/// State behind a lock, and a signal that it has changed: what a thread waits on that others poke and
/// close.
#[derive(Default)]
pub(crate) struct Monitor<T> {
    state: Leaf<T>,
    changed: Signal,
}

impl<T> Monitor<T> {
    /// The state, to look at it. Nobody is woken.
    pub(crate) fn lock(&self) -> LeafGuard<'_, T> {
        self.state.lock()
    }

    /// Changes the state and wakes everybody who waits.
    pub(crate) fn change<R>(&self, change: impl FnOnce(&mut T) -> R) -> R {
        let changed = change(&mut self.lock());
        self.notify();
        changed
    }

    /// Wakes everybody who waits, to look again.
    pub(crate) fn notify(&self) {
        self.changed.notify();
    }

    /// Wakes one of those who wait, to look again.
    pub(crate) fn notify_one(&self) {
        self.changed.notify_one();
    }

    /// Looks at the state until `look` breaks with an answer. Between two looks it waits for a change,
    /// at most until the time that `look` has given.
    pub(crate) fn wait<R>(
        &self,
        label: &'static str,
        mut look: impl FnMut(&mut T) -> ControlFlow<R, Option<Instant>>,
    ) -> R {
        loop {
            let seen = self.changed.seen();
            let looked = look(&mut self.lock());
            match looked {
                ControlFlow::Break(answer) => return answer,
                ControlFlow::Continue(until) => _ = self.changed.wait(seen, until, label),
            }
        }
    }
}

/// Values from many threads to one, in the order in which they were sent.
pub(crate) struct Channel<T>(Arc<Monitor<VecDeque<T>>>);

impl<T> Clone for Channel<T> {
    fn clone(&self) -> Channel<T> {
        Channel(self.0.clone())
    }
}

impl<T> Default for Channel<T> {
    fn default() -> Channel<T> {
        Channel(Arc::new(Monitor { state: Leaf::new(VecDeque::new()), changed: Signal::default() }))
    }
}

impl<T> Channel<T> {
    pub(crate) fn send(&self, value: T) {
        self.0.change(|values| values.push_back(value));
    }

    /// The next value; waits for it until this time.
    pub(crate) fn receive(&self, until: Instant, label: &'static str) -> Option<T> {
        self.0.wait(label, |values| match values.pop_front() {
            None if super::now() < until => ControlFlow::Continue(Some(until)),
            value => ControlFlow::Break(value),
        })
    }
}
