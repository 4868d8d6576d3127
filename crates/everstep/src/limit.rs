//! A limit: how many at a time, and how often, for each of its keys.
//!
//! A limit is a name. Everything that uses it, in any workflow and any process on the same store,
//! shares it; what it allows is said where it is used, and the last word counts. Who waits and who
//! is next is decided in the store (`store/rules/limits.rs`); how a body or a run waits for its
//! place is in `run/limits.rs`.

use std::{fmt, sync::Arc, time::Duration};

use crate::{
    codec::{DecodeError, Value, payload},
    commit::{ClaimLimit, LimitRate, LimitRule},
    error::{Error, Result},
    name::check_name,
};

/// How many at a time, and how often: shared by all workflows and processes on the same store.
///
/// Use it on a step ([`StepCall::limit`](crate::StepCall::limit)), by itself
/// ([`Ctx::rate_limit`](crate::Ctx::rate_limit)), for whole runs
/// ([`WorkflowOptions::limit`](crate::WorkflowOptions::limit)), or on a queue
/// ([`Queue::limit`](crate::Queue::limit)). To wait for it is durable and holds no thread; places are
/// given in the order in which they were asked for.
///
/// ```
/// use everstep::{Limit, prelude::*};
///
/// const STRIPE: Limit = Limit::new("stripe").concurrency(10).rate(100, seconds(1));
///
/// #[workflow]
/// async fn pay(ctx: Ctx, customer: String) -> Result<u64> {
///     ctx.step("charge", async || Ok(1)).limit_key(STRIPE, &customer).await
/// }
/// # #[tokio::main]
/// # async fn main() -> Result<(), Box<dyn std::error::Error>> {
/// # let clock = everstep::testing::VirtualClock::new();
/// # let engine = Engine::in_memory().register(pay).clock(clock).start().await?;
/// # let run = engine.client().start(pay, "cus_1".to_owned()).await?;
/// # assert_eq!(run.result().await?, 1);
/// # Ok(()) }
/// ```
///
/// To change what it allows, change the constant: that counts for whoever is let in from then on,
/// and nobody who has a place loses it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limit {
    name: &'static str,
    rule: LimitRule,
}

impl Limit {
    /// The limit of this name, which does not limit anything yet.
    pub const fn new(name: &'static str) -> Limit {
        Limit { name, rule: LimitRule { concurrency: None, rate: None } }
    }

    /// At most this many at a time.
    ///
    /// # Panics
    ///
    /// If it is 0: nobody would ever be let in.
    pub const fn concurrency(mut self, max: u32) -> Limit {
        assert!(max > 0, "a concurrency of 0 would let nobody in, ever");
        self.rule.concurrency = Some(max);
        self
    }

    /// This often in this time, over time. After a time without any, up to `count` are let in at
    /// once, and the next ones one by one; [`burst`](Limit::burst) makes that fewer.
    ///
    /// It goes by the time of the store: with PostgreSQL that of the server, on a SQLite file that of the
    /// machine. While two processes on a file show times that differ by more than 5 s (the clock was set, and
    /// not all of them have followed it yet), another burst may be let in each time that the earlier and then
    /// the later one asks. With `burst(1)` that is one more.
    ///
    /// # Panics
    ///
    /// If one of them is 0: nobody would ever be let in, or everybody.
    pub const fn rate(mut self, count: u32, per: Duration) -> Limit {
        let per_ms = per.as_millis() as u64;
        assert!(count > 0, "a rate of 0 would let nobody in, ever");
        assert!(per_ms > 0, "a rate is counted over a millisecond or more");
        self.rule.rate = Some(LimitRate { count, per_ms, burst: count });
        self
    }

    /// How many the rate lets in at once after a time without any: with 1 they are evenly spaced,
    /// and no stretch of time has more than the rate says. Set it after [`rate`](Limit::rate).
    ///
    /// # Panics
    ///
    /// If it is 0: nobody would ever be let in.
    pub const fn burst(mut self, burst: u32) -> Limit {
        assert!(burst > 0, "a burst of 0 would let nobody in, ever");
        if let Some(rate) = self.rule.rate {
            self.rule.rate = Some(LimitRate { burst, ..rate });
        }
        self
    }

    /// Its name.
    pub const fn name(&self) -> &'static str {
        self.name
    }
}

/// A limit and the key under which it is used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct LimitUse {
    pub(crate) name: &'static str,
    /// Empty if it is used without one.
    pub(crate) key: String,
    pub(crate) rule: LimitRule,
}

impl LimitUse {
    pub(crate) fn new(limit: Limit) -> LimitUse {
        LimitUse { name: limit.name, key: String::new(), rule: limit.rule }
    }

    pub(crate) fn with_key(limit: Limit, key: &dyn fmt::Display) -> LimitUse {
        LimitUse { key: key.to_string(), ..LimitUse::new(limit) }
    }

    /// What the claim of a worker says about it.
    pub(crate) fn claim(&self) -> ClaimLimit {
        ClaimLimit { limit: self.name.to_owned(), limit_key: self.key.clone(), rule: self.rule }
    }

    /// Whether its names can be stored.
    pub(crate) fn check(&self) -> Result<()> {
        check_name(self.name).map_err(Error::fatal)?;
        if !self.key.is_empty() {
            check_name(&self.key).map_err(Error::fatal)?;
        }
        Ok(())
    }
}

/// In words: ``limit `stripe` (`cus_1`)``.
impl fmt::Display for LimitUse {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "limit `{}`", self.name)?;
        if !self.key.is_empty() {
            write!(f, " (`{}`)", self.key)?;
        }
        Ok(())
    }
}

type KeyOf = dyn Fn(&[u8]) -> Result<String, DecodeError> + Send + Sync;

/// The limit that a workflow's runs are under as a whole.
#[derive(Clone)]
pub(crate) struct StartLimit {
    limit: Limit,
    key_of: Option<Arc<KeyOf>>,
}

impl StartLimit {
    pub(crate) fn new(limit: Limit) -> StartLimit {
        StartLimit { limit, key_of: None }
    }

    pub(crate) fn with_key<I: Value, K: fmt::Display>(
        limit: Limit,
        key: impl Fn(&I) -> K + Send + Sync + 'static,
    ) -> StartLimit {
        let key_of = move |input: &[u8]| {
            let input: I = payload::from_slice(input)?;
            Ok(key(&input).to_string())
        };
        StartLimit { limit, key_of: Some(Arc::new(key_of)) }
    }

    /// The limit for a run with this input.
    pub(crate) fn of(&self, input: &[u8]) -> Result<LimitUse, DecodeError> {
        let key = match &self.key_of {
            Some(key_of) => key_of(input)?,
            None => String::new(),
        };
        Ok(LimitUse { key, ..LimitUse::new(self.limit) })
    }
}

impl fmt::Debug for StartLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let keyed = self.key_of.is_some();
        f.debug_struct("StartLimit").field("limit", &self.limit).field("keyed", &keyed).finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_says_what_it_allows_and_is_named_with_its_key() {
        const STRIPE: Limit =
            Limit::new("stripe").concurrency(3).rate(100, Duration::from_secs(1)).burst(5);
        let used = LimitUse::with_key(STRIPE, &7);
        assert_eq!(used.to_string(), "limit `stripe` (`7`)");
        assert_eq!(LimitUse::new(STRIPE).to_string(), "limit `stripe`");
        let rate = LimitRate { count: 100, per_ms: 1_000, burst: 5 };
        assert_eq!((used.rule.concurrency, used.rule.rate), (Some(3), Some(rate)));
    }

    #[test]
    fn a_key_that_is_too_long_is_refused() {
        let long = "x".repeat(300);
        assert!(LimitUse::with_key(Limit::new("a"), &long).check().is_err());
        assert!(LimitUse::with_key(Limit::new("a"), &"").check().is_ok());
        assert!(LimitUse::new(Limit::new("")).check().is_err());
    }
}
