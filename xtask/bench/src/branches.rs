//! `branches`: runs of 8 parallel branches of 5 steps each, and how many commits a step takes.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::prelude::*;

use crate::{
    Directory, Problem,
    line::{Line, median},
};

const BRANCHES: u64 = 8;
const STEPS: u64 = 5;

/// How many runs there are, how many of them are in flight, and how often that is measured.
const RUNS: u64 = 400;
const IN_FLIGHT: u64 = 50;
const ROUNDS: usize = 3;

/// A body takes up to this many milliseconds, so that the branches are not in step.
const BODY_MS_MAX: u64 = 5;

/// What the branches of a run do: a number for the run, and whether their bodies take time.
type Work = (u64, bool);

#[workflow]
async fn branched(ctx: Ctx, (run, takes_time): Work) -> Result<u64> {
    let sums = ctx
        .map("branches", 0..BRANCHES, async |ctx, branch| {
            let mut sum = 0;
            for step in 0..STEPS {
                // The same in every measurement, and not the same in two branches.
                let ms = (run * 7 + branch * 3 + step * 5) % (BODY_MS_MAX + 1);
                let body = async || {
                    if takes_time {
                        tokio::time::sleep(Duration::from_millis(ms)).await;
                    }
                    Ok(1)
                };
                sum += ctx.step("work", body).await?;
            }
            Ok(sum)
        })
        .await?;
    Ok(sums.iter().sum())
}

/// What a round took.
struct Measured {
    time: Duration,
    times: Vec<Duration>,
    /// The commits of runs, their starts included.
    commits: u64,
    fsyncs: u64,
}

/// Bodies that take from 0 to 5 ms; and, beside it, bodies that end at once, whose branches stay in
/// step. The commits count: a barrier that is too high makes more of them.
pub(crate) fn branches(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let measure = |takes_time| {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let path = directory.fresh("engine.db");
            rounds.push(runtime.block_on(measure(&path, takes_time))?);
        }
        rounds.sort_by_key(|round| round.time);
        Ok::<_, Problem>(rounds)
    };
    let (mut uneven, at_once) = (measure(true)?, measure(false)?);
    let per_run = |rounds: &[Measured]| {
        let commits: Vec<_> = rounds.iter().map(|round| round.commits).collect();
        median(&commits) as f64 / RUNS as f64
    };
    let steps = BRANCHES * STEPS;
    let (commits, commits_at_once) = (per_run(&uneven), per_run(&at_once));
    let per_second = |round: &Measured| (RUNS * steps) as f64 / round.time.as_secs_f64();
    let steps_at_once = per_second(&at_once[ROUNDS / 2]);
    let middle = &mut uneven[ROUNDS / 2];
    Line::new("branches", RUNS, middle.time)
        .number("steps_per_second", per_second(middle))
        .times(&mut middle.times)
        .number("commits_per_run", commits)
        .number("commits_per_step", commits / steps as f64)
        .count("fsyncs", middle.fsyncs)
        .number("at_once_steps_per_second", steps_at_once)
        .number("at_once_commits_per_run", commits_at_once)
        .number("at_once_commits_per_step", commits_at_once / steps as f64)
        .print();
    Ok(())
}

async fn measure(path: &Path, takes_time: bool) -> Result<Measured, Problem> {
    let engine = Engine::open(path).register(branched).start().await?;
    let (client, tools) = (engine.client(), engine.shared_for_tools());
    let before = engine.store().counters();
    tools.note_batch_sizes();
    let next = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    let callers = (0..IN_FLIGHT).map(|_| {
        let (client, next) = (client.clone(), next.clone());
        tokio::spawn(async move {
            let mut times = Vec::new();
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= RUNS {
                    return Ok::<_, Problem>(times);
                }
                let began = Instant::now();
                let run = client.start(branched, (n, takes_time)).await?;
                let sum = run.result().await?;
                times.push(began.elapsed());
                if sum != BRANCHES * STEPS {
                    return Err(format!("run {n} has made {sum} steps").into());
                }
            }
        })
    });
    let mut times = Vec::new();
    for caller in callers.collect::<Vec<_>>() {
        times.extend(caller.await??);
    }
    let time = began.elapsed();
    let commits = tools.take_batch_sizes().into_iter().map(u64::from).sum();
    let fsyncs = engine.store().counters().batches - before.batches;
    engine.shutdown().await;
    Ok(Measured { time, times, commits, fsyncs })
}
