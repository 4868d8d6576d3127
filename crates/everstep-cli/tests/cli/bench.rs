//! `bench`: it measures, and leaves nothing.
#![allow(clippy::unwrap_used)]

use crate::stage;

use std::process::Stdio;

use everstep::tokio_postgres;
use serde_json::Value as Json;
use stage::{Place, everstep};

fn words(line: &str) -> Vec<String> {
    line.split(' ').map(str::to_owned).collect()
}

#[test]
fn bench_measures_beside_the_store_and_leaves_nothing() {
    for place in Place::both() {
        let mut command = everstep();
        command
            .args(["bench", "--runs", "40", "--at-once", "8", "--steps", "2", "--json"])
            .env("EVERSTEP_DB", &place.db)
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let child = command.spawn().unwrap();
        let process = child.id();
        let output = child.wait_with_output().unwrap();
        let errors = String::from_utf8_lossy(&output.stderr);
        assert_eq!(output.status.code(), Some(0), "{errors}");
        assert_eq!(errors, "", "no bar where nobody looks");
        let found: Json = serde_json::from_slice(&output.stdout).unwrap();
        assert_eq!(found["one_by_one"]["runs"], 2);
        assert_eq!(found["at_once"]["runs"], 38);
        assert_eq!(found["at_once"]["at_once"], 8);
        for which in ["one_by_one", "at_once"] {
            assert!(found[which]["runs_per_second"].as_f64() > Some(0.0), "{found}");
            assert!(found[which]["latency_ms"]["p50"].as_f64() > Some(0.0), "{found}");
        }
        let left: Vec<_> = std::fs::read_dir(place.directory.path()).unwrap().collect();
        assert!(left.is_empty(), "{left:?}");
        if place.is_postgres() {
            assert_eq!(schemas_of(&place.db, process), Vec::<String>::new());
        }
    }
}

/// The schemas that a process has made for itself.
fn schemas_of(url: &str, process: u32) -> Vec<String> {
    let database = url.split('?').next().unwrap();
    let runtime = tokio::runtime::Runtime::new().unwrap();
    runtime.block_on(async {
        let (client, connection) =
            tokio_postgres::connect(database, tokio_postgres::NoTls).await.unwrap();
        tokio::spawn(connection);
        let sql = "SELECT nspname::text FROM pg_namespace WHERE nspname LIKE $1";
        let like = format!("everstep\\_bench\\_{process}\\_%");
        let rows = client.query(sql, &[&like]).await.unwrap();
        rows.iter().map(|row| row.get(0)).collect()
    })
}

#[test]
fn bench_is_shown_as_a_table() {
    let [place, _] = Place::both();
    let output = place.everstep(&words("bench --runs 20"));
    let text = String::from_utf8_lossy(&output.stdout);
    assert!(text.starts_with("runs of 3 steps on SQLite\nAT ONCE"), "{text}");
    assert_eq!(text.lines().count(), 4, "{text}");
}
