//! `ctx.enqueue`: an item for a work queue, and the wait for what its worker makes of it.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Claim, Ctx, Whose, composite::refused, decode, encode, open_failure, sleep::Until};
use crate::{
    codec::Value,
    commit::{
        AfterEnqueue, Effect, ItemId, NewItem,
        answer::{self, Answered},
    },
    error::{Error, Failure, FailureKind, Result},
    history::{Entry, EntryKind, EntryStatus, EntryValue, Key, encode_item_prefix},
    location::Location,
    name::check_name,
    queue::Queue,
    run::{
        Halt,
        core::{Core, Turn},
    },
    telemetry::trace,
    time::Timestamp,
};

pub(crate) struct RawEnqueue {
    pub(crate) claim: Claim,
    item: Option<NewItem>,
    begin: Option<Until>,
    leave: bool,
    /// How long the result is kept if somebody else may ask for it.
    kept_for: Duration,
}

impl RawEnqueue {
    /// The item as it is put in by an operation that becomes active now.
    fn take_item(&mut self, core: &Core) -> Option<NewItem> {
        let mut item = self.item.take()?;
        item.available_at = self.begin.map(|begin| begin.from(core.now()));
        item.trace = trace::current_in(core.facts.trace.as_deref());
        Some(item)
    }

    fn poll(&mut self, until: Option<Until>, cx: &mut Context<'_>) -> Poll<Result<Option<Taken>>> {
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        let (core, id) = (op.core.clone(), op.id);
        match core.turn(id, cx.waker()) {
            Turn::Activate => {
                let (now, leave) = (core.now(), self.leave);
                let until = until.map(|until| until.from(now));
                let item = self.take_item(&core);
                let register = |key: &Key, _: &Entry| {
                    item.map(|item| Effect::Enqueue {
                        item,
                        key: key.to_vec(),
                        then: AfterEnqueue::Wait { leave },
                    })
                };
                core.activate_wait(id, register, until);
                Poll::Pending
            }
            Turn::Take => {
                let key = core.state.borrow().ops.get(id).map(|op| op.key.clone());
                let taken = core.take(id, |entry| match &entry.value {
                    EntryValue::Answer(bytes) => Some(bytes.clone()),
                    _ if entry.status == EntryStatus::TimedOut => None,
                    _ => Some(answer::unknown()),
                });
                let (Some(taken), Some(key)) = (taken, key) else {
                    return Poll::Pending;
                };
                Poll::Ready(Ok(taken.map(|bytes| Taken { bytes, key, core })))
            }
            _ => Poll::Pending,
        }
    }
}

/// An answer that was taken.
struct Taken {
    bytes: Vec<u8>,
    key: Key,
    core: std::rc::Rc<Core>,
}

impl Taken {
    /// The result of the item; pending if it cannot be decoded, since the run is then halted.
    fn read<O: Value>(self) -> Poll<Result<O>> {
        let place = Core::location(&self.key);
        let failed = |mut failure: Failure| {
            failure.location = Location::from_key(&self.key).ok();
            Error::recorded(failure, vec![Box::from(&*self.key)])
        };
        let answered = match answer::decode(&self.bytes) {
            Ok(answered) => answered,
            Err(error) => {
                let what = format!("the result of the queue item of `{place}`");
                self.core.halt(Halt::unreadable(what, error));
                return Poll::Pending;
            }
        };
        Poll::Ready(match answered {
            Answered::Value(payload) => {
                let what = || format!("the result of the queue item of `{place}`");
                match decode(&self.core, &payload, what) {
                    Some(value) => Ok(value),
                    None => return Poll::Pending,
                }
            }
            Answered::Failure(failure) => match open_failure(&self.core, *failure, &place) {
                Some(failure) => Err(failed(failure)),
                None => return Poll::Pending,
            },
            Answered::Cancelled => Err(failed(Failure::new(
                FailureKind::Fatal,
                "the queue item was cancelled before a worker took it",
            ))),
            Answered::Unknown | Answered::Rejected(_) => Err(failed(Failure::new(
                FailureKind::Fatal,
                "the queue item has no result",
            ))),
        })
    }
}

impl Ctx {
    /// Puts an item into a work queue and waits for what its worker gives. The operation has the
    /// queue's name.
    ///
    /// The item is put in once, in the commit that records the wait, and its result or final error
    /// is handed over once, however many attempts workers make. If the wait is given up (it lost a
    /// race, ran out, or its run ended) before a worker has taken the item, the item goes with it;
    /// one that a worker has is worked on, and its result is dropped.
    ///
    /// # Errors
    ///
    /// The error of the last attempt, with its details; and if the item was cancelled.
    ///
    /// ```
    /// # use everstep::{prelude::*, Queue};
    /// # const THUMBS: Queue<String, u32> = Queue::new("thumbs");
    /// # async fn work(ctx: Ctx, image: String) -> Result<()> {
    /// let thumb = ctx.enqueue(THUMBS, &image).priority(5).await?;
    /// let soon = ctx.enqueue(THUMBS, &image).timeout(minutes(5)).await?;
    /// let id = ctx.enqueue(THUMBS, &image).detach().await?;
    /// # Ok(()) }
    /// ```
    pub fn enqueue<I: Value, O: Value>(&self, queue: Queue<I, O>, input: &I) -> Enqueue<O> {
        let what = || format!("the item for queue `{}`", queue.name());
        let encoded = encode(self.core(), input, Whose::Others, what);
        let (claim, item) = match encoded {
            Ok(payload) => {
                let item = NewItem {
                    queue: queue.name().to_owned(),
                    payload,
                    priority: 0,
                    available_at: None,
                    dedupe: None,
                    keep: Duration::ZERO,
                    trace: None,
                };
                (self.claim(EntryKind::Enqueue, queue.name()), Some(item))
            }
            Err(error) => (Err(Some(error)), None),
        };
        Enqueue {
            raw: RawEnqueue {
                claim,
                item,
                begin: None,
                leave: false,
                kept_for: queue.kept_for(),
            },
            output: PhantomData,
        }
    }
}

/// An item for a queue. Await it for the result.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Enqueue<O> {
    pub(crate) raw: RawEnqueue,
    output: PhantomData<fn() -> O>,
}

/// An item for a queue whose result is waited for until some time. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct EnqueueUntil<O> {
    pub(crate) raw: RawEnqueue,
    until: Until,
    output: PhantomData<fn() -> O>,
}

/// An item for a queue that nobody waits for. Await it for its id.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct EnqueueDetached {
    pub(crate) raw: RawEnqueue,
}

impl<O: Value> Enqueue<O> {
    /// Items of a higher priority are taken first; 0 if this is not said.
    pub fn priority(mut self, priority: i32) -> Self {
        if let Some(item) = &mut self.raw.item {
            item.priority = priority;
        }
        self
    }

    /// No worker takes it before this long.
    pub fn delay(mut self, delay: Duration) -> Self {
        self.raw.begin = Some(Until::After(delay));
        self
    }

    /// No worker takes it before this instant.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.raw.begin = Some(Until::At(at));
        self
    }

    /// If an item of the queue has an equal key, waits for that one instead of putting in another:
    /// one that has not ended, or whose result is still kept.
    pub fn dedupe(mut self, key: &str) -> Self {
        if let Err(error) = check_name(key) {
            self.raw.claim = Err(Some(Error::fatal(error)));
        }
        let kept_for = self.raw.kept_for;
        if let Some(item) = &mut self.raw.item {
            (item.dedupe, item.keep) = (Some(key.to_owned()), kept_for);
        }
        self
    }

    /// The item stays in its queue even if this wait is given up before a worker has taken it.
    pub fn leave(mut self) -> Self {
        self.raw.leave = true;
        self
    }

    /// Gives `None` when there is no result after this long. A result that is there wins.
    pub fn timeout(self, timeout: Duration) -> EnqueueUntil<O> {
        EnqueueUntil {
            raw: self.raw,
            until: Until::After(timeout),
            output: PhantomData,
        }
    }

    /// Gives `None` when there is no result by this instant. A result that is there wins.
    pub fn until(self, at: Timestamp) -> EnqueueUntil<O> {
        EnqueueUntil {
            raw: self.raw,
            until: Until::At(at),
            output: PhantomData,
        }
    }

    /// Does not wait for the result: gives the id of the item once it is in the queue, or that of
    /// the one which has the dedupe key.
    pub fn detach(mut self) -> EnqueueDetached {
        let kept_for = self.raw.kept_for;
        if let Some(item) = &mut self.raw.item {
            item.keep = kept_for;
        }
        EnqueueDetached { raw: self.raw }
    }
}

impl<O: Value> Future for Enqueue<O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::task::ready!(self.raw.poll(None, cx)) {
            Ok(Some(taken)) => taken.read(),
            // Without a deadline it can only end with an answer.
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<O: Value> Future for EnqueueUntil<O> {
    type Output = Result<Option<O>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let until = Some(self.until);
        match std::task::ready!(self.raw.poll(until, cx)) {
            Ok(Some(taken)) => taken.read().map(|read| read.map(Some)),
            Ok(None) => Poll::Ready(Ok(None)),
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl Future for EnqueueDetached {
    type Output = Result<ItemId>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let raw = &mut self.raw;
        let op = match &mut raw.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        let (core, id) = (op.core.clone(), op.id);
        match core.turn(id, cx.waker()) {
            Turn::Activate => {
                if let Some(item) = raw.take_item(&core) {
                    core.activate_send(id, |key, mut entry| {
                        entry.value = EntryValue::Item(ItemId(0));
                        Effect::Enqueue {
                            item,
                            key: key.to_vec(),
                            then: AfterEnqueue::Record(encode_item_prefix(&entry)),
                        }
                    });
                }
                Poll::Pending
            }
            Turn::Take => {
                let item = core.take(id, |entry| match entry.value {
                    EntryValue::Item(item) => Ok(item),
                    _ => Err(Error::fatal("the entry of a queue item has no item")),
                });
                item.map_or(Poll::Pending, Poll::Ready)
            }
            _ => Poll::Pending,
        }
    }
}
