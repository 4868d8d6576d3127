//! What a run and its workflow code share: the operations that are open, the history, and the
//! order in which completions are released.
//!
//! The order rule (ARCHITECTURE.md, "Order"): an operation resolves only when it is *offered* its
//! completion, one at a time, while the run is quiet. The number is given when the workflow takes
//! it. Replay offers exactly the recorded numbers. The one shortcut is in [`Core::finish_body`].
//!
//! Everything here happens on the engine thread that owns the run. No method calls out to user
//! code while the state is borrowed, except to decode a value.

use std::{
    cell::{Cell, OnceCell, RefCell},
    cmp::Reverse,
    collections::{BTreeSet, BinaryHeap, VecDeque},
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU32, Ordering},
    },
    task::Waker,
    time::Duration,
};

use super::{
    Halt,
    fork::Lineage,
    inbox::Inbox,
    owner::{Owner, Permit},
    wakers::{self, RootWaker},
};
use crate::{
    cancellation::Cancellation,
    codec::hook::is_sealed,
    commit::{Effect, EffectDone, KeyRange, Receipt},
    ctx::{
        emit::{Mark, StreamNames},
        rollback::Undo,
        sleep::When,
    },
    error::{Error, Failure, FailureKind},
    hash::{FastMap, FastSet},
    history::{
        AttemptError, ERRORS_KEPT, Entry, EntryKind, EntryStatus, EntryValue, History, Key, OpId,
        TakenMessage,
    },
    limit::LimitUse,
    location::{Location, keys},
    random,
    retry::Retry,
    run_id::{RunId, RunIds},
    sabotage::Sabotage,
    services::Services,
    settings::Settings,
    telemetry::{RunTelemetry, Watch},
    time::Timestamp,
    token::Secret,
};

mod transactions;

pub(crate) use transactions::PendingTransaction;

/// What is the same for all runs of an engine thread.
pub(crate) struct Env {
    pub(crate) settings: Arc<Settings>,
    pub(crate) services: Arc<Services>,
    /// Where blocking and spawned bodies run; none in tests that drive a run by hand.
    pub(crate) runtime: Option<tokio::runtime::Handle>,
    /// Set once the runtime has begun to shut down.
    pub(crate) runtime_gone: Arc<AtomicBool>,
    pub(crate) now: Cell<Timestamp>,
    /// The owner; none where a run is tried, or driven by hand.
    pub(crate) owner: Option<Arc<dyn Owner>>,
    /// Where ids come from without an owner.
    pub(crate) ids: RunIds,
    /// The epoch of the lease under which the run that is polled was taken into memory.
    pub(crate) epoch: Cell<u64>,
    /// How many children the run that is polled has started in this poll.
    pub(crate) children: Cell<usize>,
    /// A body did not start because the lease was over, or another one.
    pub(crate) stalled: Cell<bool>,
    /// What tokens are made with.
    pub(crate) secret: Secret,
}

/// How many of the children that a run starts at a time are placed in this process. The others are
/// spread over all processes, which may have more cores together.
const CHILDREN_HERE: usize = 64;

impl Env {
    /// Whether a body of the run that is polled may start. If not, [`stalled`](Env::stalled) is
    /// set.
    fn may_start(&self) -> bool {
        let may_start = self.may_go_on();
        if !may_start {
            self.stalled.set(true);
        }
        may_start
    }

    /// For a body of the run that is polled which runs on another thread, perhaps later.
    pub(crate) fn permit(&self) -> Permit {
        let lease = self.owner.clone().map(|owner| (owner, self.epoch.get()));
        Permit { lease }
    }

    /// Whether the body of the run that is polled may be polled: not after its lease.
    pub(crate) fn may_go_on(&self) -> bool {
        let epoch = self.epoch.get();
        let owner = self.owner.as_ref();
        owner.is_none_or(|it| it.lets_bodies_run(epoch))
    }

    /// Whether the engine shuts down.
    fn is_leaving(&self) -> bool {
        self.owner.as_ref().is_some_and(|owner| owner.is_leaving())
    }

    /// An id for a run that is started by one of these.
    pub(crate) fn new_run_id(&self, workflow: &str, version: u32, pool: &str) -> RunId {
        let now = self.now.get();
        let Some(owner) = &self.owner else {
            return self.ids.next(now);
        };
        let children = self.children.get();
        self.children.set(children + 1);
        if children < CHILDREN_HERE {
            owner.new_run_id(now, workflow, version, pool)
        } else {
            owner.any_run_id(now)
        }
    }

    /// Names the body that is about to be polled.
    pub(crate) fn name_body(&self, key: &[u8]) {
        if let Some(owner) = &self.owner {
            owner.name_body(key);
        }
    }

    /// Whether the runtime under a body that failed or panicked is shutting down: then its sockets
    /// and timers fail and its tasks are cancelled, though nothing was tried.
    pub(crate) fn runtime_is_gone(&self) -> bool {
        if !self.runtime_gone.load(Ordering::Acquire) && self.refuses_tasks() {
            self.runtime_gone.store(true, Ordering::Release);
        }
        self.runtime_gone.load(Ordering::Acquire)
    }

    /// A runtime that has begun to shut down cancels a new task before `spawn` returns. It does so
    /// before it cancels any other task or stops its drivers, so a body cannot fail before that.
    fn refuses_tasks(&self) -> bool {
        let Some(runtime) = &self.runtime else {
            return false;
        };
        #[allow(
            clippy::disallowed_methods,
            reason = "the task does nothing: whether the runtime takes it is all that counts"
        )]
        let probe = runtime.spawn(std::future::pending::<()>());
        let refused = probe.is_finished();
        probe.abort();
        refused
    }
}

/// What does not change while a run is in memory.
pub(crate) struct RunFacts {
    pub(crate) id: RunId,
    pub(crate) workflow: Arc<str>,
    pub(crate) version: u32,
    pub(crate) generation: u32,
    /// How often the run was tried as a whole, this one included.
    pub(crate) attempts: u32,
    pub(crate) created_at: Timestamp,
    pub(crate) deadline_at: Option<Timestamp>,
    /// The tick that has started it, if it was a schedule.
    pub(crate) scheduled_at: Option<Timestamp>,
    /// The trace that it belongs to, as it is stored.
    pub(crate) trace: Option<String>,
}

/// Shared by the driver of a run and its workflow code.
pub(crate) struct Core {
    pub(crate) facts: RunFacts,
    pub(crate) env: Rc<Env>,
    pub(crate) root: Arc<RootWaker>,
    pub(crate) state: RefCell<State>,
    /// What is told about it; nothing of a run that is only tried, or driven by hand.
    pub(crate) telemetry: OnceCell<RunTelemetry>,
    /// The operation whose body is being polled.
    pub(crate) polled_body: Cell<Option<OpId>>,
    /// The number of its life, once a body was given the right to emit: see [`Core::life`].
    pub(crate) life: Cell<Option<u32>>,
}

/// What a run is being polled for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Recorded numbers are offered; no body starts, nothing is written.
    Replay,
    /// New completions get new numbers.
    Live,
    /// As replay, but only to find the rollbacks: what does not fit is passed over.
    Collect,
}

pub(crate) struct OpState {
    pub(crate) key: Key,
    pub(crate) kind: EntryKind,
    /// The highest number that was taken when it was made.
    pub(crate) born: u64,
    created_at: Timestamp,
    waker: Option<Waker>,
    polled: bool,
    /// An offer was made and nobody polled it; it is offered again once it was polled.
    declined: bool,
    /// Whether it is in the list of completions to offer.
    queued: bool,
    pub(crate) phase: Phase,
    ephemeral: bool,
    compensable: bool,
    /// When the time of its body is over, or the grace after that.
    body_deadline: Option<Timestamp>,
    /// The time of its body was over once; it may have a grace.
    timed_out: bool,
    /// Tells its body to stop, if the body has asked for it.
    token: Option<Cancellation>,
    /// Its body was woken, and nobody has polled the operation since.
    lagging: bool,
    /// Whether it is in the list of bodies that wait to start.
    in_line: bool,
    started_at: Timestamp,
    listen: Option<Box<ListenSpec>>,
    /// The limit that its bodies are under.
    pub(super) limit: Option<Box<LimitUse>>,
}

/// How far an open operation is, in this process.
///
/// A step whose entry is not recorded goes through the phases in this order. "The code" is the
/// workflow function, "the driver" is [`Run`](super::Run).
///
/// 1. **Make.** `ctx.step(..)` claims its location: `Ctx::claim`, [`Core::claim`]. The step is `Idle`.
/// 2. **Activate.** The code polls the step: `StepCall::poll_step`, `RawStep::poll_ready`,
///    [`Core::turn`] answers [`Turn::Activate`] once replay is over, [`Core::activate_step`].
/// 3. **Want.** [`Core::want_start`] notes the revision that the body waits for: `WantStart`. If
///    [`Core::barrier`] is not durable yet, the step stands in line (`State::starters`).
/// 4. **Commit.** The poll ends (`Run::drive`, `Run::settle`), and the owner asks for a commit:
///    `Run::next_commit`, `must_flush`, `build` in `run/flush.rs`. The committer makes it durable.
/// 5. **Ack.** `Run::committed` raises `State::durable`.
/// 6. **Wake.** [`Core::wake_starters`] wakes the steps whose barrier is durable. They are polled
///    before anything is offered (`State::starting`).
/// 7. **Start.** [`Core::turn`] asks the lease (`Env::may_start`) and answers [`Turn::Start`];
///    `RawStep::start_body`, [`Core::start_body`]: `Body`. `RawStep::poll_body` polls the body, with a
///    waker of its own ([`wakers::body_waker`]).
/// 8. **Finish.** [`Core::finish_body`] records the result in the entry: `Ready`. A failed attempt
///    that is made again is `Waiting` instead, and comes back to 3 when [`Core::fire_timers`] finds it
///    due.
/// 9. **Offer.** When the run is quiet, `Run::offer_next` offers one completion: [`Core::next_offer`],
///    [`Core::make_offer`], which wakes the step. Not while a commit is in flight that bodies wait for
///    (`State::holds_offers`).
/// 10. **Take.** [`Core::turn`] answers [`Turn::Take`]; [`Core::take`] gives the completion its number
///     and the code its value: `Taken`. The entry is part of the next commit, for which the next body
///     waits as in 3. If the code does not poll the step, [`Core::withdraw_offer`] takes the offer
///     back.
///
/// A recorded completion goes from 1 to 9: `Run::replay_next` offers it by its number. The end of a
/// body may be taken in the poll in which it ends; [`Core::finish_body`] says when.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Phase {
    /// Made, and not active yet.
    Idle,
    /// Its body may start once this revision is durable, and what the code has taken by then: see
    /// [`Core::barrier`].
    WantStart { barrier: u64 },
    /// Its body is in flight.
    Body { recorded: bool },
    /// It waits for this time.
    Waiting { wake_at: Timestamp },
    /// It waits for a message.
    Listening { wake_at: Option<Timestamp> },
    /// It waits for an answer of its own.
    Awaiting { wake_at: Option<Timestamp> },
    /// It is ready once the next commit is made.
    Committing,
    /// It has a completion to offer.
    Ready,
    /// The workflow has it.
    Taken,
}

/// What a run continues as.
#[derive(Debug)]
pub(crate) struct Next {
    pub(crate) workflow: Arc<str>,
    pub(crate) version: u32,
    pub(crate) pool: Arc<str>,
    pub(crate) input: Vec<u8>,
}

/// What a listen waits for.
#[derive(Clone, Debug)]
pub(crate) struct ListenSpec {
    pub(crate) names: Vec<String>,
    pub(crate) batch: usize,
}

/// What an operation that is polled should do.
pub(crate) enum Turn {
    /// Nothing.
    Pending,
    /// Take the completion: it is being offered.
    Take,
    /// Become active: the run is live, and this is the first poll since.
    Activate,
    /// Start the body.
    Start,
    /// Poll the body.
    Body,
    /// Drop the body: its time ran out.
    TimedOut,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Timer {
    /// A sleep ends, a wait runs out, an attempt is due.
    Wake,
    /// A body has had its time.
    BodyTimeout,
    /// A body has run for so long that people should see it.
    Record,
}

/// A body runs this long before it is recorded as running.
const RECORD_AFTER: Duration = Duration::from_millis(100);
/// A suspect that was the recorded one when its owner died this often is paused.
const DEATHS_MAX: u32 = 10;

#[derive(Default)]
pub(crate) struct Ops {
    places: Vec<Option<OpState>>,
    lives: Vec<u32>,
    free: Vec<u32>,
    pub(crate) open: usize,
}

impl Ops {
    fn insert(&mut self, op: OpState) -> OpId {
        self.open += 1;
        if let Some(index) = self.free.pop() {
            self.places[index as usize] = Some(op);
            return OpId {
                index,
                life: self.lives[index as usize],
            };
        }
        let index = u32::try_from(self.places.len()).expect("fewer than 4 billion open operations");
        self.places.push(Some(op));
        self.lives.push(0);
        OpId { index, life: 0 }
    }

    pub(crate) fn get(&self, id: OpId) -> Option<&OpState> {
        if *self.lives.get(id.index as usize)? != id.life {
            return None;
        }
        self.places[id.index as usize].as_ref()
    }

    pub(crate) fn get_mut(&mut self, id: OpId) -> Option<&mut OpState> {
        if *self.lives.get(id.index as usize)? != id.life {
            return None;
        }
        self.places[id.index as usize].as_mut()
    }

    fn remove(&mut self, id: OpId) -> Option<OpState> {
        let op = self
            .get_mut(id)
            .is_some()
            .then(|| self.places[id.index as usize].take())??;
        self.lives[id.index as usize] = id.life.wrapping_add(1);
        self.free.push(id.index);
        self.open -= 1;
        Some(op)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpId, &OpState)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let op = place.as_ref()?;
            Some((
                OpId {
                    index: index as u32,
                    life: self.lives[index],
                },
                op,
            ))
        })
    }
}

pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) ops: Ops,
    pub(crate) history: History,
    /// The recorded completions that are still to be offered, by number.
    pub(crate) replay: VecDeque<(u64, Key)>,
    /// Whether what the code does besides operations is known to be durable already: true from
    /// loading a run that had made a commit until it is live.
    pub(crate) quiet_effects: bool,
    /// The highest number that was taken.
    pub(crate) taken: u64,
    /// The highest number that an operation has taken: below `taken` only while what comes right
    /// after it was removed from the code. What is made now was made somewhere in between.
    pub(crate) taken_by_code: u64,
    /// The recorded numbers whose operations were removed from the code.
    removed: FastSet<u64>,
    /// When the last completion that was taken had ended.
    taken_at: Timestamp,
    last_now: Timestamp,
    /// Of a fork: whose time and randomness it has in the part that it has from others.
    lineage: Option<Lineage>,
    available: VecDeque<OpId>,
    offer: Option<OpId>,
    /// Something was released in this poll.
    released: bool,
    /// This poll began quiet, so that a body that ends in it may hand its result over directly.
    pub(crate) direct: bool,
    /// Counts what must be durable before a body may start.
    pub(crate) revision: u64,
    /// The last revision that is not just the result of an ephemeral step.
    pub(crate) firm: u64,
    /// The revision of the last completion that the code has taken, and of the last one that is not
    /// the result of an ephemeral step.
    seen: u64,
    seen_firm: u64,
    pub(crate) durable: u64,
    /// The commit in flight carries all that some bodies wait for: nothing is offered before they
    /// have started, since that would have to be durable first as well.
    pub(crate) holds_offers: bool,
    /// Bodies that may start were woken and have not been polled yet.
    starting: bool,
    pub(crate) dirty: Vec<Key>,
    /// Whether people should see an entry that changes nothing else.
    pub(crate) show: bool,
    pub(crate) deletes: Vec<KeyRange>,
    pub(crate) inbox: Inbox,
    pub(crate) consumed: Vec<u64>,
    pub(crate) set_state: Vec<(String, Vec<u8>)>,
    pub(crate) effects: Vec<Effect>,
    /// The mark of the last item that the code has emitted, and of the last one that is stored.
    pub(crate) emit_mark: Mark,
    pub(crate) emitted: Mark,
    /// The streams that the run has; made when it is first asked for.
    pub(crate) stream_names: Option<Arc<StreamNames>>,
    /// Sends whose effect is in `effects`, in the same order.
    pub(crate) sends: Vec<OpId>,
    /// Transactions that go into the next commit.
    pub(crate) transactions: Vec<PendingTransaction>,
    /// Listens whose time has run out, if no message comes before that is committed.
    pub(crate) timeouts: Vec<OpId>,
    pub(crate) starters: Vec<OpId>,
    pub(crate) bodies: usize,
    timers: BinaryHeap<Reverse<(Timestamp, OpId, Timer)>>,
    pub(crate) halt: Option<Halt>,
    /// The generation that is to follow this one.
    pub(crate) continuing: Option<Next>,
    pub(crate) undo: FastMap<Key, Undo>,
    /// No body may start any more: shutdown, or a pause from outside.
    pub(crate) draining: bool,
    /// It was paused from outside: results are recorded, and the code takes none of them, since
    /// what it would do with them could not be written.
    pub(crate) leaving: bool,
    /// The run was recovered so often without progress that its bodies are recorded first.
    pub(crate) suspect: bool,
    pub(crate) entries: u64,
    /// The iterations whose start is recorded, in order, by the key of their loop.
    pub(crate) loops: FastMap<Vec<u8>, Vec<u64>>,
    /// The loops among them whose iterations are run again, for the rollbacks in them.
    pub(crate) reruns: FastSet<Vec<u8>>,
    /// Bodies that were woken since the run was last driven.
    woken: Vec<OpId>,
    warned_equal: bool,
    warned_lagging: FastSet<Key>,
}

impl State {
    /// Begins in the time of the first run of its line.
    pub(super) fn descend(&mut self, lineage: Lineage) {
        (self.taken_at, self.last_now) = (lineage.created_at, lineage.created_at);
        self.lineage = Some(lineage);
    }

    pub(crate) fn new(created_at: Timestamp) -> State {
        State {
            mode: Mode::Live,
            ops: Ops::default(),
            history: History::default(),
            replay: VecDeque::new(),
            quiet_effects: false,
            taken: 0,
            taken_by_code: 0,
            removed: FastSet::default(),
            taken_at: created_at,
            last_now: created_at,
            lineage: None,
            available: VecDeque::new(),
            offer: None,
            released: false,
            direct: false,
            revision: 0,
            firm: 0,
            seen: 0,
            seen_firm: 0,
            durable: 0,
            holds_offers: false,
            starting: false,
            dirty: Vec::new(),
            show: false,
            deletes: Vec::new(),
            inbox: Inbox::default(),
            consumed: Vec::new(),
            set_state: Vec::new(),
            effects: Vec::new(),
            emit_mark: Mark::default(),
            emitted: Mark::default(),
            stream_names: None,
            sends: Vec::new(),
            transactions: Vec::new(),
            timeouts: Vec::new(),
            starters: Vec::new(),
            bodies: 0,
            timers: BinaryHeap::new(),
            halt: None,
            continuing: None,
            undo: FastMap::default(),
            draining: false,
            leaving: false,
            suspect: false,
            entries: 0,
            loops: FastMap::default(),
            reruns: FastSet::default(),
            woken: Vec::new(),
            warned_equal: false,
            warned_lagging: FastSet::default(),
        }
    }

    /// Marks an entry for the next commit.
    pub(super) fn touch(&mut self, key: &Key) {
        let Some(slot) = self.history.get_mut(key) else {
            return;
        };
        if !slot.dirty {
            slot.dirty = true;
            self.dirty.push(key.clone());
        }
    }

    /// Notes a change that bodies must wait for.
    pub(super) fn advance(&mut self, ephemeral: bool) {
        self.revision += 1;
        if !ephemeral {
            self.firm = self.revision;
        }
    }

    /// Passes over the next recorded completions if their operations were removed from the code.
    fn pass_removed(&mut self) {
        while let Some((number, _)) = self.replay.front() {
            if !self.removed.remove(number) {
                return;
            }
            self.taken = *number;
            self.replay.pop_front();
        }
    }

    /// Notes that the code has taken a completion: bodies that start from now on may see it.
    fn note_seen(&mut self, ephemeral: bool) {
        self.advance(ephemeral);
        self.seen = self.revision;
        if !ephemeral {
            self.seen_firm = self.revision;
        }
    }

    /// Notes that a body waits to start.
    fn stand_in_line(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(id)
            && !std::mem::replace(&mut op.in_line, true)
        {
            self.starters.push(id);
        }
    }

    pub(super) fn make_available(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        if !op.queued {
            op.queued = true;
            op.declined = false;
            self.available.push_back(id);
        }
    }

    pub(super) fn arm(&mut self, at: Timestamp, id: OpId, timer: Timer) {
        self.timers.push(Reverse((at, id, timer)));
    }

    pub(crate) fn first_halt(&mut self, halt: Halt) {
        if self.halt.is_none() {
            self.halt = Some(halt);
        }
    }

    /// The first completion in order of arrival that somebody may want.
    fn next_available(&mut self) -> Option<(usize, OpId)> {
        let mut place = 0;
        while place < self.available.len() {
            let id = self.available[place];
            match self.ops.get_mut(id) {
                Some(op) if op.declined => place += 1,
                Some(op) => {
                    let gone = match op.phase {
                        Phase::Listening { .. } => op
                            .listen
                            .as_ref()
                            .is_some_and(|spec| !self.inbox.has(&spec.names)),
                        Phase::Awaiting { .. } => self.inbox.answer(&op.key).is_none(),
                        _ => false,
                    };
                    if !gone {
                        return Some((place, id));
                    }
                    op.queued = false;
                    self.available.remove(place);
                }
                None => _ = self.available.remove(place),
            }
        }
        None
    }
}

impl OpState {
    fn has_body(&self) -> bool {
        matches!(self.phase, Phase::Body { .. })
    }

    /// Whether the time of its body is over, and so is the grace if it has one.
    fn is_overdue(&self, now: Timestamp) -> bool {
        self.timed_out && self.body_deadline.is_none_or(|at| at <= now)
    }

    pub(super) fn entry(&self) -> Entry {
        Entry {
            kind: self.kind,
            status: EntryStatus::Running,
            number: None,
            born: self.born,
            compensable: self.compensable,
            attempts: 0,
            deaths: 0,
            created_at: self.created_at,
            started_at: None,
            completed_at: None,
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::None,
        }
    }
}

/// An operation that workflow code holds. Dropping it ends the operation.
pub(crate) struct Op {
    pub(crate) core: Rc<Core>,
    pub(crate) id: OpId,
}

impl Op {
    pub(crate) fn key(&self) -> Option<Key> {
        self.core.key_of(self.id)
    }
}

impl Drop for Op {
    fn drop(&mut self) {
        let mut st = self.core.state.borrow_mut();
        let Some(op) = st.ops.remove(self.id) else {
            return;
        };
        if matches!(op.phase, Phase::Body { .. }) {
            st.bodies -= 1;
        }
        if let Some(slot) = st.history.get_mut(&op.key) {
            slot.op = None;
        }
        if st.mode == Mode::Live {
            st.abandon(&op.key);
            if op.limit.is_some() {
                st.leave_limit(&op.key, op.phase);
            }
        }
    }
}

impl Core {
    pub(crate) fn now(&self) -> Timestamp {
        self.env.now.get()
    }

    pub(crate) fn halt(&self, halt: Halt) {
        self.state.borrow_mut().first_halt(halt);
    }

    /// Halts the run if one of its bodies is being polled, and says whether it is: a body does not run
    /// again on replay, so whatever it does with `ctx` besides reading would be missing there.
    pub(crate) fn refuses_in_body(&self, made: impl FnOnce() -> String) -> bool {
        let Some(body) = self.polled_body.get() else {
            return false;
        };
        let mut st = self.state.borrow_mut();
        let body = st.ops.get(body).map(|op| Core::location(&op.key));
        let body = body.unwrap_or_default();
        let made = made();
        st.first_halt(Halt::InsideBody { body, made });
        true
    }

    /// The same for what gives workflow code an error.
    pub(crate) fn check_outside_body(&self, made: impl FnOnce() -> String) -> Result<(), Error> {
        match self.refuses_in_body(made) {
            false => Ok(()),
            true => Err(Error::fatal("`ctx` is used inside of a body")),
        }
    }

    /// A body has used `ctx`: it does not go on, and nothing of this attempt is recorded.
    pub(crate) fn body_gave_up(&self, id: OpId) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else { return };
        st.bodies -= usize::from(matches!(op.phase, Phase::Body { .. }));
        // Nothing starts or resolves it any more.
        op.phase = Phase::Taken;
    }

    /// The key of an operation that is open.
    pub(crate) fn key_of(&self, id: OpId) -> Option<Key> {
        let st = self.state.borrow();
        st.ops.get(id).map(|op| op.key.clone())
    }

    /// Something that was sent at this time was taken from the inbox.
    pub(super) fn note_taken(&self, sent_at: Timestamp) {
        if let Some(telemetry) = self.telemetry.get() {
            telemetry.cells.message_taken(self.now().since(sent_at));
        }
    }

    /// What the entry of an operation says.
    pub(crate) fn status_of(&self, id: OpId) -> Option<EntryStatus> {
        let st = self.state.borrow();
        let slot = st.history.get(&st.ops.get(id)?.key)?;
        Some(slot.entry.status)
    }

    /// An attempt at the body of this operation has begun. Nothing is told of a run that is only
    /// tried.
    pub(crate) fn watch(&self, key: &[u8], kind: EntryKind, attempt: u32) -> Option<Watch> {
        let told = self.telemetry.get()?;
        Some(Watch::begin(told, key, kind, attempt))
    }

    /// The attempt has ended, and its entry says this.
    pub(crate) fn end_watch(&self, watch: Watch, status: EntryStatus) {
        if let Some(told) = self.telemetry.get() {
            watch.end(told, status);
        }
    }

    /// What to call this place in messages.
    pub(crate) fn location(key: &[u8]) -> String {
        keys::describe(key)
    }

    /// Makes an operation at this key, and checks it against the history.
    pub(crate) fn claim(self: &Rc<Self>, kind: EntryKind, key: Key) -> Op {
        // A race that is lost by another race may leave a rollback half done, which the outer one
        // then makes again: the one operation whose place can be claimed twice.
        self.claim_checked(kind, key, kind != EntryKind::Rollback)
    }

    /// Makes the boundary at the start of an iteration. One that is jumped to is made earlier than
    /// the first time.
    pub(crate) fn claim_boundary(self: &Rc<Self>, key: Key, in_turn: bool) -> Op {
        self.claim_checked(EntryKind::Iteration, key, in_turn)
    }

    fn claim_checked(self: &Rc<Self>, kind: EntryKind, key: Key, check_born: bool) -> Op {
        self.refuses_in_body(|| describe(kind, &key));
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let id = st.ops.insert(OpState {
            key: key.clone(),
            kind,
            born: st.taken,
            created_at: self.now(),
            waker: None,
            polled: false,
            declined: false,
            queued: false,
            phase: Phase::Idle,
            ephemeral: false,
            compensable: false,
            body_deadline: None,
            timed_out: false,
            token: None,
            lagging: false,
            in_line: false,
            started_at: Timestamp::default(),
            listen: None,
            limit: None,
        });
        let (mode, taken, earliest) = (st.mode, st.taken, st.taken_by_code);
        let Some(slot) = st.history.claim(&key, id) else {
            return Op {
                core: self.clone(),
                id,
            };
        };
        let recorded = &slot.entry;
        if mode == Mode::Collect {
            return Op {
                core: self.clone(),
                id,
            };
        }
        if recorded.kind != kind {
            let (recorded, code) = (recorded.kind, kind);
            st.first_halt(Halt::AnotherKind {
                at: Core::location(&key),
                recorded,
                code,
            });
        } else if check_born && !(earliest..=taken).contains(&recorded.born) {
            let recorded = recorded.born;
            let at = Core::location(&key);
            st.first_halt(Halt::Moved {
                at,
                recorded,
                code: taken,
            });
        }
        Op {
            core: self.clone(),
            id,
        }
    }

    /// Whether this operation is still open; asked when its name is used again.
    pub(crate) fn warn_if_open(&self, id: OpId, key: &[u8]) {
        let mut st = self.state.borrow_mut();
        let open = st.ops.get(id).is_some_and(|op| op.phase != Phase::Taken);
        if open && !std::mem::replace(&mut st.warned_equal, true) {
            tracing::warn!(
                run = %self.facts.id,
                operation = Core::location(key),
                "a name is used again while the operation that has it is still open; give \
                 concurrent branches names or scopes of their own"
            );
        }
    }

    /// What an operation should do now that it is polled.
    pub(crate) fn turn(&self, id: OpId, waker: &Waker) -> Turn {
        if self.polled_body.get().is_some() {
            self.refuse_poll(id);
            return Turn::Pending;
        }
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else {
            return Turn::Pending;
        };
        if !op.waker.as_ref().is_some_and(|old| old.will_wake(waker)) {
            op.waker = Some(waker.clone());
        }
        op.polled = true;
        op.declined = false;
        op.lagging = false;
        if st.offer == Some(id) {
            st.offer = None;
            st.released = true;
            op.queued = false;
            return Turn::Take;
        }
        if st.halt.is_some() {
            return Turn::Pending;
        }
        if op.phase == Phase::Ready && self.env.settings.breaks(Sabotage::AnyPoll) {
            return Turn::Take;
        }
        match op.phase {
            Phase::Idle if st.mode == Mode::Live => Turn::Activate,
            Phase::WantStart { .. } => {
                let is_durable = self.barrier(st, id) <= st.durable;
                if is_durable && !st.draining && self.env.may_start() {
                    return Turn::Start;
                }
                st.stand_in_line(id);
                Turn::Pending
            }
            Phase::Body { .. } if op.is_overdue(self.env.now.get()) => Turn::TimedOut,
            Phase::Body { .. } => Turn::Body,
            _ => Turn::Pending,
        }
    }

    /// Halts the run if an operation is polled inside of a body, and says whether it is. It may have
    /// been made outside: nothing would poll it on replay.
    pub(crate) fn refuse_poll(&self, id: OpId) -> bool {
        let Some((kind, key)) = self.polled_body.get().and_then(|_| {
            let st = self.state.borrow();
            st.ops.get(id).map(|op| (op.kind, op.key.clone()))
        }) else {
            return false;
        };
        self.refuses_in_body(|| describe(kind, &key))
    }

    /// A terminal entry that nobody has taken: the operation is ready as it is.
    pub(super) fn adopt_terminal(st: &mut State, id: OpId) -> bool {
        let Some(op) = st.ops.get_mut(id) else {
            return true;
        };
        let terminal = st
            .history
            .get(&op.key)
            .is_some_and(|slot| slot.entry.status.is_terminal());
        if terminal {
            op.phase = Phase::Ready;
            st.make_available(id);
        }
        terminal
    }

    /// A step becomes active: it has a result, waits for its next attempt, or wants to start.
    pub(crate) fn activate_step(&self, id: OpId, ephemeral: bool, limit: Option<Box<LimitUse>>) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if let Some(op) = st.ops.get_mut(id) {
            (op.ephemeral, op.limit) = (ephemeral, limit);
        }
        if Core::adopt_terminal(st, id) {
            // The place of a transaction is given back after its commit, and a crash came between.
            if let Some(key) = st.ops.get(id).map(|op| op.key.clone())
                && st.inbox.answer(&key).is_some()
            {
                st.give_back(&key);
            }
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        let entry = st.history.get(&op.key).map(|slot| &slot.entry);
        let wake_at = entry
            .filter(|e| e.status == EntryStatus::Waiting)
            .and_then(|e| e.wake_at);
        match wake_at {
            Some(wake_at) if wake_at > self.now() => {
                op.phase = Phase::Waiting { wake_at };
                st.arm(wake_at, id, Timer::Wake);
            }
            _ => self.want_body(st, id),
        }
    }

    /// An attempt is due: its body may start, or asks its limit first.
    fn want_body(&self, st: &mut State, id: OpId) {
        match st.ops.get(id).map(|op| op.limit.is_some()) {
            Some(true) => self.want_place(st, id),
            _ => self.want_start(st, id),
        }
    }

    pub(super) fn want_start(&self, st: &mut State, id: OpId) {
        if st.suspect {
            self.record_suspect(st, id);
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        let barrier = if op.ephemeral { st.firm } else { st.revision };
        op.phase = Phase::WantStart { barrier };
        if self.barrier(st, id) > st.durable || st.draining {
            st.stand_in_line(id);
        }
    }

    /// The revision that must be durable before the body of an operation may start: everything that
    /// had happened when it wanted to, and everything that the code has taken since. Another branch
    /// may have set what the body reads; if its result were lost in a crash, the body would have
    /// acted on what never happened.
    ///
    /// This does not starve a body: see [`State::holds_offers`].
    pub(crate) fn barrier(&self, st: &State, id: OpId) -> u64 {
        let Some(op) = st.ops.get(id) else { return 0 };
        let Phase::WantStart { barrier } = op.phase else {
            return 0;
        };
        let seen = if op.ephemeral { st.seen_firm } else { st.seen };
        if self.env.settings.breaks(Sabotage::NoBarrier) {
            0
        } else if self.env.settings.breaks(Sabotage::BarrierAtMaking) {
            barrier
        } else {
            barrier.max(seen)
        }
    }

    /// Whether the barrier is broken on purpose.
    fn has_broken_barrier(&self) -> bool {
        let settings = &self.env.settings;
        settings.breaks(Sabotage::NoBarrier) || settings.breaks(Sabotage::BarrierAtMaking)
    }

    /// Whether nothing is offered while the commit that is being made is in flight: see
    /// [`State::holds_offers`].
    pub(crate) fn must_hold_offers(&self, st: &State) -> bool {
        !st.draining && !self.has_broken_barrier() && self.waits_to_start(st)
    }

    /// Whether a body waits for more than is durable.
    pub(crate) fn waits_to_start(&self, st: &State) -> bool {
        let mut starters = st.starters.iter();
        starters.any(|id| self.barrier(st, *id) > st.durable)
    }

    /// Notes which body runs before it runs, so that the one that kills its owner is known.
    fn record_suspect(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get(id) else { return };
        let key = op.key.clone();
        if st.history.get(&key).is_none() {
            let entry = op.entry();
            st.history.insert(key.clone(), entry).op = Some(id);
            st.entries += 1;
        }
        let Some(slot) = st.history.get_mut(&key) else {
            return;
        };
        slot.entry.deaths += 1;
        slot.entry.status = EntryStatus::Running;
        slot.entry.started_at = Some(self.now());
        if slot.entry.deaths > DEATHS_MAX {
            let halt = Halt::CrashLoop {
                at: Core::location(&key),
                deaths: DEATHS_MAX,
            };
            st.first_halt(halt);
        }
        st.touch(&key);
        st.advance(false);
    }

    /// The body starts. Gives the number of the attempt.
    pub(crate) fn start_body(&self, id: OpId, timeout: Option<Duration>) -> u32 {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let now = self.now();
        let Some(op) = st.ops.get_mut(id) else {
            return 1;
        };
        op.phase = Phase::Body { recorded: false };
        op.started_at = now;
        op.timed_out = false;
        op.token = None;
        op.body_deadline = timeout.map(|timeout| now + timeout);
        st.bodies += 1;
        let attempts = st
            .history
            .get(&op.key)
            .map_or(0, |slot| slot.entry.attempts);
        attempts + 1
    }

    /// The body did not end in its first poll: from now on its time counts.
    pub(crate) fn body_pending(&self, id: OpId) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get(id) else { return };
        let (deadline, record_at) = (op.body_deadline, op.started_at + RECORD_AFTER);
        if let Some(deadline) = deadline {
            st.arm(deadline, id, Timer::BodyTimeout);
        }
        st.arm(record_at, id, Timer::Record);
    }

    /// The body in flight has asked for a token.
    pub(crate) fn keep_token(&self, id: OpId, token: Cancellation) {
        if let Some(op) = self.state.borrow_mut().ops.get_mut(id) {
            op.token = Some(token);
        }
    }

    /// Tells the bodies in flight that they should stop.
    pub(crate) fn tell_bodies(&self) {
        let tokens: Vec<Cancellation> = {
            let st = self.state.borrow();
            let bodies = st.ops.iter().filter(|(_, op)| op.has_body());
            bodies.filter_map(|(_, op)| op.token.clone()).collect()
        };
        tokens.iter().for_each(Cancellation::cancel);
    }

    /// Has the operations with bodies in flight polled.
    pub(crate) fn wake_bodies(&self) {
        let bodies: Vec<OpId> = {
            let st = self.state.borrow();
            let bodies = st.ops.iter().filter(|(_, op)| op.has_body());
            bodies.map(|(id, _)| id).collect()
        };
        bodies.into_iter().for_each(|id| self.wake(id));
    }

    /// The time of a body is over, and it was told: it may end by itself for a while.
    pub(crate) fn give_grace(&self, id: OpId) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else { return };
        let until = self.now() + self.env.settings.stop_grace;
        op.body_deadline = Some(until);
        st.arm(until, id, Timer::BodyTimeout);
    }

    /// The number that tells the items of a body from those of the same attempt in another life. A run
    /// has one for each stay in memory, and another after a body was abandoned.
    pub(crate) fn life(&self) -> u32 {
        static NEXT: AtomicU32 = AtomicU32::new(1);
        let life = self.life.get();
        let life = life.unwrap_or_else(|| NEXT.fetch_add(1, Ordering::Relaxed));
        self.life.set(Some(life));
        life
    }

    /// A body was dropped before its end, or has given up: the attempt is made again.
    pub(crate) fn abandon_body(&self, id: OpId) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id).filter(|op| op.has_body()) else {
            return;
        };
        op.token = None;
        st.bodies -= 1;
        // The attempt has the same number again, and readers must tell what it emits from what this
        // body has emitted.
        self.life.set(None);
        // The shutdown tells bodies before the engine thread hears of it: the next attempt is for the
        // next owner.
        st.draining |= self.env.is_leaving();
        // It has its place under a limit. It has not killed its owner, if it is a suspect.
        let suspect = std::mem::replace(&mut st.suspect, false);
        self.want_start(st, id);
        st.suspect = suspect;
    }

    /// A body has ended. Whether the operation may take its result at once: the shortcut of the
    /// order rule, for a body that ends in a poll which began quiet, in which nothing was
    /// released yet, and which is not its first.
    pub(crate) fn finish_body(
        &self,
        id: OpId,
        result: Result<Vec<u8>, Error>,
        policy: &Retry,
        first_poll: bool,
    ) -> bool {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let now = self.now();
        let Some(op) = st.ops.get_mut(id) else {
            return false;
        };
        let (key, ephemeral) = (op.key.clone(), op.ephemeral);
        // The body of a transaction is not one of these: it runs in the commit.
        st.bodies -= usize::from(matches!(op.phase, Phase::Body { .. }));
        op.phase = Phase::Ready;
        if st.history.get(&key).is_none() {
            let entry = op.entry();
            st.history.insert(key.clone(), entry).op = Some(id);
            st.entries += 1;
        }
        let (started_at, timed_out) = (op.started_at, op.timed_out);
        let limited = op.limit.is_some();
        let Some(slot) = st.history.get_mut(&key) else {
            return false;
        };
        let entry = &mut slot.entry;
        entry.attempts += 1;
        entry.compensable = op.compensable;
        entry.started_at = Some(started_at);
        entry.wake_at = None;
        let retry_at = match result {
            // What is sealed was measured before.
            Ok(bytes)
                if is_sealed(&bytes) || bytes.len() <= self.env.settings.payload_bytes_max =>
            {
                entry.status = EntryStatus::Completed;
                entry.completed_at = Some(now);
                entry.value = EntryValue::Payload(bytes);
                None
            }
            Ok(bytes) => {
                let limit = self.env.settings.payload_bytes_max;
                let failure = too_large(bytes.len(), limit);
                settle_failure(entry, &key, failure, EntryStatus::Failed, now);
                None
            }
            Err(error) => {
                let seed = random::hash(self.facts.id.no().0 as u64, &key);
                let deadline = self.facts.deadline_at;
                let advice = error.advice();
                let next = policy.next_attempt(entry.attempts, advice, now, deadline, seed);
                note_attempt(entry, &error, now);
                match next {
                    Some(at) => {
                        tracing::warn!(
                            run = %self.facts.id,
                            step = Core::location(&key),
                            attempt = entry.attempts,
                            retry_at = %at,
                            error = error.failure().full(),
                            "an attempt failed and is made again"
                        );
                        entry.status = EntryStatus::Waiting;
                        entry.wake_at = Some(at);
                    }
                    None => {
                        let status = match error.kind() {
                            FailureKind::TimedOut if timed_out => EntryStatus::TimedOut,
                            FailureKind::Fatal | FailureKind::Rollback | FailureKind::Limit => {
                                EntryStatus::Failed
                            }
                            _ => EntryStatus::Exhausted,
                        };
                        let mut failure = error.into_failure();
                        failure.seal_details(&self.env.settings.codecs);
                        settle_failure(entry, &key, failure, status, now);
                    }
                }
                next
            }
        };
        if limited {
            st.give_back(&key);
        }
        st.touch(&key);
        st.advance(ephemeral);
        st.suspect = false;
        let Some(op) = st.ops.get_mut(id) else {
            return false;
        };
        if let Some(wake_at) = retry_at {
            op.phase = Phase::Waiting { wake_at };
            st.arm(wake_at, id, Timer::Wake);
            return false;
        }
        let is_held = st.holds_offers || st.starting;
        let direct = st.direct && !first_poll && !st.released && !st.leaving && !is_held;
        let direct = direct || self.env.settings.breaks(Sabotage::AlwaysDirect);
        if direct {
            st.released = true;
            return true;
        }
        st.make_available(id);
        false
    }

    /// A sleep becomes active.
    pub(crate) fn activate_sleep(&self, id: OpId, until: Timestamp) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if Core::adopt_terminal(st, id) {
            return;
        }
        let wake_at = self.record_wait(st, id, Some(until)).unwrap_or(until);
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Waiting { wake_at };
        if wake_at <= self.now() {
            self.end_sleep(st, id);
        } else {
            st.arm(wake_at, id, Timer::Wake);
        }
    }

    /// Makes the entry of a wait, or finds it; gives its deadline.
    pub(super) fn record_wait(
        &self,
        st: &mut State,
        id: OpId,
        deadline: Option<Timestamp>,
    ) -> Option<Timestamp> {
        let op = st.ops.get(id)?;
        if let Some(slot) = st.history.get(&op.key) {
            return slot.entry.wake_at;
        }
        let mut entry = op.entry();
        entry.status = EntryStatus::Waiting;
        entry.wake_at = deadline;
        let key = op.key.clone();
        st.history.insert(key.clone(), entry).op = Some(id);
        st.entries += 1;
        st.touch(&key);
        st.show = true;
        deadline
    }

    fn end_sleep(&self, st: &mut State, id: OpId) {
        let now = self.now();
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Ready;
        let key = op.key.clone();
        if let Some(slot) = st.history.get_mut(&key) {
            slot.entry.status = EntryStatus::Completed;
            slot.entry.completed_at = Some(slot.entry.wake_at.map_or(now, |at| at.max(now)));
        }
        st.touch(&key);
        st.advance(false);
        st.make_available(id);
    }

    /// A listen becomes active.
    pub(crate) fn activate_listen(&self, id: OpId, spec: ListenSpec, until: Option<When>) {
        let until = until.map(|until| until.from(self.now()));
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if Core::adopt_terminal(st, id) {
            return;
        }
        let here = st.inbox.has(&spec.names);
        // A message that is there is taken without recording the wait for it.
        let wake_at = if here && until.is_none() {
            None
        } else {
            self.record_wait(st, id, until)
        };
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Listening { wake_at };
        op.listen = Some(Box::new(spec));
        if here {
            st.make_available(id);
        }
        if let Some(wake_at) = wake_at {
            st.arm(wake_at, id, Timer::Wake);
        }
    }

    /// A boundary between iterations is ready as soon as it is active; its value is the state.
    pub(crate) fn activate_boundary(&self, id: OpId, state: Vec<u8>, firm: bool) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        op.ephemeral = !firm;
        op.phase = Phase::Ready;
        let mut entry = op.entry();
        entry.status = EntryStatus::Completed;
        entry.completed_at = Some(self.now());
        entry.value = EntryValue::Payload(state);
        let key = op.key.clone();
        st.history.insert(key.clone(), entry).op = Some(id);
        st.entries += 1;
        st.touch(&key);
        st.advance(!firm);
        st.make_available(id);
    }

    /// A message to another run: its effect goes into the next commit, and it is ready after that.
    pub(crate) fn activate_send(&self, id: OpId, effect: impl FnOnce(Key, Entry) -> Effect) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Committing;
        let mut entry = op.entry();
        entry.status = EntryStatus::Completed;
        entry.completed_at = Some(self.now());
        let effect = effect(op.key.clone(), entry);
        st.entries += 1;
        st.effects.push(effect);
        st.sends.push(id);
        st.advance(false);
    }

    /// The commit with this send was made.
    pub(crate) fn effect_done(&self, id: OpId, done: &EffectDone) {
        match done {
            EffectDone::Sent(delivered) => {
                self.effect_gave(id, EntryValue::Receipt(delivered.receipt.code()));
            }
            EffectDone::Enqueued(enqueued) => {
                self.effect_gave(id, EntryValue::Item(enqueued.item));
            }
            // Of no effect, and told to the owner.
            EffectDone::PutAway => {}
            EffectDone::Started(started) => {
                let flags = u8::from(started.attached) | u8::from(started.input_differs) << 1;
                self.effect_gave(id, EntryValue::Started(started.id, flags));
            }
            EffectDone::Published(published) => {
                let receipt = match published.seq {
                    Some(_) => Receipt::Published,
                    None => Receipt::Duplicate,
                };
                self.effect_gave(id, EntryValue::Receipt(receipt.code()));
            }
        }
    }

    fn effect_gave(&self, id: OpId, value: EntryValue) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Ready;
        let mut entry = op.entry();
        entry.status = EntryStatus::Completed;
        entry.completed_at = Some(self.now());
        entry.value = value;
        let key = op.key.clone();
        st.history.insert(key, entry).op = Some(id);
        st.make_available(id);
    }

    /// The operation takes the completion that it was offered: it gets its number.
    ///
    /// `read` gets the entry; what it gives is handed to the workflow.
    pub(crate) fn take<T>(&self, id: OpId, read: impl FnOnce(&Entry) -> T) -> Option<T> {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let key = st.ops.get(id)?.key.clone();
        if st.mode == Mode::Live {
            self.consume(st, id);
        }
        let (ephemeral, live) = (st.ops.get(id)?.ephemeral, st.mode == Mode::Live);
        let number = match st.replay.front() {
            Some((number, recorded)) if !live => {
                debug_assert_eq!(
                    recorded, &key,
                    "only the next recorded completion is offered"
                );
                let number = *number;
                st.replay.pop_front();
                number
            }
            _ => st.taken + 1,
        };
        let slot = st.history.get_mut(&key)?;
        slot.entry.number = Some(number);
        if live {
            // The time that workflow code sees must follow from this entry alone: those before it
            // may belong to iterations that are gone when it is replayed.
            slot.entry.completed_at = slot.entry.completed_at.max(Some(st.taken_at));
        }
        let completed_at = slot.entry.completed_at;
        let value = read(&slot.entry);
        (st.taken, st.taken_by_code) = (number, number);
        if let Some(at) = completed_at {
            st.taken_at = st.taken_at.max(at);
        }
        if live {
            st.touch(&key);
            st.note_seen(ephemeral);
        } else {
            // Replayed and handed out: only what must be found again stays in memory.
            self.forget_if_done(st, &key);
            st.pass_removed();
        }
        if let Some(op) = st.ops.get_mut(id) {
            op.phase = Phase::Taken;
        }
        Some(value)
    }

    /// A listen that takes its messages removes them from the inbox.
    fn consume(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get_mut(id) else { return };
        match op.phase {
            Phase::Listening { .. } => {}
            Phase::Awaiting { .. } => return self.consume_answer(st, id),
            _ => return,
        }
        let Some(spec) = op.listen.take() else { return };
        let messages = st.inbox.take(&spec.names, spec.batch);
        for message in &messages {
            self.note_taken(message.sent_at);
        }
        let key = op.key.clone();
        if st.history.get(&key).is_none() {
            let entry = op.entry();
            st.history.insert(key.clone(), entry).op = Some(id);
            st.entries += 1;
        }
        st.consumed
            .extend(messages.iter().map(|message| message.seq));
        let taken = messages.into_iter().map(|message| TakenMessage {
            seq: message.seq,
            name: message.name,
            body: message.body,
            request: message.request,
            sent_at: message.sent_at,
        });
        let Some(slot) = st.history.get_mut(&key) else {
            return;
        };
        slot.entry.status = EntryStatus::Completed;
        slot.entry.completed_at = Some(self.now());
        slot.entry.wake_at = None;
        slot.entry.value = EntryValue::Messages(taken.collect());
    }

    /// How many completed steps would have to be rolled back if the run failed now.
    pub(crate) fn open_compensations(&self) -> usize {
        super::load::to_compensate(&self.state.borrow().history).count()
    }

    /// The run continues as a new one, once it is quiet.
    pub(crate) fn continue_as(&self, next: Next) {
        self.state.borrow_mut().continuing.get_or_insert(next);
    }

    /// Makes the entry of an operation that only gives structure to others.
    pub(crate) fn open_structure(&self, id: OpId) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get(id) else { return };
        if st.mode == Mode::Collect || st.history.get(&op.key).is_some() {
            return;
        }
        let (key, entry) = (op.key.clone(), op.entry());
        st.history.insert(key.clone(), entry).op = Some(id);
        st.entries += 1;
        st.touch(&key);
    }

    /// Notes how an operation that only gives structure has ended.
    pub(crate) fn close_structure(&self, id: OpId, failed: bool) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Taken;
        let status = if failed {
            EntryStatus::Failed
        } else {
            EntryStatus::Completed
        };
        let (key, mut entry) = (op.key.clone(), op.entry());
        if st.mode != Mode::Live {
            return;
        }
        if let Some(slot) = st.history.get(&key) {
            if slot.entry.status == status {
                return;
            }
            entry.created_at = slot.entry.created_at;
        }
        entry.status = status;
        entry.completed_at = Some(self.now());
        let dirty = st.history.get(&key).is_some_and(|slot| slot.dirty);
        let slot = st.history.insert(key.clone(), entry);
        slot.dirty = dirty;
        slot.op = Some(id);
        st.touch(&key);
    }

    /// Keeps the rollback of a step that has one.
    pub(crate) fn keep_undo(&self, id: OpId, undo: Undo) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get_mut(id) else { return };
        op.compensable = true;
        let key = op.key.clone();
        st.undo.insert(key, undo);
    }

    /// Whether replay runs the iterations of a loop that are left, instead of jumping to the last.
    pub(crate) fn reruns(&self, loop_key: &[u8]) -> bool {
        let st = self.state.borrow();
        match st.mode {
            Mode::Collect => true,
            Mode::Replay => st.reruns.contains(loop_key),
            Mode::Live => false,
        }
    }

    /// Whether anything is recorded at or below this key.
    pub(crate) fn has_entries(&self, key: &[u8]) -> bool {
        let st = self.state.borrow();
        st.history
            .iter()
            .any(|(other, _)| keys::is_under(other, key))
    }

    /// The iterations of a loop whose start is recorded, in order.
    pub(crate) fn recorded_iterations(&self, loop_key: &[u8]) -> Vec<u64> {
        let st = self.state.borrow();
        if st.mode == Mode::Live {
            return Vec::new();
        }
        st.loops.get(loop_key).cloned().unwrap_or_default()
    }

    /// Deletes the iterations `from..end` of a loop, except those in which a step with a rollback
    /// has completed: to find the rollback again, the whole iteration is needed.
    pub(crate) fn trim_iterations(&self, loop_key: &[u8], name: &str, from: u64, end: u64) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if st.mode != Mode::Live {
            return;
        }
        let iteration = |key: &[u8]| {
            let mut path = keys::loop_iterations_of(key);
            path.find(|(len, _)| *len == loop_key.len() && key.starts_with(loop_key))
                .map(|(_, n)| n)
        };
        let mut kept = BTreeSet::new();
        let mut gone = Vec::new();
        for (key, slot) in st.history.iter() {
            let Some(n) = iteration(key).filter(|n| (from..end).contains(n)) else {
                continue;
            };
            if slot.entry.compensable {
                kept.insert(n);
            } else {
                gone.push((n, key.clone()));
            }
        }
        for (_, key) in gone.into_iter().filter(|(n, _)| !kept.contains(n)) {
            st.history.remove(&key);
        }
        let mut start = from;
        for n in kept.into_iter().chain([end]) {
            if n > start {
                st.deletes.push(keys::iterations(loop_key, name, start, n));
            }
            start = n + 1;
        }
    }

    /// Iterations that are kept for their rollbacks cannot pile up without end.
    pub(crate) fn check_kept_rollbacks(&self, loop_key: &[u8]) -> Result<(), Error> {
        let limit = self.env.settings.kept_rollbacks_max;
        let st = self.state.borrow();
        if st.undo.len() <= limit {
            return Ok(());
        }
        let text = format!(
            "the loop `{}` keeps {} steps with rollbacks, and the limit is {limit}; do the work \
             that must be rolled back in runs of its own, or raise `kept_rollbacks_max`",
            Core::location(loop_key),
            st.undo.len()
        );
        Err(Error::recorded(
            Failure::new(FailureKind::Limit, text),
            Vec::new(),
        ))
    }

    /// Gives a body its time again, counted from now. False if it has no limit.
    pub(crate) fn prolong_body(&self, id: OpId, timeout: Option<Duration>) -> bool {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let (Some(op), Some(timeout)) = (st.ops.get_mut(id), timeout) else {
            return false;
        };
        let deadline = self.now() + timeout;
        op.timed_out = false;
        op.body_deadline = Some(deadline);
        st.arm(deadline, id, Timer::BodyTimeout);
        true
    }

    /// A rollback that has failed for good is tried from the start when the run is resumed.
    pub(crate) fn reset_failed_rollback(&self, key: &[u8]) {
        let mut st = self.state.borrow_mut();
        if st.mode != Mode::Live {
            return;
        }
        if let Some(slot) = st.history.get_mut(key) {
            let entry = &mut slot.entry;
            // One that waits for its next attempt goes on with that: a crash resets no budget.
            if entry.status.is_terminal() && entry.status != EntryStatus::Completed {
                entry.status = EntryStatus::Running;
                entry.number = None;
                entry.attempts = 0;
                entry.wake_at = None;
                entry.value = EntryValue::None;
            }
        }
    }

    /// The version that a gate gives here: see [`crate::Ctx::version`].
    pub(crate) fn gate(&self, id: OpId, scope: &[u8], latest: u32) -> u32 {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let Some(op) = st.ops.get(id) else {
            return latest;
        };
        let (key, mut entry) = (op.key.clone(), op.entry());
        if let Some(slot) = st.history.get(&key)
            && let EntryValue::Version(version) = slot.entry.value
        {
            return version;
        }
        let old = st.history.any_unclaimed(scope).is_some();
        let version = if old { 1 } else { latest };
        if st.mode != Mode::Collect {
            entry.status = EntryStatus::Completed;
            entry.completed_at = Some(self.now());
            entry.value = EntryValue::Version(version);
            st.history.insert(key.clone(), entry);
            st.entries += 1;
            st.touch(&key);
        }
        version
    }

    /// An operation that the code no longer makes: whatever is recorded at or below the key is
    /// passed over.
    pub(crate) fn mark_removed(&self, key: &Key, kind: EntryKind) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        if let Some(slot) = st.history.get(key) {
            let recorded = slot.entry.kind;
            if recorded != kind && recorded != EntryKind::Removed {
                let at = Core::location(key);
                st.first_halt(Halt::AnotherKind {
                    at,
                    recorded,
                    code: kind,
                });
                return;
            }
        }
        st.history.claim_subtree(key);
        let numbers = st
            .replay
            .iter()
            .filter(|(_, next)| keys::is_under(next, key));
        st.removed.extend(numbers.map(|(number, _)| *number));
        st.pass_removed();
    }

    /// The time, as workflow code may see it.
    pub(crate) fn workflow_now(&self) -> Timestamp {
        let mut st = self.state.borrow_mut();
        st.last_now = st.last_now.max(st.taken_at);
        st.last_now
    }

    /// The run whose randomness the code has now.
    pub(crate) fn identity(&self) -> RunId {
        let st = self.state.borrow();
        let inherited = st.lineage.as_ref().and_then(|line| line.identity(st.taken));
        inherited.unwrap_or(self.facts.id)
    }

    /// Wakes an operation on behalf of the engine.
    pub(crate) fn wake(&self, id: OpId) {
        let waker = self
            .state
            .borrow()
            .ops
            .get(id)
            .and_then(|op| op.waker.clone());
        if let Some(waker) = waker {
            let _resolving = wakers::resolving(self.root.run());
            waker.wake();
        }
    }

    /// A body wants to be polled. False if there is no such body any more.
    pub(crate) fn body_woken(&self, id: OpId) -> bool {
        {
            let mut st = self.state.borrow_mut();
            let Some(op) = st.ops.get_mut(id) else {
                return false;
            };
            if !matches!(op.phase, Phase::Body { .. }) {
                return false;
            }
            op.lagging = true;
            st.direct = true;
            st.woken.push(id);
        }
        self.wake(id);
        true
    }

    pub(crate) fn begin_poll(&self) {
        self.state.borrow_mut().released = false;
    }

    pub(crate) fn end_poll(&self) {
        self.state.borrow_mut().direct = false;
    }

    /// Sets the offer and wakes its operation. The caller polls the run until it is quiet, then
    /// asks [`offer_taken`](Core::offer_taken).
    pub(crate) fn make_offer(&self, id: OpId) {
        self.state.borrow_mut().offer = Some(id);
        self.wake(id);
    }

    pub(crate) fn offer_taken(&self) -> bool {
        self.state.borrow_mut().offer.take().is_none()
    }

    /// The next completion to offer, removed from the list.
    pub(crate) fn next_offer(&self) -> Option<(usize, OpId)> {
        let mut st = self.state.borrow_mut();
        let (place, id) = st.next_available()?;
        st.available.remove(place);
        Some((place, id))
    }

    /// Puts back an offer that nobody took, until its operation is polled again.
    pub(crate) fn withdraw_offer(&self, place: usize, id: OpId) {
        let mut st = self.state.borrow_mut();
        if let Some(op) = st.ops.get_mut(id) {
            op.declined = true;
            let place = place.min(st.available.len());
            st.available.insert(place, id);
        }
    }

    /// All recorded numbers are released: from now on completions are new.
    pub(crate) fn go_live(&self) {
        let idle: Vec<OpId> = {
            let mut st = self.state.borrow_mut();
            st.mode = Mode::Live;
            st.quiet_effects = false;
            st.replay.clear();
            let idle = st
                .ops
                .iter()
                .filter(|(_, op)| op.polled && op.phase == Phase::Idle);
            idle.map(|(id, _)| id).collect()
        };
        for id in idle {
            self.wake(id);
        }
    }

    /// New messages, in order.
    pub(crate) fn deliver(&self, rows: Vec<crate::commit::InboxRow>) {
        for id in self.receive(rows) {
            self.wake(id);
        }
    }

    /// Puts new messages where they are looked for. Gives the operations that are to be woken.
    fn receive(&self, rows: Vec<crate::commit::InboxRow>) -> Vec<OpId> {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        let mut names = BTreeSet::new();
        let mut answers = Vec::new();
        for row in rows {
            if !st.inbox.push(&row) {
                continue;
            }
            if row.wait.is_some() {
                answers.push(row);
            } else {
                names.insert(row.name);
            }
        }
        let woken = self.answers_came(st, &answers);
        if names.is_empty() {
            return woken;
        }
        let listening = st.ops.iter().filter(|(_, op)| {
            matches!(op.phase, Phase::Listening { .. } | Phase::Committing)
                && op.listen.as_ref().is_some_and(|s| {
                    s.names.is_empty() || s.names.iter().any(|n| names.contains(n))
                })
        });
        let mut ids: Vec<_> = listening
            .map(|(id, op)| (op.born, op.key.clone(), id))
            .collect();
        ids.sort();
        for (_, _, id) in ids {
            if let Some(op) = st.ops.get(id)
                && matches!(op.phase, Phase::Listening { .. })
            {
                st.make_available(id);
            }
        }
        woken
    }

    /// Does what is due by now.
    pub(crate) fn fire_timers(&self) {
        let now = self.now();
        let mut wake = Vec::new();
        {
            let mut st = self.state.borrow_mut();
            let st = &mut *st;
            while let Some(Reverse((at, id, timer))) = st.timers.peek().copied() {
                if at > now {
                    break;
                }
                st.timers.pop();
                if self.fire(st, at, id, timer) {
                    wake.push(id);
                }
            }
        }
        for id in wake {
            self.wake(id);
        }
    }

    /// Does what one timer is for; whether its operation is to be woken.
    fn fire(&self, st: &mut State, at: Timestamp, id: OpId, timer: Timer) -> bool {
        let Some(op) = st.ops.get_mut(id) else {
            return false;
        };
        match (timer, op.phase) {
            (Timer::Wake, Phase::Waiting { wake_at }) if wake_at == at => {
                match op.kind {
                    EntryKind::Sleep => self.end_sleep(st, id),
                    EntryKind::Limit => self.turn_came(st, id),
                    _ => {
                        self.want_body(st, id);
                        return true;
                    }
                }
                false
            }
            (
                Timer::Wake,
                Phase::Listening {
                    wake_at: Some(wake_at),
                },
            ) if wake_at == at => {
                // A message that is there wins; it has been offered or will be.
                if op
                    .listen
                    .as_ref()
                    .is_some_and(|spec| st.inbox.has(&spec.names))
                {
                    return false;
                }
                op.phase = Phase::Committing;
                st.timeouts.push(id);
                false
            }
            (
                Timer::Wake,
                Phase::Awaiting {
                    wake_at: Some(wake_at),
                },
            ) if wake_at == at => {
                if st.inbox.answer(&op.key).is_none() {
                    op.phase = Phase::Committing;
                    st.timeouts.push(id);
                }
                false
            }
            (Timer::BodyTimeout, Phase::Body { .. }) if op.body_deadline == Some(at) => {
                op.timed_out = true;
                st.direct = true;
                true
            }
            (Timer::Record, Phase::Body { recorded: false }) => {
                op.phase = Phase::Body { recorded: true };
                self.record_running(st, id);
                false
            }
            _ => false,
        }
    }

    fn record_running(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get(id) else { return };
        let (key, started_at) = (op.key.clone(), op.started_at);
        if st.history.get(&key).is_none() {
            let entry = op.entry();
            st.history.insert(key.clone(), entry).op = Some(id);
            st.entries += 1;
        }
        if let Some(slot) = st.history.get_mut(&key) {
            slot.entry.status = EntryStatus::Running;
            slot.entry.started_at = Some(started_at);
        }
        st.touch(&key);
        st.show = true;
    }

    /// When something is due next, as far as operations go.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        // Timers of operations that are gone would wake the run for nothing.
        while let Some(Reverse((at, id, timer))) = st.timers.peek() {
            let Some(op) = st.ops.get(*id) else {
                st.timers.pop();
                continue;
            };
            let alive = match (timer, op.phase) {
                (Timer::Wake, Phase::Waiting { wake_at }) => wake_at == *at,
                (Timer::Wake, Phase::Listening { wake_at } | Phase::Awaiting { wake_at }) => {
                    wake_at == Some(*at)
                }
                (Timer::BodyTimeout, Phase::Body { .. }) => op.body_deadline == Some(*at),
                (Timer::Record, Phase::Body { recorded }) => !recorded,
                _ => false,
            };
            if alive {
                return Some(*at);
            }
            st.timers.pop();
        }
        None
    }

    /// The commit with these timeouts was made: they stand.
    pub(crate) fn timeouts_done(&self, ids: &[OpId]) {
        let mut st = self.state.borrow_mut();
        for id in ids {
            if let Some(op) = st.ops.get_mut(*id) {
                op.phase = Phase::Ready;
                st.make_available(*id);
            }
        }
    }

    /// The commit with these timeouts was refused: a message came. Each waits on, and runs out
    /// again at once if the message was for somebody else.
    pub(crate) fn timeouts_refused(&self, ids: &[OpId]) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        for id in ids {
            let Some(op) = st.ops.get_mut(*id) else {
                continue;
            };
            let key = op.key.clone();
            let wake_at = match st.history.get_mut(&key) {
                Some(slot) => {
                    slot.entry.status = EntryStatus::Waiting;
                    slot.entry.completed_at = None;
                    slot.entry.wake_at
                }
                None => None,
            };
            // What was refused is sent again, and must not say any more that the time ran out.
            st.touch(&key);
            let Some(op) = st.ops.get_mut(*id) else {
                continue;
            };
            if op.kind.answered_by().is_some() {
                self.await_answer(st, *id, wake_at);
                continue;
            }
            op.phase = Phase::Listening { wake_at };
            let here = op
                .listen
                .as_ref()
                .is_some_and(|spec| st.inbox.has(&spec.names));
            if here {
                st.make_available(*id);
            }
            if let Some(at) = wake_at {
                st.arm(at, *id, Timer::Wake);
            }
        }
    }

    /// Wakes the operations whose bodies may start now.
    pub(crate) fn wake_starters(&self) {
        let ready: Vec<OpId> = {
            let mut st = self.state.borrow_mut();
            let st = &mut *st;
            if st.draining {
                return;
            }
            let mut ready = Vec::new();
            for id in std::mem::take(&mut st.starters) {
                if self.barrier(st, id) > st.durable {
                    st.starters.push(id);
                } else if let Some(op) = st.ops.get_mut(id) {
                    op.in_line = false;
                    if matches!(op.phase, Phase::WantStart { .. }) {
                        ready.push(id);
                    }
                }
            }
            st.starting |= !ready.is_empty() && !self.has_broken_barrier();
            ready
        };
        for id in ready {
            self.wake(id);
        }
    }

    /// The bodies that could start have been polled.
    pub(crate) fn starts_polled(&self) {
        self.state.borrow_mut().starting = false;
    }

    /// Bodies may start again.
    pub(crate) fn go_on(&self) {
        self.state.borrow_mut().draining = false;
        self.wake_starters();
    }

    /// Names the bodies that were woken while nobody polls their operations.
    pub(crate) fn note_lagging(&self) {
        let mut st = self.state.borrow_mut();
        let st = &mut *st;
        for id in st.woken.drain(..) {
            let Some(op) = st.ops.get(id).filter(|op| op.lagging) else {
                continue;
            };
            if st.warned_lagging.insert(op.key.clone()) {
                tracing::warn!(
                    run = %self.facts.id,
                    step = Core::location(&op.key),
                    "a body is ready to go on, but the workflow is not polling its operation; it \
                     moves only while something awaits it"
                );
            }
        }
    }

    /// Drops an entry that was taken and needs no write, unless it has a rollback, or is one: a
    /// step that was compensated must not be compensated again when the run fails later.
    pub(crate) fn forget_if_done(&self, st: &mut State, key: &[u8]) {
        let done = st.history.get(key).is_some_and(|slot| {
            let entry = &slot.entry;
            let structure = matches!(
                entry.kind,
                EntryKind::Join
                    | EntryKind::Map
                    | EntryKind::Race
                    | EntryKind::Attempt
                    | EntryKind::Repeat
            );
            // A rollback must be remembered, so that nothing is compensated twice.
            let rollback = entry.kind == EntryKind::Rollback;
            let rollback = rollback && !self.env.settings.breaks(Sabotage::ForgetRollbacks);
            !slot.dirty
                && slot.claimed
                && !entry.compensable
                && !rollback
                && entry.status.is_terminal()
                && (entry.number.is_some() || structure || entry.kind == EntryKind::Version)
        });
        if done {
            st.history.remove(key);
        }
    }
}

impl State {
    pub(crate) fn has_undeclined(&self) -> bool {
        let open = |id: &&OpId| self.ops.get(**id).is_some_and(|op| !op.declined);
        self.available.iter().any(|id| open(&id))
    }
}

/// An operation in a message.
fn describe(kind: EntryKind, key: &[u8]) -> String {
    format!("{kind:?} `{}`", Core::location(key))
}

fn too_large(actual: usize, limit: usize) -> Failure {
    Failure::new(
        FailureKind::Limit,
        format!(
            "the result has {actual} bytes, and the limit for a payload is {limit}; store it \
             elsewhere and return where it is, or raise `payload_bytes_max`"
        ),
    )
}

fn note_attempt(entry: &mut Entry, error: &Error, now: Timestamp) {
    if entry.errors.len() == ERRORS_KEPT {
        entry.errors.remove(0);
    }
    let message = error.failure().full();
    entry.errors.push(AttemptError {
        attempt: entry.attempts,
        at: now,
        message,
    });
}

/// Makes a failure final, with where it happened and after how many attempts.
fn settle_failure(
    entry: &mut Entry,
    key: &[u8],
    mut failure: Failure,
    status: EntryStatus,
    now: Timestamp,
) {
    if status == EntryStatus::Exhausted {
        failure.kind = FailureKind::Exhausted;
    }
    failure.attempts = entry.attempts;
    failure.location = Location::from_key(key).ok();
    entry.status = status;
    entry.completed_at = Some(now);
    entry.value = EntryValue::Failure(Box::new(failure));
}
