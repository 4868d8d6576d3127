//! The same changes on several stores, and every answer compared.
//!
//! Always true: nothing is left out of the comparison but what the contract leaves open: the last
//! number of a run in its owner's memory, or of one that was paused there and has made no commit since
//! (see [`numbers`]), and by how much an epoch is greater than the one before. Of epochs it is compared
//! which of its runner's one is, in the order in which they were seen.

use std::collections::{BTreeMap, BTreeSet};

pub use everstep::testing::around::Change;

use super::*;

/// Makes changes in several stores, which are empty at first, and compares every answer with that of the
/// first; after every `read_every`-th change, and after the last, also everything that can be read.
///
/// # Errors
///
/// What differs, after which changes.
pub fn compare_changes(
    stores: &[(&'static str, &dyn Store)],
    changes: &[Change],
    read_every: usize,
) -> Result<(), String> {
    let mut stores = Stores::new(stores.to_vec(), Random::new(1));
    stores.random.names = Names::default();
    stores.ask("migrate".to_owned(), |_, store| store.migrate())?;
    for (number, change) in changes.iter().enumerate() {
        stores.change(change)?;
        if number % read_every.max(1) == 0 || number + 1 == changes.len() {
            stores.look_for_runs();
            stores.read()?;
        }
    }
    Ok(())
}

/// Several stores, and what was done to them.
pub(super) struct Stores<'a> {
    stores: Vec<(&'static str, &'a dyn Store)>,
    /// Says what is read, and what of it is open.
    pub(super) random: Random,
    /// When something was done last.
    pub(super) now: Timestamp,
    /// The fences of each store, by that of the first.
    fences: BTreeMap<(Uuid, u64), Vec<Fence>>,
    epochs: Vec<Epochs>,
    log: Vec<String>,
}

/// The epochs that a store was seen to give to each runner, in order.
#[derive(Default)]
struct Epochs(BTreeMap<Uuid, Vec<u64>>);

impl Epochs {
    /// Which of its runner's it is, from 1.
    fn place(&mut self, runner: Uuid, epoch: u64) -> u64 {
        let seen = self.0.entry(runner).or_default();
        if !seen.contains(&epoch) {
            assert!(seen.iter().all(|before| *before < epoch), "an epoch grows");
            seen.push(epoch);
        }
        1 + seen.iter().take_while(|before| **before != epoch).count() as u64
    }
}

/// How many changes are named when something differs.
const LOG_MAX: usize = 40;

impl<'a> Stores<'a> {
    pub(super) fn new(stores: Vec<(&'static str, &'a dyn Store)>, random: Random) -> Stores<'a> {
        let epochs = stores.iter().map(|_| Epochs::default()).collect();
        let (fences, log) = (BTreeMap::new(), Vec::new());
        let random = Random { knows_numbers: false, ..random };
        Stores { stores, random, now: START, fences, epochs, log }
    }

    pub(super) fn model(&self) -> &'a dyn Store {
        self.stores[0].1
    }

    /// Asks every store the same; gives the answer if it is the same.
    pub(super) fn ask<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        mut ask: impl FnMut(usize, &dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, String> {
        self.log.push(what);
        let mut first: Option<T> = None;
        for (at, (name, store)) in self.stores.iter().enumerate() {
            let answer = ask(at, *store);
            let answer = answer.map_err(|error| self.fail(format!("{name} fails: {error:?}")))?;
            match &first {
                None => first = Some(answer),
                Some(first) if *first == answer => {}
                Some(first) => {
                    let what = differing_lines(&format!("{first:#?}"), &format!("{answer:#?}"));
                    return Err(self.fail(format!("of the first and {name}: {what}")));
                }
            }
        }
        first.ok_or_else(|| self.fail("no store has answered".to_owned()))
    }

    fn fail(&self, what: String) -> String {
        let done = &self.log[self.log.len().saturating_sub(LOG_MAX)..];
        let (count, done) = (self.log.len(), done.join("\n"));
        format!("done so far, the last of {count}:\n{done}\n\nthe last answers differ\n{what}")
    }

    /// What this fence of the first store is in another one.
    fn fence(&self, fence: Fence, at: usize) -> Fence {
        let fences = self.fences.get(&(fence.runner, fence.epoch));
        fences.map_or(fence, |fences| fences[at])
    }

    /// Makes a change in all.
    pub(super) fn change(&mut self, change: &Change) -> Result<(), String> {
        let said = format!("{change:?}");
        let fences = |stores: &Stores<'_>, fence| -> Vec<Fence> {
            (0..stores.stores.len()).map(|at| stores.fence(fence, at)).collect()
        };
        match change {
            Change::Commit(batch) => {
                self.now = batch.now;
                self.random.names.gather(batch);
                self.random.open_numbers.before(self.model(), batch, false);
                let fences = batch.fence.map(|fence| fences(self, fence));
                let applied = self.ask(said, |at, store| {
                    let fence = fences.as_ref().map(|fences| fences[at]);
                    store.commit(&Batch { fence, ..batch.clone() })
                })?;
                let model = self.model();
                self.random.open_numbers.after(model, batch, &applied.outcomes);
            }
            Change::Register(new) => {
                self.now = new.now;
                let mut given = Vec::new();
                let mut epochs = std::mem::take(&mut self.epochs);
                let asked = self.ask(said, |at, store| {
                    let fence = store.register_runner(new)?;
                    given.push(fence);
                    Ok((fence.runner, epochs[at].place(fence.runner, fence.epoch)))
                });
                self.epochs = epochs;
                asked?;
                let known = given[0];
                self.fences.insert((known.runner, known.epoch), given);
            }
            Change::Heartbeat(fence, now, lease) => {
                self.now = *now;
                let fences = fences(self, *fence);
                self.ask(said, |at, store| store.heartbeat(fences[at], *now, *lease))?;
            }
            Change::Take(fence, now, wanted, gone) => {
                self.now = *now;
                let fences = fences(self, *fence);
                self.ask(said, |at, store| store.take_shards(fences[at], *now, wanted, gone))?;
            }
            Change::Release(fence, shards) => {
                let fences = fences(self, *fence);
                self.ask(said, |at, store| store.release_shards(fences[at], shards))?;
            }
            Change::Deregister(fence) => {
                let fences = fences(self, *fence);
                self.ask(said, |at, store| store.deregister_runner(fences[at]))?;
            }
        }
        Ok(())
    }

    /// The fence of the first store for the last epoch of this runner.
    #[cfg(test)]
    pub(super) fn last_fence(&self, runner: Uuid) -> Option<Fence> {
        let mut fences = self.fences.range((runner, 0)..=(runner, u64::MAX));
        fences.next_back().map(|(_, fences)| fences[0])
    }

    /// All runs of the first store are read from now on.
    fn look_for_runs(&mut self) {
        let found = self.model().find(&Filter::default(), None, usize::MAX);
        self.random.runs = found.expect("find");
    }

    /// Compares everything that can be read.
    pub(super) fn read(&mut self) -> Result<(), String> {
        let mut first: Option<String> = None;
        for (at, (name, store)) in self.stores.iter().enumerate() {
            let mut readings = self.random.read(*store, self.now);
            for runner in &mut readings.runners {
                runner.epoch = self.epochs[at].place(runner.id, runner.epoch);
            }
            let readings = format!("{readings:#?}");
            match &first {
                None => first = Some(readings),
                Some(first) if *first == readings => {}
                Some(first) => {
                    let what = differing_lines(first, &readings);
                    return Err(
                        self.fail(format!("of what is read from the first and {name}:\n{what}"))
                    );
                }
            }
        }
        Ok(())
    }
}

/// The lines around the first that differ: all of it would be some thousand.
fn differing_lines(wanted: &str, got: &str) -> String {
    let (wanted, got): (Vec<_>, Vec<_>) = (wanted.lines().collect(), got.lines().collect());
    let same = wanted.iter().zip(&got).take_while(|(a, b)| a == b).count();
    let around = |lines: &[&str]| {
        let from = same.saturating_sub(25);
        let to = (same + 25).min(lines.len());
        lines[from..to].join("\n")
    };
    format!("{}\n\nis in the other:\n{}", around(&wanted), around(&got))
}

/// What is read by its name.
#[derive(Default)]
pub(super) struct Names {
    pub(super) queues: BTreeSet<String>,
    pub(super) events: BTreeSet<String>,
    pub(super) requests: BTreeSet<Uuid>,
}

impl Names {
    /// Those that the random batches use.
    pub(super) fn drawn() -> Names {
        Names {
            queues: QUEUES.map(str::to_owned).into(),
            events: ["e0", "e1"].map(str::to_owned).into(),
            requests: (0..REQUESTS).map(|no| Uuid::from_u128(u128::from(no))).collect(),
        }
    }

    /// Adds those of a batch.
    fn gather(&mut self, batch: &Batch) {
        for write in &batch.writes {
            match write {
                Write::Publish(publication) => _ = self.events.insert(publication.name.clone()),
                Write::Deliver(delivery) => self.requests.extend(delivery.request),
                Write::Queue(write) => match &**write {
                    QueueWrite::Enqueue(new) => _ = self.queues.insert(new.queue.clone()),
                    QueueWrite::Claim(wanted) => _ = self.queues.insert(wanted.queue.clone()),
                    _ => {}
                },
                Write::Commit(commit) => commit.effects.iter().for_each(|it| self.gather_of(it)),
                _ => {}
            }
        }
    }

    fn gather_of(&mut self, effect: &Effect) {
        match effect {
            Effect::Publish { publication, .. } => _ = self.events.insert(publication.name.clone()),
            Effect::Subscribe(subscription) => _ = self.events.insert(subscription.name.clone()),
            Effect::Enqueue { item, .. } => _ = self.queues.insert(item.queue.clone()),
            _ => {}
        }
    }
}
