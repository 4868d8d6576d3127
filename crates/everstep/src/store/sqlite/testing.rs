//! A directory of its own for each test.

use std::path::{Path, PathBuf};

/// A directory that is removed when dropped.
pub(crate) struct Directory(PathBuf);

impl Directory {
    pub(crate) fn new() -> Directory {
        let name = format!("everstep-test-{:016x}", crate::seam::random());
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir_all(&path).expect("a directory for temporary files");
        Directory(path)
    }

    /// The path of a file in it.
    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl AsRef<Path> for Directory {
    fn as_ref(&self) -> &Path {
        &self.0
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}
