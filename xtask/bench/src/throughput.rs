//! `throughput`: 2 000 runs of three steps in flight, for five seconds, against the bare loop.

use std::{
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::prelude::*;

use crate::{
    Directory, Problem,
    line::{Line, median},
    raw::{self, Rows},
};

/// How many runs are in flight.
pub(crate) const IN_FLIGHT: usize = 2_000;

/// How long each measurement takes at least, and how many are made.
const TIME: Duration = Duration::from_secs(5);
const ROUNDS: usize = 5;

#[workflow]
pub(crate) async fn three_steps(ctx: Ctx, n: u64) -> Result<u64> {
    let a = ctx.step("first", async || Ok(n + 1)).await?;
    let b = ctx.step("second", async || Ok(a * 2)).await?;
    ctx.step("third", async || Ok(b - n)).await
}

/// What the engine did.
pub(crate) struct Measured {
    pub(crate) runs: u64,
    pub(crate) time: Duration,
    fsyncs: u64,
    rows: u64,
    /// The sizes of its batches.
    sizes: Vec<u32>,
    /// What of them each lane had.
    lanes: Vec<Vec<u32>>,
    times: Vec<Duration>,
}

impl Measured {
    pub(crate) fn per_second(&self) -> f64 {
        self.runs as f64 / self.time.as_secs_f64()
    }
}

/// Engine and bare loop take turns, so that both meet the same weather.
pub(crate) fn throughput(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let (mut here, mut bare, mut indexed) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let path = directory.fresh("engine.db");
        let measured = runtime.block_on(measure(&path, TIME))?;
        let rows = Rows::of_engine(&path)?;
        let raw = directory.fresh("raw.db");
        let written = raw::write_runs(&raw, &rows, IN_FLIGHT, &measured.lanes, 2 * TIME)?;
        bare.push(written.per_second());
        let (lanes, limit) = (&measured.lanes, 2 * TIME);
        let copied = raw::write_indexed_runs(directory, &path, &rows, IN_FLIGHT, lanes, limit)?;
        indexed.extend(copied.map(|written| written.per_second()));
        here.push(measured);
    }
    here.sort_by(|a, b| a.per_second().total_cmp(&b.per_second()));
    let middle = &mut here[ROUNDS / 2];
    let per_second = middle.per_second();
    let size = median(&middle.sizes);
    let mut line = Line::new("throughput", middle.runs, middle.time)
        .number("steps_per_second", per_second * 3.0)
        .raw(per_second, median(&bare));
    if !indexed.is_empty() {
        let indexed = median(&indexed);
        line = line
            .number("raw_indexed_per_second", indexed)
            .number("ratio_indexed", per_second / indexed);
    }
    line.times(&mut middle.times)
        .count("fsyncs", middle.fsyncs)
        .count("rows", middle.rows)
        .count("batch_p50", u64::from(size))
        .count("lanes", middle.lanes.len() as u64)
        .print();
    Ok(())
}

/// An engine that can run what is measured.
pub(crate) fn engine(place: &Path) -> everstep::EngineBuilder {
    Engine::open(place).register(three_steps)
}

pub(crate) async fn measure(path: &Path, time: Duration) -> Result<Measured, Problem> {
    let engine = engine(path).start().await?;
    let measured = closed_loop(&engine, IN_FLIGHT, time).await;
    engine.shutdown().await;
    measured
}

/// A closed loop through the public client, and what it costs the engine.
pub(crate) async fn closed_loop(
    engine: &Engine,
    in_flight: usize,
    time: Duration,
) -> Result<Measured, Problem> {
    let (tools, before) = (engine.shared_for_tools(), engine.store().counters());
    tools.note_batch_sizes();
    let began = Instant::now();
    let times = call(&engine.client(), three_steps, in_flight, time).await?;
    let (time, after) = (began.elapsed(), engine.store().counters());
    let sizes = tools.take_batch_sizes();
    let lanes = lanes_of(&sizes, |size| tools.lanes_for(size));
    Ok(Measured {
        runs: times.len() as u64,
        time,
        fsyncs: after.batches - before.batches,
        rows: after.rows - before.rows,
        sizes,
        lanes,
        times,
    })
}

/// So many callers, each of which starts its next run when it has the result of the last. Gives how long
/// each run took. The workflow does what [`three_steps`] does.
pub(crate) async fn call<W>(
    client: &Client,
    workflow: W,
    in_flight: usize,
    time: Duration,
) -> Result<Vec<Duration>, Problem>
where
    W: everstep::WorkflowRef<Input = u64, Output = u64> + Copy + Send + Sync + 'static,
{
    let (over, next) = (Arc::new(AtomicBool::new(false)), Arc::new(AtomicU64::new(0)));
    let callers: Vec<_> = (0..in_flight)
        .map(|_| {
            let (client, over, next) = (client.clone(), over.clone(), next.clone());
            tokio::spawn(async move {
                let mut times = Vec::new();
                while !over.load(Ordering::Relaxed) {
                    let n = next.fetch_add(1, Ordering::Relaxed);
                    let began = Instant::now();
                    let result = client.start(workflow, n).await?.result().await?;
                    if result != n + 2 {
                        return Err(Problem::from(format!("run {n} gave {result}")));
                    }
                    times.push(began.elapsed());
                }
                Ok(times)
            })
        })
        .collect();
    tokio::time::sleep(time).await;
    over.store(true, Ordering::Relaxed);
    let mut times = Vec::new();
    for caller in callers {
        times.extend(caller.await??);
    }
    Ok(times)
}

/// What each lane had of batches of these sizes.
pub(crate) fn lanes_of(sizes: &[u32], lanes_for: impl Fn(usize) -> usize) -> Vec<Vec<u32>> {
    let mut lanes: Vec<Vec<u32>> = Vec::new();
    for size in sizes {
        let parts = lanes_for(*size as usize);
        lanes.resize_with(parts.max(lanes.len()), Vec::new);
        for lane in lanes.iter_mut().take(parts) {
            lane.push(size.div_ceil(parts as u32));
        }
    }
    lanes
}
