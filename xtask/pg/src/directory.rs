//! A directory of a server's own, gone with it.
//!
//! 1. It is made, locked by an open file in it, and given to the server's user.
//! 2. It is removed when it is dropped.
//! 3. If this process is killed, a process that watches it stops the server and removes it.
//! 4. If that is killed as well, the next server that is started by anyone removes it: the lock is
//!    gone with the process that held it.

use std::{
    env,
    fs::{self, File, TryLockError},
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process,
    sync::atomic::{AtomicU32, Ordering},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

use crate::{
    Error,
    account::{Account, Watch},
};

const PREFIX: &str = "everstep-pg-";
const LOCK: &str = "lock";

/// A directory without a lock may be one that was made just now. After this time it is not.
const MADE_WITHIN: Duration = Duration::from_secs(600);

/// What a watching process does: `$1` is `pg_ctl` or nothing, `$2` the directory. A process that
/// is not PostgreSQL ends by itself when its own pipe is closed.
const CLEAR: &str = r#"
if [ -n "$1" ]; then
    "$1" stop -D "$2/data" -m immediate -w
elif [ -f "$2/pid" ]; then
    kill -9 "$(cat "$2/pid")"
fi
rm -rf "$2""#;

#[derive(Debug)]
pub(crate) struct Directory {
    path: PathBuf,
    /// Locked for as long as we live.
    _lock: File,
    watch: Option<Watch>,
}

impl Directory {
    /// Makes one that belongs to `account`. With `pg_ctl` it will hold a server's `data`.
    pub(crate) fn make(account: Account, pg_ctl: Option<&Path>) -> Result<Self, Error> {
        remove_stale(&env::temp_dir());
        let path = env::temp_dir().join(format!("{PREFIX}{}", unique()));
        fs::create_dir(&path).map_err(Error::at(&path))?;
        let lock = locked(&path).map_err(Error::at(&path))?;
        let permissions = fs::Permissions::from_mode(0o700);
        fs::set_permissions(&path, permissions).map_err(Error::at(&path))?;
        account.own(&path)?;
        let watch = account.watch(CLEAR, &[pg_ctl.unwrap_or(Path::new("")), &path])?;
        Ok(Directory { path, _lock: lock, watch: Some(watch) })
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(self.watch.take());
        // Root's own files in there are not for the watching process to remove.
        _ = fs::remove_dir_all(&self.path);
    }
}

/// The file has its name only once it is locked: a lock that nobody holds is that of a process
/// that is gone.
fn locked(path: &Path) -> std::io::Result<File> {
    let early = path.join("lock.new");
    let lock = File::create(&early)?;
    lock.lock()?;
    fs::rename(early, path.join(LOCK))?;
    Ok(lock)
}

/// A name that no other has had, of this process or of any on the machine.
pub(crate) fn unique() -> String {
    static MADE: AtomicU32 = AtomicU32::new(0);
    let made = MADE.fetch_add(1, Ordering::Relaxed);
    let now = SystemTime::now().duration_since(UNIX_EPOCH);
    // A process can have the number of one that is long gone, but not at the same time.
    let now = now.unwrap_or_default().as_micros();
    format!("{}_{now:x}_{made}", process::id())
}

/// Removes the directories of processes that are gone. What cannot be removed is somebody else's.
fn remove_stale(parent: &Path) {
    let entries = fs::read_dir(parent).into_iter().flatten().flatten();
    for path in entries.map(|entry| entry.path()) {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        if name.starts_with(PREFIX) && path.is_dir() && is_stale(&path) {
            stop_what_runs_in(&path);
            _ = fs::remove_dir_all(&path);
        }
    }
}

fn is_stale(path: &Path) -> bool {
    match File::open(path.join(LOCK)) {
        // Whoever made it does not live any more. A server without an owner is stopped.
        Ok(lock) => !matches!(lock.try_lock(), Err(TryLockError::WouldBlock)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => {
            let made = fs::metadata(path).and_then(|metadata| metadata.modified());
            made.is_ok_and(|made| made.elapsed().is_ok_and(|age| age > MADE_WITHIN))
        }
        Err(_) => false,
    }
}

/// The server in a directory that nobody owns has outlived everyone who could stop it.
fn stop_what_runs_in(path: &Path) {
    let file = fs::read_to_string(path.join("data/postmaster.pid"));
    let pid = file.ok().and_then(|text| text.lines().next()?.parse().ok());
    let Some(pid) = pid else {
        return;
    };
    // The number may be another process's by now.
    let data = fs::canonicalize(path.join("data"));
    let works_in = fs::read_link(format!("/proc/{pid}/cwd"));
    if let (Ok(data), Ok(works_in)) = (data, works_in)
        && data == works_in
        && let Some(pid) = rustix::process::Pid::from_raw(pid)
    {
        _ = rustix::process::kill_process(pid, rustix::process::Signal::QUIT);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn directory_of_a_process_that_is_gone_is_removed_and_of_a_living_one_is_not() {
        let parent = env::temp_dir().join(format!("everstep-stale-{}", process::id()));
        let [gone, living, new] = ["gone", "living", "new"].map(|name| {
            let path = parent.join(format!("{PREFIX}{name}"));
            fs::create_dir_all(&path).unwrap();
            path
        });
        File::create(gone.join(LOCK)).unwrap();
        let lock = File::create(living.join(LOCK)).unwrap();
        lock.lock().unwrap();
        remove_stale(&parent);
        let left = [&gone, &living, &new].map(|path| path.exists());
        fs::remove_dir_all(&parent).unwrap();
        assert_eq!(left, [false, true, true]);
    }

    #[test]
    fn directory_is_gone_when_it_is_dropped() {
        let directory = Directory::make(Account::Own, None).unwrap();
        let path = directory.path().to_owned();
        assert!(path.exists());
        drop(directory);
        assert!(!path.exists());
    }
}
