//! The same operations on every store, drawn at random, and every answer compared.
//!
//! What [`compare`](super::compare) does with one seed, this does with a list of steps that proptest can
//! make shorter: a step is a few numbers, from which the next batch is made as late as it is applied, so
//! that what is left still fits what is stored when others are taken out. And there are several
//! runners, which come, go and lose their leases.

use proptest::{prelude::*, test_runner::Config};

use super::{
    side_by_side::{Change, Stores},
    *,
};

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

/// What is different.
type Differs = Result<(), String>;

fn take(stores: &mut Stores<'_>, step: Step) -> Differs {
    stores.now = stores.now + step.after;
    let now = stores.now;
    match step.act {
        Act::Commit { who, choices } => {
            stores.random.tape = Some(choices.into_iter());
            let unknown = Fence { runner: runner(who), epoch: 0 };
            let fence = stores.last_fence(runner(who)).unwrap_or(unknown);
            let batch = stores.random.batch(stores.model(), fence, now);
            stores.change(&Change::Commit(batch))
        }
        Act::Sweep { limit } => stores.ask(format!("sweep {limit}"), |_, store| {
            while store.sweep(now, limit)? {}
            // In memory a generation is gone when it is over.
            while store.has_old_generations()? {
                let writes = vec![Write::Sweep(limit as u32)];
                let fence = None;
                store.commit(&Batch { fence, now, writes })?;
            }
            Ok(())
        }),
        Act::Register { who, gpu } => register(stores, who, gpu),
        Act::Heartbeat { who } => of(stores, who, |fence| Change::Heartbeat(fence, now, LEASE)),
        Act::Take { who, part, dead } => {
            // Nobody says that it is dead itself.
            let dead = dead.filter(|it| *it != who).map(runner);
            let mut rows = stores.model().runners().expect("runners");
            rows.retain(|row| Some(row.id) == dead);
            let gone = rows.iter().map(RunnerRow::as_gone).collect();
            of(stores, who, |fence| Change::Take(fence, now, part.shards(), gone))
        }
        Act::Release { who, part } => {
            of(stores, who, |fence| Change::Release(fence, part.shards()))
        }
        Act::Deregister { who } => of(stores, who, Change::Deregister),
    }
}

/// A change by a runner, if there was one of this number.
fn of(stores: &mut Stores<'_>, who: usize, change: impl FnOnce(Fence) -> Change) -> Differs {
    match stores.last_fence(runner(who)) {
        Some(fence) => stores.change(&change(fence)),
        None => Ok(()),
    }
}

fn register(stores: &mut Stores<'_>, who: usize, gpu: bool) -> Differs {
    let pools = if gpu { &["default", "gpu"][..] } else { &["default"] };
    let new = NewRunner {
        pools: pools.iter().map(ToString::to_string).collect(),
        ..NewRunner::new(runner(who), format!("runner {who}"), stores.now, LEASE)
    };
    stores.change(&Change::Register(new))
}

fn runner(who: usize) -> Uuid {
    Uuid::from_name(&format!("runner {who}"))
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
    let stores: Vec<(&'static str, &dyn Store)> =
        vec![("memory", &memory), ("SQLite", &file), ("PostgreSQL", &database)];
    let mut stores = Stores::new(stores, Random::new(1));
    stores.ask("migrate".to_owned(), |_, store| store.migrate())?;
    register(&mut stores, 0, true)?;
    let everything = Act::Take { who: 0, part: Part::All, dead: None };
    take(&mut stores, Step { after: Duration::ZERO, act: everything })?;
    stores.read()?;
    for step in steps {
        take(&mut stores, step)?;
        stores.read()?;
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
        try_steps(steps).map_err(TestCaseError::fail)?;
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
