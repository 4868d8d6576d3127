//! Payloads: values of the user's types as CBOR.
//!
//! Where a client has no Rust type at hand (the command line, a web page) a payload is seen and
//! given as JSON instead: see [`to_json`] and [`from_json`].
//!
//! What serde cannot tell apart is not told apart here either: `Some(())` and `None` are both null.

use serde::{Serialize, de::DeserializeOwned};

use super::{DecodeError, EncodeError};

/// What can be stored and read back: an input, a result, a message, a state.
pub trait Value: Serialize + DeserializeOwned + 'static {}

impl<T: Serialize + DeserializeOwned + 'static> Value for T {}

/// The payload of `value`.
pub(crate) fn to_vec<T: Serialize + ?Sized>(value: &T) -> Result<Vec<u8>, EncodeError> {
    let mut out = Vec::new();
    ciborium::into_writer(value, &mut out).map_err(|error| EncodeError {
        type_name: std::any::type_name::<T>(),
        problem: match error {
            ciborium::ser::Error::Io(error) => error.to_string(),
            ciborium::ser::Error::Value(problem) => problem,
        },
    })?;
    Ok(out)
}

/// The value whose payload is `bytes`.
///
/// # Errors
///
/// If the payload is not one of a `T`: the error says which field or element does not fit.
pub(crate) fn from_slice<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, DecodeError> {
    if super::hook::is_sealed(bytes) {
        return Err(super::hook::unopened(bytes));
    }
    // The scratch space must hold any text of the payload: ciborium refuses longer ones where a
    // type asks for a borrowed `&str`. Clearing a small one is cheaper for small payloads.
    let mut rest = bytes;
    let result = match bytes.len() {
        0..=256 => ciborium::de::from_reader_with_buffer(&mut rest, &mut [0; 256]),
        257..=4096 => ciborium::de::from_reader_with_buffer(&mut rest, &mut [0; 4096]),
        len => ciborium::de::from_reader_with_buffer(&mut rest, &mut vec![0; len]),
    };
    let at = bytes.len() - rest.len();
    match result {
        Ok(_) if !rest.is_empty() => Err(unreadable::<T>(
            String::from("."),
            at,
            format!("{} bytes follow the value", rest.len()),
        )),
        Ok(value) => Ok(value),
        Err(error) => {
            let problem = match error {
                ciborium::de::Error::Io(_) => "it ends too early".to_owned(),
                ciborium::de::Error::Syntax(_) => "it is not CBOR".to_owned(),
                ciborium::de::Error::Semantic(_, problem) => problem,
                ciborium::de::Error::RecursionLimitExceeded => "it is too deeply nested".to_owned(),
            };
            Err(unreadable::<T>(path::of_failure(bytes, at, &problem), at, problem))
        }
    }
}

/// Whether these bytes can be a payload: CBOR that is nested no deeper than any reader follows it, or
/// sealed. Only its codec can tell whether a sealed payload holds CBOR.
///
/// # Errors
///
/// If they cannot.
pub(crate) fn check(bytes: &[u8]) -> Result<(), DecodeError> {
    match super::hook::is_sealed(bytes) {
        true => super::hook::check_envelope(bytes),
        false => from_slice::<serde::de::IgnoredAny>(bytes).map(drop),
    }
}

fn unreadable<T>(path: String, at: usize, problem: String) -> DecodeError {
    DecodeError::Payload { type_name: std::any::type_name::<T>(), path, at, problem }
}

/// The payload as JSON, for people and for clients without the type.
///
/// What JSON does not have is shown so:
/// - bytes as an array of numbers, which [`from_json`] and serde take for bytes again;
/// - NaN, the infinities and integers beyond 64 bits as text;
/// - a key of a map that is not text as its own JSON in text;
/// - a tagged value as the value alone.
///
/// # Errors
///
/// If these bytes are not a payload.
pub(crate) fn to_json(bytes: &[u8]) -> Result<serde_json::Value, DecodeError> {
    from_slice::<ciborium::Value>(bytes).map(json_of)
}

/// The payload that JSON stands for. A number without a fraction is an integer.
pub(crate) fn from_json(json: &serde_json::Value) -> Vec<u8> {
    to_vec(json).expect("writing JSON values to memory does not fail")
}

fn json_of(value: ciborium::Value) -> serde_json::Value {
    use ciborium::Value;
    use serde_json::Value as Json;
    match value {
        Value::Bool(yes) => Json::Bool(yes),
        Value::Text(text) => Json::String(text),
        Value::Bytes(bytes) => Json::from(bytes),
        Value::Integer(n) => json_of_integer(n.into()),
        Value::Float(n) => {
            serde_json::Number::from_f64(n).map_or_else(|| n.to_string().into(), Json::Number)
        }
        Value::Array(items) => items.into_iter().map(json_of).collect(),
        Value::Map(pairs) => {
            let pairs = pairs.into_iter().map(|(key, value)| (text_of_key(key), json_of(value)));
            Json::Object(pairs.collect())
        }
        Value::Tag(tag @ (2 | 3), inner) => match (*inner).as_bytes().and_then(|b| big(b)) {
            Some(n) => json_of_integer(if tag == 2 { n } else { -1 - n }),
            None => json_of(*inner),
        },
        Value::Tag(_, inner) => json_of(*inner),
        // Null, and what a later version of CBOR may bring.
        _ => Json::Null,
    }
}

fn json_of_integer(n: i128) -> serde_json::Value {
    serde_json::Number::from_i128(n).map_or_else(|| n.to_string().into(), Into::into)
}

/// The big-endian magnitude of a big number, if it is not too big to be shown.
fn big(bytes: &[u8]) -> Option<i128> {
    let n = bytes
        .iter()
        .try_fold(0u128, |n, byte| (n >> 120 == 0).then_some(n << 8 | u128::from(*byte)));
    n.and_then(|n| i128::try_from(n).ok())
}

fn text_of_key(key: ciborium::Value) -> String {
    match json_of(key) {
        serde_json::Value::String(text) => text,
        other => other.to_string(),
    }
}

/// Where in a payload reading it failed.
///
/// The reader only tells how many bytes it had read. The payload is read again, as plain CBOR, to
/// see which element that is. Only failures pay for this.
mod path {
    /// As deep as the reader itself goes.
    const DEPTH_MAX: usize = 256;
    const BREAK: u8 = 0xFF;

    /// The path of the element that was being read when reading failed after `at` bytes.
    pub(super) fn of_failure(bytes: &[u8], at: usize, problem: &str) -> String {
        let mut walk = Walk { bytes, target: at.saturating_sub(1), at: 0, path: Vec::new() };
        // It ends early when the target is reached; the path then leads to it.
        let _ = walk.item();
        // A field is found to be missing after the last one that is there was read.
        if problem.starts_with("missing field") {
            walk.path.pop();
        }
        match walk.path.concat() {
            root if root.is_empty() => ".".to_owned(),
            path => path,
        }
    }

    struct Walk<'a> {
        bytes: &'a [u8],
        target: usize,
        at: usize,
        path: Vec<String>,
    }

    impl Walk<'_> {
        /// Goes past one item. `None` when the target, or the end, is within it.
        fn item(&mut self) -> Option<()> {
            let (major, argument) = self.header()?;
            match (major, argument) {
                (2 | 3, Some(len)) => self.skip(usize::try_from(len).ok()?),
                (2 | 3, None) => self.elements(None, |walk, _| walk.item()),
                (4, count) => {
                    self.elements(count, |walk, i| walk.inside(format!("[{i}]"), Walk::item))
                }
                (5, count) => self.elements(count, |walk, _| {
                    let key = walk.key();
                    walk.inside(key, |walk| walk.item().and_then(|()| walk.item()))
                }),
                (6, _) => self.item(),
                _ => Some(()),
            }
        }

        /// The kind of the item that begins here, and its number; none if it has no fixed length.
        fn header(&mut self) -> Option<(u8, Option<u64>)> {
            let first = *self.bytes.get(self.at)?;
            let digits = match first & 0x1F {
                0..=23 => 0,
                code @ 24..=27 => 1usize << (code - 24),
                31 => {
                    self.skip(1)?;
                    return Some((first >> 5, None));
                }
                _ => return None,
            };
            let digits_at = self.at + 1;
            let argument = match self.bytes.get(digits_at..digits_at + digits)? {
                [] => u64::from(first & 0x1F),
                digits => digits.iter().fold(0, |n, byte| n << 8 | u64::from(*byte)),
            };
            self.skip(1 + digits)?;
            Some((first >> 5, Some(argument)))
        }

        fn elements(
            &mut self,
            count: Option<u64>,
            mut element: impl FnMut(&mut Self, u64) -> Option<()>,
        ) -> Option<()> {
            for i in 0..count.unwrap_or(u64::MAX) {
                if count.is_none() && self.bytes.get(self.at) == Some(&BREAK) {
                    return self.skip(1);
                }
                element(self, i)?;
            }
            Some(())
        }

        /// What the key that begins here adds to the path.
        fn key(&self) -> String {
            let mut ahead =
                Walk { bytes: self.bytes, target: usize::MAX, at: self.at, path: Vec::new() };
            match ahead.header() {
                Some((3, Some(len))) => {
                    let start = ahead.at;
                    let end = usize::try_from(len).ok().and_then(|len| start.checked_add(len));
                    let text = end.and_then(|end| self.bytes.get(start..end));
                    format!(".{}", String::from_utf8_lossy(text.unwrap_or_default()))
                }
                Some((0, Some(n))) => format!("[{n}]"),
                _ => "[..]".to_owned(),
            }
        }

        fn inside(
            &mut self,
            step: String,
            walk: impl FnOnce(&mut Self) -> Option<()>,
        ) -> Option<()> {
            if self.path.len() == DEPTH_MAX {
                return None;
            }
            self.path.push(step);
            walk(self)?;
            self.path.pop();
            Some(())
        }

        fn skip(&mut self, bytes: usize) -> Option<()> {
            self.at = self.at.checked_add(bytes)?;
            (self.target >= self.at && self.at <= self.bytes.len()).then_some(())
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;
    use serde::Deserialize;
    use serde_json::json;

    use super::*;

    #[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
    struct Order {
        id: u64,
        note: Option<String>,
        lines: Vec<Line>,
    }

    #[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
    enum Line {
        Gift,
        Item { sku: String, price: f64 },
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn payloads_never_change() {
        assert_eq!(hex(&to_vec(&()).expect("unit")), "f6");
        assert_eq!(hex(&to_vec(&None::<u8>).expect("none")), "f6");
        assert_eq!(hex(&to_vec(&42).expect("a number")), "182a");
        assert_eq!(hex(&to_vec("hi").expect("text")), "626869");
        let order = Order {
            id: 1,
            note: None,
            lines: vec![Line::Gift, Line::Item { sku: "x".to_owned(), price: 1.5 }],
        };
        assert_eq!(
            hex(&to_vec(&order).expect("an order")),
            "a362696401646e6f7465f6656c696e6573826447696674a1644974656da263736b756178657072696365\
             f93e00"
        );
    }

    #[test]
    fn nothing_survives() {
        from_slice::<()>(&to_vec(&()).expect("unit")).expect("unit");
        assert_eq!(from_slice::<Option<u8>>(&to_vec(&None::<u8>).expect("none")), Ok(None));
        assert_eq!(to_json(&to_vec(&()).expect("unit")), Ok(json!(null)));
        assert_eq!(from_json(&json!(null)), to_vec(&()).expect("unit"));
    }

    #[track_caller]
    fn check_error<T: DeserializeOwned + std::fmt::Debug>(json: serde_json::Value, expected: &str) {
        let error = from_slice::<T>(&from_json(&json)).expect_err("it does not fit");
        assert_eq!(error.to_string(), expected);
    }

    #[test]
    fn an_error_names_the_type_and_the_place() {
        let order = std::any::type_name::<Order>();
        check_error::<Order>(
            json!({"id": 1, "lines": ["Gift", {"Item": {"sku": 5, "price": 1.5}}]}),
            &format!(
                "a payload cannot be read as `{order}` at `.lines[1].Item.sku`, byte 38: invalid \
                 type: integer `5`, expected string"
            ),
        );
        check_error::<Vec<Order>>(
            json!([{"id": 1, "lines": []}, {"id": 2}]),
            &format!(
                "a payload cannot be read as `alloc::vec::Vec<{order}>` at `[1]`, byte 18: missing \
                 field `lines`"
            ),
        );
        check_error::<u8>(
            json!("x"),
            "a payload cannot be read as `u8` at `.`, byte 1: invalid type: string, expected \
             integer",
        );
    }

    #[test]
    fn trailing_and_missing_bytes_are_refused() {
        let error = from_slice::<u8>(&[1, 2]).expect_err("one too many");
        assert!(error.to_string().ends_with("at `.`, byte 1: 1 bytes follow the value"), "{error}");
        let error = from_slice::<Vec<u8>>(&[0x82, 1]).expect_err("one too few");
        assert!(error.to_string().ends_with("it ends too early"), "{error}");
        assert!(from_slice::<()>(&[]).is_err());
    }

    #[test]
    fn a_type_that_borrows_its_text_may_be_long() {
        // ciborium refuses a `&str` that is longer than its scratch space, 4096 bytes by default.
        struct Borrows(usize);
        impl<'de> Deserialize<'de> for Borrows {
            fn deserialize<D: serde::Deserializer<'de>>(from: D) -> Result<Borrows, D::Error> {
                struct Length;
                impl serde::de::Visitor<'_> for Length {
                    type Value = Borrows;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str("text")
                    }
                    fn visit_str<E>(self, text: &str) -> Result<Borrows, E> {
                        Ok(Borrows(text.len()))
                    }
                }
                from.deserialize_str(Length)
            }
        }
        for len in [0, 200, 3_000, 5_000, 100_000] {
            let bytes = to_vec(&"x".repeat(len)).expect("text");
            assert_eq!(from_slice::<Borrows>(&bytes).expect("text").0, len);
        }
    }

    #[test]
    fn json_shows_what_it_does_not_have() {
        let json = |value: &ciborium::Value| to_json(&to_vec(value).expect("CBOR")).expect("CBOR");
        assert_eq!(json(&ciborium::Value::Bytes(vec![1, 255])), json!([1, 255]));
        assert_eq!(json(&ciborium::Value::Float(f64::NAN)), json!("NaN"));
        assert_eq!(json(&ciborium::Value::Tag(0, Box::new("2026".into()))), json!("2026"));
        let shown = |bytes: Vec<u8>| to_json(&bytes).expect("a payload");
        assert_eq!(shown(to_vec(&BTreeMap::from([(5, 'x')])).expect("map")), json!({"5": "x"}));
        assert_eq!(shown(to_vec(&u64::MAX).expect("number")), json!(u64::MAX));
        assert_eq!(
            shown(to_vec(&(1i128 << 100)).expect("number")),
            json!((1i128 << 100).to_string())
        );
        assert_eq!(shown(to_vec(&i128::MIN).expect("number")), json!(i128::MIN.to_string()));
    }

    fn json() -> impl Strategy<Value = serde_json::Value> {
        let leaf = prop_oneof![
            Just(json!(null)),
            any::<bool>().prop_map(Into::into),
            any::<i64>().prop_map(Into::into),
            any::<u64>().prop_map(Into::into),
            any::<f64>().prop_map(Into::into),
            any::<String>().prop_map(Into::into),
        ];
        leaf.prop_recursive(4, 24, 5, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..5).prop_map(Into::into),
                prop::collection::btree_map(any::<String>(), inner, 0..5)
                    .prop_map(|map| map.into_iter().collect()),
            ]
        })
    }

    proptest! {
        #[test]
        fn json_round_trips(json in json()) {
            prop_assert_eq!(to_json(&from_json(&json)), Ok(json));
        }

        #[test]
        fn values_round_trip(
            id: u64,
            note in prop::option::of(".{0,300}"),
            prices in prop::collection::vec(-1e9..1e9f64, 0..5),
        ) {
            let item = |price| Line::Item { sku: "s".to_owned(), price };
            let order = Order { id, note, lines: prices.into_iter().map(item).collect() };
            prop_assert_eq!(from_slice(&to_vec(&order).expect("an order")), Ok(order));
        }

        #[test]
        fn hostile_bytes_never_panic(bytes in prop::collection::vec(any::<u8>(), 0..40)) {
            let _ = to_json(&bytes);
            let _ = from_slice::<Order>(&bytes);
            let _ = from_slice::<Vec<Option<String>>>(&bytes);
        }

        #[test]
        fn damaged_payloads_never_panic(at: prop::sample::Index, byte: u8, cut: bool) {
            let item = Line::Item { sku: "s".to_owned(), price: 2.0 };
            let mut bytes = to_vec(&Order { lines: vec![item; 3], ..Order::default() })
                .expect("an order");
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if cut {
                bytes.truncate(at);
            }
            let _ = from_slice::<Order>(&bytes);
        }
    }
}
