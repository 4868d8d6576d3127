//! Breaks the engine on purpose, on this thread only: what a test cannot catch it does not test.

use std::cell::Cell;

/// Which rule is broken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sabotage {
    /// An operation that is ready resolves in whatever poll comes, not only when it is offered.
    AnyPoll,
    /// A body hands over its result directly, also in its first poll or after another release.
    AlwaysDirect,
    /// A body starts before what its code has seen is durable.
    NoBarrier,
    /// A body waits only for what its code had seen when its step was made.
    BarrierAtMaking,
    /// A finished rollback is forgotten while the run is in memory.
    ForgetRollbacks,
}

thread_local! {
    static ACTIVE: Cell<Option<Sabotage>> = const { Cell::new(None) };
}

/// Whether this rule is broken now.
pub(crate) fn is(sabotage: Sabotage) -> bool {
    ACTIVE.get() == Some(sabotage)
}

/// The broken barrier, in the words of an engine's settings.
pub(crate) fn of_barrier() -> Option<crate::settings::Sabotage> {
    match ACTIVE.get()? {
        Sabotage::NoBarrier => Some(crate::settings::Sabotage::NoBarrier),
        Sabotage::BarrierAtMaking => Some(crate::settings::Sabotage::BarrierAtMaking),
        _ => None,
    }
}

/// Breaks a rule while `work` runs.
pub(crate) fn with<T>(sabotage: Sabotage, work: impl FnOnce() -> T) -> T {
    let before = ACTIVE.replace(Some(sabotage));
    let result = work();
    ACTIVE.set(before);
    result
}
