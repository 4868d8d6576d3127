//! Those who are nobody yet: what they can use up, and what they are told.

use std::net::{IpAddr, SocketAddr};

use axum::{
    extract::ConnectInfo,
    http::{Method, StatusCode},
};
use serde_json::{Value as Json, json};

use crate::world::{TOKENS, World, read, text, with_tokens};

/// Tries to log in from this address.
async fn tried(world: &World, from: &str, token: &str) -> (StatusCode, Json) {
    let mut request = world.request(Method::POST, "/session", Some(&json!({"token": token})));
    let address = SocketAddr::new(from.parse::<IpAddr>().unwrap(), 4_711);
    request.extensions_mut().insert(ConnectInfo(address));
    read(world.answer(request).await).await
}

/// The audit log, the newest first.
async fn log(world: &mut World) -> Vec<Json> {
    world.header("authorization", &format!("Bearer {}", TOKENS[2].1));
    let log = world.get("/audit?limit=500").await;
    world.headers.clear();
    log["entries"].as_array().unwrap().clone()
}

/// Refused tries used to count for all: an address that went on for long enough locked out everybody.
#[tokio::test]
async fn an_address_that_tries_without_end_locks_out_nobody_else_and_fills_no_log() {
    let mut world = World::with(with_tokens).await;
    let mut refused = 0;
    for _ in 0..300 {
        let (status, _) = tried(&world, "10.0.0.1", "guessed").await;
        refused += u32::from(status == StatusCode::TOO_MANY_REQUESTS);
    }
    assert_eq!(refused, 290);
    assert_eq!(tried(&world, "10.0.0.2", TOKENS[0].1).await.0, StatusCode::OK);
    let log = log(&mut world).await;
    let words: Vec<_> = log.iter().map(|it| text(&it["outcome"])).collect();
    let mut expected = vec!["unauthorized"; 10];
    expected.insert(0, "done");
    assert_eq!(words, expected);
    world.end().await;
}

/// Failures were counted before the token was looked at: ten wrong log-ins of one client locked out all
/// who share its address, which behind a proxy is everybody.
#[tokio::test]
async fn a_right_token_is_accepted_after_any_number_of_wrong_ones() {
    let world = World::with(with_tokens).await;
    for client in 0..40 {
        for _ in 0..20 {
            tried(&world, &format!("10.0.0.{client}"), "guessed").await;
        }
    }
    let (status, problem) = tried(&world, "10.0.0.1", "guessed").await;
    assert_eq!(status, StatusCode::TOO_MANY_REQUESTS);
    assert!(text(&problem["detail"]).contains("more than 10 log-ins"));
    for address in ["10.0.0.1", "10.0.0.99"] {
        let (status, _) = tried(&world, address, TOKENS[0].1).await;
        assert_eq!(status, StatusCode::OK, "{address}");
    }
    world.end().await;
}

/// Tries to log in with a wrong token, through a proxy that appends the address of its client.
async fn tried_through(world: &mut World, peer: &str, header: &'static str, value: &str) -> u16 {
    world.header(header, value);
    let (status, _) = tried(world, peer, "guessed").await;
    world.headers.clear();
    status.as_u16()
}

#[tokio::test]
async fn behind_a_trusted_proxy_each_client_has_its_own_budget_of_failures() {
    for (header, ada, bob) in [
        ("x-forwarded-for", "192.0.2.1", "192.0.2.2"),
        ("forwarded", "for=192.0.2.1", "for=192.0.2.2;proto=https"),
    ] {
        let mut world =
            World::with(|it| with_tokens(it).trusted_proxies(["10.0.0.0/8"]).unwrap()).await;
        for _ in 0..10 {
            let status = tried_through(&mut world, "10.0.0.1", header, ada).await;
            assert_eq!(status, 401);
        }
        let status = tried_through(&mut world, "10.0.0.1", header, ada).await;
        assert_eq!(status, 429, "{header}");
        let status = tried_through(&mut world, "10.0.0.1", header, bob).await;
        assert_eq!(status, 401, "{header}");
        let log = log(&mut world).await;
        let newest = log[0].to_string();
        assert!(newest.contains("192.0.2.2"), "{newest}");
        world.end().await;
    }
}

#[tokio::test]
async fn a_peer_that_is_no_trusted_proxy_cannot_have_another_budget_by_forging_a_header() {
    let mut world =
        World::with(|it| with_tokens(it).trusted_proxies(["10.0.0.0/8"]).unwrap()).await;
    let mut statuses = Vec::new();
    for no in 0..11 {
        let forged = format!("198.51.100.{no}");
        let status = tried_through(&mut world, "192.0.2.1", "x-forwarded-for", &forged).await;
        statuses.push(status);
    }
    assert_eq!(statuses[..10], [401; 10]);
    assert_eq!(statuses[10], 429);
    // A client of a proxy cannot either: the proxy appends its real address on the right.
    let mut statuses = Vec::new();
    for no in 0..11 {
        let forged = format!("198.51.100.{no}, 192.0.2.7");
        let status = tried_through(&mut world, "10.0.0.1", "x-forwarded-for", &forged).await;
        statuses.push(status);
    }
    assert_eq!(statuses[10], 429);
    world.end().await;
}

#[tokio::test]
async fn whoever_has_a_token_may_log_in_as_often_as_they_like() {
    let world = World::with(with_tokens).await;
    for _ in 0..30 {
        let (status, _) = tried(&world, "10.0.0.1", TOKENS[0].1).await;
        assert_eq!(status, StatusCode::OK);
    }
    world.end().await;
}

#[tokio::test]
async fn what_a_page_of_another_site_tries_is_not_in_the_audit_log() {
    let world = World::new().await;
    for _ in 0..3 {
        let mut request = world.request(Method::POST, "/runs", Some(&json!({"workflow": "greet"})));
        let evil = "http://evil.example".parse().unwrap();
        request.headers_mut().insert("origin", evil);
        let (status, problem) = read(world.answer(request).await).await;
        assert_eq!(status, StatusCode::FORBIDDEN);
        assert_eq!(problem["type"], json!("urn:everstep:problem:csrf"));
    }
    assert_eq!(world.get("/audit").await["entries"], json!([]));
    world.end().await;
}

#[tokio::test]
async fn whoever_is_not_logged_in_is_not_told_where_the_store_is() {
    let mut world = World::with(with_tokens).await;
    let nobody = world.get("/session").await;
    assert_eq!((nobody.get("role"), &nobody["store"]), (None, &json!("")));
    world.header("authorization", &format!("Bearer {}", TOKENS[0].1));
    assert_ne!(world.get("/session").await["store"], json!(""));
    world.end().await;
}

#[tokio::test]
async fn little_is_read_of_what_nobody_says() {
    let world = World::with(with_tokens).await;
    let (status, problem) = tried(&world, "10.0.0.1", &"x".repeat(5_000)).await;
    assert_eq!(status, StatusCode::PAYLOAD_TOO_LARGE, "{problem}");
    // Whoever is known may say more.
    let mut world = world;
    world.header("authorization", &format!("Bearer {}", TOKENS[2].1));
    world.start("greet", json!("x".repeat(5_000))).await;
    world.end().await;
}

#[tokio::test]
async fn a_page_behind_a_proxy_is_the_servers_if_it_has_its_name() {
    let mut world = World::with(|server| with_tokens(server).host("ops.example")).await;
    world.header("authorization", &format!("Bearer {}", TOKENS[1].1));
    world.header("host", "10.0.0.7:7878");
    for (origin, site, status) in [
        ("https://ops.example", None, 201),
        ("https://ops.example", Some("cross-site"), 403),
        ("https://other.example", None, 403),
        ("https://other.example", Some("same-origin"), 201),
        ("http://10.0.0.7:7878", None, 201),
    ] {
        let start = json!({"workflow": "greet", "input": "x"});
        let mut request = world.request(Method::POST, "/runs", Some(&start));
        let headers = request.headers_mut();
        headers.insert("origin", origin.parse().unwrap());
        if let Some(site) = site {
            headers.insert("sec-fetch-site", site.parse().unwrap());
        }
        let answer = world.answer(request).await.status().as_u16();
        assert_eq!(answer, status, "{origin} {site:?}");
    }
    world.end().await;
}
