//! `Idempotency-Key`: however often it is sent with the same key, it happens once.

use axum::http::{Method, StatusCode};
use serde_json::{Value as Json, json};

use crate::world::{World, read, text};

async fn sent(world: &World, path: &str, key: &str, body: Json) -> (StatusCode, Json) {
    let mut request = world.request(Method::POST, path, Some(&body));
    request.headers_mut().insert("idempotency-key", key.parse().unwrap());
    read(world.answer(request).await).await
}

#[tokio::test]
async fn a_run_is_started_once_and_its_key_says_where_it_came_from() {
    let world = World::new().await;
    let body = json!({"workflow": "greet", "input": "ada"});
    let (status, first) = sent(&world, "/runs", "a b", body.clone()).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, again) = sent(&world, "/runs", "a b", body.clone()).await;
    assert_eq!((status, &again["attached"]), (StatusCode::OK, &json!(true)));
    assert_eq!(again["id"], first["id"]);
    let run = world.get(&format!("/runs/{}", text(&first["id"]))).await;
    assert_eq!(run["key"], json!("http/a b"));
    assert_eq!(world.get("/runs/counts").await["total"], json!(1));
    let (status, _) = sent(&world, "/runs", "another", body).await;
    assert_eq!(status, StatusCode::CREATED);
    world.end().await;
}

#[tokio::test]
async fn the_same_key_with_another_body_is_a_conflict() {
    let world = World::new().await;
    let run = world.start("patient", json!(null)).await;
    let messages = format!("/runs/{run}/messages");
    for (path, body, other) in [
        (
            "/runs",
            json!({"workflow": "greet", "input": "a"}),
            json!({"workflow": "greet", "input": "b"}),
        ),
        (
            "/runs",
            json!({"workflow": "greet", "input": "a"}),
            json!({"workflow": "broken", "input": "a"}),
        ),
        (messages.as_str(), json!({"name": "x", "body": 1}), json!({"name": "x", "body": 2})),
        ("/events/paid", json!({"body": 1}), json!({"body": 2})),
        ("/queues/mails/items", json!({"input": 1}), json!({"input": 2})),
    ] {
        let key = format!("key of {other}");
        let (status, answer) = sent(&world, path, &key, body.clone()).await;
        assert!(status.is_success(), "{path}: {answer}");
        let (status, answer) = sent(&world, path, &key, other).await;
        assert_eq!(status, StatusCode::CONFLICT, "{path}: {answer}");
        assert_eq!(answer["type"], json!("urn:everstep:problem:conflict"));
        let (status, answer) = sent(&world, path, &key, body).await;
        assert!(status.is_success(), "{path}: {answer}");
    }
    world.end().await;
}

#[tokio::test]
async fn a_message_an_event_and_an_item_are_there_once() {
    let world = World::new().await;
    let run = world.start("patient", json!(null)).await;
    let messages = format!("/runs/{run}/messages");
    let body = json!({"name": "later", "body": 1});
    assert_eq!(sent(&world, &messages, "m", body.clone()).await.1["sent"], json!("delivered"));
    assert_eq!(sent(&world, &messages, "m", body).await.1["sent"], json!("duplicate"));
    assert_eq!(
        sent(&world, "/events/paid", "e", json!({"body": 1})).await.1["duplicate"],
        json!(false)
    );
    assert_eq!(
        sent(&world, "/events/paid", "e", json!({"body": 1})).await.1["duplicate"],
        json!(true)
    );
    let (status, first) = sent(&world, "/queues/mails/items", "i", json!({"input": 1})).await;
    assert_eq!(status, StatusCode::CREATED);
    let (status, again) = sent(&world, "/queues/mails/items", "i", json!({"input": 1})).await;
    assert_eq!((status, &again["id"]), (StatusCode::OK, &first["id"]));
    world.end().await;
}

#[tokio::test]
async fn a_key_that_cannot_be_one_and_two_keys_at_once_are_refused() {
    let world = World::new().await;
    let body = json!({"workflow": "greet", "input": "a"});
    for key in ["", " ", &"x".repeat(201)] {
        let (status, answer) = sent(&world, "/runs", key, body.clone()).await;
        assert_eq!(status, StatusCode::BAD_REQUEST, "{key}: {answer}");
    }
    let both = json!({"workflow": "greet", "input": "a", "key": "k"});
    assert_eq!(sent(&world, "/runs", "k", both).await.0, StatusCode::BAD_REQUEST);
    // What was refused has not used its key up.
    assert_eq!(sent(&world, "/runs", "k", body).await.0, StatusCode::CREATED);
    world.end().await;
}

/// Both were carried out, since a key was only remembered when its request was done.
#[tokio::test]
async fn of_two_at_once_with_the_same_key_the_second_waits_or_is_refused() {
    let world = World::new().await;
    let run = world.start("patient", json!(null)).await;
    let messages = format!("/runs/{run}/messages");
    let one = json!({"name": "later", "body": 1});
    let other = json!({"name": "later", "body": 2});
    let (first, second) = tokio::join!(
        sent(&world, &messages, "k", one.clone()),
        sent(&world, &messages, "k", other),
    );
    let mut statuses = [first.0.as_u16(), second.0.as_u16()];
    statuses.sort_unstable();
    assert_eq!(statuses, [202, 409], "{first:?} {second:?}");
    let (first, second) =
        tokio::join!(sent(&world, &messages, "l", one.clone()), sent(&world, &messages, "l", one),);
    let mut words = [text(&first.1["sent"]), text(&second.1["sent"])];
    words.sort_unstable();
    assert_eq!(words, ["delivered", "duplicate"]);
    world.end().await;
}

#[tokio::test]
async fn a_fork_is_made_once() {
    let world = World::new().await;
    let run = world.start("greet", json!("ada")).await;
    world.ended(&run).await;
    let path = format!("/runs/{run}/fork");
    let body = json!({"input": "bob"});
    let (status, first) = sent(&world, &path, "f", body.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{first}");
    let (status, again) = sent(&world, &path, "f", body).await;
    assert_eq!((status, &again["id"]), (StatusCode::OK, &first["id"]));
    let fork = world.get(&format!("/runs/{}", text(&first["id"]))).await;
    assert_eq!(fork["key"], json!("http/f"));
    let (status, _) = sent(&world, &path, "f", json!({"input": "eve"})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    // Another process does not know what was sent, but sees that it is no fork of this run.
    let other = everstep_server::Server::new(world.engine.client()).router();
    let world = World { app: other, ..world };
    let second = world.start("greet", json!("eve")).await;
    world.ended(&second).await;
    let path = format!("/runs/{second}/fork");
    let (status, _) = sent(&world, &path, "f", json!({"input": "bob"})).await;
    assert_eq!(status, StatusCode::CONFLICT);
    assert_eq!(world.get("/runs/counts").await["total"], json!(3));
    world.end().await;
}
