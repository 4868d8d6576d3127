//! What this process takes of the machine, as the kernel counts it.

use std::{collections::BTreeMap, fs, path::Path, time::Duration};

use rustix::time::{ClockId, clock_gettime};

/// The memory that is resident now, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    number_after("/proc/self/status", "VmRSS:") * 1024
}

/// The processor time of all threads so far, those that have ended included.
pub(crate) fn cpu_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::try_from(time).unwrap_or_default()
}

/// The processor time of each living thread so far, by the names of the threads without the numbers
/// at their ends. The kernel keeps the first 15 characters of a name.
pub(crate) fn cpu_time_by_thread() -> BTreeMap<String, Duration> {
    let mut times = BTreeMap::new();
    let threads = fs::read_dir("/proc/self/task").into_iter().flatten();
    for thread in threads.flatten() {
        let read = |name: &str| fs::read_to_string(thread.path().join(name));
        // A thread may have ended just now.
        let (Ok(name), Ok(times_of_one)) = (read("comm"), read("schedstat")) else {
            continue;
        };
        let name = name.trim().trim_end_matches(|c: char| c.is_ascii_digit());
        let nanos = times_of_one.split_whitespace().next();
        let nanos = nanos.and_then(|nanos| nanos.parse().ok()).unwrap_or(0);
        let name = name.trim_end_matches('-').to_owned();
        *times.entry(name).or_default() += Duration::from_nanos(nanos);
    }
    times
}

/// What this process has written so far: to files, and the few bytes with which threads wake others.
#[derive(Clone, Copy)]
pub(crate) struct Written {
    pub(crate) calls: u64,
    pub(crate) bytes: u64,
}

pub(crate) fn written() -> Written {
    Written {
        calls: number_after("/proc/self/io", "syscw:"),
        bytes: number_after("/proc/self/io", "wchar:"),
    }
}

/// The number on the line of a file that begins so; 0 if there is none.
fn number_after(file: impl AsRef<Path>, start: &str) -> u64 {
    let text = fs::read_to_string(file).unwrap_or_default();
    let line = text.lines().find_map(|line| line.strip_prefix(start));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.and_then(|number| number.parse().ok()).unwrap_or(0)
}
