//! How many crash points the tests have tried, for each primitive and store.
//!
//! Tests through `crash_everywhere` that say what they are a test of append lines to a file (see
//! `crates/everstep/src/testing/crash_points.rs`); this reads them once all tests have passed. A
//! primitive that no test crashed on a store that it works on is a failure, and so is one that is
//! not on the list here.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::Failure;

/// The variable that names the file.
pub(crate) const POINTS_FILE: &str = "EVERSTEP_CRASH_POINTS";

const MEMORY: &str = "memory";
const SQLITE: &str = "SQLite";
const POSTGRES: &str = "PostgreSQL";
/// Not asked of every primitive: what a cut changes is below all of them.
const POWER_CUTS: &str = "power cuts";

/// Everything that a workflow can do or that can be done to it, and the stores that it works on.
const PRIMITIVES: &[(&str, &[&str])] = &[
    ("step", EVERY),
    ("blocking", EVERY),
    ("spawn", EVERY),
    ("sleep", EVERY),
    ("listen", EVERY),
    ("receive and reply", EVERY),
    ("send", EVERY),
    ("join", EVERY),
    ("map", EVERY),
    ("race", EVERY),
    ("attempt", EVERY),
    ("repeat", EVERY),
    ("version", EVERY),
    ("now and random", EVERY),
    ("state", EVERY),
    ("emit", EVERY),
    ("step emit", EVERY),
    ("transaction", &[SQLITE]),
    ("child", EVERY),
    ("detached child", EVERY),
    ("finished", EVERY),
    ("continue_as", EVERY),
    ("event", EVERY),
    ("publish", EVERY),
    ("deferred", EVERY),
    ("peek", EVERY),
    ("enqueue", EVERY),
    ("limit", EVERY),
    ("rollback", EVERY),
    ("cancel", EVERY),
    ("pause and resume", EVERY),
    ("retry", EVERY),
    ("deadline", EVERY),
];

const EVERY: &[&str] = &[MEMORY, SQLITE, POSTGRES];

/// The points of each primitive on each store.
type Points = BTreeMap<(String, String), Tried>;

/// How many points were tried, and how many there are: more where each takes long.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Tried {
    points: u64,
    of: u64,
}

impl Tried {
    fn add(&mut self, more: Tried) {
        self.points += more.points;
        self.of += more.of;
    }

    fn shown(self) -> String {
        match self {
            Tried { points: 0, .. } => "-".to_owned(),
            Tried { points, of } if points == of => points.to_string(),
            Tried { points, of } => format!("{points} of {of}"),
        }
    }
}

/// Makes an empty file for the points in this directory.
pub(crate) fn begin(directory: &Path) -> Result<PathBuf, Failure> {
    let file = directory.join("crash-points.tsv");
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(&file, ""))
        .map_err(|error| Failure::Found(format!("{}: {error}", file.display())))?;
    Ok(file)
}

/// Prints what is in the file, and fails if a primitive was not tried.
pub(crate) fn check(file: &Path) -> Result<(), Failure> {
    let lines = fs::read_to_string(file)
        .map_err(|error| Failure::Found(format!("{}: {error}", file.display())))?;
    let points = read(&lines)?;
    print!("{}", table(&points));
    let missing = missing(&points);
    if missing.is_empty() {
        return Ok(());
    }
    let missing = missing.join("; ");
    Err(Failure::Found(format!(
        "these crash points are missing: {missing}; say `.of(&[\"..\"])` in a `CrashTest` of it"
    )))
}

fn read(lines: &str) -> Result<Points, Failure> {
    let mut points = Points::new();
    for line in lines.lines() {
        let parts: Vec<&str> = line.split('\t').collect();
        let number = |text: &str| text.parse::<u64>().ok();
        let read = match parts[..] {
            [primitive, store, points, of] => number(points)
                .zip(number(of))
                .map(|(points, of)| (primitive, store, Tried { points, of })),
            _ => None,
        };
        let Some((primitive, store, tried)) = read else {
            let message = format!("`{line}` is not a count of crash points");
            return Err(Failure::Found(message));
        };
        points.entry((primitive.to_owned(), store.to_owned())).or_default().add(tried);
    }
    Ok(points)
}

fn tried(points: &Points, primitive: &str, store: &str) -> Tried {
    let key = (primitive.to_owned(), store.to_owned());
    points.get(&key).copied().unwrap_or_default()
}

fn table(points: &Points) -> String {
    let mut table = format!(
        "\n{:<18} | {MEMORY:>8} | {SQLITE:>8} | {POSTGRES:>13} | {POWER_CUTS}\n",
        "crash points of"
    );
    let mut sums = [Tried::default(); 4];
    for (primitive, _) in PRIMITIVES {
        let row =
            [MEMORY, SQLITE, POSTGRES, POWER_CUTS].map(|store| tried(points, primitive, store));
        for (sum, tried) in sums.iter_mut().zip(row) {
            sum.add(tried);
        }
        table += &line(primitive, row);
    }
    table + &line("all", sums)
}

fn line(name: &str, row: [Tried; 4]) -> String {
    let [memory, sqlite, postgres, cuts] = row.map(Tried::shown);
    format!("{name:<18} | {memory:>8} | {sqlite:>8} | {postgres:>13} | {cuts:>10}\n")
}

/// What was not tried, and what is not on the list.
fn missing(points: &Points) -> Vec<String> {
    let mut missing = Vec::new();
    for (primitive, stores) in PRIMITIVES {
        for store in stores.iter().filter(|store| tried(points, primitive, store).points == 0) {
            missing.push(format!("`{primitive}` in {store}"));
        }
    }
    let known = |name: &str| PRIMITIVES.iter().any(|(primitive, _)| *primitive == name);
    for (primitive, _) in points.keys().filter(|(primitive, _)| !known(primitive)) {
        missing.push(format!("`{primitive}` on the list of xtask/src/points.rs"));
    }
    missing.dedup();
    missing
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Lines that name every primitive on every store that it works on.
    fn all() -> Vec<String> {
        let stores = |(primitive, stores): &(&'static str, &'static [&'static str])| {
            let primitive = *primitive;
            let lines = stores.iter().map(move |store| format!("{primitive}\t{store}\t3\t5\n"));
            lines.collect::<Vec<_>>()
        };
        PRIMITIVES.iter().flat_map(stores).collect()
    }

    #[test]
    fn a_primitive_without_points_on_one_store_is_missing() {
        assert!(missing(&read(&all().concat()).unwrap()).is_empty());
        let without = all().into_iter().filter(|line| !line.starts_with("send\tSQLite"));
        let points = read(&without.collect::<String>()).unwrap();
        assert_eq!(missing(&points), ["`send` in SQLite"]);
        let zero = all().concat().replace("send\tmemory\t3", "send\tmemory\t0");
        assert_eq!(missing(&read(&zero).unwrap()), ["`send` in memory"]);
    }

    #[test]
    fn nothing_at_all_is_missing_too() {
        assert!(missing(&Points::new()).len() > PRIMITIVES.len());
    }

    #[test]
    fn a_primitive_that_is_not_on_the_list_is_told() {
        let points = read(&(all().concat() + "dance\tmemory\t3\t3\n")).unwrap();
        assert_eq!(missing(&points).len(), 1);
        assert!(missing(&points)[0].contains("`dance`"));
    }

    #[test]
    fn points_of_several_tests_are_added() {
        let lines = "step\tmemory\t3\t3\nstep\tmemory\t4\t4\nstep\tPostgreSQL\t5\t9\n";
        let points = read(lines).unwrap();
        assert_eq!(tried(&points, "step", MEMORY), Tried { points: 7, of: 7 });
        let line = "step               |        7 |        - |        5 of 9 |          -";
        assert!(table(&points).contains(line), "{}", table(&points));
        assert!(read("step memory 3 3").is_err());
        assert!(read("step\tmemory\t3").is_err());
    }
}
