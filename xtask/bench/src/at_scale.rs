//! `at_scale`: throughput with 1 million parked and 10 million finished runs in the store.

use std::{path::Path, time::Duration};

use everstep::{RunId, prelude::*};
use rusqlite::{Connection, params};

use crate::{Directory, Problem, line::Line, postgres, throughput};

const PARKED: u64 = 1_000_000;
const FINISHED: u64 = 10_000_000;
const TIME: Duration = Duration::from_secs(5);

/// How many are written together.
const SLICE: usize = 100_000;

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
    let bytes = crate::directory::bytes_of(&path)?;
    let full = measure(&path)?;
    Line::new("at_scale", full.runs, full.time)
        .number("empty_per_second", empty.per_second())
        .number("ratio", full.per_second() / empty.per_second())
        .count("bytes", bytes)
        .print();
    Ok(())
}

/// A run as an engine would have left it.
struct Past {
    id: RunId,
    status: i64,
    now: i64,
    wakes_at: Option<i64>,
    ended_at: Option<i64>,
    waiting: Option<&'static str>,
    output: Option<&'static [u8]>,
}

/// A hundred runs in each millisecond, a year ago. One in eleven sleeps for another year.
fn past_runs() -> impl Iterator<Item = Past> {
    let since = Timestamp::from_millis(1_763_239_620_000 - 365 * 86_400_000).as_millis() as u64;
    (0..PARKED + FINISHED).map(move |n| {
        let sleeps = n % (1 + FINISHED / PARKED) == 0;
        let now = (since + n / 100) as i64;
        Past {
            id: run_id(since + n / 100, n % 100),
            status: if sleeps { 2 } else { 5 },
            now,
            wakes_at: sleeps.then_some(4_000_000_000_000_i64 + n as i64),
            ended_at: (!sleeps).then_some(now + 5),
            waiting: sleeps.then_some("year"),
            output: (!sleeps).then_some(&[0]),
        }
    })
}

/// Fills a store with runs, without an engine.
fn fill(place: &Path) -> Result<(), Problem> {
    match postgres::Schema::at(place) {
        Some(schema) => fill_schema(&schema),
        None => Ok(fill_file(place)?),
    }
}

fn fill_file(path: &Path) -> rusqlite::Result<()> {
    let conn = Connection::open(path)?;
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144;")?;
    let mut insert = conn.prepare(
        "INSERT INTO runs (no, id, workflow, version, pool, shard, status, generation, \
         available_at, created_at, updated_at, finished_at, attempts, recoveries, inbox_seq, \
         last_number, waiting, input, output) \
         VALUES (?1, ?2, 'past', 1, 'default', ?3, ?4, 1, ?5, ?6, ?6, ?7, 1, 0, 0, 0, ?8, X'00', ?9)",
    )?;
    for (n, run) in past_runs().enumerate() {
        if n % SLICE == 0 {
            conn.execute_batch("BEGIN")?;
        }
        insert.execute(params![
            run.id.no().0,
            run.id.as_uuid().as_bytes(),
            run.id.shard_in(everstep::PoolNo::DEFAULT).0,
            run.status,
            run.wakes_at,
            run.now,
            run.ended_at,
            run.waiting,
            run.output
        ])?;
        if n % SLICE == SLICE - 1 {
            conn.execute_batch("COMMIT")?;
        }
    }
    Ok(())
}

fn fill_schema(schema: &postgres::Schema) -> Result<(), Problem> {
    let (runtime, client) = schema.connect()?;
    let mut runs = past_runs().peekable();
    while runs.peek().is_some() {
        let slice: Vec<Past> = runs.by_ref().take(SLICE / 10).collect();
        let nos: Vec<i64> = slice.iter().map(|run| run.id.no().0).collect();
        let ids = slice.iter().map(|run| run.id.as_uuid().as_bytes().to_vec());
        let ids: Vec<Vec<u8>> = ids.collect();
        let shards = slice
            .iter()
            .map(|run| i64::from(run.id.shard_in(everstep::PoolNo::DEFAULT).0));
        let shards: Vec<i64> = shards.collect();
        let statuses: Vec<i64> = slice.iter().map(|run| run.status).collect();
        let wakes: Vec<Option<i64>> = slice.iter().map(|run| run.wakes_at).collect();
        let nows: Vec<i64> = slice.iter().map(|run| run.now).collect();
        let ends: Vec<Option<i64>> = slice.iter().map(|run| run.ended_at).collect();
        let waits: Vec<Option<&str>> = slice.iter().map(|run| run.waiting).collect();
        let outputs: Vec<Option<&[u8]>> = slice.iter().map(|run| run.output).collect();
        let sql = "INSERT INTO runs (no, id, workflow, version, pool, shard, status, generation, \
                   available_at, created_at, updated_at, finished_at, attempts, recoveries, \
                   inbox_seq, last_number, waiting, input, output) \
                   SELECT no, id, 'past', 1, 'default', shard, status, 1, wakes_at, now, now, \
                   ended_at, 1, 0, 0, 0, waiting, '\\x00', output FROM unnest($1::bigint[], \
                   $2::bytea[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[], \
                   $7::bigint[], $8::text[], $9::bytea[]) AS past (no, id, shard, status, \
                   wakes_at, now, ended_at, waiting, output)";
        runtime.block_on(client.execute(
            sql,
            &[
                &nos, &ids, &shards, &statuses, &wakes, &nows, &ends, &waits, &outputs,
            ],
        ))?;
    }
    for sql in ["VACUUM ANALYZE runs", "CHECKPOINT"] {
        runtime.block_on(client.batch_execute(sql))?;
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
