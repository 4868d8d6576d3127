//! `ctx.transaction` and `ctx.pg_transaction`: steps whose writes to the engine's own database are
//! committed with their entry.

use std::sync::Arc;

use super::{
    Ctx,
    step::{RawStep, StepCall, StepOptions, Work},
};
#[cfg(feature = "postgres")]
use crate::commit::PostgresBody;
#[cfg(feature = "sqlite")]
use crate::commit::Tx;
use crate::{
    codec::Value,
    commit::{Transaction, TransactionBody, TransactionLimits},
    error::Result,
    history::EntryKind,
    run::core::{Core, Op},
};

impl Ctx {
    /// Runs `body` in a transaction of the engine's own SQLite file and records its result: what it
    /// writes to your own tables and the entry in the history are committed together, so it happens
    /// **exactly once**, whatever crashes when.
    ///
    /// It is a step in everything else: [`retry`](StepCall::retry), [`outcome`](StepCall::outcome),
    /// [`rollback`](StepCall::rollback), a branch of a join or a race. A body that fails leaves
    /// nothing behind and is tried again; [`Error::fatal`](crate::Error::fatal) is not.
    ///
    /// `body` is not async, because it runs where everything is committed, and holds everything up:
    /// keep it short. It has [`transaction_time_max`](crate::Settings::transaction_time_max), or
    /// less with [`timeout`](StepCall::timeout); over it, the attempt has failed. It must not wait
    /// for the engine in any way: that waits for it. It may be called again for the same attempt
    /// when the disk was busy, so only what it writes through [`Tx`] counts.
    ///
    /// Give your tables names of your own (`shop_accounts`): they live beside everstep's, which it
    /// may read but not write. The version of rusqlite that everstep uses is
    /// [`everstep::rusqlite`](crate::rusqlite).
    ///
    /// ```
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn transfer(ctx: Ctx, amount: i64) -> Result<i64> {
    ///     ctx.transaction("move", move |tx| {
    ///         tx.execute("UPDATE shop_accounts SET cents = cents - ?1 WHERE name = 'ann'", [amount])?;
    ///         tx.execute("UPDATE shop_accounts SET cents = cents + ?1 WHERE name = 'bob'", [amount])?;
    ///         let sql = "SELECT cents FROM shop_accounts WHERE name = 'ann'";
    ///         Ok(tx.query_row(sql, [], |row| row.get(0))?)
    ///     })
    ///     .await
    /// }
    ///
    /// #[workflow]
    /// async fn set_up(ctx: Ctx, _: ()) -> Result<()> {
    ///     ctx.transaction("tables", |tx| {
    ///         tx.execute_batch(
    ///             "CREATE TABLE shop_accounts (name TEXT PRIMARY KEY, cents INTEGER NOT NULL);
    ///              INSERT INTO shop_accounts VALUES ('ann', 100), ('bob', 0);",
    ///         )?;
    ///         Ok(())
    ///     })
    ///     .await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// # let dir = tempfile::tempdir()?;
    /// let engine = Engine::open(dir.path().join("app.db")).register(set_up).register(transfer).start().await?;
    /// let client = engine.client();
    /// client.start(set_up, ()).await?.result().await?;
    /// assert_eq!(client.start(transfer, 30).await?.result().await?, 70);
    /// # engine.shutdown().await;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`step`](Ctx::step); and if the store is not a SQLite file, or `body` writes to a table
    /// of everstep.
    #[cfg(feature = "sqlite")]
    pub fn transaction<T, F>(&self, name: &str, body: F) -> StepCall<'static, T>
    where
        T: Value,
        F: Fn(&Tx<'_>) -> Result<T> + Send + Sync + 'static,
    {
        let sealer = self.sealer();
        let body = Arc::new(move |tx: &Tx<'_>| sealer.encode(&body(tx)?));
        self.transaction_of(name, TransactionBody::Sqlite(body))
    }

    /// Runs `body` in a transaction of the engine's own PostgreSQL database and records its result:
    /// what it writes to your own tables and the entry in the history are committed together, so it
    /// happens **exactly once**, whatever crashes when.
    ///
    /// It is a step in everything else: [`retry`](StepCall::retry), [`outcome`](StepCall::outcome),
    /// [`rollback`](StepCall::rollback), a branch of a join or a race. A body that fails leaves
    /// nothing behind and is tried again; [`Error::fatal`](crate::Error::fatal) is not. One that
    /// loses its connection, or is the victim of a deadlock, has not been tried at all.
    ///
    /// `body` runs where commits are made, on a thread of its own, with the default search path of
    /// the role and not everstep's. Keep it short, since other commits may wait for it, and so does
    /// whoever wants to write the same rows. It has
    /// [`transaction_time_max`](crate::Settings::transaction_time_max), or less with
    /// [`timeout`](StepCall::timeout); over it, the attempt has failed. It must not wait for the
    /// engine in any way: that waits for it. It may be called again for the same attempt, so only
    /// what it writes through the transaction counts.
    ///
    /// It must not begin or end a transaction in SQL (savepoints are fine) or write to everstep's
    /// tables; a run whose body ends the transaction is paused. The version of tokio-postgres that
    /// everstep uses is [`everstep::tokio_postgres`](crate::tokio_postgres).
    ///
    /// ```no_run
    /// use everstep::prelude::*;
    ///
    /// #[workflow]
    /// async fn transfer(ctx: Ctx, amount: i64) -> Result<i64> {
    ///     ctx.pg_transaction("move", async move |tx| {
    ///         let take = "UPDATE accounts SET cents = cents - $1 WHERE name = 'ann' RETURNING cents";
    ///         let left = tx.query_one(take, &[&amount]).await?;
    ///         let give = "UPDATE accounts SET cents = cents + $1 WHERE name = 'bob'";
    ///         tx.execute(give, &[&amount]).await?;
    ///         Ok(left.try_get(0)?)
    ///     })
    ///     .await
    /// }
    ///
    /// # #[tokio::main]
    /// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
    /// let engine = Engine::open("postgres://app@db/shop").register(transfer).start().await?;
    /// let left = engine.client().start(transfer, 30).await?.result().await?;
    /// # Ok(()) }
    /// ```
    ///
    /// # Errors
    ///
    /// As [`step`](Ctx::step); and if the store is not PostgreSQL.
    #[cfg(feature = "postgres")]
    pub fn pg_transaction<T, F>(&self, name: &str, body: F) -> StepCall<'static, T>
    where
        T: Value,
        F: AsyncFn(&tokio_postgres::Transaction<'_>) -> Result<T> + Send + Sync + 'static,
    {
        let given = Arc::new((self.sealer(), body));
        let body: PostgresBody = Arc::new(move |tx| {
            let given = Arc::clone(&given);
            Box::pin(async move {
                let (sealer, body) = &*given;
                sealer.encode(&body(tx).await?)
            })
        });
        self.transaction_of(name, TransactionBody::Postgres(body))
    }

    fn transaction_of<T: Value>(&self, name: &str, body: TransactionBody) -> StepCall<'static, T> {
        let claim = self.claim(EntryKind::Transaction, name);
        let mut options = self.step_options();
        options.timeout = None;
        StepCall::of(RawStep::new(claim, Work::Transaction(body), options))
    }
}

impl Op {
    /// An attempt begins: its body goes into the next commit.
    pub(super) fn start_transaction(&self, body: TransactionBody, options: &StepOptions) {
        let settings = &self.core.env.settings;
        // Meanwhile there is no heartbeat.
        let batch = settings.transaction_time_max.min(settings.lease / 4);
        let body_max = options.timeout.map_or(batch, |timeout| timeout.min(batch));
        let limits = TransactionLimits { body: body_max, batch };
        self.core.start_transaction(self.id, options.retry, |key, prefix, span| {
            let name = Core::location(key);
            let body = match span {
                Some(span) => body.within(span),
                None => body,
            };
            Transaction::new(key.to_vec(), prefix, name, body, limits)
        });
    }
}
