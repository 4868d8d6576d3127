//! The part that all operations have in common which register with the store and are answered
//! through the inbox: see [`crate::run::waits`].

use std::task::{Context, Poll};

use super::{Claim, composite::refused, sleep::Until};
use crate::{
    codec::{DecodeError, hook::Codecs},
    commit::{Effect, answer},
    error::Result,
    history::{Entry, EntryStatus, EntryValue, Key},
    run::{
        Halt,
        core::{Core, Turn},
    },
};

/// Makes the effect that registers a wait, given the key and the entry of its operation. It is
/// called while the state of the run is borrowed.
pub(crate) type Register = Box<dyn FnOnce(&Core, &Key, &Entry) -> Option<Effect>>;

/// A wait for an answer.
pub(crate) struct RawWait {
    pub(crate) claim: Claim,
    pub(crate) register: Option<Register>,
    pub(crate) until: Option<Until>,
}

impl RawWait {
    pub(crate) fn new(
        claim: Claim,
        register: impl FnOnce(&Core, &Key, &Entry) -> Option<Effect> + 'static,
    ) -> RawWait {
        RawWait {
            claim,
            register: Some(Box::new(register)),
            until: None,
        }
    }

    /// A wait whose effect is made later, before the first poll.
    pub(crate) fn unregistered(claim: Claim) -> RawWait {
        RawWait {
            claim,
            register: None,
            until: None,
        }
    }

    pub(crate) fn register_with(
        &mut self,
        register: impl FnOnce(&Core, &Key, &Entry) -> Option<Effect> + 'static,
    ) {
        self.register = Some(Box::new(register));
    }

    /// The bytes of the answer; none if the time ran out first.
    pub(crate) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Result<Option<Vec<u8>>>> {
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                if let Some(register) = self.register.take() {
                    let until = self.until.map(|until| until.from(op.core.now()));
                    let core = op.core.clone();
                    op.core
                        .activate_wait(op.id, |key, entry| register(&core, key, entry), until);
                }
                Poll::Pending
            }
            Turn::Take => {
                let taken = op.core.take(op.id, |entry| match &entry.value {
                    EntryValue::Answer(bytes) if entry.status == EntryStatus::Completed => {
                        Some(bytes.clone())
                    }
                    _ => None,
                });
                match taken {
                    Some(answer) => Poll::Ready(Ok(answer)),
                    None => Poll::Pending,
                }
            }
            _ => Poll::Pending,
        }
    }

    pub(crate) fn key(&self) -> Option<Key> {
        let op = self.claim.as_ref().ok()?;
        let st = op.core.state.borrow();
        st.ops.get(op.id).map(|op| op.key.clone())
    }

    pub(crate) fn codecs(&self) -> Codecs {
        let core = self.claim.as_ref().ok().map(|op| &op.core);
        core.map(|core| core.env.settings.codecs.clone())
            .unwrap_or_default()
    }

    pub(crate) fn location(&self) -> String {
        self.key()
            .map(|key| Core::location(&key))
            .unwrap_or_default()
    }

    /// Reads an answer, or halts the run: the code does not fit what is stored.
    pub(crate) fn read(
        &self,
        read: Result<answer::Answered, DecodeError>,
    ) -> Option<answer::Answered> {
        match (read, &self.claim) {
            (Ok(answered), _) => Some(answered),
            (Err(error), Ok(op)) => {
                let what = format!("the answer for `{}`", self.location());
                op.core.halt(Halt::Undecodable { what, error });
                None
            }
            (Err(_), Err(_)) => None,
        }
    }
}
