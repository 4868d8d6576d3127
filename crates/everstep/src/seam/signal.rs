//! What a thread waits for.

use std::{
    sync::{
        Condvar, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicU64, Ordering::SeqCst},
    },
    time::Instant,
};

use super::if_simulated;

/// Wakes threads. It counts its notices: a thread that reads the count ([`seen`](Signal::seen)), looks
/// at its state, lets go of every lock and then waits with that count misses no notice in between.
///
/// A notice that nobody waits for costs no system call.
#[derive(Default)]
pub(crate) struct Signal {
    notices: AtomicU64,
    /// How many threads wait; activities of a simulation count as [`SIMULATED`] each.
    waiters: AtomicU32,
    lock: Mutex<()>,
    wake: Condvar,
}

/// One activity of a simulation among the waiters.
const SIMULATED: u32 = 1 << 16;

impl Signal {
    /// How many notices there were.
    pub(crate) fn seen(&self) -> u64 {
        self.notices.load(SeqCst)
    }

    /// Wakes everybody who waits. Never waits itself and never lets another activity go on, so that it
    /// may be called by any waker and under any lock.
    pub(crate) fn notify(&self) {
        self.tell(true);
    }

    /// Wakes one of those who wait.
    pub(crate) fn notify_one(&self) {
        self.tell(false);
    }

    fn tell(&self, all: bool) {
        self.notices.fetch_add(1, SeqCst);
        let waiters = self.waiters.load(SeqCst);
        if waiters == 0 {
            return;
        }
        if waiters >= SIMULATED {
            if_simulated!(|here| here.notify(self, all));
            panic!("a thread outside of the simulation wakes an activity of it");
        }
        // Behind the lock, so that no waiter is between its look at the count and its wait.
        drop(self.lock.lock().unwrap_or_else(PoisonError::into_inner));
        match all {
            true => self.wake.notify_all(),
            false => self.wake.notify_one(),
        }
    }

    /// Waits until there was a notice since `seen`, or until that time. Whether there was.
    pub(crate) fn wait(&self, seen: u64, until: Option<Instant>, label: &'static str) -> bool {
        if_simulated!(|here| {
            let _waiting = Waiting::new(self, SIMULATED);
            here.wait(self, seen, until, label);
            self.seen() != seen
        });
        _ = label;
        if self.seen() != seen {
            return true;
        }
        let mut guard = self.lock.lock().unwrap_or_else(PoisonError::into_inner);
        let _waiting = Waiting::new(self, 1);
        while self.seen() == seen {
            let left = until.map(|until| until.saturating_duration_since(Instant::now()));
            guard = match left {
                None => {
                    let woken = self.wake.wait(guard);
                    woken.unwrap_or_else(PoisonError::into_inner)
                }
                Some(left) if left.is_zero() => return false,
                Some(left) => {
                    let woken = self.wake.wait_timeout(guard, left);
                    woken.unwrap_or_else(PoisonError::into_inner).0
                }
            };
        }
        true
    }
}

/// Counts a waiter while it waits.
struct Waiting<'a>(&'a Signal, u32);

impl<'a> Waiting<'a> {
    fn new(signal: &'a Signal, weight: u32) -> Waiting<'a> {
        signal.waiters.fetch_add(weight, SeqCst);
        Waiting(signal, weight)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiters.fetch_sub(self.1, SeqCst);
    }
}

#[cfg(test)]
mod tests {
    use std::{sync::Arc, time::Duration};

    use super::*;

    #[test]
    fn a_notice_between_the_look_and_the_wait_is_not_missed() {
        let signal = Signal::default();
        let seen = signal.seen();
        signal.notify();
        assert!(signal.wait(seen, None, "test"));
        let seen = signal.seen();
        assert!(!signal.wait(seen, Some(Instant::now()), "test"));
    }

    #[test]
    fn each_notice_for_one_wakes_one_of_the_threads_that_wait() {
        let signal = Arc::new(Signal::default());
        let woken = Arc::new(AtomicU32::new(0));
        let seen = signal.seen();
        let threads = [(); 3].map(|()| {
            let (signal, woken) = (signal.clone(), woken.clone());
            std::thread::spawn(move || {
                signal.wait(seen, None, "test");
                woken.fetch_add(1, SeqCst);
            })
        });
        while signal.waiters.load(SeqCst) < 3 {
            std::thread::yield_now();
        }
        // Until all are gone: a notice may find one that was woken and has not left yet.
        while woken.load(SeqCst) < 3 {
            signal.notify_one();
            std::thread::sleep(Duration::from_millis(1));
        }
        for thread in threads {
            thread.join().expect("it has ended");
        }
        assert_eq!(signal.waiters.load(SeqCst), 0);
    }
}
