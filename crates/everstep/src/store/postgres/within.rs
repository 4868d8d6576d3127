//! Writes within a transaction of the user's own, on a connection of the user's own.
//!
//! What is written is what a batch would write, by the same code, in a savepoint. The rules run on a
//! thread of their own and send their statements here ([`Remote`]). There is no mark in a lane:
//! whether it is made is decided by the user's commit, which is not ours to look for.
//!
//! What the user has locked before is held while we wait for locks. So two transactions can wait for
//! each other here, against the order of [`locks`](super::locks): the server ends one of them, and if it
//! is the user's, the user is told.

use std::task::Context;

use tokio_postgres::{Transaction, types::Type};

use super::{
    PostgresStore,
    batch::{self, Terms},
    conn::{self, Conn, quoted},
    error::Trouble,
    locks::Named,
    schema,
    session::{Op, Port, Session},
    transact::{Remote, Request},
    value::{PgRow, params},
};
use crate::store::{Applied, Batch, Store, StoreError};

/// How often it is tried again when others are in the way.
const GOES: u32 = 20;

const SAVEPOINT: &str = "SAVEPOINT everstep_within";
const ROLL_BACK: &str = "ROLLBACK TO everstep_within";
const RELEASE: &str = "RELEASE everstep_within";
const ROLL_BACK_AND_RELEASE: &str = "ROLLBACK TO everstep_within; RELEASE everstep_within";

/// What the server calls the database of a connection.
pub(super) fn database(conn: &Conn) -> Result<String, Trouble> {
    let answers = conn.run(vec![Op::new("SELECT current_database()::text", &[])])?;
    let row = answers.first().and_then(|answer| answer.rows.first());
    row.map_or(Ok(String::new()), |row| row.get(0))
}

impl PostgresStore {
    /// Makes the writes of a batch in `tx`. After an error, none of them is made, and the user's
    /// transaction is otherwise as it was.
    pub(super) async fn commit_within(
        &self,
        tx: &Transaction<'_>,
        batch: Batch,
    ) -> Result<Applied, StoreError> {
        let error = |trouble: Trouble| self.error(trouble);
        let mut guard = Guard::begin(tx).await.map_err(error)?;
        let applied = self.commit_behind(tx, batch).await;
        if applied.is_ok() {
            guard.release();
        }
        // Otherwise what was done is taken back.
        drop(guard);
        applied
    }

    /// As [`commit_within`](Self::commit_within), behind its savepoint.
    async fn commit_behind(
        &self,
        tx: &Transaction<'_>,
        mut batch: Batch,
    ) -> Result<Applied, StoreError> {
        let error = |trouble: Trouble| self.error(trouble);
        let search_path = self.require_same(tx).await?;
        batch.now = self.time().unwrap_or(batch.now);
        let mut named = Named::of(&batch);
        let mut goes = 0;
        loop {
            set_search_path(tx, conn::search_path(&self.options.schema)).await.map_err(error)?;
            let trouble = match apply(tx, &batch, &named, self.schema_number).await {
                Ok(applied) => {
                    set_search_path(tx, search_path).await.map_err(error)?;
                    self.require_durable(tx).await.map_err(error)?;
                    return Ok(applied);
                }
                Err(trouble) => trouble,
            };
            goes += 1;
            if trouble.code() == Some("40P01") {
                // What the other one waits for was locked before our savepoint: only the end of the
                // whole transaction frees it.
                return Err(StoreError::Busy {
                    store: self.name.clone(),
                    source: "your transaction and another one waited for each other; roll yours \
                             back and make it again, and lock in one order"
                        .into(),
                });
            }
            if !trouble.is_passing() || goes >= GOES {
                return Err(self.error(trouble));
            }
            if let Trouble::Contended(lock) = trouble {
                named.locks.insert(lock);
            }
            tx.batch_execute(ROLL_BACK).await.map_err(|lost| self.error(lost.into()))?;
        }
    }

    /// Has the commit of the user's transaction wait for the disk: the caller is told that the run is
    /// started when it has committed.
    async fn require_durable(&self, tx: &Transaction<'_>) -> Result<(), Trouble> {
        if self.route.synced {
            tx.batch_execute(conn::WAIT_FOR_THE_DISK).await?;
        }
        Ok(())
    }

    /// Refuses a transaction that is elsewhere, or that does not see what others have done; gives its
    /// search path.
    async fn require_same(&self, tx: &Transaction<'_>) -> Result<String, StoreError> {
        let error = |trouble: Trouble| self.error(trouble);
        let table = format!("{}.everstep_format", quoted(&self.options.schema));
        let sql = format!(
            "SELECT (SELECT system_identifier::text FROM pg_control_system()), \
             current_database()::text, current_setting('transaction_isolation'), \
             current_setting('search_path'), to_regclass($1) IS NOT NULL, {}",
            conn::CLOCK
        );
        let asked = conn::Asked::now();
        let rows = ask(tx, sql, params![table.clone()]).await.map_err(error)?;
        let read = |rows: &[PgRow]| -> Result<_, Trouble> {
            let row = rows.first().ok_or_else(|| Trouble::value("system_identifier", "nothing"))?;
            let database = (row.get::<String>(0)?, row.get::<String>(1)?);
            let (isolation, path) = (row.get::<String>(2)?, row.get::<String>(3)?);
            let clock = row.get::<i64>(5)?;
            Ok((database, isolation, path, row.get::<bool>(4)?, clock))
        };
        let ((system, database), isolation, path, is_there, clock) = read(&rows).map_err(error)?;
        let elsewhere = if system != self.system {
            Some(format!("the database `{database}` of another server"))
        } else if database != self.database {
            Some(format!("the database `{database}`"))
        } else {
            let schema = &self.options.schema;
            (!is_there).then(|| format!("a database without the schema `{schema}`"))
        };
        if let Some(found) = elsewhere {
            let store = self.name.clone();
            return Err(StoreError::AnotherFile { store, found });
        }
        if !["read committed", "read uncommitted"].contains(&&*isolation) {
            let source = format!(
                "the transaction is `{isolation}`, which does not see what was committed since it \
                 began; use `read committed`"
            );
            return Err(StoreError::Rejected { store: self.name.clone(), source: source.into() });
        }
        let sql = format!("SELECT version FROM {table}");
        let rows = ask(tx, sql, &[]).await.map_err(error)?;
        let format: Option<u32> = rows.first().map(|row| row.get(0)).transpose().map_err(error)?;
        schema::FORMATS.require_latest(format.unwrap_or(0), &self.name)?;
        self.note_time(asked.answered_if_quick(clock));
        Ok(path)
    }
}

async fn ask(
    tx: &Transaction<'_>,
    sql: impl crate::store::sql::Text,
    params: &[super::value::Param<'_>],
) -> Result<Vec<PgRow>, Trouble> {
    let answers = conn::run_unnamed(tx.client(), &[Op::new(sql, params)]).await?;
    Ok(answers.into_iter().flat_map(|answer| answer.rows).collect())
}

/// Sets it until the end of the transaction; a rollback to the savepoint takes it back.
async fn set_search_path(tx: &Transaction<'_>, path: String) -> Result<(), Trouble> {
    let sql = "SELECT set_config('search_path', $1, true)";
    tx.query_typed(sql, &[(&path, Type::TEXT)]).await?;
    Ok(())
}

/// Has the rules applied on another thread, and sends their statements.
async fn apply(
    tx: &Transaction<'_>,
    batch: &Batch,
    named: &Named,
    schema: u32,
) -> Result<Applied, Trouble> {
    let (remote, mut asked) = Remote::new();
    let (batch, named) = (batch.clone(), named.clone());
    let applying = conn::runtime()?.spawn_blocking(move || {
        let session = Session::new(&remote);
        // Nothing is remembered, since nobody here learns whether the user commits.
        let (known, spare_items, items_in_hand) = Default::default();
        let terms = Terms {
            named: &named,
            fenced: false,
            shards: None,
            schema,
            known: &known,
            is_first_go: false,
            rows: None,
            spare_items: &spare_items,
            items_in_hand: &items_in_hand,
        };
        let (applied, _) = batch::apply(&session, &batch, &terms)?;
        session.flush()?;
        Ok(applied)
    });
    while let Some(request) = asked.recv().await {
        match request {
            Request::Run(ops, reply) => {
                let answers = conn::run_unnamed(tx.client(), &ops).await;
                // It waits for this.
                let _ = reply.send(answers);
            }
            Request::Call(transaction, reply) => {
                transaction.refuse("a transaction of the caller's own runs no bodies");
                let _ = reply.send(Ok(()));
            }
        }
    }
    let applied = applying.await;
    applied.unwrap_or_else(|_| Err(Trouble::Lost("the thread of the rules has ended".to_owned())))
}

/// Takes back what was done if the caller does not wait for the end: the user's transaction must not
/// go on with half of a batch, and with our search path.
struct Guard<'t> {
    tx: &'t Transaction<'t>,
    is_over: bool,
}

impl<'t> Guard<'t> {
    async fn begin(tx: &'t Transaction<'_>) -> Result<Guard<'t>, Trouble> {
        let guard = Guard { tx, is_over: true };
        tx.batch_execute(SAVEPOINT).await?;
        Ok(Guard { is_over: false, ..guard })
    }
}

impl Guard<'_> {
    /// What was done stands. There is no point at which the caller can give up in between.
    fn release(&mut self) {
        self.is_over = true;
        self.send(RELEASE);
    }

    /// The first poll sends it, ahead of everything that is sent later; nobody needs the answer.
    fn send(&self, sql: &str) {
        let mut sending = std::pin::pin!(self.tx.batch_execute(sql));
        let mut context = Context::from_waker(std::task::Waker::noop());
        let _ = sending.as_mut().poll(&mut context);
    }
}

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !self.is_over {
            self.send(ROLL_BACK_AND_RELEASE);
        }
    }
}
