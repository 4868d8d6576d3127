//! What waiting runs cost: `park`, `wake_hot`, `signal`, `idle`.

use std::{
    path::Path,
    process::Command,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{RunStatus, prelude::*};

use crate::{Directory, Problem, directory::bytes_of, line::Line, process};

/// How many runs sleep.
const PARKED: u64 = 100_000;

/// How many starts are under way at a time.
const STARTERS: usize = 2_000;

#[workflow]
async fn sleeper(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.sleep("night", days(1)).await?;
    Ok(n)
}

#[workflow]
async fn waiter(ctx: Ctx, n: u64) -> Result<u64> {
    let more: u64 = ctx.listen("more").await?;
    Ok(n + more)
}

/// An engine that keeps every parked run in memory, or none.
async fn start(path: &Path, hot: bool) -> Result<Engine, Problem> {
    let bytes = if hot { usize::MAX / 2 } else { 0 };
    let engine = Engine::open(path).register(sleeper).register(waiter);
    Ok(engine.settings(|set| set.hot_bytes = bytes).start().await?)
}

/// Waits until this many runs of a workflow are parked.
pub(crate) async fn until_sleeping(client: &Client, workflow: &str, n: u64) -> Result<(), Problem> {
    loop {
        let sleeping = client.count().workflow(workflow).status(RunStatus::Sleeping);
        if sleeping.await? >= n {
            return Ok(());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Starts sleeping runs, and waits until all of them are parked.
async fn fill(engine: &Engine, n: u64) -> Result<Duration, Problem> {
    let (client, next) = (engine.client(), Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let starters: Vec<_> = (0..STARTERS)
        .map(|_| {
            let (client, next) = (client.clone(), next.clone());
            tokio::spawn(async move {
                loop {
                    let i = next.fetch_add(1, Ordering::Relaxed);
                    if i >= n {
                        return Ok::<(), Problem>(());
                    }
                    client.start(sleeper, i).await?;
                }
            })
        })
        .collect();
    for starter in starters {
        starter.await??;
    }
    until_sleeping(&client, "sleeper", n).await?;
    Ok(began.elapsed())
}

/// The first argument of a process that is started to measure its memory.
pub(crate) const CHILD: &str = "--park-child";

/// 100 000 sleeping runs: how long that takes, and what each costs in memory and on disk.
///
/// Memory is measured in processes of their own, so that nothing else is in it: one in which the
/// runs are hot, and one that opens the file later, in which they are cold.
pub(crate) fn park(_: &tokio::runtime::Runtime, directory: &Directory) -> Result<(), Problem> {
    let path = directory.fresh("engine.db");
    let empty = directory.fresh("empty.db");
    let nothing = ask_child("open", &empty)?;
    let filled = ask_child("fill", &path)?;
    let opened = ask_child("open", &path)?;
    let each =
        |child: &Figures| child.resident.saturating_sub(nothing.resident) as f64 / PARKED as f64;
    let bytes = bytes_of(&path)?.saturating_sub(bytes_of(&empty)?);
    Line::new("park", PARKED, Duration::from_secs_f64(filled.seconds))
        .number("bytes", bytes as f64 / PARKED as f64)
        .number("hot_bytes", each(&filled))
        .number("cold_bytes", each(&opened))
        .count("hot", filled.hot)
        .print();
    Ok(())
}

/// What a child has found.
struct Figures {
    seconds: f64,
    resident: u64,
    hot: u64,
}

fn ask_child(what: &str, path: &Path) -> Result<Figures, Problem> {
    let output = Command::new(std::env::current_exe()?).args([CHILD, what]).arg(path).output()?;
    if !output.status.success() {
        return Err(String::from_utf8_lossy(&output.stderr).into());
    }
    let text = String::from_utf8(output.stdout)?;
    let numbers: Vec<&str> = text.split_whitespace().collect();
    let [seconds, resident, hot] = numbers[..] else {
        return Err(format!("the child said `{text}`").into());
    };
    Ok(Figures { seconds: seconds.parse()?, resident: resident.parse()?, hot: hot.parse()? })
}

/// The child of [`park`]: opens a file, fills it if asked to, and says what that took.
pub(crate) fn child(arguments: &[String]) -> Result<(), Problem> {
    let [what, path] = arguments else {
        return Err("the child wants `open` or `fill`, and a path".into());
    };
    crate::runtime()?.block_on(async {
        let engine = start(Path::new(path), what == "fill").await?;
        let time = match what.as_str() {
            "fill" => fill(&engine, PARKED).await?,
            _ => Duration::ZERO,
        };
        tokio::time::sleep(Duration::from_millis(500)).await;
        let hot = engine.census().await.hot;
        println!("{} {} {hot}", time.as_secs_f64(), process::resident_bytes());
        engine.shutdown().await;
        Ok(())
    })
}

/// Runs that wait for a message in memory: what they read of the store when it comes. Nothing.
pub(crate) fn wake_hot(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let path = directory.fresh("engine.db");
    runtime.block_on(async {
        let engine = start(&path, true).await?;
        let woken = wake(&engine, 1_000).await?;
        Line::new("wake_hot", 1_000, woken.time).count("reads", woken.reads).print();
        engine.shutdown().await;
        // The engine looks at its lease and at what others did now and then, and that may fall into it.
        match woken.reads {
            0..10 => Ok(()),
            reads => Err(format!("1000 hot runs cost {reads} reads of the store").into()),
        }
    })
}

/// 1 000 waiting runs, one message each: how long from the message to the result.
pub(crate) fn signal(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let path = directory.fresh("engine.db");
    runtime.block_on(async {
        let engine = start(&path, true).await?;
        // The first round finds everything cold.
        wake(&engine, 1_000).await?;
        let mut woken = wake(&engine, 1_000).await?;
        Line::new("signal", 1_000, woken.time).times(&mut woken.times).print();
        engine.shutdown().await;
        Ok(())
    })
}

/// What waking took.
struct Woken {
    time: Duration,
    times: Vec<Duration>,
    reads: u64,
}

/// Starts waiting runs, lets them park, and sends one message to each.
async fn wake(engine: &Engine, n: u64) -> Result<Woken, Problem> {
    let client = engine.client();
    let mut runs = Vec::new();
    for i in 0..n {
        runs.push(client.start(waiter, i).await?);
    }
    until_sleeping(&client, "waiter", n).await?;
    // The row is written before its owner has heard of it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let (before, began) = (engine.store().counters(), Instant::now());
    let waits: Vec<_> = runs
        .into_iter()
        .enumerate()
        .map(|(i, run)| {
            tokio::spawn(async move {
                let began = Instant::now();
                run.send("more", &1u64).await?;
                let sum = run.result().await?;
                match sum == i as u64 + 1 {
                    true => Ok(began.elapsed()),
                    false => Err(Problem::from(format!("run {i} gave {sum}"))),
                }
            })
        })
        .collect();
    let mut times = Vec::new();
    for wait in waits {
        times.push(wait.await??);
    }
    Ok(Woken {
        time: began.elapsed(),
        times,
        reads: engine.store().counters().reads - before.reads,
    })
}

/// An engine with 100 000 parked runs and nothing to do, for ten seconds.
pub(crate) fn idle(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const TIME: Duration = Duration::from_secs(10);
    let path = directory.fresh("engine.db");
    runtime.block_on(async {
        let engine = start(&path, true).await?;
        fill(&engine, PARKED).await?;
        tokio::time::sleep(Duration::from_secs(1)).await;
        let (before, cpu) = (engine.store().counters(), process::cpu_time());
        tokio::time::sleep(TIME).await;
        let (after, cpu) = (engine.store().counters(), process::cpu_time() - cpu);
        let queries = after.reads - before.reads + after.batches - before.batches;
        Line::new("idle", PARKED, TIME)
            .number("cpu_ms", cpu.as_secs_f64() * 1e3)
            .count("queries", queries)
            .number("queries_per_second", queries as f64 / TIME.as_secs_f64())
            .print();
        engine.shutdown().await;
        Ok(())
    })
}
