//! What every store decides the same way about streams: who may append, which position an item
//! gets, and which items make room for it.

use crate::{
    run_id::RunNo,
    store::{
        Emission, Emit, Refusal, StreamRow,
        rows::{Head, StreamTables},
    },
};

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
    // The newest one always stays: the next position follows from it.
    let first_kept = (pos + 1).saturating_sub(emit.items_max.max(1));
    tables.append_to_stream(run, &emit.stream, row, first_kept)
}
