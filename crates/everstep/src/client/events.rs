//! Publishing events from outside.

use std::time::Duration;

use serde::Serialize;
use serde_json::Value as Json;

use super::{Client, ClientError, encode, encode_json, named};
use crate::{
    commit::{Deliver, EventRow, Published, Write},
    event::{Event, EventRules},
};

impl Client {
    /// Publishes an event. Set what else is to be said, then await it.
    pub fn publish<T: Serialize>(&self, event: Event<T>, body: &T) -> PublishEvent {
        let body = encode(body, "the event", self);
        self.publish_encoded(event.name, event.rules, body)
    }

    /// Publishes an event that is only known by name. It is a broadcast, unless
    /// [`delivery`](PublishEvent::delivery) says otherwise.
    pub fn publish_json(&self, name: &str, body: &Json) -> PublishEvent {
        let body = encode_json(body, "the event", self);
        self.publish_encoded(name, EventRules::default(), body)
    }

    fn publish_encoded(
        &self,
        name: &str,
        rules: EventRules,
        body: Result<Vec<u8>, ClientError>,
    ) -> PublishEvent {
        PublishEvent {
            client: self.clone(),
            name: name.to_owned(),
            rules,
            body,
            key: None,
            dedupe: None,
        }
    }

    /// How many events of this name were published, are kept, were dropped, and are waited for;
    /// `None` if nobody has published or waited for one.
    ///
    /// # Errors
    ///
    /// If the store cannot be read.
    pub async fn event(&self, name: &str) -> Result<Option<EventRow>, ClientError> {
        let name = name.to_owned();
        self.read(move |store| store.event(&name)).await
    }
}

/// An event to be published. Await it.
#[must_use = "nothing is published unless it is awaited"]
pub struct PublishEvent {
    client: Client,
    name: String,
    rules: EventRules,
    body: Result<Vec<u8>, ClientError>,
    key: Option<String>,
    dedupe: Option<String>,
}

/// What became of an event that was published from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum PublishedEvent {
    /// It is published.
    Published {
        /// How many waits were handed it by the time this was answered.
        told: u64,
        /// Whether there are more, which are told right after, page by page.
        spreading: bool,
        /// Whether it is kept for those who wait later. One of delivery
        /// [`One`](crate::Deliver::One) is kept only while nobody has it.
        kept: bool,
        /// How many older events were dropped to make room for it.
        dropped: u64,
    },
    /// An equal one was published before; nothing was done.
    Duplicate,
}

impl PublishEvent {
    /// Who waits for this key, or for any, gets it.
    pub fn key(mut self, key: impl Into<String>) -> Self {
        self.key = Some(key.into());
        self
    }

    /// A second event of the same name with an equal key is not published, and says so, as long as
    /// the first would be kept.
    pub fn dedupe(mut self, key: impl Into<String>) -> Self {
        self.dedupe = Some(key.into());
        self
    }

    /// Who gets it, if another than the event says.
    pub fn delivery(mut self, deliver: Deliver) -> Self {
        self.rules.deliver = deliver;
        self
    }

    /// How long it is kept, if longer or shorter than the event says.
    pub fn retain(mut self, retain: Duration) -> Self {
        self.rules.retain = Some(retain);
        self
    }

    /// How many events of its name are kept, if another number than the event says.
    pub fn max_pending(mut self, max: u64) -> Self {
        self.rules.max_pending = Some(max);
        self
    }

    async fn send(self) -> Result<PublishedEvent, ClientError> {
        named("the event's name", &self.name)?;
        for (what, key) in [("the event's key", &self.key), ("the dedupe key", &self.dedupe)] {
            if let Some(key) = key {
                named(what, key)?;
            }
        }
        let settings = &self.client.shared.settings;
        let body = self.client.seal(self.body?, "the event")?;
        let mut publication = self.rules.publication(&self.name, body, settings);
        (publication.key, publication.dedupe) = (self.key, self.dedupe);
        let write = Write::Publish(Box::new(publication));
        let published: Published = self.client.ask(write).await?;
        Ok(match published.seq {
            None => PublishedEvent::Duplicate,
            Some(_) => PublishedEvent::Published {
                told: published.told,
                spreading: published.spreading,
                kept: published.kept,
                dropped: published.dropped,
            },
        })
    }
}

awaited!([] PublishEvent, send => Result<PublishedEvent, ClientError>);
