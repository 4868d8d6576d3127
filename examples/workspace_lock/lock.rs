//! The lock of a workspace: a file that names its holder and those who wait, in order.
//!
//! Any number of processes may use it. A change is made under the lock of the operating system and
//! written in one piece, so a process that dies leaves the file as it was or as it is to be.
//!
//! Always true:
//! - Ownership is handed over in the file first, and told after: whoever is told owns the lock.
//! - Everything may be done twice by the same request, and has the effect of once.

use std::{
    collections::VecDeque,
    fs::{self, File},
    io,
    path::{Path, PathBuf},
};

use everstep::Token;
use serde::{Deserialize, Serialize};

/// A folder that one request at a time may work in.
pub(crate) struct Workspace {
    folder: PathBuf,
}

#[derive(Default, Serialize, Deserialize)]
struct State {
    holder: Option<Claimant>,
    queue: VecDeque<Claimant>,
}

/// A request that holds the lock or waits for it.
#[derive(Clone, Serialize, Deserialize)]
pub(crate) struct Claimant {
    pub(crate) request: String,
    /// What it is told by that it owns the lock; absent if it never had to wait.
    pub(crate) token: Option<Token>,
}

impl Workspace {
    pub(crate) fn new(folder: impl AsRef<Path>) -> Workspace {
        let folder = folder.as_ref().to_owned();
        Workspace { folder }
    }

    /// Takes the lock, if it is free or this request's already.
    pub(crate) fn acquire(&self, request: &str) -> io::Result<bool> {
        self.change(|state| {
            let holder = state
                .holder
                .get_or_insert_with(|| Claimant { request: request.to_owned(), token: None });
            holder.request == request
        })
    }

    /// Waits in line, or takes the lock if it has become free. Gives whoever has to be told that it
    /// owns the lock.
    pub(crate) fn enqueue(&self, request: &str, token: &Token) -> io::Result<Option<Claimant>> {
        self.change(|state| {
            let claimant = Claimant { request: request.to_owned(), token: Some(token.clone()) };
            match &state.holder {
                None => state.holder = Some(claimant),
                Some(holder) if holder.request == request => {}
                Some(_) => {
                    if !state.queue.iter().any(|other| other.request == request) {
                        state.queue.push_back(claimant);
                    }
                }
            }
            state.holder.clone()
        })
    }

    /// Gives the lock to the next in line, if this request holds it; leaves the line, if it waits.
    /// Gives whoever has to be told that it owns the lock: the holder, new or not, since whoever
    /// handed it the lock may have died before telling it.
    pub(crate) fn release(&self, request: &str) -> io::Result<Option<Claimant>> {
        self.change(|state| {
            state.queue.retain(|other| other.request != request);
            let is_holder = |holder: &Claimant| holder.request == request;
            if state.holder.as_ref().is_some_and(is_holder) {
                state.holder = state.queue.pop_front();
            }
            state.holder.clone()
        })
    }

    /// The request that holds the lock, and those that wait.
    pub(crate) fn look(&self) -> io::Result<(Option<String>, Vec<String>)> {
        self.change(|state| {
            let holder = state.holder.as_ref().map(|holder| holder.request.clone());
            let queue = state.queue.iter().map(|other| other.request.clone());
            (holder, queue.collect())
        })
    }

    fn change<T>(&self, change: impl FnOnce(&mut State) -> T) -> io::Result<T> {
        let guard = File::create(self.folder.join("lock.guard"))?;
        guard.lock()?;
        let (path, new) = (self.folder.join("lock"), self.folder.join("lock.new"));
        let mut state = match fs::read(&path) {
            Ok(bytes) => serde_json::from_slice(&bytes)?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => State::default(),
            Err(error) => return Err(error),
        };
        let result = change(&mut state);
        fs::write(&new, serde_json::to_vec(&state)?)?;
        fs::rename(&new, &path)?;
        Ok(result)
    }
}
