//! What people look at from above: children, unread messages, queues, counts and charts.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    children_are_there_until_they_have_ended,
    unread_messages_are_paged,
    runs_are_found_by_their_ids,
    queues_are_listed_by_name,
    counts_of_queues_stop_where_they_are_told_to,
    the_oldest_ready_item_may_be_of_any_priority,
    runs_are_counted_by_status,
    stats_count_starts_and_ends_by_their_time,
    the_retention_horizon_moves_forward_only,
    stats_tell_how_long_completed_runs_took,
    stats_of_many_runs_are_told_by_some,
];

fn start_child(world: &World, parent: RunId, key: &str) -> RunId {
    let new = NewRun { parent: Some(parent), ..world.new_run() };
    let id = new.id;
    let start = StartChild {
        new,
        key: key.as_bytes().to_vec(),
        entry: b"entry".to_vec(),
        awaited: false,
        close: Close::Leave,
    };
    let effects = vec![Effect::StartChild(Box::new(start))];
    let outcome = world.commit(Commit { effects, ..commit(parent) });
    assert!(matches!(outcome, Outcome::Committed(_)), "{outcome:?}");
    id
}

fn children_are_there_until_they_have_ended(world: &World) {
    let (parent, other) = (world.running(), world.running());
    let kids = ["a", "b"].map(|key| start_child(world, parent, key));
    let of_other = start_child(world, other, "a");
    let children = |run: RunId| world.store.children(run.no()).expect("children");
    assert_eq!(children(parent), kids);
    assert_eq!(children(other), [of_other]);
    assert_eq!(children(of_other), []);
    world.finish(kids[0]);
    assert_eq!(children(parent), kids[1..]);
}

fn unread_messages_are_paged(world: &World) {
    let id = world.parked(None);
    for _ in 0..4 {
        world.deliver(message(id));
    }
    let unread = |after, limit| {
        let rows = world.store.unread(id.no(), after, limit).expect("unread");
        rows.into_iter().map(|row| row.seq).collect::<Vec<u64>>()
    };
    assert_eq!(unread(0, 3), [1, 2, 3]);
    assert_eq!(unread(3, 3), [4]);
    assert!(unread(4, 3).is_empty());
    assert!(unread(0, 0).is_empty());
    assert_eq!(unread(0, 3), [1, 2, 3], "nothing is consumed");
}

fn runs_are_found_by_their_ids(world: &World) {
    let ids = [(); 3].map(|()| world.running());
    world.finish(ids[1]);
    let missing = world.ids.next(START);
    let filter = |statuses: &[RunStatus]| Filter {
        ids: vec![ids[0], missing, ids[1]],
        statuses: statuses.to_vec(),
        ..Filter::default()
    };
    let list = |filter: &Filter, after: Option<RunId>| {
        let rows = world.store.list(filter, after.map(RunId::no), 10);
        let rows = rows.expect("list").into_iter();
        rows.map(|row| row.id).collect::<Vec<RunId>>()
    };
    assert_eq!(list(&filter(&[]), None), [ids[1], ids[0]]);
    assert_eq!(list(&filter(&[]), Some(ids[1])), [ids[0]]);
    assert_eq!(list(&filter(&[RunStatus::Running]), None), [ids[0]]);
    assert_eq!(world.store.count(&filter(&[])).expect("count"), 2);
    // An id that has the number of another run, but is not its id.
    let twin = Uuid::from_u128(ids[0].as_uuid().as_u128() ^ 1);
    let twin = RunId::from_uuid(twin).expect("of version 7");
    assert_eq!(twin.no(), ids[0].no());
    let filter = Filter { ids: vec![twin], ..Filter::default() };
    assert_eq!(list(&filter, None), []);
}

fn put_in(world: &World, queue: &str, priority: i32, available_at: Option<Timestamp>) {
    let item = NewItem {
        queue: queue.to_owned(),
        payload: b"input".to_vec(),
        priority,
        available_at,
        dedupe: None,
        keep: Duration::ZERO,
        trace: None,
    };
    world.one(0, Write::Queue(Box::new(QueueWrite::Enqueue(item))));
}

fn names(rows: &[QueueRow]) -> Vec<&str> {
    rows.iter().map(|row| &*row.name).collect()
}

fn queues_are_listed_by_name(world: &World) {
    let queues = |after, limit| world.store.queues(after, limit, 10).expect("queues");
    assert_eq!(queues(None, 10), []);
    put_in(world, "thumbs", 0, None);
    put_in(world, "mails", 0, Some(at(1_000)));
    put_in(world, "äpfel", 0, None);
    put_in(world, "mails", 0, None);
    let all = queues(None, 10);
    assert_eq!(names(&all), ["mails", "thumbs", "äpfel"]);
    for row in &all {
        let stats = world.store.queue_stats(&row.name).expect("queue_stats");
        assert_eq!(row.stats, stats, "{}", row.name);
    }
    assert_eq!((all[0].stats.ready, all[0].stats.delayed), (1, 1));
    assert_eq!(names(&queues(None, 2)), ["mails", "thumbs"]);
    assert_eq!(names(&queues(Some("mails"), 2)), ["thumbs", "äpfel"]);
    assert_eq!(names(&queues(Some("äpfel"), 2)), [""; 0]);
    assert_eq!(queues(None, 0), []);
}

fn counts_of_queues_stop_where_they_are_told_to(world: &World) {
    for _ in 0..5 {
        put_in(world, "thumbs", 0, None);
        put_in(world, "thumbs", 0, Some(at(1_000)));
    }
    put_in(world, "thumbs", 0, Some(at(1_000)));
    let stats = |most| world.store.queues(None, 10, most).expect("queues")[0].stats;
    assert_eq!((stats(3).ready, stats(3).delayed), (3, 3));
    assert_eq!((stats(5).ready, stats(5).delayed), (5, 5));
    assert_eq!((stats(6).ready, stats(6).delayed), (5, 6));
}

fn the_oldest_ready_item_may_be_of_any_priority(world: &World) {
    let put = |now: i64, priority: i32| {
        let item = NewItem {
            queue: "thumbs".to_owned(),
            payload: Vec::new(),
            priority,
            available_at: None,
            dedupe: None,
            keep: Duration::ZERO,
            trace: None,
        };
        world.one(now, Write::Queue(Box::new(QueueWrite::Enqueue(item))));
    };
    for (now, priority) in [(0, 3), (5, -7), (7, 9), (9, 0)] {
        put(now, priority);
    }
    let rows = world.store.queues(None, 10, 100).expect("queues");
    assert_eq!(rows[0].stats.oldest_ready, Some(at(0)));
    let stats = world.store.queue_stats("thumbs").expect("queue_stats");
    assert_eq!(rows[0].stats, stats);
}

/// Ends a run so, at this time.
fn end(world: &World, id: RunId, status: RunStatus, now: i64) {
    let commit = Commit { patch: finish(status), ..commit(id) };
    let outcome = world.one(now, Write::Commit(Box::new(commit)));
    assert_eq!(outcome, Outcome::Committed(Vec::new()));
}

fn runs_are_counted_by_status(world: &World) {
    let counts = |filter: Filter| world.store.count_by_status(&filter).expect("counts");
    assert_eq!(counts(Filter::default()), StatusCounts::default());
    world.running();
    for status in [RunStatus::Completed, RunStatus::Completed, RunStatus::Failed] {
        end(world, world.running(), status, 1);
    }
    world.parked(None);
    world.parked(Some(at(1_000)));
    let paused = world.parked(Some(at(1_000)));
    world.control(paused, Control::Pause);
    let cancelled = world.parked(None);
    let rollback = false;
    world.control(cancelled, Control::Cancel { rollback });
    let rolls_back = world.running();
    world.accept(Commit { patch: roll_back(), ..commit(rolls_back) });
    let woken = world.running();
    world.deliver(message(woken));
    let delayed = NewRun {
        available_at: Some(at(1_000)),
        workflow: "other".into(),
        claim: false,
        ..world.new_run()
    };
    world.start(delayed);
    let found = counts(Filter::default());
    let wanted = [1, 2, 3, 1, 1, 2, 1, 0];
    let wanted = RunStatus::ALL.into_iter().zip(wanted);
    assert_eq!(found.iter().collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    let workflow = |name: &str| Some(name.to_owned());
    let filters = [
        Filter::default(),
        Filter { workflow: workflow("checkout"), ..Filter::default() },
        Filter { workflow: workflow("other"), ..Filter::default() },
        Filter { statuses: vec![RunStatus::Failed, RunStatus::Sleeping], ..Filter::default() },
        Filter {
            workflow: workflow("checkout"),
            statuses: vec![RunStatus::Completed],
            ..Filter::default()
        },
        Filter { created_from: Some(at(0)), ..Filter::default() },
        Filter { version: Some(2), ..Filter::default() },
    ];
    for filter in filters {
        let counts = counts(filter.clone());
        let listed = world.store.list(&filter, None, 1_000).expect("list");
        for status in RunStatus::ALL {
            let listed = listed.iter().filter(|row| row.status == status);
            assert_eq!(counts.of(status), listed.count() as u64, "{filter:?}");
        }
        let count = world.store.count(&filter).expect("count");
        assert_eq!((counts.total(), count), (count, listed.len() as u64));
    }
}

/// A run whose id was made at this time, in its owner's memory.
fn started_at(world: &World, ids: &RunIds, now: i64, workflow: &str) -> RunId {
    let new = NewRun { id: ids.next(at(now)), workflow: workflow.into(), ..world.new_run() };
    let id = new.id;
    world.one(now, Write::Start(Box::new(new)));
    id
}

fn stats(world: &World, from: i64, to: i64, bucket_ms: i64) -> Vec<StatsRow> {
    let range = StatsRange::new(at(from), at(to), bucket_ms).expect("a range");
    world.store.stats(&range).expect("stats")
}

fn stats_count_starts_and_ends_by_their_time(world: &World) {
    let ids = RunIds::new(9);
    let runs = [1_000, 1_000, 1_999, 2_000, 3_400, 3_500];
    let runs = runs.map(|now| started_at(world, &ids, now, "checkout"));
    // Ids of one source never go back.
    let other = started_at(world, &RunIds::new(3), 1_500, "other");
    end(world, runs[0], RunStatus::Completed, 1_999);
    end(world, runs[1], RunStatus::Failed, 2_000);
    end(world, runs[2], RunStatus::Cancelled, 3_499);
    end(world, runs[3], RunStatus::Failed, 3_500);
    end(world, other, RunStatus::Failed, 2_999);
    let rows = stats(world, 1_000, 3_500, 1_000);
    let numbers = rows.iter().map(|row| [row.started, row.completed, row.failed, row.cancelled]);
    let numbers: Vec<[u64; 4]> = numbers.collect();
    assert_eq!(numbers, [[4, 1, 0, 0], [1, 0, 2, 0], [1, 0, 0, 1]]);
    let before = stats(world, 0, 1_000, 1_000);
    assert_eq!(before, [StatsRow::default()]);
}

fn the_retention_horizon_moves_forward_only(world: &World) {
    let horizon = || world.store.horizon().expect("the horizon");
    assert_eq!(horizon(), None);
    for (raised, expected) in [(5_000, 5_000), (4_999, 5_000), (70_000, 70_000), (1, 70_000)] {
        world.store.raise_horizon(at(raised)).expect("a horizon");
        // A store of somebody else's may keep none.
        assert!(horizon().is_none_or(|it| it == at(expected)), "{raised}");
    }
}

fn stats_tell_how_long_completed_runs_took(world: &World) {
    let ids = RunIds::new(9);
    let runs: Vec<RunId> = (0..40)
        .map(|n| started_at(world, &ids, 0, if n % 2 == 0 { "checkout" } else { "other" }))
        .collect();
    for (n, run) in (1..).zip(&runs[..38]) {
        end(world, *run, RunStatus::Completed, n * 10);
    }
    // How long others took does not count.
    end(world, runs[38], RunStatus::Failed, 999);
    end(world, runs[39], RunStatus::Cancelled, 999);
    let rows = stats(world, 0, 2_000, 1_000);
    assert_eq!((rows[0].p50_ms, rows[0].p95_ms), (Some(190), Some(370)));
    assert_eq!((rows[1].p50_ms, rows[1].p95_ms), (None, None));
    let rows = stats(world, 100, 110, 5);
    assert_eq!((rows[0].p50_ms, rows[0].p95_ms), (Some(100), Some(100)));
    assert_eq!(rows[1].p50_ms, None);
}

fn stats_of_many_runs_are_told_by_some(world: &World) {
    let ids = RunIds::new(9);
    let most = 3 * STATS_SAMPLE as i64;
    let new = (0..most).map(|_| NewRun { id: ids.next(at(0)), ..world.new_run() });
    let new: Vec<NewRun> = new.collect();
    let runs: Vec<RunId> = new.iter().map(|new| new.id).collect();
    let starts = new.into_iter().map(|new| Write::Start(Box::new(new)));
    world.batch(0, starts.collect());
    // Many end in the same millisecond.
    for (n, some) in (1..).zip(runs.chunks(64)) {
        let ends = some.iter().map(|id| {
            Write::Commit(Box::new(Commit { patch: finish(RunStatus::Completed), ..commit(*id) }))
        });
        world.batch(n * 100, ends.collect());
    }
    let rows = stats(world, 0, 10_000, 10_000);
    assert_eq!(rows[0].completed, most as u64);
    let last = most / 64 * 100;
    let near = |found: Option<u64>, percent: i64| {
        let wanted = last * percent / 100;
        found.is_some_and(|ms| (ms as i64 - wanted).abs() <= last / 20)
    };
    assert!(near(rows[0].p50_ms, 50) && near(rows[0].p95_ms, 95), "{rows:?}");
}
