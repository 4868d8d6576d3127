//! What a run and its workflow code share: the operations that are open, the history, and the
//! order in which completions are released.
//!
//! An operation is claimed here and asks for its [`Turn`]. What it may do then is in `core/`:
//! [`bodies`] of steps, [`timers`], [`messages`], [`transactions`], and the [`structure`] of
//! composites and loops. [`offers`] has the order rule. `run/waits.rs` and `run/limits.rs` are about
//! answers and limits.
//!
//! Everything here happens on the engine thread that owns the run. No method calls out to user
//! code while the state is borrowed, except to decode a value.

use std::{
    cell::{Cell, OnceCell, RefCell},
    cmp::Reverse,
    collections::{BinaryHeap, VecDeque},
    rc::Rc,
    sync::Arc,
    task::Waker,
};

use super::{
    Halt,
    fork::Lineage,
    inbox::Inbox,
    wakers::{self, RootWaker},
};
use crate::{
    cancellation::Cancellation,
    commit::{Effect, KeyRange},
    ctx::{
        emit::{Mark, RunStreams},
        rollback::Undo,
    },
    error::Error,
    hash::{FastMap, FastSet},
    history::{Entry, EntryKind, EntryStatus, EntryValue, History, Key, OpId, Slot},
    limit::LimitUse,
    location::keys,
    run_id::RunId,
    sabotage::Sabotage,
    telemetry::{RunTelemetry, Watch},
    time::Timestamp,
};

mod bodies;
mod env;
mod messages;
mod offers;
mod structure;
mod timers;
mod transactions;

pub(crate) use env::Env;
pub(crate) use timers::Timer;
pub(crate) use transactions::PendingTransaction;

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
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Mode {
    /// Recorded numbers are offered; no body starts, nothing is written.
    Replay,
    /// New completions get new numbers.
    #[default]
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
/// 1. **Make.** `ctx.step(..)` claims its location: `Ctx::claim` (`ctx.rs`), [`Core::claim`]. The step
///    is `Idle`.
/// 2. **Activate.** The code polls the step: `StepCall::poll_step`, `RawStep::poll_ready`
///    (`ctx/step.rs`). [`Core::turn`] answers [`Turn::Activate`] once replay is over;
///    [`Core::activate_step`] ([`bodies`]).
/// 3. **Want.** `Core::want_body` ([`bodies`]). A step under a limit asks for its place first
///    (`Core::want_place` in `run/limits.rs`), and goes on here with the answer. [`Core::want_start`]
///    notes the revision that the body waits for: `WantStart`. If [`Core::barrier`] is not durable
///    yet, the step stands in line (`State::starters`).
/// 4. **Commit.** The poll ends (`Run::settle`, `Run::drive` in `run.rs`), and the engine thread asks
///    for a commit: `Run::next_commit`, `moving_commit`, `must_flush`, `build` (`run/flush.rs`). The
///    thread makes it durable itself (`commit_here` in `engine/committer.rs`) or hands it over
///    (`push_all`) to the committer, which divides a large batch between its connections
///    (`engine/lanes.rs`) and makes each part durable (`commit`). Either way: `store_commit`,
///    `Store::commit`, `store::rows::apply`.
/// 5. **Ack.** `committed` (`engine/committer.rs`) and `dispatch` (`engine/dispatch.rs`) put the answer
///    into the mailbox of the thread. `acked` (`engine/thread.rs`) gives it to `Run::committed`
///    (`run/flush.rs`), which raises `State::durable`.
/// 6. **Wake.** [`Core::wake_starters`] ([`bodies`]) wakes the steps whose barrier is durable. They are
///    polled before anything is offered (`State::starting`).
/// 7. **Start.** [`Core::turn`] asks the lease (`Env::may_start`) and answers [`Turn::Start`];
///    `RawStep::start_body`, [`Core::start_body`]: `Body`. `RawStep::poll_body` polls the body, with a
///    waker of its own ([`wakers::body_waker`]).
/// 8. **Finish.** [`Core::finish_body`] ([`bodies`]) records the result in the entry: `Ready`. A failed
///    attempt that is made again is `Waiting` instead, and comes back to 3 when [`Core::fire_timers`]
///    ([`timers`]) finds it due.
/// 9. **Offer.** When the run is quiet, `Run::offer_next` (`run.rs`) offers one completion:
///    [`Core::next_offer`], [`Core::make_offer`] ([`offers`]), which wakes the step. It waits while
///    a commit is in flight that bodies wait for (`State::holds_offers`), and until the bodies that may
///    start were polled (`State::starting`).
/// 10. **Take.** [`Core::turn`] answers [`Turn::Take`]; [`Core::take`] ([`offers`]) gives the completion
///     its number and the code its value: `Taken`. The entry is part of the next commit, for which the
///     next body waits as in 3. If the code does not poll the step, [`Core::withdraw_offer`] takes the
///     offer back.
///
/// A recorded completion goes from 1 to 9: `Run::replay_next` (`run.rs`) offers it by its number. The
/// end of a body may be taken in the poll in which it ends; [`Core::finish_body`] says when.
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
            return OpId { index, life: self.lives[index as usize] };
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
        let op = self.get_mut(id).is_some().then(|| self.places[id.index as usize].take())??;
        self.lives[id.index as usize] = id.life.wrapping_add(1);
        self.free.push(id.index);
        self.open -= 1;
        Some(op)
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (OpId, &OpState)> {
        self.places.iter().enumerate().filter_map(|(index, place)| {
            let op = place.as_ref()?;
            Some((OpId { index: index as u32, life: self.lives[index] }, op))
        })
    }
}

#[derive(Default)]
pub(crate) struct State {
    pub(crate) mode: Mode,
    pub(crate) ops: Ops,
    pub(crate) history: History,
    /// The recorded completions that are still to be offered, by number.
    pub(crate) replay: VecDeque<(u64, Key)>,
    /// Whether what the code does besides operations is known to be durable already: true from
    /// loading a run that has made a commit of its own until it is live.
    pub(crate) quiet_effects: bool,
    /// The highest number that was taken.
    pub(crate) taken: u64,
    /// The recorded numbers below composites that were removed from the code: nobody takes them.
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
    pub(crate) streams: Option<Arc<RunStreams>>,
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
        State { taken_at: created_at, last_now: created_at, ..State::default() }
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

    /// An open operation and its entry. An entry that is not there is made, and counted.
    pub(super) fn ensure_entry(&mut self, id: OpId) -> Option<(&mut OpState, &mut Slot)> {
        let op = self.ops.get_mut(id)?;
        let (slot, is_new) = self.history.ensure(&op.key, || op.entry());
        if is_new {
            slot.op = Some(id);
            self.entries += 1;
        }
        Some((op, slot))
    }

    /// Puts in the entry of an operation that has none, and marks it for the next commit.
    fn insert_entry(&mut self, id: OpId, entry: Entry) {
        let Some(op) = self.ops.get(id) else { return };
        let slot = self.history.insert(op.key.clone(), entry);
        (slot.op, slot.dirty) = (Some(id), true);
        self.dirty.push(op.key.clone());
        self.entries += 1;
    }

    /// Notes a change that bodies must wait for.
    pub(super) fn advance(&mut self, ephemeral: bool) {
        self.revision += 1;
        if !ephemeral {
            self.firm = self.revision;
        }
    }

    pub(crate) fn first_halt(&mut self, halt: Halt) {
        if self.halt.is_none() {
            self.halt = Some(halt);
        }
    }
}

impl OpState {
    fn has_body(&self) -> bool {
        matches!(self.phase, Phase::Body { .. })
    }

    /// Whether what a listen or a wait is for is in the inbox.
    fn has_come(&self, inbox: &Inbox) -> bool {
        match (self.phase, &self.listen) {
            (Phase::Awaiting { .. }, _) => inbox.answer(&self.key).is_some(),
            (Phase::Listening { .. }, Some(spec)) => inbox.has(&spec.names),
            _ => false,
        }
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

    /// The entry of an operation that ends now with this value.
    fn ended(&self, now: Timestamp, value: EntryValue) -> Entry {
        Entry { status: EntryStatus::Completed, completed_at: Some(now), value, ..self.entry() }
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
        st.bodies -= usize::from(op.has_body());
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

    /// The key of an operation that is open.
    pub(crate) fn key_of(&self, id: OpId) -> Option<Key> {
        self.op(id, |op| op.key.clone())
    }

    /// Reads something of an operation that is open.
    pub(crate) fn op<T>(&self, id: OpId, read: impl FnOnce(&OpState) -> T) -> Option<T> {
        self.state.borrow().ops.get(id).map(read)
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
        let st = &mut *self.state.borrow_mut();
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
        let (mode, taken) = (st.mode, st.taken);
        let claimed = Op { core: self.clone(), id };
        let Some(slot) = st.history.claim(&key, id) else {
            return claimed;
        };
        let recorded = &slot.entry;
        if mode == Mode::Collect {
            return claimed;
        }
        if recorded.kind != kind {
            let (recorded, code) = (recorded.kind, kind);
            st.first_halt(Halt::AnotherKind { at: Core::location(&key), recorded, code });
        } else if check_born && recorded.born != taken {
            let recorded = recorded.born;
            let at = Core::location(&key);
            st.first_halt(Halt::Moved { at, recorded, code: taken });
        }
        claimed
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
        let st = &mut *self.state.borrow_mut();
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
        let what = |_| self.op(id, |op| describe(op.kind, &op.key));
        match self.polled_body.get().and_then(what) {
            Some(what) => self.refuses_in_body(|| what),
            None => false,
        }
    }

    /// What its operations do, in words for people.
    #[cfg(feature = "testing")]
    pub(crate) fn whereabouts(&self) -> String {
        let st = self.state.borrow();
        let ops = st.ops.iter().map(|(_, op)| {
            let (polled, in_line) = (op.polled, op.in_line);
            format!(
                "{}: {:?}, polled: {polled}, in line: {in_line}",
                describe(op.kind, &op.key),
                op.phase
            )
        });
        let ops: Vec<String> = ops.collect();
        format!(
            "{:?}, revision {}, durable {}, taken {}, draining: {}, leaving: {}, holds offers: {}, starting: {}, \
             halted: {}, operations: [{}]",
            st.mode,
            st.revision,
            st.durable,
            st.taken,
            st.draining,
            st.leaving,
            st.holds_offers,
            st.starting,
            st.halt.is_some(),
            ops.join("; "),
        )
    }

    /// A terminal entry that nobody has taken: the operation is ready as it is.
    pub(super) fn adopt_terminal(st: &mut State, id: OpId) -> bool {
        let Some(op) = st.ops.get_mut(id) else {
            return true;
        };
        let terminal = st.history.get(&op.key).is_some_and(|slot| slot.entry.status.is_terminal());
        if terminal {
            op.phase = Phase::Ready;
            st.make_available(id);
        }
        terminal
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

    /// The operation that has claimed this entry and is still there.
    pub(crate) fn op_at(&self, key: &[u8]) -> Option<OpId> {
        self.state.borrow().history.get(key)?.op
    }

    /// Wakes an operation on behalf of the engine.
    pub(crate) fn wake(&self, id: OpId) {
        let waker = self.op(id, |op| op.waker.clone()).flatten();
        if let Some(waker) = waker {
            let _resolving = wakers::resolving(self.root.run());
            waker.wake();
        }
    }

    /// All recorded numbers are released: from now on completions are new.
    pub(crate) fn go_live(&self) {
        let idle: Vec<OpId> = {
            let mut st = self.state.borrow_mut();
            st.mode = Mode::Live;
            st.quiet_effects = false;
            st.replay.clear();
            let idle = st.ops.iter().filter(|(_, op)| op.polled && op.phase == Phase::Idle);
            idle.map(|(id, _)| id).collect()
        };
        for id in idle {
            self.wake(id);
        }
    }
}

/// An operation in a message.
fn describe(kind: EntryKind, key: &[u8]) -> String {
    format!("{kind:?} `{}`", Core::location(key))
}
