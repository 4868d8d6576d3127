//! Runs that get another home pool.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_run_with_another_home_stays_where_it_is,
    a_sleeping_run_with_another_home_is_due,
    a_run_that_goes_back_to_where_it_is_sleeps_on,
    a_run_that_has_ended_or_is_unknown_gets_no_home,
    a_pool_that_is_new_gets_a_number_with_the_home,
    its_owner_hands_over_a_run_with_another_home,
];

impl World {
    fn rehome(&self, id: RunId, pool: &str) -> (Outcome, Vec<Notice>) {
        let what = Rehome { target: Target::Id(id), pool: pool.into() };
        // Anybody may say so.
        let batch = Batch { fence: None, now: at(5), writes: vec![Write::Rehome(Box::new(what))] };
        let mut applied = self.store.commit(&batch).expect("commit");
        let outcome = applied.outcomes.pop().expect("one outcome");
        (outcome, applied.notices)
    }
}

fn done(run: RunId) -> Outcome {
    Outcome::Controlled(Controlled::Done { run })
}

fn a_run_with_another_home_stays_where_it_is(world: &World) {
    let id = world.running();
    let before = world.row(id);
    assert_eq!(world.rehome(id, "gpu"), (done(id), Vec::new()));
    let after = world.row(id);
    assert_eq!((&*after.pool, after.shard), ("gpu", before.shard));
    assert_eq!(after.status, RunStatus::Running);
    assert_eq!(after.available_at, None);
    // Its owner goes on with it.
    world.accept(Commit { puts: vec![put("a", "1")], last_number: 1, numbers: 1, ..commit(id) });
    let status = RunStatus::Running;
    let already = Outcome::Controlled(Controlled::Already { run: id, status });
    assert_eq!(world.rehome(id, "gpu"), (already, Vec::new()));
}

fn a_sleeping_run_with_another_home_is_due(world: &World) {
    for later in [None, Some(at(1_000))] {
        let id = world.parked(later);
        let (outcome, notices) = world.rehome(id, "gpu");
        assert_eq!(outcome, done(id));
        assert_eq!(notices, [Notice::Due { run: id, at: at(5) }]);
        let row = world.row(id);
        assert_eq!((&*row.pool, row.status), ("gpu", RunStatus::Sleeping));
        assert_eq!(row.available_at, Some(AT_ONCE));
        assert!(world.due(5).contains(&id));
    }
    let delayed = NewRun { available_at: Some(at(1_000)), claim: false, ..world.new_run() };
    let id = world.start(delayed).id;
    assert_eq!(world.rehome(id, "gpu"), (done(id), Vec::new()));
    let row = world.row(id);
    assert_eq!(row.available_at, Some(at(1_000)), "it keeps its time");
}

fn a_run_that_goes_back_to_where_it_is_sleeps_on(world: &World) {
    let id = world.start(world.new_run()).id;
    assert_eq!(world.rehome(id, "gpu").0, done(id));
    world.accept(Commit {
        patch: Patch::Park {
            status: RunStatus::Sleeping,
            available_at: Some(at(1_000)),
            waiting: "sleep".to_owned(),
            attempts: 1,
        },
        ..commit(id)
    });
    assert_eq!(world.rehome(id, "default"), (done(id), Vec::new()));
    let row = world.row(id);
    assert_eq!((&*row.pool, row.available_at), ("default", Some(at(1_000))));
}

fn a_run_that_has_ended_or_is_unknown_gets_no_home(world: &World) {
    let id = world.running();
    world.finish(id);
    let status = RunStatus::Completed;
    let finished = Outcome::Controlled(Controlled::Finished { run: id, status });
    assert_eq!(world.rehome(id, "gpu").0, finished);
    assert_eq!(&*world.row(id).pool, "default");
    let unknown = Outcome::Controlled(Controlled::Unknown);
    assert_eq!(world.rehome(world.ids.next(START), "gpu").0, unknown);
    assert_eq!(world.store.pools().expect("pools").len(), 1);
}

fn a_pool_that_is_new_gets_a_number_with_the_home(world: &World) {
    let id = world.running();
    assert_eq!(world.rehome(id, "gpu").0, done(id));
    let pools = world.store.pools().expect("pools");
    let names: Vec<&str> = pools.iter().map(|row| &*row.name).collect();
    assert_eq!(names, ["default", "gpu"]);
}

fn its_owner_hands_over_a_run_with_another_home(world: &World) {
    let id = world.parked(None);
    assert_eq!(world.rehome(id, "gpu").0, done(id));
    let hand_over = HandOver { run: id.no(), pool: "gpu".into() };
    let handed = world.one(6, Write::HandOver(Box::new(hand_over)));
    assert_eq!(handed, Outcome::Committed(Vec::new()));
    let row = world.row(id);
    assert_eq!(row.shard, id.shard_in(PoolNo(1)));
    assert_eq!((&*row.pool, row.status), ("gpu", RunStatus::Sleeping));
}
