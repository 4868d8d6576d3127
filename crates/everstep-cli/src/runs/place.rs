//! `runs move` and `runs evict`: in which pool a run is, and in whose memory.

use clap::Args;
use everstep::{Client, Evicted, Moved};
use serde_json::json;

use super::One;
use crate::{Exit, args::RunRef, audit::Change, output::say, trouble::Outcome};

#[derive(Debug, Args)]
pub(crate) struct Move {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    run: RunRef,
    /// The pool whose runners go on with it.
    pool: String,
}

pub(super) async fn go(client: &Client, said: Move) -> Outcome {
    let run = said.run.find(client).await?;
    let change = Change::new("move_run", run.id()).detail(json!({"pool": said.pool}).to_string());
    let moved = change.made(client, async || Ok(run.move_to(&said.pool).await?));
    let (word, text) = match moved.await? {
        Moved::Done => ("done", "moved"),
        Moved::Already => ("already", "it is there already"),
        _ => ("soon", "its owner was told; it moves once nothing of it is in flight"),
    };
    say(json!({"run": run.id().to_string(), "moved": word}), text);
    Ok(Exit::Done)
}

pub(super) async fn evict(client: &Client, said: One) -> Outcome {
    let run = said.run.find(client).await?;
    let change = Change::new("evict_run", run.id());
    let evicted = change.made(client, async || Ok(run.evict().await?));
    let (word, text) = match evicted.await? {
        Evicted::Done => ("done", "it is out of memory"),
        Evicted::Cold => ("cold", "it is in nobody's memory"),
        Evicted::Soon => ("soon", "it leaves memory when it next waits"),
        _ => ("told", "its owner was told; it leaves memory when it next waits"),
    };
    say(json!({"run": run.id().to_string(), "evicted": word}), text);
    Ok(Exit::Done)
}
