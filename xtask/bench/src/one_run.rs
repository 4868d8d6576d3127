//! What one run costs: `latency`, `long_history`, `replay`, `fan_out`.

use std::{
    sync::Mutex,
    time::{Duration, Instant},
};

use everstep::prelude::*;

use crate::{
    Directory, Problem,
    line::{Line, median},
    raw::{self, Rows},
};

#[workflow]
async fn one_step(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("only", async || Ok(n + 1)).await
}

/// A run of one step, 200 times, one after another, against two bare commits of the same rows.
pub(crate) fn latency(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const RUNS: u64 = 200;
    let path = directory.fresh("engine.db");
    let mut times = runtime.block_on(async {
        let engine = Engine::open(&path).register(one_step).start().await?;
        let client = engine.client();
        let mut times = Vec::new();
        for n in 0..RUNS + 20 {
            let began = Instant::now();
            let result = client.start(one_step, n).await?.result().await?;
            if result != n + 1 {
                return Err(Problem::from(format!("run {n} gave {result}")));
            }
            // The first ones find everything cold.
            if n >= 20 {
                times.push(began.elapsed());
            }
        }
        engine.shutdown().await;
        Ok(times)
    })?;
    let rows = Rows::of_engine(&path)?;
    let raw = directory.fresh("raw.db");
    let sizes = [vec![1; 2 * RUNS as usize + 40]];
    let written = raw::write_runs(&raw, &rows, 1, &sizes, Duration::from_secs(60))?;
    let both: Vec<Duration> = written.batches[40..].chunks(2).map(|two| two.iter().sum()).collect();
    // The middle of each: one slow sync of the disk is not the engine's.
    let (here, bare) = (median(&times), median(&both));
    Line::new("latency", RUNS, times.iter().sum())
        .raw(1.0 / here.as_secs_f64(), 1.0 / bare.as_secs_f64())
        .times(&mut times)
        .number("raw_p50_ms", bare.as_secs_f64() * 1e3)
        .print();
    Ok(())
}

/// When each step of the long run had its turn.
static TURNS: Mutex<Vec<Instant>> = Mutex::new(Vec::new());

#[workflow]
async fn long(ctx: Ctx, steps: u64) -> Result<u64> {
    let mut sum = 0;
    for i in 0..steps {
        sum += ctx
            .step("work", async || {
                TURNS.lock().expect("no turn panics").push(Instant::now());
                Ok(i)
            })
            .await?;
    }
    Ok(sum)
}

/// One run of 100 000 steps: the time of a step around the 1 000th, and at the end.
pub(crate) fn long_history(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const STEPS: u64 = 100_000;
    let path = directory.fresh("engine.db");
    let began = Instant::now();
    runtime.block_on(async {
        let engine = Engine::open(&path).register(long).start().await?;
        let sum = engine.client().start(long, STEPS).await?.result().await?;
        engine.shutdown().await;
        match sum == STEPS * (STEPS - 1) / 2 {
            true => Ok(()),
            false => Err(Problem::from(format!("the steps add up to {sum}"))),
        }
    })?;
    let time = began.elapsed();
    let turns = TURNS.lock().expect("no turn panics");
    let per_step = |from: usize, to: usize| {
        let steps: Vec<_> = turns[from..to].windows(2).map(|two| two[1] - two[0]).collect();
        median(&steps).as_secs_f64() * 1e6
    };
    let (early, late) = (per_step(500, 1_500), per_step(turns.len() - 1_000, turns.len()));
    Line::new("long_history", STEPS, time)
        .number("step_us_at_1000", early)
        .number("step_us_at_end", late)
        .number("ratio", early / late)
        .print();
    Ok(())
}

/// Steps that are written together, so that a long history is made quickly; then a wait.
#[workflow]
async fn history(ctx: Ctx, steps: u64) -> Result<u64> {
    let mut sum = 0;
    for i in 0..steps {
        sum += ctx.step("work", async || Ok(i)).ephemeral().await?;
    }
    let go: u64 = ctx.listen("go").await?;
    Ok(sum + go)
}

/// A run of 100 000 entries is woken cold: it is read and replayed to its end.
pub(crate) fn replay(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const ENTRIES: u64 = 100_000;
    const ROUNDS: usize = 5;
    let path = directory.fresh("engine.db");
    let mut times = runtime.block_on(async {
        let engine = Engine::open(&path).register(history).start().await?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let run = engine.client().start(history, ENTRIES).await?;
            crate::parked::until_sleeping(&engine.client(), "history", 1).await?;
            while !engine.evict(run.id()).await {
                tokio::time::sleep(Duration::from_millis(10)).await;
            }
            let began = Instant::now();
            run.send("go", &1u64).await?;
            let sum = run.result().await?;
            times.push(began.elapsed());
            if sum != ENTRIES * (ENTRIES - 1) / 2 + 1 {
                return Err(Problem::from(format!("the replay adds up to {sum}")));
            }
        }
        engine.shutdown().await;
        Ok(times)
    })?;
    Line::new("replay", ENTRIES, median(&times)).times(&mut times).print();
    Ok(())
}

#[workflow]
async fn wide(ctx: Ctx, steps: u64) -> Result<u64> {
    let all =
        ctx.map("all", 0..steps, async |ctx, i| ctx.step("work", async || Ok(i)).await).await?;
    Ok(all.iter().sum())
}

/// One run with 1 000 parallel steps.
pub(crate) fn fan_out(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const STEPS: u64 = 1_000;
    const ROUNDS: usize = 21;
    let path = directory.fresh("engine.db");
    let mut times = runtime.block_on(async {
        let engine = Engine::open(&path).register(wide).start().await?;
        let mut times = Vec::new();
        for _ in 0..ROUNDS {
            let began = Instant::now();
            let sum = engine.client().start(wide, STEPS).await?.result().await?;
            times.push(began.elapsed());
            if sum != STEPS * (STEPS - 1) / 2 {
                return Err(Problem::from(format!("the steps add up to {sum}")));
            }
        }
        engine.shutdown().await;
        Ok(times)
    })?;
    Line::new("fan_out", STEPS, median(&times)).times(&mut times).print();
    Ok(())
}
