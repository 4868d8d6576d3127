//! What SIGTERM does to an engine, in a process of its own: this test binary, started again.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod scenario;

use std::{
    io::{BufRead, BufReader},
    path::{Path, PathBuf},
    process::{Child, Command},
    time::Duration,
};

use everstep::{
    RunStatus,
    prelude::*,
    store::{Filter, SqliteStore, Store},
};

const CHILD: &str = "EVERSTEP_TEST_SIGNALS";
const LONG: Workflow<u64, ()> = Workflow::new("long");

/// The second process: runs one body that takes this long, and ends when it is told to.
fn child(ms: u64) -> Option<()> {
    let path = PathBuf::from(std::env::var_os(CHILD)?);
    scenario::runtime().block_on(async {
        let engine = Engine::open(&path).register_fn(LONG, |ctx, ms| async move {
            let body = ctx.step_with("body", async |step: Step| {
                println!("begun");
                let slept = async { tokio::time::sleep(Duration::from_millis(ms)).await };
                let told = async {
                    step.cancellation().cancelled().await;
                    println!("told");
                };
                tokio::join!(slept, told);
                Ok(())
            });
            body.await?;
            ctx.listen::<()>("never").await?;
            Ok(())
        });
        // Longer than any test runs: one that waits for its body does not end.
        let engine = engine.settings(|settings| settings.shutdown_limit = hours(1));
        let engine = engine.start().await.unwrap();
        let client = engine.client();
        // Listens from here on: a signal may come as soon as the body has said that it began.
        let shutdown = engine.shutdown_on_signal();
        client.start(LONG, ms).await.unwrap();
        shutdown.await.unwrap();
        println!("ended");
    });
    Some(())
}

fn begin(test: &str, path: &Path) -> (Child, impl Iterator<Item = String> + use<>) {
    let mut child = scenario::second_process(module_path!(), test, CHILD, path.to_str().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines().map(Result::unwrap);
    assert!(lines.any(|line| line.ends_with("begun")), "the body begins");
    (child, lines)
}

fn terminate(child: &Child) {
    let mut kill = Command::new("kill");
    kill.args(["-TERM", &child.id().to_string()]);
    // It may be gone already, between a look at it and this.
    _ = kill.status().unwrap();
}

#[test]
fn a_signal_lets_bodies_end_and_gives_everything_back() {
    if child(400).is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let test = "a_signal_lets_bodies_end_and_gives_everything_back";
    let (mut process, mut lines) = begin(test, &path);
    terminate(&process);
    assert!(lines.any(|line| line.ends_with("ended")), "it ends by itself");
    assert!(process.wait().unwrap().success());
    let store = SqliteStore::open(&path).unwrap();
    assert_eq!(store.runners().unwrap().len(), 0, "it has signed off");
    let runs = store.list(&Filter::default(), None, 10).unwrap();
    let entries = store.history(runs[0].id.no(), None, 10).unwrap();
    assert!(!entries.is_empty(), "what the body gave is written");
    assert!(runs[0].last_number > 0, "{:?}", runs[0]);
}

#[test]
fn a_second_signal_does_not_wait() {
    if child(3_600_000).is_some() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("app.db");
    let (mut process, mut lines) = begin("a_second_signal_does_not_wait", &path);
    terminate(&process);
    assert!(lines.any(|line| line.ends_with("told")), "its body is told of the first signal");
    assert!(process.try_wait().unwrap().is_none(), "it waits for its body");
    terminate(&process);
    assert!(lines.any(|line| line.ends_with("ended")));
    assert!(process.wait().unwrap().success());
    let store = SqliteStore::open(&path).unwrap();
    let runs = store.list(&Filter::default(), None, 10).unwrap();
    assert_eq!(runs[0].status, RunStatus::Running, "whoever comes next goes on with it");
}
