//! The drill of deploys, run as `cargo xtask deploy-drill`.
//!
//! Three runners of version 1, a client that starts runs all the time ([`load`]), and a deploy of
//! version 2 that replaces one runner after another ([`roll_out`]): two by SIGTERM, one by SIGKILL.
//! The deploy is too quick: for a while nobody has version 1, although runs of it are under way. It
//! is taken back for one runner, which ends them, and only then goes for good.
//!
//! Prints one line of JSON, and ends with 1 if a run was run by the wrong version, did not end, or ran
//! a body again that was recorded.

use std::{path::PathBuf, process::ExitCode, time::Instant};

use everstep_drill::{Problem, ledger::Account};
use everstep_pg::{Instance, Settings};

mod load;
mod process;
mod roll_out;

use process::Site;
use roll_out::Rolled;

fn main() -> ExitCode {
    if std::env::args().len() > 1 {
        eprintln!("usage: cargo xtask deploy-drill");
        return ExitCode::from(2);
    }
    match run() {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("the drill could not be made: {problem}");
            ExitCode::FAILURE
        }
    }
}

/// Makes the drill and prints its line; whether all was well.
fn run() -> Result<bool, Problem> {
    let begun = Instant::now();
    let base =
        std::env::var_os("EVERSTEP_BENCH_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let directory = base.join(format!("deploy-drill-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let instance = Instance::start_new().map_err(|error| everstep_pg::shown(&error))?;
    let settings = instance.settings()?;
    println!("{settings}");
    settings.check()?;
    let site = Site { url: instance.url(), directory };
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    let local = tokio::task::LocalSet::new();
    let rolled = runtime.block_on(local.run_until(roll_out::roll_out(&site)));
    drop(local);
    runtime.shutdown_background();
    let well = match rolled {
        Ok(rolled) => {
            let account = Account::read(&site.ledger())?;
            report(&rolled, &account, &settings, begun)
        }
        Err(problem) => {
            eprintln!("{problem}");
            false
        }
    };
    match well {
        true => std::fs::remove_dir_all(&site.directory)?,
        false => eprintln!("its files are in {}", site.directory.display()),
    }
    Ok(well)
}

/// Prints the line; whether all is well.
fn report(rolled: &Rolled, account: &Account, settings: &Settings, begun: Instant) -> bool {
    let [one, two] = rolled.tallies;
    let counted = account.counted;
    println!(
        "{{\"started_1\":{},\"finished_1\":{},\"started_2\":{},\"finished_2\":{},\
         \"children_1\":{},\"children_2\":{},\"bodies_run\":{},\"bodies_repeated\":{},\
         \"drained\":{},\"killed\":{},\"handed_over\":{},\"takeovers\":{},\
         \"waited_for_a_version\":{},\"wrong_version\":{},\"stuck\":{},\
         \"run_again_after_completion\":{},\"repeated_without_a_kill\":{},\"self_fenced\":{},\
         \"stale_commits_refused\":{},\"fsync\":\"{}\",\"synchronous_commit\":\"{}\",\
         \"full_page_writes\":\"{}\",\"seconds\":{:.1}}}",
        one.started,
        one.finished,
        two.started,
        two.finished,
        rolled.children[0],
        rolled.children[1],
        account.bodies,
        account.repeated,
        rolled.drained,
        rolled.killed,
        counted.handed_over,
        counted.takeovers,
        rolled.waited_for_a_version,
        account.wrong_version + rolled.wrong_version,
        rolled.stuck,
        account.run_again,
        account.repeated_unkilled,
        counted.self_fenced,
        counted.stale_commits_refused,
        settings.fsync,
        settings.synchronous_commit,
        settings.full_page_writes,
        begun.elapsed().as_secs_f64(),
    );
    let mut wrong = rolled.wrong.clone();
    wrong.extend(account.violations.iter().cloned());
    // A machine that stops for longer than a lease makes an engine lose what it had begun.
    if counted.self_fenced + counted.stale_commits_refused > 0 {
        eprintln!("a runner has lost its lease: this machine was too slow for it");
        wrong.retain(|what| !what.contains("which was not killed"));
    }
    for (what, happened) in [
        ("no run of version 1 was ended", one.finished > 0),
        ("no run of version 2 was ended", two.finished > 0),
        ("not every run of version 1 has ended", one.started == one.finished),
        ("not every run of version 2 has ended", two.started == two.finished),
        ("no run was handed over", counted.handed_over > 0),
        ("nobody took the shards of the killed runner", counted.takeovers > 0),
        ("no run waited for its version", rolled.waited_for_a_version > 0),
        ("runs have not ended", rolled.stuck == 0),
        ("runs were ended by the wrong version", rolled.wrong_version == 0),
    ] {
        if !happened {
            wrong.push(what.to_owned());
        }
    }
    wrong.iter().take(60).for_each(|what| eprintln!("{what}"));
    wrong.is_empty()
}
