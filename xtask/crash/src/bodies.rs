//! Bodies that keep a ledger, and what a workflow has seen when it makes and starts them.
//!
//! Each body writes a line when it starts and one when it ends. The first line has two pasts of the
//! workflow. One is from when the step was made: the locations whose results the code had taken, and a
//! digest of those results in their order. The other is from when the body started: the digest of all
//! that the code had taken by then, in any branch. At its end the code writes the digests of all its
//! pasts. With these lines the ledger finds a step that runs again with another past, a step that runs
//! again although another body was built on its result, and a body that started in a state that was
//! lost with its process.
//!
//! Every stay of a run in memory is a *life*, with a number of its own: the code writes it when it
//! begins, and each start of a body repeats it. A body that starts in an older life than another body
//! of its run was started by an owner that had lost the run.

use std::{
    cell::{Cell, RefCell},
    fs::{File, OpenOptions},
    io::{self, Write},
    path::Path,
    rc::Rc,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
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
        Seen { steps: Vec::new(), digest: 0xcbf2_9ce4_8422_2325, generation }
    }

    /// A step that failed and whose failure was taken as a value.
    pub(crate) fn take_failed(&mut self, at: &str) {
        self.steps.push(at.to_owned());
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

/// One life of a run: what its code has seen, the same for all branches, in the order in which they
/// take their results.
#[derive(Clone)]
pub(crate) struct Trace(Rc<Life>);

struct Life {
    /// The generation of the run, as the ledger names it.
    run: String,
    number: u64,
    seen: RefCell<Seen>,
    /// The digests of all pasts of this life, in order.
    pasts: RefCell<Vec<u32>>,
}

impl Trace {
    pub(crate) fn new(ctx: &Ctx) -> Trace {
        let life = Life {
            run: run_name(ctx.run_id(), ctx.generation()),
            number: random::any(),
            seen: RefCell::new(Seen::nothing(ctx.generation())),
            pasts: RefCell::default(),
        };
        let trace = Trace(Rc::new(life));
        trace.note_past();
        // A ledger that cannot be written to is found by the first body.
        drop(ctx.get::<Bodies>().life(&trace.0.run, trace.0.number));
        trace
    }

    pub(crate) fn seen(&self) -> Seen {
        self.0.seen.borrow().clone()
    }

    fn note_past(&self) {
        let past = short(self.0.seen.borrow().digest);
        self.0.pasts.borrow_mut().push(past);
    }

    pub(crate) fn take(&self, done: Done) -> u64 {
        self.0.seen.borrow_mut().take(&done);
        self.note_past();
        done.value
    }

    pub(crate) fn mix(&self, value: u64) {
        self.0.seen.borrow_mut().mix(value);
        self.note_past();
    }

    /// What a step that is made now builds on.
    pub(crate) fn made(&self) -> Made {
        self.made_from(self.seen())
    }

    /// What a step builds on whose code keeps its own record.
    pub(crate) fn made_from(&self, seen: Seen) -> Made {
        let life = self.clone();
        Made { seen, life }
    }

    /// A step made now: its body says what was seen until now.
    pub(crate) fn step<'a>(&self, ctx: &Ctx, name: &str) -> StepCall<'a, Done> {
        let made = self.made();
        ctx.step_with(name, async move |step| work(&step, &made, Kind::Firm).await)
    }

    /// Makes a step and takes its result.
    pub(crate) async fn run(&self, ctx: &Ctx, name: &str) -> Result<u64> {
        Ok(self.take(self.step(ctx, name).await?))
    }

    pub(crate) fn take_failed(&self, at: &str) {
        self.0.seen.borrow_mut().take_failed(at);
    }

    /// Goes on with what another has seen.
    pub(crate) fn become_seen(&self, seen: Seen) {
        *self.0.seen.borrow_mut() = seen;
        self.note_past();
    }

    pub(crate) fn digest(&self) -> u64 {
        self.0.seen.borrow().digest
    }

    /// Makes a step whose body notes something in the ledger, and takes its result.
    pub(crate) async fn note(&self, ctx: &Ctx, name: &str, note: String) -> Result<u64> {
        let made = self.made();
        let body = async |step: Step| {
            let done = work(&step, &made, Kind::Firm).await?;
            step.get::<Bodies>().note(&note)?;
            Ok(done)
        };
        Ok(self.take(ctx.step_with(name, body).await?))
    }

    /// The code has come to its end: writes down all its pasts, by which bodies that started in
    /// another one are found.
    pub(crate) fn end(&self, ctx: &Ctx) -> Result<()> {
        let pasts = self.0.pasts.borrow();
        Ok(ctx.get::<Bodies>().pasts(&self.0.run, self.0.number, &pasts)?)
    }

    /// The run as the ledger names it.
    pub(crate) fn run_name(&self) -> &str {
        &self.0.run
    }
}

/// What a body says at its start of the code that made it.
pub(crate) struct Made {
    seen: Seen,
    life: Trace,
}

/// Half of a digest is enough to tell the pasts of one run apart.
fn short(digest: u64) -> u32 {
    (digest >> 32) as u32 ^ digest as u32
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
pub(crate) async fn work(step: &Step, made: &Made, kind: Kind) -> Result<Done> {
    let running = Running::start(step, made, kind)?;
    // Most are short. Some are not, so that there is hardly a moment without one.
    let longest = if random::any().is_multiple_of(8) { 150_000 } else { 20_000 };
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
pub(crate) async fn fail(step: &Step, made: &Made, how: &str) -> Error {
    let running = Running::start(step, made, Kind::Firm);
    tokio::time::sleep(Duration::from_micros(random::any() % 10_000)).await;
    match running.and_then(|running| running.end("failed")) {
        Ok(()) => Error::msg(format!("it fails {how}")),
        Err(error) => Error::from(error),
    }
}

/// A rollback.
pub(crate) async fn unbook(undo: Rollback, done: Done) -> Result<()> {
    let bodies = undo.get::<Bodies>();
    let (run, at, attempt) = (undo.run_id(), done.at, undo.attempt());
    bodies.write("U", &format!("{run}\t{at}\t{attempt}"))?;
    tokio::time::sleep(Duration::from_micros(random::any() % 5_000)).await;
    bodies.write("V", &format!("{run}\t{at}"))?;
    Ok(())
}

/// A body between its two lines. One that is dropped has ended, too, in a way.
pub(crate) struct Running<'a> {
    bodies: &'a Bodies,
    step: &'a Step,
    made: &'a Made,
    has_ended: bool,
}

impl<'a> Running<'a> {
    pub(crate) fn start(step: &'a Step, made: &'a Made, kind: Kind) -> io::Result<Running<'a>> {
        let bodies = step.get::<Bodies>();
        bodies.started(step, made, kind)?;
        Ok(Running { bodies, step, made, has_ended: false })
    }

    pub(crate) fn end(mut self, how: &str) -> io::Result<()> {
        self.has_ended = true;
        self.bodies.ended(self.step, self.made, how)
    }

    /// Ends with a number that no other body gives.
    pub(crate) fn done(self) -> io::Result<Done> {
        let at = self.step.location().to_owned();
        self.end("ok")?;
        let value = random::any();
        Ok(Done { at, value })
    }
}

impl Drop for Running<'_> {
    fn drop(&mut self) {
        if !self.has_ended {
            // Whoever reads takes it for one that is still under way.
            drop(self.bodies.ended(self.step, self.made, "dropped"));
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

    /// Every line has the process and the thread that wrote it.
    fn write(&self, kind: &str, fields: &str) -> io::Result<()> {
        let (process, thread) = (std::process::id(), THREAD.get());
        let line = format!("\n{kind}\t{process}\t{thread}\t{fields}{END}\n");
        (&*self.0).write_all(line.as_bytes())
    }

    /// Something that is checked at the end: what kind of thing, and its fields.
    pub(crate) fn note(&self, note: &str) -> io::Result<()> {
        self.write("N", note)
    }

    fn life(&self, run: &str, life: u64) -> io::Result<()> {
        self.write("L", &format!("{run}\t{life:016x}"))
    }

    fn pasts(&self, run: &str, life: u64, pasts: &[u32]) -> io::Result<()> {
        let pasts: Vec<String> = pasts.iter().map(|past| format!("{past:08x}")).collect();
        self.write("F", &format!("{run}\t{life:016x}\t{}", pasts.join(" ")))
    }

    fn started(&self, step: &Step, made: &Made, kind: Kind) -> io::Result<()> {
        let Made { seen, life: Trace(life) } = made;
        let (run, number) = (&life.run, life.number);
        let (at, attempt) = (step.location(), step.attempt());
        let kind = if kind == Kind::Firm { "firm" } else { "ephemeral" };
        let (digest, steps) = (seen.digest, seen.steps.join(" "));
        let now = short(life.seen.borrow().digest);
        self.write(
            "S",
            &format!(
                "{run}\t{number:016x}\t{at}\t{attempt}\t{kind}\t{digest:016x}\t{now:08x}\t{steps}"
            ),
        )
    }

    fn ended(&self, step: &Step, made: &Made, how: &str) -> io::Result<()> {
        let (run, at, attempt) = (&made.life.0.run, step.location(), step.attempt());
        self.write("E", &format!("{run}\t{at}\t{attempt}\t{how}"))
    }
}

thread_local! {
    /// The number of this thread among those of its process that have written.
    static THREAD: Cell<u64> = {
        static NEXT: AtomicU64 = AtomicU64::new(0);
        Cell::new(NEXT.fetch_add(1, Ordering::Relaxed))
    };
}
