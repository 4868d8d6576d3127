//! How bodies and runs wait for a limit.
//!
//! A limit says when something may begin, not what the code sees. So the wait of a step is part of
//! the step: it has no location and no number of its own, and a limit can be added to code, taken
//! away or changed under running work. Each attempt asks for a place of its own and gives it back
//! with its result, so nobody holds one while it waits for its next attempt.
//!
//! A place that was given is a row of the inbox that stays there until the place is given back. What
//! is registered is not remembered in the history: whoever takes up a run asks again, which changes
//! nothing if it stands in line already. So a run that was paused, and has lost its place by that,
//! needs no special care.
//!
//! The limit of a whole run is a gate before its code: nothing is polled before it is open.

use super::{
    End, Halt, Run, Stage,
    core::{Core, Phase, State, Timer},
    inbox::Inbox,
};
use crate::{
    commit::{Acquire, Effect, InboxKind, answer::decode_turn},
    error::{Error, Failure, FailureKind},
    history::{EntryKind, EntryStatus, Key, OpId},
    limit::LimitUse,
    location::keys,
    panics,
    time::Timestamp,
};

impl LimitUse {
    /// The wish of the operation at this key to go on.
    pub(crate) fn acquire(&self, key: &[u8], holds: bool) -> Effect {
        Effect::Acquire(Box::new(Acquire {
            limit: self.name.to_owned(),
            limit_key: self.key.clone(),
            rule: self.rule,
            holds,
            key: key.to_vec(),
        }))
    }
}

impl State {
    /// When the operation at this key may begin, if it was let in.
    fn turn_of(&mut self, key: &[u8]) -> Option<Timestamp> {
        let row = self.inbox.answer(key)?;
        match decode_turn(&row.body) {
            Ok(at) => Some(at),
            Err(error) => {
                let what = format!("the grant of a limit for `{}`", Core::location(key));
                self.first_halt(Halt::Undecodable { what, error });
                None
            }
        }
    }

    /// The body at this key has ended: its place is given back with what it gave.
    pub(super) fn give_back(&mut self, key: &Key) {
        let grant = self.inbox.take_answer(key);
        self.consumed.extend(grant.map(|row| row.seq));
        self.effects.push(Effect::Release { key: key.to_vec() });
    }

    /// A step under a limit is dropped: it leaves the line, or gives back its place.
    pub(super) fn leave_limit(&mut self, key: &Key, phase: Phase) {
        let given = self.inbox.take_answer(key).is_some();
        if given || matches!(phase, Phase::Awaiting { .. }) {
            self.effects.push(Effect::Abandon { kind: InboxKind::LimitGrant, key: key.to_vec() });
        }
    }
}

impl super::core::OpState {
    /// Whether it waits for its limit, and not for its next attempt.
    pub(super) fn waits_for_limit(&self, inbox: &Inbox) -> bool {
        self.limit.is_some()
            && (matches!(self.phase, Phase::Awaiting { .. }) || inbox.answer(&self.key).is_some())
    }
}

impl Core {
    /// A body wants to begin under a limit: it has a place, or asks for one.
    pub(super) fn want_place(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get(id) else { return };
        let key = op.key.clone();
        if let Some(at) = st.turn_of(&key) {
            if at <= self.now() {
                return self.want_start(st, id);
            }
            return wait_for_turn(st, id, at);
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        let Some(limit) = &op.limit else { return };
        st.effects.push(limit.acquire(&key, true));
        op.phase = Phase::Awaiting { wake_at: None };
        if let Some((_, slot)) = st.ensure_entry(id) {
            slot.entry.status = EntryStatus::Waiting;
            slot.entry.wake_at = None;
        }
        st.touch(&key);
        st.show = true;
    }

    /// What an operation waits for has come. Whether it is to be woken.
    pub(super) fn answer_came(&self, st: &mut State, id: OpId) -> bool {
        let Some(op) = st.ops.get(id) else {
            return false;
        };
        if op.limit.is_some() {
            self.want_place(st, id);
            return true;
        }
        if op.kind == EntryKind::Limit {
            let key = op.key.clone();
            if let Some(at) = st.turn_of(&key).filter(|at| *at > self.now()) {
                wait_for_turn(st, id, at);
                return false;
            }
        }
        st.make_available(id);
        false
    }

    /// The turn of an operation that only waits for it has come.
    pub(super) fn turn_came(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Awaiting { wake_at: None };
        st.make_available(id);
    }
}

/// The places that the run waits for in line, each with the key of what waits.
fn in_line<'a>(
    st: &'a State,
    gate: Option<&'a Gate>,
) -> impl Iterator<Item = (&'a LimitUse, &'a [u8])> {
    let waits = |op: &&super::core::OpState| matches!(op.phase, Phase::Awaiting { .. });
    let ops = st.ops.iter().map(|(_, op)| op).filter(waits);
    let steps = ops.filter_map(|op| Some((op.limit.as_deref()?, &op.key[..])));
    let gate = gate.filter(|gate| gate.asked && gate.turn.is_none());
    steps.chain(gate.map(|gate| (&gate.limit, keys::START)))
}

/// Whether the run waits in line for a place.
pub(super) fn is_in_line(st: &State, gate: Option<&Gate>) -> bool {
    in_line(st, gate).next().is_some()
}

/// Asks again for every place that the run waits for in line. A run that was paused while it stood
/// there may have been passed over, and may not have heard of it. If it stands there, the store does
/// nothing.
pub(super) fn ask_again(st: &State, gate: Option<&Gate>, effects: &mut Vec<Effect>) {
    for (limit, key) in in_line(st, gate) {
        let asks = |effect: &Effect| matches!(effect, Effect::Acquire(it) if it.key == key);
        if !effects.iter().any(asks) {
            effects.push(limit.acquire(key, true));
        }
    }
}

fn wait_for_turn(st: &mut State, id: OpId, at: Timestamp) {
    let Some(op) = st.ops.get_mut(id) else { return };
    op.phase = Phase::Waiting { wake_at: at };
    st.arm(at, id, Timer::Wake);
}

/// The limit of a whole run, as long as it has not let the run in.
pub(super) struct Gate {
    limit: LimitUse,
    asked: bool,
    /// When its turn comes, if it has a place.
    turn: Option<Timestamp>,
}

/// What a run before its gate says that it waits for, after the limit.
const FOR_ITS_START: &str = " for its start";

/// Whether a run that says this of what it waits for stands before its gate.
pub(crate) fn is_at_gate(waiting: &str) -> bool {
    waiting.starts_with("limit `") && waiting.contains(FOR_ITS_START)
}

impl Run {
    /// Puts the gate before the code of a run, if its workflow has a limit.
    pub(super) fn put_gate(&mut self, input: &[u8]) {
        let Some(limit) = &self.definition.options.limit else {
            return;
        };
        if self.stage != Stage::Forward {
            return;
        }
        // The key is made by the user's code.
        let made = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| limit.of(input)));
        match made {
            Ok(Ok(limit)) => {
                if let Err(error) = limit.check() {
                    return self.finish(End::Error(error));
                }
                self.gate = Some(Gate { limit, asked: false, turn: None });
            }
            Ok(Err(error)) => {
                let what = "its input".to_owned();
                self.core.halt(Halt::Undecodable { what, error });
            }
            Err(panic) => {
                let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
                self.finish(End::Error(Error::recorded(failure, Vec::new())));
            }
        }
    }

    /// Whether the code may be polled. Asks for a place if it has none.
    pub(super) fn pass_gate(&mut self) -> bool {
        let Some(gate) = self.gate.as_mut().filter(|_| !self.on_trial) else {
            return true;
        };
        let mut st = self.core.state.borrow_mut();
        if let Some(at) = st.turn_of(keys::START) {
            gate.turn = Some(at);
            if at > self.core.now() {
                return false;
            }
            self.gate = None;
            return true;
        }
        if !gate.asked {
            gate.asked = true;
            st.effects.push(gate.limit.acquire(keys::START, true));
        }
        false
    }

    /// What a run before its gate waits for: until when, and in words.
    pub(super) fn at_gate(&self) -> Option<(Option<Timestamp>, String)> {
        let gate = self.gate.as_ref()?;
        let words = match gate.turn {
            Some(at) => format!("{}{FOR_ITS_START} until {at}", gate.limit),
            None => format!("{}{FOR_ITS_START}", gate.limit),
        };
        Some((gate.turn, words))
    }
}
