//! The names of pools in memory.

use super::*;

/// The names of pools, by number.
#[derive(Clone)]
pub(super) struct PoolNames(Vec<Arc<str>>);

impl Default for PoolNames {
    fn default() -> PoolNames {
        PoolNames(vec![Arc::from("default")])
    }
}

impl PoolNames {
    /// The number of the pool with this name, which is made if there is none.
    pub(super) fn no(&mut self, name: &str) -> PoolNo {
        let found = self.0.iter().position(|known| **known == *name);
        let no = found.unwrap_or_else(|| {
            self.0.push(Arc::from(name));
            self.0.len() - 1
        });
        PoolNo(no as u32)
    }

    pub(super) fn rows(&self) -> Vec<PoolRow> {
        let rows = self
            .0
            .iter()
            .enumerate()
            .map(|(no, name)| PoolRow { no: PoolNo(no as u32), name: Arc::clone(name) });
        rows.collect()
    }
}
