//! A clock for tests: it stands still while anything goes on, and jumps to the next timer when
//! nothing does.
//!
//! The timer thread of an engine moves it ([`MovedByEngine::advance_when_quiet`]), since that
//! thread alone knows the next timer of all runs. A jump is decided in this order: nothing is
//! under way; what comes next is looked up; still nothing has begun since. So no timer that was set
//! meanwhile is passed over.

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicI64, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::sync::oneshot;

use crate::{
    seam,
    time::{Clock, MovedByEngine, Outlook, Timestamp, Underway},
};

/// A clock that stands still while anything goes on, and jumps to the next timer when nothing
/// does. A week of sleeping takes a test no time.
///
/// While somebody waits for a result, a reply or the clock itself, it jumps at once. While nobody
/// does, it leaves the test a moment (some milliseconds without any call) to say what it wants
/// next. Where a test depends on what comes first, it [holds](VirtualClock::hold) the clock.
/// While bodies wait for something real (a socket, another thread), it waits for them for a little
/// while before it jumps.
///
/// ```
/// use everstep::{prelude::*, testing::VirtualClock};
///
/// #[workflow]
/// async fn reminder(ctx: Ctx, _: ()) -> Result<Option<String>> {
///     ctx.listen("answer").timeout(days(7)).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let clock = VirtualClock::new();
/// let began = everstep::Clock::now(&*clock);
/// let engine = Engine::in_memory().clock(clock.clone()).register(reminder).start().await?;
/// let run = engine.client().start(reminder, ()).await?;
/// assert_eq!(run.result().await?, None);
/// assert_eq!(everstep::Clock::now(&*clock), began + days(7));
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Debug)]
pub struct VirtualClock {
    now: AtomicI64,
    held: AtomicUsize,
    waiters: Mutex<Vec<Waiter>>,
}

/// Keeps a [`VirtualClock`] from jumping while it lives.
#[derive(Debug)]
#[must_use = "the clock jumps again as soon as this is dropped"]
pub struct Hold(Arc<VirtualClock>);

impl Drop for Hold {
    fn drop(&mut self) {
        self.0.held.fetch_sub(1, Ordering::AcqRel);
    }
}

impl Hold {
    /// Lets the clock go and waits for this long in virtual time. Nothing comes between the two, as
    /// it may between a drop and a [`sleep`](VirtualClock::sleep) on a busy machine. The clock stands
    /// still until what this gives is dropped.
    pub async fn sleep(self, delay: Duration) -> Hold {
        let at = self.0.now() + delay;
        self.sleep_until(at).await
    }

    /// Lets the clock go and waits for this instant, as [`sleep`](Hold::sleep) does.
    pub async fn sleep_until(self, at: Timestamp) -> Hold {
        let clock = self.0.clone();
        let told = clock.begin_to_wait(WaitFor::Time(at));
        drop(self);
        clock.held_once(told).await
    }
}

/// Somebody in the test who waits for the clock.
#[derive(Debug)]
struct Waiter {
    until: WaitFor,
    /// Held when it is told, so that nothing happens before it acts.
    clock: Arc<VirtualClock>,
    told: oneshot::Sender<Hold>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum WaitFor {
    /// An instant.
    Time(Timestamp),
    /// Nothing goes on.
    Quiet,
    /// Nothing goes on, and no timer is set.
    Stuck,
}

/// Where virtual time begins: 2026-01-01.
const BEGINNING: i64 = 1_767_225_600_000;

/// How long bodies that wait for something real are waited for.
const GRACE_FOR_BODIES: Duration = Duration::from_millis(50);

/// How long a test that waits for nothing is left alone.
const GRACE_FOR_CALLERS: Duration = Duration::from_millis(20);

/// How often the clock looks again while it may not jump.
const LOOK_AGAIN: Duration = Duration::from_micros(300);

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
            waiters: Mutex::default(),
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
    ///
    /// ```
    /// # use everstep::{prelude::*, testing::VirtualClock};
    /// # #[workflow]
    /// # async fn approve(ctx: Ctx, _: ()) -> Result<Option<bool>> {
    /// #     ctx.listen("approval").timeout(hours(1)).await
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = VirtualClock::new();
    /// let engine = Engine::in_memory().clock(clock.clone()).register(approve).start().await?;
    /// let held = clock.hold();
    /// let run = engine.client().start(approve, ()).await?;
    /// run.send("approval", &true).await?;
    /// drop(held);
    /// assert_eq!(run.result().await?, Some(true));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn hold(self: &Arc<Self>) -> Hold {
        let _no_jump = self.lock();
        self.held.fetch_add(1, Ordering::AcqRel);
        Hold(self.clone())
    }

    /// Waits for this long in virtual time, on an engine that has this clock. The clock stands
    /// still until what this gives is dropped.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing::VirtualClock};
    /// # #[workflow]
    /// # async fn approve(ctx: Ctx, _: ()) -> Result<Option<bool>> {
    /// #     ctx.listen("approval").timeout(hours(1)).await
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = VirtualClock::new();
    /// let engine = Engine::in_memory().clock(clock.clone()).register(approve).start().await?;
    /// let held = clock.hold();
    /// let run = engine.client().start(approve, ()).await?;
    /// let held = held.sleep(minutes(59)).await;
    /// run.send("approval", &true).await?;
    /// drop(held);
    /// assert_eq!(run.result().await?, Some(true));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn sleep(self: &Arc<Self>, delay: Duration) -> Hold {
        self.sleep_until(self.now() + delay).await
    }

    /// Waits for this instant in virtual time, on an engine that has this clock. The clock stands
    /// still until what this gives is dropped.
    pub async fn sleep_until(self: &Arc<Self>, at: Timestamp) -> Hold {
        self.wait_for(WaitFor::Time(at)).await
    }

    /// Waits until nothing goes on: every run has ended, or waits for a time or a message, and
    /// what it waits for is durable.
    ///
    /// The clock stands still until what this gives is dropped. While it is not held before, it may
    /// jump before that; hold it to stop at this instant.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing::VirtualClock, RunStatus};
    /// # #[workflow]
    /// # async fn approve(ctx: Ctx, _: ()) -> Result<Option<bool>> {
    /// #     ctx.listen("approval").timeout(hours(1)).await
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let clock = VirtualClock::new();
    /// let engine = Engine::in_memory().clock(clock.clone()).register(approve).start().await?;
    /// let _held = clock.hold();
    /// let run = engine.client().start(approve, ()).await?;
    /// let _still = clock.quiet().await;
    /// assert_eq!(run.status().await?, RunStatus::Sleeping);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub async fn quiet(self: &Arc<Self>) -> Hold {
        self.wait_for(WaitFor::Quiet).await
    }

    /// Waits until nothing goes on, and nothing ever will by itself: no timer is set and no body
    /// runs. A run that has not ended by then never does without a message or an operator.
    pub async fn stuck(self: &Arc<Self>) -> Hold {
        self.wait_for(WaitFor::Stuck).await
    }

    async fn wait_for(self: &Arc<Self>, until: WaitFor) -> Hold {
        let told = self.begin_to_wait(until);
        self.held_once(told).await
    }

    fn begin_to_wait(self: &Arc<Self>, until: WaitFor) -> oneshot::Receiver<Hold> {
        let (told, wait) = oneshot::channel();
        let clock = self.clone();
        self.lock().push(Waiter { until, clock, told });
        wait
    }

    async fn held_once(self: &Arc<Self>, told: oneshot::Receiver<Hold>) -> Hold {
        match told.await {
            Ok(hold) => hold,
            // Nobody drops a waiter without telling it.
            Err(_) => self.hold(),
        }
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Waiter>> {
        self.waiters.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The next instant that somebody in the test waits for, and whether anybody waits at all.
    fn waiting(&self) -> (Option<Timestamp>, bool) {
        let mut waiters = self.lock();
        waiters.retain(|waiter| !waiter.told.is_closed());
        (first(&waiters), !waiters.is_empty())
    }

    /// Tells everybody whose wait is over; whether there was anybody.
    fn tell(&self, over: impl Fn(WaitFor) -> bool) -> bool {
        let all = std::mem::take(&mut *self.lock());
        let (told, rest): (Vec<_>, Vec<_>) = all.into_iter().partition(|waiter| over(waiter.until));
        self.lock().extend(rest);
        let any = !told.is_empty();
        for waiter in told {
            _ = waiter.told.send(waiter.clock.hold());
        }
        any
    }

    /// Jumps, unless the clock is held or somebody has come to wait for it meanwhile; whether it
    /// did.
    fn jump(&self, next: Option<Timestamp>, wanted: Option<Timestamp>) -> bool {
        {
            // Whoever comes to hold the clock or to wait for it does so before this or after it.
            let waiters = self.lock();
            let held = self.held.load(Ordering::Acquire) > 0;
            let (Some(next), false) = (next, held || first(&waiters) != wanted) else {
                return false;
            };
            if self.now() < next {
                self.set(next);
            }
        }
        let now = self.now();
        self.tell(|until| matches!(until, WaitFor::Time(at) if at <= now));
        true
    }
}

/// The next instant that somebody in the test waits for.
fn first(waiters: &[Waiter]) -> Option<Timestamp> {
    let times = waiters.iter().filter_map(|waiter| match waiter.until {
        WaitFor::Time(at) => Some(at),
        _ => None,
    });
    times.min()
}

/// Lets real time pass while nothing happens; `false` as soon as something does.
fn pause(limit: Duration, still: impl Fn() -> bool) -> bool {
    let end = seam::now() + limit;
    while still() {
        let left = end.saturating_duration_since(seam::now());
        if left.is_zero() {
            return still();
        }
        seam::sleep(left.min(LOOK_AGAIN), "clock");
    }
    false
}

impl Clock for VirtualClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_millis(self.now.load(Ordering::Acquire))
    }

    fn as_virtual(&self) -> Option<&dyn MovedByEngine> {
        Some(self)
    }
}

impl MovedByEngine for VirtualClock {
    fn advance_when_quiet(&self, activity: &dyn Underway, outlook: &dyn Fn() -> Outlook) {
        activity.wait_quiet(Duration::from_millis(20));
        let begun = activity.begun();
        let still = || activity.is_quiet() && activity.begun() == begun;
        if !still() {
            return;
        }
        let Outlook { busy, next, watched } = outlook();
        if busy {
            return;
        }
        let (wanted, waited_for) = self.waiting();
        let next = [next, wanted].into_iter().flatten().min();
        let bodies = activity.bodies() > 0;
        let grace = match (bodies, watched || waited_for) {
            (true, _) => GRACE_FOR_BODIES,
            (false, true) => Duration::ZERO,
            (false, false) => GRACE_FOR_CALLERS,
        };
        if !pause(grace, still) {
            return;
        }
        // Whoever is told acts on it first; the clock is looked at again after that.
        let alone = next.is_none() && !bodies;
        if self.tell(|until| match until {
            WaitFor::Quiet => true,
            WaitFor::Stuck => alone,
            WaitFor::Time(at) => at <= self.now(),
        }) {
            return;
        }
        if !self.jump(next, wanted) {
            seam::sleep(LOOK_AGAIN, "clock");
        }
    }
}
