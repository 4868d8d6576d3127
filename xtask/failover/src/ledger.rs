//! What bodies have done, kept apart from the database.

use std::{
    collections::BTreeMap,
    sync::{Mutex, MutexGuard, PoisonError},
};

/// One body of one step.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Note {
    Begun { step: usize },
    Ended { step: usize, value: u64 },
}

/// By the number of the order.
#[derive(Debug, Default)]
pub(crate) struct Ledger(Mutex<BTreeMap<u64, Vec<Note>>>);

/// What a ledger shows about one run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Shown {
    pub(crate) bodies: u64,
    /// Bodies that began although a later step had begun: it was built on what they had given.
    pub(crate) again: u64,
    /// Results that are not what the last body of their step has given.
    pub(crate) differs: u64,
}

impl Ledger {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<u64, Vec<Note>>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(crate) fn note(&self, order: u64, note: Note) {
        self.lock().entry(order).or_default().push(note);
    }

    /// How many bodies have ended.
    pub(crate) fn ended(&self) -> usize {
        let ledger = self.lock();
        let notes = ledger.values().flatten();
        notes.filter(|note| matches!(note, Note::Ended { .. })).count()
    }

    /// Compares what bodies did with what the run says that they gave.
    pub(crate) fn show(&self, order: u64, results: &[u64]) -> Shown {
        let ledger = self.lock();
        let notes = ledger.get(&order).map(Vec::as_slice).unwrap_or_default();
        let mut shown = Shown::default();
        let mut furthest = 0;
        let mut last = BTreeMap::new();
        for note in notes {
            match *note {
                Note::Begun { step } => {
                    shown.bodies += 1;
                    shown.again += u64::from(step < furthest);
                    furthest = furthest.max(step);
                }
                Note::Ended { step, value } => _ = last.insert(step, value),
            }
        }
        let given = results.iter().enumerate();
        let differs = given.filter(|(step, value)| last.get(step) != Some(value));
        shown.differs = differs.count() as u64;
        shown
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_body_that_runs_after_its_successor_has_begun_is_found() {
        let ledger = Ledger::default();
        let begin = |step| ledger.note(1, Note::Begun { step });
        let end = |step, value| ledger.note(1, Note::Ended { step, value });
        begin(0);
        begin(0);
        end(0, 7);
        begin(1);
        end(1, 8);
        let wanted = Shown { bodies: 3, again: 0, differs: 0 };
        assert_eq!(ledger.show(1, &[7, 8]), wanted);
        assert_eq!(ledger.show(1, &[6, 8]).differs, 1);
        begin(0);
        assert_eq!(ledger.show(1, &[7, 8]).again, 1);
        assert_eq!(ledger.ended(), 2);
    }
}
