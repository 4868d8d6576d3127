//! What each client address and each token uses of the server at a time: requests under way and streams.
//!
//! Connections of a peer are counted where they are accepted ([`crate::serve`]). Behind a proxy all
//! clients share one peer, and a token is known only when a request is read, so [`crate::guard`] takes
//! these shares for every request. They are given back when its answer has been sent.

use std::{
    net::IpAddr,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use axum::body::{Body, Bytes, HttpBody};
use hyper::body::{Frame, SizeHint};

use crate::{
    Limits,
    problem::{Kind, Problem},
    shares::{Full, Share, Shares, network},
};

/// When a client that was refused is told to try again.
const RETRY_AFTER: Duration = Duration::from_secs(5);

pub(crate) struct Usage {
    requests_of_clients: Shares<IpAddr>,
    requests_of_tokens: Shares<String>,
    streams_of_clients: Shares<IpAddr>,
    streams_of_tokens: Shares<String>,
}

/// The shares of a request.
#[derive(Default)]
pub(crate) struct Held {
    of_clients: Vec<Share<IpAddr>>,
    of_tokens: Vec<Share<String>>,
}

impl Usage {
    pub(crate) fn new(limits: Limits) -> Usage {
        Usage {
            requests_of_clients: Shares::new(limits.connections_per_peer),
            requests_of_tokens: Shares::new(limits.requests_per_token),
            streams_of_clients: Shares::new(limits.streams_per_peer),
            streams_of_tokens: Shares::new(limits.streams_per_token),
        }
    }

    /// The shares of a client address, if it is known.
    pub(crate) fn of_client(
        &self,
        client: Option<IpAddr>,
        is_stream: bool,
    ) -> Result<Held, Problem> {
        let mut held = Held::default();
        let Some(client) = client else {
            return Ok(held);
        };
        let full = |what, full| refused(&format!("this address ({client})"), what, full);
        let holder = network(client);
        let request = self.requests_of_clients.take(holder);
        held.of_clients.push(request.map_err(|it| full("requests under way", it))?);
        if is_stream {
            let stream = self.streams_of_clients.take(holder);
            held.of_clients.push(stream.map_err(|it| full("streams open", it))?);
        }
        Ok(held)
    }

    /// The shares of a token.
    pub(crate) fn of_token(&self, token: &str, is_stream: bool) -> Result<Held, Problem> {
        let mut held = Held::default();
        let full = |what, full| refused(&format!("the token `{token}`"), what, full);
        let request = self.requests_of_tokens.take(token.to_owned());
        held.of_tokens.push(request.map_err(|it| full("requests under way", it))?);
        if is_stream {
            let stream = self.streams_of_tokens.take(token.to_owned());
            held.of_tokens.push(stream.map_err(|it| full("streams open", it))?);
        }
        Ok(held)
    }
}

fn refused(holder: &str, what: &str, Full { limit, held }: Full) -> Problem {
    let detail = format!(
        "{holder} has {held} {what}, and the limit is {limit}; wait until one ends, or raise the \
         limit where the server is started"
    );
    Problem::new(Kind::TooManyRequests, detail).retry_after(RETRY_AFTER)
}

impl Held {
    pub(crate) fn extend(&mut self, more: Held) {
        self.of_clients.extend(more.of_clients);
        self.of_tokens.extend(more.of_tokens);
    }

    /// A body that holds these shares until it is sent, or until its connection ends.
    pub(crate) fn until_sent(self, body: Body) -> Sending {
        Sending { body, _held: self }
    }
}

/// The body of an answer, with the shares of its request.
pub(crate) struct Sending {
    body: Body,
    _held: Held,
}

impl HttpBody for Sending {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
