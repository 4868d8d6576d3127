//! The store of a simulation: one [`MemoryStore`] that all processes share, and for each process a way
//! to it that is slow, loses requests and answers, and fails.
//!
//! A call has three points: it is asked, made and answered. Between them time may pass, the process may
//! be stalled or die, and others go on. So calls of several threads are made and answered in any order,
//! and a process that died may have done what nobody was told of.
//!
//! Always true, as for every store: a commit that fails with anything but
//! [`StoreError::UnknownOutcome`] was not made, and one whose outcome is not known was made before the
//! caller is told so, or never is. Of the calls by which runners hold their shards an answer may be lost
//! with [`StoreError::Io`].

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, UNIX_EPOCH},
};

use everstep::{
    ItemId, RunId, RunNo, Timestamp,
    store::*,
    testing::simulation::{self, SimProcess},
};
use uuid::Uuid;

use super::sky::Sky;

/// What kind of store it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// A file: the processes are on one machine, the store has no clock, and a process that has ended is
    /// known to have.
    File,
    /// A database behind a network, with a clock of its own.
    Database,
}

/// What befell the calls of a store, counted.
#[derive(Default)]
pub(crate) struct Counts {
    pub(crate) errors: AtomicU64,
    pub(crate) unknown_outcomes: AtomicU64,
    pub(crate) wakes_dropped: AtomicU64,
}

/// The store itself.
pub(crate) struct Server {
    pub(crate) data: MemoryStore,
    pub(crate) counts: Counts,
    kind: Kind,
    sky: Sky,
    /// How far its clock is ahead of the simulation's calendar, in milliseconds.
    ahead_ms: i64,
    /// How much faster its clock goes, in millionths.
    ppm: i64,
    /// Where wake-ups are while they are on their way.
    network: SimProcess,
    runners: Mutex<BTreeMap<Uuid, Runner>>,
}

/// Who listens for wake-ups.
struct Runner {
    process: SimProcess,
    wake: Option<WakeFn>,
    /// Which of its registrations counts.
    registration: u64,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// An empty store, in the simulation of this thread.
    pub(crate) fn new(kind: Kind, sky: Sky, ahead_ms: i64, ppm: i64) -> Arc<Server> {
        Arc::new(Server {
            data: MemoryStore::new(),
            counts: Counts::default(),
            kind,
            sky,
            ahead_ms,
            ppm,
            network: simulation::new_process("network"),
            runners: Mutex::default(),
        })
    }

    /// The way of a process to the store. Nothing goes wrong on one that is sheltered.
    pub(crate) fn open(self: &Arc<Server>, process: &SimProcess, sheltered: bool) -> Arc<SimStore> {
        Arc::new(SimStore {
            known: Mutex::default(),
            server: self.clone(),
            process: process.clone(),
            sheltered,
        })
    }

    /// The clock of a database.
    fn time(&self) -> Timestamp {
        let passed = simulation::time().as_millis() as i64;
        let right = simulation::right_time().duration_since(UNIX_EPOCH);
        let right = right.unwrap_or_default().as_millis() as i64;
        Timestamp::from_millis(right + self.ahead_ms + passed * self.ppm / 1_000_000)
    }

    fn count(&self, error: StoreError) -> StoreError {
        let counts = &self.counts;
        counts.errors.fetch_add(1, Ordering::Relaxed);
        if matches!(error, StoreError::UnknownOutcome { .. }) {
            counts.unknown_outcomes.fetch_add(1, Ordering::Relaxed);
        }
        error
    }
}

/// The store, as one process reaches it.
pub(crate) struct SimStore {
    server: Arc<Server>,
    process: SimProcess,
    sheltered: bool,
    /// The time of a database when it was last said, and when that was by the clock of this process.
    known: Mutex<Option<(Timestamp, Instant)>>,
}

/// What is lost if the answer to a call does not come.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Call {
    Read,
    /// A change that is not a batch: whether it was made is not known after a lost answer.
    Write,
    Commit,
}

impl SimStore {
    fn store(&self) -> String {
        let kind = match self.server.kind {
            Kind::File => "SQLite file `simulated.db`",
            Kind::Database => "PostgreSQL database `simulated`",
        };
        kind.to_owned()
    }

    fn io(&self, why: &str) -> StoreError {
        StoreError::Io { store: self.store(), source: why.into() }
    }

    fn unknown(&self) -> StoreError {
        StoreError::UnknownOutcome { store: self.store(), source: "the connection was lost".into() }
    }

    fn call<T>(
        &self,
        call: Call,
        make: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        on_its_way(self.sheltered, &self.server.sky, "asked");
        if simulation::is_dead() {
            // It unwinds, or is about to.
            return Err(StoreError::Closed { store: self.store() });
        }
        if !self.sheltered
            && let Some(error) = self.trouble(call)
        {
            simulation::point("refused");
            return Err(self.server.count(error));
        }
        let answer = make(&self.server.data)?;
        simulation::point("made");
        on_its_way(self.sheltered, &self.server.sky, "answered");
        if !self.sheltered && self.server.sky.happens(self.server.sky.lost_answers) {
            let error = match call {
                Call::Read | Call::Write => self.io("the answer was lost"),
                Call::Commit => self.unknown(),
            };
            return Err(self.server.count(error));
        }
        Ok(answer)
    }

    /// Why nothing is done now.
    fn trouble(&self, call: Call) -> Option<StoreError> {
        let sky = &self.server.sky;
        if sky.is_away() {
            if self.server.kind == Kind::Database {
                simulation::sleep(Duration::from_millis(simulation::random() % 2_000));
            }
            return Some(self.io("nobody answers"));
        }
        if call != Call::Read && sky.is_full() {
            return Some(StoreError::Full {
                store: self.store(),
                source: "no space is left".into(),
            });
        }
        if sky.happens(sky.busy) {
            return Some(StoreError::Busy { store: self.store(), source: "locked".into() });
        }
        if sky.happens(sky.failures) {
            return Some(self.io("the request was lost"));
        }
        if call == Call::Commit && sky.happens(sky.lost_commits) {
            return Some(self.unknown());
        }
        None
    }

    fn read<T>(
        &self,
        read: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.call(Call::Read, read)
    }

    fn write<T>(
        &self,
        write: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        self.call(Call::Write, write)
    }

    /// The time by which leases go: that of the store, if it has one.
    fn lease_time(&self, now: Timestamp) -> Timestamp {
        match self.server.kind {
            Kind::File => now,
            Kind::Database => self.server.time(),
        }
    }

    /// Has heard the time of the store.
    fn hear_time(&self, said: Timestamp) {
        let at = simulation::instant();
        *lock(&self.known) = Some((said, at));
    }
}

/// A request or an answer is on its way: a point at least.
fn on_its_way(sheltered: bool, sky: &Sky, label: &'static str) {
    let latency = match sheltered {
        true => Duration::ZERO,
        false => sky.latency(),
    };
    match latency.is_zero() {
        true => simulation::point(label),
        false => simulation::sleep(latency),
    }
}

impl Store for SimStore {
    fn describe(&self) -> String {
        self.store()
    }

    fn is_local(&self) -> bool {
        self.server.kind == Kind::File
    }

    fn migrate(&self) -> Result<(), StoreError> {
        self.write(Store::migrate)
    }

    fn time(&self) -> Option<Timestamp> {
        if self.server.kind == Kind::File {
            return None;
        }
        // Each connection begins with the time.
        let mut known = lock(&self.known);
        let (said, at) = *known.get_or_insert_with(|| (self.server.time(), simulation::instant()));
        Some(said + simulation::instant().saturating_duration_since(at))
    }

    fn time_is_old(&self) -> bool {
        let known = *lock(&self.known);
        let is_old = |at| simulation::instant().saturating_duration_since(at) > TIME_LASTS;
        self.server.kind == Kind::Database && known.is_none_or(|(_, at)| is_old(at))
    }

    fn ask_time(&self) -> Result<(), StoreError> {
        let said = self.read(|_| Ok(self.server.time()))?;
        self.hear_time(said);
        Ok(())
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.call(Call::Commit, |store| store.commit(batch))
    }

    fn register_runner(&self, runner: &NewRunner) -> Result<Fence, StoreError> {
        let (fence, said) = self.write(|store| {
            let (mut runner, said) = (runner.clone(), self.server.time());
            runner.now = self.lease_time(runner.now);
            Ok((store.register_runner(&runner)?, said))
        })?;
        self.hear_time(said);
        Ok(fence)
    }

    fn heartbeat(&self, fence: Fence, now: Timestamp, lease: Duration) -> Result<bool, StoreError> {
        let (is_held, said) = self.write(|store| {
            let is_held = store.heartbeat(fence, self.lease_time(now), lease)?;
            Ok((is_held, self.server.time()))
        })?;
        self.hear_time(said);
        Ok(is_held)
    }

    fn take_shards(
        &self,
        fence: Fence,
        now: Timestamp,
        wanted: &ShardSet,
        dead: &[Uuid],
    ) -> Result<Option<ShardSet>, StoreError> {
        self.write(|store| store.take_shards(fence, self.lease_time(now), wanted, dead))
    }

    fn release_shards(&self, fence: Fence, shards: &ShardSet) -> Result<(), StoreError> {
        self.write(|store| store.release_shards(fence, shards))
    }

    fn deregister_runner(&self, fence: Fence) -> Result<(), StoreError> {
        self.write(|store| store.deregister_runner(fence))
    }

    /// On one machine a process that has ended is known to have.
    fn runner_is_dead(&self, runner: Uuid) -> bool {
        let runners = lock(&self.server.runners);
        let is_dead = |runner: &Runner| runner.process.is_dead() || runner.wake.is_none();
        self.server.kind == Kind::File && runners.get(&runner).is_some_and(is_dead)
    }

    fn wake_others(&self, me: Option<Uuid>, runs: &[RunNo]) {
        if simulation::is_dead() {
            return;
        }
        let runners = lock(&self.server.runners);
        let others = runners.iter().filter(|(id, _)| Some(**id) != me);
        let wakes: Vec<WakeFn> = others.filter_map(|(_, it)| it.wake.clone()).collect();
        drop(runners);
        for wake in wakes {
            self.wake(wake, runs);
        }
    }

    fn on_wake(&self, me: Uuid, wake: WakeFn) -> Result<WakeGuard, StoreError> {
        let registration = self.read(|_| {
            let mut runners = lock(&self.server.runners);
            let before = runners.get(&me).map_or(0, |runner| runner.registration);
            let runner = Runner {
                process: self.process.clone(),
                wake: Some(wake),
                registration: before + 1,
            };
            runners.insert(me, runner);
            Ok(before + 1)
        })?;
        Ok(WakeGuard::new(Listening { server: self.server.clone(), me, registration }))
    }

    fn counters(&self) -> StoreCounters {
        self.server.data.counters()
    }

    fn raise_horizon(&self, to: Timestamp) -> Result<(), StoreError> {
        self.write(|store| store.raise_horizon(to))
    }

    fn sweep(&self, now: Timestamp, limit: usize) -> Result<bool, StoreError> {
        self.write(|store| store.sweep(now, limit))
    }

    fn secret(&self) -> Result<Secret, StoreError> {
        self.read(Store::secret)
    }

    fn run(&self, target: &Target) -> Result<Option<RunRow>, StoreError> {
        self.read(|store| store.run(target))
    }

    fn load(&self, run: RunNo) -> Result<Option<LoadedRun>, StoreError> {
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
        self.read(|store| store.due(now, shards, after, limit))
    }

    fn live(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<DueRun>, StoreError> {
        self.read(|store| store.live(shards, after, limit))
    }

    fn paused(
        &self,
        shards: &ShardSet,
        after: Option<RunNo>,
        limit: usize,
    ) -> Result<Vec<PausedRun>, StoreError> {
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

    fn begin_audit(&self, begun: &NewAudit) -> Result<u64, StoreError> {
        self.write(|store| store.begin_audit(begun))
    }

    fn end_audit(&self, no: u64, outcome: &str) -> Result<bool, StoreError> {
        self.write(|store| store.end_audit(no, outcome))
    }

    fn audits(&self, before: Option<u64>, limit: usize) -> Result<Vec<AuditRow>, StoreError> {
        self.read(|store| store.audits(before, limit))
    }

    fn delete_audits(
        &self,
        before: Timestamp,
        limit: usize,
    ) -> Result<Option<Timestamp>, StoreError> {
        self.write(|store| store.delete_audits(before, limit))
    }

    fn add_api_token(&self, token: &ApiTokenRow) -> Result<bool, StoreError> {
        self.write(|store| store.add_api_token(token))
    }

    fn remove_api_token(&self, name: &str) -> Result<bool, StoreError> {
        self.write(|store| store.remove_api_token(name))
    }

    fn note_api_token_used(&self, name: &str, at: Timestamp) -> Result<(), StoreError> {
        self.write(|store| store.note_api_token_used(name, at))
    }

    fn api_tokens(&self) -> Result<Vec<ApiTokenRow>, StoreError> {
        self.read(Store::api_tokens)
    }

    fn examine(&self, ask: &Ask) -> Result<Facts, StoreError> {
        self.read(|store| store.examine(ask))
    }

    fn pools(&self) -> Result<Vec<PoolRow>, StoreError> {
        self.read(Store::pools)
    }

    fn runners(&self) -> Result<Vec<RunnerRow>, StoreError> {
        self.read(Store::runners)
    }
}

/// How long a client believes what a database has said of its time.
const TIME_LASTS: Duration = Duration::from_secs(30);

impl SimStore {
    /// Sends a wake-up to one process.
    fn wake(&self, wake: WakeFn, runs: &[RunNo]) {
        let sky = &self.server.sky;
        if sky.happens(sky.dropped_wakes) {
            let dropped = &self.server.counts.wakes_dropped;
            dropped.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let is_doubled = sky.happens(sky.doubled_wakes);
        if is_doubled || sky.happens(sky.late_wakes) {
            let (wake, runs) = (wake.clone(), runs.to_vec());
            let delay = Duration::from_millis(simulation::random() % 3_000);
            self.server.network.spawn("wake-up", move || {
                simulation::sleep(delay);
                wake(&runs);
            });
            if !is_doubled {
                return;
            }
        }
        wake(runs);
    }
}

/// Takes its registration out when dropped.
struct Listening {
    server: Arc<Server>,
    me: Uuid,
    registration: u64,
}

impl Drop for Listening {
    fn drop(&mut self) {
        let mut runners = lock(&self.server.runners);
        if let Some(runner) = runners.get_mut(&self.me)
            && runner.registration == self.registration
        {
            runner.wake = None;
        }
    }
}
