//! The store in memory: the contract of [`crate::store`] in its plainest form.
//!
//! It is for tests and for programs whose runs need not outlive them, and it is the model that the
//! other stores are compared with. "Durable" means here: as long as one of its clones exists.
//!
//! It is also the example of a store over [the row layer](crate::store::rows). It uses nothing of this
//! crate that is not public: a test of `everstep-conformance` compiles these files from outside.
//!
//! Always true:
//! - All data is behind one lock, which is held for one call and never while a callback runs.
//! - A batch is applied under the lock as a whole, so nobody sees half of it.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    convert::Infallible,
    ops::Bound,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use uuid::Uuid;

mod children;
mod limits;

use self::{children::Children, limits::Limits};
use super::{
    rows::{self, Head, Keyed, Tombstone},
    *,
};
use crate::{RunId, RunNo, ShardId, Timestamp};

mod deferreds;
mod doctor;
mod events;
mod letters;
mod operators;
mod overview;
mod pools;
mod queues;
mod runs;
mod schedules;
mod streams;
mod sweep;

/// How long the row of a runner is kept after its lease has ended, for people to see.
pub(crate) const DEAD_RUNNER_KEPT: Duration = Duration::from_secs(24 * 3_600);

/// A store in memory. Clones share the data; [`fork`](MemoryStore::fork) copies it.
#[derive(Clone, Default)]
pub struct MemoryStore(Arc<Shared>);

#[derive(Default)]
struct Shared {
    /// Inside an `Arc` so that a fork costs nothing until one side writes.
    data: Mutex<Arc<Data>>,
    listeners: Arc<Mutex<Listeners>>,
    counters: Counters,
}

/// What is called on a wake-up, by the number of its registration.
#[derive(Default)]
struct Listeners {
    next: u64,
    by_registration: BTreeMap<u64, (Uuid, WakeFn)>,
}

/// Takes its registration out when dropped.
struct Registration {
    listeners: Arc<Mutex<Listeners>>,
    no: u64,
}

#[derive(Default)]
struct Counters {
    batches: AtomicU64,
    writes: AtomicU64,
    rows: AtomicU64,
    reads: AtomicU64,
}

/// The rows, and the batch that is being applied.
#[derive(Clone, Default)]
pub(super) struct Data {
    /// Inside `Arc`s so that the first write after a fork copies pointers, not histories.
    runs: BTreeMap<RunNo, Arc<Run>>,
    keys: HashMap<(Arc<str>, String), RunNo>,
    /// Keys of deleted runs.
    tombstones: HashMap<(Arc<str>, String), Tombstone>,
    /// Deleted runs that were not swept yet: their numbers are not free.
    graves: BTreeSet<RunNo>,
    requests: HashMap<Uuid, Request>,
    dead_letters: BTreeMap<u64, DeadLetter>,
    last_letter: u64,
    events: events::Events,
    deferreds: deferreds::Deferreds,
    /// Runs by when they are due.
    due: BTreeSet<(Timestamp, RunNo)>,
    schedules: BTreeMap<String, Arc<ScheduleRow>>,
    runners: BTreeMap<Uuid, Runner>,
    shards: BTreeMap<ShardId, Uuid>,
    pools: pools::PoolNames,
    last_epoch: u64,
    rows_written: u64,
    queues: queues::Queues,
    /// Of the batch that is being applied.
    notices: Vec<Notice>,
    pub(super) now: Timestamp,
    /// The runner that writes it, if its fence holds.
    claimer: Option<Uuid>,
    children: Children,
    limits: Limits,
    operators: operators::Operators,
    /// All runs that retention has deleted had ended before it.
    horizon: Option<Timestamp>,
}

#[derive(Clone)]
struct Run {
    /// What decisions are made from. In `row` these columns are those of the start.
    head: Head,
    row: RunRow,
    /// The entries of the current generation.
    history: BTreeMap<Vec<u8>, Vec<u8>>,
    /// The unread messages.
    inbox: BTreeMap<u64, InboxRow>,
    dedupes: BTreeSet<String>,
    state: BTreeMap<String, Vec<u8>>,
    streams: streams::Streams,
}

#[derive(Clone)]
struct Request {
    run: RunNo,
    answer: Option<Answer>,
}

#[derive(Clone)]
struct Runner {
    epoch: u64,
    name: String,
    lease_until: Timestamp,
    lease: Duration,
    workflows: Vec<Serves>,
    pools: Vec<String>,
    weight: u32,
}

impl MemoryStore {
    /// An empty store.
    pub fn new() -> MemoryStore {
        MemoryStore::default()
    }

    /// An empty store whose tokens are made with this secret: for tests that compare what two stores
    /// come to.
    pub fn with_secret(secret: Secret) -> MemoryStore {
        let store = MemoryStore::default();
        store.write(|data| data.deferreds.secret = secret);
        store
    }

    /// An independent copy of everything that is stored now. Nobody listens to it yet.
    pub fn fork(&self) -> MemoryStore {
        let data = Arc::clone(&self.lock());
        MemoryStore(Arc::new(Shared { data: Mutex::new(data), ..Shared::default() }))
    }

    fn lock(&self) -> MutexGuard<'_, Arc<Data>> {
        self.0.data.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The data as it is now. It does not change any more, so no lock is held while it is read.
    fn read(&self) -> Arc<Data> {
        self.0.counters.reads.fetch_add(1, Ordering::Relaxed);
        Arc::clone(&self.lock())
    }

    fn write<T>(&self, change: impl FnOnce(&mut Data) -> T) -> T {
        change(Arc::make_mut(&mut self.lock()))
    }
}

impl std::fmt::Debug for MemoryStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("MemoryStore").field("runs", &self.lock().runs.len()).finish()
    }
}

impl Store for MemoryStore {
    fn describe(&self) -> String {
        "the store in memory".to_owned()
    }

    fn is_local(&self) -> bool {
        true
    }

    fn migrate(&self) -> Result<(), StoreError> {
        Ok(())
    }

    fn secret(&self) -> Result<Secret, StoreError> {
        Ok(self.read().deferreds.secret.clone())
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        let counters = &self.0.counters;
        let applied = self.write(|data| {
            let before = data.rows_written;
            let applied = data.commit(batch);
            let (rows, writes) = (data.rows_written - before, batch.writes.len() as u64);
            // Under the lock: whoever sees what the batch did finds it counted.
            counters.batches.fetch_add(1, Ordering::Relaxed);
            counters.writes.fetch_add(writes, Ordering::Relaxed);
            counters.rows.fetch_add(rows, Ordering::Relaxed);
            applied
        });
        Ok(applied)
    }

    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> {
        let data = self.read();
        Ok(data.find(target).and_then(|no| data.runs.get(&no)).map(|run| run.row()))
    }

    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> {
        Ok(self.read().runs.get(&run).map(|run| LoadedRun {
            row: run.row(),
            history: run.entries_after(None).collect(),
            inbox: run.inbox.values().cloned().collect(),
            streams: run.streams.keys().cloned().collect(),
        }))
    }

    fn children(&self, parent: RunNo) -> Result<Vec<RunId>, StoreError> {
        Ok(self.read().live_children(parent))
    }

    fn inbox(&self, run: RunNo, after: u64) -> Result<Vec<InboxRow>, StoreError> {
        Ok(self.read().runs.get(&run).map_or_else(Vec::new, |run| run.inbox_after(after)))
    }

    fn due(
        &self,
        now: Timestamp,
        shards: &ShardSet,
        after: Option<(Timestamp, RunNo)>,
        limit: usize,
    ) -> Result<Due, StoreError> {
        let data = self.read();
        let owned = |(_, no): &&(Timestamp, RunNo)| shards.contains(data.runs[no].head.shard);
        let last = (now, RunNo(i64::MAX));
        let first = after.map_or(Bound::Unbounded, Bound::Excluded);
        let is_past_end = after.is_some_and(|after| after >= last);
        let mut runs: Vec<DueRun> = if is_past_end {
            Vec::new()
        } else {
            let due = data.due.range((first, Bound::Included(last))).filter(owned).take(limit);
            due.map(|(_, no)| data.runs[no].due_run()).collect()
        };
        let left = limit - runs.len();
        runs.extend(data.of_the_future(now, shards, after).take(left));
        let later = data.due.range((Bound::Excluded(last), Bound::Unbounded));
        Ok(Due { runs, next_at: later.filter(owned).map(|(at, _)| *at).next() })
    }

    fn live(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<DueRun>, StoreError> {
        let data = self.read();
        let rest =
            data.runs.range((after.map_or(Bound::Unbounded, Bound::Excluded), Bound::Unbounded));
        let live =
            rest.map(|(_, run)| run).filter(|run| run.is_live() && shards.contains(run.head.shard));
        Ok(live.take(limit).map(|run| run.due_run()).collect())
    }

    fn paused(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<PausedRun>, StoreError> {
        let data = self.read();
        let after = after.map_or(Bound::Unbounded, Bound::Excluded);
        let rest = data.runs.range((after, Bound::Unbounded));
        let paused = rest.map(|(_, run)| run).filter(|run| {
            run.head.status == RunStatus::Paused
                && run.head.available_at.is_none()
                && shards.contains(run.head.shard)
        });
        let paused = paused.map(|run| PausedRun {
            id: run.head.id,
            workflow: Arc::clone(&run.row.workflow),
            version: run.row.version,
            reason: run.row.waiting.clone(),
        });
        Ok(paused.take(limit).collect())
    }

    fn census(&self, now: Timestamp, shards: &ShardSet) -> Result<Census, StoreError> {
        let mut census = Census::default();
        for run in self.read().runs.values() {
            if !shards.contains(run.head.shard) {
                continue;
            }
            match (run.head.status, run.head.available_at) {
                (RunStatus::Pending | RunStatus::Sleeping, Some(at)) if at > now => {
                    census.timers += 1;
                }
                (RunStatus::Pending | RunStatus::Sleeping, Some(_)) => census.due += 1,
                (RunStatus::Sleeping, None) => census.waiting += 1,
                (RunStatus::Paused, _) => census.paused += 1,
                _ => {}
            }
        }
        Ok(census)
    }

    fn list(
        &self,
        filter: &Filter,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<RunRow>, StoreError> {
        let data = self.read();
        let older = (Bound::Unbounded, after.map_or(Bound::Unbounded, Bound::Excluded));
        let runs = data.runs.range(older).rev().map(|(_, run)| run);
        Ok(runs.filter(|run| run.matches(filter)).take(limit).map(|run| run.row()).collect())
    }

    fn finished_before(
        &self,
        workflow: &str,
        status: RunStatus,
        before: Timestamp,
        limit: usize,
    ) -> Result<Vec<(RunId, Timestamp)>, StoreError> {
        let data = self.read();
        Ok(data.finished_before(workflow, status, before, limit))
    }

    fn sweep(&self, now: Timestamp, _limit: usize) -> Result<bool, StoreError> {
        self.write(|data| data.sweep(now));
        Ok(false)
    }

    fn count(&self, filter: &Filter) -> Result<u64, StoreError> {
        Ok(self.read().runs.values().filter(|run| run.matches(filter)).count() as u64)
    }

    fn count_by_status(&self, filter: &Filter) -> Result<StatusCounts, StoreError> {
        Ok(self.read().count_by_status(filter))
    }

    fn stats(&self, range: &StatsRange) -> Result<Vec<StatsRow>, StoreError> {
        Ok(self.read().stats(range))
    }

    fn horizon(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.read().horizon)
    }

    fn raise_horizon(&self, to: Timestamp) -> Result<(), StoreError> {
        self.write(|data| data.horizon = data.horizon.max(Some(to)));
        Ok(())
    }

    fn queues(
        &self,
        after: Option<&str>,
        limit: usize,
        most: u64,
    ) -> Result<Vec<QueueRow>, StoreError> {
        Ok(self.read().queues.overview(after, limit, most))
    }

    fn tally(&self) -> Result<Vec<WorkflowCount>, StoreError> {
        let mut counts = HashMap::<(Arc<str>, RunStatus), u64>::new();
        for run in self.read().runs.values() {
            let of = (run.row.workflow.clone(), run.head.status);
            *counts.entry(of).or_default() += 1;
        }
        let tallies = counts.into_iter().map(|((workflow, status), runs)| WorkflowCount {
            workflow,
            status,
            runs,
        });
        Ok(tallies.collect())
    }

    fn history(
        &self,
        run: RunNo,
        after: Option<&[u8]>,
        limit: usize,
    ) -> Result<Vec<Put>, StoreError> {
        let data = self.read();
        let run = data.runs.get(&run);
        Ok(run.map_or_else(Vec::new, |run| run.entries_after(after).take(limit).collect()))
    }

    fn state(&self, run: RunNo) -> Result<Vec<(String, Vec<u8>)>, StoreError> {
        let data = self.read();
        let state = data.runs.get(&run).map(|run| run.state.clone());
        Ok(state.unwrap_or_default().into_iter().collect())
    }

    fn stream(
        &self,
        run: RunNo,
        stream: &str,
        from: u64,
        limit: usize,
    ) -> Result<Option<StreamPage>, StoreError> {
        let data = self.read();
        let run = data.runs.get(&run);
        Ok(run.map(|run| run.stream_page(stream, from, limit)))
    }

    fn streams(&self, run: RunNo) -> Result<Vec<StreamExtent>, StoreError> {
        let data = self.read();
        let run = data.runs.get(&run).into_iter();
        Ok(run.flat_map(|run| run.streams.keys().map(|stream| run.extent(stream))).collect())
    }

    fn streams_grown(&self, asked: &[(RunNo, String, u64)]) -> Result<Vec<usize>, StoreError> {
        let data = self.read();
        let grown = asked.iter().enumerate().filter(|(_, (run, stream, from))| {
            let run = data.runs.get(run);
            run.is_some_and(|run| run.extent(stream).next > *from)
        });
        Ok(grown.map(|(place, _)| place).collect())
    }

    fn finished(&self, runs: &[RunNo]) -> Result<Vec<(RunNo, Option<Finished>)>, StoreError> {
        let data = self.read();
        let ended = runs.iter().filter_map(|no| match data.runs.get(no) {
            None => Some((*no, None)),
            Some(run) if run.head.status.is_terminal() => Some((*no, Some(run.finished()))),
            Some(_) => None,
        });
        Ok(ended.collect())
    }

    fn answers(&self, requests: &[Uuid]) -> Result<Vec<(Uuid, Answer)>, StoreError> {
        let data = self.read();
        let answered = requests.iter().filter_map(|id| match data.requests.get(id) {
            None => Some((*id, Answer::Unknown)),
            Some(request) => request.answer.clone().map(|answer| (*id, answer)),
        });
        Ok(answered.collect())
    }

    fn dead_letters(
        &self,
        filter: &LetterFilter,
        after: u64,
        limit: usize,
    ) -> Result<Vec<DeadLetter>, StoreError> {
        Ok(self.read().letters(filter, after, limit))
    }

    fn event(&self, name: &str) -> Result<Option<EventRow>, StoreError> {
        Ok(self.read().events.row(name))
    }

    fn events_to_tend(&self, now: Timestamp) -> Result<bool, StoreError> {
        Ok(self.read().events.to_tend(now))
    }

    fn queue_item(&self, item: ItemId) -> Result<Option<ItemRow>, StoreError> {
        Ok(self.read().queues.row(item))
    }

    fn queue_items(
        &self,
        queue: &str,
        state: Option<ItemState>,
        after: Option<ItemId>,
        limit: usize,
    ) -> Result<Vec<ItemRow>, StoreError> {
        Ok(self.read().queues.list(queue, state, after, limit))
    }

    fn queue_stats(&self, queue: &str) -> Result<QueueStats, StoreError> {
        Ok(self.read().queues.stats(queue))
    }

    fn queue_outlook(&self, queue: &str, now: Timestamp) -> Result<QueueOutlook, StoreError> {
        Ok(self.read().queues.outlook(queue, now))
    }

    fn first_place_lost(&self) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.read().first_place_lost())
    }

    fn queue_ended(&self, items: &[ItemId]) -> Result<Vec<(ItemId, Option<Vec<u8>>)>, StoreError> {
        Ok(self.read().queues.ended(items))
    }

    fn schedule(&self, name: &str) -> Result<Option<ScheduleRow>, StoreError> {
        Ok(self.read().schedule_row(name))
    }

    fn schedules(&self, after: Option<&str>, limit: usize) -> Result<Vec<ScheduleRow>, StoreError> {
        Ok(self.read().schedules_after(after, limit, |_| true))
    }

    fn due_schedules(
        &self,
        now: Timestamp,
        after: Option<(Timestamp, &str)>,
        limit: usize,
    ) -> Result<DueSchedules, StoreError> {
        Ok(self.read().due_schedules(now, after, limit))
    }

    fn queued_schedules(
        &self,
        after: Option<&str>,
        limit: usize,
    ) -> Result<Vec<ScheduleRow>, StoreError> {
        let is_meant = |row: &ScheduleRow| !row.paused && !row.queue.is_empty();
        Ok(self.read().schedules_after(after, limit, is_meant))
    }

    fn limit_places(&self, run: RunNo) -> Result<Vec<LimitPlace>, StoreError> {
        Ok(self.read().limit_places(run))
    }

    fn limits(&self, name: Option<&str>, limit: usize) -> Result<Vec<LimitRow>, StoreError> {
        Ok(self.read().limits.list(name, limit))
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        Ok(self.read().pools.rows())
    }

    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> {
        Ok(self.write(|data| data.operators.begin_audit(begun)))
    }

    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> {
        Ok(self.write(|data| data.operators.end_audit(no, outcome)))
    }

    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        Ok(self.read().operators.audits(before, limit))
    }

    fn delete_audits(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<Option<Timestamp>, StoreError> {
        Ok(self.write(|data| {
            data.operators.delete_audits(before, limit);
            data.operators.oldest_audit()
        }))
    }

    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> {
        Ok(self.write(|data| data.operators.add_token(token)))
    }

    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
        Ok(self.write(|data| data.operators.remove_token(name)))
    }

    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> {
        self.write(|data| data.operators.note_token_used(name, at));
        Ok(())
    }

    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> {
        Ok(self.read().operators.tokens())
    }

    fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
        Ok(self.read().examine(ask))
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        Ok(self.write(|data| data.register_runner(runner)))
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        Ok(self.write(|data| match data.runners.get_mut(&fence.runner) {
            Some(runner) if runner.epoch == fence.epoch => {
                runner.lease_until = now + lease;
                true
            }
            _ => false,
        }))
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        let data = self.read();
        let rows = data.runners.iter().map(|(id, runner)| RunnerRow {
            id: *id,
            epoch: runner.epoch,
            name: runner.name.clone(),
            lease_until: runner.lease_until,
            lease: runner.lease,
            shards: data.held_by(*id),
            workflows: runner.workflows.clone(),
            pools: runner.pools.clone(),
            weight: runner.weight,
        });
        Ok(rows.collect())
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Result<Option<ShardSet>, StoreError> {
        Ok(self.write(|data| data.take_shards(fence, now, wanted, gone)))
    }

    /// A runner listens for wake-ups as long as it lives.
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let listeners = lock(&self.0.listeners);
        let mut alive = listeners.by_registration.values();
        !alive.any(|(id, _)| *id == runner)
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        self.write(|data| {
            if data.fence_holds(fence) {
                data.shards.retain(|no, holder| *holder != fence.runner || !shards.contains(*no));
            }
        });
        Ok(())
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        self.write(|data| {
            if data.fence_holds(fence) {
                data.runners.remove(&fence.runner);
                data.shards.retain(|_, holder| *holder != fence.runner);
            }
        });
        Ok(())
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        let listeners =
            lock(&self.0.listeners).by_registration.values().cloned().collect::<Vec<_>>();
        for (id, wake) in listeners {
            if Some(id) != me {
                wake(runs);
            }
        }
    }

    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        let mut listeners = lock(&self.0.listeners);
        let no = listeners.next;
        listeners.next += 1;
        listeners.by_registration.insert(no, (me, wake));
        Ok(WakeGuard::new(Registration { listeners: Arc::clone(&self.0.listeners), no }))
    }

    fn counters(&self) -> StoreCounters {
        let counters = &self.0.counters;
        StoreCounters {
            batches: counters.batches.load(Ordering::Relaxed),
            writes: counters.writes.load(Ordering::Relaxed),
            rows: counters.rows.load(Ordering::Relaxed),
            reads: counters.reads.load(Ordering::Relaxed),
        }
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let removed = lock(&self.listeners).by_registration.remove(&self.no);
        // The callback may own a store itself, so it is dropped after the lock.
        drop(removed);
    }
}

fn lock(listeners: &Mutex<Listeners>) -> MutexGuard<'_, Listeners> {
    listeners.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Data {
    fn commit(&mut self, batch: &Batch) -> Applied {
        (self.now, self.claimer) = (batch.now, None);
        let Ok(applied) = rows::apply(self, batch);
        applied
    }

    fn fence_holds(&self, fence: Fence) -> bool {
        let runner = self.runners.get(&fence.runner);
        runner.is_some_and(|runner| runner.epoch == fence.epoch)
    }

    /// The row, to be changed; and `due` follows by itself.
    fn change<T>(&mut self, no: RunNo, change: impl FnOnce(&mut Run) -> T) -> Option<T> {
        let run = Arc::make_mut(self.runs.get_mut(&no)?);
        let before = run.head.available_at;
        let result = change(run);
        let after = run.head.available_at;
        if before != after {
            before.map(|at| self.due.remove(&(at, no)));
            after.map(|at| self.due.insert((at, no)));
        }
        self.rows_written += 1;
        Some(result)
    }

    fn find(&self, target: &Target) -> Option<RunNo> {
        match target {
            Target::Id(id) => {
                let run = self.runs.get(&id.no())?;
                // The number says less than the id: it may be another run's.
                (run.head.id == *id).then_some(id.no())
            }
            Target::Key { workflow, key } => {
                self.keys.get(&(Arc::from(workflow.as_str()), key.clone())).copied()
            }
        }
    }
}

/// Runners and shards.
impl Data {
    /// Runs that are due at once, and whose ids were made by a clock that is ahead.
    fn of_the_future(
        &self,
        now: Timestamp,
        shards: &ShardSet,
        after: Option<(Timestamp, RunNo)>,
    ) -> impl Iterator<Item = DueRun> {
        let ahead = self.runs.range(RunId::first_no(now + FUTURE)..);
        let placed = ahead.filter_map(|(no, run)| Some((run.head.available_at?, *no, run)));
        let mut found: Vec<_> = placed
            .filter(|(at, no, run)| {
                let is_at_once = *at > now && *at <= RunId::started_at(*no);
                is_at_once && after < Some((*at, *no)) && shards.contains(run.head.shard)
            })
            .collect();
        found.sort_unstable_by_key(|(at, no, _)| (*at, *no));
        found.into_iter().map(|(_, _, run)| run.due_run())
    }

    fn held_by(&self, runner: Uuid) -> ShardSet {
        let held = self.shards.iter().filter(|(_, holder)| **holder == runner);
        held.map(|(shard, _)| *shard).collect()
    }

    /// Epochs are never used twice, so that a runner that comes back under its old id is not
    /// mistaken for its former self.
    fn next_epoch(&mut self) -> u64 {
        self.last_epoch += 1;
        self.last_epoch
    }

    fn register_runner(&mut self, new: &NewRunner) -> Fence {
        self.shards.retain(|_, holder| *holder != new.id);
        let holders = self.shards.values().copied().collect::<BTreeSet<_>>();
        self.runners.retain(|id, runner| {
            holders.contains(id) || runner.lease_until + DEAD_RUNNER_KEPT > new.now
        });
        for pool in &new.pools {
            self.pools.no(pool);
        }
        let epoch = self.next_epoch();
        let lease_until = new.now + new.lease;
        self.runners.insert(
            new.id,
            Runner {
                epoch,
                name: new.name.clone(),
                lease_until,
                lease: new.lease,
                workflows: new.workflows.clone(),
                pools: new.pools.clone(),
                weight: new.weight,
            },
        );
        Fence { runner: new.id, epoch }
    }

    fn take_shards(
        &mut self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        gone: &[Gone],
    ) -> Option<ShardSet> {
        if !self.fence_holds(fence) {
            return None;
        }
        self.oust_expired(fence.runner, now, wanted, gone);
        let free = wanted.iter().filter(|shard| !self.shards.contains_key(shard));
        let taken = free.collect::<ShardSet>();
        self.shards.extend(taken.iter().map(|shard| (shard, fence.runner)));
        Some(self.held_by(fence.runner))
    }

    /// Frees all shards of those holders of wanted shards whose lease is over, or who are gone, and
    /// counts a recovery on the runs that they had in memory.
    fn oust_expired(&mut self, me: Uuid, now: Timestamp, wanted: &ShardSet, gone: &[Gone]) {
        let holders = wanted.iter().filter_map(|shard| self.shards.get(&shard).copied());
        for holder in holders.collect::<BTreeSet<_>>() {
            let is_over = self.runners.get(&holder).is_none_or(|row| {
                let as_read = Gone { runner: holder, lease_until: row.lease_until };
                row.lease_until <= now || gone.contains(&as_read)
            });
            if holder == me || !is_over {
                continue;
            }
            let epoch = self.next_epoch();
            if let Some(row) = self.runners.get_mut(&holder) {
                row.epoch = epoch;
                row.lease_until = row.lease_until.min(now);
            }
            let freed = self.held_by(holder);
            self.shards.retain(|_, other| *other != holder);
            let lost =
                self.runs.values().filter(|run| run.is_live() && freed.contains(run.head.shard));
            for no in lost.map(|run| run.head.id.no()).collect::<Vec<_>>() {
                self.change(no, |run| run.row.recoveries += 1);
            }
        }
    }
}

impl Run {
    fn new(head: Head, row: RunRow) -> Run {
        Run {
            head,
            row,
            history: BTreeMap::new(),
            inbox: BTreeMap::new(),
            dedupes: BTreeSet::new(),
            state: BTreeMap::new(),
            streams: BTreeMap::new(),
        }
    }

    fn row(&self) -> RunRow {
        RunRow {
            shard: self.head.shard,
            status: self.head.status,
            ending: self.head.ending,
            generation: self.head.generation,
            available_at: self.head.available_at,
            attempts: self.head.attempts,
            inbox_seq: self.head.inbox_seq,
            cancel_requested: self.head.cancel,
            last_number: self.head.last_number,
            resume_at: self.head.resume_at,
            ..self.row.clone()
        }
    }

    fn due_run(&self) -> DueRun {
        DueRun {
            id: self.head.id,
            shard: self.head.shard,
            available_at: self.head.available_at,
            status: self.head.status,
            workflow: Arc::clone(&self.row.workflow),
            version: self.row.version,
            pool: Arc::clone(&self.row.pool),
        }
    }

    fn finished(&self) -> Finished {
        Finished {
            status: self.head.status,
            output: self.row.output.clone(),
            error: self.row.error.clone(),
        }
    }

    fn is_live(&self) -> bool {
        matches!(self.head.status, RunStatus::Running | RunStatus::RollingBack)
    }

    fn matches(&self, filter: &Filter) -> bool {
        (filter.ids.is_empty() || filter.ids.contains(&self.head.id))
            && (filter.statuses.is_empty() || filter.statuses.contains(&self.head.status))
            && filter.workflow.as_ref().is_none_or(|name| **name == *self.row.workflow)
            && filter.tags.iter().all(|tag| self.row.tags.contains(tag))
            && filter.created_from.is_none_or(|from| self.row.created_at >= from)
            && filter.created_before.is_none_or(|end| self.row.created_at < end)
            && filter.version.is_none_or(|version| self.row.version == version)
            && filter.key_prefix.as_ref().is_none_or(|prefix| {
                let key = self.row.key.as_ref();
                key.is_some_and(|key| key.starts_with(prefix))
            })
            && filter
                .finished_from
                .is_none_or(|from| self.row.finished_at.is_some_and(|at| at >= from))
            && filter
                .finished_before
                .is_none_or(|end| self.row.finished_at.is_some_and(|at| at < end))
    }

    fn entries_after(&self, after: Option<&[u8]>) -> impl Iterator<Item = Put> + '_ {
        let first = after.map_or(Bound::Unbounded, |key| Bound::Excluded(key.to_vec()));
        let entries = self.history.range((first, Bound::Unbounded));
        entries.map(|(key, value)| Put { key: key.clone(), value: value.clone() })
    }

    fn inbox_after(&self, after: u64) -> Vec<InboxRow> {
        let rest = self.inbox.range((Bound::Excluded(after), Bound::Unbounded));
        rest.map(|(_, row)| row.clone()).collect()
    }

    fn write_entries(&mut self, deletes: &[KeyRange], puts: &[Put]) {
        for KeyRange { start, end } in deletes {
            self.history.retain(|key, _| key < start || key >= end);
        }
        for Put { key, value } in puts {
            self.history.insert(key.clone(), value.clone());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fork_is_independent_in_both_directions() {
        let store = MemoryStore::new();
        let runner = |id| {
            let now = Timestamp::from_millis(0);
            NewRunner::new(Uuid::from_u128(id), "runner", now, Duration::from_secs(1))
        };
        let count = |store: &MemoryStore| store.runners().expect("runners").len();
        store.register_runner(&runner(1)).expect("register");
        let fork = store.fork();
        fork.register_runner(&runner(2)).expect("register");
        assert_eq!((count(&store), count(&fork)), (1, 2));
        store.register_runner(&runner(3)).expect("register");
        store.register_runner(&runner(4)).expect("register");
        assert_eq!((count(&store), count(&fork), count(&store.clone())), (3, 2, 3));
    }
}
