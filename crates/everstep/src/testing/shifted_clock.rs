//! A clock of the machine that is wrong by what a test says, from this process or from another.

use std::{
    path::PathBuf,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicI64, Ordering},
    },
    time::{Duration, Instant},
};

use crate::time::{Clock, SystemClock, Timestamp};

/// The clock of the machine, shifted. Unlike a [`VirtualClock`](super::VirtualClock) it goes on by
/// itself, and the engine takes it for the machine's own.
///
/// By [`shift`](ShiftedClock::shift), or by what a file says: whole milliseconds in decimal digits, with a
/// `-` in front for a clock that is behind; no file, or another text, for one that is right. Write the
/// file whole, by renaming another to it.
#[derive(Debug, Default)]
pub struct ShiftedClock {
    shift_ms: AtomicI64,
    file: Option<PathBuf>,
    /// When the file was last read.
    read_at: Mutex<Option<Instant>>,
}

/// How often the file is read at most.
const READ_EVERY: Duration = Duration::from_millis(10);

impl ShiftedClock {
    /// A clock that is right.
    pub fn new() -> ShiftedClock {
        ShiftedClock::default()
    }

    /// A clock that is wrong by what this file says.
    pub fn by_file(file: impl Into<PathBuf>) -> ShiftedClock {
        ShiftedClock { file: Some(file.into()), ..ShiftedClock::default() }
    }

    /// From now on the clock is ahead by so many milliseconds.
    pub fn shift(&self, by_ms: i64) {
        self.shift_ms.store(by_ms, Ordering::Release);
    }

    fn read_file(&self) {
        let Some(file) = &self.file else { return };
        let mut read_at = self.read_at.lock().unwrap_or_else(PoisonError::into_inner);
        if read_at.is_some_and(|at| at.elapsed() < READ_EVERY) {
            return;
        }
        *read_at = Some(Instant::now());
        let text = std::fs::read_to_string(file).unwrap_or_default();
        self.shift(text.trim().parse().unwrap_or(0));
    }
}

impl Clock for ShiftedClock {
    fn now(&self) -> Timestamp {
        self.read_file();
        let shift = self.shift_ms.load(Ordering::Acquire);
        Timestamp::from_millis(SystemClock.now().as_millis().saturating_add(shift))
    }
}
