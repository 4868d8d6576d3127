//! The operations, in the order of the document.

use std::time::Duration;

use axum::{Extension, Json as Answer, Router, extract::State};
use everstep::{Role, RunId};
use serde_json::Value as Json;

use crate::{
    App,
    problem::{Kind, Problem},
    table::{Table, Verb::Get},
};

mod around;
mod events;
mod messages;
mod operators;
mod overview;
mod placing;
mod queues;
mod run;
mod runs;
mod schedules;
mod session;

/// How long a request may ask to wait.
const WAIT_MAX_MS: u64 = 30_000;

/// What an operation gives.
type Answered<T> = Result<Answer<T>, Problem>;

/// The routes of all operations, and the document that says so.
pub(crate) fn routes(app: &App) -> (Router<App>, Json) {
    let mut table = Table::new(app.clone());
    session::add(&mut table);
    runs::add(&mut table);
    run::add(&mut table);
    messages::add(&mut table);
    placing::add(&mut table);
    events::add(&mut table);
    schedules::add(&mut table);
    queues::add(&mut table);
    around::add(&mut table);
    overview::add(&mut table);
    operators::add(&mut table);
    let name = ("get_document", "This document");
    table
        .add(Get, "/openapi.json", None::<Role>, name, document)
        .answers::<Json>(200, "What can be asked, and what is answered.");
    table.finish()
}

/// How many on a page.
fn page_size(said: Option<usize>) -> Result<usize, Problem> {
    match said.unwrap_or(50) {
        limit @ 1..=500 => Ok(limit),
        other => {
            let detail = format!("`limit` is {other}, and must be from 1 to 500");
            Err(Problem::new(Kind::BadRequest, detail))
        }
    }
}

/// The run that a cursor stands for.
fn run_cursor(cursor: Option<&str>) -> Result<Option<RunId>, Problem> {
    let parsed = cursor.map(|cursor| {
        cursor.parse::<RunId>().map_err(|_| {
            let detail = format!("`{cursor}` is no cursor; use `next` of the page before");
            Problem::new(Kind::BadRequest, detail)
        })
    });
    parsed.transpose()
}

/// How long a request that says so may wait for something to happen. It ends before the request
/// itself would.
fn wait(app: &App, field: &str, ms: u64) -> Result<Duration, Problem> {
    if ms > WAIT_MAX_MS {
        return Err(bad(format!(
            "`{field}` is {ms}, and may be {WAIT_MAX_MS}; ask again for more"
        )));
    }
    Ok(Duration::from_millis(ms).min(app.limits.request * 4 / 5))
}

fn bad(detail: impl Into<String>) -> Problem {
    Problem::new(Kind::BadRequest, detail)
}

fn missing(detail: impl Into<String>) -> Problem {
    Problem::new(Kind::NotFound, detail)
}

/// The document.
pub(crate) async fn document(
    State(_): State<App>,
    Extension(document): Extension<std::sync::Arc<Json>>,
) -> Answer<Json> {
    Answer((*document).clone())
}
