//! Orders: what the parent tells its children while they run, through files.
//!
//! A file is an order because a child that is stopped or killed cannot lose it, and because a body can
//! ask for one without waiting for anything.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::Duration,
};

/// The directory of the orders. A service of the engine, so that code and bodies can ask.
#[derive(Clone)]
pub(crate) struct Orders(PathBuf);

/// How long slow code and slow bodies take, in pieces: each piece is a line of the ledger.
pub(crate) const PIECES: u32 = 40;
pub(crate) const PIECE: Duration = Duration::from_millis(30);

/// How many processes can be told to die at the same time.
const DEATHS: u32 = 8;

impl Orders {
    pub(crate) fn open(directory: &Path) -> io::Result<Orders> {
        let directory = directory.join("orders");
        fs::create_dir_all(&directory)?;
        Ok(Orders(directory))
    }

    fn slow_file(&self) -> PathBuf {
        self.0.join("slow")
    }

    /// Whether code and bodies that begin now take their time.
    pub(crate) fn are_slow(&self) -> bool {
        self.slow_file().exists()
    }

    pub(crate) fn be_slow(&self) -> io::Result<()> {
        fs::write(self.slow_file(), "")
    }

    pub(crate) fn be_quick(&self) -> io::Result<()> {
        remove(&self.slow_file()).map(drop)
    }

    fn deaths(&self) -> impl Iterator<Item = PathBuf> {
        (0..DEATHS).map(|n| self.0.join(format!("die-{n}")))
    }

    /// The next bodies that ask die with their processes, so many of them.
    pub(crate) fn order_deaths(&self, count: usize) -> io::Result<()> {
        self.deaths().take(count).try_for_each(|it| fs::write(it, ""))
    }

    /// Takes back all orders to die; how many were not followed.
    pub(crate) fn spare(&self) -> io::Result<usize> {
        let mut left = 0;
        for death in self.deaths() {
            left += usize::from(remove(&death)?);
        }
        Ok(left)
    }

    /// Ends this process at once if one is to die, as a kill would.
    pub(crate) fn die_if_told(&self) {
        // Whoever removes the file has the order.
        if self.deaths().any(|death| remove(&death).is_ok_and(|it| it)) {
            std::process::abort();
        }
    }

    /// Where the clock of a process is told how far ahead it is, in milliseconds.
    pub(crate) fn clock_file(&self, process: u32) -> PathBuf {
        self.0.join(format!("clock-{process}"))
    }

    pub(crate) fn set_clock(&self, process: u32, ahead: Duration) -> io::Result<()> {
        self.replace(&self.clock_file(process), &ahead.as_millis().to_string())
    }

    fn up_file(&self, process: u32) -> PathBuf {
        self.0.join(format!("up-{process}"))
    }

    /// Says that the engine or the client of this process has started.
    pub(crate) fn say_up(&self, process: u32) -> io::Result<()> {
        self.replace(&self.up_file(process), "up")
    }

    /// Whether the engine or the client of a process has started. A clock that is wrong before that is
    /// the only one that the process knows.
    pub(crate) fn is_up(&self, process: u32) -> bool {
        self.up_file(process).exists()
    }

    fn starts_file(&self, process: u32) -> PathBuf {
        self.0.join(format!("start-{process}"))
    }

    /// How many naps this process is to have started in all.
    pub(crate) fn starts(&self, process: u32) -> u64 {
        let text = fs::read_to_string(self.starts_file(process)).unwrap_or_default();
        text.trim().parse().unwrap_or(0)
    }

    pub(crate) fn order_starts(&self, process: u32, in_all: u64) -> io::Result<()> {
        self.replace(&self.starts_file(process), &in_all.to_string())
    }

    fn stuck_file(&self) -> PathBuf {
        self.0.join("stuck")
    }

    /// The runs that stand still: each process is to say where they are in its memory.
    pub(crate) fn stuck(&self) -> String {
        fs::read_to_string(self.stuck_file()).unwrap_or_default()
    }

    pub(crate) fn ask_where(&self, runs: &str) -> io::Result<()> {
        self.replace(&self.stuck_file(), runs)
    }

    /// Writes a file whole: a child may read at any moment.
    fn replace(&self, file: &Path, text: &str) -> io::Result<()> {
        let fresh = file.with_extension("new");
        fs::write(&fresh, text)?;
        fs::rename(fresh, file)
    }
}

/// Whether there was a file to remove.
fn remove(file: &Path) -> io::Result<bool> {
    match fs::remove_file(file) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
        Err(error) => Err(error),
    }
}
