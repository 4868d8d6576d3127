//! What every store promises about events and dead letters.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_broadcast_reaches_everybody_who_waits,
    an_event_for_one_reaches_the_oldest_waiter_alone,
    an_event_before_the_wait_is_handed_over_at_once,
    since_decides_what_from_before_counts,
    a_run_sees_each_broadcast_once_and_in_order,
    a_key_selects,
    an_abandoned_wait_gives_its_event_to_the_next,
    the_end_of_a_run_gives_its_event_back,
    a_broadcast_is_spread_page_by_page,
    a_later_broadcast_waits_for_the_one_that_is_spread,
    what_is_over_is_not_seen_and_then_removed,
    too_many_events_drop_the_oldest,
    a_second_event_with_a_dedupe_key_is_not_published,
    a_published_effect_writes_its_receipt,
    an_event_refuses_parking,
    a_message_to_a_finished_run_becomes_what_its_sender_says,
    unread_messages_become_events_if_their_sender_says_so,
    a_dead_letter_is_replayed_once,
    dead_letters_are_filtered_paged_and_dropped,
];

const DAY: Duration = Duration::from_secs(86_400);

pub(super) fn fallback(event: &str) -> Fallback {
    Fallback { event: event.to_owned(), retain: Duration::from_millis(60), max_pending: 3 }
}

impl Random {
    fn event_name(&mut self) -> String {
        format!("e{}", self.below(2))
    }

    fn event_key(&mut self) -> Option<String> {
        self.one_in(2).then(|| format!("k{}", self.below(2)))
    }

    fn publication(&mut self) -> Publication {
        Publication {
            name: self.event_name(),
            key: self.event_key(),
            body: vec![self.below(256) as u8],
            deliver: if self.one_in(2) { Deliver::One } else { Deliver::Broadcast },
            retain: Duration::from_millis(self.below(80)),
            max_pending: 1 + self.below(4),
            dedupe: self.one_in(6).then(|| self.below(3).to_string()),
        }
    }

    pub(super) fn event_write(&mut self, id: RunId) -> Write {
        match self.below(6) {
            0..=3 => Write::Publish(Box::new(self.publication())),
            4 => Write::TendEvents { limit: 1 + self.below(3) as usize },
            _ => {
                let no = 1 + self.below(6);
                let to = match self.below(3) {
                    0 => ReplayTo::Same,
                    1 => ReplayTo::Run(Target::Id(id)),
                    _ => ReplayTo::Event(Box::new(fallback("e1"))),
                };
                let inbox_max = 4;
                Write::Letter(Box::new(if self.one_in(4) {
                    LetterWrite::Drop(vec![no, no + 1])
                } else {
                    LetterWrite::Replay { no, to, inbox_max }
                }))
            }
        }
    }

    pub(super) fn event_effect(&mut self) -> Effect {
        let key = match self.below(self.subscribed.len() as u64 + 1) {
            0 => vec![10, 1],
            place => self.subscribed[place as usize - 1].clone(),
        };
        match self.below(8) {
            0..=4 => {
                // A key is registered once in the life of a run.
                self.seed = self.seed.wrapping_add(1);
                let key = [vec![11], self.seed.to_be_bytes().to_vec()].concat();
                self.subscribed.push(key.clone());
                Effect::Subscribe(Box::new(Subscription {
                    name: self.event_name(),
                    matching: self.event_key(),
                    since: match self.below(3) {
                        0 => SeenSince::Any,
                        1 => SeenSince::At(at(self.below(150) as i64)),
                        _ => SeenSince::Wait,
                    },
                    key,
                }))
            }
            5 => Effect::Took { key },
            6 => Effect::Publish {
                publication: Box::new(self.publication()),
                key: vec![9, self.below(3) as u8],
                receipt: vec![1],
            },
            _ => Effect::Abandon { kind: InboxKind::Event, key },
        }
    }
}

fn publication(body: u8) -> Publication {
    Publication {
        name: "paid".to_owned(),
        key: None,
        body: vec![body],
        deliver: Deliver::Broadcast,
        retain: DAY,
        max_pending: 100,
        dedupe: None,
    }
}

fn one(body: u8) -> Publication {
    Publication { deliver: Deliver::One, ..publication(body) }
}

fn subscription(key: &str) -> Subscription {
    Subscription { name: "paid".to_owned(), matching: None, since: SeenSince::Any, key: key.into() }
}

impl World {
    fn publish(&self, publication: Publication) -> Published {
        self.publish_at(5, publication)
    }

    fn publish_at(&self, ms: i64, publication: Publication) -> Published {
        match self.one(ms, Write::Publish(Box::new(publication))) {
            Outcome::Published(published) => published,
            other => panic!("an event was answered with {other:?}"),
        }
    }

    fn subscribe(&self, id: RunId, subscription: Subscription) {
        self.effect(id, Effect::Subscribe(Box::new(subscription)));
    }

    fn effect(&self, id: RunId, effect: Effect) {
        self.accept(Commit { effects: vec![effect], ..commit(id) });
    }

    /// A run with one wait, `w`.
    fn waiting(&self) -> RunId {
        let id = self.running();
        self.subscribe(id, subscription("w"));
        id
    }

    /// Takes the event that lies in the inbox for this operation; its body.
    fn take(&self, id: RunId, key: &str) -> u8 {
        let rows = self.store.inbox(id.no(), 0).expect("inbox");
        let row = rows
            .into_iter()
            .find(|row| row.wait.as_deref() == Some(key.as_bytes()))
            .expect("an event for this operation");
        assert_eq!((row.kind, &*row.name), (InboxKind::Event, "paid"));
        self.accept(Commit {
            consumed: vec![row.seq],
            effects: vec![Effect::Took { key: key.into() }],
            ..commit(id)
        });
        *row.body.last().expect("a body")
    }

    fn abandon(&self, id: RunId, key: &str) {
        let (kind, key) = (InboxKind::Event, key.into());
        self.effect(id, Effect::Abandon { kind, key });
    }

    /// What lies in the inbox for operations.
    fn handed(&self, id: RunId) -> Vec<u8> {
        let rows = self.store.inbox(id.no(), 0).expect("inbox");
        let rows = rows.into_iter().filter(|row| row.kind == InboxKind::Event);
        rows.map(|row| *row.body.last().expect("a body")).collect()
    }

    fn tend(&self, ms: i64, limit: usize) -> Tended {
        match self.one(ms, Write::TendEvents { limit }) {
            Outcome::Tended(tended) => tended,
            other => panic!("tending was answered with {other:?}"),
        }
    }

    fn kept(&self) -> u64 {
        let row = self.store.event("paid").expect("event");
        row.expect("the name is known").kept
    }

    fn letter(&self, write: LetterWrite) -> LetterDone {
        match self.one(6, Write::Letter(Box::new(write))) {
            Outcome::Letter(done) => done,
            other => panic!("a dead letter was answered with {other:?}"),
        }
    }
}

fn a_broadcast_reaches_everybody_who_waits(world: &World) {
    let runs = [world.waiting(), world.waiting()];
    let parked = world.waiting();
    world.accept(Commit { inbox_seq: Some(0), patch: park(None), ..commit(parked) });
    let published = world.publish(publication(1));
    assert_eq!((published.told, published.kept), (3, true));
    assert!(!published.spreading);
    assert_eq!(world.handed(runs[0]), [1]);
    assert_eq!(world.handed(runs[1]), [1]);
    assert_eq!(world.handed(parked), [1]);
    assert!(world.due(10).contains(&parked), "a parked run is woken");
}

fn an_event_for_one_reaches_the_oldest_waiter_alone(world: &World) {
    let (first, second) = (world.waiting(), world.waiting());
    let published = world.publish(one(1));
    assert_eq!((published.told, published.kept), (1, false));
    assert_eq!((world.handed(first), world.handed(second)), (vec![1], vec![]));
    world.publish(one(2));
    assert_eq!(world.handed(second), [2]);
    let kept = world.publish(one(3));
    assert_eq!((kept.told, kept.kept), (0, true));
    assert_eq!(world.take(first, "w"), 1);
    assert_eq!(world.kept(), 1, "what was taken is gone, what nobody has is kept");
}

fn an_event_before_the_wait_is_handed_over_at_once(world: &World) {
    world.publish(one(1));
    world.publish(one(2));
    let (first, second) = (world.waiting(), world.waiting());
    assert_eq!(world.handed(first), [1]);
    assert_eq!(world.handed(second), [2]);
    assert_eq!(world.kept(), 0);
    world.publish(publication(3));
    assert_eq!(world.handed(world.waiting()), [3]);
}

fn since_decides_what_from_before_counts(world: &World) {
    world.publish_at(5, publication(1));
    world.publish_at(9, publication(2));
    let handed = |since| {
        let id = world.running();
        let since = Subscription { since, ..subscription("w") };
        world.subscribe(id, since);
        world.handed(id)
    };
    assert_eq!(handed(SeenSince::Any), [1]);
    assert_eq!(handed(SeenSince::At(at(5))), [1]);
    assert_eq!(handed(SeenSince::At(at(6))), [2]);
    assert_eq!(handed(SeenSince::Wait), [0_u8; 0]);
    assert_eq!(handed(SeenSince::At(at(10))), [0_u8; 0]);
}

fn a_run_sees_each_broadcast_once_and_in_order(world: &World) {
    let id = world.waiting();
    for body in 1..=3 {
        world.publish(publication(body));
    }
    assert_eq!(world.take(id, "w"), 1);
    for (key, body) in [("w2", 2), ("w3", 3)] {
        world.subscribe(id, subscription(key));
        assert_eq!(world.take(id, key), body);
    }
    world.subscribe(id, subscription("w4"));
    assert_eq!(world.handed(id), [0_u8; 0], "all of them were seen");
    world.publish(publication(4));
    assert_eq!(world.take(id, "w4"), 4);
}

fn a_key_selects(world: &World) {
    let keyed = |body, key: &str| Publication { key: Some(key.to_owned()), ..publication(body) };
    let matching = |key: &str| Subscription { matching: Some(key.to_owned()), ..subscription("w") };
    let (a, b, any) = (world.running(), world.running(), world.waiting());
    world.subscribe(a, matching("a"));
    world.subscribe(b, matching("b"));
    world.publish(keyed(1, "b"));
    assert_eq!((world.handed(a), world.handed(b), world.handed(any)), (vec![], vec![1], vec![1]));
    world.publish(publication(2));
    assert_eq!(world.handed(a), [0_u8; 0], "one without a key matches no key");
    let late = world.running();
    world.subscribe(late, matching("b"));
    assert_eq!(world.handed(late), [1]);
    // Each key has a place of its own in what was published.
    assert_eq!(world.take(late, "w"), 1);
    let other = Subscription { key: b"w2".to_vec(), ..matching("a") };
    world.publish(keyed(3, "a"));
    world.subscribe(late, other);
    assert_eq!(world.take(late, "w2"), 3);
}

fn an_abandoned_wait_gives_its_event_to_the_next(world: &World) {
    let (first, second) = (world.waiting(), world.waiting());
    world.publish(one(1));
    world.abandon(first, "w");
    assert_eq!((world.handed(first), world.handed(second)), (vec![], vec![1]));
    world.abandon(second, "w");
    assert_eq!(world.kept(), 1, "nobody waits: it is back in its place");
    world.publish(one(2));
    assert_eq!(world.handed(world.waiting()), [1], "before what came later");
    // A broadcast that was given up is seen by the next wait of the run.
    world.publish(publication(3));
    world.subscribe(first, subscription("w2"));
    assert_eq!(world.handed(first), [2]);
    world.abandon(first, "w2");
    let third = world.waiting();
    assert_eq!(world.handed(third), [2]);
    world.subscribe(first, subscription("w3"));
    world.abandon(first, "w3");
    world.subscribe(first, subscription("w4"));
    assert_eq!(world.take(first, "w4"), 3);
}

fn the_end_of_a_run_gives_its_event_back(world: &World) {
    let ends = [
        finish(RunStatus::Completed),
        finish(RunStatus::Failed),
        roll_back(),
        Patch::Park {
            status: RunStatus::Pending,
            available_at: Some(at(50)),
            waiting: "its next attempt".to_owned(),
            attempts: 2,
        },
    ];
    for patch in ends {
        let first = world.waiting();
        world.subscribe(first, subscription("second"));
        let second = world.waiting();
        world.publish(one(1));
        world.accept(Commit { patch, ..commit(first) });
        assert_eq!(world.handed(first), [0_u8; 0]);
        assert_eq!(world.take(second, "w"), 1);
        let row = world.store.event("paid").expect("event").expect("known");
        assert_eq!((row.waiting, row.kept), (0, 0), "{row:?}");
    }
    // What the last commit has taken stays taken.
    let last = world.waiting();
    world.publish(one(2));
    world.accept(Commit {
        consumed: world.seqs(last),
        patch: finish(RunStatus::Cancelled),
        ..commit(last)
    });
    assert_eq!(world.kept(), 0);
}

fn a_broadcast_is_spread_page_by_page(world: &World) {
    // More than one page, all of one run, since that is quicker to make.
    let id = world.running();
    let subscribe = |n: usize| Effect::Subscribe(Box::new(subscription(&format!("w{n:05}"))));
    let page = internal::EVENT_PAGE;
    world.accept(Commit { effects: (0..2 * page + 10).map(subscribe).collect(), ..commit(id) });
    let published = world.publish(publication(1));
    assert_eq!((published.told, published.spreading), (page as u64, true));
    assert!(world.store.events_to_tend(at(6)).expect("events_to_tend"));
    // Who comes meanwhile is handed it once.
    let late = world.waiting();
    let wait = world.running();
    world.subscribe(wait, Subscription { since: SeenSince::Wait, ..subscription("w") });
    assert_eq!(world.handed(late), [1]);
    let mut told = published.told;
    while world.store.events_to_tend(at(6)).expect("events_to_tend") {
        told += world.tend(6, 700).done;
    }
    assert_eq!(told, 2 * page as u64 + 10);
    assert_eq!(world.handed(id).len(), 2 * page + 10);
    assert_eq!((world.handed(late), world.handed(wait)), (vec![1], vec![]));
}

fn a_later_broadcast_waits_for_the_one_that_is_spread(world: &World) {
    let id = world.running();
    let subscribe = |n: usize| Effect::Subscribe(Box::new(subscription(&format!("w{n:05}"))));
    let page = internal::EVENT_PAGE;
    world.accept(Commit { effects: (0..page).map(subscribe).collect(), ..commit(id) });
    let last = world.waiting();
    world.publish(publication(1));
    let second = world.publish(publication(2));
    assert_eq!((second.told, second.spreading), (0, true));
    while world.tend(6, 100).more {}
    assert_eq!(world.take(last, "w"), 1, "the first one first");
    world.subscribe(last, subscription("w2"));
    assert_eq!(world.take(last, "w2"), 2);
}

fn what_is_over_is_not_seen_and_then_removed(world: &World) {
    let short = |publication| Publication {
        retain: Duration::from_millis(10),
        dedupe: Some("d".to_owned()),
        ..publication
    };
    world.publish_at(5, short(publication(1)));
    assert!(!world.store.events_to_tend(at(14)).expect("events_to_tend"));
    assert!(world.store.events_to_tend(at(15)).expect("events_to_tend"));
    let id = world.running();
    let effects = vec![Effect::Subscribe(Box::new(subscription("w")))];
    let late = Commit { effects, ..commit(id) };
    let outcome = world.one(15, Write::Commit(Box::new(late)));
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    assert_eq!(world.handed(id), [0_u8; 0]);
    assert_eq!(world.tend(15, 10).done, 2, "the event and its dedupe key");
    assert!(!world.store.events_to_tend(at(15)).expect("events_to_tend"));
    assert_eq!(world.kept(), 0);
    assert_eq!(world.publish_at(16, short(publication(2))).told, 1);
}

fn too_many_events_drop_the_oldest(world: &World) {
    for body in 1..=5 {
        let few = Publication { max_pending: 3, ..one(body) };
        let published = world.publish(few);
        assert_eq!(published.dropped, u64::from(body > 3));
    }
    let row = world.store.event("paid").expect("event").expect("known");
    assert_eq!((row.published, row.kept, row.dropped), (5, 3, 2));
    assert_eq!(world.handed(world.waiting()), [3]);
}

fn a_second_event_with_a_dedupe_key_is_not_published(world: &World) {
    let keyed = |body| Publication { dedupe: Some("d".to_owned()), ..one(body) };
    assert_eq!(world.publish(keyed(1)).seq, Some(1));
    assert_eq!(world.publish(keyed(2)), Published::default());
    let id = world.waiting();
    assert_eq!(world.take(id, "w"), 1);
    let again = world.publish(keyed(3));
    assert_eq!(again.seq, None, "also after the first was taken");
    let other = Publication { name: "other".to_owned(), ..keyed(4) };
    assert_eq!(world.publish(other).seq, Some(1));
}

fn a_published_effect_writes_its_receipt(world: &World) {
    let (publisher, waiter) = (world.running(), world.waiting());
    let publish = |key: &str| Effect::Publish {
        publication: Box::new(Publication { dedupe: Some("d".to_owned()), ..publication(1) }),
        key: key.into(),
        receipt: b"sent".to_vec(),
    };
    let outcome = world.commit(Commit {
        effects: vec![publish("a"), send(waiter, "b"), publish("c")],
        ..commit(publisher)
    });
    let Outcome::Committed(done) = outcome else {
        panic!("a commit was answered with {outcome:?}");
    };
    assert!(
        matches!(
            &done[..],
            [
                EffectDone::Published(Published { told: 1, .. }),
                EffectDone::Sent(_),
                EffectDone::Published(Published { seq: None, .. })
            ]
        ),
        "in the order of the effects: {done:?}"
    );
    assert_eq!(world.handed(waiter), [1]);
    let history = world.store.history(publisher.no(), None, 10).expect("history");
    let receipts = [Receipt::Published, Receipt::Delivered, Receipt::Duplicate];
    let expected = receipts.map(|receipt| [b"sent", &[receipt.code()][..]].concat());
    let found: Vec<_> = history.into_iter().map(|put| put.value).collect();
    assert_eq!(found, expected);
}

fn an_event_refuses_parking(world: &World) {
    let id = world.waiting();
    world.publish(publication(1));
    let refusal = world.refuse(Commit { inbox_seq: Some(0), patch: park(None), ..commit(id) });
    let Refusal::InboxMoved { rows, .. } = refusal else {
        panic!("{refusal:?}");
    };
    assert_eq!(rows[0].wait.as_deref(), Some(&b"w"[..]));
    // The same the other way round, in one batch: the wait comes after the event.
    let late = world.running();
    let register = Commit {
        inbox_seq: Some(0),
        effects: vec![Effect::Subscribe(Box::new(subscription("w")))],
        patch: park(None),
        ..commit(late)
    };
    world.batch(
        7,
        vec![Write::Publish(Box::new(publication(2))), Write::Commit(Box::new(register))],
    );
    assert_eq!(world.handed(late), [1]);
    assert!(world.due(8).contains(&late));
}

fn a_message_to_a_finished_run_becomes_what_its_sender_says(world: &World) {
    let (id, waiter) = (world.running(), world.waiting());
    world.finish(id);
    let sent = |on_end| {
        let delivery = Delivery { on_end, dedupe: Some("d".to_owned()), ..message(id) };
        world.deliver(delivery).receipt
    };
    assert_eq!(sent(OnEnd::Error), Receipt::Finished);
    assert_eq!(world.letters(Some(id)).len(), 0);
    assert_eq!(sent(OnEnd::DeadLetter), Receipt::DeadLettered);
    assert_eq!(sent(OnEnd::DeadLetter), Receipt::Duplicate);
    let letters = world.letters(Some(id));
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].status, Some(RunStatus::Completed));
    assert_eq!(letters[0].run_id, Some(id));
    assert_eq!(letters[0].target, Some(Target::Id(id)));
    let fallback = Box::new(fallback("paid"));
    let published = world.deliver(Delivery { on_end: OnEnd::Publish(fallback), ..message(id) });
    assert_eq!(published.receipt, Receipt::Published);
    assert_eq!(world.handed(waiter), [b's'], "the last letter of `yes`");
}

fn unread_messages_become_events_if_their_sender_says_so(world: &World) {
    let (id, waiter) = (world.running(), world.waiting());
    world.deliver(message(id));
    world.deliver(Delivery {
        name: "other".to_owned(),
        body: b"no".to_vec(),
        on_end: OnEnd::Publish(Box::new(fallback("paid"))),
        ..message(id)
    });
    world.finish(id);
    assert_eq!(world.seqs(id), [0_u64; 0]);
    let letters = world.letters(Some(id));
    assert_eq!(letters.len(), 1);
    assert_eq!(letters[0].name, "approval");
    assert_eq!(world.handed(waiter), [b'o']);
}

fn a_dead_letter_is_replayed_once(world: &World) {
    let (ended, live, waiter) = (world.running(), world.running(), world.waiting());
    world.deliver(message(ended));
    world.deliver(message(ended));
    world.finish(ended);
    let replay = |no, to| world.letter(LetterWrite::Replay { no, to, inbox_max: 10 });
    let refused = replay(1, ReplayTo::Same);
    let LetterDone::Delivered(refused) = refused else {
        panic!("{refused:?}");
    };
    assert_eq!(refused.receipt, Receipt::Finished);
    assert_eq!(world.letters(None).len(), 2, "it is still a dead letter");
    let taken = replay(1, ReplayTo::Run(Target::Id(live)));
    assert_eq!(taken, LetterDone::Delivered(delivered(live, 1)));
    assert_eq!(replay(1, ReplayTo::Same), LetterDone::Unknown);
    assert_eq!(world.seqs(live), [1]);
    let event = replay(2, ReplayTo::Event(Box::new(fallback("paid"))));
    assert!(matches!(&event, LetterDone::Published(published) if published.told == 1), "{event:?}");
    assert_eq!(world.handed(waiter), [b's']);
    assert_eq!(world.letters(None), []);
}

fn dead_letters_are_filtered_paged_and_dropped(world: &World) {
    let (one, two) = (world.running(), world.running());
    for (id, name) in [(one, "a"), (two, "a"), (one, "b"), (one, "a")] {
        let name = name.to_owned();
        world.deliver(Delivery { name, ..message(id) });
    }
    world.finish(one);
    world.finish(two);
    let nos = |run: Option<RunId>, name: Option<&str>, after, limit| -> Vec<u64> {
        let filter = LetterFilter { run: run.map(RunId::no), name: name.map(str::to_owned) };
        let letters = world.store.dead_letters(&filter, after, limit);
        let letters = letters.expect("dead_letters").into_iter();
        letters.map(|letter| letter.no).collect()
    };
    assert_eq!(nos(Some(one), None, 0, 9), [1, 2, 3]);
    assert_eq!(nos(None, Some("a"), 0, 9), [1, 3, 4]);
    assert_eq!(nos(Some(one), Some("a"), 1, 9), [3]);
    assert_eq!(nos(None, None, 1, 2), [2, 3]);
    let dropped = world.letter(LetterWrite::Drop(vec![1, 3, 99]));
    assert_eq!(dropped, LetterDone::Dropped(2));
    assert_eq!(nos(None, None, 0, 9), [2, 4]);
    // A number is not given again.
    let three = world.running();
    world.deliver(message(three));
    world.letter(LetterWrite::Drop(vec![4]));
    world.finish(three);
    assert_eq!(nos(None, None, 0, 9), [2, 5]);
}
