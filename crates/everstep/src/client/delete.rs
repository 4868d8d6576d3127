//! Forgetting a run that has ended.

use super::{Client, ClientError, RunHandle};
use crate::{
    commit::{Delete, Deleted, Target, Write},
    run_id::RunId,
};

/// What to do with a run that cannot be deleted.
pub(super) const LIVE: &str = "it has not ended; cancel it first, or wait for its end";

impl<O> RunHandle<O> {
    /// Deletes the run, which must have ended, with everything that is stored of it. Await it, or
    /// say [`forget_key`](DeleteRun::forget_key) first.
    ///
    /// It cannot be read any more once this returns. Its key, if it had one, is kept for
    /// [`Settings::key_tombstone`](crate::Settings::key_tombstone): a start with it is refused with
    /// [`ClientError::KeyUsed`], so that a start that comes late does not do everything once more.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn nap(ctx: Ctx, _: ()) -> Result<()> { ctx.sleep("nap", days(1)).await?; Ok(()) }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(nap).start().await?;
    /// # let client = engine.client();
    /// let run = client.start(nap, ()).key("nap-1").await?;
    /// run.result().await?;
    /// run.delete().await?;
    /// assert!(client.get(run.id()).await?.is_none());
    /// assert!(client.start(nap, ()).key("nap-1").await.is_err());
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn delete(&self) -> DeleteRun {
        DeleteRun { client: self.client.clone(), run: self.id, forget_key: false }
    }
}

impl Client {
    /// The write by which a run is deleted.
    pub(super) fn deletion(&self, run: RunId, forget_key: bool) -> Write {
        let kept = self.shared.now() + self.shared.settings.key_tombstone;
        Write::Delete(Box::new(Delete {
            target: Target::Id(run),
            finished_before: None,
            key_kept_until: (!forget_key).then_some(kept),
        }))
    }
}

/// A run to be deleted. Await it.
#[must_use = "nothing is deleted unless it is awaited"]
pub struct DeleteRun {
    client: Client,
    run: RunId,
    forget_key: bool,
}

impl DeleteRun {
    /// The key of the run can be used again at once.
    pub fn forget_key(mut self) -> Self {
        self.forget_key = true;
        self
    }
}

impl DeleteRun {
    async fn send(self) -> Result<(), ClientError> {
        let write = self.client.deletion(self.run, self.forget_key);
        let run = self.run.to_string();
        match self.client.ask(write).await? {
            Deleted::Done { .. } => Ok(()),
            Deleted::Live { status, .. } => {
                Err(ClientError::WrongStatus { run, status, act: "deleted", hint: LIVE })
            }
            _ => Err(ClientError::UnknownRun { run }),
        }
    }
}

awaited!([] DeleteRun, send => Result<(), ClientError>);
