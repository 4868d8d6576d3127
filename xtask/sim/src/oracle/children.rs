//! Children, ends and generations: whether a child runs once and ends as its parent was told, and whether
//! generations follow each other.

use std::collections::{BTreeMap, BTreeSet};

use everstep::{RunId, RunStatus, store::RunRow};

use super::{
    Promise,
    ending::{Judgement, is_fork},
    ledger::{Got, Ledger, Place, Stay},
    requests::Request,
};
use crate::work::{key, keys::child_key};

/// How a run has ended, as the code of another was told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Ending {
    Completed(u64),
    Failed,
    Cancelled,
}

impl Ending {
    pub(crate) fn of(status: RunStatus, output: Option<u64>) -> Ending {
        match (status, output) {
            (RunStatus::Completed, Some(value)) => Ending::Completed(value),
            (RunStatus::Cancelled, _) => Ending::Cancelled,
            _ => Ending::Failed,
        }
    }
}

/// What a parent knows of a child.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum ChildEnd {
    Ended(Ending),
    Started(RunId),
    GivenUp,
}

impl Ledger {
    /// The code of a generation has come to its end, with this.
    pub(crate) fn continues(&self, stay: &Stay, carry: u64) {
        let mut book = self.book();
        book.continued.entry((stay.run, stay.generation)).or_default().insert(carry);
    }

    /// A generation begins with what the one before has come to.
    pub(super) fn check_generation(&self, stay: &Stay) {
        if stay.generation == 1 || !self.is_live() {
            return;
        }
        let book = self.book();
        let before = book.continued.get(&(stay.run, stay.generation - 1));
        if before.is_some_and(|before| before.contains(&stay.order.carry)) {
            return;
        }
        let (run, generation, process) = (stay.run, stay.generation, &stay.process);
        let what = format!(
            "generation {generation} of run {run} begins in {process} with {}, and the one before has \
             come to {before:?}",
            stay.order.carry
        );
        drop(book);
        self.violate(Promise::GenerationsFollow, what);
    }

    /// A child that is to end with its parent is being cancelled once that has ended.
    pub(crate) fn check_closed(&self, rows: &[RunRow]) {
        let book = self.book();
        let children: BTreeMap<RunId, RunId> = book
            .stays
            .iter()
            .filter(|stay| stay.order.child != 0)
            .filter_map(|stay| match book.births.get(&stay.order.origin) {
                Some((parent, true)) => Some((stay.run, *parent)),
                _ => None,
            })
            .collect();
        drop(book);
        for child in rows {
            let is_open = !child.status.is_terminal() && child.ending.is_none();
            let Some(parent) = children.get(&child.id).filter(|_| is_open) else {
                continue;
            };
            // A fork of it has a parent that was not told of it.
            let mut parents = rows.iter().filter(|row| row.id == *parent && !is_fork(child));
            let is_over = parents.any(|parent| parent.status.is_terminal());
            if is_over && child.cancel_requested.is_none() {
                let what = format!("run {} goes on, and its parent {parent} has ended", child.id);
                self.violate(Promise::ChildRunsOnce, what);
            }
        }
    }

    /// Nothing of a generation runs once the next one has begun.
    pub(super) fn check_still_current(&self, stay: &Stay, place: &Place) {
        if !stay.is_fenced {
            // It may not own its run any more.
            return;
        }
        let book = self.book();
        let is_later =
            |it: &&std::sync::Arc<Stay>| it.run == stay.run && it.generation > stay.generation;
        let Some(later) = book.stays.iter().find(is_later) else {
            return;
        };
        let (process, other, generation) = (&stay.process, &later.process, later.generation);
        let what = format!(
            "{place} starts in {process}, and generation {generation} has begun in {other}"
        );
        drop(book);
        self.violate(Promise::GenerationsFollow, what);
    }
}

impl Judgement<'_> {
    /// A child runs once, and ends as its parent was told.
    pub(super) fn check_children(&self) {
        let mut children: BTreeMap<u64, BTreeSet<RunId>> = BTreeMap::new();
        let stays = self.ledger.book().stays.clone();
        for stay in stays.iter().filter(|stay| stay.order.child != 0) {
            children.entry(stay.order.origin).or_default().insert(stay.run);
        }
        let tried_again: BTreeSet<u64> = {
            let book = self.ledger.book();
            let births = book.births.iter();
            let is_fresh = |run: &RunId| self.row(*run).is_none_or(|row| row.attempts > 1);
            let fresh = births.filter(|(_, (parent, _))| is_fresh(parent));
            fresh.map(|(origin, _)| *origin).collect()
        };
        for (origin, runs) in children.iter().filter(|(_, runs)| runs.len() > 1) {
            // What an attempt of a run makes fresh has children of its own.
            if !tried_again.contains(origin) {
                let what = format!("the runs {runs:?} are one child");
                self.violate(Promise::ChildRunsOnce, what);
            }
        }
        for (run, past) in &self.pasts {
            // What a fork has taken over was told to another run; and which child of several attempts is
            // meant is not known.
            if self.row(*run).is_none_or(|row| is_fork(row) || row.attempts > 1) {
                continue;
            }
            for (generation, taken) in past {
                let place = Place { run: *run, generation: *generation, at: taken.at.clone() };
                match &taken.got {
                    Got::Child(end) => {
                        let key = self.ledger.book().child_keys.get(&place).copied();
                        let child = match key {
                            Some(key) => self.row_of_key(&child_key(key)),
                            None => {
                                children.get(&place.number()).and_then(BTreeSet::first).copied()
                            }
                        };
                        self.check_child(&place, *end, child);
                    }
                    Got::Ended(of, ending) => {
                        let run = self.row_of_key(&key(*of));
                        self.check_ending(&place, run, *ending);
                    }
                    _ => {}
                }
            }
        }
    }

    /// `child` is the run whose code was called; none if none was.
    fn check_child(&self, place: &Place, end: ChildEnd, child: Option<RunId>) {
        match end {
            // It was cancelled before its code was called.
            ChildEnd::Ended(Ending::Cancelled) if child.is_none() => {}
            ChildEnd::Ended(ending) => self.check_ending(place, child, ending),
            ChildEnd::Started(run) if child.is_some_and(|child| child != run) => {
                let what = format!("{place} has started {run}, and its child is {child:?}");
                self.violate(Promise::ChildRunsOnce, what);
            }
            ChildEnd::Started(_) | ChildEnd::GivenUp => {}
        }
    }

    fn check_ending(&self, place: &Place, run: Option<RunId>, ending: Ending) {
        let status = run.and_then(|run| self.row(run)).map(|row| row.status);
        let book = self.ledger.book();
        // A run that was deleted is gone, or another one has its key. One that had failed may be tried
        // again.
        let is_deleted = book.requests.was_ever_asked(Request::Delete);
        let is_tried_again = run.is_some_and(|run| book.requests.was_asked(run, Request::Retry));
        drop(book);
        if is_deleted || (is_tried_again && ending == Ending::Failed) {
            return;
        }
        let is_so = match ending {
            Ending::Completed(value) => {
                status == Some(RunStatus::Completed)
                    && run.is_some_and(|run| self.digest_of(run) == value)
            }
            Ending::Failed => status == Some(RunStatus::Failed),
            Ending::Cancelled => status == Some(RunStatus::Cancelled),
        };
        if !is_so {
            let what = format!(
                "{place} was told of {ending:?}, and run {run:?} is {status:?} with {:?}",
                run.map(|run| self.digest_of(run))
            );
            self.violate(Promise::ToldStaysTrue, what);
        }
    }
}
