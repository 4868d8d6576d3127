//! The addresses of the dashboard's pages.

use axum::{
    body::Body,
    http::{Method, Request, StatusCode, header},
};

use crate::world::World;

/// What a browser says that it takes.
const BROWSER: &str = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8";

/// The status and the kind of what is at an address.
async fn asked(world: &World, method: Method, path: &str, accept: &str) -> (StatusCode, String) {
    let request = Request::builder().method(method).uri(path).header(header::ACCEPT, accept);
    let response = world.answer(request.body(Body::empty()).unwrap()).await;
    let kind = response.headers()[header::CONTENT_TYPE].to_str().unwrap();
    (response.status(), kind.to_owned())
}

#[tokio::test]
async fn browser_at_an_address_without_a_page_is_given_the_dashboard() {
    let world = World::new().await;
    let page = (StatusCode::NOT_FOUND, "text/html; charset=utf-8".to_owned());
    assert_eq!(asked(&world, Method::GET, "/nowhere", BROWSER).await, page);
    let problem = (StatusCode::NOT_FOUND, "application/problem+json".to_owned());
    for (method, path, accept) in [
        (Method::GET, "/nowhere", "application/json"),
        (Method::GET, "/api/v1/nowhere", BROWSER),
        (Method::GET, "/assets/nothing.js", BROWSER),
        (Method::POST, "/nowhere", BROWSER),
    ] {
        let found = asked(&world, method, path, accept).await;
        assert_eq!(found, problem, "{path}");
    }
    world.end().await;
}
