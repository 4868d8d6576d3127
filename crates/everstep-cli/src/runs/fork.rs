//! `runs fork`: a new run with a part of another's history.

use clap::Args;
use everstep::Client;

use super::print_id;
use crate::{
    Exit,
    args::{Pair, RunRef, json},
    audit::Change,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    run: RunRef,
    /// The step from which on it is made anew.
    #[arg(long, value_name = "LOCATION")]
    from: Option<String>,
    /// Another input: JSON, `@file` or `-`.
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// Another result of a step that is kept; may be said several times.
    #[arg(long, value_name = "LOCATION=JSON")]
    result: Vec<String>,
    /// The key of the new run.
    #[arg(long)]
    key: Option<String>,
    /// The version of the new run.
    #[arg(long = "as-version", value_name = "VERSION")]
    version: Option<u32>,
    /// What the new run can be found by; may be said several times.
    #[arg(long, short, value_name = "NAME:VALUE")]
    tag: Vec<Pair>,
}

pub(super) async fn run(client: &Client, said: Fork) -> Outcome {
    let run = said.run.find(client).await?;
    let mut change = Change::new("fork_run", run.id());
    let mut fork = run.fork();
    if let Some(from) = said.from {
        change = change.detail(format!("from {from}"));
        fork = fork.from(from);
    }
    if let Some(input) = said.input {
        fork = fork.input(&json(&input)?)?;
    }
    for result in said.result {
        let (location, value) = result
            .split_once('=')
            .ok_or_else(|| Trouble::usage("write a result as `location=json`"))?;
        fork = fork.result(location, &json(value)?)?;
    }
    if let Some(key) = said.key {
        fork = fork.key(key);
    }
    if let Some(version) = said.version {
        fork = fork.version(version);
    }
    for Pair(name, value) in said.tag {
        fork = fork.tag(name, value);
    }
    let forked = change.made(client, async || Ok(fork.start().await?));
    print_id(&forked.await?);
    Ok(Exit::Done)
}
