//! The example `agent_review`: agents in a row, and a person between them.
#![cfg(feature = "sqlite")]
#![allow(clippy::unwrap_used)]

use crate::{review as flow, scenario};

use std::{
    collections::HashSet,
    fs,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
};

use everstep::{
    ClientError, EngineBuilder, Resolved, RunStatus,
    prelude::*,
    store::MemoryStore,
    testing::{CrashTest, CrashingStore, VirtualClock},
};
use flow::{
    AgentError, Approval, Message, Outside, REVIEW_GATE, Rejection, Task, agent_review, scripted,
};
use scenario::{block_on, second_process, until, until_status};

const FINAL: &str = "final of (Finalize with review notes:\nshorter\n\nDraft:\nrefined (Improve this:\ndraft of \
     (Draft a response:\na home page)))";

/// What was asked of the agents: their names and the attempts.
type Asked = Arc<Mutex<Vec<(String, u32)>>>;

/// A place for the files of one test, and what its agents were asked.
struct Desk {
    folder: tempfile::TempDir,
    asked: Asked,
}

impl Desk {
    fn new() -> Desk {
        Desk { folder: tempfile::tempdir().unwrap(), asked: Asked::default() }
    }

    fn database(&self) -> PathBuf {
        self.folder.path().join("app.db")
    }

    /// The tokens that were handed out, one for each time.
    fn tokens(&self) -> Vec<String> {
        tokens(&self.folder.path().join("outbox"))
    }

    async fn token(&self) -> String {
        until("the token", async || self.tokens().pop()).await
    }

    /// The agents, and the reviewer's outbox.
    fn outside(&self) -> Outside {
        outside(self.folder.path(), self.asked.clone())
    }

    fn builder(&self) -> EngineBuilder {
        let builder = Engine::open(self.database()).provide(self.outside());
        builder.register(agent_review)
    }

    fn asked(&self) -> Vec<(String, u32)> {
        self.asked.lock().unwrap().clone()
    }
}

fn outside(folder: &Path, asked: Asked) -> Outside {
    Outside {
        ask: Box::new(move |agent, prompt, attempt| {
            asked.lock().unwrap().push((agent.to_owned(), attempt));
            let thinking = Message::Thinking(format!("{agent} thinks"));
            let text = match agent {
                "DraftAgent" => format!("draft of ({prompt})"),
                "RefineAgent" => format!("refined ({prompt})"),
                _ => format!("final of ({prompt})"),
            };
            // One that is asked to be silent never comes to a result.
            match prompt.contains("silence") {
                true => scripted(vec![thinking]),
                false => scripted(vec![thinking, Message::Result(text)]),
            }
        }),
        outbox: folder.join("outbox"),
    }
}

fn tokens(outbox: &Path) -> Vec<String> {
    let text = fs::read_to_string(outbox).unwrap_or_default();
    let lines = text.lines().filter_map(|line| line.split_once(' '));
    lines.map(|(token, _)| token.to_owned()).collect()
}

fn task(task: &str) -> Task {
    Task { task: task.to_owned(), patience: None }
}

fn once_each() -> Vec<(String, u32)> {
    let agents = ["DraftAgent", "RefineAgent", "FinalizeAgent"];
    agents.map(|agent| (agent.to_owned(), 1)).into()
}

fn notes(notes: &str) -> String {
    notes.to_owned()
}

async fn approve(client: &Client, token: &str) -> Result<Resolved, ClientError> {
    let approval = Approval { notes: notes("shorter") };
    client.deferred(REVIEW_GATE, token).resolve(&approval).await
}

/// Set to the file and the token in the process of the reviewer.
const REVIEWER: &str = "EVERSTEP_TEST_REVIEWER";

#[test]
fn a_person_in_another_process_approves_with_nothing_but_the_token() {
    let name = "a_person_in_another_process_approves_with_nothing_but_the_token";
    if let Ok(given) = std::env::var(REVIEWER) {
        let (path, token) = given.split_once(' ').unwrap();
        return scenario::runtime().block_on(async {
            let client = Client::open(path).await.unwrap();
            let settled = approve(&client, token).await.unwrap();
            assert_eq!(settled, Resolved::First);
        });
    }
    let desk = Desk::new();
    scenario::runtime().block_on(async {
        let engine = desk.builder().start().await.unwrap();
        let run = engine.client().start(agent_review, task("a home page"));
        let run = run.await.unwrap();
        let token = desk.token().await;
        let info = until_status(&run, RunStatus::Sleeping).await;
        assert_eq!(info.waiting.as_deref(), Some("deferred `ReviewGate`"));
        let given = format!("{} {token}", desk.database().display());
        let mut person = second_process(module_path!(), name, REVIEWER, &given);
        assert_eq!(run.result().await.unwrap(), FINAL);
        assert!(person.wait().unwrap().success());
        assert_eq!(desk.asked(), once_each());
        let mut messages = run.stream::<Message>("messages");
        let mut said = 0;
        while messages.next().await.unwrap().is_some() {
            said += 1;
        }
        assert_eq!(said, 6, "a thought and a result of each agent");
        engine.shutdown().await;
    });
}

/// Reviews just before the n-th write, if the token is out by then, and otherwise once the run
/// waits.
async fn reviewed_before(write: u64) {
    let desk = Desk::new();
    let memory = MemoryStore::new();
    let (inner, outbox) = (memory.clone(), desk.folder.path().join("outbox"));
    let reviewed = Arc::new(AtomicBool::new(false));
    let early = reviewed.clone();
    let store = CrashingStore::counting(memory).meddle_before(write, move |_| {
        let Some(token) = tokens(&outbox).pop() else {
            return;
        };
        let client = Client::on(Arc::new(inner)).unwrap();
        // A write that comes after the end of the run finds nobody to tell.
        if let Ok(settled) = block_on(approve(&client, &token)) {
            early.store(settled == Resolved::First, Ordering::SeqCst);
        }
    });
    let builder = Engine::on(Arc::new(store)).provide(desk.outside());
    let builder = builder.settings(|settings| settings.threads = 1);
    let engine = builder.register(agent_review).start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    let waits = until("the review, or the wait for it", async || {
        let info = run.info().await.unwrap();
        let waits = info.status == RunStatus::Sleeping;
        (waits || reviewed.load(Ordering::SeqCst)).then_some(waits)
    })
    .await;
    let early = reviewed.load(Ordering::SeqCst);
    if waits && !early {
        approve(&engine.client(), &desk.token().await).await.unwrap();
    }
    assert_eq!(run.result().await.unwrap(), FINAL, "before write {write}");
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_counts_whenever_it_comes() {
    // How many writes come before the wait depends on how the messages of the agents are batched, so
    // which of these reviews are early does too; each must count.
    for write in 4..30 {
        reviewed_before(write).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_counts_that_comes_before_the_wait_is_recorded() {
    let desk = Desk::new();
    let memory = MemoryStore::new();
    let (inner, outbox) = (memory.clone(), desk.folder.path().join("outbox"));
    // The reviewer has the token as soon as the notification is out, which is before the commit that
    // records it, and the wait with it.
    let answers = Arc::new(Mutex::new(Vec::new()));
    let given = answers.clone();
    let store = CrashingStore::counting(memory).meddle_until(move |_| {
        let Some(token) = tokens(&outbox).pop() else {
            return false;
        };
        let client = Client::on(Arc::new(inner.clone())).unwrap();
        let before = block_on(async { client.list().workflow("agent_review").await }).unwrap();
        let settled = block_on(approve(&client, &token)).unwrap();
        given.lock().unwrap().push((before.runs[0].status, settled));
        true
    });
    let builder = Engine::on(Arc::new(store)).provide(desk.outside());
    let engine = builder.register(agent_review).start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    assert_eq!(run.await.unwrap().result().await.unwrap(), FINAL);
    let expected = [(RunStatus::Running, Resolved::First)];
    assert_eq!(*answers.lock().unwrap(), expected);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_while_no_runner_is_up_is_applied_at_the_next_start() {
    let desk = Desk::new();
    let engine = desk.builder().start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    let token = desk.token().await;
    until_status(&run, RunStatus::Sleeping).await;
    engine.shutdown().await;
    let client = Client::open(desk.database()).await.unwrap();
    let listed = client.list().workflow("agent_review").await.unwrap();
    let waiting = listed.runs[0].waiting.as_deref();
    assert_eq!(waiting, Some("deferred `ReviewGate`"));
    assert_eq!(approve(&client, &token).await.unwrap(), Resolved::First);
    let rejection = Rejection { notes: notes("too late") };
    let second = client.deferred(REVIEW_GATE, &token).reject(&rejection);
    let second = second.await.unwrap();
    assert!(matches!(second, Resolved::Already { .. }), "{second:?}");
    let engine = desk.builder().start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    assert!(run.attached(), "the task is the key");
    assert_eq!(run.result().await.unwrap(), FINAL);
    // The code has run twice, the agents once.
    assert_eq!(desk.asked(), once_each());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_rejection_ends_it_with_the_notes() {
    let desk = Desk::new();
    let engine = desk.builder().start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    let rejection = Rejection { notes: notes("dull") };
    let gate = engine.client().deferred(REVIEW_GATE, desk.token().await);
    gate.reject(&rejection).await.unwrap();
    assert_eq!(run.result().await.unwrap(), "Rejected: dull");
    assert_eq!(desk.asked(), once_each()[..2]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_result_is_a_typed_failure_and_the_agent_sees_its_attempts() {
    let desk = Desk::new();
    let clock = VirtualClock::new();
    let engine = desk.builder().clock(clock).start().await.unwrap();
    let run = engine.client().start(agent_review, task("silence"));
    let error = run.await.unwrap().result().await.unwrap_err();
    let failure = error.failure().expect("it failed");
    let missing = AgentError::MissingResult { agent: "DraftAgent".to_owned(), attempt: 3 };
    assert_eq!(failure.details::<AgentError>(), Some(missing));
    let attempts: Vec<u32> = desk.asked().iter().map(|(_, attempt)| *attempt).collect();
    assert_eq!(attempts, [1, 2, 3]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_that_takes_too_long_expires_and_one_in_time_does_not() {
    for in_time in [true, false] {
        let desk = Desk::new();
        let clock = VirtualClock::new();
        let engine = desk.builder().clock(clock.clone()).start().await.unwrap();
        let held = clock.hold();
        let hurried = Task { patience: Some(3_600), ..task("a home page") };
        let run = engine.client().start(agent_review, hurried).await.unwrap();
        drop(clock.quiet().await);
        let token = desk.token().await;
        if in_time {
            approve(&engine.client(), &token).await.unwrap();
            drop(held);
            assert_eq!(run.result().await.unwrap(), FINAL);
        } else {
            drop(held);
            let expired = run.result().await.unwrap();
            assert_eq!(expired, "Expired: nobody has reviewed it");
            let late = approve(&engine.client(), &token).await.unwrap_err();
            assert!(matches!(late, ClientError::Finished { .. }), "{late}");
        }
        engine.shutdown().await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn a_cancel_while_it_waits_leaves_a_later_review_without_effect() {
    let desk = Desk::new();
    let engine = desk.builder().start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    let token = desk.token().await;
    assert!(run.cancel().await.unwrap());
    until_status(&run, RunStatus::Cancelled).await;
    let late = approve(&engine.client(), &token).await.unwrap_err();
    assert!(matches!(late, ClientError::Finished { .. }), "{late}");
    let bad = approve(&engine.client(), "no token").await.unwrap_err();
    assert!(matches!(bad, ClientError::MalformedToken), "{bad}");
    assert_eq!(desk.asked(), once_each()[..2]);
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_waits_for_weeks_over_restarts() {
    let desk = Desk::new();
    let clock = VirtualClock::new();
    let engine = desk.builder().clock(clock.clone()).start().await.unwrap();
    let run = engine.client().start(agent_review, task("a home page"));
    let run = run.await.unwrap();
    let token = desk.token().await;
    until_status(&run, RunStatus::Sleeping).await;
    engine.shutdown().await;
    for _ in 0..3 {
        clock.advance(days(7));
        let engine = desk.builder().clock(clock.clone()).start().await.unwrap();
        let run = engine.client().run::<String>(run.id());
        assert_eq!(run.status().await.unwrap(), RunStatus::Sleeping);
        engine.shutdown().await;
    }
    let engine = desk.builder().clock(clock).start().await.unwrap();
    approve(&engine.client(), &token).await.unwrap();
    let run = engine.client().run::<String>(run.id());
    assert_eq!(run.result().await.unwrap(), FINAL);
    assert_eq!(desk.asked(), once_each());
    engine.shutdown().await;
}

#[tokio::test(flavor = "multi_thread")]
async fn it_gives_the_same_wherever_it_crashes_and_hands_out_one_token() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().to_owned();
    let approval = Approval { notes: notes("shorter") };
    let report = CrashTest::new(agent_review, task("a home page"))
        .engine(move |builder| {
            let outside = outside(&path, Asked::default());
            builder.provide(outside).register(agent_review)
        })
        .resolve("ReviewGate", &approval)
        .await;
    assert_eq!(report.expected.output, Some(FINAL.into()));
    assert!(report.points > 15, "{report}");
    // A notification that was not recorded is made again, with the same token; all runs here have
    // one id and one secret.
    let tokens = tokens(&folder.path().join("outbox"));
    let different: HashSet<&String> = tokens.iter().collect();
    assert!(tokens.len() > 15, "{}", tokens.len());
    assert_eq!(different.len(), 1);
}
