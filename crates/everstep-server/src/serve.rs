//! Connections: a bounded number at a time, in all and for each peer address.
//!
//! A client that only opens connections, or sends a request letter by letter, holds one of a bounded
//! number of places for a bounded time.
//!
//! A connection beyond these limits is still accepted, on a reserve: it serves one request, which is
//! answered if it is a probe and refused with a problem document if it is anything else. So probes and
//! `/metrics` are answered when all other connections are taken. Connections on the reserve are short:
//! the head of the request must arrive within [`RESERVE_HEAD`], and no probe takes long. When the
//! reserve is taken too, the next connection waits in the backlog of the socket.

use std::{
    io,
    net::{IpAddr, SocketAddr},
    sync::Arc,
    time::Duration,
};

use axum::{
    Router,
    body::Body,
    extract::{ConnectInfo, Request},
    middleware::Next,
    response::{IntoResponse, Response},
};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower::ServiceExt;

use crate::{
    App, Limits,
    problem::{Kind, Problem},
    proxies::Proxies,
    shares::{Full, Share, Shares, network},
};

/// The requests that are answered on the reserve, too.
const PROBES: [&str; 3] = ["/healthz", "/readyz", "/metrics"];

/// How long the head of a request may take on the reserve.
const RESERVE_HEAD: Duration = Duration::from_secs(1);

/// When a client that was refused is told to try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// How long requests that are under way may still take when the server ends.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How long nobody is let in after the system has refused to, since it has no more to give.
const EXHAUSTED: Duration = Duration::from_secs(1);

/// Answers until the server ends. Then requests that are under way have some seconds to be answered,
/// and are cut off.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    app: App,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let limits = app.limits;
    let places = Places::new(limits);
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // The semaphore is never closed.
            let spare = places.reserve.clone().acquire_owned().await;
            let accepted = listener.accept().await;
            (spare, accepted)
        };
        tokio::select! {
            () = closed(&mut closing) => break,
            Some(_) = connections.join_next() => {}
            (spare, accepted) = next => {
                let (stream, peer) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        refused(&error).await;
                        continue;
                    }
                };
                let Ok(spare) = spare else { break };
                let Some(place) = places.take(peer.ip(), spare, &app.proxies) else {
                    tracing::debug!(%peer, "a connection was dropped: its peer has too many");
                    continue;
                };
                let (router, closing) = (router.clone(), closing.clone());
                connections.spawn(connection((stream, peer), router, limits, closing, place));
            }
        }
    }
    drop(listener);
    let ended = async { while connections.join_next().await.is_some() {} };
    // What goes on longer is cut off as the set is dropped.
    let _ = tokio::time::timeout(LAST_ANSWERS, ended).await;
    Ok(())
}

/// The places for connections.
struct Places {
    connections: Arc<Semaphore>,
    of_peers: Shares<IpAddr>,
    /// Taken before a connection is accepted, and given back when it has a place of its own.
    reserve: Arc<Semaphore>,
    /// No peer has more than half of the reserve.
    reserve_of_peers: Shares<IpAddr>,
    limits: Limits,
}

/// The place of one connection, until it is dropped.
struct Place {
    _permit: OwnedSemaphorePermit,
    _of_peer: Option<Share<IpAddr>>,
    /// Why this connection is on the reserve, if it is.
    refusal: Option<Refusal>,
}

/// Why a connection has only a place on the reserve.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Refusal {
    /// All connections are taken: so many.
    All(usize),
    /// Its peer has too many of them.
    Peer(Full),
}

impl Places {
    fn new(limits: Limits) -> Places {
        Places {
            connections: Arc::new(Semaphore::new(limits.connections)),
            of_peers: Shares::new(limits.connections_per_peer),
            reserve: Arc::new(Semaphore::new(limits.probe_connections)),
            reserve_of_peers: Shares::new(limits.probe_connections.div_ceil(2)),
            limits,
        }
    }

    /// A place for a connection from this peer; none if the peer has its part of the reserve, too.
    fn take(&self, peer: IpAddr, spare: OwnedSemaphorePermit, proxies: &Proxies) -> Option<Place> {
        let holder = network(peer);
        // All clients of a proxy share its address: they are told apart when their requests are read.
        let of_peer = match proxies.trusts(peer) {
            true => Ok(None),
            false => self.of_peers.take(holder).map(Some),
        };
        let refusal = match of_peer {
            Ok(of_peer) => match self.connections.clone().try_acquire_owned() {
                Ok(permit) => {
                    return Some(Place { _permit: permit, _of_peer: of_peer, refusal: None });
                }
                Err(_) => Refusal::All(self.limits.connections),
            },
            Err(full) => Refusal::Peer(full),
        };
        Some(Place {
            _permit: spare,
            _of_peer: Some(self.reserve_of_peers.take(holder).ok()?),
            refusal: Some(refusal),
        })
    }
}

/// Answers probes on the reserve, and refuses all other requests there.
pub(crate) async fn reserved(request: Request, next: Next) -> Response {
    let refusal = request.extensions().get::<Refusal>().copied();
    match refusal {
        Some(refusal) if !PROBES.contains(&request.uri().path()) => {
            Problem::from(refusal).into_response()
        }
        _ => next.run(request).await,
    }
}

impl From<Refusal> for Problem {
    fn from(refusal: Refusal) -> Problem {
        let problem = match refusal {
            Refusal::All(limit) => {
                let detail = format!(
                    "the server has {limit} connections open, and the limit is {limit}; try again \
                     later, or raise the limit on connections"
                );
                Problem::new(Kind::Busy, detail)
            }
            Refusal::Peer(Full { limit, held }) => {
                let detail = format!(
                    "this address has {held} connections open, and the limit is {limit} for each \
                     address; close some, or raise the limit on connections per peer; if the \
                     address is a reverse proxy, name it as a trusted proxy"
                );
                Problem::new(Kind::TooManyRequests, detail)
            }
        };
        problem.retry_after(RETRY_AFTER)
    }
}

/// Until the server ends.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // Without a sender there is no server, either.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// A connection that could not be had is its client's trouble, or that of the whole system, which
/// passes.
async fn refused(error: &io::Error) {
    use io::ErrorKind as K;
    let is_clients =
        matches!(error.kind(), K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset);
    if !is_clients {
        tracing::warn!(%error, "no connection can be taken; trying again");
        tokio::time::sleep(EXHAUSTED).await;
    }
}

async fn connection(
    (stream, peer): (TcpStream, SocketAddr),
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
    place: Place,
) {
    let refusal = place.refusal;
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        if let Some(refusal) = refusal {
            request.extensions_mut().insert(refusal);
        }
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(match refusal {
            Some(_) => limits.header.min(RESERVE_HEAD),
            None => limits.header,
        })
        .keep_alive(refusal.is_none());
    let mut connection = std::pin::pin!(builder.serve_connection(TokioIo::new(stream), service));
    let ended = tokio::select! {
        ended = connection.as_mut() => ended,
        () = closed(&mut closing) => {
            connection.as_mut().graceful_shutdown();
            connection.await
        }
    };
    if let Err(error) = ended {
        // Whoever is at the other end has gone, or was too slow.
        tracing::debug!(%error, %peer, "a connection ended");
    }
}
