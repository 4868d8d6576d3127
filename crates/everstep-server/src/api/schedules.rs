//! Schedules.

use axum::{Extension, Json as Answer, extract::State, http::StatusCode};
use everstep::Role::{Admin, Operate, Read};
use everstep::{ClientError, Triggered};
use serde_json::Value as Json;

use super::{Answered, bad, page_size};
use crate::{
    App,
    extract::{Body, Names, Query},
    problem::{Outcome, Problem},
    shapes::{
        Tag,
        history::PageQuery,
        millis,
        schedules::{Backfill, Backfilled, PutSchedule, ScheduleList, ScheduleShape, Ticked},
    },
    table::{
        Table,
        Verb::{Delete, Get, Post, Put},
    },
};

pub(super) fn add(table: &mut Table) {
    table
        .add(Get, "/schedules", Read, ("list_schedules", "Schedules by name"), list)
        .query::<PageQuery>()
        .answers::<ScheduleList>(200, "A page of schedules.");
    table
        .add(Get, "/schedules/{schedule}", Read, ("get_schedule", "A schedule"), get)
        .answers::<ScheduleShape>(200, "The schedule.");
    table
        .add(
            Put,
            "/schedules/{schedule}",
            Operate,
            ("put_schedule", "Makes a schedule, or makes it as it is said here"),
            put,
        )
        .body::<PutSchedule>()
        .answers::<ScheduleShape>(200, "The schedule.");
    table
        .add(
            Delete,
            "/schedules/{schedule}",
            Admin,
            ("delete_schedule", "Deletes a schedule; its runs stay"),
            delete,
        )
        .answers_nothing(204, "It is deleted.");
    table
        .add(
            Post,
            "/schedules/{schedule}/pause",
            Operate,
            ("pause_schedule", "Lets a schedule rest"),
            pause,
        )
        .answers::<ScheduleShape>(200, "The schedule.");
    table
        .add(
            Post,
            "/schedules/{schedule}/resume",
            Operate,
            ("resume_schedule", "Lets a paused schedule go on"),
            resume,
        )
        .answers::<ScheduleShape>(200, "The schedule.");
    table
        .add(
            Post,
            "/schedules/{schedule}/trigger",
            Operate,
            ("trigger_schedule", "Makes a tick now"),
            trigger,
        )
        .answers::<Ticked>(200, "What it has started.");
    table
        .add(
            Post,
            "/schedules/{schedule}/backfill",
            Operate,
            ("backfill_schedule", "Makes the ticks of a time that has passed"),
            backfill,
        )
        .body::<Backfill>()
        .answers::<Backfilled>(200, "What they have started.");
}

async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> Answered<ScheduleList> {
    let mut schedules = app.client.schedules().limit(page_size(query.limit)?);
    if let Some(cursor) = query.cursor {
        schedules = schedules.after(cursor);
    }
    let page = schedules.await?;
    let schedules = page.schedules.into_iter();
    Ok(Answer(ScheduleList {
        schedules: schedules.map(|it| ScheduleShape::new(it, &app.redaction)).collect(),
        next: page.next,
    }))
}

async fn get(State(app): State<App>, Names(name): Names<String>) -> Answered<ScheduleShape> {
    let info = app.client.schedule_named(name).info().await?;
    Ok(Answer(ScheduleShape::new(info, &app.redaction)))
}

async fn put(
    State(app): State<App>,
    Names(name): Names<String>,
    Body(said): Body<PutSchedule>,
) -> Answered<ScheduleShape> {
    let input = match said.input {
        Some(input) => {
            app.redaction.check_sent("`input`", &input)?;
            input
        }
        None => match app.client.schedule_named(name.clone()).info().await {
            Ok(info) => info.input,
            Err(ClientError::UnknownSchedule { .. }) => Json::Null,
            Err(error) => return Err(error.into()),
        },
    };
    let mut schedule = app.client.schedule_json(name, &said.workflow, &input);
    schedule = match (said.cron, said.every_ms) {
        (Some(cron), None) => schedule.cron(cron),
        (None, Some(ms)) => schedule.every(millis(ms)),
        _ => return Err(bad("say either `cron` or `every_ms`")),
    };
    if let Some(zone) = said.time_zone {
        schedule = schedule.time_zone(zone);
    }
    if let Some(overlap) = said.overlap {
        schedule = schedule.overlap(overlap.into());
    }
    if let Some(ms) = said.catch_up_ms {
        schedule = schedule.catch_up(millis(ms));
    }
    if said.paused {
        schedule = schedule.paused();
    }
    if let Some(version) = said.version {
        schedule = schedule.version(version);
    }
    for Tag { name, value } in said.tags {
        schedule = schedule.tag(name, value);
    }
    let info = schedule.await?.info().await?;
    Ok(Answer(ScheduleShape::new(info, &app.redaction)))
}

async fn delete(State(app): State<App>, Names(name): Names<String>) -> Result<StatusCode, Problem> {
    let schedule = app.client.schedule_named(name.clone());
    if schedule.delete().await? {
        return Ok(StatusCode::NO_CONTENT);
    }
    Err(ClientError::UnknownSchedule { schedule: name }.into())
}

async fn pause(State(app): State<App>, Names(name): Names<String>) -> Answered<ScheduleShape> {
    let schedule = app.client.schedule_named(name);
    schedule.pause().await?;
    let info = schedule.info().await?;
    Ok(Answer(ScheduleShape::new(info, &app.redaction)))
}

async fn resume(State(app): State<App>, Names(name): Names<String>) -> Answered<ScheduleShape> {
    let schedule = app.client.schedule_named(name);
    schedule.resume().await?;
    let info = schedule.info().await?;
    Ok(Answer(ScheduleShape::new(info, &app.redaction)))
}

async fn trigger(
    State(app): State<App>,
    Names(name): Names<String>,
) -> Result<(Extension<Outcome>, Answer<Ticked>), Problem> {
    let ticked = match app.client.schedule_named(name).trigger().await? {
        Triggered::Started(run) => Ticked {
            run: Some(run.id().to_string()),
            skipped_by: None,
            outcome: "a run was started",
        },
        Triggered::Skipped { by } => Ticked {
            run: None,
            skipped_by: by.map(|run| run.to_string()),
            outcome: "none was started, because the last run has not ended",
        },
        _ => Ticked {
            run: None,
            skipped_by: None,
            outcome: "one will be started when the last run has ended",
        },
    };
    let outcome = match &ticked.run {
        Some(run) => format!("run {run}"),
        None => ticked.outcome.to_owned(),
    };
    Ok((Extension(Outcome::with(outcome)), Answer(ticked)))
}

async fn backfill(
    State(app): State<App>,
    Names(name): Names<String>,
    Body(said): Body<Backfill>,
) -> Answered<Backfilled> {
    let (from, to) = (said.from.0, said.to.0);
    if from > to {
        return Err(bad("`from` is after `to`"));
    }
    let filled = app.client.schedule_named(name).backfill(from..to).await?;
    Ok(Answer(Backfilled { started: filled.started, present: filled.present }))
}
