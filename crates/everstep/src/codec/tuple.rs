//! Tuple packing: sequences of values as bytes that sort like the values.
//!
//! This is the tuple layer of FoundationDB, as far as keys need it:
//!
//! ```text
//! nil     00              inside a nested tuple: 00 FF
//! text    02 .. 00        a NUL in the text: 00 FF
//! nested  05 .. 00
//! integer 14 ± n, then n bytes, big-endian, as few as possible; negative ones as the complement
//! ```
//!
//! Always true:
//! - The packed elements of a tuple stand one after another, so the packed form of a tuple begins
//!   with the packed form of each of its beginnings.
//! - No packed element begins with FF. So where a packed tuple is followed by FF, it was not the
//!   end of an element but an escaped NUL; [`crate::location::keys`] builds its ranges on this.
//! - There is one packed form of a value; the reader refuses any other.

use std::borrow::Cow;

const NIL: u8 = 0x00;
const TEXT: u8 = 0x02;
const NESTED: u8 = 0x05;
const ZERO: u8 = 0x14;
const END: u8 = 0x00;
const ESCAPE: u8 = 0xFF;

/// How deep tuples may be nested. Keys need one level; the bound keeps hostile bytes from using
/// up the stack.
const DEPTH_MAX: u32 = 16;

/// Packs nil, outside of nested tuples.
#[cfg(test)]
pub(crate) fn push_nil(out: &mut Vec<u8>) {
    out.push(NIL);
}

/// Packs a text.
pub(crate) fn push_text(out: &mut Vec<u8>, text: &str) {
    out.push(TEXT);
    let mut parts = text.as_bytes().split(|byte| *byte == 0);
    out.extend_from_slice(parts.next().unwrap_or_default());
    for part in parts {
        out.extend_from_slice(&[0, ESCAPE]);
        out.extend_from_slice(part);
    }
    out.push(END);
}

/// Packs an integer that is not negative.
pub(crate) fn push_uint(out: &mut Vec<u8>, n: u64) {
    let used = bytes_used(n);
    out.push(ZERO + used as u8);
    out.extend_from_slice(&n.to_be_bytes()[8 - used..]);
}

/// Packs an integer.
#[cfg(test)]
pub(crate) fn push_int(out: &mut Vec<u8>, n: i64) {
    if let Ok(n) = u64::try_from(n) {
        return push_uint(out, n);
    }
    let used = bytes_used(n.unsigned_abs());
    out.push(ZERO - used as u8);
    out.extend_from_slice(&(!n.unsigned_abs()).to_be_bytes()[8 - used..]);
}

/// Packs a nested tuple with the elements that `fill` adds.
pub(crate) fn push_nested(out: &mut Vec<u8>, fill: impl FnOnce(&mut Nested<'_>)) {
    out.push(NESTED);
    fill(&mut Nested(out));
    out.push(END);
}

/// A nested tuple that is being packed.
pub(crate) struct Nested<'a>(&'a mut Vec<u8>);

impl Nested<'_> {
    pub(crate) fn nil(&mut self) -> &mut Self {
        self.0.extend_from_slice(&[NIL, ESCAPE]);
        self
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        push_text(self.0, text);
        self
    }

    pub(crate) fn uint(&mut self, n: u64) -> &mut Self {
        push_uint(self.0, n);
        self
    }

    #[cfg(test)]
    fn int(&mut self, n: i64) -> &mut Self {
        push_int(self.0, n);
        self
    }

    #[cfg(test)]
    fn nested(&mut self, fill: impl FnOnce(&mut Nested<'_>)) -> &mut Self {
        push_nested(self.0, fill);
        self
    }
}

fn bytes_used(n: u64) -> usize {
    8 - n.leading_zeros() as usize / 8
}

/// Bytes that are not a packed tuple.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a packed tuple is damaged at byte {at}: {problem}")]
pub(crate) struct TupleError {
    /// Where.
    pub(crate) at: usize,
    /// What is wrong.
    pub(crate) problem: &'static str,
}

/// One element of a packed tuple.
#[derive(Clone, Debug)]
pub(crate) enum Element<'a> {
    Nil,
    Text(Cow<'a, str>),
    /// Between -(2^64 - 1) and 2^64 - 1.
    Int(i128),
    Nested(Reader<'a>),
}

/// Reads a packed tuple, element by element, in place.
#[derive(Clone, Debug)]
pub(crate) struct Reader<'a> {
    bytes: &'a [u8],
    /// The place of the next element in `bytes`.
    at: usize,
    /// The place at which the tuple ends: of its end mark if it is nested.
    end: usize,
    depth: u32,
}

impl<'a> Reader<'a> {
    /// Reads the whole of `bytes` as one tuple.
    pub(crate) fn new(bytes: &'a [u8]) -> Reader<'a> {
        Reader { bytes, at: 0, end: bytes.len(), depth: 0 }
    }

    /// The place of the next element.
    pub(crate) fn at(&self) -> usize {
        self.at
    }

    /// The next element, or `None` at the end of the tuple.
    pub(crate) fn next(&mut self) -> Result<Option<Element<'a>>, TupleError> {
        if self.at == self.end {
            return Ok(None);
        }
        let (start, end) = (self.at, self.element_end()?);
        let inside = start + 1..end - 1;
        let element = match self.bytes[start] {
            NIL => Element::Nil,
            TEXT => Element::Text(unescape(&self.bytes[inside], start)?),
            NESTED => Element::Nested(Reader {
                bytes: self.bytes,
                at: inside.start,
                end: inside.end,
                depth: self.depth + 1,
            }),
            code => Element::Int(read_int(code, &self.bytes[start + 1..end], start)?),
        };
        self.at = end;
        Ok(Some(element))
    }

    /// The place after the element that begins at `at`.
    fn element_end(&self) -> Result<usize, TupleError> {
        skip(&self.bytes[..self.end], self.at, self.depth)
    }
}

/// The place after the element of `bytes` that begins at `at`.
fn skip(bytes: &[u8], at: usize, depth: u32) -> Result<usize, TupleError> {
    let error = |problem| TupleError { at, problem };
    match bytes.get(at).copied() {
        None => Err(error("it ends where an element should begin")),
        Some(NIL) if depth == 0 => Ok(at + 1),
        // The caller has seen that this 00 is not the end of its tuple.
        Some(NIL) => Ok(at + 2),
        Some(TEXT) => text_end(bytes, at + 1).ok_or(error("a text has no end")),
        Some(NESTED) if depth == DEPTH_MAX => Err(error("tuples are nested too deeply")),
        Some(NESTED) => nested_end(bytes, at, depth + 1),
        Some(code @ 0x0C..=0x1C) => {
            let end = at + 1 + usize::from(code.abs_diff(ZERO));
            let whole = end <= bytes.len();
            whole.then_some(end).ok_or(error("an integer is cut off"))
        }
        Some(_) => Err(error("no element begins with this byte")),
    }
}

/// The place after the end mark of a text whose characters begin at `at`.
fn text_end(bytes: &[u8], mut at: usize) -> Option<usize> {
    loop {
        at += bytes.get(at..)?.iter().position(|byte| *byte == END)? + 1;
        if bytes.get(at) != Some(&ESCAPE) {
            return Some(at);
        }
        at += 1;
    }
}

/// The place after the end mark of the nested tuple that begins at `start`.
fn nested_end(bytes: &[u8], start: usize, depth: u32) -> Result<usize, TupleError> {
    let mut at = start + 1;
    loop {
        match (bytes.get(at), bytes.get(at + 1)) {
            (Some(&END), next) if next != Some(&ESCAPE) => return Ok(at + 1),
            (None, _) => {
                return Err(TupleError { at: start, problem: "a nested tuple has no end" });
            }
            _ => at = skip(bytes, at, depth)?,
        }
    }
}

/// The text whose packed form, without its first and last byte, is `packed`.
fn unescape(packed: &[u8], at: usize) -> Result<Cow<'_, str>, TupleError> {
    let not_utf8 = TupleError { at, problem: "a text is not UTF-8" };
    if !packed.contains(&0) {
        return std::str::from_utf8(packed).map(Cow::Borrowed).map_err(|_| not_utf8);
    }
    // Every NUL in here is followed by the escape byte: an unescaped one would have been the end.
    let mut text = Vec::with_capacity(packed.len());
    let mut bytes = packed.iter();
    while let Some(byte) = bytes.next() {
        text.push(*byte);
        if *byte == 0 {
            bytes.next();
        }
    }
    String::from_utf8(text).map(Cow::Owned).map_err(|_| not_utf8)
}

fn read_int(code: u8, digits: &[u8], at: usize) -> Result<i128, TupleError> {
    let negative = code < ZERO;
    let flip = if negative { 0xFF } else { 0 };
    if digits.first().is_some_and(|byte| byte ^ flip == 0) {
        let problem = "an integer is longer than it need be";
        return Err(TupleError { at, problem });
    }
    let magnitude = digits.iter().fold(0i128, |n, byte| n << 8 | i128::from(byte ^ flip));
    Ok(if negative { -magnitude } else { magnitude })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// A value whose derived order is the order that the packed form must have.
    #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
    enum Value {
        Nil,
        Text(String),
        Nested(Vec<Value>),
        Int(i64),
        Uint(u64),
    }

    fn pack(values: &[Value]) -> Vec<u8> {
        let mut out = Vec::new();
        for value in values {
            match value {
                Value::Nil => push_nil(&mut out),
                Value::Text(text) => push_text(&mut out, text),
                Value::Int(n) => push_int(&mut out, *n),
                Value::Uint(n) => push_uint(&mut out, *n),
                Value::Nested(values) => push_nested(&mut out, |nested| fill(nested, values)),
            }
        }
        out
    }

    fn fill(nested: &mut Nested<'_>, values: &[Value]) {
        for value in values {
            match value {
                Value::Nil => nested.nil(),
                Value::Text(text) => nested.text(text),
                Value::Int(n) => nested.int(*n),
                Value::Uint(n) => nested.uint(*n),
                Value::Nested(values) => nested.nested(|nested| fill(nested, values)),
            };
        }
    }

    fn unpack(mut reader: Reader<'_>) -> Result<Vec<Value>, TupleError> {
        let mut values = Vec::new();
        while let Some(element) = reader.next()? {
            values.push(match element {
                Element::Nil => Value::Nil,
                Element::Text(text) => Value::Text(text.into_owned()),
                Element::Nested(inner) => Value::Nested(unpack(inner)?),
                Element::Int(n) => match i64::try_from(n) {
                    Ok(n) => Value::Int(n),
                    Err(_) => Value::Uint(u64::try_from(n).map_err(|_| TupleError {
                        at: 0,
                        problem: "below every number that is packed here",
                    })?),
                },
            });
        }
        Ok(values)
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn packed_values_never_change() {
        let text = |text: &str| Value::Text(text.to_owned());
        for (value, expected) in [
            (Value::Nil, "00"),
            (Value::Int(0), "14"),
            (Value::Int(1), "1501"),
            (Value::Int(255), "15ff"),
            (Value::Int(256), "160100"),
            (Value::Int(300), "16012c"),
            (Value::Int(-1), "13fe"),
            (Value::Int(-255), "1300"),
            (Value::Int(-256), "12feff"),
            (Value::Int(i64::MIN), "0c7fffffffffffffff"),
            (Value::Int(i64::MAX), "1c7fffffffffffffff"),
            (Value::Uint(u64::MAX), "1cffffffffffffffff"),
            (text(""), "0200"),
            (text("charge"), "0263686172676500"),
            (text("a\0b"), "026100ff6200"),
            (text("\0"), "0200ff00"),
            (text("ü"), "02c3bc00"),
            (Value::Nested(vec![]), "0500"),
            (Value::Nested(vec![Value::Nil]), "0500ff00"),
            (Value::Nested(vec![text("a"), Value::Nil, Value::Int(2)]), "0502610000ff150200"),
            (
                Value::Nested(vec![Value::Nested(vec![text("x\0")]), Value::Int(0)]),
                "0505027800ff00001400",
            ),
        ] {
            assert_eq!(hex(&pack(std::slice::from_ref(&value))), expected);
            assert_eq!(unpack(Reader::new(&pack(std::slice::from_ref(&value)))), Ok(vec![value]));
        }
    }

    #[test]
    fn damaged_tuples_are_refused_with_the_place() {
        for (bytes, at, problem) in [
            (&b"\x02abc"[..], 0, "a text has no end"),
            (b"\x02a\x00\xff", 0, "a text has no end"),
            (b"\x14\x02\xc3\x00", 1, "a text is not UTF-8"),
            (b"\x16\x01", 0, "an integer is cut off"),
            (b"\x15\x00", 0, "an integer is longer than it need be"),
            (b"\x13\xff", 0, "an integer is longer than it need be"),
            (b"\x05\x14", 0, "a nested tuple has no end"),
            (b"\x05\x00\xff", 0, "a nested tuple has no end"),
            (b"\x14\xff", 1, "no element begins with this byte"),
            (&[0x05; 40], 16, "tuples are nested too deeply"),
        ] {
            assert_eq!(unpack(Reader::new(bytes)), Err(TupleError { at, problem }), "{bytes:02x?}");
        }
    }

    fn value() -> impl Strategy<Value = Value> {
        let leaf = prop_oneof![
            Just(Value::Nil),
            // Few letters, so that beginnings are shared and NULs are common.
            prop::collection::vec(prop::sample::select(vec!['\0', '\u{1}', 'a', 'ÿ']), 0..4)
                .prop_map(|chars| Value::Text(chars.into_iter().collect())),
            prop_oneof![any::<i64>(), -300..300i64, Just(i64::MIN)].prop_map(Value::Int),
            (i64::MAX as u64 + 1..).prop_map(Value::Uint),
        ];
        leaf.prop_recursive(3, 12, 4, |inner| {
            prop::collection::vec(inner, 0..4).prop_map(Value::Nested)
        })
    }

    proptest! {
        #[test]
        fn bytes_sort_like_values(
            a in prop::collection::vec(value(), 0..4),
            b in prop::collection::vec(value(), 0..4),
        ) {
            prop_assert_eq!(a.cmp(&b), pack(&a).cmp(&pack(&b)));
        }

        #[test]
        fn tuples_round_trip(values in prop::collection::vec(value(), 0..5)) {
            prop_assert_eq!(unpack(Reader::new(&pack(&values))), Ok(values));
        }

        #[test]
        fn hostile_bytes_are_refused_or_are_the_one_packed_form(
            bytes in prop::collection::vec(
                prop_oneof![
                    any::<u8>(),
                    prop::sample::select(vec![0u8, 2, 5, 0x14, 0x15, 0x13, 0xFF]),
                ],
                0..24,
            ),
        ) {
            if let Ok(values) = unpack(Reader::new(&bytes)) {
                prop_assert_eq!(pack(&values), bytes);
            }
        }
    }
}
