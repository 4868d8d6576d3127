//! One test for each promise about security.

use std::time::Duration;

use axum::{
    body::Body,
    http::{Method, Request, StatusCode, header},
};
use everstep_server::{Role, Server, Token};
use http_body_util::BodyExt;
use serde_json::json;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
};

use crate::{
    document::operations,
    world::{TOKENS, World, read, text, with_tokens},
};

pub(crate) const NOBODY: &str = "01a1e31b-1d59-7590-8241-3c1d14f48fdd";

/// A path of an operation, with something in the place of each name.
pub(crate) fn path_of(template: &str) -> String {
    let template = template.strip_prefix("/api/v1").unwrap();
    let parts = template.split('/').map(|part| match part {
        "{run}" => NOBODY,
        "{item}" | "{no}" => "77",
        part if part.starts_with('{') => "nothing",
        part => part,
    });
    parts.collect::<Vec<_>>().join("/")
}

async fn status_of(world: &World, verb: &str, template: &str, token: Option<&str>) -> StatusCode {
    let method: Method = verb.to_uppercase().parse().unwrap();
    let mut request = world.request(method, &path_of(template), None);
    if let Some(token) = token {
        let value = format!("Bearer {token}").parse().unwrap();
        request.headers_mut().insert(header::AUTHORIZATION, value);
    }
    world.answer(request).await.status()
}

#[tokio::test]
async fn without_a_token_everybody_on_this_machine_is_an_admin() {
    let world = World::new().await;
    let session = world.get("/session").await;
    assert_eq!(session["role"], json!("admin"));
    assert_eq!(session["login_required"], json!(false));
    assert!(session["can"].as_array().unwrap().contains(&json!("delete")));
    let listening = Server::new(world.engine.client()).listen("127.0.0.1:0").await.unwrap();
    assert!(listening.address().ip().is_loopback());
    world.end().await;
}

#[tokio::test]
async fn it_refuses_to_listen_to_other_machines_without_a_token() {
    let world = World::new().await;
    let refused = Server::new(world.engine.client()).listen("0.0.0.0:0").await;
    let error = refused.unwrap_err().to_string();
    assert!(error.contains("add a token"), "{error}");
    let token = Token::new("a", Role::Read, "x");
    let server = Server::new(world.engine.client()).token(token);
    assert!(server.listen("0.0.0.0:0").await.is_ok());
    world.end().await;
}

#[tokio::test]
async fn every_operation_needs_its_role_and_no_less_is_enough() {
    let world = World::with(with_tokens).await;
    let document = world.get("/openapi.json").await;
    let mut changes = 0;
    for (path, verb, operation) in operations(&document) {
        let at = format!("{verb} {path}");
        let Some(role) = operation["x-role"].as_str() else {
            let open = ["/api/v1/session", "/api/v1/openapi.json"];
            assert!(open.contains(&path.as_str()), "{at} needs no role");
            continue;
        };
        let role: Role = role.parse().unwrap();
        changes += u32::from(verb != "get");
        assert!(verb == "get" || role > Role::Read, "{at} changes something for a reader");
        for (token, answer) in [(None, 401), (Some("wrong"), 401)] {
            let status = status_of(&world, &verb, &path, token).await;
            assert_eq!(status.as_u16(), answer, "{at} with {token:?}");
        }
        for (has, token) in TOKENS {
            let status = status_of(&world, &verb, &path, Some(token)).await;
            let is_refused = status == StatusCode::FORBIDDEN;
            assert_eq!(is_refused, has < role, "{at} as {}: {status}", has.as_str());
            assert_ne!(status, StatusCode::UNAUTHORIZED, "{at} as {}", has.as_str());
        }
    }
    assert!(changes > 20, "{changes}");
    // What the roles are for.
    let role_of = |verb: &str, path: &str| {
        let path = format!("/api/v1{path}");
        document["paths"][path][verb]["x-role"].clone()
    };
    assert_eq!(role_of("delete", "/runs/{run}"), json!("admin"));
    assert_eq!(role_of("post", "/runs/bulk"), json!("admin"));
    assert_eq!(role_of("post", "/runs/{run}/cancel"), json!("operate"));
    assert_eq!(role_of("get", "/runs"), json!("read"));
    world.end().await;
}

#[tokio::test]
async fn a_token_is_known_by_its_hash_alone() {
    let token = Token::new("ada", Role::Admin, "the text of the token");
    assert!(!format!("{token:?}").contains("the text"));
    let hash = [
        0xbb, 0xda, 0xc2, 0x5f, 0x10, 0x2b, 0x8a, 0xd8, 0x2a, 0x48, 0x9c, 0x58, 0x28, 0xd3, 0x3b,
        0xea, 0xd9, 0x40, 0x3f, 0x1c, 0x67, 0xd5, 0x4f, 0x32, 0xd0, 0x63, 0x77, 0xdc, 0x0b, 0x04,
        0xf2, 0x48,
    ];
    assert_eq!(token, Token::hashed("ada", Role::Admin, hash));
    let mut world =
        World::with(|server| server.token(Token::hashed("ada", Role::Admin, hash))).await;
    world.header("authorization", "Bearer the text of the token");
    assert_eq!(world.get("/session").await["name"], json!("ada"));
    world.end().await;
}

/// Logs in; the cookie and the text that changes are sent with.
pub(crate) async fn log_in(world: &World, token: &str) -> (String, String) {
    let request = world.request(Method::POST, "/session", Some(&json!({"token": token})));
    let response = world.answer(request).await;
    let cookie = response.headers()[header::SET_COOKIE].to_str().unwrap().to_owned();
    let (status, session) = read(response).await;
    assert_eq!(status, StatusCode::OK, "{session}");
    (cookie, text(&session["csrf"]))
}

#[tokio::test]
async fn the_dashboard_logs_in_with_a_cookie_that_no_script_and_no_other_site_can_use() {
    let mut world = World::with(with_tokens).await;
    assert_eq!(world.get("/session").await.get("role"), None);
    let (cookie, _) = log_in(&world, TOKENS[1].1).await;
    for part in ["HttpOnly", "SameSite=Strict", "Path=/", "Max-Age="] {
        assert!(cookie.contains(part), "{cookie}");
    }
    assert!(!cookie.contains(TOKENS[1].1));
    world.header("cookie", cookie.split(';').next().unwrap());
    let session = world.get("/session").await;
    assert_eq!((&session["role"], &session["name"]), (&json!("operate"), &json!("operate")));
    assert!(session["csrf"].is_string());
    world.get("/runs").await;
    let (status, _) = world.call(Method::DELETE, "/session", None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(world.call(Method::GET, "/runs", None).await.0, StatusCode::UNAUTHORIZED);
    world.end().await;
}

#[tokio::test]
async fn a_change_by_cookie_needs_the_secret_of_the_session_and_comes_from_no_other_site() {
    let mut world = World::with(with_tokens).await;
    let (cookie, csrf) = log_in(&world, TOKENS[2].1).await;
    world.header("cookie", cookie.split(';').next().unwrap());
    let start = json!({"workflow": "greet", "input": "x"});
    for wrong in [None, Some("guessed"), Some("")] {
        if let Some(wrong) = wrong {
            world.header("x-everstep-csrf", wrong);
        }
        let (status, problem) = world.post("/runs", start.clone()).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert_eq!(problem["type"], json!("urn:everstep:problem:csrf"));
    }
    world.header("x-everstep-csrf", &csrf);
    assert_eq!(world.post("/runs", start.clone()).await.0, StatusCode::CREATED);
    for (name, value) in [("origin", "http://evil.example"), ("sec-fetch-site", "cross-site")] {
        let mut request = world.request(Method::POST, "/runs", Some(&start));
        request.headers_mut().insert(name, value.parse().unwrap());
        assert_eq!(world.answer(request).await.status(), StatusCode::FORBIDDEN, "{name}");
    }
    // Whoever has the token itself is no page.
    let mut world = World { headers: Default::default(), ..world };
    world.header("authorization", &format!("Bearer {}", TOKENS[1].1));
    assert_eq!(world.post("/runs", start).await.0, StatusCode::CREATED);
    world.end().await;
}

#[tokio::test]
async fn without_a_token_a_page_of_another_site_still_changes_nothing() {
    let world = World::new().await;
    let mut request = world.request(Method::POST, "/runs", Some(&json!({"workflow": "greet"})));
    request.headers_mut().insert("origin", "http://evil.example".parse().unwrap());
    assert_eq!(world.answer(request).await.status(), StatusCode::FORBIDDEN);
    // A form of another site cannot say that it sends JSON.
    let mut request = world.request(Method::POST, "/runs", Some(&json!({"workflow": "greet"})));
    request.headers_mut().insert(header::CONTENT_TYPE, "text/plain".parse().unwrap());
    assert_eq!(world.answer(request).await.status(), StatusCode::UNSUPPORTED_MEDIA_TYPE);
    world.end().await;
}

#[tokio::test]
async fn every_answer_has_a_strict_policy_for_what_a_page_may_do() {
    let world = World::with(with_tokens).await;
    for path in [
        "/",
        "/runs",
        "/runs/x",
        "/schedules",
        "/queues",
        "/events",
        "/dead-letters",
        "/cluster",
        "/charts",
        "/audit",
        "/login",
        "/assets/app.js",
        "/assets/none",
        "/nowhere",
        "/healthz",
        "/api/v1/runs",
        "/api/v1/session",
    ] {
        let request = Request::get(path).body(Body::empty()).unwrap();
        let response = world.answer(request).await;
        let headers = response.headers();
        let policy = headers["content-security-policy"].to_str().unwrap();
        assert!(policy.contains("default-src 'none'"), "{path}: {policy}");
        assert!(policy.contains("script-src 'self';"), "{path}: {policy}");
        assert!(policy.contains("frame-ancestors 'none'"), "{path}: {policy}");
        assert!(!policy.contains("unsafe"), "{path}: {policy}");
        assert_eq!(headers["x-content-type-options"], "nosniff", "{path}");
        assert_eq!(headers["referrer-policy"], "no-referrer", "{path}");
    }
    world.end().await;
}

/// Sends a request as it is written, and gives what comes back.
async fn spoken(address: std::net::SocketAddr, request: &str) -> String {
    let mut socket = TcpStream::connect(address).await.unwrap();
    socket.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    socket.read_to_string(&mut answer).await.unwrap();
    answer
}

#[tokio::test]
async fn a_name_that_is_not_the_servers_is_not_answered() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).host("ops.example");
    let listening = server.listen("127.0.0.1:0").await.unwrap();
    let address = listening.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(listening.run(async { _ = stopped.await }));
    for (host, status) in [
        (format!("127.0.0.1:{}", address.port()), "200"),
        ("localhost".to_owned(), "200"),
        ("ops.example".to_owned(), "200"),
        ("evil.example".to_owned(), "421"),
        ("localhost.evil.example".to_owned(), "421"),
        ("10.0.0.1".to_owned(), "421"),
    ] {
        let request =
            format!("GET /api/v1/runs HTTP/1.1\r\nhost: {host}\r\nconnection: close\r\n\r\n");
        let answer = spoken(address, &request).await;
        assert!(answer.starts_with(&format!("HTTP/1.1 {status}")), "{host}: {answer}");
        if status == "421" {
            assert!(answer.contains("urn:everstep:problem:bad_host"), "{answer}");
        }
    }
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    world.end().await;
}

#[tokio::test]
async fn an_address_can_try_to_log_in_ten_times_a_minute() {
    let world = World::new().await;
    let server = with_tokens(Server::new(world.engine.client()));
    let listening = server.listen("127.0.0.1:0").await.unwrap();
    let address = listening.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(listening.run(async { _ = stopped.await }));
    let body = r#"{"token":"guessed"}"#;
    let request = format!(
        "POST /api/v1/session HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-type: application/json\r\ncontent-length: {}\r\n\r\n{body}",
        body.len()
    );
    for _ in 0..10 {
        let answer = spoken(address, &request).await;
        assert!(answer.starts_with("HTTP/1.1 401"), "{answer}");
    }
    let answer = spoken(address, &request).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    assert!(answer.contains("too_many_requests"), "{answer}");
    stop.send(()).unwrap();
    running.await.unwrap().unwrap();
    world.end().await;
}

pub(crate) const SECRET: &str = "hunter2";

/// The text of everything that an answer says until it ends or has said what is looked for.
async fn streamed(world: &World, path: &str, until: &str) -> String {
    let response = world.answer(world.request(Method::GET, path, None)).await;
    assert_eq!(response.status(), StatusCode::OK, "{path}");
    let mut body = response.into_body();
    let mut said = String::new();
    let read = async {
        while let Some(frame) = body.frame().await {
            if let Ok(data) = frame.unwrap().into_data() {
                said.push_str(&String::from_utf8_lossy(&data));
            }
            if said.contains(until) {
                break;
            }
        }
    };
    tokio::time::timeout(Duration::from_secs(60), read).await.unwrap();
    assert!(said.contains(until), "{path}: {said}");
    said
}

#[tokio::test]
async fn what_is_redacted_is_seen_nowhere() {
    let world = World::with(|server| server.redact(["**.password"]).unwrap()).await;
    let order = json!({"id": 7, "password": SECRET, "deep": [{"Password": SECRET}]});
    let start = json!({"workflow": "secretive", "input": order, "key": "k"});
    let id = text(&world.done("/runs", start).await["id"]);
    let run = format!("/runs/{id}");
    let state = world.until(&format!("{run}/state"), |it| it["state"]["token"].is_string()).await;
    world.until(&format!("{run}/streams/said"), |it| it["items"][0].is_object()).await;
    let mut seen = vec![state.to_string()];
    for path in [
        run.clone(),
        format!("{run}/history"),
        format!("{run}/streams/said"),
        format!("{run}/why"),
        "/runs".to_owned(),
        "/runs/by-key/secretive/k".to_owned(),
    ] {
        seen.push(world.get(&path).await.to_string());
    }
    seen.push(streamed(&world, &format!("{run}/updates"), "event: history").await);
    seen.push(streamed(&world, &format!("{run}/streams/said/follow"), "event: item").await);
    // What a run shows under a key that a pattern leads to.
    assert_eq!(state["state"]["password"], json!("[redacted]"));
    // What waits to be read, and the children of a run: one fails with a text.
    let note = json!({"name": "note", "body": {"password": SECRET}});
    world.done(&format!("{run}/messages"), note).await;
    let unread = world.get(&format!("{run}/messages")).await;
    assert_eq!(unread["messages"][0]["body"]["password"], json!("[redacted]"));
    seen.push(unread.to_string());
    let careless = format!("the password is {SECRET}");
    let parent = world.start("careless", json!(careless)).await;
    world.ended(&parent).await;
    let children = world.get(&format!("/runs/{parent}/children")).await;
    assert_eq!(children["runs"][0]["failure"]["message"], json!("[redacted]"));
    seen.push(children.to_string());
    // What was sent and could not be delivered, what was put into a queue, what a schedule starts,
    // what was answered, and what a run failed with.
    let oracle = world.start("oracle", json!(null)).await;
    let ask = json!({"name": "question", "body": {"password": SECRET}});
    seen.push(world.done(&format!("/runs/{oracle}/requests"), ask.clone()).await.to_string());
    world.ended(&oracle).await;
    let mut late = ask;
    late["if_finished"] = json!("dead_letter");
    world.done(&format!("/runs/{oracle}/messages"), late).await;
    seen.push(world.get("/dead-letters").await.to_string());
    let item = world.done("/queues/mails/items", json!({"input": order})).await;
    seen.push(world.get("/queues/mails/items").await.to_string());
    seen.push(world.get(&format!("/queues/mails/items/{}", text(&item["id"]))).await.to_string());
    let put = json!({"workflow": "secretive", "input": order, "cron": "0 3 * * *"});
    let (_, schedule) = world.call(Method::PUT, "/schedules/s", Some(put)).await;
    seen.push(schedule.to_string());
    seen.push(world.get("/schedules").await.to_string());
    let broken = world.start("broken", json!(format!("the password is {SECRET}"))).await;
    world.ended(&broken).await;
    for path in ["", "/result", "/history"] {
        let said = world.get(&format!("/runs/{broken}{path}")).await;
        assert!(!said["failure"]["message"].to_string().contains(SECRET), "{said}");
        if !path.is_empty() {
            seen.push(said.to_string());
        }
    }
    let token = text(&state["state"]["token"]);
    world.done(&format!("/tokens/{token}/resolve"), json!({"value": 1})).await;
    seen.push(world.ended(&id).await.to_string());
    for said in &seen {
        assert!(!said.contains(SECRET), "{said}");
    }
    let all = seen.concat();
    assert!(all.matches("[redacted]").count() > 10, "{all}");
    world.end().await;
}

#[tokio::test]
async fn what_is_too_large_too_slow_or_wrong_is_refused_as_a_problem() {
    let world =
        World::with(|server| server.body_limit(1_000).request_limit(Duration::from_secs(2))).await;
    let ended = world.start("greet", json!("x")).await;
    world.until(&format!("/runs/{ended}"), |it| it["status"] == "completed").await;
    let send = async |method: Method, path: &str, body: Body| {
        let mut request = world.request(method, path, None);
        let kind = "application/json".parse().unwrap();
        request.headers_mut().insert(header::CONTENT_TYPE, kind);
        *request.body_mut() = body;
        let response = world.answer(request).await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/problem+json", "{path}");
        let (status, problem) = read(response).await;
        assert_eq!(problem["status"], json!(status.as_u16()), "{problem}");
        for field in ["title", "detail"] {
            assert!(!text(&problem[field]).is_empty(), "{problem}");
        }
        (status.as_u16(), text(&problem["type"]).replace("urn:everstep:problem:", ""))
    };
    let large = json!({"workflow": "greet", "input": "x".repeat(2_000)}).to_string();
    let slow =
        Body::from_stream(futures_util::stream::pending::<Result<Vec<u8>, std::io::Error>>());
    for (method, path, body, status, word) in [
        (Method::POST, "/runs".to_owned(), Body::from(large), 413, "payload_too_large"),
        (Method::POST, "/runs".to_owned(), slow, 408, "timeout"),
        (
            Method::POST,
            "/runs".to_owned(),
            Body::from(r#"{"workflow":"greet","x":1}"#),
            400,
            "bad_request",
        ),
        (Method::POST, "/runs".to_owned(), Body::from("{"), 400, "bad_request"),
        (Method::POST, "/session".to_owned(), Body::from("{"), 400, "bad_request"),
        (Method::GET, format!("/runs/{NOBODY}"), Body::empty(), 404, "not_found"),
        (Method::POST, format!("/runs/{NOBODY}/cancel"), Body::empty(), 404, "not_found"),
        (Method::GET, "/nowhere".to_owned(), Body::empty(), 404, "not_found"),
        (Method::POST, format!("/runs/{ended}/pause"), Body::empty(), 409, "conflict"),
        (Method::DELETE, "/cluster".to_owned(), Body::empty(), 405, "method_not_allowed"),
    ] {
        let answer = send(method.clone(), &path, body).await;
        assert_eq!(answer, (status, word.to_owned()), "{method} {path}");
    }
    let (status, problem) = world.post(&format!("/runs/{ended}/pause"), json!({})).await;
    assert_eq!((status.as_u16(), &problem["run"]), (409, &json!(ended)));
    assert!(problem["hint"].is_string(), "{problem}");
    world.end().await;
}

#[tokio::test]
async fn the_end_of_the_server_ends_what_is_told_while_it_happens() {
    let world = World::new().await;
    let run = world.start("patient", json!(null)).await;
    let listening = Server::new(world.engine.client()).listen("127.0.0.1:0").await.unwrap();
    let address = listening.address();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let running = tokio::spawn(listening.run(async { _ = stopped.await }));
    let mut sockets = Vec::new();
    for path in [
        format!("runs/{run}/updates"),
        "runs/updates".to_owned(),
        format!("runs/{run}/streams/x/follow"),
    ] {
        let mut socket = TcpStream::connect(address).await.unwrap();
        let request = format!("GET /api/v1/{path} HTTP/1.1\r\nhost: localhost\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut first = [0; 12];
        socket.read_exact(&mut first).await.unwrap();
        assert_eq!(&first, b"HTTP/1.1 200", "{path}");
        sockets.push(socket);
    }
    stop.send(()).unwrap();
    // Well before requests that do not end would be cut off.
    let ended = tokio::time::timeout(Duration::from_secs(9), running).await;
    ended.expect("the streams end with the server").unwrap().unwrap();
    for mut socket in sockets {
        let mut rest = Vec::new();
        socket.read_to_end(&mut rest).await.unwrap();
    }
    world.end().await;
}

#[tokio::test]
async fn no_payload_is_ever_a_page() {
    let world = World::new().await;
    let id = world.start("greet", json!("<script>alert(1)</script>")).await;
    world.ended(&id).await;
    for path in [format!("/runs/{id}"), format!("/runs/{id}/history"), "/runs".to_owned()] {
        let response = world.answer(world.request(Method::GET, &path, None)).await;
        assert_eq!(response.headers()[header::CONTENT_TYPE], "application/json", "{path}");
        assert_eq!(response.headers()["x-content-type-options"], "nosniff", "{path}");
    }
    let page = Request::get(format!("/runs/{id}")).body(Body::empty()).unwrap();
    let page = world.answer(page).await.into_body().collect().await.unwrap().to_bytes();
    assert!(!String::from_utf8_lossy(&page).contains("alert(1)"));
    world.end().await;
}

#[tokio::test]
async fn a_token_of_the_store_is_made_shown_once_used_and_revoked() {
    let mut world = World::new().await;
    let body = json!({"name": "ci", "role": "operate"});
    let (status, made) = world.post("/tokens", body.clone()).await;
    assert_eq!(status, StatusCode::CREATED, "{made}");
    let token = text(&made["token"]);
    // From now on everybody needs one.
    assert_eq!(world.call(Method::GET, "/runs", None).await.0, StatusCode::UNAUTHORIZED);
    let (cookie, _) = log_in(&world, &token).await;
    world.header("authorization", &format!("Bearer {token}"));
    assert_eq!(world.get("/session").await["name"], json!("ci"));
    world.start("greet", json!("x")).await;
    assert_eq!(world.call(Method::GET, "/tokens", None).await.0, StatusCode::FORBIDDEN);
    let client = world.engine.client();
    let (_, admin) = client.tokens().create("boss", Role::Admin).await.unwrap();
    world.header("authorization", &format!("Bearer {}", admin.as_str()));
    let tokens = world.get("/tokens").await;
    let names: Vec<_> =
        tokens["tokens"].as_array().unwrap().iter().map(|it| text(&it["name"])).collect();
    assert_eq!(names, ["boss", "ci"]);
    assert!(!tokens.to_string().contains(&token));
    assert_eq!(world.post("/tokens", body).await.0, StatusCode::CONFLICT);
    let (status, _) = world.call(Method::DELETE, "/tokens/ci", None).await;
    assert_eq!(status, StatusCode::NO_CONTENT);
    assert_eq!(world.call(Method::DELETE, "/tokens/ci", None).await.0, StatusCode::NOT_FOUND);
    // Neither the token nor the session that it has opened is worth anything now.
    world.header("authorization", &format!("Bearer {token}"));
    assert_eq!(world.call(Method::GET, "/runs", None).await.0, StatusCode::UNAUTHORIZED);
    world.headers.clear();
    world.header("cookie", cookie.split(';').next().unwrap());
    assert_eq!(world.call(Method::GET, "/runs", None).await.0, StatusCode::UNAUTHORIZED);
    world.end().await;
}
