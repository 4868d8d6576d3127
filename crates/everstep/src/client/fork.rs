//! A new run with the history of another one, up to a step.

use std::{marker::PhantomData, sync::Arc};

use serde::Serialize;

use super::{
    Client, ClientError, RunHandle, check_tags, encode, error::unreadable, named,
    start::refuse_used_key,
};
use crate::{
    commit::{Fork, NewRun, Write},
    history::{EntryValue, decode_entry, encode_entry},
    location::{Location, keys},
    run::fork::{ForkProblem, Forked, fork},
    run_id::RunId,
    store::{LoadedRun, Store, StoreError},
    telemetry::trace,
};

/// The tag by which a fork says what it is a fork of.
const FORKED_FROM: &str = "everstep.forked_from";

impl<O> RunHandle<O> {
    /// Makes a new run with the history of this one up to a step, to go another way from there.
    /// Say from where, and what is to be different, then [`start`](ForkRun::start) it.
    ///
    /// This run is not changed, and may be in any state: of a live one, the fork takes what is
    /// stored at this moment. The fork has its own id, the tags of this run and the tag
    /// `everstep.forked_from`; no key, no deadline and none of the unread messages. What it has
    /// taken over was done once, for this run: its effects are not repeated, but if both runs roll
    /// back, both compensate them.
    ///
    /// ```
    /// use everstep::{prelude::*, testing};
    ///
    /// #[workflow]
    /// async fn order(ctx: Ctx, goods: u32) -> Result<String> {
    ///     let price = ctx.step("price", async || Ok(goods * 10)).await?;
    ///     let name = if price > 100 { "big" } else { "small" };
    ///     ctx.step("book", async || Ok(format!("a {name} order"))).await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let engine = testing::engine().register(order).start().await?;
    /// let run = engine.client().start(order, 1).await?;
    /// assert_eq!(run.result().await?, "a small order");
    /// let fork = run.fork().from("price").result("price", &1_000_u32)?.start().await?;
    /// assert_eq!(fork.result().await?, "a big order");
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    pub fn fork(&self) -> ForkRun<O> {
        ForkRun {
            run: self.clone(),
            from: None,
            input: None,
            results: Vec::new(),
            key: None,
            version: None,
            tags: Vec::new(),
            output: PhantomData,
        }
    }
}

/// A fork that is to be made.
#[must_use = "nothing is forked before `start`"]
pub struct ForkRun<O> {
    run: RunHandle<O>,
    from: Option<String>,
    input: Option<Vec<u8>>,
    results: Vec<(String, Vec<u8>)>,
    key: Option<String>,
    version: Option<u32>,
    tags: Vec<(String, String)>,
    output: PhantomData<fn() -> O>,
}

impl<O> ForkRun<O> {
    /// The history is taken over up to, and not including, the completion of this step: `charge`,
    /// or `outer/~0/inner`, as [`history`](RunHandle::history) shows it.
    ///
    /// What the code had seen before that step ended, it sees again in the same order. Steps that
    /// had been begun by then keep their result and are seen afterwards, in the order in which they
    /// come; whatever was begun later is left out. A join, a loop or a scope is run again as a
    /// whole. A step that was rolled back when the run ended is run again, too.
    ///
    /// Without it, the fork begins at the first of the steps that are given another
    /// [`result`](ForkRun::result); or, without those, at the beginning.
    pub fn from(mut self, location: impl Into<String>) -> Self {
        self.from = Some(location.into());
        self
    }

    /// Another input.
    ///
    /// If the code with this input does not make the operations that were taken over, the fork is
    /// paused as diverged; fork from an earlier step then.
    ///
    /// # Errors
    ///
    /// If it cannot be encoded, or is too large.
    pub fn input<T: Serialize>(mut self, input: &T) -> Result<Self, ClientError> {
        self.input = Some(encode(input, "the input", &self.run.client)?);
        Ok(self)
    }

    /// Another result for a step that is taken over, or for the step that the fork begins with:
    /// that is then not run again. What was begun after a step that is run again can be given none.
    ///
    /// # Errors
    ///
    /// If it cannot be encoded, or is too large.
    pub fn result<T: Serialize>(
        mut self,
        location: impl Into<String>,
        value: &T,
    ) -> Result<Self, ClientError> {
        let location = location.into();
        let what = format!("the result of `{location}`");
        let bytes = encode(value, &what, &self.run.client)?;
        self.results.push((location, bytes));
        Ok(self)
    }

    /// A key for the fork. If there is a run with it, nothing is forked, and the handle is of that
    /// run and says that it was [`attached`](RunHandle::attached).
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// Another version of the workflow.
    pub fn version(mut self, version: u32) -> Self {
        self.version = Some(version);
        self
    }

    /// A further tag.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((name.into(), value.into()));
        self
    }

    /// Makes the fork.
    ///
    /// # Errors
    ///
    /// If there is no such run, or no such step in its history; or as [`Client::start`].
    ///
    /// [`Client::start`]: crate::Client::start
    pub async fn start(self) -> Result<RunHandle<O>, ClientError> {
        let id = self.run.id;
        let problem = |problem: String| ClientError::Fork { run: id, problem };
        let parse = |text: &str| text.parse::<Location>().map_err(|e| problem(e.to_string()));
        if let Some(key) = &self.key {
            named("the key", key)?;
        }
        check_tags(&self.tags)?;
        let from = self.from.as_deref().map(parse).transpose()?;
        let results = self.results.into_iter().map(|(text, bytes)| Ok((parse(&text)?, bytes)));
        let results = results.collect::<Result<Vec<_>, ClientError>>()?;
        let client = self.run.client;
        let now = client.shared.now();
        let read = move |store: &dyn Store| -> Result<_, StoreError> {
            let Some(loaded) = store.load(id.no())?.filter(|loaded| loaded.row.id == id) else {
                return Ok(None);
            };
            let forked = fork(&loaded, from.as_ref(), &results, now);
            // Where nothing is taken over, nothing that was set is shown.
            let state = match &forked {
                Ok(forked) if forked.history.is_empty() => Vec::new(),
                _ => store.state(id.no())?,
            };
            let LoadedRun { row, .. } = loaded;
            Ok(Some((row, forked, state)))
        };
        let Some((row, forked, state)) = client.read(read).await? else {
            return Err(ClientError::unknown_run(id));
        };
        let Forked { history, last_number } = forked.map_err(|found| problem(explain(found)))?;
        let mut tags = row.tags;
        tags.retain(|(name, _)| name != FORKED_FROM);
        tags.extend(self.tags);
        tags.push((FORKED_FROM.to_owned(), id.to_string()));
        let input = match self.input {
            Some(input) => client.seal(input, "the input")?,
            None => row.input,
        };
        let workflow: Arc<str> = row.workflow;
        let mut write = Fork {
            new: NewRun {
                id,
                workflow: workflow.clone(),
                version: self.version.unwrap_or(row.version),
                key: self.key.clone(),
                pool: row.pool,
                available_at: None,
                deadline_at: None,
                tags,
                trace: trace::current(),
                input,
                parent: None,
                claim: false,
            },
            history,
            last_number,
            state,
        };
        loop {
            let (shared, new) = (&client.shared, &write.new);
            write.new.id = shared.new_id(shared.now(), &new.workflow, new.version, &new.pool);
            let bound = bind(&client, id, write.clone())?;
            match client.ask(Write::Fork(Box::new(bound))).await? {
                Ok(started) => return Ok(client.handle_of(&started, None)),
                Err(refusal) => refuse_used_key(&workflow, self.key.as_deref(), &refusal)?,
            }
        }
    }
}

/// Seals for the fork what was sealed for the run that it is forked from.
fn bind(client: &Client, from: RunId, mut fork: Fork) -> Result<Fork, ClientError> {
    if client.codecs.is_empty() {
        return Ok(fork);
    }
    let to = fork.new.id;
    let bound = |bytes: &[u8], what: &str| -> Result<Vec<u8>, ClientError> {
        let opened = client.codecs.open(bytes, Some(from));
        let opened = opened.map_err(|error| unreadable(what.to_owned(), &error))?;
        let sealed = client.codecs.seal(opened.into_owned(), Some(to));
        sealed.map_err(|error| ClientError::Encode {
            what: what.to_owned(),
            problem: error.to_string(),
        })
    };
    for put in &mut fork.history {
        let Ok(mut entry) = decode_entry(&put.value) else {
            continue;
        };
        if let EntryValue::Payload(bytes) = &mut entry.value {
            *bytes = bound(bytes, &format!("the result of `{}`", keys::describe(&put.key)))?;
            put.value = encode_entry(&entry);
        }
    }
    for (key, value) in &mut fork.state {
        *value = bound(value, &format!("the value `{key}`"))?;
    }
    Ok(fork)
}

fn explain(problem: ForkProblem) -> String {
    match problem {
        ForkProblem::NoSuchStep(location) => format!(
            "its history has nothing at `{location}`; `history` shows what there is, and what is \
             not recorded yet cannot be named"
        ),
        ForkProblem::AfterTheFork(location) => format!(
            "`{location}` was begun after the step that it is forked from, so it has no result to \
             be replaced; fork from a later step, or let it run"
        ),
        ForkProblem::AfterAnother(location) => format!(
            "`{location}` was begun after a step that is run again (because it was rolled back, or \
             is a part of what is forked from), so it cannot be given a result; let it run"
        ),
        ForkProblem::NoResult(location) => format!(
            "what is at `{location}` has no result that could be replaced; give the results of \
             steps"
        ),
        ForkProblem::Undecodable(what) => what,
    }
}
