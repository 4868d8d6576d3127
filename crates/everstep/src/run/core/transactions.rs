//! Transactions of a run: from the wish to start, through a commit, to a result or the next
//! attempt.
//!
//! A transaction is a body, so it begins when everything before it is durable; but it runs in the
//! commit, which may be refused. Until that is made its operation is `Committing`.

use super::{Core, Phase, State};
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::history::{Key, encode_payload_prefix};
use crate::{
    commit::{Effect, Transaction},
    history::{Entry, EntryStatus, EntryValue, OpId},
    retry::Retry,
    telemetry::Watch,
};

/// A transaction that is on its way.
pub(crate) struct PendingTransaction {
    id: OpId,
    key: crate::history::Key,
    /// The entry that is written with it, without its payload.
    entry: Entry,
    work: Transaction,
    retry: Retry,
    watch: Option<Watch>,
}

impl PendingTransaction {
    pub(crate) fn effect(&self) -> Effect {
        Effect::Transaction(self.work.clone())
    }
}

impl State {
    /// The transactions for a commit. One whose operation was dropped meanwhile is not made.
    pub(crate) fn take_transactions(&mut self) -> Vec<PendingTransaction> {
        let mut transactions = std::mem::take(&mut self.transactions);
        transactions.retain(|pending| self.ops.get(pending.id).is_some());
        transactions
    }
}

impl Core {
    /// An attempt at a transaction begins: it goes into the next commit. `make` gets the key and
    /// the entry up to its payload.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    pub(crate) fn start_transaction(
        &self,
        id: OpId,
        retry: Retry,
        make: impl FnOnce(&Key, Vec<u8>, Option<&tracing::Span>) -> Transaction,
    ) {
        let st = &mut *self.state.borrow_mut();
        let now = self.now();
        let Some(op) = st.ops.get_mut(id) else { return };
        (op.phase, op.started_at, op.timed_out) = (Phase::Committing, now, false);
        let recorded = st.history.get(&op.key).map(|slot| slot.entry.clone());
        let mut entry = recorded.unwrap_or_else(|| op.entry());
        entry.status = EntryStatus::Completed;
        entry.compensable = op.compensable;
        entry.attempts += 1;
        (entry.started_at, entry.completed_at) = (Some(now), Some(now));
        entry.wake_at = None;
        entry.value = EntryValue::Payload(Vec::new());
        let key = op.key.clone();
        let watch = self.watch(&key, op.kind, entry.attempts);
        let span = watch.as_ref().and_then(Watch::span);
        let work = make(&key, encode_payload_prefix(&entry), span);
        st.transactions.push(PendingTransaction { id, key, entry, work, retry, watch });
    }

    /// The commit with this transaction was made: whatever became of it.
    pub(crate) fn transaction_done(&self, mut pending: PendingTransaction) {
        match pending.work.take_answer() {
            Some(Ok(payload)) => {
                if let Some(watch) = pending.watch.take() {
                    self.end_watch(watch, EntryStatus::Completed);
                }
                self.transaction_completed(pending, payload);
            }
            Some(Err(error)) => {
                self.finish_body(pending.id, Err(error), &pending.retry, true);
                if let (Some(watch), Some(status)) = (pending.watch, self.status_of(pending.id)) {
                    self.end_watch(watch, status);
                }
            }
            // Its turn comes with the next commit.
            None => self.state.borrow_mut().transactions.push(pending),
        }
    }

    fn transaction_completed(&self, pending: PendingTransaction, payload: Vec<u8>) {
        let st = &mut *self.state.borrow_mut();
        let PendingTransaction { id, key, mut entry, .. } = pending;
        entry.value = EntryValue::Payload(payload);
        st.suspect = false;
        st.entries += u64::from(st.history.get(&key).is_none());
        let op = st.ops.get_mut(id);
        // Nobody waits for it any more; but it has happened, and may have to be rolled back.
        if op.is_none() && !entry.compensable {
            return;
        }
        if let Some(op) = op {
            op.phase = Phase::Ready;
            let limited = op.limit.is_some();
            st.history.insert(key.clone(), entry).op = Some(id);
            st.make_available(id);
            if limited {
                st.give_back(&key);
            }
        } else {
            st.history.insert(key, entry);
        }
    }
}
