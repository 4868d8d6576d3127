//! The chore of events: what publishing has left to do.

use std::sync::Arc;

use super::{keeper, shared::Shared};
use crate::{
    commit::{Outcome, Write},
    store::{StoreError, rules::events::PAGE},
    time::Timestamp,
};

/// Tells the rest of the waiters of broadcasts, a page at a time, and removes events whose time is
/// over.
///
/// There is no hurry in removing: they are not seen any more. So it gives no time to come back at,
/// and is done when the keeper looks after everything.
pub(super) fn tend(shared: &Shared, now: Timestamp) -> Result<Option<Timestamp>, Arc<StoreError>> {
    if !shared.store.events_to_tend(now)? {
        return Ok(None);
    }
    loop {
        let write = Write::TendEvents { limit: PAGE };
        match keeper::write(shared, write)? {
            Outcome::Tended(tended) if tended.more && !shared.closing() => {}
            _ => return Ok(None),
        }
    }
}
