//! The last number of a run that is paused: known where its owner has paused it, open where others
//! have.
//!
//! The row of a run in its owner's memory is not written with every step, so whoever else pauses it
//! may find a lower bound there. A store then keeps that the number is unknown, never a wrong one.
//! Nothing is lost by it: the owner goes by the entries that it has read, and its next commit says
//! the number again.

use std::collections::BTreeMap;

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_run_that_others_pause_has_its_last_number_or_none_until_its_owner_says_it,
    a_run_that_others_pause_and_resume_may_go_back_in_numbers,
    a_number_that_a_store_only_learns_is_no_change_of_the_run,
];

/// Whether a store knows the last number of a run, which a row alone does not say.
fn knows_number(store: &dyn Store, row: &RunRow) -> bool {
    match store.examine(&Ask::Run(row.id.no())).expect("examine") {
        Facts::Run(Some(facts)) => facts.last_number.is_some(),
        // A store need not have such facts.
        _ => row.last_number != 0,
    }
}

/// The runs whose last number a store need not know, with the number that the model has.
///
/// Always true: they were `Running` when they were paused by somebody who need not be their owner, and
/// they are paused since, without a commit.
#[derive(Default)]
pub(super) struct OpenNumbers {
    runs: BTreeMap<RunNo, u64>,
    /// Those that the batch that was made last pauses, and that were `Running` before it.
    pausing: Vec<RunNo>,
}

impl OpenNumbers {
    pub(super) fn is_open(&self, run: RunNo) -> bool {
        self.runs.contains_key(&run)
    }

    /// A batch will be applied. Where the stores know the numbers of all runs, what has a fence is made by
    /// the owner of its run.
    pub(super) fn before(&mut self, model: &dyn Store, batch: &Batch, knows_numbers: bool) {
        self.pausing.clear();
        if knows_numbers && batch.fence.is_some() {
            return;
        }
        for write in &batch.writes {
            if let Write::Control(target, Control::Pause) = write
                && let Some(row) = model.run(target).expect("run")
                && row.status == RunStatus::Running
            {
                self.pausing.push(row.id.no());
            }
        }
    }

    /// It was applied, with these outcomes.
    pub(super) fn after(&mut self, model: &dyn Store, batch: &Batch, outcomes: &[Outcome]) {
        let pausing = self.pausing.drain(..).map(|run| (run, 0));
        self.runs.extend(pausing);
        // Commits come before everything else in a batch.
        for (write, outcome) in batch.writes.iter().zip(outcomes) {
            if let (Write::Commit(commit), Outcome::Committed(_)) = (write, outcome) {
                self.runs.remove(&commit.run);
            }
        }
        self.runs.retain(|run, number| {
            let loaded = model.load(*run).expect("load");
            let paused = loaded.filter(|it| it.row.status == RunStatus::Paused);
            paused.is_some_and(|it| {
                *number = it.row.last_number;
                true
            })
        });
    }

    /// The row without what the contract leaves open: the last number of a run in its owner's memory
    /// may be a lower bound, and one that is open may be unknown. A number that a store does say is
    /// compared.
    pub(super) fn comparable(&self, store: &dyn Store, mut row: RunRow) -> RunRow {
        let run = row.id.no();
        match (row.status, self.runs.get(&run)) {
            (RunStatus::Running, _) => row.last_number = 0,
            (RunStatus::Paused, Some(number)) if !knows_number(store, &row) => {
                row.last_number = *number;
            }
            _ => {}
        }
        row
    }
}

/// A run in its owner's memory, with so many numbers of which its row need not know.
pub(super) fn running_at(world: &World, number: u64) -> RunId {
    let id = world.running();
    // A number is never without an entry.
    world.accept(Commit { puts: vec![put("a", "1")], ..numbered(id, number, number) });
    id
}

fn numbered(id: RunId, last_number: u64, numbers: u64) -> Commit {
    Commit { last_number, numbers, ..commit(id) }
}

pub(super) fn results(id: RunId, last_number: u64, numbers: u64) -> Commit {
    Commit { results_only: true, ..numbered(id, last_number, numbers) }
}

/// Asked for by somebody who is no runner.
fn control_by_others(world: &World, id: RunId, control: Control) {
    let batch =
        Batch { fence: None, now: at(3), writes: vec![Write::Control(Target::Id(id), control)] };
    let outcomes = world.store.commit(&batch).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Controlled(Controlled::Done { run: id })]);
}

fn a_run_that_others_pause_has_its_last_number_or_none_until_its_owner_says_it(world: &World) {
    let id = running_at(world, 3);
    control_by_others(world, id, Control::Pause);
    let row = world.row(id);
    if knows_number(&*world.store, &row) {
        assert_eq!(row.last_number, 3);
    }
    // Results are taken from the owner, numbers or not.
    world.accept(results(id, 3, 0));
    assert_eq!(world.row(id).last_number, 3);
    assert_eq!(world.refuse(results(id, 5, 1)), Refusal::Gap { stored: 3 });
    world.accept(results(id, 4, 1));
    assert_eq!(world.row(id).last_number, 4);
}

/// What the owner had in memory from before the pause must not be held against it.
fn a_run_that_others_pause_and_resume_may_go_back_in_numbers(world: &World) {
    let id = running_at(world, 5);
    control_by_others(world, id, Control::Pause);
    control_by_others(world, id, Control::Resume);
    world.accept(Commit { patch: Patch::Run { inbox_seq: 0 }, ..numbered(id, 3, 1) });
    world.accept(numbered(id, 4, 1));
    assert_eq!(world.refuse(numbered(id, 6, 1)), Refusal::Gap { stored: 4 });
}

/// A store that did not know the number writes it, and a store that did writes nothing: a client must see
/// the same `updated_at` in both.
fn a_number_that_a_store_only_learns_is_no_change_of_the_run(world: &World) {
    let id = running_at(world, 3);
    control_by_others(world, id, Control::Pause);
    let say = |ms, last_number, numbers| {
        let commit = Box::new(results(id, last_number, numbers));
        let outcome = world.one(ms, Write::Commit(commit));
        assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
        let row = world.row(id);
        (row.last_number, row.updated_at)
    };
    assert_eq!(say(5, 3, 0), (3, at(3)));
    assert_eq!(say(6, 4, 1), (4, at(6)));
    assert_eq!(say(7, 4, 0), (4, at(6)));
}
