//! `runs watch`: a run until it ends.

use std::{collections::HashMap, time::Duration};

use everstep::{EntryStatus, RunHandle, RunInfo, RunStatus};
use everstep_server::json;
use serde_json::json;

use super::show::{in_order, status_word};
use crate::{
    Exit,
    args::now,
    output::{self, Shown, is_json, plain},
    trouble::{Outcome, Trouble},
};

/// How often it is looked at.
const PACE: Duration = Duration::from_millis(200);

/// Prints what changes, one line each, until the run has ended. As JSON these are lines with an `entry`
/// or a `run`; the last one is the run as it has ended.
pub(super) async fn run(run: RunHandle) -> Outcome {
    let mut seen = HashMap::new();
    let mut last = None;
    loop {
        // First the run, so that nothing of its history is missing when it is seen to have ended.
        let info = run.info().await?;
        tell_history(&run, &mut seen).await?;
        if info.status.is_terminal() {
            return Ok(ended(info));
        }
        if last != Some(info.status) {
            last = Some(info.status);
            let text = format!("{}  {}\n", now(), info.status);
            match is_json() {
                true => Shown::Json(json!({"run": json::run(info)})),
                false => Shown::Text(text),
            }
            .print_one_of_many();
        }
        tokio::time::sleep(PACE).await;
    }
}

type Seen = HashMap<String, (EntryStatus, u32)>;

async fn tell_history(run: &RunHandle, seen: &mut Seen) -> Result<(), Trouble> {
    let mut history = run.history().await?;
    in_order(&mut history);
    for entry in history {
        let state = (entry.status, entry.attempts);
        if seen.insert(entry.location.clone(), state) == Some(state) {
            continue;
        }
        if is_json() {
            Shown::Json(json!({"entry": json::entry(entry)})).print_one_of_many();
            continue;
        }
        let why = match entry.errors.last() {
            Some(error) if entry.value.is_none() => format!(": {}", error.message),
            _ => String::new(),
        };
        let (location, status) = (&entry.location, status_word(entry.status));
        let failed_at = entry.errors.last().map(|error| error.at);
        let at = entry.completed_at.or(failed_at).or(entry.started_at);
        let at = at.unwrap_or(entry.created_at);
        let line = plain(&format!("{at}  {location}  {status}{why}"));
        Shown::Text(format!("{line}\n")).print_one_of_many();
    }
    Ok(())
}

/// Prints how a run has ended, and fails if it has.
pub(crate) fn ended(info: RunInfo) -> Exit {
    let exit = match info.status {
        RunStatus::Completed => Exit::Done,
        _ => Exit::Failed,
    };
    if is_json() {
        Shown::Json(json!({"run": json::run(info)})).print_one_of_many();
        return exit;
    }
    match (&info.output, &info.failure) {
        (Some(output), _) => output::print(&format!("{output:#}\n")),
        (None, Some(failure)) => {
            output::note(&format!("run {} failed: {}", info.id, failure.full()));
        }
        (None, None) => output::note(&format!("run {} was {}", info.id, info.status)),
    }
    exit
}
