//! Bodies that keep a ledger, and what a workflow has seen when it makes them.
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
    sync::Arc,
    time::Duration,
};

use everstep::{Rollback, RunId, StepCall, prelude::*};
use serde::{Deserialize, Serialize};

use crate::random;

/// What a body gives: where it was, and a number that no other has.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Done {
    at: String,
    value: u64,
}

/// What the workflow has seen so far.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Seen {
    steps: Vec<String>,
    digest: u64,
    /// Which generation of the run this is: each has steps of its own.
    generation: u32,
}

impl Seen {
    fn nothing(generation: u32) -> Seen {
        Seen {
            steps: Vec::new(),
            digest: 0xcbf2_9ce4_8422_2325,
            generation,
        }
    }

    /// A step that failed and whose failure was taken as a value.
    pub(crate) fn take_failed(&mut self, at: &str) {
        self.steps.push(at.to_owned());
    }

    /// The run as the ledger names it.
    fn run(&self, step: &Step) -> String {
        run_name(step.run_id(), self.generation)
    }

    fn mix(&mut self, value: u64) {
        for byte in value.to_le_bytes() {
            self.digest = (self.digest ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
        }
    }

    pub(crate) fn take(&mut self, done: &Done) {
        self.steps.push(done.at.clone());
        done.at.bytes().for_each(|byte| self.mix(u64::from(byte)));
        self.mix(done.value);
    }
}

/// The same for all branches of a run, in the order in which they take their results.
#[derive(Clone)]
pub(crate) struct Trace(Rc<RefCell<Seen>>);

impl Trace {
    pub(crate) fn new(ctx: &Ctx) -> Trace {
        Trace(Rc::new(RefCell::new(Seen::nothing(ctx.generation()))))
    }

    pub(crate) fn seen(&self) -> Seen {
        self.0.borrow().clone()
    }

    pub(crate) fn take(&self, done: Done) -> u64 {
        self.0.borrow_mut().take(&done);
        done.value
    }

    pub(crate) fn mix(&self, value: u64) {
        self.0.borrow_mut().mix(value);
    }

    /// A step made now: its body says what was seen until now.
    pub(crate) fn step<'a>(&self, ctx: &Ctx, name: &str) -> StepCall<'a, Done> {
        let seen = self.seen();
        ctx.step_with(name, async move |step| work(&step, &seen, Kind::Firm).await)
    }

    /// Makes a step and takes its result.
    pub(crate) async fn run(&self, ctx: &Ctx, name: &str) -> Result<u64> {
        Ok(self.take(self.step(ctx, name).await?))
    }

    pub(crate) fn take_failed(&self, at: &str) {
        self.0.borrow_mut().take_failed(at);
    }

    /// Goes on with what another has seen.
    pub(crate) fn become_seen(&self, seen: Seen) {
        *self.0.borrow_mut() = seen;
    }

    pub(crate) fn digest(&self) -> u64 {
        self.0.borrow().digest
    }

    /// Makes a step whose body notes something in the ledger, and takes its result.
    pub(crate) async fn note(&self, ctx: &Ctx, name: &str, note: String) -> Result<u64> {
        let seen = self.seen();
        let body = async |step: Step| {
            let done = work(&step, &seen, Kind::Firm).await?;
            step.get::<Bodies>().note(&note)?;
            Ok(done)
        };
        Ok(self.take(ctx.step_with(name, body).await?))
    }
}

/// A generation of a run, as the ledger names it.
pub(crate) fn run_name(run: RunId, generation: u32) -> String {
    match generation {
        1 => run.to_string(),
        later => format!("{run}.{later}"),
    }
}

/// What kind of step a body belongs to.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Kind {
    Firm,
    /// Its result may be lost with the process, so it gives the same one each time.
    Ephemeral,
}

/// A body: takes its time, and writes down that it did.
pub(crate) async fn work(step: &Step, seen: &Seen, kind: Kind) -> Result<Done> {
    let running = Running::start(step, seen, kind)?;
    // Most are short. Some are not, so that there is hardly a moment without one.
    let longest = if random::any().is_multiple_of(8) {
        150_000
    } else {
        20_000
    };
    tokio::time::sleep(Duration::from_micros(random::any() % longest)).await;
    let value = match kind {
        Kind::Firm => random::any(),
        Kind::Ephemeral => step.location().len() as u64,
    };
    running.end("ok")?;
    let at = step.location().to_owned();
    Ok(Done { at, value })
}

/// A body that fails.
pub(crate) async fn fail(step: &Step, seen: &Seen, how: &str) -> Error {
    let running = Running::start(step, seen, Kind::Firm);
    tokio::time::sleep(Duration::from_micros(random::any() % 10_000)).await;
    match running.and_then(|running| running.end("failed")) {
        Ok(()) => Error::msg(format!("it fails {how}")),
        Err(error) => Error::from(error),
    }
}

/// A rollback.
pub(crate) async fn unbook(undo: Rollback, done: Done) -> Result<()> {
    let bodies = undo.get::<Bodies>();
    let (run, at, process) = (undo.run_id(), done.at, std::process::id());
    let attempt = undo.attempt();
    bodies.write(&format!("U\t{process}\t{run}\t{at}\t{attempt}"))?;
    tokio::time::sleep(Duration::from_micros(random::any() % 5_000)).await;
    bodies.write(&format!("V\t{run}\t{at}"))?;
    Ok(())
}

/// A body between its two lines. One that is dropped has ended, too, in a way.
struct Running<'a> {
    bodies: &'a Bodies,
    step: &'a Step,
    seen: &'a Seen,
    has_ended: bool,
}

impl<'a> Running<'a> {
    fn start(step: &'a Step, seen: &'a Seen, kind: Kind) -> io::Result<Running<'a>> {
        let bodies = step.get::<Bodies>();
        bodies.started(step, seen, kind)?;
        Ok(Running {
            bodies,
            step,
            seen,
            has_ended: false,
        })
    }

    fn end(mut self, how: &str) -> io::Result<()> {
        self.has_ended = true;
        self.bodies.ended(self.step, self.seen, how)
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // Whoever reads takes it for one that is still under way.
            drop(self.bodies.ended(self.step, self.seen, "dropped"));
        }
    }
}

/// What a line of the ledger ends with: one that does not was torn by a kill.
pub(crate) const END: &str = "\t;";

/// The ledger, as the bodies write it. Each line is one write at the end of the file, so that lines
/// of several processes do not mix. A kill may leave the beginning of one; what follows begins a line
/// of its own.
#[derive(Clone)]
pub(crate) struct Bodies(Arc<File>);

impl Bodies {
    pub(crate) fn open(path: &Path) -> io::Result<Bodies> {
        let file = OpenOptions::new().create(true).append(true).open(path)?;
        Ok(Bodies(Arc::new(file)))
    }

    fn write(&self, line: &str) -> io::Result<()> {
        (&*self.0).write_all(format!("\n{line}{END}\n").as_bytes())
    }

    /// Something that is checked at the end: what kind of thing, and its fields.
    pub(crate) fn note(&self, note: &str) -> io::Result<()> {
        self.write(&format!("N\t{note}"))
    }

    fn started(&self, step: &Step, seen: &Seen, kind: Kind) -> io::Result<()> {
        let (run, at, attempt) = (seen.run(step), step.location(), step.attempt());
        let kind = if kind == Kind::Firm {
            "firm"
        } else {
            "ephemeral"
        };
        let (digest, steps) = (seen.digest, seen.steps.join(" "));
        let process = std::process::id();
        self.write(&format!(
            "S\t{process}\t{run}\t{at}\t{attempt}\t{kind}\t{digest:016x}\t{steps}"
        ))
    }

    fn ended(&self, step: &Step, seen: &Seen, how: &str) -> io::Result<()> {
        let (run, at, attempt) = (seen.run(step), step.location(), step.attempt());
        let process = std::process::id();
        self.write(&format!("E\t{process}\t{run}\t{at}\t{attempt}\t{how}"))
    }
}
