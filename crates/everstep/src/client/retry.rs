//! Trying a failed run again.

use super::{ClientError, RunHandle};
use crate::{
    commit::{Outcome, Reopen, RunStatus, Target, Write},
    location::keys,
    run::decode_origins,
    run_id::RunId,
    store::{RunRow, Store, StoreError},
};

/// Why a run cannot be retried.
pub(super) fn wrong(row: &RunRow, hint: &'static str) -> ClientError {
    ClientError::WrongStatus { run: row.id.to_string(), status: row.status, act: "retried", hint }
}

pub(super) const MEANWHILE: &str = "something else has happened to it meanwhile; look at it again";

/// The write by which a run is tried again, with its row; or why it is not.
pub(super) fn reopening(
    store: &dyn Store,
    id: RunId,
) -> Result<Result<(RunRow, Reopen), ClientError>, StoreError> {
    let Some(row) = store.run(&Target::Id(id))? else {
        return Ok(Err(ClientError::unknown_run(id)));
    };
    if row.status != RunStatus::Failed {
        return Ok(Err(wrong(&row, "only a failed run can be retried")));
    }
    // The first key after everything that was set aside.
    let origins = keys::failure_origins();
    let before = [origins[0], origins[1] - 1, 0xFF];
    let next = store.history(id.no(), Some(&before), 1)?;
    let found = next.first().filter(|put| put.key == origins);
    let found = found.and_then(|put| decode_origins(&put.value));
    if found.is_none_or(|origins| origins.keys.is_empty()) {
        return Ok(Err(wrong(
            &row,
            "its error was made by the workflow's own code, so it would be made again; deploy \
             code that does not, then `fork` it from a step before the error, or start a new run",
        )));
    }
    let reopen = Reopen {
        run: id.no(),
        status: RunStatus::Failed,
        attempts: row.attempts,
        puts: Vec::new(),
        deletes: Vec::new(),
    };
    Ok(Ok((row, reopen)))
}

impl<O> RunHandle<O> {
    /// Tries a failed run again: only what its error came from is made fresh, and what was rolled
    /// back; completed steps before that stand.
    ///
    /// # Errors
    ///
    /// If it has not failed, or failed by an error that workflow code made itself: trying that
    /// again would only make it again. [`fork`](RunHandle::fork) goes on from an earlier step.
    pub async fn retry(&self) -> Result<(), ClientError> {
        let id = self.id;
        let found = self.client.read(move |store| reopening(store, id)).await?;
        let (row, reopen) = found?;
        match self.client.write(Write::Reopen(Box::new(reopen))).await? {
            Outcome::Committed(_) => Ok(()),
            _ => Err(wrong(&row, MEANWHILE)),
        }
    }
}
