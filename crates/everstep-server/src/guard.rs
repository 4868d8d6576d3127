//! The way of a request to its operation: who makes it, whether they may, what it says, and what is
//! written of it.
//!
//! Always true:
//! - What changes something is in the audit log before it is done, and again with its outcome. What
//!   nobody who is known has asked for is not: else whoever reaches the server could fill the store.
//! - A change that was begun is carried out, and its outcome noted, whether or not somebody still
//!   waits for the answer.
//! - Nothing is read of the body of what is refused.

use std::{
    sync::{Arc, OnceLock},
    time::{Duration, Instant},
};

use axum::{
    body::{Body, Bytes, HttpBody},
    extract::Request,
    http::{HeaderMap, HeaderValue, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use everstep::{Role, RunId};
use http_body_util::{BodyExt, LengthLimitError, Limited};
use subtle::ConstantTimeEq;
use tracing::Instrument as _;

use crate::{
    App, audit, extract, once,
    problem::{Kind, Outcome, Problem},
    security::{CSRF, Who},
    table::Verb,
};

/// How many bytes are read of what somebody says who is nobody yet: enough for a token.
const UNKNOWN_BODY_MAX: usize = 4 << 10;

/// An operation, as far as it has to be known here.
#[derive(Clone)]
pub(crate) struct Guarded {
    pub(crate) verb: Verb,
    /// Its path, with names in braces.
    pub(crate) path: &'static str,
    pub(crate) name: &'static str,
    /// What it needs, if it needs anything.
    pub(crate) role: Option<Role>,
    /// What it takes. It is said after the operation was added; what is never said is not checked.
    pub(crate) declared: Arc<OnceLock<Declared>>,
}

/// What an operation takes, besides the names in its path.
#[derive(Debug, Default)]
pub(crate) struct Declared {
    /// The names that may stand in the query.
    pub(crate) query: Vec<String>,
    pub(crate) has_body: bool,
    /// Whether it takes an `idempotency-key`.
    pub(crate) is_once: bool,
    /// Whether it answers with events for as long as its client listens.
    pub(crate) is_stream: bool,
}

impl Guarded {
    fn is_stream(&self) -> bool {
        self.declared.get().is_some_and(|it| it.is_stream)
    }

    /// Whether it changes something that is not the caller's own session.
    fn is_change(&self) -> bool {
        self.role.is_some() && self.verb != Verb::Get
    }
}

impl Declared {
    /// Whether a request says nothing that would be passed over.
    fn check(&self, verb: Verb, parts: &Parts, body: &Sent) -> Result<(), Problem> {
        let bad = |detail: String| Err(Problem::new(Kind::BadRequest, detail));
        let query = parts.uri.query().unwrap_or_default();
        let pairs: Vec<(String, String)> = match serde_html_form::from_str(query) {
            Ok(pairs) => pairs,
            Err(error) => return bad(format!("the query: {error}")),
        };
        if let Some((name, _)) = pairs.iter().find(|(name, _)| !self.query.contains(name)) {
            let known = match self.query.as_slice() {
                [] => "none".to_owned(),
                names => format!("`{}`", names.join("`, `")),
            };
            return bad(format!("the query: unknown field `{name}`; this operation takes {known}"));
        }
        if !self.has_body && !body.is_empty() {
            return bad("this operation takes no body".to_owned());
        }
        if verb != Verb::Get && !self.is_once && parts.headers.contains_key(once::HEADER) {
            return bad(format!(
                "this operation takes no `{}`, and would not be done once because of it; leave it \
                 out",
                once::HEADER
            ));
        }
        Ok(())
    }
}

/// What was sent as a body.
enum Sent {
    Read(Bytes),
    /// Something that was not read.
    Unread,
}

impl Sent {
    /// Whether it says nothing. An empty object says nothing, either.
    fn is_empty(&self) -> bool {
        match self {
            Sent::Read(bytes) => matches!(bytes.trim_ascii(), b"" | b"{}"),
            Sent::Unread => false,
        }
    }

    fn bytes(&self) -> &[u8] {
        match self {
            Sent::Read(bytes) => bytes,
            Sent::Unread => &[],
        }
    }
}

/// Until when a request is answered.
#[derive(Clone, Copy)]
struct Deadline {
    at: Instant,
    limit: Duration,
}

impl Deadline {
    fn after(limit: Duration) -> Deadline {
        let at = Instant::now() + limit;
        Deadline { at, limit }
    }

    /// What it gives, if it does so in time.
    async fn covers<T>(self, work: impl Future<Output = T>) -> Result<T, Problem> {
        let answer = tokio::time::timeout_at(self.at.into(), work).await;
        answer.map_err(|_| {
            let detail = format!(
                "no answer after {} s; what was to be changed may have been, or may still be",
                self.limit.as_secs_f64()
            );
            Problem::new(Kind::Timeout, detail)
        })
    }
}

/// Lets a request through to its operation, if it may.
pub(crate) async fn guarded(
    app: App,
    operation: Guarded,
    request: Request,
    next: Next,
) -> Response {
    let answer = admit(app, operation, request, next).await;
    answer.unwrap_or_else(IntoResponse::into_response)
}

async fn admit(
    app: App,
    operation: Guarded,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let deadline = Deadline::after(app.limits.request);
    let (parts, body) = request.into_parts();
    let client = app.proxies.client(&parts.extensions, &parts.headers);
    let mut held = app.usage.of_client(client, operation.is_stream())?;
    let who = deadline.covers(app.security.who(&parts.headers)).await??;
    let refused = admitted(&app, &operation, &parts.headers, who.as_ref()).err();
    if let Some(problem) = refused {
        return Err(noted(&app, &operation, &parts, who, problem, deadline).await);
    }
    if let Some(token) = who.as_ref().and_then(|who| who.name.as_deref()) {
        let of_token = app.usage.of_token(token, operation.is_stream())?;
        held.extend(of_token);
    }
    let sent = received(&app, &operation, body, deadline).await?;
    let (is_read, name) = (operation.verb == Verb::Get, operation.name);
    let work = carried_out(app, operation, (parts, sent, who), deadline, next);
    let response = match is_read {
        true => deadline.covers(work).await??,
        // Apart from the connection: whoever hangs up must not leave a change half done.
        false => deadline.covers(apart(name, work)).await??,
    };
    Ok(response.map(|body| Body::new(held.until_sent(body))))
}

async fn apart(
    name: &'static str,
    work: impl Future<Output = Result<Response, Problem>> + Send + 'static,
) -> Result<Response, Problem> {
    // In the trace of the request all the same.
    let work = work.instrument(tracing::Span::current());
    tokio::spawn(work).await.unwrap_or_else(|error| {
        tracing::error!(%error, operation = name, "an operation broke off");
        let detail = "the operation broke off, and may have been done in part; the log says why";
        Err(Problem::new(Kind::Internal, detail))
    })
}

async fn carried_out(
    app: App,
    operation: Guarded,
    (parts, sent, who): (Parts, Sent, Option<Who>),
    deadline: Deadline,
    next: Next,
) -> Result<Response, Problem> {
    let begun = match &who {
        Some(who) if operation.is_change() && !audit::is_dry_run(operation.name, sent.bytes()) => {
            let begun = begin(&app, who, &operation, &parts, sent.bytes());
            Some(deadline.covers(begun).await??)
        }
        _ => None,
    };
    let response = answered(&app, &operation, (parts, sent, who), deadline, next).await;
    let response = response.unwrap_or_else(IntoResponse::into_response);
    if let Some(begun) = begun {
        let outcome = response.extensions().get::<Outcome>();
        let outcome = outcome.map_or("done", |outcome| outcome.0.as_str());
        app.audit.end(begun, outcome).await;
    }
    Ok(response)
}

async fn begin(
    app: &App,
    who: &Who,
    operation: &Guarded,
    parts: &Parts,
    body: &[u8],
) -> Result<audit::Begun, Problem> {
    let mut target = audit::target(operation.name, operation.path, parts.uri.path());
    if operation.path.starts_with("/runs/{run}") {
        target = with_whole_id(app, target).await;
    }
    let detail = audit::detail(operation.name, parts.uri.query(), body);
    app.audit.begin(who, operation.name, target, detail).await
}

/// The target of a change with the whole id of its run, where the request has only a part of the id: the
/// part may be ambiguous when the audit log is read.
async fn with_whole_id(app: &App, target: String) -> String {
    let (run, rest) = target.split_at(target.find('/').unwrap_or(target.len()));
    if run.parse::<RunId>().is_ok() {
        return target;
    }
    match extract::run_id(app, run).await {
        Ok(run) => format!("{run}{rest}"),
        // The operation itself says why.
        Err(_) => target,
    }
}

/// Writes down what was refused: in the audit log if somebody has tried it who is known, and whose
/// role is not enough.
async fn noted(
    app: &App,
    operation: &Guarded,
    parts: &Parts,
    who: Option<Who>,
    problem: Problem,
    deadline: Deadline,
) -> Problem {
    let known = who.filter(|who| who.name.is_some() && problem.is(Kind::Forbidden));
    let Some(who) = known.filter(|_| operation.is_change()) else {
        if operation.is_change() && !problem.is(Kind::Unauthorized) {
            let (operation, outcome) = (operation.name, problem.word());
            tracing::warn!(operation, outcome, "a change was refused");
        }
        return problem;
    };
    let noted = async {
        let begun = begin(app, &who, operation, parts, &[]).await?;
        app.audit.end(begun, &problem.word()).await;
        Ok(())
    };
    match deadline.covers(noted).await {
        Ok(Ok(())) => problem,
        Ok(Err(unnoted)) | Err(unnoted) => unnoted,
    }
}

/// The answer of the operation itself.
async fn answered(
    app: &App,
    operation: &Guarded,
    (parts, sent, who): (Parts, Sent, Option<Who>),
    deadline: Deadline,
    next: Next,
) -> Result<Response, Problem> {
    if let Some(declared) = operation.declared.get() {
        declared.check(operation.verb, &parts, &sent)?;
    }
    let reserved = match operation.verb {
        Verb::Post => {
            let reserved = once::reserved(app, &parts, sent.bytes());
            deadline.covers(reserved).await??
        }
        _ => None,
    };
    let body = match sent {
        Sent::Read(bytes) => Body::from(bytes),
        Sent::Unread => Body::empty(),
    };
    let mut request = Request::from_parts(parts, body);
    if let Some(who) = who {
        request.extensions_mut().insert(who);
    }
    let response = next.run(request).await;
    if let Some(reserved) = reserved
        && response.status().is_success()
    {
        reserved.keep();
    }
    Ok(response)
}

/// The body of a request, if it is not too large, and all of it comes in time.
async fn received(
    app: &App,
    operation: &Guarded,
    body: Body,
    deadline: Deadline,
) -> Result<Sent, Problem> {
    if operation.verb == Verb::Get {
        return Ok(match body.is_end_stream() {
            true => Sent::Read(Bytes::new()),
            false => Sent::Unread,
        });
    }
    let limit = match operation.role {
        Some(_) => app.limits.body,
        None => app.limits.body.min(UNKNOWN_BODY_MAX),
    };
    // The announced length is enough to refuse: the rest of the body may never come.
    let announced = body.size_hint().lower();
    if announced > limit as u64 {
        let detail = format!("the body has {announced} bytes, and the limit is {limit} bytes");
        return Err(Problem::new(Kind::TooLarge, detail));
    }
    let read = Limited::new(body, limit).collect();
    let Ok(read) = deadline.covers(read).await else {
        let detail = format!(
            "the body was not there after {} s, and nothing was done",
            deadline.limit.as_secs_f64()
        );
        return Err(Problem::new(Kind::SlowBody, detail));
    };
    let read = read.map_err(|error| match error.is::<LengthLimitError>() {
        true => {
            let detail = format!("the body has more than {limit} bytes, which is the limit");
            Problem::new(Kind::TooLarge, detail)
        }
        false => {
            let detail = format!("the body could not be read to its end: {error}");
            Problem::new(Kind::BadRequest, detail)
        }
    });
    Ok(Sent::Read(read?.to_bytes()))
}

/// Whether a request may be made.
fn admitted(
    app: &App,
    operation: &Guarded,
    headers: &HeaderMap,
    who: Option<&Who>,
) -> Result<(), Problem> {
    let is_read = operation.verb == Verb::Get;
    if !is_read {
        app.security.check_origin(headers)?;
    }
    let Some(role) = operation.role else {
        return Ok(());
    };
    let Some(who) = who else {
        let detail = "send a token as `Authorization: Bearer ..`, or log in";
        return Err(Problem::new(Kind::Unauthorized, detail));
    };
    if who.name.is_none() {
        app.security.check_direct(headers)?;
    }
    if who.role < role {
        let detail = format!("this needs the role `{role}`, and this token has `{}`", who.role);
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    if !is_read && let Some(wanted) = &who.csrf {
        let sent = headers.get(CSRF).map(HeaderValue::as_bytes).unwrap_or(&[]);
        if !bool::from(sent.ct_eq(wanted.as_bytes())) {
            let detail = "send the `csrf` of the session as `x-everstep-csrf`";
            return Err(Problem::new(Kind::Csrf, detail));
        }
    }
    Ok(())
}
