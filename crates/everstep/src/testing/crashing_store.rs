//! A store that dies at a chosen write, and keeps what would have survived.

use std::{
    collections::HashSet,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use uuid::Uuid;

use super::audit::Audit;
#[cfg(feature = "postgres")]
use crate::store::BoxFuture;
use crate::{
    commit::ItemId,
    run_id::{RunId, RunNo},
    seam,
    store::{
        Answer, ApiTokenRow, Applied, Ask, AuditRow, Batch, Census, DeadLetter, Due, DueRun,
        DueSchedules, EventRow, Facts, Fence, Filter, Finished, InboxRow, ItemRow, ItemState,
        LetterFilter, LimitPlace, LimitRow, LoadedRun, NewAudit, NewRunner, PausedRun, PoolRow,
        Put, QueueOutlook, QueueRow, QueueStats, RunRow, RunStatus, RunnerRow, ScheduleRow, Secret,
        ShardSet, StatsRange, StatsRow, StatusCounts, Store, StoreCounters, StoreError,
        StreamExtent, StreamPage, Target, WakeFn, WakeGuard, WorkflowCount,
    },
    time::Timestamp,
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

    /// The next call of this method fails, before it has done anything: one of `commit`, `due`,
    /// `finished`, `heartbeat`, `live`, `load`, `paused`, `release_shards`, `run` and `take_shards`.
    #[doc(hidden)]
    pub fn fail_next(
        &self,
        method: &'static str,
        failing: impl FnOnce() -> StoreError + Send + 'static,
    ) {
        lock(&self.failing).push((method, Box::new(failing)));
    }

    /// The next call of this method is made, and its answer is lost: one of `commit`,
    /// `release_shards` and `take_shards`.
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

    fn called(&self, method: &'static str) -> Result<(), StoreError> {
        next_of(&self.failing, method)
    }

    fn answered<T>(&self, method: &'static str, answer: T) -> Result<T, StoreError> {
        next_of(&self.losing, method).map(|()| answer)
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

impl<S: Store> Store for CrashingStore<S> {
    fn describe(&self) -> String {
        self.inner.describe()
    }

    fn is_local(&self) -> bool {
        self.inner.is_local()
    }

    fn time(&self) -> Option<Timestamp> {
        self.inner.time()
    }

    fn time_is_old(&self) -> bool {
        self.inner.time_is_old()
    }

    fn ask_time(&self) -> Result<(), StoreError> {
        self.read(Store::ask_time)
    }

    fn migrate(&self) -> Result<(), StoreError> {
        self.read(Store::migrate)
    }

    fn secret(&self) -> Result<Secret, StoreError> {
        self.read(Store::secret)
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.called("commit")?;
        let mut applied = self.write(|store, state| {
            state.commits += 1;
            let applied = store.commit(batch)?;
            if let Some(audit) = &self.audit {
                audit.committed(batch, &applied);
            }
            Ok(applied)
        })?;
        if let Some(outcomes) = lock(&self.outcomes_kept).take() {
            applied.outcomes.truncate(outcomes);
        }
        self.answered("commit", applied)
    }

    #[cfg(feature = "sqlite")]
    fn commit_in(
        &self,
        tx: &rusqlite::Transaction<'_>,
        batch: &Batch,
    ) -> Result<Applied, StoreError> {
        // No write of ours: it is made, or not, when the caller commits.
        self.read(|store| store.commit_in(tx, batch))
    }

    #[cfg(feature = "postgres")]
    fn commit_in_pg<'a>(
        &'a self,
        tx: &'a tokio_postgres::Transaction<'_>,
        batch: Batch,
    ) -> BoxFuture<'a, Result<Applied, StoreError>> {
        match self.read(|_| Ok(())) {
            Ok(()) => self.inner.commit_in_pg(tx, batch),
            Err(error) => Box::pin(std::future::ready(Err(error))),
        }
    }

    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> {
        self.called("run")?;
        self.read(|store| store.run(target))
    }

    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> {
        self.called("load")?;
        self.read(|store| store.load(run))
    }

    fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError> {
        self.read(|store| store.inbox(run, after))
    }

    fn due(
        &self,
        now: Timestamp,
        shards: &ShardSet,
        after: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Due, StoreError> {
        self.called("due")?;
        self.read(|store| store.due(now, shards, after, limit))
    }

    fn live(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<DueRun>, StoreError> {
        self.called("live")?;
        self.read(|store| store.live(shards, after, limit))
    }

    fn paused(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<PausedRun>, StoreError> {
        self.called("paused")?;
        self.read(|store| store.paused(shards, after, limit))
    }

    fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError> {
        self.read(|store| store.census(now, shards))
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunRow>, StoreError> {
        self.read(|store| store.list(filter, after, limit))
    }

    fn find(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunId>, StoreError> {
        self.read(|store| store.find(filter, after, limit))
    }

    fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<(RunId, Timestamp)>, StoreError> {
        self.read(|store| store.finished_before(workflow, status, before, limit))
    }

    /// No point to die at: it is done at times of its own, and nothing that can be read depends on
    /// it.
    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> {
        self.read(|store| store.sweep(now, limit))
    }

    fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        self.read(|store| store.count(filter))
    }

    fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError> {
        self.read(|store| store.count_by_status(filter))
    }

    fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError> {
        self.read(|store| store.stats(range))
    }

    fn horizon(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(|store| store.horizon())
    }

    fn raise_horizon(&self, to: Timestamp) -> Result<(), StoreError> {
        self.read(|store| store.raise_horizon(to))
    }

    fn queues(
        &self,
        after: Option<&str>,
        limit: usize,
        most: u64,
    ) -> Result<Vec<QueueRow>, StoreError> {
        self.read(|store| store.queues(after, limit, most))
    }

    fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError> {
        self.read(|store| store.children(parent))
    }

    fn unread(&self, run: RunNo, after: u64, limit: usize) -> Result<Vec<InboxRow>, StoreError> {
        self.read(|store| store.unread(run, after, limit))
    }

    fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError> {
        self.read(|store| store.tally())
    }

    fn history(
        &self,
        run: RunNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Put>, StoreError> {
        self.read(|store| store.history(run, after, limit))
    }

    fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        self.read(|store| store.state(run))
    }

    fn stream(
        &self,
        run: RunNo,
        stream: &str,
        from: u64,
        limit: usize,
    ) -> Result<Option<StreamPage>, StoreError> {
        self.read(|store| store.stream(run, stream, from, limit))
    }

    fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError> {
        self.read(|store| store.streams(run))
    }

    fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError> {
        self.read(|store| store.streams_grown(asked))
    }

    fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError> {
        self.called("finished")?;
        self.read(|store| store.finished(runs))
    }

    fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError> {
        self.read(|store| store.answers(requests))
    }

    fn dead_letters(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        self.read(|store| store.dead_letters(filter, after, limit))
    }

    fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError> {
        self.read(|store| store.event(name))
    }

    fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError> {
        self.read(|store| store.events_to_tend(now))
    }

    fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError> {
        self.read(|store| store.queue_item(item))
    }

    fn queue_items(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemRow>, StoreError> {
        self.read(|store| store.queue_items(queue, state, after, limit))
    }

    fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError> {
        self.read(|store| store.queue_stats(queue))
    }

    fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError> {
        self.read(|store| store.queue_outlook(queue, now))
    }

    fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError> {
        self.read(|store| store.first_place_lost())
    }

    fn queue_ended(&self, items: &[ItemId]) -> Result<Vec<(ItemId, Option<Vec<u8>>)>, StoreError> {
        self.read(|store| store.queue_ended(items))
    }

    fn has_old_generations(&self) -> Result<bool, StoreError> {
        self.read(|store| store.has_old_generations())
    }

    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError> {
        self.read(|store| store.schedule(name))
    }

    fn schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError> {
        self.read(|store| store.schedules(after, limit))
    }

    fn due_schedules(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<DueSchedules, StoreError> {
        self.read(|store| store.due_schedules(now, after, limit))
    }

    fn queued_schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleRow>, StoreError> {
        self.read(|store| store.queued_schedules(after, limit))
    }

    fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError> {
        self.read(|store| store.limit_places(run))
    }

    fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError> {
        self.read(|store| store.limits(name, limit))
    }

    /// No point to die at, and neither are the other changes that are made for operators: no run
    /// depends on them.
    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> {
        self.read(|store| store.begin_audit(begun))
    }

    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> {
        self.read(|store| store.end_audit(no, outcome))
    }

    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read(|store| store.audits(before, limit))
    }

    fn delete_audits(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.read(|store| store.delete_audits(before, limit))
    }

    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> {
        self.read(|store| store.add_api_token(token))
    }

    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
        self.read(|store| store.remove_api_token(name))
    }

    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> {
        self.read(|store| store.note_api_token_used(name, at))
    }

    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> {
        self.read(Store::api_tokens)
    }

    fn copy_to(
        &self,
        to: &std::path::Path,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<bool, StoreError> {
        self.read(|store| store.copy_to(to, progress))
    }

    fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
        self.read(|store| store.examine(ask))
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        self.write(|store, state| {
            state.runners.insert(runner.id);
            store.register_runner(runner)
        })
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        self.called("heartbeat")?;
        self.read(|store| store.heartbeat(fence, now, lease))
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.read(Store::pools)
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        self.read(Store::runners)
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        dead: &[Uuid],
    ) -> Result<Option<ShardSet>, StoreError> {
        self.called("take_shards")?;
        let held = self.write(|store, _| store.take_shards(fence, now, wanted, dead))?;
        self.answered("take_shards", held)
    }

    /// All runners that were not entered through this store died with an earlier one.
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let here = self.lock().runners.contains(&runner);
        !here || self.inner.runner_is_dead(runner)
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        self.called("release_shards")?;
        self.write(|store, _| store.release_shards(fence, shards))?;
        self.answered("release_shards", ())
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        self.write(|store, _| store.deregister_runner(fence))
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        if !self.is_dead() && !seam::is_dead() {
            self.inner.wake_others(me, runs);
        }
    }

    fn after_wakes(&self, then: Box<dyn FnOnce() + Send>) {
        self.inner.after_wakes(then);
    }

    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        self.read(|store| store.on_wake(me, wake))
    }

    fn counters(&self) -> StoreCounters {
        self.inner.counters()
    }
}
