//! What PostgreSQL says, as a [`StoreError`]. The one place where its codes are read.

use std::fmt;

use tokio_postgres::error::{Severity, SqlState};

use super::locks::Lock;
use crate::store::{StoreError, sql::value::BadValue};

/// What can go wrong within a transaction.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server says so. The connection lives.
    Sql(Box<tokio_postgres::Error>),
    /// The connection is gone, or has not answered in time.
    Lost(String),
    /// A column holds what it cannot.
    Value { column: String, found: String },
    /// The server has said so to the body of a user's transaction. The connection lives.
    Told { code: String, text: String },
    /// Somebody else has this lock. The batch is made again, with it in its place.
    Contended(Lock),
}

/// The fence of a batch does not hold.
pub(super) const FENCED: &str = "EV001";
/// The lane of a batch is another's, or was closed by whoever looked for the outcome of a batch.
pub(super) const LANE_CLOSED: &str = "EV002";
/// The body of a user's transaction has ended the transaction that it was in.
pub(super) const ENDED: &str = "EV004";
/// A row is not as it was remembered.
pub(super) const CHANGED: &str = "EV003";

impl Trouble {
    pub(super) fn value(column: &str, found: impl fmt::Display) -> Trouble {
        Trouble::Value { column: column.to_owned(), found: found.to_string() }
    }

    /// The SQLSTATE, if the server has sent one.
    pub(super) fn code(&self) -> Option<&str> {
        match self {
            Trouble::Sql(error) => error.code().map(SqlState::code),
            Trouble::Told { code, .. } => Some(code),
            _ => None,
        }
    }

    /// Whether the same transaction may go through if it is tried again at once.
    pub(super) fn is_passing(&self) -> bool {
        let passing = [
            // A serialization failure, a deadlock.
            "40001", "40P01",
            // Somebody else has inserted the same row: it is there now.
            "23505",
        ];
        matches!(self, Trouble::Contended(_)) || self.code().is_some_and(|it| passing.contains(&it))
    }

    /// Whether the connection can be used again after a rollback. If not, and a commit was on its
    /// way, nobody knows what became of it.
    pub(super) fn spares_connection(&self) -> bool {
        match self {
            Trouble::Lost(_) => false,
            Trouble::Sql(error) => {
                let is_over = |severity| matches!(severity, Severity::Fatal | Severity::Panic);
                let said = error.as_db_error();
                let said_so = said.and_then(|it| it.parsed_severity()).is_some_and(is_over);
                // An administrator or a crash has ended the session, or a pooler has lost it.
                let classes = ["57P", "08", "25P03"];
                let code = self.code().unwrap_or_default();
                !said_so && !classes.iter().any(|class| code.starts_with(class))
            }
            Trouble::Told { .. } => !self.code().is_none_or(|code| code.starts_with("57P")),
            Trouble::Value { .. } | Trouble::Contended(_) => true,
        }
    }

    /// Whether another connection may do what this one cannot, though it is in step.
    pub(super) fn is_of_connection(&self) -> bool {
        let own = [
            // It leads to a server that cannot be written to.
            "25006",
            // Its lane was closed, or has been swept after a day without use.
            LANE_CLOSED,
            // Its statements are not there: the session is another, or a table has changed.
            "26000",
            "42P05",
            "0A000",
        ];
        self.code().is_some_and(|code| own.contains(&code))
    }

    /// Whether to go on with another connection.
    pub(super) fn ends_connection(&self) -> bool {
        !self.spares_connection() || self.is_of_connection()
    }

    /// The one table of what PostgreSQL says. What the engine does about each is in
    /// [`StoreError::reaction`].
    pub(super) fn into_store_error(self, store: &str) -> StoreError {
        let store = store.to_owned();
        let source = self.to_string().into();
        let Some(code) = self.code() else {
            return match self {
                Trouble::Value { .. } => StoreError::Corrupt { store, source },
                Trouble::Contended(_) => StoreError::Busy { store, source },
                Trouble::Sql(_) | Trouble::Told { .. } | Trouble::Lost(_) => {
                    StoreError::Io { store, source }
                }
            };
        };
        match code {
            // Our own: others were in the way for as long as it was tried.
            FENCED | LANE_CLOSED | CHANGED => StoreError::Busy { store, source },
            // Locks, and rows that others keep inserting.
            "55P03" | "23505" => StoreError::Busy { store, source },
            // The disk or a quota is full.
            "53100" | "53400" => StoreError::Full { store, source },
            // It can be reached and not be written to: a standby, or a switch of its owner's.
            "25006" => StoreError::Io { store, source },
            // Statements that are not there any more.
            "26000" | "42P05" => StoreError::Io {
                store,
                source: format!("{self}; if a pooler is in between, say `pooled=true` in the URL")
                    .into(),
            },
            // The role or the database is not there, or may not.
            "28000" | "28P01" | "3D000" | "3F000" => StoreError::CannotOpen { store, source },
            "42501" => StoreError::ReadOnly { store, source },
            // A table or a column that is not there any more.
            "42P01" | "42703" | "42883" => StoreError::Foreign { store, what: source.to_string() },
            "XX001" | "XX002" => StoreError::Corrupt { store, source },
            _ => match code.get(..2).unwrap_or_default() {
                // Serialization failures, deadlocks, a snapshot that is too old.
                "40" | "72" => StoreError::Busy { store, source },
                // No connection, no room for another, no memory; it starts, stops, or was told to
                // cancel; a transaction that was left idle; the system beneath it, or itself.
                "08" | "25" | "53" | "55" | "57" | "58" | "F0" | "XX" => {
                    StoreError::Io { store, source }
                }
                // A value that cannot be stored: a text with a zero byte, a row that is too large.
                _ => StoreError::Rejected { store, source },
            },
        }
    }
}

impl fmt::Display for Trouble {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Trouble::Sql(error) => match error.as_db_error() {
                Some(said) => write!(f, "{} ({})", said.message(), said.code().code()),
                None => write!(f, "{error}"),
            },
            Trouble::Told { code, text } => write!(f, "{text} ({code})"),
            Trouble::Lost(what) => f.write_str(what),
            Trouble::Value { column, found } => {
                write!(f, "`{column}` holds what it cannot: {found}")
            }
            Trouble::Contended(lock) => write!(f, "others hold {lock:?}"),
        }
    }
}

impl From<BadValue> for Trouble {
    fn from(BadValue { column, found }: BadValue) -> Trouble {
        Trouble::Value { column, found }
    }
}

impl From<tokio_postgres::Error> for Trouble {
    fn from(error: tokio_postgres::Error) -> Trouble {
        if error.code().is_some() {
            return Trouble::Sql(Box::new(error));
        }
        // Everything else is the connection's: a closed socket, a protocol that is out of step, a
        // certificate that is not taken, a parameter that could not be sent.
        let mut text = error.to_string();
        let mut cause = std::error::Error::source(&error);
        while let Some(inner) = cause {
            text = format!("{text}: {inner}");
            cause = inner.source();
        }
        Trouble::Lost(text)
    }
}
