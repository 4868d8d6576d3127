//! `start`: a new run.

use clap::Args;
use everstep::Client;

use crate::{
    Exit,
    args::{Moment, Pair, Span, json},
    audit::Change,
    output,
    runs::{ended, print_id},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The workflow's name.
    workflow: String,
    /// Its input: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    input: String,
    /// A name of its own: a second start with it finds the first run.
    #[arg(long)]
    key: Option<String>,
    /// The version of the workflow; the newest that is known if it is not said.
    #[arg(long = "as-version", value_name = "VERSION")]
    version: Option<u32>,
    /// After how long it begins: `90s`, `2h`.
    #[arg(long, value_name = "TIME")]
    after: Option<Span>,
    /// When it begins.
    #[arg(long, value_name = "INSTANT", conflicts_with = "after")]
    at: Option<Moment>,
    /// Fails if it has not ended after this long.
    #[arg(long, value_name = "TIME")]
    deadline: Option<Span>,
    /// The runners that run it.
    #[arg(long)]
    pool: Option<String>,
    /// What it can be found by; may be said several times.
    #[arg(long, short, value_name = "NAME:VALUE")]
    tag: Vec<Pair>,
    /// Wait until it ends; fails if the run does.
    #[arg(long)]
    wait: bool,
}

/// Starts a run. `known` are the workflows of this program with their newest versions, if it has any.
pub(crate) async fn run(client: &Client, said: Start, known: Option<&[(String, u32)]>) -> Outcome {
    let input = json(&said.input)?;
    let version = match (said.version, known) {
        (Some(version), None) => Some(version),
        (None, None) => newest_served(client, &said.workflow).await?,
        (version, Some(known)) => Some(version.unwrap_or(newest_known(known, &said.workflow)?)),
    };
    let change = Change::new("start_run", "").detail(match &said.key {
        Some(key) => format!("{}/{key}", said.workflow),
        None => said.workflow.clone(),
    });
    let mut start = client.start_json(&said.workflow, &input);
    if let Some(version) = version {
        start = start.version(version);
    }
    if let Some(key) = said.key {
        start = start.key(key);
    }
    if let Some(Span(delay)) = said.after {
        start = start.after(delay);
    }
    if let Some(Moment(at)) = said.at {
        start = start.at(at);
    }
    if let Some(Span(limit)) = said.deadline {
        start = start.deadline_after(limit);
    }
    if let Some(pool) = said.pool {
        start = start.pool(pool);
    }
    for Pair(name, value) in said.tag {
        start = start.tag(name, value);
    }
    let run = change.made(client, async || Ok(start.await?)).await?;
    if !said.wait {
        print_id(&run);
        return Ok(Exit::Done);
    }
    // Whether it has failed is seen below.
    let _ = run.result_json().await;
    Ok(ended(run.info().await?))
}

/// The newest version of a workflow that this program has.
fn newest_known(known: &[(String, u32)], workflow: &str) -> Result<u32, Trouble> {
    let found = known.iter().find(|(name, _)| name == workflow);
    found.map(|(_, version)| *version).ok_or_else(|| {
        let names: Vec<&str> = known.iter().map(|(name, _)| &**name).collect();
        let names = match names.is_empty() {
            true => "none".to_owned(),
            false => names.join(", "),
        };
        let text = format!("this program has no workflow `{workflow}`; it has: {names}");
        Trouble::new(Exit::NotFound, text)
    })
}

/// The newest version of a workflow that some runner has.
async fn newest_served(client: &Client, workflow: &str) -> Result<Option<u32>, Trouble> {
    let cluster = client.cluster().await?;
    let alive = cluster.runners.iter().filter(|runner| runner.alive);
    let served = alive.flat_map(|runner| &runner.workflows);
    let versions = served.filter(|it| it.workflow == workflow);
    let newest = versions.map(|it| it.version).max();
    if newest.is_none() {
        output::note(&format!(
            "no runner that is alive has workflow `{workflow}`; the run waits for one"
        ));
    }
    Ok(newest)
}
