//! Work queues: each item is worked on by processes that are killed, and whoever waits for it is
//! told once.
//!
//! A worker notes every attempt and gives a number that no other has. Whoever was told must have
//! been told one of those numbers, and no attempt may begin after that.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
    time::Duration,
};

use everstep::{Client, EngineBuilder, ItemError, Job, Queue, Worker, minutes, prelude::*};
use serde::{Deserialize, Serialize};

use super::{Outside, pause, until_ok};
use crate::{
    Problem,
    bodies::{Bodies, Trace},
    ledger::Ledger,
    random,
};

/// A worker that dies has made an attempt, so there are many.
const TASKS: Queue<Task, Given> = Queue::new("tasks")
    .attempts(1_000)
    .backoff(Retry::fixed(1_000, Duration::from_millis(5)))
    .visibility(Duration::from_millis(1_500));

/// How many items each process works on at once.
const AT_ONCE: usize = 4;

/// How many items a run puts in and waits for.
const ITEMS: u64 = 4;

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    n: u64,
    slot: u64,
    fails: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Given {
    slot: u64,
    value: u64,
}

/// What somebody was told.
pub(crate) struct Told {
    n: u64,
    given: Vec<Given>,
}

pub(super) fn register(builder: EngineBuilder, bodies: &Bodies) -> EngineBuilder {
    let bodies = bodies.clone();
    builder
        .register(delegates)
        .work(TASKS, AT_ONCE, move |job, task| handle(bodies.clone(), job, task))
}

/// Works in a process that has no engine.
pub(crate) fn work(client: &Client, bodies: &Bodies) -> Result<Worker, Problem> {
    let bodies = bodies.clone();
    Ok(client.work(TASKS, AT_ONCE, move |job, task| handle(bodies.clone(), job, task))?)
}

async fn handle(bodies: Bodies, job: Job, task: Task) -> Result<Given> {
    let (n, slot, value) = (task.n, task.slot, random::any());
    let process = std::process::id();
    bodies.note(&format!("task\tbegun\t{n}\t{slot}\t{value}\t{process}"))?;
    tokio::time::sleep(Duration::from_micros(random::any() % 20_000)).await;
    if job.attempt() == 1 && value.is_multiple_of(4) {
        return Err(Error::msg("by chance"));
    }
    let given = Given { slot, value };
    match task.fails {
        true => Err(Error::fatal("on purpose").with_details(&given)),
        false => Ok(given),
    }
}

#[workflow]
pub(crate) async fn delegates(ctx: Ctx, n: u64) -> Result<Vec<Given>> {
    let trace = Trace::new(&ctx);
    let mut told = Vec::new();
    for slot in 0..ITEMS {
        let fails = slot == 2;
        let done = ctx.enqueue(TASKS, &Task { n, slot, fails }).await;
        let given = match done {
            Ok(given) => given,
            Err(error) => match error.details::<Given>() {
                Some(given) if fails => given,
                _ => return Err(error),
            },
        };
        trace.mix(given.value);
        let note = format!("task\ttold\t{n}\t{slot}\t{}\t", given.value);
        trace.note(&ctx, "told", note).await?;
        told.push(given);
    }
    trace.end(&ctx)?;
    Ok(told)
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("tasks", part);
    while !outside.stop.get() {
        let n = outside.number();
        let told = |given: Vec<Given>| outside.tasks.borrow_mut().push(Told { n, given });
        match n % 3 {
            // From outside.
            0 => {
                let task = Task { n, slot: 0, fails: false };
                let key = format!("task-{n}");
                let item = until_ok(async || {
                    let item = outside.client.enqueue(TASKS, &task).dedupe(&key);
                    item.keep(minutes(10)).await
                })
                .await;
                match item.result().await {
                    Ok(given) => told(vec![given]),
                    Err(ItemError::Client(error)) => eprintln!("item {n}: {error:?}"),
                    Err(error) => outside.broken("queue_lost", format!("item {n}: {error:?}")),
                }
            }
            _ => {
                let run = outside.start(delegates, "delegates", n, n).await;
                match outside.result(&run).await {
                    Some(given) if given.len() as u64 == ITEMS => told(given),
                    other => outside.broken("queue_lost", format!("run {n} was told {other:?}")),
                }
            }
        }
        pause(&random, 0, 50).await;
    }
}

pub(super) fn check(outside: &Outside, ledger: &Ledger) -> Result<(), Problem> {
    let mut values: HashMap<(u64, u64), HashSet<u64>> = HashMap::new();
    let mut noted: HashMap<(u64, u64), u64> = HashMap::new();
    // A process that was stopped may have been handed an item before, and begin it after.
    let stopped = ledger.notes("stopped");
    for note in ledger.notes("task") {
        let [what, n, slot, value, process] = &note[..] else {
            continue;
        };
        let (item, value) = ((n.parse()?, slot.parse()?), value.parse()?);
        match (what.as_str(), noted.get(&item)) {
            ("begun", None) => {
                values.entry(item).or_default().insert(value);
            }
            ("begun", Some(_)) if stopped.iter().any(|other| other[0] == *process) => {}
            ("begun", Some(_)) => {
                let what = format!("item {item:?} was begun after its waiter was told");
                outside.broken("queue_twice", what);
            }
            (_, Some(before)) if *before != value => {
                let what = format!("the waiter of item {item:?} was told {before} and {value}");
                outside.broken("queue_twice", what);
            }
            _ => _ = noted.insert(item, value),
        }
    }
    for Told { n, given } in outside.tasks.take() {
        outside.count("queue_items", given.len() as u64);
        for Given { slot, value } in given {
            let item = (n, slot);
            if !values.get(&item).is_some_and(|values| values.contains(&value)) {
                let what = format!("the waiter of item {item:?} was told {value}, from nobody");
                outside.broken("queue_lost", what);
            }
            if noted.get(&item).is_some_and(|noted| *noted != value) {
                let what = format!("the waiter of item {item:?} was told {value} at last");
                outside.broken("queue_twice", what);
            }
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::{super::tests, *};

    fn counted(notes: &[&str], value: u64) -> (u64, u64) {
        let outside = tests::outside();
        let given = vec![Given { slot: 0, value }];
        outside.tasks.borrow_mut().push(Told { n: 1, given });
        check(&outside, &tests::ledger(notes)).expect("the notes can be read");
        (outside.counted("queue_lost"), outside.counted("queue_twice"))
    }

    #[test]
    fn waiter_is_told_once_what_a_worker_gave() {
        let begun = ["task begun 1 0 7 1", "task begun 1 0 8 2"];
        let after = |then: &[&str], value| counted(&[&begun, then].concat(), value);
        assert_eq!(after(&["task told 1 0 8 "], 8), (0, 0));
        assert_eq!(after(&["task told 1 0 8 "], 7), (0, 1));
        assert_eq!(after(&["task told 1 0 9 "], 9), (1, 0));
        let again = ["task told 1 0 8 ", "task begun 1 0 9 3"];
        assert_eq!(after(&again, 8), (0, 1));
        let by_stopped = [&again[..], &["stopped 3"]].concat();
        assert_eq!(after(&by_stopped, 8), (0, 0));
    }
}
