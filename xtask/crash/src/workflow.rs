//! A workflow that uses every primitive, and bodies that keep a ledger.
//!
//! Each body writes a line when it starts and one when it ends. The first says what the workflow
//! had seen when it made the step: the locations whose results it had taken, and a digest of those
//! results in their order. By that, a step that runs again with another past is found, and so is
//! one that runs again although somebody has built on its result.

use std::{
    cell::RefCell,
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    rc::Rc,
    time::Duration,
};

use everstep::{Outcome, Rollback, StepCall, prelude::*};
use serde::{Deserialize, Serialize};

use crate::random;

/// What a run is started with. Runs come in pairs: the second sends to the first.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Input {
    pub(crate) pair: u64,
    pub(crate) first: bool,
    /// Whether it fails at its end, and rolls back.
    pub(crate) fails: bool,
}

/// The key of one run of a pair.
pub(crate) fn key(pair: u64, first: bool) -> String {
    format!("pair-{pair}-{}", if first { "first" } else { "second" })
}

/// How many words are sent to each run.
pub(crate) const WORDS: u64 = 3;

/// What a body gives: where it was, and a number that no other has.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Done {
    at: String,
    value: u64,
}

/// What the workflow has seen so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Seen {
    steps: Vec<String>,
    digest: u64,
}

impl Seen {
    fn nothing() -> Seen {
        let (steps, digest) = (Vec::new(), 0xcbf2_9ce4_8422_2325);
        Seen { steps, digest }
    }

    fn mix(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    fn take(&mut self, done: &Done) {
        self.steps.push(done.at.clone());
        done.at.bytes().for_each(|byte| self.mix(u64::from(byte)));
        self.mix(done.value);
    }
}

/// The same for all branches of a run, in the order in which they take their results.
#[derive(Clone)]
struct Trace(Rc<RefCell<Seen>>);

impl Trace {
    fn seen(&self) -> Seen {
        self.0.borrow().clone()
    }

    fn take(&self, done: Done) -> u64 {
        self.0.borrow_mut().take(&done);
        done.value
    }

    fn mix(&self, value: u64) {
        self.0.borrow_mut().mix(value);
    }

    /// A step made now: its body says what was seen until now.
    fn step<'a>(&self, ctx: &Ctx, name: &str) -> StepCall<'a, Done> {
        let seen = self.seen();
        ctx.step_with(name, async move |step| work(&step, &seen, Kind::Firm).await)
    }

    /// Makes a step and takes its result.
    async fn run(&self, ctx: &Ctx, name: &str) -> Result<u64> {
        Ok(self.take(self.step(ctx, name).await?))
    }
}

#[workflow]
pub(crate) async fn every(ctx: Ctx, input: Input) -> Result<u64> {
    let trace = Trace(Rc::new(RefCell::new(Seen::nothing())));
    let mut heard: Vec<u64> = Vec::new();

    trace.run(&ctx, "plain").await?;
    let booked = trace.step(&ctx, "book").rollback(unbook).await?;
    trace.take(booked);

    // The first attempt fails.
    let seen = trace.seen();
    let flaky = ctx
        .step_with("flaky", async |step| match step.attempt() {
            1 => Err(fail(&step, &seen, "the first attempt").await),
            _ => work(&step, &seen, Kind::Firm).await,
        })
        .retry(Retry::fixed(5, Duration::from_millis(5)))
        .timeout(seconds(30));
    trace.take(flaky.await?);

    // A name that is used again.
    for _ in 0..2 {
        trace.run(&ctx, "again").await?;
    }

    ctx.join(
        "join",
        (
            branch("left", async |ctx| {
                trace.run(&ctx, "one").await?;
                trace.run(&ctx, "two").await
            }),
            branch("right", async |ctx| {
                trace.run(&ctx, "one").await?;
                ctx.sleep("nap", Duration::from_millis(3)).await?;
                trace.run(&ctx, "two").await
            }),
        ),
    )
    .await?;

    ctx.map("map", 0..4u64, async |ctx, _| trace.run(&ctx, "item").await)
        .concurrency(3)
        .await?;

    // One arm may complete a step and lose all the same: that is rolled back.
    let first = ctx
        .race(
            "race",
            (
                branch("short", async |ctx| trace.run(&ctx, "only").await),
                branch("long", async |ctx| {
                    let done = trace.step(&ctx, "begun").rollback(unbook).await?;
                    trace.take(done);
                    trace.run(&ctx, "ended").await
                }),
            ),
        )
        .await?;
    trace.mix(match first {
        First2::A(value) => value,
        First2::B(value) => value ^ 1,
    });

    for i in 1..WORDS {
        let word: Option<u64> = ctx.listen("word").timeout(seconds(600)).await?;
        let word = word.ok_or_else(|| Error::fatal(format!("word {i} did not come")))?;
        trace.mix(word);
        heard.push(word);
    }
    let nobody: Option<u64> = ctx
        .listen("nobody")
        .timeout(Duration::from_millis(10))
        .await?;
    trace.mix(u64::from(nobody.is_some()));

    let asked = ctx.receive::<u64>("ask").await?;
    trace.mix(asked.body);
    asked.reply(&(asked.body * 2))?;
    trace.run(&ctx, "answered").await?;

    let looped = ctx
        .repeat(
            "loop",
            (0u64, trace.seen()),
            async |ctx, (turn, mut seen)| {
                let before = seen.clone();
                let body = async |step: Step| work(&step, &before, Kind::Firm).await;
                seen.take(&ctx.step_with("turn", body).await?);
                Ok(match turn {
                    4 => ControlFlow::Break(seen),
                    _ => ControlFlow::Continue((turn + 1, seen)),
                })
            },
        )
        .commit_every(2)
        .history_every(2)
        .history_keep(1)
        .await?;
    *trace.0.borrow_mut() = looped;

    ctx.sleep("pause", Duration::from_millis(5)).await?;

    // Failures as values, recorded like results.
    let seen = trace.seen();
    let tried = ctx
        .attempt("tried", async |ctx| {
            let body = async |step: Step| -> Result<u64> {
                Err(Error::fatal(fail(&step, &seen, "for good").await))
            };
            ctx.step_with("fails", body).await
        })
        .await?;
    trace.0.borrow_mut().steps.push("tried/fails".to_owned());
    trace.mix(u64::from(tried.is_err()));
    let seen = trace.seen();
    let body = async |step: Step| -> Result<u64> { Err(fail(&step, &seen, "each time").await) };
    let outcome = ctx
        .step_with("exhausted", body)
        .retry(Retry::fixed(2, Duration::from_millis(2)))
        .outcome()
        .await?;
    trace.0.borrow_mut().steps.push("exhausted".to_owned());
    trace.mix(u64::from(matches!(outcome, Outcome::Failed { .. })));

    // Results that ride on the next write. They may be lost with it, so they must come out equal.
    for name in ["cheap", "cheaper"] {
        let seen = trace.seen();
        let body = async |step: Step| work(&step, &seen, Kind::Ephemeral).await;
        trace.take(ctx.step_with(name, body).ephemeral().await?);
    }

    // Plain Rust concurrency.
    let (left, right) = (ctx.scope("plain-left"), ctx.scope("plain-right"));
    let (a, b) = tokio::join!(trace.run(&left, "work"), trace.run(&right, "work"));
    trace.mix(a? ^ b?);
    let nap = ctx.sleep("limit", Duration::from_millis(10));
    let won = tokio::select! {
        value = trace.run(&ctx, "hurried") => value?,
        fired = nap => { fired?; 0 }
    };
    trace.mix(won);

    // Between runs.
    if input.first {
        let peer: u64 = ctx.listen("peer").await?;
        trace.mix(peer);
        heard.push(peer);
    } else {
        let to = key(input.pair, true);
        ctx.send(("every", to.as_str()), "peer", &input.pair)
            .await?;
    }
    let word: u64 = ctx.listen("word").await?;
    trace.mix(word);
    heard.push(word);
    ctx.set_state("heard", &heard)?;

    trace.run(&ctx, "last").await?;
    let booked = trace.step(&ctx, "book").rollback(unbook).await?;
    trace.take(booked);
    if input.fails {
        return Err(Error::rollback("on purpose"));
    }
    let digest = trace.0.borrow().digest;
    Ok(digest)
}

/// What kind of step a body belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Firm,
    /// Its result may be lost with the process, so it gives the same one each time.
    Ephemeral,
}

/// A body: takes its time, and writes down that it did.
async fn work(step: &Step, seen: &Seen, kind: Kind) -> Result<Done> {
    let bodies = step.get::<Bodies>();
    bodies.started(step, seen, kind)?;
    tokio::time::sleep(Duration::from_micros(random::any() % 20_000)).await;
    let value = match kind {
        Kind::Firm => random::any(),
        Kind::Ephemeral => step.location().len() as u64,
    };
    bodies.ended(step, "ok")?;
    let at = step.location().to_owned();
    Ok(Done { at, value })
}

/// A body that fails.
async fn fail(step: &Step, seen: &Seen, how: &str) -> Error {
    let bodies = step.get::<Bodies>();
    let written = bodies.started(step, seen, Kind::Firm);
    tokio::time::sleep(Duration::from_micros(random::any() % 10_000)).await;
    match written.and_then(|()| bodies.ended(step, "failed")) {
        Ok(()) => Error::msg(format!("it fails {how}")),
        Err(error) => Error::from(error),
    }
}

/// A rollback.
async fn unbook(undo: Rollback, done: Done) -> Result<()> {
    let bodies = undo.get::<Bodies>();
    let (run, at) = (undo.run_id(), done.at);
    bodies.write(&format!("U\t{run}\t{at}\t{}\n", undo.attempt()))?;
    tokio::time::sleep(Duration::from_micros(random::any() % 5_000)).await;
    bodies.write(&format!("V\t{run}\t{at}\n"))?;
    Ok(())
}

/// The ledger, as the bodies write it. Each line is one write at the end of the file, so that lines
/// of several processes do not mix, and a kill leaves whole lines.
pub(crate) struct Bodies(File);

impl Bodies {
    pub(crate) fn open(path: &Path) -> io::Result<Bodies> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Bodies(file))
    }

    fn write(&self, line: &str) -> io::Result<()> {
        (&self.0).write_all(line.as_bytes())
    }

    fn started(&self, step: &Step, seen: &Seen, kind: Kind) -> io::Result<()> {
        let (run, at, attempt) = (step.run_id(), step.location(), step.attempt());
        let kind = if kind == Kind::Firm {
            "firm"
        } else {
            "ephemeral"
        };
        let (digest, steps) = (seen.digest, seen.steps.join(" "));
        self.write(&format!(
            "S\t{run}\t{at}\t{attempt}\t{kind}\t{digest:016x}\t{steps}\n"
        ))
    }

    fn ended(&self, step: &Step, how: &str) -> io::Result<()> {
        let (run, at, attempt) = (step.run_id(), step.location(), step.attempt());
        self.write(&format!("E\t{run}\t{at}\t{attempt}\t{how}\n"))
    }
}
