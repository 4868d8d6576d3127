//! Starts: one run for a key, with everything that the start said, claimed where it can be.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_start_makes_a_pending_run_that_is_due_now,
    a_delayed_start_is_due_at_its_time,
    a_claimed_start_is_running_and_not_due,
    a_start_without_fence_or_shard_is_not_claimed,
    a_delayed_start_is_never_claimed,
    a_second_start_of_a_key_attaches_and_compares_the_input,
    two_starts_of_one_key_in_one_batch_make_one_run,
    keys_are_unique_per_workflow_only,
    a_start_with_a_used_id_attaches_and_with_a_used_number_is_refused,
    every_field_of_a_start_is_kept,
    a_target_is_found_by_id_and_by_key_only,
];

fn a_start_makes_a_pending_run_that_is_due_now(world: &World) {
    let started = world.start(NewRun { claim: false, ..world.new_run() });
    assert_eq!((started.attached, started.claimed), (false, false));
    assert_eq!(started.available_at, Some(START));
    let row = world.row(started.id);
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(START)));
    assert_eq!((row.generation, row.attempts, row.recoveries), (1, 1, 0));
    assert_eq!(world.due(0), [started.id]);
}

fn a_delayed_start_is_due_at_its_time(world: &World) {
    let new = NewRun { claim: false, available_at: Some(at(500)), ..world.new_run() };
    let started = world.start(new);
    assert_eq!(started.available_at, Some(at(500)));
    assert!(world.due(499).is_empty());
    assert_eq!(world.due(500), [started.id]);
}

fn a_claimed_start_is_running_and_not_due(world: &World) {
    let started = world.start(world.new_run());
    assert_eq!((started.claimed, started.available_at), (true, None));
    let row = world.row(started.id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, None));
    assert!(world.due(1_000).is_empty());
}

fn a_start_without_fence_or_shard_is_not_claimed(world: &World) {
    let stranger = register(&*world.store, "stranger", START);
    let stale = Fence { epoch: world.fence.epoch + 100, ..world.fence };
    for fence in [None, Some(stale), Some(stranger)] {
        let writes = vec![Write::Start(Box::new(world.new_run()))];
        let outcomes =
            world.store.commit(&Batch { fence, now: START, writes }).expect("commit").outcomes;
        let [Outcome::Started(started)] = outcomes.as_slice() else { panic!("{outcomes:?}") };
        assert_eq!((started.claimed, started.available_at), (false, Some(START)), "{fence:?}");
        assert_eq!(world.row(started.id).status, RunStatus::Pending);
    }
}

fn a_delayed_start_is_never_claimed(world: &World) {
    let started = world.start(NewRun { available_at: Some(at(500)), ..world.new_run() });
    assert!(!started.claimed);
    assert_eq!(world.row(started.id).status, RunStatus::Pending);
}

fn keyed(world: &World, key: &str) -> NewRun {
    NewRun { key: Some(key.to_owned()), ..world.new_run() }
}

fn a_second_start_of_a_key_attaches_and_compares_the_input(world: &World) {
    let first = world.start(keyed(world, "order-1"));
    let same = world.start(keyed(world, "order-1"));
    assert_eq!((same.id, same.attached, same.input_differs), (first.id, true, false));
    assert_eq!((same.claimed, same.available_at), (false, None));
    let other = world.start(NewRun { input: b"other".to_vec(), ..keyed(world, "order-1") });
    assert_eq!((other.id, other.attached, other.input_differs), (first.id, true, true));
    // The key stays when the run has ended.
    world.finish(first.id);
    assert!(world.start(keyed(world, "order-1")).attached);
    assert_eq!(world.store.count(&Filter::default()).expect("count"), 1);
}

fn two_starts_of_one_key_in_one_batch_make_one_run(world: &World) {
    let (first, second) = (keyed(world, "order-1"), keyed(world, "order-1"));
    let id = first.id;
    let writes = vec![Write::Start(Box::new(first)), Write::Start(Box::new(second))];
    let outcomes = world.batch(0, writes);
    let [Outcome::Started(first), Outcome::Started(second)] = outcomes.as_slice() else {
        panic!("{outcomes:?}")
    };
    assert_eq!((first.id, first.attached), (id, false));
    assert_eq!((second.id, second.attached, second.claimed), (id, true, false));
    assert_eq!(world.store.count(&Filter::default()).expect("count"), 1);
}

fn keys_are_unique_per_workflow_only(world: &World) {
    let first = world.start(keyed(world, "order-1"));
    let second = world.start(NewRun { workflow: "refund".into(), ..keyed(world, "order-1") });
    let third = world.start(keyed(world, "order-2"));
    assert!(!first.attached && !second.attached && !third.attached);
}

fn a_start_with_a_used_id_attaches_and_with_a_used_number_is_refused(world: &World) {
    let new = world.new_run();
    world.start(new.clone());
    assert!(world.start(new.clone()).attached);
    let twin = Uuid::from_u128(new.id.as_uuid().as_u128() ^ 1);
    let twin = RunId::from_uuid(twin).expect("still of version 7");
    assert_eq!(twin.no(), new.id.no());
    let refused = world.one(0, Write::Start(Box::new(NewRun { id: twin, ..world.new_run() })));
    assert_eq!(refused, Outcome::Refused(Refusal::Gone));
    assert_eq!(world.store.run(&Target::Id(twin)).expect("run"), None);
}

fn every_field_of_a_start_is_kept(world: &World) {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let new = NewRun {
        workflow: "bestätigen".into(),
        version: 7,
        key: Some("ключ\0'\"".to_owned()),
        pool: "gpu".into(),
        deadline_at: Some(at(9_000)),
        tags: vec![tag("zeta", "1"), tag("alpha", "ü"), tag("alpha", "2")],
        input: vec![0, 255, 0, 1],
        ..world.new_run()
    };
    world.start(new.clone());
    let row = world.row(new.id);
    assert_eq!((row.id, row.workflow, row.version), (new.id, new.workflow, 7));
    assert_eq!((row.key, row.pool, row.shard), (new.key, new.pool, new.id.shard_in(PoolNo(1))));
    assert_eq!((row.deadline_at, row.tags, row.input), (new.deadline_at, new.tags, new.input));
    assert_eq!((row.created_at, row.updated_at, row.finished_at), (START, START, None));
    assert_eq!((row.output, row.error, row.waiting), (None, None, None));
    assert_eq!((row.ending, row.cancel_requested), (None, None));
    assert_eq!((row.inbox_seq, row.last_number), (0, 0));
}

fn a_target_is_found_by_id_and_by_key_only(world: &World) {
    let id = world.start(keyed(world, "order-1")).id;
    let by_key = |workflow: &str, key: &str| {
        let target = Target::Key { workflow: workflow.to_owned(), key: key.to_owned() };
        world.store.run(&target).expect("run").map(|row| row.id)
    };
    assert_eq!(by_key("checkout", "order-1"), Some(id));
    assert_eq!(by_key("checkout", "order-2"), None);
    assert_eq!(by_key("refund", "order-1"), None);
    let unknown = Target::Id(world.ids.next(START));
    assert_eq!(world.store.run(&unknown).expect("run"), None);
}
