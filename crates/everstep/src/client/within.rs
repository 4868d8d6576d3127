//! Starts and sends as part of the user's own transaction.

use rusqlite::Transaction;
use serde::Serialize;

use super::{Client, ClientError, RunHandle, SendMessage, Sent, Start, describe};
use crate::{
    commit::{Batch, Outcome, Receipt, Write},
    ctx::send::ToTarget,
    workflow::WorkflowRef,
};

impl Client {
    /// Starts a run as part of your own transaction, on a connection of your own to the SQLite file
    /// of the engine: the run is there when you commit, and was never there if you do not.
    ///
    /// A key works as with [`start`](Client::start): the run that has it is attached to. For keys,
    /// tags and times, say `client.start(..).key(..).within(&tx)`.
    ///
    /// The engine finds the run at its next look, no later than
    /// [`safety_poll`](crate::Settings::safety_poll) after your commit; with
    /// [`RunHandle::wake`] it looks at once. Begin your transaction as `IMMEDIATE`, or another
    /// writer may come between what it reads and what it writes.
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
    /// As [`start`](Client::start), and if the transaction is on another file. Nothing is written
    /// then, and your transaction goes on.
    pub fn start_in<W: WorkflowRef>(
        &self,
        tx: &Transaction<'_>,
        workflow: W,
        input: W::Input,
    ) -> Result<RunHandle<W::Output>, ClientError> {
        self.start(workflow, input).within(tx)
    }

    /// Sends a message as part of your own transaction: see [`start_in`](Client::start_in). What it
    /// answers is true if you commit.
    ///
    /// With a dedupe key, say `client.send(..).dedupe(..).within(&tx)`.
    ///
    /// # Errors
    ///
    /// As [`send`](Client::send), and if the transaction is on another file.
    pub fn send_in<T: Serialize>(
        &self,
        tx: &Transaction<'_>,
        to: impl ToTarget,
        name: &str,
        body: &T,
    ) -> Result<Sent, ClientError> {
        self.send(to, name, body).within(tx)
    }

    fn write_in(&self, tx: &Transaction<'_>, write: Write) -> Result<Outcome, ClientError> {
        let batch = Batch {
            fence: None,
            now: self.shared.now(),
            writes: vec![write],
        };
        let applied = self.shared.store.commit_in(tx, &batch)?;
        applied
            .outcomes
            .into_iter()
            .next()
            .ok_or(ClientError::Closed)
    }
}

impl<O> Start<O> {
    /// Starts the run as part of your own transaction: see [`Client::start_in`].
    ///
    /// # Errors
    ///
    /// As [`Client::start_in`].
    pub fn within(self, tx: &Transaction<'_>) -> Result<RunHandle<O>, ClientError> {
        let plan = self.plan()?;
        let client = &plan.client;
        loop {
            let new = Box::new(plan.new_run());
            match client.write_in(tx, Write::Start(new))? {
                Outcome::Started(started) => {
                    let mut handle = client.handle(started.id, None);
                    handle.attached = started.attached;
                    handle.input_differs = started.input_differs;
                    return Ok(handle);
                }
                // Another run has the same number: the next id is free.
                Outcome::Refused(_) => {}
                _ => return Err(ClientError::Closed),
            }
        }
    }
}

impl SendMessage {
    /// Sends the message as part of your own transaction: see [`Client::send_in`].
    ///
    /// # Errors
    ///
    /// As [`Client::send_in`].
    pub fn within(self, tx: &Transaction<'_>) -> Result<Sent, ClientError> {
        let (client, run) = (&self.client, describe(&self.target));
        let delivery = client.delivery(
            self.target,
            &self.name,
            self.body?,
            self.dedupe,
            None,
            self.if_finished,
        )?;
        let limit = delivery.inbox_max;
        let Outcome::Delivered(delivered) =
            client.write_in(tx, Write::Deliver(Box::new(delivery)))?
        else {
            return Err(ClientError::Closed);
        };
        match delivered.receipt {
            Receipt::Delivered => Ok(Sent::Delivered),
            Receipt::Duplicate => Ok(Sent::Duplicate),
            Receipt::DeadLettered => Ok(Sent::DeadLettered),
            Receipt::Published => Ok(Sent::Published),
            Receipt::Unknown => Err(ClientError::UnknownRun { run }),
            Receipt::Finished => Err(ClientError::Finished {
                run,
                status: "ended".to_owned(),
            }),
            Receipt::Full => Err(ClientError::InboxFull { run, limit }),
        }
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
