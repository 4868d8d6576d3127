//! The seam between the engine and the machine: time, randomness, sleep, waits, wake-ups and threads.
//!
//! No thread of the engine asks the system for any of these by itself. In production each function
//! here is the system's own, plus one branch that is always predicted. In a simulation (`sim`) the
//! threads of several engines take turns: one *activity* runs at a time, a seed chooses which, and time
//! moves only when none can go on. Which of the two applies depends on the calling thread: the threads
//! of a simulation are known to it, and every thread that they start through [`Process::spawn`] is one
//! of them.
//!
//! Rules for code that runs on the seam:
//! - A thread waits for a [`Signal`], a [`Monitor`] or a [`Lock`], sleeps by [`sleep`], and waits for a
//!   future by [`block_on`]. It never joins, parks, or blocks on a channel or a condition variable.
//! - No [`Leaf`], and no guard of the standard library, is held across a [`point`], a wait, a sleep or a
//!   call of the store. A [`Lock`] may be.
//! - A point stands around every call of the store, at the start of every turn of a loop, before a
//!   lock that may be held across points, and before a body starts. A clock is read at a point, too,
//!   unless a leaf is held. None stands between a check and the act that the check protects: [`uptime`]
//!   is no point, since the check of a lease reads it, nor is [`instant`], which is for what is measured
//!   between that check and the body.
//! - Nothing random but [`random`]: no `RandomState` in a map that is iterated, no `select!` without
//!   `biased`, no address or thread id in an order.
//! - Code that runs while its process is killed in a simulation (a `Drop` while the thread unwinds) has
//!   no effect outside of the process: see [`is_dead`].

use std::{
    future::Future,
    pin::pin,
    sync::Arc,
    task::{Context, Poll, Wake, Waker},
    time::{Duration, Instant, SystemTime},
};

mod lock;
mod process;
mod signal;
#[cfg(any(test, feature = "testing"))]
pub(crate) mod sim;
mod task;

pub(crate) use lock::{Channel, Leaf, LeafGuard, Lock, Monitor};
pub(crate) use process::{Process, Thread};
pub(crate) use signal::Signal;
pub(crate) use task::{Abort, NotEnded, Task, spawn_blocking, spawn_task};

/// Returns from the function with the simulation's answer, on a thread of a simulation.
macro_rules! if_simulated {
    (|$here:ident| $answer:expr) => {
        #[cfg(any(test, feature = "testing"))]
        if let Some($here) = $crate::seam::sim::here() {
            return $answer;
        }
    };
}
use if_simulated;

/// Another activity may go on here, and this one may be stopped for a while, or killed with its
/// process. Nothing in production.
#[inline]
pub(crate) fn point(label: &'static str) {
    if_simulated!(|here| here.point(label));
    _ = label;
}

/// The monotonic clock. A simulation may let another activity go on before it is read.
#[inline]
pub(crate) fn now() -> Instant {
    if_simulated!(|here| {
        here.clock_point("clock");
        here.instant()
    });
    Instant::now()
}

/// The monotonic clock, and no point: for a read between a check and the act that the check protects,
/// or inside of what runs only once.
pub(crate) fn instant() -> Instant {
    if_simulated!(|here| here.instant());
    Instant::now()
}

/// The instant after this time; none if it never comes.
pub(crate) fn after(limit: Duration) -> Option<Instant> {
    now().checked_add(limit)
}

/// How long ago this was.
pub(crate) fn elapsed(since: Instant) -> Duration {
    now().saturating_duration_since(since)
}

/// How long the machine has been on, with the time that it was suspended. No point: it is what the lease
/// is checked by, right before a body starts.
pub(crate) fn uptime() -> Duration {
    if_simulated!(|here| here.uptime());
    since_boot()
}

#[cfg(unix)]
fn since_boot() -> Duration {
    use rustix::time::{ClockId, clock_gettime};
    // The other systems count a suspend in this one.
    #[cfg(not(any(target_os = "linux", target_os = "android", target_os = "openbsd")))]
    const CLOCK: ClockId = ClockId::Monotonic;
    #[cfg(any(target_os = "linux", target_os = "android", target_os = "openbsd"))]
    const CLOCK: ClockId = ClockId::Boottime;
    // Of a moment after the boot, neither part is negative.
    Duration::try_from(clock_gettime(CLOCK)).unwrap_or_default()
}

#[cfg(not(unix))]
fn since_boot() -> Duration {
    static FIRST: std::sync::OnceLock<Instant> = std::sync::OnceLock::new();
    FIRST.get_or_init(Instant::now).elapsed()
}

/// The calendar of the machine. A simulation may let another activity go on before it is read.
pub(crate) fn wall() -> SystemTime {
    if_simulated!(|here| {
        here.clock_point("calendar");
        here.wall()
    });
    SystemTime::now()
}

/// A number that nobody can foresee.
pub(crate) fn random() -> u64 {
    use std::hash::{BuildHasher, RandomState};
    if_simulated!(|here| here.random());
    // The standard library keys its hash maps from the system's own source of randomness.
    RandomState::new().hash_one(std::process::id())
}

/// 128 bits of [`random`].
pub(crate) fn random_uuid() -> uuid::Uuid {
    uuid::Uuid::from_u64_pair(random(), random())
}

/// Fills this with bytes that nobody can foresee, good enough for secrets.
///
/// # Errors
///
/// If the system has none.
pub(crate) fn fill_random(bytes: &mut [u8]) -> Result<(), getrandom::Error> {
    if_simulated!(|here| {
        for part in bytes.chunks_mut(8) {
            part.copy_from_slice(&here.random().to_le_bytes()[..part.len()]);
        }
        Ok(())
    });
    getrandom::fill(bytes)
}

/// Sleeps.
pub(crate) fn sleep(how_long: Duration, label: &'static str) {
    if_simulated!(|here| here.sleep(how_long, label));
    _ = label;
    std::thread::sleep(how_long);
}

/// Waits on this thread for a future.
pub(crate) fn block_on<T>(future: impl IntoFuture<Output = T>, label: &'static str) -> T {
    struct Woken(Signal);
    impl Wake for Woken {
        fn wake(self: Arc<Self>) {
            self.0.notify();
        }
    }
    let woken = Arc::new(Woken(Signal::default()));
    let waker = Waker::from(woken.clone());
    let mut cx = Context::from_waker(&waker);
    let mut future = pin!(future.into_future());
    loop {
        let seen = woken.0.seen();
        match future.as_mut().poll(&mut cx) {
            Poll::Ready(value) => return value,
            Poll::Pending => _ = woken.0.wait(seen, None, label),
        }
    }
}

/// Waits on this thread for a future, inside of a runtime.
pub(crate) fn block_on_in<T>(
    runtime: &tokio::runtime::Handle,
    future: impl Future<Output = T>,
    label: &'static str,
) -> T {
    #[cfg(any(test, feature = "testing"))]
    if is_simulated() {
        let _entered = runtime.enter();
        return block_on(future, label);
    }
    _ = label;
    runtime.block_on(future)
}

/// Whether this thread is one of a simulation.
pub(crate) fn is_simulated() -> bool {
    if_simulated!(|_here| true);
    false
}

/// The name of the simulated process of this thread.
pub(crate) fn process_name() -> Option<String> {
    if_simulated!(|here| Some(here.process_name()));
    None
}

/// Whether the process of this thread was killed: what is dropped then does nothing outside of it.
pub(crate) fn is_dead() -> bool {
    if_simulated!(|here| here.is_dead());
    false
}

/// The runtime of the simulation that this thread belongs to. Nobody drives it: it has no sockets, no
/// timers, and runs no task.
pub(crate) fn simulated_runtime() -> Option<tokio::runtime::Handle> {
    if_simulated!(|here| Some(here.runtime()));
    None
}
