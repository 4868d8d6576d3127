//! How workflow code polls an operation that is neither a step nor made of others: the operation
//! becomes active once the run is live, and takes its completion when the run offers it ([`Turn`]).
//!
//! Most of them are waits: they register with the store and are answered through the inbox (see
//! [`crate::run::waits`]).

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use super::{Claim, composite::refused};
use crate::{
    commit::answer::{self, Answered},
    error::Result,
    history::{EntryStatus, EntryValue, OpId},
    run::{
        Halt,
        core::{Core, Turn},
    },
};

/// What an operation does when it is polled.
pub(crate) trait Operation: Unpin {
    /// What it gives. A wait that can have a deadline gives an `Option`: `None` when its time ran
    /// out first.
    type Output;

    /// Its location, or why it was refused.
    fn claim(&mut self) -> &mut Claim;

    /// The first poll while the run is live: records the operation, and what it asks of others.
    fn activate(&mut self, core: &Rc<Core>, id: OpId);

    /// Takes the completion that the run offers. `None` when the completion cannot be read: the run
    /// is then halted, and its code is not polled again.
    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Self::Output>>;
}

pub(crate) fn poll<O: Operation>(
    operation: &mut O,
    cx: &mut Context<'_>,
) -> Poll<Result<O::Output>> {
    let (core, id) = match operation.claim() {
        Ok(op) => (op.core.clone(), op.id),
        Err(error) => return refused(error),
    };
    let taken = match core.turn(id, cx.waker()) {
        Turn::Activate => {
            operation.activate(&core, id);
            None
        }
        Turn::Take => operation.take(&core, id),
        _ => None,
    };
    taken.map_or(Poll::Pending, Poll::Ready)
}

/// Polls a wait that has no deadline: it can only end with a value.
pub(crate) fn poll_value<T>(
    wait: &mut impl Operation<Output = Option<T>>,
    cx: &mut Context<'_>,
) -> Poll<Result<T>> {
    match poll(wait, cx).map(Result::transpose) {
        Poll::Ready(Some(result)) => Poll::Ready(result),
        _ => Poll::Pending,
    }
}

/// A wait that gives `None` when its time runs out first. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Until<W>(pub(crate) W);

impl<T, W: Operation<Output = Option<T>>> Future for Until<W> {
    type Output = Result<Option<T>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        poll(&mut self.0, cx)
    }
}

/// Waits that can have a time limit.
macro_rules! timed {
    ([$($bounds:tt)*] $wait:ty, $none:literal, $wins:literal) => {
        impl<$($bounds)*> $wait {
            #[doc = concat!("Gives `None` when ", $none, " after this long.", $wins)]
            pub fn timeout(mut self, timeout: std::time::Duration) -> Until<Self> {
                self.until = Some(When::After(timeout));
                Until(self)
            }

            #[doc = concat!("Gives `None` when ", $none, " by this instant.", $wins)]
            pub fn until(mut self, at: Timestamp) -> Until<Self> {
                self.until = Some(When::At(at));
                Until(self)
            }
        }
    };
}
pub(super) use timed;

/// The bytes of the answer that a wait takes; `Some(None)` if its time ran out first.
pub(super) fn take_answer(core: &Core, id: OpId) -> Option<Option<Vec<u8>>> {
    core.take(id, |entry| match &entry.value {
        EntryValue::Answer(bytes) if entry.status == EntryStatus::Completed => Some(bytes.clone()),
        _ => None,
    })
}

/// Reads an answer, or halts the run: the code does not fit what is stored.
pub(super) fn read_answer(
    core: &Core,
    bytes: &[u8],
    what: impl FnOnce() -> String,
) -> Option<Answered> {
    match answer::decode(bytes) {
        Ok(answered) => Some(answered),
        Err(error) => {
            core.halt(Halt::unreadable(what(), error));
            None
        }
    }
}
