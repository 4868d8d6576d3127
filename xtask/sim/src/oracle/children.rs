//! Children, ends and generations: whether a child runs once and ends as its parent was told, and whether
//! generations follow each other.

use std::collections::{BTreeMap, BTreeSet};

use everstep::{RunId, RunStatus};

use super::{
    Promise,
    ending::Judgement,
    ledger::{Got, Ledger, Place, Stay},
};
use crate::work::key;

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
        for runs in children.values().filter(|runs| runs.len() > 1) {
            let what = format!("the runs {runs:?} are one child");
            self.violate(Promise::ChildRunsOnce, what);
        }
        for (run, past) in &self.pasts {
            for (generation, taken) in past {
                let place = Place { run: *run, generation: *generation, at: taken.at.clone() };
                match &taken.got {
                    Got::Child(end) => {
                        let child = children.get(&place.number()).and_then(BTreeSet::first);
                        self.check_child(&place, *end, child.copied());
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
