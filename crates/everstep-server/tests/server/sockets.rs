//! Connections: what they can hold up, and what their end does.

use std::{net::SocketAddr, time::Duration};

use axum::http::{Method, StatusCode};
use everstep_server::Server;
use http_body_util::BodyExt;
use serde_json::{Value as Json, json};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::oneshot,
};
use tower::ServiceExt;

use crate::world::{TOKENS, World, with_tokens};

const GET: &str = "GET /api/v1/session HTTP/1.1\r\nhost: localhost\r\n";

/// A server on a socket.
struct Served {
    address: SocketAddr,
    stop: oneshot::Sender<()>,
    running: tokio::task::JoinHandle<std::io::Result<()>>,
}

impl Served {
    async fn new(server: Server) -> Served {
        let listening = server.listen("127.0.0.1:0").await.unwrap();
        let address = listening.address();
        let (stop, stopped) = oneshot::channel::<()>();
        let running = tokio::spawn(listening.run(async { _ = stopped.await }));
        Served {
            address,
            stop,
            running,
        }
    }

    async fn connect(&self) -> TcpStream {
        TcpStream::connect(self.address).await.unwrap()
    }

    /// The answer to what is sent, with no more to come.
    async fn said(&self, head: &str) -> String {
        let mut socket = self.connect().await;
        let request = format!("{head}connection: close\r\n\r\n");
        socket.write_all(request.as_bytes()).await.unwrap();
        let mut answer = String::new();
        socket.read_to_string(&mut answer).await.unwrap();
        answer
    }

    async fn end(self) {
        self.stop.send(()).unwrap();
        let ended = tokio::time::timeout(Duration::from_secs(9), self.running).await;
        ended.expect("it ends").unwrap().unwrap();
    }
}

#[tokio::test]
async fn whoever_does_not_say_what_they_want_is_cut_off() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).header_limit(Duration::from_millis(50));
    let served = Served::new(server).await;
    // Nothing, half of a head, and nothing after a request.
    for said in ["", GET, &format!("{GET}\r\n")] {
        let mut socket = served.connect().await;
        socket.write_all(said.as_bytes()).await.unwrap();
        let mut rest = Vec::new();
        let read = tokio::time::timeout(Duration::from_secs(60), socket.read_to_end(&mut rest));
        read.await.expect("it is cut off").unwrap();
    }
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn there_are_so_many_connections_and_others_wait() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).connection_limit(1);
    let served = Served::new(server).await;
    let mut first = served.connect().await;
    let head = "GET /api/v1/runs/updates HTTP/1.1\r\nhost: localhost\r\n\r\n";
    first.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    first.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    let mut second = served.connect().await;
    let head = format!("{GET}connection: close\r\n\r\n");
    second.write_all(head.as_bytes()).await.unwrap();
    let early = tokio::time::timeout(Duration::from_millis(100), second.read(&mut start)).await;
    assert!(early.is_err(), "it was answered: {early:?}");
    drop(first);
    let mut answer = String::new();
    second.read_to_string(&mut answer).await.unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn without_a_token_what_a_proxy_passes_on_is_refused() {
    let world = World::new().await;
    let open = Served::new(Server::new(world.engine.client())).await;
    let closed = Served::new(with_tokens(Server::new(world.engine.client()))).await;
    let head = "GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n";
    assert!(open.said(head).await.starts_with("HTTP/1.1 200"));
    for header in [
        "forwarded: for=10.1.2.3",
        "x-forwarded-for: 10.1.2.3",
        "X-Forwarded-Proto: https",
    ] {
        let head = format!("{head}{header}\r\n");
        let answer = open.said(&head).await;
        assert!(answer.starts_with("HTTP/1.1 403"), "{header}: {answer}");
        assert!(answer.contains("add a token"), "{header}: {answer}");
        let head = format!("{head}authorization: Bearer {}\r\n", TOKENS[0].1);
        let answer = closed.said(&head).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{header}: {answer}");
    }
    open.end().await;
    closed.end().await;
    world.end().await;
}

/// The future of a request is dropped when its client hangs up. A change was then dropped with it,
/// anywhere between its entry in the audit log and the outcome.
#[tokio::test]
async fn a_change_is_made_and_noted_even_if_nobody_waits_for_the_answer() {
    let world = World::new().await;
    let run = world.start("oracle", json!(null)).await;
    world.done(&format!("/runs/{run}/pause"), json!({})).await;
    let ask = json!({"name": "question", "body": "why"});
    let request = world.request(Method::POST, &format!("/runs/{run}/requests"), Some(&ask));
    let asking = tokio::spawn(world.app.clone().oneshot(request));
    let is_asked = |outcome: &'static str| {
        move |log: &Json| {
            let newest = log["entries"].as_array().unwrap().iter();
            let mut asked = newest.filter(|it| it["action"] == "ask_run");
            asked.any(|it| it["outcome"] == outcome)
        }
    };
    world.until("/audit", is_asked("unknown")).await;
    asking.abort();
    assert!(asking.await.unwrap_err().is_cancelled());
    world.done(&format!("/runs/{run}/resume"), json!({})).await;
    world.until("/audit", is_asked("done")).await;
    world.end().await;
}

#[tokio::test]
async fn the_app_that_it_is_a_part_of_ends_what_is_told_while_it_happens() {
    let (stop, stopped) = oneshot::channel::<()>();
    let world = World::with(|server| {
        server.closing(async {
            let _ = stopped.await;
        })
    })
    .await;
    let run = world.start("patient", json!(null)).await;
    let mut bodies = Vec::new();
    for path in [
        "/runs/updates".to_owned(),
        format!("/runs/{run}/updates"),
        format!("/runs/{run}/streams/x/follow"),
    ] {
        let request = world.request(Method::GET, &path, None);
        let response = world.answer(request).await;
        assert_eq!(response.status(), StatusCode::OK, "{path}");
        bodies.push(response.into_body());
    }
    stop.send(()).unwrap();
    for body in bodies {
        let ended = tokio::time::timeout(Duration::from_secs(60), body.collect()).await;
        ended.expect("it ends with the app").unwrap();
    }
    // All else goes on.
    world.get("/runs").await;
    world.end().await;
}
