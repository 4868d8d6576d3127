//! The protocol: what can happen in a state, and what follows from it.
//!
//! Each step is one thing that happens at once: a transaction of the store, or what a process does
//! by itself. Between any two of them anything else may happen, which is what delay is.
//!
//! [`Protocol::steps`] says what can happen, and offers only what changes something. That matters:
//! a state in which nothing can happen is an end, and at an end every run must have an owner.

use std::fmt;

use crate::state::{
    Batch, Beat, Busy, Kind, LaneRow, Left, Owner, Process, Queued, RUNNERS, Read, Row, Runner,
    RunnerNo, SHARDS, ShardNo, State, Take, Wrong,
};

/// How long a lease is, in ticks.
const LEASE: u8 = 2;

/// Which variant of the protocol, and how far it is followed.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Protocol {
    /// Whether an owner stops writing when its lease is over by its own clock.
    pub(crate) self_fencing: bool,
    /// How far the clock of the third runner is ahead of the others. With 0 all go by the store's
    /// time, which is how PostgreSQL does it; otherwise each writes and judges leases by its own.
    pub(crate) ahead: u8,
    /// How many ticks there are. There are more where a dead runner's lease is not over yet.
    pub(crate) ticks: u8,
    pub(crate) left: Left,
    pub(crate) broken: Option<Break>,
}

/// A part of the protocol that is left out, to see that it is needed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Break {
    /// A lease that was not prolonged for its length lasts while no clock says that it is over.
    Silence,
    /// Batches are not checked against the row of their runner.
    Fence,
    /// Shards are moved without waiting for the batches of the victim that have begun.
    TakeoverWait,
    /// Shards are moved without looking again whether the lease is still over.
    TakeoverCheck,
    /// The rows of a takeover are locked in any order.
    TakeoverOrder,
    /// A runner registers again without waiting for its own batches that have begun.
    RegisterWait,
    /// A shard is given back before its lane is empty.
    ReleaseEarly,
    /// A batch of unknown outcome is sent again without raising the epoch of its lane.
    Settle,
    /// An owner writes on past its lease.
    SelfFencing,
    /// What was read is taken in, whatever has become of the shard meanwhile.
    ReadCheck,
    /// A commit is sent under the lease of the moment, not under the one that it was made under.
    QueueCheck,
}

/// One thing that happens.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Step {
    Tick,
    Register(RunnerNo),
    Heartbeat(RunnerNo),
    SendHeartbeat(RunnerNo),
    ReceiveHeartbeat(RunnerNo),
    Read(RunnerNo, ShardNo),
    TakeIn(RunnerNo, ShardNo),
    MakeCommit(RunnerNo, ShardNo),
    SendCommit(RunnerNo, ShardNo),
    SendRelease(RunnerNo, ShardNo),
    Begin(Batch),
    Commit(Batch),
    LoseConnection(RunnerNo, ShardNo),
    Vanish(Batch),
    Settle(RunnerNo, ShardNo),
    TakeFree(RunnerNo, ShardNo),
    RaiseEpoch(RunnerNo, RunnerNo),
    BeginTakeover(RunnerNo),
    MoveShards(RunnerNo),
    VanishTakeover(RunnerNo),
    Leave(RunnerNo),
    Crash(RunnerNo),
    Pause(RunnerNo),
    Resume(RunnerNo),
}

impl Protocol {
    /// The first two runners have a shard each; the third is about to join.
    pub(crate) fn start(&self) -> State {
        let mut state = State {
            now: 0,
            rows: [None; RUNNERS],
            shards: [None; SHARDS],
            versions: [0; SHARDS],
            lanes: [[LaneRow::default(); SHARDS]; RUNNERS],
            batches: Vec::new(),
            takes: [None; RUNNERS],
            beats: [None; RUNNERS],
            runners: [Runner::NEW; RUNNERS],
            left: self.left,
            wrong: None,
        };
        for shard in ShardNo::all() {
            let runner = RunnerNo(shard.0);
            self.register(&mut state, runner);
            give(&mut state, shard, runner, 1);
            state.runners[runner.index()].held[shard.index()] = Some(0);
        }
        state
    }

    /// Everything that can happen.
    pub(crate) fn steps(&self, state: &State, steps: &mut Vec<Step>) {
        if state.wrong.is_some() {
            return;
        }
        if self.time_can_pass(state) {
            steps.push(Step::Tick);
        }
        for runner in RunnerNo::all() {
            self.steps_of_process(state, runner, steps);
            self.steps_on_the_way(state, runner, steps);
        }
        let mut last = None;
        for batch in &state.batches {
            // Two copies of a batch are the same to the store.
            if last != Some(batch) {
                steps_of_batch(state, batch, steps);
            }
            last = Some(batch);
        }
    }

    /// Whether nothing can happen any more.
    pub(crate) fn is_end(&self, state: &State) -> bool {
        let mut steps = Vec::new();
        self.steps(state, &mut steps);
        steps.is_empty()
    }

    /// The state after a step that can happen.
    pub(crate) fn after(&self, state: &State, step: Step) -> State {
        let mut next = state.clone();
        let state = &mut next;
        match step {
            Step::Tick => self.tick(state),
            Step::Register(runner) => self.register(state, runner),
            Step::Heartbeat(runner) => {
                send_heartbeat(state, runner, self.clock(state, runner));
                self.receive_heartbeat(state, runner);
            }
            Step::SendHeartbeat(runner) => {
                state.left.faults -= 1;
                send_heartbeat(state, runner, self.clock(state, runner));
            }
            Step::ReceiveHeartbeat(runner) => self.receive_heartbeat(state, runner),
            Step::Read(runner, shard) => read(state, runner, shard),
            Step::TakeIn(runner, shard) => self.take_in(state, runner, shard),
            Step::MakeCommit(runner, shard) => make_commit(state, runner, shard),
            Step::SendCommit(runner, shard) => self.send_commit(state, runner, shard),
            Step::SendRelease(runner, shard) => self.send_release(state, runner, shard),
            Step::Begin(batch) => self.begin(state, batch),
            Step::Commit(batch) => commit(state, batch),
            Step::LoseConnection(runner, shard) => {
                state.left.faults -= 1;
                if let Some(busy) = &mut state.runners[runner.index()].busy[shard.index()] {
                    busy.lost = true;
                }
            }
            Step::Vanish(batch) => state.remove(&batch),
            Step::Settle(runner, shard) => self.settle(state, runner, shard),
            Step::TakeFree(runner, shard) => take_free(state, runner, shard),
            Step::RaiseEpoch(runner, victim) => self.raise_epoch(state, runner, victim),
            Step::BeginTakeover(runner) => begin_takeover(state, runner),
            Step::MoveShards(runner) => self.move_shards(state, runner),
            Step::VanishTakeover(runner) => state.takes[runner.index()] = None,
            Step::Leave(runner) => leave(state, runner),
            Step::Crash(runner) => crash(state, runner),
            Step::Pause(runner) => {
                state.left.faults -= 1;
                state.runners[runner.index()].process = Process::Paused;
            }
            Step::Resume(runner) => state.runners[runner.index()].process = Process::Runs,
        }
        self.forget_refused(state);
        next
    }

    /// A batch that nobody waits for and that will be refused whenever it comes makes no difference.
    fn forget_refused(&self, state: &mut State) {
        let forgotten = |batch: &Batch| {
            !batch.begun && !state.is_awaited(batch) && !self.is_accepted(state, batch)
        };
        if state.batches.iter().any(forgotten) {
            let batches = state.batches.clone().into_iter();
            state.batches = batches.filter(|batch| !forgotten(batch)).collect();
        }
    }

    /// Whether a batch that the store looks at now passes.
    fn is_accepted(&self, state: &State, batch: &Batch) -> bool {
        let lane = state.lanes[batch.runner.index()][batch.shard.index()];
        let in_lane = batch.lane.is_none_or(|epoch| epoch == lane.epoch);
        let fenced = state.fence_holds(batch.runner, batch.fence) || self.breaks(Break::Fence);
        fenced && in_lane
    }

    fn breaks(&self, part: Break) -> bool {
        self.broken == Some(part)
    }

    fn fences_itself(&self) -> bool {
        self.self_fencing && !self.breaks(Break::SelfFencing)
    }

    /// The clock of a runner.
    fn clock(&self, state: &State, runner: RunnerNo) -> u8 {
        let last = runner.index() == RUNNERS - 1;
        state.now + if last { self.ahead } else { 0 }
    }

    fn tick(&self, state: &mut State) {
        state.now += 1;
        for row in state.rows.iter_mut().flatten().filter(|_| self.ahead > 0) {
            row.silent = LEASE.min(row.silent + 1);
        }
    }

    /// Whether the lease of a runner is over, as another sees it: by the clock of that one, or since it
    /// has watched that it was not prolonged.
    fn is_over(&self, state: &State, runner: RunnerNo, seen_by: RunnerNo) -> bool {
        let row = state.row(runner);
        row.is_some_and(|row| {
            let is_silent = row.silent == LEASE && !self.breaks(Break::Silence);
            is_silent || row.lease_until <= self.clock(state, seen_by)
        })
    }

    /// A process that runs renews its lease in time; only one that is paused, or whose heartbeat is
    /// late, lets it lapse.
    fn time_can_pass(&self, state: &State) -> bool {
        let in_time = RunnerNo::all().all(|no| {
            let runner = state.runner(no);
            !runner.runs()
                || runner.fence.is_none()
                || state.beats[no.index()].is_some()
                || self.clock(state, no) + 1 < runner.valid_until
        });
        in_time && (state.now < self.ticks || self.somebody_waits_for_time(state))
    }

    /// Whether a dead runner holds a shard and its lease is not over, and somebody is there to wait.
    /// Nobody waits for longer than a lease, whatever the clock of the dead has shown.
    fn somebody_waits_for_time(&self, state: &State) -> bool {
        let mut owners = state.shards.iter().flatten();
        let dead = |owner: &Owner| {
            let row = state.row(owner.runner);
            !state.runner(owner.runner).is_alive()
                && row.is_some_and(|row| row.lease_until > state.now && row.silent < LEASE)
        };
        owners.any(dead) && state.runners.iter().any(Runner::is_alive)
    }

    fn steps_of_process(&self, state: &State, no: RunnerNo, steps: &mut Vec<Step>) {
        let runner = state.runner(no);
        let faults = state.left.faults > 0;
        let must_wait = state.is_shared(no) && !self.breaks(Break::RegisterWait);
        match runner.process {
            Process::Left => return,
            Process::Paused => return steps.push(Step::Resume(no)),
            Process::Crashed => {
                if faults && !must_wait {
                    steps.push(Step::Register(no));
                }
                return;
            }
            Process::Runs => {}
        }
        for shard in ShardNo::all() {
            self.steps_of_lane(state, no, shard, steps);
        }
        let Some(fence) = runner.fence else {
            if !must_wait {
                steps.push(Step::Register(no));
            }
            return;
        };
        if faults {
            steps.extend([Step::Crash(no), Step::Pause(no)]);
        }
        let renewed = self.clock(state, no) + LEASE;
        if state.beats[no.index()].is_none()
            && (runner.valid_until < renewed || !state.fence_holds(no, fence))
        {
            steps.push(Step::Heartbeat(no));
            if faults {
                steps.push(Step::SendHeartbeat(no));
            }
        }
        let idle = runner.busy.iter().all(Option::is_none)
            && runner.queued.iter().all(Option::is_none)
            && state.takes[no.index()].is_none();
        if state.left.moves > 0 && idle {
            steps.push(Step::Leave(no));
        }
        match state.takes[no.index()] {
            None => {
                let others = RunnerNo::all().filter(|other| *other != no);
                let over = |other: &RunnerNo| {
                    state.holds_shards(*other)
                        && self.is_over(state, *other, no)
                        && (faults || !is_early(state, *other))
                };
                steps.extend(others.filter(over).map(|other| Step::RaiseEpoch(no, other)));
            }
            Some(take) if take.begun => {}
            Some(take) if self.locks_own_first(no, take.victim) => {
                steps.push(Step::BeginTakeover(no));
            }
            Some(take) if self.has_row(state, take.victim) => steps.push(Step::MoveShards(no)),
            Some(_) => {}
        }
    }

    fn steps_of_lane(&self, state: &State, no: RunnerNo, shard: ShardNo, steps: &mut Vec<Step>) {
        let runner = state.runner(no);
        let busy = runner.busy[shard.index()];
        if let Some(busy) = busy {
            let blocked = state.batches.iter().any(|batch| {
                batch.runner == no && batch.shard == shard && batch.lane.is_some() && batch.begun
            });
            if !busy.lost && state.left.faults > 0 {
                steps.push(Step::LoseConnection(no, shard));
            }
            if busy.lost && (!blocked || self.breaks(Break::Settle)) {
                steps.push(Step::Settle(no, shard));
            }
        }
        let Some(fence) = runner.fence else { return };
        let is_leaving = busy.is_some_and(|busy| busy.kind == Kind::Release && busy.fence == fence);
        if state.shards[shard.index()].is_none() && !is_leaving {
            steps.push(Step::TakeFree(no, shard));
        }
        let (held, read) = (runner.held[shard.index()], runner.reads[shard.index()]);
        if read.is_some() {
            steps.push(Step::TakeIn(no, shard));
        } else if runner.owned[shard.index()] && held.is_none() {
            steps.push(Step::Read(no, shard));
        }
        let queued = runner.queued[shard.index()];
        let lasts = self.clock(state, no) < runner.valid_until;
        match queued {
            Some(_) if busy.is_none() && (lasts || !self.fences_itself()) => {
                steps.push(Step::SendCommit(no, shard));
            }
            None if busy.is_none() && held.is_some() && state.left.commits > 0 => {
                steps.push(Step::MakeCommit(no, shard));
            }
            _ => {}
        }
        let is_empty = busy.is_none() && queued.is_none();
        if runner.owned[shard.index()]
            && (is_empty || self.breaks(Break::ReleaseEarly))
            && state.left.moves > 0
        {
            steps.push(Step::SendRelease(no, shard));
        }
    }

    /// What goes on without the process: late heartbeats, and takeovers that the store has begun.
    fn steps_on_the_way(&self, state: &State, no: RunnerNo, steps: &mut Vec<Step>) {
        if state.beats[no.index()].is_some() {
            steps.push(Step::ReceiveHeartbeat(no));
        }
        if let Some(take) = state.takes[no.index()].filter(|take| take.begun) {
            if self.has_row(state, take.victim) {
                steps.push(Step::MoveShards(no));
            }
            if !state.runner(no).is_alive() {
                steps.push(Step::VanishTakeover(no));
            }
        }
    }

    /// The second transaction of a takeover needs two rows: its own, to be fenced, and the victim's.
    /// They are locked in one order. Two runners that take over each other (one is late, the other
    /// has registered again) would otherwise wait for each other.
    fn locks_own_first(&self, no: RunnerNo, victim: RunnerNo) -> bool {
        no < victim || self.breaks(Break::TakeoverOrder)
    }

    /// Whether who waits for the row of the victim, `FOR UPDATE`, has it now.
    fn has_row(&self, state: &State, victim: RunnerNo) -> bool {
        !state.is_shared(victim) || self.breaks(Break::TakeoverWait)
    }

    /// Enters a runner with a fresh epoch, holding nothing. Its own row is locked as in a takeover:
    /// a batch of its former life that has begun must land before its shards are free.
    fn register(&self, state: &mut State, no: RunnerNo) {
        if state.runner(no).process == Process::Crashed {
            state.left.faults -= 1;
        }
        free_all(state, no);
        let epoch = state.row(no).map_or(1, |row| row.epoch + 1);
        let lease_until = self.clock(state, no) + LEASE;
        state.rows[no.index()] = Some(Row { epoch, lease_until, silent: 0 });
        let runner = &mut state.runners[no.index()];
        runner.process = Process::Runs;
        runner.fence = Some(epoch);
        runner.valid_until = lease_until;
    }

    /// The lease is prolonged if the epoch is still the runner's, whether or not it was over.
    fn receive_heartbeat(&self, state: &mut State, no: RunnerNo) {
        let Some(beat) = state.beats[no.index()].take() else {
            return;
        };
        let held = state.fence_holds(no, beat.fence);
        let from = if self.ahead == 0 { state.now } else { beat.begun };
        if held && let Some(row) = &mut state.rows[no.index()] {
            (row.lease_until, row.silent) = (from + LEASE, 0);
        }
        let runner = &mut state.runners[no.index()];
        if runner.is_alive() && runner.fence == Some(beat.fence) {
            if held {
                runner.valid_until = beat.begun + LEASE;
            } else {
                runner.lose();
            }
        }
    }

    /// What was read comes into memory, unless the shard was another's at any time since: what it has
    /// done there is not in it.
    fn take_in(&self, state: &mut State, no: RunnerNo, shard: ShardNo) {
        let runner = &mut state.runners[no.index()];
        let Some(read) = runner.reads[shard.index()].take() else {
            return;
        };
        let is_good = read.current || self.breaks(Break::ReadCheck);
        if is_good && runner.owned[shard.index()] && runner.held[shard.index()].is_none() {
            runner.held[shard.index()] = Some(read.version);
        }
    }

    /// A commit that was made under another lease is dropped: its run is in memory no more.
    fn send_commit(&self, state: &mut State, no: RunnerNo, shard: ShardNo) {
        let runner = &mut state.runners[no.index()];
        let queued = runner.queued[shard.index()].take();
        let (Some(fence), Some(Queued { fence: made, base })) = (runner.fence, queued) else {
            return;
        };
        if made != fence && !self.breaks(Break::QueueCheck) {
            return;
        }
        if self.self_fencing && self.ahead == 0 && !state.fence_holds(no, fence) {
            state.wrong = Some(Wrong::SentTooLate);
        }
        send(state, no, shard, Kind::Commit, fence, base);
    }

    /// The lane is empty and nothing new of the shard is taken in. The release goes through the lane,
    /// so that an unknown outcome of it is settled too: one that came late, after the runner has
    /// taken the shard again, would free it under its owner.
    fn send_release(&self, state: &mut State, no: RunnerNo, shard: ShardNo) {
        let base = state.versions[shard.index()];
        let runner = &mut state.runners[no.index()];
        let Some(fence) = runner.fence else { return };
        state.left.moves -= 1;
        runner.let_go(shard);
        if !self.breaks(Break::ReleaseEarly) {
            send(state, no, shard, Kind::Release, fence, base);
        } else if state.fence_holds(no, fence) {
            state.shards[shard.index()] = None;
        }
    }

    /// The store begins a batch: fence and lane are checked, or it is refused.
    fn begin(&self, state: &mut State, batch: Batch) {
        let (accepted, awaited) = (self.is_accepted(state, &batch), state.is_awaited(&batch));
        state.remove(&batch);
        if accepted {
            state.add(Batch { begun: true, ..batch });
        } else if awaited {
            let runner = &mut state.runners[batch.runner.index()];
            runner.busy[batch.shard.index()] = None;
            if runner.fence == Some(batch.fence) {
                runner.lose();
            }
        }
    }

    /// After a lost connection: the epoch of the lane is raised, which waits for the old batch if it
    /// has begun and refuses it if it has not, and the lane says whether it landed.
    fn settle(&self, state: &mut State, no: RunnerNo, shard: ShardNo) {
        let runner = &mut state.runners[no.index()];
        let lane = &mut state.lanes[no.index()][shard.index()];
        let Some(busy) = runner.busy[shard.index()].take() else {
            return;
        };
        if !self.breaks(Break::Settle) {
            lane.epoch += 1;
        }
        let landed = lane.last >= busy.number;
        if runner.fence != Some(busy.fence) {
            return; // Its life is over, and with it what it wanted to write.
        }
        if landed {
            acknowledge(runner, shard, busy);
        } else {
            send(state, no, shard, busy.kind, busy.fence, busy.base);
        }
    }

    /// The first transaction of a takeover: from here on no batch of the victim begins, and its lease is
    /// over for all. It waits for nothing.
    fn raise_epoch(&self, state: &mut State, no: RunnerNo, victim: RunnerNo) {
        if is_early(state, victim) {
            state.left.faults -= 1;
        }
        let now = self.clock(state, no);
        if let Some(row) = &mut state.rows[victim.index()] {
            row.epoch += 1;
            row.lease_until = row.lease_until.min(now);
        }
        let fence = state.runner(no).fence;
        state.takes[no.index()] = fence.map(|fence| Take { victim, fence, begun: false });
    }

    /// The second transaction of a takeover, once it has the row of the victim for itself: if the
    /// lease is still over, raises the epoch once more and moves all shards. The victim may have
    /// registered again since the first, and its lease may be over again under an epoch that nobody
    /// has raised.
    fn move_shards(&self, state: &mut State, no: RunnerNo) {
        let Some(take) = state.takes[no.index()].take() else {
            return;
        };
        if !take.begun && !state.fence_holds(no, take.fence) {
            return state.runners[no.index()].lose();
        }
        let over = self.is_over(state, take.victim, no);
        if !over && !self.breaks(Break::TakeoverCheck) {
            return;
        }
        if let Some(row) = &mut state.rows[take.victim.index()]
            && over
        {
            row.epoch += 1;
        }
        for shard in ShardNo::all() {
            let owner = state.shards[shard.index()];
            if owner.is_some_and(|owner| owner.runner == take.victim) {
                give(state, shard, no, take.fence);
            }
        }
    }
}

fn steps_of_batch(state: &State, batch: &Batch, steps: &mut Vec<Step>) {
    steps.push(if batch.begun { Step::Commit(*batch) } else { Step::Begin(*batch) });
    if !state.is_awaited(batch) {
        steps.push(Step::Vanish(*batch));
    }
}

fn send_heartbeat(state: &mut State, no: RunnerNo, begun: u8) {
    let fence = state.runner(no).fence;
    state.beats[no.index()] = fence.map(|fence| Beat { fence, begun });
}

fn send(state: &mut State, no: RunnerNo, shard: ShardNo, kind: Kind, fence: u8, base: u8) {
    let lane = state.lanes[no.index()][shard.index()];
    let number = lane.last + 1;
    state.runners[no.index()].busy[shard.index()] =
        Some(Busy { fence, kind, number, base, lost: false });
    state.add(Batch {
        runner: no,
        shard,
        kind,
        fence,
        lane: Some(lane.epoch),
        number,
        base,
        begun: false,
    });
}

/// The store commits a batch that it has begun, and its sender is told if it still waits.
fn commit(state: &mut State, batch: Batch) {
    let place = batch.shard.index();
    let awaited = state.is_awaited(&batch);
    state.remove(&batch);
    let owner = state.shards[place];
    let mut twice = false;
    if batch.lane.is_some() {
        let lane = &mut state.lanes[batch.runner.index()][place];
        twice = lane.last >= batch.number;
        lane.last = lane.last.max(batch.number);
    }
    match batch.kind {
        _ if twice => state.wrong = Some(Wrong::Twice),
        Kind::Commit => {
            let (runner, epoch) = (batch.runner, batch.fence);
            if owner != Some(Owner { runner, epoch }) {
                state.wrong = Some(Wrong::NotOwner);
            } else if state.versions[place] != batch.base {
                state.wrong = Some(Wrong::OldState);
            }
            state.versions[place] += 1;
        }
        Kind::Release => {
            if owner.is_some_and(|owner| owner.runner == batch.runner) {
                state.shards[place] = None;
            }
        }
    }
    let runner = &mut state.runners[batch.runner.index()];
    if awaited && let Some(busy) = runner.busy[place].take() {
        acknowledge(runner, batch.shard, busy);
    }
}

/// The runner learns that its batch has landed, which means something to the life that sent it.
fn acknowledge(runner: &mut Runner, shard: ShardNo, busy: Busy) {
    let held = &mut runner.held[shard.index()];
    if busy.kind == Kind::Commit && runner.fence == Some(busy.fence) && held.is_some() {
        *held = Some(busy.base + 1);
    }
}

/// Reads the run of a shard that is the runner's.
fn read(state: &mut State, no: RunnerNo, shard: ShardNo) {
    let version = state.versions[shard.index()];
    let current = true;
    state.runners[no.index()].reads[shard.index()] = Some(Read { version, current });
}

/// A run in memory has something to commit.
fn make_commit(state: &mut State, no: RunnerNo, shard: ShardNo) {
    let runner = &mut state.runners[no.index()];
    if let (Some(fence), Some(base)) = (runner.fence, runner.held[shard.index()]) {
        runner.queued[shard.index()] = Some(Queued { fence, base });
        state.left.commits -= 1;
    }
}

/// The shard is this runner's; its run is read after this.
fn give(state: &mut State, shard: ShardNo, no: RunnerNo, epoch: u8) {
    let owner = Owner { runner: no, epoch };
    state.shards[shard.index()] = Some(owner);
    let runner = &mut state.runners[no.index()];
    if runner.is_alive() && runner.fence == Some(epoch) {
        runner.owned[shard.index()] = true;
    }
}

/// A shard that nobody holds is taken, in a transaction with the fence of who takes it.
fn take_free(state: &mut State, no: RunnerNo, shard: ShardNo) {
    match state.runner(no).fence {
        Some(fence) if state.fence_holds(no, fence) => give(state, shard, no, fence),
        _ => state.runners[no.index()].lose(),
    }
}

/// Whether the lease lasts: only a clock that is ahead says that it is over.
fn is_early(state: &State, victim: RunnerNo) -> bool {
    let row = state.row(victim);
    row.is_some_and(|row| row.lease_until > state.now && row.silent < LEASE)
}

/// The second transaction begins with the fence of who takes over, if its row comes first.
fn begin_takeover(state: &mut State, no: RunnerNo) {
    let Some(take) = &mut state.takes[no.index()] else {
        return;
    };
    take.begun = true;
    let fence = take.fence;
    if !state.fence_holds(no, fence) {
        state.takes[no.index()] = None;
        state.runners[no.index()].lose();
    }
}

/// A runner with nothing on its way removes its row and frees what it holds.
fn leave(state: &mut State, no: RunnerNo) {
    state.left.moves -= 1;
    let fence = state.runner(no).fence;
    if fence.is_some_and(|fence| state.fence_holds(no, fence)) {
        free_all(state, no);
        state.rows[no.index()] = None;
    }
    state.runners[no.index()] = Runner { process: Process::Left, ..Runner::NEW };
}

fn free_all(state: &mut State, no: RunnerNo) {
    for owner in &mut state.shards {
        if owner.is_some_and(|owner| owner.runner == no) {
            *owner = None;
        }
    }
}

/// The memory of the process is gone; what it has sent is not. Its next life has lanes of its own,
/// so only the fence can stop what is still on its way from this one.
fn crash(state: &mut State, no: RunnerNo) {
    state.left.faults -= 1;
    let lanes = std::mem::take(&mut state.lanes[no.index()]);
    let dead = |batch: &Batch| batch.runner == no;
    // What its own settler has shut out stays so.
    let refused = |batch: &Batch| {
        dead(batch)
            && !batch.begun
            && batch.lane.is_some_and(|e| e != lanes[batch.shard.index()].epoch)
    };
    state.batches.retain(|batch| !refused(batch));
    let orphans = state.batches.iter_mut().filter(|batch| dead(batch));
    orphans.for_each(|batch| (batch.lane, batch.number) = (None, 0));
    state.batches.sort_unstable();
    if state.takes[no.index()].is_some_and(|take| !take.begun) {
        state.takes[no.index()] = None;
    }
    state.runners[no.index()] = Runner { process: Process::Crashed, ..Runner::NEW };
}

impl Break {
    pub(crate) const ALL: [Break; 11] = [
        Break::Silence,
        Break::Fence,
        Break::TakeoverWait,
        Break::TakeoverCheck,
        Break::TakeoverOrder,
        Break::RegisterWait,
        Break::ReleaseEarly,
        Break::Settle,
        Break::SelfFencing,
        Break::ReadCheck,
        Break::QueueCheck,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Break::Silence => "silence",
            Break::Fence => "fence",
            Break::TakeoverWait => "takeover-wait",
            Break::TakeoverCheck => "takeover-check",
            Break::TakeoverOrder => "takeover-order",
            Break::RegisterWait => "register-wait",
            Break::ReleaseEarly => "release-early",
            Break::Settle => "settle",
            Break::SelfFencing => "self-fencing",
            Break::ReadCheck => "read-check",
            Break::QueueCheck => "queue-check",
        }
    }
}

impl fmt::Display for Step {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Step::Tick => write!(f, "time passes"),
            Step::Register(r) => write!(f, "{r} registers"),
            Step::Heartbeat(r) => write!(f, "{r} has its heartbeat"),
            Step::SendHeartbeat(r) => write!(f, "{r} sends a heartbeat, which is held up"),
            Step::ReceiveHeartbeat(r) => write!(f, "the late heartbeat of {r} arrives"),
            Step::Read(r, s) => write!(f, "{r} reads the run of {s}"),
            Step::TakeIn(r, s) => write!(f, "what {r} has read of {s} arrives"),
            Step::MakeCommit(r, s) => write!(f, "{r} makes a commit to {s}"),
            Step::SendCommit(r, s) => write!(f, "{r} comes to its commit to {s}"),
            Step::SendRelease(r, s) => write!(f, "{r} gives {s} back"),
            Step::Begin(batch) => write!(f, "the store looks at {batch}"),
            Step::Commit(batch) => write!(f, "the store commits {batch}"),
            Step::LoseConnection(r, s) => write!(f, "{r} loses its connection for {s}"),
            Step::Vanish(batch) => write!(f, "{batch} never gets through"),
            Step::Settle(r, s) => write!(f, "{r} settles what became of its batch for {s}"),
            Step::TakeFree(r, s) => write!(f, "{r} takes {s}, which is free"),
            Step::RaiseEpoch(r, v) => write!(f, "{r} raises the epoch of {v}, whose lease is over"),
            Step::BeginTakeover(r) => write!(f, "{r} begins to move the shards, and waits"),
            Step::MoveShards(r) => write!(f, "{r} has the row, and moves the shards"),
            Step::VanishTakeover(r) => write!(f, "the takeover by {r} never gets through"),
            Step::Leave(r) => write!(f, "{r} leaves in good order"),
            Step::Crash(r) => write!(f, "{r} crashes"),
            Step::Pause(r) => write!(f, "{r} is paused"),
            Step::Resume(r) => write!(f, "{r} goes on"),
        }
    }
}
