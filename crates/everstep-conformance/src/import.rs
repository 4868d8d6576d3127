//! Runs from other stores, and the list of paused ones.

use super::{AT_ONCE, Check, World, at};
use everstep::{RunId, ShardId, store::*, testing::internal};

pub(super) const CHECKS: &[(&str, Check)] = checks![
    an_imported_run_has_everything_it_had,
    an_imported_run_that_was_in_memory_is_due,
    an_import_beside_its_id_or_key_changes_nothing,
    a_deleted_run_comes_back_by_an_import,
    paused_runs_are_paged_by_number,
];

/// A run that another store has had, with something in every field.
fn other(world: &World, status: RunStatus) -> ImportedRun {
    let new = world.new_run();
    let terminal = status.is_terminal();
    ImportedRun {
        row: RunRow {
            id: new.id,
            workflow: "moved".into(),
            version: 3,
            key: Some(format!("key {}", new.id)),
            pool: "default".into(),
            shard: new.id.shard_in(PoolNo::DEFAULT),
            status,
            ending: (status == RunStatus::RollingBack).then_some(RunStatus::Failed),
            generation: 4,
            available_at: (status == RunStatus::Sleeping).then_some(at(77)),
            deadline_at: Some(at(99)),
            created_at: at(-50),
            updated_at: at(-40),
            finished_at: terminal.then_some(at(-40)),
            attempts: 2,
            recoveries: 5,
            inbox_seq: 9,
            cancel_requested: None,
            last_number: 6,
            waiting: Some("words".to_owned()),
            tags: vec![("team".to_owned(), "tea".to_owned())],
            trace: None,
            parent: None,
            resume_at: (status == RunStatus::Paused).then_some(at(88)),
            input: vec![1],
            output: terminal.then(|| vec![2]),
            error: None,
        },
        history: vec![Put { key: vec![1], value: vec![2] }],
        inbox: vec![
            InboxRow {
                on_end: None,
                seq: 8,
                kind: InboxKind::Message,
                name: "hello".to_owned(),
                body: vec![3],
                wait: None,
                request: None,
                sent_at: at(-45),
            },
            InboxRow {
                on_end: None,
                seq: 9,
                kind: InboxKind::Event,
                name: String::new(),
                body: vec![4],
                wait: Some(vec![1]),
                request: None,
                sent_at: at(-44),
            },
        ],
        state: vec![("seen".to_owned(), vec![5])],
    }
}

fn import(world: &World, run: &ImportedRun) -> Imported {
    match world.one(10, Write::Import(Box::new(run.clone()))) {
        Outcome::Imported(imported) => imported,
        outcome => panic!("an import is answered by {outcome:?}"),
    }
}

fn an_imported_run_has_everything_it_had(world: &World) {
    for status in [RunStatus::Sleeping, RunStatus::Completed, RunStatus::Paused] {
        let mut run = other(world, status);
        run.row.pool = "elsewhere".into();
        let id = run.row.id;
        let available_at = run.row.available_at;
        assert_eq!(import(world, &run), Imported::Done { available_at });
        let loaded = world.store.load(id.no()).expect("load").expect("the run");
        let mut row = run.row.clone();
        (row.updated_at, row.recoveries) = (at(10), 0);
        // The first pool after `default` in this store.
        row.shard = id.shard_in(PoolNo(1));
        // How many numbers a live run has is known to its next owner alone.
        row.last_number = if status.is_terminal() { 6 } else { 0 };
        assert_eq!(loaded.row, row);
        assert_eq!(loaded.history, run.history);
        assert_eq!(loaded.inbox, run.inbox);
        assert_eq!(world.store.state(id.no()).expect("state"), run.state);
        let by_key =
            Target::Key { workflow: "moved".to_owned(), key: row.key.clone().unwrap_or_default() };
        let found = world.store.run(&by_key).expect("run").expect("by key");
        assert_eq!(found.id, id);
    }
    let filter = Filter { tags: vec![("team".to_owned(), "tea".to_owned())], ..Filter::default() };
    assert_eq!(world.store.count(&filter).expect("count"), 3);
}

fn an_imported_run_that_was_in_memory_is_due(world: &World) {
    let now = Some(AT_ONCE);
    let cases = [
        (RunStatus::Running, RunStatus::Pending, now),
        (RunStatus::Pending, RunStatus::Pending, now),
        (RunStatus::RollingBack, RunStatus::RollingBack, now),
        (RunStatus::Sleeping, RunStatus::Sleeping, Some(at(77))),
        (RunStatus::Paused, RunStatus::Paused, None),
        (RunStatus::Failed, RunStatus::Failed, None),
    ];
    let mut due = Vec::new();
    for (before, after, available_at) in cases {
        let run = other(world, before);
        assert_eq!(import(world, &run), Imported::Done { available_at });
        let row = world.row(run.row.id);
        assert_eq!((row.status, row.available_at), (after, available_at));
        if available_at == now {
            due.push(row.id);
        }
    }
    let found = world.due(10);
    assert_eq!(found, due);
    // Its next owner may go on from any number.
    let pending = world.row(due[0]);
    let mut commit = internal::commit_of_row(&pending, Patch::Run { inbox_seq: 9 });
    (commit.last_number, commit.numbers) = (7, 1);
    let outcome = world.commit(commit);
    assert_eq!(outcome, Outcome::Committed(Vec::new()));
}

fn an_import_beside_its_id_or_key_changes_nothing(world: &World) {
    let run = other(world, RunStatus::Sleeping);
    import(world, &run);
    let before = world.store.load(run.row.id.no()).expect("load");
    let mut changed = run.clone();
    changed.row.input = vec![9];
    changed.history.clear();
    assert_eq!(import(world, &changed), Imported::IdTaken);
    assert_eq!(world.store.load(run.row.id.no()).expect("load"), before);
    let mut same_key = other(world, RunStatus::Sleeping);
    same_key.row.key.clone_from(&run.row.key);
    let taken = Imported::KeyTaken { run: run.row.id.no() };
    assert_eq!(import(world, &same_key), taken);
    let id = same_key.row.id;
    assert_eq!(world.store.load(id.no()).expect("load"), None);
    assert_eq!(world.store.count(&Filter::default()).expect("count"), 1);
}

/// The key of a deleted run is kept for a while, so that nobody starts it again by mistake; an import
/// of that run is none. What is left of the deleted one must be gone first, or it would take the
/// imported one along.
fn a_deleted_run_comes_back_by_an_import(world: &World) {
    let run = other(world, RunStatus::Completed);
    import(world, &run);
    let id = run.row.id;
    let delete =
        Delete { target: Target::Id(id), finished_before: None, key_kept_until: Some(at(100)) };
    let deleted = world.one(11, Write::Delete(Box::new(delete)));
    assert_eq!(deleted, Outcome::Deleted(Deleted::Done { run: id }));
    assert_eq!(import(world, &run), Imported::IdTaken);
    while world.store.sweep(at(12), 1_000).expect("sweep") {}
    let available_at = None;
    assert_eq!(import(world, &run), Imported::Done { available_at });
    while world.store.sweep(at(101), 1_000).expect("sweep") {}
    let loaded = world.store.load(id.no()).expect("load").expect("the run");
    assert_eq!(loaded.history, run.history);
    let by_key =
        Target::Key { workflow: "moved".to_owned(), key: run.row.key.clone().unwrap_or_default() };
    let found = world.store.run(&by_key).expect("run").expect("by key");
    assert_eq!(found.id, id);
}

fn paused_runs_are_paged_by_number(world: &World) {
    let paused = |id: RunId| PausedRun {
        id,
        workflow: "moved".into(),
        version: 3,
        reason: Some("words".to_owned()),
    };
    let mut runs: Vec<RunId> = (0..5)
        .map(|_| {
            let run = other(world, RunStatus::Paused);
            import(world, &run);
            run.row.id
        })
        .collect();
    import(world, &other(world, RunStatus::Sleeping));
    // One that is being cancelled is due, and its owner sees to it.
    let cancelled = runs.remove(2);
    let cancel = Control::Cancel { rollback: false };
    world.one(11, Write::Control(Target::Id(cancelled), cancel));
    let all: Vec<PausedRun> = runs.iter().copied().map(paused).collect();
    let page = |shards: &ShardSet, after: Option<RunId>, limit| {
        let after = after.map(RunId::no);
        world.store.paused(shards, after, limit).expect("paused")
    };
    assert_eq!(page(&ShardSet::of_default_pool(), None, 10), all);
    assert_eq!(page(&ShardSet::of_default_pool(), None, 2), all[..2]);
    assert_eq!(page(&ShardSet::of_default_pool(), Some(runs[1]), 10), all[2..]);
    assert_eq!(page(&ShardSet::EMPTY, None, 10), []);
    let one: ShardSet = [runs[3].shard_in(PoolNo::DEFAULT)].into_iter().collect();
    let of_shard =
        |shard: ShardId| runs.iter().filter(move |id| id.shard_in(PoolNo::DEFAULT) == shard);
    let expected: Vec<_> =
        of_shard(runs[3].shard_in(PoolNo::DEFAULT)).copied().map(paused).collect();
    assert_eq!(page(&one, None, 10), expected);
}
