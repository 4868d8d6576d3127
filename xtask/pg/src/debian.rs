//! Programs that Debian has, and how they come onto the machine if they are not there.

use std::{
    env,
    fs::{self, File},
    path::PathBuf,
    process::{Command, Stdio},
};

use crate::{Error, account};

/// What Debian's package asks before it makes a cluster of its own.
const CLUSTER_SETTINGS: &str = "/etc/postgresql-common/createcluster.conf";
/// What Debian asks before it starts a server that was installed.
const START_POLICY: &str = "/usr/sbin/policy-rc.d";

/// Finds a program, or installs the packages that it is in, which takes root.
///
/// # Errors
///
/// If it is not there and cannot be installed: the error says what to do.
pub fn find_or_install<T>(
    program: &'static str,
    packages: &[&str],
    find: impl Fn() -> Option<T>,
) -> Result<T, Error> {
    if let Some(found) = find() {
        return Ok(found);
    }
    let (apt_get_is_there, is_root) = (on_path("apt-get").is_some(), account::is_root());
    if let Some(why) = why_not(&packages.join(" "), apt_get_is_there, is_root) {
        return Err(Error::Missing { program, why });
    }
    // Two processes at once would install it twice.
    let file = env::temp_dir().join("everstep-pg-install.lock");
    let lock = File::create(&file).map_err(Error::at(&file))?;
    lock.lock().map_err(Error::at(&file))?;
    if let Some(found) = find() {
        return Ok(found);
    }
    install(program, packages)?;
    find().ok_or_else(|| Error::Missing {
        program,
        why: format!("not even after Debian's `{}` was installed", packages.join(" ")),
    })
}

/// Where a program is on the path.
pub fn on_path(program: &str) -> Option<PathBuf> {
    env::split_paths(&env::var_os("PATH")?)
        .map(|directory| directory.join(program))
        .find(|path| path.is_file())
}

/// Installs packages of Debian's, and has them neither make nor start a server.
fn install(program: &'static str, packages: &[&str]) -> Result<(), Error> {
    let missing = |why: String| Error::Missing { program, why };
    let package = packages.join(" ");
    eprintln!("installing Debian's package `{package}`, because there is no `{program}` here");
    let _policy = write_unless_there(START_POLICY, "#!/bin/sh\nexit 101\n", 0o755)?;
    let settings = write_unless_there(CLUSTER_SETTINGS, "create_main_cluster = false\n", 0o644)?;
    // It is the package's own from now on, which keeps it: to remove it would be taken for a wish
    // of the machine's owner.
    std::mem::forget(settings);
    let update = apt_get(&["update"]);
    let arguments = ["install", "-y", "--no-install-recommends"];
    apt_get(&[&arguments[..], packages].concat()).map_err(|install| {
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
    fn what_cannot_be_installed_is_said_with_what_to_do() {
        let not_root = why_not("pgbouncer", true, false).unwrap();
        assert!(not_root.contains("sudo apt-get install pgbouncer"), "{not_root}");
        let elsewhere = why_not("pgbouncer", false, true).unwrap();
        assert!(elsewhere.contains("put its programs on the PATH"), "{elsewhere}");
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
