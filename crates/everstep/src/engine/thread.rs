//! An engine thread: owns runs, and is the only one that touches them.
//!
//! Everything that happens to a run (start, message, timer, answer, cancel, recovery) is an event
//! handled here, one after another, so nothing is checked in one place and done in another. The
//! thread works in turns: take the events, drive the runs that have something to do, hand the
//! commits on, sleep.
//!
//! Always true:
//! - A run is in memory at most once in this process, in the slot that `by_no` names.
//! - A run that is in memory has a reason to be: it moves, a commit is in flight, or it is parked
//!   and its row says so.

use std::{
    cell::Cell,
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    future::poll_fn,
    rc::Rc,
    sync::{Arc, atomic::AtomicBool, atomic::Ordering},
    task::{Context, Poll},
    time::Instant,
};

use tokio::sync::oneshot;

use super::{
    committer::{self, Ack, Answer, Pending, Reply, Settled},
    host::Host,
    mailbox::{Event, Mailbox, Polling, Release, ThreadCensus},
    reader::Reader,
    shared::Shared,
    suspects::{self, Gate, Pass},
};
use crate::{
    commit::{Commit, Control, InboxRow, Outcome, Patch, RunStatus, Write},
    hash::FastMap,
    run::{Next, Run, RunSeed, commit_unloaded, core::Env},
    run_id::{RunId, RunIds, RunNo, ShardId},
    sabotage::Sabotage,
    seam,
    services::Services,
    store::{DueRun, LoadedRun, Reaction, RunRow, ShardSet, Store, StoreError},
    telemetry::{RunTelemetry, ThreadCells},
    time::Timestamp,
};

mod away;
mod give_back;
mod hand_over;
mod reconsider;
#[cfg(test)]
mod tests;
#[cfg(feature = "testing")]
mod whereabouts;

/// A run in memory.
struct Task {
    run: Run,
    /// Identifies it in this process: never reused.
    token: u64,
    id: RunId,
    /// The epoch of the lease under which it was read, or claimed: nothing of it is written, and no
    /// body of it is started, under another.
    epoch: u64,
    /// Where it is while it is in memory.
    shard: ShardId,
    /// Whether it is in the list of runs to drive.
    queued: bool,
    /// The time for which a timer is set.
    armed: Option<Timestamp>,
    /// Set while it is parked: its place in the order of parking, and its size.
    hot: Option<(u64, usize)>,
    bodies: usize,
    /// Since when there has always been a body.
    busy_since: Option<Instant>,
    /// Its commit was in flight when it was last asked what holds up its shard.
    was_in_flight: bool,
    /// It is resumed or cancelled, perhaps while it is about to leave: its row is read once it has.
    come_back: bool,
    /// Held while it is a suspect.
    pass: Option<Pass>,
    /// Whether it is to leave memory, and why.
    leaving: Option<away::Leaving>,
    /// How it has ended, once the commit that is on its way is made.
    ending: Option<RunStatus>,
}

impl Task {
    /// Its last commit is made: if that was its end, everybody may know.
    fn tell_end(&mut self) {
        if let (Some(status), Some(told)) = (self.ending.take(), self.run.core.telemetry.get()) {
            told.cells.run_ended(status);
            told.span.record("status", status.as_str());
        }
    }

    /// Whether a timer of its run is due, and fires when the run is driven next.
    fn is_due(&self, now: Timestamp) -> bool {
        self.run.next_timer().is_some_and(|at| at <= now)
    }
}

/// The state of one engine thread.
pub(crate) struct Worker {
    index: usize,
    shared: Arc<Shared>,
    mailbox: Arc<Mailbox>,
    reader: Arc<Reader>,
    env: Rc<Env>,
    tasks: Vec<Option<Task>>,
    free: Vec<u32>,
    by_no: FastMap<RunNo, u32>,
    /// Runs that are being read, with the messages that came meanwhile.
    loading: FastMap<RunNo, Loading>,
    ready: VecDeque<u32>,
    timers: BinaryHeap<Reverse<(Timestamp, u32, u64)>>,
    out: Vec<Pending>,
    next_token: u64,
    next_ticket: u64,
    /// Parked runs in the order in which they were parked.
    cooling: VecDeque<(u32, u64, u64)>,
    hot_bytes: usize,
    parkings: u64,
    moving: usize,
    /// Parked runs that have something to do and wait for a place; each is marked as queued.
    woken: VecDeque<u32>,
    /// Due runs that nobody could run when they were last looked at, with the reason that was
    /// written; without one, they are being handed over.
    unserved: FastMap<RunNo, hand_over::Unserved>,
    /// Runs that were in somebody's memory and wait for room; suspects among them come last, and
    /// a few at a time.
    held: VecDeque<RunNo>,
    /// With how often each was recorded as running when a process died.
    suspects: VecDeque<(RunNo, u32)>,
    /// Paused runs that are tried against the code that is here, one after another. The first one
    /// is being read.
    to_reconsider: VecDeque<RunNo>,
    releasing: Vec<Release>,
    draining: Option<oneshot::Sender<()>>,
    drained: bool,
    /// Whether the work that the last turn has left counts as activity.
    counts_rest: bool,
    cells: Arc<ThreadCells>,
}

#[derive(Default)]
struct Loading {
    /// Which read it is that counts. One that was begun before the run has left and come back is
    /// out of date.
    ticket: u64,
    /// When that read was begun: see [`Owned::era`](super::owned::Owned::era).
    era: u64,
    /// The epoch of the lease then.
    epoch: u64,
    messages: Vec<InboxRow>,
    /// Something else has happened to it: its row must be looked at again.
    look: bool,
    /// Set if it is a suspect that was let in.
    pass: Option<Pass>,
    /// Its place among the runs that move, if it was taken before it is read.
    place: Option<Place>,
}

/// The place of a run that is being read. Given back when dropped, unless the run is taken in.
struct Place(Option<Arc<Shared>>);

impl Place {
    /// A place, if there is one. If not, this thread is woken when there is.
    fn take(shared: &Arc<Shared>) -> Option<Place> {
        shared.reserve_or_wait().then(|| Place(Some(shared.clone())))
    }

    /// The run is taken in: its thread gives the place back.
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if let Some(shared) = &self.0 {
            shared.release();
        }
    }
}

/// With this few runs an engine thread has nothing better to do than to commit by itself.
const ALONE: usize = 2;

/// How many runs are driven before their commits are handed on.
const RUNS_PER_TURN: usize = 512;

impl Worker {
    pub(crate) fn new(
        index: usize,
        shared: Arc<Shared>,
        reader: Arc<Reader>,
        services: Arc<Services>,
        runtime: tokio::runtime::Handle,
        runtime_gone: Arc<AtomicBool>,
    ) -> Worker {
        let mailbox = shared.threads[index].clone();
        let env = Rc::new(Env {
            // A copy: every step counts a reference to it, and threads should not share the count.
            settings: Arc::new(shared.settings.as_ref().clone()),
            services,
            runtime: Some(runtime),
            runtime_gone,
            now: Cell::new(shared.now()),
            owner: Some(Arc::new(Host { shared: shared.clone(), mailbox: mailbox.clone() })),
            ids: RunIds::new(0),
            epoch: Cell::new(0),
            children: Cell::new(0),
            stalled: Cell::new(false),
            secret: shared
                .known_secret()
                .expect("it is read before the threads are started")
                .clone(),
        });
        Worker {
            index,
            cells: shared.metrics.threads[index].clone(),
            mailbox,
            reader,
            env,
            shared,
            tasks: Vec::new(),
            free: Vec::new(),
            by_no: FastMap::default(),
            loading: FastMap::default(),
            ready: VecDeque::new(),
            timers: BinaryHeap::new(),
            out: Vec::new(),
            next_token: 1,
            next_ticket: 1,
            cooling: VecDeque::new(),
            hot_bytes: 0,
            parkings: 0,
            moving: 0,
            woken: VecDeque::new(),
            unserved: FastMap::default(),
            held: VecDeque::new(),
            suspects: VecDeque::new(),
            to_reconsider: VecDeque::new(),
            releasing: Vec::new(),
            draining: None,
            drained: false,
            counts_rest: false,
        }
    }

    /// Works until the engine is closed and nothing is left to do.
    pub(crate) async fn run(mut self) {
        poll_fn(|cx| self.turn(cx)).await;
    }

    fn turn(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        seam::point("turn");
        self.mailbox.register(cx.waker());
        self.mailbox.turn.fetch_add(1, Ordering::Release);
        let events = self.mailbox.take();
        let n = events.len();
        self.env.now.set(self.shared.now());
        for event in events {
            self.handle(event);
        }
        self.fire_timers();
        self.start_stalled();
        self.admit_woken();
        self.admit_held();
        let mut leased = true;
        for _ in 0..RUNS_PER_TURN {
            leased = self.shared.lease_lasts();
            if !leased {
                self.shared.counters.lease_is_over();
            }
            let next = if leased { self.ready.pop_front() } else { None };
            let Some(slot) = next else { break };
            self.drive(slot);
        }
        let gone = self.env.runtime_gone.load(Ordering::Acquire);
        if gone {
            // Bodies cannot go on: everything is dropped, and nothing is written.
            self.drop_everything();
        }
        let shared = self.shared.clone();
        let few = !self.out.is_empty() && self.out.len() <= ALONE;
        // A store behind a network may take long to answer, and no body is polled meanwhile.
        if few && self.ready.is_empty() && self.moving <= ALONE && shared.store.is_local() {
            committer::commit_here(&shared, &mut self.out);
        }
        shared.queue.push_all(&shared, &mut self.out);
        self.cool_down();
        self.finish_waits();
        self.arm_thread();
        let hot = self.by_no.len().saturating_sub(self.moving);
        self.cells.in_memory(self.moving, hot, self.hot_bytes);
        self.count_rest();
        self.mailbox.done(n);
        self.mailbox.turn.fetch_add(1, Ordering::Release);
        if gone {
            return Poll::Ready(());
        }
        if !self.ready.is_empty() && leased {
            cx.waker().wake_by_ref();
            return Poll::Pending;
        }
        if self.drained && self.shared.closing() { Poll::Ready(()) } else { Poll::Pending }
    }

    /// Counts what this turn has left for the next as activity: runs that are ready, and bodies that may
    /// start when the lease lasts again. No event is under way for them, and a virtual clock must not take
    /// the engine for idle.
    fn count_rest(&mut self) {
        let stalled = self.env.stalled.get() && !self.shared.leaving();
        let rest = !self.ready.is_empty() || stalled;
        match (self.counts_rest, rest) {
            (false, true) => self.shared.activity.begin(1),
            (true, false) => self.shared.activity.end(1),
            _ => {}
        }
        self.counts_rest = rest;
    }

    /// The lease lasts again: bodies that did not start may.
    fn start_stalled(&mut self) {
        let epoch = self.shared.epoch();
        if !self.env.stalled.get() || !self.shared.lets_bodies_start(epoch) {
            return;
        }
        self.env.stalled.set(false);
        let slots: Vec<u32> = self.by_no.values().copied().collect();
        for slot in slots {
            if let Some(Some(task)) = self.tasks.get(slot as usize) {
                task.run.core.wake_starters();
            }
            self.queue(slot);
        }
    }

    /// Drops the bodies in flight: their operations, polled now, find that the lease is over. They
    /// start again when it lasts again. Nothing else comes of this, since no body can start.
    fn stop_bodies(&mut self) {
        let slots: Vec<u32> = self.by_no.values().copied().collect();
        for slot in slots {
            let Some(Some(task)) = self.tasks.get(slot as usize) else {
                continue;
            };
            if task.run.bodies() > 0 {
                task.run.core.wake_bodies();
                self.drive(slot);
            }
        }
    }

    fn handle(&mut self, event: Event) {
        match event {
            Event::Acks(acks) => acks.into_iter().for_each(|ack| self.acked(ack)),
            Event::Started { new, at, epoch } => self.started(*new, at, epoch),
            Event::Message(run, row) => self.message(run, *row),
            Event::Control(run, control) => self.control(run, control),
            Event::Look(run) => self.look(run),
            Event::Looked { run, token, found } => self.looked(run, token, found),
            Event::Body { slot, run, op } => {
                if let Some(task) = self.task(slot, run)
                    && task.run.core.body_woken(op)
                {
                    self.queue(slot);
                }
            }
            Event::Foreign { slot, run } => {
                if self.task(slot, run).is_some() {
                    self.queue(slot);
                }
            }
            Event::Timer => {}
            Event::Due { runs, look } => runs.into_iter().for_each(|run| self.due(run, look)),
            Event::Recovered(runs) => {
                self.held.extend(runs.into_iter().map(|run| run.id.no()));
                self.admit_held();
            }
            Event::Loaded { run, ticket, loaded } => self.loaded(run, ticket, loaded),
            Event::Settled(run, how) => self.settled(run, how),
            Event::ItemLost { run, error } => self.item_lost(run, &error),
            Event::Reconsider(runs) => self.reconsider(runs),
            Event::Reconsidered(run, loaded) => self.reconsidered(run, loaded),
            Event::HeldUp(shards, limit, answer) => {
                let held_up = self.held_up(&shards, limit);
                answer.send((shards, held_up));
            }
            Event::Release(release) => self.release(release),
            Event::Keep(shards) => self.keep(&shards),
            Event::Evict(run, done) => {
                let evicted = self.by_no.get(&run).copied().is_some_and(|slot| self.evict(slot));
                _ = done.send(evicted);
            }
            Event::MakeCold(run, answer) => {
                let leaves = self.make_cold(run);
                if let Some(answer) = answer {
                    _ = answer.send(leaves);
                }
            }
            Event::Rehomed(run) => self.rehomed(run),
            Event::Census(answer) => {
                let hot = self.tasks.iter().flatten().filter(|task| task.hot.is_some()).count();
                let hot_bytes = self.hot_bytes;
                _ = answer.send(ThreadCensus { moving: self.moving, hot, hot_bytes });
            }
            #[cfg(feature = "testing")]
            Event::Whereabouts(run, answer) => _ = answer.send(self.whereabouts(run)),
            Event::Drain(done) => self.drain(done),
            Event::Peers => self.peers_changed(),
            Event::Unread(run) => self.look_again(run),
            Event::Unserved(row, is_new) => self.unserved_read(&row, is_new),
            Event::Lost => self.lost(),
            Event::Forget => self.drop_everything(),
            Event::StopBodies => self.stop_bodies(),
        }
    }

    fn task(&mut self, slot: u32, token: u64) -> Option<&mut Task> {
        let task = self.tasks.get_mut(slot as usize)?.as_mut()?;
        (task.token == token).then_some(task)
    }

    fn queue(&mut self, slot: u32) {
        if let Some(Some(task)) = self.tasks.get_mut(slot as usize)
            && !std::mem::replace(&mut task.queued, true)
        {
            self.ready.push_back(slot);
        }
    }

    /// Takes a run into memory.
    fn insert(&mut self, seed: RunSeed, shard: ShardId, epoch: u64) -> Option<u32> {
        let id = seed.facts.id;
        let definition = self.shared.registry.find(&seed.facts.workflow, seed.facts.version)?;
        let definition = definition.clone();
        let token = self.next_token * self.shared.threads.len() as u64 + self.index as u64 + 1;
        self.next_token += 1;
        let told = RunTelemetry {
            run: id,
            workflow: seed.facts.workflow.clone(),
            span: seed.span(),
            cells: self.cells.of_workflow(&seed.facts.workflow),
        };
        let run = Run::new(seed, definition, self.env.clone(), self.mailbox.clone(), token);
        let slot = self.free.pop().unwrap_or_else(|| {
            self.tasks.push(None);
            u32::try_from(self.tasks.len() - 1).expect("fewer than 4 billion runs in memory")
        });
        run.core.root.set_slot(slot);
        _ = run.core.telemetry.set(told);
        let mut run = run;
        if self.draining.is_some() || self.drained {
            run.drain(false);
        }
        let task = Task {
            run,
            token,
            id,
            epoch,
            shard,
            queued: false,
            armed: None,
            hot: None,
            bodies: 0,
            busy_since: None,
            was_in_flight: false,
            come_back: false,
            pass: None,
            leaving: None,
            ending: None,
        };
        self.tasks[slot as usize] = Some(task);
        self.by_no.insert(id.no(), slot);
        self.moving += 1;
        self.queue(slot);
        Some(slot)
    }

    /// Drops a run from memory.
    fn remove(&mut self, slot: u32) {
        let Some(task) = self.tasks[slot as usize].take() else {
            return;
        };
        self.by_no.remove(&task.id.no());
        self.note_bodies(task.bodies, 0);
        match task.hot {
            Some((_, bytes)) => self.hot_bytes -= bytes,
            None => self.stopped_moving(),
        }
        self.free.push(slot);
        // Last: dropping user code may wake, panic, and block.
        self.mailbox.set_polling(Some(Polling {
            run: task.id,
            workflow: task.run.core.facts.workflow.clone(),
            step: None,
        }));
        let dropped = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| drop(task)));
        self.mailbox.set_polling(None);
        if dropped.is_err() {
            tracing::error!("a workflow panicked while it was dropped from memory");
        }
    }

    fn stopped_moving(&mut self) {
        self.moving -= 1;
        self.shared.release();
    }

    /// Drives parked runs that wait for a place, as far as there is room.
    fn admit_woken(&mut self) {
        while !self.woken.is_empty() {
            let mut room = self.shared.room();
            let had_room = room > 0;
            while room > 0
                && let Some(slot) = self.woken.pop_front()
            {
                // One that was dropped meanwhile takes no place.
                let task = self.tasks.get(slot as usize).and_then(Option::as_ref);
                if task.is_some_and(|task| task.hot.is_some() && task.queued) {
                    self.ready.push_back(slot);
                    room -= 1;
                }
            }
            // Those that are driven give their places back, and the rest is told of it.
            if !self.woken.is_empty() && (!self.shared.wait_for_room() || had_room) {
                return;
            }
        }
    }

    fn note_bodies(&self, before: usize, now: usize) {
        self.shared.activity.bodies_changed(now as i64 - before as i64);
    }

    /// Polls a run as far as it goes, and sends off its next commit.
    fn drive(&mut self, slot: u32) {
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        task.queued = false;
        if !self.shared.is_current(task.epoch) {
            // The shards were lost, and the event that says so is on its way: a body that is begun
            // now would run beside that of another owner.
            return self.read_anew(slot);
        }
        if let Some((_, bytes)) = task.hot {
            if !self.shared.reserve_or_wait() {
                // It stays parked, and its row says when it is due.
                task.queued = true;
                return self.woken.push_back(slot);
            }
            task.hot = None;
            self.hot_bytes -= bytes;
            self.moving += 1;
        }
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let polling =
            Polling { run: task.id, workflow: task.run.core.facts.workflow.clone(), step: None };
        self.mailbox.set_polling(Some(polling));
        self.env.epoch.set(task.epoch);
        self.env.children.set(0);
        seam::point("poll");
        task.run.drive();
        if !self.shared.is_current(task.epoch) {
            // The shards were lost during this poll. Nothing that the run has done since can be
            // written, and its bodies did not start.
            self.mailbox.set_polling(None);
            return self.read_anew(slot);
        }
        let sent = task.run.next_commit();
        if task.pass.is_some() && !task.run.core.state.borrow().suspect {
            task.pass = None;
        }
        let bodies = task.run.bodies();
        let before = std::mem::replace(&mut task.bodies, bodies);
        if (before == 0) != (bodies == 0) {
            task.busy_since = (bodies > 0).then(seam::now);
        }
        self.mailbox.set_polling(None);
        self.note_bodies(before, bodies);
        let (now, is_leaving) = (self.env.now.get(), self.drained || self.draining.is_some());
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        match sent {
            Some(sent) => {
                task.ending = match &sent.commit.patch {
                    Patch::Finish { status, .. } => Some(*status),
                    _ => None,
                };
                let reply = Reply::Run { thread: self.index, slot, run: task.token };
                let write = Write::Commit(Box::new(sent.commit));
                let streams = task.run.core.state.borrow().streams.clone();
                self.out.push(Pending::under(task.epoch, write, reply).with(streams));
            }
            None if task.leaving.is_some() => self.leave_if_idle(slot),
            // A wait that was over when its operation was made is not what a run parks for: dropped from
            // memory now, it would be due, read and parked again, without end.
            None if task.run.is_parked() && !is_leaving && task.is_due(now) => self.queue(slot),
            None if task.run.is_parked() => self.keep_hot(slot),
            None => {}
        }
        self.arm(slot);
    }

    /// Drops a run that was read under a lease which is over, and reads it again if its shard has
    /// come back.
    fn read_anew(&mut self, slot: u32) {
        let Some(Some(task)) = self.tasks.get(slot as usize) else {
            return;
        };
        let (run, shard) = (task.id.no(), task.shard);
        self.remove(slot);
        if self.shared.owns(shard) {
            self.load(run);
        }
    }

    /// Sets the timer of a run, if it needs another than it has.
    fn arm(&mut self, slot: u32) {
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let next = task.run.next_timer();
        if let (Some(at), true) = (next, next != task.armed) {
            self.timers.push(Reverse((at, slot, task.token)));
        }
        task.armed = next;
    }

    fn fire_timers(&mut self) {
        let now = self.env.now.get();
        while let Some(Reverse((at, slot, token))) = self.timers.peek().copied() {
            let alive = self.task(slot, token).is_some_and(|task| task.armed == Some(at));
            if alive && at > now {
                return;
            }
            self.timers.pop();
            if alive {
                if let Some(task) = self.task(slot, token) {
                    task.armed = None;
                }
                self.cells.taken_up(now.since(at));
                self.queue(slot);
            }
        }
    }

    /// Tells the timer thread when to wake this one.
    fn arm_thread(&mut self) {
        let next = self.timers.peek().map(|Reverse((at, ..))| *at);
        self.mailbox.set_next_timer(next);
        if let Some(at) = next {
            self.shared.due.timer_set(at);
        }
    }

    /// A parked run stays in memory while there is room.
    fn keep_hot(&mut self, slot: u32) {
        if self.drained || self.draining.is_some() {
            return self.remove_parked(slot);
        }
        self.parkings += 1;
        let stamp = self.parkings;
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let bytes = task.run.memory_bytes() + std::mem::size_of::<Task>();
        task.hot = Some((stamp, bytes));
        self.cooling.push_back((slot, task.token, stamp));
        self.hot_bytes += bytes;
        self.stopped_moving();
    }

    /// Drops the coldest parked runs until the rest fits.
    fn cool_down(&mut self) {
        let budget = self.shared.settings.hot_bytes / self.shared.threads.len().max(1);
        while self.hot_bytes > budget {
            let Some((slot, token, stamp)) = self.cooling.pop_front() else {
                return;
            };
            let still = self.task(slot, token).and_then(|task| task.hot).map(|hot| hot.0);
            if still == Some(stamp) {
                self.cells.cooled();
                self.remove_parked(slot);
            }
        }
        // Places of runs that were woken since would pile up.
        if self.cooling.len() > 2 * self.by_no.len() + 64 {
            let tasks = &self.tasks;
            self.cooling.retain(|(slot, token, stamp)| {
                let task = tasks.get(*slot as usize).and_then(Option::as_ref);
                task.is_some_and(|t| t.token == *token && t.hot.map(|hot| hot.0) == Some(*stamp))
            });
        }
    }

    /// Drops a parked run; the store knows when it is due.
    fn remove_parked(&mut self, slot: u32) {
        let next = self.tasks[slot as usize].as_ref().and_then(|task| task.run.next_timer());
        if let Some(at) = next {
            self.shared.due.note(at);
        }
        self.remove(slot);
    }

    /// Drops a run that is parked, on request.
    fn evict(&mut self, slot: u32) -> bool {
        let parked = self.tasks[slot as usize].as_ref().is_some_and(|task| task.hot.is_some());
        if parked {
            self.remove_parked(slot);
        }
        parked
    }

    fn acked(&mut self, ack: Ack) {
        let Some(task) = self.task(ack.slot, ack.run) else {
            return;
        };
        task.was_in_flight = false;
        let (id, come_back) = (task.id, task.come_back);
        let next = match ack.answer {
            Answer::Outcome(Outcome::Committed(delivered), _) => {
                task.tell_end();
                let next = task.run.committed(&delivered);
                #[cfg(feature = "sabotage")]
                if let Some(commit) = task.run.gives_places_away()
                    && next == Next::Drop
                {
                    let (epoch, write) = (task.epoch, Write::Commit(Box::new(commit)));
                    let reply = Reply::Owner { thread: self.index, run: id.no() };
                    self.out.push(Pending::under(epoch, write, reply));
                }
                next
            }
            Answer::Outcome(Outcome::Refused(refusal), Some(commit)) => {
                tracing::debug!(run = %id, ?refusal, "a commit was refused");
                task.run.refused(refusal, *commit)
            }
            Answer::Outcome(..) | Answer::Unknown => Next::Reload,
            Answer::Rejected(error) => {
                self.pause_rejected(ack.slot, &error);
                Next::Drop
            }
        };
        match next {
            Next::Drive => self.queue(ack.slot),
            Next::Drop if !come_back => self.remove(ack.slot),
            Next::Drop | Next::Reload => {
                self.remove(ack.slot);
                self.load(id.no());
            }
        }
    }

    /// Pauses a run of which the store cannot take something.
    fn pause_rejected(&mut self, slot: u32, error: &StoreError) {
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let reason = match std::error::Error::source(error) {
            Some(cause) => format!("{error}: {cause}"),
            None => error.to_string(),
        };
        let commit = task.run.pause_commit(format!("the store cannot take it: {reason}"));
        let write = Write::Commit(Box::new(commit));
        let (thread, run) = (self.index, task.id.no());
        let reply = Reply::Owner { thread, run };
        self.out.push(Pending::under(task.epoch, write, reply));
    }

    /// An item that a body has emitted is missing, or may be. The committer writes nothing more of this
    /// stay of the run, so what is in memory is worth nothing: the run is read again, and the body
    /// emits again. If the store cannot take the item, the run is paused.
    fn item_lost(&mut self, run: RunNo, error: &StoreError) {
        let Some(slot) = self.by_no.get(&run).copied() else {
            return;
        };
        let Some(Some(task)) = self.tasks.get(slot as usize) else {
            return;
        };
        let streams = task.run.core.state.borrow().streams.clone();
        if !streams.is_some_and(|streams| streams.has_lost()) {
            // It has left memory and come back since.
            return;
        }
        if error.reaction() != Reaction::Bisect {
            self.remove(slot);
            return self.load(run);
        }
        self.pause_rejected(slot, error);
        self.remove(slot);
    }

    fn started(&mut self, new: crate::commit::NewRun, at: Timestamp, epoch: u64) {
        let id = new.id;
        let shard = self.shared.owned.home(id, &new.pool);
        // A shard that was given back or lost since the start was written: its next owner finds
        // the run among those that were in somebody's memory. Two must not have it. The next owner
        // may be this process again.
        let is_ours = self.shared.is_current(epoch) && !self.by_no.contains_key(&id.no());
        let Some(shard) = shard.filter(|_| is_ours) else {
            return self.shared.release();
        };
        // Its place was taken by whoever has claimed it.
        let seed = RunSeed::claimed(new, at);
        if self.insert(seed, shard, epoch).is_none() {
            self.shared.release();
            // It was claimed for code that is here; only a lost registration could lead here.
            tracing::error!(run = %id, "a run was claimed for a workflow that is not registered");
        }
    }

    fn message(&mut self, run: RunNo, row: InboxRow) {
        if let Some(loading) = self.loading.get_mut(&run) {
            loading.messages.push(row);
            return;
        }
        let Some(slot) = self.by_no.get(&run).copied() else {
            self.load_if_room(run);
            return;
        };
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        if row.seq == task.run.inbox_seen() + 1 {
            task.run.deliver(vec![row]);
            self.queue(slot);
        } else if row.seq > task.run.inbox_seen() {
            // What is between came from another process.
            self.look(run);
        }
    }

    fn control(&mut self, run: RunNo, control: Control) {
        if let Some(loading) = self.loading.get_mut(&run) {
            loading.look = true;
            return;
        }
        let Some(slot) = self.by_no.get(&run).copied() else {
            // One that is paused is looked at too: it may hold a place under a limit.
            self.load(run);
            return;
        };
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        task.come_back = control != Control::Pause;
        match control {
            Control::Cancel { rollback } => task.run.request_cancel(rollback),
            Control::Pause => task.run.drain(true),
            // It was not paused when it was read, so there is nothing to resume here.
            Control::Resume => return self.look(run),
        }
        self.queue(slot);
    }

    /// Reads what has happened to a run that is in memory.
    fn look(&mut self, run: RunNo) {
        if let Some(loading) = self.loading.get_mut(&run) {
            loading.look = true;
            return;
        }
        let Some(slot) = self.by_no.get(&run).copied() else {
            return;
        };
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        let (id, token, seen) = (task.id, task.token, task.run.inbox_seen());
        let mailbox = self.mailbox.clone();
        self.ask(move |store| {
            let found = store.run(&crate::commit::Target::Id(id)).and_then(|row| match row {
                Some(row) => Ok(Some(Box::new((row, store.inbox(run, seen)?)))),
                None => Ok(None),
            });
            match found {
                Ok(found) => mailbox.push(Event::Looked { run, token, found }),
                Err(error) => tracing::warn!(%error, "a run cannot be looked at; trying later"),
            }
        });
    }

    fn looked(&mut self, run: RunNo, token: u64, found: Option<Box<(RunRow, Vec<InboxRow>)>>) {
        let Some(slot) = self.by_no.get(&run).copied() else {
            // It has left memory since, and may have done so without the news.
            let now = self.env.now.get();
            if found.is_some_and(|found| found.0.is_due(now)) {
                self.load_if_room(run);
            }
            return;
        };
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        if task.token != token {
            // It has left memory and come back since. What was found may be older than what it
            // was loaded with, and says nothing about this stay.
            return self.look(run);
        }
        let Some(found) = found else {
            return self.remove(slot);
        };
        let (row, inbox) = *found;
        if row.status.is_terminal() {
            return self.remove(slot);
        }
        if row.generation != task.run.core.facts.generation {
            // It continues as another: this look has overtaken the answer to the commit that says
            // so. The answer finds nobody, and the store counts the run as being in memory, so it
            // is read anew here or never.
            self.remove(slot);
            return self.load(run);
        }
        if row.status == RunStatus::Pending {
            // The store has it as one that begins: somebody has paused and resumed it before this look.
            // Nobody else would put its row right. One that was put to rest here is read anew.
            if task.hot.is_some() {
                self.remove_parked(slot);
                return self.load(run);
            }
            task.run.was_resumed();
        }
        let news: Vec<_> =
            inbox.into_iter().filter(|message| message.seq > task.run.inbox_seen()).collect();
        if !news.is_empty() {
            task.run.deliver(news);
        }
        let goes_on = row.status != RunStatus::Paused && row.cancel_requested.is_none();
        if goes_on && self.has_moved_away(&hand_over::due_run(&row)) {
            return self.leave_for_home(slot);
        }
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        if row.status == RunStatus::Paused {
            task.run.drain(true);
        } else if let Some(cancel) = row.cancel_requested {
            task.run.request_cancel(cancel.rollback);
        }
        task.come_back |= task.run.is_leaving() && row.status != RunStatus::Paused;
        self.queue(slot);
    }

    /// A run is due, as the store says.
    fn due(&mut self, run: DueRun, look: bool) {
        let no = run.id.no();
        if self.by_no.contains_key(&no) || self.loading.contains_key(&no) {
            if look {
                self.look(no);
            }
            return;
        }
        if self.belongs_here(&run) {
            self.load_if_room(no);
        }
    }

    /// Takes up a run that is due in the store: without room it is found there again.
    fn load_if_room(&mut self, run: RunNo) {
        if let Some(place) = Place::take(&self.shared) {
            self.load_into(run, Some(place));
        }
    }

    /// Takes up recovered runs while there is room: the store does not count them as due.
    fn admit_held(&mut self) {
        while !self.held.is_empty() {
            let Some(place) = Place::take(&self.shared) else {
                return;
            };
            if let Some(run) = self.held.pop_front() {
                self.load_into(run, Some(place));
            }
        }
        // In order of their deaths, so that those that can run together come first.
        self.suspects.make_contiguous().sort_by_key(|(_, deaths)| *deaths);
        while let Some((run, deaths)) = self.suspects.front().copied() {
            let alone = deaths >= suspects::ALONE_AFTER;
            let place = || Place::take(&self.shared);
            let Some((pass, place)) = Gate::enter(&self.shared, alone, place) else {
                return;
            };
            self.suspects.pop_front();
            let loading = self.loading.entry(run).or_default();
            (loading.pass, loading.place) = (Some(pass), Some(place));
            self.read(run);
        }
    }

    /// Reads a run, and takes it in if there is room then. If not, it is held until there is.
    fn load(&mut self, run: RunNo) {
        self.load_into(run, None);
    }

    fn load_into(&mut self, run: RunNo, place: Option<Place>) {
        // A recovered run may have been due as well, and be here already: twice in memory, it would
        // do everything twice.
        if self.by_no.contains_key(&run) {
            return;
        }
        if self.drained || self.draining.is_some() || self.loading.contains_key(&run) {
            return;
        }
        let loading = Loading { place, ..Loading::default() };
        self.loading.insert(run, loading);
        self.read(run);
    }

    /// Asks the store on a thread that may block. Whatever is read, this thread waits for the answer.
    fn ask(&self, read: impl FnOnce(&dyn Store) + Send + 'static) {
        let shared = self.shared.clone();
        self.reader.spawn(move |store| shared.guard("reading", || read(store)));
    }

    /// Reads a run that is waited for; an earlier read of it does not count any more.
    fn read(&mut self, run: RunNo) {
        let Some(loading) = self.loading.get_mut(&run) else {
            return;
        };
        let ticket = self.next_ticket;
        self.next_ticket += 1;
        loading.ticket = ticket;
        // Before anything is read.
        (loading.era, loading.epoch) = (self.shared.owned.era(), self.shared.epoch());
        let mailbox = self.mailbox.clone();
        let pause = self.shared.settings.store_retry * 2;
        self.ask(move |store| {
            let loaded = store.load(run).map(|loaded| loaded.map(Box::new));
            if loaded.is_err() {
                // The thread that asked will ask again at once.
                seam::sleep(pause, "read again");
            }
            mailbox.push(Event::Loaded { run, ticket, loaded });
        });
    }

    fn loaded(
        &mut self,
        run: RunNo,
        ticket: u64,
        loaded: Result<Option<Box<LoadedRun>>, StoreError>,
    ) {
        let era = match self.loading.get(&run) {
            Some(loading) if loading.ticket == ticket => loading.era,
            _ => return,
        };
        // By one look: a shard that comes between two was not this runner's when the run was read.
        let owned = &self.shared.owned;
        let is_broken = self.shared.settings.breaks(Sabotage::StaleRead);
        let era = if is_broken { owned.era() } else { era };
        let is_ours = match &loaded {
            Ok(Some(loaded)) => owned.has_in(era, loaded.row.shard),
            _ => (owned.era() == era).then_some(false),
        };
        let Some(is_ours) = is_ours else {
            // Shards have moved meanwhile, perhaps its own, to another owner and back.
            return self.read(run);
        };
        let Some(mut loading) = self.loading.remove(&run) else {
            return;
        };
        if is_broken {
            loading.epoch = self.shared.epoch();
        }
        if self.by_no.contains_key(&run) {
            return;
        }
        self.take_in(run, loading, loaded, is_ours);
    }

    fn take_in(
        &mut self,
        run: RunNo,
        mut loading: Loading,
        loaded: Result<Option<Box<LoadedRun>>, StoreError>,
        is_ours: bool,
    ) {
        let loaded = match loaded {
            Ok(Some(loaded)) => *loaded,
            Ok(None) => return,
            Err(error) => {
                self.shared.complain(&error, "a run cannot be read");
                // Reading is tried again by this thread: the store may not count it as due.
                self.held.push_back(run);
                return;
            }
        };
        let row = &loaded.row;
        if row.status.is_terminal() || !is_ours {
            return;
        }
        let cancel = row.cancel_requested.filter(|_| row.ending.is_none());
        if row.status == RunStatus::Paused && cancel.is_none() {
            // It may have been resumed since it was read.
            if loading.look {
                self.load(run);
            } else if loaded.inbox.iter().any(InboxRow::is_grant) {
                self.put_away(&loaded, loading.epoch);
            }
            return;
        }
        // To be cancelled takes no home.
        if cancel.is_none() && self.has_moved_away(&hand_over::due_run(row)) {
            self.belongs_here(&hand_over::due_run(row));
            return;
        }
        let later = row.waits_until(self.env.now.get());
        if let (RunStatus::Pending, Some(at), None) = (row.status, later, cancel) {
            // A message does not begin a run before its time.
            self.shared.due.note(at);
            return;
        }
        let code = self.shared.registry.find(&row.workflow, row.version);
        match (code.is_some(), cancel) {
            // To end it takes no code.
            (false, Some(cancel)) if !cancel.rollback => {
                return self.cancel_without_code(&loaded, loading.epoch);
            }
            (false, None) if self.is_over_without_code(&loaded, loading.epoch) => return,
            _ if !self.belongs_here(&hand_over::due_run(row)) => return,
            _ => {}
        }
        if row.recoveries >= crate::run::SUSPECT_AFTER && loading.pass.is_none() {
            self.suspects.push_back((run, RunSeed::deaths(&loaded)));
            return;
        }
        let place = loading.place.take().or_else(|| Place::take(&self.shared));
        let Some(place) = place else {
            // To end it takes no place.
            match cancel.filter(|cancel| !cancel.rollback) {
                Some(_) => self.cancel_without_code(&loaded, loading.epoch),
                None => self.held.push_back(run),
            }
            return;
        };
        let (shard, due_since) = (row.shard, row.due_since());
        let Some(slot) = self.insert(RunSeed::from(loaded), shard, loading.epoch) else {
            return;
        };
        self.cells.loaded();
        let now = self.env.now.get();
        if let Some(at) = due_since.filter(|at| *at <= now) {
            self.cells.taken_up(now.since(at));
        }
        place.keep();
        let Some(Some(task)) = self.tasks.get_mut(slot as usize) else {
            return;
        };
        task.pass = loading.pass;
        if let Some(cancel) = cancel {
            task.run.request_cancel(cancel.rollback);
        }
        for message in loading.messages {
            self.message(run, message);
        }
        if loading.look {
            self.look(run);
        }
    }

    /// A run that was paused while it was in nobody's memory gives back what it holds.
    fn put_away(&mut self, loaded: &LoadedRun, epoch: u64) {
        let commit = Commit { results_only: true, ..commit_unloaded(loaded, Patch::Keep) };
        let write = Write::Commit(Box::new(commit));
        let (thread, run) = (self.index, loaded.row.id.no());
        self.out.push(Pending::under(epoch, write, Reply::Owner { thread, run }));
    }

    fn cancel_without_code(&mut self, loaded: &LoadedRun, epoch: u64) {
        let (output, error) = (None, None);
        let status = RunStatus::Cancelled;
        let patch = Patch::Finish { status, output, error };
        let write = Write::Commit(Box::new(commit_unloaded(loaded, patch)));
        let (thread, run) = (self.index, loaded.row.id.no());
        let reply = Reply::Owner { thread, run };
        self.out.push(Pending::under(epoch, write, reply));
    }

    fn slots_of(&self, shards: &ShardSet) -> Vec<u32> {
        let of = |shard: ShardId| shards.contains(shard);
        self.by_no
            .values()
            .copied()
            .filter(|slot| self.tasks[*slot as usize].as_ref().is_some_and(|task| of(task.shard)))
            .collect()
    }

    /// No body starts any more.
    fn drain(&mut self, done: oneshot::Sender<()>) {
        self.draining = Some(done);
        // Those that have begun since the shutdown has told all.
        self.mailbox.bodies.tell();
        let slots: Vec<u32> = self.by_no.values().copied().collect();
        for slot in slots {
            if !self.evict(slot) {
                if let Some(Some(task)) = self.tasks.get_mut(slot as usize) {
                    task.run.drain(false);
                }
                self.queue(slot);
            }
        }
    }

    /// Answers those who wait for runs to leave memory.
    fn finish_waits(&mut self) {
        if self.draining.is_none() && self.releasing.is_empty() {
            return;
        }
        let shared = &self.shared;
        self.releasing.retain(|it| shared.is_current(it.epoch));
        self.drop_idle();
        if self.draining.is_some() && self.by_no.is_empty() && self.loading.is_empty() {
            self.drained = true;
            if let Some(done) = self.draining.take() {
                _ = done.send(());
            }
        }
        self.answer_releases();
    }

    /// The shards were lost. Runs that were read under a lease which is over are dropped; those whose
    /// shard has come back since are read again.
    ///
    /// The event may come late, when the next lease has taken its runs up. Nothing would do that again,
    /// so everything that may stem from the next lease stays: its runs, and the runs that wait to be
    /// read. A read of the old lease stays too, since it may be the reason why the next lease began
    /// none; it is out of date by its era, and is made again.
    fn lost(&mut self) {
        let shared = self.shared.clone();
        let slots = self.by_no.values().copied();
        let stale = slots.filter(|slot| {
            let task = self.tasks[*slot as usize].as_ref();
            task.is_none_or(|task| !shared.is_current(task.epoch))
        });
        for slot in stale.collect::<Vec<u32>>() {
            self.read_anew(slot);
        }
        if shared.owned().is_empty() {
            // The runs of shards that come from now on are taken up after this.
            return self.forget_waiting();
        }
        // The store may have refused the notes of the old lease.
        self.unserved.retain(|_, it| shared.owns(it.shard()));
        let unserved = self.unserved.iter();
        let stale = unserved.filter(|(_, it)| !shared.is_current(it.epoch));
        for run in stale.map(|(run, _)| *run).collect::<Vec<RunNo>>() {
            self.look_again(run);
        }
    }

    /// Memory is worth nothing any more.
    fn drop_everything(&mut self) {
        let slots: Vec<u32> = self.by_no.values().copied().collect();
        for slot in slots {
            self.remove(slot);
        }
        self.out.clear();
        self.ready.clear();
        self.woken.clear();
        self.forget_waiting();
    }

    /// Forgets the runs that are to be read.
    fn forget_waiting(&mut self) {
        self.loading.clear();
        self.unserved.clear();
        self.held.clear();
        self.suspects.clear();
        // The first one is being read: the answer must not be taken for that of a later read.
        self.to_reconsider.truncate(1);
    }
}
