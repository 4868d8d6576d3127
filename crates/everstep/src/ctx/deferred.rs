//! `ctx.deferred`: a promise that is kept or broken from outside.
//!
//! Making one takes its location, and with that its token; nothing is written before it is awaited.
//! A wait registers with the store ([`crate::run`] calls that a wait with an answer), which has the
//! value already or hands it over when it comes.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};

use super::{Claim, Ctx, decode, sleep::Until};
use crate::{
    codec::Value,
    commit::{
        DeferredWait, Effect,
        answer::{self, Answered},
    },
    deferred::Deferred,
    error::Result,
    history::{Entry, EntryKind, EntryValue, Key},
    run::{
        Halt,
        core::{Core, Turn},
    },
    time::Timestamp,
    token::{Claims, Tag, Token},
};

/// What became of a deferred: its value, or why it was rejected.
type Verdict<T, E> = std::result::Result<T, E>;

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
        let place = claim.as_ref().ok().and_then(|op| {
            let key = op.core.state.borrow().ops.get(op.id)?.key.clone();
            let facts = &op.core.facts;
            let claims = Claims {
                run: facts.id,
                generation: facts.generation,
                tag: op.core.env.secret.tag(facts.id, &key),
            };
            Some((claims, key))
        });
        let below = place
            .as_ref()
            .map(|(_, key)| Ctx::at(self.core().clone(), key.clone()));
        let claims = place.map(|(claims, _)| claims);
        Gate {
            core: self.core().clone(),
            raw: RawGate::new(claim, claims, false),
            claims,
            below,
            types: PhantomData,
        }
    }
}

/// A promise of this run that is kept or broken from outside. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Gate<T, E = String> {
    core: Rc<Core>,
    pub(crate) raw: RawGate,
    /// None if it could not be made, which awaiting it says.
    claims: Option<Claims>,
    /// Where its looks and its waits with a time limit are counted.
    below: Option<Ctx>,
    types: PhantomData<fn() -> (T, E)>,
}

/// A wait for a deferred that may end without its value. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct GateUntil<T, E = String> {
    pub(crate) raw: RawGate,
    types: PhantomData<fn() -> (T, E)>,
}

/// A look at a deferred. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Peek<T, E = String> {
    pub(crate) raw: RawGate,
    types: PhantomData<fn() -> (T, E)>,
}

impl<T: Value, E: Value> Gate<T, E> {
    /// What whoever may keep or break this promise has to present: see
    /// [`Client::deferred`](crate::Client::deferred).
    ///
    /// It cannot be guessed, is valid for this run, generation and location alone, and is the same
    /// on every replay. It is a secret: steps that record it keep it in the history.
    pub fn token(&self) -> Token {
        let token = self
            .claims
            .map(|claims| self.core.env.secret.token(&claims));
        token.unwrap_or_else(Token::none)
    }

    /// Waits, and gives `None` when nothing has come after this long. What is there wins.
    ///
    /// The promise stays open: wait again, with or without a limit, on the same token. Each such
    /// wait is an operation of its own, `wait`, below the deferred.
    pub fn timeout(&self, timeout: Duration) -> GateUntil<T, E> {
        self.wait(Until::After(timeout))
    }

    /// As [`timeout`](Gate::timeout), until this instant.
    pub fn until(&self, at: Timestamp) -> GateUntil<T, E> {
        self.wait(Until::At(at))
    }

    fn wait(&self, until: Until) -> GateUntil<T, E> {
        let mut raw = self.raw_below(EntryKind::Deferred, "wait");
        raw.until = Some(until);
        let types = PhantomData;
        GateUntil { raw, types }
    }

    /// Gives what has come so far, without a wait; `None` if nothing has.
    ///
    /// What it gave is recorded, and given again on a replay. Each look is an operation of its own,
    /// `peek`, below the deferred.
    pub fn peek(&self) -> Peek<T, E> {
        let raw = self.raw_below(EntryKind::Peek, "peek");
        let types = PhantomData;
        Peek { raw, types }
    }

    fn raw_below(&self, kind: EntryKind, name: &str) -> RawGate {
        let claim = match (&self.below, &self.raw.claim) {
            (Some(below), _) => below.claim(kind, name),
            // It says why when it is awaited itself; this one cannot be made either.
            (None, Err(Some(error))) => Err(Some(crate::error::Error::recorded(
                error.failure().clone(),
                Vec::new(),
            ))),
            (None, _) => Err(None),
        };
        RawGate::new(claim, self.claims, kind == EntryKind::Peek)
    }
}

impl<T, E> std::fmt::Debug for Gate<T, E> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Gate(..)")
    }
}

/// A wait for a deferred, whatever its types.
pub(crate) struct RawGate {
    pub(crate) claim: Claim,
    tag: Option<Tag>,
    looks: bool,
    until: Option<Until>,
}

impl RawGate {
    fn new(claim: Claim, claims: Option<Claims>, looks: bool) -> RawGate {
        RawGate {
            claim,
            tag: claims.map(|claims| claims.tag),
            looks,
            until: None,
        }
    }

    /// What came; `None` if nothing did in time.
    fn poll<T: Value, E: Value>(
        &mut self,
        cx: &mut Context<'_>,
    ) -> Poll<Result<Option<Verdict<T, E>>>> {
        let op = match &mut self.claim {
            Ok(op) => op,
            Err(error) => return super::composite::refused(error),
        };
        match op.core.turn(op.id, cx.waker()) {
            Turn::Activate => {
                let until = self.until.map(|until| until.from(op.core.now()));
                let (tag, looks) = (self.tag, self.looks);
                let register = |key: &Key, _: &Entry| {
                    let key = key.to_vec();
                    tag.map(|tag| Effect::AwaitDeferred(DeferredWait { key, tag, looks }))
                };
                op.core.activate_wait(op.id, register, until);
                Poll::Pending
            }
            Turn::Take => {
                let taken = op.core.take(op.id, |entry| match &entry.value {
                    EntryValue::Answer(answer) => Some(answer.clone()),
                    _ => None,
                });
                let Some(answer) = taken.flatten() else {
                    return Poll::Ready(Ok(None));
                };
                match read(&op.core, &answer) {
                    Some(verdict) => Poll::Ready(Ok(verdict)),
                    // The run is halted; its code is not polled again.
                    None => Poll::Pending,
                }
            }
            _ => Poll::Pending,
        }
    }
}

/// What an answer says; `None`, and the run is halted, if it cannot be decoded.
fn read<T: Value, E: Value>(core: &Core, bytes: &[u8]) -> Option<Option<Verdict<T, E>>> {
    match answer::decode(bytes) {
        Ok(Answered::Value(value)) => {
            let value = decode(core, &value, || "the value of a deferred".to_owned())?;
            Some(Some(Ok(value)))
        }
        Ok(Answered::Rejected(reason)) => {
            let reason = decode(core, &reason, || "the rejection of a deferred".to_owned())?;
            Some(Some(Err(reason)))
        }
        Ok(Answered::Unknown | Answered::Cancelled | Answered::Failure(_)) => Some(None),
        Err(error) => {
            let what = "the answer to a deferred".to_owned();
            core.halt(Halt::Undecodable { what, error });
            None
        }
    }
}

impl<T: Value, E: Value> Future for Gate<T, E> {
    type Output = Result<Verdict<T, E>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match std::task::ready!(self.raw.poll(cx)) {
            Ok(Some(verdict)) => Poll::Ready(Ok(verdict)),
            // Without a deadline it can only end with a value.
            Ok(None) => Poll::Pending,
            Err(error) => Poll::Ready(Err(error)),
        }
    }
}

impl<T: Value, E: Value> Future for GateUntil<T, E> {
    type Output = Result<Option<Verdict<T, E>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw.poll(cx)
    }
}

impl<T: Value, E: Value> Future for Peek<T, E> {
    type Output = Result<Option<Verdict<T, E>>>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        self.raw.poll(cx)
    }
}
