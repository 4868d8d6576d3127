//! Schedules.

use axum::{Json as Answer, extract::State, http::StatusCode};
use everstep::Triggered;

use super::{Answered, bad, page_size};
use crate::{
    App,
    extract::{Body, Names, Query},
    problem::Problem,
    security::Role::{Admin, Operate, Read},
    shapes::{
        Tag,
        around::{Backfill, Changed, PutSchedule, ScheduleList, ScheduleShape, Ticked},
        history::PageQuery,
        millis,
    },
    table::{
        Table,
        Verb::{Delete, Get, Post, Put},
    },
};

pub(super) fn add(table: &mut Table) {
    table
        .add(
            Get,
            "/schedules",
            Read,
            ("list_schedules", "Schedules by name"),
            list,
        )
        .query::<PageQuery>()
        .answers::<ScheduleList>(200, "A page of schedules.");
    table
        .add(
            Get,
            "/schedules/{schedule}",
            Read,
            ("get_schedule", "A schedule"),
            get,
        )
        .answers::<ScheduleShape>(200, "The schedule.");
    table
        .add(
            Put,
            "/schedules/{schedule}",
            Operate,
            (
                "put_schedule",
                "Makes a schedule, or makes it as it is said here",
            ),
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
        .answers::<Changed>(200, "Whether it was awake.");
    table
        .add(
            Post,
            "/schedules/{schedule}/resume",
            Operate,
            ("resume_schedule", "Lets a paused schedule go on"),
            resume,
        )
        .answers::<Changed>(200, "Whether it was at rest.");
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
            (
                "backfill_schedule",
                "Makes the ticks of a time that has passed",
            ),
            backfill,
        )
        .body::<Backfill>()
        .answers::<Ticked>(200, "What they have started.");
}

async fn list(State(app): State<App>, Query(query): Query<PageQuery>) -> Answered<ScheduleList> {
    let mut schedules = app.client.schedules().limit(page_size(query.limit)?);
    if let Some(cursor) = query.cursor {
        schedules = schedules.after(cursor);
    }
    let page = schedules.await?;
    let schedules = page.schedules.into_iter();
    Ok(Answer(ScheduleList {
        schedules: schedules
            .map(|it| ScheduleShape::new(it, &app.redaction))
            .collect(),
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
    let mut schedule = app.client.schedule_json(name, &said.workflow, &said.input);
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
    Err(everstep::ClientError::UnknownSchedule { schedule: name }.into())
}

async fn pause(State(app): State<App>, Names(name): Names<String>) -> Answered<Changed> {
    let changed = app.client.schedule_named(name).pause().await?;
    Ok(Answer(Changed { changed }))
}

async fn resume(State(app): State<App>, Names(name): Names<String>) -> Answered<Changed> {
    let changed = app.client.schedule_named(name).resume().await?;
    Ok(Answer(Changed { changed }))
}

async fn trigger(State(app): State<App>, Names(name): Names<String>) -> Answered<Ticked> {
    let ticked = match app.client.schedule_named(name).trigger().await? {
        Triggered::Started(run) => Ticked {
            run: Some(run.id().to_string()),
            outcome: "a run was started".to_owned(),
        },
        Triggered::Skipped { by } => Ticked {
            run: by.map(|run| run.to_string()),
            outcome: "none was started, because the last run has not ended".to_owned(),
        },
        _ => Ticked {
            run: None,
            outcome: "one will be started when the last run has ended".to_owned(),
        },
    };
    Ok(Answer(ticked))
}

async fn backfill(
    State(app): State<App>,
    Names(name): Names<String>,
    Body(said): Body<Backfill>,
) -> Answered<Ticked> {
    let schedule = app.client.schedule_named(name);
    let filled = schedule.backfill(said.from.0..said.to.0).await?;
    Ok(Answer(Ticked {
        run: None,
        outcome: format!(
            "{} runs were started, {} ticks had one already",
            filled.started, filled.present
        ),
    }))
}
