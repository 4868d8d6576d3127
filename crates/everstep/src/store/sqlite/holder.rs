//! The process that holds the write lock, for messages.
//!
//! Found in the kernel's list of locks. To ask for the lock itself would take a descriptor of the
//! file, and to close that drops the locks of this process.

use std::path::Path;

/// Which process holds the write lock of the file, in words; `None` if that cannot be told.
#[cfg(target_os = "linux")]
pub(crate) fn holder(path: &Path) -> Option<String> {
    use std::os::unix::fs::MetadataExt;
    let index = std::fs::metadata(super::place::beside(path, "-shm")).ok()?;
    let locks = std::fs::read_to_string("/proc/locks").ok()?;
    let pid = holder_in(&locks, index.dev(), index.ino())?;
    if pid == std::process::id() {
        return Some(format!("this process ({pid})"));
    }
    let about = |file: &str| std::fs::read_to_string(format!("/proc/{pid}/{file}"));
    let name = about("comm").unwrap_or_default();
    let status = about("status").unwrap_or_default();
    let is_stopped = status
        .lines()
        .any(|line| line.starts_with("State:") && (line.contains("T (") || line.contains("t (")));
    let name = name.trim().escape_debug();
    let state = match is_stopped {
        true => ", which is stopped: continue it (`kill -CONT`) or end it",
        false => "",
    };
    Some(format!("process {pid} (`{name}`){state}"))
}

#[cfg(not(target_os = "linux"))]
pub(crate) fn holder(_path: &Path) -> Option<String> {
    None
}

/// The byte of the `-shm` file that a writer locks: see "WAL-Index Locks" in SQLite's documentation.
#[cfg(target_os = "linux")]
const WRITE_LOCK: u64 = 120;

/// The process that has the write lock on the file with this inode, in the form of `/proc/locks`.
#[cfg(target_os = "linux")]
fn holder_in(locks: &str, device: u64, inode: u64) -> Option<u32> {
    let major = ((device >> 8) & 0xfff) | ((device >> 32) & !0xfff);
    let minor = (device & 0xff) | ((device >> 12) & !0xff);
    let (device, inode) = (format!("{major:02x}:{minor:02x}"), inode.to_string());
    let holders = locks.lines().filter_map(|line| {
        let mut words = line.split_whitespace().skip(1);
        // Those who wait have an arrow here.
        words.next().filter(|kind| *kind == "POSIX")?;
        words.nth(1).filter(|mode| *mode == "WRITE")?;
        let pid: u32 = words.next()?.parse().ok()?;
        let (on, number) = words.next()?.rsplit_once(':')?;
        let first: u64 = words.next()?.parse().ok()?;
        let last = words.next()?;
        let last = last.parse().unwrap_or(u64::MAX);
        let covers = number == inode && (first..=last).contains(&WRITE_LOCK);
        covers.then_some((on == device, pid))
    });
    // Some file systems show another device here than to those who ask for it.
    holders.max_by_key(|(is_same, _)| *is_same).map(|(_, pid)| pid)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn the_holder_of_the_write_lock_is_found_among_all_locks() {
        let locks = "\
            1: POSIX  ADVISORY  READ  11 08:01:700 124 124\n\
            2: POSIX  ADVISORY  WRITE 12 08:01:701 120 120\n\
            3: POSIX  ADVISORY  WRITE 13 08:01:700 121 121\n\
            4: POSIX  ADVISORY  WRITE 14 08:01:700 120 122\n\
            4: -> POSIX  ADVISORY  WRITE 15 08:01:700 120 120\n\
            5: FLOCK  ADVISORY  WRITE 16 08:01:700 0 EOF\n\
            6: POSIX  ADVISORY  WRITE 17 08:02:700 0 EOF\n";
        assert_eq!(holder_in(locks, 0x801, 700), Some(14));
        assert_eq!(holder_in(locks, 0x802, 700), Some(17));
        assert_eq!(holder_in(locks, 0x801, 702), None);
    }
}
