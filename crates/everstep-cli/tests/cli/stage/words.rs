//! What is different every time, in words that stay.

use std::collections::HashMap;

/// Ids and other texts by the words that stand for them, as `[done]`.
#[derive(Default)]
pub(crate) struct Words {
    text_of: HashMap<String, String>,
    /// What is replaced, the longest first.
    word_of: Vec<(String, String)>,
    new: usize,
}

impl Words {
    /// Lets `[word]` stand for this text.
    pub(crate) fn add(&mut self, word: &str, text: impl Into<String>) {
        let (word, text) = (format!("[{word}]"), text.into());
        self.text_of.insert(word.clone(), text.clone());
        self.word_of.push((text, word));
        self.word_of.sort_by_key(|(text, _)| usize::MAX - text.len());
    }

    /// Lets `[word]` stand for this text in commands; what they say keeps the text.
    pub(crate) fn mean(&mut self, word: &str, text: impl Into<String>) {
        self.text_of.insert(format!("[{word}]"), text.into());
    }

    /// The text with what the words stand for.
    pub(crate) fn spelled_out(&self, text: &str) -> String {
        let mut text = text.to_owned();
        for (word, meant) in &self.text_of {
            text = text.replace(word, meant);
        }
        text
    }

    /// The text with words for what is different every time. An id that was not seen before becomes
    /// `[new-1]`, `[new-2]`, ..
    pub(crate) fn told(&mut self, text: &str) -> String {
        let mut told = text.to_owned();
        for (meant, word) in &self.word_of {
            told = told.replace(meant, word);
        }
        while let Some(id) = find_id(&told) {
            self.new += 1;
            self.add(&format!("new-{}", self.new), &id);
            told = told.replace(&id, &format!("[new-{}]", self.new));
        }
        let told = replaced(&told, time_at, "[time]");
        let told = replaced(&told, secret_at, "[secret]");
        let told = replaced(&told, port_at, "0.0.0.0:[port]");
        let told = without_sizes(told);
        let lines = told.lines().map(without_spans);
        lines.map(|line| line + "\n").collect()
    }
}

fn find_id(text: &str) -> Option<String> {
    let bytes = text.as_bytes();
    let mut ids = (0..bytes.len().saturating_sub(35)).map(|at| &bytes[at..at + 36]);
    let found = ids.find(|id| {
        id.iter().enumerate().all(|(at, byte)| match at {
            8 | 13 | 18 | 23 => *byte == b'-',
            _ => byte.is_ascii_hexdigit() && !byte.is_ascii_uppercase(),
        })
    })?;
    Some(String::from_utf8_lossy(found).into_owned())
}

/// Puts a word for whatever `length_at` finds.
fn replaced(text: &str, length_at: impl Fn(&str) -> Option<usize>, word: &str) -> String {
    let (mut done, mut rest) = (String::new(), text);
    while let Some(first) = rest.chars().next() {
        match length_at(rest) {
            Some(length) => {
                done.push_str(word);
                rest = &rest[length..];
            }
            None => {
                done.push(first);
                rest = &rest[first.len_utf8()..];
            }
        }
    }
    done
}

/// How long the instant is with which this begins: `2026-11-16T06:25:33.123Z`.
fn time_at(text: &str) -> Option<usize> {
    const SHAPE: &str = "0000-00-00T00:00:00";
    let begins = text.get(..SHAPE.len())?;
    let fits = begins.chars().zip(SHAPE.chars()).all(|(it, shape)| match shape {
        '0' => it.is_ascii_digit(),
        other => it == other,
    });
    let rest = &text[SHAPE.len()..];
    let part = rest.find(|it: char| !it.is_ascii_digit() && it != '.')?;
    (fits && rest[part..].starts_with('Z')).then_some(SHAPE.len() + part + 1)
}

/// How long the token of the API is with which this begins.
fn secret_at(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("evs_")?;
    let is_part = |it: char| it.is_ascii_alphanumeric() || it == '-' || it == '_';
    let end = rest.find(|it| !is_part(it)).unwrap_or(rest.len());
    (end == 64).then_some("evs_".len() + end)
}

/// Sizes in bytes as `[n]`: a time takes more bytes or fewer.
fn without_sizes(text: String) -> String {
    let digits =
        |text: &str| text.len() - text.trim_start_matches(|it: char| it.is_ascii_digit()).len();
    let mut text = text;
    for name in ["\"size\": ", "\"size\":", "\"bytes\": "] {
        let length_at = |text: &str| {
            let found = text.strip_prefix(name).map(digits);
            found.filter(|it| *it > 0).map(|it| name.len() + it)
        };
        text = replaced(&text, length_at, &format!("{name}[n]"));
    }
    let length_at = |text: &str| {
        let found = digits(text);
        (found > 0 && text[found..].starts_with(" bytes")).then_some(found)
    };
    replaced(&text, length_at, "[n]")
}

/// How long the address is with which this begins, if the system has chosen its port.
fn port_at(text: &str) -> Option<usize> {
    let rest = text.strip_prefix("0.0.0.0:").filter(|it| !it.starts_with('0'))?;
    let end = rest.find(|it: char| !it.is_ascii_digit()).unwrap_or(rest.len());
    (end > 0).then_some("0.0.0.0:".len() + end)
}

/// Lengths of time as `[span]`, and columns two spaces apart, because spans have several widths.
fn without_spans(line: &str) -> String {
    let indented = line.len() - line.trim_start().len();
    let (indent, line) = line.split_at(indented);
    let mut words: Vec<String> = Vec::new();
    for word in line.split(' ') {
        let said = match is_span(bare(word)) {
            true => word.replace(bare(word), "[span]"),
            false => word.to_owned(),
        };
        let again =
            said.starts_with("[span]") && words.last().is_some_and(|last| last.ends_with("[span]"));
        let is_third_space = said.is_empty() && words.last().is_some_and(String::is_empty);
        if again {
            words.pop();
        }
        if !is_third_space {
            words.push(said);
        }
    }
    format!("{indent}{}", words.join(" ").trim_end())
}

/// A word without what is around it: brackets, and colours.
fn bare(word: &str) -> &str {
    let word = word.trim_matches(['(', ')', ',', ';']);
    let word = match word.split_once('m') {
        Some((colour, rest)) if colour.starts_with('\x1b') => rest,
        _ => word,
    };
    word.split('\x1b').next().unwrap_or(word)
}

/// Whether it is `<1ms`, `250ms`, `1.5s`, `2m`, ..
fn is_span(word: &str) -> bool {
    let word = word.strip_prefix('<').unwrap_or(word);
    let end = word.find(|it: char| !it.is_ascii_digit() && it != '.');
    end.is_some_and(|end| end > 0 && ["ms", "s", "m", "h", "d"].contains(&&word[end..]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_different_every_time_becomes_a_word() {
        let mut words = Words::default();
        words.add("done", "01a1e31b-1d59-7590-8241-3c1d14f48fdd");
        let text = "01a1e31b-1d59-7590-8241-3c1d14f48fdd    2m 3s  x\n\
                    01a1e31b-1d59-7590-8241-3c1d14f48fde since 2026-11-16T06:25:33.123Z (1.5s ago)";
        let told = "[done]  [span]  x\n[new-1] since [time] ([span] ago)\n";
        assert_eq!(words.told(text), told);
        assert_eq!(words.told("a: 165 bytes, \"size\": 85"), "a: [n] bytes, \"size\": [n]\n");
        let id = words.spelled_out("[new-1]");
        assert_eq!(id, "01a1e31b-1d59-7590-8241-3c1d14f48fde");
    }
}
