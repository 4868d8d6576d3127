//! The store of a simulation: one [`MemoryStore`] that all processes share, and for each process a way
//! to it that is slow, loses requests and answers, and fails.
//!
//! A call has three points: it is asked, made and answered. Between them time may pass, the process may
//! be stalled or die, and others go on. So calls of several threads are made and answered in any order,
//! and a process that died may have done work that no caller was told of.
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

use serde::{Deserialize, Serialize};
use uuid::Uuid;

use super::{self as simulation, SimProcess, Sky};
use crate::{
    commit::{ClaimedItem, Commit, Effect, InboxKind, QueueDone, QueueWrite, Settled},
    run_id::RunNo,
    sabotage::Sabotage,
    store::{
        Applied, Batch, InboxRow, MemoryStore, NewRunner, Outcome, Store, StoreError, WakeFn,
        WakeGuard, Write,
    },
    testing::{
        around::{Around, Call, Change},
        internal,
    },
    time::Timestamp,
};

/// The kind of the simulated store.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Kind {
    /// A file: the processes are on one machine, the store has no clock, and a process that has ended is
    /// known to have.
    File,
    /// A database behind a network, with a clock of its own.
    Database,
}

/// How many calls of the store had each fault.
#[derive(Default)]
pub struct Counts {
    pub errors: AtomicU64,
    pub unknown_outcomes: AtomicU64,
    pub wakes_dropped: AtomicU64,
}

/// A turn that an operation was given under the rate of a limit, without a place.
#[derive(Clone, Debug)]
pub struct Turn {
    pub limit: String,
    pub key: String,
    pub run: RunNo,
    /// The location of the operation.
    pub operation: String,
    /// When it may go on.
    pub at: Timestamp,
}

/// The store itself.
pub struct Server {
    pub data: MemoryStore,
    pub counts: Counts,
    kind: Kind,
    sky: Sky,
    /// How far its clock is ahead of the simulation's calendar, in milliseconds.
    ahead_ms: i64,
    /// How much faster its clock goes, in millionths.
    ppm: i64,
    /// Waits that ran out of time over a message that was there: what was seen when it was written.
    pub passed_over: Mutex<Vec<String>>,
    /// All turns under rates that were given, in order.
    pub turns: Mutex<Vec<Turn>>,
    /// The promise that this store breaks on purpose.
    sabotage: Mutex<Option<Sabotage>>,
    /// The items that were claimed last, for [`Sabotage::DoubleClaim`].
    claimed: Mutex<Vec<ClaimedItem>>,
    /// The calls that have changed the data, in order; `None` if they are not recorded.
    pub changes: Option<Mutex<Vec<Change>>>,
    /// Waits that ran out over a message that was there, and that no code has taken so far.
    suspects: Mutex<BTreeMap<(RunNo, String), String>>,
    /// Where wake-ups are while they are on their way.
    network: SimProcess,
    runners: Mutex<BTreeMap<Uuid, Runner>>,
}

/// A runner that listens for wake-ups.
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
    pub fn new(kind: Kind, sky: Sky, ahead_ms: i64, ppm: i64, keeps_changes: bool) -> Arc<Server> {
        Arc::new(Server {
            data: MemoryStore::new(),
            counts: Counts::default(),
            kind,
            sky,
            ahead_ms,
            ppm,
            passed_over: Mutex::default(),
            turns: Mutex::default(),
            sabotage: Mutex::default(),
            claimed: Mutex::default(),
            changes: keeps_changes.then(Mutex::default),
            suspects: Mutex::default(),
            network: simulation::new_process("network"),
            runners: Mutex::default(),
        })
    }

    /// Has it break a promise of stores on purpose.
    #[cfg(feature = "sabotage")]
    pub fn sabotage(&self, sabotage: Option<Sabotage>) {
        *lock(&self.sabotage) = sabotage;
    }

    /// The time that counts for what is in the store: that of a database, or the right one.
    pub fn now(&self) -> Timestamp {
        match self.kind {
            Kind::File => simulation::right_time().into(),
            Kind::Database => self.time(),
        }
    }

    /// The way of a process to the store. Nothing goes wrong on one that is sheltered.
    pub fn open(self: &Arc<Server>, process: &SimProcess, sheltered: bool) -> Arc<SimStore> {
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

    /// Makes a batch, and checks what only the moment shows: no listen runs out of time over a message
    /// that is there. It counts once the code takes it: a wait that was given up may have run out.
    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        let unread: Vec<_> = batch.writes.iter().map(|write| self.passed_over(write)).collect();
        let mut applied = self.data.commit(batch)?;
        let broken = *lock(&self.sabotage);
        for (write, outcome) in batch.writes.iter().zip(&mut applied.outcomes) {
            match broken {
                Some(Sabotage::DoubleClaim) => self.claim_twice(write, outcome),
                Some(Sabotage::SecondValue) => accept_second(outcome),
                _ => {}
            }
        }
        let mut suspects = lock(&self.suspects);
        for (write, (passed_over, outcome)) in
            batch.writes.iter().zip(unread.into_iter().zip(&applied.outcomes))
        {
            let (Write::Commit(commit), Outcome::Committed(_)) = (write, outcome) else {
                continue;
            };
            self.note_turns(commit);
            suspects.extend(passed_over.into_iter().map(|(at, what)| ((commit.run, at), what)));
            for (at, is_taken) in commit.puts.iter().filter_map(internal::timed_out_at) {
                if is_taken && let Some(what) = suspects.remove(&(commit.run, at)) {
                    lock(&self.passed_over).push(what);
                }
            }
        }
        Ok(applied)
    }

    /// Notes the turns that operations were given by a commit.
    fn note_turns(&self, commit: &Commit) {
        for effect in &commit.effects {
            let Effect::Acquire(acquire) = effect else {
                continue;
            };
            if acquire.holds {
                continue;
            }
            let inbox = self.data.inbox(commit.run, 0).unwrap_or_default();
            let mut grants = inbox.iter().filter(|row| row.kind == InboxKind::LimitGrant);
            let grant = grants.find(|row| row.wait.as_deref() == Some(&acquire.key[..]));
            if let Some(at) = grant.and_then(|row| internal::decode_turn(&row.body)) {
                lock(&self.turns).push(Turn {
                    limit: acquire.limit.clone(),
                    key: acquire.limit_key.clone(),
                    run: commit.run,
                    operation: internal::location_of(&acquire.key),
                    at,
                });
            }
        }
    }

    /// A worker that finds no item is given those that another one has.
    fn claim_twice(&self, write: &Write, outcome: &mut Outcome) {
        let (Write::Queue(write), Outcome::Queue(QueueDone::Claimed(claimed))) = (write, outcome)
        else {
            return;
        };
        let QueueWrite::Claim(wanted) = &**write else {
            return;
        };
        let mut last = lock(&self.claimed);
        match claimed.items.is_empty() {
            false => last.clone_from(&claimed.items),
            true => claimed.items.extend(last.drain(..).take(wanted.max)),
        }
    }

    /// Messages that are unread, and that this write does not take though it is the end of a wait for
    /// them: the waits, and what is wrong.
    fn passed_over(&self, write: &Write) -> Vec<(String, String)> {
        let Write::Commit(commit) = write else {
            return Vec::new();
        };
        let mut ends = commit.puts.iter().filter_map(internal::timed_out_at).peekable();
        if ends.peek().is_none() {
            return Vec::new();
        }
        // An entry is written again when the code takes it.
        let history = self.data.history(commit.run, None, usize::MAX).unwrap_or_default();
        let known: Vec<_> = history.iter().filter_map(internal::timed_out_at).collect();
        let inbox = self.data.inbox(commit.run, 0).unwrap_or_default();
        let passed_over = ends.filter_map(|(at, _)| {
            if known.iter().any(|(other, _)| *other == at) {
                return None;
            }
            let name = at.rsplit('/').next().unwrap_or_default();
            // Answers are for other waits.
            let is_for = |row: &&InboxRow| {
                row.wait.is_none()
                    && name.starts_with(&row.name)
                    && !commit.consumed.contains(&row.seq)
            };
            let row = inbox.iter().find(is_for)?;
            let (run, seq) = (commit.run, row.seq);
            let what =
                format!("`{at}` of {run:?} ran out of time over message {seq}, which was there");
            Some((at, what))
        });
        passed_over.collect()
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

/// A second value of a deferred is said to be the first one.
fn accept_second(outcome: &mut Outcome) {
    if let Outcome::Settled(settled @ Settled::Already { .. }) = outcome {
        *settled = Settled::First;
    }
}

/// The store, as one process reaches it.
pub struct SimStore {
    server: Arc<Server>,
    process: SimProcess,
    sheltered: bool,
    /// The time of a database when it was last said, and when that was by the clock of this process.
    known: Mutex<Option<(Timestamp, Instant)>>,
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

    /// Why nothing is done now.
    fn trouble(&self, call: Call<'_>) -> Option<StoreError> {
        let sky = &self.server.sky;
        if sky.is_away() {
            if self.server.kind == Kind::Database {
                simulation::sleep(Duration::from_millis(simulation::random() % 2_000));
            }
            return Some(self.io("nobody answers"));
        }
        if !matches!(call, Call::Read(_)) && sky.is_full() {
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
        if matches!(call, Call::Commit(_)) && sky.happens(sky.lost_commits) {
            return Some(self.unknown());
        }
        None
    }

    /// Notes what was just made.
    fn note_change(&self, call: Call<'_>) {
        let Some(changes) = &self.server.changes else {
            return;
        };
        let change = match call {
            Call::Read(_) | Call::Upkeep(_) => return,
            Call::Commit(batch) => Change::Commit(batch.clone()),
            Call::Register(runner) => {
                let now = self.lease_time(runner.now);
                Change::Register(NewRunner { now, ..runner.clone() })
            }
            Call::Heartbeat(fence, now, lease) => {
                Change::Heartbeat(fence, self.lease_time(now), lease)
            }
            Call::Take(fence, now, wanted, gone) => {
                Change::Take(fence, self.lease_time(now), wanted.clone(), gone.to_vec())
            }
            Call::Release(fence, shards) => Change::Release(fence, shards.clone()),
            Call::Deregister(fence) => Change::Deregister(fence),
        };
        lock(changes).push(change);
    }

    /// Has heard the time of the store, in an answer to a question of this instant. It is believed if it has
    /// come at once, as in PostgreSQL: it is wrong by up to half the time that it took.
    fn hear_time(&self, said: Timestamp, asked: Instant) {
        let took = simulation::instant().saturating_duration_since(asked);
        if took <= QUICK {
            *lock(&self.known) = Some((said, asked + took / 2));
        }
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

impl Around for SimStore {
    type Inner = MemoryStore;

    fn inner(&self) -> &MemoryStore {
        &self.server.data
    }

    fn around<T>(
        &self,
        call: Call<'_>,
        make: impl FnOnce(&MemoryStore) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let asked = simulation::instant();
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
        self.note_change(call);
        let said = self.server.time();
        simulation::point("made");
        on_its_way(self.sheltered, &self.server.sky, "answered");
        if !self.sheltered && self.server.sky.happens(self.server.sky.lost_answers) {
            let error = match call {
                Call::Commit(_) => self.unknown(),
                _ => self.io("the answer was lost"),
            };
            return Err(self.server.count(error));
        }
        if matches!(call, Call::Read("ask_time") | Call::Register(_) | Call::Heartbeat(..)) {
            self.hear_time(said, asked);
        }
        Ok(answer)
    }

    fn commit(&self, batch: &Batch) -> Result<Applied, StoreError> {
        self.around(Call::Commit(batch), |_| self.server.commit(batch))
    }

    /// The time of the store, if it has one.
    fn lease_time(&self, now: Timestamp) -> Timestamp {
        match self.server.kind {
            Kind::File => now,
            Kind::Database => self.server.time(),
        }
    }

    fn is_local(&self) -> bool {
        self.server.kind == Kind::File
    }

    fn lanes_max(&self) -> usize {
        match self.server.kind {
            Kind::File => 1,
            Kind::Database => 4,
        }
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
        let registration = self.around(Call::Read("on_wake"), |_| {
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
}

/// How long a client believes what a database has said of its time.
const TIME_LASTS: Duration = Duration::from_secs(30);

/// How long an answer may take for the time in it to be believed.
const QUICK: Duration = Duration::from_millis(500);

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
