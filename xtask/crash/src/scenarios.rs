//! Scenarios: each makes one kind of fault at exactly the moment at which it hurts, instead of waiting
//! for chance to do so.
//!
//! A scenario starts runs of a workflow that is made for it ([`crate::targets`]), strikes, and waits
//! for its runs to end. All are played at the beginning of every test, and again while the mix is
//! driven.

use std::time::{Duration, Instant};

use everstep::{ClientError, Clock, RunHandle, RunId, RunStatus, SystemClock, WorkflowRef};

use crate::{
    Problem,
    child::{Fencing, LEASE, nap_key},
    cluster::{Cluster, Runner},
    ledger::Ledger,
    mix::{self, until_ok},
    orders::{PIECE, PIECES},
    parent::lock,
    place::{Held, Place},
    targets::{LAST_TURN, LETTERS, NAP, letters, lines, naps, prices, slow_bodies, slow_code},
};

/// One kind of fault, and what it is meant to find.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Scenario {
    /// A process is stopped in slow code, past its lease: a body that it starts under its next lease
    /// is one of a run that is not its own.
    StopInCode,
    /// A process is stopped in slow bodies, past its lease: two owners at once.
    StopInBody,
    /// A process dies at the start of a body that has seen what another branch has just taken.
    LostPrice,
    /// Runs are paused and resumed while their owner commits that they stand in line.
    PauseInLine,
    /// The clocks of a runner and of a client without an engine show another hour for two seconds.
    Glimpse,
    /// Runs read messages while their owners are killed.
    Letters,
}

/// How long the clock shows another hour.
const GLIMPSE: Duration = Duration::from_secs(2);

/// How far ahead it is then.
const AHEAD: Duration = Duration::from_secs(3_600);

/// How much longer a nap may take than another one, or than it should.
const LATE: Duration = Duration::from_secs(6);

/// A run that is due so much later is not due now.
const NOT_NOW: Duration = Duration::from_secs(600);

/// How long runs may stand still before they are taken for hung: a machine that is loaded is slow.
const STILL: Duration = LEASE.saturating_mul(60);

/// How long before the library is asked whether somebody will wake them.
const ASK_AFTER: Duration = LEASE.saturating_mul(4);

/// How long an owner on a server is kept from listening again.
const LISTEN: Duration = Duration::from_millis(400);

/// How often runs in line are paused and resumed: the moment is not always met.
const STRIKES: u32 = 3;

/// How long an owner needs to look at a run that was paused or resumed.
const LOOK: Duration = Duration::from_millis(60);
const LOOK_ON_SERVER: Duration = Duration::from_millis(150);

/// What a scenario that strikes at a moment waits for that moment.
const MOMENT_LIMIT: Duration = Duration::from_secs(10);

impl Scenario {
    pub(crate) const ALL: [Scenario; 6] = [
        Scenario::StopInCode,
        Scenario::StopInBody,
        Scenario::LostPrice,
        Scenario::PauseInLine,
        Scenario::Glimpse,
        Scenario::Letters,
    ];

    pub(crate) fn name(self) -> &'static str {
        match self {
            Scenario::StopInCode => "stop-in-code",
            Scenario::StopInBody => "stop-in-body",
            Scenario::LostPrice => "lost-price",
            Scenario::PauseInLine => "pause-in-line",
            Scenario::Glimpse => "glimpse",
            Scenario::Letters => "letters",
        }
    }

    pub(crate) fn by_name(name: &str) -> Result<Scenario, Problem> {
        let found = Scenario::ALL.into_iter().find(|it| it.name() == name);
        found.ok_or_else(|| format!("`{name}` is no scenario").into())
    }
}

impl Cluster<'_, '_> {
    pub(crate) async fn play(&mut self, scenario: Scenario) -> Result<(), Problem> {
        match scenario {
            Scenario::StopInCode => self.stop_in("code", slow_code).await,
            Scenario::StopInBody => self.stop_in("body", slow_bodies).await,
            Scenario::LostPrice => self.lose_prices().await,
            Scenario::PauseInLine => self.pause_in_line().await,
            Scenario::Glimpse => self.glimpse().await,
            Scenario::Letters => self.letters().await,
        }
    }

    /// Starts so many runs.
    async fn start<W>(&self, workflow: W, count: u64) -> Vec<RunId>
    where
        W: WorkflowRef<Input = u64> + Clone,
    {
        let mut runs = Vec::new();
        for _ in 0..count {
            let n = self.outside.number();
            let key = format!("scenario-{n}");
            let start = async || {
                let start = self.client.start(workflow.clone(), n);
                start.key(&key).await
            };
            runs.push(until_ok(start).await.id());
        }
        runs
    }

    /// Waits until the ledger has something; whether it has.
    async fn wait_for(
        &mut self,
        limit: Duration,
        is_so: impl Fn(&Ledger) -> bool,
    ) -> Result<bool, Problem> {
        let limit = Instant::now() + limit;
        loop {
            self.test.read_ledger()?;
            if is_so(&self.test.ledger) {
                return Ok(true);
            }
            if Instant::now() > limit {
                return Ok(false);
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    fn wrong(&self, what: String) {
        lock(&self.test.known.wrong).push(what);
    }

    /// Waits for the end of these runs; when the first and the last have ended. Those that nobody will
    /// wake are counted.
    async fn see_end(&mut self, runs: Vec<RunId>) -> Result<(Instant, Instant), Problem> {
        let (count, mut left) = (runs.len(), runs);
        let mut first = Instant::now();
        let (mut achieved, mut since) = (None, Instant::now());
        let mut asked = false;
        loop {
            left = self.not_over(left).await?;
            let is_found = self.test.hung_runs > 0 && !self.test.options.is_whole();
            if left.len() == count {
                first = Instant::now();
            }
            if left.is_empty() || is_found {
                return Ok((first, Instant::now()));
            }
            self.test.read_ledger()?;
            let now = Some((self.test.ledger.steps_completed(), left.len()));
            if now != achieved {
                (achieved, since, asked) = (now, Instant::now(), false);
            }
            if since.elapsed() > ASK_AFTER && !asked {
                asked = true;
                left = self.ask_doctor(left).await?;
            }
            if since.elapsed() > STILL {
                for run in &left {
                    let handle: RunHandle<()> = self.client.run(*run);
                    let info = mix::ask(async || handle.info().await).await?;
                    let (of, status) = (info.workflow, info.status);
                    let waiting = info.waiting.unwrap_or_default();
                    self.hung(format!("run {run} of `{of}` stands still: {status}: {waiting}"));
                }
                return Ok((first, Instant::now()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Those of these runs that have not ended. Those that are due in another hour are hung.
    async fn not_over(&mut self, runs: Vec<RunId>) -> Result<Vec<RunId>, Problem> {
        let mut live = Vec::new();
        for run in runs {
            let handle: RunHandle<()> = self.client.run(run);
            let info = mix::ask(async || handle.info().await).await?;
            if info.status.is_terminal() {
                continue;
            }
            let now = SystemClock.now();
            match info.available_at.filter(|at| *at > now + NOT_NOW) {
                Some(at) => {
                    let of = info.workflow;
                    self.hung(format!("run {run} of `{of}` is due at {at}, and now it is {now}"));
                }
                None => live.push(run),
            }
        }
        Ok(live)
    }

    /// Runs that stand still and that nobody will wake are hung; the others are given back. The library
    /// is asked twice: a busy machine may be in the middle of a takeover.
    async fn ask_doctor(&mut self, runs: Vec<RunId>) -> Result<Vec<RunId>, Problem> {
        let mut hung = self.found_by_doctor(&runs).await?;
        if !hung.is_empty() {
            tokio::time::sleep(2 * LEASE).await;
            let again = self.found_by_doctor(&runs).await?;
            hung.retain(|(run, _)| again.iter().any(|(other, _)| other == run));
        }
        let others = runs.into_iter();
        let others = others.filter(|run| !hung.iter().any(|(other, _)| other == run));
        let others = others.collect();
        for (_, what) in hung {
            self.hung(what);
        }
        Ok(others)
    }

    async fn found_by_doctor(&self, runs: &[RunId]) -> Result<Vec<(RunId, String)>, Problem> {
        let report = mix::ask(async || self.client.doctor().await).await?;
        let findings = report.findings.into_iter();
        let own =
            findings.filter_map(|it| Some((it.run.filter(|run| runs.contains(run))?, it.what)));
        Ok(own.collect())
    }

    fn hung(&mut self, what: String) {
        self.test.hung_runs += 1;
        self.wrong(format!("promise 5 is broken: hung_runs: {what}"));
    }

    /// Stops a process when it says that it is in slow code or in a slow body, until another one has
    /// gone on with the run, and lets it go on.
    async fn stop_in<W>(&mut self, what: &'static str, workflow: W) -> Result<(), Problem>
    where
        W: WorkflowRef<Input = u64> + Clone,
    {
        self.test.orders.be_slow()?;
        self.test.read_ledger()?;
        let before = self.test.ledger.notes("slow").len();
        let runs = self.start(workflow, 8).await;
        let unfenced: Vec<String> = {
            let runners = self.runners().values();
            let unfenced = runners.filter(|runner| runner.fencing == Fencing::ByStoreAlone);
            unfenced.map(|runner| runner.process().to_string()).collect()
        };
        let found = |ledger: &Ledger| -> Option<(String, u32)> {
            let mut notes = ledger.notes("slow").iter().skip(before);
            let note = notes.find(|note| note[0] == what && !unfenced.contains(&note[2]))?;
            Some((note[1].clone(), note[2].parse().ok()?))
        };
        self.wait_for(MOMENT_LIMIT, |ledger| found(ledger).is_some()).await?;
        if let Some((run, process)) = found(&self.test.ledger)
            && self.runner_of(process).is_some()
        {
            self.freeze_between_commits(process).await?;
            self.test.orders.be_quick()?;
            self.start_stand_in()?;
            tokio::time::sleep(LEASE).await;
            self.wait_for_takeover(process).await?;
            let over = |ledger: &Ledger| ledger.has_moved_on(&run, process);
            let moved_on = self.wait_for(MOMENT_LIMIT, over).await?;
            // The new owner has completed something by then.
            self.pause(100, 200).await;
            self.thaw(process)?;
            match what {
                "code" => self.faults.stops_in_code += u64::from(moved_on),
                _ => self.faults.stops_in_body += u64::from(moved_on),
            }
            // What is left of the slow code, and what comes after it.
            tokio::time::sleep(PIECE * PIECES + LEASE / 2).await;
        }
        self.test.orders.be_quick()?;
        self.see_end(runs).await?;
        self.end_stand_in()
    }

    /// Lets processes die at the start of bodies that have just seen what another branch has taken.
    async fn lose_prices(&mut self) -> Result<(), Problem> {
        let count = self.runners().len();
        self.test.orders.order_deaths(count)?;
        let runs = self.start(prices, 24).await;
        let limit = Instant::now() + MOMENT_LIMIT;
        let mut dead = 0;
        while dead < count && Instant::now() < limit {
            dead += self.bury()?;
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        self.test.orders.spare()?;
        // One that has the order has not died yet, perhaps.
        tokio::time::sleep(Duration::from_millis(50)).await;
        self.bury()?;
        self.replace()?;
        self.see_end(runs).await.map(drop)
    }

    /// Takes away the processes that have ended themselves; how many there were.
    fn bury(&mut self) -> Result<usize, Problem> {
        let mut dead = Vec::new();
        for (slot, runner) in self.runners() {
            if runner.running.check().is_err() {
                dead.push((*slot, runner.process()));
            }
        }
        for (slot, process) in &dead {
            self.runners().remove(slot);
            self.test.killed(*process)?;
            self.faults.deaths_in_body += 1;
        }
        Ok(dead.len())
    }

    /// Pauses runs whose owner is about to commit that they stand in line, and resumes them before it
    /// has.
    async fn pause_in_line(&mut self) -> Result<(), Problem> {
        for _ in 0..STRIKES {
            let runs = self.start(lines, 30).await;
            self.strike_line(&runs).await?;
            self.see_end(runs).await?;
        }
        Ok(())
    }

    async fn strike_line(&mut self, runs: &[RunId]) -> Result<(), Problem> {
        let names: Vec<String> = runs.iter().map(ToString::to_string).collect();
        // The runs that stand in line again, and the processes that own them.
        let in_line = |ledger: &Ledger, after: usize| -> Vec<(u32, RunId)> {
            let ended = ledger.ended().iter().skip(after);
            let ended = ended.filter(|it| it.at != LAST_TURN);
            let found = ended.filter_map(|it| {
                let place = names.iter().position(|name| *name == it.run)?;
                Some((it.process, runs[place]))
            });
            found.collect()
        };
        self.test.read_ledger()?;
        let before = self.test.ledger.ended().len();
        let begun = |ledger: &Ledger| in_line(ledger, before).len() > 1;
        let cluster = mix::ask(async || self.client.cluster().await).await?;
        if !self.wait_for(MOMENT_LIMIT, begun).await? {
            return Ok(());
        }
        let Ok(held) = self.place().hold_commits() else {
            return Ok(());
        };
        self.test.read_ledger()?;
        let before = self.test.ledger.ended().len();
        // Bodies end, and that their runs stand in line again cannot be committed.
        let ended = |ledger: &Ledger| !in_line(ledger, before).is_empty();
        let limit = Duration::from_millis(200);
        self.wait_for(limit, ended).await?;
        tokio::time::sleep(Duration::from_millis(15)).await;
        self.test.read_ledger()?;
        let found = in_line(&self.test.ledger, before);
        let Some(process) = most_of(found.iter().map(|(process, _)| *process)) else {
            return held.let_go();
        };
        let own = found.iter().filter(|(by, _)| *by == process);
        let struck: Vec<RunId> = own.map(|(_, run)| *run).collect();
        let name = format!("/{process}");
        let runner = cluster.runners.iter().find(|it| it.name.ends_with(&name));
        match (self.place(), runner) {
            (Place::Server(_), _) => self.strike_on_server(process, &struck, held).await,
            (Place::File(_), Some(runner)) => {
                let id = runner.id.as_simple().to_string();
                self.strike_in_file(process, &id, &struck, held).await
            }
            (Place::File(_), None) => held.let_go(),
        }
    }

    /// The owner looks while its commit is held back, and does not hear that the runs are resumed.
    async fn strike_on_server(
        &mut self,
        process: u32,
        struck: &[RunId],
        mut held: Held,
    ) -> Result<(), Problem> {
        self.control(struck, true).await?;
        tokio::time::sleep(LOOK_ON_SERVER).await;
        self.refuse_connections(true);
        if let Some(runner) = self.runner_of(process) {
            held.deafen(&runner.name)?;
        }
        let resumed = self.control(struck, false).await;
        held.let_go()?;
        // It commits twice before it listens again.
        tokio::time::sleep(LISTEN).await;
        self.refuse_connections(false);
        resumed
    }

    /// The same where whoever holds up commits holds up whoever pauses, too: so processes are halted
    /// instead, for much less than their leases.
    async fn strike_in_file(
        &mut self,
        process: u32,
        runner: &str,
        struck: &[RunId],
        held: Held,
    ) -> Result<(), Problem> {
        self.halt(|it| it == process).await?;
        held.let_go()?;
        self.control(struck, true).await?;
        let held = self.place().hold_commits()?;
        self.unhalt()?;
        tokio::time::sleep(LOOK).await;
        self.halt(|_| true).await?;
        held.let_go()?;
        self.place().deafen(runner)?;
        let resumed = self.control(struck, false).await;
        self.place().hear(runner)?;
        resumed?;
        // It commits twice before the others wake it.
        if let Some(runner) = self.runner_of(process) {
            runner.running.signal("CONT")?;
        }
        tokio::time::sleep(LOOK).await;
        self.unhalt()
    }

    /// Stops processes for a moment that is shorter than their leases.
    async fn halt(&mut self, which: impl Fn(u32) -> bool) -> Result<(), Problem> {
        for runner in self.runners().values().filter(|it| which(it.process())) {
            runner.running.stop().await?;
        }
        Ok(())
    }

    /// Lets all of them go on.
    fn unhalt(&mut self) -> Result<(), Problem> {
        let mut runners = self.runners().values();
        runners.try_for_each(|runner| runner.running.signal("CONT"))
    }

    /// Pauses runs that have not ended, or resumes those that are paused.
    async fn control(&mut self, runs: &[RunId], pause: bool) -> Result<(), Problem> {
        for run in runs {
            let handle: RunHandle<()> = self.client.run(*run);
            let done = mix::ask(async || match pause {
                true => handle.pause().await.map(drop),
                false => handle.resume().await,
            });
            match done.await {
                Ok(()) => self.faults.paused_in_line += u64::from(pause),
                Err(ClientError::WrongStatus { .. } | ClientError::Finished { .. }) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }

    /// The clocks of a runner and of a client without an engine show another hour for two seconds. The
    /// runs that they start meanwhile and later, and the sleeps in the runner, are due in time.
    async fn glimpse(&mut self) -> Result<(), Problem> {
        let slot = self.any_slot();
        let Some(runner) = self.runners().get(&slot).map(Runner::process) else {
            return Ok(());
        };
        let client = self.start_worker()?;
        let processes = [runner, client.0.id()];
        if !self.are_up(processes).await {
            return Ok(());
        }
        for process in processes {
            self.test.orders.set_clock(process, AHEAD)?;
        }
        tokio::time::sleep(GLIMPSE / 2).await;
        let early = self.start_naps_in(processes, 2).await?;
        tokio::time::sleep(GLIMPSE / 2).await;
        for process in processes {
            self.test.orders.set_clock(process, Duration::ZERO)?;
            self.faults.clock_glitches += 1;
        }
        tokio::time::sleep(Duration::from_millis(100)).await;
        let begun = Instant::now();
        let mut runs = self.start(naps, 6).await;
        runs.extend(self.start_naps_in(processes, 3).await?);
        tokio::time::sleep(Duration::from_millis(300)).await;
        // Their children begin at once, too.
        let list = async || {
            let list = self.client.list().workflow("dozes");
            list.status(RunStatus::Pending).limit(100).await
        };
        let children = mix::ask(list).await?.runs;
        let children = children.iter().map(|child| child.id).collect();
        self.see_end(children).await?;
        let (first, last) = self.see_end(runs).await?;
        let (first, last) = (first - begun, last - begun);
        if self.is_quiet && (first > NAP + LATE || last > first + LATE) {
            self.hung(format!(
                "naps of {NAP:?} took from {first:?} to {last:?} after a glimpse of another hour"
            ));
        }
        self.see_end(early).await.map(drop)
    }

    /// Waits until the engines and clients of processes have started; whether they have.
    async fn are_up(&self, processes: [u32; 2]) -> bool {
        let limit = Instant::now() + MOMENT_LIMIT;
        while !processes.iter().all(|it| self.test.orders.is_up(*it)) {
            if Instant::now() > limit {
                return false;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        true
    }

    /// Has each of these processes start so many naps.
    async fn start_naps_in(
        &mut self,
        processes: [u32; 2],
        count: u64,
    ) -> Result<Vec<RunId>, Problem> {
        let mut keys = Vec::new();
        for process in processes {
            let started = self.naps_of.entry(process).or_default();
            keys.extend((*started..*started + count).map(|n| nap_key(process, n)));
            *started += count;
            self.test.orders.order_starts(process, *started)?;
        }
        let mut runs = Vec::new();
        for key in keys {
            runs.extend(self.find(&key).await?);
        }
        Ok(runs)
    }

    /// A nap that a process was told to start.
    async fn find(&self, key: &str) -> Result<Option<RunId>, Problem> {
        let limit = Instant::now() + MOMENT_LIMIT;
        loop {
            let found = mix::ask(async || self.client.get(("naps", key)).await).await?;
            if found.is_some() || Instant::now() > limit {
                return Ok(found.map(|run| run.id()));
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// Sends numbered letters and kills an owner in between: each is read once, in order.
    async fn letters(&mut self) -> Result<(), Problem> {
        let runs = self.start(letters, 8).await;
        for letter in 0..LETTERS {
            for run in &runs {
                let handle: RunHandle<Vec<u64>> = self.client.run(*run);
                let key = format!("letter-{letter}");
                let send = async || match handle.send("letter", &letter).dedupe(&key).await {
                    // It has read too much; what it has read is looked at below.
                    Err(ClientError::Finished { .. }) => Ok(()),
                    sent => sent.map(drop),
                };
                until_ok(send).await;
            }
            if letter == LETTERS / 2 {
                let slot = self.any_slot();
                if let Some(runner) = self.runners().remove(&slot) {
                    let process = runner.process();
                    drop(runner);
                    self.test.killed(process)?;
                    self.replace()?;
                }
            }
        }
        self.see_end(runs.clone()).await?;
        let expected: Vec<u64> = (0..LETTERS).collect();
        for run in runs {
            let handle: RunHandle<Vec<u64>> = self.client.run(run);
            match mix::ended(&handle).await {
                Ok(read) if read == expected => {}
                other => self.wrong(format!(
                    "promise 4 is broken: run {run} was sent {expected:?} and has read {other:?}"
                )),
            }
        }
        let dead = mix::ask(async || self.client.dead_letters().limit(10).await).await?;
        for letter in &dead.letters {
            let name = &letter.name;
            self.wrong(format!(
                "promise 4 is broken: the message `{name}` was still in the inbox when its run ended"
            ));
        }
        Ok(())
    }
}

/// What is there most often.
fn most_of(all: impl Iterator<Item = u32> + Clone) -> Option<u32> {
    all.clone().max_by_key(|one| all.clone().filter(|other| other == one).count())
}
