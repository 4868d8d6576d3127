//! `backup` and `restore`: copies of a SQLite file.

use std::path::{Path, PathBuf};

use clap::Args;
use everstep::{BackedUp, BackupError, BackupProgress, Client};
use serde_json::json;

use crate::{
    Exit,
    output::{many, say},
    progress::Progress,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
#[command(
    after_help = "Engines and clients may go on meanwhile. The copy holds what was committed at \
    one instant; work that is done later is done again after a restore. On PostgreSQL use \
    `pg_dump --schema=everstep`, or continuous archiving."
)]
pub(crate) struct Backup {
    /// The file of the backup, which must not exist.
    to: PathBuf,
}

#[derive(Debug, Args)]
#[command(
    after_help = "Stop the processes that use the file, and move the old one away first, with \
    its `-wal` and `-shm`."
)]
pub(crate) struct Restore {
    /// A backup that `everstep backup` has made.
    backup: PathBuf,
    /// The SQLite file to make of it, which must not exist.
    #[arg(long, value_name = "FILE")]
    to: PathBuf,
}

/// Refuses a URL before anybody connects to it.
pub(crate) fn check(db: Option<&Path>) -> Result<(), Trouble> {
    let is_url = db.is_some_and(|db| db.to_string_lossy().contains("://"));
    match is_url {
        true => {
            Err(BackupError::Unsupported { store: "the PostgreSQL database".to_owned() }.into())
        }
        false => Ok(()),
    }
}

pub(crate) async fn backup(client: &Client, said: Backup) -> Outcome {
    let bar = Progress::of(0, "Copy");
    let made = client.backup(&said.to).progress(shown_on(bar)).await?;
    Ok(report("backup", &made))
}

pub(crate) async fn restore(said: Restore) -> Outcome {
    let bar = Progress::of(0, "Copy");
    let restoring = everstep::restore(&said.backup, &said.to);
    let made = restoring.progress(shown_on(bar)).await?;
    Ok(report("restored", &made))
}

fn shown_on(bar: Progress) -> impl FnMut(BackupProgress) + Send + 'static {
    move |at| {
        bar.total(at.total);
        bar.is(at.copied);
        if at.copied == at.total {
            bar.message("Check");
        }
    }
}

fn report(what: &str, made: &BackedUp) -> Exit {
    let findings = made.doctor.as_ref().map_or(0, |it| it.findings.len()) as u64;
    let runs = made.doctor.as_ref().map(|report| report.checked.runs);
    let path = made.path.display().to_string();
    let checked = match (&made.doctor, runs) {
        (Some(_), Some(runs)) if findings == 0 => {
            format!("all is well with its {}", many(runs, "run"))
        }
        (Some(_), _) => format!("{}: `doctor --db {path}` lists them", many(findings, "finding")),
        _ => "it has an older format, which the next engine migrates".to_owned(),
    };
    say(
        json!({what: path, "bytes": made.bytes, "runs": runs, "findings": findings}),
        &format!("{what}: {path}, {} bytes; {checked}", made.bytes),
    );
    match findings {
        0 => Exit::Done,
        _ => Exit::Failed,
    }
}

impl From<BackupError> for Trouble {
    fn from(error: BackupError) -> Trouble {
        let exit = match error {
            BackupError::Store(error) => return error.into(),
            BackupError::Client(error) => return error.into(),
            BackupError::Unsupported { .. } => Exit::Usage,
            BackupError::Exists { .. } | BackupError::InUse { .. } => Exit::Conflict,
            BackupError::File { ref source, .. }
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Exit::NotFound
            }
            _ => Exit::Failed,
        };
        Trouble::new(exit, Trouble::of(error).text())
    }
}
