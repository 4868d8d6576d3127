//! The load: a client that starts runs of both versions and waits for their ends.

use std::{
    cell::{Cell, RefCell},
    rc::Rc,
    time::{Duration, Instant},
};

use everstep::{Client, RunHandle};
use everstep_drill::{
    Problem,
    ledger::Ledger,
    order::{Between, GO, ORDER, Order, Sent},
};

/// How many runs are started one after another, each time that many at once.
const DRIVERS: usize = 10;

/// At most so many runs of a version wait for their message.
const HELD_MAX: usize = 40;

/// How long anything may take before it counts as stuck.
pub(crate) const LIMIT: Duration = Duration::from_secs(90);

/// Which version new runs have.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Starts {
    One,
    /// In turns.
    Both,
    Two,
}

/// Runs of one version.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Tally {
    pub(crate) started: u64,
    pub(crate) finished: u64,
}

/// A run that waits for its message.
struct Held {
    run: RunHandle<Sent>,
    order: Order,
}

/// What all drivers share. One thread has it.
pub(crate) struct Load {
    client: Client,
    ledger: Ledger,
    next: Cell<u64>,
    starts: Cell<Starts>,
    stop: Cell<bool>,
    tallies: [Cell<Tally>; 2],
    held: RefCell<Vec<Held>>,
    /// Runs that another version has ended.
    pub(crate) wrong_version: Cell<u64>,
    /// What was not as it should be.
    pub(crate) wrong: RefCell<Vec<String>>,
}

impl Load {
    pub(crate) fn new(client: Client, ledger: Ledger) -> Rc<Load> {
        Rc::new(Load {
            client,
            ledger,
            next: Cell::new(0),
            starts: Cell::new(Starts::One),
            stop: Cell::new(false),
            tallies: Default::default(),
            held: RefCell::default(),
            wrong_version: Cell::new(0),
            wrong: RefCell::default(),
        })
    }

    /// Begins. The drivers end once they are told to, and their last runs have ended.
    pub(crate) fn begin(self: &Rc<Load>) -> Vec<tokio::task::JoinHandle<()>> {
        let drivers = (0..DRIVERS).map(|_| tokio::task::spawn_local(self.clone().drive()));
        drivers.collect()
    }

    /// Which version runs have from now on.
    pub(crate) fn starts(&self, starts: Starts) {
        self.starts.set(starts);
    }

    pub(crate) fn stop(&self) {
        self.stop.set(true);
    }

    pub(crate) fn tally(&self, version: u32) -> Tally {
        self.of(version).get()
    }

    fn of(&self, version: u32) -> &Cell<Tally> {
        &self.tallies[version as usize - 1]
    }

    fn count(&self, version: u32, change: impl FnOnce(&mut Tally)) {
        let mut tally = self.tally(version);
        change(&mut tally);
        self.of(version).set(tally);
    }

    fn wrong(&self, what: String) {
        eprintln!("{what}");
        self.wrong.borrow_mut().push(what);
    }

    /// Waits until so many more runs of this version have ended.
    pub(crate) async fn progress(&self, version: u32, runs: u64) -> Result<(), Problem> {
        let goal = self.tally(version).finished + runs;
        let what = format!("{runs} more runs of version {version} to end");
        until(&what, async || Ok(self.tally(version).finished >= goal)).await
    }

    /// Starts runs that last: some sleep, some wait for a message, some have children that sleep.
    pub(crate) async fn start_lasting(&self, version: u32, sleep: Duration) -> Vec<Handle> {
        let ms = sleep.as_millis() as u64;
        let mut lasting = Vec::new();
        for n in 0..18 {
            let between = match n % 3 {
                0 => Between::Sleeps(ms),
                1 => Between::HasSleepers(ms),
                _ => Between::Waits,
            };
            let Some((run, order)) = self.start(version, between).await else {
                continue;
            };
            match between {
                Between::Waits => self.held.borrow_mut().push(Held { run, order }),
                _ => lasting.push(Handle { run, order }),
            }
        }
        lasting
    }

    /// How many runs of this version wait for their message.
    pub(crate) fn held(&self, version: u32) -> usize {
        let held = self.held.borrow();
        held.iter().filter(|it| it.order.version == version).count()
    }

    /// Sends at most so many of the runs of this version that wait the message that they wait for;
    /// gives them, to be seen to their end.
    pub(crate) async fn let_go(&self, version: u32, most: usize) -> Vec<Handle> {
        let gone = self.take_held(version, most);
        let mut handles = Vec::new();
        for Held { run, order } in gone {
            if let Err(error) = run.send(GO, &()).await {
                self.wrong(format!("run {} cannot be sent a message: {error}", run.id()));
            }
            handles.push(Handle { run, order });
        }
        handles
    }

    fn take_held(&self, version: u32, most: usize) -> Vec<Held> {
        let (mut gone, mut kept) = (Vec::new(), Vec::new());
        for held in self.held.take() {
            match held.order.version == version && gone.len() < most {
                true => gone.push(held),
                false => kept.push(held),
            }
        }
        self.held.replace(kept);
        gone
    }

    /// Waits for the ends of these, and says whether each has ended as it should. Those that do not
    /// end are counted by whoever counts what is left.
    pub(crate) async fn see_to_the_end(&self, handles: Vec<Handle>) {
        let limit = Instant::now() + LIMIT;
        for handle in handles {
            let left = limit.saturating_duration_since(Instant::now());
            if tokio::time::timeout(left, self.end(&handle)).await.is_err() {
                let id = handle.run.id();
                let version = handle.order.version;
                self.wrong(format!("run {id} of version {version} has not ended"));
            }
        }
    }

    async fn drive(self: Rc<Load>) {
        while !self.stop.get() {
            let number = self.next.get();
            let version = match self.starts.get() {
                Starts::One => 1,
                Starts::Two => 2,
                Starts::Both => 1 + (number / 6 % 2) as u32,
            };
            let between = match number % 6 {
                0 if self.held(version) < HELD_MAX => Between::Waits,
                1 => Between::Sleeps(300 + number % 700),
                2 => Between::HasChildren,
                _ => Between::Nothing,
            };
            let Some((run, order)) = self.start(version, between).await else {
                return;
            };
            if between == Between::Waits {
                self.held.borrow_mut().push(Held { run, order });
                continue;
            }
            self.end(&Handle { run, order }).await;
        }
    }

    async fn start(&self, version: u32, between: Between) -> Option<(RunHandle<Sent>, Order)> {
        let number = self.next.get();
        self.next.set(number + 1);
        let order = Order { number, version, between };
        let start = self.client.start(ORDER.version(version), order.clone());
        match start.key(format!("order-{number}")).await {
            Ok(run) => {
                self.count(version, |tally| tally.started += 1);
                Some((run, order))
            }
            Err(error) => {
                self.wrong(format!("order {number} cannot be started: {error}"));
                None
            }
        }
    }

    async fn end(&self, Handle { run, order }: &Handle) {
        let (id, version) = (run.id(), order.version);
        match run.result().await {
            Ok(sent) if sent == order.sent_by(version) => {
                if let Err(error) = self.ledger.finished(id) {
                    self.wrong(format!("the ledger cannot be written: {error}"));
                }
                self.count(version, |tally| tally.finished += 1);
            }
            Ok(sent) => {
                self.wrong_version.set(self.wrong_version.get() + 1);
                self.wrong(format!("run {id} of version {version} gave {sent:?}"));
            }
            Err(other) => self.wrong(format!(
                "run {id} of version {version} ({:?}) ended with {other:?}",
                order.between
            )),
        }
    }
}

/// A run whose end is waited for.
pub(crate) struct Handle {
    run: RunHandle<Sent>,
    order: Order,
}

/// Asks again and again until it is so; an error once it has taken too long.
pub(crate) async fn until(
    what: &str,
    is_so: impl AsyncFn() -> Result<bool, Problem>,
) -> Result<(), Problem> {
    let begun = Instant::now();
    while !is_so().await? {
        if begun.elapsed() > LIMIT {
            return Err(format!("waited {LIMIT:?} for {what}").into());
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    Ok(())
}
