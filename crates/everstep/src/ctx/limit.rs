//! `ctx.rate_limit`: waits for a turn under a limit. Limits of steps are in [`super::step`].

use std::{
    fmt,
    future::Future,
    pin::Pin,
    task::{Context, Poll, ready},
};

use super::{Ctx, wait::RawWait};
use crate::{
    error::Result,
    history::EntryKind,
    limit::{Limit, LimitUse},
};

impl Ctx {
    /// Waits until the rate of a limit lets one more through. The operation has the limit's name.
    ///
    /// Its turn is given away when it asks, in the order of asking, and stays its own across
    /// crashes. It takes no place: the concurrency of the limit does not matter here. A turn of an
    /// operation that is dropped, or whose run ends, is not given to another.
    ///
    /// ```
    /// # use everstep::{Limit, prelude::*};
    /// const MAIL: Limit = Limit::new("mail").rate(10, minutes(1));
    /// # async fn work(ctx: Ctx, user: String) -> Result<()> {
    /// ctx.rate_limit(MAIL).key(&user).await?;
    /// ctx.step("mail", async || Ok(())).await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// If the name or the key of the limit cannot be used.
    pub fn rate_limit(&self, limit: Limit) -> RateLimit {
        RateLimit {
            wait: RawWait::unregistered(self.claim(EntryKind::Limit, limit.name())),
            limit: Some(LimitUse::new(limit)),
        }
    }
}

/// A wait for a turn under a limit. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct RateLimit {
    pub(crate) wait: RawWait,
    limit: Option<LimitUse>,
}

impl RateLimit {
    /// The key: each is limited on its own.
    pub fn key(mut self, key: impl fmt::Display) -> RateLimit {
        if let Some(limit) = &mut self.limit {
            limit.key = key.to_string();
        }
        self
    }
}

impl Future for RateLimit {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        if let Some(limit) = this.limit.take() {
            match limit.check() {
                Ok(()) => this
                    .wait
                    .register_with(move |_, key, _| Some(limit.acquire(key, false))),
                Err(error) => this.wait.claim = Err(Some(error)),
            }
        }
        ready!(this.wait.poll(cx))?;
        Poll::Ready(Ok(()))
    }
}
