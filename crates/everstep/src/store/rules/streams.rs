//! What every store decides the same way about streams: who may append, which position an item
//! gets, and which items make room for it.

use crate::{
    run_id::RunNo,
    store::{Emission, Emit, Refusal, StreamRow},
};

use super::{Head, tables::Tables};

/// How many bytes of bodies one page has at most. It has one item at least.
pub(crate) const PAGE_BYTES_MAX: usize = 4 << 20;

/// The rows of streams, within one batch.
pub(crate) trait StreamTables: Tables {
    /// The newest position of a stream.
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, Self::Error>;

    /// Writes an item.
    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
    ) -> Result<(), Self::Error>;

    /// Removes all items before this position.
    fn trim_stream(&mut self, run: RunNo, stream: &str, pos: u64) -> Result<(), Self::Error>;
}

/// Why the items of a body are not taken from an owner whose fence holds; none if they are. As with
/// results, a cancel or a pause does not refuse them.
pub(crate) fn refuse_emission(head: Option<&Head>, emission: &Emission) -> Option<Refusal> {
    let is_live = head
        .is_some_and(|head| head.generation == emission.generation && !head.status.is_terminal());
    (!is_live).then_some(Refusal::Gone)
}

/// Appends an item to its stream, and lets the oldest ones go that are too many.
pub(crate) fn append<T: StreamTables>(
    tables: &mut T,
    run: RunNo,
    generation: u32,
    emit: &Emit,
) -> Result<(), T::Error> {
    let end = tables.stream_end(run, &emit.stream)?;
    let pos = end.map_or(0, |last| last + 1);
    let row = StreamRow {
        pos,
        at: tables.now(),
        generation,
        by: emit.by.clone(),
        body: emit.body.clone(),
    };
    tables.append_to_stream(run, &emit.stream, row)?;
    // The newest one always stays: the next position follows from it.
    let kept = emit.items_max.max(1);
    match (pos + 1).checked_sub(kept) {
        None | Some(0) => Ok(()),
        Some(first) => tables.trim_stream(run, &emit.stream, first),
    }
}

/// Whether one more item fits into a page of these, which has so many bytes. It counts the item.
pub(crate) fn fits(page: &[StreamRow], bytes: &mut usize, item: &StreamRow) -> bool {
    *bytes += item.body.len();
    *bytes <= PAGE_BYTES_MAX || page.is_empty()
}
