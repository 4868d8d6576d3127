//! What a change answers if it does nothing, or does it to many.

use std::time::Duration;

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::world::{UNDO, World, text};

/// It was answered as done, with the run as it was.
#[tokio::test]
async fn a_run_that_cannot_be_cancelled_any_more_says_why() {
    let world = World::new().await;
    let ended = world.start("greet", json!("x")).await;
    world.ended(&ended).await;
    let path = format!("/runs/{ended}/cancel");
    let (status, problem) = world.post(&path, json!({"rollback": true})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let detail = text(&problem["detail"]);
    assert!(detail.contains("is completed and cannot be"), "{detail}");
    assert_eq!(problem["run"], json!(ended));
    let log = world.get("/audit?limit=1").await;
    assert_eq!(log["entries"][0]["outcome"], json!("conflict"));

    let live = world.start("patient", json!(null)).await;
    let path = format!("/runs/{live}/cancel");
    let done = world.done(&path, json!({})).await;
    assert_eq!(done["id"], json!(live));
    let (status, problem) = world.post(&path, json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let detail = text(&problem["detail"]);
    // It is being cancelled, or was already.
    assert!(detail.contains("cannot be cancelled"), "{detail}");

    let rolling = world.start("regretful", json!(null)).await;
    let run = format!("/runs/{rolling}");
    world.until(&run, |it| it["status"] == "sleeping").await;
    let path = format!("{run}/cancel");
    world.done(&path, json!({"rollback": true})).await;
    world.until(&run, |it| it["status"] == "rolling_back").await;
    let (status, problem) = world.post(&path, json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    let detail = text(&problem["detail"]);
    assert!(detail.contains("rolling back already"), "{detail}");
    UNDO.notify_one();
    world.until(&run, |it| it["status"] == "cancelled").await;
    world.end().await;
}

/// An operator who is answered "paused" or "cancelled" believes that the request did it.
#[tokio::test]
async fn a_change_that_does_nothing_to_a_run_is_a_conflict_that_names_its_status() {
    let world = World::new().await;
    let ended = world.start("greet", json!("x")).await;
    world.ended(&ended).await;
    let failed = world.start("broken", json!("x")).await;
    world.ended(&failed).await;
    let paused = world.start("patient", json!(null)).await;
    world.done(&format!("/runs/{paused}/pause"), json!({})).await;
    let live = world.start("patient", json!(null)).await;
    let message = json!({"name": "number", "body": 1});
    let value = json!({"location": "review", "value": 1});
    for (run, act, body, status) in [
        (&ended, "cancel", json!({}), "completed"),
        (&failed, "cancel", json!({"rollback": true}), "failed"),
        (&ended, "pause", json!({}), "completed"),
        (&paused, "pause", json!({}), "paused"),
        (&ended, "resume", json!({}), "completed"),
        (&live, "resume", json!({}), ""),
        (&ended, "retry", json!({}), "completed"),
        (&live, "retry", json!({}), ""),
        (&ended, "messages", message, "completed"),
        (&ended, "deferreds", value, "completed"),
    ] {
        let (answer, problem) = world.post(&format!("/runs/{run}/{act}"), body).await;
        assert_eq!(answer, StatusCode::CONFLICT, "{act}: {problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains(status), "{act}: {detail}");
        assert_eq!(problem["run"], json!(run), "{act}");
    }
    let (answer, problem) = world.call(Method::DELETE, &format!("/runs/{live}"), None).await;
    assert_eq!(answer, StatusCode::CONFLICT, "{problem}");
    world.end().await;
}

#[tokio::test]
async fn something_is_done_to_so_many_runs_at_once_and_then_to_the_rest() {
    let world = World::new().await;
    let client = world.engine.client();
    for _ in 0..5_001 {
        let start = client.start_json("greet", &json!("x"));
        start.after(Duration::from_secs(3_600)).await.unwrap();
    }
    for limit in [0, 5_001] {
        let body = json!({"filter": {}, "action": "cancel", "limit": limit});
        let (status, problem) = world.post("/runs/bulk", body).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    }
    let mut body = json!({"filter": {"workflow": "greet"}, "action": "cancel"});
    let first = world.done("/runs/bulk", body.clone()).await;
    assert_eq!((&first["met"], &first["done"]), (&json!(5_000), &json!(5_000)));
    body["cursor"] = first["next"].clone();
    let rest = world.done("/runs/bulk", body).await;
    assert_eq!((&rest["met"], rest.get("next")), (&json!(1), None));
    // The log says so.
    let log = world.get("/audit?limit=2").await;
    for (entry, counts) in [(1, "5000 met, 5000 done"), (0, "1 met, 1 done")] {
        let entry = &log["entries"][entry];
        assert_eq!(entry["outcome"], json!("done"));
        let detail = text(&entry["detail"]);
        assert!(detail.ends_with(counts), "{detail}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_page_of_a_history_has_fewer_entries_if_they_are_large() {
    let world = World::new().await;
    let id = world.start("heavy", json!(20)).await;
    world.ended(&id).await;
    let (mut locations, mut pages) = (Vec::new(), 0);
    let mut path = format!("/runs/{id}/history?limit=100");
    loop {
        let page = world.get(&path).await;
        let bytes = page.to_string().len();
        assert!(bytes < 10 << 20, "{bytes}");
        let entries = page["entries"].as_array().unwrap();
        locations.extend(entries.iter().map(|it| text(&it["location"])));
        pages += 1;
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/runs/{id}/history?limit=100&cursor={next}");
    }
    let expected: Vec<_> = (0..20).map(|no| format!("step {no:05}")).collect();
    assert_eq!(locations, expected);
    assert!(pages >= 2, "{pages}");
    // What is small is on one page.
    let id = world.start("long", json!(99)).await;
    world.until(&format!("/runs/{id}"), |it| it["status"] == "sleeping").await;
    let page = world.get(&format!("/runs/{id}/history?limit=100")).await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 100);
    let page = world.get(&format!("/runs/{id}/history?limit=30")).await;
    assert_eq!(page["entries"].as_array().unwrap().len(), 30);
    world.end().await;
}

/// Whoever reads something redacted and sends it back would put the mark in the place of the secret.
#[tokio::test]
async fn what_was_redacted_cannot_be_sent_back_in_its_place() {
    let world = World::with(|server| server.redact(["**.password"]).unwrap()).await;
    let id = world.start("secretive", json!({"password": "hunter2"})).await;
    let seen = world.get(&format!("/runs/{id}")).await["input"].clone();
    assert_eq!(seen["password"], json!("[redacted]"));
    let schedule = json!({"workflow": "secretive", "input": seen, "cron": "0 3 * * *"});
    for (method, path, body) in [
        (Method::POST, "/runs".to_owned(), json!({"workflow": "secretive", "input": seen})),
        (Method::POST, format!("/runs/{id}/fork"), json!({"input": seen})),
        (
            Method::POST,
            format!("/runs/{id}/fork"),
            json!({"results": [{"location": "charge", "value": seen}]}),
        ),
        (Method::POST, "/queues/mails/items".to_owned(), json!({"input": seen})),
        (Method::PUT, "/schedules/s".to_owned(), schedule),
    ] {
        let (status, problem) = world.call(method, &path, Some(body)).await;
        assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY, "{path}: {problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains("`password`"), "{path}: {detail}");
    }
    // The same text elsewhere is a text.
    world.start("secretive", json!({"note": "[redacted]"})).await;
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
