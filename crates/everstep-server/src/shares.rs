//! Shares: how many of something each holder has at a time, with a limit for each holder.
//!
//! A holder is a token or a client address. The server keeps one set of shares for connections, one for
//! requests and one for streams of each kind of holder, so that no single holder can use up the server.
//!
//! Always true:
//! - A holder never has more shares than the limit.
//! - A share is given back when it is dropped, and a holder without shares takes no memory.

use std::{
    collections::HashMap,
    hash::Hash,
    net::{IpAddr, Ipv6Addr},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The shares of all holders.
#[derive(Debug)]
pub(crate) struct Shares<K> {
    held: Arc<Mutex<HashMap<K, usize>>>,
    limit: usize,
}

/// One share of a holder, until it is dropped.
#[derive(Debug)]
pub(crate) struct Share<K: Eq + Hash> {
    held: Arc<Mutex<HashMap<K, usize>>>,
    holder: K,
}

/// A holder that has as many shares as the limit allows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Full {
    pub(crate) limit: usize,
    pub(crate) held: usize,
}

fn lock<K>(held: &Mutex<HashMap<K, usize>>) -> MutexGuard<'_, HashMap<K, usize>> {
    held.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<K: Clone + Eq + Hash> Shares<K> {
    pub(crate) fn new(limit: usize) -> Shares<K> {
        Shares { held: Arc::default(), limit }
    }

    /// Takes one more share for this holder.
    pub(crate) fn take(&self, holder: K) -> Result<Share<K>, Full> {
        let mut all = lock(&self.held);
        let held = all.get(&holder).copied().unwrap_or(0);
        if held >= self.limit {
            let limit = self.limit;
            return Err(Full { limit, held });
        }
        all.insert(holder.clone(), held + 1);
        let held = self.held.clone();
        Ok(Share { held, holder })
    }
}

impl<K: Eq + Hash> Drop for Share<K> {
    fn drop(&mut self) {
        let mut all = lock(&self.held);
        match all.get_mut(&self.holder) {
            Some(held) if *held > 1 => *held -= 1,
            _ => _ = all.remove(&self.holder),
        }
    }
}

/// The holder that an address counts for: with IPv6 a client usually has 2^64 addresses of its own.
pub(crate) fn network(address: IpAddr) -> IpAddr {
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

    #[test]
    fn a_holder_has_no_more_shares_than_the_limit_and_others_keep_theirs() {
        let shares = Shares::new(2);
        let first = shares.take("ada").expect("the first share");
        let _second = shares.take("ada").expect("the second share");
        let full = shares.take("ada").expect_err("a third share");
        assert_eq!(full, Full { limit: 2, held: 2 });
        let _other = shares.take("bob").expect("a share of another holder");
        drop(first);
        assert!(shares.take("ada").is_ok());
    }

    #[test]
    fn a_holder_without_shares_takes_no_memory() {
        let shares = Shares::new(2);
        let held = [shares.take("ada"), shares.take("ada"), shares.take("bob")];
        assert_eq!(lock(&shares.held).len(), 2);
        drop(held);
        assert!(lock(&shares.held).is_empty());
    }
}
