//! The HTTP API and the dashboard of everstep.
//!
//! ```no_run
//! # async fn example() -> Result<(), Box<dyn std::error::Error>> {
//! let client = everstep::Client::open("app.db").await?;
//! let server = everstep_server::Server::new(client);
//! let listening = server.listen("127.0.0.1:7878").await?;
//! println!("http://{}", listening.address());
//! listening.run(std::future::pending()).await?;
//! # Ok(())
//! # }
//! ```
//!
//! Or inside of your own axum app: [`Server::router`] is a `Router` that can be nested or merged.
//!
//! ```
//! # async fn example(engine: everstep::Engine) {
//! let operate = everstep_server::Server::new(engine.client()).router();
//! let app: axum::Router = axum::Router::new().nest("/ops", operate);
//! # }
//! ```
//!
//! The dashboard is then there, too, but finds its files only at the root: `merge` it for that.
//!
//! Without a token only this machine is served, and everybody on it may do everything. With tokens,
//! [given here](Server::token) or [made in the store](everstep::Client::tokens), everybody needs one,
//! and may do what its [`Role`] says. Every change is written into the
//! [audit log](everstep::Client::audit) before it is made, and its outcome after.

use std::{
    future::pending,
    io,
    net::{IpAddr, SocketAddr},
    ops::Deref,
    sync::Arc,
    time::Duration,
};

use axum::{
    Extension, Router,
    extract::{DefaultBodyLimit, Request},
    middleware::{self, Next},
    response::{IntoResponse, Response},
};
use everstep::Client;
use futures_util::{
    FutureExt,
    future::{BoxFuture, Shared},
};
use tokio::{net::TcpListener, sync::watch};

mod api;
mod assets;
mod audit;
mod extract;
mod guard;
mod health;
pub mod json;
mod live;
mod metrics;
mod once;
mod problem;
mod proxies;
mod redact;
mod security;
mod serve;
mod shapes;
mod shares;
mod table;
mod traced;
mod tries;
mod usage;

pub use everstep::Role;
pub use proxies::BadProxy;
pub use redact::BadPattern;
pub use security::Token;

/// What is not taken, or given up.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How many bytes a body may have.
    body: usize,
    /// How long an operation may take.
    request: Duration,
    /// How long it may take to send what a request begins with.
    header: Duration,
    /// How many connections there are at a time.
    connections: usize,
    /// How many of them one peer address may have.
    connections_per_peer: usize,
    /// How many more are kept for probes.
    probe_connections: usize,
    /// How many requests of one token may be under way at a time.
    requests_per_token: usize,
    /// How many streams one token may have open.
    streams_per_token: usize,
    /// How many streams one client address may have open.
    streams_per_peer: usize,
}

impl Limits {
    /// Refuses limits that would let nobody in.
    fn check(&self) -> io::Result<()> {
        // A time that is not even a millisecond is over before anything can happen in it.
        let ms = |time: Duration| usize::try_from(time.as_millis()).unwrap_or(usize::MAX);
        let zero = [
            ("body_limit", self.body),
            ("request_limit", ms(self.request)),
            ("header_limit", ms(self.header)),
            ("connection_limit", self.connections),
            ("connections_per_peer", self.connections_per_peer),
            ("probe_connections", self.probe_connections),
            ("requests_per_token", self.requests_per_token),
            ("streams_per_token", self.streams_per_token),
            ("streams_per_peer", self.streams_per_peer),
        ];
        match zero.iter().find(|(_, limit)| *limit == 0) {
            Some((name, _)) => {
                let text = format!("`{name}` is 0, and must be at least 1");
                Err(io::Error::new(io::ErrorKind::InvalidInput, text))
            }
            None => Ok(()),
        }
    }
}

/// What every operation can reach.
struct Inner {
    client: Client,
    redaction: redact::Redaction,
    security: security::Security,
    proxies: proxies::Proxies,
    usage: usage::Usage,
    limits: Limits,
    audit: audit::Audit,
    keys: once::Keys,
    /// Whether the server ends: what is told while it happens ends then, too.
    closing: watch::Sender<bool>,
    /// The same, as the app that the routes are a part of says it.
    ends: Shared<BoxFuture<'static, ()>>,
    ready: health::Kept,
    metrics: metrics::Kept,
    counter: live::Counter,
}

/// A handle on it.
#[derive(Clone)]
struct App(Arc<Inner>);

impl Deref for App {
    type Target = Inner;

    fn deref(&self) -> &Inner {
        &self.0
    }
}

/// A server of the API and the dashboard, as it is to be.
#[derive(Clone)]
#[must_use = "nothing is served before `listen` or `router`"]
pub struct Server {
    client: Client,
    tokens: Vec<Token>,
    hosts: Vec<String>,
    proxies: proxies::Proxies,
    redaction: redact::Redaction,
    limits: Limits,
    ends: Shared<BoxFuture<'static, ()>>,
}

impl std::fmt::Debug for Server {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let tokens: Vec<&Token> = self.tokens.iter().collect();
        f.debug_struct("Server")
            .field("tokens", &tokens.len())
            .field("hosts", &self.hosts)
            .field("limits", &self.limits)
            .finish_non_exhaustive()
    }
}

impl Server {
    /// Serves what this client sees. It may be an engine's, or one without an engine.
    pub fn new(client: Client) -> Server {
        Server {
            client,
            tokens: Vec::new(),
            hosts: Vec::new(),
            proxies: proxies::Proxies::default(),
            redaction: redact::Redaction::default(),
            limits: Limits {
                body: 4 * 1024 * 1024,
                request: Duration::from_secs(30),
                header: Duration::from_secs(10),
                // A process may usually have 1 024 files open: the store needs some of them.
                connections: 800,
                connections_per_peer: 400,
                probe_connections: 64,
                requests_per_token: 200,
                streams_per_token: 100,
                streams_per_peer: 200,
            },
            ends: pending().boxed().shared(),
        }
    }

    /// Lets whoever has this token do what its role says, besides those with a token of the store
    /// ([`Client::tokens`]). With the first token, here or there, nobody can do anything without one.
    pub fn token(mut self, token: Token) -> Server {
        self.tokens.push(token);
        self
    }

    /// Answers under this name, besides `localhost` and addresses. A request under any other name is
    /// refused, so that a page of somebody else's cannot reach this server under a name of its own.
    pub fn host(mut self, name: impl Into<String>) -> Server {
        self.hosts.push(name.into());
        self
    }

    /// Shows nothing of what these patterns lead to in payloads: `**.password`, `card.number`. Texts of
    /// errors are left out as a whole then.
    ///
    /// # Errors
    ///
    /// If a pattern has an empty part.
    pub fn redact<P: AsRef<str>>(
        mut self,
        patterns: impl IntoIterator<Item = P>,
    ) -> Result<Server, BadPattern> {
        self.redaction = redact::Redaction::new(patterns)?;
        Ok(self)
    }

    /// How many bytes the body of a request may have: 4 MiB if it is not said.
    pub fn body_limit(mut self, bytes: usize) -> Server {
        self.limits.body = bytes;
        self
    }

    /// How long an operation may take: 30 s if it is not said.
    pub fn request_limit(mut self, limit: Duration) -> Server {
        self.limits.request = limit;
        self
    }

    /// How long a client of [`listen`](Server::listen) may take to send the head of a request, and how
    /// long a connection may wait for its next one: 10 s if it is not said.
    pub fn header_limit(mut self, limit: Duration) -> Server {
        self.limits.header = limit;
        self
    }

    /// Maximum number of connections of [`listen`](Server::listen): 800 by default. Beyond it only
    /// probes are answered ([`probe_connections`](Server::probe_connections)); other requests get 503.
    pub fn connection_limit(mut self, connections: usize) -> Server {
        self.limits.connections = connections;
        self
    }

    /// Maximum number of connections from one peer address (with IPv6: from one /64 network): 400 by
    /// default. Other requests of that peer get 429. A [trusted proxy](Server::trusted_proxies) may
    /// have more; there the limit applies to the requests that each of its clients has under way.
    pub fn connections_per_peer(mut self, connections: usize) -> Server {
        self.limits.connections_per_peer = connections;
        self
    }

    /// Number of connections that are kept for probes, in addition to
    /// [`connection_limit`](Server::connection_limit): 64 by default. When all other connections are
    /// taken, `/healthz`, `/readyz` and `/metrics` are answered on these, and all other requests are
    /// refused on them.
    pub fn probe_connections(mut self, connections: usize) -> Server {
        self.limits.probe_connections = connections;
        self
    }

    /// Maximum number of requests that one token has under way at a time, streams included: 200 by
    /// default. Beyond it requests get 429. A session counts for the token that opened it.
    pub fn requests_per_token(mut self, requests: usize) -> Server {
        self.limits.requests_per_token = requests;
        self
    }

    /// Maximum number of event streams that one token has open at a time: 100 by default. Beyond it
    /// requests for streams get 429.
    pub fn streams_per_token(mut self, streams: usize) -> Server {
        self.limits.streams_per_token = streams;
        self
    }

    /// Maximum number of event streams that one client address (with IPv6: one /64 network) has open at
    /// a time: 200 by default. Beyond it requests for streams get 429.
    pub fn streams_per_peer(mut self, streams: usize) -> Server {
        self.limits.streams_per_peer = streams;
        self
    }

    /// Takes the address of a client from `X-Forwarded-For` or `Forwarded` if the connection comes from
    /// one of these proxies, given as addresses (`10.0.0.7`) or networks (`10.0.0.0/8`). The client is
    /// the rightmost hop that is not a trusted proxy. Without this the clients of a proxy share its
    /// limits, and its address is the one in the audit log.
    ///
    /// The proxy must append to the header that it writes, or replace it, and should remove the other
    /// of the two headers: if both are there and name different clients, neither is believed.
    ///
    /// # Errors
    ///
    /// If a text is neither an address nor a network.
    pub fn trusted_proxies<P: AsRef<str>>(
        mut self,
        proxies: impl IntoIterator<Item = P>,
    ) -> Result<Server, BadProxy> {
        for proxy in proxies {
            self.proxies.0.push(proxy.as_ref().parse()?);
        }
        Ok(self)
    }

    /// Ends what is told while it happens when `end` is there, for the [`router`](Server::router) in an
    /// app of your own: it would be told for as long as somebody listens, and hold up the graceful
    /// shutdown of the app. Give it what the app's own shutdown waits for, too:
    ///
    /// ```no_run
    /// # async fn example(client: everstep::Client) -> std::io::Result<()> {
    /// let (stop, stopped) = tokio::sync::watch::channel(false);
    /// let ended = move || {
    ///     let mut stopped = stopped.clone();
    ///     async move { _ = stopped.wait_for(|stopped| *stopped).await }
    /// };
    /// let operate = everstep_server::Server::new(client).closing(ended()).router();
    /// let listener = tokio::net::TcpListener::bind("127.0.0.1:8080").await?;
    /// # drop(stop);
    /// axum::serve(listener, operate).with_graceful_shutdown(ended()).await
    /// # }
    /// ```
    pub fn closing(mut self, end: impl Future<Output = ()> + Send + 'static) -> Server {
        self.ends = end.boxed().shared();
        self
    }

    /// The OpenAPI 3.1 document of the API, as it is served.
    pub fn document(&self) -> serde_json::Value {
        let (_, app) = self.clone().routes(false, true);
        api::routes(&app).1
    }

    /// The routes, to be served by your own axum app. Whoever reaches it may do everything unless there
    /// is a token: guard it, or add one. Names are not refused here, and connections are not limited;
    /// that is your app's. So that its graceful shutdown does not wait for those who listen, say when
    /// it [closes](Server::closing).
    pub fn router(self) -> Router {
        self.routes(false, false).0
    }

    fn routes(self, checks_host: bool, loopback_only: bool) -> (Router, App) {
        let app = App(Arc::new(Inner {
            redaction: self.redaction,
            security: security::Security::new(
                self.client.clone(),
                self.tokens,
                self.hosts,
                loopback_only,
            ),
            proxies: self.proxies,
            usage: usage::Usage::new(self.limits),
            limits: self.limits,
            audit: audit::Audit::new(self.client.clone()),
            counter: live::Counter::new(self.client.clone()),
            client: self.client,
            keys: once::Keys::default(),
            closing: watch::Sender::new(false),
            ends: self.ends,
            ready: health::Kept::default(),
            metrics: metrics::Kept::default(),
        }));
        let (operations, document) = api::routes(&app);
        let mut router = operations
            .merge(health::routes())
            .merge(metrics::routes(&app))
            .merge(assets::routes())
            .fallback(table::nowhere)
            .method_not_allowed_fallback(table::no_such_verb)
            .layer(Extension(Arc::new(document)))
            .layer(DefaultBodyLimit::max(self.limits.body));
        if checks_host {
            let app = app.clone();
            let check = move |request: Request, next: Next| {
                let app = app.clone();
                async move { host_checked(&app, request, next).await }
            };
            router = router.layer(middleware::from_fn(check));
        }
        router = router.layer(middleware::from_fn(serve::reserved));
        let router = router
            .layer(middleware::from_fn(traced::traced))
            .layer(middleware::from_fn(security::headers))
            .with_state(app.clone());
        (router, app)
    }

    /// Listens at this address.
    ///
    /// # Errors
    ///
    /// If the address cannot be had, if it can be reached from other machines and there is no token, or
    /// if a limit is zero.
    pub async fn listen(self, address: &str) -> io::Result<Listening> {
        self.limits.check()?;
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let is_local = is_loopback(address.ip());
        let has_token = !self.tokens.is_empty()
            || !self.client.tokens().list().await.map_err(io::Error::other)?.is_empty();
        if !is_local && !has_token {
            let text = format!(
                "{address} can be reached from other machines, and nobody needs a token; add a \
                 token, or listen at 127.0.0.1"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let (router, app) = self.routes(true, is_local);
        if has_token {
            app.security.close();
        }
        Ok(Listening { router, app, listener, address })
    }
}

fn is_loopback(address: IpAddr) -> bool {
    address.to_canonical().is_loopback()
}

async fn host_checked(app: &App, request: Request, next: Next) -> Response {
    match app.security.check_host(request.headers()) {
        Ok(()) => next.run(request).await,
        Err(problem) => problem.into_response(),
    }
}

/// A server that listens, and answers when it is run.
#[must_use = "nothing is answered before `run`"]
pub struct Listening {
    router: Router,
    app: App,
    listener: TcpListener,
    address: SocketAddr,
}

impl std::fmt::Debug for Listening {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Listening").field("address", &self.address).finish_non_exhaustive()
    }
}

impl Listening {
    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `until` is there. Then what is told while it happens ends, and requests that are
    /// under way have ten seconds to be answered.
    ///
    /// # Errors
    ///
    /// If the socket is broken.
    pub async fn run(self, until: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let Listening { router, app, listener, .. } = self;
        let serve = serve::serve(listener, router, app.clone(), app.closing.subscribe());
        let closed = async {
            until.await;
            app.closing.send_replace(true);
            // That ends the other one.
            pending().await
        };
        tokio::select! {
            ended = serve => ended,
            () = closed => Ok(()),
        }
    }
}
