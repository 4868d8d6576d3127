//! The work queue of a life: items that programs put in, and the handler that engines run for each.

use std::{fmt, sync::Arc, time::Duration};

use everstep::{
    Client, EngineBuilder, EnqueueItem, Job, Queue, RunId, Timestamp,
    prelude::*,
    testing::{
        internal,
        simulation::{self, Rng},
    },
};
use serde::{Deserialize, Serialize};

use super::{
    bodies::Done,
    limits::OF_STEPS,
    program::{Op, Program},
};
use crate::oracle::{
    ledger::{Ledger, Place},
    queues::Handling,
};

/// What is put into the queue. Whose it is, and how its handler goes.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    /// None if a client has put it in.
    run: Option<String>,
    generation: u32,
    /// Where in the run, or which one of the clients.
    at: String,
    lasts: Duration,
    fails: u32,
}

impl Task {
    /// The operation that has put it in.
    pub(crate) fn place(&self) -> Place {
        Place { run: self.run(), generation: self.generation, at: self.at.clone() }
    }

    fn run(&self) -> RunId {
        match &self.run {
            Some(run) => run.parse().expect("the id of a run, as text"),
            None => of_clients(),
        }
    }
}

/// In place of the run of an item that a client has put in.
fn of_clients() -> RunId {
    internal::RunIds::new(0).next(Timestamp::from_millis(0))
}

/// An item that a client puts in.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ClientItem {
    /// Its own, or that of others with the same number for a dedupe key.
    pub(crate) name: String,
    pub(crate) dedupe: bool,
    pub(crate) op: EnqueueOp,
}

impl ClientItem {
    pub(crate) fn place(&self) -> Place {
        Place { run: of_clients(), generation: 0, at: self.name.clone() }
    }

    /// Puts it in.
    pub(crate) fn put(&self, queue: QueuePlan, client: &Client) -> EnqueueItem<Done> {
        let (lasts, fails) = (self.op.lasts, self.op.fails);
        let task = Task { run: None, generation: 0, at: self.name.clone(), lasts, fails };
        let item = client.enqueue(queue.queue(), &task).priority(self.op.priority);
        let item = match self.op.delay.is_zero() {
            true => item,
            false => item.delay(self.op.delay),
        };
        match self.dedupe {
            true => item.dedupe(&self.name),
            false => item,
        }
    }
}

/// An operation that puts in an item.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EnqueueOp {
    pub(crate) id: u32,
    /// How long its handler takes.
    lasts: Duration,
    /// So many attempts fail before one does not.
    fails: u32,
    priority: i32,
    delay: Duration,
    /// Nobody waits for it.
    pub(crate) is_detached: bool,
    /// How long it is waited for.
    timeout: Option<Duration>,
    /// How long it can take if no process fails.
    pub(crate) most: Duration,
}

/// How the queue of a life is worked on.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
pub(crate) struct QueuePlan {
    attempts: u32,
    visibility: Duration,
    /// The number of the limit that it is under.
    limit: Option<usize>,
}

/// How long an item waits after a failed attempt.
const BACKOFF: Duration = Duration::from_millis(700);

impl QueuePlan {
    /// Some lives have a queue: in them, programs put items in.
    pub(crate) fn draw(
        rng: &mut Rng,
        programs: &mut [Program],
        lease: Duration,
    ) -> Option<QueuePlan> {
        if rng.below(3) > 0 {
            return None;
        }
        let plan = QueuePlan {
            attempts: 1 + rng.below(5) as u32,
            visibility: Duration::from_millis(800) + rng.up_to(lease * 2),
            limit: (rng.below(4) == 0).then(|| rng.below(OF_STEPS.len() as u64) as usize),
        };
        for program in programs {
            for _ in 0..rng.below(4) {
                let op = Op::Enqueue(plan.draw_op(rng, program.next_id(), lease));
                program.insert(rng, op);
            }
        }
        Some(plan)
    }

    /// The items that a client puts in.
    pub(crate) fn draw_items(
        &self,
        rng: &mut Rng,
        client: usize,
        lease: Duration,
    ) -> Vec<ClientItem> {
        let count = rng.below(4);
        let item = |number: u64| {
            let dedupe = rng.below(2) == 0;
            let name = match dedupe {
                true => format!("item of all {}", rng.below(2)),
                false => format!("item of client-{client} {number}"),
            };
            ClientItem { name, dedupe, op: self.draw_op(rng, 0, lease) }
        };
        (0..count).map(item).collect()
    }

    fn draw_op(&self, rng: &mut Rng, id: u32, lease: Duration) -> EnqueueOp {
        let mut time = |most: Duration| match rng.below(4) {
            0 | 1 => Duration::ZERO,
            2 => Duration::from_millis(rng.below(100)),
            _ => Duration::from_millis(rng.up_to(most).as_millis() as u64),
        };
        let (lasts, delay) = (time(lease * 3), time(lease));
        let fails = match rng.below(4) {
            0 => rng.below(u64::from(self.attempts) + 1) as u32,
            _ => 0,
        };
        let timeout = (rng.below(6) == 0).then(|| rng.up_to(lease * 2));
        EnqueueOp {
            id,
            lasts,
            fails,
            priority: rng.below(3) as i32,
            delay,
            is_detached: rng.below(3) == 0,
            timeout,
            most: delay + (lasts + BACKOFF + self.visibility) * self.attempts,
        }
    }

    fn queue(self) -> Queue<Task, Done> {
        let queue = Queue::new("tasks").attempts(self.attempts).visibility(self.visibility);
        let queue = queue.backoff(Retry::fixed(self.attempts, BACKOFF));
        self.limit.map_or(queue, |limit| queue.limit(OF_STEPS[limit]))
    }

    /// Has an engine work on it.
    pub(crate) fn work(
        self,
        builder: EngineBuilder,
        concurrency: usize,
        ledger: Arc<Ledger>,
        process: String,
    ) -> EngineBuilder {
        builder.work(self.queue(), concurrency, move |job, task| {
            handle(ledger.clone(), process.clone(), job, task)
        })
    }
}

/// What the operation of a run makes of its item.
pub(crate) enum Enqueued {
    Left,
    Done(Done),
    Failed,
    TimedOut,
}

impl EnqueueOp {
    pub(crate) async fn perform(
        &self,
        queue: QueuePlan,
        ctx: &Ctx,
        at: String,
    ) -> Result<Enqueued> {
        let task = Task {
            run: Some(ctx.run_id().to_string()),
            generation: ctx.generation(),
            at,
            lasts: self.lasts,
            fails: self.fails,
        };
        let call = ctx.enqueue(queue.queue(), &task).priority(self.priority);
        let call = match self.delay.is_zero() {
            true => call,
            false => call.delay(self.delay),
        };
        if self.is_detached {
            call.detach().await?;
            return Ok(Enqueued::Left);
        }
        let result = match self.timeout {
            None => call.await.map(Some),
            Some(timeout) => call.timeout(timeout).await,
        };
        Ok(match result {
            Ok(Some(done)) => Enqueued::Done(done),
            Ok(None) => Enqueued::TimedOut,
            Err(_) => Enqueued::Failed,
        })
    }
}

/// The handler of items.
async fn handle(ledger: Arc<Ledger>, process: String, job: Job, task: Task) -> Result<Done> {
    let handling = Handling::begin(ledger, process, &job, &task);
    simulation::point("in a handler");
    if !task.lasts.is_zero() {
        simulation::pause(task.lasts).await;
        handling.goes_on();
    }
    if job.attempt() <= task.fails {
        return Err(Error::msg(format!("attempt {} fails", job.attempt())));
    }
    let value = simulation::random();
    handling.end(value);
    Ok(Done { at: task.at, value })
}

impl fmt::Display for EnqueueOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "enqueue-{} {:?}, priority {}", self.id, self.lasts, self.priority)?;
        if self.fails > 0 {
            write!(f, ", fails {}", self.fails)?;
        }
        if !self.delay.is_zero() {
            write!(f, ", in {:?}", self.delay)?;
        }
        if self.is_detached {
            write!(f, ", detached")?;
        }
        if let Some(timeout) = self.timeout {
            write!(f, ", for {timeout:?}")?;
        }
        Ok(())
    }
}
