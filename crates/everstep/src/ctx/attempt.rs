//! `ctx.attempt`: a part of a workflow whose failure is a value.

use super::{Ctx, composite::Composite};
use crate::{
    error::{Failure, FailureKind, Result},
    history::EntryKind,
};

impl Ctx {
    /// Runs a part of the workflow and gives its terminal failure as a value.
    ///
    /// What is in it keeps its entries, so the value is the same on every replay.
    /// [`Error::rollback`](crate::Error::rollback) is not held back: it ends the run.
    pub fn attempt<'a, T, F>(
        &self,
        name: &str,
        code: F,
    ) -> Composite<'a, std::result::Result<T, Failure>>
    where
        T: 'a,
        F: AsyncFnOnce(Ctx) -> Result<T> + 'a,
    {
        Composite::new(self, EntryKind::Attempt, name, move |place| {
            let ctx = Ctx::at(place.core, place.key);
            Box::pin(async move {
                match code(ctx).await {
                    Ok(value) => Ok(Ok(value)),
                    Err(error) if error.kind() == FailureKind::Rollback => Err(error),
                    Err(error) => Ok(Err(error.into_failure())),
                }
            })
        })
    }
}
