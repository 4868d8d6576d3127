//! What a request with an `idempotency-key` does once, however often it is sent.
//!
//! That it is done once is the store's: the key becomes the key of the run, or the dedupe key of the
//! message, event or item, in the namespace `http/`. Here is only remembered what was sent with a key,
//! so that a client that uses one twice for different things is told so. This memory is bounded and
//! ends with the process: without it the first one counts, and the second is taken for the same.

use std::{
    collections::{HashMap, VecDeque},
    sync::{Mutex, PoisonError},
};

use axum::{
    extract::FromRequestParts,
    http::{HeaderMap, request::Parts},
};
use sha2::{Digest, Sha256};

use crate::{
    App,
    problem::{Kind, Problem},
};

/// How many keys are remembered. The oldest goes for the next.
const REMEMBERED: usize = 10_000;

/// The name of the header.
pub(crate) const HEADER: &str = "idempotency-key";

/// The keys that were used, and a hash of what was sent with them.
#[derive(Debug, Default)]
pub(crate) struct Keys(Mutex<Used>);

#[derive(Debug, Default)]
struct Used {
    by_key: HashMap<String, [u8; 32]>,
    order: VecDeque<String>,
}

impl Keys {
    /// Whether something else was sent with this key.
    fn differs(&self, key: &str, sent: &[u8; 32]) -> bool {
        let used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        used.by_key.get(key).is_some_and(|before| before != sent)
    }

    fn remember(&self, key: String, sent: [u8; 32]) {
        let mut used = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        if used.by_key.insert(key.clone(), sent).is_some() {
            return;
        }
        used.order.push_back(key);
        if used.order.len() > REMEMBERED
            && let Some(oldest) = used.order.pop_front()
        {
            used.by_key.remove(&oldest);
        }
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

/// Compares a request that has a key with what was sent with that key before: what to remember if it
/// is carried out.
pub(crate) fn checked(app: &App, parts: &Parts, body: &[u8]) -> Result<Option<Remember>, Problem> {
    let Some(key) = key(&parts.headers)? else {
        return Ok(None);
    };
    let mut hash = Sha256::new();
    hash.update(parts.uri.path().as_bytes());
    hash.update([0]);
    hash.update(canonical(body));
    let sent = hash.finalize().into();
    if app.keys.differs(&key, &sent) {
        return Err(used());
    }
    Ok(Some(Remember { key, sent }))
}

/// A body without what does not matter in it: spaces, and the order of names.
fn canonical(bytes: &[u8]) -> Vec<u8> {
    let value = serde_json::from_slice::<serde_json::Value>(bytes);
    value.map_or_else(|_| bytes.to_vec(), |value| value.to_string().into_bytes())
}

/// What is remembered when a request was carried out.
pub(crate) struct Remember {
    key: String,
    sent: [u8; 32],
}

impl Remember {
    pub(crate) fn keep(self, app: &App) {
        app.keys.remember(self.key, self.sent);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_oldest_key_is_forgotten_for_the_next() {
        let keys = Keys::default();
        for no in 0..=REMEMBERED {
            keys.remember(no.to_string(), [1; 32]);
        }
        assert!(!keys.differs("0", &[2; 32]));
        assert!(keys.differs("1", &[2; 32]));
        assert!(!keys.differs("1", &[1; 32]));
    }

    #[test]
    fn spaces_and_the_order_of_names_make_no_other_body() {
        assert_eq!(
            canonical(b"{\"a\": 1, \"b\":2}"),
            canonical(b"{\"b\":2,\"a\":1}")
        );
        assert_ne!(canonical(b"{\"a\": 1}"), canonical(b"{\"a\": 2}"));
        assert_eq!(canonical(b"not json"), b"not json");
    }
}
