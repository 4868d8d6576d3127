//! `cargo xtask test`: what is asked of every change.

use std::{
    fs, io,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use everstep_pg::DATABASE_URL;

use crate::{
    Failure, architecture,
    cargo::{self, Tests, cargo},
    examples, points,
    programs::{self, Program, Run},
    root,
    stores::{self, Database},
};

const FORMAT: Check = Check::new("format", "the code is formatted", format);

const ARCHITECTURE: Check = Check::new(
    "architecture",
    "every path in ARCHITECTURE.md exists, and modules import what its table allows",
    check_architecture,
);

/// Everything that is asked, the quickest to answer first. One target directory and the `dev`
/// profile throughout, so that each builds on what those before it have built.
const CHECKS: &[Check] = &[
    FORMAT,
    Check::new("clippy", "no lint fires", clippy),
    Check::new("features", "each feature builds alone, none and all", features),
    Check::new(
        "tests",
        "all tests pass on every store and in a browser, and every primitive was crashed on each",
        tests,
    ),
    Check::new("doc-tests", "the code in the docs runs", doc_tests),
    Check::new("examples", "every example runs to its end", run_examples),
    Check::new("checkout-kill", "`checkout` goes on wherever it is killed", kill_checkout),
    Check::new(
        "ledger-kill",
        "no ledger loses or makes a cent, wherever it is killed",
        kill_ledger,
    ),
    Check::new("docs", "the docs build, and no link in them is dead", docs),
    ARCHITECTURE,
    Check::new("licences", "no licence or crate that we do not want", licences),
];

/// What `--quick` asks instead, for between two changes: what a minute or so is enough for.
const QUICK: &[Check] = &[
    FORMAT,
    ARCHITECTURE,
    Check::new(
        "library",
        "the library's own tests pass without a database, and those of every feature in memory",
        library,
    ),
];

/// The programs of the check `library`, and what is left out of each: tests that need a database, and those
/// in which power is cut under files, which take most of the time.
const QUICK_PROGRAMS: [(&str, &str); 2] =
    [("everstep", "store::postgres::"), ("any_store", "power_cut")];

/// The test program whose tests take their store from `testing::store`: at least one file for each
/// feature. It is run in memory with all other programs, then again on each of the other stores.
const ON_ANY_STORE: Part = ("any_store", &[]);

/// The tests that crash every primitive, which are made in memory and on a file in the first pass.
const CRASHING: Part = ("crashes", &["crash_primitives::", "queues_crash::"]);

/// A test program, and how the names of its tests begin; all of them if nothing is said.
type Part = (&'static str, &'static [&'static str]);

/// The stores of the later passes, as `testing::store` calls them, and what is made on each.
const PASSES: &[(&str, &[Part])] =
    &[("sqlite", &[ON_ANY_STORE]), ("postgres", &[ON_ANY_STORE, CRASHING])];

/// The programs that take longest, with their stores. What is missing here only makes it all longer.
const LONGEST: &[(&str, Option<&str>)] = &[
    ("named_stores", None),
    ("any_store", Some("postgres")),
    ("everstep_conformance", None),
    ("any_store", None),
    ("everstep", None),
    ("crashes", Some("postgres")),
    ("cli", None),
    ("browser", None),
    ("crashes", None),
    ("instance", None),
    ("any_store", Some("sqlite")),
    ("server", None),
    ("everstep-model", None),
    ("everstep-sim", None),
];

/// The variable that names the store of a pass.
const STORE: &str = "EVERSTEP_TEST_STORE";

/// One thing that is asked.
struct Check {
    name: &'static str,
    asks: &'static str,
    run: fn(&mut Checking) -> Result<(), Failure>,
}

impl Check {
    const fn new(
        name: &'static str,
        asks: &'static str,
        run: fn(&mut Checking) -> Result<(), Failure>,
    ) -> Self {
        Self { name, asks, run }
    }
}

/// The checks under way.
struct Checking {
    root: PathBuf,
    /// All tests so far.
    tests: Tests,
    /// For the checks that need one, from the first of them on.
    database: Option<Database>,
    /// Why the check under way was not made, if it was not.
    skipped: Option<&'static str>,
}

impl Checking {
    /// The database for tests, which is started by the first check that asks.
    fn database_url(&mut self) -> Result<String, Failure> {
        if self.database.is_none() {
            self.database = Some(Database::find_or_start()?);
        }
        Ok(self.database.as_ref().map(Database::url).unwrap_or_default())
    }
}

pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    if arguments.iter().any(|argument| argument == "--list") {
        list(CHECKS);
        println!("\nWith `--quick`:");
        list(QUICK);
        return Ok(());
    }
    let checks = chosen(arguments)?;
    let mut checking =
        Checking { root: root(), tests: Tests::default(), database: None, skipped: None };
    let started = Instant::now();
    for check in checks {
        run_one(check, &mut checking)?;
    }
    println!("\n==> all of it took {}", shown(started.elapsed()));
    println!("{} passed, {} failed", checking.tests.passed, checking.tests.failed);
    Ok(())
}

fn list(checks: &[Check]) {
    for check in checks {
        println!("{:<14}{}", check.name, check.asks);
    }
}

/// The checks with these names, in their own order; all of them if there are none, and the quick ones for
/// `--quick`.
fn chosen(names: &[String]) -> Result<Vec<&'static Check>, Failure> {
    if names == ["--quick"] {
        return Ok(QUICK.iter().collect());
    }
    let known = |name: &String| CHECKS.iter().any(|check| check.name == name);
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        let message = format!("`{unknown}` is not a check; see `cargo xtask test --list`");
        return Err(Failure::Usage(message));
    }
    let wanted = |check: &&Check| names.is_empty() || names.iter().any(|name| name == check.name);
    Ok(CHECKS.iter().filter(wanted).collect())
}

fn run_one(check: &Check, checking: &mut Checking) -> Result<(), Failure> {
    println!("\n==> {}: {}", check.name, check.asks);
    let started = Instant::now();
    let result = (check.run)(checking);
    let time = shown(started.elapsed());
    match result {
        Ok(()) => {
            match checking.skipped.take() {
                Some(why) => println!("==> {} skipped: {why}", check.name),
                None => println!("==> {} passed in {time}", check.name),
            }
            Ok(())
        }
        Err(Failure::Found(why) | Failure::Usage(why)) => {
            let Tests { passed, failed } = checking.tests;
            let name = check.name;
            Err(Failure::Found(format!(
                "the check `{name}` failed after {time}: {why}\n\
                 {passed} tests had passed and {failed} failed; run it alone with \
                 `cargo xtask test {name}`"
            )))
        }
    }
}

fn shown(time: Duration) -> String {
    format!("{:.1} s", time.as_secs_f64())
}

fn format(checking: &mut Checking) -> Result<(), Failure> {
    cargo::succeed(cargo(&checking.root, &["fmt", "--all", "--check"]))
}

fn clippy(checking: &mut Checking) -> Result<(), Failure> {
    lint(&checking.root, &["--workspace", "--all-targets"])
}

/// Code that only one feature uses is unused without it, so warnings are denied here too.
fn features(checking: &mut Checking) -> Result<(), Failure> {
    let manifest = library_manifest(&checking.root)?;
    let library = ["--package", "everstep", "--lib"];
    let lint_with = |features: &[&str]| {
        println!("    everstep {}", features.join(" "));
        lint(&checking.root, &[&library, features].concat())
    };
    lint_with(&["--no-default-features"])?;
    for feature in optional_features(&manifest) {
        lint_with(&["--no-default-features", "--features", feature])?;
    }
    // Each has code that is there only with the other.
    lint_with(&["--no-default-features", "--features", "sqlite,postgres"])?;
    // With all of them it was built by the check before this one. These are as most will build them.
    let others = ["everstep-cli", "everstep-examples"].map(|name| ["--package", name]);
    lint(&checking.root, &[&others.concat()[..], &["--bins", "--examples"]].concat())
}

fn library_manifest(root: &Path) -> Result<String, Failure> {
    let manifest = root.join("crates/everstep/Cargo.toml");
    fs::read_to_string(&manifest)
        .map_err(|error| Failure::Found(format!("{}: {error}", manifest.display())))
}

fn lint(root: &Path, what: &[&str]) -> Result<(), Failure> {
    let arguments = [&["clippy"], what, &["--", "-D", "warnings"]].concat();
    cargo::succeed(cargo(root, &arguments))
}

/// The features that a manifest names, but for `default`.
fn optional_features(manifest: &str) -> impl Iterator<Item = &str> {
    manifest
        .lines()
        .skip_while(|line| line.trim() != "[features]")
        .skip(1)
        .take_while(|line| !line.starts_with('['))
        .filter(|line| !line.starts_with('#'))
        .filter_map(|line| line.split_once('='))
        .map(|(name, _)| name.trim())
        .filter(|name| *name != "default")
}

fn tests(checking: &mut Checking) -> Result<(), Failure> {
    let target = cargo::target_directory(&checking.root);
    let noted = Noted {
        points: points::begin(&target)?,
        stores: stores::begin(&target)?,
        database: checking.database_url()?,
    };
    let programs = programs::build(&checking.root, &["--workspace", "--tests"])?;
    println!("    {} test programs are built", programs.len());
    // Stores are still open when a test program ends, so their files are removed here.
    let files = target.join("files-of-tests");
    fs::create_dir_all(&files)
        .map_err(|error| Failure::Found(format!("{}: {error}", files.display())))?;
    let runs = runs(&checking.root, &programs, &noted, &files)?;
    let outputs = target.join("output-of-tests");
    let ended = programs::run_all(runs, &outputs, io::stdout(), &mut checking.tests);
    _ = fs::remove_dir_all(&files);
    ended?;
    if checking.tests.passed == 0 {
        let why = "no test was counted; has the form of their output changed?";
        return Err(Failure::Found(why.into()));
    }
    let manifest = library_manifest(&checking.root)?;
    let features: Vec<&str> = optional_features(&manifest).collect();
    points::check(&noted.points)?;
    stores::check(&noted.stores, &features)
}

/// Where tests note what they did, and the database that they do it in.
struct Noted {
    points: PathBuf,
    stores: PathBuf,
    database: String,
}

/// All programs in memory, and those of the later passes on their stores: the longest first, so that
/// none of them is left alone in the end.
fn runs(
    root: &Path,
    programs: &[Program],
    noted: &Noted,
    files: &Path,
) -> Result<Vec<Run>, Failure> {
    let libraries = programs::libraries(root);
    let mut all: Vec<(&str, Option<&str>, Run)> = Vec::new();
    for program in programs {
        let run = program.run("", &libraries);
        all.push((&program.name, None, run));
    }
    for (store, parts) in PASSES {
        for (name, tests) in *parts {
            let found = programs.iter().find(|program| program.name == *name);
            let program = found.ok_or_else(|| {
                Failure::Found(format!("there is no test program `{name}` to run on {store}"))
            })?;
            let mut run = program.run(&format!("on {store}"), &libraries);
            run.env(STORE, store);
            run.env("TMPDIR", files);
            // Power is cut under files alone, which the first pass has done.
            run.arguments(&["--skip", "power_cut"]);
            run.arguments(tests);
            all.push((&program.name, Some(store), run));
        }
    }
    for (_, store, run) in &mut all {
        run.env(points::POINTS_FILE, &noted.points);
        run.env(stores::STORES_FILE, &noted.stores);
        run.env(DATABASE_URL, &noted.database);
        if store.is_none() {
            run.env_remove(STORE);
        }
    }
    let place = |name: &str, store: Option<&str>| {
        let place = LONGEST.iter().position(|long| *long == (name, store));
        place.unwrap_or(LONGEST.len())
    };
    all.sort_by_key(|(name, store, _)| place(name, *store));
    Ok(all.into_iter().map(|(_, _, run)| run).collect())
}

/// As `cargo test --package everstep --all-features` builds them, so that the two share what is built.
fn library(checking: &mut Checking) -> Result<(), Failure> {
    let which = ["--package", "everstep", "--lib", "--test", "any_store"];
    let programs = programs::build(&checking.root, &which)?;
    let libraries = programs::libraries(&checking.root);
    let mut runs = Vec::new();
    for program in &programs {
        let mut run = program.run("", &libraries);
        let left_out = QUICK_PROGRAMS.iter().find(|(name, _)| *name == program.name);
        if let Some((_, tests)) = left_out {
            run.arguments(&["--skip", tests]);
        }
        run.env_remove(STORE);
        runs.push(run);
    }
    let outputs = cargo::target_directory(&checking.root).join("output-of-tests");
    programs::run_all(runs, &outputs, io::stdout(), &mut checking.tests)
}

fn doc_tests(checking: &mut Checking) -> Result<(), Failure> {
    let mut tests = cargo(
        &checking.root,
        &["test", "--workspace", "--all-features", "--doc", "--no-fail-fast"],
    );
    tests.env(DATABASE_URL, checking.database_url()?);
    cargo::succeed_counting(tests, &mut checking.tests)
}

fn run_examples(checking: &mut Checking) -> Result<(), Failure> {
    let url = checking.database_url()?;
    examples::run_all(&checking.root, &url)
}

fn kill_checkout(checking: &mut Checking) -> Result<(), Failure> {
    examples::kill_checkout(&checking.root)
}

fn kill_ledger(checking: &mut Checking) -> Result<(), Failure> {
    let url = checking.database_url()?;
    examples::kill_ledger(&checking.root, &url)
}

/// Modules are private and name each other in their headers, so private items are documented too.
fn docs(checking: &mut Checking) -> Result<(), Failure> {
    let mut docs =
        cargo(&checking.root, &["doc", "--workspace", "--no-deps", "--document-private-items"]);
    docs.env("RUSTDOCFLAGS", "-D warnings");
    cargo::succeed(docs)
}

fn check_architecture(checking: &mut Checking) -> Result<(), Failure> {
    architecture::check(&checking.root)
}

/// Advisories are left out: they need the network, and change without a change of ours.
fn licences(checking: &mut Checking) -> Result<(), Failure> {
    let installed = cargo(&checking.root, &["deny", "--version"]).output();
    if !installed.is_ok_and(|output| output.status.success()) {
        checking.skipped = Some("cargo-deny is not installed (`cargo install cargo-deny`)");
        return Ok(());
    }
    cargo::succeed(cargo(&checking.root, &["deny", "check", "bans", "licenses", "sources"]))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(arguments: &[&str]) -> Vec<&'static str> {
        let arguments: Vec<String> = arguments.iter().map(ToString::to_string).collect();
        let checks = chosen(&arguments).unwrap();
        checks.iter().map(|check| check.name).collect()
    }

    #[test]
    fn without_names_everything_is_asked() {
        assert_eq!(names(&[]).len(), CHECKS.len());
    }

    #[test]
    fn the_quick_checks_are_few_and_need_no_database() {
        assert_eq!(names(&["--quick"]), ["format", "architecture", "library"]);
    }

    #[test]
    fn the_quick_checks_take_no_names() {
        for names in [["--quick", "docs"], ["docs", "--quick"]] {
            let names = names.map(String::from);
            assert!(matches!(chosen(&names), Err(Failure::Usage(_))));
        }
    }

    #[test]
    fn what_the_quick_checks_leave_out_is_there() {
        let library = root().join("crates/everstep");
        assert!(library.join("src/store/postgres").exists());
        let modules = fs::read_dir(library.join("tests/any_store")).unwrap();
        let cuts = modules.filter(|module| {
            let path = module.as_ref().unwrap().path();
            fs::read_to_string(path).is_ok_and(|code| code.contains("power_cut"))
        });
        assert!(cuts.count() > 0);
    }

    #[test]
    fn named_checks_are_run_in_their_own_order() {
        assert_eq!(names(&["docs", "format"]), ["format", "docs"]);
    }

    #[test]
    fn every_part_of_a_pass_exists() {
        let programs = root().join("crates/everstep/tests");
        for (program, tests) in PASSES.iter().flat_map(|(_, parts)| *parts) {
            let program = programs.join(program);
            assert!(program.join("main.rs").exists(), "{program:?}");
            for module in *tests {
                let file = format!("{}.rs", module.trim_end_matches("::"));
                assert!(program.join(&file).exists(), "{program:?}: {file}");
            }
        }
    }

    #[test]
    fn features_are_read_from_the_manifest() {
        let manifest = "[package]\nname = \"x\"\n\n[features]\ndefault = [\"a\"]\n## About a.\n\
                        a = [\"dep:z\"]\nb-c = []\n\n[dependencies]\nd = \"1\"\n";
        assert_eq!(optional_features(manifest).collect::<Vec<_>>(), ["a", "b-c"]);
        assert_eq!(optional_features("[package]\nname = \"x\"").count(), 0);
    }
}
