//! What this process takes of the machine, as the kernel counts it.

use std::{fs, time::Duration};

/// The memory that is resident now, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The processor time of all threads so far.
pub(crate) fn cpu_time() -> Duration {
    let tasks = fs::read_dir("/proc/self/task")
        .into_iter()
        .flatten()
        .flatten();
    // The first number of `schedstat` is the time on a processor in nanoseconds.
    let nanoseconds = tasks.filter_map(|task| {
        let stat = fs::read_to_string(task.path().join("schedstat")).ok()?;
        stat.split(' ').next()?.parse::<u64>().ok()
    });
    Duration::from_nanos(nanoseconds.sum())
}
