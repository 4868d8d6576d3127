//! Limits: who may go on, and who is next.
//!
//! A *place* belongs to one operation of a run: it waits in line for it, or has it. (An item of a queue
//! may have one too, and never waits in line: see [`claim`].) A place that is given comes with an instant before which the operation does not begin: its turn by the rate. So
//! nobody polls; the run sleeps until then.
//!
//! Always true, for each key of a limit:
//! - No more places are given than the concurrency allows, as it was last said.
//! - Places are given in the order in which they were asked for, in the transaction that makes room:
//!   the one that asks, gives back, or ends a run. So no wake-up is lost.
//! - The operation that has a place has a row in its run's inbox that says so, until it gives the place back. A process
//!   that dies loses neither: whoever takes up its run finds both.
//! - A run that has ended, was put away (paused), or begins anew has no place.

use super::{
    effects::waiter,
    tables::{self, links},
};
use crate::{
    commit::{Acquire, ClaimLimit, Commit, InboxKind, LimitRate, LimitRule, RunStatus, answer},
    run_id::RunNo,
    store::{
        LimitRow,
        rows::{InboxPart, LimitTables, Of, Place, Waiter},
    },
    time::Timestamp,
};

/// An operation asks for a place, or for its turn alone.
pub(crate) fn acquire<T: LimitTables>(
    tables: &mut T,
    commit: &Commit,
    acquire: &Acquire,
) -> Result<(), T::Error> {
    let of = waiter(commit, &acquire.key);
    if !tables::link(tables, of.run, links::LIMITS)? {
        return Ok(());
    }
    let Acquire { limit, limit_key, rule, .. } = acquire;
    if !acquire.holds {
        let mut row = row_of(tables, limit, limit_key, *rule)?;
        let at = next_turn(&mut row, tables.now());
        tell(tables, &of, &row.name, at)?;
        // Another rule counts for those in line, too.
        return match row.waiting {
            0 => tables.put_limit(&row),
            _ => move_line(tables, row),
        };
    }
    if let Some(place) = place_of(tables, &of)? {
        if place.limit == *limit && place.limit_key == *limit_key {
            return Ok(());
        }
        // The code has another limit now.
        tables.take_inbox(of.run, InboxPart::Answers(&of.key))?;
        release(tables, &of)?;
    }
    let mut row = row_of(tables, limit, limit_key, *rule)?;
    row.arrivals += 1;
    let mut place = Place {
        limit: row.name.clone(),
        limit_key: row.key.clone(),
        of,
        arrival: row.arrivals,
        given: false,
    };
    if row.waiting == 0 && has_room(&row) {
        give(tables, &mut row, &mut place)?;
        return tables.put_limit(&row);
    }
    row.waiting += 1;
    tables.put_place(&place)?;
    move_line(tables, row)
}

/// The place of an operation or of an item.
pub(crate) fn place_of<T: LimitTables>(
    tables: &mut T,
    of: &Waiter,
) -> Result<Option<Place>, T::Error> {
    Ok(tables.places(Of::Operation(of))?.pop())
}

/// An operation gives back its place, or leaves the line.
pub(crate) fn release<T: LimitTables>(tables: &mut T, of: &Waiter) -> Result<(), T::Error> {
    let Some(place) = place_of(tables, of)? else {
        return Ok(());
    };
    tables.remove_place(of)?;
    let Some(mut row) = tables.limit(&place.limit, &place.limit_key)? else {
        return Ok(());
    };
    let count = if place.given { &mut row.held } else { &mut row.waiting };
    *count = count.saturating_sub(1);
    move_line(tables, row)
}

/// A run gives back everything.
pub(crate) fn leave<T: LimitTables>(tables: &mut T, run: RunNo) -> Result<(), T::Error> {
    let mut places = tables.places(Of::Run(run))?;
    // It leaves the lines first, so that it does not get what it gives back.
    places.sort_by_key(|place| place.given);
    for place in places {
        tables.take_inbox(run, InboxPart::Answers(&place.of.key))?;
        release(tables, &place.of)?;
    }
    Ok(())
}

/// What became of a claim that does not wait in line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Claimed {
    /// It has a place.
    Taken,
    /// There is none now; at this time there may be one, if it is only the rate.
    Later(Option<Timestamp>),
}

/// Takes a place if one is free now, for something that is not an operation of a run and waits
/// elsewhere: an item of a queue. It is given back with [`release`].
///
/// Whoever waits in line goes first.
pub(crate) fn claim<T: LimitTables>(
    tables: &mut T,
    wanted: &ClaimLimit,
    of: &Waiter,
) -> Result<Claimed, T::Error> {
    let (name, key) = (&wanted.limit, &wanted.limit_key);
    let mut row = row_of(tables, name, key, wanted.rule)?;
    if row.waiting > 0 || !has_room(&row) {
        // Another rule counts for those in line, too, even if this is refused.
        let stored = tables.limit(name, key)?;
        if stored.is_some_and(|stored| stored.rule != row.rule) {
            move_line(tables, row)?;
        }
        return Ok(Claimed::Later(None));
    }
    let mut after = row.clone();
    let at = next_turn(&mut after, tables.now());
    if at > tables.now() {
        if follow_clock(&mut row, tables.now()) {
            // Without this, whoever asks would find the same distance to the next turn each time.
            tables.put_limit(&row)?;
        }
        return Ok(Claimed::Later(Some(at)));
    }
    row = after;
    row.arrivals += 1;
    row.held += 1;
    tables.put_place(&Place {
        limit: row.name.clone(),
        limit_key: row.key.clone(),
        of: of.clone(),
        arrival: row.arrivals,
        given: true,
    })?;
    tables.put_limit(&row)?;
    Ok(Claimed::Taken)
}

/// The row of the limit, with the rule that the code has now.
fn row_of<T: LimitTables>(
    tables: &mut T,
    name: &str,
    key: &str,
    rule: LimitRule,
) -> Result<LimitRow, T::Error> {
    if let Some(mut row) = tables.limit(name, key)? {
        row.rule = rule;
        return Ok(row);
    }
    // For each key that comes, up to two go, so there are never many more than are in use.
    let now_us = micros(tables.now());
    tables.remove_idle(name, now_us, 2)?;
    Ok(LimitRow {
        name: name.to_owned(),
        key: key.to_owned(),
        rule,
        held: 0,
        waiting: 0,
        arrivals: 0,
        turn_us: 0,
        seen_us: now_us,
    })
}

fn has_room(row: &LimitRow) -> bool {
    let max = row.rule.concurrency;
    max.is_none_or(|max| row.held < u64::from(max))
}

/// Lets in as many as there is room for, oldest first, and writes the row.
pub(crate) fn move_line<T: LimitTables>(tables: &mut T, mut row: LimitRow) -> Result<(), T::Error> {
    while row.waiting > 0 && has_room(&row) {
        let Some(mut place) = tables.first_in_line(&row.name, &row.key)? else {
            debug_assert!(false, "there are as many places as the row says");
            row.waiting = 0;
            break;
        };
        row.waiting -= 1;
        if !give(tables, &mut row, &mut place)? {
            tables.remove_place(&place.of)?;
        }
    }
    let idle = row.held == 0 && row.waiting == 0 && row.turn_us <= micros(tables.now());
    if idle {
        return tables.remove_limit(&row);
    }
    tables.put_limit(&row)
}

/// Gives a place and tells its operation. `false` if there is nobody to use it: a run that is paused
/// asks again when it goes on, and one that has ended does not.
fn give<T: LimitTables>(
    tables: &mut T,
    row: &mut LimitRow,
    place: &mut Place,
) -> Result<bool, T::Error> {
    let head = tables.head(place.of.run)?;
    if head.is_none_or(|head| head.status == RunStatus::Paused) {
        return Ok(false);
    }
    let mut after = row.clone();
    let at = next_turn(&mut after, tables.now());
    if !tell(tables, &place.of, &row.name, at)? {
        return Ok(false);
    }
    *row = after;
    row.held += 1;
    place.given = true;
    tables.put_place(place)?;
    Ok(true)
}

fn tell<T: LimitTables>(
    tables: &mut T,
    of: &Waiter,
    name: &str,
    at: Timestamp,
) -> Result<bool, T::Error> {
    tables::answer(tables, of, InboxKind::LimitGrant, name, answer::turn(at))
}

fn micros(at: Timestamp) -> i64 {
    at.as_millis().saturating_mul(1_000)
}

/// Gives away the next turn by the rate: when it is.
///
/// `turn_us` is the instant at which a bucket that gains one turn each interval, and was full at the
/// last turn that found it so, would be full again. A turn may be taken as long as the bucket has
/// one, that is, up to `burst - 1` intervals before; each puts the instant off by an interval.
fn next_turn(row: &mut LimitRow, now: Timestamp) -> Timestamp {
    follow_clock(row, now);
    let Some(rate) = row.rule.rate else {
        return now;
    };
    let interval = interval_us(rate);
    let ahead = interval.saturating_mul(i64::from(rate.burst.max(1)) - 1);
    let at = micros(now).max(row.turn_us.saturating_sub(ahead));
    row.turn_us = row.turn_us.max(at).saturating_add(interval);
    Timestamp::from_millis(at.saturating_add(999).div_euclid(1_000)).max(now)
}

/// How far back the clock may be behind the one that the row was last written by: two processes do not
/// read it at the same moment, and one may follow a change of the clock earlier than another.
const CLOCKS_DIFFER_US: i64 = 5_000_000;

/// Moves the turns along with a clock that was set back; whether it was.
///
/// Where the store has no clock of its own, a clock that is ahead for a while puts the next turn ahead,
/// too. Once the clock is set back, nobody would have a turn until it shows that time again. So the
/// next turn keeps its distance from now, as if no time had passed in between: what was given away
/// counts, and the rate is kept.
fn follow_clock(row: &mut LimitRow, now: Timestamp) -> bool {
    let now_us = micros(now);
    let back = row.seen_us.saturating_sub(now_us);
    let was_set_back = back > CLOCKS_DIFFER_US;
    if was_set_back {
        (row.turn_us, row.seen_us) = (row.turn_us.saturating_sub(back), now_us);
    }
    row.seen_us = row.seen_us.max(now_us);
    was_set_back
}

/// When the next turn is, if one were asked for now.
pub(crate) fn next_free(row: &LimitRow, now: Timestamp) -> Timestamp {
    next_turn(&mut row.clone(), now)
}

/// Rounded up, so that the rate is never exceeded.
fn interval_us(rate: LimitRate) -> i64 {
    let per_us = rate.per_ms.saturating_mul(1_000);
    let interval = per_us.div_ceil(u64::from(rate.count.max(1)));
    i64::try_from(interval).unwrap_or(i64::MAX).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::memory::Data;

    fn item(no: u8) -> Waiter {
        Waiter { run: RunNo(0), generation: 0, key: vec![no] }
    }

    #[test]
    fn what_waits_elsewhere_takes_a_place_only_if_one_is_free_now() {
        let limit = ClaimLimit {
            limit: "stripe".to_owned(),
            limit_key: String::new(),
            rule: LimitRule {
                concurrency: Some(2),
                rate: Some(LimitRate { count: 1, per_ms: 1_000, burst: 1 }),
            },
        };
        let data = &mut Data::default();
        let at = |data: &mut Data, ms, no| {
            data.now = Timestamp::from_millis(ms);
            let Ok(claimed) = claim(data, &limit, &item(no));
            claimed
        };
        let later = Claimed::Later(Some(Timestamp::from_millis(11_000)));
        assert_eq!(at(data, 10_000, 1), Claimed::Taken);
        assert_eq!(at(data, 10_000, 2), later);
        assert_eq!(at(data, 10_500, 2), later, "what was not given is not used up");
        assert_eq!(at(data, 11_000, 2), Claimed::Taken);
        assert_eq!(at(data, 20_000, 3), Claimed::Later(None));
        let Ok(()) = release(data, &item(1));
        assert_eq!(at(data, 20_000, 3), Claimed::Taken);
        for no in [2, 3] {
            let Ok(()) = release(data, &item(no));
        }
        assert_eq!(data.places(Of::Run(RunNo(0))), Ok(Vec::new()));
    }

    fn limit(count: u32, per_ms: u64, burst: u32) -> LimitRow {
        let rate = Some(LimitRate { count, per_ms, burst });
        LimitRow {
            name: "stripe".to_owned(),
            key: String::new(),
            rule: LimitRule { concurrency: None, rate },
            held: 0,
            waiting: 0,
            arrivals: 0,
            turn_us: 0,
            seen_us: 0,
        }
    }

    fn turns(row: &mut LimitRow, now: &[i64]) -> Vec<i64> {
        let turn = |now: &i64| next_turn(row, Timestamp::from_millis(*now)).as_millis();
        now.iter().map(turn).collect()
    }

    #[test]
    fn turns_are_an_interval_apart_after_a_burst() {
        let row = &mut limit(2, 1_000, 2);
        assert_eq!(turns(row, &[100; 5]), [100, 100, 600, 1_100, 1_600]);
        // Half an interval after the last turn, the next one is half an interval away.
        assert_eq!(turns(row, &[1_850]), [2_100]);
        // After a time without any, there is a burst again.
        assert_eq!(turns(row, &[9_000; 3]), [9_000, 9_000, 9_500]);
    }

    #[test]
    fn without_a_burst_every_turn_has_its_interval() {
        let row = &mut limit(3, 1_000, 1);
        // A third of a second is rounded up, so that no second has more than three.
        assert_eq!(turns(row, &[0; 4]), [0, 334, 667, 1_001]);
    }

    #[test]
    fn a_clock_that_is_behind_gets_no_turn_again() {
        let row = &mut limit(1, 1_000, 1);
        assert_eq!(turns(row, &[5_000, 4_000]), [5_000, 6_000]);
    }

    /// A clock that was an hour ahead for a while put the next turn off by that hour, for everybody, after
    /// it was set back.
    #[test]
    fn a_clock_that_was_set_back_is_followed_by_the_turns() {
        const HOUR: i64 = 3_600_000;
        let row = &mut limit(1, 1_000, 1);
        assert_eq!(turns(row, &[HOUR, HOUR, HOUR]), [HOUR, HOUR + 1_000, HOUR + 2_000]);
        // The turns that were given away still count.
        assert_eq!(turns(row, &[500, 500, 900]), [3_500, 4_500, 5_500]);
        assert_eq!(turns(row, &[20_000, 20_000]), [20_000, 21_000]);
    }

    #[test]
    fn an_item_gets_its_turn_after_the_clock_was_set_back() {
        const HOUR: i64 = 3_600_000;
        let rate = Some(LimitRate { count: 1, per_ms: 1_000, burst: 1 });
        let limit = ClaimLimit {
            limit: "stripe".to_owned(),
            limit_key: String::new(),
            rule: LimitRule { concurrency: None, rate },
        };
        let data = &mut Data::default();
        let at = |data: &mut Data, ms, no| {
            data.now = Timestamp::from_millis(ms);
            let Ok(claimed) = claim(data, &limit, &item(no));
            claimed
        };
        let later = |ms| Claimed::Later(Some(Timestamp::from_millis(ms)));
        assert_eq!(at(data, HOUR, 1), Claimed::Taken);
        assert_eq!(at(data, 10, 2), later(1_010));
        assert_eq!(at(data, 600, 2), later(1_010), "it does not wait anew each time it asks");
        assert_eq!(at(data, 1_010, 2), Claimed::Taken);
    }

    #[test]
    fn a_change_of_the_rate_counts_for_later_turns() {
        let row = &mut limit(1, 1_000, 1);
        assert_eq!(turns(row, &[0, 0]), [0, 1_000]);
        row.rule = limit(10, 1_000, 1).rule;
        assert_eq!(turns(row, &[0, 0]), [2_000, 2_100]);
    }

    #[test]
    fn a_grant_has_a_fixed_format() {
        let bytes = answer::turn(Timestamp::from_millis(500));
        assert_eq!(bytes, [1, 0, 0, 0x19, 0x01, 0xF4]);
        assert_eq!(answer::decode_turn(&bytes), Ok(Timestamp::from_millis(500)));
        assert!(answer::decode_turn(&[1, 0, 2]).is_err());
    }
}
