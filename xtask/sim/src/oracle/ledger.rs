//! The ledger: what bodies, workflow code and clients have done and seen, written outside of the store.
//!
//! A *stay* is the time that a run is in the memory of a process: its code writes what it takes, in order. A body that
//! starts says how much its code had taken: all of that must be in the history for good. What can be
//! decided at once is: a body may not start if the store has its result, nor may it start or go on if a
//! later stay of its run has started one.

use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicUsize, Ordering},
    },
};

use everstep::{
    Ctx, RunId, RunStatus,
    store::{MemoryStore, Store, Target},
    testing::{
        internal,
        simulation::{self, Server, SimProcess},
    },
};

use super::{
    Promise, Violation,
    children::{ChildEnd, Ending},
    events::News,
    limits::Holder,
    queues::{ItemTold, Items},
    requests::{Request, Requests},
    schedules::Ticks,
    streams::{Emitters, Follow, Shown},
};
use crate::work::{Order, perform::Code, program::Op};

/// What code has taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Got {
    /// The result of a body.
    Value(u64),
    /// The failure of one.
    Failure,
    /// The end of a wait, or of something that has no value.
    Time,
    /// Nothing came in time.
    Nothing,
    /// A message, and its channel.
    Message(u32, String),
    /// An item was put into a queue, and nobody waits for it.
    Item,
    /// An event, or nothing in time.
    Event { event: usize, matching: Option<u32>, body: Option<String> },
    /// That an event was published.
    Published { event: usize, key: Option<u32>, body: String },
    /// What became of a deferred, or nothing yet.
    Verdict(Option<Result<String, String>>),
    /// What became of a child.
    Child(ChildEnd),
    /// The end of the run of a program.
    Ended(usize, Ending),
    /// Which of several parts has won.
    Won(usize),
    /// The state that a loop has come to.
    State(u64),
    /// What became of a message: to whom, the channel, the message, and whether it was delivered.
    Receipt(String, u32, String, bool),
}

/// Something that code has taken, and where.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Taken {
    pub(crate) at: String,
    pub(crate) got: Got,
}

impl Taken {
    /// The loops that it is inside of, from the outside in, and the iteration of each.
    pub(crate) fn iterations(&self) -> impl Iterator<Item = (&str, u64)> {
        iterations(&self.at)
    }
}

/// The loops that a place is inside of, from the outside in, and the iteration of each.
pub(crate) fn iterations(at: &str) -> impl Iterator<Item = (&str, u64)> {
    at.match_indices("/~").filter_map(|(found, mark)| {
        let rest = &at[found + mark.len()..];
        let n = rest.split('/').next()?.parse().ok()?;
        Some((&at[..found], n))
    })
}

/// One stay of a run in memory.
#[derive(Debug)]
pub(crate) struct Stay {
    pub(crate) index: usize,
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) attempt: u32,
    pub(crate) order: Order,
    pub(crate) process: String,
    /// Whether its process looks at its own clock. If it does not, its bodies may start when the run has
    /// moved on: it finds that out when it writes.
    pub(crate) is_fenced: bool,
    /// Whether it is the code after the change.
    pub(crate) is_changed: bool,
    taken: Mutex<Vec<Taken>>,
    shown: Mutex<Vec<Shown>>,
    /// How much of that was kept for certain, since a firm body has started on it.
    kept: AtomicUsize,
    /// How often its code was polled.
    polls: AtomicUsize,
    /// The last operation of which its code has taken a completion, and in which poll.
    last: Mutex<(usize, String)>,
}

impl Stay {
    pub(crate) fn poll_begins(&self) {
        self.polls.fetch_add(1, Ordering::Relaxed);
    }

    pub(crate) fn take(&self, taken: Taken) {
        lock(&self.taken).push(taken);
    }

    /// Its code has given something out.
    pub(crate) fn show(&self, shown: Shown) {
        lock(&self.shown).push(shown);
    }

    pub(crate) fn all_shown(&self) -> Vec<Shown> {
        lock(&self.shown).clone()
    }

    /// How much it has taken.
    pub(crate) fn taken(&self) -> usize {
        lock(&self.taken).len()
    }

    pub(crate) fn all_taken(&self) -> Vec<Taken> {
        lock(&self.taken).clone()
    }

    pub(crate) fn kept(&self) -> usize {
        self.kept.load(Ordering::Relaxed)
    }
}

/// A number that depends on another one and on this.
pub(crate) fn fold(before: u64, taken: &Taken) -> u64 {
    internal::hash(before, format!("{taken:?}").as_bytes())
}

/// A number that depends on this one and on all of these, in order, but for what was taken inside of loops: only the state
/// in the end counts of those, since a replay jumps over iterations.
pub(crate) fn digest(carry: u64, taken: &[Taken]) -> u64 {
    let outside = taken.iter().filter(|taken| taken.iterations().next().is_none());
    outside.fold(carry, fold)
}

/// A step of a generation of a run.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Place {
    pub(crate) run: RunId,
    pub(crate) generation: u32,
    pub(crate) at: String,
}

impl Place {
    /// A number that depends on it.
    pub(crate) fn number(&self) -> u64 {
        internal::hash(0, format!("{self:?}").as_bytes())
    }
}

impl std::fmt::Display for Place {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "`{}` of run {}", self.at, self.run)?;
        match self.generation {
            1 => Ok(()),
            later => write!(f, ", generation {later}"),
        }
    }
}

/// A message that a client has sent, and what it was told.
#[derive(Clone, Debug)]
pub(crate) struct Sending {
    pub(crate) to: String,
    /// The program of that run, if it is no child.
    pub(crate) program: Option<usize>,
    pub(crate) message: String,
    /// It is in an inbox for certain; `None` if the client was not told.
    pub(crate) is_delivered: Option<bool>,
}

/// What clients, code and bodies have written.
#[derive(Default)]
pub(crate) struct Book {
    pub(crate) stays: Vec<Arc<Stay>>,
    /// The last stay of a generation of a run that has started a body.
    moved_on: BTreeMap<(RunId, u32), usize>,
    /// The values that bodies have given.
    pub(crate) given: BTreeMap<Place, Vec<u64>>,
    /// The last attempt of a step that has started, in each attempt of its run.
    attempts: BTreeMap<(Place, u32), u32>,
    pub(crate) bodies: u64,
    pub(crate) sendings: Vec<Sending>,
    /// What the generations of runs have come to, those that have begun the next one.
    pub(crate) continued: BTreeMap<(RunId, u32), BTreeSet<u64>>,
    /// Events and deferreds.
    pub(crate) news: News,
    /// What clients were told the end of a run to be.
    pub(crate) told: Vec<(RunId, Told)>,
    /// The run that clients were told to be that of an order.
    pub(crate) runs: BTreeMap<usize, RunId>,
    /// The runs that a client was told to have started itself.
    started: BTreeSet<RunId>,
    /// The keys of children, by the operation that starts them.
    pub(crate) child_keys: BTreeMap<Place, u32>,
    /// The run that was said to be that of a key of children.
    pub(crate) keyed: BTreeMap<u32, RunId>,
    /// The parents of children, by their origin, and whether they end with their parent.
    pub(crate) births: BTreeMap<u64, (RunId, bool)>,
    /// Requests that were replied to, with the reply.
    pub(crate) replies: Vec<(String, String)>,
    /// What clients wait for on threads of their own; none once it has come.
    waits: Vec<Option<(SimProcess, String)>>,
    /// The runs of ticks of schedules.
    pub(crate) ticks: Ticks,
    pub(crate) requests: Requests,
    /// The bodies that run under limits.
    pub(crate) holders: Vec<Holder>,
    /// What handlers of queue items have done.
    pub(crate) items: Items,
    /// The items that clients were told to be in the queue.
    pub(crate) items_told: Vec<ItemTold>,
    /// The bodies that have given items of streams.
    pub(crate) emitters: Emitters,
    pub(crate) follows: Vec<Follow>,
    pub(crate) violations: Vec<Violation>,
}

/// How a run has ended, as a client was told.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Told {
    Completed(u64),
    Failed,
    Cancelled,
}

impl Told {
    pub(crate) fn status(&self) -> RunStatus {
        match self {
            Told::Completed(_) => RunStatus::Completed,
            Told::Failed => RunStatus::Failed,
            Told::Cancelled => RunStatus::Cancelled,
        }
    }
}

/// More iterations than any loop has.
const ITERATIONS_MAX: u64 = 8;

/// The book, and the store beside it.
pub(crate) struct Ledger {
    book: Mutex<Book>,
    /// The store. None in a replay, in which no body runs.
    server: Option<Arc<Server>>,
    /// Whether the clocks by which workers hold their items are the same for all.
    pub(crate) clocks_agree: bool,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Puts a line into the trace, if there is one.
pub(crate) fn note(what: impl FnOnce() -> String) {
    if simulation::is_traced() {
        simulation::note(&what());
    }
}

impl Ledger {
    pub(crate) fn new(server: Option<Arc<Server>>, clocks_agree: bool) -> Arc<Ledger> {
        Arc::new(Ledger { book: Mutex::default(), server, clocks_agree })
    }

    /// The store; none in a replay.
    pub(super) fn server(&self) -> Option<&Server> {
        self.server.as_deref()
    }

    /// What is durable; none in a replay.
    pub(crate) fn data(&self) -> Option<&MemoryStore> {
        self.server.as_ref().map(|server| &server.data)
    }

    pub(crate) fn book(&self) -> MutexGuard<'_, Book> {
        lock(&self.book)
    }

    pub(crate) fn violate(&self, promise: Promise, what: String) {
        note(|| format!("VIOLATION of {promise:?}: {what}"));
        self.book().violations.push(Violation { promise, what });
    }

    /// Whether this is the ledger of a life, not of a replay.
    pub(super) fn is_live(&self) -> bool {
        self.server.is_some()
    }

    pub(crate) fn stay_begins(&self, ctx: &Ctx, order: Order, code: &Code) -> Arc<Stay> {
        let mut book = self.book();
        let stay = Arc::new(Stay {
            index: book.stays.len(),
            run: ctx.run_id(),
            generation: ctx.generation(),
            attempt: ctx.run_attempt(),
            order,
            process: code.process.clone(),
            is_fenced: code.is_fenced,
            is_changed: code.is_changed,
            taken: Mutex::default(),
            shown: Mutex::default(),
            kept: AtomicUsize::new(0),
            polls: AtomicUsize::new(0),
            last: Mutex::default(),
        });
        book.stays.push(stay.clone());
        drop(book);
        self.check_generation(&stay);
        self.check_tick(&stay, ctx.scheduled_at());
        stay
    }

    /// Code has taken a completion: the only one in this poll, since a replay offers one at a time.
    pub(crate) fn check_order(&self, stay: &Stay, at: &str, op: &Op) {
        let poll = stay.polls.load(Ordering::Relaxed);
        let name = format!("`{at}` {op}");
        let (before, other) = std::mem::replace(&mut *lock(&stay.last), (poll, name.clone()));
        if before == poll {
            let (run, process) = (stay.run, &stay.process);
            let what = format!("run {run} takes {other} and {name} in one poll in {process}");
            self.violate(Promise::ReplayIsExact, what);
        }
    }

    /// A client was told that this is the run that it has started, or that it was there.
    pub(crate) fn is_started(&self, run: RunId, was_there: bool) {
        if !was_there && !self.book().started.insert(run) {
            let what = format!("two clients were told to have started run {run}");
            self.violate(Promise::ToldStaysTrue, what);
        }
    }

    /// A run is that of a key of children: the same one for all, until it is deleted.
    pub(crate) fn key_is_of(&self, key: u32, run: RunId) {
        let mut book = self.book();
        let known = *book.keyed.entry(key).or_insert(run);
        let is_deleted = book.requests.was_asked(known, Request::Delete);
        if is_deleted {
            book.keyed.insert(key, run);
        }
        drop(book);
        if known != run && !is_deleted {
            let what = format!("the child with key {key} was run {known}, and is run {run} now");
            self.violate(Promise::ChildRunsOnce, what);
        }
    }

    /// A client waits for something on a thread of its own; the number of that.
    pub(crate) fn client_waits(&self, what: &str) -> usize {
        let mut book = self.book();
        book.waits.push(Some((simulation::this_process(), what.to_owned())));
        book.waits.len() - 1
    }

    pub(crate) fn client_goes_on(&self, wait: usize) {
        self.book().waits[wait] = None;
    }

    /// When all has ended, no client waits for a reply or a result.
    pub(crate) fn check_no_waits(&self) {
        let waits = std::mem::take(&mut self.book().waits);
        for (_, what) in waits.into_iter().flatten().filter(|(it, _)| !it.is_dead()) {
            let what = format!("a client still waits for what becomes of `{what}`");
            self.violate(Promise::EveryRunEnds, what);
        }
    }

    /// A body starts after so much was taken by its code.
    pub(crate) fn body_starts(
        &self,
        stay: &Stay,
        place: &Place,
        attempt: u32,
        firm: bool,
        taken: usize,
    ) {
        note(|| format!("{place}: the body starts, attempt {attempt}, after {taken}"));
        self.book().bodies += 1;
        if firm {
            stay.kept.fetch_max(taken, Ordering::Relaxed);
        }
        self.check_not_completed(stay, place);
        self.check_not_moved_on(stay, place, "starts");
        self.check_still_current(stay, place);
        if firm {
            self.check_attempt(stay, place, attempt);
        }
        if !stay.is_fenced {
            // It may not own its run any more.
            return;
        }
        let of = (stay.run, stay.generation);
        let mut book = self.book();
        let last = book.moved_on.entry(of).or_insert(stay.index);
        *last = (*last).max(stay.index);
    }

    pub(crate) fn undo_starts(&self, stay: &Stay, place: &Place) {
        note(|| format!("{place}: the rollback starts"));
        self.check_not_completed(stay, place);
    }

    /// A body goes on after a wait. A task of its own ends at its next await if its step is given up, so
    /// while its process has a lease it may go on beside a body that was started since.
    pub(crate) fn body_goes_on(&self, stay: &Stay, place: &Place, is_task: bool) {
        let runners = self.data().and_then(|data| data.runners().ok());
        let runners = runners.unwrap_or_default();
        let has_lease = runners.iter().any(|it| it.name == stay.process && !it.shards.is_empty());
        if !(is_task && has_lease) {
            self.check_not_moved_on(stay, place, "goes on");
        }
    }

    pub(crate) fn body_ends(&self, place: &Place, value: Option<u64>) {
        note(|| format!("{place}: the body ends with {value:?}"));
        if let Some(value) = value {
            let mut book = self.book();
            book.given.entry(place.clone()).or_default().push(value);
        }
    }

    fn check_not_completed(&self, stay: &Stay, place: &Place) {
        let Some(data) = self.data() else { return };
        // What a run that is tried again makes fresh is in the store until its next commit.
        if stay.attempt > 1 || !stay.is_fenced {
            return;
        }
        let row = data.run(&Target::Id(place.run));
        let Ok(Some(row)) = row else {
            let what = format!("{place} starts, and there is no such run");
            return self.violate(Promise::OneOwnerPerRun, what);
        };
        if row.generation != place.generation {
            let (process, now) = (&stay.process, row.generation);
            let what = format!("{place} starts in {process}, and the run is in generation {now}");
            return self.violate(Promise::OneOwnerPerRun, what);
        }
        let history = data.history(place.run.no(), None, usize::MAX);
        let history = history.unwrap_or_default();
        let is_completed = |put| internal::is_completed_at(put, &place.at);
        if history.iter().any(is_completed) {
            let process = &stay.process;
            let what = format!("{place} starts in {process}, and its result is in the store");
            self.violate(Promise::CompletedStepNeverRunsAgain, what);
        }
        for (at, n) in iterations(&place.at) {
            let later = (n + 1..n + ITERATIONS_MAX).find(|later| {
                let boundary = format!("{at}/~{later}");
                history.iter().any(|put| internal::is_completed_at(put, &boundary))
            });
            if let Some(later) = later {
                let process = &stay.process;
                let what = format!(
                    "{place} starts in {process}, and the state of iteration {later} is in the store"
                );
                self.violate(Promise::IterationIsNotRepeated, what);
            }
        }
    }

    /// A crash takes no attempt back that is recorded.
    fn check_attempt(&self, stay: &Stay, place: &Place, attempt: u32) {
        let mut book = self.book();
        let of = (place.clone(), stay.attempt);
        let last = book.attempts.entry(of).or_insert(attempt);
        if !stay.is_fenced {
            // It may own the run, or be late.
            *last = attempt.max(*last);
            return;
        }
        let before = std::mem::replace(last, attempt);
        drop(book);
        // One may be missing: its time can run out while its body still waits for a thread.
        if attempt < before {
            let process = &stay.process;
            let what = format!("attempt {attempt} of {place} starts in {process} after {before}");
            self.violate(Promise::RetriesGoOn, what);
        }
    }

    /// A run that a client was told to be paused is, unless it was let go on or cancelled since: `ends`
    /// is how often that was asked for before the pause was.
    pub(crate) fn check_is_paused(&self, run: RunId, ends: Option<u32>) {
        let (Some(data), Some(ends)) = (self.data(), ends) else {
            return;
        };
        let row = data.run(&Target::Id(run));
        let status = row.ok().flatten().map(|row| row.status);
        let is_ended = self.book().requests.ends_of_pause(run) != Some(ends);
        if status != Some(RunStatus::Paused) && !is_ended {
            let what = format!("run {run} was said to be paused, and is {status:?}");
            self.violate(Promise::ToldStaysTrue, what);
        }
    }

    /// Whether an operator has asked for this run to be deleted.
    pub(crate) fn may_be_deleted(&self, run: RunId) -> bool {
        self.book().requests.was_asked(run, Request::Delete)
    }

    fn check_not_moved_on(&self, stay: &Stay, place: &Place, does: &str) {
        if !stay.is_fenced {
            return;
        }
        let book = self.book();
        let last = book.moved_on.get(&(stay.run, stay.generation)).copied();
        let Some(later) = last.filter(|last| *last > stay.index) else {
            return;
        };
        let (process, other) = (&stay.process, book.stays[later].process.clone());
        let what = format!("{place} {does} in {process}, and a body has started in {other} since");
        drop(book);
        self.violate(Promise::OneOwnerPerRun, what);
    }
}
