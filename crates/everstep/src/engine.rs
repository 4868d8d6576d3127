//! The engine: runs workflows on a store.
//!
//! It owns a set of threads and nothing else of the application: engine threads poll workflows
//! inside the caller's runtime ([`thread`]), one thread commits ([`committer`]), one finds due runs
//! and keeps timers ([`due`]), one does chores ([`keeper`]), one keeps the lease and one watches for
//! bodies that block ([`lease`]), a few read ([`reader`]).

use std::{
    future::Future,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering},
    },
    time::Duration,
};

use tokio::{runtime::RuntimeFlavor, sync::oneshot};
use uuid::Uuid;

use crate::{
    codec::{Value, hook::Codec},
    commit::Fence,
    ctx::Ctx,
    error::Result as UserResult,
    name::{NameError, check_name, check_pool},
    panics,
    queue::Queue,
    registry::{RegisterError, Registry, WorkflowFn},
    run::Definition,
    run_id::RunId,
    seam::{self, Leaf, Process, Thread},
    services::Services,
    settings::{Settings, SettingsError},
    store::{MemoryStore, ShardSet, Store, StoreError},
    telemetry::{EngineCounters, EngineMetrics, EngineMonitor},
    time::{Clock, SystemClock, Uptime},
    workflow::{Workflow, WorkflowOptions, WorkflowRef},
};

mod activity;
mod assign;
mod audit;
mod bodies;
mod claims;
mod committer;
mod complaints;
mod counters;
mod dispatch;
mod due;
mod events;
#[cfg(test)]
mod fixture;
mod host;
mod hub;
mod job;
mod keeper;
mod lanes;
mod lease;
mod leaving;
mod mailbox;
mod owned;
mod peers;
mod poller;
mod preflight;
mod reader;
mod retention;
pub(crate) mod schedules;
mod shared;
#[cfg(test)]
mod simulated;
mod steady;
mod streams;
mod suspects;
mod thread;
mod unstarted;
mod vacant;
mod workers;

pub use job::Job;
pub(crate) use job::{Handler, handler};
pub(crate) use mailbox::Leaves;
pub(crate) use peers::served;
pub(crate) use poller::Poller;
pub use preflight::{Misfit, Preflight};
pub(crate) use reader::Reader;
pub(crate) use shared::{Answering, Shared};
pub(crate) use streams::{Followed, Follower};
pub(crate) use workers::{Spec, Station, Workers};

use mailbox::Event;

/// A running engine.
///
/// Dropping it only signals its threads to stop; what is in flight is found again by the next one
/// on the same store. [`shutdown`](Engine::shutdown) waits for it in good order.
pub struct Engine {
    pub(crate) shared: Arc<Shared>,
    pub(crate) reader: Arc<Reader>,
    report: RecoveryReport,
    stop: Arc<lease::Stop>,
    threads: Leaf<Vec<Thread>>,
    /// Kept while the engine lives: brought along where the caller's runtime has one thread.
    own_runtime: Leaf<Option<tokio::runtime::Runtime>>,
    wake_guard: Leaf<Option<crate::store::WakeGuard>>,
    /// Where bodies and the handlers of workers run.
    pub(crate) runtime: tokio::runtime::Handle,
}

/// What an engine found when it started.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct RecoveryReport {
    /// Runs that were in a process's memory when it ended: they go on.
    pub resumed: u64,
    /// Runs that wait for a time that has not come.
    pub timers: u64,
    /// Runs whose time had come already.
    pub due: u64,
    /// Runs that wait for a message.
    pub waiting: u64,
    /// Live or due runs whose workflow is not registered here.
    pub unknown_workflow: u64,
    /// Runs that are paused.
    pub paused: u64,
}

impl std::fmt::Display for RecoveryReport {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{} resumed, {} timers set again, {} already due, {} waiting, {} of unknown workflows, \
             {} paused",
            self.resumed, self.timers, self.due, self.waiting, self.unknown_workflow, self.paused
        )
    }
}

/// An engine that has not started yet.
#[must_use = "an engine does nothing before `start`"]
pub struct EngineBuilder {
    pub(crate) store: StoreChoice,
    registry: Arc<Registry>,
    services: Arc<Services>,
    pub(crate) settings: Settings,
    clock: Arc<dyn Clock>,
    work: Vec<Spec>,
    problem: Option<StartError>,
}

#[derive(Clone)]
pub(crate) enum StoreChoice {
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    Named(std::path::PathBuf),
    Given(Arc<dyn Store>),
}

impl StoreChoice {
    #[cfg_attr(
        not(any(feature = "sqlite", feature = "postgres")),
        expect(clippy::unnecessary_wraps, reason = "a file may be no database")
    )]
    fn open(self) -> Result<Arc<dyn Store>, StoreError> {
        Ok(match self {
            #[cfg(any(feature = "sqlite", feature = "postgres"))]
            StoreChoice::Named(place) => crate::store::open(&place, true)?,
            StoreChoice::Given(store) => store,
        })
    }
}

/// Why an engine did not start.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StartError {
    /// A workflow cannot be registered.
    #[error(transparent)]
    Register(#[from] RegisterError),
    /// A queue that it is to work on cannot be used.
    #[error("a queue to work on, or its limit, has a bad name")]
    Queue(#[source] NameError),
    /// A pool that it is to serve cannot be used.
    #[error("a pool to serve has a bad name")]
    Pool(#[source] NameError),
    /// Settings, or the settings of a worker, with which it cannot work.
    #[error("the engine cannot start with these settings")]
    Settings(#[from] SettingsError),
    /// Its weight is not one.
    #[error("the weight of a runner is from 1 to {max}, and {weight} was given", max = assign::WEIGHT_MAX)]
    Weight {
        /// What was given.
        weight: u32,
    },
    /// The store cannot be used.
    #[error("the engine cannot start on its store")]
    Store(#[source] Arc<StoreError>),
    /// A thread or a runtime could not be started.
    #[error("a thread of the engine cannot be started")]
    Thread(#[source] Arc<std::io::Error>),
}

impl StartError {
    fn thread(error: std::io::Error) -> StartError {
        StartError::Thread(Arc::new(error))
    }
}

impl From<StoreError> for StartError {
    fn from(error: StoreError) -> StartError {
        StartError::Store(Arc::new(error))
    }
}

impl Engine {
    /// An engine on a SQLite file, which is made if it is not there; or on a PostgreSQL database,
    /// whose URL begins with `postgres://` (see [`PostgresStore`](crate::store::PostgresStore), with
    /// the feature `postgres`).
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub fn open(place: impl AsRef<std::path::Path>) -> EngineBuilder {
        EngineBuilder::new(StoreChoice::Named(place.as_ref().to_owned()))
    }

    /// An engine on any store.
    pub fn on(store: Arc<dyn Store>) -> EngineBuilder {
        EngineBuilder::new(StoreChoice::Given(store))
    }

    /// An engine that keeps everything in memory, for tests and trials.
    pub fn in_memory() -> EngineBuilder {
        EngineBuilder::new(StoreChoice::Given(Arc::new(MemoryStore::new())))
    }

    /// What was found when the engine started.
    pub fn recovery(&self) -> RecoveryReport {
        self.report
    }

    /// Drops a parked run from memory, so that it comes back by replay. Whether it was there. A
    /// tool for tests and operators.
    pub async fn evict(&self, run: RunId) -> bool {
        let (answer, evicted) = oneshot::channel();
        self.shared.mailbox_of(run).push(Event::Evict(run.no(), answer));
        evicted.await.unwrap_or(false)
    }

    /// What is in memory: runs that move, and parked ones.
    pub async fn census(&self) -> EngineCensus {
        let mut census = EngineCensus::default();
        for thread in &self.shared.threads {
            let (answer, counted) = oneshot::channel();
            thread.push(Event::Census(answer));
            if let Ok(counted) = counted.await {
                census.moving += counted.moving;
                census.hot += counted.hot;
                census.hot_bytes += counted.hot_bytes;
            }
        }
        census
    }

    /// Where a run is in the memory of this engine, in words for people: for a test that has found a run
    /// which stands still. The words may change at any time.
    #[cfg(feature = "testing")]
    pub async fn whereabouts(&self, run: RunId) -> String {
        let (answer, told) = oneshot::channel();
        self.shared.mailbox_of(run).push(Event::Whereabouts(run, answer));
        told.await.unwrap_or_else(|_| "its engine thread has ended".to_owned())
    }

    /// The runs and steps that block an engine thread at this moment, for longer than
    /// [`blocked_after`](Settings::blocked_after); without a step where it is the workflow's own code.
    pub fn blocked(&self) -> Vec<(RunId, Option<String>)> {
        let blocked = self.shared.threads.iter().filter_map(|it| it.blocked());
        let named = blocked.map(|polling| {
            let step = polling.step.map(|key| crate::location::keys::describe(&key));
            (polling.run, step)
        });
        named.collect()
    }

    /// Why the engine has stopped by itself, if it has. Its runs go on in other processes when its lease
    /// is over.
    pub fn stopped(&self) -> Option<Arc<StoreError>> {
        self.shared.stopped()
    }

    /// What this engine has lived through: takeovers, lost leases, refused commits.
    pub fn counters(&self) -> EngineCounters {
        self.shared.counters.read()
    }

    /// The numbers of this engine since its start: what its steps took, how large its batches were, how
    /// late it was, what it has in memory. Cheap: nothing is asked of the store or of other threads.
    pub fn metrics(&self) -> EngineMetrics {
        self.monitor().metrics()
    }

    /// What probes and scrapes ask; it outlives the engine.
    pub fn monitor(&self) -> EngineMonitor {
        EngineMonitor::new(self.shared.clone())
    }

    /// Stops in good order: takes no new work, tells bodies that are in flight
    /// ([`Step::cancellation`](crate::Step::cancellation)), lets them end (up to `shutdown_limit`),
    /// writes what they gave, gives its shards back.
    ///
    /// A body that blocks its thread cannot be dropped. It is waited for a few seconds longer, then
    /// it is named in a warning and left alone; its shards are free when the lease is over. So is the
    /// handler of a queue item; its item is free when the visibility of the queue has passed. A store
    /// that does not answer is waited for until the lease is over, for 30 seconds at most.
    pub async fn shutdown(self) {
        // Nothing is taken any more; what is held is given back once it is out of memory.
        self.shared.begin_leaving();
        self.shared.tell_bodies();
        self.shared.keeper.close();
        let limit = self.shared.settings.shutdown_limit;
        let workers = self.shared.workers.stop_all(&self.shared, limit);
        let mut drained = Vec::new();
        for thread in &self.shared.threads {
            let (done, drain) = oneshot::channel();
            thread.push(Event::Drain(done));
            drained.push(drain);
        }
        let limit = seam::now() + self.shared.settings.shutdown_limit;
        let (sender, all) = oneshot::channel();
        let shared = self.shared.clone();
        // A thread waits, so that this needs no timer of any runtime.
        let process = &self.shared.process;
        let waiter = process.spawn("everstep-shutdown", move || {
            for drain in &mut drained {
                while matches!(drain.try_recv(), Err(oneshot::error::TryRecvError::Empty)) {
                    if seam::now() >= limit {
                        tracing::warn!("bodies are still in flight; they are dropped");
                        shared.drop_runs();
                        _ = sender.send(());
                        return;
                    }
                    seam::sleep(Duration::from_millis(2), "bodies end");
                }
            }
            _ = sender.send(());
        });
        if waiter.is_ok() {
            _ = all.await;
        }
        for stopped in workers {
            _ = stopped.await;
        }
        let fence = self.shared.fence();
        self.signal();
        let mut threads = std::mem::take(&mut *self.threads.lock());
        threads.extend(self.shared.workers.take_thread());
        let (shared, guard) = (self.shared.clone(), self.wake_guard.lock().take());
        let runtime = self.own_runtime.lock().take();
        let (sender, joined) = oneshot::channel();
        let joiner = process.spawn("everstep-join", move || {
            if join_all(&shared, threads) {
                sign_off(&shared, fence);
            }
            // Only now: a runner that nobody can wake is taken for dead, and then it cannot
            // sign off.
            drop(guard);
            if let Some(runtime) = runtime {
                runtime.shutdown_background();
            }
            _ = sender.send(());
        });
        if joiner.is_ok() {
            _ = joined.await;
        }
    }

    /// Waits for SIGTERM or SIGINT (Ctrl-C), then [shuts down](Engine::shutdown) in good order: no
    /// new work, bodies up to `shutdown_limit`, then the shards are free for others at once.
    ///
    /// A second signal ends it without waiting: bodies in flight are dropped, nothing is lost, and
    /// others take over when the lease ends. Signals are listened to from the call on, before the
    /// future is polled.
    ///
    /// # Errors
    ///
    /// If the signals cannot be listened to.
    ///
    /// # Panics
    ///
    /// If it is called outside of a tokio runtime.
    pub fn shutdown_on_signal(self) -> impl Future<Output = std::io::Result<()>> + Send {
        let signals = Signals::listen();
        async move {
            let mut signals = signals?;
            signals.next().await;
            tracing::info!("the engine shuts down; a second signal ends it without waiting");
            tokio::select! {
                biased;
                () = self.shutdown() => {}
                () = signals.next() => {
                    tracing::warn!("the engine ends without waiting for its bodies");
                }
            }
            Ok(())
        }
    }

    /// Tells all threads to end.
    fn signal(&self) {
        self.shared.begin_closing();
        self.stop.stop();
        self.shared.due.close();
        self.shared.keeper.close();
        self.shared.workers.close();
        for thread in &self.shared.threads {
            thread.push(Event::Timer);
        }
        self.shared.queue.close();
    }

    /// The store underneath, for tools.
    pub fn store(&self) -> &Arc<dyn Store> {
        &self.shared.store
    }

    #[cfg(feature = "testing")]
    #[doc(hidden)]
    pub fn shared_for_tools(&self) -> EngineTools {
        EngineTools { shared: self.shared.clone() }
    }
}

/// What benchmarks look at.
#[cfg(feature = "testing")]
#[doc(hidden)]
pub struct EngineTools {
    shared: Arc<Shared>,
}

#[cfg(feature = "testing")]
impl EngineTools {
    /// From now on the size of every batch is noted.
    pub fn note_batch_sizes(&self) {
        *self.shared.queue.batch_sizes.lock() = Some(Vec::new());
    }

    /// The sizes that were noted.
    pub fn take_batch_sizes(&self) -> Vec<u32> {
        self.shared.queue.batch_sizes.lock().take().unwrap_or_default()
    }

    /// In how many lanes a batch of so many writes is made.
    pub fn lanes_for(&self, writes: usize) -> usize {
        lanes::lanes_for(writes, self.shared.store.lanes_max())
    }

    /// How many batches were committed.
    pub fn batches(&self) -> u64 {
        self.shared.queue.batches.load(Ordering::Relaxed)
    }

    /// What the engine has lived through; also while it shuts down, and after.
    pub fn counters(&self) -> EngineCounters {
        self.shared.counters.read()
    }
}

/// What an engine has in memory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct EngineCensus {
    /// Runs that move.
    pub moving: usize,
    /// Parked runs that are kept, so that waking them costs no replay.
    pub hot: usize,
    /// About how many bytes those take.
    pub hot_bytes: usize,
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.shared.drop_runs();
        for thread in &self.shared.threads {
            let (done, _) = oneshot::channel();
            thread.push(Event::Drain(done));
        }
        self.signal();
        if let Some(runtime) = self.own_runtime.lock().take() {
            runtime.shutdown_background();
        }
    }
}

/// Waits for SIGTERM or SIGINT (Ctrl-C). It listens from the call on, before the future is polled.
///
/// # Errors
///
/// If the signals cannot be listened to.
///
/// # Panics
///
/// If it is called outside of a tokio runtime.
pub fn shutdown_signal() -> impl Future<Output = std::io::Result<()>> + Send {
    let signals = Signals::listen();
    async move {
        signals?.next().await;
        Ok(())
    }
}

/// The signals that ask a process to end. A signal that comes between two waits ends the next wait.
struct Signals {
    #[cfg(unix)]
    terminate: tokio::signal::unix::Signal,
    #[cfg(unix)]
    interrupt: tokio::signal::unix::Signal,
    #[cfg(windows)]
    interrupt: tokio::signal::windows::CtrlC,
}

impl Signals {
    #[cfg(unix)]
    fn listen() -> std::io::Result<Signals> {
        use tokio::signal::unix::{SignalKind, signal};
        let terminate = signal(SignalKind::terminate())?;
        Ok(Signals { terminate, interrupt: signal(SignalKind::interrupt())? })
    }

    #[cfg(windows)]
    fn listen() -> std::io::Result<Signals> {
        Ok(Signals { interrupt: tokio::signal::windows::ctrl_c()? })
    }

    async fn next(&mut self) {
        #[cfg(unix)]
        tokio::select! {
            biased;
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
        #[cfg(windows)]
        {
            _ = self.interrupt.recv().await;
        }
    }
}

impl EngineBuilder {
    fn new(store: StoreChoice) -> EngineBuilder {
        EngineBuilder {
            store,
            registry: Arc::default(),
            services: Arc::default(),
            settings: Settings::default(),
            clock: Arc::new(SystemClock),
            work: Vec::new(),
            problem: None,
        }
    }

    /// Registers a workflow. What is wrong with it is said by [`start`](EngineBuilder::start).
    pub fn register<W: WorkflowFn>(self, workflow: W) -> Self {
        let (name, version) = (workflow.name().to_owned(), workflow.version());
        let code = |ctx, input| W::call(ctx, input);
        self.insert(Definition::new::<W::Input, W::Output, _, _>(
            &name,
            version,
            workflow.options(),
            code,
        ))
    }

    /// Registers a function under a constant.
    pub fn register_fn<I, O, F, R>(self, workflow: Workflow<I, O>, code: F) -> Self
    where
        I: Value,
        O: Value,
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + 'static,
    {
        self.register_fn_with(workflow, WorkflowOptions::new(), code)
    }

    /// Registers a function under a constant, with options.
    pub fn register_fn_with<I, O, F, R>(
        self,
        workflow: Workflow<I, O>,
        options: WorkflowOptions,
        code: F,
    ) -> Self
    where
        I: Value,
        O: Value,
        F: Fn(Ctx, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + 'static,
    {
        let version = WorkflowRef::version(&workflow);
        self.insert(Definition::new(workflow.name(), version, options, code))
    }

    fn insert(mut self, definition: Definition) -> Self {
        if let Err(error) = Arc::make_mut(&mut self.registry).insert(definition) {
            self.problem.get_or_insert(StartError::Register(error));
        }
        self
    }

    /// Gives bodies and rollbacks a dependency: `ctx.get::<T>()`.
    pub fn provide<T: Send + Sync + 'static>(mut self, dependency: T) -> Self {
        Arc::make_mut(&mut self.services).insert(dependency);
        self
    }

    /// Works on the items of a queue from the start: see [`Engine::work`].
    pub fn work<I, O, F, R>(mut self, queue: Queue<I, O>, concurrency: usize, code: F) -> Self
    where
        I: Value,
        O: Value,
        F: Fn(Job, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + Send + 'static,
    {
        let limit = queue.limited_by();
        let named = check_name(queue.name());
        match named.and_then(|()| limit.map_or(Ok(()), |limit| check_name(limit.name()))) {
            Ok(()) => match Spec::new(queue, concurrency, handler(code)) {
                Ok(spec) => self.work.push(spec),
                Err(error) => _ = self.problem.get_or_insert(error.into()),
            },
            Err(error) => {
                let error = StartError::Queue(error);
                self.problem.get_or_insert(error);
            }
        }
        self
    }

    /// Changes settings.
    pub fn settings(mut self, change: impl FnOnce(&mut Settings)) -> Self {
        change(&mut self.settings);
        self
    }

    /// The pools whose runs this runner may own; only `default` if this is not said. A workflow says
    /// in which pool its runs are: `#[workflow(pool = "gpu")]`, and a start may say otherwise.
    pub fn pools<P: Into<String>>(mut self, pools: impl IntoIterator<Item = P>) -> Self {
        self.settings.pools = pools.into_iter().map(Into::into).collect();
        for pool in &self.settings.pools {
            if let Err(error) = check_pool(pool) {
                self.problem.get_or_insert(StartError::Pool(error));
            }
        }
        self
    }

    /// How many shards this runner has against others of its pools, 1 if this is not said: one with
    /// 2 gets twice as many. From 1 to 64; [`start`](EngineBuilder::start) refuses others. One that
    /// should have no runs is a [`Client`](crate::Client), or serves a pool of its own.
    pub fn weight(mut self, weight: u32) -> Self {
        self.settings.weight = weight;
        self
    }

    /// The runner does not look at its own clock before it writes, so that only the store's fence
    /// refuses what comes too late: for the drills that must see it refuse.
    #[cfg(feature = "sabotage")]
    #[doc(hidden)]
    pub fn without_self_fencing(mut self) -> Self {
        self.settings.sabotage = Some(crate::Sabotage::NoSelfFencing);
        self
    }

    /// Compresses or encrypts what is stored of the values of users. With several, the last one
    /// writes and all of them read: so that one can take the place of another.
    pub fn codec(mut self, codec: impl Codec) -> Self {
        self.settings.codecs.push(Arc::new(codec));
        self
    }

    /// Puts the engine on another clock. On PostgreSQL the server's clock counts nevertheless, unless
    /// this one is a [`VirtualClock`](crate::testing::VirtualClock).
    pub fn clock(mut self, clock: Arc<dyn Clock>) -> Self {
        self.clock = clock;
        self
    }

    /// Brings the store to this version, takes up the runs that are there, and starts to work.
    ///
    /// # Errors
    ///
    /// If a workflow is registered twice or has a bad name, if settings cannot work or contradict
    /// each other ([`StartError::Settings`]), or the store cannot be used.
    pub async fn start(self) -> Result<Engine, StartError> {
        if let Some(problem) = self.problem {
            return Err(problem);
        }
        self.settings.check()?;
        let weight = self.settings.weight;
        if !(1..=assign::WEIGHT_MAX).contains(&weight) {
            return Err(StartError::Weight { weight });
        }
        panics::install_hook();
        let current = tokio::runtime::Handle::try_current().ok();
        let many = current.filter(|rt| rt.runtime_flavor() == RuntimeFlavor::MultiThread);
        let many = seam::simulated_runtime().or(many);
        let own_runtime = match &many {
            Some(_) => None,
            None => Some(small_runtime().map_err(StartError::thread)?),
        };
        let runtime = match (&many, &own_runtime) {
            (Some(handle), _) => handle.clone(),
            (None, Some(own)) => own.handle().clone(),
            (None, None) => unreachable!("one of them was just made"),
        };
        let (sender, started) = oneshot::channel();
        let parts = StartParts {
            store: self.store,
            registry: self.registry,
            services: self.services,
            settings: Arc::new(self.settings),
            clock: self.clock,
            work: self.work,
            runtime,
            own_runtime,
        };
        // Everything here may block: it has a thread of its own.
        Process::current()
            .spawn("everstep-start", move || _ = sender.send(parts.start()))
            .map_err(StartError::thread)?;
        match started.await {
            Ok(engine) => engine,
            Err(_) => Err(StartError::thread(std::io::Error::other("the starting thread died"))),
        }
    }
}

/// A runtime for bodies, where the caller's has only one thread, which may be blocked.
fn small_runtime() -> std::io::Result<tokio::runtime::Runtime> {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .thread_name("everstep-bodies")
        .enable_all()
        .build()
}

struct StartParts {
    store: StoreChoice,
    registry: Arc<Registry>,
    services: Arc<Services>,
    settings: Arc<Settings>,
    clock: Arc<dyn Clock>,
    work: Vec<Spec>,
    runtime: tokio::runtime::Handle,
    own_runtime: Option<tokio::runtime::Runtime>,
}

impl StartParts {
    fn start(self) -> Result<Engine, StartError> {
        let store = self.store.open()?;
        patiently(|| store.migrate())?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        let threads = if self.settings.threads == 0 { cores } else { self.settings.threads };
        let me = crate::seam::random_uuid();
        let shared = Arc::new(Shared::new(
            self.settings,
            store.clone(),
            self.registry,
            self.clock,
            threads,
            Some(me),
        ));
        shared.set_secret(store.secret()?);
        let reader = Reader::new(store.clone(), shared.activity.clone());
        // From now on there is always a thread that reads, so that no engine thread has to.
        reader.spawn(|_| {});
        let (begun, fence) = patiently(|| {
            let begun = Uptime::now();
            let fence = store.register_runner(&shared.as_runner(me))?;
            Ok((begun, fence))
        })?;
        shared.set_lease(fence, begun + shared.settings.lease);
        let guard = patiently(|| listen_for_wakes(&shared, me))?;
        // Some of their shards are for this one.
        store.wake_others(Some(me), &[]);
        let mut handles = Vec::new();
        let stop = shared.lease_stop.clone();
        let (gone, watch) = watch_runtime(&self.runtime, &shared);
        let leaving = Arc::new(Leaving {
            gone,
            _watch: watch,
            threads: AtomicUsize::new(threads),
            stop: stop.clone(),
        });
        for index in 0..threads {
            let (shared, reader) = (shared.clone(), reader.clone());
            let (services, runtime) = (self.services.clone(), self.runtime.clone());
            let leaving = leaving.clone();
            handles.push(spawn(&format!("everstep-{index}"), move || {
                engine_thread(index, shared, reader, services, runtime, leaving);
            })?);
        }
        let threads: [(&str, Work); 6] = [
            ("everstep-commit", |shared| committer_thread(shared)),
            ("everstep-due", due::run),
            ("everstep-timers", |shared| due::keep_timers(shared)),
            ("everstep-keeper", keeper::run),
            ("everstep-lease", |shared| lease::run(shared, &shared.lease_stop)),
            ("everstep-watch", |shared| lease::watch(shared, &shared.lease_stop)),
        ];
        for (name, work) in threads {
            let shared = shared.clone();
            let work = move || shared.guard(name, || work(&shared));
            handles.push(spawn(name, work)?);
        }
        let engine = Engine {
            report: RecoveryReport::default(),
            shared: shared.clone(),
            reader,
            stop,
            threads: Leaf::new(handles),
            own_runtime: Leaf::new(self.own_runtime),
            wake_guard: Leaf::new(Some(guard)),
            runtime: self.runtime.clone(),
        };
        let mut leaving = leaving::Leaving::default();
        let taken = patiently(|| lease::balance(&shared, fence, &mut leaving))?;
        // Counted before any of them moves.
        let report = recovery_report(&shared)?;
        // Those too that an earlier try has taken, and whose answer was lost.
        let taken = taken.iter().chain(leaving.unread.iter()).collect();
        lease::take_up(&shared, &taken)?;
        shared.lease_stop.begin();
        for spec in self.work {
            Workers::open(
                &shared,
                spec,
                self.runtime.clone(),
                shared.settings.codecs.clone(),
                None,
            )
            .ok_or_else(|| {
                StartError::thread(std::io::Error::other("the workers cannot be started"))
            })?;
        }
        shared.keeper.poke_all();
        tracing::info!(store = store.describe(), %report, "the engine has started");
        let mut engine = engine;
        engine.report = report;
        Ok(engine)
    }
}

/// Tries again for as long as another process holds the write lock of the store: a process that is
/// stopped holds it until it goes on or ends. A full disk gets a second try, since the store may have
/// made room.
fn patiently<T>(mut attempt: impl FnMut() -> Result<T, StoreError>) -> Result<T, StoreError> {
    let mut was_full = false;
    for tries in 1u64.. {
        match attempt() {
            Err(error @ StoreError::Busy { .. }) => {
                if tries.is_power_of_two() {
                    let cause = std::error::Error::source(&error).map(ToString::to_string);
                    let cause = cause.unwrap_or_default();
                    tracing::warn!(%error, cause, tries, "the engine waits with its start");
                }
                seam::sleep(START_RETRY, "start again");
            }
            Err(StoreError::Full { .. }) if !was_full => was_full = true,
            other => return other,
        }
    }
    unreachable!("it is tried without end")
}

/// How long a start waits before it tries again; the store itself has waited for the lock.
const START_RETRY: Duration = Duration::from_millis(20);

/// What a thread of the engine does.
type Work = fn(&Arc<Shared>);

fn spawn(name: &str, work: impl FnOnce() + Send + 'static) -> Result<Thread, StartError> {
    let spawned = Process::current().spawn(name, work);
    spawned.map_err(StartError::thread)
}

/// An engine thread, inside the application's runtime, so that sockets, timers and `tokio::spawn`
/// in a body are the application's own.
fn engine_thread(
    index: usize,
    shared: Arc<Shared>,
    reader: Arc<Reader>,
    services: Arc<Services>,
    runtime: tokio::runtime::Handle,
    leaving: Arc<Leaving>,
) {
    let gone = leaving.gone.clone();
    shared.guard("engine", || {
        let local = tokio::task::LocalSet::new();
        let worker =
            thread::Worker::new(index, shared.clone(), reader, services, runtime.clone(), gone);
        // Our own fairness: tokio's budget would starve all but the first 128 runs of a turn.
        let turns = local.run_until(tokio::task::unconstrained(worker.run()));
        seam::block_on_in(&runtime, turns, "events");
    });
    leaving.left(&shared);
}

/// Ends what is left of an engine whose runtime has gone away under it: without this it would keep
/// its shards by its heartbeat, and run nothing.
struct Leaving {
    gone: Arc<AtomicBool>,
    /// Dropped with the last engine thread: then the runtime is watched no longer.
    _watch: oneshot::Sender<()>,
    threads: AtomicUsize,
    stop: Arc<lease::Stop>,
}

impl Leaving {
    /// An engine thread has ended. The last one gives the shards back.
    fn left(&self, shared: &Shared) {
        let last = self.threads.fetch_sub(1, Ordering::AcqRel) == 1;
        if !last || !self.gone.load(Ordering::Acquire) || shared.closing() {
            return;
        }
        tracing::error!("the runtime of this engine has shut down; its runs go on elsewhere");
        shared.begin_closing();
        self.stop.stop();
        shared.due.close();
        shared.keeper.close();
        shared.queue.close();
        sign_off(shared, shared.fence());
    }
}

/// The runner is gone: its shards are free, and the others are told to look.
fn sign_off(shared: &Shared, fence: Option<Fence>) {
    let Some(fence) = fence else { return };
    match shared.store.deregister_runner(fence) {
        Ok(()) => shared.store.wake_others(shared.me, &[]),
        Err(error) => {
            tracing::warn!(%error, "the runner could not sign off; its lease will end");
        }
    }
}

/// How long a shutdown waits for a body that blocks its thread, after everything else was dropped.
const BLOCKED_MAX: Duration = Duration::from_secs(3);

/// How long it waits for a store that is slow, at most. A runner that does not sign off counts as alive
/// until its lease is over, and others hand runs to it; after that there is nothing to sign off.
const JOIN_MAX: Duration = Duration::from_secs(30);

/// Waits until all threads have ended. One that a body blocks cannot be ended: it is left alone, and
/// so is the lease, since the body goes on. Whether all have.
fn join_all(shared: &Shared, threads: Vec<Thread>) -> bool {
    let begun = seam::now();
    let mut pause = Duration::from_micros(100);
    while !threads.iter().all(Thread::is_finished) {
        let waited = seam::elapsed(begun);
        if waited >= BLOCKED_MAX {
            let blocking = blocking(shared);
            if !blocking.is_empty() {
                warn_of_blocked(&blocking);
                return false;
            }
        }
        if waited >= JOIN_MAX || (waited >= BLOCKED_MAX && !shared.lease_lasts()) {
            let threads = threads.iter().filter(|thread| !thread.is_finished());
            let names = threads.filter_map(|thread| thread.name());
            let threads = names.collect::<Vec<_>>().join(", ");
            tracing::warn!(
                threads,
                "the engine has shut down, but some of its threads have not ended: the store does \
                 not answer them. Its shards are free when the lease is over"
            );
            return false;
        }
        seam::sleep(pause, "threads end");
        pause = (pause * 2).min(Duration::from_millis(10));
    }
    threads.into_iter().for_each(Thread::reap);
    true
}

/// The runs, with their steps, that engine threads are polling.
fn blocking(shared: &Shared) -> Vec<String> {
    let blocking = shared.threads.iter().filter_map(|thread| {
        let polling = thread.polling.lock().clone()?;
        let step = polling.step.map(|key| crate::location::keys::describe(&key));
        let step = step.as_deref().unwrap_or("the workflow's own code");
        let (run, workflow) = (polling.run, polling.workflow);
        Some(format!("run {run} of `{workflow}`, at {step}"))
    });
    blocking.collect()
}

fn warn_of_blocked(blocking: &[String]) {
    tracing::warn!(
        blocking = blocking.join("; "),
        "the engine has shut down, but a thread of it has not ended: a body blocks it, and goes on; \
         its shards are free when the lease is over. Use `ctx.blocking` for work that blocks"
    );
}

/// The thread that commits.
pub(crate) fn committer_thread(shared: &Shared) {
    let work = std::panic::AssertUnwindSafe(|| committer::run(shared));
    if let Err(panic) = std::panic::catch_unwind(work) {
        shared.stop_after_panic("committing", &*panic);
        // Whoever is still in the queue is told.
        committer::run(shared);
    }
}

/// Notes when the caller's runtime goes away under the engine. The task that does so lives as long as
/// the sender, and keeps nothing of the engine: the runtime may outlive it by far.
fn watch_runtime(
    runtime: &tokio::runtime::Handle,
    shared: &Arc<Shared>,
) -> (Arc<AtomicBool>, oneshot::Sender<()>) {
    struct OnDrop(Arc<AtomicBool>, Weak<Shared>);
    impl Drop for OnDrop {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
            if let Some(shared) = self.1.upgrade() {
                for thread in &shared.threads {
                    thread.push(Event::Timer);
                }
            }
        }
    }
    let gone = Arc::new(AtomicBool::new(false));
    let guard = OnDrop(gone.clone(), Arc::downgrade(shared));
    let (sender, unwatched) = oneshot::channel::<()>();
    #[allow(clippy::disallowed_methods, reason = "it does nothing, and ends with the runtime")]
    runtime.spawn(async move {
        let _guard = guard;
        _ = unwatched.await;
    });
    (gone, sender)
}

fn listen_for_wakes(shared: &Arc<Shared>, me: Uuid) -> Result<crate::store::WakeGuard, StoreError> {
    let weak = Arc::downgrade(shared);
    shared.store.on_wake(
        me,
        Arc::new(move |runs| {
            let Some(shared) = weak.upgrade() else { return };
            for run in runs {
                for thread in &shared.threads {
                    thread.push(match run.hinted_cold() {
                        Some(run) => Event::MakeCold(run, None),
                        None => Event::Look(*run),
                    });
                }
            }
            shared.due.poke(true);
            if runs.is_empty() {
                // Shards may be free, or of a pool that was not there before.
                shared.lease_stop.poke();
                shared.workers.poke_all(&shared);
            }
            if runs.is_empty() {
                shared.keeper.poke_all();
            }
        }),
    )
}

/// Counts what the engine has found in its shards.
fn recovery_report(shared: &Shared) -> Result<RecoveryReport, StoreError> {
    let owned: ShardSet = shared.owned();
    let census = shared.store.census(shared.now(), &owned)?;
    let mut report = RecoveryReport {
        timers: census.timers,
        due: census.due,
        waiting: census.waiting,
        paused: census.paused,
        ..RecoveryReport::default()
    };
    if census.timers + census.due > 0 {
        shared.due.poke(false);
    }
    let mut after = None;
    loop {
        let page = shared.store.live(&owned, after, 1_000)?;
        after = page.last().map(|run| run.id.no());
        for run in &page {
            match shared.registry.find(&run.workflow, run.version) {
                Some(_) => report.resumed += 1,
                None => report.unknown_workflow += 1,
            }
        }
        if page.len() < 1_000 {
            return Ok(report);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_start_waits_for_the_write_lock_and_tries_a_full_disk_twice() {
        let store = || "SQLite file `app.db`".to_owned();
        let busy = || StoreError::Busy { store: store(), source: "locked".into() };
        let full = || StoreError::Full { store: store(), source: "full".into() };
        let mut answers = vec![Ok(7), Err(full()), Err(busy()), Err(busy()), Err(busy())];
        let started = patiently(|| answers.pop().expect("an answer"));
        assert_eq!(started.expect("it has started"), 7);
        let mut answers = vec![Ok(7), Err(full()), Err(busy()), Err(full())];
        let started = patiently(|| answers.pop().expect("an answer"));
        assert!(matches!(started, Err(StoreError::Full { .. })));
    }

    /// A task that watched the caller's runtime held the engine's insides, and so the store: its file or
    /// its connections stayed open until the runtime ended.
    #[tokio::test(flavor = "multi_thread")]
    async fn nothing_keeps_the_store_of_an_engine_that_was_shut_down_or_dropped() {
        for shut_down in [true, false] {
            let store: Arc<dyn Store> = Arc::new(MemoryStore::new());
            let weak = Arc::downgrade(&store);
            let engine = Engine::on(store).start().await.expect("it starts");
            match shut_down {
                true => engine.shutdown().await,
                false => drop(engine),
            }
            let until = std::time::Instant::now() + Duration::from_secs(10);
            while weak.upgrade().is_some() {
                assert!(std::time::Instant::now() < until, "the store is open");
                tokio::task::yield_now().await;
            }
        }
    }
}
