//! What is told while it happens, as server-sent events.
//!
//! One task looks for each client that listens, at most twice a second and for a tenth of its time, and
//! says only what is new. It ends with its client, with the server, with the client of the store, and
//! when its client may see nothing any more.

use std::{
    collections::BTreeMap,
    convert::Infallible,
    time::{Duration, Instant},
};

use axum::{
    http::HeaderMap,
    response::{
        IntoResponse, Response,
        sse::{Event, KeepAlive, Sse},
    },
};
use everstep::{ClientError, Filter, RunHandle, RunInfo, RunStatus, Timestamp};
use futures_util::{
    Stream,
    future::{BoxFuture, Shared},
    stream,
};
use serde::Serialize;
use serde_json::json;
use tokio::sync::{mpsc, watch};

use crate::{
    App,
    problem::Problem,
    shapes::{
        history::{Entry, Item},
        run::{Counts, RunDetail},
    },
};

mod counter;
mod history;

pub(crate) use counter::Counter;
use history::Follower;

/// How long it is waited at least between two looks.
const PACE: Duration = Duration::from_millis(500);

/// After how long a line is sent that says nothing, so that nobody takes the connection for dead.
const KEEP_ALIVE: Duration = Duration::from_secs(15);

/// How often it is looked whether somebody may still listen.
const RECHECK: Duration = Duration::from_secs(2);

/// How many events may wait for a client that reads slowly.
const AHEAD: usize = 16;

/// How many runs are named in one event.
const CHANGED_MAX: usize = 100;

/// Where a task says what it has seen.
struct Listener {
    sender: mpsc::Sender<Event>,
    closing: watch::Receiver<bool>,
    ends: Shared<BoxFuture<'static, ()>>,
}

impl Listener {
    /// Says it; `None` when nobody listens any more.
    async fn tell(&self, name: &str, data: &impl Serialize) -> Option<()> {
        let data = serde_json::to_string(data).unwrap_or_default();
        self.send(Event::default().event(name).data(data)).await
    }

    async fn send(&self, event: Event) -> Option<()> {
        tokio::select! {
            sent = self.sender.send(event) => sent.ok(),
            () = self.over() => None,
        }
    }

    /// Until nobody listens any more, or the server ends.
    async fn over(&self) {
        let mut closing = self.closing.clone();
        tokio::select! {
            () = self.sender.closed() => {}
            // The sender is there for as long as the server.
            _ = closing.wait_for(|closing| *closing) => {}
            () = self.ends.clone() => {}
        }
    }

    /// Waits for at least this long, unless nobody listens any more: longer after a look that took
    /// long, so that no listener has the store busy for more than a tenth of the time.
    async fn pace(&self, looked: Instant, least: Duration) -> Option<()> {
        self.rest(least.max(looked.elapsed() * 9)).await
    }

    async fn rest(&self, rest: Duration) -> Option<()> {
        tokio::select! {
            () = tokio::time::sleep(rest) => Some(()),
            () = self.over() => None,
        }
    }

    /// Says that the store could not be read, and waits before it is tried again; `None` if it will
    /// never be.
    async fn trouble(&self, error: ClientError) -> Option<()> {
        if matches!(error, ClientError::Closed) {
            return None;
        }
        self.tell("trouble", &Problem::from(error)).await?;
        self.rest(4 * PACE).await
    }
}

fn listening<F: Future<Output = Option<()>> + Send + 'static>(
    app: &App,
    pass: HeaderMap,
    look: impl FnOnce(Listener) -> F,
) -> Response {
    let (sender, receiver) = mpsc::channel(AHEAD);
    let closing = app.closing.subscribe();
    let ends = app.ends.clone();
    let look = look(Listener { sender, closing, ends });
    let app = app.clone();
    tokio::spawn(async move {
        tokio::select! {
            _ = look => {}
            () = lapsed(&app, &pass) => {}
        }
    });
    let alive = KeepAlive::new().interval(KEEP_ALIVE);
    Sse::new(events(receiver)).keep_alive(alive).into_response()
}

/// Until whoever has opened a stream with these headers may see nothing any more: their session has
/// ended, or their token was revoked.
async fn lapsed(app: &App, pass: &HeaderMap) {
    loop {
        tokio::time::sleep(RECHECK).await;
        // As long as the store is away nobody knows, and there is nothing to tell.
        if let Ok(None) = app.security.who(pass).await {
            return;
        }
    }
}

fn events(receiver: mpsc::Receiver<Event>) -> impl Stream<Item = Result<Event, Infallible>> {
    stream::unfold(receiver, |mut receiver| async move {
        let event = receiver.recv().await?;
        Some((Ok(event), receiver))
    })
}

/// What of a run changes when anything of it does.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Mark {
    status: RunStatus,
    generation: u32,
    updated_at: Timestamp,
    waiting: Option<String>,
}

impl Mark {
    fn of(info: &RunInfo) -> Mark {
        Mark {
            status: info.status,
            generation: info.generation,
            updated_at: info.updated_at,
            waiting: info.waiting.clone(),
        }
    }
}

/// The newest runs, by id: ids sort by the time of their start.
type Newest = BTreeMap<String, Mark>;

/// Which runs are not as they were: those that are new or changed, and those that met the filter
/// and do so no more.
fn changed<'a>(before: &'a Newest, now: &'a Newest) -> Vec<&'a String> {
    let changed = now.iter().filter(|(id, mark)| before.get(*id) != Some(*mark));
    let mut ids: Vec<&String> = changed.map(|(id, _)| id).collect();
    // What is older than all of a full page has only been pushed out of it.
    let oldest = match now.len() {
        CHANGED_MAX => now.keys().next(),
        _ => None,
    };
    let gone = before.keys().filter(|id| !now.contains_key(*id));
    ids.extend(gone.filter(|id| oldest.is_none_or(|oldest| *id > oldest)));
    ids
}

/// Tells how many runs there are, and which of the newest have changed.
pub(crate) fn runs(app: App, pass: HeaderMap, filter: Filter) -> Response {
    let (client, counter) = (app.client.clone(), app.counter.clone());
    listening(&app, pass, move |listener| async move {
        let mut counted: Option<Counts> = None;
        let mut seen: Option<Newest> = None;
        loop {
            let looked = Instant::now();
            let now = match counter.count(&filter).await {
                Ok(now) => now,
                Err(error) => {
                    listener.trouble(error).await?;
                    continue;
                }
            };
            if counted.as_ref() != Some(&now) {
                listener.tell("counts", &now).await?;
                counted = Some(now);
            }
            let newest = client.list().filter(filter.clone()).limit(CHANGED_MAX);
            let page = match newest.await {
                Ok(page) => page,
                Err(error) => {
                    listener.trouble(error).await?;
                    continue;
                }
            };
            let marks = page.runs.iter().map(|it| (it.id.to_string(), Mark::of(it)));
            let now: Newest = marks.collect();
            if let Some(before) = &seen {
                let ids = changed(before, &now);
                if !ids.is_empty() {
                    listener.tell("changed", &json!({"ids": ids})).await?;
                }
            }
            seen = Some(now);
            listener.pace(looked, PACE).await?;
        }
    })
}

/// Tells of a run and its history, as they change.
pub(crate) fn run(app: App, pass: HeaderMap, run: RunHandle) -> Response {
    let redaction = app.redaction.clone();
    listening(&app, pass, move |listener| async move {
        let mut told: Option<serde_json::Value> = None;
        let mut follower = Follower::new(run.clone());
        loop {
            let looked = Instant::now();
            let info = match run.info().await {
                Ok(info) => info,
                Err(ClientError::UnknownRun { .. }) => {
                    listener.tell("gone", &json!({})).await?;
                    return None;
                }
                Err(error) => {
                    listener.trouble(error).await?;
                    continue;
                }
            };
            let mark = Mark::of(&info);
            let has_ended = info.status.is_terminal();
            let detail = RunDetail::new(info, &redaction);
            let now = serde_json::to_value(&detail).unwrap_or_default();
            if told.as_ref() != Some(&now) {
                listener.tell("run", &now).await?;
                told = Some(now);
            }
            let mut look = follower.look(mark, has_ended);
            loop {
                match look.next().await {
                    Ok(Some(new)) => {
                        let new = new.into_iter().map(|it| Entry::new(it, &redaction));
                        let entries: Vec<Entry> = new.collect();
                        listener.tell("history", &json!({"entries": entries})).await?;
                    }
                    Ok(None) => break,
                    // It is seen as the run itself is asked for.
                    Err(ClientError::UnknownRun { .. }) => break,
                    Err(error) => {
                        listener.trouble(error).await?;
                        break;
                    }
                }
            }
            // What has ended changes only if it is tried again.
            let least = if has_ended { 4 * PACE } else { PACE };
            listener.pace(looked, least).await?;
        }
    })
}

/// Tells the items of a stream, as they come.
pub(crate) fn stream(
    app: App,
    pass: HeaderMap,
    run: RunHandle,
    (name, from): (String, u64),
) -> Response {
    let redaction = app.redaction.clone();
    listening(&app, pass, move |listener| async move {
        let mut reader = run.stream_json(&name).from(from);
        loop {
            let next = tokio::select! {
                next = reader.next() => next,
                () = listener.over() => return None,
            };
            match next {
                Ok(Some(item)) => {
                    let item = Item::new(item, &redaction);
                    let data = serde_json::to_string(&item).unwrap_or_default();
                    let event =
                        Event::default().event("item").id(item.position.to_string()).data(data);
                    listener.send(event).await?;
                }
                Ok(None) => {
                    listener.tell("end", &json!({})).await?;
                    return None;
                }
                Err(error) => {
                    // The browser opens it again, and says what it saw last.
                    listener.trouble(error).await?;
                    return None;
                }
            }
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn newest(runs: impl IntoIterator<Item = (usize, u32)>) -> Newest {
        let runs = runs.into_iter().map(|(no, generation)| {
            let mark = Mark {
                status: RunStatus::Running,
                generation,
                updated_at: Timestamp::from_millis(0),
                waiting: None,
            };
            (format!("{no:05}"), mark)
        });
        runs.collect()
    }

    #[test]
    fn new_changed_and_gone_runs_are_named_and_no_others() {
        let before = newest([(1, 1), (2, 1), (3, 1)]);
        let now = newest([(1, 1), (3, 2), (4, 1)]);
        assert_eq!(changed(&before, &now), ["00003", "00004", "00002"]);
        assert!(changed(&now, &now).is_empty());
    }

    #[test]
    fn runs_that_newer_ones_have_pushed_out_have_not_changed() {
        let before = newest((0..CHANGED_MAX).map(|no| (no, 1)));
        let now = newest((2..CHANGED_MAX + 2).map(|no| (no, 1)));
        assert_eq!(changed(&before, &now), ["00100", "00101"]);
    }
}
