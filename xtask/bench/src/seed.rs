//! Runs of the past: a store is filled with them by statements of its own, without an engine.

use std::path::Path;

use everstep::{PoolNo, RunId, RunStatus};
use rusqlite::{Connection, params};
use tokio_postgres::types::ToSql;

use crate::{Problem, postgres};

/// How many are written together.
const SLICE: usize = 100_000;

/// When the first of them was started.
const SINCE: u64 = 1_763_239_620_000 - 365 * 86_400_000;

/// A run as an engine would have left it.
pub(crate) struct Past {
    pub(crate) id: RunId,
    workflow: &'static str,
    key: Option<String>,
    tags: Vec<(&'static str, String)>,
    status: RunStatus,
    now: i64,
    wakes_at: Option<i64>,
    ended_at: Option<i64>,
    waiting: Option<&'static str>,
    output: Option<&'static [u8]>,
}

impl Past {
    /// The n-th of them, which runs. A hundred were started in each millisecond.
    pub(crate) fn new(n: u64, workflow: &'static str) -> Past {
        let now = SINCE + n / 100;
        Past {
            id: run_id(now, n % 100),
            workflow,
            key: None,
            tags: Vec::new(),
            status: RunStatus::Running,
            now: now as i64,
            wakes_at: None,
            ended_at: None,
            waiting: None,
            output: None,
        }
    }

    pub(crate) fn sleeping(mut self, wakes_at: i64) -> Past {
        (self.status, self.wakes_at) = (RunStatus::Sleeping, Some(wakes_at));
        self.waiting = Some("year");
        self
    }

    /// Waits for something from outside: sleeping or paused.
    pub(crate) fn idle(mut self, status: RunStatus) -> Past {
        (self.status, self.waiting) = (status, Some("an answer"));
        self
    }

    pub(crate) fn ended(mut self, status: RunStatus) -> Past {
        (self.status, self.ended_at) = (status, Some(self.now + 5));
        self.output = (status == RunStatus::Completed).then_some(&[0]);
        self
    }

    pub(crate) fn key(mut self, key: String) -> Past {
        self.key = Some(key);
        self
    }

    pub(crate) fn tag(mut self, name: &'static str, value: String) -> Past {
        self.tags.push((name, value));
        self
    }

    fn shard(&self) -> i64 {
        i64::from(self.id.shard_in(PoolNo::DEFAULT).0)
    }

    /// Its tags as they stand in its row.
    fn tags_of_row(&self) -> Option<String> {
        let text = || serde_json::to_string(&self.tags).unwrap_or_default();
        (!self.tags.is_empty()).then(text)
    }
}

/// Fills a store with runs, without an engine.
pub(crate) fn fill(place: &Path, runs: impl Iterator<Item = Past>) -> Result<(), Problem> {
    match postgres::Schema::at(place) {
        Some(schema) => fill_schema(&schema, runs),
        None => Ok(fill_file(place, runs)?),
    }
}

fn fill_file(path: &Path, runs: impl Iterator<Item = Past>) -> rusqlite::Result<()> {
    let conn = Connection::open(path)?;
    conn.execute_batch("PRAGMA synchronous = OFF; PRAGMA cache_size = -262144;")?;
    let mut insert = conn.prepare(
        "INSERT INTO everstep_runs (no, id, workflow, version, pool, shard, status, generation, \
         available_at, created_at, updated_at, finished_at, attempts, recoveries, inbox_seq, \
         last_number, waiting, input, output, key, tags) VALUES (?1, ?2, ?3, 1, 'default', ?4, ?5, \
         1, ?6, ?7, ?7, ?8, 1, 0, 0, 0, ?9, X'00', ?10, ?11, ?12)",
    )?;
    let sql = "INSERT INTO everstep_keys (workflow, key, run) VALUES (?1, ?2, ?3)";
    let mut insert_key = conn.prepare(sql)?;
    let sql = "INSERT INTO everstep_tags (name, value, run) VALUES (?1, ?2, ?3)";
    let mut insert_tag = conn.prepare(sql)?;
    conn.execute_batch("BEGIN")?;
    for (n, run) in runs.enumerate() {
        if n % SLICE == SLICE - 1 {
            conn.execute_batch("COMMIT; BEGIN")?;
        }
        let no = run.id.no().0;
        insert.execute(params![
            no,
            run.id.as_uuid().as_bytes(),
            run.workflow,
            run.shard(),
            run.status.code(),
            run.wakes_at,
            run.now,
            run.ended_at,
            run.waiting,
            run.output,
            run.key,
            run.tags_of_row(),
        ])?;
        if let Some(key) = &run.key {
            insert_key.execute(params![run.workflow, key, no])?;
        }
        for (name, value) in &run.tags {
            insert_tag.execute(params![name, value, no])?;
        }
    }
    conn.execute_batch("COMMIT")
}

/// What is written together, column by column.
#[derive(Default)]
struct Columns {
    nos: Vec<i64>,
    ids: Vec<Vec<u8>>,
    workflows: Vec<&'static str>,
    shards: Vec<i64>,
    statuses: Vec<i64>,
    wakes: Vec<Option<i64>>,
    nows: Vec<i64>,
    ends: Vec<Option<i64>>,
    waits: Vec<Option<&'static str>>,
    outputs: Vec<Option<&'static [u8]>>,
    keys: Vec<Option<String>>,
    tags: Vec<Option<String>>,
    tag_names: Vec<&'static str>,
    tag_values: Vec<String>,
    tagged: Vec<i64>,
}

impl Columns {
    fn add(&mut self, run: Past) {
        let no = run.id.no().0;
        self.nos.push(no);
        self.ids.push(run.id.as_uuid().as_bytes().to_vec());
        self.workflows.push(run.workflow);
        self.shards.push(run.shard());
        self.statuses.push(run.status.code().into());
        self.wakes.push(run.wakes_at);
        self.nows.push(run.now);
        self.ends.push(run.ended_at);
        self.waits.push(run.waiting);
        self.outputs.push(run.output);
        self.tags.push(run.tags_of_row());
        self.keys.push(run.key);
        for (name, value) in run.tags {
            self.tag_names.push(name);
            self.tag_values.push(value);
            self.tagged.push(no);
        }
    }
}

fn fill_schema(schema: &postgres::Schema, runs: impl Iterator<Item = Past>) -> Result<(), Problem> {
    let (runtime, client) = schema.connect()?;
    let insert = "INSERT INTO everstep_runs (no, id, workflow, version, pool, shard, status, generation, \
                  available_at, created_at, updated_at, finished_at, attempts, recoveries, \
                  inbox_seq, last_number, waiting, input, output, key, tags) \
                  SELECT no, id, workflow, 1, 'default', shard, status, 1, wakes_at, now, now, \
                  ended_at, 1, 0, 0, 0, waiting, '\\x00', output, key, tags \
                  FROM unnest($1::bigint[], $2::bytea[], $3::text[], $4::bigint[], $5::bigint[], \
                  $6::bigint[], $7::bigint[], $8::bigint[], $9::text[], $10::bytea[], \
                  $11::text[], $12::text[]) AS past (no, id, workflow, shard, status, wakes_at, \
                  now, ended_at, waiting, output, key, tags)";
    let insert_keys = "INSERT INTO everstep_keys (workflow, key, run) SELECT workflow, key, run \
                       FROM unnest($1::text[], $2::text[], $3::bigint[]) \
                       AS past (workflow, key, run) WHERE key IS NOT NULL";
    let insert_tags = "INSERT INTO everstep_tags (name, value, run) \
                       SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[])";
    let mut runs = runs.peekable();
    while runs.peek().is_some() {
        let mut all = Columns::default();
        let slice = runs.by_ref().take(SLICE / 10);
        slice.for_each(|run| all.add(run));
        let of_runs: [&(dyn ToSql + Sync); 12] = [
            &all.nos,
            &all.ids,
            &all.workflows,
            &all.shards,
            &all.statuses,
            &all.wakes,
            &all.nows,
            &all.ends,
            &all.waits,
            &all.outputs,
            &all.keys,
            &all.tags,
        ];
        runtime.block_on(async {
            client.execute(insert, &of_runs).await?;
            let of_keys: [&(dyn ToSql + Sync); 3] = [&all.workflows, &all.keys, &all.nos];
            client.execute(insert_keys, &of_keys).await?;
            let of_tags: [&(dyn ToSql + Sync); 3] = [&all.tag_names, &all.tag_values, &all.tagged];
            client.execute(insert_tags, &of_tags).await
        })?;
    }
    for sql in ["VACUUM ANALYZE runs, keys, tags", "CHECKPOINT"] {
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
