//! Breaks a promise on purpose in all runs that an [`owner`](super::owner) on this thread makes: a
//! test that cannot fail shows nothing.

use std::cell::Cell;

pub(super) use crate::sabotage::Sabotage;

thread_local! {
    static ACTIVE: Cell<Option<Sabotage>> = const { Cell::new(None) };
}

/// What is broken in the runs that are made now.
pub(super) fn active() -> Option<Sabotage> {
    ACTIVE.get()
}

/// Breaks a promise in the runs that `work` makes.
pub(super) fn with<T>(sabotage: Sabotage, work: impl FnOnce() -> T) -> T {
    let before = ACTIVE.replace(Some(sabotage));
    let result = work();
    ACTIVE.set(before);
    result
}
