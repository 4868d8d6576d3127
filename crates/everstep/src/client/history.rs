//! The history of a run for people.

use super::{Client, ClientError, HistoryEntry, RunHandle, page, view};
use crate::{
    commit::Put,
    run_id::RunId,
    store::{Store, StoreError},
};

/// How many entries are read at a time when all are wanted.
const PAGE: usize = 10_000;

impl<O> RunHandle<O> {
    /// What the run has done, in the order of its locations. Await it for all entries, or take
    /// [`page`](ReadHistory::page)s.
    ///
    /// ```
    /// # use everstep::{prelude::*, testing};
    /// # #[workflow]
    /// # async fn sum(ctx: Ctx, n: u32) -> Result<u32> {
    /// #     let a = ctx.step("a", async || Ok(n)).await?;
    /// #     Ok(a + ctx.step("b", async || Ok(2)).await?)
    /// # }
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(sum).start().await?;
    /// # let run = engine.client().start(sum, 1).await?;
    /// # run.result().await?;
    /// let page = run.history().limit(1).page().await?;
    /// assert_eq!(page.entries[0].location, "a");
    /// let rest = run.history().after(page.next.unwrap()).page().await?;
    /// assert_eq!(rest.entries[0].location, "b");
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn history(&self) -> ReadHistory {
        ReadHistory { client: self.client.clone(), run: self.id, after: None, limit: 1_000 }
    }
}

/// The history of a run, to be read. Await it for all of it.
#[must_use = "nothing is read unless it is awaited"]
pub struct ReadHistory {
    client: Client,
    run: RunId,
    after: Option<String>,
    limit: usize,
}

/// Some entries of a history, and where the rest begins.
#[derive(Clone, Debug, PartialEq)]
#[non_exhaustive]
pub struct HistoryPage {
    /// The entries, in the order of their locations.
    pub entries: Vec<HistoryEntry>,
    /// What to give to [`ReadHistory::after`] for the next page; absent on the last.
    pub next: Option<String>,
}

impl ReadHistory {
    /// How many entries a page has at most: 1 000 if this is not said, 10 000 at most.
    pub fn limit(mut self, limit: usize) -> Self {
        self.limit = limit.clamp(1, PAGE);
        self
    }

    /// Goes on after another page: see [`HistoryPage::next`].
    pub fn after(mut self, cursor: impl Into<String>) -> Self {
        self.after = Some(cursor.into());
        self
    }

    /// One page.
    ///
    /// # Errors
    ///
    /// If there is no such run, an entry cannot be decoded, or the cursor is not one.
    pub async fn page(self) -> Result<HistoryPage, ClientError> {
        let (run, limit) = (self.run, self.limit);
        let after = self.after.as_deref().map(from_hex).transpose()?;
        let row = self.client.run::<()>(run).row().await?;
        let puts = self
            .client
            // One more than asked for shows whether there is another page.
            .read(move |store| store.history(row.id.no(), after.as_deref(), limit + 1))
            .await?;
        let (puts, next) = page(puts, limit, |put| to_hex(&put.key));
        Ok(HistoryPage {
            entries: view::entries(&self.client.run::<()>(run).payload_reader(), puts)?,
            next,
        })
    }
}

impl ReadHistory {
    async fn read(self) -> Result<Vec<HistoryEntry>, ClientError> {
        let run = self.run;
        let after = self.after.as_deref().map(from_hex).transpose()?;
        self.client.run::<()>(run).row().await?;
        let puts = self.client.read(move |store| read_all(store, run, after));
        let puts = puts.await?;
        view::entries(&self.client.run::<()>(run).payload_reader(), puts)
    }
}

awaited!([] ReadHistory, read => Result<Vec<HistoryEntry>, ClientError>);

pub(super) fn read_all(
    store: &dyn Store,
    run: RunId,
    mut after: Option<Vec<u8>>,
) -> Result<Vec<Put>, StoreError> {
    let mut all = Vec::new();
    loop {
        let page = store.history(run.no(), after.as_deref(), PAGE)?;
        let full = page.len() == PAGE;
        after = page.last().map(|put| put.key.clone());
        all.extend(page);
        if !full {
            return Ok(all);
        }
    }
}

fn to_hex(key: &[u8]) -> String {
    key.iter().map(|byte| format!("{byte:02x}")).collect()
}

fn from_hex(cursor: &str) -> Result<Vec<u8>, ClientError> {
    let wrong = || ClientError::Name {
        what: format!("the cursor `{cursor}`"),
        problem: "it is not one that `HistoryPage::next` has given".to_owned(),
    };
    if !cursor.is_ascii() || !cursor.len().is_multiple_of(2) {
        return Err(wrong());
    }
    let bytes = (0..cursor.len()).step_by(2).map(|at| {
        let digits = &cursor[at..at + 2];
        u8::from_str_radix(digits, 16).map_err(|_| wrong())
    });
    bytes.collect()
}
