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

use std::process::ExitCode;

use everstep::Sabotage;

mod bodies;
mod child;
mod ledger;
mod mix;
mod parent;
mod random;
mod workflow;

/// Why the test could not be made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What was asked for.
struct Options {
    kills: u64,
    seed: u64,
    sabotage: Option<Sabotage>,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [first, rest @ ..] if first == child::CHILD => child::run(rest).map(|()| true),
        _ => match options(&arguments) {
            Ok(options) => parent::run(&options),
            Err(problem) => {
                eprintln!(
                    "{problem}\nusage: cargo xtask crash [--kills N] [--seed N] [--sabotage no-barrier|no-fence|double-consume]"
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
        kills: 100,
        seed: random::seed(),
        sabotage: None,
    };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments
            .next()
            .ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--kills" => options.kills = value.parse()?,
            "--seed" => options.seed = value.parse()?,
            "--sabotage" => options.sabotage = Some(child::sabotage(value)?),
            _ => return Err(format!("`{name}` is not an option").into()),
        }
    }
    Ok(options)
}
