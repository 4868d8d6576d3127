//! `at_scale`: throughput with 1 million parked and 10 million finished runs in the file.

use std::{path::Path, time::Duration};

use everstep::{RunId, prelude::*};
use rusqlite::{Connection, params};

use crate::{Directory, Problem, line::Line, throughput};

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
    fill(&path)?;
    let bytes = crate::directory::bytes_of(&path);
    let full = measure(&path)?;
    Line::new("at_scale", full.runs, full.time)
        .number("empty_per_second", empty.per_second())
        .number("ratio", full.per_second() / empty.per_second())
        .count("bytes", bytes)
        .print();
    Ok(())
}

/// Fills the file with runs as an engine would have left them, but without one.
fn fill(path: &Path) -> Result<(), Problem> {
    const SLICE: u64 = 100_000;
    let conn = Connection::open(path)?;
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144;")?;
    let mut run = conn.prepare(
        "INSERT INTO runs (no, id, workflow, version, pool, shard, status, generation, \
         available_at, created_at, updated_at, finished_at, attempts, recoveries, inbox_seq, \
         last_number, waiting, input, output) \
         VALUES (?1, ?2, 'past', 1, 'default', ?3, ?4, 1, ?5, ?6, ?6, ?7, 1, 0, 0, 0, ?8, X'00', ?9)",
    )?;
    // A year ago, a hundred runs in each millisecond.
    let since = Timestamp::from_millis(1_763_239_620_000 - 365 * 86_400_000).as_millis() as u64;
    for n in 0..PARKED + FINISHED {
        if n % SLICE == 0 {
            conn.execute_batch("BEGIN")?;
        }
        let id = run_id(since + n / 100, n % 100);
        // One in eleven sleeps for another year.
        let sleeps = n % (1 + FINISHED / PARKED) == 0;
        let now = (since + n / 100) as i64;
        let wakes_at = sleeps.then_some(4_000_000_000_000_i64 + n as i64);
        let ended_at = (!sleeps).then_some(now + 5);
        let (status, waiting) = match sleeps {
            true => (2, Some("year")),
            false => (5, None),
        };
        let output = (!sleeps).then_some([0_u8]);
        run.execute(params![
            id.no().0,
            id.as_uuid().as_bytes(),
            id.shard_in(everstep::PoolNo::DEFAULT).0,
            status,
            wakes_at,
            now,
            ended_at,
            waiting,
            output
        ])?;
        if n % SLICE == SLICE - 1 {
            conn.execute_batch("COMMIT")?;
        }
    }
    Ok(())
}

/// A run id of version 7 with this time and this counter.
fn run_id(ms: u64, counter: u64) -> RunId {
    let random = (ms ^ counter << 17).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 10;
    let counter = format!("{counter:05x}");
    let (high, low) = counter.split_at(3);
    let low = u64::from_str_radix(low, 16).unwrap_or(0);
    // The layout of a UUID: time, version, twelve bits, variant, the rest.
    let rest = 0b10 << 62 | low << 54 | random & ((1 << 54) - 1);
    let text = format!("{ms:012x}7{high}{rest:016x}");
    text.parse().expect("the text of a UUID of version 7")
}
