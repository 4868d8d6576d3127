//! What a request says, taken apart: a problem that names the field where it is wrong.

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{header, request::Parts},
};
use everstep::{RunId, ShortId};
use serde::de::DeserializeOwned;

use crate::{
    App,
    problem::{Kind, Problem},
};

/// The query of the address.
pub(crate) struct Query<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Sync> FromRequestParts<S> for Query<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        let query = parts.uri.query().unwrap_or_default();
        serde_html_form::from_str(query)
            .map(Query)
            .map_err(|error| Problem::new(Kind::BadRequest, format!("the query: {error}")))
    }
}

/// The body, which is JSON. An empty one is an empty object.
pub(crate) struct Body<T>(pub(crate) T);

impl<T: DeserializeOwned, S: Send + Sync> FromRequest<S> for Body<T> {
    type Rejection = Problem;

    async fn from_request(request: Request, state: &S) -> Result<Self, Problem> {
        let said = request.headers().get(header::CONTENT_TYPE).cloned();
        let bytes = Bytes::from_request(request, state).await.map_err(|error| {
            let kind = match error.status() {
                axum::http::StatusCode::PAYLOAD_TOO_LARGE => Kind::TooLarge,
                _ => Kind::BadRequest,
            };
            Problem::new(kind, format!("the body: {error}"))
        })?;
        let is_json = said.as_ref().and_then(|kind| kind.to_str().ok());
        let is_json = is_json.is_some_and(|kind| {
            let kind = kind.split(';').next().unwrap_or_default().trim();
            kind.eq_ignore_ascii_case("application/json")
        });
        let is_absent = said.is_none() && bytes.is_empty();
        if !is_json && !is_absent {
            let detail = "send the body as JSON, with `content-type: application/json`";
            return Err(Problem::new(Kind::MediaType, detail));
        }
        let text: &[u8] = if bytes.is_empty() { b"{}" } else { &bytes };
        everstep::check_json_numbers(text)
            .map_err(|error| Problem::new(Kind::BadRequest, format!("the body: {error}")))?;
        serde_json::from_slice(text)
            .map(Body)
            .map_err(|error| Problem::new(Kind::BadRequest, format!("the body: {error}")))
    }
}

/// The names in the path.
pub(crate) struct Names<T>(pub(crate) T);

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for Names<T> {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Problem> {
        Path::<T>::from_request_parts(parts, state)
            .await
            .map(|Path(names)| Names(names))
            .map_err(|error| Problem::new(Kind::BadRequest, format!("the path: {error}")))
    }
}

/// The run with this id, or whose id begins or ends with these digits. A whole id is not looked up.
pub(crate) async fn run_id(app: &App, text: &str) -> Result<RunId, Problem> {
    if let Ok(run) = text.parse() {
        return Ok(run);
    }
    let short = text.parse::<ShortId>();
    let short = short.map_err(|error| Problem::new(Kind::BadRequest, error.to_string()))?;
    Ok(app.client.run_by_short_id(&short).await?)
}
