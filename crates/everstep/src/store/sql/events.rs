//! The rows of events and of those who wait for them.
//!
//! A name is locked when its row is read, which is what the rules do first. Of a waiter, `given` is
//! written by whoever has the lock of the name and the row of its run; so it can be read under
//! either. One that was given nothing is removed under the lock of the name, since a publisher may
//! have it before its eyes; one that was given something is its run's alone, and so is the event if
//! it is for one.

use super::{
    InSql, Sql, SqlTables, Subject,
    bulk::Bulk,
    columns,
    value::{BadValue, Row, params, read},
};
use crate::{
    commit::{Deliver, EventRow},
    run_id::RunNo,
    store::{
        rows::{EventName, EventTables, EventWaiter, Of, RunTables, StoredEvent, Waiter},
        rules::events::LOOK,
    },
    time::Timestamp,
};

/// The columns that [`event`] reads.
pub(crate) const EVENT: &str = "seq, key, body, published_at, expires_at, one, given_to, told";

/// The columns that [`waiter`] reads.
pub(crate) const WAITER: &str = "name, no, matching, run, generation, wait, after, floor, given";

static PUT_NAME: Bulk = Bulk::put(
    "everstep_event_names",
    1,
    "name text, last_seq bigint, last_waiter bigint, kept bigint, dropped bigint",
);

static INSERT_EVENT: Bulk = Bulk::insert(
    "everstep_events",
    2,
    "seq bigint, name text, key text, body bytea, published_at bigint, expires_at bigint, \
     one bigint, given_to bigint, told bigint",
);

static WRITE_EVENT: Bulk =
    Bulk::update("everstep_events", 2, "seq bigint, name text, given_to bigint, told bigint");

static DELETE_EVENT: Bulk = Bulk::delete("everstep_events", 2, "seq bigint, name text");

static INSERT_WAITER: Bulk = Bulk::insert(
    "everstep_event_waiters",
    2,
    "no bigint, name text, matching text, run bigint, generation bigint, wait bytea, \
     after bigint, floor bigint, given bigint",
);

static WRITE_GIVEN: Bulk =
    Bulk::update("everstep_event_waiters", 2, "no bigint, name text, given bigint");

static DELETE_WAITER: Bulk = Bulk::delete("everstep_event_waiters", 2, "no bigint, name text");

static PUT_CURSOR: Bulk =
    Bulk::put("everstep_event_cursors", 3, "run bigint, name text, matching text, seq bigint");

static DELETE_CURSORS: Bulk = Bulk::delete("everstep_event_cursors", 1, "run bigint");

pub(crate) fn event_name(row: &dyn Row, first: usize) -> Result<EventName, BadValue> {
    Ok(read!(row, first => EventName { last_seq, last_waiter, kept, dropped }))
}

pub(crate) fn event(row: &dyn Row) -> Result<StoredEvent, BadValue> {
    Ok(read!(row => StoredEvent {
        seq, key, body, published_at, expires_at, deliver, given_to, told
    }))
}

pub(crate) fn waiter(row: &dyn Row) -> Result<EventWaiter, BadValue> {
    Ok(EventWaiter {
        name: row.get(0)?,
        no: row.get(1)?,
        matching: row.get(2)?,
        waiter: columns::waiter(row, 3)?,
        after: row.get(6)?,
        floor: row.get(7)?,
        given: row.get(8)?,
    })
}

pub(crate) fn name_and_seq(row: &dyn Row) -> Result<(String, u64), BadValue> {
    Ok((row.get(0)?, row.get(1)?))
}

/// An event that is still being told, of this name or of any.
fn first_spreading<S: Sql>(sql: &S, name: Option<&str>) -> Result<Option<(String, u64)>, S::Error> {
    let of_name = match name {
        Some(_) => "name = ?1",
        None => "?1 IS NULL",
    };
    let text = format!(
        "SELECT name, seq FROM everstep_events{} WHERE told IS NOT NULL AND {of_name} \
         ORDER BY name, seq LIMIT 1",
        S::indexed_by("everstep_events_spreading")
    );
    sql.row(text, params![name], name_and_seq)
}

/// A waiter that is going to be removed: see the head of this module.
fn lock_ungiven<T: SqlTables>(tables: &mut InSql<T>, waiter: &EventWaiter) -> Result<(), T::Error> {
    match waiter.given {
        Some(_) => Ok(()),
        None => tables.lock(Subject::Event(&waiter.name)),
    }
}

impl<T: SqlTables> EventTables for InSql<T> {
    fn event_name(&mut self, name: &str) -> Result<Option<EventName>, T::Error> {
        self.lock(Subject::Event(name))?;
        if let Some(row) = self.ahead().event_names.get(name) {
            return Ok(row.clone());
        }
        let sql =
            "SELECT last_seq, last_waiter, kept, dropped FROM everstep_event_names WHERE name = ?1";
        let row = self.sql().row(sql, params![name], |row| event_name(row, 0))?;
        let names = &mut self.ahead().event_names;
        names.insert(name.to_owned(), row.clone());
        Ok(row)
    }

    fn write_event_name(&mut self, name: &str, row: &EventName) -> Result<(), T::Error> {
        let params = params![name, row.last_seq, row.last_waiter, row.kept, row.dropped];
        self.sql().put(&PUT_NAME, params)?;
        let names = &mut self.ahead().event_names;
        names.insert(name.to_owned(), Some(row.clone()));
        Ok(())
    }

    fn insert_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), T::Error> {
        let is_for_one = event.deliver == Deliver::One;
        let params = params![
            event.seq,
            name,
            event.key,
            event.body,
            event.published_at,
            event.expires_at,
            is_for_one,
            event.given_to,
            event.told,
        ];
        self.sql().put(&INSERT_EVENT, params)?;
        self.ahead().forget_event(name, event.seq);
        Ok(())
    }

    fn stored_event(&mut self, name: &str, seq: u64) -> Result<Option<StoredEvent>, T::Error> {
        if let Some(known) = self.ahead().event(name, seq) {
            return Ok(known);
        }
        let sql = format!("SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND seq = ?2");
        self.sql().row(sql, params![name, seq], event)
    }

    fn write_event(&mut self, name: &str, event: &StoredEvent) -> Result<(), T::Error> {
        let params = params![event.seq, name, event.given_to, event.told];
        self.sql().put(&WRITE_EVENT, params)?;
        self.ahead().forget_event(name, event.seq);
        Ok(())
    }

    fn delete_event(&mut self, name: &str, seq: u64) -> Result<(), T::Error> {
        self.sql().put(&DELETE_EVENT, params![seq, name])?;
        self.ahead().forget_event(name, seq);
        Ok(())
    }

    fn first_event(
        &mut self,
        name: &str,
        matching: Option<&str>,
        deliver: Deliver,
        after: u64,
    ) -> Result<Option<StoredEvent>, T::Error> {
        // Each has an index of its own, or the primary key.
        let of_delivery = match deliver {
            Deliver::One => "one = 1 AND given_to IS NULL",
            Deliver::Broadcast => "one = 0",
        };
        let of_key = match matching {
            Some(_) => "key = ?2",
            None => "?2 IS NULL",
        };
        let sql = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND {of_key} AND {of_delivery} \
             AND seq > ?3 AND expires_at > ?4 ORDER BY seq LIMIT 1"
        );
        let now = self.now();
        let params = params![name, matching, after, now];
        self.sql().row(sql, params, event)
    }

    fn last_event_before(&mut self, name: &str, at: Timestamp) -> Result<u64, T::Error> {
        let sql = "SELECT seq FROM everstep_events WHERE name = ?1 AND published_at < ?2 \
                   ORDER BY seq DESC LIMIT 1";
        self.sql().count(sql, params![name, at])
    }

    fn oldest_kept(&mut self, name: &str) -> Result<Option<StoredEvent>, T::Error> {
        let sql = format!(
            "SELECT {EVENT} FROM everstep_events WHERE name = ?1 AND given_to IS NULL \
             AND told IS NULL ORDER BY seq LIMIT 1"
        );
        self.sql().row(sql, params![name], event)
    }

    fn expired_events(&mut self, limit: usize) -> Result<Vec<(String, u64)>, T::Error> {
        let sql = "SELECT name, seq FROM everstep_events WHERE given_to IS NULL AND told IS NULL \
                   AND expires_at <= ?1 ORDER BY expires_at, name, seq LIMIT ?2";
        let now = self.now();
        let params = params![now, limit];
        let found = self.sql().rows(sql, params, name_and_seq)?;
        // The rules count what they are given here as removed. So it must be looked at again under
        // the locks of the names; those that somebody else has at the moment can wait.
        self.lock_expired(found)
    }

    fn spreading(&mut self, name: Option<&str>) -> Result<Option<(String, u64)>, T::Error> {
        if name.is_some() || !T::Sql::HAS_OTHERS {
            return first_spreading(self.sql(), name);
        }
        // Somebody else may have told the last of them by the time that the name is locked.
        while let Some((name, _)) = first_spreading(self.sql(), None)? {
            self.lock(Subject::Event(&name))?;
            let found = first_spreading(self.sql(), Some(&name))?;
            if found.is_some() {
                return Ok(found);
            }
        }
        Ok(None)
    }

    fn insert_waiter(&mut self, waiter: &EventWaiter) -> Result<(), T::Error> {
        let params = params![
            waiter.no,
            waiter.name,
            waiter.matching,
            waiter.waiter.run,
            waiter.waiter.generation,
            waiter.waiter.key,
            waiter.after,
            waiter.floor,
            waiter.given,
        ];
        // A statement of its own: an operation may have been removed under another number before.
        self.sql().execute(INSERT_WAITER.one(), params)?;
        self.ahead().forget_waits(waiter.waiter.run);
        Ok(())
    }

    fn waiters(
        &mut self,
        name: &str,
        matching: Option<&str>,
        after: u64,
        limit: usize,
    ) -> Result<Vec<EventWaiter>, T::Error> {
        // `IS NOT DISTINCT FROM` would not use the index.
        let of_matching = match matching {
            Some(_) => "matching = ?2",
            None => "matching IS NULL AND ?2 IS NULL",
        };
        let sql = format!(
            "SELECT {WAITER} FROM everstep_event_waiters{} WHERE name = ?1 AND {of_matching} \
             AND given IS NULL AND no > ?3 ORDER BY no LIMIT ?4",
            T::Sql::indexed_by("everstep_event_waiters_waiting")
        );
        let params = params![name, matching, after, limit];
        let page = self.sql().rows(sql, params, waiter)?;
        // Of the few that are looked at for one event, it is the first that gets it, most often.
        if limit > LOOK {
            self.lock_waiting(&page)?;
        }
        Ok(page)
    }

    fn waiters_of(&mut self, of: Of<'_>) -> Result<Vec<EventWaiter>, T::Error> {
        let found = match (self.ahead().waits(of.run()), of) {
            (Some(waits), _) => {
                waits.iter().filter(|it| of.includes(&it.waiter)).cloned().collect()
            }
            (None, Of::Operation(Waiter { run, generation, key })) => {
                let sql = format!(
                    "SELECT {WAITER} FROM everstep_event_waiters \
                     WHERE run = ?1 AND generation = ?2 AND wait = ?3"
                );
                self.sql().rows(sql, params![run, generation, key], waiter)?
            }
            (None, Of::Run(run)) => {
                let sql = format!(
                    "SELECT {WAITER} FROM everstep_event_waiters WHERE run = ?1 \
                     ORDER BY generation, wait"
                );
                self.sql().rows(sql, params![run], waiter)?
            }
        };
        for waiter in &found {
            lock_ungiven(self, waiter)?;
        }
        Ok(found)
    }

    fn write_given(&mut self, waiter: &EventWaiter, seq: u64) -> Result<(), T::Error> {
        let params = params![waiter.no, waiter.name, seq];
        self.sql().put(&WRITE_GIVEN, params)?;
        self.ahead().forget_waits(waiter.waiter.run);
        Ok(())
    }

    fn delete_waiter(&mut self, waiter: &EventWaiter) -> Result<(), T::Error> {
        let params = params![waiter.no, waiter.name];
        self.sql().put(&DELETE_WAITER, params)?;
        self.ahead().waited(waiter);
        Ok(())
    }

    fn cursor(&mut self, run: RunNo, name: &str, matching: Option<&str>) -> Result<u64, T::Error> {
        let key = matching.unwrap_or_default();
        if let Some(known) = self.ahead().cursor(run, name, key) {
            return Ok(known);
        }
        let sql = "SELECT seq FROM everstep_event_cursors \
                   WHERE run = ?1 AND name = ?2 AND matching = ?3";
        self.sql().count(sql, params![run, name, key])
    }

    fn write_cursor(
        &mut self,
        run: RunNo,
        name: &str,
        matching: Option<&str>,
        seq: u64,
    ) -> Result<(), T::Error> {
        // A key is never empty.
        let key = matching.unwrap_or_default();
        self.sql().put(&PUT_CURSOR, params![run, name, key, seq])?;
        self.ahead().set_cursor(run, name, key, seq);
        Ok(())
    }

    fn delete_cursors(&mut self, run: RunNo) -> Result<(), T::Error> {
        self.sql().put(&DELETE_CURSORS, params![run])?;
        self.ahead().forget_cursors(run);
        Ok(())
    }

    fn note_event_dedupe_if_free(
        &mut self,
        name: &str,
        key: &str,
        until: Timestamp,
    ) -> Result<bool, T::Error> {
        let sql = "INSERT INTO everstep_event_dedupes (name, key, until) VALUES (?1, ?2, ?3) \
                   ON CONFLICT (name, key) DO UPDATE SET until = excluded.until \
                   WHERE everstep_event_dedupes.until <= ?4";
        Ok(self.sql().execute_now(sql, params![name, key, until, self.now()])? > 0)
    }

    fn delete_event_dedupes(&mut self, limit: usize) -> Result<usize, T::Error> {
        // The names are not locked. A key that is being used again is left alone, not waited for.
        let sql = T::Sql::pick(
            "DELETE FROM everstep_event_dedupes WHERE (name, key) IN \
             (SELECT name, key FROM everstep_event_dedupes WHERE until <= ?1 LIMIT ?2)",
            "WITH old AS MATERIALIZED (SELECT name, key FROM everstep_event_dedupes \
             WHERE until <= ?1 LIMIT ?2 FOR UPDATE SKIP LOCKED) \
             DELETE FROM everstep_event_dedupes AS dedupes USING old \
             WHERE dedupes.name = old.name AND dedupes.key = old.key AND until <= ?1",
        );
        self.sql().execute_now(sql, params![self.now(), limit])
    }
}

pub(crate) fn event_row<S: Sql>(sql: &S, name: &str) -> Result<Option<EventRow>, S::Error> {
    let text = "SELECT name, last_seq, kept, dropped, (SELECT count(*) FROM everstep_event_waiters \
                WHERE everstep_event_waiters.name = everstep_event_names.name AND given IS NULL) \
                FROM everstep_event_names WHERE name = ?1";
    sql.row(text, params![name], |row| {
        Ok(read!(row => EventRow { name, published, kept, dropped, waiting }))
    })
}

pub(crate) fn to_tend<S: Sql>(sql: &S, now: Timestamp) -> Result<bool, S::Error> {
    // Each is answered by its index.
    let text = "SELECT 1 WHERE EXISTS (SELECT 1 FROM everstep_events WHERE told IS NOT NULL) \
                OR EXISTS (SELECT 1 FROM everstep_events WHERE given_to IS NULL \
                AND told IS NULL AND expires_at <= ?1) \
                OR EXISTS (SELECT 1 FROM everstep_event_dedupes WHERE until <= ?1)";
    sql.exists(text, params![now])
}
