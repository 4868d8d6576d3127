//! Starts and sends as part of the user's own transaction.

use std::{ops::ControlFlow, sync::Arc};

use serde::Serialize;

use super::{
    Client, ClientError, RunHandle, SendMessage, Sent, Start, describe,
    send::{ENDED, sent},
};
#[cfg(feature = "postgres")]
use crate::store::BoxFuture;
use crate::{
    commit::{Batch, Outcome, Write},
    ctx::send::ToTarget,
    store::Store,
    workflow::WorkflowRef,
};

/// A transaction of your own that starts and messages can be part of: one of
/// [`rusqlite`], or one of `tokio_postgres`, for which every answer is a future.
pub trait InTransaction: sealed::Sealed {
    /// What a call gives.
    type Answer<'a, T: 'a>
    where
        Self: 'a;

    #[doc(hidden)]
    fn ask<'a, T: Send + 'a>(
        &'a self,
        store: Arc<dyn Store>,
        asking: Asking<'a, T>,
    ) -> Self::Answer<'a, T>;
}

mod sealed {
    /// What nobody else implements.
    pub trait Sealed {}
    #[cfg(feature = "sqlite")]
    impl Sealed for rusqlite::Transaction<'_> {}
    #[cfg(feature = "postgres")]
    impl Sealed for tokio_postgres::Transaction<'_> {}
}

/// Says which batch is to be made next, from what became of the one before, until it knows its
/// answer.
#[doc(hidden)]
pub struct Asking<'a, T>(Next<'a, T>);

type Next<'a, T> =
    Box<dyn FnMut(Option<Outcome>) -> Result<ControlFlow<T, Batch>, ClientError> + Send + 'a>;

#[cfg(feature = "sqlite")]
impl InTransaction for rusqlite::Transaction<'_> {
    type Answer<'a, T: 'a>
        = Result<T, ClientError>
    where
        Self: 'a;

    fn ask<'a, T: Send + 'a>(
        &'a self,
        store: Arc<dyn Store>,
        mut asking: Asking<'a, T>,
    ) -> Result<T, ClientError> {
        let mut before = None;
        loop {
            match asking.0(before)? {
                ControlFlow::Break(answer) => return Ok(answer),
                ControlFlow::Continue(batch) => {
                    before = store.commit_in(self, &batch)?.outcomes.pop();
                }
            }
        }
    }
}

#[cfg(feature = "postgres")]
impl InTransaction for tokio_postgres::Transaction<'_> {
    type Answer<'a, T: 'a>
        = BoxFuture<'a, Result<T, ClientError>>
    where
        Self: 'a;

    fn ask<'a, T: Send + 'a>(
        &'a self,
        store: Arc<dyn Store>,
        mut asking: Asking<'a, T>,
    ) -> BoxFuture<'a, Result<T, ClientError>> {
        Box::pin(async move {
            let mut before = None;
            loop {
                match asking.0(before)? {
                    ControlFlow::Break(answer) => return Ok(answer),
                    ControlFlow::Continue(batch) => {
                        before = store.commit_in_pg(self, batch).await?.outcomes.pop();
                    }
                }
            }
        })
    }
}

impl Client {
    /// Starts a run as part of your own transaction, on a connection of your own to the SQLite file
    /// or the PostgreSQL database of the engine: the run is there when you commit, and was never there
    /// if you do not.
    ///
    /// A key works as with [`start`](Client::start): the run that has it is attached to. For keys,
    /// tags and times, say `client.start(..).key(..).within(&tx)`.
    ///
    /// The engine finds the run at its next look, no later than
    /// [`safety_poll`](crate::Settings::safety_poll) after your commit; with
    /// [`RunHandle::wake`] it looks at once.
    ///
    /// In a SQLite file, begin your transaction as `IMMEDIATE`, or another writer may come between
    /// what it reads and what it writes. The connection must have `PRAGMA synchronous = FULL`, which
    /// is SQLite's default, or `EXTRA`: with `NORMAL` or `OFF` a commit that was confirmed could be
    /// lost with the power, and is refused. With a transaction of `tokio_postgres` the answer is a
    /// future: `client.start_in(&tx, ship, 7).await?`. It must be `READ COMMITTED`, PostgreSQL's
    /// default, and its commit waits for the disk: `synchronous_commit` is turned on in it where it is
    /// `off` or `local`. Commit it soon: whoever has something for the same run waits for you.
    ///
    /// ```
    /// use everstep::{prelude::*, rusqlite::{Connection, TransactionBehavior::Immediate}};
    ///
    /// #[workflow]
    /// async fn ship(ctx: Ctx, order: u32) -> Result<u32> {
    ///     let parcel: u32 = ctx.listen("packed").await?;
    ///     Ok(order + parcel)
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// # let path = dir.path().join("app.db");
    /// let engine = Engine::open(&path).register(ship).start().await?;
    /// let client = engine.client();
    ///
    /// let mut conn = Connection::open(&path)?;
    /// let tx = conn.transaction_with_behavior(Immediate)?;
    /// tx.execute_batch("CREATE TABLE shop_orders (id INTEGER); INSERT INTO shop_orders VALUES (7)")?;
    /// let run = client.start_in(&tx, ship, 7)?;
    /// client.send_in(&tx, run.id(), "packed", &35)?;
    /// tx.commit()?;
    ///
    /// run.wake();
    /// assert_eq!(run.result().await?, 42);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`start`](Client::start), and if the transaction is on another file or database, or on a
    /// connection whose commits could be lost ([`StoreError::NotDurable`](crate::store::StoreError)).
    /// Nothing is written then, and your transaction goes on.
    pub fn start_in<'a, X: InTransaction, W: WorkflowRef>(
        &self,
        tx: &'a X,
        workflow: W,
        input: W::Input,
    ) -> X::Answer<'a, RunHandle<W::Output>>
    where
        W::Output: 'a,
    {
        self.start(workflow, input).within(tx)
    }

    /// Sends a message as part of your own transaction: see [`start_in`](Client::start_in). What it
    /// answers is true if you commit.
    ///
    /// With a dedupe key, say `client.send(..).dedupe(..).within(&tx)`.
    ///
    /// # Errors
    ///
    /// As [`send`](Client::send), and if the transaction is on another file or database.
    pub fn send_in<'a, X: InTransaction, T: Serialize>(
        &self,
        tx: &'a X,
        to: impl ToTarget,
        name: &str,
        body: &T,
    ) -> X::Answer<'a, Sent> {
        self.send(to, name, body).within(tx)
    }

    fn batch(&self, write: Write) -> Batch {
        Batch { fence: None, now: self.shared.now(), writes: vec![write] }
    }
}

impl<O> Start<O> {
    /// Starts the run as part of your own transaction: see [`Client::start_in`].
    ///
    /// # Errors
    ///
    /// As [`Client::start_in`].
    pub fn within<'a, X: InTransaction>(self, tx: &'a X) -> X::Answer<'a, RunHandle<O>>
    where
        O: 'a,
    {
        let store = Arc::clone(&self.client.shared.store);
        let mut start = Some(self);
        let mut plan = None;
        let next: Next<'a, RunHandle<O>> = Box::new(move |before| {
            if let Some(start) = start.take() {
                plan = Some(start.plan()?);
            }
            let plan = plan.as_ref().ok_or(ClientError::Closed)?;
            let client = &plan.client;
            match before {
                Some(Outcome::Started(started)) => {
                    Ok(ControlFlow::Break(client.handle_of(&started, None)))
                }
                // At the second time, another run has the same number: the next id is free.
                None | Some(Outcome::Refused(_)) => {
                    let new = Box::new(plan.new_run());
                    Ok(ControlFlow::Continue(client.batch(Write::Start(new))))
                }
                Some(_) => Err(ClientError::Closed),
            }
        });
        tx.ask(store, Asking(next))
    }
}

impl SendMessage {
    /// Sends the message as part of your own transaction: see [`Client::send_in`].
    ///
    /// # Errors
    ///
    /// As [`Client::send_in`].
    pub fn within<X: InTransaction>(self, tx: &X) -> X::Answer<'_, Sent> {
        let store = Arc::clone(&self.client.shared.store);
        let (run, mut limit) = (describe(&self.target), 0);
        let mut message = Some(self);
        let next: Next<'_, Sent> = Box::new(move |before| {
            if let Some(message) = message.take() {
                let client = message.client.clone();
                let delivery = message.delivery()?;
                limit = delivery.inbox_max;
                let batch = client.batch(Write::Deliver(Box::new(delivery)));
                return Ok(ControlFlow::Continue(batch));
            }
            let Some(Outcome::Delivered(delivered)) = before else {
                return Err(ClientError::Closed);
            };
            let answer = sent(delivered.receipt, run.clone(), ENDED.to_owned(), limit);
            answer.map(ControlFlow::Break)
        });
        tx.ask(store, Asking(next))
    }
}

impl<O> RunHandle<O> {
    /// Tells the owner of the run, in whichever process, to look at it now: after a commit of your
    /// own with [`Client::start_in`] or [`Client::send_in`], which nobody else is told of.
    pub fn wake(&self) {
        let shared = &self.client.shared;
        if !shared.threads.is_empty() {
            shared.due.poke(true);
        }
        shared.wake_others(&[self.id.no()]);
    }
}
