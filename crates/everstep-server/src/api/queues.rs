//! Queues.

use axum::{Extension, Json as Answer, extract::State, http::StatusCode, response::IntoResponse};
use everstep::Role::{Operate, Read};
use everstep::{ItemHandle, ItemId};
use serde_json::Value as Json;

use super::{Answered, bad, page_size};
use crate::{
    App,
    extract::{Body, Names, Query},
    once::Once,
    problem::{Outcome, Problem},
    shapes::{
        millis,
        queues::{Changed, ItemPut, ItemQuery, PutItem, QueueItem, QueueItems, QueueShape},
    },
    table::{
        Table,
        Verb::{Get, Post},
    },
};

pub(super) fn add(table: &mut Table) {
    table
        .add(Get, "/queues/{queue}", Read, ("get_queue", "How many items a queue has"), get)
        .answers::<QueueShape>(200, "The numbers.");
    table
        .add(
            Get,
            "/queues/{queue}/items",
            Read,
            ("list_items", "Items of a queue, by number"),
            list,
        )
        .query::<ItemQuery>()
        .answers::<QueueItems>(200, "A page of items.");
    table
        .add(Post, "/queues/{queue}/items", Operate, ("put_item", "Puts an item into a queue"), put)
        .body::<PutItem>()
        .once()
        .answers::<ItemPut>(200, "It was there already.")
        .answers::<ItemPut>(201, "It is in the queue.");
    table
        .add(Get, "/queues/{queue}/items/{item}", Read, ("get_item", "An item of a queue"), item)
        .answers::<QueueItem>(200, "The item.");
    table
        .add(
            Post,
            "/queues/{queue}/items/{item}/cancel",
            Operate,
            ("cancel_item", "Takes back an item that nobody has claimed"),
            cancel,
        )
        .answers::<Changed>(200, "Whether it was there.");
    table
        .add(
            Post,
            "/queues/{queue}/items/{item}/replay",
            Operate,
            ("replay_item", "Lets a dead item be tried again"),
            replay,
        )
        .answers::<Changed>(200, "Whether it was dead.");
    table
        .add(
            Post,
            "/queues/{queue}/items/{item}/drop",
            Operate,
            ("drop_item", "Forgets a dead item"),
            drop_dead,
        )
        .answers::<Changed>(200, "Whether it was dead.");
}

async fn get(State(app): State<App>, Names(queue): Names<String>) -> Answered<QueueShape> {
    let stats = app.client.queue_stats(&queue).await?;
    Ok(Answer(QueueShape::new(queue, stats)))
}

async fn list(
    State(app): State<App>,
    Names(queue): Names<String>,
    Query(query): Query<ItemQuery>,
) -> Answered<QueueItems> {
    let limit = page_size(query.limit)?;
    let after = query.cursor.as_deref().map(item_id).transpose()?;
    let state = query.state.map(Into::into);
    let mut items = app.client.queue_items(&queue, state, after, limit + 1).await?;
    let has_more = items.len() > limit;
    items.truncate(limit);
    let next = items.last().filter(|_| has_more).map(|it| it.id.to_string());
    let items = items.into_iter();
    Ok(Answer(QueueItems {
        items: items.map(|it| QueueItem::new(it, &app.redaction)).collect(),
        next,
    }))
}

fn item_id(text: &str) -> Result<ItemId, Problem> {
    text.parse().map_err(|_| bad(format!("`{text}` is no number of an item")))
}

/// An item, if it is in this queue.
async fn found(app: &App, (queue, item): (String, String)) -> Result<ItemHandle<Json>, Problem> {
    let id = item_id(&item)?;
    let handle = app.client.queue_item::<Json>(id);
    if handle.info().await?.queue != queue {
        return Err(everstep::ClientError::UnknownItem { item: id }.into());
    }
    Ok(handle)
}

async fn put(
    State(app): State<App>,
    Names(queue): Names<String>,
    once: Once,
    Body(said): Body<PutItem>,
) -> Result<impl IntoResponse, Problem> {
    let dedupe = once.or(said.dedupe, "dedupe")?;
    app.redaction.check_sent("`input`", &said.input)?;
    let mut put = app.client.enqueue_json(&queue, &said.input);
    if let Some(priority) = said.priority {
        put = put.priority(priority);
    }
    if let Some(ms) = said.delay_ms {
        put = put.delay(millis(ms));
    }
    if let Some(dedupe) = dedupe {
        put = put.dedupe(dedupe);
    }
    let item = put.await?;
    let done = ItemPut { id: item.id().to_string(), attached: item.attached() };
    let status = match done.attached {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    let found = if done.attached { "found " } else { "" };
    let outcome = Extension(Outcome::with(format!("{found}item {}", done.id)));
    Ok((status, outcome, Answer(done)))
}

async fn item(
    State(app): State<App>,
    Names(names): Names<(String, String)>,
) -> Answered<QueueItem> {
    let info = found(&app, names).await?.info().await?;
    Ok(Answer(QueueItem::new(info, &app.redaction)))
}

async fn cancel(
    State(app): State<App>,
    Names(names): Names<(String, String)>,
) -> Answered<Changed> {
    let changed = found(&app, names).await?.cancel().await?;
    Ok(Answer(Changed { changed }))
}

async fn replay(
    State(app): State<App>,
    Names(names): Names<(String, String)>,
) -> Answered<Changed> {
    let changed = found(&app, names).await?.replay().await?;
    Ok(Answer(Changed { changed }))
}

async fn drop_dead(
    State(app): State<App>,
    Names(names): Names<(String, String)>,
) -> Answered<Changed> {
    let changed = found(&app, names).await?.drop_dead().await?;
    Ok(Answer(Changed { changed }))
}
