//! The crash test of the project, run as `cargo xtask crash`.
//!
//! Child processes ([`child`]) run a workflow that uses every primitive of a single run
//! ([`workflow`]), and many that wait for, start and share things ([`mix`]). Each step body writes
//! into a ledger when it starts and when it ends ([`bodies`]). The parent ([`parent`]) starts runs
//! and sends messages from outside. The children and everything around them fail ([`cluster`]): by
//! scenarios that strike at a chosen moment ([`scenarios`]), and by chance. At last everything may
//! finish. Then the promises are checked against the ledger, the store and what the parent was told
//! ([`ledger`]).
//!
//! A test that cannot fail shows nothing. So the engine can be told to break a promise ([`sabotage`]),
//! and the test must notice, with every seed ([`matrix`]).

use std::process::ExitCode;

use everstep::Sabotage;

mod bodies;
mod child;
mod cluster;
mod ledger;
mod matrix;
mod mix;
mod orders;
mod parent;
mod place;
mod random;
mod sabotage;
mod scenarios;
mod targets;
mod workflow;

use scenarios::Scenario;

/// Why the test could not be made.
type Problem = Box<dyn std::error::Error + Send + Sync>;

/// What was asked for.
#[derive(Clone)]
struct Options {
    store: Store,
    /// How many runners there are.
    processes: u64,
    kills: u64,
    seed: u64,
    sabotage: Option<Sabotage>,
    /// Only this is played.
    scenario: Option<Scenario>,
}

impl Options {
    /// Whether everything is done, with an engine that keeps its promises.
    fn is_whole(&self) -> bool {
        self.sabotage.is_none() && self.scenario.is_none()
    }
}

/// What everything is kept in.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Store {
    Sqlite,
    Postgres,
}

impl Store {
    const ALL: [Store; 2] = [Store::Sqlite, Store::Postgres];

    fn name(self) -> &'static str {
        match self {
            Store::Sqlite => "sqlite",
            Store::Postgres => "postgres",
        }
    }

    fn by_name(name: &str) -> Result<Store, Problem> {
        let found = Store::ALL.into_iter().find(|store| store.name() == name);
        found.ok_or_else(|| format!("`{name}` is no store").into())
    }
}

/// What is to be done.
enum Task {
    One(Options),
    /// Everything that can be broken is, on each of these stores.
    Matrix(Options, Vec<Store>),
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let result = match &arguments[..] {
        [first, ..] if first == "--help" => {
            println!("{}", usage());
            return ExitCode::SUCCESS;
        }
        [first, rest @ ..] if first == child::CHILD => child::run(rest).map(|()| true),
        _ => match task(&arguments) {
            Ok(Task::One(options)) => parent::run(&options, None).map(|outcome| outcome.is_well),
            Ok(Task::Matrix(options, stores)) => matrix::run(&options, &stores),
            Err(problem) => {
                eprintln!("{problem}\n{}", usage());
                return ExitCode::from(2);
            }
        },
    };
    match result {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(problem) => {
            eprintln!("the crash test could not be made: {}", shown(&*problem));
            ExitCode::FAILURE
        }
    }
}

/// An error and its causes.
fn shown(problem: &(dyn std::error::Error + 'static)) -> String {
    let cause = std::iter::successors(problem.source(), |cause| cause.source());
    cause.fold(problem.to_string(), |text, cause| format!("{text}: {cause}"))
}

fn usage() -> String {
    let sabotages: Vec<&str> = sabotage::ALL.iter().map(|it| it.name).collect();
    let scenarios: Vec<&str> = Scenario::ALL.iter().map(|it| it.name()).collect();
    format!(
        "usage: cargo xtask crash [--store sqlite|postgres] [--processes N] [--kills N] [--seed N] \
         [--sabotage {}|all] [--scenario {}] [--json]",
        sabotages.join("|"),
        scenarios.join("|")
    )
}

/// With `--sabotage all`, each test has so many kills after its scenarios.
const MATRIX_KILLS: u64 = 20;

fn task(arguments: &[String]) -> Result<Task, Problem> {
    let mut options = Options {
        store: Store::Sqlite,
        processes: 3,
        kills: 100,
        seed: random::seed(),
        sabotage: None,
        scenario: None,
    };
    let (mut all, mut kills, mut seed, mut store) = (false, None, None, None);
    let mut arguments = arguments.iter();
    while let Some(name) = arguments.next() {
        if name == "--json" {
            // There is no other form.
            continue;
        }
        let value = arguments.next().ok_or_else(|| format!("`{name}` needs a value"))?;
        match name.as_str() {
            "--store" => store = Some(Store::by_name(value)?),
            "--processes" => options.processes = value.parse()?,
            "--kills" => kills = Some(value.parse()?),
            "--seed" => seed = Some(value.parse()?),
            "--sabotage" if value == "all" => all = true,
            "--sabotage" => options.sabotage = Some(sabotage::by_name(value)?),
            "--scenario" => options.scenario = Some(Scenario::by_name(value)?),
            _ => return Err(format!("`{name}` is not an option").into()),
        }
    }
    if all {
        (options.kills, options.seed) = (kills.unwrap_or(MATRIX_KILLS), seed.unwrap_or(1));
        let stores = store.map_or_else(|| Store::ALL.to_vec(), |store| vec![store]);
        return Ok(Task::Matrix(options, stores));
    }
    (options.kills, options.seed) = (kills.unwrap_or(options.kills), seed.unwrap_or(options.seed));
    options.store = store.unwrap_or(Store::Sqlite);
    match (options.store, options.processes) {
        (_, 0) => Err("there must be a runner: `--processes 1` or more".into()),
        (Store::Postgres, 1) => {
            Err("there must be another runner to take over: `--processes 2` or more".into())
        }
        _ => Ok(Task::One(options)),
    }
}
