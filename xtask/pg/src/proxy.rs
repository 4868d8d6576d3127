//! A network between a client and a server that does as it is told.
//!
//! Each connection has two directions, requests (client to server) and replies. In each, one thread
//! reads, and passes on at once, or into a queue while bytes are held back; another thread writes from
//! the queue. So bytes that are held back have been taken from their sender: a client that is gone has
//! sent its batch all the same, and the server gets it when it is released, the end of the connection
//! behind it.
//!
//! 1. A connection is accepted, or dropped at once while connections are [refused](Proxy::refuse).
//! 2. Its application name is known as soon as its first message is, and before that is passed on.
//! 3. It is over when both directions have ended.
//!
//! Always true: when [`Proxy::hold`] has returned, not one more byte passes until it is released.

use std::{
    collections::VecDeque,
    io::{Read, Write},
    net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream},
    sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::Error;

mod startup;

use startup::Startup;

/// Which connections are meant.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Which {
    /// Every one, now and later.
    All,
    /// Those with this application name, now and later.
    Named(String),
    /// Those whose application name begins so, now and later.
    NameStarts(String),
    /// The one that connected as this, the first being 0.
    Number(usize),
}

impl Which {
    fn is(&self, number: usize, name: Option<&str>) -> bool {
        match self {
            Which::All => true,
            Which::Named(wanted) => name == Some(wanted),
            Which::NameStarts(start) => name.is_some_and(|name| name.starts_with(start)),
            Which::Number(wanted) => *wanted == number,
        }
    }
}

/// What is known of a connection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Connection {
    /// The how many-th it was to connect, the first being 0.
    pub number: usize,
    /// What the client calls itself; `None` before its first message, or if that is encrypted.
    pub application_name: Option<String>,
    /// Whether anything can still pass.
    pub open: bool,
    /// How many bytes of the client the server has not got yet.
    pub requests_held: usize,
    /// How many bytes of the server the client has not got yet.
    pub replies_held: usize,
}

/// A proxy in front of one address. Dropping it drops all connections.
#[derive(Debug)]
pub struct Proxy {
    address: SocketAddr,
    network: Arc<Network>,
}

impl Proxy {
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
        let network = Arc::new(Network {
            server,
            state: Mutex::new(State::default()),
            watched: Condvar::new(),
        });
        let accepting = Arc::clone(&network);
        spawn(move || accepting.accept(&listener))?;
        Ok(Proxy { address, network })
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

    /// Keeps back what these clients send. It is taken from them, and passed on by
    /// [`release`](Proxy::release). Waits until what is being passed on at this moment has been.
    pub fn hold(&self, which: Which) {
        self.network.hold(Way::Requests, which);
    }

    /// Keeps back what the server sends to these clients.
    pub fn hold_replies(&self, which: Which) {
        self.network.hold(Way::Replies, which);
    }

    /// Ends the holding of requests and of replies that was asked for in the same words.
    pub fn release(&self, which: &Which) {
        self.network.change(|state| state.holds.retain(|(_, held)| held != which));
    }

    /// Ends all holding.
    pub fn release_all(&self) {
        self.network.change(|state| state.holds.clear());
    }

    /// Drops these connections on both sides. What was held is lost.
    pub fn cut(&self, which: &Which) {
        self.network.cut(which, |link| {
            link.lose();
            link.close();
        });
    }

    /// Drops these connections on the client's side alone. What it had sent still reaches the
    /// server, when it is released.
    pub fn cut_client(&self, which: &Which) {
        self.network.cut(which, |link| {
            if let Some(Ends { client, .. }) = &link.ends {
                _ = client.shutdown(Shutdown::Both);
            }
        });
    }

    /// Drops every new connection at once.
    pub fn refuse(&self) {
        self.network.change(|state| state.refusing = true);
    }

    /// Takes new connections again.
    pub fn accept(&self) {
        self.network.change(|state| state.refusing = false);
    }

    /// All connections that there have been, in their order.
    pub fn connections(&self) -> Vec<Connection> {
        self.network.state().connections()
    }

    /// Whether replies to these clients are held.
    #[must_use]
    pub fn holds_replies(&self, which: &Which) -> bool {
        let state = self.network.state();
        let mut links = state.links.iter().enumerate();
        links.any(|(number, link)| {
            !link.replies.bytes.is_empty() && which.is(number, link.name.as_deref())
        })
    }

    /// Waits until this is so of the connections, at most for `time`, and says whether it is.
    #[must_use]
    pub fn wait_until(&self, time: Duration, is_so: impl Fn(&[Connection]) -> bool) -> bool {
        let end = Instant::now() + time;
        let mut state = self.network.state();
        loop {
            if is_so(&state.connections()) {
                return true;
            }
            let left = end.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return false;
            }
            let waited = self.network.watched.wait_timeout(state, left);
            state = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
    }

    /// Waits until requests of these clients are held that were sent after the holding began.
    #[must_use]
    pub fn wait_until_held(&self, time: Duration, which: &Which) -> bool {
        self.wait_until(time, |connections| {
            connections.iter().any(|connection| {
                connection.requests_held > 0
                    && which.is(connection.number, connection.application_name.as_deref())
            })
        })
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        self.network.change(|state| state.over = true);
        self.cut(&Which::All);
        // The accepting thread sees that it is over when somebody connects.
        _ = TcpStream::connect(self.address);
    }
}

/// The two directions of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Requests,
    Replies,
}

#[derive(Debug)]
struct Network {
    server: SocketAddr,
    state: Mutex<State>,
    /// Notified after every change of `state`, for callers of the proxy. The threads that write wait
    /// for their own queues ([`Queue::changed`]): one for all would wake every thread of every
    /// connection for every message.
    watched: Condvar,
}

#[derive(Debug, Default)]
struct State {
    links: Vec<Link>,
    holds: Vec<(Way, Which)>,
    refusing: bool,
    /// The proxy was dropped.
    over: bool,
}

/// One connection.
#[derive(Debug)]
struct Link {
    name: Option<String>,
    /// `None` when it is over.
    ends: Option<Ends>,
    requests: Queue,
    replies: Queue,
}

#[derive(Debug)]
struct Ends {
    client: TcpStream,
    server: TcpStream,
}

/// What was read in one direction and is not written yet.
#[derive(Debug, Default)]
struct Queue {
    bytes: VecDeque<u8>,
    /// Nothing more will be read.
    read_ended: bool,
    /// Nothing more will be written.
    write_ended: bool,
    /// How many bytes are being written at the moment; they are out of `bytes`.
    passing: usize,
    /// Notified when the thread that writes may have something to do.
    changed: Arc<Condvar>,
}

impl Link {
    fn queue(&mut self, way: Way) -> &mut Queue {
        match way {
            Way::Requests => &mut self.requests,
            Way::Replies => &mut self.replies,
        }
    }

    fn is_open(&self) -> bool {
        !(self.requests.write_ended && self.replies.write_ended)
    }

    /// Ends the threads that still read.
    fn close(&mut self) {
        if let Some(Ends { client, server }) = self.ends.take() {
            _ = client.shutdown(Shutdown::Both);
            _ = server.shutdown(Shutdown::Both);
        }
    }

    fn lose(&mut self) {
        for queue in [&mut self.requests, &mut self.replies] {
            queue.bytes.clear();
            queue.write_ended = true;
        }
    }
}

impl State {
    fn is_held(&self, way: Way, number: usize) -> bool {
        let name = self.links[number].name.as_deref();
        let held = |(held, which): &(Way, Which)| *held == way && which.is(number, name);
        self.holds.iter().any(held)
    }

    fn connections(&self) -> Vec<Connection> {
        let links = self.links.iter().enumerate();
        links
            .map(|(number, link)| Connection {
                number,
                application_name: link.name.clone(),
                open: link.is_open(),
                requests_held: link.requests.bytes.len(),
                replies_held: link.replies.bytes.len(),
            })
            .collect()
    }
}

impl Network {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Changes something that concerns every connection.
    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> T {
        let mut state = self.state();
        let changed = change(&mut state);
        for link in &state.links {
            link.requests.changed.notify_one();
            link.replies.changed.notify_one();
        }
        self.watched.notify_all();
        changed
    }

    fn hold(&self, way: Way, which: Which) {
        // Writers need not be told: they look before they write.
        let mut state = self.state();
        state.holds.push((way, which));
        // What is being written at this moment has passed.
        let passing = |state: &mut State| {
            (0..state.links.len())
                .any(|no| state.is_held(way, no) && state.links[no].queue(way).passing > 0)
        };
        while passing(&mut state) {
            state = wait(&self.watched, state);
        }
    }

    fn cut(&self, which: &Which, cut: impl Fn(&mut Link)) {
        self.change(|state| {
            for (number, link) in state.links.iter_mut().enumerate() {
                if which.is(number, link.name.as_deref()) {
                    cut(link);
                }
            }
        });
    }

    fn accept(self: &Arc<Self>, listener: &TcpListener) {
        for client in listener.incoming() {
            let State { refusing, over, .. } = *self.state();
            if over {
                return;
            }
            // A connection that was lost before it was looked at, or that is refused by the server,
            // is dropped, which is what its client would see without us.
            if let Ok(client) = client
                && !refusing
                && let Ok(server) = TcpStream::connect(self.server)
            {
                _ = self.join(&client, &server);
            }
        }
    }

    /// Four threads for a connection: there are never many of them.
    fn join(self: &Arc<Self>, client: &TcpStream, server: &TcpStream) -> Result<(), Error> {
        let copy = |stream: &TcpStream| stream.try_clone().map_err(Error::io("a connection"));
        for stream in [client, server] {
            _ = stream.set_nodelay(true);
        }
        let link = Link {
            name: None,
            ends: Some(Ends { client: copy(client)?, server: copy(server)? }),
            requests: Queue::default(),
            replies: Queue::default(),
        };
        let number = self.change(|state| {
            state.links.push(link);
            state.links.len() - 1
        });
        let read = |way, from, to| {
            let network = Arc::clone(self);
            spawn(move || network.read(number, way, from, to))
        };
        let write = |way, to| {
            let network = Arc::clone(self);
            spawn(move || network.write(number, way, to))
        };
        write(Way::Requests, copy(server)?)?;
        write(Way::Replies, copy(client)?)?;
        read(Way::Requests, copy(client)?, copy(server)?)?;
        read(Way::Replies, copy(server)?, copy(client)?)
    }

    fn read(&self, number: usize, way: Way, mut from: TcpStream, mut to: TcpStream) {
        let mut startup = (way == Way::Requests).then(Startup::default);
        let mut bytes = [0; 16 * 1024];
        loop {
            // A connection that was torn down has ended like any other.
            let read = from.read(&mut bytes).unwrap_or(0);
            let bytes = &bytes[..read];
            if let Some(name) = startup.as_mut().and_then(|startup| startup.name_in(bytes)) {
                startup = None;
                self.state().links[number].name = Some(name);
            }
            if self.passes(number, way, bytes) {
                let written = to.write_all(bytes).is_ok();
                self.passed(number, way, written);
            }
            if read == 0 {
                return;
            }
        }
    }

    /// Whether bytes that were read go on at once. Otherwise they are queued.
    fn passes(&self, number: usize, way: Way, bytes: &[u8]) -> bool {
        let mut state = self.state();
        let held = state.is_held(way, number);
        let queue = state.links[number].queue(way);
        let is_idle = queue.bytes.is_empty() && queue.passing == 0 && !queue.write_ended;
        if is_idle && !held && !bytes.is_empty() {
            queue.passing = bytes.len();
            return true;
        }
        queue.read_ended |= bytes.is_empty();
        if !queue.write_ended {
            queue.bytes.extend(bytes);
        }
        queue.changed.notify_one();
        self.watched.notify_all();
        false
    }

    /// Bytes are out of the proxy's hands.
    fn passed(&self, number: usize, way: Way, written: bool) {
        let mut state = self.state();
        let queue = state.links[number].queue(way);
        queue.passing = 0;
        if !written {
            queue.write_ended = true;
            queue.changed.notify_one();
        }
        self.watched.notify_all();
    }

    fn write(&self, number: usize, way: Way, mut to: TcpStream) {
        while let Some(bytes) = self.next(number, way) {
            let written = to.write_all(&bytes).is_ok();
            self.passed(number, way, written);
        }
        _ = to.shutdown(Shutdown::Write);
        let mut state = self.state();
        let link = &mut state.links[number];
        let queue = link.queue(way);
        queue.bytes.clear();
        queue.write_ended = true;
        if !link.is_open() {
            link.close();
        }
        self.watched.notify_all();
    }

    /// Waits for what may be written next; `None` when there will be nothing more.
    fn next(&self, number: usize, way: Way) -> Option<Vec<u8>> {
        let mut state = self.state();
        loop {
            let held = state.is_held(way, number);
            let queue = state.links[number].queue(way);
            if queue.write_ended {
                return None;
            }
            if !held && !queue.bytes.is_empty() {
                let bytes: Vec<u8> = queue.bytes.drain(..).collect();
                queue.passing = bytes.len();
                self.watched.notify_all();
                return Some(bytes);
            }
            if !held && queue.read_ended {
                return None;
            }
            let changed = Arc::clone(&queue.changed);
            state = wait(&changed, state);
        }
    }
}

fn wait<'a>(changed: &Condvar, state: MutexGuard<'a, State>) -> MutexGuard<'a, State> {
    let woken = changed.wait(state);
    woken.unwrap_or_else(PoisonError::into_inner)
}

fn spawn(run: impl FnOnce() + Send + 'static) -> Result<(), Error> {
    thread::Builder::new()
        .name("everstep-proxy".into())
        .stack_size(128 * 1024)
        .spawn(run)
        .map_err(Error::io("starting a thread for a proxy"))?;
    Ok(())
}
