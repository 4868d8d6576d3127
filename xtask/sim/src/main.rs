//! `cargo xtask sim`: several engines in one process, one activity at a time, under a scheduler, clocks,
//! a store and faults that one seed decides.
//!
//! A seed is a *life* ([`life`]): it draws a [`plan`] of the [`world`] and of the [`work`] in it, lives
//! it, and is judged by the [`oracle`]. Two lives of one seed are the same, byte for byte.
//!
//! Lives are independent of each other. A worker process lives one after another, pinned to one core:
//! threads that hand a baton around are quickest there. The parent ([`fleet`]) starts one worker for each
//! core, and knows which seed a worker was at if it dies.

use std::process::ExitCode;

mod args;
mod breaks;
mod compare;
mod fleet;
mod life;
mod oracle;
mod plan;
mod shrink;
mod summary;
#[cfg(test)]
mod tests;
mod work;
mod world;

use args::{Args, Task};
use everstep::testing::simulation::Trace;
use life::Options;
use plan::Plan;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let args = match Args::parse(&arguments) {
        Ok(args) => args,
        Err(problem) => {
            eprintln!("{problem}\n\n{}", args::USAGE);
            return ExitCode::from(2);
        }
    };
    let is_well = match &args.task {
        Task::Help => {
            print!("{}", args::USAGE);
            true
        }
        Task::ListBreaks => {
            breaks::print_all();
            true
        }
        Task::Worker(share) => {
            fleet::work(share);
            true
        }
        Task::One(seed) => show(Plan::draw(*seed), &args),
        Task::Plan(file) => match Plan::read(file) {
            Ok(plan) => show(plan, &args),
            Err(problem) => {
                eprintln!("{}: {problem}", file.display());
                return ExitCode::from(2);
            }
        },
        Task::Many => fleet::live(&args),
        Task::Break(broken) => breaks::find_all(&args, broken),
    };
    match is_well {
        true => ExitCode::SUCCESS,
        false => ExitCode::FAILURE,
    }
}

/// Lives one life and prints all of it, and a smaller one if it has broken a promise.
fn show(plan: Plan, args: &Args) -> bool {
    fleet::pin_to_core(0);
    print!("{plan}");
    let options = Options { trace: Trace::Steps, sabotage: args.sabotage, ..Options::default() };
    let verdict = life::live(plan.clone(), options);
    print!("{}", verdict.report.trace);
    for violation in &verdict.violations {
        println!("seed {}: {violation}", plan.seed);
    }
    println!("{}", verdict.summary.as_json());
    let Some(violation) = verdict.violations.first() else {
        return true;
    };
    if args.shrinks {
        print!("{}", shrink::shrink(&plan, violation.promise, options));
    }
    false
}
