//! Rust source as tokens: as much of the language as counting lines and finding paths need.
//!
//! Operators are single characters, so `::` is two marks. The lexer accepts any text; a literal that
//! is not closed reaches to the end of it.

/// The kind of a [`Token`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    /// An identifier or a keyword; a raw identifier without its `r#`.
    Word,
    Lifetime,
    /// A string, a character or a number.
    Literal,
    /// One character of punctuation.
    Mark,
    /// A doc comment, outer or inner.
    Docs,
    Comment,
}

/// A token with its place in the text.
#[derive(Clone, Debug)]
pub(crate) struct Token {
    pub(crate) kind: Kind,
    pub(crate) text: String,
    /// The line of its first character, from 1.
    pub(crate) line: usize,
    /// Whether it is part of an item that is compiled only for tests; set by [`crate::source`].
    pub(crate) test: bool,
}

impl Token {
    /// Whether it is this word or this mark.
    pub(crate) fn is(&self, text: &str) -> bool {
        matches!(self.kind, Kind::Word | Kind::Mark) && self.text == text
    }

    /// The line of its last character.
    pub(crate) fn last_line(&self) -> usize {
        self.line + self.text.matches('\n').count()
    }

    /// Whether it is more than a comment.
    pub(crate) fn is_code(&self) -> bool {
        !matches!(self.kind, Kind::Docs | Kind::Comment)
    }
}

/// All tokens of a text, comments included.
pub(crate) fn tokens(text: &str) -> Vec<Token> {
    let mut tokens = Vec::new();
    let (mut rest, mut line) = (text, 1);
    while let Some(first) = rest.chars().next() {
        let (kind, length) = next(rest, first);
        let (token, after) = rest.split_at(length);
        if let Some(kind) = kind {
            let name = match kind {
                Kind::Word => token.trim_start_matches("r#"),
                _ => token,
            };
            tokens.push(Token { kind, text: name.to_owned(), line, test: false });
        }
        line += token.matches('\n').count();
        rest = after;
    }
    tokens
}

/// The kind of the token at the start of a text, if it is one, and its length in bytes.
fn next(text: &str, first: char) -> (Option<Kind>, usize) {
    if text.starts_with("//") {
        let end = text.find('\n').unwrap_or(text.len());
        let docs =
            text.starts_with("//!") || (text.starts_with("///") && !text.starts_with("////"));
        return (Some(comment(docs)), end);
    }
    if text.starts_with("/*") {
        let docs = text.starts_with("/*!")
            || (text.starts_with("/**") && !text.starts_with("/***") && !text.starts_with("/**/"));
        return (Some(comment(docs)), block_comment(text));
    }
    if let Some(length) = string(text).or_else(|| character(text)) {
        return (Some(Kind::Literal), length);
    }
    if first == '\'' {
        let name = text[1..].find(|c| !in_word(c)).unwrap_or(text.len() - 1);
        return (Some(Kind::Lifetime), 1 + name);
    }
    if first.is_ascii_digit() {
        return (Some(Kind::Literal), number(text));
    }
    if in_word(first) {
        let raw = if text.starts_with("r#") { 2 } else { 0 };
        let end = text[raw..].find(|c| !in_word(c));
        return (Some(Kind::Word), end.map_or(text.len(), |end| raw + end));
    }
    let kind = (!first.is_whitespace()).then_some(Kind::Mark);
    (kind, first.len_utf8())
}

fn comment(docs: bool) -> Kind {
    match docs {
        true => Kind::Docs,
        false => Kind::Comment,
    }
}

fn in_word(c: char) -> bool {
    c == '_' || c.is_alphanumeric()
}

/// The length of a block comment, with those that are nested in it.
fn block_comment(text: &str) -> usize {
    let (mut at, mut depth) = (0, 0);
    while let Some(found) = text[at..].find(['/', '*']) {
        at += found;
        match text.get(at..at + 2) {
            Some("/*") => (at, depth) = (at + 2, depth + 1),
            Some("*/") => (at, depth) = (at + 2, depth - 1),
            _ => at += 1,
        }
        if depth == 0 {
            return at;
        }
    }
    text.len()
}

/// The length of a string of any kind, if the text starts with one.
fn string(text: &str) -> Option<usize> {
    let prefix = ["br", "cr", "b", "c", "r"]
        .iter()
        .find(|prefix| text.starts_with(**prefix))
        .map_or("", |prefix| prefix);
    let after = &text[prefix.len()..];
    if prefix.ends_with('r') {
        let hashes = after.find(|c| c != '#')?;
        after[hashes..].strip_prefix('"')?;
        let end = format!("\"{}", "#".repeat(hashes));
        let inside = prefix.len() + hashes + 1;
        let found = text[inside..].find(&end);
        return Some(found.map_or(text.len(), |at| inside + at + end.len()));
    }
    after.strip_prefix('"')?;
    Some(prefix.len() + quoted(after, '"'))
}

/// The length of a character or a byte, if the text starts with one and not with a lifetime.
fn character(text: &str) -> Option<usize> {
    let prefix = usize::from(text.starts_with("b'"));
    let after = &text[prefix..];
    let mut chars = after.strip_prefix('\'')?.chars();
    let (inside, next) = (chars.next()?, chars.next());
    (inside == '\\' || next == Some('\'')).then(|| prefix + quoted(after, '\''))
}

/// The length of what is quoted, with both quotes; the text starts with the first.
fn quoted(text: &str, quote: char) -> usize {
    let mut escaped = false;
    for (at, c) in text.char_indices().skip(1) {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            c if c == quote => return at + 1,
            _ => {}
        }
    }
    text.len()
}

/// The length of a number. A dot belongs to it only before another digit: `0..n` is not one number.
fn number(text: &str) -> usize {
    let mut end = 0;
    let mut chars = text.char_indices().peekable();
    while let Some((at, c)) = chars.next() {
        let fraction = c == '.' && chars.peek().is_some_and(|(_, next)| next.is_ascii_digit());
        if !in_word(c) && !fraction {
            break;
        }
        end = at + c.len_utf8();
    }
    end
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The tokens of a text as `kind:text`, spaced.
    fn shown(text: &str) -> String {
        let shown: Vec<String> = tokens(text)
            .iter()
            .map(|token| match token.kind {
                Kind::Word => format!("w:{}", token.text),
                Kind::Lifetime => format!("t:{}", token.text),
                Kind::Literal => format!("l:{}", token.text),
                Kind::Mark => token.text.clone(),
                Kind::Docs => format!("d:{}", token.text),
                Kind::Comment => format!("c:{}", token.text),
            })
            .collect();
        shown.join(" ")
    }

    #[test]
    fn strings_hide_what_is_inside() {
        assert_eq!(shown(r#"a "// \" {" b"#), r#"w:a l:"// \" {" w:b"#);
        assert_eq!(shown(r#"b"x" c"y" "\\" z"#), r#"l:b"x" l:c"y" l:"\\" w:z"#);
    }

    #[test]
    fn raw_strings_end_at_their_own_hashes() {
        assert_eq!(shown(r###"r#"a "b" \"# x"###), r###"l:r#"a "b" \"# w:x"###);
        assert_eq!(shown(r##"br"\" r"" y"##), r##"l:br"\" l:r"" w:y"##);
        assert_eq!(shown("r#type r b"), "w:type w:r w:b");
    }

    #[test]
    fn comments_nest() {
        assert_eq!(shown("a /* b /* c */ d */ e"), "w:a c:/* b /* c */ d */ w:e");
        assert_eq!(shown("a /* /* */ b"), "w:a c:/* /* */ b");
    }

    #[test]
    fn docs_are_told_from_comments() {
        assert_eq!(
            shown("/// a\n//! b\n//// c\n// d\n/** e */ /*! f */ /*** g */ /**/"),
            "d:/// a d://! b c://// c c:// d d:/** e */ d:/*! f */ c:/*** g */ c:/**/"
        );
    }

    #[test]
    fn characters_are_told_from_lifetimes() {
        assert_eq!(
            shown(r"'a' 'a '\'' '_ '\u{1F}' b'\n' 'é' <'static>"),
            r"l:'a' t:'a l:'\'' t:'_ l:'\u{1F}' l:b'\n' l:'é' < t:'static >"
        );
        assert_eq!(shown("'\"' x"), "l:'\"' w:x");
    }

    #[test]
    fn numbers_end_before_a_range_or_a_call() {
        assert_eq!(
            shown("0..n 1.5f64 7.max(x) 0xFF_u8"),
            "l:0 . . w:n l:1.5f64 l:7 . w:max ( w:x ) l:0xFF_u8"
        );
    }

    #[test]
    fn tokens_know_their_lines() {
        let lines: Vec<(usize, usize)> = tokens("a\n\"b\nc\" d\n/* e\n */ f")
            .iter()
            .map(|token| (token.line, token.last_line()))
            .collect();
        assert_eq!(lines, [(1, 1), (2, 3), (3, 3), (4, 5), (5, 5)]);
    }
}
