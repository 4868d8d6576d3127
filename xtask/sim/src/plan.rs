//! What a seed draws before a life begins: its world and its work.
//!
//! Everything here is plain data that can be written as JSON, so that a life can be printed and made
//! smaller ([`crate::shrink`]).

use std::{fmt, fs, path::Path, sync::Arc, time::Duration};

use everstep::testing::simulation::{Clocks, Kind, Rng, Sky, WRONG_MAX};
use serde::{Deserialize, Serialize};

use self::focus::Focus;
use crate::{
    work::{
        draw::{CHANNELS, Draw},
        events::{EVENTS, KEYS},
        gates,
        keys::{self, Keyed},
        limits::{self, Limited},
        messages,
        program::Program,
        queues::{ClientItem, QueuePlan},
        schedules::SchedulePlan,
        streams::{self, Followed},
    },
    world::operators::{self, Operation},
};

mod focus;

/// A life, before it begins.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Plan {
    pub(crate) seed: u64,
    pub(crate) kind: Kind,
    /// How far the store's clock is ahead, in milliseconds, and how much faster it goes, in millionths.
    pub(crate) store_ahead_ms: i64,
    pub(crate) store_ppm: i64,
    pub(crate) lease: Duration,
    pub(crate) sky: Sky,
    pub(crate) engines: Vec<EnginePlan>,
    /// Of a thousand reads of a clock, how many are points.
    pub(crate) clock_points: u32,
    /// At how many of a thousand points an activity goes on by itself.
    pub(crate) goes_on: u32,
    #[serde(with = "shared")]
    pub(crate) programs: Arc<Vec<Program>>,
    /// The limit that all runs are under.
    pub(crate) gate: Option<Limited>,
    /// The queue that programs put items into.
    pub(crate) queue: Option<QueuePlan>,
    /// Whether programs and bodies give something out for clients to follow.
    pub(crate) shows: bool,
    /// When the code of all engines changes, if it does: see [`gates`].
    pub(crate) changes_at: Option<Duration>,
    /// How often runs are tried as a whole, by the policy of their workflow.
    pub(crate) run_retry: Option<RunRetry>,
    pub(crate) schedules: Vec<SchedulePlan>,
    pub(crate) scripts: Vec<Vec<Act>>,
    /// What it has much of.
    pub(crate) focus: Option<Focus>,
}

/// The retry policy of whole runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct RunRetry {
    pub(crate) attempts: u32,
    pub(crate) delay: Duration,
}

/// A process that is started again whenever it has ended.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct EnginePlan {
    pub(crate) threads: usize,
    /// Runs that wait are kept in memory.
    pub(crate) keeps_hot: bool,
    pub(crate) max_live_runs: usize,
    pub(crate) batch_commits_max: usize,
    pub(crate) clocks: Clocks,
    /// When it begins.
    pub(crate) begins: Duration,
    /// How long it stays, if it leaves by itself before the calm.
    pub(crate) stays: Option<Duration>,
    /// Whether its code is always the newest.
    pub(crate) is_steady: bool,
    /// Whether it looks at its own clock: if not, the fence of the store must hold alone.
    pub(crate) is_fenced: bool,
    /// How many items of the queue it works on at a time.
    pub(crate) workers: usize,
}

/// What a client does, and how long it waits before that.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) struct Act {
    pub(crate) after: Duration,
    pub(crate) deed: Deed,
}

#[derive(Clone, Debug, Serialize, Deserialize)]
pub(crate) enum Deed {
    /// Starts the run of a program, by its key.
    Start(usize),
    /// Sends a message to it.
    Send {
        to: usize,
        channel: u32,
        message: String,
        /// With a key, so that it may be sent again.
        dedupe: bool,
    },
    /// Waits for its result.
    Await(usize),
    /// Publishes an event.
    Publish {
        event: usize,
        key: Option<u32>,
        body: String,
        /// With a key, so that it may be published again.
        dedupe: bool,
    },
    /// Settles one of the deferreds that are known by then.
    Settle { which: u64, rejects: bool },
    /// Follows what its run gives out.
    Follow(usize, Followed),
    /// Does what operators do.
    Operate(Operation),
    /// Sends a message and waits for the reply.
    Request { to: usize, channel: u32, message: String },
    /// Starts the run of a key that children have, too.
    StartKeyed { keyed: Keyed, origin: u64 },
    /// Puts an item into the queue, and waits for its result.
    Enqueue(ClientItem),
    /// Makes the schedule of this number.
    Schedule(usize),
}

impl Deed {
    /// Whether it changes nothing.
    pub(crate) fn only_waits(&self) -> bool {
        matches!(self, Deed::Await(_) | Deed::Follow(..))
    }
}

impl Plan {
    /// The life of a seed.
    pub(crate) fn draw(seed: u64) -> Plan {
        let mut rng = Rng::new(seed ^ 0x91A2);
        let rng = &mut rng;
        // Less is checked where operators do something, so half of all lives have none. In most of those
        // that have some, runs have no children, do not wait for each other's end, and have one generation.
        let is_operated = rng.below(2) == 0;
        let more = &mut Rng::new(seed ^ 0x3A7E);
        let has_relatives = !is_operated || more.below(4) == 0;
        let lease = Duration::from_millis(1_000 + rng.below(4_000));
        let kind = match rng.below(2) {
            0 => Kind::File,
            _ => Kind::Database,
        };
        let sky = Sky::draw(rng, lease);
        let engines = (0..1 + rng.below(4)).map(|_| EnginePlan::draw(rng, lease, kind));
        let mut engines: Vec<EnginePlan> = engines.collect();
        let programs = 1 + rng.below(6) as usize;
        let mut draw = Draw::new(rng, programs, lease, has_relatives);
        let mut programs: Vec<Program> = (0..programs).map(|_| draw.program()).collect();
        let scripts =
            (0..1 + rng.below(3)).map(|client| script(rng, client, programs.len(), lease));
        let mut scripts: Vec<Vec<Act>> = scripts.collect();
        // Of their own, so that they can change while the rest stays as it is.
        let rng = &mut Rng::new(seed ^ 0x0B5E);
        if rng.below(6) == 0 {
            let unfenced = rng.below(engines.len() as u64) as usize;
            engines[unfenced].is_fenced = false;
        }
        // One that has a place while it waits for another would keep it out.
        let waits = programs.iter().any(Program::waits_for_others);
        let gate = limits::draw(rng, &mut programs).filter(|_| !waits);
        let queue = QueuePlan::draw(rng, &mut programs, lease);
        for engine in &mut engines {
            engine.workers = [0, 1, 3][rng.below(3) as usize];
        }
        // One that works is always there again.
        engines[0].workers = engines[0].workers.max(1);
        let shows = streams::draw(rng, &mut programs);
        let mut operators = operators::Draw::new(rng, programs.len(), lease, is_operated);
        for (client, script) in scripts.iter_mut().enumerate() {
            operators.add_to(client, script);
        }
        for script in scripts.iter_mut().filter(|_| shows) {
            follow(rng, script);
        }
        let sends_requests = messages::draw(more, &mut programs, lease);
        limits::draw_turns(more, &mut programs);
        let changes_at = gates::draw(more, &mut programs, sky.calm_after);
        let keyed = keys::draw(more, &mut programs);
        let run_retry = (more.below(4) == 0).then(|| RunRetry {
            attempts: 2 + more.below(2) as u32,
            delay: Duration::from_millis(1 + more.below(3_000)),
        });
        let mut extras = Extras { rng: more, lease, programs: programs.len() };
        for (client, script) in scripts.iter_mut().enumerate() {
            if sends_requests {
                extras.request(client, script);
            }
            extras.start_keyed(client, script, &keyed);
            if let Some(queue) = queue {
                extras.enqueue(client, script, queue);
            }
        }
        let mut schedules = Vec::new();
        // A clock in a file's world that is an hour ahead makes all ticks of that hour due, for good.
        let has_clock = kind == Kind::Database || sky.jumps == 0;
        if has_clock && extras.rng.below(4) == 0 {
            schedules.push(SchedulePlan::draw(extras.rng, programs.len(), lease));
            scripts.iter_mut().for_each(|script| extras.schedule(script, 0));
            let mut draw = Draw::new(extras.rng, programs.len(), lease, false);
            programs.push(draw.short_program());
        }
        let mut plan = Plan {
            seed,
            kind,
            store_ahead_ms: rng.below(120_000) as i64 - 60_000,
            store_ppm: rng.below(400) as i64 - 200,
            lease,
            sky,
            engines,
            clock_points: [0, 50, 300][rng.below(3) as usize],
            goes_on: [0, 400, 800, 950][rng.below(4) as usize],
            programs: Arc::new(programs),
            gate,
            queue,
            shows,
            changes_at,
            run_retry,
            schedules,
            scripts,
            focus: None,
        };
        let rng = &mut Rng::new(seed ^ 0xF0C5);
        plan.focus = Focus::draw(rng);
        if let Some(focus) = plan.focus {
            focus.add_to(&mut plan, rng);
        }
        plan
    }

    /// A plan that was written as JSON.
    pub(crate) fn read(file: &Path) -> Result<Plan, String> {
        let text = fs::read_to_string(file).map_err(|error| error.to_string())?;
        serde_json::from_str(&text).map_err(|error| error.to_string())
    }

    /// How long after the faults have stopped every run must have ended.
    pub(crate) fn bound(&self) -> Duration {
        // One may wait for the end of another, or come after it under limits, and each of them may be
        // there several times.
        let programs = self.programs.iter().map(Program::lasts_at_most);
        let all = programs.sum::<Duration>() * 2;
        let retries = self.run_retry.map_or(1, |retry| retry.attempts);
        let delays = self.run_retry.map_or(Duration::ZERO, |retry| retry.delay * retry.attempts);
        let ticks = self.schedules.iter().map(|schedule| {
            let ticks = (self.sky.calm_after + self.lease * 20).div_duration_f64(schedule.every);
            self.programs[schedule.program].lasts_at_most() * (ticks as u32 + 1)
        });
        let items = self.scripts.iter().flatten().map(|act| match &act.deed {
            Deed::Enqueue(item) => item.op.most,
            _ => Duration::ZERO,
        });
        let all = all * retries + delays * 4 + ticks.sum::<Duration>() + items.sum::<Duration>();
        // Of what was set by a wrong clock, everything comes by so much later.
        all * 2 + self.lease * 20 + self.sky.stall_max * 2 + WRONG_MAX * 4
    }
}

impl EnginePlan {
    fn draw(rng: &mut Rng, lease: Duration, kind: Kind) -> EnginePlan {
        let mut ppm = || rng.below(400) as i32 - 200;
        let (monotonic_ppm, calendar_ppm) = (ppm(), ppm());
        EnginePlan {
            threads: 1 + rng.below(2) as usize,
            keeps_hot: rng.below(2) == 0,
            max_live_runs: [1, 3, 20_000][rng.below(3) as usize],
            batch_commits_max: [1, 3, 2_000][rng.below(3) as usize],
            clocks: Clocks {
                monotonic_ppm,
                calendar_ppm,
                // On one machine there is one calendar, until it is set.
                calendar_ahead_ms: match kind {
                    Kind::File => 0,
                    Kind::Database => rng.below(7_200_000) as i64 - 3_600_000,
                },
            },
            begins: match rng.below(3) {
                0 => rng.up_to(lease * 6),
                _ => Duration::ZERO,
            },
            stays: match rng.below(2) {
                0 => Some(lease + rng.up_to(lease * 8)),
                _ => None,
            },
            is_steady: rng.below(2) == 0,
            is_fenced: true,
            workers: 0,
        }
    }
}

/// Starts some of the runs, sends them messages, and waits for them.
fn script(rng: &mut Rng, client: u64, programs: usize, lease: Duration) -> Vec<Act> {
    let mut acts = Vec::new();
    for program in 0..programs {
        if rng.below(3) == 0 {
            continue;
        }
        let after = rng.up_to(lease);
        let deed = Deed::Start(program);
        acts.push(Act { after, deed });
    }
    for _ in 0..rng.below(8) {
        let deed = Deed::Send {
            to: rng.below(programs as u64) as usize,
            channel: rng.below(CHANNELS) as u32,
            message: String::new(),
            dedupe: rng.below(2) == 0,
        };
        let after = rng.up_to(lease);
        let at = rng.below(acts.len() as u64 + 1) as usize;
        acts.insert(at, Act { after, deed });
    }
    for _ in 0..rng.below(4) {
        let deed = match rng.below(2) {
            0 => Deed::Publish {
                event: rng.below(EVENTS.len() as u64) as usize,
                key: (rng.below(KEYS + 1) as u32).checked_sub(1),
                body: String::new(),
                dedupe: rng.below(2) == 0,
            },
            _ => Deed::Settle { which: rng.below(100), rejects: rng.below(2) == 0 },
        };
        let after = rng.up_to(lease);
        let at = rng.below(acts.len() as u64 + 1) as usize;
        acts.insert(at, Act { after, deed });
    }
    // Numbered in the order in which they are sent.
    for (number, act) in acts.iter_mut().enumerate() {
        match &mut act.deed {
            Deed::Send { message: words, .. } | Deed::Publish { body: words, .. } => {
                *words = format!("client-{client}:{number}");
            }
            _ => {}
        }
    }
    for program in 0..programs {
        let after = rng.up_to(lease / 4);
        let deed = Deed::Await(program);
        acts.push(Act { after, deed });
    }
    acts
}

/// Adds to the scripts of clients what only some lives have.
struct Extras<'a> {
    rng: &'a mut Rng,
    lease: Duration,
    programs: usize,
}

impl Extras<'_> {
    /// Puts a deed somewhere before those that only wait.
    fn insert(&mut self, script: &mut Vec<Act>, deed: Deed) {
        let waits = script.iter().position(|act| act.deed.only_waits());
        let end = waits.unwrap_or(script.len()) as u64;
        let at = self.rng.below(end + 1) as usize;
        script.insert(at, Act { after: self.rng.up_to(self.lease), deed });
    }

    fn request(&mut self, client: usize, script: &mut Vec<Act>) {
        for number in 0..self.rng.below(4) {
            let to = self.rng.below(self.programs as u64) as usize;
            let channel = self.rng.below(CHANNELS) as u32;
            // Requests wait side by side, so they have no order.
            let message = format!("request {number} of client-{client}");
            self.insert(script, Deed::Request { to, channel, message });
        }
    }

    fn start_keyed(&mut self, client: usize, script: &mut Vec<Act>, keyed: &[Keyed]) {
        for (number, keyed) in keyed.iter().enumerate() {
            if self.rng.below(3) == 0 {
                let origin = (client * 100 + number + 1) as u64;
                self.insert(script, Deed::StartKeyed { keyed: *keyed, origin });
            }
        }
    }

    fn enqueue(&mut self, client: usize, script: &mut Vec<Act>, queue: QueuePlan) {
        for item in queue.draw_items(self.rng, client, self.lease) {
            self.insert(script, Deed::Enqueue(item));
        }
    }

    fn schedule(&mut self, script: &mut Vec<Act>, number: usize) {
        if self.rng.below(4) > 0 {
            self.insert(script, Deed::Schedule(number));
        }
    }
}

/// Has a client follow some runs before it waits for their results.
fn follow(rng: &mut Rng, script: &mut Vec<Act>) {
    let waits = script.iter().filter_map(|act| match act.deed {
        Deed::Await(program) => Some(program),
        _ => None,
    });
    let programs: Vec<usize> = waits.collect();
    for program in programs {
        if rng.below(2) == 0 {
            let deed = Deed::Follow(program, Followed::draw(rng));
            let waits = script.iter().position(|act| matches!(act.deed, Deed::Await(_)));
            let at = waits.unwrap_or(script.len());
            script.insert(at, Act { after: Duration::ZERO, deed });
        }
    }
}

impl fmt::Display for Plan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "seed {}", self.seed)?;
        let (ahead, ppm) = (self.store_ahead_ms, self.store_ppm);
        writeln!(f, "store: {:?}, {ahead} ms ahead, {ppm} ppm", self.kind)?;
        writeln!(f, "lease: {:?}", self.lease)?;
        writeln!(f, "{:?}", self.sky)?;
        let (points, goes_on) = (self.clock_points, self.goes_on);
        writeln!(f, "clock points: {points}, goes on: {goes_on}, of a thousand")?;
        for (number, engine) in self.engines.iter().enumerate() {
            writeln!(f, "engine-{number}: {engine:?}")?;
        }
        if let Some(focus) = self.focus {
            writeln!(f, "much of: {focus:?}")?;
        }
        if let Some(queue) = self.queue {
            writeln!(f, "{queue:?}")?;
        }
        if let Some(gate) = self.gate {
            writeln!(f, "runs are under `{}` ({})", gate.of_run().name(), gate.key())?;
        }
        if let Some(time) = self.changes_at {
            writeln!(f, "the code changes after {time:?}")?;
        }
        if let Some(retry) = self.run_retry {
            writeln!(f, "runs: {retry:?}")?;
        }
        for (number, schedule) in self.schedules.iter().enumerate() {
            writeln!(f, "schedule-{number}: {schedule:?}")?;
        }
        for (number, program) in self.programs.iter().enumerate() {
            write!(f, "program {number}, {program}")?;
        }
        for (number, script) in self.scripts.iter().enumerate() {
            writeln!(f, "client-{number}:")?;
            for act in script {
                writeln!(f, "    after {:?}: {:?}", act.after, act.deed)?;
            }
        }
        Ok(())
    }
}

/// Programs as JSON.
mod shared {
    use std::sync::Arc;

    use serde::{Deserialize, Deserializer, Serialize, Serializer};

    use crate::work::program::Program;

    pub(super) fn serialize<S: Serializer>(
        programs: &Arc<Vec<Program>>,
        serializer: S,
    ) -> Result<S::Ok, S::Error> {
        programs.as_ref().serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(
        deserializer: D,
    ) -> Result<Arc<Vec<Program>>, D::Error> {
        Vec::deserialize(deserializer).map(Arc::new)
    }
}
