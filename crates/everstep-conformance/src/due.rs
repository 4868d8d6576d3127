//! What the owner of a shard looks for: due, live and paused runs, and those that have ended.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    due_runs_are_paged_in_order,
    due_runs_are_of_the_given_shards,
    the_next_due_time_is_after_now,
    live_runs_are_paged_by_number,
    the_census_counts_what_waits,
    finished_names_the_ended_and_the_missing,
];

fn due_runs_are_paged_in_order(world: &World) {
    let times = [30, 10, 20, 10, 30, 10, 99];
    let mut ids = times.map(|ms| (at(ms), world.parked(Some(at(ms)))));
    ids.sort_by_key(|(at, id)| (*at, id.no()));
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let due = world.store.due(at(30), &ShardSet::of_default_pool(), after, 2).expect("due");
        assert!(due.runs.len() <= 2);
        assert_eq!(due.next_at, Some(at(99)));
        let Some(last) = due.runs.last() else { break };
        after = Some((last.available_at.expect("it is due"), last.id.no()));
        read.extend(due.runs.into_iter().map(|run| run.id));
    }
    assert_eq!(read, ids[..6].iter().map(|(_, id)| *id).collect::<Vec<_>>());
    let run = &world.store.due(at(30), &ShardSet::of_default_pool(), None, 1).expect("due").runs[0];
    assert_eq!((&*run.workflow, run.version), ("checkout", 1));
    assert_eq!((run.status, run.shard), (RunStatus::Sleeping, run.id.shard_in(PoolNo::DEFAULT)));
    let past = Some((at(31), RunNo(0)));
    let due = world.store.due(at(30), &ShardSet::of_default_pool(), past, 10).expect("due");
    assert!(due.runs.is_empty());
}

fn due_runs_are_of_the_given_shards(world: &World) {
    let ids = (0..60).map(|i| world.parked(Some(at(i)))).collect::<Vec<_>>();
    let shards = ids[..20].iter().map(|id| id.shard_in(PoolNo::DEFAULT)).collect::<ShardSet>();
    let wanted = ids.iter().filter(|id| shards.contains(id.shard_in(PoolNo::DEFAULT))).copied();
    let due = world.store.due(at(60), &shards, None, 1_000).expect("due");
    assert!(due.runs.iter().map(|run| run.id).eq(wanted));
    let (mut read, mut after) = (0, None);
    while let Some(last) = {
        let due = world.store.due(at(60), &shards, after, 3).expect("due");
        read += due.runs.len();
        due.runs.last().cloned()
    } {
        after = Some((last.available_at.expect("it is due"), last.id.no()));
    }
    assert_eq!(read, due.runs.len());
    let due = world.store.due(at(60), &ShardSet::EMPTY, None, 1_000).expect("due");
    assert_eq!(due, Due::default());
    let due = world.store.due(at(-1), &shards, None, 10).expect("due");
    assert_eq!((due.runs.len(), due.next_at), (0, Some(START)));
}

fn the_next_due_time_is_after_now(world: &World) {
    let next_at =
        |ms| world.store.due(at(ms), &ShardSet::of_default_pool(), None, 0).expect("due").next_at;
    assert_eq!(next_at(0), None);
    world.parked(Some(at(50)));
    world.parked(None);
    assert_eq!((next_at(49), next_at(50)), (Some(at(50)), None));
}

fn live_runs_are_paged_by_number(world: &World) {
    let rolling = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(rolling) });
    let (running, messaged) = (world.running(), world.running());
    world.deliver(message(messaged));
    world.parked(None);
    world.finish(world.running());
    world.control(world.running(), Control::Pause);
    world.start(NewRun { claim: false, ..world.new_run() });
    let ids = |after, limit| {
        let live = world.store.live(&ShardSet::of_default_pool(), after, limit).expect("live");
        live.into_iter().map(|run| run.id).collect::<Vec<_>>()
    };
    assert_eq!(ids(None, 10), [rolling, running, messaged]);
    assert_eq!(ids(None, 2), [rolling, running]);
    assert_eq!(ids(Some(running.no()), 2), [messaged]);
    let mut others = ShardSet::of_default_pool();
    others.remove(running.shard_in(PoolNo::DEFAULT));
    let live = world.store.live(&others, None, 10).expect("live");
    assert!(live.iter().all(|run| run.id != running) && live.len() < 3);
    let status = world.store.live(&ShardSet::of_default_pool(), None, 1).expect("live")[0].status;
    assert_eq!(status, RunStatus::RollingBack);
}

fn the_census_counts_what_waits(world: &World) {
    world.parked(Some(at(500)));
    world.parked(Some(at(501)));
    world.start(NewRun { claim: false, available_at: Some(at(900)), ..world.new_run() });
    world.start(NewRun { claim: false, ..world.new_run() });
    world.parked(None);
    world.control(world.parked(None), Control::Pause);
    world.running();
    world.deliver(message(world.running()));
    world.finish(world.running());
    let census = world.store.census(at(500), &ShardSet::of_default_pool()).expect("census");
    assert_eq!(census, Census { timers: 2, due: 2, waiting: 1, paused: 1 });
    let nothing = world.store.census(at(500), &ShardSet::EMPTY).expect("census");
    assert_eq!(nothing, Census::default());
}

fn finished_names_the_ended_and_the_missing(world: &World) {
    let (live, done, missing) = (world.running(), world.running(), world.ids.next(START));
    world.finish(done);
    let asked = [missing.no(), live.no(), done.no()];
    let ended = world.store.finished(&asked).expect("finished");
    assert_eq!(ended.len(), 2);
    let of = |id: RunId| ended.iter().find(|(no, _)| *no == id.no()).map(|(_, how)| how);
    assert_eq!(of(missing), Some(&None));
    let how = of(done).cloned().flatten().expect("it has ended");
    assert_eq!(how.status, RunStatus::Completed);
    assert_eq!((how.output, how.error), (Some(b"output".to_vec()), None));
    assert!(world.store.finished(&[]).expect("finished").is_empty());
}
