//! The mix: workflows that wait for, start and share things, each with what is known of it outside.
//!
//! Every part has workflows that run in the killed processes, a driver that starts them from the
//! process that is not, and a check at the end. A check asks the ledger, the file and those who
//! were told; what the engine says of itself is only compared with that.

use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    future::Future,
    rc::Rc,
    time::Duration,
};

use everstep::{
    Client, ClientError, Codec, CodecError, EngineBuilder, PayloadContext, RunError, RunHandle,
    RunId, WorkflowRef, store::Reaction,
};
use tokio::task::JoinHandle;

use crate::{Problem, bodies::Bodies, ledger::Ledger, place::Place, random::Random};

mod family;
mod items;
mod lives;
mod moves;
mod news;
mod pauses;
mod places;
mod promises;
pub(crate) mod tasks;
mod ticks;

/// What the line says of the mix, in its order; those that must be 0 are marked.
const COUNTS: [(&str, bool); 29] = [
    ("messages_twice", true),
    ("children", false),
    ("children_lost", true),
    ("children_twice", true),
    ("generations", false),
    ("ticks_due", false),
    ("ticks_started", false),
    ("items", false),
    ("items_lost", true),
    ("items_twice", true),
    ("transactions", false),
    ("transactions_lost", true),
    ("transactions_twice", true),
    ("events", false),
    ("events_lost", true),
    ("events_twice", true),
    ("deferreds", false),
    ("deferreds_lost", true),
    ("deferreds_twice", true),
    ("queue_items", false),
    ("queue_lost", true),
    ("queue_twice", true),
    ("limited_bodies", false),
    ("limit_exceeded", true),
    ("paused_on_limit", false),
    ("paused_on_event", false),
    ("paused_on_queue", false),
    ("paused_on_deferred", false),
    ("paused_on_child", false),
];

/// Gives an engine the workflows of the mix.
pub(crate) fn register(builder: EngineBuilder, bodies: &Bodies) -> EngineBuilder {
    let builder = family::register(builder);
    let builder = lives::register(builder);
    let builder = ticks::register(builder);
    let builder = items::register(builder);
    let builder = moves::register(builder);
    let builder = news::register(builder);
    let builder = promises::register(builder);
    let builder = places::register(builder);
    tasks::register(builder, bodies)
}

/// Everything that is done from outside, until it is told to stop.
pub(crate) async fn drive(outside: &Rc<Outside>) -> Result<Vec<JoinHandle<()>>, Problem> {
    moves::prepare(outside).await?;
    let mut drivers = Vec::new();
    for part in 0..4 {
        drivers.push(outside.spawn(family::drive, part));
        drivers.push(outside.spawn(lives::drive, part));
        drivers.push(outside.spawn(items::drive, part));
        drivers.push(outside.spawn(moves::drive, part));
        drivers.push(outside.spawn(news::drive_takers, part));
        drivers.push(outside.spawn(news::drive_hearers, part));
        drivers.push(outside.spawn(promises::drive, part));
        drivers.push(outside.spawn(places::drive, part));
        drivers.push(outside.spawn(tasks::drive, part));
    }
    drivers.extend((0..2).map(|part| outside.spawn(pauses::drive, part)));
    drivers.push(outside.spawn(news::publish, 0));
    drivers.extend((0..ticks::INTERVALS.len() as u64).map(|n| outside.spawn(ticks::drive, n)));
    Ok(drivers)
}

/// Compares what is in the ledger, in the file and in the hands of those who were told.
pub(crate) async fn check(outside: &Outside, ledger: &Ledger) -> Result<(), Problem> {
    family::check(outside, ledger).await?;
    ticks::check(outside, ledger).await?;
    items::check(outside).await?;
    moves::check(outside).await?;
    news::check(outside);
    places::check(outside, ledger);
    tasks::check(outside, ledger)
}

/// The process that is not killed, and what it knows.
pub(crate) struct Outside {
    pub(crate) client: Client,
    /// Where the store is.
    pub(crate) place: Place,
    seed: u64,
    /// No new runs are started.
    stop: Cell<bool>,
    next: Cell<u64>,
    messages: Cell<u64>,
    counts: RefCell<BTreeMap<&'static str, u64>>,
    /// What was not as it should be.
    wrong: RefCell<Vec<String>>,
    /// The runs that were started here and have not ended.
    live: RefCell<BTreeMap<RunId, &'static str>>,
    families: RefCell<Vec<family::Ended>>,
    items: RefCell<Vec<RunId>>,
    moves: RefCell<Vec<moves::Ended>>,
    news: RefCell<news::Known>,
    tasks: RefCell<Vec<tasks::Told>>,
    ticks: RefCell<Vec<ticks::Paused>>,
}

impl Outside {
    pub(crate) fn new(client: Client, place: Place, seed: u64) -> Rc<Outside> {
        Rc::new(Outside {
            client,
            place,
            seed,
            stop: Cell::default(),
            next: Cell::default(),
            messages: Cell::default(),
            counts: RefCell::default(),
            wrong: RefCell::default(),
            live: RefCell::default(),
            families: RefCell::default(),
            items: RefCell::default(),
            moves: RefCell::default(),
            news: RefCell::default(),
            tasks: RefCell::default(),
            ticks: RefCell::default(),
        })
    }

    pub(crate) fn stop(&self) {
        self.stop.set(true);
    }

    /// The runs that were started here and have not ended.
    pub(crate) fn live(&self) -> Vec<RunId> {
        self.live.borrow().keys().copied().collect()
    }

    /// How many messages were sent here.
    pub(crate) fn messages_sent(&self) -> u64 {
        self.messages.get()
    }

    /// What was not as it should be.
    pub(crate) fn wrongs(&self) -> Vec<String> {
        self.wrong.borrow().clone()
    }

    /// The part of the line that is about the mix.
    pub(crate) fn line(&self) -> String {
        let field = |name| format!(",\"{name}\":{}", self.counted(name));
        COUNTS.iter().map(|(name, _)| field(*name)).collect()
    }

    /// Whether nothing was counted that must not be, and every part had something to do.
    pub(crate) fn is_well(&self) -> bool {
        let well = |(name, zero): &(&'static str, bool)| (self.counted(name) == 0) == *zero;
        COUNTS.iter().all(well)
            && self.counted("ticks_due") == self.counted("ticks_started")
            && self.wrong.borrow().is_empty()
    }

    fn counted(&self, name: &str) -> u64 {
        self.counts.borrow().get(name).copied().unwrap_or_default()
    }

    fn count(&self, name: &'static str, by: u64) {
        debug_assert!(COUNTS.iter().any(|(known, _)| *known == name), "{name}");
        *self.counts.borrow_mut().entry(name).or_default() += by;
    }

    /// Counts something that must not be.
    fn broken(&self, name: &'static str, what: String) {
        self.count(name, 1);
        self.wrong(format!("{name}: {what}"));
    }

    fn wrong(&self, what: String) {
        self.wrong.borrow_mut().push(what);
    }

    /// Choices that follow from the seed.
    fn random(&self, of: &str, n: u64) -> Random {
        let of = of.bytes().fold(self.seed, |a, b| a.wrapping_mul(0x100_0000_01b3) ^ u64::from(b));
        Random::new(of ^ (n << 32))
    }

    /// A number that no other run has.
    pub(crate) fn number(&self) -> u64 {
        self.next.replace(self.next.get() + 1)
    }

    fn spawn<F, R>(self: &Rc<Self>, drive: F, part: u64) -> JoinHandle<()>
    where
        F: Fn(Rc<Outside>, u64) -> R,
        R: Future<Output = ()> + 'static,
    {
        tokio::task::spawn_local(drive(self.clone(), part))
    }

    /// Starts a run of this number.
    async fn start<W>(
        &self,
        workflow: W,
        name: &'static str,
        n: u64,
        input: W::Input,
    ) -> RunHandle<W::Output>
    where
        W: WorkflowRef + Clone,
        W::Input: Clone,
    {
        let key = format!("{name}-{n}");
        let run = until_ok(async || {
            let start = self.client.start(workflow.clone(), input.clone());
            start.key(&key).await
        })
        .await;
        self.live.borrow_mut().insert(run.id(), name);
        run
    }

    /// What a run gave at its end; nothing, and that is wrong, if it did not complete.
    async fn result<O: everstep::Value>(&self, run: &RunHandle<O>) -> Option<O> {
        let result = ended(run).await;
        let name = self.live.borrow_mut().remove(&run.id()).unwrap_or("run");
        match result {
            Ok(output) => Some(output),
            Err(error) => {
                self.wrong(format!("{name} {} did not complete: {error:?}", run.id()));
                None
            }
        }
    }
}

/// Waits for some milliseconds.
async fn pause(random: &Random, from: u64, to: u64) {
    tokio::time::sleep(Duration::from_millis(random.between(from, to))).await;
}

/// Tries until it succeeds: whoever sends with a key may send again. A run that has ended has
/// taken what it was sent.
pub(crate) async fn until_ok<T>(mut attempt: impl AsyncFnMut() -> Result<T, ClientError>) -> T {
    loop {
        match attempt().await {
            Ok(done) => return done,
            Err(error) => {
                if !is_away(&error) {
                    eprintln!("trying again: {error:?}");
                }
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
        }
    }
}

/// Asks until the store can be asked: one that is away comes back. Any other error is the answer.
pub(crate) async fn ask<T>(
    mut question: impl AsyncFnMut() -> Result<T, ClientError>,
) -> Result<T, ClientError> {
    loop {
        match question().await {
            Err(error) if is_away(&error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            answer => return answer,
        }
    }
}

fn is_away(error: &ClientError) -> bool {
    matches!(error, ClientError::Store(cause) if cause.reaction() == Reaction::Retry)
}

/// What a run gave at its end, however often the store is away until then.
pub(crate) async fn ended<O: everstep::Value>(run: &RunHandle<O>) -> Result<O, RunError> {
    loop {
        match run.result().await {
            Err(RunError::Client(error)) if is_away(&error) => {
                tokio::time::sleep(Duration::from_millis(100)).await;
            }
            result => return result,
        }
    }
}

/// A toy: it shows that everything goes through a codec, and comes back with the run it was for.
pub(crate) struct Xor;

impl Xor {
    fn turn(bytes: &mut [u8], about: &PayloadContext) {
        let run = about.run.map(|run| run.to_string()).unwrap_or_default();
        let mask = run.bytes().fold(0x5A, |mask, byte| mask ^ byte);
        bytes.iter_mut().for_each(|byte| *byte ^= mask);
    }
}

impl Codec for Xor {
    fn id(&self) -> &str {
        "xor"
    }

    fn encode(&self, mut payload: Vec<u8>, about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        Xor::turn(&mut payload, about);
        Ok(payload)
    }

    fn decode(&self, bytes: &[u8], about: &PayloadContext) -> Result<Vec<u8>, CodecError> {
        let mut payload = bytes.to_vec();
        Xor::turn(&mut payload, about);
        Ok(payload)
    }
}

#[cfg(test)]
mod tests {
    use std::{path::PathBuf, sync::Arc};

    use everstep::store::MemoryStore;

    use super::*;

    /// Somebody outside who knows nothing yet.
    pub(super) fn outside() -> Rc<Outside> {
        let store = Arc::new(MemoryStore::new());
        let client = Client::on(store).expect("a store in memory can be opened");
        Outside::new(client, Place::File(PathBuf::new()), 1)
    }

    /// A ledger with these notes.
    pub(super) fn ledger(notes: &[&str]) -> Ledger {
        let mut ledger = Ledger::default();
        for note in notes {
            let fields: Vec<&str> = note.split(' ').collect();
            ledger.note(fields[0], &fields[1..]);
        }
        ledger
    }

    #[test]
    fn what_must_be_nothing_and_what_must_be_something_are_told_apart() {
        let outside = outside();
        for (name, zero) in COUNTS {
            outside.count(name, u64::from(!zero));
        }
        assert!(outside.is_well());
        outside.count("ticks_due", 1);
        assert!(!outside.is_well());
        outside.count("ticks_started", 1);
        outside.broken("events_lost", "one".to_owned());
        assert!(!outside.is_well());
        assert!(outside.line().contains(",\"events_lost\":1,"));
    }
}
