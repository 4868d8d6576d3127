//! Lines by what is on them.

use std::{fmt, ops::AddAssign};

use crate::{
    house::json::Json,
    source::{File, lexer::Kind},
};

/// What a line counts as. The later one counts if several apply.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Class {
    Blank,
    Comment,
    Docs,
    Code,
    /// Any line of test code, a blank one or a comment too.
    Test,
}

/// The class of each line of a file.
pub(super) fn classes(file: &File) -> Vec<Class> {
    let mut classes = vec![Class::Blank; file.text.lines().count()];
    if file.test {
        classes.fill(Class::Test);
        return classes;
    }
    // Blank lines between two tokens of one test item belong to it.
    let mut test_until = None;
    for token in &file.tokens {
        let class = match token.kind {
            _ if token.test => Class::Test,
            Kind::Comment => Class::Comment,
            Kind::Docs => Class::Docs,
            _ => Class::Code,
        };
        let first = match test_until.filter(|_| token.test) {
            Some(until) => until,
            None => token.line,
        };
        let last = token.last_line();
        test_until = token.test.then_some(last);
        for line in &mut classes[first - 1..last] {
            *line = class.max(*line);
        }
    }
    classes
}

/// How many lines there are of each class.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Lines {
    files: usize,
    pub(super) code: usize,
    docs: usize,
    comments: usize,
    blank: usize,
    tests: usize,
}

impl Lines {
    /// The titles of the columns that [`fmt::Display`] writes.
    pub(super) const TITLES: &str = "   files    code    docs comments   blank   tests     all";

    pub(super) fn of(file: &File) -> Lines {
        let classes = classes(file);
        let count = |wanted| classes.iter().filter(|class| **class == wanted).count();
        Lines {
            files: 1,
            code: count(Class::Code),
            docs: count(Class::Docs),
            comments: count(Class::Comment),
            blank: count(Class::Blank),
            tests: count(Class::Test),
        }
    }

    fn all(&self) -> usize {
        self.code + self.docs + self.comments + self.blank + self.tests
    }

    pub(super) fn json(&self) -> Json {
        let fields = [
            ("files", self.files),
            ("code", self.code),
            ("docs", self.docs),
            ("comments", self.comments),
            ("blank", self.blank),
            ("tests", self.tests),
            ("all", self.all()),
        ];
        Json::object(fields.map(|(name, count)| (name, Json::Number(count))))
    }
}

impl AddAssign for Lines {
    fn add_assign(&mut self, other: Lines) {
        self.files += other.files;
        self.code += other.code;
        self.docs += other.docs;
        self.comments += other.comments;
        self.blank += other.blank;
        self.tests += other.tests;
    }
}

impl fmt::Display for Lines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Lines { files, code, docs, comments, blank, tests } = self;
        let all = self.all();
        write!(f, "{files:>8}{code:>8}{docs:>8}{comments:>9}{blank:>8}{tests:>8}{all:>8}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_line_counts_once() {
        use Class::{Blank, Code, Comment, Docs, Test};
        let text = "//! A.\n\nuse a; // b\n// c\nlet d = \"\n\n\";\n\n#[cfg(test)]\nmod t {\n\n    // e\n}\n\nfn f() {} /* g\n*/\n";
        let file = File::new("a.rs", text);
        assert_eq!(
            classes(&file),
            [
                Docs, Blank, Code, Comment, Code, Code, Code, Blank, Test, Test, Test, Test, Test,
                Blank, Code, Comment
            ]
        );
        assert_eq!(Lines::of(&file).all(), 16);
    }

    #[test]
    fn blank_line_after_a_test_item_is_blank() {
        let text = "#[test]\nfn a() {}\n\nfn b() {}\n";
        assert_eq!(Lines::of(&File::new("a.rs", text)).blank, 1);
    }
}
