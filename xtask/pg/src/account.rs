//! Whose processes they are: PostgreSQL and pgbouncer refuse to run as root.

use std::{
    env, fs,
    io::Write,
    os::unix::{fs::chown, process::CommandExt},
    path::Path,
    process::{Child, Command, Stdio},
};

use crate::Error;

/// The users that root can run a server as, the first that there is.
const USERS: [&str; 2] = ["postgres", "nobody"];

/// The user that servers run as.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Account {
    /// Our own, which is not root.
    Own,
    /// Another, because we are root.
    Other { uid: u32, gid: u32 },
}

impl Account {
    /// Our own unless that is root's.
    pub(crate) fn for_servers() -> Result<Self, Error> {
        if !is_root() {
            return Ok(Account::Own);
        }
        let file = Path::new("/etc/passwd");
        let users = fs::read_to_string(file).map_err(Error::at(file))?;
        let found = USERS.iter().find_map(|name| user(&users, name));
        found.ok_or_else(|| {
            let what = "a server does not run as root, and there is no user `postgres`; make one \
                        with `useradd --system postgres`, or run this as another user";
            Error::failed(what, "")
        })
    }

    /// Gives a file or directory to this user.
    pub(crate) fn own(self, path: &Path) -> Result<(), Error> {
        match self {
            Account::Own => Ok(()),
            Account::Other { uid, gid } => {
                chown(path, Some(uid), Some(gid)).map_err(Error::at(path))
            }
        }
    }

    /// A command that runs as this user in `directory`, apart from our terminal, and free of what
    /// our own environment says about servers.
    pub(crate) fn command(self, program: &Path, directory: &Path) -> Command {
        let mut command = Command::new(program);
        command.current_dir(directory).stdin(Stdio::null());
        for (name, _) in env::vars_os() {
            if name.to_string_lossy().starts_with("PG") {
                command.env_remove(name);
            }
        }
        // Their messages are looked at.
        command.env("LC_ALL", "C");
        // Without a group of its own, the interrupt of a terminal would reach it as well.
        command.process_group(0);
        if let Account::Other { uid, gid } = self {
            command.uid(uid).gid(gid);
        }
        command
    }

    /// Starts a process that waits for the end of this one, however it ends, and then runs `script`
    /// with these arguments. Dropping what it gives lets it run at once.
    ///
    /// A signal at the death of the parent would be simpler, but is sent when the thread that
    /// started the process ends, which is a test's.
    pub(crate) fn watch(self, script: &str, arguments: &[&Path]) -> Result<Watch, Error> {
        let mut command = self.command(Path::new("sh"), Path::new("/"));
        // It reads until the other end of the pipe is closed, which is ours alone.
        command.arg("-c").arg(format!("cat >/dev/null; {script}"));
        command.arg("everstep-pg").args(arguments);
        command.stdin(Stdio::piped());
        command.stdout(Stdio::null()).stderr(Stdio::null());
        let child = command.spawn().map_err(Error::io("`sh` could not be started"))?;
        Ok(Watch(child))
    }
}

/// A process that clears away behind this one.
#[derive(Debug)]
pub(crate) struct Watch(Child);

impl Drop for Watch {
    fn drop(&mut self) {
        if let Some(mut pipe) = self.0.stdin.take() {
            _ = pipe.flush();
        }
        _ = self.0.wait();
    }
}

/// Whether this process may do everything.
pub(crate) fn is_root() -> bool {
    rustix::process::geteuid().is_root()
}

/// Reads `name:password:uid:gid:..`.
fn user(users: &str, name: &str) -> Option<Account> {
    let line = users.lines().find(|line| line.split(':').next() == Some(name))?;
    let mut parts = line.split(':').skip(2);
    Some(Account::Other { uid: parts.next()?.parse().ok()?, gid: parts.next()?.parse().ok()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn user_is_read_by_its_whole_name() {
        let users = "root:x:0:0::/:/bin/sh\npostgres2:x:5:6::/:\npostgres:x:101:103::/:/bin/sh\n";
        let found = user(users, "postgres");
        assert!(matches!(found, Some(Account::Other { uid: 101, gid: 103 })), "{found:?}");
        assert!(user(users, "post").is_none());
    }
}
