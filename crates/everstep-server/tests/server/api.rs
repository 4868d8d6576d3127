//! What the API answers, and with which status.

use axum::http::{Method, StatusCode};
use serde_json::json;

use crate::world::{MAILS, World, text};

#[tokio::test]
async fn a_run_is_started_waited_for_and_read() {
    let world = World::new().await;
    let (status, started) =
        world.post("/runs", json!({"workflow": "greet", "input": "ada", "key": "k"})).await;
    assert_eq!((status, &started["attached"]), (StatusCode::CREATED, &json!(false)));
    let id = started["id"].as_str().unwrap().to_owned();
    let result = world.get(&format!("/runs/{id}/result?wait_ms=20000")).await;
    assert_eq!(result, json!({"status": "completed", "output": "hello ada"}));
    let run = world.get(&format!("/runs/{id}")).await;
    assert_eq!((&run["workflow"], &run["input"]), (&json!("greet"), &json!("ada")));
    assert_eq!(world.get("/runs/by-key/greet/k").await["id"], json!(id));
    let history = world.get(&format!("/runs/{id}/history")).await;
    assert_eq!(history["entries"][0]["location"], json!("greet"));
    assert_eq!(history["entries"][0]["value"], json!("hello ada"));
    // The same key finds the same run.
    let (status, again) =
        world.post("/runs", json!({"workflow": "greet", "input": "bob", "key": "k"})).await;
    assert_eq!(status, StatusCode::OK);
    assert_eq!(again, json!({"id": id, "attached": true, "input_differs": true}));
    let counts = world.get("/runs/counts").await;
    assert_eq!((&counts["counts"]["completed"], &counts["total"]), (&json!(1), &json!(1)));
    world.end().await;
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
    assert!(why["sentence"].as_str().unwrap().contains("number"), "{why}");
    let found = world.get(&format!("/runs?q={id}")).await;
    assert_eq!(found["runs"][0]["id"], json!(id));
    let (status, sent) =
        world.post(&format!("/runs/{id}/messages"), json!({"name": "number", "body": 41})).await;
    assert_eq!((status, sent), (StatusCode::ACCEPTED, json!({"sent": "delivered"})));
    let result = world.get(&format!("/runs/{id}/result?wait_ms=20000")).await;
    assert_eq!(result["output"], json!(42));
    // What has ended cannot be paused, and says so.
    let (status, problem) = world.post(&format!("/runs/{id}/pause"), json!({})).await;
    assert_eq!(status, StatusCode::CONFLICT, "{problem}");
    assert!(problem["detail"].as_str().unwrap().contains(&id), "{problem}");
    world.end().await;
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
        (Method::POST, "/runs", Some(json!({"input": 1})), 400, "workflow"),
        (Method::POST, "/runs", Some(json!({"workflow": "greet", "x": 1})), 400, "x"),
        (Method::GET, "/runs/01a1e31b-1d59-7590-8241-3c1d14f48fdd", None, 404, "no run"),
    ] {
        let (got, problem) = world.call(method, path, body).await;
        assert_eq!(got.as_u16(), status, "{path}: {problem}");
        assert!(problem["detail"].as_str().unwrap().contains(word), "{path}: {problem}");
        assert_eq!(problem["status"], json!(status));
    }
    world.end().await;
}

#[tokio::test]
async fn runs_are_asked_for_by_their_ids_and_those_that_are_gone_are_left_out() {
    let world = World::new().await;
    let (one, other) =
        (world.start("greet", json!("a")).await, world.start("greet", json!("b")).await);
    world.ended(&one).await;
    world.ended(&other).await;
    let (status, _) = world.call(Method::DELETE, &format!("/runs/{other}"), None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    let found = world.get(&format!("/runs?ids={one},{other}")).await;
    assert_eq!(found["runs"].as_array().unwrap().len(), 1);
    assert_eq!(found["runs"][0]["id"], json!(one));
    let path = format!("/runs?ids={one}&workflow=greet");
    assert_eq!(world.call(Method::GET, &path, None).await.0, StatusCode::BAD_REQUEST);
    let many = vec![one.as_str(); 101].join(",");
    let path = format!("/runs?ids={many}");
    assert_eq!(world.call(Method::GET, &path, None).await.0, StatusCode::BAD_REQUEST);
    world.end().await;
}

#[tokio::test]
async fn runs_are_found_page_by_page_and_by_what_they_have() {
    let world = World::new().await;
    for no in 0..5 {
        let body = json!({
            "workflow": "greet", "input": "x", "key": format!("order-{no}"),
            "tags": [{"name": "parity", "value": if no % 2 == 0 { "even" } else { "odd" }}],
        });
        let id = text(&world.done("/runs", body).await["id"]);
        world.ended(&id).await;
    }
    let mut keys = Vec::new();
    let mut path = "/runs?limit=2".to_owned();
    loop {
        let page = world.get(&path).await;
        keys.extend(page["runs"].as_array().unwrap().iter().map(|it| text(&it["key"])));
        let Some(next) = page["next"].as_str() else {
            break;
        };
        path = format!("/runs?limit=2&cursor={next}");
    }
    assert_eq!(keys, ["order-4", "order-3", "order-2", "order-1", "order-0"]);
    for (query, count) in [
        ("q=order-", 5),
        ("q=parity:odd", 2),
        ("tag=parity:even&status=completed", 3),
        ("tag=parity:even&tag=parity:odd", 0),
        ("status=failed,cancelled", 0),
        ("workflow=patient", 0),
        ("key_prefix=order-3", 1),
        ("created_before=2020-01-01T00:00:00Z", 0),
    ] {
        let found = world.get(&format!("/runs?{query}")).await;
        assert_eq!(found["runs"].as_array().unwrap().len(), count, "{query}");
    }
    let bulk =
        json!({"filter": {"status": "completed", "tag": ["parity:odd"]}, "action": "delete"});
    let mut dry = bulk.clone();
    dry["dry_run"] = json!(true);
    assert_eq!(world.done("/runs/bulk", dry).await["met"], json!(2));
    assert_eq!(world.done("/runs/bulk", bulk).await["done"], json!(2));
    assert_eq!(world.get("/runs/counts").await["total"], json!(3));
    // What was only asked about is no change.
    let log = world.get("/audit").await;
    let entries = log["entries"].as_array().unwrap().iter();
    let bulk = entries.filter(|it| it["action"] == json!("change_runs"));
    let details: Vec<_> = bulk.map(|it| text(&it["detail"])).collect();
    assert_eq!(details.len(), 1, "{details:?}");
    assert!(!details[0].contains("dry_run"), "{details:?}");
    world.end().await;
}

#[tokio::test]
async fn a_child_is_named_where_it_was_started() {
    let world = World::new().await;
    let id = world.start("parent", json!("eve")).await;
    assert_eq!(world.ended(&id).await["output"], json!("hello eve"));
    let history = world.get(&format!("/runs/{id}/history")).await;
    let child = text(&history["entries"][0]["child"]);
    assert_eq!(history["entries"][0]["kind"], json!("child"));
    let child = world.get(&format!("/runs/{child}")).await;
    assert_eq!((&child["workflow"], &child["parent"]), (&json!("greet"), &json!(id)));
    world.end().await;
}

#[tokio::test]
async fn a_question_is_answered_a_deferred_settled_and_a_message_dropped() {
    let world = World::new().await;
    let oracle = world.start("oracle", json!(null)).await;
    let ask = json!({"name": "question", "body": "why"});
    let answer = world.done(&format!("/runs/{oracle}/requests"), ask.clone()).await;
    assert_eq!(answer["answer"]["asked"], json!("why"));
    let unheard = json!({"name": "nobody listens to this", "timeout_ms": 1});
    let silent = world.start("oracle", json!(null)).await;
    let (status, answer) = world.post(&format!("/runs/{silent}/requests"), unheard).await;
    assert_eq!((status, answer), (StatusCode::ACCEPTED, json!({})));
    world.ended(&oracle).await;
    let (status, _) = world.post(&format!("/runs/{oracle}/requests"), ask.clone()).await;
    assert_eq!(status, StatusCode::CONFLICT);
    let messages = format!("/runs/{oracle}/messages");
    assert_eq!(world.post(&messages, ask.clone()).await.0, StatusCode::CONFLICT);
    for (policy, sent) in [("drop", "dropped"), ("dead_letter", "dead_lettered")] {
        let mut body = ask.clone();
        body["if_finished"] = json!(policy);
        assert_eq!(world.done(&messages, body).await, json!({"sent": sent}));
    }
    let letters = world.get("/dead-letters").await;
    let no = letters["letters"][0]["no"].as_u64().unwrap();
    let patient = world.start("patient", json!(null)).await;
    let replay = format!("/dead-letters/{no}/replay");
    assert_eq!(world.done(&replay, json!({"to": patient})).await, json!({"run": patient}));

    let run = world.start("secretive", json!({"id": 7})).await;
    let state =
        world.until(&format!("/runs/{run}/state"), |it| it["state"]["token"].is_string()).await;
    let token = text(&state["state"]["token"]);
    // At rest, so that it cannot end between the two.
    world.done(&format!("/runs/{run}/pause"), json!({})).await;
    let path = format!("/tokens/{token}/resolve");
    assert_eq!(world.done(&path, json!({"value": 5})).await, json!({"resolved": "now"}));
    let again = world.done(&path, json!({"value": 6})).await;
    assert_eq!(again["resolved"], json!("before"));
    world.done(&format!("/runs/{run}/resume"), json!({})).await;
    assert_eq!(world.ended(&run).await["output"], json!({"id": 7}));
    assert_eq!(world.post("/tokens/nonsense/resolve", json!({})).await.0.as_u16(), 422);
    world.end().await;
}

#[tokio::test]
async fn a_schedule_is_made_paused_triggered_and_deleted() {
    let world = World::new().await;
    let body =
        json!({"workflow": "greet", "input": "tick", "cron": "0 3 * * *", "overlap": "allow"});
    let (status, made) = world.call(Method::PUT, "/schedules/nightly", Some(body)).await;
    assert_eq!((status, &made["cron"]), (StatusCode::OK, &json!("0 3 * * *")));
    assert_eq!(made["upcoming"].as_array().unwrap().len(), 5);
    let paused = world.done("/schedules/nightly/pause", json!({})).await;
    assert_eq!((&paused["paused"], &paused["name"]), (&json!(true), &json!("nightly")));
    let resumed = world.done("/schedules/nightly/resume", json!({})).await;
    assert_eq!(resumed["paused"], json!(false));
    let ticked = world.done("/schedules/nightly/trigger", json!({})).await;
    let run = text(&ticked["run"]);
    assert_eq!(world.ended(&run).await["output"], json!("hello tick"));
    let time = json!({"from": "2026-01-01T00:00:00Z", "to": "2026-01-04T00:00:00Z"});
    let filled = world.done("/schedules/nightly/backfill", time).await;
    assert_eq!(filled, json!({"started": 3, "present": 0}));
    let path = "/schedules/nightly";
    assert_eq!(world.call(Method::DELETE, path, None).await.0, StatusCode::NO_CONTENT);
    assert_eq!(world.call(Method::GET, path, None).await.0, StatusCode::NOT_FOUND);
    world.end().await;
}

#[tokio::test]
async fn an_item_is_put_into_a_queue_seen_and_taken_back() {
    let world = World::new().await;
    let put =
        world.done("/queues/mails/items", json!({"input": {"to": "ada"}, "priority": 3})).await;
    let id = text(&put["id"]);
    let item = world.get(&format!("/queues/mails/items/{id}")).await;
    assert_eq!((&item["state"], &item["priority"]), (&json!("ready"), &json!(3)));
    assert_eq!(item["input"], json!({"to": "ada"}));
    assert_eq!(world.get("/queues/mails").await["ready"], json!(1));
    let other = format!("/queues/letters/items/{id}");
    assert_eq!(world.call(Method::GET, &other, None).await.0, StatusCode::NOT_FOUND);
    let cancelled = world.done(&format!("/queues/mails/items/{id}/cancel"), json!({})).await;
    assert_eq!(cancelled, json!({"changed": true}));
    // One that fails for good is dead, and can be tried again.
    let put = world.done("/queues/mails/items", json!({"input": 1})).await;
    let path = format!("/queues/mails/items/{}", text(&put["id"]));
    let client = world.engine.client();
    let worker =
        client.work(MAILS, 1, async |_, _| Err(everstep::Error::fatal("no such address"))).unwrap();
    let dead = world.until(&path, |it| it["state"] == json!("dead")).await;
    assert_eq!(dead["error"]["message"], json!("no such address"));
    worker.stop().await;
    let replayed = world.done(&format!("{path}/replay"), json!({})).await;
    assert_eq!(replayed, json!({"changed": true}));
    world.end().await;
}

#[tokio::test]
async fn the_cluster_says_who_has_which_shard_and_how_old_its_lease_is() {
    let world = World::new().await;
    let id = world.start("greet", json!("x")).await;
    world.ended(&id).await;
    let cluster = world.get("/cluster").await;
    let runner = &cluster["runners"][0];
    assert_eq!(runner["alive"], json!(true));
    assert!(runner["lease_age_ms"].as_u64().unwrap() < 10_000, "{runner}");
    let greet = runner["workflows"].as_array().unwrap().iter().find(|it| it["name"] == "greet");
    assert_eq!(greet.unwrap()["versions"], json!([1]));
    let pool = &cluster["pools"][0];
    let shards = pool["shards"].as_array().unwrap();
    assert_eq!((shards.len(), &pool["of"]), (256, &json!(256)));
    let owned = shards.iter().filter(|it| **it == json!(0)).count();
    assert_eq!(json!(owned), pool["owned"]);
    let workflows = world.get("/workflows").await;
    assert!(workflows["workflows"].as_array().unwrap().iter().any(|it| it["name"] == "patient"));
    world.end().await;
}

#[tokio::test]
async fn an_event_for_one_is_kept_until_somebody_has_it() {
    let world = World::new().await;
    let body = json!({"body": {"n": 1}, "deliver": "one"});
    let (status, published) = world.post("/events/parcel", body).await;
    assert_eq!((status, &published["kept"]), (StatusCode::ACCEPTED, &json!(true)));
    let event = world.get("/events/parcel").await;
    assert_eq!((&event["published"], &event["kept"]), (&json!(1), &json!(1)));
    world.end().await;
}

#[tokio::test]
async fn it_is_a_part_of_another_app_under_a_path_of_its_own() {
    let world = World::new().await;
    let own = axum::Router::new()
        .route("/", axum::routing::get(async || "my own page"))
        .nest("/ops", world.app.clone());
    let nested = World { app: own, ..world };
    for (path, status) in [
        ("/ops/api/v1/runs", 200),
        ("/ops/api/v1/nowhere", 404),
        ("/ops/healthz", 200),
        ("/ops/readyz", 200),
        ("/", 200),
    ] {
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let response = nested.answer(request).await;
        assert_eq!(response.status().as_u16(), status, "{path}");
        assert_eq!(
            response.headers().contains_key("content-security-policy"),
            path != "/",
            "{path}"
        );
    }
    nested.end().await;
}

#[tokio::test]
async fn unread_messages_children_queues_and_charts_are_shown() {
    let world = World::new().await;
    let patient = world.start("patient", json!(null)).await;
    world
        .done(&format!("/runs/{patient}/messages"), json!({"name": "later", "body": {"n": 1}}))
        .await;
    let unread = world.get(&format!("/runs/{patient}/messages")).await;
    let message = &unread["messages"][0];
    assert_eq!((&message["name"], &message["kind"]), (&json!("later"), &json!("message")));
    assert_eq!(message["body"], json!({"n": 1}));
    let parent = world.start("parent", json!("eve")).await;
    world.ended(&parent).await;
    let children = world.get(&format!("/runs/{parent}/children?limit=1")).await;
    assert_eq!(children["runs"][0]["parent"], json!(parent));
    world.done("/queues/mails/items", json!({"input": 1})).await;
    let queues = world.get("/queues").await;
    assert_eq!(
        (&queues["queues"][0]["name"], &queues["queues"][0]["ready"]),
        (&json!("mails"), &json!(1))
    );
    let stats = world.get("/stats").await;
    let buckets = stats["buckets"].as_array().unwrap();
    let completed: u64 = buckets.iter().filter_map(|it| it["completed"].as_u64()).sum();
    assert!(buckets.len() >= 60 && completed >= 2, "{stats}");
    let many = "/stats?from=2026-01-01T00:00:00Z&to=2026-01-02T00:00:00Z&bucket_ms=1000";
    assert_eq!(world.call(Method::GET, many, None).await.0, StatusCode::UNPROCESSABLE_ENTITY);
    world.end().await;
}

#[tokio::test]
async fn a_run_is_moved_to_another_pool_and_taken_out_of_memory() {
    let world = World::new().await;
    let id = world.start("patient", json!(null)).await;
    world.until(&format!("/runs/{id}"), |it| it["status"] == "sleeping").await;
    let evicted = world.done(&format!("/runs/{id}/evict"), json!({})).await;
    assert!(["done", "soon"].contains(&text(&evicted["outcome"]).as_str()), "{evicted}");
    world.done(&format!("/runs/{id}/move"), json!({"pool": "elsewhere"})).await;
    world.until(&format!("/runs/{id}"), |it| it["pool"] == "elsewhere").await;
    let path = format!("/runs/{id}/move");
    let (status, _) = world.post(&path, json!({"pool": ""})).await;
    assert_eq!(status, StatusCode::UNPROCESSABLE_ENTITY);
    world.end().await;
}

/// Lists show the last 12 digits of an id, and nothing could be found by them.
#[tokio::test]
async fn the_end_of_an_id_finds_its_run_in_paths_and_in_the_search() {
    let world = World::new().await;
    let other = world.start("greet", json!("x")).await;
    let id = world.start("patient", json!(null)).await;
    let (end, beginning) = (&id[24..], &id[..23]);
    for part in [end, beginning, &id.to_uppercase()[24..]] {
        assert_eq!(world.get(&format!("/runs/{part}")).await["id"], json!(id));
        let found = world.get(&format!("/runs?q={part}")).await;
        assert_eq!(found["runs"].as_array().unwrap().len(), 1, "{found}");
        assert_eq!(found["runs"][0]["id"], json!(id), "{part}");
        let counts = world.get(&format!("/runs/counts?q={part}")).await;
        assert_eq!(counts["total"], json!(1), "{part}");
    }
    for path in ["why", "history", "state", "children", "messages"] {
        world.get(&format!("/runs/{end}/{path}")).await;
    }
    // The audit log has the whole id.
    world.done(&format!("/runs/{end}/pause"), json!({})).await;
    let log = world.get("/audit?limit=1").await;
    assert_eq!(log["entries"][0]["target"], json!(id));
    // A part that several runs share names them.
    let shared = &id[..8];
    let (status, problem) = world.call(Method::GET, &format!("/runs/{shared}"), None).await;
    if other.starts_with(shared) {
        assert_eq!(status, StatusCode::CONFLICT, "{problem}");
        let detail = text(&problem["detail"]);
        assert!(detail.contains(&id) && detail.contains(&other), "{detail}");
    }
    let (status, problem) = world.call(Method::GET, "/runs/0123456789ab", None).await;
    assert_eq!(status, StatusCode::NOT_FOUND, "{problem}");
    let (status, problem) = world.call(Method::GET, "/runs/xyz", None).await;
    assert_eq!(status, StatusCode::BAD_REQUEST, "{problem}");
    assert!(text(&problem["detail"]).contains("at least 8 hexadecimal digits"));
    // A key comes before an id.
    let keyed = json!({"workflow": "greet", "input": "x", "key": format!("{end}-1")});
    let keyed = text(&world.done("/runs", keyed).await["id"]);
    let found = world.get(&format!("/runs?q={end}")).await;
    assert_eq!(found["runs"][0]["id"], json!(keyed));
    world.end().await;
}

/// Before the horizon of retention the numbers were those of the runs that were left.
#[tokio::test]
async fn parts_of_a_chart_before_the_horizon_have_no_numbers_and_say_why() {
    use everstep::store::Store as _;
    let store = std::sync::Arc::new(everstep::store::MemoryStore::new());
    let client = everstep::Client::on(store.clone()).unwrap();
    let app = everstep_server::Server::new(client).router();
    let stats = async || {
        let path = "/api/v1/stats?from=2026-01-01T00:00:00Z&to=2026-01-01T03:00:00Z\
                    &bucket_ms=3600000";
        let request = axum::http::Request::get(path).body(axum::body::Body::empty()).unwrap();
        let answer = tower::ServiceExt::oneshot(app.clone(), request).await;
        crate::world::read(answer.unwrap()).await.1
    };
    let all = stats().await;
    assert_eq!(all.get("horizon"), None);
    assert!(all["buckets"].as_array().unwrap().iter().all(|it| it["started"] == 0));
    let horizon = "2026-01-01T01:30:00Z".parse::<everstep::Timestamp>().unwrap();
    store.raise_horizon(horizon).unwrap();
    let some = stats().await;
    assert_eq!(text(&some["horizon"]).parse::<everstep::Timestamp>().unwrap(), horizon);
    for (no, is_known) in [(0, false), (1, false), (2, true)] {
        let bucket = &some["buckets"][no];
        assert_eq!(bucket.get("started").is_some(), is_known, "{bucket}");
        assert_eq!(bucket.get("failed").is_some(), is_known, "{bucket}");
        assert_eq!(bucket.get("missing").is_none(), is_known, "{bucket}");
    }
    assert_eq!(some["buckets"][0]["missing"], json!("retention"));
}
