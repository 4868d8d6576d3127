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
//! Without a token only this machine is served, and everybody on it may do everything. With
//! [tokens](Server::token) everybody needs one, and may do what its [`Role`] says.

use std::{
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
    routing::get,
};
use everstep::Client;
use tokio::net::TcpListener;

mod api;
mod assets;
mod audit;
mod extract;
mod health;
pub mod json;
mod live;
mod metrics;
mod problem;
mod redact;
mod security;
mod shapes;
mod table;

pub use redact::BadPattern;
pub use security::{Role, Token};

/// What is not taken, or given up.
#[derive(Clone, Copy, Debug)]
struct Limits {
    /// How many bytes a body may have.
    body: usize,
    /// How long an operation may take.
    request: Duration,
}

/// What every operation can reach.
struct Inner {
    client: Client,
    redaction: redact::Redaction,
    security: security::Security,
    limits: Limits,
    audit: audit::Audit,
    metrics: metrics::Kept,
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
            },
        }
    }

    /// Lets whoever has this token do what its role says. With the first token nobody can do anything
    /// without one.
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

    /// The routes, to be served by your own axum app. Whoever reaches it may do everything unless there
    /// is a token: guard it, or add one. Names are not refused here; that is your app's.
    pub fn router(self) -> Router {
        self.routes(false, false)
    }

    fn routes(self, checks_host: bool, loopback_only: bool) -> Router {
        let app = App(Arc::new(Inner {
            client: self.client,
            redaction: self.redaction,
            security: security::Security::new(self.tokens, self.hosts, loopback_only),
            limits: self.limits,
            audit: audit::Audit,
            metrics: metrics::Kept::default(),
        }));
        let (operations, document) = api::routes(&app);
        let mut router = operations
            .merge(api::open_routes())
            .route(&format!("{}/openapi.json", table::BASE), get(api::document))
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
        router
            .layer(middleware::from_fn(security::headers))
            .with_state(app)
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
        if !is_local && self.tokens.is_empty() {
            let text = format!(
                "{address} can be reached from other machines, and nobody needs a token; add a \
                 token, or listen at 127.0.0.1"
            );
            return Err(io::Error::new(io::ErrorKind::PermissionDenied, text));
        }
        let loopback_only = is_local;
        Ok(Listening {
            router: self.routes(true, loopback_only),
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
#[derive(Debug)]
#[must_use = "nothing is answered before `run`"]
pub struct Listening {
    router: Router,
    listener: TcpListener,
    address: SocketAddr,
}

impl Listening {
    /// Where.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Answers until `until` is there, then ends what is under way.
    ///
    /// # Errors
    ///
    /// If the socket is broken.
    pub async fn run(self, until: impl Future<Output = ()> + Send + 'static) -> io::Result<()> {
        let service = self
            .router
            .into_make_service_with_connect_info::<SocketAddr>();
        axum::serve(self.listener, service)
            .with_graceful_shutdown(until)
            .await
    }
}
