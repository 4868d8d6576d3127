//! Keys: where the entries of a run are kept, and in which order.
//!
//! Everything that a run stores lies under tuple prefixes (packed by [`crate::codec::tuple`]):
//!
//! ```text
//! 1 names       reserved
//! 2 history     the entries
//! 3 messages    reserved: the inbox is a table of its own
//! 4 fields      reserved: the row of the run
//! 5 metadata    reserved: inside the entries
//! 6 rollbacks   the entries of compensations, by what they compensate
//! 7 set aside   (attempt, then the whole key it had): what a retry of the run left behind
//! 8 origins     the keys of the entries that the last failure of the run came from
//! 9 emitted     the mark of the last item of the workflow's own code that is in its stream
//! 10 lineage     of a fork: whose time and randomness the entries before it have
//! 11 start      nothing is kept there: what the limit of the whole run is answered by
//! ```
//!
//! A history key is the prefix followed by one element per segment of the location:
//!
//! ```text
//! a name, used once               name
//! a name, used the k-th time      (name, nil, k)      k >= 2
//! an iteration                    (loop name, n)      right after the loop's own segment
//! ```
//!
//! Always true:
//! - Keys sort as their paths do: what is below a key follows it directly, and iterations stand in
//!   the order of their numbers, so each range here covers exactly what it says.
//! - Whether a key is below another is decided by segments: `a` is not above `ab`, and `~1` is not
//!   above `~10`.

use std::{borrow::Cow, fmt};

use super::Location;
use crate::codec::tuple::{self, Element, TupleError};

/// The key above all history keys.
pub(crate) const HISTORY: &[u8] = &[0x15, 2];
/// The key above all rollback keys.
pub(crate) const ROLLBACKS: &[u8] = &[0x15, 6];
/// The key above everything that was set aside.
pub(crate) const SET_ASIDE: &[u8] = &[0x15, 7];
/// What stands for the start of the run where an operation is named by its key.
pub(crate) const START: &[u8] = &[0x15, 11];

/// All keys `k` with `start <= k < end`, in byte order.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyRange {
    /// The first key of the range.
    pub start: Vec<u8>,
    /// The first key past the range.
    pub end: Vec<u8>,
}

/// The key of where the code of a run that has failed, or is rolled back, has ended: see
/// [`crate::run::decode_origins`].
pub(crate) fn failure_origins() -> Vec<u8> {
    vec![0x15, 8]
}

/// The key of the mark of the last item that the workflow's own code has emitted.
pub(crate) fn emitted() -> Vec<u8> {
    vec![0x15, 9]
}

/// The key of what a fork has from other runs: see [`crate::run::fork`].
pub(crate) fn lineage() -> Vec<u8> {
    vec![0x15, 10]
}

/// Whether what is kept there is about the run as a whole, and no entry.
pub(crate) fn is_of_run(key: &[u8]) -> bool {
    key == failure_origins() || key == emitted() || key == lineage()
}

/// What to call the place of a key in messages, also if it is damaged.
pub(crate) fn describe(key: &[u8]) -> String {
    match parse(key) {
        Ok(parsed) => parsed.to_string(),
        Err(error) => format!("({error})"),
    }
}

/// Greater than the first byte of every packed element, and what follows an escaped NUL: see
/// [`mod@tuple`].
const PAST_ELEMENTS: u8 = 0xFF;

/// Appends the segment of a name that is used for the `ordinal`-th time, from 1, in its scope.
pub(crate) fn push_name(key: &mut Vec<u8>, name: &str, ordinal: u32) {
    debug_assert!(ordinal >= 1, "names are counted from 1");
    if ordinal < 2 {
        tuple::push_text(key, name);
    } else {
        tuple::push_nested(key, |nested| {
            nested.text(name).nil().uint(u64::from(ordinal));
        });
    }
}

/// Appends the segment of the iteration `n` to the key of the loop that is called `loop_name`.
pub(crate) fn push_iteration(key: &mut Vec<u8>, loop_name: &str, n: u64) {
    tuple::push_nested(key, |nested| {
        nested.text(loop_name).uint(n);
    });
}

/// The iterations `a..b` of the loop at `loop_key`, with everything below them.
pub(crate) fn iterations(loop_key: &[u8], loop_name: &str, a: u64, b: u64) -> KeyRange {
    let key = |n| {
        let mut key = Vec::with_capacity(loop_key.len() + loop_name.len() + 13);
        key.extend_from_slice(loop_key);
        push_iteration(&mut key, loop_name, n);
        key
    };
    KeyRange { start: key(a), end: key(b.max(a)) }
}

/// Where the compensation of the operation at `history_key` is kept.
pub(crate) fn rollback_key(history_key: &[u8]) -> Vec<u8> {
    debug_assert!(history_key.starts_with(HISTORY), "only what is in the history is compensated");
    let segments = history_key.strip_prefix(HISTORY).unwrap_or(history_key);
    [ROLLBACKS, segments].concat()
}

/// Where the entry at `key`, a history or rollback key, is kept once the retry that began the
/// `attempt`-th attempt of its run has set it aside.
pub(crate) fn set_aside_key(attempt: u32, key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(SET_ASIDE.len() + 5 + key.len());
    out.extend_from_slice(SET_ASIDE);
    tuple::push_uint(&mut out, u64::from(attempt));
    out.extend_from_slice(key);
    out
}

/// Whether `key` is `ancestor` or below it.
pub(crate) fn is_under(key: &[u8], ancestor: &[u8]) -> bool {
    let rest = key.strip_prefix(ancestor);
    // After a whole element another one begins; FF means that the ancestor's last byte is, in this
    // key, the first half of an escaped NUL.
    rest.is_some_and(|rest| rest.first() != Some(&PAST_ELEMENTS))
}

/// Whether `key` is `ancestor`, below it, or the rollback of what is.
pub(crate) fn is_part(key: &[u8], ancestor: &[u8]) -> bool {
    let undone = key.strip_prefix(ROLLBACKS).zip(ancestor.strip_prefix(HISTORY));
    is_under(key, ancestor) || undone.is_some_and(|(key, ancestor)| is_under(key, ancestor))
}

/// Each iteration on the path of `key`, outermost first: the length of the key of its loop, which
/// `key` begins with, and the number of the iteration.
pub(crate) fn loop_iterations_of(key: &[u8]) -> impl Iterator<Item = (usize, u64)> + '_ {
    let segments = segments(key).ok();
    let mut start = segments.as_ref().map_or(0, |segments| segments.reader.at());
    let segments = segments.into_iter().flatten().map_while(Result::ok);
    segments.filter_map(move |(segment, end)| {
        let loop_len = std::mem::replace(&mut start, end);
        match segment {
            KeySegment::Iteration { n, .. } => Some((loop_len, n)),
            KeySegment::Name { .. } => None,
        }
    })
}

/// What a key is the key of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum ParsedKey {
    /// The entry of an operation.
    History(Location),
    /// The entry of the compensation of an operation.
    Rollback(Location),
    /// An entry that was set aside when the given attempt of its run began.
    SetAside {
        /// The attempt.
        attempt: u32,
        /// The operation.
        location: Location,
        /// Whether it is the entry of the operation's compensation.
        rollback: bool,
    },
}

impl ParsedKey {
    /// The operation that the key belongs to.
    pub(crate) fn location(&self) -> &Location {
        match self {
            ParsedKey::History(location)
            | ParsedKey::Rollback(location)
            | ParsedKey::SetAside { location, .. } => location,
        }
    }
}

/// For people: `charge`, `rollback of charge`, `charge (set aside by attempt 2)`.
impl fmt::Display for ParsedKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (prefix, attempt) = match self {
            ParsedKey::History(_) => ("", None),
            ParsedKey::Rollback(_) => ("rollback of ", None),
            ParsedKey::SetAside { attempt, rollback, .. } => {
                (if *rollback { "rollback of " } else { "" }, Some(attempt))
            }
        };
        write!(f, "{prefix}{}", self.location())?;
        match attempt {
            Some(attempt) => write!(f, " (set aside by attempt {attempt})"),
            None => Ok(()),
        }
    }
}

/// What `key` is the key of.
pub(crate) fn parse(key: &[u8]) -> Result<ParsedKey, KeyError> {
    let prefix = Prefix::read(key)?;
    let segments = [HISTORY, &key[prefix.len..]].concat();
    let location = Location::try_from_key(&segments)?;
    Ok(match (prefix.attempt, prefix.rollback) {
        (None, false) => ParsedKey::History(location),
        (None, true) => ParsedKey::Rollback(location),
        (Some(attempt), rollback) => ParsedKey::SetAside { attempt, location, rollback },
    })
}

/// Bytes that are not a key.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a stored key is damaged at byte {at}: {problem}")]
pub(crate) struct KeyError {
    at: usize,
    problem: &'static str,
}

impl KeyError {
    pub(super) const fn new(at: usize, problem: &'static str) -> KeyError {
        KeyError { at, problem }
    }
}

impl From<TupleError> for KeyError {
    fn from(error: TupleError) -> KeyError {
        KeyError::new(error.at, error.problem)
    }
}

/// The segments of a history, rollback or set-aside key, each with the place at which it ends.
pub(crate) fn segments(key: &[u8]) -> Result<KeySegments<'_>, KeyError> {
    let prefix = Prefix::read(key)?;
    Ok(KeySegments { reader: prefix.reader, loop_name: None })
}

/// A segment of a key, read in place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum KeySegment<'a> {
    /// An operation by its name, and which of that name it is in its scope, from 1.
    Name {
        /// The name.
        name: Cow<'a, str>,
        /// From 1.
        ordinal: u32,
    },
    /// An iteration of the loop before it.
    Iteration {
        /// The name of the loop.
        loop_name: Cow<'a, str>,
        /// The number of the iteration.
        n: u64,
    },
}

/// What stands before the segments of a key.
struct Prefix<'a> {
    attempt: Option<u32>,
    rollback: bool,
    len: usize,
    reader: tuple::Reader<'a>,
}

impl<'a> Prefix<'a> {
    fn read(key: &'a [u8]) -> Result<Prefix<'a>, KeyError> {
        let mut reader = tuple::Reader::new(key);
        let mut attempt = None;
        let mut kind = read_uint(&mut reader)?;
        if kind == 7 {
            let n = read_uint(&mut reader)?;
            let too_large = KeyError::new(SET_ASIDE.len(), "no run has so many attempts");
            attempt = Some(u32::try_from(n).map_err(|_| too_large)?);
            kind = read_uint(&mut reader)?;
        }
        let rollback = match kind {
            2 => false,
            6 => true,
            _ => return Err(KeyError::new(0, "no entry is kept under this prefix")),
        };
        Ok(Prefix { attempt, rollback, len: reader.at(), reader })
    }
}

fn read_uint(reader: &mut tuple::Reader<'_>) -> Result<u64, KeyError> {
    let at = reader.at();
    match reader.next()? {
        Some(Element::Int(n)) => u64::try_from(n).map_err(|_| KeyError::new(at, "it is negative")),
        _ => Err(KeyError::new(at, "there should be a number")),
    }
}

/// See [`segments`].
#[derive(Clone)]
pub(crate) struct KeySegments<'a> {
    reader: tuple::Reader<'a>,
    /// The name of the segment before, if that can be a loop's.
    loop_name: Option<Cow<'a, str>>,
}

impl<'a> KeySegments<'a> {
    fn read(&mut self, element: Element<'a>, at: usize) -> Result<KeySegment<'a>, KeyError> {
        let error = |problem| KeyError::new(at, problem);
        let segment = match element {
            Element::Text(name) => KeySegment::Name { name, ordinal: 1 },
            Element::Nested(nested) => read_nested(nested)?,
            _ => return Err(error("no segment is a bare number or nil")),
        };
        match &segment {
            KeySegment::Name { name, .. } => self.loop_name = Some(name.clone()),
            KeySegment::Iteration { loop_name, .. } => match self.loop_name.take() {
                Some(before) if before == *loop_name => {}
                _ => return Err(error("an iteration stands apart from its loop")),
            },
        }
        Ok(segment)
    }
}

impl<'a> Iterator for KeySegments<'a> {
    type Item = Result<(KeySegment<'a>, usize), KeyError>;

    fn next(&mut self) -> Option<Self::Item> {
        let at = self.reader.at();
        let segment = match self.reader.next() {
            Ok(element) => self.read(element?, at),
            Err(error) => Err(error.into()),
        };
        Some(segment.map(|segment| (segment, self.reader.at())))
    }
}

/// `(name, nil, k)` or `(loop name, n)`.
fn read_nested(mut nested: tuple::Reader<'_>) -> Result<KeySegment<'_>, KeyError> {
    let at = nested.at();
    let error = |problem| KeyError::new(at, problem);
    let Some(Element::Text(name)) = nested.next()? else {
        return Err(error("a segment has no name"));
    };
    let (second, third, fourth) = (nested.next()?, nested.next()?, nested.next()?);
    match (second, third, fourth) {
        (Some(Element::Nil), Some(Element::Int(k)), None) => match u32::try_from(k) {
            Ok(ordinal @ 2..) => Ok(KeySegment::Name { name, ordinal }),
            _ => Err(error("a name is counted from 2 to 4294967295")),
        },
        (Some(Element::Int(n)), None, None) => match u64::try_from(n) {
            Ok(n) => Ok(KeySegment::Iteration { loop_name: name, n }),
            Err(_) => Err(error("an iteration has a negative number")),
        },
        _ => Err(error("a segment is neither a counted name nor an iteration")),
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::location::tests::{location, names};

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    fn key(text: &str) -> Vec<u8> {
        let location: Location = text.parse().expect("the test gives a location");
        location.as_key().to_vec()
    }

    #[test]
    fn keys_never_change() {
        for (text, expected) in [
            ("a", "1502026100"),
            ("a#2", "15020502610000ff150200"),
            ("a/~0", "1502026100050261001400"),
            ("a#300/~256/b", "15020502610000ff16012c000502610016010000026200"),
            ("a%00", "1502026100ff00"),
        ] {
            assert_eq!(hex(&key(text)), expected, "{text}");
        }
        assert_eq!(hex(&rollback_key(&key("a"))), "1506026100");
        assert_eq!(hex(&set_aside_key(2, &key("a"))), "150715021502026100");
        assert_eq!(hex(&set_aside_key(0, &rollback_key(&key("a")))), "1507141506026100");
    }

    #[test]
    fn being_under_goes_by_segments() {
        for (below, above, expected) in [
            ("a", "a", true),
            ("a/b", "a", true),
            ("a/~1/b", "a/~1", true),
            ("ab", "a", false),
            ("a%00b", "a", false),
            ("a#2", "a", false),
            ("a/~10", "a/~1", false),
            ("a/~256", "a/~1", false),
            ("a", "a/b", false),
        ] {
            assert_eq!(is_under(&key(below), &key(above)), expected, "{below} under {above}");
            assert!(is_under(&key(below), HISTORY));
            assert!(!is_under(&rollback_key(&key(below)), HISTORY));
        }
    }

    #[test]
    fn kinds_of_keys_are_told_apart() {
        let a = key("a/~1");
        let rollback = rollback_key(&a);
        for (key, text) in [
            (a.clone(), "a/~1"),
            (rollback.clone(), "rollback of a/~1"),
            (set_aside_key(3, &a), "a/~1 (set aside by attempt 3)"),
            (set_aside_key(3, &rollback), "rollback of a/~1 (set aside by attempt 3)"),
        ] {
            let parsed = parse(&key).expect("a key of the run");
            assert_eq!(parsed.to_string(), text);
            assert_eq!(parsed.location().as_key(), a);
        }
    }

    #[test]
    fn damaged_keys_are_refused() {
        for (bytes, problem) in [
            (&b""[..], "there should be a number"),
            (b"\x15\x03\x02a\x00", "no entry is kept under this prefix"),
            (b"\x15\x02", "a location has at least one segment"),
            (b"\x15\x02\x14", "no segment is a bare number or nil"),
            (b"\x15\x02\x05\x02a\x00\x14\x00", "an iteration stands apart from its loop"),
            (b"\x15\x02\x02b\x00\x05\x02a\x00\x14\x00", "an iteration stands apart from its loop"),
            (
                b"\x15\x02\x05\x02a\x00\x00\xff\x15\x01\x00",
                "a name is counted from 2 to 4294967295",
            ),
            (b"\x15\x02\x02a", "a text has no end"),
        ] {
            let error = parse(bytes).expect_err("it is damaged");
            assert_eq!(error.problem, problem, "{bytes:02x?}");
        }
    }

    #[test]
    fn iterations_are_found_on_the_path() {
        let deep = key("a#2/~3/b/~4/c");
        let loops: Vec<_> = loop_iterations_of(&deep).map(|(len, n)| (&deep[..len], n)).collect();
        assert_eq!(loops, [(&key("a#2")[..], 3), (&key("a#2/~3/b")[..], 4)]);
        let rollback = rollback_key(&deep);
        assert_eq!(loop_iterations_of(&rollback).map(|(_, n)| n).collect::<Vec<_>>(), [3, 4]);
    }

    fn covers(range: &KeyRange, key: &[u8]) -> bool {
        &range.start[..] <= key && key < &range.end[..]
    }

    proptest! {
        #[test]
        fn is_under_goes_by_segments(a in location(), b in location()) {
            let (key, other) = (a.as_key(), b.as_key());
            let (above, all) = (a.segments(), b.segments());
            let under = all.starts_with(&above);
            prop_assert_eq!(is_under(other, key), under);
            prop_assert!(is_under(other, HISTORY));
        }

        #[test]
        fn ranges_of_iterations_cover_exactly_these(
            before in prop::option::of(location()),
            name in names(),
            ordinal in 1..3u32,
            a in 0..600u64,
            b in 0..600u64,
            n in 0..600u64,
            after in prop::option::of(names()),
            sibling in names(),
        ) {
            let mut loop_key = before.map_or(HISTORY.to_vec(), |at| at.as_key().to_vec());
            push_name(&mut loop_key, &name, ordinal);
            let range = iterations(&loop_key, &name, a, b);
            let mut key = loop_key.clone();
            push_iteration(&mut key, &name, n);
            if let Some(after) = after {
                push_name(&mut key, &after, 1);
            }
            prop_assert_eq!(covers(&range, &key), (a..b).contains(&n));
            for ordinal in [1, 2, 300] {
                let mut key = loop_key.clone();
                push_name(&mut key, &sibling, ordinal);
                prop_assert!(!covers(&range, &key));
            }
            prop_assert!(!covers(&range, &loop_key));
        }

        #[test]
        fn hostile_keys_never_panic(bytes in prop::collection::vec(
            prop_oneof![any::<u8>(), prop::sample::select(vec![0u8, 2, 5, 7, 0x14, 0x15, 0xFF])],
            0..24,
        )) {
            if let Ok(ParsedKey::History(location)) = parse(&bytes) {
                prop_assert_eq!(location.as_key(), &bytes[..]);
            }
            let _ = loop_iterations_of(&bytes).count();
        }
    }
}
