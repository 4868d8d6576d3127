//! The examples `workspace_lock` and `agent_review` on PostgreSQL, with three runners.
//!
//! The runners are processes: this test binary, started again. They have the code of both examples;
//! the test itself is only a client, as a web server would be. What is killed is killed with SIGKILL,
//! while it is known where it is.
#![cfg(all(unix, feature = "postgres"))]
#![allow(clippy::unwrap_used)]

use crate::{flow, lock, review, scenario};

use std::{
    collections::HashSet,
    fs,
    io::{Read, Write},
    path::{Path, PathBuf},
    process::Child,
    sync::Arc,
    time::Duration,
};

use everstep::{
    ClientError, EntryKind, EntryStatus, JoinError, Resolved, RunId, RunStatus,
    prelude::*,
    store::{PostgresOptions, PostgresStore},
    testing::{VirtualClock, ran_on},
};
use flow::{Boundary, Request, Summary, let_go, summarize};
use lock::Workspace;
use review::{
    AgentError, Approval, Message, Outside, REVIEW_GATE, Rejection, Task, agent_review, scripted,
};
use scenario::{second_process, until, until_status};
use tempfile::TempDir;

const SUMMARY: &str = "BranchA: 35 letters, BranchB: 9 words, BranchC: 3 lines";

const FINAL: &str = "final of (Finalize with review notes:\nshorter\n\nDraft:\nrefined (Improve this:\ndraft of \
     (Draft a response:\na home page)))";

/// The steps of a request that has to wait.
const STEPS: [&str; 9] = [
    "AcquireWorkspaceLock",
    "Aggregate",
    "NotifyLockManager",
    "ReadInputs",
    "ReleaseWorkspaceLock",
    "WriteOutputs",
    "branches/BranchA/work",
    "branches/BranchB/work",
    "branches/BranchC/work",
];

/// Set, in a runner, to the folder of the test and the URL of its schema.
const RUNNER: &str = "EVERSTEP_TEST_RUNNER";

/// Whether this process is a runner, which it was until it was told to end.
fn was_runner() -> bool {
    let Ok(given) = std::env::var(RUNNER) else {
        return false;
    };
    let (folder, url) = given.split_once(' ').unwrap();
    // It ends with the process that has started it, however that ends.
    std::thread::spawn(|| {
        _ = std::io::stdin().read_to_end(&mut Vec::new());
        std::process::exit(0);
    });
    scenario::runtime().block_on(async {
        let _engine = engine(Engine::open(url), Path::new(folder), url).await;
        std::future::pending::<()>().await;
    });
    true
}

async fn engine(builder: everstep::EngineBuilder, folder: &Path, url: &str) -> Engine {
    let store = PostgresStore::open(url).unwrap();
    everstep::store::Store::migrate(&store).unwrap();
    let builder = builder
        .provide(Client::on(Arc::new(store)).unwrap())
        .provide(held_up(folder))
        .provide(outside(folder))
        .register(summarize)
        .register(agent_review)
        .settings(|settings| {
            // Short, so that another takes over soon; long enough for a busy machine.
            settings.lease = Duration::from_secs(2);
            settings.heartbeat = Some(Duration::from_millis(200));
            settings.safety_poll = Duration::from_millis(500);
            settings.threads = 1;
        });
    builder.start().await.unwrap()
}

/// A body of a request waits at its end until there is a plan for its run. If that names its
/// location, the first one there says which process it is in, and never ends.
fn held_up(folder: &Path) -> Boundary {
    let folder = folder.to_owned();
    Boundary(Box::new(move |step| {
        let (location, run) = (step.location().to_owned(), step.run_id().to_string());
        let (plan, stopped) =
            (folder.join(format!("{run}.plan")), folder.join(format!("{run}.at")));
        Box::pin(async move {
            let planned = until("a plan", async || fs::read_to_string(&plan).ok()).await;
            if planned == location
                && let Ok(mut file) = fs::File::create_new(&stopped)
            {
                writeln!(file, "{}", std::process::id()).unwrap();
                std::future::pending::<()>().await;
            }
        })
    }))
}

/// The agents say in a file what they were asked; one that is asked to be silent has no result.
fn outside(folder: &Path) -> Outside {
    let asked = folder.join("asked");
    Outside {
        ask: Box::new(move |agent, prompt, attempt| {
            append(&asked, &format!("{agent} {attempt} {}", last_word(prompt)));
            let thinking = Message::Thinking(format!("{agent} thinks"));
            let text = match agent {
                "DraftAgent" => format!("draft of ({prompt})"),
                "RefineAgent" => format!("refined ({prompt})"),
                _ => format!("final of ({prompt})"),
            };
            match prompt.contains("silence") {
                true => scripted(vec![thinking]),
                false => scripted(vec![thinking, Message::Result(text)]),
            }
        }),
        outbox: folder.join("outbox"),
    }
}

/// The last word of a prompt is that of the task.
fn last_word(prompt: &str) -> &str {
    let word = prompt.split_whitespace().next_back().unwrap_or_default();
    word.trim_end_matches(')')
}

fn append(path: &Path, line: &str) {
    let file = fs::OpenOptions::new().create(true).append(true).open(path);
    let line = format!("{line}\n");
    file.unwrap().write_all(line.as_bytes()).unwrap();
}

/// A test with its folder, its schema, its runners and a client.
struct Site {
    test: &'static str,
    folder: TempDir,
    url: String,
    client: Client,
    runners: Vec<Runner>,
}

/// A process that ends with the test.
struct Runner(Child);

impl Drop for Runner {
    fn drop(&mut self) {
        _ = self.0.kill();
        _ = self.0.wait();
    }
}

impl Site {
    /// Three runners, all at work.
    async fn new(test: &'static str) -> Site {
        let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
        let store = PostgresStore::open(&url).unwrap();
        everstep::store::Store::migrate(&store).unwrap();
        let mut site = Site {
            test,
            folder: tempfile::tempdir().unwrap(),
            client: Client::on(Arc::new(store)).unwrap(),
            url,
            runners: Vec::new(),
        };
        (0..3).for_each(|_| site.start_runner());
        site.until_all_work().await;
        site
    }

    fn path(&self) -> &Path {
        self.folder.path()
    }

    fn start_runner(&mut self) {
        let given = format!("{} {}", self.path().display(), self.url);
        let runner = second_process(module_path!(), self.test, RUNNER, &given);
        self.runners.push(Runner(runner));
    }

    /// Waits until each runner has a share of the shards.
    async fn until_all_work(&self) {
        until("all runners to have shards", async || {
            let cluster = self.client.cluster().await.unwrap();
            let alive = cluster.runners.iter().filter(|runner| runner.alive);
            let at_work = alive.filter(|runner| runner.shards > 0);
            (at_work.count() == self.runners.len()).then_some(())
        })
        .await;
    }

    fn kill_all(&mut self) {
        self.runners.clear();
    }

    /// Kills the runner that says that it is held up in this run, and starts another; false if it was
    /// killed before.
    async fn kill_at_boundary(&mut self, run: RunId) -> bool {
        let at = self.path().join(format!("{run}.at"));
        let process: u32 = until(&format!("run {run} to be held up"), async || {
            let text = fs::read_to_string(&at).unwrap_or_default();
            text.strip_suffix('\n').map(|id| id.parse().unwrap())
        })
        .await;
        let before = self.runners.len();
        self.runners.retain(|runner| runner.0.id() != process);
        let killed = self.runners.len() < before;
        if killed {
            self.start_runner();
        }
        killed
    }

    /// A new workspace with something to read in it.
    fn workspace(&self, name: &str) -> Place {
        let folder = self.path().join(name);
        fs::create_dir(&folder).unwrap();
        fs::write(folder.join("a.txt"), "the quick brown fox\n").unwrap();
        fs::write(folder.join("b.txt"), "jumps over\nthe lazy dog\n").unwrap();
        Place { folder }
    }

    /// Starts a request, which is held up at the end of the step at this location.
    async fn request(&self, place: &Place, name: &str, held_up: &str) -> RunHandle<Summary> {
        let request = Request { workspace: place.name(), request: name.to_owned() };
        let run = self.client.start(summarize, request).await.unwrap();
        let plan = self.path().join(format!("{}.plan", run.id()));
        let new = plan.with_extension("new");
        fs::write(&new, held_up).unwrap();
        fs::rename(&new, &plan).unwrap();
        run
    }

    /// Starts a review of this task.
    async fn review(&self, what: &str, patience: Option<u64>) -> RunHandle<String> {
        let task = Task { task: what.to_owned(), patience };
        self.client.start(agent_review, task).await.unwrap()
    }

    /// The tokens that were handed out for a task, one for each time.
    fn tokens(&self, task: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("outbox")).unwrap_or_default();
        let lines = text.lines().filter(|line| line.contains(task));
        let tokens = lines.filter_map(|line| line.split_once(' '));
        tokens.map(|(token, _)| token.to_owned()).collect()
    }

    async fn token(&self, task: &str) -> String {
        until("the token", async || self.tokens(task).pop()).await
    }

    /// What was asked of the agents about a task: their names and the attempts.
    fn asked(&self, task: &str) -> Vec<String> {
        let text = fs::read_to_string(self.path().join("asked")).unwrap_or_default();
        let word = format!(" {}", last_word(task));
        let lines = text.lines().filter_map(|line| line.strip_suffix(&word));
        lines.map(str::to_owned).collect()
    }
}

/// A workspace.
struct Place {
    folder: PathBuf,
}

impl Place {
    fn name(&self) -> String {
        self.folder.display().to_string()
    }

    fn lock(&self) -> Workspace {
        Workspace::new(&self.folder)
    }

    /// Somebody who does nothing in the workspace holds its lock.
    fn hold(&self) {
        assert!(self.lock().acquire("somebody").unwrap());
    }

    async fn let_go(&self, client: &Client) {
        let_go(client, &self.name(), "somebody").await.unwrap();
    }

    async fn in_line(&self, request: &str) {
        until(&format!("{request} to be in line"), async || {
            let (_, queue) = self.lock().look().unwrap();
            queue.contains(&request.to_owned()).then_some(())
        })
        .await;
    }

    fn trace(&self) -> Vec<String> {
        let text = fs::read_to_string(self.folder.join("trace")).unwrap_or_default();
        let lines = text.lines().filter(|line| !line.ends_with(" somebody"));
        lines.map(str::to_owned).collect()
    }

    /// Nobody entered before the one before had left; gives who entered, in order.
    #[track_caller]
    fn assert_one_at_a_time(&self) -> Vec<String> {
        let trace = self.trace();
        let mut entered: Vec<String> = Vec::new();
        let mut inside: Option<&str> = None;
        for line in &trace {
            let (what, who) = line.split_once(' ').unwrap();
            // A body that was killed is run again, by the same request: the last one too.
            if what == "leave" {
                let left = inside.take().or(entered.last().map(String::as_str));
                assert_eq!(left, Some(who), "{trace:#?}");
                continue;
            }
            assert_eq!(*inside.get_or_insert(who), who, "{trace:#?}");
            if entered.last().is_none_or(|last| last != who) {
                entered.push(who.to_owned());
            }
        }
        assert_eq!(inside, None, "everybody has left: {trace:#?}");
        assert_eq!(self.lock().look().unwrap(), (None, vec![]));
        entered
    }

    /// The request has ended as if nobody had been killed, and each step is recorded once.
    async fn assert_all_done(&self, run: &RunHandle<Summary>, after: &str) {
        assert_eq!(run.result().await.unwrap().summary, SUMMARY, "{after}");
        let written = fs::read_to_string(self.folder.join("summary")).unwrap();
        assert_eq!(written, SUMMARY, "{after}");
        let history = run.history().await.unwrap();
        let steps = history.iter().filter(|entry| entry.kind == EntryKind::Step);
        let mut steps: Vec<String> = steps.map(|entry| entry.location.to_string()).collect();
        steps.sort();
        assert_eq!(steps, STEPS, "{after}");
        self.assert_one_at_a_time();
    }
}

/// As long as it takes for a test of this file.
fn on_a_runtime(test: impl Future<Output = ()>) {
    scenario::runtime().block_on(test);
    ran_on("PostgreSQL");
}

#[test]
fn killed_at_each_of_nine_boundaries_another_runner_ends_with_the_same_output() {
    if was_runner() {
        return;
    }
    on_a_runtime(async {
        let name = "killed_at_each_of_nine_boundaries_another_runner_ends_with_the_same_output";
        let mut site = Site::new(name).await;
        // One request for each boundary, each in a workspace of its own and made to wait.
        let mut requests = Vec::new();
        for (n, step) in STEPS.into_iter().enumerate() {
            let place = site.workspace(&format!("workspace-{n}"));
            place.hold();
            let run = site.request(&place, &format!("waiter-{n}"), step).await;
            requests.push((n, step, place, run));
        }
        // Two of the steps come before the wait: whoever is held up there is killed first.
        let is_early = |step: &str| ["AcquireWorkspaceLock", "NotifyLockManager"].contains(&step);
        let mut kills = 0;
        for (_, _, _, run) in requests.iter().filter(|(_, step, ..)| is_early(step)) {
            kills += u32::from(site.kill_at_boundary(run.id()).await);
        }
        for (n, _, place, _) in &requests {
            place.in_line(&format!("waiter-{n}")).await;
            place.let_go(&site.client).await;
        }
        for (_, _, _, run) in requests.iter().filter(|(_, step, ..)| !is_early(step)) {
            kills += u32::from(site.kill_at_boundary(run.id()).await);
        }
        assert!(kills >= 2, "{kills} of the runners were killed");
        for (_, step, place, run) in &requests {
            let after = format!("after it was killed at `{step}`");
            place.assert_all_done(run, &after).await;
        }
        // With nothing else under way, only the branch that was not recorded runs again.
        site.until_all_work().await;
        let place = site.workspace("fan-out");
        place.hold();
        let run = site.request(&place, "waiter", "branches/BranchC/work").await;
        place.in_line("waiter").await;
        place.let_go(&site.client).await;
        until("the other branches to be recorded", async || {
            let history = run.history().await.unwrap();
            let done = history.iter().filter(|entry| {
                entry.location.to_string().ends_with("work")
                    && entry.status == EntryStatus::Completed
            });
            (done.count() == 2).then_some(())
        })
        .await;
        assert!(site.kill_at_boundary(run.id()).await);
        place.assert_all_done(&run, "after it was killed in the fan-out").await;
        let trace = place.trace();
        let count = |what: &str| trace.iter().filter(|line| line.starts_with(what)).count();
        let counts = ["enter", "BranchA", "BranchB", "BranchC", "leave"].map(count);
        assert_eq!(counts, [1, 1, 1, 2, 1], "{trace:?}");
    });
}

#[test]
fn with_three_runners_there_is_never_more_than_one_in_the_workspace() {
    if was_runner() {
        return;
    }
    on_a_runtime(async {
        let name = "with_three_runners_there_is_never_more_than_one_in_the_workspace";
        let mut site = Site::new(name).await;
        let place = site.workspace("workspace");
        place.hold();
        let mut requests = Vec::new();
        for n in 0..8 {
            // One of them dies inside.
            let held_up = if n == 3 { "ReadInputs" } else { "" };
            let request = format!("request-{n}");
            let run = site.request(&place, &request, held_up).await;
            place.in_line(&request).await;
            requests.push(run);
        }
        for run in &requests {
            let info = until_status(run, RunStatus::Sleeping).await;
            assert_eq!(info.waiting.as_deref(), Some("deferred `WorkspaceLock`"));
        }
        let again = site.request(&place, "request-5", "").await;
        assert!(again.attached() && again.id() == requests[5].id());
        let given_up = requests.remove(6);
        assert!(given_up.cancel().with_rollback().await.unwrap());
        until_status(&given_up, RunStatus::Cancelled).await;
        let (_, queue) = place.lock().look().unwrap();
        assert!(!queue.contains(&"request-6".to_owned()), "{queue:?}");
        place.let_go(&site.client).await;
        assert!(site.kill_at_boundary(requests[3].id()).await);
        for run in &requests {
            assert_eq!(run.result().await.unwrap().summary, SUMMARY);
        }
        let in_turn: Vec<String> = [0, 1, 2, 3, 4, 5, 7].map(|n| format!("request-{n}")).into();
        assert_eq!(place.assert_one_at_a_time(), in_turn);

        // A branch that fails lets the next one in.
        let place = site.workspace("unreadable");
        place.hold();
        let bad = place.folder.join("c.txt");
        fs::write(&bad, "unreadable\n").unwrap();
        let first = site.request(&place, "first", "").await;
        place.in_line("first").await;
        let next = site.request(&place, "next", "ReadInputs").await;
        place.in_line("next").await;
        place.let_go(&site.client).await;
        let error = first.result().await.unwrap_err();
        let failure = error.failure().expect("it failed");
        let join: JoinError = failure.details().expect("what has failed, as a value");
        let text = format!("{join:?}");
        let named = text.contains("BranchB") && text.contains("unreadable");
        assert!(named, "{text}");
        // The next one had read the same before it was killed.
        until("the next to be inside", async || {
            site.path().join(format!("{}.at", next.id())).exists().then_some(())
        })
        .await;
        fs::remove_file(&bad).unwrap();
        assert!(site.kill_at_boundary(next.id()).await);
        assert_eq!(next.result().await.unwrap().summary, SUMMARY);
        assert_eq!(place.assert_one_at_a_time(), ["first", "next"]);
    });
}

async fn approve(client: &Client, token: &str) -> Result<Resolved, ClientError> {
    let approval = Approval { notes: "shorter".to_owned() };
    client.deferred(REVIEW_GATE, token).resolve(&approval).await
}

const ONCE_EACH: [&str; 3] = ["DraftAgent 1", "RefineAgent 1", "FinalizeAgent 1"];

#[test]
fn a_review_counts_before_during_and_after_the_wait_and_the_first_one_counts() {
    if was_runner() {
        return;
    }
    on_a_runtime(async {
        let name = "a_review_counts_before_during_and_after_the_wait_and_the_first_one_counts";
        let site = Site::new(name).await;
        let client = &site.client;
        // As soon as the token is out, which is before the wait is recorded as often as not.
        for n in 0..6 {
            let task = format!("early-{n}");
            let run = site.review(&task, None).await;
            let token = site.token(&task).await;
            assert_eq!(approve(client, &token).await.unwrap(), Resolved::First);
            let expected = FINAL.replace("a home page", &task);
            assert_eq!(run.result().await.unwrap(), expected);
        }
        // While it waits; what comes after that has no effect.
        let run = site.review("a home page", None).await;
        let token = site.token("a home page").await;
        let info = until_status(&run, RunStatus::Sleeping).await;
        assert_eq!(info.waiting.as_deref(), Some("deferred `ReviewGate`"));
        let listed = client.list().workflow("agent_review");
        let listed = listed.status(RunStatus::Sleeping).await.unwrap().runs;
        assert_eq!(listed.len(), 1);
        assert_eq!(listed[0].waiting.as_deref(), Some("deferred `ReviewGate`"));
        assert_eq!(approve(client, &token).await.unwrap(), Resolved::First);
        let rejection = Rejection { notes: "too late".to_owned() };
        let second = client.deferred(REVIEW_GATE, &token).reject(&rejection);
        match second.await {
            Ok(Resolved::Already { .. }) | Err(ClientError::Finished { .. }) => {}
            other => panic!("{other:?}"),
        }
        assert_eq!(run.result().await.unwrap(), FINAL);
        assert_eq!(site.asked("page"), ONCE_EACH);
        let late = approve(client, &token).await.unwrap_err();
        assert!(matches!(late, ClientError::Finished { .. }), "{late}");
        let bad = approve(client, "no token").await.unwrap_err();
        assert!(matches!(bad, ClientError::MalformedToken), "{bad}");
        let again = site.review("a home page", None).await;
        assert!(again.attached(), "the task is the key");

        let rejected = site.review("dull", None).await;
        let gate = client.deferred(REVIEW_GATE, site.token("dull").await);
        gate.reject(&rejection).await.unwrap();
        assert_eq!(rejected.result().await.unwrap(), "Rejected: too late");
        assert_eq!(site.asked("dull"), ONCE_EACH[..2]);

        let silent = site.review("silence", None).await;
        let error = silent.result().await.unwrap_err();
        let missing = AgentError::MissingResult { agent: "DraftAgent".to_owned(), attempt: 3 };
        let failure = error.failure().expect("it failed");
        assert_eq!(failure.details::<AgentError>(), Some(missing));
        let attempts = ["DraftAgent 1", "DraftAgent 2", "DraftAgent 3"];
        assert_eq!(site.asked("silence"), attempts);

        let hurried = site.review("hurried", Some(1)).await;
        let expired = hurried.result().await.unwrap();
        assert_eq!(expired, "Expired: nobody has reviewed it");
        let token = site.token("hurried").await;
        let late = approve(client, &token).await.unwrap_err();
        assert!(matches!(late, ClientError::Finished { .. }), "{late}");

        let given_up = site.review("given-up", None).await;
        let token = site.token("given-up").await;
        assert!(given_up.cancel().await.unwrap());
        until_status(&given_up, RunStatus::Cancelled).await;
        let late = approve(client, &token).await.unwrap_err();
        assert!(matches!(late, ClientError::Finished { .. }), "{late}");
    });
}

#[test]
fn what_is_resolved_while_no_runner_is_up_is_applied_by_the_next() {
    if was_runner() {
        return;
    }
    on_a_runtime(async {
        let name = "what_is_resolved_while_no_runner_is_up_is_applied_by_the_next";
        let mut site = Site::new(name).await;
        let place = site.workspace("workspace");
        place.hold();
        let request = site.request(&place, "waiter", "").await;
        place.in_line("waiter").await;
        until_status(&request, RunStatus::Sleeping).await;
        let waiting = site.review("a home page", None).await;
        let token = site.token("a home page").await;
        until_status(&waiting, RunStatus::Sleeping).await;
        // One whose reviewer was just told: whether that was recorded or not, the token is the same.
        let told = site.review("told", None).await;
        site.token("told").await;
        site.kill_all();
        // Nobody is up now: the owners were killed while they waited.
        place.let_go(&site.client).await;
        assert_eq!(approve(&site.client, &token).await.unwrap(), Resolved::First);
        let listed = site.client.list().workflow("agent_review").await.unwrap();
        assert_eq!(listed.runs.len(), 2);
        site.start_runner();
        place.assert_all_done(&request, "after all were killed").await;
        assert_eq!(waiting.result().await.unwrap(), FINAL);
        // The code has run twice, the agents once.
        assert_eq!(site.asked("page"), ONCE_EACH);
        until_status(&told, RunStatus::Sleeping).await;
        let tokens = site.tokens("told");
        let different: HashSet<&String> = tokens.iter().collect();
        assert!(different.len() == 1 && tokens.len() <= 2, "{tokens:?}");
        approve(&site.client, &tokens[0]).await.unwrap();
        assert_eq!(told.result().await.unwrap(), FINAL.replace("a home page", "told"));
        assert_eq!(site.asked("told"), ONCE_EACH);
    });
}

#[tokio::test(flavor = "multi_thread")]
async fn a_review_waits_for_weeks_over_restarts() {
    let url = everstep_pg::fresh_url().unwrap_or_else(|error| panic!("{error}"));
    let folder = tempfile::tempdir().unwrap();
    let clock = VirtualClock::new();
    let start = async || {
        let mut options = PostgresOptions::default();
        options.database_time = false;
        let store = Arc::new(PostgresStore::open_with(&url, options).unwrap());
        let builder = Engine::on(store).clock(clock.clone());
        builder.provide(outside(folder.path())).register(agent_review).start().await.unwrap()
    };
    let first = start().await;
    let task = Task { task: "a home page".to_owned(), patience: None };
    let run = first.client().start(agent_review, task).await.unwrap();
    until_status(&run, RunStatus::Sleeping).await;
    first.shutdown().await;
    for _ in 0..3 {
        clock.advance(days(7));
        let engine = start().await;
        let run = engine.client().run::<String>(run.id());
        assert_eq!(run.status().await.unwrap(), RunStatus::Sleeping);
        engine.shutdown().await;
    }
    let last = start().await;
    let outbox = fs::read_to_string(folder.path().join("outbox")).unwrap();
    let (token, _) = outbox.split_once(' ').unwrap();
    approve(&last.client(), token).await.unwrap();
    let run = last.client().run::<String>(run.id());
    assert_eq!(run.result().await.unwrap(), FINAL);
    last.shutdown().await;
    ran_on("PostgreSQL");
}
