//! `runs`: list them, show them, change them.

use clap::{Args, Subcommand};
use everstep::{Client, RunHandle, RunId, RunInfo, RunStatus};
use everstep_server::json;
use serde_json::json;

use crate::{
    args::{RunRef, Which, now},
    output::{self, Shown, Table, Watch, dim, is_json, short, span, when},
    trouble::{Outcome, Trouble},
};

mod change;
mod follow;
mod fork;
mod place;
mod show;

pub(crate) use follow::ended;

#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// List runs, newest first.
    List(List),
    /// How many runs there are of each status.
    Count(Count),
    /// Show a run with what it has done.
    Show(show::Show),
    /// Follow a run until it ends; fails if the run does.
    Watch(One),
    /// Cancel runs.
    Cancel(change::Cancel),
    /// Let runs rest.
    Pause(change::Many),
    /// Let paused runs go on.
    Resume(change::Many),
    /// Try failed runs again from where they failed.
    Retry(change::Many),
    /// Delete runs that have ended, with their history.
    Delete(change::Many),
    /// Start a new run with a part of this one's history.
    Fork(fork::Fork),
    /// Move a run to another pool, whose runners go on with it.
    Move(place::Move),
    /// Take a run out of the memory of its owner; it comes back by replay.
    Evict(One),
}

/// A run.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    pub(crate) run: RunRef,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
    /// Those that come after this one in the list.
    #[arg(long, value_name = "ID")]
    after: Option<RunId>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Count {
    #[command(flatten)]
    which: Which,
    #[command(flatten)]
    watch: Watch,
}

pub(crate) async fn run(client: &Client, command: Runs) -> Outcome {
    use change::Act;
    match command {
        Runs::List(list) => {
            let watch = list.watch;
            watch.run(async || self::list(client, &list).await).await
        }
        Runs::Count(count) => {
            let watch = count.watch;
            watch.run(async || counts(client, &count.which).await).await
        }
        Runs::Show(show) => show::run(client, show).await,
        Runs::Watch(one) => follow::run(one.run.find(client).await?).await,
        Runs::Cancel(cancel) => {
            let act = match cancel.rollback {
                false => Act::Cancel,
                true => Act::CancelWithRollback,
            };
            change::run(client, cancel.many, act).await
        }
        Runs::Pause(many) => change::run(client, many, Act::Pause).await,
        Runs::Resume(many) => change::run(client, many, Act::Resume).await,
        Runs::Retry(many) => change::run(client, many, Act::Retry).await,
        Runs::Delete(many) => change::run(client, many, Act::Delete).await,
        Runs::Fork(fork) => fork::run(client, fork).await,
        Runs::Move(said) => place::go(client, said).await,
        Runs::Evict(one) => place::evict(client, one).await,
    }
}

async fn list(client: &Client, list: &List) -> Result<Shown, Trouble> {
    let mut runs = Vec::new();
    let mut after = list.after;
    while runs.len() < list.limit {
        let left = (list.limit - runs.len()).min(500);
        let mut page = client.list().filter(list.which.filter()).limit(left);
        if let Some(after) = after {
            page = page.after(after);
        }
        let page = page.await?;
        runs.extend(page.runs);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if is_json() {
        let runs: Vec<_> = runs.into_iter().map(json::run_summary).collect();
        let mut shown = json!({"runs": runs});
        if let Some(next) = after {
            shown["next"] = json!(next.to_string());
        }
        return Ok(Shown::Json(shown));
    }
    let head = ["ID", "WORKFLOW", "STATUS", "KEY", "STARTED", "TOOK", "WAITS FOR"];
    let mut table = Table::new(head);
    for run in runs {
        let took = took(&run);
        table.row([
            run.id.to_string().into(),
            workflow(&run).into(),
            output::status(run.status),
            run.key.unwrap_or_default().into(),
            dim(when(run.created_at)),
            took.into(),
            dim(short(&run.waiting.unwrap_or_default(), 60)),
        ]);
    }
    Ok(Shown::Text(table.text("no runs")))
}

fn workflow(run: &RunInfo) -> String {
    match run.version {
        1 => run.workflow.clone(),
        version => format!("{} v{version}", run.workflow),
    }
}

fn took(run: &RunInfo) -> String {
    let end = run.finished_at.unwrap_or_else(now);
    span(end.since(run.created_at))
}

async fn counts(client: &Client, which: &Which) -> Result<Shown, Trouble> {
    let counts = client.count_by_status(which.filter()).await?;
    let is_meant = |status: &RunStatus| which.status.is_empty() || which.status.contains(status);
    let meant = counts.iter().filter(|(status, _)| is_meant(status));
    if is_json() {
        let counted: serde_json::Map<_, _> =
            meant.map(|(status, count)| (status.to_string(), json!(count))).collect();
        let json = json!({"counts": counted, "total": counts.total()});
        return Ok(Shown::Json(json));
    }
    let mut table = Table::new(["STATUS", "RUNS"]);
    for (status, count) in meant {
        table.row([output::status(status), count.to_string().into()]);
    }
    table.row([dim("total"), counts.total().to_string().into()]);
    Ok(Shown::Text(table.text("no runs")))
}

/// Prints the id of a run that is new, or was found by its key.
pub(crate) fn print_id(run: &RunHandle) {
    let id = run.id().to_string();
    let mut json = json!({"id": id, "attached": run.attached()});
    if run.attached() {
        json["input_differs"] = json!(run.input_differs());
        let differs = match run.input_differs() {
            true => ", with another input",
            false => "",
        };
        output::note(&format!("the key is that of a run that was there{differs}"));
    }
    output::say(json, &id);
}

pub(crate) async fn why(client: &Client, one: One) -> Outcome {
    let why = one.run.find(client).await?.why().await?;
    if is_json() {
        Shown::Json(json::why(why)).print();
        return Ok(crate::Exit::Done);
    }
    let mut text = match &why.chain[..] {
        // The whole sentence has all of them in it, which is hard to read.
        [first, _, ..] => format!("{}\n", output::plain(&first.sentence)),
        _ => format!("{}\n", output::plain(&why.sentence)),
    };
    for because in why.chain.iter().skip(1) {
        text += &format!("  {}\n", output::plain(&because.sentence));
    }
    if !why.cycle.is_empty() {
        let runs: Vec<String> = why.cycle.iter().map(ToString::to_string).collect();
        text += &format!("they wait for each other: {}\n", runs.join(" -> "));
    }
    Shown::Text(text).print();
    Ok(crate::Exit::Done)
}
