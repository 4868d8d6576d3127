//! What is told while it happens.

use std::time::Duration;

use axum::{body::Body, http::Method};
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};

use crate::world::{World, text};

/// The events of an answer, one after the other.
struct Events {
    body: Body,
    said: String,
}

impl Events {
    async fn of(world: &World, path: &str) -> Events {
        let response = world.answer(world.request(Method::GET, path, None)).await;
        assert_eq!(response.status(), 200, "{path}");
        assert_eq!(response.headers()["content-type"], "text/event-stream", "{path}");
        Events { body: response.into_body(), said: String::new() }
    }

    /// The next event: its name and its data; nothing at the end.
    async fn next(&mut self) -> Option<(String, Json)> {
        loop {
            if let Some((event, rest)) = self.said.split_once("\n\n") {
                let field = |name: &str| {
                    let lines = event.lines().filter_map(|it| it.split_once(": "));
                    let mut found = lines.filter(|(key, _)| *key == name).map(|(_, value)| value);
                    found.next().map(str::to_owned)
                };
                let found = field("event").zip(field("data"));
                self.said = rest.to_owned();
                match found {
                    Some((name, data)) => {
                        return Some((name, serde_json::from_str(&data).unwrap()));
                    }
                    None => continue,
                }
            }
            let frame = tokio::time::timeout(Duration::from_secs(60), self.body.frame()).await;
            let data = frame.expect("nothing was said for a minute")?.unwrap().into_data().ok()?;
            self.said.push_str(&String::from_utf8_lossy(&data));
        }
    }

    /// Reads on until it ends.
    async fn end(&mut self) {
        let ended = async { while self.next().await.is_some() {} };
        let ended = tokio::time::timeout(Duration::from_secs(60), ended).await;
        ended.expect("it did not end for a minute");
    }

    /// Reads on until something with this name is as it should be.
    async fn until(&mut self, name: &str, is_right: impl Fn(&Json) -> bool) -> Json {
        loop {
            let (found, data) = self.next().await.expect("it ended before");
            if found == name && is_right(&data) {
                return data;
            }
        }
    }
}

#[tokio::test]
async fn a_run_and_its_history_are_told_as_they_change() {
    let world = World::new().await;
    let id = world.start("patient", json!(null)).await;
    let mut events = Events::of(&world, &format!("/runs/{id}/updates")).await;
    let first = events.next().await.unwrap();
    assert_eq!((first.0.as_str(), &first.1["id"]), ("run", &json!(id)));
    events.until("history", |it| it["entries"][0]["status"] == "waiting").await;
    world.done(&format!("/runs/{id}/messages"), json!({"name": "number", "body": 1})).await;
    let run = events.until("run", |it| it["status"] == "completed").await;
    assert_eq!(run["output"], json!(2));
    events.until("history", |it| it["entries"][0]["status"] == "completed").await;
    world.call(Method::DELETE, &format!("/runs/{id}"), None).await;
    events.until("gone", |_| true).await;
    assert!(events.next().await.is_none());
    world.end().await;
}

#[tokio::test]
async fn all_of_a_long_history_is_told_and_then_only_what_is_new() {
    let world = World::new().await;
    let id = world.start("long", json!(1_200)).await;
    world.until(&format!("/runs/{id}"), |it| it["status"] == "sleeping").await;
    let mut events = Events::of(&world, &format!("/runs/{id}/updates")).await;
    let mut seen = std::collections::BTreeSet::new();
    while seen.len() < 1_201 {
        let (name, data) = events.next().await.unwrap();
        let entries = data["entries"].as_array().filter(|_| name == "history");
        for entry in entries.into_iter().flatten() {
            assert!(seen.insert(text(&entry["location"])), "{entry} is told twice");
        }
    }
    // The new entry comes before all others.
    world.done(&format!("/runs/{id}/messages"), json!({"name": "go", "body": null})).await;
    let mut told = Vec::new();
    loop {
        let (name, data) = events.next().await.unwrap();
        let entries = data["entries"].as_array().filter(|_| name == "history");
        told.extend(entries.into_iter().flatten().map(|it| text(&it["location"])));
        if told.contains(&"a last one".to_owned()) && told.contains(&"go".to_owned()) {
            break;
        }
    }
    assert!(told.len() <= 4, "{told:?}");
    world.end().await;
}

#[tokio::test]
async fn the_list_tells_its_counts_and_which_runs_have_changed() {
    let world = World::new().await;
    let mut events = Events::of(&world, "/runs/updates?workflow=patient").await;
    let counts = events.until("counts", |_| true).await;
    assert_eq!(counts["total"], json!(0));
    world.start("greet", json!("not told")).await;
    let id = world.start("patient", json!(null)).await;
    let changed = events.until("changed", |_| true).await;
    assert_eq!(changed["ids"], json!([id]));
    world.done(&format!("/runs/{id}/messages"), json!({"name": "number", "body": 1})).await;
    events.until("counts", |it| it["counts"]["completed"] == 1).await;
    let changed = events.until("changed", |_| true).await;
    assert_eq!(changed["ids"], json!([id]));
    world.end().await;
}

#[tokio::test]
async fn a_stream_is_followed_from_where_somebody_was_cut_off() {
    let world = World::new().await;
    let id = world.start("secretive", json!({"n": 1})).await;
    let path = format!("/runs/{id}/streams/said/follow");
    let mut events = Events::of(&world, &path).await;
    let item = events.until("item", |_| true).await;
    assert_eq!((&item["position"], &item["value"]), (&json!(0), &json!({"n": 1})));
    let state =
        world.until(&format!("/runs/{id}/state"), |it| it["state"]["token"].is_string()).await;
    let token = text(&state["state"]["token"]);
    world.done(&format!("/tokens/{token}/resolve"), json!({"value": 1})).await;
    events.until("end", |_| true).await;
    assert!(events.next().await.is_none());
    // A browser says what it saw last.
    let mut request = world.request(Method::GET, &path, None);
    request.headers_mut().insert("last-event-id", "0".parse().unwrap());
    let body = world.answer(request).await.into_body();
    let said = String::new();
    let mut events = Events { body, said };
    assert_eq!(events.next().await.unwrap().0, "end");
    world.end().await;
}

#[tokio::test]
async fn what_nobody_may_see_is_refused_as_a_problem_and_not_as_a_stream() {
    let world = World::with(crate::world::with_tokens).await;
    let (status, problem) = world.call(Method::GET, "/runs/updates", None).await;
    assert_eq!((status.as_u16(), &problem["status"]), (401, &json!(401)));
    world.end().await;
}

/// A stream went on for as long as somebody listened, whatever became of their token.
#[tokio::test]
async fn a_stream_ends_with_the_session_or_the_token_that_it_was_opened_with() {
    let mut world = World::with(crate::world::with_tokens).await;
    let admin = format!("Bearer {}", crate::world::TOKENS[2].1);
    let id = {
        world.header("authorization", &admin);
        let id = world.start("patient", json!(null)).await;
        world.headers.clear();
        id
    };
    let client = world.engine.client();
    let (_, token) = client.tokens().create("leaver", everstep_server::Role::Read).await.unwrap();
    world.header("authorization", &format!("Bearer {}", token.as_str()));
    let mut revoked = Events::of(&world, &format!("/runs/{id}/updates")).await;
    let mut followed = Events::of(&world, &format!("/runs/{id}/streams/x/follow")).await;
    world.header("authorization", &admin);
    let mut kept = Events::of(&world, "/runs/updates").await;
    world.headers.clear();
    let (cookie, _) = crate::security::log_in(&world, crate::world::TOKENS[0].1).await;
    world.header("cookie", cookie.split(';').next().unwrap());
    let mut left = Events::of(&world, "/runs/updates").await;
    left.until("counts", |_| true).await;
    let (status, _) = world.call(Method::DELETE, "/session", None).await;
    assert_eq!(status.as_u16(), 204);
    left.end().await;
    assert!(client.tokens().revoke("leaver").await.unwrap());
    revoked.end().await;
    followed.end().await;
    // Others go on.
    world.headers.clear();
    world.header("authorization", &admin);
    let new = world.start("patient", json!(null)).await;
    kept.until("changed", |it| it["ids"].as_array().unwrap().contains(&json!(new))).await;
    world.end().await;
}
