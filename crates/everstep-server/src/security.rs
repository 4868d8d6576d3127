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
    net::IpAddr,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use axum::{
    extract::Request,
    http::{HeaderMap, HeaderName, HeaderValue, header},
    middleware::Next,
    response::Response,
};
use everstep::{Client, ClientError, Role, Timestamp, TokenInfo};
use sha2::{Digest, Sha256};
use subtle::ConstantTimeEq;

use crate::{
    problem::{Kind, Problem},
    tries::{self, Tries},
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
        let tokens = self.client.tokens().list().await.map_err(away)?;
        let tokens = Arc::new(tokens);
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
            return Ok(Some(Found { name: token.name.clone(), role: token.role, stored: None }));
        }
        let stored = self.client.tokens().check(text).await.map_err(away)?;
        Ok(stored.map(|token| Found {
            name: token.name,
            role: token.role,
            stored: Some(token.created_at),
        }))
    }

    /// Who makes a request with these headers, if that is known.
    pub(crate) async fn who(&self, headers: &HeaderMap) -> Result<Option<Who>, Problem> {
        if !self.needs_token().await? {
            return Ok(Some(Who { name: None, role: Role::Admin, csrf: None }));
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
        let Some(token) = self.token(text).await? else {
            return Err(self.failed(from));
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
        let who = Who { name: Some(token.name), role: token.role, csrf: Some(csrf) };
        Ok((cookie, who))
    }

    /// The answer to a log-in with a wrong token. Beyond the budget of failures it is another one, which
    /// is not noted in the audit log: guesses must not fill the store.
    fn failed(&self, from: Option<IpAddr>) -> Problem {
        if lock(&self.tries).fail(from, Instant::now()) {
            return Problem::new(Kind::Unauthorized, "there is no such token");
        }
        let detail = format!(
            "there is no such token, and more than {} log-ins from this address, or {} from all \
             addresses, have failed within {} s; a right token is still accepted",
            tries::OWN,
            tries::ALL,
            tries::WINDOW.as_secs()
        );
        Problem::new(Kind::TooManyRequests, detail).retry_after(tries::WINDOW)
    }

    /// Ends the session of a request; the cookie that says so.
    pub(crate) fn log_out(&self, headers: &HeaderMap) -> HeaderValue {
        if let Some(id) = cookie(headers) {
            lock(&self.sessions).remove(&hash(id));
        }
        HeaderValue::from_static("everstep_session=; Path=/; HttpOnly; SameSite=Strict; Max-Age=0")
    }

    /// A name of somebody else's must not lead here: a page of theirs would then be ours to the
    /// browser.
    pub(crate) fn check_host(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let host = headers.get(header::HOST).and_then(|it| it.to_str().ok());
        let name = host.map(host_name).unwrap_or_default();
        let address = name.trim_matches(['[', ']']).parse::<IpAddr>().ok();
        let is_known = name.eq_ignore_ascii_case("localhost")
            || host.is_some_and(|host| self.is_own(host))
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

    /// Whether this is a name of the server, with any port unless the name was given with one.
    fn is_own(&self, host: &str) -> bool {
        let name = host_name(host);
        let mut known = self.hosts.iter();
        known.any(|known| match host_name(known) == known {
            true => known.eq_ignore_ascii_case(name),
            false => known.eq_ignore_ascii_case(host),
        })
    }

    /// Changes come from nowhere, or from the dashboard. What the browser itself says about that
    /// counts. Without it, the page must have a name of this server, or the name that the request was
    /// sent to; a proxy may have changed that.
    pub(crate) fn check_origin(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let text = |name: HeaderName| headers.get(name).map(|it| it.to_str().unwrap_or("?"));
        let site = text(HeaderName::from_static("sec-fetch-site"));
        let is_own = match (site, text(header::ORIGIN)) {
            (Some("same-origin"), _) | (Some("none") | None, None) => true,
            (Some("none") | None, Some(origin)) => {
                let host =
                    origin.strip_prefix("http://").or_else(|| origin.strip_prefix("https://"));
                host.is_some_and(|host| self.is_own(host) || Some(host) == text(header::HOST))
            }
            (Some(_), _) => false,
        };
        if is_own {
            return Ok(());
        }
        let detail = "a page of another site may not change anything here";
        Err(Problem::new(Kind::Csrf, detail))
    }

    /// Where nobody needs a token, only this machine is served: what a proxy has passed on comes from
    /// somewhere else.
    pub(crate) fn check_direct(&self, headers: &HeaderMap) -> Result<(), Problem> {
        let is_passed_on = |name: &HeaderName| {
            let name = name.as_str();
            name == "forwarded" || name.starts_with("x-forwarded-")
        };
        if !self.loopback_only || !headers.keys().any(is_passed_on) {
            return Ok(());
        }
        let detail = "nobody needs a token here, so that only this machine is served, and this \
                      request was passed on by a proxy; add a token to serve others";
        Err(Problem::new(Kind::Forbidden, detail))
    }
}

/// That the store cannot be asked who somebody is. They may be anybody, and are not told more.
fn away(error: ClientError) -> Problem {
    let kind = Problem::from(error).kind_if_broken();
    Problem::new(kind, "the tokens of the store cannot be read; the log says why")
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
    scheme.eq_ignore_ascii_case("bearer").then_some(token.trim())
}

fn cookie(headers: &HeaderMap) -> Option<&str> {
    let all = headers.get_all(header::COOKIE).into_iter();
    let mut pairs = all.filter_map(|it| it.to_str().ok()).flat_map(|it| it.split(';'));
    pairs.find_map(|pair| pair.trim().strip_prefix(COOKIE)?.strip_prefix('='))
}

/// 256 random bits as a text.
pub(crate) fn random_text() -> Result<String, Problem> {
    let mut bytes = [0; 32];
    getrandom::fill(&mut bytes)
        .map_err(|error| Problem::new(Kind::Internal, format!("no random bits: {error}")))?;
    Ok(bytes.iter().map(|byte| format!("{byte:02x}")).collect())
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
        (HeaderName::from_static("cross-origin-opener-policy"), "same-origin"),
        (HeaderName::from_static("cross-origin-resource-policy"), "same-origin"),
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
    fn a_name_with_a_port_is_that_name_at_that_port() {
        let hosts = vec!["ops.example.com:8443".to_owned()];
        let security = Security::new(nobody(), Vec::new(), hosts, false);
        for (host, is_known) in [
            ("ops.example.com:8443", true),
            ("OPS.example.com:8443", true),
            ("ops.example.com", false),
            ("ops.example.com:80", false),
        ] {
            let headers = with(&[("host", host)]);
            assert_eq!(security.check_host(&headers).is_ok(), is_known, "{host}");
        }
    }

    #[test]
    fn a_page_of_another_site_changes_nothing() {
        let hosts = vec!["ops.example.com".to_owned()];
        let security = Security::new(nobody(), Vec::new(), hosts, false);
        let check =
            |pairs: &[(&'static str, &'static str)]| security.check_origin(&with(pairs)).is_ok();
        let local = ("host", "localhost:1");
        assert!(check(&[local, ("origin", "http://localhost:1")]));
        assert!(check(&[local]));
        assert!(!check(&[local, ("origin", "http://evil.example")]));
        assert!(!check(&[local, ("origin", "null")]));
        assert!(!check(&[("sec-fetch-site", "cross-site")]));
        assert!(!check(&[("sec-fetch-site", "same-site")]));
        assert!(check(&[("sec-fetch-site", "same-origin")]));
        // A proxy has another name for us than the page.
        let inner = ("host", "10.0.0.7:7878");
        let page = ("origin", "https://ops.example.com");
        assert!(check(&[inner, page]));
        let browser = ("sec-fetch-site", "same-origin");
        assert!(check(&[inner, ("origin", "https://other.example.com"), browser]));
        assert!(!check(&[inner, ("origin", "https://other.example.com")]));
        assert!(!check(&[inner, page, ("sec-fetch-site", "cross-site")]));
    }

    #[test]
    fn whoever_is_nobody_is_not_told_what_the_store_says() {
        let source = std::io::Error::other("no such host: db.internal");
        let error = everstep::store::StoreError::Io {
            store: "postgres at db.internal".to_owned(),
            source: source.into(),
        };
        let problem = away(ClientError::Store(error.into()));
        assert!(problem.is(Kind::Unavailable));
        let said = serde_json::to_string(&problem).expect("JSON");
        assert!(!said.contains("db.internal"), "{said}");
    }
}
