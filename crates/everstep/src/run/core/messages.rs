//! Messages: a listen takes what is in the inbox; what is sent to others goes with the next commit.

use std::collections::BTreeSet;

use super::{Core, ListenSpec, Phase, timers::Timer};
use crate::{
    commit::{Effect, EffectDone, InboxRow, Receipt},
    history::{Entry, EntryValue, Key, OpId},
    sabotage::Sabotage,
    time::When,
};

impl Core {
    /// A listen becomes active.
    pub(crate) fn activate_listen(&self, id: OpId, spec: ListenSpec, until: Option<When>) {
        let until = until.map(|until| until.from(self.now()));
        let st = &mut *self.state.borrow_mut();
        if Core::adopt_terminal(st, id) {
            return;
        }
        let here = st.inbox.has(&spec.names);
        // A message that is there is taken without recording the wait for it.
        let wake_at = if here && until.is_none() { None } else { self.record_wait(st, id, until) };
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

    /// New messages, in order.
    pub(crate) fn deliver(&self, rows: Vec<InboxRow>) {
        for id in self.receive(rows) {
            self.wake(id);
        }
    }

    /// Puts new messages where they are looked for. Gives the operations that are to be woken.
    fn receive(&self, rows: Vec<InboxRow>) -> Vec<OpId> {
        let st = &mut *self.state.borrow_mut();
        let mut names = BTreeSet::new();
        let mut answers = Vec::new();
        for row in rows {
            if !st.inbox.push(&row) {
                continue;
            }
            if row.wait.is_some() {
                answers.push(row);
            } else {
                if self.env.settings.breaks(Sabotage::ConsumeEarly) {
                    st.consumed.push(row.seq);
                }
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
        let mut ids: Vec<_> = listening.map(|(id, op)| (op.born, op.key.clone(), id)).collect();
        ids.sort();
        for (_, _, id) in ids {
            st.recall_timeout(id);
            if let Some(op) = st.ops.get(id)
                && matches!(op.phase, Phase::Listening { .. })
            {
                st.make_available(id);
            }
        }
        woken
    }

    /// A message to another run: its effect goes into the next commit, and it is ready after that.
    pub(crate) fn activate_send(&self, id: OpId, effect: impl FnOnce(Key, Entry) -> Effect) {
        let st = &mut *self.state.borrow_mut();
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Committing;
        let entry = op.ended(self.now(), EntryValue::None);
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
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Ready;
        let entry = op.ended(self.now(), value);
        st.history.insert(op.key.clone(), entry).op = Some(id);
        st.make_available(id);
    }
}
