//! The test programs of the workspace: which there are, and running several of them at once.
//!
//! Most tests wait for a disk or a database most of their time, so one program after another leaves
//! the processors idle. Each shows its output when it has ended.

use std::{
    env,
    ffi::{OsStr, OsString},
    fs::{self, File},
    io::{self, Write},
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Stdio},
    sync::{Mutex, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Failure,
    cargo::{self, Tests, cargo, counted},
};

/// How long one program may take: far longer than any does, so that one that hangs is named.
const LIMIT: Duration = Duration::from_secs(20 * 60);

/// How many programs are run at once, at most.
const AT_ONCE_MAX: usize = 4;

/// One program that cargo has built.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Program {
    /// As in `cargo test --test versions`; the package's, for the tests within it.
    pub(crate) name: String,
    executable: PathBuf,
    /// The directory of its package, which tests are run in.
    package: PathBuf,
}

/// A program to be run: how, and what to call it.
pub(crate) struct Run {
    title: String,
    command: Command,
}

/// Builds these tests with all features, and gives their programs.
pub(crate) fn build(root: &Path, which: &[&str]) -> Result<Vec<Program>, Failure> {
    let format = "--message-format=json-render-diagnostics";
    let test = ["test", "--all-features", "--no-run", format];
    let mut build = cargo(root, &[&test[..], which].concat());
    let output = build.stderr(Stdio::inherit()).output();
    let output = output.map_err(|error| cargo::no_start(&build, &error))?;
    if !output.status.success() {
        let (what, status) = (cargo::shown(&build), output.status);
        return Err(Failure::Found(format!("{what} ended with {status}")));
    }
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs: Vec<Program> = messages.lines().filter_map(program).collect::<Result<_, _>>()?;
    match programs.is_empty() {
        true => Err(Failure::Found(
            "cargo named no test programs; has the form of its messages changed?".into(),
        )),
        false => Ok(programs),
    }
}

/// Reads what cargo says of one thing that it has built. Only test programs are of interest.
fn program(message: &str) -> Option<Result<Program, Failure>> {
    if !message.starts_with(r#"{"reason":"compiler-artifact""#) {
        return None;
    }
    let (_, profile) = message.split_once(r#""profile":{"#)?;
    let (profile, _) = profile.split_once('}')?;
    if !profile.contains(r#""test":true"#) || message.contains(r#""executable":null"#) {
        return None;
    }
    // One that is left out would be missed by nobody.
    let unread = || Failure::Found(format!("cargo names a test program, but how? {message}"));
    Some(read(message).ok_or_else(unread))
}

fn read(message: &str) -> Option<Program> {
    let executable = PathBuf::from(text(message, "executable")?);
    let manifest = PathBuf::from(text(message, "manifest_path")?);
    let (_, target) = message.split_once(r#""target":"#)?;
    Some(Program {
        name: text(target, "name")?,
        executable,
        package: manifest.parent()?.to_owned(),
    })
}

/// The text of a field in one line of JSON. Paths and names that need escapes are not for us.
fn text(json: &str, field: &str) -> Option<String> {
    let (_, rest) = json.split_once(&format!(r#""{field}":""#))?;
    let (text, _) = rest.split_once('"')?;
    (!text.contains('\\')).then(|| text.to_owned())
}

impl Program {
    /// This program, in the surroundings that cargo would give it.
    pub(crate) fn run(&self, title: &str, libraries: &OsStr) -> Run {
        let mut command = Command::new(&self.executable);
        command.current_dir(&self.package);
        command.env("CARGO_MANIFEST_DIR", &self.package);
        if let Some(name) = self.package.file_name() {
            command.env("CARGO_PKG_NAME", name);
        }
        command.env("LD_LIBRARY_PATH", libraries);
        let title = format!("{} {title}", self.name).trim_end().to_owned();
        Run { title, command }
    }
}

impl Run {
    pub(crate) fn env(&mut self, name: &str, value: impl AsRef<OsStr>) {
        self.command.env(name, value);
    }

    pub(crate) fn env_remove(&mut self, name: &str) {
        self.command.env_remove(name);
    }

    pub(crate) fn arguments(&mut self, arguments: &[&str]) {
        self.command.args(arguments);
    }
}

/// Where the compiler's own libraries are, which the tests of a macro's crate are linked to.
pub(crate) fn libraries(root: &Path) -> OsString {
    let mut rustc = Command::new(env::var_os("RUSTC").unwrap_or_else(|| "rustc".into()));
    let asked = rustc.current_dir(root).args(["--print", "sysroot"]).output();
    let sysroot = asked.map(|output| String::from_utf8_lossy(&output.stdout).trim().to_owned());
    let mut paths = OsString::from(sysroot.unwrap_or_default());
    paths.push("/lib");
    if let Some(before) = env::var_os("LD_LIBRARY_PATH") {
        paths.push(":");
        paths.push(before);
    }
    paths
}

/// Runs the programs, in their order, several at once, and counts their tests. All are run, whether or
/// not some fail. What they say goes to `shown`, and to a file each in `outputs`.
pub(crate) fn run_all(
    runs: Vec<Run>,
    outputs: &Path,
    shown: impl Write + Send,
    tests: &mut Tests,
) -> Result<(), Failure> {
    let is_in_the_way = |error: io::Error| {
        let place = outputs.display();
        Failure::Found(format!("{place}: {error}"))
    };
    fs::create_dir_all(outputs).map_err(is_in_the_way)?;
    // One more than there are processors: one of them waits most of the time. Each has as many threads
    // as there are processors itself, and a database has only so many connections.
    let at_once = thread::available_parallelism().map_or(2, usize::from) + 1;
    let at_once = at_once.min(AT_ONCE_MAX);
    let left = Mutex::new(runs.into_iter().enumerate());
    let ended = Mutex::new((shown, Tests::default(), Vec::new()));
    thread::scope(|scope| {
        for _ in 0..at_once {
            scope.spawn(|| {
                loop {
                    let next = left.lock().unwrap_or_else(PoisonError::into_inner).next();
                    let Some((number, mut run)) = next else {
                        return;
                    };
                    let output = outputs.join(format!("{number}.txt"));
                    let how = one(&mut run, &output);
                    let mut ended = ended.lock().unwrap_or_else(PoisonError::into_inner);
                    let (shown, tests, failed) = &mut *ended;
                    *tests += show(&run.title, &output, shown);
                    if let Err(why) = how {
                        _ = writeln!(shown, "==> {}: {why}", run.title);
                        failed.push(format!("{}: {why}", run.title));
                    }
                }
            });
        }
    });
    let (_, counted, failed) = ended.into_inner().unwrap_or_else(PoisonError::into_inner);
    *tests += counted;
    match failed.is_empty() {
        true => Ok(()),
        false => Err(Failure::Found(failed.join("; "))),
    }
}

/// Runs one program to its end, or to the limit. Its output goes to a file.
fn one(run: &mut Run, output: &Path) -> Result<(), String> {
    let file = File::create(output).and_then(|file| Ok((file.try_clone()?, file)));
    let (stdout, stderr) = file.map_err(|error| format!("{}: {error}", output.display()))?;
    let command = run.command.stdin(Stdio::null());
    let child = command.stdout(stdout).stderr(stderr).spawn();
    let child = child.map_err(|error| format!("it could not be started: {error}"))?;
    match wait(child, LIMIT) {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("it ended with {status}")),
        Err(why) => Err(why),
    }
}

fn wait(mut child: Child, limit: Duration) -> Result<ExitStatus, String> {
    let begun = Instant::now();
    loop {
        match child.try_wait() {
            Ok(Some(status)) => return Ok(status),
            Ok(None) if begun.elapsed() < limit => thread::sleep(Duration::from_millis(20)),
            Ok(None) => {
                _ = child.kill();
                _ = child.wait();
                return Err(format!("it was killed after {} s", limit.as_secs()));
            }
            Err(error) => return Err(format!("waiting for it: {error}")),
        }
    }
}

/// Shows what a program has said, and counts its tests.
fn show(title: &str, output: &Path, shown: &mut impl Write) -> Tests {
    let said = fs::read(output).unwrap_or_default();
    let said = String::from_utf8_lossy(&said);
    _ = writeln!(shown, "\n    {title}\n{}", said.trim_end());
    let mut tests = Tests::default();
    for line in said.lines() {
        tests += counted(line).unwrap_or_default();
    }
    tests
}

#[cfg(test)]
mod tests {
    use super::*;

    const BUILT: &str = r#"{"reason":"compiler-artifact","package_id":"path+file:///a/b#0.1.0","manifest_path":"/a/b/Cargo.toml","target":{"kind":["test"],"crate_types":["bin"],"name":"versions","src_path":"/a/b/tests/versions.rs","edition":"2024","doc":false,"doctest":false,"test":true},"profile":{"opt_level":"0","debuginfo":1,"debug_assertions":true,"overflow_checks":true,"test":true},"features":[],"filenames":["/t/versions-1"],"executable":"/t/versions-1","fresh":true}"#;

    #[test]
    fn a_test_program_is_read_from_what_cargo_says() {
        let read = Program {
            name: "versions".to_owned(),
            executable: "/t/versions-1".into(),
            package: "/a/b".into(),
        };
        let Some(Ok(found)) = program(BUILT) else {
            panic!("it is not read");
        };
        assert_eq!(found, read);
    }

    #[test]
    fn a_test_program_that_cannot_be_read_is_not_left_out() {
        let odd = BUILT.replace("/t/versions-1", r"/t\\\\/versions-1");
        assert!(matches!(program(&odd), Some(Err(Failure::Found(_)))));
    }

    #[test]
    fn what_is_no_test_program_is_not() {
        let profile = r#""overflow_checks":true,"test":true"#;
        let plain = BUILT.replace(profile, r#""overflow_checks":true,"test":false"#);
        let library = BUILT.replace(r#""executable":"/t/versions-1""#, r#""executable":null"#);
        for message in [plain, library, String::new()] {
            assert!(program(&message).is_none(), "{message}");
        }
    }

    fn shell(script: &str) -> Run {
        let mut command = Command::new("sh");
        command.args(["-c", script]);
        let title = script.to_owned();
        Run { title, command }
    }

    #[test]
    fn all_are_run_and_counted_and_those_that_fail_are_named() {
        let outputs = env::temp_dir().join(format!("everstep-programs-{}", std::process::id()));
        let result = |passed, failed| {
            format!("echo 'test result: ok. {passed} passed; {failed} failed; 0 ignored'")
        };
        let good = shell(&result(3, 0));
        let bad = shell(&format!("{}; exit 7", result(1, 2)));
        let last = shell(&result(4, 0));
        let (mut tests, mut shown) = (Tests::default(), Vec::new());
        let ended = run_all(vec![good, bad, last], &outputs, &mut shown, &mut tests);
        _ = fs::remove_dir_all(&outputs);
        let sum = Tests { passed: 8, failed: 2 };
        assert_eq!(tests, sum);
        let Err(Failure::Found(why)) = ended else {
            panic!("a program that failed was not noticed");
        };
        assert!(why.contains("exit 7"), "{why}");
        assert!(why.contains("exit status: 7"), "{why}");
        let shown = String::from_utf8(shown).unwrap();
        let results = shown.lines().filter(|line| line.starts_with("test result"));
        assert_eq!(results.count(), 3, "{shown}");
    }

    #[test]
    fn a_program_that_hangs_is_killed() {
        let child = Command::new("sleep").arg("1000").spawn().unwrap();
        let why = wait(child, Duration::ZERO).unwrap_err();
        assert!(why.contains("killed"), "{why}");
    }
}
