//! The clients of an engine. They are made here and not in [`crate::engine`], which knows no clients.

use std::future::Future;

use super::{Client, ClientError, Worker};
use crate::{
    codec::Value,
    engine::{Engine, EngineBuilder, Job, StoreChoice, handler},
    error::Result as UserResult,
    queue::Queue,
};

impl Engine {
    /// A client in this process.
    pub fn client(&self) -> Client {
        Client::of_engine(self.shared.clone(), self.reader.clone())
    }

    /// Works on the items of a queue, up to `concurrency` at once, until the worker is
    /// [stopped](crate::Worker::stop) or the engine shuts down: see [`Client::work`].
    ///
    /// # Errors
    ///
    /// If the queue's name cannot be used, or the engine is shutting down.
    pub fn work<I, O, F, R>(
        &self,
        queue: Queue<I, O>,
        concurrency: usize,
        code: F,
    ) -> Result<Worker, ClientError>
    where
        I: Value,
        O: Value,
        F: Fn(Job, I) -> R + Send + Sync + 'static,
        R: Future<Output = UserResult<O>> + Send + 'static,
    {
        let runtime = self.runtime.clone();
        self.client().work_on(queue, concurrency, handler(code), runtime)
    }
}

impl EngineBuilder {
    /// A client on the store of this engine, with its codecs, while the engine does not start. The
    /// store must be there: nothing is made and nothing is migrated.
    ///
    /// # Errors
    ///
    /// As [`Client::open`].
    pub async fn client(&self) -> Result<Client, ClientError> {
        let mut client = match &self.store {
            #[cfg(any(feature = "sqlite", feature = "postgres"))]
            StoreChoice::Named(place) => Client::open(place).await?,
            StoreChoice::Given(store) => Client::on(store.clone())?,
        };
        client.use_codecs(self.settings.codecs.clone());
        Ok(client)
    }
}
