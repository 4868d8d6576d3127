//! The same operations on every store, drawn at random, and every answer compared.
//!
//! What [`compare`](super::compare) does with one seed, this does with a list of steps that proptest can
//! make shorter: a step is a few numbers, from which the next batch is made as late as it is applied, so
//! that what is left still fits what is stored when others are taken out. And there are several
//! runners, which come, go and lose their leases.
//!
//! Always true: nothing is left out of the comparison but what the contract leaves open: the last
//! number of a run in its owner's memory, or of one that was paused there and has made no commit since
//! (see [`numbers`]), and by how much an epoch is greater than the one before. Of epochs it is compared
//! which of its runner's one is, in the order in which they were seen.

use std::collections::BTreeMap;

use proptest::{prelude::*, test_runner::Config};

use super::*;

/// The variable that says how many cases there are.
const CASES: &str = "EVERSTEP_DIFFERENTIAL_CASES";

/// How many there are otherwise: some seconds.
const CASES_BY_DEFAULT: u32 = 24;

/// How many runners take part.
const RUNNERS: usize = 3;

/// One operation, and how long after the one before.
#[derive(Clone, Debug)]
struct Step {
    after: Duration,
    act: Act,
}

/// An operation. `who` is a runner; what else is a number is looked up when it is done.
#[derive(Clone, Debug)]
enum Act {
    /// A batch that is made from these choices.
    Commit {
        who: usize,
        choices: Vec<u16>,
    },
    /// Moves on with what is due and live, as an engine does: takes what it owns into memory.
    Sweep {
        limit: usize,
    },
    Register {
        who: usize,
        gpu: bool,
    },
    Heartbeat {
        who: usize,
    },
    /// Wants some of all shards; says that another is dead.
    Take {
        who: usize,
        part: Part,
        dead: Option<usize>,
    },
    Release {
        who: usize,
        part: Part,
    },
    Deregister {
        who: usize,
    },
}

/// Some of the shards.
#[derive(Clone, Copy, Debug)]
enum Part {
    All,
    Even,
    Odd,
    /// Of the second pool.
    Second,
}

impl Part {
    fn shards(self) -> ShardSet {
        let every = ShardSet::of_pools([PoolNo(0), PoolNo(1)]);
        let second = ShardSet::of_pools([PoolNo(1)]);
        let mut part = ShardSet::EMPTY;
        for shard in every.iter() {
            let is_in = match self {
                Part::All => true,
                Part::Even => shard.index() % 2 == 0,
                Part::Odd => shard.index() % 2 == 1,
                Part::Second => second.contains(shard),
            };
            if is_in {
                part.insert(shard);
            }
        }
        part
    }
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let who = || 0..RUNNERS;
    let part =
        || prop_oneof![Just(Part::All), Just(Part::Even), Just(Part::Odd), Just(Part::Second),];
    let choices = prop::collection::vec(any::<u16>(), 0..100);
    let act = prop_oneof![
        // The first runner does most of the work, so that most of it is taken.
        24 => choices.clone().prop_map(|choices| Act::Commit { who: 0, choices }),
        4 => (who(), choices).prop_map(|(who, choices)| Act::Commit { who, choices }),
        2 => (1..6_usize).prop_map(|limit| Act::Sweep { limit }),
        1 => (who(), any::<bool>()).prop_map(|(who, gpu)| Act::Register { who, gpu }),
        2 => who().prop_map(|who| Act::Heartbeat { who }),
        3 => (who(), part(), prop::option::weighted(0.3, who()))
            .prop_map(|(who, part, dead)| Act::Take { who, part, dead }),
        1 => (who(), part()).prop_map(|(who, part)| Act::Release { who, part }),
        1 => who().prop_map(|who| Act::Deregister { who }),
    ];
    let after = prop_oneof![
        12 => 0..4_u64,
        3 => 0..60_u64,
        // A lease is over then, or almost.
        1 => 4_000..12_000_u64,
    ];
    let step =
        (after, act).prop_map(|(after, act)| Step { after: Duration::from_millis(after), act });
    prop::collection::vec(step, 1..40)
}

/// The three stores, and what was done to them.
struct Trial<'a> {
    stores: [(&'static str, &'a dyn Store); 3],
    random: Random,
    now: Timestamp,
    /// The last one of each runner, in each store.
    fences: [Option<[Fence; 3]>; RUNNERS],
    epochs: [Epochs; 3],
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

/// What is different.
type Differs = Result<(), TestCaseError>;

impl Trial<'_> {
    /// Asks every store the same; gives the answer if there is one.
    fn ask<T: PartialEq + std::fmt::Debug>(
        &mut self,
        what: String,
        mut ask: impl FnMut(usize, &dyn Store) -> Result<T, StoreError>,
    ) -> Result<T, TestCaseError> {
        self.log.push(what);
        let answers = [0, 1, 2].map(|at| ask(at, self.stores[at].1));
        let mut first = None;
        for ((name, _), answer) in self.stores.into_iter().zip(answers) {
            let answer = answer.map_err(|error| self.fail(format!("{name} fails: {error:?}")))?;
            match &first {
                None => first = Some(answer),
                Some(first) if *first == answer => {}
                Some(first) => {
                    return Err(self.fail(format!("memory: {first:#?}\n\n{name}: {answer:#?}")));
                }
            }
        }
        first.ok_or_else(|| self.fail("no store has answered".to_owned()))
    }

    fn fail(&self, what: String) -> TestCaseError {
        let done = self.log.join("\n");
        TestCaseError::fail(format!("done so far:\n{done}\n\nthe last answers differ\n{what}"))
    }

    fn take(&mut self, step: Step) -> Differs {
        self.now = self.now + step.after;
        let now = self.now;
        let said = format!("{} ms: ", now.as_millis() - START.as_millis());
        match step.act {
            Act::Commit { who, choices } => {
                self.random.tape = Some(choices.into_iter());
                let unknown = Fence { runner: runner(who), epoch: 0 };
                let fences = self.fences[who].unwrap_or([unknown; 3]);
                let batch = self.random.batch(self.stores[0].1, fences[0], now);
                let applied = self.ask(format!("{said}{batch:?}"), |at, store| {
                    let fence = batch.fence.map(|_| fences[at]);
                    let writes = batch.writes.clone();
                    store.commit(&Batch { fence, now, writes })
                })?;
                let (open, model) = (&mut self.random.open_numbers, self.stores[0].1);
                open.after(model, &batch, &applied.outcomes);
            }
            Act::Sweep { limit } => {
                self.ask(format!("{said}sweep {limit}"), |_, store| {
                    while store.sweep(now, limit)? {}
                    // In memory a generation is gone when it is over.
                    while store.has_old_generations()? {
                        let writes = vec![Write::Sweep(limit as u32)];
                        let fence = None;
                        store.commit(&Batch { fence, now, writes })?;
                    }
                    Ok(())
                })?;
            }
            Act::Register { who, gpu } => self.register(who, gpu)?,
            Act::Heartbeat { who } => {
                let Some(fences) = self.fences[who] else {
                    return Ok(());
                };
                self.ask(format!("{said}heartbeat of {who}"), |at, store| {
                    store.heartbeat(fences[at], now, LEASE)
                })?;
            }
            Act::Take { who, part, dead } => {
                let Some(fences) = self.fences[who] else {
                    return Ok(());
                };
                // Nobody says that it is dead itself.
                let dead: Vec<Uuid> =
                    dead.filter(|it| *it != who).map(runner).into_iter().collect();
                let what = format!("{said}runner {who} takes {part:?}, dead: {dead:?}");
                let wanted = part.shards();
                self.ask(what, |at, store| store.take_shards(fences[at], now, &wanted, &dead))?;
            }
            Act::Release { who, part } => {
                let Some(fences) = self.fences[who] else {
                    return Ok(());
                };
                let shards = part.shards();
                self.ask(format!("{said}runner {who} releases {part:?}"), |at, store| {
                    store.release_shards(fences[at], &shards)
                })?;
            }
            Act::Deregister { who } => {
                let Some(fences) = self.fences[who] else {
                    return Ok(());
                };
                self.ask(format!("{said}runner {who} goes"), |at, store| {
                    store.deregister_runner(fences[at])
                })?;
            }
        }
        Ok(())
    }

    fn register(&mut self, who: usize, gpu: bool) -> Differs {
        let pools = if gpu { &["default", "gpu"][..] } else { &["default"] };
        let new = NewRunner {
            pools: pools.iter().map(ToString::to_string).collect(),
            ..NewRunner::new(runner(who), format!("runner {who}"), self.now, LEASE)
        };
        let said = format!("runner {who} comes, for {pools:?}");
        let mut fences = Vec::new();
        let mut epochs = std::mem::take(&mut self.epochs);
        let asked = self.ask(said, |at, store| {
            let fence = store.register_runner(&new)?;
            fences.push(fence);
            Ok((fence.runner, epochs[at].place(fence.runner, fence.epoch)))
        });
        self.epochs = epochs;
        self.fences[who] = fences.try_into().ok();
        asked.map(drop)
    }

    /// Compares everything that can be read.
    fn read(&mut self) -> Differs {
        let now = self.now;
        let readings = [0, 1, 2].map(|at| {
            let mut readings = self.random.read(self.stores[at].1, now);
            for runner in &mut readings.runners {
                runner.epoch = self.epochs[at].place(runner.id, runner.epoch);
            }
            readings
        });
        let [wanted, others @ ..] = readings;
        for ((name, _), got) in self.stores[1..].iter().zip(others) {
            if got != wanted {
                let what = differing_lines(&format!("{wanted:#?}"), &format!("{got:#?}"));
                return Err(self.fail(format!("of what is read from memory and {name}:\n{what}")));
            }
        }
        Ok(())
    }
}

fn runner(who: usize) -> Uuid {
    Uuid::from_name(&format!("runner {who}"))
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

/// Does all of it, on three stores that are empty at first.
fn try_steps(steps: Vec<Step>) -> Differs {
    let directory = tempfile::tempdir().expect("a directory for a test");
    let (memory, file) = (
        MemoryStore::new(),
        internal::unsynced_sqlite(&directory.path().join("app.db")).expect("a file"),
    );
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    let database = internal::lent_postgres(&url).expect("a schema for a test");
    let stores: [(&str, &dyn Store); 3] =
        [("memory", &memory), ("SQLite", &file), ("PostgreSQL", &database)];
    let mut trial = Trial {
        stores,
        random: Random::new(1),
        now: START,
        fences: [None; RUNNERS],
        epochs: Default::default(),
        log: Vec::new(),
    };
    trial.ask("migrate".to_owned(), |_, store| store.migrate())?;
    trial.register(0, true)?;
    let everything = Act::Take { who: 0, part: Part::All, dead: None };
    trial.take(Step { after: Duration::ZERO, act: everything })?;
    trial.read()?;
    for step in steps {
        trial.take(step)?;
        trial.read()?;
    }
    Ok(())
}

fn config() -> Config {
    let cases = std::env::var(CASES).ok();
    let cases = cases.map(|cases| cases.parse().expect("a number of cases"));
    Config {
        cases: cases.unwrap_or(CASES_BY_DEFAULT),
        max_shrink_time: 300_000,
        ..Config::default()
    }
}

proptest! {
    #![proptest_config(config())]

    #[test]
    fn every_store_gives_the_same_answers(steps in steps()) {
        for store in ["memory", "SQLite", "PostgreSQL"] {
            everstep::testing::ran_on(store);
        }
        try_steps(steps)?;
    }
}

/// Where a runner is gone, only PostgreSQL has forgotten the number of its run with it.
#[test]
fn a_number_is_left_out_where_a_store_may_not_know_it_until_the_owner_says_it() {
    let url = everstep_pg::database_url().unwrap_or_else(|error| panic!("{error}"));
    let database = internal::lent_postgres(&url).expect("a schema for a test");
    let stores: [Arc<dyn Store>; 2] = [Arc::new(MemoryStore::new()), Arc::new(database)];
    let worlds = stores.map(|store| {
        store.migrate().expect("migrate");
        World::new(store)
    });
    let [run, same] = worlds.each_ref().map(|it| numbers::running_at(it, 3));
    assert_eq!(run, same);
    let mut random = Random::new(1);
    random.runs = vec![run];
    let read = |random: &Random| worlds.each_ref().map(|it| random.read(&*it.store, at(4)).loaded);
    let model = &*worlds[0].store;

    let pause = Batch {
        fence: None,
        now: at(3),
        writes: vec![Write::Control(Target::Id(run), Control::Pause)],
    };
    random.open_numbers.before(model, &pause, false);
    let [paused, _] = worlds.each_ref().map(|it| it.store.commit(&pause).expect("commit"));
    let [wanted, got] = read(&random);
    assert_ne!(got, wanted);
    let open = &mut random.open_numbers;
    open.after(model, &pause, &paused.outcomes);
    assert!(open.is_open(run.no()));
    let [wanted, got] = read(&random);
    assert_eq!(got, wanted);

    let commit = || Write::Commit(Box::new(numbers::results(run, 4, 1)));
    let [committed, _] = worlds.each_ref().map(|it| it.batch(5, vec![commit()]));
    let said = Batch { writes: vec![commit()], ..pause };
    let open = &mut random.open_numbers;
    open.after(model, &said, &committed);
    assert!(!open.is_open(run.no()));
    let [wanted, got] = read(&random);
    assert_eq!(got, wanted);
}
