//! Limits and the places under them, in SQL.

use rusqlite::{Connection, OptionalExtension, Row, params, types::ValueRef};

use super::{batch::Applier, columns};
use crate::{
    commit::{LimitRate, LimitRule},
    run_id::RunNo,
    store::{
        LimitPlace, LimitRow,
        rules::{
            limits::{LimitTables, Place},
            tables::Waiter,
        },
    },
};

const LIMIT: &str = "name, key, concurrency, rate_count, rate_ms, burst, held, waiting, arrivals, \
                     turn_us";
const PLACE: &str = "name, key, run, generation, operation, arrival, given";

impl LimitTables for Applier<'_> {
    fn count_places(&mut self, name: &str, key: &str) -> rusqlite::Result<(u64, u64)> {
        let sql = "SELECT coalesce(sum(given = 1), 0), coalesce(sum(given = 0), 0) \
                   FROM everstep_limit_places WHERE name = ?1 AND key = ?2";
        let mut statement = self.conn.prepare_cached(sql)?;
        statement.query_row([name, key], |row| {
            Ok((row.get::<_, i64>(0)? as u64, row.get::<_, i64>(1)? as u64))
        })
    }

    fn limit(&mut self, name: &str, key: &str) -> rusqlite::Result<Option<LimitRow>> {
        let sql = format!("SELECT {LIMIT} FROM everstep_limits WHERE name = ?1 AND key = ?2");
        let mut statement = self.conn.prepare_cached(&sql)?;
        statement.query_row([name, key], limit_row).optional()
    }

    fn put_limit(&mut self, row: &LimitRow) -> rusqlite::Result<()> {
        let sql = format!(
            "INSERT OR REPLACE INTO everstep_limits ({LIMIT}) \
             VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10)"
        );
        let rate = row.rule.rate;
        let params = params![
            row.name,
            row.key,
            row.rule.concurrency,
            rate.map(|rate| rate.count),
            rate.map(|rate| rate.per_ms as i64),
            rate.map(|rate| rate.burst),
            row.held as i64,
            row.waiting as i64,
            row.arrivals as i64,
            row.turn_us,
        ];
        self.execute(&sql, params).map(drop)
    }

    fn remove_limit(&mut self, row: &LimitRow) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_limits WHERE name = ?1 AND key = ?2";
        self.execute(sql, [&row.name, &row.key]).map(drop)
    }

    fn remove_idle(&mut self, name: &str, now_us: i64, max: u32) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_limits WHERE name = ?1 AND key IN (SELECT key FROM everstep_limits \
                   WHERE name = ?1 AND held = 0 AND waiting = 0 AND turn_us <= ?2 \
                   ORDER BY turn_us, key LIMIT ?3)";
        self.execute(sql, params![name, now_us, max]).map(drop)
    }

    fn place(&mut self, of: &Waiter) -> rusqlite::Result<Option<Place>> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places \
             WHERE run = ?1 AND generation = ?2 AND operation = ?3"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let params = params![of.run.0, of.generation, of.key];
        statement.query_row(params, place).optional()
    }

    fn put_place(&mut self, place: &Place) -> rusqlite::Result<()> {
        let sql = format!(
            "INSERT OR REPLACE INTO everstep_limit_places ({PLACE}) VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)"
        );
        let Waiter {
            run,
            generation,
            key,
        } = &place.of;
        let params = params![
            place.limit,
            place.limit_key,
            run.0,
            generation,
            key,
            place.arrival as i64,
            place.given,
        ];
        self.execute(&sql, params).map(drop)
    }

    fn remove_place(&mut self, of: &Waiter) -> rusqlite::Result<()> {
        let sql = "DELETE FROM everstep_limit_places \
                   WHERE run = ?1 AND generation = ?2 AND operation = ?3";
        self.execute(sql, params![of.run.0, of.generation, of.key])
            .map(drop)
    }

    fn first_in_line(&mut self, name: &str, key: &str) -> rusqlite::Result<Option<Place>> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE name = ?1 AND key = ?2 AND given = 0 \
             ORDER BY arrival LIMIT 1"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        statement.query_row([name, key], place).optional()
    }

    fn places_of(&mut self, run: RunNo) -> rusqlite::Result<Vec<Place>> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE run = ?1 ORDER BY generation, operation"
        );
        let mut statement = self.conn.prepare_cached(&sql)?;
        let rows = statement.query_map([run.0], place)?;
        rows.collect()
    }
}

/// The places of a run, with who has one there.
pub(super) fn places(conn: &Connection, run: RunNo) -> rusqlite::Result<Vec<LimitPlace>> {
    let sql = "SELECT name, key, operation, given, (SELECT id FROM everstep_limit_places AS other \
               JOIN everstep_runs ON everstep_runs.no = other.run WHERE other.name = mine.name \
               AND other.key = mine.key AND other.given = 1 ORDER BY other.arrival LIMIT 1) \
               FROM everstep_limit_places AS mine WHERE run = ?1 ORDER BY generation, operation";
    let mut statement = conn.prepare_cached(sql)?;
    let rows = statement.query_map([run.0], |row| {
        let holder = match row.get_ref(4)? {
            ValueRef::Null => None,
            _ => Some(columns::run_id(row, 4)?),
        };
        Ok(LimitPlace {
            name: row.get(0)?,
            key: row.get(1)?,
            operation: row.get(2)?,
            given: row.get(3)?,
            holder,
        })
    })?;
    rows.collect()
}

/// The limits of this name, or all.
pub(super) fn list(
    conn: &Connection,
    name: Option<&str>,
    limit: usize,
) -> rusqlite::Result<Vec<LimitRow>> {
    let condition = match name {
        Some(_) => "name = ?1",
        None => "?1 IS NULL",
    };
    let sql = format!(
        "SELECT {LIMIT} FROM everstep_limits WHERE {condition} ORDER BY name, key LIMIT ?2"
    );
    let mut statement = conn.prepare_cached(&sql)?;
    let rows = statement.query_map(params![name, columns::limit(limit)], limit_row)?;
    rows.collect()
}

fn limit_row(row: &Row<'_>) -> rusqlite::Result<LimitRow> {
    let count: Option<u32> = row.get(3)?;
    let (per_ms, burst): (Option<i64>, Option<u32>) = (row.get(4)?, row.get(5)?);
    let rate = match (count, per_ms, burst) {
        (Some(count), Some(per_ms), Some(burst)) => Some(LimitRate {
            count,
            per_ms: per_ms as u64,
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
        held: row.get::<_, i64>(6)? as u64,
        waiting: row.get::<_, i64>(7)? as u64,
        arrivals: row.get::<_, i64>(8)? as u64,
        turn_us: row.get(9)?,
    })
}

fn place(row: &Row<'_>) -> rusqlite::Result<Place> {
    Ok(Place {
        limit: row.get(0)?,
        limit_key: row.get(1)?,
        of: Waiter {
            run: row.get(2).map(RunNo)?,
            generation: row.get(3)?,
            key: row.get(4)?,
        },
        arrival: row.get::<_, i64>(5)? as u64,
        given: row.get(6)?,
    })
}
