//! Queues under a limit: an item has a place exactly while it is claimed.

use super::*;

pub(in super::super) const CHECKS: &[(&str, Check)] = checks![
    two_workers_and_a_step_share_the_places_of_a_limit,
    every_end_of_a_claim_gives_its_place_back,
    a_lost_claim_gives_its_place_to_a_step_in_line,
    the_place_of_a_lost_item_is_taken_without_a_worker,
    an_item_under_a_rate_is_claimed_at_its_turn,
    the_rule_of_a_claim_counts_for_those_in_line,
    a_run_that_ends_leaves_the_places_of_items_alone,
];

const LONG: Duration = Duration::from_millis(60_000);

fn at_once(concurrency: u32) -> LimitRule {
    LimitRule { concurrency: Some(concurrency), rate: None }
}

fn wanted(rule: LimitRule, claim: u128, visibility: Duration) -> ClaimItems {
    ClaimItems {
        queue: "thumbs".to_owned(),
        claim: claim_id(claim),
        max: 9,
        attempts_max: 2,
        visibility,
        limit: Some(ClaimLimit { limit: "gpu".to_owned(), limit_key: String::new(), rule }),
    }
}

fn step(id: RunId, effect: Effect) -> Commit {
    Commit { effects: vec![effect], ..commit(id) }
}

fn acquire(rule: LimitRule) -> Effect {
    Effect::Acquire(Box::new(Acquire {
        limit: "gpu".to_owned(),
        limit_key: String::new(),
        rule,
        holds: true,
        key: vec![1],
    }))
}

impl World {
    fn claim_under(&self, ms: i64, rule: LimitRule, claim: u128) -> Claimed {
        match self.queue(ms, QueueWrite::Claim(wanted(rule, claim, LONG))) {
            QueueDone::Claimed(claimed) => claimed,
            other => panic!("a claim was answered with {other:?}"),
        }
    }

    /// How many have a place under the limit, and how many wait for one.
    fn gpu(&self) -> (u64, u64) {
        let rows = self.store.limits(Some("gpu"), 10).expect("limits");
        rows.first().map_or((0, 0), |row| (row.held, row.waiting))
    }

    fn is_let_in(&self, id: RunId) -> bool {
        let rows = self.store.inbox(id.no(), 0).expect("inbox");
        rows.iter().any(|row| row.kind == InboxKind::LimitGrant)
    }
}

fn two_workers_and_a_step_share_the_places_of_a_limit(world: &World) {
    let [a, b] = [world.running(), world.running()];
    let rule = at_once(3);
    world.accept(step(a, acquire(rule)));
    let ids: Vec<ItemId> = (1..=4).map(|n| world.enqueue(1, item(n)).item).collect();
    // Two workers in one batch: the first takes what there is.
    let claims = [1, 2].map(|claim| {
        let claim = QueueWrite::Claim(wanted(rule, claim, LONG));
        Write::Queue(Box::new(claim))
    });
    let outcomes = world.batch(1, claims.into());
    let got = outcomes.into_iter().map(|outcome| match outcome {
        Outcome::Queue(QueueDone::Claimed(claimed)) => {
            (claimed.items.len(), claimed.more, claimed.next_at)
        }
        other => panic!("{other:?}"),
    });
    // Who has got nothing asks again in a second, and not at once.
    let later = Some(at(1_001));
    assert_eq!(got.collect::<Vec<_>>(), [(2, false, later), (0, false, later)]);
    assert_eq!(world.gpu(), (3, 0));
    let waiting = world.item(ids[2]).expect("it stays in the queue");
    assert_eq!((waiting.state, waiting.attempts), (ItemState::Ready, 0));

    // A step in line goes before the items.
    world.accept(step(b, acquire(rule)));
    assert_eq!(world.gpu(), (3, 1));
    assert!(world.settle(2, ids[0], 1, Settlement::Done(vec![1])));
    assert!(world.is_let_in(b));
    assert!(world.claim_under(2, rule, 2).items.is_empty());
    world.finish(a);
    let next = world.claim_under(3, rule, 2);
    assert_eq!(next.items.len(), 1);
    assert_eq!((next.items[0].item, next.items[0].attempt), (ids[2], 1));
    assert_eq!(world.gpu(), (3, 0));
}

fn every_end_of_a_claim_gives_its_place_back(world: &World) {
    let error = || vec![0];
    let ends = [
        Settlement::Done(vec![1]),
        Settlement::Retry { at: at(1_000_000), error: error() },
        Settlement::Failed(error()),
        Settlement::Release,
    ];
    for (n, settlement) in (1..).zip(ends) {
        let id = world.enqueue(1, item(n)).item;
        assert_eq!(world.claim_under(1, at_once(1), 1).items[0].item, id);
        let other = world.enqueue(1, item(n)).item;
        assert!(world.claim_under(1, at_once(1), 2).items.is_empty());
        // Nobody without the claim can end it.
        assert!(!world.settle(1, id, 2, settlement.clone()));
        assert_eq!(world.gpu(), (1, 0));
        let settle = Settle { item: id, claim: claim_id(1), settlement: settlement.clone() };
        let batch = Batch {
            fence: None,
            now: at(2),
            writes: vec![Write::Queue(Box::new(QueueWrite::Settle(settle)))],
        };
        let applied = world.store.commit(&batch).expect("commit");
        let told = |notice: &Notice| matches!(notice, Notice::Queue { queue } if queue == "thumbs");
        assert!(applied.notices.iter().any(told), "workers look again");
        assert_eq!(world.gpu(), (0, 0), "after {settlement:?}");
        for id in [id, other] {
            world.control_item(2, id, ItemControl::Cancel);
        }
    }
    // The last attempt of one whose worker is lost: it is a dead letter, and another has its place.
    for (ms, n) in [(10, 1), (120_000, 2)] {
        world.enqueue(10, item(n));
        assert_eq!(world.claim_under(ms, at_once(1), 1).items.len(), 1);
        assert!(world.claim_under(ms, at_once(1), 2).items.is_empty());
        assert_eq!(world.gpu(), (1, 0));
    }
}

fn a_lost_claim_gives_its_place_to_a_step_in_line(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    let claim = QueueWrite::Claim(wanted(at_once(1), 1, VISIBILITY));
    world.queue(0, claim);
    let run = world.running();
    world.accept(step(run, acquire(at_once(1))));
    assert!(!world.is_let_in(run));
    // It is lost, and is not claimed again before the step.
    assert!(world.claim_under(100, at_once(1), 2).items.is_empty());
    assert!(world.is_let_in(run));
    assert_eq!(world.state_of(id), Some(ItemState::Ready));
    assert!(!world.settle(100, id, 1, Settlement::Done(vec![1])));
    world.finish(run);
    assert_eq!(world.claim_under(101, at_once(1), 2).items.len(), 1);
}

fn the_place_of_a_lost_item_is_taken_without_a_worker(world: &World) {
    let first_lost = || world.store.first_place_lost().expect("first_place_lost");
    assert_eq!(first_lost(), None);
    // One without a limit has no place.
    world.enqueue(0, item(1));
    assert_eq!(world.claim_payloads(0, 3, 9), [1]);
    let ids = [2, 3].map(|n| world.enqueue(0, item(n)).item);
    let claim = QueueWrite::Claim(wanted(at_once(2), 1, VISIBILITY));
    world.queue(0, claim);
    assert_eq!((world.gpu(), first_lost()), ((2, 0), Some(at(100))));
    let beat = Extend { item: ids[1], claim: claim_id(1), until: at(300) };
    world.queue(50, QueueWrite::Extend(vec![beat]));
    let run = world.running();
    world.accept(step(run, acquire(at_once(2))));
    world.queue(99, QueueWrite::Revoke);
    assert!(!world.is_let_in(run));
    world.queue(100, QueueWrite::Revoke);
    assert!(world.is_let_in(run));
    assert_eq!((world.gpu(), first_lost()), ((2, 0), Some(at(300))));
    // Its worker comes back too late, and the other one does not.
    let late = Extend { item: ids[0], ..beat };
    let held = world.queue(101, QueueWrite::Extend(vec![late, beat]));
    assert_eq!(held, QueueDone::Extended(vec![false, true]));
    assert!(!world.settle(101, ids[0], 1, Settlement::Done(vec![1])));
    // The next worker finds that it was lost.
    assert!(world.claim_under(101, at_once(2), 2).items.is_empty());
    let lost = world.item(ids[0]).expect("it stays in the queue");
    assert_eq!((lost.state, lost.attempts), (ItemState::Ready, 1));
    assert!(lost.error.is_some());
    world.finish(run);
    assert_eq!(world.claim_under(102, at_once(2), 2).items[0].attempt, 2);
}

fn an_item_under_a_rate_is_claimed_at_its_turn(world: &World) {
    let rule = LimitRule {
        concurrency: None,
        rate: Some(LimitRate { count: 2, per_ms: 1_000, burst: 1 }),
    };
    (1..=3).for_each(|n| _ = world.enqueue(0, item(n)));
    for (ms, count, next) in [(0, 1, 500), (499, 0, 500), (500, 1, 1_000), (1_200, 1, 60_000)] {
        let claimed = world.claim_under(ms, rule, 1);
        let got = (claimed.items.len(), claimed.next_at, claimed.more);
        assert_eq!(got, (count, Some(at(next)), false), "at {ms}");
    }
}

fn the_rule_of_a_claim_counts_for_those_in_line(world: &World) {
    let runs = [world.running(), world.running(), world.running()];
    for id in runs {
        world.accept(step(id, acquire(at_once(1))));
    }
    world.enqueue(1, item(1));
    // The code of the worker is newer than that of the steps.
    assert!(world.claim_under(1, at_once(2), 1).items.is_empty());
    assert_eq!(world.gpu(), (2, 1));
    assert_eq!(runs.map(|id| world.is_let_in(id)), [true, true, false]);
    assert!(world.claim_under(1, at_once(1), 1).items.is_empty());
    world.finish(runs[0]);
    assert!(!world.is_let_in(runs[2]), "there is less room now");
    world.finish(runs[1]);
    assert!(world.is_let_in(runs[2]));
}

fn a_run_that_ends_leaves_the_places_of_items_alone(world: &World) {
    let run = world.running();
    world.accept(step(run, acquire(at_once(2))));
    world.enqueue(1, item(1));
    assert_eq!(world.claim_under(1, at_once(2), 1).items.len(), 1);
    assert_eq!(world.gpu(), (2, 0));
    world.finish(run);
    assert_eq!(world.gpu(), (1, 0));
}
