//! Deletes, tags, forks and what can be found by them.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    a_deleted_run_cannot_be_read_from_its_batch_on,
    the_number_of_a_deleted_run_is_free_after_the_sweep,
    a_sweep_in_slices_leaves_other_runs_alone,
    a_live_run_is_not_deleted,
    a_run_that_ends_in_the_batch_of_its_delete_is_deleted,
    a_run_that_ended_too_recently_is_not_deleted,
    the_key_of_a_deleted_run_is_kept_for_its_window,
    a_key_that_is_not_kept_is_free_at_once,
    a_run_that_continued_as_another_workflow_leaves_with_its_own_key,
    dead_letters_of_others_keep_their_numbers,
    a_tag_is_replaced_and_removed_by_name,
    a_commit_sets_tags_of_its_run,
    a_run_has_a_bound_of_tags,
    a_fork_begins_with_its_history,
    a_fork_with_a_used_key_attaches,
    ended_runs_are_found_in_the_order_of_their_ends,
    filters_know_versions_keys_and_ends,
    finding_is_listing_without_rows,
];

fn delete(id: RunId) -> Delete {
    Delete { target: Target::Id(id), finished_before: None, key_kept_until: None }
}

impl World {
    fn delete(&self, ms: i64, delete: Delete) -> Deleted {
        match self.one(ms, Write::Delete(Box::new(delete))) {
            Outcome::Deleted(deleted) => deleted,
            other => panic!("a delete was answered with {other:?}"),
        }
    }

    fn sweep(&self, ms: i64) {
        while self.store.sweep(at(ms), 1_000).expect("sweep") {}
    }

    fn tag(&self, id: RunId, name: &str, value: Option<&str>) -> Outcome {
        let tagging = Tagging {
            target: Target::Id(id),
            name: name.to_owned(),
            value: value.map(str::to_owned),
        };
        self.one(4, Write::Tag(Box::new(tagging)))
    }

    /// A run with something in every place, that has ended.
    fn rich(&self, key: &str) -> (RunId, Uuid) {
        let started = self.start(NewRun {
            key: Some(key.to_owned()),
            tags: vec![("colour".to_owned(), "red".to_owned())],
            ..self.new_run()
        });
        let (id, request) = (started.id, Uuid::from_name(key));
        self.deliver(Delivery {
            dedupe: Some("once".to_owned()),
            request: Some(request),
            ..message(id)
        });
        self.accept(Commit {
            puts: (0..20).map(|n| put([n], "x")).collect(),
            state: vec![("s".to_owned(), b"1".to_vec())],
            ..commit(id)
        });
        self.finish(id);
        (id, request)
    }

    fn found(&self, filter: &Filter) -> Vec<RunId> {
        self.store.find(filter, None, 100).expect("find")
    }
}

fn tagged(name: &str, value: &str) -> Filter {
    Filter { tags: vec![(name.to_owned(), value.to_owned())], ..Filter::default() }
}

fn a_deleted_run_cannot_be_read_from_its_batch_on(world: &World) {
    let (id, request) = world.rich("k");
    assert_eq!(world.letters(Some(id)).len(), 1);
    assert_eq!(world.delete(5, delete(id)), Deleted::Done { run: id });
    let (store, no) = (&world.store, id.no());
    assert_eq!(store.run(&Target::Id(id)).expect("run"), None);
    assert_eq!(store.load(no).expect("load"), None);
    assert!(world.keys(id).is_empty());
    assert!(world.seqs(id).is_empty());
    assert!(store.state(no).expect("state").is_empty());
    assert!(world.letters(Some(id)).is_empty());
    assert!(world.letters(None).is_empty());
    assert_eq!(store.answers(&[request]).expect("answers"), [(request, Answer::Unknown)]);
    assert_eq!(store.finished(&[no]).expect("finished"), [(no, None)]);
    assert!(world.found(&Filter::default()).is_empty());
    assert!(world.found(&tagged("colour", "red")).is_empty());
    assert_eq!(world.deliver(message(id)).receipt, Receipt::Unknown);
    assert_eq!(world.control(id, Control::Pause), Controlled::Unknown);
    assert_eq!(world.delete(6, delete(id)), Deleted::Unknown);
    let reopen = Reopen {
        run: no,
        status: RunStatus::Completed,
        attempts: 1,
        puts: Vec::new(),
        deletes: Vec::new(),
    };
    let outcome = world.one(6, Write::Reopen(Box::new(reopen)));
    assert_eq!(outcome, Outcome::Refused(Refusal::Gone));
}

fn the_number_of_a_deleted_run_is_free_after_the_sweep(world: &World) {
    let (id, _) = world.rich("k");
    world.delete(5, delete(id));
    let again = || NewRun { id, ..world.new_run() };
    let outcome = world.one(6, Write::Start(Box::new(again())));
    assert_eq!(outcome, Outcome::Refused(Refusal::Gone));
    world.sweep(7);
    assert!(!world.start(again()).attached);
    assert!(world.keys(id).is_empty(), "nothing of the first is left");
    assert!(world.store.state(id.no()).expect("state").is_empty());
    let delivery = Delivery { dedupe: Some("once".to_owned()), ..message(id) };
    assert_eq!(world.deliver(delivery).receipt, Receipt::Delivered);
}

fn a_sweep_in_slices_leaves_other_runs_alone(world: &World) {
    let runs: Vec<RunId> = (0..4).map(|n| world.rich(&n.to_string()).0).collect();
    world.delete(5, delete(runs[0]));
    world.delete(5, delete(runs[2]));
    for _ in 0..200 {
        if !world.store.sweep(at(6), 3).expect("sweep") {
            break;
        }
    }
    assert!(!world.store.sweep(at(6), 3).expect("sweep"), "it ends");
    for id in [runs[1], runs[3]] {
        assert_eq!(world.keys(id).len(), 20);
        assert_eq!(world.store.state(id.no()).expect("state").len(), 1);
        assert_eq!(world.letters(Some(id)).len(), 1);
        assert_eq!(world.row(id).status, RunStatus::Completed);
    }
}

fn a_live_run_is_not_deleted(world: &World) {
    for id in [world.running(), world.parked(None)] {
        let status = world.row(id).status;
        assert_eq!(world.delete(5, delete(id)), Deleted::Live { run: id, status });
        assert_eq!(world.row(id).status, status);
    }
}

fn a_run_that_ends_in_the_batch_of_its_delete_is_deleted(world: &World) {
    let id = world.running();
    let end = Commit { patch: finish(RunStatus::Failed), ..commit(id) };
    // Commits come first, wherever they stand.
    let writes = vec![Write::Delete(Box::new(delete(id))), Write::Commit(Box::new(end))];
    let outcomes = world.batch(5, writes);
    assert_eq!(outcomes[0], Outcome::Deleted(Deleted::Done { run: id }));
    assert_eq!(world.store.run(&Target::Id(id)).expect("run"), None);
}

fn a_run_that_ended_too_recently_is_not_deleted(world: &World) {
    let (id, _) = world.rich("k"); // It ended at 1.
    let before = |ms| Delete { finished_before: Some(at(ms)), ..delete(id) };
    assert_eq!(world.delete(5, before(1)), Deleted::TooRecent { run: id });
    assert_eq!(world.row(id).status, RunStatus::Completed);
    assert_eq!(world.delete(5, before(2)), Deleted::Done { run: id });
}

fn the_key_of_a_deleted_run_is_kept_for_its_window(world: &World) {
    let (id, _) = world.rich("k");
    let kept = Delete { key_kept_until: Some(at(100)), ..delete(id) };
    world.delete(5, kept);
    let by_key = Target::Key { workflow: "checkout".to_owned(), key: "k".to_owned() };
    assert_eq!(world.store.run(&by_key).expect("run"), None);
    let new = || NewRun { key: Some("k".to_owned()), ..world.new_run() };
    let refused =
        Outcome::Refused(Refusal::KeyUsed { run: id, deleted_at: at(5), kept_until: at(100) });
    assert_eq!(world.one(6, Write::Start(Box::new(new()))), refused);
    world.sweep(99);
    assert_eq!(world.one(99, Write::Start(Box::new(new()))), refused);
    let other = NewRun { workflow: "refund".into(), ..new() };
    assert!(!world.start(other).attached, "keys are per workflow");
    let Outcome::Started(started) = world.one(100, Write::Start(Box::new(new()))) else {
        panic!("the window is over");
    };
    assert!(!started.attached);
    world.sweep(1_000);
    let found = world.store.run(&by_key).expect("run").expect("a run");
    assert_eq!(found.id, started.id, "a key in use is not swept");
}

/// A key stands under the workflow that its run began as. A delete looked for it under the workflow
/// that the run was last, so it removed another run's key and left its own leading to nothing.
fn a_run_that_continued_as_another_workflow_leaves_with_its_own_key(world: &World) {
    let keyed = |workflow: &str| NewRun {
        workflow: workflow.into(),
        key: Some("k".to_owned()),
        ..world.new_run()
    };
    let by_key = |workflow: &str| {
        let target = Target::Key { workflow: workflow.to_owned(), key: "k".to_owned() };
        let found = world.store.run(&target).expect("run");
        found.map(|row| row.id)
    };
    let other = world.start(keyed("refund")).id;
    for kept_until in [None, Some(at(100))] {
        let id = world.start(keyed("checkout")).id;
        world.accept(Commit {
            patch: Patch::Continue {
                workflow: "refund".into(),
                version: 1,
                pool: "default".into(),
                input: Vec::new(),
            },
            ..commit(id)
        });
        world.accept(Commit { generation: 2, patch: finish(RunStatus::Completed), ..commit(id) });
        assert_eq!(by_key("checkout"), Some(id));
        let delete = Delete { key_kept_until: kept_until, ..delete(id) };
        assert_eq!(world.delete(5, delete), Deleted::Done { run: id });
        assert_eq!(by_key("checkout"), None, "its key has gone with it");
        assert_eq!(by_key("refund"), Some(other), "the key of another stays");
        let again = world.one(6, Write::Start(Box::new(keyed("checkout"))));
        match kept_until {
            None => {
                let Outcome::Started(started) = again else {
                    panic!("its key is free: {again:?}");
                };
                assert!(!started.attached);
                world.finish(started.id);
                world.delete(7, self::delete(started.id));
            }
            Some(kept_until) => assert_eq!(
                again,
                Outcome::Refused(Refusal::KeyUsed { run: id, deleted_at: at(5), kept_until })
            ),
        }
    }
}

fn a_key_that_is_not_kept_is_free_at_once(world: &World) {
    let (id, _) = world.rich("k");
    world.delete(5, delete(id));
    let started = world.start(NewRun { key: Some("k".to_owned()), ..world.new_run() });
    assert!(!started.attached);
}

fn dead_letters_of_others_keep_their_numbers(world: &World) {
    let (first, _) = world.rich("a");
    let (second, _) = world.rich("b");
    let kept = world.letters(Some(second));
    world.delete(5, delete(first));
    world.sweep(6);
    let (third, _) = world.rich("c");
    assert_eq!(world.letters(Some(second)), kept);
    let number = |id| world.letters(Some(id))[0].no;
    assert!(number(third) > number(second));
}

fn a_tag_is_replaced_and_removed_by_name(world: &World) {
    let (id, _) = world.rich("k");
    let done = Outcome::Controlled(Controlled::Done { run: id });
    assert_eq!(world.tag(id, "colour", Some("blue")), done);
    assert_eq!(world.tag(id, "size", Some("l")), done);
    assert_eq!(world.found(&tagged("colour", "blue")), [id]);
    assert_eq!(world.found(&tagged("size", "l")), [id]);
    assert!(world.found(&tagged("colour", "red")).is_empty());
    let already =
        Outcome::Controlled(Controlled::Already { run: id, status: RunStatus::Completed });
    assert_eq!(world.tag(id, "size", Some("l")), already);
    assert_eq!(world.tag(id, "colour", None), done);
    assert!(world.found(&tagged("colour", "blue")).is_empty());
    let size = ("size".to_owned(), "l".to_owned());
    assert_eq!(world.row(id).tags, [size]);
    let nobody = world.ids.next(START);
    assert_eq!(world.tag(nobody, "size", None), Outcome::Controlled(Controlled::Unknown));
}

fn a_commit_sets_tags_of_its_run(world: &World) {
    let id = world.running();
    let set = |name: &str, value: Option<&str>| Effect::Tag {
        name: name.to_owned(),
        value: value.map(str::to_owned),
    };
    world.accept(Commit {
        effects: vec![set("phase", Some("one")), set("phase", Some("two"))],
        ..commit(id)
    });
    assert_eq!(world.found(&tagged("phase", "two")), [id]);
    assert!(world.found(&tagged("phase", "one")).is_empty());
    world.accept(Commit {
        effects: vec![set("phase", None), set("last", Some("yes"))],
        patch: finish(RunStatus::Completed),
        ..commit(id)
    });
    assert_eq!(world.row(id).tags, [("last".to_owned(), "yes".to_owned())]);
}

fn a_run_has_a_bound_of_tags(world: &World) {
    let id = world.running();
    let mut limit = None;
    for n in 0..1_000 {
        match world.tag(id, &n.to_string(), Some("x")) {
            Outcome::Controlled(Controlled::Done { .. }) => {}
            Outcome::Refused(Refusal::TagsFull { limit: most }) => {
                assert_eq!(most, n);
                limit = Some(most);
                break;
            }
            other => panic!("{other:?}"),
        }
    }
    let limit = limit.expect("there is a bound");
    assert_eq!(world.row(id).tags.len(), limit);
    assert!(matches!(world.tag(id, "0", Some("y")), Outcome::Controlled(Controlled::Done { .. })));
}

pub(super) fn fork_of(new: NewRun) -> Fork {
    Fork {
        new,
        history: vec![put("b", "2"), put("a", "1")],
        last_number: 7,
        state: vec![("s".to_owned(), b"1".to_vec())],
    }
}

fn a_fork_begins_with_its_history(world: &World) {
    let fork = fork_of(world.new_run());
    let id = fork.new.id;
    let Outcome::Started(started) = world.one(0, Write::Fork(Box::new(fork))) else {
        panic!("it is answered as a start");
    };
    assert_eq!((started.id, started.attached), (id, false));
    assert!(!started.claimed, "it has a history to be loaded");
    assert_eq!(started.available_at, Some(START));
    assert_eq!(world.due(0), [id]);
    let loaded = world.store.load(id.no()).expect("load").expect("a run");
    assert_eq!(loaded.history, [put("a", "1"), put("b", "2")]);
    assert_eq!(loaded.row.last_number, 7);
    assert_eq!(world.store.state(id.no()).expect("state"), [("s".to_owned(), b"1".to_vec())]);
    let next = |last_number| Commit {
        last_number,
        numbers: 1,
        patch: Patch::Run { inbox_seq: 0 },
        ..commit(id)
    };
    assert_eq!(world.refuse(next(1)), Refusal::Gap { stored: 7 });
    world.accept(next(8));
    assert_eq!(world.row(id).status, RunStatus::Running);
}

fn a_fork_with_a_used_key_attaches(world: &World) {
    let (id, _) = world.rich("k");
    let fork = fork_of(NewRun { key: Some("k".to_owned()), ..world.new_run() });
    let new = fork.new.id;
    let Outcome::Started(started) = world.one(0, Write::Fork(Box::new(fork))) else {
        panic!("it is answered as a start");
    };
    assert_eq!((started.id, started.attached), (id, true));
    assert_eq!(world.keys(id).len(), 20, "nothing is written into it");
    assert_eq!(world.store.load(new.no()).expect("load"), None);
}

fn ended_runs_are_found_in_the_order_of_their_ends(world: &World) {
    let runs: Vec<RunId> = (0..5).map(|_| world.running()).collect();
    let end = |id, ms, status| {
        let commit = Commit { patch: finish(status), ..commit(id) };
        world.one(ms, Write::Commit(Box::new(commit)))
    };
    end(runs[2], 10, RunStatus::Failed);
    end(runs[0], 20, RunStatus::Failed);
    end(runs[1], 30, RunStatus::Completed);
    end(runs[3], 40, RunStatus::Failed);
    let find = |status, before, limit| {
        let store = &world.store;
        let found = store.finished_before("checkout", status, at(before), limit);
        found.expect("finished_before")
    };
    let failed = [(runs[2], at(10)), (runs[0], at(20)), (runs[3], at(40))];
    assert_eq!(find(RunStatus::Failed, 41, 10), failed);
    assert_eq!(find(RunStatus::Failed, 40, 10), failed[..2]);
    assert_eq!(find(RunStatus::Failed, 41, 1), failed[..1]);
    assert_eq!(find(RunStatus::Completed, 41, 9), [(runs[1], at(30))]);
    assert!(find(RunStatus::Cancelled, 41, 9).is_empty());
    assert!(find(RunStatus::Running, 41, 9).is_empty());
    let other = world.store.finished_before("refund", RunStatus::Failed, at(41), 9);
    assert!(other.expect("finished_before").is_empty());
    world.delete(50, delete(runs[2]));
    assert_eq!(find(RunStatus::Failed, 41, 10), failed[1..]);
}

fn filters_know_versions_keys_and_ends(world: &World) {
    let start = |key: Option<&str>, version, workflow: &str| {
        let new = NewRun {
            key: key.map(str::to_owned),
            version,
            workflow: workflow.into(),
            ..world.new_run()
        };
        world.start(new).id
    };
    let a = start(Some("order-1"), 1, "checkout");
    let b = start(Some("order-22"), 2, "checkout");
    let c = start(Some("orders"), 1, "checkout");
    let d = start(Some("order-1"), 1, "refund");
    let e = start(None, 1, "checkout");
    world.finish(a); // At 1.
    let any = Filter::default;
    let of = |filter: Filter| {
        let count = world.store.count(&filter).expect("count");
        let found = world.found(&filter);
        assert_eq!(count, found.len() as u64);
        found
    };
    let prefix = |prefix: &str| Filter { key_prefix: Some(prefix.to_owned()), ..any() };
    assert_eq!(of(prefix("order-")), [d, b, a]);
    assert_eq!(of(prefix("order")), [d, c, b, a]);
    assert_eq!(of(prefix("")), [d, c, b, a]);
    assert!(of(prefix("order-1x")).is_empty());
    let checkout = |filter| Filter { workflow: Some("checkout".to_owned()), ..filter };
    assert_eq!(of(checkout(prefix("order-"))), [b, a]);
    let version = Filter { version: Some(2), ..any() };
    assert_eq!(of(version), [b]);
    let ended = |from: Option<i64>, before: Option<i64>| Filter {
        finished_from: from.map(at),
        finished_before: before.map(at),
        ..any()
    };
    assert_eq!(of(ended(Some(1), None)), [a]);
    assert_eq!(of(ended(None, Some(2))), [a]);
    assert!(of(ended(Some(2), None)).is_empty());
    assert!(of(ended(None, Some(1))).is_empty());
    assert_eq!(of(any()), [e, d, c, b, a]);
}

fn finding_is_listing_without_rows(world: &World) {
    let runs: Vec<RunId> = (0..5).map(|_| world.running()).collect();
    let filter = Filter::default();
    let page = |after: Option<RunId>, limit| {
        let after = after.map(RunId::no);
        let rows = world.store.list(&filter, after, limit).expect("list");
        let found = world.store.find(&filter, after, limit).expect("find");
        let listed: Vec<RunId> = rows.into_iter().map(|row| row.id).collect();
        assert_eq!(found, listed);
        found
    };
    assert_eq!(page(None, 2), [runs[4], runs[3]]);
    assert_eq!(page(Some(runs[3]), 2), [runs[2], runs[1]]);
    assert_eq!(page(Some(runs[1]), 2), [runs[0]]);
}
