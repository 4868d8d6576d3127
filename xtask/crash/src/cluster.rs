//! Several runners that share the runs of one store, and everything around them failing.
//!
//! - Runners are killed, and replaced after a while; meanwhile others take over.
//! - A runner is stopped for longer than its lease and goes on beside those who have its runs: at any
//!   moment, in slow code, in slow bodies.
//! - A body ends its own process at its first instruction.
//! - The clocks of a runner and of a client without an engine show another hour for two seconds.
//! - Runs are paused and resumed while they stand in line and while their owner commits.
//!
//! On a PostgreSQL server also:
//!
//! - What a runner has sent is held back on its way until others have its runs: it fences itself too
//!   late, and the store must refuse it. Some runners do not fence themselves at all.
//! - The answers to a runner are held back, then its connections are cut: what became of its last
//!   batch is not known to it.
//! - The server accepts what one runner or all of them send, and does not answer.
//! - The server is stopped as in a crash, and recovers from its log.
//!
//! First every scenario is played on its own ([`crate::scenarios`]), then all of it happens while the
//! mix is driven.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use everstep::Client;
use everstep_pg::{Instance, Proxy, Settings, Which};

use crate::{
    Options, Problem, Store,
    child::{COUNTED, Fencing, LEASE, Role},
    mix::{self, Outside},
    parent::{Running, Test, lock, open},
    place::{Place, named},
    sabotage,
    scenarios::Scenario,
};

/// How many pairs of runs are under way at a time.
const PAIRS: u64 = 40;

/// What goes wrong before which kills, beside the kills: each of these counted from 0, again and
/// again.
const CYCLE: u64 = 24;
const STOPS: [u64; 2] = [3, 15];
const HOLDS: [u64; 4] = [5, 11, 17, 23];
const CUTS: [u64; 4] = [1, 7, 13, 19];
const HOLES: [u64; 2] = [9, 21];
const SCENARIOS: [(u64, Scenario); 5] = [
    (2, Scenario::StopInCode),
    (6, Scenario::LostPrice),
    (10, Scenario::StopInBody),
    (14, Scenario::PauseInLine),
    (18, Scenario::Glimpse),
];

/// Every so many kills the server crashes, the first time after half as many.
const RESTART_EVERY: u64 = 24;

/// How long the harness waits for others to take over.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(4);

/// The place of the runner whose batches are held back.
const HELD: u64 = 0;

/// What is counted of the faults; all must happen in every test of the store.
#[derive(Default)]
pub(crate) struct Faults {
    pub(crate) sigstops: u64,
    pub(crate) stops_in_code: u64,
    pub(crate) stops_in_body: u64,
    pub(crate) clock_glitches: u64,
    pub(crate) paused_in_line: u64,
    pub(crate) deaths_in_body: u64,
    black_holes: u64,
    held: u64,
    cuts: u64,
    restarts: u64,
}

/// A server and the network before it.
pub(crate) struct Network {
    server: Arc<Instance>,
    proxy: Proxy,
    settings: Settings,
}

impl Network {
    fn new(server: Arc<Instance>) -> Result<Network, Problem> {
        let proxy = Proxy::start_before(server.address())?;
        let settings = durable_settings(&server)?;
        Ok(Network { server, proxy, settings })
    }
}

/// The settings of the server; an error if it may lose what it has confirmed.
fn durable_settings(server: &Instance) -> Result<Settings, Problem> {
    let settings = server.settings()?;
    settings.check()?;
    Ok(settings)
}

/// What has come of a test.
pub(crate) struct Outcome {
    /// Whether every promise was kept and every fault happened.
    pub(crate) is_well: bool,
    /// The first promise that was broken.
    pub(crate) caught: Option<String>,
}

/// Makes the test, on this server if it is for one.
pub(crate) async fn run(
    test: &mut Test<'_>,
    server: Option<Arc<Instance>>,
) -> Result<Outcome, Problem> {
    test.make_ledger()?;
    let place = match &server {
        Some(server) => Place::Server(server.clone()),
        None => Place::File(test.file()),
    };
    place.clear()?;
    let network = server.map(Network::new).transpose()?;
    let mut started = Started { place: place.clone(), network, runners: BTreeMap::new(), count: 0 };
    // The first makes the store.
    started.start(test, 0, 0)?;
    let client = open(&place).await?;
    for slot in 1..test.options.processes {
        started.start(test, slot, 0)?;
    }
    let outside = Outside::new(client.clone(), place, test.options.seed);
    let mut cluster = Cluster {
        test,
        client,
        outside,
        started,
        faults: Faults::default(),
        naps_of: BTreeMap::new(),
        is_quiet: true,
        said: 0,
        kills: 0,
    };
    cluster.run().await
}

/// One of the runners.
pub(crate) struct Runner {
    pub(crate) running: Running,
    /// What its connections are called.
    pub(crate) name: String,
    pub(crate) fencing: Fencing,
}

impl Runner {
    pub(crate) fn process(&self) -> u32 {
        self.running.0.id()
    }

    /// Its connections.
    fn connections(&self) -> Which {
        Which::Named(format!("everstep-{}", self.name))
    }
}

/// The runners.
pub(crate) struct Started {
    place: Place,
    network: Option<Network>,
    /// By their place. One that was killed is absent until it is replaced.
    runners: BTreeMap<u64, Runner>,
    count: u64,
}

impl Started {
    fn start(&mut self, test: &mut Test<'_>, slot: u64, kills: u64) -> Result<(), Problem> {
        let name = format!("runner-{}", self.count);
        self.count += 1;
        // The one whose batches are held back more often than the others.
        let one_in = if slot == HELD { 2 } else { 4 };
        let by_store_alone = test.random.next().is_multiple_of(one_in);
        let url = match &self.network {
            Some(network) => named(&network.proxy.url_for("postgres"), &name),
            None => test.file().display().to_string(),
        };
        let fencing = match by_store_alone && self.network.is_some() && test.options.is_whole() {
            true => Fencing::ByStoreAlone,
            false => Fencing::OfItself,
        };
        let role = Role::Engine(test.latest(kills), fencing);
        let running = test.start_child(&url, role)?;
        let runner = Runner { running, name, fencing };
        if fencing == Fencing::ByStoreAlone {
            test.ledger.unfenced(runner.process());
            test.stopped(runner.process())?;
        }
        self.runners.insert(slot, runner);
        Ok(())
    }
}

pub(crate) struct Cluster<'a, 'b> {
    pub(crate) test: &'a mut Test<'b>,
    pub(crate) client: Client,
    pub(crate) outside: Rc<Outside>,
    started: Started,
    pub(crate) faults: Faults,
    /// How many naps each process was told to start.
    pub(crate) naps_of: BTreeMap<u32, u64>,
    /// Nothing happens but the scenario: what takes long is late.
    pub(crate) is_quiet: bool,
    /// How many of the findings were said.
    said: usize,
    kills: u64,
}

impl Cluster<'_, '_> {
    async fn run(&mut self) -> Result<Outcome, Problem> {
        let options = self.test.options;
        for scenario in opening(options) {
            // The moment is not always met on a busy machine.
            for _ in 0..3 {
                self.play(scenario).await?;
                self.replace()?;
                if self.has_happened(scenario) || !options.is_whole() {
                    break;
                }
            }
            if self.is_decided(scenario)? {
                return Ok(self.outcome(false));
            }
        }
        if let Some(only) = options.scenario {
            self.doctor().await?;
            println!("{}", self.scenario_line(only));
            let is_well = self.caught()?.is_none();
            return Ok(self.outcome(is_well));
        }
        self.storm().await
    }

    fn has_happened(&self, scenario: Scenario) -> bool {
        let faults = &self.faults;
        match scenario {
            Scenario::StopInCode => faults.stops_in_code > 0,
            Scenario::StopInBody => faults.stops_in_body > 0,
            Scenario::LostPrice => faults.deaths_in_body > 0,
            Scenario::PauseInLine => faults.paused_in_line > 0,
            Scenario::Glimpse => faults.clock_glitches > 0,
            Scenario::Letters => true,
        }
    }

    /// Says what a scenario has found. Whether this test is over: what was broken on purpose is found.
    fn is_decided(&mut self, scenario: Scenario) -> Result<bool, Problem> {
        let found = self.found()?;
        for what in found.iter().skip(self.said) {
            eprintln!("{}: {what}", scenario.name());
        }
        self.said = found.len();
        Ok(self.test.options.sabotage.is_some() && self.caught()?.is_some())
    }

    fn outcome(&mut self, is_well: bool) -> Outcome {
        let caught = self.caught().ok().flatten();
        Outcome { is_well, caught }
    }

    /// The first promise that was found broken so far. Where one is broken on purpose, only what follows from
    /// that counts: a test that is red for another reason does not show that it finds this.
    fn caught(&mut self) -> Result<Option<String>, Problem> {
        let found = self.found()?;
        Ok(match sabotage::known(self.test.options.sabotage) {
            None => found.into_iter().next(),
            Some(known) => self.test.first_of(known.causes, &self.outside),
        })
    }

    /// The promises that were found broken so far.
    fn found(&mut self) -> Result<Vec<String>, Problem> {
        self.test.read_ledger()?;
        let mut found = self.test.ledger.examples.clone();
        found.extend(self.test.ledger.started_on_lost_state().1);
        found.extend(lock(&self.test.known.wrong).clone());
        found.extend(self.outside.wrongs());
        Ok(found)
    }

    /// Kills, and everything else, while the mix is driven.
    async fn storm(&mut self) -> Result<Outcome, Problem> {
        self.is_quiet = false;
        let outside = self.outside.clone();
        let drivers = self.test.drive(&outside, PAIRS).await?;
        let mut worker = self.start_worker()?;
        while self.kills < self.test.options.kills {
            self.pause(100, 700).await;
            worker.check()?;
            self.check()?;
            self.mishap().await?;
            if self.test.latest(self.kills).0 != self.test.latest(self.kills + 1).0 {
                // From here on all have newer code: which code a run meets is another test's.
                for slot in self.slots() {
                    self.kill(slot).await?;
                }
            } else {
                let slot = self.any_slot();
                self.kill(slot).await?;
            }
            if self.test.random.next().is_multiple_of(2) {
                drop(worker);
                worker = self.start_worker()?;
            }
            self.test.read_histories(&outside).await?;
            self.pause(0, 400).await;
            self.replace()?;
            if self.test.options.sabotage.is_some() && self.caught()?.is_some() {
                return Ok(self.outcome(false));
            }
        }
        self.test.finish(&outside, drivers).await?;
        worker.check()?;
        self.check()?;
        self.doctor().await?;
        self.started.runners.clear();
        drop(worker);
        if let Some(network) = &self.started.network {
            durable_settings(&network.server)?;
        }
        let (runs, left) = self.test.check(&outside).await?;
        let is_well = self.report(runs, left)?;
        Ok(self.outcome(is_well))
    }

    /// Starts a process that has a client and no engine.
    pub(crate) fn start_worker(&self) -> Result<Running, Problem> {
        let url = match &self.started.network {
            Some(network) => named(&network.server.url(), "worker"),
            None => self.test.file().display().to_string(),
        };
        self.test.start_child(&url, Role::Worker)
    }

    /// Whatever the library finds wrong with the store, when everything is over.
    async fn doctor(&mut self) -> Result<(), Problem> {
        let report = mix::ask(async || self.client.doctor().await).await?;
        self.test.doctor_findings = report.findings.len() as u64;
        for finding in report.findings.iter().take(5) {
            let what = format!("doctor_findings: {}: {}", finding.check, finding.what);
            lock(&self.test.known.wrong).push(what);
        }
        Ok(())
    }

    pub(crate) async fn pause(&self, from: u64, to: u64) {
        let moment = self.test.random.between(from, to);
        tokio::time::sleep(Duration::from_millis(moment)).await;
    }

    pub(crate) fn place(&self) -> &Place {
        &self.started.place
    }

    pub(crate) fn runners(&mut self) -> &mut BTreeMap<u64, Runner> {
        &mut self.started.runners
    }

    /// The runner that is this process.
    pub(crate) fn runner_of(&self, process: u32) -> Option<&Runner> {
        let mut runners = self.started.runners.values();
        runners.find(|runner| runner.process() == process)
    }

    /// Starts the runners that are missing.
    pub(crate) fn replace(&mut self) -> Result<(), Problem> {
        for slot in 0..self.test.options.processes {
            if !self.started.runners.contains_key(&slot) {
                self.started.start(self.test, slot, self.kills)?;
            }
        }
        Ok(())
    }

    /// Where there is one runner only, another one that can take over from it.
    pub(crate) fn start_stand_in(&mut self) -> Result<(), Problem> {
        if self.test.options.processes == 1 {
            self.started.start(self.test, STAND_IN, self.kills)?;
        }
        Ok(())
    }

    pub(crate) fn end_stand_in(&mut self) -> Result<(), Problem> {
        match self.started.runners.remove(&STAND_IN) {
            Some(runner) => {
                let process = runner.process();
                drop(runner);
                self.test.killed(process).map(drop)
            }
            None => Ok(()),
        }
    }

    /// An error if a runner has ended by itself.
    fn check(&mut self) -> Result<(), Problem> {
        self.runners().values_mut().try_for_each(|runner| runner.running.check())
    }

    fn slots(&self) -> Vec<u64> {
        self.started.runners.keys().copied().collect()
    }

    pub(crate) fn any_slot(&self) -> u64 {
        self.test.random.next() % self.test.options.processes
    }

    /// Kills a runner, mostly in the middle of a body.
    async fn kill(&mut self, slot: u64) -> Result<(), Problem> {
        let Some(runner) = self.started.runners.remove(&slot) else {
            return Ok(());
        };
        let process = runner.process();
        self.test.wait_for_body(process).await?;
        drop(runner);
        self.kills += 1;
        let mid_body = self.test.killed(process)?;
        self.test.kills_mid_body += u64::from(mid_body);
        Ok(())
    }

    /// What goes wrong beside the next kill.
    async fn mishap(&mut self) -> Result<(), Problem> {
        let turn = self.kills % CYCLE;
        if STOPS.contains(&turn) {
            self.stop().await?;
        }
        for (at, scenario) in SCENARIOS {
            if turn == at {
                self.play(scenario).await?;
                self.replace()?;
            }
        }
        if self.started.network.is_none() {
            return Ok(());
        }
        if HOLDS.contains(&turn) {
            self.hold().await?;
        }
        if CUTS.contains(&turn) {
            self.cut().await?;
        }
        if HOLES.contains(&turn) {
            self.black_hole().await?;
        }
        if self.kills % RESTART_EVERY == RESTART_EVERY / 2 {
            self.restart().await?;
        }
        Ok(())
    }

    /// Stops a runner at any moment until others have its runs, and lets it go on.
    async fn stop(&mut self) -> Result<(), Problem> {
        let process = self.started.runners[&self.any_slot()].process();
        self.freeze(process).await?;
        self.start_stand_in()?;
        tokio::time::sleep(2 * LEASE).await;
        self.wait_for_takeover(process).await?;
        self.thaw(process)?;
        self.pause(200, 600).await;
        self.end_stand_in()
    }

    /// Stops a process between two commits: one that is stopped in the middle holds up the others.
    pub(crate) async fn freeze_between_commits(&mut self, process: u32) -> Result<(), Problem> {
        if let Place::File(_) = self.place() {
            let held = self.place().hold_commits()?;
            self.freeze(process).await?;
            return held.let_go();
        }
        for _ in 0..50 {
            let Some(runner) = self.runner_of(process) else {
                break;
            };
            runner.running.stop().await?;
            // What it has sent is still on its way.
            tokio::time::sleep(Duration::from_millis(15)).await;
            if self.place().is_between_commits(&runner.name)? {
                break;
            }
            runner.running.signal("CONT")?;
            tokio::time::sleep(Duration::from_millis(3)).await;
        }
        self.freeze(process).await
    }

    /// Stops a process. When this returns, it does nothing, and all that it wrote was read.
    pub(crate) async fn freeze(&mut self, process: u32) -> Result<(), Problem> {
        let Some(runner) = self.runner_of(process) else {
            return Err(format!("process {process} is none of the runners").into());
        };
        runner.running.stop().await?;
        self.faults.sigstops += 1;
        self.test.stopped(process)
    }

    /// Lets a process go on.
    pub(crate) fn thaw(&mut self, process: u32) -> Result<(), Problem> {
        self.test.read_ledger()?;
        self.test.ledger.goes_on(process);
        match self.runner_of(process) {
            Some(runner) => runner.running.signal("CONT"),
            None => Ok(()),
        }
    }

    /// Keeps what a runner sends until others have its runs.
    async fn hold(&mut self) -> Result<(), Problem> {
        let (process, which) = self.held();
        let limit = Instant::now() + TAKEOVER_LIMIT;
        while self.has_lost_its_shards(process).await? && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        let Some(network) = &self.started.network else {
            return Ok(());
        };
        network.proxy.hold(which.clone());
        self.test.stopped(process)?;
        self.faults.held += u64::from(network.proxy.wait_until_held(LEASE, &which));
        self.wait_for_takeover(process).await?;
        self.release(&which);
        self.pause(200, 600).await;
        Ok(())
    }

    /// Keeps the answers to a runner, and cuts its connections.
    async fn cut(&mut self) -> Result<(), Problem> {
        let (_, which) = self.held();
        let Some(network) = &self.started.network else {
            return Ok(());
        };
        network.proxy.hold_replies(which.clone());
        // The runner must have sent something, else nothing becomes unknown to it.
        let limit = Instant::now() + LEASE / 2;
        while !network.proxy.holds_replies(&which) && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.pause(20, 150).await;
        network.proxy.cut(&which);
        self.release(&which);
        self.faults.cuts += 1;
        self.pause(200, 600).await;
        Ok(())
    }

    /// The server takes what one runner or all of them send, new connections too, and does not
    /// answer; then it goes on, or the connections are lost.
    async fn black_hole(&mut self) -> Result<(), Problem> {
        let which = match self.faults.black_holes % 2 {
            0 => self.started.runners[&self.any_slot()].connections(),
            _ => Which::NameStarts("everstep-runner-".to_owned()),
        };
        let Some(network) = &self.started.network else {
            return Ok(());
        };
        network.proxy.hold(which.clone());
        network.proxy.hold_replies(which.clone());
        let inside: Vec<u32> = {
            let runners = self.started.runners.values();
            let inside = runners.filter(|it| it.connections() == which || self.is_for_all(&which));
            inside.map(Runner::process).collect()
        };
        for process in inside {
            self.test.stopped(process)?;
        }
        let lease = LEASE.as_millis() as u64;
        self.pause(lease * 3 / 2, lease * 3).await;
        if self.test.random.next().is_multiple_of(2)
            && let Some(network) = &self.started.network
        {
            network.proxy.cut(&which);
        }
        self.release(&which);
        self.faults.black_holes += 1;
        self.pause(200, 600).await;
        Ok(())
    }

    fn is_for_all(&self, which: &Which) -> bool {
        matches!(which, Which::NameStarts(_))
    }

    /// Whether runners can make new connections to the server.
    pub(crate) fn refuse_connections(&self, refused: bool) {
        match (&self.started.network, refused) {
            (Some(network), true) => network.proxy.refuse(),
            (Some(network), false) => network.proxy.accept(),
            (None, _) => {}
        }
    }

    fn release(&self, which: &Which) {
        if let Some(network) = &self.started.network {
            network.proxy.release(which);
        }
    }

    /// The runner whose batches are held back, and its connections.
    fn held(&self) -> (u32, Which) {
        let runner = &self.started.runners[&HELD];
        (runner.process(), runner.connections())
    }

    /// Whether a process has lost all its shards to others, or never had any.
    async fn has_lost_its_shards(&self, process: u32) -> Result<bool, Problem> {
        let cluster = mix::ask(async || self.client.cluster().await).await?;
        let name = format!("/{process}");
        let own = cluster.runners.iter().filter(|it| it.name.ends_with(&name));
        Ok(own.map(|runner| runner.shards).sum::<usize>() == 0)
    }

    /// Waits until a process has lost its runs. It may be in the middle of a transaction that nobody
    /// can pass by: then it has not.
    pub(crate) async fn wait_for_takeover(&self, process: u32) -> Result<(), Problem> {
        let limit = Instant::now() + TAKEOVER_LIMIT;
        while !self.has_lost_its_shards(process).await? && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Stops the server as a crash does, and starts it again.
    async fn restart(&mut self) -> Result<(), Problem> {
        let Some(network) = &self.started.network else {
            return Ok(());
        };
        let server = network.server.clone();
        tokio::task::spawn_blocking(move || server.restart_immediate()).await??;
        self.faults.restarts += 1;
        self.pause(500, 1_500).await;
        Ok(())
    }

    /// What all runners have counted under this name, as far as it was written down.
    fn counted(&self, name: &str) -> u64 {
        let notes = self.test.ledger.notes("counted").iter();
        let counts = notes.filter(|note| note[0] == name);
        counts.filter_map(|note| note[1].parse::<u64>().ok()).sum()
    }

    /// What must have happened in a test of this store, and how often it did.
    fn needed(&self) -> Vec<(&'static str, u64)> {
        let Faults {
            sigstops,
            stops_in_code,
            stops_in_body,
            clock_glitches,
            paused_in_line,
            deaths_in_body,
            black_holes,
            restarts,
            ..
        } = self.faults;
        let mut needed = vec![
            ("sigstops", sigstops),
            ("stops_in_code", stops_in_code),
            ("stops_in_body", stops_in_body),
            ("clock_glitches", clock_glitches),
            ("paused_in_line", paused_in_line),
            ("deaths_in_body", deaths_in_body),
        ];
        let is_server = self.started.network.is_some();
        if is_server {
            needed.extend([("black_holes", black_holes), ("pg_restarts", restarts)]);
        }
        let counted = if is_server { &COUNTED[..] } else { &COUNTED[..2] };
        needed.extend(counted.iter().map(|name| (*name, self.counted(name))));
        needed
    }

    /// The line of a scenario that was played alone.
    fn scenario_line(&self, scenario: Scenario) -> String {
        let (seed, name) = (self.test.options.seed, scenario.name());
        let fields: String = {
            let needed = self.needed();
            let fields = needed.iter().filter(|(_, count)| *count > 0);
            fields.map(|(name, count)| format!(",\"{name}\":{count}")).collect()
        };
        format!("{{\"seed\":{seed},\"scenario\":\"{name}\"{}{fields}}}", self.test.ledger_fields())
    }

    /// Prints the line; whether all is well.
    fn report(&mut self, runs: u64, left: u64) -> Result<bool, Problem> {
        for note in self.test.ledger.notes("stopped-engine") {
            let what = format!("an engine has stopped by itself: {}", note.join(" "));
            lock(&self.test.known.wrong).push(what);
        }
        let needed = self.needed();
        let mut more = vec![
            ("frozen_starts", self.test.ledger.frozen_starts),
            ("processes", self.test.options.processes),
        ];
        let mut settings = String::new();
        if let Some(network) = &self.started.network {
            more.extend([
                ("batches_held", self.faults.held),
                ("connections_cut", self.faults.cuts),
                ("stale_bodies", self.test.ledger.stale_bodies),
            ]);
            for (name, value) in [
                ("fsync", &network.settings.fsync),
                ("synchronous_commit", &network.settings.synchronous_commit),
                ("full_page_writes", &network.settings.full_page_writes),
            ] {
                settings += &format!(",\"{name}\":\"{value}\"");
            }
        }
        let fields = needed.iter().chain(&more);
        let mut line: String = fields.map(|(name, count)| format!(",\"{name}\":{count}")).collect();
        line += &settings;
        let well = self.test.report(self.kills, &self.outside, runs, left, &line);
        let missing: Vec<&str> = {
            let zero = needed.iter().filter(|(_, count)| *count == 0);
            zero.map(|(name, _)| *name).collect()
        };
        if !missing.is_empty() {
            eprintln!("this has not happened once: {}", missing.join(", "));
        }
        Ok(well && missing.is_empty())
    }
}

/// The place of the runner that stands in for the only one.
const STAND_IN: u64 = u64::MAX;

/// The scenarios that are played before the mix is driven. What is broken on purpose is looked for
/// first, more than once: that a race is lost every time takes more than one go.
fn opening(options: &Options) -> Vec<Scenario> {
    if let Some(only) = options.scenario {
        return vec![only];
    }
    let found_by = sabotage::known(options.sabotage).map(|known| known.found_by);
    let mut opening: Vec<Scenario> = found_by.into_iter().cycle().take(4).collect();
    opening.extend(Scenario::ALL);
    opening
}

/// How the server of a test is had.
pub(crate) async fn server(options: &Options) -> Result<Option<Arc<Instance>>, Problem> {
    Ok(match options.store {
        Store::Sqlite => None,
        Store::Postgres => {
            let server = tokio::task::spawn_blocking(Instance::start_new).await??;
            Some(Arc::new(server))
        }
    })
}
