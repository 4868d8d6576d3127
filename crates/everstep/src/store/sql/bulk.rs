//! Statements that say the same about one row or about many.
//!
//! PostgreSQL gathers the rows of a batch and writes them by one statement over arrays; SQLite writes
//! each at once. Both texts are made from one list of columns.

use std::sync::OnceLock;

/// A statement about rows of one table.
pub(crate) struct Bulk {
    /// The table that it changes. Statements about the same row of a table stay in order.
    pub(crate) table: &'static str,
    /// How many of its columns, from the first, name the row: a second write of the same row in one
    /// statement takes the place of the first. The first column is a number.
    pub(crate) unique: usize,
    /// The name and the type of each column, as in `run bigint, key text`.
    columns: &'static str,
    does: Does,
    texts: OnceLock<Texts<String>>,
}

enum Does {
    Insert,
    /// Inserts rows that are not there yet.
    InsertNew,
    /// Inserts rows, or changes those that are there.
    Put,
    /// Changes the rows that the first columns name.
    Update,
    /// Deletes the rows that are named by all columns.
    Delete,
    /// What these texts say.
    Written(Texts<&'static str>),
}

/// About one row, and over arrays.
struct Texts<T> {
    one: T,
    #[cfg_attr(
        not(any(feature = "postgres", test)),
        expect(dead_code, reason = "only PostgreSQL writes many rows at once")
    )]
    many: T,
}

impl Bulk {
    const fn new(table: &'static str, unique: usize, columns: &'static str, does: Does) -> Bulk {
        let texts = OnceLock::new();
        Bulk { table, unique, columns, does, texts }
    }

    /// Inserts rows, each of them once: no two of a batch have the same first columns.
    pub(crate) const fn insert(table: &'static str, unique: usize, columns: &'static str) -> Bulk {
        Bulk::new(table, unique, columns, Does::Insert)
    }

    /// Inserts rows that are not there yet, and leaves the others as they are.
    pub(crate) const fn insert_new(
        table: &'static str,
        unique: usize,
        columns: &'static str,
    ) -> Bulk {
        Bulk::new(table, unique, columns, Does::InsertNew)
    }

    /// Inserts rows, or writes them over those with the same first columns, which are the primary
    /// key.
    pub(crate) const fn put(table: &'static str, unique: usize, columns: &'static str) -> Bulk {
        Bulk::new(table, unique, columns, Does::Put)
    }

    /// Writes the other columns of the rows that the first ones name.
    pub(crate) const fn update(table: &'static str, unique: usize, columns: &'static str) -> Bulk {
        Bulk::new(table, unique, columns, Does::Update)
    }

    /// Deletes the rows that these columns name.
    pub(crate) const fn delete(table: &'static str, unique: usize, columns: &'static str) -> Bulk {
        Bulk::new(table, unique, columns, Does::Delete)
    }

    /// These two texts: about one row, and over arrays.
    pub(crate) const fn written(
        table: &'static str,
        unique: usize,
        one: &'static str,
        many: &'static str,
    ) -> Bulk {
        let does = Does::Written(Texts { one, many });
        Bulk::new(table, unique, "", does)
    }

    /// This text over arrays, for what only PostgreSQL does so.
    #[cfg(feature = "postgres")]
    pub(crate) const fn over_arrays(
        table: &'static str,
        unique: usize,
        many: &'static str,
    ) -> Bulk {
        Bulk::written(table, unique, "", many)
    }

    /// The statement about one row.
    pub(crate) fn one(&'static self) -> &'static str {
        match &self.does {
            Does::Written(texts) => texts.one,
            _ => &self.texts().one,
        }
    }

    /// The statement over arrays, one element of each for a row.
    #[cfg(any(feature = "postgres", test))]
    pub(crate) fn many(&'static self) -> &'static str {
        match &self.does {
            Does::Written(texts) => texts.many,
            _ => &self.texts().many,
        }
    }

    fn texts(&'static self) -> &'static Texts<String> {
        self.texts.get_or_init(|| self.make_texts())
    }

    fn make_texts(&self) -> Texts<String> {
        let table = self.table;
        let columns: Vec<Column> = Column::parse(self.columns).collect();
        let (keys, rest) = columns.split_at(self.unique.min(columns.len()));
        let list = join(&columns, ", ", |it| it.name.to_owned());
        let params = join(&columns, ", ", |it| format!("?{}", it.place));
        let arrays = join(&columns, ", ", |it| format!("?{}::{}[]", it.place, it.kind));
        let is_param = |it: &Column| format!("{} = ?{}", it.name, it.place);
        let is_new = |it: &Column| format!("{table}.{0} = new.{0}", it.name);
        let [one, many] = match self.does {
            Does::Update => {
                let (set, which) = (join(rest, ", ", is_param), join(keys, " AND ", is_param));
                let new = join(rest, ", ", |it| format!("{0} = new.{0}", it.name));
                let met = join(keys, " AND ", is_new);
                [
                    format!("UPDATE {table} SET {set} WHERE {which}"),
                    format!(
                        "UPDATE {table} SET {new} FROM unnest({arrays}) AS new ({list}) WHERE {met}"
                    ),
                ]
            }
            Does::Delete => {
                let (which, met) =
                    (join(&columns, " AND ", is_param), join(&columns, " AND ", is_new));
                let many = match &columns[..] {
                    [only] => format!("WHERE {} = ANY (?1)", only.name),
                    _ => format!("USING unnest({arrays}) AS new ({list}) WHERE {met}"),
                };
                [
                    format!("DELETE FROM {table} WHERE {which}"),
                    format!("DELETE FROM {table} {many}"),
                ]
            }
            Does::Insert | Does::InsertNew | Does::Put | Does::Written(..) => {
                let on_conflict = match self.does {
                    Does::InsertNew => " ON CONFLICT DO NOTHING".to_owned(),
                    Does::Put => {
                        let keys = join(keys, ", ", |it| it.name.to_owned());
                        let set = join(rest, ", ", |it| format!("{0} = excluded.{0}", it.name));
                        format!(" ON CONFLICT ({keys}) DO UPDATE SET {set}")
                    }
                    _ => String::new(),
                };
                let into = format!("INSERT INTO {table} ({list})");
                [
                    format!("{into} VALUES ({params}){on_conflict}"),
                    format!("{into} SELECT * FROM unnest({arrays}){on_conflict}"),
                ]
            }
        };
        Texts { one, many }
    }
}

/// A column of a statement.
struct Column {
    name: &'static str,
    kind: &'static str,
    /// The number of its parameter.
    place: usize,
}

impl Column {
    fn parse(columns: &'static str) -> impl Iterator<Item = Column> {
        let columns = columns.split(", ").filter_map(|it| it.split_once(' '));
        let numbered = columns.zip(1..);
        numbered.map(|((name, kind), place)| Column { name, kind, place })
    }
}

fn join(columns: &[Column], with: &str, text: impl Fn(&Column) -> String) -> String {
    let texts: Vec<String> = columns.iter().map(text).collect();
    texts.join(with)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_of_columns_becomes_both_statements() {
        static PUT: Bulk = Bulk::put("t", 2, "run bigint, key bytea, at bigint, name text");
        assert_eq!(
            PUT.one(),
            "INSERT INTO t (run, key, at, name) VALUES (?1, ?2, ?3, ?4) \
             ON CONFLICT (run, key) DO UPDATE SET at = excluded.at, name = excluded.name"
        );
        assert_eq!(
            PUT.many(),
            "INSERT INTO t (run, key, at, name) \
             SELECT * FROM unnest(?1::bigint[], ?2::bytea[], ?3::bigint[], ?4::text[]) \
             ON CONFLICT (run, key) DO UPDATE SET at = excluded.at, name = excluded.name"
        );
        static UPDATE: Bulk = Bulk::update("t", 1, "run bigint, at bigint, name text");
        assert_eq!(UPDATE.one(), "UPDATE t SET at = ?2, name = ?3 WHERE run = ?1");
        assert_eq!(
            UPDATE.many(),
            "UPDATE t SET at = new.at, name = new.name \
             FROM unnest(?1::bigint[], ?2::bigint[], ?3::text[]) AS new (run, at, name) \
             WHERE t.run = new.run"
        );
        static DELETE: Bulk = Bulk::delete("t", 2, "run bigint, key bytea");
        assert_eq!(DELETE.one(), "DELETE FROM t WHERE run = ?1 AND key = ?2");
        assert_eq!(
            DELETE.many(),
            "DELETE FROM t USING unnest(?1::bigint[], ?2::bytea[]) AS new (run, key) \
             WHERE t.run = new.run AND t.key = new.key"
        );
        static ONE_KEY: Bulk = Bulk::delete("t", 1, "run bigint");
        assert_eq!(ONE_KEY.many(), "DELETE FROM t WHERE run = ANY (?1)");
    }
}
