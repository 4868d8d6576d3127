//! The `everstep` command, and the same for a program of one's own.
//!
//! ```no_run
//! use everstep::prelude::*;
//! use everstep_cli::Cli as _;
//!
//! #[workflow]
//! async fn greet(ctx: Ctx, name: String) -> Result<String> {
//!     ctx.step("greet", async || Ok(format!("hello {name}"))).await
//! }
//!
//! fn main() -> std::process::ExitCode {
//!     // `my-app worker`, `my-app start greet '"ada"'`, `my-app runs list`, `my-app preflight`, ..
//!     everstep_cli::with(|place| Engine::open(place).register(greet))
//! }
//! ```
//!
//! What a script can rely on: with `--json` the same shapes as the HTTP API, one document on standard
//! output, and nothing else there; the [exit codes](Exit).

use std::{path::PathBuf, process::ExitCode};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use everstep::{Client, EngineBuilder};

mod args;
mod around;
mod demo;
mod output;
mod runs;
mod serve;
mod trouble;

pub use trouble::Exit;
use trouble::{Outcome, Trouble};

/// How a program makes its engine at the place that it is told.
type Make = Box<dyn FnOnce(PathBuf) -> EngineBuilder>;

/// Look at durable runs, operate them, and serve the dashboard.
#[derive(Debug, Parser)]
#[command(
    name = "everstep",
    version,
    propagate_version = true,
    max_term_width = 100
)]
struct Args {
    /// A SQLite file, or the URL of a PostgreSQL database.
    #[arg(long, global = true, env = "EVERSTEP_DB", value_name = "FILE|URL")]
    db: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true)]
    json: bool,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t = output::Colour::Auto)]
    color: output::Colour,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List, show and change runs.
    #[command(subcommand)]
    Runs(runs::Runs),
    /// Say why a run does not go on.
    Why(runs::One),
    /// Start a run.
    Start(runs::Start),
    /// Send a message to a run.
    Send(runs::Send),
    /// Give the deferred of a token its value.
    Resolve(runs::Resolve),
    /// Publish an event.
    Publish(around::Publish),
    /// List and change schedules.
    #[command(subcommand)]
    Schedules(around::Schedules),
    /// Look at a queue and its items.
    #[command(subcommand)]
    Queues(around::Queues),
    /// List the limits that are in use.
    Limits,
    /// List, send again and forget messages that nobody could be given.
    #[command(subcommand)]
    DeadLetters(around::Letters),
    /// Show the processes that run things, and how they share the work.
    Cluster(output::Watch),
    /// Write a run with its history into a file.
    Export(around::Export),
    /// Take up a run from a file.
    Import(around::Import),
    /// Move everything from a SQLite file to a PostgreSQL database.
    Migrate(around::Migrate),
    /// Serve the HTTP API and the dashboard.
    Serve(serve::Serve),
    /// Run lively samples with a dashboard, in a file that is removed at the end.
    Demo(demo::Demo),
    /// Run the workflows of this program.
    Worker,
    /// Try every live run against the code of this program, and change nothing.
    Preflight,
    /// Print a script that completes commands in a shell.
    Completions(args::Completions),
}

/// The `everstep` command. It has no workflows of its own.
pub fn main() -> ExitCode {
    run(None)
}

/// The same commands for a program with workflows, besides `worker`, `start` and `preflight`.
pub fn with(make: impl FnOnce(PathBuf) -> EngineBuilder + 'static) -> ExitCode {
    run(Some(Box::new(make)))
}

fn run(make: Option<Make>) -> ExitCode {
    let mut command = Args::command();
    if make.is_none() {
        // They make no sense without code.
        for name in ["worker", "preflight"] {
            command = command.mut_subcommand(name, |it| it.hide(true));
        }
    }
    let args = match Args::from_arg_matches(&command.get_matches()) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    output::set(args.color, args.json);
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build();
    let done = match runtime {
        Ok(runtime) => runtime.block_on(command_of(args, make)),
        Err(error) => Err(Trouble::new(Exit::Failed, format!("no runtime: {error}"))),
    };
    match done {
        Ok(exit) => exit.into(),
        Err(trouble) => {
            trouble.print();
            trouble.exit().into()
        }
    }
}

async fn command_of(args: Args, make: Option<Make>) -> Outcome {
    let place = args.db.clone();
    let open = async || open(place.clone()).await;
    match args.command {
        Command::Runs(command) => runs::run(&open().await?, command).await,
        Command::Why(one) => runs::why(&open().await?, one).await,
        Command::Start(start) => runs::start(&open().await?, start).await,
        Command::Send(send) => runs::send(&open().await?, send).await,
        Command::Resolve(resolve) => runs::resolve(&open().await?, resolve).await,
        Command::Publish(publish) => around::publish(&open().await?, publish).await,
        Command::Schedules(command) => around::schedules(&open().await?, command).await,
        Command::Queues(command) => around::queues(&open().await?, command).await,
        Command::Limits => around::limits(&open().await?).await,
        Command::DeadLetters(command) => around::letters(&open().await?, command).await,
        Command::Cluster(watch) => around::cluster(&open().await?, watch).await,
        Command::Export(export) => around::export(&open().await?, export).await,
        Command::Import(import) => around::import(&open().await?, import).await,
        Command::Migrate(migrate) => around::migrate(migrate).await,
        Command::Serve(serve) => serve::run(open().await?, serve).await,
        Command::Demo(demo) => demo::run(demo).await,
        Command::Worker => worker(engine(args.db, make)?).await,
        Command::Preflight => preflight(engine(args.db, make)?).await,
        Command::Completions(shell) => Ok(args::completions(shell, Args::command())),
    }
}

fn place(db: Option<PathBuf>) -> Result<PathBuf, Trouble> {
    db.ok_or_else(|| {
        let text = "say which store: `--db app.db`, `--db postgres://..`, or set EVERSTEP_DB";
        Trouble::new(Exit::Usage, text)
    })
}

async fn open(db: Option<PathBuf>) -> Result<Client, Trouble> {
    Ok(Client::open(place(db)?).await?)
}

fn engine(db: Option<PathBuf>, make: Option<Make>) -> Result<EngineBuilder, Trouble> {
    let make = make.ok_or_else(|| {
        let text = "this program has no workflows; run it in your own, see `everstep_cli::with`";
        Trouble::new(Exit::Usage, text)
    })?;
    Ok(make(place(db)?))
}

async fn worker(engine: EngineBuilder) -> Outcome {
    let engine = engine.start().await.map_err(Trouble::of)?;
    output::note("running; Ctrl-C ends it in good order");
    engine.shutdown_on_signal().await.map_err(Trouble::of)?;
    Ok(Exit::Done)
}

async fn preflight(engine: EngineBuilder) -> Outcome {
    let preflight = engine.preflight().await.map_err(Trouble::of)?;
    runs::preflight(&preflight)
}
