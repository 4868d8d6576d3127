//! The project's own commands, run as `cargo xtask <command>`.
//!
//! Everything that is asked of a change is asked by [`mod@test`], so that a person and CI run the
//! same. [`crash`] and [`mod@bench`] show what the engine promises and what it costs; [`model`] shows
//! that the protocol between runners holds.
//!
//! Always true: no command needs anything but a Rust toolchain and PostgreSQL, the [`browser`] Chromium
//! and npm, and [`fuzz_api`] Python. All but the first are installed from Debian's packages where they
//! are not found and may be. A tool that is installed by hand is used where it is found, and is said to be
//! missing where it is not.

use std::{
    env,
    path::{Path, PathBuf},
    process::ExitCode,
};

mod architecture;
mod bench;
mod browser;
mod cargo;
mod crash;
mod deploy_drill;
mod examples;
mod failover;
mod fuzz_api;
mod house;
mod model;
mod points;
mod programs;
mod sim;
mod source;
mod stores;
mod test;

const USAGE: &str = "\
Usage: cargo xtask <command>

Commands:
  test [CHECK..]   everything that is asked of a change, in order, stopping at the first failure;
                   with names, only those checks (`cargo xtask test --list` shows them);
                   `test --quick` asks what can be answered in a minute while you work
  crash            kill a real process over and over, and check every promise; with
                   `--store postgres --processes 3`, runners on one server, and the server
  bench            measure, against a bare loop that writes the same rows (--store postgres);
                   `bench --json cpu` counts per run on both stores, for comparisons
  failover         kill a primary under load, promote its standby, and check every promise
  deploy-drill     replace runners of one version by runners of the next, under load
  fuzz-api         fuzz the HTTP API on seeded data (`--seconds 120`, `--seed`)
  browser          look at and use the dashboard in headless Chromium; pictures are in
                   `target/screenshots` (with words, only the tests with these in their names)
  model            search the model of lease, fence, takeover and hand-off to its end
  sim              live the lives of many seeds: engines, clocks, a store and faults in one
                   process (`--seeds 10000`, `--minutes 10`, `--seed 7`, `--break all`)
  house            count lines, imports, names and lengths of our own code (`--json`;
                   `--root DIR` counts another checkout)

Options:
  -h, --help       this text
";

/// Why a command did not succeed.
#[derive(Debug)]
pub(crate) enum Failure {
    /// It was called in a way that it does not know.
    Usage(String),
    /// What it looked at is not as it should be.
    Found(String),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    match run(&arguments) {
        Ok(()) => ExitCode::SUCCESS,
        Err(Failure::Usage(message)) => {
            eprintln!("xtask: {message}\n\n{USAGE}");
            ExitCode::from(2)
        }
        Err(Failure::Found(message)) => {
            eprintln!("xtask: {message}");
            ExitCode::FAILURE
        }
    }
}

fn run(arguments: &[String]) -> Result<(), Failure> {
    let Some((command, rest)) = arguments.split_first() else {
        return Err(Failure::Usage("a command is missing".into()));
    };
    match command.as_str() {
        "test" => test::run(rest),
        "crash" => crash::run(rest),
        "bench" => bench::run(rest),
        "failover" => failover::run(rest),
        "deploy-drill" => deploy_drill::run(rest),
        "fuzz-api" => fuzz_api::run(rest),
        "browser" => browser::run(rest),
        "model" => model::run(rest),
        "sim" => sim::run(rest),
        "house" => house::run(rest),
        "help" | "-h" | "--help" => {
            print!("{USAGE}");
            Ok(())
        }
        unknown => Err(Failure::Usage(format!("`{unknown}` is not a command"))),
    }
}

/// The root of the repository. Cargo says where this package is; the place it was built in is for
/// when it is run without cargo.
pub(crate) fn root() -> PathBuf {
    let package = env::var_os("CARGO_MANIFEST_DIR")
        .map_or_else(|| PathBuf::from(env!("CARGO_MANIFEST_DIR")), PathBuf::from);
    let parent = package.parent().map(Path::to_path_buf);
    parent.expect("the package `xtask` lies below the root of the repository")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(line: &str) -> Result<(), Failure> {
        let arguments: Vec<String> = line.split_whitespace().map(String::from).collect();
        super::run(&arguments)
    }

    #[test]
    fn unknown_command_is_a_mistake_in_usage() {
        for line in ["", "tset", "test no-such-check"] {
            assert!(matches!(run(line), Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn help_succeeds() {
        assert!(run("--help").is_ok());
        assert!(run("test --list").is_ok());
    }

    #[test]
    fn root_holds_the_workspace() {
        assert!(root().join("xtask/Cargo.toml").exists());
    }
}
