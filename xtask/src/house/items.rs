//! The lengths of files and functions, and numbers without a type of their own.

use crate::source::{
    File,
    lexer::{Kind, Token},
};

/// Something with a length in lines.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Long {
    pub(super) name: String,
    pub(super) lines: usize,
}

/// A file with all its lines, tests included.
pub(super) fn file(file: &File) -> Long {
    Long { name: file.path.clone(), lines: file.text.lines().count() }
}

/// The functions with a body that are not test code, from the line of `fn` to the closing brace.
pub(super) fn functions(file: &File) -> Vec<Long> {
    let tokens = file.code();
    let mut functions = Vec::new();
    for (at, pair) in tokens.windows(2).enumerate() {
        if !pair[0].is("fn") || pair[1].kind != Kind::Word {
            continue;
        }
        if let Some(end) = end_of_body(&tokens[at..]) {
            functions.push(Long {
                name: format!("{} {}", file.path, pair[1].text),
                lines: end.line - pair[0].line + 1,
            });
        }
    }
    functions
}

/// The closing brace of a function; none if it has no body.
fn end_of_body<'t>(function: &[&'t Token]) -> Option<&'t Token> {
    let (mut braces, mut brackets) = (0, 0);
    for token in function {
        match token.text.as_str() {
            _ if token.kind != Kind::Mark => {}
            "(" | "[" => brackets += 1,
            ")" | "]" => brackets -= 1,
            ";" if braces == 0 && brackets == 0 => return None,
            "{" => braces += 1,
            "}" => {
                braces -= 1;
                if braces == 0 {
                    return Some(token);
                }
            }
            _ => {}
        }
    }
    None
}

/// The fields and parameters of type `u64` that are not test code: `name: u64` before a comma or a
/// closing bracket. A binding, a constant and a type in another one (`Option<u64>`) are none.
pub(super) fn bare_u64(file: &File) -> usize {
    let tokens = file.code();
    let bare = |part: &&[&Token]| {
        let ends = [",", ")", "}"].iter().any(|mark| part[3].is(mark));
        part[0].kind == Kind::Word && part[1].is(":") && part[2].is("u64") && ends
    };
    tokens.windows(4).filter(bare).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn functions_have_the_lines_of_their_bodies() {
        let text = "trait A { fn a(&self) -> [u8; 2]; }\nfn b(f: fn(u8)) {\n    x(|| {\n    });\n}\n\
                    impl A {\n    pub fn c() -> u8\n    {\n        1\n    }\n}\n#[test]\nfn d() {}\n";
        let functions = functions(&File::new("m.rs", text));
        let shown = functions.iter().map(|long| (long.name.as_str(), long.lines));
        assert_eq!(shown.collect::<Vec<_>>(), [("m.rs b", 4), ("m.rs c", 4)]);
    }

    #[test]
    fn bare_u64_is_a_field_or_a_parameter() {
        let text = "struct A { a: u64, b: Option<u64>, c: u64 }\nfn d(e: u64, f: u32, g: u64) -> u64 \
                    { let h: u64 = 1; const I: u64 = 2; a::u64(h as u64) }";
        assert_eq!(bare_u64(&File::new("m.rs", text)), 4);
    }
}
