//! From what changed in a run to one commit, and back from its answer.
//!
//! The decision is in [`Run::next_commit`]: it is made while the run is quiet, from the end it has
//! reached, what must be durable before somebody can go on, and whether there is anything left to
//! wait for but time and messages.

use super::{
    End, Halt, Run, Stage,
    core::{PendingTransaction, Phase},
    limits::{ask_again, is_in_line},
    load::to_compensate,
};
use crate::{
    codec::bare,
    commit::{Commit, Effect, EffectDone, InboxRow, Patch, Put, Refusal, RunStatus},
    error::{Error, FailureKind, RetryAdvice, encode_failure},
    history::{Entry, EntryKind, EntryStatus, Key, OpId, decode_entry, encode_entry},
    location::keys,
    sabotage::Sabotage,
    time::Timestamp,
};

/// The row of a parked run names no more waits than this.
pub(crate) const WAITS_IN_ROW: usize = 5;

/// What is known about the stored row, and what is on its way there.
pub(super) struct Flush {
    sent: Option<InFlight>,
    /// Puts and deletes of a commit that was refused, or of a rewritten history: they go first
    /// into the next one.
    pub(super) unsent: Vec<Put>,
    /// The highest number that is stored.
    pub(super) stored_number: u64,
    /// What the row says. None if the row is to be touched by the next commit in any case.
    pub(super) row: Option<RowView>,
    pub(super) ending: Option<RunStatus>,
    pub(super) error: Option<Vec<u8>>,
    pub(super) cancel_rollback: bool,
    /// The run was paused from outside: what its bodies give is recorded, and nothing else.
    results_only: bool,
}

/// What the stored row says about a run in memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum RowView {
    /// It is moving.
    Running,
    /// As it was left by an owner that died: `Running`, with a count of recoveries that progress
    /// sets back. To record which body a suspect begins is no progress.
    Recovered,
    /// It waits for this.
    Parked(Option<Timestamp>, String),
}

struct InFlight {
    kind: CommitKind,
    revision: u64,
    number: u64,
    sends: Vec<OpId>,
    transactions: Vec<PendingTransaction>,
    timeouts: Vec<OpId>,
    parked: Option<RowView>,
}

/// What a commit is for: what its owner does once it is made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum CommitKind {
    /// The run goes on.
    Flush,
    /// The run is parked: it may leave memory.
    Park,
    /// The run waits to be tried again as a whole: it leaves memory.
    Again,
    /// The rollbacks begin.
    RollBack,
    /// The run begins anew.
    Continue,
    /// The run leaves memory until somebody resumes it.
    Pause,
    /// The run leaves memory; what its bodies gave is recorded.
    Results,
    /// The end.
    Finish(RunStatus),
}

/// A commit to send, and what it is for.
pub(crate) struct Sent {
    pub(crate) commit: Commit,
    #[cfg_attr(not(test), expect(dead_code, reason = "the run itself knows; its tests ask"))]
    pub(crate) kind: CommitKind,
}

/// What the owner does after an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Next {
    /// Drives the run again.
    Drive,
    /// Drops the run from memory; the row says how it goes on.
    Drop,
    /// Drops the run and loads it again: it cannot go on with what is in memory.
    Reload,
}

impl Flush {
    pub(super) fn new(row: Option<RowView>, stored_number: u64) -> Flush {
        Flush {
            sent: None,
            unsent: Vec::new(),
            stored_number,
            row,
            ending: None,
            error: None,
            cancel_rollback: false,
            results_only: false,
        }
    }

    pub(super) fn in_flight(&self) -> bool {
        self.sent.is_some()
    }

    pub(super) fn results_only(&self) -> bool {
        self.results_only
    }
}

impl Run {
    pub(crate) fn in_flight(&self) -> bool {
        self.flush.in_flight()
    }

    /// Whether it only waits for time and messages, and the row says so.
    pub(crate) fn is_parked(&self) -> bool {
        !self.in_flight()
            && self.end.is_none()
            && matches!(self.flush.row, Some(RowView::Parked(..)))
            && self.core.state.borrow().halt.is_none()
            && self.at_rest().is_some()
    }

    /// The row was changed from outside (a message): the next commit must put it right.
    pub(crate) fn row_touched(&mut self) {
        if self.flush.row == Some(RowView::Running) {
            self.flush.row = None;
        }
    }

    /// A cancel was requested: whether what was done is to be compensated.
    pub(crate) fn request_cancel(&mut self, rollback: bool) {
        self.flush.cancel_rollback = rollback;
        self.cancel();
    }

    /// No body starts any more; what is in flight may end. `results_only` if the row no longer
    /// takes anything else.
    pub(crate) fn drain(&mut self, results_only: bool) {
        self.flush.results_only |= results_only;
        self.drained = true;
        self.hold_still();
    }

    /// Bodies may start again after all, unless it was paused or is being cancelled.
    pub(crate) fn go_on(&mut self) {
        self.drained = false;
        if !self.flush.results_only && self.stopping.is_none() {
            self.core.go_on();
        }
    }

    /// The row is due as one that begins: the run was paused and resumed, and neither was heard of
    /// here. The next commit puts the row right and asks for places again: a run that is paused is
    /// passed over in line, and has no place after that.
    pub(crate) fn was_resumed(&mut self) {
        let row = self.flush.row.take();
        let mut st = self.core.state.borrow_mut();
        // Without a view of the row the next commit writes it in any case. But it may come only with
        // the end of a long body, and a run in line cannot wait for that.
        st.show |= row.is_some() || is_in_line(&st, self.gate.as_ref());
    }

    /// Whether no body starts any more.
    #[cfg(test)]
    pub(crate) fn is_draining(&self) -> bool {
        self.core.state.borrow().draining
    }

    /// Whether it was paused from outside, and leaves memory once its bodies have ended.
    pub(crate) fn is_leaving(&self) -> bool {
        self.flush.results_only
    }

    pub(crate) fn bodies(&self) -> usize {
        self.core.state.borrow().bodies
    }

    /// The next commit, if one is to be made now.
    pub(crate) fn next_commit(&mut self) -> Option<Sent> {
        if self.in_flight() {
            return None;
        }
        if self.flush.results_only {
            return self.results_commit();
        }
        if self.stopping.is_some() && self.end.is_none() {
            // The store takes nothing from a run that is to be cancelled but its end. A run past its
            // deadline may be cancelled at any moment.
            return None;
        }
        let halt = self.core.state.borrow_mut().halt.take();
        // To end it takes neither code that matches nor a history that decodes.
        let ends = matches!(self.end, Some(End::Cancel)) && !self.flush.cancel_rollback;
        if let Some(halt) = halt.filter(|_| !ends) {
            return Some(self.pause(&halt));
        }
        match self.end.take() {
            Some(end) => Some(self.ending_commit(end)),
            None => self.moving_commit(),
        }
    }

    fn pause(&mut self, halt: &Halt) -> Sent {
        let reason = halt.to_string();
        tracing::warn!(
            run = %self.core.facts.id,
            workflow = &*self.core.facts.workflow,
            reason,
            "the run is paused"
        );
        // Code that does not match the history has no say in what is written.
        if self.core.state.borrow().mode != super::Mode::Live {
            self.core.state.borrow_mut().dirty.clear();
        }
        self.build(Patch::Pause { reason }, CommitKind::Pause, Scope::Everything)
    }

    /// Pauses the run because the store cannot take what it has done; nothing else is written.
    pub(crate) fn pause_commit(&mut self, reason: String) -> Commit {
        self.flush.sent = None;
        self.flush.unsent.clear();
        {
            let mut st = self.core.state.borrow_mut();
            st.dirty.clear();
            st.deletes.clear();
            st.consumed.clear();
            st.set_state.clear();
            st.effects.clear();
            st.taken = self.flush.stored_number;
        }
        self.build(Patch::Pause { reason }, CommitKind::Pause, Scope::Results).commit
    }

    /// What a finished run leaves.
    fn ending_commit(&mut self, end: End) -> Sent {
        let (status, output, error) = match end {
            End::Output(output) => (RunStatus::Completed, Some(output), None),
            End::Error(error) => match self.failure_commit(error) {
                Ok(sent) => return sent,
                Err(error) => (RunStatus::Failed, None, Some(error)),
            },
            End::Cancel => {
                if self.flush.cancel_rollback && self.has_compensations() {
                    self.note_end(&[]);
                    return self.roll_back(RunStatus::Cancelled, None);
                }
                (RunStatus::Cancelled, None, None)
            }
            End::Continue(next) => {
                let patch = Patch::Continue {
                    workflow: next.workflow,
                    version: next.version,
                    pool: next.pool,
                    input: next.input,
                };
                return self.build(patch, CommitKind::Continue, Scope::Everything);
            }
            End::RolledBack => {
                let ending = self.flush.ending.unwrap_or(RunStatus::Failed);
                (ending, None, self.flush.error.clone())
            }
        };
        let scope = match status {
            RunStatus::Completed => Scope::Everything,
            RunStatus::Cancelled => Scope::Results,
            _ => Scope::Failure,
        };
        self.build(Patch::Finish { status, output, error }, CommitKind::Finish(status), scope)
    }

    /// A run that failed is tried again, paused, rolled back, or (`Err`) failed with this error.
    fn failure_commit(&mut self, error: Error) -> Result<Sent, Vec<u8>> {
        let failure = error.failure();
        tracing::warn!(
            run = %self.core.facts.id,
            workflow = &*self.core.facts.workflow,
            error = failure.full(),
            "the workflow failed"
        );
        let origins = error.origins();
        let pauses = self.pauses_on_failure() && failure.kind != FailureKind::Rollback;
        self.note_end(origins);
        if let Some(at) = self.next_run_attempt(&error) {
            let attempts = self.core.facts.attempts + 1;
            let waiting =
                format!("attempt {attempts} of the run at {at}, after: {}", failure.full());
            let status = RunStatus::Pending;
            let patch = Patch::Park { status, available_at: Some(at), waiting, attempts };
            return Ok(self.build(patch, CommitKind::Again, Scope::Failure));
        }
        if pauses {
            let reason = Halt::OnFailure { error: failure.full() }.to_string();
            return Ok(self.build(Patch::Pause { reason }, CommitKind::Pause, Scope::Failure));
        }
        let mut failure = failure.clone();
        failure.seal_details(&self.core.env.settings.codecs);
        let encoded = encode_failure(&failure);
        if self.has_compensations() {
            return Ok(self.roll_back(RunStatus::Failed, Some(encoded)));
        }
        Err(encoded)
    }

    /// Records where the code has ended: see [`Origins`].
    fn note_end(&mut self, origins: &[Box<[u8]>]) {
        // A cancel or the deadline can end the run before its history is replayed.
        let taken = self.core.state.borrow().taken.max(self.flush.stored_number);
        let put = Put { key: keys::failure_origins(), value: encode_origins(taken, origins) };
        self.flush.unsent.push(put);
    }

    /// When the run as a whole is tried again, by its workflow's own policy.
    fn next_run_attempt(&self, error: &Error) -> Option<Timestamp> {
        // An error that workflow code made itself would only be made again.
        let again = !error.origins().is_empty()
            && !matches!(
                error.kind(),
                FailureKind::Rollback | FailureKind::Fatal | FailureKind::Deadline
            );
        let facts = &self.core.facts;
        let policy = &self.definition().options.retry;
        let now = self.core.now();
        let seed = facts.id.no().0 as u64;
        again
            .then(|| {
                let advice = RetryAdvice::Policy;
                policy.next_attempt(facts.attempts, advice, now, facts.deadline_at, seed)
            })
            .flatten()
    }

    fn has_compensations(&self) -> bool {
        let st = self.core.state.borrow();
        to_compensate(&st.history).next().is_some()
    }

    fn roll_back(&mut self, ending: RunStatus, error: Option<Vec<u8>>) -> Sent {
        self.flush.ending = Some(ending);
        self.flush.error.clone_from(&error);
        let scope = match ending {
            RunStatus::Cancelled => Scope::Results,
            _ => Scope::Failure,
        };
        self.build(Patch::RollBack { ending, error }, CommitKind::RollBack, scope)
    }

    /// What a run that was paused from outside still has to say.
    fn results_commit(&mut self) -> Option<Sent> {
        if self.bodies() > 0 {
            return None;
        }
        self.end = None;
        self.keep_only_results();
        Some(self.build(Patch::Keep, CommitKind::Results, Scope::Results))
    }

    /// Leaves of what is not stored yet only what bodies and gates gave, as if nobody had taken it.
    ///
    /// What the code did when it took them (a reply, a state, a message that it consumed) cannot
    /// be written now. Without the numbers it is done when the run goes on.
    fn keep_only_results(&mut self) {
        let stored = self.flush.stored_number;
        let st = &mut *self.core.state.borrow_mut();
        let refused = std::mem::take(&mut self.flush.unsent);
        let refused = refused.into_iter().filter_map(|put| {
            let entry = decode_entry(&put.value).ok()?;
            let is_entry =
                put.key.starts_with(keys::HISTORY) || put.key.starts_with(keys::ROLLBACKS);
            is_entry.then_some((put.key, entry))
        });
        let mut entries: Vec<(Vec<u8>, Entry)> = refused.collect();
        for key in std::mem::take(&mut st.dirty) {
            if let Some(slot) = st.history.get_mut(&key) {
                slot.dirty = false;
                entries.push((key.to_vec(), slot.entry.clone()));
            }
        }
        for (key, mut entry) in entries {
            // The way that a gate has led to a body goes with its result.
            let is_kept = matches!(
                entry.kind,
                EntryKind::Step | EntryKind::Rollback | EntryKind::Transaction | EntryKind::Version
            );
            let ended = entry.status != EntryStatus::Running;
            // What was made after a number that is not stored is made again.
            if is_kept && ended && entry.born <= stored {
                entry.number = entry.number.filter(|number| *number <= stored);
                let value = encode_entry(&entry);
                self.flush.unsent.push(Put { key, value });
            }
        }
        st.taken = stored;
        st.deletes.clear();
        st.consumed.clear();
        st.set_state.clear();
        st.effects.clear();
        st.sends.clear();
        st.transactions.clear();
        st.timeouts.clear();
    }

    /// A run that goes on: parked, flushed, or nothing to write.
    fn moving_commit(&mut self) -> Option<Sent> {
        if let Some((available_at, waiting)) = self.at_rest() {
            let view = RowView::Parked(available_at, waiting.clone());
            if self.flush.row.as_ref() == Some(&view) && !self.must_flush() {
                return None;
            }
            let attempts = self.core.facts.attempts;
            let status = RunStatus::Sleeping;
            let patch = Patch::Park { status, available_at, waiting, attempts };
            return Some(self.build(patch, CommitKind::Park, Scope::Everything));
        }
        if !self.must_flush() {
            return None;
        }
        let patch = match self.flush.row {
            Some(RowView::Running) => Patch::Keep,
            Some(RowView::Recovered) if !self.has_progress() => Patch::Keep,
            _ => Patch::Run { inbox_seq: self.core.state.borrow().inbox.seen() },
        };
        Some(self.build(patch, CommitKind::Flush, Scope::Everything))
    }

    /// Whether the next commit holds more than which bodies have begun.
    fn has_progress(&self) -> bool {
        let st = self.core.state.borrow();
        let ended = |key: &Key| {
            let slot = st.history.get(key);
            slot.is_some_and(|slot| slot.entry.status != EntryStatus::Running)
        };
        st.taken > self.flush.stored_number || st.dirty.iter().any(ended)
    }

    /// Whether somebody needs what has changed to be durable.
    fn must_flush(&self) -> bool {
        let st = self.core.state.borrow();
        st.firm > st.durable
            || self.core.waits_to_start(&st)
            || st.show
            || !st.sends.is_empty()
            || !st.transactions.is_empty()
            || !st.timeouts.is_empty()
            || !self.flush.unsent.is_empty()
            || st.effects.iter().any(registers)
    }

    /// If nothing but time and messages can move the run: when, and what it waits for in words.
    fn at_rest(&self) -> Option<(Option<Timestamp>, String)> {
        if let Some((turn, waiting)) = self.at_gate() {
            let times = [turn, self.core.facts.deadline_at];
            return Some((times.into_iter().flatten().min(), waiting));
        }
        let st = self.core.state.borrow();
        if st.mode != super::Mode::Live
            || st.bodies > 0
            || !st.sends.is_empty()
            || !st.timeouts.is_empty()
            || st.has_undeclined()
        {
            return None;
        }
        let mut available_at: Option<Timestamp> = None;
        let mut waits: Vec<String> = Vec::new();
        for (_, op) in st.ops.iter() {
            let (at, what) = match op.phase {
                Phase::Waiting { wake_at } => {
                    let what = match op.kind {
                        crate::history::EntryKind::Sleep => "sleep",
                        _ => "next attempt of",
                    };
                    (Some(wake_at), what)
                }
                Phase::Listening { wake_at } => (wake_at, "message for"),
                Phase::Awaiting { wake_at } => (wake_at, awaited(op.kind)),
                Phase::WantStart { .. } | Phase::Body { .. } | Phase::Committing => return None,
                _ => continue,
            };
            if waits.len() < WAITS_IN_ROW {
                let place = super::Core::location(&op.key);
                let limit = op.limit.as_ref().filter(|_| op.waits_for_limit(&st.inbox));
                let limit = limit.map(|limit| format!("{limit} for"));
                let what = limit.as_deref().unwrap_or(what);
                waits.push(match at {
                    Some(at) => format!("{what} `{place}` until {at}"),
                    None => format!("{what} `{place}`"),
                });
            }
            available_at = match (available_at, at) {
                (Some(a), Some(b)) => Some(a.min(b)),
                (a, b) => a.or(b),
            };
        }
        if waits.is_empty() {
            return None;
        }
        waits.sort();
        let deadline = self.core.facts.deadline_at.filter(|_| self.stage == Stage::Forward);
        let available_at = [available_at, deadline].into_iter().flatten().min();
        Some((available_at, waits.join("; ")))
    }

    fn build(&mut self, patch: Patch, kind: CommitKind, scope: Scope) -> Sent {
        let now = self.core.now();
        let st = &mut *self.core.state.borrow_mut();
        let parking = matches!(kind, CommitKind::Park);
        let mut timeouts = match scope {
            Scope::Everything => std::mem::take(&mut st.timeouts),
            Scope::Results | Scope::Failure => Vec::new(),
        };
        // A wait that was given up meanwhile makes no condition: above all, the end of a run must
        // not be refused because of it.
        timeouts.retain(|id| st.ops.get(*id).is_some());
        // A wait is registered before its time can run out: what it waits for may have been there when
        // it began, and only the store can tell. The next commit says that the time ran out, and is
        // refused if there was an answer.
        let (unregistered, timeouts) =
            timeouts.into_iter().partition::<Vec<_>, _>(|id| st.is_to_be_registered(*id));
        st.timeouts.extend(unregistered);
        for id in &timeouts {
            let Some(key) = st.ops.get(*id).map(|op| op.key.clone()) else {
                continue;
            };
            let kind = st.history.get(&key).and_then(|slot| slot.entry.kind.answered_by());
            if let Some(kind) = kind {
                let key = key.to_vec();
                st.effects.push(Effect::Abandon { kind, key });
            }
            if let Some(slot) = st.history.get_mut(&key) {
                slot.entry.status = EntryStatus::TimedOut;
                slot.entry.completed_at = Some(now);
                if !slot.dirty {
                    slot.dirty = true;
                    st.dirty.push(key);
                }
            }
        }
        let breaks = |sabotage| self.core.env.settings.breaks(sabotage);
        let is_checked = (parking && !breaks(Sabotage::ParkUnseen))
            || (!timeouts.is_empty() && !breaks(Sabotage::TimeOutUnseen));
        let inbox_seq = is_checked.then(|| st.inbox.seen());
        let mut puts = std::mem::take(&mut self.flush.unsent);
        let folded = !puts.is_empty();
        for key in std::mem::take(&mut st.dirty) {
            let Some(slot) = st.history.get_mut(&key) else {
                continue;
            };
            slot.dirty = false;
            if scope != Scope::Everything && !slot.entry.status.is_terminal() {
                continue;
            }
            puts.push(Put { key: key.to_vec(), value: encode_entry(&slot.entry) });
            self.core.forget_if_done(st, &key);
        }
        if folded {
            puts = keep_last(puts);
        }
        let (mut effects, sends, state) = match scope {
            Scope::Everything => (
                std::mem::take(&mut st.effects),
                std::mem::take(&mut st.sends),
                std::mem::take(&mut st.set_state),
            ),
            Scope::Failure => {
                let mut effects = std::mem::take(&mut st.effects);
                effects.retain(|effect| {
                    matches!(
                        effect,
                        Effect::Reply { .. }
                            | Effect::Emit(_)
                            | Effect::Tag { .. }
                            | Effect::Took { .. }
                            | Effect::Abandon { .. }
                    )
                });
                (effects, Vec::new(), std::mem::take(&mut st.set_state))
            }
            Scope::Results => Default::default(),
        };
        let transactions = match scope {
            Scope::Everything => st.take_transactions(),
            Scope::Failure | Scope::Results => Vec::new(),
        };
        effects.extend(transactions.iter().map(PendingTransaction::effect));
        // These take the mark from the row that it is due, which may be that of a resumption.
        if scope == Scope::Everything && matches!(patch, Patch::Park { .. } | Patch::Run { .. }) {
            ask_again(st, self.gate.as_ref(), &mut effects);
        }
        st.show = false;
        if effects.iter().any(|effect| matches!(effect, Effect::Emit(_))) {
            puts.push(Put { key: keys::emitted(), value: st.emit_mark.encode() });
        }
        if self.core.env.settings.breaks(Sabotage::DoubleConsume) {
            st.consumed.clear();
        }
        if self.core.env.settings.breaks(Sabotage::LostAbandon) {
            effects.retain(|effect| !matches!(effect, Effect::Abandon { .. }));
        }
        let commit = Commit {
            run: self.core.facts.id.no(),
            generation: self.core.facts.generation,
            inbox_seq,
            results_only: kind == CommitKind::Results,
            last_number: st.taken.max(self.flush.stored_number),
            numbers: st.taken.saturating_sub(self.flush.stored_number),
            deletes: std::mem::take(&mut st.deletes),
            puts,
            consumed: std::mem::take(&mut st.consumed),
            state,
            effects,
            patch,
        };
        let parked = match &commit.patch {
            Patch::Park { available_at, waiting, .. } => {
                Some(RowView::Parked(*available_at, waiting.clone()))
            }
            Patch::Run { .. } => Some(RowView::Running),
            _ => None,
        };
        // All that they wait for is in this commit.
        st.holds_offers = self.core.must_hold_offers(st);
        self.flush.sent = Some(InFlight {
            kind,
            revision: st.revision,
            number: commit.last_number,
            sends,
            transactions,
            timeouts,
            parked,
        });
        Sent { commit, kind }
    }

    /// The commit in flight is durable.
    pub(crate) fn committed(&mut self, done: &[EffectDone]) -> Next {
        let Some(sent) = self.flush.sent.take() else {
            return Next::Drive;
        };
        self.flush.stored_number = sent.number;
        {
            let mut st = self.core.state.borrow_mut();
            st.durable = st.durable.max(sent.revision);
            st.holds_offers = false;
        }
        if let Some(view) = sent.parked {
            self.flush.row = Some(view);
            // The row says that the run has made progress, so it is no suspect any more.
            self.core.state.borrow_mut().suspect = false;
        }
        match sent.kind {
            CommitKind::Flush | CommitKind::Park => {}
            CommitKind::Continue => return Next::Reload,
            CommitKind::RollBack => {
                self.flush.row = Some(RowView::Running);
                return self.begin_rollback();
            }
            // The row may be live: the run was resumed since its owner has heard of the pause. Then
            // no other process would take it up.
            CommitKind::Results if !self.is_put_away(done) => return Next::Reload,
            CommitKind::Again | CommitKind::Pause | CommitKind::Results | CommitKind::Finish(_) => {
                return Next::Drop;
            }
        }
        for (id, done) in sent.sends.iter().zip(done) {
            self.core.effect_done(*id, done);
        }
        for transaction in sent.transactions {
            self.core.transaction_done(transaction);
        }
        self.core.timeouts_done(&sent.timeouts);
        self.core.wake_starters();
        Next::Drive
    }

    fn is_put_away(&self, done: &[EffectDone]) -> bool {
        done.contains(&EffectDone::PutAway)
            || self.core.env.settings.breaks(Sabotage::GivePlaceAway)
    }

    /// What [`Sabotage::GivePlaceAway`] writes after results: the run gives its places away,
    /// whatever its row says.
    #[cfg(feature = "sabotage")]
    pub(crate) fn gives_places_away(&self) -> Option<Commit> {
        let is_meant = self.core.env.settings.breaks(Sabotage::GivePlaceAway);
        if !is_meant || !self.is_leaving() {
            return None;
        }
        let st = self.core.state.borrow();
        let limited = st.ops.iter().filter(|(_, op)| op.limit.is_some());
        let places = limited.map(|(_, op)| op.key.to_vec());
        let effects = places.chain([keys::START.to_vec()]).map(|key| {
            let kind = crate::commit::InboxKind::LimitGrant;
            Effect::Abandon { kind, key }
        });
        Some(Commit {
            run: self.core.facts.id.no(),
            generation: self.core.facts.generation,
            inbox_seq: None,
            results_only: false,
            last_number: self.flush.stored_number,
            numbers: 0,
            deletes: Vec::new(),
            puts: Vec::new(),
            consumed: Vec::new(),
            state: Vec::new(),
            effects: effects.collect(),
            patch: Patch::Keep,
        })
    }

    /// The commit in flight was refused, and has changed nothing. Here it is again.
    pub(crate) fn refused(&mut self, refusal: Refusal, commit: Commit) -> Next {
        let Some(sent) = self.flush.sent.take() else {
            return Next::Drive;
        };
        self.core.state.borrow_mut().holds_offers = false;
        match refusal {
            // It is another's. If it is not, the engine finds out and reads it again.
            Refusal::Fenced => return Next::Drop,
            // It has ended, or begun anew: then its row says that it is in its owner's memory.
            Refusal::Gone => return Next::Reload,
            // The answer to other writes.
            Refusal::KeyUsed { .. } | Refusal::TagsFull { .. } => return Next::Reload,
            // What is in memory does not follow what is stored.
            Refusal::Gap { .. } => return Next::Reload,
            Refusal::InboxMoved { rows, seq } => {
                self.take_back(commit);
                self.keep_registered(&sent.timeouts);
                {
                    let mut st = self.core.state.borrow_mut();
                    st.sends.splice(0..0, sent.sends);
                    st.transactions.splice(0..0, sent.transactions);
                }
                self.core.deliver(rows);
                // What was taken back is in no row, and counts. Without it every commit would be refused.
                self.core.state.borrow_mut().inbox.set_seen(seq);
                self.core.timeouts_refused(&sent.timeouts);
                self.flush.row = None;
            }
            Refusal::CancelRequested { rollback } => {
                self.take_back(commit);
                self.keep_registered(&sent.timeouts);
                self.core.timeouts_refused(&sent.timeouts);
                self.end = None;
                self.request_cancel(rollback);
            }
            Refusal::Paused => {
                self.take_back(commit);
                self.drain(true);
            }
        }
        Next::Drive
    }

    /// Puts what a refused commit held back, in front of what has come since.
    fn take_back(&mut self, commit: Commit) {
        let mut st = self.core.state.borrow_mut();
        let mut puts = commit.puts;
        // It goes with the items, which may be left out of the next commit.
        puts.retain(|put| put.key != keys::emitted());
        puts.append(&mut self.flush.unsent);
        self.flush.unsent = puts;
        st.deletes.splice(0..0, commit.deletes);
        st.consumed.splice(0..0, commit.consumed);
        st.set_state.splice(0..0, commit.state);
        // Transactions are kept with their operations, which may be gone.
        let mut effects = commit.effects;
        effects.retain(|effect| !matches!(effect, Effect::Transaction(_)));
        st.effects.splice(0..0, effects);
    }

    /// Waits that were to run out go on: what they have registered stays.
    fn keep_registered(&mut self, timeouts: &[OpId]) {
        let st = &mut *self.core.state.borrow_mut();
        let ops = timeouts.iter().filter_map(|id| st.ops.get(*id));
        let keys: Vec<Key> = ops.map(|op| op.key.clone()).collect();
        st.effects.retain(|effect| match effect {
            Effect::Abandon { key, .. } => !keys.iter().any(|kept| kept[..] == key[..]),
            _ => true,
        });
    }

    /// Messages that have arrived.
    pub(crate) fn deliver(&mut self, rows: Vec<InboxRow>) {
        self.core.deliver(rows);
        self.row_touched();
    }

    /// The last message that is in memory, read or not.
    pub(crate) fn inbox_seen(&self) -> u64 {
        self.core.state.borrow().inbox.seen()
    }
}

/// Whether somebody else waits for this effect, or this run for its answer, and nothing else would
/// bring it to the store.
fn registers(effect: &Effect) -> bool {
    matches!(effect, Effect::Abandon { .. } | Effect::Acquire(_) | Effect::Release { .. })
}

/// What an operation of this kind waits for, in words before its location.
fn awaited(kind: EntryKind) -> &'static str {
    match kind {
        EntryKind::Event => "event for",
        EntryKind::Deferred => "deferred",
        EntryKind::Peek => "look at",
        EntryKind::Child => "child",
        EntryKind::Finished => "end of a run for",
        EntryKind::Enqueue => "queue item",
        EntryKind::Limit => "limit",
        _ => "answer for",
    }
}

/// What of a run goes into a commit.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Scope {
    /// All that has changed.
    Everything,
    /// What has ended.
    Results,
    /// What has ended, and what the code has said before it failed: replies, items and values.
    Failure,
}

/// The last put of each key, in order.
fn keep_last(puts: Vec<Put>) -> Vec<Put> {
    let mut seen = std::collections::HashSet::new();
    let mut kept: Vec<Put> = Vec::with_capacity(puts.len());
    for put in puts.into_iter().rev() {
        if seen.insert(put.key.clone()) {
            kept.push(put);
        }
    }
    kept.reverse();
    kept
}

/// The format of [`encode_origins`].
const ORIGINS_VERSION: u16 = 1;

/// [`Origins`] as they are stored: a 2-byte version, then BARE.
fn encode_origins(taken: u64, origins: &[Box<[u8]>]) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut writer = bare::Writer::new(&mut bytes);
    writer.u16(ORIGINS_VERSION);
    writer.uint(taken);
    writer.list(origins, |writer, key| writer.data(key));
    bytes
}

/// Where the code of a run that has failed, or is cancelled with rollback, has ended. A retry of the run
/// makes fresh what its error came from. The rollbacks above `taken` are those at the end of the run; the
/// others were made by races.
pub(crate) struct Origins {
    /// The highest number that the code had taken.
    pub(super) taken: u64,
    /// The keys of the entries that its error came from. None if the code made the error itself.
    pub(crate) keys: Vec<Vec<u8>>,
}

pub(crate) fn decode_origins(bytes: &[u8]) -> Option<Origins> {
    let mut reader = bare::Reader::new(bytes);
    if reader.u16().ok()? != ORIGINS_VERSION {
        return None;
    }
    let taken = reader.uint().ok()?;
    let keys = reader.list(|reader| reader.data().map(<[u8]>::to_vec)).ok()?;
    reader.finish().ok()?;
    Some(Origins { taken, keys })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_origins_of_a_failure_have_a_fixed_format() {
        let bytes = encode_origins(300, &[Box::from(&b"\x15\x02"[..])]);
        assert_eq!(bytes, [1, 0, 0xAC, 2, 1, 2, 0x15, 2]);
        let origins = decode_origins(&bytes).expect("its own bytes");
        assert_eq!((origins.taken, origins.keys), (300, vec![vec![0x15, 2]]));
        assert!(decode_origins(&bytes[..6]).is_none());
        assert!(decode_origins(&[2, 0, 0, 0]).is_none());
    }
}
