//! The counts of a PostgreSQL server.

use std::time::{Duration, Instant};

use everstep_pg::{Instance, Session};

use crate::{Directory, Problem};

/// How a server is set that counts statements. Nothing that happens by itself may fall into a
/// measurement: no autovacuum, and no checkpoint but those that are asked for.
const COUNTING: &str = "
shared_preload_libraries = 'pg_stat_statements'
autovacuum = off
checkpoint_timeout = '1h'
max_wal_size = '16GB'
";

/// How long connections may take to end.
const PATIENCE: Duration = Duration::from_secs(30);

/// A new server that counts statements.
pub(crate) fn start() -> Result<Instance, Problem> {
    let server = Instance::start_with(COUNTING).map_err(|error| {
        let hint = "does the server have `pg_stat_statements`, which Debian installs with it?";
        format!("{error}; {hint}")
    })?;
    server.session()?.query("CREATE EXTENSION pg_stat_statements")?;
    Ok(server)
}

/// The processor time of the server, if there is one.
pub(super) fn cpu_time(directory: &Directory) -> Duration {
    let server = directory.server.as_ref();
    server.map(|server| server.cpu_time()).unwrap_or_default()
}

fn numbers<const N: usize>(session: &mut Session, sql: &str) -> Result<[u64; N], Problem> {
    let row = session.query(sql)?.into_iter().next().unwrap_or_default();
    let numbers = row.iter().map(|column| {
        let text = column.as_deref().unwrap_or("0");
        text.parse::<u64>().map_err(|_| format!("`{text}` is no count"))
    });
    let numbers: Vec<u64> = numbers.collect::<Result<_, _>>()?;
    numbers.try_into().map_err(|_| format!("`{sql}` gave another number of columns").into())
}

/// What a server counts at once.
#[derive(Clone, Copy)]
pub(super) struct Statements {
    statements: u64,
    rows: u64,
    wal_bytes: u64,
}

impl Statements {
    /// Those of the server; `None` if the store is no server. Questions about statistics, as this
    /// one, are left out.
    pub(super) fn read(directory: &Directory) -> Result<Option<Statements>, Problem> {
        let Some(server) = &directory.server else {
            return Ok(None);
        };
        let sql = "SELECT coalesce(sum(calls), 0)::bigint, coalesce(sum(rows), 0)::bigint, \
                   (pg_current_wal_insert_lsn() - '0/0')::bigint \
                   FROM pg_stat_statements WHERE query NOT LIKE '%pg_stat%'";
        let [statements, rows, wal_bytes] = numbers(&mut server.session()?, sql)?;
        Ok(Some(Statements { statements, rows, wal_bytes }))
    }

    pub(super) fn since(&self, before: &Statements) -> Statements {
        Statements {
            statements: self.statements - before.statements,
            rows: self.rows - before.rows,
            wal_bytes: self.wal_bytes - before.wal_bytes,
        }
    }

    pub(super) fn figures(&self, runs: u64, add: &mut dyn FnMut(&str, f64)) {
        add("statements", self.statements as f64 / runs as f64);
        add("rows", self.rows as f64 / runs as f64);
        add("wal_bytes", self.wal_bytes as f64 / runs as f64);
    }
}

/// What backends report when they end.
pub(super) struct Statistics {
    transactions: f64,
    rows_written: f64,
    wal_records: f64,
    wal_page_images: f64,
    wal_syncs: f64,
}

impl Statistics {
    /// Those of the server, after all connections of engines were ended, and after a checkpoint;
    /// `None` if the store is no server.
    pub(super) async fn read(directory: &Directory) -> Result<Option<Statistics>, Problem> {
        let Some(server) = &directory.server else {
            return Ok(None);
        };
        let mut session = server.session()?;
        let began = Instant::now();
        // A store may keep its connections after its engine, and connect again.
        let [instant] = numbers(&mut session, "SELECT (extract(epoch FROM now()) * 1e6)::bigint")?;
        let of_engines = format!(
            "FROM pg_stat_activity WHERE backend_type = 'client backend' \
             AND pid <> pg_backend_pid() AND extract(epoch FROM backend_start) * 1e6 < {instant}"
        );
        session.query(&format!("SELECT pg_terminate_backend(pid) {of_engines}"))?;
        while numbers(&mut session, &format!("SELECT count(*) {of_engines}"))? != [0] {
            if began.elapsed() > PATIENCE {
                return Err("connections do not end".into());
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        session.query("CHECKPOINT")?;
        // A new session: statistics do not change within one that has read them, and in version 14
        // they are on their way to a collector.
        tokio::time::sleep(Duration::from_millis(600)).await;
        let mut session = server.session()?;
        let sql = "SELECT xact_commit + xact_rollback, tup_inserted + tup_updated + tup_deleted \
                   FROM pg_stat_database WHERE datname = current_database()";
        let [transactions, rows_written] = numbers(&mut session, sql)?;
        let [version] = numbers(&mut session, "SELECT current_setting('server_version_num')")?;
        let syncs = match version >= 180_000 {
            true => "(SELECT sum(fsyncs)::bigint FROM pg_stat_io WHERE object = 'wal')",
            false => "wal_sync",
        };
        let sql = format!("SELECT wal_records, wal_fpi, {syncs} FROM pg_stat_wal");
        let [wal_records, wal_page_images, wal_syncs] = numbers(&mut session, &sql)?;
        Ok(Some(Statistics {
            transactions: transactions as f64,
            rows_written: rows_written as f64,
            wal_records: wal_records as f64,
            wal_page_images: wal_page_images as f64,
            wal_syncs: wal_syncs as f64,
        }))
    }

    /// A difference, which may be below zero if it is one of differences.
    pub(super) fn since(&self, before: &Statistics) -> Statistics {
        Statistics {
            transactions: self.transactions - before.transactions,
            rows_written: self.rows_written - before.rows_written,
            wal_records: self.wal_records - before.wal_records,
            wal_page_images: self.wal_page_images - before.wal_page_images,
            wal_syncs: self.wal_syncs - before.wal_syncs,
        }
    }

    pub(super) fn figures(&self, runs: u64) -> Vec<(String, f64)> {
        let figures = [
            ("transactions", self.transactions),
            ("rows_written", self.rows_written),
            ("wal_records", self.wal_records),
            ("wal_page_images", self.wal_page_images),
            ("wal_syncs", self.wal_syncs),
        ];
        let figures = figures.map(|(name, figure)| (name.to_owned(), figure / runs as f64));
        figures.into()
    }
}
