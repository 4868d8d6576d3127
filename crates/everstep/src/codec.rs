//! The codec: how keys, entries and payloads become bytes.
//!
//! On the path of a step, [`payload`] turns what a body returned into CBOR, [`crate::history::record`]
//! wraps it in the versioned record that the store keeps, and [`mod@tuple`] packs the key that it is
//! kept under ([`crate::location::keys`] says what the keys are). [`hook`] is where a user's own codec
//! compresses or encrypts payloads, between the two. [`bare`] is the notation that records are
//! written in. Which fields a record has is not known here.
//!
//! Always true:
//! - Bytes that were written by any released version are read by every later one: the fixed
//!   vectors in the tests of each module never change.
//! - Reading never panics, and never reserves memory for a length that the bytes do not back.
//! - There is one encoding of a key and of each record: equal values have equal bytes.

pub(crate) mod bare;
pub(crate) mod hook;
pub(crate) mod numbers;
pub(crate) mod payload;
pub(crate) mod tuple;

pub use payload::Value;

/// Why stored bytes could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum DecodeError {
    /// The bytes were written in a format that this program does not know.
    #[error(
        "{what} has format version {found}, and this program knows versions 1 to {known}; use a \
         newer everstep"
    )]
    UnknownVersion {
        /// What was read.
        what: &'static str,
        /// The version that it begins with.
        found: u16,
        /// The latest version that this program knows.
        known: u16,
    },
    /// The bytes end in the middle of a value.
    #[error("stored bytes end too early: {needed} more are needed at byte {at}")]
    Truncated {
        /// Where the value that is cut off begins.
        at: usize,
        /// How many bytes are missing, at least.
        needed: u64,
    },
    /// Something follows the value.
    #[error("stored bytes go on after their end: {extra} follow byte {at}")]
    Trailing {
        /// Where the value ends.
        at: usize,
        /// How many bytes follow it.
        extra: usize,
    },
    /// A value that cannot be.
    #[error("stored bytes are damaged at byte {at}: {problem}")]
    Invalid {
        /// Where the value is.
        at: usize,
        /// What is wrong with it.
        problem: String,
    },
    /// A payload that was written with a codec that is not here.
    #[error("it was written with codec `{id}`, which this process does not have")]
    NoCodec {
        /// The codec.
        id: String,
    },
    /// A payload that its codec cannot decode.
    #[error("codec `{id}` cannot decode it: {problem}")]
    Codec {
        /// The codec.
        id: String,
        /// What it says.
        problem: String,
    },
    /// A payload that does not fit the type it is read as.
    #[error("a payload cannot be read as `{type_name}` at `{path}`, byte {at}: {problem}")]
    Payload {
        /// The type that was asked for.
        type_name: &'static str,
        /// The field or element that does not fit: `.items[2].price`, or `.` for the whole.
        path: String,
        /// How many bytes were read when it was found out.
        at: usize,
        /// What is wrong with it.
        problem: String,
    },
}

/// Why a value could not become a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a value of `{type_name}` cannot be stored: {problem}")]
pub(crate) struct EncodeError {
    type_name: &'static str,
    problem: String,
}
