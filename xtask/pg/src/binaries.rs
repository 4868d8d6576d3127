//! Where the programs of PostgreSQL are.

use std::{
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Error,
    debian::{find_or_install, on_path},
};

/// Where each version has a directory, its programs in `bin` below.
const VERSIONED: [&str; 2] = ["/usr/lib/postgresql", "/usr/local/lib/postgresql"];
/// Where a package manager links one version, or several by the name `postgresql@15`.
const LINKED: [&str; 2] = ["/opt/homebrew/opt", "/usr/local/opt"];
/// Where Debian has programs that only root is expected to run.
const SYSTEM: &str = "/usr/sbin";

/// The programs of one version of PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Finds them on the path, or the newest where packages put them, or else installs them.
    pub(crate) fn find_or_install() -> Result<Self, Error> {
        find_or_install("initdb", &["postgresql"], find_postgresql)
            .map(|directory| Binaries { directory })
    }

    pub(crate) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

/// Finds pgbouncer, or else installs it.
pub(crate) fn pgbouncer() -> Result<PathBuf, Error> {
    find_or_install("pgbouncer", &["pgbouncer"], || {
        let on_path = on_path("pgbouncer");
        let known = Path::new(SYSTEM).join("pgbouncer");
        on_path.or_else(|| known.exists().then_some(known))
    })
}

/// The directory with the programs of a server.
fn find_postgresql() -> Option<PathBuf> {
    let whole = |directory: &Path| {
        ["initdb", "postgres", "pg_ctl", "pg_basebackup"]
            .iter()
            .all(|program| directory.join(program).exists())
    };
    let on_path = on_path("initdb").and_then(|initdb| {
        // A link on the path leads to where the others are.
        let real = fs::canonicalize(&initdb).unwrap_or(initdb);
        real.parent().map(Path::to_path_buf)
    });
    if let Some(directory) = on_path.filter(|directory| whole(directory)) {
        return Some(directory);
    }
    let entries = |parent: &&str| fs::read_dir(parent).into_iter().flatten().flatten();
    let versioned = VERSIONED.iter().flat_map(entries);
    let linked = LINKED.iter().flat_map(entries).filter(|entry| {
        let name = entry.file_name();
        name.to_string_lossy().starts_with("postgresql")
    });
    let found = versioned.chain(linked).map(|entry| entry.path().join("bin"));
    found.filter(|directory| whole(directory)).max_by_key(|directory| version(directory))
}

/// The number in `/usr/lib/postgresql/15/bin` or `/opt/postgresql@15/bin`; 0 without one.
fn version(directory: &Path) -> u32 {
    let name = directory.parent().and_then(Path::file_name);
    let name = name.unwrap_or_default().to_string_lossy();
    let digits = name.rsplit('@').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_version_is_by_number() {
        let found = ["/usr/lib/postgresql/9/bin", "/opt/postgresql@15/bin"].map(Path::new);
        let newest = found.iter().max_by_key(|directory| version(directory));
        assert_eq!(newest, Some(&found[1]));
        assert_eq!(version(Path::new("/usr/lib/postgresql/x/bin")), 0);
    }
}
