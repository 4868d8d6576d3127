//! Who may do what.
//!
//! A request is looked at in this order: its host (so that no name of somebody else's leads here), where
//! it was made (so that no page of somebody else's can change anything), who makes it (a token, or a
//! session that a token has opened), and whether their role allows it. What changes something is
//! written into the audit log before it is done, and again with its outcome, whether it was allowed
//! or not.
//!
//! Never: a token or the id of a session in a log, in a store or compared byte by byte until the first
//! difference.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    body::Bytes,
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName, HeaderValue, header, request::Parts},
    middleware::Next,
    response::{IntoResponse, Response},
};
use everstep::{Client, Role, Timestamp, TokenInfo};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    App, audit, once,
    problem::{Kind, Outcome, Problem},
    table::Verb,
};

/// The cookie of a session.
pub(crate) const COOKIE: &str = "everstep_session";

/// The header that shows that a change was made by the dashboard.
pub(crate) const CSRF: HeaderName = HeaderName::from_static("x-everstep-csrf");

/// How long a session lasts.
const SESSION: Duration = Duration::from_secs(12 * 3_600);

/// For how long the tokens of the store are taken to be what they were.
const KNOWN_FOR: Duration = Duration::from_secs(1);

/// How many sessions there may be. The oldest ends for the next.
const SESSIONS_MAX: usize = 1_000;

/// How often one address may try to log in within [`WINDOW`], and how often all of them together.
const TRIES: u32 = 10;
const TRIES_OF_ALL: u32 = 200;
const WINDOW: Duration = Duration::from_secs(60);

/// The acts that a role is enough for, by the names that the dashboard knows.
pub(crate) fn acts(role: Role) -> Vec<&'static str> {
    let operate = [
        "start",
        "send",
        "cancel",
        "pause",
        "resume",
        "retry",
        "fork",
        "resolve",
        "publish",
        "tags",
        "schedules",
        "queues",
        "dead_letters",
    ];
    let admin = ["delete", "bulk", "move", "evict", "audit", "tokens"];
    let mut acts = Vec::new();
    if role >= Role::Operate {
        acts.extend(operate);
    }
    if role >= Role::Admin {
        acts.extend(admin);
    }
    acts
}

/// A token, of which only the hash is known here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Token {
    name: String,
    role: Role,
    hash: [u8; 32],
}

impl Token {
    /// The token with this text. Make texts of at least 32 random bytes: then nobody can find one by
    /// its hash.
    pub fn new(name: impl Into<String>, role: Role, text: &str) -> Token {
        Token::hashed(name, role, hash(text))
    }

    /// The token whose text has this SHA-256.
    pub fn hashed(name: impl Into<String>, role: Role, hash: [u8; 32]) -> Token {
        let name = name.into();
        Token { name, role, hash }
    }
}

/// The hash under which a token is known.
pub(crate) fn hash(text: &str) -> [u8; 32] {
    Sha256::digest(text.as_bytes()).into()
}

/// Who makes a request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Who {
    pub(crate) name: Option<String>,
    pub(crate) role: Role,
    /// What changes must be sent with, if a cookie says who it is.
    pub(crate) csrf: Option<String>,
}

struct Session {
    token: String,
    /// When the token was made, if it is one of the store's.
    stored: Option<Timestamp>,
    role: Role,
    csrf: String,
    until: Instant,
}

/// What is checked, and against what.
pub(crate) struct Security {
    client: Client,
    /// The tokens that were given to the server.
    tokens: Vec<Token>,
    /// Those of the store, and when they were read.
    stored: Mutex<Option<(Instant, Arc<Vec<TokenInfo>>)>>,
    /// Whether everybody needs a token. Once it is so it stays so: whoever revokes the last one does
    /// not open the server to everybody.
    is_closed: AtomicBool,
    /// Names under which this server is reached, besides addresses and `localhost`.
    hosts: Vec<String>,
    /// Whether only this machine is served.
    loopback_only: bool,
    sessions: Mutex<HashMap<[u8; 32], Session>>,
    tries: Mutex<Tries>,
}

#[derive(Default)]
struct Tries {
    since: Option<Instant>,
    of_all: u32,
    by_address: HashMap<IpAddr, u32>,
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whose a token is.
struct Found {
    name: String,
    role: Role,
    stored: Option<Timestamp>,
}

impl Security {
    pub(crate) fn new(
        client: Client,
        tokens: Vec<Token>,
        hosts: Vec<String>,
        loopback_only: bool,
    ) -> Security {
        Security {
            client,
            is_closed: AtomicBool::new(!tokens.is_empty()),
            tokens,
            stored: Mutex::default(),
            hosts,
            loopback_only,
            sessions: Mutex::default(),
            tries: Mutex::default(),
        }
    }

    /// The tokens of the store, as they were a moment ago.
    async fn stored(&self) -> Result<Arc<Vec<TokenInfo>>, Problem> {
        if let Some((at, tokens)) = &*lock(&self.stored)
            && at.elapsed() < KNOWN_FOR
        {
            return Ok(tokens.clone());
        }
        let tokens = Arc::new(self.client.tokens().list().await?);
        *lock(&self.stored) = Some((Instant::now(), tokens.clone()));
        Ok(tokens)
    }

    /// Lets nobody in without a token from now on, even if there is none.
    pub(crate) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Reads the tokens of the store again, since they were changed here.
    pub(crate) fn forget_stored(&self) {
        *lock(&self.stored) = None;
    }

    /// Whether a token is needed: there is one.
    pub(crate) async fn needs_token(&self) -> Result<bool, Problem> {
        if self.is_closed.load(Ordering::Acquire) {
            return Ok(true);
        }
        let is_closed = !self.stored().await?.is_empty();
        if is_closed {
            self.close();
        }
        Ok(is_closed)
    }

    /// Looks for a token without telling by the time it takes how much of it was right.
    async fn token(&self, text: &str) -> Result<Option<Found>, Problem> {
        let hash = hash(text);
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        if let Some(token) = found {
            return Ok(Some(Found {
                name: token.name.clone(),
                role: token.role,
                stored: None,
            }));
        }
        let stored = self.client.tokens().check(text).await?;
        Ok(stored.map(|token| Found {
            name: token.name,
            role: token.role,
            stored: Some(token.created_at),
        }))
    }

    /// Who makes a request with these headers, if that is known.
    pub(crate) async fn who(&self, headers: &HeaderMap) -> Result<Option<Who>, Problem> {
        if !self.needs_token().await? {
            return Ok(Some(Who {
                name: None,
                role: Role::Admin,
                csrf: None,
            }));
        }
        if let Some(text) = bearer(headers) {
            let token = self.token(text).await?;
            return Ok(token.map(|token| Who {
                name: Some(token.name),
                role: token.role,
                csrf: None,
            }));
        }
        let Some(id) = cookie(headers).map(hash) else {
            return Ok(None);
        };
        let Some((who, stored)) = self.session(&id) else {
            return Ok(None);
        };
        // A session ends with its token.
        if let Some(made_at) = stored {
            let tokens = self.stored().await?;
            let mut same = tokens.iter().filter(|it| it.created_at == made_at);
            if !same.any(|it| Some(&it.name) == who.name.as_ref() && it.role == who.role) {
                lock(&self.sessions).remove(&id);
                return Ok(None);
            }
        }
        Ok(Some(who))
    }

    /// Whose session this is, and when its token was made if it is one of the store's.
    fn session(&self, id: &[u8; 32]) -> Option<(Who, Option<Timestamp>)> {
        let mut sessions = lock(&self.sessions);
        let session = sessions.get(id)?;
        if session.until < Instant::now() {
            sessions.remove(id);
            return None;
        }
        let who = Who {
            name: Some(session.token.clone()),
            role: session.role,
            csrf: Some(session.csrf.clone()),
        };
        Some((who, session.stored))
    }

    /// Opens a session: its cookie, and who it is.
    pub(crate) async fn log_in(
        &self,
        text: &str,
        from: Option<IpAddr>,
        is_secure: bool,
    ) -> Result<(HeaderValue, Who), Problem> {
        if !self.may_try(from, Instant::now()) {
            let detail = "too many tries to log in; wait a minute";
            return Err(Problem::new(Kind::TooManyRequests, detail));
        }
        let Some(token) = self.token(text).await? else {
            return Err(Problem::new(Kind::Unauthorized, "there is no such token"));
        };
        let (id, csrf) = (random_text()?, random_text()?);
        let mut sessions = lock(&self.sessions);
        let now = Instant::now();
        sessions.retain(|_, session| session.until >= now);
        if sessions.len() >= SESSIONS_MAX {
            let oldest = sessions.iter().min_by_key(|(_, session)| session.until);
            if let Some(oldest) = oldest.map(|(id, _)| *id) {
                sessions.remove(&oldest);
            }
        }
        let session = Session {
            token: token.name.clone(),
            stored: token.stored,
            role: token.role,
            csrf: csrf.clone(),
            until: now + SESSION,
        };
        sessions.insert(hash(&id), session);
        let secure = if is_secure { "; Secure" } else { "" };
        let cookie = format!(
            "{COOKIE}={id}; Path=/; HttpOnly; SameSite=Strict; Max-Age={}{secure}",
            SESSION.as_secs()
        );
        let cookie = HeaderValue::try_from(cookie)
            .map_err(|error| Problem::new(Kind::Internal, error.to_string()))?;
        let who = Who {
            name: Some(token.name),
            role: token.role,
            csrf: Some(csrf),
        };
        Ok((cookie, who))
    }

    /// Ends the session of a request; the cookie that says so.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(id) = cookie(headers) {
            lock(&self.sessions).remove(&hash(id));
        }
        HeaderValue::from_static("everstep_session=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    fn may_try(&self, from: Option<IpAddr>, now: Instant) -> bool {
        let mut tries = lock(&self.tries);
        let is_over = tries.since.is_none_or(|since| now - since > WINDOW);
        if is_over {
            *tries = Tries {
                since: Some(now),
                ..Tries::default()
            };
        }
        if tries.of_all >= TRIES_OF_ALL {
            return false;
        }
        tries.of_all += 1;
        let own = from.map_or(0, |from| {
            let own = tries.by_address.entry(from).or_default();
            *own += 1;
            *own
        });
        own <= TRIES
    }

    /// A name of somebody else's must not lead here: a page of theirs would then be ours to the
    /// browser.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
        let name = host.map(host_name).unwrap_or_default();
        let address = name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let is_known = name.eq_ignore_ascii_case("localhost")
            || self
                .hosts
                .iter()
                .any(|known| known.eq_ignore_ascii_case(name))
            || address.is_some_and(|address| address.is_loopback() || !self.loopback_only);
        if is_known {
            return Ok(());
        }
        let detail = format!(
            "this server does not answer under the name `{name}`; use its address, or allow the \
             name where it is started"
        );
        Err(Problem::new(Kind::BadHost, detail))
    }
}

/// The name in a host header, without its port.
fn host_name(host: &str) -> &str {
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}

fn bearer(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(header::AUTHORIZATION)?.to_str().ok()?;
    let (scheme, token) = value.split_once(' ')?;
    scheme
        .eq_ignore_ascii_case("bearer")
        .then_some(token.trim())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter();
    let mut pairs = all
        .filter_map(|it| it.to_str().ok())
        .flat_map(|it| it.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// 256 random bits as a text.
pub(crate) fn random_text() -> Result<String, Problem> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Problem::new(Kind::Internal, format!("no random bits: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
}

/// Changes come from nowhere, or from the dashboard.
pub(crate) fn check_origin(headers: &HeaderMap) -> Result<(), Problem> {
    let foreign = || {
        let detail = "a page of another site may not change anything here";
        Problem::new(Kind::Csrf, detail)
    };
    let text = |name: HeaderName| headers.get(name).map(|it| it.to_str().unwrap_or("?"));
    if let Some(site) = text(HeaderName::from_static("sec-fetch-site"))
        && !matches!(site, "same-origin" | "none")
    {
        return Err(foreign());
    }
    if let Some(origin) = text(header::ORIGIN) {
        let host = text(header::HOST).unwrap_or_default();
        let own = origin
            .strip_prefix("http://")
            .or_else(|| origin.strip_prefix("https://"));
        if own != Some(host) {
            return Err(foreign());
        }
    }
    Ok(())
}

/// An operation, as far as it has to be known here.
#[derive(Clone, Copy)]
pub(crate) struct Guarded {
    pub(crate) verb: Verb,
    /// Its path, with names in braces.
    pub(crate) path: &'static str,
    pub(crate) name: &'static str,
    /// What it needs, if it needs anything.
    pub(crate) role: Option<Role>,
}

impl Guarded {
    /// Whether it changes something that is not the caller's own session.
    fn is_change(self) -> bool {
        self.role.is_some() && self.verb != Verb::Get
    }
}

/// Lets a request through to its operation, if it may.
pub(crate) async fn guarded(
    app: App,
    operation: Guarded,
    request: Request,
    next: Next,
) -> Response {
    match carried_out(&app, operation, request, next).await {
        Ok(response) => response,
        Err(problem) => problem.into_response(),
    }
}

async fn carried_out(
    app: &App,
    operation: Guarded,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    let deadline = Instant::now() + app.limits.request;
    let (parts, body) = request.into_parts();
    let who = app.security.who(&parts.headers).await?;
    let refused = admitted(operation, &parts.headers, who.as_ref()).err();
    let body = match refused {
        None if operation.verb != Verb::Get => before(deadline, app, read(app, body)).await??,
        // Nothing is read of what is refused.
        _ => Bytes::new(),
    };
    let target = audit::target(operation.path, parts.uri.path());
    let detail = audit::detail(operation.name, parts.uri.query(), &body);
    let begun = match &who {
        Some(who) if operation.is_change() && !audit::is_dry_run(operation.name, &body) => {
            let begun = app.audit.begin(who, operation.name, target, detail);
            Some(begun.await?)
        }
        _ => None,
    };
    let response = match refused {
        Some(problem) => Err(problem),
        None => answered(app, operation, (parts, body, who), deadline, next).await,
    };
    let response = response.unwrap_or_else(IntoResponse::into_response);
    if let Some(begun) = begun {
        let outcome = response.extensions().get::<Outcome>();
        let outcome = outcome.map_or("done", |outcome| outcome.0.as_str());
        app.audit.end(begun, outcome).await;
    }
    Ok(response)
}

/// The answer of the operation itself.
async fn answered(
    app: &App,
    operation: Guarded,
    (parts, body, who): (Parts, Bytes, Option<Who>),
    deadline: Instant,
    next: Next,
) -> Result<Response, Problem> {
    let remember = match operation.verb {
        Verb::Post => once::checked(app, &parts, &body)?,
        _ => None,
    };
    let mut request = Request::from_parts(parts, body.into());
    if let Some(who) = who {
        request.extensions_mut().insert(who);
    }
    let response = before(deadline, app, next.run(request)).await?;
    if let Some(remember) = remember
        && response.status().is_success()
    {
        remember.keep(app);
    }
    Ok(response)
}

/// The body of a request, if it is not too large.
async fn read(app: &App, body: axum::body::Body) -> Result<Bytes, Problem> {
    let limit = app.limits.body;
    axum::body::to_bytes(body, limit).await.map_err(|error| {
        let detail = format!("the body could not be read, or has more than {limit} bytes: {error}");
        Problem::new(Kind::TooLarge, detail)
    })
}

/// What it gives, if it does so in time.
async fn before<T>(
    deadline: Instant,
    app: &App,
    work: impl Future<Output = T>,
) -> Result<T, Problem> {
    let answer = tokio::time::timeout_at(deadline.into(), work).await;
    answer.map_err(|_| {
        let detail = format!(
            "no answer after {} s; what was to be changed may have been",
            app.limits.request.as_secs_f64()
        );
        Problem::new(Kind::Timeout, detail)
    })
}

/// Whether a request may be made.
fn admitted(operation: Guarded, headers: &HeaderMap, who: Option<&Who>) -> Result<(), Problem> {
    let is_read = operation.verb == Verb::Get;
    if !is_read {
        check_origin(headers)?;
    }
    let Some(role) = operation.role else {
        return Ok(());
    };
    let Some(who) = who else {
        let detail = "send a token as `Authorization: Bearer ..`, or log in";
        return Err(Problem::new(Kind::Unauthorized, detail));
    };
    if who.role < role {
        let detail = format!(
            "this needs the role `{role}`, and this token has `{}`",
            who.role
        );
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

/// The address that a request comes from, if the server was told.
pub(crate) fn peer(request: &axum::http::Extensions) -> Option<IpAddr> {
    let ConnectInfo(address) = request.get::<ConnectInfo<SocketAddr>>()?;
    Some(address.ip())
}

/// What every answer is sent with.
pub(crate) async fn headers(request: Request, next: Next) -> Response {
    let mut response = next.run(request).await;
    let headers = response.headers_mut();
    let always = [
        (
            header::CONTENT_SECURITY_POLICY,
            "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; \
             connect-src 'self'; font-src 'self'; manifest-src 'self'; form-action 'self'; \
             frame-ancestors 'none'; base-uri 'none'",
        ),
        (header::X_CONTENT_TYPE_OPTIONS, "nosniff"),
        (header::X_FRAME_OPTIONS, "DENY"),
        (header::REFERRER_POLICY, "no-referrer"),
        (
            HeaderName::from_static("cross-origin-opener-policy"),
            "same-origin",
        ),
        (
            HeaderName::from_static("cross-origin-resource-policy"),
            "same-origin",
        ),
    ];
    for (name, value) in always {
        headers.insert(name, HeaderValue::from_static(value));
    }
    if !headers.contains_key(header::CACHE_CONTROL) {
        headers.insert(header::CACHE_CONTROL, HeaderValue::from_static("no-store"));
    }
    response
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client on an empty store.
    fn nobody() -> Client {
        let store = Arc::new(everstep::store::MemoryStore::new());
        Client::on(store).expect("a client")
    }

    fn with(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn an_address_may_try_ten_times_a_minute_and_others_still_can() {
        let security = Security::new(
            nobody(),
            vec![Token::new("a", Role::Read, "x")],
            Vec::new(),
            false,
        );
        let (one, other) = (IpAddr::from([10, 0, 0, 1]), IpAddr::from([10, 0, 0, 2]));
        let now = Instant::now();
        for _ in 0..TRIES {
            assert!(security.may_try(Some(one), now));
        }
        assert!(!security.may_try(Some(one), now));
        assert!(security.may_try(Some(other), now));
        assert!(security.may_try(Some(one), now + WINDOW * 2));
    }

    #[test]
    fn a_name_of_somebody_else_is_not_answered() {
        let local = Security::new(nobody(), Vec::new(), Vec::new(), true);
        let hosts = vec!["ops.example.com".to_owned()];
        let open = Security::new(nobody(), Vec::new(), hosts, false);
        for (host, is_local, is_open) in [
            ("localhost:8080", true, true),
            ("127.0.0.1:8080", true, true),
            ("[::1]:8080", true, true),
            ("10.1.2.3:8080", false, true),
            ("ops.example.com", false, true),
            ("evil.example.com:8080", false, false),
            ("", false, false),
        ] {
            let headers = with(&[("host", host)]);
            assert_eq!(local.check_host(&headers).is_ok(), is_local, "{host}");
            assert_eq!(open.check_host(&headers).is_ok(), is_open, "{host}");
        }
        assert!(local.check_host(&HeaderMap::new()).is_err());
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let own = [("host", "localhost:1"), ("origin", "http://localhost:1")];
        assert!(check_origin(&with(&own)).is_ok());
        assert!(check_origin(&with(&[("host", "localhost:1")])).is_ok());
        let other = [("host", "localhost:1"), ("origin", "http://evil.example")];
        assert!(check_origin(&with(&other)).is_err());
        assert!(check_origin(&with(&[("host", "localhost:1"), ("origin", "null")])).is_err());
        assert!(check_origin(&with(&[("sec-fetch-site", "cross-site")])).is_err());
        assert!(check_origin(&with(&[("sec-fetch-site", "same-origin")])).is_ok());
    }
}
