//! A run, from outside: its result, its state, and control over it.

use std::{
    marker::PhantomData,
    sync::{Arc, Mutex, PoisonError},
};

use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value as Json;
use tokio::sync::oneshot;

use super::{
    Client, ClientError, RunError, RunInfo, SendMessage, encode_json, view::PayloadReader,
};
use crate::{
    commit::{Control, ControlRefusal, Controlled, RunStatus, Started, Target, Write},
    ctx::send::ToTarget,
    engine::Poller,
    error::Failure,
    run_id::RunId,
    store::{Finished, RunRow, StoreError},
    workflow::WorkflowRef,
};

impl Client {
    /// The run with this id or key; `None` if there is none.
    ///
    /// Its result is JSON; [`get_typed`](Client::get_typed) has the workflow's own types.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn get(&self, target: impl ToTarget) -> Result<Option<RunHandle<Json>>, ClientError> {
        let target = target.to_target();
        let row = self.read(move |store| store.run(&target)).await?;
        Ok(row.map(|row| self.handle(row.id, None)))
    }

    /// The run of this workflow with this key or id; `None` if there is none.
    ///
    /// # Errors
    ///
    /// If the store cannot be read, or the run is of another workflow.
    pub async fn get_typed<W: WorkflowRef>(
        &self,
        workflow: W,
        target: impl ToTarget,
    ) -> Result<Option<RunHandle<W::Output>>, ClientError> {
        let target = target.to_target();
        let row = self.read(move |store| store.run(&target)).await?;
        match row {
            Some(row) if *row.workflow != *workflow.name() => Err(ClientError::Name {
                what: format!("the workflow `{}`", workflow.name()),
                problem: format!("run {} is of `{}`", row.id, row.workflow),
            }),
            row => Ok(row.map(|row| self.handle(row.id, None))),
        }
    }

    /// A handle to a run by its id, without looking whether it is there.
    pub fn run<O: DeserializeOwned>(&self, id: RunId) -> RunHandle<O> {
        self.handle(id, None)
    }

    pub(super) fn handle<O>(&self, id: RunId, started: Option<EndReceiver>) -> RunHandle<O> {
        RunHandle {
            client: self.clone(),
            id,
            attached: false,
            input_differs: false,
            started: Arc::new(Mutex::new(started)),
            output: PhantomData,
        }
    }

    /// The handle to a run that was started, or attached to.
    pub(super) fn handle_of<O>(
        &self,
        started: &Started,
        ended: Option<EndReceiver>,
    ) -> RunHandle<O> {
        RunHandle {
            attached: started.attached,
            input_differs: started.input_differs,
            ..self.handle(started.id, ended)
        }
    }

    pub(super) async fn control(
        &self,
        run: RunId,
        control: Control,
    ) -> Result<Controlled, ClientError> {
        match self.ask(Write::Control(Target::Id(run), control)).await? {
            Controlled::Unknown => Err(ClientError::unknown_run(run)),
            controlled => Ok(controlled),
        }
    }

    async fn finished(
        &self,
        run: RunId,
        started: &Mutex<Option<EndReceiver>>,
    ) -> Result<Finished, ClientError> {
        let listening = started.lock().unwrap_or_else(PoisonError::into_inner).take();
        let ended = match listening {
            // Its end is told, unless it has moved to another pool.
            Some(ended) => {
                self.watch(run);
                ended
            }
            // Asked for together with all others that are waited for here.
            None if self.shared.threads.is_empty() => {
                let ended = self.shared.hub.await_end(run);
                self.check_open()?;
                Poller::ask_soon(&self.shared);
                ended
            }
            None => {
                let ended = self.shared.hub.await_end(run);
                let no = run.no();
                let found = self.read(move |store| store.finished(&[no])).await?;
                if let Some((_, finished)) = found.into_iter().next() {
                    drop(ended);
                    self.shared.hub.forget_gone(run);
                    return finished.ok_or_else(|| ClientError::unknown_run(run));
                }
                // Asked after the waiter was registered: it is either told of the end of the
                // engine, or finds it here.
                self.check_open()?;
                self.watch(run);
                ended
            }
        };
        match ended.await {
            Ok(finished) => finished.map_err(ClientError::from),
            // Whoever knew of it has forgotten it: it was deleted, or nobody is there any more.
            Err(_) if self.shared.closing() => Err(ClientError::Closed),
            Err(_) => {
                let no = run.no();
                let found = self.read(move |store| store.finished(&[no])).await?;
                match found.into_iter().next() {
                    Some((_, finished)) => finished.ok_or_else(|| ClientError::unknown_run(run)),
                    None => Err(ClientError::Closed),
                }
            }
        }
    }
}

/// The end of a run that was just started here: it was listened for before the run could begin.
pub(super) type EndReceiver = oneshot::Receiver<Result<Finished, Arc<StoreError>>>;

/// A run, from outside. Cheap to clone.
pub struct RunHandle<O = Json> {
    pub(super) client: Client,
    pub(super) id: RunId,
    pub(super) attached: bool,
    pub(super) input_differs: bool,
    started: Arc<Mutex<Option<EndReceiver>>>,
    output: PhantomData<fn() -> O>,
}

impl<O> Clone for RunHandle<O> {
    fn clone(&self) -> Self {
        RunHandle {
            client: self.client.clone(),
            id: self.id,
            attached: self.attached,
            input_differs: self.input_differs,
            started: self.started.clone(),
            output: PhantomData,
        }
    }
}

impl<O> std::fmt::Debug for RunHandle<O> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "RunHandle({})", self.id)
    }
}

impl<O> RunHandle<O> {
    #[cfg(feature = "testing")]
    pub(crate) fn client(&self) -> &Client {
        &self.client
    }

    /// The id of the run.
    pub fn id(&self) -> RunId {
        self.id
    }

    /// Whether the start found a run with the same key, instead of making one.
    pub fn attached(&self) -> bool {
        self.attached
    }

    /// Whether the run that was found has another input than the one that was given.
    pub fn input_differs(&self) -> bool {
        self.input_differs
    }

    /// Sends a message to the run. Set what else is to be said, then await it.
    pub fn send<T: Serialize>(&self, name: &str, body: &T) -> SendMessage {
        self.client.send(self.id, name, body)
    }

    /// Sends a message to the run and waits for its reply.
    ///
    /// # Errors
    ///
    /// If the run has ended, or ends without a reply.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        name: &str,
        body: &T,
    ) -> Result<R, ClientError> {
        self.client.request(self.id, name, body).await
    }

    /// As [`request`](RunHandle::request): JSON in, JSON out.
    ///
    /// # Errors
    ///
    /// As [`request`](RunHandle::request).
    pub async fn request_json(&self, name: &str, body: &Json) -> Result<Json, ClientError> {
        let body = encode_json(body, "the request", &self.client)?;
        let bytes = self.client.request_bytes(Target::Id(self.id), name, body).await?;
        let what = || format!("the reply to `{name}`");
        self.client.decode_json(&bytes, None, what)
    }

    /// Cancels the run: await it, or say [`with_rollback`](Cancel::with_rollback) first.
    pub fn cancel(&self) -> Cancel {
        Cancel { client: self.client.clone(), run: self.id, rollback: false }
    }

    /// Pauses the run: `true` if it was paused now, `false` if it was paused before. What its bodies in
    /// flight give is still recorded. A delayed start, or a run that waits for its next attempt, keeps
    /// its time.
    ///
    /// # Errors
    ///
    /// If it has ended, or is being cancelled.
    pub async fn pause(&self) -> Result<bool, ClientError> {
        let controlled = self.client.control(self.id, Control::Pause).await?;
        match refused(self.id, &controlled) {
            Some(error) => Err(error),
            None => Ok(matches!(controlled, Controlled::Done { .. })),
        }
    }

    /// Lets a paused run go on.
    ///
    /// # Errors
    ///
    /// If it is not paused.
    pub async fn resume(&self) -> Result<(), ClientError> {
        match self.client.control(self.id, Control::Resume).await? {
            Controlled::Already { status, .. } | Controlled::Finished { status, .. } => {
                Err(ClientError::WrongStatus {
                    run: self.id.to_string(),
                    status,
                    act: "resumed",
                    hint: "only a paused run can be resumed; a failed one can be retried",
                })
            }
            _ => Ok(()),
        }
    }

    /// What the run is doing.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn status(&self) -> Result<RunStatus, ClientError> {
        Ok(self.row().await?.status)
    }

    /// Everything about the run but its history.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn info(&self) -> Result<RunInfo, ClientError> {
        Ok(RunInfo::new(self.row().await?, &self.client.codecs))
    }

    pub(super) async fn row(&self) -> Result<RunRow, ClientError> {
        let id = self.id;
        let row = self.client.read(move |store| store.run(&Target::Id(id))).await?;
        row.ok_or_else(|| ClientError::unknown_run(id))
    }

    /// A value that the run has set with `ctx.set_state`; `None` if it has not.
    ///
    /// # Errors
    ///
    /// If there is no such run, or the value is of another type.
    pub async fn state<T: DeserializeOwned>(&self, key: &str) -> Result<Option<T>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        let Some((_, bytes)) = all.into_iter().find(|(other, _)| other == key) else {
            self.row().await?;
            return Ok(None);
        };
        let what = || format!("the state `{key}` of run {}", self.id);
        let value = self.client.decode(&bytes, Some(self.id), what)?;
        Ok(Some(value))
    }

    /// All values that the run has set, as JSON.
    ///
    /// # Errors
    ///
    /// If there is no such run.
    pub async fn state_json(&self) -> Result<serde_json::Map<String, Json>, ClientError> {
        let no = self.id.no();
        let all = self.client.read(move |store| store.state(no)).await?;
        if all.is_empty() {
            self.row().await?;
        }
        all.into_iter()
            .map(|(key, bytes)| {
                let what = || format!("the state `{key}`");
                let value = self.client.decode_json(&bytes, Some(self.id), what)?;
                Ok((key, value))
            })
            .collect()
    }

    /// The result as JSON, once the run has ended.
    ///
    /// # Errors
    ///
    /// If the run failed or was cancelled.
    pub async fn result_json(&self) -> Result<Json, RunError> {
        let finished = self.client.finished(self.id, &self.started).await?;
        let bytes = self.output(finished)?;
        let what = || format!("the output of run {}", self.id);
        Ok(self.client.decode_json(&bytes, Some(self.id), what)?)
    }

    pub(super) fn payload_reader(&self) -> PayloadReader<'_> {
        PayloadReader { codecs: &self.client.codecs, run: self.id }
    }

    fn output(&self, finished: Finished) -> Result<Vec<u8>, RunError> {
        match finished.status {
            RunStatus::Completed => Ok(finished.output.unwrap_or_default()),
            RunStatus::Cancelled => Err(RunError::Cancelled { run: self.id }),
            _ => {
                let failure = match finished.error {
                    Some(bytes) => self.payload_reader().failure(&bytes),
                    None => Failure::unreadable("no error was stored"),
                };
                Err(RunError::Failed { run: self.id, failure: Box::new(failure) })
            }
        }
    }
}

impl<O: DeserializeOwned> RunHandle<O> {
    /// What the run gives, once it has ended.
    ///
    /// # Errors
    ///
    /// If the run failed or was cancelled, or its output is of another type.
    pub async fn result(&self) -> Result<O, RunError> {
        let finished = self.client.finished(self.id, &self.started).await?;
        self.decode(finished)
    }

    /// What the run gave, if it has ended; `None` while it is live.
    ///
    /// # Errors
    ///
    /// As [`result`](RunHandle::result).
    pub async fn poll(&self) -> Result<Option<O>, RunError> {
        let no = self.id.no();
        let found = self.client.read(move |store| store.finished(&[no])).await?;
        match found.into_iter().next() {
            None => Ok(None),
            Some((_, None)) => Err(RunError::Client(ClientError::unknown_run(self.id))),
            Some((_, Some(finished))) => self.decode(finished).map(Some),
        }
    }

    fn decode(&self, finished: Finished) -> Result<O, RunError> {
        let bytes = self.output(finished)?;
        let what = || format!("the output of run {}", self.id);
        Ok(self.client.decode(&bytes, Some(self.id), what)?)
    }
}

/// Why a run could not be paused or cancelled.
pub(super) fn refused(run: RunId, controlled: &Controlled) -> Option<ClientError> {
    let (status, act, hint) = match controlled {
        Controlled::Finished { status, .. } => (*status, "paused", "it has ended"),
        Controlled::Refused { status, reason, .. } => match reason {
            ControlRefusal::BeingCancelled => {
                (*status, "paused", "it is being cancelled; wait for its end")
            }
            ControlRefusal::RollbackPaused { .. } => (
                *status,
                "cancelled",
                "its end is decided and its rollback is paused; mend what holds it up (`info` \
                 says what), then resume it: it ends when the rollback is done",
            ),
        },
        Controlled::Done { .. } | Controlled::Already { .. } | Controlled::Unknown => return None,
    };
    Some(ClientError::WrongStatus { run: run.to_string(), status, act, hint })
}

/// A cancel. Await it: `true` if it was requested now, `false` if the run has ended, its end is
/// decided (it is rolling back), or a cancel was requested before. A run whose rollback is paused
/// gives an error: it needs to be resumed.
#[must_use = "nothing is cancelled unless it is awaited"]
pub struct Cancel {
    client: Client,
    run: RunId,
    rollback: bool,
}

impl Cancel {
    /// What the run has done is compensated first.
    pub fn with_rollback(mut self) -> Self {
        self.rollback = true;
        self
    }

    /// Cancels the run, with an error where awaiting the `Cancel` gives `false`: for commands and APIs,
    /// whose callers must be told that nothing was done.
    ///
    /// # Errors
    ///
    /// [`ClientError::WrongStatus`] with the status of the run if it has ended, its end is decided, or a
    /// cancel was requested before; and what the plain cancel gives.
    pub async fn strict(self) -> Result<(), ClientError> {
        let run = self.run.to_string();
        let (status, hint) = match self.send().await? {
            Controlled::Finished { status, .. } => (status, "it has ended; nothing was done"),
            Controlled::Already { status, .. } => match status {
                RunStatus::RollingBack => {
                    (status, "its end is decided and it is rolling back already; wait for its end")
                }
                _ => (
                    status,
                    "a cancel was requested before; nothing more was done, wait for its end",
                ),
            },
            _ => return Ok(()),
        };
        Err(ClientError::WrongStatus { run, status, act: "cancelled", hint })
    }

    async fn send(self) -> Result<Controlled, ClientError> {
        let control = Control::Cancel { rollback: self.rollback };
        let controlled = self.client.control(self.run, control).await?;
        if let Controlled::Refused { .. } = controlled
            && let Some(error) = refused(self.run, &controlled)
        {
            return Err(error);
        }
        Ok(controlled)
    }
}

impl Cancel {
    async fn request(self) -> Result<bool, ClientError> {
        Ok(matches!(self.send().await?, Controlled::Done { .. }))
    }
}

awaited!([] Cancel, request => Result<bool, ClientError>);
