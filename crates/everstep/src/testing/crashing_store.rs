//! A store that dies at a chosen write, and keeps what would have survived.

use std::{
    collections::HashSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
};

use uuid::Uuid;

use super::{
    around::{Around, Call},
    audit::Audit,
};
use crate::{
    run_id::RunNo,
    seam,
    store::{Applied, Batch, Store, StoreError},
};

/// Where a [`CrashingStore`] dies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum CrashPoint {
    /// Just before the n-th write, from 1: nothing of it survives.
    Before(u64),
    /// Just after the n-th write, from 1: it survives, and nobody is told.
    After(u64),
}

impl std::fmt::Display for CrashPoint {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            CrashPoint::Before(n) => write!(f, "before write {n}"),
            CrashPoint::After(n) => write!(f, "after write {n}"),
        }
    }
}

/// A store that dies before or after its n-th write. Every later call fails with
/// [`StoreError::Closed`], so an engine on it stops, and what it had in memory is gone.
///
/// What counts as a write: batches, and the entering and taking of shards by runners; not
/// heartbeats, which come by the clock on the wall.
///
/// ```
/// use std::sync::Arc;
/// use everstep::{prelude::*, store::MemoryStore};
/// use everstep::testing::{CrashPoint, CrashingStore, VirtualClock};
///
/// #[workflow]
/// async fn one(ctx: Ctx, _: ()) -> Result<u32> {
///     ctx.step("one", async || Ok(1)).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// // An engine enters itself and takes its shards: two writes. The third is the start of the run.
/// let store = Arc::new(CrashingStore::new(MemoryStore::new(), CrashPoint::After(3)));
/// let engine = Engine::on(store.clone()).clock(VirtualClock::new()).register(one).start().await?;
/// assert!(engine.client().start(one, ()).key("k").await.is_err());
/// assert!(store.is_dead());
/// engine.shutdown().await;
///
/// let survivor = store.inner().fork();
/// let engine = Engine::on(Arc::new(survivor)).clock(VirtualClock::new()).register(one).start().await?;
/// assert_eq!(engine.recovery().resumed, 1);
/// let run = engine.client().start(one, ()).key("k").await?;
/// assert!(run.attached());
/// assert_eq!(run.result().await?, 1);
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub struct CrashingStore<S> {
    inner: S,
    plan: Plan,
    dead: AtomicBool,
    /// Held for each write, so that nothing is written after the end.
    state: Mutex<State>,
    audit: Option<Audit>,
    /// Called once, at the instant of death.
    on_death: Mutex<Option<OnDeath>>,
    /// What happens to the store just before which write.
    meddling: Mutex<Option<Meddle<S>>>,
    /// What happens to it just after.
    meddling_after: Mutex<Option<Meddle<S>>>,
    /// Calls that fail before they are made, by the names of their methods.
    failing: Mutex<Vec<(&'static str, Failing)>>,
    /// Calls that are made and fail.
    losing: Mutex<Vec<(&'static str, Failing)>>,
    /// How many outcomes the next batch is answered with, if not with all.
    outcomes_kept: Mutex<Option<usize>>,
}

/// What is done to the store underneath before or after a write, by its number; whether that is
/// all.
type Meddle<S> = Box<dyn FnMut(u64, &S) -> bool + Send>;

/// Says how a call fails, after whatever else is to happen before it does.
type Failing = Box<dyn FnOnce() -> StoreError + Send>;

type OnDeath = Box<dyn FnOnce() + Send>;

enum Plan {
    Never,
    At(CrashPoint),
    /// Dead as soon as this says so: an answer that was given before it said so counts.
    #[cfg(feature = "sqlite")]
    When(Box<dyn Fn() -> bool + Send + Sync>),
}

#[derive(Default)]
struct State {
    writes: u64,
    commits: u64,
    /// The runners that were entered through this store: all others died with their process.
    runners: HashSet<Uuid>,
}

impl State {
    fn began(&mut self, call: Call<'_>) {
        match call {
            Call::Commit(_) => self.commits += 1,
            Call::Register(runner) => _ = self.runners.insert(runner.id),
            _ => {}
        }
    }
}

impl<S: Store> CrashingStore<S> {
    /// A store that dies at this point.
    pub fn new(inner: S, point: CrashPoint) -> CrashingStore<S> {
        CrashingStore::planned(inner, Plan::At(point), None)
    }

    /// A store that does not die, and only counts.
    pub fn counting(inner: S) -> CrashingStore<S> {
        CrashingStore::planned(inner, Plan::Never, None)
    }

    pub(super) fn audited(inner: S, point: Option<CrashPoint>, audit: Audit) -> CrashingStore<S> {
        let plan = point.map_or(Plan::Never, Plan::At);
        CrashingStore::planned(inner, plan, Some(audit))
    }

    #[cfg(feature = "sqlite")]
    pub(super) fn dying_when(
        inner: S,
        dead: impl Fn() -> bool + Send + Sync + 'static,
        audit: Option<Audit>,
    ) -> CrashingStore<S> {
        CrashingStore::planned(inner, Plan::When(Box::new(dead)), audit)
    }

    fn planned(inner: S, plan: Plan, audit: Option<Audit>) -> CrashingStore<S> {
        CrashingStore {
            inner,
            plan,
            dead: AtomicBool::new(false),
            state: Mutex::default(),
            audit,
            on_death: Mutex::default(),
            meddling: Mutex::new(None),
            meddling_after: Mutex::new(None),
            failing: Mutex::default(),
            losing: Mutex::default(),
            outcomes_kept: Mutex::default(),
        }
    }

    /// Does something to the store underneath just before its n-th write, from 1, as another process
    /// might: what the writer has seen is then out of date.
    pub fn meddle_before(self, write: u64, meddle: impl FnOnce(&S) + Send + 'static) -> Self {
        let mut once = Some(meddle);
        self.meddle_with(move |n, inner| {
            if n == write
                && let Some(meddle) = once.take()
            {
                meddle(inner);
            }
            once.is_none()
        })
    }

    /// As [`meddle_before`](CrashingStore::meddle_before), before every write until `meddle` says
    /// that it has done what it wants.
    pub fn meddle_until(self, mut meddle: impl FnMut(&S) -> bool + Send + 'static) -> Self {
        self.meddle_with(move |_, inner| meddle(inner))
    }

    fn meddle_with(self, meddle: impl FnMut(u64, &S) -> bool + Send + 'static) -> Self {
        *self.meddling.lock().unwrap_or_else(PoisonError::into_inner) = Some(Box::new(meddle));
        self
    }

    /// As [`meddle_until`](CrashingStore::meddle_until), but after every write: others can see it,
    /// and the writer has not heard of it yet.
    pub fn meddle_after(self, mut meddle: impl FnMut(&S) -> bool + Send + 'static) -> Self {
        let mut slot = lock(&self.meddling_after);
        *slot = Some(Box::new(move |_, inner| meddle(inner)));
        drop(slot);
        self
    }

    fn meddle(&self, meddling: &Mutex<Option<Meddle<S>>>, n: u64) {
        let mut slot = lock(meddling);
        if slot.as_mut().is_some_and(|meddle| meddle(n, &self.inner)) {
            *slot = None;
        }
    }

    /// The next call of this method fails, before it has done anything.
    #[doc(hidden)]
    pub fn fail_next(
        &self,
        method: &'static str,
        failing: impl FnOnce() -> StoreError + Send + 'static,
    ) {
        lock(&self.failing).push((method, Box::new(failing)));
    }

    /// The next call of this method is made, and its answer is lost.
    #[doc(hidden)]
    pub fn lose_next(
        &self,
        method: &'static str,
        failing: impl FnOnce() -> StoreError + Send + 'static,
    ) {
        lock(&self.losing).push((method, Box::new(failing)));
    }

    /// The next batch is made, and is answered with this many outcomes.
    #[doc(hidden)]
    pub fn shorten_next_answer(&self, outcomes: usize) {
        *lock(&self.outcomes_kept) = Some(outcomes);
    }

    /// Calls this at the instant of death, before anybody else learns of it.
    pub(super) fn on_death(&self, call: impl FnOnce() + Send + 'static) {
        let mut slot = self.on_death.lock().unwrap_or_else(PoisonError::into_inner);
        *slot = Some(Box::new(call));
    }

    fn end(&self) {
        self.dead.store(true, Ordering::Release);
        let mut slot = self.on_death.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(call) = slot.take() {
            call();
        }
    }

    /// The store underneath: after the death, what has survived.
    pub fn inner(&self) -> &S {
        &self.inner
    }

    /// How many writes were begun, the one that was died at included.
    pub fn writes(&self) -> u64 {
        self.lock().writes
    }

    /// How many of them were batches.
    pub fn commits(&self) -> u64 {
        self.lock().commits
    }

    /// Whether it has died.
    pub fn is_dead(&self) -> bool {
        self.dead.load(Ordering::Acquire)
    }

    /// Dies now, between two writes.
    pub fn die(&self) {
        let _no_write = self.lock();
        self.end();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn closed<T>(&self) -> Result<T, StoreError> {
        let store = format!("{}, which has died for a test,", self.inner.describe());
        Err(StoreError::Closed { store })
    }

    fn read<T>(&self, read: impl FnOnce(&S) -> Result<T, StoreError>) -> Result<T, StoreError> {
        self.between_points("read of the store", || self.read_now(read))
    }

    /// A call of the store in a simulation: another activity may go on before it is made and before
    /// it is answered, and a process that was killed meanwhile makes no call.
    fn between_points<T>(
        &self,
        label: &'static str,
        call: impl FnOnce() -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        seam::point(label);
        if seam::is_dead() {
            return self.closed();
        }
        let answer = call();
        seam::point("answer of the store");
        answer
    }

    fn read_now<T>(&self, read: impl FnOnce(&S) -> Result<T, StoreError>) -> Result<T, StoreError> {
        // Nothing is seen of a write whose fate is not decided yet.
        let _no_write = self.lock();
        if self.is_dead() {
            return self.closed();
        }
        read(&self.inner)
    }

    fn write<T>(
        &self,
        write: impl FnOnce(&S, &mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.between_points("write of the store", || self.write_now(write))
    }

    fn write_now<T>(
        &self,
        write: impl FnOnce(&S, &mut State) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let mut state = self.lock();
        if self.is_dead() {
            return self.closed();
        }
        state.writes += 1;
        let n = state.writes;
        self.meddle(&self.meddling, n);
        if matches!(self.plan, Plan::At(CrashPoint::Before(at)) if at == n) {
            self.end();
            return self.closed();
        }
        let answer = write(&self.inner, &mut state)?;
        let over = match &self.plan {
            Plan::Never | Plan::At(CrashPoint::Before(_)) => false,
            Plan::At(CrashPoint::After(at)) => *at == n,
            #[cfg(feature = "sqlite")]
            Plan::When(dead) => dead(),
        };
        if over {
            self.end();
            return self.closed();
        }
        // Whatever it does, others may read meanwhile.
        drop(state);
        self.meddle(&self.meddling_after, n);
        Ok(answer)
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Fails if the next call of this method is to.
fn next_of(
    failing: &Mutex<Vec<(&'static str, Failing)>>,
    method: &'static str,
) -> Result<(), StoreError> {
    let mut failing = lock(failing);
    let Some(at) = failing.iter().position(|(other, _)| *other == method) else {
        return Ok(());
    };
    let (_, fail) = failing.remove(at);
    drop(failing);
    Err(fail())
}

impl<S: Store> Around for CrashingStore<S> {
    type Inner = S;

    fn inner(&self) -> &S {
        &self.inner
    }

    fn around<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&S) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        next_of(&self.failing, call.method())?;
        let answer = match call {
            Call::Commit(_)
            | Call::Register(_)
            | Call::Take(..)
            | Call::Release(..)
            | Call::Deregister(_) => self.write(|store, state| {
                state.began(call);
                make(store)
            }),
            // Not at a heartbeat, which comes by the clock on the wall, nor where no run depends on the
            // change.
            Call::Read(_) | Call::Upkeep(_) | Call::Heartbeat(..) => self.read(make),
        }?;
        next_of(&self.losing, call.method()).map(|()| answer)
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.around(Call::Commit(batch), |store| {
            let mut applied = store.commit(batch)?;
            if let Some(audit) = &self.audit {
                audit.committed(batch, &applied);
            }
            if let Some(outcomes) = lock(&self.outcomes_kept).take() {
                applied.outcomes.truncate(outcomes);
            }
            Ok(applied)
        })
    }

    /// All runners that were not entered through this store died with an earlier one.
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let here = self.lock().runners.contains(&runner);
        !here || self.inner.runner_is_dead(runner)
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        if !self.is_dead() && !seam::is_dead() {
            self.inner.wake_others(me, runs);
        }
    }
}
