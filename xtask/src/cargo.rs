//! Calling cargo, and reading from its output how many tests there were.

use std::{
    env,
    ffi::OsString,
    io::{BufRead, BufReader},
    ops::AddAssign,
    path::{Path, PathBuf},
    process::{Command, Stdio},
};

use crate::Failure;

/// How many tests passed and failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Tests {
    pub(crate) passed: u64,
    pub(crate) failed: u64,
}

impl AddAssign for Tests {
    fn add_assign(&mut self, other: Self) {
        self.passed += other.passed;
        self.failed += other.failed;
    }
}

/// The cargo that runs us, or else the one on the path, to be run at `root`.
pub(crate) fn cargo(root: &Path, arguments: &[&str]) -> Command {
    let program = env::var_os("CARGO").unwrap_or_else(|| OsString::from("cargo"));
    let mut command = Command::new(program);
    command.current_dir(root).args(arguments);
    // Cargo tells us about our own package in these. The build script of a dependency (ring) asks to
    // be run again when they change, so with them everything above it was built again after each
    // cargo command that was called by hand, and once more after the next one of ours.
    for (name, _) in env::vars_os() {
        if name.to_str().is_some_and(is_about_a_package) {
            command.env_remove(name);
        }
    }
    command
}

/// Whether cargo sets this variable for the program of a package that it runs.
fn is_about_a_package(variable: &str) -> bool {
    variable.starts_with("CARGO_PKG_") || variable.starts_with("CARGO_MANIFEST_")
}

/// Where cargo run at `root` puts what it builds, unless a configuration file says otherwise.
pub(crate) fn target_directory(root: &Path) -> PathBuf {
    let target = env::var_os("CARGO_TARGET_DIR").unwrap_or_else(|| OsString::from("target"));
    root.join(target)
}

/// Runs a command to its end, its output shown.
pub(crate) fn succeed(mut command: Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| no_start(&command, &error))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Found(format!("{} ended with {status}", shown(&command))))
    }
}

/// Runs a command that runs tests, its output shown, and counts them into `tests`, whether or not
/// it succeeds.
pub(crate) fn succeed_counting(mut command: Command, tests: &mut Tests) -> Result<(), Failure> {
    command.stdout(Stdio::piped());
    let mut child = command.spawn().map_err(|error| no_start(&command, &error))?;
    let stdout = child.stdout.take().expect("standard output is piped");
    for line in BufReader::new(stdout).split(b'\n') {
        let line = line.map_err(|error| Failure::Found(format!("reading its output: {error}")))?;
        let line = String::from_utf8_lossy(&line);
        println!("{line}");
        *tests += counted(&line).unwrap_or_default();
    }
    let status =
        child.wait().map_err(|error| Failure::Found(format!("waiting for it: {error}")))?;
    if status.success() {
        Ok(())
    } else {
        Err(Failure::Found(format!("{} ended with {status}", shown(&command))))
    }
}

/// The command as a person would type it.
pub(crate) fn shown(command: &Command) -> String {
    let program = Path::new(command.get_program());
    let mut text = String::from("`");
    text += &program.file_name().unwrap_or_default().to_string_lossy();
    for argument in command.get_args() {
        text += " ";
        text += &argument.to_string_lossy();
    }
    text + "`"
}

pub(crate) fn no_start(command: &Command, error: &std::io::Error) -> Failure {
    Failure::Found(format!("{} could not be started: {error}", shown(command)))
}

/// Reads `test result: ok. 3 passed; 0 failed; ..`, the line that ends each test program.
pub(crate) fn counted(line: &str) -> Option<Tests> {
    let (_, counts) = line.trim().strip_prefix("test result: ")?.split_once(". ")?;
    let count = |word: &str| {
        counts.split("; ").find_map(|part| part.strip_suffix(word)?.trim().parse().ok())
    };
    Some(Tests { passed: count("passed")?, failed: count("failed")? })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cargo_is_not_told_of_our_own_package() {
        let command = cargo(Path::new("."), &["build"]);
        let removed = |variable: &str| command.get_envs().any(|it| it == (variable.as_ref(), None));
        assert!(removed("CARGO_MANIFEST_DIR") && removed("CARGO_PKG_NAME"));
        assert!(!is_about_a_package("CARGO_TARGET_DIR") && !is_about_a_package("CARGO_HOME"));
    }

    #[test]
    fn counts_are_read_from_the_line_that_ends_a_test_program() {
        let line = "test result: ok. 26 passed; 0 failed; 1 ignored; 0 measured; 0 filtered out; \
                    finished in 0.01s";
        let tests = Tests { passed: 26, failed: 0 };
        assert_eq!(counted(line), Some(tests));
        let line = "test result: FAILED. 24 passed; 2 failed; 0 ignored; 0 measured";
        let tests = Tests { passed: 24, failed: 2 };
        assert_eq!(counted(line), Some(tests));
    }

    #[test]
    fn other_lines_count_nothing() {
        for line in ["", "running 26 tests", "test a::b ... ok", "test result: unknown"] {
            assert_eq!(counted(line), None, "{line}");
        }
    }

    #[test]
    fn command_is_shown_as_it_would_be_typed() {
        let mut command = Command::new("/usr/bin/cargo");
        command.args(["fmt", "--all"]);
        assert_eq!(shown(&command), "`cargo fmt --all`");
    }
}
