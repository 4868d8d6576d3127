//! Changes that mend what is wrong with the rows of a store.

use crate::run_id::RunNo;

/// A change that mends something: see [`Write::Mend`](super::Write::Mend). It is made only if
/// what it mends is still so.
#[derive(Clone, Debug)]
pub enum Mend {
    /// What the rule says for its rows.
    Row {
        /// The number of the rule.
        rule: usize,
        /// The row.
        row: Vec<Cell>,
    },
    /// Removes an entry of the history of a run that is paused, so that its operation registers
    /// again. Not if it is registered or answered.
    RemoveEntry {
        /// The run.
        run: RunNo,
        /// The key of the entry.
        key: Vec<u8>,
        /// The entry as it was seen.
        value: Vec<u8>,
    },
    /// The row of a run no longer says what its last number is: its owner finds it in the history.
    ForgetNumber {
        /// The run.
        run: RunNo,
        /// The number as it was seen.
        last_number: i64,
    },
    /// Puts a run that is in nobody's memory into another shard.
    Shard {
        /// The run.
        run: RunNo,
        /// The shard as it was seen.
        from: i64,
        /// The shard that it belongs to.
        to: i64,
    },
}

/// A value of a row, as far as rows are named by it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Cell {
    /// A number.
    Int(i64),
    /// A text.
    Text(String),
    /// Bytes.
    Bytes(Vec<u8>),
}
