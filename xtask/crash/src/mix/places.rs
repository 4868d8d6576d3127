//! Limits: never more bodies at once than there are places, in all processes together.
//!
//! A body writes when it comes in and when it leaves. One that was killed has left with its
//! process. One whose process was stopped for longer than its lease is not counted any more: its
//! place is another's by then, and it cannot know.

use std::{
    collections::{BTreeMap, HashMap, HashSet},
    io,
    rc::Rc,
};

use everstep::{EngineBuilder, Limit, prelude::*};

use super::{Outside, pause};
use crate::{
    bodies::{Bodies, Kind, Trace, work},
    ledger::Ledger,
};

/// How many may be in at once, for each of two keys.
const PLACES: u32 = 3;
const DESK: Limit = Limit::new("desk").concurrency(PLACES);

/// How often a run comes in.
const VISITS: u64 = 4;

pub(super) fn register(builder: EngineBuilder) -> EngineBuilder {
    builder.register(visits)
}

#[workflow]
pub(crate) async fn visits(ctx: Ctx, n: u64) -> Result<()> {
    let trace = Trace::new(&ctx);
    for turn in 0..VISITS {
        let (key, made) = ((n + turn) % 2, trace.made());
        let body = async |step: Step| {
            let _visit = Visit::new(&step, key)?;
            work(&step, &made, Kind::Firm).await
        };
        trace.take(ctx.step_with("visit", body).limit_key(DESK, key).await?);
    }
    trace.end(&ctx)
}

/// Somebody who is in, and leaves however the body ends.
struct Visit<'a> {
    bodies: &'a Bodies,
    who: String,
}

impl Visit<'_> {
    fn new(step: &Step, key: u64) -> io::Result<Visit<'_>> {
        let (run, at, process) = (step.run_id(), step.location(), std::process::id());
        let who = format!("{key}\t{run}\t{at}\t{process}");
        let bodies = step.get::<Bodies>();
        bodies.note(&format!("place\tin\t{who}"))?;
        Ok(Visit { bodies, who })
    }
}

impl Drop for Visit<'_> {
    fn drop(&mut self) {
        // Without the line somebody seems to be in who is not, and the check says so.
        drop(self.bodies.note(&format!("place\tout\t{}", self.who)));
    }
}

pub(super) async fn drive(outside: Rc<Outside>, part: u64) {
    let random = outside.random("places", part);
    while !outside.stop.get() {
        let several = (0..3).map(|_| outside.number()).collect::<Vec<_>>();
        let mut runs = Vec::new();
        for n in several {
            runs.push(outside.start(visits, "visits", n, n).await);
        }
        for run in runs {
            outside.result(&run).await;
        }
        pause(&random, 0, 50).await;
    }
}

pub(super) fn check(outside: &Outside, ledger: &Ledger) {
    let notes: Vec<Vec<&str>> = ledger
        .notes("place")
        .iter()
        .map(|note| note.iter().map(String::as_str).collect())
        .collect();
    let last = last_of_killed(&notes);
    // The bodies that are in, by key: process, run and step, and the place of the note that says so.
    let mut inside: BTreeMap<&str, HashMap<(&str, &str, &str), usize>> = BTreeMap::new();
    let mut stopped: HashSet<&str> = HashSet::new();
    for (place, note) in notes.iter().enumerate() {
        match note[..] {
            ["in", key, run, at, process] if !stopped.contains(process) => {
                outside.count("limited_bodies", 1);
                let inside = inside.entry(key).or_default();
                inside.retain(|(other, ..), since| {
                    let mut deaths = last.get(other).into_iter().flatten();
                    !deaths.any(|last| (*since..place).contains(last))
                });
                inside.insert((process, run, at), place);
                if inside.len() > PLACES as usize {
                    let what = format!("{:?} are in for key {key}", inside.keys());
                    outside.broken("limit_exceeded", what);
                }
            }
            ["out", key, run, at, process] => {
                inside.entry(key).or_default().remove(&(process, run, at));
            }
            ["stopped", process] => {
                stopped.insert(process);
                for inside in inside.values_mut() {
                    inside.retain(|(other, ..), _| *other != process);
                }
            }
            _ => {}
        }
    }
}

/// Of each process that was killed, the place of the last note that it wrote itself. It may have died
/// right after that: the parent reads the ledger and notes the death a moment later, and on a file the
/// next owner does not wait for the end of a lease, so its bodies may already be in by then. The system
/// gives the id of a process to another one later, which may be killed, too.
fn last_of_killed<'a>(notes: &[Vec<&'a str>]) -> HashMap<&'a str, Vec<usize>> {
    let mut last = HashMap::new();
    let mut killed: HashMap<&str, Vec<usize>> = HashMap::new();
    for (place, note) in notes.iter().enumerate() {
        match note[..] {
            ["in" | "out", .., process] => _ = last.insert(process, place),
            ["killed", process] => killed.entry(process).or_default().extend(last.remove(process)),
            _ => {}
        }
    }
    killed
}

#[cfg(test)]
mod tests {
    use super::{super::tests, *};

    fn exceeded(notes: &[&str]) -> u64 {
        let outside = tests::outside();
        check(&outside, &tests::ledger(notes));
        outside.counted("limit_exceeded")
    }

    #[test]
    fn process_that_got_the_id_of_one_that_was_killed_is_another_one() {
        let notes = [
            "place in 0 a x 1",
            "place killed 1",
            "place in 0 b x 1",
            "place killed 1",
            "place in 0 c x 2",
            "place in 0 d x 2",
            "place in 0 e x 2",
        ];
        assert_eq!(exceeded(&notes), 0);
        let alive = [&notes[..3], &notes[4..]].concat();
        assert_eq!(exceeded(&alive), 1);
    }

    #[test]
    fn one_too_many_is_found_and_one_that_was_killed_has_left() {
        let three = ["place in 0 a x 1", "place in 0 b x 1", "place in 0 c x 1"];
        let after = |between: &[&str], then: &str| exceeded(&[&three, between, &[then]].concat());
        assert_eq!(after(&[], "place in 0 d x 1"), 1);
        assert_eq!(after(&[], "place in 1 d x 1"), 0);
        assert_eq!(after(&["place out 0 a x 1"], "place in 0 d x 1"), 0);
        assert_eq!(after(&["place killed 1"], "place in 0 d x 2"), 0);
        assert_eq!(after(&["place killed 2"], "place in 0 d x 2"), 1);
        assert_eq!(after(&["place stopped 1"], "place in 0 d x 1"), 0);
    }

    /// The next owner had begun before the parent had noted the death, and one too many seemed to be in.
    #[test]
    fn process_that_was_killed_has_left_after_its_last_note() {
        let three = ["place in 0 a x 1", "place in 0 b x 1", "place in 0 c x 1"];
        let next = ["place in 0 a x 2"];
        let dead = ["place killed 1"];
        assert_eq!(exceeded(&[&three[..], &next, &dead].concat()), 0);
        let alive = ["place in 1 d x 1"];
        assert_eq!(exceeded(&[&three[..], &next, &alive, &dead].concat()), 1);
    }
}
