//! The sources of a crate, read by a small lexer: which tokens are test code, and which modules import
//! which.
//!
//! Test code is an item under a `#[cfg(..)]` that cannot hold without `test`, a `#[test]` function,
//! and a file that only such items declare. [`crate::architecture`] and [`crate::house`] share this
//! reading, so that the layers that one checks are those that the other counts. [`Build`] says whether
//! features that only tests turn on count as test code, too.

use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    rc::Rc,
};

use crate::Failure;

pub(crate) mod imports;
pub(crate) mod lexer;

use lexer::{Kind, Token};

/// The build whose code is read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Build {
    /// Every feature may be on.
    AnyFeature,
    /// A program of a user: without the features that only tests turn on.
    Users,
}

/// The features that no program of a user turns on, as they stand in a `cfg`.
const TEST_FEATURES: [&str; 2] = ["\"testing\"", "\"sabotage\""];

/// One file of a crate.
pub(crate) struct File {
    /// From the folder that was read, with `/`.
    pub(crate) path: String,
    /// Its modules from the root of its crate; empty for `lib.rs` and `main.rs`.
    pub(crate) module: Vec<String>,
    pub(crate) tokens: Vec<Token>,
    pub(crate) text: String,
    /// Whether nothing but test code declares it.
    pub(crate) test: bool,
}

impl File {
    #[cfg(test)]
    pub(crate) fn new(path: &str, text: &str) -> File {
        File::in_build(path, text, Build::AnyFeature)
    }

    fn in_build(path: &str, text: &str, build: Build) -> File {
        let mut tokens = lexer::tokens(text);
        let test = mark_tests(&mut tokens, build);
        let mut module: Vec<String> =
            path.trim_end_matches(".rs").split('/').map(String::from).collect();
        if matches!(module.last().map(String::as_str), Some("lib" | "main" | "mod")) {
            module.pop();
        }
        File { path: path.to_owned(), module, tokens, text: text.to_owned(), test }
    }

    /// The top-level module that it belongs to; `lib` or `main` for the root.
    pub(crate) fn top(&self) -> &str {
        match self.module.first() {
            Some(top) => top,
            None => self.path.trim_end_matches(".rs"),
        }
    }

    /// Its tokens that are neither test code nor comments.
    pub(crate) fn code(&self) -> Vec<&Token> {
        let code = |token: &&Token| !self.test && !token.test && token.is_code();
        self.tokens.iter().filter(code).collect()
    }
}

/// Reads all files below the folder of a crate's sources, in the order of their paths; none if there
/// is no such folder.
pub(crate) fn read(folder: &Path, build: Build) -> Result<Vec<File>, Failure> {
    let mut paths = Vec::new();
    if folder.is_dir() {
        rust_files(folder, &mut paths)?;
    }
    paths.sort();
    let mut files = Vec::new();
    for path in paths {
        let text = fs::read_to_string(&path).map_err(|error| failed(&path, &error))?;
        let below = path.strip_prefix(folder).unwrap_or(&path);
        let below = below.to_string_lossy().replace('\\', "/");
        files.push(File::in_build(&below, &text, build));
    }
    mark_test_files(&mut files);
    Ok(files)
}

fn failed(path: &Path, error: &std::io::Error) -> Failure {
    Failure::Found(format!("{}: {error}", path.display()))
}

/// All `.rs` files below a folder, but for packages of their own.
fn rust_files(folder: &Path, found: &mut Vec<PathBuf>) -> Result<(), Failure> {
    let entries = fs::read_dir(folder).map_err(|error| failed(folder, &error))?;
    for entry in entries {
        let path = entry.map_err(|error| failed(folder, &error))?.path();
        if path.is_dir() && !path.join("Cargo.toml").exists() {
            rust_files(&path, found)?;
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            found.push(path);
        }
    }
    Ok(())
}

/// Marks the files that test code declares, and those that they declare in turn.
fn mark_test_files(files: &mut [File]) {
    let mut ours = BTreeSet::new();
    let mut of_tests = BTreeSet::new();
    for file in &*files {
        for (path, test) in declared(file) {
            match test || file.test {
                true => of_tests.insert(path),
                false => ours.insert(path),
            };
        }
    }
    let mut changed = true;
    while changed {
        changed = false;
        for file in files.iter_mut().filter(|file| !file.test) {
            if of_tests.contains(&file.module) && !ours.contains(&file.module) {
                (file.test, changed) = (true, true);
                for (path, _) in declared(file) {
                    ours.remove(&path);
                    of_tests.insert(path);
                }
            }
        }
    }
}

/// The modules that a file declares with `mod name;`, and whether only tests have them.
fn declared(file: &File) -> Vec<(Vec<String>, bool)> {
    let tokens: Vec<&Token> = file.tokens.iter().filter(|token| token.is_code()).collect();
    let mut declared = Vec::new();
    for (at, within) in modules_at(&file.module, &tokens).iter().enumerate() {
        let [keyword, name, end, ..] = tokens[at..] else {
            break;
        };
        if keyword.is("mod") && name.kind == Kind::Word && end.is(";") {
            let path = within.iter().cloned().chain([name.text.clone()]);
            declared.push((path.collect(), keyword.test));
        }
    }
    declared
}

/// For each token of a file without comments, the module that it is in, inline modules included.
fn modules_at(file: &[String], tokens: &[&Token]) -> Vec<Rc<Vec<String>>> {
    let mut path = Rc::new(file.to_vec());
    let mut open: Vec<usize> = Vec::new();
    let mut depth = 0;
    let mut modules = Vec::with_capacity(tokens.len());
    for (at, token) in tokens.iter().enumerate() {
        if token.is("{") {
            depth += 1;
            if at >= 2 && tokens[at - 2].is("mod") && tokens[at - 1].kind == Kind::Word {
                Rc::make_mut(&mut path).push(tokens[at - 1].text.clone());
                open.push(depth);
            }
        }
        modules.push(path.clone());
        if token.is("}") {
            if open.last() == Some(&depth) {
                open.pop();
                Rc::make_mut(&mut path).pop();
            }
            depth = depth.saturating_sub(1);
        }
    }
    modules
}

/// Marks the tokens of items that only tests have. Whether that is the whole file.
fn mark_tests(tokens: &mut [Token], build: Build) -> bool {
    let mut at = 0;
    while at < tokens.len() {
        let (item, attributes) = attributes(tokens, at, build);
        if item == at {
            at += 1;
            continue;
        }
        if attributes.iter().any(|(inner, only)| *inner && *only) {
            return true;
        }
        if attributes.iter().any(|(_, only)| *only) {
            let end = item_end(tokens, item);
            tokens[at..end].iter_mut().for_each(|token| token.test = true);
            at = end;
        } else {
            at = item;
        }
    }
    false
}

/// Passes over docs and attributes. Gives the index of what follows, and for each attribute whether
/// it is an inner one and whether it keeps its item for tests.
fn attributes(tokens: &[Token], from: usize, build: Build) -> (usize, Vec<(bool, bool)>) {
    let (mut at, mut found) = (from, Vec::new());
    let mut end = from;
    while at < tokens.len() {
        if !tokens[at].is_code() {
            // A comment between two attributes is passed over, one before anything else is not.
            at += 1;
            if tokens[at - 1].kind == Kind::Docs {
                end = at;
            }
            continue;
        }
        let inner = tokens.get(at + 1).is_some_and(|token| token.is("!"));
        let bracket = at + 1 + usize::from(inner);
        let opens = tokens.get(bracket).is_some_and(|token| token.is("["));
        if !tokens[at].is("#") || !opens {
            break;
        }
        let close = closing(tokens, bracket);
        let inside = &tokens[bracket + 1..close.min(tokens.len())];
        found.push((inner, only_for_tests(inside, build)));
        at = close + 1;
        end = at;
    }
    (end.min(tokens.len()), found)
}

/// The index of the bracket that closes the one at this index; the length if there is none.
fn closing(tokens: &[Token], open: usize) -> usize {
    let mut depth = 0;
    for (at, token) in tokens.iter().enumerate().skip(open) {
        if ["(", "[", "{"].iter().any(|mark| token.is(mark)) {
            depth += 1;
        } else if [")", "]", "}"].iter().any(|mark| token.is(mark)) {
            depth -= 1;
            if depth == 0 {
                return at;
            }
        }
    }
    tokens.len()
}

/// Whether an attribute keeps its item for tests: `test`, `tokio::test`, or a `cfg` that cannot hold
/// in the build.
fn only_for_tests(attribute: &[Token], build: Build) -> bool {
    match attribute {
        [cfg, open, predicate @ .., _] if cfg.is("cfg") && open.is("(") => {
            !may_hold(predicate, build)
        }
        [path @ .., last] if last.is("test") => {
            path.iter().all(|token| token.is(":") || token.kind == Kind::Word)
        }
        _ => false,
    }
}

/// Whether a predicate of `cfg` may hold in this build, which is without `test`.
fn may_hold(predicate: &[Token], build: Build) -> bool {
    let may_hold = |part| may_hold(part, build);
    match predicate {
        [word] => !word.is("test"),
        [feature, equals, name] if feature.is("feature") && equals.is("=") => {
            build == Build::AnyFeature || !TEST_FEATURES.contains(&name.text.as_str())
        }
        [all, open, inside @ .., _] if all.is("all") && open.is("(") => {
            parts(inside).into_iter().all(may_hold)
        }
        [any, open, inside @ .., _] if any.is("any") && open.is("(") => {
            parts(inside).into_iter().any(may_hold)
        }
        _ => true,
    }
}

/// The parts between the commas that are in no bracket.
fn parts(tokens: &[Token]) -> Vec<&[Token]> {
    let (mut parts, mut depth, mut start) = (Vec::new(), 0, 0);
    for (at, token) in tokens.iter().enumerate() {
        if token.is("(") {
            depth += 1;
        } else if token.is(")") {
            depth -= 1;
        } else if token.is(",") && depth == 0 {
            parts.push(&tokens[start..at]);
            start = at + 1;
        }
    }
    parts.push(&tokens[start..]);
    parts.retain(|part| !part.is_empty());
    parts
}

/// The index behind an item, a field, an arm or a statement that begins at this index.
fn item_end(tokens: &[Token], from: usize) -> usize {
    // A path in braces, and the value of a constant or a statement, end with a semicolon only.
    let to_semicolon = tokens[from..]
        .iter()
        .filter(|token| token.is_code())
        .find(|token| !token.is("pub") && !token.is("(") && !token.is("crate") && !token.is(")"))
        .is_some_and(|token| ["use", "static", "let", "type"].iter().any(|word| token.is(word)));
    let (mut at, mut angles) = (from, 0);
    while at < tokens.len() {
        let token = &tokens[at];
        if ["(", "[", "{"].iter().any(|mark| token.is(mark)) {
            at = closing(tokens, at);
            if token.is("{") && !to_semicolon {
                // The comma behind the last brace of an arm or of a field belongs to it.
                let comma = tokens.get(at + 1).is_some_and(|next| next.is(",") || next.is(";"));
                return (at + 1 + usize::from(comma)).min(tokens.len());
            }
        } else if token.is(";") {
            return at + 1;
        } else if token.is("<") {
            angles += 1;
        } else if token.is(">") && at > 0 && !tokens[at - 1].is("-") && !tokens[at - 1].is("=") {
            angles -= 1;
        } else if token.is(",") && angles <= 0 {
            return at + 1;
        } else if token.is("}") || token.is(")") || token.is("]") {
            // The end of whatever holds it.
            return at;
        }
        at += 1;
    }
    tokens.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The words of a file that are not test code.
    fn words(text: &str) -> String {
        let file = File::new("a.rs", text);
        let words = file.code();
        let words = words.iter().filter(|token| token.kind == Kind::Word);
        words.map(|token| &*token.text).collect::<Vec<_>>().join(" ")
    }

    #[test]
    fn item_under_cfg_test_is_test_code_to_its_end() {
        assert_eq!(words("a! {} #[cfg(test)] mod tests { fn x() { y } } fn b() {}"), "a fn b");
        assert_eq!(words("#[cfg(test)] use a::{b, c}; fn d() {}"), "fn d");
        assert_eq!(words("#[cfg(test)] const A: [u8; 2] = [1, 2]; fn d() {}"), "fn d");
        assert_eq!(words("#[cfg(test)] pub(crate) mod x; fn d() {}"), "fn d");
        assert_eq!(words("#[test] fn x() {} #[tokio::test] async fn y() {} fn d() {}"), "fn d");
    }

    #[test]
    fn docs_and_attributes_of_a_test_item_are_part_of_it() {
        let file = File::new("a.rs", "/// A.\n#[allow(x)]\n#[cfg(test)]\n// b\nfn a() {}\nb");
        let code: Vec<usize> = file.tokens.iter().filter(|it| !it.test).map(|it| it.line).collect();
        assert_eq!(code, [6]);
    }

    #[test]
    fn field_arm_and_statement_under_cfg_test_end_with_themselves() {
        assert_eq!(words("struct A { #[cfg(test)] x: Map<B, C>, y: D }"), "struct A y D");
        assert_eq!(words("struct A { y: D, #[cfg(test)] x: B }"), "struct A y D");
        assert_eq!(words("match a { #[cfg(test)] B => { c } D => e }"), "match a D e");
        assert_eq!(words("#[cfg(test)] let a = B { c: d }; e"), "e");
        assert_eq!(words("#[cfg(test)] if a { b } c"), "c");
    }

    #[test]
    fn features_of_tests_are_test_code_in_the_build_of_a_user() {
        let text = "#[cfg(feature = \"testing\")] fn a() {} #[cfg(any(test, feature = \"sabotage\"))] \
                    fn b() {} #[cfg(feature = \"sqlite\")] fn c() {} \
                    #[cfg(not(feature = \"testing\"))] fn d() {}";
        let names = |build| {
            let file = File::in_build("a.rs", text, build);
            let names = file.code().into_iter().filter(|token| token.text.len() == 1);
            let names = names.filter(|token| token.kind == Kind::Word);
            names.map(|token| token.text.clone()).collect::<String>()
        };
        assert_eq!(names(Build::AnyFeature), "abcd");
        assert_eq!(names(Build::Users), "cd");
    }

    #[test]
    fn cfg_that_may_hold_without_test_is_no_test_code() {
        for cfg in ["not(test)", "any(test, feature = \"x\")", "feature = \"test\"", "unix"] {
            assert!(words(&format!("#[cfg({cfg})] fn a() {{}}")).ends_with("fn a"), "{cfg}");
        }
        for cfg in ["test", "all(test, unix)", "all(unix, any(test))"] {
            assert_eq!(words(&format!("#[cfg({cfg})] fn a() {{}} b")), "b", "{cfg}");
        }
        assert_eq!(words("#![cfg(test)] fn a() {}"), "");
    }

    #[test]
    fn file_that_only_tests_declare_is_test_code() {
        let mut files = [
            ("lib.rs", "mod a; #[cfg(test)] mod b; #[cfg(test)] mod a;"),
            ("a.rs", "mod inner { mod c; } #[cfg(test)] mod tests;"),
            ("a/inner/c.rs", ""),
            ("a/tests.rs", "mod d;"),
            ("a/tests/d.rs", ""),
            ("b.rs", "mod e;"),
            ("b/e.rs", ""),
            ("nobody.rs", ""),
        ]
        .map(|(path, text)| File::new(path, text));
        mark_test_files(&mut files);
        let tests: Vec<&str> = files.iter().filter(|it| it.test).map(|it| &*it.path).collect();
        assert_eq!(tests, ["a/tests.rs", "a/tests/d.rs", "b.rs", "b/e.rs"]);
    }
}
