//! Which top-level modules of a crate import which, by the paths in their code.
//!
//! A path counts wherever it stands, in a `use` or in an expression, if it starts at the root of the
//! crate: `crate::store::Row`, `crate::{run, store}`, `super::store` in a top-level module. A name that
//! the root exports (`crate::RunId`) counts as an import of the module that it comes from, and
//! `crate::*` as an import of `*`. The root itself may import everything, so its paths are not read.

use std::collections::{BTreeMap, BTreeSet};

use super::{
    File,
    lexer::{Kind, Token},
    modules_at,
};

/// An import of one top-level module by another.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Import {
    pub(crate) from: String,
    pub(crate) to: String,
    /// The file, from the folder of the sources, and the line.
    pub(crate) file: String,
    pub(crate) line: usize,
}

/// Top-level modules, each with those that it imports.
pub(crate) type Graph = BTreeMap<String, BTreeSet<String>>;

/// The top-level modules of a crate that are not test code.
pub(crate) fn modules(files: &[File]) -> BTreeSet<String> {
    let inside = files.iter().filter(|file| !file.test);
    inside.filter_map(|file| file.module.first().cloned()).collect()
}

/// All imports of one top-level module by another, outside of test code.
pub(crate) fn imports(files: &[File]) -> Vec<Import> {
    let modules = modules(files);
    let root = files.iter().find(|file| file.module.is_empty());
    let origins: BTreeMap<String, String> = root
        .map(|root| exports(root).into_iter().map(|export| (export.name, export.path)))
        .into_iter()
        .flatten()
        .filter_map(|(name, path)| Some((name, path.into_iter().next()?)))
        .collect();
    let mut imports = Vec::new();
    for file in files.iter().filter(|file| !file.module.is_empty()) {
        for (name, line) in names_at_root(file) {
            let to = match modules.contains(&name) || name == "*" {
                true => Some(&name),
                false => origins.get(&name).filter(|origin| modules.contains(*origin)),
            };
            let Some(to) = to.filter(|to| *to != file.top()) else {
                continue;
            };
            imports.push(Import {
                from: file.top().to_owned(),
                to: to.clone(),
                file: file.path.clone(),
                line,
            });
        }
    }
    imports
}

/// The imports as a graph, with every module in it.
pub(crate) fn graph(modules: BTreeSet<String>, imports: &[Import]) -> Graph {
    let alone = modules.into_iter().map(|name| (name, BTreeSet::new()));
    let mut graph: Graph = alone.collect();
    for import in imports {
        let imported = graph.entry(import.from.clone()).or_default();
        imported.insert(import.to.clone());
    }
    graph
}

/// The largest set of modules of which each imports each, directly or through others. A single
/// module is no cycle, so it has two members at least or none.
pub(crate) fn largest_cycle(graph: &Graph) -> BTreeSet<String> {
    let reached: BTreeMap<&String, BTreeSet<&String>> =
        graph.keys().map(|module| (module, reachable(graph, module))).collect();
    let cycle_of = |module: &String| -> BTreeSet<String> {
        let together = reached[module]
            .iter()
            .filter(|other| reached.get(**other).is_some_and(|back| back.contains(module)));
        together.map(|name| (*name).clone()).collect()
    };
    let cycles = graph.keys().map(cycle_of);
    let cycles = cycles.filter(|cycle| cycle.len() > 1);
    cycles.max_by_key(BTreeSet::len).unwrap_or_default()
}

fn reachable<'g>(graph: &'g Graph, from: &String) -> BTreeSet<&'g String> {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = graph.get(from).into_iter().flatten().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(graph.get(module).into_iter().flatten());
        }
    }
    reached
}

/// The first names behind the root of the crate, of all paths in the code of a file.
fn names_at_root(file: &File) -> Vec<(String, usize)> {
    let tokens = file.code();
    let modules = modules_at(&file.module, &tokens);
    let mut names = Vec::new();
    for (at, token) in tokens.iter().enumerate() {
        let continues = at >= 2 && tokens[at - 1].is(":") && tokens[at - 2].is(":");
        // The scope of a visibility is no import.
        let scope = at >= 2 && tokens[at - 1].is("in") && tokens[at - 2].is("(");
        if continues || scope {
            continue;
        }
        let mut behind = at;
        let up = match () {
            () if token.is("crate") => modules[at].len(),
            () if token.is("super") => {
                let mut up = 1;
                while separated(&tokens, behind).is_some_and(|next| tokens[next].is("super")) {
                    (behind, up) = (behind + 3, up + 1);
                }
                up
            }
            () => continue,
        };
        if up < modules[at].len() {
            continue;
        }
        if let Some(next) = separated(&tokens, behind) {
            first_names(&tokens, next, &mut names);
        }
    }
    names
}

/// The index behind the `::` that follows a token, if one does.
fn separated(tokens: &[&Token], at: usize) -> Option<usize> {
    let colons = [at + 1, at + 2].map(|at| tokens.get(at).is_some_and(|token| token.is(":")));
    (colons == [true, true] && at + 3 < tokens.len()).then_some(at + 3)
}

/// The name at this index, or the first names of all paths of the group there.
fn first_names(tokens: &[&Token], at: usize, names: &mut Vec<(String, usize)>) {
    if !tokens[at].is("{") {
        if starts_path(tokens[at]) {
            names.push((tokens[at].text.clone(), tokens[at].line));
        }
        return;
    }
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(at) {
        let first = depth == 1 && (tokens[at - 1].is("{") || tokens[at - 1].is(","));
        if first && starts_path(token) && !token.is("self") {
            names.push((token.text.clone(), token.line));
        }
        if token.is("{") {
            depth += 1;
        } else if token.is("}") {
            depth -= 1;
            if depth == 0 {
                return;
            }
        }
    }
}

fn starts_path(token: &Token) -> bool {
    token.kind == Kind::Word || token.is("*")
}

/// A name that the root of a crate gives its users.
pub(crate) struct Export {
    pub(crate) name: String,
    /// The path that it is re-exported from; empty for an item of the root itself.
    pub(crate) path: Vec<String>,
}

/// The public names at the root of a crate: re-exports and items, but for modules and macros.
pub(crate) fn exports(root: &File) -> Vec<Export> {
    let tokens = root.code();
    let modules = modules_at(&root.module, &tokens);
    let mut exports = Vec::new();
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate() {
        if token.is("{") {
            depth += 1;
        } else if token.is("}") {
            depth -= 1;
        }
        let Some(keyword) = tokens.get(at + 1) else {
            break;
        };
        if depth > 0 || !modules[at].is_empty() {
            continue;
        }
        if token.is("pub") && keyword.is("use") {
            re_exports(&tokens, at + 2, &mut Vec::new(), &mut exports);
        } else if token.is("pub") && !keyword.is("(") && !keyword.is("mod") {
            // The name is the last of the words: `pub const fn name(`, `pub struct Name {`.
            let words = tokens[at + 1..].iter();
            let words = words.take_while(|token| token.kind == Kind::Word);
            exports.extend(
                words.last().map(|name| Export { name: name.text.clone(), path: Vec::new() }),
            );
        }
    }
    exports
}

/// Reads one tree of a `pub use` from this index on, and gives the index behind it.
fn re_exports(
    tokens: &[&Token],
    from: usize,
    path: &mut Vec<String>,
    exports: &mut Vec<Export>,
) -> usize {
    let (mut at, length) = (from, path.len());
    while let Some(token) = tokens.get(at) {
        if token.is("{") {
            at += 1;
            while tokens.get(at).is_some_and(|token| !token.is("}")) {
                at = re_exports(tokens, at, path, exports);
                at += usize::from(tokens.get(at).is_some_and(|token| token.is(",")));
            }
            at += 1;
            path.truncate(length);
            return at;
        }
        if token.is(",") || token.is("}") || token.is(";") {
            break;
        }
        if token.kind == Kind::Word || token.is("*") {
            path.push(token.text.clone());
        }
        at += 1;
    }
    let whole: Vec<String> = path.drain(length..).collect();
    let inside = path.iter().chain(&whole).cloned();
    let mut whole: Vec<String> = inside.filter(|name| name != "crate").collect();
    let alias = whole.iter().position(|name| name == "as");
    let name = whole.last().cloned().unwrap_or_default();
    if let Some(alias) = alias {
        whole.truncate(alias);
    }
    let name = match name.as_str() {
        "self" => whole.iter().rev().nth(1).cloned().unwrap_or_default(),
        _ => name,
    };
    exports.push(Export { name, path: whole });
    at
}

#[cfg(test)]
mod tests {
    use super::*;

    fn files(files: &[(&str, &str)]) -> Vec<File> {
        let files = files.iter();
        files.map(|(path, text)| File::new(path, text)).collect()
    }

    /// The imports of module `a` whose file has this text.
    fn imported(text: &str) -> String {
        let files = files(&[
            ("lib.rs", "pub use b::{Bee, inner::{Sea as C}}; pub use std::fmt; pub mod prelude {}"),
            ("a.rs", text),
            ("b.rs", ""),
            ("c/d.rs", ""),
        ]);
        let imports = imports(&files);
        let shown = imports.iter().map(|import| format!("{}:{}", import.to, import.line));
        shown.collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn paths_from_the_root_are_imports_wherever_they_stand() {
        assert_eq!(
            imported("use crate::{a::x, b::{self, y}, c};\nfn f() { crate::c::d(); }"),
            "b:1 c:1 c:2"
        );
        assert_eq!(
            imported("use super::{b, c};\nmod m { use super::super::b; use super::x; }"),
            "b:1 c:1 b:2"
        );
        assert_eq!(imported("pub(in crate::b) fn f() -> $crate::c::X {}"), "c:1");
    }

    #[test]
    fn names_of_the_root_count_for_the_module_that_they_come_from() {
        assert_eq!(imported("use crate::{Bee, fmt, prelude};\nfn f(c: crate::C) {}"), "b:1 b:2");
    }

    #[test]
    fn everything_of_the_root_is_an_import_of_its_own() {
        assert_eq!(imported("use crate::*;\nuse super::{b, *};"), "*:1 b:2 *:2");
    }

    #[test]
    fn tests_comments_and_strings_import_nothing() {
        assert_eq!(
            imported(
                "// crate::b\n/// [`crate::b`]\n\"crate::b\" #[cfg(test)] mod t { use crate::b; }"
            ),
            ""
        );
    }

    #[test]
    fn exports_are_the_names_that_users_see() {
        let text = "mod a; pub mod b { pub use x::y; } pub use a::{B, c::{self, D as E}}; \
                    pub(crate) use a::F; pub fn g() {} pub const fn h() {} pub const I: u8 = 1; \
                    #[macro_export] macro_rules! j { () => { pub struct K; } } pub use L;";
        let exports = exports(&files(&[("lib.rs", text)])[0]);
        let mut names: Vec<String> = exports.into_iter().map(|export| export.name).collect();
        names.sort();
        assert_eq!(names, ["B", "E", "I", "L", "c", "g", "h"]);
    }

    #[test]
    fn largest_cycle_is_the_largest_set_that_reaches_itself() {
        let graph = |edges: &[(&str, &str)]| {
            let mut graph = Graph::new();
            for (from, to) in edges {
                graph.entry((*to).into()).or_default();
                graph.entry((*from).into()).or_default().insert((*to).into());
            }
            largest_cycle(&graph).into_iter().collect::<Vec<_>>().join(" ")
        };
        assert_eq!(graph(&[("a", "b"), ("b", "c"), ("a", "c")]), "");
        assert_eq!(
            graph(&[("a", "b"), ("b", "a"), ("c", "d"), ("d", "e"), ("e", "c"), ("a", "c")]),
            "c d e"
        );
    }
}
