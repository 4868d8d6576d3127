//! `ctx.rate_limit`: waits for a turn under a limit. Limits of steps are in [`super::step`].

use std::{fmt, rc::Rc};

use super::{Claim, Ctx, operation::Operation};
use crate::{
    error::Result,
    history::{EntryKind, OpId},
    limit::{Limit, LimitUse},
    run::core::Core,
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
        RateLimit { claim: self.claim(EntryKind::Limit, limit.name()), limit: LimitUse::new(limit) }
    }
}

/// A wait for a turn under a limit. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct RateLimit {
    pub(crate) claim: Claim,
    limit: LimitUse,
}

impl RateLimit {
    /// The key: each is limited on its own.
    pub fn key(mut self, key: impl fmt::Display) -> RateLimit {
        self.limit.key = key.to_string();
        if let Err(error) = self.limit.check() {
            self.claim = Err(Some(error));
        }
        self
    }
}

impl Operation for RateLimit {
    type Output = ();

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        core.activate_wait(id, None, |key, _| Some(self.limit.acquire(key, false)));
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<()>> {
        core.take(id, |_| Ok(()))
    }
}
