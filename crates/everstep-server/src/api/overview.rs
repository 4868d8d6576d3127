//! What is seen from above: all queues, and charts; and what a run has around it.

use axum::{Json as Answer, extract::State};
use everstep::{Clock, Role::Read, SystemClock};

use super::{Answered, page_size, run_cursor, runs::handle};
use crate::{
    App,
    extract::{Names, Query},
    shapes::{
        LONGEST, Time,
        history::PageQuery,
        millis,
        overview::{
            BucketShape, MessageList, QueueList, QueueTally, StatsQuery, StatsShape, Unread,
        },
        run::RunList,
    },
    table::{Table, Verb::Get},
};

/// How many messages are shown of those that a run has not read.
const MESSAGES_MAX: usize = 500;

/// How long a chart is, and how many parts it has, if it is not said.
const CHART_MS: u64 = 3_600_000;
const CHART_PARTS: u64 = 60;

pub(super) fn add(table: &mut Table) {
    let name = ("list_queues", "The queues that have items");
    table.add(Get, "/queues", Read, name, queues).answers::<QueueList>(200, "By name.");
    let name = ("get_stats", "What has happened over time");
    table
        .add(Get, "/stats", Read, name, stats)
        .query::<StatsQuery>()
        .problem(422)
        .answers::<StatsShape>(200, "In parts of equal length.");
    let name = ("list_messages", "What was sent to a run, and it has not read");
    table
        .add(Get, "/runs/{run}/messages", Read, name, messages)
        .answers::<MessageList>(200, "The first of them.");
    let name = ("list_children", "The runs that a run has started, newest first");
    table
        .add(Get, "/runs/{run}/children", Read, name, children)
        .query::<PageQuery>()
        .answers::<RunList>(200, "A page of them.");
}

async fn queues(State(app): State<App>) -> Answered<QueueList> {
    let queues = app.client.queues().await?.into_iter();
    Ok(Answer(QueueList { queues: queues.map(QueueTally::from).collect() }))
}

async fn stats(State(app): State<App>, Query(query): Query<StatsQuery>) -> Answered<StatsShape> {
    let to = query.to.map_or_else(|| SystemClock.now(), |Time(to)| to);
    let from = query.from.map_or_else(|| to - millis(CHART_MS), |Time(from)| from);
    let part = match query.bucket_ms {
        Some(ms) => millis(ms),
        None => millis((to.since(from).as_millis() as u64 / CHART_PARTS).max(1)),
    };
    let buckets = app.client.stats(from, to, part.min(LONGEST)).await?;
    Ok(Answer(StatsShape {
        buckets: buckets.into_iter().map(BucketShape::from).collect(),
        horizon: app.client.retention_horizon().await?.map(Time),
    }))
}

async fn messages(State(app): State<App>, Names(run): Names<String>) -> Answered<MessageList> {
    let unread = handle(&app, &run).await?.inbox(MESSAGES_MAX).await?;
    let unread = unread.into_iter();
    Ok(Answer(MessageList { messages: unread.map(|it| Unread::new(it, &app.redaction)).collect() }))
}

async fn children(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<PageQuery>,
) -> Answered<RunList> {
    let limit = page_size(query.limit)?;
    let mut children = handle(&app, &run).await?.children().limit(limit);
    if let Some(cursor) = run_cursor(query.cursor.as_deref())? {
        children = children.after(cursor);
    }
    Ok(Answer(RunList::new(children.await?, &app.redaction)))
}
