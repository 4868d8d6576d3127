//! What will be asked about runs that end or take an event, asked for all of them at once.
//!
//! The rules ask for one row at a time, and here each question is a round trip. Of a batch in which a
//! thousand runs end, what they have elsewhere is read before anything is decided about the first.
//!
//! Always true: what is kept here is what the server would say. The rows of these runs are locked, so
//! nobody else changes what hangs on them; what the batch itself writes about them is noted here, or
//! makes this forget them. What is not here is asked for.

use std::collections::HashMap;

use super::{
    batch::Applier,
    children, columns,
    error::Trouble,
    events,
    session::Op,
    value::{Row, params},
};
use crate::{
    commit::{Batch, Effect, InboxKind, InboxRow, Write},
    hash::FastMap,
    run_id::RunNo,
    store::rules::{
        effects,
        events::{EventWaiter, StoredEvent},
        tables::{Waiter, links},
    },
};

/// What is known of the runs of a batch besides their rows.
#[derive(Default)]
pub(super) struct Ahead {
    /// What lies in their inboxes besides plain messages, in order.
    inbox: FastMap<RunNo, Vec<InboxRow>>,
    /// The events that they wait for, in the order of generation and operation.
    waits: FastMap<RunNo, Vec<EventWaiter>>,
    /// Their cursors, by name and key.
    cursors: FastMap<RunNo, HashMap<(String, String), u64>>,
    /// The events that they were given.
    events: HashMap<(String, u64), Option<StoredEvent>>,
    /// Who waits for their end; the rows of those are locked, too.
    watchers: FastMap<RunNo, Vec<Waiter>>,
}

/// The runs that something will be asked about.
#[derive(Default)]
struct Asked {
    runs: Vec<i64>,
    /// Those of them that may have to do with events.
    with_events: Vec<i64>,
    /// Those of them whose end somebody may wait for.
    watched: Vec<i64>,
}

impl Applier<'_> {
    /// Reads what the commits of this batch will need, in one round trip or two.
    pub(super) fn look_ahead(&mut self, batch: &Batch) -> Result<(), Trouble> {
        let asked = self.asked(batch);
        if asked.runs.is_empty() {
            return Ok(());
        }
        let mut ops = vec![Op::new(
            format!(
                "SELECT {}, run FROM inbox WHERE run = ANY ($1) \
                 AND (kind <> 0 OR on_end IS NOT NULL) ORDER BY run, seq",
                columns::INBOX_ROW
            ),
            params![asked.runs],
        )];
        if !asked.with_events.is_empty() {
            ops.extend(events::ops_ahead(&asked.with_events));
        }
        if !asked.watched.is_empty() {
            ops.push(Op::new(children::WATCHERS, params![asked.watched]));
        }
        let mut answers = self.session.queries(ops)?.into_iter();
        let inbox = answers.next().unwrap_or_default();
        self.ahead.add_inbox(&asked.runs, &inbox)?;
        if !asked.with_events.is_empty() {
            let mut next = || answers.next().unwrap_or_default();
            let (waits, cursors, events) = (next(), next(), next());
            self.ahead.add_waits(&asked.with_events, &waits, &events)?;
            self.ahead.add_cursors(&asked.with_events, &cursors)?;
        }
        if !asked.watched.is_empty() {
            let watchers = answers.next().unwrap_or_default();
            self.add_watchers(&asked.watched, watchers)?;
        }
        Ok(())
    }

    fn asked(&self, batch: &Batch) -> Asked {
        let mut asked = Asked::default();
        if self.fence.is_none() {
            return asked;
        }
        for write in &batch.writes {
            let Write::Commit(commit) = write else {
                continue;
            };
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
            asked.runs.push(run);
            if head.links & links::EVENTS != 0 {
                asked.with_events.push(run);
            }
            if ends && head.links & (links::WATCHED | links::CHILD) != 0 {
                asked.watched.push(run);
            }
        }
        asked
    }

    /// Locks the rows of those who wait, as far as nobody else has them. Until then they could give
    /// up waiting, so they are read again.
    fn add_watchers(&mut self, watched: &[i64], mut rows: Vec<Row>) -> Result<(), Trouble> {
        let waiting = rows.iter().map(|row| row.get(1).map(RunNo));
        let mut waiting: Vec<RunNo> = waiting.collect::<Result<_, _>>()?;
        waiting.sort_unstable();
        waiting.dedup();
        if !waiting.iter().all(|run| self.is_head_known(*run)) {
            let again = Op::new(children::WATCHERS, params![watched.to_vec()]);
            rows = self.lock_heads_and_ask(&waiting, again)?;
        }
        let mut watchers: FastMap<RunNo, Vec<Waiter>> = empty(watched);
        for row in &rows {
            let run = RunNo(row.get(0)?);
            watchers
                .entry(run)
                .or_default()
                .push(children::waiter(row, 1)?);
        }
        watchers.retain(|_, all| all.iter().all(|it| self.is_head_known(it.run)));
        self.ahead.watchers = watchers;
        Ok(())
    }
}

fn empty<T: Default>(runs: &[i64]) -> FastMap<RunNo, T> {
    let each = runs.iter().map(|run| (RunNo(*run), T::default()));
    each.collect()
}

impl Ahead {
    fn add_inbox(&mut self, runs: &[i64], rows: &[Row]) -> Result<(), Trouble> {
        self.inbox = empty(runs);
        for row in rows {
            let rows = self.inbox.entry(RunNo(row.get(8)?)).or_default();
            rows.push(columns::inbox_row(row)?);
        }
        Ok(())
    }

    fn add_waits(&mut self, runs: &[i64], rows: &[Row], events: &[Row]) -> Result<(), Trouble> {
        self.waits = empty(runs);
        for row in rows {
            let waiter = events::waiter(row)?;
            if let Some(seq) = waiter.given {
                let name = (waiter.name.clone(), seq);
                self.events.insert(name, None);
            }
            let waits = self.waits.entry(waiter.waiter.run).or_default();
            waits.push(waiter);
        }
        for row in events {
            let event = events::event(row)?;
            self.events.insert((row.get(8)?, event.seq), Some(event));
        }
        Ok(())
    }

    fn add_cursors(&mut self, runs: &[i64], rows: &[Row]) -> Result<(), Trouble> {
        self.cursors = empty(runs);
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
