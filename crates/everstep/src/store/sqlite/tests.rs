//! What is true of SQLite files in particular; the contract itself is in the conformance suite.

use std::{sync::mpsc, thread, time::Instant};

use rusqlite::Connection;

use super::{testing::Directory, *};
use crate::run_id::RunIds;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);
const LEASE: Duration = Duration::from_secs(10);

fn creating() -> SqliteOptions {
    SqliteOptions { create: true, ..SqliteOptions::default() }
}

fn create(path: &Path) -> SqliteStore {
    let store = SqliteStore::open_with(path, creating()).expect("open");
    store.migrate().expect("migrate");
    store
}

fn register(store: &SqliteStore, id: u128, now: Timestamp) -> Fence {
    let (id, name) = (Uuid::from_u128(id), format!("host/{id}"));
    let runner = NewRunner::new(id, name, now, LEASE);
    let fence = store.register_runner(&runner).expect("register_runner");
    store.take_shards(fence, now, &ShardSet::of_default_pool(), &[]).expect("take_shards");
    fence
}

fn new_run(id: RunId) -> NewRun {
    NewRun {
        id,
        workflow: "checkout".into(),
        version: 1,
        key: None,
        pool: "default".into(),
        available_at: None,
        deadline_at: None,
        tags: Vec::new(),
        trace: None,
        input: b"input".to_vec(),
        parent: None,
        claim: true,
    }
}

fn commit(id: RunId, key: &str, patch: Patch) -> Commit {
    Commit {
        run: id.no(),
        generation: 1,
        inbox_seq: None,
        results_only: false,
        last_number: 0,
        numbers: 0,
        deletes: Vec::new(),
        puts: vec![Put { key: key.into(), value: vec![7; 200] }],
        consumed: Vec::new(),
        state: Vec::new(),
        effects: Vec::new(),
        patch,
    }
}

fn message(id: RunId) -> Delivery {
    Delivery {
        target: Target::Id(id),
        name: "approval".to_owned(),
        body: b"yes".to_vec(),
        dedupe: None,
        request: None,
        inbox_max: 100_000,
        on_end: OnEnd::Error,
    }
}

fn batch(fence: Fence, writes: Vec<Write>) -> Batch {
    Batch { fence: Some(fence), now: NOW, writes }
}

fn one(store: &SqliteStore, fence: Fence, write: Write) -> Outcome {
    store.commit(&batch(fence, vec![write])).expect("commit").outcomes.pop().expect("one outcome")
}

fn start(store: &SqliteStore, fence: Fence, ids: &RunIds) -> RunId {
    let id = ids.next(NOW);
    let outcome = one(store, fence, Write::Start(Box::new(new_run(id))));
    assert!(matches!(outcome, Outcome::Started(_)), "{outcome:?}");
    id
}

fn open_error(path: &Path) -> StoreError {
    SqliteStore::open(path).expect_err("it cannot be opened")
}

#[test]
fn a_missing_file_is_an_error_unless_it_may_be_created() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let error = open_error(&path);
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    let cause = std::error::Error::source(&error).expect("a cause").to_string();
    assert_eq!(cause, "there is no such file");
    assert!(!path.exists(), "opening must not create it");
    create(&path);
    let store = SqliteStore::open(&path).expect("it is there now");
    assert_eq!(store.count(&Filter::default()).expect("no migration is needed"), 0);
    let nowhere = SqliteStore::open_with(directory.path("no/such/app.db"), creating());
    assert!(matches!(nowhere, Err(StoreError::CannotOpen { .. })), "{nowhere:?}");
}

#[test]
fn an_empty_file_can_be_migrated_by_anybody_and_used_only_then() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    std::fs::write(&path, b"").expect("an empty file");
    let client = SqliteStore::open(&path).expect("open");
    let error = client.count(&Filter::default()).expect_err("it is empty");
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    let error = client.commit(&Batch::default()).expect_err("it is empty");
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    create(&path);
    assert_eq!(client.count(&Filter::default()).expect("now it has tables"), 0);
}

#[test]
fn a_file_of_a_later_version_is_refused() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let older = create(&path);
    let fence = register(&older, 1, NOW);
    let conn = Connection::open(&path).expect("connect");
    let known = schema::FORMATS.latest();
    conn.execute("UPDATE everstep_format SET version = ?1", [known + 1]).expect("a later version");
    assert!(matches!(open_error(&path), StoreError::TooNew { found, known: k, .. }
        if found == known + 1 && k == known));
    // A program that has it open while another migrates it stops as well.
    let error = older.commit(&batch(fence, Vec::new())).expect_err("too new");
    assert!(matches!(error, StoreError::TooNew { .. }), "{error:?}");
    let error = older.migrate().expect_err("too new");
    assert!(matches!(error, StoreError::TooNew { .. }), "{error:?}");
}

#[test]
fn a_file_that_is_no_database_is_refused_and_untouched() {
    let directory = Directory::new();
    let path = directory.path("text");
    let text = "Dear diary, today I have learned about databases. ".repeat(100);
    std::fs::write(&path, &text).expect("write");
    for options in [SqliteOptions::default(), creating()] {
        let error = SqliteStore::open_with(&path, options).expect_err("foreign");
        assert!(matches!(error, StoreError::Foreign { .. }), "{error:?}");
    }
    assert_eq!(std::fs::read_to_string(&path).expect("read"), text);
}

/// Tables with the names that ours have without their prefix, and the two numbers of the header that
/// migration tools use, belong to the application.
#[test]
fn a_file_with_tables_of_an_application_gets_ours_beside_them() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let conn = Connection::open(&path).expect("connect");
    conn.execute_batch(
        "PRAGMA application_id = 7; PRAGMA user_version = 3; CREATE TABLE runs(a); \
         CREATE TABLE events(a); INSERT INTO runs(a) VALUES ('a marathon')",
    )
    .expect("an application");
    let client = SqliteStore::open(&path).expect("open");
    let error = client.count(&Filter::default()).expect_err("no tables of ours");
    assert!(matches!(error, StoreError::CannotOpen { .. }), "{error:?}");
    let ours = "SELECT count(*) FROM sqlite_schema WHERE name LIKE 'everstep%'";
    let read = |sql: &str| -> i64 { conn.query_row(sql, [], |row| row.get(0)).expect(sql) };
    assert_eq!(read(ours), 0, "a client makes no tables");
    client.migrate().expect("migrate");
    assert!(read(ours) > 30);
    let fence = register(&client, 1, NOW);
    start(&client, fence, &RunIds::new(1));
    assert_eq!(client.count(&Filter::default()).expect("count"), 1);
    assert_eq!(read("SELECT count(*) FROM runs WHERE a = 'a marathon'"), 1);
    assert_eq!(read("PRAGMA application_id"), 7);
    assert_eq!(read("PRAGMA user_version"), 3);
}

#[test]
fn a_file_with_another_schema_fingerprint_is_refused_and_untouched() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    drop(create(&path));
    let conn = Connection::open(&path).expect("connect");
    conn.execute("UPDATE everstep_format SET fingerprint = 'cafe'", []).expect("another schema");
    drop(conn);
    let before = std::fs::read(&path).expect("read");
    for options in [SqliteOptions::default(), creating()] {
        let error = SqliteStore::open_with(&path, options).expect_err("another schema");
        assert!(matches!(error, StoreError::OtherSchema { .. }), "{error:?}");
        let said = error.to_string();
        assert!(said.contains("cafe") && said.contains("app.db"), "{said}");
    }
    assert!(std::fs::read(&path).expect("read") == before);
    // Files of earlier versions had their mark in the header of the file.
    let older = directory.path("older.db");
    let sql = "PRAGMA application_id = 0x45767273; PRAGMA user_version = 12; CREATE TABLE everstep_runs (a)";
    let made = Connection::open(&older).and_then(|conn| conn.execute_batch(sql));
    made.expect("an older file");
    let error = SqliteStore::open(&older).expect_err("another schema");
    assert!(matches!(error, StoreError::OtherSchema { .. }), "{error:?}");
}

#[test]
fn a_damaged_file_is_called_damaged() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    {
        let store = create(&path);
        let (fence, ids) = (register(&store, 1, NOW), RunIds::new(1));
        for _ in 0..200 {
            start(&store, fence, &ids);
        }
    }
    let whole = std::fs::read(&path).expect("read");
    let damage = |from: usize, to: usize| {
        let mut bytes = whole.clone();
        bytes[from..to].fill(0xA5);
        std::fs::write(&path, bytes).expect("write");
    };
    damage(100, 8_192);
    let error = open_error(&path);
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    // The second page is the root of the first table, `runs`; those of the schema may lie behind it.
    damage(8_192, 16_384);
    let store = SqliteStore::open(&path).expect("its schema is whole");
    let error = store.list(&Filter::default(), None, 10).expect_err("damaged");
    assert!(matches!(error, StoreError::Corrupt { .. }), "{error:?}");
    let write = Write::Start(Box::new(new_run(RunIds::new(2).next(NOW))));
    let error = store.commit(&Batch { writes: vec![write], ..Batch::default() });
    assert!(matches!(error, Err(StoreError::Corrupt { .. })), "{error:?}");
}

const READ_ONLY_DIRECTORY: &str = "EVERSTEP_TEST_READ_ONLY_DIRECTORY";

/// Root may write everywhere, so the test runs itself again as somebody else.
#[cfg(target_os = "linux")]
#[test]
fn a_read_only_directory_is_reported_at_once() {
    use std::os::unix::{fs::PermissionsExt, process::CommandExt};

    if let Some(directory) = std::env::var_os(READ_ONLY_DIRECTORY) {
        return open_in_read_only_directory(Path::new(&directory));
    }
    let directory = Directory::new();
    drop(create(&directory.path("app.db")));
    let set_mode = |mode| {
        std::fs::set_permissions(&directory, PermissionsExt::from_mode(mode)).expect("chmod");
    };
    set_mode(0o555);
    // The program itself may lie where only root can go.
    let program = std::env::temp_dir().join(format!("everstep-{:016x}", crate::seam::random()));
    std::fs::copy(std::env::current_exe().expect("this program"), &program).expect("copy");
    let mut command = std::process::Command::new(&program);
    command.args(["--exact", "store::sqlite::tests::a_read_only_directory_is_reported_at_once"]);
    command.env(READ_ONLY_DIRECTORY, directory.as_ref()).current_dir("/");
    let is_root = std::os::unix::fs::MetadataExt::uid(
        &std::fs::metadata("/proc/self").expect("this process"),
    ) == 0;
    if is_root {
        command.uid(65_534).gid(65_534);
    }
    let output = command.output();
    set_mode(0o755);
    std::fs::remove_file(&program).expect("remove the copy");
    let output = output.expect("run as somebody else");
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(output.status.success() && text.contains("1 passed"), "{text}");
}

#[cfg(target_os = "linux")]
fn open_in_read_only_directory(directory: &Path) {
    let error = SqliteStore::open_with(directory.join("new.db"), creating());
    assert!(matches!(error, Err(StoreError::CannotOpen { .. })), "{error:?}");
    let opened = SqliteStore::open(directory.join("app.db"));
    assert!(matches!(opened, Err(StoreError::ReadOnly { .. })), "{opened:?}");
}

#[test]
fn a_full_disk_loses_nothing_and_work_goes_on() {
    let directory = Directory::new();
    let store = create(&directory.path("app.db"));
    let (fence, ids) = (register(&store, 1, NOW), RunIds::new(1));
    let id = start(&store, fence, &ids);
    store.set_max_page_count(60).expect("a bound");
    let large = |no: u64| {
        let puts = vec![Put { key: no.to_be_bytes().to_vec(), value: vec![1; 50_000] }];
        Write::Commit(Box::new(Commit {
            puts,
            last_number: no,
            numbers: 1,
            ..commit(id, "", Patch::Keep)
        }))
    };
    let mut no = 1;
    let error = loop {
        match store.commit(&batch(fence, vec![large(no)])) {
            Ok(applied) => assert_eq!(applied.outcomes, [Outcome::Committed(Vec::new())]),
            Err(error) => break error,
        }
        no += 1;
    };
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    assert_eq!(error.reaction(), Reaction::Retry);
    let entries = |store: &SqliteStore| store.history(id.no(), None, 1_000).expect("read").len();
    assert_eq!(entries(&store) as u64, no - 1, "nothing of the failed batch is there");
    let error = store.commit(&batch(fence, vec![large(no)])).expect_err("still full");
    assert!(matches!(error, StoreError::Full { .. }), "{error:?}");
    store.set_max_page_count(1_000_000).expect("room again");
    let outcomes = store.commit(&batch(fence, vec![large(no)])).expect("the same batch again");
    assert_eq!(outcomes.outcomes, [Outcome::Committed(Vec::new())]);
    assert_eq!(entries(&store) as u64, no);
}

#[test]
fn a_writer_that_waits_too_long_for_the_lock_says_busy() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    create(&path);
    let options = SqliteOptions { busy_timeout: Duration::from_millis(20), ..creating() };
    let store = SqliteStore::open_with(&path, options).expect("open");
    let other = Connection::open(&path).expect("connect");
    other.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let error = store.commit(&Batch::default()).expect_err("locked");
    assert!(matches!(error, StoreError::Busy { .. }), "{error:?}");
    assert_eq!(store.count(&Filter::default()).expect("readers do not wait"), 0);
    other.execute_batch("COMMIT").expect("release");
    store.commit(&Batch::default()).expect("free again");
}

#[test]
fn what_another_store_has_written_is_seen_by_the_next_batch() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (owner, ids) = (create(&path), RunIds::new(1));
    let client = SqliteStore::open(&path).expect("open");
    let fence = register(&owner, 1, NOW);
    let id = start(&owner, fence, &ids);
    let step = || Write::Commit(Box::new(commit(id, "step", Patch::Keep)));
    assert_eq!(one(&owner, fence, step()), Outcome::Committed(Vec::new()));
    let pause = Write::Control(Target::Id(id), Control::Pause);
    let writes = vec![Write::Deliver(Box::new(message(id))), pause];
    client.commit(&Batch { fence: None, now: NOW, writes }).expect("commit");
    assert_eq!(one(&owner, fence, step()), Outcome::Refused(Refusal::Paused));
    // The numbers that the owner has given since it last wrote the row are not held against it.
    let results = Commit {
        results_only: true,
        last_number: 4,
        numbers: 1,
        ..commit(id, "result", Patch::Keep)
    };
    let outcome = one(&owner, fence, Write::Commit(Box::new(results)));
    assert_eq!(outcome, Outcome::Committed(vec![EffectDone::PutAway]));
}

#[test]
fn two_stores_take_turns_and_a_takeover_fences_the_first() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (first, second) = (create(&path), create(&path));
    let (first_fence, ids) = (register(&first, 1, NOW), RunIds::new(1));
    let id = start(&first, first_fence, &ids);
    const EACH: u64 = 300;
    thread::scope(|scope| {
        for store in [&first, &second] {
            scope.spawn(move || {
                for _ in 0..EACH {
                    let writes = vec![Write::Deliver(Box::new(message(id)))];
                    let batch = Batch { fence: None, now: NOW, writes };
                    let outcomes = store.commit(&batch).expect("commit").outcomes;
                    assert!(matches!(
                        &outcomes[0],
                        Outcome::Delivered(Delivered { receipt: Receipt::Delivered, .. })
                    ));
                }
            });
        }
    });
    let seqs = first.inbox(id.no(), 0).expect("inbox").into_iter().map(|row| row.seq);
    assert!(seqs.eq(1..=2 * EACH), "every message has a place of its own");
    let later = NOW + LEASE;
    let second_fence = register(&second, 2, later);
    let step = || Write::Commit(Box::new(commit(id, "step", Patch::Keep)));
    assert_eq!(one(&first, first_fence, step()), Outcome::Refused(Refusal::Fenced));
    assert_eq!(one(&second, second_fence, step()), Outcome::Committed(Vec::new()));
    assert!(!first.heartbeat(first_fence, later, LEASE).expect("heartbeat"));
}

#[test]
fn another_store_is_woken_within_50_ms() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (first, second) = (create(&path), create(&path));
    let fence = register(&second, 2, NOW);
    let (sender, receiver) = mpsc::channel();
    let wake: WakeFn = Arc::new(move |runs| drop(sender.send((Instant::now(), runs.to_vec()))));
    let guard = second.on_wake(fence.runner, wake).expect("on_wake");
    // Once at least, since the machine may be busy with something else.
    let mut times = (0..1_000).map(|no| {
        let sent = Instant::now();
        first.wake_others(None, &[RunNo(no)]);
        let (woken, runs) = receiver.recv_timeout(Duration::from_secs(60)).expect("woken");
        assert_eq!(runs, [RunNo(no)]);
        woken - sent
    });
    assert!(times.any(|took| took < Duration::from_millis(50)));
    drop(times);
    let sockets = || {
        let names = std::fs::read_dir(&directory).expect("list").map(|file| file.expect("entry"));
        names.filter(|file| file.file_name().to_string_lossy().contains("-wake-")).count()
    };
    assert_eq!(sockets(), 1);
    drop(guard);
    assert_eq!(sockets(), 0);
    first.wake_others(None, &[RunNo(1)]);
}

#[test]
fn committed_runs_are_there_after_the_file_was_opened_again() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let ids = RunIds::new(1);
    let (before, id) = {
        let store = create(&path);
        let fence = register(&store, 1, NOW);
        let id = start(&store, fence, &ids);
        one(&store, fence, Write::Commit(Box::new(commit(id, "step", Patch::Keep))));
        (store.load(id.no()).expect("load"), id)
    };
    let store = SqliteStore::open(&path).expect("open");
    assert_eq!(store.load(id.no()).expect("load"), before);
    assert!(before.is_some_and(|run| run.history.len() == 1));
}

#[test]
fn views_show_words_and_times() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let store = create(&path);
    let (fence, ids) = (register(&store, 1, NOW), RunIds::new(1));
    let id = start(&store, fence, &ids);
    one(&store, fence, Write::Commit(Box::new(commit(id, "step", Patch::Keep))));
    let conn = Connection::open(&path).expect("connect");
    let sql = "SELECT id, workflow, status, created_at, finished_at FROM everstep_view_runs";
    let run = conn.query_row(sql, [], |row| {
        Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?, row.get(4)?))
    });
    let text = |text: &str| text.to_owned();
    let expected =
        (id.to_string(), text("checkout"), text("running"), NOW.to_string(), None::<String>);
    assert_eq!(run.expect("everstep_runs"), expected);
    let sql = "SELECT run, generation, key, size FROM everstep_view_steps";
    let step =
        conn.query_row(sql, [], |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?, row.get(3)?)));
    assert_eq!(step.expect("everstep_steps"), (id.to_string(), 1, text("73746570"), 200));
}

/// A file with a run, its runner, and the number of the run.
#[cfg(unix)]
fn with_a_run(path: &Path) -> (SqliteStore, Fence, RunId) {
    let store = create(path);
    let fence = register(&store, 1, NOW);
    let id = start(&store, fence, &RunIds::new(1));
    (store, fence, id)
}

/// What a runner, a client that writes and a client that reads are told, which must be the same.
#[cfg(unix)]
fn displaced(store: &SqliteStore, fence: Fence, id: RunId) -> String {
    let commit = Write::Commit(Box::new(commit(id, "later", Patch::Keep)));
    let answers = [
        store.heartbeat(fence, NOW, LEASE).map(drop),
        store.commit(&batch(fence, vec![commit])).map(drop),
        store.run(&Target::Id(id)).map(drop),
    ];
    let [beat, write, read] = answers.map(|answer| {
        let error = answer.expect_err("the file is not where it was");
        assert!(matches!(error, StoreError::Displaced { .. }), "{error}");
        assert_eq!(error.reaction(), Reaction::Stop);
        error.to_string()
    });
    assert_eq!((&beat, &beat), (&write, &read));
    beat
}

#[cfg(unix)]
#[test]
fn a_file_that_was_deleted_or_moved_takes_no_more_writes() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (store, fence, id) = with_a_run(&path);
    let elsewhere = directory.path("elsewhere.db");
    std::fs::rename(&path, &elsewhere).expect("move");
    let said = displaced(&store, fence, id);
    assert!(said.contains("app.db") && said.contains("moved away"), "{said}");
    // Nothing was lost: the log is still beside the path.
    std::fs::rename(&elsewhere, &path).expect("move back");
    assert!(store.heartbeat(fence, NOW, LEASE).expect("heartbeat"));
    for suffix in ["", "-wal", "-shm"] {
        std::fs::remove_file(place::beside(&path, suffix)).expect("remove");
    }
    let said = displaced(&store, fence, id);
    assert!(said.contains("restore it from a backup"), "{said}");
}

#[cfg(unix)]
#[test]
fn a_file_that_was_replaced_is_neither_written_nor_read() {
    let directory = Directory::new();
    let (path, other) = (directory.path("app.db"), directory.path("other.db"));
    let (store, fence, id) = with_a_run(&path);
    drop(with_a_run(&other));
    std::fs::rename(&other, &path).expect("replace");
    let said = displaced(&store, fence, id);
    assert!(said.contains("replaced by another file"), "{said}");
    // Nor when a symbolic link stands there, though it leads to the same file: the log of whoever
    // opens it now is elsewhere.
    let (path, moved) = (directory.path("linked.db"), directory.path("moved.db"));
    let (store, fence, id) = with_a_run(&path);
    std::fs::rename(&path, &moved).expect("move");
    std::os::unix::fs::symlink(&moved, &path).expect("symlink");
    displaced(&store, fence, id);
}

#[cfg(unix)]
#[test]
fn a_file_with_a_second_hard_link_is_neither_opened_nor_written() {
    let directory = Directory::new();
    let (path, second) = (directory.path("app.db"), directory.path("second.db"));
    let (store, fence, id) = with_a_run(&path);
    std::fs::hard_link(&path, &second).expect("link");
    let said = displaced(&store, fence, id);
    assert!(said.contains("2 hard links"), "{said}");
    for name in [&path, &second] {
        let error = open_error(name);
        assert!(matches!(error, StoreError::Displaced { .. }), "{error}");
    }
    std::fs::remove_file(&second).expect("unlink");
    assert!(store.heartbeat(fence, NOW, LEASE).expect("heartbeat"));
    drop(SqliteStore::open(&path).expect("one name is left"));
}

#[cfg(unix)]
#[test]
fn a_database_whose_log_was_deleted_takes_no_more_writes() {
    let directory = Directory::new();
    for suffix in ["-wal", "-shm"] {
        let path = directory.path(&format!("app{suffix}.db"));
        let (store, fence, _) = with_a_run(&path);
        std::fs::remove_file(place::beside(&path, suffix)).expect("remove");
        let error = store.heartbeat(fence, NOW, LEASE).expect_err("it is gone");
        let said = error.to_string();
        assert!(said.contains(&format!("lost its `{suffix}` file")), "{said}");
        let error = store.raise_horizon(NOW).expect_err("it is still gone");
        assert!(matches!(error, StoreError::Displaced { .. }), "{error}");
    }
}

/// A client without an engine has no heartbeat.
#[cfg(unix)]
#[test]
fn a_process_that_only_writes_finds_that_the_log_was_deleted() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (store, ..) = with_a_run(&path);
    std::fs::remove_file(place::beside(&path, "-wal")).expect("remove");
    let begun = std::time::Instant::now();
    let error = loop {
        match store.raise_horizon(NOW) {
            Err(error) => break error,
            Ok(()) => assert!(begun.elapsed() < Duration::from_secs(60), "it goes on"),
        }
    };
    assert!(matches!(error, StoreError::Displaced { .. }), "{error}");
}

#[cfg(unix)]
#[test]
fn symbolic_links_to_a_file_are_names_of_one_store() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let (one, two) = (directory.path("one.db"), directory.path("two.db"));
    std::os::unix::fs::symlink(&path, &one).expect("symlink");
    std::os::unix::fs::symlink("one.db", &two).expect("symlink");
    // The file is yet to be made, by the longer way.
    let (store, fence, id) = with_a_run(&two);
    let same = SqliteStore::open(&one).expect("open");
    assert_eq!(store.describe(), same.describe());
    assert_eq!(same.describe(), SqliteStore::open(&path).expect("open").describe());
    assert!(same.run(&Target::Id(id)).expect("run").is_some());
    let (sender, woken) = mpsc::channel();
    let wake: WakeFn = Arc::new(move |runs| drop(sender.send(runs.to_vec())));
    let guard = store.on_wake(fence.runner, wake).expect("on_wake");
    assert!(!same.runner_is_dead(fence.runner));
    same.wake_others(None, &[id.no()]);
    let runs = woken.recv_timeout(Duration::from_secs(60)).expect("woken");
    assert_eq!(runs, [id.no()]);
    drop(guard);
    // The link goes away, and its target stays.
    std::fs::remove_file(&two).expect("remove");
    assert!(store.heartbeat(fence, NOW, LEASE).expect("heartbeat"));
}

/// SQLite deletes the log of a database that is not there, with all commits in it.
#[test]
fn a_log_without_its_database_is_not_opened() {
    let directory = Directory::new();
    let (path, log) = (directory.path("app.db"), directory.path("app.db-wal"));
    let store = create(&path);
    start(&store, register(&store, 1, NOW), &RunIds::new(1));
    let kept = std::fs::read(&log).expect("the log");
    drop(store);
    std::fs::remove_file(&path).expect("remove");
    std::fs::write(&log, &kept).expect("a log that is left over");
    for empty in [false, true] {
        if empty {
            std::fs::write(&path, b"").expect("an empty file");
        }
        let error = SqliteStore::create(&path).expect_err("the log would be lost");
        assert!(error.to_string().contains("app.db-wal"), "{error}");
        assert_eq!(std::fs::read(&log).expect("the log"), kept);
    }
    std::fs::remove_file(&log).expect("remove");
    drop(create(&path));
}

fn log_bytes(path: &Path) -> u64 {
    let log = std::fs::metadata(place::beside(path, "-wal"));
    log.map_or(0, |log| log.len())
}

/// Gives a large entry of a run another value.
fn overwrite(store: &SqliteStore, fence: Fence, id: RunId) -> Result<(), StoreError> {
    // SQLite does not write a page that stays as it is.
    let value = crate::seam::random().to_le_bytes();
    let mut commit = commit(id, "large", Patch::Keep);
    commit.puts[0].value = value.repeat(32 << 10);
    let write = Write::Commit(Box::new(commit));
    store.commit(&batch(fence, vec![write])).map(drop)
}

/// A log of 64 MiB stood beside 1 MiB of data, and filled small disks.
#[test]
fn the_log_stays_small_beside_a_small_database() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let store = SqliteStore::create_unsynced(&path).expect("create");
    store.migrate().expect("migrate");
    let fence = register(&store, 1, NOW);
    let id = start(&store, fence, &RunIds::new(1));
    let mut longest = 0;
    for _ in 0..120 {
        overwrite(&store, fence, id).expect("commit");
        longest = longest.max(log_bytes(&path));
    }
    assert!(longest > 1 << 20, "{longest}");
    assert!(longest < 12 << 20, "{longest}");
}

/// For as long as nothing happened, everything was in the log, and a copy of the file had nothing.
#[test]
fn an_idle_runner_moves_its_log_into_the_file() {
    let directory = Directory::new();
    let (path, copy) = (directory.path("app.db"), directory.path("copy.db"));
    let store = create(&path);
    let fence = register(&store, 1, NOW);
    let id = start(&store, fence, &RunIds::new(1));
    let beats = AtomicU64::new(0);
    let beat = || {
        let now = NOW + Duration::from_secs(beats.fetch_add(1, Ordering::Relaxed));
        assert!(store.heartbeat(fence, now, LEASE).expect("heartbeat"));
    };
    beat();
    assert!(log_bytes(&path) > 0, "something was written since the last heartbeat");
    beat();
    assert_eq!(log_bytes(&path), 0);
    // Heartbeats alone move it seldom.
    beat();
    assert!(log_bytes(&path) > 0);
    drop(store);
    std::fs::copy(&path, &copy).expect("copy");
    let store = SqliteStore::open(&copy).expect("open");
    assert!(store.run(&Target::Id(id)).expect("run").is_some());
}

/// A reader holds on to the log until the disk is full. Commits waited for ever, and an engine could
/// not start, though what was in the log would have fitted into the file.
#[test]
fn a_log_that_has_filled_the_disk_is_emptied_and_the_next_try_has_room() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    let vfs = crate::testing::vfs::FaultVfs::register();
    let vfs_name = Some(vfs.name().to_owned());
    let options = SqliteOptions { vfs: vfs_name.clone(), ..creating() };
    let store = SqliteStore::open_with(&path, options).expect("open");
    store.migrate().expect("migrate");
    let fence = register(&store, 1, NOW);
    let id = start(&store, fence, &RunIds::new(1));
    for _ in 0..3 {
        overwrite(&store, fence, id).expect("commit");
    }
    for _ in 0..2 {
        store.heartbeat(fence, NOW, LEASE).expect("heartbeat");
    }
    let file_bytes = std::fs::metadata(&path).expect("the file").len();
    vfs.limit_disk(file_bytes + (2 << 20));
    let flags = rusqlite::OpenFlags::default();
    let reader = Connection::open_with_flags_and_vfs(&path, flags, vfs.name()).expect("connect");
    reader.execute_batch("BEGIN; SELECT count(*) FROM everstep_runs").expect("a snapshot");
    let is_full = |tried: Result<(), StoreError>| matches!(tried, Err(StoreError::Full { .. }));
    while !is_full(overwrite(&store, fence, id)) {}
    assert!(is_full(overwrite(&store, fence, id)));
    assert!(log_bytes(&path) > 1 << 20);
    drop(reader);
    // This try fails too, and empties the log.
    assert!(is_full(overwrite(&store, fence, id)));
    assert!(log_bytes(&path) < 64 << 10);
    overwrite(&store, fence, id).expect("there is room");
    // So does a runner that starts.
    drop(store);
    let options = SqliteOptions { vfs: vfs_name, ..SqliteOptions::default() };
    let store = SqliteStore::open_with(&path, options).expect("open");
    register(&store, 2, NOW);
}

#[test]
fn whoever_holds_the_write_lock_is_named() {
    let directory = Directory::new();
    let path = directory.path("app.db");
    drop(create(&path));
    let options = SqliteOptions { busy_timeout: Duration::ZERO, ..SqliteOptions::default() };
    let store = SqliteStore::open_with(&path, options).expect("open");
    let holder = Connection::open(&path).expect("connect");
    holder.execute_batch("BEGIN IMMEDIATE").expect("the lock");
    let runner = NewRunner::new(Uuid::from_u128(1), "waits", NOW, LEASE);
    let error = store.register_runner(&runner).expect_err("it is locked");
    assert!(matches!(error, StoreError::Busy { .. }), "{error}");
    let cause = std::error::Error::source(&error).map(ToString::to_string);
    if cfg!(target_os = "linux") {
        let said = format!("held by this process ({})", std::process::id());
        assert!(cause.clone().is_some_and(|cause| cause.contains(&said)), "{cause:?}");
    }
    holder.execute_batch("ROLLBACK").expect("it is free");
    store.register_runner(&runner).expect("register_runner");
}

/// 200 killed processes left 200 sockets beside the file.
#[cfg(unix)]
#[test]
fn sockets_of_killed_processes_are_removed_by_the_next_runner() {
    use std::os::unix::net::UnixDatagram;
    let directory = Directory::new();
    let path = directory.path("app.db");
    let dead = directory.path("app.db-wake-000000000001");
    let alive = directory.path("app.db-wake-000000000002");
    let others = directory.path("other.db-wake-000000000003");
    let notes = directory.path("app.db-wake-notes");
    // The file of a socket stays when the socket is closed.
    drop(UnixDatagram::bind(&dead).expect("bind"));
    drop(UnixDatagram::bind(&others).expect("bind"));
    let listening = UnixDatagram::bind(&alive).expect("bind");
    std::fs::write(&notes, b"not a socket").expect("write");
    let store = create(&path);
    let fence = register(&store, 9, NOW);
    let guard = store.on_wake(fence.runner, Arc::new(|_| {})).expect("on_wake");
    assert!(!dead.exists());
    assert!(alive.exists() && others.exists() && notes.exists());
    assert!(!store.runner_is_dead(fence.runner));
    drop((guard, listening));
}
