//! Starting runs.

use std::{marker::PhantomData, sync::Arc, time::Duration};

use serde_json::Value as Json;

use super::{
    Client, ClientError, RunHandle, check_tags, encode, encode_json, error::unreadable, named,
};
use crate::{
    commit::{NewRun, Refusal, Started, Target, Write},
    name::check_pool,
    pool::DEFAULT_POOL,
    run_id::RunId,
    telemetry::trace,
    time::{Timestamp, When},
    workflow::WorkflowRef,
};

impl Client {
    /// Starts a run. Set what else is to be said, then await it.
    pub fn start<W: WorkflowRef>(&self, workflow: W, input: W::Input) -> Start<W::Output> {
        let key = workflow.default_key(&input);
        let input = encode(&input, "the input", self);
        self.start_encoded(workflow.name(), workflow.version(), input, key)
    }

    /// Starts a run of a workflow that is only known by name: JSON in, JSON out.
    ///
    /// The version is the newest that is registered in this process, or 1.
    pub fn start_json(&self, workflow: &str, input: &Json) -> Start<Json> {
        let input = encode_json(input, "the input", self);
        self.start_encoded(workflow, self.newest_version(workflow), input, None)
    }

    /// The newest version of a workflow that is registered in this process, or 1.
    pub(super) fn newest_version(&self, workflow: &str) -> u32 {
        let newest = self.shared.registry.newest(workflow);
        newest.map_or(1, |newest| newest.version)
    }

    fn start_encoded<O>(
        &self,
        workflow: &str,
        version: u32,
        input: Result<Vec<u8>, ClientError>,
        key: Option<String>,
    ) -> Start<O> {
        Start {
            client: self.clone(),
            workflow: workflow.to_owned(),
            version,
            input,
            key,
            begin: None,
            deadline: None,
            tags: Vec::new(),
            pool: None,
            output: PhantomData,
        }
    }

    /// Whether the run was started with another input than this, as far as it can be read.
    async fn has_other_input(&self, run: RunId, plain: &[u8]) -> Result<bool, ClientError> {
        let row = self.read(move |store| store.run(&Target::Id(run))).await?;
        let row = row.ok_or_else(|| ClientError::unknown_run(run))?;
        let opened = self.codecs.open(&row.input, None);
        opened
            .map(|input| *input != *plain)
            .map_err(|error| unreadable(format!("the input of run {run}"), &error))
    }
}

/// A run to be started. Await it.
#[must_use = "nothing is started unless it is awaited"]
pub struct Start<O> {
    pub(super) client: Client,
    workflow: String,
    version: u32,
    input: Result<Vec<u8>, ClientError>,
    key: Option<String>,
    begin: Option<When>,
    deadline: Option<When>,
    tags: Vec<(String, String)>,
    pool: Option<String>,
    output: PhantomData<fn() -> O>,
}

impl<O> Start<O> {
    /// Unique per workflow: a second start with it attaches to the first run.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// The version of the workflow, if another than the reference says.
    pub fn version(mut self, version: u32) -> Self {
        self.version = version;
        self
    }

    /// It begins at this instant.
    pub fn at(mut self, at: Timestamp) -> Self {
        self.begin = Some(When::At(at));
        self
    }

    /// It begins after this long.
    pub fn after(mut self, delay: Duration) -> Self {
        self.begin = Some(When::After(delay));
        self
    }

    /// It fails if it has not ended by this instant.
    pub fn deadline(mut self, at: Timestamp) -> Self {
        self.deadline = Some(When::At(at));
        self
    }

    /// It fails if it has not ended after this long.
    pub fn deadline_after(mut self, limit: Duration) -> Self {
        self.deadline = Some(When::After(limit));
        self
    }

    /// The pool whose runners run it, if another than its workflow says. A process that does not
    /// have the workflow's code takes `default` if this is not said.
    pub fn pool(mut self, pool: impl Into<String>) -> Self {
        self.pool = Some(pool.into());
        self
    }

    /// Something it can be found by.
    pub fn tag(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.tags.push((name.into(), value.into()));
        self
    }

    /// Several tags.
    pub fn tags<N: Into<String>, V: Into<String>>(
        mut self,
        tags: impl IntoIterator<Item = (N, V)>,
    ) -> Self {
        self.tags.extend(tags.into_iter().map(|(name, value)| (name.into(), value.into())));
        self
    }

    /// Checks what was said, and what the workflow's definition adds to it.
    pub(super) fn plan(self) -> Result<Plan, ClientError> {
        named("the workflow's name", &self.workflow)?;
        if let Some(key) = &self.key {
            named("the key", key)?;
        }
        if let Some(pool) = &self.pool {
            check_pool(pool).map_err(|problem| ClientError::Name {
                what: "the pool".to_owned(),
                problem: problem.to_string(),
            })?;
        }
        check_tags(&self.tags)?;
        let client = self.client;
        // Kept where a codec may have written the same input in other bytes.
        let mut plain = None;
        let mut input = self.input?;
        if !client.codecs.is_empty() {
            plain = Some(input.clone());
            input = client.seal(input, "the input")?;
        }
        let shared = &client.shared;
        let definition = shared.registry.find(&self.workflow, self.version).cloned();
        let options = definition.as_ref().map(|definition| &definition.options);
        let mut tags = self.tags;
        if let Some(options) = options {
            options.add_labels(&mut tags);
        }
        let limit = options.and_then(|options| options.deadline).map(When::After);
        let deadline = self.deadline.or(limit);
        let pool = match (self.pool, options) {
            (Some(pool), _) => Arc::from(pool),
            (None, Some(options)) => options.pool.clone(),
            (None, None) => Arc::from(DEFAULT_POOL),
        };
        let name = definition.as_ref().map_or_else(
            || Arc::from(self.workflow.as_str()),
            |definition| definition.name.clone(),
        );
        Ok(Plan {
            workflow: name,
            version: self.version,
            key: self.key,
            pool,
            begin: self.begin,
            deadline,
            tags,
            trace: trace::current(),
            input,
            plain,
            is_known: definition.is_some(),
            client,
        })
    }

    async fn send(self) -> Result<RunHandle<O>, ClientError> {
        self.client.learn_time().await?;
        let plan = self.plan()?;
        let client = &plan.client;
        let shared = &client.shared;
        loop {
            let mut new = plan.new_run();
            let (id, claim) = (new.id, plan.claims(&new));
            new.claim = claim;
            // Listened for before it can end.
            let ended = claim.then(|| shared.hub.await_end_of_new(id));
            match client.ask::<Result<Started, Refusal>>(Write::Start(Box::new(new))).await? {
                Ok(started) => {
                    let ended = ended.filter(|_| started.claimed);
                    if ended.is_some() {
                        shared.hub.started(id);
                    }
                    if !started.claimed && claim {
                        shared.hub.forget_gone(id);
                    }
                    let mut handle = client.handle_of(&started, ended);
                    if let (Some(plain), true) = (&plan.plain, started.input_differs) {
                        handle.input_differs = client.has_other_input(started.id, plain).await?;
                    }
                    return Ok(handle);
                }
                Err(refusal) => {
                    if claim {
                        shared.hub.forget_gone(id);
                    }
                    refuse_used_key(&plan.workflow, plan.key.as_deref(), &refusal)?;
                }
            }
        }
    }
}

/// A run that is to be started, with everything that is the same however often it is tried.
pub(super) struct Plan {
    pub(super) client: Client,
    workflow: Arc<str>,
    version: u32,
    key: Option<String>,
    pool: Arc<str>,
    begin: Option<When>,
    deadline: Option<When>,
    tags: Vec<(String, String)>,
    trace: Option<String>,
    input: Vec<u8>,
    /// The input before a codec has sealed it.
    plain: Option<Vec<u8>>,
    /// Whether this process has the code.
    is_known: bool,
}

impl Plan {
    /// The run, under a new id, and not claimed.
    pub(super) fn new_run(&self) -> NewRun {
        let shared = &self.client.shared;
        let now = shared.now();
        let begin = self.begin.map(|begin| begin.from(now));
        let deadline = self.deadline;
        let deadline_at = deadline.map(|deadline| deadline.from(begin.unwrap_or(now)));
        NewRun {
            id: match begin {
                None => shared.new_id(now, &self.workflow, self.version, &self.pool),
                // Whoever owns its shard by then runs it.
                Some(_) => shared.ids.next(now),
            },
            workflow: self.workflow.clone(),
            version: self.version,
            key: self.key.clone(),
            pool: self.pool.clone(),
            available_at: begin,
            deadline_at,
            tags: self.tags.clone(),
            trace: self.trace.clone(),
            input: self.input.clone(),
            parent: None,
            claim: false,
        }
    }

    /// Whether this process takes it into memory at once; if so, a place in memory is taken.
    fn claims(&self, new: &NewRun) -> bool {
        let shared = &self.client.shared;
        new.available_at.is_none()
            && self.is_known
            && shared.owned.home(new.id, &new.pool).is_some()
            && shared.reserve()
    }
}

awaited!([O: 'static] Start<O>, send => Result<RunHandle<O>, ClientError>);

/// Fails if a start was refused because of its key. Otherwise another process has made a run with the
/// same number, and the next id is free.
pub(super) fn refuse_used_key(
    workflow: &str,
    key: Option<&str>,
    refusal: &Refusal,
) -> Result<(), ClientError> {
    let &Refusal::KeyUsed { run, deleted_at, kept_until } = refusal else {
        return Ok(());
    };
    Err(ClientError::KeyUsed {
        workflow: workflow.to_owned(),
        key: key.unwrap_or_default().to_owned(),
        run,
        deleted_at,
        kept_until,
    })
}
