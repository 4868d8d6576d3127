//! The rows of deferreds in memory.

use std::{
    collections::{BTreeMap, BTreeSet},
    convert::Infallible,
};

use super::Data;
use crate::{
    run_id::RunNo,
    store::rules::{
        deferreds::{DeferredTables, Place, SettledRow},
        tables::Waiter,
    },
    token::Secret,
};

#[derive(Clone)]
pub(super) struct Deferreds {
    pub(super) secret: Secret,
    settled: BTreeMap<Place, SettledRow>,
    pub(super) waits: BTreeSet<(Place, Vec<u8>)>,
}

impl Default for Deferreds {
    fn default() -> Deferreds {
        Deferreds {
            secret: Secret::of_this_process(),
            settled: BTreeMap::new(),
            waits: BTreeSet::new(),
        }
    }
}

impl Data {
    /// A run is deleted.
    pub(super) fn forget_deferreds(&mut self, run: RunNo) {
        self.deferreds.waits.retain(|(place, _)| place.run != run);
        self.deferreds.settled.retain(|place, _| place.run != run);
    }
}

impl DeferredTables for Data {
    fn settled(&mut self, of: &Place) -> Result<Option<SettledRow>, Infallible> {
        Ok(self.deferreds.settled.get(of).cloned())
    }

    fn put_settled(&mut self, of: &Place, row: &SettledRow) -> Result<(), Infallible> {
        self.deferreds.settled.insert(*of, row.clone());
        self.rows_written += 1;
        Ok(())
    }

    fn add_deferred_wait(&mut self, of: &Place, key: &[u8]) -> Result<(), Infallible> {
        self.deferreds.waits.insert((*of, key.to_vec()));
        self.rows_written += 1;
        Ok(())
    }

    fn take_deferred_waits(&mut self, of: &Place) -> Result<Vec<Vec<u8>>, Infallible> {
        let waits = self.deferreds.waits.iter();
        let keys = waits.filter(|(place, _)| place == of);
        let keys = keys.map(|(_, key)| key.clone()).collect();
        self.deferreds.waits.retain(|(place, _)| place != of);
        Ok(keys)
    }

    fn remove_deferred_wait(&mut self, waiter: &Waiter) -> Result<(), Infallible> {
        self.deferreds.waits.retain(|(place, key)| {
            place.run != waiter.run || place.generation != waiter.generation || *key != waiter.key
        });
        Ok(())
    }

    fn remove_deferred_waits(&mut self, run: RunNo) -> Result<(), Infallible> {
        self.deferreds.waits.retain(|(place, _)| place.run != run);
        Ok(())
    }

    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> Result<(), Infallible> {
        let kept = |place: &Place| place.run != run || place.generation >= generation;
        self.deferreds.settled.retain(|place, _| kept(place));
        Ok(())
    }
}
