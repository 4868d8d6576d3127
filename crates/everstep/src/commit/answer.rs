//! What an operation was waiting for, as it lies in the inbox and then in the history.
//!
//! ```text
//! version  u16, 1
//! tag      u8: 0 value, 1 failure, 2 cancelled, 3 unknown, 4 rejected
//! rest     the bytes of the value (a payload), the encoded failure, or the payload of a rejection
//! ```
//!
//! Stores make these without knowing what is inside, so there is no length: the rest is all that
//! follows.

use crate::{
    codec::{DecodeError, bare, payload},
    error::{Failure, decode_failure},
    time::Timestamp,
};

const VERSION: u16 = 1;

/// The answer to a wait.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Answered {
    /// A payload.
    Value(Vec<u8>),
    /// It failed.
    Failure(Box<Failure>),
    /// What was waited for was cancelled.
    Cancelled,
    /// There is no such thing.
    Unknown,
    /// It was rejected with this payload.
    Rejected(Vec<u8>),
}

fn tagged(tag: u8, rest: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(3 + rest.len());
    bytes.extend_from_slice(&VERSION.to_le_bytes());
    bytes.push(tag);
    bytes.extend_from_slice(rest);
    bytes
}

/// The answer that is a payload.
pub(crate) fn value(payload: &[u8]) -> Vec<u8> {
    tagged(0, payload)
}

/// The answer that is an encoded failure.
pub(crate) fn failure(encoded: &[u8]) -> Vec<u8> {
    tagged(1, encoded)
}

/// What was waited for was cancelled.
pub(crate) fn cancelled() -> Vec<u8> {
    tagged(2, &[])
}

/// There is nothing to wait for.
pub(crate) fn unknown() -> Vec<u8> {
    tagged(3, &[])
}

/// The answer that is a rejection with a payload.
#[allow(dead_code, reason = "for deferreds")]
pub(crate) fn rejected(payload: &[u8]) -> Vec<u8> {
    tagged(4, payload)
}

/// Reads what the functions above have made.
pub(crate) fn decode(bytes: &[u8]) -> Result<Answered, DecodeError> {
    let mut reader = bare::Reader::new(bytes);
    let found = reader.u16()?;
    if found != VERSION {
        return Err(DecodeError::UnknownVersion { what: "an answer", found, known: VERSION });
    }
    let at = reader.at();
    let tag = reader.u8()?;
    let rest = bytes.get(3..).unwrap_or_default();
    Ok(match tag {
        0 => Answered::Value(rest.to_vec()),
        1 => Answered::Failure(Box::new(decode_failure(rest)?)),
        2 => Answered::Cancelled,
        3 => Answered::Unknown,
        4 => Answered::Rejected(rest.to_vec()),
        tag => return Err(reader.invalid(at, format!("{tag} is no kind of answer"))),
    })
}

/// The body of a grant: the instant before which its operation does not begin.
pub(crate) fn turn(at: Timestamp) -> Vec<u8> {
    let payload = payload::to_vec(&at.as_millis()).expect("a number can be encoded");
    value(&payload)
}

/// Reads what [`turn`] has made.
pub(crate) fn decode_turn(bytes: &[u8]) -> Result<Timestamp, DecodeError> {
    let payload = match decode(bytes)? {
        Answered::Value(payload) => payload,
        // No payload at all, which says where it ends.
        _ => Vec::new(),
    };
    payload::from_slice(&payload).map(Timestamp::from_millis)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::{FailureKind, encode_failure};

    #[test]
    fn answers_have_a_fixed_format() {
        assert_eq!(value(&[0xF6]), [1, 0, 0, 0xF6]);
        assert_eq!(decode(&[1, 0, 0, 0xF6]), Ok(Answered::Value(vec![0xF6])));
        assert_eq!(decode(&[1, 0, 2]), Ok(Answered::Cancelled));
        assert_eq!(decode(&cancelled()), Ok(Answered::Cancelled));
        assert_eq!(decode(&[1, 0, 3]), Ok(Answered::Unknown));
        assert_eq!(decode(&unknown()), Ok(Answered::Unknown));
        assert_eq!(decode(&rejected(&[1])), Ok(Answered::Rejected(vec![1])));
        assert_eq!(rejected(&[1]), [1, 0, 4, 1]);
        let inner = Failure::new(FailureKind::Fatal, "no".to_owned());
        let bytes = failure(&encode_failure(&inner));
        assert_eq!(decode(&bytes), Ok(Answered::Failure(Box::new(inner))));
    }

    #[test]
    fn what_is_no_answer_is_an_error() {
        assert!(decode(&[]).is_err());
        assert!(decode(&[2, 0, 0]).is_err());
        assert!(decode(&[1, 0, 9]).is_err());
    }
}
