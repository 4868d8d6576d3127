//! The rows of limits and of the places under them.
//!
//! A key of a limit is locked when its row is read, which is what the rules do first. A place belongs
//! to a run, whose row is locked by whoever gives it, takes it back or asks about it.

use super::{
    InSql, Sql, SqlTables, Subject,
    bulk::Bulk,
    columns,
    value::{BadValue, Row, params, read},
};
use crate::{
    commit::{LimitRate, LimitRule},
    run_id::RunNo,
    store::{
        LimitPlace, LimitRow,
        rows::{HOLDERS, LimitTables, Of, Place, Waiter},
    },
};

const LIMIT: &str = "name, key, concurrency, rate_count, rate_ms, burst, held, waiting, arrivals, \
                     turn_us, seen_us";
const PLACE: &str = "run, generation, operation, name, key, arrival, given";

/// All columns: somebody with another key may have removed the row, if it was idle.
static PUT_LIMIT: Bulk = Bulk::put(
    "everstep_limits",
    2,
    "name text, key text, concurrency bigint, rate_count bigint, rate_ms bigint, burst bigint, \
     held bigint, waiting bigint, arrivals bigint, turn_us bigint, seen_us bigint",
);

static PUT_PLACE: Bulk = Bulk::put(
    "everstep_limit_places",
    3,
    "run bigint, generation bigint, operation bytea, name text, key text, arrival bigint, \
     given bigint",
);

impl<T: SqlTables> LimitTables for InSql<T> {
    fn limit(&mut self, name: &str, key: &str) -> Result<Option<LimitRow>, T::Error> {
        self.lock(Subject::Limit(name, key))?;
        let sql = format!("SELECT {LIMIT} FROM everstep_limits WHERE name = ?1 AND key = ?2");
        self.sql().row(sql, params![name, key], limit_row)
    }

    fn put_limit(&mut self, row: &LimitRow) -> Result<(), T::Error> {
        let rate = row.rule.rate.as_ref();
        let (count, per_ms) = (rate.map(|rate| rate.count), rate.map(|rate| rate.per_ms));
        let burst = rate.map(|rate| rate.burst);
        let params = params![
            row.name,
            row.key,
            row.rule.concurrency,
            count,
            per_ms,
            burst,
            row.held,
            row.waiting,
            row.arrivals,
            row.turn_us,
            row.seen_us,
        ];
        self.sql().execute(PUT_LIMIT.one(), params)
    }

    fn remove_limit(&mut self, row: &LimitRow) -> Result<(), T::Error> {
        let sql = "DELETE FROM everstep_limits WHERE name = ?1 AND key = ?2";
        self.sql().execute(sql, params![row.name, row.key])
    }

    fn remove_idle(&mut self, name: &str, now_us: i64, max: u32) -> Result<(), T::Error> {
        // These keys are not locked. A row that somebody writes is left alone, not waited for; one
        // that somebody has read and writes after this is made anew by that.
        let sql = T::Sql::pick(
            "DELETE FROM everstep_limits WHERE name = ?1 AND key IN (SELECT key \
             FROM everstep_limits WHERE name = ?1 AND held = 0 AND waiting = 0 AND turn_us <= ?2 \
             ORDER BY turn_us, key LIMIT ?3)",
            "WITH idle AS MATERIALIZED (SELECT name, key FROM everstep_limits \
             WHERE name = ?1 AND held = 0 AND waiting = 0 AND turn_us <= ?2 \
             ORDER BY turn_us, key LIMIT ?3 FOR UPDATE SKIP LOCKED) \
             DELETE FROM everstep_limits USING idle \
             WHERE everstep_limits.name = idle.name AND everstep_limits.key = idle.key \
             AND held = 0 AND waiting = 0 AND turn_us <= ?2",
        );
        self.sql().execute(sql, params![name, now_us, max])
    }

    fn put_place(&mut self, place: &Place) -> Result<(), T::Error> {
        self.gets_place(&place.of);
        let params = params![
            place.of.run,
            place.of.generation,
            place.of.key,
            place.limit,
            place.limit_key,
            place.arrival,
            place.given,
        ];
        self.sql().execute(PUT_PLACE.one(), params)
    }

    fn remove_place(&mut self, of: &Waiter) -> Result<(), T::Error> {
        let sql = "DELETE FROM everstep_limit_places \
                   WHERE run = ?1 AND generation = ?2 AND operation = ?3";
        self.sql().execute(sql, params![of.run, of.generation, of.key])
    }

    fn first_in_line(&mut self, name: &str, key: &str) -> Result<Option<Place>, T::Error> {
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE name = ?1 AND key = ?2 AND given = 0 \
             ORDER BY arrival LIMIT 1"
        );
        self.sql().row(sql, params![name, key], place)
    }

    fn places(&mut self, of: Of<'_>) -> Result<Vec<Place>, T::Error> {
        let run = match of {
            Of::Operation(of) if self.is_placeless(of) => return Ok(Vec::new()),
            Of::Operation(Waiter { run, generation, key }) => {
                let sql = format!(
                    "SELECT {PLACE} FROM everstep_limit_places \
                     WHERE run = ?1 AND generation = ?2 AND operation = ?3"
                );
                return self.sql().rows(sql, params![run, generation, key], place);
            }
            Of::Run(run) => run,
        };
        let sql = format!(
            "SELECT {PLACE} FROM everstep_limit_places WHERE run = ?1 ORDER BY generation, operation"
        );
        let places = self.sql().rows(sql.clone(), params![run], place)?;
        if run != HOLDERS || places.is_empty() || !T::Sql::HAS_OTHERS {
            return Ok(places);
        }
        // Items give their places back under the locks of their queues.
        self.lock_holders(&places)?;
        let again = self.sql().rows(sql, params![run], place)?;
        // What has come since is not locked, and has not run out either.
        let locked = again.into_iter().filter(|it| places.iter().any(|other| other.of == it.of));
        Ok(locked.collect())
    }
}

/// The places of a run, with who has one there.
pub(crate) fn places<S: Sql>(sql: &S, run: RunNo) -> Result<Vec<LimitPlace>, S::Error> {
    let text = "SELECT name, key, operation, given, (SELECT id FROM everstep_limit_places AS other \
                JOIN everstep_runs ON everstep_runs.no = other.run WHERE other.name = mine.name \
                AND other.key = mine.key AND other.given = 1 ORDER BY other.arrival LIMIT 1) \
                FROM everstep_limit_places AS mine WHERE run = ?1 ORDER BY generation, operation";
    sql.rows(text, params![run], |row| {
        Ok(read!(row => LimitPlace { name, key, operation, given, holder }))
    })
}

/// The limits of this name, or all.
pub(crate) fn list<S: Sql>(
    sql: &S,
    name: Option<&str>,
    limit: usize,
) -> Result<Vec<LimitRow>, S::Error> {
    let condition = match name {
        Some(_) => "name = ?1",
        None => "?1 IS NULL",
    };
    let text = format!(
        "SELECT {LIMIT} FROM everstep_limits WHERE {condition} ORDER BY name, key LIMIT ?2"
    );
    sql.rows(text, params![name, limit], limit_row)
}

fn limit_row(row: &dyn Row) -> Result<LimitRow, BadValue> {
    let rate = match (row.get(3)?, row.get(4)?, row.get(5)?) {
        (Some(count), Some(per_ms), Some(burst)) => Some(LimitRate { count, per_ms, burst }),
        _ => None,
    };
    Ok(LimitRow {
        name: row.get(0)?,
        key: row.get(1)?,
        rule: LimitRule { concurrency: row.get(2)?, rate },
        held: row.get(6)?,
        waiting: row.get(7)?,
        arrivals: row.get(8)?,
        turn_us: row.get(9)?,
        seen_us: row.get(10)?,
    })
}

fn place(row: &dyn Row) -> Result<Place, BadValue> {
    Ok(Place {
        limit: row.get(3)?,
        limit_key: row.get(4)?,
        of: columns::waiter(row, 0)?,
        arrival: row.get(5)?,
        given: row.get(6)?,
    })
}
