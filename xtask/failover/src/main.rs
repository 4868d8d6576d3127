//! The failover drill of the project, run as `cargo xtask failover`.
//!
//! In each round ([`round`]) there is a primary with a synchronous standby, an engine and a client
//! that know both by one URL, and runs under way ([`load`]). The primary is killed with SIGKILL, the
//! standby promoted, and everything must finish without anybody's help. Bodies write what they do
//! into a ledger ([`ledger`]), by which the promises are checked.

use std::{process::ExitCode, time::Instant};

mod ledger;
mod load;
mod round;

use round::Report;

/// Why the drill could not be made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What was asked for.
struct Options {
    rounds: u64,
    runs: u64,
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let options = match options(&arguments) {
        Ok(options) => options,
        Err(problem) => {
            eprintln!("{problem}\nusage: cargo xtask failover [--rounds N] [--runs N]");
            return ExitCode::from(2);
        }
    };
    match drill(&options) {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("the failover drill could not be made: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn options(arguments: &[String]) -> Result<Options, Problem> {
    let mut options = Options { rounds: 3, runs: 200 };
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        let value = arguments.next();
        let value = value.ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--rounds" => options.rounds = value.parse()?,
            "--runs" => options.runs = value.parse()?,
            _ => return Err(format!("`{name}` is not an option").into()),
        }
    }
    Ok(options)
}

/// All rounds, and one line of what they have shown.
fn drill(options: &Options) -> Result<bool, Problem> {
    let begun = Instant::now();
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut total = Report::default();
    for round in 0..options.rounds {
        let report = runtime.block_on(round::run(round, options.runs))?;
        total.add(&report);
    }
    println!("{}", total.line(options.rounds, begun.elapsed()));
    for what in &total.wrong {
        eprintln!("{what}");
    }
    Ok(total.wrong.is_empty())
}
