//! What goes into statements and comes out of rows: numbers, texts and bytes, and lists of them.

use std::borrow::Cow;

use bytes::BytesMut;
use tokio_postgres::types::{IsNull, ToSql, Type, to_sql_checked};
use uuid::Uuid;

use super::error::Trouble;

/// A parameter of a statement. Every column is one of the first three.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Value {
    Int(Option<i64>),
    Text(Option<String>),
    Bytes(Option<Vec<u8>>),
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Value {
    pub(super) fn sql_type(&self) -> Type {
        match self {
            Value::Int(_) => Type::INT8,
            Value::Text(_) => Type::TEXT,
            Value::Bytes(_) => Type::BYTEA,
            Value::Ints(_) => Type::INT8_ARRAY,
            Value::Texts(_) => Type::TEXT_ARRAY,
            Value::Blobs(_) => Type::BYTEA_ARRAY,
        }
    }

    /// A column of a statement over arrays that has this value in its first row.
    pub(super) fn into_column(self) -> Value {
        match self {
            Value::Int(value) => Value::Ints(vec![value]),
            Value::Text(value) => Value::Texts(vec![value]),
            Value::Bytes(value) => Value::Blobs(vec![value]),
            column => column,
        }
    }

    /// Adds a row to a column, or puts it in the place of an earlier one.
    pub(super) fn set(&mut self, row: usize, value: Value) {
        fn put<T>(column: &mut Vec<T>, row: usize, value: T) {
            match column.get_mut(row) {
                Some(place) => *place = value,
                None => column.push(value),
            }
        }
        match (self, value) {
            (Value::Ints(column), Value::Int(value)) => put(column, row, value),
            (Value::Texts(column), Value::Text(value)) => put(column, row, value),
            (Value::Blobs(column), Value::Bytes(value)) => put(column, row, value),
            // A statement has the same kinds in each row: they are written in this module's callers.
            (column, value) => debug_assert!(false, "{value:?} in {column:?}"),
        }
    }
}

impl Value {
    /// The rows of a column in this order, each of them once.
    pub(super) fn reorder(&mut self, order: &[usize]) {
        fn take<T: Default>(column: &mut [T], order: &[usize]) -> Vec<T> {
            let next = order.iter().map(|row| std::mem::take(&mut column[*row]));
            next.collect()
        }
        match self {
            Value::Ints(column) => *column = take(column, order),
            Value::Texts(column) => *column = take(column, order),
            Value::Blobs(column) => *column = take(column, order),
            Value::Int(_) | Value::Text(_) | Value::Bytes(_) => {}
        }
    }
}

impl ToSql for Value {
    fn to_sql(
        &self,
        ty: &Type,
        out: &mut BytesMut,
    ) -> Result<IsNull, Box<dyn std::error::Error + Sync + Send>> {
        match self {
            Value::Int(value) => value.to_sql(ty, out),
            Value::Text(value) => value.as_deref().map(stored).to_sql(ty, out),
            Value::Bytes(value) => value.to_sql(ty, out),
            Value::Ints(values) => values.to_sql(ty, out),
            Value::Texts(values) => {
                let values: Vec<_> = values.iter().map(|it| it.as_deref().map(stored)).collect();
                values.to_sql(ty, out)
            }
            Value::Blobs(values) => values.to_sql(ty, out),
        }
    }

    fn accepts(ty: &Type) -> bool {
        [
            Type::INT8,
            Type::TEXT,
            Type::BYTEA,
            Type::INT8_ARRAY,
            Type::TEXT_ARRAY,
            Type::BYTEA_ARRAY,
        ]
        .contains(ty)
    }

    to_sql_checked!();
}

/// A text as the server takes it. It has no zero characters: `\0` becomes `\1\1`, and `\1` becomes
/// `\1\2`, which keeps the order of texts.
fn stored(text: &str) -> Cow<'_, str> {
    if !text.contains(['\0', '\x01']) {
        return Cow::Borrowed(text);
    }
    let mut stored = String::with_capacity(text.len() + 1);
    for char in text.chars() {
        match char {
            '\0' => stored.push_str("\x01\x01"),
            '\x01' => stored.push_str("\x01\x02"),
            char => stored.push(char),
        }
    }
    Cow::Owned(stored)
}

/// A text as it was before it was [`stored`].
fn restored(text: String) -> String {
    if !text.contains('\x01') {
        return text;
    }
    let mut restored = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(char) = chars.next() {
        match (char, char == '\x01') {
            (char, false) => restored.push(char),
            (_, true) => restored.push(match chars.next() {
                Some('\x01') => '\0',
                _ => '\x01',
            }),
        }
    }
    restored
}

/// What can be a parameter.
pub(super) trait IntoValue {
    fn value(&self) -> Value;
}

impl IntoValue for Value {
    fn value(&self) -> Value {
        self.clone()
    }
}

macro_rules! ints {
    ($($ty:ty),*) => {$(
        impl IntoValue for $ty {
            fn value(&self) -> Value {
                Value::Int(Some(i64::from(*self)))
            }
        }
        impl IntoValue for Option<$ty> {
            fn value(&self) -> Value {
                Value::Int(self.map(i64::from))
            }
        }
        impl FromColumn for $ty {
            fn from_column(row: &Row, column: usize) -> Result<$ty, Trouble> {
                let number: i64 = row.cell(column)?;
                <$ty>::try_from(number).map_err(|_| Trouble::value(row.name(column), number))
            }
        }
        impl FromColumn for Option<$ty> {
            fn from_column(row: &Row, column: usize) -> Result<Option<$ty>, Trouble> {
                let Some(number) = row.cell::<Option<i64>>(column)? else {
                    return Ok(None);
                };
                <$ty>::try_from(number)
                    .map(Some)
                    .map_err(|_| Trouble::value(row.name(column), number))
            }
        }
    )*};
}

ints!(i64, i32, u32, u16, u8);

impl IntoValue for bool {
    fn value(&self) -> Value {
        Value::Int(Some(i64::from(*self)))
    }
}

impl IntoValue for Option<bool> {
    fn value(&self) -> Value {
        Value::Int(self.map(i64::from))
    }
}

macro_rules! owned {
    ($kind:ident: $($ty:ty),*) => {$(
        impl IntoValue for $ty {
            fn value(&self) -> Value {
                Value::$kind(Some(<$ty>::clone(self).into()))
            }
        }
        impl IntoValue for Option<$ty> {
            fn value(&self) -> Value {
                Value::$kind(self.clone().map(Into::into))
            }
        }
    )*};
}

owned!(Text: String, &str);
owned!(Bytes: Vec<u8>, &[u8], [u8; 16], &[u8; 16]);

impl IntoValue for str {
    fn value(&self) -> Value {
        Value::Text(Some(self.to_owned()))
    }
}

impl IntoValue for Option<&String> {
    fn value(&self) -> Value {
        Value::Text(self.cloned())
    }
}

impl IntoValue for Option<&Vec<u8>> {
    fn value(&self) -> Value {
        Value::Bytes(self.cloned())
    }
}

impl IntoValue for Uuid {
    fn value(&self) -> Value {
        Value::Bytes(Some(self.as_bytes().to_vec()))
    }
}

impl IntoValue for Vec<i64> {
    fn value(&self) -> Value {
        Value::Ints(self.iter().copied().map(Some).collect())
    }
}

impl IntoValue for &Vec<u8> {
    fn value(&self) -> Value {
        Value::Bytes(Some(self.to_vec()))
    }
}

impl IntoValue for &String {
    fn value(&self) -> Value {
        Value::Text(Some(self.to_string()))
    }
}

/// The parameters of a statement.
macro_rules! params {
    ($($value:expr),* $(,)?) => {
        vec![$($crate::store::postgres::value::IntoValue::value(&$value)),*]
    };
}
pub(super) use params;

/// A row of an answer.
pub(super) struct Row(pub(super) tokio_postgres::Row);

impl Row {
    /// The column as this type.
    pub(super) fn get<T: FromColumn>(&self, column: usize) -> Result<T, Trouble> {
        T::from_column(self, column)
    }

    fn cell<'a, T: tokio_postgres::types::FromSql<'a>>(
        &'a self,
        column: usize,
    ) -> Result<T, Trouble> {
        self.0
            .try_get(column)
            .map_err(|error| Trouble::value(self.name(column), error))
    }

    fn name(&self, column: usize) -> &str {
        self.0.columns().get(column).map_or("?", |it| it.name())
    }
}

/// What a column can be read as.
pub(super) trait FromColumn: Sized {
    fn from_column(row: &Row, column: usize) -> Result<Self, Trouble>;
}

macro_rules! plain {
    ($($ty:ty),*) => {$(
        impl FromColumn for $ty {
            fn from_column(row: &Row, column: usize) -> Result<$ty, Trouble> {
                row.cell(column)
            }
        }
    )*};
}

plain!(Vec<u8>, Option<Vec<u8>>, Vec<i64>);

impl FromColumn for String {
    fn from_column(row: &Row, column: usize) -> Result<String, Trouble> {
        row.cell(column).map(restored)
    }
}

impl FromColumn for Option<String> {
    fn from_column(row: &Row, column: usize) -> Result<Option<String>, Trouble> {
        Ok(row.cell::<Option<String>>(column)?.map(restored))
    }
}

impl FromColumn for bool {
    fn from_column(row: &Row, column: usize) -> Result<bool, Trouble> {
        // Columns are numbers; what a query computes may be a truth value.
        if row.0.columns().get(column).map(|it| it.type_()) == Some(&Type::BOOL) {
            return row.cell(column);
        }
        row.cell::<i64>(column).map(|number| number != 0)
    }
}

impl FromColumn for Option<bool> {
    fn from_column(row: &Row, column: usize) -> Result<Option<bool>, Trouble> {
        if row.0.columns().get(column).map(|it| it.type_()) == Some(&Type::BOOL) {
            return row.cell(column);
        }
        let number = row.cell::<Option<i64>>(column)?;
        Ok(number.map(|number| number != 0))
    }
}

impl FromColumn for [u8; 16] {
    fn from_column(row: &Row, column: usize) -> Result<[u8; 16], Trouble> {
        let bytes: &[u8] = row.cell(column)?;
        bytes
            .try_into()
            .map_err(|_| Trouble::value(row.name(column), format!("{} bytes", bytes.len())))
    }
}

impl FromColumn for Option<[u8; 16]> {
    fn from_column(row: &Row, column: usize) -> Result<Option<[u8; 16]>, Trouble> {
        let Some(bytes) = row.cell::<Option<&[u8]>>(column)? else {
            return Ok(None);
        };
        bytes
            .try_into()
            .map(Some)
            .map_err(|_| Trouble::value(row.name(column), format!("{} bytes", bytes.len())))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_keeps_its_place() {
        let texts = [
            "", "\0", "\0\0", "\0\x01", "\0a", "\x01", "\x01\0", "\x01\x02", "\x02", "a\0b", "ä",
        ];
        let all: Vec<String> = texts.iter().map(|it| stored(it).into_owned()).collect();
        assert!(all.is_sorted(), "{all:?}");
        for (text, stored) in texts.iter().zip(all) {
            assert!(!stored.contains('\0'));
            assert_eq!(restored(stored), *text);
        }
    }

    #[test]
    fn a_column_is_put_into_another_order() {
        let mut column = Value::Texts(vec![Some("b".into()), None, Some("a".into())]);
        column.reorder(&[2, 0, 1]);
        let wanted = vec![Some("a".into()), Some("b".into()), None];
        assert_eq!(column, Value::Texts(wanted));
    }
}
