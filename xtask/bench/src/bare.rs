//! The bare limit of what runs do together: the rows that it takes, in group commits, and nothing
//! else.
//!
//! As in [`crate::raw`], the layout is the best one known, the statements are prepared, and there is
//! one connection. Values are of the sizes that the engine writes.

use std::{
    path::Path,
    time::{Duration, Instant},
};

use rusqlite::{CachedStatement, Connection};

use crate::{Problem, postgres};

pub(crate) const LAYOUT: &str = "
    PRAGMA page_size = 8192;
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA wal_autocheckpoint = 8000;
    PRAGMA cache_size = -65536;
    PRAGMA temp_store = MEMORY;
    CREATE TABLE everstep_runs (
        no INTEGER PRIMARY KEY, id BLOB NOT NULL, workflow TEXT NOT NULL, shard INTEGER NOT NULL,
        status INTEGER NOT NULL, available_at INTEGER, created_at INTEGER NOT NULL,
        updated_at INTEGER NOT NULL, finished_at INTEGER, inbox_seq INTEGER NOT NULL,
        waiting TEXT, parent BLOB, input BLOB NOT NULL, output BLOB
    );
    CREATE INDEX everstep_runs_due ON everstep_runs (shard, available_at) WHERE available_at IS NOT NULL;
    CREATE TABLE everstep_history (
        run INTEGER NOT NULL, key BLOB NOT NULL, value BLOB NOT NULL, PRIMARY KEY (run, key)
    ) WITHOUT ROWID;
    CREATE TABLE everstep_inbox (
        run INTEGER NOT NULL, seq INTEGER NOT NULL, name TEXT NOT NULL, body BLOB NOT NULL,
        wait BLOB, PRIMARY KEY (run, seq)
    ) WITHOUT ROWID;
    CREATE TABLE waiters (no INTEGER PRIMARY KEY, run INTEGER NOT NULL, key BLOB NOT NULL);
    CREATE TABLE seen (run INTEGER PRIMARY KEY, seq INTEGER NOT NULL);
    CREATE TABLE everstep_children (
        run INTEGER PRIMARY KEY, parent INTEGER NOT NULL, key BLOB NOT NULL, close INTEGER NOT NULL
    );
    CREATE TABLE items (
        no INTEGER PRIMARY KEY, queue TEXT NOT NULL, state INTEGER NOT NULL, at INTEGER NOT NULL,
        claim BLOB, attempts INTEGER NOT NULL, answer BLOB, payload BLOB NOT NULL
    );
    CREATE INDEX ready ON items (queue, at) WHERE state = 0;
    CREATE TABLE everstep_schedules (
        name INTEGER PRIMARY KEY, spec TEXT NOT NULL, input BLOB NOT NULL, next_at INTEGER,
        last_tick INTEGER, last_run BLOB, started INTEGER NOT NULL
    );
    CREATE INDEX ticks ON everstep_schedules (next_at);
    CREATE TABLE everstep_keys (
        workflow TEXT NOT NULL, key TEXT NOT NULL, run INTEGER NOT NULL, PRIMARY KEY (workflow, key)
    ) WITHOUT ROWID;
    CREATE TABLE everstep_tags (
        name TEXT NOT NULL, value TEXT NOT NULL, run INTEGER NOT NULL,
        PRIMARY KEY (name, value, run)
    ) WITHOUT ROWID;
";

/// What is done to each of many things. Every statement gets the number of the thing as `?1`.
pub(crate) type Each<'a> = [&'a str];

/// A run is started, claimed by whoever starts it.
pub(crate) const START: &str = "INSERT INTO everstep_runs (no, id, workflow, shard, status, created_at, \
    updated_at, inbox_seq, input) VALUES (?1 + (1763000000000 << 20), zeroblob(16), 'workflow', \
    ?1 % 256, 1, 1763000000000, 1763000000000, 0, zeroblob(3))";

/// It has recorded one step.
pub(crate) const STEP: &str = "INSERT INTO everstep_history (run, key, value) \
    VALUES (?1 + (1763000000000 << 20), X'026F6E6C79', zeroblob(24))";

/// It ends.
pub(crate) const FINISH: &str = "UPDATE everstep_runs SET status = 5, updated_at = 1763000000001, \
    finished_at = 1763000000001, available_at = NULL, waiting = NULL, output = zeroblob(3) \
    WHERE no = ?1 + (1763000000000 << 20)";

/// A store with nothing but the rows.
pub(crate) enum Bare {
    Sqlite(Connection),
    Postgres(postgres::Bare),
}

impl Bare {
    pub(crate) fn new(place: &Path) -> Result<Bare, Problem> {
        if let Some(schema) = postgres::Schema::at(place) {
            return Ok(Bare::Postgres(postgres::Bare::new(&schema)?));
        }
        let conn = Connection::open(place)?;
        conn.execute_batch(LAYOUT)?;
        Ok(Bare::Sqlite(conn))
    }

    /// Executes all of these for each of the numbers from 1 to `n`, so many in a transaction as
    /// `sizes` says, again and again.
    pub(crate) fn each(&self, n: u64, sizes: &[u64], each: &Each<'_>) -> Result<Duration, Problem> {
        match self {
            Bare::Sqlite(conn) => Ok(each_in_file(conn, n, sizes, each)?),
            Bare::Postgres(bare) => bare.each(n, sizes, each),
        }
    }
}

fn each_in_file(
    conn: &Connection,
    n: u64,
    sizes: &[u64],
    each: &Each<'_>,
) -> rusqlite::Result<Duration> {
    let statements = each.iter().map(|sql| conn.prepare_cached(sql));
    let mut statements = statements.collect::<rusqlite::Result<Vec<CachedStatement<'_>>>>()?;
    let mut sizes = sizes.iter().copied().filter(|size| *size > 0).cycle();
    let began = Instant::now();
    let mut done = 0;
    while done < n {
        let end = n.min(done + sizes.next().unwrap_or(n));
        conn.prepare_cached("BEGIN IMMEDIATE")?.execute([])?;
        for thing in done + 1..=end {
            for statement in &mut statements {
                statement.execute([thing as i64])?;
            }
        }
        conn.prepare_cached("COMMIT")?.execute([])?;
        done = end;
    }
    Ok(began.elapsed())
}
