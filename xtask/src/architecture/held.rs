//! Small promises about the tree that no compiler holds: each is one look at some files.

use std::{fs, path::Path};

use crate::{
    Failure,
    source::{self, Build, File},
};

/// Compares what was promised with the files.
pub(crate) fn check(root: &Path) -> Result<(), Failure> {
    let core = root.join("crates/everstep");
    let mut problems = Vec::new();
    for schema in ["sqlite", "postgres"] {
        let path = core.join(format!("src/store/{schema}/format_1.sql"));
        let foreign = unprefixed(&read(&path)?);
        problems.extend(
            foreign
                .iter()
                .map(|name| format!("{}: `{name}` lacks the prefix `everstep_`", path.display())),
        );
    }
    let features = default_features(&read(&core.join("Cargo.toml"))?);
    for feature in ["testing", "sabotage"] {
        if features.iter().any(|it| it == feature) {
            problems.push(format!("the feature `{feature}` is on by default"));
        }
    }
    // From `src`, since a file is test code if its module is.
    for file in source::read(&core.join("src"), Build::AnyFeature)? {
        if file.path.starts_with("store/") && !MAY_MATCH.contains(&&*file.path) {
            problems.extend(patterns_of_writes(&file).iter().map(|line| {
                format!("{}:{line} matches `Write`, as `store/apply.rs` alone should", file.path)
            }));
        }
    }
    match problems.is_empty() {
        true => Ok(()),
        false => Err(Failure::Found(problems.join("\n"))),
    }
}

/// Where the writes of a batch are told apart: they are applied, or their locks are chosen.
const MAY_MATCH: &[&str] = &["store/apply.rs", "store/postgres/locks.rs"];

fn read(path: &Path) -> Result<String, Failure> {
    fs::read_to_string(path).map_err(|error| Failure::Found(format!("{}: {error}", path.display())))
}

/// The names of what a schema creates that lack our prefix: an application may have tables beside ours.
fn unprefixed(sql: &str) -> Vec<String> {
    let kinds = ["TABLE", "INDEX", "VIEW", "SEQUENCE", "TRIGGER", "FUNCTION", "TYPE"];
    let between = ["UNIQUE", "OR", "REPLACE", "IF", "NOT", "EXISTS", "UNLOGGED"];
    let mut foreign = Vec::new();
    for statement in sql.split("CREATE ").skip(1) {
        let mut words = statement.split_whitespace().filter(|word| !between.contains(word));
        let (Some(kind), Some(name)) = (words.next(), words.next()) else {
            continue;
        };
        if kinds.contains(&kind) && !name.starts_with("everstep_") {
            foreign.push(name.to_owned());
        }
    }
    foreign
}

/// The features that a crate has if nothing else is said.
fn default_features(manifest: &str) -> Vec<String> {
    let list = manifest.lines().find_map(|line| line.strip_prefix("default = "));
    let names = list.unwrap_or_default().split('"').skip(1).step_by(2);
    names.map(str::to_owned).collect()
}

/// The lines of code, not of tests, at which a kind of write is a pattern.
fn patterns_of_writes(file: &File) -> Vec<usize> {
    let code = file.code();
    let lines = code.windows(3).filter(|it| {
        it[0].is("Write") && it[1].is("::") || it[0].is("Write") && it[1].is(":") && it[2].is(":")
    });
    let is_pattern = |line: &usize| {
        let text = file.text.lines().nth(line - 1).unwrap_or_default();
        let (before, after) = text.split_once("Write::").unwrap_or_default();
        after.contains("=>") || before.contains("let ") && after.contains(" = ")
    };
    lines.map(|it| it[0].line).filter(is_pattern).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_without_our_prefix_are_found() {
        let sql = "CREATE TABLE everstep_a (x int);\nCREATE UNIQUE INDEX b ON everstep_a (x);\n\
                   CREATE OR REPLACE FUNCTION c() ..; CREATE INDEX IF NOT EXISTS everstep_d ON ..;";
        assert_eq!(unprefixed(sql), ["b", "c()"]);
    }

    #[test]
    fn default_features_are_read() {
        assert_eq!(
            default_features("[features]\ndefault = [\"a\", \"testing\"]\n"),
            ["a", "testing"]
        );
    }

    #[test]
    fn patterns_of_writes_are_told_from_writes_that_are_made() {
        let code = "fn f() {\nWrite::Start(new) => start(new),\nlet write = Write::Commit(x);\n\
                    if let Write::Emit(it) = write {\nQueueWrite::Claim(it) => {}\n}}\n\
                    #[cfg(test)]\nmod tests {\nWrite::Start(_) => {}\n}";
        assert_eq!(patterns_of_writes(&File::new("store/a.rs", code)), [2, 4]);
    }
}
