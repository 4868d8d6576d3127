//! The bare limit on PostgreSQL: the same rows by a loop of array inserts, and nothing else.
//!
//! As in [`crate::raw`] and [`crate::bare`] the layout is the best one known and not merely ours, and
//! batches have the sizes that the engine made. A batch is one transaction in one round trip: a
//! prepared statement over arrays for each table, sent with its `BEGIN` and its `COMMIT`. What the
//! indexes cost that an engine needs is shown by the same loop over copies of its tables.

use std::{
    path::Path,
    sync::Barrier,
    time::{Duration, Instant},
};

use futures_util::future::{try_join, try_join_all};
use tokio::runtime::Runtime;
use tokio_postgres::{Client, NoTls, Statement};

use crate::{
    Problem, bare,
    raw::{Rows, Turns, Written},
};

/// A schema of a database.
pub(crate) struct Schema {
    url: String,
    name: String,
}

impl Schema {
    /// What a place names, if it is no file.
    pub(crate) fn at(place: &Path) -> Option<Schema> {
        let (url, name) =
            place.to_str().filter(|it| it.starts_with("postgres://"))?.rsplit_once("schema=")?;
        // What is ours and not the driver's.
        let url = url.split_once("lanes=").map_or(url, |(url, _)| url);
        Some(Schema { url: url.trim_end_matches(['?', '&']).to_owned(), name: name.to_owned() })
    }

    /// A thread's own connection, with the schema in its path.
    pub(crate) fn connect(&self) -> Result<(Runtime, Client), Problem> {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
        let client = runtime.block_on(async {
            let (client, connection) = tokio_postgres::connect(&self.url, NoTls).await?;
            // Its end is the client's, whose calls say why.
            tokio::spawn(async move { drop(connection.await) });
            // Plans are made while tables are empty: none shall read a whole table later.
            let set = format!(
                "SET search_path = {}; SET enable_seqscan = off; SET enable_hashjoin = off; \
                 SET enable_mergejoin = off; SET jit = off",
                self.name
            );
            client.batch_execute(&set).await?;
            Ok::<_, Problem>(client)
        })?;
        Ok((runtime, client))
    }

    fn create(&self, layout: &str) -> Result<(Runtime, Client), Problem> {
        let (runtime, client) = self.connect()?;
        let sql = format!("CREATE SCHEMA {}; {layout}; CHECKPOINT", self.name);
        runtime.block_on(client.batch_execute(&sql))?;
        Ok((runtime, client))
    }

    /// What makes tables like those of this schema in another.
    fn layout_of_copies(&self, other: &str) -> String {
        let copy = |table: &str, with: &str| {
            let like = format!("LIKE {}.everstep_{table} INCLUDING ALL", self.name);
            format!("CREATE TABLE {other}.everstep_{table} ({like}) {with}")
        };
        let (runs, history) = (copy("runs", "WITH (fillfactor = 70)"), copy("history", ""));
        // It is not among what the bare loop writes.
        let generation =
            format!("ALTER TABLE {other}.everstep_history ALTER generation SET DEFAULT 1");
        format!("{runs}; {history}; {generation}")
    }

    /// What its tables take, with their indexes.
    pub(crate) fn bytes(&self) -> Result<u64, Problem> {
        let (runtime, client) = self.connect()?;
        let sql = "SELECT coalesce(sum(pg_total_relation_size(oid)), 0)::bigint FROM pg_class \
                   WHERE relkind = 'r' AND relnamespace = to_regnamespace($1)";
        let row = runtime.block_on(client.query_one(sql, &[&self.name]))?;
        Ok(row.get::<_, i64>(0).unsigned_abs())
    }

    /// Reads the newest completed run of an engine's schema.
    pub(crate) fn newest_rows(&self) -> Result<Rows, Problem> {
        let (runtime, client) = self.connect()?;
        runtime.block_on(async {
            let sql = "SELECT no, id, workflow, pool, input, output FROM everstep_runs \
                       WHERE finished_at IS NOT NULL ORDER BY no DESC LIMIT 1";
            let run = client.query_one(sql, &[]).await?;
            let sql = "SELECT key, value FROM everstep_history WHERE run = $1 ORDER BY key";
            let entries = client.query(sql, &[&run.get::<_, i64>(0)]).await?;
            Ok(Rows {
                id: run.get(1),
                workflow: run.get(2),
                pool: run.get(3),
                input: run.get(4),
                output: run.get(5),
                entries: entries.iter().map(|it| (it.get(0), it.get(1))).collect(),
            })
        })
    }

    /// As [`crate::raw::write_runs`]: each lane has a connection and a thread. If the schema of an
    /// engine is given, the tables are copies of its, with the same indexes.
    pub(crate) fn write_runs(
        &self,
        like: Option<&Schema>,
        rows: &Rows,
        in_flight: usize,
        lanes: &[Vec<u32>],
        limit: Duration,
    ) -> Result<Written, Problem> {
        let layout = match like {
            Some(engine) => engine.layout_of_copies(&self.name),
            None => RAW_LAYOUT.to_owned(),
        };
        drop(self.create(&layout)?);
        let ready = &Barrier::new(lanes.len());
        let results: Vec<Result<Written, Problem>> = std::thread::scope(|scope| {
            let lanes = lanes.iter().enumerate().map(|(lane, sizes)| {
                let turns = Turns::new(lane, in_flight.div_ceil(lanes.len()), rows.writes());
                scope.spawn(move || self.write_lane(rows, turns, sizes, limit, ready))
            });
            let lanes: Vec<_> = lanes.collect();
            let joined = lanes.into_iter().map(|lane| lane.join());
            joined.map(|lane| lane.unwrap_or_else(|_| Err("a lane has panicked".into()))).collect()
        });
        let mut all = Written { runs: 0, time: Duration::ZERO, batches: Vec::new() };
        for written in results {
            let written = written?;
            all.runs += written.runs;
            all.time = all.time.max(written.time);
            all.batches.extend(written.batches);
        }
        Ok(all)
    }

    fn write_lane(
        &self,
        rows: &Rows,
        mut turns: Turns,
        sizes: &[u32],
        limit: Duration,
        ready: &Barrier,
    ) -> Result<Written, Problem> {
        let connected = self.connect().and_then(|(runtime, client)| {
            let statements = runtime.block_on(Statements::prepare(&client))?;
            Ok((runtime, client, statements))
        });
        // Also if it failed: the others wait for it.
        ready.wait();
        let (runtime, client, statements) = connected?;
        let mut batches = Vec::with_capacity(sizes.len());
        let began = Instant::now();
        for size in sizes {
            let batch_began = Instant::now();
            let mut arrays = Arrays::default();
            for _ in 0..*size {
                let (no, write) = turns.next();
                arrays.add(rows, no, write);
            }
            runtime.block_on(statements.write(&client, rows, &arrays))?;
            batches.push(batch_began.elapsed());
            if began.elapsed() > limit {
                break;
            }
        }
        Ok(Written { runs: turns.done, time: began.elapsed(), batches })
    }
}

const RAW_LAYOUT: &str = "
    CREATE TABLE everstep_runs (
        no bigint PRIMARY KEY, id bytea NOT NULL, workflow text NOT NULL, version bigint NOT NULL,
        key text, pool text NOT NULL, shard bigint NOT NULL, status bigint NOT NULL, ending bigint,
        generation bigint NOT NULL, available_at bigint, deadline_at bigint,
        created_at bigint NOT NULL, updated_at bigint NOT NULL, finished_at bigint,
        attempts bigint NOT NULL, recoveries bigint NOT NULL, inbox_seq bigint NOT NULL,
        cancel_requested bigint, last_number bigint, waiting text, tags text,
        input bytea NOT NULL, output bytea, error bytea
    ) WITH (fillfactor = 70);
    CREATE INDEX everstep_runs_due ON everstep_runs (shard, available_at) WHERE available_at IS NOT NULL;
    CREATE TABLE everstep_history (
        run bigint NOT NULL, key bytea NOT NULL, value bytea NOT NULL, PRIMARY KEY (run, key)
    )";

/// The rows of one batch.
#[derive(Default)]
struct Arrays<'r> {
    started: Vec<i64>,
    ids: Vec<&'r [u8]>,
    inputs: Vec<&'r [u8]>,
    runs: Vec<i64>,
    keys: Vec<&'r [u8]>,
    values: Vec<&'r [u8]>,
    finished: Vec<i64>,
    outputs: Vec<&'r [u8]>,
}

impl<'r> Arrays<'r> {
    fn add(&mut self, rows: &'r Rows, no: i64, write: usize) {
        if write == 0 {
            self.started.push(no);
            self.ids.push(&rows.id);
            self.inputs.push(&rows.input);
            return;
        }
        let (key, value) = &rows.entries[write - 1];
        self.runs.push(no);
        self.keys.push(key);
        self.values.push(value);
        if write == rows.entries.len() {
            self.finished.push(no);
            self.outputs.push(&rows.output);
        }
    }
}

struct Statements {
    start: Statement,
    put: Statement,
    finish: Statement,
}

impl Statements {
    async fn prepare(client: &Client) -> Result<Statements, Problem> {
        Ok(Statements {
            start: client
                .prepare(
                    "INSERT INTO everstep_runs (no, id, workflow, version, pool, shard, status, generation, \
                     created_at, updated_at, attempts, recoveries, inbox_seq, last_number, input) \
                     SELECT no, id, $4, 1, $5, no % 256, 1, 1, no >> 20, no >> 20, 1, 0, 0, 0, \
                     input FROM (SELECT unnest($1::bigint[]) AS no, unnest($2::bytea[]) AS id, \
                     unnest($3::bytea[]) AS input) AS new",
                )
                .await?,
            put: client
                .prepare(
                    "INSERT INTO everstep_history (run, key, value) \
                     SELECT unnest($1::bigint[]), unnest($2::bytea[]), unnest($3::bytea[])",
                )
                .await?,
            finish: client
                .prepare(
                    "UPDATE everstep_runs SET status = 5, updated_at = new.no >> 20, \
                     finished_at = new.no >> 20, last_number = $3, output = new.output \
                     FROM (SELECT unnest($1::bigint[]) AS no, unnest($2::bytea[]) AS output) AS new \
                     WHERE everstep_runs.no = new.no",
                )
                .await?,
        })
    }

    /// One transaction, one round trip.
    async fn write(
        &self,
        client: &Client,
        rows: &Rows,
        arrays: &Arrays<'_>,
    ) -> Result<(), tokio_postgres::Error> {
        let started = async {
            match arrays.started.is_empty() {
                true => Ok(0),
                false => {
                    let (Arrays { started, ids, inputs, .. }, Rows { workflow, pool, .. }) =
                        (arrays, rows);
                    let parameters: [&(dyn tokio_postgres::types::ToSql + Sync); 5] =
                        [started, ids, inputs, workflow, pool];
                    client.execute(&self.start, &parameters).await
                }
            }
        };
        let put = async {
            match arrays.runs.is_empty() {
                true => Ok(0),
                false => {
                    let Arrays { runs, keys, values, .. } = arrays;
                    client.execute(&self.put, &[runs, keys, values]).await
                }
            }
        };
        let finished = async {
            match arrays.finished.is_empty() {
                true => Ok(0),
                false => {
                    let number = rows.entries.len() as i64;
                    let Arrays { finished, outputs, .. } = arrays;
                    client.execute(&self.finish, &[finished, outputs, &number]).await
                }
            }
        };
        let begin = client.batch_execute("BEGIN");
        let commit = client.batch_execute("COMMIT");
        // Each is sent when it is first polled, and they are polled in this order.
        tokio::try_join!(biased; begin, started, put, finished, commit).map(drop)
    }
}

/// A schema with nothing but the rows of [`crate::bare`].
pub(crate) struct Bare {
    runtime: Runtime,
    client: Client,
}

impl Bare {
    pub(crate) fn new(schema: &Schema) -> Result<Bare, Problem> {
        let (runtime, client) = schema.create(&layout(bare::LAYOUT))?;
        Ok(Bare { runtime, client })
    }

    /// As [`bare::Bare::each`], with one statement over an array for each in a transaction.
    pub(crate) fn each(
        &self,
        n: u64,
        sizes: &[u64],
        each: &bare::Each<'_>,
    ) -> Result<Duration, Problem> {
        let client = &self.client;
        self.runtime.block_on(async {
            let prepared = each.iter().map(|sql| over_an_array(sql));
            let prepared: Vec<String> = prepared.collect();
            let statements = prepared.iter().map(|sql| client.prepare(sql));
            let statements = try_join_all(statements).await?;
            let mut sizes = sizes.iter().copied().filter(|size| *size > 0).cycle();
            let began = Instant::now();
            let mut done = 0;
            while done < n {
                let end = n.min(done + sizes.next().unwrap_or(n));
                let things: Vec<i64> = (done as i64 + 1..=end as i64).collect();
                let things = &things;
                let all = statements
                    .iter()
                    .map(|statement| async move { client.execute(statement, &[things]).await });
                // Each is sent when it is first polled, and they are polled in this order.
                let begin = client.batch_execute("BEGIN");
                let all = try_join(begin, try_join_all(all));
                try_join(all, client.batch_execute("COMMIT")).await?;
                done = end;
            }
            Ok(began.elapsed())
        })
    }
}

/// The layout of a file as that of a schema.
fn layout(of_file: &str) -> String {
    let lines = of_file.lines().filter(|line| !line.contains("PRAGMA"));
    let text: Vec<&str> = lines.collect();
    text.join("\n")
        .replace(" WITHOUT ROWID", "")
        .replace("INTEGER", "bigint")
        .replace("BLOB", "bytea")
        .replace("TEXT", "text")
}

/// A statement about the thing `?1` as one about all things of an array.
fn over_an_array(sql: &str) -> String {
    const EACH: &str = "unnest($1::bigint[]) AS each (n)";
    let mut sql = sql.replace("CAST(?1 AS BLOB)", "n::text::bytea");
    sql = sql.replace("?1", "n");
    while let Some(at) = sql.find("zeroblob(") {
        let rest = &sql[at + 9..];
        let (size, after) = rest.split_once(')').unwrap_or((rest, ""));
        let zeros = "00".repeat(size.parse().unwrap_or(0));
        sql = format!("{}'\\x{zeros}'::bytea{after}", &sql[..at]);
    }
    while let Some(at) = sql.find("X'") {
        let rest = &sql[at + 2..];
        let (digits, after) = rest.split_once('\'').unwrap_or((rest, ""));
        sql = format!("{}'\\x{digits}'::bytea{after}", &sql[..at]);
    }
    if let Some((into, values)) = sql.split_once("VALUES (") {
        let values = values.trim_end().trim_end_matches(')');
        return format!("{into}SELECT {values} FROM {EACH}");
    }
    let word = match sql.starts_with("DELETE") {
        true => "USING",
        false => "FROM",
    };
    sql.replacen(" WHERE ", &format!(" {word} {EACH} WHERE "), 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_statement_about_a_thing_becomes_one_about_an_array() {
        assert_eq!(
            over_an_array("INSERT INTO t (a, b) VALUES (?1 + 1, zeroblob(2))"),
            "INSERT INTO t (a, b) SELECT n + 1, '\\x0000'::bytea FROM \
             unnest($1::bigint[]) AS each (n)"
        );
        assert_eq!(
            over_an_array("DELETE FROM t WHERE a = ?1 AND k = X'02FF'"),
            "DELETE FROM t USING unnest($1::bigint[]) AS each (n) \
             WHERE a = n AND k = '\\x02FF'::bytea"
        );
        assert_eq!(
            over_an_array("UPDATE t SET v = 1 WHERE a = ?1"),
            "UPDATE t SET v = 1 FROM unnest($1::bigint[]) AS each (n) WHERE a = n"
        );
    }

    #[test]
    fn a_place_is_a_schema_or_a_file() {
        let schema =
            Schema::at(Path::new("postgres://u@h:1/d?lanes=2&schema=s")).expect("a schema");
        assert_eq!((&*schema.url, &*schema.name), ("postgres://u@h:1/d", "s"));
        assert!(Schema::at(Path::new("/tmp/engine.db")).is_none());
    }
}
