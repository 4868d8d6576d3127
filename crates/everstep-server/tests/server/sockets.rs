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
        Served { address, stop, running }
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

/// A stream of events that is open: its connection.
async fn opened(served: &Served, head: &str) -> TcpStream {
    let mut socket = served.connect().await;
    let head = format!("GET /api/v1/runs/updates HTTP/1.1\r\nhost: localhost\r\n{head}\r\n");
    socket.write_all(head.as_bytes()).await.unwrap();
    let mut start = [0; 12];
    socket.read_exact(&mut start).await.unwrap();
    assert_eq!(&start, b"HTTP/1.1 200");
    socket
}

/// Asks until it is answered with this status: what a client gives back is free a moment later.
async fn until_status(served: &Served, head: &str, status: &str) {
    let asked = async {
        while !served.said(head).await.starts_with(status) {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let answered = tokio::time::timeout(Duration::from_secs(60), asked).await;
    answered.unwrap_or_else(|_| panic!("no {status} for a minute"));
}

/// One reader with as many streams as there were connections left nobody else an answer, not even
/// `/healthz`: connections beyond the limit waited in the backlog of the socket for as long as the
/// streams were held. Now there is a reserve that answers probes and refuses all other requests.
#[tokio::test]
async fn probes_are_answered_when_all_connections_are_taken() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).connection_limit(2);
    let served = Served::new(server).await;
    let held = [opened(&served, "").await, opened(&served, "").await];
    for probe in ["/healthz", "/readyz", "/metrics"] {
        let answer = served.said(&format!("GET {probe} HTTP/1.1\r\nhost: localhost\r\n")).await;
        assert!(answer.starts_with("HTTP/1.1 200"), "{probe}: {answer}");
    }
    let answer = served.said(GET).await;
    assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
    assert!(answer.contains("application/problem+json"), "{answer}");
    assert!(answer.contains("retry-after: "), "{answer}");
    let counts = "has 2 connections open, and the limit is 2";
    assert!(answer.contains(counts), "{answer}");
    drop(held);
    until_status(&served, GET, "HTTP/1.1 200").await;
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn a_connection_on_the_reserve_serves_one_request_and_is_soon_cut_off() {
    let world = World::new().await;
    let server = Server::new(world.engine.client())
        .connection_limit(1)
        .probe_connections(1)
        .header_limit(Duration::from_millis(50));
    let served = Served::new(server).await;
    let _held = opened(&served, "").await;
    // A client that says nothing has the only place of the reserve for no longer than the limit, and a
    // client that would go on is answered once.
    let mut silent = served.connect().await;
    let mut rest = Vec::new();
    let cut = tokio::time::timeout(Duration::from_secs(60), silent.read_to_end(&mut rest));
    cut.await.expect("it is cut off").unwrap();
    let mut probe = served.connect().await;
    let head = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n\r\n";
    probe.write_all(head.as_bytes()).await.unwrap();
    let mut answer = String::new();
    let read = tokio::time::timeout(Duration::from_secs(60), probe.read_to_string(&mut answer));
    read.await.expect("it is closed").unwrap();
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn one_address_has_so_many_connections_and_its_probes_are_answered_beyond_them() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).connections_per_peer(1);
    let served = Served::new(server).await;
    let held = opened(&served, "").await;
    let answer = served.said(GET).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let counts = "has 1 connections open, and the limit is 1";
    assert!(answer.contains(counts), "{answer}");
    let probe = "GET /healthz HTTP/1.1\r\nhost: localhost\r\n";
    assert!(served.said(probe).await.starts_with("HTTP/1.1 200"));
    drop(held);
    until_status(&served, GET, "HTTP/1.1 200").await;
    served.end().await;
    // A trusted proxy carries the connections of many clients.
    let server = with_tokens(Server::new(world.engine.client())).connections_per_peer(1);
    let served = Served::new(server.trusted_proxies(["127.0.0.1"]).unwrap()).await;
    let from = |client: &str| format!("x-forwarded-for: {client}\r\n");
    let token = format!("authorization: Bearer {}\r\n", TOKENS[0].1);
    let _held = opened(&served, &(token + &from("192.0.2.1"))).await;
    let own = served.said(&format!("{GET}{}", from("192.0.2.1"))).await;
    assert!(own.starts_with("HTTP/1.1 429"), "{own}");
    let other = served.said(&format!("{GET}{}", from("192.0.2.2"))).await;
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn one_token_has_so_many_streams_and_other_tokens_have_theirs() {
    let world = World::new().await;
    let server = with_tokens(Server::new(world.engine.client())).streams_per_token(2);
    let served = Served::new(server).await;
    let token = |no: usize| format!("authorization: Bearer {}\r\n", TOKENS[no].1);
    let _held = opened(&served, &token(0)).await;
    let second = opened(&served, &token(0)).await;
    let updates = "GET /api/v1/runs/updates HTTP/1.1\r\nhost: localhost\r\n";
    let answer = served.said(&format!("{updates}{}", token(0))).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let counts = "the token `read` has 2 streams open, and the limit is 2";
    assert!(answer.contains(counts), "{answer}");
    // The token may do all else, and another token may open streams.
    let runs = format!("GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n{}", token(0));
    assert!(served.said(&runs).await.starts_with("HTTP/1.1 200"));
    let _other = opened(&served, &token(1)).await;
    // A stream that its client has left is free again.
    drop(second);
    let again = async {
        loop {
            let mut socket = served.connect().await;
            let head = format!("{updates}{}\r\n", token(0));
            socket.write_all(head.as_bytes()).await.unwrap();
            let mut start = [0; 12];
            socket.read_exact(&mut start).await.unwrap();
            if &start == b"HTTP/1.1 200" {
                return;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let again = tokio::time::timeout(Duration::from_secs(60), again).await;
    again.expect("a stream that was left counts for ever");
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn one_address_has_so_many_streams_without_a_token_too() {
    let world = World::new().await;
    let served = Served::new(Server::new(world.engine.client()).streams_per_peer(1)).await;
    let _held = opened(&served, "").await;
    let updates = "GET /api/v1/runs/updates HTTP/1.1\r\nhost: localhost\r\n";
    let answer = served.said(updates).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let counts = "(127.0.0.1) has 1 streams open, and the limit is 1";
    assert!(answer.contains(counts), "{answer}");
    assert!(served.said(GET).await.starts_with("HTTP/1.1 200"));
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn one_token_has_so_many_requests_under_way_and_streams_are_among_them() {
    let world = World::new().await;
    let server = with_tokens(Server::new(world.engine.client())).requests_per_token(1);
    let served = Served::new(server).await;
    let token = |no: usize| format!("authorization: Bearer {}\r\n", TOKENS[no].1);
    let held = opened(&served, &token(0)).await;
    let runs = "GET /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n";
    let answer = served.said(&format!("{runs}{}", token(0))).await;
    assert!(answer.starts_with("HTTP/1.1 429"), "{answer}");
    let counts = "the token `read` has 1 requests under way, and the limit is 1";
    assert!(answer.contains(counts), "{answer}");
    let other = served.said(&format!("{runs}{}", token(1))).await;
    assert!(other.starts_with("HTTP/1.1 200"), "{other}");
    drop(held);
    until_status(&served, &format!("{runs}{}", token(0)), "HTTP/1.1 200").await;
    served.end().await;
    world.end().await;
}

#[tokio::test]
async fn a_limit_of_zero_is_refused() {
    let world = World::new().await;
    let server = Server::new(world.engine.client()).streams_per_token(0);
    let error = server.listen("127.0.0.1:0").await.unwrap_err();
    assert_eq!(error.kind(), std::io::ErrorKind::InvalidInput);
    assert!(error.to_string().contains("streams_per_token"), "{error}");
    world.end().await;
}

/// The server waited for the whole body, and answered 408 after its limit of 30 s.
#[tokio::test]
async fn a_body_that_announces_more_than_the_limit_is_refused_at_once() {
    let world = World::new().await;
    let server = Server::new(world.engine.client())
        .body_limit(1_000)
        .request_limit(Duration::from_secs(600));
    let served = Served::new(server).await;
    let post = "POST /api/v1/runs HTTP/1.1\r\nhost: localhost\r\n\
                content-type: application/json\r\n";
    let chunk = format!("258\r\n{}\r\n", "x".repeat(0x258));
    for (sent, counts) in [
        (
            format!("{post}content-length: 64000000\r\n\r\n"),
            "the body has 64000000 bytes, and the limit is 1000 bytes",
        ),
        (
            format!("{post}expect: 100-continue\r\ncontent-length: 1001\r\n\r\n"),
            "the body has 1001 bytes, and the limit is 1000 bytes",
        ),
        // Nothing is announced: the second chunk passes the limit, and the end never comes.
        (
            format!("{post}transfer-encoding: chunked\r\n\r\n{chunk}{chunk}"),
            "the body has more than 1000 bytes, which is the limit",
        ),
    ] {
        let mut socket = served.connect().await;
        socket.write_all(sent.as_bytes()).await.unwrap();
        let mut answer = String::new();
        let read = async {
            while !answer.contains(counts) {
                let mut bytes = [0; 4_096];
                let read = socket.read(&mut bytes).await.unwrap();
                assert_ne!(read, 0, "{sent:.200}: {answer}");
                answer += &String::from_utf8_lossy(&bytes[..read]);
            }
        };
        let read = tokio::time::timeout(Duration::from_secs(60), read).await;
        read.unwrap_or_else(|_| panic!("no answer to {sent:.200}"));
        assert!(answer.starts_with("HTTP/1.1 413"), "{answer}");
    }
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
    for header in
        ["forwarded: for=10.1.2.3", "x-forwarded-for: 10.1.2.3", "X-Forwarded-Proto: https"]
    {
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
