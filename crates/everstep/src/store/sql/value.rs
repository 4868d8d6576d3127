//! What goes into statements and comes out of rows: numbers, texts and bytes, and lists of them.

use std::{borrow::Cow, fmt, sync::Arc, time::Duration};

use uuid::Uuid;

use crate::{
    pool::PoolNo,
    run_id::{RunId, RunNo, ShardId},
    schedule::Overlap,
    store::{CancelRequest, Cell, Close, Deliver, InboxKind, ItemId, ItemState, Role, RunStatus},
    time::Timestamp,
};

/// A parameter of a statement, which belongs to the caller. Every column is one of the first three.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Param<'p> {
    Int(Option<i64>),
    Text(Option<&'p str>),
    Bytes(Option<&'p [u8]>),
    Numbers(&'p [i64]),
    Ints(&'p [Option<i64>]),
    Texts(&'p [Option<String>]),
    Blobs(&'p [Option<Vec<u8>>]),
}

/// A parameter that is kept: a list, or a parameter of a statement that is made or sent later.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Value {
    pub(crate) fn ints(numbers: impl IntoIterator<Item = i64>) -> Value {
        Value::Ints(numbers.into_iter().map(Some).collect())
    }

    pub(crate) fn texts(texts: impl IntoIterator<Item = String>) -> Value {
        Value::Texts(texts.into_iter().map(Some).collect())
    }

    pub(crate) fn uuids(ids: impl IntoIterator<Item = Uuid>) -> Value {
        let ids = ids.into_iter().map(|id| Some(id.into_bytes().to_vec()));
        Value::Blobs(ids.collect())
    }
}

impl From<Param<'_>> for Value {
    fn from(param: Param<'_>) -> Value {
        match param {
            Param::Int(number) => Value::Int(number),
            Param::Text(text) => Value::Text(text.map(str::to_owned)),
            Param::Bytes(bytes) => Value::Bytes(bytes.map(<[u8]>::to_vec)),
            Param::Numbers(list) => Value::ints(list.iter().copied()),
            Param::Ints(list) => Value::Ints(list.to_vec()),
            Param::Texts(list) => Value::Texts(list.to_vec()),
            Param::Blobs(list) => Value::Blobs(list.to_vec()),
        }
    }
}

/// What can be a parameter.
pub(crate) trait AsParam {
    /// The parameter that stands for nothing.
    const NULL: Param<'static>;

    fn param(&self) -> Param<'_>;
}

/// The parameters of a statement. They borrow: a value that is made in one of them lives as long as
/// the statement of Rust that this stands in.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        &[$($crate::store::sql::value::AsParam::param(&$value)),*]
    };
}
pub(crate) use params;

/// Parameters that were gathered, as a statement takes them.
pub(crate) fn borrowed(values: &[Value]) -> Vec<Param<'_>> {
    values.iter().map(AsParam::param).collect()
}

impl<T: AsParam + ?Sized> AsParam for &T {
    const NULL: Param<'static> = T::NULL;

    fn param(&self) -> Param<'_> {
        T::param(self)
    }
}

impl<T: AsParam> AsParam for Option<T> {
    const NULL: Param<'static> = T::NULL;

    fn param(&self) -> Param<'_> {
        self.as_ref().map_or(T::NULL, T::param)
    }
}

/// How each of these types is one of the three kinds.
macro_rules! param {
    ($kind:ident: $($ty:ty => |$it:ident| $value:expr;)*) => {$(
        impl AsParam for $ty {
            const NULL: Param<'static> = Param::$kind(None);

            fn param(&self) -> Param<'_> {
                let $it = self;
                Param::$kind(Some($value))
            }
        }
    )*};
}

param! { Int:
    i64 => |it| *it;
    i32 => |it| i64::from(*it);
    u32 => |it| i64::from(*it);
    u16 => |it| i64::from(*it);
    u8 => |it| i64::from(*it);
    bool => |it| i64::from(*it);
    // SQL has signed numbers. What is larger is a bound that is never reached.
    u64 => |it| i64::try_from(*it).unwrap_or(i64::MAX);
    u128 => |it| i64::try_from(*it).unwrap_or(i64::MAX);
    usize => |it| i64::try_from(*it).unwrap_or(i64::MAX);
    Timestamp => |it| it.as_millis();
    RunNo => |it| it.0;
    ShardId => |it| i64::from(it.0);
    RunStatus => |it| i64::from(it.code());
    CancelRequest => |it| i64::from(it.rollback);
    ItemId => |it| i64::try_from(it.0).unwrap_or(i64::MAX);
}

param! { Text:
    str => |it| it;
    String => |it| it;
    Arc<str> => |it| it;
}

param! { Bytes:
    [u8] => |it| it;
    Vec<u8> => |it| it;
    [u8; 8] => |it| it;
    [u8; 16] => |it| it;
    [u8; 32] => |it| it;
    Uuid => |it| it.as_bytes();
    RunId => |it| it.as_bytes();
}

impl AsParam for Value {
    const NULL: Param<'static> = Param::Ints(&[]);

    fn param(&self) -> Param<'_> {
        match self {
            Value::Int(number) => Param::Int(*number),
            Value::Text(text) => Param::Text(text.as_deref()),
            Value::Bytes(bytes) => Param::Bytes(bytes.as_deref()),
            Value::Ints(list) => Param::Ints(list),
            Value::Texts(list) => Param::Texts(list),
            Value::Blobs(list) => Param::Blobs(list),
        }
    }
}

impl AsParam for Vec<i64> {
    const NULL: Param<'static> = Param::Numbers(&[]);

    fn param(&self) -> Param<'_> {
        Param::Numbers(self)
    }
}

impl AsParam for Cell {
    const NULL: Param<'static> = Param::Int(None);

    fn param(&self) -> Param<'_> {
        match self {
            Cell::Int(number) => number.param(),
            Cell::Text(text) => text.param(),
            Cell::Bytes(bytes) => bytes.param(),
        }
    }
}

/// A column of a row as a database has it.
#[derive(Debug)]
pub(crate) enum Datum<'r> {
    Null,
    Int(i64),
    Text(Cow<'r, str>),
    Bytes(&'r [u8]),
}

impl fmt::Display for Datum<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Datum::Null => f.write_str("nothing"),
            Datum::Int(number) => write!(f, "{number}"),
            Datum::Text(text) => f.write_str(text),
            Datum::Bytes(bytes) => write!(f, "{} bytes", bytes.len()),
        }
    }
}

/// A value in a table that no version of this program has written.
#[derive(Debug)]
pub(crate) struct BadValue {
    pub(crate) column: String,
    pub(crate) found: String,
}

impl BadValue {
    pub(crate) fn new(column: &str, found: impl fmt::Display) -> BadValue {
        BadValue { column: column.to_owned(), found: found.to_string() }
    }
}

impl fmt::Display for BadValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let BadValue { column, found } = self;
        write!(f, "the column `{column}` holds `{found}`")
    }
}

impl std::error::Error for BadValue {}

/// A row of an answer.
pub(crate) trait Row {
    fn datum(&self, column: usize) -> Result<Datum<'_>, BadValue>;

    /// How many columns it has.
    fn width(&self) -> usize;

    fn name(&self, column: usize) -> String;
}

impl dyn Row + '_ {
    /// The column as this type.
    pub(crate) fn get<T: FromDatum>(&self, column: usize) -> Result<T, BadValue> {
        T::from_datum(self.datum(column)?).map_err(|found| BadValue::new(&self.name(column), found))
    }
}

/// The columns of a row from one on, one after another.
pub(crate) struct Columns<'r>(pub(crate) &'r dyn Row, pub(crate) usize);

impl Columns<'_> {
    pub(crate) fn next<T: FromDatum>(&mut self) -> Result<T, BadValue> {
        let Columns(row, column) = self;
        *column += 1;
        row.get(*column - 1)
    }
}

/// Reads a struct of which each field is a column, in this order: from the first, or from another.
macro_rules! read {
    ($row:expr, $first:expr => $of:ident { $($field:ident),* $(,)? }) => {{
        let mut columns = $crate::store::sql::value::Columns($row, $first);
        $of { $($field: columns.next()?),* }
    }};
    ($row:expr => $of:ident { $($field:ident),* $(,)? }) => {
        $crate::store::sql::value::read!($row, 0 => $of { $($field),* })
    };
}
pub(crate) use read;

/// What a column can be read as.
pub(crate) trait FromDatum: Sized {
    /// # Errors
    ///
    /// What was found instead.
    fn from_datum(datum: Datum<'_>) -> Result<Self, String>;
}

impl<T: FromDatum> FromDatum for Option<T> {
    fn from_datum(datum: Datum<'_>) -> Result<Option<T>, String> {
        match datum {
            Datum::Null => Ok(None),
            datum => T::from_datum(datum).map(Some),
        }
    }
}

/// How each of these types is made of a kind of column; nothing is made of other values.
macro_rules! from {
    ($($kind:ident => $ty:ty: |$it:ident| $value:expr;)*) => {$(
        impl FromDatum for $ty {
            fn from_datum(datum: Datum<'_>) -> Result<$ty, String> {
                let made: Option<$ty> = match &datum {
                    Datum::$kind($it) => $value,
                    _ => None,
                };
                made.ok_or_else(|| datum.to_string())
            }
        }
    )*};
}

fn code(number: i64) -> Option<u8> {
    u8::try_from(number).ok()
}

from! {
    Int => i64: |it| Some(*it);
    Int => i32: |it| i32::try_from(*it).ok();
    Int => u32: |it| u32::try_from(*it).ok();
    Int => u16: |it| u16::try_from(*it).ok();
    Int => u8: |it| code(*it);
    Int => bool: |it| Some(*it != 0);
    // Never negative where it is read so.
    Int => u64: |it| Some(*it as u64);
    Int => usize: |it| usize::try_from(*it).ok();
    Int => Timestamp: |it| Some(Timestamp::from_millis(*it));
    Int => RunNo: |it| Some(RunNo(*it));
    Int => ShardId: |it| u32::try_from(*it).ok().map(ShardId);
    Int => PoolNo: |it| u32::try_from(*it).ok().map(PoolNo);
    Int => ItemId: |it| Some(ItemId(*it as u64));
    Int => RunStatus: |it| code(*it).and_then(RunStatus::from_code);
    Int => InboxKind: |it| code(*it).and_then(InboxKind::from_code);
    Int => ItemState: |it| code(*it).and_then(ItemState::from_code);
    Int => Close: |it| code(*it).and_then(Close::from_code);
    Int => Overlap: |it| code(*it).and_then(Overlap::from_code);
    Int => CancelRequest: |it| Some(CancelRequest { rollback: *it != 0 });
    Int => Deliver: |it| Some(if *it != 0 { Deliver::One } else { Deliver::Broadcast });
    Int => Duration: |it| u64::try_from(*it).ok().map(Duration::from_millis);
    Text => String: |it| Some(it.clone().into_owned());
    Text => Arc<str>: |it| Some(Arc::from(&**it));
    Text => Role: |it| it.parse().ok();
    Bytes => Vec<u8>: |it| Some(it.to_vec());
    Bytes => Uuid: |it| Uuid::from_slice(it).ok();
    Bytes => RunId: |it| Uuid::from_slice(it).ok().and_then(RunId::from_uuid);
}

/// Tags: a list of JSON, or nothing if there are none.
impl FromDatum for Vec<(String, String)> {
    fn from_datum(datum: Datum<'_>) -> Result<Vec<(String, String)>, String> {
        let json: Option<String> = FromDatum::from_datum(datum)?;
        let tags = json.map(|json| serde_json::from_str(&json).map_err(|error| error.to_string()));
        Ok(tags.transpose()?.unwrap_or_default())
    }
}

impl<const N: usize> FromDatum for [u8; N] {
    fn from_datum(datum: Datum<'_>) -> Result<[u8; N], String> {
        match &datum {
            Datum::Bytes(bytes) => (*bytes).try_into().map_err(|_| datum.to_string()),
            _ => Err(datum.to_string()),
        }
    }
}
