//! Schedules: clients make them, and each tick starts a run of a short program.

use std::time::Duration;

use everstep::{Overlap, testing::simulation::Rng};
use serde::{Deserialize, Serialize};

/// A schedule of a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct SchedulePlan {
    /// What its runs perform.
    pub(crate) program: usize,
    pub(crate) every: Duration,
    /// How late a tick may be.
    pub(crate) catch_up: Duration,
    overlap: u32,
}

impl SchedulePlan {
    pub(crate) fn draw(rng: &mut Rng, program: usize, lease: Duration) -> SchedulePlan {
        SchedulePlan {
            program,
            every: lease + Duration::from_millis(rng.up_to(lease * 4).as_millis() as u64),
            catch_up: match rng.below(4) {
                0 => Duration::from_secs(10),
                _ => Duration::from_secs(36_000),
            },
            overlap: rng.below(4) as u32,
        }
    }

    pub(crate) fn overlap(self) -> Overlap {
        [Overlap::Allow, Overlap::Skip, Overlap::Queue, Overlap::CancelOld]
            [self.overlap as usize % 4]
    }
}

/// The tag of a run that says which schedule has started it.
pub(crate) const SCHEDULE_TAG: &str = "everstep.schedule";

/// The name of a schedule.
pub(crate) fn name(number: usize) -> String {
    format!("schedule-{number}")
}

/// The number of the schedule that a run is of, by its tags.
pub(crate) fn number(tags: &[(String, String)]) -> Option<usize> {
    let (_, name) = tags.iter().find(|(name, _)| name == SCHEDULE_TAG)?;
    name.strip_prefix("schedule-")?.parse().ok()
}
