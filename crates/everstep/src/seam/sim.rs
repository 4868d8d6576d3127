//! A simulation: the threads of several engines as activities of which one runs at a time, chosen by a
//! seed.
//!
//! Every activity has a thread of its own, and all but one of these are parked: whoever comes to a point
//! or waits draws the next activity and hands the baton to its thread. So marks in thread-locals, deep
//! stacks and a runtime that was entered work as they do in production. Virtual time moves only when no
//! activity can go on, to the next timer. Nothing but the seed and the code decides: two simulations of
//! the same `main` with one seed give the same trace.
//!
//! A *process* groups activities for faults, and has clocks of its own ([`Clocks`]): its monotonic clock
//! and its calendar may go faster or slower than the simulation's time, and its calendar may be wrong and
//! may jump. A stall of a process lets each of its activities go on at
//! a time of its own once it is over: that is how a lease ends, and another begins, within one poll. A
//! kill unwinds each activity from where it waits. A `catch_unwind` on the way gets as far as the next
//! point. While an activity unwinds, the functions of the seam return at once.

use std::{
    any::Any,
    cell::{Cell, RefCell},
    cmp::Reverse,
    collections::BinaryHeap,
    fmt::Write as _,
    panic::{AssertUnwindSafe, catch_unwind, resume_unwind},
    sync::{
        Arc, Condvar, Mutex, MutexGuard, OnceLock, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use serde::{Deserialize, Serialize};

use super::{Signal, lock::leaves_held};
use crate::random::{hash, mix};

type Job = Box<dyn FnOnce() + Send>;

thread_local! {
    /// Whether this thread has an activity: looked at first, since it costs next to nothing.
    static SIMULATED: Cell<bool> = const { Cell::new(false) };
    /// The activity of this thread.
    static HERE: RefCell<Option<Here>> = const { RefCell::new(None) };
}

/// The activity of this thread, if it has one.
#[inline]
pub(crate) fn here() -> Option<Here> {
    if !SIMULATED.get() {
        return None;
    }
    HERE.with_borrow(Clone::clone)
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Numbers from a seed.
pub struct Rng(u64);

impl Rng {
    /// The numbers of this seed.
    pub fn new(seed: u64) -> Rng {
        Rng(mix(seed))
    }

    /// The next number.
    pub fn draw(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9E37_79B9_7F4A_7C15);
        mix(self.0)
    }

    /// A number below this one; 0 if that is 0.
    pub fn below(&mut self, end: u64) -> u64 {
        self.draw() % end.max(1)
    }

    /// Whether something happens that has so many chances in a thousand.
    pub fn happens(&mut self, per_mille: u32) -> bool {
        self.below(1_000) < u64::from(per_mille)
    }

    /// A time up to this one.
    pub fn up_to(&mut self, limit: Duration) -> Duration {
        Duration::from_nanos(self.below(nanos(limit).saturating_add(1)))
    }
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// A point that an activity has come to.
pub struct At<'a> {
    /// The process of the activity, by its place: 0 is that of `main`.
    pub process: u32,
    /// The name of the process.
    pub name: &'a str,
    /// The name of its thread.
    pub activity: &'a str,
    /// The name of the point.
    pub label: &'static str,
    /// How long the simulation has lasted.
    pub time: Duration,
}

/// What befalls an activity at a point.
#[derive(Clone, Copy, Debug)]
pub enum Fault {
    /// The activity stands still for this long.
    StallActivity(Duration),
    /// All activities of the process stand still for this long, and each of them up to `spread` longer.
    StallProcess {
        /// How long all of them do.
        lasts: Duration,
        /// How much longer one of them may.
        spread: Duration,
    },
    /// The process ends.
    Kill,
    /// The calendar of the process is set: it is ahead of the simulation's time by so many milliseconds.
    SetCalendar {
        /// How far it is ahead.
        ahead_ms: i64,
        /// For how long; then it shows what it would have shown. For good if this is not said.
        lasts: Option<Duration>,
    },
}

/// How the clocks of a process go, by the simulation's own time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Clocks {
    /// How much faster the monotonic clock goes, in millionths.
    pub monotonic_ppm: i32,
    /// How much faster the calendar goes, in millionths.
    pub calendar_ppm: i32,
    /// How far the calendar is ahead, in milliseconds.
    pub calendar_ahead_ms: i64,
}

impl Clocks {
    /// What the monotonic clock shows at this time of the simulation, both in nanoseconds since its
    /// beginning.
    fn monotonic(self, now: u64) -> u64 {
        scaled(now, self.monotonic_ppm)
    }

    /// The first time of the simulation at which the monotonic clock shows this.
    fn when_monotonic(self, shown: u64) -> u64 {
        let rate = u128::from(rate(self.monotonic_ppm));
        let now = (u128::from(shown) * 1_000_000).div_ceil(rate);
        u64::try_from(now).unwrap_or(u64::MAX)
    }

    fn calendar(self, now: u64) -> SystemTime {
        let passed = Duration::from_nanos(scaled(now, self.calendar_ppm));
        let shown = UNIX_EPOCH + CALENDAR + passed;
        let ahead = Duration::from_millis(self.calendar_ahead_ms.unsigned_abs());
        match self.calendar_ahead_ms < 0 {
            true => shown - ahead,
            false => shown + ahead,
        }
    }
}

/// How far a clock goes in a million nanoseconds. No clock stands still.
fn rate(ppm: i32) -> u64 {
    u64::try_from(1_000_000 + i64::from(ppm)).map_or(1, |rate| rate.max(1))
}

fn scaled(time: u64, ppm: i32) -> u64 {
    let scaled = u128::from(time) * u128::from(rate(ppm)) / 1_000_000;
    u64::try_from(scaled).unwrap_or(u64::MAX)
}

/// Decides what befalls an activity at a point.
pub type Faults = Box<dyn FnMut(&At<'_>, &mut Rng) -> Option<Fault> + Send>;

/// How a simulation goes.
pub struct Config {
    /// What befalls whom.
    pub faults: Faults,
    /// The simulation fails if it lasts for longer than this, in virtual time.
    pub time_max: Duration,
    /// How many of a thousand reads of a clock are points at which another activity may go on.
    pub clock_points: u32,
    /// At how many of a thousand points the activity that came there goes on by itself, before anybody
    /// else is drawn.
    pub goes_on: u32,
    /// How much is written into [`Report::trace`]; with less a simulation is quicker.
    pub trace: Trace,
}

impl Default for Config {
    fn default() -> Config {
        Config {
            faults: Box::new(|_, _| None),
            time_max: Duration::from_secs(24 * 3_600),
            clock_points: 0,
            goes_on: 0,
            trace: Trace::Steps,
        }
    }
}

/// How much of a simulation is written down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum Trace {
    /// Nothing.
    #[default]
    Off,
    /// Every [`note`], and every fault.
    Events,
    /// And every time that an activity goes on.
    Steps,
}

/// What happened in a simulation.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// A line for each event, and for each step, as far as [`Config::trace`] says.
    pub trace: String,
    /// A number that depends on who went on when, from where, for every step.
    pub digest: u64,
    /// How often an activity has gone on.
    pub steps: u64,
    /// How often that was another one than before.
    pub switches: u64,
    /// How many activities there were.
    pub activities: usize,
    /// How long it has lasted, in virtual time.
    pub time: Duration,
    /// How often an activity or a process was stalled.
    pub stalls: u64,
    /// How many processes were killed.
    pub kills: u64,
    /// How often the calendar of a process was set.
    pub clock_jumps: u64,
    /// Why it has failed.
    pub failure: Option<String>,
}

/// Carried by the unwinding of a killed activity. No panic hook sees it.
struct Killed;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    Runnable,
    Running,
    /// For the signal at this address, which is compared and never ordered by; 0 for none.
    Waiting(usize),
    Done,
}

struct Activity {
    name: Arc<str>,
    process: u32,
    state: State,
    /// Which of its timers counts.
    timer: u64,
    killed: bool,
    /// Where it was last.
    label: &'static str,
    job: Option<Job>,
    thread: Arc<PoolThread>,
    ended: Arc<AtomicBool>,
}

struct ProcessState {
    name: String,
    dead: bool,
    stalled_until: u64,
    spread: Duration,
    clocks: Clocks,
    /// Until when, and by how many milliseconds, the calendar is ahead instead.
    glitch: Option<(u64, i64)>,
}

struct Core {
    activities: Vec<Activity>,
    processes: Vec<ProcessState>,
    runnable: Vec<u32>,
    /// When, in which order they were set, and whose.
    timers: BinaryHeap<Reverse<(u64, u64, u32)>>,
    timers_set: u64,
    /// Nanoseconds since the beginning.
    now: u64,
    rng: Rng,
    config: Config,
    report: Report,
    running: u32,
    left: usize,
    /// `main` has ended, or the simulation has failed: everybody is killed.
    ending: bool,
}

/// What the activities of a simulation share.
pub(crate) struct Sim {
    core: Mutex<Core>,
    over: Mutex<bool>,
    is_over: Condvar,
    runtime: tokio::runtime::Handle,
}

/// A simulation that never ends is a mistake in it.
const STEPS_MAX: u64 = 10_000_000;

/// How long an activity may hold the baton, in real time, before it is taken to block outside of the
/// seam. A busy machine must not come near it.
const BATON_MAX: Duration = Duration::from_secs(60);

impl Core {
    fn fail(&mut self, why: String) {
        if self.report.failure.is_none() && !self.ending {
            self.report.failure = Some(why);
        }
        self.end();
    }

    fn end(&mut self) {
        if !std::mem::replace(&mut self.ending, true) {
            for process in 0..self.processes.len() {
                self.kill(process as u32);
            }
        }
    }

    fn kill(&mut self, process: u32) {
        self.processes[process as usize].dead = true;
        for id in 0..self.activities.len() {
            let activity = &mut self.activities[id];
            if activity.process == process && activity.state != State::Done {
                activity.killed = true;
                if let State::Waiting(_) = activity.state {
                    self.make_runnable(id as u32);
                }
            }
        }
    }

    /// The clocks of the process of this activity.
    fn clocks(&self, id: u32) -> Clocks {
        let process = self.activities[id as usize].process;
        let process = &self.processes[process as usize];
        let mut clocks = process.clocks;
        if let Some((_, ahead_ms)) = process.glitch.filter(|(until, _)| *until > self.now) {
            clocks.calendar_ahead_ms = ahead_ms;
        }
        clocks
    }

    fn set_timer(&mut self, id: u32, at: u64) {
        self.timers_set += 1;
        self.activities[id as usize].timer = self.timers_set;
        self.timers.push(Reverse((at, self.timers_set, id)));
    }

    /// It may go on: at once, or after the stall of its process.
    fn make_runnable(&mut self, id: u32) {
        let activity = &mut self.activities[id as usize];
        let process = &self.processes[activity.process as usize];
        if process.stalled_until > self.now && !activity.killed {
            activity.state = State::Waiting(0);
            let late = match self.rng.below(2) {
                0 => 0,
                _ => nanos(self.rng.up_to(process.spread)),
            };
            let at = process.stalled_until + late;
            return self.set_timer(id, at);
        }
        activity.state = State::Runnable;
        activity.timer = 0;
        self.runnable.push(id);
    }

    fn trace(&mut self, process: u32, activity: &str, what: &str) {
        if self.config.trace == Trace::Off {
            return;
        }
        let (ms, us) = (self.now / 1_000_000, self.now / 1_000 % 1_000);
        let process = &self.processes[process as usize].name;
        let line = writeln!(self.report.trace, "{ms:>6}.{us:03} {process} {activity}: {what}");
        line.expect("a text takes everything");
    }

    /// The next one, by the seed. Time moves only if there is none.
    fn pick(&mut self) -> Option<u32> {
        loop {
            if !self.runnable.is_empty() {
                return Some(self.draw());
            }
            let Some(Reverse((at, number, id))) = self.timers.pop() else {
                if self.left == 0 || self.ending {
                    return None;
                }
                self.fail(format!("deadlock: {}", self.whereabouts()));
                continue;
            };
            if self.activities[id as usize].timer == number {
                self.now = self.now.max(at);
                self.make_runnable(id);
                if self.now > nanos(self.config.time_max) && !self.ending {
                    let limit = self.config.time_max;
                    self.fail(format!("no end after {limit:?}: {}", self.whereabouts()));
                }
            }
        }
    }

    fn draw(&mut self) -> u32 {
        let place = self.rng.below(self.runnable.len() as u64) as usize;
        let id = self.runnable.swap_remove(place);
        self.go_on(id);
        id
    }

    /// Lets the activity at the end of the list go on, which has just come to a point, if the seed says
    /// so: whether it does.
    fn goes_on(&mut self, id: u32) -> bool {
        let may = self.runnable.last() == Some(&id) && !self.ending;
        let goes_on = may && self.rng.happens(self.config.goes_on);
        if goes_on {
            self.runnable.pop();
            self.go_on(id);
        }
        goes_on
    }

    fn go_on(&mut self, id: u32) {
        let activity = &mut self.activities[id as usize];
        activity.state = State::Running;
        let (process, name, label) = (activity.process, activity.name.clone(), activity.label);
        self.report.steps += 1;
        if !self.ending {
            if self.config.trace == Trace::Steps {
                self.trace(process, &name, label);
            }
            let step = hash(u64::from(id), label.as_bytes());
            self.report.digest = mix(self.report.digest ^ self.now ^ step);
        }
        if self.running != id {
            self.report.switches += 1;
            self.running = id;
        }
        if self.report.steps > STEPS_MAX && !self.ending {
            self.fail(format!("no end after {STEPS_MAX} steps"));
        }
    }

    /// Where everybody is.
    fn whereabouts(&self) -> String {
        let live = self.activities.iter().filter(|it| it.state != State::Done);
        let each = live.map(|it| {
            let process = &self.processes[it.process as usize].name;
            format!("{process} {} at `{}`", it.name, it.label)
        });
        each.collect::<Vec<_>>().join("; ")
    }

    /// A running activity has come to a point: what befalls it.
    fn befall(&mut self, id: u32) {
        let activity = &self.activities[id as usize];
        let (process, name) = (activity.process, activity.name.clone());
        let at = At {
            process,
            name: &self.processes[process as usize].name,
            activity: &name,
            label: activity.label,
            time: Duration::from_nanos(self.now),
        };
        // Nothing befalls the process that watches the others.
        let fault = match self.ending || process == 0 {
            true => None,
            false => (self.config.faults)(&at, &mut self.rng),
        };
        let Some(fault) = fault else {
            return self.make_runnable(id);
        };
        self.trace(process, &name, &format!("{fault:?}"));
        match fault {
            Fault::Kill => {
                self.report.kills += 1;
                self.kill(process);
                self.make_runnable(id);
            }
            Fault::SetCalendar { ahead_ms, lasts } => {
                self.report.clock_jumps += 1;
                let state = &mut self.processes[process as usize];
                match lasts {
                    None => (state.clocks.calendar_ahead_ms, state.glitch) = (ahead_ms, None),
                    Some(lasts) => {
                        let until = self.now.saturating_add(nanos(lasts));
                        state.glitch = Some((until, ahead_ms));
                    }
                }
                self.make_runnable(id);
            }
            Fault::StallActivity(lasts) => {
                self.report.stalls += 1;
                self.activities[id as usize].state = State::Waiting(0);
                self.set_timer(id, self.now.saturating_add(nanos(lasts)));
            }
            Fault::StallProcess { lasts, spread } => {
                self.report.stalls += 1;
                let state = &mut self.processes[process as usize];
                state.stalled_until = self.now.saturating_add(nanos(lasts));
                state.spread = spread;
                let runnable = std::mem::take(&mut self.runnable);
                for other in runnable {
                    match self.activities[other as usize].process == process {
                        true => self.make_runnable(other),
                        false => self.runnable.push(other),
                    }
                }
                self.make_runnable(id);
            }
        }
    }
}

/// An activity, on its own thread.
#[derive(Clone)]
pub(crate) struct Here {
    sim: Arc<Sim>,
    id: u32,
}

impl Here {
    pub(super) fn point(&self, label: &'static str) {
        self.pause(label, |core| core.befall(self.id));
    }

    pub(super) fn sleep(&self, how_long: Duration, label: &'static str) {
        self.pause(label, |core| {
            core.activities[self.id as usize].state = State::Waiting(0);
            let clocks = core.clocks(self.id);
            let shown = clocks.monotonic(core.now).saturating_add(nanos(how_long));
            core.set_timer(self.id, clocks.when_monotonic(shown));
        });
    }

    pub(super) fn wait(
        &self,
        signal: &Signal,
        seen: u64,
        until: Option<Instant>,
        label: &'static str,
    ) {
        self.pause(label, |core| {
            let clocks = core.clocks(self.id);
            let until = until.map(|until| nanos(until.saturating_duration_since(beginning())));
            let until = until.map(|shown| clocks.when_monotonic(shown));
            if signal.seen() != seen || until.is_some_and(|until| until <= core.now) {
                return core.befall(self.id);
            }
            let activity = &mut core.activities[self.id as usize];
            activity.state = State::Waiting(address(signal));
            activity.timer = 0;
            if let Some(until) = until {
                core.set_timer(self.id, until);
            }
        });
    }

    pub(super) fn notify(&self, signal: &Signal, all: bool) {
        let mut core = lock(&self.sim.core);
        let state = State::Waiting(address(signal));
        let waiting = 0..core.activities.len() as u32;
        let is_waiting = |id: &u32| core.activities[*id as usize].state == state;
        let mut waiting: Vec<u32> = waiting.filter(is_waiting).collect();
        if !all && !waiting.is_empty() {
            let one = core.rng.below(waiting.len() as u64) as usize;
            waiting = vec![waiting[one]];
        }
        waiting.into_iter().for_each(|id| core.make_runnable(id));
    }

    /// A clock is about to be read: a point, as often as the simulation is configured to have one here.
    /// None while a leaf is held, since another activity may wait for that.
    pub(super) fn clock_point(&self, label: &'static str) {
        if leaves_held() > 0 || thread::panicking() {
            return;
        }
        let mut core = lock(&self.sim.core);
        let chances = core.config.clock_points;
        let is_point = !core.ending && core.rng.happens(chances);
        drop(core);
        if is_point {
            self.point(label);
        }
    }

    pub(super) fn instant(&self) -> Instant {
        beginning() + self.monotonic()
    }

    pub(super) fn uptime(&self) -> Duration {
        UP_BEFORE + self.monotonic()
    }

    fn monotonic(&self) -> Duration {
        let core = lock(&self.sim.core);
        Duration::from_nanos(core.clocks(self.id).monotonic(core.now))
    }

    pub(super) fn wall(&self) -> SystemTime {
        let core = lock(&self.sim.core);
        core.clocks(self.id).calendar(core.now)
    }

    pub(super) fn process_name(&self) -> String {
        let core = lock(&self.sim.core);
        let process = core.activities[self.id as usize].process;
        core.processes[process as usize].name.clone()
    }

    pub(super) fn random(&self) -> u64 {
        lock(&self.sim.core).rng.draw()
    }

    pub(super) fn runtime(&self) -> tokio::runtime::Handle {
        self.sim.runtime.clone()
    }

    pub(super) fn process(&self) -> SimProcess {
        let process = lock(&self.sim.core).activities[self.id as usize].process;
        SimProcess { sim: self.sim.clone(), process }
    }

    pub(super) fn is_dead(&self) -> bool {
        lock(&self.sim.core).activities[self.id as usize].killed
    }

    /// Comes to a place where another may go on, and comes back when this activity is picked again.
    fn pause(&self, label: &'static str, enter: impl FnOnce(&mut Core)) {
        if thread::panicking() {
            return;
        }
        assert!(
            leaves_held() == 0,
            "a leaf lock is held across `{label}`, where another activity may go on"
        );
        let mut core = lock(&self.sim.core);
        core.activities[self.id as usize].label = label;
        match core.activities[self.id as usize].killed {
            true => core.make_runnable(self.id),
            false => enter(&mut core),
        }
        if core.goes_on(self.id) {
            return;
        }
        let next = core.pick().expect("there is at least this one");
        if next != self.id {
            let mine = core.activities[self.id as usize].thread.clone();
            hand_over(core, next);
            mine.await_baton();
            core = lock(&self.sim.core);
        }
        if core.activities[self.id as usize].killed {
            drop(core);
            resume_unwind(Box::new(Killed));
        }
    }
}

fn address(signal: &Signal) -> usize {
    std::ptr::from_ref(signal).addr()
}

/// The instant of the monotonic clock at which every simulation begins. Some time after that of the
/// machine, so that a time can be taken off.
fn beginning() -> Instant {
    static BEGINNING: OnceLock<Instant> = OnceLock::new();
    *BEGINNING.get_or_init(|| Instant::now() + Duration::from_secs(24 * 3_600))
}

/// How long the machine has been on at the beginning.
const UP_BEFORE: Duration = Duration::from_secs(3_600);

/// The calendar at the beginning: 2026-01-01.
const CALENDAR: Duration = Duration::from_secs(1_767_225_600);

/// A process of a simulation.
#[derive(Clone)]
pub struct SimProcess {
    sim: Arc<Sim>,
    process: u32,
}

impl SimProcess {
    /// Starts a thread of the process.
    pub fn spawn(&self, name: &str, work: impl FnOnce() + Send + 'static) -> SimThread {
        self.start(name, Box::new(work))
    }

    /// Whether it was killed.
    pub fn is_dead(&self) -> bool {
        lock(&self.sim.core).processes[self.process as usize].dead
    }

    /// Ends the process, if it has not ended: its activities unwind from where they are, as in one that
    /// is killed.
    pub fn exit(&self) {
        lock(&self.sim.core).kill(self.process);
    }

    /// Gives the process other clocks.
    pub fn set_clocks(&self, clocks: Clocks) {
        lock(&self.sim.core).processes[self.process as usize].clocks = clocks;
    }

    fn start(&self, name: &str, work: Job) -> SimThread {
        let thread = pool_thread();
        let mut core = lock(&self.sim.core);
        let id = core.activities.len() as u32;
        *lock(&thread.work) = Some(Here { sim: self.sim.clone(), id });
        let (name, ended): (Arc<str>, _) = (Arc::from(name), Arc::new(AtomicBool::new(false)));
        let killed = core.processes[self.process as usize].dead;
        core.activities.push(Activity {
            name: name.clone(),
            process: self.process,
            state: State::Waiting(0),
            timer: 0,
            killed,
            label: "start",
            job: Some(work),
            thread,
            ended: ended.clone(),
        });
        core.left += 1;
        core.make_runnable(id);
        SimThread { name, ended }
    }
}

/// A thread of a simulated process.
pub struct SimThread {
    name: Arc<str>,
    ended: Arc<AtomicBool>,
}

impl SimThread {
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// Whether its work has ended.
    pub fn is_finished(&self) -> bool {
        self.ended.load(Ordering::Acquire)
    }
}

/// A new process in the simulation of this thread.
///
/// # Panics
///
/// If this thread is none of a simulation.
pub fn new_process(name: &str) -> SimProcess {
    let here = here().expect("a thread of a simulation");
    let mut core = lock(&here.sim.core);
    core.processes.push(ProcessState::new(name));
    let process = core.processes.len() as u32 - 1;
    drop(core);
    SimProcess { sim: here.sim, process }
}

impl ProcessState {
    fn new(name: &str) -> ProcessState {
        ProcessState {
            name: name.to_owned(),
            dead: false,
            stalled_until: 0,
            spread: Duration::ZERO,
            clocks: Clocks::default(),
            glitch: None,
        }
    }
}

/// How long the simulation of this thread has lasted, by no clock of any process.
///
/// # Panics
///
/// If this thread is none of a simulation.
pub fn time() -> Duration {
    let here = here().expect("a thread of a simulation");
    let core = lock(&here.sim.core);
    Duration::from_nanos(core.now)
}

/// The right time of the calendar, whatever the calendars of processes show.
pub fn right_time() -> SystemTime {
    UNIX_EPOCH + CALENDAR + time()
}

/// The process of this thread.
///
/// # Panics
///
/// If this thread is none of a simulation.
pub fn this_process() -> SimProcess {
    here().expect("a thread of a simulation").process()
}

/// Whether the simulation of this thread writes its trace: a [`note`] is worth its words.
pub fn is_traced() -> bool {
    here().is_some_and(|here| lock(&here.sim.core).config.trace > Trace::Off)
}

/// Puts a line into the trace.
///
/// # Panics
///
/// If this thread is none of a simulation.
pub fn note(what: &str) {
    let here = here().expect("a thread of a simulation");
    let mut core = lock(&here.sim.core);
    if !core.ending {
        let activity = &core.activities[here.id as usize];
        let (process, name) = (activity.process, activity.name.clone());
        core.trace(process, &name, what);
    }
}

/// Runs `main` as the first activity, in a process that nothing befalls. The simulation ends when it
/// returns: everybody else is killed.
///
/// # Panics
///
/// If an activity blocks outside of the seam.
pub fn simulate(seed: u64, config: Config, main: impl FnOnce() + Send + 'static) -> Report {
    let runtime = tokio::runtime::Builder::new_current_thread().build();
    let runtime = runtime.expect("a runtime without drivers needs nothing of the system");
    let core = Core {
        activities: Vec::new(),
        processes: vec![ProcessState::new("main")],
        runnable: Vec::new(),
        timers: BinaryHeap::new(),
        timers_set: 0,
        now: 0,
        rng: Rng::new(seed),
        config,
        report: Report::default(),
        running: u32::MAX,
        left: 0,
        ending: false,
    };
    let sim = Arc::new(Sim {
        core: Mutex::new(core),
        over: Mutex::new(false),
        is_over: Condvar::new(),
        runtime: runtime.handle().clone(),
    });
    let first = SimProcess { sim: sim.clone(), process: 0 };
    first.spawn("main", main);
    drive(&sim);
    let mut core = lock(&sim.core);
    let mut report = std::mem::take(&mut core.report);
    report.activities = core.activities.len();
    report.time = Duration::from_nanos(core.now);
    report
}

/// Gives the baton to the first activity and waits for the end.
fn drive(sim: &Sim) {
    let mut core = lock(&sim.core);
    let first = core.pick().expect("`main` can go on");
    hand_over(core, first);
    let mut steps = 0;
    let mut over = lock(&sim.over);
    while !*over {
        let waited = sim.is_over.wait_timeout(over, BATON_MAX);
        let (guard, timeout) = waited.unwrap_or_else(PoisonError::into_inner);
        over = guard;
        if !timeout.timed_out() || *over {
            continue;
        }
        let core = lock(&sim.core);
        if core.report.steps == steps {
            let blocked = &core.activities[core.running as usize];
            panic!(
                "{} {} has gone on from `{}` and has come to no other point for {BATON_MAX:?}: it \
                 blocks outside of the seam",
                core.processes[blocked.process as usize].name, blocked.name, blocked.label
            );
        }
        steps = core.report.steps;
    }
}

fn hand_over(core: MutexGuard<'_, Core>, next: u32) {
    let thread = core.activities[next as usize].thread.clone();
    drop(core);
    thread.pass_baton();
}

/// A thread for one activity after another.
struct PoolThread {
    has_baton: AtomicBool,
    thread: OnceLock<thread::Thread>,
    work: Mutex<Option<Here>>,
}

impl PoolThread {
    fn await_baton(&self) {
        while !self.has_baton.swap(false, Ordering::Acquire) {
            thread::park();
        }
    }

    fn pass_baton(&self) {
        self.has_baton.store(true, Ordering::Release);
        if let Some(thread) = self.thread.get() {
            thread.unpark();
        }
    }

    fn work(self: &Arc<Self>) {
        loop {
            self.await_baton();
            let here = lock(&self.work).take();
            let here = here.expect("there is work before the baton comes");
            SIMULATED.set(true);
            HERE.set(Some(here.clone()));
            run_job(&here);
            HERE.set(None);
            SIMULATED.set(false);
            lock(idle()).push(self.clone());
            let mut core = lock(&here.sim.core);
            match core.pick() {
                Some(next) => hand_over(core, next),
                None => {
                    drop(core);
                    *lock(&here.sim.over) = true;
                    here.sim.is_over.notify_all();
                }
            }
        }
    }
}

/// Threads without work.
fn idle() -> &'static Mutex<Vec<Arc<PoolThread>>> {
    static IDLE: Mutex<Vec<Arc<PoolThread>>> = Mutex::new(Vec::new());
    &IDLE
}

fn pool_thread() -> Arc<PoolThread> {
    if let Some(thread) = lock(idle()).pop() {
        return thread;
    }
    let new = Arc::new(PoolThread {
        has_baton: AtomicBool::new(false),
        thread: OnceLock::new(),
        work: Mutex::new(None),
    });
    let its = new.clone();
    let builder = thread::Builder::new().name("everstep-sim".to_owned());
    let thread = builder.spawn(move || its.work());
    let thread = thread.expect("a simulation needs its threads");
    _ = new.thread.set(thread.thread().clone());
    new
}

/// Runs an activity from its beginning to its end, or until it is killed.
fn run_job(here: &Here) {
    let mut core = lock(&here.sim.core);
    let activity = &mut core.activities[here.id as usize];
    let job = activity.job.take().expect("it runs once");
    let killed = activity.killed;
    drop(core);
    let ended = match killed {
        // What it holds is dropped as in a thread that unwinds.
        true => catch_unwind(AssertUnwindSafe(move || {
            let _job = job;
            resume_unwind(Box::new(Killed));
        })),
        false => catch_unwind(AssertUnwindSafe(job)),
    };
    let mut core = lock(&here.sim.core);
    let activity = &mut core.activities[here.id as usize];
    activity.state = State::Done;
    activity.ended.store(true, Ordering::Release);
    let name = activity.name.clone();
    core.left -= 1;
    if let Err(panic) = ended
        && !panic.is::<Killed>()
    {
        core.fail(format!("{name} panicked: {}", message(&*panic)));
    }
    if here.id == 0 {
        core.end();
    }
}

fn message(panic: &(dyn Any + Send)) -> &str {
    let text = panic.downcast_ref::<&str>().copied();
    text.or_else(|| panic.downcast_ref::<String>().map(String::as_str)).unwrap_or("(no message)")
}

#[cfg(test)]
mod tests;
