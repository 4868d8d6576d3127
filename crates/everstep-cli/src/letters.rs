//! `dead-letters`: messages that nobody could be given.

use clap::{Args, Subcommand};
use everstep::{Client, Replayed};
use everstep_server::json;
use serde_json::json;

use crate::{
    Exit,
    args::RunRef,
    audit::Change,
    output::{Shown, Table, dim, is_json, many, say, short, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Letters {
    /// List dead letters.
    List(List),
    /// Send a dead letter again.
    Replay(Replay),
    /// Forget a dead letter.
    Drop(Named),
}

#[derive(Debug, Args)]
pub(crate) struct List {
    /// Those for this run.
    #[arg(long)]
    run: Option<everstep::RunId>,
    /// Those of this name.
    #[arg(long)]
    name: Option<String>,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

#[derive(Debug, Args)]
pub(crate) struct Replay {
    /// Its number.
    no: u64,
    /// To another run.
    #[arg(long, value_name = "RUN")]
    to: Option<RunRef>,
    /// As an event of this name.
    #[arg(long, value_name = "EVENT", conflicts_with = "to")]
    as_event: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Its number.
    no: u64,
}

pub(crate) async fn run(client: &Client, command: Letters) -> Outcome {
    match command {
        Letters::List(said) => list(client, said).await,
        Letters::Replay(said) => replay(client, said).await,
        Letters::Drop(Named { no }) => {
            let change = Change::new("drop_dead_letter", no);
            let dropped = change.made(client, async || match client.drop_dead_letter(no).await? {
                true => Ok(()),
                false => Err(unknown(no)),
            });
            dropped.await?;
            say(json!({"dropped": no}), "it is gone");
            Ok(Exit::Done)
        }
    }
}

fn unknown(no: u64) -> Trouble {
    let text = format!("there is no dead letter {no}; it may have been sent again or dropped");
    Trouble::new(Exit::NotFound, text)
}

async fn list(client: &Client, said: List) -> Outcome {
    let mut letters = client.dead_letters().limit(said.limit);
    if let Some(run) = said.run {
        letters = letters.run(run);
    }
    if let Some(name) = said.name {
        letters = letters.name(name);
    }
    let page = letters.await?;
    if is_json() {
        let letters: Vec<_> = page.letters.into_iter().map(json::letter).collect();
        Shown::Json(json!({"letters": letters})).print();
        return Ok(Exit::Done);
    }
    let mut table = Table::new(["NO", "RUN", "NAME", "CAME", "WHY", "BODY"]);
    for letter in page.letters {
        let run = letter.run.map(|it| it.to_string()).unwrap_or_default();
        table.row([
            letter.no.to_string().into(),
            run.into(),
            letter.name.into(),
            dim(when(letter.at)),
            letter.reason.into(),
            short(&letter.body.to_string(), 80).into(),
        ]);
    }
    Shown::Text(table.text("no dead letters")).print();
    Ok(Exit::Done)
}

async fn replay(client: &Client, said: Replay) -> Outcome {
    let no = said.no;
    let mut letter = client.replay_dead_letter(no);
    let mut detail = String::new();
    if let Some(run) = said.to {
        let target = run.target(client).await?;
        detail = format!("to {}", RunRef::Target(target.clone()));
        letter = letter.to(target);
    }
    if let Some(event) = said.as_event {
        detail = format!("as event {event}");
        letter = letter.as_event(event);
    }
    let exit_of = |replayed: &Replayed| match replayed {
        Replayed::Delivered { .. } | Replayed::Published { .. } => Exit::Done,
        Replayed::Refused { .. } => Exit::Conflict,
        _ => Exit::NotFound,
    };
    let change = Change::new("replay_dead_letter", no).detail(detail);
    let replayed = change.made_with(client, exit_of, async || Ok(letter.await?));
    match replayed.await? {
        Replayed::Delivered { run } => {
            let run = run.to_string();
            say(json!({"delivered": run}), &format!("delivered to {run}"));
        }
        Replayed::Published { told } => {
            let text = match told {
                0 => "published; nobody waits for it yet".to_owned(),
                told => format!("published; {} told", many(told, "wait")),
            };
            say(json!({"published": true, "told": told}), &text);
        }
        Replayed::Refused { reason } => {
            let text = format!("dead letter {no} stays one: {reason}");
            return Err(Trouble::new(Exit::Conflict, text)
                .hint("send it elsewhere with `--to` or `--as-event`"));
        }
        _ => return Err(unknown(no)),
    }
    Ok(Exit::Done)
}
