//! The start of a body: only under the lease with which its run was read.
//!
//! A model of its own, so that the search of the whole protocol ([`crate::protocol`]) does not grow.
//! Two runners, one shard, one run with one step. The code of a run may take long: between the
//! beginning of a poll and the body that it comes to anything may happen, also that its runner is
//! stopped, loses its lease to the other, goes on and registers anew. What the event that says so
//! would drop from memory is still being polled then.
//!
//! To check the lease and to start the body are one step here. A process that is stopped between the
//! two starts the body when it goes on: that window remains, and no check can close it.

use std::fmt;

use stateright::{Model, Property};

/// How many runners there are.
const RUNNERS: usize = 2;

/// The model, and whether the rule is left out.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bodies {
    /// A body starts under any lease that lasts, not only under that of its run.
    pub(crate) any_lease: bool,
    /// How often a lease may run out.
    pub(crate) lapses: u8,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    /// The epoch of each runner, as stored.
    epochs: [u8; RUNNERS],
    /// Who holds the shard, with which epoch, as stored.
    owner: (usize, u8),
    /// Whether the step is completed, as stored.
    completed: bool,
    runners: [Runner; RUNNERS],
    lapses: u8,
    wrong: Option<Wrong>,
}

/// A process, and what it remembers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
struct Runner {
    /// It is stopped, and does nothing.
    stopped: bool,
    /// Its lease is over, by the clock of everybody.
    over: bool,
    /// The epoch of the lease that it has, as far as it knows.
    fence: Option<u8>,
    /// The run in memory: the epoch with which it was read, and whether its step was completed then.
    held: Option<(u8, bool)>,
    /// The code of the run is being polled and comes to the body of the step, under this epoch.
    polling: Option<u8>,
    /// The body runs, or has ended and is not committed.
    body: Option<u8>,
}

/// What must never happen.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Wrong {
    /// A body was started by a runner that was not the owner under the epoch of its run.
    Foreign,
    /// As before, and the step was completed.
    Again,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Read(usize),
    Poll(usize),
    /// The poll comes to the body.
    Start(usize),
    Commit(usize),
    Lapse(usize),
    Stop(usize),
    GoOn(usize),
    TakeOver(usize),
    /// The heartbeat: the lease is prolonged, or the runner learns that it has lost it.
    Beat(usize),
    Register(usize),
    /// The thread that owns the run hears that the lease was lost, between two polls.
    Drop(usize),
}

impl Bodies {
    fn may_start(&self, runner: &Runner, epoch: u8) -> bool {
        !runner.over && runner.fence.is_some() && (self.any_lease || runner.fence == Some(epoch))
    }

    fn start_body(&self, state: &mut State, no: usize) {
        let Some(epoch) = state.runners[no].polling.take() else {
            return;
        };
        if !self.may_start(&state.runners[no], epoch) {
            return;
        }
        state.runners[no].body = Some(epoch);
        if state.owner != (no, epoch) {
            state.wrong = Some(match state.completed {
                true => Wrong::Again,
                false => Wrong::Foreign,
            });
        }
    }
}

impl Model for Bodies {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let mut runners = [Runner::default(); RUNNERS];
        runners.iter_mut().for_each(|it| it.fence = Some(1));
        vec![State {
            epochs: [1; RUNNERS],
            owner: (0, 1),
            completed: false,
            runners,
            lapses: self.lapses,
            wrong: None,
        }]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        if state.wrong.is_some() {
            return;
        }
        for (no, runner) in state.runners.iter().enumerate() {
            if runner.stopped {
                steps.push(Step::GoOn(no));
            }
            if state.lapses > 0 && !runner.over && runner.fence.is_some() {
                steps.push(Step::Lapse(no));
            }
            if runner.stopped {
                continue;
            }
            // Any process may be stopped, once for each lease that may run out.
            if state.lapses > 0 {
                steps.push(Step::Stop(no));
            }
            let is_current = |epoch| runner.fence == Some(epoch);
            match (runner.held, runner.polling) {
                (None, _) if state.owner.0 == no && is_current(state.owner.1) => {
                    steps.push(Step::Read(no));
                }
                (Some((epoch, false)), None) if runner.body.is_none() && is_current(epoch) => {
                    steps.push(Step::Poll(no));
                }
                (_, Some(_)) => steps.push(Step::Start(no)),
                (Some((epoch, _)), None) if !is_current(epoch) => steps.push(Step::Drop(no)),
                _ => {}
            }
            if runner.body.is_some() {
                steps.push(Step::Commit(no));
            }
            match runner.fence {
                None => steps.push(Step::Register(no)),
                Some(fence) if runner.over || state.epochs[no] != fence => {
                    steps.push(Step::Beat(no));
                }
                Some(_) => {}
            }
            let other = 1 - no;
            let is_over = state.runners[other].over && state.owner.0 == other;
            if is_over && runner.fence.is_some() && !runner.over {
                steps.push(Step::TakeOver(no));
            }
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut state = state.clone();
        match step {
            Step::Read(no) => {
                let epoch = state.runners[no].fence?;
                state.runners[no].held = Some((epoch, state.completed));
            }
            Step::Poll(no) => {
                let (epoch, _) = state.runners[no].held?;
                state.runners[no].polling = Some(epoch);
            }
            Step::Start(no) => self.start_body(&mut state, no),
            Step::Commit(no) => {
                let epoch = state.runners[no].body.take()?;
                // The store refuses what comes under another epoch.
                if state.owner == (no, epoch) && state.epochs[no] == epoch {
                    state.completed = true;
                    state.runners[no].held = Some((epoch, true));
                }
            }
            Step::Lapse(no) => {
                state.lapses -= 1;
                state.runners[no].over = true;
            }
            Step::Stop(no) => state.runners[no].stopped = true,
            Step::GoOn(no) => state.runners[no].stopped = false,
            Step::TakeOver(no) => {
                state.epochs[1 - no] += 1;
                state.owner = (no, state.runners[no].fence?);
            }
            Step::Beat(no) => {
                let runner = &mut state.runners[no];
                if runner.fence == Some(state.epochs[no]) {
                    runner.over = false;
                } else {
                    runner.fence = None;
                }
            }
            Step::Register(no) => {
                state.epochs[no] += 1;
                state.runners[no].fence = Some(state.epochs[no]);
                state.runners[no].over = false;
                if state.owner.0 == no {
                    state.owner.1 = state.epochs[no];
                }
            }
            Step::Drop(no) => state.runners[no].held = None,
        }
        Some(state)
    }

    fn properties(&self) -> Vec<Property<Bodies>> {
        vec![
            Property::always(
                "a body of a completed step starts under no other lease",
                |_, state: &State| state.wrong != Some(Wrong::Again),
            ),
            Property::always(
                "a body starts only under the lease with which its run was read",
                |_, state: &State| state.wrong.is_none(),
            ),
            Property::sometimes("a poll outlives its lease", |_, state: &State| {
                let outlived = |runner: &Runner| {
                    let fence = runner.fence.filter(|_| !runner.over);
                    fence.is_some_and(|fence| runner.polling.is_some_and(|it| it < fence))
                };
                state.runners.iter().any(outlived)
            }),
            Property::sometimes("the next owner completes the step", |_, state: &State| {
                state.completed && state.owner.0 == 1
            }),
        ]
    }
}

fn name(no: usize) -> char {
    char::from(b'A' + no as u8)
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match *self {
            Step::Read(r) => write!(f, "runner {} reads the run", name(r)),
            Step::Poll(r) => write!(f, "runner {} polls the code of the run", name(r)),
            Step::Start(r) => write!(f, "the poll of runner {} comes to the body", name(r)),
            Step::Commit(r) => write!(f, "the body of runner {} ends, and is committed", name(r)),
            Step::Lapse(r) => write!(f, "the lease of runner {} runs out", name(r)),
            Step::Stop(r) => write!(f, "runner {} is stopped", name(r)),
            Step::GoOn(r) => write!(f, "runner {} goes on", name(r)),
            Step::TakeOver(r) => write!(f, "runner {} takes the shard over", name(r)),
            Step::Beat(r) => write!(f, "runner {} has its heartbeat", name(r)),
            Step::Register(r) => write!(f, "runner {} registers anew", name(r)),
            Step::Drop(r) => write!(f, "runner {} drops the run from memory", name(r)),
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (owner, epoch) = self.owner;
        let step = if self.completed { "completed" } else { "open" };
        write!(f, "shard of {} under {epoch}; step {step}", name(owner))?;
        for (no, runner) in self.runners.iter().enumerate() {
            write!(f, "; {} stored epoch {}", name(no), self.epochs[no])?;
            match runner.fence {
                Some(fence) => write!(f, ", has {fence}")?,
                None => write!(f, ", has none")?,
            }
            if runner.over {
                write!(f, ", over")?;
            }
            if let Some(polling) = runner.polling {
                write!(f, ", polls under {polling}")?;
            }
        }
        match self.wrong {
            Some(Wrong::Foreign) => {
                write!(f, "; the body was started by a runner that is no owner")
            }
            Some(Wrong::Again) => write!(f, "; the body of a completed step was started again"),
            None => Ok(()),
        }
    }
}
