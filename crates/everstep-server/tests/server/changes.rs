//! What a change answers if it does nothing, or does it to many.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::world::{World, text};

/// Whoever reads something redacted and sends it back would put the mark in the place of the secret.
#[tokio::test]
async fn what_was_redacted_cannot_be_sent_back_in_its_place() {
    let world = World::with(|server| server.redact(["**.password"]).unwrap()).await;
    let id = world
        .start("secretive", json!({"password": "hunter2"}))
        .await;
    let seen = world.get(&format!("/runs/{id}")).await["input"].clone();
    assert_eq!(seen["password"], json!("[redacted]"));
    let schedule = json!({"workflow": "secretive", "input": seen, "cron": "0 3 * * *"});
    for (method, path, body) in [
        (
            Method::POST,
            "/runs".to_owned(),
            json!({"workflow": "secretive", "input": seen}),
        ),
        (
            Method::POST,
            format!("/runs/{id}/fork"),
            json!({"input": seen}),
        ),
        (
            Method::POST,
            format!("/runs/{id}/fork"),
            json!({"results": [{"location": "charge", "value": seen}]}),
        ),
        (
            Method::POST,
            "/queues/mails/items".to_owned(),
            json!({"input": seen}),
        ),
        (Method::PUT, "/schedules/s".to_owned(), schedule),
    ] {
        let (status, problem) = world.call(method, &path, Some(body)).await;
        assert_eq!(
            status,
            StatusCode::UNPROCESSABLE_ENTITY,
            "{path}: {problem}"
        );
        let detail = text(&problem["detail"]);
        assert!(detail.contains("`password`"), "{path}: {detail}");
    }
    // The same text elsewhere is a text.
    world
        .start("secretive", json!({"note": "[redacted]"}))
        .await;
    world.end().await;
}

#[tokio::test]
async fn a_schedule_keeps_the_input_that_is_not_said_again() {
    let world = World::with(|server| server.redact(["**.password"]).unwrap()).await;
    let put = async |body| {
        let (status, said) = world.call(Method::PUT, "/schedules/s", Some(body)).await;
        assert_eq!(status, StatusCode::OK, "{said}");
        said
    };
    let stored = async || {
        let schedule = world.engine.client().schedule_named("s");
        schedule.info().await.unwrap().input
    };
    let input = json!({"password": "hunter2"});
    put(json!({"workflow": "secretive", "input": input, "every_ms": 3_600_000})).await;
    let changed = put(json!({"workflow": "secretive", "every_ms": 7_200_000})).await;
    assert_eq!(changed["every_ms"], json!(7_200_000));
    assert_eq!(stored().await, input);
    put(json!({"workflow": "secretive", "every_ms": 7_200_000, "input": null})).await;
    assert_eq!(stored().await, json!(null));
    world.end().await;
}
