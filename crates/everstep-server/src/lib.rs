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
mod redact;
mod security;
mod serve;
mod shapes;
mod table;
mod traced;
mod tries;

pub use everstep::Role;
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
}

/// What every operation can reach.
struct Inner {
    client: Client,
    redaction: redact::Redaction,
    security: security::Security,
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
            redaction: redact::Redaction::default(),
            limits: Limits {
                body: 4 * 1024 * 1024,
                request: Duration::from_secs(30),
                header: Duration::from_secs(10),
                connections: 1_000,
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

    /// How many connections [`listen`](Server::listen) has at a time: 1 000 if it is not said. Others
    /// wait until one ends.
    pub fn connection_limit(mut self, connections: usize) -> Server {
        self.limits.connections = connections;
        self
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
    /// If the address cannot be had, or if it can be reached from other machines and there is no token.
    pub async fn listen(self, address: &str) -> io::Result<Listening> {
        let listener = TcpListener::bind(address).await?;
        let address = listener.local_addr()?;
        let is_local = is_loopback(address.ip());
        let has_token = !self.tokens.is_empty()
            || !self
                .client
                .tokens()
                .list()
                .await
                .map_err(io::Error::other)?
                .is_empty();
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
        Ok(Listening {
            router,
            app,
            listener,
            address,
        })
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
        f.debug_struct("Listening")
            .field("address", &self.address)
            .finish_non_exhaustive()
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
        let Listening {
            router,
            app,
            listener,
            ..
        } = self;
        let serve = serve::serve(listener, router, app.limits, app.closing.subscribe());
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
