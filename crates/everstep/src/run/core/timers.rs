//! What happens at a time: a sleep ends, a wait runs out, an attempt is due, a body has had its time.

use std::cmp::Reverse;

use super::{Core, Phase, State};
use crate::{
    history::{EntryKind, EntryStatus, OpId},
    time::Timestamp,
};

#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Timer {
    /// A sleep ends, a wait runs out, an attempt is due.
    Wake,
    /// A body has had its time.
    BodyTimeout,
    /// A body has run for so long that people should see it.
    Record,
}

impl Core {
    /// A sleep becomes active.
    pub(crate) fn activate_sleep(&self, id: OpId, until: Timestamp) {
        let st = &mut *self.state.borrow_mut();
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

    /// Makes the entry of a wait, or finds it; gives its deadline.
    pub(crate) fn record_wait(
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
        st.insert_entry(id, entry);
        st.show = true;
        deadline
    }

    /// Does what is due by now.
    pub(crate) fn fire_timers(&self) {
        let now = self.now();
        let mut wake = Vec::new();
        {
            let st = &mut *self.state.borrow_mut();
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
            (Timer::Wake, Phase::Listening { wake_at } | Phase::Awaiting { wake_at })
                if wake_at == Some(at) =>
            {
                // What is there wins; it has been offered or will be.
                if !op.has_come(&st.inbox) {
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

    /// When something is due next, as far as operations go.
    pub(crate) fn next_timer(&self) -> Option<Timestamp> {
        let st = &mut *self.state.borrow_mut();
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
        let st = &mut *self.state.borrow_mut();
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
            if op.has_come(&st.inbox) {
                st.make_available(*id);
            }
            if let Some(at) = wake_at {
                st.arm(at, *id, Timer::Wake);
            }
        }
    }
}

impl State {
    /// Something has come for a wait whose timeout is in no commit yet: it waits on, and takes it.
    pub(crate) fn recall_timeout(&mut self, id: OpId) {
        let Some(place) = self.timeouts.iter().position(|it| *it == id) else {
            return;
        };
        self.timeouts.remove(place);
        let Some(op) = self.ops.get_mut(id) else { return };
        let wake_at = self.history.get(&op.key).and_then(|slot| slot.entry.wake_at);
        op.phase = match op.kind.answered_by() {
            Some(_) => Phase::Awaiting { wake_at },
            None => Phase::Listening { wake_at },
        };
    }

    pub(crate) fn arm(&mut self, at: Timestamp, id: OpId, timer: Timer) {
        self.timers.push(Reverse((at, id, timer)));
    }
}
