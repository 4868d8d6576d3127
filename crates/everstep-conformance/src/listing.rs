//! Pages of runs: whatever leads to them, they are the runs that match, newest first.

use super::*;

pub(super) const CHECKS: &[(&str, Check)] = checks![
    lists_are_newest_first_and_paged,
    filters_must_all_hold,
    pages_are_the_runs_that_match_newest_first,
    runs_are_counted_by_what_they_are_found_by,
];

fn lists_are_newest_first_and_paged(world: &World) {
    let mut ids = (0..7).map(|_| world.running()).collect::<Vec<_>>();
    ids.reverse();
    let (mut read, mut after) = (Vec::new(), None);
    loop {
        let page = world.store.list(&Filter::default(), after, 3).expect("list");
        assert!(page.len() <= 3);
        let Some(last) = page.last() else { break };
        after = Some(last.id.no());
        read.extend(page.iter().map(|row| row.id));
    }
    assert_eq!(read, ids);
    let first = &world.store.list(&Filter::default(), None, 1).expect("list")[0];
    assert_eq!(*first, world.row(ids[0]));
}

fn filters_must_all_hold(world: &World) {
    let tag = |name: &str, value: &str| (name.to_owned(), value.to_owned());
    let start = |workflow: &str, tags: &[(String, String)], ms| {
        let new = NewRun { workflow: workflow.into(), tags: tags.to_vec(), ..world.new_run() };
        let id = new.id;
        world.batch(ms, vec![Write::Start(Box::new(new))]);
        id
    };
    let (blue, large) = (tag("colour", "blue"), tag("size", "large"));
    let a = start("checkout", &[blue.clone(), large.clone()], 10);
    let b = start("refund", std::slice::from_ref(&blue), 20);
    let c = start("checkout", &[tag("colour", "red"), tag("size", "blue")], 30);
    world.accept(Commit { patch: finish(RunStatus::Failed), ..commit(c) });
    let found = |filter: Filter| {
        let rows = world.store.list(&filter, None, 100).expect("list");
        assert_eq!(world.store.count(&filter).expect("count"), rows.len() as u64);
        rows.into_iter().map(|row| row.id).collect::<Vec<_>>()
    };
    let any = Filter::default;
    assert_eq!(found(any()), [c, b, a]);
    assert_eq!(found(Filter { workflow: Some("checkout".to_owned()), ..any() }), [c, a]);
    assert_eq!(found(Filter { tags: vec![blue.clone()], ..any() }), [b, a]);
    assert_eq!(found(Filter { tags: vec![blue.clone(), large], ..any() }), [a]);
    assert_eq!(found(Filter { statuses: vec![RunStatus::Failed], ..any() }), [c]);
    let statuses = vec![RunStatus::Failed, RunStatus::Running];
    assert_eq!(found(Filter { statuses: statuses.clone(), ..any() }), [c, b, a]);
    assert_eq!(found(Filter { created_from: Some(at(20)), ..any() }), [c, b]);
    assert_eq!(found(Filter { created_before: Some(at(20)), ..any() }), [a]);
    let all = Filter {
        statuses,
        workflow: Some("refund".to_owned()),
        tags: vec![blue],
        created_from: Some(at(20)),
        created_before: Some(at(21)),
        ..any()
    };
    assert_eq!(found(all.clone()), [b]);
    assert!(found(Filter { workflow: Some("checkout".to_owned()), ..all }).is_empty());
}

/// Runs of two workflows in every status, with keys and tags; some of the oldest have a tag, a key and
/// a workflow that no other has.
fn fill(world: &World) {
    for no in 0..24 {
        let workflow = match no {
            0..3 => "once",
            _ if no % 2 == 0 => "even",
            _ => "odd",
        };
        let mut tags = vec![("third".to_owned(), (no % 3).to_string())];
        if no < 3 {
            tags.push(("oldest".to_owned(), "yes".to_owned()));
        }
        let has_time = no % 8 == 0;
        let new = NewRun {
            workflow: workflow.into(),
            version: 1 + no % 2,
            key: (no % 5 != 0).then(|| format!("{workflow}-{no:02}")),
            tags,
            available_at: has_time.then(|| at(1_000)),
            claim: !has_time,
            ..world.new_run()
        };
        let id = new.id;
        world.start(new);
        let patch = match no % 8 {
            0 | 1 => continue,
            2 => park(Some(at(1_000))),
            3 | 4 => park(None),
            5 => finish(RunStatus::Completed),
            6 => finish(RunStatus::Failed),
            _ => finish(RunStatus::Cancelled),
        };
        let commit = Commit {
            inbox_seq: matches!(patch, Patch::Park { .. }).then_some(0),
            patch,
            ..commit(id)
        };
        let outcome = world.one(10 + i64::from(no), Write::Commit(Box::new(commit)));
        assert_eq!(outcome, Outcome::Committed(Vec::new()));
        if no % 8 == 4 {
            world.control(id, Control::Pause);
        }
    }
}

type Matches = fn(&RunRow) -> bool;

/// Filters, and what they mean.
fn filters() -> Vec<(Filter, Matches)> {
    let all = Filter::new;
    vec![
        (all(), |_| true),
        (all().workflow("even"), |row| &*row.workflow == "even"),
        (all().workflow("once"), |row| &*row.workflow == "once"),
        (all().workflow("none"), |_| false),
        (all().status(RunStatus::Running), |row| row.status == RunStatus::Running),
        (all().status(RunStatus::Pending), |row| row.status == RunStatus::Pending),
        (all().status(RunStatus::Sleeping), |row| row.status == RunStatus::Sleeping),
        (all().status(RunStatus::Paused).status(RunStatus::Failed), |row| {
            matches!(row.status, RunStatus::Paused | RunStatus::Failed)
        }),
        (all().workflow("odd").status(RunStatus::Completed), |row| {
            &*row.workflow == "odd" && row.status == RunStatus::Completed
        }),
        (all().status(RunStatus::Sleeping).version(2), |row| {
            row.status == RunStatus::Sleeping && row.version == 2
        }),
        (all().tag("third", "1"), |row| row.tags[0].1 == "1"),
        (all().tag("third", "1").tag("oldest", "yes"), |row| {
            row.tags[0].1 == "1" && row.tags.len() > 1
        }),
        (all().tag("oldest", "yes").workflow("even"), |_| false),
        (all().key_prefix("once-"), |row| row.key.is_some() && &*row.workflow == "once"),
        (all().key_prefix("e"), |row| row.key.is_some() && &*row.workflow == "even"),
        (all().key_prefix("odd-1").workflow("odd"), |row| {
            row.key.as_ref().is_some_and(|it| it.starts_with("odd-1"))
        }),
        (all().key_prefix("odd-1").status(RunStatus::Failed), |row| {
            let key = row.key.as_ref();
            key.is_some_and(|it| it.starts_with("odd-1")) && row.status == RunStatus::Failed
        }),
        (all().finished_from(at(20)), |row| row.finished_at.is_some_and(|it| it >= at(20))),
        (all().finished_from(at(15)).finished_before(at(24)), |row| {
            let end = row.finished_at;
            end.is_some_and(|it| (at(15)..at(24)).contains(&it))
        }),
        (all().finished_before(at(20)).workflow("odd"), |row| {
            row.finished_at.is_some_and(|it| it < at(20)) && &*row.workflow == "odd"
        }),
    ]
}

fn pages_are_the_runs_that_match_newest_first(world: &World) {
    fill(world);
    let everything = world.store.list(&Filter::new(), None, 100).expect("list");
    assert_eq!(everything.len(), 24);
    let numbers: Vec<_> = everything.iter().map(|row| row.id.no()).collect();
    assert!(numbers.is_sorted_by(|a, b| a > b));
    for (filter, matches) in filters() {
        let wanted = everything.iter().filter(|row| matches(row));
        let wanted: Vec<RunId> = wanted.map(|row| row.id).collect();
        for limit in [1, 2, 7, 100] {
            let (mut listed, mut found, mut after) = (Vec::new(), Vec::new(), None);
            loop {
                let page = world.store.list(&filter, after, limit).expect("list");
                let ids = world.store.find(&filter, after, limit).expect("find");
                listed.extend(page.iter().map(|row| row.id));
                found.extend(ids);
                if page.len() < limit {
                    break;
                }
                after = page.last().map(|row| row.id.no());
            }
            assert_eq!(listed, wanted, "{limit} at a time: {filter:?}");
            assert_eq!(found, wanted, "{limit} at a time: {filter:?}");
        }
    }
}

fn runs_are_counted_by_what_they_are_found_by(world: &World) {
    fill(world);
    let everything = world.store.list(&Filter::new(), None, 100).expect("list");
    for (filter, matches) in filters() {
        let mut wanted = StatusCounts::default();
        let matching = everything.iter().filter(|row| matches(row));
        matching.for_each(|row| wanted.add(row.status, 1));
        let counts = world.store.count_by_status(&filter).expect("counts");
        assert_eq!(counts, wanted, "{filter:?}");
        let count = world.store.count(&filter).expect("count");
        assert_eq!(count, wanted.total(), "{filter:?}");
    }
}
