//! Limits and the places under them, in SQL.
//!
//! A key of a limit is locked when its row is read, which is what the rules do first. A place belongs
//! to a run, whose row is locked by whoever gives it, takes it back or asks about it.

use super::{
    batch::Applier,
    columns,
    error::Trouble,
    locks::Lock,
    session::Session,
    value::{Row, params},
};
use crate::{
    commit::{LimitRate, LimitRule},
    run_id::RunNo,
    store::{
        LimitPlace, LimitRow,
        rules::{
            limits::{LimitTables, Place},
            queues::HOLDERS,
            tables::Waiter,
        },
    },
};

const LIMIT: &str = "name, key, concurrency, rate_count, rate_ms, burst, held, waiting, arrivals, \
                     turn_us";
const PLACE: &str = "name, key, run, generation, operation, arrival, given";

impl LimitTables for Applier<'_> {
    fn count_places(&mut self, name: &str, key: &str) -> Result<(u64, u64), Trouble> {
        let sql = "SELECT count(*) FILTER (WHERE given = 1), count(*) FILTER (WHERE given = 0) \
                   FROM everstep_limit_places WHERE name = $1 AND key = $2";
        let counts = self.session.row(sql, params![name, key], |row| {
            Ok((columns::number(row, 0)?, columns::number(row, 1)?))
        });
        Ok(counts?.unwrap_or_default())
    }

    fn limit(&mut self, name: &str, key: &str) -> Result<Option<LimitRow>, Trouble> {
        self.lock(Lock::limit(name, key))?;
        let sql = format!("SELECT {LIMIT} FROM everstep_limits WHERE name = $1 AND key = $2");
        self.session.row(sql, params![name, key], limit_row)
    }

    fn put_limit(&mut self, row: &LimitRow) -> Result<(), Trouble> {
        // All columns: somebody with another key may have removed the row, if it was idle.
        let sql = format!(
            "INSERT INTO everstep_limits ({LIMIT}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10) \
             ON CONFLICT (name, key) DO UPDATE SET concurrency = excluded.concurrency, \
             rate_count = excluded.rate_count, rate_ms = excluded.rate_ms, \
             burst = excluded.burst, held = excluded.held, waiting = excluded.waiting, \
             arrivals = excluded.arrivals, turn_us = excluded.turn_us"
        );
        let rate = row.rule.rate;
        let params = params![
            row.name,
            row.key,
            row.rule.concurrency,
            rate.map(|rate| rate.count),
            rate.map(|rate| columns::limit(rate.per_ms)),
            rate.map(|rate| rate.burst),
            columns::limit(row.held),
            columns::limit(row.waiting),
            columns::limit(row.arrivals),
            row.turn_us,
        ];
        self.execute(sql, params);
        Ok(())
    }

    fn remove_limit(&mut self, row: &LimitRow) -> Result<(), Trouble> {
        let sql = "DELETE FROM everstep_limits WHERE name = $1 AND key = $2";
        self.execute(sql, params![row.name, row.key]);
        Ok(())
    }

    fn remove_idle(&mut self, name: &str, now_us: i64, max: u32) -> Result<(), Trouble> {
        // These keys are not locked. A row that somebody writes is left alone, not waited for; one
        // that somebody has read and writes after this is made anew by that.
        let sql = "WITH idle AS MATERIALIZED (SELECT name, key FROM everstep_limits \
                   WHERE name = $1 AND held = 0 AND waiting = 0 AND turn_us <= $2 \
                   ORDER BY turn_us, key LIMIT $3 FOR UPDATE SKIP LOCKED) \
                   DELETE FROM everstep_limits USING idle \
                   WHERE everstep_limits.name = idle.name AND everstep_limits.key = idle.key \
                   AND held = 0 AND waiting = 0 AND turn_us <= $2";
        self.execute(sql, params![name, now_us, max]);
        Ok(())
    }

    fn place(&mut self, of: &Waiter) -> Result<Option<Place>, Trouble> {
        if self.is_placeless(of) {
            return Ok(None);
        }
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places \
             WHERE run = $1 AND generation = $2 AND operation = $3"
        );
        let params = params![of.run.0, of.generation, of.key];
        self.session.row(sql, params, place)
    }

    fn put_place(&mut self, place: &Place) -> Result<(), Trouble> {
        self.gets_place(&place.of);
        let sql = format!(
            "INSERT INTO everstep_limit_places ({PLACE}) VALUES ($1, $2, $3, $4, $5, $6, $7) \
             ON CONFLICT (run, generation, operation) DO UPDATE SET name = excluded.name, \
             key = excluded.key, arrival = excluded.arrival, given = excluded.given"
        );
        let params = params![
            place.limit,
            place.limit_key,
            place.of.run.0,
            place.of.generation,
            place.of.key,
            columns::limit(place.arrival),
            place.given,
        ];
        self.execute(sql, params);
        Ok(())
    }

    fn remove_place(&mut self, of: &Waiter) -> Result<(), Trouble> {
        let sql = "DELETE FROM everstep_limit_places \
                   WHERE run = $1 AND generation = $2 AND operation = $3";
        self.execute(sql, params![of.run.0, of.generation, of.key]);
        Ok(())
    }

    fn first_in_line(&mut self, name: &str, key: &str) -> Result<Option<Place>, Trouble> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE name = $1 AND key = $2 AND given = 0 \
             ORDER BY arrival LIMIT 1"
        );
        self.session.row(sql, params![name, key], place)
    }

    fn places_of(&mut self, run: RunNo) -> Result<Vec<Place>, Trouble> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE run = $1 ORDER BY generation, operation"
        );
        let places = self.session.rows(sql.clone(), params![run.0], place)?;
        if run != HOLDERS || places.is_empty() {
            return Ok(places);
        }
        // Items give their places back under the locks of their queues.
        self.lock_holders(places.iter().map(|place| &place.of))?;
        let again = self.session.rows(sql, params![run.0], place)?;
        // What has come since is not locked, and has not run out either.
        let locked = again
            .into_iter()
            .filter(|it| places.iter().any(|other| other.of == it.of));
        Ok(locked.collect())
    }
}

/// The places of a run, with who has one there.
pub(super) fn places(session: &Session<'_>, run: RunNo) -> Result<Vec<LimitPlace>, Trouble> {
    let sql = "SELECT name, key, operation, given, (SELECT id FROM everstep_limit_places AS other \
               JOIN everstep_runs ON everstep_runs.no = other.run WHERE other.name = mine.name \
               AND other.key = mine.key AND other.given = 1 ORDER BY other.arrival LIMIT 1) \
               FROM everstep_limit_places AS mine WHERE run = $1 ORDER BY generation, operation";
    session.rows(sql, params![run.0], |row| {
        Ok(LimitPlace {
            name: row.get(0)?,
            key: row.get(1)?,
            operation: row.get(2)?,
            given: row.get(3)?,
            holder: columns::optional_run_id(row, 4)?,
        })
    })
}

/// The limits of this name, or all.
pub(super) fn list(
    session: &Session<'_>,
    name: Option<&str>,
    limit: usize,
) -> Result<Vec<LimitRow>, Trouble> {
    let condition = match name {
        Some(_) => "name = $1",
        None => "$1 IS NULL",
    };
    let sql = format!(
        "SELECT {LIMIT} FROM everstep_limits WHERE {condition} ORDER BY name, key LIMIT $2"
    );
    session.rows(sql, params![name, columns::limit(limit)], limit_row)
}

fn limit_row(row: &Row) -> Result<LimitRow, Trouble> {
    let count: Option<u32> = row.get(3)?;
    let (per_ms, burst): (Option<u64>, Option<u32>) =
        (columns::optional_number(row, 4)?, row.get(5)?);
    let rate = match (count, per_ms, burst) {
        (Some(count), Some(per_ms), Some(burst)) => Some(LimitRate {
            count,
            per_ms,
            burst,
        }),
        _ => None,
    };
    Ok(LimitRow {
        name: row.get(0)?,
        key: row.get(1)?,
        rule: LimitRule {
            concurrency: row.get(2)?,
            rate,
        },
        held: columns::number(row, 6)?,
        waiting: columns::number(row, 7)?,
        arrivals: columns::number(row, 8)?,
        turn_us: row.get(9)?,
    })
}

fn place(row: &Row) -> Result<Place, Trouble> {
    Ok(Place {
        limit: row.get(0)?,
        limit_key: row.get(1)?,
        of: Waiter {
            run: row.get(2).map(RunNo)?,
            generation: row.get(3)?,
            key: row.get(4)?,
        },
        arrival: columns::number(row, 5)?,
        given: row.get(6)?,
    })
}
