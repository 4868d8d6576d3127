//! Connections: so many at a time, each with a limit on how long it takes to say what it wants.
//!
//! Whoever only opens connections, or sends a request letter by letter, holds one of a bounded number
//! of places for a bounded time.

use std::{io, net::SocketAddr, sync::Arc, time::Duration};

use axum::{Router, body::Body, extract::ConnectInfo};
use hyper::{body::Incoming, server::conn::http1, service::service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::{OwnedSemaphorePermit, Semaphore, watch},
    task::JoinSet,
};
use tower::ServiceExt;

use crate::Limits;

/// How long requests that are under way may still take when the server ends.
const LAST_ANSWERS: Duration = Duration::from_secs(10);

/// How long nobody is let in after the system has refused to, since it has no more to give.
const EXHAUSTED: Duration = Duration::from_secs(1);

/// Answers until the server ends. Then requests that are under way have some seconds to be answered,
/// and are cut off.
pub(crate) async fn serve(
    listener: TcpListener,
    router: Router,
    limits: Limits,
    mut closing: watch::Receiver<bool>,
) -> io::Result<()> {
    let places = Arc::new(Semaphore::new(limits.connections.max(1)));
    let mut connections = JoinSet::new();
    loop {
        let next = async {
            // It is never closed.
            let place = places.clone().acquire_owned().await;
            let accepted = listener.accept().await;
            (place, accepted)
        };
        tokio::select! {
            () = closed(&mut closing) => break,
            Some(_) = connections.join_next() => {}
            (place, accepted) = next => {
                let (stream, peer) = match accepted {
                    Ok(accepted) => accepted,
                    Err(error) => {
                        refused(&error).await;
                        continue;
                    }
                };
                let Ok(place) = place else { break };
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

/// Until the server ends.
async fn closed(closing: &mut watch::Receiver<bool>) {
    // Without a sender there is no server, either.
    let _ = closing.wait_for(|closing| *closing).await;
}

/// A connection that could not be had is its client's trouble, or that of the whole system, which
/// passes.
async fn refused(error: &io::Error) {
    use io::ErrorKind as K;
    let is_clients = matches!(
        error.kind(),
        K::ConnectionRefused | K::ConnectionAborted | K::ConnectionReset
    );
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
    _place: OwnedSemaphorePermit,
) {
    let service = service_fn(move |request: hyper::Request<Incoming>| {
        let mut request = request.map(Body::new);
        request.extensions_mut().insert(ConnectInfo(peer));
        router.clone().oneshot(request)
    });
    let mut builder = http1::Builder::new();
    builder
        .timer(TokioTimer::new())
        .header_read_timeout(limits.header);
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
