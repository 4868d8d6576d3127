//! The workers of this process: one thread that takes items from queues, hands them to handlers on
//! the application's runtime, and says that those are alive.
//!
//! A [`Station`] is one call of `work`: a queue, a handler, and how many may run at once. The thread
//! claims as many items as a station has room for when it is told that there are some (a notice of a
//! commit here, a wake-up from another process), when a delay or a claim ends, and now and then for
//! safety. A handler's end is settled by its own task, so it travels in the same batch as the next
//! claim.
//!
//! A claim is a write, and is made only where there may be something that no earlier one has seen. So
//! the claims of a batch come last in it, and answer all that their stations were told until then
//! ([`claim_last`]) and all that the batch itself puts in ([`Workers::poke`]).
//!
//! Always true:
//! - Heartbeats come from the thread, so a handler that blocks its runtime does not lose its item.
//! - An item is given back only once its handler has been dropped: an aborted task may still be inside of
//!   a poll, and its attempt would begin a second time beside it.
//! - What the thread has been told, and has not acted on, counts as something that goes on: a
//!   virtual clock does not jump over it.

use std::{
    collections::BTreeMap,
    future::poll_fn,
    ops::ControlFlow::{Break, Continue},
    pin::pin,
    sync::{
        Arc,
        atomic::{AtomicI64, Ordering},
    },
    task::{Poll, ready},
    time::{Duration, Instant},
};

use tokio::{runtime::Handle, sync::oneshot};
use tracing::Instrument;
use uuid::Uuid;

use super::{
    BLOCKED_MAX,
    committer::Pending,
    job::{self, Handler, Job, Kept},
    keeper,
    shared::{Answering, Shared},
};
use crate::{
    cancellation::Cancellation,
    codec::hook::Codecs,
    commit::{
        ClaimItems, ClaimLimit, Claimed, ClaimedItem, Extend, ItemId, Outcome, QueueDone,
        QueueWrite, Settle, Settlement, Write,
    },
    limit::LimitUse,
    queue::Queue,
    retry::Retry,
    seam::{self, Abort, Leaf, Monitor, Thread},
    settings::SettingsError,
    store::StoreError,
    telemetry::ItemSpan,
    time::Timestamp,
};

/// How many items are claimed at once at most, so that a batch stays small.
const CLAIM_MAX: usize = 256;

/// How often a process that nobody can wake looks by itself.
const UNTOLD_POLL: Duration = Duration::from_secs(1);

/// The shortest visibility: a third of it passes between two heartbeats of an item.
const VISIBILITY_MIN: Duration = Duration::from_millis(3);

/// The stations of a process, and what their thread waits on.
pub(crate) struct Workers {
    state: Monitor<State>,
    /// When the thread has something to do by the clock.
    next_timer: AtomicI64,
}

#[derive(Default)]
struct State {
    stations: Vec<Arc<Station>>,
    /// The thread has something to do. Counted as activity while it is set, and until that is done.
    signalled: bool,
    running: bool,
    closed: bool,
    thread: Option<Thread>,
}

/// What `work` was asked for.
pub(crate) struct Spec {
    pub(crate) queue: Arc<str>,
    pub(crate) concurrency: usize,
    pub(crate) policy: Retry,
    pub(crate) visibility: Duration,
    pub(crate) limit: Option<ClaimLimit>,
    pub(crate) handler: Handler,
}

impl Spec {
    pub(crate) fn new<I, O>(
        queue: Queue<I, O>,
        concurrency: usize,
        handler: Handler,
    ) -> Result<Spec, SettingsError> {
        let (policy, visibility) = (queue.policy(), queue.visible_for());
        SettingsError::check_count("concurrency", concurrency as u64)?;
        SettingsError::check_count("attempts", policy.attempts().into())?;
        SettingsError::check_bounded("visibility", visibility, VISIBILITY_MIN)?;
        Ok(Spec {
            queue: Arc::from(queue.name()),
            concurrency,
            policy,
            visibility,
            limit: queue.limited_by().map(|limit| LimitUse::new(limit).claim()),
            handler,
        })
    }
}

/// One call of `work`.
pub(crate) struct Station {
    spec: Spec,
    runtime: Handle,
    codecs: Codecs,
    state: Leaf<Desk>,
    /// Kept while it works: the committer of a client without an engine.
    _keeps: Option<Arc<dyn std::any::Any + Send + Sync>>,
}

/// What changes at a station.
#[derive(Default)]
struct Desk {
    /// By item and claim: an item that this worker lost can come back to it under another claim while
    /// the handler of the first is still at work.
    jobs: BTreeMap<(ItemId, Uuid), Held>,
    /// The queue may have something that `claiming` does not see.
    poked: bool,
    /// The claim that is on its way.
    claiming: Option<Uuid>,
    /// When it may have something by the clock.
    next_at: Option<Timestamp>,
    stopping: Option<Stopping>,
}

/// An item that a handler works on.
struct Held {
    /// Until when the handler is polled without a further sign of life. The store may keep the item for
    /// longer.
    until: Timestamp,
    cancellation: Cancellation,
    kept: Kept,
    /// Absent until it is spawned.
    task: Option<Abort>,
    /// Another worker has it.
    lost: bool,
}

impl Held {
    fn abort(&self) {
        if let Some(task) = &self.task {
            task.abort();
        }
    }
}

/// A stop goes through these stages:
///
/// 1. The handlers are told, and may end by themselves until the limit of the stop.
/// 2. The tasks of those that are left are aborted. An abort takes effect only between two polls, so
///    each task gives its item back itself, when it is dropped ([`AtDesk`]). Until then the item is kept
///    by heartbeats.
/// 3. A handler that blocks its thread for longer than [`BLOCKED_MAX`] is left alone. Nothing keeps its
///    item any more: another worker gets it when the visibility has passed.
struct Stopping {
    /// When the next stage begins.
    until: Instant,
    /// Whether the tasks were aborted.
    aborted: bool,
    /// Whom to tell when the stop is over; absent once it is.
    told: Option<Vec<oneshot::Sender<()>>>,
}

impl Default for Workers {
    fn default() -> Workers {
        Workers { state: Monitor::default(), next_timer: AtomicI64::new(i64::MAX) }
    }
}

impl Workers {
    /// A station opens; the thread comes with the first. None if no more is worked on here.
    pub(crate) fn open(
        shared: &Arc<Shared>,
        spec: Spec,
        runtime: Handle,
        codecs: Codecs,
        keeps: Option<Arc<dyn std::any::Any + Send + Sync>>,
    ) -> Option<Arc<Station>> {
        let poked = true;
        let desk = Desk { poked, ..Desk::default() };
        let station =
            Arc::new(Station { spec, runtime, codecs, state: Leaf::new(desk), _keeps: keeps });
        let workers = &shared.workers;
        let mut state = workers.state.lock();
        if state.closed {
            return None;
        }
        state.stations.push(station.clone());
        if !state.running {
            let working = shared.clone();
            let work = move || working.guard("working", || run(&working));
            match shared.process.spawn("everstep-work", work) {
                Ok(thread) => (state.running, state.thread) = (true, Some(thread)),
                Err(error) => {
                    tracing::error!(%error, "a thread cannot be started; no items are worked on");
                    state.stations.pop();
                    return None;
                }
            }
        }
        drop(state);
        workers.signal(shared);
        Some(station)
    }

    /// Lets the thread look.
    pub(crate) fn signal(&self, shared: &Shared) {
        self.state.change(|state| {
            if state.running && !state.signalled {
                state.signalled = true;
                shared.activity.begin(1);
            }
        });
    }

    fn poke_where(&self, shared: &Shared, meant: impl Fn(&Station, &Desk) -> bool) {
        let mut any = false;
        for station in &self.state.lock().stations {
            let mut desk = station.state.lock();
            if meant(station, &desk) {
                desk.poked = true;
                any = true;
            }
        }
        if any {
            self.signal(shared);
        }
    }

    /// This queue has got an item, in a batch that ended with these claims. They have seen it, so
    /// their stations are not poked; to be called before they are answered.
    pub(crate) fn poke(&self, shared: &Shared, queue: &str, claims: &[Uuid]) {
        self.poke_where(shared, |station, desk| {
            let has_seen = desk.claiming.is_some_and(|claim| claims.contains(&claim));
            *station.spec.queue == *queue && !has_seen
        });
    }

    /// Any queue may have got an item, from another process.
    pub(crate) fn poke_all(&self, shared: &Shared) {
        self.poke_where(shared, |_, _| true);
    }

    /// When the thread has something to do by a virtual clock, which it cannot wait for.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        let at = self.next_timer.load(Ordering::Acquire);
        (at != i64::MAX).then(|| Timestamp::from_millis(at))
    }

    /// Lets the thread look if its time has come.
    pub(crate) fn wake_if_due(&self, shared: &Shared, now: Timestamp) {
        if self.next_timer().is_some_and(|at| at <= now) {
            // The thread sets it anew when it has looked.
            self.next_timer.store(i64::MAX, Ordering::Release);
            self.signal(shared);
        }
    }

    /// All stations take no more items; each is told when its handlers have ended, were stopped after
    /// this long and their items given back, or could not be stopped.
    pub(crate) fn stop_all(&self, shared: &Shared, limit: Duration) -> Vec<oneshot::Receiver<()>> {
        let stations = self.state.lock().stations.clone();
        let stopped = stations.iter().map(|station| station.stop(shared, limit));
        stopped.collect()
    }

    /// Ends the thread; what handlers do is dropped.
    pub(crate) fn close(&self) {
        self.state.change(|state| state.closed = true);
    }

    pub(crate) fn take_thread(&self) -> Option<Thread> {
        self.state.lock().thread.take()
    }
}

impl Station {
    pub(crate) fn queue(&self) -> &str {
        &self.spec.queue
    }

    /// Takes no more items; told when the stop is over: see [`Stopping`]. If it is over already, the sender
    /// is gone.
    pub(crate) fn stop(&self, shared: &Shared, limit: Duration) -> oneshot::Receiver<()> {
        let (sender, stopped) = oneshot::channel();
        let mut desk = self.state.lock();
        let stopping = desk.stopping.get_or_insert_with(|| Stopping {
            until: seam::now() + limit,
            aborted: false,
            told: Some(Vec::new()),
        });
        if let Some(told) = &mut stopping.told {
            told.push(sender);
        }
        for held in desk.jobs.values() {
            held.cancellation.cancel();
        }
        drop(desk);
        shared.workers.signal(shared);
        stopped
    }

    /// Begins the next stage of its stop if it is time. If the stop is over, whom to tell.
    fn go_on_stopping(&self) -> Option<Vec<oneshot::Sender<()>>> {
        let mut desk = self.state.lock();
        let Desk { jobs, stopping, .. } = &mut *desk;
        let stopping = stopping.as_mut()?;
        let queue = self.queue();
        if !jobs.is_empty() {
            let now = seam::now();
            if now < stopping.until {
                return None;
            }
            if !stopping.aborted {
                (stopping.aborted, stopping.until) = (true, now + BLOCKED_MAX);
                for ((item, _), held) in jobs {
                    let item = item.0;
                    tracing::warn!(queue, item, "a handler is still at work and is stopped");
                    held.abort();
                }
                return None;
            }
            for (item, _) in jobs.keys() {
                tracing::warn!(
                    queue,
                    item = item.0,
                    "a handler cannot be stopped, since it blocks its thread; another worker gets \
                     its item when the visibility of the queue has passed"
                );
            }
        }
        Some(stopping.told.take().unwrap_or_default())
    }

    /// When its next sign of life is due: a third of the visibility after the last one. At once if the
    /// claim lasts for longer than it can: the clock was ahead, and was set back.
    fn beat_at(&self, held: &Held, now: Timestamp) -> Timestamp {
        let third = self.spec.visibility / 3;
        match held.until.since(now) > third * 4 {
            true => now,
            false => held.until - third * 2,
        }
    }
}

/// The thread, until it is closed or no station is left.
fn run(shared: &Arc<Shared>) {
    let every = match shared.me {
        Some(_) => shared.settings.safety_poll,
        None => UNTOLD_POLL,
    };
    let mut safety = seam::now() + every;
    while let Some(look) = wait(shared, safety) {
        let stations = shared.workers.state.lock().stations.clone();
        if shared.stopped().is_some() || shared.closing() {
            stations.iter().for_each(|station| drop_jobs(station));
        } else {
            beat(shared, &stations);
            if look {
                look_around(shared, &stations);
                safety = seam::now() + every;
            }
            claim(shared, &stations);
        }
        let left = close_stopped(shared, stations);
        set_timer(shared, &left);
        shared.activity.end(1);
        if left.is_empty() && end_if_alone(shared) {
            return;
        }
    }
    let mut state = shared.workers.state.lock();
    state.running = false;
    let stations = std::mem::take(&mut state.stations);
    if std::mem::take(&mut state.signalled) {
        shared.activity.end(1);
    }
    drop(state);
    stations.iter().for_each(|station| drop_jobs(station));
}

/// The last station has closed: the thread goes, and comes again with the next.
fn end_if_alone(shared: &Shared) -> bool {
    let mut state = shared.workers.state.lock();
    if !state.stations.is_empty() {
        return false;
    }
    state.running = false;
    state.thread = None;
    if std::mem::take(&mut state.signalled) {
        shared.activity.end(1);
    }
    true
}

/// Waits for something to do, which then counts as activity; whether it is time to look around.
/// `None` if it is closed.
fn wait(shared: &Shared, safety: Instant) -> Option<bool> {
    let workers = &shared.workers;
    workers.state.wait("work", |state| {
        if state.closed {
            return Break(None);
        }
        if std::mem::take(&mut state.signalled) {
            return Break(Some(false));
        }
        let (at, stop) = (seam::now(), next_stop(&state.stations));
        let mut until = stop.map_or(safety, |stop| stop.min(safety));
        if until <= at {
            shared.activity.begin(1);
            return Break(Some(safety <= at));
        }
        if shared.clock.as_virtual().is_none()
            && let Some(timer) = workers.next_timer()
        {
            let now = shared.now();
            if timer <= now {
                workers.next_timer.store(i64::MAX, Ordering::Release);
                shared.activity.begin(1);
                return Break(Some(false));
            }
            let timer = at.checked_add(timer.since(now));
            until = timer.map_or(until, |timer| timer.min(until));
        }
        Continue(Some(until))
    })
}

/// When a station that stops has waited long enough for its handlers.
fn next_stop(stations: &[Arc<Station>]) -> Option<Instant> {
    let limits = stations.iter().filter_map(|station| {
        let desk = station.state.lock();
        desk.stopping.as_ref().map(|stopping| stopping.until)
    });
    limits.min()
}

/// Says that all handlers are alive, in one write, if it is time for one of them.
fn beat(shared: &Shared, stations: &[Arc<Station>]) {
    let now = shared.now();
    let mut due = false;
    let mut claims = Vec::new();
    let mut held_at = Vec::new();
    for station in stations {
        let desk = station.state.lock();
        for (&(item, claim), held) in desk.jobs.iter().filter(|(_, held)| !held.lost) {
            due |= station.beat_at(held, now) <= now;
            let until = held.kept.until(now, station.spec.visibility);
            claims.push(Extend { item, claim, until });
            held_at.push(station.clone());
        }
    }
    if !due {
        return;
    }
    let answer = job::write(shared, QueueWrite::Extend(claims.clone()));
    let Some(QueueDone::Extended(still)) = receive(answer) else {
        return;
    };
    for ((claim, station), holds) in claims.iter().zip(held_at).zip(still) {
        let mut desk = station.state.lock();
        let Some(held) = desk.jobs.get_mut(&(claim.item, claim.claim)) else {
            continue;
        };
        held.until = now + station.spec.visibility;
        if !holds {
            held.lost = true;
            tracing::warn!(
                queue = station.queue(),
                item = claim.item.0,
                "an item was given to another worker, since this one gave no sign of life in time"
            );
            // The other worker has begun: there is no time for a grace.
            held.cancellation.cancel();
            held.abort();
        }
    }
}

/// What became of a write; none if it was not made.
fn receive(answer: Answering) -> Option<QueueDone> {
    match seam::block_on(answer, "answer about a queue") {
        Ok(Ok(Outcome::Queue(done))) => Some(done),
        Ok(Err(error)) => {
            tracing::warn!(%error, "a write about a queue was not made; trying again");
            None
        }
        _ => None,
    }
}

/// Asks for what nobody may have told.
fn look_around(shared: &Shared, stations: &[Arc<Station>]) {
    for station in stations {
        {
            let desk = station.state.lock();
            if desk.poked || desk.stopping.is_some() || desk.jobs.len() >= station.spec.concurrency
            {
                continue;
            }
        }
        match shared.store.queue_outlook(station.queue(), shared.now()) {
            Ok(outlook) => {
                let mut desk = station.state.lock();
                desk.poked |= outlook.ready;
                desk.next_at = [desk.next_at, outlook.next_at].into_iter().flatten().min();
            }
            Err(error) => shared.complain(&error, "a queue cannot be looked at"),
        }
    }
}

/// How long a claim that was not made waits before it is tried again.
const RETRY_AFTER: Duration = Duration::from_secs(1);

/// Takes as many items as there is room for, where there may be some.
fn claim(shared: &Arc<Shared>, stations: &[Arc<Station>]) {
    let now = shared.now();
    let mut asked = Vec::new();
    for station in stations {
        let mut desk = station.state.lock();
        let room = station.spec.concurrency.saturating_sub(desk.jobs.len());
        let due = desk.poked || desk.next_at.is_some_and(|at| at <= now);
        if !due || room == 0 || desk.stopping.is_some() {
            continue;
        }
        let claim = seam::random_uuid();
        (desk.poked, desk.next_at, desk.claiming) = (false, None, Some(claim));
        let wanted = ClaimItems {
            queue: station.spec.queue.to_string(),
            claim,
            max: room.min(CLAIM_MAX),
            attempts_max: station.spec.policy.attempts(),
            visibility: station.spec.visibility,
            limit: station.spec.limit.clone(),
        };
        drop(desk);
        let answer = job::write(shared, QueueWrite::Claim(wanted));
        asked.push((station, claim, answer));
    }
    for (station, claim, answer) in asked {
        let answer = receive(answer);
        station.state.lock().claiming = None;
        match answer {
            Some(QueueDone::Claimed(claimed)) => begin(shared, station, claim, claimed),
            _ => station.state.lock().next_at = Some(now + RETRY_AFTER),
        }
    }
}

/// Puts the claims of a batch that is about to be made behind its other writes. What their stations
/// were told until now is durable, so these claims see it, and no others are made for it.
pub(super) fn claim_last(shared: &Shared, pending: &mut [Pending]) {
    let claims = claims_in(pending.iter().map(|pending| &pending.write));
    if claims.is_empty() {
        return;
    }
    // The order of all others stays.
    pending.sort_by_key(|pending| claim_of(&pending.write).is_some());
    for station in &shared.workers.state.lock().stations {
        let mut desk = station.state.lock();
        if desk.claiming.is_some_and(|claim| claims.contains(&claim)) {
            desk.poked = false;
        }
    }
}

/// The claims among these writes.
pub(super) fn claims_in<'a>(writes: impl Iterator<Item = &'a Write>) -> Vec<Uuid> {
    writes.filter_map(claim_of).collect()
}

fn claim_of(write: &Write) -> Option<Uuid> {
    match write {
        Write::Queue(write) => match &**write {
            QueueWrite::Claim(wanted) => Some(wanted.claim),
            _ => None,
        },
        _ => None,
    }
}

/// Starts the handlers of what was claimed.
fn begin(shared: &Arc<Shared>, station: &Arc<Station>, claim: Uuid, claimed: Claimed) {
    {
        let mut desk = station.state.lock();
        desk.poked |= claimed.more;
        desk.next_at = [desk.next_at, claimed.next_at].into_iter().flatten().min();
    }
    for item in claimed.items {
        let spec = &station.spec;
        let (queue, visibility) = (spec.queue.clone(), spec.visibility);
        let codecs = station.codecs.clone();
        let job = Job::new(shared.clone(), queue, claim, visibility, &item, codecs);
        let cancellation = job.cancellation().clone();
        let (id, until) = (item.item, item.until);
        let held = Held {
            until,
            cancellation: cancellation.clone(),
            kept: job.kept().clone(),
            task: None,
            lost: false,
        };
        {
            let mut desk = station.state.lock();
            desk.jobs.insert((id, claim), held);
            if desk.stopping.is_some() {
                cancellation.cancel();
            }
        }
        shared.activity.bodies_changed(1);
        let at_desk = AtDesk {
            shared: shared.clone(),
            station: station.clone(),
            item: id,
            claim,
            kept: job.kept().clone(),
            is_settled: false,
        };
        // Without a lock: a runtime that shuts down drops the task at once.
        let beginning = Beginning::new(shared);
        let work = handle(at_desk, beginning, job, item);
        let task = seam::spawn_task(&shared.process, &station.runtime, work);
        if let Some(held) = station.state.lock().jobs.get_mut(&(id, claim)) {
            held.task = Some(task.abort_handle());
        }
    }
}

/// Leaves the desk when the handler has ended in any way. The task of the handler drops it last: only
/// now is it certain that no code of the handler runs, also if the task was aborted.
struct AtDesk {
    shared: Arc<Shared>,
    station: Arc<Station>,
    item: ItemId,
    claim: Uuid,
    kept: Kept,
    /// Whether the end of the attempt was handed to the committer.
    is_settled: bool,
}

impl AtDesk {
    /// Until when the item is this worker's, as far as it knows; `None` if another worker has it.
    fn held_until(&self) -> Option<Timestamp> {
        seam::point("claim check");
        let desk = self.station.state.lock();
        let held = desk.jobs.get(&(self.item, self.claim));
        held.filter(|held| !held.lost).map(|held| held.until)
    }

    /// Whether the claim lasts, so that the handler may be polled.
    fn lasts(&self) -> bool {
        self.held_until().is_some_and(|until| self.shared.now() < until)
    }

    /// Whether the item is still this worker's, asked before its handler starts and whenever its claim
    /// is found over: a process that was stopped since its claim may have lost the item to another
    /// worker. A claim whose time has passed is prolonged first, which the store refuses if another
    /// worker has the item.
    async fn holds(&self) -> bool {
        loop {
            let Some(until) = self.held_until() else {
                return false;
            };
            let now = self.shared.now();
            if now < until {
                return true;
            }
            let visibility = self.station.spec.visibility;
            let until = self.kept.until(now, visibility);
            let (item, claim) = (self.item, self.claim);
            let wanted = QueueWrite::Extend(vec![Extend { item, claim, until }]);
            let answer = job::write(&self.shared, wanted).await;
            let Ok(Ok(Outcome::Queue(QueueDone::Extended(still)))) = answer else {
                return false;
            };
            if still != [true] {
                return false;
            }
            if let Some(held) = self.station.state.lock().jobs.get_mut(&(item, claim)) {
                held.until = now + visibility;
            }
        }
    }
}

impl Drop for AtDesk {
    fn drop(&mut self) {
        let (item, claim) = (self.item, self.claim);
        let is_stopped = {
            let desk = self.station.state.lock();
            let held = desk.jobs.get(&(item, claim)).is_some_and(|held| !held.lost);
            held && desk.stopping.as_ref().is_some_and(|stopping| stopping.aborted)
        };
        if is_stopped && !self.is_settled {
            // Before it leaves the desk: when the stop is over, the committer may end.
            let settle = Settle { item, claim, settlement: Settlement::Release };
            drop(job::write(&self.shared, QueueWrite::Settle(settle)));
        }
        self.station.state.lock().jobs.remove(&(item, claim));
        self.shared.workers.signal(&self.shared);
        self.shared.activity.bodies_changed(-1);
    }
}

/// Counts as activity until a handler waits for something by itself, or its end is on its way to the
/// store: however late its runtime polls it, a virtual clock does not jump over its beginning.
struct Beginning(Arc<Shared>);

impl Beginning {
    fn new(shared: &Arc<Shared>) -> Beginning {
        shared.activity.begin(1);
        Beginning(shared.clone())
    }
}

impl Drop for Beginning {
    fn drop(&mut self) {
        self.0.activity.end(1);
    }
}

/// One attempt from its claim to its settlement.
async fn handle(at_desk: AtDesk, beginning: Beginning, job: Job, item: ClaimedItem) {
    let (shared, station) = (at_desk.shared.clone(), at_desk.station.clone());
    if !at_desk.holds().await {
        tracing::warn!(
            queue = station.queue(),
            item = item.item.0,
            attempt = item.attempt,
            "an attempt at an item is not made: its claim was over before its handler started"
        );
        return;
    }
    if station.state.lock().stopping.is_some() || shared.leaving() {
        // It was claimed before the stop. Nothing has begun, so there is nothing to wait for.
        return settle(at_desk, Some(beginning), &item, Settlement::Release).await;
    }
    let spec = &station.spec;
    let payload = item.payload.clone();
    let told = ItemSpan::begin(&spec.queue, &item);
    let attempt = job::attempt(&spec.handler, job.clone(), payload);
    let mut attempt = pin!(attempt.instrument(told.span().clone()));
    let mut beginning = Some(beginning);
    let mut asking = None;
    let result = poll_fn(|cx| {
        // A process that was stopped past its claim goes on in here, before its heartbeat has noticed.
        if asking.is_none() && !at_desk.lasts() {
            asking = Some(Box::pin(at_desk.holds()));
        }
        if let Some(asked) = &mut asking {
            if !ready!(asked.as_mut().poll(cx)) {
                return Poll::Ready(None);
            }
            asking = None;
        }
        let polled = attempt.as_mut().poll(cx);
        if polled.is_pending() {
            beginning = None;
        }
        polled.map(Some)
    })
    .await;
    drop(asking);
    let Some(result) = result else {
        tracing::warn!(
            queue = station.queue(),
            item = item.item.0,
            attempt = item.attempt,
            "a handler is dropped: its claim is over, and another worker has the item"
        );
        return job.cancellation().cancel();
    };
    let stopped = station.state.lock().stopping.is_some() && job.cancellation().is_cancelled();
    let settlement = match result {
        // It was asked to stop, and says that it has not done its work.
        Err(_) if stopped => Settlement::Release,
        result => {
            if let Err(error) = &result {
                tracing::warn!(
                    queue = station.queue(),
                    item = item.item.0,
                    attempt = item.attempt,
                    error = error.failure().full(),
                    "an attempt at an item failed"
                );
            }
            let (now, max) = (shared.now(), shared.settings.payload_bytes_max);
            job::settlement(result, &item, &spec.policy, now, max, &station.codecs)
        }
    };
    told.end(match &settlement {
        Settlement::Done(_) => "completed",
        Settlement::Retry { .. } => "retried",
        Settlement::Failed(_) => "failed",
        Settlement::Release => "released",
    });
    settle(at_desk, beginning, &item, settlement).await;
}

/// Writes how an attempt has ended, and leaves the desk.
async fn settle(
    mut at_desk: AtDesk,
    beginning: Option<Beginning>,
    item: &ClaimedItem,
    settlement: Settlement,
) {
    let (shared, station) = (at_desk.shared.clone(), at_desk.station.clone());
    let settle = Settle { item: item.item, claim: at_desk.claim, settlement };
    let answer = job::write(&shared, QueueWrite::Settle(settle));
    at_desk.is_settled = true;
    drop(beginning);
    drop(at_desk);
    if let Ok(Ok(Outcome::Queue(QueueDone::Settled(false)))) = answer.await {
        tracing::warn!(
            queue = station.queue(),
            item = item.item.0,
            attempt = item.attempt,
            "the result of an attempt is dropped: another worker has the item"
        );
    }
}

/// Closes the stations whose stop is over; gives the others.
fn close_stopped(shared: &Shared, stations: Vec<Arc<Station>>) -> Vec<Arc<Station>> {
    let mut left = Vec::new();
    for station in stations {
        let Some(told) = station.go_on_stopping() else {
            left.push(station);
            continue;
        };
        let mut state = shared.workers.state.lock();
        state.stations.retain(|other| !Arc::ptr_eq(other, &station));
        drop(state);
        for waiter in told {
            _ = waiter.send(());
        }
    }
    left
}

/// Drops all handlers: nothing that they give could be written.
fn drop_jobs(station: &Station) {
    let jobs = std::mem::take(&mut station.state.lock().jobs);
    for held in jobs.into_values() {
        held.cancellation.cancel();
        held.abort();
    }
}

/// The chore of the keeper for queues under limits: a step must not wait for the place of an item
/// whose worker is lost until somebody works on that queue again.
pub(super) fn take_lost_places(
    shared: &Shared,
    now: Timestamp,
) -> Result<Option<Timestamp>, Arc<StoreError>> {
    let first = shared.store.first_place_lost()?;
    if first.is_none_or(|at| at > now) {
        return Ok(first);
    }
    keeper::write(shared, Write::Queue(Box::new(QueueWrite::Revoke)))?;
    Ok(shared.store.first_place_lost()?)
}

/// Notes when the thread has something to do by the clock.
fn set_timer(shared: &Shared, stations: &[Arc<Station>]) {
    let now = shared.now();
    let mut next: Option<Timestamp> = None;
    for station in stations {
        let desk = station.state.lock();
        let beats = desk.jobs.values().filter(|held| !held.lost);
        let beat = beats.map(|held| station.beat_at(held, now)).min();
        let has_room = desk.jobs.len() < station.spec.concurrency && desk.stopping.is_none();
        let ready = desk.next_at.filter(|_| has_room);
        next = [next, beat, ready].into_iter().flatten().min();
    }
    let at = next.map_or(i64::MAX, Timestamp::as_millis);
    shared.workers.next_timer.store(at, Ordering::Release);
}

#[cfg(test)]
mod tests {
    use std::{sync::atomic::AtomicBool, thread::JoinHandle};

    use super::*;
    use crate::{
        codec::payload,
        commit::{Batch, ItemState, NewItem},
        engine::{committer, fixture},
        store::Store,
    };

    const WORK: Queue<u64, u64> = Queue::new("work");

    /// A queue with one item, and a committer.
    struct Scene {
        store: Arc<fixture::TestStore>,
        shared: Arc<Shared>,
        runtime: tokio::runtime::Runtime,
        committer: JoinHandle<()>,
    }

    impl Scene {
        fn new() -> Scene {
            let (store, shared) = fixture::shared();
            let committing = shared.clone();
            let committer = std::thread::spawn(move || committer::run(&committing));
            let runtime = tokio::runtime::Builder::new_current_thread().build();
            let scene = Scene { store, shared, runtime: runtime.expect("a runtime"), committer };
            let item = NewItem {
                queue: WORK.name().to_owned(),
                payload: payload::to_vec(&1u64).expect("a number"),
                priority: 0,
                available_at: None,
                dedupe: None,
                keep: Duration::ZERO,
                trace: None,
            };
            scene.write(scene.ago(3_600), QueueWrite::Enqueue(item));
            scene
        }

        fn ago(&self, seconds: u64) -> Timestamp {
            self.shared.now() - Duration::from_secs(seconds)
        }

        fn write(&self, now: Timestamp, write: QueueWrite) -> QueueDone {
            let writes = vec![Write::Queue(Box::new(write))];
            let batch = Batch { fence: None, now, writes };
            let mut applied = self.store.commit(&batch).expect("commit");
            match applied.outcomes.remove(0) {
                Outcome::Queue(done) => done,
                other => panic!("a write about a queue was answered with {other:?}"),
            }
        }

        /// Claims the item for a minute.
        fn claim(&self, now: Timestamp, claim: u128) -> Claimed {
            let wanted = ClaimItems {
                queue: WORK.name().to_owned(),
                claim: Uuid::from_u128(claim),
                max: 1,
                attempts_max: 10,
                visibility: Duration::from_secs(60),
                limit: None,
            };
            match self.write(now, QueueWrite::Claim(wanted)) {
                QueueDone::Claimed(claimed) if claimed.items.len() == 1 => claimed,
                other => panic!("a claim was answered with {other:?}"),
            }
        }

        /// Begins the handler of this claim.
        fn begin<F, R>(&self, claimed: Claimed, claim: u128, code: F) -> Arc<Station>
        where
            F: Fn(Job, u64) -> R + Send + Sync + 'static,
            R: Future<Output = crate::Result<u64>> + Send + 'static,
        {
            let handler = job::handler(code);
            let queue = WORK.visibility(Duration::from_secs(60));
            let station = Arc::new(Station {
                spec: Spec::new(queue, 1, handler).expect("one at a time"),
                runtime: self.runtime.handle().clone(),
                codecs: Codecs::default(),
                state: Leaf::default(),
                _keeps: None,
            });
            begin(&self.shared, &station, Uuid::from_u128(claim), claimed);
            station
        }

        /// Begins a handler that never ends by itself, and polls it once; whether it was dropped.
        fn begin_endless(&self, claimed: Claimed, claim: u128) -> (Arc<Station>, Arc<AtomicBool>) {
            let [started, dropped] = [(); 2].map(|()| Arc::new(AtomicBool::new(false)));
            let (begins, ends) = (started.clone(), dropped.clone());
            let station = self.begin(claimed, claim, move |job, _| {
                begins.store(true, Ordering::Release);
                let dropped = (job.attempt() == 1).then(|| Dropped(ends.clone()));
                async move {
                    let _dropped = dropped;
                    std::future::pending().await
                }
            });
            self.run_until(|| started.load(Ordering::Acquire));
            (station, dropped)
        }

        /// Whether the item is under this claim, behind all writes that were handed in before.
        fn is_claimed(&self, item: ItemId, claim: u128) -> bool {
            let (claim, until) = (Uuid::from_u128(claim), self.shared.now());
            let wanted = Extend { item, claim, until: until + Duration::from_secs(60) };
            let answer = job::write(&self.shared, QueueWrite::Extend(vec![wanted]));
            match receive(answer) {
                Some(QueueDone::Extended(held)) => held == [true],
                other => panic!("a heartbeat was answered with {other:?}"),
            }
        }

        fn run_until(&self, is_over: impl Fn() -> bool) {
            let limit = Instant::now() + Duration::from_secs(60);
            self.runtime.block_on(async {
                while !is_over() {
                    assert!(Instant::now() < limit, "it does not come to that");
                    tokio::task::yield_now().await;
                }
            });
        }

        fn end(self) {
            self.shared.queue.close();
            self.committer.join().expect("the committer ends");
        }
    }

    /// A process was stopped between its claim and the start of the handler. Another worker had
    /// taken the item by then, and both handlers ran.
    #[test]
    fn a_handler_starts_only_while_its_claim_is_its_own() {
        for is_taken in [true, false] {
            let scene = Scene::new();
            let ours = scene.claim(scene.ago(3_600), 1);
            if is_taken {
                scene.claim(scene.shared.now(), 2);
            }
            let started = Arc::new(AtomicBool::new(false));
            let noted = started.clone();
            let station = scene.begin(ours, 1, move |_job, n| {
                noted.store(true, Ordering::Release);
                async move { Ok(n) }
            });
            scene.run_until(|| station.state.lock().jobs.is_empty());
            assert_eq!(started.load(Ordering::Acquire), !is_taken);
            scene.end();
        }
    }

    /// A claim was answered after its station was to stop: the handler began, and was told at once.
    #[test]
    fn a_handler_does_not_start_once_its_station_or_its_engine_stops() {
        for is_engine in [true, false] {
            let scene = Scene::new();
            let ours = scene.claim(scene.shared.now(), 1);
            let item = ours.items[0].item;
            let started = Arc::new(AtomicBool::new(false));
            let noted = started.clone();
            let station = scene.begin(ours, 1, move |_job, n| {
                noted.store(true, Ordering::Release);
                async move { Ok(n) }
            });
            match is_engine {
                true => scene.shared.begin_leaving(),
                false => drop(station.stop(&scene.shared, Duration::from_secs(60))),
            }
            let row = || scene.store.queue_item(item).expect("queue_item");
            scene.run_until(|| row().is_none_or(|row| row.state == ItemState::Ready));
            let attempts = row().map(|row| row.attempts);
            assert_eq!(attempts, Some(0), "the attempt does not count");
            assert!(!started.load(Ordering::Acquire));
            scene.end();
        }
    }

    /// Set when the handler that has it is dropped.
    struct Dropped(Arc<AtomicBool>);

    impl Drop for Dropped {
        fn drop(&mut self) {
            self.0.store(true, Ordering::Release);
        }
    }

    /// A handler whose item had gone to another worker was told, and went on beside the other.
    #[test]
    fn a_handler_that_waits_is_dropped_when_its_item_went_to_another_worker() {
        for is_taken in [true, false] {
            let scene = Scene::new();
            let ours = scene.claim(scene.ago(30), 1);
            let (station, dropped) = scene.begin_endless(ours, 1);
            if is_taken {
                scene.claim(scene.shared.now() + Duration::from_secs(60), 2);
            }
            beat(&scene.shared, std::slice::from_ref(&station));
            let job = station.state.lock().jobs.values().map(|it| it.lost).next();
            assert_eq!(job, Some(is_taken));
            if is_taken {
                scene.run_until(|| station.state.lock().jobs.is_empty());
            }
            assert_eq!(dropped.load(Ordering::Acquire), is_taken);
            scene.end();
        }
    }

    /// A worker lost an item while its process was stopped, and claimed it again before a heartbeat had
    /// told it so. The second claim took the place of the first at the desk, so the first handler was
    /// neither told nor dropped, and stayed beside the second for as long as it waited for something.
    #[test]
    fn a_handler_is_dropped_when_its_worker_claims_the_item_again() {
        let scene = Scene::new();
        let ours = scene.claim(scene.ago(30), 1);
        let (station, dropped) = scene.begin_endless(ours, 1);
        let again = scene.claim(scene.shared.now() + Duration::from_secs(60), 2);
        let item = again.items[0].item;
        begin(&scene.shared, &station, Uuid::from_u128(2), again);
        beat(&scene.shared, std::slice::from_ref(&station));
        scene.run_until(|| station.state.lock().jobs.len() == 1);
        assert!(dropped.load(Ordering::Acquire));
        assert!(scene.is_claimed(item, 2));
        scene.end();
    }

    /// A worker that stopped gave an item back as soon as it had aborted the task of its handler. An
    /// abort takes effect between two polls, and the handler was inside of one: another worker began the
    /// same attempt beside it.
    #[test]
    fn a_stopped_worker_gives_an_item_back_only_once_its_handler_is_dropped() {
        let scene = Scene::new();
        let ours = scene.claim(scene.shared.now(), 1);
        let item = ours.items[0].item;
        let (station, dropped) = scene.begin_endless(ours, 1);
        let mut stopped = station.stop(&scene.shared, Duration::ZERO);
        // The runtime stands still, as it does while the handler is inside of a poll.
        let left = close_stopped(&scene.shared, vec![station]);
        assert!(scene.is_claimed(item, 1));
        assert!(stopped.try_recv().is_err());
        scene.run_until(|| dropped.load(Ordering::Acquire));
        scene.run_until(|| left.iter().all(|station| station.state.lock().jobs.is_empty()));
        assert!(!scene.is_claimed(item, 1));
        let row = scene.store.queue_item(item).expect("queue_item").expect("it is there");
        assert_eq!((row.state, row.attempts), (ItemState::Ready, 0));
        assert!(close_stopped(&scene.shared, left).is_empty());
        assert_eq!(stopped.try_recv(), Ok(()));
        scene.end();
    }

    /// The engine had shut down, and a worker of it was stopped after that: nobody was left to tell it that
    /// the stop is over, and it waited for ever.
    #[test]
    fn a_worker_that_has_stopped_can_be_stopped_again() {
        let scene = Scene::new();
        let ours = scene.claim(scene.shared.now(), 1);
        let (station, _dropped) = scene.begin_endless(ours, 1);
        let mut stopped = station.stop(&scene.shared, Duration::ZERO);
        let mut left = vec![station.clone()];
        while !left.is_empty() {
            left = close_stopped(&scene.shared, left);
            scene.run_until(|| station.state.lock().jobs.is_empty());
        }
        assert_eq!(stopped.try_recv(), Ok(()));
        let mut again = station.stop(&scene.shared, Duration::ZERO);
        assert_eq!(again.try_recv(), Err(oneshot::error::TryRecvError::Closed));
        scene.end();
    }

    /// The same with a handler that blocks its thread for longer than its worker waits: nothing shows
    /// when it ends, so only the visibility can free the item, and the attempt counts.
    #[test]
    fn an_item_whose_handler_cannot_be_stopped_is_not_given_back() {
        let scene = Scene::new();
        let ours = scene.claim(scene.shared.now(), 1);
        let item = ours.items[0].item;
        let (station, dropped) = scene.begin_endless(ours, 1);
        let mut stopped = station.stop(&scene.shared, Duration::ZERO);
        let left = close_stopped(&scene.shared, vec![station.clone()]);
        assert_eq!(left.len(), 1);
        station.state.lock().stopping.as_mut().expect("it stops").until = seam::now();
        assert!(close_stopped(&scene.shared, left).is_empty());
        assert_eq!(stopped.try_recv(), Ok(()));
        assert!(scene.is_claimed(item, 1));
        let theirs = scene.claim(scene.shared.now() + Duration::from_secs(60), 2);
        assert_eq!(theirs.items[0].attempt, 2);
        scene.run_until(|| dropped.load(Ordering::Acquire));
        scene.run_until(|| station.state.lock().jobs.is_empty());
        assert!(scene.is_claimed(item, 2), "the end of the first attempt changes nothing");
        scene.end();
    }

    /// A claim that was made by a clock which was an hour ahead stayed like that when the clock was set
    /// right, and its worker gave no sign of life for that hour. If the worker died, the item was lost
    /// for an hour.
    #[test]
    fn a_claim_goes_back_when_the_clock_of_its_worker_does() {
        for kept in [None, Some(Duration::from_secs(1_800))] {
            let scene = Scene::new();
            let now = scene.shared.now();
            let ours = scene.claim(now + Duration::from_secs(3_600), 1);
            let item = ours.items[0].item;
            let started = Arc::new(AtomicBool::new(false));
            let begins = started.clone();
            let station = scene.begin(ours, 1, move |job, _| {
                let begins = begins.clone();
                async move {
                    if let Some(kept) = kept {
                        assert!(job.extend(kept).await.expect("extend"));
                    }
                    begins.store(true, Ordering::Release);
                    std::future::pending().await
                }
            });
            scene.run_until(|| started.load(Ordering::Acquire));
            set_timer(&scene.shared, std::slice::from_ref(&station));
            let next = scene.shared.workers.next_timer().expect("a heartbeat");
            assert!(next <= scene.shared.now() + Duration::from_secs(20));
            beat(&scene.shared, std::slice::from_ref(&station));
            let row = scene.store.queue_item(item).expect("queue_item");
            let left = row.expect("it is there").at.since(now);
            // It is kept for as long as the handler has asked for, and not for longer.
            let wanted = kept.unwrap_or(Duration::from_secs(60));
            let limit = wanted + Duration::from_secs(300);
            assert!((wanted..limit).contains(&left), "{left:?}");
            scene.end();
        }
    }

    /// A process was stopped past its claim and went on: its handler was polled before its heartbeat
    /// found that another worker had the item.
    #[test]
    fn a_handler_is_not_polled_after_its_claim_unless_the_item_is_still_its_own() {
        for is_taken in [true, false] {
            let scene = Scene::new();
            let ours = scene.claim(scene.ago(30), 1);
            let polls = Arc::new(AtomicI64::new(0));
            let polled = polls.clone();
            let station = scene.begin(ours, 1, move |_job, n| {
                let polled = polled.clone();
                async move {
                    while polled.fetch_add(1, Ordering::AcqRel) < 1_000 {
                        tokio::task::yield_now().await;
                    }
                    Ok(n)
                }
            });
            scene.run_until(|| polls.load(Ordering::Acquire) > 0);
            let before = polls.load(Ordering::Acquire);
            assert!(before < 1_000);
            if is_taken {
                scene.claim(scene.shared.now() + Duration::from_secs(60), 2);
            }
            for held in station.state.lock().jobs.values_mut() {
                held.until = scene.ago(1);
            }
            scene.run_until(|| station.state.lock().jobs.is_empty());
            let after = polls.load(Ordering::Acquire);
            assert_eq!(after, if is_taken { before } else { 1_001 });
            scene.end();
        }
    }
}
