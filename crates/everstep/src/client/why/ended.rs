//! How a run has ended: what failed and where, who cancelled it, and what was rolled back.

use crate::{
    commit::RunStatus,
    error::{Failure, FailureKind, decode_failure},
    history::{EntryStatus, decode_entry},
    location::keys,
    store::{RunRow, Store, StoreError},
};

/// How many compensations are looked at, and how many of them are named.
const ROLLBACKS_READ: usize = 1_000;
const ROLLBACKS_NAMED: usize = 5;

/// How many entries of the audit log are searched for the cancel of a run.
const AUDIT_SEARCHED: usize = 500;

/// How a run that has ended did so, without its name.
pub(super) fn how(store: &dyn Store, row: &RunRow) -> Result<String, StoreError> {
    let at = row.finished_at.unwrap_or(row.updated_at);
    let mut text = match row.status {
        RunStatus::Failed => format!("failed at {at}: {}", failure(row)),
        RunStatus::Cancelled => format!("was cancelled at {at}{}", canceller(store, row)?),
        status => return Ok(format!("has ended ({status}) at {at}")),
    };
    if row.attempts > 1 {
        text += &format!("; this was attempt {} of the run", row.attempts);
    }
    text += &rolled_back(store, row)?;
    Ok(text)
}

fn failure(row: &RunRow) -> String {
    let failure = row.error.as_deref().map(decode_failure);
    match failure {
        Some(Ok(failure)) => in_words(&failure),
        Some(Err(error)) => format!("its error cannot be read: {error}"),
        None => "no error is stored with it".to_owned(),
    }
}

/// Where it failed, after how many attempts, and the error with its causes.
fn in_words(failure: &Failure) -> String {
    let error = failure.full();
    let Some(location) = &failure.location else {
        return match failure.kind {
            FailureKind::Error | FailureKind::Fatal | FailureKind::Rollback => {
                format!("the code of the workflow gave an error: {error}")
            }
            FailureKind::Panic => format!("the code of the workflow panicked: {error}"),
            _ => error,
        };
    };
    match failure.attempts {
        0 => format!("`{location}` failed: {error}"),
        1 => format!("`{location}` failed after 1 attempt: {error}"),
        attempts => format!("`{location}` failed after {attempts} attempts: {error}"),
    }
}

/// Who requested the cancel and when, if the newest entries of the audit log say so.
fn canceller(store: &dyn Store, row: &RunRow) -> Result<String, StoreError> {
    let run = row.id.to_string();
    let entries = store.audits(None, AUDIT_SEARCHED)?;
    let cancel = entries.into_iter().find(|entry| {
        let is_done = entry.outcome.as_deref().is_some_and(|it| it == "done");
        entry.begun.action == "cancel_run" && entry.begun.target == run && is_done
    });
    Ok(cancel.map_or_else(String::new, |entry| {
        format!(", as `{}` requested at {}", entry.begun.who, entry.begun.at)
    }))
}

/// Which steps were rolled back, and whose rollback did not complete.
fn rolled_back(store: &dyn Store, row: &RunRow) -> Result<String, StoreError> {
    // The first key after everything that is not a rollback.
    let before = [keys::ROLLBACKS[0], keys::ROLLBACKS[1] - 1, 0xFF];
    let entries = store.history(row.id.no(), Some(&before), ROLLBACKS_READ)?;
    let (mut done, mut open) = (Vec::new(), Vec::new());
    for put in entries {
        let Some(segments) = put.key.strip_prefix(keys::ROLLBACKS) else {
            break;
        };
        let step = keys::describe(&[keys::HISTORY, segments].concat());
        match decode_entry(&put.value) {
            Ok(entry) if entry.status == EntryStatus::Completed => done.push(step),
            _ => open.push(step),
        }
    }
    let mut text = String::new();
    if !done.is_empty() {
        text += &format!("; rolled back: {}", named(&done));
    }
    if !open.is_empty() {
        text += &format!("; not rolled back: {}", named(&open));
    }
    Ok(text)
}

fn named(steps: &[String]) -> String {
    let mut names: Vec<String> =
        steps.iter().take(ROLLBACKS_NAMED).map(|step| format!("`{step}`")).collect();
    if let Some(more) = steps.len().checked_sub(ROLLBACKS_NAMED).filter(|n| *n > 0) {
        names.push(format!("{more} more"));
    }
    names.join(", ")
}
