//! `ctx.event`: waits for an event that somebody publishes.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Claim, Ctx, composite::refused, decode, sleep::Until};
use crate::{
    codec::Value,
    commit::{
        Effect, SeenSince, Subscription,
        answer::{self, Answered},
    },
    error::{Error, Result},
    event::{Event, Since},
    history::{EntryKind, EntryValue},
    name::check_name,
    run::{
        Halt,
        core::{Core, Turn},
    },
    time::Timestamp,
};

pub(crate) struct RawEvent {
    pub(crate) claim: Claim,
    name: &'static str,
    since: Since,
    matching: Option<String>,
    until: Option<Until>,
}

/// A wait for an event. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct EventWait<T> {
    pub(crate) raw: RawEvent,
    body: PhantomData<fn() -> T>,
}

/// A wait for an event that may end without one. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct EventUntil<T> {
    pub(crate) raw: RawEvent,
    body: PhantomData<fn() -> T>,
}

impl Ctx {
    /// Waits for an event. The operation has the event's name.
    ///
    /// The wait is registered with the store when it begins, and cannot miss what is published
    /// after that. What was published before counts as the event's [`Since`] says. Of a broadcast,
    /// a run sees every event that is kept once, in the order of publishing, also those that come
    /// between two waits of a loop. An event of delivery [`One`](crate::Deliver::One) goes to the
    /// wait that began first, and to no other.
    ///
    /// A wait that loses a race, is dropped, or runs out of time has seen nothing: what it was
    /// handed goes to the next one.
    pub fn event<T: Value>(&self, event: Event<T>) -> EventWait<T> {
        EventWait {
            raw: RawEvent {
                claim: self.claim(EntryKind::Event, event.name),
                name: event.name,
                since: event.since,
                matching: None,
                until: None,
            },
            body: PhantomData,
        }
    }
}

impl RawEvent {
    fn set_matching(&mut self, key: String) {
        if let Err(error) = check_name(&key) {
            self.claim = Err(Some(Error::fatal(error)));
        }
        self.matching = Some(key);
    }

    /// The body of the event; none if the time ran out first.
    fn poll<T: Value>(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<T>>> {
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                let until = self.until.map(|until| until.from(op.core.now()));
                let since = match self.since {
                    Since::Any => SeenSince::Any,
                    Since::Run => SeenSince::At(op.core.facts.created_at),
                    Since::Wait => SeenSince::Wait,
                };
                let (name, matching) = (self.name.to_owned(), self.matching.take());
                let register = |key: &crate::history::Key, _: &_| {
                    Some(Effect::Subscribe(Box::new(Subscription {
                        name,
                        matching,
                        since,
                        key: key.to_vec(),
                    })))
                };
                op.core.activate_wait(op.id, register, until);
                Poll::Pending
            }
            Turn::Take => {
                let taken = op.core.take(op.id, |entry| match &entry.value {
                    EntryValue::Answer(bytes) => Some(bytes.clone()),
                    _ => None,
                });
                match taken.flatten() {
                    None => Poll::Ready(Ok(None)),
                    Some(bytes) => match read(&op.core, self.name, &bytes) {
                        Some(body) => Poll::Ready(Ok(Some(body))),
                        // The run is halted; its code is not polled again.
                        None => Poll::Pending,
                    },
                }
            }
            _ => Poll::Pending,
        }
    }
}

/// The body of the event that an operation was handed.
fn read<T: Value>(core: &Core, name: &str, bytes: &[u8]) -> Option<T> {
    let what = || format!("the event `{name}`");
    match answer::decode(bytes) {
        Ok(Answered::Value(payload)) => decode(core, &payload, what),
        Ok(_) => {
            core.halt(Halt::Undecodable {
                what: what(),
                error: crate::codec::DecodeError::Invalid {
                    at: 2,
                    problem: "an event is a value".to_owned(),
                },
            });
            None
        }
        Err(error) => {
            core.halt(Halt::Undecodable {
                what: what(),
                error,
            });
            None
        }
    }
}

impl<T: Value> EventWait<T> {
    /// Only events that were published with this key.
    pub fn matching(mut self, key: impl Into<String>) -> Self {
        self.raw.set_matching(key.into());
        self
    }

    /// Gives `None` when no event has come after this long. An event that is there wins.
    pub fn timeout(mut self, timeout: Duration) -> EventUntil<T> {
        self.raw.until = Some(Until::After(timeout));
        EventUntil {
            raw: self.raw,
            body: PhantomData,
        }
    }

    /// Gives `None` when no event has come by this instant. An event that is there wins.
    pub fn until(mut self, at: Timestamp) -> EventUntil<T> {
        self.raw.until = Some(Until::At(at));
        EventUntil {
            raw: self.raw,
            body: PhantomData,
        }
    }
}

impl<T: Value> EventUntil<T> {
    /// As [`EventWait::matching`].
    pub fn matching(mut self, key: impl Into<String>) -> Self {
        self.raw.set_matching(key.into());
        self
    }
}

impl<T: Value> Future for EventWait<T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::task::ready!(self.raw.poll::<T>(cx)) {
            Ok(Some(body)) => Poll::Ready(Ok(body)),
            // Without a deadline it can only end with an event.
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<T: Value> Future for EventUntil<T> {
    type Output = Result<Option<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw.poll::<T>(cx)
    }
}
