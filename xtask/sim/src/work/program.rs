//! Programs: trees of operations, as data.

use std::{fmt, time::Duration};

use everstep::testing::simulation::Rng;
use serde::{Deserialize, Serialize};

use super::{limits::Limited, messages::HearOp, queues::EnqueueOp, streams::ShowOp};

/// What a run does, from start to end.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Program {
    /// The version of the workflow that its run is started with.
    pub(crate) version: u32,
    pub(crate) ops: Vec<Op>,
    pub(crate) end: End,
    /// How many generations perform it, one after another.
    pub(crate) generations: u32,
}

/// How a program ends by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum End {
    Completes,
    Fails,
    /// Its last step fails, in so many attempts of the whole run.
    FailsInStep {
        attempts: u32,
    },
}

/// One operation. Its `id` is its own in the whole program, and names it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Op {
    Step(StepOp),
    Sleep {
        id: u32,
        lasts: Duration,
    },
    /// Waits for a message; without a timeout one is sent in the end.
    Listen {
        id: u32,
        channel: u32,
        timeout: Option<Duration>,
    },
    /// Sends a message to the run of another program.
    Send {
        id: u32,
        to: usize,
        channel: u32,
    },
    /// Waits for an event; without a timeout one is published in the end.
    Event(EventOp),
    /// Publishes one.
    Publish {
        id: u32,
        event: usize,
        key: Option<u32>,
    },
    /// Makes a promise that is kept or broken from outside.
    Deferred(DeferredOp),
    /// Starts a child.
    Child(ChildOp),
    /// Waits for the end of the run of another program.
    Finished {
        id: u32,
        of: usize,
        timeout: Option<Duration>,
    },
    /// Performs parts.
    Parts {
        id: u32,
        how: How,
        parts: Vec<Vec<Op>>,
    },
    /// Puts an item into the queue of the life.
    Enqueue(EnqueueOp),
    /// Gives something out for clients to read.
    Show(ShowOp),
    /// Waits for messages of several names, for several at once, or for ones that it replies to.
    Hear(HearOp),
    /// Waits for its turn under a rate, for each key on its own.
    Turn {
        id: u32,
        key: u64,
    },
    /// A step that the code makes until it is changed ([`crate::plan::Plan::changes_at`]). Nothing depends
    /// on its result.
    Removed(StepOp),
}

/// A child, and what it performs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct ChildOp {
    pub(crate) id: u32,
    pub(crate) program: Program,
    pub(crate) care: Care,
    /// It goes on when its parent gives it up.
    pub(crate) leave: bool,
    /// The number of its key: others have children with the same key, which are one run.
    #[serde(default)]
    pub(crate) key: Option<u32>,
}

/// What a parent does about its child.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Care {
    /// It waits for its end.
    Awaited,
    /// It only starts it.
    Detached,
    /// It gives it up after so long.
    GivenUp(Duration),
}

/// A wait for an event.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct EventOp {
    pub(crate) id: u32,
    pub(crate) event: usize,
    /// Only those that were published with this key.
    pub(crate) key: Option<u32>,
    pub(crate) timeout: Option<Duration>,
}

/// A deferred: its token is handed out, then it is looked at and waited for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct DeferredOp {
    pub(crate) id: u32,
    pub(crate) settler: Settler,
    /// Whether the settler breaks it.
    pub(crate) rejects: bool,
    /// How often it is only looked at.
    pub(crate) looks: u32,
    /// The time limits of waits, one after another.
    pub(crate) timeouts: Vec<Duration>,
    /// Whether it is waited for without a limit after that; it is settled in the end.
    pub(crate) waits: bool,
}

/// Who settles a deferred, besides clients.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Settler {
    /// The body that has its token.
    Body,
    /// A thread that the body starts, after so long.
    Later(Duration),
    /// Nobody else.
    Clients,
}

/// How the parts of an operation are performed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum How {
    /// `ctx.join` of branches.
    Join,
    /// `join` or `join_all` of plain futures.
    PlainJoin,
    /// A `FuturesUnordered` of plain futures.
    Unordered,
    /// `select!` of plain futures: the first that ends wins, the others are dropped.
    Select,
    /// `ctx.map` over the parts, so many at a time.
    Map { concurrency: usize },
    /// `ctx.race` of branches; the first one may fail at its end.
    Race { first_fails: bool },
    /// `ctx.attempt` of the only part, which may fail at its end.
    Attempt { fails: bool },
    /// `ctx.version` lets the only part in, once the code is changed
    /// ([`crate::plan::Plan::changes_at`]).
    Gate,
    /// `ctx.repeat` of the only part.
    Repeat { times: u64, commit_every: u64, history_every: u64, history_keep: u64 },
}

impl How {
    pub(crate) fn name(self) -> &'static str {
        match self {
            How::Join => "join",
            How::PlainJoin => "plain-join",
            How::Unordered => "unordered",
            How::Select => "select",
            How::Map { .. } => "map",
            How::Race { .. } => "race",
            How::Attempt { .. } => "attempt",
            How::Gate => "gate",
            How::Repeat { .. } => "repeat",
        }
    }

    /// How often the parts are performed.
    fn times(self) -> u64 {
        match self {
            How::Repeat { times, .. } => times,
            _ => 1,
        }
    }
}

/// A step and its body.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct StepOp {
    pub(crate) id: u32,
    pub(crate) body: Body,
    /// How long the body takes.
    pub(crate) lasts: Duration,
    /// Its result rides on the next write.
    pub(crate) ephemeral: bool,
    /// So many attempts fail before one does not.
    pub(crate) fails: u32,
    /// How many attempts there are; fewer than fail, and it fails for good.
    pub(crate) attempts: u32,
    /// How long it waits between two.
    pub(crate) delay: Duration,
    /// How long an attempt may take; final, or a failed attempt like any other.
    pub(crate) timeout: Option<Duration>,
    pub(crate) retry_on_timeout: bool,
    pub(crate) rollback: bool,
    pub(crate) limit: Option<Limited>,
    /// How many items its body gives to a stream.
    pub(crate) emits: u32,
}

/// Where a body runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) enum Body {
    /// On the engine thread, as a future.
    Async,
    /// On the engine thread, and it blocks it for as long as it takes.
    Clogging,
    Blocking,
    Spawned,
}

/// How long it takes in the end until that comes for which a run waits without a limit.
const FEEDING: Duration = Duration::from_secs(10);

impl StepOp {
    /// A step that completes at once.
    pub(crate) fn plain(id: u32) -> StepOp {
        StepOp {
            id,
            body: Body::Async,
            lasts: Duration::ZERO,
            ephemeral: false,
            fails: 0,
            attempts: 1,
            delay: Duration::ZERO,
            timeout: None,
            retry_on_timeout: false,
            rollback: false,
            limit: None,
            emits: 0,
        }
    }
}

impl Program {
    /// All operations, from the outside in.
    pub(crate) fn all(&self) -> Vec<&Op> {
        let mut all = Vec::new();
        gather(&self.ops, &mut all);
        all
    }

    /// The program of the child that this operation starts, however deep.
    pub(crate) fn child(&self, id: u32) -> Option<&Program> {
        self.all().into_iter().find_map(|op| match op {
            Op::Child(child) if child.id == id => Some(&child.program),
            Op::Child(child) => child.program.child(id),
            _ => None,
        })
    }

    /// Whether it starts a child or waits for the end of another.
    pub(crate) fn waits_for_others(&self) -> bool {
        self.all().iter().any(|op| matches!(op, Op::Child(_) | Op::Finished { .. }))
    }

    /// The children that it starts, but not their children.
    pub(crate) fn children_mut(&mut self) -> Vec<&mut ChildOp> {
        let mut children = Vec::new();
        gather_children(&mut self.ops, &mut children);
        children
    }

    /// The id of an operation that is added to it.
    pub(crate) fn next_id(&self) -> u32 {
        let all = self.all();
        let children = all.iter().filter_map(|op| match op {
            Op::Child(child) => Some(child.program.next_id()),
            _ => None,
        });
        let next = all.iter().map(|op| op.id() + 1).chain(children).max();
        next.unwrap_or(1)
    }

    /// Puts an operation somewhere into it.
    pub(crate) fn insert(&mut self, rng: &mut Rng, op: Op) {
        insert(&mut self.ops, rng, op);
    }

    /// All steps, but not those of children.
    pub(crate) fn steps_mut(&mut self) -> Vec<&mut StepOp> {
        let mut steps = Vec::new();
        gather_steps(&mut self.ops, &mut steps);
        steps
    }

    /// How long it can take by itself, if no process fails.
    pub(crate) fn lasts_at_most(&self) -> Duration {
        let once: Duration = self.ops.iter().map(Op::lasts_at_most).sum();
        once * self.generations
    }
}

fn gather<'a>(ops: &'a [Op], all: &mut Vec<&'a Op>) {
    for op in ops {
        all.push(op);
        op.parts().iter().for_each(|part| gather(part, all));
    }
}

fn insert(ops: &mut Vec<Op>, rng: &mut Rng, op: Op) {
    let at = rng.below(ops.len() as u64 + 1) as usize;
    // Not into a loop: a replay jumps over what its earlier iterations have done.
    if let Some(Op::Parts { how, parts, .. }) = ops.get_mut(at)
        && !matches!(how, How::Repeat { .. })
        && rng.below(2) == 0
    {
        let part = rng.below(parts.len() as u64) as usize;
        return insert(&mut parts[part], rng, op);
    }
    ops.insert(at, op);
}

fn gather_steps<'a>(ops: &'a mut [Op], steps: &mut Vec<&'a mut StepOp>) {
    for op in ops {
        match op {
            Op::Step(step) => steps.push(step),
            Op::Parts { parts, .. } => {
                parts.iter_mut().for_each(|part| gather_steps(part, steps));
            }
            _ => {}
        }
    }
}

fn gather_children<'a>(ops: &'a mut [Op], children: &mut Vec<&'a mut ChildOp>) {
    for op in ops {
        match op {
            Op::Child(child) => children.push(child),
            Op::Parts { parts, .. } => {
                parts.iter_mut().for_each(|part| gather_children(part, children));
            }
            _ => {}
        }
    }
}

impl Op {
    /// What is inside of it.
    fn parts(&self) -> &[Vec<Op>] {
        match self {
            Op::Parts { parts, .. } => parts,
            _ => &[],
        }
    }

    /// Whether it ends in the poll in which the code takes a completion of it.
    pub(crate) fn takes_completion(&self) -> bool {
        match self {
            Op::Step(_) | Op::Sleep { .. } | Op::Listen { .. } | Op::Hear(_) => true,
            Op::Send { .. } | Op::Event(_) | Op::Publish { .. } | Op::Turn { .. } => true,
            // Some end without one.
            Op::Deferred(_) | Op::Child(_) | Op::Finished { .. } | Op::Enqueue(_) => false,
            Op::Parts { .. } | Op::Show(_) | Op::Removed(_) => false,
        }
    }

    fn id(&self) -> u32 {
        match self {
            Op::Step(step) | Op::Removed(step) => step.id,
            Op::Hear(hear) => hear.id,
            Op::Enqueue(enqueue) => enqueue.id,
            Op::Show(show) => show.id,
            Op::Sleep { id, .. }
            | Op::Listen { id, .. }
            | Op::Send { id, .. }
            | Op::Publish { id, .. }
            | Op::Finished { id, .. }
            | Op::Turn { id, .. }
            | Op::Parts { id, .. } => *id,
            Op::Event(event) => event.id,
            Op::Deferred(deferred) => deferred.id,
            Op::Child(child) => child.id,
        }
    }

    /// How long it can take by itself, with its parts.
    fn lasts_at_most(&self) -> Duration {
        match self {
            Op::Step(step) | Op::Removed(step) => (step.lasts + step.delay) * step.attempts,
            Op::Hear(hear) => hear.timeout.unwrap_or(FEEDING),
            // Many may be before it.
            Op::Turn { .. } => FEEDING,
            Op::Sleep { lasts, .. } => *lasts,
            Op::Listen { timeout, .. } => timeout.unwrap_or(FEEDING),
            Op::Event(event) => event.timeout.unwrap_or(FEEDING),
            Op::Deferred(deferred) => deferred.timeouts.iter().sum::<Duration>() + FEEDING,
            Op::Child(child) => child.program.lasts_at_most(),
            Op::Finished { timeout, .. } => timeout.unwrap_or_default(),
            Op::Send { .. } | Op::Publish { .. } | Op::Show(_) => Duration::ZERO,
            Op::Enqueue(enqueue) => enqueue.most,
            Op::Parts { how, parts, .. } => {
                let once: Duration = parts.iter().flatten().map(Op::lasts_at_most).sum();
                once * how.times() as u32
            }
        }
    }
}

impl fmt::Display for Program {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (version, generations) = (self.version, self.generations);
        writeln!(f, "version {version}, {generations} generations {{")?;
        print(f, &self.ops, 1)?;
        writeln!(f, "    {:?}", self.end)?;
        writeln!(f, "}}")
    }
}

fn print(f: &mut fmt::Formatter<'_>, ops: &[Op], depth: usize) -> fmt::Result {
    for op in ops {
        writeln!(f, "{:1$}{op}", "", depth * 4)?;
        for (number, part) in op.parts().iter().enumerate() {
            writeln!(f, "{:1$}part {number}:", "", depth * 4 + 2)?;
            print(f, part, depth + 1)?;
        }
    }
    Ok(())
}

impl fmt::Display for Op {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Op::Step(step) => write!(f, "{step}"),
            Op::Removed(step) => write!(f, "{step}, until the code is changed"),
            Op::Hear(hear) => write!(f, "{hear}"),
            Op::Turn { id, key } => write!(f, "turn-{id} with key {key}"),
            Op::Sleep { id, lasts } => write!(f, "sleep-{id} {lasts:?}"),
            Op::Listen { id, channel, timeout } => match timeout {
                Some(timeout) => write!(f, "listen-{id} to channel-{channel} for {timeout:?}"),
                None => write!(f, "listen-{id} to channel-{channel}"),
            },
            Op::Send { id, to, channel } => {
                write!(f, "send-{id} to program {to}, channel-{channel}")
            }
            Op::Event(EventOp { id, event, key, timeout }) => {
                write!(f, "event-{id} {event} with key {key:?} for {timeout:?}")
            }
            Op::Publish { id, event, key } => {
                write!(f, "publish-{id} event {event} with key {key:?}")
            }
            Op::Deferred(DeferredOp { id, settler, rejects, looks, timeouts, waits }) => {
                let verb = if *rejects { "rejected" } else { "resolved" };
                write!(
                    f,
                    "deferred-{id} {verb} by {settler:?}, {looks} looks, waits {timeouts:?}"
                )?;
                write!(f, "{}", if *waits { " and to the end" } else { "" })
            }
            Op::Child(ChildOp { id, program, care, leave, key }) => {
                write!(f, "child-{id} {care:?}, leave: {leave}, key: {key:?}, {program}")
            }
            Op::Finished { id, of, timeout } => {
                write!(f, "finished-{id} of program {of} for {timeout:?}")
            }
            Op::Parts { id, how, .. } => write!(f, "{}-{id} {how:?}", how.name()),
            Op::Enqueue(enqueue) => write!(f, "{enqueue}"),
            Op::Show(show) => write!(f, "{show}"),
        }
    }
}

impl fmt::Display for StepOp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "step-{} {:?} {:?}", self.id, self.body, self.lasts)?;
        if self.fails > 0 {
            let (fails, attempts) = (self.fails, self.attempts);
            write!(f, ", fails {fails} of {attempts}, {:?} apart", self.delay)?;
        }
        if let Some(timeout) = self.timeout {
            write!(f, ", timeout {timeout:?}")?;
        }
        if self.retry_on_timeout {
            write!(f, ", retry on timeout")?;
        }
        if self.ephemeral {
            write!(f, ", ephemeral")?;
        }
        if self.rollback {
            write!(f, ", with rollback")?;
        }
        if self.emits > 0 {
            write!(f, ", gives {} items", self.emits)?;
        }
        if let Some(limit) = self.limit {
            write!(f, ", under `{}` ({})", limit.of_step().name(), limit.key())?;
        }
        Ok(())
    }
}
