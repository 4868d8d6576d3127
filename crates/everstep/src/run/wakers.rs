//! Wakers: who may wake a run, and how a foreign await is found.
//!
//! A run is polled with a waker of its own, [`RootWaker`]; a body with another, [`BodyWaker`].
//! Marks in thread-local storage say who is on the stack. A wake of the root that comes neither
//! from inside the run's own poll nor from the engine resolving one of its operations, or that
//! comes out of a body, can only come from something that is not durable: a raw timer, a channel
//! fed by another task, a `JoinHandle`. On replay it would not come in the same order, so the run
//! is paused instead.

use std::{
    cell::Cell,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::{Wake, Waker},
};

use crate::history::OpId;

/// Where wakes from outside go: the mailbox of the engine thread that owns the run.
pub(crate) trait WakeSink: Send + Sync {
    /// A body wants to be polled.
    fn body_woken(&self, slot: u32, run: u64, op: OpId);
    /// Something that is not durable has woken the run.
    fn foreign_wake(&self, slot: u32, run: u64);
}

thread_local! {
    /// The run that is being polled on this thread.
    static POLLING: Cell<u64> = const { Cell::new(0) };
    /// The run whose operations the engine is waking on this thread.
    static RESOLVING: Cell<u64> = const { Cell::new(0) };
    /// Whether a body is being polled on this thread.
    static IN_BODY: Cell<bool> = const { Cell::new(false) };
}

/// Restores a mark when dropped, so that a panic leaves none behind.
pub(crate) struct Mark<T: Copy + 'static> {
    cell: &'static std::thread::LocalKey<Cell<T>>,
    before: T,
}

impl<T: Copy> Drop for Mark<T> {
    fn drop(&mut self) {
        self.cell.set(self.before);
    }
}

fn mark<T: Copy>(cell: &'static std::thread::LocalKey<Cell<T>>, value: T) -> Mark<T> {
    Mark { cell, before: cell.replace(value) }
}

/// While the root of this run is polled.
pub(crate) fn polling(run: u64) -> Mark<u64> {
    mark(&POLLING, run)
}

/// While the engine wakes operations of this run.
pub(crate) fn resolving(run: u64) -> Mark<u64> {
    mark(&RESOLVING, run)
}

/// While a body is polled.
pub(crate) fn in_body() -> Mark<bool> {
    mark(&IN_BODY, true)
}

/// Why a wake was certain to be foreign.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ForeignWake {
    /// It came from outside the run.
    Outside,
    /// It came out of a body.
    FromBody,
}

/// The waker that a run's root is polled with.
pub(crate) struct RootWaker {
    /// Identifies the run in this process: never reused.
    run: u64,
    slot: AtomicU32,
    woken: AtomicBool,
    foreign: AtomicU32,
    sink: Arc<dyn WakeSink>,
}

impl RootWaker {
    pub(crate) fn new(run: u64, sink: Arc<dyn WakeSink>) -> Arc<RootWaker> {
        Arc::new(RootWaker {
            run,
            slot: AtomicU32::new(u32::MAX),
            woken: AtomicBool::new(false),
            foreign: AtomicU32::new(0),
            sink,
        })
    }

    pub(crate) fn run(&self) -> u64 {
        self.run
    }

    pub(crate) fn set_slot(&self, slot: u32) {
        self.slot.store(slot, Ordering::Relaxed);
    }

    pub(crate) fn slot(&self) -> u32 {
        self.slot.load(Ordering::Relaxed)
    }

    /// Whether it was woken since this was last asked.
    pub(crate) fn take_woken(&self) -> bool {
        // A relaxed read first: most polls end without a wake.
        self.woken.load(Ordering::Relaxed) && self.woken.swap(false, Ordering::AcqRel)
    }

    pub(crate) fn foreign(&self) -> Option<ForeignWake> {
        match self.foreign.load(Ordering::Acquire) {
            0 => None,
            1 => Some(ForeignWake::Outside),
            _ => Some(ForeignWake::FromBody),
        }
    }

    fn woke(&self) {
        if RESOLVING.get() != self.run {
            let found = match (IN_BODY.get(), POLLING.get() == self.run) {
                (true, _) => 2,
                (false, false) => 1,
                (false, true) => 0,
            };
            if found != 0 {
                self.foreign.store(found, Ordering::Release);
                self.sink.foreign_wake(self.slot(), self.run);
            }
        }
        self.woken.store(true, Ordering::Release);
    }
}

impl Wake for RootWaker {
    fn wake(self: Arc<Self>) {
        self.woke();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.woke();
    }
}

/// The waker that a body is polled with. It does not touch the run: it tells the owner, which
/// polls the run from its root, since only the workflow's own code can poll the operation.
struct BodyWaker {
    root: Arc<RootWaker>,
    op: OpId,
}

impl Wake for BodyWaker {
    fn wake(self: Arc<Self>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Self>) {
        self.root.sink.body_woken(self.root.slot(), self.root.run, self.op);
    }
}

pub(crate) fn body_waker(root: &Arc<RootWaker>, op: OpId) -> Waker {
    Waker::from(Arc::new(BodyWaker { root: root.clone(), op }))
}
