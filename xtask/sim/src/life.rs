//! One life: everything that a seed decides, from the first process to the verdict.

use std::{
    collections::BTreeSet,
    sync::{Arc, Mutex, PoisonError, atomic::Ordering},
    time::Duration,
};

use everstep::{
    Client, RunStatus, Sabotage,
    store::{Filter, LetterFilter, RunRow, Store},
    testing::simulation::{self, Config, Kind, Report, Server, SimThread, Trace},
};
use everstep_conformance::Change;

use crate::{
    oracle::{
        Promise, Violation,
        ending::{self, Ending, Left},
        ledger::{Ledger, note},
    },
    plan::Plan,
    summary::Summary,
    work::{
        program::{Op, Program},
        queues::Task,
        schedules,
    },
    world::{
        clients::{self, Actor, Outside},
        engines::Engines,
        operators::program_of,
    },
};

/// What became of a life.
pub(crate) struct Verdict {
    pub(crate) report: Report,
    pub(crate) summary: Summary,
    pub(crate) violations: Vec<Violation>,
    /// What was done to the store, if [`Options::keeps_changes`] says so.
    pub(crate) changes: Vec<Change>,
}

/// How a life is lived.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Options {
    pub(crate) trace: Trace,
    pub(crate) sabotage: Option<Sabotage>,
    /// What is done to the store is kept.
    pub(crate) keeps_changes: bool,
}

/// Lives the life of a plan, and judges it.
pub(crate) fn live(plan: Plan, options: Options) -> Verdict {
    let plan = Arc::new(plan);
    let config = Config {
        faults: plan.sky.faults(),
        time_max: plan.sky.calm_after + plan.bound() * 2 + SHUTDOWN_MAX,
        clock_points: plan.clock_points,
        goes_on: plan.goes_on,
        trace: options.trace,
    };
    let left: Arc<Mutex<Option<Left>>> = Arc::default();
    let (of, kept) = (plan.clone(), left.clone());
    let report = simulation::simulate(plan.seed, config, move || {
        let main = Main::new(of, options);
        // Kept from the beginning, so that it is there if the simulation fails.
        *kept.lock().unwrap_or_else(PoisonError::into_inner) = Some(Left {
            server: main.server.clone(),
            ledger: main.ledger.clone(),
            engines: main.engines.clone(),
            ending: None,
        });
        let ending = main.live();
        let mut kept = kept.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(left) = &mut *kept {
            left.ending = Some(ending);
        }
    });
    let left = left.lock().unwrap_or_else(PoisonError::into_inner).take();
    let left = left.expect("the main process has begun");
    let violations = ending::judge(&plan, &report, &left);
    let summary = Summary::of(&report, &left, &violations);
    let changes = left.server.changes.as_ref();
    let changes =
        changes.map(|it| std::mem::take(&mut *it.lock().unwrap_or_else(PoisonError::into_inner)));
    Verdict { report, summary, violations, changes: changes.unwrap_or_default() }
}

/// How long engines may take to shut down.
const SHUTDOWN_MAX: Duration = Duration::from_secs(120);

/// The process that nothing befalls: it starts the others, and sees to it that everything ends.
struct Main {
    plan: Arc<Plan>,
    server: Arc<Server>,
    ledger: Arc<Ledger>,
    engines: Arc<Engines>,
}

impl Main {
    fn new(plan: Arc<Plan>, options: Options) -> Main {
        let (sky, ahead_ms, ppm) = (plan.sky.clone(), plan.store_ahead_ms, plan.store_ppm);
        let server = Server::new(plan.kind, sky, ahead_ms, ppm, options.keeps_changes);
        // In a file, the calendar of each process counts.
        let clocks_agree = plan.kind == Kind::Database || plan.sky.jumps == 0;
        server.sabotage(options.sabotage);
        let ledger = Ledger::new(Some(server.clone()), clocks_agree);
        let engines = Engines::new(plan.clone(), server.clone(), ledger.clone(), options.sabotage);
        Main { plan, server, ledger, engines }
    }

    fn live(&self) -> Ending {
        let supervisors = self.engines.begin();
        let actors = clients::begin(&self.plan, &self.server, &self.ledger);
        simulation::sleep(self.plan.sky.calm_after);
        note(|| "the faults stop".to_owned());
        let store = self.server.open(&simulation::this_process(), true);
        let client = Client::on(store).expect("a simulation always has threads");
        let outside = Outside {
            client,
            name: "main".to_owned(),
            plan: self.plan.clone(),
            ledger: self.ledger.clone(),
        };
        while !actors.iter().all(Actor::is_done) {
            simulation::sleep(Duration::from_millis(500));
        }
        self.start_the_rest(&outside);
        self.stop_schedules(&outside);
        let all_ended = self.await_ends(&outside);
        self.settle();
        self.engines.expects_nothing.store(all_ended, Ordering::Relaxed);
        if all_ended {
            self.ledger.check_no_places();
            self.ledger.check_no_waits();
        }
        self.hear_results(&outside);
        self.close(&supervisors);
        self.end(&outside)
    }

    /// Starts the runs that no client has started.
    fn start_the_rest(&self, outside: &Outside) {
        for number in 0..self.plan.programs.len() {
            outside.start(number);
        }
    }

    /// Waits until nothing is wrong, so that no tick is late, and lets no more come.
    fn stop_schedules(&self, outside: &Outside) {
        if self.plan.schedules.is_empty() {
            return;
        }
        while !self.plan.sky.is_settled(simulation::time()) {
            simulation::sleep(self.plan.lease);
        }
        simulation::sleep(self.plan.lease * 6 + Duration::from_secs(3));
        for number in 0..self.plan.schedules.len() {
            self.ledger.check_not_late(number, self.plan.lease * 4 + Duration::from_secs(2));
            let schedule = outside.client.schedule_named(schedules::name(number));
            let paused = simulation::block_on(schedule.pause());
            // No client may have made it.
            note(|| format!("schedule {number} is paused: {paused:?}"));
        }
    }

    /// Sends the runs that have not ended what they may wait for without end.
    fn feed(&self, outside: &Outside, open: &[RunRow], round: u64) {
        for row in open {
            let number = program_of(&row.tags);
            let program = match number {
                Some(number) => self.plan.programs.get(number),
                None => self.child(row),
            };
            // One whose code was not called waits for nothing.
            let Some(program) = program else {
                continue;
            };
            let (mut channels, mut events) = (BTreeSet::new(), BTreeSet::new());
            for op in program.all() {
                match op {
                    Op::Listen { channel, .. } => _ = channels.insert(*channel),
                    Op::Hear(op) => channels.extend(op.channels()),
                    Op::Event(op) => _ = events.insert((op.event, op.key)),
                    _ => {}
                }
            }
            for channel in channels {
                // With a message that it has, it must go on by itself.
                if self.has_unread(row, channel) {
                    continue;
                }
                let message = format!("main:{}-{channel}-{round}", row.id);
                outside.feed(row.id, number, channel, &message);
            }
            for (event, key) in events {
                let body = format!("main:{}-{event}-{key:?}-{round}", row.id);
                outside.publish(event, key, &body, true);
            }
        }
        let tokens = self.ledger.book().news.open_tokens();
        for (place, token) in tokens {
            if open.iter().any(|row| (row.id, row.generation) == (place.run, place.generation)) {
                outside.settle(place, token, false);
            }
        }
    }

    /// What a child performs, if its code was called.
    fn child(&self, row: &RunRow) -> Option<&Program> {
        let book = self.ledger.book();
        let stay = book.stays.iter().find(|stay| stay.run == row.id)?;
        stay.order.find(&self.plan.programs)
    }

    fn has_unread(&self, row: &RunRow, channel: u32) -> bool {
        let inbox = self.server.data.inbox(row.id.no(), 0);
        let name = format!("channel-{channel}");
        inbox.expect("the store in memory never fails").iter().any(|row| row.name == name)
    }

    fn rows(&self) -> Vec<RunRow> {
        let rows = self.server.data.list(&Filter::default(), None, usize::MAX);
        rows.expect("the store in memory never fails")
    }

    /// How many items of the queue are to be worked on.
    fn items(&self) -> u64 {
        let stats = self.server.data.queue_stats("tasks");
        let stats = stats.expect("the store in memory never fails");
        stats.ready + stats.delayed + stats.claimed
    }

    /// Waits until all runs have ended; whether they have within their bound.
    fn await_ends(&self, outside: &Outside) -> bool {
        let until = simulation::time() + self.plan.bound();
        for round in 0.. {
            let rows = self.rows();
            self.ledger.check_closed(&rows);
            let open: Vec<RunRow> = rows.into_iter().filter(|it| !has_ended(it)).collect();
            let items = self.items();
            if open.is_empty() && items == 0 {
                return true;
            }
            if simulation::time() > until {
                for row in open {
                    self.tell_of_hung(outside, &row);
                }
                if items > 0 {
                    let what = format!("{items} items are still in the queue");
                    self.ledger.violate(Promise::ItemsAreDoneOnce, what);
                }
                return false;
            }
            for row in open.iter().filter(|row| is_paused_by_request(row)) {
                outside.resume(&outside.client.run(row.id));
            }
            if round % 5 == 4 {
                self.feed(outside, &open, round);
            }
            simulation::sleep(Duration::from_secs(1));
        }
        unreachable!("it waits until its time is over")
    }

    fn tell_of_hung(&self, outside: &Outside, row: &RunRow) {
        let why = simulation::block_on(outside.client.run::<u64>(row.id).why());
        let why = why.map_or_else(|error| format!("{error:?}"), |why| why.sentence);
        let RunRow { id, status, available_at, waiting, recoveries, shard, .. } = row;
        let runners = self.server.data.runners().unwrap_or_default();
        let owner = runners.iter().find(|it| it.shards.contains(*shard));
        let owner = owner.map_or("nobody", |it| it.name.as_str());
        let what = format!(
            "run {id} ({:?}) has not ended: {status:?}, due {available_at:?}, waits for {waiting:?}, \
             {recoveries} recoveries, owned by {owner}; why: {why}",
            row.key
        );
        let promise = match status {
            RunStatus::Paused => Promise::DeployDamagesNothing,
            _ => Promise::EveryRunEnds,
        };
        self.ledger.violate(promise, what);
    }

    /// Waits until nothing is stalled any more, and every engine knows what it owns.
    fn settle(&self) {
        let sky = &self.plan.sky;
        while sky.stalls + sky.process_stalls > 0 && !sky.is_settled(simulation::time()) {
            simulation::sleep(self.plan.lease);
        }
        simulation::sleep(self.plan.lease * 2);
    }

    /// Asks for the results that are there.
    fn hear_results(&self, outside: &Outside) {
        for row in self.rows().iter().filter(|row| has_ended(row)) {
            outside.hear_result(&outside.client.run(row.id));
        }
    }

    /// Has all engines shut down.
    fn close(&self, supervisors: &[SimThread]) {
        self.engines.close();
        let until = simulation::time() + SHUTDOWN_MAX;
        while !supervisors.iter().all(SimThread::is_finished) {
            if simulation::time() > until {
                let what = "an engine does not shut down".to_owned();
                return self.ledger.violate(Promise::NothingIsLeft, what);
            }
            simulation::sleep(Duration::from_millis(500));
        }
    }

    /// What is in the store at the end.
    fn end(&self, outside: &Outside) -> Ending {
        let data = &self.server.data;
        match simulation::block_on(outside.client.doctor()) {
            Ok(report) => {
                for finding in report.findings {
                    let what = format!("{}: {}", finding.check, finding.what);
                    self.ledger.violate(Promise::StoreIsSound, what);
                }
            }
            Err(error) => {
                let what = format!("the doctor cannot look: {error:?}");
                self.ledger.violate(Promise::StoreIsSound, what);
            }
        }
        for runner in data.runners().expect("the store in memory never fails") {
            if !runner.shards.is_empty() && self.engines.has_signed_off(&runner.name) {
                let (name, shards) = (&runner.name, runner.shards.len());
                let what = format!("{name} holds {shards} shards after all have shut down");
                self.ledger.violate(Promise::NothingIsLeft, what);
            }
        }
        let runs = self.rows().into_iter().map(|row| {
            let file = simulation::block_on(outside.client.run::<u64>(row.id).export());
            let inbox = data.inbox(row.id.no(), 0);
            ending::Ended {
                file: file.expect("the run is there"),
                inbox: inbox.expect("the store in memory never fails"),
                row,
            }
        });
        let runs = runs.collect();
        let letters = data.dead_letters(&LetterFilter::default(), 0, usize::MAX);
        let dead = outside.client.queue_dead_letters("tasks", None, usize::MAX);
        let dead = simulation::block_on(dead).expect("the store in memory never fails");
        let tasks = dead.into_iter().filter_map(|item| item.input);
        let tasks = tasks.filter_map(|input| serde_json::from_value::<Task>(input).ok());
        Ending {
            runs,
            letters: letters.expect("the store in memory never fails"),
            dead_items: tasks.map(|task| task.place()).collect(),
        }
    }
}

/// Whether an operator has paused it, not an engine.
fn is_paused_by_request(row: &RunRow) -> bool {
    let reason = row.waiting.as_deref().unwrap_or_default();
    row.status == RunStatus::Paused && reason == "paused by request"
}

fn has_ended(row: &RunRow) -> bool {
    matches!(row.status, RunStatus::Completed | RunStatus::Failed | RunStatus::Cancelled)
}
