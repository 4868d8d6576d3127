//! The `everstep` command while it goes on: what it prints first, what it serves, how it ends.

use std::{
    io::{BufRead, BufReader, Read, Write},
    net::TcpStream,
    process::{Child, ChildStdout, Command, Stdio},
    time::{Duration, Instant},
};

use serde_json::Value as Json;

/// Much longer than anything takes, for machines with much to do.
const PATIENCE: Duration = Duration::from_secs(120);

/// A process that goes on until it is told to end.
pub(crate) struct Process {
    child: Child,
    out: BufReader<ChildStdout>,
}

impl Process {
    pub(crate) fn start(mut command: Command) -> Process {
        let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
        let out = BufReader::new(child.stdout.take().unwrap());
        Process { child, out }
    }

    /// The next line that it prints.
    pub(crate) fn line(&mut self) -> String {
        let mut line = String::new();
        self.out.read_line(&mut line).unwrap();
        line
    }

    /// Sends it a signal, and waits for its exit code.
    pub(crate) fn end(mut self, signal: &str) -> Option<i32> {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args([signal, &id]).status();
        assert!(killed.unwrap().success());
        self.child.wait().unwrap().code()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Who answers over HTTP.
pub(crate) struct Address(String);

impl Address {
    /// The address that a line names at its end.
    pub(crate) fn said(line: &str, before: &str) -> Address {
        let said = line.strip_prefix(before);
        let said = said.and_then(|rest| rest.trim().strip_prefix("http://"));
        Address(said.unwrap_or_else(|| panic!("{line}")).to_owned())
    }

    /// The status and the body of the answer, with this further line in the head of the question.
    pub(crate) fn ask(&self, path: &str, line: &str) -> (u16, String) {
        let host = &self.0;
        let reached = host.replace("0.0.0.0", "127.0.0.1");
        let mut stream = TcpStream::connect(reached).unwrap();
        let ask = format!("GET {path} HTTP/1.1\r\nHost: {host}\r\n{line}Connection: close\r\n\r\n");
        stream.write_all(ask.as_bytes()).unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).unwrap();
        let (head, body) = answer.split_once("\r\n\r\n").unwrap();
        let status = head.split(' ').nth(1).and_then(|it| it.parse().ok());
        (status.unwrap(), body.to_owned())
    }

    pub(crate) fn get(&self, path: &str) -> String {
        let (status, body) = self.ask(path, "");
        assert_eq!(status, 200, "{path}: {body}");
        body
    }

    /// How many runs there are of each status.
    pub(crate) fn counts(&self) -> Json {
        let all: Json = serde_json::from_str(&self.get("/api/v1/runs/counts")).unwrap();
        all["counts"].clone()
    }
}

/// Asks until the answer is yes; how long that took.
pub(crate) fn until(what: &str, mut is_so: impl FnMut() -> bool) -> Duration {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < PATIENCE, "not in time: {what}");
        std::thread::sleep(Duration::from_millis(100));
    }
    begun.elapsed()
}
