//! `ctx.enqueue`: an item for a work queue, and the wait for what its worker makes of it.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use super::{
    Claim, Ctx, decode, error_at, open_failure,
    operation::{Operation, Until, read_answer, timed},
    refuse_if,
};
use crate::{
    codec::Value,
    commit::{
        AfterEnqueue, Effect, ItemId, NewItem,
        answer::{self, Answered},
    },
    error::{Error, Failure, FailureKind, Result},
    history::{EntryKind, EntryStatus, EntryValue, OpId, encode_item_prefix},
    name::check_name,
    queue::Queue,
    run::core::Core,
    telemetry::trace,
    time::{Timestamp, When},
};

pub(crate) struct RawEnqueue {
    pub(crate) claim: Claim,
    item: Option<NewItem>,
    begin: Option<When>,
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
        let (claim, payload) = self.claim_with(EntryKind::Enqueue, queue.name(), input, what);
        let item = NewItem {
            queue: queue.name().to_owned(),
            payload,
            priority: 0,
            available_at: None,
            dedupe: None,
            keep: Duration::ZERO,
            trace: None,
        };
        Enqueue {
            raw: RawEnqueue { claim, item: Some(item), begin: None, kept_for: queue.kept_for() },
            leave: false,
            until: None,
            output: PhantomData,
        }
    }
}

/// An item for a queue. Await it for the result.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Enqueue<O> {
    pub(crate) raw: RawEnqueue,
    leave: bool,
    until: Option<When>,
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
        self.raw.begin = Some(When::After(delay));
        self
    }

    /// No worker takes it before this instant.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.raw.begin = Some(When::At(at));
        self
    }

    /// If an item of the queue has an equal key, waits for that one instead of putting in another:
    /// one that has not ended, or whose result is still kept.
    pub fn dedupe(mut self, key: &str) -> Self {
        refuse_if(&mut self.raw.claim, check_name(key));
        let kept_for = self.raw.kept_for;
        if let Some(item) = &mut self.raw.item {
            (item.dedupe, item.keep) = (Some(key.to_owned()), kept_for);
        }
        self
    }

    /// The item stays in its queue even if this wait is given up before a worker has taken it.
    pub fn leave(mut self) -> Self {
        self.leave = true;
        self
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

timed!([O: Value] Enqueue<O>, "there is no result", " A result that is there wins.");

impl<O: Value> Operation for Enqueue<O> {
    type Output = Option<O>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.raw.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        let (item, leave) = (self.raw.take_item(core), self.leave);
        core.activate_wait(id, self.until, |key, _| {
            Some(Effect::Enqueue {
                item: item?,
                key: key.to_vec(),
                then: AfterEnqueue::Wait { leave },
            })
        });
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Option<O>>> {
        let key = core.key_of(id)?;
        let taken = core.take(id, |entry| match &entry.value {
            EntryValue::Answer(bytes) => Some(bytes.clone()),
            _ if entry.status == EntryStatus::TimedOut => None,
            _ => Some(answer::unknown()),
        })?;
        let Some(bytes) = taken else {
            return Some(Ok(None));
        };
        let place = Core::location(&key);
        let what = || format!("the result of the queue item of `{place}`");
        let failure = match read_answer(core, &bytes, what)? {
            Answered::Value(payload) => return Some(Ok(Some(decode(core, &payload, what)?))),
            Answered::Failure(failure) => open_failure(core, *failure, &place)?,
            Answered::Cancelled => Failure::new(
                FailureKind::Fatal,
                "the queue item was cancelled before a worker took it",
            ),
            Answered::Unknown | Answered::Rejected(_) => {
                Failure::new(FailureKind::Fatal, "the queue item has no result")
            }
        };
        Some(Err(error_at(&key, failure)))
    }
}

impl Operation for EnqueueDetached {
    type Output = ItemId;

    fn claim(&mut self) -> &mut Claim {
        &mut self.raw.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(item) = self.raw.take_item(core) {
            core.activate_send(id, |key, mut entry| {
                entry.value = EntryValue::Item(ItemId(0));
                Effect::Enqueue {
                    item,
                    key: key.to_vec(),
                    then: AfterEnqueue::Record(encode_item_prefix(&entry)),
                }
            });
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<ItemId>> {
        core.take(id, |entry| match entry.value {
            EntryValue::Item(item) => Ok(item),
            _ => Err(Error::fatal("the entry of a queue item has no item")),
        })
    }
}
