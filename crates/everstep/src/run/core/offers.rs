//! Completions: which one is offered next, and how the workflow takes it.
//!
//! The order rule (ARCHITECTURE.md, "Order"): an operation resolves only when it is *offered* its
//! completion, one at a time, while the run is quiet. The number is given when the workflow takes
//! it. Replay offers exactly the recorded numbers. The one shortcut is in [`Core::finish_body`].

use super::{Core, Mode, Phase, State};
use crate::{
    history::{Entry, EntryKind, EntryValue, OpId, TakenMessage},
    sabotage::Sabotage,
    time::Timestamp,
};

impl Core {
    pub(crate) fn begin_poll(&self) {
        self.state.borrow_mut().released = false;
    }

    pub(crate) fn end_poll(&self) {
        self.state.borrow_mut().direct = false;
    }

    /// The next completion to offer, removed from the list.
    pub(crate) fn next_offer(&self) -> Option<(usize, OpId)> {
        let mut st = self.state.borrow_mut();
        let (place, id) = st.next_available(self.now())?;
        st.available.remove(place);
        Some((place, id))
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

    /// Puts back an offer that nobody took, until its operation is polled again.
    pub(crate) fn withdraw_offer(&self, place: usize, id: OpId) {
        let mut st = self.state.borrow_mut();
        if let Some(op) = st.ops.get_mut(id) {
            op.declined = true;
            let place = place.min(st.available.len());
            st.available.insert(place, id);
        }
    }

    /// The operation takes the completion that it was offered: it gets its number.
    ///
    /// `read` gets the entry; what it gives is handed to the workflow.
    pub(crate) fn take<T>(&self, id: OpId, read: impl FnOnce(&Entry) -> T) -> Option<T> {
        let st = &mut *self.state.borrow_mut();
        let key = st.ops.get(id)?.key.clone();
        if st.mode == Mode::Live {
            self.consume(st, id);
        }
        let (ephemeral, live) = (st.ops.get(id)?.ephemeral, st.mode == Mode::Live);
        let number = match st.replay.front() {
            Some((number, recorded)) if !live => {
                debug_assert_eq!(recorded, &key, "only the next recorded completion is offered");
                let number = *number;
                st.replay.pop_front();
                number
            }
            _ if self.env.settings.breaks(Sabotage::NumberOnArrival) => {
                let number = st.history.get(&key).and_then(|slot| slot.entry.number);
                number.unwrap_or(st.taken + 1)
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
        st.taken = number;
        if let Some(at) = completed_at {
            st.taken_at = st.taken_at.max(at);
        }
        if live {
            st.touch(&key);
            st.note_seen(ephemeral);
        } else {
            // Replayed and handed out: only what must be found again stays in memory.
            self.forget_if_done(st, &key);
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
        st.consumed.extend(messages.iter().map(|message| message.seq));
        let taken = messages.into_iter().map(|message| TakenMessage {
            seq: message.seq,
            name: message.name,
            body: message.body,
            request: message.request,
            sent_at: message.sent_at,
        });
        let value = EntryValue::Messages(taken.collect());
        if let Some((_, slot)) = st.ensure_entry(id) {
            slot.entry.complete(self.now(), value);
        }
    }

    /// Drops an entry that was taken and needs no write, unless it has a rollback, or is one: a
    /// step that was compensated must not be compensated again when the run fails later.
    pub(crate) fn forget_if_done(&self, st: &mut State, key: &[u8]) {
        let done = st.history.get(key).is_some_and(|slot| {
            let entry = &slot.entry;
            // A rollback must be remembered, so that nothing is compensated twice.
            let rollback = entry.kind == EntryKind::Rollback;
            let rollback = rollback && !self.env.settings.breaks(Sabotage::ForgetRollbacks);
            !slot.dirty
                && slot.claimed
                && !entry.compensable
                && !rollback
                && entry.status.is_terminal()
                && (entry.number.is_some() || entry.kind.is_structure())
        });
        if done {
            st.history.remove(key);
        }
    }
}

impl State {
    pub(crate) fn make_available(&mut self, id: OpId) {
        let Some(op) = self.ops.get_mut(id) else {
            return;
        };
        if !op.queued {
            op.queued = true;
            op.declined = false;
            self.available.push_back(id);
        }
    }

    /// The first completion in order of arrival that somebody may want.
    fn next_available(&mut self, now: Timestamp) -> Option<(usize, OpId)> {
        let mut place = 0;
        while place < self.available.len() {
            let id = self.available[place];
            match self.ops.get_mut(id) {
                Some(op) if op.declined => place += 1,
                Some(op) => {
                    let waits = match op.phase {
                        Phase::Listening { wake_at } | Phase::Awaiting { wake_at } => Some(wake_at),
                        _ => None,
                    };
                    let Some(wake_at) = waits.filter(|_| !op.has_come(&self.inbox)) else {
                        return Some((place, id));
                    };
                    op.queued = false;
                    self.available.remove(place);
                    // Its timer has gone off while the message was there, which counted then.
                    if wake_at.is_some_and(|at| at <= now) {
                        op.phase = Phase::Committing;
                        self.timeouts.push(id);
                    }
                }
                None => _ = self.available.remove(place),
            }
        }
        None
    }

    pub(crate) fn has_undeclined(&self) -> bool {
        let open = |id: &&OpId| self.ops.get(**id).is_some_and(|op| !op.declined);
        self.available.iter().any(|id| open(&id))
    }

    /// Passes over the next recorded completion if it was taken inside of a composite that was removed
    /// from the code; whether it was.
    pub(crate) fn pass_removed(&mut self) -> bool {
        let Some((number, key)) = self.replay.front() else { return false };
        if !self.removed.remove(number) {
            return false;
        }
        self.taken = *number;
        let slot = self.history.get(key);
        let completed_at = slot.and_then(|slot| slot.entry.completed_at).unwrap_or_default();
        self.taken_at = self.taken_at.max(completed_at);
        self.replay.pop_front();
        true
    }

    /// Notes that the code has taken a completion: bodies that start from now on may see it.
    fn note_seen(&mut self, ephemeral: bool) {
        self.advance(ephemeral);
        self.seen = self.revision;
        if !ephemeral {
            self.seen_firm = self.revision;
        }
    }
}
