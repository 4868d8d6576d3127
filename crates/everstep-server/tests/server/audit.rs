//! The audit log: that every change is in it, and nothing that is not to be seen.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::{
    document::operations,
    security::{NOBODY, SECRET, path_of},
    world::{TOKENS, World, text, with_tokens},
};

/// Each is noted before it is done, so that it does not matter whether it can be done.
#[tokio::test]
async fn every_change_is_in_the_audit_log_with_who_made_it_and_what_became_of_it() {
    let mut world = World::with(with_tokens).await;
    world.header("authorization", &format!("Bearer {}", TOKENS[2].1));
    let document = world.get("/openapi.json").await;
    let mut changes = 0;
    for (path, verb, operation) in operations(&document) {
        let name = text(&operation["operationId"]);
        // The end of one's own session is no change.
        if verb == "get" || name == "log_out" {
            continue;
        }
        changes += 1;
        let verb: Method = verb.to_uppercase().parse().unwrap();
        let body = match name.as_str() {
            "log_in" => Some(json!({"token": TOKENS[2].1})),
            _ => operation.get("requestBody").map(|_| json!({})),
        };
        let path = path_of(&path);
        let (status, answer) = world.call(verb, &path, body).await;
        let entry = &world.get("/audit?limit=1").await["entries"][0];
        assert_eq!(entry["action"], json!(name), "{status} {answer}");
        assert_eq!(entry["who"], json!("admin"), "{entry}");
        let outcome = match status.is_success() {
            true => "done".to_owned(),
            false => text(&answer["type"]).replace("urn:everstep:problem:", ""),
        };
        assert_eq!(entry["outcome"], json!(outcome), "{entry}");
    }
    assert!(changes > 25, "{changes}");
    world.end().await;
}

/// Whoever may read the log could have settled the deferred.
#[tokio::test]
async fn the_token_of_a_deferred_is_not_in_the_audit_log() {
    let world = World::new().await;
    let run = world.start("secretive", json!({"id": 1})).await;
    let state =
        world.until(&format!("/runs/{run}/state"), |it| it["state"]["token"].is_string()).await;
    let token = text(&state["state"]["token"]);
    let path = format!("/tokens/{token}/resolve");
    world.done(&path, json!({"value": 1})).await;
    world.post(&format!("/tokens/{token}/reject"), json!({"error": "x"})).await;
    let log = world.get("/audit").await;
    assert!(!log.to_string().contains(&token), "{log}");
    let targets: Vec<_> =
        log["entries"].as_array().unwrap()[..2].iter().map(|it| text(&it["target"])).collect();
    assert!(targets[0].starts_with("token sha256:"), "{targets:?}");
    assert_eq!(targets[0], targets[1]);
    world.end().await;
}

#[tokio::test]
async fn the_audit_log_says_who_has_changed_what_and_what_became_of_it() {
    let mut world = World::with(with_tokens).await;
    world.header("authorization", &format!("Bearer {}", TOKENS[1].1));
    let id = world.start("secretive", json!({"password": SECRET})).await;
    world.done(&format!("/runs/{id}/pause"), json!({})).await;
    let unknown = format!("/runs/{NOBODY}/cancel");
    assert_eq!(world.post(&unknown, json!({"rollback": true})).await.0, StatusCode::NOT_FOUND);
    let (status, _) = world.call(Method::DELETE, &format!("/runs/{id}"), None).await;
    assert_eq!(status, StatusCode::FORBIDDEN);
    assert_eq!(world.call(Method::GET, "/audit", None).await.0, StatusCode::FORBIDDEN);
    world.header("authorization", &format!("Bearer {}", TOKENS[2].1));
    let log = world.get("/audit?limit=3").await;
    let rest = world.get(&format!("/audit?cursor={}", text(&log["next"]))).await;
    let mut entries = log["entries"].as_array().unwrap().clone();
    entries.extend(rest["entries"].as_array().unwrap().clone());
    let said: Vec<_> = entries
        .iter()
        .map(|it| ["who", "action", "target", "detail", "outcome"].map(|field| text(&it[field])))
        .collect();
    let who = "operate".to_owned();
    let expected = [
        [who.clone(), "delete_run".into(), id.clone(), "".into(), "forbidden".into()],
        [
            who.clone(),
            "cancel_run".into(),
            NOBODY.into(),
            r#"{"rollback":true}"#.into(),
            "not_found".into(),
        ],
        [who.clone(), "pause_run".into(), id.clone(), "".into(), "done".into()],
        [who, "start_run".into(), "".into(), format!("secretive; run {id}"), "done".into()],
    ];
    assert_eq!(said, expected);
    assert!(!json!(entries).to_string().contains(SECRET));
    world.end().await;
}
