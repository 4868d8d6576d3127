//! A run that waits in line for a limit, and is paused and resumed by others: its owner puts it away.
//!
//! A model of its own: one run, its owner, a client that pauses and resumes it, and another run that
//! has the place and gives it back. Everything between them takes time: commits and their answers,
//! looks, reads, wake-ups. The owner may die; its successor has nothing in memory, and takes up what
//! is due and what was in somebody's memory.
//!
//! Everything that can happen happens in the end, so at an end the run must have completed: if it has
//! not, it is in nobody's memory, and its row is one that nobody will wake.

use std::fmt;

use stateright::{Model, Property};

/// The model, which rules are left out, and how far it is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Away {
    /// A results-only commit gives the place away and ends the stay in memory, whatever the row says.
    pub(crate) gives_away: bool,
    /// A run asks for its place only once in each stay in memory.
    pub(crate) asks_once: bool,
    pub(crate) pauses: u8,
    pub(crate) crashes: u8,
}

/// The status of the run, as stored.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Status {
    Running,
    Sleeping,
    Pending,
    Paused,
    Completed,
}

/// What the run has under the limit, as stored. A place that is given has a row in the inbox.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Place {
    None,
    InLine,
    Given,
}

/// The stored row.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Row {
    status: Status,
    due: bool,
    place: Place,
}

/// The run in its owner's memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
struct Task {
    /// It knows that it has the place.
    granted: bool,
    /// It has asked for the place.
    asked: bool,
    /// A body beside the wait is running.
    busy: bool,
    /// Its row says that it is parked, as far as it knows.
    parked: bool,
    /// The next commit writes the row in any case.
    touch: bool,
    /// It was paused, as far as it knows: only results are recorded.
    leaving: bool,
    /// It is read again once it has left.
    come_back: bool,
}

/// A commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Commit {
    /// It moves on; whether the row is written.
    Flush {
        asks: bool,
        row: bool,
    },
    Park {
        asks: bool,
    },
    Results,
    Finish,
}

/// The answer to a commit.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
enum Answer {
    Made(Commit),
    /// The run is put away.
    PutAway,
    Paused,
    InboxMoved,
}

/// Everything at one moment.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct State {
    row: Row,
    /// Another run has the place.
    held: bool,
    task: Option<Task>,
    /// A commit that was sent and has not landed.
    sent: Option<Commit>,
    /// An answer that has not arrived.
    answer: Option<Answer>,
    /// What the owner has looked at, on its way.
    look: Option<Status>,
    /// The row on its way into memory.
    read: Option<Row>,
    /// Something has happened while it was read.
    read_again: bool,
    /// The owner was told that something has happened to the run.
    told: bool,
    /// The run was told that it has the place.
    grant: bool,
    pauses: u8,
    crashes: u8,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Pause,
    Resume,
    GiveBack,
    Look,
    Looked,
    Load,
    Loaded,
    Granted,
    BodyEnds,
    Send,
    Land,
    Answer,
    Crash,
}

impl Away {
    /// What the task sends next, if anything.
    fn next_commit(&self, task: &Task) -> Option<Commit> {
        if task.leaving {
            return (!task.busy).then_some(Commit::Results);
        }
        if task.granted {
            return (!task.busy).then_some(Commit::Finish);
        }
        // A commit that takes the mark from the row that it is due asks again.
        let asks = |writes_row| !task.asked || (writes_row && !self.asks_once);
        if !task.busy {
            let asks = asks(true);
            return (!task.parked || task.touch).then_some(Commit::Park { asks });
        }
        let (asks, row) = (asks(task.touch), task.touch);
        (!task.asked || row).then_some(Commit::Flush { asks, row })
    }

    /// What the store makes of a commit.
    fn land(&self, state: &mut State, commit: Commit) -> Answer {
        let row = &mut state.row;
        if commit == Commit::Results {
            let is_paused = row.status == Status::Paused;
            if is_paused || self.gives_away {
                leave_line(state);
                return Answer::PutAway;
            }
            return Answer::Made(commit);
        }
        if row.status == Status::Paused {
            return Answer::Paused;
        }
        match commit {
            Commit::Park { .. } if row.place == Place::Given => return Answer::InboxMoved,
            Commit::Park { .. } => (row.status, row.due) = (Status::Sleeping, false),
            Commit::Flush { row: true, .. } => {
                row.status = Status::Running;
                row.due = row.place == Place::Given;
            }
            Commit::Flush { row: false, .. } | Commit::Results => {}
            Commit::Finish => {
                leave_line(state);
                state.row.status = Status::Completed;
                state.row.due = false;
            }
        }
        let asks = matches!(commit, Commit::Park { asks: true } | Commit::Flush { asks: true, .. });
        if asks && state.row.place == Place::None {
            state.row.place = Place::InLine;
            move_line(state);
        }
        Answer::Made(commit)
    }

    fn answered(&self, state: &mut State, answer: Answer) {
        let Some(task) = &mut state.task else { return };
        match answer {
            Answer::Made(Commit::Results) => drop_task(state, true),
            Answer::PutAway => {
                let come_back = task.come_back;
                drop_task(state, come_back);
            }
            Answer::Made(Commit::Finish) => drop_task(state, false),
            Answer::Made(commit) => {
                task.asked = true;
                task.parked = matches!(commit, Commit::Park { .. });
            }
            Answer::Paused => task.leaving = true,
            Answer::InboxMoved => task.granted = true,
        }
    }

    fn looked(&self, state: &mut State, seen: Status) {
        let Some(task) = &mut state.task else {
            return;
        };
        match seen {
            Status::Completed => drop_task(state, false),
            Status::Paused => task.leaving = true,
            Status::Pending if task.leaving => task.come_back = true,
            Status::Pending if task.parked && state.sent.is_none() && state.answer.is_none() => {
                drop_task(state, true);
            }
            // It has been paused and resumed, and has perhaps lost its place in line.
            Status::Pending if !self.asks_once => task.touch = true,
            Status::Pending => {}
            Status::Running | Status::Sleeping => task.come_back |= task.leaving,
        }
    }
}

/// The run gives back its place, or leaves the line.
fn leave_line(state: &mut State) {
    state.row.place = Place::None;
    state.grant = false;
}

/// The place is free: the run gets it if it stands in line. One that is paused is passed over.
fn move_line(state: &mut State) {
    if state.held || state.row.place != Place::InLine {
        return;
    }
    if state.row.status == Status::Paused {
        state.row.place = Place::None;
        return;
    }
    state.row.place = Place::Given;
    state.row.due = true;
    state.grant = true;
}

fn drop_task(state: &mut State, read: bool) {
    state.task = None;
    if read && state.read.is_none() {
        state.read = Some(state.row);
        state.read_again = false;
    }
}

impl Model for Away {
    type State = State;
    type Action = Step;

    fn init_states(&self) -> Vec<State> {
        let start = |busy| State {
            row: Row { status: Status::Running, due: false, place: Place::None },
            held: true,
            task: Some(Task {
                granted: false,
                asked: false,
                busy,
                parked: false,
                touch: false,
                leaving: false,
                come_back: false,
            }),
            sent: None,
            answer: None,
            look: None,
            read: None,
            read_again: false,
            told: false,
            grant: false,
            pauses: self.pauses,
            crashes: self.crashes,
        };
        vec![start(false), start(true)]
    }

    fn actions(&self, state: &State, steps: &mut Vec<Step>) {
        let is_live = state.row.status != Status::Completed;
        match state.row.status {
            Status::Paused => steps.push(Step::Resume),
            Status::Completed => {}
            _ if state.pauses > 0 => steps.push(Step::Pause),
            _ => {}
        }
        if state.held {
            steps.push(Step::GiveBack);
        }
        // The look for safety finds what is due once more; it is left out where it changes nothing.
        let is_stale = |task: Task| task.asked && !task.touch && !task.leaving;
        let is_resumed = state.row.status == Status::Pending && state.look.is_none();
        if state.told || (is_resumed && state.task.is_some_and(is_stale)) {
            steps.push(Step::Look);
        }
        if state.look.is_some() {
            steps.push(Step::Looked);
        }
        if state.row.due && is_live && state.task.is_none() && state.read.is_none() {
            steps.push(Step::Load);
        }
        if state.read.is_some() {
            steps.push(Step::Loaded);
        }
        if state.grant && state.task.is_some() {
            steps.push(Step::Granted);
        }
        if let Some(task) = &state.task {
            if task.busy {
                steps.push(Step::BodyEnds);
            }
            let idle = state.sent.is_none() && state.answer.is_none();
            if idle && self.next_commit(task).is_some() {
                steps.push(Step::Send);
            }
        }
        if state.sent.is_some() {
            steps.push(Step::Land);
        }
        if state.answer.is_some() {
            steps.push(Step::Answer);
        }
        if state.crashes > 0 && is_live {
            steps.push(Step::Crash);
        }
    }

    fn next_state(&self, state: &State, step: Step) -> Option<State> {
        let mut next = state.clone();
        let state = &mut next;
        match step {
            Step::Pause => {
                state.pauses -= 1;
                (state.row.status, state.row.due) = (Status::Paused, false);
                state.told = true;
            }
            Step::Resume => {
                (state.row.status, state.row.due) = (Status::Pending, true);
                state.told = true;
            }
            Step::GiveBack => {
                state.held = false;
                move_line(state);
            }
            Step::Look => {
                state.told = false;
                state.read_again |= state.read.is_some();
                if state.task.is_some() {
                    state.look = Some(state.row.status);
                }
            }
            Step::Looked => {
                let seen = state.look.take()?;
                self.looked(state, seen);
            }
            Step::Load => state.read = Some(state.row),
            Step::Loaded => {
                let row = state.read.take()?;
                match row.status {
                    Status::Completed => {}
                    _ if std::mem::take(&mut state.read_again) => state.read = Some(state.row),
                    Status::Paused => {}
                    _ => {
                        state.task = Some(Task {
                            granted: row.place == Place::Given,
                            asked: false,
                            busy: false,
                            parked: false,
                            touch: true,
                            leaving: false,
                            come_back: false,
                        });
                    }
                }
            }
            Step::Granted => {
                state.grant = false;
                state.task.as_mut()?.granted = true;
            }
            Step::BodyEnds => state.task.as_mut()?.busy = false,
            Step::Send => {
                let task = state.task.as_mut()?;
                state.sent = self.next_commit(task);
                task.touch = false;
            }
            Step::Land => {
                let commit = state.sent.take()?;
                let answer = self.land(state, commit);
                // Nobody waits for the answer to what a dead owner has sent.
                state.answer = state.task.is_some().then_some(answer);
            }
            Step::Answer => {
                let answer = state.answer.take()?;
                self.answered(state, answer);
            }
            Step::Crash => {
                state.crashes -= 1;
                // The fence refuses what has not landed.
                (state.task, state.sent, state.answer) = (None, None, None);
                (state.look, state.read) = (None, None);
                (state.told, state.read_again) = (false, false);
                if state.row.status == Status::Running {
                    state.read = Some(state.row);
                }
            }
        }
        Some(next)
    }

    fn properties(&self) -> Vec<Property<Away>> {
        vec![
            Property::always(
                "every live run is in memory or has a row that somebody will wake",
                |model: &Away, state: &State| {
                    let mut steps = Vec::new();
                    model.actions(state, &mut steps);
                    !steps.is_empty() || state.row.status == Status::Completed
                },
            ),
            Property::always("no body starts without a place", |_, state: &State| {
                let finishes = state.sent == Some(Commit::Finish);
                let is_live = !matches!(state.row.status, Status::Paused | Status::Completed);
                !finishes || !is_live || state.row.place == Place::Given
            }),
            Property::sometimes("results land on a live row", |_, state: &State| {
                state.sent == Some(Commit::Results) && state.row.status == Status::Sleeping
            }),
            Property::sometimes("a run was passed over in line", |_, state: &State| {
                let asked = state.task.is_some_and(|task| task.asked && !task.leaving);
                let is_live = !matches!(state.row.status, Status::Paused | Status::Completed);
                asked && is_live && state.row.place == Place::None && state.sent.is_none()
            }),
            Property::sometimes("the run completes", |_, state: &State| {
                state.row.status == Status::Completed
            }),
        ]
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Step::Pause => "a client pauses the run",
            Step::Resume => "a client resumes the run",
            Step::GiveBack => "the other run gives its place back",
            Step::Look => "the owner looks at the row",
            Step::Looked => "the answer to the look arrives",
            Step::Load => "the owner finds the run due, and reads it",
            Step::Loaded => "what was read arrives",
            Step::Granted => "the owner hears that the run has the place",
            Step::BodyEnds => "the body beside the wait ends",
            Step::Send => "the owner sends a commit",
            Step::Land => "the commit lands",
            Step::Answer => "the answer to the commit arrives",
            Step::Crash => "the owner dies, and another takes over",
        })
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Row { status, due, place } = self.row;
        let due = if due { ", due" } else { "" };
        write!(f, "row {status:?}{due}; place {place:?}")?;
        match self.task {
            Some(task) if task.leaving => write!(f, "; in memory, leaving")?,
            Some(_) => write!(f, "; in memory")?,
            None => write!(f, "; not in memory")?,
        }
        if let Some(sent) = self.sent {
            write!(f, "; sent {sent:?}")?;
        }
        if let Some(look) = self.look {
            write!(f, "; looked at {look:?}")?;
        }
        Ok(())
    }
}
