//! Finds runs that are due and in nobody's memory: new ones, cold ones, other processes' work.
//!
//! A thread of its own asks the store when something points to a due run, when the time of a cold
//! run has come, and now and then for safety. It reads what is due in the shards of this runner
//! and hands it to the engine threads, which know what they have already.
//!
//! Another thread keeps the timers of the engine threads, since those sleep while nothing happens. It
//! makes no call of the store: the time limit of a body ends on time while the store does not answer.
//! Under a virtual clock the thread that polls keeps the timers too, since it moves the clock.

use std::{
    ops::ControlFlow::{Break, Continue},
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicI64, Ordering, fence},
    },
    time::{Duration, Instant},
};

use super::{mailbox::Event, poller::Poller, shared::Shared};
use crate::{
    run_id::RunNo,
    seam::{self, Monitor},
    time::{Outlook, Timestamp},
};

/// What the thread that polls the store and the thread that keeps timers wait on.
#[derive(Default)]
pub(crate) struct DueSignal {
    state: Monitor<State>,
    /// Whether there may be runs in the store that no thread has in memory.
    cold: AtomicBool,
    timers: Timers,
}

/// What the thread that keeps timers waits on.
#[derive(Default)]
struct Timers {
    closed: Monitor<bool>,
    /// The earliest time for which the thread is known to be awake; a later one needs no signal.
    awake_by: AtomicI64,
}

#[derive(Default)]
struct State {
    /// When the next cold run is due.
    next: Option<Timestamp>,
    /// Something points to a due run.
    poked: bool,
    /// Another process says so.
    from_outside: bool,
    closed: bool,
}

impl State {
    /// What there is to do now.
    ///
    /// The look for safety comes first: whoever is busy with timers and pokes of its own would
    /// never come to it, and never find what a lost wake-up has pointed to.
    fn woken(
        &mut self,
        now: Timestamp,
        timer: Option<Timestamp>,
        is_safety: bool,
    ) -> Option<Woken> {
        if self.closed {
            return Some(Woken::Closed);
        }
        if is_safety {
            return Some(Woken::Safety);
        }
        let is_due = self.next.is_some_and(|next| next <= now);
        if is_due || self.poked {
            self.poked = false;
            if is_due {
                self.next = None;
            }
            let look = std::mem::take(&mut self.from_outside);
            return Some(Woken::Poll { look });
        }
        timer.is_some_and(|at| at <= now).then_some(Woken::Timers)
    }
}

impl DueSignal {
    /// A run that is in nobody's memory is due at this time.
    pub(crate) fn note(&self, at: Timestamp) {
        self.cold.store(true, Ordering::Release);
        let mut state = self.state.lock();
        if state.next.is_none_or(|next| at < next) {
            state.next = Some(at);
            drop(state);
            self.state.notify();
        }
    }

    /// Look now.
    pub(crate) fn poke(&self, from_outside: bool) {
        self.cold.store(true, Ordering::Release);
        self.state.change(|state| {
            state.poked = true;
            state.from_outside |= from_outside;
        });
    }

    /// An engine thread has set its next timer to this time.
    pub(crate) fn timer_set(&self, at: Timestamp) {
        // Pairs with the fence in `keep_timers`: this sees the new `awake_by`, or the thread sees the
        // new timer.
        fence(Ordering::SeqCst);
        if at.as_millis() >= self.timers.awake_by.load(Ordering::Acquire) {
            return;
        }
        self.timers.closed.notify();
    }

    pub(crate) fn close(&self) {
        self.state.change(|state| state.closed = true);
        self.timers.closed.change(|closed| *closed = true);
    }
}

/// How many due runs are read at a time.
const PAGE: usize = 1_000;

/// The thread that finds due runs, until it is closed.
pub(crate) fn run(shared: &Arc<Shared>) {
    let mut safety = seam::now() + shared.settings.safety_poll;
    loop {
        let (poll, look) = match wait(shared, safety) {
            Woken::Closed => return,
            Woken::Timers => (false, false),
            Woken::Poll { look } => (true, look),
            Woken::Safety => {
                // Shards may have moved away from under somebody who waits.
                Poller::ensure(shared);
                if shared.has_room() {
                    // The few places that are free may be the last for long: bodies can take hours.
                    shared.tell_of_room();
                }
                safety = seam::now() + shared.settings.safety_poll;
                (true, true)
            }
        };
        wake_timers(shared);
        if poll && shared.stopped().is_none() {
            poll_store(shared, look);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
enum Woken {
    Closed,
    Timers,
    Poll { look: bool },
    Safety,
}

/// Waits for the next thing to do.
fn wait(shared: &Shared, safety: Instant) -> Woken {
    let state = &shared.due.state;
    while let Some(clock) = shared.clock.as_virtual() {
        let (now, timer) = (shared.now(), next_timer(shared));
        if let Some(woken) = state.lock().woken(now, timer, seam::now() >= safety) {
            return woken;
        }
        shared.keeper.wake_if_due(now);
        shared.workers.wake_if_due(shared, now);
        clock.advance_when_quiet(&*shared.activity, &|| outlook(shared));
    }
    state.wait("due runs", |state| {
        let now = shared.now();
        // By a real clock timers are kept by another thread.
        if let Some(woken) = state.woken(now, None, seam::now() >= safety) {
            return Break(woken);
        }
        let next = state.next.and_then(|at| seam::after(until(shared, now, at)));
        Continue(Some(next.map_or(safety, |next| next.min(safety))))
    })
}

/// How long to wait for this instant. Not shorter than the resolution of timers: those that end
/// meanwhile are woken together.
fn until(shared: &Shared, now: Timestamp, at: Timestamp) -> Duration {
    at.since(now).max(shared.settings.timer_resolution)
}

/// The thread that keeps the timers of the engine threads, until it is closed. A virtual clock needs
/// none: the thread that moves it wakes the timers.
pub(crate) fn keep_timers(shared: &Shared) {
    if shared.clock.as_virtual().is_some() {
        return;
    }
    let timers = &shared.due.timers;
    timers.closed.wait("timers", |closed| {
        if *closed {
            return Break(());
        }
        loop {
            let (now, next) = (shared.now(), next_timer(shared));
            if next.is_some_and(|at| at <= now) {
                wake_timers(shared);
                continue;
            }
            let awake_by = next.map_or(i64::MAX, Timestamp::as_millis);
            timers.awake_by.store(awake_by, Ordering::Release);
            // Pairs with the fence in `timer_set`.
            fence(Ordering::SeqCst);
            if next_timer(shared).is_some_and(|at| at.as_millis() < awake_by) {
                continue;
            }
            // The clock may be set meanwhile, so even a late timer is looked at now and then.
            let limit = next.map_or(Duration::MAX, |at| until(shared, now, at));
            return Continue(seam::after(limit.min(shared.settings.safety_poll)));
        }
    });
}

/// What comes next, for a virtual clock.
fn outlook(shared: &Shared) -> Outlook {
    let (next, busy) = {
        let state = shared.due.state.lock();
        (state.next, state.poked || state.closed)
    };
    let (chore, chore_due) = shared.keeper.outlook(shared.now());
    let work = shared.workers.next_timer();
    let next = [next, next_timer(shared), chore, work].into_iter().flatten().min();
    // Its shards come at its start, or come back when it has registered again, and their runs with them.
    let has_no_shards = shared.owned().is_empty() && shared.stopped().is_none();
    Outlook {
        busy: busy || chore_due || has_no_shards || next.is_some_and(|at| at <= shared.now()),
        next,
        watched: shared.hub.is_waited_on(),
    }
}

fn next_timer(shared: &Shared) -> Option<Timestamp> {
    let timers = shared.threads.iter().map(|thread| thread.next_timer.load(Ordering::Acquire));
    timers.min().filter(|at| *at != i64::MAX).map(Timestamp::from_millis)
}

/// Wakes the engine threads whose timers are due.
fn wake_timers(shared: &Shared) {
    let now = shared.now().as_millis();
    for thread in &shared.threads {
        if thread.next_timer.load(Ordering::Acquire) <= now {
            // The thread sets it anew when it has looked at its timers.
            thread.next_timer.store(i64::MAX, Ordering::Release);
            thread.push(Event::Timer);
        }
    }
}

/// Reads what is due in our shards and hands it to the engine threads.
fn poll_store(shared: &Shared, look: bool) {
    let owned = shared.owned();
    if owned.is_empty() {
        return;
    }
    let mut after: Option<(Timestamp, RunNo)> = None;
    loop {
        let now = shared.now();
        let due = match shared.store.due(now, &owned, after, PAGE) {
            Ok(due) => due,
            Err(error) => {
                shared.complain(&error, "due runs cannot be read");
                // Nobody has looked yet.
                shared.due.state.lock().from_outside |= look;
                shared.due.note(now + shared.settings.store_retry.max(Duration::from_millis(100)));
                return;
            }
        };
        let last = due.runs.last().and_then(|run| Some((run.available_at?, run.id.no())));
        let full = due.runs.len() == PAGE;
        let runs = due.runs.into_iter().map(|run| (run.id, run));
        shared.tell_owners(runs, |runs| Event::Due { runs, look });
        if !full || !shared.has_room() {
            if full {
                // The rest is read when there is room again.
                shared.due.cold.store(true, Ordering::Release);
                if shared.wait_for_room() {
                    shared.due.poke(false);
                }
            }
            // Without cold runs the next one is in some thread's memory, with a timer there.
            if let (Some(at), true) = (due.next_at, shared.due.cold.load(Ordering::Acquire)) {
                let mut state = shared.due.state.lock();
                state.next = Some(state.next.map_or(at, |next| next.min(at)));
            }
            return;
        }
        after = last;
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::{engine::fixture, store::ShardSet};

    /// A wake-up that was lost is made good by the look for safety. An engine with timers that were
    /// always due, or that poked itself all the time, never came to it.
    #[test]
    fn look_for_safety_is_not_put_off_by_what_is_due_all_the_time() {
        let now = Timestamp::from_millis(1);
        let mut state = State { next: Some(now), poked: true, ..State::default() };
        assert_eq!(state.woken(now, Some(now), true), Some(Woken::Safety));
        // What was due still is.
        let look = false;
        assert_eq!(state.woken(now, Some(now), false), Some(Woken::Poll { look }));
        assert_eq!(state.woken(now, Some(now), false), Some(Woken::Timers));
        assert_eq!(state.woken(now, None, false), None);
    }

    /// An engine had lost its lease on a loaded machine, and its runs were in no memory until it had
    /// registered again. A virtual clock told a test meanwhile that nothing would ever move again.
    #[test]
    fn an_engine_without_shards_is_busy() {
        let (_, shared) = fixture::shared();
        assert!(outlook(&shared).busy);
        let fence = fixture::enter(&shared);
        assert!(outlook(&shared).busy, "it has a lease and no shards yet");
        assert!(shared.set_owned_if(fence, &ShardSet::of_default_pool()));
        assert!(!outlook(&shared).busy);
        shared.lose_if(fence);
        assert!(outlook(&shared).busy);
        shared.stop(fixture::away());
        assert!(!outlook(&shared).busy, "it will never have any");
    }

    /// A run that a process had left in the middle waited for a place, and its engine thread had nothing
    /// else to do. Nobody told it of a place until a tenth of them all was free.
    #[test]
    fn the_look_for_safety_tells_of_a_single_place() {
        let (_, shared) = fixture::shared_with(|settings| {
            (settings.max_live_runs, settings.safety_poll) = (20, Duration::from_millis(1));
        });
        assert!((0..20).all(|_| shared.reserve()));
        assert!(!shared.reserve_or_wait());
        shared.release();
        assert!(shared.threads[0].take().is_empty());
        let due = shared.clone();
        let thread = std::thread::spawn(move || run(&due));
        let (mailbox, begun) = (&shared.threads[0], Instant::now());
        while !mailbox.take().iter().any(|it| matches!(it, Event::Timer)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody tells");
            std::thread::sleep(Duration::from_millis(1));
        }
        shared.due.close();
        thread.join().expect("it has ended");
    }

    /// The thread that polled the store kept the timers, too: while a poll was not answered, no step
    /// timed out and no attempt was made again.
    #[test]
    fn timers_are_woken_while_the_store_does_not_answer() {
        let (store, shared) = fixture::shared();
        let fence = fixture::enter(&shared);
        assert!(shared.set_owned_if(fence, &ShardSet::of_default_pool()));
        shared.threads[0].take();
        let (asked, is_asked) = mpsc::channel();
        let (answer, may_answer) = mpsc::channel::<()>();
        store.fail_next("due", move || {
            asked.send(()).expect("the test waits for it");
            // Until the test has ended.
            _ = may_answer.recv();
            fixture::away()
        });
        shared.due.poke(false);
        let threads = [run as fn(&Arc<Shared>), |shared| keep_timers(shared)].map(|thread| {
            let shared = shared.clone();
            std::thread::spawn(move || thread(&shared))
        });
        is_asked.recv().expect("the store is asked");
        let mailbox = &shared.threads[0];
        let at = shared.now() + Duration::from_millis(20);
        mailbox.set_next_timer(Some(at));
        shared.due.timer_set(at);
        let begun = Instant::now();
        while !mailbox.take().iter().any(|it| matches!(it, Event::Timer)) {
            assert!(begun.elapsed() < Duration::from_secs(60), "nobody wakes it");
            std::thread::sleep(Duration::from_millis(1));
        }
        drop(answer);
        shared.due.close();
        for thread in threads {
            thread.join().expect("it has ended");
        }
    }
}
