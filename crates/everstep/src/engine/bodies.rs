//! The bodies of an engine thread that can be told to stop: those whose code was given a token.
//!
//! A token is fired by any thread (the shutdown, the watchdog of the lease), since the engine thread
//! may be blocked, and a spawned body does not need it.

use crate::{
    cancellation::Cancellation,
    seam::{Leaf, LeafGuard},
};

/// The tokens of the bodies in flight.
#[derive(Default)]
pub(crate) struct Bodies {
    /// Locked when such a body begins and ends, and while the list is copied; never while a token is
    /// fired, which calls wakers.
    places: Leaf<Places>,
}

#[derive(Default)]
struct Places {
    /// Each with the epoch of the lease under which the run of the body was read.
    tokens: Vec<Option<(u64, Cancellation)>>,
    free: Vec<usize>,
}

impl Bodies {
    fn lock(&self) -> LeafGuard<'_, Places> {
        self.places.lock()
    }

    /// Keeps the token of a body that begins, of a run that was read under the lease with this epoch.
    /// Gives its place.
    pub(crate) fn enter(&self, epoch: u64, token: &Cancellation) -> usize {
        let mut places = self.lock();
        let place = places.free.pop().unwrap_or(places.tokens.len());
        if place == places.tokens.len() {
            places.tokens.push(None);
        }
        places.tokens[place] = Some((epoch, token.clone()));
        place
    }

    /// Forgets the token at this place.
    pub(crate) fn leave(&self, place: usize) {
        let mut places = self.lock();
        let token = places.tokens[place].take();
        places.free.push(place);
        drop(places);
        // Its last owner may drop wakers, which are not ours.
        drop(token);
    }

    /// Forgets all tokens, as if they had been missed.
    #[cfg(test)]
    pub(crate) fn forget(&self) {
        for token in &mut self.lock().tokens {
            *token = None;
        }
    }

    fn tokens(&self) -> Vec<(u64, Cancellation)> {
        self.lock().tokens.iter().flatten().cloned().collect()
    }

    /// Fires all tokens: the bodies should stop, and may see it.
    pub(crate) fn tell(&self) {
        let tokens = self.tokens();
        tokens.iter().for_each(|(_, token)| token.cancel());
    }

    /// No body of the leases with these epochs is polled again.
    pub(crate) fn stop_where(&self, is_meant: impl Fn(u64) -> bool) {
        for (epoch, token) in self.tokens() {
            if is_meant(epoch) {
                token.stop();
            }
        }
    }
}
