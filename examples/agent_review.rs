//! Agents that pass their work on, and a person who looks at it before the last of them.
//!
//! ```text
//! cargo run --release --example agent_review                          # all of it, by itself
//! cargo run --release --example agent_review -- start "a home page"   # waits for the person
//! cargo run --release --example agent_review -- list                  # in a second terminal
//! cargo run --release --example agent_review -- review TOKEN approve "shorter"
//! cargo run --release --example agent_review -- review TOKEN reject "dull"
//! ```
//!
//! The agents are scripts. The token is in `agent_review.outbox`, where a real program would send an
//! e-mail. The review may come before, while and after the first program waits, and while it does not
//! run at all: it is kept in `agent_review.db`. The first one counts.
//!
//! `EVERSTEP_DB` names another file, or a database (`postgres://..`, with `--features postgres`). Programs
//! on several machines may then `start` the same task: it is one run, and one of them runs it.

#[path = "agent_review/flow.rs"]
mod flow;

use std::{env, error::Error as StdError, fs, path::PathBuf, process::Command};

use everstep::{Resolved, prelude::*};
use flow::{Approval, Message, Outside, REVIEW_GATE, Rejection, Task, agent_review, scripted};

const OUTBOX: &str = "agent_review.outbox";

#[tokio::main]
async fn main() -> Result<(), Box<dyn StdError>> {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    match arguments[..] {
        [] => by_itself().await,
        ["start", task] => start(task).await,
        ["list"] => list().await,
        ["review", token, verdict] => review(token, verdict, "").await,
        ["review", token, verdict, notes] => review(token, verdict, notes).await,
        _ => Err("say `start TASK`, `list`, or `review TOKEN approve|reject [NOTES]`".into()),
    }
}

/// The file or the URL that everything is kept in.
fn database() -> String {
    env::var("EVERSTEP_DB").unwrap_or_else(|_| "agent_review.db".to_owned())
}

async fn engine() -> Result<Engine, Box<dyn StdError>> {
    let outside = Outside {
        ask: Box::new(|agent, prompt, _| {
            let last = prompt.lines().last().unwrap_or_default();
            scripted(vec![
                Message::Thinking(format!("{agent} reads {} lines", prompt.lines().count())),
                Message::Result(format!("{last} [{agent}]")),
            ])
        }),
        outbox: PathBuf::from(OUTBOX),
    };
    let builder = Engine::open(database()).provide(outside);
    Ok(builder.register(agent_review).start().await?)
}

/// The first terminal: has the engine.
async fn start(task: &str) -> Result<(), Box<dyn StdError>> {
    let engine = engine().await?;
    let task = Task { task: task.to_owned(), patience: None };
    let run = engine.client().start(agent_review, task).await?;
    println!("the draft and the token will be in {OUTBOX}; `list` shows what waits");
    println!("{}", run.result().await?);
    engine.shutdown().await;
    Ok(())
}

/// Another terminal: what waits, and for what.
async fn list() -> Result<(), Box<dyn StdError>> {
    let client = Client::open(database()).await?;
    for run in client.list().workflow("agent_review").await?.runs {
        let waiting = run.waiting.unwrap_or_default();
        println!("{} {} {waiting}", run.id, run.status);
    }
    Ok(())
}

/// Another terminal: the person, who has nothing but the token.
async fn review(token: &str, verdict: &str, notes: &str) -> Result<(), Box<dyn StdError>> {
    let client = Client::open(database()).await?;
    let gate = client.deferred(REVIEW_GATE, token);
    let notes = notes.to_owned();
    let settled = match verdict {
        "approve" => gate.resolve(&Approval { notes }).await?,
        "reject" => gate.reject(&Rejection { notes }).await?,
        other => return Err(format!("`{other}` is no verdict; say `approve` or `reject`").into()),
    };
    match settled {
        Resolved::First => println!("noted"),
        Resolved::Already { at } => println!("it was reviewed before, at {at}"),
    }
    Ok(())
}

/// All of it without a person: the review comes from a second process.
async fn by_itself() -> Result<(), Box<dyn StdError>> {
    let engine = engine().await?;
    let client = engine.client();
    let n = client.count().workflow("agent_review").await? + 1;
    let task = Task { task: format!("home page {n}"), patience: Some(60) };
    let run = client.start(agent_review, task).await?;
    // The last message before the draft is out is the second agent's result.
    let mut messages = run.stream::<Message>("messages");
    let mut results = 0;
    while results < 2 {
        let Some(item) = messages.next().await? else {
            break;
        };
        println!("  {:?}", item.value);
        results += u32::from(matches!(item.value, Message::Result(_)));
    }
    let draft = format!("home page {n} ");
    let token = loop {
        let outbox = fs::read_to_string(OUTBOX).unwrap_or_default();
        let line = outbox.lines().find(|line| line.contains(&draft));
        if let Some((token, _)) = line.and_then(|line| line.split_once(' ')) {
            break token.to_owned();
        }
        tokio::time::sleep(std::time::Duration::from_millis(20)).await;
    };
    let mut person = Command::new(env::current_exe()?);
    person.args(["review", &token, "approve", "shorter"]);
    let said = person.status()?;
    println!("the review ended with {said}");
    println!("{}", run.result().await?);
    engine.shutdown().await;
    Ok(())
}
