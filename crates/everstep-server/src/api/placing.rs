//! Where a run is: in whose memory, and in which pool.

use axum::{Json as Answer, extract::State};
use everstep::{Evicted, Moved, Role::Admin};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Answered, runs::handle};
use crate::{
    App,
    extract::{Body, Names},
    table::{Table, Verb::Post},
};

pub(super) fn add(table: &mut Table) {
    let name = ("move_run", "Moves a run to another pool");
    table
        .add(Post, "/runs/{run}/move", Admin, name, move_to)
        .body::<MoveRun>()
        .answers::<Placed>(200, "What became of it.");
    let name = ("evict_run", "Takes a run out of the memory of its owner");
    table
        .add(Post, "/runs/{run}/evict", Admin, name, evict)
        .answers::<Placed>(200, "What became of it.");
}

/// Where a run is moved to.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct MoveRun {
    /// The pool.
    pool: String,
}

/// What became of a run that was to be elsewhere.
#[derive(Debug, Serialize, JsonSchema)]
struct Placed {
    /// `done`; `soon`, when nothing of it is in flight; `told` if its owner was; or `already`.
    outcome: &'static str,
}

async fn move_to(
    State(app): State<App>,
    Names(run): Names<String>,
    Body(said): Body<MoveRun>,
) -> Answered<Placed> {
    let outcome = match handle(&app, &run).await?.move_to(&said.pool).await? {
        Moved::Done => "done",
        Moved::Already => "already",
        _ => "soon",
    };
    Ok(Answer(Placed { outcome }))
}

async fn evict(State(app): State<App>, Names(run): Names<String>) -> Answered<Placed> {
    let outcome = match handle(&app, &run).await?.evict().await? {
        Evicted::Done => "done",
        Evicted::Cold => "already",
        Evicted::Told => "told",
        _ => "soon",
    };
    Ok(Answer(Placed { outcome }))
}
