//! Where the store is: in a file, or on a PostgreSQL server of our own.

use std::{
    path::PathBuf,
    sync::Arc,
    time::{Duration, Instant},
};

use everstep::{Client, ClientError, rusqlite::Connection};
use everstep_pg::{Instance, Session};

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
                let sql = "SELECT anchor, next_at FROM everstep_schedules WHERE name = ?1";
                let connection = Connection::open(path)?;
                let times = connection.query_row(sql, [name], |row| Ok((row.get(0)?, row.get(1)?)));
                Ok(times?)
            }
            Place::Server(server) => {
                let name = name.replace('\'', "''");
                let of = format!("FROM {SCHEMA}.everstep_schedules WHERE name = '{name}'");
                let mut session = server.session()?;
                let mut number = |column: &str| -> Result<i64, Problem> {
                    Ok(session.value(&format!("SELECT {column} {of}"))?.parse()?)
                };
                Ok((number("anchor")?, number("next_at")?))
            }
        }
    }

    /// Keeps all runners from committing until they are let go; in a file also everybody else. Must not
    /// last as long as a lease.
    pub(crate) fn hold_commits(&self) -> Result<Held, Problem> {
        match self {
            Place::File(path) => {
                let connection = Connection::open(path)?;
                connection.busy_timeout(Duration::ZERO)?;
                // SQLite's own waiting looks up to 100 ms apart; the others do not.
                let limit = Instant::now() + Duration::from_secs(2);
                loop {
                    match connection.execute_batch("BEGIN IMMEDIATE") {
                        Ok(()) => return Ok(Held::File(connection)),
                        Err(error) if Instant::now() > limit => return Err(error.into()),
                        Err(_) => std::thread::sleep(Duration::from_micros(200)),
                    }
                }
            }
            Place::Server(server) => {
                // A batch of a runner locks the runner's row first, to see whether its fence holds.
                let mut session = server.session()?;
                session.query(&format!(
                    "BEGIN; SET LOCAL lock_timeout = '2s'; \
                     LOCK TABLE {SCHEMA}.everstep_runners IN EXCLUSIVE MODE"
                ))?;
                Ok(Held::Server(session))
            }
        }
    }

    /// Whether a runner on a server has no transaction open.
    pub(crate) fn is_between_commits(&self, connection: &str) -> Result<bool, Problem> {
        let Place::Server(server) = self else {
            return Ok(true);
        };
        let sql = format!(
            "SELECT count(*) FROM pg_stat_activity WHERE xact_start IS NOT NULL \
             AND application_name = 'everstep-{connection}'"
        );
        Ok(server.session()?.value(&sql)? == "0")
    }

    /// Has the wake-ups to a runner in a file lost, until it [hears](Place::hear) again. All runners
    /// must be stopped meanwhile: one whose socket is gone is taken for dead.
    pub(crate) fn deafen(&self, runner: &str) -> Result<(), Problem> {
        self.move_socket(runner, "", "-away")
    }

    pub(crate) fn hear(&self, runner: &str) -> Result<(), Problem> {
        self.move_socket(runner, "-away", "")
    }

    fn move_socket(&self, runner: &str, from: &str, to: &str) -> Result<(), Problem> {
        let Place::File(path) = self else {
            return Ok(());
        };
        // The library names it after the end of the runner's id.
        let socket = format!("{}-wake-{}", path.display(), &runner[20..]);
        Ok(std::fs::rename(format!("{socket}{from}"), format!("{socket}{to}"))?)
    }

    /// Makes the place as if it had never been used. Nobody may be at it any more.
    pub(crate) fn clear(&self) -> Result<(), Problem> {
        if let Place::Server(server) = self {
            let mut session = server.session()?;
            session.query(
                "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
                 WHERE application_name LIKE 'everstep-%' AND pid <> pg_backend_pid()",
            )?;
            session.query(&format!(
                "DROP SCHEMA IF EXISTS {SCHEMA} CASCADE; \
                 DROP TABLE IF EXISTS crash_moves, crash_orders"
            ))?;
        }
        Ok(())
    }
}

/// Runners that cannot commit for a while.
pub(crate) enum Held {
    File(Connection),
    Server(Session),
}

impl Held {
    /// Cuts the connection through which a runner on a server is woken.
    pub(crate) fn deafen(&mut self, connection: &str) -> Result<(), Problem> {
        let Held::Server(session) = self else {
            return Ok(());
        };
        let sql = format!(
            "SELECT pg_terminate_backend(pid) FROM pg_stat_activity \
             WHERE application_name = 'everstep-{connection}' AND query LIKE 'LISTEN%'"
        );
        Ok(session.query(&sql).map(drop)?)
    }

    pub(crate) fn let_go(self) -> Result<(), Problem> {
        match self {
            Held::File(connection) => Ok(connection.execute_batch("ROLLBACK")?),
            Held::Server(mut session) => Ok(session.query("ROLLBACK").map(drop)?),
        }
    }
}

/// The URL of a server, for a connection with this name.
pub(crate) fn named(url: &str, name: &str) -> String {
    format!("{url}?schema={SCHEMA}&application_name=everstep-{name}")
}
