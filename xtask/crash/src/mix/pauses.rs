//! Runs that wait are paused and resumed: in line for a limit, for events, queue items, promises and
//! children. They must go on as if nothing had been.

use std::rc::Rc;

use everstep::{ClientError, RunHandle, RunId, RunStatus};

use super::{Outside, ask, pause};

/// The workflows whose runs wait for something that another gives.
const WAITING: [&str; 6] = ["visits", "hears", "takes", "delegates", "hopes", "family"];

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
        let status = ask(async || run.status().await).await;
        if !matches!(status, Ok(RunStatus::Sleeping)) || !control(&outside, &run, true).await {
            continue;
        }
        outside.paused_in_line.set(outside.paused_in_line.get() + 1);
        // Mostly at once: then the owner is in the middle of looking.
        match random.next() % 3 {
            0 => pause(&random, 5, 60).await,
            _ => pause(&random, 0, 4).await,
        }
        control(&outside, &run, false).await;
    }
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
