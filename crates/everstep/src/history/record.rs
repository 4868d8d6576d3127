//! The record of an entry, as the store keeps it.
//!
//! ```text
//! version       u16, 1
//! kind          enum EntryKind
//! status        enum EntryStatus
//! number        optional<uint>
//! born          uint
//! compensable   bool
//! attempts      uint
//! deaths        uint
//! created_at    int                   milliseconds since the Unix epoch
//! started_at    optional<int>         milliseconds since created_at, as the next two
//! completed_at  optional<int>
//! wake_at       optional<int>
//! errors        list<{ attempt: uint, at: int since created_at, message: string }>
//! value         union, by its number as uint:
//!   0 none
//!   1 payload   data
//!   2 failure   see [`crate::error::record`]
//!   3 messages  list<{ seq: uint, name: string, body: data, request: optional<16 bytes>,
//!                      sent_at: int since created_at }>
//!   4 version   uint
//!   5 receipt   u8
//!   6 answer    data
//!   7 started   { id: 16 bytes, flags: u8 }
//!   8 item      8 bytes, the lowest first
//! ```
//!
//! Always true: the byte of a receipt, and the run that was started, come last, since the store
//! appends them to [`encode_receipt_prefix`] and [`encode_started_prefix`]. So do the data of a
//! payload, which the store appends to [`encode_payload_prefix`] for a transaction, and the number of an item
//! ([`encode_item_prefix`]).

use uuid::Uuid;

use super::{AttemptError, Entry, EntryKind, EntryStatus, EntryValue, TakenMessage};
use crate::{
    codec::{
        DecodeError,
        bare::{Reader, Writer},
    },
    commit::ItemId,
    error::record,
    run_id::RunId,
    time::Timestamp,
};

const VERSION: u16 = 1;

/// The record of `entry`.
pub(crate) fn encode_entry(entry: &Entry) -> Vec<u8> {
    let payload_bytes = match &entry.value {
        EntryValue::Payload(payload) => payload.len(),
        _ => 0,
    };
    // Everything but the value is about 25 bytes.
    let mut out = Vec::with_capacity(40 + payload_bytes);
    encode_entry_into(entry, &mut out);
    out
}

/// Appends the record of `entry` to `out`.
pub(crate) fn encode_entry_into(entry: &Entry, out: &mut Vec<u8>) {
    let mut writer = Writer::new(out);
    let since = |at: Timestamp| at.as_millis().wrapping_sub(entry.created_at.as_millis());
    writer.u16(VERSION);
    writer.uint(entry.kind as u64);
    writer.uint(entry.status as u64);
    writer.optional(entry.number, Writer::uint);
    writer.uint(entry.born);
    writer.bool(entry.compensable);
    writer.uint(u64::from(entry.attempts));
    writer.uint(u64::from(entry.deaths));
    writer.int(entry.created_at.as_millis());
    for at in [entry.started_at, entry.completed_at, entry.wake_at] {
        writer.optional(at, |writer, at| writer.int(since(at)));
    }
    writer.list(&entry.errors, |writer, error| {
        writer.uint(u64::from(error.attempt));
        writer.int(since(error.at));
        writer.string(&error.message);
    });
    match &entry.value {
        EntryValue::None => writer.uint(0),
        EntryValue::Payload(payload) => {
            writer.uint(1);
            writer.data(payload);
        }
        EntryValue::Failure(failure) => {
            writer.uint(2);
            record::write(&mut writer, failure);
        }
        EntryValue::Messages(messages) => {
            writer.uint(3);
            writer.list(messages, |writer, message| {
                writer.uint(message.seq);
                writer.string(&message.name);
                writer.data(&message.body);
                writer.optional(message.request, |writer, request| {
                    writer.fixed(request.as_bytes());
                });
                writer.int(since(message.sent_at));
            });
        }
        EntryValue::Version(version) => {
            writer.uint(4);
            writer.uint(u64::from(*version));
        }
        EntryValue::Receipt(code) => {
            writer.uint(5);
            writer.u8(*code);
        }
        EntryValue::Answer(answer) => {
            writer.uint(6);
            writer.data(answer);
        }
        EntryValue::Started(id, flags) => {
            writer.uint(7);
            writer.fixed(id.as_uuid().as_bytes());
            writer.u8(*flags);
        }
        EntryValue::Item(item) => {
            writer.uint(8);
            writer.fixed(&item.0.to_le_bytes());
        }
    }
}

/// The record of `entry` without its last byte, to which the store appends the code of the receipt.
///
/// # Panics
///
/// If the value of `entry` is not a receipt.
pub(crate) fn encode_receipt_prefix(entry: &Entry) -> Vec<u8> {
    assert!(matches!(entry.value, EntryValue::Receipt(_)), "only a receipt is filled in later");
    let mut out = encode_entry(entry);
    out.pop();
    out
}

/// The record of `entry` up to its payload, which a [`Transaction`](crate::commit::Transaction) completes.
///
/// # Panics
///
/// If the value of `entry` is not a payload without bytes.
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) fn encode_payload_prefix(entry: &Entry) -> Vec<u8> {
    assert!(
        matches!(&entry.value, EntryValue::Payload(bytes) if bytes.is_empty()),
        "only a payload that is not known yet is filled in later"
    );
    let mut out = encode_entry(entry);
    // The length of no bytes.
    out.pop();
    out
}

/// The record of `entry` without its last 17 bytes, to which the store appends the id of the run
/// that it started, and flags.
pub(crate) fn encode_started_prefix(entry: &Entry) -> Vec<u8> {
    assert!(
        matches!(entry.value, EntryValue::Started(..)),
        "only a started run is filled in later"
    );
    let mut out = encode_entry(entry);
    out.truncate(out.len() - 17);
    out
}

/// The record of `entry` without its last 8 bytes, to which the store appends the number of the
/// item that was put into a queue.
pub(crate) fn encode_item_prefix(entry: &Entry) -> Vec<u8> {
    assert!(matches!(entry.value, EntryValue::Item(_)), "only an item is filled in later");
    let mut out = encode_entry(entry);
    out.truncate(out.len() - 8);
    out
}

/// The entry whose record is `bytes`.
pub(crate) fn decode_entry(bytes: &[u8]) -> Result<Entry, DecodeError> {
    let mut reader = Reader::new(bytes);
    match reader.u16()? {
        VERSION => {
            let entry = read(&mut reader)?;
            reader.finish()?;
            Ok(entry)
        }
        found => Err(DecodeError::UnknownVersion { what: "an entry", found, known: VERSION }),
    }
}

fn read(reader: &mut Reader<'_>) -> Result<Entry, DecodeError> {
    let kind = read_kind(reader)?;
    let status = read_status(reader)?;
    let number = reader.optional(Reader::uint)?;
    let born = reader.uint()?;
    let compensable = reader.bool()?;
    let attempts = reader.uint32()?;
    let deaths = reader.uint32()?;
    let created_at = Timestamp::from_millis(reader.int()?);
    let time = |reader: &mut Reader<'_>| read_time(reader, created_at);
    Ok(Entry {
        kind,
        status,
        number,
        born,
        compensable,
        attempts,
        deaths,
        created_at,
        started_at: reader.optional(time)?,
        completed_at: reader.optional(time)?,
        wake_at: reader.optional(time)?,
        errors: reader.list(|reader| read_error(reader, created_at))?,
        value: read_value(reader, created_at)?,
    })
}

/// A time that was written as its distance from `created_at`. Distances wrap around, so that any
/// two times have one.
fn read_time(reader: &mut Reader<'_>, created_at: Timestamp) -> Result<Timestamp, DecodeError> {
    Ok(Timestamp::from_millis(created_at.as_millis().wrapping_add(reader.int()?)))
}

fn read_error(reader: &mut Reader<'_>, created_at: Timestamp) -> Result<AttemptError, DecodeError> {
    Ok(AttemptError {
        attempt: reader.uint32()?,
        at: read_time(reader, created_at)?,
        message: reader.string()?.to_owned(),
    })
}

fn read_value(reader: &mut Reader<'_>, created_at: Timestamp) -> Result<EntryValue, DecodeError> {
    let at = reader.at();
    Ok(match reader.uint()? {
        0 => EntryValue::None,
        1 => EntryValue::Payload(reader.data()?.to_owned()),
        2 => EntryValue::Failure(Box::new(record::read(reader)?)),
        3 => EntryValue::Messages(reader.list(|reader| read_message(reader, created_at))?),
        4 => EntryValue::Version(reader.uint32()?),
        5 => EntryValue::Receipt(reader.u8()?),
        6 => EntryValue::Answer(reader.data()?.to_owned()),
        7 => {
            let id = RunId::from_uuid(Uuid::from_bytes(reader.fixed()?));
            let id = id.ok_or_else(|| reader.invalid(at, "not the id of a run".to_owned()))?;
            EntryValue::Started(id, reader.u8()?)
        }
        8 => EntryValue::Item(ItemId(u64::from_le_bytes(reader.fixed()?))),
        code => return Err(reader.invalid(at, format!("{code} is no kind of value"))),
    })
}

fn read_message(
    reader: &mut Reader<'_>,
    created_at: Timestamp,
) -> Result<TakenMessage, DecodeError> {
    Ok(TakenMessage {
        seq: reader.uint()?,
        name: reader.string()?.to_owned(),
        body: reader.data()?.to_owned(),
        request: reader.optional(Reader::fixed)?.map(Uuid::from_bytes),
        sent_at: read_time(reader, created_at)?,
    })
}

fn read_kind(reader: &mut Reader<'_>) -> Result<EntryKind, DecodeError> {
    reader.code(EntryKind::from_code, "kind of operation")
}

fn read_status(reader: &mut Reader<'_>) -> Result<EntryStatus, DecodeError> {
    reader.code(EntryStatus::from_code, "status of an operation")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{codec::bare::with_data, error::record::tests::failure};

    const T: i64 = 1_763_239_620_123;

    fn completed_step() -> Entry {
        Entry {
            kind: EntryKind::Step,
            status: EntryStatus::Completed,
            number: Some(300),
            born: 299,
            compensable: false,
            attempts: 1,
            deaths: 0,
            created_at: Timestamp::from_millis(T),
            started_at: Some(Timestamp::from_millis(T)),
            completed_at: Some(Timestamp::from_millis(T + 1_000)),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(vec![0x18, 0x2A]),
        }
    }

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[track_caller]
    fn check(entry: Entry, expected: &str) {
        let bytes = encode_entry(&entry);
        // Spaces in the vector are for the reader.
        assert_eq!(hex(&bytes), expected.replace(' ', ""));
        assert_eq!(decode_entry(&bytes), Ok(entry));
    }

    #[cfg(feature = "sqlite")]
    #[test]
    fn a_payload_that_is_filled_in_makes_the_record_of_the_whole_entry() {
        let entry = |payload: Vec<u8>| Entry {
            kind: EntryKind::Transaction,
            status: EntryStatus::Completed,
            number: None,
            born: 3,
            compensable: false,
            attempts: 1,
            deaths: 0,
            created_at: Timestamp::from_millis(5),
            started_at: None,
            completed_at: Some(Timestamp::from_millis(6)),
            wake_at: None,
            errors: Vec::new(),
            value: EntryValue::Payload(payload),
        };
        for len in [0, 1, 127, 128, 300] {
            let payload = vec![0x18; len];
            let bytes = with_data(&encode_payload_prefix(&entry(Vec::new())), &payload);
            assert_eq!(bytes, encode_entry(&entry(payload.clone())));
            assert_eq!(decode_entry(&bytes), Ok(entry(payload)));
        }
        let bytes = with_data(&encode_payload_prefix(&entry(Vec::new())), &[0x18, 42]);
        let fixed = [1, 0, 22, 2, 0, 3, 0, 1, 0, 10, 0, 1, 2, 0, 0, 1, 2, 0x18, 42];
        assert_eq!(bytes, fixed);
    }

    #[test]
    fn a_deferred_and_a_look_never_change() {
        let waiting = Entry {
            kind: EntryKind::Deferred,
            status: EntryStatus::Waiting,
            number: None,
            born: 4,
            attempts: 0,
            started_at: None,
            completed_at: None,
            value: EntryValue::None,
            ..completed_step()
        };
        check(waiting, "0100 10 01 00 04 00 00 00 b6b8ab94d166 00 00 00 00 00");
        let looked = Entry {
            kind: EntryKind::Peek,
            attempts: 0,
            started_at: None,
            value: EntryValue::Answer(vec![1, 0, 3]),
            ..completed_step()
        };
        check(looked, "0100 11 02 01ac02 ab02 00 00 00 b6b8ab94d166 00 01d00f 00 00 06 03 010003");
    }

    #[test]
    fn a_completed_step_is_compact_and_never_changes() {
        check(
            completed_step(),
            "0100 00 02 01ac02 ab02 00 01 00 b6b8ab94d166 0100 01d00f 00 00 01 02182a",
        );
        assert!(encode_entry(&completed_step()).len() < 40);
    }

    #[test]
    fn entries_with_errors_and_failures_never_change() {
        let failure = crate::error::Failure {
            kind: crate::error::FailureKind::Fatal,
            message: "no".to_owned(),
            causes: Vec::new(),
            location: None,
            attempts: 1,
            details: None,
        };
        let entry = Entry {
            status: EntryStatus::Failed,
            number: None,
            completed_at: None,
            wake_at: Some(Timestamp::from_millis(T + 64)),
            errors: vec![AttemptError {
                attempt: 1,
                at: Timestamp::from_millis(T - 1),
                message: "x".to_owned(),
            }],
            value: EntryValue::Failure(Box::new(failure)),
            ..completed_step()
        };
        check(
            entry,
            "0100 00 03 00 ab02 00 01 00 b6b8ab94d166 0100 00 018001 01 01010178 \
             02 01 026e6f 00 00 01 00",
        );
    }

    #[test]
    fn entries_with_messages_never_change() {
        let entry = Entry {
            kind: EntryKind::Listen,
            number: Some(1),
            born: 0,
            attempts: 0,
            started_at: None,
            value: EntryValue::Messages(vec![TakenMessage {
                seq: 7,
                name: "go".to_owned(),
                body: vec![0xF6],
                request: Some(Uuid::from_u128(0x0102_0304_0506_0708_090A_0B0C_0D0E_0F10)),
                sent_at: Timestamp::from_millis(T - 2),
            }]),
            ..completed_step()
        };
        check(
            entry,
            "0100 02 02 0101 00 00 00 00 b6b8ab94d166 00 01d00f 00 00 \
             03 01 07 02676f 01f6 01 0102030405060708090a0b0c0d0e0f10 03",
        );
    }

    #[test]
    fn versions_never_change() {
        let entry =
            Entry { kind: EntryKind::Version, value: EntryValue::Version(200), ..completed_step() };
        assert!(hex(&encode_entry(&entry)).ends_with("0004c801"));
        assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry));
    }

    #[test]
    fn the_store_fills_in_the_number_of_an_item() {
        let entry = Entry {
            kind: EntryKind::Enqueue,
            value: EntryValue::Item(ItemId(0x0102)),
            ..completed_step()
        };
        let bytes = encode_entry(&entry);
        assert!(hex(&bytes).starts_with("01001402"));
        assert!(hex(&bytes).ends_with("00080201000000000000"));
        assert_eq!(encode_item_prefix(&entry), bytes[..bytes.len() - 8]);
        assert_eq!(decode_entry(&bytes), Ok(entry));
    }

    #[test]
    fn the_store_fills_in_the_receipt() {
        let entry = |code| Entry {
            kind: EntryKind::Send,
            value: EntryValue::Receipt(code),
            ..completed_step()
        };
        let mut bytes = encode_receipt_prefix(&entry(0));
        assert!(decode_entry(&bytes).is_err());
        bytes.push(4);
        assert_eq!(decode_entry(&bytes), Ok(entry(4)));
    }

    #[test]
    fn unknown_versions_and_trailing_bytes_are_named() {
        let mut bytes = encode_entry(&completed_step());
        bytes.push(0);
        let at = bytes.len() - 1;
        assert_eq!(decode_entry(&bytes), Err(DecodeError::Trailing { at, extra: 1 }));
        bytes[1] = 2;
        assert_eq!(
            decode_entry(&bytes),
            Err(DecodeError::UnknownVersion { what: "an entry", found: 0x0201, known: 1 })
        );
        assert_eq!(decode_entry(&[]), Err(DecodeError::Truncated { at: 0, needed: 2 }));
    }

    fn time() -> impl Strategy<Value = Timestamp> {
        prop_oneof![any::<i64>(), T..T + 100_000].prop_map(Timestamp::from_millis)
    }

    fn value() -> impl Strategy<Value = EntryValue> {
        let bytes = || prop::collection::vec(any::<u8>(), 0..30);
        let message = (any::<u64>(), ".{0,9}", bytes(), any::<Option<u128>>(), time()).prop_map(
            |(seq, name, body, request, sent_at)| TakenMessage {
                seq,
                name,
                body,
                request: request.map(Uuid::from_u128),
                sent_at,
            },
        );
        prop_oneof![
            Just(EntryValue::None),
            bytes().prop_map(EntryValue::Payload),
            failure().prop_map(|failure| EntryValue::Failure(Box::new(failure))),
            prop::collection::vec(message, 0..4).prop_map(EntryValue::Messages),
            any::<u32>().prop_map(EntryValue::Version),
            any::<u8>().prop_map(EntryValue::Receipt),
            any::<u64>().prop_map(|item| EntryValue::Item(ItemId(item))),
        ]
    }

    prop_compose! {
        fn entry()(
            kind in 0..=13u8,
            status in 0..=6u8,
            (number, born, compensable) in any::<(Option<u64>, u64, bool)>(),
            (attempts, deaths) in any::<(u32, u32)>(),
            created_at in time(),
            started_at in prop::option::of(time()),
            completed_at in prop::option::of(time()),
            wake_at in prop::option::of(time()),
            errors in prop::collection::vec((any::<u32>(), time(), ".{0,9}"), 0..4),
            value in value(),
        ) -> Entry {
            let errors = errors.into_iter().map(|(attempt, at, message)| {
                AttemptError { attempt, at, message }
            });
            Entry {
                kind: read_kind(&mut Reader::new(&[kind])).expect("each of these is a kind"),
                status: read_status(&mut Reader::new(&[status])).expect("each is a status"),
                number,
                born,
                compensable,
                attempts,
                deaths,
                created_at,
                started_at,
                completed_at,
                wake_at,
                errors: errors.collect(),
                value,
            }
        }
    }

    proptest! {
        #[test]
        fn entries_round_trip(entry in entry()) {
            prop_assert_eq!(decode_entry(&encode_entry(&entry)), Ok(entry));
        }

        #[test]
        fn cut_off_entries_are_refused(entry in entry(), cut in any::<prop::sample::Index>()) {
            let bytes = encode_entry(&entry);
            prop_assert!(decode_entry(&bytes[..cut.index(bytes.len())]).is_err());
        }

        #[test]
        fn damaged_entries_are_refused_or_are_the_one_encoding(
            entry in entry(),
            at in any::<prop::sample::Index>(),
            byte: u8,
        ) {
            let mut bytes = encode_entry(&entry);
            let at = at.index(bytes.len());
            bytes[at] = byte;
            if let Ok(entry) = decode_entry(&bytes) {
                prop_assert_eq!(encode_entry(&entry), bytes);
            }
        }

        #[test]
        fn hostile_bytes_never_panic(
            bytes in prop::collection::vec(prop_oneof![0..6u8, any::<u8>()], 0..80),
        ) {
            let framed: Vec<u8> = [1, 0].into_iter().chain(bytes).collect();
            if let Ok(entry) = decode_entry(&framed) {
                prop_assert_eq!(encode_entry(&entry), framed);
            }
        }
    }
}
