//! For tests: an engine on virtual time, crashes at every point, the replay of exported runs.
//!
//! - [`engine`] makes an engine in memory whose clock jumps to the next timer by itself.
//! - [`crash_everywhere()`] runs a workflow, dies at every write in turn, and compares.
//! - [`CrashingStore`] and [`vfs::FaultVfs`] are what it is made of: a store that dies at a
//!   chosen write, and a layer under SQLite on which the power can be cut.
//! - [`simulate()`] lets a workflow live in simulated worlds, in which several engines, their clocks, the
//!   store and outside systems ([`Fake`]) fail as a seed decides.
//! - [`replay()`] replays a run that was exported against the code of a test.
//!
//! What every [`Store`](crate::store::Store) must pass is in the crate `everstep-conformance`.
//!
//! Only with the feature `testing`, which a program takes as a dev-dependency:
//!
//! ```toml
//! [dev-dependencies]
//! everstep = { version = "0.1", features = ["testing"] }
//! ```

use crate::engine::{Engine, EngineBuilder};

#[doc(hidden)]
pub mod around;
mod audit;
mod choice;
mod chosen;
mod clock;
mod crash_everywhere;
mod crash_points;
mod crashing_store;
#[doc(hidden)]
pub mod internal;
mod ledger;
#[cfg(feature = "postgres")]
mod on_postgres;
#[cfg(feature = "sqlite")]
mod power_cut;
mod queue_load;
mod ran_on;
mod replay;
mod shifted_clock;
mod simulate;
#[doc(hidden)]
pub mod simulation;
#[cfg(feature = "sqlite")]
pub mod vfs;

#[doc(hidden)]
pub use chosen::store;
pub use clock::{Hold, VirtualClock};
pub use crash_everywhere::{CrashReport, CrashTest, Difference, Ending, crash_everywhere};
pub use crashing_store::{CrashPoint, CrashingStore};
pub use ledger::Ledger;
pub use queue_load::{QueueLoad, QueueLoadError, queue_load};
#[doc(hidden)]
pub use ran_on::ran_on;
pub use replay::{Replay, ReplayError, Replayed, replay};
#[doc(hidden)]
pub use shifted_clock::ShiftedClock;
pub use simulate::{
    Fake, FakeError, Simulated, Simulation, SimulationFailure, SimulationReport, simulate,
};

/// An engine in memory, on a [`VirtualClock`] of its own.
///
/// ```
/// use everstep::{prelude::*, testing};
///
/// #[workflow]
/// async fn nap(ctx: Ctx, _: ()) -> Result<String> {
///     ctx.sleep("nap", days(365)).await?;
///     Ok("rested".to_owned())
/// }
///
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let engine = testing::engine().register(nap).start().await?;
/// assert_eq!(engine.client().start(nap, ()).await?.result().await?, "rested");
/// # engine.shutdown().await;
/// # Ok(()) }
/// ```
pub fn engine() -> EngineBuilder {
    Engine::on(store()).clock(VirtualClock::new())
}
