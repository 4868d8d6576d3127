//! Random workflows: every way in which plain Rust and the operations of a `Ctx` can be combined.

use std::{future::poll_fn, ops::ControlFlow, task::Poll, time::Duration};

use futures::{
    FutureExt, StreamExt,
    channel::oneshot,
    future::{Either, LocalBoxFuture, select, try_join_all},
    stream::FuturesUnordered,
};

use super::{hands, owner::BEGINNING};
use crate::{
    ctx::{
        Ctx,
        composite::branch,
        rollback::Rollback,
        step::{Outcome, Step},
    },
    error::{Error, Result},
    retry::Retry,
};

/// Chance, from a seed.
pub(super) struct Dice(u64);

impl Dice {
    pub(super) fn new(seed: u64) -> Dice {
        Dice(crate::random::mix(seed) | 1)
    }

    pub(super) fn roll(&mut self, n: usize) -> usize {
        self.0 = crate::random::mix(self.0);
        ((self.0 >> 11) % n as u64) as usize
    }
}

/// What a step is like.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Flavor {
    Plain,
    Ephemeral,
    /// Its body ends in its first poll.
    Immediate,
    /// Its first attempt fails.
    Flaky,
    /// It fails for good.
    Fails,
    /// It has a rollback.
    Undone,
    /// It has a rollback whose first attempt fails.
    UndoneLater,
}

/// A part of a random workflow.
#[derive(Debug)]
pub(super) enum Node {
    Step(Flavor, &'static str),
    Sleep(u64, &'static str),
    /// On one of two channels, or on any; with a timeout or none.
    Listen(Option<usize>, Option<u64>, &'static str),
    Gate(&'static str),
    Yield,
    Seq(Vec<Node>),
    Join(Vec<Node>),
    TryJoin(Vec<Node>),
    Select(Vec<Node>),
    Keep(Box<[Node; 3]>),
    Buffered {
        items: Vec<Node>,
        limit: usize,
        between: Box<Node>,
    },
    Channel {
        send: Box<[Node; 2]>,
        receive: Vec<[Node; 2]>,
    },
    Scope(&'static str, Box<Node>),
    Repeat {
        times: u64,
        every: u64,
        keep: u64,
        name: &'static str,
        body: Box<Node>,
    },
    CtxJoin(&'static str, Vec<Node>),
    CtxRace(&'static str, Vec<Node>),
    CtxMap(&'static str, usize, Vec<Node>),
    Attempt(&'static str, Box<Node>),
}

/// What the workflow as a whole does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Ending {
    Output,
    /// It ends with `Error::rollback`.
    RollBack,
    /// A step after everything else fails in the first attempt of the run.
    Again,
    /// A step beside everything else fails in the first attempt of the run.
    AgainBeside,
}

#[derive(Debug)]
pub(super) struct Program {
    pub(super) node: Node,
    pub(super) ending: Ending,
    pub(super) immediate: bool,
}

/// How operations are called.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Names {
    Distinct,
    /// A few names are used over and over, also at the same time.
    Equal,
}

/// What a random workflow may contain.
#[derive(Clone, Copy)]
struct Features {
    names: Names,
    immediate: bool,
    loops: bool,
}

struct Grower<'d> {
    dice: &'d mut Dice,
    features: Features,
    count: usize,
}

impl Program {
    pub(super) fn grow(seed: u64, depth_max: usize, names: Names) -> Program {
        let dice = &mut Dice::new(seed);
        let ending = match dice.roll(6) {
            0 | 1 => Ending::RollBack,
            2 => Ending::Again,
            3 => Ending::AgainBeside,
            _ => Ending::Output,
        };
        let features = Features {
            names,
            immediate: dice.roll(4) == 0,
            // A retry cannot go back to an iteration that is deleted.
            loops: ending != Ending::AgainBeside,
        };
        // Most mistakes need two levels; the deep ones take most of the time.
        let depth = 1 + dice.roll(depth_max).min(dice.roll(depth_max));
        let count = 0;
        let mut grower = Grower { dice, features, count };
        let node = grower.node(depth, false);
        Program { node, ending, immediate: features.immediate }
    }
}

impl Grower<'_> {
    fn name(&mut self) -> &'static str {
        const NAMES: [&str; 3] = ["s", "t", "u"];
        self.count += 1;
        if self.features.names == Names::Equal {
            NAMES[self.dice.roll(3)]
        } else {
            Box::leak(format!("n{}", self.count).into_boxed_str())
        }
    }

    fn leaf(&mut self, catching: bool) -> Node {
        let name = self.name();
        match self.dice.roll(16) {
            0..=7 => {
                let flavor = match self.dice.roll(12) {
                    0 | 1 => Flavor::Ephemeral,
                    2 if self.features.immediate => Flavor::Immediate,
                    3 if self.features.immediate => Flavor::Immediate,
                    4 => Flavor::Flaky,
                    5 if catching => Flavor::Fails,
                    6 if catching => Flavor::Fails,
                    7 | 8 => Flavor::Undone,
                    9 => Flavor::UndoneLater,
                    _ => Flavor::Plain,
                };
                Node::Step(flavor, name)
            }
            8..=10 => Node::Sleep(self.dice.roll(4) as u64 * 90, name),
            11..=13 => {
                let channel = self.dice.roll(5);
                let timeout = (self.dice.roll(3) == 0).then(|| self.dice.roll(3) as u64 * 80);
                Node::Listen((channel < 4).then_some(channel % 2), timeout, name)
            }
            14 => Node::Gate(name),
            _ => Node::Yield,
        }
    }

    fn many(&mut self, depth: usize, catching: bool) -> Vec<Node> {
        (0..2 + self.dice.roll(2)).map(|_| self.node(depth - 1, catching)).collect()
    }

    fn one(&mut self, depth: usize, catching: bool) -> Box<Node> {
        Box::new(self.node(depth - 1, catching))
    }

    fn node(&mut self, depth: usize, catching: bool) -> Node {
        if depth == 0 {
            return self.leaf(catching);
        }
        let sub = depth - 1;
        match self.dice.roll(20) {
            0 | 1 => self.leaf(catching),
            2..=4 => Node::Seq(self.many(depth, catching)),
            5 | 6 => Node::Join(self.many(depth, catching)),
            7 => Node::TryJoin(self.many(depth, catching)),
            8 | 9 => Node::Select(self.many(depth, catching)),
            10 => Node::Keep(Box::new([(); 3].map(|()| self.node(sub, catching)))),
            11 => Node::Buffered {
                items: self.many(depth, catching),
                limit: 1 + self.dice.roll(3),
                between: self.one(depth, catching),
            },
            12 => Node::Channel {
                send: Box::new([(); 2].map(|()| self.node(sub, catching))),
                receive: (0..1 + self.dice.roll(2))
                    .map(|_| [(); 2].map(|()| self.node(sub, catching)))
                    .collect(),
            },
            13 | 14 if self.features.loops => Node::Repeat {
                times: 2 + self.dice.roll(3) as u64,
                every: 1 + self.dice.roll(2) as u64,
                keep: 1 + self.dice.roll(2) as u64,
                name: self.name(),
                body: self.one(depth, catching),
            },
            15 => Node::CtxJoin(self.name(), self.many(depth, catching)),
            16 => {
                let name = self.name();
                let mut arms = vec![self.node(sub, catching)];
                arms.extend((0..1 + self.dice.roll(2)).map(|_| self.node(sub, true)));
                Node::CtxRace(name, arms)
            }
            17 => {
                let (name, limit) = (self.name(), 1 + self.dice.roll(3));
                Node::CtxMap(name, limit, self.many(depth, catching))
            }
            18 => Node::Attempt(self.name(), self.one(depth, true)),
            _ => Node::Scope(self.name(), self.one(depth, catching)),
        }
    }
}

/// The workflow that a program is.
pub(super) async fn run(program: &'static Program, ctx: Ctx) -> Result<String> {
    if program.ending == Ending::AgainBeside {
        let arms = vec![
            branch("flaky", async |ctx: Ctx| flaky_run(&ctx).await),
            branch("work", async move |ctx: Ctx| eval(&program.node, ctx, "w".into()).await),
        ];
        return Ok(ctx.join("beside", arms).await?.join("|"));
    }
    let value = eval(&program.node, ctx.clone(), "w".into()).await?;
    match program.ending {
        Ending::RollBack => Err(Error::rollback("the end")),
        Ending::Again => Ok(value + &flaky_run(&ctx).await?),
        _ => Ok(value),
    }
}

/// A step that fails in the first attempt of the run.
async fn flaky_run(ctx: &Ctx) -> Result<String> {
    let first = ctx.run_attempt() == 1;
    let core = ctx.core().clone();
    let step = ctx.step_with("flaky-run", async move |step: Step| {
        let seen = core.state.borrow().taken;
        let value = hands::body(step.location(), seen).await;
        match first {
            true => Err(Error::msg("the first attempt of the run")),
            false => Ok(format!("flaky@{value}")),
        }
    });
    step.retry(Retry::never()).await
}

async fn work(step: &Step, flavor: Flavor, seen: u64) -> Result<String> {
    let seen = if flavor == Flavor::Ephemeral { 0 } else { seen };
    let mut body = hands::body(step.location(), seen);
    let value = match flavor {
        Flavor::Immediate => {
            hands::let_go_unasked(&mut body);
            body.await
        }
        _ => body.await,
    };
    match flavor {
        Flavor::Flaky if step.attempt() == 1 => Err(Error::msg("flaky")),
        Flavor::Fails => Err(Error::fatal("it always fails")),
        _ => Ok(format!("{value}")),
    }
}

async fn undo(rollback: &Rollback, value: String, fails: bool) -> Result<()> {
    let place = rollback.idempotency_key().splitn(3, ':').nth(2).unwrap_or_default();
    hands::body(place, 0).await;
    hands::note_undone(place, &value);
    match fails && rollback.attempt() == 1 {
        true => Err(Error::msg("flaky rollback")),
        false => Ok(()),
    }
}

async fn step(ctx: &Ctx, flavor: Flavor, name: &str) -> Result<String> {
    let core = ctx.core().clone();
    let step = ctx.step_with(name, async move |step: Step| {
        // When it starts: other branches may have taken something since the step was made.
        let seen = core.state.borrow().taken;
        work(&step, flavor, seen).await
    });
    let step = step.retry(Retry::fixed(2, Duration::from_millis(30)));
    match flavor {
        Flavor::Ephemeral => step.ephemeral().await,
        Flavor::Undone | Flavor::UndoneLater => {
            let later = flavor == Flavor::UndoneLater;
            let policy = Retry::fixed(3, Duration::from_millis(20));
            let step =
                step.rollback(async move |rollback, value| undo(&rollback, value, later).await);
            step.rollback_retry(policy).await
        }
        // Half of the failures are looked at as values.
        Flavor::Fails if name.len().is_multiple_of(2) => match step.outcome().await? {
            Outcome::Completed(value) => Ok(value),
            Outcome::Failed { failure, .. } => Err(Error::fatal(failure.full())),
        },
        _ => step.await,
    }
}

async fn listen(
    ctx: &Ctx,
    channel: Option<usize>,
    timeout: Option<u64>,
    name: &str,
) -> Result<String> {
    let names: Vec<String> = channel.map(|c| format!("c{c}")).into_iter().collect();
    let listen = ctx.listen::<String>(name).names(names);
    match timeout {
        None => listen.await,
        Some(ms) => {
            let got = listen.timeout(Duration::from_millis(ms)).await?;
            Ok(got.unwrap_or_else(|| "nothing".into()))
        }
    }
}

/// A join that polls only the children that were woken, in the order of their wakes.
async fn unordered(parts: Vec<LocalBoxFuture<'static, Result<String>>>) -> Result<Vec<String>> {
    let mut out = vec![String::new(); parts.len()];
    let mut all: FuturesUnordered<_> =
        parts.into_iter().enumerate().map(|(i, part)| part.map(move |v| (i, v))).collect();
    while let Some((i, value)) = all.next().await {
        out[i] = value?;
    }
    Ok(out)
}

fn log(ctx: &Ctx, line: String) {
    let taken = ctx.core().state.borrow().taken;
    hands::log(taken, line);
}

async fn yield_now() {
    let mut once = false;
    poll_fn(|cx| {
        if std::mem::replace(&mut once, true) {
            return Poll::Ready(());
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    })
    .await;
}

/// Evaluates a part of a program and logs everything that it sees, with the time and a random
/// number, which must be the same on every replay.
fn eval(node: &'static Node, ctx: Ctx, tag: String) -> LocalBoxFuture<'static, Result<String>> {
    async move {
        let result = eval_node(node, &ctx, &tag).await;
        let (now, dice) = (ctx.now().since(BEGINNING).as_millis(), ctx.random() % 100);
        let text = match &result {
            Ok(value) => value.clone(),
            Err(error) => format!("error {}", error.failure().full()),
        };
        log(&ctx, format!("{tag}={text} at {now} with {dice}"));
        result
    }
    .boxed_local()
}

async fn eval_node(node: &'static Node, ctx: &Ctx, tag: &str) -> Result<String> {
    let sub = |i: usize| format!("{tag}.{i}");
    let part = |i: usize, node: &'static Node| eval(node, ctx.clone(), sub(i));
    let parts = |nodes: &'static [Node]| -> Vec<_> {
        nodes.iter().enumerate().map(|(i, node)| part(i, node)).collect()
    };
    match node {
        Node::Step(flavor, name) => step(ctx, *flavor, name).await,
        Node::Sleep(ms, name) => {
            let fired = ctx.sleep(name, Duration::from_millis(*ms)).await?;
            Ok(format!("{}", fired.since(BEGINNING).as_millis()))
        }
        Node::Listen(channel, timeout, name) => listen(ctx, *channel, *timeout, name).await,
        Node::Gate(name) => Ok(format!("v{}", ctx.version(name, 2))),
        Node::Yield => {
            yield_now().await;
            Ok("yielded".into())
        }
        Node::Seq(nodes) => {
            let mut out = String::new();
            for (i, node) in nodes.iter().enumerate() {
                out += &part(i, node).await?;
            }
            Ok(out)
        }
        Node::Join(nodes) => Ok(unordered(parts(nodes)).await?.join("&")),
        Node::TryJoin(nodes) => {
            let all = nodes.iter().enumerate().map(|(i, node)| {
                let work = part(i, node);
                async move {
                    match work.await {
                        Ok(value) if i == 1 => Err(Ok(value)),
                        Ok(value) => Ok(value),
                        Err(error) => Err(Err(error)),
                    }
                }
            });
            match try_join_all(all).await {
                Ok(values) => Ok(values.join("+")),
                Err(Ok(value)) => Ok(format!("failed with {value}")),
                Err(Err(error)) => Err(error),
            }
        }
        Node::Select(arms) => {
            let mut arms = parts(arms);
            let (i, value) = poll_fn(|cx| {
                for (i, arm) in arms.iter_mut().enumerate() {
                    if let Poll::Ready(value) = arm.poll_unpin(cx) {
                        return Poll::Ready((i, value));
                    }
                }
                Poll::Pending
            })
            .await;
            drop(arms);
            Ok(format!("selected {i}: {}", value?))
        }
        Node::Keep(nodes) => match select(part(0, &nodes[0]), part(1, &nodes[1])).await {
            Either::Left((value, _)) => value,
            Either::Right((value, kept)) => {
                let between = part(2, &nodes[2]).await?;
                Ok(value? + &between + &kept.await?)
            }
        },
        Node::Buffered { items, limit, between } => {
            let items = parts(items);
            let mut stream = futures::stream::iter(items).buffer_unordered(*limit);
            let (mut out, mut i) = (String::new(), 100);
            while let Some(value) = stream.next().await {
                out += &value?;
                out += &part(i, between).await?;
                i += 1;
            }
            Ok(out)
        }
        Node::Channel { send, receive } => {
            let (mut senders, mut parts) = (vec![], vec![]);
            for (i, [before, after]) in receive.iter().enumerate() {
                let (sender, receiver) = oneshot::channel::<()>();
                senders.push(sender);
                let (ctx, tag) = (ctx.clone(), sub(10 + i));
                let receive = async move {
                    let a = eval(before, ctx.clone(), format!("{tag}.b")).await?;
                    let _ = receiver.await;
                    log(&ctx, format!("{tag} received"));
                    Ok(a + &eval(after, ctx, format!("{tag}.a")).await?)
                };
                parts.push(receive.boxed_local());
            }
            let (before, after) = (part(0, &send[0]), ctx.clone());
            let tag = sub(1);
            let sender = async move {
                let a = before.await?;
                for sender in senders {
                    let _ = sender.send(());
                }
                Ok(a + &eval(&send[1], after, tag).await?)
            };
            parts.push(sender.boxed_local());
            Ok(unordered(parts).await?.join("~"))
        }
        Node::Scope(name, inner) => eval(inner, ctx.scope(name), sub(0)).await,
        Node::Repeat { times, every, keep, name, body } => {
            let code = async |ctx: Ctx, (i, state): (u64, String)| {
                hands::entered(tag, i);
                let value = eval(body, ctx, format!("{tag}.r{i}")).await?;
                let state = format!("({state}{value})");
                Ok(if i + 1 < *times {
                    ControlFlow::Continue((i + 1, state))
                } else {
                    ControlFlow::Break(state)
                })
            };
            let repeat = ctx.repeat(name, (0u64, String::new()), code);
            repeat.history_every(*every).history_keep(*keep).commit_every(2).await
        }
        Node::CtxJoin(name, nodes) => {
            let arms = nodes.iter().enumerate().map(|(i, node)| {
                let tag = sub(i);
                branch(format!("b{i}"), async move |ctx: Ctx| eval(node, ctx, tag).await)
            });
            Ok(ctx.join(name, arms.collect::<Vec<_>>()).await?.join("&"))
        }
        Node::CtxRace(name, nodes) => {
            let arms = nodes.iter().enumerate().map(|(i, node)| {
                let tag = sub(i);
                branch(format!("b{i}"), async move |ctx: Ctx| eval(node, ctx, tag).await)
            });
            let won = ctx.race(name, arms.collect::<Vec<_>>()).await?;
            Ok(format!("{} won: {}", won.name, won.value))
        }
        Node::CtxMap(name, limit, nodes) => {
            let code = async |ctx: Ctx, (i, node)| eval(node, ctx, sub(i)).await;
            let map = ctx.map(name, nodes.iter().enumerate(), code);
            Ok(map.concurrency(*limit).await?.join("&"))
        }
        Node::Attempt(name, inner) => {
            let tag = sub(0);
            let code = async move |ctx: Ctx| eval(inner, ctx, tag).await;
            match ctx.attempt(name, code).await? {
                Ok(value) => Ok(value),
                Err(failure) => Ok(format!("caught {}", failure.full())),
            }
        }
    }
}
