//! Rows by table and key that a batch knows without asking: read ahead, or written by the batch.
//!
//! Always true: a row that is kept here is what the database would say. Where others can write, it is
//! under a lock, of its own or of its run; what the batch itself writes is noted here, or makes this
//! forget the row. What is not here is asked for. A body of the user's in the same transaction makes the
//! batch forget all of it.

use std::collections::HashMap;

use super::{children::Watches, streams::Tails};
use crate::{
    commit::{InboxKind, InboxRow},
    hash::FastMap,
    pool::PoolNo,
    run_id::RunNo,
    store::{
        Finished, ScheduleRow,
        rows::{EventName, EventWaiter, Keyed, StoredEvent, Waiter},
    },
};

/// Rows by key; `None` where there is no such row, nothing where nobody has asked.
pub(crate) type Rows<K, V> = HashMap<K, Option<V>>;

/// The rows that a batch knows, besides those of runs.
#[derive(Default)]
pub(crate) struct Ahead {
    /// The rows of event names that are locked.
    pub(crate) event_names: Rows<String, EventName>,
    /// Workflows and keys.
    pub(crate) keys: Rows<(String, String), Keyed>,
    pub(crate) schedules: Rows<String, ScheduleRow>,
    pub(crate) tails: Tails,
    /// The numbers of pools.
    pub(crate) pools: HashMap<String, PoolNo>,
    /// What the batch has last done about the waits of a run for the end of others.
    pub(crate) watches: FastMap<RunNo, Watches>,
    /// How runs have ended by commits of this batch.
    pub(crate) endings: FastMap<RunNo, Finished>,
    /// The inboxes of runs that end or take an event, without plain messages, in order.
    pub(crate) inbox: FastMap<RunNo, Vec<InboxRow>>,
    /// The events that these runs wait for, in the order of generation and operation.
    pub(crate) waits: FastMap<RunNo, Vec<EventWaiter>>,
    /// The cursors of these runs, by name and key.
    pub(crate) cursors: FastMap<RunNo, HashMap<(String, String), u64>>,
    /// The events that these runs were given.
    pub(crate) events: Rows<(String, u64), StoredEvent>,
    /// Those who wait for the end of these runs; their rows are locked, too.
    pub(crate) watchers: FastMap<RunNo, Vec<Waiter>>,
}

impl Ahead {
    /// Takes what lies in the inbox of a run, if that is known: what is taken must be deleted.
    pub(crate) fn take_inbox(
        &mut self,
        run: RunNo,
        mut is_taken: impl FnMut(&InboxRow) -> bool,
    ) -> Option<Vec<InboxRow>> {
        let rows = self.inbox.get_mut(&run)?;
        let (taken, left) = std::mem::take(rows).into_iter().partition(|row| is_taken(row));
        *rows = left;
        Some(taken)
    }

    /// A row was put into the inbox of a run.
    pub(crate) fn arrived(&mut self, run: RunNo, row: &InboxRow) {
        let is_plain = row.kind == InboxKind::Message && row.on_end.is_none();
        if let Some(rows) = self.inbox.get_mut(&run).filter(|_| !is_plain) {
            rows.push(row.clone());
        }
    }

    /// A row of the inbox of a run is gone.
    pub(crate) fn consumed(&mut self, run: RunNo, seq: u64) {
        if let Some(rows) = self.inbox.get_mut(&run) {
            rows.retain(|row| row.seq != seq);
        }
    }

    /// The waits of a run for events, if they are known.
    pub(crate) fn waits(&self, run: RunNo) -> Option<&[EventWaiter]> {
        self.waits.get(&run).map(Vec::as_slice)
    }

    /// The waits of a run have changed in a way that is not followed here.
    pub(crate) fn forget_waits(&mut self, run: RunNo) {
        self.waits.remove(&run);
    }

    /// A wait is gone.
    pub(crate) fn waited(&mut self, gone: &EventWaiter) {
        if let Some(waits) = self.waits.get_mut(&gone.waiter.run) {
            waits.retain(|it| (it.no, &it.name) != (gone.no, &gone.name));
        }
    }

    /// The cursor of a run, if it is known.
    pub(crate) fn cursor(&self, run: RunNo, name: &str, key: &str) -> Option<u64> {
        let cursors = self.cursors.get(&run)?;
        let found = cursors.get(&(name.to_owned(), key.to_owned()));
        Some(found.copied().unwrap_or(0))
    }

    pub(crate) fn set_cursor(&mut self, run: RunNo, name: &str, key: &str, seq: u64) {
        if let Some(cursors) = self.cursors.get_mut(&run) {
            cursors.insert((name.to_owned(), key.to_owned()), seq);
        }
    }

    pub(crate) fn forget_cursors(&mut self, run: RunNo) {
        self.cursors.remove(&run);
    }

    /// An event, or that there is none, if that is known.
    pub(crate) fn event(&self, name: &str, seq: u64) -> Option<Option<StoredEvent>> {
        if self.events.is_empty() {
            return None;
        }
        self.events.get(&(name.to_owned(), seq)).cloned()
    }

    pub(crate) fn forget_event(&mut self, name: &str, seq: u64) {
        if !self.events.is_empty() {
            self.events.remove(&(name.to_owned(), seq));
        }
    }

    /// A name was locked. What was read before that may be old.
    #[cfg(feature = "postgres")]
    pub(crate) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Who waits for the end of a run, if that is known.
    pub(crate) fn take_watchers(&mut self, run: RunNo) -> Option<Vec<Waiter>> {
        self.watchers.remove(&run)
    }

    pub(crate) fn forget_watchers(&mut self, run: RunNo) {
        self.watchers.remove(&run);
    }

    /// A run does not wait for others any more.
    pub(crate) fn forget_watches(&mut self, by: RunNo) {
        let waits = |all: &Vec<Waiter>| all.iter().any(|it| it.run == by);
        self.watchers.retain(|_, all| !waits(all));
    }
}
