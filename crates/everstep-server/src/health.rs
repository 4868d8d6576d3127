//! Whether the process is there (`/healthz`), and whether it can do its work (`/readyz`).
//!
//! Both are open to everybody, as those who ask are machines without a token: so they say what is
//! wrong, and leave the words of the store (which name hosts and files) to the log.

use std::time::{Duration, Instant};

use axum::{
    Router,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
    routing::get,
};

use tokio::sync::Mutex;

use crate::App;

/// How long the store may take to answer.
const LIMIT: Duration = Duration::from_secs(5);

/// For how long its answer is taken to be what it was.
const KNOWN_FOR: Duration = Duration::from_secs(1);

pub(crate) fn routes() -> Router<App> {
    Router::new().route("/healthz", get(healthy)).route("/readyz", get(ready))
}

/// The process is there.
async fn healthy() -> &'static str {
    "ok\n"
}

/// The store answers, and the engine, if there is one, has its lease.
async fn ready(State(app): State<App>) -> Response {
    match check(&app).await {
        Ok(()) => "ok\n".into_response(),
        Err(why) => {
            let text = format!("not ready: {why}\n");
            (StatusCode::SERVICE_UNAVAILABLE, text).into_response()
        }
    }
}

/// What the store answered, and when. Whoever may ask could else have it busy.
#[derive(Default)]
pub(crate) struct Kept(Mutex<Option<(Instant, Result<(), String>)>>);

async fn check(app: &App) -> Result<(), String> {
    if let Some(engine) = app.client.engine() {
        engine.ready().map_err(|why| {
            tracing::warn!(error = %why, cause = ?std::error::Error::source(&why), "not ready");
            why.to_string()
        })?;
    }
    let mut kept = app.ready.0.lock().await;
    if let Some((at, answer)) = &*kept
        && at.elapsed() < KNOWN_FOR
    {
        return answer.clone();
    }
    let answer = ask(app).await;
    *kept = Some((Instant::now(), answer.clone()));
    answer
}

/// Whether the store answers.
async fn ask(app: &App) -> Result<(), String> {
    match tokio::time::timeout(LIMIT, app.client.cluster()).await {
        Ok(Ok(_)) => Ok(()),
        Ok(Err(error)) => {
            tracing::warn!(%error, cause = ?std::error::Error::source(&error), "not ready");
            Err("the store cannot be read; the log says why".to_owned())
        }
        Err(_) => Err(format!("the store has not answered within {} s", LIMIT.as_secs())),
    }
}
