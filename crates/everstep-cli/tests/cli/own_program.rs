//! A program with workflows of its own and the commands of `everstep`. It is this test binary, started
//! again.
#![allow(clippy::unwrap_used)]
#![cfg(unix)]

use crate::stage;

use std::{
    io::{BufRead, BufReader},
    process::{Child, ChildStderr, Command, Output, Stdio},
};

use everstep::prelude::*;
use everstep_cli::EngineCli as _;
use stage::{Place, plain};

/// The arguments of the program, as JSON.
const ARGUMENTS: &str = "EVERSTEP_TEST_ARGUMENTS";
/// Whether it is the next version of the program, with other code.
const IS_NEXT: &str = "EVERSTEP_TEST_NEXT";

const GREET: Workflow<String, String> = Workflow::new("greet");
const WAIT: Workflow<u64, u64> = Workflow::new("wait");

#[test]
#[ignore = "the program that the other tests start"]
fn program() {
    let Ok(arguments) = std::env::var(ARGUMENTS) else {
        return;
    };
    let arguments: Vec<String> = serde_json::from_str(&arguments).unwrap();
    let engine = Engine::open("app.db")
        .register_fn(GREET, |ctx, name: String| async move {
            ctx.step("greet", async || Ok(format!("hello {name}"))).await
        })
        .register_fn(WAIT, |ctx, n| async move {
            let step = match std::env::var_os(IS_NEXT) {
                None => "first",
                Some(_) => "another",
            };
            ctx.step(step, async || Ok(())).await?;
            let more: u64 = ctx.listen("more").await?;
            Ok(n + more)
        });
    let runtime = tokio::runtime::Runtime::new().unwrap();
    let exit = runtime.block_on(engine.cli_from(arguments));
    std::process::exit(i32::from(exit.code()));
}

/// The program with these arguments, as a command.
fn my_app(place: &Place, arguments: &[&str]) -> Command {
    let all: Vec<&str> = std::iter::once("my-app").chain(arguments.iter().copied()).collect();
    let mut command = Command::new(std::env::current_exe().unwrap());
    plain(&mut command);
    command
        .args(["own_program::program", "--exact", "--ignored", "--nocapture"])
        .env(ARGUMENTS, serde_json::to_string(&all).unwrap())
        .env_remove(IS_NEXT)
        .current_dir(place.directory.path());
    if place.is_postgres() {
        command.env("EVERSTEP_DB", &place.db);
    }
    command
}

/// What it prints, without what the harness of the tests does, and its exit code.
fn said(output: &Output) -> (String, String, i32) {
    let out = String::from_utf8_lossy(&output.stdout);
    let out = out.strip_prefix("\nrunning 1 test\n").unwrap_or(&out);
    let errors = String::from_utf8_lossy(&output.stderr).into_owned();
    (out.to_owned(), errors, output.status.code().unwrap())
}

fn told(place: &Place, arguments: &[&str]) -> (String, String, i32) {
    said(&my_app(place, arguments).output().unwrap())
}

/// A worker that has begun; it is ended with a signal.
struct Worker {
    child: Child,
    _errors: BufReader<ChildStderr>,
}

impl Worker {
    fn start(place: &Place) -> Worker {
        let mut command = my_app(place, &["worker"]);
        command.stdout(Stdio::null()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut line = String::new();
        let errors = child.stderr.take().unwrap();
        let mut errors = BufReader::new(errors);
        errors.read_line(&mut line).unwrap();
        assert!(line.starts_with("working on "), "{line}");
        // Whoever writes to nobody fails.
        Worker { child, _errors: errors }
    }

    fn end(mut self) -> i32 {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status();
        assert!(killed.unwrap().success());
        self.child.wait().unwrap().code().unwrap()
    }
}

#[test]
fn worker_runs_what_start_has_started() {
    for place in Place::both() {
        let (_, errors, code) = told(&place, &["start", "greet", "\"ada\""]);
        assert_eq!(code, 5, "{errors}");
        let hint = match place.is_postgres() {
            false => "`worker` makes it",
            true => "start an engine on it",
        };
        assert!(errors.contains(hint), "{errors}");

        let worker = Worker::start(&place);
        let (out, errors, code) = told(&place, &["start", "greet", "\"ada\"", "--wait"]);
        assert_eq!((&*out, code), ("\"hello ada\"\n", 0), "{errors}");
        assert_eq!(worker.end(), 0);

        let (id, _, code) = told(&place, &["start", "wait", "1", "--key", "a"]);
        assert_eq!(code, 0);
        let (list, _, code) = told(&place, &["runs", "list", "--status", "pending"]);
        assert_eq!(code, 0);
        assert!(list.contains(id.trim()), "{list}");
    }
}

#[test]
fn start_knows_which_workflows_there_are() {
    for place in Place::both() {
        assert_eq!(Worker::start(&place).end(), 0);
        let (_, errors, code) = told(&place, &["start", "great", "\"ada\""]);
        assert_eq!(code, 3);
        let said = "error: this program has no workflow `great`; it has: greet, wait\n";
        assert_eq!(errors, said);
        let (_, errors, code) = told(&place, &["start", "greet", "{ada"]);
        assert_eq!(code, 2);
        assert!(errors.contains("the argument is no JSON"), "{errors}");
    }
}

#[test]
fn preflight_finds_runs_that_do_not_fit_and_changes_nothing() {
    for place in Place::both() {
        let worker = Worker::start(&place);
        let (id, errors, code) = told(&place, &["start", "wait", "1"]);
        assert_eq!(code, 0, "{errors}");
        let id = id.trim();
        let is_asleep = || {
            let (info, _, _) = told(&place, &["runs", "show", id, "--json"]);
            let info: serde_json::Value = serde_json::from_str(&info).unwrap();
            info["status"] == "sleeping"
        };
        while !is_asleep() {
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        // Beside the process that has the run.
        let (out, errors, code) = told(&place, &["preflight"]);
        let clean = "1 of 1 live runs go on with this program\n";
        assert_eq!((&*out, code), (clean, 0), "{errors}");
        assert_eq!(worker.end(), 0);

        let before = told(&place, &["runs", "show", id, "--json"]);
        let mut next = my_app(&place, &["preflight", "--json"]);
        let (out, errors, code) = said(&next.env(IS_NEXT, "1").output().unwrap());
        assert_eq!(code, 1, "{errors}");
        let found: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!(found["divergent_count"], 1);
        assert_eq!(found["divergent"][0]["run"], id);
        let reason = found["divergent"][0]["reason"].as_str().unwrap();
        assert!(reason.contains("another"), "{reason}");
        assert_eq!(told(&place, &["runs", "show", id, "--json"]), before);
    }
}

#[test]
fn program_is_called_by_its_own_name() {
    let [place, _] = Place::both();
    let (out, _, code) = told(&place, &["--help"]);
    assert_eq!(code, 0);
    assert!(out.contains("Usage: my-app"), "{out}");
    assert!(out.contains("preflight"), "{out}");
    let (script, _, code) = told(&place, &["completions", "bash"]);
    assert_eq!(code, 0);
    assert!(script.contains("-o default my-app"), "{script}");
}
