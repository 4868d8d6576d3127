//! Names of workflows, operations, messages, events, queues and pools: the characters and the length
//! that they may have.

use crate::pool::OVERFLOW_MARK;

/// The longest name of a workflow, an operation, a message or a key, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 256;

/// A name that cannot be used.
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NameError {
    /// It is empty.
    #[error("a name is empty; give every workflow, operation and message a name")]
    Empty,
    /// It is too long.
    #[error(
        "a name has {actual} bytes, and the limit is {limit}: `{start}..`; use a shorter one \
             and put the rest into the payload"
    )]
    TooLong {
        /// Its length.
        actual: usize,
        /// The limit.
        limit: usize,
        /// How it begins.
        start: String,
    },
    /// It holds a character that cannot be seen and changes what is shown around it.
    #[error(
        "the name `{escaped}` holds a control character; leave it out, or put the text into the payload"
    )]
    Control {
        /// The name, with these characters written as `\u{1b}`.
        escaped: String,
    },
    /// It is the name of a pool, and has a sign in it that overflow pools have.
    #[error(
        "the pool `{name}` has an `@` in its name, as only overflow pools have; use another name"
    )]
    Overflow {
        /// The name.
        name: String,
    },
}

/// Checks the name of a pool.
pub(crate) fn check_pool(name: &str) -> Result<(), NameError> {
    match name.contains(OVERFLOW_MARK) {
        true => Err(NameError::Overflow { name: name.to_owned() }),
        false => check_name(name),
    }
}

pub(crate) fn check_name(name: &str) -> Result<(), NameError> {
    if name.is_empty() {
        return Err(NameError::Empty);
    }
    if name.len() > NAME_BYTES_MAX {
        return Err(NameError::TooLong {
            actual: name.len(),
            limit: NAME_BYTES_MAX,
            start: escaped(&name.chars().take(32).collect::<String>()),
        });
    }
    if name.chars().any(is_hidden) {
        let escaped = escaped(name);
        return Err(NameError::Control { escaped });
    }
    Ok(())
}

/// Whether a character has no place in a name: names are shown in terminals, logs and pages, one to a line.
/// These are the control characters (C0, DEL and C1), the separators of lines and paragraphs, and those
/// that change the direction of the text behind them.
fn is_hidden(character: char) -> bool {
    character.is_control()
        || matches!(character, '\u{2028}' | '\u{2029}' | '\u{202A}'..='\u{202E}' | '\u{2066}'..='\u{2069}')
}

/// A name with such characters written out.
fn escaped(name: &str) -> String {
    let mut escaped = String::with_capacity(name.len());
    for character in name.chars() {
        if is_hidden(character) {
            escaped.extend(character.escape_unicode());
        } else {
            escaped.push(character);
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_control_character_in_a_name_is_refused_and_shown_escaped() {
        for hidden in ['\0', '\n', '\r', '\t', '\u{1b}', '\u{7f}', '\u{9b}', '\u{202e}', '\u{2066}']
        {
            let name = format!("pay{hidden}ment");
            let text = check_name(&name).map_err(|error| error.to_string());
            let text = text.expect_err("it is refused");
            assert!(text.contains("\\u{") && !text.contains(hidden), "{text}");
            let long = name.repeat(100);
            let text = check_name(&long).map_err(|error| error.to_string());
            assert!(!text.expect_err("it is too long").contains(hidden));
        }
        for good in ["pay ment", "päy", "支払い", "دفع", "a/b:c#d", "🦀"] {
            assert!(check_name(good).is_ok(), "{good}");
        }
    }
}
