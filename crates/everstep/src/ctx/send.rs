//! `ctx.send`: a message to another run, recorded once and delivered in the commit that records it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use serde::Serialize;

use super::{Claim, Ctx, Whose, composite::refused, encode};
use crate::{
    commit::{Delivery, Effect, OnEnd, Receipt, Target},
    error::{Error, Failure, FailureKind, Result},
    event::IfFinished,
    history::{EntryKind, EntryValue, encode_receipt_prefix},
    location::Location,
    name::check_name,
    run::core::{Core, Turn},
    run_id::RunId,
};

/// Which run a message goes to.
pub trait ToTarget {
    /// The run.
    fn to_target(&self) -> Target;
}

impl ToTarget for RunId {
    fn to_target(&self) -> Target {
        Target::Id(*self)
    }
}

impl ToTarget for Target {
    fn to_target(&self) -> Target {
        self.clone()
    }
}

/// By workflow and key: `("checkout", "order-1001")`.
impl ToTarget for (&str, &str) {
    fn to_target(&self) -> Target {
        Target::Key {
            workflow: self.0.to_owned(),
            key: self.1.to_owned(),
        }
    }
}

/// A message to another run. Await it.
#[must_use = "nothing is sent unless it is awaited"]
pub struct Send {
    pub(crate) claim: Claim,
    delivery: Option<Delivery>,
}

impl Ctx {
    /// Sends a message to another run. The operation has the message's name.
    ///
    /// It is delivered exactly once, in the commit that records it.
    ///
    /// # Errors
    ///
    /// If there is no such run, it has ended, or its inbox is full. The message is then a dead
    /// letter. [`Send::if_finished`] says otherwise for a run that has ended.
    pub fn send<T: Serialize>(&self, to: impl ToTarget, name: &str, body: &T) -> Send {
        let what = || format!("the message `{name}`");
        let encoded = encode(self.core(), body, Whose::Others, what);
        let claim = match encoded {
            Ok(_) => self.claim(EntryKind::Send, name),
            Err(_) => Err(None),
        };
        match encoded {
            Ok(body) => Send {
                claim,
                delivery: Some(Delivery {
                    target: to.to_target(),
                    name: name.to_owned(),
                    body,
                    dedupe: None,
                    request: None,
                    inbox_max: self.core().env.settings.inbox_messages_max,
                    on_end: OnEnd::Error,
                }),
            },
            Err(error) => Send {
                claim: Err(Some(error)),
                delivery: None,
            },
        }
    }
}

impl Send {
    /// A second message with an equal key to the same run is not delivered.
    pub fn dedupe(mut self, key: &str) -> Send {
        if let Some(delivery) = &mut self.delivery {
            delivery.dedupe = Some(key.to_owned());
        }
        if let Err(error) = check_name(key) {
            self.claim = Err(Some(Error::fatal(error)));
        }
        self
    }

    /// What becomes of it if the run has ended, or ends before it has read it: an error, if this
    /// is not said.
    pub fn if_finished(mut self, policy: IfFinished) -> Send {
        if let IfFinished::Publish(event) = &policy
            && let Err(error) = check_name(event)
        {
            self.claim = Err(Some(Error::fatal(error)));
        }
        if let (Ok(op), Some(delivery)) = (&self.claim, &mut self.delivery) {
            delivery.on_end = policy.on_end(&op.core.env.settings);
        }
        self
    }
}

impl Future for Send {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let op = match &mut this.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                if let Some(delivery) = this.delivery.take() {
                    op.core.activate_send(op.id, |key, mut entry| {
                        entry.value = EntryValue::Receipt(0);
                        let receipt = encode_receipt_prefix(&entry);
                        Effect::Send {
                            delivery,
                            key: key.to_vec(),
                            receipt,
                        }
                    });
                }
                Poll::Pending
            }
            Turn::Take => {
                let key = op
                    .core
                    .state
                    .borrow()
                    .ops
                    .get(op.id)
                    .map(|op| op.key.clone());
                let code = op.core.take(op.id, |entry| match entry.value {
                    EntryValue::Receipt(code) => code,
                    _ => 0,
                });
                let receipt = Receipt::from_code(code.unwrap_or(0));
                Poll::Ready(match receipt {
                    Some(
                        Receipt::Delivered
                        | Receipt::Duplicate
                        | Receipt::DeadLettered
                        | Receipt::Published,
                    )
                    | None => Ok(()),
                    Some(receipt) => {
                        let key = key.unwrap_or_else(|| [].into());
                        Err(undeliverable(receipt, &key))
                    }
                })
            }
            _ => Poll::Pending,
        }
    }
}

fn undeliverable(receipt: Receipt, key: &[u8]) -> Error {
    let why = match receipt {
        Receipt::Unknown => "there is no such run",
        Receipt::Finished => "the run has ended",
        Receipt::Full => "the inbox of the run is full",
        Receipt::Delivered | Receipt::Duplicate | Receipt::DeadLettered | Receipt::Published => {
            "it was delivered"
        }
    };
    let message = format!(
        "the message `{}` was not delivered: {why}",
        Core::location(key)
    );
    let mut failure = Failure::new(FailureKind::Undeliverable, message);
    failure.location = Location::from_key(key).ok();
    Error::recorded(failure, vec![Box::from(key)])
}
