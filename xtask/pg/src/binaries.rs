//! Where the programs are, and how they come onto the machine if they are not.

use std::{
    env,
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::{Error, account};

/// Where each version has a directory, its programs in `bin` below.
const VERSIONED: [&str; 2] = ["/usr/lib/postgresql", "/usr/local/lib/postgresql"];
/// Where a package manager links one version, or several by the name `postgresql@15`.
const LINKED: [&str; 2] = ["/opt/homebrew/opt", "/usr/local/opt"];
/// Where Debian has programs that only root is expected to run.
const SYSTEM: &str = "/usr/sbin";

/// What Debian's package asks before it makes a cluster of its own.
const CLUSTER_SETTINGS: &str = "/etc/postgresql-common/createcluster.conf";
/// What Debian asks before it starts a server that was installed.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";

/// The programs of one version of PostgreSQL.
#[derive(Clone, Debug)]
pub(crate) struct Binaries {
    directory: PathBuf,
}

impl Binaries {
    /// Finds them on the path, or the newest where packages put them, or else installs them.
    pub(crate) fn find_or_install() -> Result<Self, Error> {
        find_or_install("initdb", "postgresql", find_postgresql)
            .map(|directory| Binaries { directory })
    }

    pub(crate) fn path(&self, program: &str) -> PathBuf {
        self.directory.join(program)
    }
}

/// Finds pgbouncer, or else installs it.
pub(crate) fn pgbouncer() -> Result<PathBuf, Error> {
    find_or_install("pgbouncer", "pgbouncer", || {
        let on_path = on_path("pgbouncer");
        let known = Path::new(SYSTEM).join("pgbouncer");
        on_path.or_else(|| known.exists().then_some(known))
    })
}

fn find_or_install(
    program: &'static str,
    package: &'static str,
    find: impl Fn() -> Option<PathBuf>,
) -> Result<PathBuf, Error> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let (apt_get_is_there, is_root) = (on_path("apt-get").is_some(), account::is_root());
    if let Some(why) = why_not(package, apt_get_is_there, is_root) {
        return Err(Error::Missing { program, why });
    }
    // Two processes at once would install it twice.
    let file = env::temp_dir().join("everstep-pg-install.lock");
    let lock = File::create(&file).map_err(Error::at(&file))?;
    lock.lock().map_err(Error::at(&file))?;
    if let Some(found) = find() {
        return Ok(found);
    }
    install(program, package)?;
    find().ok_or_else(|| Error::Missing {
        program,
        why: format!("not even after Debian's package `{package}` was installed"),
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
    let found = versioned
        .chain(linked)
        .map(|entry| entry.path().join("bin"));
    found
        .filter(|directory| whole(directory))
        .max_by_key(|directory| version(directory))
}

/// The number in `/usr/lib/postgresql/15/bin` or `/opt/postgresql@15/bin`; 0 without one.
fn version(directory: &Path) -> u32 {
    let name = directory.parent().and_then(Path::file_name);
    let name = name.unwrap_or_default().to_string_lossy();
    let digits = name.rsplit('@').next().unwrap_or_default();
    digits.parse().unwrap_or(0)
}

fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Installs a package of Debian's, and has it neither make nor start a server.
fn install(program: &'static str, package: &'static str) -> Result<(), Error> {
    let missing = |why: String| Error::Missing { program, why };
    eprintln!("installing Debian's package `{package}`, because there is no `{program}` here");
    let _policy = write_unless_there(START_POLICY, "#!/bin/sh\nexit 101\n", 0o755)?;
    let settings = write_unless_there(CLUSTER_SETTINGS, "create_main_cluster = false\n", 0o644)?;
    // It is the package's own from now on, which keeps it: to remove it would be taken for a wish
    // of the machine's owner.
    std::mem::forget(settings);
    let update = apt_get(&["update"]);
    let arguments = ["install", "-y", "--no-install-recommends", package];
    apt_get(&arguments).map_err(|install| {
        let update = update.err().unwrap_or_default();
        missing(format!(
            "install it with `apt-get install {package}`, which was tried and failed:\n\
             {update}{install}"
        ))
    })
}

/// Why a package cannot be installed here, and what to do about it.
fn why_not(package: &str, apt_get_is_there: bool, is_root: bool) -> Option<String> {
    if !apt_get_is_there {
        return Some(format!(
            "install {package} with the package manager of this system and put its programs on the \
             PATH (there is no `apt-get` to do it with)"
        ));
    }
    let only_root = "only root may, and this is not root";
    (!is_root).then(|| format!("install it with `sudo apt-get install {package}` ({only_root})"))
}

/// What it wrote last is the error.
fn apt_get(arguments: &[&str]) -> Result<(), String> {
    let output = Command::new("apt-get")
        // Another apt-get may be under way, and a file that is there stays as it is.
        .args(["-q", "-o", "DPkg::Lock::Timeout=300"])
        .args(["-o", "Dpkg::Options::=--force-confold"])
        .args(arguments)
        .env("DEBIAN_FRONTEND", "noninteractive")
        .stdin(Stdio::null())
        .output()
        .map_err(|error| format!("apt-get could not be started: {error}\n"))?;
    if output.status.success() {
        return Ok(());
    }
    Err(String::from_utf8_lossy(&output.stderr).into_owned())
}

/// A file that is removed again when this is dropped.
struct Written(PathBuf);

impl Drop for Written {
    fn drop(&mut self) {
        _ = fs::remove_file(&self.0);
    }
}

fn write_unless_there(path: &str, text: &str, mode: u32) -> Result<Option<Written>, Error> {
    use std::os::unix::fs::PermissionsExt;
    let path = PathBuf::from(path);
    if path.exists() {
        return Ok(None);
    }
    if let Some(parent) = path.parent() {
        fs::create_dir_all(parent).map_err(Error::at(parent))?;
    }
    fs::write(&path, text).map_err(Error::at(&path))?;
    let written = Written(path);
    let permissions = fs::Permissions::from_mode(mode);
    fs::set_permissions(&written.0, permissions).map_err(Error::at(&written.0))?;
    Ok(Some(written))
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

    #[test]
    fn what_cannot_be_installed_is_said_with_what_to_do() {
        let not_root = why_not("pgbouncer", true, false).unwrap();
        assert!(
            not_root.contains("sudo apt-get install pgbouncer"),
            "{not_root}"
        );
        let elsewhere = why_not("pgbouncer", false, true).unwrap();
        assert!(
            elsewhere.contains("put its programs on the PATH"),
            "{elsewhere}"
        );
        assert_eq!(why_not("pgbouncer", true, true), None);
    }

    #[test]
    fn what_was_there_is_neither_written_nor_removed() {
        let file = env::temp_dir().join(format!("everstep-pg-test-{}", std::process::id()));
        let path = file.to_string_lossy();
        {
            let first = write_unless_there(&path, "one", 0o600).unwrap();
            assert!(first.is_some());
            assert!(write_unless_there(&path, "two", 0o600).unwrap().is_none());
            assert_eq!(fs::read_to_string(&file).unwrap(), "one");
        }
        assert!(!file.exists());
    }
}
