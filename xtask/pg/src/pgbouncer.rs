//! A pooler of transactions in front of an instance.

use std::{
    fs,
    net::{Ipv4Addr, SocketAddr},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

use rustix::process::Signal;

use crate::{
    Error, Instance, Session,
    account::Account,
    binaries,
    directory::Directory,
    instance::{USER, ended_within, free_port, signal},
};

const PATIENCE: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(10);

/// How many ports are tried, if others are quicker.
const PORT_TRIES: u32 = 10;

/// pgbouncer in transaction pooling mode: each transaction of a connection may be on another
/// connection to the server. Stopped when this is dropped or the process has ended.
#[derive(Debug)]
pub struct Pgbouncer {
    port: u16,
    process: Child,
    directory: Directory,
}

impl Pgbouncer {
    /// Starts one in front of `instance`. It is installed first if it is not there.
    ///
    /// # Errors
    ///
    /// If there is none and none may be installed, or if it does not start.
    pub fn start_before(instance: &Instance) -> Result<Self, Error> {
        let program = binaries::pgbouncer()?;
        let account = Account::for_servers()?;
        let mut tries = 1;
        loop {
            let started = Self::start_on(free_port()?, &program, account, instance);
            match started {
                Err(Error::Failed { output, .. })
                    if output.contains("in use") && tries < PORT_TRIES =>
                {
                    tries += 1;
                }
                started => return started,
            }
        }
    }

    fn start_on(
        port: u16,
        program: &Path,
        account: Account,
        instance: &Instance,
    ) -> Result<Self, Error> {
        let directory = Directory::make(account, None)?;
        let path = directory.path();
        let write = |name: &str, text: &str| -> Result<PathBuf, Error> {
            let file = path.join(name);
            fs::write(&file, text).map_err(Error::at(&file))?;
            let mode = fs::Permissions::from_mode(0o600);
            fs::set_permissions(&file, mode).map_err(Error::at(&file))?;
            account.own(&file)?;
            Ok(file)
        };
        write("users", &format!("\"{USER}\" \"\"\n"))?;
        let configuration = write("ini", &configuration(port, path, instance.address()))?;
        let mut command = account.command(program, path);
        command.arg("--quiet").arg(configuration);
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let process =
            command.spawn().map_err(Error::io(format!("starting {}", program.display())))?;
        let mut started = Pgbouncer { port, process, directory };
        started.wait_until_ready()?;
        Ok(started)
    }

    fn wait_until_ready(&mut self) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.process.try_wait().map_err(Error::io("waiting"))? {
                return Err(self.failed(&format!("pgbouncer ended with {status} at its start")));
            }
            if self.session("everstep-pg").is_ok() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed("pgbouncer took too long to start"));
            }
            thread::sleep(POLL);
        }
    }

    fn failed(&self, what: &str) -> Error {
        let log = fs::read_to_string(self.directory.path().join("log"));
        Error::failed(what, log.unwrap_or_default())
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// A database of the server, by name.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://{USER}@{}/{database}", self.address())
    }

    /// A connection through it to the database that is there from the start.
    ///
    /// # Errors
    ///
    /// If the server is not there, or does not take it.
    pub fn session(&self, application_name: &str) -> Result<Session, Error> {
        Session::open(self.address(), USER, "postgres", application_name)
    }
}

impl Drop for Pgbouncer {
    fn drop(&mut self) {
        _ = signal(&self.process, Signal::QUIT);
        if !matches!(ended_within(&mut self.process, PATIENCE), Ok(Some(_))) {
            _ = self.process.kill();
            _ = self.process.wait();
        }
        // The number may be another process's when the directory is cleared.
        _ = fs::remove_file(self.directory.path().join("pid"));
    }
}

fn configuration(port: u16, directory: &Path, server: SocketAddr) -> String {
    let directory = directory.display();
    format!(
        "[databases]
* = host={} port={}

[pgbouncer]
listen_addr = 127.0.0.1
listen_port = {port}
unix_socket_dir =
auth_type = trust
auth_file = {directory}/users
logfile = {directory}/log
pidfile = {directory}/pid
pool_mode = transaction
max_client_conn = 500
default_pool_size = 20
ignore_startup_parameters = extra_float_digits
",
        server.ip(),
        server.port()
    )
}
