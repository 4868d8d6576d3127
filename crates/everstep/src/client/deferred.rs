//! Settling deferreds from outside: with a token, or with authority over the run.

use std::marker::PhantomData;

use serde::Serialize;
use serde_json::Value as Json;

use super::{Client, ClientError, RunHandle, encode, encode_json};
use crate::{
    codec::Value,
    commit::{Resolution, Settled, Write, answer},
    deferred::Deferred,
    location::Location,
    run_id::RunId,
    time::Timestamp,
    token::{Secret, Tag, TokenProblem},
};

/// What became of a value for a deferred.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resolved {
    /// It is the first one, and counts.
    First,
    /// The deferred had been resolved or rejected before; nothing was done.
    Already {
        /// When that was.
        at: Timestamp,
    },
}

/// The right to settle a deferred: resolve or reject it.
#[must_use = "nothing is settled unless it is resolved or rejected"]
pub struct Resolver<T, E = String> {
    client: Client,
    which: Which,
    types: PhantomData<fn(T, E)>,
}

/// Which deferred is meant.
#[derive(Clone)]
enum Which {
    /// The one that this token was made for.
    Token(String),
    /// The one at this location, in whichever generation the run is.
    At(RunId, String),
}

impl Client {
    /// The deferred that this token was made for, to be resolved or rejected.
    ///
    /// The types are those of the constant. Whether the token is any good is said when it is used.
    pub fn deferred<T: Value, E: Value>(
        &self,
        _types: Deferred<T, E>,
        token: impl AsRef<str>,
    ) -> Resolver<T, E> {
        let which = Which::Token(token.as_ref().to_owned());
        self.resolver(which)
    }

    fn resolver<T, E>(&self, which: Which) -> Resolver<T, E> {
        Resolver { client: self.clone(), which, types: PhantomData }
    }

    /// Resolves the deferred that this token was made for, with JSON. Await it.
    pub fn resolve_json(&self, token: impl AsRef<str>, value: &Json) -> Settle {
        let resolver: Resolver<Json, Json> = self.resolver(Which::Token(token.as_ref().to_owned()));
        resolver.with_json(value, answer::value)
    }

    /// Rejects the deferred that this token was made for, with JSON. Await it.
    pub fn reject_json(&self, token: impl AsRef<str>, error: &Json) -> Settle {
        let resolver: Resolver<Json, Json> = self.resolver(Which::Token(token.as_ref().to_owned()));
        resolver.with_json(error, answer::rejected)
    }

    /// The secret of the store, read once.
    async fn secret(&self) -> Result<&Secret, ClientError> {
        if let Some(secret) = self.shared.known_secret() {
            return Ok(secret);
        }
        let secret = self.read(|store| store.secret()).await?;
        Ok(self.shared.set_secret(secret))
    }
}

impl<O> RunHandle<O> {
    /// A deferred of this run, to be resolved or rejected without its token: for whoever has
    /// authority over the run.
    ///
    /// It is the first of this name that the run makes outside of any scope, join or loop; others
    /// are named by [`deferred_at`](RunHandle::deferred_at). Nobody checks that the run ever makes
    /// it: a value for one that it does not make is kept and never asked for.
    pub fn deferred<T: Value, E: Value>(&self, deferred: Deferred<T, E>) -> Resolver<T, E> {
        // A name is a location of one segment once its special letters are escaped.
        let mut key = crate::location::keys::HISTORY.to_vec();
        crate::location::keys::push_name(&mut key, deferred.name(), 1);
        let location = crate::location::keys::describe(&key);
        self.client.resolver(Which::At(self.id, location))
    }

    /// The deferred of this run at this location, such as `reviews/~2/review#3`.
    pub fn deferred_at<T: Value, E: Value>(
        &self,
        _types: Deferred<T, E>,
        location: impl Into<String>,
    ) -> Resolver<T, E> {
        let which = Which::At(self.id, location.into());
        self.client.resolver(which)
    }

    /// Resolves the deferred at this location, with JSON. Await it.
    pub fn resolve_json(&self, location: impl Into<String>, value: &Json) -> Settle {
        let which = Which::At(self.id, location.into());
        let resolver: Resolver<Json, Json> = self.client.resolver(which);
        resolver.with_json(value, answer::value)
    }

    /// Rejects the deferred at this location, with JSON. Await it.
    pub fn reject_json(&self, location: impl Into<String>, error: &Json) -> Settle {
        let which = Which::At(self.id, location.into());
        let resolver: Resolver<Json, Json> = self.client.resolver(which);
        resolver.with_json(error, answer::rejected)
    }
}

impl<T: Value, E: Value> Resolver<T, E> {
    /// Keeps the promise with this value. Await it.
    pub fn resolve(&self, value: &T) -> Settle {
        self.with(value, answer::value)
    }

    /// Breaks the promise for this reason. Await it.
    pub fn reject(&self, error: &E) -> Settle {
        self.with(error, answer::rejected)
    }

    fn with<V: Serialize>(&self, value: &V, answer: fn(&[u8]) -> Vec<u8>) -> Settle {
        let bytes = encode(value, "the value of the deferred", &self.client);
        self.settle(bytes, answer)
    }

    fn with_json(&self, value: &Json, answer: fn(&[u8]) -> Vec<u8>) -> Settle {
        let bytes = encode_json(value, "the value of the deferred", &self.client);
        self.settle(bytes, answer)
    }

    fn settle(
        &self,
        payload: Result<Vec<u8>, ClientError>,
        answer: fn(&[u8]) -> Vec<u8>,
    ) -> Settle {
        Settle {
            client: self.client.clone(),
            which: self.which.clone(),
            body: payload.map(|payload| answer(&payload)),
        }
    }
}

impl<T, E> std::fmt::Debug for Resolver<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Resolver(..)")
    }
}

/// A value for a deferred. Await it.
///
/// It gives whether it was the first. When that is told, it is durable.
///
/// # Errors
///
/// [`ClientError::MalformedToken`] and [`ClientError::ForeignToken`] if it is no token of this
/// store, [`ClientError::OldToken`] if the run has gone on as another generation,
/// [`ClientError::Finished`] if the run has ended, [`ClientError::WrongStatus`] if it is being
/// rolled back, and [`ClientError::UnknownRun`] if there is no such run any more.
#[must_use = "nothing is settled unless it is awaited"]
pub struct Settle {
    client: Client,
    which: Which,
    body: Result<Vec<u8>, ClientError>,
}

impl Settle {
    async fn send(self) -> Result<Resolved, ClientError> {
        let body = self.body?;
        let secret = self.client.secret().await?;
        let (run, generation, tag) = self.which.find(secret)?;
        let resolution = Resolution { run, generation, tag, body };
        let write = Write::Resolve(Box::new(resolution));
        let run = run.to_string();
        match self.client.ask(write).await? {
            Settled::First => Ok(Resolved::First),
            Settled::Already { at } => Ok(Resolved::Already { at }),
            Settled::Unknown => Err(ClientError::UnknownRun { run }),
            Settled::Finished { status } if status.is_terminal() => {
                let status = status.to_string();
                Err(ClientError::Finished { run, status })
            }
            Settled::Finished { status } => Err(ClientError::WrongStatus {
                run,
                status,
                act: "given a value",
                hint: "its end is decided, and what it did is being undone",
            }),
            Settled::OldGeneration { current } => Err(ClientError::OldToken {
                run,
                generation: generation.unwrap_or(current),
                current,
            }),
        }
    }
}

impl Which {
    fn find(&self, secret: &Secret) -> Result<(RunId, Option<u32>, Tag), ClientError> {
        match self {
            Which::Token(token) => {
                let claims = secret.read(token).map_err(|problem| match problem {
                    TokenProblem::Malformed => ClientError::MalformedToken,
                    TokenProblem::Foreign => ClientError::ForeignToken,
                })?;
                Ok((claims.run, Some(claims.generation), claims.tag))
            }
            Which::At(run, location) => {
                let parsed: Location = location.parse().map_err(|problem| ClientError::Name {
                    what: format!("the location `{location}`"),
                    problem: format!("{problem}"),
                })?;
                Ok((*run, None, secret.tag(*run, parsed.as_key())))
            }
        }
    }
}

awaited!([] Settle, send => Result<Resolved, ClientError>);
