//! `ctx.sleep`: a durable timer. It holds no thread.

use std::{rc::Rc, time::Duration};

use super::{Claim, Ctx, operation::Operation};
use crate::{
    error::Result,
    history::{EntryKind, OpId},
    run::core::Core,
    time::{Timestamp, When},
};

/// A durable timer; gives the instant at which it fired.
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    pub(crate) claim: Claim,
    until: When,
}

impl Ctx {
    /// Waits for this long, across crashes and restarts. The time counts from when the sleep was
    /// first awaited, not from a restart.
    pub fn sleep(&self, name: &str, delay: Duration) -> Sleep {
        Sleep { claim: self.claim(EntryKind::Sleep, name), until: When::After(delay) }
    }

    /// Waits until this instant; not at all if it has passed.
    pub fn sleep_until(&self, name: &str, at: Timestamp) -> Sleep {
        Sleep { claim: self.claim(EntryKind::Sleep, name), until: When::At(at) }
    }
}

impl Operation for Sleep {
    type Output = Timestamp;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        core.activate_sleep(id, self.until.from(core.now()));
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Timestamp>> {
        let fired = core.take(id, |entry| entry.completed_at)?;
        Some(Ok(fired.unwrap_or_default()))
    }
}
