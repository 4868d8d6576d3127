//! Streams: positions, bounds, pages, and who may append.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    positions_of_each_stream_count_from_zero,
    items_of_a_commit_and_of_a_body_share_the_positions,
    everything_about_an_item_is_kept,
    a_full_stream_drops_its_oldest_items_and_says_so,
    a_stream_is_read_page_by_page,
    a_page_has_a_bound_in_bytes_and_at_least_one_item,
    an_emission_of_a_finished_run_or_another_generation_is_refused,
    an_emission_under_a_lost_fence_is_refused,
    a_cancel_or_a_pause_does_not_refuse_an_emission,
    a_refused_commit_emits_nothing,
    items_before_and_with_the_end_are_kept_and_later_ones_are_not,
    the_streams_of_a_run_are_listed_and_loaded_by_name,
    grown_streams_are_found_in_one_go,
    a_stream_of_no_run_is_none,
];

fn emit(stream: &str, body: &str) -> Emit {
    Emit { stream: stream.to_owned(), by: None, body: body.as_bytes().to_vec(), items_max: 1_000 }
}

fn by_body(stream: &str, body: &str, attempt: u32) -> Emit {
    let by = EmittedBy { step: b"step".to_vec(), attempt, life: 7 << 32 | 5 };
    Emit { by: Some(by), ..emit(stream, body) }
}

fn emission(id: RunId, items: Vec<Emit>) -> Write {
    Write::Emit(Box::new(Emission { run: id.no(), generation: 1, items }))
}

fn committed(id: RunId, items: impl IntoIterator<Item = Emit>) -> Commit {
    let effects = items.into_iter().map(|item| Effect::Emit(Box::new(item)));
    Commit { effects: effects.collect(), ..commit(id) }
}

fn page(world: &World, id: RunId, stream: &str, from: u64, limit: usize) -> StreamPage {
    let page = world.store.stream(id.no(), stream, from, limit);
    page.expect("stream").expect("there is such a run")
}

fn items(world: &World, id: RunId, stream: &str) -> Vec<(u64, String)> {
    let text = |row: StreamRow| (row.pos, String::from_utf8(row.body).expect("text"));
    let page = page(world, id, stream, 0, 1_000);
    page.items.into_iter().map(text).collect()
}

fn numbered<const N: usize>(items: [&str; N]) -> Vec<(u64, String)> {
    let numbered = items.into_iter().enumerate();
    numbered.map(|(n, item)| (n as u64, item.to_owned())).collect()
}

fn positions_of_each_stream_count_from_zero(world: &World) {
    let (one, two) = (world.running(), world.running());
    world.accept(committed(one, [emit("a", "1"), emit("b", "2"), emit("a", "3")]));
    world.accept(committed(two, [emit("a", "4")]));
    assert_eq!(items(world, one, "a"), numbered(["1", "3"]));
    assert_eq!(items(world, one, "b"), numbered(["2"]));
    assert_eq!(items(world, two, "a"), numbered(["4"]));
    assert_eq!(items(world, two, "b"), []);
}

fn items_of_a_commit_and_of_a_body_share_the_positions(world: &World) {
    let id = world.running();
    let outcomes = world.batch(
        1,
        vec![
            emission(id, vec![by_body("s", "1", 1), by_body("s", "2", 1)]),
            Write::Commit(Box::new(committed(id, [emit("s", "3")]))),
            emission(id, vec![by_body("s", "4", 1)]),
        ],
    );
    let wanted = [Outcome::Emitted, Outcome::Committed(Vec::new()), Outcome::Emitted];
    assert_eq!(outcomes, wanted);
    assert_eq!(items(world, id, "s"), numbered(["1", "2", "3", "4"]));
}

fn everything_about_an_item_is_kept(world: &World) {
    let id = world.running();
    world.one(5, emission(id, vec![by_body("s", "token", 3)]));
    world.accept(committed(id, [emit("s", "")]));
    let wanted = StreamPage {
        status: RunStatus::Running,
        first: 0,
        next: 2,
        items: vec![
            StreamRow {
                pos: 0,
                at: at(5),
                generation: 1,
                by: by_body("s", "token", 3).by,
                body: b"token".to_vec(),
            },
            StreamRow { pos: 1, at: at(1), generation: 1, by: None, body: Vec::new() },
        ],
    };
    assert_eq!(page(world, id, "s", 0, 10), wanted);
}

fn a_full_stream_drops_its_oldest_items_and_says_so(world: &World) {
    let id = world.running();
    for n in 0..7 {
        let items_max = 3;
        world.accept(committed(id, [Emit { items_max, ..emit("s", &n.to_string()) }]));
    }
    let found = page(world, id, "s", 0, 10);
    let kept = found.items.iter().map(|row| row.pos).collect::<Vec<_>>();
    assert_eq!((found.first, found.next, kept), (4, 7, vec![4, 5, 6]));
    // A bound of nothing keeps the newest one, from which the next position follows.
    let items_max = 0;
    world.accept(committed(id, [Emit { items_max, ..emit("s", "last") }]));
    assert_eq!(items(world, id, "s"), [(7, "last".to_owned())]);
}

fn a_stream_is_read_page_by_page(world: &World) {
    let id = world.running();
    let all = (0..25).map(|n| emit("s", &n.to_string()));
    world.accept(committed(id, all));
    let (mut from, mut seen) = (0, Vec::new());
    loop {
        let page = page(world, id, "s", from, 10);
        assert_eq!((page.first, page.next), (0, 25));
        if page.items.is_empty() {
            break;
        }
        assert!(page.items.len() <= 10);
        from = page.items[page.items.len() - 1].pos + 1;
        seen.extend(page.items.into_iter().map(|row| row.pos));
    }
    assert_eq!(seen, (0..25).collect::<Vec<_>>());
    assert!(page(world, id, "s", 25, 10).items.is_empty());
    assert!(page(world, id, "s", u64::MAX, 10).items.is_empty());
    assert!(page(world, id, "s", 0, 0).items.is_empty());
}

fn a_page_has_a_bound_in_bytes_and_at_least_one_item(world: &World) {
    let id = world.running();
    let large = "x".repeat(3 << 20);
    world.accept(committed(id, [emit("s", &large), emit("s", &large)]));
    assert_eq!(page(world, id, "s", 0, 10).items.len(), 1);
    let huge = "x".repeat(6 << 20);
    world.accept(committed(id, [emit("huge", &huge), emit("huge", "")]));
    assert_eq!(page(world, id, "huge", 0, 10).items.len(), 1);
}

fn an_emission_of_a_finished_run_or_another_generation_is_refused(world: &World) {
    let gone = Outcome::Refused(Refusal::Gone);
    let id = world.running();
    let next = Write::Emit(Box::new(Emission {
        run: id.no(),
        generation: 2,
        items: vec![emit("s", "1")],
    }));
    assert_eq!(world.one(1, next), gone);
    world.finish(id);
    assert_eq!(world.one(2, emission(id, vec![emit("s", "2")])), gone);
    let unknown = world.ids.next(START);
    assert_eq!(world.one(2, emission(unknown, vec![emit("s", "3")])), gone);
    assert_eq!(items(world, id, "s"), []);
}

fn an_emission_under_a_lost_fence_is_refused(world: &World) {
    let id = world.running();
    let fenced = Outcome::Refused(Refusal::Fenced);
    let write =
        |fence| Batch { fence, now: at(1), writes: vec![emission(id, vec![emit("s", "1")])] };
    let stale = Fence { epoch: world.fence.epoch + 7, ..world.fence };
    for fence in [None, Some(stale)] {
        let applied = world.store.commit(&write(fence)).expect("commit");
        assert_eq!(applied.outcomes[0], fenced, "{fence:?}");
    }
    // A fence that holds, of a runner that does not own the shard.
    let other = register(&*world.store, "second", START);
    let applied = world.store.commit(&write(Some(other))).expect("commit");
    assert_eq!(applied.outcomes[0], fenced);
    assert_eq!(items(world, id, "s"), []);
}

fn a_cancel_or_a_pause_does_not_refuse_an_emission(world: &World) {
    for control in [Control::Cancel { rollback: true }, Control::Pause] {
        let id = world.running();
        world.control(id, control);
        let outcome = world.one(1, emission(id, vec![by_body("s", "1", 1)]));
        assert_eq!(outcome, Outcome::Emitted, "{control:?}");
        assert_eq!(items(world, id, "s"), numbered(["1"]));
    }
}

fn a_refused_commit_emits_nothing(world: &World) {
    let id = world.running();
    let refusal = world.refuse(Commit { inbox_seq: Some(7), ..committed(id, [emit("s", "1")]) });
    assert_eq!(refusal, Refusal::InboxMoved { rows: Vec::new(), seq: 0 });
    assert_eq!(items(world, id, "s"), []);
}

fn items_before_and_with_the_end_are_kept_and_later_ones_are_not(world: &World) {
    let id = world.running();
    let last = Commit { patch: finish(RunStatus::Completed), ..committed(id, [emit("s", "2")]) };
    let outcomes = world.batch(
        1,
        vec![
            emission(id, vec![by_body("s", "1", 1)]),
            Write::Commit(Box::new(last)),
            emission(id, vec![by_body("s", "3", 1)]),
        ],
    );
    assert_eq!(outcomes[2], Outcome::Refused(Refusal::Gone));
    assert_eq!(items(world, id, "s"), numbered(["1", "2"]));
    assert_eq!(page(world, id, "s", 2, 10).status, RunStatus::Completed);
}

fn the_streams_of_a_run_are_listed_and_loaded_by_name(world: &World) {
    let (id, other) = (world.running(), world.running());
    let full = Emit { items_max: 1, ..emit("b", "2") };
    world.accept(committed(id, [emit("c", ""), emit("b", "1"), full, emit("a b", "")]));
    world.accept(committed(other, [emit("x", "")]));
    let extent =
        |stream: &str, first, next| StreamExtent { stream: stream.to_owned(), first, next };
    let wanted = [extent("a b", 0, 1), extent("b", 1, 2), extent("c", 0, 1)];
    assert_eq!(world.store.streams(id.no()).expect("streams"), wanted);
    let loaded = world.store.load(id.no()).expect("load").expect("the run");
    assert_eq!(loaded.streams, ["a b", "b", "c"]);
    let none = world.running();
    assert_eq!(world.store.streams(none.no()).expect("streams"), []);
}

fn grown_streams_are_found_in_one_go(world: &World) {
    let (one, two) = (world.running(), world.running());
    world.accept(committed(one, [emit("s", "1"), emit("s", "2"), emit("é\"t", "3")]));
    let asked = [
        (one.no(), "s".to_owned(), 1),
        (one.no(), "s".to_owned(), 2),
        (one.no(), "é\"t".to_owned(), 0),
        (two.no(), "s".to_owned(), 0),
        (one.no(), "t".to_owned(), 0),
        (one.no(), "s".to_owned(), u64::MAX),
    ];
    let grown = world.store.streams_grown(&asked).expect("streams_grown");
    assert_eq!(grown, [0, 2]);
    assert!(world.store.streams_grown(&[]).expect("none").is_empty());
}

fn a_stream_of_no_run_is_none(world: &World) {
    let unknown = world.ids.next(START).no();
    assert_eq!(world.store.stream(unknown, "s", 0, 10).expect("stream"), None);
    assert_eq!(world.store.streams(unknown).expect("streams"), []);
}

impl Random {
    pub(super) fn emit(&mut self) -> Emit {
        let stream = ["a", "b"][self.below(2) as usize];
        let text = self.below(100).to_string();
        let emit = match self.one_in(2) {
            true => emit(stream, &text),
            false => by_body(stream, &text, 1 + self.below(2) as u32),
        };
        let items_max = self.below(5);
        Emit { items_max, ..emit }
    }

    pub(super) fn emission(&mut self, id: RunId) -> Emission {
        Emission {
            run: id.no(),
            generation: 1 + u32::from(self.one_in(20)),
            items: (0..self.below(4)).map(|_| self.emit()).collect(),
        }
    }
}

/// What is in the streams of a run.
pub(super) fn read(store: &dyn Store, run: RunNo) -> Vec<(StreamExtent, Option<StreamPage>)> {
    let streams = store.streams(run).expect("streams").into_iter();
    let page = |stream: &str| store.stream(run, stream, 0, 100).expect("stream");
    streams
        .map(|extent| {
            let page = page(&extent.stream);
            (extent, page)
        })
        .collect()
}
