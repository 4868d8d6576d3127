//! `ctx.publish`: an event, recorded once and published in the commit that records it.

use std::{
    future::Future,
    pin::Pin,
    task::{Context, Poll},
};

use super::{Claim, Ctx, Whose, composite::refused, encode};
use crate::{
    codec::Value,
    commit::{Effect, Publication},
    error::{Error, Result},
    event::Event,
    history::{EntryKind, EntryValue, encode_receipt_prefix},
    name::check_name,
    run::core::Turn,
};

/// An event to be published. Await it.
#[must_use = "nothing is published unless it is awaited"]
pub struct Publish {
    pub(crate) claim: Claim,
    publication: Option<Box<Publication>>,
}

impl Ctx {
    /// Publishes an event. The operation has the event's name.
    ///
    /// It is published exactly once, in the commit that records it.
    ///
    /// # Errors
    ///
    /// If the body cannot be encoded, or is larger than the limit for payloads.
    pub fn publish<T: Value>(&self, event: Event<T>, body: &T) -> Publish {
        let what = || format!("the event `{}`", event.name);
        match encode(self.core(), body, Whose::Others, what) {
            Ok(body) => Publish {
                claim: self.claim(EntryKind::Publish, event.name),
                publication: Some(Box::new(event.rules.publication(
                    event.name,
                    body,
                    &self.core().env.settings,
                ))),
            },
            Err(error) => Publish {
                claim: Err(Some(error)),
                publication: None,
            },
        }
    }
}

impl Publish {
    /// Who waits for this key, or for any, gets it.
    pub fn key(mut self, key: &str) -> Publish {
        self.check(key);
        if let Some(publication) = &mut self.publication {
            publication.key = Some(key.to_owned());
        }
        self
    }

    /// A second event of the same name with an equal key is not published, as long as the first
    /// would be kept. A workflow publishes each event once by itself; this is for several
    /// workflows that may publish the same.
    pub fn dedupe(mut self, key: &str) -> Publish {
        self.check(key);
        if let Some(publication) = &mut self.publication {
            publication.dedupe = Some(key.to_owned());
        }
        self
    }

    fn check(&mut self, key: &str) {
        if let Err(error) = check_name(key) {
            self.claim = Err(Some(Error::fatal(error)));
        }
    }
}

impl Future for Publish {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<()>> {
        let this = &mut *self;
        let op = match &mut this.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                if let Some(publication) = this.publication.take() {
                    op.core.activate_send(op.id, |key, mut entry| {
                        entry.value = EntryValue::Receipt(0);
                        let receipt = encode_receipt_prefix(&entry);
                        Effect::Publish {
                            publication,
                            key: key.to_vec(),
                            receipt,
                        }
                    });
                }
                Poll::Pending
            }
            Turn::Take => {
                op.core.take(op.id, |_| ());
                Poll::Ready(Ok(()))
            }
            _ => Poll::Pending,
        }
    }
}
