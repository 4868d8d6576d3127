//! The rows of streams.

use super::RunTables;
use crate::{run_id::RunNo, store::StreamRow};

/// How many bytes of bodies a page of a stream has at most. It has one item at least.
pub const PAGE_BYTES_MAX: usize = 4 << 20;

/// Whether `item` fits into a page that has the items of `page` already: for
/// [`Store::stream`](crate::store::Store::stream).
///
/// `bytes` is 0 before the first item of a page. Each call adds the length of the item's body to it. The
/// answer is `true` as long as the sum is at most [`PAGE_BYTES_MAX`], and for the first item of a page.
/// After `false`, the page is complete: the item is left out, and no more items are read.
pub fn fits_page(page: &[StreamRow], bytes: &mut usize, item: &StreamRow) -> bool {
    *bytes += item.body.len();
    *bytes <= PAGE_BYTES_MAX || page.is_empty()
}

/// The rows of streams. They are read and written under the lock of their run.
pub trait StreamTables: RunTables {
    /// The greatest position of a stream.
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, Self::Error>;

    /// Inserts `row` into a stream at the position `row.pos`, which is after the
    /// [end](Self::stream_end) of the stream. Then removes the items whose position is less than
    /// `first_kept`: the oldest ones, if the stream has more than its maximum. `first_kept` is at most
    /// `row.pos`, so that the new item stays; if it is 0, nothing is removed.
    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
        first_kept: u64,
    ) -> Result<(), Self::Error>;
}
