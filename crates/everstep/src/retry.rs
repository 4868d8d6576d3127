//! When a failed attempt is made again: a plain function from a policy to a delay.

use std::time::Duration;

use crate::{error::RetryAdvice, random, time::Timestamp};

/// How often a step is tried, and how long it waits in between.
///
/// `attempts` counts all of them, the first included. The delay is counted from the end of the
/// failed attempt.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Retry {
    attempts: u32,
    first: Duration,
    factor: f64,
    cap: Duration,
    jitter: f64,
}

impl Retry {
    /// The default: 5 attempts, after 200 ms, 400 ms, 800 ms, .. at most 30 s, give or take 10 %.
    pub const DEFAULT: Retry = Retry::exponential(5);

    /// Up to `attempts` attempts in all, with delays that double from 200 ms to 30 s, give or take
    /// 10 %.
    pub const fn exponential(attempts: u32) -> Retry {
        Retry {
            attempts,
            first: Duration::from_millis(200),
            factor: 2.0,
            cap: Duration::from_secs(30),
            jitter: 0.1,
        }
    }

    /// Up to `attempts` attempts in all, with the same delay before each.
    pub const fn fixed(attempts: u32, delay: Duration) -> Retry {
        let mut retry = Retry::exponential(attempts);
        retry.first = delay;
        retry.factor = 1.0;
        retry.cap = delay;
        retry.jitter = 0.0;
        retry
    }

    /// One attempt.
    pub const fn never() -> Retry {
        Retry::exponential(1)
    }

    /// Tries again until it works.
    pub const fn forever() -> Retry {
        Retry::exponential(u32::MAX)
    }

    /// Sets the delay before the second attempt.
    pub const fn first_delay(mut self, delay: Duration) -> Retry {
        self.first = delay;
        self
    }

    /// Sets the longest delay.
    pub const fn max_delay(mut self, delay: Duration) -> Retry {
        self.cap = delay;
        self
    }

    /// Sets by what each delay is longer than the one before; less than 1 counts as 1.
    pub const fn factor(mut self, factor: f64) -> Retry {
        self.factor = if factor >= 1.0 { factor } else { 1.0 };
        self
    }

    /// Sets how far a delay may be off, as a part of it from 0 to 1.
    pub const fn jitter(mut self, part: f64) -> Retry {
        self.jitter = if part >= 0.0 && part <= 1.0 { part } else { 0.1 };
        self
    }

    pub(crate) const fn with_attempts(mut self, attempts: u32) -> Retry {
        self.attempts = attempts;
        self
    }

    /// How many attempts there are in all.
    pub const fn attempts(&self) -> u32 {
        self.attempts
    }

    /// The delay after the failed attempt `made` (from 1), before jitter.
    fn delay_after(&self, made: u32) -> Duration {
        let exponent = i32::try_from(made.saturating_sub(1)).unwrap_or(i32::MAX);
        let seconds = self.first.as_secs_f64() * self.factor.powi(exponent);
        // A power that overflowed is past every cap.
        if seconds.is_finite() && seconds < self.cap.as_secs_f64() {
            Duration::from_secs_f64(seconds)
        } else {
            self.cap
        }
    }

    /// When the next attempt is to be made, if there is one.
    ///
    /// `seed` makes the jitter repeatable; a retry that would start past `deadline` is not made.
    pub(crate) fn next_attempt(
        &self,
        made: u32,
        advice: RetryAdvice,
        ended_at: Timestamp,
        deadline: Option<Timestamp>,
        seed: u64,
    ) -> Option<Timestamp> {
        if advice == RetryAdvice::Never || made >= self.attempts {
            return None;
        }
        let delay = match advice {
            RetryAdvice::After(delay) => delay,
            _ => {
                let unit = (random::mix(seed ^ u64::from(made)) >> 11) as f64 / (1u64 << 53) as f64;
                let off = 1.0 + self.jitter * (2.0 * unit - 1.0);
                let delay = self.delay_after(made).as_secs_f64() * off.max(0.0);
                Duration::try_from_secs_f64(delay).unwrap_or(Duration::MAX)
            }
        };
        let at = ended_at + delay;
        match deadline {
            Some(deadline) if at >= deadline => None,
            _ => Some(at),
        }
    }
}

impl Default for Retry {
    fn default() -> Retry {
        Retry::DEFAULT
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn delays(retry: Retry, attempts: u32) -> Vec<u64> {
        (1..=attempts).map(|made| retry.delay_after(made).as_millis() as u64).collect()
    }

    #[test]
    fn delays_double_up_to_the_cap() {
        assert_eq!(delays(Retry::exponential(9), 5), [200, 400, 800, 1_600, 3_200]);
        assert_eq!(delays(Retry::exponential(9).max_delay(Duration::from_secs(1)), 5)[3], 1_000);
        assert_eq!(Retry::forever().delay_after(u32::MAX), Duration::from_secs(30));
    }

    #[test]
    fn attempts_count_the_first() {
        let now = Timestamp::from_millis(0);
        let retry = Retry::fixed(2, Duration::from_millis(50));
        let next = |made| retry.next_attempt(made, RetryAdvice::Policy, now, None, 1);
        assert_eq!(next(1), Some(Timestamp::from_millis(50)));
        assert_eq!(next(2), None);
    }

    #[test]
    fn a_delay_without_end_is_a_time_that_never_comes() {
        let retry = Retry::fixed(2, Duration::MAX);
        let now = Timestamp::from_millis(1_000);
        let next = retry.next_attempt(1, RetryAdvice::Policy, now, None, 1);
        assert!(next.is_some_and(|at| at.since(now) > Duration::from_secs(100 * 365 * 86_400)));
    }

    #[test]
    fn a_retry_past_the_deadline_is_not_made() {
        let now = Timestamp::from_millis(1_000);
        let retry = Retry::fixed(9, Duration::from_millis(50));
        let next = |deadline| {
            let deadline = Some(Timestamp::from_millis(deadline));
            retry.next_attempt(1, RetryAdvice::Policy, now, deadline, 1)
        };
        assert_eq!(next(1_050), None);
        assert!(next(1_051).is_some());
    }

    #[test]
    fn an_error_can_set_the_delay_or_forbid_the_retry() {
        let now = Timestamp::from_millis(0);
        let next = |advice| Retry::DEFAULT.next_attempt(1, advice, now, None, 1);
        let hour = Duration::from_secs(3_600);
        assert_eq!(next(RetryAdvice::After(hour)), Some(now + hour));
        assert_eq!(next(RetryAdvice::Never), None);
    }
}
