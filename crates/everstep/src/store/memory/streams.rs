//! Streams in memory: [`rules::streams`] decides, this keeps.

use std::{collections::BTreeMap, convert::Infallible};

use super::{
    super::{rules::streams, *},
    Data, Run,
};

/// The items of a run's streams, by stream and position.
pub(super) type Streams = BTreeMap<String, BTreeMap<u64, StreamRow>>;

impl Data {
    /// What a body gives out while it runs.
    pub(super) fn emission(&mut self, emission: &Emission, batch: &Batch) -> Option<Refusal> {
        let head = self.runs.get(&emission.run).map(|run| run.head);
        let refusal = streams::refuse_emission(head.as_ref(), emission);
        if !self.fence_holds(batch.fence) {
            return Some(Refusal::Fenced);
        }
        if refusal.is_some() {
            return refusal;
        }
        let holder = head.and_then(|head| self.shards.get(&head.shard));
        if holder != batch.fence.map(|fence| fence.runner).as_ref() {
            return Some(Refusal::Fenced);
        }
        for emit in &emission.items {
            self.change(emission.run, |run| {
                run.emit(emission.run, emission.generation, batch.now, emit);
            });
        }
        None
    }
}

impl Run {
    pub(super) fn emit(&mut self, no: RunNo, generation: u32, now: Timestamp, emit: &Emit) {
        let Ok(()) = streams::append(&mut self.streams, no, generation, now, emit);
    }

    pub(super) fn stream_page(&self, stream: &str, from: u64, limit: usize) -> StreamPage {
        let StreamExtent { first, next, .. } = self.extent(stream);
        let rows = self.streams.get(stream).into_iter();
        let rows = rows.flat_map(|rows| rows.range(from..).map(|(_, row)| Ok(row.clone())));
        let Ok(items) = streams::page::<Infallible>(rows, limit);
        StreamPage {
            status: self.head.status,
            first,
            next,
            items,
        }
    }

    pub(super) fn extent(&self, stream: &str) -> StreamExtent {
        let rows = self.streams.get(stream);
        let last = rows.and_then(BTreeMap::last_key_value);
        let next = last.map_or(0, |(pos, _)| pos + 1);
        let first = rows.and_then(BTreeMap::first_key_value);
        StreamExtent {
            stream: stream.to_owned(),
            first: first.map_or(next, |(pos, _)| *pos),
            next,
        }
    }
}

impl streams::StreamRows for Streams {
    type Error = Infallible;

    fn last(&mut self, _: RunNo, stream: &str) -> Result<Option<u64>, Infallible> {
        let rows = self.get(stream);
        Ok(rows.and_then(|rows| rows.last_key_value().map(|(pos, _)| *pos)))
    }

    fn insert(&mut self, _: RunNo, stream: &str, row: StreamRow) -> Result<(), Infallible> {
        let rows = self.entry(stream.to_owned()).or_default();
        rows.insert(row.pos, row);
        Ok(())
    }

    fn remove_before(&mut self, _: RunNo, stream: &str, pos: u64) -> Result<(), Infallible> {
        if let Some(rows) = self.get_mut(stream) {
            *rows = rows.split_off(&pos);
        }
        Ok(())
    }
}
