//! What goes on until it is told to end: `serve` and `--watch`.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use crate::stage;

use everstep::Engine;
use serde_json::Value as Json;
use stage::{
    Place, everstep,
    process::{Address, Process},
};

/// Stores with nothing in them.
fn made() -> [Place; 2] {
    let both = Place::both();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    for place in &both {
        runtime.block_on(async {
            let engine = Engine::open(&place.db).start().await.unwrap();
            engine.shutdown().await;
        });
    }
    both
}

fn going_on(place: &Place, line: &str) -> Process {
    let mut command = everstep();
    command.args(line.split(' ')).env("EVERSTEP_DB", &place.db).current_dir(place.directory.path());
    Process::start(command)
}

const SERVED: &str = "the API and the dashboard are at ";

#[test]
fn serve_answers_until_a_signal_comes() {
    for place in made() {
        let mut serve = going_on(&place, "serve --listen 127.0.0.1:0");
        let address = Address::said(&serve.line(), SERVED);
        assert!(address.get("/").contains("<html"));
        assert_eq!(address.counts()["running"], 0);
        assert_eq!(serve.end("-TERM"), Some(0));

        let mut serve = going_on(&place, "serve --listen 127.0.0.1:0 --json");
        let said: Json = serde_json::from_str(&serve.line()).unwrap();
        let address = Address::said(said["address"].as_str().unwrap(), "");
        assert_eq!(address.counts()["running"], 0);
        assert_eq!(serve.end("-INT"), Some(0));
    }
}

#[test]
fn serve_listens_to_other_machines_once_there_is_a_token() {
    for place in made() {
        let words = |line: &str| -> Vec<String> { line.split(' ').map(str::to_owned).collect() };
        let refused = place.everstep(&words("serve --listen 0.0.0.0:0"));
        let errors = String::from_utf8_lossy(&refused.stderr);
        assert_eq!(refused.status.code(), Some(4), "{errors}");
        assert!(errors.contains("tokens create"), "{errors}");

        let made = place.everstep(&words("tokens create ci --role read"));
        let token = String::from_utf8_lossy(&made.stdout).trim().to_owned();
        let mut serve = going_on(&place, "serve --listen 0.0.0.0:0");
        let address = Address::said(&serve.line(), SERVED);
        assert_eq!(address.ask("/api/v1/runs", "").0, 401);
        let bearer = format!("Authorization: Bearer {token}\r\n");
        assert_eq!(address.ask("/api/v1/runs", &bearer).0, 200);
        assert_eq!(address.ask("/api/v1/audit", &bearer).0, 403);
        assert_eq!(serve.end("-TERM"), Some(0));
    }
}

#[test]
fn tokens_of_a_file_are_asked_for() {
    let [place, _] = made();
    let token = "0123456789abcdef0123456789abcdef";
    let text = format!("# who may do what\nadmin ada {token}\n");
    std::fs::write(place.file("tokens.txt"), text).unwrap();
    let mut serve = going_on(&place, "serve --listen 127.0.0.1:0 --tokens tokens.txt");
    let address = Address::said(&serve.line(), SERVED);
    assert_eq!(address.ask("/api/v1/audit", "").0, 401);
    let bearer = format!("Authorization: Bearer {token}\r\n");
    assert_eq!(address.ask("/api/v1/audit", &bearer).0, 200);
    assert_eq!(serve.end("-TERM"), Some(0));
}

#[test]
fn what_is_watched_is_printed_again_and_again() {
    for place in made() {
        for line in [
            "runs list",
            "runs count",
            "schedules",
            "queues list",
            "queues show mail",
            "cluster",
            "audit",
        ] {
            let mut watch = going_on(&place, &format!("{line} --watch=100ms --json"));
            for _ in 0..2 {
                let document = watch.line();
                let read = serde_json::from_str::<Json>(&document);
                assert!(read.is_ok_and(|it| it.is_object()), "{line}: {document}");
            }
            // It has no good order to end in.
            assert_eq!(watch.end("-TERM"), None, "{line}");
        }
    }
}
