//! Whether every path that ARCHITECTURE.md names exists, and whether the modules of the core crate
//! import each other as its table allows ([`layers`]). Some smaller promises about the tree are held
//! beside it ([`held`]).
//!
//! A map that names files which are gone is worse than none, and nobody notices by reading it. A
//! path may be given from the root, from a crate, or from the sources of a crate, as the text reads
//! best.

use std::{fs, path::Path};

use crate::Failure;

mod held;
mod layers;

/// What a file of ours may end in. Anything else in backticks is taken for code.
const ENDINGS: &[&str] = &[".md", ".rs", ".sh", ".sql", ".toml"];

/// Reads the document, looks for each path in it, and compares its table of layers with the code.
pub(crate) fn check(root: &Path) -> Result<(), Failure> {
    let document = root.join("ARCHITECTURE.md");
    let text = fs::read_to_string(&document)
        .map_err(|error| Failure::Found(format!("{}: {error}", document.display())))?;
    let top = names_in(root);
    let crates = root.join("crates");
    let bases: Vec<_> = names_in(&crates)
        .iter()
        .map(|name| crates.join(name))
        .flat_map(|base| [base.join("src"), base])
        .chain([root.to_path_buf()])
        .collect();
    let paths: Vec<&str> =
        in_backticks(&text).filter(|quoted| looks_like_a_path(quoted, &top)).collect();
    let missing: Vec<&str> = paths
        .iter()
        .copied()
        .filter(|path| !bases.iter().any(|base| base.join(path).exists()))
        .collect();
    if !missing.is_empty() {
        return Err(Failure::Found(format!(
            "ARCHITECTURE.md names what is not there: `{}`",
            missing.join("`, `")
        )));
    }
    println!("    {} paths", paths.len());
    layers::check(root, &text)?;
    held::check(root)
}

/// The names of what lies in a folder; none if it cannot be read.
fn names_in(folder: &Path) -> Vec<String> {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries.map(|entry| entry.file_name().to_string_lossy().into_owned()).collect()
}

/// What stands between single backticks; blocks of code are passed over.
fn in_backticks(text: &str) -> impl Iterator<Item = &str> {
    let mut in_block = false;
    text.lines()
        .filter(move |line| {
            let fence = line.trim_start().starts_with("```");
            in_block ^= fence;
            !in_block && !fence
        })
        .flat_map(|line| line.split('`').skip(1).step_by(2))
}

/// A folder with its slash, a file with one of our endings, or anything below what lies at the root.
/// A location such as `outer/inner` is none of them.
fn looks_like_a_path(quoted: &str, top: &[String]) -> bool {
    let plain = |c: char| c.is_ascii_alphanumeric() || "._-/".contains(c);
    if quoted.is_empty() || quoted.starts_with('/') || !quoted.chars().all(plain) {
        return false;
    }
    let first = quoted.split('/').next().unwrap_or_default();
    let named = |ending: &&str| quoted.ends_with(*ending) && quoted.len() > ending.len();
    quoted.ends_with('/')
        || ENDINGS.iter().any(named)
        || (quoted.contains('/') && top.iter().any(|name| name == first))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn paths_are_told_from_code() {
        let top = ["crates".into(), ".ci".into()];
        for path in ["run.rs", "store/sqlite.rs", "store/", "crates/x", ".ci/run"] {
            assert!(looks_like_a_path(path, &top), "{path}");
        }
        for code in [
            "",
            "crates",
            "outer/~0/inner",
            "outer/inner",
            "Store::commit",
            "examples/*.rs",
            "app.db",
            ".rs",
            "/dev/null",
            "a or b.rs",
        ] {
            assert!(!looks_like_a_path(code, &top), "{code}");
        }
    }

    #[test]
    fn blocks_of_code_are_passed_over() {
        let text = "see `a.rs` and `b.rs`\n```text\n`c.rs`\n```\nthen `d.rs`";
        assert_eq!(in_backticks(text).collect::<Vec<_>>(), ["a.rs", "b.rs", "d.rs"]);
    }
}
