//! The bodies of steps: from the wish to start, past the barrier, to a result or the next attempt.
//!
//! [`Phase`] has the whole path of a step in order; here are its phases 2, 3 and 6 to 8.

use std::{
    sync::atomic::{AtomicU32, Ordering},
    time::Duration,
};

use super::{Core, Phase, State, timers::Timer};
use crate::{
    cancellation::Cancellation,
    codec::hook::is_sealed,
    error::{Error, Failure, FailureKind},
    history::{AttemptError, ERRORS_KEPT, Entry, EntryStatus, EntryValue, OpId},
    limit::LimitUse,
    location::Location,
    random,
    retry::Retry,
    run::Halt,
    sabotage::Sabotage,
    time::Timestamp,
};

/// A body runs this long before it is recorded as running.
const RECORD_AFTER: Duration = Duration::from_millis(100);

/// A suspect that was the recorded one when its owner died this often is paused.
const DEATHS_MAX: u32 = 10;

impl Core {
    /// A step becomes active: it has a result, waits for its next attempt, or wants to start.
    pub(crate) fn activate_step(&self, id: OpId, ephemeral: bool, limit: Option<Box<LimitUse>>) {
        let st = &mut *self.state.borrow_mut();
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
        let wake_at = entry.filter(|e| e.status == EntryStatus::Waiting).and_then(|e| e.wake_at);
        match wake_at {
            Some(wake_at) if wake_at > self.now() => {
                op.phase = Phase::Waiting { wake_at };
                st.arm(wake_at, id, Timer::Wake);
            }
            _ => self.want_body(st, id),
        }
    }

    /// An attempt is due: its body may start, or asks its limit first.
    pub(super) fn want_body(&self, st: &mut State, id: OpId) {
        match st.ops.get(id).map(|op| op.limit.is_some()) {
            Some(true) => self.want_place(st, id),
            _ => self.want_start(st, id),
        }
    }

    pub(crate) fn want_start(&self, st: &mut State, id: OpId) {
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

    /// Wakes the operations whose bodies may start now.
    pub(crate) fn wake_starters(&self) {
        let ready: Vec<OpId> = {
            let st = &mut *self.state.borrow_mut();
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

    /// Notes which body runs before it runs, so that the one that kills its owner is known.
    fn record_suspect(&self, st: &mut State, id: OpId) {
        let Some((op, slot)) = st.ensure_entry(id) else {
            return;
        };
        let key = op.key.clone();
        slot.entry.deaths += 1;
        slot.entry.status = EntryStatus::Running;
        slot.entry.started_at = Some(self.now());
        if slot.entry.deaths > DEATHS_MAX {
            let halt = Halt::CrashLoop { at: Core::location(&key), deaths: DEATHS_MAX };
            st.first_halt(halt);
        }
        st.touch(&key);
        st.advance(false);
    }

    /// The body starts. Gives the number of the attempt.
    pub(crate) fn start_body(&self, id: OpId, timeout: Option<Duration>) -> u32 {
        let st = &mut *self.state.borrow_mut();
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
        let attempts = st.history.get(&op.key).map_or(0, |slot| slot.entry.attempts);
        attempts + 1
    }

    /// The body did not end in its first poll: from now on its time counts.
    pub(crate) fn body_pending(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get(id) else { return };
        let (deadline, record_at) = (op.body_deadline, op.started_at + RECORD_AFTER);
        if let Some(deadline) = deadline {
            st.arm(deadline, id, Timer::BodyTimeout);
        }
        st.arm(record_at, id, Timer::Record);
    }

    /// A body wants to be polled. False if there is no such body any more.
    pub(crate) fn body_woken(&self, id: OpId) -> bool {
        {
            let mut st = self.state.borrow_mut();
            let Some(op) = st.ops.get_mut(id).filter(|op| op.has_body()) else {
                return false;
            };
            op.lagging = true;
            st.direct = true;
            st.woken.push(id);
        }
        self.wake(id);
        true
    }

    /// Names the bodies that were woken while nobody polls their operations.
    pub(crate) fn note_lagging(&self) {
        let st = &mut *self.state.borrow_mut();
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

    pub(super) fn record_running(&self, st: &mut State, id: OpId) {
        let Some((op, slot)) = st.ensure_entry(id) else {
            return;
        };
        slot.entry.status = EntryStatus::Running;
        slot.entry.started_at = Some(op.started_at);
        let key = op.key.clone();
        st.touch(&key);
        st.show = true;
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

    /// Gives a body its time again, counted from now. False if it has no limit.
    pub(crate) fn prolong_body(&self, id: OpId, timeout: Option<Duration>) -> bool {
        let st = &mut *self.state.borrow_mut();
        let (Some(op), Some(timeout)) = (st.ops.get_mut(id), timeout) else {
            return false;
        };
        let deadline = self.now() + timeout;
        op.timed_out = false;
        op.body_deadline = Some(deadline);
        st.arm(deadline, id, Timer::BodyTimeout);
        true
    }

    /// The time of a body is over, and it was told: it may end by itself for a while.
    pub(crate) fn give_grace(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
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

    /// A body has used `ctx`: it does not go on, and nothing of this attempt is recorded.
    pub(crate) fn body_gave_up(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get_mut(id) else { return };
        st.bodies -= usize::from(op.has_body());
        // Nothing starts or resolves it any more.
        op.phase = Phase::Taken;
    }

    /// A body was dropped before its end, or has given up: the attempt is made again.
    pub(crate) fn abandon_body(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get_mut(id).filter(|op| op.has_body()) else {
            return;
        };
        op.token = None;
        st.bodies -= 1;
        // The attempt has the same number again, and readers must tell what it emits from what this
        // body has emitted.
        self.life.set(None);
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
        let st = &mut *self.state.borrow_mut();
        let now = self.now();
        let Some((op, slot)) = st.ensure_entry(id) else {
            return false;
        };
        let (key, ephemeral, limited) = (op.key.clone(), op.ephemeral, op.limit.is_some());
        // The body of a transaction is not one of these: it runs in the commit.
        let was_body = op.has_body();
        op.phase = Phase::Ready;
        let entry = &mut slot.entry;
        entry.attempts += 1;
        entry.compensable = op.compensable;
        entry.started_at = Some(op.started_at);
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
                            FailureKind::TimedOut if op.timed_out => EntryStatus::TimedOut,
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
        st.bodies -= usize::from(was_body);
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
        if self.env.settings.breaks(Sabotage::NumberOnArrival) {
            let number = st.taken + 1 + st.available.len() as u64;
            let slot = st.history.get_mut(&key);
            slot.into_iter().for_each(|slot| slot.entry.number = Some(number));
        }
        st.make_available(id);
        false
    }
}

impl State {
    /// Notes that a body waits to start.
    pub(super) fn stand_in_line(&mut self, id: OpId) {
        if let Some(op) = self.ops.get_mut(id)
            && !std::mem::replace(&mut op.in_line, true)
        {
            self.starters.push(id);
        }
    }
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
    entry.errors.push(AttemptError { attempt: entry.attempts, at: now, message });
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
