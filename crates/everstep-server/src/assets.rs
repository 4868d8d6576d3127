//! The dashboard: files that are part of the binary.
//!
//! Each is served under its own name, with its hash as a tag: a browser asks every time, and is told in
//! a few bytes that nothing has changed. All addresses of pages give the same page, which finds its way
//! by itself.

use axum::{
    Router,
    extract::Path,
    http::{HeaderMap, HeaderValue, Method, StatusCode, header},
    response::{IntoResponse, Response},
    routing::get,
};
use sha2::{Digest, Sha256};

use crate::{
    App,
    problem::{Kind, Problem},
};

include!(concat!(env!("OUT_DIR"), "/assets.rs"));

/// The addresses of pages.
const PAGES: &[&str] = &[
    "/",
    "/runs",
    "/runs/{run}",
    "/schedules",
    "/queues",
    "/queues/{queue}",
    "/events",
    "/limits",
    "/dead-letters",
    "/cluster",
    "/charts",
    "/audit",
    "/login",
];

pub(crate) fn routes() -> Router<App> {
    let mut router = Router::new().route("/assets/{name}", get(asset));
    for page in PAGES {
        router = router.route(page, get(index));
    }
    router
}

async fn index(headers: HeaderMap) -> Response {
    serve("index.html", &headers)
}

async fn asset(Path(name): Path<String>, headers: HeaderMap) -> Response {
    serve(&name, &headers)
}

/// The page for an address that no page has, which says so; for browsers alone, as others are told by
/// the API.
pub(crate) fn lost(method: &Method, path: &str, headers: &HeaderMap) -> Option<Response> {
    let accepted = headers.get(header::ACCEPT).map(HeaderValue::as_bytes);
    let is_browser = accepted.is_some_and(|kinds| kinds.starts_with(b"text/html"));
    let is_page = !["/api/", "/assets/"].iter().any(|it| path.starts_with(it));
    if method != Method::GET || !is_browser || !is_page {
        return None;
    }
    let mut response = serve("index.html", &HeaderMap::new());
    *response.status_mut() = StatusCode::NOT_FOUND;
    Some(response)
}

fn serve(name: &str, headers: &HeaderMap) -> Response {
    let Some((_, bytes)) = ASSETS.iter().find(|(known, _)| *known == name) else {
        let detail = format!("there is no file `{name}`");
        return Problem::new(Kind::NotFound, detail).into_response();
    };
    let hash = Sha256::digest(bytes);
    let tag: String = hash.iter().take(12).map(|byte| format!("{byte:02x}")).collect();
    let tag = format!("\"{tag}\"");
    let known = headers.get(header::IF_NONE_MATCH);
    let is_known = known.is_some_and(|it| it.as_bytes() == tag.as_bytes());
    let mut response = match is_known {
        true => StatusCode::NOT_MODIFIED.into_response(),
        false => (*bytes).into_response(),
    };
    let answer = response.headers_mut();
    answer.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind(name)));
    answer.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-cache"));
    if let Ok(tag) = HeaderValue::try_from(tag) {
        answer.insert(header::ETAG, tag);
    }
    response
}

fn kind(name: &str) -> &'static str {
    match name.rsplit_once('.').map(|(_, end)| end) {
        Some("html") => "text/html; charset=utf-8",
        Some("js") => "text/javascript; charset=utf-8",
        Some("css") => "text/css; charset=utf-8",
        Some("svg") => "image/svg+xml",
        Some("json" | "webmanifest") => "application/json",
        Some("png") => "image/png",
        _ => "application/octet-stream",
    }
}
