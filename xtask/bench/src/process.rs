//! What this process takes of the machine, as the kernel counts it.

use std::{fs, time::Duration};

/// The memory that is resident now, in bytes.
pub(crate) fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:"));
    let kilobytes = line.and_then(|line| line.trim().trim_end_matches(" kB").parse::<u64>().ok());
    kilobytes.unwrap_or(0) * 1024
}

/// The processor time of all threads so far, those that have ended included; to a hundredth of a
/// second.
pub(crate) fn cpu_time() -> Duration {
    let stat = fs::read_to_string("/proc/self/stat").unwrap_or_default();
    // The name of the program, in parentheses, may contain anything; then come numbers.
    let numbers = stat.rsplit(')').next().unwrap_or_default();
    let ticks = numbers.split_whitespace().skip(11).take(2);
    let ticks: u64 = ticks.filter_map(|n| n.parse::<u64>().ok()).sum();
    Duration::from_millis(ticks * 10)
}
