//! Waits whose answer comes through the inbox: an event, the value of a deferred, the end of a run,
//! the result of a queue item, the grant of a limit.
//!
//! Such an operation *registers* with an effect of the commit that records its entry, and is then
//! handed one row of the inbox, by its key. Since everything from outside is a row of the inbox, the
//! rules for messages hold: a run is parked, and a deadline recorded, only if no row has come that
//! its owner has not seen; a row is consumed in the commit that records it; a wait that was given up
//! consumes nothing.
//!
//! Always true: what is registered is taken back in the commit that records what the code did
//! instead ([`State::abandon`]), or when the code of the run is over.

use super::core::{Core, Phase, State, Timer};
use crate::{
    commit::{Close, Effect, InboxKind, InboxRow},
    history::{Entry, EntryStatus, EntryValue, Key, OpId},
    time::{Timestamp, When},
};

impl Core {
    /// An operation that waits for an answer becomes active. `register` makes its effect, if it
    /// needs one, given the entry that is recorded; it must not touch the state of the run.
    pub(crate) fn activate_wait(
        &self,
        id: OpId,
        until: Option<When>,
        register: impl FnOnce(&Key, &Entry) -> Option<Effect>,
    ) {
        let until = until.map(|until| until.from(self.now()));
        let st = &mut *self.state.borrow_mut();
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get(id) else { return };
        let key = op.key.clone();
        debug_assert!(op.kind.answered_by().is_some(), "{:?} has no answer", op.kind);
        let recorded = st.history.get(&key).is_some();
        let wake_at = self.record_wait(st, id, until);
        if !recorded
            && let Some(slot) = st.history.get(&key)
            && let Some(effect) = register(&key, &slot.entry)
        {
            st.effects.push(effect);
        }
        self.await_answer(st, id, wake_at);
    }

    /// The operation waits for its answer from now on; it may be here already.
    pub(super) fn await_answer(&self, st: &mut State, id: OpId, wake_at: Option<Timestamp>) {
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Awaiting { wake_at };
        let here = st.inbox.answer(&op.key).is_some();
        if let Some(at) = wake_at {
            st.arm(at, id, Timer::Wake);
        }
        if here {
            self.answer_came(st, id);
        }
    }

    /// What has come for these operations can be offered to them. Gives those that are to be woken.
    pub(super) fn answers_came(&self, st: &mut State, rows: &[InboxRow]) -> Vec<OpId> {
        let mut woken = Vec::new();
        for key in rows.iter().filter_map(|row| row.wait.as_deref()) {
            let id = st.history.get(key).and_then(|slot| slot.op);
            id.into_iter().for_each(|id| st.recall_timeout(id));
            let waits = |id: &OpId| {
                let phase = st.ops.get(*id).map(|op| op.phase);
                matches!(phase, Some(Phase::Awaiting { .. }))
            };
            if let Some(id) = id.filter(waits)
                && self.answer_came(st, id)
            {
                woken.push(id);
            }
        }
        woken
    }

    /// The operation takes its answer: the row is consumed, and its body is the value.
    pub(super) fn consume_answer(&self, st: &mut State, id: OpId) {
        let Some(op) = st.ops.get(id) else { return };
        let key = op.key.clone();
        let Some(row) = st.inbox.take_answer(&key) else {
            return;
        };
        st.consumed.push(row.seq);
        self.note_taken(row.sent_at);
        let Some(slot) = st.history.get_mut(&key) else {
            return;
        };
        slot.entry.complete(self.now(), EntryValue::Answer(row.body));
        if row.kind == InboxKind::Event {
            st.effects.push(Effect::Took { key: key.to_vec() });
        }
    }
}

impl State {
    /// Whether the next commit registers the wait of this operation.
    pub(super) fn is_to_be_registered(&self, id: OpId) -> bool {
        let key = self.ops.get(id).map(|op| &op.key);
        key.is_some_and(|key| self.effects.iter().any(|effect| registers(effect, key)))
    }

    /// An operation is dropped. If it is registered and has not ended, that is taken back.
    pub(super) fn abandon(&mut self, key: &Key) {
        let Some(slot) = self.history.get_mut(key) else {
            return;
        };
        let (Some(kind), EntryStatus::Waiting) = (slot.entry.kind.answered_by(), slot.entry.status)
        else {
            return;
        };
        slot.entry.status = EntryStatus::Cancelled;
        self.touch(key);
        self.inbox.take_answer(key);
        // What is not on its way yet need not be taken back: a child that nobody waits for is not
        // even started.
        let registered = self.effects.len();
        self.effects.retain(|effect| !is_only_for(effect, key));
        if self.effects.len() < registered {
            return;
        }
        self.effects.push(Effect::Abandon { kind, key: key.to_vec() });
    }
}

/// Whether an effect registers the wait of the operation at this key.
fn registers(effect: &Effect, key: &Key) -> bool {
    let of = match effect {
        Effect::Subscribe(subscription) => &subscription.key,
        Effect::AwaitDeferred(wait) => &wait.key,
        Effect::StartChild(start) => &start.key,
        Effect::Watch { key, .. } | Effect::Enqueue { key, .. } => key,
        _ => return false,
    };
    of[..] == key[..]
}

/// Whether an effect does nothing but for the operation at this key to wait.
fn is_only_for(effect: &Effect, key: &Key) -> bool {
    match effect {
        Effect::StartChild(start) => {
            start.awaited && start.close == Close::Cancel && start.key[..] == key[..]
        }
        Effect::Watch { key: of, .. } => of[..] == key[..],
        _ => false,
    }
}
