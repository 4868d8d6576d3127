//! What gives a run its structure and has no body: composites, the iterations of a loop, version
//! gates, operations that were removed from the code, and rollbacks that are kept.

use std::collections::BTreeSet;

use super::{Core, Mode, Next, Phase, State};
use crate::{
    ctx::rollback::Undo,
    error::{Error, Failure, FailureKind},
    history::{Entry, EntryKind, EntryStatus, EntryValue, Key, OpId},
    location::keys,
    run::{Halt, load::to_compensate},
};

impl Core {
    /// Makes the entry of an operation that only gives structure to others.
    pub(crate) fn open_structure(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get(id) else { return };
        if st.mode == Mode::Collect || st.history.get(&op.key).is_some() {
            return;
        }
        let entry = op.entry();
        st.insert_entry(id, entry);
    }

    /// Notes how an operation that only gives structure has ended.
    pub(crate) fn close_structure(&self, id: OpId, failed: bool) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get_mut(id) else { return };
        op.phase = Phase::Taken;
        let status = if failed { EntryStatus::Failed } else { EntryStatus::Completed };
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

    /// A boundary between iterations is ready as soon as it is active; its value is the state.
    pub(crate) fn activate_boundary(&self, id: OpId, state: Vec<u8>, firm: bool) {
        let st = &mut *self.state.borrow_mut();
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        op.ephemeral = !firm;
        op.phase = Phase::Ready;
        let entry = op.ended(self.now(), EntryValue::Payload(state));
        st.insert_entry(id, entry);
        st.advance(!firm);
        st.make_available(id);
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
        st.history.iter().any(|(other, _)| keys::is_under(other, key))
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
        let st = &mut *self.state.borrow_mut();
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

    /// The version that a gate gives here: see [`crate::Ctx::version`].
    pub(crate) fn gate(&self, id: OpId, scope: &[u8], latest: u32) -> u32 {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get(id) else {
            return latest;
        };
        if let Some(slot) = st.history.get(&op.key)
            && let EntryValue::Version(version) = slot.entry.value
        {
            return version;
        }
        // Code without this gate has gone past it if it made something after it in this scope. Where the
        // scope ends with the gate (a branch of a join), it has if it took a later completion, or made
        // anything with those that are taken by now. An item has no entry: the stored mark of the last one shows
        // how far the code went.
        let is_past = st.is_past(scope) || st.has_emitted_further();
        let version = if is_past { 1 } else { latest };
        if st.mode != Mode::Collect {
            let entry = op.ended(self.now(), EntryValue::Version(version));
            st.insert_entry(id, entry);
        }
        if !is_past {
            st.go_ahead(scope);
        }
        version
    }

    /// An operation that the code no longer makes: whatever is recorded at or below the key is
    /// passed over.
    pub(crate) fn mark_removed(&self, key: &Key, scope: &[u8], kind: EntryKind) {
        let st = &mut *self.state.borrow_mut();
        if let Some(slot) = st.history.get(key) {
            let recorded = slot.entry.kind;
            if recorded != kind && recorded != EntryKind::Removed {
                let at = Core::location(key);
                st.first_halt(Halt::AnotherKind { at, recorded, code: kind });
                return;
            }
        }
        let was_passed = st.history.get(key).map(|slot| was_passed(&slot.entry));
        st.history.claim_subtree(key);
        // Without an entry, the run may have stood in the body of a step, which is recorded late. If it
        // had not, what its code has set here is set once more, to the same values.
        if !was_passed.unwrap_or_else(|| st.is_past(scope)) {
            st.go_ahead(scope);
        }
        let numbers = st.replay.iter().filter(|(_, next)| keys::is_under(next, key));
        st.removed.extend(numbers.map(|(number, _)| *number));
        st.pass_removed();
    }

    /// Keeps the rollback of a step that has one.
    pub(crate) fn keep_undo(&self, id: OpId, undo: Undo) {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get_mut(id) else { return };
        op.compensable = true;
        let key = op.key.clone();
        st.undo.insert(key, undo);
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
        Err(Error::recorded(Failure::new(FailureKind::Limit, text), Vec::new()))
    }

    /// How many completed steps would have to be rolled back if the run failed now.
    pub(crate) fn open_compensations(&self) -> usize {
        to_compensate(&self.state.borrow().history).count()
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

    /// The run continues as a new one, once it is quiet.
    pub(crate) fn continue_as(&self, next: Next) {
        self.state.borrow_mut().continuing.get_or_insert(next);
    }
}

impl State {
    /// Whether the code that made the history has gone past this place of the scope, which it has no entry
    /// of.
    fn is_past(&self, scope: &[u8]) -> bool {
        self.history.any_unclaimed(scope).is_some()
            || !self.replay.is_empty()
            || self.history.any_unclaimed_since(self.taken_by_code)
    }

    /// Whether the code that made the history has emitted an item that this code has not come to. Code is
    /// polled until it is quiet before its items are stored, so it had passed every place that is reached
    /// with the same completions.
    fn has_emitted_further(&self) -> bool {
        self.emit_mark.next(self.taken_by_code) <= self.emitted
    }

    /// Notes that the code goes further in this scope than the code that made the history.
    fn go_ahead(&mut self, scope: &[u8]) {
        if self.mode == Mode::Replay && !self.ahead.iter().any(|other| **other == *scope) {
            self.ahead.push(Key::from(scope));
        }
    }

    /// Whether what the code sets now, in this scope, is known to be stored. Behind the last recorded
    /// completion, code that is ahead in one scope may have brought the others further, too: what waits
    /// for a branch of a join goes on when the branch ends.
    pub(crate) fn is_stored(&self, scope: &[u8]) -> bool {
        let is_ahead = |ahead: &Key| self.replay.is_empty() || keys::is_under(scope, ahead);
        self.quiet_effects && !self.ahead.iter().any(is_ahead)
    }

    /// Whether an answer that the code gives now is known to be stored. Its scope is not known; the store
    /// keeps the first answer, so that one too many changes nothing.
    pub(crate) fn is_answer_stored(&self) -> bool {
        self.quiet_effects && self.ahead.is_empty()
    }
}

/// Whether the code that made this entry has gone on after its operation: it has taken the result, or the
/// operation has none to take.
fn was_passed(entry: &Entry) -> bool {
    let is_structure = matches!(
        entry.kind,
        EntryKind::Join
            | EntryKind::Map
            | EntryKind::Race
            | EntryKind::Attempt
            | EntryKind::Repeat
            | EntryKind::Version
            | EntryKind::Removed
    );
    entry.number.is_some() || (is_structure && entry.status.is_terminal())
}
