//! A work queue as a constant: its name, its types, and how its items are worked on.
//!
//! An item is put in by `ctx.enqueue` or [`Client::enqueue`](crate::Client::enqueue) and handed to
//! one worker at a time, in this process or another ([`Engine::work`](crate::Engine::work),
//! [`Client::work`](crate::Client::work)). On the path of an item, [`crate::store`] keeps it, and
//! its rules decide who has it.

use std::{fmt, marker::PhantomData, time::Duration};

use crate::{
    limit::Limit,
    retry::Retry,
    time::{hours, seconds},
};

/// A work queue as a constant.
///
/// ```
/// use everstep::{prelude::*, Queue, testing::VirtualClock};
///
/// const THUMBS: Queue<String, u32> = Queue::new("thumbs").attempts(3).visibility(seconds(60));
///
/// #[workflow]
/// async fn album(ctx: Ctx, image: String) -> Result<u32> {
///     ctx.enqueue(THUMBS, &image).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = Engine::in_memory().clock(VirtualClock::new()).register(album).start().await?;
/// engine.work(THUMBS, 4, async |_job, image: String| Ok(image.len() as u32))?;
/// let run = engine.client().start(album, "cat.png".to_owned()).await?;
/// assert_eq!(run.result().await?, 7);
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub struct Queue<I, O> {
    name: &'static str,
    attempts: u32,
    backoff: Retry,
    visibility: Duration,
    keep: Duration,
    limit: Option<Limit>,
    types: PhantomData<fn(I) -> O>,
}

/// How long the result of an item is kept for those who ask by its handle, if its queue says
/// nothing else.
pub(crate) const KEEP_DEFAULT: Duration = hours(1);

impl<I, O> Queue<I, O> {
    /// The queue of this name: 5 attempts with doubling delays, a visibility of 30 seconds.
    pub const fn new(name: &'static str) -> Queue<I, O> {
        Queue {
            name,
            attempts: 5,
            backoff: Retry::DEFAULT,
            visibility: seconds(30),
            keep: KEEP_DEFAULT,
            limit: None,
            types: PhantomData,
        }
    }

    /// How often an item is tried in all, the first time included. A worker that dies with an item
    /// has made an attempt.
    pub const fn attempts(mut self, attempts: u32) -> Queue<I, O> {
        self.attempts = attempts;
        self
    }

    /// How long an item waits after a failed attempt: the delays of this policy. How many attempts
    /// there are is said by [`attempts`](Queue::attempts) alone.
    pub const fn backoff(mut self, delays: Retry) -> Queue<I, O> {
        self.backoff = delays;
        self
    }

    /// How long an item belongs to a worker that gives no sign of life; then another may have it.
    /// A living worker prolongs it by itself, three times in each such span.
    pub const fn visibility(mut self, visibility: Duration) -> Queue<I, O> {
        self.visibility = visibility;
        self
    }

    /// How long the result of an item is kept after its end, for those who hold its handle and for
    /// later items with the same dedupe key: an hour if this is not said.
    ///
    /// An item that only a workflow waits for has no handle, and is removed at its end.
    pub const fn keep(mut self, keep: Duration) -> Queue<I, O> {
        self.keep = keep;
        self
    }

    /// Items are worked on under this limit, which other queues, steps and runs may share: each has a
    /// place from the moment a worker has it until its attempt has ended, or its worker is lost.
    ///
    /// ```
    /// use everstep::{Limit, Queue, prelude::*};
    ///
    /// const GPU: Limit = Limit::new("gpu").concurrency(2).rate(100, minutes(1));
    /// const THUMBS: Queue<String, u32> = Queue::new("thumbs").limit(GPU);
    /// ```
    ///
    /// An item that has no place stays in the queue, in its order, and has no attempt less. It stands
    /// in no line of the limit: steps and runs that wait for a place, and turns that the rate has
    /// given them, go first. A worker asks again when an item of the queue gives its place back, when
    /// the rate has a turn, and every second while others have all places.
    ///
    /// It is the worker that asks, so its code says what the limit is.
    pub const fn limit(mut self, limit: Limit) -> Queue<I, O> {
        self.limit = Some(limit);
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    pub(crate) const fn policy(&self) -> Retry {
        self.backoff.with_attempts(self.attempts)
    }

    pub(crate) const fn visible_for(&self) -> Duration {
        self.visibility
    }

    pub(crate) const fn limited_by(&self) -> Option<Limit> {
        self.limit
    }

    pub(crate) const fn kept_for(&self) -> Duration {
        self.keep
    }
}

impl<I, O> Clone for Queue<I, O> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<I, O> Copy for Queue<I, O> {}

impl<I, O> fmt::Debug for Queue<I, O> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Queue({})", self.name)
    }
}
