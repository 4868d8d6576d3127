//! What is tried again and again is complained about now and then: a database that is away for an
//! hour must not fill a disk with the same line.

use std::{
    collections::BTreeMap,
    time::{Duration, Instant},
};

use super::shared::Shared;
use crate::{
    seam::{self, Leaf},
    store::StoreError,
};

/// How long the same complaint is not made again.
const SILENCE: Duration = Duration::from_secs(60);

/// When each complaint was last made.
#[derive(Default)]
pub(crate) struct Complaints(Leaf<BTreeMap<&'static str, Instant>>);

impl Complaints {
    /// Whether it is time for this one.
    fn is_time_for(&self, what: &'static str, now: Instant) -> bool {
        let mut made = self.0.lock();
        let last = made.get(what);
        if last.is_some_and(|last| now.saturating_duration_since(*last) < SILENCE) {
            return false;
        }
        made.insert(what, now);
        true
    }
}

impl Shared {
    /// The store has refused something that will be tried again.
    pub(crate) fn complain(&self, error: &StoreError, what: &'static str) {
        let cause = std::error::Error::source(error);
        let cause = cause.map(ToString::to_string).unwrap_or_default();
        if self.complaints.is_time_for(what, seam::now()) {
            tracing::warn!(%error, cause, "{what}; trying again");
        } else {
            tracing::debug!(%error, cause, "{what}; trying again");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_complaint_is_made_once_a_minute() {
        let complaints = Complaints::default();
        let begun = Instant::now();
        let made = |what, after| complaints.is_time_for(what, begun + Duration::from_secs(after));
        assert!(made("a", 0) && made("b", 1));
        assert!(!made("a", 59));
        assert!(made("a", 60) && !made("a", 61));
    }
}
