//! The runs that a run has started.

use std::collections::BTreeSet;

use super::{Client, ClientError, RunHandle, RunPage, history::read_all};
use crate::{
    commit::{Put, Target},
    history::{Entry, EntryKind, EntryValue, decode_entry},
    run_id::RunId,
    store::{Filter, RunRow, Store, StoreError},
};

/// How many rows are read at a time.
const PAGE: usize = 200;

impl<O> RunHandle<O> {
    /// The runs that this one has started, newest first, awaited or detached, ended or not. Set what
    /// else is to be said, then await it.
    ///
    /// They are found by the history of the run. Of a run that continues as a new one
    /// ([`Ctx::continue_as`](crate::Ctx::continue_as)), that is what its present life has started,
    /// and of those before it what has not ended. A run that was there already, and that a start with
    /// its key has attached to, is nobody's child because of that.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # const DOUBLE: Workflow<u32, u32> = Workflow::new("double");
    /// # #[workflow]
    /// # async fn sum(ctx: Ctx, n: u32) -> Result<u32> {
    /// #     Ok(ctx.child(DOUBLE, n).await? + ctx.child(DOUBLE, n + 1).await?)
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let double = async |_: Ctx, n: u32| Ok(2 * n);
    /// # let engine = testing::engine().register(sum).register_fn(DOUBLE, double).start().await?;
    /// # let run = engine.client().start(sum, 1).await?;
    /// # run.result().await?;
    /// let page = run.children().limit(1).await?;
    /// assert_eq!(page.runs[0].output, Some(4.into()));
    /// let rest = run.children().after(page.next.unwrap()).await?;
    /// assert_eq!(rest.runs[0].output, Some(2.into()));
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn children(&self) -> Children {
        Children { client: self.client.clone(), run: self.id, after: None, limit: 100 }
    }
}

/// The children of a run, to be read. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct Children {
    client: Client,
    run: RunId,
    after: Option<RunId>,
    limit: usize,
}

impl Children {
    /// How many runs a page has at most; 100 if this is not said, 1 000 at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, 1_000);
        self
    }

    /// Goes on after the last run of another page: see [`RunPage::next`].
    pub fn after(mut self, cursor: RunId) -> Self {
        self.after = Some(cursor);
        self
    }
}

impl Children {
    async fn read(self) -> Result<RunPage, ClientError> {
        let Children { client, run, after, limit } = self;
        let rows = client
            // One more than asked for shows whether there is another page.
            .read(move |store| children(store, run, after, limit + 1))
            .await?;
        let rows = rows.ok_or_else(|| ClientError::unknown_run(run))?;
        Ok(RunPage::new(rows, limit, &client.codecs))
    }
}

awaited!([] Children, read => Result<RunPage, ClientError>);

/// The rows of the children after the given one; `None` if there is no such run.
fn children(
    store: &dyn Store,
    run: RunId,
    after: Option<RunId>,
    limit: usize,
) -> Result<Option<Vec<RunRow>>, StoreError> {
    if store.run(&Target::Id(run))?.is_none() {
        return Ok(None);
    }
    let mut ids: BTreeSet<RunId> = store.children(run.no())?.into_iter().collect();
    ids.extend(read_all(store, run, None)?.iter().filter_map(started_by));
    let ids = ids.into_iter().rev();
    let ids: Vec<RunId> = ids.filter(|id| after.is_none_or(|after| *id < after)).collect();
    let mut rows = Vec::new();
    for page in ids.chunks(PAGE) {
        let filter = Filter { ids: page.to_vec(), ..Filter::default() };
        let found = store.list(&filter, None, PAGE)?;
        rows.extend(found.into_iter().filter(|row| row.parent == Some(run)));
        if rows.len() >= limit {
            break;
        }
    }
    rows.truncate(limit);
    Ok(Some(rows))
}

/// The run that the operation of this entry has started, or attached to. What cannot be read has
/// started none: the history itself says so where it is shown.
fn started_by(put: &Put) -> Option<RunId> {
    child_of(&decode_entry(&put.value).ok()?)
}

/// The run that an operation has started, or attached to.
pub(super) fn child_of(entry: &Entry) -> Option<RunId> {
    if entry.kind != EntryKind::Child {
        return None;
    }
    match &entry.value {
        EntryValue::Started(id, _) => Some(*id),
        // The end of a run comes with its id.
        EntryValue::Answer(bytes) => {
            let id = uuid::Uuid::from_slice(bytes.get(..16)?).ok()?;
            RunId::from_uuid(id).filter(|id| *id != RunId::nobody())
        }
        _ => None,
    }
}
