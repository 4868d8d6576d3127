//! How many failed log-ins are answered and noted one by one.
//!
//! Always true:
//! - Only failures count. A right token is never refused because of failures, its own address's or
//!   others': the token is checked before the budget.
//! - A failure beyond the budget uses up nothing: one address cannot use up the budget of all.
//! - No more addresses are known than all of them together may fail.

use std::{
    collections::HashMap,
    net::IpAddr,
    time::{Duration, Instant},
};

use crate::shares::network;

/// How often one address may fail within [`WINDOW`], and how often all of them together.
pub(crate) const OWN: u32 = 10;
pub(crate) const ALL: u32 = 200;
pub(crate) const WINDOW: Duration = Duration::from_secs(60);

/// The failures of the current window.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    since: Option<Instant>,
    of_all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Tries {
    /// Counts a failure from this address; whether it is still within the budget.
    pub(crate) fn fail(&mut self, from: Option<IpAddr>, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since > WINDOW) {
            *self = Tries { since: Some(now), ..Tries::default() };
        }
        let from = from.map(network);
        let own = from.and_then(|from| self.by_address.get(&from).copied());
        if own.unwrap_or(0) >= OWN || self.of_all >= ALL {
            return false;
        }
        self.of_all += 1;
        if let Some(from) = from {
            *self.by_address.entry(from).or_default() += 1;
        }
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    /// How many more failures from this address are within the budget.
    fn left(tries: &mut Tries, from: &str, now: Instant) -> u32 {
        (0..1_000).take_while(|_| tries.fail(address(from), now)).count() as u32
    }

    #[test]
    fn an_address_that_fails_without_end_uses_up_its_own_budget_only() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        let allowed = (0..300).filter(|_| tries.fail(address("10.0.0.1"), now));
        assert_eq!(allowed.count() as u32, OWN);
        assert_eq!(left(&mut tries, "10.0.0.2", now), OWN);
        assert_eq!(left(&mut tries, "10.0.0.1", now + WINDOW * 2), OWN);
    }

    #[test]
    fn all_addresses_together_have_a_limit_too() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        let allowed: u32 = (0..100).map(|no| left(&mut tries, &format!("10.0.1.{no}"), now)).sum();
        assert_eq!(allowed, ALL);
        assert!(tries.by_address.len() as u32 <= ALL);
    }

    #[test]
    fn all_addresses_of_a_network_of_ipv6_are_one() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        assert_eq!(left(&mut tries, "2001:db8:1:2::1", now), OWN);
        assert_eq!(left(&mut tries, "2001:db8:1:2:ffff::9", now), 0);
        assert_eq!(left(&mut tries, "2001:db8:1:3::1", now), OWN);
        // The same as without IPv6.
        assert_eq!(left(&mut tries, "::ffff:10.0.0.1", now), OWN);
        assert_eq!(left(&mut tries, "10.0.0.1", now), 0);
    }
}
