//! Every example, run to its end.
//!
//! Each runs in an empty folder of its own, since an example goes on with the database that it finds
//! there. A new file in `examples/` is run without being named here, unless it needs an answer.

use std::{
    collections::BTreeMap,
    env, fs,
    io::{self, Read},
    path::{Path, PathBuf},
    process::{self, Child, Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant, SystemTime, UNIX_EPOCH},
};

use crate::{
    Failure,
    cargo::{self, cargo},
};

/// The longest that an example may take.
const TIME_LIMIT: Duration = Duration::from_secs(120);

/// How often a running example is looked at.
const POLL: Duration = Duration::from_millis(50);

/// What a second terminal would do while an example runs, tried until it succeeds.
struct Answer {
    example: &'static str,
    /// The same example with these arguments is the second terminal.
    arguments: &'static [&'static str],
}

/// The examples that wait for a person.
const ANSWERS: &[Answer] = &[Answer { example: "approval", arguments: &["approve"] }];

/// Builds all examples, then runs each: those whose name ends with `_pg` on the database of this URL.
pub(crate) fn run_all(root: &Path, url: &str) -> Result<(), Failure> {
    let names = names(root)?;
    if names.is_empty() {
        return Err(Failure::Found("there is no example in examples/".into()));
    }
    build(root)?;
    let folder = env::temp_dir().join(format!("everstep-examples-{}", process::id()));
    for name in &names {
        println!("--> example {name}");
        run_one(root, name, &folder.join(name), url)?;
    }
    // Only what went well is cleared away: a failure leaves its files to be looked at.
    fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))
}

/// The examples by name, in order.
fn names(root: &Path) -> Result<Vec<String>, Failure> {
    let folder = root.join("examples");
    let entries = fs::read_dir(&folder).map_err(|error| at(&folder, &error))?;
    let mut names = Vec::new();
    for entry in entries {
        let path = entry.map_err(|error| at(&folder, &error))?.path();
        let name = path.file_stem().unwrap_or_default().to_string_lossy();
        if path.extension().is_some_and(|ending| ending == "rs") && name != "lib" {
            names.push(name.into_owned());
        }
    }
    names.sort();
    Ok(names)
}

fn build(root: &Path) -> Result<(), Failure> {
    // As the tests are, so that nothing that was built for them is built again.
    let build = ["build", "--workspace", "--all-features", "--examples"];
    cargo::succeed(cargo(root, &build))
}

fn run_one(root: &Path, name: &str, folder: &Path, url: &str) -> Result<(), Failure> {
    fs::create_dir_all(folder).map_err(|error| at(folder, &error))?;
    let command = example_on(root, name, folder, url);
    let mut running = Running::start(command, name)?;
    if let Some(answer) = ANSWERS.iter().find(|answer| answer.example == name) {
        give_answer(root, answer, folder, &mut running)?;
    }
    let status = running.wait()?;
    if status.success() {
        return Ok(());
    }
    Err(Failure::Found(format!(
        "the example `{name}` ended with {status}; what it wrote is in {}",
        folder.display()
    )))
}

/// The example as it was built, in a folder of its own.
fn example(root: &Path, name: &str, folder: &Path) -> Command {
    let built = cargo::target_directory(root).join("debug/examples");
    let mut command = Command::new(built.join(name));
    command.current_dir(folder).stdin(Stdio::null());
    command
}

/// As [`example`]; one that needs a database is told which, and one that has commands is given one
/// that comes to an end.
fn example_on(root: &Path, name: &str, folder: &Path, url: &str) -> Command {
    let mut command = example(root, name, folder);
    if name.ends_with("_pg") {
        command.arg(url);
    } else if name == "cli" {
        command.args(["bench", "--runs", "40"]);
    }
    command
}

/// Tries the answer until it is taken: the example needs a moment before it can be asked.
fn give_answer(
    root: &Path,
    answer: &Answer,
    folder: &Path,
    running: &mut Running,
) -> Result<(), Failure> {
    while !running.has_ended()? {
        let mut second = example(root, answer.example, folder);
        second.args(answer.arguments);
        // It fails for as long as it is too early, which is nothing to tell anyone.
        second.stdout(Stdio::null()).stderr(Stdio::null());
        if Running::start(second, answer.example)?.wait()?.success() {
            println!("--> answered with {:?}", answer.arguments);
            return Ok(());
        }
        thread::sleep(POLL * 10);
    }
    Ok(())
}

/// How often an example is killed.
const KILLS: usize = 20;

/// What the steps of one order write into the ledger: a line for each of these locations.
const CHECKOUT_STEPS: &[&str] =
    &["pay-and-pack/pack/label", "pay-and-pack/pay/charge", "reserve", "ship"];

/// Kills the example `checkout` at random moments, lets it finish, and reads its ledger.
pub(crate) fn kill_checkout(root: &Path) -> Result<(), Failure> {
    let folder = kill_at_random(root, "checkout", 1_200, "")?;
    let ledger = folder.join("checkout.ledger");
    let text = fs::read_to_string(&ledger).map_err(|error| at(&ledger, &error))?;
    let orders = check_ledger(&text)
        .map_err(|why| Failure::Found(format!("{}: {why}", ledger.display())))?;
    println!("    {KILLS} kills, {orders} orders, each step of each once");
    fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))
}

/// Kills the examples `ledger` and `ledger_pg` at random moments and lets them finish: they fail by
/// themselves if a cent was lost or made.
pub(crate) fn kill_ledger(root: &Path, url: &str) -> Result<(), Failure> {
    for name in ["ledger", "ledger_pg"] {
        let folder = kill_at_random(root, name, 1_000, url)?;
        println!("    {name}: {KILLS} kills, and the sums are right");
        fs::remove_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    }
    Ok(())
}

/// Kills an example within so many milliseconds of its first word, again and again, then lets it
/// finish; gives the folder that it ran in.
fn kill_at_random(root: &Path, name: &str, within_ms: u64, url: &str) -> Result<PathBuf, Failure> {
    let folder = env::temp_dir().join(format!("everstep-{name}-{}", process::id()));
    fs::create_dir_all(&folder).map_err(|error| at(&folder, &error))?;
    build(root)?;
    let mut random =
        SystemTime::now().duration_since(UNIX_EPOCH).map_or(1, |now| now.as_nanos() as u64 | 1);
    println!("    seed {random}");
    for _ in 0..KILLS {
        let mut command = example_on(root, name, &folder, url);
        command.stdout(Stdio::piped());
        let mut running = Running::start(command, name)?;
        running.wait_for_output()?;
        // An xorshift generator: any spread of moments will do.
        random ^= random << 13;
        random ^= random >> 7;
        random ^= random << 17;
        thread::sleep(Duration::from_millis(random % within_ms));
        // Dropping it kills it.
    }
    let last = Running::start(example_on(root, name, &folder, url), name)?;
    let status = last.wait()?;
    if !status.success() {
        let message = format!("`{name}` ended with {status} after {KILLS} kills");
        return Err(Failure::Found(message));
    }
    Ok(folder)
}

/// Whether each step of each order is there once; how many orders there are.
fn check_ledger(text: &str) -> Result<usize, String> {
    let mut orders: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    for line in text.lines() {
        let mut key = line.split(' ').next().unwrap_or_default().splitn(3, ':');
        let (Some(run), Some(_), Some(location)) = (key.next(), key.next(), key.next()) else {
            return Err(format!("`{line}` does not begin with a key"));
        };
        orders.entry(run).or_default().push(location);
    }
    for (run, locations) in &mut orders {
        locations.sort_unstable();
        if locations != CHECKOUT_STEPS {
            return Err(format!("run {run} has these steps: {}", locations.join(", ")));
        }
    }
    match orders.len() {
        0 => Err("it is empty".into()),
        n => Ok(n),
    }
}

/// A process with a time limit. It is stopped when this is dropped.
struct Running {
    name: String,
    child: Child,
    started: Instant,
    limit: Duration,
}

impl Running {
    fn start(mut command: Command, name: &str) -> Result<Self, Failure> {
        let child = command
            .spawn()
            .map_err(|error| Failure::Found(format!("starting `{name}`: {error}")))?;
        Ok(Self { name: name.into(), child, started: Instant::now(), limit: TIME_LIMIT })
    }

    /// Waits until it has said something. What it says later is passed over.
    fn wait_for_output(&mut self) -> Result<(), Failure> {
        let Some(mut stdout) = self.child.stdout.take() else {
            return Ok(());
        };
        let mut first = [0];
        stdout
            .read_exact(&mut first)
            .map_err(|error| Failure::Found(format!("`{}` said nothing: {error}", self.name)))?;
        // Somebody has to read on, or it would stop at a full pipe.
        thread::spawn(move || io::copy(&mut stdout, &mut io::sink()));
        Ok(())
    }

    fn has_ended(&mut self) -> Result<bool, Failure> {
        Ok(self.status()?.is_some())
    }

    /// Waits for its end.
    fn wait(mut self) -> Result<ExitStatus, Failure> {
        loop {
            if let Some(status) = self.status()? {
                return Ok(status);
            }
            thread::sleep(POLL);
        }
    }

    /// How it ended, if it has; an error once it has taken too long.
    fn status(&mut self) -> Result<Option<ExitStatus>, Failure> {
        let Self { name, limit, .. } = self;
        let status = self
            .child
            .try_wait()
            .map_err(|error| Failure::Found(format!("waiting for `{name}`: {error}")))?;
        if status.is_none() && self.started.elapsed() > *limit {
            let message = format!("`{name}` was still running after {limit:?}");
            return Err(Failure::Found(message));
        }
        Ok(status)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // Both fail only for a process that has ended already.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn at(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Found(format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ledger_shows_each_step_once() {
        let lines = CHECKOUT_STEPS.iter().map(|step| format!("run:1:{step} did it\n"));
        let whole: String = lines.collect();
        assert_eq!(check_ledger(&whole), Ok(1));
        assert!(check_ledger(&format!("{whole}run:1:ship did it\n")).is_err());
        assert!(check_ledger("run:1:ship did it\n").is_err());
        assert!(check_ledger("").is_err());
    }

    /// A command of the shell, started.
    fn running(script: &str) -> Running {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        Running::start(command, "script").unwrap()
    }

    #[test]
    fn end_of_a_process_is_good_or_bad() {
        assert!(running("exit 0").wait().unwrap().success());
        assert_eq!(running("exit 3").wait().unwrap().code(), Some(3));
    }

    #[test]
    fn process_that_takes_too_long_is_named() {
        let mut running = running("exec sleep 1000");
        running.limit = Duration::ZERO;
        let Err(Failure::Found(message)) = running.wait() else {
            panic!("it had no time left");
        };
        assert_eq!(message, "`script` was still running after 0ns");
    }
}
