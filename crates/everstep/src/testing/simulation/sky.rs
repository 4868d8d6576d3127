//! The sky over a life: which faults there are, how often, and until when.
//!
//! A seed draws a part of all kinds of faults and a rate for each, so that some lives are calm, some have
//! one trouble and some are storms. After a while all of it stops: from then on everything must come to
//! its end within a bound.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use super::{self as simulation, At, Fault, Faults, Rng};

/// A span of time in a life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Window {
    pub from: Duration,
    pub to: Duration,
}

impl Window {
    fn has(self, time: Duration) -> bool {
        (self.from..self.to).contains(&time)
    }
}

/// The faults of a life, and how often each occurs.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub struct Sky {
    /// Faults stop at this time.
    pub calm_after: Duration,
    /// Of a million points, at how many a process is killed.
    pub kills: u64,
    /// At how many an activity is stalled.
    pub stalls: u64,
    /// At how many a process is.
    pub process_stalls: u64,
    /// At how many the calendar of a process is set.
    pub jumps: u64,
    /// Of a million reads by engines, how many are stalled before they are answered.
    #[serde(default)]
    pub slow_reads: u64,
    /// The longest stall.
    pub stall_max: Duration,
    /// The longest way of a request to the store, or of its answer.
    pub latency_max: Duration,
    /// Of a thousand calls, how many the store refuses for a moment.
    pub busy: u32,
    /// How many fail before anything was done.
    pub failures: u32,
    /// How many answers are lost: what was asked is done, and the caller is not told.
    pub lost_answers: u32,
    /// How many commits have an outcome that is not known, and were not made.
    pub lost_commits: u32,
    /// When the store cannot be reached.
    pub away: Vec<Window>,
    /// When the disk is full.
    pub full: Vec<Window>,
    /// Of a thousand wake-ups for a process, how many get lost.
    pub dropped_wakes: u32,
    /// How many come twice.
    pub doubled_wakes: u32,
    /// How many come late.
    pub late_wakes: u32,
}

impl Sky {
    /// The sky of a seed, over engines with this lease.
    pub fn draw(rng: &mut Rng, lease: Duration) -> Sky {
        let calm_after = lease * 4 + rng.up_to(lease * 16);
        // A scale for all rates: one of four lives is calm, one is a storm.
        let scale = [0, 1, 4, 16][rng.below(4) as usize];
        let rate = |rng: &mut Rng, most: u64| match rng.below(2) {
            0 => 0,
            _ => rng.below(most * scale / 4 + 1),
        };
        let latency_ms = [0, 5, 50, 500][rng.below(4) as usize];
        let mut sky = Sky {
            calm_after,
            kills: rate(rng, 400),
            stalls: rate(rng, 1_500),
            process_stalls: rate(rng, 2_000),
            jumps: rate(rng, 300),
            stall_max: lease / 2 + rng.up_to(lease * 4),
            latency_max: rng.up_to(Duration::from_millis(latency_ms)),
            ..Sky::default()
        };
        let mut per_mille = |most: u64| rate(rng, most) as u32;
        sky.busy = per_mille(20);
        sky.failures = per_mille(10);
        sky.lost_answers = per_mille(15);
        sky.lost_commits = per_mille(15);
        sky.dropped_wakes = per_mille(200);
        sky.doubled_wakes = per_mille(100);
        sky.late_wakes = per_mille(200);
        if scale > 1 {
            sky.away = windows(rng, calm_after, lease * 3);
            sky.full = windows(rng, calm_after, lease * 3);
        }
        sky
    }

    pub fn is_calm(&self, time: Duration) -> bool {
        time >= self.calm_after
    }

    /// Whether also everything has gone on that was stalled before it was calm.
    pub fn is_settled(&self, time: Duration) -> bool {
        time >= self.calm_after + self.stall_max * 2
    }

    /// Whether something happens now that has so many chances in a thousand before it is calm.
    pub fn happens(&self, per_mille: u32) -> bool {
        per_mille > 0
            && !self.is_calm(simulation::time())
            && simulation::random() % 1_000 < u64::from(per_mille)
    }

    pub fn is_away(&self) -> bool {
        let time = simulation::time();
        self.away.iter().any(|window| window.has(time))
    }

    pub fn is_full(&self) -> bool {
        let time = simulation::time();
        self.full.iter().any(|window| window.has(time))
    }

    /// How long a request or an answer is on its way.
    pub fn latency(&self) -> Duration {
        let most = match self.is_calm(simulation::time()) {
            true => self.latency_max.min(Duration::from_millis(5)),
            false => self.latency_max,
        };
        match most.is_zero() {
            true => most,
            // Most are short.
            false => {
                let share = simulation::random() % 64;
                let whole = nanos(most);
                Duration::from_nanos(whole * share * share / 4_096)
            }
        }
    }

    /// The function that decides at every point which fault a process has.
    pub fn faults(&self) -> Faults {
        let sky = self.clone();
        Box::new(move |at, rng| sky.fault(at, rng))
    }

    fn fault(&self, at: &At<'_>, rng: &mut Rng) -> Option<Fault> {
        if self.is_calm(at.time) || !is_mortal(at.name) {
            return None;
        }
        let drawn = rng.below(1_000_000);
        let mut from = 0;
        let mut is_drawn = |rate: u64| {
            let is_drawn = (from..from + rate).contains(&drawn);
            from += rate;
            is_drawn
        };
        if is_drawn(self.kills) {
            return Some(Fault::Kill);
        }
        let weight = weight_of(at);
        if is_read(at) && is_drawn(self.slow_reads) {
            return Some(Fault::StallActivity(rng.up_to(self.stall_max)));
        }
        if is_drawn(self.stalls * weight) {
            return Some(Fault::StallActivity(rng.up_to(self.stall_max)));
        }
        if is_drawn(self.process_stalls * weight) {
            return Some(Fault::StallProcess {
                lasts: rng.up_to(self.stall_max),
                spread: self.stall_max / 2,
            });
        }
        if is_drawn(self.jumps) {
            return Some(jump(rng));
        }
        None
    }
}

/// How much more often something is stalled at a point than at others: between the look at a lease and
/// a body, and between a read of the store and what follows from it, the world may change most.
fn weight_of(at: &At<'_>) -> u64 {
    match at.label {
        _ if is_read(at) => 40,
        "made" if at.activity.starts_with("everstep-lease") => 40,
        "lease check" | "poll" | "made" => 8,
        _ => 1,
    }
}

/// Whether an engine thread waits for what was just read.
fn is_read(at: &At<'_>) -> bool {
    at.label == "made" && at.activity.starts_with("everstep-read")
}

/// Whether something may befall a process of this name.
fn is_mortal(process: &str) -> bool {
    process.starts_with("engine") || process.starts_with("client")
}

/// The longest time by which a calendar is wrong for good.
pub const WRONG_MAX: Duration = Duration::from_secs(60);

/// A calendar is set: by a little for good, or by a lot for a moment, which has no effect.
fn jump(rng: &mut Rng) -> Fault {
    const HOUR_MS: u64 = 3_600_000;
    let wrong_max = WRONG_MAX.as_millis() as u64;
    let (most, lasts) = match rng.below(4) {
        0 => (100, None),
        1 => (2_000, None),
        2 => (wrong_max, None),
        _ => (HOUR_MS, Some(rng.up_to(Duration::from_secs(4)))),
    };
    let ahead = rng.below(most + 1) as i64;
    let ahead_ms = match rng.below(2) {
        0 => ahead,
        _ => -ahead,
    };
    Fault::SetCalendar { ahead_ms, lasts }
}

/// None, one or two windows before `end`.
fn windows(rng: &mut Rng, end: Duration, longest: Duration) -> Vec<Window> {
    let mut windows = Vec::new();
    for _ in 0..rng.below(3) {
        let from = rng.up_to(end);
        let to = (from + rng.up_to(longest)).min(end);
        windows.push(Window { from, to });
    }
    windows
}

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}
