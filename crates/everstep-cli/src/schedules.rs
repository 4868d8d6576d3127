//! `schedules`: what starts runs by itself.

use clap::{Args, Subcommand, ValueEnum};
use everstep::{Client, Overlap, ScheduleInfo, ScheduleSpec, Triggered};
use everstep_server::json;
use serde_json::json;

use crate::{
    Exit,
    args::{Moment, Pair, Span, json as parse_json},
    audit::Change,
    output::{Shown, Table, Watch, confirm, dim, is_json, many, plain, say, span, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub(crate) struct Schedules {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// List schedules with their next ticks; also what is done if nothing is said.
    List(Watch),
    /// Show a schedule with its next five ticks.
    Show(Named),
    /// Make a schedule, or change it.
    Set(Set),
    /// Let a schedule rest.
    Pause(Named),
    /// Let a paused schedule go on.
    Resume(Named),
    /// Make a tick now.
    Trigger(Named),
    /// Make the ticks of a time that has passed.
    Backfill(Backfill),
    /// Delete a schedule; its runs stay.
    Delete(Deleted),
}

#[derive(Debug, Args)]
struct Named {
    /// Its name.
    name: String,
}

#[derive(Debug, Args)]
struct Deleted {
    /// Its name.
    name: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
struct Backfill {
    /// Its name.
    name: String,
    /// The first tick: an instant, or how long ago.
    from: Moment,
    /// The one after the last.
    to: Moment,
}

#[derive(Debug, Args)]
struct Set {
    /// Its name.
    name: String,
    /// The workflow that it starts.
    workflow: String,
    /// The input: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    input: String,
    /// When, as a cron expression: `0 3 * * *`.
    #[arg(long, required_unless_present = "every", conflicts_with = "every")]
    cron: Option<String>,
    /// The time zone of the cron expression, UTC if none is said.
    #[arg(long, requires = "cron")]
    time_zone: Option<String>,
    /// How often: `90s`, `2h`.
    #[arg(long, value_name = "TIME")]
    every: Option<Span>,
    /// What is done if the last run has not ended.
    #[arg(long, value_enum)]
    overlap: Option<OverlapWord>,
    /// How late a tick may be made.
    #[arg(long, value_name = "TIME")]
    catch_up: Option<Span>,
    /// The version of the workflow.
    #[arg(long = "as-version", value_name = "VERSION")]
    version: Option<u32>,
    /// What its runs can be found by; may be said several times.
    #[arg(long, short, value_name = "NAME:VALUE")]
    tag: Vec<Pair>,
    /// It rests at first.
    #[arg(long)]
    paused: bool,
}

/// What is done if the last run has not ended.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum OverlapWord {
    /// No run is started.
    Skip,
    /// It is started when the last one has ended.
    Queue,
    /// It is started beside the last one.
    Allow,
    /// The last one is cancelled.
    CancelOld,
}

pub(crate) async fn run(client: &Client, said: Schedules) -> Outcome {
    match said.command.unwrap_or(Command::List(said.watch)) {
        Command::List(watch) => return watch.run(async || list(client).await).await,
        Command::Show(Named { name }) => show(client.schedule_named(name).info().await?),
        Command::Set(set) => return self::set(client, set).await,
        Command::Pause(Named { name }) => {
            let change = Change::new("pause_schedule", &name);
            let schedule = client.schedule_named(name);
            let changed = change.made(client, async || Ok(schedule.pause().await?));
            let changed = changed.await?;
            let text = if changed { "paused" } else { "it was paused before" };
            say(json!({"changed": changed}), text);
        }
        Command::Resume(Named { name }) => {
            let change = Change::new("resume_schedule", &name);
            let schedule = client.schedule_named(name);
            let changed = change.made(client, async || Ok(schedule.resume().await?));
            let changed = changed.await?;
            let text = if changed { "resumed" } else { "it was not paused" };
            say(json!({"changed": changed}), text);
        }
        Command::Trigger(Named { name }) => return trigger(client, name).await,
        Command::Backfill(said) => {
            let time = said.from.0..said.to.0;
            let detail = json!({"from": time.start.to_string(), "to": time.end.to_string()});
            let change = Change::new("backfill_schedule", &said.name).detail(detail.to_string());
            let schedule = client.schedule_named(said.name);
            let filled = change.made(client, async || Ok(schedule.backfill(time).await?));
            let filled = filled.await?;
            let (started, present) = (filled.started, filled.present);
            let text = format!(
                "{} started, {} had one already",
                many(started, "run"),
                many(present, "tick")
            );
            say(json!({"started": started, "present": present}), &text);
        }
        Command::Delete(Deleted { name, yes }) => {
            confirm(&format!("Delete schedule `{name}`?"), yes)?;
            let change = Change::new("delete_schedule", &name);
            let deleted = change.made(client, async || {
                if client.schedule_named(name.clone()).delete().await? {
                    return Ok(());
                }
                let text = format!("there is no schedule `{name}`; it may have been deleted");
                Err(Trouble::new(Exit::NotFound, text))
            });
            deleted.await?;
            say(json!({"deleted": name}), "deleted");
        }
    }
    Ok(Exit::Done)
}

async fn set(client: &Client, said: Set) -> Outcome {
    let input = parse_json(&said.input)?;
    let change = Change::new("put_schedule", &said.name).detail(&said.workflow);
    let mut schedule = client.schedule_json(said.name, &said.workflow, &input);
    if let Some(cron) = said.cron {
        schedule = schedule.cron(cron);
    }
    if let Some(zone) = said.time_zone {
        schedule = schedule.time_zone(zone);
    }
    if let Some(Span(every)) = said.every {
        schedule = schedule.every(every);
    }
    if let Some(overlap) = said.overlap {
        schedule = schedule.overlap(match overlap {
            OverlapWord::Skip => Overlap::Skip,
            OverlapWord::Queue => Overlap::Queue,
            OverlapWord::Allow => Overlap::Allow,
            OverlapWord::CancelOld => Overlap::CancelOld,
        });
    }
    if let Some(Span(limit)) = said.catch_up {
        schedule = schedule.catch_up(limit);
    }
    if let Some(version) = said.version {
        schedule = schedule.version(version);
    }
    for Pair(name, value) in said.tag {
        schedule = schedule.tag(name, value);
    }
    if said.paused {
        schedule = schedule.paused();
    }
    let set = change.made(client, async || Ok(schedule.await?)).await?;
    let text = match (set.created(), set.replaced()) {
        (true, _) => "made",
        (false, true) => "changed",
        (false, false) => "it was so already",
    };
    say(json!({"created": set.created(), "replaced": set.replaced()}), text);
    Ok(Exit::Done)
}

async fn trigger(client: &Client, name: String) -> Outcome {
    let change = Change::new("trigger_schedule", &name);
    let schedule = client.schedule_named(name);
    let triggered = change.made(client, async || Ok(schedule.trigger().await?));
    let (run, outcome, text) = match triggered.await? {
        Triggered::Started(run) => (Some(run.id()), "started", format!("started {}", run.id())),
        Triggered::Skipped { by } => {
            let text = "skipped, because the last run has not ended";
            (by, "skipped", text.to_owned())
        }
        _ => {
            let text = "queued until the last run has ended";
            (None, "queued", text.to_owned())
        }
    };
    let mut json = json!({"outcome": outcome});
    if let Some(run) = run {
        json["run"] = json!(run.to_string());
    }
    say(json, &text);
    Ok(Exit::Done)
}

/// As `--overlap` has it.
fn overlap(overlap: Overlap) -> &'static str {
    match overlap {
        Overlap::Queue => "queue",
        Overlap::Allow => "allow",
        Overlap::CancelOld => "cancel-old",
        _ => "skip",
    }
}

fn spec(schedule: &ScheduleInfo) -> String {
    match &schedule.spec {
        Some(ScheduleSpec::Cron { expression, time_zone }) => format!("{expression} ({time_zone})"),
        Some(ScheduleSpec::Every(every)) => format!("every {}", span(*every)),
        _ => "it cannot be read by this version".to_owned(),
    }
}

fn next(schedule: &ScheduleInfo) -> String {
    match (schedule.paused, schedule.next_at) {
        (true, _) => "paused".to_owned(),
        (false, Some(at)) => when(at),
        (false, None) => String::new(),
    }
}

fn show(schedule: ScheduleInfo) {
    if is_json() {
        return Shown::Json(json::schedule(schedule)).print();
    }
    let mut facts = Table::new(["schedule".to_owned(), plain(&schedule.name)]);
    let mut fact = |name: &'static str, value: String| facts.row([dim(name), value.into()]);
    fact("workflow", schedule.workflow.clone());
    fact("when", spec(&schedule));
    fact("next", next(&schedule));
    fact("overlap", overlap(schedule.overlap).to_owned());
    fact("input", schedule.input.to_string());
    for (name, value) in &schedule.tags {
        fact("tag", format!("{name}:{value}"));
    }
    if let Some(run) = schedule.last_run {
        fact("last run", run.to_string());
    }
    fact("started", schedule.started.to_string());
    fact("skipped", schedule.skipped.to_string());
    fact("missed", schedule.missed.to_string());
    for tick in schedule.upcoming(5) {
        fact("tick", tick.to_string());
    }
    Shown::Text(facts.text("")).print();
}

async fn list(client: &Client) -> Result<Shown, Trouble> {
    let mut schedules = Vec::new();
    let mut after: Option<String> = None;
    loop {
        let mut page = client.schedules().limit(500);
        if let Some(after) = after.take() {
            page = page.after(after);
        }
        let page = page.await?;
        schedules.extend(page.schedules);
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    if is_json() {
        let schedules: Vec<_> = schedules.into_iter().map(json::schedule).collect();
        return Ok(Shown::Json(json!({"schedules": schedules})));
    }
    let mut table = Table::new([
        "NAME", "WORKFLOW", "WHEN", "NEXT", "STARTED", "SKIPPED", "MISSED", "LAST RUN",
    ]);
    for schedule in schedules {
        let (spec, next) = (spec(&schedule), next(&schedule));
        let last = schedule.last_run.map(|it| it.to_string());
        table.row([
            schedule.name.into(),
            schedule.workflow.into(),
            spec.into(),
            next.into(),
            schedule.started.to_string().into(),
            schedule.skipped.to_string().into(),
            schedule.missed.to_string().into(),
            dim(last.unwrap_or_default()),
        ]);
    }
    Ok(Shown::Text(table.text("no schedules")))
}
