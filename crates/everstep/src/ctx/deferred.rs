//! `ctx.deferred`: a promise that is kept or broken from outside.
//!
//! Making one takes its location, and with that its token; nothing is written before it is awaited.
//! A wait registers with the store ([`crate::run`] calls that a wait with an answer), which has the
//! value already or hands it over when it comes.

use std::{marker::PhantomData, rc::Rc, time::Duration};

use super::{
    Claim, Ctx, decode, key_of,
    operation::{Operation, Until, read_answer, take_answer},
};
use crate::{
    codec::Value,
    commit::{DeferredWait, Effect, answer::Answered},
    deferred::Deferred,
    error::{Error, Result},
    history::{EntryKind, OpId},
    run::core::Core,
    time::{Timestamp, When},
    token::{Claims, Token},
};

/// What became of a deferred: its value, or why it was rejected.
pub(crate) type Verdict<T, E> = std::result::Result<T, E>;

impl Ctx {
    /// Makes a promise that somebody outside of the run keeps or breaks: see [`Deferred`].
    ///
    /// Hand its [`token`](Gate::token) out in a step, then await it: `Ok` is the value that it was
    /// resolved with, `Err` the one that it was rejected with. It does not matter whether that
    /// happens before, during or after the wait, in which process, or whether an engine runs then.
    ///
    /// ```
    /// # use everstep::{Deferred, prelude::*};
    /// const PAYMENT: Deferred<u64> = Deferred::new("payment");
    ///
    /// # async fn work(ctx: Ctx) -> Result<()> {
    /// let payment = ctx.deferred(PAYMENT);
    /// let token = payment.token();
    /// ctx.step("invoice", async || Ok(println!("pay with {}", token.as_str()))).await?;
    /// // Each wait of a deferred may have a time limit of its own.
    /// while payment.timeout(days(7)).await?.is_none() {
    ///     ctx.step("remind", async || Ok(())).await?;
    /// }
    /// let paid = payment.await?;
    /// # _ = paid; Ok(()) }
    /// ```
    pub fn deferred<T: Value, E: Value>(&self, deferred: Deferred<T, E>) -> Gate<T, E> {
        let claim = self.claim(EntryKind::Deferred, deferred.name());
        let key = key_of(&claim);
        let core = self.core();
        let claims = key.as_ref().map(|key| Claims {
            run: core.facts.id,
            generation: core.facts.generation,
            tag: core.env.secret.tag(core.facts.id, key),
        });
        Gate {
            core: core.clone(),
            claim,
            claims,
            below: key.map(|key| Ctx::at(core.clone(), key)),
            looks: false,
            until: None,
            types: PhantomData,
        }
    }
}

/// A promise of this run that is kept or broken from outside. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Gate<T, E = String> {
    core: Rc<Core>,
    pub(crate) claim: Claim,
    /// None if it could not be made, which awaiting it says.
    claims: Option<Claims>,
    /// Where its looks and its waits with a time limit are counted.
    below: Option<Ctx>,
    /// Whether it only looks, and does not wait.
    looks: bool,
    until: Option<When>,
    types: PhantomData<fn() -> (T, E)>,
}

impl<T: Value, E: Value> Gate<T, E> {
    /// What whoever may keep or break this promise has to present: see
    /// [`Client::deferred`](crate::Client::deferred).
    ///
    /// It cannot be guessed, is valid for this run, generation and location alone, and is the same
    /// on every replay. It is a secret: steps that record it keep it in the history.
    pub fn token(&self) -> Token {
        let token = self.claims.map(|claims| self.core.env.secret.token(&claims));
        token.unwrap_or_else(Token::none)
    }

    /// Waits, and gives `None` when nothing has come after this long. What is there wins.
    ///
    /// The promise stays open: wait again, with or without a limit, on the same token. Each such
    /// wait is an operation of its own, `wait`, below the deferred.
    pub fn timeout(&self, timeout: Duration) -> Until<Self> {
        self.again(EntryKind::Deferred, "wait", Some(When::After(timeout)))
    }

    /// As [`timeout`](Gate::timeout), until this instant.
    pub fn until(&self, at: Timestamp) -> Until<Self> {
        self.again(EntryKind::Deferred, "wait", Some(When::At(at)))
    }

    /// Gives what has come so far, without a wait; `None` if nothing has.
    ///
    /// What it gave is recorded, and given again on a replay. Each look is an operation of its own,
    /// `peek`, below the deferred.
    pub fn peek(&self) -> Until<Self> {
        self.again(EntryKind::Peek, "peek", None)
    }

    /// Another operation on the same promise.
    fn again(&self, kind: EntryKind, name: &str, until: Option<When>) -> Until<Self> {
        let claim = match (&self.below, &self.claim) {
            (Some(below), _) => below.claim(kind, name),
            // It says why when it is awaited itself; this one cannot be made either.
            (None, Err(Some(error))) => {
                let failure = error.failure().clone();
                Err(Some(Error::recorded(failure, Vec::new())))
            }
            (None, _) => Err(None),
        };
        Until(Gate {
            core: self.core.clone(),
            claim,
            claims: self.claims,
            below: None,
            looks: kind == EntryKind::Peek,
            until,
            types: PhantomData,
        })
    }
}

impl<T, E> std::fmt::Debug for Gate<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate(..)")
    }
}

impl<T: Value, E: Value> Operation for Gate<T, E> {
    type Output = Option<Verdict<T, E>>;

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        let (claims, looks) = (self.claims, self.looks);
        core.activate_wait(id, self.until, |key, _| {
            let (key, tag) = (key.to_vec(), claims?.tag);
            Some(Effect::AwaitDeferred(DeferredWait { key, tag, looks }))
        });
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<Self::Output>> {
        let Some(bytes) = take_answer(core, id)? else {
            return Some(Ok(None));
        };
        let what = || "the answer to a deferred".to_owned();
        let verdict = match read_answer(core, &bytes, what)? {
            Answered::Value(value) => {
                let what = || "the value of a deferred".to_owned();
                Some(Ok(decode(core, &value, what)?))
            }
            Answered::Rejected(reason) => {
                let what = || "the rejection of a deferred".to_owned();
                Some(Err(decode(core, &reason, what)?))
            }
            Answered::Unknown | Answered::Cancelled | Answered::Failure(_) => None,
        };
        Some(Ok(verdict))
    }
}
