//! What several processes on one database cost: `cluster`, `cluster_remote`, `skewed`, `takeover`,
//! `remote_start`.
//!
//! Runners are processes of their own: this program again, with [`CHILD`] as its first argument. They
//! say what happens on their standard output, and end when their standard input does.

use std::{
    collections::HashSet,
    io::{BufRead, BufReader, Read, Write as _},
    path::Path,
    process::{Child, Command, Stdio},
    sync::{
        Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc::{self, Receiver, RecvTimeoutError},
    },
    time::{Duration, Instant, SystemTime},
};

use everstep::{Settings, prelude::*};

use crate::{
    Directory, Problem,
    line::{Line, median},
    throughput,
};

/// The first argument of a process that is a runner.
pub(crate) const CHILD: &str = "--cluster-child";

/// Short, so that a measurement of takeovers takes seconds.
const LEASE: Duration = Duration::from_secs(1);

/// How long a child may take for anything.
const PATIENCE: Duration = Duration::from_secs(120);

fn short_lease(set: &mut Settings) {
    set.lease = LEASE;
    set.heartbeat = Some(LEASE / 4);
}

/// Another process, and the lines that it says.
struct Runner {
    process: Child,
    lines: Receiver<(Instant, String)>,
}

impl Runner {
    fn start(what: &str, place: &Path, more: &[String]) -> Result<Runner, Problem> {
        let mut process = Command::new(std::env::current_exe()?)
            .args([CHILD, what])
            .arg(place)
            .args(more)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let out = process.stdout.take().ok_or("the child has no output")?;
        let (send, lines) = mpsc::channel();
        std::thread::spawn(move || {
            for line in BufReader::new(out).lines().map_while(Result::ok) {
                if send.send((Instant::now(), line)).is_err() {
                    return;
                }
            }
        });
        let runner = Runner { process, lines };
        match runner.line()?.1.as_str() {
            "ready" => Ok(runner),
            other => Err(format!("the child said `{other}`").into()),
        }
    }

    fn line(&self) -> Result<(Instant, String), Problem> {
        let line = self.lines.recv_timeout(PATIENCE);
        Ok(line.map_err(|_| "a child has said nothing for two minutes, or has ended")?)
    }

    /// What it says until it is quiet for so long.
    fn until_quiet(&self, time: Duration) -> Result<usize, Problem> {
        let mut said = 0;
        loop {
            match self.lines.recv_timeout(time) {
                Ok(_) => said += 1,
                Err(RecvTimeoutError::Timeout) => return Ok(said),
                Err(RecvTimeoutError::Disconnected) => return Err("a child has ended".into()),
            }
        }
    }

    fn tell(&mut self, line: &str) -> Result<(), Problem> {
        let stdin = self.process.stdin.as_mut();
        let stdin = stdin.ok_or("the child has no input")?;
        writeln!(stdin, "{line}")?;
        Ok(stdin.flush()?)
    }

    fn kill9(&mut self) -> Result<(), Problem> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }

    /// Lets it shut down.
    fn end(mut self) -> Result<(), Problem> {
        drop(self.process.stdin.take());
        self.process.wait()?;
        Ok(())
    }
}

impl Drop for Runner {
    fn drop(&mut self) {
        // It has ended, or something has failed.
        drop(self.process.kill());
        drop(self.process.wait());
    }
}

/// A child of this module: does what it is told until its input ends.
pub(crate) fn child(arguments: &[String]) -> Result<(), Problem> {
    let [what, place, more @ ..] = arguments else {
        return Err("the child wants to know what to do, and where".into());
    };
    let place = Path::new(place);
    match (what.as_str(), more) {
        ("load", [in_flight]) => load(place, in_flight.parse()?),
        ("share", [in_flight]) => share(place, in_flight.parse()?),
        ("call", [in_flight]) => call(place, in_flight.parse()?),
        ("run", []) => {
            let runtime = crate::runtime()?;
            runtime.block_on(async {
                let engine = Engine::open(place)
                    .register(ticker)
                    .register(stamp)
                    .settings(short_lease)
                    .start()
                    .await?;
                say("ready");
                tokio::task::spawn_blocking(until_input_ends).await?;
                engine.shutdown().await;
                Ok(())
            })
        }
        _ => Err(format!("a child cannot `{what}`").into()),
    }
}

fn say(line: &str) {
    println!("{line}");
    // Whoever listens is gone if not, and this process ends soon.
    drop(std::io::stdout().flush());
}

fn until_input_ends() {
    drop(std::io::stdin().read_to_end(&mut Vec::new()));
}

/// How long each process of `cluster` works.
const TIME: Duration = Duration::from_secs(5);

/// The child of [`cluster`]: a runner with callers of its own.
fn load(place: &Path, in_flight: usize) -> Result<(), Problem> {
    crate::runtime()?.block_on(async {
        let engine = throughput::engine(place).settings(short_lease).start().await?;
        ready_to_go().await?;
        let measured = throughput::closed_loop(&engine, in_flight, TIME).await?;
        say(&format!("{} {}", measured.runs, measured.time.as_secs_f64()));
        // The others may still wait for runs of this one.
        tokio::task::spawn_blocking(until_input_ends).await?;
        engine.shutdown().await;
        Ok(())
    })
}

/// Says that this process is ready, and waits until it is told to go.
async fn ready_to_go() -> Result<(), Problem> {
    say("ready");
    let go = tokio::task::spawn_blocking(|| std::io::stdin().read_line(&mut String::new()));
    go.await??;
    Ok(())
}

/// How many runs this process has run.
static RAN: AtomicU64 = AtomicU64::new(0);

/// As [`throughput::three_steps`]; counted by the process that runs it.
#[workflow]
async fn counted(ctx: Ctx, n: u64) -> Result<u64> {
    RAN.fetch_add(1, Ordering::Relaxed);
    let a = ctx.step("first", async || Ok(n + 1)).await?;
    let b = ctx.step("second", async || Ok(a * 2)).await?;
    ctx.step("third", async || Ok(b - n)).await
}

/// A child of [`cluster_remote`] and [`skewed`]: a runner, with callers or without. It says at last how
/// many runs it has run.
fn share(place: &Path, in_flight: usize) -> Result<(), Problem> {
    crate::runtime()?.block_on(async {
        let engine = Engine::open(place).register(counted).settings(short_lease).start().await?;
        ready_to_go().await?;
        if in_flight > 0 {
            say(&called(&engine.client(), in_flight).await?);
        }
        // Until the callers of all processes have their results.
        tokio::task::spawn_blocking(until_input_ends).await?;
        engine.shutdown().await;
        say(&RAN.load(Ordering::Relaxed).to_string());
        Ok(())
    })
}

/// The other child of [`cluster_remote`]: callers in a process without an engine.
fn call(place: &Path, in_flight: usize) -> Result<(), Problem> {
    crate::runtime()?.block_on(async {
        let client = Client::open(place).await?;
        ready_to_go().await?;
        say(&called(&client, in_flight).await?);
        until_input_ends();
        Ok(())
    })
}

/// Lets so many callers work, and says how many runs they had in how many seconds.
async fn called(client: &Client, in_flight: usize) -> Result<String, Problem> {
    let began = Instant::now();
    let times = throughput::call(client, counted, in_flight, TIME).await?;
    Ok(format!("{} {}", times.len(), began.elapsed().as_secs_f64()))
}

/// The figures that the callers of one process have said.
struct Figures {
    runs: u64,
    seconds: f64,
}

impl Figures {
    fn of(runner: &Runner) -> Result<Figures, Problem> {
        let (_, line) = runner.line()?;
        let (runs, seconds) = line.split_once(' ').ok_or("the child said no figures")?;
        Ok(Figures { runs: runs.parse()?, seconds: seconds.parse()? })
    }

    fn per_second(&self) -> f64 {
        self.runs as f64 / self.seconds
    }
}

/// Lets these go when the shards are shared out among them.
fn go(runners: &mut [Runner]) -> Result<(), Problem> {
    std::thread::sleep(3 * LEASE);
    runners.iter_mut().try_for_each(|runner| runner.tell("go"))
}

/// Throughput of 1, 2 and 3 runner processes on one database, with as many runs in flight in all:
/// what it costs that work is shared.
pub(crate) fn cluster(_: &tokio::runtime::Runtime, directory: &Directory) -> Result<(), Problem> {
    let mut measured = Vec::new();
    for processes in 1..=3 {
        let place = directory.fresh("engine.db");
        let each = (throughput::IN_FLIGHT / processes).to_string();
        let start = |_| Runner::start("load", &place, std::slice::from_ref(&each));
        let mut runners = (0..processes).map(start).collect::<Result<Vec<_>, _>>()?;
        go(&mut runners)?;
        let figures = runners.iter().map(Figures::of).collect::<Result<Vec<_>, _>>()?;
        runners.into_iter().try_for_each(Runner::end)?;
        measured.push(figures);
    }
    let rate =
        |processes: usize| -> f64 { measured[processes - 1].iter().map(Figures::per_second).sum() };
    let runs = measured[2].iter().map(|it| it.runs).sum();
    let seconds = measured[2].iter().map(|it| it.seconds).fold(0.0, f64::max);
    Line::new("cluster", runs, Duration::from_secs_f64(seconds))
        .number("one_per_second", rate(1))
        .number("two_per_second", rate(2))
        .number("three_per_second", rate(3))
        .number("two_ratio", rate(2) / rate(1))
        .number("three_ratio", rate(3) / rate(1))
        .print();
    Ok(())
}

/// As [`cluster`], with all callers in a client process of their own: no run is started where it runs.
/// The ratios are to one runner that has all callers itself.
pub(crate) fn cluster_remote(
    _: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    let in_flight = [throughput::IN_FLIGHT.to_string()];
    let none = ["0".to_owned()];
    let place = directory.fresh("engine.db");
    let mut alone = [Runner::start("share", &place, &in_flight)?];
    go(&mut alone)?;
    let local = Figures::of(&alone[0])?.per_second();
    let [alone] = alone;
    alone.end()?;
    let mut measured = Vec::new();
    for processes in 1..=3 {
        let place = directory.fresh("engine.db");
        let start = |_| Runner::start("share", &place, &none);
        let mut runners = (0..processes).map(start).collect::<Result<Vec<_>, _>>()?;
        let mut client = Runner::start("call", &place, &in_flight)?;
        go(&mut runners)?;
        client.tell("go")?;
        measured.push(Figures::of(&client)?);
        client.end()?;
        runners.into_iter().try_for_each(Runner::end)?;
    }
    let rate = |processes: usize| measured[processes - 1].per_second();
    let last = &measured[2];
    Line::new("cluster_remote", last.runs, Duration::from_secs_f64(last.seconds))
        .number("local_per_second", local)
        .number("one_per_second", rate(1))
        .number("two_per_second", rate(2))
        .number("three_per_second", rate(3))
        .number("one_ratio", rate(1) / local)
        .number("two_ratio", rate(2) / local)
        .number("three_ratio", rate(3) / local)
        .print();
    Ok(())
}

/// Three runners, of which one has all callers: how the work spreads, as the part of all runs that each
/// has run.
pub(crate) fn skewed(_: &tokio::runtime::Runtime, directory: &Directory) -> Result<(), Problem> {
    let place = directory.fresh("engine.db");
    let in_flight = [throughput::IN_FLIGHT, 0, 0];
    let start = |in_flight: usize| Runner::start("share", &place, &[in_flight.to_string()]);
    let mut runners = in_flight.into_iter().map(start).collect::<Result<Vec<_>, _>>()?;
    go(&mut runners)?;
    let figures = Figures::of(&runners[0])?;
    let mut ran = Vec::new();
    for mut runner in runners {
        drop(runner.process.stdin.take());
        ran.push(runner.line()?.1.parse::<u64>()?);
    }
    let all = ran.iter().sum::<u64>().max(1) as f64;
    let part = |runner: usize| ran[runner] as f64 / all;
    Line::new("skewed", figures.runs, Duration::from_secs_f64(figures.seconds))
        .number("part_of_the_busy_one", part(0))
        .number("part_of_the_second", part(1))
        .number("part_of_the_third", part(2))
        .print();
    Ok(())
}

/// The runs whose progress this process has told of.
static TOLD: Mutex<Option<HashSet<u64>>> = Mutex::new(None);

/// Steps for as long as somebody runs it; each process says once that it has come to it.
#[workflow]
async fn ticker(ctx: Ctx, n: u64) -> Result<u64> {
    for i in 0..100_000_u64 {
        ctx.step("tick", async || {
            let is_new = {
                let mut told = TOLD.lock().expect("no turn panics");
                told.get_or_insert_default().insert(n)
            };
            if is_new {
                say(&format!("progress {n}"));
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            Ok(i)
        })
        .await?;
    }
    Ok(n)
}

/// From SIGKILL of a runner until the first of its runs makes progress elsewhere, and until all of
/// them do, in leases.
pub(crate) fn takeover(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const RUNS: u64 = 50;
    const ROUNDS: usize = 5;
    let (mut firsts, mut alls) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let place = directory.fresh("engine.db");
        let mut old = Runner::start("run", &place, &[])?;
        runtime.block_on(async {
            let client = Client::open(&place).await?;
            for n in 0..RUNS {
                client.start(ticker, n).await?;
            }
            Ok::<_, Problem>(())
        })?;
        for _ in 0..RUNS {
            old.line()?;
        }
        let new = Runner::start("run", &place, &[])?;
        // Those that were handed over to it are not taken over.
        let moved = new.until_quiet(3 * LEASE)? as u64;
        let killed = Instant::now();
        old.kill9()?;
        let mut times = Vec::new();
        for _ in moved..RUNS {
            times.push(new.line()?.0.saturating_duration_since(killed));
        }
        let in_leases = |time: &Duration| time.as_secs_f64() / LEASE.as_secs_f64();
        firsts.extend(times.first().map(in_leases));
        alls.extend(times.last().map(in_leases));
    }
    if firsts.is_empty() {
        return Err("the runner that was killed had no runs".into());
    }
    let (first, all) = (median(&firsts), median(&alls));
    Line::new("takeover", RUNS, LEASE.mul_f64(all))
        .number("lease_ms", LEASE.as_secs_f64() * 1e3)
        .number("first_leases", first)
        .number("all_leases", all)
        .number("first_leases_max", firsts.iter().copied().fold(0.0, f64::max))
        .print();
    Ok(())
}

/// When it was begun, by the clock of the machine, in microseconds.
#[workflow]
async fn stamp(_ctx: Ctx, _n: u64) -> Result<u64> {
    Ok(now_us())
}

fn now_us() -> u64 {
    let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    now.unwrap_or_default().as_micros() as u64
}

/// A client process without an engine starts a run, a runner process runs it: how long until its
/// code is called, and until the client has the result.
pub(crate) fn remote_start(
    runtime: &tokio::runtime::Runtime,
    directory: &Directory,
) -> Result<(), Problem> {
    const RUNS: u64 = 200;
    const COLD: u64 = 20;
    let place = directory.fresh("engine.db");
    let runner = Runner::start("run", &place, &[])?;
    let (mut begun, mut ended) = (Vec::new(), Vec::new());
    runtime.block_on(async {
        let client = Client::open(&place).await?;
        for n in 0..COLD + RUNS {
            let (began, began_us) = (Instant::now(), now_us());
            let stamped = client.start(stamp, n).await?.result().await?;
            if n >= COLD {
                begun.push(Duration::from_micros(stamped.saturating_sub(began_us)));
                ended.push(began.elapsed());
            }
        }
        Ok::<_, Problem>(())
    })?;
    runner.end()?;
    ended.sort_unstable();
    Line::new("remote_start", RUNS, ended.iter().sum())
        .times(&mut begun)
        .number("result_p50_ms", ended[ended.len() / 2].as_secs_f64() * 1e3)
        .number("result_p99_ms", ended[ended.len() * 99 / 100].as_secs_f64() * 1e3)
        .print();
    Ok(())
}
