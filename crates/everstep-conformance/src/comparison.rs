//! Random batches that a model and a store make, and all that is then compared.

use super::*;

/// How many batches two stores are compared with.
pub(super) const BATCHES: usize = 150;

/// A model and a store that have made the same batches so far.
pub(super) struct Comparison<'a> {
    seed: u64,
    pub(super) random: Random,
    model: &'a dyn Store,
    /// Of the runner that owns the shards, in both.
    fence: Fence,
    /// How many batches there were.
    count: i64,
}

impl<'a> Comparison<'a> {
    /// Begins with a store that is empty, as the model is.
    pub(super) fn begin(model: &'a dyn Store, store: &dyn Store, seed: u64) -> Comparison<'a> {
        let [fence, of_store] = [model, store].map(|store| {
            store.migrate().expect("migrate");
            let runner = NewRunner {
                pools: vec!["default".to_owned(), "gpu".to_owned()],
                ..NewRunner::new(Uuid::from_name("first"), "first", START, LEASE)
            };
            let fence = store.register_runner(&runner).expect("register_runner");
            let shards = ShardSet::of_pools([PoolNo(0), PoolNo(1)]);
            store.take_shards(fence, START, &shards, &[]).expect("take_shards");
            fence
        });
        assert_eq!(fence, of_store, "seed {seed}");
        Comparison { seed, random: Random::new(seed), model, fence, count: 0 }
    }

    /// From now on the store is opened again now and then, or forgets what it remembers of rows.
    pub(super) fn forgets(mut self) -> Comparison<'a> {
        self.random.knows_numbers = false;
        self
    }

    /// The next batch.
    pub(super) fn batch(&mut self) -> Batch {
        self.count += 1;
        self.random.batch(self.model, self.fence, at(self.count))
    }

    /// Makes the next batch in both.
    pub(super) fn step(&mut self, store: &dyn Store) {
        let batch = self.batch();
        self.make(store, &batch);
    }

    /// Makes this batch in both.
    pub(super) fn make(&mut self, store: &dyn Store, batch: &Batch) {
        let got = store.commit(batch).expect("commit");
        self.made(store, batch, Some(&got));
    }

    /// The store has made this batch, and its answer, if there was one, must be that of the model.
    pub(super) fn made(&mut self, store: &dyn Store, batch: &Batch, got: Option<&Applied>) {
        let wanted = self.model.commit(batch).expect("commit");
        if let Some(got) = got {
            assert_eq!(*got, wanted, "seed {}, batch {}: {batch:#?}", self.seed, self.count);
        }
        self.random.open_numbers.after(self.model, batch, &wanted.outcomes);
        if self.random.one_in(10) {
            for store in [self.model, store] {
                while store.sweep(at(self.count), 5).expect("sweep") {}
            }
        }
        self.read(store, &format!("{batch:#?}"));
    }

    /// Compares everything that can be read, after this.
    pub(super) fn read(&self, store: &dyn Store, after: &str) {
        let [wanted, got] = self.readings(store);
        let (seed, count) = (self.seed, self.count);
        assert!(
            got == wanted,
            "seed {seed}, batch {count}: {got:#?}\nis not {wanted:#?}\nafter {after}"
        );
    }

    /// Whether the same can be read from both.
    pub(super) fn is_same(&self, store: &dyn Store) -> bool {
        let [wanted, got] = self.readings(store);
        wanted == got
    }

    fn readings(&self, store: &dyn Store) -> [Readings; 2] {
        [self.model, store].map(|store| self.random.read(store, at(self.count)))
    }
}
