//! The trace of a run or an item: a text that a store keeps as it is, and makes nothing of.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_run_keeps_its_trace,
    a_fork_has_a_trace_of_its_own,
    an_item_comes_to_its_worker_with_its_trace,
];

fn traced(world: &World, trace: Option<&str>) -> NewRun {
    NewRun { trace: trace.map(str::to_owned), ..world.new_run() }
}

fn a_run_keeps_its_trace(world: &World) {
    let texts = [None, Some("00-4bf9-00f0-01 shop=7"), Some("ä \"; --")];
    for text in texts {
        let id = world.start(traced(world, text)).id;
        let stored = || world.row(id).trace;
        assert_eq!(stored().as_deref(), text);
        // It is no tag, neither to be found by nor to be seen.
        assert_eq!(world.row(id).tags, []);
        world.accept(Commit { patch: finish(RunStatus::Completed), ..commit(id) });
        assert_eq!(stored().as_deref(), text);
        let loaded = world.store.load(id.no()).expect("load").expect("a run");
        assert_eq!(loaded.row.trace.as_deref(), text);
    }
}

fn a_fork_has_a_trace_of_its_own(world: &World) {
    let new = traced(world, Some("of the fork"));
    let id = new.id;
    let fork = deletes::fork_of(new);
    world.one(0, Write::Fork(Box::new(fork)));
    assert_eq!(world.row(id).trace.as_deref(), Some("of the fork"));
}

fn an_item_comes_to_its_worker_with_its_trace(world: &World) {
    let queue = |write| match world.one(0, Write::Queue(Box::new(write))) {
        Outcome::Queue(done) => done,
        other => panic!("a write to a queue was answered with {other:?}"),
    };
    let item = |trace: Option<&str>| NewItem {
        queue: "thumbs".to_owned(),
        payload: b"input".to_vec(),
        priority: 0,
        available_at: None,
        dedupe: None,
        keep: Duration::ZERO,
        trace: trace.map(str::to_owned),
    };
    let texts = [None, Some("00-4bf9-00f0-01 shop=7"), Some("ä \"; --")];
    for text in texts {
        queue(QueueWrite::Enqueue(item(text)));
    }
    let claim = |claim: u128| {
        let wanted = ClaimItems {
            queue: "thumbs".to_owned(),
            claim: Uuid::from_u128(claim),
            max: 10,
            attempts_max: 3,
            visibility: Duration::from_millis(100),
            limit: None,
        };
        match queue(QueueWrite::Claim(wanted)) {
            QueueDone::Claimed(claimed) => claimed.items,
            other => panic!("a claim was answered with {other:?}"),
        }
    };
    let first = claim(1);
    let traces = |items: &[ClaimedItem]| -> Vec<_> {
        let traces = items.iter().map(|item| item.trace.clone());
        traces.collect()
    };
    assert_eq!(traces(&first), texts.map(|text| text.map(str::to_owned)));
    // However often it is tried.
    let settle =
        Settle { item: first[1].item, claim: Uuid::from_u128(1), settlement: Settlement::Release };
    queue(QueueWrite::Settle(settle));
    assert_eq!(traces(&claim(2)), traces(&first[1..2]));
}
