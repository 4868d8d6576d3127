//! The time of a process whose clock may be set while it runs.
//!
//! A machine's clock can show a wrong time for a moment: a time service that is put right, a virtual
//! machine that is resumed, an operator's mistake. A durable time that is written in that moment stays
//! wrong. So a jump of the clock is noticed against the monotonic clock and is followed only after it
//! has lasted for [`CONFIRM`]; until then time goes on at its own pace. Plain values: the caller reads
//! the clocks.
//!
//! Always true: a clock that was set, ahead or back, is followed within [`CONFIRM`] of the first look
//! at it, and a jump that is over before that has no effect.

use std::time::{Duration, Instant};

use crate::time::Timestamp;

/// How far the clock may be off between two looks without being taken for set. A clock that is behind
/// by no more than this is waited for.
pub(crate) const TOLERANCE: Duration = Duration::from_secs(1);

/// How long a jump must last before it is followed.
pub(crate) const CONFIRM: Duration = Duration::from_secs(5);

/// The last look at the clock, and what is known about a jump since then.
#[derive(Debug)]
pub(crate) struct Steady {
    /// What the clock showed when it was last believed, in milliseconds.
    believed: i64,
    /// When that was, by the monotonic clock.
    at: Instant,
    /// How long the machine had been suspended by then.
    suspended: Duration,
    /// The latest time that was given out since the clock was last followed.
    latest: i64,
    jump: Option<Jump>,
}

/// A jump that is not followed yet.
#[derive(Clone, Copy, Debug)]
struct Jump {
    /// How far the clock is from the time that is given out, in milliseconds.
    by: i64,
    since: Instant,
}

/// What a look at the clock has found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Seen {
    /// Nothing new.
    Nothing,
    /// The clock has jumped by so many milliseconds and is not believed yet.
    Jumped(i64),
    /// A jump that was not believed is over.
    WentBack,
    /// A jump by so many milliseconds has lasted and is followed.
    Followed(i64),
}

impl Steady {
    pub(crate) fn new(clock: Timestamp, at: Instant, suspended: Duration) -> Steady {
        Steady { believed: clock.as_millis(), at, suspended, latest: clock.as_millis(), jump: None }
    }

    /// The time now, given what the clock shows and the monotonic clock. `suspended` is asked only
    /// after a jump: the monotonic clock stands still while the machine is suspended.
    pub(crate) fn look(
        &mut self,
        clock: Timestamp,
        at: Instant,
        suspended: impl FnOnce() -> Duration,
    ) -> (Timestamp, Seen) {
        let clock = clock.as_millis();
        let mut expected = self.expected(at);
        if is_near(clock, expected) {
            return self.believe(clock, at);
        }
        let suspended = suspended();
        let slept = suspended.saturating_sub(self.suspended);
        if slept >= TOLERANCE {
            (self.suspended, self.believed) = (suspended, self.believed.saturating_add(ms(slept)));
            expected = self.expected(at);
            if is_near(clock, expected) {
                return self.believe(clock, at);
            }
        }
        let by = clock.saturating_sub(expected);
        let seen = match self.jump.filter(|jump| is_near(jump.by, by)) {
            Some(jump) if at.saturating_duration_since(jump.since) >= CONFIRM => {
                (self.jump, self.latest) = (None, clock);
                let (now, _) = self.believe(clock, at);
                return (now, Seen::Followed(by));
            }
            Some(_) => Seen::Nothing,
            None => {
                self.jump = Some(Jump { by, since: at });
                Seen::Jumped(by)
            }
        };
        self.latest = self.latest.max(expected);
        (Timestamp::from_millis(self.latest), seen)
    }

    /// What the clock should show.
    fn expected(&self, at: Instant) -> i64 {
        let passed = at.saturating_duration_since(self.at);
        self.believed.saturating_add(ms(passed))
    }

    fn believe(&mut self, clock: i64, at: Instant) -> (Timestamp, Seen) {
        // Two threads may look in another order than they have read the clocks.
        if at >= self.at {
            (self.believed, self.at) = (clock, at);
        }
        self.latest = self.latest.max(clock);
        let seen = match self.jump.take() {
            Some(_) => Seen::WentBack,
            None => Seen::Nothing,
        };
        (Timestamp::from_millis(self.latest), seen)
    }
}

fn is_near(a: i64, b: i64) -> bool {
    a.saturating_sub(b).unsigned_abs() <= TOLERANCE.as_millis() as u64
}

fn ms(duration: Duration) -> i64 {
    i64::try_from(duration.as_millis()).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const HOUR: i64 = 3_600_000;

    /// A machine: its clock is off by what is set, and its monotonic clock stands still in a suspend.
    struct Machine {
        begun: Instant,
        passed: i64,
        off: i64,
        slept: i64,
        steady: Steady,
    }

    impl Machine {
        fn new() -> Machine {
            let begun = Instant::now();
            Machine {
                begun,
                passed: 0,
                off: 0,
                slept: 0,
                steady: Steady::new(Timestamp::from_millis(0), begun, Duration::ZERO),
            }
        }

        /// Lets so many milliseconds pass, with a look at the end: how far the time that it gives is off.
        fn wait(&mut self, ms: i64) -> (i64, Seen) {
            self.passed += ms;
            let right = self.passed + self.slept;
            let at = self.begun + Duration::from_millis(self.passed as u64);
            let slept = Duration::from_millis(self.slept as u64);
            let clock = Timestamp::from_millis(right + self.off);
            let (now, seen) = self.steady.look(clock, at, || slept);
            (now.as_millis() - right, seen)
        }
    }

    /// After one glimpse of an hour ahead, time stood at that hour and then went on at half its pace.
    #[test]
    fn a_jump_that_is_over_within_seconds_has_no_effect() {
        for off in [HOUR, -HOUR, 365 * 24 * HOUR] {
            let mut machine = Machine::new();
            assert_eq!(machine.wait(10_000), (0, Seen::Nothing));
            machine.off = off;
            assert_eq!(machine.wait(10), (0, Seen::Jumped(off)));
            assert_eq!(machine.wait(2_000), (0, Seen::Nothing));
            machine.off = 0;
            assert_eq!(machine.wait(10), (0, Seen::WentBack));
            for _ in 0..100 {
                assert_eq!(machine.wait(1_000), (0, Seen::Nothing));
            }
        }
    }

    #[test]
    fn a_clock_that_was_set_is_followed_within_seconds_ahead_and_back() {
        let mut machine = Machine::new();
        for (off, by) in [(HOUR, HOUR), (0, -HOUR), (-HOUR, -HOUR), (0, HOUR)] {
            machine.off = off;
            assert_eq!(machine.wait(10), (off - by, Seen::Jumped(by)));
            assert_eq!(machine.wait(4_900), (off - by, Seen::Nothing));
            assert_eq!(machine.wait(100), (off, Seen::Followed(by)));
            assert_eq!(machine.wait(1_000), (off, Seen::Nothing));
        }
    }

    #[test]
    fn a_clock_that_jumps_about_is_followed_once_it_stands() {
        let mut machine = Machine::new();
        for n in 1..50 {
            machine.off = n * HOUR;
            assert_eq!(machine.wait(1_000), (0, Seen::Jumped(n * HOUR)));
        }
        assert_eq!(machine.wait(5_000), (49 * HOUR, Seen::Followed(49 * HOUR)));
    }

    #[test]
    fn a_machine_that_was_suspended_is_in_the_present_at_once() {
        let mut machine = Machine::new();
        machine.wait(10);
        machine.slept = 8 * HOUR;
        assert_eq!(machine.wait(10), (0, Seen::Nothing));
        machine.off = HOUR;
        assert_eq!(machine.wait(10), (0, Seen::Jumped(HOUR)));
    }

    #[test]
    fn a_clock_that_is_a_little_behind_is_waited_for_and_a_slow_one_is_followed() {
        let mut machine = Machine::new();
        machine.wait(10_000);
        machine.off = -400;
        assert_eq!(machine.wait(100), (-100, Seen::Nothing));
        assert_eq!(machine.wait(1_000), (-400, Seen::Nothing));
        // A time service that slows the clock down.
        for n in 1..100 {
            machine.off -= 20;
            assert_eq!(machine.wait(1_000), (-400 - 20 * n, Seen::Nothing));
        }
    }
}
