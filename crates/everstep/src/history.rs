//! The history: what a run has done, by location.
//!
//! A step is finished exactly when its completed entry is here. Everything else we know about a
//! run (its waits, the retry clock) is derived from these entries and can be rebuilt from them.
//!
//! On the path of a step, [`crate::ctx`] asks whether an entry exists, [`crate::run`] turns what
//! changed into a [`crate::commit`], and [`crate::store`] makes it durable.
//!
//! Always true:
//! - The key of an entry is a function of its location alone.
//! - An entry that was taken and is durable leaves memory: a run that goes on for long stays
//!   small. What has a rollback stays, since its value is needed to compensate it.

use std::{
    collections::hash_map::Entry::{Occupied, Vacant},
    rc::Rc,
};

pub(crate) mod entry;
pub(crate) mod record;

pub use entry::*;
#[cfg(any(feature = "sqlite", feature = "postgres"))]
pub(crate) use record::encode_payload_prefix;
pub(crate) use record::{
    decode_entry, encode_entry, encode_item_prefix, encode_receipt_prefix, encode_started_prefix,
};

use crate::{hash::FastMap, location::keys};

/// The packed key of an entry.
pub(crate) type Key = Rc<[u8]>;

/// An open operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct OpId {
    pub(crate) index: u32,
    /// Tells apart operations that had the same place one after another.
    pub(crate) life: u32,
}

/// An entry in memory.
pub(crate) struct Slot {
    pub(crate) entry: Entry,
    /// Whether an operation of this run, as it is in memory, has asked for it.
    pub(crate) claimed: bool,
    /// The operation that has claimed it and is still there.
    pub(crate) op: Option<OpId>,
    /// Whether it is on the list of what the next commit writes.
    pub(crate) dirty: bool,
}

impl Slot {
    pub(crate) fn new(entry: Entry) -> Slot {
        Slot { entry, claimed: true, op: None, dirty: false }
    }
}

/// The entries of a run that are in memory.
#[derive(Default)]
pub(crate) struct History {
    slots: FastMap<Key, Slot>,
    /// How many loaded entries nobody has claimed yet.
    unclaimed: usize,
}

impl History {
    pub(crate) fn get(&self, key: &[u8]) -> Option<&Slot> {
        self.slots.get(key)
    }

    pub(crate) fn get_mut(&mut self, key: &[u8]) -> Option<&mut Slot> {
        self.slots.get_mut(key)
    }

    /// Puts in an entry that an operation has made.
    pub(crate) fn insert(&mut self, key: Key, entry: Entry) -> &mut Slot {
        self.slots.entry(key).insert_entry(Slot::new(entry)).into_mut()
    }

    /// The entry at this key, which `make` makes if there is none; whether it was made.
    pub(crate) fn ensure(&mut self, key: &Key, make: impl FnOnce() -> Entry) -> (&mut Slot, bool) {
        match self.slots.entry(key.clone()) {
            Occupied(slot) => (slot.into_mut(), false),
            Vacant(place) => (place.insert(Slot::new(make())), true),
        }
    }

    /// Puts in an entry that was read from the store.
    ///
    /// One of an iteration that replay jumps over counts as claimed.
    pub(crate) fn load(&mut self, key: Key, entry: Entry, past: bool) {
        self.unclaimed += usize::from(!past);
        let slot = Slot { entry, claimed: past, op: None, dirty: false };
        self.slots.insert(key, slot);
    }

    /// Notes that an operation has asked for this entry.
    pub(crate) fn claim(&mut self, key: &[u8], op: OpId) -> Option<&mut Slot> {
        let slot = self.slots.get_mut(key)?;
        if !slot.claimed {
            slot.claimed = true;
            self.unclaimed -= 1;
        }
        slot.op = Some(op);
        Some(slot)
    }

    /// Claims everything at or below the key, and the rollbacks of it, for nobody.
    pub(crate) fn claim_parts(&mut self, key: &[u8]) {
        if self.unclaimed == 0 {
            return;
        }
        for (other, slot) in &mut self.slots {
            if !slot.claimed && keys::is_part(other, key) {
                slot.claimed = true;
                self.unclaimed -= 1;
            }
        }
    }

    pub(crate) fn remove(&mut self, key: &[u8]) -> Option<Slot> {
        let slot = self.slots.remove(key)?;
        self.unclaimed -= usize::from(!slot.claimed);
        Some(slot)
    }

    /// An entry below (or at) the key that nobody has claimed.
    pub(crate) fn any_unclaimed(&self, key: &[u8]) -> Option<&Key> {
        if self.unclaimed == 0 {
            return None;
        }
        let mut unclaimed = self.slots.iter().filter(|(_, slot)| !slot.claimed);
        // The least one, so that the same history always names the same entry.
        let under = unclaimed.by_ref().filter(|(other, _)| keys::is_under(other, key));
        under.map(|(other, _)| other).min()
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = (&Key, &Slot)> {
        self.slots.iter()
    }

    pub(crate) fn len(&self) -> usize {
        self.slots.len()
    }
}
