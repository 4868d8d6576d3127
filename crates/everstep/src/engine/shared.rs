//! What the threads of an engine (or of a client without one) share.

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, AtomicI64, AtomicU64, AtomicUsize, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::oneshot;
use uuid::Uuid;

use super::{
    activity::Activity,
    committer::{self, CommitQueue, Pending, Reply},
    complaints::Complaints,
    counters::Counters,
    due::DueSignal,
    hub::Hub,
    keeper::Keeper,
    lease::Stop,
    mailbox::{Event, Leaves, Mailbox},
    owned::Owned,
    peers::{self, Peers},
    poller::Poller,
    steady::{self, Seen, Steady},
    streams::Emitting,
    suspects::Gate,
    workers::Workers,
};
use crate::{
    commit::{Fence, NewRun, Outcome, Write},
    pool::DEFAULT_POOL,
    registry::Registry,
    run_id::{RunId, RunIds, RunNo, ShardId},
    sabotage::Sabotage,
    seam::{self, Leaf, LeafGuard, Process},
    settings::Settings,
    store::{NewRunner, Secret, ShardSet, Store, StoreError},
    telemetry::{EngineMetrics, Metrics, NotReady, Watched},
    time::{Clock, Timestamp, Uptime, suspended},
};

/// The answer to a write that is on its way.
pub(crate) type Answering = oneshot::Receiver<Result<Outcome, Arc<StoreError>>>;

pub(crate) struct Shared {
    pub(crate) settings: Arc<Settings>,
    pub(crate) store: Arc<dyn Store>,
    pub(crate) registry: Arc<Registry>,
    pub(crate) clock: Arc<dyn Clock>,
    /// Where its threads are started.
    pub(crate) process: Process,
    /// The time by that clock, which may be set while this process runs.
    steady: Leaf<Steady>,
    /// The latest time that was given out, for [`Sabotage::BelieveClock`].
    #[cfg(feature = "sabotage")]
    believed: AtomicI64,
    pub(crate) activity: Arc<Activity>,
    pub(crate) queue: CommitQueue,
    /// One for each engine thread; none in a client without an engine.
    pub(crate) threads: Vec<Arc<Mailbox>>,
    pub(crate) hub: Hub,
    pub(crate) ids: RunIds,
    pub(crate) me: Option<Uuid>,
    pub(crate) owned: Owned,
    pub(crate) peers: Peers,
    pub(crate) counters: Counters,
    pub(crate) metrics: Metrics,
    /// Wakes and ends the threads that keep the lease.
    pub(crate) lease_stop: Arc<Stop>,
    lease: Leaf<Option<Lease>>,
    /// When bodies must stop because the lease ends soon ([`Settings::lease_margin`]), in nanoseconds of
    /// [`Uptime`]: looked at before every run is driven, so without a lock. 0 while there is no lease.
    lease_ends: AtomicU64,
    /// The epoch of the lease, without a lock; [`NO_LEASE`] while there is none. Changed only while
    /// the lease is locked.
    lease_epoch: AtomicU64,
    stopped: OnceLock<Arc<StoreError>>,
    closing: AtomicBool,
    closing_since: OnceLock<Instant>,
    leaving: AtomicBool,
    /// How many runs are in memory and moving.
    pub(crate) moving: AtomicUsize,
    /// A run has found no place since the engine threads were last told that there is room.
    is_crowded: AtomicBool,
    pub(crate) due: DueSignal,
    pub(crate) keeper: Keeper,
    pub(crate) poller: Poller,
    pub(crate) workers: Workers,
    pub(crate) suspects: Gate,
    pub(crate) complaints: Complaints,
    pub(crate) emitting: Emitting,
    /// When retention can have something to do next, in milliseconds.
    pub(crate) retention_due: AtomicI64,
    /// Before this there is nothing to look for in the audit log, in milliseconds.
    pub(crate) audit_due: AtomicI64,
    /// Read once: by an engine at its start, by a client when it first needs it.
    secret: OnceLock<Secret>,
}

/// Stands for the epoch of a lease where there is none: no fence has it.
pub(crate) const NO_LEASE: u64 = u64::MAX;

/// What a runner holds, and until when.
#[derive(Clone, Copy)]
struct Lease {
    fence: Fence,
    valid_until: Uptime,
}

impl Shared {
    pub(crate) fn new(
        settings: Arc<Settings>,
        store: Arc<dyn Store>,
        registry: Arc<Registry>,
        clock: Arc<dyn Clock>,
        threads: usize,
        me: Option<Uuid>,
    ) -> Shared {
        let activity = Arc::new(Activity::default());
        let seed = settings.seed.unwrap_or_else(seam::random);
        Shared {
            store,
            registry,
            steady: Leaf::new(Steady::new(clock.now(), seam::now(), suspended())),
            #[cfg(feature = "sabotage")]
            believed: AtomicI64::new(i64::MIN),
            clock,
            process: Process::current(),
            threads: (0..threads).map(|_| Mailbox::new(activity.clone())).collect(),
            activity,
            queue: CommitQueue::default(),
            hub: Hub::default(),
            ids: RunIds::new(seed),
            me,
            owned: Owned::default(),
            peers: Peers::default(),
            counters: Counters::default(),
            metrics: Metrics::new(threads),
            lease_stop: Arc::default(),
            lease: Leaf::new(None),
            lease_ends: AtomicU64::new(0),
            lease_epoch: AtomicU64::new(NO_LEASE),
            stopped: OnceLock::new(),
            closing: AtomicBool::new(false),
            closing_since: OnceLock::new(),
            leaving: AtomicBool::new(false),
            moving: AtomicUsize::new(0),
            is_crowded: AtomicBool::new(false),
            due: DueSignal::default(),
            keeper: Keeper::default(),
            poller: Poller::default(),
            workers: Workers::default(),
            suspects: Gate::default(),
            complaints: Complaints::default(),
            emitting: Emitting::new(settings.emit_bytes_max),
            retention_due: AtomicI64::new(i64::MIN),
            audit_due: AtomicI64::new(i64::MIN),
            secret: OnceLock::new(),
            settings,
        }
    }

    /// The secret of the store, if it was read.
    pub(crate) fn known_secret(&self) -> Option<&Secret> {
        self.secret.get()
    }

    /// Notes the secret of the store, which is the same whoever reads it.
    pub(crate) fn set_secret(&self, secret: Secret) -> &Secret {
        self.secret.get_or_init(|| secret)
    }

    /// The time that is stored: the store's own, or that of this process's clock if the store has none.
    ///
    /// May go back, when the clock was set back. What must not go back sees to it by itself: leases go
    /// by the monotonic clock, and a run's `ctx.now()` by the latest completion that it took.
    pub(crate) fn now(&self) -> Timestamp {
        #[cfg(feature = "sabotage")]
        if self.settings.breaks(Sabotage::BelieveClock) {
            return self.believed_now();
        }
        // A virtual clock is nobody's calendar: whoever moves it means it.
        if self.clock.as_virtual().is_some() {
            return self.clock.now();
        }
        self.store.time().unwrap_or_else(|| self.steady_now())
    }

    /// When the committer looks at the clock although there is nothing to write. In a client without an
    /// engine nobody else does: a clock that was set would be noticed only when it is to be written, and
    /// be followed some seconds after that.
    pub(crate) fn next_look_at_clock(&self) -> Option<Instant> {
        let goes_by_calendar = self.clock.as_virtual().is_none() && self.store.time().is_none();
        if !self.threads.is_empty() || !goes_by_calendar {
            return None;
        }
        self.steady_now();
        seam::after(steady::CONFIRM)
    }

    fn steady_now(&self) -> Timestamp {
        let mut steady = self.steady.lock();
        // Read behind the lock, so that looks follow each other in the order of their clocks.
        let (clock, at) = (self.clock.now(), seam::now());
        let (now, seen) = steady.look(clock, at, suspended);
        drop(steady);
        match seen {
            Seen::Nothing => {}
            Seen::Jumped(by_ms) => tracing::warn!(
                %clock, %now, by_ms,
                "the clock of this machine has jumped; it is followed if that lasts for {:?}",
                steady::CONFIRM,
            ),
            Seen::WentBack => {
                tracing::info!(%clock, "the clock of this machine is right again; nothing has followed it");
            }
            Seen::Followed(by_ms) => {
                tracing::warn!(%clock, by_ms, "the clock of this machine was set and is followed");
                // They may be in a future that does not come for long.
                self.retention_due.store(i64::MIN, Ordering::Release);
                self.audit_due.store(i64::MIN, Ordering::Release);
            }
        }
        now
    }

    /// The latest time that any clock has ever shown here: the mistake that [`Sabotage::BelieveClock`]
    /// makes.
    #[cfg(feature = "sabotage")]
    fn believed_now(&self) -> Timestamp {
        let machine = Timestamp::from(seam::wall()).as_millis();
        let ahead = self.store.time().map_or(0, |it| it.as_millis() - machine);
        let now = self.clock.now().as_millis().saturating_add(ahead);
        Timestamp::from_millis(self.believed.fetch_max(now, Ordering::AcqRel).max(now))
    }

    pub(crate) fn owns(&self, shard: ShardId) -> bool {
        self.owned.has(shard)
    }

    pub(crate) fn owned(&self) -> ShardSet {
        self.owned.shards()
    }

    /// Sets what is owned under this fence; whether it is still ours. If it is not, the shards were
    /// lost since the caller has found them.
    pub(crate) fn set_owned_if(&self, fence: Fence, shards: &ShardSet) -> bool {
        let lease = self.lease.lock();
        let is_ours = lease.is_some_and(|lease| lease.fence == fence);
        if is_ours {
            self.owned.set_shards(shards);
        }
        is_ours
    }

    /// The engine thread that owns the runs of shards with this index: a run stays with it when it
    /// moves to another pool.
    pub(crate) fn thread_of(&self, index: u8) -> usize {
        usize::from(index) % self.threads.len()
    }

    pub(crate) fn mailbox_of(&self, run: RunId) -> &Mailbox {
        &self.threads[self.thread_of(run.shard_index())]
    }

    /// Tells each engine thread of those of these that belong to its runs.
    pub(crate) fn tell_owners<T>(
        &self,
        runs: impl Iterator<Item = (RunId, T)>,
        event: impl Fn(Vec<T>) -> Event,
    ) {
        let mut by_thread: Vec<Vec<T>> = self.threads.iter().map(|_| Vec::new()).collect();
        for (run, what) in runs {
            by_thread[self.thread_of(run.shard_index())].push(what);
        }
        for (thread, told) in self.threads.iter().zip(by_thread) {
            if !told.is_empty() {
                thread.push(event(told));
            }
        }
    }

    /// Hands a write to the committer.
    pub(crate) fn hand_in(&self, write: Write) -> Answering {
        let (sender, answer) = oneshot::channel();
        let pending = Pending::new(write, Reply::Caller(sender));
        self.queue.push(self, pending);
        answer
    }

    /// Hands writes to the committer together. One answer for each, in order.
    pub(crate) fn hand_in_all(&self, writes: impl Iterator<Item = Write>) -> Vec<Answering> {
        let mut answers = Vec::new();
        let pending = writes.map(|write| {
            let (sender, answer) = oneshot::channel();
            answers.push(answer);
            Pending::new(write, Reply::Caller(sender))
        });
        self.queue.push_all(self, &mut pending.collect());
        answers
    }

    /// Takes a run out of memory, if it is in that of this process; `None` if there is no engine.
    pub(crate) async fn make_cold(&self, run: RunId) -> Option<Leaves> {
        if self.threads.is_empty() {
            return None;
        }
        let (answer, leaves) = oneshot::channel();
        let event = Event::MakeCold(run.no(), Some(answer));
        self.mailbox_of(run).push(event);
        leaves.await.ok()
    }

    /// Begins a lease.
    pub(crate) fn set_lease(&self, fence: Fence, valid_until: Uptime) {
        self.put_lease(self.lease.lock(), Lease { fence, valid_until });
    }

    /// Prolongs the lease, unless it was lost since the caller has asked: another may have begun.
    pub(crate) fn prolong(&self, fence: Fence, valid_until: Uptime) {
        let lease = self.lease.lock();
        if lease.is_some_and(|lease| lease.fence == fence) {
            self.put_lease(lease, Lease { fence, valid_until });
        }
    }

    fn put_lease(&self, mut slot: LeafGuard<'_, Option<Lease>>, lease: Lease) {
        *slot = Some(lease);
        self.lease_epoch.store(lease.fence.epoch, Ordering::Release);
        let margin = self.settings.lease_margin().as_nanos();
        let margin = u64::try_from(margin).unwrap_or(u64::MAX);
        // 0 says that there is no lease.
        let ends = lease.valid_until.as_nanos().saturating_sub(margin).max(1);
        // The clock is read after the swap: whoever has found the lease over until then is woken.
        let before = self.lease_ends.swap(ends, Ordering::AcqRel);
        let was_ending = !is_after(before, self.settings.lease_grace());
        drop(slot);
        self.counters.lease_lasts();
        if was_ending {
            // The threads start no body while it is about to end, and hold still while it is over.
            for thread in &self.threads {
                thread.push(Event::Timer);
            }
        }
    }

    /// Whether the lease lasts long enough for bodies to start and to go on: until
    /// [`Settings::lease_margin`] before its end. A process that was stopped for longer, or whose machine
    /// was suspended, may have a successor, and must start no body before it knows.
    pub(crate) fn lease_lasts(&self) -> bool {
        self.lease_lasts_for(Duration::ZERO)
    }

    /// Whether it lasts for longer than this.
    fn lease_lasts_for(&self, time: Duration) -> bool {
        let ends = self.lease_ends.load(Ordering::Acquire);
        is_after(ends, time) || self.is_blind()
    }

    /// Whether this runner is told not to look at its own clock.
    fn is_blind(&self) -> bool {
        let settings = &self.settings;
        settings.breaks(Sabotage::NoFence) || settings.breaks(Sabotage::NoSelfFencing)
    }

    /// Whether a body may start of a run that was read under the lease with this epoch.
    ///
    /// Not once the engine is leaving: its bodies were told, or dropped, and one that gives up for that
    /// would begin again here. Not in the grace before the end of the lease either: a body that begins
    /// after the others were told would be dropped without a word.
    pub(crate) fn lets_bodies_start(&self, epoch: u64) -> bool {
        self.holds_for(epoch, self.settings.lease_grace()) && !self.leaving()
    }

    /// Whether bodies may go on of a run that was read under the lease with this epoch.
    pub(crate) fn lets_bodies_run(&self, epoch: u64) -> bool {
        self.holds_for(epoch, Duration::ZERO) || self.settings.breaks(Sabotage::BodiesGoOn)
    }

    /// Whether the lease with this epoch lasts for longer than this.
    ///
    /// The lease must last, and it must be the same one. A process that was stopped past its lease
    /// may have registered again while one run was polled, and another process may have completed
    /// that run's steps in between.
    fn holds_for(&self, epoch: u64, time: Duration) -> bool {
        // The last point before a body: none stands between this check and the body.
        seam::point("lease check");
        let is_own = self.is_current(epoch) || self.settings.breaks(Sabotage::ForeignEpoch);
        is_own && self.lease_lasts_for(time)
    }

    /// How long bodies may go on if the lease is not renewed, and which end of the lease that is.
    /// `None` if there is no lease, or nobody looks at the clock.
    pub(crate) fn bodies_end_in(&self) -> Option<(Duration, u64)> {
        let ends = self.lease_ends.load(Ordering::Acquire);
        if ends == 0 || self.is_blind() {
            return None;
        }
        if !self.lease_lasts() {
            return Some((Duration::ZERO, ends));
        }
        let left = ends.saturating_sub(Uptime::now().as_nanos());
        Some((Duration::from_nanos(left), ends))
    }

    /// Tells all bodies in flight that they should stop.
    pub(crate) fn tell_bodies(&self) {
        self.threads.iter().for_each(|it| it.bodies.tell());
    }

    /// Ends the bodies in flight whose lease is over or about to end, whatever the engine threads do:
    /// tasks are aborted here, everything else is dropped when its engine thread handles the event.
    ///
    /// The lease may have been renewed, or another begun, since the caller looked: the bodies of a
    /// lease that lasts go on.
    pub(crate) fn stop_bodies(&self) {
        for thread in &self.threads {
            let is_over = |epoch| !self.lets_bodies_run(epoch);
            thread.bodies.stop_where(is_over);
            thread.push(Event::StopBodies);
        }
    }

    /// The epoch of the lease; [`NO_LEASE`] if there is none.
    pub(crate) fn epoch(&self) -> u64 {
        self.lease_epoch.load(Ordering::Acquire)
    }

    /// Whether what was begun under the lease with this epoch is current. What was begun without a
    /// lease never is.
    pub(crate) fn is_current(&self, epoch: u64) -> bool {
        let is_own = epoch != NO_LEASE && epoch == self.epoch();
        is_own || self.settings.breaks(Sabotage::NoFence)
    }

    pub(crate) fn fence(&self) -> Option<Fence> {
        self.lease.lock().map(|lease| lease.fence)
    }

    /// The fence for the next batch. An owner whose lease is about to end renews it first, so that
    /// it never writes past it; one that cannot has lost its shards.
    pub(crate) fn fence_for_commit(&self) -> Option<Fence> {
        #[cfg(feature = "sabotage")]
        if self.settings.breaks(Sabotage::NoFence) {
            return self.forged_fence();
        }
        let lease = (*self.lease.lock())?;
        if committer::lease_holds(lease.valid_until, self.settings.lease)
            || self.settings.breaks(Sabotage::NoSelfFencing)
        {
            return Some(lease.fence);
        }
        let begun = Uptime::now();
        if begun >= lease.valid_until {
            self.counters.lease_is_over();
        }
        match self.store.heartbeat(lease.fence, self.now(), self.settings.lease) {
            Ok(true) => {
                self.prolong(lease.fence, begun + self.settings.lease);
                Some(lease.fence)
            }
            Ok(false) => {
                self.counters.lease_is_over();
                self.lose_if(lease.fence);
                None
            }
            // The batch will say the same, and be tried again.
            Err(_) => Some(lease.fence),
        }
    }

    /// Its own fence while that holds; then whichever does, whosever it is.
    #[cfg(feature = "sabotage")]
    fn forged_fence(&self) -> Option<Fence> {
        let runners = self.store.runners().unwrap_or_default();
        let holders = runners.iter().filter(|runner| !runner.shards.is_empty());
        let fences = holders.map(|holder| {
            let (runner, epoch) = (holder.id, holder.epoch);
            (Fence { runner, epoch }, holder.shards.len())
        });
        let own = self.fence();
        let best = fences.max_by_key(|(fence, shards)| (Some(*fence) == own, *shards));
        best.map(|(fence, _)| fence).or(own)
    }

    /// How this runner is entered into the store.
    pub(crate) fn as_runner(&self, me: Uuid) -> NewRunner {
        NewRunner {
            id: me,
            name: runner_name(),
            now: self.now(),
            lease: self.settings.lease,
            workflows: self.registry.all().map(|code| code.serves()).collect(),
            pools: self.settings.pools.clone(),
            weight: self.settings.weight,
        }
    }

    /// Another runner has taken over from the one with this fence: nothing may be written any more.
    /// Nothing happens if that was known already, though this runner may have begun anew since.
    pub(crate) fn lose_if(&self, fence: Fence) {
        if self.settings.breaks(Sabotage::NoFence) {
            return;
        }
        {
            let mut lease = self.lease.lock();
            if lease.is_none_or(|lease| lease.fence != fence) {
                return;
            }
            *lease = None;
            self.lease_epoch.store(NO_LEASE, Ordering::Release);
            self.lease_ends.store(0, Ordering::Release);
            self.owned.set_shards(&ShardSet::EMPTY);
        }
        tracing::error!("the lease of this runner is over; its runs are dropped from memory");
        self.drop_lost_runs();
    }

    /// Has the runs dropped that were read under a lease which is over. Another may have begun.
    pub(crate) fn drop_lost_runs(&self) {
        for thread in &self.threads {
            let is_lost = |epoch| !self.is_current(epoch);
            thread.bodies.stop_where(is_lost);
            thread.push(Event::Lost);
        }
    }

    /// Has everything in memory dropped, for good: no body starts any more.
    pub(crate) fn drop_runs(&self) {
        // First: a body that is polled now may give up when its token is stopped.
        self.begin_leaving();
        for thread in &self.threads {
            thread.bodies.stop_where(|_| true);
            thread.push(Event::Forget);
        }
    }

    /// Stops for good: nothing is written any more, every caller gets this error, and the lease is not
    /// prolonged, so that others take over.
    pub(crate) fn stop(&self, error: StoreError) {
        let cause = std::error::Error::source(&error).map(ToString::to_string).unwrap_or_default();
        tracing::error!(%error, cause, "the engine stops");
        if self.stopped.set(Arc::new(error)).is_ok() {
            self.drop_runs();
            if let Some(error) = self.stopped() {
                self.hub.stop(&error);
            }
            self.workers.signal(self);
        }
    }

    pub(crate) fn stopped(&self) -> Option<Arc<StoreError>> {
        self.stopped.get().cloned()
    }

    /// From now on no shard is taken, and no body starts.
    pub(crate) fn begin_leaving(&self) {
        self.leaving.store(true, Ordering::Release);
    }

    pub(crate) fn leaving(&self) -> bool {
        self.leaving.load(Ordering::Acquire)
    }

    pub(crate) fn begin_closing(&self) {
        self.closing_since.get_or_init(seam::instant);
        self.closing.store(true, Ordering::Release);
    }

    /// For how long it has been closing.
    pub(crate) fn closing_for(&self) -> Duration {
        self.closing_since.get().map_or(Duration::ZERO, |since| seam::elapsed(*since))
    }

    pub(crate) fn closing(&self) -> bool {
        self.closing.load(Ordering::Acquire)
    }

    /// The committer has ended: who still waits for a result is told.
    pub(crate) fn stop_failed_writes(&self) {
        let closed = Arc::new(StoreError::Closed { store: self.store.describe() });
        self.hub.stop(&closed);
    }

    /// The pool of new runs of this workflow: as its code says, which may be another runner's.
    pub(crate) fn home_of(&self, workflow: &str, version: u32) -> Arc<str> {
        let here = self.registry.find(workflow, version);
        let here = here.map(|code| code.options.pool.clone());
        here.or_else(|| peers::home(workflow, version, &self.peers.alive()))
            .unwrap_or_else(|| Arc::from(DEFAULT_POOL))
    }

    /// An id for a run that begins now. If this process serves its workflow and has room for it, the id
    /// is for a shard of this process: elsewhere another one would have to find and read the run.
    pub(crate) fn new_id(&self, now: Timestamp, workflow: &str, version: u32, pool: &str) -> RunId {
        let id = self.ids.next(now);
        let is_served = self.registry.find(workflow, version).is_some();
        if !is_served || !self.has_room() || self.leaving() || self.closing() {
            return id;
        }
        self.owned.place(id, pool)
    }

    /// Whether this process takes a new run into memory at once, since it owns it and has its code;
    /// if so, a place in memory is taken.
    pub(crate) fn claims(&self, new: &NewRun) -> bool {
        new.available_at.is_none()
            && self.owned.home(new.id, &new.pool).is_some()
            && self.registry.find(&new.workflow, new.version).is_some()
            && self.reserve()
    }

    /// Takes a place for one more run that moves in memory, if there is one.
    pub(crate) fn reserve(&self) -> bool {
        let max = self.settings.max_live_runs;
        let more = |moving: usize| (moving < max).then_some(moving + 1);
        let reserved = self.moving.fetch_update(Ordering::SeqCst, Ordering::SeqCst, more);
        reserved.is_ok()
    }

    /// As [`reserve`](Shared::reserve), for a run that waits here until there is a place: the engine
    /// threads are told when there is room again.
    pub(crate) fn reserve_or_wait(&self) -> bool {
        // A place that is given back before the note is told to nobody.
        self.reserve() || (self.wait_for_room() && self.reserve())
    }

    /// Notes that a run waits for a place, so that the engine threads are told when there is room
    /// again; whether there is already.
    pub(crate) fn wait_for_room(&self) -> bool {
        self.is_crowded.store(true, Ordering::SeqCst);
        self.has_room()
    }

    /// Gives the place of a run back.
    pub(crate) fn release(&self) {
        let left = self.moving.fetch_sub(1, Ordering::SeqCst) - 1;
        // Not for every place that is free: reading what is due costs more than one run.
        if left <= self.settings.max_live_runs * 9 / 10 {
            self.tell_of_room();
        }
    }

    /// Lets those look again who have found no place since they were last told.
    pub(crate) fn tell_of_room(&self) {
        if self.is_crowded.load(Ordering::SeqCst) && self.is_crowded.swap(false, Ordering::SeqCst) {
            self.due.poke(false);
            for thread in &self.threads {
                thread.push(Event::Timer);
            }
        }
    }

    /// Does the work of a thread of the engine. If that panics, the engine stops: what the thread was
    /// for is not done any more, and others can do it only when this one gives up its lease.
    pub(crate) fn guard(&self, thread: &str, work: impl FnOnce()) {
        let work = std::panic::AssertUnwindSafe(work);
        if let Err(panic) = std::panic::catch_unwind(work) {
            self.stop_after_panic(thread, &*panic);
        }
    }

    /// A thread has died by a bug of ours or of the store: nothing can be relied on any more.
    pub(crate) fn stop_after_panic(&self, thread: &str, panic: &(dyn std::any::Any + Send)) {
        if seam::is_dead() {
            // A simulation has killed this process, and the thread unwinds.
            return;
        }
        let message = crate::panics::message(panic);
        let store = format!("the engine (its {thread} thread has died: {message})");
        self.stop(StoreError::Closed { store });
    }

    /// How many more runs may move in memory.
    pub(crate) fn room(&self) -> usize {
        let moving = self.moving.load(Ordering::SeqCst);
        self.settings.max_live_runs.saturating_sub(moving)
    }

    /// Whether one more run may be taken into memory at once.
    pub(crate) fn has_room(&self) -> bool {
        self.room() > 0
    }

    /// Others may have to know what happened to these runs.
    pub(crate) fn wake_others(&self, runs: &[RunNo]) {
        if !runs.is_empty() {
            self.store.wake_others(self.me, runs);
        }
    }
}

/// Whether this uptime in nanoseconds is further away than that.
fn is_after(uptime: u64, time: Duration) -> bool {
    let time = u64::try_from(time.as_nanos()).unwrap_or(u64::MAX);
    Uptime::now().as_nanos().saturating_add(time) < uptime
}

/// A name for people: the host and the process.
fn runner_name() -> String {
    if let Some(name) = seam::process_name() {
        return name;
    }
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = host.trim();
    let host = if host.is_empty() { "localhost" } else { host };
    format!("{host}/{}", std::process::id())
}

impl Watched for Shared {
    fn metrics(&self) -> EngineMetrics {
        let shards = self.owned().len() as u64;
        self.metrics.read(shards, self.counters.read())
    }

    fn ready(&self) -> Result<(), NotReady> {
        if let Some(error) = self.stopped() {
            return Err(NotReady::Stopped(error));
        }
        if self.closing() || self.leaving() {
            return Err(NotReady::Closing);
        }
        if !self.lease_lasts() {
            return Err(NotReady::NoLease);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        engine::{fixture, lease::Ending},
        pool::PoolNo,
        testing::ShiftedClock,
        time::tests::SUSPENDED,
    };

    /// The committer found the loss of a lease after the lease thread had begun another.
    #[test]
    fn what_is_found_late_about_an_old_lease_does_not_touch_the_new_one() {
        let (_, shared) = fixture::shared();
        let old = fixture::enter(&shared);
        let all = ShardSet::of_default_pool();
        assert!(shared.set_owned_if(old, &all));
        shared.lose_if(old);
        assert!(shared.owned().is_empty() && !shared.lease_lasts());
        assert_eq!((shared.fence(), shared.epoch()), (None, NO_LEASE));
        assert!(!shared.is_current(NO_LEASE));
        // A balance that was under way.
        assert!(!shared.set_owned_if(old, &all));
        assert!(shared.owned().is_empty());
        let new = fixture::enter(&shared);
        assert!(shared.set_owned_if(new, &all));
        shared.lose_if(old);
        shared.prolong(old, Uptime::now());
        assert!(!shared.set_owned_if(old, &ShardSet::EMPTY));
        assert_eq!((shared.fence(), shared.owned()), (Some(new), all));
        assert!(shared.lease_lasts());
    }

    #[test]
    fn threads_are_woken_when_a_lease_lasts_again_and_not_at_every_beat() {
        let (_, shared) = fixture::shared();
        let fence = fixture::enter(&shared);
        shared.threads[0].take();
        shared.prolong(fence, Uptime::now() + shared.settings.lease);
        assert!(shared.threads[0].take().is_empty());
        shared.prolong(fence, Uptime::now());
        shared.threads[0].take();
        shared.prolong(fence, Uptime::now() + shared.settings.lease);
        let events = shared.threads[0].take();
        assert!(matches!(events[..], [Event::Timer]));
    }

    /// The clock of [`Instant`] stands still while a machine is suspended; its lease does not.
    #[test]
    fn a_lease_is_over_when_the_machine_has_slept_past_it() {
        let (_, shared) = fixture::shared();
        let fence = fixture::enter(&shared);
        assert!(shared.lease_lasts());
        shared.threads[0].take();
        SUSPENDED.set(shared.settings.lease);
        assert!(!shared.lease_lasts());
        assert_eq!(shared.bodies_end_in().map(|it| it.0), Some(Duration::ZERO));
        // The committer renews it before it writes.
        assert_eq!(shared.fence_for_commit(), Some(fence));
        assert!(shared.lease_lasts());
        assert!(matches!(shared.threads[0].take()[..], [Event::Timer]));
    }

    /// The end of a lease was also looked for in the calendar. When that was set ahead, all bodies were
    /// dropped and began again.
    #[test]
    fn a_clock_that_is_set_does_not_end_a_lease() {
        let (_, of) = fixture::shared();
        let clock = Arc::new(ShiftedClock::new());
        let (settings, registry) = (of.settings.clone(), of.registry.clone());
        let shared = Shared::new(settings, of.store.clone(), registry, clock.clone(), 1, of.me);
        let fence = fixture::enter(&shared);
        const YEAR_MS: i64 = 365 * 24 * 3_600_000;
        for shift in [YEAR_MS, -YEAR_MS, 0] {
            clock.shift(shift);
            assert!(shared.lets_bodies_run(fence.epoch));
            let (left, _) = shared.bodies_end_in().expect("a lease");
            assert!(left > shared.settings.lease / 2);
            assert!(Ending::default().look(&shared) > shared.settings.lease / 2);
            assert_eq!(shared.fence_for_commit(), Some(fence));
        }
    }

    /// Half of the runs that one of two processes started were the other's, which found and read them
    /// one by one: two processes did a tenth of the work of one.
    #[test]
    fn a_run_that_is_served_here_is_started_in_a_shard_of_this_process() {
        let (_, shared) = fixture::shared();
        let fence = fixture::enter(&shared);
        let mine: ShardSet = ShardSet::of_default_pool().iter().take(10).collect();
        assert!(shared.set_owned_if(fence, &mine));
        let here = |workflow: &str, version: u32, pool: &str| {
            let new_id = || shared.new_id(shared.now(), workflow, version, pool);
            let is_here = |id: RunId| mine.contains(id.shard_in(PoolNo::DEFAULT));
            (0..200).filter(|_| is_here(new_id())).count()
        };
        assert_eq!(here("w", 1, DEFAULT_POOL), 200);
        // Without the code, or for a pool of others, they are spread over all shards.
        assert!(here("w", 2, DEFAULT_POOL) < 100);
        assert!(here("other", 1, DEFAULT_POOL) < 100);
        assert!(here("w", 1, "gpu") < 100);
        // A shard that is being given back gets no new run.
        let kept: ShardSet = mine.iter().skip(9).collect();
        assert!(shared.set_owned_if(fence, &kept));
        let id = shared.new_id(shared.now(), "w", 1, DEFAULT_POOL);
        assert!(kept.contains(id.shard_in(PoolNo::DEFAULT)));
        // Nor does any from a process that is about to end, or has no room.
        let places = shared.settings.max_live_runs;
        assert!((0..places).all(|_| shared.reserve()));
        assert!(here("w", 1, DEFAULT_POOL) < 100);
        (0..places).for_each(|_| shared.release());
        assert_eq!(here("w", 1, DEFAULT_POOL), 200);
        shared.begin_leaving();
        assert!(here("w", 1, DEFAULT_POOL) < 100);
    }
}
