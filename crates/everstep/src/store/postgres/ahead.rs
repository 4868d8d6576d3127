//! Rows by table and key that a batch knows without asking: read ahead, or written by the batch.
//!
//! The rules ask for one row at a time, and here each question is a round trip. So everything that a
//! batch names is read at its beginning ([`Applier::lock_and_read`]); and of a batch in which a thousand
//! runs end, what they have elsewhere is read before anything is decided about the first
//! ([`Applier::look_ahead`]).
//!
//! Always true: a row that is kept here is what the server would say. It is under a lock, of its own or
//! of its run, so that nobody else changes it; what the batch itself writes is noted here, or makes this
//! forget the row. What is not here is asked for.

use std::{
    collections::{BTreeSet, HashMap},
    hash::Hash,
};

use super::{
    batch::Applier,
    children, columns,
    error::Trouble,
    events,
    locks::Named,
    queues,
    session::Op,
    streams,
    value::{Row, params},
};
use crate::{
    commit::{Batch, Effect, InboxKind, InboxRow},
    hash::FastMap,
    run_id::RunNo,
    store::{
        ScheduleRow,
        rules::{
            effects,
            events::{EventName, EventWaiter, StoredEvent},
            tables::{Keyed, Waiter, links},
        },
    },
};

/// Rows by key; `None` where there is no such row, nothing where nobody has asked.
pub(super) type Rows<K, V> = HashMap<K, Option<V>>;

/// A query of [`Applier::read_ahead`], and what takes in the answer.
pub(super) type Asked<'a> = (Op, fn(&mut Applier<'a>, &[Row]) -> Result<(), Trouble>);

/// The rows that a batch knows, besides those of runs.
#[derive(Default)]
pub(super) struct Ahead {
    /// The rows of event names that are locked.
    pub(super) event_names: Rows<String, EventName>,
    /// Workflows and keys.
    pub(super) keys: Rows<(String, String), Keyed>,
    pub(super) schedules: Rows<String, ScheduleRow>,
    pub(super) queues: queues::Known,
    pub(super) tails: streams::Tails,
    /// The inboxes of runs that end or take an event, without plain messages, in order.
    inbox: FastMap<RunNo, Vec<InboxRow>>,
    /// The events that these runs wait for, in the order of generation and operation.
    waits: FastMap<RunNo, Vec<EventWaiter>>,
    /// The cursors of these runs, by name and key.
    cursors: FastMap<RunNo, HashMap<(String, String), u64>>,
    /// The events that these runs were given.
    events: Rows<(String, u64), StoredEvent>,
    /// Those who wait for the end of these runs; their rows are locked, too.
    watchers: FastMap<RunNo, Vec<Waiter>>,
}

/// The runs that something will be asked about.
#[derive(Default)]
struct Looked {
    runs: Vec<i64>,
    /// Those of them that may have to do with events.
    with_events: Vec<i64>,
    /// Those of them whose end somebody may wait for.
    watched: Vec<i64>,
}

impl<'a> Applier<'a> {
    /// Reads what the commits of this batch will need, in one round trip or two.
    pub(super) fn look_ahead(&mut self, batch: &Batch) -> Result<(), Trouble> {
        let Looked {
            runs,
            with_events,
            watched,
        } = self.looked_at(batch);
        if runs.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "SELECT {}, run FROM everstep_inbox WHERE run = ANY ($1) \
             AND (kind <> 0 OR on_end IS NOT NULL) ORDER BY run, seq",
            columns::INBOX_ROW
        );
        self.ahead.inbox = empty(&runs);
        let mut asked: Vec<Asked<'a>> = vec![(Op::new(sql, params![runs]), |applier, rows| {
            applier.ahead.add_inbox(rows)
        })];
        if !with_events.is_empty() {
            let [waits, cursors, events] = events::ops_ahead(&with_events);
            (self.ahead.waits, self.ahead.cursors) = (empty(&with_events), empty(&with_events));
            asked.push((waits, |applier, rows| applier.ahead.add_waits(rows)));
            asked.push((cursors, |applier, rows| applier.ahead.add_cursors(rows)));
            asked.push((events, |applier, rows| applier.ahead.add_events(rows)));
        }
        if !watched.is_empty() {
            self.ahead.watchers = empty(&watched);
            asked.push((children::watchers(watched), Self::take_watching));
        }
        self.read_ahead(asked)
    }

    fn looked_at(&self, batch: &Batch) -> Looked {
        let mut looked = Looked::default();
        if self.fence.is_none() {
            return looked;
        }
        for commit in batch.commits() {
            let Some(Some(head)) = self.heads.get(&commit.run) else {
                continue;
            };
            let ends = head.links != 0 && effects::has_sequel(commit);
            let takes =
                |effect: &Effect| matches!(effect, Effect::Took { .. } | Effect::Abandon { .. });
            if !ends && !commit.effects.iter().any(takes) {
                continue;
            }
            let run = commit.run.0;
            looked.runs.push(run);
            if head.links & links::EVENTS != 0 {
                looked.with_events.push(run);
            }
            if ends && head.links & (links::WATCHED | links::CHILD) != 0 {
                looked.watched.push(run);
            }
        }
        looked
    }

    /// Locks the rows of those who wait, as far as nobody else has them. Until then they could give
    /// up waiting, so they are read again.
    fn take_watching(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        let waiting = rows.iter().map(|row| row.get(1).map(RunNo));
        let mut waiting: Vec<RunNo> = waiting.collect::<Result<_, _>>()?;
        waiting.sort_unstable();
        waiting.dedup();
        let again;
        let mut rows = rows;
        if !waiting.iter().all(|run| self.is_head_known(*run)) {
            let watched = self.ahead.watchers.keys().map(|run| run.0).collect();
            again = self.lock_heads_and_ask(&waiting, children::watchers(watched))?;
            rows = &again;
        }
        let mut watchers = std::mem::take(&mut self.ahead.watchers);
        for row in rows {
            let watchers = watchers.entry(RunNo(row.get(0)?)).or_default();
            watchers.push(children::waiter(row, 1)?);
        }
        watchers.retain(|_, all| all.iter().all(|it| self.is_head_known(it.run)));
        self.ahead.watchers = watchers;
        Ok(())
    }
}

/// Rows of which none is found yet.
pub(super) fn absent<K: Clone + Eq + Hash, V>(keys: &BTreeSet<K>) -> Rows<K, V> {
    keys.iter().map(|key| (key.clone(), None)).collect()
}

fn empty<T: Default>(runs: &[i64]) -> FastMap<RunNo, T> {
    let each = runs.iter().map(|run| (RunNo(*run), T::default()));
    each.collect()
}

impl Ahead {
    /// Nothing is read yet. A batch that names keys reads them before anything else.
    pub(super) fn of(named: &Named) -> Ahead {
        Ahead {
            keys: absent(&named.keys),
            queues: queues::Known::new(named),
            ..Ahead::default()
        }
    }

    fn add_inbox(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for row in rows {
            let rows = self.inbox.entry(RunNo(row.get(8)?)).or_default();
            rows.push(columns::inbox_row(row)?);
        }
        Ok(())
    }

    fn add_waits(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for row in rows {
            let waiter = events::waiter(row)?;
            if let Some(seq) = waiter.given {
                self.events.insert((waiter.name.clone(), seq), None);
            }
            let waits = self.waits.entry(waiter.waiter.run).or_default();
            waits.push(waiter);
        }
        Ok(())
    }

    fn add_events(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for row in rows {
            let event = events::event(row)?;
            self.events.insert((row.get(8)?, event.seq), Some(event));
        }
        Ok(())
    }

    fn add_cursors(&mut self, rows: &[Row]) -> Result<(), Trouble> {
        for row in rows {
            let cursors = self.cursors.entry(RunNo(row.get(0)?)).or_default();
            cursors.insert((row.get(1)?, row.get(2)?), columns::number(row, 3)?);
        }
        Ok(())
    }

    /// Takes what lies in the inbox of a run, if that is known: what is taken must be deleted.
    pub(super) fn take_inbox(
        &mut self,
        run: RunNo,
        mut is_taken: impl FnMut(&InboxRow) -> bool,
    ) -> Option<Vec<InboxRow>> {
        let rows = self.inbox.get_mut(&run)?;
        let (taken, left) = std::mem::take(rows)
            .into_iter()
            .partition(|row| is_taken(row));
        *rows = left;
        Some(taken)
    }

    /// A row was put into the inbox of a run.
    pub(super) fn arrived(&mut self, run: RunNo, row: &InboxRow) {
        let is_plain = row.kind == InboxKind::Message && row.on_end.is_none();
        if let Some(rows) = self.inbox.get_mut(&run).filter(|_| !is_plain) {
            rows.push(row.clone());
        }
    }

    /// A row of the inbox of a run is gone.
    pub(super) fn consumed(&mut self, run: RunNo, seq: u64) {
        if let Some(rows) = self.inbox.get_mut(&run) {
            rows.retain(|row| row.seq != seq);
        }
    }

    /// The waits of a run for events, if they are known.
    pub(super) fn waits(&self, run: RunNo) -> Option<&[EventWaiter]> {
        self.waits.get(&run).map(Vec::as_slice)
    }

    /// The waits of a run have changed in a way that is not followed here.
    pub(super) fn forget_waits(&mut self, run: RunNo) {
        self.waits.remove(&run);
    }

    /// A wait is gone.
    pub(super) fn waited(&mut self, gone: &EventWaiter) {
        if let Some(waits) = self.waits.get_mut(&gone.waiter.run) {
            waits.retain(|it| (it.no, &it.name) != (gone.no, &gone.name));
        }
    }

    /// The cursor of a run, if it is known.
    pub(super) fn cursor(&self, run: RunNo, name: &str, key: &str) -> Option<u64> {
        let cursors = self.cursors.get(&run)?;
        let found = cursors.get(&(name.to_owned(), key.to_owned()));
        Some(found.copied().unwrap_or(0))
    }

    pub(super) fn set_cursor(&mut self, run: RunNo, name: &str, key: &str, seq: u64) {
        if let Some(cursors) = self.cursors.get_mut(&run) {
            cursors.insert((name.to_owned(), key.to_owned()), seq);
        }
    }

    pub(super) fn forget_cursors(&mut self, run: RunNo) {
        self.cursors.remove(&run);
    }

    /// An event, or that there is none, if that is known.
    pub(super) fn event(&self, name: &str, seq: u64) -> Option<Option<StoredEvent>> {
        if self.events.is_empty() {
            return None;
        }
        self.events.get(&(name.to_owned(), seq)).cloned()
    }

    pub(super) fn forget_event(&mut self, name: &str, seq: u64) {
        if !self.events.is_empty() {
            self.events.remove(&(name.to_owned(), seq));
        }
    }

    /// A name was locked. What was read before that may be old.
    pub(super) fn forget_events(&mut self) {
        self.events.clear();
    }

    /// Who waits for the end of a run, if that is known.
    pub(super) fn take_watchers(&mut self, run: RunNo) -> Option<Vec<Waiter>> {
        self.watchers.remove(&run)
    }

    pub(super) fn forget_watchers(&mut self, run: RunNo) {
        self.watchers.remove(&run);
    }

    /// A run does not wait for others any more.
    pub(super) fn forget_watches(&mut self, by: RunNo) {
        let waits = |all: &Vec<Waiter>| all.iter().any(|it| it.run == by);
        self.watchers.retain(|_, all| !waits(all));
    }
}
