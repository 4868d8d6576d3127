//! Events.

use axum::{Json as Answer, extract::State, http::StatusCode, response::IntoResponse};

use everstep::Role::{Operate, Read};

use super::{Answered, missing};
use crate::{
    App,
    extract::{Body, Names},
    once::Once,
    problem::Problem,
    shapes::{
        around::{EventShape, PublishShape, PublishedShape},
        millis,
    },
    table::{
        Table,
        Verb::{Get, Post},
    },
};

pub(super) fn add(table: &mut Table) {
    table
        .add(Get, "/events/{event}", Read, ("get_event", "An event by its name"), get)
        .answers::<EventShape>(200, "How many were published, and how many wait.");
    table
        .add(Post, "/events/{event}", Operate, ("publish_event", "Publishes an event"), publish)
        .body::<PublishShape>()
        .once()
        .answers::<PublishedShape>(202, "What became of it.");
}

async fn get(State(app): State<App>, Names(event): Names<String>) -> Answered<EventShape> {
    let row = app.client.event(&event).await?;
    let row = row
        .ok_or_else(|| missing(format!("nobody has published or waited for an event `{event}`")))?;
    Ok(Answer(row.into()))
}

async fn publish(
    State(app): State<App>,
    Names(event): Names<String>,
    once: Once,
    Body(said): Body<PublishShape>,
) -> Result<impl IntoResponse, Problem> {
    let dedupe = once.or(said.dedupe, "dedupe")?;
    let mut publish = app.client.publish_json(&event, &said.body);
    if let Some(key) = said.key {
        publish = publish.key(key);
    }
    if let Some(dedupe) = dedupe {
        publish = publish.dedupe(dedupe);
    }
    if let Some(ms) = said.retain_ms {
        publish = publish.retain(millis(ms));
    }
    if let Some(deliver) = said.deliver {
        publish = publish.delivery(deliver.into());
    }
    let published = PublishedShape::from(publish.await?);
    Ok((StatusCode::ACCEPTED, Answer(published)))
}
