//! The API, called as a router: what it answers, and with which status.
#![allow(clippy::unwrap_used)]

use axum::{
    Router,
    body::Body,
    http::{Method, Request, StatusCode, header},
};
use everstep::{Engine, prelude::*};
use everstep_server::Server;
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tower::ServiceExt;

#[workflow]
async fn greet(ctx: Ctx, name: String) -> everstep::Result<String> {
    let greeting = ctx
        .step("greet", async move || Ok(format!("hello {name}")))
        .await?;
    Ok(greeting)
}

#[workflow]
async fn patient(ctx: Ctx) -> everstep::Result<u32> {
    let number: u32 = ctx.listen("number").await?;
    Ok(number + 1)
}

struct World {
    engine: Engine,
    app: Router,
    _directory: Directory,
}

struct Directory(std::path::PathBuf);

impl Drop for Directory {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

impl World {
    async fn new() -> World {
        static NEXT: std::sync::atomic::AtomicU32 = std::sync::atomic::AtomicU32::new(0);
        let no = NEXT.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
        let path = std::env::temp_dir().join(format!("everstep-api-{}-{no}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        let engine = Engine::open(path.join("app.db"))
            .register(greet)
            .register(patient)
            .start()
            .await
            .unwrap();
        let app = Server::new(engine.client()).router();
        World {
            engine,
            app,
            _directory: Directory(path),
        }
    }

    async fn call(&self, method: Method, path: &str, body: Option<Json>) -> (StatusCode, Json) {
        let mut request = Request::builder()
            .method(method)
            .uri(format!("/api/v1{path}"));
        let body = match body {
            Some(body) => {
                request = request.header(header::CONTENT_TYPE, "application/json");
                Body::from(body.to_string())
            }
            None => Body::empty(),
        };
        let response = self
            .app
            .clone()
            .oneshot(request.body(body).unwrap())
            .await
            .unwrap();
        let status = response.status();
        let bytes = response.into_body().collect().await.unwrap().to_bytes();
        let json = if bytes.is_empty() {
            Json::Null
        } else {
            serde_json::from_slice(&bytes).unwrap()
        };
        (status, json)
    }

    async fn get(&self, path: &str) -> Json {
        let (status, body) = self.call(Method::GET, path, None).await;
        assert_eq!(status, StatusCode::OK, "{path}: {body}");
        body
    }

    async fn post(&self, path: &str, body: Json) -> (StatusCode, Json) {
        self.call(Method::POST, path, Some(body)).await
    }
}

#[tokio::test]
async fn a_run_is_started_waited_for_and_read() {
    let world = World::new().await;
    let (status, started) = world
        .post(
            "/runs",
            json!({"workflow": "greet", "input": "ada", "key": "k"}),
        )
        .await;
    assert_eq!(
        (status, &started["attached"]),
        (StatusCode::CREATED, &json!(false))
    );
    let id = started["id"].as_str().unwrap().to_owned();
    let result = world.get(&format!("/runs/{id}/result?wait_ms=20000")).await;
    assert_eq!(
        result,
        json!({"status": "completed", "output": "hello ada"})
    );
    let run = world.get(&format!("/runs/{id}")).await;
    assert_eq!(
        (&run["workflow"], &run["input"]),
        (&json!("greet"), &json!("ada"))
    );
    assert_eq!(world.get("/runs/by-key/greet/k").await["id"], json!(id));
    let history = world.get(&format!("/runs/{id}/history")).await;
    assert_eq!(history["entries"][0]["location"], json!("greet"));
    assert_eq!(history["entries"][0]["value"], json!("hello ada"));
    // The same key finds the same run.
    let (status, again) = world
        .post(
            "/runs",
            json!({"workflow": "greet", "input": "bob", "key": "k"}),
        )
        .await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(
        again,
        json!({"id": id, "attached": true, "input_differs": true})
    );
    let counts = world.get("/runs/counts").await;
    assert_eq!(
        (&counts["counts"]["completed"], &counts["total"]),
        (&json!(1), &json!(1))
    );
    world.engine.shutdown().await;
}

#[tokio::test]
async fn a_waiting_run_is_found_explained_and_sent_what_it_waits_for() {
    let world = World::new().await;
    let (_, started) = world.post("/runs", json!({"workflow": "patient"})).await;
    let id = started["id"].as_str().unwrap().to_owned();
    let why = loop {
        let why = world.get(&format!("/runs/{id}/why")).await;
        if why["chain"][0]["waits_for"][0]["kind"] == json!("message") {
            break why;
        }
        tokio::task::yield_now().await;
    };
    assert!(
        why["sentence"].as_str().unwrap().contains("number"),
        "{why}"
    );
    let found = world.get(&format!("/runs?q={id}")).await;
    assert_eq!(found["runs"][0]["id"], json!(id));
    let (status, sent) = world
        .post(
            &format!("/runs/{id}/messages"),
            json!({"name": "number", "body": 41}),
        )
        .await;
    assert_eq!(
        (status, sent),
        (StatusCode::ACCEPTED, json!({"sent": "delivered"}))
    );
    let result = world.get(&format!("/runs/{id}/result?wait_ms=20000")).await;
    assert_eq!(result["output"], json!(42));
    // What has ended cannot be paused, and says so.
    let (status, problem) = world.post(&format!("/runs/{id}/pause"), json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    assert!(
        problem["detail"].as_str().unwrap().contains(&id),
        "{problem}"
    );
    world.engine.shutdown().await;
}

#[tokio::test]
async fn what_is_wrong_is_said_and_where() {
    let world = World::new().await;
    for (method, path, body, status, word) in [
        (Method::GET, "/runs?limit=0", None, 400, "limit"),
        (Method::GET, "/runs?colour=red", None, 400, "colour"),
        (Method::GET, "/runs?status=happy", None, 400, "happy"),
        (Method::GET, "/runs?tag=x", None, 400, "name:value"),
        (Method::GET, "/runs/nonsense", None, 400, "nonsense"),
        (Method::GET, "/nowhere", None, 404, "openapi.json"),
        (Method::DELETE, "/cluster", None, 405, "DELETE"),
        (
            Method::POST,
            "/runs",
            Some(json!({"input": 1})),
            400,
            "workflow",
        ),
        (
            Method::POST,
            "/runs",
            Some(json!({"workflow": "greet", "x": 1})),
            400,
            "x",
        ),
        (
            Method::GET,
            "/runs/01a1e31b-1d59-7590-8241-3c1d14f48fdd",
            None,
            404,
            "no run",
        ),
    ] {
        let (got, problem) = world.call(method, path, body).await;
        assert_eq!(got.as_u16(), status, "{path}: {problem}");
        assert!(
            problem["detail"].as_str().unwrap().contains(word),
            "{path}: {problem}"
        );
        assert_eq!(problem["status"], json!(status));
    }
    world.engine.shutdown().await;
}

#[tokio::test]
async fn the_document_names_every_operation_once() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await;
    assert_eq!(document["openapi"], json!("3.1.0"));
    let mut names = Vec::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            let name = operation["operationId"].as_str().unwrap();
            assert!(
                !names.contains(&name),
                "{verb} {path}: {name} is there twice"
            );
            names.push(name);
        }
    }
    assert!(names.len() > 40, "{names:?}");
    world.engine.shutdown().await;
}
