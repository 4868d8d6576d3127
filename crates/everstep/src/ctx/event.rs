//! `ctx.event`: waits for an event that somebody publishes.

use std::{marker::PhantomData, rc::Rc};

use super::{
    Claim, Ctx, decode,
    operation::{Operation, Until, read_answer, take_answer, timed},
    refuse_if,
};
use crate::{
    codec::{DecodeError, Value},
    commit::{Effect, SeenSince, Subscription, answer::Answered},
    error::Result,
    event::{Event, Since},
    history::{EntryKind, OpId},
    name::check_name,
    run::{Halt, core::Core},
    time::{Timestamp, When},
};

/// A wait for an event. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct EventWait<T> {
    pub(crate) claim: Claim,
    name: &'static str,
    since: Since,
    matching: Option<String>,
    until: Option<When>,
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
            claim: self.claim(EntryKind::Event, event.name),
            name: event.name,
            since: event.since,
            matching: None,
            until: None,
            body: PhantomData,
        }
    }
}

impl<T: Value> EventWait<T> {
    /// Only events that were published with this key.
    pub fn matching(mut self, key: impl Into<String>) -> Self {
        let key = key.into();
        refuse_if(&mut self.claim, check_name(&key));
        self.matching = Some(key);
        self
    }
}

timed!([T: Value] EventWait<T>, "no event has come", " An event that is there wins.");

impl<T: Value> Until<EventWait<T>> {
    /// As [`EventWait::matching`].
    pub fn matching(self, key: impl Into<String>) -> Self {
        Until(self.0.matching(key))
    }
}

impl<T: Value> Operation for EventWait<T> {
    type Output = Option<T>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        let since = match self.since {
            Since::Any => SeenSince::Any,
            Since::Run => SeenSince::At(core.facts.created_at),
            Since::Wait => SeenSince::Wait,
        };
        let (name, matching) = (self.name.to_owned(), self.matching.take());
        core.activate_wait(id, self.until, |key, _| {
            Some(Effect::Subscribe(Box::new(Subscription {
                name,
                matching,
                since,
                key: key.to_vec(),
            })))
        });
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Option<T>>> {
        let Some(bytes) = take_answer(core, id)? else {
            return Some(Ok(None));
        };
        let what = || format!("the event `{}`", self.name);
        let Answered::Value(body) = read_answer(core, &bytes, what)? else {
            let (at, problem) = (2, "an event is a value".to_owned());
            let error = DecodeError::Invalid { at, problem };
            core.halt(Halt::unreadable(what(), error));
            return None;
        };
        Some(Ok(Some(decode(core, &body, what)?)))
    }
}
