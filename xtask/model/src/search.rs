//! The search: what must hold in every state that can be reached, and how far it is looked.
//!
//! A state in which nothing can happen any more is an end. What must come about in the end is asked
//! there, as a property of every state, because the search remembers states and not the paths to
//! them. What must be possible is asked too: a model in which no batch ever came late would hold
//! whatever the protocol was.

use std::{
    fmt::{Debug, Display, Write as _},
    hash::Hash,
    time::{Duration, Instant},
};

use stateright::{Checker, Expectation, HasDiscoveries, Model, Property};

use crate::{
    away::Away,
    body::Bodies,
    protocol::{Break, Protocol, Step},
    state::{Left, Owner, Process, RunnerNo, ShardNo, State, Wrong},
};

/// A rule that one of the small models can do without, to see that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Rule {
    /// A body starts only under the lease with which its run was read.
    BodyEpoch,
    /// A run that is live is not put away.
    PutAway,
    /// A run in line asks for its place again when its row is written.
    AskAgain,
}

impl Rule {
    pub(crate) const ALL: [Rule; 3] = [Rule::BodyEpoch, Rule::PutAway, Rule::AskAgain];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Rule::BodyEpoch => "body-epoch",
            Rule::PutAway => "put-away",
            Rule::AskAgain => "ask-again",
        }
    }
}

/// Searches the small models, or the one that has this rule, without it; whether everything holds.
pub(crate) fn report_small(without: Option<Rule>) -> bool {
    let mut holds = true;
    if matches!(without, None | Some(Rule::BodyEpoch)) {
        let model = bodies(without);
        let lapses = model.lapses;
        println!("the start of a body: 2 runners, leases that run out: {lapses}");
        holds &= report(model, without.map(Rule::name));
    }
    if without != Some(Rule::BodyEpoch) {
        let model = away(without);
        let Away { pauses, crashes, .. } = model;
        println!("runs that are put away: pauses: {pauses}, crashes: {crashes}");
        holds &= report(model, without.map(Rule::name));
    }
    holds
}

fn bodies(without: Option<Rule>) -> Bodies {
    Bodies {
        any_lease: without == Some(Rule::BodyEpoch),
        // One suffices for what goes wrong, and makes the way to it short.
        lapses: if without.is_some() { 1 } else { 3 },
    }
}

fn away(without: Option<Rule>) -> Away {
    Away {
        gives_away: without == Some(Rule::PutAway),
        asks_once: without == Some(Rule::AskAgain),
        pauses: if without.is_some() { 1 } else { 3 },
        crashes: if without.is_some() { 0 } else { 2 },
    }
}

/// One search.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Variant {
    name: &'static str,
    protocol: Protocol,
}

/// How far to look, where it is not as usual.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Bounds {
    pub(crate) faults: Option<u8>,
    pub(crate) moves: Option<u8>,
    pub(crate) commits: Option<u8>,
    pub(crate) ticks: Option<u8>,
}

/// What a search has found.
pub(crate) struct Findings {
    /// All states, each as often as it was come to.
    states: usize,
    unique: usize,
    depth: usize,
    time: Duration,
    /// What does not hold, with the steps to where it does not.
    pub(crate) broken: Vec<(&'static str, String)>,
    /// What should have been seen, and was not.
    pub(crate) unseen: Vec<&'static str>,
}

impl Variant {
    /// What is searched to its end: many faults, and fewer beside a planned move.
    pub(crate) const ALL: [Variant; 5] = [
        Variant::STORE_TIME,
        Variant::OWN_CLOCKS,
        Variant::STORE_TIME.with_a_move(),
        Variant::OWN_CLOCKS.with_a_move(),
        Variant::OWN_CLOCKS.with_moves_alone(),
    ];

    const STORE_TIME: Variant = Variant {
        name: "leases by the store's time, owners fence themselves",
        protocol: Protocol {
            self_fencing: true,
            ahead: 0,
            ticks: 2,
            left: Left { faults: 2, moves: 0, commits: 2 },
            broken: None,
        },
    };

    const OWN_CLOCKS: Variant = Variant {
        name: "clocks differ by half a lease, no owner fences itself",
        protocol: Protocol { self_fencing: false, ahead: 1, ..Variant::STORE_TIME.protocol },
    };

    const fn with_a_move(mut self) -> Variant {
        self.protocol.left.faults -= 1;
        self.protocol.left.moves += 1;
        self
    }

    /// A shard that leaves, comes back and leaves again.
    const fn with_moves_alone(mut self) -> Variant {
        self.protocol.left.faults = 0;
        self.protocol.left.moves = 3;
        self
    }

    /// The variant in which a missing part shows most clearly, without it.
    pub(crate) fn to_break(part: Break) -> Variant {
        let variant = match part {
            Break::SelfFencing | Break::Settle | Break::TakeoverOrder => Variant::STORE_TIME,
            _ => Variant::OWN_CLOCKS,
        };
        // Small bounds suffice, and let the way to what goes wrong be found at once.
        let (faults, moves, commits) = match part {
            Break::ReleaseEarly => (2, 1, 1),
            Break::TakeoverOrder => (2, 0, 0),
            // One whose clock is ahead takes a shard that was given back, and dies.
            Break::Silence => (1, 1, 0),
            // A shard that leaves while it is read, and comes back.
            Break::ReadCheck => (0, 3, 2),
            _ => (2, 0, 1),
        };
        let left = Left { faults, moves, commits };
        let protocol = Protocol { left, ticks: 2, broken: Some(part), ..variant.protocol };
        Variant { protocol, ..variant }
    }

    #[cfg(test)]
    pub(crate) fn start(&self) -> State {
        self.protocol.start()
    }

    /// The same, followed less far or further.
    pub(crate) fn within(self, bounds: Bounds) -> Variant {
        let Protocol { left, ticks, .. } = self.protocol;
        let left = Left {
            faults: bounds.faults.unwrap_or(left.faults),
            moves: bounds.moves.unwrap_or(left.moves),
            commits: bounds.commits.unwrap_or(left.commits),
        };
        let ticks = bounds.ticks.unwrap_or(ticks);
        let protocol = Protocol { left, ticks, ..self.protocol };
        Variant { protocol, ..self }
    }

    /// Searches, and prints what was found; whether everything holds.
    pub(crate) fn report(&self) -> bool {
        let Protocol { left, ticks, .. } = self.protocol;
        println!(
            "{}: {} faults, {} moves, {} commits, {ticks} ticks",
            self.name, left.faults, left.moves, left.commits
        );
        report(self.protocol, self.protocol.broken.map(Break::name))
    }
}

/// What can be searched, and whose steps can be told.
trait Searched:
    Model<State: SearchedState, Action: SearchedAction> + Copy + Send + Sync + 'static
{
}

impl<M> Searched for M where
    M: Model<State: SearchedState, Action: SearchedAction> + Copy + Send + Sync + 'static
{
}

trait SearchedState: Clone + Debug + Display + Hash + PartialEq + Send + Sync + 'static {}

impl<S: Clone + Debug + Display + Hash + PartialEq + Send + Sync + 'static> SearchedState for S {}

trait SearchedAction: Clone + Debug + Display + PartialEq {}

impl<A: Clone + Debug + Display + PartialEq> SearchedAction for A {}

/// Searches a model, and prints what was found; whether everything holds.
fn report<M: Searched>(model: M, left_out: Option<&str>) -> bool {
    if let Some(part) = left_out {
        println!("  left out: {part}");
    }
    let found = search(model, left_out.is_some());
    println!(
        "  {} states, {} of them unique, depth {}, {:.1} s",
        found.states,
        found.unique,
        found.depth,
        found.time.as_secs_f64()
    );
    for (name, steps) in &found.broken {
        println!("  does not hold: {name}\n{steps}");
    }
    for name in &found.unseen {
        println!("  never seen, so nothing is shown: {name}");
    }
    let holds = found.broken.is_empty() && found.unseen.is_empty();
    if holds {
        let properties = model.properties();
        let always = properties.iter().filter(|property| must_hold(property));
        always.for_each(|property| println!("  holds: {}", property.name));
    }
    holds
}

/// Searches all states, or until something does not hold.
fn search<M: Searched>(model: M, is_broken: bool) -> Findings {
    let begun = Instant::now();
    let threads = match is_broken {
        // One thread finds the shortest way to what goes wrong.
        true => 1,
        false => std::thread::available_parallelism().map_or(1, usize::from),
    };
    let checker = model.checker().threads(threads);
    let checker = checker.finish_when(HasDiscoveries::AnyFailures).spawn_bfs();
    let checker = checker.join();
    let mut discoveries = checker.discoveries();
    let (mut broken, mut unseen) = (Vec::new(), Vec::new());
    for property in model.properties() {
        let discovery = discoveries.remove(property.name);
        match (must_hold(&property), discovery) {
            (true, Some(path)) => broken.push((property.name, told(path.into_vec()))),
            (false, None) => unseen.push(property.name),
            _ => {}
        }
    }
    if !broken.is_empty() {
        unseen.clear(); // The search has ended early.
    }
    Findings {
        states: checker.state_count(),
        unique: checker.unique_state_count(),
        depth: checker.max_depth(),
        time: begun.elapsed(),
        broken,
        unseen,
    }
}

impl Model for Protocol {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        vec![self.start()]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        self.steps(state, steps);
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        Some(self.after(state, step))
    }

    fn properties(&self) -> Vec<Property<Self>> {
        let mut properties = vec![
            Property::always("at most one owner can commit", |_, state: &State| {
                !matches!(state.wrong, Some(Wrong::NotOwner | Wrong::OldState))
            }),
            Property::always("nothing is applied twice", |_, state: &State| {
                state.wrong != Some(Wrong::Twice)
            }),
            Property::always(
                "an owner that fences itself sends nothing after a takeover",
                |_, state: &State| state.wrong != Some(Wrong::SentTooLate),
            ),
            Property::always(
                "every live run has an owner again",
                |protocol: &Protocol, state: &State| {
                    state.wrong.is_some()
                        || !state.runners.iter().any(|runner| runner.is_alive())
                        || ShardNo::all().all(|shard| has_owner(state, shard))
                        || !protocol.is_end(state)
                },
            ),
            Property::sometimes("what was read comes too late", |_, state: &State| {
                RunnerNo::all().any(|no| {
                    let runner = state.runner(no);
                    let mut reads = runner.reads.iter().zip(runner.owned);
                    reads.any(|(read, owned)| owned && read.is_some_and(|read| !read.current))
                })
            }),
            Property::sometimes("the runner that joined has a shard", |_, state: &State| {
                let mut owners = state.shards.iter().flatten();
                owners.any(|owner| owner.runner == RunnerNo(2))
            }),
        ];
        if self.left.faults > 0 {
            properties.extend(seen_after_faults());
        }
        properties
    }
}

/// What must have been seen in a search with faults. Moves alone do not come to it.
fn seen_after_faults() -> Vec<Property<Protocol>> {
    vec![
        Property::sometimes("a batch comes under an old epoch", |_, state: &State| {
            let mut batches = state.batches.iter();
            batches.any(|batch| !batch.begun && !state.fence_holds(batch.runner, batch.fence))
        }),
        Property::sometimes("a takeover waits for a batch", |_, state: &State| {
            let mut takes = state.takes.iter().flatten();
            takes.any(|take| take.begun && state.is_shared(take.victim))
        }),
        Property::sometimes(
            "a runner registers beside a batch of its former life",
            |_, state: &State| {
                let former = |no| state.runner(no).fence.is_none() && state.is_shared(no);
                RunnerNo::all().any(former)
            },
        ),
        Property::sometimes("a paused owner has lost its shard", |_, state: &State| {
            RunnerNo::all().any(|no| {
                let paused = state.runner(no).process == Process::Paused;
                paused && ShardNo::all().any(|shard| believes_wrongly(state, no, shard))
            })
        }),
        Property::sometimes("a commit has outlived its lease", |_, state: &State| {
            RunnerNo::all().any(|no| {
                let runner = state.runner(no);
                let mut queued = runner.queued.iter().flatten();
                runner.fence.is_some_and(|fence| queued.any(|it| it.fence != fence))
            })
        }),
        Property::sometimes("an unknown outcome has landed", |_, state: &State| {
            unknown(state).any(|(last, number)| last >= number)
        }),
        Property::sometimes("an unknown outcome has not landed", |_, state: &State| {
            unknown(state).any(|(last, number)| last < number)
        }),
    ]
}

fn must_hold<M: Model>(property: &Property<M>) -> bool {
    property.expectation == Expectation::Always
}

/// Whether the shard is held by a process that runs, and that knows of it.
fn has_owner(state: &State, shard: ShardNo) -> bool {
    state.shards[shard.index()].is_some_and(|Owner { runner, epoch }| {
        let owner = state.runner(runner);
        owner.runs() && owner.fence == Some(epoch) && owner.held[shard.index()].is_some()
    })
}

/// Whether a runner has a shard in memory that is no longer its own.
fn believes_wrongly(state: &State, no: RunnerNo, shard: ShardNo) -> bool {
    let owner = state.shards[shard.index()];
    state.runner(no).held[shard.index()].is_some() && owner.is_none_or(|owner| owner.runner != no)
}

/// The batches whose outcome their sender does not know: the last of the lane, and theirs.
fn unknown(state: &State) -> impl Iterator<Item = (u8, u8)> {
    RunnerNo::all().flat_map(move |no| {
        ShardNo::all().filter_map(move |shard| {
            let busy = state.runner(no).busy[shard.index()]?;
            let last = state.lanes[no.index()][shard.index()].last;
            busy.lost.then_some((last, busy.number))
        })
    })
}

/// The steps to a state, each with what is stored after it.
fn told<S: Display, A: Display>(path: Vec<(S, Option<A>)>) -> String {
    let mut text = String::new();
    let mut states = path.iter().map(|(state, _)| state);
    if let Some(start) = states.next() {
        let _ = writeln!(text, "   0. at the start\n      [{start}]");
    }
    let steps = path.iter().filter_map(|(_, step)| step.as_ref());
    for (number, (step, state)) in steps.zip(states).enumerate() {
        let _ = writeln!(text, "  {:2}. {step}", number + 1);
        let _ = writeln!(text, "      [{state}]");
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bounds(faults: u8, moves: u8) -> Bounds {
        Bounds { faults: Some(faults), moves: Some(moves), commits: Some(1), ticks: Some(2) }
    }

    #[test]
    fn whole_protocol_holds() {
        for variant in [Variant::STORE_TIME, Variant::OWN_CLOCKS] {
            for (faults, moves) in [(1, 0), (0, 2)] {
                let found = search(variant.within(bounds(faults, moves)).protocol, false);
                assert!(found.broken.is_empty(), "{}", found.broken[0].1);
                assert!(found.unique > 1_000, "{} states", found.unique);
            }
        }
    }

    #[test]
    fn each_part_is_needed() {
        for part in Break::ALL {
            let without = Variant::to_break(part).protocol;
            let found = search(without, true);
            let broken = found.broken.first().map(|(name, _)| *name);
            let expected = match part {
                Break::Settle => "nothing is applied twice",
                Break::SelfFencing => "an owner that fences itself sends nothing after a takeover",
                Break::TakeoverOrder | Break::Silence => "every live run has an owner again",
                _ => "at most one owner can commit",
            };
            assert_eq!(broken, Some(expected), "without {}", part.name());
            // And that it suffices, as far as was looked for what goes wrong without it.
            let whole = Protocol { broken: None, ..without };
            if whole.left.faults == 0 {
                let found = search(whole, false);
                assert!(found.broken.is_empty(), "{}", found.broken[0].1);
                assert_eq!(found.unseen, [""; 0], "moves alone show something");
            }
        }
    }

    #[test]
    fn each_rule_of_the_small_models_is_needed_and_suffices() {
        for found in [search(bodies(None), false), search(away(None), false)] {
            assert!(found.broken.is_empty(), "{}", found.broken[0].1);
            assert_eq!(found.unseen, [] as [&str; 0]);
        }
        let started = "a body of a completed step starts under no other lease";
        let woken = "every live run is in memory or has a row that somebody will wake";
        for (rule, expected) in
            [(Rule::BodyEpoch, started), (Rule::PutAway, woken), (Rule::AskAgain, woken)]
        {
            let found = match rule {
                Rule::BodyEpoch => search(bodies(Some(rule)), true),
                Rule::PutAway | Rule::AskAgain => search(away(Some(rule)), true),
            };
            let broken = found.broken.first().map(|(name, _)| *name);
            assert_eq!(broken, Some(expected), "without {}", rule.name());
        }
    }
}
