//! How often people may fail to log in.
//!
//! Always true:
//! - What is refused uses up nothing: one address cannot lock out the others.
//! - Only failures count. Whoever succeeds has their try given back.
//! - No more addresses are known than all of them together may fail.

use std::{
    collections::HashMap,
    net::{IpAddr, Ipv6Addr},
    time::{Duration, Instant},
};

/// How often one address may fail within [`WINDOW`], and how often all of them together.
const OWN: u32 = 10;
const ALL: u32 = 200;
const WINDOW: Duration = Duration::from_secs(60);

/// The tries of the current window.
#[derive(Debug, Default)]
pub(crate) struct Tries {
    since: Option<Instant>,
    of_all: u32,
    by_address: HashMap<IpAddr, u32>,
}

impl Tries {
    /// Whether somebody at this address may try; if so, it counts until it is given back.
    pub(crate) fn may_try(&mut self, from: Option<IpAddr>, now: Instant) -> bool {
        if self.since.is_none_or(|since| now - since > WINDOW) {
            *self = Tries {
                since: Some(now),
                ..Tries::default()
            };
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

    /// A try that was no failure.
    pub(crate) fn give_back(&mut self, from: Option<IpAddr>) {
        self.of_all = self.of_all.saturating_sub(1);
        if let Some(own) = from.and_then(|from| self.by_address.get_mut(&network(from))) {
            *own = own.saturating_sub(1);
        }
    }
}

/// Whom an address belongs to: everybody with IPv6 has 2^64 of them.
fn network(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => {
            let [a, b, c, d, ..] = address.segments();
            IpAddr::V6(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0))
        }
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn address(text: &str) -> Option<IpAddr> {
        Some(text.parse().expect("an address"))
    }

    /// How often somebody there may still try.
    fn left(tries: &mut Tries, from: &str, now: Instant) -> u32 {
        (0..1_000)
            .take_while(|_| tries.may_try(address(from), now))
            .count() as u32
    }

    #[test]
    fn an_address_that_tries_without_end_locks_out_nobody_else() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        let allowed = (0..300).filter(|_| tries.may_try(address("10.0.0.1"), now));
        assert_eq!(allowed.count() as u32, OWN);
        assert_eq!(left(&mut tries, "10.0.0.2", now), OWN);
        assert_eq!(left(&mut tries, "10.0.0.1", now + WINDOW * 2), OWN);
    }

    #[test]
    fn all_addresses_together_have_a_limit_too() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        let allowed: u32 = (0..100)
            .map(|no| left(&mut tries, &format!("10.0.1.{no}"), now))
            .sum();
        assert_eq!(allowed, ALL);
        assert!(tries.by_address.len() as u32 <= ALL);
    }

    #[test]
    fn a_try_that_succeeds_does_not_count() {
        let (mut tries, now) = (Tries::default(), Instant::now());
        for _ in 0..500 {
            assert!(tries.may_try(address("10.0.0.1"), now));
            tries.give_back(address("10.0.0.1"));
        }
        assert_eq!(left(&mut tries, "10.0.0.1", now), OWN);
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
