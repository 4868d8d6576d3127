//! Events in SQL: [`crate::store::rules::events`] decides, this reads and writes rows.
//!
//! A name is locked when its row is read, which is what the rules do first. Of a waiter, `given` is
//! written by whoever has the lock of the name and the row of its run; so it can be read under
//! either. One that was given nothing is removed under the lock of the name, since a publisher may
//! have it before its eyes; one that was given something is its run's alone, and so is the event if
//! it is for one.

use std::collections::BTreeSet;

use super::{
    batch::{Applier, HEAD, read_head},
    columns::{self, number, optional_number},
    error::Trouble,
    locks::Lock,
    session::{Bulk, Op, Session},
    value::{Row, Value, params},
};
use crate::{
    commit::{Deliver, EventRow, InboxRow},
    run_id::RunNo,
    store::rules::{
        events::{EventName, EventTables, EventWaiter, LOOK, StoredEvent},
        tables::Waiter,
    },
    time::Timestamp,
};

/// The columns that [`event`] reads.
const EVENT: &str = "seq, key, body, published_at, expires_at, one, given_to, told";

/// The columns that [`waiter`] reads.
const WAITER: &str = "name, no, matching, run, generation, wait, after, floor, given";

static PUT_NAME: Bulk = Bulk {
    table: "everstep_event_names",
    sql: "INSERT INTO everstep_event_names (name, last_seq, last_waiter, kept, dropped) \
          SELECT * FROM unnest($1::text[], $2::bigint[], $3::bigint[], $4::bigint[], \
          $5::bigint[]) ON CONFLICT (name) DO UPDATE SET last_seq = excluded.last_seq, \
          last_waiter = excluded.last_waiter, kept = excluded.kept, dropped = excluded.dropped",
    unique: 1,
};

static INSERT_EVENT: Bulk = Bulk {
    table: "everstep_events",
    sql: "INSERT INTO everstep_events (seq, name, key, body, published_at, expires_at, one, given_to, told) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bytea[], $5::bigint[], \
          $6::bigint[], $7::bigint[], $8::bigint[], $9::bigint[])",
    unique: 2,
};

static WRITE_EVENT: Bulk = Bulk {
    table: "everstep_events",
    sql: "UPDATE everstep_events SET given_to = new.given_to, told = new.told \
          FROM unnest($1::bigint[], $2::text[], $3::bigint[], $4::bigint[]) \
          AS new (seq, name, given_to, told) \
          WHERE everstep_events.name = new.name AND everstep_events.seq = new.seq",
    unique: 2,
};

static DELETE_EVENT: Bulk = Bulk {
    table: "everstep_events",
    sql: "DELETE FROM everstep_events USING unnest($1::bigint[], $2::text[]) AS gone (s, n) \
          WHERE name = n AND seq = s",
    unique: 2,
};

static WRITE_GIVEN: Bulk = Bulk {
    table: "everstep_event_waiters",
    sql: "UPDATE everstep_event_waiters SET given = new.given \
          FROM unnest($1::bigint[], $2::text[], $3::bigint[]) AS new (no, name, given) \
          WHERE everstep_event_waiters.name = new.name AND everstep_event_waiters.no = new.no",
    unique: 2,
};

static DELETE_WAITER: Bulk = Bulk {
    table: "everstep_event_waiters",
    sql: "DELETE FROM everstep_event_waiters USING unnest($1::bigint[], $2::text[]) AS gone (w, n) \
          WHERE name = n AND no = w",
    unique: 2,
};

static PUT_CURSOR: Bulk = Bulk {
    table: "everstep_event_cursors",
    sql: "INSERT INTO everstep_event_cursors (run, name, matching, seq) \
          SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[]) \
          ON CONFLICT (run, name, matching) DO UPDATE SET seq = excluded.seq",
    unique: 3,
};

static DELETE_CURSORS: Bulk = Bulk {
    table: "everstep_event_cursors",
    sql: "DELETE FROM everstep_event_cursors WHERE run = ANY ($1)",
    unique: 1,
};

/// What [`Ahead`](super::ahead::Ahead) reads for these runs: their waits, their cursors, and the
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

fn event_name(row: &Row, first: usize) -> Result<EventName, Trouble> {
    Ok(EventName {
        last_seq: number(row, first)?,
        last_waiter: number(row, first + 1)?,
        kept: number(row, first + 2)?,
        dropped: number(row, first + 3)?,
    })
}

pub(super) fn event(row: &Row) -> Result<StoredEvent, Trouble> {
    Ok(StoredEvent {
        seq: number(row, 0)?,
        key: row.get(1)?,
        body: row.get(2)?,
        published_at: columns::time(row, 3)?,
        expires_at: columns::time(row, 4)?,
        deliver: if row.get(5)? {
            Deliver::One
        } else {
            Deliver::Broadcast
        },
        given_to: optional_number(row, 6)?,
        told: optional_number(row, 7)?,
    })
}

pub(super) fn waiter(row: &Row) -> Result<EventWaiter, Trouble> {
    Ok(EventWaiter {
        name: row.get(0)?,
        no: number(row, 1)?,
        matching: row.get(2)?,
        waiter: Waiter {
            run: RunNo(row.get(3)?),
            generation: row.get(4)?,
            key: row.get(5)?,
        },
        after: number(row, 6)?,
        floor: number(row, 7)?,
        given: optional_number(row, 8)?,
    })
}

fn name_and_seq(row: &Row) -> Result<(String, u64), Trouble> {
    Ok((row.get(0)?, number(row, 1)?))
}

/// A number as SQL takes it.
fn sql(number: u64) -> i64 {
    columns::limit(number)
}

impl Applier<'_> {
    /// Reads and locks the rows of the runs of a page of waiters in one round trip, where each would
    /// be one of its own.
    fn lock_page(&mut self, page: &[EventWaiter]) -> Result<(), Trouble> {
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
            Ok((RunNo(row.get(0)?), self.completed(read_head(row)?)))
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

    /// Locks those of these names that nobody else has locked.
    fn try_names(&mut self, names: &[(String, u64)]) -> Result<(), Trouble> {
        let locks: BTreeSet<Lock> = names.iter().map(|(name, _)| Lock::event(name)).collect();
        let wanted = locks.into_iter().filter(|lock| !self.locks.contains(lock));
        let (locks, numbers): (Vec<Lock>, Vec<i64>) = wanted
            .filter_map(|lock| Some((lock, lock.advisory(self.terms.schema)?)))
            .unzip();
        if numbers.is_empty() {
            return Ok(());
        }
        let statement = "SELECT number FROM unnest($1::bigint[]) AS number \
                         WHERE pg_try_advisory_xact_lock(number)";
        let ours = self
            .session
            .rows(statement, params![numbers], |row| row.get(0))?;
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
        let seqs = events.iter().map(|(_, seq)| Some(sql(*seq))).collect();
        let statement = "SELECT everstep_events.name, everstep_events.seq, last_seq, last_waiter, kept, dropped \
                         FROM everstep_events JOIN unnest($1::text[], $2::bigint[]) AS found (name, seq) \
                         ON everstep_events.name = found.name AND everstep_events.seq = found.seq \
                         JOIN everstep_event_names ON everstep_event_names.name = everstep_events.name \
                         WHERE given_to IS NULL AND told IS NULL AND expires_at <= $3 \
                         ORDER BY expires_at, everstep_events.name, everstep_events.seq";
        let now = Value::Int(Some(self.now));
        let params = vec![Value::Texts(names), Value::Ints(seqs), now];
        let found = self.session.rows(statement, params, |row| {
            Ok((name_and_seq(row)?, event_name(row, 2)?))
        })?;
        let mut events = Vec::with_capacity(found.len());
        for ((name, seq), row) in found {
            self.ahead.event_names.insert(name.clone(), Some(row));
            events.push((name, seq));
        }
        Ok(events)
    }

    fn first_spreading(&self, name: Option<&str>) -> Result<Option<(String, u64)>, Trouble> {
        let of_name = match name {
            Some(_) => "name = $1",
            None => "$1 IS NULL",
        };
        let statement = format!(
            "SELECT name, seq FROM everstep_events WHERE told IS NOT NULL AND {of_name} \
             ORDER BY name, seq LIMIT 1"
        );
        self.session.row(statement, params![name], name_and_seq)
    }

    /// A waiter that is going to be removed: see the head of this module.
    fn lock_ungiven(&mut self, waiter: &EventWaiter) -> Result<(), Trouble> {
        match waiter.given {
            Some(_) => Ok(()),
            None => self.lock(Lock::event(&waiter.name)),
        }
    }
}

impl EventTables for Applier<'_> {
    fn event_name(&mut self, name: &str) -> Result<Option<EventName>, Trouble> {
        self.lock(Lock::event(name))?;
        if let Some(row) = self.ahead.event_names.get(name) {
            return Ok(row.clone());
        }
        let sql =
            "SELECT last_seq, last_waiter, kept, dropped FROM everstep_event_names WHERE name = $1";
        let row = self
            .session
            .row(sql, params![name], |row| event_name(row, 0))?;
        self.ahead.event_names.insert(name.to_owned(), row.clone());
        Ok(row)
    }

    fn write_event_name(&mut self, name: &str, row: &EventName) -> Result<(), Trouble> {
        let (last_seq, last_waiter) = (sql(row.last_seq), sql(row.last_waiter));
        let (kept, dropped) = (sql(row.kept), sql(row.dropped));
        let params = params![name, last_seq, last_waiter, kept, dropped];
        self.session.put(&PUT_NAME, params);
        self.ahead
            .event_names
            .insert(name.to_owned(), Some(row.clone()));
        Ok(())
    }

    fn insert_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Trouble> {
        let params = params![
            sql(event.seq),
            name,
            event.key,
            event.body,
            event.published_at.as_millis(),
            event.expires_at.as_millis(),
            event.deliver == Deliver::One,
            event.given_to.map(sql),
            event.told.map(sql),
        ];
        self.session.put(&INSERT_EVENT, params);
        self.ahead.forget_event(name, event.seq);
        Ok(())
    }

    fn stored_event(&mut self, name: &str, seq: u64) -> Result<Option<StoredEvent>, Trouble> {
        if let Some(known) = self.ahead.event(name, seq) {
            return Ok(known);
        }
        let statement = format!("SELECT {EVENT} FROM everstep_events WHERE name = $1 AND seq = $2");
        self.session.row(statement, params![name, sql(seq)], event)
    }

    fn write_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), Trouble> {
        let (given_to, told) = (event.given_to.map(sql), event.told.map(sql));
        let params = params![sql(event.seq), name, given_to, told];
        self.session.put(&WRITE_EVENT, params);
        self.ahead.forget_event(name, event.seq);
        Ok(())
    }

    fn delete_event(&mut self, name: &str, seq: u64) -> Result<(), Trouble> {
        self.session.put(&DELETE_EVENT, params![sql(seq), name]);
        self.ahead.forget_event(name, seq);
        Ok(())
    }

    fn first_event(
        &mut self,
        name: &str,
        matching: Option<&str>,
        deliver: Deliver,
        after: u64,
    ) -> Result<Option<StoredEvent>, Trouble> {
        // Each has an index of its own, or the primary key.
        let of_delivery = match deliver {
            Deliver::One => "one = 1 AND given_to IS NULL",
            Deliver::Broadcast => "one = 0",
        };
        let of_key = match matching {
            Some(_) => "key = $2",
            None => "$2 IS NULL",
        };
        let statement = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = $1 AND {of_key} AND {of_delivery} \
             AND seq > $3 AND expires_at > $4 ORDER BY seq LIMIT 1"
        );
        let params = params![name, matching, sql(after), self.now];
        self.session.row(statement, params, event)
    }

    fn last_event_before(&mut self, name: &str, at: Timestamp) -> Result<u64, Trouble> {
        let statement = "SELECT seq FROM everstep_events WHERE name = $1 AND published_at < $2 \
                         ORDER BY seq DESC LIMIT 1";
        let params = params![name, at.as_millis()];
        let found = self.session.row(statement, params, |row| number(row, 0))?;
        Ok(found.unwrap_or(0))
    }

    fn oldest_kept(&mut self, name: &str) -> Result<Option<StoredEvent>, Trouble> {
        let statement = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = $1 AND given_to IS NULL AND told IS NULL \
             ORDER BY seq LIMIT 1"
        );
        self.session.row(statement, params![name], event)
    }

    fn expired_events(&mut self, limit: usize) -> Result<Vec<(String, u64)>, Trouble> {
        let statement = "SELECT name, seq FROM everstep_events WHERE given_to IS NULL AND told IS NULL \
                         AND expires_at <= $1 ORDER BY expires_at, name, seq LIMIT $2";
        let params = params![self.now, columns::limit(limit)];
        let mut found = self.session.rows(statement, params, name_and_seq)?;
        // The rules count what they are given here as removed. So it must be looked at again under
        // the locks of the names; those that somebody else has at the moment can wait.
        self.try_names(&found)?;
        found.retain(|(name, _)| self.locks.contains(&Lock::event(name)));
        if found.is_empty() {
            return Ok(found);
        }
        self.still_expired(&found)
    }

    fn spreading(&mut self, name: Option<&str>) -> Result<Option<(String, u64)>, Trouble> {
        if name.is_some() {
            return self.first_spreading(name);
        }
        // Somebody else may have told the last of them by the time that the name is locked.
        while let Some((name, _)) = self.first_spreading(None)? {
            self.lock(Lock::event(&name))?;
            let found = self.first_spreading(Some(&name))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn insert_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Trouble> {
        let statement = format!(
            "INSERT INTO everstep_event_waiters ({WAITER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9)"
        );
        let params = params![
            waiter.name,
            sql(waiter.no),
            waiter.matching,
            waiter.waiter.run.0,
            waiter.waiter.generation,
            waiter.waiter.key,
            sql(waiter.after),
            sql(waiter.floor),
            waiter.given.map(sql),
        ];
        // A statement of its own: an operation may have been removed under another number before.
        self.execute(statement, params);
        self.ahead.forget_waits(waiter.waiter.run);
        Ok(())
    }

    fn waiters(
        &mut self,
        name: &str,
        matching: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventWaiter>, Trouble> {
        // `IS NOT DISTINCT FROM` would not use the index.
        let of_matching = match matching {
            Some(_) => "matching = $2",
            None => "matching IS NULL AND $2 IS NULL",
        };
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE name = $1 AND {of_matching} \
             AND given IS NULL AND no > $3 ORDER BY no LIMIT $4"
        );
        let params = params![name, matching, sql(after), columns::limit(limit)];
        let page = self.session.rows(statement, params, waiter)?;
        // Of the few that are looked at for one event, it is the first that gets it, most often.
        if limit > LOOK {
            self.lock_page(&page)?;
        }
        Ok(page)
    }

    fn waiter_of(&mut self, of: &Waiter) -> Result<Option<EventWaiter>, Trouble> {
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE run = $1 AND generation = $2 AND wait = $3"
        );
        let found = match self.ahead.waits(of.run) {
            Some(waits) => waits.iter().find(|it| it.waiter == *of).cloned(),
            None => {
                let params = params![of.run.0, of.generation, of.key];
                self.session.row(statement, params, waiter)?
            }
        };
        if let Some(waiter) = &found {
            self.lock_ungiven(waiter)?;
        }
        Ok(found)
    }

    fn waiters_of_run(&mut self, run: RunNo) -> Result<Vec<EventWaiter>, Trouble> {
        let statement = format!(
            "SELECT {WAITER} FROM everstep_event_waiters WHERE run = $1 ORDER BY generation, wait"
        );
        let found = match self.ahead.waits(run) {
            Some(waits) => waits.to_vec(),
            None => self.session.rows(statement, params![run.0], waiter)?,
        };
        for waiter in &found {
            self.lock_ungiven(waiter)?;
        }
        Ok(found)
    }

    fn write_given(&mut self, waiter: &EventWaiter, seq: u64) -> Result<(), Trouble> {
        let params = params![sql(waiter.no), waiter.name, sql(seq)];
        self.session.put(&WRITE_GIVEN, params);
        self.ahead.forget_waits(waiter.waiter.run);
        Ok(())
    }

    fn delete_waiter(&mut self, waiter: &EventWaiter) -> Result<(), Trouble> {
        let params = params![sql(waiter.no), waiter.name];
        self.session.put(&DELETE_WAITER, params);
        self.ahead.waited(waiter);
        Ok(())
    }

    fn cursor(&mut self, run: RunNo, name: &str, matching: Option<&str>) -> Result<u64, Trouble> {
        let key = matching.unwrap_or_default();
        if let Some(known) = self.ahead.cursor(run, name, key) {
            return Ok(known);
        }
        let statement = "SELECT seq FROM everstep_event_cursors \
                         WHERE run = $1 AND name = $2 AND matching = $3";
        let params = params![run.0, name, key];
        let found = self.session.row(statement, params, |row| number(row, 0))?;
        Ok(found.unwrap_or(0))
    }

    fn write_cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
        seq: u64,
    ) -> Result<(), Trouble> {
        // A key is never empty.
        let key = matching.unwrap_or_default();
        self.session
            .put(&PUT_CURSOR, params![run.0, name, key, sql(seq)]);
        self.ahead.set_cursor(run, name, key, seq);
        Ok(())
    }

    fn delete_cursors(&mut self, run: RunNo) -> Result<(), Trouble> {
        self.session.put(&DELETE_CURSORS, params![run.0]);
        self.ahead.forget_cursors(run);
        Ok(())
    }

    fn event_dedupe(&mut self, name: &str, key: &str) -> Result<Option<Timestamp>, Trouble> {
        let statement = "SELECT until FROM everstep_event_dedupes WHERE name = $1 AND key = $2";
        let params = params![name, key];
        self.session
            .row(statement, params, |row| columns::time(row, 0))
    }

    fn write_event_dedupe(
        &mut self,
        name: &str,
        key: &str,
        until: Timestamp,
    ) -> Result<(), Trouble> {
        let statement = "INSERT INTO everstep_event_dedupes (name, key, until) VALUES ($1, $2, $3) \
                         ON CONFLICT (name, key) DO UPDATE SET until = excluded.until";
        self.execute(statement, params![name, key, until.as_millis()]);
        Ok(())
    }

    fn delete_event_dedupes(&mut self, limit: usize) -> Result<usize, Trouble> {
        // The names are not locked. A key that is being used again is left alone, not waited for.
        let statement = "WITH old AS MATERIALIZED (SELECT name, key FROM everstep_event_dedupes \
                         WHERE until <= $1 LIMIT $2 FOR UPDATE SKIP LOCKED) \
                         DELETE FROM everstep_event_dedupes USING old \
                         WHERE everstep_event_dedupes.name = old.name AND everstep_event_dedupes.key = old.key \
                         AND until <= $1";
        let params = params![self.now, columns::limit(limit)];
        self.session.execute_now(statement, params)
    }

    fn take_fallbacks(&mut self, run: RunNo) -> Result<Vec<InboxRow>, Trouble> {
        if let Some(taken) = self.take_known(run, |row| row.on_end.is_some())? {
            return Ok(taken);
        }
        let statement = format!(
            "WITH taken AS (DELETE FROM everstep_inbox WHERE run = $1 AND on_end IS NOT NULL RETURNING *) \
             SELECT {} FROM taken ORDER BY seq",
            columns::INBOX_ROW
        );
        self.session
            .rows(statement, params![run.0], columns::inbox_row)
    }
}

pub(super) fn event_row(session: &Session<'_>, name: &str) -> Result<Option<EventRow>, Trouble> {
    let statement = "SELECT last_seq, kept, dropped, (SELECT count(*) FROM everstep_event_waiters \
                     WHERE everstep_event_waiters.name = everstep_event_names.name AND given IS NULL) \
                     FROM everstep_event_names WHERE name = $1";
    session.row(statement, params![name], |row| {
        Ok(EventRow {
            name: name.to_owned(),
            published: number(row, 0)?,
            kept: number(row, 1)?,
            dropped: number(row, 2)?,
            waiting: number(row, 3)?,
        })
    })
}

pub(super) fn to_tend(session: &Session<'_>, now: Timestamp) -> Result<bool, Trouble> {
    // Each is answered by its index.
    let statement = "SELECT EXISTS (SELECT 1 FROM everstep_events WHERE told IS NOT NULL) \
                     OR EXISTS (SELECT 1 FROM everstep_events WHERE given_to IS NULL AND told IS NULL \
                                AND expires_at <= $1) \
                     OR EXISTS (SELECT 1 FROM everstep_event_dedupes WHERE until <= $1)";
    let found = session.row(statement, params![now.as_millis()], |row| row.get(0))?;
    Ok(found.unwrap_or(false))
}
