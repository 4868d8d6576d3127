//! `demo`, as somebody sees it who has just come.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

mod stage;

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value as Json;
use stage::everstep;

/// Much longer than it takes, for machines with much to do.
const PATIENCE: Duration = Duration::from_secs(120);

struct Demo {
    child: Child,
    _out: BufReader<ChildStdout>,
    address: String,
}

impl Demo {
    fn start(temporary: &Path, arguments: &[&str]) -> Demo {
        let mut command = everstep();
        command.args(["demo", "--port", "0"]).args(arguments);
        command.env("TMPDIR", temporary).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let out = child.stdout.take().unwrap();
        let mut out = BufReader::new(out);
        out.read_line(&mut line).unwrap();
        let said = line.strip_prefix("the dashboard is at http://");
        let address = said.unwrap_or_else(|| panic!("{line}")).trim().to_owned();
        Demo {
            child,
            _out: out,
            address,
        }
    }

    fn get(&self, path: &str) -> String {
        let mut stream = TcpStream::connect(&self.address).unwrap();
        let host = &self.address;
        let ask = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\nConnection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 200"), "{path}: {head}\n{body}");
        body.to_owned()
    }

    fn counts(&self) -> Json {
        let all: Json = serde_json::from_str(&self.get("/api/v1/runs/counts")).unwrap();
        all["counts"].clone()
    }

    fn end(mut self) -> i32 {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-INT", &id]).status();
        assert!(killed.unwrap().success());
        self.child.wait().unwrap().code().unwrap()
    }
}

impl Drop for Demo {
    fn drop(&mut self) {
        let _ = self.child.kill();
    }
}

/// Asks until the answer is yes.
fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
}

fn statuses(counts: &Json) -> usize {
    let counts = counts.as_object().unwrap().values();
    counts.filter(|count| count.as_u64() > Some(0)).count()
}

#[test]
fn demo_shows_runs_in_five_statuses_whose_counts_change_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let demo = Demo::start(temporary.path(), &[]);
    assert!(demo.get("/").contains("<html"));
    until("runs in five statuses", || statuses(&demo.counts()) >= 5);
    let before = demo.counts();
    until("the counts change", || demo.counts() != before);
    assert_eq!(demo.end(), 0);
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn demo_keeps_its_data_where_it_is_told_to() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("kept.db");
    let demo = Demo::start(temporary.path(), &["--db", file.to_str().unwrap()]);
    until("something has ended", || {
        demo.counts()["completed"].as_u64() > Some(0)
    });
    assert_eq!(demo.end(), 0);
    assert!(file.exists());
    let again = Demo::start(temporary.path(), &["--db", file.to_str().unwrap()]);
    assert!(again.counts()["completed"].as_u64() > Some(0));
    assert_eq!(again.end(), 0);
}
