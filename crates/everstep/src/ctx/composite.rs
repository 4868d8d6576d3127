//! Operations that are made of others: join, map, race, attempt, repeat.
//!
//! A composite is always run again from the entries of its children. Its own entry has no value
//! and no number: it is there for people and for the check that the code still makes this kind of
//! operation here.

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use super::{
    Claim, Ctx,
    child::{Child, ChildError, ChildOutcome, Detached, RunEnding, RunFinished},
    deferred::{Gate, Verdict},
    enqueue::{Enqueue, EnqueueDetached},
    event::EventWait,
    key_of,
    limit::RateLimit,
    listen::{Listen, ListenBatch, Take},
    map::Map,
    operation::{self, Operation, Until},
    publish::Publish,
    repeat::Repeat,
    send::Send,
    sleep::Sleep,
    step::{LocalBox, Outcome, StepCall, StepOutcome},
};
use crate::{
    codec::Value,
    commit::ItemId,
    error::{Error, Result},
    history::{EntryKind, Key},
    name::check_name,
    run::core::Core,
    run_id::RunId,
    time::Timestamp,
};

/// An operation that was refused when it was made gives its error once.
pub(crate) fn refused<T>(error: &mut Option<Error>) -> Poll<Result<T>> {
    let error = error.take();
    Poll::Ready(Err(error.unwrap_or_else(|| Error::fatal("an operation was polled after its end"))))
}

/// Where a composite stands: what its branches are made below.
#[derive(Clone)]
pub struct Place {
    pub(crate) core: Rc<Core>,
    pub(crate) key: Key,
    /// Counts the names of the branches: two of one name are `a` and `a#2`, as everywhere.
    names: Ctx,
}

impl Place {
    pub(crate) fn new(core: Rc<Core>, key: Key) -> Place {
        let names = Ctx::at(core.clone(), key.clone());
        Place { core, key, names }
    }

    /// The `Ctx` of a branch.
    pub(crate) fn branch(&self, name: &str) -> Ctx {
        self.names.scope(name)
    }
}

type Start<'a, T> = Box<dyn FnOnce(Place) -> LocalBox<'a, Result<T>> + 'a>;

/// An operation that is made of others. Await it.
#[must_use = "an operation does nothing unless it is awaited"]
pub struct Composite<'a, T> {
    pub(crate) claim: Claim,
    start: Option<Start<'a, T>>,
    running: Option<LocalBox<'a, Result<T>>>,
}

impl<'a, T> Composite<'a, T> {
    pub(crate) fn new(
        ctx: &Ctx,
        kind: EntryKind,
        name: &str,
        start: impl FnOnce(Place) -> LocalBox<'a, Result<T>> + 'a,
    ) -> Composite<'a, T> {
        let claim = ctx.claim(kind, name);
        Composite { claim, start: Some(Box::new(start)), running: None }
    }
}

impl<T> Future for Composite<'_, T> {
    type Output = Result<T>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<T>> {
        let this = &mut *self;
        poll_structure(&mut this.claim, this.start.take(), &mut this.running, cx)
    }
}

/// Polls an operation that is made of others: at its first poll (`start`) its entry is opened and it
/// is started, at its end the entry is closed.
pub(crate) fn poll_structure<'a, T>(
    claim: &mut Claim,
    start: Option<impl FnOnce(Place) -> LocalBox<'a, Result<T>>>,
    running: &mut Option<LocalBox<'a, Result<T>>>,
    cx: &mut Context<'_>,
) -> Poll<Result<T>> {
    let op = match claim {
        Ok(op) => op,
        Err(error) => return refused(error),
    };
    if op.core.refuse_poll(op.id) {
        return Poll::Pending;
    }
    if let Some(start) = start {
        op.core.open_structure(op.id);
        let Some(key) = op.key() else {
            return Poll::Pending;
        };
        *running = Some(start(Place::new(op.core.clone(), key)));
    }
    let Some(future) = running else {
        return Poll::Pending;
    };
    let result = std::task::ready!(future.as_mut().poll(cx));
    *running = None;
    op.core.close_structure(op.id, result.is_err());
    Poll::Ready(result)
}

/// A part of a join or a race that has been started.
pub struct StartedArm<'a, T> {
    pub(crate) name: String,
    /// What it does lies at or below this key.
    pub(crate) key: Key,
    pub(crate) future: LocalBox<'a, Result<T>>,
}

/// What can be a part of a join or a race: a [`branch`], or a bare operation, which keeps the
/// location it was made with.
pub trait Arm<'a> {
    /// What it gives.
    type Output: 'a;

    /// Starts it below the join or race.
    #[doc(hidden)]
    fn start(self, place: &Place) -> StartedArm<'a, Self::Output>;
}

/// A named part of a join or a race, with a `Ctx` of its own.
#[must_use = "a branch does nothing unless it is given to a join or a race"]
pub struct Branch<'a, T> {
    name: String,
    code: Box<dyn FnOnce(Ctx) -> LocalBox<'a, Result<T>> + 'a>,
}

/// A named part of a join or a race.
///
/// ```
/// # use everstep::prelude::*;
/// # async fn work(ctx: Ctx) -> Result<()> {
/// let (a, b) = ctx.join("both", (
///     branch("a", async |ctx| ctx.step("work", async || Ok(1)).await),
///     branch("b", async |ctx| ctx.step("work", async || Ok(2)).await),
/// )).await?;
/// # Ok(()) }
/// ```
pub fn branch<'a, T, F>(name: impl Into<String>, code: F) -> Branch<'a, T>
where
    F: AsyncFnOnce(Ctx) -> Result<T> + 'a,
{
    Branch { name: name.into(), code: Box::new(|ctx| Box::pin(code(ctx))) }
}

impl<'a, T: 'a> Arm<'a> for Branch<'a, T> {
    type Output = T;

    fn start(self, place: &Place) -> StartedArm<'a, T> {
        let checked = check_name(&self.name);
        let name = if checked.is_ok() { self.name.as_str() } else { "?" };
        let ctx = place.branch(name);
        let key = ctx.scope.key.clone();
        let future: LocalBox<'a, Result<T>> = match checked {
            Ok(()) => (self.code)(ctx),
            Err(error) => Box::pin(async move { Err(Error::fatal(error)) }),
        };
        StartedArm { name: self.name, key, future }
    }
}

impl<'a, T> StartedArm<'a, T> {
    /// A bare operation, which keeps the location that it was made with.
    fn bare(
        key: Option<Key>,
        place: &Place,
        operation: impl Future<Output = Result<T>> + 'a,
    ) -> StartedArm<'a, T> {
        let key = key.unwrap_or_else(|| place.key.clone());
        StartedArm { name: Core::location(&key), key, future: Box::pin(operation) }
    }
}

macro_rules! arms {
    ($([$($bounds:tt)*] $operation:ty, $claim:ident $(. $path:ident)* => $output:ty;)*) => {$(
        impl<'a, $($bounds)*> Arm<'a> for $operation {
            type Output = $output;

            fn start(self, place: &Place) -> StartedArm<'a, $output> {
                StartedArm::bare(key_of(&self.$claim $(. $path)*), place, self)
            }
        }
    )*};
}

/// Each [`Operation`] is a future and an arm.
macro_rules! operations {
    ($poll:ident: $([$($bounds:tt)*] $operation:ty, $($claim:ident).+ => $output:ty;)*) => {
        arms! { $([$($bounds)*] $operation, $($claim).+ => $output;)* }
        $(
            impl<$($bounds)*> Future for $operation {
                type Output = Result<$output>;

                fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
                    operation::$poll(&mut *self, cx)
                }
            }
        )*
    };
}

operations! { poll:
    [] Sleep, claim => Timestamp;
    [] Send, claim => ();
    [] Publish, claim => ();
    [] EnqueueDetached, raw.claim => ItemId;
    [] Detached, claim => RunId;
    [] RateLimit, claim => ();
    [K: Take] ListenBatch<K>, listen.claim => Vec<K::Item>;
}

operations! { poll_value:
    [K: Take] Listen<K>, claim => K::Item;
    [T: Value] EventWait<T>, claim => T;
    [O: Value] Enqueue<O>, raw.claim => O;
    [T: Value, E: Value] Gate<T, E>, claim => Verdict<T, E>;
    [] RunFinished, claim => RunEnding;
}

arms! {
    [T: Value] StepCall<'a, T>, raw.claim => T;
    [T: Value] StepOutcome<'a, T>, step.raw.claim => Outcome<T>;
    [T: 'a] Composite<'a, T>, claim => T;
    [I: 'a, T: 'a] Map<'a, I, T>, claim => Vec<T>;
    [S: Value, B: 'a] Repeat<'a, S, B>, claim => B;
    [O: Value] Child<O>, claim => O;
    [O: Value] ChildOutcome<O>, child.claim => Result<O, ChildError>;
}

impl<'a, T: 'a, W: Operation<Output = Option<T>> + 'a> Arm<'a> for Until<W> {
    type Output = Option<T>;

    fn start(mut self, place: &Place) -> StartedArm<'a, Option<T>> {
        StartedArm::bare(key_of(self.0.claim()), place, self)
    }
}
