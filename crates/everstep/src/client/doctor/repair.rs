//! Mends what the doctor has found, after a backup of the rows.

use std::{
    fs::OpenOptions,
    io::{self, Write as _},
    path::{Path, PathBuf},
};

use super::{Cure, DoctorReport, Finding};
use crate::{
    client::{Client, ClientError},
    run_id::{RunId, RunNo},
    store::{
        Store, StoreError,
        doctor::{Ask, Cell, Facts, Mend, RULES},
    },
};

/// What a repair has done.
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Repaired {
    /// What was mended.
    pub mended: Vec<Finding>,
    /// What was not: it cannot be mended safely, or was no longer so.
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
        let written = self
            .read(move |_| Ok(write(&into, &store, &at, &saved)))
            .await?;
        written.map_err(|source| RepairError::Backup { path, source })?;
        let mut repaired = Repaired {
            mended: Vec::new(),
            left: Vec::new(),
            saved: count,
        };
        for finding in &report.findings {
            let list = match finding.repairable && self.cure(&finding.cure).await? {
                true => &mut repaired.mended,
                false => &mut repaired.left,
            };
            list.push(finding.clone());
        }
        Ok(repaired)
    }

    /// Mends one thing; `false` if it was no longer so.
    async fn cure(&self, cure: &Cure) -> Result<bool, ClientError> {
        let mend = match cure.clone() {
            Cure::None => return Ok(false),
            Cure::LoadAnew { run, entries } => return self.load_anew(run, entries).await,
            Cure::Schedule(name) => {
                let schedule = self.schedule_named(name);
                return Ok(schedule.pause().await? && schedule.resume().await?);
            }
            Cure::Row { rule, row } => Mend::Row {
                rule,
                row,
                now: self.shared.now(),
            },
            Cure::ForgetNumber(run) => Mend::ForgetNumber(run),
            Cure::Shard { run, shard } => Mend::Shard { run, shard },
        };
        let changed = self.read(move |store| store.mend(&mend)).await?;
        Ok(changed > 0)
    }

    /// Has a run loaded anew, without these entries. Its owner puts it away when it is paused, so
    /// nobody goes on from what was in memory.
    async fn load_anew(&self, run: RunId, entries: Vec<Vec<u8>>) -> Result<bool, ClientError> {
        let handle = self.run::<()>(run);
        match handle.pause().await {
            Ok(()) => {}
            // It has ended, is gone or is being cancelled: then it has moved.
            Err(ClientError::Store(error)) => return Err(ClientError::Store(error)),
            Err(_) => return Ok(false),
        }
        for key in entries {
            let run = run.no();
            let mend = Mend::RemoveEntry { run, key };
            self.read(move |store| store.mend(&mend)).await?;
        }
        handle.resume().await?;
        Ok(true)
    }
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
            Cure::ForgetNumber(run) | Cure::Shard { run, .. } => {
                save_run(store, *run, &mut lines)?;
            }
            Cure::LoadAnew { run, entries } => {
                save_run(store, run.no(), &mut lines)?;
                for key in entries {
                    let (run, key) = (run.no(), key.clone());
                    if let Facts::Saved(rows) = store.examine(&Ask::Entry { run, key })? {
                        lines.extend(rows);
                    }
                }
            }
            Cure::Schedule(name) => {
                let row = serde_json::json!({ "name": name, "next_at": null });
                let line = serde_json::json!({ "table": "schedules", "row": row });
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
    match RULES.iter().position(|rule| rule.table == "runs") {
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

/// Writes the backup, which is on the disk when this returns.
fn write(path: &Path, store: &str, at: &str, lines: &[String]) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).open(path)?;
    let head = serde_json::json!({ "everstep_backup": 1, "store": store, "at": at });
    let mut text = format!("{head}\n");
    for line in lines {
        text.push_str(line);
        text.push('\n');
    }
    file.write_all(text.as_bytes())?;
    file.sync_all()
}
