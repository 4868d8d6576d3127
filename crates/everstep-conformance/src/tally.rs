//! The tally: every run is counted once, whatever it is doing.

use std::collections::BTreeMap;

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![every_run_is_counted_once_in_every_status];

fn tally(world: &World) -> BTreeMap<(String, RunStatus), u64> {
    let tallies = world.store.tally().expect("tally").into_iter();
    let counted: Vec<_> =
        tallies.map(|tally| ((tally.workflow.to_string(), tally.status), tally.runs)).collect();
    let places = counted.len();
    let counts: BTreeMap<_, _> = counted.into_iter().collect();
    assert_eq!(counts.len(), places, "each is said once");
    assert!(counts.values().all(|runs| *runs > 0), "what is not there is not said");
    counts
}

fn every_run_is_counted_once_in_every_status(world: &World) {
    assert!(tally(world).is_empty());
    let other = |claim: bool| NewRun { workflow: "refund".into(), claim, ..world.new_run() };
    // Waiting to begin: now, and later.
    world.start(other(false));
    world.start(NewRun { available_at: Some(at(5_000)), ..other(false) });
    // In memory, and told that something has come meanwhile.
    world.running();
    let told = world.running();
    world.deliver(message(told));
    // Waiting for a time, for a message, and one for which a message has come.
    world.parked(Some(at(9_000)));
    world.parked(None);
    let woken = world.parked(None);
    world.deliver(message(woken));
    let paused = world.parked(Some(at(9_000)));
    world.one(1, Write::Control(Target::Id(paused), Control::Pause));
    let undone = world.running();
    let (ending, error) = (RunStatus::Cancelled, None);
    world.accept(Commit { patch: Patch::RollBack { ending, error }, ..commit(undone) });
    for status in
        [RunStatus::Completed, RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled]
    {
        let run = world.running();
        world.accept(Commit { patch: finish(status), ..commit(run) });
    }
    let ended = world.start(other(true)).id;
    world.finish(ended);
    let expected = [
        ("checkout", RunStatus::Running, 2),
        ("checkout", RunStatus::Sleeping, 3),
        ("checkout", RunStatus::Paused, 1),
        ("checkout", RunStatus::RollingBack, 1),
        ("checkout", RunStatus::Completed, 2),
        ("checkout", RunStatus::Failed, 1),
        ("checkout", RunStatus::Cancelled, 1),
        ("refund", RunStatus::Pending, 2),
        ("refund", RunStatus::Completed, 1),
    ];
    let expected = expected.map(|(name, status, runs)| ((name.to_owned(), status), runs));
    assert_eq!(tally(world), BTreeMap::from(expected));
    let all = world.store.count(&Filter::default()).expect("count");
    assert_eq!(tally(world).values().sum::<u64>(), all);
}
