//! Many lives: worker processes, each pinned to a core, and what they say.
//!
//! A worker lives the seeds of its share one after another and writes a line of JSON before and after
//! each. One that dies has said which seed it was at: that one is a violation, and another worker goes on
//! after it.

use std::{
    env,
    io::{BufRead, BufReader, Write},
    process::{Child, Command, Stdio},
    sync::mpsc,
    thread,
    time::{Duration, Instant},
};

use serde::{Deserialize, Serialize};

use crate::{
    args::{Amount, Args},
    breaks::{self, Break},
    compare,
    life::{self, Options},
    oracle::{Promise, Violation},
    plan::Plan,
    shrink,
    summary::Summary,
};

/// The seeds of a worker.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Share {
    core: usize,
    /// Its first seed.
    from: u64,
    /// How far apart its seeds are.
    step: u64,
    /// All are below this one.
    end: u64,
    /// How long it lives them at most.
    time: Option<Duration>,
    broken: Option<Break>,
    /// Whether stores are compared after each life.
    compares: bool,
}

impl Share {
    /// The shares of all workers.
    pub(crate) fn of(args: &Args, broken: Option<Break>) -> Vec<Share> {
        let (seeds, time) = match args.amount {
            Amount::Seeds(seeds) => (seeds, None),
            Amount::Time(time) => (u64::MAX, Some(time)),
        };
        let share = |core: usize| Share {
            core,
            from: args.from.saturating_add(core as u64),
            step: args.workers as u64,
            end: args.from.saturating_add(seeds),
            time,
            broken,
            compares: args.compares,
        };
        (0..args.workers).map(share).collect()
    }

    pub(crate) fn parse(words: &[String]) -> Result<Share, String> {
        let malformed = || "a worker is started by its parent alone".to_owned();
        let [core, from, step, end, ms, broken, compares] = words else {
            return Err(malformed());
        };
        let number = |word: &String| word.parse::<u64>().map_err(|_| malformed());
        Ok(Share {
            core: number(core)? as usize,
            from: number(from)?,
            step: number(step)?.max(1),
            end: number(end)?,
            time: match number(ms)? {
                0 => None,
                ms => Some(Duration::from_millis(ms)),
            },
            broken: match broken.as_str() {
                "-" => None,
                name => Some(breaks::by_name(name)?),
            },
            compares: compares == "compare",
        })
    }

    fn words(&self) -> [String; 7] {
        let ms = self.time.map_or(0, |time| time.as_millis().max(1));
        [
            self.core.to_string(),
            self.from.to_string(),
            self.step.to_string(),
            self.end.to_string(),
            ms.to_string(),
            self.broken.map_or("-", |it| it.name).to_owned(),
            if self.compares { "compare" } else { "-" }.to_owned(),
        ]
    }
}

/// What a worker says.
#[derive(Serialize, Deserialize)]
enum Line {
    Begins(u64),
    Ended(Box<Life>),
}

/// A life that has ended.
#[derive(Serialize, Deserialize)]
pub(crate) struct Life {
    pub(crate) seed: u64,
    pub(crate) summary: Summary,
    pub(crate) violations: Vec<Violation>,
}

impl Life {
    /// One that its worker did not survive.
    fn fatal(seed: u64, how: String) -> Life {
        let violation = Violation { promise: Promise::SimulationGoesOn, what: how };
        let mut summary = Summary::new();
        summary.seeds = 1;
        summary.violations.insert(violation.promise, 1);
        Life { seed, summary, violations: vec![violation] }
    }
}

/// Keeps this thread, and all that it starts, on one core.
pub(crate) fn pin_to_core(core: usize) {
    let cores = thread::available_parallelism().map_or(1, usize::from);
    let mut set = rustix::thread::CpuSet::new();
    set.set(core % cores);
    // Where that is not allowed it is only slower.
    _ = rustix::thread::sched_setaffinity(None, &set);
}

/// A worker: lives its share.
pub(crate) fn work(share: &Share) {
    pin_to_core(share.core);
    let begun = Instant::now();
    let mut seed = share.from;
    while seed < share.end && share.time.is_none_or(|time| begun.elapsed() < time) {
        say(&Line::Begins(seed));
        let options = Options {
            sabotage: share.broken.map(|it| it.sabotage),
            keeps_changes: share.compares,
            ..Options::default()
        };
        let mut verdict = life::live(Plan::draw(seed), options);
        if share.broken.is_some() && !verdict.violations.is_empty() {
            // What the same life breaks by itself does not show the break.
            let whole = life::live(Plan::draw(seed), Options::default());
            let is_known =
                |it: &Violation| whole.violations.iter().any(|w| w.promise == it.promise);
            verdict.violations.retain(|violation| !is_known(violation));
        }
        if share.compares
            && let Some(violation) = compare::compare(&verdict.changes)
        {
            verdict.summary.violations.insert(violation.promise, 1);
            verdict.violations.push(violation);
        }
        say(&Line::Ended(Box::new(Life {
            seed,
            summary: verdict.summary,
            violations: verdict.violations,
        })));
        seed = seed.saturating_add(share.step);
    }
}

fn say(line: &Line) {
    let line = serde_json::to_string(line).expect("numbers and texts are always JSON");
    let mut out = std::io::stdout().lock();
    if writeln!(out, "{line}").and_then(|()| out.flush()).is_err() {
        // The parent has heard enough.
        std::process::exit(0);
    }
}

/// Workers under way.
pub(crate) struct Fleet {
    heard: mpsc::Receiver<Life>,
    children: mpsc::Receiver<Child>,
}

impl Fleet {
    pub(crate) fn start(shares: &[Share]) -> Fleet {
        let (lives, heard) = mpsc::channel();
        let (started, children) = mpsc::channel();
        for share in shares {
            let (share, lives, started) = (share.clone(), lives.clone(), started.clone());
            thread::spawn(move || follow(share, &lives, &started));
        }
        Fleet { heard, children }
    }

    /// Hears of every life, until all have ended or `hear` has heard enough.
    pub(crate) fn hear(self, mut hear: impl FnMut(&Life) -> bool) {
        for life in self.heard.iter() {
            if !hear(&life) {
                break;
            }
        }
        for mut child in self.children.try_iter() {
            // It may have ended.
            drop(child.kill());
            drop(child.wait());
        }
    }
}

/// Starts a worker, and another one after each that dies.
fn follow(mut share: Share, lives: &mpsc::Sender<Life>, started: &mpsc::Sender<Child>) {
    loop {
        let program = env::current_exe().expect("this program is a file");
        let mut command = Command::new(program);
        command.arg("--worker").args(share.words());
        command.stdout(Stdio::piped());
        if share.compares
            && let Ok(url) = compare::database_url()
        {
            command.env(everstep_pg::DATABASE_URL, url);
        }
        let mut child = command.spawn().expect("this program can be started");
        let out = child.stdout.take().expect("standard output is piped");
        _ = started.send(child);
        let mut at = None;
        for line in BufReader::new(out).lines().map_while(Result::ok) {
            match serde_json::from_str(&line) {
                Ok(Line::Begins(seed)) => at = Some(seed),
                Ok(Line::Ended(life)) => {
                    at = None;
                    if lives.send(*life).is_err() {
                        return;
                    }
                }
                Err(error) => eprintln!("a worker said `{line}`: {error}"),
            }
        }
        let Some(seed) = at else { return };
        let how = "the worker has died: see what it wrote on standard error".to_owned();
        if lives.send(Life::fatal(seed, how)).is_err() {
            return;
        }
        share.from = seed.saturating_add(share.step);
    }
}

/// How many violations are printed.
const SHOWN_MAX: usize = 20;

/// Lives as many lives as are asked for; whether no promise was broken.
pub(crate) fn live(args: &Args) -> bool {
    let begun = Instant::now();
    let mut all = Summary::new();
    let mut shown = 0;
    let mut first = None;
    Fleet::start(&Share::of(args, None)).hear(|life| {
        all.add(&life.summary);
        if let (None, Some(violation)) = (&first, life.violations.first()) {
            first = Some((life.seed, violation.promise));
        }
        for violation in &life.violations {
            shown += 1;
            if shown <= SHOWN_MAX {
                eprintln!("seed {}: {violation}", life.seed);
            }
        }
        if !args.json && all.seeds.is_multiple_of(1_000) {
            eprintln!("{} lives, {:?}", all.seeds, begun.elapsed());
        }
        true
    });
    all.seconds = begun.elapsed().as_secs_f64();
    // One that kills its process cannot be made smaller in this one, and stores are compared after a life.
    let first = first.filter(|(_, promise)| {
        !matches!(promise, Promise::SimulationGoesOn | Promise::StoresAgree)
    });
    if let (Some((seed, promise)), true) = (first, args.shrinks) {
        pin_to_core(0);
        let smaller = shrink::shrink(&Plan::draw(seed), promise, Options::default());
        eprint!("{smaller}");
    }
    println!("{}", all.as_json());
    all.is_clean()
}
