//! Lines that the two SQL stores have in common.
//!
//! Files of the same name below both folders are compared, and so are the two files that are named
//! like the folders. Of each pair the longest common subsequence of code lines counts, without their
//! indentation and with `$1` as `?1`. Other differences between the two drivers stay differences.

use std::collections::BTreeMap;

use crate::{
    house::lines::{Class, classes},
    source::File,
};

/// Two files of the same name.
pub(super) struct Pair {
    pub(super) name: String,
    /// The code lines of each.
    pub(super) lines: [usize; 2],
    pub(super) shared: usize,
}

/// The pairs of files below these two folders, by name.
pub(super) fn pairs(files: &[File], folders: [&str; 2]) -> Vec<Pair> {
    let [ones, others] = folders.map(|folder| below(files, folder));
    let pairs = ones.iter().filter_map(|(name, one)| {
        let other = others.get(name)?;
        let [one, other] = [one, other].map(|file| lines(file));
        Some(Pair {
            name: name.clone(),
            lines: [one.len(), other.len()],
            shared: common(&one, &other),
        })
    });
    let pairs = pairs.filter(|pair| pair.lines != [0, 0]);
    pairs.collect()
}

/// The files of a folder by their names in it; that of the folder's own module is `.rs`.
fn below<'f>(files: &'f [File], folder: &str) -> BTreeMap<String, &'f File> {
    let named = files.iter().filter_map(|file| {
        let name = file.path.strip_prefix(folder)?;
        let name = name.strip_prefix('/').unwrap_or(name);
        Some((name.to_owned(), file))
    });
    named.collect()
}

/// The code lines of a file, evened out.
fn lines(file: &File) -> Vec<String> {
    let code = file.text.lines().zip(classes(file));
    let code = code.filter(|(_, class)| *class == Class::Code);
    code.map(|(line, _)| even(line)).collect()
}

fn even(line: &str) -> String {
    let mut even = String::new();
    let mut rest = line.trim();
    while let Some(at) = rest.find('$') {
        let number = rest[at + 1..].starts_with(|c: char| c.is_ascii_digit());
        even.push_str(&rest[..at]);
        even.push(if number { '?' } else { '$' });
        rest = &rest[at + 1..];
    }
    even.push_str(rest);
    even
}

/// The length of the longest common subsequence.
fn common(one: &[String], other: &[String]) -> usize {
    let mut row = vec![0; other.len() + 1];
    for line in one {
        let mut diagonal = 0;
        for (at, candidate) in other.iter().enumerate() {
            let above = row[at + 1];
            row[at + 1] = match line == candidate {
                true => diagonal + 1,
                false => above.max(row[at]),
            };
            diagonal = above;
        }
    }
    row[other.len()]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dialects_are_evened_out_before_lines_are_compared() {
        let files = [
            File::new("s/a.rs", "fn a() {\n    \"x = ?1\";\n    // c\n    b;\n}\n"),
            File::new("p/a.rs", "fn a() {\n    c;\n\n        \"x = $1\";\n}\n"),
            File::new("s.rs", "x"),
            File::new("p.rs", "x"),
            File::new("s/only.rs", "x"),
        ];
        let pairs = pairs(&files, ["s", "p"]);
        let shown = pairs.iter().map(|pair| (pair.name.as_str(), pair.lines, pair.shared));
        assert_eq!(shown.collect::<Vec<_>>(), [(".rs", [1, 1], 1), ("a.rs", [4, 4], 3)]);
    }

    #[test]
    fn common_lines_keep_their_order() {
        let lines = |text: &str| text.split(' ').map(String::from).collect::<Vec<_>>();
        assert_eq!(common(&lines("a b c d"), &lines("b a d c")), 2);
        assert_eq!(common(&lines("a"), &[]), 0);
    }
}
