//! A proxy that counts round trips.
//!
//! A round trip begins when a client sends something while it waits for no answer, and ends when the
//! server is ready again for everything that was sent since. Statements that are sent together are one
//! trip, however many they are. The messages of both directions are followed by their headers alone.
//!
//! Always true: bytes pass in the order in which they came, and nothing is held back.

use std::{
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread,
};

use crate::Error;

/// The first bytes of a request for TLS, which is answered by one byte without a header.
const TLS_REQUEST: [u8; 8] = [0, 0, 0, 8, 4, 210, 22, 47];

/// What is read at once.
const CHUNK: usize = 64 * 1024;

/// The messages with which a client asks the server to say that it is ready: a simple query, a call,
/// and the end of a group of others.
const ASKS: &[u8] = b"QFS";

/// The message with which the server says that it is ready.
const READY: u8 = b'Z';

/// A proxy in front of one address. Connections that it has taken outlive it.
#[derive(Debug)]
pub struct TripCounter {
    address: SocketAddr,
    counts: Arc<Counts>,
}

#[derive(Debug, Default)]
struct Counts {
    trips: AtomicU64,
    requests: AtomicU64,
    over: AtomicBool,
}

impl TripCounter {
    /// Starts one on a free port in front of `server`.
    ///
    /// # Errors
    ///
    /// If no port can be had.
    pub fn start_before(server: SocketAddr) -> Result<Self, Error> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let listener = listener.map_err(Error::io("listening for a proxy"))?;
        let address = listener.local_addr();
        let address = address.map_err(Error::io("listening for a proxy"))?;
        let counts = Arc::new(Counts::default());
        let counting = counts.clone();
        spawn(move || accept(&listener, server, &counting))?;
        Ok(TripCounter { address, counts })
    }

    /// Where it listens.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// A database of the server behind it.
    pub fn url_for(&self, database: &str) -> String {
        let user = crate::instance::USER;
        format!("postgres://{user}@{}/{database}", self.address)
    }

    /// The round trips of all connections so far, each connection's first included.
    pub fn trips(&self) -> u64 {
        self.counts.trips.load(Ordering::Relaxed)
    }

    /// How often clients have asked the server to say that it is ready: once for each simple query,
    /// and once for each group of other messages.
    pub fn requests(&self) -> u64 {
        self.counts.requests.load(Ordering::Relaxed)
    }
}

impl Drop for TripCounter {
    fn drop(&mut self) {
        self.counts.over.store(true, Ordering::Relaxed);
        // The accepting thread sees it when somebody connects.
        _ = TcpStream::connect(self.address);
    }
}

fn spawn(work: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    let thread = thread::Builder::new().name("trip-counter".to_owned());
    let spawned = thread.spawn(work);
    spawned.map(drop).map_err(Error::io("starting a thread"))
}

fn accept(listener: &TcpListener, server: SocketAddr, counts: &Arc<Counts>) {
    for client in listener.incoming() {
        if counts.over.load(Ordering::Relaxed) {
            return;
        }
        // A client that cannot be served sees its connection closed.
        _ = client.map(|client| serve(client, server, counts));
    }
}

fn serve(client: TcpStream, server: SocketAddr, counts: &Arc<Counts>) -> Option<()> {
    let server = TcpStream::connect(server).ok()?;
    client.set_nodelay(true).ok()?;
    server.set_nodelay(true).ok()?;
    let ways = [
        (client.try_clone().ok()?, server.try_clone().ok()?, Way::Requests),
        (server, client, Way::Replies),
    ];
    let talk = Arc::new(Mutex::new(Talk::default()));
    for (from, to, way) in ways {
        let (talk, counts) = (talk.clone(), counts.clone());
        spawn(move || pass(from, to, way, &talk, &counts)).ok()?;
    }
    Some(())
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

fn pass(mut from: TcpStream, mut to: TcpStream, way: Way, talk: &Mutex<Talk>, counts: &Counts) {
    let mut buffer = vec![0; CHUNK];
    while let Ok(length) = from.read(&mut buffer) {
        let bytes = &buffer[..length];
        // Counted before it is passed on: the answer to it may come at once.
        let (trips, requests) = lock(talk).heard(way, bytes);
        counts.trips.fetch_add(trips, Ordering::Relaxed);
        counts.requests.fetch_add(requests, Ordering::Relaxed);
        if length == 0 || to.write_all(bytes).is_err() {
            break;
        }
    }
    _ = to.shutdown(Shutdown::Write);
    _ = from.shutdown(Shutdown::Read);
}

fn lock(talk: &Mutex<Talk>) -> MutexGuard<'_, Talk> {
    talk.lock().unwrap_or_else(PoisonError::into_inner)
}

/// What is known of one connection.
#[derive(Debug, Default)]
struct Talk {
    requests: Messages,
    replies: Messages,
    /// The client has asked for TLS, and the answer of one byte has not come.
    tls_asked: bool,
    /// The client has sent the message that has no type.
    begun: bool,
    /// How often the server has still to say that it is ready.
    awaited: u64,
    /// A trip is under way.
    open: bool,
}

impl Talk {
    /// Takes in what was sent. Gives the trips that it began, and the requests in it.
    fn heard(&mut self, way: Way, mut bytes: &[u8]) -> (u64, u64) {
        if bytes.is_empty() {
            return (0, 0);
        }
        if way == Way::Replies {
            if std::mem::take(&mut self.tls_asked) {
                bytes = &bytes[1..];
            }
            let ready = self.replies.types(bytes, |kind| kind == READY);
            self.awaited = self.awaited.saturating_sub(ready);
            // A client in the middle of a group sends the rest of it without an answer.
            let whole = self.requests.is_whole() && ASKS.contains(&self.requests.last);
            if ready > 0 && self.awaited == 0 && whole {
                self.open = false;
            }
            return (0, 0);
        }
        if !self.begun && bytes == TLS_REQUEST {
            self.tls_asked = true;
            return (1, 0);
        }
        let trips = u64::from(!std::mem::replace(&mut self.open, true));
        let mut requests = 0;
        if !std::mem::replace(&mut self.begun, true) {
            // As a message of a type: the first is answered with that the server is ready, too.
            requests += self.requests.types(b"S", |_| true);
        }
        requests += self.requests.types(bytes, |kind| ASKS.contains(&kind));
        self.awaited += requests;
        (trips, requests)
    }
}

/// A stream of messages: a byte for the type, four for the length of the rest with themselves.
#[derive(Debug, Default)]
struct Messages {
    header: Vec<u8>,
    /// The type of the message that began last.
    last: u8,
    /// How many bytes of the message are still to come.
    left: usize,
}

impl Messages {
    fn is_whole(&self) -> bool {
        self.left == 0 && self.header.is_empty()
    }

    /// Follows the stream, and counts the messages that begin in it and are wanted.
    fn types(&mut self, mut bytes: &[u8], wanted: impl Fn(u8) -> bool) -> u64 {
        let mut count = 0;
        while !bytes.is_empty() {
            let skipped = self.left.min(bytes.len());
            self.left -= skipped;
            bytes = &bytes[skipped..];
            let Some((first, rest)) = bytes.split_first().filter(|_| self.left == 0) else {
                break;
            };
            self.header.push(*first);
            bytes = rest;
            if let [kind, length @ ..] = &self.header[..]
                && let Ok(length) = <[u8; 4]>::try_from(length)
            {
                self.last = *kind;
                count += u64::from(wanted(*kind));
                self.left = (u32::from_be_bytes(length) as usize).saturating_sub(4);
                self.header.clear();
            }
        }
        count
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(kind: u8, body: &[u8]) -> Vec<u8> {
        let length = u32::try_from(body.len() + 4).unwrap().to_be_bytes();
        [&[kind][..], &length, body].concat()
    }

    fn begun() -> Talk {
        let mut talk = Talk::default();
        let startup = &message(b'?', b"\0\x03\0\0user\0x\0\0")[1..];
        assert_eq!(talk.heard(Way::Requests, startup), (1, 1));
        let ready = [message(b'R', &[0; 4]), message(b'Z', b"I")].concat();
        assert_eq!(talk.heard(Way::Replies, &ready), (0, 0));
        assert_eq!(talk.awaited, 0);
        talk
    }

    #[test]
    fn what_is_sent_together_is_one_trip() {
        let mut talk = begun();
        let group = [message(b'P', b"SELECT"), message(b'S', b"")].concat();
        let both = [message(b'Q', b"BEGIN\0"), group.clone()].concat();
        assert_eq!(talk.heard(Way::Requests, &both), (1, 2));
        // The first answer has come, the second has not.
        talk.heard(Way::Replies, &message(b'Z', b"T"));
        assert_eq!(talk.heard(Way::Requests, &group), (0, 1));
        talk.heard(Way::Replies, &message(b'Z', b"T").repeat(2));
        assert_eq!(talk.heard(Way::Requests, &group), (1, 1));
    }

    #[test]
    fn messages_may_be_cut_anywhere() {
        let mut talk = begun();
        let group = [message(b'B', b"SSSSSZ"), message(b'S', b"")].concat();
        let mut counted = (0, 0);
        for byte in &group {
            let (trips, requests) = talk.heard(Way::Requests, &[*byte]);
            counted = (counted.0 + trips, counted.1 + requests);
        }
        assert_eq!(counted, (1, 1));
        let ready = message(b'Z', b"I");
        ready.iter().for_each(|byte| _ = talk.heard(Way::Replies, &[*byte]));
        assert_eq!(talk.awaited, 0);
    }

    #[test]
    fn group_that_an_older_answer_cuts_is_no_second_trip() {
        let mut talk = begun();
        let query = [message(b'Q', b"BEGIN\0"), message(b'P', b"SELECT")].concat();
        assert_eq!(talk.heard(Way::Requests, &query), (1, 1));
        talk.heard(Way::Replies, &message(b'Z', b"T"));
        assert_eq!(talk.heard(Way::Requests, &message(b'S', b"")), (0, 1));
    }

    #[test]
    fn refused_tls_is_a_trip_and_no_message() {
        let mut talk = Talk::default();
        assert_eq!(talk.heard(Way::Requests, &TLS_REQUEST), (1, 0));
        talk.heard(Way::Replies, b"N");
        let startup = &message(b'?', b"\0\x03\0\0\0")[1..];
        assert_eq!(talk.heard(Way::Requests, startup), (1, 1));
    }
}
