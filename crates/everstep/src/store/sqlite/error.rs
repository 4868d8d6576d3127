//! What SQLite says, as a [`StoreError`]. The one place where its codes are read.

use rusqlite::{Error, ErrorCode};

use super::moved::MOVED;
use crate::store::StoreError;

/// The error of the store called `store`, when something other than a commit failed.
pub(crate) fn store_error(store: &str, error: Error) -> StoreError {
    let Some(code) = error.sqlite_error_code() else {
        return without_code(store, error);
    };
    let store = store.to_owned();
    match code {
        ErrorCode::DatabaseBusy
        | ErrorCode::DatabaseLocked
        | ErrorCode::FileLockingProtocolFailed => {
            StoreError::Busy { store, source: Box::new(error) }
        }
        ErrorCode::DiskFull => StoreError::Full { store, source: Box::new(error) },
        // Memory comes back as a disk does. An interrupted or aborted statement is rolled back, and
        // a changed schema is read again.
        ErrorCode::SystemIoFailure
        | ErrorCode::OutOfMemory
        | ErrorCode::OperationInterrupted
        | ErrorCode::OperationAborted
        | ErrorCode::SchemaChanged => StoreError::Io { store, source: Box::new(error) },
        ErrorCode::DatabaseCorrupt => StoreError::Corrupt { store, source: Box::new(error) },
        ErrorCode::NotADatabase => {
            StoreError::Foreign { store, what: "it is not an SQLite file".to_owned() }
        }
        ErrorCode::ReadOnly | ErrorCode::PermissionDenied => {
            StoreError::ReadOnly { store, source: Box::new(error) }
        }
        ErrorCode::CannotOpen => StoreError::CannotOpen { store, source: Box::new(error) },
        ErrorCode::ConstraintViolation if moved_to(&error).is_some() => {
            let to = moved_to(&error).unwrap_or_default().to_owned();
            StoreError::Moved { store, to }
        }
        ErrorCode::ConstraintViolation
        | ErrorCode::TooBig
        | ErrorCode::TypeMismatch
        | ErrorCode::ParameterOutOfRange => StoreError::Rejected { store, source: Box::new(error) },
        // These cannot come from our statements unless the file's tables are not ours any more.
        ErrorCode::InternalMalfunction
        | ErrorCode::NotFound
        | ErrorCode::ApiMisuse
        | ErrorCode::NoLargeFileSupport
        | ErrorCode::AuthorizationForStatementDenied
        | ErrorCode::Unknown => StoreError::Corrupt { store, source: Box::new(error) },
        // A code of a later SQLite.
        _ => StoreError::Io { store, source: Box::new(error) },
    }
}

/// Where the file was moved, if that is what a trigger of its says.
fn moved_to(error: &Error) -> Option<&str> {
    match error {
        Error::SqliteFailure(_, Some(text)) => text.strip_prefix(MOVED),
        _ => None,
    }
}

/// Errors of the binding itself: a value that we read is not what we wrote.
fn without_code(store: &str, error: Error) -> StoreError {
    let store = store.to_owned();
    match error {
        Error::ToSqlConversionFailure(_) | Error::NulError(_) | Error::InvalidPath(_) => {
            StoreError::Rejected { store, source: Box::new(error) }
        }
        _ => StoreError::Corrupt { store, source: Box::new(error) },
    }
}

/// Whether the write lock is held by somebody else.
pub(crate) fn is_busy(error: &Error) -> bool {
    matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
}

#[cfg(test)]
mod tests {
    use rusqlite::ffi;

    use super::*;
    use crate::store::Reaction;

    #[test]
    fn every_code_has_a_reaction_that_fits() {
        let reaction = |code| {
            let error = Error::SqliteFailure(ffi::Error::new(code), None);
            store_error("SQLite file `app.db`", error).reaction()
        };
        for code in [
            ffi::SQLITE_BUSY,
            ffi::SQLITE_BUSY_SNAPSHOT,
            ffi::SQLITE_LOCKED,
            ffi::SQLITE_FULL,
            ffi::SQLITE_IOERR,
            ffi::SQLITE_IOERR_FSYNC,
            ffi::SQLITE_IOERR_SHMSIZE,
            ffi::SQLITE_NOMEM,
        ] {
            assert_eq!(reaction(code), Reaction::Retry, "{code}");
        }
        for code in [ffi::SQLITE_CONSTRAINT_PRIMARYKEY, ffi::SQLITE_TOOBIG, ffi::SQLITE_MISMATCH] {
            assert_eq!(reaction(code), Reaction::Bisect, "{code}");
        }
        for code in [
            ffi::SQLITE_CORRUPT,
            ffi::SQLITE_NOTADB,
            ffi::SQLITE_READONLY,
            ffi::SQLITE_PERM,
            ffi::SQLITE_CANTOPEN,
            ffi::SQLITE_ERROR,
        ] {
            assert_eq!(reaction(code), Reaction::Stop, "{code}");
        }
    }
}
