//! The `everstep` command, and the same for a program of one's own: [`EngineCli`].
//!
//! What a script can rely on:
//!
//! - With `--json` there is one document on standard output, in the shapes of the HTTP API, and nothing
//!   else; what goes on and on (`--watch`, `runs watch`) is one document per line. An error is a document
//!   on standard error.
//! - The [exit codes](Exit).
//! - Nothing is asked where nobody can answer: what would be asked is refused then, unless there is
//!   `--yes`. Colours and bars of progress are for terminals only; `NO_COLOR` and `--color` are obeyed.

use std::{ffi::OsString, path::PathBuf};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};
use everstep::{Client, EngineBuilder};

mod args;
mod audit;
mod backup;
mod bench;
mod cluster;
mod demo;
mod doctor;
mod letters;
mod log;
mod messages;
mod output;
mod own;
mod progress;
mod queues;
mod runs;
mod schedules;
mod serve;
mod start;
mod tokens;
mod transfer;
mod trouble;

pub use own::EngineCli;
pub use trouble::Exit;
use trouble::{Outcome, Trouble};

/// Look at durable runs, operate them, and serve the dashboard.
#[derive(Debug, Parser)]
#[command(
    name = "everstep",
    version,
    max_term_width = 100,
    after_help = "Exit codes: 0 done, 1 failed or found something, 2 wrong usage, 3 not found, \
                  4 refused in this state or without --yes, 5 the store cannot be reached."
)]
struct Args {
    /// A SQLite file, or the URL of a PostgreSQL database.
    #[arg(
        long,
        global = true,
        env = "EVERSTEP_DB",
        hide_env_values = true,
        value_name = "FILE|URL",
        help_heading = "Everywhere"
    )]
    db: Option<PathBuf>,
    /// Print JSON.
    #[arg(long, global = true, help_heading = "Everywhere")]
    json: bool,
    /// When to use colours.
    #[arg(long, global = true, value_enum, default_value_t = output::Colour::Auto,
        help_heading = "Everywhere")]
    color: output::Colour,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run lively samples with a dashboard, in a file that is removed at the end.
    Demo(demo::Demo),
    /// List, show and change runs.
    #[command(subcommand)]
    Runs(runs::Runs),
    /// Say why a run does not go on.
    Why(runs::One),
    /// Start a run.
    Start(start::Start),
    /// Send a message to a run.
    Send(messages::Send),
    /// Give the deferred of a token its value.
    Resolve(messages::Resolve),
    /// Publish an event.
    Publish(messages::Publish),
    /// List and change schedules.
    Schedules(schedules::Schedules),
    /// Look at queues and their items, and change them.
    #[command(subcommand)]
    Queues(queues::Queues),
    /// List the limits that are in use.
    Limits,
    /// List, send again and forget messages that nobody could be given.
    #[command(subcommand)]
    DeadLetters(letters::Letters),
    /// Show the processes that run things, and how they share the work.
    Cluster(output::Watch),
    /// Look whether everything in the store is as it must be, and mend it.
    Doctor(doctor::Doctor),
    /// Show who has changed what, here and over the HTTP API.
    Audit(audit::Audit),
    /// List, make and take back the tokens of the HTTP API.
    #[command(subcommand)]
    Tokens(tokens::Tokens),
    /// Copy a SQLite file while it is in use.
    Backup(backup::Backup),
    /// Make a SQLite file of a backup.
    Restore(backup::Restore),
    /// Write runs with their history into files.
    Export(transfer::Export),
    /// Take up runs from files.
    Import(transfer::Import),
    /// Move everything from a SQLite file to a PostgreSQL database.
    Migrate(transfer::Migrate),
    /// Serve the HTTP API and the dashboard.
    Serve(serve::Serve),
    /// Measure the engine on this kind of store, in a file or schema of its own.
    Bench(bench::Bench),
    /// Run the workflows of this program.
    Worker(own::Worker),
    /// Try every live run against the code of this program, and change nothing.
    Preflight,
    /// Print a script that completes commands in a shell.
    Completions(args::Completions),
}

/// The `everstep` command. It has no workflows of its own.
pub fn main() -> Exit {
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(run(std::env::args_os(), None)),
        Err(error) => {
            output::note(&format!("error: no runtime can be made: {error}"));
            Exit::Failed
        }
    }
}

/// Does what the arguments say, with the engine of a program or without one.
async fn run<I>(arguments: I, engine: Option<EngineBuilder>) -> Exit
where
    I: IntoIterator,
    I::Item: Into<OsString> + Clone,
{
    let arguments: Vec<OsString> = arguments.into_iter().map(Into::into).collect();
    let command = command(engine.as_ref().and(arguments.first()));
    let matches = command.clone().get_matches_from(&arguments);
    let args = match Args::from_arg_matches(&matches) {
        Ok(args) => args,
        Err(error) => error.exit(),
    };
    output::set(args.color, args.json);
    let log = log::Log::start(&args.command, command.get_name());
    // What the environment says is where the user's own data is: no place for samples.
    let is_said = matches.value_source("db") == Some(clap::parser::ValueSource::CommandLine);
    let exit = match act(args, is_said, engine, command).await {
        Ok(exit) => exit,
        Err(trouble) => {
            trouble.print();
            trouble.exit()
        }
    };
    log.end();
    exit
}

/// The commands of a program of this name, or those of `everstep` itself.
fn command(own: Option<&OsString>) -> clap::Command {
    let command = Args::command();
    let Some(program) = own else {
        // They make no sense without code.
        return command
            .mut_subcommand("worker", |it| it.hide(true))
            .mut_subcommand("preflight", |it| it.hide(true));
    };
    let name = PathBuf::from(program);
    let name = name.file_stem().unwrap_or(program).to_string_lossy();
    command
        .name(name.into_owned())
        .about("Run the workflows of this program, look at their runs, and operate them.")
}

async fn act(
    args: Args,
    db_is_said: bool,
    engine: Option<EngineBuilder>,
    command: clap::Command,
) -> Outcome {
    if let Some(db) = &args.db {
        args::check_store(db)?;
    }
    let here = Here::new(args.db, engine);
    match args.command {
        Command::Demo(demo) => demo::run(demo, here.db.filter(|_| db_is_said)).await,
        Command::Runs(said) => runs::run(&here.client().await?, said).await,
        Command::Why(one) => runs::why(&here.client().await?, one).await,
        Command::Start(said) => {
            let known = here.engine.as_ref().map(EngineBuilder::workflows);
            start::run(&here.client().await?, said, known.as_deref()).await
        }
        Command::Send(said) => messages::send(&here.client().await?, said).await,
        Command::Resolve(said) => messages::resolve(&here.client().await?, said).await,
        Command::Publish(said) => messages::publish(&here.client().await?, said).await,
        Command::Schedules(said) => schedules::run(&here.client().await?, said).await,
        Command::Queues(said) => queues::run(&here.client().await?, said).await,
        Command::Limits => cluster::limits(&here.client().await?).await,
        Command::DeadLetters(said) => letters::run(&here.client().await?, said).await,
        Command::Cluster(watch) => cluster::run(&here.client().await?, watch).await,
        Command::Doctor(said) => doctor::run(&here.client().await?, said).await,
        Command::Audit(said) => audit::run(&here.client().await?, said).await,
        Command::Tokens(said) => tokens::run(&here.client().await?, said).await,
        Command::Backup(said) => {
            backup::check(here.db.as_deref())?;
            backup::backup(&here.client().await?, said).await
        }
        Command::Restore(said) => backup::restore(said).await,
        Command::Export(said) => transfer::export(&here.client().await?, said).await,
        Command::Import(said) => transfer::import(&here.client().await?, said).await,
        Command::Migrate(said) => transfer::migrate(said).await,
        Command::Serve(said) => serve::run(here.client().await?, said).await,
        Command::Bench(said) => bench::run(here.db, said).await,
        Command::Worker(said) => own::worker(here.engine()?, said).await,
        Command::Preflight => own::preflight(here.engine()?).await,
        Command::Completions(shell) => Ok(args::completions(shell, command)),
    }
}

/// The store that is meant, and the engine of the program if it has one.
struct Here {
    db: Option<PathBuf>,
    engine: Option<EngineBuilder>,
}

impl Here {
    fn new(db: Option<PathBuf>, engine: Option<EngineBuilder>) -> Here {
        let engine = engine.map(|engine| match &db {
            Some(db) => engine.at(db),
            None => engine,
        });
        Here { db, engine }
    }

    async fn client(&self) -> Result<Client, Trouble> {
        match (&self.engine, &self.db) {
            (Some(engine), _) => {
                let opened = engine.client().await;
                opened.map_err(|error| {
                    Trouble::from(error).hint("if it was never used, `worker` makes it")
                })
            }
            (None, Some(db)) => Ok(Client::open(db).await?),
            (None, None) => Err(Trouble::usage(
                "say which store: `--db app.db`, `--db postgres://..`, or set EVERSTEP_DB",
            )),
        }
    }

    fn engine(self) -> Result<EngineBuilder, Trouble> {
        self.engine.ok_or_else(|| {
            Trouble::usage(
                "`everstep` has no workflows; call this in a program of your own that has them, see \
                 `everstep_cli::EngineCli`",
            )
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_do_not_contradict_each_other() {
        command(None).debug_assert();
        command(Some(&OsString::from("/bin/my-app"))).debug_assert();
    }

    #[test]
    fn own_program_is_called_by_its_name() {
        let command = command(Some(&OsString::from("/bin/my-app")));
        assert_eq!(command.get_name(), "my-app");
    }
}
