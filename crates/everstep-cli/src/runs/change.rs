//! Changes of runs, one by one or all that have something in common.

use clap::Args;
use everstep::{BulkReport, Client, Filter, RunHandle};
use serde_json::json;

use crate::{
    Exit,
    args::{RunRef, Which},
    audit::Change,
    output::{self, confirm, is_json, many as so_many, note, plain},
    progress::Progress,
    trouble::{Outcome, Trouble},
};

/// Runs by name, or by what they have in common.
#[derive(Debug, Args)]
pub(crate) struct Many {
    /// The runs' ids, at least 8 digits of their beginnings or ends, or `workflow/key`.
    runs: Vec<RunRef>,
    #[command(flatten)]
    which: Which,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
    /// Only say how many runs are meant.
    #[arg(long, conflicts_with = "runs")]
    dry_run: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    pub(super) many: Many,
    /// Undo what they have done.
    #[arg(long)]
    pub(super) rollback: bool,
}

#[derive(Clone, Copy)]
pub(super) enum Act {
    Cancel,
    CancelWithRollback,
    Pause,
    Resume,
    Retry,
    Delete,
}

impl Act {
    /// What is asked for, and what is done then.
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Act::Cancel => ("Cancel", "cancelled"),
            Act::CancelWithRollback => ("Cancel and undo", "cancelled with rollback"),
            Act::Pause => ("Pause", "paused"),
            Act::Resume => ("Resume", "resumed"),
            Act::Retry => ("Retry", "tried again"),
            Act::Delete => ("Delete", "deleted"),
        }
    }

    /// As the audit log and the HTTP API call it, for one run and for many.
    fn actions(self) -> (&'static str, &'static str) {
        match self {
            Act::Cancel => ("cancel_run", "cancel"),
            Act::CancelWithRollback => ("cancel_run", "cancel_with_rollback"),
            Act::Pause => ("pause_run", "pause"),
            Act::Resume => ("resume_run", "resume"),
            Act::Retry => ("retry_run", "retry"),
            Act::Delete => ("delete_run", "delete"),
        }
    }

    async fn to(self, client: &Client, run: &RunHandle) -> Result<(), Trouble> {
        let mut change = Change::new(self.actions().0, run.id());
        if let Act::CancelWithRollback = self {
            change = change.detail(json!({"rollback": true}).to_string());
        }
        change.made(client, async || self.done_to(run).await).await
    }

    async fn done_to(self, run: &RunHandle) -> Result<(), Trouble> {
        match self {
            Act::Cancel => run.cancel().strict().await?,
            Act::CancelWithRollback => run.cancel().with_rollback().strict().await?,
            Act::Pause => {
                if !run.pause().await? {
                    let text = format!("run {} is paused already; nothing was done", run.id());
                    return Err(Trouble::new(Exit::Conflict, text));
                }
            }
            Act::Resume => run.resume().await?,
            Act::Retry => run.retry().await?,
            Act::Delete => run.delete().await?,
        }
        Ok(())
    }
}

pub(super) async fn run(client: &Client, many: Many, act: Act) -> Outcome {
    match (many.runs.is_empty(), many.which.is_everything()) {
        (true, true) => Err(Trouble::usage(
            "say which runs: by id, as `workflow/key`, or by --status, --workflow, --tag ..",
        )),
        (false, false) => Err(Trouble::usage(
            "say either which runs by name, or what they have in common, not both",
        )),
        (false, true) => change_each(client, many, act).await,
        (true, false) => change_all(client, many, act).await,
    }
}

/// Does it to each, whatever becomes of the others, and ends with the first trouble.
async fn change_each(client: &Client, many: Many, act: Act) -> Outcome {
    let (verb, done) = act.words();
    if matches!(act, Act::Delete) {
        let question = match &many.runs[..] {
            [one] => format!("{verb} run {one} with its history?"),
            all => format!("{verb} {} runs with their history?", all.len()),
        };
        confirm(&question, many.yes)?;
    }
    let (mut changed, mut failed) = (Vec::new(), Vec::new());
    let mut exit = Exit::Done;
    for named in &many.runs {
        let tried = async {
            let run = named.find(client).await?;
            act.to(client, &run).await?;
            Ok::<_, Trouble>(run.id().to_string())
        };
        match tried.await {
            Ok(id) if is_json() => changed.push(id),
            Ok(id) => output::print(&format!("{id} {done}\n")),
            Err(trouble) => {
                if exit == Exit::Done {
                    exit = trouble.exit();
                }
                match is_json() {
                    true => failed.push(json!({"run": named.to_string(), "error": trouble.text()})),
                    false => trouble.print(),
                }
            }
        }
    }
    if is_json() {
        output::say(json!({"done": changed, "failed": failed}), "");
    }
    Ok(exit)
}

async fn change_all(client: &Client, many: Many, act: Act) -> Outcome {
    let filter: Filter = many.which.filter();
    let met = client.bulk(filter.clone()).count().await?;
    let (verb, done) = act.words();
    if many.dry_run {
        let text = format!("{} would be {done}", so_many(met, "run"));
        output::say(json!({"met": met}), &text);
        return Ok(Exit::Done);
    }
    confirm(&format!("{verb} {}?", so_many(met, "run")), many.yes)?;
    let progress = Progress::of(met, verb);
    let bulk = client.bulk(filter).on_progress(move |report: &BulkReport| progress.is(report.met));
    let detail = json!({"action": act.actions().1, "filter": many.which.json()});
    let change = Change::new("change_runs", "").detail(detail.to_string());
    let report = change.made_with(client, exit_of, async || {
        let report = match act {
            Act::Cancel => bulk.cancel().await,
            Act::CancelWithRollback => bulk.cancel_with_rollback().await,
            Act::Pause => bulk.pause().await,
            Act::Resume => bulk.resume().await,
            Act::Retry => bulk.retry().await,
            Act::Delete => bulk.delete().await,
        };
        report.map_err(Trouble::of)
    });
    let report = report.await?;
    tell(&report, done);
    Ok(exit_of(&report))
}

fn exit_of(report: &BulkReport) -> Exit {
    match report.refused {
        0 => Exit::Done,
        _ => Exit::Conflict,
    }
}

fn tell(report: &BulkReport, done: &str) {
    let reasons = report.reasons.iter();
    if is_json() {
        let reasons: Vec<_> = reasons
            .map(|(run, reason)| json!({"run": run.to_string(), "reason": reason}))
            .collect();
        let json = json!({
            "met": report.met, "done": report.done, "already": report.already,
            "finished": report.finished, "refused": report.refused, "gone": report.gone,
            "reasons": reasons,
        });
        return output::say(json, "");
    }
    let mut text = format!("{} of {} {done}", report.done, report.met);
    for (number, what) in [
        (report.already, "were so already"),
        (report.finished, "had ended"),
        (report.refused, "refused"),
        (report.gone, "were gone"),
    ] {
        if number > 0 {
            text += &format!(", {number} {what}");
        }
    }
    output::print(&format!("{text}\n"));
    for (run, reason) in reasons.take(20) {
        note(&format!("{run}: {}", plain(reason)));
    }
}
