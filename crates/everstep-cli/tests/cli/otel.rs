//! `demo` with a collector of OpenTelemetry beside it.
#![allow(clippy::unwrap_used)]
#![cfg(all(unix, feature = "otel"))]

use crate::stage;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::{TcpListener, TcpStream},
    process::{Command, Stdio},
    sync::mpsc,
    thread,
    time::Duration,
};

use stage::everstep;

/// Much longer than it takes, for machines with much to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// Takes one request with spans, and gives its body.
fn take(mut stream: TcpStream) -> Vec<u8> {
    let mut reader = BufReader::new(stream.try_clone().unwrap());
    let mut bytes = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        let line = line.trim_end().to_lowercase();
        if let Some(length) = line.strip_prefix("content-length: ") {
            bytes = length.parse().unwrap();
        }
        if line.is_empty() {
            break;
        }
    }
    let mut body = vec![0; bytes];
    reader.read_exact(&mut body).unwrap();
    let answer = b"HTTP/1.1 200 OK\r\ncontent-length: 0\r\n\r\n";
    stream.write_all(answer).unwrap();
    body
}

#[test]
fn demo_sends_its_spans_to_the_collector_that_the_environment_names() {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let collector = format!("http://{}", listener.local_addr().unwrap());
    let (sender, sent) = mpsc::channel();
    thread::spawn(move || {
        for stream in listener.incoming() {
            let body = take(stream.unwrap());
            // After the end of the test nobody is interested.
            _ = sender.send(body);
        }
    });
    let temporary = tempfile::tempdir().unwrap();
    let mut demo = everstep()
        .args(["demo", "--port", "0"])
        .env("TMPDIR", temporary.path())
        .env("OTEL_EXPORTER_OTLP_ENDPOINT", collector)
        .env("OTEL_BSP_SCHEDULE_DELAY", "100")
        .stdout(Stdio::piped())
        .spawn()
        .unwrap();
    let mut line = String::new();
    let mut out = BufReader::new(demo.stdout.take().unwrap());
    out.read_line(&mut line).unwrap();
    assert!(line.starts_with("the dashboard is at"), "{line}");
    // Names are in what is sent as they are.
    let mut missing = vec!["service.name", "everstep.run", "everstep.step", "workflow"];
    while !missing.is_empty() {
        let body = sent.recv_timeout(PATIENCE);
        let body = body.unwrap_or_else(|_| panic!("nothing was sent with {missing:?}"));
        let text = String::from_utf8_lossy(&body).into_owned();
        missing.retain(|name| !text.contains(name));
    }
    let id = demo.id().to_string();
    let killed = Command::new("kill").args(["-INT", &id]).status();
    assert!(killed.unwrap().success());
    assert!(demo.wait().unwrap().success());
}
