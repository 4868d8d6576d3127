//! `cargo xtask house`: how large our own code is, and how its parts hang together.
//!
//! Counts by [`crate::source`], the reading of Rust that the layers are checked with:
//!
//! - lines by crate and by top-level module of the core crate ([`lines`]);
//! - the imports between these modules, and the largest cycle of them;
//! - the names at the root of the core crate;
//! - the longest files and functions, and bare `u64`s ([`items`]);
//! - the lines that the two SQL stores have in common ([`shared`]).

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
};

use crate::{
    Failure, root,
    source::{
        self, Build,
        imports::{self, Graph},
    },
};

mod items;
mod json;
mod lines;
mod shared;

use items::Long;
use json::Json;
use lines::Lines;
use shared::Pair;

/// The crate whose modules are counted, and the folders of its two SQL stores.
const CORE: &str = "crates/everstep";
const STORES: [&str; 2] = ["store/sqlite", "store/postgres"];

/// How many of the longest are named.
const LONGEST: usize = 10;

/// All counts.
struct House {
    crates: Vec<(String, Lines)>,
    /// The top-level modules of the core crate; its root is `lib`.
    modules: BTreeMap<String, Lines>,
    core: Lines,
    /// Those of the core crate that a program of a user compiles: without the kit for tests.
    users: Lines,
    graph: Graph,
    cycle: Vec<String>,
    names: Vec<String>,
    files: Vec<Long>,
    functions: Vec<Long>,
    bare_u64: usize,
    shared: Vec<Pair>,
}

/// Counts and prints a table, or JSON.
pub(crate) fn run(arguments: &[String]) -> Result<(), Failure> {
    let (mut as_json, mut at) = (false, root());
    let mut given = arguments.iter();
    while let Some(argument) = given.next() {
        match argument.as_str() {
            "--json" => as_json = true,
            "--root" => {
                let folder = given.next();
                let missing = || Failure::Usage("`--root` needs a folder".into());
                at = PathBuf::from(folder.ok_or_else(missing)?);
            }
            unknown => {
                let message = format!("`house` does not know `{unknown}`");
                return Err(Failure::Usage(message));
            }
        }
    }
    let house = House::read(&at)?;
    match as_json {
        true => println!("{}", house.json()),
        false => house.print(),
    }
    Ok(())
}

impl House {
    fn read(root: &Path) -> Result<House, Failure> {
        let mut crates = Vec::new();
        for package in packages(root)? {
            let lines = lines_of_package(&package)?;
            let name = package.strip_prefix(root).unwrap_or(&package);
            crates.push((name.to_string_lossy().replace('\\', "/"), lines));
        }
        let files = source::read(&root.join(CORE).join("src"), Build::AnyFeature)?;
        if files.is_empty() {
            let message = format!("{} has no {CORE}/src", root.display());
            return Err(Failure::Found(message));
        }
        let (mut modules, mut core) = (BTreeMap::<String, Lines>::new(), Lines::default());
        for file in &files {
            let lines = Lines::of(file);
            core += lines;
            *modules.entry(file.top().to_owned()).or_default() += lines;
        }
        let mut users = Lines::default();
        for file in source::read(&root.join(CORE).join("src"), Build::Users)? {
            users += Lines::of(&file);
        }
        let lib = files.iter().find(|file| file.path == "lib.rs");
        let names = lib.map(imports::exports).unwrap_or_default();
        let mut names: Vec<String> = names.into_iter().map(|export| export.name).collect();
        names.sort();
        names.dedup();
        let graph = imports::graph(imports::modules(&files), &imports::imports(&files));
        Ok(House {
            crates,
            modules,
            core,
            users,
            cycle: imports::largest_cycle(&graph).into_iter().collect(),
            graph,
            names,
            files: longest(files.iter().map(items::file)),
            functions: longest(files.iter().flat_map(items::functions)),
            bare_u64: files.iter().map(items::bare_u64).sum(),
            shared: shared::pairs(&files, STORES),
        })
    }

    fn edges(&self) -> usize {
        self.graph.values().map(|imported| imported.len()).sum()
    }

    fn shared_lines(&self) -> usize {
        self.shared.iter().map(|pair| pair.shared).sum()
    }

    fn json(&self) -> Json {
        let by_name = |lines: &mut dyn Iterator<Item = (&String, &Lines)>| {
            Json::object(lines.map(|(name, lines)| (name.as_str(), lines.json())))
        };
        let long = |longest: &[Long]| {
            let longest = longest.iter().map(|long| {
                let lines = Json::Number(long.lines);
                Json::object([("name", Json::text(&long.name)), ("lines", lines)])
            });
            Json::List(longest.collect())
        };
        let names =
            |names: &[String]| Json::List(names.iter().map(|name| Json::text(name)).collect());
        let imported = self.graph.iter().map(|(module, imported)| {
            let imported: Vec<String> = imported.iter().cloned().collect();
            (module.as_str(), names(&imported))
        });
        let pairs = self.shared.iter().map(|pair| {
            let fields = [
                ("name", Json::text(&pair.name)),
                ("sqlite", Json::Number(pair.lines[0])),
                ("postgres", Json::Number(pair.lines[1])),
                ("shared", Json::Number(pair.shared)),
            ];
            Json::object(fields)
        });
        Json::object([
            ("core_code_lines", Json::Number(self.core.code)),
            ("users_code_lines", Json::Number(self.users.code)),
            ("cycle", Json::Number(self.cycle.len())),
            ("root_names", Json::Number(self.names.len())),
            ("shared_store_lines", Json::Number(self.shared_lines())),
            ("bare_u64", Json::Number(self.bare_u64)),
            ("import_edges", Json::Number(self.edges())),
            ("cycle_members", names(&self.cycle)),
            ("longest_files", long(&self.files)),
            ("longest_functions", long(&self.functions)),
            ("crates", by_name(&mut self.crates.iter().map(|(name, lines)| (name, lines)))),
            ("modules", by_name(&mut self.modules.iter())),
            ("imports", Json::object(imported)),
            ("names", names(&self.names)),
            ("shared_by_file", Json::List(pairs.collect())),
        ])
    }

    fn print(&self) {
        println!("{:<28}{}", "crate", Lines::TITLES);
        for (name, lines) in &self.crates {
            println!("{name:<28}{lines}");
        }
        println!("\n{:<28}{}", format!("module of {CORE}"), Lines::TITLES);
        for (name, lines) in &self.modules {
            println!("{name:<28}{lines}");
        }
        println!("{:<28}{}", "all", self.core);
        println!("{:<28}{}", "in users' builds", self.users);
        println!("\nimports between modules: {}", self.edges());
        println!("largest cycle: {} ({})", self.cycle.len(), self.cycle.join(", "));
        println!("names at the root: {}", self.names.len());
        println!("bare u64 fields and parameters: {}", self.bare_u64);
        for (title, longest) in [("files", &self.files), ("functions", &self.functions)] {
            println!("\nlongest {title}");
            for Long { name, lines } in longest {
                println!("{lines:>8}  {name}");
            }
        }
        println!(
            "\n{:<28}{:>10}{:>10}{:>10}",
            "shared by the SQL stores", "sqlite", "postgres", "shared"
        );
        for Pair { name, lines: [sqlite, postgres], shared } in &self.shared {
            println!("{name:<28}{sqlite:>10}{postgres:>10}{shared:>10}");
        }
        println!("{:<48}{:>10}", "all", self.shared_lines());
    }
}

fn longest(all: impl Iterator<Item = Long>) -> Vec<Long> {
    let mut all: Vec<Long> = all.collect();
    all.sort_by(|a, b| b.lines.cmp(&a.lines).then_with(|| a.name.cmp(&b.name)));
    all.truncate(LONGEST);
    all
}

/// The folders below this one that are packages, but for itself and for what was built.
fn packages(folder: &Path) -> Result<Vec<PathBuf>, Failure> {
    let entries = fs::read_dir(folder)
        .map_err(|error| Failure::Found(format!("{}: {error}", folder.display())))?;
    let mut folders: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    folders.retain(|path| {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        path.is_dir() && !name.starts_with('.') && name != "target"
    });
    folders.sort();
    let mut found = Vec::new();
    for folder in folders {
        if folder.join("Cargo.toml").exists() {
            found.push(folder.clone());
        }
        found.extend(packages(&folder)?);
    }
    Ok(found)
}

/// All lines of a package: those below `tests` are tests, others as [`crate::source`] reads them.
fn lines_of_package(package: &Path) -> Result<Lines, Failure> {
    let mut lines = Lines::default();
    for file in source::read(&package.join("src"), Build::AnyFeature)? {
        lines += Lines::of(&file);
    }
    for mut file in source::read(package, Build::AnyFeature)? {
        if !file.path.starts_with("src/") {
            file.test |= file.path.starts_with("tests/");
            lines += Lines::of(&file);
        }
    }
    Ok(lines)
}
