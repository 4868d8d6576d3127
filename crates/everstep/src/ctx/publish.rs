//! `ctx.publish`: an event, recorded once and published in the commit that records it.

use std::rc::Rc;

use super::{Claim, Ctx, operation::Operation, refuse_if, send::receipt_of};
use crate::{
    codec::Value,
    commit::{Effect, Publication},
    error::Result,
    event::Event,
    history::{EntryKind, OpId},
    name::check_name,
    run::core::Core,
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
        let (claim, body) = self.claim_with(EntryKind::Publish, event.name, body, what);
        let settings = &self.core().env.settings;
        let publication = event.rules.publication(event.name, body, settings);
        Publish { claim, publication: Some(Box::new(publication)) }
    }
}

impl Publish {
    /// Who waits for this key, or for any, gets it.
    pub fn key(mut self, key: &str) -> Publish {
        refuse_if(&mut self.claim, check_name(key));
        if let Some(publication) = &mut self.publication {
            publication.key = Some(key.to_owned());
        }
        self
    }

    /// A second event of the same name with an equal key is not published, as long as the first
    /// would be kept. A workflow publishes each event once by itself; this is for several
    /// workflows that may publish the same.
    pub fn dedupe(mut self, key: &str) -> Publish {
        refuse_if(&mut self.claim, check_name(key));
        if let Some(publication) = &mut self.publication {
            publication.dedupe = Some(key.to_owned());
        }
        self
    }
}

impl Operation for Publish {
    type Output = ();

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        if let Some(publication) = self.publication.take() {
            core.activate_send(id, |key, entry| Effect::Publish {
                publication,
                key: key.to_vec(),
                receipt: receipt_of(entry),
            });
        }
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<()>> {
        core.take(id, |_| Ok(()))
    }
}
