//! Messages: numbered in order, taken once, and dead letters where no run reads them.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    running_keeps_the_due_time_if_a_message_was_not_seen,
    delivery_after_parking_makes_the_run_due,
    delivery_before_parking_refuses_it_with_the_messages,
    a_refusal_says_how_far_an_inbox_without_rows_goes,
    delivery_and_parking_in_one_batch_make_the_run_due,
    deliveries_of_one_batch_get_consecutive_places,
    a_delivery_to_a_run_started_in_the_same_batch_arrives,
    a_delivery_does_not_hurry_a_delayed_start,
    a_delivery_does_not_wake_a_paused_run,
    a_delivery_makes_a_running_run_due,
    a_consumed_message_is_gone_and_the_others_stay,
    the_inbox_is_read_after_a_place,
    a_message_with_a_used_dedupe_key_is_a_duplicate,
    an_inbox_has_a_bound,
    a_message_to_nobody_or_to_a_finished_run_is_not_delivered,
    an_effect_delivers_and_writes_its_receipt,
    an_undeliverable_effect_is_a_dead_letter_and_never_refuses,
    a_run_can_send_to_itself,
    a_refused_commit_sends_nothing,
    unread_messages_of_a_finished_run_are_dead_letters,
    dead_letters_are_listed_in_order_of_arrival,
];

fn running_keeps_the_due_time_if_a_message_was_not_seen(world: &World) {
    let id = world.parked(None);
    world.deliver(message(id));
    let run = |inbox_seq| Commit { patch: Patch::Run { inbox_seq }, ..commit(id) };
    world.accept(run(0));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, Some(AT_ONCE)));
    assert_eq!((row.waiting, world.due(2)), (None, vec![id]));
    world.accept(run(1));
    assert_eq!(world.row(id).available_at, None);
}

fn delivery_after_parking_makes_the_run_due(world: &World) {
    for available_at in [None, Some(at(90_000))] {
        let id = world.parked(available_at);
        assert_eq!(world.deliver(message(id)), delivered(id, 1));
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
        assert_eq!(row.inbox_seq, 1);
        assert!(world.due(2).contains(&id));
    }
}

fn delivery_before_parking_refuses_it_with_the_messages(world: &World) {
    let id = world.running();
    for body in ["one", "two", "three"] {
        world.deliver(Delivery { body: body.into(), ..message(id) });
    }
    let before = world.row(id);
    let parking = Commit { inbox_seq: Some(1), patch: park(None), ..commit(id) };
    let Refusal::InboxMoved { rows, seq } = world.refuse(parking) else { panic!("parked") };
    assert_eq!(seq, 3);
    let unseen = rows.into_iter().map(|row| (row.seq, row.body)).collect::<Vec<_>>();
    assert_eq!(unseen, [(2, b"two".to_vec()), (3, b"three".to_vec())]);
    assert_eq!(world.row(id), before);
    let seen = Commit { inbox_seq: Some(3), patch: park(Some(at(70))), ..commit(id) };
    world.accept(seen);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(at(70))));
}

/// Its owner has not heard of a message that is gone: it must be told how far the inbox goes.
fn a_refusal_says_how_far_an_inbox_without_rows_goes(world: &World) {
    let id = world.running();
    world.deliver(message(id));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    let parking = |seq| Commit { inbox_seq: Some(seq), patch: park(None), ..commit(id) };
    let refusal = world.refuse(parking(0));
    assert_eq!(refusal, Refusal::InboxMoved { rows: Vec::new(), seq: 1 });
    world.accept(parking(1));
}

fn delivery_and_parking_in_one_batch_make_the_run_due(world: &World) {
    for parks_first in [true, false] {
        let id = world.running();
        let parking = Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) };
        let parking = Write::Commit(Box::new(parking));
        let delivery = Write::Deliver(Box::new(message(id)));
        let writes = if parks_first { vec![parking, delivery] } else { vec![delivery, parking] };
        world.batch(5, writes);
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
        assert_eq!(world.seqs(id), [1]);
    }
}

fn deliveries_of_one_batch_get_consecutive_places(world: &World) {
    let (id, other) = (world.parked(None), world.running());
    let deliver =
        |body: &str| Write::Deliver(Box::new(Delivery { body: body.into(), ..message(id) }));
    let sending = Commit { effects: vec![send(id, "k1"), send(id, "k2")], ..commit(other) };
    let writes = vec![deliver("one"), Write::Commit(Box::new(sending)), deliver("four")];
    let outcomes = world.batch(5, writes);
    assert_eq!(outcomes[0], Outcome::Delivered(delivered(id, 1)));
    assert_eq!(
        outcomes[1],
        Outcome::Committed(vec![
            EffectDone::Sent(delivered(id, 2)),
            EffectDone::Sent(delivered(id, 3))
        ])
    );
    assert_eq!(outcomes[2], Outcome::Delivered(delivered(id, 4)));
    let inbox = world.store.inbox(id.no(), 0).expect("inbox");
    let bodies = inbox.iter().map(|row| row.body.as_slice()).collect::<Vec<_>>();
    assert_eq!(bodies, [&b"one"[..], b"yes", b"yes", b"four"]);
    assert_eq!(world.deliver(message(id)), delivered(id, 5));
    assert_eq!(world.row(id).inbox_seq, 5);
}

fn a_delivery_to_a_run_started_in_the_same_batch_arrives(world: &World) {
    for claim in [true, false] {
        let key = if claim { "order-1" } else { "order-2" };
        let new = NewRun { claim, ..keyed(world, key) };
        let id = new.id;
        let target = Target::Key { workflow: "checkout".to_owned(), key: key.to_owned() };
        let by_key = Delivery { target, ..message(id) };
        let writes = vec![
            Write::Start(Box::new(new)),
            Write::Deliver(Box::new(by_key)),
            Write::Deliver(Box::new(message(id))),
        ];
        let outcomes = world.batch(5, writes);
        assert_eq!(outcomes[1], Outcome::Delivered(delivered(id, 1)));
        assert_eq!(outcomes[2], Outcome::Delivered(delivered(id, 2)));
        assert_eq!(world.row(id).available_at, Some(AT_ONCE));
        // The owner has seen neither message, so the store must refuse its park.
        let parking = Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) };
        assert!(
            matches!(world.refuse(parking), Refusal::InboxMoved { rows, .. } if rows.len() == 2)
        );
    }
}

fn a_delivery_does_not_hurry_a_delayed_start(world: &World) {
    let new = NewRun { claim: false, available_at: Some(at(500)), ..world.new_run() };
    let id = world.start(new).id;
    assert_eq!(world.deliver(message(id)), delivered(id, 1));
    assert_eq!(world.row(id).available_at, Some(at(500)));
}

fn a_delivery_does_not_wake_a_paused_run(world: &World) {
    let (by_request, by_owner) = (world.parked(None), world.running());
    world.control(by_request, Control::Pause);
    world.accept(Commit { patch: pause(), ..commit(by_owner) });
    for id in [by_request, by_owner] {
        assert_eq!(world.deliver(message(id)), delivered(id, 1));
        let row = world.row(id);
        assert_eq!((row.status, row.available_at), (RunStatus::Paused, None));
    }
    assert!(world.due(90_000).is_empty());
}

fn a_delivery_makes_a_running_run_due(world: &World) {
    let id = world.running();
    world.deliver(message(id));
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Running, Some(AT_ONCE)));
    // The owner's commits that do not look at the inbox go on.
    world.accept(Commit { puts: vec![put("a", "")], ..commit(id) });
    assert_eq!(world.due(2), [id]);
}

fn a_consumed_message_is_gone_and_the_others_stay(world: &World) {
    let id = world.running();
    for _ in 0..4 {
        world.deliver(message(id));
    }
    world.accept(Commit { consumed: vec![3, 1, 99], ..commit(id) });
    assert_eq!(world.seqs(id), [2, 4]);
    assert_eq!(world.deliver(message(id)), delivered(id, 5));
}

fn the_inbox_is_read_after_a_place(world: &World) {
    let (id, request) = (world.running(), Uuid::from_name("request"));
    world.deliver(message(id));
    world.deliver(Delivery { request: Some(request), ..message(id) });
    let rows = world.store.inbox(id.no(), 1).expect("inbox");
    let row = InboxRow {
        kind: InboxKind::Message,
        wait: None,
        seq: 2,
        name: "approval".to_owned(),
        body: b"yes".to_vec(),
        request: Some(request),
        sent_at: at(2),
        on_end: None,
    };
    assert_eq!(rows, [row]);
    assert!(world.store.inbox(id.no(), 2).expect("inbox").is_empty());
}

fn a_message_with_a_used_dedupe_key_is_a_duplicate(world: &World) {
    let (id, other) = (world.running(), world.running());
    let keyed = |id, key: &str| Delivery { dedupe: Some(key.to_owned()), ..message(id) };
    let duplicate = Delivered { receipt: Receipt::Duplicate, run: Some(id), seq: None };
    assert_eq!(world.deliver(keyed(id, "a")), delivered(id, 1));
    assert_eq!(world.deliver(keyed(id, "a")), duplicate);
    assert_eq!(world.deliver(keyed(id, "b")), delivered(id, 2));
    assert_eq!(world.deliver(keyed(other, "a")), delivered(other, 1));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    assert_eq!(world.deliver(keyed(id, "a")), duplicate, "also after the first was read");
    assert_eq!(world.row(id).inbox_seq, 2);
    let twice = [keyed(id, "c"), keyed(id, "c")].map(|d| Write::Deliver(Box::new(d)));
    let outcomes = world.batch(5, twice.to_vec());
    assert_eq!(outcomes[0], Outcome::Delivered(delivered(id, 3)));
    assert_eq!(outcomes[1], Outcome::Delivered(duplicate.clone()));
    // It was delivered, so its sender is not told of a failure.
    world.finish(id);
    assert_eq!(world.deliver(keyed(id, "a")), duplicate);
}

fn an_inbox_has_a_bound(world: &World) {
    let id = world.running();
    let bounded = || Delivery {
        inbox_max: 2,
        dedupe: Some(world.ids.next(START).to_string()),
        ..message(id)
    };
    let full = Delivered { receipt: Receipt::Full, run: Some(id), seq: None };
    assert_eq!(world.deliver(bounded()), delivered(id, 1));
    assert_eq!(world.deliver(bounded()), delivered(id, 2));
    let refused = bounded();
    assert_eq!(world.deliver(refused.clone()), full);
    assert_eq!((world.row(id).inbox_seq, world.letters(None).len()), (2, 0));
    world.accept(Commit { consumed: vec![1], ..commit(id) });
    assert_eq!(world.deliver(refused), delivered(id, 3), "it was not delivered before");
    assert_eq!(world.deliver(bounded()), full);
}

fn a_message_to_nobody_or_to_a_finished_run_is_not_delivered(world: &World) {
    let unknown = world.deliver(message(world.ids.next(START)));
    assert_eq!(unknown, Delivered { receipt: Receipt::Unknown, run: None, seq: None });
    let id = world.running();
    world.finish(id);
    let finished = Delivered { receipt: Receipt::Finished, run: Some(id), seq: None };
    assert_eq!(world.deliver(message(id)), finished);
    assert!(world.letters(None).is_empty(), "a client is told and keeps its message");
    assert_eq!((world.row(id).inbox_seq, world.seqs(id).len()), (0, 0));
}

fn an_effect_delivers_and_writes_its_receipt(world: &World) {
    let (sender, receiver) = (world.running(), world.parked(None));
    let sending = Commit { effects: vec![send(receiver, "send")], ..commit(sender) };
    assert_eq!(world.accept(sending), [delivered(receiver, 1)]);
    let history = world.store.history(sender.no(), None, 10).expect("history");
    assert_eq!(history, [put("send", b"sent\0")]);
    assert_eq!(world.row(receiver).available_at, Some(AT_ONCE));
}

fn an_undeliverable_effect_is_a_dead_letter_and_never_refuses(world: &World) {
    let (sender, ended, full) = (world.running(), world.running(), world.running());
    world.finish(ended);
    let bounded = |id| Delivery { inbox_max: 0, ..message(id) };
    let to_full =
        Effect::Send { delivery: bounded(full), key: b"full".to_vec(), receipt: Vec::new() };
    let effects = vec![send(world.ids.next(START), "unknown"), send(ended, "ended"), to_full];
    let answers = world.accept(Commit { effects, ..commit(sender) });
    let receipts = answers.iter().map(|answer| answer.receipt).collect::<Vec<_>>();
    assert_eq!(receipts, [Receipt::Unknown, Receipt::Finished, Receipt::Full]);
    let history = world.store.history(sender.no(), None, 10).expect("history");
    assert_eq!(
        history,
        [put("ended", b"sent\x03"), put("full", b"\x04"), put("unknown", b"sent\x02")]
    );
    let letters = world.letters(None);
    let runs = letters.iter().map(|letter| letter.run).collect::<Vec<_>>();
    assert_eq!(runs, [None, Some(ended.no()), Some(full.no())]);
    assert!(letters.iter().all(|letter| letter.body == b"yes" && letter.at == at(1)));
}

fn a_run_can_send_to_itself(world: &World) {
    let id = world.running();
    let sending = Commit {
        effects: vec![send(id, "send")],
        inbox_seq: Some(0),
        patch: park(None),
        ..commit(id)
    };
    assert_eq!(world.accept(sending), [delivered(id, 1)]);
    let row = world.row(id);
    assert_eq!((row.status, row.available_at), (RunStatus::Sleeping, Some(AT_ONCE)));
}

fn a_refused_commit_sends_nothing(world: &World) {
    let (sender, receiver) = (world.running(), world.parked(None));
    world.control(sender, Control::Cancel { rollback: true });
    for results_only in [false, true] {
        let effects = vec![send(receiver, "send")];
        let refusal = world.refuse(Commit { results_only, effects, ..commit(sender) });
        assert_eq!(refusal, Refusal::CancelRequested { rollback: true });
    }
    assert!(world.seqs(receiver).is_empty() && world.keys(sender).is_empty());
}

fn unread_messages_of_a_finished_run_are_dead_letters(world: &World) {
    let id = world.running();
    for body in ["one", "two", "three"] {
        world.deliver(Delivery { body: body.into(), ..message(id) });
    }
    let patch = finish(RunStatus::Completed);
    world.accept(Commit { consumed: vec![2], patch, ..commit(id) });
    assert!(world.seqs(id).is_empty());
    let letters = world.letters(Some(id));
    let bodies = letters.iter().map(|letter| letter.body.as_slice()).collect::<Vec<_>>();
    assert_eq!(bodies, [&b"one"[..], b"three"]);
    assert!(letters.iter().all(|letter| letter.name == "approval" && !letter.reason.is_empty()));
}

fn dead_letters_are_listed_in_order_of_arrival(world: &World) {
    let (first, second) = (world.running(), world.running());
    for id in [first, second, first] {
        world.deliver(message(id));
    }
    world.finish(second);
    world.finish(first);
    let letters = world.letters(None);
    let runs = letters.iter().map(|letter| letter.run).collect::<Vec<_>>();
    assert_eq!(runs, [Some(second.no()), Some(first.no()), Some(first.no())]);
    assert!(letters.is_sorted_by(|a, b| a.no < b.no));
    assert_eq!(world.letters(Some(second)).len(), 1);
    assert_eq!(
        world.store.dead_letters(&LetterFilter::default(), 0, 2).expect("dead_letters").len(),
        2
    );
}
