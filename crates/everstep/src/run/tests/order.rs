//! Random programs, random orders of events, a crash at every point: every replay shows what the
//! first pass has shown, and goes on to the end.

use super::{
    hands,
    owner::{Gone, Owner, Point, workflow_with},
    program::{Dice, Ending, Names, Program, run},
    sabotage::{self, Sabotage},
};
use crate::{
    commit::RunStatus,
    history::{EntryKind, EntryStatus, EntryValue},
    retry::Retry,
    run::{Definition, End},
    workflow::WorkflowOptions,
};
use std::{sync::Arc, time::Duration};

/// Longer than any program takes.
const EVENTS_MAX: usize = 4_000;

fn definition(program: &'static Program) -> Arc<Definition> {
    let options = WorkflowOptions::new().retry(Retry::fixed(2, Duration::from_millis(500)));
    workflow_with(options, move |ctx| run(program, ctx))
}

/// Something that may happen to a run.
#[derive(Clone, Copy)]
enum Event {
    Ack,
    Finish(u64),
    Nudge(u64),
    Timer,
    Deliver(usize),
    Tell,
    Disturb,
    Evict,
}

/// Plays events until the run has ended.
fn play(owner: &mut Owner, dice: &mut Dice, evicts: bool) -> Result<(), String> {
    let mut messages = 0;
    for _ in 0..EVENTS_MAX {
        owner.drive();
        if let Some(violation) = hands::violation() {
            return Err(violation);
        }
        if let Some(Gone::Paused(why)) = &owner.gone {
            return Err(format!("paused: {why}"));
        }
        if owner.gone.is_some() {
            return Ok(());
        }
        let mut events = Vec::new();
        if owner.in_flight() {
            events.extend([Event::Ack; 3]);
        }
        for (id, _) in hands::held() {
            events.extend([Event::Finish(id), Event::Finish(id)]);
        }
        if owner.run().next_timer().is_some() {
            events.push(Event::Timer);
        }
        if owner.has_untold() {
            events.extend([Event::Tell; 2]);
        }
        if owner.listens() {
            events.push(Event::Deliver(dice.roll(2)));
        }
        if events.is_empty() {
            return Err("stuck: nothing can happen any more".into());
        }
        if let Some((id, _)) = hands::held().first() {
            events.push(Event::Nudge(*id));
        }
        events.push(Event::Disturb);
        if evicts && owner.run().is_parked() {
            events.push(Event::Evict);
        }
        match events[dice.roll(events.len())] {
            Event::Ack => owner.ack(),
            Event::Finish(id) => hands::let_go(id),
            Event::Nudge(id) => hands::nudge(id),
            Event::Timer => _ = owner.fire_next_timer(),
            Event::Deliver(channel) => {
                messages += 1;
                owner.deliver(&format!("c{channel}"), &format!("m{messages}"));
                if dice.roll(2) == 0 {
                    owner.tell();
                }
            }
            Event::Tell => owner.tell(),
            Event::Disturb => owner.disturb(dice.roll(64)),
            Event::Evict => owner.reload(),
        }
    }
    Err(format!("not at its end after {EVENTS_MAX} events"))
}

/// What must be true of a run that has ended.
fn check_end(program: &'static Program, owner: &Owner) -> Result<(), String> {
    let expected = match program.ending {
        Ending::RollBack => RunStatus::Failed,
        _ => RunStatus::Completed,
    };
    if owner.gone != Some(Gone::Finished(expected)) {
        return Err(format!("it should be {expected}, but is {:?}", owner.gone));
    }
    if program.ending == Ending::RollBack {
        check_rollbacks(owner)
    } else {
        replay_finished(program, owner)
    }
}

/// Every completed step that has a rollback is compensated once, with its own value, last first.
fn check_rollbacks(owner: &Owner) -> Result<(), String> {
    let entries = owner.entries();
    let mut last: Vec<(u64, (u64, String))> = Vec::new();
    for (place, step) in &entries {
        if !step.compensable || step.status != EntryStatus::Completed {
            continue;
        }
        let undo = format!("rollback of {place}");
        let Some((_, rollback)) = entries.iter().find(|(at, _)| *at == undo) else {
            return Err(format!("`{place}` was not compensated"));
        };
        if (rollback.kind, rollback.status) != (EntryKind::Rollback, EntryStatus::Completed) {
            return Err(format!("`{place}` is compensated {:?}", rollback.status));
        }
        let number = rollback.number.ok_or(format!("`{undo}` has no number"))?;
        if owner.rolled_back_at.is_some_and(|at| number > at) {
            last.push((number, (step.number.unwrap_or(u64::MAX), place.clone())));
        }
        for (at, value) in hands::undone() {
            let EntryValue::Payload(bytes) = &step.value else {
                continue;
            };
            let stored: String = crate::codec::payload::from_slice(bytes).unwrap();
            if at == undo && value != stored {
                return Err(format!("`{undo}` got {value} instead of {stored}"));
            }
        }
    }
    last.sort();
    let order: Vec<u64> = last.iter().map(|(_, (number, _))| *number).collect();
    if !order.is_sorted_by(|a, b| a >= b) {
        return Err(format!("rollbacks ran out of order: {last:?}"));
    }
    Ok(())
}

/// A finished run, run again from its history alone, gives the same output.
fn replay_finished(program: &'static Program, owner: &Owner) -> Result<(), String> {
    let live = owner.view();
    let output = owner.row().output;
    let mut again = Owner::load(owner, definition(program));
    again.run().drive();
    let (end, halt) = (again.run().end.take(), again.run().core.state.borrow_mut().halt.take());
    match end {
        Some(End::Output(bytes)) if Some(&bytes) == output.as_ref() => {}
        Some(End::Output(_)) => {
            return Err("a replay of the finished run gives another output".into());
        }
        _ => {
            return Err(format!("a replay of the finished run does not end: {halt:?}"));
        }
    }
    let (first, second) = (live.since(&live), again.view().since(&live));
    match first == second {
        true => Ok(()),
        false => Err(format!("the finished run {}", difference(&first, &second))),
    }
}

/// Where two logs differ.
fn difference(first: &[(u64, String)], second: &[(u64, String)]) -> String {
    let same = first.iter().zip(second).take_while(|(a, b)| a == b).count();
    let (first, second) = (&first[same..], &second[same..]);
    let few = |lines: &[(u64, String)]| format!("{:#?}", &lines[..lines.len().min(6)]);
    format!("differs after {same} lines: first {}, replayed {}", few(first), few(second))
}

/// Goes on from a crash point, and compares.
fn check_point(
    program: &'static Program,
    point: &Point,
    live: &Owner,
    dice: &mut Dice,
    to_the_end: bool,
) -> Result<(), String> {
    let mut again = Owner::after(point, definition(program), live);
    let compare = again.is_forward() && again.row().status != RunStatus::Pending;
    again.drive();
    if compare && !again.row().status.is_terminal() {
        let (now, then) = (again.view(), &point.view);
        let (first, second) = (then.since(then), now.since(then));
        let news = point.news || program.immediate;
        let same = match news {
            true => second.starts_with(&first),
            false => second == first,
        };
        if !same {
            return Err(difference(&first, &second));
        }
        if !news && now.open != then.open {
            return Err(format!("open\n  first {:?}\n  replay {:?}", then.open, now.open));
        }
    }
    if again.row().status.is_terminal() || !to_the_end {
        return Ok(());
    }
    play(&mut again, dice, true)?;
    check_end(program, &again)
}

/// How many crash points a program has, or what is wrong with it.
fn check(program: &'static Program, seed: u64) -> Result<usize, String> {
    let whole = std::env::var_os("EVERSTEP_ORDER_PROGRAMS").is_some();
    let dice = &mut Dice::new(seed ^ 0xE7E7);
    let mut live = Owner::start(definition(program));
    live.record();
    play(&mut live, dice, false).map_err(|why| format!("first pass: {why}"))?;
    let points = live.take_points();
    check_end(program, &live).map_err(|why| format!("first pass: {why}"))?;
    for (i, point) in points.iter().enumerate() {
        let to_the_end = whole || dice.roll(10) == 0;
        let found = check_point(program, point, &live, dice, to_the_end);
        found.map_err(|why| format!("crash point {i} of {}: {why}", points.len()))?;
    }
    Ok(points.len())
}

/// The first seed from `seeds` that fails, and how.
fn first_failure(
    names: Names,
    seeds: std::ops::Range<u64>,
    depth: usize,
) -> (usize, Option<String>) {
    let mut points = 0;
    for seed in seeds {
        let program: &'static Program = Box::leak(Box::new(Program::grow(seed, depth, names)));
        let checked = std::panic::catch_unwind(|| check(program, seed));
        let checked = checked.unwrap_or_else(|panic| Err(crate::panics::describe(&*panic)));
        match checked {
            Ok(n) => points += n,
            Err(why) => {
                let text =
                    format!("{names:?} names, seed {seed}, depth {depth}: {why}\n{program:#?}");
                return (points, Some(text));
            }
        }
    }
    (points, None)
}

/// Looks for a smaller program that fails too.
fn smallest(names: Names, failure: String) -> String {
    let smaller = (1..=3).find_map(|depth| first_failure(names, 0..400, depth).1);
    smaller.filter(|text| text.len() < failure.len()).unwrap_or(failure)
}

/// `EVERSTEP_ORDER_PROGRAMS` asks for more of them, each run to its end from every point.
fn check_programs(names: Names) {
    let programs = std::env::var("EVERSTEP_ORDER_PROGRAMS").ok();
    let programs = programs.map_or(1_000, |n| n.parse().expect("a number of programs"));
    let (points, failure) = first_failure(names, 0..programs, 4);
    if let Some(failure) = failure {
        panic!("{}", smallest(names, failure));
    }
    assert!(points as u64 > programs * 4, "only {points} crash points in {programs} programs");
}

#[test]
fn replay_of_random_programs_is_exact_at_every_crash_point() {
    check_programs(Names::Distinct);
}

#[test]
fn replay_of_random_programs_with_equal_names_is_exact_at_every_crash_point() {
    check_programs(Names::Equal);
}

#[test]
fn a_broken_order_or_barrier_is_caught() {
    for broken in [
        Sabotage::AnyPoll,
        Sabotage::AlwaysDirect,
        Sabotage::NoBarrier,
        Sabotage::BarrierAtMaking,
        Sabotage::ForgetRollbacks,
    ] {
        let (_, failure) = sabotage::with(broken, || first_failure(Names::Equal, 0..1_000, 4));
        assert!(failure.is_some(), "{broken:?} is not noticed");
    }
}
