//! What an operation does not take is refused, and not passed over.

use axum::{
    body::Body,
    http::{Method, StatusCode, header},
};
use serde_json::{Value as Json, json};

use crate::{
    document::operations,
    security::path_of,
    world::{World, read, text},
};

/// All operations: the verb, a path to call it by, and what is said about it.
async fn all(world: &World) -> Vec<(Method, String, Json)> {
    let document = world.get("/openapi.json").await;
    let all = operations(&document).into_iter();
    let all = all.map(|(path, verb, operation)| {
        let verb = verb.to_uppercase().parse().unwrap();
        (verb, path_of(&path), operation)
    });
    all.collect()
}

#[tokio::test]
async fn no_operation_passes_over_a_name_in_the_query() {
    let world = World::new().await;
    for (verb, path, _) in all(&world).await {
        let called = format!("{path}?surprise=1");
        let (status, problem) = world.call(verb.clone(), &called, None).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{verb} {path}: {problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains("`surprise`"), "{verb} {path}: {detail}");
    }
    world.end().await;
}

#[tokio::test]
async fn what_stands_in_the_query_instead_of_the_body_changes_nothing() {
    let world = World::new().await;
    let run = world.start("patient", json!(null)).await;
    let path = format!("/runs/{run}/cancel?rollback=true");
    let (status, _) = world.post(&path, json!({})).await;
    assert_eq!(status, StatusCode::BAD_REQUEST);
    let run = world.get(&format!("/runs/{run}")).await;
    assert_eq!(run["cancel_requested"], json!(false));
    world.end().await;
}

#[tokio::test]
async fn an_operation_without_a_body_takes_none() {
    let world = World::new().await;
    let mut count = 0;
    for (verb, path, operation) in all(&world).await {
        if operation.get("requestBody").is_some() {
            continue;
        }
        count += 1;
        let (status, problem) = world.call(verb.clone(), &path, Some(json!({"surprise": 1}))).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{verb} {path}: {problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains("no body"), "{verb} {path}: {detail}");
    }
    assert!(count > 30, "{count}");
    world.end().await;
}

#[tokio::test]
async fn what_cannot_be_done_once_takes_no_key() {
    let world = World::new().await;
    let mut takes = Vec::new();
    for (verb, path, operation) in all(&world).await {
        let parameters = operation["parameters"].as_array().into_iter().flatten();
        let mut parameters = parameters.filter(|it| it["in"] == "header");
        if let Some(parameter) = parameters.next() {
            // Its limits are said.
            let said = text(&parameter["description"]);
            assert!(said.contains("After a restart"), "{said}");
            takes.push(text(&operation["operationId"]));
            continue;
        }
        if verb == Method::GET {
            continue;
        }
        let mut request = world.request(verb.clone(), &path, None);
        let key = "a".parse().unwrap();
        request.headers_mut().insert("idempotency-key", key);
        let (status, problem) = read(world.answer(request).await).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{verb} {path}: {problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains("idempotency-key"), "{verb} {path}: {detail}");
    }
    takes.sort_unstable();
    let expected = ["fork_run", "publish_event", "put_item", "send_message", "start_run"];
    assert_eq!(takes, expected);
    world.end().await;
}

/// Whatever was wrong with a body, it was said to be too large.
#[tokio::test]
async fn a_body_that_breaks_off_is_not_too_large() {
    let world = World::new().await;
    let broken = [Ok(b"{\"wor".to_vec()), Err(std::io::Error::other("gone"))];
    let mut request = world.request(Method::POST, "/runs", None);
    let kind = "application/json".parse().unwrap();
    request.headers_mut().insert(header::CONTENT_TYPE, kind);
    *request.body_mut() = Body::from_stream(futures_util::stream::iter(broken));
    let (status, problem) = read(world.answer(request).await).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    world.end().await;
}
