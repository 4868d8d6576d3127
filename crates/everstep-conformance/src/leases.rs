//! Runners: which shards they hold, under which epoch, and what a former owner cannot write.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_batch_without_fence_commits_nothing_but_other_writes_stand,
    a_batch_under_a_raised_epoch_commits_nothing,
    a_runner_that_registers_again_commits_nothing_for_shards_it_lost,
    a_takeover_frees_all_shards_and_counts_recoveries,
    a_live_holder_keeps_its_shards,
    a_holder_that_is_gone_is_taken_over_unless_it_has_prolonged_its_lease,
    released_shards_belong_to_nobody,
    a_shard_that_was_given_back_counts_no_recovery,
    a_runner_that_deregisters_frees_everything,
    a_runner_that_returns_gets_a_fresh_epoch,
    a_heartbeat_prolongs_the_lease,
    parking_clears_the_recoveries,
    running_clears_the_due_time_and_the_recoveries,
    runners_say_what_they_serve,
];

fn a_batch_without_fence_commits_nothing_but_other_writes_stand(world: &World) {
    let (id, other) = (world.running(), world.parked(None));
    let stale = Fence { epoch: world.fence.epoch + 1, ..world.fence };
    let unknown = Fence { runner: Uuid::from_name("unknown"), ..world.fence };
    for (i, fence) in [None, Some(stale), Some(unknown)].into_iter().enumerate() {
        let commit = Commit { puts: vec![put("a", "")], ..commit(id) };
        let writes = vec![
            Write::Commit(Box::new(commit)),
            Write::Deliver(Box::new(message(other))),
            Write::Start(Box::new(world.new_run())),
        ];
        let batch = Batch { fence, now: START, writes };
        let outcomes = world.store.commit(&batch).expect("commit").outcomes;
        assert_eq!(outcomes[0], Outcome::Refused(Refusal::Fenced));
        assert_eq!(outcomes[1], Outcome::Delivered(delivered(other, i as u64 + 1)));
        assert!(matches!(&outcomes[2], Outcome::Started(s) if !s.claimed));
    }
    assert!(world.keys(id).is_empty());
}

/// Another runner, at a time when the first one's lease is over.
fn take_over(world: &World, wanted: &ShardSet) -> (Fence, ShardSet) {
    let now = START + LEASE;
    let fence = register(&*world.store, "second", now);
    let held = world.store.take_shards(fence, now, wanted, &[]).expect("take_shards");
    (fence, held.expect("its own fence holds"))
}

fn a_runner_that_registers_again_commits_nothing_for_shards_it_lost(world: &World) {
    let id = world.running();
    world.accept(commit(id));
    let now = START;
    let again = NewRunner::new(world.fence.runner, "again", now, LEASE);
    let fence = world.store.register_runner(&again).expect("register");
    let batch = |fence| Batch {
        fence: Some(fence),
        now,
        writes: vec![Write::Commit(Box::new(commit(id)))],
    };
    let outcomes = world.store.commit(&batch(fence)).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Refused(Refusal::Fenced)]);
    let held = world.store.take_shards(fence, now, &ShardSet::of_default_pool(), &[]);
    assert_eq!(held.expect("take"), Some(ShardSet::of_default_pool()));
    let outcomes = world.store.commit(&batch(fence)).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Committed(Vec::new())]);
}

fn a_batch_under_a_raised_epoch_commits_nothing(world: &World) {
    let id = world.running();
    world.accept(commit(id));
    let (second, held) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(held, ShardSet::of_default_pool());
    let stale = Commit { puts: vec![put("a", "stale")], ..commit(id) };
    assert_eq!(world.refuse(stale), Refusal::Fenced);
    assert!(world.keys(id).is_empty());
    let writes = vec![Write::Commit(Box::new(commit(id)))];
    let batch = Batch { fence: Some(second), now: at(20_000), writes };
    let outcomes = world.store.commit(&batch).expect("commit").outcomes;
    assert_eq!(outcomes, [Outcome::Committed(Vec::new())]);
    let now = at(20_000);
    assert!(!world.store.heartbeat(world.fence, now, LEASE).expect("heartbeat"));
    assert_eq!(
        world.store.take_shards(world.fence, now, &ShardSet::of_default_pool(), &[]).expect("take"),
        None
    );
    world.store.release_shards(world.fence, &ShardSet::of_default_pool()).expect("release");
    world.store.deregister_runner(world.fence).expect("deregister");
    assert!(world.store.heartbeat(second, now, LEASE).expect("heartbeat"));
    let held = world.store.take_shards(second, now, &ShardSet::EMPTY, &[]).expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
}

fn a_takeover_frees_all_shards_and_counts_recoveries(world: &World) {
    let (running, parked) = (world.running(), world.parked(None));
    let other = loop {
        let id = world.running();
        if id.shard_in(PoolNo::DEFAULT) != running.shard_in(PoolNo::DEFAULT) {
            break id;
        }
    };
    world.accept(Commit { patch: roll_back(), ..commit(other) });
    let wanted = [running.shard_in(PoolNo::DEFAULT)].into_iter().collect::<ShardSet>();
    let (second, held) = take_over(world, &wanted);
    assert_eq!(held, wanted);
    assert_eq!(world.row(running).recoveries, 1);
    assert_eq!(world.row(parked).recoveries, 0);
    assert_eq!(world.row(other).recoveries, 1, "its owner is lost, whoever takes its shard");
    let runners = world.store.runners().expect("runners");
    let held_by = |name| runners.iter().find(|row| row.name == name).map(|row| row.shards.clone());
    assert_eq!(held_by("first"), Some(ShardSet::EMPTY));
    assert_eq!(held_by("second"), Some(wanted));
    let held = world
        .store
        .take_shards(second, at(11_000), &ShardSet::of_default_pool(), &[])
        .expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
    assert_eq!((world.row(running).recoveries, world.row(other).recoveries), (1, 1));
}

fn a_live_holder_keeps_its_shards(world: &World) {
    let last_ms = START + LEASE - Duration::from_millis(1);
    let second = register(&*world.store, "second", last_ms);
    let held =
        world.store.take_shards(second, last_ms, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(ShardSet::EMPTY));
    assert!(world.store.heartbeat(world.fence, last_ms, LEASE).expect("heartbeat"));
}

/// A store need not know the time: a runner whose lease is written by a clock that is hours ahead is known to
/// be gone by who has watched it.
fn a_holder_that_is_gone_is_taken_over_unless_it_has_prolonged_its_lease(world: &World) {
    let (hours, all) = (Duration::from_secs(7_200), ShardSet::of_default_pool());
    assert!(world.store.heartbeat(world.fence, START + hours, LEASE).expect("heartbeat"));
    let row = || {
        let mut rows = world.store.runners().expect("runners");
        rows.retain(|row| row.id == world.fence.runner);
        rows.remove(0)
    };
    assert_eq!(row().lease, LEASE);
    let gone = [row().as_gone()];
    assert_eq!(gone[0].lease_until, START + hours + LEASE);
    let second = register(&*world.store, "second", START);
    let later = START + hours + Duration::from_millis(1);
    assert!(world.store.heartbeat(world.fence, later, LEASE).expect("heartbeat"));
    let held = world.store.take_shards(second, START, &all, &gone).expect("take");
    assert_eq!(held, Some(ShardSet::EMPTY));
    let gone = [row().as_gone()];
    let held = world.store.take_shards(second, START, &all, &gone).expect("take");
    assert_eq!(held, Some(all));
    assert_eq!(row().lease_until, START, "its lease is over for everybody");
    assert!(!world.store.heartbeat(world.fence, later, LEASE).expect("heartbeat"));
}

fn released_shards_belong_to_nobody(world: &World) {
    let released = (0..10).map(ShardId).collect::<ShardSet>();
    world.store.release_shards(world.fence, &released).expect("release");
    let second = register(&*world.store, "second", START);
    let held =
        world.store.take_shards(second, START, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(released.clone()));
    // Its fence still holds, for the shards it has kept.
    let id = loop {
        let id = world.start(world.new_run()).id;
        if !released.contains(id.shard_in(PoolNo::DEFAULT)) {
            break id;
        }
    };
    world.accept(commit(id));
}

fn a_shard_that_was_given_back_counts_no_recovery(world: &World) {
    let (id, all) = (world.running(), ShardSet::of_default_pool());
    let given_back = world.store.release_shards(world.fence, &all);
    given_back.expect("release");
    let second = register(&*world.store, "second", START);
    let take = |fence| world.store.take_shards(fence, START, &all, &[]);
    assert_eq!(take(second).expect("take"), Some(all.clone()));
    assert_eq!(world.row(id).recoveries, 0);
    let signed_off = world.store.deregister_runner(second);
    signed_off.expect("deregister");
    assert_eq!(take(world.fence).expect("take"), Some(all.clone()));
    assert_eq!(world.row(id).recoveries, 0);
}

fn a_runner_that_deregisters_frees_everything(world: &World) {
    let id = world.running();
    world.store.deregister_runner(world.fence).expect("deregister");
    assert!(world.store.runners().expect("runners").is_empty());
    assert_eq!(world.refuse(commit(id)), Refusal::Fenced);
    let second = register(&*world.store, "second", START);
    let held =
        world.store.take_shards(second, START, &ShardSet::of_default_pool(), &[]).expect("take");
    assert_eq!(held, Some(ShardSet::of_default_pool()));
}

fn a_runner_that_returns_gets_a_fresh_epoch(world: &World) {
    let id = world.running();
    let again = register_as(&*world.store, world.fence.runner, "first", at(1));
    assert!(again.epoch > world.fence.epoch);
    assert_eq!(world.refuse(commit(id)), Refusal::Fenced);
    let runners = world.store.runners().expect("runners");
    assert_eq!((runners.len(), runners[0].shards.len()), (1, 0));
    world.store.deregister_runner(again).expect("deregister");
    let third = register_as(&*world.store, world.fence.runner, "first", at(2));
    assert!(third.epoch > again.epoch, "an epoch is not used twice");
}

fn a_heartbeat_prolongs_the_lease(world: &World) {
    assert!(world.store.heartbeat(world.fence, at(5_000), LEASE).expect("heartbeat"));
    let runners = world.store.runners().expect("runners");
    assert_eq!(runners[0].lease_until, at(5_000) + LEASE);
    assert_eq!((runners[0].id, runners[0].epoch), (world.fence.runner, world.fence.epoch));
    let (_, held) = take_over(world, &ShardSet::of_default_pool());
    assert!(held.is_empty());
}

fn parking_clears_the_recoveries(world: &World) {
    let id = world.running();
    let (second, _) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(world.row(id).recoveries, 1);
    let parked = Commit { patch: park(None), ..commit(id) };
    let batch = Batch {
        fence: Some(second),
        now: at(20_000),
        writes: vec![Write::Commit(Box::new(parked))],
    };
    world.store.commit(&batch).expect("commit");
    assert_eq!(world.row(id).recoveries, 0);
}

fn running_clears_the_due_time_and_the_recoveries(world: &World) {
    let id = world.running();
    let (second, _) = take_over(world, &ShardSet::of_default_pool());
    assert_eq!(world.row(id).recoveries, 1);
    let writes = vec![
        Write::Commit(Box::new(Commit { patch: Patch::Run { inbox_seq: 0 }, ..commit(id) })),
        Write::Deliver(Box::new(message(id))),
    ];
    let batch = Batch { fence: Some(second), now: at(20_000), writes };
    world.store.commit(&batch).expect("commit");
    assert_eq!(world.row(id).recoveries, 0);
    assert_eq!(world.row(id).available_at, Some(AT_ONCE));
    let run = Commit { patch: Patch::Run { inbox_seq: 1 }, ..commit(id) };
    let writes = vec![Write::Commit(Box::new(run))];
    world.store.commit(&Batch { fence: Some(second), now: at(20_001), writes }).expect("commit");
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, None));
}

fn runners_say_what_they_serve(world: &World) {
    let runners = world.store.runners().expect("runners");
    assert_eq!(runners[0].workflows, [serves()]);
}
