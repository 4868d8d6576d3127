//! Exact replay, from outside: a run is driven by hand, crashed at every point, and must come back
//! the same.
//!
//! The [`owner`] stands in for an engine thread, [`hands`] hold the bodies, so that a test decides
//! which of them ends when. [`program`] makes random workflows and [`order`] checks them; the other
//! files hold what has a name.

mod again;
mod barrier;
mod compensation;
mod concurrency;
mod deploys;
mod divergence;
mod hands;
mod inside_body;
mod order;
mod owner;
mod program;
mod sabotage;
