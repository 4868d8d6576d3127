//! What runs wait for, start and share: `events`, `children`, `queue`, `schedule`.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant, SystemTime},
};

use everstep::{Overlap, prelude::*};

use crate::{
    Directory, Problem,
    bare::{Bare, FINISH, START, STEP},
    line::{Line, median},
    parked::until_sleeping,
};

/// Of several rounds the middle one counts.
const ROUNDS: usize = 5;

const NEWS: Event<u64> = Event::new("news");

#[workflow]
async fn reader(ctx: Ctx, n: u64) -> Result<u64> {
    let news = ctx.event(NEWS).await?;
    Ok(n + news)
}

/// What a round of [`events`] took.
struct Heard {
    all: Duration,
    times: Vec<Duration>,
    published: Duration,
    bare: Duration,
}

/// 1 000 runs wait, one event is published: how long until all of them have taken it and ended.
///
/// Bare: one transaction that puts it into 1 000 inboxes; then, in batches of the sizes that the
/// engine made, each is taken and recorded, and the run ended.
pub(crate) fn events(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const WAITERS: u64 = 1_000;
    let mut rounds = Vec::new();
    for _ in 0..ROUNDS {
        let path = directory.fresh("engine.db");
        let (mut heard, sizes) = runtime.block_on(async {
            let engine = Engine::open(&path).register(reader).start().await?;
            let heard = publish(&engine, WAITERS).await;
            engine.shutdown().await;
            heard
        })?;
        heard.bare = bare_events(directory, WAITERS, &sizes)?;
        rounds.push(heard);
    }
    rounds.sort_by_key(|heard| heard.all);
    let bare: Vec<_> = rounds.iter().map(|heard| heard.bare).collect();
    let bare = median(&bare).as_secs_f64();
    let heard = &mut rounds[ROUNDS / 2];
    let all = heard.all.as_secs_f64();
    Line::new("events", WAITERS, heard.all)
        .raw(WAITERS as f64 / all, WAITERS as f64 / bare)
        .times(&mut heard.times)
        .number("published_ms", heard.published.as_secs_f64() * 1e3)
        .number("all_ms", all * 1e3)
        .number("raw_all_ms", bare * 1e3)
        .print();
    Ok(())
}

async fn publish(engine: &Engine, waiters: u64) -> Result<(Heard, Vec<u64>), Problem> {
    let client = engine.client();
    let mut runs = Vec::new();
    for n in 0..waiters {
        runs.push(client.start(reader, n).await?);
    }
    until_sleeping(&client, "reader", waiters).await?;
    // The row is written before its owner has heard of it.
    tokio::time::sleep(Duration::from_millis(100)).await;
    let tools = engine.shared_for_tools();
    let waits = runs.into_iter().enumerate().map(|(n, run)| {
        tokio::spawn(async move {
            match run.result().await? == n as u64 + 7 {
                true => Ok(Instant::now()),
                false => Err(Problem::from(format!("run {n} gave another number"))),
            }
        })
    });
    let waits: Vec<_> = waits.collect();
    tokio::time::sleep(Duration::from_millis(50)).await;
    tools.note_batch_sizes();
    let began = Instant::now();
    client.publish(NEWS, &7).await?;
    let published = began.elapsed();
    let mut times = Vec::new();
    for wait in waits {
        times.push(wait.await?? - began);
    }
    let all = times.iter().copied().max().unwrap_or_default();
    let sizes = tools.take_batch_sizes().into_iter().skip(1);
    let heard = Heard { all, times, published, bare: Duration::ZERO };
    Ok((heard, sizes.map(u64::from).collect()))
}

fn bare_events(directory: &Directory, n: u64, sizes: &[u64]) -> Result<Duration, Problem> {
    let bare = Bare::new(&directory.fresh("raw.db"))?;
    let wait = "INSERT INTO waiters (no, run, key) VALUES (?1, ?1, X'026E657773')";
    bare.each(n, &[n], &[START, wait])?;
    let put = "INSERT INTO everstep_inbox (run, seq, name, body, wait) \
               VALUES (?1 + (1763000000000 << 20), 1, 'news', zeroblob(2), X'026E657773')";
    let count = "UPDATE everstep_runs SET inbox_seq = 1, available_at = 1763000000001 \
                 WHERE no = ?1 + (1763000000000 << 20)";
    let told = bare.each(n, &[n], &[put, count])?;
    let take = "DELETE FROM everstep_inbox WHERE run = ?1 + (1763000000000 << 20) AND seq = 1";
    let gone = "DELETE FROM waiters WHERE no = ?1";
    let seen = "INSERT INTO seen (run, seq) VALUES (?1, 1)";
    let ended = bare.each(n, sizes, &[take, STEP, gone, seen, FINISH])?;
    Ok(told + ended)
}

#[workflow]
async fn kid(ctx: Ctx, n: u64) -> Result<u64> {
    ctx.step("only", async || Ok(n + 1)).await
}

#[workflow]
async fn parent(ctx: Ctx, kids: u64) -> Result<u64> {
    let all = ctx.map("all", 0..kids, async |ctx, n| ctx.child(kid, n).await).await?;
    Ok(all.iter().sum())
}

/// One run with 1 000 children of one step: from its start to its end.
///
/// Bare: one transaction that starts them, and, in batches of the sizes that the engine made, their
/// step, their end with the answer to the parent, and that it is taken.
pub(crate) fn children(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const CHILDREN: u64 = 1_000;
    let (mut times, mut bare) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let path = directory.fresh("engine.db");
        let (time, sizes) = runtime.block_on(async {
            let engine = Engine::open(&path).register(parent).register(kid);
            let engine = engine.start().await?;
            let (client, tools) = (engine.client(), engine.shared_for_tools());
            // The first one finds everything cold.
            client.start(parent, 10).await?.result().await?;
            tools.note_batch_sizes();
            let began = Instant::now();
            let sum = client.start(parent, CHILDREN).await?.result().await?;
            let time = began.elapsed();
            let sizes = tools.take_batch_sizes();
            engine.shutdown().await;
            match sum == CHILDREN * (CHILDREN + 1) / 2 {
                true => Ok((time, sizes)),
                false => Err(Problem::from(format!("the children add up to {sum}"))),
            }
        })?;
        times.push(time);
        let sizes: Vec<u64> = sizes.into_iter().map(u64::from).collect();
        bare.push(bare_children(directory, CHILDREN, &sizes)?);
    }
    let (here, bare) = (median(&times), median(&bare));
    let per_second = |time: Duration| CHILDREN as f64 / time.as_secs_f64();
    Line::new("children", CHILDREN, here)
        .raw(per_second(here), per_second(bare))
        .number("all_ms", here.as_secs_f64() * 1e3)
        .number("raw_all_ms", bare.as_secs_f64() * 1e3)
        .print();
    Ok(())
}

fn bare_children(directory: &Directory, n: u64, sizes: &[u64]) -> Result<Duration, Problem> {
    let bare = Bare::new(&directory.fresh("raw.db"))?;
    let link = "INSERT INTO everstep_children (run, parent, key, close) \
                VALUES (?1 + (1763000000000 << 20), 1, X'026B6964', 1)";
    let record = "INSERT INTO everstep_history (run, key, value) \
                  VALUES (1, X'02616C6C0015' || CAST(?1 AS BLOB), zeroblob(36))";
    let started = bare.each(n, &[n], &[START, link, record])?;
    let unlink = "DELETE FROM everstep_children WHERE run = ?1 + (1763000000000 << 20)";
    let answer = "INSERT INTO everstep_inbox (run, seq, name, body, wait) \
                  VALUES (1, ?1, '', zeroblob(20), X'02616C6C0015' || CAST(?1 AS BLOB))";
    let ended = bare.each(n, sizes, &[STEP, FINISH, unlink, answer])?;
    let take = "DELETE FROM everstep_inbox WHERE run = 1 AND seq = ?1";
    let taken = "UPDATE everstep_history SET value = zeroblob(40) \
                 WHERE run = 1 AND key = X'02616C6C0015' || CAST(?1 AS BLOB)";
    let taken = bare.each(n, sizes, &[take, taken])?;
    Ok(started + ended + taken)
}

const WORK: Queue<u64, u64> = Queue::new("work");

/// How many items are put in at a time.
const PRODUCERS: u64 = 500;

/// 10 000 items through 2 workers, each with up to 100 at a time, from when the workers come until
/// the last one is settled; and, beside it, through 2 workers that take one at a time.
///
/// Bare: transactions in which as many items as the workers have are claimed, and those of the last
/// one settled.
pub(crate) fn queue(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const ITEMS: u64 = 10_000;
    const ALONE: u64 = 1_000;
    const CONCURRENCY: u64 = 100;
    let work = |items, concurrency| {
        let path = directory.fresh("engine.db");
        runtime.block_on(work_off(&path, items, concurrency))
    };
    let (mut put, mut times, mut bare) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let (filled, worked) = work(ITEMS, CONCURRENCY as usize)?;
        put.push(filled);
        times.push(worked);
        bare.push(bare_queue(directory, ITEMS, 2 * CONCURRENCY)?);
    }
    let (_, alone) = work(ALONE, 1)?;
    let alone_bare = bare_queue(directory, ALONE, 2)?;
    let per_second = |n: u64, time: Duration| n as f64 / time.as_secs_f64();
    let (put, here, bare) = (median(&put), median(&times), median(&bare));
    Line::new("queue", ITEMS, here)
        .raw(per_second(ITEMS, here), per_second(ITEMS, bare))
        .count("workers", 2)
        .count("concurrency", CONCURRENCY)
        .number("enqueued_per_second", per_second(ITEMS, put))
        .number("one_at_a_time_per_second", per_second(ALONE, alone))
        .number("raw_one_at_a_time_per_second", per_second(ALONE, alone_bare))
        .print();
    Ok(())
}

/// Fills the queue, then lets two workers empty it: how long each took.
async fn work_off(
    path: &std::path::Path,
    items: u64,
    concurrency: usize,
) -> Result<(Duration, Duration), Problem> {
    let engine = Engine::open(path).start().await?;
    let client = engine.client();
    let began = Instant::now();
    let next = Arc::new(AtomicU64::new(0));
    let producers = (0..PRODUCERS).map(|_| {
        let (client, next) = (client.clone(), next.clone());
        tokio::spawn(async move {
            loop {
                let n = next.fetch_add(1, Ordering::Relaxed);
                if n >= items {
                    return Ok::<(), Problem>(());
                }
                client.enqueue(WORK, &n).await?;
            }
        })
    });
    for producer in producers.collect::<Vec<_>>() {
        producer.await??;
    }
    let filled = began.elapsed();
    let sum = Arc::new(AtomicU64::new(0));
    let began = Instant::now();
    for _ in 0..2 {
        let sum = sum.clone();
        engine.work(WORK, concurrency, move |_job, n: u64| {
            sum.fetch_add(n, Ordering::Relaxed);
            async move { Ok(n + 1) }
        })?;
    }
    let whole = items * (items - 1) / 2;
    // Looking costs the workers time, so the last one is waited for in memory first.
    while sum.load(Ordering::Relaxed) < whole {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    while client.queue_stats(WORK.name()).await?.done < items {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    let worked = began.elapsed();
    engine.shutdown().await;
    match sum.load(Ordering::Relaxed) == whole {
        true => Ok((filled, worked)),
        false => Err("an item was worked on twice".into()),
    }
}

fn bare_queue(directory: &Directory, n: u64, at_once: u64) -> Result<Duration, Problem> {
    let bare = Bare::new(&directory.fresh("raw.db"))?;
    let put = "INSERT INTO items (no, queue, state, at, attempts, payload) \
               VALUES (?1, 'work', 0, 1763000000000, 0, zeroblob(3))";
    bare.each(n, &[n], &[put])?;
    let claim = "UPDATE items SET state = 2, at = 1763000000001, claim = zeroblob(16), \
                 attempts = 1 WHERE no = ?1";
    // Those that were claimed in the transaction before.
    let settle = format!(
        "UPDATE items SET state = 3, at = 1763000000002, claim = NULL, answer = zeroblob(4) \
         WHERE no = ?1 - {at_once}"
    );
    bare.each(n + at_once, &[at_once], &[claim, &settle])
}

/// How late each run of a schedule began.
static LAGS: Mutex<Vec<Duration>> = Mutex::new(Vec::new());

#[workflow]
async fn job(ctx: Ctx, n: u64) -> Result<u64> {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    let now = now.unwrap_or_default();
    if let Some(tick) = ctx.scheduled_at() {
        let tick = Duration::from_millis(tick.as_millis().unsigned_abs());
        let mut lags = LAGS.lock().expect("no turn panics");
        lags.push(now.saturating_sub(tick));
    }
    Ok(n)
}

/// 1 000 schedules that all have a tick at the same instant, three times: how long from the tick
/// until the code of its run is called.
///
/// Bare: one transaction that moves 1 000 schedules on and starts their runs.
pub(crate) fn schedule(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const SCHEDULES: u64 = 1_000;
    const TICKS: u64 = 3;
    let path = directory.fresh("engine.db");
    let time = runtime.block_on(async {
        let engine = Engine::open(&path).register(job).start().await?;
        let time = tick(&engine, SCHEDULES, TICKS).await;
        engine.shutdown().await;
        time
    })?;
    let mut lags = LAGS.lock().expect("no turn panics").clone();
    let mut bare = Vec::new();
    for _ in 0..ROUNDS {
        bare.push(bare_schedule(directory, SCHEDULES)?);
    }
    let (here, bare) = (median(&lags), median(&bare));
    Line::new("schedule", SCHEDULES, time)
        .count("fired", lags.len() as u64)
        .times(&mut lags)
        .number("raw_p50_ms", bare.as_secs_f64() * 1e3)
        .number("ratio", bare.as_secs_f64() / here.as_secs_f64())
        .print();
    Ok(())
}

/// Makes the schedules and waits until each has had its ticks; how long those took from the first.
async fn tick(engine: &Engine, n: u64, ticks: u64) -> Result<Duration, Problem> {
    let client = engine.client();
    let made = (0..n).map(|n| {
        let client = client.clone();
        tokio::spawn(async move {
            let schedule = client.schedule(format!("job-{n}"), job, n);
            schedule.cron("*/3 * * * * *").overlap(Overlap::Allow).paused().await
        })
    });
    let mut schedules = Vec::new();
    for schedule in made.collect::<Vec<_>>() {
        schedules.push(schedule.await??);
    }
    // Right after a tick, so that all of them are there before the next.
    while SystemTime::now().duration_since(SystemTime::UNIX_EPOCH)?.as_millis() % 3_000 > 500 {
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    let resumed =
        schedules.into_iter().map(|schedule| tokio::spawn(async move { schedule.resume().await }));
    for resumed in resumed.collect::<Vec<_>>() {
        resumed.await??;
    }
    let began = Instant::now();
    let limit = Duration::from_secs(3 * ticks + 30);
    while (LAGS.lock().expect("no turn panics").len() as u64) < n * ticks {
        if began.elapsed() > limit {
            return Err("the schedules did not have their ticks in time".into());
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    Ok(began.elapsed())
}

fn bare_schedule(directory: &Directory, n: u64) -> Result<Duration, Problem> {
    let bare = Bare::new(&directory.fresh("raw.db"))?;
    let put = "INSERT INTO everstep_schedules (name, spec, input, next_at, started) \
               VALUES (?1, 'cron UTC */3 * * * * *', zeroblob(3), 1763000000000, 0)";
    bare.each(n, &[n], &[put])?;
    let next = "UPDATE everstep_schedules SET next_at = 1763000003000, last_tick = 1763000000000, \
                last_run = zeroblob(16), started = 1 WHERE name = ?1";
    let key = "INSERT INTO everstep_keys (workflow, key, run) \
               VALUES ('job', 'job-' || ?1 || '/2026-01-01T00:00:00Z', ?1)";
    let tag = "INSERT INTO everstep_tags (name, value, run) \
               VALUES ('everstep.schedule', 'job-' || ?1, ?1)";
    bare.each(n, &[n], &[next, START, key, tag])
}
