//! Where the store is: in a file, or on a PostgreSQL server of our own.

use std::{path::PathBuf, sync::Arc};

use everstep::{Client, ClientError, rusqlite::Connection};
use everstep_pg::Instance;

use crate::Problem;

/// The schema of the store on a server.
const SCHEMA: &str = "everstep";

#[derive(Clone)]
pub(crate) enum Place {
    File(PathBuf),
    Server(Arc<Instance>),
}

impl Place {
    /// Opens it as a client.
    pub(crate) async fn client(&self) -> Result<Client, ClientError> {
        match self {
            Place::File(path) => Client::open(path).await,
            Place::Server(server) => Client::open(named(&server.url(), "client")).await,
        }
    }

    /// Two numbers by which the store knows a schedule: what its ticks are counted from, and when
    /// the next one is due.
    pub(crate) fn schedule_times(&self, name: &str) -> Result<(i64, i64), Problem> {
        match self {
            Place::File(path) => {
                let sql = "SELECT anchor, next_at FROM schedules WHERE name = ?1";
                let connection = Connection::open(path)?;
                let times = connection.query_row(sql, [name], |row| Ok((row.get(0)?, row.get(1)?)));
                Ok(times?)
            }
            Place::Server(server) => {
                let name = name.replace('\'', "''");
                let of = format!("FROM {SCHEMA}.schedules WHERE name = '{name}'");
                let mut session = server.session()?;
                let mut number = |column: &str| -> Result<i64, Problem> {
                    Ok(session.value(&format!("SELECT {column} {of}"))?.parse()?)
                };
                Ok((number("anchor")?, number("next_at")?))
            }
        }
    }

    /// Whether a process has lost all its shards on a server to others, or never had any.
    pub(crate) fn has_lost_its_shards(&self, process: u32) -> Result<bool, Problem> {
        let Place::Server(server) = self else {
            return Ok(false);
        };
        let sql = format!(
            "SELECT count(*) FROM {SCHEMA}.shards JOIN {SCHEMA}.runners ON runners.id = runner \
             WHERE name LIKE '%/{process}'"
        );
        Ok(server.session()?.value(&sql)? == "0")
    }
}

/// The URL of a server, for a connection with this name.
pub(crate) fn named(url: &str, name: &str) -> String {
    format!("{url}?schema={SCHEMA}&application_name=everstep-{name}")
}
