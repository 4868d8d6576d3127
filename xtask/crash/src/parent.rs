//! The parent: starts runs, sends messages, and checks what is left.

use std::{
    collections::BTreeMap,
    io::Write,
    path::PathBuf,
    process::{Child, Command, Stdio},
    rc::Rc,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use everstep::{
    Client, ClientError, Count, EntryKind, EntryStatus, RunError, RunHandle, RunId, RunStatus,
    Sabotage, Sent,
};

use everstep_pg::Instance;
use tokio::task::JoinHandle;

use crate::{
    Options, Problem, bodies,
    child::{self, LEASE, Latest, Role},
    cluster::{self, Outcome},
    ledger::Ledger,
    mix::{self, Outside, Xor, ended, until_ok},
    orders::Orders,
    place::Place,
    random::Random,
    workflow::{self, Input, WORDS, every},
};

/// After the last kill it is given up when nothing was achieved for so long: a machine that is
/// loaded is slow, and a run that is stuck does nothing.
const STUCK_AFTER: Duration = LEASE.saturating_mul(60);

/// However much is achieved, it must come to an end.
const FINISH_LIMIT: Duration = Duration::from_secs(1_800);

/// How long engines are given to say where a run is.
const WHERE_LIMIT: Duration = Duration::from_secs(2);

/// How long a kill waits for a body that it strikes in the middle. There may be none: a process that
/// has just started has no runs yet.
const BODY_LIMIT: Duration = Duration::from_secs(10);

/// One kill of so many comes at any moment, whether there is a body or not.
const ANY_MOMENT: u64 = 20;

/// The histories of at most this many runs are read after each kill.
const HISTORIES: usize = 40;

/// What the parent knows about its runs.
#[derive(Default)]
pub(crate) struct Known {
    next_pair: AtomicU64,
    pub(crate) stop: AtomicBool,
    messages_sent: AtomicU64,
    /// The runs that were started and are not known to have ended.
    live: Mutex<BTreeMap<RunId, Input>>,
    ended: Mutex<BTreeMap<RunId, Input>>,
    /// What was not as it should be.
    pub(crate) wrong: Mutex<Vec<String>>,
}

pub(crate) fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Makes the test, prints its line, and says what has come of it. On this server, if it is for one and
/// there is one already.
pub(crate) fn run(options: &Options, server: Option<Arc<Instance>>) -> Result<Outcome, Problem> {
    static TESTS: AtomicU64 = AtomicU64::new(0);
    let base =
        std::env::var_os("EVERSTEP_BENCH_DIR").map_or_else(|| "target".into(), PathBuf::from);
    let number = TESTS.fetch_add(1, Ordering::Relaxed);
    let directory = base.join(format!("crash-{}-{number}", std::process::id()));
    std::fs::create_dir_all(&directory)?;
    let directory = directory.canonicalize()?;
    let runtime = tokio::runtime::Builder::new_multi_thread().enable_all().build()?;
    let mut test = Test {
        options,
        random: Random::new(options.seed),
        directory: directory.clone(),
        orders: Orders::open(&directory)?,
        ledger: Ledger::default(),
        known: Rc::default(),
        kills_mid_body: 0,
        hung_runs: 0,
        doctor_findings: 0,
    };
    let local = tokio::task::LocalSet::new();
    let outcome = runtime.block_on(local.run_until(async {
        let server = match server {
            Some(server) => Some(server),
            None => cluster::server(options).await?,
        };
        cluster::run(&mut test, server).await
    }))?;
    drop(local);
    runtime.shutdown_background();
    // What was broken on purpose need not be looked into.
    match outcome.is_well || (options.sabotage.is_some() && outcome.caught.is_some()) {
        true => std::fs::remove_dir_all(&directory)?,
        false => eprintln!("its files are in {}", directory.display()),
    }
    Ok(outcome)
}

/// What every test has.
pub(crate) struct Test<'a> {
    pub(crate) options: &'a Options,
    pub(crate) random: Random,
    pub(crate) directory: PathBuf,
    pub(crate) orders: Orders,
    pub(crate) ledger: Ledger,
    pub(crate) known: Rc<Known>,
    pub(crate) kills_mid_body: u64,
    pub(crate) hung_runs: u64,
    pub(crate) doctor_findings: u64,
}

impl Test<'_> {
    /// Starts everything that is done from outside.
    pub(crate) async fn drive(
        &self,
        outside: &Rc<Outside>,
        pairs: u64,
    ) -> Result<Vec<JoinHandle<()>>, Problem> {
        let mut drivers = mix::drive(outside).await?;
        let client = &outside.client;
        let pairs =
            (0..pairs).map(|_| tokio::task::spawn_local(drive(client.clone(), self.known.clone())));
        drivers.extend(pairs);
        Ok(drivers)
    }

    /// Starts nothing new, and waits for the end of everything, or until nothing goes on any more.
    pub(crate) async fn finish(
        &mut self,
        outside: &Outside,
        drivers: Vec<JoinHandle<()>>,
    ) -> Result<(), Problem> {
        self.known.stop.store(true, Ordering::Relaxed);
        outside.stop();
        let begun = Instant::now();
        let (mut best, mut since) = (None, Instant::now());
        loop {
            self.read_ledger()?;
            let drivers_left = drivers.iter().filter(|it| !it.is_finished()).count();
            let runs_left = mix::ask(async || not_finished(&outside.client).await).await?;
            // Those that nobody waits for count, too.
            if drivers_left == 0 && runs_left == 0 {
                break;
            }
            let achieved = Some((self.ledger.steps_completed(), drivers_left, runs_left));
            if achieved != best {
                (best, since) = (achieved, Instant::now());
            }
            if since.elapsed() > STUCK_AFTER || begun.elapsed() > FINISH_LIMIT {
                // What did not finish is counted by `check`.
                eprintln!("given up: {drivers_left} drivers and {runs_left} runs are left");
                self.hung_runs += runs_left;
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        for driver in drivers {
            driver.await?;
        }
        Ok(())
    }

    /// Checks everything but the counts; how many runs there are, and how many have not ended.
    pub(crate) async fn check(&mut self, outside: &Outside) -> Result<(u64, u64), Problem> {
        self.read_ledger()?;
        self.check_ended(&outside.client).await?;
        mix::check(outside, &self.ledger).await?;
        let left = self.explain_unfinished(&outside.client).await?;
        Ok((outside.client.count().await?, left))
    }

    pub(crate) fn file(&self) -> PathBuf {
        self.directory.join(child::FILE)
    }

    /// Makes the ledger, empty, for who reads it before a child has written.
    pub(crate) fn make_ledger(&self) -> Result<(), Problem> {
        bodies::Bodies::open(&self.directory.join("ledger"))?;
        Ok(())
    }

    pub(crate) fn read_ledger(&mut self) -> Result<(), Problem> {
        Ok(self.ledger.read_on(&self.directory.join("ledger"))?)
    }

    /// How new the code is after so many kills.
    pub(crate) fn latest(&self, kills: u64) -> Latest {
        Latest(if kills * 2 < self.options.kills { 1 } else { 2 })
    }

    /// Starts a child on a file or a URL.
    pub(crate) fn start_child(&self, place: &str, role: Role) -> Result<Running, Problem> {
        let mut log = std::fs::OpenOptions::new()
            .create(true)
            .append(true)
            .open(self.directory.join("child.log"))?;
        let broken = self.broken_in(role);
        let arguments = child::arguments(&self.directory, place, role, broken);
        let child = Command::new(std::env::current_exe()?)
            .args(&arguments)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log.try_clone()?)
            .spawn()?;
        writeln!(log, "process {}: {}", child.id(), arguments.join(" "))?;
        Ok(Running(child))
    }

    /// What is broken on purpose in a child. With every second seed only clients without an engine
    /// believe their clocks, else only runners: each must be found alone.
    fn broken_in(&self, role: Role) -> Option<Sabotage> {
        let is_client = matches!(role, Role::Worker);
        let is_for_clients = self.options.seed.is_multiple_of(2);
        let broken = self.options.sabotage;
        broken.filter(|it| *it != Sabotage::BelieveClock || is_client == is_for_clients)
    }

    /// A process goes on later as if nothing had been, while others may have its runs.
    pub(crate) fn stopped(&mut self, process: u32) -> Result<(), Problem> {
        self.read_ledger()?;
        let process = process.to_string();
        self.ledger.note("stopped", &[&process]);
        self.ledger.note("place", &["stopped", &process]);
        Ok(())
    }

    /// Waits until a body is under way in a process that is about to be killed, as most are.
    pub(crate) async fn wait_for_body(&mut self, process: u32) -> Result<(), Problem> {
        if self.random.next().is_multiple_of(ANY_MOMENT) {
            return Ok(());
        }
        let limit = Instant::now() + BODY_LIMIT;
        loop {
            self.read_ledger()?;
            if self.ledger.has_open(process) || Instant::now() > limit {
                return Ok(());
            }
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
    }

    /// A process is gone, and everything that it wrote is in the ledger. Whether it had bodies in
    /// flight.
    pub(crate) fn killed(&mut self, process: u32) -> Result<bool, Problem> {
        self.read_ledger()?;
        self.ledger.note("place", &["killed", &process.to_string()]);
        Ok(self.ledger.killed(process))
    }

    /// Reads which steps of some runs are durable by now.
    pub(crate) async fn read_histories(&mut self, outside: &Outside) -> Result<(), Problem> {
        let mut live: Vec<RunId> = lock(&self.known.live).keys().copied().collect();
        live.extend(outside.live());
        let skip = self.random.next() as usize % (live.len() + 1);
        let mut stored = Vec::new();
        for run in live.into_iter().skip(skip).take(HISTORIES) {
            let read = mix::ask(async || {
                let handle: RunHandle<u64> = outside.client.run(run);
                let before = handle.info().await?.generation;
                let history = handle.history().await?;
                // Another generation has steps of its own with the same names.
                let same = handle.info().await?.generation == before;
                Ok(same.then_some((before, history)))
            });
            let Some((generation, history)) = read.await? else {
                continue;
            };
            for entry in history {
                if entry.kind == EntryKind::Step && entry.status == EntryStatus::Completed {
                    stored.push((bodies::run_name(run, generation), entry.location));
                }
            }
        }
        // Bodies that began before the histories were read are no violation, and are in the ledger.
        self.read_ledger()?;
        for (run, location) in stored {
            self.ledger.stored(&run, &location);
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
            let expected: &[&str] = if input.fails { &["book#2", "book"] } else { &[] };
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
                self.say_where(info.id).await?;
                let waiting = info.waiting.unwrap_or_default();
                let (run, of) = (info.id, info.workflow);
                let what = format!("run {run} of `{of}` has not finished: {status}: {waiting}");
                lock(&self.known.wrong).push(what);
            }
        }
        Ok(not_finished(client).await?)
    }

    /// Prints where a run that stands still is in the memory of each engine.
    async fn say_where(&mut self, run: RunId) -> Result<(), Problem> {
        Orders::open(&self.directory)?.ask_where(&run.to_string())?;
        tokio::time::sleep(WHERE_LIMIT).await;
        self.read_ledger()?;
        let (answers, of) = (self.ledger.notes("where"), run.to_string());
        for answer in answers.iter().filter(|fields| fields.first() == Some(&of)) {
            eprintln!("run {of} in process {}", answer[1..].join(" "));
        }
        Ok(())
    }

    /// The part of the line that the bodies have written, and what it says of the store.
    pub(crate) fn ledger_fields(&self) -> String {
        let field = |(name, count): (&str, u64)| format!(",\"{name}\":{count}");
        self.ledger_counters().into_iter().map(field).collect()
    }

    fn ledger_counters(&self) -> [(&'static str, u64); 8] {
        let ledger = &self.ledger;
        [
            ("steps_completed", ledger.steps_completed() as u64),
            ("bodies_run", ledger.bodies_run),
            ("run_again_after_completion", ledger.run_again),
            ("order_differs", ledger.order_differs),
            ("started_on_lost_state", ledger.started_on_lost_state().0),
            ("bodies_started_after_lease", ledger.after_lease),
            ("hung_runs", self.hung_runs),
            ("doctor_findings", self.doctor_findings),
        ]
    }

    /// How often a promise about a message was found broken.
    fn messages_lost(&self, outside: &Outside) -> u64 {
        let mut wrong = lock(&self.known.wrong).clone();
        wrong.extend(outside.wrongs());
        wrong.iter().filter(|what| what.contains("promise 4")).count() as u64
    }

    /// The first of these counters that is not 0, with its count.
    pub(crate) fn first_of(&self, counters: &[&str], outside: &Outside) -> Option<String> {
        let messages = ("messages_lost", self.messages_lost(outside));
        let mut all = self.ledger_counters().into_iter().chain([messages]);
        let found = all.find(|(name, count)| *count > 0 && counters.contains(name));
        found.map(|(name, count)| format!("{name}: {count}"))
    }

    /// Prints the line; whether all is well.
    pub(crate) fn report(
        &self,
        kills: u64,
        outside: &Outside,
        runs: u64,
        not_finished: u64,
        more: &str,
    ) -> bool {
        let (ledger, known) = (&self.ledger, &self.known);
        let mut wrong = lock(&known.wrong).clone();
        wrong.extend(outside.wrongs());
        let lost = self.messages_lost(outside);
        println!(
            "{{\"seed\":{},\"runs\":{runs},\"kills\":{kills},\"kills_mid_body\":{}{},\
             \"messages_sent\":{},\"messages_lost\":{lost},\
             \"runs_not_finished\":{not_finished}{}{more}}}",
            self.options.seed,
            self.kills_mid_body,
            self.ledger_fields(),
            known.messages_sent.load(Ordering::Relaxed) + outside.messages_sent(),
            outside.line(),
        );
        wrong.splice(0..0, ledger.started_on_lost_state().1);
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

async fn not_finished(client: &Client) -> Result<u64, ClientError> {
    unfinished().fold(client.count(), Count::status).await
}

/// A child that is killed when this is dropped.
pub(crate) struct Running(pub(crate) Child);

impl Running {
    /// An error if it has ended by itself.
    pub(crate) fn check(&mut self) -> Result<(), Problem> {
        match self.0.try_wait()? {
            None => Ok(()),
            Some(status) => Err(format!("the child ended by itself with {status}").into()),
        }
    }

    /// Stops the process, and returns when it has stopped.
    pub(crate) async fn stop(&self) -> Result<(), Problem> {
        self.signal("STOP")?;
        let limit = Instant::now() + Duration::from_secs(5);
        while !self.has_stopped()? {
            if Instant::now() > limit {
                return Err("the child does not stop".into());
            }
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        Ok(())
    }

    /// Whether all its threads have stopped.
    fn has_stopped(&self) -> Result<bool, Problem> {
        for thread in std::fs::read_dir(format!("/proc/{}/task", self.0.id()))? {
            // One that has ended meanwhile has nothing to say.
            let stat = std::fs::read_to_string(thread?.path().join("stat")).unwrap_or_default();
            let state = stat.rsplit_once(") ").map_or("T", |(_, rest)| rest);
            if !state.starts_with('T') {
                return Ok(false);
            }
        }
        Ok(true)
    }

    pub(crate) fn signal(&self, name: &str) -> Result<(), Problem> {
        let kill =
            Command::new("kill").arg(format!("-{name}")).arg(self.0.id().to_string()).status()?;
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

/// A child makes the store; until it has, there is none to open, or one with nothing in it.
pub(crate) async fn open(place: &Place) -> Result<Client, Problem> {
    let began = Instant::now();
    loop {
        let opened = async {
            let client = place.client().await?.codec(Xor);
            client.count().await.map(|_| client)
        };
        let opened: Result<Client, ClientError> = opened.await;
        match opened {
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
    match (ended(&run).await, input.fails) {
        (Ok(_), false) | (Err(RunError::Failed { .. }), true) => {}
        (other, _) => wrong(format!("run {} ended with {other:?}", run.id())),
    }
    lock(&known.live).remove(&run.id());
    lock(&known.ended).insert(run.id(), input);
}
