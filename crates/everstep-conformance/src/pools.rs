//! Pools, their shards, and runs that are handed over from one to another.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_fresh_store_has_the_default_pool,
    a_pool_gets_its_number_when_it_is_first_used,
    a_start_that_attaches_makes_no_pool,
    a_run_is_in_a_shard_of_its_pool,
    a_run_of_another_pool_is_not_claimed_by_who_has_the_same_index,
    shards_of_several_pools_are_taken_and_released_apart,
    runners_publish_pools_and_weight,
    a_run_that_is_handed_over_is_due_in_the_other_pool,
    a_run_in_memory_is_due_once_it_is_handed_over,
    a_rollback_that_is_handed_over_goes_on,
    a_sleeping_run_that_is_handed_over_sleeps_on,
    a_former_owner_commits_nothing_after_a_hand_over,
    the_new_owner_goes_on_after_a_hand_over,
    only_the_owner_hands_over,
    a_run_that_has_moved_or_ended_is_not_handed_over,
    an_imported_run_is_in_its_home_pool,
    a_fork_is_in_its_pool,
    only_runs_in_the_memory_of_a_lost_owner_are_recovered,
];

const GPU: PoolNo = PoolNo(1);

impl World {
    fn pools(&self) -> Vec<(u32, String)> {
        let pools = self.store.pools().expect("pools").into_iter();
        pools.map(|row| (row.no.0, row.name.to_string())).collect()
    }

    fn new_run_of(&self, pool: &str) -> NewRun {
        NewRun { pool: pool.into(), ..self.new_run() }
    }

    fn take_shards(&self, fence: Fence, shards: &ShardSet) -> ShardSet {
        let held = self.store.take_shards(fence, START, shards, &[]);
        held.expect("take_shards").expect("its fence holds")
    }

    fn hand_over(&self, id: RunId, pool: &str) -> Outcome {
        self.hand_over_with_notices(id, pool).0
    }

    fn hand_over_with_notices(&self, id: RunId, pool: &str) -> (Outcome, Vec<Notice>) {
        let batch =
            Batch { fence: Some(self.fence), now: at(5), writes: vec![hand_over(id, pool)] };
        let mut applied = self.store.commit(&batch).expect("commit");
        let outcome = applied.outcomes.pop().expect("one outcome");
        (outcome, applied.notices)
    }

    fn due_in(&self, ms: i64, pool: PoolNo) -> Vec<RunId> {
        let shards = ShardSet::of_pools([pool]);
        let due = self.store.due(at(ms), &shards, None, 100).expect("due");
        assert!(due.runs.iter().all(|run| run.shard == run.id.shard_in(pool)));
        due.runs.into_iter().map(|run| run.id).collect()
    }
}

fn hand_over(id: RunId, pool: &str) -> Write {
    Write::HandOver(Box::new(HandOver { run: id.no(), pool: pool.into() }))
}

const DONE: Outcome = Outcome::Committed(Vec::new());

fn a_fresh_store_has_the_default_pool(world: &World) {
    assert_eq!(world.pools(), [(0, "default".to_owned())]);
}

fn a_pool_gets_its_number_when_it_is_first_used(world: &World) {
    world.start(world.new_run_of("gpu"));
    world.start(world.new_run_of("default"));
    world.start(world.new_run_of("gpu"));
    let runner = NewRunner {
        pools: vec!["gpu".to_owned(), "tape".to_owned()],
        ..NewRunner::new(Uuid::from_name("second"), "second", START, LEASE)
    };
    world.store.register_runner(&runner).expect("register");
    let id = world.start(world.new_run()).id;
    assert_eq!(world.hand_over(id, "default@checkout/1"), DONE);
    let names = ["default", "gpu", "tape", "default@checkout/1"];
    let wanted = (0..).zip(names.map(str::to_owned)).collect::<Vec<_>>();
    assert_eq!(world.pools(), wanted);
}

fn a_start_that_attaches_makes_no_pool(world: &World) {
    let key = Some("k".to_owned());
    let by_key = |pool| NewRun { key: key.clone(), ..world.new_run_of(pool) };
    let first = world.start(by_key("default"));
    assert!(world.start(by_key("gpu")).attached);
    let by_id = NewRun { id: first.id, ..world.new_run_of("tape") };
    assert!(world.start(by_id).attached);
    assert_eq!(world.pools().len(), 1);
    assert_eq!(&*world.row(first.id).pool, "default");
}

fn a_run_is_in_a_shard_of_its_pool(world: &World) {
    let at_home = world.start(world.new_run()).id;
    let on_gpu = world.start(world.new_run_of("gpu")).id;
    for (id, pool, name) in [(at_home, PoolNo::DEFAULT, "default"), (on_gpu, GPU, "gpu")] {
        let row = world.row(id);
        assert_eq!((row.shard, &*row.pool), (id.shard_in(pool), name));
    }
    // The first was claimed; the shards of the other pool are nobody's.
    assert_eq!(world.due(10), []);
    assert_eq!(world.due_in(10, GPU), [on_gpu]);
    let due = world.store.due(at(10), &ShardSet::of_pools([GPU]), None, 1);
    assert_eq!(&*due.expect("due").runs[0].pool, "gpu");
    let live = |pool| {
        let shards = ShardSet::of_pools([pool]);
        let live = world.store.live(&shards, None, 10).expect("live");
        live.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!((live(PoolNo::DEFAULT), live(GPU)), (vec![at_home], vec![]));
    let shards = ShardSet::of_pools([GPU]);
    let census = world.store.census(at(10), &shards).expect("census");
    assert_eq!(census.due, 1);
}

fn a_run_of_another_pool_is_not_claimed_by_who_has_the_same_index(world: &World) {
    let started = world.start(world.new_run_of("gpu"));
    assert!(!started.claimed);
    world.take_shards(world.fence, &ShardSet::of_pools([GPU]));
    assert!(world.start(world.new_run_of("gpu")).claimed);
    let other = world.fence.runner;
    let runners = world.store.runners().expect("runners");
    let held = runners.iter().find(|row| row.id == other).map(|row| &row.shards);
    assert_eq!(held, Some(&ShardSet::of_pools([PoolNo::DEFAULT, GPU])));
}

fn shards_of_several_pools_are_taken_and_released_apart(world: &World) {
    world.start(world.new_run_of("gpu"));
    let second = register(&*world.store, "second", START);
    let both = ShardSet::of_pools([PoolNo::DEFAULT, GPU]);
    let gpu = ShardSet::of_pools([GPU]);
    assert_eq!(world.take_shards(second, &both), gpu);
    let one: ShardSet = [ShardId::new(GPU, 7)].into_iter().collect();
    let released = world.store.release_shards(second, &one);
    released.expect("release");
    let all = world.take_shards(world.fence, &both);
    assert_eq!(all.len(), 257);
    assert!(all.contains(ShardId::new(GPU, 7)));
    assert!(!all.contains(ShardId::new(GPU, 8)));
}

fn runners_publish_pools_and_weight(world: &World) {
    let runner = NewRunner {
        pools: vec!["gpu".to_owned(), "default".to_owned()],
        weight: 3,
        workflows: vec![
            serves(),
            Serves { workflow: "a/b@c".to_owned(), pool: "gpu".to_owned(), ..serves() },
        ],
        ..NewRunner::new(Uuid::from_name("second"), "second", START, LEASE)
    };
    world.store.register_runner(&runner).expect("register");
    let runners = world.store.runners().expect("runners");
    let row = |name| runners.iter().find(|row| row.name == name).expect("a row");
    let first = row("first");
    assert_eq!((&first.pools[..], first.weight), (&["default".to_owned()][..], 1));
    assert_eq!((&row("second").pools, row("second").weight), (&runner.pools, 3));
    assert_eq!(row("second").workflows, runner.workflows);
    assert!(first.serves("checkout", 1) && first.serves("checkout", 2));
    assert!(!first.serves("checkout", 3) && !first.serves("other", 1));
}

fn a_run_that_is_handed_over_is_due_in_the_other_pool(world: &World) {
    let pending = NewRun { available_at: Some(at(2)), ..world.new_run() };
    let id = world.start(pending).id;
    let (outcome, notices) = world.hand_over_with_notices(id, "default@checkout/1");
    assert_eq!(outcome, DONE);
    assert_eq!(notices, [Notice::Due { run: id, at: at(2) }]);
    let row = world.row(id);
    assert_eq!((&*row.pool, row.shard), ("default", id.shard_in(PoolNo(1))));
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(at(2))));
    assert_eq!((row.updated_at, row.created_at), (at(5), at(0)));
    assert_eq!((world.due(10), world.due_in(10, PoolNo(1))), (vec![], vec![id]));
}

fn a_run_in_memory_is_due_once_it_is_handed_over(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put([1], [1])], ..commit(id) });
    let (outcome, notices) = world.hand_over_with_notices(id, "gpu");
    assert_eq!(outcome, DONE);
    let due = Notice::Due { run: id, at: AT_ONCE };
    assert_eq!(notices, [due]);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Pending, Some(AT_ONCE)));
    let live = world.store.live(&ShardSet::of_pools([GPU]), None, 10);
    assert_eq!(live.expect("live"), []);
    assert_eq!(world.due_in(10, GPU), [id]);
    assert_eq!(world.keys(id), [vec![1]]);
}

fn a_rollback_that_is_handed_over_goes_on(world: &World) {
    let id = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(id) });
    assert_eq!(world.hand_over(id, "gpu"), DONE);
    let row = world.row(id);
    assert_eq!(row.status, RunStatus::RollingBack);
    assert_eq!((row.ending, row.available_at), (Some(RunStatus::Cancelled), Some(AT_ONCE)));
}

fn a_sleeping_run_that_is_handed_over_sleeps_on(world: &World) {
    let id = world.parked(None);
    let (outcome, notices) = world.hand_over_with_notices(id, "gpu");
    assert_eq!((outcome, notices), (DONE, vec![]));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, None));
    assert!(row.waiting.is_some());
    // A message finds it where it is.
    world.deliver(message(id));
    assert_eq!(world.due_in(10, GPU), [id]);
}

fn a_former_owner_commits_nothing_after_a_hand_over(world: &World) {
    let id = world.running();
    world.accept(commit(id));
    assert_eq!(world.hand_over(id, "gpu"), DONE);
    assert_eq!(world.refuse(commit(id)), Refusal::Fenced);
    let emission =
        Write::Emit(Box::new(Emission { run: id.no(), generation: 1, items: Vec::new() }));
    assert_eq!(world.one(6, emission), Outcome::Refused(Refusal::Fenced));
}

fn the_new_owner_goes_on_after_a_hand_over(world: &World) {
    let id = world.running();
    world.accept(Commit { puts: vec![put([1], [1])], numbers: 1, last_number: 1, ..commit(id) });
    assert_eq!(world.hand_over(id, "gpu"), DONE);
    let second = register(&*world.store, "second", START);
    world.take_shards(second, &ShardSet::of_pools([GPU]));
    assert_eq!(world.row(id).recoveries, 0);
    let batch = |fence, commit| Batch {
        fence: Some(fence),
        now: at(7),
        writes: vec![Write::Commit(Box::new(commit))],
    };
    let end = Commit {
        puts: vec![put([2], [2])],
        numbers: 1,
        last_number: 2,
        patch: finish(RunStatus::Completed),
        ..commit(id)
    };
    let applied = world.store.commit(&batch(second, end)).expect("commit");
    assert_eq!(applied.outcomes, [DONE]);
    assert_eq!(world.row(id).status, RunStatus::Completed);
}

fn only_the_owner_hands_over(world: &World) {
    let fenced = Outcome::Refused(Refusal::Fenced);
    let id = world.running();
    let second = register(&*world.store, "second", START);
    for fence in [None, Some(second)] {
        let batch = Batch { fence, now: at(5), writes: vec![hand_over(id, "gpu")] };
        let applied = world.store.commit(&batch).expect("commit");
        assert_eq!((applied.outcomes, applied.notices), (vec![fenced.clone()], vec![]));
    }
    let on_gpu = world.start(world.new_run_of("gpu")).id;
    assert_eq!(world.hand_over(on_gpu, "default"), fenced);
    assert_eq!(world.row(id).shard, id.shard_in(PoolNo::DEFAULT));
    assert_eq!(world.row(on_gpu).shard, on_gpu.shard_in(GPU));
}

fn a_run_that_has_moved_or_ended_is_not_handed_over(world: &World) {
    let gone = Outcome::Refused(Refusal::Gone);
    let id = world.running();
    assert_eq!(world.hand_over(id, "default"), gone);
    assert_eq!(world.hand_over(world.ids.next(START), "gpu"), gone);
    world.take_shards(world.fence, &ShardSet::of_default_pool());
    assert_eq!(world.hand_over(id, "gpu"), DONE);
    let fenced = Outcome::Refused(Refusal::Fenced);
    assert_eq!(world.hand_over(id, "gpu"), fenced);
    // Who has both may send it back.
    world.take_shards(world.fence, &ShardSet::of_pools([GPU]));
    assert_eq!(world.hand_over(id, "gpu"), gone);
    assert_eq!(world.hand_over(id, "default"), DONE);
    assert_eq!(world.row(id).shard, id.shard_in(PoolNo::DEFAULT));
    let ended = world.running();
    world.finish(ended);
    assert_eq!(world.hand_over(ended, "gpu"), gone);
}

fn an_imported_run_is_in_its_home_pool(world: &World) {
    let id = world.start(world.new_run_of("gpu")).id;
    let mut row = world.row(id);
    let other = world.ids.next(START);
    // Another store may know the pool by another number.
    (row.id, row.shard) = (other, other.shard_in(PoolNo(17)));
    let imported = ImportedRun { row, history: Vec::new(), inbox: Vec::new(), state: Vec::new() };
    world.one(3, Write::Import(Box::new(imported)));
    assert_eq!(world.row(other).shard, other.shard_in(GPU));
    assert_eq!(world.due_in(10, GPU), [id, other]);
}

fn a_fork_is_in_its_pool(world: &World) {
    let new = world.new_run_of("gpu");
    let id = new.id;
    let fork = Fork {
        new: NewRun { claim: false, ..new },
        history: vec![put([1], [1])],
        last_number: 1,
        state: Vec::new(),
    };
    world.one(3, Write::Fork(Box::new(fork)));
    assert_eq!(world.row(id).shard, id.shard_in(GPU));
    assert_eq!(world.due_in(10, GPU), [id]);
}

fn only_runs_in_the_memory_of_a_lost_owner_are_recovered(world: &World) {
    world.start(world.new_run_of("gpu"));
    let other = register(&*world.store, "other", START);
    world.take_shards(other, &ShardSet::of_pools([GPU]));
    let new = world.new_run_of("gpu");
    let on_gpu = new.id;
    let batch = Batch { fence: Some(other), now: at(1), writes: vec![Write::Start(Box::new(new))] };
    let outcomes = world.store.commit(&batch).expect("commit").outcomes;
    assert!(matches!(&outcomes[..], [Outcome::Started(started)] if started.claimed));
    let at_home = world.running();
    let lives_on = world.store.heartbeat(world.fence, at(1_000), LEASE);
    assert!(lives_on.expect("heartbeat"));
    let (_, held) = take_over(world, &ShardSet::of_pools([GPU]));
    assert_eq!(held, ShardSet::of_pools([GPU]));
    let recoveries = |id| world.row(id).recoveries;
    assert_eq!((recoveries(on_gpu), recoveries(at_home)), (1, 0));
}
