//! The benchmarks of the project, run as `cargo xtask bench --json [NAME..]`.
//!
//! Each measurement prints one line of JSON ([`mod@line`]). Where it applies, the same rows are written
//! by a bare loop ([`raw`], [`bare`]) in the same process, and `ratio` says how close the engine comes.
//!
//! Every measurement has a new file in a directory of its own, which is removed at the end. Set
//! `EVERSTEP_BENCH_DIR` to put it on another disk.

use std::{path::PathBuf, process::ExitCode};

mod at_scale;
mod bare;
mod directory;
mod line;
mod one_run;
mod parked;
mod process;
mod raw;
mod throughput;
mod together;

use directory::Directory;

/// Why a measurement was not made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// One measurement.
struct Bench {
    name: &'static str,
    /// Only made when it is asked for with `--large`.
    large: bool,
    run: fn(&tokio::runtime::Runtime, &Directory) -> Result<(), Problem>,
}

const BENCHES: &[Bench] = &[
    bench("throughput", throughput::throughput),
    bench("latency", one_run::latency),
    bench("long_history", one_run::long_history),
    bench("replay", one_run::replay),
    bench("fan_out", one_run::fan_out),
    bench("park", parked::park),
    bench("wake_hot", parked::wake_hot),
    bench("signal", parked::signal),
    bench("idle", parked::idle),
    bench("events", together::events),
    bench("children", together::children),
    bench("queue", together::queue),
    bench("schedule", together::schedule),
    Bench {
        name: "at_scale",
        large: true,
        run: at_scale::at_scale,
    },
];

const fn bench(
    name: &'static str,
    run: fn(&tokio::runtime::Runtime, &Directory) -> Result<(), Problem>,
) -> Bench {
    Bench {
        name,
        large: false,
        run,
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == parked::CHILD
    {
        return ended(parked::child(rest));
    }
    let large = arguments.iter().any(|argument| argument == "--large");
    let names: Vec<&String> = arguments
        .iter()
        .filter(|argument| !["--large", "--json"].contains(&argument.as_str()))
        .collect();
    if let Some(unknown) = names
        .iter()
        .find(|name| !BENCHES.iter().any(|bench| bench.name == name.as_str()))
    {
        let known: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        eprintln!(
            "`{unknown}` is no measurement; there are: {}",
            known.join(", ")
        );
        return ExitCode::from(2);
    }
    let asked = |bench: &&Bench| match names.is_empty() {
        true => large || !bench.large,
        false => names.iter().any(|name| *name == bench.name),
    };
    for bench in BENCHES.iter().filter(asked) {
        if bench.large && !large {
            eprintln!("`{}` takes long and much space: say `--large`", bench.name);
            return ExitCode::from(2);
        }
        if let Err(problem) = measure(bench) {
            eprintln!("the measurement `{}` failed: {problem}", bench.name);
            return ExitCode::FAILURE;
        }
    }
    ExitCode::SUCCESS
}

fn ended(result: Result<(), Problem>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{problem}");
            ExitCode::FAILURE
        }
    }
}

fn measure(bench: &Bench) -> Result<(), Problem> {
    let base = std::env::var_os("EVERSTEP_BENCH_DIR")
        .map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let directory = Directory::new(&base, bench.name)?;
    let runtime = runtime()?;
    (bench.run)(&runtime, &directory)
}

/// The runtime of an application: bodies and clients are on it.
fn runtime() -> Result<tokio::runtime::Runtime, Problem> {
    Ok(tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?)
}
