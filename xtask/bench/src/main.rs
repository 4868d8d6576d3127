//! The benchmarks of the project, run as `cargo xtask bench --json [--store sqlite|postgres] [NAME..]`.
//!
//! Each measurement prints one line of JSON ([`mod@line`]). Where it applies, the same rows are written
//! by a bare loop ([`raw`], [`bare`]) in the same process, and `ratio` says how close the engine comes.
//!
//! Every measurement has a new file in a directory of its own, which is removed at the end. Set
//! `EVERSTEP_BENCH_DIR` to put it on another disk. On PostgreSQL it has new schemas on a throw-away
//! server that waits for the disk; what it is set to is printed first, and if it could lose what it
//! has confirmed, nothing is measured. [`mod@cpu`] is made on both stores if none is named.

use std::{path::PathBuf, process::ExitCode, sync::Arc};

use everstep_pg::Instance;

mod api;
mod at_scale;
mod bare;
mod branches;
mod cluster;
mod cpu;
mod directory;
mod http;
mod line;
mod list_at_scale;
mod one_run;
mod parked;
mod postgres;
mod process;
mod raw;
mod seed;
mod throughput;
mod together;

use directory::Directory;

/// Why a measurement was not made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What is measured.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Sqlite,
    Postgres,
}

/// One measurement.
struct Bench {
    name: &'static str,
    /// Only made when it is asked for with `--large`.
    large: bool,
    /// Only made when it is named: its server is set in another way.
    named: bool,
    /// Where it is made.
    stores: &'static [Store],
    run: fn(&tokio::runtime::Runtime, &Directory) -> Result<(), Problem>,
}

const BENCHES: &[Bench] = &[
    bench("throughput", throughput::throughput),
    bench("latency", one_run::latency),
    bench("long_history", one_run::long_history),
    bench("replay", one_run::replay),
    bench("fan_out", one_run::fan_out),
    bench("branches", branches::branches),
    bench("park", parked::park),
    bench("wake_hot", parked::wake_hot),
    bench("signal", parked::signal),
    bench("idle", parked::idle),
    bench("events", together::events),
    bench("children", together::children),
    bench("queue", together::queue),
    bench("schedule", together::schedule),
    bench("api", api::api),
    bench("list_at_scale", list_at_scale::list_at_scale),
    on_postgres("cluster", cluster::cluster),
    on_postgres("cluster_remote", cluster::cluster_remote),
    on_postgres("skewed", cluster::skewed),
    on_postgres("takeover", cluster::takeover),
    on_postgres("remote_start", cluster::remote_start),
    Bench { large: true, ..bench("at_scale", at_scale::at_scale) },
    Bench { named: true, ..bench("cpu", cpu::cpu) },
];

const fn bench(
    name: &'static str,
    run: fn(&tokio::runtime::Runtime, &Directory) -> Result<(), Problem>,
) -> Bench {
    Bench { name, large: false, named: false, stores: &[Store::Sqlite, Store::Postgres], run }
}

/// A measurement of several processes.
const fn on_postgres(
    name: &'static str,
    run: fn(&tokio::runtime::Runtime, &Directory) -> Result<(), Problem>,
) -> Bench {
    Bench { stores: &[Store::Postgres], ..bench(name, run) }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    if let [first, rest @ ..] = &arguments[..]
        && first == parked::CHILD
    {
        return ended(parked::child(rest));
    }
    if let [first, rest @ ..] = &arguments[..]
        && first == cluster::CHILD
    {
        return ended(cluster::child(rest));
    }
    let (mut large, mut chosen, mut names) = (false, None, Vec::new());
    let mut given = arguments.iter();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--json" => {}
            "--large" => large = true,
            "--store" => match given.next().map(String::as_str) {
                Some("sqlite") => chosen = Some(Store::Sqlite),
                Some("postgres") => chosen = Some(Store::Postgres),
                _ => {
                    eprintln!("say `--store sqlite` or `--store postgres`");
                    return ExitCode::from(2);
                }
            },
            _ => names.push(argument),
        }
    }
    if let Some(unknown) =
        names.iter().find(|name| !BENCHES.iter().any(|bench| bench.name == name.as_str()))
    {
        let known: Vec<_> = BENCHES.iter().map(|bench| bench.name).collect();
        eprintln!("`{unknown}` is no measurement; there are: {}", known.join(", "));
        return ExitCode::from(2);
    }
    let stores = match chosen {
        Some(store) => vec![store],
        None if names.iter().any(|name| *name == "cpu") => vec![Store::Sqlite, Store::Postgres],
        None => vec![Store::Sqlite],
    };
    for store in stores {
        if let Err(code) = measure_on(store, large, &names) {
            return code;
        }
    }
    ExitCode::SUCCESS
}

/// Makes the measurements of these names on a store; without names, all that are made there.
fn measure_on(store: Store, large: bool, names: &[&String]) -> Result<(), ExitCode> {
    let named = |bench: &Bench| names.iter().any(|name| *name == bench.name);
    let asked = |bench: &&Bench| match names.is_empty() {
        true => (large || !bench.large) && !bench.named && bench.stores.contains(&store),
        false => named(bench),
    };
    let counting = BENCHES.iter().any(|bench| bench.named && named(bench));
    let server = match store {
        Store::Sqlite => None,
        Store::Postgres => match server(counting) {
            Ok(server) => Some(Arc::new(server)),
            Err(problem) => {
                let problem = with_causes(&*problem);
                eprintln!("there is no PostgreSQL to measure: {problem}");
                return Err(ExitCode::FAILURE);
            }
        },
    };
    for bench in BENCHES.iter().filter(asked) {
        if bench.large && !large {
            eprintln!("`{}` takes long and much space: say `--large`", bench.name);
            return Err(ExitCode::from(2));
        }
        if !bench.stores.contains(&store) {
            eprintln!("`{}` is not measured on this store", bench.name);
            return Err(ExitCode::from(2));
        }
        if let Err(problem) = measure(bench, server.clone()) {
            let problem = with_causes(&*problem);
            eprintln!("the measurement `{}` failed: {problem}", bench.name);
            return Err(ExitCode::FAILURE);
        }
    }
    Ok(())
}

fn ended(result: Result<(), Problem>) -> ExitCode {
    match result {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("{}", with_causes(&*problem));
            ExitCode::FAILURE
        }
    }
}

/// An error with what caused it: some say nothing themselves.
fn with_causes(problem: &(dyn std::error::Error + 'static)) -> String {
    let mut text = problem.to_string();
    let mut cause = problem.source();
    while let Some(inner) = cause {
        text = format!("{text}: {inner}");
        cause = inner.source();
    }
    text
}

/// A server for all measurements, which counts statements if it is to. It fails if a confirmed commit
/// could be lost.
fn server(counting: bool) -> Result<Instance, Problem> {
    line::set_store("postgres");
    let server = match counting {
        true => cpu::start_counting_server()?,
        false => Instance::start_new()?,
    };
    let settings = server.settings()?;
    println!(
        "{{\"bench\":\"settings\",\"store\":\"postgres\",\"fsync\":\"{}\",\
         \"synchronous_commit\":\"{}\",\"full_page_writes\":\"{}\"}}",
        settings.fsync, settings.synchronous_commit, settings.full_page_writes
    );
    settings.check()?;
    Ok(server)
}

fn measure(bench: &Bench, server: Option<Arc<Instance>>) -> Result<(), Problem> {
    let base = std::env::var_os("EVERSTEP_BENCH_DIR")
        .map_or_else(|| PathBuf::from("target"), PathBuf::from);
    let directory = Directory::new(&base, bench.name, server)?;
    let runtime = runtime()?;
    (bench.run)(&runtime, &directory)
}

/// The runtime of an application: bodies and clients are on it.
fn runtime() -> Result<tokio::runtime::Runtime, Problem> {
    Ok(tokio::runtime::Builder::new_multi_thread().enable_all().build()?)
}
