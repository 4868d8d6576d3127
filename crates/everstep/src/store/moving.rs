//! The rows of a store as they are moved to another one: tables and columns, not what is in them.
//!
//! [`crate::moving`] says in which order a store is moved.

/// A table of a store that is moved.
pub(crate) struct Table {
    pub(crate) name: String,
    pub(crate) columns: Vec<Column>,
    pub(crate) rows: u64,
}

pub(crate) struct Column {
    pub(crate) name: String,
    pub(crate) kind: Kind,
}

/// What a column holds, besides null.
#[derive(Clone, Copy)]
pub(crate) enum Kind {
    Int,
    Text,
    Bytes,
}

/// Some rows of a table, by column.
pub(crate) struct Page {
    pub(crate) columns: Vec<Cells>,
    pub(crate) rows: usize,
}

/// A column of a page.
pub(crate) enum Cells {
    Ints(Vec<Option<i64>>),
    Texts(Vec<Option<String>>),
    Blobs(Vec<Option<Vec<u8>>>),
}

impl Page {
    /// An empty page of this table.
    pub(crate) fn of(table: &Table) -> Page {
        let columns = table.columns.iter().map(|column| match column.kind {
            Kind::Int => Cells::Ints(Vec::new()),
            Kind::Text => Cells::Texts(Vec::new()),
            Kind::Bytes => Cells::Blobs(Vec::new()),
        });
        Page { columns: columns.collect(), rows: 0 }
    }
}

/// The greatest numbers that a store has given out.
pub(crate) struct Numbers {
    pub(crate) queue_items: i64,
    pub(crate) dead_letters: i64,
    pub(crate) audit: i64,
    pub(crate) epoch: i64,
}
