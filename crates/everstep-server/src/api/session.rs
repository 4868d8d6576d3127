//! Who is asking.

use axum::{
    Json as Answer,
    extract::{FromRequest, Request, State},
    http::{HeaderMap, StatusCode, header},
    response::IntoResponse,
};

use super::Answered;
use crate::{
    App,
    extract::Body,
    problem::Problem,
    security::{self, Who},
    shapes::around::{Login, Session},
};

fn session(app: &App, who: Option<Who>) -> Session {
    let (name, role, csrf) = match who {
        Some(who) => (who.name, Some(who.role.word()), who.csrf),
        None => (None, None, None),
    };
    Session {
        name,
        role,
        csrf,
        login_required: app.security.needs_token(),
        store: app.client.store_name(),
        version: env!("CARGO_PKG_VERSION"),
    }
}

/// Who is asking, and what they may do.
pub(crate) async fn get(State(app): State<App>, headers: HeaderMap) -> Answered<Session> {
    let who = app.security.who(&headers);
    Ok(Answer(session(&app, who)))
}

/// Logs in with a token.
pub(crate) async fn log_in(
    State(app): State<App>,
    request: Request,
) -> Result<impl IntoResponse, Problem> {
    let from = security::peer(request.extensions());
    security::check_origin(request.headers())?;
    let is_secure = request
        .headers()
        .get("x-forwarded-proto")
        .is_some_and(|it| it == "https");
    let Body(Login { token }) = Body::from_request(request, &app).await?;
    let logged_in = app.security.log_in(&token, from, is_secure);
    let status = match &logged_in {
        Ok(_) => StatusCode::OK,
        Err(problem) => problem.status(),
    };
    let name = logged_in
        .as_ref()
        .ok()
        .and_then(|(_, who)| who.name.clone());
    app.audit.note_login(name.as_deref(), from, status);
    let (cookie, who) = logged_in?;
    let session = Answer(session(&app, Some(who)));
    Ok(([(header::SET_COOKIE, cookie)], session))
}

/// Logs out.
pub(crate) async fn log_out(
    State(app): State<App>,
    headers: HeaderMap,
) -> Result<impl IntoResponse, Problem> {
    security::check_origin(&headers)?;
    let cookie = app.security.log_out(&headers);
    Ok((StatusCode::NO_CONTENT, [(header::SET_COOKIE, cookie)]))
}
