//! `ctx.send`: a message to another run, recorded once and delivered in the commit that records it.

use std::rc::Rc;

use serde::Serialize;

use super::{Claim, Ctx, error_at, operation::Operation, refuse_if};
use crate::{
    commit::{Delivery, Effect, OnEnd, Receipt, Target},
    error::{Error, Failure, FailureKind, Result},
    event::IfFinished,
    history::{Entry, EntryKind, EntryValue, OpId, encode_receipt_prefix},
    name::check_name,
    run::core::Core,
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
        Target::Key { workflow: self.0.to_owned(), key: self.1.to_owned() }
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
        let (claim, body) = self.claim_with(EntryKind::Send, name, body, what);
        Send {
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
        }
    }
}

impl Send {
    /// A second message with an equal key to the same run is not delivered.
    pub fn dedupe(mut self, key: &str) -> Send {
        if let Some(delivery) = &mut self.delivery {
            delivery.dedupe = Some(key.to_owned());
        }
        refuse_if(&mut self.claim, check_name(key));
        self
    }

    /// What becomes of it if the run has ended, or ends before it has read it: an error, if this
    /// is not said.
    pub fn if_finished(mut self, policy: IfFinished) -> Send {
        if let IfFinished::Publish(event) = &policy {
            refuse_if(&mut self.claim, check_name(event));
        }
        if let (Ok(op), Some(delivery)) = (&self.claim, &mut self.delivery) {
            delivery.on_end = policy.on_end(&op.core.env.settings);
        }
        self
    }
}

impl Operation for Send {
    type Output = ();

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(delivery) = self.delivery.take() {
            core.activate_send(id, |key, entry| Effect::Send {
                delivery,
                key: key.to_vec(),
                receipt: receipt_of(entry),
            });
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<()>> {
        let key = core.key_of(id)?;
        let code = core.take(id, |entry| match entry.value {
            EntryValue::Receipt(code) => code,
            _ => 0,
        })?;
        let refused = Receipt::from_code(code).and_then(why_not_delivered);
        Some(refused.map_or(Ok(()), |why| Err(undeliverable(why, &key))))
    }
}

/// The record of an operation whose receipt the store fills in when it has committed the operation.
pub(super) fn receipt_of(mut entry: Entry) -> Vec<u8> {
    entry.value = EntryValue::Receipt(0);
    encode_receipt_prefix(&entry)
}

fn why_not_delivered(receipt: Receipt) -> Option<&'static str> {
    match receipt {
        Receipt::Unknown => Some("there is no such run"),
        Receipt::Finished => Some("the run has ended"),
        Receipt::Full => Some("the inbox of the run is full"),
        Receipt::Delivered | Receipt::Duplicate | Receipt::DeadLettered | Receipt::Published => {
            None
        }
    }
}

fn undeliverable(why: &str, key: &[u8]) -> Error {
    let message = format!("the message `{}` was not delivered: {why}", Core::location(key));
    error_at(key, Failure::new(FailureKind::Undeliverable, message))
}
