//! Messages to runs, and requests that a run replies to.

use serde::{Serialize, de::DeserializeOwned};
use uuid::Uuid;

use super::{Client, ClientError, describe, encode, named};
use crate::{
    commit::{Delivered, Delivery, Receipt, Target, Write},
    ctx::send::ToTarget,
    event::IfFinished,
    run_id::RunId,
    store::Answer,
};

impl Client {
    /// Sends a message to a run. Set what else is to be said, then await it.
    pub fn send<T: Serialize>(&self, to: impl ToTarget, name: &str, body: &T) -> SendMessage {
        let body =
            encode(body, "the message", self).and_then(|body| self.seal(body, "the message"));
        SendMessage {
            client: self.clone(),
            target: to.to_target(),
            name: name.to_owned(),
            body,
            dedupe: None,
            request: None,
            if_finished: IfFinished::Error,
        }
    }

    /// Sends a message to a run and waits for its reply.
    ///
    /// # Errors
    ///
    /// As [`send`](Client::send), and if the run ends without a reply.
    pub async fn request<T: Serialize, R: DeserializeOwned>(
        &self,
        to: impl ToTarget,
        name: &str,
        body: &T,
    ) -> Result<R, ClientError> {
        let body = encode(body, "the request", self)?;
        let bytes = self.request_bytes(to.to_target(), name, body).await?;
        self.decode(&bytes, None, || format!("the reply to `{name}`"))
    }

    pub(super) async fn request_bytes(
        &self,
        target: Target,
        name: &str,
        body: Vec<u8>,
    ) -> Result<Vec<u8>, ClientError> {
        let body = self.seal(body, "the request")?;
        let request = crate::seam::random_uuid();
        let text = describe(&target);
        let run = match &target {
            Target::Id(id) => *id,
            Target::Key { .. } => {
                let target = target.clone();
                let row = self.read(move |store| store.run(&target)).await?;
                row.ok_or_else(|| ClientError::UnknownRun { run: text.clone() })?.id
            }
        };
        let answer = self.shared.hub.await_answer(run, request);
        let message = SendMessage {
            client: self.clone(),
            target: Target::Id(run),
            name: name.to_owned(),
            body: Ok(body),
            dedupe: None,
            request: Some(request),
            if_finished: IfFinished::Error,
        };
        let sent = message.send().await;
        if let Err(error) = sent {
            self.shared.hub.forget_request(request);
            return Err(error);
        }
        self.shared.hub.request_delivered(request);
        self.watch(run);
        match answer.await.map_err(|_| ClientError::Closed)?? {
            Answer::Reply(bytes) => Ok(bytes),
            Answer::RunEnded | Answer::Unknown => Err(ClientError::NoReply { run: text }),
        }
    }

    async fn status_text(&self, run: RunId) -> String {
        let row = self.read(move |store| store.run(&Target::Id(run))).await;
        row.ok().flatten().map_or_else(|| ENDED.to_owned(), |row| row.status.to_string())
    }
}

/// The status of a run that has ended in one way or another.
pub(super) const ENDED: &str = "ended";

/// What a receipt means for the sender of a message to this run.
pub(super) fn sent(
    receipt: Receipt,
    run: String,
    status: String,
    limit: u64,
) -> Result<Sent, ClientError> {
    match receipt {
        Receipt::Delivered => Ok(Sent::Delivered),
        Receipt::Duplicate => Ok(Sent::Duplicate),
        Receipt::DeadLettered => Ok(Sent::DeadLettered),
        Receipt::Published => Ok(Sent::Published),
        Receipt::Unknown => Err(ClientError::UnknownRun { run }),
        Receipt::Finished => Err(ClientError::Finished { run, status }),
        Receipt::Full => Err(ClientError::InboxFull { run, limit }),
    }
}

/// A message that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sent {
    /// It is in the inbox of the run.
    Delivered,
    /// An equal one was delivered before; nothing was done.
    Duplicate,
    /// The run has ended, and it is a dead letter: see [`SendMessage::if_finished`].
    DeadLettered,
    /// The run has ended, and it was published as an event: see [`SendMessage::if_finished`].
    Published,
}

/// A message to be sent. Await it.
#[must_use = "nothing is sent unless it is awaited"]
pub struct SendMessage {
    pub(super) client: Client,
    pub(super) target: Target,
    name: String,
    body: Result<Vec<u8>, ClientError>,
    dedupe: Option<String>,
    /// Who waits for a reply.
    request: Option<Uuid>,
    if_finished: IfFinished,
}

impl SendMessage {
    /// A second message to the same run with an equal key is not delivered, and says so.
    pub fn dedupe(mut self, key: impl Into<String>) -> Self {
        self.dedupe = Some(key.into());
        self
    }

    /// What becomes of it if the run has ended, or ends before it has read it: an error, if this
    /// is not said.
    pub fn if_finished(mut self, policy: IfFinished) -> Self {
        self.if_finished = policy;
        self
    }

    /// Checks what was said.
    pub(super) fn delivery(self) -> Result<Delivery, ClientError> {
        let body = self.body?;
        named("the message's name", &self.name)?;
        if let Some(key) = &self.dedupe {
            named("the dedupe key", key)?;
        }
        if let IfFinished::Publish(event) = &self.if_finished {
            named("the event's name", event)?;
        }
        let settings = &self.client.shared.settings;
        Ok(Delivery {
            target: self.target,
            name: self.name,
            body,
            dedupe: self.dedupe,
            request: self.request,
            inbox_max: settings.inbox_messages_max,
            on_end: self.if_finished.on_end(settings),
        })
    }

    async fn send(self) -> Result<Sent, ClientError> {
        let client = self.client.clone();
        let delivery = self.delivery()?;
        let (run, limit) = (describe(&delivery.target), delivery.inbox_max);
        let delivered: Delivered = client.ask(Write::Deliver(Box::new(delivery))).await?;
        let status = match (delivered.receipt, delivered.run) {
            (Receipt::Finished, Some(run)) => client.status_text(run).await,
            _ => ENDED.to_owned(),
        };
        sent(delivered.receipt, run, status, limit)
    }
}

awaited!([] SendMessage, send => Result<Sent, ClientError>);
