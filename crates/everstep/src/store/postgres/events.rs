//! What a batch locks before it decides about events, in as few round trips as it can.

use std::collections::BTreeSet;

use super::{
    Sql,
    batch::Applier,
    error::Trouble,
    locks::Lock,
    session::Op,
    value::{Value, params},
};
use crate::{
    run_id::RunNo,
    store::{
        rows::EventWaiter,
        sql::{
            events::{EVENT, WAITER, event_name, name_and_seq},
            runs::{HEAD, head},
        },
    },
};

/// What [`Ahead`](crate::store::sql::ahead::Ahead) reads for these runs: their waits, their cursors, and the
/// events that they were given.
pub(super) fn ops_ahead(runs: &[i64]) -> [Op; 3] {
    let waits = format!(
        "SELECT {WAITER} FROM everstep_event_waiters WHERE run = ANY ($1) ORDER BY run, generation, wait"
    );
    let cursors =
        "SELECT run, name, matching, seq FROM everstep_event_cursors WHERE run = ANY ($1)";
    let events = format!(
        "SELECT {EVENT}, everstep_events.name FROM (SELECT DISTINCT name, given FROM everstep_event_waiters \
         WHERE run = ANY ($1) AND given IS NOT NULL) AS waits \
         JOIN everstep_events ON everstep_events.name = waits.name AND everstep_events.seq = waits.given"
    );
    [
        Op::new(waits, params![runs.to_vec()]),
        Op::new(cursors, params![runs.to_vec()]),
        Op::new(events, params![runs.to_vec()]),
    ]
}

impl Applier<'_> {
    /// Reads and locks the rows of the runs of a page of waiters in one round trip, where each would
    /// be one of its own.
    pub(super) fn lock_page(&mut self, page: &[EventWaiter]) -> Result<(), Trouble> {
        let runs = page.iter().map(|waiter| waiter.waiter.run);
        let runs: BTreeSet<RunNo> = runs.filter(|run| !self.heads.contains_key(run)).collect();
        let Some(first) = runs.first() else {
            return Ok(());
        };
        // Those that others have are waited for if that is in order. If not, they are read one by
        // one, and the batch begins again if they still are not to be had.
        let waits = self.holds_nothing_after(*first);
        let skips = if waits { "" } else { " SKIP LOCKED" };
        let statement = format!(
            "SELECT {HEAD} FROM everstep_runs WHERE no = ANY ($1) ORDER BY no FOR NO KEY UPDATE{skips}"
        );
        let numbers: Vec<i64> = runs.iter().map(|run| run.0).collect();
        let found = self.session.rows(statement, params![numbers], |row| {
            Ok((row.get(0)?, self.completed(head(row)?)))
        })?;
        if waits {
            // The others are not there.
            self.heads.extend(runs.iter().map(|run| (*run, None)));
        }
        let found = found.into_iter().map(|(run, head)| (run, Some(head)));
        self.heads.extend(found);
        Ok(())
    }

    /// Whether everything that is locked comes before this run in the order of locks.
    fn holds_nothing_after(&self, run: RunNo) -> bool {
        let comes_before = |lock: &Lock| *lock < Lock::Run(run);
        self.ahead.keys.is_empty()
            && self.heads.keys().all(|held| *held < run)
            && self.locks.iter().all(comes_before)
    }

    /// Those of these events whose names can be locked and that are still expired then.
    pub(super) fn lock_expired(
        &mut self,
        mut found: Vec<(String, u64)>,
    ) -> Result<Vec<(String, u64)>, Trouble> {
        self.try_names(&found)?;
        found.retain(|(name, _)| self.locks.contains(&Lock::event(name)));
        if found.is_empty() {
            return Ok(found);
        }
        self.still_expired(&found)
    }

    /// Locks those of these names that nobody else has locked.
    fn try_names(&mut self, names: &[(String, u64)]) -> Result<(), Trouble> {
        let locks: BTreeSet<Lock> = names.iter().map(|(name, _)| Lock::event(name)).collect();
        let wanted = locks.into_iter().filter(|lock| !self.locks.contains(lock));
        let (locks, numbers): (Vec<Lock>, Vec<i64>) =
            wanted.filter_map(|lock| Some((lock, lock.advisory(self.terms.schema)?))).unzip();
        if numbers.is_empty() {
            return Ok(());
        }
        let statement = "SELECT number FROM unnest($1::bigint[]) AS number \
                         WHERE pg_try_advisory_xact_lock(number)";
        let ours = self.session.rows(statement, params![numbers], |row| row.get(0))?;
        let ours: BTreeSet<i64> = ours.into_iter().collect();
        let locked = locks.iter().zip(&numbers);
        let locked = locked.filter(|(_, number)| ours.contains(number));
        self.locks.extend(locked.map(|(lock, _)| *lock));
        self.ahead.forget_events();
        Ok(())
    }

    /// Those of these events that are still expired, now that nobody else decides about them; and
    /// the rows of their names.
    fn still_expired(&mut self, events: &[(String, u64)]) -> Result<Vec<(String, u64)>, Trouble> {
        let names = events.iter().map(|(name, _)| Some(name.clone())).collect();
        let seqs = events.iter().map(|(_, seq)| Some(*seq as i64)).collect();
        let statement = "SELECT everstep_events.name, everstep_events.seq, last_seq, last_waiter, kept, dropped \
                         FROM everstep_events JOIN unnest($1::text[], $2::bigint[]) AS found (name, seq) \
                         ON everstep_events.name = found.name AND everstep_events.seq = found.seq \
                         JOIN everstep_event_names ON everstep_event_names.name = everstep_events.name \
                         WHERE given_to IS NULL AND told IS NULL AND expires_at <= $3 \
                         ORDER BY expires_at, everstep_events.name, everstep_events.seq";
        let (names, seqs) = (Value::Texts(names), Value::Ints(seqs));
        let params = params![names, seqs, self.now];
        let found = self
            .session
            .rows(statement, params, |row| Ok((name_and_seq(row)?, event_name(row, 2)?)))?;
        let mut events = Vec::with_capacity(found.len());
        for ((name, seq), row) in found {
            self.ahead.event_names.insert(name.clone(), Some(row));
            events.push((name, seq));
        }
        Ok(events)
    }
}
