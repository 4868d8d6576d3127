//! A ledger: what bodies have really done, kept outside of any store.

use std::sync::{Arc, Mutex, PoisonError};

/// What bodies have really done, for tests: they write into it when they run, and it survives any
/// crash of the engine.
///
/// Name what runs by its location (`pay/charge`, or [`Step::location`](crate::Step::location)), so
/// that [`crash_everywhere`](crate::testing::crash_everywhere()) can compare it with the history.
///
/// ```
/// use everstep::{prelude::*, testing::{self, Ledger}};
///
/// #[workflow]
/// async fn pay(ctx: Ctx, _: ()) -> Result<()> {
///     ctx.step("charge", async || {
///         ctx.get::<Ledger>().ran("charge");
///         Ok(())
///     }).await
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let ledger = Ledger::new();
/// let engine = testing::engine().provide(ledger.clone()).register(pay).start().await?;
/// engine.client().start(pay, ()).await?.result().await?;
/// assert_eq!(ledger.count("charge"), 1);
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
#[derive(Clone, Debug, Default)]
pub struct Ledger {
    lines: Arc<Mutex<Vec<Line>>>,
    life: usize,
}

#[derive(Clone, Debug)]
struct Line {
    life: usize,
    name: String,
}

impl Ledger {
    /// An empty ledger.
    pub fn new() -> Ledger {
        Ledger::default()
    }

    /// Notes that this was done.
    pub fn ran(&self, name: impl Into<String>) {
        let (life, name) = (self.life, name.into());
        self.lock().push(Line { life, name });
    }

    /// How often this was done.
    pub fn count(&self, name: &str) -> usize {
        self.lock().iter().filter(|line| line.name == name).count()
    }

    /// Everything that was done, in order.
    pub fn names(&self) -> Vec<String> {
        self.lock().iter().map(|line| line.name.clone()).collect()
    }

    /// The same ledger, for an engine that was started after so many crashes.
    pub(super) fn in_life(&self, life: usize) -> Ledger {
        let lines = self.lines.clone();
        Ledger { lines, life }
    }

    /// What was done in this life.
    pub(super) fn of_life(&self, life: usize) -> Vec<String> {
        let lines = self.lock();
        let of = lines.iter().filter(|line| line.life == life);
        of.map(|line| line.name.clone()).collect()
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, Vec<Line>> {
        self.lines.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
