//! Several engines in one process, one activity at a time, chosen by a seed.
//!
//! What bodies and clients in a simulation use instead of the system's own: see the rules of the
//! module `seam`.

mod sky;
mod store;

use std::time::{Duration, Instant, SystemTime};

use tokio::sync::oneshot;

pub use self::{
    sky::{Sky, WRONG_MAX, Window},
    store::{Counts, Kind, Server, SimStore, Turn},
};
pub use crate::seam::sim::{
    At, Clocks, Config, Fault, Faults, Report, Rng, SimProcess, SimThread, Trace, is_traced,
    new_process, note, right_time, simulate, this_process, time,
};

/// Another activity may go on here, and this one may be stopped for a while, or killed with its
/// process.
pub fn point(label: &'static str) {
    crate::seam::point(label);
}

/// Waits on this thread for a future.
pub fn block_on<T>(future: impl IntoFuture<Output = T>) -> T {
    crate::seam::block_on(future, "future")
}

/// The monotonic clock.
pub fn now() -> Instant {
    crate::seam::now()
}

/// The monotonic clock, and no point at which another activity may go on.
pub fn instant() -> Instant {
    crate::seam::instant()
}

/// Starts a thread in the process of this one.
///
/// # Panics
///
/// If this thread is none of a simulation.
pub fn spawn(name: &str, work: impl FnOnce() + Send + 'static) {
    assert!(crate::seam::is_simulated(), "a thread of a simulation");
    let spawned = crate::seam::Process::current().spawn(name, work);
    spawned.expect("a simulation always has threads");
}

/// A random number that follows from the seed.
pub fn random() -> u64 {
    crate::seam::random()
}

/// The calendar of the process of this thread.
pub fn calendar() -> SystemTime {
    crate::seam::wall()
}

/// Sleeps.
pub fn sleep(how_long: Duration) {
    crate::seam::sleep(how_long, "sleep");
}

/// Waits in a future.
pub async fn pause(how_long: Duration) {
    let (sender, is_over) = oneshot::channel();
    spawn("timer", move || {
        sleep(how_long);
        // A body that was dropped does not wait any more.
        _ = sender.send(());
    });
    _ = is_over.await;
}

/// Whether the process of this thread was killed.
pub fn is_dead() -> bool {
    crate::seam::is_dead()
}
