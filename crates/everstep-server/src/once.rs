//! What a request with an `idempotency-key` does once, however often it is sent.
//!
//! That it is done once is the store's: the key becomes the key of the run, or the dedupe key of the
//! message, event or item, in the namespace `http/`. Here is only remembered what was sent with a key,
//! so that a client that uses one twice for different things is told so. This memory is bounded and
//! ends with the process: without it the first one counts, and the second is taken for the same.
//!
//! A key is reserved while its request is carried out: another with the same key and the same body
//! waits for it, so that it finds what the first has done.

use std::{
    collections::{HashMap, VecDeque},
    pin::pin,
    sync::{Mutex, MutexGuard, PoisonError},
};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};
use sha2::{Digest, Sha256};
use tokio::sync::Notify;

use crate::{
    App,
    problem::{Kind, Problem},
};

/// How many keys are remembered. The oldest goes for the next.
const REMEMBERED: usize = 10_000;

/// The name of the header.
pub(crate) const HEADER: &str = "idempotency-key";

/// What the document says of the header, with its limits.
pub(crate) const DESCRIPTION: &str = "\
    However often it is sent with the same key, it happens once. The key becomes the key of the run, \
    or the dedupe key of the message, event or item, as `http/` and the key: so all callers share \
    them, runs of different workflows, messages to different runs, events with different names and \
    different queues have their own, and it holds for as long as the store keeps the run or the \
    dedupe key, and no longer. While one is carried out, another with the same key and body waits for \
    it. The same key with another body is 409; for that the server process that saw the first \
    remembers its last 10 000 keys. After a restart, or at another process on the same store, only \
    another `input` of a run is noticed: otherwise the first counts, and the second is answered as if \
    it were the same. What has failed has not used its key up.";

/// The keys that were used, and a hash of what was sent with them.
#[derive(Debug, Default)]
pub(crate) struct Keys {
    used: Mutex<Used>,
    /// Told whenever a request that had a key was carried out.
    freed: Notify,
}

#[derive(Debug, Default)]
struct Used {
    /// Of what was carried out.
    by_key: HashMap<String, [u8; 32]>,
    order: VecDeque<String>,
    /// Of what is being carried out.
    reserved: HashMap<String, [u8; 32]>,
}

/// Whether a key can be used.
#[derive(Debug, PartialEq, Eq)]
enum Key {
    Free,
    /// The same is being carried out.
    Busy,
    /// It was used for something else.
    Differs,
}

impl Used {
    fn remember(&mut self, key: String, sent: [u8; 32]) {
        if self.by_key.insert(key.clone(), sent).is_some() {
            return;
        }
        self.order.push_back(key);
        if self.order.len() > REMEMBERED
            && let Some(oldest) = self.order.pop_front()
        {
            self.by_key.remove(&oldest);
        }
    }
}

impl Keys {
    fn used(&self) -> MutexGuard<'_, Used> {
        self.used.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Takes a key, if it is free.
    fn reserve(&self, key: &str, sent: &[u8; 32]) -> Key {
        let mut used = self.used();
        if let Some(by) = used.reserved.get(key) {
            return match by == sent {
                true => Key::Busy,
                false => Key::Differs,
            };
        }
        if used.by_key.get(key).is_some_and(|before| before != sent) {
            return Key::Differs;
        }
        used.reserved.insert(key.to_owned(), *sent);
        Key::Free
    }

    fn release(&self, key: &str) {
        self.used().reserved.remove(key);
        self.freed.notify_waiters();
    }
}

/// What a request is sent with.
pub(crate) struct Once {
    /// The key in the store, if the request has one.
    key: Option<String>,
}

impl<S: Sync> FromRequestParts<S> for Once {
    type Rejection = Problem;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, Problem> {
        key(&parts.headers).map(|key| Once { key })
    }
}

impl Once {
    /// The key to use: that of the header, or the one that the body says in this field.
    pub(crate) fn or(self, said: Option<String>, field: &str) -> Result<Option<String>, Problem> {
        match (self.key, said) {
            (Some(_), Some(_)) => {
                let detail = format!("say either `{field}` or the header `{HEADER}`");
                Err(Problem::new(Kind::BadRequest, detail))
            }
            (key, said) => Ok(key.or(said)),
        }
    }

    /// Whether there is a key.
    pub(crate) fn is_said(&self) -> bool {
        self.key.is_some()
    }
}

fn key(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get(HEADER) else {
        return Ok(None);
    };
    let text = key.to_str().ok().map(str::trim);
    match text.filter(|key| !key.is_empty() && key.len() <= 200) {
        Some(key) => Ok(Some(format!("http/{key}"))),
        None => {
            let detail = format!("`{HEADER}` must be 1 to 200 printable characters");
            Err(Problem::new(Kind::BadRequest, detail))
        }
    }
}

/// That a key was used for something else.
pub(crate) fn used() -> Problem {
    let detail = format!("this `{HEADER}` was used for another request; use a new key");
    Problem::new(Kind::Conflict, detail)
}

/// Reserves the key of a request, if it has one and it was not used for something else.
pub(crate) async fn reserved(
    app: &App,
    parts: &Parts,
    body: &[u8],
) -> Result<Option<Reserved>, Problem> {
    let Some(key) = key(&parts.headers)? else {
        return Ok(None);
    };
    let mut hash = Sha256::new();
    hash.update(parts.uri.path().as_bytes());
    hash.update([0]);
    hash.update(canonical(body));
    let sent = hash.finalize().into();
    loop {
        let mut freed = pin!(app.keys.freed.notified());
        // Before it is looked: what is freed after that is not missed.
        freed.as_mut().enable();
        match app.keys.reserve(&key, &sent) {
            Key::Free => break,
            Key::Busy => freed.await,
            Key::Differs => return Err(used()),
        }
    }
    let app = app.clone();
    Ok(Some(Reserved { app, key, sent }))
}

/// A body without what does not matter in it: spaces, and the order of names.
fn canonical(bytes: &[u8]) -> Vec<u8> {
    let value = serde_json::from_slice::<serde_json::Value>(bytes);
    value.map_or_else(|_| bytes.to_vec(), |value| value.to_string().into_bytes())
}

/// A key while its request is carried out. It is free again when this is dropped.
pub(crate) struct Reserved {
    app: App,
    key: String,
    sent: [u8; 32],
}

impl Reserved {
    /// Remembers that the request was carried out.
    pub(crate) fn keep(self) {
        self.app.keys.used().remember(self.key.clone(), self.sent);
    }
}

impl Drop for Reserved {
    fn drop(&mut self) {
        self.app.keys.release(&self.key);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_is_forgotten_for_the_next() {
        let keys = Keys::default();
        for no in 0..=REMEMBERED {
            keys.used().remember(no.to_string(), [1; 32]);
        }
        assert_eq!(keys.reserve("0", &[2; 32]), Key::Free);
        assert_eq!(keys.reserve("1", &[2; 32]), Key::Differs);
        assert_eq!(keys.reserve("1", &[1; 32]), Key::Free);
    }

    #[test]
    fn a_key_is_taken_until_its_request_was_carried_out() {
        let keys = Keys::default();
        assert_eq!(keys.reserve("a", &[1; 32]), Key::Free);
        assert_eq!(keys.reserve("a", &[1; 32]), Key::Busy);
        assert_eq!(keys.reserve("a", &[2; 32]), Key::Differs);
        keys.release("a");
        assert_eq!(keys.reserve("a", &[2; 32]), Key::Free);
    }

    #[test]
    fn spaces_and_the_order_of_names_make_no_other_body() {
        assert_eq!(canonical(b"{\"a\": 1, \"b\":2}"), canonical(b"{\"b\":2,\"a\":1}"));
        assert_ne!(canonical(b"{\"a\": 1}"), canonical(b"{\"a\": 2}"));
        assert_eq!(canonical(b"not json"), b"not json");
    }
}
