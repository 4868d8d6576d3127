//! Mends what the doctor has found, after a backup of the rows.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::{Cure, DoctorReport, Finding};
use crate::{
    client::{Client, ClientError},
    commit::{Batch, Cell, Control, Controlled, Mend, Notice, Outcome, Write},
    run_id::{RunId, RunNo},
    store::{
        Store, StoreError,
        doctor::{Ask, Facts, RULES},
    },
};

/// What a repair has done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// What was mended.
    pub mended: Vec<Finding>,
    /// What was not: it cannot be mended safely, was no longer so, or others were at it all the time,
    /// which it then says.
    pub left: Vec<Finding>,
    /// How many rows are in the backup.
    pub saved: usize,
}

/// Why nothing more was mended.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RepairError {
    /// The backup cannot be written; nothing was changed.
    #[error(
        "the backup `{}` cannot be written; nothing was changed: give the path of a file that does \
             not exist yet, in a directory that does", .path.display()
    )]
    Backup {
        /// Where.
        path: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// Something was paused to be mended, and could not be resumed.
    #[error(
        "{what} was paused to be mended and could not be resumed, so it stands still: resume it when \
         the store can be used again"
    )]
    Paused {
        /// The run or the schedule, in words.
        what: String,
        /// Why.
        #[source]
        source: ClientError,
    },
    /// The store could not be used. What was mended until then is mended.
    #[error(transparent)]
    Client(#[from] ClientError),
}

impl Client {
    /// Mends what [`doctor`](Client::doctor) has found and can be mended safely: rows that belong to
    /// nothing are deleted, runs that nothing would wake are made due, counts are taken anew, what
    /// others lead to is put back. Everything else is left, and each finding says what to do.
    ///
    /// All rows that are about to change are written to a new file first, a line of JSON for each,
    /// and the file is on the disk before the first change. What is no longer so when its turn comes
    /// is left alone. It may be called while engines work on the store. Look again afterwards: one
    /// thing may have hidden another.
    ///
    /// # Errors
    ///
    /// [`RepairError::Backup`] if there is a file at that path, or it cannot be written: nothing was
    /// changed then.
    pub async fn repair(
        &self,
        report: &DoctorReport,
        backup: impl Into<PathBuf>,
    ) -> Result<Repaired, RepairError> {
        let path = backup.into();
        let cures: Vec<Cure> = repairable(report).map(|it| it.cure.clone()).collect();
        let saved = self.read(move |store| save_all(store, &cures)).await?;
        let count = saved.len();
        let into = path.clone();
        let store = self.shared.store.describe();
        let at = self.shared.now().to_string();
        let written = self.read(move |_| Ok(write(&into, &store, &at, &saved))).await?;
        written.map_err(|source| RepairError::Backup { path, source })?;
        let mut repaired = Repaired { mended: Vec::new(), left: Vec::new(), saved: count };
        for finding in &report.findings {
            let mut finding = finding.clone();
            let cured = match finding.repairable {
                true => self.cure(&finding).await,
                false => Ok(false),
            };
            match cured {
                Ok(true) => repaired.mended.push(finding),
                Ok(false) => repaired.left.push(finding),
                Err(RepairError::Client(ClientError::Store(error))) if is_busy(&error) => {
                    finding.what += " (it was not mended, since others were at it all the time: repair it again)";
                    repaired.left.push(finding);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(repaired)
    }

    /// Mends one thing; `false` if it was no longer so.
    async fn cure(&self, finding: &Finding) -> Result<bool, RepairError> {
        let mend = match finding.cure.clone() {
            Cure::None => return Ok(false),
            // Whether it is still so is judged in the transaction that mends it.
            Cure::Row { rule, row } => Mend::Row { rule, row },
            _ if !self.is_still_so(finding).await? => return Ok(false),
            Cure::LoadAnew { run, entries } => return self.load_anew(run, entries).await,
            Cure::Schedule(name) => return self.set_going(name).await,
            Cure::ForgetNumber { run, last_number } => Mend::ForgetNumber { run, last_number },
            Cure::Shard { run, from, to } => Mend::Shard { run, from, to },
        };
        Ok(self.mend(mend).await? > 0)
    }

    /// How many rows were mended. Those whom it lets go on are told.
    async fn mend(&self, mend: Mend) -> Result<u64, ClientError> {
        let mut runs = match &mend {
            Mend::Row { rule, row } => match (RULES[*rule].table, row.first()) {
                ("everstep_runs", Some(Cell::Int(no))) => vec![RunNo(*no)],
                _ => Vec::new(),
            },
            Mend::RemoveEntry { run, .. }
            | Mend::ForgetNumber { run, .. }
            | Mend::Shard { run, .. } => vec![*run],
        };
        let now = self.shared.now();
        let applied = self.read(move |store| {
            let writes = vec![Write::Mend(Box::new(mend))];
            let fence = None;
            store.commit(&Batch { fence, now, writes })
        });
        let applied = applied.await?;
        let Some(Outcome::Mended(changed @ 1..)) = applied.outcomes.first() else {
            return Ok(0);
        };
        runs.extend(applied.notices.iter().filter_map(|notice| match notice {
            Notice::Inbox { run, .. } | Notice::Due { run, .. } => Some(run.no()),
            _ => None,
        }));
        self.shared.due.poke(false);
        if !runs.is_empty() {
            // The owner may be this process.
            self.shared.store.wake_others(None, &runs);
        }
        Ok(*changed)
    }

    /// Has a run loaded anew, without these entries. Its owner puts it away when it is paused, so
    /// nobody goes on from what was in memory. A run that somebody else has paused stays so.
    async fn load_anew(
        &self,
        run: RunId,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<bool, RepairError> {
        let removed = match self.control(run, Control::Pause).await {
            Ok(Controlled::Done { .. }) => self.remove_entries(run.no(), entries).await,
            // It has ended, is gone, is being cancelled or was paused: then it has moved.
            Ok(_) | Err(ClientError::UnknownRun { .. }) => return Ok(false),
            Err(error) if may_have_landed(&error) => Err(error),
            Err(error) => return Err(error.into()),
        };
        let handle = self.run::<()>(run);
        let resumed = match handle.resume().await {
            // A second time, since it would stand still for ever.
            Err(ClientError::Store(_)) => handle.resume().await,
            resumed => resumed,
        };
        match resumed {
            // If somebody else has resumed, cancelled or deleted it, it goes its way.
            Ok(()) | Err(ClientError::WrongStatus { .. } | ClientError::UnknownRun { .. }) => {}
            Err(source) => {
                let what = format!("run {run}");
                return Err(RepairError::Paused { what, source });
            }
        }
        Ok(removed?)
    }

    /// Whether all of them were as they were seen, and have gone.
    async fn remove_entries(
        &self,
        run: RunNo,
        entries: Vec<(Vec<u8>, Vec<u8>)>,
    ) -> Result<bool, ClientError> {
        let mut all = true;
        for (key, value) in entries {
            all &= self.mend(Mend::RemoveEntry { run, key, value }).await? > 0;
        }
        Ok(all)
    }

    /// Pauses and resumes a schedule, which gives it its next tick. One that somebody else has paused
    /// stays so.
    async fn set_going(&self, name: String) -> Result<bool, RepairError> {
        let schedule = self.schedule_named(name.clone());
        let paused = match schedule.pause().await {
            Ok(true) => Ok(()),
            Ok(false) => return Ok(false),
            Err(error) if may_have_landed(&error) => Err(error),
            Err(error) => return Err(error.into()),
        };
        let resumed = match schedule.resume().await {
            Err(ClientError::Store(_)) => schedule.resume().await,
            resumed => resumed,
        };
        let resumed = resumed
            .map_err(|source| RepairError::Paused { what: format!("schedule `{name}`"), source })?;
        paused?;
        Ok(resumed)
    }
}

/// Whether a write that has failed may have been made all the same.
fn may_have_landed(error: &ClientError) -> bool {
    matches!(error, ClientError::Store(error) if matches!(**error, StoreError::UnknownOutcome { .. }))
}

/// Whether others were in the way, and only that.
fn is_busy(error: &StoreError) -> bool {
    matches!(error, StoreError::Busy { .. })
}

fn repairable(report: &DoctorReport) -> impl Iterator<Item = &Finding> {
    report.findings.iter().filter(|finding| finding.repairable)
}

/// All rows that the cures change, as they are now.
fn save_all(store: &dyn Store, cures: &[Cure]) -> Result<Vec<String>, StoreError> {
    let mut lines = Vec::new();
    for cure in cures {
        match cure {
            Cure::None => {}
            Cure::Row { rule, row } => save(store, *rule, row.clone(), &mut lines)?,
            Cure::ForgetNumber { run, .. } | Cure::Shard { run, .. } => {
                save_run(store, *run, &mut lines)?;
            }
            Cure::LoadAnew { run, entries } => {
                save_run(store, run.no(), &mut lines)?;
                for (key, _) in entries {
                    let (run, key) = (run.no(), key.clone());
                    if let Facts::Saved(rows) = store.examine(&Ask::Entry { run, key })? {
                        lines.extend(rows);
                    }
                }
            }
            Cure::Schedule(name) => {
                let row = serde_json::json!({ "name": name, "next_at": null });
                let line = serde_json::json!({ "table": "everstep_schedules", "row": row });
                lines.push(line.to_string());
            }
        }
    }
    // A row may be wrong in two ways.
    let mut seen = std::collections::HashSet::new();
    lines.retain(|line| seen.insert(line.clone()));
    Ok(lines)
}

fn save_run(store: &dyn Store, run: RunNo, lines: &mut Vec<String>) -> Result<(), StoreError> {
    match RULES.iter().position(|rule| rule.table == "everstep_runs") {
        Some(rule) => save(store, rule, vec![Cell::Int(run.0)], lines),
        None => Ok(()),
    }
}

fn save(
    store: &dyn Store,
    rule: usize,
    row: Vec<Cell>,
    lines: &mut Vec<String>,
) -> Result<(), StoreError> {
    if let Facts::Saved(rows) = store.examine(&Ask::Saved { rule, row })? {
        lines.extend(rows);
    }
    Ok(())
}

/// Writes the backup, which is on the disk when this returns, and is for its owner alone: payloads
/// are in it.
fn write(path: &Path, store: &str, at: &str, lines: &[String]) -> io::Result<()> {
    let mut options = OpenOptions::new();
    options.write(true).create_new(true);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    let mut file = options.open(path)?;
    let head = serde_json::json!({ "everstep_backup": 1, "store": store, "at": at });
    let mut text = format!("{head}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    // Its name is on the disk, too.
    #[cfg(unix)]
    {
        let parent = path.parent().filter(|it| !it.as_os_str().is_empty());
        std::fs::File::open(parent.unwrap_or(Path::new(".")))?.sync_all()?;
    }
    Ok(())
}
