//! Who may do what.
//!
//! A request is looked at in this order: its host (so that no name of somebody else's leads here), where
//! it was made (so that no page of somebody else's can change anything), who makes it (a token, or a
//! session that a token has opened), and whether their role allows it. What changes something is
//! written into the audit log with its outcome, whether it was allowed or not.
//!
//! Never: a token or the id of a session in a log, in a store or compared byte by byte until the first
//! difference.

use std::{
    collections::HashMap,
    net::{IpAddr, SocketAddr},
    sync::{Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};

use axum::{
    extract::{ConnectInfo, Request},
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::{IntoResponse, Response},
};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    App,
    problem::{Kind, Problem},
    table::Verb,
};

/// The cookie of a session.
pub(crate) const COOKIE: &str = "everstep_session";

/// The header that shows that a change was made by the dashboard.
pub(crate) const CSRF: HeaderName = HeaderName::from_static("x-everstep-csrf");

/// How long a session lasts.
const SESSION: Duration = Duration::from_secs(12 * 3_600);

/// How many sessions there may be. The oldest ends for the next.
const SESSIONS_MAX: usize = 1_000;

/// How often one address may try to log in within [`WINDOW`], and how often all of them together.
const TRIES: u32 = 10;
const TRIES_OF_ALL: u32 = 200;
const WINDOW: Duration = Duration::from_secs(60);

/// What somebody may do.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Role {
    /// See everything but the audit log.
    Read,
    /// Besides, change single runs, start them, send messages, and change schedules and queues.
    Operate,
    /// Everything: delete, change many runs at once, read the audit log.
    Admin,
}

impl Role {
    /// The word for it.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Read => "read",
            Role::Operate => "operate",
            Role::Admin => "admin",
        }
    }
}

impl std::str::FromStr for Role {
    type Err = String;

    fn from_str(word: &str) -> Result<Role, String> {
        [Role::Read, Role::Operate, Role::Admin]
            .into_iter()
            .find(|role| role.word() == word)
            .ok_or_else(|| format!("`{word}` is no role; these are: read, operate, admin"))
    }
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
    role: Role,
    csrf: String,
    until: Instant,
}

/// What is checked, and against what.
pub(crate) struct Security {
    /// Without any, everybody is an admin.
    pub(crate) tokens: Vec<Token>,
    /// Names under which this server is reached, besides addresses and `localhost`.
    pub(crate) hosts: Vec<String>,
    /// Whether only this machine is served.
    pub(crate) loopback_only: bool,
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

impl Security {
    pub(crate) fn new(tokens: Vec<Token>, hosts: Vec<String>, loopback_only: bool) -> Security {
        Security {
            tokens,
            hosts,
            loopback_only,
            sessions: Mutex::default(),
            tries: Mutex::default(),
        }
    }

    /// Whether a token is needed.
    pub(crate) fn needs_token(&self) -> bool {
        !self.tokens.is_empty()
    }

    /// Looks for a token without telling by the time it takes how much of it was right.
    fn token(&self, text: &str) -> Option<&Token> {
        let hash = hash(text);
        let mut found = None;
        for token in &self.tokens {
            if bool::from(token.hash.ct_eq(&hash)) {
                found = Some(token);
            }
        }
        found
    }

    /// Who makes a request with these headers, if that is known.
    pub(crate) fn who(&self, headers: &HeaderMap) -> Option<Who> {
        if !self.needs_token() {
            return Some(Who {
                name: None,
                role: Role::Admin,
                csrf: None,
            });
        }
        if let Some(text) = bearer(headers) {
            let token = self.token(text)?;
            return Some(Who {
                name: Some(token.name.clone()),
                role: token.role,
                csrf: None,
            });
        }
        let id = cookie(headers)?;
        let mut sessions = lock(&self.sessions);
        let id = hash(id);
        let session = sessions.get(&id)?;
        if session.until < Instant::now() {
            sessions.remove(&id);
            return None;
        }
        Some(Who {
            name: Some(session.token.clone()),
            role: session.role,
            csrf: Some(session.csrf.clone()),
        })
    }

    /// Opens a session: its cookie, and who it is.
    pub(crate) fn log_in(
        &self,
        text: &str,
        from: Option<IpAddr>,
        is_secure: bool,
    ) -> Result<(HeaderValue, Who), Problem> {
        if !self.may_try(from, Instant::now()) {
            let detail = "too many tries to log in; wait a minute";
            return Err(Problem::new(Kind::TooManyRequests, detail));
        }
        let Some(token) = self.token(text) else {
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
            name: Some(token.name.clone()),
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
        tries.of_all += 1;
        let of_all = tries.of_all;
        let own = from.map_or(0, |from| {
            let own = tries.by_address.entry(from).or_default();
            *own += 1;
            *own
        });
        own <= TRIES && of_all <= TRIES_OF_ALL
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

/// Lets a request through to its operation, if it may.
pub(crate) async fn guarded(
    app: App,
    role: Role,
    name: &'static str,
    verb: Verb,
    mut request: Request,
    next: Next,
) -> Response {
    let who = match admitted(&app, role, verb, &request) {
        Ok(who) => who,
        Err(problem) => return problem.into_response(),
    };
    let target = request.uri().path().to_owned();
    request.extensions_mut().insert(who.clone());
    let limit = app.limits.request;
    let response = match tokio::time::timeout(limit, next.run(request)).await {
        Ok(response) => response,
        Err(_) => {
            let detail = format!(
                "no answer after {} s; what was to be changed may have been",
                limit.as_secs()
            );
            Problem::new(Kind::Timeout, detail).into_response()
        }
    };
    if verb != Verb::Get {
        app.audit.note(&who, name, &target, response.status());
    }
    response
}

fn admitted(app: &App, role: Role, verb: Verb, request: &Request) -> Result<Who, Problem> {
    let headers = request.headers();
    if verb != Verb::Get {
        check_origin(headers)?;
    }
    let Some(who) = app.security.who(headers) else {
        let detail = "send a token as `Authorization: Bearer ..`, or log in";
        return Err(Problem::new(Kind::Unauthorized, detail));
    };
    if who.role < role {
        let detail = format!(
            "this needs the role `{}`, and this token has `{}`",
            role.word(),
            who.role.word()
        );
        return Err(Problem::new(Kind::Forbidden, detail));
    }
    if verb != Verb::Get
        && let Some(wanted) = &who.csrf
    {
        let sent = headers.get(CSRF).map(HeaderValue::as_bytes).unwrap_or(&[]);
        if !bool::from(sent.ct_eq(wanted.as_bytes())) {
            let detail = "send the `csrf` of the session as `x-everstep-csrf`";
            return Err(Problem::new(Kind::Csrf, detail));
        }
    }
    Ok(who)
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

    fn with(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let pairs = pairs.iter().map(|(name, value)| {
            let name = HeaderName::from_static(name);
            (name, HeaderValue::from_static(value))
        });
        pairs.collect()
    }

    #[test]
    fn an_address_may_try_ten_times_a_minute_and_others_still_can() {
        let security = Security::new(vec![Token::new("a", Role::Read, "x")], Vec::new(), false);
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
        let local = Security::new(Vec::new(), Vec::new(), true);
        let open = Security::new(Vec::new(), vec!["ops.example.com".to_owned()], false);
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

    #[test]
    fn a_session_is_who_has_opened_it_until_it_ends() {
        let tokens = vec![
            Token::new("reader", Role::Read, "r"),
            Token::new("boss", Role::Admin, "b"),
        ];
        let security = Security::new(tokens, Vec::new(), false);
        assert!(security.who(&HeaderMap::new()).is_none());
        assert!(security.log_in("wrong", None, false).is_err());
        let (cookie, who) = security.log_in("b", None, true).expect("log in");
        let cookie = cookie.to_str().expect("text");
        for part in ["HttpOnly", "SameSite=Strict", "Secure"] {
            assert!(cookie.contains(part), "{cookie}");
        }
        let pair = cookie.split(';').next().expect("a pair").to_owned();
        let mut headers = HeaderMap::new();
        headers.insert(header::COOKIE, HeaderValue::try_from(pair).expect("value"));
        assert_eq!(security.who(&headers), Some(who));
        security.log_out(&headers);
        assert!(security.who(&headers).is_none());
        let by_token = security.who(&with(&[("authorization", "Bearer r")]));
        assert_eq!(by_token.map(|who| who.role), Some(Role::Read));
    }
}
