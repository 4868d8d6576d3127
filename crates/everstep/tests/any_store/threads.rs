//! The engine's threads, and what a runtime around them can do to them.
#![allow(clippy::unwrap_used)]

use crate::scenario;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering},
        mpsc,
    },
    time::{Duration, Instant},
};

use everstep::{
    RunId, RunStatus,
    prelude::*,
    testing::{self, VirtualClock},
};
use scenario::{runtime, until, until_status};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};

const WORK: Workflow<u32, u32> = Workflow::new("work");

/// One step that uses everything a body may use of its runtime.
async fn use_everything(ctx: Ctx, n: u32) -> Result<u32> {
    ctx.step("everything", async || {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let address = listener.local_addr()?;
        let echo = tokio::spawn(async move {
            let (mut socket, _) = listener.accept().await?;
            let mut byte = [0];
            socket.read_exact(&mut byte).await?;
            socket.write_all(&byte).await
        });
        let mut socket = TcpStream::connect(address).await?;
        socket.write_all(&[7]).await?;
        let mut byte = [0];
        socket.read_exact(&mut byte).await?;
        echo.await??;
        tokio::time::sleep(Duration::from_millis(5)).await;
        let shared = std::rc::Rc::new(std::cell::Cell::new(0));
        let local = shared.clone();
        tokio::task::spawn_local(async move { local.set(20) }).await?;
        let blocking = tokio::task::spawn_blocking(|| 300).await?;
        let never = std::future::pending::<()>();
        let timed_out = tokio::time::timeout(Duration::from_millis(5), never).await;
        assert!(timed_out.is_err());
        Ok(n + u32::from(byte[0]) + shared.get() + blocking)
    })
    .await
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_may_use_sockets_timers_and_every_kind_of_spawn() {
    let engine = Engine::on(testing::store()).register_fn(WORK, use_everything);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 4_000).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 4_327);
    engine.shutdown().await;
}

#[tokio::test(flavor = "current_thread")]
async fn a_body_may_use_its_runtime_where_the_caller_has_one_thread() {
    let engine = Engine::on(testing::store()).register_fn(WORK, use_everything);
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 4_000).await.unwrap();
    assert_eq!(run.result().await.unwrap(), 4_327);
    engine.shutdown().await;
}

/// On a runtime with one thread, nobody turns the timers and sockets while that thread blocks, so
/// a body on the caller's runtime would hang for as long as the caller does.
#[tokio::test(flavor = "current_thread")]
async fn an_engine_makes_progress_while_its_caller_blocks_the_only_thread() {
    let (sender, done) = mpsc::channel();
    let sender = Mutex::new(sender);
    let engine = Engine::on(testing::store()).register_fn(WORK, move |ctx, n| {
        let sender = sender.lock().unwrap().clone();
        async move {
            let n = use_everything(ctx.clone(), n).await?;
            ctx.step("told", async || Ok(_ = sender.send(n))).await?;
            Ok(n)
        }
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 4_000).await.unwrap();
    let told = done.recv_timeout(scenario::LIMIT).expect("it goes on");
    assert_eq!(told, 4_327);
    assert_eq!(run.result().await.unwrap(), 4_327);
    engine.shutdown().await;
}

#[test]
fn an_engine_starts_where_there_is_no_runtime() {
    scenario::block_on(async {
        let engine = Engine::on(testing::store()).register_fn(WORK, use_everything);
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(WORK, 4_000).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 4_327);
        engine.shutdown().await;
    });
}

/// What a body waits for while the runtime goes away under it.
#[derive(Clone, Copy, Debug)]
enum Awaits {
    Timer,
    Socket,
    Spawned,
    Blocking,
    Channel,
}

async fn wait_for(what: Awaits) -> Result<()> {
    match what {
        Awaits::Timer => tokio::time::sleep(Duration::from_secs(3_600)).await,
        Awaits::Socket => {
            let listener = TcpListener::bind("127.0.0.1:0").await?;
            listener.accept().await?;
        }
        Awaits::Spawned => tokio::spawn(std::future::pending()).await?,
        Awaits::Blocking => {
            // More than the pool takes at once, so that the last ones are still queued.
            let tasks = (0..600).map(|_| {
                tokio::task::spawn_blocking(|| std::thread::sleep(Duration::from_millis(20)))
            });
            for task in tasks.collect::<Vec<_>>() {
                task.await?;
            }
            std::future::pending().await
        }
        Awaits::Channel => {
            let (sender, receiver) = tokio::sync::oneshot::channel();
            tokio::spawn(async move {
                let _held: tokio::sync::oneshot::Sender<()> = sender;
                std::future::pending::<()>().await;
            });
            receiver.await?;
        }
    }
    Ok(())
}

/// A runtime that shuts down cancels its tasks and fails its sockets and timers. A body sees that
/// as an error or a panic, though nothing was tried: it must not cost the step an attempt.
fn check_runtime_dropped(awaits: Awaits) {
    let store = testing::store();
    let begun = Arc::new(AtomicBool::new(false));
    let first = runtime();
    let (engine, id) = first.block_on(async {
        let begun = begun.clone();
        let engine = Engine::on(store.clone()).register_fn(WORK, move |ctx, n| {
            let begun = begun.clone();
            async move {
                let wait = ctx.step("wait", async || {
                    begun.store(true, Ordering::SeqCst);
                    wait_for(awaits).await
                });
                wait.retry(Retry::fixed(3, Duration::ZERO)).await?;
                Ok(n)
            }
        });
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(WORK, 1).await.unwrap();
        (engine, run.id())
    });
    while !begun.load(Ordering::SeqCst) {
        std::thread::yield_now();
    }
    drop(first);
    drop(engine);
    runtime().block_on(async {
        let attempts = Arc::new(AtomicUsize::new(0));
        let seen = attempts.clone();
        let engine = Engine::on(store).register_fn(WORK, move |ctx, n| {
            let seen = seen.clone();
            async move {
                let wait = ctx.step_with("wait", async |step| {
                    seen.store(step.attempt() as usize, Ordering::SeqCst);
                    Ok(())
                });
                wait.await?;
                Ok(n)
            }
        });
        let engine = engine.start().await.unwrap();
        let run = engine.client().run::<u32>(id);
        assert_eq!(run.result().await.unwrap(), 1, "{awaits:?}");
        assert_eq!(attempts.load(Ordering::SeqCst), 1, "{awaits:?}");
        let history = run.history().await.unwrap();
        assert!(history[0].errors.is_empty(), "{awaits:?}: {history:?}");
        engine.shutdown().await;
    });
}

#[test]
fn a_runtime_dropped_under_a_live_engine_costs_a_timer_no_attempt() {
    check_runtime_dropped(Awaits::Timer);
}

#[test]
fn a_runtime_dropped_under_a_live_engine_costs_a_socket_no_attempt() {
    check_runtime_dropped(Awaits::Socket);
}

#[test]
fn a_runtime_dropped_under_a_live_engine_costs_a_spawned_task_no_attempt() {
    check_runtime_dropped(Awaits::Spawned);
}

#[test]
fn a_runtime_dropped_under_a_live_engine_costs_a_blocking_task_no_attempt() {
    check_runtime_dropped(Awaits::Blocking);
}

#[test]
fn a_runtime_dropped_under_a_live_engine_costs_a_channel_no_attempt() {
    check_runtime_dropped(Awaits::Channel);
}

/// The one who waits must not wait for ever: nobody will run it here any more.
#[test]
fn a_runtime_dropped_under_a_live_engine_gives_its_shards_to_the_next_engine() {
    let store = testing::store();
    let work = |ctx: Ctx, n: u32| async move {
        ctx.listen::<()>("go").await?;
        Ok(n)
    };
    let first = runtime();
    let (engine, id) = first.block_on(async {
        let engine = Engine::on(store.clone()).register_fn(WORK, work);
        let engine = engine.start().await.unwrap();
        let run = engine.client().start(WORK, 1).await.unwrap();
        until_status(&run, RunStatus::Sleeping).await;
        (engine, run.id())
    });
    drop(first);
    // The first engine is still there, but cannot run anything.
    runtime().block_on(async {
        let second = Engine::on(store).register_fn(WORK, work);
        let second = second.start().await.unwrap();
        let run = second.client().run::<u32>(id);
        run.send("go", &()).await.unwrap();
        assert_eq!(run.result().await.unwrap(), 1);
        second.shutdown().await;
    });
    drop(engine);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_body_that_blocks_its_thread_is_named_while_it_does() {
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let engine = Engine::on(testing::store())
        .register_fn(WORK, move |ctx, n| {
            let blocked = blocked.clone();
            async move {
                ctx.step("innocent", async || Ok(())).await?;
                let scope = ctx.scope("inner");
                let block = scope.step("blocks", async || Ok(blocked.lock().unwrap().recv()?));
                block.await?;
                Ok(n)
            }
        })
        .settings(|settings| settings.blocked_after = Duration::from_millis(20));
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 1).await.unwrap();
    // On a busy machine others may be named too.
    let expected = (run.id(), Some("inner/blocks".to_owned()));
    until("the name of the step", async || engine.blocked().contains(&expected).then_some(()))
        .await;
    release.send(()).unwrap();
    assert_eq!(run.result().await.unwrap(), 1);
    let is_named = |it: &(RunId, Option<String>)| it.0 == run.id();
    assert!(!engine.blocked().iter().any(is_named), "it has ended");
    engine.shutdown().await;
}

/// Tokio lets a task use 128 resources in one poll, then makes all others look as if they were not
/// ready. All runs of an engine thread are polled in one poll of one task.
#[tokio::test(flavor = "multi_thread")]
async fn two_thousand_ready_runs_on_one_thread_do_not_starve() {
    const RUNS: usize = 2_000;
    let turns: Arc<Vec<AtomicUsize>> = Arc::new((0..RUNS).map(|_| AtomicUsize::new(0)).collect());
    let stop = Arc::new(AtomicBool::new(false));
    let (counted, stopped) = (turns.clone(), stop.clone());
    let engine = Engine::on(testing::store())
        .register_fn(WORK, move |ctx, n| {
            let (counted, stopped) = (counted.clone(), stopped.clone());
            async move {
                let hop = ctx.step("hop", async || {
                    let (sender, mut receiver) = tokio::sync::mpsc::channel(1);
                    // Ready again and again, for as long as anybody is still waiting for a turn.
                    while !stopped.load(Ordering::SeqCst) {
                        counted[n as usize].fetch_add(1, Ordering::SeqCst);
                        sender.send(()).await?;
                        receiver.recv().await;
                        tokio::task::yield_now().await;
                    }
                    Ok(())
                });
                hop.await?;
                Ok(n)
            }
        })
        .settings(|settings| settings.threads = 1);
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let starts = (0..RUNS as u32).map(|n| client.start(WORK, n).into_future());
    let runs = futures::future::try_join_all(starts).await.unwrap();
    until("a turn for everybody", async || {
        let fewest = turns.iter().map(|turns| turns.load(Ordering::SeqCst)).min();
        (fewest >= Some(3)).then_some(())
    })
    .await;
    stop.store(true, Ordering::SeqCst);
    for (n, run) in runs.iter().enumerate() {
        assert_eq!(run.result().await.unwrap() as usize, n);
    }
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dropping_an_engine_only_signals() {
    let store = testing::store();
    let (release, blocked) = mpsc::channel::<()>();
    let blocked = Arc::new(Mutex::new(blocked));
    let begun = Arc::new(AtomicBool::new(false));
    let (held, seen) = (blocked.clone(), begun.clone());
    let engine = Engine::on(store.clone());
    // Whoever waited for the body would wait for as long.
    let engine = engine.settings(|settings| settings.shutdown_limit = hours(1));
    let engine = engine.register_fn(WORK, move |ctx, n| {
        let (held, seen) = (held.clone(), seen.clone());
        async move {
            let block = ctx.step("blocks", async || {
                seen.store(true, Ordering::SeqCst);
                Ok(held.lock().unwrap().recv()?)
            });
            block.await?;
            Ok(n)
        }
    });
    let engine = engine.start().await.unwrap();
    let client = engine.client();
    let run = client.start(WORK, 1).await.unwrap();
    until("the body", async || begun.load(Ordering::SeqCst).then_some(())).await;
    let dropping = Instant::now();
    drop(engine);
    assert!(dropping.elapsed() < scenario::LIMIT);
    let error = client.start(WORK, 2).await.unwrap_err();
    assert_eq!(error.to_string(), "the client is closed: its engine has shut down");
    release.send(()).unwrap();
    let engine = Engine::on(store).register_fn(WORK, |_, n| async move { Ok(n) });
    let engine = engine.start().await.unwrap();
    // What the body gave after the drop was not recorded, or was recorded whole.
    let run = engine.client().run::<u32>(run.id());
    until("an end", async || {
        let status = run.status().await.unwrap();
        (status.is_terminal() || status == RunStatus::Paused).then_some(())
    })
    .await;
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_lets_bodies_end_and_records_what_they_gave() {
    let store = testing::store();
    let go = Arc::new(tokio::sync::Notify::new());
    let calls = Arc::new(AtomicUsize::new(0));
    let build = || {
        let (go, calls) = (go.clone(), calls.clone());
        Engine::on(store.clone()).register_fn(WORK, move |ctx, n| {
            let (go, calls) = (go.clone(), calls.clone());
            async move {
                let slow = ctx.step("slow", async || {
                    calls.fetch_add(1, Ordering::SeqCst);
                    go.notified().await;
                    Ok(())
                });
                slow.await?;
                ctx.step("next", async || Ok(())).await?;
                Ok(n)
            }
        })
    };
    let engine = build().start().await.unwrap();
    let run = engine.client().start(WORK, 1).await.unwrap();
    until("the body", async || (calls.load(Ordering::SeqCst) == 1).then_some(())).await;
    // Polled once, it has told the threads to drain; only then may the body end.
    let mut shutting_down = Box::pin(engine.shutdown());
    assert!(futures::poll!(&mut shutting_down).is_pending());
    go.notify_one();
    shutting_down.await;
    let client = Client::on(store.clone()).unwrap();
    let history = client.run::<u32>(run.id()).history().await.unwrap();
    assert_eq!(history.len(), 1, "the next body did not start: {history:?}");
    assert_eq!(history[0].status, everstep::EntryStatus::Completed);
    let engine = build().start().await.unwrap();
    let run = engine.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 1);
    assert_eq!(calls.load(Ordering::SeqCst), 1, "a completed step does not run again");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_drops_bodies_that_do_not_end_within_the_limit() {
    let store = testing::store();
    let calls = Arc::new(AtomicUsize::new(0));
    let counted = calls.clone();
    let engine = Engine::on(store.clone())
        .register_fn(WORK, move |ctx, n| {
            let counted = counted.clone();
            async move {
                let stuck = ctx.step("stuck", async || {
                    counted.fetch_add(1, Ordering::SeqCst);
                    let _: () = std::future::pending::<()>().await;
                    Ok(())
                });
                stuck.await?;
                Ok(n)
            }
        })
        .settings(|settings| settings.shutdown_limit = Duration::from_millis(50));
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 1).await.unwrap();
    until("the body", async || (calls.load(Ordering::SeqCst) == 1).then_some(())).await;
    let begun = Instant::now();
    engine.shutdown().await;
    assert!(begun.elapsed() < Duration::from_secs(10));
    let client = Client::on(store).unwrap();
    let status = client.run::<u32>(run.id()).status().await.unwrap();
    assert_eq!(status, RunStatus::Running, "it is taken up by the next engine");
}

#[tokio::test(flavor = "multi_thread")]
async fn shutdown_parks_what_waits_and_the_next_engine_goes_on() {
    let store = testing::store();
    let clock = VirtualClock::new();
    let work = |ctx: Ctx, n: u32| async move {
        ctx.sleep("long", hours(5)).await?;
        Ok(n)
    };
    let hold = clock.hold();
    let engine = Engine::on(store.clone()).register_fn(WORK, work);
    let engine = engine.clock(clock.clone()).start().await.unwrap();
    let run = engine.client().start(WORK, 3).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    engine.shutdown().await;
    let engine = Engine::on(store).register_fn(WORK, work);
    let engine = engine.clock(clock.clone()).start().await.unwrap();
    assert_eq!(engine.recovery().timers, 1);
    assert_eq!(
        engine.recovery().to_string(),
        "0 resumed, 1 timers set again, 0 already due, 0 waiting, 0 of unknown workflows, 0 paused"
    );
    drop(hold);
    let run = engine.client().run::<u32>(run.id());
    assert_eq!(run.result().await.unwrap(), 3);
    engine.shutdown().await;
}

/// The child: an engine on a file that runs until it is told to end.
async fn child_until_signal(path: &str) {
    let engine = Engine::open(path).register_fn(WORK, |ctx, n| async move {
        ctx.step("short", async || Ok(())).await?;
        ctx.listen::<()>("never").await?;
        Ok(n)
    });
    let engine = engine.start().await.unwrap();
    let run = engine.client().start(WORK, 1).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    let mut ending = std::pin::pin!(engine.shutdown_on_signal());
    // It listens from its first poll on.
    assert!(futures::poll!(&mut ending).is_pending());
    println!("\nready");
    ending.await.unwrap();
    println!("\ndone");
}

#[cfg(unix)]
#[tokio::test(flavor = "multi_thread")]
async fn sigterm_ends_an_engine_in_good_order() {
    use std::io::{BufRead, BufReader};
    const CHILD: &str = "EVERSTEP_TEST_SIGTERM";
    if let Ok(path) = std::env::var(CHILD) {
        return child_until_signal(&path).await;
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("app.db");
    let test = "sigterm_ends_an_engine_in_good_order";
    let mut child = scenario::second_process(module_path!(), test, CHILD, path.to_str().unwrap());
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    lines.find(|line| line.as_ref().unwrap() == "ready").unwrap().unwrap();
    let id = child.id().to_string();
    let sent = std::process::Command::new("kill").args(["-TERM", &id]).status();
    assert!(sent.unwrap().success());
    lines.find(|line| line.as_ref().unwrap() == "done").unwrap().unwrap();
    assert!(child.wait().unwrap().success());
    let store = everstep::store::SqliteStore::open(&path).unwrap();
    let runners = everstep::store::Store::runners(&store).unwrap();
    assert!(runners.is_empty(), "it has signed off: {runners:?}");
}
