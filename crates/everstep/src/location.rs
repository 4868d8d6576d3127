//! A location: which operation of a run is meant.
//!
//! It is a path of segments, claimed when the operation is made. The store has it as a key
//! ([`keys`]); people and tools have it as text:
//!
//! ```text
//! charge              the operation `charge`
//! charge#2            the second of that name in its scope
//! orders/~7/charge    `charge` in iteration 7 of the loop `orders`
//! %                   an operation whose name is empty
//! ```
//!
//! In a name, `/`, `~`, `#`, `%` and control characters are written as `%` and two hexadecimal
//! digits for each byte of their UTF-8, as in a URL: a shell leaves that alone, unlike a backslash.
//!
//! Always true: a location has at least one segment, an iteration follows the name of its loop, and
//! both the key and the text give back the same location.

use std::{fmt, str::FromStr};

pub(crate) mod keys;

pub use keys::KeyRange;
use keys::{KeyError, KeySegment};

/// Which operation of a run is meant: a path such as `orders/~7/charge`.
///
/// Made from text with [`str::parse`], and printed as the same text. `#2` marks the second
/// operation of a name in its scope, `~7` the iteration 7 of the loop before it; `/`, `~`, `#` and
/// `%` in a name are written `%2F`, `%7E`, `%23` and `%25`.
///
/// Locations are ordered as their entries are stored: an operation stands before what is below it,
/// and iterations stand by number.
///
/// ```
/// use everstep::{Location, Segment};
///
/// let location: Location = "orders/~7/charge#2".parse()?;
/// assert_eq!(location.segments()[1], Segment::Iteration(7));
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Location {
    /// A valid history key.
    key: Box<[u8]>,
}

/// One part of a [`Location`].
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Segment {
    /// An operation by its name.
    Name {
        /// The name, as the workflow gave it.
        name: String,
        /// Which of that name in its scope, from 1, in the order of the calls.
        ordinal: u32,
    },
    /// An iteration of the loop before it, from 0.
    Iteration(u64),
}

impl Location {
    /// The location that is stored as this history key.
    ///
    /// # Errors
    ///
    /// If these bytes are not the key of an operation in the history of a run.
    pub fn from_key(key: &[u8]) -> Result<Location, ParseLocationError> {
        Location::try_from_key(key).map_err(|error| ParseLocationError {
            text: key.iter().map(|byte| format!("{byte:02x}")).collect(),
            problem: error.to_string(),
        })
    }

    /// As [`Location::from_key`], for those who say themselves where the key is from.
    pub(crate) fn try_from_key(key: &[u8]) -> Result<Location, KeyError> {
        if !key.starts_with(keys::HISTORY) {
            return Err(KeyError::new(0, "it does not begin as a history key"));
        }
        let mut segments = keys::segments(key)?;
        if segments.clone().next().is_none() {
            return Err(KeyError::new(key.len(), "a location has at least one segment"));
        }
        segments.try_for_each(|segment| segment.map(drop))?;
        Ok(Location { key: key.into() })
    }

    /// The key under which its entry is stored.
    pub fn as_key(&self) -> &[u8] {
        &self.key
    }

    /// Its parts, outermost first.
    pub fn segments(&self) -> Vec<Segment> {
        let segments = self.key_segments().map(|segment| match segment {
            KeySegment::Name { name, ordinal } => {
                Segment::Name { name: name.into_owned(), ordinal }
            }
            KeySegment::Iteration { n, .. } => Segment::Iteration(n),
        });
        segments.collect()
    }

    fn key_segments(&self) -> impl Iterator<Item = KeySegment<'_>> {
        // The key was checked when the location was made, so nothing is left out here.
        let segments = keys::segments(&self.key).into_iter().flatten();
        segments.map_while(|segment| segment.ok().map(|(segment, _)| segment))
    }
}

impl fmt::Display for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, segment) in self.key_segments().enumerate() {
            if i > 0 {
                f.write_str("/")?;
            }
            match segment {
                KeySegment::Iteration { n, .. } => write!(f, "~{n}")?,
                KeySegment::Name { name, ordinal } => {
                    write_name(f, &name)?;
                    if ordinal > 1 {
                        write!(f, "#{ordinal}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

impl fmt::Debug for Location {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Location({self})")
    }
}

fn write_name(f: &mut fmt::Formatter<'_>, name: &str) -> fmt::Result {
    if name.is_empty() {
        return f.write_str("%");
    }
    let mut plain_from = 0;
    for (at, c) in name.char_indices() {
        if matches!(c, '/' | '~' | '#' | '%') || c.is_control() {
            f.write_str(&name[plain_from..at])?;
            plain_from = at + c.len_utf8();
            for byte in &name.as_bytes()[at..plain_from] {
                write!(f, "%{byte:02X}")?;
            }
        }
    }
    f.write_str(&name[plain_from..])
}

/// A text that is not a [`Location`].
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not a location: {problem}; a location looks like `orders/~7/charge#2`")]
pub struct ParseLocationError {
    text: String,
    problem: String,
}

impl FromStr for Location {
    type Err = ParseLocationError;

    fn from_str(text: &str) -> Result<Location, ParseLocationError> {
        let key = parse_key(text)
            .map_err(|problem| ParseLocationError { text: text.to_owned(), problem })?;
        Ok(Location { key: key.into() })
    }
}

fn parse_key(text: &str) -> Result<Vec<u8>, String> {
    let mut key = keys::HISTORY.to_vec();
    // The name before, while an iteration may follow.
    let mut loop_name = None;
    for segment in text.split('/') {
        if let Some(digits) = segment.strip_prefix('~') {
            let n = parse_digits(digits).ok_or_else(|| {
                format!(
                    "`{segment}` should be `~` and the number of an iteration (a `~` in a name is \
                     written `%7E`)"
                )
            })?;
            let name: String = loop_name
                .take()
                .ok_or_else(|| format!("`{segment}` does not follow the name of a loop"))?;
            keys::push_iteration(&mut key, &name, n);
        } else {
            let (name, ordinal) = parse_name(segment)?;
            keys::push_name(&mut key, &name, ordinal);
            loop_name = Some(name);
        }
    }
    Ok(key)
}

fn parse_name(segment: &str) -> Result<(String, u32), String> {
    let (name, ordinal) = match segment.split_once('#') {
        None => (segment, 1),
        Some((name, digits)) => {
            let ordinal = parse_digits(digits).and_then(|k| u32::try_from(k).ok());
            let ordinal = ordinal.filter(|k| *k >= 2).ok_or_else(|| {
                format!(
                    "`#{digits}` should be `#` and a number from 2 (a `#` in a name is written \
                     `%23`)"
                )
            })?;
            (name, ordinal)
        }
    };
    match name {
        "" => Err("it has an empty part (an empty name is written `%`)".to_owned()),
        "%" => Ok((String::new(), ordinal)),
        _ => Ok((unescape(name)?, ordinal)),
    }
}

fn unescape(name: &str) -> Result<String, String> {
    if name.contains('~') {
        return Err(format!("a `~` in a name such as `{name}` is written `%7E`"));
    }
    let mut parts = name.split('%');
    let mut bytes = parts.next().unwrap_or_default().as_bytes().to_vec();
    for part in parts {
        let byte = part.get(..2).and_then(parse_hex);
        bytes.push(byte.ok_or_else(|| {
            format!("a `%` in `{name}` lacks its two hexadecimal digits (itself it is `%25`)")
        })?);
        bytes.extend_from_slice(&part.as_bytes()[2..]);
    }
    String::from_utf8(bytes).map_err(|_| format!("what `{name}` stands for is not UTF-8"))
}

/// The number in decimal digits: unlike [`str::parse`], without a sign.
fn parse_digits(digits: &str) -> Option<u64> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_digit());
    plain.then(|| digits.parse().ok()).flatten()
}

fn parse_hex(digits: &str) -> Option<u8> {
    let plain = digits.bytes().all(|byte| byte.is_ascii_hexdigit());
    plain.then(|| u8::from_str_radix(digits, 16).ok()).flatten()
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Names: ordinary ones, ones that look like something else, and ones that share beginnings.
    pub(crate) fn names() -> impl Strategy<Value = String> {
        prop_oneof![
            prop::sample::select(vec![
                "",
                "a",
                "ab",
                "a\0",
                "a\0b",
                "\0",
                "~0",
                "~1",
                "x#2",
                "#",
                "%",
                "%25",
                "/",
                "a/b",
                "a b",
                "ü",
                "\n",
                "\u{85}",
                "\u{10FFFF}",
            ])
            .prop_map(str::to_owned),
            any::<String>(),
        ]
    }

    pub(crate) fn location() -> impl Strategy<Value = Location> {
        let ordinal = prop_oneof![4 => Just(1u32), 2 => 2..300u32, 1 => 2..=u32::MAX];
        let n = prop_oneof![0..12u64, 200..300u64, any::<u64>()];
        let level = (names(), ordinal, prop::option::of(n));
        prop::collection::vec(level, 1..4).prop_map(|levels| {
            let mut key = keys::HISTORY.to_vec();
            for (name, ordinal, n) in levels {
                keys::push_name(&mut key, &name, ordinal);
                if let Some(n) = n {
                    keys::push_iteration(&mut key, &name, n);
                }
            }
            Location::from_key(&key).expect("made from segments")
        })
    }

    #[track_caller]
    fn check(text: &str, segments: &[Segment]) {
        let location: Location = text.parse().expect("a location");
        assert_eq!(location.segments(), segments);
        assert_eq!(location.to_string(), text);
    }

    fn name(name: &str, ordinal: u32) -> Segment {
        Segment::Name { name: name.to_owned(), ordinal }
    }

    #[test]
    fn text_and_segments_belong_together() {
        check("charge", &[name("charge", 1)]);
        check("charge#2", &[name("charge", 2)]);
        check("outer/~0/inner", &[name("outer", 1), Segment::Iteration(0), name("inner", 1)]);
        check("%7E0/x%232", &[name("~0", 1), name("x#2", 1)]);
        check("%#3/%/%25", &[name("", 3), name("", 1), name("%", 1)]);
        check("a%2Fb/zwei Wörter%0A", &[name("a/b", 1), name("zwei Wörter\n", 1)]);
    }

    #[test]
    fn other_texts_are_refused_with_what_to_write() {
        for (text, problem) in [
            ("", "it has an empty part (an empty name is written `%`)"),
            ("a/", "it has an empty part (an empty name is written `%`)"),
            ("~0", "`~0` does not follow the name of a loop"),
            ("a/~0/~1", "`~1` does not follow the name of a loop"),
            ("a~b", "a `~` in a name such as `a~b` is written `%7E`"),
            ("a#1", "`#1` should be `#` and a number from 2 (a `#` in a name is written `%23`)"),
            ("a%g0", "a `%` in `a%g0` lacks its two hexadecimal digits (itself it is `%25`)"),
            ("a%ü", "a `%` in `a%ü` lacks its two hexadecimal digits (itself it is `%25`)"),
            ("%FF", "what `%FF` stands for is not UTF-8"),
        ] {
            let error = text.parse::<Location>().expect_err("no location");
            assert_eq!(error.problem, problem);
        }
        assert!("a/~+1".parse::<Location>().is_err());
        assert!("a/~99999999999999999999".parse::<Location>().is_err());
    }

    proptest! {
        #[test]
        fn locations_round_trip_as_text_and_as_key(location in location()) {
            prop_assert_eq!(location.to_string().parse(), Ok(location.clone()));
            prop_assert_eq!(Location::from_key(location.as_key()), Ok(location));
        }

        #[test]
        fn any_text_is_refused_or_round_trips(text in "[a~#%/0-9A-F]{0,12}|.{0,12}") {
            if let Ok(location) = text.parse::<Location>() {
                prop_assert_eq!(location.to_string().parse(), Ok(location.clone()));
                prop_assert_eq!(Location::from_key(location.as_key()), Ok(location));
            }
        }
    }
}
