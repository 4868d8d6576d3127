//! Work queues: who gets an item, and who is told of its end.

pub(super) mod limited;

use std::time::Duration;

use uuid::Uuid;

use super::{Check, World, at, commit, finish, park, roll_back};
use everstep::{FailureKind, ItemId, RunId, store::*, testing::internal};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    items_are_claimed_by_priority_then_time_then_number,
    an_item_is_claimed_once,
    a_delayed_item_is_ready_at_its_time,
    a_claim_that_runs_out_is_given_to_another_and_the_first_is_refused,
    a_claim_goes_back_with_the_clock_of_its_worker,
    a_claim_is_prolonged_only_by_its_holder,
    an_item_whose_last_worker_is_lost_has_failed,
    a_retry_waits_and_keeps_its_error,
    a_released_item_is_ready_at_once_and_its_attempt_does_not_count,
    a_result_is_kept_for_as_long_as_the_item_says,
    a_failure_that_nobody_was_told_of_is_a_dead_letter,
    a_dedupe_key_is_free_again_after_a_failure_a_cancel_and_its_time,
    an_unclaimed_item_can_be_cancelled_and_a_claimed_one_cannot,
    a_waiting_operation_is_told_once_and_made_due,
    a_result_before_the_parking_refuses_it,
    an_abandoned_wait_takes_its_item_along_unless_it_is_claimed,
    the_end_of_a_run_removes_its_waits_and_answers,
    two_waits_for_one_item_are_both_told,
    an_attached_wait_is_told_of_a_kept_result_at_once,
    a_recorded_item_is_in_the_history_of_its_run,
    listing_is_paged_and_counts_add_up,
];

const KEEP: Duration = Duration::from_millis(1_000);
const VISIBILITY: Duration = Duration::from_millis(100);

pub(super) fn item(payload: u8) -> NewItem {
    NewItem {
        queue: "thumbs".to_owned(),
        payload: vec![payload],
        priority: 0,
        available_at: None,
        dedupe: None,
        keep: KEEP,
        trace: None,
    }
}

fn claim_id(n: u128) -> Uuid {
    Uuid::from_u128(n)
}

impl World {
    fn queue(&self, ms: i64, write: QueueWrite) -> QueueDone {
        match self.one(ms, Write::Queue(Box::new(write))) {
            Outcome::Queue(done) => done,
            other => panic!("a write to a queue was answered with {other:?}"),
        }
    }

    fn enqueue(&self, ms: i64, new: NewItem) -> Enqueued {
        match self.queue(ms, QueueWrite::Enqueue(new)) {
            QueueDone::Enqueued(enqueued) => enqueued,
            other => panic!("an item was answered with {other:?}"),
        }
    }

    fn claim_all(&self, ms: i64, claim: u128, max: usize) -> Claimed {
        let wanted = ClaimItems {
            queue: "thumbs".to_owned(),
            claim: claim_id(claim),
            max,
            attempts_max: 3,
            visibility: VISIBILITY,
            limit: None,
        };
        match self.queue(ms, QueueWrite::Claim(wanted)) {
            QueueDone::Claimed(claimed) => claimed,
            other => panic!("a claim was answered with {other:?}"),
        }
    }

    fn claim_payloads(&self, ms: i64, claim: u128, max: usize) -> Vec<u8> {
        let claimed = self.claim_all(ms, claim, max);
        claimed.items.iter().map(|item| item.payload[0]).collect()
    }

    fn settle(&self, ms: i64, item: ItemId, claim: u128, settlement: Settlement) -> bool {
        let claim = claim_id(claim);
        let settle = Settle { item, claim, settlement };
        self.queue(ms, QueueWrite::Settle(settle)) == QueueDone::Settled(true)
    }

    fn item(&self, item: ItemId) -> Option<ItemRow> {
        self.store.queue_item(item).expect("queue_item")
    }

    fn state_of(&self, item: ItemId) -> Option<ItemState> {
        self.item(item).map(|row| row.state)
    }

    fn control_item(&self, ms: i64, item: ItemId, control: ItemControl) -> ItemControlled {
        match self.queue(ms, QueueWrite::Control(item, control)) {
            QueueDone::Controlled(controlled) => controlled,
            other => panic!("a control was answered with {other:?}"),
        }
    }

    /// The answers in the inbox of a run, with the operations that they are for.
    fn answers(&self, id: RunId) -> Vec<(Vec<u8>, Vec<u8>)> {
        let rows = self.store.inbox(id.no(), 0).expect("inbox");
        let answers = rows.into_iter().map(|row| {
            assert_eq!(row.kind, InboxKind::QueueResult);
            (row.wait.expect("it is for one operation"), row.body)
        });
        answers.collect()
    }

    /// A run that waits for this item at the key.
    fn waiting_for(&self, new: NewItem, key: &str) -> RunId {
        let id = self.running();
        self.accept(Commit {
            effects: vec![wait_for(new, key)],
            inbox_seq: Some(0),
            patch: park(None),
            ..commit(id)
        });
        id
    }
}

fn wait_for(item: NewItem, key: &str) -> Effect {
    Effect::Enqueue { item, key: key.into(), then: AfterEnqueue::Wait { leave: false } }
}

fn abandon(key: &str) -> Effect {
    Effect::Abandon { kind: InboxKind::QueueResult, key: key.into() }
}

fn value(payload: u8) -> Vec<u8> {
    internal::answer_with_value(&[payload])
}

fn items_are_claimed_by_priority_then_time_then_number(world: &World) {
    for (n, priority, ms) in [(1, 0, 5), (2, 7, 6), (3, -1, 1), (4, 0, 4), (5, 0, 4)] {
        let priority_of = NewItem { priority, ..item(n) };
        world.enqueue(ms, priority_of);
    }
    assert_eq!(world.claim_payloads(9, 1, 3), [2, 4, 5]);
    assert_eq!(world.claim_payloads(9, 1, 3), [1, 3]);
}

fn an_item_is_claimed_once(world: &World) {
    (1..=4).for_each(|n| _ = world.enqueue(0, item(n)));
    let claim = |claim: u128| {
        let wanted = ClaimItems {
            queue: "thumbs".to_owned(),
            claim: claim_id(claim),
            max: 3,
            attempts_max: 3,
            visibility: VISIBILITY,
            limit: None,
        };
        Write::Queue(Box::new(QueueWrite::Claim(wanted)))
    };
    // Two workers in one batch.
    let counts = world.batch(1, vec![claim(1), claim(2)]);
    let counts = counts.into_iter().map(|outcome| match outcome {
        Outcome::Queue(QueueDone::Claimed(claimed)) => (claimed.items.len(), claimed.more),
        other => panic!("{other:?}"),
    });
    assert_eq!(counts.collect::<Vec<_>>(), [(3, true), (1, false)]);
}

fn a_delayed_item_is_ready_at_its_time(world: &World) {
    let later = NewItem { available_at: Some(at(50)), ..item(1) };
    world.enqueue(0, later);
    let claimed = world.claim_all(49, 1, 9);
    assert_eq!((claimed.items.len(), claimed.next_at), (0, Some(at(50))));
    let outlook = |ms| world.store.queue_outlook("thumbs", at(ms)).expect("outlook");
    assert_eq!((outlook(49).ready, outlook(49).next_at), (false, Some(at(50))));
    assert!(outlook(50).ready);
    assert_eq!(world.claim_payloads(50, 1, 9), [1]);
}

fn a_claim_that_runs_out_is_given_to_another_and_the_first_is_refused(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    let first = world.claim_all(0, 1, 9);
    assert_eq!(first.items[0].until, at(100));
    assert_eq!(first.next_at, Some(at(100)));
    assert!(world.claim_payloads(99, 2, 9).is_empty());
    // Its time is over, but nobody else has it yet: it is still its own.
    let beat = Extend { item: id, claim: claim_id(1), until: at(150) };
    let beat = |ms| world.queue(ms, QueueWrite::Extend(vec![beat]));
    assert_eq!(beat(120), QueueDone::Extended(vec![true]));
    let second = world.claim_all(150, 2, 9);
    assert_eq!((second.items[0].item, second.items[0].attempt), (id, 2));
    assert!(!world.settle(151, id, 1, Settlement::Done(vec![1])));
    assert_eq!(beat(151), QueueDone::Extended(vec![false]));
    assert_eq!(world.state_of(id), Some(ItemState::Claimed));
    assert!(world.settle(152, id, 2, Settlement::Done(vec![2])));
    assert!(!world.settle(153, id, 2, Settlement::Done(vec![3])));
    let answer = world.item(id).and_then(|row| row.answer).expect("kept");
    assert_eq!(answer, value(2));
}

/// The clock of its worker was an hour ahead, and was then set right.
fn a_claim_goes_back_with_the_clock_of_its_worker(world: &World) {
    const AHEAD: i64 = 3_600_000;
    let id = world.enqueue(0, item(1)).item;
    world.claim_all(AHEAD, 1, 9);
    let beat = Extend { item: id, claim: claim_id(1), until: at(150) };
    let still = world.queue(50, QueueWrite::Extend(vec![beat]));
    assert_eq!(still, QueueDone::Extended(vec![true]));
    assert!(world.claim_payloads(149, 2, 9).is_empty());
    assert_eq!(world.claim_payloads(150, 2, 9), [1]);
}

fn a_claim_is_prolonged_only_by_its_holder(world: &World) {
    let (a, b) = (world.enqueue(0, item(1)).item, world.enqueue(0, item(2)).item);
    world.claim_all(0, 1, 1);
    world.claim_all(0, 2, 1);
    let until = at(500);
    let extend = |item, claim| Extend { item, claim: claim_id(claim), until };
    let beats = QueueWrite::Extend(vec![extend(a, 1), extend(b, 1), extend(ItemId(99), 1)]);
    let still = world.queue(1, beats);
    assert_eq!(still, QueueDone::Extended(vec![true, false, false]));
    assert_eq!(world.claim_payloads(100, 3, 9), [2]);
    assert_eq!(world.claim_payloads(499, 3, 9), [2], "the first is still held");
    assert_eq!(world.claim_payloads(500, 3, 9), [1]);
}

fn an_item_whose_last_worker_is_lost_has_failed(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    for attempt in 1..=3 {
        let claimed = world.claim_all(i64::from(attempt) * 200, 1, 9);
        assert_eq!(claimed.items[0].attempt, attempt);
    }
    assert!(world.claim_payloads(1_000, 1, 9).is_empty());
    let row = world.item(id).expect("a dead letter");
    assert_eq!((row.state, row.attempts), (ItemState::Dead, 3));
    let failure = internal::decode_failure(&row.error.expect("why")).expect("a failure");
    assert_eq!(failure.kind, FailureKind::Exhausted);
}

fn a_retry_waits_and_keeps_its_error(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    world.claim_all(0, 1, 9);
    let retry = Settlement::Retry { at: at(60), error: b"why".to_vec() };
    assert!(world.settle(10, id, 1, retry));
    let row = world.item(id).expect("the item");
    assert_eq!((row.state, row.at), (ItemState::Delayed, at(60)));
    assert_eq!(row.error.as_deref(), Some(&b"why"[..]));
    assert!(world.claim_payloads(59, 2, 9).is_empty());
    assert_eq!(world.claim_all(60, 2, 9).items[0].attempt, 2);
    assert_eq!(world.item(id).and_then(|row| row.error).as_deref(), Some(&b"why"[..]));
}

fn a_released_item_is_ready_at_once_and_its_attempt_does_not_count(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    world.claim_all(0, 1, 9);
    assert!(world.settle(10, id, 1, Settlement::Release));
    assert_eq!(world.claim_all(10, 2, 9).items[0].attempt, 1);
}

fn a_result_is_kept_for_as_long_as_the_item_says(world: &World) {
    let kept = world.enqueue(0, item(1)).item;
    let keep = Duration::ZERO;
    let gone = world.enqueue(0, NewItem { keep, ..item(2) }).item;
    world.claim_all(0, 1, 9);
    for id in [kept, gone] {
        assert!(world.settle(10, id, 1, Settlement::Done(vec![9])));
    }
    assert_eq!(world.state_of(gone), None);
    let ended = world.store.queue_ended(&[kept, gone]).expect("queue_ended");
    assert_eq!(ended, [(kept, Some(value(9))), (gone, None)]);
    world.claim_all(1_009, 1, 9);
    assert_eq!(world.state_of(kept), Some(ItemState::Done));
    world.claim_all(1_010, 1, 9);
    assert_eq!(world.state_of(kept), None);
}

fn a_failure_that_nobody_was_told_of_is_a_dead_letter(world: &World) {
    let id = world.enqueue(0, item(1)).item;
    assert_eq!(
        world.control_item(0, id, ItemControl::Drop),
        ItemControlled::Refused(ItemState::Ready)
    );
    world.claim_all(0, 1, 9);
    assert!(world.settle(10, id, 1, Settlement::Failed(b"why".to_vec())));
    assert_eq!(world.state_of(id), Some(ItemState::Dead));
    let ended = world.store.queue_ended(&[id]).expect("queue_ended");
    assert_eq!(ended, [(id, Some(internal::answer_with_failure(b"why")))]);
    assert_eq!(world.control_item(20, id, ItemControl::Replay), ItemControlled::Done);
    assert!(world.store.queue_ended(&[id]).expect("queue_ended").is_empty());
    assert_eq!(world.claim_all(20, 2, 9).items[0].attempt, 1);
    assert!(world.settle(21, id, 2, Settlement::Failed(b"why".to_vec())));
    assert_eq!(world.control_item(22, id, ItemControl::Drop), ItemControlled::Done);
    assert_eq!(world.control_item(22, id, ItemControl::Drop), ItemControlled::Unknown);
}

fn a_dedupe_key_is_free_again_after_a_failure_a_cancel_and_its_time(world: &World) {
    let keyed = || NewItem { dedupe: Some("k".to_owned()), ..item(1) };
    let first = world.enqueue(0, keyed());
    assert_eq!(world.enqueue(1, keyed()), Enqueued { item: first.item, attached: true });
    let mut other = keyed();
    other.queue = "other".to_owned();
    assert!(!world.enqueue(1, other).attached, "keys are of one queue");
    assert_eq!(world.control_item(2, first.item, ItemControl::Cancel), ItemControlled::Done);
    let second = world.enqueue(3, keyed());
    assert!(!second.attached);
    world.claim_all(3, 1, 9);
    assert!(world.settle(4, second.item, 1, Settlement::Failed(Vec::new())));
    let third = world.enqueue(5, keyed());
    assert!(!third.attached);
    world.claim_all(5, 1, 9);
    assert!(world.settle(6, third.item, 1, Settlement::Done(vec![1])));
    assert_eq!(world.enqueue(1_005, keyed()).item, third.item);
    // Kept until then, though nobody has swept it.
    assert!(!world.enqueue(1_006, keyed()).attached);
}

fn an_unclaimed_item_can_be_cancelled_and_a_claimed_one_cannot(world: &World) {
    let id = world.waiting_for(item(1), "a");
    let claimed = world.enqueue(1, item(2)).item;
    let delayed = NewItem { available_at: Some(at(90)), ..item(3) };
    let delayed = world.enqueue(1, delayed).item;
    let first = ItemId(claimed.0 - 1);
    assert_eq!(world.control_item(2, first, ItemControl::Cancel), ItemControlled::Done);
    assert_eq!(world.answers(id), [(b"a".to_vec(), internal::answer_of_cancelled())]);
    assert_eq!(world.claim_payloads(2, 1, 9), [2]);
    assert_eq!(
        world.control_item(3, claimed, ItemControl::Cancel),
        ItemControlled::Refused(ItemState::Claimed)
    );
    assert_eq!(world.control_item(3, delayed, ItemControl::Cancel), ItemControlled::Done);
    assert!(world.claim_payloads(95, 2, 9).is_empty());
}

fn a_waiting_operation_is_told_once_and_made_due(world: &World) {
    let id = world.waiting_for(item(1), "a");
    assert!(world.due(1_000).is_empty());
    let claimed = world.claim_all(2, 1, 9).items.remove(0);
    let settle =
        Settle { item: claimed.item, claim: claim_id(1), settlement: Settlement::Done(vec![7]) };
    let write = || Write::Queue(Box::new(QueueWrite::Settle(settle.clone())));
    let batch = Batch { fence: None, now: at(3), writes: vec![write(), write()] };
    let applied = world.store.commit(&batch).expect("commit");
    let settled = |held| Outcome::Queue(QueueDone::Settled(held));
    assert_eq!(applied.outcomes, [settled(true), settled(false)]);
    let told = applied.notices.iter().filter(
        |notice| matches!(notice, Notice::Inbox { run, row } if *run == id && row.seq == 1),
    );
    assert_eq!(told.count(), 1);
    assert_eq!(world.answers(id), [(b"a".to_vec(), value(7))]);
    assert_eq!(world.due(3), [id]);
}

fn a_result_before_the_parking_refuses_it(world: &World) {
    let id = world.running();
    world.accept(Commit { effects: vec![wait_for(item(1), "a")], ..commit(id) });
    let claimed = world.claim_all(2, 1, 9).items.remove(0);
    assert!(world.settle(3, claimed.item, 1, Settlement::Done(vec![7])));
    let refusal = world.refuse(Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) });
    let Refusal::InboxMoved { rows, .. } = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(rows[0].wait.as_deref(), Some(&b"a"[..]));
    // It is consumed with the commit that records it.
    world.accept(Commit { consumed: vec![rows[0].seq], ..commit(id) });
    assert!(world.answers(id).is_empty());
}

fn an_abandoned_wait_takes_its_item_along_unless_it_is_claimed(world: &World) {
    let keep = Duration::ZERO;
    for claimed in [false, true] {
        let id = world.waiting_for(NewItem { keep, ..item(1) }, "a");
        let item = claimed.then(|| world.claim_all(1, 1, 9).items.remove(0).item);
        world.accept(Commit { effects: vec![abandon("a")], ..commit(id) });
        match item {
            None => assert!(world.claim_payloads(2, 2, 9).is_empty()),
            Some(item) => {
                assert!(world.settle(2, item, 1, Settlement::Done(vec![7])));
                assert!(world.answers(id).is_empty(), "nobody waits for it");
                assert_eq!(world.state_of(item), None);
            }
        }
    }
    // Delivered, and not taken: it is gone with the wait.
    let id = world.waiting_for(item(1), "a");
    let item = world.claim_all(1, 1, 9).items.remove(0).item;
    assert!(world.settle(2, item, 1, Settlement::Done(vec![7])));
    world.accept(Commit { effects: vec![abandon("a")], ..commit(id) });
    assert!(world.answers(id).is_empty());
}

fn the_end_of_a_run_removes_its_waits_and_answers(world: &World) {
    let keep = Duration::ZERO;
    let new = |n| NewItem { keep, ..item(n) };
    for patch in [finish(RunStatus::Failed), roll_back()] {
        let id = world.running();
        let effects = vec![wait_for(new(1), "a"), wait_for(new(2), "b")];
        world.accept(Commit { effects, ..commit(id) });
        let first = world.claim_all(1, 1, 1).items.remove(0).item;
        assert!(world.settle(2, first, 1, Settlement::Done(vec![7])));
        assert_eq!(world.answers(id).len(), 1);
        world.accept(Commit { patch, ..commit(id) });
        assert!(world.answers(id).is_empty());
        assert!(world.claim_payloads(3, 2, 9).is_empty(), "it went with its wait");
    }
    // Put in by the commit that ends the run: there is nobody to wait.
    let id = world.running();
    world.accept(Commit {
        effects: vec![wait_for(new(3), "a")],
        patch: finish(RunStatus::Completed),
        ..commit(id)
    });
    assert!(world.claim_payloads(4, 2, 9).is_empty());
    // Two of its operations wait for the same item, and nobody else does.
    let id = world.running();
    let keyed = || NewItem { dedupe: Some("k".to_owned()), ..new(4) };
    let effects = vec![wait_for(keyed(), "a"), wait_for(keyed(), "b")];
    world.accept(Commit { effects, ..commit(id) });
    world.accept(Commit { patch: finish(RunStatus::Failed), ..commit(id) });
    assert!(world.claim_payloads(5, 3, 9).is_empty(), "it went with its waits");
}

fn two_waits_for_one_item_are_both_told(world: &World) {
    let keyed = || NewItem { dedupe: Some("k".to_owned()), ..item(1) };
    let (a, b) = (world.waiting_for(keyed(), "a"), world.waiting_for(keyed(), "b"));
    let c = world.waiting_for(keyed(), "c");
    // The one that put it in gives up: others wait for it, so it stays.
    world.accept(Commit { effects: vec![abandon("a")], ..commit(a) });
    let claimed = world.claim_all(2, 1, 9).items;
    assert_eq!(claimed.len(), 1);
    assert!(world.settle(3, claimed[0].item, 1, Settlement::Done(vec![7])));
    assert!(world.answers(a).is_empty());
    assert_eq!(world.answers(b), [(b"b".to_vec(), value(7))]);
    assert_eq!(world.answers(c), [(b"c".to_vec(), value(7))]);
}

fn an_attached_wait_is_told_of_a_kept_result_at_once(world: &World) {
    let keyed = || NewItem { dedupe: Some("k".to_owned()), ..item(1) };
    let done = world.enqueue(0, keyed()).item;
    world.claim_all(0, 1, 9);
    assert!(world.settle(0, done, 1, Settlement::Done(vec![7])));
    let id = world.waiting_for(keyed(), "a");
    assert_eq!(world.answers(id), [(b"a".to_vec(), value(7))]);
    assert_eq!(world.due(1), [id]);
}

fn a_recorded_item_is_in_the_history_of_its_run(world: &World) {
    let id = world.running();
    let record = Effect::Enqueue {
        item: item(1),
        key: b"a".to_vec(),
        then: AfterEnqueue::Record(b"item:".to_vec()),
    };
    let outcome =
        world.commit(Commit { effects: vec![super::send(id, "s"), record], ..commit(id) });
    let Outcome::Committed(done) = outcome else {
        panic!("{outcome:?}");
    };
    let [EffectDone::Sent(_), EffectDone::Enqueued(enqueued)] = done[..] else {
        panic!("in the order of the effects: {done:?}");
    };
    let entries = world.store.history(id.no(), None, 9).expect("history");
    let entry = entries.iter().find(|put| put.key == b"a").expect("recorded");
    let number = enqueued.item.0.to_le_bytes();
    assert_eq!(entry.value, [&b"item:"[..], &number].concat());
    assert_eq!(world.claim_payloads(2, 1, 9), [1]);
}

fn listing_is_paged_and_counts_add_up(world: &World) {
    let ids: Vec<ItemId> = (1..=7).map(|n| world.enqueue(n, item(n as u8)).item).collect();
    let mut other = item(1);
    other.queue = "other".to_owned();
    world.enqueue(8, other);
    let delayed = NewItem { available_at: Some(at(900)), ..item(8) };
    world.enqueue(8, delayed);
    world.claim_all(10, 1, 4);
    assert!(world.settle(11, ids[0], 1, Settlement::Done(vec![1])));
    assert!(world.settle(11, ids[1], 1, Settlement::Failed(Vec::new())));
    assert!(world.settle(11, ids[2], 1, Settlement::Failed(Vec::new())));
    let stats = world.store.queue_stats("thumbs").expect("queue_stats");
    assert_eq!((stats.ready, stats.delayed, stats.claimed), (3, 1, 1));
    assert_eq!((stats.done, stats.dead), (1, 2));
    assert_eq!(stats.oldest_ready, Some(at(5)));
    let list = |state, after, limit| -> Vec<ItemId> {
        let rows = world.store.queue_items("thumbs", state, after, limit);
        rows.expect("queue_items").iter().map(|row| row.id).collect()
    };
    assert_eq!(list(None, None, 3), ids[..3]);
    assert_eq!(list(None, Some(ids[2]), 3), ids[3..6]);
    assert_eq!(list(Some(ItemState::Dead), None, 1), ids[1..2]);
    assert_eq!(list(Some(ItemState::Dead), Some(ids[1]), 9), ids[2..3]);
    assert_eq!(list(Some(ItemState::Ready), None, 9), ids[4..]);
}
