//! Parameters and rows as PostgreSQL takes and gives them.

use std::borrow::Cow;

use bytes::BytesMut;
use tokio_postgres::types::{FromSql, IsNull, ToSql, Type, to_sql_checked};

use super::error::Trouble;
pub(super) use crate::store::sql::value::{BadValue, Param, Row, Value, borrowed, params};
use crate::store::sql::value::{Datum, FromDatum};

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
        [Type::INT8, Type::TEXT, Type::BYTEA, Type::INT8_ARRAY, Type::TEXT_ARRAY, Type::BYTEA_ARRAY]
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
fn restored(text: &str) -> Cow<'_, str> {
    if !text.contains('\x01') {
        return Cow::Borrowed(text);
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
    Cow::Owned(restored)
}

/// A row of an answer.
pub(super) struct PgRow(pub(super) tokio_postgres::Row);

impl PgRow {
    /// The column as this type.
    pub(super) fn get<T: FromDatum>(&self, column: usize) -> Result<T, Trouble> {
        Ok((self as &dyn Row).get(column)?)
    }

    fn cell<'r, T: FromSql<'r>>(
        &'r self,
        column: usize,
        datum: impl FnOnce(T) -> Datum<'r>,
    ) -> Result<Datum<'r>, BadValue> {
        let found = self.0.try_get::<_, Option<T>>(column);
        let found = found.map_err(|error| BadValue::new(&Row::name(self, column), error))?;
        Ok(found.map_or(Datum::Null, datum))
    }
}

impl Row for PgRow {
    fn datum(&self, column: usize) -> Result<Datum<'_>, BadValue> {
        match self.0.columns().get(column).map(|it| it.type_()) {
            Some(&Type::TEXT) => self.cell(column, |text| Datum::Text(restored(text))),
            Some(&Type::BYTEA) => self.cell(column, Datum::Bytes),
            // Columns are numbers; what a query computes may be a truth value.
            Some(&Type::BOOL) => self.cell(column, |is_so: bool| Datum::Int(is_so.into())),
            Some(&Type::INT4) => self.cell(column, |number: i32| Datum::Int(number.into())),
            _ => self.cell(column, Datum::Int),
        }
    }

    fn width(&self) -> usize {
        self.0.len()
    }

    fn name(&self, column: usize) -> String {
        let column = self.0.columns().get(column);
        column.map_or("?", |it| it.name()).to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_text_comes_back_and_keeps_its_place() {
        let texts =
            ["", "\0", "\0\0", "\0\x01", "\0a", "\x01", "\x01\0", "\x01\x02", "\x02", "a\0b", "ä"];
        let all: Vec<String> = texts.iter().map(|it| stored(it).into_owned()).collect();
        assert!(all.is_sorted(), "{all:?}");
        for (text, stored) in texts.iter().zip(all) {
            assert!(!stored.contains('\0'));
            assert_eq!(restored(&stored), *text);
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
