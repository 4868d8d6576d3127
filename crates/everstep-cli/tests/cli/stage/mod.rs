//! A store with runs in every state, and the `everstep` command on it.

#![allow(dead_code, reason = "each test file uses its own part")]
#![allow(clippy::unwrap_used)]

#[cfg(unix)]
pub(crate) mod process;
pub(crate) mod script;
pub(crate) mod seed;
pub(crate) mod words;

use std::{
    path::PathBuf,
    process::{Command, Output, Stdio},
};

use everstep::tokio_postgres;

/// A store of a test's own.
pub(crate) struct Place {
    /// What `--db` is given.
    pub(crate) db: String,
    /// Where files of the test are, and the store if it is one.
    pub(crate) directory: tempfile::TempDir,
}

impl Place {
    /// One on SQLite, and one on PostgreSQL.
    pub(crate) fn both() -> [Place; 2] {
        let file = tempfile::tempdir().unwrap();
        let db = file.path().join("app.db").to_str().unwrap().to_owned();
        let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
        [Place { db, directory: file }, Place { db: url, directory: tempfile::tempdir().unwrap() }]
    }

    pub(crate) fn is_postgres(&self) -> bool {
        self.db.starts_with("postgres://")
    }

    /// Changes the store behind everybody's back.
    pub(crate) async fn execute(&self, sql: &str) {
        let Some((url, schema)) = self.db.split_once("?schema=") else {
            let file = everstep::rusqlite::Connection::open(&self.db).unwrap();
            file.execute_batch(sql).unwrap();
            return;
        };
        let (client, connection) =
            tokio_postgres::connect(url, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = format!("SET search_path TO {schema}; {sql}");
        client.batch_execute(&sql).await.unwrap();
    }

    pub(crate) fn file(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Runs `everstep` with these arguments, in the directory, where nobody can be asked.
    pub(crate) fn everstep(&self, arguments: &[String]) -> Output {
        let mut command = everstep();
        command.env("EVERSTEP_DB", &self.db).current_dir(self.directory.path()).args(arguments);
        command.output().unwrap()
    }
}

/// The command, without what the environment of the test says about it.
pub(crate) fn everstep() -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_everstep"));
    plain(&mut command);
    command
}

/// Takes away what the environment of the test says.
pub(crate) fn plain(command: &mut Command) {
    for name in ["EVERSTEP_DB", "EVERSTEP_TOKENS", "EVERSTEP_LOG", "NO_COLOR", "RUST_LOG"] {
        command.env_remove(name);
    }
    // The name by which the audit log knows who it was.
    command.env("USER", "night-shift").stdin(Stdio::null());
}
