//! The place of the file: its path with symbolic links resolved, and whether the file that was
//! opened is still there.
//!
//! SQLite keeps open descriptors, so a file that was deleted or moved can be written as before:
//! into nowhere. Two names of one file get two write-ahead logs, of which one loses. Both are found
//! by comparing device, inode and link count, never by opening the file: to close a descriptor
//! drops all locks that this process has on it.

use std::path::{Path, PathBuf};

/// What has happened to a file, and what to do: see
/// [`StoreError::Displaced`](crate::store::StoreError::Displaced).
#[derive(Debug)]
pub(crate) struct Displaced(pub(crate) String);

/// More links than this in a row are a circle.
const LINKS_MAX: usize = 40;

/// The path as SQLite itself resolves it: absolute and without symbolic links, so that all names of
/// a file that are symbolic links have one log, and one directory for wake-up sockets.
pub(crate) fn resolve(path: &Path) -> PathBuf {
    let mut path = std::path::absolute(path).unwrap_or_else(|_| path.to_owned());
    for _ in 0..LINKS_MAX {
        if let Ok(resolved) = path.canonicalize() {
            return resolved;
        }
        // The file is yet to be made; its directory is there.
        let (Some(directory), Some(name)) = (path.parent(), path.file_name()) else {
            break;
        };
        let Ok(directory) = directory.canonicalize() else {
            break;
        };
        path = match std::fs::read_link(&path) {
            Ok(target) => directory.join(target),
            Err(_) => return directory.join(name),
        };
    }
    path
}

/// The path of a file that SQLite keeps beside the database: `-wal`, `-shm`, `-journal`.
pub(crate) fn beside(path: &Path, suffix: &str) -> PathBuf {
    let mut path = path.as_os_str().to_owned();
    path.push(suffix);
    path.into()
}

/// Refuses a write-ahead log whose database is missing or empty: SQLite would delete the log, and
/// with it the last commits of the database that it belongs to.
pub(crate) fn refuse_orphaned_log(path: &Path) -> Result<(), Displaced> {
    let bytes = |path: &Path| std::fs::metadata(path).map_or(0, |found| found.len());
    let log = beside(path, "-wal");
    if bytes(path) > 0 || bytes(&log) <= LOG_HEADER_BYTES {
        return Ok(());
    }
    Err(Displaced(format!(
        "is missing or empty, but its write-ahead log `{}` holds commits; put the database back \
         beside its log, or move the log away to begin with an empty database",
        log.display()
    )))
}

/// A log of this length has no commit in it.
const LOG_HEADER_BYTES: u64 = 32;

/// Which file is found at a path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Identity {
    device: u64,
    inode: u64,
}

/// The database file as it was opened.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Place {
    database: Option<Identity>,
}

/// The files beside it that all connections share, as the writer uses them: SQLite removes them only
/// when nobody has the database open.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shared {
    log: Option<Identity>,
    index: Option<Identity>,
}

impl Place {
    /// The place of a file that a connection has just opened.
    ///
    /// # Errors
    ///
    /// If the file has a second hard link.
    pub(crate) fn of(path: &Path) -> Result<Place, Displaced> {
        let database = look(path)?;
        Ok(Place { database })
    }

    /// Refuses a path at which the file is no longer, and a file that has got a second name.
    pub(crate) fn require(&self, path: &Path) -> Result<(), Displaced> {
        let Some(opened) = self.database else {
            return Ok(());
        };
        match look(path)? {
            Some(found) if found == opened => Ok(()),
            None => Err(Displaced(GONE.to_owned())),
            Some(_) => Err(Displaced(REPLACED.to_owned())),
        }
    }
}

impl Shared {
    /// Looks at the files beside the database. The caller's connection must be in a transaction, so
    /// that they are the ones that it uses.
    pub(crate) fn of(path: &Path) -> Shared {
        Shared { log: identity(&beside(path, "-wal")), index: identity(&beside(path, "-shm")) }
    }

    /// Refuses to go on when one of the files was deleted or replaced.
    pub(crate) fn require(&self, path: &Path) -> Result<(), Displaced> {
        let found = Shared::of(path);
        let parts = [("-wal", self.log, found.log), ("-shm", self.index, found.index)];
        for (suffix, opened, found) in parts {
            if opened.is_some() && found != opened {
                return Err(Displaced(format!(
                    "has lost its `{suffix}` file, which was deleted or replaced while the database \
                     was in use; nothing more is written. Stop all processes that use the database, \
                     run `everstep doctor` on it, and start again: its last commits may be missing"
                )));
            }
        }
        Ok(())
    }
}

const GONE: &str = "was deleted or moved away while it was in use; nothing more is written. If it \
                    was moved, stop all processes that use it and move it back beside its `-wal` \
                    file, which holds its last commits; if it was deleted, restore it from a backup";

const REPLACED: &str = "was replaced by another file while it was in use; nothing more is written. \
                        What this process has committed since then is not in the new file: put the \
                        old one back, or start the process again to use the new one";

/// Which file is at a path; `None` if there is none. Not through a link: whoever opens a path that
/// has become one uses the log beside its target.
#[cfg(unix)]
fn identity(path: &Path) -> Option<Identity> {
    use std::os::unix::fs::MetadataExt;
    let found = std::fs::symlink_metadata(path).ok()?;
    let (device, inode) = (found.dev(), found.ino());
    Some(Identity { device, inode })
}

/// As [`identity`]; what is wrong if the file has a second hard link, or cannot be looked at.
#[cfg(unix)]
fn look(path: &Path) -> Result<Option<Identity>, Displaced> {
    use std::os::unix::fs::MetadataExt;
    match std::fs::symlink_metadata(path) {
        // A directory is linked from those in it.
        Ok(found) if found.is_file() && found.nlink() > 1 => Err(Displaced(format!(
            "has {} hard links; each name gets a write-ahead log of its own, and the commits in one \
             of them are lost. Remove all names but one, or use a symbolic link",
            found.nlink()
        ))),
        Ok(found) => {
            let (device, inode) = (found.dev(), found.ino());
            Ok(Some(Identity { device, inode }))
        }
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(Displaced(format!("can no longer be found: {error}"))),
    }
}

/// Elsewhere a file that is open can be neither deleted nor moved.
#[cfg(not(unix))]
fn identity(_path: &Path) -> Option<Identity> {
    None
}

#[cfg(not(unix))]
fn look(_path: &Path) -> Result<Option<Identity>, Displaced> {
    Ok(None)
}
