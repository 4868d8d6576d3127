//! Limits: places are given in order, in the transaction that makes room, and are not lost.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_place_that_is_free_is_given_at_once,
    a_place_that_is_given_back_is_the_next_ones_in_the_same_batch,
    places_are_given_in_the_order_of_asking,
    asking_again_changes_nothing,
    a_run_that_is_over_or_put_away_holds_nothing,
    a_paused_run_is_passed_over,
    a_run_that_was_resumed_keeps_its_places_and_is_not_put_away,
    an_abandoned_wait_for_a_limit_gives_its_place_back,
    another_rule_counts_from_the_next_asking,
    turns_by_the_rate_are_given_away_in_order,
    turns_follow_a_clock_that_was_set_back,
];

const STRIPE: LimitRule = LimitRule { concurrency: Some(1), rate: None };

fn acquire(rule: LimitRule, op: u8) -> Effect {
    Effect::Acquire(Box::new(Acquire {
        limit: "stripe".to_owned(),
        limit_key: "a".to_owned(),
        rule,
        holds: true,
        key: vec![op],
    }))
}

fn release(op: u8) -> Effect {
    Effect::Release { key: vec![op] }
}

fn with(id: RunId, effect: Effect) -> Commit {
    Commit { effects: vec![effect], ..commit(id) }
}

impl World {
    /// The operations of the run that were let in and have not given their place back.
    fn let_in(&self, id: RunId) -> Vec<u8> {
        let rows = self.store.inbox(id.no(), 0).expect("inbox");
        let grants = rows.iter().filter(|row| row.kind == InboxKind::LimitGrant);
        grants.filter_map(|row| row.wait.as_ref()?.first().copied()).collect()
    }

    /// How many have a place, and how many wait for one.
    fn places(&self) -> (u64, u64) {
        let rows = self.store.limits(Some("stripe"), 10).expect("limits");
        rows.first().map_or((0, 0), |row| (row.held, row.waiting))
    }
}

fn a_place_that_is_free_is_given_at_once(world: &World) {
    let [a, b] = [world.running(), world.running()];
    // It parks in the same commit: what it is given makes it due again.
    world.accept(Commit { inbox_seq: Some(0), patch: park(None), ..with(a, acquire(STRIPE, 1)) });
    assert_eq!(world.let_in(a), [1]);
    assert_eq!(world.row(a).available_at, Some(AT_ONCE));
    world.accept(Commit { inbox_seq: Some(0), patch: park(None), ..with(b, acquire(STRIPE, 1)) });
    assert_eq!((world.let_in(b), world.places()), (vec![], (1, 1)));
    assert_eq!(world.row(b).available_at, None);
}

fn a_place_that_is_given_back_is_the_next_ones_in_the_same_batch(world: &World) {
    for release_first in [true, false] {
        let [a, b] = [world.running(), world.running()];
        world.accept(with(a, acquire(STRIPE, 1)));
        let consumed = vec![1];
        let back = Commit { consumed, ..with(a, release(1)) };
        let mut writes = vec![back, with(b, acquire(STRIPE, 2))];
        if !release_first {
            writes.reverse();
        }
        let writes = writes.into_iter().map(|c| Write::Commit(Box::new(c)));
        let outcomes = world.batch(4, writes.collect());
        let made = |outcome: &Outcome| matches!(outcome, Outcome::Committed(_));
        assert!(outcomes.iter().all(made), "{outcomes:?}");
        assert_eq!((world.let_in(a), world.let_in(b)), (vec![], vec![2]));
        assert_eq!(world.places(), (1, 0));
        world.finish(b);
        assert_eq!(world.places(), (0, 0), "nobody is left, and neither is the row");
        world.finish(a);
    }
}

fn places_are_given_in_the_order_of_asking(world: &World) {
    let runs: Vec<RunId> = (0..5).map(|_| world.running()).collect();
    for id in &runs {
        world.accept(with(*id, acquire(STRIPE, 1)));
    }
    assert_eq!(world.places(), (1, 4));
    for (place, id) in runs.iter().enumerate() {
        assert_eq!(world.let_in(*id), [1], "the {place}th is next");
        let later = runs.iter().skip(place + 1);
        assert!(later.clone().all(|id| world.let_in(*id).is_empty()));
        world.accept(Commit { consumed: vec![1], ..with(*id, release(1)) });
    }
    assert_eq!(world.places(), (0, 0));
}

fn asking_again_changes_nothing(world: &World) {
    let [a, b] = [world.running(), world.running()];
    for _ in 0..3 {
        world.accept(with(a, acquire(STRIPE, 1)));
        world.accept(with(b, acquire(STRIPE, 1)));
    }
    assert_eq!((world.let_in(a), world.let_in(b)), (vec![1], vec![]));
    assert_eq!(world.places(), (1, 1));
}

fn a_run_that_is_over_or_put_away_holds_nothing(world: &World) {
    type Ends = fn(RunId) -> Commit;
    let ends: [Ends; 6] = [
        |id| Commit { patch: finish(RunStatus::Completed), ..commit(id) },
        |id| Commit { patch: roll_back(), ..commit(id) },
        |id| Commit { patch: pause(), ..commit(id) },
        |id| Commit { results_only: true, ..commit(id) },
        |id| Commit {
            patch: Patch::Park {
                status: RunStatus::Pending,
                available_at: Some(at(9)),
                waiting: "its next attempt".to_owned(),
                attempts: 2,
            },
            ..commit(id)
        },
        |id| Commit {
            patch: Patch::Continue {
                workflow: "checkout".into(),
                version: 1,
                pool: "default".into(),
                input: Vec::new(),
            },
            ..commit(id)
        },
    ];
    for end in ends {
        let [holder, gone, next] = [world.running(), world.running(), world.running()];
        // The one that ends waits at a second place of its own, and does not get it.
        world.accept(with(holder, acquire(STRIPE, 1)));
        world.accept(with(gone, acquire(STRIPE, 1)));
        world.accept(with(holder, acquire(STRIPE, 2)));
        world.accept(with(next, acquire(STRIPE, 1)));
        for id in [gone, holder] {
            // What only records results ends nothing by itself.
            if end(id).results_only {
                world.control(id, Control::Pause);
            }
            world.accept(end(id));
            let places = if id == gone { (1, 2) } else { (1, 0) };
            assert_eq!(world.places(), places, "it has left the line");
        }
        assert!(world.let_in(holder).is_empty());
        assert_eq!(world.let_in(next), [1]);
        world.finish(next);
    }
}

/// A run stood in line, was paused, and resumed before its owner said what its bodies had given. It
/// lost its place by that, left its owner's memory, and was never told again.
fn a_run_that_was_resumed_keeps_its_places_and_is_not_put_away(world: &World) {
    let results = |id| {
        let commit = Commit { results_only: true, ..commit(id) };
        world.commit(commit)
    };
    let (live, put_away) =
        (Outcome::Committed(Vec::new()), Outcome::Committed(vec![EffectDone::PutAway]));
    let [a, b] = [world.running(), world.running()];
    for id in [a, b] {
        world.accept(with(id, acquire(STRIPE, 1)));
    }
    for id in [b, a] {
        assert_eq!(results(id), live);
        world.control(id, Control::Pause);
        world.control(id, Control::Resume);
        assert_eq!(results(id), live);
        world.accept(Commit {
            inbox_seq: Some(world.row(id).inbox_seq),
            patch: park(None),
            ..commit(id)
        });
        assert_eq!(results(id), live);
    }
    assert_eq!((world.places(), world.let_in(a)), ((1, 1), vec![1]));
    world.control(a, Control::Pause);
    assert_eq!(results(a), put_away);
    assert_eq!((world.places(), world.let_in(b)), ((1, 0), vec![1]));
    // The order within a batch counts as that of two.
    let of_batch = |controls: [Control; 2], wanted: &Outcome| {
        let commit = Commit { results_only: true, ..commit(b) };
        let [first, last] = controls.map(|control| Write::Control(Target::Id(b), control));
        let outcomes = world.batch(4, vec![first, Write::Commit(Box::new(commit)), last]);
        assert_eq!(outcomes[1], *wanted);
    };
    of_batch([Control::Pause, Control::Resume], &put_away);
    assert_eq!((world.places(), world.let_in(b)), ((0, 0), vec![]));
    world.control(b, Control::Pause);
    of_batch([Control::Resume, Control::Pause], &live);
    // Without a place it is the same, and one that is to be cancelled has to be taken up.
    let id = world.running();
    assert_eq!(results(id), live);
    world.control(id, Control::Pause);
    assert_eq!(results(id), put_away);
    world.control(id, Control::Cancel { rollback: false });
    assert_eq!(results(id), live);
}

fn a_paused_run_is_passed_over(world: &World) {
    let [a, b, c] = [world.running(), world.running(), world.running()];
    for id in [a, b, c] {
        world.accept(with(id, acquire(STRIPE, 1)));
    }
    world.control(b, Control::Pause);
    world.finish(a);
    assert_eq!((world.let_in(b), world.let_in(c)), (vec![], vec![1]));
    // It stands in line again when it goes on.
    world.control(b, Control::Resume);
    world.accept(with(b, acquire(STRIPE, 1)));
    assert_eq!(world.places(), (1, 1));
    world.finish(c);
    assert_eq!(world.let_in(b), [1]);
}

fn an_abandoned_wait_for_a_limit_gives_its_place_back(world: &World) {
    let [a, b, c] = [world.running(), world.running(), world.running()];
    for id in [a, b, c] {
        world.accept(with(id, acquire(STRIPE, 1)));
    }
    let abandon = |id| {
        let (kind, key) = (InboxKind::LimitGrant, vec![1]);
        with(id, Effect::Abandon { kind, key })
    };
    world.accept(abandon(b));
    assert_eq!(world.places(), (1, 1));
    world.accept(abandon(a));
    assert_eq!((world.let_in(a), world.let_in(b)), (vec![], vec![]));
    assert_eq!((world.let_in(c), world.places()), (vec![1], (1, 0)));
}

fn another_rule_counts_from_the_next_asking(world: &World) {
    let runs: Vec<RunId> = (0..5).map(|_| world.running()).collect();
    for id in &runs[..4] {
        world.accept(with(*id, acquire(STRIPE, 1)));
    }
    let three = LimitRule { concurrency: Some(3), ..STRIPE };
    world.accept(with(runs[4], acquire(three, 1)));
    let let_in = runs.iter().map(|id| world.let_in(*id).len());
    assert_eq!(let_in.collect::<Vec<_>>(), [1, 1, 1, 0, 0]);
    // With less room nobody loses a place, and the next are let in when there is room.
    world.accept(with(runs[4], acquire(STRIPE, 2)));
    world.finish(runs[0]);
    world.finish(runs[1]);
    assert_eq!(world.places(), (1, 3));
    world.finish(runs[2]);
    assert_eq!(world.let_in(runs[3]), [1]);
}

fn turns_by_the_rate_are_given_away_in_order(world: &World) {
    let id = world.running();
    let rule = LimitRule {
        concurrency: None,
        rate: Some(LimitRate { count: 2, per_ms: 1_000, burst: 1 }),
    };
    for op in 1..=3 {
        let Effect::Acquire(mut acquire) = acquire(rule, op) else {
            unreachable!("it is one");
        };
        acquire.holds = false;
        world.accept(with(id, Effect::Acquire(acquire)));
    }
    let rows = world.store.inbox(id.no(), 0).expect("inbox");
    let turn = |row: &InboxRow| internal::decode_turn(&row.body).expect("a turn");
    let turns: Vec<Timestamp> = rows.iter().map(turn).collect();
    assert_eq!(turns, [at(1), at(501), at(1_001)]);
    assert_eq!(world.places(), (0, 0), "a turn is no place");
    // The row goes when its turns are over and another key comes.
    let mut other = acquire(rule, 4);
    if let Effect::Acquire(acquire) = &mut other {
        acquire.limit_key = "b".to_owned();
    }
    let write = Write::Commit(Box::new(with(id, other)));
    world.one(9_000, write);
    let limits = world.store.limits(None, 10).expect("limits");
    let keys: Vec<&str> = limits.iter().map(|row| row.key.as_str()).collect();
    assert_eq!(keys, ["b"]);
}

/// The clock of a process is an hour ahead for a while, and is set back. No run had a turn for an hour.
fn turns_follow_a_clock_that_was_set_back(world: &World) {
    const HOUR: i64 = 3_600_000;
    let id = world.running();
    let rule = LimitRule {
        concurrency: None,
        rate: Some(LimitRate { count: 1, per_ms: 1_000, burst: 1 }),
    };
    for (op, now) in [(1, HOUR), (2, HOUR), (3, 10), (4, 20), (5, 9_000)] {
        let Effect::Acquire(mut acquire) = acquire(rule, op) else {
            unreachable!("it is one");
        };
        acquire.holds = false;
        let write = Write::Commit(Box::new(with(id, Effect::Acquire(acquire))));
        let outcome = world.one(now, write);
        assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    }
    let rows = world.store.inbox(id.no(), 0).expect("inbox");
    let turn = |row: &InboxRow| internal::decode_turn(&row.body).expect("a turn");
    let turns: Vec<Timestamp> = rows.iter().map(turn).collect();
    // The two turns that were given away still count.
    assert_eq!(turns, [HOUR, HOUR + 1_000, 2_010, 3_010, 9_000].map(at));
}
