//! `send`, `resolve` and `publish`: what runs are told from outside.

use clap::{Args, ValueEnum};
use everstep::{Client, Deliver, IfFinished, PublishedEvent, Resolved, Sent};
use serde_json::json;

use crate::{
    Exit,
    args::{RunRef, json as parse_json},
    audit::Change,
    output::{many, say, when},
    trouble::Outcome,
};

#[derive(Debug, Args)]
pub(crate) struct Send {
    /// The run's id, at least 8 digits of its beginning or end, or `workflow/key`.
    run: RunRef,
    /// What it listens to.
    name: String,
    /// What is said: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    body: String,
    /// A second message with the same one is not delivered.
    #[arg(long)]
    dedupe: Option<String>,
    /// What becomes of it if the run has ended.
    #[arg(long, value_enum, default_value_t = Ended::Error)]
    if_finished: Ended,
}

/// What becomes of a message to a run that has ended.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum Ended {
    /// It is refused.
    Error,
    /// It is kept as a dead letter.
    DeadLetter,
}

pub(crate) async fn send(client: &Client, said: Send) -> Outcome {
    let body = parse_json(&said.body)?;
    let target = said.run.target(client).await?;
    let mut send = client.send(target.clone(), &said.name, &body);
    if let Some(dedupe) = said.dedupe {
        send = send.dedupe(dedupe);
    }
    if let Ended::DeadLetter = said.if_finished {
        send = send.if_finished(IfFinished::DeadLetter);
    }
    let change = Change::new("send_message", RunRef::Target(target)).detail(&said.name);
    let sent = change.made(client, async || Ok(send.await?));
    let (sent, text) = match sent.await? {
        Sent::Delivered => ("delivered", "delivered"),
        Sent::Duplicate => ("duplicate", "an equal one was sent before; nothing was done"),
        Sent::DeadLettered => ("dead_lettered", "the run has ended; it is kept as a dead letter"),
        Sent::Published => ("published", "the run has ended; it was published"),
    };
    say(json!({"sent": sent}), text);
    Ok(Exit::Done)
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

pub(crate) async fn resolve(client: &Client, said: Resolve) -> Outcome {
    let value = parse_json(&said.value)?;
    let (action, word) = match said.reject {
        false => ("resolve_token", "resolved"),
        true => ("reject_token", "rejected"),
    };
    let exit_of = |settled: &Resolved| match settled {
        Resolved::First => Exit::Done,
        Resolved::Already { .. } => Exit::Conflict,
    };
    let change = Change::new(action, &said.token);
    let settled = change.made_with(client, exit_of, async || {
        Ok(match said.reject {
            false => client.resolve_json(said.token, &value).await?,
            true => client.reject_json(said.token, &value).await?,
        })
    });
    let settled = settled.await?;
    let exit = exit_of(&settled);
    let (word, text) = match settled {
        Resolved::First => (word, word.to_owned()),
        Resolved::Already { at } => {
            let text = format!("it was settled before, {}; nothing was changed", when(at));
            ("before", text)
        }
    };
    say(json!({"resolved": word}), &text);
    Ok(exit)
}

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
    /// Only one of those who wait gets it.
    #[arg(long)]
    to_one: bool,
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
    if said.to_one {
        publish = publish.delivery(Deliver::One);
    }
    let change = Change::new("publish_event", &said.event);
    let published_event = change.made(client, async || Ok(publish.await?));
    let (json, text) = match published_event.await? {
        PublishedEvent::Published { told, spreading, kept, .. } => (
            json!({"duplicate": false, "told": told, "spreading": spreading, "kept": kept}),
            published(told, spreading, kept),
        ),
        _ => (
            json!({"duplicate": true}),
            "an equal one was published before; nothing was done".to_owned(),
        ),
    };
    say(json, &text);
    Ok(Exit::Done)
}

fn published(told: u64, spreading: bool, kept: bool) -> String {
    let mut text = match told {
        0 => "published; nobody waits for it yet".to_owned(),
        told => format!("published; {} told", many(told, "wait")),
    };
    if spreading {
        text += ", and more are being told";
    }
    if kept {
        text += "; it is kept for those who wait later";
    }
    text
}
