//! What is told while it happens, as server-sent events.
//!
//! One task looks for each client that listens, at most twice a second, and says only what is new. It
//! ends with its client.

use std::{collections::HashMap, convert::Infallible, time::Duration};

use axum::response::{
    IntoResponse,
    sse::{Event, KeepAlive, Sse},
};
use everstep::{Client, ClientError, Filter, RunHandle, RunStatus};
use futures_util::{Stream, stream};
use serde::Serialize;
use tokio::sync::mpsc;

use crate::{
    App,
    problem::Problem,
    shapes::{
        history::{Entry, Item},
        run::{Counts, RunDetail},
    },
};

/// How often somebody who listens is told something at most.
const PACE: Duration = Duration::from_millis(500);

/// After how long a line is sent that says nothing, so that nobody takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How many events may wait for a client that reads slowly.
const AHEAD: usize = 16;

/// How many runs are named in one event.
const CHANGED_MAX: usize = 100;

/// How many runs there are of each status.
pub(crate) async fn counts(client: &Client, filter: Filter) -> Result<Counts, ClientError> {
    let mut counts = Counts::default();
    let asked = !filter.statuses.is_empty();
    for status in RunStatus::ALL {
        if asked && !filter.statuses.contains(&status) {
            continue;
        }
        let mut one = filter.clone();
        one.statuses = vec![status];
        let count = client.count().filter(one).await?;
        *counts.counts.of(status) = count;
        counts.total += count;
    }
    Ok(counts)
}

/// Where a task says what it has seen.
struct Listener(mpsc::Sender<Event>);

impl Listener {
    /// Says it; `None` when nobody listens any more.
    async fn tell(&self, name: &str, data: &impl Serialize) -> Option<()> {
        let data = serde_json::to_string(data).unwrap_or_default();
        self.send(Event::default().event(name).data(data)).await
    }

    async fn send(&self, event: Event) -> Option<()> {
        self.0.send(event).await.ok()
    }
}

fn listening<F: Future<Output = Option<()>> + Send + 'static>(
    look: impl FnOnce(Listener) -> F,
) -> impl IntoResponse {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::spawn(look(Listener(sender)));
    Sse::new(events(receiver)).keep_alive(KeepAlive::new().interval(KEEP_ALIVE))
}

fn events(receiver: mpsc::Receiver<Event>) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    })
}

/// Tells how many runs there are, and which of the newest have changed.
pub(crate) fn runs(app: App, filter: Filter) -> impl IntoResponse {
    listening(move |listener| async move {
        let mut counted: Option<Counts> = None;
        let mut seen: HashMap<String, (String, u32)> = HashMap::new();
        loop {
            match counts(&app.client, filter.clone()).await {
                Ok(now) if counted.as_ref() != Some(&now) => {
                    listener.tell("counts", &now).await?;
                    counted = Some(now);
                }
                Ok(_) => {}
                Err(error) => trouble(&listener, error).await?,
            }
            let newest = app.client.list().filter(filter.clone()).limit(CHANGED_MAX);
            if let Ok(page) = newest.await {
                let now: HashMap<String, (String, u32)> = page
                    .runs
                    .iter()
                    .map(|it| {
                        (
                            it.id.to_string(),
                            (it.updated_at.to_string(), it.generation),
                        )
                    })
                    .collect();
                let is_first = seen.is_empty();
                let changed = now.iter().filter(|(id, at)| seen.get(*id) != Some(*at));
                let ids: Vec<&String> = changed.map(|(id, _)| id).collect();
                if !ids.is_empty() && !is_first {
                    listener
                        .tell("changed", &serde_json::json!({"ids": ids}))
                        .await?;
                }
                seen = now;
            }
            pace(&listener, PACE).await?;
        }
    })
}

/// Waits, unless nobody listens any more.
async fn pace(listener: &Listener, pace: Duration) -> Option<()> {
    tokio::select! {
        () = tokio::time::sleep(pace) => Some(()),
        () = listener.0.closed() => None,
    }
}

async fn trouble(listener: &Listener, error: ClientError) -> Option<()> {
    listener.tell("trouble", &Problem::from(error)).await
}

/// Tells of a run and its history, as they change.
pub(crate) fn run(app: App, run: RunHandle) -> impl IntoResponse {
    listening(move |listener| async move {
        let mut told: Option<serde_json::Value> = None;
        let mut entries: HashMap<String, Entry> = HashMap::new();
        loop {
            let info = match run.info().await {
                Ok(info) => info,
                Err(ClientError::UnknownRun { .. }) => {
                    listener.tell("gone", &serde_json::json!({})).await?;
                    return None;
                }
                Err(error) => {
                    trouble(&listener, error).await?;
                    pace(&listener, 4 * PACE).await?;
                    continue;
                }
            };
            let has_ended = info.status.is_terminal();
            let detail = RunDetail::new(info, &app.redaction);
            let now = serde_json::to_value(&detail).unwrap_or_default();
            if told.as_ref() != Some(&now) {
                listener.tell("run", &now).await?;
                told = Some(now);
            }
            if let Ok(history) = run.history().await {
                let all = history.into_iter().map(|it| Entry::new(it, &app.redaction));
                let new = all.filter(|it| entries.get(&it.location) != Some(it));
                let new: Vec<Entry> = new.collect();
                if !new.is_empty() {
                    let data = serde_json::json!({"entries": new});
                    listener.tell("history", &data).await?;
                    entries.extend(new.into_iter().map(|it| (it.location.clone(), it)));
                }
            }
            // What has ended changes only if it is tried again.
            pace(&listener, if has_ended { 4 * PACE } else { PACE }).await?;
        }
    })
}

/// Tells the items of a stream, as they come.
pub(crate) fn stream(app: App, run: RunHandle, name: String, from: u64) -> impl IntoResponse {
    listening(move |listener| async move {
        let mut reader = run.stream_json(&name).from(from);
        loop {
            let next = tokio::select! {
                next = reader.next() => next,
                () = listener.0.closed() => return None,
            };
            match next {
                Ok(Some(item)) => {
                    let item = Item::new(item, &app.redaction);
                    let data = serde_json::to_string(&item).unwrap_or_default();
                    let event = Event::default()
                        .event("item")
                        .id(item.position.to_string())
                        .data(data);
                    listener.send(event).await?;
                }
                Ok(None) => {
                    listener.tell("end", &serde_json::json!({})).await?;
                    return None;
                }
                Err(error) => {
                    trouble(&listener, error).await?;
                    return None;
                }
            }
        }
    })
}
