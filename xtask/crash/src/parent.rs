//! The parent: starts runs, sends messages, kills the child, and checks what is left.

use std::{
    collections::BTreeMap,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{
    Client, Count, EntryKind, EntryStatus, RunError, RunHandle, RunId, RunStatus, Sent,
};

use crate::{
    Options, Problem, bodies,
    child::{self, Latest, Role},
    ledger::Ledger,
    mix::{self, Outside, Xor, until_ok},
    random::Random,
    workflow::{self, Input, WORDS, every},
};

/// How many pairs of runs are under way at a time.
const PAIRS: u64 = 40;

/// How long everything may take to finish after the last kill.
const FINISH_LIMIT: Duration = Duration::from_secs(60);

/// Every so many kills a child is stopped and goes on beside its successor, before both are killed.
const OVERLAP_EVERY: u64 = 12;

/// The histories of at most this many runs are read after each kill.
const HISTORIES: usize = 40;

/// What the parent knows about its runs.
#[derive(Default)]
struct Known {
    next_pair: AtomicU64,
    stop: AtomicBool,
    messages_sent: AtomicU64,
    /// The runs that were started and are not known to have ended.
    live: Mutex<BTreeMap<RunId, Input>>,
    ended: Mutex<BTreeMap<RunId, Input>>,
    /// What was not as it should be.
    wrong: Mutex<Vec<String>>,
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the test, prints its line, and says whether every promise was kept.
pub(crate) fn run(options: &Options) -> Result<bool, Problem> {
    let base =
        std::env::var_os("EVERSTEP_BENCH_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let directory = base.join(format!("crash-{}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()?;
    let mut test = Test {
        options,
        random: Random::new(options.seed),
        directory: directory.clone(),
        ledger: Ledger::default(),
        known: Rc::default(),
        kills_mid_body: 0,
    };
    let local = tokio::task::LocalSet::new();
    let kept = runtime.block_on(local.run_until(test.run()))?;
    drop(local);
    runtime.shutdown_background();
    match kept {
        true => std::fs::remove_dir_all(&directory)?,
        false => eprintln!("its files are in {}", directory.display()),
    }
    Ok(kept)
}

struct Test<'a> {
    options: &'a Options,
    random: Random,
    directory: PathBuf,
    ledger: Ledger,
    known: Rc<Known>,
    kills_mid_body: u64,
}

impl Test<'_> {
    async fn run(&mut self) -> Result<bool, Problem> {
        let mut running = self.start_child(self.engine(0))?;
        let path = self.directory.join(child::FILE);
        let client = open(&path).await?;
        let outside = Outside::new(client.clone(), path, self.options.seed);
        let mut drivers = mix::drive(&outside).await?;
        let pairs =
            (0..PAIRS).map(|_| tokio::task::spawn_local(drive(client.clone(), self.known.clone())));
        drivers.extend(pairs);
        let mut worker = self.start_child(Role::Worker)?;
        let mut kills = 0;
        while kills < self.options.kills {
            let moment = self.random.between(60, 420);
            tokio::time::sleep(Duration::from_millis(moment)).await;
            running.check()?;
            worker.check()?;
            if kills % OVERLAP_EVERY == OVERLAP_EVERY - 1 {
                self.overlap(&running, kills).await?;
            }
            let process = running.0.id();
            drop(running);
            kills += 1;
            self.killed(process)?;
            if self.random.next().is_multiple_of(2) {
                drop(worker);
                worker = self.start_child(Role::Worker)?;
            }
            self.after_kill(&outside).await?;
            running = self.start_child(self.engine(kills))?;
        }
        self.known.stop.store(true, Ordering::Relaxed);
        outside.stop();
        let finished = tokio::time::timeout(FINISH_LIMIT, async {
            for driver in drivers {
                driver.await?;
            }
            // Those that nobody waits for, too.
            while not_finished(&client).await? > 0 {
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            Ok::<_, Problem>(())
        });
        // Those that did not finish are counted below.
        if let Ok(finished) = finished.await {
            finished?;
        }
        running.check()?;
        worker.check()?;
        drop((running, worker));
        self.ledger.read_on(&self.directory.join("ledger"))?;
        self.check_ended(&client).await?;
        mix::check(&outside, &self.ledger).await?;
        let (runs, left) = (
            client.count().await?,
            self.explain_unfinished(&client).await?,
        );
        Ok(self.report(kills, &outside, runs, left))
    }

    /// An engine whose code is newer from the middle of the test on.
    fn engine(&self, kills: u64) -> Role {
        Role::Engine(Latest(if kills * 2 < self.options.kills { 1 } else { 2 }))
    }

    fn start_child(&self, role: Role) -> Result<Running, Problem> {
        let log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("child.log"))?;
        let child = Command::new(std::env::current_exe()?)
            .args(child::arguments(
                &self.directory,
                role,
                self.options.sabotage,
            ))
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log)
            .spawn()?;
        Ok(Running(child))
    }

    /// Stops the child for longer than its lease, lets another take over, and lets the first go on
    /// beside it for a while.
    async fn overlap(&mut self, first: &Running, kills: u64) -> Result<(), Problem> {
        first.signal("STOP")?;
        self.ledger.read_on(&self.directory.join("ledger"))?;
        let process = first.0.id().to_string();
        self.ledger.note("stopped", &[&process]);
        self.ledger.note("place", &["stopped", &process]);
        let second = self.start_child(self.engine(kills))?;
        tokio::time::sleep(2 * child::LEASE).await;
        first.signal("CONT")?;
        tokio::time::sleep(Duration::from_millis(self.random.between(200, 600))).await;
        let process = second.0.id();
        drop(second);
        self.killed(process)
    }

    /// An engine is gone, and everything that it wrote is in the ledger.
    fn killed(&mut self, process: u32) -> Result<(), Problem> {
        self.ledger.read_on(&self.directory.join("ledger"))?;
        self.ledger.note("place", &["killed", &process.to_string()]);
        Ok(())
    }

    /// No engine runs now: what the store has is what there is.
    async fn after_kill(&mut self, outside: &Outside) -> Result<(), Problem> {
        self.ledger.read_on(&self.directory.join("ledger"))?;
        self.kills_mid_body += u64::from(self.ledger.is_mid_body());
        self.ledger.killed();
        let mut live: Vec<RunId> = lock(&self.known.live).keys().copied().collect();
        live.extend(outside.live());
        let skip = self.random.next() as usize % (live.len() + 1);
        for run in live.into_iter().skip(skip).take(HISTORIES) {
            let handle: RunHandle<u64> = outside.client.run(run);
            let generation = handle.info().await?.generation;
            for entry in handle.history().await? {
                if entry.kind == EntryKind::Step && entry.status == EntryStatus::Completed {
                    let run = bodies::run_name(run, generation);
                    self.ledger.stored(&run, &entry.location);
                }
            }
        }
        Ok(())
    }

    /// What can be asked of runs that have ended: what they heard, and what they undid.
    async fn check_ended(&mut self, client: &Client) -> Result<(), Problem> {
        let ended = std::mem::take(&mut *lock(&self.known.ended));
        for (run, input) in &ended {
            let handle: RunHandle<u64> = client.run(*run);
            let heard: Vec<u64> = handle.state("heard").await?.unwrap_or_default();
            let mut expected: Vec<u64> = (1..WORDS).collect();
            expected.extend(input.first.then_some(input.pair));
            expected.push(WORDS);
            if heard != expected {
                let what =
                    format!("promise 4 is broken: run {run} heard {heard:?}, not {expected:?}");
                lock(&self.known.wrong).push(what);
            }
            let undone = self.ledger.undone(&run.to_string());
            let own: Vec<&String> = undone.iter().filter(|at| at.starts_with("book")).collect();
            let expected: &[&str] = if input.fails {
                &["book#2", "book"]
            } else {
                &[]
            };
            if own != expected {
                let what = format!("run {run} rolled back {own:?}, not {expected:?}");
                self.ledger.example(what);
            }
        }
        let dead = client.dead_letters().limit(1_000).await?.letters;
        for letter in &dead {
            let what = format!(
                "promise 4 is broken: the message `{}` was still in the inbox when its run ended",
                letter.name
            );
            lock(&self.known.wrong).push(what);
        }
        *lock(&self.known.ended) = ended;
        Ok(())
    }

    /// How many runs have not ended, and what some of them wait for.
    async fn explain_unfinished(&mut self, client: &Client) -> Result<u64, Problem> {
        for status in unfinished() {
            for info in client.list().status(status).limit(10).await?.runs {
                let waiting = info.waiting.unwrap_or_default();
                let (run, of) = (info.id, info.workflow);
                let what = format!("run {run} of `{of}` has not finished: {status}: {waiting}");
                lock(&self.known.wrong).push(what);
            }
        }
        not_finished(client).await
    }

    /// Prints the line; whether all is well.
    fn report(&self, kills: u64, outside: &Outside, runs: u64, not_finished: u64) -> bool {
        let (ledger, known) = (&self.ledger, &self.known);
        let mut wrong = lock(&known.wrong).clone();
        wrong.extend(outside.wrongs());
        let lost = wrong
            .iter()
            .filter(|what| what.contains("promise 4"))
            .count();
        println!(
            "{{\"seed\":{},\"runs\":{runs},\"kills\":{kills},\"kills_mid_body\":{},\
             \"steps_completed\":{},\"bodies_run\":{},\"run_again_after_completion\":{},\
             \"messages_sent\":{},\"messages_lost\":{lost},\"order_differs\":{},\
             \"runs_not_finished\":{not_finished}{}}}",
            self.options.seed,
            self.kills_mid_body,
            ledger.steps_completed(),
            ledger.bodies_run,
            ledger.run_again,
            known.messages_sent.load(Ordering::Relaxed),
            ledger.order_differs,
            outside.line(),
        );
        for what in ledger.examples.iter().chain(wrong.iter().take(20)) {
            eprintln!("{what}");
        }
        let enough = self.kills_mid_body * 10 >= kills * 8;
        if !enough {
            eprintln!("only {} of {kills} kills hit a body", self.kills_mid_body);
        }
        let well = outside.is_well();
        enough && well && ledger.examples.is_empty() && wrong.is_empty() && not_finished == 0
    }
}

/// What a run is that has not ended.
fn unfinished() -> impl Iterator<Item = RunStatus> {
    let all = RunStatus::ALL.into_iter();
    all.filter(|status| !status.is_terminal())
}

async fn not_finished(client: &Client) -> Result<u64, Problem> {
    Ok(unfinished().fold(client.count(), Count::status).await?)
}

/// A child that is killed when this is dropped.
struct Running(Child);

impl Running {
    /// An error if it has ended by itself.
    fn check(&mut self) -> Result<(), Problem> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the child ended by itself with {status}").into()),
        }
    }

    fn signal(&self, name: &str) -> Result<(), Problem> {
        let kill = Command::new("kill")
            .arg(format!("-{name}"))
            .arg(self.0.id().to_string())
            .status()?;
        match kill.success() {
            true => Ok(()),
            false => Err(format!("the child took no {name} signal").into()),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // SIGKILL: it gets no chance to tidy up. It fails only if the child has ended.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}

/// The child makes the file; until it has, there is none to open, or one with nothing in it.
async fn open(path: &Path) -> Result<Client, Problem> {
    let began = Instant::now();
    loop {
        let opened = async {
            let client = Client::open(path).await?.codec(Xor);
            client.count().await.map(|_| client)
        };
        match opened.await {
            Ok(client) => return Ok(client),
            Err(error) if began.elapsed() > Duration::from_secs(10) => return Err(error.into()),
            Err(_) => tokio::time::sleep(Duration::from_millis(20)).await,
        }
    }
}

/// Takes care of one pair of runs after another.
async fn drive(client: Client, known: Rc<Known>) {
    while !known.stop.load(Ordering::Relaxed) {
        let pair = known.next_pair.fetch_add(1, Ordering::Relaxed);
        let begin = async |first| {
            let fails = pair.is_multiple_of(3) && first;
            let input = Input { pair, first, fails };
            let run = until_ok(async || {
                let start = client.start(every, input.clone());
                start.key(workflow::key(pair, first)).await
            })
            .await;
            lock(&known.live).insert(run.id(), input.clone());
            (run, input)
        };
        let (first, second) = (begin(true).await, begin(false).await);
        tokio::join!(see_through(&known, first), see_through(&known, second));
    }
}

/// Sends a run what it waits for, and waits for its end.
async fn see_through(known: &Known, (run, input): (RunHandle<u64>, Input)) {
    let wrong = |what: String| lock(&known.wrong).push(what);
    let words = async {
        for word in 1..=WORDS {
            let key = format!("word-{word}");
            let send = async || run.send("word", &word).dedupe(&key).await;
            let sent = until_ok(send).await;
            known.messages_sent.fetch_add(1, Ordering::Relaxed);
            // As somebody does who did not get the answer.
            let again = until_ok(send).await;
            if (sent, again) != (Sent::Delivered, Sent::Duplicate) {
                wrong(format!(
                    "promise 4 is broken: run {}: word {word} was {sent:?}, then {again:?}",
                    run.id()
                ));
            }
        }
    };
    let ask = async {
        let asked = run.request::<u64, u64>("ask", &input.pair).await;
        known.messages_sent.fetch_add(1, Ordering::Relaxed);
        match asked {
            Ok(answer) if answer == input.pair * 2 => {}
            other => wrong(format!(
                "promise 4 is broken: run {} was asked {} and answered {other:?}",
                run.id(),
                input.pair
            )),
        }
    };
    tokio::join!(words, ask);
    if !input.first {
        // It sends one itself.
        known.messages_sent.fetch_add(1, Ordering::Relaxed);
    }
    match (run.result().await, input.fails) {
        (Ok(_), false) | (Err(RunError::Failed { .. }), true) => {}
        (other, _) => wrong(format!("run {} ended with {other:?}", run.id())),
    }
    lock(&known.live).remove(&run.id());
    lock(&known.ended).insert(run.id(), input);
}
