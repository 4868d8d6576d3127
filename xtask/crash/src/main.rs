//! The crash test of the project, run as `cargo xtask crash`.
//!
//! A child process ([`child`]) runs a workflow that uses every primitive of a single run
//! ([`workflow`]), and many that wait for, start and share things ([`mix`]). Each step body writes
//! into a ledger when it starts and when it ends ([`bodies`]). The parent ([`parent`]) starts runs
//! and sends messages from outside, kills the child at random moments, starts it again, and at last
//! lets everything finish. Then the promises are checked against the ledger, the store and what the
//! parent was told ([`ledger`]). A worker of queues is killed beside the child.
//!
//! Now and then a child is not killed but stopped for longer than its lease; another takes over,
//! and the first goes on beside it, as a process does that was swapped out.
//!
//! On PostgreSQL several children share the runs ([`cluster`]), and the server and the network in
//! front of it fail too.

use std::process::ExitCode;

use everstep::Sabotage;

mod bodies;
mod child;
mod cluster;
mod ledger;
mod mix;
mod parent;
mod place;
mod random;
mod workflow;

/// Why the test could not be made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What was asked for.
struct Options {
    store: Store,
    /// How many runners there are on a server.
    processes: u64,
    kills: u64,
    seed: u64,
    sabotage: Option<Sabotage>,
}

/// What everything is kept in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Sqlite,
    Postgres,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [first, rest @ ..] if first == child::CHILD => child::run(rest).map(|()| true),
        _ => match options(&arguments) {
            Ok(options) => parent::run(&options),
            Err(problem) => {
                eprintln!(
                    "{problem}\nusage: cargo xtask crash [--store sqlite|postgres] [--processes N] [--kills N] [--seed N] [--sabotage no-barrier|no-fence|double-consume]"
                );
                return ExitCode::from(2);
            }
        },
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("the crash test could not be made: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, Problem> {
    let mut options = Options {
        store: Store::Sqlite,
        processes: 1,
        kills: 100,
        seed: random::seed(),
        sabotage: None,
    };
    let mut arguments = arguments.iter();
    let mut processes = None;
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--store" if value == "sqlite" => options.store = Store::Sqlite,
            "--store" if value == "postgres" => options.store = Store::Postgres,
            "--store" => return Err(format!("`{value}` is no store").into()),
            "--processes" => processes = Some(value.parse()?),
            "--kills" => options.kills = value.parse()?,
            "--seed" => options.seed = value.parse()?,
            "--sabotage" => options.sabotage = Some(child::sabotage(value)?),
            _ => return Err(format!("`{name}` is not an option").into()),
        }
    }
    options.processes = match (options.store, processes) {
        (Store::Sqlite, None | Some(1)) => 1,
        (Store::Sqlite, _) => return Err("on SQLite there is one runner at a time".into()),
        (Store::Postgres, None) => 3,
        (Store::Postgres, Some(0 | 1)) => {
            return Err(
                "there must be another runner to take over: `--processes 2` or more".into(),
            );
        }
        (Store::Postgres, Some(processes)) => processes,
    };
    Ok(options)
}
