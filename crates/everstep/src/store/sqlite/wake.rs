//! Wake-ups between the stores that have the same file open: a datagram socket beside the file.
//!
//! A datagram is a list of run numbers of 8 bytes each, the lowest byte first; an empty one says
//! "look for yourself". It is a hint: sending never blocks, and what cannot be sent is dropped.
//!
//! Always true: a socket is removed by the runner that made it, or, after that runner was killed, by
//! the next runner that starts. Sockets are made and removed only under the write lock of the file,
//! so that a socket which is being made is not taken for one that was left behind.

use std::{
    collections::HashMap,
    ffi::OsString,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, PermissionsExt},
        net::UnixDatagram,
    },
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

use uuid::Uuid;

use crate::{run_id::RunNo, store::WakeFn};

/// More runs than this are sent as "look for yourself".
const RUNS_MAX: usize = 512;

/// The address of a socket has room for 104 bytes on some systems, with a zero at the end.
const PATH_BYTES_MAX: usize = 100;

/// How long the list of others is used before it is read again.
const PEERS_KEPT: Duration = Duration::from_secs(1);

/// Sends wake-ups, and knows at which addresses the runners of this store listen.
pub(crate) struct Wakes {
    sender: Option<UnixDatagram>,
    peers: Mutex<Peers>,
    own: Mutex<HashMap<Uuid, String>>,
}

#[derive(Default)]
struct Peers {
    list: Vec<(Uuid, String)>,
    read_at: Option<Instant>,
}

/// A socket that listens until it is dropped.
pub(crate) struct Listener {
    path: PathBuf,
    is_stopped: Arc<AtomicBool>,
}

impl Wakes {
    pub(crate) fn new() -> Wakes {
        let sender = UnixDatagram::unbound().and_then(|socket| {
            socket.set_nonblocking(true)?;
            Ok(socket)
        });
        // Without a socket there are no hints, and runs are found by the slow poll.
        Wakes { sender: sender.ok(), peers: Mutex::default(), own: Mutex::default() }
    }

    /// The address at which this runner listens, if it listens here.
    pub(crate) fn address_of(&self, runner: Uuid) -> Option<String> {
        lock(&self.own).get(&runner).cloned()
    }

    pub(crate) fn set_address(&self, runner: Uuid, address: String) {
        lock(&self.own).insert(runner, address);
    }

    /// Makes the next wake-up read the list of others.
    pub(crate) fn forget_peers(&self) {
        lock(&self.peers).read_at = None;
    }

    /// Sends to all others; `read_peers` gives the list if it is not fresh.
    pub(crate) fn send(
        &self,
        me: Option<Uuid>,
        runs: &[RunNo],
        read_peers: impl FnOnce() -> Option<Vec<(Uuid, String)>>,
    ) {
        let Some(sender) = &self.sender else { return };
        let mut peers = lock(&self.peers);
        let is_stale = peers.read_at.is_none_or(|at| at.elapsed() >= PEERS_KEPT);
        if is_stale && let Some(list) = read_peers() {
            *peers = Peers { list, read_at: Some(Instant::now()) };
        }
        let datagram = encode(runs);
        // A full socket is about to be read anyway; any other failure means that nobody is there.
        peers.list.retain(|(id, address)| {
            Some(*id) == me
                || match sender.send_to(&datagram, address) {
                    Ok(_) => true,
                    Err(error) => error.kind() == std::io::ErrorKind::WouldBlock,
                }
        });
    }
}

/// Whether nobody listens at this address any more: a socket is gone with its process, also when
/// that was killed.
pub(crate) fn is_deserted(file: &Path, address: &str) -> bool {
    let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(address));
    match connected.map_err(|error| error.kind()) {
        Err(std::io::ErrorKind::ConnectionRefused) => true,
        // Beside the file it would be seen if it were there; in a temporary directory it may be
        // that of another container.
        Err(std::io::ErrorKind::NotFound) => Path::new(address).parent() == file.parent(),
        _ => false,
    }
}

/// The sockets of all runners of the file that can be seen here.
pub(crate) fn sockets_of(file: &Path) -> Vec<PathBuf> {
    let mut found = Vec::new();
    let mut beside = file.file_name().unwrap_or_default().to_owned();
    beside.push("-wake-");
    let elsewhere = OsString::from(elsewhere_prefix(file));
    let places =
        [(file.parent().map(Path::to_owned), beside), (Some(std::env::temp_dir()), elsewhere)];
    for (directory, prefix) in places {
        let entries = directory.and_then(|directory| std::fs::read_dir(directory).ok());
        for entry in entries.into_iter().flatten().flatten() {
            let is_socket = entry.file_type().is_ok_and(|found| found.is_socket());
            if is_socket && entry.file_name().as_bytes().starts_with(prefix.as_bytes()) {
                found.push(entry.path());
            }
        }
    }
    found
}

/// Removes those of the sockets at which nobody listens any more. The caller holds the write lock.
pub(crate) fn remove_deserted(sockets: &[PathBuf]) {
    for path in sockets {
        let connected = UnixDatagram::unbound().and_then(|socket| socket.connect(path));
        if connected.is_err_and(|error| error.kind() == std::io::ErrorKind::ConnectionRefused) {
            drop(std::fs::remove_file(path));
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Listener {
    /// Binds a socket for this runner of the file and calls `wake` from a thread of its own.
    pub(crate) fn bind(file: &Path, runner: Uuid, wake: WakeFn) -> std::io::Result<Listener> {
        let path = socket_path(file, runner);
        // Named after this very runner, so what is there is its own from before.
        drop(std::fs::remove_file(&path));
        let socket = UnixDatagram::bind(&path)?;
        let is_stopped = Arc::new(AtomicBool::new(false));
        let listener = Listener { path, is_stopped: Arc::clone(&is_stopped) };
        std::fs::set_permissions(&listener.path, PermissionsExt::from_mode(0o600))?;
        thread::Builder::new()
            .name("everstep-wake".to_owned())
            .spawn(move || listen(&socket, &is_stopped, &wake))?;
        Ok(listener)
    }

    pub(crate) fn address(&self) -> Option<String> {
        self.path.to_str().map(str::to_owned)
    }
}

impl Drop for Listener {
    fn drop(&mut self) {
        self.is_stopped.store(true, Ordering::SeqCst);
        // The thread waits for a datagram and ends with this one. It is not joined: it may be the
        // one that drops this, in its callback.
        if let Ok(socket) = UnixDatagram::unbound() {
            drop(socket.set_nonblocking(true).and_then(|()| socket.send_to(&[], &self.path)));
        }
        drop(std::fs::remove_file(&self.path));
    }
}

fn listen(socket: &UnixDatagram, is_stopped: &AtomicBool, wake: &WakeFn) {
    let mut buffer = [0; RUNS_MAX * 8];
    loop {
        let received = socket.recv(&mut buffer);
        if is_stopped.load(Ordering::SeqCst) {
            return;
        }
        match received {
            Ok(bytes) => wake(&decode(&buffer[..bytes])),
            Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
            // Runs are then found by the slow poll.
            Err(_) => return,
        }
    }
}

fn encode(runs: &[RunNo]) -> Vec<u8> {
    if runs.len() > RUNS_MAX {
        return Vec::new();
    }
    runs.iter().flat_map(|run| run.0.to_le_bytes()).collect()
}

fn decode(datagram: &[u8]) -> Vec<RunNo> {
    let (numbers, rest) = datagram.as_chunks::<8>();
    // Something else than we send: look for yourself.
    if !rest.is_empty() {
        return Vec::new();
    }
    numbers.iter().map(|bytes| RunNo(i64::from_le_bytes(*bytes))).collect()
}

/// Beside the file; in the directory for temporary files if that is too long for an address.
fn socket_path(file: &Path, runner: Uuid) -> PathBuf {
    let runner = runner.as_simple().to_string();
    let mut beside = file.as_os_str().to_owned();
    // The end of a UUID of version 7 is random, its beginning is not.
    beside.push(format!("-wake-{}", &runner[20..]));
    if beside.len() <= PATH_BYTES_MAX && beside.to_str().is_some() {
        return beside.into();
    }
    std::env::temp_dir().join(format!("{}{}", elsewhere_prefix(file), &runner[20..]))
}

/// How the names of sockets begin that are not beside their file.
fn elsewhere_prefix(file: &Path) -> String {
    let hash = crate::random::hash(0, file.as_os_str().as_bytes());
    format!("everstep-{hash:016x}-")
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;
    use crate::store::sqlite::testing::Directory;

    #[test]
    fn a_long_list_and_a_foreign_datagram_mean_look_for_yourself() {
        assert_eq!(decode(&encode(&[RunNo(1), RunNo(-2)])), [RunNo(1), RunNo(-2)]);
        assert!(encode(&vec![RunNo(1); RUNS_MAX + 1]).is_empty());
        assert_eq!(encode(&vec![RunNo(1); RUNS_MAX]).len(), RUNS_MAX * 8);
        assert!(decode(b"hello").is_empty());
    }

    #[test]
    fn a_socket_is_private_and_removed_even_where_the_path_is_long() {
        let directory = Directory::new();
        let long = directory.path(&"x".repeat(120)).join("app.db");
        for file in [directory.path("app.db"), long] {
            let runner = Uuid::from_u128(7);
            let (sender, receiver) = mpsc::channel();
            let wake: WakeFn = Arc::new(move |runs| drop(sender.send(runs.to_vec())));
            let listener = Listener::bind(&file, runner, wake).expect("bind");
            let path = PathBuf::from(listener.address().expect("an address"));
            let mode = std::fs::metadata(&path).expect("the socket").permissions().mode();
            assert_eq!(mode & 0o777, 0o600);
            let wakes = Wakes::new();
            let peers = vec![
                (Uuid::from_u128(8), directory.path("nobody").display().to_string()),
                (runner, path.display().to_string()),
            ];
            wakes.send(None, &[RunNo(5)], || Some(peers));
            let got = receiver.recv_timeout(Duration::from_secs(60)).expect("woken");
            assert_eq!(got, [RunNo(5)]);
            drop(listener);
            assert!(!path.exists());
        }
    }
}
