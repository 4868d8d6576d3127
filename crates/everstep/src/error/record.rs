//! The record of a failure, as the row of a run and the entry of an operation keep it.
//!
//! ```text
//! version   u16, 1                    only where it stands alone
//! kind      enum FailureKind
//! message   string
//! causes    list<string>
//! location  optional<data>            a history key
//! attempts  uint
//! details   optional<{ type: string, payload: data }>
//! ```

use super::{Failure, FailureKind};
use crate::{
    codec::{
        DecodeError,
        bare::{Reader, Writer},
    },
    location::Location,
};

const VERSION: u16 = 1;

/// The record of a failure that stands alone.
pub(crate) fn encode_failure(failure: &Failure) -> Vec<u8> {
    let mut out = Vec::with_capacity(64);
    let mut writer = Writer::new(&mut out);
    writer.u16(VERSION);
    write(&mut writer, failure);
    out
}

/// The failure whose record stands alone in `bytes`.
pub(crate) fn decode_failure(bytes: &[u8]) -> Result<Failure, DecodeError> {
    let mut reader = Reader::new(bytes);
    match reader.u16()? {
        VERSION => {
            let failure = read(&mut reader)?;
            reader.finish()?;
            Ok(failure)
        }
        found => Err(DecodeError::UnknownVersion { what: "a failure", found, known: VERSION }),
    }
}

/// Writes a failure inside another record, whose version it shares.
pub(crate) fn write(writer: &mut Writer<'_>, failure: &Failure) {
    writer.uint(failure.kind as u64);
    writer.string(&failure.message);
    writer.list(&failure.causes, |writer, cause| writer.string(cause));
    writer.optional(failure.location.as_ref(), |writer, location| writer.data(location.as_key()));
    writer.uint(u64::from(failure.attempts));
    writer.optional(failure.details.as_ref(), |writer, (name, payload)| {
        writer.string(name);
        writer.data(payload);
    });
}

/// Reads a failure inside another record.
pub(crate) fn read(reader: &mut Reader<'_>) -> Result<Failure, DecodeError> {
    Ok(Failure {
        kind: read_kind(reader)?,
        message: reader.string()?.to_owned(),
        causes: reader.list(|reader| reader.string().map(str::to_owned))?,
        location: reader.optional(read_location)?,
        attempts: reader.uint32()?,
        details: reader
            .optional(|reader| Ok((reader.string()?.to_owned(), reader.data()?.to_owned())))?,
    })
}

fn read_kind(reader: &mut Reader<'_>) -> Result<FailureKind, DecodeError> {
    reader.code(FailureKind::from_code, "kind of failure")
}

fn read_location(reader: &mut Reader<'_>) -> Result<Location, DecodeError> {
    let at = reader.at();
    let key = reader.data()?;
    Location::try_from_key(key).map_err(|error| reader.invalid(at, error.to_string()))
}

#[cfg(test)]
pub(crate) mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::location::tests::location;

    pub(crate) fn failure() -> impl Strategy<Value = Failure> {
        let kinds = (0..=10u8).prop_map(|code| {
            read_kind(&mut Reader::new(&[code])).expect("each of these is a kind")
        });
        (
            kinds,
            ".{0,20}",
            prop::collection::vec(".{0,20}", 0..3),
            prop::option::of(location()),
            any::<u32>(),
            prop::option::of((".{0,20}", prop::collection::vec(any::<u8>(), 0..20))),
        )
            .prop_map(|(kind, message, causes, location, attempts, details)| Failure {
                kind,
                message,
                causes,
                location,
                attempts,
                details,
            })
    }

    #[test]
    fn the_record_never_changes() {
        let failure = Failure {
            kind: FailureKind::Exhausted,
            message: "no".to_owned(),
            causes: vec!["io".to_owned()],
            location: Some("a/~1".parse().expect("a location")),
            attempts: 5,
            details: Some(("u8".to_owned(), vec![0x18, 0xFF])),
        };
        let bytes = [
            1, 0, 3, 2, b'n', b'o', 1, 2, b'i', b'o', // to the causes
            1, 12, 0x15, 2, 2, b'a', 0, 5, 2, b'a', 0, 0x15, 1, 0, // the location
            5, 1, 2, b'u', b'8', 2, 0x18, 0xFF,
        ];
        assert_eq!(encode_failure(&failure), bytes);
        assert_eq!(decode_failure(&bytes), Ok(failure));
    }

    #[test]
    fn an_unknown_version_is_named() {
        let error = decode_failure(&[9, 0]).expect_err("there is no version 9");
        assert_eq!(
            error.to_string(),
            "a failure has format version 9, and this program knows versions 1 to 1; use a newer \
             everstep"
        );
    }

    proptest! {
        #[test]
        fn failures_round_trip(failure in failure()) {
            prop_assert_eq!(decode_failure(&encode_failure(&failure)), Ok(failure));
        }

        #[test]
        fn hostile_bytes_are_refused_or_are_the_one_encoding(
            mut bytes in prop::collection::vec(prop_oneof![0..4u8, any::<u8>()], 2..60),
        ) {
            bytes[..2].copy_from_slice(&[1, 0]);
            if let Ok(failure) = decode_failure(&bytes) {
                prop_assert_eq!(encode_failure(&failure), bytes);
            }
        }
    }
}
