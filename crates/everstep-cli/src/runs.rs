//! Commands about runs.

use clap::{Args, Subcommand};
use everstep::{
    BulkReport, Client, EntryStatus, Filter, HistoryEntry, Preflight, Resolved, RunHandle, RunInfo,
    RunStatus, Sent,
};
use everstep_server::json;
use serde_json::json;

use crate::{
    Exit,
    args::{Moment, Pair, RunRef, Span, Which, json as parse_json, now},
    output::{self, Progress, Table, Watch, dim, is_json, plain, print, print_json, span, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Runs {
    /// List runs, newest first.
    List(List),
    /// How many runs there are of each status.
    Count(Count),
    /// Show a run with what it has done.
    Show(Show),
    /// Follow a run until it ends; fails if the run does.
    Watch(One),
    /// Show everything that a run has done, as JSON.
    History(One),
    /// Cancel runs.
    Cancel(Cancel),
    /// Let runs rest.
    Pause(Many),
    /// Let paused runs go on.
    Resume(Many),
    /// Try failed runs again from where they failed.
    Retry(Many),
    /// Delete runs that have ended.
    Delete(Many),
    /// Start a new run with a part of this one's history.
    Fork(Fork),
}

/// A run.
#[derive(Debug, Args)]
pub(crate) struct One {
    /// Its id, or `workflow/key`.
    run: RunRef,
}

#[derive(Debug, Args)]
pub(crate) struct List {
    #[command(flatten)]
    which: Which,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
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

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// Its id, or `workflow/key`.
    run: RunRef,
    #[command(flatten)]
    watch: Watch,
}

/// Runs by name, or by what they have in common.
#[derive(Debug, Args)]
pub(crate) struct Many {
    /// Their ids, or `workflow/key`.
    runs: Vec<RunRef>,
    #[command(flatten)]
    which: Which,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Cancel {
    #[command(flatten)]
    many: Many,
    /// Undo what they have done.
    #[arg(long)]
    rollback: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Fork {
    /// Its id, or `workflow/key`.
    run: RunRef,
    /// The step from which on it is made anew.
    #[arg(long, value_name = "LOCATION")]
    from: Option<String>,
    /// Another input: JSON, `@file` or `-`.
    #[arg(long, value_name = "JSON")]
    input: Option<String>,
    /// The key of the new run.
    #[arg(long)]
    key: Option<String>,
    /// The version of the new run.
    #[arg(long = "as-version", value_name = "VERSION")]
    version: Option<u32>,
}

#[derive(Debug, Args)]
pub(crate) struct Start {
    /// The workflow's name.
    workflow: String,
    /// Its input: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    input: String,
    /// A name of its own: a second start with it finds the first run.
    #[arg(long)]
    key: Option<String>,
    /// The version of the workflow; the newest that a runner has if it is not said.
    #[arg(long = "as-version", value_name = "VERSION")]
    version: Option<u32>,
    /// After how long it begins: `90s`, `2h`.
    #[arg(long, value_name = "TIME")]
    after: Option<Span>,
    /// When it begins.
    #[arg(long, value_name = "INSTANT", conflicts_with = "after")]
    at: Option<Moment>,
    /// The runners that run it.
    #[arg(long)]
    pool: Option<String>,
    /// What it can be found by; may be said several times.
    #[arg(long, short, value_name = "NAME:VALUE")]
    tag: Vec<Pair>,
    /// Wait until it ends; fails if the run does.
    #[arg(long)]
    wait: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// Its id, or `workflow/key`.
    run: RunRef,
    /// What it listens to.
    name: String,
    /// What is said: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    body: String,
    /// A second message with the same one is not delivered.
    #[arg(long)]
    dedupe: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Resolve {
    /// The token that the run has handed out.
    token: String,
    /// What it gets: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    value: String,
    /// It is why it gets nothing.
    #[arg(long)]
    reject: bool,
}

pub(crate) async fn run(client: &Client, command: Runs) -> Outcome {
    match command {
        Runs::List(list) => {
            let watch = list.watch;
            watch.run(async || self::list(client, &list).await).await?;
            Ok(Exit::Done)
        }
        Runs::Count(count) => {
            let watch = count.watch;
            watch
                .run(async || counts(client, &count.which).await)
                .await?;
            Ok(Exit::Done)
        }
        Runs::Show(show) => {
            let run = show.run.find(client).await?;
            show.watch.run(async || self::show(&run).await).await?;
            Ok(Exit::Done)
        }
        Runs::Watch(one) => watch(one.run.find(client).await?).await,
        Runs::History(one) => history(one.run.find(client).await?).await,
        Runs::Cancel(cancel) => {
            let act = match cancel.rollback {
                false => Act::Cancel,
                true => Act::CancelWithRollback,
            };
            change(client, cancel.many, act).await
        }
        Runs::Pause(many) => change(client, many, Act::Pause).await,
        Runs::Resume(many) => change(client, many, Act::Resume).await,
        Runs::Retry(many) => change(client, many, Act::Retry).await,
        Runs::Delete(many) => change(client, many, Act::Delete).await,
        Runs::Fork(fork) => self::fork(client, fork).await,
    }
}

async fn list(client: &Client, list: &List) -> Result<String, Trouble> {
    let mut runs = Vec::new();
    let mut after = None;
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
        return Ok(format!("{:#}\n", json!({"runs": runs})));
    }
    let mut table = Table::new([
        "ID",
        "WORKFLOW",
        "STATUS",
        "KEY",
        "STARTED",
        "TOOK",
        "WAITS FOR",
    ]);
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
    Ok(table.text("no runs"))
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

fn short(text: &str, most: usize) -> String {
    if text.chars().count() <= most {
        return text.to_owned();
    }
    let cut: String = text.chars().take(most - 1).collect();
    cut + "…"
}

async fn counts(client: &Client, which: &Which) -> Result<String, Trouble> {
    let mut table = Table::new(["STATUS", "RUNS"]);
    let mut all = serde_json::Map::new();
    for status in RunStatus::ALL {
        if !which.status.is_empty() && !which.status.contains(&status) {
            continue;
        }
        let mut filter = which.filter();
        filter.statuses = vec![status];
        let count = client.count().filter(filter).await?;
        all.insert(status.to_string(), json!(count));
        table.row([output::status(status), count.to_string().into()]);
    }
    if is_json() {
        return Ok(format!("{:#}\n", json!({"counts": all})));
    }
    Ok(table.text("no runs"))
}

async fn show(run: &RunHandle) -> Result<String, Trouble> {
    let info = run.info().await?;
    let history = run.history().await?;
    if is_json() {
        let entries: Vec<_> = history.into_iter().map(json::entry).collect();
        let mut shown = json::run(info);
        shown["history"] = json!(entries);
        return Ok(format!("{shown:#}\n"));
    }
    let mut facts = Table::new(["RUN".to_owned(), info.id.to_string()]);
    let mut fact = |name: &'static str, value: Option<String>| {
        if let Some(value) = value {
            facts.row([dim(name), value.into()]);
        }
    };
    fact("workflow", Some(workflow(&info)));
    fact("key", info.key.clone());
    fact("status", Some(info.status.to_string()));
    fact("waits for", info.waiting.clone());
    fact("due", info.available_at.map(when));
    fact(
        "started",
        Some(format!("{} ({})", info.created_at, when(info.created_at))),
    );
    fact(
        "ended",
        info.finished_at.map(|at| format!("{at} ({})", when(at))),
    );
    fact("took", Some(took(&info)));
    fact("deadline", info.deadline_at.map(when));
    fact(
        "attempts",
        (info.attempts > 1).then(|| info.attempts.to_string()),
    );
    fact(
        "recoveries",
        (info.recoveries > 0).then(|| info.recoveries.to_string()),
    );
    fact("parent", info.parent.map(|parent| parent.to_string()));
    for (name, value) in &info.tags {
        fact("tag", Some(format!("{name}:{value}")));
    }
    fact("input", Some(short(&info.input.to_string(), 400)));
    fact(
        "output",
        info.output.as_ref().map(|it| short(&it.to_string(), 400)),
    );
    fact("failure", info.failure.as_ref().map(|it| it.full()));
    let mut text = facts.text("");
    if !history.is_empty() {
        text += "\n";
        text += &steps(&history).text("");
    }
    Ok(text)
}

fn steps(history: &[HistoryEntry]) -> Table {
    let mut table = Table::new(["STEP", "KIND", "STATUS", "ATTEMPTS", "TOOK", "GAVE"]);
    for entry in history {
        let took = match (entry.started_at, entry.completed_at) {
            (Some(from), Some(to)) => span(to.since(from)),
            _ => String::new(),
        };
        let gave = match (&entry.value, &entry.failure, entry.errors.last()) {
            (_, Some(failure), _) => failure.message.clone(),
            (Some(value), _, _) => value.to_string(),
            (None, None, Some(error)) => error.message.clone(),
            (None, None, None) => entry.wake_at.map(when).unwrap_or_default(),
        };
        let depth = entry.location.matches('/').count();
        table.row([
            format!("{}{}", "  ".repeat(depth), entry.location).into(),
            dim(format!("{:?}", entry.kind).to_lowercase()),
            entry_status(entry.status).into(),
            entry.attempts.to_string().into(),
            took.into(),
            short(&gave, 80).into(),
        ]);
    }
    table
}

fn entry_status(status: EntryStatus) -> String {
    match status {
        EntryStatus::TimedOut => "timed out".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}

async fn watch(run: RunHandle) -> Outcome {
    let mut seen = std::collections::HashMap::new();
    let mut last = None;
    loop {
        let info = run.info().await?;
        for entry in run.history().await? {
            let state = (entry.status, entry.attempts);
            if seen.insert(entry.location.clone(), state) != Some(state) && !is_json() {
                let said = match entry.errors.last() {
                    Some(error) if entry.value.is_none() => format!(": {}", error.message),
                    _ => String::new(),
                };
                let line = format!(
                    "{}  {}  {}{said}",
                    now(),
                    entry.location,
                    entry_status(entry.status)
                );
                print(&format!("{}\n", plain(&line)));
            }
        }
        if last != Some(info.status) {
            last = Some(info.status);
            if !is_json() {
                print(&format!("{}  {}\n", now(), info.status));
            }
        }
        if info.status.is_terminal() {
            return Ok(ended(info));
        }
        tokio::time::sleep(std::time::Duration::from_millis(200)).await;
    }
}

/// Prints how a run has ended, and fails if it has.
fn ended(info: RunInfo) -> Exit {
    let exit = match info.status {
        RunStatus::Completed => Exit::Done,
        _ => Exit::Bad,
    };
    if is_json() {
        print_json(&json::run(info));
    } else if let Some(output) = &info.output {
        print(&format!("{output:#}\n"));
    } else if let Some(failure) = &info.failure {
        output::note(&plain(&failure.full()));
    }
    exit
}

async fn history(run: RunHandle) -> Outcome {
    let entries = run.history().await?;
    let entries: Vec<_> = entries.into_iter().map(json::entry).collect();
    print_json(&json!({"entries": entries}));
    Ok(Exit::Done)
}

#[derive(Clone, Copy)]
enum Act {
    Cancel,
    CancelWithRollback,
    Pause,
    Resume,
    Retry,
    Delete,
}

impl Act {
    fn words(self) -> (&'static str, &'static str) {
        match self {
            Act::Cancel => ("Cancel", "cancelled"),
            Act::CancelWithRollback => ("Cancel and undo", "being undone"),
            Act::Pause => ("Pause", "paused"),
            Act::Resume => ("Resume", "resumed"),
            Act::Retry => ("Retry", "tried again"),
            Act::Delete => ("Delete", "deleted"),
        }
    }
}

async fn change(client: &Client, many: Many, act: Act) -> Outcome {
    match (many.runs.is_empty(), many.which.is_everything()) {
        (true, true) => {
            let text =
                "say which runs: by id, as `workflow/key`, or by --status, --workflow, --tag ..";
            Err(Trouble::new(Exit::Usage, text))
        }
        (false, false) => {
            let text = "say either runs by name, or what they have in common";
            Err(Trouble::new(Exit::Usage, text))
        }
        (false, true) => change_each(client, many, act).await,
        (true, false) => change_all(client, many, act).await,
    }
}

async fn change_each(client: &Client, many: Many, act: Act) -> Outcome {
    let (verb, done) = act.words();
    if matches!(act, Act::Delete) && !many.yes {
        let question = format!("{verb} {} runs with their history?", many.runs.len());
        if !output::confirmed(&question) {
            return Err(Trouble::new(Exit::Failed, "nothing was deleted"));
        }
    }
    let mut changed = Vec::new();
    for named in &many.runs {
        let run = named.find(client).await?;
        match act {
            Act::Cancel => _ = run.cancel().await?,
            Act::CancelWithRollback => _ = run.cancel().with_rollback().await?,
            Act::Pause => run.pause().await?,
            Act::Resume => run.resume().await?,
            Act::Retry => run.retry().await?,
            Act::Delete => _ = run.delete().await?,
        }
        changed.push(run.id().to_string());
        if !is_json() {
            print(&format!("{} {done}\n", run.id()));
        }
    }
    if is_json() {
        print_json(&json!({"done": changed}));
    }
    Ok(Exit::Done)
}

async fn change_all(client: &Client, many: Many, act: Act) -> Outcome {
    let filter: Filter = many.which.filter();
    let met = client.bulk(filter.clone()).count().await?;
    let (verb, done) = act.words();
    if !many.yes && !output::confirmed(&format!("{verb} {met} runs?")) {
        return Err(Trouble::new(Exit::Failed, "nothing was changed"));
    }
    let progress = Progress::new(verb);
    let bulk = client
        .bulk(filter)
        .on_progress(move |report: &BulkReport| progress.is(report.met, Some(met)));
    let report = match act {
        Act::Cancel => bulk.cancel().await,
        Act::CancelWithRollback => bulk.cancel_with_rollback().await,
        Act::Pause => bulk.pause().await,
        Act::Resume => bulk.resume().await,
        Act::Retry => bulk.retry().await,
        Act::Delete => bulk.delete().await,
    };
    let report = report.map_err(Trouble::of)?;
    if is_json() {
        print_json(&json!({
            "met": report.met, "done": report.done, "already": report.already,
            "finished": report.finished, "refused": report.refused, "gone": report.gone,
        }));
    } else {
        print(&format!(
            "{} {done}; {} were so already, {} had ended, {} refused, {} were gone\n",
            report.done, report.already, report.finished, report.refused, report.gone
        ));
        for (run, reason) in report.reasons.iter().take(20) {
            output::note(&format!("{run}: {}", plain(reason)));
        }
    }
    Ok(match report.refused {
        0 => Exit::Done,
        _ => Exit::Conflict,
    })
}

async fn fork(client: &Client, said: Fork) -> Outcome {
    let mut fork = said.run.find(client).await?.fork();
    if let Some(from) = said.from {
        fork = fork.from(from);
    }
    if let Some(input) = said.input {
        fork = fork.input(&parse_json(&input)?)?;
    }
    if let Some(key) = said.key {
        fork = fork.key(key);
    }
    if let Some(version) = said.version {
        fork = fork.version(version);
    }
    let new = fork.start().await?;
    print_id(&new);
    Ok(Exit::Done)
}

fn print_id(run: &RunHandle) {
    if is_json() {
        print_json(&json!({"id": run.id().to_string(), "attached": run.attached()}));
    } else {
        print(&format!("{}\n", run.id()));
    }
}

pub(crate) async fn why(client: &Client, one: One) -> Outcome {
    let why = one.run.find(client).await?.why().await?;
    if is_json() {
        print_json(&json::why(why));
        return Ok(Exit::Done);
    }
    print(&format!("{}\n", plain(&why.sentence)));
    for because in why.chain.iter().skip(1) {
        print(&format!(
            "  {} ({}): {}\n",
            because.run,
            plain(&because.workflow),
            plain(&because.sentence)
        ));
    }
    if !why.cycle.is_empty() {
        let runs: Vec<String> = why.cycle.iter().map(ToString::to_string).collect();
        print(&format!(
            "they wait for each other: {}\n",
            runs.join(" -> ")
        ));
    }
    Ok(Exit::Done)
}

pub(crate) async fn start(client: &Client, said: Start) -> Outcome {
    let input = parse_json(&said.input)?;
    let version = match said.version {
        Some(version) => Some(version),
        None => newest(client, &said.workflow).await?,
    };
    let mut start = client.start_json(&said.workflow, &input);
    if let Some(version) = version {
        start = start.version(version);
    }
    if let Some(key) = said.key {
        start = start.key(key);
    }
    if let Some(Span(delay)) = said.after {
        start = start.after(delay);
    }
    if let Some(Moment(at)) = said.at {
        start = start.at(at);
    }
    if let Some(pool) = said.pool {
        start = start.pool(pool);
    }
    for Pair(name, value) in said.tag {
        start = start.tag(name, value);
    }
    let run = start.await?;
    if !said.wait {
        print_id(&run);
        return Ok(Exit::Done);
    }
    // Whether it has failed is seen below.
    let _ = run.result_json().await;
    Ok(ended(run.info().await?))
}

/// The newest version of a workflow that some runner has.
async fn newest(client: &Client, workflow: &str) -> Result<Option<u32>, Trouble> {
    let cluster = client.cluster().await?;
    let alive = cluster.runners.iter().filter(|runner| runner.alive);
    let served = alive.flat_map(|runner| &runner.workflows);
    let versions = served.filter(|it| it.workflow == workflow);
    let newest = versions.map(|it| it.version).max();
    if newest.is_none() {
        output::note(&format!(
            "no runner that is alive has workflow `{}`; the run waits for one",
            plain(workflow)
        ));
    }
    Ok(newest)
}

pub(crate) async fn send(client: &Client, said: Send) -> Outcome {
    let body = parse_json(&said.body)?;
    let mut send = client.send(said.run.target(), &said.name, &body);
    if let Some(dedupe) = said.dedupe {
        send = send.dedupe(dedupe);
    }
    let sent = match send.await? {
        Sent::Delivered => "delivered",
        Sent::Duplicate => "duplicate",
        Sent::DeadLettered => "dead_lettered",
        Sent::Published => "published",
    };
    if is_json() {
        print_json(&json!({"sent": sent}));
    } else {
        print(&format!("{sent}\n"));
    }
    Ok(Exit::Done)
}

pub(crate) async fn resolve(client: &Client, said: Resolve) -> Outcome {
    let value = parse_json(&said.value)?;
    let settled = match said.reject {
        false => client.resolve_json(said.token, &value).await?,
        true => client.reject_json(said.token, &value).await?,
    };
    let (first, text) = match settled {
        Resolved::First => (true, "settled".to_owned()),
        Resolved::Already { at } => (false, format!("it was settled before, {}", when(at))),
    };
    if is_json() {
        print_json(&json!({"first": first}));
    } else {
        print(&format!("{text}\n"));
    }
    Ok(if first { Exit::Done } else { Exit::Conflict })
}

pub(crate) fn preflight(found: &Preflight) -> Outcome {
    let misfits = |all: &[everstep::Misfit]| -> Vec<serde_json::Value> {
        let said = all.iter().map(|it| {
            json!({
                "run": it.run.to_string(), "workflow": it.workflow, "version": it.version,
                "reason": it.reason,
            })
        });
        said.collect()
    };
    if is_json() {
        print_json(&json!({
            "checked": found.checked, "ok": found.ok,
            "divergent_count": found.divergent_count, "unknown_count": found.unknown_count,
            "divergent": misfits(&found.divergent), "unknown": misfits(&found.unknown_workflow),
        }));
    } else {
        print(&format!(
            "{} live runs: {} go on, {} would be paused, {} are of workflows or versions that are \
             not here\n",
            found.checked, found.ok, found.divergent_count, found.unknown_count
        ));
        for misfit in found
            .divergent
            .iter()
            .chain(&found.unknown_workflow)
            .take(50)
        {
            print(&format!(
                "{}  {} v{}  {}\n",
                misfit.run,
                plain(&misfit.workflow),
                misfit.version,
                plain(&misfit.reason)
            ));
        }
    }
    Ok(match found.is_clean() {
        true => Exit::Done,
        false => Exit::Bad,
    })
}
