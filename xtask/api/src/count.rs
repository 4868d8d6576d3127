//! What the server has answered, by operation.

use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{MatchedPath, Request},
    http::header,
    middleware::{self, Next},
    response::Response,
};
use futures_util::StreamExt;
use serde_json::Value as Json;

/// How long what is told while it happens goes on. Whoever fuzzes reads every answer to its end.
const TOLD_FOR: Duration = Duration::from_millis(100);

/// How often each operation has answered with which status.
#[derive(Clone, Default)]
pub(crate) struct Counts(Arc<Mutex<BTreeMap<(String, String), Answers>>>);

/// The answers of an operation.
#[derive(Clone, Debug, Default)]
struct Answers {
    by_status: BTreeMap<u16, u64>,
    /// What the last refusals with each status have said.
    said: BTreeMap<u16, String>,
}

impl Counts {
    /// The app, with what it answers counted.
    pub(crate) fn counting(&self, app: Router) -> Router {
        let counts = self.clone();
        // A layer of the routes, where it is known which of them was taken.
        app.route_layer(middleware::from_fn(move |request: Request, next: Next| {
            let counts = counts.clone();
            async move { counts.counted(request, next).await }
        }))
    }

    async fn counted(&self, request: Request, next: Next) -> Response {
        let path = request.extensions().get::<MatchedPath>();
        let path = path.map(|path| path.as_str().to_owned());
        let verb = request.method().as_str().to_lowercase();
        let (response, said) = heard(cut(next.run(request).await)).await;
        if let Some(path) = path {
            let status = response.status().as_u16();
            let mut counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
            let answers = counts.entry((path, verb)).or_default();
            *answers.by_status.entry(status).or_default() += 1;
            answers.said.extend(said.map(|said| (status, said)));
        }
        response
    }

    fn of(&self, path: &str, verb: &str) -> Answers {
        let counts = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (path.to_owned(), verb.to_owned());
        counts.get(&key).cloned().unwrap_or_default()
    }

    /// Operations that never succeeded, or failed by themselves.
    pub(crate) fn wrong(&self, document: &Json) -> Vec<String> {
        let mut wrong = Vec::new();
        for (path, verb) in operations(document) {
            let answers = self.of(&path, &verb);
            let Answers { by_status, said } = &answers;
            if !by_status.keys().any(|status| (200..300).contains(status)) {
                wrong.push(format!("{verb} {path} has never succeeded: {by_status:?}; {said:#?}"));
            }
            for (status, count) in by_status.range(500..) {
                let said = said.get(status);
                wrong.push(format!("{verb} {path} has answered {status} {count} times: {said:?}"));
            }
        }
        wrong
    }

    /// All of it in a line.
    pub(crate) fn line(&self, document: &Json) -> String {
        let (mut operations_count, mut requests, mut succeeded) = (0, 0, 0);
        for (path, verb) in operations(document) {
            operations_count += 1;
            for (status, count) in self.of(&path, &verb).by_status {
                requests += count;
                if status < 300 {
                    succeeded += count;
                }
            }
        }
        format!("{operations_count} operations, {requests} requests, {succeeded} of them done")
    }
}

/// Every operation of the document: its path and its verb.
fn operations(document: &Json) -> Vec<(String, String)> {
    let paths = document["paths"].as_object().into_iter().flatten();
    let all = paths.flat_map(|(path, verbs)| {
        let verbs = verbs.as_object().into_iter().flatten();
        verbs.map(|(verb, _)| (path.clone(), verb.clone()))
    });
    all.collect()
}

/// What a refusal says.
async fn heard(response: Response) -> (Response, Option<String>) {
    if response.status().as_u16() < 400 {
        return (response, None);
    }
    let (parts, body) = response.into_parts();
    let body = axum::body::to_bytes(body, usize::MAX).await;
    let body = body.unwrap_or_default();
    let said = String::from_utf8_lossy(&body).into_owned();
    (Response::from_parts(parts, Body::from(body)), Some(said))
}

/// An answer that goes on, but for a moment only.
fn cut(response: Response) -> Response {
    let kind = response.headers().get(header::CONTENT_TYPE);
    if kind.is_none_or(|kind| kind != "text/event-stream") {
        return response;
    }
    let (parts, body) = response.into_parts();
    let end = Box::pin(tokio::time::sleep(TOLD_FOR));
    let body = Body::from_stream(body.into_data_stream().take_until(end));
    Response::from_parts(parts, body)
}
