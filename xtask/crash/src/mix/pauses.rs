//! Runs that wait are paused and resumed: in line for a limit, for events, queue items, promises and
//! children. They must go on as if nothing had been.

use std::rc::Rc;

use everstep::{ClientError, RunHandle, RunId, RunInfo, RunStatus};

use super::{Outside, ask, pause};

/// The workflows whose runs wait for something that another gives.
const WAITING: [&str; 6] = ["visits", "hears", "takes", "delegates", "hopes", "family"];

/// What is counted of the runs that were paused, and how what they waited for begins in their rows.
const KINDS: [(&str, &str); 5] = [
    ("paused_on_limit", "limit "),
    ("paused_on_event", "event "),
    ("paused_on_queue", "queue item "),
    ("paused_on_deferred", "deferred "),
    ("paused_on_child", "child "),
];

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("pauses", part);
    while !outside.stop.get() {
        pause(&random, 20, 120).await;
        let waiting: Vec<RunId> = {
            let live = outside.live.borrow();
            let waiting = live.iter().filter(|(_, name)| WAITING.contains(name));
            waiting.map(|(run, _)| *run).collect()
        };
        if waiting.is_empty() {
            continue;
        }
        let run: RunHandle<()> = {
            let place = random.next() as usize % waiting.len();
            outside.client.run(waiting[place])
        };
        let Ok(info) = ask(async || run.info().await).await else {
            continue;
        };
        if info.status != RunStatus::Sleeping || !control(&outside, &run, true).await {
            continue;
        }
        for counter in kinds_of(&info) {
            outside.count(counter, 1);
        }
        // Mostly at once: then the owner is in the middle of looking.
        match random.next() % 3 {
            0 => pause(&random, 5, 60).await,
            _ => pause(&random, 0, 4).await,
        }
        control(&outside, &run, false).await;
    }
}

/// The counters of what a run waits for.
fn kinds_of(info: &RunInfo) -> impl Iterator<Item = &'static str> {
    let waits = || info.waiting.iter().flat_map(|waiting| waiting.split("; "));
    let kinds = KINDS.iter();
    let kinds = kinds.filter(move |(_, begins)| waits().any(|wait| wait.starts_with(begins)));
    kinds.map(|(counter, _)| *counter)
}

/// Pauses or resumes a run; whether it was one that could be.
async fn control(outside: &Outside, run: &RunHandle<()>, paused: bool) -> bool {
    let done = ask(async || match paused {
        true => run.pause().await.map(drop),
        false => run.resume().await,
    });
    match done.await {
        Ok(()) => true,
        // It has ended meanwhile; or the answer to the first go was lost.
        Err(ClientError::WrongStatus { .. } | ClientError::Finished { .. }) => false,
        Err(error) => {
            let act = if paused { "paused" } else { "resumed" };
            outside.wrong(format!("run {} could not be {act}: {error:?}", run.id()));
            false
        }
    }
}
