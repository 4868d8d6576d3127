//! Commits: which are refused, what they do to the row of their run, and what a batch is.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    migrating_twice_changes_nothing,
    a_refused_commit_changes_nothing_and_the_rest_stands,
    an_unknown_run_is_gone,
    another_generation_is_gone,
    a_finished_run_is_gone,
    numbers_must_follow,
    a_run_tried_again_as_a_whole_may_go_back_in_numbers,
    the_last_number_is_exact_when_parked,
    every_patch_sets_what_it_says,
    state_is_kept_by_key_and_survives_the_end,
    loading_gives_row_history_and_inbox,
    an_empty_batch_is_fine,
    a_large_batch_is_applied_as_a_whole,
    counters_count,
];

fn migrating_twice_changes_nothing(world: &World) {
    let id = world.running();
    world.store.migrate().expect("migrate");
    assert_eq!(world.row(id).status, RunStatus::Running);
}

fn a_refused_commit_changes_nothing_and_the_rest_stands(world: &World) {
    let (first, second, third) = (world.running(), world.running(), world.running());
    let before = world.row(second);
    let refused = Commit {
        generation: 2,
        puts: vec![put("a", "")],
        state: vec![("s".to_owned(), Vec::new())],
        effects: vec![send(first, "send")],
        patch: finish(RunStatus::Completed),
        ..commit(second)
    };
    let fine = |id| Commit { puts: vec![put("a", "")], ..commit(id) };
    let writes = [fine(first), refused, fine(third)].map(|c| Write::Commit(Box::new(c)));
    let outcomes = world.batch(1, writes.to_vec());
    assert_eq!(outcomes[0], Outcome::Committed(Vec::new()));
    assert_eq!(outcomes[1], Outcome::Refused(Refusal::Gone));
    assert_eq!(outcomes[2], Outcome::Committed(Vec::new()));
    assert_eq!(world.row(second), before);
    assert!(world.keys(second).is_empty() && world.seqs(first).is_empty());
    assert!(world.store.state(second.no()).expect("state").is_empty());
    assert_eq!((world.keys(first).len(), world.keys(third).len()), (1, 1));
}

fn an_unknown_run_is_gone(world: &World) {
    let unknown = world.ids.next(START);
    assert_eq!(world.refuse(commit(unknown)), Refusal::Gone);
    assert_eq!(world.store.load(unknown.no()).expect("load"), None);
    assert!(world.store.inbox(unknown.no(), 0).expect("inbox").is_empty());
}

fn another_generation_is_gone(world: &World) {
    let id = world.running();
    assert_eq!(world.refuse(Commit { generation: 0, ..commit(id) }), Refusal::Gone);
    assert_eq!(world.refuse(Commit { generation: 2, ..commit(id) }), Refusal::Gone);
    world.accept(commit(id));
}

fn a_finished_run_is_gone(world: &World) {
    for status in [RunStatus::Completed, RunStatus::Failed, RunStatus::Cancelled] {
        let id = world.running();
        world.accept(Commit { patch: finish(status), ..commit(id) });
        assert_eq!(world.refuse(commit(id)), Refusal::Gone);
        assert_eq!(world.refuse(Commit { results_only: true, ..commit(id) }), Refusal::Gone);
    }
}

fn numbers_must_follow(world: &World) {
    let id = world.running();
    let numbered = |last_number, numbers| Commit { last_number, numbers, ..commit(id) };
    let run = |c| Commit { patch: Patch::Run { inbox_seq: 0 }, ..c };
    world.accept(run(numbered(2, 2)));
    assert_eq!(world.refuse(numbered(4, 1)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(2, 2)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(1, 2)), Refusal::Gap { stored: 2 });
    assert_eq!(world.refuse(numbered(1, 0)), Refusal::Gap { stored: 2 });
    world.accept(numbered(2, 0));
    world.accept(numbered(3, 1));
    assert_eq!(world.refuse(numbered(3, 1)), Refusal::Gap { stored: 3 });
    world.accept(run(numbered(5, 2)));
    assert_eq!(world.row(id).last_number, 5);
}

fn a_run_tried_again_as_a_whole_may_go_back_in_numbers(world: &World) {
    let id = world.running();
    world.accept(Commit { last_number: 5, numbers: 5, puts: vec![put("a", "")], ..commit(id) });
    let patch = Patch::Park {
        status: RunStatus::Pending,
        available_at: Some(at(100)),
        waiting: "its next attempt".to_owned(),
        attempts: 2,
    };
    world.accept(Commit { last_number: 5, patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.attempts), (RunStatus::Pending, 2));
    // To which number it goes back is known to the owner, who reads the entries.
    world.accept(Commit {
        last_number: 3,
        numbers: 1,
        deletes: vec![range("a", "b")],
        ..commit(id)
    });
}

fn the_last_number_is_exact_when_parked(world: &World) {
    let id = world.running();
    world.accept(Commit { last_number: 3, numbers: 3, ..commit(id) });
    assert!(world.row(id).last_number <= 3);
    world.accept(Commit { last_number: 4, numbers: 1, patch: park(None), ..commit(id) });
    assert_eq!(world.row(id).last_number, 4);
    world.accept(Commit { last_number: 5, numbers: 1, ..commit(id) });
    assert_eq!(world.row(id).last_number, 5);
    world.control(id, Control::Pause);
    let results = Commit { last_number: 6, numbers: 1, results_only: true, ..commit(id) };
    world.accept(results);
    assert_eq!(world.row(id).last_number, 6);
}

fn every_patch_sets_what_it_says(world: &World) {
    let id = world.parked(Some(at(40)));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(at(40))));
    assert_eq!((row.waiting.as_deref(), row.updated_at), (Some("approval"), at(1)));
    world.accept(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.available_at, row.waiting), (RunStatus::Running, None, None));
    world.accept(Commit { patch: pause(), ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.waiting.as_deref()), (RunStatus::Paused, Some("the code differs")));
    world.control(id, Control::Resume);
    let error = Some(b"failure".to_vec());
    let patch = Patch::RollBack { ending: RunStatus::Failed, error: error.clone() };
    world.accept(Commit { patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending), (RunStatus::RollingBack, Some(RunStatus::Failed)));
    assert_eq!((row.available_at, &row.error, row.finished_at), (None, &error, None));
    let patch = Patch::Finish { status: RunStatus::Failed, output: None, error: error.clone() };
    world.accept(Commit { patch, ..commit(id) });
    let row = world.row(id);
    assert_eq!((row.status, row.ending, row.waiting), (RunStatus::Failed, None, None));
    assert_eq!((row.finished_at, row.output, row.error), (Some(at(1)), None, error));
}

fn state_is_kept_by_key_and_survives_the_end(world: &World) {
    let id = world.running();
    let value = |key: &str, value: &str| (key.to_owned(), value.as_bytes().to_vec());
    world.accept(Commit { state: vec![value("b", "1"), value("a", "2")], ..commit(id) });
    world.accept(Commit { state: vec![value("b", "3"), value("c", "")], ..commit(id) });
    world.finish(id);
    let state = world.store.state(id.no()).expect("state");
    assert_eq!(state, [value("a", "2"), value("b", "3"), value("c", "")]);
}

fn loading_gives_row_history_and_inbox(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put("b", "2"), put("a", "1")], ..commit(id) });
    world.deliver(message(id));
    world.deliver(message(id));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    let loaded = world.store.load(id.no()).expect("load").expect("the run exists");
    assert_eq!(loaded.row, world.row(id));
    assert_eq!(loaded.history, [put("a", "1"), put("b", "2")]);
    assert_eq!(loaded.inbox, world.store.inbox(id.no(), 0).expect("inbox"));
    assert_eq!(loaded.inbox.len(), 1);
}

fn an_empty_batch_is_fine(world: &World) {
    assert!(world.batch(0, Vec::new()).is_empty());
    let nobody = Batch { fence: None, now: START, writes: Vec::new() };
    assert!(world.store.commit(&nobody).expect("commit").outcomes.is_empty());
}

fn a_large_batch_is_applied_as_a_whole(world: &World) {
    let new = (0..2_000).map(|_| world.new_run()).collect::<Vec<_>>();
    let ids = new.iter().map(|new| new.id).collect::<Vec<_>>();
    world.batch(0, new.into_iter().map(|new| Write::Start(Box::new(new))).collect());
    let step = |id: &RunId| {
        let puts = vec![put("step", id.to_string())];
        Write::Commit(Box::new(Commit { puts, last_number: 1, numbers: 1, ..commit(*id) }))
    };
    world.batch(1, ids.iter().map(step).collect());
    let last = |id: &RunId| {
        let patch = finish(RunStatus::Completed);
        Write::Commit(Box::new(Commit { last_number: 1, patch, ..commit(*id) }))
    };
    world.batch(2, ids.iter().map(last).collect());
    let completed = Filter { statuses: vec![RunStatus::Completed], ..Filter::default() };
    assert_eq!(world.store.count(&completed).expect("count"), 2_000);
    let nos = ids.iter().map(|id| id.no()).collect::<Vec<_>>();
    assert_eq!(world.store.finished(&nos).expect("finished").len(), 2_000);
    let history = world.store.history(nos[1_999], None, 10).expect("history");
    assert_eq!(history, [put("step", ids[1_999].to_string())]);
}

fn counters_count(world: &World) {
    let before = world.store.counters();
    let id = world.running();
    world.accept(Commit { puts: vec![put("a", "")], ..commit(id) });
    world.row(id);
    let after = world.store.counters();
    // A store need not count, but if it does, it counts these.
    if after != StoreCounters::default() {
        assert_eq!(after.batches - before.batches, 2);
        assert_eq!(after.writes - before.writes, 2);
        assert!(after.rows >= before.rows + 2 && after.reads > before.reads);
    }
}
