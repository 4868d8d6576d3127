//! What can be broken on purpose, the scenario that is made to find it, and what it finds.

use everstep::Sabotage;

use crate::{Problem, scenarios::Scenario};

/// A promise that the engine can be told to break.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
    /// The scenario that finds it, played first where it is broken.
    pub(crate) found_by: Scenario,
    /// The counters that show it. It is found when one of them is not 0.
    pub(crate) causes: &'static [&'static str],
}

const LOST_STATE: &[&str] = &["started_on_lost_state"];
const HUNG: &[&str] = &["hung_runs"];
const TWO_OWNERS: &[&str] = &["run_again_after_completion", "bodies_started_after_lease"];

pub(crate) const ALL: [Known; 7] = [
    of("no-barrier", Sabotage::NoBarrier, Scenario::LostPrice, LOST_STATE),
    of("no-fence", Sabotage::NoFence, Scenario::StopInBody, TWO_OWNERS),
    of("double-consume", Sabotage::DoubleConsume, Scenario::Letters, &["messages_lost"]),
    of("foreign-epoch", Sabotage::ForeignEpoch, Scenario::StopInCode, TWO_OWNERS),
    of("barrier-at-making", Sabotage::BarrierAtMaking, Scenario::LostPrice, LOST_STATE),
    of("give-place-away", Sabotage::GivePlaceAway, Scenario::PauseInLine, HUNG),
    of("believe-clock", Sabotage::BelieveClock, Scenario::Glimpse, HUNG),
];

const fn of(
    name: &'static str,
    sabotage: Sabotage,
    found_by: Scenario,
    causes: &'static [&'static str],
) -> Known {
    Known { name, sabotage, found_by, causes }
}

pub(crate) fn by_name(name: &str) -> Result<Sabotage, Problem> {
    let found = ALL.iter().find(|known| known.name == name);
    Ok(found.ok_or_else(|| format!("`{name}` is no sabotage"))?.sabotage)
}

pub(crate) fn name(sabotage: Option<Sabotage>) -> &'static str {
    known(sabotage).map_or("none", |known| known.name)
}

/// What is known of what is broken.
pub(crate) fn known(sabotage: Option<Sabotage>) -> Option<&'static Known> {
    ALL.iter().find(|known| Some(known.sabotage) == sabotage)
}
