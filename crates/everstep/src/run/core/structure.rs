//! What gives a run its structure and has no body: composites, the iterations of a loop, version
//! gates, operations that were removed from the code, and rollbacks that are kept.

use std::{collections::BTreeSet, rc::Rc};

use super::{Core, Mode, Next, Op, Phase, State};
use crate::{
    ctx::rollback::Undo,
    error::{Error, Failure, FailureKind},
    history::{EntryKind, EntryStatus, EntryValue, Key, OpId, Slot},
    location::keys,
    run::load::to_compensate,
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
    ///
    /// What was recorded here counts. Without that, a gate that is reached in a replay was passed by code
    /// that had none here: the same code does the same with the same completions. It need not have recorded
    /// anything since.
    pub(crate) fn gate(&self, id: OpId, latest: u32) -> u32 {
        let st = &mut *self.state.borrow_mut();
        let Some(op) = st.ops.get(id) else {
            return latest;
        };
        if let Some(slot) = st.history.get(&op.key)
            && let EntryValue::Version(version) = slot.entry.value
        {
            return version;
        }
        // An item has no entry: a run that has emitted one behind this place and recorded nothing is live,
        // and past the gate.
        let is_past = st.mode != Mode::Live || st.has_emitted_further();
        let version = if is_past { 1 } else { latest };
        if st.mode != Mode::Collect {
            let entry = op.ended(self.now(), EntryValue::Version(version));
            st.insert_entry(id, entry);
        }
        version
    }

    /// Makes an operation that stands for one of `kind` which the code no longer makes, and for all below
    /// that.
    ///
    /// It takes the recorded completion of the other one in its turn. A composite has no number: the
    /// completion with which it ended is the last one below it. What has neither is given up once the run
    /// is live: see [`Core::activate_removed`].
    pub(crate) fn claim_removed(self: &Rc<Self>, kind: EntryKind, key: Key) -> Op {
        let recorded = self.state.borrow().history.get(&key).map(|slot| slot.entry.kind);
        let made = match recorded {
            None | Some(EntryKind::Removed) => EntryKind::Removed,
            Some(_) => kind,
        };
        let claimed = self.claim(made, key.clone());
        let st = &mut *self.state.borrow_mut();
        st.history.claim_parts(&key);
        let mut last = None;
        for (number, of) in st.replay.iter_mut() {
            if *of != key && keys::is_part(of, &key) {
                st.removed.insert(*number);
                last = Some((*number, of));
            }
        }
        let slot = st.history.get(&key).map(|slot| &slot.entry);
        if slot.is_some_and(|it| it.kind.is_structure() && it.status.is_terminal()) {
            if let Some((number, of)) = last {
                st.removed.remove(&number);
                *of = key;
            } else if let Some(op) = st.ops.get_mut(claimed.id) {
                op.phase = Phase::Taken;
            }
        }
        claimed
    }

    /// An operation that the code no longer makes has not ended, and the run is live: it is given up, with
    /// what it has registered, and that is recorded in its place.
    pub(crate) fn activate_removed(&self, id: OpId) {
        let st = &mut *self.state.borrow_mut();
        if Core::adopt_terminal(st, id) {
            return;
        }
        let Some(op) = st.ops.get_mut(id) else { return };
        op.kind = EntryKind::Removed;
        let key = op.key.clone();
        let is_open = |slot: &Slot| !slot.entry.status.is_terminal();
        let parts = st.history.iter();
        let parts = parts.filter(|(other, slot)| keys::is_under(other, &key) && is_open(slot));
        let mut parts: Vec<(Key, EntryKind)> =
            parts.map(|(part, slot)| (part.clone(), slot.entry.kind)).collect();
        parts.sort_by(|(one, _), (other, _)| one.cmp(other));
        for (part, kind) in &parts {
            if *kind == EntryKind::Step {
                // Whether it was under a limit is not recorded; if it was not, the store does nothing.
                st.leave_limit(part, Phase::Awaiting { wake_at: None });
            }
            st.abandon(part);
        }
        let Some((op, slot)) = st.ensure_entry(id) else { return };
        op.phase = Phase::Ready;
        slot.entry = op.ended(self.now(), EntryValue::None);
        st.touch(&key);
        st.advance(false);
        st.make_available(id);
    }

    /// Whether the code has taken the end of this operation, or need not wait for it.
    pub(crate) fn is_over(&self, id: OpId) -> bool {
        self.op(id, |op| op.phase == Phase::Taken).unwrap_or(false)
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
    /// Whether the code that made the history has emitted an item that this code has not come to. Code is
    /// polled until it is quiet before its items are stored, so it had passed every place that is reached
    /// with the same completions.
    fn has_emitted_further(&self) -> bool {
        self.emit_mark.next(self.taken) <= self.emitted
    }
}
