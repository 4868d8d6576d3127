//! A directory for the files of one measurement.

use std::{
    fs, io,
    path::{Path, PathBuf},
};

/// A directory that is removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new(base: &Path, name: &str) -> io::Result<Directory> {
        let path = base.join(format!("bench-{name}-{}", std::process::id()));
        fs::create_dir_all(&path)?;
        Ok(Directory(path))
    }

    /// The path of a file in it, which is removed if it is there, with what SQLite keeps beside it.
    pub(crate) fn fresh(&self, name: &str) -> PathBuf {
        let path = self.0.join(name);
        for ending in ["", "-wal", "-shm"] {
            drop(fs::remove_file(self.0.join(format!("{name}{ending}"))));
        }
        path
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(fs::remove_dir_all(&self.0));
    }
}

/// The size of a database, with its log.
pub(crate) fn bytes_of(path: &Path) -> u64 {
    let size = |path: &Path| fs::metadata(path).map_or(0, |found| found.len());
    let mut log = path.as_os_str().to_owned();
    log.push("-wal");
    size(path) + size(Path::new(&log))
}
