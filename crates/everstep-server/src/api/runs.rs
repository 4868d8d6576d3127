//! Runs.

use std::time::Duration;

use axum::{
    Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::IntoResponse,
};
use everstep::{ClientError, Filter, IfFinished, Resolved, RunHandle, Sent, Target};
use serde::Deserialize;

use super::{Answered, bad, missing, page_size, run_cursor};
use crate::{
    App,
    extract::{Body, Names, Query, run_id},
    live,
    problem::{Kind, Problem},
    security::Role::{Admin, Operate, Read},
    shapes::{
        Tag, Time,
        history::{
            Answer as AnswerShape, Entry, FollowQuery, History, IfFinishedShape, Item, Items,
            MessageShape, PageQuery, RejectShape, RequestShape, ResolveShape, SentShape,
            SettleShape, Settled, State as StateShape, StreamList, StreamQuery, StreamShape,
        },
        millis,
        run::{
            BulkAction, BulkDone, BulkShape, CancelRun, Counts, FailureShape, ForkShape, NewRun,
            RunDetail, RunFilter, RunList, RunQuery, RunResult, RunSummary, StartRun, Started,
        },
        why::WhyShape,
    },
    table::{
        Table,
        Verb::{Delete, Get, Post, Put},
    },
};

/// How long a request may wait for something to happen.
const WAIT_MAX: Duration = Duration::from_secs(25);

pub(super) fn add(table: &mut Table) {
    table
        .add(
            Get,
            "/runs",
            Read,
            ("list_runs", "Runs, newest first"),
            list,
        )
        .query::<RunQuery>()
        .answers::<RunList>(200, "A page of runs.");
    table
        .add(
            Get,
            "/runs/counts",
            Read,
            ("count_runs", "How many runs there are of each status"),
            counts,
        )
        .query::<RunFilter>()
        .answers::<Counts>(200, "The numbers.");
    table
        .add(
            Get,
            "/runs/updates",
            Read,
            (
                "watch_runs",
                "Tells when runs change, and how many there are",
            ),
            updates,
        )
        .query::<RunFilter>()
        .streams("Events `counts` and `changed`.");
    table
        .add(Post, "/runs", Operate, ("start_run", "Starts a run"), start)
        .body::<StartRun>()
        .once()
        .answers::<Started>(200, "It was there under this key.")
        .answers::<Started>(201, "It is started.");
    table
        .add(
            Post,
            "/runs/bulk",
            Admin,
            ("change_runs", "Does something to many runs"),
            bulk,
        )
        .body::<BulkShape>()
        .answers::<BulkDone>(200, "What became of them.");
    table
        .add(
            Get,
            "/runs/by-key/{workflow}/{key}",
            Read,
            ("get_run_by_key", "The run with this key"),
            by_key,
        )
        .answers::<RunDetail>(200, "The run.");
    table
        .add(Get, "/runs/{run}", Read, ("get_run", "A run"), get)
        .answers::<RunDetail>(200, "The run.");
    table
        .add(
            Delete,
            "/runs/{run}",
            Admin,
            ("delete_run", "Deletes a run that has ended"),
            delete,
        )
        .query::<DeleteQuery>()
        .answers_nothing(204, "It is deleted.");
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
        .add(
            Get,
            "/runs/{run}/history",
            Read,
            ("get_history", "What a run has done"),
            history,
        )
        .query::<PageQuery>()
        .answers::<History>(200, "A page of its operations.");
    table
        .add(
            Get,
            "/runs/{run}/why",
            Read,
            ("why", "Why a run does not go on"),
            why,
        )
        .answers::<WhyShape>(200, "What it waits for.");
    table
        .add(
            Get,
            "/runs/{run}/state",
            Read,
            ("get_state", "What a run shows of itself"),
            state,
        )
        .answers::<StateShape>(200, "By key.");
    table
        .add(
            Get,
            "/runs/{run}/streams",
            Read,
            ("list_streams", "The streams of a run"),
            streams,
        )
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
    table
        .add(
            Post,
            "/runs/{run}/cancel",
            Operate,
            ("cancel_run", "Cancels a run"),
            cancel,
        )
        .body::<CancelRun>()
        .answers::<RunSummary>(200, "The run.");
    table
        .add(
            Post,
            "/runs/{run}/pause",
            Operate,
            ("pause_run", "Lets a run rest"),
            pause,
        )
        .answers::<RunSummary>(200, "The run.");
    table
        .add(
            Post,
            "/runs/{run}/resume",
            Operate,
            ("resume_run", "Lets a paused run go on"),
            resume,
        )
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
            (
                "fork_run",
                "Starts a new run with a part of this one's history",
            ),
            fork,
        )
        .body::<ForkShape>()
        .answers::<NewRun>(201, "The new run.");
    table
        .add(
            Post,
            "/runs/{run}/messages",
            Operate,
            ("send_message", "Sends a message to a run"),
            send,
        )
        .body::<MessageShape>()
        .once()
        .answers::<SentShape>(202, "What became of it.");
    table
        .add(
            Post,
            "/runs/{run}/requests",
            Operate,
            ("ask_run", "Asks a run, and waits for its answer"),
            request,
        )
        .body::<RequestShape>()
        .answers::<AnswerShape>(200, "The answer.");
    table
        .add(
            Post,
            "/runs/{run}/deferreds",
            Operate,
            (
                "settle_deferred",
                "Gives a deferred of a run its value, or an error",
            ),
            settle,
        )
        .body::<SettleShape>()
        .answers::<Settled>(200, "What became of it.");
    table
        .add(
            Put,
            "/runs/{run}/tags/{name}",
            Operate,
            ("tag_run", "Sets a tag of a run"),
            tag,
        )
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
    table
        .add(
            Post,
            "/tokens/{token}/resolve",
            Operate,
            ("resolve_token", "Gives the deferred of a token its value"),
            resolve,
        )
        .body::<ResolveShape>()
        .answers::<Settled>(200, "What became of it.");
    table
        .add(
            Post,
            "/tokens/{token}/reject",
            Operate,
            ("reject_token", "Gives the deferred of a token an error"),
            reject,
        )
        .body::<RejectShape>()
        .answers::<Settled>(200, "What became of it.");
}

/// The run with this id.
async fn handle(app: &App, run: &str) -> Result<RunHandle, Problem> {
    let found = app.client.get(Target::Id(run_id(run)?)).await?;
    found.ok_or_else(|| {
        let run = run.to_owned();
        ClientError::UnknownRun { run }.into()
    })
}

async fn summary(app: &App, run: &RunHandle) -> Answered<RunSummary> {
    let info = run.info().await?;
    Ok(Answer(RunDetail::new(info, &app.redaction).summary))
}

pub(crate) fn filter(said: RunFilter) -> Result<Filter, Problem> {
    Filter::try_from(said).map_err(bad)
}

async fn list(State(app): State<App>, Query(query): Query<RunQuery>) -> Answered<RunList> {
    let limit = page_size(query.limit)?;
    let cursor = run_cursor(query.cursor.as_deref())?;
    let mut said = query.filter();
    if let Some(sought) = query
        .q
        .as_deref()
        .map(str::trim)
        .filter(|it| !it.is_empty())
    {
        if let Ok(run) = sought.parse() {
            let runs = match app.client.get(Target::Id(run)).await? {
                Some(run) => vec![run.info().await?],
                None => Vec::new(),
            };
            return Ok(Answer(RunList::of(runs, None, &app.redaction)));
        }
        match sought.split_once(':') {
            Some((name, value)) if !name.is_empty() && !value.is_empty() => {
                said.tag.push(sought.to_owned());
            }
            _ => said.key_prefix = Some(sought.to_owned()),
        }
    }
    let mut list = app.client.list().filter(filter(said)?).limit(limit);
    if let Some(cursor) = cursor {
        list = list.after(cursor);
    }
    Ok(Answer(RunList::new(list.await?, &app.redaction)))
}

async fn counts(State(app): State<App>, Query(said): Query<RunFilter>) -> Answered<Counts> {
    Ok(Answer(live::counts(&app.client, filter(said)?).await?))
}

async fn updates(
    State(app): State<App>,
    Query(said): Query<RunFilter>,
) -> Result<impl IntoResponse, Problem> {
    Ok(live::runs(app, filter(said)?))
}

/// The key under which something happens once, if the request says one.
pub(super) fn once(headers: &HeaderMap) -> Result<Option<String>, Problem> {
    let Some(key) = headers.get("idempotency-key") else {
        return Ok(None);
    };
    let key = key
        .to_str()
        .ok()
        .filter(|key| !key.is_empty() && key.len() <= 200);
    match key {
        Some(key) => Ok(Some(format!("http/{key}"))),
        None => Err(bad(
            "`idempotency-key` must be 1 to 200 printable characters",
        )),
    }
}

async fn start(
    State(app): State<App>,
    headers: HeaderMap,
    Body(said): Body<StartRun>,
) -> Result<impl IntoResponse, Problem> {
    let header_key = once(&headers)?;
    let is_once = header_key.is_some();
    if is_once && said.key.is_some() {
        return Err(bad("say either `key` or the header `idempotency-key`"));
    }
    let version = match said.version {
        Some(version) => Some(version),
        None => newest(&app, &said.workflow).await?,
    };
    let mut start = app.client.start_json(&said.workflow, &said.input);
    if let Some(version) = version {
        start = start.version(version);
    }
    if let Some(key) = header_key.or(said.key) {
        start = start.key(key);
    }
    start = match (said.at, said.delay_ms) {
        (Some(_), Some(_)) => return Err(bad("say either `at` or `delay_ms`")),
        (Some(Time(at)), None) => start.at(at),
        (None, Some(ms)) => start.after(millis(ms)),
        (None, None) => start,
    };
    if let Some(Time(at)) = said.deadline_at {
        start = start.deadline(at);
    }
    if let Some(pool) = said.pool {
        start = start.pool(pool);
    }
    for Tag { name, value } in said.tags {
        start = start.tag(name, value);
    }
    let run = start.await?;
    if is_once && run.input_differs() {
        let detail = format!(
            "this `idempotency-key` was used for run {} with another input; use a new key",
            run.id()
        );
        return Err(Problem::new(Kind::Conflict, detail));
    }
    let started = Started {
        id: run.id().to_string(),
        attached: run.attached(),
        input_differs: run.input_differs(),
    };
    let status = match started.attached {
        true => StatusCode::OK,
        false => StatusCode::CREATED,
    };
    Ok((status, Answer(started)))
}

/// The newest version of a workflow that some runner has.
async fn newest(app: &App, workflow: &str) -> Result<Option<u32>, Problem> {
    let cluster = app.client.cluster().await?;
    let alive = cluster.runners.iter().filter(|runner| runner.alive);
    let served = alive.flat_map(|runner| &runner.workflows);
    let versions = served.filter(|it| it.workflow == workflow);
    Ok(versions.map(|it| it.version).max())
}

async fn bulk(State(app): State<App>, Body(said): Body<BulkShape>) -> Answered<BulkDone> {
    let cursor = run_cursor(said.cursor.as_deref())?;
    let mut bulk = app.client.bulk(filter(said.filter)?);
    if let Some(limit) = said.limit {
        bulk = bulk.limit(limit);
    }
    if let Some(cursor) = cursor {
        bulk = bulk.after(cursor);
    }
    if said.dry_run {
        let met = bulk.count().await?;
        let done = BulkDone {
            met,
            ..BulkDone::default()
        };
        return Ok(Answer(done));
    }
    let report = match said.action {
        BulkAction::Cancel => bulk.cancel().await,
        BulkAction::CancelWithRollback => bulk.cancel_with_rollback().await,
        BulkAction::Pause => bulk.pause().await,
        BulkAction::Resume => bulk.resume().await,
        BulkAction::Retry => bulk.retry().await,
        BulkAction::Delete => bulk.delete().await,
    };
    let report = report.map_err(|error| {
        let mut problem = Problem::from(error.source.clone());
        problem.add(&format!("; {error}"));
        problem
    })?;
    Ok(Answer(report.into()))
}

async fn by_key(
    State(app): State<App>,
    Names((workflow, key)): Names<(String, String)>,
) -> Answered<RunDetail> {
    let found = app
        .client
        .get(Target::Key {
            workflow: workflow.clone(),
            key: key.clone(),
        })
        .await?;
    let Some(run) = found else {
        let detail = format!("there is no run of workflow `{workflow}` with the key `{key}`");
        return Err(missing(detail));
    };
    Ok(Answer(RunDetail::new(run.info().await?, &app.redaction)))
}

async fn get(State(app): State<App>, Names(run): Names<String>) -> Answered<RunDetail> {
    let run = handle(&app, &run).await?;
    Ok(Answer(RunDetail::new(run.info().await?, &app.redaction)))
}

/// How a run is deleted.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct DeleteQuery {
    /// Whether its key can be used again at once.
    forget_key: bool,
}

async fn delete(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<DeleteQuery>,
) -> Result<StatusCode, Problem> {
    let mut delete = handle(&app, &run).await?.delete();
    if query.forget_key {
        delete = delete.forget_key();
    }
    delete.await?;
    Ok(StatusCode::NO_CONTENT)
}

/// How long to wait.
#[derive(Debug, Default, Deserialize, schemars::JsonSchema)]
#[serde(deny_unknown_fields, default)]
struct WaitQuery {
    /// How long to wait for it to end, at most 25 s; not at all if it is not said.
    wait_ms: u64,
}

async fn result(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<WaitQuery>,
) -> Result<impl IntoResponse, Problem> {
    let run = handle(&app, &run).await?;
    let limit = millis(query.wait_ms).min(WAIT_MAX);
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
) -> Result<impl IntoResponse, Problem> {
    let run = handle(&app, &run).await?;
    Ok(live::run(app, run))
}

async fn history(
    State(app): State<App>,
    Names(run): Names<String>,
    Query(query): Query<PageQuery>,
) -> Answered<History> {
    let limit = page_size(query.limit)?;
    let run = handle(&app, &run).await?;
    let mut read = run.history().limit(limit);
    if let Some(cursor) = query.cursor {
        read = read.after(cursor);
    }
    let page = read.page().await?;
    let entries = page.entries.into_iter();
    Ok(Answer(History {
        entries: entries.map(|it| Entry::new(it, &app.redaction)).collect(),
        next: page.next,
    }))
}

async fn why(State(app): State<App>, Names(run): Names<String>) -> Answered<WhyShape> {
    let why = handle(&app, &run).await?.why().await?;
    Ok(Answer(WhyShape::new(why, &app.redaction)))
}

async fn state(State(app): State<App>, Names(run): Names<String>) -> Answered<StateShape> {
    let state = handle(&app, &run).await?.state_json().await?;
    let state = state.into_iter();
    Ok(Answer(StateShape {
        state: state
            .map(|(key, it)| (key, app.redaction.json(it)))
            .collect(),
    }))
}

async fn streams(State(app): State<App>, Names(run): Names<String>) -> Answered<StreamList> {
    let streams = handle(&app, &run).await?.streams().await?;
    Ok(Answer(StreamList {
        streams: streams.into_iter().map(StreamShape::from).collect(),
    }))
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
    let next = items.last().map_or(query.from, |last| last.position + 1);
    Ok(Answer(Items { items, next }))
}

async fn follow(
    State(app): State<App>,
    Names((run, stream)): Names<(String, String)>,
    headers: HeaderMap,
    Query(query): Query<FollowQuery>,
) -> Result<impl IntoResponse, Problem> {
    let run = handle(&app, &run).await?;
    // A browser that was cut off says what it saw last.
    let last = headers.get("last-event-id").and_then(|it| it.to_str().ok());
    let last = last.and_then(|it| it.parse::<u64>().ok());
    let from = last.map_or(query.from, |last| last.saturating_add(1));
    Ok(live::stream(app, run, stream, from))
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
    cancel.await?;
    summary(&app, &run).await
}

async fn pause(State(app): State<App>, Names(run): Names<String>) -> Answered<RunSummary> {
    let run = handle(&app, &run).await?;
    run.pause().await?;
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
    Body(said): Body<ForkShape>,
) -> Result<impl IntoResponse, Problem> {
    let mut fork = handle(&app, &run).await?.fork();
    if let Some(from) = said.from {
        fork = fork.from(from);
    }
    if let Some(input) = said.input {
        fork = fork.input(&input)?;
    }
    for result in said.results {
        fork = fork.result(result.location, &result.value)?;
    }
    if let Some(key) = said.key {
        fork = fork.key(key);
    }
    if let Some(version) = said.version {
        fork = fork.version(version);
    }
    for Tag { name, value } in said.tags {
        fork = fork.tag(name, value);
    }
    let new = fork.start().await?;
    Ok((StatusCode::CREATED, Answer(NewRun::from(new.id()))))
}

async fn send(
    State(app): State<App>,
    Names(run): Names<String>,
    headers: HeaderMap,
    Body(said): Body<MessageShape>,
) -> Result<impl IntoResponse, Problem> {
    let dedupe = match (once(&headers)?, said.dedupe) {
        (Some(_), Some(_)) => {
            return Err(bad("say either `dedupe` or the header `idempotency-key`"));
        }
        (once, dedupe) => once.or(dedupe),
    };
    let run = handle(&app, &run).await?;
    let mut send = run.send(&said.name, &said.body);
    if let Some(dedupe) = dedupe {
        send = send.dedupe(dedupe);
    }
    if let IfFinishedShape::DeadLetter = said.if_finished {
        send = send.if_finished(IfFinished::DeadLetter);
    }
    let sent = match send.await? {
        Sent::Delivered => "delivered",
        Sent::Duplicate => "duplicate",
        Sent::DeadLettered => "dead_lettered",
        Sent::Published => "published",
    };
    Ok((StatusCode::ACCEPTED, Answer(SentShape { sent })))
}

async fn request(
    State(app): State<App>,
    Names(run): Names<String>,
    Body(said): Body<RequestShape>,
) -> Answered<AnswerShape> {
    let run = handle(&app, &run).await?;
    let limit = said.timeout_ms.map_or(Duration::from_secs(10), millis);
    let asked = run.request_json(&said.name, &said.body);
    let answer = tokio::time::timeout(limit.min(WAIT_MAX), asked).await;
    let answer = answer.map_err(|_| {
        let detail = format!(
            "run {} has not answered `{}` in time; the message is in its inbox",
            run.id(),
            said.name
        );
        Problem::new(Kind::Timeout, detail)
    })??;
    let answer = app.redaction.json(answer);
    Ok(Answer(AnswerShape { answer }))
}

fn settled(resolved: Resolved) -> Answer<Settled> {
    Answer(match resolved {
        Resolved::First => Settled {
            first: true,
            settled_at: None,
        },
        Resolved::Already { at } => Settled {
            first: false,
            settled_at: Some(at.into()),
        },
    })
}

async fn settle(
    State(app): State<App>,
    Names(run): Names<String>,
    Body(said): Body<SettleShape>,
) -> Answered<Settled> {
    let run = handle(&app, &run).await?;
    let settle = match (said.value, said.error) {
        (Some(value), None) => run.resolve_json(said.location, &value),
        (None, Some(error)) => run.reject_json(said.location, &error),
        _ => return Err(bad("say either `value` or `error`")),
    };
    Ok(settled(settle.await?))
}

async fn resolve(
    State(app): State<App>,
    Names(token): Names<String>,
    Body(said): Body<ResolveShape>,
) -> Answered<Settled> {
    Ok(settled(app.client.resolve_json(token, &said.value).await?))
}

async fn reject(
    State(app): State<App>,
    Names(token): Names<String>,
    Body(said): Body<RejectShape>,
) -> Answered<Settled> {
    Ok(settled(app.client.reject_json(token, &said.error).await?))
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
