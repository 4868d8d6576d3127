//! Crashes at every write, on every store, and what they have found.

mod crash_pairs;
mod crash_primitives;
mod flush_points;
mod found_by_crash;
mod kit;
mod power_cuts;
mod queues_crash;
