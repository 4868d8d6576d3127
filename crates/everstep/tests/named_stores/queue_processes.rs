//! Workers in another process. The second one is this test binary, started again.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use crate::scenario;

use std::{
    io::{BufRead, BufReader},
    path::Path,
    process::Child,
    time::Duration,
};

use everstep::prelude::*;

const CHILD: &str = "EVERSTEP_TEST_SECOND_WORKER";
const RUN: Workflow<u32, u32> = Workflow::new("run");
const WORK: Queue<u32, u32> = Queue::new("work")
    .attempts(5)
    // A worker that is alive says so within this, on a busy machine too.
    .visibility(Duration::from_secs(3));

async fn engine(path: &Path) -> Engine {
    Engine::open(path)
        .register_fn(RUN, |ctx, n| async move { ctx.enqueue(WORK, &n).await })
        .start()
        .await
        .unwrap()
}

/// The second process: a client without an engine that works. It is stuck with the number 1.
async fn be_the_worker(path: &str) {
    let client = Client::open(path).await.unwrap();
    let work = client.work(WORK, 1, async |job: Job, n: u32| {
        println!("\n=> {} {}", n, job.attempt());
        if n == 1 {
            std::future::pending::<()>().await;
        }
        Ok(10 * n + job.attempt())
    });
    work.unwrap();
    println!("\n=> ready");
    std::future::pending::<()>().await;
}

struct Second {
    child: Child,
    lines: BufReader<std::process::ChildStdout>,
}

impl Second {
    fn start(test: &str, path: &Path) -> Second {
        let mut child =
            scenario::second_process(module_path!(), test, CHILD, path.to_str().unwrap());
        let lines = BufReader::new(child.stdout.take().unwrap());
        let mut second = Second { child, lines };
        assert_eq!(second.next(), "ready");
        second
    }

    /// The next line that it says.
    fn next(&mut self) -> String {
        let mut line = String::new();
        loop {
            line.clear();
            assert!(self.lines.read_line(&mut line).unwrap() > 0, "it has ended");
            if let Some(said) = line.strip_prefix("=> ") {
                return said.trim().to_owned();
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

#[tokio::test(flavor = "multi_thread")]
async fn an_item_of_a_worker_that_is_killed_runs_again_and_the_waiter_is_told_once() {
    if let Ok(path) = std::env::var(CHILD) {
        return be_the_worker(&path).await;
    }
    let test = "an_item_of_a_worker_that_is_killed_runs_again_and_the_waiter_is_told_once";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = engine(&path).await;
    let mut second = Second::start(test, &path);
    let run = engine.client().start(RUN, 1).await.unwrap();
    assert_eq!(second.next(), "1 1");
    drop(second);
    engine.work(WORK, 1, async |job: Job, n: u32| Ok(10 * n + job.attempt())).unwrap();
    assert_eq!(run.result().await.unwrap(), 12);
    let inbox = engine.store().inbox(run.id().no(), 0).unwrap();
    assert!(inbox.is_empty(), "{inbox:?}");
    let stats = engine.client().queue_stats("work").await.unwrap();
    assert_eq!(stats, Default::default());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_process_without_an_engine_works_for_one_that_has() {
    if let Ok(path) = std::env::var(CHILD) {
        return be_the_worker(&path).await;
    }
    let test = "a_process_without_an_engine_works_for_one_that_has";
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let engine = engine(&path).await;
    let mut second = Second::start(test, &path);
    let run = engine.client().start(RUN, 2).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 21);
    assert_eq!(second.next(), "2 1");
    let item = engine.client().enqueue(WORK, &3).await.unwrap();
    assert_eq!(item.result().await.unwrap(), 31);
    engine.shutdown().await;
}
