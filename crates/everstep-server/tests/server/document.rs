//! The OpenAPI document: that it is one, and that the answers are as it says.

use std::collections::BTreeSet;

use axum::http::Method;
use serde_json::{Value as Json, json};

use crate::{
    schema::Schemas,
    world::{World, read, text},
};

/// All operations: the path, the verb, and what is said about it.
pub(crate) fn operations(document: &Json) -> Vec<(String, String, Json)> {
    let mut all = Vec::new();
    for (path, verbs) in document["paths"].as_object().unwrap() {
        for (verb, operation) in verbs.as_object().unwrap() {
            all.push((path.clone(), verb.clone(), operation.clone()));
        }
    }
    all
}

/// Every reference in the document.
fn references(value: &Json, found: &mut BTreeSet<String>) {
    match value {
        Json::Object(fields) => {
            if let Some(reference) = fields.get("$ref").and_then(Json::as_str) {
                found.insert(reference.to_owned());
            }
            fields.values().for_each(|it| references(it, found));
        }
        Json::Array(items) => items.iter().for_each(|it| references(it, found)),
        _ => {}
    }
}

#[tokio::test]
async fn the_document_is_valid_and_names_every_operation_once() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await;
    assert_eq!(document["openapi"], json!("3.1.0"));
    for field in ["title", "version"] {
        assert!(document["info"][field].is_string(), "info.{field}");
    }
    let schemas = Schemas { document: &document };
    let mut found = BTreeSet::new();
    references(&document, &mut found);
    assert!(found.len() > 30, "{found:?}");
    for reference in &found {
        schemas.resolve(reference).unwrap();
    }
    let mut names = BTreeSet::new();
    for (path, verb, operation) in operations(&document) {
        let name = text(&operation["operationId"]);
        let at = format!("{verb} {path} ({name})");
        assert!(names.insert(name), "{at} is there twice");
        assert!(operation["summary"].is_string(), "{at} has no summary");
        check_parameters(&path, &operation, &at);
        check_answers(&operation, &schemas, &at);
        let has_body = operation.get("requestBody").is_some();
        if has_body {
            let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
            assert!(schema.is_object(), "{at}: no schema for its body");
        }
        assert!(!has_body || verb != "get", "{at}: a body");
        assert!(!operation["tags"].as_array().unwrap().is_empty(), "{at}: no tag");
    }
    assert!(names.len() > 50, "{names:?}");
    for scheme in document["security"].as_array().unwrap() {
        for name in scheme.as_object().unwrap().keys() {
            let known = &document["components"]["securitySchemes"][name];
            assert!(known.is_object(), "the security scheme `{name}` is not said");
        }
    }
    world.end().await;
}

/// Every schema below this part of the document, with the path to it. `is_schema` says whether this part
/// is a schema itself.
fn schemas_below<'d>(
    part: &'d Json,
    at: &str,
    is_schema: bool,
    found: &mut Vec<(String, &'d Json)>,
) {
    if is_schema {
        found.push((at.to_owned(), part));
    }
    let Json::Object(fields) = part else {
        if let Json::Array(items) = part {
            for (no, item) in items.iter().enumerate() {
                schemas_below(item, &format!("{at}/{no}"), false, found);
            }
        }
        return;
    };
    for (name, below) in fields {
        let at = format!("{at}/{name}");
        match (name.as_str(), below) {
            // These are values, and not parts of the document.
            ("default" | "const" | "enum" | "example" | "examples", _) => {}
            // Generators know this one as a boolean, too.
            ("additionalProperties", Json::Bool(_)) => {}
            ("schema" | "items" | "not" | "additionalProperties" | "contains", _) => {
                schemas_below(below, &at, true, found);
            }
            ("properties" | "schemas" | "$defs", Json::Object(named)) => {
                for (name, schema) in named {
                    schemas_below(schema, &format!("{at}/{name}"), true, found);
                }
            }
            ("anyOf" | "oneOf" | "allOf" | "prefixItems", Json::Array(several)) => {
                for (no, schema) in several.iter().enumerate() {
                    schemas_below(schema, &format!("{at}/{no}"), true, found);
                }
            }
            _ => schemas_below(below, &at, false, found),
        }
    }
}

/// `schema: true` for "any JSON value" is valid, and made a generator of Python clients refuse the whole
/// document.
#[tokio::test]
async fn no_schema_of_the_document_is_one_that_generators_refuse() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await;
    let mut found = Vec::new();
    schemas_below(&document, "", false, &mut found);
    assert!(found.len() > 300, "{}", found.len());
    for (at, schema) in found {
        let Json::Object(fields) = schema else {
            panic!("{at} is {schema}, and no object");
        };
        // A word of OpenAPI 3.0, which has no meaning in 3.1.
        assert!(!fields.contains_key("nullable"), "{at}: {schema}");
        // A definition of its own would be looked for in `components`.
        assert!(!fields.contains_key("$defs"), "{at}: {schema}");
        if let Some(kinds) = fields.get("type").and_then(Json::as_array) {
            let others = kinds.iter().filter(|it| **it != json!("null")).count();
            assert_eq!(others, 1, "{at} has several types: {schema}");
        }
    }
    world.end().await;
}

fn check_parameters(path: &str, operation: &Json, at: &str) {
    let mut said = BTreeSet::new();
    for parameter in operation["parameters"].as_array().into_iter().flatten() {
        let (name, place) = (text(&parameter["name"]), text(&parameter["in"]));
        assert!(parameter["schema"].is_object(), "{at}: `{name}` has no schema");
        assert!(said.insert((place.clone(), name.clone())), "{at}: `{name}` twice");
        if place == "path" {
            assert_eq!(parameter["required"], json!(true), "{at}: `{name}`");
            assert!(path.contains(&format!("{{{name}}}")), "{at}: no `{name}`");
        }
    }
    for part in path.split('/').filter_map(|it| it.strip_prefix('{')) {
        let name = part.trim_end_matches('}').to_owned();
        assert!(said.contains(&("path".to_owned(), name.clone())), "{at}: `{name}` is not said");
    }
}

fn check_answers(operation: &Json, schemas: &Schemas<'_>, at: &str) {
    let answers = operation["responses"].as_object().unwrap();
    assert!(answers.keys().any(|it| it.starts_with('2')), "{at}: it never succeeds");
    for wanted in ["400", "default"] {
        assert!(answers.contains_key(wanted), "{at}: no answer {wanted}");
    }
    for (status, answer) in answers {
        let answer = match answer["$ref"].as_str() {
            Some(reference) => schemas.resolve(reference).unwrap(),
            None => answer,
        };
        assert!(answer["description"].is_string(), "{at}: {status} is not described");
        assert_eq!(status == "204", answer.get("content").is_none(), "{at}: {status}");
        for (kind, media) in answer["content"].as_object().into_iter().flatten() {
            // What is told in events has no shape as a whole.
            assert!(media["schema"].is_object() || kind == "text/event-stream", "{at}: {status}");
        }
    }
}

/// The operation that a call is one of.
fn operation_of<'d>(document: &'d Json, method: &Method, path: &str) -> &'d Json {
    let path = path.split('?').next().unwrap();
    let parts: Vec<&str> = path.split('/').collect();
    let fits = |template: &str| {
        let template = template.strip_prefix("/api/v1").unwrap();
        let names: Vec<&str> = template.split('/').collect();
        let exact = names.iter().filter(|it| !it.starts_with('{')).count();
        let fits = names.len() == parts.len()
            && names.iter().zip(&parts).all(|(name, part)| name.starts_with('{') || name == part);
        fits.then_some(exact)
    };
    let paths = document["paths"].as_object().unwrap().iter();
    let verb = method.as_str().to_lowercase();
    let found = paths.filter_map(|(path, verbs)| Some((fits(path)?, verbs.get(&verb)?)));
    let (_, found) = found.max_by_key(|(exact, _)| *exact).unwrap();
    found
}

/// Calls it, and checks the answer against the document; its body.
async fn checked(
    world: &World,
    document: &Json,
    method: Method,
    path: &str,
    body: Option<Json>,
) -> Json {
    let schemas = Schemas { document };
    let operation = operation_of(document, &method, path);
    if let Some(body) = &body {
        let schema = &operation["requestBody"]["content"]["application/json"]["schema"];
        // What takes no body does not look at one.
        let met = if schema.is_null() { Ok(()) } else { schemas.check(schema, body) };
        assert_eq!(met, Ok(()), "{method} {path}: the body that is sent");
    }
    let response = world.answer(world.request(method.clone(), path, body.as_ref())).await;
    let kind = response.headers().get("content-type").map(|it| it.to_str().unwrap().to_owned());
    let (status, answer) = read(response).await;
    let answers = &operation["responses"];
    let said = answers.get(status.as_str()).unwrap_or(&answers["default"]);
    let said = match said["$ref"].as_str() {
        Some(reference) => schemas.resolve(reference).unwrap(),
        None => said,
    };
    match &kind {
        None => assert!(said.get("content").is_none(), "{method} {path}: {status} has no body"),
        Some(kind) => {
            let schema = &said["content"][kind]["schema"];
            assert!(
                !schema.is_null(),
                "{method} {path}: {status} as {kind} is not in the document"
            );
            let met = schemas.check(schema, &answer);
            assert_eq!(met, Ok(()), "{method} {path}: {status} {answer}");
        }
    }
    answer
}

#[tokio::test]
async fn real_answers_are_as_the_document_says() {
    let world = World::new().await;
    let document = world.get("/openapi.json").await;
    let get = async |path: &str| checked(&world, &document, Method::GET, path, None).await;
    let post = async |path: &str, body: Json| {
        checked(&world, &document, Method::POST, path, Some(body)).await
    };

    let start = json!({"workflow": "secretive", "input": {"id": 1}, "key": "k", "tags": [{"name": "a", "value": "b"}]});
    let id = text(&post("/runs", start.clone()).await["id"]);
    post("/runs", start).await;
    let run = format!("/runs/{id}");
    let state = world.until(&format!("{run}/state"), |it| it["state"]["token"].is_string()).await;
    world.until(&format!("{run}/streams/said"), |it| it["items"][0].is_object()).await;
    for path in ["", "/history", "/why", "/state", "/streams", "/streams/said", "/result"] {
        get(&format!("{run}{path}")).await;
    }
    for path in [
        "/session",
        "/runs",
        "/runs?status=running,sleeping&limit=1",
        "/runs/counts",
        "/runs/by-key/secretive/k",
        "/schedules",
        "/queues/mails",
        "/queues/mails/items",
        "/limits",
        "/dead-letters",
        "/cluster",
        "/workflows",
        "/openapi.json",
        "/runs?limit=0",
        "/runs/nonsense",
        "/schedules/none",
        "/events/none",
    ] {
        get(path).await;
    }
    post(&format!("{run}/messages"), json!({"name": "note", "body": [1, 2]})).await;
    post(&format!("{run}/pause"), json!({})).await;
    post(&format!("{run}/pause"), json!({})).await;
    post(&format!("{run}/resume"), json!({})).await;
    post(&format!("{run}/retry"), json!({})).await;
    let token = text(&state["state"]["token"]);
    post(&format!("/tokens/{token}/reject"), json!({"error": "no"})).await;
    post(&format!("/tokens/{token}/resolve"), json!({"value": 1})).await;
    world.ended(&id).await;
    get(&format!("{run}/result")).await;
    get(&run).await;
    post(&format!("{run}/cancel"), json!({"rollback": true})).await;
    post(&format!("{run}/fork"), json!({"input": {"id": 2}})).await;
    post(&format!("{run}/messages"), json!({"name": "late", "if_finished": "dead_letter"})).await;
    get("/dead-letters").await;
    let put = json!({"workflow": "greet", "every_ms": 3_600_000, "input": "x", "overlap": "queue"});
    checked(&world, &document, Method::PUT, "/schedules/hourly", Some(put)).await;
    for path in ["pause", "resume", "trigger"] {
        post(&format!("/schedules/hourly/{path}"), json!({})).await;
    }
    let time = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-01T02:00:00Z"});
    post("/schedules/hourly/backfill", time).await;
    get("/schedules").await;
    let item = post("/queues/mails/items", json!({"input": {"to": "a"}, "delay_ms": 60_000})).await;
    get(&format!("/queues/mails/items/{}", text(&item["id"]))).await;
    get("/queues/mails/items?state=delayed").await;
    post("/events/paid", json!({"body": 1, "key": "k", "deliver": "all"})).await;
    get("/events/paid").await;
    post("/runs/bulk", json!({"filter": {"workflow": "greet"}, "action": "delete", "limit": 2}))
        .await;
    let parent = world.start("parent", json!("eve")).await;
    world.ended(&parent).await;
    get(&format!("/runs/{parent}/history")).await;
    let broken = world.start("broken", json!("no way")).await;
    world.ended(&broken).await;
    get(&format!("/runs/{broken}")).await;
    get(&format!("/runs/{broken}/history")).await;
    get(&format!("/runs?ids={broken},{parent}")).await;
    checked(&world, &document, Method::DELETE, &format!("/runs/{broken}"), None).await;
    world.end().await;
}
