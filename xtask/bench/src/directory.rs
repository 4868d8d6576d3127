//! A directory for the files of one measurement, or a server for its schemas.

use std::{
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
};

use everstep_pg::Instance;

use crate::{Problem, postgres};

/// The variable that says how many lanes there may be on PostgreSQL, to compare.
const LANES: &str = "EVERSTEP_BENCH_LANES";

/// Where a measurement has its stores: a directory that is removed when dropped, or a server.
pub(crate) struct Directory {
    path: PathBuf,
    name: String,
    pub(crate) server: Option<Arc<Instance>>,
    schemas: AtomicU64,
}

impl Directory {
    pub(crate) fn new(
        base: &Path,
        name: &str,
        server: Option<Arc<Instance>>,
    ) -> io::Result<Directory> {
        let path = base.join(format!("bench-{name}-{}", std::process::id()));
        if server.is_none() {
            fs::create_dir_all(&path)?;
        }
        Ok(Directory { path, name: name.to_owned(), server, schemas: AtomicU64::new(0) })
    }

    /// A place for a store: the path of a file in it, which is removed if it is there, with what
    /// SQLite keeps beside it; or the URL of a schema that is not there.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        if let Some(server) = &self.server {
            let n = self.schemas.fetch_add(1, Ordering::Relaxed);
            let stem = name.trim_end_matches(".db");
            let url = server.url();
            let sign = if url.contains('?') { '&' } else { '?' };
            let lanes = match std::env::var(LANES) {
                Ok(lanes) => format!("lanes={lanes}&"),
                Err(_) => String::new(),
            };
            // One server has the schemas of all measurements.
            let schema = format!("bench_{}_{stem}_{n}", self.name);
            return format!("{url}{sign}{lanes}schema={schema}").into();
        }
        let path = self.path.join(name);
        for ending in ["", "-wal", "-shm"] {
            drop(fs::remove_file(self.path.join(format!("{name}{ending}"))));
        }
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        match &self.server {
            // The next measurement shall not share the machine with what the server does for tables
            // that nobody reads any more. If it fails, they are gone with the server.
            Some(server) => drop(drop_schemas(server, &self.name)),
            None => drop(fs::remove_dir_all(&self.path)),
        }
    }
}

/// Each in a transaction of its own: together they have more tables than a transaction may lock.
fn drop_schemas(server: &Instance, name: &str) -> Result<(), Problem> {
    let mut session = server.session()?;
    let sql = format!("SELECT nspname FROM pg_namespace WHERE nspname LIKE 'bench_{name}_%'");
    for row in session.query(&sql)? {
        let schema = row.first().and_then(Option::as_deref).unwrap_or_default();
        session.query(&format!("DROP SCHEMA \"{schema}\" CASCADE"))?;
    }
    session.query("CHECKPOINT")?;
    Ok(())
}

/// The size of a database, with its log; of a schema, with its indexes.
pub(crate) fn bytes_of(place: &Path) -> Result<u64, Problem> {
    if let Some(schema) = postgres::Schema::at(place) {
        return schema.bytes();
    }
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    let mut log = place.as_os_str().to_owned();
    log.push("-wal");
    Ok(size(place) + size(Path::new(&log)))
}
