//! The rows of deferreds in memory.

use super::{
    rows::{DeferredId, DeferredTables, Of, SettledRow, Waiter},
    *,
};

#[derive(Clone)]
pub(super) struct Deferreds {
    pub(super) secret: Secret,
    settled: BTreeMap<DeferredId, SettledRow>,
    pub(super) waits: BTreeSet<(DeferredId, Vec<u8>)>,
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
    fn settled(&mut self, of: &DeferredId) -> Result<Option<SettledRow>, Infallible> {
        Ok(self.deferreds.settled.get(of).cloned())
    }

    fn put_settled(&mut self, of: &DeferredId, row: &SettledRow) -> Result<(), Infallible> {
        self.deferreds.settled.insert(*of, row.clone());
        self.rows_written += 1;
        Ok(())
    }

    fn add_deferred_wait(&mut self, of: &DeferredId, key: &[u8]) -> Result<(), Infallible> {
        self.deferreds.waits.insert((*of, key.to_vec()));
        self.rows_written += 1;
        Ok(())
    }

    fn take_deferred_waits(&mut self, of: &DeferredId) -> Result<Vec<Vec<u8>>, Infallible> {
        let waits = self.deferreds.waits.iter();
        let keys = waits.filter(|(place, _)| place == of);
        let keys = keys.map(|(_, key)| key.clone()).collect();
        self.deferreds.waits.retain(|(place, _)| place != of);
        Ok(keys)
    }

    fn remove_deferred_waits(&mut self, of: Of<'_>) -> Result<(), Infallible> {
        self.deferreds.waits.retain(|(DeferredId { run, generation, .. }, key)| {
            let (run, generation, key) = (*run, *generation, key.clone());
            !of.includes(&Waiter { run, generation, key })
        });
        Ok(())
    }

    fn remove_settled_before(&mut self, run: RunNo, generation: u32) -> Result<(), Infallible> {
        let kept = |place: &DeferredId| place.run != run || place.generation >= generation;
        self.deferreds.settled.retain(|place, _| kept(place));
        Ok(())
    }
}
