//! `ctx.sleep`: a durable timer. It holds no thread.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
    time::Duration,
};

use super::{Claim, Ctx};
use crate::{error::Result, history::EntryKind, run::core::Turn, time::Timestamp};

/// A durable timer; gives the instant at which it fired.
#[must_use = "a sleep does nothing unless it is awaited"]
pub struct Sleep {
    pub(crate) claim: Claim,
    until: Until,
}

#[derive(Clone, Copy)]
pub(crate) enum Until {
    After(Duration),
    At(Timestamp),
}

impl Until {
    pub(crate) fn from(self, now: Timestamp) -> Timestamp {
        match self {
            Until::After(delay) => now + delay,
            Until::At(at) => at,
        }
    }
}

impl Ctx {
    /// Waits for this long, across crashes and restarts. The time counts from when the sleep was
    /// first awaited, not from a restart.
    pub fn sleep(&self, name: &str, delay: Duration) -> Sleep {
        Sleep {
            claim: self.claim(EntryKind::Sleep, name),
            until: Until::After(delay),
        }
    }

    /// Waits until this instant; not at all if it has passed.
    pub fn sleep_until(&self, name: &str, at: Timestamp) -> Sleep {
        Sleep {
            claim: self.claim(EntryKind::Sleep, name),
            until: Until::At(at),
        }
    }
}

impl Future for Sleep {
    type Output = Result<Timestamp>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let until = self.until;
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return super::composite::refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                op.core.activate_sleep(op.id, until.from(op.core.now()));
                Poll::Pending
            }
            Turn::Take => {
                let fired = op.core.take(op.id, |entry| entry.completed_at);
                Poll::Ready(Ok(fired.flatten().unwrap_or_default()))
            }
            _ => Poll::Pending,
        }
    }
}
