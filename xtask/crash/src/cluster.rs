//! Several runners that share the runs on one PostgreSQL server, and everything around them failing.
//!
//! - Runners are killed, and replaced after a while; meanwhile others take over.
//! - A runner is stopped for longer than its lease and goes on beside those who have its runs.
//! - What a runner has sent is held back on its way until others have its runs: it fences itself too
//!   late, and the store must refuse it. Some runners do not fence themselves at all.
//! - The answers to a runner are held back, then its connections are cut: what became of its last
//!   batch is not known to it.
//! - The server is stopped as in a crash, and recovers from its log.
//!
//! The promises are those of one engine on a file.

use std::{
    collections::BTreeMap,
    rc::Rc,
    sync::Arc,
    time::{Duration, Instant},
};

use everstep_pg::{Instance, Proxy, Settings, Which};

use crate::{
    Problem,
    child::{COUNTED, Fencing, LEASE, Role},
    mix::Outside,
    parent::{Running, Test, lock, open},
    place::{Place, named},
};

/// How many pairs of runs are under way at a time.
const PAIRS: u64 = 40;

/// What goes wrong before which kills, beside the kills: each of these counted from 0, again and
/// again.
const CYCLE: u64 = 12;
const STOPS: [u64; 2] = [3, 9];
const HOLDS: [u64; 2] = [5, 11];
const CUTS: [u64; 2] = [1, 7];

/// Every so many kills the server crashes, the first time after half as many.
const RESTART_EVERY: u64 = 24;

/// How long the harness waits for others to take over.
const TAKEOVER_LIMIT: Duration = Duration::from_secs(4);

/// The place of the runner that is reached through the proxy.
const PROXIED: u64 = 0;

pub(crate) async fn run(test: &mut Test<'_>) -> Result<bool, Problem> {
    let server = Arc::new(tokio::task::spawn_blocking(Instance::start_new).await??);
    let settings = durable_settings(&server)?;
    let proxy = Proxy::start_before(server.address())?;
    let place = Place::Server(server.clone());
    test.make_ledger()?;
    let mut cluster = Cluster {
        test,
        server,
        place: place.clone(),
        proxy,
        runners: BTreeMap::new(),
        started: 0,
        kills: 0,
        sigstops: 0,
        held: 0,
        cuts: 0,
        restarts: 0,
    };
    for slot in 0..cluster.test.options.processes {
        cluster.start(slot)?;
    }
    let client = open(&place).await?;
    let outside = Outside::new(client, place, cluster.test.options.seed);
    cluster.run(outside, &settings).await
}

/// The settings of the server; an error if it may lose what it has confirmed.
fn durable_settings(server: &Instance) -> Result<Settings, Problem> {
    let settings = server.settings()?;
    settings.check()?;
    Ok(settings)
}

/// One of the runners.
struct Runner {
    running: Running,
    /// What its connections are called.
    name: String,
}

impl Runner {
    fn process(&self) -> u32 {
        self.running.0.id()
    }
}

struct Cluster<'a, 'b> {
    test: &'a mut Test<'b>,
    server: Arc<Instance>,
    place: Place,
    proxy: Proxy,
    /// By their place. One that was killed is absent until it is replaced.
    runners: BTreeMap<u64, Runner>,
    started: u64,
    kills: u64,
    sigstops: u64,
    held: u64,
    cuts: u64,
    restarts: u64,
}

impl Cluster<'_, '_> {
    async fn run(&mut self, outside: Rc<Outside>, settings: &Settings) -> Result<bool, Problem> {
        let drivers = self.test.drive(&outside, PAIRS).await?;
        let url = named(&self.server.url(), "worker");
        let mut worker = self.test.start_child(&url, Role::Worker)?;
        while self.kills < self.test.options.kills {
            self.pause(300, 1_300).await;
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
                worker = self.test.start_child(&url, Role::Worker)?;
            }
            self.test.read_histories(&outside).await?;
            self.pause(0, 700).await;
            for slot in 0..self.test.options.processes {
                if !self.runners.contains_key(&slot) {
                    self.start(slot)?;
                }
            }
        }
        self.test.finish(&outside, drivers).await?;
        worker.check()?;
        self.check()?;
        self.runners.clear();
        drop(worker);
        durable_settings(&self.server)?;
        let (runs, left) = self.test.check(&outside).await?;
        Ok(self.report(&outside, runs, left, settings))
    }

    async fn pause(&self, from: u64, to: u64) {
        let moment = self.test.random.between(from, to);
        tokio::time::sleep(Duration::from_millis(moment)).await;
    }

    fn start(&mut self, slot: u64) -> Result<(), Problem> {
        let (number, kills) = (self.started, self.kills);
        self.started += 1;
        // The one whose batches are held back more often than the others.
        let one_in = if slot == PROXIED { 2 } else { 4 };
        let by_store_alone = self.test.random.next().is_multiple_of(one_in);
        let fencing = match by_store_alone && self.test.options.sabotage.is_none() {
            true => Fencing::ByStoreAlone,
            false => Fencing::OfItself,
        };
        let url = match slot {
            PROXIED => self.proxy.url_for("postgres"),
            _ => self.server.url(),
        };
        let role = Role::Engine(self.test.latest(kills), fencing);
        let name = format!("runner-{number}");
        let running = self.test.start_child(&named(&url, &name), role)?;
        let runner = Runner { running, name };
        if fencing == Fencing::ByStoreAlone {
            self.test.ledger.unfenced(runner.process());
            self.test.stopped(runner.process())?;
        }
        self.runners.insert(slot, runner);
        Ok(())
    }

    /// An error if a runner has ended by itself.
    fn check(&mut self) -> Result<(), Problem> {
        self.runners
            .values_mut()
            .try_for_each(|runner| runner.running.check())
    }

    fn slots(&self) -> Vec<u64> {
        self.runners.keys().copied().collect()
    }

    fn any_slot(&self) -> u64 {
        self.test.random.next() % self.test.options.processes
    }

    /// Kills a runner, mostly in the middle of a body.
    async fn kill(&mut self, slot: u64) -> Result<(), Problem> {
        let Some(runner) = self.runners.remove(&slot) else {
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
        if HOLDS.contains(&turn) {
            self.hold().await?;
        }
        if CUTS.contains(&turn) {
            self.cut().await?;
        }
        if self.kills % RESTART_EVERY == RESTART_EVERY / 2 {
            self.restart().await?;
        }
        Ok(())
    }

    /// Stops a runner until others have its runs, and lets it go on.
    async fn stop(&mut self) -> Result<(), Problem> {
        let slot = self.any_slot();
        let process = self.runners[&slot].process();
        self.runners[&slot].running.signal("STOP")?;
        self.test.stopped(process)?;
        tokio::time::sleep(2 * LEASE).await;
        self.wait_for_takeover(process).await?;
        self.runners[&slot].running.signal("CONT")?;
        self.sigstops += 1;
        self.pause(200, 600).await;
        Ok(())
    }

    /// Keeps what a runner sends until others have its runs.
    async fn hold(&mut self) -> Result<(), Problem> {
        let (process, which) = self.proxied();
        let limit = Instant::now() + TAKEOVER_LIMIT;
        while self.place.has_lost_its_shards(process)? && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        self.proxy.hold(which.clone());
        self.test.stopped(process)?;
        self.held += u64::from(self.proxy.wait_until_held(LEASE, &which));
        self.wait_for_takeover(process).await?;
        self.proxy.release(&which);
        self.pause(200, 600).await;
        Ok(())
    }

    /// Keeps the answers to a runner, and cuts its connections.
    async fn cut(&mut self) -> Result<(), Problem> {
        let (_, which) = self.proxied();
        self.proxy.hold_replies(which.clone());
        self.pause(20, 150).await;
        self.proxy.cut(&which);
        self.proxy.release(&which);
        self.cuts += 1;
        self.pause(200, 600).await;
        Ok(())
    }

    /// The runner behind the proxy, and its connections.
    fn proxied(&self) -> (u32, Which) {
        let runner = &self.runners[&PROXIED];
        let name = format!("everstep-{}", runner.name);
        (runner.process(), Which::Named(name))
    }

    /// Waits until a process has lost its runs. It may be in the middle of a transaction that nobody
    /// can pass by: then it has not.
    async fn wait_for_takeover(&self, process: u32) -> Result<(), Problem> {
        let limit = Instant::now() + TAKEOVER_LIMIT;
        while !self.place.has_lost_its_shards(process)? && Instant::now() < limit {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        Ok(())
    }

    /// Stops the server as a crash does, and starts it again.
    async fn restart(&mut self) -> Result<(), Problem> {
        let server = self.server.clone();
        tokio::task::spawn_blocking(move || server.restart_immediate()).await??;
        self.restarts += 1;
        self.pause(500, 1_500).await;
        Ok(())
    }

    /// What all runners have counted under this name, as far as it was written down.
    fn counted(&self, name: &str) -> u64 {
        let notes = self.test.ledger.notes("counted").iter();
        let counts = notes.filter(|note| note[0] == name);
        counts.filter_map(|note| note[1].parse::<u64>().ok()).sum()
    }

    /// Prints the line; whether all is well.
    fn report(&self, outside: &Outside, runs: u64, left: u64, settings: &Settings) -> bool {
        for note in self.test.ledger.notes("stopped-engine") {
            let what = format!("an engine has stopped by itself: {}", note.join(" "));
            lock(&self.test.known.wrong).push(what);
        }
        let own = [("sigstops", self.sigstops), ("pg_restarts", self.restarts)];
        let counted = COUNTED.iter().map(|name| (*name, self.counted(name)));
        let needed: Vec<(&str, u64)> = own.into_iter().chain(counted).collect();
        let more = [
            ("batches_held", self.held),
            ("connections_cut", self.cuts),
            ("stale_bodies", self.test.ledger.stale_bodies),
            ("processes", self.test.options.processes),
        ];
        let fields = needed.iter().chain(&more);
        let mut line: String = fields
            .map(|(name, count)| format!(",\"{name}\":{count}"))
            .collect();
        for (name, value) in [
            ("fsync", &settings.fsync),
            ("synchronous_commit", &settings.synchronous_commit),
            ("full_page_writes", &settings.full_page_writes),
        ] {
            line += &format!(",\"{name}\":\"{value}\"");
        }
        let well = self.test.report(self.kills, outside, runs, left, &line);
        let missing: Vec<&str> = {
            let zero = needed.iter().filter(|(_, count)| *count == 0);
            zero.map(|(name, _)| *name).collect()
        };
        if !missing.is_empty() {
            eprintln!("this has not happened once: {}", missing.join(", "));
        }
        well && missing.is_empty()
    }
}
