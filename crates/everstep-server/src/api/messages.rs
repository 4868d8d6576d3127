//! What runs are told from outside: messages, questions, the values of deferreds.

use axum::{Json as Answer, extract::State, http::StatusCode, response::IntoResponse};
use everstep::Role::Operate;
use everstep::{ClientError, IfFinished, Resolved, Sent};

use super::{Answered, bad, runs::handle, wait};
use crate::{
    App,
    extract::{Body, Names},
    once::Once,
    problem::Problem,
    shapes::history::{
        Answer as AnswerShape, IfFinishedShape, MessageShape, RejectShape, RequestShape,
        ResolveShape, ResolvedShape, SentShape, SettleShape, Settled,
    },
    table::{Table, Verb::Post},
};

pub(super) fn add(table: &mut Table) {
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
        .answers::<AnswerShape>(200, "The answer.")
        .answers::<AnswerShape>(
            202,
            "It has not answered in time. The question stays in its inbox; to ask again would put it \
             there twice.",
        );
    table
        .add(
            Post,
            "/runs/{run}/deferreds",
            Operate,
            ("settle_deferred", "Gives a deferred of a run its value, or an error"),
            settle,
        )
        .body::<SettleShape>()
        .answers::<Settled>(200, "What became of it.");
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

async fn send(
    State(app): State<App>,
    Names(run): Names<String>,
    once: Once,
    Body(said): Body<MessageShape>,
) -> Result<impl IntoResponse, Problem> {
    let dedupe = once.or(said.dedupe, "dedupe")?;
    let run = handle(&app, &run).await?;
    let mut send = run.send(&said.name, &said.body);
    if let Some(dedupe) = dedupe {
        send = send.dedupe(dedupe);
    }
    if let IfFinishedShape::DeadLetter = said.if_finished {
        send = send.if_finished(IfFinished::DeadLetter);
    }
    let sent = match send.await {
        // Whoever says so does not mind.
        Err(ClientError::Finished { .. }) if said.if_finished == IfFinishedShape::Drop => {
            let sent = "dropped";
            return Ok((StatusCode::ACCEPTED, Answer(SentShape { sent })));
        }
        sent => sent?,
    };
    let sent = match sent {
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
) -> Result<(StatusCode, Answer<AnswerShape>), Problem> {
    let run = handle(&app, &run).await?;
    let limit = wait(&app, "timeout_ms", said.timeout_ms.unwrap_or(10_000))?;
    let asked = run.request_json(&said.name, &said.body);
    let Ok(answer) = tokio::time::timeout(limit, asked).await else {
        let answer = None;
        return Ok((StatusCode::ACCEPTED, Answer(AnswerShape { answer })));
    };
    let answer = Some(app.redaction.json(answer?));
    Ok((StatusCode::OK, Answer(AnswerShape { answer })))
}

fn settled(resolved: Resolved) -> Answer<Settled> {
    Answer(match resolved {
        Resolved::First => Settled { resolved: ResolvedShape::Now, settled_at: None },
        Resolved::Already { at } => {
            Settled { resolved: ResolvedShape::Before, settled_at: Some(at.into()) }
        }
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
