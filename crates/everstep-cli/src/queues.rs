//! `queues`: what waits for workers.

use clap::{Args, Subcommand, ValueEnum};
use everstep::{Client, ItemId, ItemState};
use everstep_server::json;
use serde_json::{Value as Json, json};

use crate::{
    Exit,
    args::{Span, json as parse_json},
    audit::Change,
    output::{Shown, Table, Watch, dim, is_json, say, short, when},
    trouble::{Outcome, Trouble},
};

#[derive(Debug, Subcommand)]
pub(crate) enum Queues {
    /// List the queues that have items.
    List(Watch),
    /// How many items a queue has in each state.
    Show(Named),
    /// List items of a queue.
    Items(Items),
    /// Put an item into a queue.
    Put(Put),
    /// Take items back that nobody works on.
    Cancel(These),
    /// Let dead items be tried again.
    Replay(These),
    /// Forget dead items.
    Drop(These),
}

#[derive(Debug, Args)]
pub(crate) struct Named {
    /// Its name.
    queue: String,
    #[command(flatten)]
    watch: Watch,
}

#[derive(Debug, Args)]
pub(crate) struct Items {
    /// The queue.
    queue: String,
    /// Only those in this state.
    #[arg(long, value_enum)]
    state: Option<State>,
    /// How many at most.
    #[arg(long, short = 'n', default_value_t = 50)]
    limit: usize,
}

/// The state of an item.
#[derive(Clone, Copy, Debug, ValueEnum)]
enum State {
    Ready,
    Delayed,
    Claimed,
    Done,
    Dead,
}

#[derive(Debug, Args)]
pub(crate) struct Put {
    /// The queue.
    queue: String,
    /// What its handler is given: JSON, `@file`, or `-` for standard input.
    #[arg(default_value = "null")]
    input: String,
    /// The higher, the earlier.
    #[arg(long, allow_negative_numbers = true)]
    priority: Option<i32>,
    /// After how long it may be worked on.
    #[arg(long, value_name = "TIME")]
    after: Option<Span>,
    /// A second item with the same one is not put in.
    #[arg(long)]
    dedupe: Option<String>,
}

#[derive(Debug, Args)]
pub(crate) struct These {
    /// Their numbers.
    #[arg(required = true)]
    items: Vec<ItemId>,
}

pub(crate) async fn run(client: &Client, command: Queues) -> Outcome {
    match command {
        Queues::List(watch) => watch.run(async || list(client).await).await,
        Queues::Show(Named { queue, watch }) => {
            watch.run(async || show(client, &queue).await).await
        }
        Queues::Items(said) => items(client, &said).await,
        Queues::Put(said) => put(client, said).await,
        Queues::Cancel(said) => {
            let wrong = "it is worked on, or has ended";
            let doing = Doing::new("cancel_item", "taken back", wrong);
            each(client, said, doing, async |client, item| {
                client.queue_item::<Json>(item).cancel().await
            })
            .await
        }
        Queues::Replay(said) => {
            let doing = Doing::new("replay_item", "tried again", "it is not dead");
            each(client, said, doing, async |client, item| {
                client.queue_item::<Json>(item).replay().await
            })
            .await
        }
        Queues::Drop(said) => {
            let doing = Doing::new("drop_item", "gone", "it is not dead");
            each(client, said, doing, async |client, item| {
                client.queue_item::<Json>(item).drop_dead().await
            })
            .await
        }
    }
}

async fn list(client: &Client) -> Result<Shown, Trouble> {
    let queues = client.queues().await?;
    if is_json() {
        let queues = queues.iter().map(|it| {
            let mut json = json!({
                "name": it.name, "ready": it.ready.number, "delayed": it.delayed.number,
                "claimed": it.claimed.number, "done": it.done.number, "dead": it.dead.number,
            });
            if let Some(at) = it.oldest_ready {
                json["oldest_ready"] = json!(at.to_string());
            }
            json
        });
        let queues: Vec<Json> = queues.collect();
        return Ok(Shown::Json(json!({"queues": queues})));
    }
    let head = ["QUEUE", "READY", "DELAYED", "CLAIMED", "DONE", "DEAD", "OLDEST READY"];
    let mut table = Table::new(head);
    for queue in queues {
        table.row([
            queue.name.into(),
            queue.ready.to_string().into(),
            queue.delayed.to_string().into(),
            queue.claimed.to_string().into(),
            queue.done.to_string().into(),
            queue.dead.to_string().into(),
            queue.oldest_ready.map(when).unwrap_or_default().into(),
        ]);
    }
    Ok(Shown::Text(table.text("no queue has items")))
}

async fn show(client: &Client, queue: &str) -> Result<Shown, Trouble> {
    let stats = client.queue_stats(queue).await?;
    if is_json() {
        return Ok(Shown::Json(json::queue(queue, stats)));
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
        text += &format!("the oldest ready item is ready since {}\n", when(at));
    }
    Ok(Shown::Text(text))
}

async fn items(client: &Client, said: &Items) -> Outcome {
    let state = said.state.map(|state| match state {
        State::Ready => ItemState::Ready,
        State::Delayed => ItemState::Delayed,
        State::Claimed => ItemState::Claimed,
        State::Done => ItemState::Done,
        State::Dead => ItemState::Dead,
    });
    let items = client.queue_items(&said.queue, state, None, said.limit).await?;
    if is_json() {
        let items: Vec<_> = items.into_iter().map(json::item).collect();
        Shown::Json(json!({"items": items})).print();
        return Ok(Exit::Done);
    }
    let head = ["ITEM", "STATE", "PRIORITY", "ATTEMPTS", "PUT", "INPUT", "ERROR"];
    let mut table = Table::new(head);
    for item in items {
        let input = item.input.map(|it| it.to_string()).unwrap_or_default();
        let error = item.error.map(|it| it.message).unwrap_or_default();
        table.row([
            item.id.to_string().into(),
            format!("{:?}", item.state).to_lowercase().into(),
            item.priority.to_string().into(),
            item.attempts.to_string().into(),
            dim(when(item.created_at)),
            short(&input, 80).into(),
            short(&error, 80).into(),
        ]);
    }
    Shown::Text(table.text("no items")).print();
    Ok(Exit::Done)
}

async fn put(client: &Client, said: Put) -> Outcome {
    let input = parse_json(&said.input)?;
    let mut item = client.enqueue_json(&said.queue, &input);
    if let Some(priority) = said.priority {
        item = item.priority(priority);
    }
    if let Some(Span(delay)) = said.after {
        item = item.delay(delay);
    }
    if let Some(dedupe) = said.dedupe {
        item = item.dedupe(dedupe);
    }
    let change = Change::new("put_item", &said.queue);
    let item = change.made(client, async || Ok(item.await?)).await?;
    let id = item.id().to_string();
    say(json!({"id": id, "attached": item.attached()}), &id);
    Ok(Exit::Done)
}

/// What is done to items, in words.
struct Doing {
    /// As the audit log calls it.
    action: &'static str,
    done: &'static str,
    /// Why it was not done.
    wrong: &'static str,
}

impl Doing {
    fn new(action: &'static str, done: &'static str, wrong: &'static str) -> Doing {
        Doing { action, done, wrong }
    }
}

/// Does something to each item, whatever becomes of the others.
async fn each(
    client: &Client,
    said: These,
    Doing { action, done, wrong }: Doing,
    act: impl AsyncFn(&Client, ItemId) -> Result<bool, everstep::ClientError>,
) -> Outcome {
    let mut exit = Exit::Done;
    let mut all = Vec::new();
    for item in said.items {
        let change = Change::new(action, item);
        let changed = change.made(client, async || match act(client, item).await? {
            true => Ok(()),
            false => {
                let text = format!("item {item} was not changed: {wrong}");
                Err(Trouble::new(Exit::Conflict, text))
            }
        });
        let worse = match changed.await {
            Ok(()) => {
                if !is_json() {
                    say(Json::Null, &format!("{item}: {done}"));
                }
                all.push(json!({"item": item.to_string(), "done": true}));
                continue;
            }
            Err(trouble) => trouble,
        };
        if exit == Exit::Done {
            exit = worse.exit();
        }
        match is_json() {
            true => {
                let error = worse.text();
                all.push(json!({"item": item.to_string(), "done": false, "error": error}));
            }
            false => worse.print(),
        }
    }
    if is_json() {
        Shown::Json(json!({"items": all})).print();
    }
    Ok(exit)
}
