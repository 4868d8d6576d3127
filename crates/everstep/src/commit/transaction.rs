//! Writes of a workflow's own that are made in the transaction of its commit.
//!
//! On the path of `ctx.transaction`, the run puts a [`Transaction`] into its next commit, the store
//! runs its body between two of its own writes, and the run reads from the same object what became
//! of it. The answer is not part of the outcome, since one commit can be sent several times before
//! it is durable: each time the body runs anew, and the last answer counts.
//!
//! Always true: the entry that says that the body has completed is written by the store in the
//! transaction in which the body has written, or neither is.

#[cfg(feature = "postgres")]
use std::pin::Pin;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
use std::time::Duration;
use std::{
    fmt,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

#[cfg(any(feature = "sqlite", feature = "postgres"))]
use crate::codec::bare;
#[cfg(feature = "postgres")]
use crate::commit::Applied;
use crate::{
    commit::Put,
    error::{Error, Failure, FailureKind},
};

/// Writes of a workflow's own, as part of its [`Commit`](crate::store::Commit).
///
/// A store that has SQL runs it; any other store says with [`refuse`](Transaction::refuse) that it
/// cannot. One that is neither run nor refused is part of the next commit again.
#[derive(Clone)]
pub struct Transaction {
    inner: Arc<Inner>,
}

/// What is run, for the kind of store that it is written for. It gives its result as a payload.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Clone)]
pub(crate) enum TransactionBody {
    #[cfg(feature = "sqlite")]
    Sqlite(SqliteBody),
    #[cfg(feature = "postgres")]
    Postgres(PostgresBody),
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl TransactionBody {
    /// The same; what it logs is below this span.
    pub(crate) fn within(self, span: &tracing::Span) -> TransactionBody {
        let span = span.clone();
        match self {
            #[cfg(feature = "sqlite")]
            TransactionBody::Sqlite(body) => {
                TransactionBody::Sqlite(Arc::new(move |tx| span.in_scope(|| body(tx))))
            }
            #[cfg(feature = "postgres")]
            TransactionBody::Postgres(body) => TransactionBody::Postgres(Arc::new(move |tx| {
                use tracing::Instrument;
                Box::pin(body(tx).instrument(span.clone()))
            })),
        }
    }
}

#[cfg(feature = "sqlite")]
pub(crate) type SqliteBody = Arc<dyn Fn(&Tx<'_>) -> Result<Vec<u8>, Error> + Send + Sync>;

/// Its future stays on the thread that called it.
#[cfg(feature = "postgres")]
pub(crate) type PostgresBody = Arc<
    dyn for<'t> Fn(
            &'t tokio_postgres::Transaction<'t>,
        ) -> Pin<Box<dyn Future<Output = Result<Vec<u8>, Error>> + 't>>
        + Send
        + Sync,
>;

/// How long everything else may be held up.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
#[derive(Clone, Copy)]
pub(crate) struct TransactionLimits {
    /// By this body.
    pub(crate) body: Duration,
    /// By the bodies of a batch before this one begins.
    pub(crate) batch: Duration,
}

/// The engine's own database, inside of a transaction that the engine commits: what the body of a
/// [`Ctx::transaction`](crate::Ctx::transaction) is handed.
///
/// It is a [`rusqlite::Connection`] with three limits: it cannot begin or end a transaction
/// (savepoints are fine), cannot write to the tables of everstep, and cannot attach databases, make
/// temporary tables or set pragmas, since the connection is the engine's and not its own.
#[cfg(feature = "sqlite")]
pub struct Tx<'a> {
    conn: &'a rusqlite::Connection,
}

#[cfg(feature = "sqlite")]
impl<'a> Tx<'a> {
    pub(crate) fn new(conn: &'a rusqlite::Connection) -> Tx<'a> {
        Tx { conn }
    }
}

#[cfg(feature = "sqlite")]
impl std::ops::Deref for Tx<'_> {
    type Target = rusqlite::Connection;

    fn deref(&self) -> &rusqlite::Connection {
        self.conn
    }
}

#[cfg(feature = "sqlite")]
impl fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Tx")
    }
}

struct Inner {
    /// Where the entry is written.
    key: Vec<u8>,
    /// The entry up to its payload.
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    prefix: Vec<u8>,
    /// What messages call it.
    name: String,
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    body: TransactionBody,
    #[cfg(any(feature = "sqlite", feature = "postgres"))]
    limits: TransactionLimits,
    state: Mutex<State>,
}

#[derive(Default)]
struct State {
    answer: Option<Result<Vec<u8>, Error>>,
    /// The body is not to run again: it has taken the store's transaction down with it.
    #[cfg(feature = "sqlite")]
    settled: bool,
    /// What became of its commit, if that was made before the rest of its batch.
    #[cfg(feature = "postgres")]
    made: Option<Applied>,
}

impl Transaction {
    fn lock(&self) -> MutexGuard<'_, State> {
        let state = self.inner.state.lock();
        state.unwrap_or_else(PoisonError::into_inner)
    }

    /// Says that this store has no transactions for workflows: the attempt has failed for good.
    pub fn refuse(&self, why: &str) {
        let text = format!("`{}` needs a store with transactions: {why}", self.inner.name);
        let failure = Failure::new(FailureKind::Fatal, text);
        self.lock().answer = Some(Err(Error::recorded(failure, Vec::new())));
    }

    /// What became of it; `None` if its turn did not come.
    pub(crate) fn take_answer(&self) -> Option<Result<Vec<u8>, Error>> {
        self.lock().answer.take()
    }

    /// The entry that was written, if it has completed and nobody has taken its answer.
    pub(crate) fn written(&self) -> Option<Put> {
        #[cfg(any(feature = "sqlite", feature = "postgres"))]
        if let Some(Ok(payload)) = &self.lock().answer {
            let value = bare::with_data(&self.inner.prefix, payload);
            let key = self.inner.key.clone();
            return Some(Put { key, value });
        }
        None
    }
}

#[cfg(any(feature = "sqlite", feature = "postgres"))]
impl Transaction {
    /// A transaction whose entry, up to its payload, is `prefix`.
    pub(crate) fn new(
        key: Vec<u8>,
        prefix: Vec<u8>,
        name: String,
        body: TransactionBody,
        limits: TransactionLimits,
    ) -> Transaction {
        Transaction {
            inner: Arc::new(Inner { key, prefix, name, body, limits, state: Mutex::default() }),
        }
    }

    pub(crate) fn limits(&self) -> TransactionLimits {
        self.inner.limits
    }

    /// It has not run in this batch, so far.
    pub(crate) fn postpone(&self) {
        self.lock().answer = None;
    }

    /// What the body gave, in this batch.
    pub(crate) fn answer(&self, answer: Result<Vec<u8>, Error>) {
        self.lock().answer = Some(answer);
    }

    /// What a body says that took too long, whatever it was written for.
    pub(crate) fn timed_out(&self) -> Error {
        let limit = self.inner.limits.body;
        let text = format!(
            "the transaction was stopped after {limit:?}, and nothing else is written meanwhile; \
             do less in it, or raise `transaction_time_max`"
        );
        Error::attempt_failed(Failure::new(FailureKind::TimedOut, text))
    }
}

#[cfg(feature = "sqlite")]
impl Transaction {
    pub(crate) fn name(&self) -> &str {
        &self.inner.name
    }

    /// The body, if it is one for SQLite.
    pub(crate) fn sqlite_body(&self) -> Option<&SqliteBody> {
        match &self.inner.body {
            TransactionBody::Sqlite(body) => Some(body),
            #[cfg(feature = "postgres")]
            TransactionBody::Postgres(_) => None,
        }
    }

    /// Whether the body is not to run any more.
    pub(crate) fn is_settled(&self) -> bool {
        self.lock().settled
    }

    /// It has failed, and the batch is made again without it.
    pub(crate) fn settle(&self, error: Error) {
        let mut state = self.lock();
        (state.answer, state.settled) = (Some(Err(error)), true);
    }
}

#[cfg(feature = "postgres")]
impl Transaction {
    /// The body, if it is one for PostgreSQL.
    pub(crate) fn postgres_body(&self) -> Option<&PostgresBody> {
        match &self.inner.body {
            TransactionBody::Postgres(body) => Some(body),
            #[cfg(feature = "sqlite")]
            TransactionBody::Sqlite(_) => None,
        }
    }

    /// Its commit is durable, and the rest of its batch is not yet. If that fails, the batch comes
    /// again, and this must not be made again.
    pub(crate) fn remember_made(&self, applied: &Applied) {
        self.lock().made = Some(applied.clone());
    }

    pub(crate) fn made(&self) -> Option<Applied> {
        self.lock().made.clone()
    }

    pub(crate) fn forget_made(&self) {
        self.lock().made = None;
    }
}

impl fmt::Debug for Transaction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Transaction")
            .field("name", &self.inner.name)
            .field("key", &self.inner.key)
            .finish_non_exhaustive()
    }
}
