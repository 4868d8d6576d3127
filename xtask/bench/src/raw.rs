//! The bare limit: a loop that writes the rows of runs in group commits, and does nothing else.
//!
//! The rows are those that the engine wrote, byte for byte in their sizes. The layout is the best
//! one known, not merely ours: an integer as the key of a run, entries clustered by it, one index
//! over what is due, prepared statements, one connection, and batches of the sizes that the engine
//! made.

use std::{
    collections::VecDeque,
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{Connection, Statement, params};

use crate::{Directory, Problem, postgres};

const LAYOUT: &str = "
    PRAGMA page_size = 8192;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 8000;
    PRAGMA cache_size = -65536;
    PRAGMA temp_store = MEMORY;
    CREATE TABLE everstep_runs (
        no INTEGER PRIMARY KEY, id BLOB NOT NULL, workflow TEXT NOT NULL, version INTEGER NOT NULL,
        key TEXT, pool TEXT NOT NULL, shard INTEGER NOT NULL, status INTEGER NOT NULL,
        ending INTEGER, generation INTEGER NOT NULL, available_at INTEGER, deadline_at INTEGER,
        created_at INTEGER NOT NULL, updated_at INTEGER NOT NULL, finished_at INTEGER,
        attempts INTEGER NOT NULL, recoveries INTEGER NOT NULL, inbox_seq INTEGER NOT NULL,
        cancel_requested INTEGER, last_number INTEGER, waiting TEXT, tags TEXT,
        input BLOB NOT NULL, output BLOB, error BLOB
    );
    CREATE INDEX everstep_runs_due ON everstep_runs (shard, available_at) WHERE available_at IS NOT NULL;
    CREATE TABLE everstep_history (
        run INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (run, key)
    ) WITHOUT ROWID;
";

/// The rows of one run, as the engine wrote them.
pub(crate) struct Rows {
    pub(crate) id: Vec<u8>,
    pub(crate) workflow: String,
    pub(crate) pool: String,
    pub(crate) input: Vec<u8>,
    pub(crate) output: Vec<u8>,
    pub(crate) entries: Vec<(Vec<u8>, Vec<u8>)>,
}

impl Rows {
    /// Reads the newest completed run of an engine's store.
    pub(crate) fn of_engine(path: &Path) -> Result<Rows, Problem> {
        if let Some(schema) = postgres::Schema::at(path) {
            return schema.newest_rows();
        }
        let conn = Connection::open(path)?;
        let sql = "SELECT no, id, workflow, pool, input, output FROM everstep_runs \
                   WHERE finished_at IS NOT NULL ORDER BY no DESC LIMIT 1";
        let (no, mut rows) = conn.query_row(sql, [], |row| {
            let rows = Rows {
                id: row.get(1)?,
                workflow: row.get(2)?,
                pool: row.get(3)?,
                input: row.get(4)?,
                output: row.get(5)?,
                entries: Vec::new(),
            };
            Ok((row.get::<_, i64>(0)?, rows))
        })?;
        let sql = "SELECT key, value FROM everstep_history WHERE run = ?1 ORDER BY key";
        let mut entries = conn.prepare(sql)?;
        let entries = entries.query_map([no], |row| Ok((row.get(0)?, row.get(1)?)))?;
        rows.entries = entries.collect::<rusqlite::Result<_>>()?;
        Ok(rows)
    }

    /// How many writes a run takes: its start, and one for each entry. The last also ends it.
    pub(crate) fn writes(&self) -> usize {
        1 + self.entries.len()
    }
}

/// What the loop did.
pub(crate) struct Written {
    pub(crate) runs: u64,
    pub(crate) time: Duration,
    /// How long each batch took.
    pub(crate) batches: Vec<Duration>,
}

impl Written {
    pub(crate) fn per_second(&self) -> f64 {
        self.runs as f64 / self.time.as_secs_f64()
    }
}

/// Writes runs, `in_flight` of them at a time, in batches of these sizes for each lane, until those
/// are used up or the time is. A file has one lane.
pub(crate) fn write_runs(
    path: &Path,
    rows: &Rows,
    in_flight: usize,
    lanes: &[Vec<u32>],
    limit: Duration,
) -> Result<Written, Problem> {
    if let Some(schema) = postgres::Schema::at(path) {
        return schema.write_runs(None, rows, in_flight, lanes, limit);
    }
    let sizes = lanes.first().map_or(&[][..], Vec::as_slice);
    let conn = Connection::open(path)?;
    conn.execute_batch(LAYOUT)?;
    let mut statements = Statements::new(&conn)?;
    let mut turns = Turns::new(0, in_flight, rows.writes());
    let mut batches = Vec::with_capacity(sizes.len());
    let began = Instant::now();
    for size in sizes {
        let batch_began = Instant::now();
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for _ in 0..*size {
            let (no, write) = turns.next();
            statements.write(rows, no, write)?;
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
        batches.push(batch_began.elapsed());
        if began.elapsed() > limit {
            break;
        }
    }
    Ok(Written { runs: turns.done, time: began.elapsed(), batches })
}

/// As [`write_runs`], into copies of the tables of the engine at `path`; none if it is a file.
pub(crate) fn write_indexed_runs(
    directory: &Directory,
    path: &Path,
    rows: &Rows,
    in_flight: usize,
    lanes: &[Vec<u32>],
    limit: Duration,
) -> Result<Option<Written>, Problem> {
    let Some(engine) = postgres::Schema::at(path) else {
        return Ok(None);
    };
    let Some(schema) = postgres::Schema::at(&directory.fresh("copy.db")) else {
        return Ok(None);
    };
    let written = schema.write_runs(Some(&engine), rows, in_flight, lanes, limit)?;
    Ok(Some(written))
}

/// Runs take turns, as they do in the engine: the number of each, and its next write.
pub(crate) struct Turns {
    queue: VecDeque<(i64, usize)>,
    writes: usize,
    next_no: i64,
    /// How many runs have had all their writes.
    pub(crate) done: u64,
}

impl Turns {
    /// Runs of this lane, so many at a time.
    pub(crate) fn new(lane: usize, in_flight: usize, writes: usize) -> Turns {
        let first = (1_763_000_000_000_i64 << 20) + 1 + ((lane as i64) << 40);
        let next_no = first + in_flight as i64;
        Turns { queue: (first..next_no).map(|no| (no, 0)).collect(), writes, next_no, done: 0 }
    }

    /// The run whose turn it is, and which of its writes. Whoever has none left makes room for the
    /// next.
    pub(crate) fn next(&mut self) -> (i64, usize) {
        let (no, write) = self.queue.pop_front().unwrap_or((self.next_no, 0));
        if write + 1 < self.writes {
            self.queue.push_back((no, write + 1));
        } else {
            self.done += 1;
            self.queue.push_back((self.next_no, 0));
            self.next_no += 1;
        }
        (no, write)
    }
}

struct Statements<'a> {
    start: Statement<'a>,
    put: Statement<'a>,
    finish: Statement<'a>,
}

impl<'a> Statements<'a> {
    fn new(conn: &'a Connection) -> rusqlite::Result<Statements<'a>> {
        Ok(Statements {
            start: conn.prepare(
                "INSERT INTO everstep_runs (no, id, workflow, version, pool, shard, status, generation, \
                 created_at, updated_at, attempts, recoveries, inbox_seq, last_number, input) \
                 VALUES (?1, ?2, ?3, 1, ?4, ?5, 1, 1, ?6, ?6, 1, 0, 0, 0, ?7)",
            )?,
            put: conn.prepare("INSERT INTO everstep_history (run, key, value) VALUES (?1, ?2, ?3)")?,
            finish: conn.prepare(
                "UPDATE everstep_runs SET status = 5, updated_at = ?2, finished_at = ?2, last_number = ?3, \
                 output = ?4 WHERE no = ?1",
            )?,
        })
    }

    fn write(&mut self, rows: &Rows, no: i64, write: usize) -> rusqlite::Result<()> {
        let now = no >> 20;
        if write == 0 {
            let Rows { id, workflow, pool, input, .. } = rows;
            let shard = no % 256;
            self.start.execute(params![no, id, workflow, pool, shard, now, input])?;
            return Ok(());
        }
        let (key, value) = &rows.entries[write - 1];
        self.put.execute(params![no, key, value])?;
        if write == rows.entries.len() {
            let last_number = write as i64;
            self.finish.execute(params![no, now, last_number, rows.output])?;
        }
        Ok(())
    }
}
