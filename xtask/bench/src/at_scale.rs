//! `at_scale`: throughput with 1 million parked and 10 million finished runs in the store.

use std::{path::Path, time::Duration};

use everstep::{RunStatus, prelude::*};

use crate::{
    Directory, Problem,
    line::Line,
    seed::{self, Past},
    throughput,
};

const PARKED: u64 = 1_000_000;
const FINISHED: u64 = 10_000_000;
const TIME: Duration = Duration::from_secs(5);

/// Of each three rounds the middle one counts.
const ROUNDS: usize = 3;

#[workflow]
async fn past(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.sleep("year", days(365)).await?;
    Ok(n)
}

pub(crate) fn at_scale(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let measure = |path: &Path| -> Result<throughput::Measured, Problem> {
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            rounds.push(runtime.block_on(throughput::measure(path, TIME))?);
        }
        rounds.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
        Ok(rounds.swap_remove(ROUNDS / 2))
    };
    let empty = measure(&directory.fresh("empty.db"))?;
    let path = directory.fresh("full.db");
    runtime.block_on(async {
        let engine = Engine::open(&path).register(past).start().await?;
        engine.shutdown().await;
        Ok::<_, Problem>(())
    })?;
    seed::fill(&path, past_runs())?;
    let bytes = crate::directory::bytes_of(&path)?;
    let full = measure(&path)?;
    Line::new("at_scale", full.runs, full.time)
        .number("empty_per_second", empty.per_second())
        .number("ratio", full.per_second() / empty.per_second())
        .count("bytes", bytes)
        .print();
    Ok(())
}

/// A hundred runs in each millisecond, a year ago. One in eleven sleeps for another year.
fn past_runs() -> impl Iterator<Item = Past> {
    (0..PARKED + FINISHED).map(|n| {
        let run = Past::new(n, "past");
        match n % (1 + FINISHED / PARKED) {
            0 => run.sleeping(4_000_000_000_000 + n as i64),
            _ => run.ended(RunStatus::Completed),
        }
    })
}
