//! Streams in memory.

use super::{
    rows::{StreamTables, fits_page},
    *,
};

/// The items of a run's streams, by stream and position.
pub(super) type Streams = BTreeMap<String, BTreeMap<u64, StreamRow>>;

impl Run {
    pub(super) fn stream_page(&self, stream: &str, from: u64, limit: usize) -> StreamPage {
        let StreamExtent { first, next, .. } = self.extent(stream);
        let rows = self.streams.get(stream).into_iter();
        let rows = rows.flat_map(|rows| rows.range(from..));
        let (mut items, mut bytes) = (Vec::new(), 0);
        for (_, row) in rows.take(limit) {
            if !fits_page(&items, &mut bytes, row) {
                break;
            }
            items.push(row.clone());
        }
        StreamPage { status: self.head.status, first, next, items }
    }

    pub(super) fn extent(&self, stream: &str) -> StreamExtent {
        let rows = self.streams.get(stream);
        let last = rows.and_then(BTreeMap::last_key_value);
        let next = last.map_or(0, |(pos, _)| pos + 1);
        let first = rows.and_then(BTreeMap::first_key_value);
        StreamExtent { stream: stream.to_owned(), first: first.map_or(next, |(pos, _)| *pos), next }
    }
}

impl StreamTables for Data {
    fn stream_end(&mut self, run: RunNo, stream: &str) -> Result<Option<u64>, Infallible> {
        let rows = self.runs.get(&run).and_then(|run| run.streams.get(stream));
        Ok(rows.and_then(|rows| rows.last_key_value().map(|(pos, _)| *pos)))
    }

    fn append_to_stream(
        &mut self,
        run: RunNo,
        stream: &str,
        row: StreamRow,
        first_kept: u64,
    ) -> Result<(), Infallible> {
        self.change(run, |run| {
            let rows = run.streams.entry(stream.to_owned()).or_default();
            rows.insert(row.pos, row);
            while rows.first_key_value().is_some_and(|(pos, _)| *pos < first_kept) {
                rows.pop_first();
            }
        });
        Ok(())
    }
}
