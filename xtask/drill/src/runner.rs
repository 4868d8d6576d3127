//! A runner: an engine with the code of one version, until it is told to end or is killed.

use std::{io, path::Path, process::ExitCode, time::Duration};

use everstep::{EngineBuilder, EngineTools, prelude::*};

use crate::{
    Problem,
    ledger::Ledger,
    order::{Order, Sent},
};

/// How long a runner owns its runs without a heartbeat: short, so that another takes over soon, and
/// long enough for a busy machine.
pub const LEASE: Duration = Duration::from_secs(3);

/// How often it is noted what an engine has lived through.
const NOTE: Duration = Duration::from_millis(50);

/// The whole of a runner's program, given its code. Its arguments are a database and a ledger.
pub fn main(register: fn(EngineBuilder) -> EngineBuilder) -> ExitCode {
    match run(register) {
        Ok(()) => ExitCode::SUCCESS,
        Err(problem) => {
            eprintln!("the runner ends: {problem}");
            ExitCode::FAILURE
        }
    }
}

fn run(register: fn(EngineBuilder) -> EngineBuilder) -> Result<(), Problem> {
    tracing_subscriber::fmt().with_writer(std::io::stderr).with_ansi(false).init();
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [url, ledger] = &arguments[..] else {
        return Err("a runner wants a database and a ledger".into());
    };
    let ledger = Ledger::open(Path::new(ledger))?;
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build()?;
    runtime.block_on(async {
        let engine = Engine::open(url).provide(ledger.clone()).settings(|set| {
            set.lease = LEASE;
            set.heartbeat = Some(LEASE / 10);
            set.safety_poll = Duration::from_secs(1);
            set.threads = 2;
        });
        let engine = register(engine).start().await?;
        let tools = engine.shared_for_tools();
        tokio::select! {
            ended = engine.shutdown_on_signal() => ended?,
            failed = note(&ledger, &tools) => failed?,
        }
        ledger.counters(&tools.counters())?;
        Ok(())
    })
}

/// Notes what the engine has lived through whenever that has changed; ends only with an error.
async fn note(ledger: &Ledger, tools: &EngineTools) -> io::Result<()> {
    let mut noted = None;
    loop {
        let counters = tools.counters();
        if noted != Some(counters) {
            ledger.counters(&counters)?;
            noted = Some(counters);
        }
        tokio::time::sleep(NOTE).await;
    }
}

/// What a run knows about itself when it makes a step.
#[derive(Clone)]
pub struct Maker {
    /// The version of the program.
    pub program: u32,
    /// The version of the run, as the engine has it.
    pub run: u32,
    /// The version that the client has started.
    pub started: u32,
}

impl Maker {
    /// What is known at the start of a run.
    pub fn new(ctx: &Ctx, order: &Order, program: u32) -> Maker {
        Maker { program, run: ctx.workflow_version(), started: order.version }
    }

    /// Makes the step at this place of its run, counted from 0: it takes some milliseconds, and the
    /// ledger says that it did.
    ///
    /// # Errors
    ///
    /// If the ledger cannot be written.
    pub async fn step(&self, ctx: &Ctx, place: u32, name: &str) -> Result<()> {
        ctx.step_with(name, async |step| {
            let ledger = step.get::<Ledger>();
            ledger.began(&step, place, self)?;
            let some = step.idempotency_key().bytes().map(u64::from).sum::<u64>();
            tokio::time::sleep(Duration::from_millis(5 + some % 40)).await;
            Ok(ledger.ended(&step, place)?)
        })
        .await
    }
}

/// Fails if another program has ended one of the children.
///
/// # Errors
///
/// If one has.
pub fn same_program(program: u32, children: impl IntoIterator<Item = Sent>) -> Result<()> {
    match children.into_iter().find(|sent| sent.by != program) {
        None => Ok(()),
        Some(sent) => {
            let by = sent.by;
            let what = format!("a child of version {program} was ended by program {by}");
            Err(Error::fatal(what))
        }
    }
}
