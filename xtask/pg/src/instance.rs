//! One server of its own.
//!
//! The server is a child of this process. What is ours is in [`Directory`]: `data`, the socket and
//! the log. Its port does not change while it lives, so that clients find it again after a restart.
//!
//! Always true: with `fsync`, `synchronous_commit` and `full_page_writes` on, as people run it.

use std::{
    fs::{self, File},
    net::{Ipv4Addr, SocketAddr, TcpListener},
    path::{Path, PathBuf},
    process::{Child, ExitStatus, Stdio},
    sync::{Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use rustix::process::{Pid, Signal, kill_process};

use crate::{Error, Session, Settings, account::Account, binaries::Binaries, directory::Directory};

/// The superuser of every instance. It needs no password.
pub(crate) const USER: &str = "postgres";
/// The database that is there from the start.
const DATABASE: &str = "postgres";

/// How long a server may take to start (with recovery) or to stop.
const PATIENCE: Duration = Duration::from_secs(120);
const POLL: Duration = Duration::from_millis(10);

/// How long backends may take to notice that their postmaster is gone, before they are killed too.
const NOTICE: Duration = Duration::from_secs(1);

/// Below the ports that systems give to clients: a port of theirs could be taken by any connection
/// while the server is down.
const PORTS: std::ops::Range<u16> = 15_000..32_000;

/// How many ports are tried for a new server, if others are quicker.
const PORT_TRIES: u32 = 10;

/// As much of the log as is shown.
const TAIL_LINES: usize = 30;

const CONFIGURATION: &str = "
listen_addresses = '127.0.0.1'
max_connections = 1000
fsync = on
synchronous_commit = on
full_page_writes = on
log_line_prefix = '%m [%p] %a '
# A standby asks again at once when it is ahead of what it was sent.
wal_retrieve_retry_interval = 100ms
";

/// How locales are asked for, the first that initdb takes. Names in a language's own order show
/// what depends on the order of bytes and does not say so.
const LOCALES: [&[&str]; 2] =
    [&["--locale-provider=icu", "--icu-locale=en-US", "--locale=C"], &["--locale=C"]];

/// How a server is stopped.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shutdown {
    /// Open transactions are rolled back, everything is written out.
    Fast,
    /// As in a crash: what was confirmed is recovered from the log at the next start.
    Immediate,
}

/// A server of its own, stopped and removed when this is dropped or the process has ended.
#[derive(Debug)]
pub struct Instance {
    pub(crate) binaries: Binaries,
    pub(crate) account: Account,
    port: u16,
    /// `None` while it is stopped.
    server: Mutex<Option<Child>>,
    directory: Directory,
}

impl Instance {
    /// Makes a cluster and starts it. PostgreSQL is installed first if it is not there.
    ///
    /// # Errors
    ///
    /// If there is no PostgreSQL and none may be installed, or if it does not start; the error has
    /// the end of its log.
    pub fn start_new() -> Result<Self, Error> {
        Self::start_with("")
    }

    /// As [`start_new`](Instance::start_new), with more lines of `postgresql.conf`.
    ///
    /// # Errors
    ///
    /// As for [`start_new`](Instance::start_new), and if the server does not take a line.
    pub fn start_with(more: &str) -> Result<Self, Error> {
        let mut instance = Self::unmade()?;
        instance.initdb()?;
        let file = instance.data().join("postgresql.conf");
        let configuration = fs::read_to_string(&file).map_err(Error::at(&file))?;
        let configuration = configuration + CONFIGURATION + more;
        fs::write(&file, configuration).map_err(Error::at(&file))?;
        instance.start_on_a_free_port()?;
        Ok(instance)
    }

    /// An instance without data, not started.
    pub(crate) fn unmade() -> Result<Self, Error> {
        let binaries = Binaries::find_or_install()?;
        let account = Account::for_servers()?;
        let directory = Directory::make(account, Some(&binaries.path("pg_ctl")))?;
        Ok(Instance { binaries, account, port: free_port()?, server: Mutex::new(None), directory })
    }

    fn initdb(&self) -> Result<(), Error> {
        let mut result = Ok(());
        for locale in LOCALES {
            let mut arguments = vec!["--auth=trust", "--encoding=UTF8", "--no-sync"];
            arguments.extend(["--username", USER]);
            arguments.extend(locale);
            result = self.run("initdb", &arguments);
            if result.is_ok() {
                break;
            }
        }
        result
    }

    /// Runs one of PostgreSQL's programs on `data` to its end.
    pub(crate) fn run(&self, program: &str, arguments: &[&str]) -> Result<(), Error> {
        let program = self.binaries.path(program);
        let mut command = self.account.command(&program, self.directory.path());
        command.arg("-D").arg(self.data()).args(arguments);
        let output =
            command.output().map_err(Error::io(format!("starting {}", program.display())))?;
        if output.status.success() {
            return Ok(());
        }
        let what = format!("{} ended with {}", program.display(), output.status);
        let said = String::from_utf8_lossy(&output.stderr);
        Err(Error::failed(what, tail(&said)))
    }

    /// The first start. Another server may have taken the port since it was looked for.
    pub(crate) fn start_on_a_free_port(&mut self) -> Result<(), Error> {
        let mut tries = 1;
        loop {
            match self.start() {
                Err(Error::Failed { output, .. })
                    if output.contains("could not bind") && tries < PORT_TRIES =>
                {
                    self.port = free_port()?;
                    tries += 1;
                }
                result => return result,
            }
        }
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port).into()
    }

    /// The directory of its unix socket.
    pub fn socket_directory(&self) -> &Path {
        self.directory.path()
    }

    /// The database that is there from the start.
    pub fn url(&self) -> String {
        self.url_for(DATABASE)
    }

    /// A database by name.
    pub fn url_for(&self, database: &str) -> String {
        format!("postgres://{USER}@{}/{database}", self.address())
    }

    /// Makes an empty database, and gives its URL.
    ///
    /// # Errors
    ///
    /// If there is one of that name.
    pub fn create_database(&self, name: &str) -> Result<String, Error> {
        let quoted = name.replace('"', "\"\"");
        self.session()?.query(&format!("CREATE DATABASE \"{quoted}\""))?;
        Ok(self.url_for(name))
    }

    /// A connection to the database that is there from the start.
    ///
    /// # Errors
    ///
    /// If the server is not there, or does not take it.
    pub fn session(&self) -> Result<Session, Error> {
        Session::open(self.address(), USER, DATABASE, "everstep-pg")
    }

    /// What it does about durability.
    ///
    /// # Errors
    ///
    /// If the server does not answer.
    pub fn settings(&self) -> Result<Settings, Error> {
        Settings::of(&mut self.session()?)
    }

    /// Starts a server that was stopped, on the same port, and waits until it takes connections.
    /// Nothing happens if it is running.
    ///
    /// # Errors
    ///
    /// If it ends instead, with the end of its log.
    pub fn start(&self) -> Result<(), Error> {
        let mut server = self.server();
        if let Some(child) = server.as_mut()
            && child.try_wait().map_err(Error::io("waiting"))?.is_none()
        {
            return Ok(());
        }
        let child = self.spawn()?;
        let child = server.insert(child);
        if let Err(error) = self.wait_until_ready(child) {
            _ = child.kill();
            _ = child.wait();
            *server = None;
            return Err(error);
        }
        Ok(())
    }

    fn spawn(&self) -> Result<Child, Error> {
        let program = self.binaries.path("postgres");
        let path = self.log();
        let log = File::options().create(true).append(true).open(&path);
        let log = log.map_err(Error::at(&path))?;
        let errors = log.try_clone().map_err(Error::at(&path))?;
        let mut command = self.account.command(&program, self.directory.path());
        command.arg("-D").arg(self.data());
        command.arg("-p").arg(self.port.to_string());
        command.arg("-k").arg(self.directory.path());
        command.stdout(log).stderr(errors).stdin(Stdio::null());
        command.spawn().map_err(Error::io(format!("starting {}", program.display())))
    }

    fn wait_until_ready(&self, child: &mut Child) -> Result<(), Error> {
        let begun = Instant::now();
        loop {
            if let Some(status) = child.try_wait().map_err(Error::io("waiting"))? {
                return Err(self.failed(&format!("PostgreSQL ended with {status} at its start")));
            }
            if self.session().is_ok() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed("PostgreSQL took too long to start"));
            }
            thread::sleep(POLL);
        }
    }

    /// Stops the server. Nothing happens if it is stopped.
    ///
    /// # Errors
    ///
    /// If it does not stop, with the end of its log.
    pub fn stop(&self, how: Shutdown) -> Result<(), Error> {
        let mut server = self.server();
        if let Some(child) = server.as_mut() {
            signal(
                child,
                match how {
                    Shutdown::Fast => Signal::INT,
                    Shutdown::Immediate => Signal::QUIT,
                },
            )?;
            if ended_within(child, PATIENCE)?.is_none() {
                return Err(self.failed("PostgreSQL took too long to stop"));
            }
        }
        *server = None;
        Ok(())
    }

    /// Stops the server as a crash would, and starts it again.
    ///
    /// # Errors
    ///
    /// As for [`stop`](Instance::stop) and [`start`](Instance::start).
    pub fn restart_immediate(&self) -> Result<(), Error> {
        self.stop(Shutdown::Immediate)?;
        self.start()
    }

    /// Kills the server with SIGKILL and waits until none of its processes is left. They notice by
    /// themselves, and are killed if they do not.
    ///
    /// # Errors
    ///
    /// If they cannot be killed.
    pub fn kill9(&self) -> Result<(), Error> {
        let mut server = self.server();
        let Some(child) = server.as_mut() else {
            return Ok(());
        };
        child.kill().map_err(Error::io("killing PostgreSQL"))?;
        child.wait().map_err(Error::io("waiting"))?;
        *server = None;
        let begun = Instant::now();
        loop {
            let left = processes_in(&self.data());
            if left.is_empty() {
                return Ok(());
            }
            if begun.elapsed() > PATIENCE {
                return Err(self.failed("PostgreSQL's processes outlive their own killing"));
            }
            if begun.elapsed() > NOTICE {
                for pid in left {
                    // It may have ended just now.
                    _ = kill_process(pid, Signal::KILL);
                }
            }
            thread::sleep(POLL);
        }
    }

    /// The processor time of all its processes so far: to the nanosecond of those that live, to a
    /// hundredth of a second of those that have ended. Zero where the system does not tell.
    pub fn cpu_time(&self) -> Duration {
        let data = self.data();
        let living = processes_in(&data).into_iter().map(|pid| {
            let times = fs::read_to_string(format!("/proc/{}/schedstat", pid.as_raw_nonzero()));
            first_number(&times.unwrap_or_default())
        });
        let living = Duration::from_nanos(living.sum());
        let postmaster = fs::read_to_string(data.join("postmaster.pid")).unwrap_or_default();
        let stat = format!("/proc/{}/stat", first_number(&postmaster));
        let stat = fs::read_to_string(stat).unwrap_or_default();
        // The name of the program, in parentheses, may contain anything; then come numbers, of which
        // these are the ticks of children that were waited for.
        let numbers = stat.rsplit(')').next().unwrap_or_default();
        let ended = numbers.split_whitespace().skip(13).take(2).map(first_number);
        living + Duration::from_millis(ended.sum::<u64>() * 10)
    }

    /// The end of what it has logged.
    pub fn log_tail(&self) -> String {
        let log = fs::read(self.log()).unwrap_or_default();
        tail(&String::from_utf8_lossy(&log))
    }

    /// Where it keeps its data.
    pub fn data(&self) -> PathBuf {
        self.directory.path().join("data")
    }

    fn log(&self) -> PathBuf {
        self.directory.path().join("log")
    }

    pub(crate) fn failed(&self, what: &str) -> Error {
        Error::failed(what, self.log_tail())
    }

    fn server(&self) -> MutexGuard<'_, Option<Child>> {
        // What it guards is right after every single change.
        self.server.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Its directory is dropped next, and nobody wants its data.
        if self.stop(Shutdown::Immediate).is_err() {
            _ = self.kill9();
        }
    }
}

pub(crate) fn signal(child: &Child, signal: Signal) -> Result<(), Error> {
    let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
    let pid = pid.expect("a process has a number above 0");
    // A child that has ended keeps its number until it is waited for.
    kill_process(pid, signal).map_err(|error| Error::io("sending a signal")(error.into()))
}

pub(crate) fn ended_within(child: &mut Child, time: Duration) -> Result<Option<ExitStatus>, Error> {
    let begun = Instant::now();
    loop {
        let status = child.try_wait().map_err(Error::io("waiting"))?;
        if status.is_some() || begun.elapsed() > time {
            return Ok(status);
        }
        thread::sleep(POLL);
    }
}

/// A port that nobody listens on now. Where the search begins differs between processes.
pub(crate) fn free_port() -> Result<u16, Error> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    let mixed = u64::from(now.unwrap_or_default().subsec_nanos()) ^ u64::from(std::process::id());
    let many = u64::from(PORTS.end - PORTS.start);
    let begin = u16::try_from(mixed.wrapping_mul(0x9e37_79b9_7f4a_7c15) % many);
    let begin = PORTS.start + begin.expect("it is less than the number of ports");
    let mut ports = (begin..PORTS.end).chain(PORTS.start..begin);
    let free = ports.find(|port| TcpListener::bind((Ipv4Addr::LOCALHOST, *port)).is_ok());
    free.ok_or_else(|| Error::failed("no port is free", ""))
}

/// The processes that work in this directory, as all of PostgreSQL's do in their data. None where
/// the system does not tell; the next start then says if there were any.
fn processes_in(data: &Path) -> Vec<Pid> {
    let Ok(data) = fs::canonicalize(data) else {
        return Vec::new();
    };
    let entries = fs::read_dir("/proc").into_iter().flatten().flatten();
    let works_there = |entry: fs::DirEntry| {
        let pid = entry.file_name().to_str()?.parse().ok()?;
        let there = fs::read_link(entry.path().join("cwd")).ok()? == data;
        there.then(|| Pid::from_raw(pid))?
    };
    entries.filter_map(works_there).collect()
}

fn first_number(text: &str) -> u64 {
    let first = text.split_whitespace().next();
    first.and_then(|first| first.parse().ok()).unwrap_or(0)
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(TAIL_LINES)..].join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn free_port_is_none_that_is_taken() {
        let port = free_port().unwrap();
        assert!(PORTS.contains(&port));
        let _taken = TcpListener::bind((Ipv4Addr::LOCALHOST, port)).unwrap();
        assert_ne!(free_port().unwrap(), port);
    }

    #[test]
    fn tail_is_the_last_lines() {
        let text: String = (0..40).map(|no| format!("{no}\n")).collect();
        let shown = tail(&text);
        assert!(shown.starts_with("10\n") && shown.ends_with("\n39"), "{shown}");
        assert_eq!(tail("one"), "one");
    }
}
