//! Streams and values: no item is missing or there twice, those of an attempt that was given up are
//! marked, and the last value is the one that the code has set last.

use std::collections::{BTreeMap, BTreeSet};

use everstep::{
    RunId, RunStatus, StreamItem,
    store::{MemoryStore, RunRow, Store, StreamRow},
    testing::internal,
};

use super::{
    Promise,
    ending::is_fork,
    ledger::{Got, Ledger, Taken},
    requests::Request,
};
use crate::work::streams::{Followed, OF_BODIES, STATE, STREAMS, stream};

/// What the code of a run has given out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Shown {
    Item(u32, String),
    State(String),
}

/// What a follower was given.
#[derive(Clone, Debug)]
pub(crate) struct Follow {
    pub(crate) run: RunId,
    pub(crate) what: Followed,
    pub(crate) seen: Vec<String>,
    /// It was told that the run has ended and nothing more comes.
    pub(crate) is_over: bool,
}

/// A body that has given a value, by that value: its number, and how many items it has given.
pub(crate) type Emitters = BTreeMap<u64, (u64, u32)>;

/// The item of a body.
pub(crate) fn item_of_body(at: &str, index: u32, body: u64) -> String {
    format!("{at}:{index}:{body}")
}

impl Ledger {
    /// A follower is given an item: the one after the last.
    pub(crate) fn check_followed(
        &self,
        run: RunId,
        seen: &[StreamItem<String>],
        item: &StreamItem<String>,
    ) {
        let expected = seen.len() as u64;
        if (item.position, item.missed) != (expected, 0) {
            let what = format!("a follower of run {run} is given {item:?} for {expected}");
            self.violate(Promise::StreamsAreWhole, what);
        }
        let of = |other: &StreamItem<String>| {
            let by = other.by.as_ref()?;
            let is_same = by.location == item.by.as_ref()?.location;
            (is_same && other.generation == item.generation).then_some((by.attempt, by.life))
        };
        let before = seen.iter().rev().find_map(of);
        let is_other = before.is_some() && before != of(item);
        if is_other != item.restarted {
            let what = format!("run {run}: {item:?} comes after {before:?}");
            self.violate(Promise::StreamsAreWhole, what);
        }
    }

    /// What is stored of what a run has given out, at the end; `has_ended` says whether its code has come to
    /// its end in a replay, too.
    pub(crate) fn check_shown(
        &self,
        row: &RunRow,
        shown: &[Shown],
        taken: &[Taken],
        has_ended: bool,
    ) {
        let Some(data) = self.data() else { return };
        self.check_positions(data, row);
        self.check_bodies(data, row, taken);
        self.check_follows(data, row);
        if is_fork(row) || row.attempts > 1 {
            // What a fork has taken over is not given out again, and what an attempt makes fresh is.
            return;
        }
        // A replay of a cancelled run ends where the history does: what its code has given out after that
        // may be stored or not.
        let is_whole = has_ended && row.status != RunStatus::Cancelled;
        for number in 0..STREAMS as u32 {
            let rows = stored(data, row.id, &stream(number));
            let given = shown.iter().filter_map(|shown| match shown {
                Shown::Item(of, text) if *of == number => Some(text.clone()),
                _ => None,
            });
            let given: Vec<String> = given.collect();
            // A replay gives out what the last generation has given.
            let of_last = |text: &String| text.starts_with(&format!("{}.", row.generation));
            let kept: Vec<String> = rows.iter().filter_map(text).filter(of_last).collect();
            let is_right = match is_whole {
                true => given == kept,
                false => given.starts_with(&kept) || kept.starts_with(&given),
            };
            let is_once = kept.iter().collect::<BTreeSet<_>>().len() == kept.len();
            if !is_right || !is_once {
                let what = format!("run {}: stream {number} is {kept:?}, not {given:?}", row.id);
                self.violate(Promise::StreamsAreWhole, what);
            }
        }
        if !is_whole {
            return;
        }
        let states = shown.iter().filter_map(|shown| match shown {
            Shown::State(text) => Some(text.clone()),
            Shown::Item(..) => None,
        });
        let states: Vec<String> = states.collect();
        let state = state(data, row.id);
        if states.is_empty() && row.generation > 1 {
            // It may be that of an earlier one.
            return;
        }
        if state.as_ref() != states.last() {
            let what = format!("run {}: the state is {state:?}, of {states:?}", row.id);
            self.violate(Promise::StreamsAreWhole, what);
        }
    }

    /// Positions have no gap.
    fn check_positions(&self, data: &MemoryStore, row: &RunRow) {
        for extent in data.streams(row.id.no()).unwrap_or_default() {
            let rows = stored(data, row.id, &extent.stream);
            let positions = rows.iter().map(|row| row.pos);
            if !positions.eq(0..extent.next) {
                let what = format!("run {}: {extent:?} has {} items", row.id, rows.len());
                self.violate(Promise::StreamsAreWhole, what);
            }
        }
    }

    /// A body whose result was taken has given all of its items, in order, once; none has given one twice.
    fn check_bodies(&self, data: &MemoryStore, row: &RunRow, taken: &[Taken]) {
        let mut bodies: BTreeMap<u64, Vec<u32>> = BTreeMap::new();
        for item in stored(data, row.id, OF_BODIES).iter().filter_map(text) {
            let mut parts = item.rsplit(':');
            let body = parts.next().and_then(|body| body.parse().ok()).unwrap_or_default();
            let index = parts.next().and_then(|index| index.parse().ok()).unwrap_or_default();
            bodies.entry(body).or_default().push(index);
        }
        for (body, items) in &bodies {
            if !items.is_sorted_by(|one, next| one < next) {
                let what = format!("run {}: body {body} has given {items:?}", row.id);
                self.violate(Promise::StreamsAreWhole, what);
            }
        }
        // What was taken over by a fork is in the streams of the other run.
        for taken in taken.iter().filter(|_| !is_fork(row)) {
            let Got::Value(value) = taken.got else {
                continue;
            };
            let emitter = self.book().emitters.get(&value).copied();
            let Some((body, emits)) = emitter else {
                continue;
            };
            let items = bodies.get(&body).cloned().unwrap_or_default();
            if !items.iter().copied().eq(0..emits) {
                let (id, at) = (row.id, &taken.at);
                let what = format!("run {id}: `{at}` has given {items:?} of {emits} items");
                self.violate(Promise::StreamsAreWhole, what);
            }
        }
    }

    /// What followers were given is what is there.
    fn check_follows(&self, data: &MemoryStore, row: &RunRow) {
        let follows = self.book().follows.clone();
        let is_tried_again = self.book().requests.was_asked(row.id, Request::Retry);
        for follow in follows.iter().filter(|follow| follow.run == row.id) {
            let is_right = match follow.what {
                Followed::State => {
                    let last = state(data, row.id);
                    !follow.is_over || is_tried_again || follow.seen.last() == last.as_ref()
                }
                Followed::Stream(_) | Followed::Bodies => {
                    let rows = stored(data, row.id, &follow.what.name());
                    let all: Vec<String> = rows.iter().filter_map(text).collect();
                    let is_all = all.len() == follow.seen.len();
                    all.starts_with(&follow.seen) && (!follow.is_over || is_all || is_tried_again)
                }
            };
            if !is_right {
                let what = format!("{follow:?} is not what is stored");
                self.violate(Promise::StreamsAreWhole, what);
            }
        }
    }
}

fn stored(data: &MemoryStore, run: RunId, stream: &str) -> Vec<StreamRow> {
    let page = data.stream(run.no(), stream, 0, usize::MAX);
    page.ok().flatten().map(|page| page.items).unwrap_or_default()
}

fn state(data: &MemoryStore, run: RunId) -> Option<String> {
    let all = data.state(run.no()).unwrap_or_default();
    let (_, bytes) = all.into_iter().find(|(key, _)| key == STATE)?;
    internal::decode_text(&bytes)
}

fn text(row: &StreamRow) -> Option<String> {
    internal::decode_text(&row.body)
}
