//! Two processes on one SQLite file. The second one is this test binary, started again.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use crate::scenario;

use std::{
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdin, ChildStdout},
    time::{Duration, Instant},
};

use everstep::{
    EngineBuilder, RunId, RunStatus,
    prelude::*,
    store::{SqliteStore, Store},
};
use scenario::{until, until_at_rest, until_status};

const CHILD: &str = "EVERSTEP_TEST_SECOND_PROCESS";
const WAIT: Workflow<u32, u32> = Workflow::new("wait");
const STEPS: Workflow<u32, u32> = Workflow::new("steps");
const STUCK: Workflow<u32, u32> = Workflow::new("stuck");

/// An engine that finds everything by being told: it looks by itself only once in ten minutes.
fn engine(path: &Path, ledger: &Path) -> EngineBuilder {
    let ledger = ledger.to_owned();
    Engine::open(path)
        .register_fn(WAIT, |ctx, n| async move {
            let add: u32 = ctx.listen("add").await?;
            Ok(n + add)
        })
        .register_fn(STEPS, move |ctx, n| {
            let ledger = ledger.clone();
            async move {
                for step in 0..3 {
                    let body = ctx.step_with("step", async |body| {
                        tokio::time::sleep(Duration::from_millis(2)).await;
                        note(&ledger, &format!("{n}/{step}/{}", body.attempt()));
                        Ok(())
                    });
                    body.await?;
                }
                Ok(n)
            }
        })
        .register_fn(STUCK, |ctx, n| async move {
            // Stuck only in the process that is to be killed.
            let body = ctx.step("stuck", async || {
                if std::env::var_os(CHILD).is_some() {
                    std::future::pending::<()>().await;
                }
                Ok(())
            });
            body.await?;
            Ok(n)
        })
        .settings(|settings| {
            settings.safety_poll = Duration::from_secs(600);
            settings.heartbeat = Some(Duration::from_millis(50));
        })
}

/// Appends a line; one write of a short line is not torn.
fn note(ledger: &Path, line: &str) {
    let file = std::fs::OpenOptions::new().create(true).append(true).open(ledger);
    file.unwrap().write_all(format!("{line}\n").as_bytes()).unwrap();
}

/// The second process, seen from the first: it does what it is told, line by line.
struct Second {
    child: Child,
    stdin: ChildStdin,
    stdout: BufReader<ChildStdout>,
}

impl Second {
    fn start(test: &str, path: &Path) -> Second {
        let mut child =
            scenario::second_process(module_path!(), test, CHILD, path.to_str().unwrap());
        let stdin = child.stdin.take().unwrap();
        let stdout = BufReader::new(child.stdout.take().unwrap());
        Second { child, stdin, stdout }
    }

    /// Tells it to do something and gives its answer.
    fn ask(&mut self, order: &str) -> String {
        writeln!(self.stdin, "{order}").unwrap();
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.stdout.read_line(&mut line).unwrap() > 0, "it has ended");
            // The harness of the test prints lines of its own.
            if let Some(answer) = line.strip_prefix("=> ") {
                return answer.trim().to_owned();
            }
        }
    }
}

impl Drop for Second {
    fn drop(&mut self) {
        _ = self.child.kill();
        _ = self.child.wait();
    }
}

/// What the second process does: one order a line.
async fn be_the_second_process(path: &str) {
    let path = Path::new(path);
    let mut running = None;
    let mut client = None;
    for line in std::io::stdin().lines() {
        let line = line.unwrap();
        let words: Vec<&str> = line.split(' ').collect();
        let answer = match words[..] {
            ["engine"] => {
                let engine = engine(path, &path.with_extension("ledger")).start().await;
                running = Some(engine.unwrap());
                "started".to_owned()
            }
            ["client"] => {
                client = Some(Client::open(path).await.unwrap());
                "opened".to_owned()
            }
            ["send", run, add] => {
                let run: RunId = run.parse().unwrap();
                let add: u32 = add.parse().unwrap();
                let sent = client.as_ref().unwrap().send(run, "add", &add).await;
                format!("{:?}", sent.unwrap())
            }
            ["pause_and_resume", run] => {
                let run = client.as_ref().unwrap().run::<u32>(run.parse().unwrap());
                run.pause().await.unwrap();
                run.resume().await.unwrap();
                "resumed".to_owned()
            }
            ["start", n] => {
                let start = client.as_ref().unwrap().start(WAIT, n.parse().unwrap());
                start.await.unwrap().id().to_string()
            }
            ["result", run] => {
                let run = client.as_ref().unwrap().run::<u32>(run.parse().unwrap());
                run.result().await.unwrap().to_string()
            }
            ["shutdown"] => {
                running.take().unwrap().shutdown().await;
                "shut down".to_owned()
            }
            _ => panic!("{line}"),
        };
        println!("\n=> {answer}");
    }
}

/// Runs the test in the first process; in the second one, does what that one says.
async fn two_processes(test: &str, work: impl AsyncFnOnce(&Path, &Path, Second)) {
    if let Ok(path) = std::env::var(CHILD) {
        return be_the_second_process(&path).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let ledger = path.with_extension("ledger");
    let second = Second::start(test, &path);
    work(&path, &ledger, second).await;
}

/// Waits until both runners have half of the shards each, more or less.
async fn until_shared(path: &Path, runners: usize) {
    let store = SqliteStore::open(path).unwrap();
    until("the shards to be shared out", async || {
        let rows = store.runners().unwrap();
        let held = rows.iter().filter(|row| row.shards.len() > 20).count();
        let all: usize = rows.iter().map(|row| row.shards.len()).sum();
        (held == runners && all == usize::from(everstep::SHARDS)).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_live_owner_sees_a_message_from_another_process_at_once() {
    let test = "a_live_owner_sees_a_message_from_another_process_at_once";
    two_processes(test, async |path, ledger, mut second| {
        let engine = engine(path, ledger).start().await.unwrap();
        assert_eq!(second.ask("client"), "opened");
        let mut worst = Duration::ZERO;
        for n in 0..10 {
            let run = engine.client().start(WAIT, n).await.unwrap();
            until_status(&run, RunStatus::Sleeping).await;
            let sent = Instant::now();
            let result = tokio::spawn({
                let run = run.clone();
                async move { (run.result().await.unwrap(), sent.elapsed()) }
            });
            assert_eq!(second.ask(&format!("send {} 100", run.id())), "Delivered");
            let (result, took) = result.await.unwrap();
            assert_eq!(result, n + 100);
            worst = worst.max(took);
        }
        // Both commits and the trip to the other process and back are in it.
        println!("a message from another process took {worst:?} at most");
        assert!(worst < Duration::from_secs(30), "{worst:?}");
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_run_started_by_a_process_without_an_engine_is_taken_up_at_once() {
    let test = "a_run_started_by_a_process_without_an_engine_is_taken_up_at_once";
    two_processes(test, async |path, ledger, mut second| {
        let engine = engine(path, ledger).start().await.unwrap();
        second.ask("client");
        let run = second.ask("start 7");
        let handle = engine.client().run::<u32>(run.parse().unwrap());
        until_status(&handle, RunStatus::Sleeping).await;
        second.ask(&format!("send {run} 1"));
        assert_eq!(second.ask(&format!("result {run}")), "8");
        engine.shutdown().await;
    })
    .await;
}

/// Seen with two commands one after the other: the run was in its owner's memory, at rest, when it was
/// paused, and the owner looked only when it had been resumed. Then there was nothing for it to do, and
/// the run stayed pending in the store until it had to leave memory.
#[tokio::test(flavor = "multi_thread")]
async fn a_run_that_another_process_pauses_and_resumes_at_once_is_at_rest_again() {
    let test = "a_run_that_another_process_pauses_and_resumes_at_once_is_at_rest_again";
    two_processes(test, async |path, ledger, mut second| {
        let engine = engine(path, ledger).start().await.unwrap();
        second.ask("client");
        let run = engine.client().start(WAIT, 7).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        for _ in 0..10 {
            second.ask(&format!("pause_and_resume {}", run.id()));
            until_status(&run, RunStatus::Sleeping).await;
        }
        second.ask(&format!("send {} 1", run.id()));
        assert_eq!(run.result().await.unwrap(), 8);
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn two_engines_share_the_shards_and_no_completed_step_runs_again() {
    let test = "two_engines_share_the_shards_and_no_completed_step_runs_again";
    two_processes(test, async |path, ledger, mut second| {
        let engine = engine(path, ledger).start().await.unwrap();
        // One whose runs are everybody's.
        let client = Client::open(path).await.unwrap();
        let mut runs = Vec::new();
        for n in 0..60 {
            runs.push(client.start(STEPS, n).await.unwrap());
        }
        // In the middle of it another engine comes, and shards move to it with their runs.
        second.ask("engine");
        for n in 60..120 {
            runs.push(client.start(STEPS, n).await.unwrap());
        }
        until_shared(path, 2).await;
        for n in 120..180 {
            runs.push(client.start(STEPS, n).await.unwrap());
        }
        // And goes, in good order.
        assert_eq!(second.ask("shutdown"), "shut down");
        for n in 180..200 {
            runs.push(client.start(STEPS, n).await.unwrap());
        }
        for (n, run) in runs.iter().enumerate() {
            let ended = until_at_rest(run).await;
            assert_eq!(ended.status, RunStatus::Completed, "{ended:?}");
            assert_eq!(run.result().await.unwrap(), n as u32);
        }
        let ledger = std::fs::read_to_string(ledger).unwrap();
        let mut lines: Vec<&str> = ledger.lines().collect();
        lines.sort_unstable();
        let all = lines.len();
        lines.dedup();
        assert_eq!((lines.len(), all), (600, 600), "each body ran once, none failed");
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn the_runs_of_a_killed_process_are_taken_over_at_once() {
    let test = "the_runs_of_a_killed_process_are_taken_over_at_once";
    two_processes(test, async |path, ledger, mut second| {
        second.ask("engine");
        second.ask("client");
        let client = Client::open(path).await.unwrap();
        let mut runs = Vec::new();
        for n in 0..20 {
            runs.push(client.start(STUCK, n).await.unwrap());
        }
        for run in &runs {
            until_status(run, RunStatus::Running).await;
        }
        // A lease of ten minutes: what is dead is known by its socket.
        let engine =
            engine(path, ledger).settings(|settings| settings.lease = Duration::from_secs(600));
        let engine = engine.start().await.unwrap();
        second.child.kill().unwrap();
        second.child.wait().unwrap();
        let killed = Instant::now();
        for (n, run) in runs.iter().enumerate() {
            let run = engine.client().run::<u32>(run.id());
            assert_eq!(run.result().await.unwrap(), n as u32);
        }
        println!("taken over and finished after {:?}", killed.elapsed());
        assert!(killed.elapsed() < Duration::from_secs(30));
        until_shared(path, 1).await;
        engine.shutdown().await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_that_ends_in_good_order_gives_its_shards_back() {
    let test = "a_process_that_ends_in_good_order_gives_its_shards_back";
    two_processes(test, async |path, ledger, mut second| {
        let engine = engine(path, ledger).start().await.unwrap();
        second.ask("engine");
        until_shared(path, 2).await;
        second.ask("shutdown");
        until_shared(path, 1).await;
        let store = SqliteStore::open(path).unwrap();
        assert_eq!(store.runners().unwrap().len(), 1);
        engine.shutdown().await;
        assert!(store.runners().unwrap().is_empty());
    })
    .await;
}
