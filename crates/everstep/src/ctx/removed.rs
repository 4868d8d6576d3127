//! `ctx.removed`: an operation that the code made before it was changed.

use std::{
    future::Future,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};

use super::{
    Claim, Ctx,
    operation::{self, Operation},
};
use crate::{
    error::Result,
    history::{EntryKind, OpId},
    run::core::Core,
};

/// What stands for an operation that was removed from the code. Await it where the operation was awaited.
#[must_use = "a removed operation is passed over where it is awaited"]
pub struct Removed {
    claim: Claim,
}

impl Ctx {
    /// Stands in for an operation that the code made here and no longer makes, so that runs which have it
    /// in their history go on. Make it where the operation was made, and await it where its result was
    /// awaited: in the same branch, and after the same operations.
    ///
    /// ```
    /// # use everstep::prelude::*;
    /// # use everstep::EntryKind;
    /// # #[workflow]
    /// # async fn order(ctx: Ctx, _: ()) -> Result<()> {
    /// ctx.step("charge", async || Ok(())).await?;
    /// // Was: ctx.step("announce", ..).await?
    /// ctx.removed("announce", EntryKind::Step).await?;
    /// ctx.step("ship", async || Ok(())).await
    /// # }
    /// ```
    ///
    /// What becomes of a run depends on how far it was:
    ///
    /// - The old code has taken the result. It is taken again in the same place of the order, whatever it
    ///   was, and dropped. So everything after it is what it was, in branches of a join and of a race too.
    /// - The result is recorded, and the old code has not taken it. It is taken like any other.
    /// - The operation has begun and not ended, or has not begun: then, and in new runs, it ends as soon as
    ///   everything that is recorded was replayed. Nothing is done; a wait that it had registered is
    ///   given up, as if it had been dropped. This is recorded under the kind [`EntryKind::Removed`], so the
    ///   old code, should it come back, pauses such a run and does not do half of it twice.
    ///
    /// Of a composite (`join`, `map`, `race`, `attempt`, `repeat`) everything below it is passed over too. A
    /// `scope` is no operation: name what was in it.
    ///
    /// Three things cannot be decided for you. Code that did something else depending on the result (an
    /// error, a value) needs [`version`](Ctx::version). A step with a rollback that has completed keeps its
    /// need to be undone: if the run has to be rolled back, it is paused, since the rollback is gone. And
    /// an arm of [`race`](Ctx::race) or a branch of [`join`](Ctx::join) is no operation: remove what is in
    /// it, and leave the branch.
    ///
    /// It costs new runs an entry, so take it away once no run is left that began before the change.
    ///
    /// # Errors
    ///
    /// If the name is empty or too long, or the history is full. Never that of the operation.
    pub fn removed(&self, name: &str, kind: EntryKind) -> Removed {
        self.refuses_in_body("ctx.removed", name);
        Removed { claim: self.claim_by(name, |core, key| core.claim_removed(kind, key)) }
    }
}

impl Future for Removed {
    type Output = Result<()>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &self.claim {
            // It was a composite in which the code has taken nothing, or a gate.
            Ok(op) if op.core.is_over(op.id) => Poll::Ready(Ok(())),
            _ => operation::poll(&mut *self, cx),
        }
    }
}

impl Operation for Removed {
    type Output = ();

    fn claim(&mut self) -> &mut Claim {
        &mut self.claim
    }

    fn activate(&mut self, core: &Rc<Core>, id: OpId) {
        core.activate_removed(id);
    }

    fn take(&mut self, core: &Rc<Core>, id: OpId) -> Option<Result<()>> {
        core.take(id, |_| Ok(()))
    }
}
