//! `export`, `import` and `migrate`: runs that go elsewhere.

use std::path::{Path, PathBuf};

use clap::Args;
use everstep::{Client, ClientError, MigrateProgress, RunHandle, RunId};
use serde_json::json;

use crate::{
    Exit,
    args::{RunRef, Which},
    audit::Change,
    output::{self, confirm, is_json, many, say},
    progress::Progress,
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    #[arg(required_unless_present = "into", conflicts_with = "into")]
    run: Option<RunRef>,
    /// The file.
    #[arg(required_unless_present = "into")]
    file: Option<PathBuf>,
    /// Instead of one run, all that are meant by the filters, each as `<id>.everstep` in this directory.
    #[arg(long, value_name = "DIRECTORY")]
    into: Option<PathBuf>,
    #[command(flatten)]
    which: Which,
}

pub(crate) async fn export(client: &Client, said: Export) -> Outcome {
    match (said.run, said.file, said.into) {
        (Some(run), Some(file), _) => {
            let run = run.find(client).await?;
            let bytes = export_one(&run, &file).await?;
            say(
                json!({"run": run.id().to_string(), "bytes": bytes}),
                &format!("{}: {bytes} bytes", file.display()),
            );
            Ok(Exit::Done)
        }
        (_, _, Some(directory)) => export_many(client, &said.which, &directory).await,
        _ => Err(Trouble::usage("say which run, and the file to write")),
    }
}

async fn export_one(run: &RunHandle, file: &Path) -> Result<usize, Trouble> {
    let bytes = run.export().await?;
    std::fs::write(file, &bytes).map_err(|error| file_trouble(file, &error))?;
    Ok(bytes.len())
}

fn file_trouble(file: &Path, error: &std::io::Error) -> Trouble {
    Trouble::new(Exit::Failed, format!("{}: {error}", file.display()))
}

async fn export_many(client: &Client, which: &Which, directory: &Path) -> Outcome {
    std::fs::create_dir_all(directory).map_err(|error| file_trouble(directory, &error))?;
    let met = client.count().filter(which.filter()).await?;
    let progress = Progress::of(met, "Export");
    let (mut runs, mut bytes) = (0u64, 0);
    let mut after: Option<RunId> = None;
    loop {
        let mut page = client.list().filter(which.filter()).limit(200);
        if let Some(after) = after {
            page = page.after(after);
        }
        let page = page.await?;
        for info in page.runs {
            let file = directory.join(format!("{}.everstep", info.id));
            bytes += export_one(&client.run(info.id), &file).await?;
            runs += 1;
            progress.step();
        }
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    progress.end();
    say(json!({"runs": runs, "bytes": bytes}), &format!("{}, {bytes} bytes", many(runs, "run")));
    Ok(Exit::Done)
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The files.
    #[arg(required = true)]
    files: Vec<PathBuf>,
}

/// Takes up each file, whatever becomes of the others, and ends with the first trouble.
pub(crate) async fn import(client: &Client, said: Import) -> Outcome {
    let progress = Progress::of(said.files.len() as u64, "Import");
    let mut exit = Exit::Done;
    let (mut imported, mut failed) = (Vec::new(), Vec::new());
    for file in &said.files {
        let taken = async {
            let bytes = std::fs::read(file).map_err(|error| file_trouble(file, &error))?;
            let change = Change::new("import_run", file.display());
            let run = change.made(client, async || {
                let taken = client.import(bytes).await;
                taken.map_err(|error| match error {
                    ClientError::Decode { problem, .. } => {
                        let text = format!("{}: {problem}; nothing was changed", file.display());
                        Trouble::new(Exit::Failed, text)
                    }
                    other => other.into(),
                })
            });
            Ok::<_, Trouble>(run.await?.id().to_string())
        };
        match taken.await {
            Ok(id) if is_json() => imported.push(id),
            Ok(id) => output::print(&format!("{id}\n")),
            Err(trouble) => {
                if exit == Exit::Done {
                    exit = trouble.exit();
                }
                match is_json() {
                    true => {
                        let file = file.display().to_string();
                        failed.push(json!({"file": file, "error": trouble.text()}));
                    }
                    false => trouble.print(),
                }
            }
        }
        progress.step();
    }
    progress.end();
    if is_json() {
        say(json!({"imported": imported, "failed": failed}), "");
    }
    Ok(exit)
}

#[derive(Debug, Args)]
pub(crate) struct Migrate {
    /// The SQLite file. It is closed for good at the end.
    from: PathBuf,
    /// The URL of the PostgreSQL database.
    to: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

pub(crate) async fn migrate(said: Migrate) -> Outcome {
    let question = format!(
        "Move everything in {} to PostgreSQL, and close the file for good?",
        said.from.display()
    );
    confirm(&question, said.yes)?;
    let progress = Progress::of(0, "Copy");
    let moved = everstep::migrate(&said.from, &said.to)
        .progress(move |now: MigrateProgress| {
            progress.total(now.total);
            progress.is(now.rows);
        })
        .await?;
    let (from, to, rows) = (moved.from, moved.to, moved.rows);
    // The log has moved too, and the file is closed: where everything is now, it is said who did it.
    if rows > 0 {
        let client = Client::open(&said.to).await?;
        let detail = format!("from {from}, {}", many(rows, "row"));
        let change = Change::new("migrate", &to).detail(detail);
        change.made(&client, async || Ok(())).await?;
    }
    let text = match rows {
        0 => format!("everything is in {to} already; {from} is closed"),
        rows => format!("{} moved to {to}; {from} is closed", many(rows, "row")),
    };
    say(json!({"from": from, "to": to, "rows": rows}), &text);
    Ok(Exit::Done)
}
