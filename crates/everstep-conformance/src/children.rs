//! Children: in whose hands a new one is.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_claimed_child_is_running_and_its_owner_is_told,
    a_child_that_is_not_claimed_is_due,
    a_child_that_was_there_is_not_claimed,
    a_child_that_ends_in_the_batch_of_its_parent_is_no_child_any_more,
];

/// Starts a child of this run that is cancelled with it, and gives the notices.
fn start_child(world: &World, parent: RunId, new: NewRun) -> Vec<Notice> {
    start_child_that_is(Close::Cancel, world, parent, new)
}

/// Starts a child of this run, and gives the notices.
fn start_child_that_is(close: Close, world: &World, parent: RunId, new: NewRun) -> Vec<Notice> {
    let start =
        StartChild { new, key: b"kid".to_vec(), entry: b"entry".to_vec(), awaited: true, close };
    let commit = Commit { effects: vec![Effect::StartChild(Box::new(start))], ..commit(parent) };
    let batch = Batch {
        fence: Some(world.fence),
        now: at(1),
        writes: vec![Write::Commit(Box::new(commit))],
    };
    let applied = world.store.commit(&batch).expect("commit");
    assert_eq!(applied.outcomes, [Outcome::Committed(Vec::new())]);
    applied.notices
}

fn a_claimed_child_is_running_and_its_owner_is_told(world: &World) {
    let (parent, new) = (world.running(), world.new_run());
    let notices = start_child(world, parent, new.clone());
    assert_eq!(notices, [Notice::Claimed(Box::new(new.clone()))]);
    let row = world.row(new.id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, None));
    assert!(world.due(1_000).is_empty());
    world.finish(new.id);
    let inbox = world.store.inbox(parent.no(), 0).expect("inbox");
    assert_eq!(inbox.len(), 1, "the parent is told of its end");
}

fn a_child_that_is_not_claimed_is_due(world: &World) {
    let (parent, new) = (world.running(), world.new_run());
    let claim = false;
    let id = new.id;
    let notices = start_child(world, parent, NewRun { claim, ..new });
    let due = Notice::Due { run: id, at: AT_ONCE };
    assert_eq!(notices, [due]);
    assert_eq!(world.row(id).status, RunStatus::Pending);
    assert_eq!(world.due(1), [id]);
}

fn a_child_that_was_there_is_not_claimed(world: &World) {
    let there = world.start(keyed(world, "only"));
    let parent = world.running();
    let notices = start_child(world, parent, keyed(world, "only"));
    assert_eq!(notices, []);
    world.finish(there.id);
    let inbox = world.store.inbox(parent.no(), 0).expect("inbox");
    assert_eq!(inbox.len(), 1, "it is waited for all the same");
}

/// Both end in one batch. When the parent gives up a child that is left alone, the row of that child may
/// still be there, but its run has ended.
fn a_child_that_ends_in_the_batch_of_its_parent_is_no_child_any_more(world: &World) {
    for parent_is_first in [true, false] {
        let (parent, new) = (world.running(), world.new_run());
        let child = new.id;
        start_child_that_is(Close::Leave, world, parent, new);
        let live = |what: &str| world.store.children(parent.no()).expect(what);
        assert_eq!(live("a child that runs"), [child]);
        let end = |id| {
            let patch = finish(RunStatus::Completed);
            Write::Commit(Box::new(Commit { patch, ..commit(id) }))
        };
        let mut writes = vec![end(parent), end(child)];
        if !parent_is_first {
            writes.reverse();
        }
        let batch = Batch { fence: Some(world.fence), now: at(2), writes };
        let outcomes = world.store.commit(&batch).expect("commit").outcomes;
        let committed = |outcome: &Outcome| matches!(outcome, Outcome::Committed(_));
        assert!(outcomes.iter().all(committed), "{outcomes:?}");
        assert_eq!(world.row(child).status, RunStatus::Completed);
        assert_eq!(live("a child that has ended"), []);
    }
}
