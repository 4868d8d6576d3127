//! Commands about what is around runs.

use std::path::PathBuf;

use clap::{Args, Subcommand};
use everstep::{Client, ItemId, ItemState, MigrateProgress, PublishedEvent, Replayed, Triggered};
use everstep_server::json;
use serde_json::json;

use crate::{
    Exit,
    args::{Moment, RunRef, json as parse_json},
    output::{self, Progress, Table, Watch, dim, is_json, plain, print, print_json, span, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Publish {
    /// The event's name.
    event: String,
    /// What it says: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    body: String,
    /// Who waits for this key, or for any, gets it.
    #[arg(long)]
    key: Option<String>,
    /// A second event with the same one is not published.
    #[arg(long)]
    dedupe: Option<String>,
}

pub(crate) async fn publish(client: &Client, said: Publish) -> Outcome {
    let body = parse_json(&said.body)?;
    let mut publish = client.publish_json(&said.event, &body);
    if let Some(key) = said.key {
        publish = publish.key(key);
    }
    if let Some(dedupe) = said.dedupe {
        publish = publish.dedupe(dedupe);
    }
    let (json, text) = match publish.await? {
        PublishedEvent::Published {
            told,
            spreading,
            kept,
            ..
        } => (
            json!({"duplicate": false, "told": told, "spreading": spreading, "kept": kept}),
            format!(
                "{told} were told{}{}",
                if spreading {
                    ", more are being told"
                } else {
                    ""
                },
                if kept {
                    ", and it is kept for those who wait later"
                } else {
                    ""
                },
            ),
        ),
        _ => (
            json!({"duplicate": true}),
            "an equal one was published before; nothing was done".to_owned(),
        ),
    };
    say(&json, &text);
    Ok(Exit::Done)
}

fn say(json: &serde_json::Value, text: &str) {
    if is_json() {
        print_json(json);
    } else {
        print(&format!("{}\n", plain(text)));
    }
}

#[derive(Debug, Subcommand)]
pub(crate) enum Schedules {
    /// List schedules with their next ticks.
    List(Watch),
    /// Show a schedule.
    Show(Named),
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
pub(crate) struct Named {
    /// Its name.
    name: String,
}

#[derive(Debug, Args)]
pub(crate) struct Deleted {
    /// Its name.
    name: String,
    /// Do not ask.
    #[arg(long, short)]
    yes: bool,
}

#[derive(Debug, Args)]
pub(crate) struct Backfill {
    /// Its name.
    name: String,
    /// The first tick: an instant, or how long ago.
    from: Moment,
    /// The one after the last.
    to: Moment,
}

pub(crate) async fn schedules(client: &Client, command: Schedules) -> Outcome {
    match command {
        Schedules::List(watch) => {
            watch.run(async || list_schedules(client).await).await?;
            Ok(Exit::Done)
        }
        Schedules::Show(Named { name }) => {
            let info = client.schedule_named(name).info().await?;
            print_json(&json::schedule(info));
            Ok(Exit::Done)
        }
        Schedules::Pause(Named { name }) => {
            let changed = client.schedule_named(name).pause().await?;
            let text = if changed {
                "paused"
            } else {
                "it was paused before"
            };
            say(&json!({"changed": changed}), text);
            Ok(Exit::Done)
        }
        Schedules::Resume(Named { name }) => {
            let changed = client.schedule_named(name).resume().await?;
            let text = if changed {
                "resumed"
            } else {
                "it was not paused"
            };
            say(&json!({"changed": changed}), text);
            Ok(Exit::Done)
        }
        Schedules::Trigger(Named { name }) => {
            let (run, text) = match client.schedule_named(name).trigger().await? {
                Triggered::Started(run) => (Some(run.id()), format!("started {}", run.id())),
                Triggered::Skipped { by } => {
                    (by, "skipped, because the last run has not ended".to_owned())
                }
                _ => (None, "queued until the last run has ended".to_owned()),
            };
            say(
                &json!({"run": run.map(|it| it.to_string()), "outcome": text}),
                &text,
            );
            Ok(Exit::Done)
        }
        Schedules::Backfill(said) => {
            let schedule = client.schedule_named(said.name);
            let filled = schedule.backfill(said.from.0..said.to.0).await?;
            let text = format!(
                "{} runs started, {} ticks had one already",
                filled.started, filled.present
            );
            say(
                &json!({"started": filled.started, "present": filled.present}),
                &text,
            );
            Ok(Exit::Done)
        }
        Schedules::Delete(Deleted { name, yes }) => {
            if !yes && !output::confirmed(&format!("Delete schedule `{}`?", plain(&name))) {
                return Err(Trouble::new(Exit::Failed, "nothing was deleted"));
            }
            let deleted = client.schedule_named(name.clone()).delete().await?;
            if !deleted {
                let text = format!("there is no schedule `{name}`");
                return Err(Trouble::new(Exit::NotFound, text));
            }
            say(&json!({"deleted": name}), "deleted");
            Ok(Exit::Done)
        }
    }
}

async fn list_schedules(client: &Client) -> Result<String, Trouble> {
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
        return Ok(format!("{:#}\n", json!({"schedules": schedules})));
    }
    let mut table = Table::new([
        "NAME", "WORKFLOW", "WHEN", "NEXT", "LAST RUN", "STARTED", "SKIPPED", "MISSED",
    ]);
    for schedule in schedules {
        let when_said = match &schedule.spec {
            Some(everstep::ScheduleSpec::Cron {
                expression,
                time_zone,
            }) => {
                format!("{expression} ({time_zone})")
            }
            Some(everstep::ScheduleSpec::Every(every)) => format!("every {}", span(*every)),
            _ => "?".to_owned(),
        };
        let next = match (schedule.paused, schedule.next_at) {
            (true, _) => "paused".to_owned(),
            (false, Some(at)) => when(at),
            (false, None) => String::new(),
        };
        table.row([
            schedule.name.into(),
            schedule.workflow.into(),
            when_said.into(),
            next.into(),
            dim(schedule
                .last_run
                .map(|it| it.to_string())
                .unwrap_or_default()),
            schedule.started.to_string().into(),
            schedule.skipped.to_string().into(),
            schedule.missed.to_string().into(),
        ]);
    }
    Ok(table.text("no schedules"))
}

#[derive(Debug, Subcommand)]
pub(crate) enum Queues {
    /// How many items a queue has in each state.
    Show(Queue),
    /// List items of a queue.
    Items(Items),
    /// Let dead items be tried again.
    Replay(ItemNamed),
    /// Forget dead items.
    Drop(ItemNamed),
}

#[derive(Debug, Args)]
pub(crate) struct Queue {
    /// Its name.
    queue: String,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Items {
    /// The queue.
    queue: String,
    /// Only those that were given up.
    #[arg(long)]
    dead: bool,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct ItemNamed {
    /// Their numbers.
    #[arg(required = true)]
    items: Vec<ItemId>,
}

pub(crate) async fn queues(client: &Client, command: Queues) -> Outcome {
    match command {
        Queues::Show(Queue { queue, watch }) => {
            watch.run(async || queue_text(client, &queue).await).await?;
        }
        Queues::Items(said) => {
            let state = said.dead.then_some(ItemState::Dead);
            let items = client
                .queue_items(&said.queue, state, None, said.limit)
                .await?;
            if is_json() {
                let items: Vec<_> = items.into_iter().map(json::item).collect();
                print_json(&json!({"items": items}));
                return Ok(Exit::Done);
            }
            let mut table = Table::new([
                "ITEM", "STATE", "PRIORITY", "ATTEMPTS", "PUT", "INPUT", "ERROR",
            ]);
            for item in items {
                table.row([
                    item.id.to_string().into(),
                    format!("{:?}", item.state).to_lowercase().into(),
                    item.priority.to_string().into(),
                    item.attempts.to_string().into(),
                    dim(when(item.created_at)),
                    item.input
                        .map(|it| it.to_string())
                        .unwrap_or_default()
                        .into(),
                    item.error.map(|it| it.message).unwrap_or_default().into(),
                ]);
            }
            print(&table.text("no items"));
        }
        Queues::Replay(said) => {
            for item in said.items {
                let replayed = client
                    .queue_item::<serde_json::Value>(item)
                    .replay()
                    .await?;
                say(
                    &json!({"item": item.to_string(), "replayed": replayed}),
                    &format!(
                        "{item}: {}",
                        if replayed {
                            "is tried again"
                        } else {
                            "was not dead"
                        }
                    ),
                );
            }
        }
        Queues::Drop(said) => {
            for item in said.items {
                let dropped = client
                    .queue_item::<serde_json::Value>(item)
                    .drop_dead()
                    .await?;
                say(
                    &json!({"item": item.to_string(), "dropped": dropped}),
                    &format!(
                        "{item}: {}",
                        if dropped { "is gone" } else { "was not dead" }
                    ),
                );
            }
        }
    }
    Ok(Exit::Done)
}

async fn queue_text(client: &Client, queue: &str) -> Result<String, Trouble> {
    let stats = client.queue_stats(queue).await?;
    if is_json() {
        return Ok(format!("{:#}\n", json::queue(queue, stats)));
    }
    let mut table = Table::new(["STATE", "ITEMS"]);
    for (name, number) in [
        ("ready", stats.ready),
        ("delayed", stats.delayed),
        ("claimed", stats.claimed),
        ("done", stats.done),
        ("dead", stats.dead),
    ] {
        table.row([name.into(), number.to_string().into()]);
    }
    let mut text = table.text("");
    if let Some(at) = stats.oldest_ready {
        text += &format!("the oldest ready item has waited since {}\n", when(at));
    }
    Ok(text)
}

pub(crate) async fn limits(client: &Client) -> Outcome {
    let limits = client.limits().await?;
    if is_json() {
        let limits: Vec<_> = limits.into_iter().map(json::limit).collect();
        print_json(&json!({"limits": limits}));
        return Ok(Exit::Done);
    }
    let mut table = Table::new([
        "LIMIT",
        "KEY",
        "PLACES",
        "RATE",
        "IN USE",
        "WAITING",
        "NEXT FREE",
    ]);
    for limit in limits {
        table.row([
            limit.name.into(),
            limit.key.unwrap_or_default().into(),
            limit
                .concurrency
                .map(|it| it.to_string())
                .unwrap_or_default()
                .into(),
            limit
                .rate
                .map(|(count, per)| format!("{count} per {}", span(per)))
                .unwrap_or_default()
                .into(),
            limit.in_use.to_string().into(),
            limit.waiting.to_string().into(),
            limit.next_free.map(when).unwrap_or_default().into(),
        ]);
    }
    print(&table.text("no limits are in use"));
    Ok(Exit::Done)
}

#[derive(Debug, Subcommand)]
pub(crate) enum Letters {
    /// List dead letters.
    List(ListLetters),
    /// Send dead letters again.
    Replay(LetterNamed),
    /// Forget dead letters.
    Drop(LetterNamed),
}

#[derive(Debug, Args)]
pub(crate) struct ListLetters {
    /// Those for this run.
    #[arg(long)]
    run: Option<everstep::RunId>,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct LetterNamed {
    /// Their numbers.
    #[arg(required = true)]
    letters: Vec<u64>,
}

pub(crate) async fn letters(client: &Client, command: Letters) -> Outcome {
    match command {
        Letters::List(said) => {
            let mut letters = client.dead_letters().limit(said.limit);
            if let Some(run) = said.run {
                letters = letters.run(run);
            }
            let page = letters.await?;
            if is_json() {
                let letters: Vec<_> = page.letters.into_iter().map(json::letter).collect();
                print_json(&json!({"letters": letters}));
                return Ok(Exit::Done);
            }
            let mut table = Table::new(["NO", "RUN", "NAME", "CAME", "WHY", "BODY"]);
            for letter in page.letters {
                table.row([
                    letter.no.to_string().into(),
                    letter
                        .run
                        .map(|it| it.to_string())
                        .unwrap_or_default()
                        .into(),
                    letter.name.into(),
                    dim(when(letter.at)),
                    letter.reason.into(),
                    letter.body.to_string().into(),
                ]);
            }
            print(&table.text("no dead letters"));
            Ok(Exit::Done)
        }
        Letters::Replay(said) => {
            let mut exit = Exit::Done;
            for no in said.letters {
                let (ok, text) = match client.replay_dead_letter(no).await? {
                    Replayed::Delivered { run } => (true, format!("delivered to {run}")),
                    Replayed::Published { told } => (true, format!("published; {told} were told")),
                    Replayed::Refused { reason } => (false, reason.to_owned()),
                    _ => (false, "there is no such letter".to_owned()),
                };
                if !ok {
                    exit = Exit::Conflict;
                }
                say(
                    &json!({"no": no, "done": ok, "outcome": text}),
                    &format!("{no}: {text}"),
                );
            }
            Ok(exit)
        }
        Letters::Drop(said) => {
            for no in said.letters {
                let dropped = client.drop_dead_letter(no).await?;
                let text = if dropped {
                    "gone"
                } else {
                    "there is no such letter"
                };
                say(
                    &json!({"no": no, "dropped": dropped}),
                    &format!("{no}: {text}"),
                );
            }
            Ok(Exit::Done)
        }
    }
}

pub(crate) async fn cluster(client: &Client, watch: Watch) -> Outcome {
    watch.run(async || cluster_text(client).await).await?;
    Ok(Exit::Done)
}

async fn cluster_text(client: &Client) -> Result<String, Trouble> {
    let cluster = client.cluster().await?;
    if is_json() {
        return Ok(format!("{:#}\n", json::cluster(cluster)));
    }
    let mut table = Table::new(["RUNNER", "LEASE", "SHARDS", "POOLS", "WEIGHT", "WORKFLOWS"]);
    for runner in cluster.runners {
        let lease = match runner.alive {
            true => when(runner.lease_until),
            false => format!("lost {}", when(runner.lease_until)),
        };
        let served = runner.workflows.iter();
        let served: Vec<String> = served
            .map(|it| match (it.accepts.start(), it.accepts.end()) {
                (from, to) if from == to => format!("{} v{}", it.workflow, it.version),
                (from, to) => format!("{} v{} (v{from} to v{to})", it.workflow, it.version),
            })
            .collect();
        table.row([
            runner.name.into(),
            lease.into(),
            runner.shards.to_string().into(),
            runner.pools.join(", ").into(),
            runner.weight.to_string().into(),
            served.join(", ").into(),
        ]);
    }
    let mut text = table.text("no runners");
    let mut pools = Table::new(["POOL", "SHARDS WITH A RUNNER"]);
    for pool in cluster.pools {
        pools.row([
            pool.name.into(),
            format!("{} of {}", pool.owned, everstep::SHARDS).into(),
        ]);
    }
    text += "\n";
    text += &pools.text("no pools");
    Ok(text)
}

#[derive(Debug, Args)]
pub(crate) struct Export {
    /// Its id, or `workflow/key`.
    run: RunRef,
    /// The file.
    file: PathBuf,
}

pub(crate) async fn export(client: &Client, said: Export) -> Outcome {
    let run = said.run.find(client).await?;
    let bytes = run.export().await?;
    std::fs::write(&said.file, &bytes).map_err(|error| {
        let text = format!("{}: {error}", said.file.display());
        Trouble::new(Exit::Failed, text)
    })?;
    say(
        &json!({"run": run.id().to_string(), "bytes": bytes.len()}),
        &format!("{}: {} bytes", said.file.display(), bytes.len()),
    );
    Ok(Exit::Done)
}

#[derive(Debug, Args)]
pub(crate) struct Import {
    /// The file.
    file: PathBuf,
}

pub(crate) async fn import(client: &Client, said: Import) -> Outcome {
    let bytes = std::fs::read(&said.file).map_err(|error| {
        let text = format!("{}: {error}", said.file.display());
        Trouble::new(Exit::Failed, text)
    })?;
    let run = client.import(bytes).await?;
    say(&json!({"id": run.id().to_string()}), &run.id().to_string());
    Ok(Exit::Done)
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
        "Move everything in {} to PostgreSQL, and close the file?",
        said.from.display()
    );
    if !said.yes && !output::confirmed(&question) {
        return Err(Trouble::new(Exit::Failed, "nothing was moved"));
    }
    let progress = Progress::new("copying");
    let moved = everstep::migrate(&said.from, &said.to)
        .progress(move |now: MigrateProgress| progress.is(now.rows, Some(now.total)))
        .await
        .map_err(Trouble::of)?;
    say(
        &json!({"from": moved.from, "to": moved.to, "rows": moved.rows}),
        &format!(
            "{} rows are in {}; {} is closed",
            moved.rows, moved.to, moved.from
        ),
    );
    Ok(Exit::Done)
}
