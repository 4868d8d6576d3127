//! What a batch reads before the rules ask for it: see [`Ahead`].
//!
//! The rules ask for one row at a time, and here each question is a round trip. So everything that a
//! batch names is read at its beginning ([`Applier::lock_and_read`]); and of a batch in which a thousand
//! runs end, what they have elsewhere is read before anything is decided about the first
//! ([`Applier::look_ahead`]).

use std::{collections::BTreeSet, hash::Hash};

use super::{
    batch::Applier,
    children, columns,
    error::Trouble,
    session::Op,
    value::{PgRow, Value, params},
};
use crate::{
    commit::{Batch, Effect},
    hash::FastMap,
    run_id::RunNo,
    store::{
        rules::{effects, tables::links},
        sql::{
            ahead::{Ahead, Rows},
            events, schedules,
        },
    },
};

/// A query of [`Applier::read_ahead`], and what takes in the answer.
pub(super) type Asked<'a> = (Op, fn(&mut Applier<'a>, &[PgRow]) -> Result<(), Trouble>);

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
        let Looked { runs, with_events, watched } = self.looked_at(batch);
        if runs.is_empty() {
            return Ok(());
        }
        let sql = format!(
            "SELECT {}, run FROM everstep_inbox WHERE run = ANY ($1) \
             AND (kind <> 0 OR on_end IS NOT NULL) ORDER BY run, seq",
            columns::INBOX_ROW
        );
        self.ahead.inbox = empty(&runs);
        let mut asked: Vec<Asked<'a>> =
            vec![(Op::new(sql, params![runs]), |applier, rows| applier.ahead.add_inbox(rows))];
        if !with_events.is_empty() {
            let [waits, cursors, events] = super::events::ops_ahead(&with_events);
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
    fn take_watching(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        let waiting = rows.iter().map(|row| row.get(1));
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
            let watchers = watchers.entry(row.get(0)?).or_default();
            watchers.push(columns::waiter(row, 1)?);
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

/// Reads where these streams end.
pub(super) fn tails<'n>(named: impl Iterator<Item = &'n (RunNo, String)>) -> Op {
    let (runs, names) = named.map(|(run, name)| (Some(run.0), Some(name.clone()))).unzip();
    let sql = "SELECT r, s, (SELECT pos FROM everstep_streams WHERE run = r AND stream = s \
               ORDER BY pos DESC LIMIT 1) FROM unnest($1::bigint[], $2::text[]) AS asked (r, s)";
    Op::keeping(sql, vec![Value::Ints(runs), Value::Texts(names)])
}

/// Reads these schedules, to be asked behind their locks.
pub(super) fn schedules(names: impl Iterator<Item = String>) -> Op {
    let sql = format!("SELECT {} FROM everstep_schedules WHERE name = ANY ($1)", schedules::ROW);
    Op::keeping(sql, vec![Value::texts(names)])
}

/// What takes in the rows.
impl Ahead {
    pub(super) fn add_tails(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            self.tails.add(row.get(0)?, row.get(1)?, row.get(2)?);
        }
        Ok(())
    }

    pub(super) fn add_schedules(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let found = schedules::row(row)?;
            self.schedules.insert(found.name.clone(), Some(found));
        }
        Ok(())
    }

    fn add_inbox(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let rows = self.inbox.entry(row.get(8)?).or_default();
            rows.push(columns::inbox_row(row)?);
        }
        Ok(())
    }

    fn add_waits(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
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

    fn add_events(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let event = events::event(row)?;
            self.events.insert((row.get(8)?, event.seq), Some(event));
        }
        Ok(())
    }

    fn add_cursors(&mut self, rows: &[PgRow]) -> Result<(), Trouble> {
        for row in rows {
            let cursors = self.cursors.entry(row.get(0)?).or_default();
            cursors.insert((row.get(1)?, row.get(2)?), row.get(3)?);
        }
        Ok(())
    }
}
