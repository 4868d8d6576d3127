//! Runs the bodies of `ctx.transaction` on the writer's connection, inside of a batch.
//!
//! Each runs in a savepoint: one that fails leaves nothing, and the rest of its batch stands. While
//! it runs, SQLite's authorizer keeps it away from our own tables and from the transaction itself,
//! and the progress handler stops it when its time is over.
//!
//! Always true: what a body has written becomes durable with its entry, or neither does. Some
//! failures make SQLite roll back the whole transaction and not just the savepoint (a write that is
//! interrupted, `ON CONFLICT ROLLBACK`): then the batch is made again without that body.

use std::{
    cell::RefCell,
    collections::HashSet,
    ops::Deref,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::OnceLock,
    time::{Duration, Instant},
};

use rusqlite::{
    Connection, ffi,
    hooks::{AuthAction, AuthContext, Authorization},
};

use super::schema;
use crate::{
    commit::{Batch, Transaction, Write},
    error::{Error, Failure, FailureKind},
    run::panics,
    store::rules,
};

/// The engine's own database, inside of a transaction that the engine commits: what the body of a
/// [`Ctx::transaction`](crate::Ctx::transaction) is handed.
///
/// It is a [`rusqlite::Connection`] with three limits: it cannot begin or end a transaction
/// (savepoints are fine), cannot write to the tables of everstep, and cannot attach databases, make
/// temporary tables or set pragmas, since the connection is the engine's and not its own.
pub struct Tx<'a> {
    conn: &'a Connection,
}

impl Deref for Tx<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.conn
    }
}

impl std::fmt::Debug for Tx<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Tx")
    }
}

const SAVEPOINT: &str = "everstep_transaction";

/// How many steps of SQLite's machine go by between two looks at the clock.
const STEPS: i32 = 1_000;

/// Lets bodies be watched on this connection.
pub(crate) fn install(conn: &mut Connection) -> rusqlite::Result<()> {
    conn.authorizer(Some(authorize))?;
    conn.progress_handler(STEPS, Some(is_over))
}

thread_local! {
    /// The body that runs on this thread. SQLite asks on the thread that it was called from.
    static WATCHED: RefCell<Option<Watched>> = const { RefCell::new(None) };
}

struct Watched {
    deadline: Instant,
    stopped: bool,
    /// What it was kept from, in words.
    denied: Option<String>,
}

/// Ends the watch, also when the body panics.
struct Watch;

impl Watch {
    fn begin(limit: Duration) -> Watch {
        let watched = Watched {
            deadline: Instant::now() + limit,
            stopped: false,
            denied: None,
        };
        WATCHED.set(Some(watched));
        Watch
    }

    fn end(self) -> Option<Watched> {
        WATCHED.take()
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        WATCHED.set(None);
    }
}

/// Called by SQLite now and then: whether to stop what it is doing.
fn is_over() -> bool {
    WATCHED.with_borrow_mut(|watched| match watched {
        Some(watched) => {
            watched.stopped |= Instant::now() >= watched.deadline;
            watched.stopped
        }
        None => false,
    })
}

/// Called by SQLite while it compiles a statement.
fn authorize(context: AuthContext<'_>) -> Authorization {
    WATCHED.with_borrow_mut(|watched| {
        let Some(watched) = watched else {
            return Authorization::Allow;
        };
        match forbidden(&context.action) {
            Some(what) => {
                watched.denied.get_or_insert(what);
                Authorization::Deny
            }
            None => Authorization::Allow,
        }
    })
}

/// Pragmas that only tell something.
const PRAGMAS: &[&str] = &[
    "data_version",
    "foreign_key_check",
    "foreign_key_list",
    "index_info",
    "index_list",
    "index_xinfo",
    "table_info",
    "table_list",
    "table_xinfo",
];

/// Why a body may not do this; none if it may.
fn forbidden(action: &AuthAction<'_>) -> Option<String> {
    let table = match action {
        AuthAction::Insert { table_name }
        | AuthAction::Delete { table_name }
        | AuthAction::DropTable { table_name }
        | AuthAction::Update { table_name, .. }
        | AuthAction::AlterTable { table_name, .. }
        | AuthAction::CreateIndex { table_name, .. }
        | AuthAction::DropIndex { table_name, .. }
        | AuthAction::CreateTrigger { table_name, .. }
        | AuthAction::DropTrigger { table_name, .. } => table_name,
        AuthAction::Transaction { .. } => {
            return Some("begin or end a transaction: the engine does that".to_owned());
        }
        AuthAction::Savepoint { savepoint_name, .. } if *savepoint_name == SAVEPOINT => {
            return Some(format!(
                "use the savepoint `{SAVEPOINT}`, which is everstep's"
            ));
        }
        AuthAction::Attach { .. } | AuthAction::Detach { .. } => {
            return Some("attach or detach a database".to_owned());
        }
        AuthAction::CreateTempTable { .. }
        | AuthAction::CreateTempIndex { .. }
        | AuthAction::CreateTempTrigger { .. }
        | AuthAction::CreateTempView { .. } => {
            return Some(
                "make temporary tables: the connection is the engine's and stays open".to_owned(),
            );
        }
        AuthAction::Pragma { pragma_name, .. }
            if !PRAGMAS.contains(&pragma_name.to_ascii_lowercase().as_str()) =>
        {
            return Some(format!("use the pragma `{pragma_name}`"));
        }
        _ => return None,
    };
    is_ours(table).then(|| format!("write to the table `{table}`, which is everstep's"))
}

/// Whether this is one of the tables that our migrations make.
fn is_ours(table: &str) -> bool {
    static OURS: OnceLock<HashSet<String>> = OnceLock::new();
    let ours = OURS.get_or_init(|| {
        let read = || -> rusqlite::Result<HashSet<String>> {
            let conn = Connection::open_in_memory()?;
            for migration in schema::MIGRATIONS {
                conn.execute_batch(migration)?;
            }
            let sql = "SELECT lower(name) FROM sqlite_schema WHERE type = 'table'";
            conn.prepare(sql)?
                .query_map([], |row| row.get(0))?
                .collect()
        };
        read().expect("our own migrations make a database of nothing")
    });
    ours.contains(&table.to_ascii_lowercase())
}

/// How many bodies of this batch are given up for good.
pub(crate) fn settled(batch: &Batch) -> usize {
    let commits = batch.writes.iter().filter_map(|write| match write {
        Write::Commit(commit) if !commit.effects.is_empty() => Some(commit),
        _ => None,
    });
    commits
        .flat_map(|commit| rules::transactions(commit))
        .filter(|transaction| transaction.is_settled())
        .count()
}

/// Runs a body, if there is time left for it in this batch; whether it has completed is then in
/// the transaction.
///
/// # Errors
///
/// If the batch cannot go on: the store itself is at fault, or SQLite has rolled it back.
pub(crate) fn run(
    conn: &Connection,
    transaction: &Transaction,
    spent: &mut Duration,
) -> rusqlite::Result<()> {
    if transaction.is_settled() {
        return Ok(());
    }
    transaction.postpone();
    if *spent > transaction.time_max() {
        return Ok(());
    }
    execute(conn, "SAVEPOINT everstep_transaction")?;
    let began = Instant::now();
    let answer = call(conn, transaction);
    *spent += began.elapsed();
    if let Some(error) = store_failure(conn, answer.is_err()) {
        return Err(error);
    }
    if conn.is_autocommit() {
        let rolled_back = "the database has rolled the whole transaction back";
        transaction.settle(answer.err().unwrap_or_else(|| Error::msg(rolled_back)));
        let code = ffi::Error::new(ffi::SQLITE_ABORT_ROLLBACK);
        return Err(rusqlite::Error::SqliteFailure(code, None));
    }
    if answer.is_err() {
        execute(conn, "ROLLBACK TO everstep_transaction")?;
    }
    execute(conn, "RELEASE everstep_transaction")?;
    transaction.answer(answer);
    Ok(())
}

fn execute(conn: &Connection, sql: &str) -> rusqlite::Result<()> {
    conn.prepare_cached(sql)?.execute([]).map(drop)
}

/// Calls the body under watch, and says why it has failed.
fn call(conn: &Connection, transaction: &Transaction) -> Result<Vec<u8>, Error> {
    let limit = transaction.time_max();
    let watch = Watch::begin(limit);
    let called = catch_unwind(AssertUnwindSafe(|| transaction.call(&Tx { conn })));
    let watched = watch.end();
    let answer = called.unwrap_or_else(|panic| {
        let failure = Failure::new(FailureKind::Panic, panics::describe(&*panic));
        Err(Error::attempt_failed(failure))
    });
    let Some(Watched {
        deadline,
        stopped,
        denied,
    }) = watched
    else {
        return answer;
    };
    if let (Err(_), Some(what)) = (&answer, denied) {
        let text = format!("the transaction `{}` may not {what}", transaction.name());
        return Err(Error::fatal(text));
    }
    if stopped || Instant::now() >= deadline {
        let text = format!(
            "the transaction was stopped after {limit:?}, and nothing else is written meanwhile; \
             do less in it, or raise `transaction_time_max`"
        );
        let failure = Failure::new(FailureKind::TimedOut, text);
        return Err(Error::attempt_failed(failure));
    }
    if answer.is_ok() && has_broken_references(conn) {
        let text = "a deferred foreign key is violated at the end of the transaction";
        return Err(Error::msg(text));
    }
    answer
}

/// What a body has failed by, if that is the store's own trouble: it is then no attempt at all.
fn store_failure(conn: &Connection, failed: bool) -> Option<rusqlite::Error> {
    if !failed {
        return None;
    }
    #[expect(
        unsafe_code,
        reason = "rusqlite does not show the last code of a connection"
    )]
    // SAFETY: the handle is that of an open connection, used on this thread alone.
    let code = unsafe { ffi::sqlite3_extended_errcode(conn.handle()) };
    let is_ours = matches!(
        code & 0xFF,
        ffi::SQLITE_FULL
            | ffi::SQLITE_IOERR
            | ffi::SQLITE_NOMEM
            | ffi::SQLITE_CORRUPT
            | ffi::SQLITE_NOTADB
            | ffi::SQLITE_READONLY
            | ffi::SQLITE_BUSY
    );
    is_ours.then(|| rusqlite::Error::SqliteFailure(ffi::Error::new(code), None))
}

/// Whether a foreign key that is checked at the end is violated: it would refuse the whole batch.
fn has_broken_references(conn: &Connection) -> bool {
    let (mut current, mut highest) = (0, 0);
    #[expect(
        unsafe_code,
        reason = "rusqlite does not show the status of a connection"
    )]
    // SAFETY: the handle is that of an open connection, used on this thread alone, and both
    // numbers outlive the call.
    let code = unsafe {
        let op = ffi::SQLITE_DBSTATUS_DEFERRED_FKS;
        ffi::sqlite3_db_status(conn.handle(), op, &mut current, &mut highest, 0)
    };
    code == ffi::SQLITE_OK && current != 0
}
