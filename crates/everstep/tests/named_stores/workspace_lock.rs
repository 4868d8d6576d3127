//! The example `workspace_lock`: one at a time in the workspace, whoever is killed.
#![cfg(all(unix, feature = "sqlite"))]
#![allow(clippy::unwrap_used)]

use crate::{flow, lock, scenario};

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicUsize, Ordering},
    },
};

use everstep::{
    JoinError, RunStatus,
    prelude::*,
    store::{SqliteStore, Store},
};
use flow::{Boundary, Request, Summary, let_go, summarize};
use lock::Workspace;
use scenario::{second_process, until, until_at_rest, until_status};
use tempfile::TempDir;
use tokio::sync::Notify;

const SUMMARY: &str = "BranchA: 35 letters, BranchB: 9 words, BranchC: 3 lines";

/// The steps of a request that has to wait, in order.
const STEPS: [&str; 9] = [
    "AcquireWorkspaceLock",
    "Aggregate",
    "NotifyLockManager",
    "ReadInputs",
    "ReleaseWorkspaceLock",
    "WriteOutputs",
    "branches/BranchA/work",
    "branches/BranchB/work",
    "branches/BranchC/work",
];

/// A folder with a workspace and, beside it, a database.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    let workspace = folder.path().join("workspace");
    fs::create_dir(&workspace).unwrap();
    fs::write(workspace.join("a.txt"), "the quick brown fox\n").unwrap();
    fs::write(workspace.join("b.txt"), "jumps over\nthe lazy dog\n").unwrap();
    folder
}

fn workspace_of(folder: &Path) -> String {
    folder.join("workspace").display().to_string()
}

fn lock_of(folder: &Path) -> Workspace {
    Workspace::new(workspace_of(folder))
}

fn request(folder: &Path, request: &str) -> Request {
    Request { workspace: workspace_of(folder), request: request.to_owned() }
}

fn trace(folder: &Path) -> Vec<String> {
    let text = fs::read_to_string(folder.join("workspace/trace")).unwrap_or_default();
    // Who only holds the lock to keep others waiting does nothing in the workspace.
    let lines = text.lines().filter(|line| !line.ends_with(" somebody"));
    lines.map(str::to_owned).collect()
}

fn undisturbed() -> Boundary {
    Boundary(Box::new(|_| Box::pin(async {})))
}

async fn engine(folder: &Path, boundary: Boundary) -> Engine {
    let store = Arc::new(SqliteStore::create(folder.join("app.db")).unwrap());
    store.migrate().unwrap();
    let client = Client::on(store.clone()).unwrap();
    let builder = Engine::on(store).provide(client).provide(boundary);
    builder.register(summarize).start().await.unwrap()
}

/// A boundary at which the request `slow` waits in its first branch until it is let through.
fn slow() -> (Arc<Notify>, Boundary) {
    let open = Arc::new(Notify::new());
    let waits = open.clone();
    let seen = AtomicUsize::new(0);
    let boundary = Boundary(Box::new(move |step| {
        let first = step.location().ends_with("BranchA/work");
        let holds = first && seen.fetch_add(1, Ordering::SeqCst) == 0;
        let waits = waits.clone();
        Box::pin(async move {
            if holds {
                waits.notified().await;
            }
        })
    }));
    (open, boundary)
}

/// Waits until this request is in line.
async fn in_line(folder: &Path, request: &str) {
    until("it to be in line", async || {
        let (_, queue) = lock_of(folder).look().unwrap();
        queue.contains(&request.to_owned()).then_some(())
    })
    .await;
}

/// Nobody enters before the one before has left.
#[track_caller]
fn assert_one_at_a_time(trace: &[String]) {
    let mut inside: Option<&str> = None;
    for line in trace {
        let (what, who) = line.split_once(' ').unwrap();
        match what {
            "leave" => {
                assert_eq!(inside, Some(who), "{trace:#?}");
                inside = None;
            }
            // A body that was killed is run again, by the same request.
            _ => assert_eq!(*inside.get_or_insert(who), who, "{trace:#?}"),
        }
    }
    assert_eq!(inside, None, "everybody has left: {trace:#?}");
}

#[tokio::test(flavor = "multi_thread")]
async fn requests_take_turns_and_those_who_wait_hold_no_thread() {
    let folder = folder();
    let (open, boundary) = slow();
    let engine = engine(folder.path(), boundary).await;
    let client = engine.client();
    let first = request(folder.path(), "first");
    let first = client.start(summarize, first).await.unwrap();
    until("the first to be inside", async || (!trace(folder.path()).is_empty()).then_some(()))
        .await;
    let mut others = Vec::new();
    for n in 0..5 {
        let other = request(folder.path(), &format!("other-{n}"));
        others.push(client.start(summarize, other).await.unwrap());
        in_line(folder.path(), &format!("other-{n}")).await;
    }
    for other in &others {
        let info = until_status(other, RunStatus::Sleeping).await;
        assert_eq!(info.waiting.as_deref(), Some("deferred `WorkspaceLock`"));
        assert!(engine.evict(other.id()).await, "it needs no memory either");
    }
    open.notify_one();
    for run in others.iter().chain([&first]) {
        assert_eq!(run.result().await.unwrap().summary, SUMMARY);
    }
    let trace = trace(folder.path());
    assert_one_at_a_time(&trace);
    let entered = trace.iter().filter_map(|line| line.strip_prefix("enter "));
    let entered: Vec<&str> = entered.collect();
    let in_turn = ["first", "other-0", "other-1", "other-2", "other-3", "other-4"];
    assert_eq!(entered, in_turn, "in the order of the line");
    assert_eq!(lock_of(folder.path()).look().unwrap(), (None, vec![]));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_request_that_is_made_twice_is_one_run() {
    let folder = folder();
    let engine = engine(folder.path(), undisturbed()).await;
    let client = engine.client();
    let once = client.start(summarize, request(folder.path(), "same"));
    let once = once.await.unwrap();
    let twice = client.start(summarize, request(folder.path(), "same"));
    let twice = twice.await.unwrap();
    assert!(twice.attached() && once.id() == twice.id());
    assert_eq!(twice.result().await.unwrap().summary, SUMMARY);
    assert_eq!(trace(folder.path()).len(), 5);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_branch_that_fails_releases_the_lock_for_the_next_one() {
    let folder = folder();
    let (open, boundary) = slow();
    let engine = engine(folder.path(), boundary).await;
    let client = engine.client();
    let bad = folder.path().join("workspace/c.txt");
    fs::write(&bad, "unreadable\n").unwrap();
    let first = client.start(summarize, request(folder.path(), "first"));
    let first = first.await.unwrap();
    until("the first to be inside", async || (!trace(folder.path()).is_empty()).then_some(()))
        .await;
    let next = client.start(summarize, request(folder.path(), "next"));
    let next = next.await.unwrap();
    in_line(folder.path(), "next").await;
    fs::remove_file(&bad).unwrap();
    open.notify_one();
    let error = first.result().await.unwrap_err();
    let failure = error.failure().expect("it failed");
    let join: JoinError = failure.details().expect("what has failed, as a value");
    let text = format!("{join:?}");
    assert!(text.contains("BranchB") && text.contains("unreadable"), "{text}");
    assert_eq!(next.result().await.unwrap().summary, SUMMARY);
    assert_one_at_a_time(&trace(folder.path()));
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn one_that_is_cancelled_while_it_waits_is_passed_over() {
    for rollback in [true, false] {
        let folder = folder();
        let engine = engine(folder.path(), undisturbed()).await;
        let client = engine.client();
        assert!(lock_of(folder.path()).acquire("somebody").unwrap());
        let given_up = client.start(summarize, request(folder.path(), "given-up"));
        let given_up = given_up.await.unwrap();
        in_line(folder.path(), "given-up").await;
        let next = client.start(summarize, request(folder.path(), "next"));
        let next = next.await.unwrap();
        in_line(folder.path(), "next").await;
        let cancelled = match rollback {
            true => given_up.cancel().with_rollback().await,
            false => given_up.cancel().await,
        };
        assert!(cancelled.unwrap());
        until_status(&given_up, RunStatus::Cancelled).await;
        let (_, queue) = lock_of(folder.path()).look().unwrap();
        let left = if rollback { &["next"][..] } else { &["given-up", "next"] };
        assert_eq!(queue, left, "its rollback leaves the line");
        let_go(&client, &workspace_of(folder.path()), "somebody").await.unwrap();
        assert_eq!(next.result().await.unwrap().summary, SUMMARY);
        let trace = trace(folder.path());
        assert!(!trace.iter().any(|line| line.ends_with("given-up")), "{trace:?}");
        engine.shutdown().await;
    }
}

/// Set, in a process that is to be killed, to where and how.
const CHILD: &str = "EVERSTEP_TEST_WORKSPACE";

/// Dies at the end of its n-th body; not at all with 0. With `fan-out`, at the end of the third
/// branch, once the others are recorded; with `stuck`, waits for ever in the first body inside.
fn dying(how: &str, folder: &Path) -> Boundary {
    let die_at: usize = how.parse().unwrap_or(0);
    let bodies = AtomicUsize::new(0);
    let (how, folder) = (how.to_owned(), folder.to_owned());
    Boundary(Box::new(move |step| {
        if bodies.fetch_add(1, Ordering::SeqCst) + 1 == die_at {
            std::process::abort();
        }
        let (location, run) = (step.location().to_owned(), step.run_id());
        let (how, folder) = (how.clone(), folder.clone());
        Box::pin(async move {
            if how == "stuck" && location == "ReadInputs" {
                std::future::pending::<()>().await;
            }
            if how == "fan-out" && location == "branches/BranchC/work" {
                let client = Client::open(folder.join("app.db")).await.unwrap();
                let run: RunHandle<Summary> = client.run(run);
                until("the other branches to be recorded", async || {
                    let history = run.history().await.unwrap();
                    let done = history.iter().filter(|entry| {
                        entry.location.to_string().ends_with("work")
                            && entry.status == everstep::EntryStatus::Completed
                    });
                    (done.count() == 2).then_some(())
                })
                .await;
                std::process::abort();
            }
        })
    }))
}

/// In a process of its own: a request that finds the lock taken, and then gets it.
async fn wait_and_work(given: &str) {
    let (how, folder) = given.split_once(' ').unwrap();
    let folder = Path::new(folder);
    let engine = engine(folder, dying(how, folder)).await;
    let client = engine.client();
    let run = client.start(summarize, request(folder, "waiter"));
    let run = run.await.unwrap();
    // Whoever had the lock lets it go as soon as somebody waits.
    let release = async {
        in_line(folder, "waiter").await;
        let_go(&client, &workspace_of(folder), "somebody").await.unwrap();
        std::future::pending::<()>().await;
    };
    tokio::select! {
        ended = run.result() => assert_eq!(ended.unwrap().summary, SUMMARY),
        () = release => {}
    }
    engine.shutdown().await;
}

/// Runs this test in a process of its own; whether that ended well.
fn in_a_process(test: &str, how: &str, folder: &Path) -> bool {
    let given = format!("{how} {}", folder.display());
    let mut process = second_process(module_path!(), test, CHILD, &given);
    process.wait().unwrap().success()
}

/// Everything is as if nobody had died, and each step is recorded once.
fn assert_all_done(folder: &Path) {
    let summary = fs::read_to_string(folder.join("workspace/summary")).unwrap();
    assert_eq!(summary, SUMMARY);
    assert_eq!(lock_of(folder).look().unwrap(), (None, vec![]));
    scenario::runtime().block_on(async {
        let client = Client::open(folder.join("app.db")).await.unwrap();
        let runs = client.list().workflow("summarize").await.unwrap().runs;
        assert_eq!(runs.len(), 1);
        let run: RunHandle<Summary> = client.run(runs[0].id);
        assert_eq!(run.result().await.unwrap().summary, SUMMARY);
        let history = run.history().await.unwrap();
        let steps = history.iter().filter(|entry| entry.kind == everstep::EntryKind::Step);
        let mut steps: Vec<String> = steps.map(|entry| entry.location.to_string()).collect();
        steps.sort();
        assert_eq!(steps, STEPS);
    });
}

#[test]
fn killed_after_each_of_its_nine_steps_it_ends_with_the_same_output() {
    let name = "killed_after_each_of_its_nine_steps_it_ends_with_the_same_output";
    if let Ok(given) = std::env::var(CHILD) {
        return scenario::runtime().block_on(wait_and_work(&given));
    }
    for n in 1..=9 {
        let folder = folder();
        assert!(lock_of(folder.path()).acquire("somebody").unwrap());
        let ended_well = in_a_process(name, &n.to_string(), folder.path());
        assert!(!ended_well, "it dies after body {n}");
        assert!(in_a_process(name, "0", folder.path()), "after body {n}");
        assert_all_done(folder.path());
        let trace = trace(folder.path());
        assert_one_at_a_time(&trace);
        for what in ["enter", "BranchA", "BranchB", "BranchC"] {
            let count = trace.iter().filter(|line| line.starts_with(what)).count();
            assert!((1..=2).contains(&count), "after body {n}: {trace:?}");
        }
        let repeated = trace.len() - 5;
        assert!(repeated <= 3, "after body {n}: {trace:?}");
    }
}

#[test]
fn killed_in_the_fan_out_it_runs_only_the_unfinished_branch_again() {
    let name = "killed_in_the_fan_out_it_runs_only_the_unfinished_branch_again";
    if let Ok(given) = std::env::var(CHILD) {
        return scenario::runtime().block_on(wait_and_work(&given));
    }
    let folder = folder();
    assert!(lock_of(folder.path()).acquire("somebody").unwrap());
    assert!(!in_a_process(name, "fan-out", folder.path()));
    assert!(in_a_process(name, "0", folder.path()));
    assert_all_done(folder.path());
    let trace = trace(folder.path());
    let count = |what: &str| trace.iter().filter(|line| line.starts_with(what)).count();
    let counts = ["enter", "BranchA", "BranchB", "BranchC", "leave"].map(count);
    assert_eq!(counts, [1, 1, 1, 2, 1], "{trace:?}");
}

#[test]
fn with_three_runners_the_work_of_a_killed_one_is_done_by_another() {
    let name = "with_three_runners_the_work_of_a_killed_one_is_done_by_another";
    if let Ok(given) = std::env::var(CHILD) {
        return scenario::runtime().block_on(wait_and_work(&given));
    }
    let folder = folder();
    assert!(lock_of(folder.path()).acquire("somebody").unwrap());
    let given = format!("stuck {}", folder.path().display());
    let mut owner = second_process(module_path!(), name, CHILD, &given);
    scenario::runtime().block_on(async {
        until("the first runner to be inside", async || {
            (!trace(folder.path()).is_empty()).then_some(())
        })
        .await;
        let second = engine(folder.path(), undisturbed()).await;
        let third = engine(folder.path(), undisturbed()).await;
        owner.kill().unwrap();
        owner.wait().unwrap();
        let run = second.client().start(summarize, request(folder.path(), "waiter"));
        let run = run.await.unwrap();
        assert!(run.attached());
        until_at_rest(&run).await;
        second.shutdown().await;
        third.shutdown().await;
    });
    assert_all_done(folder.path());
}
