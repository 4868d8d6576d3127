//! The rows of streams.

use super::RunTables;
use crate::{run_id::RunNo, store::StreamRow};

/// How many bytes of bodies a page of a stream has at most. It has one item at least.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Whether one more item fits into a page of these, which has so many bytes. Counts the item: for
/// [`Store::stream`](crate::store::Store::stream).
pub fn fits_page(page: &[StreamRow], bytes: &mut usize, item: &StreamRow) -> bool {
    *bytes += item.body.len();
    *bytes <= PAGE_BYTES_MAX || page.is_empty()
}

/// The rows of streams. They are read and written under the lock of their run.
pub trait StreamTables: RunTables {
    /// The greatest position of a stream.
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, Self::Error>;

    /// Inserts an item, at a position after all others. Then removes all items before `first_kept`,
    /// which is not after that position; at 0 there are none.
    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
        first_kept: u64,
    ) -> Result<(), Self::Error>;
}
