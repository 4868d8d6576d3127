//! `cpu`: processor time and counts per run under fixed loads, on both stores.
//!
//! Seconds depend on the machine and on its neighbours. The numbers here depend on them little, so that
//! two versions of the engine can be compared by them: processor time by thread and of the server,
//! round trips, statements, rows, bytes of the log and syncs, each divided by the number of runs. How
//! much the machine still shows is `spread`: the largest less the smallest of five rounds, as a part of
//! the middle one, which is the one that counts.
//!
//! Each round is made on an empty store, after a warm-up:
//!
//! 1. On PostgreSQL, one life of an engine without the load. What the statistics of the server say of it
//!    is taken off: a backend reports them when it ends, so they cannot be read before and after a load.
//! 2. One life of an engine with the load, between two readings of everything that is counted at once.
//! 3. On PostgreSQL, one more through a proxy that counts round trips. It costs time, so nothing else is
//!    read of this life.
//! 4. The bare loop, with the same rows in as many batches.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{RunHandle, prelude::*, store::StoreCounters};
use everstep_pg::TripCounter;

use crate::{
    Directory, Problem,
    bare::{Bare, FINISH, START, STEP},
    line::{Line, median},
    parked::until_sleeping,
    process::{self, Written},
    raw::{self, Rows},
    throughput::{self, lanes_of},
};

mod server;
mod sqlite;

pub(crate) use server::start as start_counting_server;
use server::{Statements, Statistics};

const ROUNDS: usize = 5;

/// The figures that are the processor time of threads of a name begin so.
const THREAD: &str = "cpu_us.";

/// A bare loop has as long as it needs.
const NO_LIMIT: Duration = Duration::from_secs(3_600);

/// One load, always the same.
struct Load {
    name: &'static str,
    runs: u64,
    in_flight: u64,
    work: Work,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Work {
    ThreeSteps,
    OneStep,
    /// A message to a run that waits for it in memory: from the message to the end of the run.
    Signal,
    /// 8 parallel branches of 5 steps.
    Branches,
}

const LOADS: &[Load] = &[
    Load { name: "three_steps", runs: 20_000, in_flight: 2_000, work: Work::ThreeSteps },
    Load { name: "one_step_alone", runs: 500, in_flight: 1, work: Work::OneStep },
    Load { name: "signals", runs: 10_000, in_flight: 2_000, work: Work::Signal },
    Load { name: "branches", runs: 1_000, in_flight: 50, work: Work::Branches },
];

#[workflow]
async fn one_step(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("only", async || Ok(n)).await
}

#[workflow]
async fn listener(ctx: Ctx, _: u64) -> Result<u64> {
    ctx.listen("value").await
}

#[workflow]
async fn branches(ctx: Ctx, n: u64) -> Result<u64> {
    let branch = async |ctx: Ctx, _| {
        for _ in 0..5 {
            ctx.step("work", async || Ok(())).await?;
        }
        Ok(())
    };
    ctx.map("branches", 0..8_u64, branch).await?;
    Ok(n)
}

/// Figures by name, in their order.
type Figures = Vec<(String, f64)>;

/// Every load, each with a line.
pub(crate) fn cpu(runtime: &tokio::runtime::Runtime, directory: &Directory) -> Result<(), Problem> {
    sqlite::start()?;
    for load in LOADS {
        let mut times = Vec::new();
        let mut rounds = Vec::new();
        for _ in 0..ROUNDS {
            let (time, figures) = runtime.block_on(round(load, directory))?;
            times.push(time);
            rounds.push(figures);
        }
        let (per_run, spread) = summary(&rounds);
        Line::new("cpu", load.runs, median(&times))
            .text("load", load.name)
            .object("per_run", &per_run)
            .object("spread", &spread)
            .print();
    }
    Ok(())
}

/// The middle of the rounds for each figure, and how far the rounds lie apart as a part of it. The time
/// of a thread that did nothing in most rounds is left out.
fn summary(rounds: &[Figures]) -> (Figures, Figures) {
    let (mut per_run, mut spread) = (Figures::new(), Figures::new());
    for (name, _) in rounds.iter().flatten() {
        if per_run.iter().any(|(known, _)| known == name) {
            continue;
        }
        let of_round = |round: &Figures| {
            let found = round.iter().find(|(other, _)| other == name);
            found.map_or(0.0, |(_, figure)| *figure)
        };
        let mut figures: Vec<f64> = rounds.iter().map(of_round).collect();
        figures.sort_by(f64::total_cmp);
        let middle = figures[figures.len() / 2];
        if middle == 0.0 && name.starts_with(THREAD) {
            continue;
        }
        let apart = figures[figures.len() - 1] - figures[0];
        let part = match middle == 0.0 {
            true => 0.0,
            false => apart / middle.abs(),
        };
        per_run.push((name.clone(), middle));
        spread.push((name.clone(), (part * 1e3).round() / 1e3));
    }
    (per_run, spread)
}

async fn round(load: &Load, directory: &Directory) -> Result<(Duration, Figures), Problem> {
    let before = Statistics::read(directory).await?;
    if before.is_some() {
        life(load, &directory.fresh("engine.db"), directory, None, false).await?;
    }
    let between = Statistics::read(directory).await?;
    let place = directory.fresh("engine.db");
    let life_with_load = life(load, &place, directory, None, true).await?;
    let after = Statistics::read(directory).await?;
    let Some(lived) = life_with_load else {
        return Err("a load was not made".into());
    };
    let mut figures = lived.figures(load);
    if let (Some(before), Some(between), Some(after)) = (before, between, after) {
        let statistics = after.since(&between).since(&between.since(&before));
        figures.extend(statistics.figures(load.runs));
    }
    if let Some(server) = &directory.server {
        let counter = TripCounter::start_before(server.address())?;
        let through = through(&counter, &directory.fresh("engine.db"))?;
        let trips = life(load, &through, directory, Some(&counter), true).await?;
        let (trips, requests) = trips.map(|lived| lived.trips()).unwrap_or_default();
        figures.push(("round_trips".to_owned(), trips as f64 / load.runs as f64));
        figures.push(("sync_requests".to_owned(), requests as f64 / load.runs as f64));
    }
    let bare = tokio::task::block_in_place(|| bare(load, &place, directory, &lived.lanes))?;
    figures.extend(bare);
    Ok((lived.time(), figures))
}

/// The place of the same schema behind a proxy.
fn through(counter: &TripCounter, place: &Path) -> Result<PathBuf, Problem> {
    let place = place.to_str().ok_or("a place is text")?;
    let (_, options) = place.split_once('?').ok_or("a place names a schema")?;
    Ok(format!("{}?{options}", counter.url_for("postgres")).into())
}

/// An engine from its start to its end. The load is made between two readings, or not at all.
async fn life(
    load: &Load,
    place: &Path,
    directory: &Directory,
    counter: Option<&TripCounter>,
    with_load: bool,
) -> Result<Option<Lived>, Problem> {
    let engine = throughput::engine(place).register(one_step).register(listener);
    // Waiting runs stay in memory.
    let engine = engine.settings(|set| set.hot_bytes = usize::MAX / 2);
    let engine = engine.register(branches).start().await?;
    let warm_up = load.runs / 10;
    let waiting = prepare(load.work, &engine, warm_up).await?;
    run(load, &engine, warm_up, waiting).await?;
    let waiting = prepare(load.work, &engine, load.runs).await?;
    let mut lived = None;
    if with_load {
        let tools = engine.shared_for_tools();
        tools.note_batch_sizes();
        let before = Reading::before(&engine, directory, counter)?;
        run(load, &engine, load.runs, waiting).await?;
        let after = Reading::after(&engine, directory, counter)?;
        let sizes = tools.take_batch_sizes();
        let lanes = lanes_of(&sizes, |size| tools.lanes_for(size));
        lived = Some(Lived { before, after, sizes, lanes });
    }
    engine.shutdown().await;
    Ok(lived)
}

/// The runs that the load wakes, which are parked when this returns.
async fn prepare(work: Work, engine: &Engine, n: u64) -> Result<Vec<RunHandle<u64>>, Problem> {
    let client = engine.client();
    if work != Work::Signal {
        return Ok(Vec::new());
    }
    let starts = (0..n).map(|n| {
        let client = client.clone();
        tokio::spawn(async move { client.start(listener, n).await })
    });
    let mut runs = Vec::new();
    for start in starts.collect::<Vec<_>>() {
        runs.push(start.await??);
    }
    until_sleeping(&client, "listener", n).await?;
    // The row is written before its owner has heard of it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    Ok(runs)
}

/// Makes `n` runs, so many at a time as the load says. Runs that wait already are sent a message.
async fn run(
    load: &Load,
    engine: &Engine,
    n: u64,
    waiting: Vec<RunHandle<u64>>,
) -> Result<(), Problem> {
    let (client, work) = (engine.client(), load.work);
    let (next, waiting) = (Arc::new(AtomicU64::new(0)), Arc::new(waiting));
    let callers = (0..load.in_flight).map(|_| {
        let (client, next, waiting) = (client.clone(), next.clone(), waiting.clone());
        tokio::spawn(async move {
            loop {
                let i = next.fetch_add(1, Ordering::Relaxed);
                if i >= n {
                    return Ok::<(), Problem>(());
                }
                let (result, wanted) = match work {
                    Work::ThreeSteps => {
                        let run = client.start(throughput::three_steps, i).await?;
                        (run.result().await?, i + 2)
                    }
                    Work::OneStep => (client.start(one_step, i).await?.result().await?, i),
                    Work::Branches => (client.start(branches, i).await?.result().await?, i),
                    Work::Signal => {
                        let run = &waiting[i as usize];
                        run.send("value", &i).await?;
                        (run.result().await?, i)
                    }
                };
                if result != wanted {
                    return Err(format!("run {i} gave {result}").into());
                }
            }
        })
    });
    for caller in callers.collect::<Vec<_>>() {
        caller.await??;
    }
    Ok(())
}

/// What is counted at once, at one instant.
struct Reading {
    at: Instant,
    process: Duration,
    threads: BTreeMap<String, Duration>,
    written: Written,
    server: Duration,
    store: StoreCounters,
    statements: Option<Statements>,
    sqlite: sqlite::Counts,
    trips: (u64, u64),
}

impl Reading {
    /// The server is asked first, so that its answer costs nothing that is measured.
    fn before(
        engine: &Engine,
        directory: &Directory,
        counter: Option<&TripCounter>,
    ) -> Result<Reading, Problem> {
        let statements = Statements::read(directory)?;
        Ok(Reading { statements, ..Reading::now(engine, directory, counter) })
    }

    /// The server is asked last.
    fn after(
        engine: &Engine,
        directory: &Directory,
        counter: Option<&TripCounter>,
    ) -> Result<Reading, Problem> {
        let reading = Reading::now(engine, directory, counter);
        let statements = Statements::read(directory)?;
        Ok(Reading { statements, ..reading })
    }

    fn now(engine: &Engine, directory: &Directory, counter: Option<&TripCounter>) -> Reading {
        Reading {
            at: Instant::now(),
            process: process::cpu_time(),
            threads: process::cpu_time_by_thread(),
            written: process::written(),
            server: server::cpu_time(directory),
            store: engine.store().counters(),
            statements: None,
            sqlite: sqlite::Counts::read(),
            trips: counter.map(|it| (it.trips(), it.requests())).unwrap_or_default(),
        }
    }
}

/// What a load took.
struct Lived {
    before: Reading,
    after: Reading,
    /// The sizes of the batches, of all lanes together and of each.
    sizes: Vec<u32>,
    lanes: Vec<Vec<u32>>,
}

impl Lived {
    fn time(&self) -> Duration {
        self.after.at - self.before.at
    }

    fn trips(&self) -> (u64, u64) {
        let (before, after) = (self.before.trips, self.after.trips);
        (after.0 - before.0, after.1 - before.1)
    }

    fn figures(&self, load: &Load) -> Figures {
        let (before, after) = (&self.before, &self.after);
        let runs = load.runs as f64;
        let micros = |time: Duration| time.as_secs_f64() * 1e6 / runs;
        let mut figures = Figures::new();
        let mut add = |name: &str, figure: f64| figures.push((name.to_owned(), figure));
        add("cpu_us", micros(after.process - before.process));
        for (name, time) in &after.threads {
            let earlier = before.threads.get(name).copied().unwrap_or_default();
            let spent = time.saturating_sub(earlier);
            // Threads that only look at a clock now and then.
            if micros(spent) >= 0.01 {
                add(&format!("{THREAD}{name}"), micros(spent));
            }
        }
        let each = |before: u64, after: u64| (after - before) as f64 / runs;
        let commits = self.sizes.iter().map(|size| f64::from(*size)).sum::<f64>();
        let (store_before, store_after) = (before.store, after.store);
        add("commits", commits / runs);
        add("batches", each(store_before.batches, store_after.batches));
        add("store_rows", each(store_before.rows, store_after.rows));
        add("store_reads", each(store_before.reads, store_after.reads));
        match (before.statements, after.statements) {
            (Some(before_statements), Some(after_statements)) => {
                add("server_cpu_us", micros(after.server - before.server));
                let statements = after_statements.since(&before_statements);
                statements.figures(load.runs, &mut add);
            }
            _ => {
                after.sqlite.figures_since(&before.sqlite, load.runs, &mut add);
                add("write_calls", each(before.written.calls, after.written.calls));
                add("write_bytes", each(before.written.bytes, after.written.bytes));
            }
        }
        figures
    }
}

/// The processor time of the bare loop, of this process and of the server.
fn bare(
    load: &Load,
    place: &Path,
    directory: &Directory,
    lanes: &[Vec<u32>],
) -> Result<Figures, Problem> {
    let raw = directory.fresh("raw.db");
    let (runs, (process, server)) = match load.work {
        Work::Signal => bare_signals(load, &raw, directory, lanes)?,
        _ => {
            let rows = Rows::of_engine(place)?;
            let (lanes, runs) = scaled(lanes, load.runs, rows.writes() as u64);
            let in_flight = load.in_flight as usize;
            let spent = spent(directory, || {
                raw::write_runs(&raw, &rows, in_flight, &lanes, NO_LIMIT).map(drop)
            })?;
            (runs, spent)
        }
    };
    let micros = |time: Duration| time.as_secs_f64() * 1e6 / runs;
    let mut figures = vec![("bare_cpu_us".to_owned(), micros(process))];
    if directory.server.is_some() {
        figures.push(("bare_server_cpu_us".to_owned(), micros(server)));
    }
    Ok(figures)
}

/// A message is put into the inbox of a run in one batch, and taken, recorded and answered in another.
fn bare_signals(
    load: &Load,
    place: &Path,
    directory: &Directory,
    lanes: &[Vec<u32>],
) -> Result<(f64, (Duration, Duration)), Problem> {
    let bare = Bare::new(place)?;
    bare.each(load.runs, &[load.runs], &[START])?;
    let put = "INSERT INTO everstep_inbox (run, seq, name, body) \
               VALUES (?1 + (1763000000000 << 20), 1, 'value', zeroblob(2))";
    let count = "UPDATE everstep_runs SET inbox_seq = 1 WHERE no = ?1 + (1763000000000 << 20)";
    let take = "DELETE FROM everstep_inbox WHERE run = ?1 + (1763000000000 << 20) AND seq = 1";
    let sizes: Vec<u64> = lanes.iter().flatten().map(|size| u64::from(*size)).collect();
    let spent = spent(directory, || {
        bare.each(load.runs, &sizes, &[put, count])?;
        bare.each(load.runs, &sizes, &[take, STEP, FINISH])?;
        Ok(())
    })?;
    Ok((load.runs as f64, spent))
}

/// The processor time that this process and the server take for something.
fn spent(
    directory: &Directory,
    work: impl FnOnce() -> Result<(), Problem>,
) -> Result<(Duration, Duration), Problem> {
    let (process, server) = (process::cpu_time(), server::cpu_time(directory));
    work()?;
    let (process_after, server_after) = (process::cpu_time(), server::cpu_time(directory));
    Ok((process_after - process, server_after.saturating_sub(server)))
}

/// As many batches, with sizes in the same proportions, for the writes of the bare loop: it writes
/// one entry at a time, the engine may write several in one commit. And how many runs that makes.
fn scaled(lanes: &[Vec<u32>], runs: u64, writes: u64) -> (Vec<Vec<u32>>, f64) {
    let all: u64 = lanes.iter().flatten().map(|size| u64::from(*size)).sum();
    let factor = (runs * writes) as f64 / all.max(1) as f64;
    let scale = |size: &u32| ((f64::from(*size) * factor).round() as u32).max(1);
    let lanes: Vec<Vec<u32>> = lanes.iter().map(|lane| lane.iter().map(scale).collect()).collect();
    let all: u64 = lanes.iter().flatten().map(|size| u64::from(*size)).sum();
    (lanes, all as f64 / writes as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn middle_of_the_rounds_counts() {
        let round = |rows: f64, thread: f64| {
            vec![("rows".to_owned(), rows), (format!("{THREAD}x"), thread)]
        };
        let (per_run, spread) = summary(&[round(2.0, 0.0), round(4.0, 0.0), round(5.0, 1.0)]);
        assert_eq!(per_run, [("rows".to_owned(), 4.0)]);
        assert_eq!(spread, [("rows".to_owned(), 0.75)]);
    }

    #[test]
    fn batches_of_the_bare_loop_are_as_many_and_hold_all_writes() {
        let (lanes, runs) = scaled(&[vec![1, 10, 39], vec![50]], 50, 4);
        assert_eq!(lanes, [vec![2, 20, 78], vec![100]]);
        assert_eq!(runs, 50.0);
    }
}
