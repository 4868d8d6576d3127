//! Pools: groups of runners, and the runs that they may own.
//!
//! A run has a home pool for its whole life. Its shard is one of the 256 of a pool: of its home
//! pool, or of the *overflow pool* of its home, workflow and version, whose candidates are those
//! runners of the home pool that have the code for it. It is there while the runner that would own
//! it at home does not have that code, as during a deploy.

use std::{fmt, ops::RangeInclusive, sync::Arc};

/// The number of a pool: made when its name is first used, and never another's.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PoolNo(pub u32);

impl PoolNo {
    /// The pool `default`, which is in every store.
    pub const DEFAULT: PoolNo = PoolNo(0);
}

/// A pool that a store knows.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PoolRow {
    /// Its number.
    pub no: PoolNo,
    /// Its name.
    pub name: Arc<str>,
}

/// The pool of workflows and runners that name none.
pub(crate) const DEFAULT_POOL: &str = "default";

/// What stands between the parts of the name of an overflow pool; no other pool has it in its name.
pub(crate) const OVERFLOW_MARK: char = '@';

/// The overflow pool of runs that one version of a workflow runs: `home@workflow/version`.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(crate) struct Overflow<'a> {
    pub(crate) home: &'a str,
    pub(crate) workflow: &'a str,
    pub(crate) version: u32,
}

impl<'a> Overflow<'a> {
    /// What the name of an overflow pool says; none if it is another pool's.
    pub(crate) fn parse(name: &'a str) -> Option<Overflow<'a>> {
        let (home, rest) = name.split_once(OVERFLOW_MARK)?;
        let (workflow, version) = rest.rsplit_once('/')?;
        let version = version.parse().ok()?;
        Some(Overflow { home, workflow, version })
    }
}

impl fmt::Display for Overflow<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (home, workflow, version) = (self.home, self.workflow, self.version);
        write!(f, "{home}{OVERFLOW_MARK}{workflow}/{version}")
    }
}

/// A workflow that a runner has the code for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Serves {
    /// The workflow's name.
    pub workflow: String,
    /// The version of the code.
    pub version: u32,
    /// The versions of runs that this code may run.
    pub accepts: RangeInclusive<u32>,
    /// The pool that its runs are in, unless a start says otherwise.
    pub pool: String,
}

impl Serves {
    /// Whether runs of this workflow and version can be run by this code.
    pub fn accepts(&self, workflow: &str, version: u32) -> bool {
        self.workflow == workflow && self.accepts.contains(&version)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_an_overflow_pool_says_what_it_is_for() {
        let pool = Overflow { home: "gpu", workflow: "a/b@c", version: 3 };
        assert_eq!(pool.to_string(), "gpu@a/b@c/3");
        assert_eq!(Overflow::parse("gpu@a/b@c/3"), Some(pool));
        for other in ["gpu", "gpu@a", "gpu@a/b", "default"] {
            assert_eq!(Overflow::parse(other), None, "{other}");
        }
    }
}
