//! One run: what it has done, and what can be done to it.

use axum::{
    Extension, Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use everstep::Role::{Operate, Read};
use everstep::{HistoryEntry, RunHandle};
use serde::Deserialize;
use serde_json::Value as Json;

use super::{Answered, page_size, runs::handle, wait};
use crate::{
    App,
    extract::{Body, Names, Query},
    live,
    once::{self, Once},
    problem::{Kind, Outcome, Problem},
    shapes::{
        Tag,
        history::{
            Entry, FollowQuery, History, Item, Items, PageQuery, State as StateShape, StreamList,
            StreamQuery, StreamShape,
        },
        run::{CancelRun, FailureShape, ForkShape, NewRun, RunDetail, RunResult, RunSummary},
        why::WhyShape,
    },
    table::{
        Table,
        Verb::{Delete, Get, Post, Put},
    },
};

/// How many bytes of payloads a page of a history has, about: the entry that goes beyond is the last.
const HISTORY_BYTES: usize = 8 << 20;

/// How many entries are read before it is known how large they are.
const HISTORY_FIRST: usize = 8;

pub(super) fn add(table: &mut Table) {
    add_reads(table);
    add_changes(table);
}

fn add_reads(table: &mut Table) {
    table
        .add(
            Get,
            "/runs/{run}/result",
            Read,
            ("get_result", "What a run gave, if it has ended"),
            result,
        )
        .query::<WaitQuery>()
        .answers::<RunResult>(200, "It has ended.")
        .answers::<RunResult>(202, "It has not ended yet.");
    table
        .add(
            Get,
            "/runs/{run}/updates",
            Read,
            ("watch_run", "A run and its history, as they change"),
            watch,
        )
        .streams("Events `run`, `history` and `gone`.");
    table
        .add(Get, "/runs/{run}/history", Read, ("get_history", "What a run has done"), history)
        .query::<PageQuery>()
        .answers::<History>(200, "A page of its operations.");
    table
        .add(Get, "/runs/{run}/why", Read, ("why", "Why a run does not go on"), why)
        .answers::<WhyShape>(200, "What it waits for.");
    table
        .add(Get, "/runs/{run}/state", Read, ("get_state", "What a run shows of itself"), state)
        .answers::<StateShape>(200, "By key.");
    table
        .add(Get, "/runs/{run}/streams", Read, ("list_streams", "The streams of a run"), streams)
        .answers::<StreamList>(200, "By name.");
    table
        .add(
            Get,
            "/runs/{run}/streams/{stream}",
            Read,
            ("read_stream", "A part of a stream"),
            stream,
        )
        .query::<StreamQuery>()
        .answers::<Items>(200, "The items.");
    table
        .add(
            Get,
            "/runs/{run}/streams/{stream}/follow",
            Read,
            ("follow_stream", "A stream, as it grows"),
            follow,
        )
        .query::<FollowQuery>()
        .streams("Events `item` and `end`.");
}

fn add_changes(table: &mut Table) {
    table
        .add(Post, "/runs/{run}/cancel", Operate, ("cancel_run", "Cancels a run"), cancel)
        .body::<CancelRun>()
        .answers::<RunSummary>(200, "The run.");
    table
        .add(Post, "/runs/{run}/pause", Operate, ("pause_run", "Lets a run rest"), pause)
        .answers::<RunSummary>(200, "The run.");
    table
        .add(Post, "/runs/{run}/resume", Operate, ("resume_run", "Lets a paused run go on"), resume)
        .answers::<RunSummary>(200, "The run.");
    table
        .add(
            Post,
            "/runs/{run}/retry",
            Operate,
            ("retry_run", "Tries a failed run again from where it failed"),
            retry,
        )
        .answers::<RunSummary>(200, "The run.");
    table
        .add(
            Post,
            "/runs/{run}/fork",
            Operate,
            ("fork_run", "Starts a new run with a part of this one's history"),
            fork,
        )
        .body::<ForkShape>()
        .once()
        .answers::<NewRun>(200, "It was there under this key.")
        .answers::<NewRun>(201, "The new run.");
    table
        .add(Put, "/runs/{run}/tags/{name}", Operate, ("tag_run", "Sets a tag of a run"), tag)
        .body::<TagValue>()
        .answers_nothing(204, "It is set.");
    table
        .add(
            Delete,
            "/runs/{run}/tags/{name}",
            Operate,
            ("untag_run", "Removes a tag of a run"),
            untag,
        )
        .answers_nothing(204, "It is not there.");
}

async fn summary(app: &App, run: &RunHandle) -> Answered<RunSummary> {
    let info = run.info().await?;
    Ok(Answer(RunDetail::new(info, &app.redaction).summary))
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct WaitQuery {
    /// How long to wait for it to end; not at all if it is not said.
    #[schemars(range(max = 30_000))]
    wait_ms: u64,
}

async fn result(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<WaitQuery>,
) -> Result<impl IntoResponse, Problem> {
    let run = handle(&app, &run).await?;
    let limit = wait(&app, "wait_ms", query.wait_ms)?;
    if !limit.is_zero() {
        // Whether it has ended or not is seen below.
        let _ = tokio::time::timeout(limit, run.result_json()).await;
    }
    let info = run.info().await?;
    let has_ended = info.status.is_terminal();
    let failure = info.failure;
    let result = RunResult {
        status: info.status.into(),
        output: info.output.map(|output| app.redaction.json(output)),
        failure: failure.map(|it| FailureShape::new(it, &app.redaction)),
    };
    let status = match has_ended {
        true => StatusCode::OK,
        false => StatusCode::ACCEPTED,
    };
    Ok((status, Answer(result)))
}

async fn watch(
    State(app): State<App>,
    Names(run): Names<String>,
    headers: HeaderMap,
) -> Result<Response, Problem> {
    let run = handle(&app, &run).await?;
    Ok(live::run(app, headers, run))
}

async fn history(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<PageQuery>,
) -> Answered<History> {
    let limit = page_size(query.limit)?;
    let run = handle(&app, &run).await?;
    let (entries, next) = history_page(&run, query.cursor, limit).await?;
    let entries = entries.into_iter();
    Ok(Answer(History {
        entries: entries.map(|it| Entry::new(it, &app.redaction)).collect(),
        next,
    }))
}

/// At most so many entries of a history, and fewer if they are large; where the rest begins.
async fn history_page(
    run: &RunHandle,
    mut after: Option<String>,
    limit: usize,
) -> Result<(Vec<HistoryEntry>, Option<String>), Problem> {
    let (mut entries, mut bytes) = (Vec::new(), 0);
    // How large they are is known when they were read: at first a few, then as many as will fit if
    // they go on like that.
    let mut count = HISTORY_FIRST;
    loop {
        let mut read = run.history().limit(count.min(limit - entries.len()));
        if let Some(after) = after {
            read = read.after(after);
        }
        let page = read.page().await?;
        bytes += page.entries.iter().map(|it| it.size).sum::<usize>();
        entries.extend(page.entries);
        after = page.next;
        if after.is_none() || entries.len() >= limit || bytes >= HISTORY_BYTES {
            return Ok((entries, after));
        }
        let average = (bytes / entries.len().max(1)).max(1);
        count = ((HISTORY_BYTES - bytes) / average).max(1);
    }
}

async fn why(State(app): State<App>, Names(run): Names<String>) -> Answered<WhyShape> {
    let why = handle(&app, &run).await?.why().await?;
    Ok(Answer(WhyShape::new(why, &app.redaction)))
}

async fn state(State(app): State<App>, Names(run): Names<String>) -> Answered<StateShape> {
    let state = handle(&app, &run).await?.state_json().await?;
    // A pattern may begin at a value, or at the key that it is shown under.
    let values = state.into_iter().map(|(key, it)| (key, app.redaction.json(it)));
    let shown = app.redaction.json(values.collect());
    let state = match shown {
        Json::Object(state) => state.into_iter().collect(),
        _ => Default::default(),
    };
    Ok(Answer(StateShape { state }))
}

async fn streams(State(app): State<App>, Names(run): Names<String>) -> Answered<StreamList> {
    let streams = handle(&app, &run).await?.streams().await?;
    Ok(Answer(StreamList { streams: streams.into_iter().map(StreamShape::from).collect() }))
}

async fn stream(
    State(app): State<App>,
    Names((run, stream)): Names<(String, String)>,
    Query(query): Query<StreamQuery>,
) -> Answered<Items> {
    let limit = page_size(query.limit)?;
    let run = handle(&app, &run).await?;
    let page = run.stream_page_json(&stream, query.from, limit).await?;
    let items = page.items.into_iter();
    let items: Vec<Item> = items.map(|it| Item::new(it, &app.redaction)).collect();
    Ok(Answer(Items { items, next: page.next }))
}

async fn follow(
    State(app): State<App>,
    Names((run, stream)): Names<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<FollowQuery>,
) -> Result<Response, Problem> {
    let run = handle(&app, &run).await?;
    // A browser that was cut off says what it saw last.
    let last = headers.get("last-event-id").and_then(|it| it.to_str().ok());
    let last = last.and_then(|it| it.parse::<u64>().ok());
    let from = last.map_or(query.from, |last| last.saturating_add(1));
    Ok(live::stream(app, headers, run, (stream, from)))
}

async fn cancel(
    State(app): State<App>,
    Names(run): Names<String>,
    Body(said): Body<CancelRun>,
) -> Answered<RunSummary> {
    let run = handle(&app, &run).await?;
    let mut cancel = run.cancel();
    if said.rollback {
        cancel = cancel.with_rollback();
    }
    cancel.strict().await?;
    summary(&app, &run).await
}

async fn pause(State(app): State<App>, Names(run): Names<String>) -> Answered<RunSummary> {
    let run = handle(&app, &run).await?;
    if !run.pause().await? {
        let detail = format!("run {} is paused already; nothing was done", run.id());
        return Err(Problem::new(Kind::Conflict, detail).about(run.id()));
    }
    summary(&app, &run).await
}

async fn resume(State(app): State<App>, Names(run): Names<String>) -> Answered<RunSummary> {
    let run = handle(&app, &run).await?;
    run.resume().await?;
    summary(&app, &run).await
}

async fn retry(State(app): State<App>, Names(run): Names<String>) -> Answered<RunSummary> {
    let run = handle(&app, &run).await?;
    run.retry().await?;
    summary(&app, &run).await
}

async fn fork(
    State(app): State<App>,
    Names(run): Names<String>,
    once: Once,
    Body(said): Body<ForkShape>,
) -> Result<impl IntoResponse, Problem> {
    let is_once = once.is_said();
    let key = once.or(said.key, "key")?;
    let run = handle(&app, &run).await?;
    let mut fork = run.fork();
    if let Some(from) = said.from {
        fork = fork.from(from);
    }
    if let Some(input) = said.input {
        app.redaction.check_sent("`input`", &input)?;
        fork = fork.input(&input)?;
    }
    for result in said.results {
        let what = format!("the result of `{}`", result.location);
        app.redaction.check_sent(&what, &result.value)?;
        fork = fork.result(result.location, &result.value)?;
    }
    if let Some(key) = key {
        fork = fork.key(key);
    }
    if let Some(version) = said.version {
        fork = fork.version(version);
    }
    for Tag { name, value } in said.tags {
        fork = fork.tag(name, value);
    }
    let new = fork.start().await?;
    if is_once && new.attached() && !is_fork(&new, &run).await? {
        return Err(once::used().about(new.id()));
    }
    let (status, found) = match new.attached() {
        true => (StatusCode::OK, "found "),
        false => (StatusCode::CREATED, ""),
    };
    let outcome = Outcome::with(format!("{found}run {}", new.id()));
    Ok((status, Extension(outcome), Answer(NewRun::from(new.id()))))
}

/// Whether a run was forked from another.
async fn is_fork(new: &RunHandle, of: &RunHandle) -> Result<bool, Problem> {
    let (tags, of) = (new.info().await?.tags, of.id().to_string());
    Ok(tags.iter().any(|(name, value)| name == "everstep.forked_from" && *value == of))
}

/// The value of a tag.
#[derive(Debug, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields)]
struct TagValue {
    /// The value.
    value: String,
}

async fn tag(
    State(app): State<App>,
    Names((run, name)): Names<(String, String)>,
    Body(said): Body<TagValue>,
) -> Result<StatusCode, Problem> {
    handle(&app, &run).await?.tag(&name, &said.value).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn untag(
    State(app): State<App>,
    Names((run, name)): Names<(String, String)>,
) -> Result<StatusCode, Problem> {
    handle(&app, &run).await?.untag(&name).await?;
    Ok(StatusCode::NO_CONTENT)
}
