//! The table *module, may import* of ARCHITECTURE.md, compared with the code.
//!
//! The table stands below the heading [`HEADING`] and ends before the next heading. Its columns
//! `module` and `may import` are found by their titles; other columns are for readers. A cell names
//! modules in backticks; a row that names no module, such as the line below the titles, is passed over.
//!
//! The table says neither too little nor too much: an import that it does not allow fails, and so does
//! an allowed import that the code does not have.

use std::{collections::BTreeSet, path::Path};

use crate::{
    Failure,
    source::{
        self, Build,
        imports::{self, Graph, Import},
    },
};

/// The heading that the table stands below.
const HEADING: &str = "## Layers";

/// The sources that the table is about.
const SOURCES: &str = "crates/everstep/src";

/// The largest cycle that the table may have: modules that belong together.
const CYCLE_MAX: usize = 3;

/// Compares the table in the text of ARCHITECTURE.md with the imports of the core crate.
pub(super) fn check(root: &Path, document: &str) -> Result<(), Failure> {
    let Some(allowed) = table(document).map_err(Failure::Found)? else {
        let missing = format!("ARCHITECTURE.md has no table below `{HEADING}`");
        return Err(Failure::Found(missing));
    };
    let files = source::read(&root.join(SOURCES), Build::AnyFeature)?;
    let imports = imports::imports(&files);
    let problems = problems(&allowed, &imports::modules(&files), &imports);
    if !problems.is_empty() {
        return Err(Failure::Found(format!(
            "the table below `{HEADING}` in ARCHITECTURE.md and the imports in {SOURCES} differ:\n  {}",
            problems.join("\n  ")
        )));
    }
    let edges: usize = allowed.values().map(BTreeSet::len).sum();
    println!("    {} modules, {edges} imports", allowed.len());
    Ok(())
}

/// Each difference between the table and the code, as a line.
fn problems(allowed: &Graph, modules: &BTreeSet<String>, imports: &[Import]) -> Vec<String> {
    let mut problems = Vec::new();
    for module in modules.iter().filter(|module| !allowed.contains_key(*module)) {
        let its = imports.iter().filter(|import| import.from == *module);
        let names: BTreeSet<String> = its.map(|import| format!("`{}`", import.to)).collect();
        let names = names.into_iter().collect::<Vec<_>>().join(", ");
        problems.push(format!("no row | `{module}` | {names} |"));
    }
    for module in allowed.keys().filter(|module| !modules.contains(*module)) {
        problems.push(format!("`{module}` has a row and is no module"));
    }
    for Import { from, to, file, line } in imports {
        if allowed.get(from).is_some_and(|allowed| !allowed.contains(to)) {
            let place = format!("{SOURCES}/{file}:{line}");
            problems.push(format!("{place}: `{from}` may not import `{to}`"));
        }
    }
    for (from, targets) in allowed.iter().filter(|(from, _)| modules.contains(*from)) {
        for to in targets {
            if !imports.iter().any(|import| import.from == *from && import.to == *to) {
                problems.push(format!("`{from}` may import `{to}` and does not"));
            }
        }
    }
    let cycle = imports::largest_cycle(allowed);
    if cycle.len() > CYCLE_MAX {
        let members: Vec<String> = cycle.into_iter().collect();
        let (count, members) = (members.len(), members.join("`, `"));
        problems.push(format!("the table allows a cycle of {count} modules: `{members}`"));
    }
    problems
}

/// Reads the table; `None` if the heading or a table below it is missing.
fn table(document: &str) -> Result<Option<Graph>, String> {
    let section = document
        .lines()
        .skip_while(|line| line.trim_end() != HEADING)
        .skip(1)
        .take_while(|line| !line.starts_with('#'));
    let mut rows = section
        .map(str::trim)
        .filter(|line| line.starts_with('|'))
        .map(|line| line.trim_matches('|').split('|').map(str::trim).collect::<Vec<_>>());
    let Some(titles) = rows.next() else {
        return Ok(None);
    };
    let column = |title: &str| {
        let found = titles.iter().position(|cell| *cell == title);
        found.ok_or_else(|| format!("the table below `{HEADING}` has no column `{title}`"))
    };
    let (module, may_import) = (column("module")?, column("may import")?);
    let mut allowed = Graph::new();
    for row in rows {
        let names = |column: usize| {
            let cell = row.get(column).copied().unwrap_or_default();
            cell.split('`').skip(1).step_by(2).map(String::from)
        };
        for name in names(module) {
            if allowed.insert(name.clone(), names(may_import).collect()).is_some() {
                return Err(format!("the table below `{HEADING}` has two rows for `{name}`"));
            }
        }
    }
    Ok(Some(allowed))
}

#[cfg(test)]
mod tests {
    use super::*;

    const DOCUMENT: &str = "\
# Architecture

| module | may import |
| --- | --- |
| `none` | of this table |

## Layers

Text.

| module | may import | why |
| --- | --- | --- |
| `run` | `history`, `time` | |
| `history` | `time` | `x` |
| `time` | | |

## Next
| `other` | `run` | |
";

    fn import(from: &str, to: &str) -> Import {
        Import { from: from.into(), to: to.into(), file: "run.rs".into(), line: 7 }
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn table_is_read_from_its_section_alone() {
        let table = table(DOCUMENT).unwrap().unwrap();
        assert_eq!(
            table.keys().cloned().collect::<BTreeSet<_>>(),
            set(&["history", "run", "time"])
        );
        assert_eq!(table["run"], set(&["history", "time"]));
        assert_eq!(table["time"], set(&[]));
    }

    #[test]
    fn missing_table_and_missing_column_are_told_apart() {
        assert!(table("# A\n\n## Layers\n\nText.\n").unwrap().is_none());
        assert!(table("## Layers\n| module | imports |\n").is_err());
        assert!(table("## Layers\n| module | may import |\n| `a` | |\n| `a` | |\n").is_err());
    }

    #[test]
    fn every_difference_is_named() {
        let table = table(DOCUMENT).unwrap().unwrap();
        let modules = set(&["history", "run", "time"]);
        let as_allowed = [("run", "history"), ("run", "time"), ("history", "time")];
        let as_allowed = || as_allowed.map(|(from, to)| import(from, to)).into_iter();
        let found = |modules: &BTreeSet<String>, imports: Vec<Import>| {
            problems(&table, modules, &imports).join("\n")
        };
        assert_eq!(found(&modules, as_allowed().collect()), "");
        assert_eq!(
            found(&modules, as_allowed().chain([import("time", "run")]).collect()),
            "crates/everstep/src/run.rs:7: `time` may not import `run`"
        );
        assert_eq!(
            found(&modules, as_allowed().skip(1).collect()),
            "`run` may import `history` and does not"
        );
        assert_eq!(
            found(
                &set(&["history", "run", "time", "new"]),
                as_allowed().chain([import("new", "time")]).collect()
            ),
            "no row | `new` | `time` |"
        );
        assert_eq!(
            found(&set(&["history", "run"]), as_allowed().collect()),
            "`time` has a row and is no module"
        );
    }

    #[test]
    fn cycle_of_more_than_three_is_named_with_its_members() {
        let ring = |names: &[&str]| -> Graph {
            let next = names.iter().cycle().skip(1);
            let edges = names.iter().zip(next);
            edges.map(|(from, to)| (from.to_string(), set(&[to]))).collect()
        };
        let found = |table: &Graph| {
            let modules = table.keys().cloned().collect();
            let imports: Vec<Import> = table
                .iter()
                .flat_map(|(from, to)| to.iter().map(move |to| import(from, to)))
                .collect();
            problems(table, &modules, &imports)
        };
        assert_eq!(found(&ring(&["a", "b", "c"])), [""; 0]);
        assert_eq!(
            found(&ring(&["a", "b", "c", "d"])),
            ["the table allows a cycle of 4 modules: `a`, `b`, `c`, `d`"]
        );
    }
}
