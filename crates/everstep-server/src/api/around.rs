//! Limits, dead letters, the cluster and what it can run.

use std::collections::BTreeMap;

use axum::{Json as Answer, extract::State, http::StatusCode};
use everstep::Role::{Operate, Read};
use everstep::{Replayed, Target};

use super::{Answered, bad, missing, page_size};
use crate::{
    App,
    extract::{Body, Names, Query, run_id},
    problem::{Kind, Problem},
    shapes::{
        around::{
            Letter, LetterList, LetterQuery, LimitList, LimitShape, ReplayShape, ReplayedShape,
        },
        cluster::{ClusterShape, WorkflowList, WorkflowShape},
    },
    table::{
        Table,
        Verb::{Delete, Get, Post},
    },
};

pub(super) fn add(table: &mut Table) {
    table
        .add(Get, "/limits", Read, ("list_limits", "The limits that are in use"), limits)
        .answers::<LimitList>(200, "By name and key.");
    table
        .add(
            Get,
            "/dead-letters",
            Read,
            ("list_dead_letters", "Messages that nobody could be given"),
            letters,
        )
        .query::<LetterQuery>()
        .answers::<LetterList>(200, "A page of them.");
    table
        .add(
            Post,
            "/dead-letters/{no}/replay",
            Operate,
            ("replay_dead_letter", "Sends a dead letter again"),
            replay,
        )
        .body::<ReplayShape>()
        .answers::<ReplayedShape>(200, "What became of it.");
    table
        .add(
            Delete,
            "/dead-letters/{no}",
            Operate,
            ("drop_dead_letter", "Forgets a dead letter"),
            drop_letter,
        )
        .answers_nothing(204, "It is gone.");
    table
        .add(Get, "/cluster", Read, ("get_cluster", "The processes that run things"), cluster)
        .answers::<ClusterShape>(200, "Runners and pools.");
    table
        .add(Get, "/workflows", Read, ("list_workflows", "What can be started"), workflows)
        .answers::<WorkflowList>(200, "By name.");
}

async fn limits(State(app): State<App>) -> Answered<LimitList> {
    let limits = app.client.limits().await?.into_iter();
    Ok(Answer(LimitList { limits: limits.map(LimitShape::from).collect() }))
}

async fn letters(State(app): State<App>, Query(query): Query<LetterQuery>) -> Answered<LetterList> {
    let mut letters = app.client.dead_letters().limit(page_size(query.limit)?);
    if let Some(run) = query.run {
        letters = letters.run(run_id(&app, &run).await?);
    }
    if let Some(name) = query.name {
        letters = letters.name(name);
    }
    if let Some(cursor) = query.cursor {
        letters = letters.after(number(&cursor)?);
    }
    let page = letters.await?;
    let letters = page.letters.into_iter();
    Ok(Answer(LetterList {
        letters: letters.map(|it| Letter::new(it, &app.redaction)).collect(),
        next: page.next.map(|no| no.to_string()),
    }))
}

fn number(text: &str) -> Result<u64, Problem> {
    text.parse().map_err(|_| bad(format!("`{text}` is no number of a dead letter")))
}

async fn replay(
    State(app): State<App>,
    Names(no): Names<String>,
    Body(said): Body<ReplayShape>,
) -> Answered<ReplayedShape> {
    let no = number(&no)?;
    let mut replay = app.client.replay_dead_letter(no);
    replay = match (said.to, said.event) {
        (Some(_), Some(_)) => return Err(bad("say either `to` or `event`")),
        (Some(run), None) => replay.to(Target::Id(run_id(&app, &run).await?)),
        (None, Some(event)) => replay.as_event(event),
        (None, None) => replay,
    };
    match replay.await? {
        Replayed::Delivered { run } => {
            Ok(Answer(ReplayedShape { run: Some(run.to_string()), told: None }))
        }
        Replayed::Published { told } => Ok(Answer(ReplayedShape { run: None, told: Some(told) })),
        Replayed::Refused { reason } => Err(Problem::new(Kind::Conflict, reason)),
        _ => Err(missing(format!("there is no dead letter {no}"))),
    }
}

async fn drop_letter(
    State(app): State<App>,
    Names(no): Names<String>,
) -> Result<StatusCode, Problem> {
    let no = number(&no)?;
    match app.client.drop_dead_letter(no).await? {
        true => Ok(StatusCode::NO_CONTENT),
        false => Err(missing(format!("there is no dead letter {no}"))),
    }
}

async fn cluster(State(app): State<App>) -> Answered<ClusterShape> {
    Ok(Answer(app.client.cluster().await?.into()))
}

async fn workflows(State(app): State<App>) -> Answered<WorkflowList> {
    let cluster = app.client.cluster().await?;
    let mut found: BTreeMap<String, (Vec<u32>, usize)> = BTreeMap::new();
    for runner in cluster.runners.into_iter().filter(|runner| runner.alive) {
        let mut names: Vec<String> = Vec::new();
        for served in runner.workflows {
            let (versions, runners) = found.entry(served.workflow.clone()).or_default();
            if !versions.contains(&served.version) {
                versions.push(served.version);
            }
            if !names.contains(&served.workflow) {
                *runners += 1;
                names.push(served.workflow);
            }
        }
    }
    let workflows = found.into_iter().map(|(name, (mut versions, runners))| {
        versions.sort_unstable();
        WorkflowShape { name, versions, runners }
    });
    Ok(Answer(WorkflowList { workflows: workflows.collect() }))
}
