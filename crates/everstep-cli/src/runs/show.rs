//! `runs show`: a run with what it has done.

use std::collections::HashMap;

use clap::Args;
use everstep::{Client, EntryStatus, HistoryEntry, RunHandle, RunInfo, UnreadMessage};
use everstep_server::json;
use serde_json::{Value as Json, json};

use super::{took, workflow};
use crate::{
    args::RunRef,
    output::{self, Shown, Table, Watch, dim, is_json, short, span, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Args)]
pub(crate) struct Show {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    run: RunRef,
    #[command(flatten)]
    watch: Watch,
}

pub(super) async fn run(client: &Client, said: Show) -> Outcome {
    let run = said.run.find(client).await?;
    said.watch.run(async || show(&run).await).await
}

/// How many children and unread messages are shown at most.
const MANY: usize = 100;

fn message(it: &UnreadMessage) -> Json {
    let mut json = json!({
        "seq": it.seq, "name": it.name, "sent_at": it.sent_at.to_string(),
    });
    if let Some(body) = &it.body {
        json["body"] = body.clone();
    }
    json
}

async fn show(run: &RunHandle) -> Result<Shown, Trouble> {
    let info = run.info().await?;
    let mut history = run.history().await?;
    let state = run.state_json().await?;
    let children = run.children().limit(MANY).await?.runs;
    let unread = run.inbox(MANY).await?;
    if is_json() {
        let entries: Vec<_> = history.into_iter().map(json::entry).collect();
        let mut shown = json::run(info);
        shown["history"] = json!(entries);
        shown["state"] = json!(state);
        let children: Vec<_> = children.into_iter().map(json::run_summary).collect();
        shown["children"] = json!(children);
        let unread: Vec<_> = unread.iter().map(message).collect();
        shown["messages"] = json!(unread);
        return Ok(Shown::Json(shown));
    }
    let mut facts = facts(&info);
    for (key, value) in state {
        let value = short(&value.to_string(), 200);
        facts.row([dim(format!("state {key}")), value.into()]);
    }
    let mut text = facts.text("");
    if !history.is_empty() {
        text += "\n";
        in_order(&mut history);
        text += &steps(&history, !info.status.is_terminal()).text("");
    }
    if !children.is_empty() {
        let mut table = Table::new(["CHILD", "WORKFLOW", "STATUS", "STARTED"]);
        for child in children {
            table.row([
                child.id.to_string().into(),
                workflow(&child).into(),
                output::status(child.status),
                dim(when(child.created_at)),
            ]);
        }
        text += "\n";
        text += &table.text("");
    }
    if !unread.is_empty() {
        let mut table = Table::new(["UNREAD", "SENT", "BODY"]);
        for message in unread {
            let body = message.body.map(|it| it.to_string()).unwrap_or_default();
            table.row([message.name.into(), dim(when(message.sent_at)), short(&body, 80).into()]);
        }
        text += "\n";
        text += &table.text("");
    }
    Ok(Shown::Text(text))
}

fn facts(info: &RunInfo) -> Table {
    let many = |number: u32, least: u32| (number > least).then(|| number.to_string());
    let moment = |at| format!("{at} ({})", when(at));
    let mut facts = Table::new(["run".to_owned(), info.id.to_string()]);
    let mut fact = |name: &'static str, value: Option<String>| {
        if let Some(value) = value {
            facts.row([dim(name), value.into()]);
        }
    };
    fact("workflow", Some(workflow(info)));
    fact("key", info.key.clone());
    fact("status", Some(info.status.to_string()));
    let cancelled = info.cancel_requested && !info.status.is_terminal();
    fact("cancel", cancelled.then(|| "was asked for".to_owned()));
    fact("waits for", info.waiting.clone());
    fact("due", info.available_at.map(when));
    fact("started", Some(moment(info.created_at)));
    fact("ended", info.finished_at.map(moment));
    fact("took", Some(took(info)));
    fact("deadline", info.deadline_at.map(moment));
    fact("tick", info.scheduled_at.map(moment));
    fact("attempts", many(info.attempts, 1));
    fact("recoveries", many(info.recoveries, 0));
    fact("generation", many(info.generation, 1));
    let pool = Some(&info.pool).filter(|pool| *pool != "default");
    fact("pool", pool.cloned());
    fact("parent", info.parent.map(|parent| parent.to_string()));
    for (name, value) in &info.tags {
        fact("tag", Some(format!("{name}:{value}")));
    }
    fact("input", Some(short(&info.input.to_string(), 400)));
    let output = info.output.as_ref();
    fact("output", output.map(|it| short(&it.to_string(), 400)));
    fact("failure", info.failure.as_ref().map(|it| it.full()));
    facts
}

/// As it has happened, with everything after what it is a part of. What has no number has not ended.
pub(super) fn in_order(history: &mut [HistoryEntry]) {
    // The first that has ended in each.
    let mut first: HashMap<&str, u64> = HashMap::new();
    for entry in &*history {
        let Some(number) = entry.number else { continue };
        let mut location = Some(&*entry.location);
        while let Some(part) = location {
            let first = first.entry(part).or_insert(number);
            *first = number.min(*first);
            location = part.rsplit_once('/').map(|(outer, _)| outer);
        }
    }
    let of = |entry: &HistoryEntry| first.get(&*entry.location).copied();
    let numbers: Vec<_> = history.iter().map(of).collect();
    let place = |(entry, number): (&HistoryEntry, Option<u64>)| {
        let depth = entry.location.matches('/').count();
        let place = (number.unwrap_or(u64::MAX), depth, entry.created_at);
        (entry.location.clone(), place)
    };
    let places: HashMap<String, _> = history.iter().zip(numbers).map(place).collect();
    history.sort_by_key(|entry| places.get(&entry.location).copied());
}

fn steps(history: &[HistoryEntry], is_live: bool) -> Table {
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
            (None, None, None) => {
                let waits = is_live && entry.status == EntryStatus::Waiting;
                let wakes = entry.wake_at.filter(|_| waits);
                wakes.map(when).unwrap_or_default()
            }
        };
        table.row([
            entry.location.clone().into(),
            dim(kind(entry)),
            status_word(entry.status).into(),
            entry.attempts.to_string().into(),
            took.into(),
            short(&gave, 80).into(),
        ]);
    }
    table
}

fn kind(entry: &HistoryEntry) -> String {
    format!("{:?}", entry.kind).to_lowercase()
}

pub(super) fn status_word(status: EntryStatus) -> String {
    match status {
        EntryStatus::TimedOut => "timed out".to_owned(),
        other => format!("{other:?}").to_lowercase(),
    }
}
