//! `demo`, as somebody sees it who has just come.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use crate::stage;

use std::path::Path;

use serde_json::Value as Json;
use stage::{
    everstep,
    process::{Address, Process, until},
};

fn demo(temporary: &Path, arguments: &[&str]) -> (Process, Address) {
    let mut command = everstep();
    command.args(["demo", "--port", "0"]).args(arguments);
    command.env("TMPDIR", temporary);
    let mut demo = Process::start(command);
    let address = Address::said(&demo.line(), "the dashboard is at ");
    (demo, address)
}

fn statuses(counts: &Json) -> usize {
    let counts = counts.as_object().unwrap().values();
    counts.filter(|count| count.as_u64() > Some(0)).count()
}

#[test]
fn demo_shows_runs_in_five_statuses_whose_counts_change_and_leaves_nothing() {
    let temporary = tempfile::tempdir().unwrap();
    let (demo, address) = demo(temporary.path(), &[]);
    assert!(address.get("/").contains("<html"));
    let took = until("runs in five statuses", || statuses(&address.counts()) >= 5);
    let before = address.counts();
    until("the counts change", || address.counts() != before);
    println!("five statuses after {took:?}: {before}");
    assert_eq!(demo.end("-INT"), Some(0));
    let left: Vec<_> = std::fs::read_dir(temporary.path()).unwrap().collect();
    assert!(left.is_empty(), "{left:?}");
}

#[test]
fn demo_keeps_its_data_where_it_is_told_to() {
    let temporary = tempfile::tempdir().unwrap();
    let file = temporary.path().join("kept.db");
    let arguments = ["--db", file.to_str().unwrap()];
    let (first, address) = demo(temporary.path(), &arguments);
    until("something has ended", || address.counts()["completed"].as_u64() > Some(0));
    assert_eq!(first.end("-INT"), Some(0));
    assert!(file.exists());
    let (again, address) = demo(temporary.path(), &arguments);
    assert!(address.counts()["completed"].as_u64() > Some(0));
    assert_eq!(again.end("-INT"), Some(0));
}
