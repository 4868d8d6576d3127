//! The operations, in the order of the document.

use axum::{Extension, Json as Answer, Router, extract::State, routing::get};
use everstep::RunId;
use serde_json::Value as Json;

use crate::{
    App,
    problem::{Kind, Problem},
    table::Table,
};

mod around;
mod events;
mod queues;
mod runs;
mod schedules;
mod session;

/// What an operation gives.
type Answered<T> = Result<Answer<T>, Problem>;

/// The routes of all operations, and the document that says so.
pub(crate) fn routes(app: &App) -> (Router<App>, Json) {
    let mut table = Table::new(app.clone());
    runs::add(&mut table);
    events::add(&mut table);
    schedules::add(&mut table);
    queues::add(&mut table);
    around::add(&mut table);
    table.finish()
}

/// What does not go through the table's guard: whoever is nobody yet must be able to ask.
pub(crate) fn open_routes() -> Router<App> {
    let session = get(session::get)
        .post(session::log_in)
        .delete(session::log_out);
    Router::new().route(&format!("{}/session", crate::table::BASE), session)
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
