//! What a request is answered with when it cannot be done: problem details as RFC 9457 has them.

use std::time::Duration;

use axum::{
    http::{HeaderValue, StatusCode, header},
    response::{IntoResponse, Response},
};
use everstep::{BulkError, ClientError};
use schemars::JsonSchema;
use serde::Serialize;

use crate::shapes::run::BulkDone;

/// A problem, as the body of an answer.
#[derive(Debug, Serialize, JsonSchema)]
#[schemars(rename = "Problem")]
pub(crate) struct Problem {
    /// What kind of problem it is: `urn:everstep:problem:` and a word.
    #[serde(rename = "type")]
    kind: String,
    /// The kind in words, the same for all of one kind.
    title: &'static str,
    /// The status of the answer.
    status: u16,
    /// What happened, to what, and what to do.
    detail: String,
    /// The run that it is about, if it is about one.
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<String>,
    /// What to do, if it can be said apart.
    #[serde(skip_serializing_if = "Option::is_none")]
    hint: Option<&'static str>,
    /// What was done until it stopped, if it is about many runs: `next` is the `cursor` to go on with.
    #[serde(skip_serializing_if = "Option::is_none")]
    report: Option<Box<BulkDone>>,
    /// After how many seconds the same request may succeed, for the header `Retry-After`.
    #[serde(skip)]
    retry_after_s: Option<u16>,
}

/// What became of a request, for the audit log: a word for the kind of a problem, or `done`, and
/// perhaps more after a colon.
#[derive(Clone, Debug)]
pub(crate) struct Outcome(pub(crate) String);

impl Outcome {
    /// Done, and more to be said about it.
    pub(crate) fn with(more: impl std::fmt::Display) -> Outcome {
        Outcome(format!("done: {more}"))
    }
}

/// The kinds of problems.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    BadRequest,
    Unauthorized,
    Forbidden,
    Csrf,
    BadHost,
    NotFound,
    MethodNotAllowed,
    Conflict,
    Gone,
    TooLarge,
    MediaType,
    Unprocessable,
    TooManyRequests,
    /// All connections of the server are taken.
    Busy,
    /// The body of a request did not come in time.
    SlowBody,
    Timeout,
    Unavailable,
    Internal,
}

impl Kind {
    fn parts(self) -> (StatusCode, &'static str, &'static str) {
        use StatusCode as S;
        match self {
            Kind::BadRequest => (S::BAD_REQUEST, "bad_request", "The request is not valid"),
            Kind::Unauthorized => (S::UNAUTHORIZED, "unauthorized", "A token is needed"),
            Kind::Forbidden => (S::FORBIDDEN, "forbidden", "The token does not allow this"),
            Kind::Csrf => (S::FORBIDDEN, "csrf", "The request did not come from the dashboard"),
            Kind::BadHost => (S::MISDIRECTED_REQUEST, "bad_host", "The host is not this server"),
            Kind::NotFound => (S::NOT_FOUND, "not_found", "There is no such thing"),
            Kind::MethodNotAllowed => {
                (S::METHOD_NOT_ALLOWED, "method_not_allowed", "This cannot be done here")
            }
            Kind::Conflict => (S::CONFLICT, "conflict", "It is not in a state for this"),
            Kind::Gone => (S::GONE, "gone", "It is there no more"),
            Kind::TooLarge => (S::PAYLOAD_TOO_LARGE, "payload_too_large", "It is too large"),
            Kind::MediaType => {
                (S::UNSUPPORTED_MEDIA_TYPE, "media_type", "The body is not said to be JSON")
            }
            Kind::Unprocessable => (
                S::UNPROCESSABLE_ENTITY,
                "unprocessable",
                "The request cannot be carried out as it is",
            ),
            Kind::TooManyRequests => {
                (S::TOO_MANY_REQUESTS, "too_many_requests", "Too many requests")
            }
            Kind::Busy => {
                (S::SERVICE_UNAVAILABLE, "busy", "All connections of the server are taken")
            }
            Kind::SlowBody => (S::REQUEST_TIMEOUT, "timeout", "The request did not come in time"),
            Kind::Timeout => (S::GATEWAY_TIMEOUT, "timeout", "It took too long"),
            Kind::Unavailable => (S::SERVICE_UNAVAILABLE, "unavailable", "The store is away"),
            Kind::Internal => (S::INTERNAL_SERVER_ERROR, "internal", "Something is broken"),
        }
    }
}

impl Problem {
    pub(crate) fn new(kind: Kind, detail: impl Into<String>) -> Problem {
        let (status, word, title) = kind.parts();
        Problem {
            kind: format!("urn:everstep:problem:{word}"),
            title,
            status: status.as_u16(),
            detail: detail.into(),
            run: None,
            hint: None,
            report: None,
            retry_after_s: None,
        }
    }

    /// Says after how long the same request may succeed.
    pub(crate) fn retry_after(mut self, wait: Duration) -> Problem {
        self.retry_after_s = Some(u16::try_from(wait.as_secs()).unwrap_or(u16::MAX));
        self
    }

    /// Says which run it is about.
    pub(crate) fn about(mut self, run: impl ToString) -> Problem {
        self.run = Some(run.to_string());
        self
    }

    /// Whether it is of this kind.
    pub(crate) fn is(&self, kind: Kind) -> bool {
        let (status, word, _) = kind.parts();
        self.status == status.as_u16() && self.word() == word
    }

    /// The kind of what is not the fault of whoever asks.
    pub(crate) fn kind_if_broken(&self) -> Kind {
        match self.is(Kind::Unavailable) {
            true => Kind::Unavailable,
            false => Kind::Internal,
        }
    }

    /// The word of its kind.
    pub(crate) fn word(&self) -> String {
        let word = self.kind.rsplit(':').next();
        word.unwrap_or_default().to_owned()
    }

    pub(crate) fn status(&self) -> StatusCode {
        StatusCode::from_u16(self.status).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR)
    }
}

impl IntoResponse for Problem {
    fn into_response(self) -> Response {
        // Texts and numbers have no state that could not be written.
        let body = serde_json::to_vec(&self).unwrap_or_default();
        let kind = [(header::CONTENT_TYPE, "application/problem+json")];
        let mut response = (self.status(), kind, body).into_response();
        let outcome = match &self.report {
            Some(report) => format!("{}: {}", self.word(), report.in_words()),
            None => self.word(),
        };
        response.extensions_mut().insert(Outcome(outcome));
        if let Some(seconds) = self.retry_after_s {
            let seconds = HeaderValue::from(seconds);
            response.headers_mut().insert(header::RETRY_AFTER, seconds);
        }
        response
    }
}

impl From<ClientError> for Problem {
    fn from(error: ClientError) -> Problem {
        use ClientError as E;
        let kind = match &error {
            E::Store(_) | E::Closed => Kind::Unavailable,
            E::UnknownRun { .. }
            | E::UnknownShortId { .. }
            | E::UnknownItem { .. }
            | E::UnknownSchedule { .. } => Kind::NotFound,
            E::AmbiguousId { .. }
            | E::Finished { .. }
            | E::WrongStatus { .. }
            | E::InboxFull { .. }
            | E::TagsFull { .. }
            | E::Taken { .. }
            | E::TokenTaken { .. }
            | E::KeyUsed { .. }
            | E::NoReply { .. } => Kind::Conflict,
            E::OldToken { .. } => Kind::Gone,
            E::TooLarge { .. } => Kind::TooLarge,
            E::Name { .. }
            | E::Encode { .. }
            | E::MalformedToken
            | E::ForeignToken
            | E::Schedule { .. }
            | E::Fork { .. } => Kind::Unprocessable,
            _ => Kind::Internal,
        };
        if kind == Kind::Unavailable || kind == Kind::Internal {
            tracing::warn!(%error, cause = ?std::error::Error::source(&error), "a request failed");
        }
        let mut problem = Problem::new(kind, full(&error));
        problem.run = run_of(&error);
        if let E::WrongStatus { hint, .. } = error {
            problem.hint = Some(hint);
        }
        problem
    }
}

impl From<BulkError> for Problem {
    fn from(error: BulkError) -> Problem {
        let BulkError { report, source } = error;
        let report = BulkDone::from(*report);
        let mut problem = Problem::from(source);
        let on = match &report.next {
            Some(next) => format!("send it again with `cursor` as `{next}` to go on"),
            None => "send it again".to_owned(),
        };
        let text = format!("; it stopped after {} runs; {on}", report.met);
        problem.detail.push_str(&text);
        problem.report = Some(Box::new(report));
        problem
    }
}

/// The run that an error is about.
fn run_of(error: &ClientError) -> Option<String> {
    use ClientError as E;
    match error {
        E::UnknownRun { run }
        | E::Finished { run, .. }
        | E::InboxFull { run, .. }
        | E::NoReply { run }
        | E::WrongStatus { run, .. }
        | E::OldToken { run, .. }
        | E::Taken { run, .. } => Some(run.clone()),
        E::KeyUsed { run, .. } | E::Fork { run, .. } | E::TagsFull { run, .. } => {
            Some(run.to_string())
        }
        _ => None,
    }
}

/// An error with its causes.
fn full(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

#[cfg(test)]
mod tests {
    use everstep::{BulkReport, RunId};

    use super::*;

    #[test]
    fn what_stopped_half_way_says_what_was_done_and_where_to_go_on() {
        let run: RunId = "01a1e31b-1d59-7590-8241-3c1d14f48fdd".parse().expect("an id");
        let mut report = BulkReport::default();
        (report.met, report.done, report.next) = (500, 498, Some(run));
        let error = BulkError { report: Box::new(report), source: ClientError::Closed };
        let problem = Problem::from(error);
        let said = serde_json::to_value(&problem).expect("JSON");
        assert_eq!(said["status"], 503);
        assert_eq!((&said["report"]["done"], &said["report"]["met"]), (&498.into(), &500.into()));
        assert_eq!(said["report"]["next"], run.to_string());
        let detail = said["detail"].as_str().expect("a text");
        assert!(detail.contains(&run.to_string()) && !detail.contains(".after("), "{detail}");
        let response = problem.into_response();
        let outcome = response.extensions().get::<Outcome>().expect("an outcome");
        assert_eq!(outcome.0, "unavailable: 500 met, 498 done");
    }
}
