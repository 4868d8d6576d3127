//! Children: awaited, failing, detached, lost in a race, left to be cancelled; and `ctx.finished`.
//!
//! Each child notes its birth in the ledger and gives a number that no other has; its parent notes
//! what it was told. For every child that a parent asked for there must be one run, and the parent
//! must have been told what that run gave.

use std::{
    collections::{HashMap, HashSet},
    rc::Rc,
    time::Duration,
};

use everstep::{Close, EngineBuilder, RunError, RunId, RunStatus, prelude::*};
use serde::{Deserialize, Serialize};

use super::{Outside, ask, pause};
use crate::{Problem, bodies::Trace, child::Latest, ledger::Ledger};

/// How many children a family has.
const CHILDREN: u64 = 13;

/// What a parent must be told: all but those that may lose, and that are never waited for.
const TOLD: u64 = 10;

/// These may be told, or lose and be cancelled.
const MAY_LOSE: u64 = 10;

/// These never end by themselves, and are cancelled.
const CANCELLED: [u64; 2] = [11, 12];

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Task {
    parent: u64,
    slot: u64,
    does: Does,
}

#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
enum Does {
    Give,
    Dally,
    Fail,
    Wait,
}

/// What a child gives, whether it completes or fails.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Kin {
    run: String,
    slot: u64,
    value: u64,
}

/// A family that has ended, and what its parent was told.
pub(crate) struct Ended {
    n: u64,
    told: Vec<Kin>,
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(family).register(kin)
}

#[workflow]
pub(crate) async fn kin(ctx: Ctx, task: Task) -> Result<Kin> {
    let (run, slot) = (ctx.run_id().to_string(), task.slot);
    let trace = Trace::new(&ctx);
    let note = format!("kin\t{}\t{slot}\t{run}", task.parent);
    let value = trace.note(&ctx, "born", note).await?;
    let gives = Kin { run, slot, value };
    match task.does {
        Does::Give => Ok(gives),
        Does::Dally => {
            ctx.sleep("dally", Duration::from_millis(value % 20)).await?;
            trace.run(&ctx, "at last").await?;
            trace.end(&ctx)?;
            Ok(gives)
        }
        Does::Fail => Err(Error::fatal("on purpose").with_details(&gives)),
        Does::Wait => {
            ctx.listen::<()>("what never comes").await?;
            Ok(gives)
        }
    }
}

/// What the parent was told so far.
struct Told<'a> {
    ctx: &'a Ctx,
    trace: &'a Trace,
    n: u64,
    all: Vec<Kin>,
}

impl Told<'_> {
    async fn take(&mut self, given: Option<Kin>) -> Result<()> {
        let given = given.ok_or_else(|| Error::fatal("a child's end came without its word"))?;
        self.trace.mix(given.value);
        let Kin { run, slot, value } = &given;
        let note = format!("told\t{}\t{slot}\t{run}\t{value}", self.n);
        self.trace.note(self.ctx, "told", note).await?;
        self.all.push(given);
        Ok(())
    }
}

#[workflow]
pub(crate) async fn family(ctx: Ctx, n: u64) -> Result<Vec<Kin>> {
    let trace = &Trace::new(&ctx);
    let mut told = Told { ctx: &ctx, trace, n, all: Vec::new() };
    let task = |slot, does| Task { parent: n, slot, does };
    // A change to the code that comes in the middle of the test.
    trace.mix(u64::from(ctx.version("turn", ctx.get::<Latest>().0)));
    ctx.set_tag("family", &n.to_string())?;

    let first = ctx.child(kin, task(0, Does::Give)).await?;
    told.take(Some(first)).await?;
    let failed = ctx.child(kin, task(1, Does::Fail)).outcome().await?;
    let given = failed.err().and_then(|error| error.details());
    told.take(given).await?;
    let failed = ctx.child(kin, task(2, Does::Fail)).await;
    let given = failed.err().and_then(|error| error.details());
    told.take(given).await?;

    let many = ctx
        .map("many", 3..8, async |ctx, slot| {
            let given = ctx.child(kin, task(slot, Does::Give)).await?;
            trace.mix(given.value);
            trace.run(&ctx, "beside").await?;
            Ok(given)
        })
        .concurrency(3)
        .await?;
    for given in many {
        told.take(Some(given)).await?;
    }

    // Started, and waited for as anybody can.
    let id = ctx.child(kin, task(8, Does::Dally)).detach().await?;
    let ending = ctx.finished(id).await?;
    told.take(ending.output()?).await?;
    let key = format!("kin-{n}");
    let id = ctx.child(kin, task(9, Does::Fail)).key(&key).detach().await?;
    let ending = ctx.finished(("kin", key.as_str())).await?;
    let same = ending.run == id && ending.status == RunStatus::Failed;
    let given = ending.failure.filter(|_| same);
    told.take(given.and_then(|failure| failure.details())).await?;

    let first = ctx
        .race(
            "either",
            (
                branch("kin", async |ctx| ctx.child(kin, task(MAY_LOSE, Does::Dally)).await),
                branch("nap", async |ctx| ctx.sleep("nap", Duration::from_millis(25)).await),
            ),
        )
        .await?;
    match first {
        First2::A(given) => told.take(Some(given)).await?,
        First2::B(_) => trace.mix(1),
    }
    ctx.race(
        "never",
        (
            branch("kin", async |ctx| ctx.child(kin, task(CANCELLED[0], Does::Wait)).await),
            branch("nap", async |ctx| ctx.sleep("nap", Duration::from_millis(15)).await),
        ),
    )
    .await?;
    let left = ctx.child(kin, task(CANCELLED[1], Does::Wait));
    left.close(Close::Cancel).detach().await?;
    trace.run(&ctx, "last").await?;
    trace.end(&ctx)?;
    Ok(told.all)
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("family", part);
    while !outside.stop.get() {
        let n = outside.number();
        let run = outside.start(family, "family", n, n).await;
        if let Some(told) = outside.result(&run).await {
            outside.families.borrow_mut().push(Ended { n, told });
        }
        let tags = ask(async || {
            let list = outside.client.list().workflow("family");
            list.tag("family", n.to_string()).await
        });
        match tags.await {
            Ok(page) if page.runs.len() == 1 => {}
            other => outside.wrong(format!("family {n} is not found by its tag: {other:?}")),
        }
        pause(&random, 0, 100).await;
    }
}

pub(super) async fn check(outside: &Outside, ledger: &Ledger) -> Result<(), Problem> {
    let mut born: HashMap<(u64, u64), HashSet<RunId>> = HashMap::new();
    for note in ledger.notes("kin") {
        let [parent, slot, run] = &note[..] else {
            continue;
        };
        let slot = (parent.parse()?, slot.parse()?);
        born.entry(slot).or_default().insert(run.parse()?);
    }
    let mut told: HashMap<(u64, u64), HashSet<(String, u64)>> = HashMap::new();
    for note in ledger.notes("told") {
        let [parent, slot, run, value] = &note[..] else {
            continue;
        };
        let slot = (parent.parse()?, slot.parse()?);
        told.entry(slot).or_default().insert((run.clone(), value.parse()?));
    }
    for (slot, runs) in &born {
        if runs.len() > 1 {
            outside.broken("children_twice", format!("child {slot:?} was started as {runs:?}"));
        }
    }
    let families = outside.families.take();
    for Ended { n, told: output } in &families {
        for slot in 0..CHILDREN {
            let runs = born.get(&(*n, slot));
            let run = runs.and_then(|runs| runs.iter().next().copied());
            let given: Vec<&Kin> = output.iter().filter(|one| one.slot == slot).collect();
            let place = format!("family {n}, child {slot}");
            let status = match run {
                Some(run) => Some(outside.client.run::<Kin>(run).status().await?),
                None => None,
            };
            match (slot, &given[..], run) {
                (CANCELLED_FIRST..=CANCELLED_LAST, [], _) => {
                    if status.is_some_and(|status| status != RunStatus::Cancelled) {
                        outside.broken("children_lost", format!("{place} is {status:?}"));
                    }
                }
                (MAY_LOSE, [], _) => {}
                (_, [one], Some(run)) => {
                    let own = own_word(outside, run).await?;
                    let notes = told.get(&(*n, slot));
                    let noted = notes.is_some_and(|notes| {
                        notes.len() == 1 && notes.contains(&(one.run.clone(), one.value))
                    });
                    if one.run != run.to_string() || own.as_ref() != Some(one) || !noted {
                        let what = format!(
                            "{place}: its parent was told {one:?} and noted {notes:?}; it says {own:?}"
                        );
                        outside.broken("children_lost", what);
                    }
                }
                (_, [_, _, ..], _) => {
                    outside.broken("children_twice", format!("{place} was told {given:?}"));
                }
                _ => outside.broken("children_lost", format!("{place}: {given:?}, {run:?}")),
            }
        }
        if (output.len() as u64) < TOLD {
            outside.broken("children_lost", format!("family {n} was told {output:?}"));
        }
    }
    let started = started(outside).await?;
    outside.count("children", started.values().sum());
    for Ended { n, .. } in &families {
        for slot in 0..CHILDREN {
            let place = format!("family {n}, child {slot}");
            match started.get(&(*n, slot)).copied().unwrap_or(0) {
                1 => {}
                // One that loses its race before the commit that would start it is never started.
                0 if slot == MAY_LOSE || slot == CANCELLED[0] => {}
                0 => outside.broken("children_lost", format!("{place} was not started")),
                runs => {
                    outside.broken("children_twice", format!("{place} was started {runs} times"))
                }
            }
        }
    }
    Ok(())
}

/// How many runs the store has of each child, by family and slot: from their inputs, whatever they
/// have noted.
async fn started(outside: &Outside) -> Result<HashMap<(u64, u64), u64>, Problem> {
    let mut started = HashMap::new();
    let mut after = None;
    loop {
        let mut list = outside.client.list().workflow("kin").limit(1_000);
        if let Some(last) = after {
            list = list.after(last);
        }
        let page = list.await?;
        for run in page.runs {
            let number = |field: &str| run.input[field].as_u64().unwrap_or(u64::MAX);
            let child = (number("parent"), number("slot"));
            *started.entry(child).or_insert(0) += 1;
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(started),
        }
    }
}

const CANCELLED_FIRST: u64 = CANCELLED[0];
const CANCELLED_LAST: u64 = CANCELLED[1];

/// What the child itself says that it gave.
async fn own_word(outside: &Outside, run: RunId) -> Result<Option<Kin>, Problem> {
    match outside.client.run::<Kin>(run).poll().await {
        Ok(given) => Ok(given),
        Err(error @ RunError::Failed { .. }) => Ok(error.failure().and_then(|f| f.details())),
        Err(RunError::Cancelled { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
