//! Who is asking.

use axum::{
    Json as Answer,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};

use everstep::Role;

use super::Answered;
use crate::{
    App,
    extract::Body,
    problem::{Kind, Problem},
    security::{self, Who},
    shapes::session::{Login, Session},
    table::{
        Table,
        Verb::{Delete, Get, Post},
    },
};

/// Whoever is nobody yet must be able to ask: these need no role.
pub(super) fn add(table: &mut Table) {
    let name = ("get_session", "Who is asking, and what they may do");
    table.add(Get, "/session", None::<Role>, name, get).answers::<Session>(200, "Who is asking.");
    let name = ("log_in", "Opens a session with a token");
    table
        .add(Post, "/session", None::<Role>, name, log_in)
        .body::<Login>()
        .problem(401)
        .problem(429)
        .answers::<Session>(200, "The session, and its cookie.");
    let name = ("log_out", "Ends the session");
    table
        .add(Delete, "/session", None::<Role>, name, log_out)
        .answers_nothing(204, "There is none any more.");
}

async fn session(app: &App, who: Option<Who>) -> Answered<Session> {
    let (name, role, csrf) = match who {
        Some(who) => (who.name, Some(who.role), who.csrf),
        None => (None, None, None),
    };
    Ok(Answer(Session {
        name,
        role: role.map(Role::as_str),
        can: role.map(security::acts).unwrap_or_default(),
        csrf,
        login_required: app.security.needs_token().await?,
        // It may name a host or a file, which is for those who may see runs.
        store: role.map_or_else(String::new, |_| app.client.store_name()),
        version: env!("CARGO_PKG_VERSION"),
    }))
}

/// Who is asking, and what they may do.
async fn get(State(app): State<App>, headers: HeaderMap) -> Answered<Session> {
    let who = app.security.who(&headers).await?;
    session(&app, who).await
}

/// Logs in with a token.
async fn log_in(State(app): State<App>, request: Request) -> Result<impl IntoResponse, Problem> {
    let from = app.proxies.client(request.extensions(), request.headers());
    let is_secure = request.headers().get("x-forwarded-proto").is_some_and(|it| it == "https");
    let Body(Login { token }) = Body::from_request(request, &app).await?;
    let logged_in = app.security.log_in(&token, from, is_secure).await;
    let (name, outcome) = match &logged_in {
        Ok((_, who)) => (who.name.as_deref(), "done".to_owned()),
        Err(problem) => (None, problem.word()),
    };
    match &logged_in {
        // Whoever is nobody could fill the store with what was not even looked at.
        Err(problem) if problem.is(Kind::TooManyRequests) => {
            tracing::warn!(?from, "a login was refused: there were too many");
        }
        _ => app.audit.note_login(name, from, &outcome).await,
    }
    let (cookie, who) = logged_in?;
    let session = session(&app, Some(who)).await?;
    Ok(([(header::SET_COOKIE, cookie)], session))
}

/// Logs out.
async fn log_out(State(app): State<App>, headers: HeaderMap) -> impl IntoResponse {
    let cookie = app.security.log_out(&headers);
    (StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)])
}
