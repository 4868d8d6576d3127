//! Removes entries of the audit log that were kept for as long as they should.

use std::{
    sync::{Arc, atomic::Ordering},
    time::Duration,
};

use super::shared::Shared;
use crate::{store::StoreError, time::Timestamp};

/// How many entries are removed in one slice.
const ENTRIES_MAX: usize = 2_000;

/// How long is waited between two looks at the log, if not for a reason.
const ROUND: Duration = Duration::from_secs(3_600);

/// A slice of what is old enough. It never asks to come back at a time: the keeper comes now and
/// then for safety, and a virtual clock must not run a year ahead for this.
pub(crate) fn delete_expired(
    shared: &Shared,
    now: Timestamp,
) -> Result<Option<Timestamp>, Arc<StoreError>> {
    if now.as_millis() < shared.audit_due.load(Ordering::Acquire) {
        return Ok(None);
    }
    let kept = shared.settings.audit_kept;
    // Up to and including those that were begun exactly so long ago.
    let before = now - kept + Duration::from_millis(1);
    let oldest = shared.store.delete_audits(before, ENTRIES_MAX);
    let is_full = oldest.map_err(Arc::new)?.is_some_and(|at| at < before);
    let due = match is_full {
        true => now,
        false => now + ROUND.min(kept),
    };
    shared.audit_due.store(due.as_millis(), Ordering::Release);
    // The rest of it has no time to wait for.
    Ok(is_full.then_some(now))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{engine::fixture, store::NewAudit};

    #[test]
    fn entries_of_the_audit_log_are_kept_for_a_year() {
        let (_, shared) = fixture::shared();
        let begin = |at| {
            let entry = NewAudit {
                at,
                who: "ada".to_owned(),
                action: "cancel".to_owned(),
                target: String::new(),
                detail: String::new(),
            };
            shared.store.begin_audit(&entry).expect("begin")
        };
        let left = || {
            let rows = shared.store.audits(None, 10).expect("audits");
            rows.iter().map(|row| row.no).collect::<Vec<_>>()
        };
        let year = Duration::from_secs(365 * 86_400);
        let start = shared.now();
        let (first, second) = (begin(start), begin(start + Duration::from_secs(1)));
        let almost = start + year - Duration::from_millis(1);
        assert_eq!(delete_expired(&shared, almost).expect("look"), None);
        assert_eq!(left(), [second, first]);
        // It has just looked, and does not ask the store again before long.
        assert_eq!(delete_expired(&shared, start + year).expect("look"), None);
        assert_eq!(left(), [second, first]);
        let later = almost + ROUND;
        assert_eq!(delete_expired(&shared, later).expect("delete"), None);
        assert_eq!(left(), [] as [u64; 0]);
    }
}
