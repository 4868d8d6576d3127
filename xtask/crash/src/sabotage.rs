//! What can be broken on purpose, and the scenario that is made to find it.

use everstep::Sabotage;

use crate::{Problem, scenarios::Scenario};

/// A promise that the engine can be told to break.
pub(crate) struct Known {
    pub(crate) name: &'static str,
    pub(crate) sabotage: Sabotage,
    /// The scenario that finds it, played first where it is broken.
    pub(crate) found_by: Scenario,
}

pub(crate) const ALL: [Known; 7] = [
    known("no-barrier", Sabotage::NoBarrier, Scenario::LostPrice),
    known("no-fence", Sabotage::NoFence, Scenario::StopInBody),
    known("double-consume", Sabotage::DoubleConsume, Scenario::Letters),
    known("foreign-epoch", Sabotage::ForeignEpoch, Scenario::StopInCode),
    known("barrier-at-making", Sabotage::BarrierAtMaking, Scenario::LostPrice),
    known("give-place-away", Sabotage::GivePlaceAway, Scenario::PauseInLine),
    known("believe-clock", Sabotage::BelieveClock, Scenario::Glimpse),
];

const fn known(name: &'static str, sabotage: Sabotage, found_by: Scenario) -> Known {
    Known { name, sabotage, found_by }
}

pub(crate) fn by_name(name: &str) -> Result<Sabotage, Problem> {
    let found = ALL.iter().find(|known| known.name == name);
    Ok(found.ok_or_else(|| format!("`{name}` is no sabotage"))?.sabotage)
}

pub(crate) fn name(sabotage: Option<Sabotage>) -> &'static str {
    let found = ALL.iter().find(|known| Some(known.sabotage) == sabotage);
    found.map_or("none", |known| known.name)
}

/// The scenario that finds what is broken.
pub(crate) fn found_by(sabotage: Option<Sabotage>) -> Option<Scenario> {
    let found = ALL.iter().find(|known| Some(known.sabotage) == sabotage);
    found.map(|known| known.found_by)
}
