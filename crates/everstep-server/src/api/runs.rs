//! Runs: lists of them, new ones, and many at once.

use axum::{
    Extension, Json as Answer,
    extract::State,
    http::{HeaderMap, StatusCode},
    response::{IntoResponse, Response},
};
use everstep::Role::{Admin, Operate, Read};
use everstep::{ClientError, Filter, RunHandle, RunId, ShortId, Target};
use serde::Deserialize;

use super::{Answered, bad, missing, page_size, run_cursor};
use crate::{
    App,
    extract::{Body, Names, Query, run_id},
    live,
    once::{self, Once},
    problem::{Outcome, Problem},
    shapes::{
        Tag, Time, millis,
        run::{
            BulkAction, BulkDone, BulkShape, Counts, RunDetail, RunFilter, RunList, RunQuery,
            StartRun, Started,
        },
    },
    table::{
        Table,
        Verb::{Delete, Get, Post},
    },
};

/// How many runs something can be done to at once.
pub(crate) const BULK_MAX: u64 = 5_000;

/// How many runs can be asked for by their ids.
const IDS_MAX: usize = 100;

pub(super) fn add(table: &mut Table) {
    table
        .add(Get, "/runs", Read, ("list_runs", "Runs, newest first"), list)
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
            ("watch_runs", "Tells when runs change, and how many there are"),
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
        .add(Post, "/runs/bulk", Admin, ("change_runs", "Does something to many runs"), bulk)
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
        .add(Delete, "/runs/{run}", Admin, ("delete_run", "Deletes a run that has ended"), delete)
        .query::<DeleteQuery>()
        .answers_nothing(204, "It is deleted.");
}

/// The run with this id.
pub(super) async fn handle(app: &App, run: &str) -> Result<RunHandle, Problem> {
    let found = app.client.get(Target::Id(run_id(app, run).await?)).await?;
    found.ok_or_else(|| {
        let run = run.to_owned();
        ClientError::UnknownRun { run }.into()
    })
}

/// The filter that a request asks for. Digits in `q` that are not the beginning of a key are looked for
/// in ids.
pub(crate) async fn filter(app: &App, mut said: RunFilter) -> Result<Filter, Problem> {
    let sought = said.q.as_deref().map(str::trim);
    let short = sought.and_then(|it| it.parse::<ShortId>().ok());
    let mut runs = Vec::new();
    if let (Some(short), Some(sought), None) = (short, sought, &said.key_prefix) {
        let by_key = app.client.list().key_prefix(sought).limit(1).await?;
        if by_key.runs.is_empty() {
            runs = app.client.runs_by_short_id(&short).await?;
        }
    }
    if !runs.is_empty() {
        said.q = None;
    }
    let filter = Filter::try_from(said).map_err(bad)?;
    Ok(runs.into_iter().fold(filter, Filter::id))
}

async fn list(State(app): State<App>, Query(query): Query<RunQuery>) -> Answered<RunList> {
    let limit = page_size(query.limit)?;
    let cursor = run_cursor(query.cursor.as_deref())?;
    let said = query.filter();
    if let Some(ids) = &query.ids {
        if !said.is_empty() || cursor.is_some() {
            return Err(bad("`ids` goes with no other filter"));
        }
        return these(&app, ids).await;
    }
    let mut list = app.client.list().filter(filter(&app, said).await?);
    list = list.limit(limit);
    if let Some(cursor) = cursor {
        list = list.after(cursor);
    }
    Ok(Answer(RunList::new(list.await?, &app.redaction)))
}

/// These runs as they are now; those that are gone are left out.
async fn these(app: &App, ids: &str) -> Answered<RunList> {
    let ids = ids.split(',').filter(|id| !id.is_empty());
    let ids = ids.map(|id| id.parse::<RunId>().map_err(|error| bad(error.to_string())));
    let ids = ids.collect::<Result<Vec<RunId>, Problem>>()?;
    if ids.len() > IDS_MAX {
        return Err(bad(format!("`ids` names {} runs, and may name {IDS_MAX}", ids.len())));
    }
    if ids.is_empty() {
        return Ok(Answer(RunList::of(Vec::new(), None, &app.redaction)));
    }
    let filter = ids.into_iter().fold(Filter::new(), Filter::id);
    let page = app.client.list().filter(filter).limit(IDS_MAX).await?;
    Ok(Answer(RunList::new(page, &app.redaction)))
}

async fn counts(State(app): State<App>, Query(said): Query<RunFilter>) -> Answered<Counts> {
    Ok(Answer(app.counter.count(&filter(&app, said).await?).await?))
}

async fn updates(
    State(app): State<App>,
    headers: HeaderMap,
    Query(said): Query<RunFilter>,
) -> Result<Response, Problem> {
    let filter = filter(&app, said).await?;
    Ok(live::runs(app, headers, filter))
}

async fn start(
    State(app): State<App>,
    once: Once,
    Body(said): Body<StartRun>,
) -> Result<impl IntoResponse, Problem> {
    let is_once = once.is_said();
    let key = once.or(said.key, "key")?;
    let version = match said.version {
        Some(version) => Some(version),
        None => newest(&app, &said.workflow).await?,
    };
    app.redaction.check_sent("`input`", &said.input)?;
    let mut start = app.client.start_json(&said.workflow, &said.input);
    if let Some(version) = version {
        start = start.version(version);
    }
    if let Some(key) = key {
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
        return Err(once::used().about(run.id()));
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
    let outcome = match started.attached {
        true => format!("found run {}", started.id),
        false => format!("run {}", started.id),
    };
    let outcome = Extension(Outcome::with(outcome));
    Ok((status, outcome, Answer(started)))
}

/// The newest version of a workflow that some runner has.
async fn newest(app: &App, workflow: &str) -> Result<Option<u32>, Problem> {
    let cluster = app.client.cluster().await?;
    let alive = cluster.runners.iter().filter(|runner| runner.alive);
    let served = alive.flat_map(|runner| &runner.workflows);
    let versions = served.filter(|it| it.workflow == workflow);
    Ok(versions.map(|it| it.version).max())
}

async fn bulk(
    State(app): State<App>,
    Body(said): Body<BulkShape>,
) -> Result<(Extension<Outcome>, Answer<BulkDone>), Problem> {
    let cursor = run_cursor(said.cursor.as_deref())?;
    let limit = said.limit.unwrap_or(BULK_MAX);
    if !(1..=BULK_MAX).contains(&limit) {
        return Err(bad(format!(
            "`limit` is {limit}, and must be from 1 to {BULK_MAX}; `next` of the answer is the \
             `cursor` to go on with"
        )));
    }
    let mut bulk = app.client.bulk(filter(&app, said.filter).await?);
    bulk = bulk.limit(limit);
    if let Some(cursor) = cursor {
        bulk = bulk.after(cursor);
    }
    if said.dry_run {
        let met = bulk.count().await?;
        let done = BulkDone { met, ..BulkDone::default() };
        let outcome = Outcome::with(format!("{met} counted"));
        return Ok((Extension(outcome), Answer(done)));
    }
    let report = match said.action {
        BulkAction::Cancel => bulk.cancel().await,
        BulkAction::CancelWithRollback => bulk.cancel_with_rollback().await,
        BulkAction::Pause => bulk.pause().await,
        BulkAction::Resume => bulk.resume().await,
        BulkAction::Retry => bulk.retry().await,
        BulkAction::Delete => bulk.delete().await,
    };
    let done = BulkDone::from(report.map_err(Problem::from)?);
    let outcome = Outcome::with(done.in_words());
    Ok((Extension(outcome), Answer(done)))
}

async fn by_key(
    State(app): State<App>,
    Names((workflow, key)): Names<(String, String)>,
) -> Answered<RunDetail> {
    let found =
        app.client.get(Target::Key { workflow: workflow.clone(), key: key.clone() }).await?;
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
