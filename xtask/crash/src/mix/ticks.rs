//! Schedules with short intervals: every tick starts one run.
//!
//! Which ticks were due follows from the interval and from where it is counted from, between the
//! making of the schedule and its pause; which were started is said by the bodies of their runs.

use std::{
    collections::{BTreeSet, HashSet},
    rc::Rc,
    time::Duration,
};

use everstep::{ClientError, Clock, EngineBuilder, Overlap, SystemClock, hours, prelude::*};

use super::{Outside, until_ok};
use crate::{Problem, bodies::Trace, ledger::Ledger};

/// The intervals of the schedules, in milliseconds.
pub(super) const INTERVALS: [u64; 4] = [170, 230, 370, 610];

/// A schedule, as it was when it was paused.
pub(crate) struct Paused {
    name: String,
    interval: u64,
    /// It was seen to have dealt with every tick up to here.
    done_until: Timestamp,
}

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(tick)
}

#[workflow]
pub(crate) async fn tick(ctx: Ctx, schedule: String) -> Result<()> {
    let at = ctx.scheduled_at();
    let at = at.ok_or_else(|| Error::fatal("a tick without its time"))?;
    let note = format!("tick\t{schedule}\t{}\t{}", at.as_millis(), ctx.run_id());
    let trace = Trace::new(&ctx);
    trace.note(&ctx, "tick", note).await?;
    trace.run(&ctx, "tock").await?;
    trace.end(&ctx)
}

pub(super) async fn drive(outside: Rc<Outside>, n: u64) {
    let interval = INTERVALS[n as usize];
    let name = format!("every-{interval}");
    let client = &outside.client;
    let make = async || {
        let schedule = client.schedule(&name, tick, name.clone());
        let every = schedule.every(Duration::from_millis(interval));
        every.overlap(Overlap::Allow).catch_up(hours(1)).await
    };
    let schedule = until_ok(make).await;
    while !outside.stop.get() {
        tokio::time::sleep(Duration::from_millis(300)).await;
        // As a program does that makes its schedules each time it starts: nothing changes.
        if until_ok(make).await.replaced() {
            outside.wrong(format!("schedule `{name}` was replaced by an equal one"));
        }
    }
    // Nobody is killed any more: what is owed is dealt with before it ends.
    let done_until = loop {
        let now = SystemClock.now();
        let info = until_ok(async || schedule.info().await).await;
        if info.next_at.is_some_and(|next| next > now) {
            break now;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    };
    until_ok(async || schedule.pause().await).await;
    outside.ticks.borrow_mut().push(Paused { name, interval, done_until });
}

pub(super) async fn check(outside: &Outside, ledger: &Ledger) -> Result<(), Problem> {
    let mut runs: HashSet<(String, i64, String)> = HashSet::new();
    for note in ledger.notes("tick") {
        let [name, at, run] = &note[..] else { continue };
        runs.insert((name.clone(), at.parse()?, run.clone()));
    }
    outside.count("ticks_started", runs.len() as u64);
    for paused in outside.ticks.take() {
        let (anchor, next) = outside.place.schedule_times(&paused.name)?;
        let due: BTreeSet<i64> = (1..)
            .map(|n| anchor + n * paused.interval as i64)
            .take_while(|at| *at < next)
            .collect();
        outside.count("ticks_due", due.len() as u64);
        let name = &paused.name;
        if next <= paused.done_until.as_millis() {
            outside.wrong(format!("schedule `{name}` went back to {next}"));
        }
        let started: Vec<i64> = {
            let of = runs.iter().filter(|(schedule, ..)| schedule == name);
            of.map(|(_, at, _)| *at).collect()
        };
        let once: BTreeSet<i64> = started.iter().copied().collect();
        if once.len() < started.len() {
            outside.wrong(format!("schedule `{name}`: a tick has two runs"));
        }
        for at in once.symmetric_difference(&due).take(5) {
            outside.wrong(format!(
                "schedule `{name}`: the tick at {at} was {}",
                if due.contains(at) { "not started" } else { "started and not due" }
            ));
        }
        let info = outside.client.schedule_info(name).await?;
        let info = info.ok_or_else(|| ClientError::UnknownSchedule { schedule: name.clone() })?;
        let own = (info.started, info.skipped, info.missed);
        if own != (due.len() as u64, 0, 0) {
            outside.wrong(format!("schedule `{name}` says {own:?} of {}", due.len()));
        }
    }
    Ok(())
}
