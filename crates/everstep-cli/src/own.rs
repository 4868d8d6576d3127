//! The commands in a program of one's own, which has the code of its workflows.

use std::{future::Future, path::PathBuf};

use clap::Args;
use everstep::{EngineBuilder, Misfit, Preflight};
use serde_json::{Value as Json, json};

use crate::{
    Exit,
    output::{self, Shown, Table, is_json},
    serve,
    trouble::{Outcome, Trouble},
};

/// Gives a program the commands of `everstep`, besides `worker`, `start` and `preflight`.
///
/// ```no_run
/// use everstep::prelude::*;
/// use everstep_cli::EngineCli as _;
///
/// #[workflow]
/// async fn greet(ctx: Ctx, name: String) -> Result<String> {
///     ctx.step("greet", async || Ok(format!("hello {name}"))).await
/// }
///
/// // `my-app worker`, `my-app start greet '"ada"'`, `my-app runs list`, `my-app preflight`, ..
/// #[tokio::main]
/// async fn main() -> everstep_cli::Exit {
///     Engine::open("app.db").register(greet).cli().await
/// }
/// ```
pub trait EngineCli {
    /// Does what the arguments of this process say. `--db` and `EVERSTEP_DB` name another store than
    /// the engine's own. What is wrong with the arguments is said, and the process ends, with 2.
    fn cli(self) -> impl Future<Output = Exit>;

    /// The same with these arguments; the first is the name of the program.
    fn cli_from<I>(self, arguments: I) -> impl Future<Output = Exit>
    where
        I: IntoIterator,
        I::Item: Into<std::ffi::OsString> + Clone;
}

impl EngineCli for EngineBuilder {
    async fn cli(self) -> Exit {
        self.cli_from(std::env::args_os()).await
    }

    async fn cli_from<I>(self, arguments: I) -> Exit
    where
        I: IntoIterator,
        I::Item: Into<std::ffi::OsString> + Clone,
    {
        crate::run(arguments, Some(self)).await
    }
}

/// Which pools a worker serves.
#[derive(Debug, Args)]
pub(crate) struct Worker {
    /// Serve the HTTP API and the dashboard too, at this address.
    #[arg(long, value_name = "ADDRESS")]
    listen: Option<String>,
    /// A file with the tokens of the API: see `serve`.
    #[arg(
        long,
        value_name = "FILE",
        env = "EVERSTEP_TOKENS",
        hide_env_values = true,
        requires = "listen"
    )]
    tokens: Option<PathBuf>,
    /// A name under which the server is reached; may be said several times.
    #[arg(long, value_name = "NAME", requires = "listen")]
    host: Vec<String>,
    /// What is not shown of payloads: `**.password`; may be said several times.
    #[arg(long, value_name = "PATTERN", requires = "listen")]
    redact: Vec<String>,
    /// Serve the runs of this pool; may be said several times.
    #[arg(long = "pool", value_name = "POOL")]
    pools: Vec<String>,
    #[command(flatten)]
    limits: serve::Limits,
}

pub(crate) async fn worker(mut engine: EngineBuilder, said: Worker) -> Outcome {
    if said.listen.is_none() && said.limits != serve::Limits::default() {
        let text = "`--trusted-proxy` and the limits are of the server; add `--listen`";
        return Err(Trouble::usage(text));
    }
    if !said.pools.is_empty() {
        engine = engine.pools(said.pools);
    }
    let engine = engine.start().await?;
    let client = engine.client();
    let begun = format!(
        "working on {}: {}; Ctrl-C ends it in good order",
        client.store_name(),
        engine.recovery()
    );
    let Some(address) = said.listen else {
        // A signal that comes right after the note ends it in good order, too.
        let ending = engine.shutdown_on_signal();
        output::note(&begun);
        ending.await.map_err(Trouble::of)?;
        return Ok(Exit::Done);
    };
    output::note(&begun);
    let tokens = said.tokens.as_deref();
    let server = serve::server(client, tokens, said.host, said.redact).await;
    let served = match server.and_then(|server| said.limits.apply(server)) {
        Ok(server) => serve::until_signal(server, &address).await,
        Err(trouble) => Err(trouble),
    };
    engine.shutdown().await;
    served
}

pub(crate) async fn preflight(engine: EngineBuilder) -> Outcome {
    let found = engine.preflight().await?;
    shown(&found).print();
    Ok(match found.is_clean() {
        true => Exit::Done,
        false => Exit::Failed,
    })
}

fn shown(found: &Preflight) -> Shown {
    if is_json() {
        let named = |all: &[Misfit]| -> Vec<Json> { all.iter().map(misfit).collect() };
        return Shown::Json(json!({
            "checked": found.checked, "ok": found.ok,
            "divergent_count": found.divergent_count, "unknown_count": found.unknown_count,
            "divergent": named(&found.divergent), "unknown": named(&found.unknown_workflow),
        }));
    }
    let mut text = format!("{} of {} live runs go on with this program", found.ok, found.checked);
    if found.divergent_count > 0 {
        text += &format!(", {} would be paused", found.divergent_count);
    }
    if found.unknown_count > 0 {
        text +=
            &format!(", {} are of workflows or versions that are not here", found.unknown_count);
    }
    text += "\n";
    let mut table = Table::new(["RUN", "WORKFLOW", "WHY"]);
    for misfit in found.divergent.iter().chain(&found.unknown_workflow) {
        table.row([
            misfit.run.to_string().into(),
            format!("{} v{}", misfit.workflow, misfit.version).into(),
            misfit.reason.clone().into(),
        ]);
    }
    if !found.is_clean() {
        text += &table.text("");
    }
    Shown::Text(text)
}

fn misfit(it: &Misfit) -> Json {
    json!({
        "run": it.run.to_string(), "workflow": it.workflow, "version": it.version,
        "reason": it.reason,
    })
}
