//! Which runs are meant, and lists and counts of them.

use super::{Client, ClientError, RunPage};
use crate::{
    commit::RunStatus,
    run_id::RunId,
    store::{Filter, WorkflowCount},
    time::Timestamp,
};

impl Filter {
    /// All runs.
    pub fn new() -> Filter {
        Filter::default()
    }
}

macro_rules! filters {
    ($($builder:ident $(. $filter:ident)?),+) => {$(
        /// What a filter is made of. Ids, tags, keys, workflow, status and end are found by an index;
        /// when a run was started and its version are looked at run by run.
        impl $builder {
            /// Only runs in this status; call it again for more.
            pub fn status(mut self, status: RunStatus) -> Self {
                self$(.$filter)?.statuses.push(status);
                self
            }

            /// Only this run; call it again for more.
            pub fn id(mut self, run: RunId) -> Self {
                self$(.$filter)?.ids.push(run);
                self
            }

            /// Only runs of this workflow.
            pub fn workflow(mut self, name: impl Into<String>) -> Self {
                self$(.$filter)?.workflow = Some(name.into());
                self
            }

            /// Only runs of this version of their workflow.
            pub fn version(mut self, version: u32) -> Self {
                self$(.$filter)?.version = Some(version);
                self
            }

            /// Only runs whose key begins with this.
            pub fn key_prefix(mut self, prefix: impl Into<String>) -> Self {
                self$(.$filter)?.key_prefix = Some(prefix.into());
                self
            }

            /// Only runs with this tag; call it again for more, and all must be there.
            pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
                self$(.$filter)?.tags.push((name.into(), value.into()));
                self
            }

            /// Only runs that were started at or after this instant.
            pub fn created_from(mut self, at: Timestamp) -> Self {
                self$(.$filter)?.created_from = Some(at);
                self
            }

            /// Only runs that were started before this instant.
            pub fn created_before(mut self, at: Timestamp) -> Self {
                self$(.$filter)?.created_before = Some(at);
                self
            }

            /// Only runs that ended at or after this instant.
            pub fn finished_from(mut self, at: Timestamp) -> Self {
                self$(.$filter)?.finished_from = Some(at);
                self
            }

            /// Only runs that ended before this instant.
            pub fn finished_before(mut self, at: Timestamp) -> Self {
                self$(.$filter)?.finished_before = Some(at);
                self
            }
        }

        $(
            impl $builder {
                /// Only runs that match this, instead of what was said before.
                pub fn filter(mut self, filter: Filter) -> Self {
                    self.$filter = filter;
                    self
                }
            }
        )?
    )+};
}

filters!(Filter, List.filter, Count.filter);

impl Client {
    /// Runs, newest first. Set filters, then await it.
    pub fn list(&self) -> List {
        List { client: self.clone(), filter: Filter::default(), after: None, limit: 100 }
    }

    /// How many runs of each workflow have each status, by name. Cheap while there are few; with a
    /// million runs it takes up to a second, so keep the answer for a while.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn tally(&self) -> Result<Vec<WorkflowCount>, ClientError> {
        let mut tallies = self.read(|store| store.tally()).await?;
        tallies.sort_by(|a, b| (&a.workflow, a.status).cmp(&(&b.workflow, b.status)));
        Ok(tallies)
    }

    /// How many runs there are. Set filters, then await it.
    pub fn count(&self) -> Count {
        Count { client: self.clone(), filter: Filter::default() }
    }
}

/// A list of runs. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct List {
    client: Client,
    filter: Filter,
    after: Option<RunId>,
    limit: usize,
}

impl List {
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

impl List {
    async fn read(self) -> Result<RunPage, ClientError> {
        let List { client, filter, after, limit } = self;
        let after = after.map(RunId::no);
        // One more than asked for shows whether there is another page.
        let rows = client.read(move |store| store.list(&filter, after, limit + 1)).await?;
        Ok(RunPage::new(rows, limit, &client.codecs))
    }
}

awaited!([] List, read => Result<RunPage, ClientError>);

/// A number of runs. Await it.
#[must_use = "nothing is read unless it is awaited"]
pub struct Count {
    client: Client,
    filter: Filter,
}

impl Count {
    async fn read(self) -> Result<u64, ClientError> {
        let Count { client, filter } = self;
        client.read(move |store| store.count(&filter)).await
    }
}

awaited!([] Count, read => Result<u64, ClientError>);
