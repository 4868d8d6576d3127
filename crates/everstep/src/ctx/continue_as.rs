//! `ctx.continue_as`: the same run, from the beginning, with a fresh history.

use std::{
    future::Future,
    marker::PhantomData,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll},
};

use super::{Claim, Ctx, composite::refused};
use crate::{
    codec::Value,
    error::{Error, Failure, FailureKind, Result},
    history::EntryKind,
    pool::DEFAULT_POOL,
    run::core::{Next, Turn},
    workflow::WorkflowRef,
};

impl Ctx {
    /// Ends this generation of the run and begins the next one with this input: the same id, an
    /// empty history. Return it: nothing after it runs.
    ///
    /// Unread messages, values and streams for clients, tags, key, deadline and parent stay; what
    /// the code was waiting for is given up, and children that it awaits are cancelled. The next
    /// generation runs with the newest version of the workflow that is registered here.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// async fn tally(ctx: Ctx, total: u64) -> Result<u64> {
    ///     let mut sum = total;
    ///     for _ in 0..1_000 {
    ///         match ctx.listen::<Option<u64>>("add").await? {
    ///             Some(n) => sum += n,
    ///             None => return Ok(sum),
    ///         }
    ///     }
    ///     ctx.continue_as(sum).await
    /// }
    /// ```
    ///
    /// # Errors
    ///
    /// If a step that has completed has a rollback: after this nothing could undo it. Say
    /// [`forget_rollbacks`](ContinueAs::forget_rollbacks) if that is meant.
    pub fn continue_as<I: Value, O>(&self, input: I) -> ContinueAs<O> {
        let facts = &self.core().facts;
        let owner = self.core().env.owner.as_ref();
        let newest = owner.and_then(|owner| owner.newest_version(&facts.workflow));
        let version = newest.unwrap_or(facts.version);
        self.continuing(facts.workflow.clone(), version, &input)
    }

    /// As [`continue_as`](Ctx::continue_as), as a run of another workflow that gives the same type.
    pub fn continue_with<W: WorkflowRef>(
        &self,
        workflow: W,
        input: W::Input,
    ) -> ContinueAs<W::Output> {
        self.continuing(Arc::from(workflow.name()), workflow.version(), &input)
    }

    fn continuing<I: Value, O>(
        &self,
        workflow: Arc<str>,
        version: u32,
        input: &I,
    ) -> ContinueAs<O> {
        let owner = self.core().env.owner.as_ref();
        let pool = owner.map(|owner| owner.home_of(&workflow, version));
        let pool = pool.unwrap_or_else(|| Arc::from(DEFAULT_POOL));
        let what = || "the input of the next generation".to_owned();
        let (claim, input) = self.claim_with(EntryKind::Continue, "continue_as", input, what);
        ContinueAs {
            claim,
            next: Some(Next { workflow, version, pool, input }),
            forget_rollbacks: false,
            output: PhantomData,
        }
    }

    /// Which life of the run this is, from 1: see [`continue_as`](Ctx::continue_as).
    pub fn generation(&self) -> u32 {
        self.core().facts.generation
    }
}

/// The next generation of the run. Await it, and return what it gives.
#[must_use = "the run does not continue unless this is awaited"]
pub struct ContinueAs<O> {
    claim: Claim,
    next: Option<Next>,
    forget_rollbacks: bool,
    output: PhantomData<fn() -> O>,
}

impl<O> ContinueAs<O> {
    /// What was done so far is never rolled back.
    pub fn forget_rollbacks(mut self) -> Self {
        self.forget_rollbacks = true;
        self
    }
}

impl<O> Future for ContinueAs<O> {
    type Output = Result<O>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Result<O>> {
        let this = &mut *self;
        let op = match &mut this.claim {
            Ok(op) => op,
            Err(error) => return refused(error),
        };
        // Only live: on replay the code cannot come past it, since the next generation has a
        // history of its own.
        if let Turn::Activate = op.core.turn(op.id, cx.waker()) {
            let open = op.core.open_compensations();
            if open > 0 && !this.forget_rollbacks {
                let text = format!(
                    "the run has {open} steps with rollbacks, which cannot be undone once it \
                     continues as a new one; call `.forget_rollbacks()` if that is meant, or end \
                     the run instead"
                );
                let failure = Failure::new(FailureKind::Fatal, text);
                return Poll::Ready(Err(Error::recorded(failure, Vec::new())));
            }
            if let Some(next) = this.next.take() {
                op.core.continue_as(next);
            }
        }
        Poll::Pending
    }
}
